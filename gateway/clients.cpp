/*
 * clients.cpp: see clients.h.
 */
#include "clients.h"

#include <algorithm>

#include <openssl/crypto.h>

namespace gateway
{

/* Who sends or reads no longer than that need not give way: most are done by then. */
constexpr std::chrono::milliseconds time_in_peace(500);
constexpr std::chrono::milliseconds time_to_leave(500);

Client *
Clients::admit(Socket &socket, const Peer &peer)
{
    std::unique_lock lock(mutex);
    auto of_address = by_address.find(peer.network);
    if (limits.per_address > 0 && of_address != by_address.end() && of_address->second >= limits.per_address)
        return nullptr; /* before anybody gives way for it */
    if (leaving > 0)    /* their threads are bounded, too, and gone in a moment */
        room.wait_for(lock, time_to_leave, [this] { return clients.size() < limits.connections * 2 + reserve; });
    auto staying = clients.size() - leaving;
    bool full = staying >= limits.connections && !cut_off(oldest({Stage::head}, Clock::now(), nullptr)) &&
                !cut_off_slowest(nullptr);
    if ((full && staying >= limits.connections + reserve) || clients.size() >= limits.connections * 2 + reserve)
        return nullptr;
    by_address[peer.network]++;
    return &clients.emplace_back(std::move(socket), peer, full);
}

void
Clients::leave(Client *client)
{
    OPENSSL_thread_stop(); /* the process may end before this thread, and frees nothing of libcrypto's for it then */
    std::lock_guard lock(mutex);
    held -= client->held;
    leaving -= client->cut_off;
    auto address = by_address.find(client->peer.network);
    if (--address->second == 0)
        by_address.erase(address);
    clients.remove_if([client](const Client &one) { return &one == client; });
    room.notify_all(); /* under the lock: once we are the last, nothing of this may be there any more */
}

bool
Clients::enter(Client &client, Stage stage)
{
    std::lock_guard lock(mutex);
    client.stage = stage;
    client.since = Clock::now();
    return !client.cut_off;
}

bool
Clients::hold(Client &client, size_t bytes, Clock::time_point until)
{
    std::unique_lock lock(mutex);
    while (held > client.held && held + bytes > limits.bytes) { /* what is too large has room alone */
        if (client.cut_off || Clock::now() >= until)
            return false;
        if (leaving == 0) /* else there will be room in a moment */
            cut_off_slowest(&client);
        room.wait_until(lock, std::min(until, Clock::now() + std::chrono::milliseconds(100)));
    }
    held += bytes;
    client.held += bytes;
    return true;
}

void
Clients::release(Client &client)
{
    {
        std::lock_guard lock(mutex);
        held -= client.held;
        client.held = 0;
    }
    room.notify_all();
}

void
Clients::end_idle()
{
    std::lock_guard lock(mutex);
    for (Client &client : clients)
        if (client.stage == Stage::head)
            client.socket.shut();
}

void
Clients::end_all()
{
    std::lock_guard lock(mutex);
    for (Client &client : clients)
        client.socket.shut();
}

bool
Clients::wait_until_empty(Clock::time_point until)
{
    std::unique_lock lock(mutex);
    return room.wait_until(lock, until, [this] { return clients.empty(); });
}

/* The client that has been in one of these stages for longest, and since before `before`; null if there is none. */
Client *
Clients::oldest(std::initializer_list<Stage> stages, Clock::time_point before, const Client *except)
{
    Client *found = nullptr;
    for (Client &client : clients)
        if (std::ranges::find(stages, client.stage) != stages.end() && !client.cut_off && &client != except &&
            client.since <= (found == nullptr ? before : found->since))
            found = &client;
    return found;
}

bool
Clients::cut_off_slowest(const Client *except)
{
    return cut_off(oldest({Stage::body, Stage::answer}, Clock::now() - time_in_peace, except));
}

/* Ends a client; its thread then leaves. */
bool
Clients::cut_off(Client *client)
{
    if (client == nullptr)
        return false;
    client->cut_off = true;
    leaving++;
    client->socket.shut();
    return true;
}

} // namespace gateway
