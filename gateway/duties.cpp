/*
 * duties.cpp: see duties.h.
 */
#include "duties.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace gateway
{

namespace
{

struct Rule {
    std::string_view methods; /* each followed by a space */
    std::string_view path;    /* a colon stands for any one part, a star for the rest */
    unsigned duties;
};

/*
 * The first that fits counts. Every route that is not named is an administrator's, or an observer's if it only reads.
 */
constexpr unsigned everybody = produce | work | observe | admin;
constexpr Rule rules[] = {
    {"OPTIONS ", "*", everybody},
    {"GET HEAD ", "/ojs/manifest", everybody},
    {"GET HEAD ", "/health", everybody},
    {"GET HEAD ", "/ready", everybody},
    {"GET HEAD ", "/ojs/v1/health", everybody},
    {"GET HEAD ", "/ojs/v1/ready", everybody},
    {"GET HEAD ", "/ojs/v1/admin/access", everybody},

    {"POST ", "/ojs/v1/jobs", produce},
    {"POST ", "/ojs/v1/jobs/batch", produce},
    {"POST ", "/ojs/v1/jobs/bulk", produce},
    {"POST ", "/ojs/v1/jobs/results", produce},
    {"POST ", "/ojs/v1/jobs/bulk/:", 0},
    {"GET HEAD ", "/ojs/v1/jobs/:", produce | work | observe},
    {"DELETE ", "/ojs/v1/jobs/:", produce},
    {"POST ", "/ojs/v1/jobs/:/cancel", produce},
    {"POST ", "/ojs/v1/jobs/:/activate", produce},
    {"GET HEAD ", "/ojs/v1/jobs/:/result", produce | observe},
    {"POST ", "/ojs/v1/workflows", produce},
    {"GET HEAD ", "/ojs/v1/workflows/:", produce | observe},
    {"DELETE ", "/ojs/v1/workflows/:", produce},
    {"POST ", "/ojs/v1/workflows/:/extend", produce},

    {"POST ", "/ojs/v1/workers/:", work},
    {"GET HEAD ", "/ojs/v1/workers/:/health", work | observe},
    {"POST ", "/ojs/v1/jobs/:/ack", work},
    {"POST ", "/ojs/v1/jobs/:/nack", work},
    {"GET HEAD ", "/ojs/v1/jobs/:/progress", produce | work | observe},
    {"PUT POST ", "/ojs/v1/jobs/:/progress", work},
    {"GET HEAD PUT POST DELETE ", "/ojs/v1/jobs/:/checkpoint", work},
    {"GET HEAD ", "/ojs/v1/checkpoints/:/resume", work},
    {"POST DELETE ", "/ojs/v1/checkpoints/:", work},
    {"GET HEAD ", "/ojs/v1/ojs/v1/checkpoints/:/resume", work},
    {"POST DELETE ", "/ojs/v1/ojs/v1/checkpoints/:", work},
    {"GET ", "/v0/topics/:/work", work},
    {"POST ", "/v0/topics/:", produce},
    {"POST ", "/v0/topics/:/:", work},

    {"GET HEAD ", "/ojs/v1/admin/audit", 0},
    {"GET HEAD ", "/ojs/v1/schemas", everybody},
    {"GET HEAD ", "/ojs/v1/schemas/:", everybody},
    {"GET HEAD ", "/ojs/v1/schemas/:/:", everybody},

    {"GET HEAD ", "*", observe},
};

bool
fits(std::string_view path, std::string_view pattern)
{
    if (pattern == "*")
        return true;
    for (;;) {
        std::string_view part = path.substr(0, path.find('/')), wanted = pattern.substr(0, pattern.find('/'));
        if (wanted == ":" ? part.empty() : part != wanted)
            return false;
        path.remove_prefix(part.size());
        pattern.remove_prefix(wanted.size());
        if (path.empty() || pattern.empty())
            return path.empty() && pattern.empty();
        path.remove_prefix(1);
        pattern.remove_prefix(1);
    }
}

} // namespace

unsigned
read_duties(const std::string &names)
{
    unsigned duties = 0;
    for (std::string_view rest = names; !rest.empty();) {
        std::string_view name = rest.substr(0, rest.find(','));
        rest.remove_prefix(std::min(name.size() + 1, rest.size()));
        const auto *known = std::ranges::find(duty_names, name, &std::pair<std::string_view, unsigned>::first);
        if (known == std::end(duty_names))
            throw std::runtime_error("a duty is produce, work, observe or admin, not \"" + std::string(name) + "\"");
        duties |= known->second == admin ? everybody : known->second;
    }
    return duties;
}

bool
is_served(unsigned duties, std::string_view method, std::string_view path)
{
    if ((duties & admin) != 0)
        return true;
    std::string verb = std::string(method) + " ";
    const auto *rule = std::ranges::find_if(rules, [&](const Rule &rule) {
        size_t at = rule.methods.find(verb);
        return at != rule.methods.npos && (at == 0 || rule.methods[at - 1] == ' ') && fits(path, rule.path);
    });
    return rule != std::end(rules) && (rule->duties & duties) != 0;
}

} // namespace gateway
