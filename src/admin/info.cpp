/*
 * info.cpp: reading: ojs.info, and what the views stand on. Nothing here writes or locks a row, and all of it works on
 * a standby, from the logged tables alone.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/json.h"
#include "ojs/pg/row.h"
#include "ojs/queue/access.h"
#include "ojs/queue/tenant.h"
#include "ojs/shared/shmem.h"
#include "ojs/state/status.h"

using namespace ojs;

/* Since when a result is kept, until when it is shown, and how large it is (RES-02). */
static void
add_result_facts(Status &status)
{
    if (status.result == nullptr && !status.result_expires_at)
        return;
    ObjectBuilder out;
    TimeText stored_at;
    TimeText expires_at;
    if (status.reported != nullptr)
        each_member(root_of(status.reported),
                    [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    out.add("result_stored_at", format_timestamp(*status.finished_at, false, stored_at));
    if (status.result_expires_at)
        out.add("result_expires_at", format_timestamp(*status.result_expires_at, false, expires_at));
    if (status.result != nullptr)
        out.add("result_size_bytes", text_bytes(status.result));
    status.reported = out.finish();
}

/* The deduplication key that names the job, and until when it is held; one of them, where several pushes were dropped
 * in favour of one job. */
static void
add_deduplication_key(Tables &tables, const pg_uuid_t &id, Snapshot snapshot, TimestampTz at, Status &status)
{
    enum { col_queue, col_key, col_job_id, col_expires_at };
    store::Table &table = tables.get(store::Rel::deduplication);
    if (!store::read(table, store::Idx::deduplication_job, id, snapshot))
        return;
    slot_getallattrs(table.slot);
    TimestampTz expires_at = DatumGetTimestampTz(table.slot->tts_values[col_expires_at]);
    if (expires_at <= at)
        return;
    ObjectBuilder out;
    TimeText buffer;
    if (status.reported != nullptr)
        each_member(root_of(status.reported),
                    [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    out.add("deduplication_key", view(DatumGetTextPP(table.slot->tts_values[col_key])));
    out.add("deduplication_expires_at", format_timestamp(expires_at, false, buffer));
    status.reported = out.finish();
}

/* The envelope of a job as it stands. Of one that is gone or that the caller may not see: only its id, if `pushed`,
 * else an error. */
static Datum
info_of(const pg_uuid_t &id, bool pushed)
{
    TimestampTz at = now();
    Tables tables(AccessShareLock);
    JobRow job;
    Status status;

    Snapshot snapshot = RegisterSnapshot(GetTransactionSnapshot());
    bool exists = read_status(tables, id, snapshot, at, job, status);
    if (!exists && IsolationUsesXactSnapshot()) {
        /* Claims go by what is there now, so this very transaction may hold a job that is newer than its snapshot. */
        UnregisterSnapshot(snapshot);
        snapshot = RegisterSnapshot(GetLatestSnapshot());
        exists = read_status(tables, id, snapshot, at, job, status);
    }
    if (exists)
        add_deduplication_key(tables, id, snapshot, at, status);
    UnregisterSnapshot(snapshot);
    if (!exists && !pushed)
        raise_no_job(id);
    if (pushed && (!exists || !may_use_queue(status.queue, Right::read))) {
        tables.close();
        const char *id_text = DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id)));
        return JsonbPGetDatum(ObjectBuilder().add("id", id_text).add("deduplicated", json_bool(true)).finish());
    }
    check_use_of_job(status.queue, id, Right::read);
    add_result_facts(status);
    Jsonb *envelope = job_json(job, status, queue_name(status.queue));
    tables.close();
    return JsonbPGetDatum(envelope);
}

/* ojs.info(job_id) returns jsonb */
OJS_FUNCTION(ojs_info)
{
    return info_of(job_id_arg(fcinfo, 0), false);
}

/* ojs_http.pushed_job(job_id) returns jsonb: the job that a push has made or found */
OJS_FUNCTION(ojs_pushed_job)
{
    return info_of(*PG_GETARG_UUID_P(0), true);
}

static Datum
copied(std::string_view text)
{
    return CStringGetDatum(pnstrdup(text.data(), text.size()));
}

/* What an answer says of an item of a batch: all of it, with the job, or of the job alone. */
static Jsonb *
answer_of(const JsonbContainer *item, std::string_view status, Jsonb *job, bool job_only)
{
    if (job_only && job != nullptr && status == "created")
        return job;
    ObjectBuilder out;
    if (!job_only)
        each_member(item, [&out](std::string_view key, const JsonbValue &value) {
            if (key != "id")
                out.add(key, value);
        });
    else if (job == nullptr)
        out.add("status", status);
    else
        each_member(root_of(job), [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    if (!job_only && job != nullptr)
        out.add("job", job);
    else if (job_only && status != "dropped")
        out.add("deduplicated", json_bool(true));
    return out.finish();
}

/* ojs_http.batch_answer(items, jobs_only, head, tail) returns (content text, limited jsonb): no more than one job is
 * held beside the text. */
OJS_FUNCTION(ojs_batch_answer)
{
    enum { col_content, col_limited };
    Jsonb *items = PG_GETARG_JSONB_P(0);
    bool jobs_only = PG_GETARG_BOOL(1);
    std::string_view head = view(PG_GETARG_TEXT_PP(2));
    std::string_view tail = view(PG_GETARG_TEXT_PP(3));
    TupleDesc desc;
    Datum values[2] = {};
    bool nulls[2] = {false, true};
    StringInfoData text;

    if (get_call_result_type(fcinfo, nullptr, &desc) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    if (!is_array(items))
        raise_field(Code::invalid_payload, "items", "Give the items of a batch.", "items must be an array");
    initStringInfo(&text);
    appendStringInfoSpaces(&text, VARHDRSZ);
    appendBinaryStringInfo(&text, head.data(), static_cast<int>(head.size()));
    appendStringInfoChar(&text, '[');
    const char *comma = "";
    MemoryContext home = CurrentMemoryContext;
    MemoryContext each = AllocSetContextCreate(home, "ojs item of a batch", ALLOCSET_DEFAULT_SIZES);
    each_element(root_of(items), [&](const JsonbValue &item) {
        CHECK_FOR_INTERRUPTS();
        MemoryContextSwitchTo(each);
        JsonbValue status;
        JsonbValue id;
        JsonbValue limit;
        Jsonb *job = nullptr;
        if (!is_object(item) || !find_member(item.val.binary.data, "status", status) || status.type != jbvString)
            raise_field(Code::invalid_payload, "items", "Give the items of a batch.", "an item has no status");
        if (find_member(item.val.binary.data, "id", id) && id.type == jbvString)
            job = DatumGetJsonbP(info_of(*DatumGetUUIDP(DirectFunctionCall1(uuid_in, copied(text_of(id)))), true));
        if (nulls[col_limited] && job != nullptr && text_of(status) == "created" &&
            find_member(root_of(job), "rate_limit", limit)) {
            MemoryContextSwitchTo(home);
            values[col_limited] = datumCopy(JsonbPGetDatum(job), false, -1);
            MemoryContextSwitchTo(each);
            nulls[col_limited] = false;
        }
        Jsonb *said = answer_of(item.val.binary.data, text_of(status), job, jobs_only);
        appendStringInfoString(&text, comma);
        (void)JsonbToCString(&text, &said->root, static_cast<int>(VARSIZE(said)));
        comma = ", ";
        MemoryContextSwitchTo(home);
        MemoryContextReset(each);
    });
    MemoryContextDelete(each);
    appendStringInfoChar(&text, ']');
    appendBinaryStringInfo(&text, tail.data(), static_cast<int>(tail.size()));
    SET_VARSIZE(text.data, text.len);
    values[col_content] = PointerGetDatum(text.data);
    HeapTuple answer = heap_form_tuple(BlessTupleDesc(desc), values, nulls);
    pfree(text.data);
    return HeapTupleGetDatum(answer);
}

/* ojs_store.readable(job_ids uuid[]) returns uuid[]: the same ids, if the caller may see all these jobs */
OJS_FUNCTION(ojs_readable)
{
    Datum *ids;
    bool *nulls;
    int n;
    TimestampTz at = now();
    Tables tables(AccessShareLock);
    deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), UUIDOID, UUID_LEN, false, TYPALIGN_CHAR, &ids, &nulls, &n);
    Snapshot snapshot = RegisterSnapshot(GetTransactionSnapshot());
    for (int i = 0; i < n; i++) {
        JobRow job;
        Status status;
        CHECK_FOR_INTERRUPTS();
        if (!nulls[i] && read_status(tables, *DatumGetUUIDP(ids[i]), snapshot, at, job, status) &&
            !is_foreign(status.queue)) /* that is none, as look() has it */
            check_use_of_job(status.queue, job.id, Right::read);
    }
    UnregisterSnapshot(snapshot);
    tables.close();
    PG_RETURN_DATUM(PG_GETARG_DATUM(0));
}

/* ojs_store.look(job_id) returns ojs.job: one row of the view ojs.jobs, by the query's own snapshot */
OJS_FUNCTION(ojs_look)
{
    Tables tables(AccessShareLock);
    JobRow job;
    Status status;
    if (!read_status(tables, *PG_GETARG_UUID_P(0), GetActiveSnapshot(), now(), job, status) ||
        is_foreign(status.queue)) {
        tables.close();
        PG_RETURN_NULL();
    }
    Datum row = render_job(job, status, queue_name(status.queue));
    tables.close();
    return row;
}

/* Likewise, or null if the caller may not read the job. */
OJS_FUNCTION(ojs_visible)
{
    Tables tables(AccessShareLock);
    JobRow job;
    Status status;
    if (!read_status(tables, *PG_GETARG_UUID_P(0), GetActiveSnapshot(), now(), job, status) ||
        !calling_role_may(status.queue, Right::read)) {
        tables.close();
        PG_RETURN_NULL();
    }
    Datum row = render_job(job, status, queue_name(status.queue));
    tables.close();
    return row;
}

/* Whether the caller of an SQL function may do so with a job; nothing is said of one that does not exist. */
static bool
may_use_job(FunctionCallInfo fcinfo, bool raises)
{
    const pg_uuid_t &id = *PG_GETARG_UUID_P(0);
    Right right = right_named(PG_GETARG_TEXT_PP(1));
    Tables tables(AccessShareLock);
    JobRow job;
    Status status;
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    bool exists = read_status(tables, id, snapshot, now(), job, status);
    UnregisterSnapshot(snapshot);
    bool may = !exists || calling_role_may(status.queue, right);
    if (!may && raises && !is_foreign(status.queue))
        raise_job_denied(id, right);
    tables.close();
    return may;
}

/* ojs_store.use_job(job_id uuid, right_name text) returns uuid: the id; raises where the caller may not */
OJS_FUNCTION(ojs_use_job)
{
    (void)may_use_job(fcinfo, true);
    PG_RETURN_DATUM(PG_GETARG_DATUM(0));
}

/* ojs_store.may_use_job(job_id uuid, right_name text) returns boolean */
OJS_FUNCTION(ojs_may_use_job)
{
    PG_RETURN_BOOL(may_use_job(fcinfo, false));
}

/* The leases that the caller may see, each with the name of its worker as the caller knows it; none in recovery, where
 * leases do not exist. */
template <typename Body>
static void
each_lease(Body body)
{
    if (RecoveryInProgress())
        return;
    bool tenants_shown = caller_tenant().empty(); /* who acts for one knows its workers by their own names */
    Tables tables(AccessShareLock);
    store::Table &table = tables.lease();
    TableScanDesc scan = table_beginscan(table.rel, GetActiveSnapshot(), 0, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        LeaseRow lease;
        CHECK_FOR_INTERRUPTS();
        read_in_place(table.slot, lease);
        if (calling_role_may(lease.queue, Right::read))
            body(lease, tenants_shown ? stored_worker(lease.worker, lease.queue) : lease.worker);
    }
    table_endscan(scan);
    tables.close();
}

/* ojs_store.leases() returns setof record: the view ojs.leases */
OJS_FUNCTION(ojs_leases)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    each_lease([set](const LeaseRow &lease, const text *worker) {
        std::string_view queue = shown_queue(queue_name(lease.queue));
        Datum values[7] = {UUIDPGetDatum(&lease.job_id),
                           PointerGetDatum(cstring_to_text_with_len(queue.data(), static_cast<int>(queue.size()))),
                           PointerGetDatum(worker),
                           PointerGetDatum(lease_id(lease.token)),
                           TimestampTzGetDatum(lease.claimed_at),
                           TimestampTzGetDatum(lease.deadline),
                           Int32GetDatum(lease.deliveries)};
        bool nulls[7] = {};
        put_row(set, values, nulls);
        pfree(DatumGetPointer(values[1]));
        pfree(DatumGetPointer(values[3]));
    });
    return (Datum)0;
}

/* --- who holds jobs --- */

namespace
{

struct Holding {
    const text *worker;
    TimestampTz claimed_at;
    pg_uuid_t job_id;

    bool operator<(const Holding &o) const
    {
        int order = worker == o.worker ? 0 : view(worker).compare(view(o.worker));
        if (order != 0 || claimed_at != o.claimed_at)
            return order != 0 ? order < 0 : claimed_at < o.claimed_at;
        return memcmp(&job_id, &o.job_id, sizeof job_id) < 0;
    }
};

struct Holdings {
    Holding *all;
    size_t n, room;

    void add(const LeaseRow &lease, const text *worker)
    {
        if (n == room) {
            room = std::max<size_t>(room * 2, 1024);
            all = static_cast<Holding *>(all == nullptr ? palloc(room * sizeof *all)
                                                        : repalloc_huge(all, room * sizeof *all));
        }
        const text *known = n > 0 ? all[n - 1].worker : nullptr;
        if (known == nullptr || view(known) != view(worker))
            known = cstring_to_text_with_len(view(worker).data(), static_cast<int>(view(worker).size()));
        all[n++] = {known, lease.claimed_at, lease.job_id};
    }
};

} // namespace

/* ojs_store.holders(out worker text, out ids uuid[], out claimed_at timestamptz) returns setof record: the leases of
 * ojs_store.leases() by worker, in the order of their claims, and when the last one was */
OJS_FUNCTION(ojs_holders)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    Holdings held = {};
    each_lease([&held](const LeaseRow &lease, const text *worker) { held.add(lease, worker); });
    std::sort(held.all, held.all + held.n);
    auto *ids = static_cast<Datum *>(MemoryContextAllocHuge(CurrentMemoryContext, held.n * sizeof(Datum) + 1));
    for (size_t from = 0, to; from < held.n; from = to) {
        for (to = from; to < held.n && view(held.all[to].worker) == view(held.all[from].worker); to++)
            ids[to - from] = UUIDPGetDatum(&held.all[to].job_id);
        ArrayType *array = construct_array(ids, static_cast<int>(to - from), UUIDOID, UUID_LEN, false, TYPALIGN_CHAR);
        Datum values[] = {PointerGetDatum(held.all[from].worker), PointerGetDatum(array),
                          TimestampTzGetDatum(held.all[to - 1].claimed_at)};
        bool nulls[lengthof(values)] = {};
        put_row(set, values, nulls);
        pfree(array);
    }
    return (Datum)0;
}

/* ojs_store.steady_s() returns double precision */
OJS_FUNCTION(ojs_steady_s)
{
    PG_RETURN_FLOAT8(static_cast<float8>(steady_us()) / USECS_PER_SEC);
}

/* ojs_store.rest(seconds double precision) returns void */
OJS_FUNCTION(ojs_rest)
{
    static uint32 event;
    sleep_ms(static_cast<int64>(std::clamp(PG_GETARG_FLOAT8(0), 0.0, 60.0) * 1000), "OjsRest", &event);
    PG_RETURN_VOID();
}

/* ojs_store.now(): the clock of this extension, for SQL */
OJS_FUNCTION(ojs_now)
{
    PG_RETURN_TIMESTAMPTZ(now());
}

/* ojs.version() returns text */
OJS_FUNCTION(ojs_version)
{
    PG_RETURN_TEXT_P(cstring_to_text(OJS_VERSION));
}

/* ojs_store.changed(regclass): sessions read this table's contents anew once this transaction has committed */
OJS_FUNCTION(ojs_changed)
{
    CacheInvalidateRelcacheByRelid(PG_GETARG_OID(0));
    PG_RETURN_VOID();
}
