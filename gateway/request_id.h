/*
 * request_id.h: a name for each request, in its answer and in the logs.
 */
#pragma once

#include <string>

namespace gateway
{

/* The client's own if it may be echoed, by the rule of ojs.http; else a new one: a UUIDv7. */
std::string request_id(const std::string *given);

} // namespace gateway
