/*
 * clients.cpp: see clients.h.
 */
#include "clients.h"

namespace gateway
{

Client *
Clients::admit(Socket &socket, const Peer &peer)
{
    std::lock_guard lock(mutex);
    auto staying = clients.size() - leaving;
    bool full = staying >= limits.connections && !cut_off_oldest(Stage::head, nullptr);
    if ((full && staying >= limits.connections + reserve) || clients.size() >= limits.connections * 2 + reserve)
        return nullptr;
    size_t &of_address = by_address[peer.address];
    if (limits.per_address > 0 && of_address >= limits.per_address)
        return nullptr;
    of_address++;
    return &clients.emplace_back(std::move(socket), peer, full);
}

void
Clients::leave(Client *client)
{
    std::lock_guard lock(mutex);
    held -= client->held;
    leaving -= client->cut_off;
    auto address = by_address.find(client->peer.address);
    if (--address->second == 0)
        by_address.erase(address);
    clients.remove_if([client](const Client &one) { return &one == client; });
    room.notify_all(); /* under the lock: once we are the last, nothing of this may be there any more */
}

void
Clients::enter(Client &client, Stage stage)
{
    std::lock_guard lock(mutex);
    client.stage = stage;
    client.since = Clock::now();
}

bool
Clients::hold(Client &client, size_t bytes, Clock::time_point until)
{
    std::unique_lock lock(mutex);
    auto fits = [&] { return held + bytes <= limits.body_bytes; };
    if (!fits()) {
        cut_off_oldest(Stage::body, &client);
        if (!room.wait_until(lock, until, fits))
            return false;
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

/* Ends the client that has been in that stage for longest; its thread then leaves. */
bool
Clients::cut_off_oldest(Stage stage, const Client *except)
{
    Client *oldest = nullptr;
    for (Client &client : clients)
        if (client.stage == stage && !client.cut_off && &client != except &&
            (oldest == nullptr || client.since < oldest->since))
            oldest = &client;
    if (oldest == nullptr)
        return false;
    oldest->cut_off = true;
    leaving++;
    oldest->socket.shut();
    return true;
}

} // namespace gateway
