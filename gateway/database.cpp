/*
 * database.cpp: see database.h.
 */
#include "database.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <poll.h>

#include "refusal.h"

namespace gateway
{

namespace
{

/* Of the body there is no expression that a plan could evaluate: it would be parsed before ojs.http has checked it. */
constexpr const char *call_sql = R"sql(
    select a.status,
        (select string_agg(name || ': ' || value, e'\n') from jsonb_each_text(a.headers) h (name, value)),
        a.body,
        case when $5::boolean and a.status = 200 then
            case when a.body::jsonb -> 'jobs' = '[]' then
                (select coalesce('a pool: ' || (request.body::jsonb ->> 'pool'), (select string_agg(queue, e'\n')
                        from jsonb_array_elements_text(request.body::jsonb -> 'queues') queue), '')
                    from (select $4 offset 0) request (body))
            end
        end
    from ojs.http($1, $2,
        (select coalesce(jsonb_object_agg(split_part(line, ': ', 1), substr(line, strpos(line, ': ') + 2)), '{}')
            from unnest(string_to_array(nullif($3, ''), e'\n')) line),
        $4) a
)sql";
constexpr size_t large_answer = 4 << 20; /* libpq never gives its buffer back: the connection goes */
constexpr const char *role_sql = "select set_config('role', $1, true)";

struct Freer {
    void operator()(PGresult *result) const { PQclear(result); }
};
using Result = std::unique_ptr<PGresult, Freer>;

std::string
complaint(const PGconn *connection)
{
    std::string text = PQerrorMessage(connection);
    while (text.ends_with('\n'))
        text.pop_back();
    return text;
}

bool
is(const Result &result, const char *sqlstate)
{
    const char *is = PQresultErrorField(result.get(), PG_DIAG_SQLSTATE);
    return is != nullptr && strcmp(is, sqlstate) == 0;
}

/* Whether the server has said that it only reads, and the connection is not meant for that. */
bool
reads_only(PGconn *connection)
{
    const char *standby = PQparameterStatus(connection, "in_hot_standby");
    const char *read_only = PQparameterStatus(connection, "default_transaction_read_only");
    if ((standby == nullptr || strcmp(standby, "on") != 0) && (read_only == nullptr || strcmp(read_only, "on") != 0))
        return false;
    bool writes = false;
    PQconninfoOption *options = PQconninfo(connection);
    for (const PQconninfoOption *option = options; option != nullptr && option->keyword != nullptr; option++)
        if (strcmp(option->keyword, "target_session_attrs") == 0 && option->val != nullptr)
            writes = strcmp(option->val, "read-write") == 0 || strcmp(option->val, "primary") == 0;
    PQconninfoFree(options);
    return writes;
}

/* What a server says to a connection that nobody uses is its farewell, or that it only reads from now on. */
bool
is_usable(PGconn *connection)
{
    pollfd socket = {PQsocket(connection), POLLIN, 0};
    return PQstatus(connection) == CONNECTION_OK && poll(&socket, 1, 0) == 0;
}

Connection
open_for_calls(const std::string &database, std::chrono::seconds timeout)
{
    Connection connection = connect(database);
    /* A plan of its own for each call would hold the body several times: each step of the planner copies it. */
    std::string limit =
        "set statement_timeout = '" + std::to_string(timeout.count()) + "s'; set plan_cache_mode = force_generic_plan";
    Result set(PQexec(connection.get(), limit.c_str()));
    Result prepared(PQprepare(connection.get(), "ojs_http", call_sql, 0, nullptr));
    if (PQresultStatus(prepared.get()) == PGRES_COMMAND_OK)
        prepared.reset(PQprepare(connection.get(), "ojs_role", role_sql, 0, nullptr));
    if (PQresultStatus(prepared.get()) != PGRES_COMMAND_OK || PQenterPipelineMode(connection.get()) == 0)
        throw Unavailable{complaint(connection.get())};
    return connection;
}

std::string
cell(const Result &result, int column)
{
    return {PQgetvalue(result.get(), 0, column), static_cast<size_t>(PQgetlength(result.get(), 0, column))};
}

/* In binary: a text is its bytes then, and the server sees to zeros and bad UTF-8. */
template <size_t n>
bool
send(PGconn *connection, const char *statement, const std::array<std::string_view, n> &texts)
{
    std::array<const char *, n> values;
    std::array<int, n> lengths, formats;
    for (size_t i = 0; i < n; i++) {
        values[i] = texts[i].data();
        lengths[i] = static_cast<int>(texts[i].size());
        formats[i] = 1;
    }
    return PQsendQueryPrepared(connection, statement, n, values.data(), lengths.data(), formats.data(), 0) != 0;
}

} // namespace

std::optional<std::string_view>
header_of(const Answer &answer, std::string_view name)
{
    for (std::string_view lines = answer.headers; !lines.empty();) {
        std::string_view line = lines.substr(0, lines.find('\n'));
        lines.remove_prefix(std::min(line.size() + 1, lines.size()));
        if (size_t colon = line.find(": "); colon != line.npos && same_text(line.substr(0, colon), name))
            return line.substr(colon + 2);
    }
    return {};
}

