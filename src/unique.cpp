/*
 * unique.cpp: strong uniqueness.
 *
 * One row of ojs_store.uniq per fingerprint, kept single by a partial unique index; whoever decides about a
 * fingerprint has that row inserted or locked, until its transaction ends. The states of the jobs it names are looked
 * up then, by a snapshot taken after the lock, and the incoming policy is applied to them. Lock order: keys in
 * their own order, then rows of ready, later and lease. Claims, acks and upkeep never touch ojs_store.uniq.
 */
#include "ojs/unique.h"

#include "ojs/args.h"
#include "ojs/place.h"
#include "ojs/spi.h"
#include "ojs/uuid.h"

namespace ojs
{

namespace
{

/* Columns of ojs_store.uniq. */
enum { col_fingerprint, col_job_id, col_past, col_held };

constinit Statement insert_key = {
    "insert into ojs_store.uniq (fingerprint, job_id, past, held) values ($1, $2, '{}', true)"
    " on conflict (fingerprint) where held do nothing",
    {BYTEAOID, UUIDOID},
    nullptr};

constinit Statement update_key = {
    "update ojs_store.uniq set job_id = $2, past = $3 where ctid = $1", {TIDOID, UUIDOID, UUIDARRAYOID}, nullptr};

Datum
key_datum(const Fingerprint &key)
{
    auto *bytes = static_cast<bytea *>(palloc(VARHDRSZ + sizeof key.bytes));
    SET_VARSIZE(bytes, VARHDRSZ + sizeof key.bytes);
    memcpy(VARDATA(bytes), key.bytes, sizeof key.bytes);
    return PointerGetDatum(bytes);
}

/* The jobs that a key's row names, the newest first. */
struct Named {
    pg_uuid_t *ids;
    int n;
};

Named
named(TupleTableSlot *slot)
{
    slot_getallattrs(slot);
    Datum *past;
    int n;
    deconstruct_array(DatumGetArrayTypeP(slot->tts_values[col_past]), UUIDOID, UUID_LEN, false, TYPALIGN_CHAR, &past,
                      nullptr, &n);
    Named result = {static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t) * (n + 1))), n + 1};
    result.ids[0] = *DatumGetUUIDP(slot->tts_values[col_job_id]);
    for (int i = 0; i < n; i++)
        result.ids[n - i] = *DatumGetUUIDP(past[i]);
    return result;
}

void
begin_key(store::Scan &scan, store::Table &table, ScanKey scan_key, const Fingerprint &key)
{
    ScanKeyInit(scan_key, 1, BTEqualStrategyNumber, F_BYTEAEQ, key_datum(key));
    store::begin(scan, table, store::Idx::uniq_held, scan_key, 1, false);
    /* The newest version of a row that changes often lies last. */
    scan.direction = BackwardScanDirection;
}

/* The key's row, locked by us before. */
Named
read_locked(store::Table &table, const Fingerprint &key, ItemPointer tid)
{
    ScanKeyData scan_key;
    store::Scan scan;
    begin_key(scan, table, &scan_key, key);
    if (store::next(scan) == store::Row::none)
        elog(ERROR, "a locked uniqueness key has gone");
    *tid = scan.tid;
    Named result = named(table.slot);
    store::end(scan);
    return result;
}

/* True: the key was free, and this transaction has it now. False: it has a row, which is locked. */
bool
lock_key(const Fingerprint &key, const pg_uuid_t &id)
{
    store::Table table = store::open(store::Rel::uniq, RowExclusiveLock);
    bool fresh = false;
    for (bool decided = false; !decided;) {
        ScanKeyData scan_key;
        store::Scan scan;
        CHECK_FOR_INTERRUPTS();
        begin_key(scan, table, &scan_key, key);
        store::Row seen = store::next(scan);
        if (seen == store::Row::arriving)
            store::wait_for(scan);
        else if (seen != store::Row::none)
            decided = store::lock(table, &scan.tid, true) == store::Outcome::ok;
        store::end(scan);
        if (seen == store::Row::none)
            with_spi([&] { fresh = decided = execute_latest(insert_key, {key_datum(key), UUIDPGetDatum(&id)}) == 1; });
    }
    store::close(table);
    return fresh;
}

bool
in_the_way(const UniquePolicy &policy, const JobRow &job, const Standing &standing, TimestampTz now)
{
    return (policy.states & (1 << static_cast<int>(standing.state))) != 0 &&
           (!policy.period_ms || job.created_at + *policy.period_ms * 1000 > now);
}

