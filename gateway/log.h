/*
 * log.h: what the gateway tells whoever runs it: complaints on standard error, and an access log, a JSON object a line.
 */
#pragma once

#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

namespace gateway
{

/* A JSON string. What is no UTF-8 is replaced. */
std::string json_quoted(std::string_view text);

void complain(std::string_view what);

class AccessLog {
public:
    /* A file that is appended to; "-" is standard output; empty: no log. Throws std::runtime_error. */
    explicit AccessLog(std::string path);
    ~AccessLog();

    /* Opens the file anew, after it was moved away. Keeps the old one if that fails. */
    void reopen();
    void write(const std::string &line);
    explicit operator bool() const { return !path.empty(); }

private:
    const std::string path;
    std::mutex mutex;
    FILE *file = nullptr;
};

} // namespace gateway
