/*
 * refusal.h: errors of the gateway's own, in the form that ojs.http gives to errors.
 */
#pragma once

#include <string>

namespace gateway
{

/* Thrown by whatever will not serve a request. */
struct Refusal {
    int status;
    const char *code; /* as clients compare it */
    const char *name; /* in the catalogue, docs/reference/errors.md */
    std::string message;
    std::string hint;
    std::string headers = ""; /* further ones, lines "Name: value" */

    bool retryable() const { return status == 503 || status == 504; }
    std::string body(const std::string &request_id) const;
};

inline Refusal
bad_request(std::string message, std::string hint)
{
    return {400, "invalid_request", "INVALID_PAYLOAD", std::move(message), std::move(hint)};
}

} // namespace gateway
