/*
 * log.cpp: see log.h.
 */
#include "log.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace gateway
{

namespace
{

/* The length of the UTF-8 character that the text begins with, or 0. */
size_t
character_size(std::string_view text)
{
    auto byte = [text](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
    if (byte(0) < 0x80)
        return 1;
    if (byte(0) >= 0xc2 && byte(0) <= 0xdf)
        return follows(1) ? 2 : 0;
    if ((byte(0) & 0xf0) == 0xe0 && follows(1) && follows(2)) {
        bool overlong = byte(0) == 0xe0 && byte(1) < 0xa0, surrogate = byte(0) == 0xed && byte(1) >= 0xa0;
        return overlong || surrogate ? 0 : 3;
    }
    if (byte(0) >= 0xf0 && byte(0) <= 0xf4 && follows(1) && follows(2) && follows(3))
        return (byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) >= 0x90) ? 0 : 4;
    return 0;
}

} // namespace

std::string
json_quoted(std::string_view text)
{
    std::string json = "\"";
    while (!text.empty()) {
        auto first = static_cast<unsigned char>(text[0]);
        size_t size = character_size(text);
        if (size == 0) {
            json += "\xef\xbf\xbd";
        } else if (first == '"' || first == '\\') {
            json += {'\\', static_cast<char>(first)};
        } else if (first < 0x20 || first == 0x7f) {
            char code[8];
            snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(first));
            json += code;
        } else {
            json += text.substr(0, size);
        }
        text.remove_prefix(size > 0 ? size : 1);
    }
    return json + '"';
}

void
complain(std::string_view what)
{
    fprintf(stderr, "ojs-gateway: %.*s\n", static_cast<int>(what.size()), what.data());
}

AccessLog::AccessLog(std::string path) : path(std::move(path))
{
    if (this->path == "-")
        file = stdout;
    else if (!this->path.empty() && (file = fopen(this->path.c_str(), "ae")) == nullptr)
        throw std::runtime_error("cannot open " + this->path + ": " + strerror(errno));
}

AccessLog::~AccessLog()
{
    if (file != nullptr && file != stdout)
        fclose(file);
}

void
AccessLog::reopen()
{
    if (path.empty() || path == "-")
        return;
    FILE *fresh = fopen(path.c_str(), "ae");
    if (fresh == nullptr) {
        complain("cannot open " + path + " again: " + strerror(errno));
        return;
    }
    std::lock_guard lock(mutex);
    fclose(std::exchange(file, fresh));
}

void
AccessLog::write(const std::string &line)
{
    std::lock_guard lock(mutex);
    if (file == nullptr)
        return;
    fprintf(file, "%s\n", line.c_str());
    fflush(file);
}

} // namespace gateway
