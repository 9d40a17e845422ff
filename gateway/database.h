/*
 * database.h: connections to PostgreSQL, and a pool of them that calls ojs.http.
 */
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <libpq-fe.h>

#include "http.h"

namespace gateway
{

struct Closer {
    void operator()(PGconn *connection) const { PQfinish(connection); }
};
using Connection = std::unique_ptr<PGconn, Closer>;

/* What ojs.http is called with. */
struct Call {
    std::string_view method, target; /* of the request, as the body and the role */
    std::string headers;             /* lines "name: value" */
    std::string_view body;
    std::string_view role; /* empty: that of the connection */
    bool is_fetch = false; /* one that waits: whether it found a job is of interest */
    bool claims = false;   /* although it is a GET: done twice, it would lease twice */
};

struct Answer {
    int status = 0;
    std::string headers; /* lines "name: value" */
    std::string body;
    bool found_nothing = false; /* of a fetch */
    std::string queues;         /* which these were then, a name a line */
};

/* The first header of that name. */
std::optional<std::string_view> header_of(const Answer &answer, std::string_view name);

/* What keeps the database from answering, in words for the log. */
struct Unavailable {
    std::string why;
};

/* The call took longer than it may, and was cancelled. */
struct TimedOut {};

/* Opens a connection. What the connection string does not say has defaults here: a server that writes. */
Connection connect(const std::string &database);

class Pool {
public:
    Pool(std::string database, int size, std::chrono::seconds timeout);

    /* Waits for a free connection, at most the timeout. Throws Unavailable, TimedOut, Refusal. */
    Answer call(const Call &call);
    /* Like call(), but such calls take half of the connections at most; nothing if none comes free until then. */
    std::optional<Answer> call_again(const Call &call, Clock::time_point until);

private:
    Connection take(); /* of those that are free */
    void give(Connection connection);
    Answer call_on(Connection connection, const Call &call);
    Answer call_once(PGconn *connection, const Call &call, bool &may_repeat);

    const std::string database;
    const size_t size;
    const std::chrono::seconds timeout;
    std::mutex mutex;
    std::condition_variable freed;
    std::vector<Connection> idle; /* null: still to be opened */
    size_t looks = 0;             /* calls of call_again() */
};

} // namespace gateway
