/*
 * push_rules.cpp: see push_rules.h.
 */
#include "ojs/queue/push_rules.h"

#include "ojs/queue/access.h"
#include "ojs/pg/json.h"
#include "ojs/job/retry_policy.h"
#include "ojs/store/spi.h"

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

/*
 * Rows of one name that are older than another of it: two sessions made the queue at once, or it was dropped and made
 * anew. Only what nobody has locked.
 */
constinit Statement merge_rows = {R"sql(
    delete from ojs_store.queue where ctid = any (array(
        select q.ctid from ojs_store.queue q
        where q.name = any (array(select twice.name from ojs_store.queue twice group by twice.name having count(*) > 1))
            and exists (select from ojs_store.queue newer
                where newer.name = q.name and (newer.revised_at, newer.ctid) > (q.revised_at, q.ctid))
        for update skip locked))
)sql",
                                  {},
                                  nullptr};

/* All of them where one is there twice: looking for each one's twin would be quadratic. */
constinit Statement merge_counts = {R"sql(
    with taken as (
        delete from ojs_store.queue_count where ctid = any (array(
            select c.ctid from ojs_store.queue_count c
            where (select count(*) > count(distinct every.queue) from ojs_store.queue_count every)
            for update skip locked))
        returning queue, dead_lettered
    )
    insert into ojs_store.queue_count (queue, dead_lettered)
    select queue, sum(dead_lettered) from taken group by queue having sum(dead_lettered) <> 0
)sql",
                                    {},
                                    nullptr};

/* A push that looked the queue up just before it was dropped: the queue comes back with its settings. */
constinit Statement revive = {R"sql(
    update ojs_store.queue set state = 'active', revised_at = clock_timestamp() where ctid = any (array(
        select q.ctid from ojs_store.queue q
        where case when q.state = 'deleted' then -- first of all
                not exists (select from ojs_store.queue newer where newer.name = q.name
                    and newer.revised_at > q.revised_at)
                and (exists (select from ojs_store.ready where ready.queue = q.id)
                    or exists (select from ojs_store.delayed where delayed.queue = q.id and delayed.kind <> 5)) end
        for update skip locked))
)sql",
                              {},
                              nullptr};

/* Queues that share an id: rows put in by hand or merged from two databases, since new_queue_id refuses one. */
constinit Statement same_ids = {R"sql(
    select format('%s and %s', min(q.name), max(q.name))
    from ojs_store.queue q group by q.id having min(q.name) <> max(q.name) limit 1
)sql",
                                {},
                                nullptr};

void
report_same_ids()
{
    if (execute_latest(same_ids) == 0)
        return;
    bool null;
    char *names = TextDatumGetCString(cell(0, 1, &null));
    ereport(WARNING,
            (errmsg("queues %s have the same id, so each sees the jobs of the other", names),
             errhint("Drop one of them with ojs.drop_queue(name, 'move', target), and push to another name.")));
}

constinit Statement say_changed = {"select ojs_store.changed('ojs_store.queue')", {}, nullptr};

constexpr int64 tidy_every_us = 60 * USECS_PER_SEC;
TimestampTz tidied_at; /* by this session */

} // namespace

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

void
tidy_queues(TimestampTz now)
{
    if (now >= tidied_at && now - tidied_at < tidy_every_us)
        return;
    with_spi([] {
        (void)execute_latest(merge_rows);
        (void)execute_latest(merge_counts);
        report_same_ids();
        if (execute_latest(revive) > 0)
            (void)execute_latest(say_changed);
    });
    tidied_at = now;
}

} // namespace ojs
