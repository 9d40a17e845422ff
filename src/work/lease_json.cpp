/*
 * lease_json.cpp: which jobs a worker holds, by their numbers: what the JSON face of leases (sql/lease_json.sql) names
 * jobs by. Leases have no index on a number, so each call reads all of them once.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/queue/access.h"
#include "ojs/state/status.h"

using namespace ojs;

/* ojs_store.held(queue text, worker text) returns setof (seq bigint, job_id uuid) */
OJS_FUNCTION(ojs_held)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    std::string_view name = PG_ARGISNULL(0) ? std::string_view() : view(PG_GETARG_TEXT_PP(0));
    std::string_view worker = view(PG_GETARG_TEXT_PP(1));
    if (name.empty())
        raise_field(Code::invalid_queue, "queue", "Name a queue.", "queue must not be empty");
    const Queue *queue = find_queue(name);
    if (queue == nullptr)
        raise_no_queue(name);
    if (queue->is_log)
        raise(Code::topic_not_a_queue, Details().add("queue", queue->name), "Read a log with the view ojs.jobs.",
              "\"%s\" is a log and has no leases", queue->name);
    int64 id = queue->id;

    Tables tables(AccessShareLock);
    store::Table &table = tables.lease();
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        LeaseRow lease;
        JobRow job;
        CHECK_FOR_INTERRUPTS();
        read(table.slot, lease);
        if (lease.queue != id || view(lease.worker) != worker)
            continue;
        if (!try_read_job(tables, lease.job_id, lease.job_tid, job))
            continue;
        Datum values[2] = {Int64GetDatum(job.seq), UUIDPGetDatum(&lease.job_id)};
        bool nulls[2] = {};
        tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
    }
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    tables.close();
    return (Datum)0;
}
