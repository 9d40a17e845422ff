/*
 * http.h: reads HTTP/1.1 requests off a socket. The parser is Boost.Beast's, which is strict; what it leaves open is
 * refused here, so that no proxy in front can see the end of a request elsewhere.
 */
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "socket.h"

namespace gateway
{

struct Request {
    std::string method;
    std::string target; /* path and query, as they came */
    std::vector<std::pair<std::string, std::string>> headers;
    std::string body;

    /* The first header of that name, or null. */
    const std::string *header(std::string_view name) const;
    std::string_view path() const { return std::string_view(target).substr(0, target.find('?')); }
    /* A parameter of the query, not decoded. */
    std::optional<std::string_view> parameter(std::string_view name) const;
};

bool same_text(std::string_view a, std::string_view b); /* whatever the case */
std::string_view trimmed(std::string_view text);
std::string_view reason(int status); /* "OK", "Not Found" and so on */

enum class Reading { done, closed, too_slow, malformed, head_too_large, body_too_large, no_room };

class RequestReader {
public:
    RequestReader(Socket &socket, size_t max_head);
    ~RequestReader();

    /* Waits for the first byte until `idle_until`, from then on at most `head_time`. */
    Reading read_head(Request &request, Clock::time_point idle_until, Clock::duration head_time);

    /* Of the head that was read: */
    bool has_body() const;
    std::optional<uint64_t> announced_size() const;
    bool keeps_connection() const;

    /* `hold` is asked before more bytes are kept. */
    Reading read_body(Request &request, size_t max_body, Clock::time_point until,
                      const std::function<bool(size_t)> &hold);

private:
    struct Parser;
    Reading fill(Clock::time_point until);

    Socket &socket;
    const size_t max_head;
    std::string pending; /* read, and not parsed yet */
    std::unique_ptr<Parser> parser;
};

} // namespace gateway
