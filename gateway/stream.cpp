/*
 * stream.cpp: see stream.h.
 */
#include "stream.h"

#include <algorithm>

#include "refusal.h"

namespace gateway
{

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds heartbeat(10); /* at least so often something is written */
constexpr milliseconds shortest_pause(250), longest_pause(1000);
constexpr int pause_per_look = 4;    /* looks that take long are made less often */
constexpr size_t small_page = 65536; /* needs no room of those that all share */
constexpr seconds write_time(30);    /* for a page; a slower client is cut off */

bool
asks_for_stream(const Request &request)
{
    const std::string *accept = request.header("Accept");
    return request.method == "GET" && accept && accept->find("text/event-stream") != std::string::npos;
}

bool
is_stream(const Answer &answer)
{
    return answer.status == 200 && header_of(answer, "OJS-Stream").has_value();
}

/* The headers of the request but for the client's own cursor, and that of the last page. */
static std::string
headers_after(const Call &call, std::string_view stage, std::string_view cursor)
{
    std::string headers = "OJS-Stream: " + std::string(stage) + "\nLast-Event-ID: " + std::string(cursor);
    for (std::string_view lines = call.headers; !lines.empty();) {
        std::string_view line = lines.substr(0, lines.find('\n'));
        lines.remove_prefix(std::min(line.size() + 1, lines.size()));
        if (!same_text(line.substr(0, line.find(':')), "Last-Event-ID"))
            headers.append("\n").append(line);
    }
    return headers;
}

static bool
write_page(Client &client, Clients &clients, std::string_view page)
{
    if (page.size() > small_page && !clients.hold(client, page.size(), Clock::now() + seconds(3)))
        return false;
    clients.enter(client, Stage::answer);
    bool written = client.socket.write(page, Clock::now() + write_time);
    clients.release(client);
    return clients.enter(client, Stage::busy) && written;
}

void
release_jobs(Pool &pool, const Call &call, const Answer &last)
{
    std::string_view held = header_of(last, "OJS-Last-Event-ID").value_or("");
    if (held.empty() || !header_of(last, "OJS-Stream-Queue"))
        return;
    try {
        pool.call({call.method, call.target, headers_after(call, "end", held), {}, call.role});
    } catch (...) { /* their leases run out */
    }
}

void
send_events(Client &client, Clients &clients, Pool &pool, WaitingRoom &room, const Call &call, Answer &answer,
            const std::function<void()> &check)
{
    const std::string queue(header_of(answer, "OJS-Stream-Queue").value_or("")); /* whose notifications count */
    const std::string group = "events\n" + std::to_string(reinterpret_cast<uintptr_t>(&client));
    Clock::time_point written_at = Clock::now() - heartbeat;
    milliseconds pause = shortest_pause;
    unsigned long heard = 0; /* before the last look */

    if (queue.empty() && !write_page(client, clients, "retry: 3000\n\n"))
        return;
    for (;;) {
        std::string state(*header_of(answer, "OJS-Stream"));
        std::string cursor(header_of(answer, "OJS-Last-Event-ID").value_or(""));
        if (state != "idle" || Clock::now() - written_at >= heartbeat) {
            if (!write_page(client, clients, answer.body))
                return;
            written_at = Clock::now();
        }
        if (state == "end")
            return;

        Call next{call.method, call.target, headers_after(call, "on", cursor), {}, call.role, false, call.claims};
        WaitingRoom::Pace pace{state == "more" ? milliseconds(0) : pause, std::max(pause, longest_pause)};
        WaitingRoom::Waiter waiter(room, group, queue, queue.empty() ? room.heard() : heard, pace);
        for (std::optional<Answer> found; !found;) {
            Clock::time_point until = Clock::now() + seconds(60);
            if (!waiter.await_turn(until, [&] { return client.socket.hung_up(); })) {
                if (room.closed())
                    write_page(client, clients, "event: server.shutdown\ndata: {\"grace_period_ms\": 0}\n\n");
                if (room.closed() || client.socket.hung_up())
                    return;
                continue;
            }
            Clock::time_point begun = Clock::now();
            heard = room.heard();
            try {
                check();
                found = pool.call_again(next, until);
            } catch (const Unavailable &) { /* the client comes again, and goes on where it was */
                return;
            } catch (const TimedOut &) {
                return;
            } catch (const Refusal &) {
                return;
            }
            auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - begun) * pause_per_look;
            if (!found) {
                waiter.found_nothing();
                continue;
            }
            if (!is_stream(*found))
                return;
            answer = std::move(*found);
            std::string_view now = *header_of(answer, "OJS-Stream");
            milliseconds again = now == "idle" || now == "slow" ? std::min(pause * 2, longest_pause) : shortest_pause;
            pause = std::max(again, took);
        }
    }
}

} // namespace gateway
