/*
 * metrics_read.cpp: the metrics in shared memory, as SQL asks for them: all of them (ojs.metrics), the last hour
 * (ojs.queue_stats), the first and last numbers of a queue (ojs.queue_info). What the caller has done itself is added.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/row.h"
#include "ojs/counters/metric_table.h"
#include "ojs/store/spi.h"

using namespace ojs;

namespace
{

/* --- the hour before the first note --- */

constexpr char hour_before_sql[] = R"sql(
    select queue, part, count(*) filter (where state = 4),
        coalesce(sum(took_us) filter (where state = 4), 0)::bigint, count(*) filter (where state = 7)
    from (
        select queue, state, floor(extract(epoch
            from finished_at - timestamptz '2000-01-01 00:00:00+00') / 300)::bigint as part,
            (extract(epoch from finished_at - started_at) * 1000000)::bigint as took_us
        from ojs_store.finished
        where finished_at >= $1::timestamptz - interval '65 min' and finished_at < $1 and state in (4, 7)
    ) ended
    group by queue, part
)sql";
constinit Statement hour_before = {hour_before_sql, {TIMESTAMPTZOID}, nullptr};

int64
int_cell(uint64 row, int column)
{
    bool null;
    return DatumGetInt64(cell(row, column, &null));
}

/* What was finished before this server (or, on a standby, this primary) began to count. Once, by whoever asks first. */
void
learn_hour_before(Database &database, Oid table)
{
    if (database.hour_known && database.metrics_of == table)
        return;
    LWLockAcquire(job_metrics->lock, LW_EXCLUSIVE);
    begin_metrics(database, table, now());
    bool known_already = database.hour_known;
    TimestampTz since = database.metrics_since;
    LWLockRelease(job_metrics->lock);
    if (known_already)
        return;

    with_spi([&] {
        uint64 n = execute_latest(hour_before, {TimestampTzGetDatum(since)});
        LWLockAcquire(job_metrics->lock, LW_EXCLUSIVE);
        for (uint64 row = 0; row < n && !database.hour_known; row++) {
            int64 number = int_cell(row, 2), completed = int_cell(row, 3), completed_us = int_cell(row, 4),
                  failed = int_cell(row, 5);
            int q = make_queue_metrics(table, int_cell(row, 1));
            if (q < 0)
                break;
            QueueMetrics &queue = job_metrics->queues[q];
            SpinLockAcquire(&queue.mutex);
            PartOfHour *part = part_of(queue, number);
            if (part != nullptr) {
                part->completed += completed;
                part->completed_us += completed_us;
                part->failed += failed;
            }
            SpinLockRelease(&queue.mutex);
        }
        database.hour_known = true;
        LWLockRelease(job_metrics->lock);
    });
}

/*
 * The 60 minutes before `at`, of the first of their parts the share that lies within; and what we have not committed.
 */
PartOfHour
last_hour(int q, TimestampTz at)
{
    QueueMetrics &queue = job_metrics->queues[q];
    PartOfHour hour = {};
    int64 now_part = at / part_us;
    double share = 1.0 - static_cast<double>(at % part_us) / static_cast<double>(part_us);
    SpinLockAcquire(&queue.mutex);
    for (const PartOfHour &part : queue.parts) {
        if (part.number < now_part - parts_of_hour || part.number > now_part)
            continue;
        double weight = part.number == now_part - parts_of_hour ? share : 1.0;
        auto add = [weight](int64 &to, int64 n) {
            to += static_cast<int64>(std::llround(static_cast<double>(n) * weight));
        };
        add(hour.completed, part.completed);
        add(hour.completed_us, part.completed_us);
        add(hour.failed, part.failed);
        add(hour.waits, part.waits);
        add(hour.wait_us, part.wait_us);
    }
    SpinLockRelease(&queue.mutex);
    for (int i = 0; i < metric_deltas.n; i++)
        if (is_current(metric_deltas.all[i]) && job_metrics->series[metric_deltas.all[i].series].queue == q &&
            metric_deltas.all[i].step / steps_of_part >= now_part - parts_of_hour)
            add_to(hour, metric_deltas.all[i]);
    return hour;
}

