/*
 * database.cpp: see database.h.
 */
#include "database.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <poll.h>
#include <unistd.h>

namespace gateway
{

namespace
{

constexpr const char *statement = "ojs_http";
constexpr const char *statement_sql = R"sql(
    select status,
        (select string_agg(name || ': ' || value, e'\n') from jsonb_each_text(headers) h (name, value)),
        body,
        $5::boolean and (status = 408 or status = 200 and body::jsonb -> 'jobs' = '[]')
    from ojs.http($1, $2,
        (select coalesce(jsonb_object_agg(split_part(line, ': ', 1), substr(line, strpos(line, ': ') + 2)), '{}')
            from unnest(string_to_array(nullif($3, ''), e'\n')) line),
        $4)
)sql";

struct Freer {
    void operator()(PGresult *result) const { PQclear(result); }
};
using Result = std::unique_ptr<PGresult, Freer>;

std::string
complaint(const PGconn *connection)
{
    std::string text = PQerrorMessage(connection);
    while (!text.empty() && text.back() == '\n')
        text.pop_back();
    return text;
}

bool
is(const Result &result, const char *sqlstate)
{
    const char *is = PQresultErrorField(result.get(), PG_DIAG_SQLSTATE);
    return is != nullptr && strcmp(is, sqlstate) == 0;
}

Connection
connect(const std::string &database)
{
    const char *names[] = {"dbname", "fallback_application_name", "client_encoding", "connect_timeout", nullptr};
    const char *values[] = {database.c_str(), "ojs gateway", "UTF8", "10", nullptr};
    Connection connection(PQconnectdbParams(names, values, 1));
    if (PQstatus(connection.get()) != CONNECTION_OK)
        throw Unavailable{complaint(connection.get())};
    PQsetNoticeProcessor(
        connection.get(), [](void *, const char *) {}, nullptr);
    return connection;
}

/* What a server says to a connection that nobody uses is its farewell. */
bool
stands(PGconn *connection)
{
    pollfd socket = {PQsocket(connection), POLLIN, 0};
    return PQstatus(connection) == CONNECTION_OK && poll(&socket, 1, 0) == 0;
}

Connection
open_for_calls(const std::string &database, std::chrono::seconds timeout)
{
    Connection connection = connect(database);
    std::string limit = "set statement_timeout = '" + std::to_string(timeout.count()) + "s'";
    Result set(PQexec(connection.get(), limit.c_str()));
    Result prepared(PQprepare(connection.get(), statement, statement_sql, 0, nullptr));
    if (PQresultStatus(prepared.get()) != PGRES_COMMAND_OK)
        throw Unavailable{complaint(connection.get())};
    return connection;
}

std::string
cell(const Result &result, int column)
{
    return {PQgetvalue(result.get(), 0, column), static_cast<size_t>(PQgetlength(result.get(), 0, column))};
}

} // namespace

Pool::Pool(std::string database, int size, std::chrono::seconds timeout)
    : database(std::move(database)), timeout(timeout), idle(size)
{
}

Connection
Pool::take()
{
    std::unique_lock lock(mutex);
    if (!freed.wait_for(lock, timeout, [this] { return !idle.empty(); }))
        throw Unavailable{"no connection of the pool became free"};
    Connection connection = std::move(idle.back());
    idle.pop_back();
    return connection;
}

void
Pool::give(Connection connection)
{
    {
        std::lock_guard lock(mutex);
        idle.push_back(std::move(connection));
    }
    freed.notify_one();
}

