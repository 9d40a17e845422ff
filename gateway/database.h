/*
 * database.h: the PostgreSQL side of the gateway: a pool of connections that calls ojs.http, and an ear for new work.
 */
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <libpq-fe.h>

namespace gateway
{

using Clock = std::chrono::steady_clock;

struct Closer {
    void operator()(PGconn *connection) const { PQfinish(connection); }
};
using Connection = std::unique_ptr<PGconn, Closer>;

struct Request {
    std::string method;
    std::string path;    /* with its query, as it came */
    std::string headers; /* lines "name: value" */
    std::string body;
};

struct Answer {
    int status = 0;
    std::string headers; /* lines "name: value" */
    std::string body;
    bool in_vain = false; /* of one that may wait: there is nothing for it yet */
};

/* What keeps the database from answering, in words for the log. */
struct Unavailable {
    std::string why;
};

/* The request cannot even be handed over: it is not text. */
struct NotText {};

/* The call took longer than it may, and was cancelled. */
struct TimedOut {};

class Pool {
public:
    Pool(std::string database, int size, std::chrono::seconds timeout);

    /* Waits for a free connection, at most the timeout. Throws Unavailable, NotText, TimedOut. */
    Answer call(const Request &request, bool may_wait);

private:
    Connection take();
    void give(Connection connection);
    Answer call_once(PGconn *connection, const Request &request, bool may_wait, bool &again);

    const std::string database;
    const std::chrono::seconds timeout;
    std::mutex mutex;
    std::condition_variable freed;
    std::vector<Connection> idle; /* null: still to be opened */
};

/* Listens to the channel ojs, so that requests which wait for work look again as soon as there may be some. */
class Ear {
public:
    explicit Ear(std::string database);
    ~Ear();

    unsigned long heard() const { return count; }
    /* Until something is heard that was not when `since` was read (nothing: of no interest), `until`, or the end. */
    void wait(std::optional<unsigned long> since, Clock::time_point until);
    /* Nobody waits any longer. */
    void close();

private:
    void listen();
    bool rest(int socket, std::chrono::milliseconds longest);

    const std::string database;
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<unsigned long> count = 0;
    std::atomic<bool> closed = false;
    int wake[2]; /* a pipe */
    std::thread thread;
};

} // namespace gateway
