/*
 * server.cpp: see server.h.
 */
#include "server.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <netdb.h>
#include <optional>
#include <poll.h>
#include <string_view>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gateway
{

using std::chrono::seconds;

/* A request on its way in. */
struct Server::Exchange {
    Request request;
    Clock::time_point since = Clock::now();
    bool counted = false;
    bool too_large = false;
    bool ambiguous = false; /* where it ends is not beyond doubt */
};

namespace
{

/* The client's own if it may be echoed, as ojs.http has it; else a new one: a UUIDv7. */
std::string
request_id(MHD_Connection *connection)
{
    const char *given = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "X-Request-Id");
    std::string_view id = given != nullptr ? given : "";
    if (!id.empty() && id.size() <= 128 && std::ranges::all_of(id, [](char c) { return c >= '!' && c <= '~'; }) &&
        id.find_first_of("\"\\") == id.npos)
        return std::string(id);
    unsigned char bytes[16];
    if (getentropy(bytes, sizeof bytes) != 0)
        return "req_unknown";
    auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    for (int i = 0; i < 6; i++)
        bytes[i] = static_cast<unsigned char>(ms >> (8 * (5 - i)));
    bytes[6] = (bytes[6] & 0x0f) | 0x70;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    std::string made = "req_";
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            made += '-';
        made += "0123456789abcdef"[bytes[i] >> 4];
        made += "0123456789abcdef"[bytes[i] & 15];
    }
    return made;
}

/* An error of the gateway's own, in the form that ojs.http gives to errors; `name` is the code in the catalog. */
Answer
error(MHD_Connection *connection, int status, const char *code, const char *name, const char *message, const char *hint, bool retryable)
{
    std::string id = request_id(connection);
    std::string docs = std::string("https://openjobspec.org/errors/") + name;
    std::string body = std::string("{\"error\": {\"code\": \"") + code + "\", \"message\": \"" + message +
                       "\", \"retryable\": " + (retryable ? "true" : "false") + ", \"details\": {}, \"hint\": \"" + hint +
                       "\", \"docs_url\": \"" + docs + "\", \"doc_url\": \"" + docs + "\", \"request_id\": \"" + id + "\"}}";
    return {status,
            "Content-Type: application/openjobspec+json\nOJS-Version: 1.0\nX-Request-Id: " + id +
                (retryable ? "\nRetry-After: 1" : ""),
            body, false};
}

/* What bears on where a request ends, or whom it is for. */
struct Framing {
    int lengths = 0;
    int encodings = 0;
    int hosts = 0;
    bool sound = true;
};

MHD_Result
check_header(void *framing, MHD_ValueKind, const char *name, const char *value)
{
    auto &seen = *static_cast<Framing *>(framing);
    constexpr std::string_view token = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    if (std::string_view(name).find_first_not_of(token) != std::string_view::npos)
        seen.sound = false;
    seen.lengths += strcasecmp(name, "Content-Length") == 0;
    seen.hosts += strcasecmp(name, "Host") == 0;
    if (strcasecmp(name, "Transfer-Encoding") == 0) {
        seen.encodings++;
        if (value == nullptr || strcasecmp(value, "chunked") != 0)
            seen.sound = false;
    }
    return MHD_YES;
}

/*
 * Whether a proxy in front of us could see the end of the request elsewhere, and take what follows for another one's: the library
 * is lenient there.
 */
bool
is_ambiguous(MHD_Connection *connection)
{
    Framing seen;
    MHD_get_connection_values(connection, MHD_HEADER_KIND, check_header, &seen);
    return !seen.sound || seen.lengths + seen.encodings > 1 || seen.hosts > 1;
}

MHD_Result
add_header(void *headers, MHD_ValueKind, const char *name, const char *value)
{
    auto &lines = *static_cast<std::string *>(headers);
    if (!lines.empty())
        lines += '\n';
    lines += std::string(name) + ": " + (value != nullptr ? value : "");
    return MHD_YES;
}

/* Prefer: wait=N (RFC 7240), in whole seconds; 0: none. */
seconds
preferred_wait(MHD_Connection *connection)
{
    const char *header = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Prefer");
    std::string_view prefer = header != nullptr ? header : "";
    for (size_t at = prefer.find("wait="); at != prefer.npos; at = prefer.find("wait=", at + 1)) {
        if (at > 0 && prefer[at - 1] != ' ' && prefer[at - 1] != ',' && prefer[at - 1] != ';')
            continue;
        unsigned wait = 0;
        std::from_chars(prefer.data() + at + 5, prefer.data() + prefer.size(), wait);
        return seconds(std::min(wait, 86400u));
    }
    return seconds(0);
}

std::string_view
without_query(std::string_view path)
{
    return path.substr(0, path.find('?'));
}

