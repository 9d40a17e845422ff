/*
 * request_id.cpp: see request_id.h.
 */
#include "request_id.h"

#include <algorithm>
#include <chrono>
#include <unistd.h>

namespace gateway
{

std::string
request_id(const std::string *given)
{
    auto may_stand = [](char c) { return c >= '!' && c <= '~' && c != '"' && c != '\\'; };
    if (given != nullptr && !given->empty() && given->size() <= 128 && std::ranges::all_of(*given, may_stand))
        return *given;
    unsigned char bytes[16];
    if (getentropy(bytes, sizeof bytes) != 0)
        return "req_unknown";
    using namespace std::chrono;
    auto ms = duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
    for (int i = 0; i < 6; i++)
        bytes[i] = static_cast<unsigned char>(ms >> (8 * (5 - i)));
    bytes[6] = (bytes[6] & 0x0f) | 0x70;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    std::string made = "req_";
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            made += '-';
        made += "0123456789abcdef"[bytes[i] >> 4];
        made += "0123456789abcdef"[bytes[i] & 15];
    }
    return made;
}

} // namespace gateway
