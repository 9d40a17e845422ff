/*
 * origin.cpp: see origin.h.
 */
#include "origin.h"

#include <algorithm>

#include "refusal.h"

namespace gateway
{

namespace
{

std::string_view
without_port(std::string_view host)
{
    size_t colon = host.rfind(':');
    bool port = colon != host.npos && host.find_first_not_of("0123456789", colon + 1) == host.npos &&
                (host.find(':') == colon || (colon > 0 && host[colon - 1] == ']'));
    return port ? host.substr(0, colon) : host;
}

/* The host and port of an origin; empty for "null" and whatever is none. */
std::string_view
authority(std::string_view origin)
{
    size_t start = origin.find("://");
    return start == origin.npos ? "" : origin.substr(start + 3);
}

bool
same_authority(std::string_view origin, std::string_view host)
{
    if (same_text(origin, host))
        return true;
    /* A browser leaves out the port that goes without saying. */
    auto is_default = [](std::string_view port) { return port.empty() || port == ":80" || port == ":443"; };
    std::string_view origin_name = without_port(origin), host_name = without_port(host);
    return same_text(origin_name, host_name) && is_default(origin.substr(origin_name.size())) &&
           is_default(host.substr(host_name.size()));
}

bool
is_json(const std::string *type)
{
    std::string_view name = type != nullptr ? std::string_view(*type) : "";
    name = trimmed(name.substr(0, name.find(';')));
    return same_text(name, "application/openjobspec+json") || same_text(name, "application/json");
}

} // namespace

void
check_origin(const Request &request, const std::vector<std::string> &hosts)
{
    const std::string *host = request.header("Host");
    std::string_view name = host != nullptr ? without_port(*host) : "";
    if (!hosts.empty() && std::ranges::none_of(hosts, [name](const auto &known) { return same_text(known, name); }))
        throw Refusal{421, "misdirected_request", "INVALID_PAYLOAD",
                      "this server does not go by the name that Host gives",
                      "Start the gateway with --host NAME for each of its names."};

    const Refusal foreign = {403, "permission_denied", "PERMISSION_DENIED",
                             "a page of another site may not send requests",
                             "Serve the page and the gateway from one origin, through a proxy."};
    const std::string *site = request.header("Sec-Fetch-Site");
    if (site != nullptr && same_text(*site, "cross-site"))
        throw foreign;
    /* Another site of the same family sends its name, but not with what it asks for as an image or a script. */
    const std::string *mode = request.header("Sec-Fetch-Mode");
    if (site != nullptr && same_text(*site, "same-site") && mode != nullptr && same_text(*mode, "no-cors"))
        throw foreign;
    const std::string *origin = request.header("Origin");
    if (origin != nullptr && (host == nullptr || !same_authority(authority(*origin), *host)))
        throw foreign;
}

void
check_media_type(const Request &request, bool has_body)
{
    const std::string *type = request.header("Content-Type");
    if ((has_body || type != nullptr) && request.method != "GET" && request.method != "HEAD" && !is_json(type))
        throw bad_request("the media type of the body is not supported, or missing",
                          "Send Content-Type: application/openjobspec+json, or application/json.");
}

} // namespace gateway
