/*
 * server.cpp: see server.h.
 */
#include "server.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <ctime>
#include <new>
#include <stdexcept>
#include <sys/resource.h>
#include <unistd.h>

#include "origin.h"
#include "refusal.h"
#include "request_id.h"
#include "stream.h"

namespace gateway
{

using std::chrono::milliseconds;
using std::chrono::seconds;

/* A request and what becomes of it. */
struct Server::Exchange {
    Request request;
    std::string id;
    std::string role;
    Answer answer;
    Clock::time_point since = Clock::now();
    bool keep_connection = false; /* only if all of the request was read */
    bool streams = false;         /* the answer goes on and on */
    size_t received = 0;          /* the size of the body */
};

namespace
{

constexpr size_t max_target = 8192;
constexpr size_t small_answer = 65536;   /* needs no room of those that all share */
constexpr seconds head_time(10);         /* from the first byte of a head to its end */
constexpr seconds reserved_head_time(2); /* of a connection over the limit */
constexpr seconds hold_time(3);          /* for others to give back memory */
constexpr size_t slowest_bytes_a_second = 32768;

Refusal
too_busy(const char *what)
{
    return {503, "backend_error", "UNAVAILABLE", what, "Try again.", "Retry-After: 1"};
}

/* Prefer: wait=N (RFC 7240), in whole seconds. */
seconds
preferred_wait(const Request &request)
{
    const std::string *header = request.header("Prefer");
    std::string_view prefer = header != nullptr ? std::string_view(*header) : "";
    while (!prefer.empty()) {
        std::string_view preference = trimmed(prefer.substr(0, prefer.find_first_of(",;")));
        prefer.remove_prefix(std::min(prefer.find_first_of(",;"), prefer.size() - 1) + 1);
        unsigned wait = 0;
        if (preference.starts_with("wait=") &&
            std::from_chars(preference.data() + 5, preference.data() + preference.size(), wait).ec == std::errc())
            return seconds(std::min(wait, 86400u));
    }
    return seconds(0);
}

/* How long the request would wait if the database did: ojs.http says so. */
milliseconds
would_wait(const Answer &answer)
{
    double wait = 0;
    if (std::optional<std::string_view> text = header_of(answer, "OJS-Would-Wait"))
        std::from_chars(text->data(), text->data() + text->size(), wait);
    return milliseconds(static_cast<int64_t>(std::clamp(wait, 0.0, 86400.0) * 1000));
}

/* The queue of /v0/topics/QUEUE/VERB; empty for any other path. */
std::string_view
queue_worked(const Request &request, std::string_view verb)
{
    constexpr std::string_view topics = "/v0/topics/";
    std::string_view path = request.path();
    if (!path.starts_with(topics) || !path.ends_with(verb))
        return {};
    path.remove_prefix(topics.size());
    path.remove_suffix(verb.size());
    return path.ends_with('/') ? path.substr(0, path.size() - 1) : std::string_view();
}

Refusal
refusal_of(Reading reading)
{
    switch (reading) {
    case Reading::head_too_large:
        return {431, "invalid_request", "INVALID_PAYLOAD", "the headers are larger than this server takes",
                "Send less."};
    case Reading::body_too_large:
        return {413, "payload_too_large", "PAYLOAD_TOO_LARGE", "the body is larger than this server takes",
                "Send less at once."};
    case Reading::no_room:
        return too_busy("too many bodies are on their way at the moment");
    case Reading::closed:
    case Reading::too_slow:
        return {408, "timeout", "TIMEOUT", "the request took too long to arrive", "Send it faster."};
    default:
        return bad_request("this is no HTTP/1.1 request, or it leaves in doubt where it ends",
                           "Send one Host, and one Content-Length or one Transfer-Encoding: chunked.");
    }
}

size_t
per_address_limit(const Options &options, const Listener &listener)
{
    return options.per_address.value_or(listener.loopback || options.behind_proxy ? 0 : options.connections / 10);
}

/* At a loopback address only the names that go without saying: under another one comes a page whose name now leads
 * here. */
std::vector<std::string>
host_names(const Options &options, const Listener &listener)
{
    if (!options.hosts.empty() || !listener.loopback || !listener.path.empty() || options.behind_proxy)
        return options.hosts;
    return {"localhost", "127.0.0.1", "[::1]", listener.address.substr(0, listener.address.rfind(':'))};
}

/* A file for each connection and for the database; better also for those that are on their way out. */
void
allow_files(const Options &options)
{
    rlimit files;
    rlim_t needed = options.connections + static_cast<size_t>(options.pool) + 64, better = needed + options.connections;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= better)
        return;
    if (files.rlim_max < needed)
        throw std::runtime_error("--connections " + std::to_string(options.connections) + " needs " +
                                 std::to_string(needed) + " open files, and the system allows " +
                                 std::to_string(files.rlim_max) + " (ulimit -n)");
    files.rlim_cur = std::min(better, files.rlim_max);
    setrlimit(RLIMIT_NOFILE, &files);
}

} // namespace

