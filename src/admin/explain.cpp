/*
 * explain.cpp: what stands before a job in its queue or its line, for ojs.explain_job. Not by SQL: claims mark index
 * entries dead that a snapshot may still need.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/state/locate.h"
#include "ojs/state/ordering_line.h"

using namespace ojs;

/* ojs_store.ready_before(job_id uuid, most int) returns bigint: how many jobs of its queue are served before one that
 * can be claimed, counted up to `most` */
OJS_FUNCTION(ojs_ready_before)
{
    Tables tables(AccessShareLock);
    ReadyRow mine;
    ReadyRow row;
    ItemPointerData tid;
    ScanKeyData key;
    store::Scan scan;
    store::Row seen;
    int64 most = PG_GETARG_INT32(1);
    int64 n = 0;
    if (find_ready(tables, *PG_GETARG_UUID_P(0), &tid) != store::Row::none) {
        read(tables.ready().slot, mine);
        ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(mine.queue));
        store::begin(scan, tables.ready(), store::Idx::ready_order, &key, 1, true);
        while (n < most && (seen = store::next(scan)) != store::Row::none) {
            read(tables.ready().slot, row);
            if (std::tie(row.npriority, row.position) >= std::tie(mine.npriority, mine.position))
                break;
            n += seen != store::Row::arriving;
        }
        store::end(scan);
    }
    tables.close();
    PG_RETURN_INT64(n);
}

namespace
{

/* The first jobs in line with an ordering key, those before a position. */
struct JobsInLine {
    Datum *ids;
    int n;
};

JobsInLine
jobs_in_line(Tables &tables, int64 key, int64 before, int most)
{
    store::Table &table = tables.get(store::Rel::ordering_line);
    JobsInLine jobs = {static_cast<Datum *>(palloc(sizeof(Datum) * std::max(most, 1))), 0};
    ScanKeyData keys[2];
    store::Scan scan;
    store::Row seen;
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(key));
    ScanKeyInit(&keys[1], 2, BTLessStrategyNumber, F_INT8LT, Int64GetDatum(before));
    store::begin(scan, table, store::Idx::ordering_line_order, keys, 2, true);
    while (jobs.n < most && (seen = store::next(scan)) != store::Row::none) {
        LineRow row;
        if (seen == store::Row::arriving)
            continue;
        read(table.slot, row);
        auto *id = static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t)));
        *id = row.job_id;
        jobs.ids[jobs.n++] = UUIDPGetDatum(id);
    }
    store::end(scan);
    return jobs;
}

} // namespace

/* ojs_store.first_in_line(key bigint) returns uuid: the first job with an ordering key, or null */
OJS_FUNCTION(ojs_first_in_line)
{
    Tables tables(AccessShareLock);
    JobsInLine jobs = jobs_in_line(tables, PG_GETARG_INT64(0), PG_INT64_MAX, 1);
    tables.close();
    if (jobs.n == 0)
        PG_RETURN_NULL();
    PG_RETURN_DATUM(jobs.ids[0]);
}

/* ojs_store.line_before(job_id uuid, most int) returns uuid[]: the jobs that stand before one in the line of its
 * ordering key, in their order, at most that many */
OJS_FUNCTION(ojs_line_before)
{
    Tables tables(AccessShareLock);
    LineRow mine;
    JobsInLine jobs = {};
    if (find_in_line(tables, *PG_GETARG_UUID_P(0), mine))
        jobs = jobs_in_line(tables, mine.key, mine.position, PG_GETARG_INT32(1));
    tables.close();
    PG_RETURN_ARRAYTYPE_P(construct_array(jobs.ids, jobs.n, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
}
