/*
 * push_rules.cpp: see push_rules.h.
 */
#include "ojs/queue/push_rules.h"

#include "ojs/queue/access.h"
#include "ojs/queue/queue.h"
#include "ojs/pg/json.h"
#include "ojs/job/retry_policy.h"

namespace ojs
{

namespace
{

/* "*", a type, or "prefix.*", which is every type below the prefix. */
bool
allows(std::string_view pattern, std::string_view type)
{
    if (pattern == "*" || pattern == type)
        return true;
    return pattern.ends_with(".*") && type.starts_with(pattern.substr(0, pattern.size() - 1));
}

void
check_allowed(const Queue &queue, const Envelope &envelope)
{
    bool allowed = false;
    each_element(root_of(queue.allowed_types), [&](const JsonbValue &pattern) {
        allowed = allowed || (pattern.type == jbvString && allows(text_of(pattern), envelope.type));
    });
    if (!allowed)
        raise(Code::permission_denied,
              Details().add("field", "type").add("queue", queue.name).add("reason", "job_type_not_allowed"),
              "Push to another queue, or change the queue's allowed_job_types.",
              "queue \"%s\" does not take jobs of the type %s", queue.name, clipped(envelope.type));
}

} // namespace

Jsonb *
merge_queue_config(const Jsonb *base, const Jsonb *over)
{
    if (base == nullptr || over == nullptr)
        return const_cast<Jsonb *>(base == nullptr ? over : base);

    ObjectBuilder out;
    each_member(root_of(base), [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    each_member(root_of(over), [&](std::string_view key, const JsonbValue &value) {
        JsonbValue inherited;
        if (key == "default_retry" && find_member(root_of(base), key, inherited))
            out.add(key, merge_retry_policy(jsonb_of(inherited), jsonb_of(value)));
        else if (key == "retention" && find_member(root_of(base), key, inherited))
            out.add(key, merge_queue_config(jsonb_of(inherited), jsonb_of(value)));
        else
            out.add(key, value);
    });
    return out.finish();
}

void
check_push(const Envelope &envelope)
{
    const Queue *queue = find_queue(envelope.queue);
    if (queue != nullptr)
        check_queue(*queue, Right::produce);
}

void
apply_push_rules(const Queue &queue, Envelope &envelope)
{
    check_queue(queue, Right::produce);
    if (queue.allowed_types != nullptr)
        check_allowed(queue, envelope);
    if (queue.default_timeout_ms > 0 && envelope.timeout_ms.value_or(0) == 0)
        envelope.timeout_ms = queue.default_timeout_ms;
    if (queue.default_retry != nullptr) {
        /* The session's cache may go while the job's row still points to its policy. */
        auto *inherited = static_cast<Jsonb *>(palloc(VARSIZE(queue.default_retry)));
        memcpy(inherited, queue.default_retry, VARSIZE(queue.default_retry));
        envelope.retry = merge_retry_policy(inherited, envelope.retry);
        envelope.max_attempts = read_retry_policy(envelope.retry).max_attempts;
    }
}

} // namespace ojs
