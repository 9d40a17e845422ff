/*
 * refusal.cpp: see refusal.h.
 */
#include "refusal.h"

#include "log.h"

namespace gateway
{

std::string
Refusal::body(const std::string &request_id) const
{
    std::string docs = quoted(std::string("https://openjobspec.org/errors/") + name);
    return "{\"error\": {\"code\": " + quoted(code) + ", \"message\": " + quoted(message) +
           ", \"retryable\": " + (retryable() ? "true" : "false") + ", \"details\": {}, \"hint\": " + quoted(hint) +
           ", \"docs_url\": " + docs + ", \"doc_url\": " + docs + ", \"request_id\": " + quoted(request_id) + "}}";
}

} // namespace gateway
