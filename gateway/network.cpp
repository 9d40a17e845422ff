/*
 * network.cpp: see network.h.
 */
#include "network.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <stdexcept>

#include <arpa/inet.h>
#include <netinet/in.h>

namespace gateway
{

namespace
{

using Bytes = std::array<unsigned char, 16>;

Bytes
mapped(const in_addr &address)
{
    Bytes bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    memcpy(bytes.data() + 12, &address, 4);
    return bytes;
}

bool
is_in(const Bytes &address, const Network &network)
{
    for (unsigned bit = 0; bit < network.bits; bit++)
        if (((address[bit / 8] ^ network.address[bit / 8]) >> (7 - bit % 8) & 1) != 0)
            return false;
    return true;
}

/* IANA's registries of special addresses: what is not for everybody to reach, and what holds an address of IPv4. */
constexpr const char *not_public[] = {"0.0.0.0/8",      "10.0.0.0/8",     "100.64.0.0/10", "127.0.0.0/8",
                                      "169.254.0.0/16", "172.16.0.0/12",  "192.0.0.0/24",  "192.0.2.0/24",
                                      "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
                                      "203.0.113.0/24", "224.0.0.0/4",    "240.0.0.0/4",   "2001::/23",
                                      "2001:db8::/32",  "2002::/16",      "3fff::/20"};

std::vector<Network>
read_networks(const auto &texts)
{
    std::vector<Network> networks;
    for (const char *text : texts)
        networks.push_back(read_network(text));
    return networks;
}

} // namespace

Network
read_network(const std::string &text)
{
    size_t slash = text.find('/');
    const std::string address = text.substr(0, slash);
    Network network;
    in_addr v4;
    unsigned most = 128;
    if (inet_pton(AF_INET, address.c_str(), &v4) == 1) {
        network.address = mapped(v4);
        most = 32;
    } else if (inet_pton(AF_INET6, address.c_str(), network.address.data()) != 1)
        throw std::runtime_error("no network: " + text);
    unsigned bits = most;
    if (slash != text.npos) {
        const char *from = text.data() + slash + 1, *to = text.data() + text.size();
        auto [end, problem] = std::from_chars(from, to, bits);
        if (problem != std::errc() || end != to || bits > most)
            throw std::runtime_error("no network: " + text);
    }
    network.bits = bits + (128 - most);
    return network;
}

bool
may_connect(const sockaddr &address, const std::vector<Network> &allowed)
{
    static const std::vector<Network> special = read_networks(not_public);
    static const Network of_v4 = read_network("0.0.0.0/0"), global_v6 = read_network("2000::/3");
    Bytes bytes;
    if (address.sa_family == AF_INET)
        bytes = mapped(reinterpret_cast<const sockaddr_in &>(address).sin_addr);
    else if (address.sa_family == AF_INET6)
        memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6 &>(address).sin6_addr, bytes.size());
    else
        return false;
    auto in_one_of = [&](const std::vector<Network> &networks) {
        return std::ranges::any_of(networks, [&](const Network &network) { return is_in(bytes, network); });
    };
    return in_one_of(allowed) || ((is_in(bytes, of_v4) || is_in(bytes, global_v6)) && !in_one_of(special));
}

} // namespace gateway