Answer
Pool::call_once(PGconn *connection, const Request &request, bool may_wait, bool &again)
{
    /* In binary: a text is its bytes then, and the server sees to zeros and bad UTF-8. */
    const std::array<std::string_view, 5> texts = {request.method, request.path, request.headers, request.body,
                                                   may_wait ? "\1" : std::string_view("\0", 1)};
    std::array<const char *, 5> values;
    std::array<int, 5> lengths;
    const std::array<int, 5> formats = {1, 1, 1, 1, 1};
    for (size_t i = 0; i < texts.size(); i++) {
        values[i] = texts[i].data();
        lengths[i] = static_cast<int>(texts[i].size());
    }
    Result result;
    bool ended = false, no_text = false;
    if (PQsendQueryPrepared(connection, statement, texts.size(), values.data(), lengths.data(), formats.data(), 0) != 0)
        while (PGresult *next = PQgetResult(connection)) {
            result.reset(next);
            ended |=
                is(result, "57P01"); /* admin_shutdown; what comes after it only says that the connection is gone */
            no_text |= is(result, "22021"); /* character_not_in_repertoire */
        }
    if (PQresultStatus(result.get()) == PGRES_TUPLES_OK && PQntuples(result.get()) == 1)
        return {atoi(PQgetvalue(result.get(), 0, 0)), cell(result, 1), cell(result, 2), cell(result, 3) == "t"};

    if (no_text)
        throw NotText();
    if (is(result, "57014")) /* query_canceled: by our statement_timeout */
        throw TimedOut();
    /* The server said that it ended the call, or reading can be done twice. */
    again = ended || request.method == "GET" || request.method == "HEAD";
    throw Unavailable{complaint(connection)};
}

Answer
Pool::call(const Request &request, bool may_wait)
{
    bool again = true; /* once at most */
    Connection connection = take();
    try {
        for (;;) {
            bool may_repeat = false;
            if (!connection || !stands(connection.get()))
                connection = open_for_calls(database, timeout);
            try {
                Answer answer = call_once(connection.get(), request, may_wait, may_repeat);
                give(std::move(connection));
                return answer;
            } catch (const Unavailable &) {
                if (!may_repeat || !again || PQstatus(connection.get()) == CONNECTION_OK)
                    throw;
                again = false;
            }
        }
    } catch (...) {
        if (connection && PQstatus(connection.get()) != CONNECTION_OK)
            connection.reset();
        give(std::move(connection));
        throw;
    }
}

Ear::Ear(std::string database) : database(std::move(database))
{
    if (pipe(wake) != 0)
        throw Unavailable{"no pipe could be made"};
    thread = std::thread(&Ear::listen, this);
}

Ear::~Ear()
{
    close();
    thread.join();
    ::close(wake[0]);
    ::close(wake[1]);
}

void
Ear::close()
{
    {
        std::lock_guard lock(mutex);
        closed = true;
    }
    changed.notify_all();
    char byte = 0;
    if (write(wake[1], &byte, 1) != 1)
        perror("ojs-gateway: pipe");
}

void
Ear::wait(std::optional<unsigned long> since, Clock::time_point until)
{
    std::unique_lock lock(mutex);
    changed.wait_until(lock, until, [this, since] { return closed || (since && count != *since); });
}

/* True: the socket has something to read. */
bool
Ear::rest(int socket, std::chrono::milliseconds longest)
{
    pollfd sockets[] = {{wake[0], POLLIN, 0}, {socket, POLLIN, 0}};
    return poll(sockets, socket >= 0 ? 2 : 1, static_cast<int>(longest.count())) > 0 && sockets[1].revents != 0;
}

void
Ear::listen()
{
    using std::chrono::seconds;

    while (!closed) {
        try {
            Connection connection = connect(database);
            Result result(PQexec(connection.get(), "listen ojs"));
            while (!closed && PQstatus(connection.get()) == CONNECTION_OK) {
                bool any = false;
                if (rest(PQsocket(connection.get()), seconds(60)) && PQconsumeInput(connection.get()) == 0)
                    break;
                while (PGnotify *notify = PQnotifies(connection.get())) {
                    PQfreemem(notify);
                    any = true;
                }
                if (any) {
                    {
                        std::lock_guard lock(mutex);
                        count++;
                    }
                    changed.notify_all();
                }
            }
        } catch (const Unavailable &) {
            /* Requests that wait look again each second all the same; the pool tells the log. */
        }
        rest(-1, seconds(1));
    }
}

} // namespace gateway