[[noreturn]] void
raise_duplicate(const Uniqueness &unique, const JobRow &job, const Standing &standing)
{
    char hex[2 * sizeof unique.key.bytes + 1];
    for (size_t i = 0; i < sizeof unique.key.bytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", unique.key.bytes[i]);
    raise(Code::duplicate_job,
          Details().add("existing_job_id", job.id).add("existing_job_state", state_name(standing.state)).add("unique_key", hex),
          "Treat the existing job as this one, or choose on_conflict ignore or replace.",
          "a job with the same uniqueness key exists already");
}

/* `job` points into slots that the next look-up uses again. */
void
answer_with(const JobRow &job, const Standing &standing, Pushed &existing)
{
    existing.job = job;
    existing.standing = standing;
    existing.standing.deduplicated = true;
    existing.queue = queue_name(standing.queue);
}

/* A job that the key's row goes on naming: open, or the newest of its final state. */
bool
matters(const Standing &standing, int *seen_states)
{
    if (!terminal(standing.state))
        return true;
    int bit = 1 << static_cast<int>(standing.state);
    bool first = (*seen_states & bit) == 0;
    *seen_states |= bit;
    return first;
}

} // namespace

Uniqueness
uniqueness_of(const Envelope &envelope)
{
    Uniqueness unique = {read_unique_policy(envelope.uniq), {}};
    unique.key = fingerprint(envelope, unique.policy);
    return unique;
}

void
lock_keys(const Uniqueness *keys, const pg_uuid_t *ids, int n, bool *fresh)
{
    auto *order = static_cast<int *>(palloc(sizeof(int) * n));
    for (int i = 0; i < n; i++)
        order[i] = i;
    auto compare = [&](int a, int b) { return memcmp(keys[a].key.bytes, keys[b].key.bytes, sizeof keys[a].key.bytes); };
    std::sort(order, order + n, [&](int a, int b) { return compare(a, b) != 0 ? compare(a, b) < 0 : a < b; });
    for (int i = 0; i < n; i++)
        fresh[order[i]] = (i == 0 || compare(order[i], order[i - 1]) != 0) && lock_key(keys[order[i]].key, ids[order[i]]);
    pfree(order);
}

bool
admit_at_first_sight(Tables &tables, const Uniqueness &unique, TimestampTz now, Pushed &existing)
{
    store::Table &table = tables.get(store::Rel::uniq);
    ScanKeyData scan_key;
    store::Scan scan;
    begin_key(scan, table, &scan_key, unique.key);
    /* Only a committed row says anything: one that is arriving may still go away. */
    bool known = store::next(scan) == store::Row::live;
    Named jobs = known ? named(table.slot) : Named{nullptr, 0};
    store::end(scan);

    for (int i = 0; i < jobs.n; i++) {
        JobRow job;
        Standing standing;
        if (!stand_now(tables, jobs.ids[i], now, job, standing) || !in_the_way(unique.policy, job, standing, now))
            continue;
        if (unique.policy.on_conflict == OnConflict::reject)
            raise_duplicate(unique, job, standing);
        answer_with(job, standing, existing);
        return false;
    }
    return true;
}

bool
admit(Tables &tables, Envelope &envelope, const Uniqueness &unique, TimestampTz now, Pushed &existing)
{
    store::Table &table = tables.get(store::Rel::uniq);
    ItemPointerData tid;
    Named jobs = read_locked(table, unique.key, &tid);
    auto *past = static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t) * jobs.n));
    int n_past = 0;
    int seen_states = 0;
    bool inherited = false;

    for (int i = 0; i < jobs.n; i++) {
        JobRow job;
        Standing standing;
        if (!stand_now(tables, jobs.ids[i], now, job, standing))
            continue;
        if (in_the_way(unique.policy, job, standing, now)) {
            switch (unique.policy.on_conflict) {
            case OnConflict::reject:
                raise_duplicate(unique, job, standing);
            case OnConflict::ignore:
                answer_with(job, standing, existing);
                return false;
            case OnConflict::replace_except_schedule:
                if (standing.state == State::scheduled && !inherited) {
                    envelope.scheduled_at = job.scheduled_at;
                    inherited = true;
                }
                [[fallthrough]];
            case OnConflict::replace:
                bool exists;
                if (!terminal(standing.state) && cancel_open(tables, jobs.ids[i], now, job, standing, exists))
                    standing.state = State::cancelled;
                break;
            }
        }
        if (matters(standing, &seen_states))
            past[n_past++] = jobs.ids[i];
    }
    std::reverse(past, past + n_past); /* stored oldest first */
    with_spi([&] {
        execute_latest(update_key, {PointerGetDatum(&tid), UUIDPGetDatum(&envelope.id),
                                    uuid_array(past, n_past)});
    });
    return true;
}

} // namespace ojs
