/*
 * sender.cpp: see sender.h.
 */
#include "sender.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"

namespace gateway
{

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace
{

constexpr milliseconds look_every(500);  /* for deliveries that are due */
constexpr milliseconds look_again(50);   /* there were some */
constexpr seconds database_rest(2);      /* after it did not answer */
constexpr seconds connect_time(10);      /* of the time for all of it */
constexpr seconds farewell(5);           /* for what is under way when the gateway ends */
constexpr size_t most_of_answer = 65536; /* is read, as of its headers, … */
constexpr size_t kept_of_answer = 1000;  /* … and this much is told */
constexpr const char *claim_sql = "select id, lease_id, url, timeout_seconds, array_to_string(headers, e'\\n'), body "
                                  "from ojs.claim_webhooks($1)";
constexpr const char *finish_sql = "select id from ojs.finish_webhooks($1) f, unnest(f.busy) id";
constexpr size_t most_told = 1000;       /* outcomes at a time, and that wait for a transaction */
constexpr milliseconds told_again(2000); /* those, at most so long after */
constexpr seconds worth_a_word(5);       /* so long after */

struct Freer {
    void operator()(PGresult *result) const { PQclear(result); }
    void operator()(CURL *easy) const { curl_easy_cleanup(easy); }
    void operator()(curl_slist *list) const { curl_slist_free_all(list); }
};
using Result = std::unique_ptr<PGresult, Freer>;

/* The database has answered, with an error. */
struct Failed : Unavailable {
    std::string state;
};

Result
call(PGconn *connection, const char *sql, const std::string &value)
{
    const char *values[] = {value.c_str()};
    Result result(PQexecParams(connection, sql, 1, nullptr, values, nullptr, nullptr, 0));
    if (const char *state = PQresultErrorField(result.get(), PG_DIAG_SQLSTATE))
        throw Failed{{PQresultErrorField(result.get(), PG_DIAG_MESSAGE_PRIMARY)}, state};
    if (PQresultStatus(result.get()) != PGRES_TUPLES_OK)
        throw Unavailable{PQerrorMessage(connection)};
    return result;
}

/* A text that jsonb takes: it holds no zeros, and in a database that is not UTF8 nothing that it may have no letter
 * for. */
std::string
told(std::string_view text, bool any_letter)
{
    std::string copy(text);
    std::ranges::replace_if(
        copy, [](char c) { return c >= 0 && c < ' ' && c != '\n' && c != '\t'; }, ' ');
    copy = json_quoted(copy);
    if (!any_letter) {
        std::erase_if(copy, [](unsigned char c) { return c >= 0x80 && c < 0xc0; });
        std::ranges::replace_if(
            copy, [](unsigned char c) { return c >= 0xc0; }, '?');
    }
    return copy;
}

} // namespace

struct Sender::Transfer {
    const Sender &sender;
    std::string id, lease_id, url, body;
    std::unique_ptr<CURL, Freer> easy = {};
    std::unique_ptr<curl_slist, Freer> headers = {};
    size_t header_bytes = 0, answer_bytes = 0;
    std::string answer = {}; /* the beginning of it */
    bool refused = false;    /* an address that it may not go to */
    Clock::time_point since = Clock::now();
    char problem[CURL_ERROR_SIZE] = "";

    static size_t on_header(char *, size_t size, size_t n, void *self)
    {
        size_t &bytes = static_cast<Transfer *>(self)->header_bytes;
        bytes += size * n;
        return bytes <= most_of_answer ? size * n : 0;
    }

    static size_t on_answer(char *data, size_t size, size_t n, void *self)
    {
        auto &transfer = *static_cast<Transfer *>(self);
        transfer.answer.append(data, std::min(size * n, kept_of_answer - transfer.answer.size()));
        transfer.answer_bytes += size * n;
        return transfer.answer_bytes <= most_of_answer ? size * n : 0;
    }

    /* Called with the very address that is connected to then: no name can stand for another one in between. */
    static curl_socket_t on_socket(void *self, curlsocktype, curl_sockaddr *address)
    {
        auto &transfer = *static_cast<Transfer *>(self);
        if (!may_connect(address->addr, transfer.sender.options.allowed)) {
            transfer.refused = true;
            return CURL_SOCKET_BAD;
        }
        return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    }

