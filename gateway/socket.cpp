/*
 * socket.cpp: see socket.h.
 */
#include "socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace gateway
{

namespace
{

/* Returns false at the deadline. */
bool
wait_for(int fd, short events, Clock::time_point until)
{
    using std::chrono::milliseconds;
    for (;;) {
        auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
        pollfd socket = {fd, events, 0};
        int n = poll(&socket, 1, static_cast<int>(std::clamp(left, milliseconds(0), milliseconds(1 << 30)).count()));
        if (n > 0)
            return true;
        if (n == 0 || errno != EINTR)
            return false;
    }
}

bool
try_later()
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

[[noreturn]] void
cannot_listen(const std::string &where, const char *why)
{
    throw std::runtime_error("cannot listen at " + where + ": " + why);
}

Listener
listen_at_path(const std::string &where, const std::string &path)
{
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof name.sun_path)
        cannot_listen(where, "a path of 1 to 107 bytes is needed");
    memcpy(name.sun_path, path.data(), path.size());
    auto *address = reinterpret_cast<sockaddr *>(&name);

    /* A socket that an earlier run left behind is in the way; one that somebody serves is not ours to remove. */
    Socket probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    struct stat found;
    if (stat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) {
        if (connect(probe.fd(), address, sizeof name) == 0)
            cannot_listen(where, "another process serves it");
        unlink(path.c_str());
    }
    Listener listener;
    listener.socket = Socket(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (bind(listener.socket.fd(), address, sizeof name) != 0 || listen(listener.socket.fd(), SOMAXCONN) != 0)
        cannot_listen(where, strerror(errno));
    listener.address = where;
    listener.path = path;
    listener.loopback = true;
    return listener;
}

bool
is_loopback(const sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(reinterpret_cast<const sockaddr_in *>(address)->sin_addr.s_addr) >> 24 == 127;
    const in6_addr &ip = reinterpret_cast<const sockaddr_in6 *>(address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&ip) || (IN6_IS_ADDR_V4MAPPED(&ip) && ip.s6_addr[12] == 127);
}

std::string
numeric(const sockaddr *address, socklen_t size, int what)
{
    char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
    getnameinfo(address, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    return what == NI_NUMERICHOST ? host : port;
}

} // namespace

Socket::~Socket()
{
    if (handle >= 0)
        close(handle);
}

std::optional<size_t>
Socket::read(char *to, size_t size, Clock::time_point until)
{
    for (;;) {
        ssize_t n = recv(handle, to, size, MSG_DONTWAIT);
        if (n >= 0)
            return static_cast<size_t>(n);
        if (!try_later() || !wait_for(handle, POLLIN, until))
            return {};
    }
}

bool
Socket::write(std::string_view bytes, Clock::time_point until)
{
    while (!bytes.empty()) {
        ssize_t n = send(handle, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0)
            bytes.remove_prefix(static_cast<size_t>(n));
        else if (!try_later() || !wait_for(handle, POLLOUT, until))
            return false;
    }
    return true;
}

void
Socket::linger(Clock::time_point until)
{
    std::array<char, 16384> ignored;
    shutdown(handle, SHUT_WR);
    while (Clock::now() < until && read(ignored.data(), ignored.size(), until).value_or(0) > 0)
        ;
}

void
Socket::shut() const
{
    shutdown(handle, SHUT_RDWR);
}

bool
Socket::hung_up() const
{
    pollfd socket = {handle, POLLRDHUP, 0};
    return poll(&socket, 1, 0) > 0 && (socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

Listener
listen_at(const std::string &where)
{
    if (where.starts_with("unix:"))
        return listen_at_path(where, where.substr(5));
    size_t colon = where.rfind(':');
    std::string host = colon != std::string::npos ? where.substr(0, colon) : "127.0.0.1";
    std::string port = where.substr(colon != std::string::npos ? colon + 1 : 0);
    if (unsigned n = 0; std::from_chars(port.data(), port.data() + port.size(), n).ptr != port.data() + port.size() ||
                        port.empty() || n > 65535)
        cannot_listen(where, "a port is a number up to 65535");
    std::string shown = host;
    if (host.starts_with('[') && host.ends_with(']'))
        host = host.substr(1, host.size() - 2);

    addrinfo hints = {};
    addrinfo *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    if (int problem = getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found); problem != 0)
        cannot_listen(where, gai_strerror(problem));
    Listener listener;
    listener.loopback = is_loopback(found->ai_addr);
    listener.socket = Socket(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int on = 1;
    setsockopt(listener.socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bool bound = bind(listener.socket.fd(), found->ai_addr, found->ai_addrlen) == 0 &&
                 listen(listener.socket.fd(), SOMAXCONN) == 0;
    freeaddrinfo(found);
    if (!bound)
        cannot_listen(where, strerror(errno));

    sockaddr_storage name;
    socklen_t size = sizeof name;
    getsockname(listener.socket.fd(), reinterpret_cast<sockaddr *>(&name), &size);
    listener.address = shown + ":" + numeric(reinterpret_cast<sockaddr *>(&name), size, NI_NUMERICSERV);
    return listener;
}

Socket
accept_from(const Listener &listener, Peer &peer)
{
    sockaddr_storage name;
    socklen_t size = sizeof name;
    auto *address = reinterpret_cast<sockaddr *>(&name);
    Socket client(accept4(listener.socket.fd(), address, &size, SOCK_CLOEXEC));
    if (client.fd() < 0)
        return client;
    if (name.ss_family == AF_UNIX) {
        peer = {"unix", "unix", true};
        return client;
    }
    int on = 1;
    setsockopt(client.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    peer = {numeric(address, size, NI_NUMERICHOST), "", is_loopback(address)};
    auto *ip = &reinterpret_cast<sockaddr_in6 *>(address)->sin6_addr;
    if (name.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(ip))
        std::fill(ip->s6_addr + 8, ip->s6_addr + 16, 0);
    peer.network = numeric(address, size, NI_NUMERICHOST);
    return client;
}

} // namespace gateway