/* The six steps before the one that has begun, and that one; and what we have not committed. */
StepOfMinute
last_minute(int q, int64 now_step)
{
    QueueMetrics &queue = job_metrics->queues[q];
    StepOfMinute minute = {};
    SpinLockAcquire(&queue.mutex);
    for (const StepOfMinute &step : queue.steps) {
        if (step.number < now_step - steps_of_minute || step.number > now_step)
            continue;
        minute.starts += step.starts;
        minute.waits += step.waits;
        minute.wait_us += step.wait_us;
    }
    SpinLockRelease(&queue.mutex);
    for (int i = 0; i < metric_deltas.n; i++)
        if (is_current(metric_deltas.all[i]) && job_metrics->series[metric_deltas.all[i].series].queue == q &&
            metric_deltas.all[i].step >= now_step - steps_of_minute)
            add_to(minute, metric_deltas.all[i]);
    return minute;
}

Datum
mean_ms(int64 us, int64 n, bool *null)
{
    *null = n == 0;
    return Float8GetDatum(n == 0 ? 0 : static_cast<double>(us) / static_cast<double>(n) / 1000.0);
}

Datum
int_array(const int64 *values, int n)
{
    auto *datums = static_cast<Datum *>(palloc(sizeof(Datum) * n));
    for (int i = 0; i < n; i++)
        datums[i] = Int64GetDatum(values[i]);
    return PointerGetDatum(construct_array(datums, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

} // namespace

/* ojs_store.metrics_kept() returns boolean */
OJS_FUNCTION(ojs_metrics_kept)
{
    PG_RETURN_BOOL(job_metrics != nullptr);
}

/* ojs_store.shared_metrics(out queue bigint, out type text, out cells bigint[], out sums bigint[]) returns setof
 * record; no rows where nothing is shared */
OJS_FUNCTION(ojs_shared_metrics)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    if (job_metrics == nullptr)
        return (Datum)0;
    Oid table = store::relation_oid(store::Rel::ready);
    auto *copy = static_cast<Series *>(palloc(sizeof(Series)));
    for (int s = 0; s < job_metrics->n_series; s++) {
        int64 queue_id = 0;
        LWLockAcquire(job_metrics->lock, LW_SHARED);
        bool ours = job_metrics->series[s].queue >= 0;
        if (ours) {
            QueueMetrics &queue = job_metrics->queues[job_metrics->series[s].queue];
            ours = queue.database == MyDatabaseId && queue.table == table;
            queue_id = queue.queue;
            SpinLockAcquire(&queue.mutex);
            *copy = job_metrics->series[s];
            SpinLockRelease(&queue.mutex);
        }
        LWLockRelease(job_metrics->lock);
        if (!ours)
            continue;
        for (int i = 0; i < metric_deltas.n; i++)
            if (metric_deltas.all[i].series == s && is_current(metric_deltas.all[i]))
                add_to(*copy, metric_deltas.all[i]);
        Datum values[] = {Int64GetDatum(queue_id), PointerGetDatum(cstring_to_text(copy->type)),
                          int_array(copy->cells, n_cells), int_array(copy->sums, n_sums)};
        bool nulls[lengthof(values)] = {};
        put_row(set, values, nulls);
    }
    return (Datum)0;
}

/* ojs_store.shared_hour(ids bigint[], out queue bigint, out completed bigint, out failed bigint, out avg_duration_ms
 * float8, out avg_wait_ms float8) returns setof record; no row for a queue of which nothing is shared, and no rows
 * without preload */
OJS_FUNCTION(ojs_shared_hour)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    Database *database = job_metrics != nullptr && !RecoveryInProgress() ? my_database() : nullptr;
    if (database == nullptr)
        return (Datum)0;
    Bigints ids = bigints_arg(fcinfo, 0);
    Oid table = store::relation_oid(store::Rel::ready);
    TimestampTz at = now();
    learn_hour_before(*database, table);
    for (int i = 0; i < ids.n; i++) {
        LWLockAcquire(job_metrics->lock, LW_SHARED);
        int q = find_queue_metrics(table, ids.values[i]);
        bool full = q < 0 && job_metrics->n_queues == max_metric_queues;
        PartOfHour hour = q >= 0 ? last_hour(q, at) : PartOfHour{};
        LWLockRelease(job_metrics->lock);
        bool nulls[5] = {false, full, full}; /* not known: counting the rows would take as long as there are rows */
        Datum values[] = {Int64GetDatum(ids.values[i]), Int64GetDatum(hour.completed), Int64GetDatum(hour.failed),
                          mean_ms(hour.completed_us, hour.completed, &nulls[3]),
                          mean_ms(hour.wait_us, hour.waits, &nulls[4])};
        put_row(set, values, nulls);
    }
    return (Datum)0;
}