    void set_options(long timeout_s);
    std::string outcome(CURLcode code) const;
};

void
Sender::Transfer::set_options(long timeout_s)
{
    auto set = [this](CURLoption option, auto value) {
        if (CURLcode code = curl_easy_setopt(easy.get(), option, value); code != CURLE_OK)
            throw std::runtime_error(std::string("libcurl: ") + curl_easy_strerror(code));
    };
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    set(CURLOPT_POSTFIELDS, body.c_str());
    set(CURLOPT_HTTPHEADER, headers.get());
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_TIMEOUT, timeout_s);
    set(CURLOPT_CONNECTTIMEOUT, std::min<long>(timeout_s, connect_time.count()));
    set(CURLOPT_FOLLOWLOCATION, 0L);
    set(CURLOPT_PROXY, ""); /* what the environment says does not count: a proxy would choose the address */
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075500
    set(CURLOPT_PROTOCOLS_STR, "http,https");
#else
    set(CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    if (!sender.options.ca_file.empty()) {
        set(CURLOPT_CAINFO, sender.options.ca_file.c_str());
        set(CURLOPT_CAPATH, static_cast<const char *>(nullptr));
    }
    set(CURLOPT_OPENSOCKETFUNCTION, &on_socket);
    set(CURLOPT_OPENSOCKETDATA, static_cast<void *>(this));
    set(CURLOPT_HEADERFUNCTION, &on_header);
    set(CURLOPT_HEADERDATA, static_cast<void *>(this));
    set(CURLOPT_WRITEFUNCTION, &on_answer);
    set(CURLOPT_WRITEDATA, static_cast<void *>(this));
    set(CURLOPT_ERRORBUFFER, static_cast<char *>(problem));
    set(CURLOPT_PRIVATE, static_cast<void *>(this));
}

std::string
Sender::Transfer::outcome(CURLcode code) const
{
    long status = 0;
    curl_off_t retry_after = 0;
    curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(easy.get(), CURLINFO_RETRY_AFTER, &retry_after);
    auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - since);
    std::string json = R"({"id": )" + json_quoted(id) + R"(, "lease_id": )" + json_quoted(lease_id) +
                       R"(, "duration_ms": )" + std::to_string(took.count());
    /* Of an answer that is too long, the status counts; it was read as far as that. */
    if (code == CURLE_OK || (code == CURLE_WRITE_ERROR && answer_bytes > most_of_answer)) {
        json += R"(, "status_code": )" + std::to_string(status);
        if (!answer.empty())
            json += R"(, "response": )" + told(answer, sender.any_letter);
        if (retry_after > 0)
            json += R"(, "retry_after": )" + std::to_string(std::min<curl_off_t>(retry_after, 86400));
        if (status >= 300 && status < 400)
            json += R"(, "error": "a redirect, which is not followed")";
    } else if (refused)
        json += R"(, "error": "the address is not one of the public internet, and --webhook-allow does not name it")";
    else
        json += R"(, "error": )" + told(problem[0] != '\0' ? problem : curl_easy_strerror(code), sender.any_letter);
    return json + "}";
}

Sender::Sender(SenderOptions options, std::string database)
    : options(std::move(options)), database(std::move(database)), multi(curl_multi_init())
{
    if (!multi)
        throw std::runtime_error("libcurl cannot be used");
    curl_multi_setopt(multi.get(), CURLMOPT_MAXCONNECTS, static_cast<long>(this->options.most));
    thread = std::thread(&Sender::run, this);
}

Sender::~Sender()
{
    stopping = true;
    curl_multi_wakeup(multi.get());
    thread.join();
    for (const auto &transfer : transfers)
        curl_multi_remove_handle(multi.get(), transfer->easy.get());
}

void
Sender::run()
{
    Clock::time_point end = Clock::time_point::max();
    while (!stopping || (!transfers.empty() && Clock::now() < end)) {
        if (stopping && end == Clock::time_point::max())
            end = Clock::now() + farewell;
        try {
            work();
        } catch (const Unavailable &unavailable) {
            if (!complained)
                complain("webhooks: " + unavailable.why);
            complained = true;
            connection.reset();
            claim_at = Clock::now() + database_rest;
        } catch (const std::exception &exception) {
            complain(std::string("webhooks: ") + exception.what());
            claim_at = Clock::now() + database_rest;
        }
        auto rest = std::chrono::duration_cast<milliseconds>(claim_at - Clock::now());
        curl_multi_poll(multi.get(), nullptr, 0, static_cast<int>(std::clamp<int64_t>(rest.count(), 0, 1000)), nullptr);
    }
    try {
        report();
    } catch (const Unavailable &) { /* they are sent again */
    }
}

/* One round. What fails in the database fails last: the transfers go on. */
void
Sender::work()
{
    int running;
    curl_multi_perform(multi.get(), &running);
    collect();
    auto now = Clock::now();
    if (now < claim_at && (complained || std::ranges::none_of(outcomes, [&](auto &o) { return o.again_at <= now; })))
        return;
    report();
    if (!stopping && room() > 0)
        claim_at = Clock::now() + (claim() > 0 ? look_again : look_every);
    else
        claim_at = Clock::now() + look_every;
}

void
Sender::open_connection()
{
    if (connection && PQstatus(connection.get()) == CONNECTION_OK)
        return;
    connection = connect(database);
    const char *encoding = PQparameterStatus(connection.get(), "server_encoding");
    any_letter = encoding != nullptr && strcmp(encoding, "UTF8") == 0;
    call(connection.get(),
         "select set_config('statement_timeout', '10s', false), set_config('lock_timeout', '5s', false), "
         "set_config('application_name', 'ojs webhooks', false), "
         "case when $1 <> '' then set_config('role', $1, false) end",
         options.role);
}

