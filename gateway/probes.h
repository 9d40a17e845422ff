/*
 * probes.h: /health and /ready, which must be answered whatever else is asked. Each has a connection of its own, and
 * those who ask at the same time are answered together: so however many ask, one call after the other is made.
 */
#pragma once

#include <future>
#include <map>

#include "database.h"

namespace gateway
{

class Probes {
public:
    Probes(const std::string &database, std::chrono::seconds timeout);

    static bool is_probe(const Request &request);
    /* Whether it asks as all do. Another one (of another version of OJS, say) is served like any request. */
    static bool is_plain(const Request &request);
    /* Of a plain probe. Throws what Pool::call() throws. */
    Answer ask(const Request &request, const std::string &role, const std::string &id);

private:
    struct Question {
        Question(const std::string &database, std::chrono::seconds timeout) : pool(database, 1, timeout) {}

        Pool pool;
        std::mutex mutex;
        std::map<std::string, std::shared_future<Answer>> asked; /* by path and role; as long as the call is made */
    };

    Question health, ready;
};

} // namespace gateway
