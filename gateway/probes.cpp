/*
 * probes.cpp: see probes.h.
 */
#include "probes.h"

#include <algorithm>

namespace gateway
{

namespace
{

/* Stands for the id of each request in the answer that they share. */
constexpr std::string_view any_id = "ojs-gateway-shared-answer";

void
replace_all(std::string &text, std::string_view from, std::string_view to)
{
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
        text.replace(at, from.size(), to);
}

} // namespace

Probes::Probes(const std::string &database, std::chrono::seconds timeout)
    : health(database, timeout), ready(database, timeout)
{
}

bool
Probes::is_probe(const Request &request)
{
    std::string_view path = request.path();
    return (request.method == "GET" || request.method == "HEAD") &&
           (path == "/health" || path == "/ready" || path == "/ojs/v1/health" || path == "/ojs/v1/ready");
}

bool
Probes::is_plain(const Request &request)
{
    return is_probe(request) && std::ranges::none_of(request.headers, [](const auto &header) {
               std::string_view name = header.first;
               return same_text(name.substr(0, 4), "OJS-") || same_text(name.substr(0, 6), "X-OJS-");
           });
}

Answer
Probes::ask(const Request &request, const std::string &role, const std::string &id)
{
    Question &question = request.path().ends_with("/health") ? health : ready;
    std::string key = std::string(request.path()) + "\n" + role;
    std::promise<Answer> promise;
    std::shared_future<Answer> answered;
    bool first;
    {
        std::lock_guard lock(question.mutex);
        auto [entry, made] = question.asked.try_emplace(key);
        if (made)
            entry->second = promise.get_future().share();
        answered = entry->second;
        first = made;
    }
    if (first) {
        std::exception_ptr failure;
        Answer answer;
        try {
            answer = question.pool.call({"GET", request.path(), "X-Request-Id: " + std::string(any_id), {}, role});
        } catch (...) {
            failure = std::current_exception();
        }
        {
            std::lock_guard lock(question.mutex);
            question.asked.erase(key);
        }
        if (failure)
            promise.set_exception(failure);
        else
            promise.set_value(std::move(answer));
    }
    Answer answer = answered.get();
    replace_all(answer.headers, any_id, id);
    replace_all(answer.body, any_id, id);
    if (request.method == "HEAD")
        answer.body.clear();
    return answer;
}

} // namespace gateway