Connection
connect(const std::string &database)
{
    /* What stands before dbname is a default, and what it says itself goes before. */
    const char *names[] = {"target_session_attrs",
                           "connect_timeout",
                           "keepalives_idle",
                           "keepalives_interval",
                           "keepalives_count",
                           "tcp_user_timeout",
                           "dbname",
                           "fallback_application_name",
                           "client_encoding",
                           nullptr};
    const char *values[] = {"read-write",     "10",          "15",   "5",    "3", "30000",
                            database.c_str(), "ojs gateway", "UTF8", nullptr};
    Connection connection(PQconnectdbParams(names, values, 1));
    if (PQstatus(connection.get()) != CONNECTION_OK)
        throw Unavailable{complaint(connection.get())};
    PQsetNoticeProcessor(
        connection.get(), [](void *, const char *) {}, nullptr);
    return connection;
}

Pool::Pool(std::string database, int size, std::chrono::seconds timeout)
    : database(std::move(database)), size(static_cast<size_t>(size)), timeout(timeout), idle(this->size)
{
}

Connection
Pool::take()
{
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
    freed.notify_all(); /* they do not all wait for the same thing */
}

/* The role holds for the transaction, which ends with the pipeline: nothing of it is left for the next request. */
Answer
Pool::call_once(PGconn *connection, const Call &call, bool &may_repeat)
{
    bool sent = call.role.empty() || send<1>(connection, "ojs_role", {call.role});
    sent = sent && send<5>(connection, "ojs_http",
                           {call.method, call.target, call.headers, call.body.empty() ? std::string_view() : call.body,
                            call.is_fetch ? std::string_view("\1", 1) : std::string_view("\0", 1)});
    std::array<Result, 3> results; /* of the role, of the call, of the commit: that only if it failed */
    bool ended = false, in_sync = false;
    if (sent && PQpipelineSync(connection) != 0)
        for (size_t at = call.role.empty() ? 1 : 0; !in_sync && at <= 2 && PQstatus(connection) == CONNECTION_OK;) {
            Result next(PQgetResult(connection));
            if (!next) {
                at++;
                continue;
            }
            in_sync = PQresultStatus(next.get()) == PGRES_PIPELINE_SYNC;
            /* admin_shutdown instead of an answer; what follows only says that the connection is gone */
            ended |= at < 2 && is(next, "57P01");
            if (!in_sync && !results[at])
                results[at] = std::move(next);
        }
    const auto &[role, answer, commit] = results;
    std::string why = complaint(connection);
    if (!in_sync) { /* of no use any more */
        may_repeat = ended || (!call.claims && (call.method == "GET" || call.method == "HEAD"));
        throw Unavailable{why};
    }
    if (is(role, "42501") || is(role, "22023"))
        throw Refusal{403, "permission_denied", "PERMISSION_DENIED", "the gateway cannot act as that role",
                      "Create it, and grant it to the role of the gateway's connection."};
    if (is(answer, "42501")) /* ojs.http answers for whatever it calls */
        throw Refusal{403, "permission_denied", "PERMISSION_DENIED", "that role may not call ojs.http",
                      "Grant it one of ojs_producer, ojs_worker, ojs_observer and ojs_admin."};
    if (is(answer, "22021")) /* character_not_in_repertoire */
        throw Refusal{400, "invalid_payload", "INVALID_PAYLOAD", "the request is not valid UTF-8", "Send UTF-8."};
    for (const Result &result : results)
        if (is(result, "57014")) /* query_canceled: by our statement_timeout */
            throw TimedOut();
    if (commit || PQresultStatus(answer.get()) != PGRES_TUPLES_OK || PQntuples(answer.get()) != 1)
        throw Unavailable{why.empty() ? "the call failed" : why};
    bool found_nothing = PQgetisnull(answer.get(), 0, 3) == 0;
    return {atoi(PQgetvalue(answer.get(), 0, 0)), cell(answer, 1), cell(answer, 2), found_nothing, cell(answer, 3)};
}

Answer
Pool::call_on(Connection connection, const Call &call)
{
    bool again = true; /* once at most */
    try {
        for (;;) {
            bool may_repeat = false;
            if (!connection || !is_usable(connection.get()))
                connection = open_for_calls(database, timeout);
            try {
                Answer answer = call_once(connection.get(), call, may_repeat);
                if (reads_only(connection.get()) || answer.body.size() > large_answer)
                    connection.reset();
                give(std::move(connection));
                return answer;
            } catch (const Unavailable &) {
                if (!may_repeat || !again)
                    throw;
                connection.reset();
                again = false;
            }
        }
    } catch (const Unavailable &) {
        give(nullptr);
        throw;
    } catch (...) {
        give(std::move(connection));
        throw;
    }
}

Answer
Pool::call(const Call &call)
{
    std::unique_lock lock(mutex);
    if (!freed.wait_until(lock, Clock::now() + timeout, [this] { return !idle.empty(); }))
        throw Unavailable{"no connection of the pool became free"};
    Connection connection = take();
    lock.unlock();
    return call_on(std::move(connection), call);
}

std::optional<Answer>
Pool::call_again(const Call &call, Clock::time_point until)
{
    std::unique_lock lock(mutex);
    if (!freed.wait_until(lock, until, [this] { return !idle.empty() && looks < std::max<size_t>(size / 2, 1); }))
        return {};
    Connection connection = take();
    looks++;
    lock.unlock();
    struct Look {
        Pool &pool;
        ~Look()
        {
            {
                std::lock_guard lock(pool.mutex);
                pool.looks--;
            }
            pool.freed.notify_all();
        }
    } look{*this};
    return call_on(std::move(connection), call);
}

} // namespace gateway