/* ?wait=true&timeout=N of a job's result, in seconds; nothing: it does not ask to wait. */
std::optional<seconds>
wait_for_result(MHD_Connection *connection)
{
    const char *wait = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "wait");
    if (wait == nullptr || (strcmp(wait, "true") != 0 && strcmp(wait, "1") != 0 && *wait != '\0'))
        return {};
    unsigned longest = 30;
    if (const char *timeout = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "timeout")) {
        const char *end = timeout + strlen(timeout);
        if (auto [rest, problem] = std::from_chars(timeout, end, longest); rest != end || problem != std::errc())
            return {}; /* ojs.http says what is wrong with it */
    }
    return seconds(std::min(longest, 86400u));
}

/* The same request, but not to wait in the database: the gateway does. */
std::string
with_timeout_0(std::string_view path)
{
    std::string changed(without_query(path));
    std::string_view query = path.substr(std::min(changed.size() + 1, path.size()));
    changed += "?timeout=0";
    while (!query.empty()) {
        std::string_view parameter = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(parameter.size() + 1, query.size()));
        if (!parameter.starts_with("timeout="))
            changed.append("&").append(parameter);
    }
    return changed;
}

bool
hung_up(MHD_Connection *connection)
{
    const MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    pollfd socket = {info->connect_fd, POLLRDHUP, 0};
    return poll(&socket, 1, 0) > 0 && (socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

} // namespace

Server::Server(const Options &options)
    : options(options), pool(options.database, options.pool, options.timeout), ear(options.database)
{
}

Server::~Server()
{
    if (daemon != nullptr)
        stop();
}

void *
Server::begin(void *, const char *uri, MHD_Connection *)
{
    auto *exchange = new Exchange;
    std::string_view path = uri;
    if (path.starts_with("http://")) { /* as to a proxy */
        size_t slash = path.find('/', 7);
        path = slash != path.npos ? path.substr(slash) : "/";
    }
    exchange->request.path = path;
    return exchange;
}

/* Called for the headers, then for each piece of the body, and then once more. */
MHD_Result
Server::receive(void *self, MHD_Connection *connection, const char *, const char *method, const char *,
                const char *data, size_t *size, void **closure)
{
    auto &server = *static_cast<Server *>(self);
    auto &exchange = *static_cast<Exchange *>(*closure);
    std::string &body = exchange.request.body;

    if (!exchange.counted) {
        {
            std::lock_guard lock(server.mutex);
            server.under_way++;
        }
        exchange.counted = true;
        exchange.since = Clock::now();
        exchange.request.method = method;
        exchange.ambiguous = is_ambiguous(connection);
        const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
        exchange.too_large = length != nullptr && strtoull(length, nullptr, 10) > server.options.max_body;
        if (exchange.ambiguous || exchange.too_large)
            return server.handle(connection, exchange);
        return MHD_YES;
    }
    if (*size > 0) {
        if (Clock::now() - exchange.since > server.options.timeout)
            return MHD_NO; /* drop by drop: the connection is closed */
        if (body.size() + *size > server.options.max_body)
            exchange.too_large = true;
        else
            body.append(data, *size);
        *size = 0;
        return MHD_YES;
    }
    return server.handle(connection, exchange);
}

void
Server::end(void *self, MHD_Connection *, void **closure, MHD_RequestTerminationCode)
{
    auto &server = *static_cast<Server *>(self);
    auto *exchange = static_cast<Exchange *>(*closure);
    if (exchange == nullptr)
        return;
    if (exchange->counted) {
        std::lock_guard lock(server.mutex);
        if (--server.under_way == 0)
            server.all_done.notify_all();
    }
    delete exchange;
}

/*
 * A fetch may ask to wait for work, and who wants a result for the end of the job. Between two looks they hold no connection of
 * the pool. New work is told by the database; for results we look in growing intervals.
 */
Answer
Server::ask(MHD_Connection *connection, const Exchange &exchange)
{
    using std::chrono::milliseconds;
    Request request = exchange.request;
    std::optional<seconds> longest;
    bool fetches = request.method == "POST" && without_query(request.path).ends_with("/workers/fetch");
    if (fetches)
        longest = preferred_wait(connection);
    else if (request.method == "GET" && without_query(request.path).ends_with("/result"))
        if ((longest = wait_for_result(connection)))
            request.path = with_timeout_0(request.path);
    Clock::time_point until = Clock::now() + std::min(longest.value_or(seconds(0)), options.max_wait);
    milliseconds pause(fetches ? 1000 : 10);

    for (;;) {
        unsigned long heard = ear.heard();
        Answer answer = pool.call(request, longest.has_value());
        if (!answer.in_vain || stopping || Clock::now() >= until)
            return answer;
        ear.wait(fetches ? std::optional(heard) : std::nullopt, std::min(until, Clock::now() + pause));
        if (hung_up(connection)) /* what nobody would get must not be claimed */
            return answer;
        pause = std::min(pause * 2, milliseconds(fetches ? 1000 : 250));
    }
}

MHD_Result
Server::handle(MHD_Connection *connection, Exchange &exchange)
{
    Answer answer;
    try {
        MHD_get_connection_values(connection, MHD_HEADER_KIND, add_header, &exchange.request.headers);
        if (exchange.ambiguous)
            answer = error(connection, MHD_HTTP_BAD_REQUEST, "invalid_request", "INVALID_PAYLOAD",
                           "the headers leave in doubt where the request ends",
                           "Send one Content-Length or one Transfer-Encoding: chunked, and one Host.", false);
        else if (exchange.too_large)
            answer = error(connection, MHD_HTTP_CONTENT_TOO_LARGE, "payload_too_large", "PAYLOAD_TOO_LARGE",
                           "the body is larger than this server takes", "Send less at once.", false);
        else
            answer = ask(connection, exchange);
    } catch (const Unavailable &unavailable) {
        fprintf(stderr, "ojs-gateway: %s\n", unavailable.why.c_str());
        answer = error(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "backend_error", "UNAVAILABLE", "the database does not answer",
                       "Try again.", true);
    } catch (const TimedOut &) {
        answer = error(connection, MHD_HTTP_GATEWAY_TIMEOUT, "backend_error", "TIMEOUT",
                       "the call took too long and was cancelled", "Try again, or ask for less at once.", true);
    } catch (const NotText &) {
        answer = error(connection, MHD_HTTP_BAD_REQUEST, "invalid_payload", "INVALID_PAYLOAD", "the request is not valid UTF-8",
                       "Send UTF-8.", false);
    } catch (const std::exception &exception) {
        fprintf(stderr, "ojs-gateway: %s\n", exception.what());
        answer = error(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "backend_error", "BACKEND_ERROR", "the gateway failed",
                       "Its standard error tells more.", true);
    }
    return respond(connection, exchange, answer);
}

MHD_Result
Server::respond(MHD_Connection *connection, const Exchange &exchange, const Answer &answer) const
{
    MHD_Response *response = MHD_create_response_from_buffer(answer.body.size(), const_cast<char *>(answer.body.data()),
                                                             MHD_RESPMEM_MUST_COPY);
    if (response == nullptr)
        return MHD_NO;
    std::string_view lines = answer.headers;
    while (!lines.empty()) {
        std::string line(lines.substr(0, lines.find('\n')));
        lines.remove_prefix(std::min(line.size() + 1, lines.size()));
        size_t colon = line.find(": ");
        if (colon != line.npos)
            MHD_add_response_header(response, line.substr(0, colon).c_str(), line.c_str() + colon + 2);
    }
    if (stopping || exchange.too_large || exchange.ambiguous)
        MHD_add_response_header(response, "Connection", "close");
    MHD_Result queued = MHD_queue_response(connection, static_cast<unsigned>(answer.status), response);
    MHD_destroy_response(response);
    return queued;
}

bool
Server::start()
{
    size_t colon = options.listen.rfind(':');
    std::string host = colon != std::string::npos ? options.listen.substr(0, colon) : "127.0.0.1";
    std::string port = options.listen.substr(colon != std::string::npos ? colon + 1 : 0);
    if (host.starts_with('[') && host.ends_with(']'))
        host = host.substr(1, host.size() - 2);

    addrinfo hints = {};
    addrinfo *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    if (getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found) != 0)
        return false;
    /* Without the library's own log, which any client could fill. */
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_ITC |
                     (found->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    daemon = MHD_start_daemon(flags, 0, nullptr, nullptr, receive, this, MHD_OPTION_SOCK_ADDR, found->ai_addr,
                              MHD_OPTION_URI_LOG_CALLBACK, begin, this, MHD_OPTION_NOTIFY_COMPLETED, end, this,
                              MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(options.connections),
                              MHD_OPTION_CONNECTION_TIMEOUT, static_cast<unsigned>(options.timeout.count()),
                              MHD_OPTION_CONNECTION_MEMORY_LIMIT, options.max_headers, MHD_OPTION_STRICT_FOR_CLIENT, 1,
                              MHD_OPTION_END);
    freeaddrinfo(found);
    return daemon != nullptr;
}

std::string
Server::address() const
{
    const MHD_DaemonInfo *info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
    size_t colon = options.listen.rfind(':');
    return (colon != std::string::npos ? options.listen.substr(0, colon) : "127.0.0.1") + ":" +
           std::to_string(info->port);
}

void
Server::stop()
{
    stopping = true;
    ear.close();
    close(MHD_quiesce_daemon(daemon)); /* who connects now is refused, and does not wait */
    {
        std::unique_lock lock(mutex);
        all_done.wait_for(lock, options.timeout * 2, [this] { return under_way == 0; });
    }
    MHD_stop_daemon(daemon);
    daemon = nullptr;
}

} // namespace gateway