/* ojs_store.shared_minute(ids bigint[], out queue bigint, out starts bigint, out avg_wait_ms float8) returns setof
 * record: what was handed out in the last minute, to ten seconds; nulls for a queue of which nothing is shared, and no
 * rows without preload */
OJS_FUNCTION(ojs_shared_minute)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    if (job_metrics == nullptr || RecoveryInProgress() || my_database() == nullptr)
        return (Datum)0;
    Bigints ids = bigints_arg(fcinfo, 0);
    Oid table = store::relation_oid(store::Rel::ready);
    int64 now_step = now() / step_us;
    for (int i = 0; i < ids.n; i++) {
        LWLockAcquire(job_metrics->lock, LW_SHARED);
        int q = find_queue_metrics(table, ids.values[i]);
        bool full = q < 0 && job_metrics->n_queues == max_metric_queues;
        StepOfMinute minute = q >= 0 ? last_minute(q, now_step) : StepOfMinute{};
        LWLockRelease(job_metrics->lock);
        bool nulls[3] = {false, full};
        Datum values[] = {Int64GetDatum(ids.values[i]), Int64GetDatum(minute.starts),
                          mean_ms(minute.wait_us, minute.waits, &nulls[2])};
        put_row(set, values, nulls);
    }
    return (Datum)0;
}

/* ojs_store.shared_parts(ids bigint[], out at timestamptz, out enqueued bigint, out completed bigint, out failed
 * bigint, out run_us bigint, out waits bigint, out wait_us bigint) returns setof record: the five minutes of the last
 * hour, as far as something happened in them; without preload none. What this transaction has done is not in it. */
OJS_FUNCTION(ojs_shared_parts)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    Database *database = job_metrics != nullptr && !RecoveryInProgress() ? my_database() : nullptr;
    if (database == nullptr)
        return (Datum)0;
    Bigints ids = bigints_arg(fcinfo, 0);
    Oid table = store::relation_oid(store::Rel::ready);
    int64 now_part = now() / part_us;
    learn_hour_before(*database, table);
    for (int i = 0; i < ids.n; i++) {
        PartOfHour parts[parts_of_hour + 1] = {};
        LWLockAcquire(job_metrics->lock, LW_SHARED);
        int q = find_queue_metrics(table, ids.values[i]);
        if (q >= 0) {
            SpinLockAcquire(&job_metrics->queues[q].mutex);
            memcpy(parts, job_metrics->queues[q].parts, sizeof parts);
            SpinLockRelease(&job_metrics->queues[q].mutex);
        }
        LWLockRelease(job_metrics->lock);
        for (const PartOfHour &part : parts) {
            if (part.number < now_part - parts_of_hour || part.number > now_part)
                continue;
            Datum values[] = {TimestampTzGetDatum(part.number * part_us),
                              Int64GetDatum(part.enqueued),
                              Int64GetDatum(part.completed),
                              Int64GetDatum(part.failed),
                              Int64GetDatum(part.completed_us),
                              Int64GetDatum(part.waits),
                              Int64GetDatum(part.wait_us)};
            bool nulls[lengthof(values)] = {};
            put_row(set, values, nulls);
        }
    }
    return (Datum)0;
}

