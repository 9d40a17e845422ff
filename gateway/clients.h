/*
 * clients.h: who is connected, and what all of them together may take: connections, connections of one address, memory
 * for bodies and answers. What is slow gives way to what is new.
 */
#pragma once

#include <condition_variable>
#include <list>
#include <map>
#include <mutex>

#include "socket.h"

namespace gateway
{

enum class Stage { head, body, busy, answer }; /* waits for a head, sends a body, is being served, reads its answer */

struct Client {
    Socket socket;
    Peer peer;
    bool reserved = false; /* over the limit: it may ask how we are, and no more */

    /* Clients sees to these. */
    Stage stage = Stage::head;
    Clock::time_point since = Clock::now();
    bool cut_off = false;
    size_t held = 0;
};

class Clients {
public:
    struct Limits {
        size_t connections;
        size_t per_address; /* 0: no limit */
        size_t bytes;       /* bodies and answers */
    };

    explicit Clients(Limits limits) : limits(limits) {}

    /*
     * Returns null if there is no room. Over the limit the connection that has waited for a head for longest is ended,
     * or else the one whose body or answer has been on its way for longest.
     */
    Client *admit(Socket &socket, const Peer &peer);
    void leave(Client *client);
    /* Returns false if the client has been cut off. */
    bool enter(Client &client, Stage stage);

    /* Memory for a body or an answer. Waits for it until then; ends whichever has been on its way for longest. */
    bool hold(Client &client, size_t bytes, Clock::time_point until);
    void release(Client &client);

    /* Ends those that wait for a head, or all. */
    void end_idle();
    void end_all();
    /* Returns false if some are still there. */
    bool wait_until_empty(Clock::time_point until);

private:
    static constexpr size_t reserve = 16; /* connections over the limit, for probes */
    Client *oldest(std::initializer_list<Stage> stages, Clock::time_point before, const Client *except);
    bool cut_off_slowest(const Client *except);
    bool cut_off(Client *client);

    const Limits limits;
    std::mutex mutex;
    std::condition_variable room; /* somebody left, or gave memory back */
    std::list<Client> clients;
    std::map<std::string, size_t> by_address;
    size_t held = 0;
    size_t leaving = 0; /* cut off, and not gone yet */
};

} // namespace gateway
