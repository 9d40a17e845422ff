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
    std::string docs = json_quoted(std::string("https://openjobspec.org/errors/") + name);
    return "{\"error\": {\"code\": " + json_quoted(code) + ", \"message\": " + json_quoted(message) +
           ", \"retryable\": " + (retryable() ? "true" : "false") +
           ", \"details\": {}, \"hint\": " + json_quoted(hint) + ", \"docs_url\": " + docs + ", \"doc_url\": " + docs +
           ", \"request_id\": " + json_quoted(request_id) + "}}";
}

} // namespace gateway
