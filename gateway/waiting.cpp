/*
 * waiting.cpp: see waiting.h.
 */
#include "waiting.h"

#include <algorithm>
#include <poll.h>
#include <unistd.h>

namespace gateway
{

using std::chrono::milliseconds;

/* The shortest time between two looks of a group in vain, however often it is notified: anybody may send NOTIFY. */
constexpr milliseconds floor_between_looks(20);
/* Many groups look less often each, so that all of them look at most 200 times a second unless notified. */
constexpr milliseconds pause_per_group(5);
/* How often a client is asked whether it is still there. */
constexpr std::chrono::seconds hang_up_interval(2);

WaitingRoom::Waiter::Waiter(WaitingRoom &room, const std::string &name, const std::string &queues, unsigned long heard,
                            Pace pace)
    : room(room)
{
    std::lock_guard lock(room.mutex);
    Clock::time_point now = Clock::now();
    bool is_new;
    std::tie(group, is_new) = room.groups.try_emplace(name);
    Group &own = group->second;
    if (is_new) {
        for (std::string_view rest = queues; !rest.empty();) {
            std::string_view queue = rest.substr(0, rest.find('\n'));
            rest.remove_prefix(std::min(queue.size() + 1, rest.size()));
            own.queues.emplace(queue);
        }
        own.pause = pace.first;
        own.longest_pause = pace.longest;
        own.due = now + own.pause;
        own.not_before = now + floor_between_looks;
    }
    if (heard != room.count) /* between the look and now */
        own.due = std::min(own.due, std::max(now, own.not_before));
    own.line.push_back(this);
    room.call_first(own);
}

WaitingRoom::Waiter::~Waiter()
{
    std::lock_guard lock(room.mutex);
    Group &own = group->second;
    own.line.remove(this);
    if (looks) { /* it has found something, so that there may be more */
        own.looking = false;
        own.due = Clock::now();
    }
    if (own.line.empty())
        room.groups.erase(group);
    else
        room.call_first(own);
}

bool
WaitingRoom::Waiter::await_turn(Clock::time_point until, const std::function<bool()> &is_over)
{
    std::unique_lock lock(room.mutex);
    Group &own = group->second;
    for (;;) {
        Clock::time_point now = Clock::now();
        if (room.is_closed || now >= until || is_over())
            return false;
        bool first = own.line.front() == this && !own.looking;
        if (first && now >= own.due) {
            looks = own.looking = true;
            own.again = false;
            return true;
        }
        Clock::time_point wake = std::min(until, now + hang_up_interval);
        turn.wait_until(lock, first ? std::min(wake, own.due) : wake);
    }
}

void
WaitingRoom::Waiter::found_nothing()
{
    std::lock_guard lock(room.mutex);
    Group &own = group->second;
    Clock::time_point now = Clock::now();
    looks = own.looking = false;
    own.not_before = now + floor_between_looks;
    auto pause = std::max<Clock::duration>(own.pause, pause_per_group * room.groups.size());
    own.due = own.again ? own.not_before : now + pause;
    own.pause = std::min(own.pause * 2, own.longest_pause);
    own.line.splice(own.line.end(), own.line, std::ranges::find(own.line, this));
    room.call_first(own);
}

void
WaitingRoom::call_first(const Group &group)
{
    if (!group.line.empty() && !group.looking)
        group.line.front()->turn.notify_one();
}

void
WaitingRoom::notify(const std::string &queue)
{
    std::lock_guard lock(mutex);
    count++;
    Clock::time_point now = Clock::now();
    for (auto &[name, group] : groups) {
        if (!group.queues.contains(queue))
            continue;
        group.again = group.looking;
        group.due = std::min(group.due, std::max(now, group.not_before));
        call_first(group);
    }
}

void
WaitingRoom::close()
{
    std::lock_guard lock(mutex);
    is_closed = true;
    for (auto &[name, group] : groups)
        for (Waiter *waiter : group.line)
            waiter->turn.notify_one();
}

Ear::Ear(std::string database, WaitingRoom &room) : database(std::move(database)), room(room)
{
    if (pipe(wake) != 0)
        throw Unavailable{"no pipe could be made"};
    thread = std::thread(&Ear::listen, this);
}

Ear::~Ear()
{
    closed = true;
    [[maybe_unused]] ssize_t written = write(wake[1], "", 1);
    thread.join();
    close(wake[0]);
    close(wake[1]);
}

/* Returns true if the socket has something to read. */
bool
Ear::rest(int socket, milliseconds longest)
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
            PQclear(PQexec(connection.get(), "listen ojs"));
            while (!closed && PQstatus(connection.get()) == CONNECTION_OK) {
                if (rest(PQsocket(connection.get()), seconds(60)) && PQconsumeInput(connection.get()) == 0)
                    break;
                while (PGnotify *notification = PQnotifies(connection.get())) {
                    std::string queue = notification->extra;
                    PQfreemem(notification);
                    room.notify(queue);
                }
            }
        } catch (const Unavailable &) {
            /* Who waits looks each second all the same; the pool tells the log. */
        }
        rest(-1, seconds(1));
    }
}

} // namespace gateway