Server::Server(Options given)
    : options(std::move(given)), identity(options.identity), listener(listen_at(options.listen)),
      hosts(host_names(options, listener)), pages(options.ui, options.duties), log(options.access_log),
      clients({options.connections, per_address_limit(options, listener), options.max_bodies}),
      pool(options.database, options.pool, options.timeout), probes(options.database, options.timeout),
      ear(options.database, room)
{
    allow_files(options);
    if (!listener.loopback && !options.behind_proxy && !options.identity.known())
        throw std::runtime_error("whoever reaches " + listener.address +
                                 " could do all that the database role may: give --token-file, --jwt-key or "
                                 "--role-header, or --behind-proxy if a proxy in front sees to that");
}

void
Server::start()
{
    acceptor = std::thread(&Server::accept_clients, this);
}

void
Server::reload()
{
    log.reopen();
    try {
        identity.reload();
    } catch (const std::runtime_error &problem) {
        complain(std::string(problem.what()) + "; the secrets stay as they were");
    }
}

void
Server::accept_clients()
{
    while (!stopping) {
        Peer peer;
        Socket socket = accept_from(listener, peer);
        if (socket.fd() < 0) {
            if (!stopping)
                std::this_thread::sleep_for(milliseconds(20)); /* out of files, say */
            continue;
        }
        Client *client = nullptr;
        try {
            client = clients.admit(socket, peer);
            if (client != nullptr)
                std::thread([this, client] {
                    serve(*client);
                    clients.leave(client);
                }).detach();
            else
                socket.write("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
                             "Content-Length: 0\r\n\r\n",
                             Clock::now());
        } catch (const std::exception &exception) { /* neither memory nor a thread is to be had */
            complain(exception.what());
            if (client != nullptr)
                clients.leave(client);
        }
    }
}

void
Server::serve(Client &client)
{
    try {
        RequestReader reader(client.socket, options.max_headers);
        while (serve_request(client, reader))
            ;
    } catch (const std::exception &exception) {
        complain(exception.what());
    }
}

/* Returns whether the connection goes on. */
bool
Server::serve_request(Client &client, RequestReader &reader)
{
    clients.enter(client, Stage::head);
    if (stopping)
        return false;
    Exchange exchange;
    struct StreamEnd {
        Server &server;
        Exchange &exchange;
        ~StreamEnd() { server.end_stream(exchange); }
    } stream_end{*this, exchange};
    seconds patience = client.reserved ? reserved_head_time : std::min(head_time, options.timeout);
    Reading reading =
        reader.read_head(exchange.request, Clock::now() + (client.reserved ? patience : options.timeout), patience);
    if (reading == Reading::closed || !clients.enter(client, Stage::busy))
        return false;
    exchange.since = Clock::now();
    try {
        exchange.id = request_id(exchange.request.header("X-Request-Id"));
        if (reading != Reading::done)
            throw refusal_of(reading);
        exchange.keep_connection = reader.keeps_connection() && !client.reserved && !reader.has_body();
        answer(client, reader, exchange);
    } catch (const Refusal &refusal) {
        end_stream(exchange);
        exchange.answer = {refusal.status,
                           "Content-Type: application/openjobspec+json\nOJS-Version: 1.0\nX-Request-Id: " +
                               exchange.id + (refusal.headers.empty() ? "" : "\n" + refusal.headers),
                           refusal.body(exchange.id), false, ""};
    }
    exchange.received = std::exchange(exchange.request.body, {}).size();
    clients.release(client);
    /* A large answer that finds no room is not sent: what was asked for is done, as when a connection breaks. */
    size_t size = exchange.answer.body.size();
    bool goes_on =
        (size <= small_answer || clients.hold(client, size, Clock::now() + hold_time)) && respond(client, exchange);
    write_log(client, exchange);
    clients.release(client);
    return goes_on;
}

/* Also where its beginning was never written. */
void
Server::end_stream(Exchange &exchange)
{
    if (!std::exchange(exchange.streams, false))
        return;
    streams--;
    release_jobs(pool, call_of(exchange), exchange.answer);
}

