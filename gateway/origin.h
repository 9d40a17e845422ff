/*
 * origin.h: requests that a web page makes behind its user's back are refused: with another site's Origin, under a name
 * that is not ours (DNS rebinding), or with a body whose media type a page may send without asking.
 */
#pragma once

#include <string>
#include <vector>

#include "http.h"

namespace gateway
{

/* Throws Refusal. `hosts`: the names that this server goes by, without a port; none: any. */
void check_origin(const Request &request, const std::vector<std::string> &hosts);

/* A page may send a body without a media type, or as text or a form, unasked. As JSON it may not. */
void check_media_type(const Request &request, bool has_body);

} // namespace gateway
