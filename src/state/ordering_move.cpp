/*
 * ordering_move.cpp: jobs with an ordering key whose queue becomes another one (ojs.drop_queue).
 */
#include "ojs/pg/error.h"
#include "ojs/state/locate.h"
#include "ojs/state/ordering_line.h"
#include "ojs/state/status.h"

namespace ojs
{

namespace
{

bool
is_held(Tables &tables, const pg_uuid_t &id)
{
    ItemPointerData tid;
    return store::find(tables.lease(), store::Idx::lease_job, id, &tid) != store::Row::none;
}

/* Under the lock of the key. A job that could be claimed waits for another one of its key. False: somebody has it. */
bool
block_ready(Tables &tables, const pg_uuid_t &id)
{
    ReadyRow ready;
    ItemPointerData tid;
    if (find_ready(tables, id, &tid) == store::Row::none)
        return true;
    read(tables.ready().slot, ready);
    if (store::take(tables.ready(), &tid) != store::Outcome::ok)
        return false;
    store::insert(tables.delayed(), form(tables.delayed().rel, DelayedRow{ready, DT_NOEND, DelayedKind::blocked}));
    return true;
}

const char *
text_of_id(const pg_uuid_t &id)
{
    return DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id)));
}

[[noreturn]] void
refuse_move(int64 queue, const pg_uuid_t &one, const pg_uuid_t &other)
{
    raise(Code::invalid_state_transition, Details().add("job_id", one).add("attempted", "drop"),
          "Pause both queues, let the jobs that are held end, and drop the queue again.",
          "jobs %s and %s are held, and would have the same ordering key in queue \"%s\"", text_of_id(one),
          text_of_id(other), pnstrdup(queue_name(queue).data(), queue_name(queue).size()));
}

/*
 * Under the lock of the key. One line of two, in order of push, but for a job that is held, which stands before all
 * others: of two lines only one may have such a job. Whoever could be claimed and is not the first any more is blocked.
 */
void
merge_in_line(Tables &tables, LineRow line)
{
    LineRow first;
    ItemPointerData tid;
    bool held = is_held(tables, line.job_id);
    bool alone = !first_in_line(tables, line.key, first, &tid);
    bool other_held = !alone && is_held(tables, first.job_id);
    if (held && other_held)
        refuse_move(line.queue, line.job_id, first.job_id);
    if (held)
        line.position = -store::next_seq();
    if (other_held && first.position > line.position &&
        store::take(tables.get(store::Rel::ordering_line), &tid) == store::Outcome::ok) {
        first.position = -store::next_seq();
        insert_in_line(tables, first);
    }
    insert_in_line(tables, line);
    if (!alone && first.position > line.position && !block_ready(tables, first.job_id))
        refuse_move(line.queue, line.job_id, first.job_id);
    if (!held && !is_first(tables, line))
        (void)block_ready(tables, line.job_id);
}

} // namespace

void
move_in_line(Tables &tables, const pg_uuid_t &id, int64 queue)
{
    LineRow line;
    ItemPointerData tid;
    HotRow row = {};
    bool moves = find_in_line(tables, id, line, &tid);
    if (!moves)
        return;
    int64 from = line.key;
    with_line(tables, from, [&] {
        moves = first_is_sure(tables, from) &&
                store::take(tables.get(store::Rel::ordering_line), &tid) == store::Outcome::ok;
        if (moves)
            note_due(tables, line.queue, from); /* not at the end of this call: those behind it come next */
    });
    if (!moves)
        return;
    (void)tables.lease();
    row.job_id = id;
    row.queue = line.queue = queue;
    ItemPointerSet(&row.job_tid, 0, 1); /* unknown */
    line.key = key_of_job(row);
    with_line(tables, line.key, [&] { merge_in_line(tables, line); });
    note_left_line(line.queue, line.key);
}

} // namespace ojs