/* Every failure leaves as a Refusal. */
void
Server::answer(Client &client, RequestReader &reader, Exchange &exchange)
{
    try {
        /* Pages are for everybody who comes to the gateway; what they show, they ask for like any client. */
        if (std::optional<Answer> page = client.reserved ? std::nullopt : pages.page(exchange.request)) {
            exchange.answer = std::move(*page);
            return;
        }
        admit(client, reader, exchange);
        read_body(client, reader, exchange);
        /* A stream holds its connection: half of them are for others. One that finds no place is leased no job. */
        const size_t places = std::max<size_t>(options.connections / 2, 1);
        if (asks_for_stream(exchange.request) && streams >= places)
            throw too_busy("too many event streams are open");
        exchange.answer = ask(client, exchange);
        exchange.streams = is_stream(exchange.answer) && exchange.request.method == "GET";
        if (exchange.streams && ++streams > places)
            throw too_busy("too many event streams are open");
    } catch (const Unavailable &unavailable) {
        complain(unavailable.why);
        throw too_busy("the database does not answer");
    } catch (const TimedOut &) {
        throw Refusal{504,
                      "backend_error",
                      "TIMEOUT",
                      "the call took too long and was cancelled",
                      "Try again, or ask for less at once.",
                      "Retry-After: 1"};
    } catch (const std::bad_alloc &) {
        throw too_busy("the gateway is short of memory");
    }
}

/* What can be said of a request before its body is read. */
void
Server::admit(const Client &client, const RequestReader &reader, Exchange &exchange) const
{
    const Request &request = exchange.request;
    if (client.reserved && !Probes::is_probe(request))
        throw too_busy("too many connections are open");
    if (!std::ranges::all_of(request.method, [](char c) { return c >= 'A' && c <= 'Z'; }))
        throw bad_request("the method is not in upper case", "Send GET, POST and so on.");
    if (request.target.size() > max_target)
        throw Refusal{414, "invalid_request", "INVALID_PAYLOAD", "the path is longer than this server takes",
                      "Send at most 8192 bytes."};
    check_origin(request, hosts);
    exchange.role = identity.role_of(request, client.peer);
    if (!is_served(options.duties, request.method, request.path()))
        throw Refusal{403, "permission_denied", "PERMISSION_DENIED", "this gateway does not serve that route",
                      "Its option --allow names what it serves."};
    check_media_type(request, reader.has_body());
    if (reader.announced_size().value_or(0) > options.max_body)
        throw refusal_of(Reading::body_too_large);
}

/* A request that waits or streams may outlive its token. */
void
Server::check_role(const Client &client, const Exchange &exchange) const
{
    if (identity.role_of(exchange.request, client.peer) != exchange.role)
        throw Refusal{401, "unauthenticated", "PERMISSION_DENIED", "the token stands for another role now",
                      "Send the request again."};
}

void
Server::read_body(Client &client, RequestReader &reader, Exchange &exchange)
{
    if (!reader.has_body())
        return;
    /* The whole time for a body of the largest size, less for less: slow ones hold memory. */
    size_t size = std::min<uint64_t>(reader.announced_size().value_or(options.max_body), options.max_body);
    Clock::time_point until =
        Clock::now() + std::min<seconds>(options.timeout, seconds(5 + size / slowest_bytes_a_second));
    clients.enter(client, Stage::body);
    Reading reading = reader.read_body(exchange.request, options.max_body, until, [&](size_t bytes) {
        return clients.hold(client, bytes, std::min(until, Clock::now() + hold_time));
    });
    if (!clients.enter(client, Stage::busy))
        reading = Reading::closed;
    exchange.keep_connection = reading == Reading::done && reader.keeps_connection();
    if (reading != Reading::done)
        throw refusal_of(reading);
}

Call
Server::call_of(const Exchange &exchange) const
{
    const Request &request = exchange.request;
    Call call{request.method, request.target, "X-Request-Id: " + exchange.id + "\nOJS-Do-Not-Wait: 1", request.body,
              exchange.role};
    for (const auto &[name, value] : request.headers)
        if (!identity.is_secret(name) && !same_text(name, "OJS-Do-Not-Wait") && !same_text(name, "OJS-Stream") &&
            !same_text(name, "X-Request-Id"))
            call.headers += "\n" + name + ": " + value;
    call.is_fetch =
        request.method == "POST" && request.path().ends_with("/workers/fetch") && preferred_wait(request) > seconds(0);
    call.claims = request.method == "GET" && !queue_worked(request, "work").empty();
    return call;
}

/*
 * ojs.http never waits for us: it answers at once, and says so where the request asked to wait. The gateway asks again
 * then, whenever there may be something new, until the time that the client gives is over.
 */
