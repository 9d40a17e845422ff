/*
 * waiting.h: requests that wait, for work or for the end of a job. They hold no connection of the pool. Those that wait
 * for the same thing take turns: one look serves them all, and who finds something leaves the turn to the next.
 */
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "database.h"

namespace gateway
{

class WaitingRoom {
    struct Group;

public:
    /* How long to pause between two looks of a group: from `first`, doubled each time, to `longest`. */
    struct Pace {
        std::chrono::milliseconds first, longest;
    };

    class Waiter {
    public:
        /* `queues`: of those a notification counts, a name a line. `heard`: what was heard before the last look. */
        Waiter(WaitingRoom &room, const std::string &group, const std::string &queues, unsigned long heard, Pace pace);
        ~Waiter();
        Waiter(const Waiter &) = delete;
        Waiter &operator=(const Waiter &) = delete;

        /* Returns true when it is this one's turn to look, false when it is over. */
        bool await_turn(Clock::time_point until, const std::function<bool()> &is_over);
        /* It has looked in vain. */
        void found_nothing();

    private:
        friend class WaitingRoom;
        WaitingRoom &room;
        std::map<std::string, Group>::iterator group;
        std::condition_variable turn;
        bool looks = false;
    };

    unsigned long heard() const { return count; }
    void notify(const std::string &queue);
    /* Nobody waits any longer. */
    void close();
    bool closed() const { return is_closed; }

private:
    struct Group {
        std::set<std::string, std::less<>> queues;
        std::list<Waiter *> line;
        bool looking = false;
        bool again = false; /* something was heard during the look */
        Clock::time_point due, not_before;
        std::chrono::milliseconds pause, longest_pause;
    };
    void call_first(const Group &group);

    std::mutex mutex;
    std::map<std::string, Group> groups;
    std::atomic<unsigned long> count = 0;
    std::atomic<bool> is_closed = false;
};

/* Listens to the channel ojs, whose payloads are names of queues that have work. */
class Ear {
public:
    Ear(std::string database, WaitingRoom &room);
    ~Ear();

private:
    void listen();
    bool rest(int socket, std::chrono::milliseconds longest);

    const std::string database;
    WaitingRoom &room;
    std::atomic<bool> closed = false;
    int wake[2]; /* a pipe */
    std::thread thread;
};

} // namespace gateway
