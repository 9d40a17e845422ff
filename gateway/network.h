/*
 * network.h: which addresses a request may go to that somebody else has chosen.
 */
#pragma once

#include <array>
#include <string>
#include <vector>

#include <sys/socket.h>

namespace gateway
{

/* Addresses with the same first bits; those of IPv4 as they are mapped into IPv6. */
struct Network {
    std::array<unsigned char, 16> address;
    unsigned bits;
};

/* "10.0.0.0/8" or "fd00::/8"; without a slash one address. Throws std::runtime_error. */
Network read_network(const std::string &text);

/* Whether the address is one of the public internet, or in one of these networks. */
bool may_connect(const sockaddr &address, const std::vector<Network> &allowed);

} // namespace gateway