namespace
{

constinit Statement kept_seqs = {R"sql(
    select of.queue, of.earliest, of.head, j.id
    from (select queue, min(seq) as earliest, max(seq) as head from ojs_store.job group by queue) of
    join ojs_store.job j on j.queue = of.queue and j.seq = of.earliest
    order by of.queue
)sql",
                                 {},
                                 nullptr};

struct Seqs {
    int64 queue;
    int64 earliest; /* 0: there is no job */
    int64 head;
    pg_uuid_t earliest_id;
};

/* The numbers of all queues that have jobs, by queue. */
struct AllSeqs {
    Seqs *of;
    int n;
    Oid table;
    int64 look_again_us; /* not before this, by the steady clock */
};

AllSeqs last_look; /* of this session, at what was committed */

const Seqs *
find_seqs(const AllSeqs &all, int64 queue)
{
    const Seqs *begin = all.of;
    const Seqs *end = begin + all.n;
    const Seqs *found =
        std::lower_bound(begin, end, queue, [](const Seqs &one, int64 wanted) { return one.queue < wanted; });
    return found != end && found->queue == queue ? found : nullptr;
}

AllSeqs
look_for_seqs(Oid table)
{
    constexpr int most_of_the_time = 200; /* one part in so many */
    AllSeqs all = {nullptr, 0, table, 0};
    int64 start_us = steady_us();
    with_spi([&] {
        bool null;
        all.n = static_cast<int>(execute_latest(kept_seqs, {}));
        all.of = static_cast<Seqs *>(MemoryContextAllocHuge(TopMemoryContext, sizeof(Seqs) * std::max(all.n, 1)));
        for (int i = 0; i < all.n; i++)
            all.of[i] = {int_cell(i, 1), int_cell(i, 2), int_cell(i, 3), *DatumGetUUIDP(cell(i, 4, &null))};
    });
    int64 end_us = steady_us();
    all.look_again_us = end_us + (end_us - start_us) * most_of_the_time;
    return all;
}

bool
job_exists(const pg_uuid_t &id)
{
    ItemPointerData tid;
    store::Table jobs = store::open(store::Rel::job, AccessShareLock);
    bool exists = store::find(jobs, store::Idx::job_id, id, &tid) != store::Row::none;
    store::close(jobs);
    return exists;
}

/* What is known of a queue's numbers, if it may still be used: while the oldest job is there, or right after a look
 * that took long. */
bool
known_seqs(Oid table, int64 queue_id, int64 at_us, Seqs &seqs)
{
    LWLockAcquire(job_metrics->lock, LW_SHARED);
    int q = find_queue_metrics(table, queue_id);
    bool known = false;
    bool fresh = false;
    if (q >= 0) {
        QueueMetrics &queue = job_metrics->queues[q];
        SpinLockAcquire(&queue.mutex);
        known = queue.seqs_known;
        fresh = at_us < queue.look_again_us;
        seqs = {queue_id, queue.earliest_seq, queue.head_seq, queue.earliest_id};
        SpinLockRelease(&queue.mutex);
    }
    LWLockRelease(job_metrics->lock);
    return known && (fresh || (seqs.earliest != 0 && job_exists(seqs.earliest_id)));
}

/* Returns false if there is no room for this queue. */
bool
can_remember_seqs(Database &database, Oid table, int64 queue_id)
{
    LWLockAcquire(job_metrics->lock, LW_EXCLUSIVE);
    begin_metrics(database, table, now());
    bool can = make_queue_metrics(table, queue_id) >= 0;
    LWLockRelease(job_metrics->lock);
    return can;
}