/* How many deliveries it may claim. Those whose outcome waits for a transaction are no work for anybody. */
size_t
Sender::room() const
{
    size_t taken =
        transfers.size() + std::ranges::count_if(outcomes, [](auto &o) { return o.rest == milliseconds::zero(); });
    return options.most - std::min(taken, options.most);
}

size_t
Sender::claim()
{
    open_connection();
    Result claimed = call(connection.get(), claim_sql, std::to_string(room()));
    if (complained)
        complain("webhooks: the database answers again");
    complained = false;
    for (int row = 0; row < PQntuples(claimed.get()); row++) {
        auto cell = [&](int column) { return std::string(PQgetvalue(claimed.get(), row, column)); };
        std::unique_ptr<Transfer> transfer(new Transfer{*this, cell(0), cell(1), cell(2), cell(5)});
        const std::string headers = cell(4) + "\nExpect:";
        for (size_t at = 0; at < headers.size();) {
            size_t end = std::min(headers.find('\n', at), headers.size());
            curl_slist *list = curl_slist_append(transfer->headers.get(), headers.substr(at, end - at).c_str());
            if (list == nullptr)
                throw std::bad_alloc();
            (void)transfer->headers.release();
            transfer->headers.reset(list);
            at = end + 1;
        }
        transfer->easy.reset(curl_easy_init());
        if (!transfer->easy)
            throw std::bad_alloc();
        transfer->set_options(std::max(1, atoi(PQgetvalue(claimed.get(), row, 3))));
        begin(std::move(transfer));
    }
    return static_cast<size_t>(PQntuples(claimed.get()));
}

void
Sender::begin(std::unique_ptr<Transfer> transfer)
{
    transfers.push_back(std::move(transfer));
    if (CURLMcode code = curl_multi_add_handle(multi.get(), transfers.back()->easy.get()); code != CURLM_OK) {
        transfers.pop_back();
        throw std::runtime_error(std::string("libcurl: ") + curl_multi_strerror(code));
    }
}

/* What has ended. */
void
Sender::collect()
{
    int left;
    while (CURLMsg *message = curl_multi_info_read(multi.get(), &left)) {
        if (message->msg != CURLMSG_DONE)
            continue;
        CURL *easy = message->easy_handle;
        CURLcode code = message->data.result;
        curl_multi_remove_handle(multi.get(), easy);
        auto ended =
            std::ranges::find_if(transfers, [&](const auto &transfer) { return transfer->easy.get() == easy; });
        outcomes.push_back({(*ended)->id, (*ended)->outcome(code), Clock::now()});
        transfers.erase(ended);
    }
}

/* Tells what came of deliveries. Who has a subscription in an open transaction has it for an unknown time: what comes
 * of that one's deliveries is told again later, and keeps no other from being told. */
void
Sender::report()
{
    auto now = Clock::now();
    auto told = std::stable_partition(outcomes.begin(), outcomes.end(), [&](auto &o) { return o.again_at > now; });
    auto end = told + std::min<ptrdiff_t>(outcomes.end() - told, most_told);
    if (told == end)
        return;
    open_connection();
    std::string json;
    for (auto outcome = told; outcome != end; outcome++)
        json += (json.empty() ? "[" : ", ") + outcome->json;
    std::set<std::string> busy;
    try {
        Result result = call(connection.get(), finish_sql, json + "]");
        for (int row = 0; row < PQntuples(result.get()); row++)
            busy.insert(PQgetvalue(result.get(), row, 0));
    } catch (const Failed &failed) {
        if (failed.state.starts_with("22") || failed.state.starts_with("OJ"))
            outcomes.erase(told, end); /* it would say so again and again; they are sent again after their leases */
        throw;
    }
    now = Clock::now();
    for (auto outcome = told; outcome != end; outcome++) {
        outcome->rest = std::clamp<milliseconds>(outcome->rest * 2, look_again, told_again);
        outcome->again_at = now + outcome->rest;
    }
    outcomes.erase(std::remove_if(told, end, [&](auto &o) { return !busy.contains(o.id); }), end);
    auto busy_end = std::ranges::find(outcomes, milliseconds::zero(), &Outcome::rest);
    if (busy_end - outcomes.begin() > static_cast<ptrdiff_t>(most_told))
        outcomes.erase(outcomes.begin(), busy_end - most_told); /* these are sent again */
    tell_of_busy();
    claim_at = now; /* there may be more for the same addresses */
}

/* One line when it begins, and one when it ends. */
void
Sender::tell_of_busy()
{
    auto since = Clock::now() - worth_a_word;
    auto waits = [&](auto &o) { return o.rest > milliseconds::zero() && o.since < since; };
    if (size_t n = std::ranges::count_if(outcomes, waits); n > 0 && !told_of_busy) {
        complain("webhooks: an open transaction has a subscription: what came of " + std::to_string(n) +
                 " deliveries waits for its end");
        told_of_busy = true;
    } else if (n == 0 && told_of_busy) {
        complain("webhooks: no outcome waits for a transaction any more");
        told_of_busy = false;
    }
}

} // namespace gateway
