/*
 * socket.h: sockets that wait with deadlines, and where the gateway listens.
 */
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace gateway
{

using Clock = std::chrono::steady_clock;

class Socket {
public:
    explicit Socket(int fd = -1) : handle(fd) {}
    Socket(Socket &&other) noexcept : handle(std::exchange(other.handle, -1)) {}
    Socket &operator=(Socket &&other) noexcept
    {
        std::swap(handle, other.handle);
        return *this;
    }
    ~Socket();

    int fd() const { return handle; }
    /* Returns the number of bytes read, 0 if the peer has closed, nothing at an error or the deadline. */
    std::optional<size_t> read(char *to, size_t size, Clock::time_point until);
    bool write(std::string_view bytes, Clock::time_point until);
    /* Says that no more is sent, and reads what is still under way, so that the peer can read our answer. */
    void linger(Clock::time_point until);
    /* Ends both directions: whoever reads or writes is woken. Any thread may call it while the socket is open. */
    void shut() const;
    bool hung_up() const;

private:
    int handle;
};

struct Peer {
    std::string address; /* without its port; "unix" */
    std::string network; /* the same, but of IPv6 the first half, since a client may have all of the second */
    bool local = false;  /* this machine: a unix socket or a loopback address */
};

struct Listener {
    Socket socket;
    std::string address; /* with the port that was free, if 0 was asked for */
    std::string path;    /* of a unix socket */
    bool loopback = false;
};

/* HOST:PORT or unix:PATH. Throws std::runtime_error. */
Listener listen_at(const std::string &where);

/* Waits for a client. Its socket is -1 if none can be had at the moment. */
Socket accept_from(const Listener &listener, Peer &peer);

} // namespace gateway
