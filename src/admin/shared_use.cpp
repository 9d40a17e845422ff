/*
 * shared_use.cpp: see shared_use.h.
 */
#include "ojs/admin/shared_use.h"

#include "ojs/counters/counter_table.h"
#include "ojs/counters/metric_table.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/row.h"

namespace ojs
{

namespace
{

void
count(SharedUse &use, Oid database)
{
    use.used += OidIsValid(database);
    use.own += database == MyDatabaseId;
}

/* Under the lock of the table. */
template <typename Entry>
void
count_entries(SharedUse &use, HTAB *table)
{
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, table);
    while (auto *entry = static_cast<Entry *>(hash_seq_search(&all)))
        count(use, entry->key.database);
}

} // namespace

void
read_shared_uses(SharedUse (&uses)[n_shared_uses])
{
    SharedUse databases = {"databases", 0, 0, max_databases};
    SharedUse listeners = {"listener_flags", 0, 0, max_listener_flags};
    SharedUse rates = {"claim_rates", 0, 0, max_calls};
    SharedUse queues = {"counters", 0, 0, max_counters};
    SharedUse refusals = {"refusals", 0, 0, static_cast<int64>(lengthof(alarms->refusals))};
    SharedUse metric_queues = {"metric_queues", 0, 0, max_metric_queues};
    SharedUse metric_series = {"metric_series", 0, 0, max_series};

    LWLockAcquire(shared->lock, LW_SHARED);
    for (const Database &database : shared->databases)
        count(databases, database.oid);
    count_entries<ListenerFlag>(listeners, shared->listener_flags);
    count_entries<Calls>(rates, shared->calls);
    LWLockRelease(shared->lock);

    LWLockAcquire(counters_lock, LW_SHARED);
    count_entries<Counter>(queues, counters);
    for (const Refusal &refusal : alarms->refusals)
        count(refusals, refusal.database);
    LWLockRelease(counters_lock);

    LWLockAcquire(job_metrics->lock, LW_SHARED);
    for (const QueueMetrics &queue : job_metrics->queues)
        count(metric_queues, queue.database);
    for (int s = 0; s < job_metrics->n_series; s++)
        if (job_metrics->series[s].queue >= 0)
            count(metric_series, job_metrics->queues[job_metrics->series[s].queue].database);
    LWLockRelease(job_metrics->lock);

    int n = 0;
    for (const SharedUse &use : {databases, listeners, rates, queues, refusals, metric_queues, metric_series})
        uses[n++] = use;
}

bool
has_counters()
{
    return counting_database() != nullptr;
}

} // namespace ojs

using namespace ojs;

/* ojs_store.shared_use(out what text, out used bigint, out own bigint, out most bigint) returns setof record; no rows
 * without preload */
OJS_FUNCTION(ojs_shared_use)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    if (!shared_memory())
        return (Datum)0;
    SharedUse uses[n_shared_uses];
    read_shared_uses(uses);
    for (const SharedUse &use : uses) {
        Datum values[] = {CStringGetTextDatum(use.what), Int64GetDatum(use.used), Int64GetDatum(use.own),
                          Int64GetDatum(use.most)};
        bool nulls[lengthof(values)] = {};
        put_row(set, values, nulls);
    }
    return (Datum)0;
}