Answer
Server::ask(const Client &client, const Exchange &exchange)
{
    const Request &request = exchange.request;
    if (Probes::is_plain(request))
        return probes.ask(request, exchange.role, exchange.id);
    const Call call = call_of(exchange);
    Clock::time_point begun = Clock::now();
    unsigned long heard = room.heard();
    Answer answer = pool.call(call);
    if (request.method == "POST" && answer.status == 200)
        for (std::string_view verb : {"ack", "nack"})
            if (std::string_view queue = queue_worked(request, verb); !queue.empty())
                room.notify(std::string(queue)); /* a stream of jobs may have room for another */

    auto waits = [&] { return answer.found_nothing || would_wait(answer) > milliseconds(0); };
    if (!waits())
        return answer;
    milliseconds longest = answer.found_nothing ? preferred_wait(request) : would_wait(answer);
    Clock::time_point until = begun + std::min<milliseconds>(longest, options.max_wait);
    std::string group = answer.found_nothing      ? "fetch\n" + exchange.role + "\n" + answer.queues
                        : request.method == "GET" ? "result\n" + exchange.role + "\n" + request.target
                                                  : "push\n" + exchange.id;
    WaitingRoom::Pace pace = answer.found_nothing ? WaitingRoom::Pace{seconds(1), seconds(1)}
                                                  : WaitingRoom::Pace{milliseconds(10), milliseconds(250)};

    WaitingRoom::Waiter waiter(room, group, answer.queues, heard, pace);
    while (waiter.await_turn(until, [&] { return client.socket.hung_up(); })) {
        check_role(client, exchange);
        if (std::optional<Answer> next = pool.call_again(call, until)) {
            answer = std::move(*next);
            if (!waits())
                return answer;
        }
        waiter.found_nothing();
    }
    return answer;
}

bool
Server::respond(Client &client, Exchange &exchange)
{
    Answer &answer = exchange.answer;
    bool goes_on = exchange.keep_connection && !stopping && !exchange.streams;
    char date[64];
    time_t now = time(nullptr);
    tm utc;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &utc));

    std::string text = "HTTP/1.1 " + std::to_string(answer.status) + " ";
    text.append(reason(answer.status)).append("\r\nDate: ").append(date).append("\r\n");
    for (std::string_view lines = answer.headers; !lines.empty();) {
        std::string_view line = lines.substr(0, lines.find('\n'));
        lines.remove_prefix(std::min(line.size() + 1, lines.size()));
        if (!line.starts_with("OJS-Would-Wait: ") && !line.starts_with("OJS-Stream") &&
            !line.starts_with("OJS-Last-Event-ID: "))
            text.append(line).append("\r\n");
    }
    text += "X-Content-Type-Options: nosniff\r\n"; /* jobs hold what anybody wrote, and a browser may look at them */
    bool has_body =
        exchange.request.method != "HEAD" && !exchange.streams && answer.status != 204 && answer.status != 304;
    if (has_body)
        text += "Content-Length: " + std::to_string(answer.body.size()) + "\r\n";
    text += goes_on ? "\r\n" : "Connection: close\r\n\r\n";
    std::string_view body = has_body ? std::string_view(answer.body) : "";
    size_t with_head = std::min<size_t>(body.size(), 16384); /* one write is enough for most */
    text += body.substr(0, with_head);

    clients.enter(client, Stage::answer);
    Clock::time_point until = Clock::now() + options.timeout + seconds(body.size() / slowest_bytes_a_second);
    if (!client.socket.write(text, until) || !client.socket.write(body.substr(with_head), until))
        return false;
    if (exchange.streams && clients.enter(client, Stage::busy))
        send_events(client, clients, pool, room, call_of(exchange), answer, [&] { check_role(client, exchange); });
    end_stream(exchange);
    if (!goes_on) {
        clients.enter(client, Stage::head); /* as one at rest */
        client.socket.linger(Clock::now() + std::min(seconds(2), options.timeout));
    }
    return goes_on;
}

void
Server::write_log(const Client &client, const Exchange &exchange)
{
    if (!log)
        return;
    char date[64];
    time_t now = time(nullptr);
    tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - exchange.since);
    const Request &request = exchange.request;
    log.write(std::string("{\"time\": \"") + date + "\", \"request_id\": " + json_quoted(exchange.id) +
              ", \"address\": " + json_quoted(client.peer.address) + ", \"role\": " + json_quoted(exchange.role) +
              ", \"method\": " + json_quoted(std::string_view(request.method).substr(0, 32)) + ", \"path\": " +
              json_quoted(request.path().substr(0, 1024)) + ", \"status\": " + std::to_string(exchange.answer.status) +
              ", \"ms\": " + std::to_string(took.count()) + ", \"received\": " + std::to_string(exchange.received) +
              ", \"sent\": " + std::to_string(exchange.answer.body.size()) + "}");
}

bool
Server::stop()
{
    stopping = true;
    room.close();
    listener.socket.shut(); /* who connects now is refused, and does not wait */
    acceptor.join();
    if (!listener.path.empty())
        unlink(listener.path.c_str());
    clients.end_idle();
    if (clients.wait_until_empty(Clock::now() + options.timeout * 2))
        return true;
    clients.end_all();
    return clients.wait_until_empty(Clock::now() + options.timeout);
}

} // namespace gateway