void
remember_in(QueueMetrics &queue, const Seqs *seqs, int64 look_again_us)
{
    SpinLockAcquire(&queue.mutex);
    queue.head_seq = std::max(queue.head_seq, seqs != nullptr ? seqs->head : 0);
    queue.earliest_seq = seqs != nullptr ? seqs->earliest : 0;
    queue.earliest_id = seqs != nullptr ? seqs->earliest_id : pg_uuid_t{};
    queue.look_again_us = look_again_us;
    queue.seqs_known = true;
    SpinLockRelease(&queue.mutex);
}

/* For this queue, or (0) all that have room: who asks for the next one need not look. */
void
remember_seqs(Database &database, const AllSeqs &all, int64 only)
{
    LWLockAcquire(job_metrics->lock, LW_EXCLUSIVE);
    begin_metrics(database, all.table, now());
    for (int q = 0; q < job_metrics->n_queues; q++) {
        QueueMetrics &queue = job_metrics->queues[q];
        if (queue.database == MyDatabaseId && queue.table == all.table && (only == 0 || queue.queue == only))
            remember_in(queue, find_seqs(all, queue.queue), all.look_again_us);
    }
    LWLockRelease(job_metrics->lock);
}

/* What this transaction has pushed is later than all that was committed when it began to. */
void
add_own_pushes(Oid table, int64 queue_id, Seqs &seqs)
{
    LWLockAcquire(job_metrics->lock, LW_SHARED);
    int q = find_queue_metrics(table, queue_id);
    for (int i = 0; q >= 0 && i < metric_deltas.n; i++) {
        const MetricDelta &what = metric_deltas.all[i];
        if (what.cell == cell_enqueued && is_current(what) && job_metrics->series[what.series].queue == q)
            seqs.head = std::max(seqs.head, what.sum);
    }
    LWLockRelease(job_metrics->lock);
}

/* Where nobody has remembered them: by this session's last look, or by another one, which rows that this transaction
 * has written keep from being remembered. */
Seqs
look_up_seqs(Database *database, Oid table, int64 queue, int64 at_us)
{
    bool writes = TransactionIdIsValid(GetTopTransactionIdIfAny());
    bool valid = database != nullptr && last_look.table == table && at_us < last_look.look_again_us;
    const Seqs *known = valid ? find_seqs(last_look, queue) : nullptr;
    if (known != nullptr && job_exists(known->earliest_id)) {
        remember_seqs(*database, last_look, queue);
        Seqs seqs = *known;
        (void)known_seqs(table, queue, at_us, seqs); /* with what was pushed since that look */
        return seqs;
    }
    AllSeqs all = look_for_seqs(table);
    const Seqs *found = find_seqs(all, queue);
    Seqs seqs = found != nullptr ? *found : Seqs{};
    if (database == nullptr || writes) {
        pfree(all.of);
        return seqs;
    }
    if (last_look.of != nullptr)
        pfree(last_look.of);
    last_look = all;
    remember_seqs(*database, all, 0);
    return seqs;
}

} // namespace

/* ojs_store.queue_seqs(id bigint, out earliest bigint, out head bigint): the first and the last number of a queue's
 * jobs. To know them takes reading all jobs, which is done rarely. Null where they are not known: with preload, of a
 * queue for which there is no room to remember them. */
OJS_FUNCTION(ojs_queue_seqs)
{
    int64 queue = PG_GETARG_INT64(0);
    Database *database = job_metrics != nullptr && !RecoveryInProgress() ? my_database() : nullptr;
    int64 at_us = steady_us();
    Oid table = store::relation_oid(store::Rel::ready);
    Seqs seqs = {};

    bool remembered = database != nullptr && known_seqs(table, queue, at_us, seqs);
    bool is_known = remembered || database == nullptr || can_remember_seqs(*database, table, queue);
    if (is_known && !remembered)
        seqs = look_up_seqs(database, table, queue, at_us);
    if (is_known && database != nullptr)
        add_own_pushes(table, queue, seqs);
    TupleDesc desc;
    if (get_call_result_type(fcinfo, nullptr, &desc) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    Datum values[] = {Int64GetDatum(seqs.earliest), Int64GetDatum(seqs.head)};
    bool nulls[2] = {!is_known, !is_known};
    return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}
