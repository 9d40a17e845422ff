/*
 * http.cpp: see http.h.
 */
#include "http.h"

#include <algorithm>
#include <array>
#include <limits>
#include <strings.h>

#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/status.hpp>

namespace gateway
{

namespace beast = boost::beast;
namespace http = boost::beast::http;

const std::string *
Request::header(std::string_view name) const
{
    for (const auto &[key, value] : headers)
        if (same_text(key, name))
            return &value;
    return nullptr;
}

std::optional<std::string_view>
Request::parameter(std::string_view name) const
{
    std::string_view query = target;
    query.remove_prefix(std::min(path().size() + 1, query.size()));
    while (!query.empty()) {
        std::string_view one = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(one.size() + 1, query.size()));
        if (one.substr(0, one.find('=')) == name)
            return one.substr(std::min(name.size() + 1, one.size()));
    }
    return {};
}

bool
same_text(std::string_view a, std::string_view b)
{
    return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view
trimmed(std::string_view text)
{
    size_t first = text.find_first_not_of(" \t");
    return first == text.npos ? "" : text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

std::string_view
reason(int status)
{
    beast::string_view text = http::obsolete_reason(static_cast<http::status>(status));
    return {text.data(), text.size()};
}

struct RequestReader::Parser : http::basic_parser<true> {
    explicit Parser(Request &request) : request(request) {}

    void on_request_impl(http::verb, beast::string_view method, beast::string_view target, int number,
                         beast::error_code &) override
    {
        version = number;
        request.method.assign(method.data(), method.size());
        request.target.assign(target.data(), target.size());
    }
    void on_field_impl(http::field, beast::string_view name, beast::string_view value, beast::error_code &) override
    {
        if (!is_header_done()) /* trailers say nothing that counts */
            request.headers.emplace_back(std::string(name.data(), name.size()),
                                         std::string(value.data(), value.size()));
    }
    size_t keep(beast::string_view bytes, beast::error_code &error)
    {
        if (request.body.size() + bytes.size() > max_body)
            error = http::error::body_limit;
        else if (!(*hold)(bytes.size()))
            error = http::error::buffer_overflow;
        else
            request.body.append(bytes.data(), bytes.size());
        return bytes.size();
    }
    size_t on_body_impl(beast::string_view bytes, beast::error_code &error) override { return keep(bytes, error); }
    size_t on_chunk_body_impl(uint64_t, beast::string_view bytes, beast::error_code &error) override
    {
        return keep(bytes, error);
    }
    void on_response_impl(int, beast::string_view, int, beast::error_code &) override {}
    void on_header_impl(beast::error_code &) override {}
    void on_body_init_impl(const boost::optional<uint64_t> &, beast::error_code &) override {}
    void on_chunk_header_impl(uint64_t, beast::string_view, beast::error_code &) override {}
    void on_finish_impl(beast::error_code &) override {}

    /* What a lenient proxy could read otherwise than the parser has. */
    bool is_ambiguous() const
    {
        int lengths = 0, encodings = 0, hosts = 0;
        for (const auto &[name, value] : request.headers) {
            if (same_text(name, "Content-Length")) {
                lengths++;
                if (value.find_first_not_of("0123456789") != value.npos)
                    return true;
            } else if (same_text(name, "Transfer-Encoding")) {
                encodings++;
                if (!same_text(value, "chunked"))
                    return true;
            } else if (same_text(name, "Host")) {
                hosts++;
            }
        }
        return lengths + encodings > 1 || hosts > 1 || (version >= 11 ? hosts == 0 : encodings > 0);
    }

    Request &request;
    int version = 0; /* 11: HTTP/1.1 */
    size_t max_body = 0;
    const std::function<bool(size_t)> *hold = nullptr;
};

RequestReader::RequestReader(Socket &socket, size_t max_head) : socket(socket), max_head(max_head) {}

RequestReader::~RequestReader() = default;

Reading
RequestReader::fill(Clock::time_point until)
{
    std::array<char, 16384> bytes;
    std::optional<size_t> n = socket.read(bytes.data(), bytes.size(), until);
    if (n)
        pending.append(bytes.data(), *n);
    return !n        ? (Clock::now() >= until ? Reading::too_slow : Reading::closed)
           : *n == 0 ? Reading::closed
                     : Reading::done;
}

Reading
RequestReader::read_head(Request &request, Clock::time_point idle_until, Clock::duration head_time)
{
    parser = std::make_unique<Parser>(request);
    parser->header_limit(static_cast<uint32_t>(max_head));
    parser->body_limit(std::numeric_limits<uint64_t>::max()); /* without one, Boost 1.74 refuses every body */

    if (pending.empty())
        if (fill(idle_until) != Reading::done)
            return Reading::closed; /* a connection at rest ends without a word */
    size_t parsed = 0;
    for (Clock::time_point until = Clock::now() + head_time; !parser->is_header_done();) {
        beast::error_code error;
        size_t n = parser->put(boost::asio::buffer(pending), error);
        parsed += n; /* the parser takes headers one by one, and its limit is for what it has not taken */
        /* The parser joins folded lines, which others drop. */
        if (pending.substr(0, n).find("\r\n ") != pending.npos || pending.substr(0, n).find("\r\n\t") != pending.npos)
            return Reading::malformed;
        pending.erase(0, n);
        if (error == http::error::header_limit || parsed > max_head)
            return Reading::head_too_large;
        if (error && error != http::error::need_more)
            return Reading::malformed;
        if (parser->is_header_done())
            break;
        if (Reading result = fill(until); result != Reading::done)
            return result;
    }
    if (parser->is_ambiguous())
        return Reading::malformed;
    if (request.target.starts_with("http://")) { /* as to a proxy */
        size_t slash = request.target.find('/', 7);
        const std::string *host = request.header("Host");
        if (host == nullptr ||
            !same_text(*host, request.target.substr(7, slash != request.target.npos ? slash - 7 : slash)))
            return Reading::malformed;
        request.target = slash != std::string::npos ? request.target.substr(slash) : "/";
    }
    return Reading::done;
}

bool
RequestReader::has_body() const
{
    return parser->chunked() || announced_size().value_or(0) > 0;
}

std::optional<uint64_t>
RequestReader::announced_size() const
{
    boost::optional<uint64_t> length = parser->content_length();
    return length ? std::optional<uint64_t>(*length) : std::nullopt;
}

bool
RequestReader::keeps_connection() const
{
    return parser->version >= 11 && parser->keep_alive();
}

Reading
RequestReader::read_body(Request &request, size_t max_body, Clock::time_point until,
                         const std::function<bool(size_t)> &hold)
{
    const std::string *expect = request.header("Expect");
    if (expect != nullptr && same_text(*expect, "100-continue") && pending.empty() && has_body() &&
        !socket.write("HTTP/1.1 100 Continue\r\n\r\n", until))
        return Reading::closed;
    parser->max_body = max_body;
    parser->hold = &hold;
    parser->eager(true);
    while (!parser->is_done()) {
        beast::error_code error;
        size_t n = parser->put(boost::asio::buffer(pending), error);
        pending.erase(0, n);
        if (error == http::error::body_limit)
            return Reading::body_too_large;
        if (error == http::error::buffer_overflow)
            return Reading::no_room;
        if ((error && error != http::error::need_more) || pending.size() > max_head)
            return Reading::malformed; /* also a chunk's line or a trailer without an end */
        if (parser->is_done())
            break;
        if (Clock::now() >= until)
            return Reading::too_slow; /* drop by drop */
        if (Reading result = fill(until); result != Reading::done)
            return result;
    }
    return Reading::done;
}

} // namespace gateway
