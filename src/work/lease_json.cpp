/*
 * lease_json.cpp: which jobs a worker holds, by their numbers: what the JSON face of leases (sql/lease_json.sql) names
 * jobs by. Leases have no index on a number, so a session remembers those that it has come across; for others it reads
 * all leases once.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/row.h"
#include "ojs/queue/access.h"
#include "ojs/state/status.h"

using namespace ojs;

namespace
{

constexpr long most_remembered = 10000;

struct Remembered {
    int64 seq; /* key */
    pg_uuid_t job_id;
};

HTAB *remembered;

void
remember(int64 seq, const pg_uuid_t &job_id)
{
    if (remembered != nullptr && hash_get_num_entries(remembered) >= most_remembered) {
        hash_destroy(remembered);
        remembered = nullptr;
    }
    if (remembered == nullptr) {
        HASHCTL control = {};
        control.keysize = sizeof(int64);
        control.entrysize = sizeof(Remembered);
        remembered = hash_create("ojs numbers of jobs", 64, &control, HASH_ELEM | HASH_BLOBS);
    }
    static_cast<Remembered *>(hash_search(remembered, &seq, HASH_ENTER, nullptr))->job_id = job_id;
}

void
emit(ReturnSetInfo *set, int64 seq, const pg_uuid_t &job_id)
{
    Datum values[2] = {Int64GetDatum(seq), UUIDPGetDatum(&job_id)};
    bool nulls[2] = {};
    put_row(set, values, nulls);
}

/* Whether the worker holds the job that had this number. */
bool
is_held(Tables &tables, const Remembered &known, int64 queue, std::string_view worker)
{
    ItemPointerData tid;
    LeaseRow lease;
    JobRow job;
    if (store::find(tables.lease(), store::Idx::lease_job, known.job_id, &tid) == store::Row::none)
        return false;
    read(tables.lease().slot, lease);
    return lease.queue == queue && view(lease.worker) == worker &&
           try_read_job(tables, lease.job_id, lease.job_tid, job) && job.seq == known.seq;
}

/* Emits those that the session remembers. Returns true if it remembers all. */
bool
emit_remembered(Tables &tables, ReturnSetInfo *set, const Bigints &seqs, int64 queue, std::string_view worker)
{
    auto known = [](int64 seq) {
        return remembered != nullptr ? static_cast<Remembered *>(hash_search(remembered, &seq, HASH_FIND, nullptr))
                                     : nullptr;
    };
    if (!std::all_of(seqs.values, seqs.values + seqs.n, known))
        return false;
    for (int i = 0; i < seqs.n; i++)
        if (is_held(tables, *known(seqs.values[i]), queue, worker))
            emit(set, seqs.values[i], known(seqs.values[i])->job_id);
    return true;
}

} // namespace

/* ojs_store.remember_number(seq bigint, job_id uuid) */
OJS_FUNCTION(ojs_remember_number)
{
    remember(PG_GETARG_INT64(0), *PG_GETARG_UUID_P(1));
    PG_RETURN_VOID();
}

/* ojs_store.held(queue text, worker text, seqs bigint[]) returns setof (seq bigint, job_id uuid): those jobs of these
 * numbers, distinct, that the worker holds, and maybe others that it holds */
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
    if (emit_remembered(tables, set, bigints_arg(fcinfo, 2), id, worker)) {
        tables.close();
        return (Datum)0;
    }
    store::Table &table = tables.lease();
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        LeaseRow lease;
        JobRow job;
        CHECK_FOR_INTERRUPTS();
        read_in_place(table.slot, lease);
        if (lease.queue != id || view(lease.worker) != worker)
            continue;
        if (!try_read_job(tables, lease.job_id, lease.job_tid, job))
            continue;
        remember(job.seq, lease.job_id);
        emit(set, job.seq, lease.job_id);
    }
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    tables.close();
    return (Datum)0;
}
