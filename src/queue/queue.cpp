/*
 * queue.cpp: the session's cache of queues, and making a queue on its first push.
 */
#include "ojs/queue/queue.h"

#include "ojs/job/envelope.h"
#include "ojs/pg/args.h"
#include "ojs/pg/error.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/json.h"
#include "ojs/pg/session_cache.h"
#include "ojs/pg/settings.h"
#include "ojs/store/name_hash.h"
#include "ojs/store/rows.h"
#include "ojs/store/store.h"
#include "ojs/queue/tenant.h"
#include "ojs/queue/tenant_settings.h"

namespace ojs
{

namespace
{

/* Columns of ojs_store.queue. */
enum { col_id, col_name, col_state, col_created_at, col_revised_at, col_config, n_cols };

struct ById {
    int64 id;
    Queue *queue;
};

MemoryContext context; /* of the cache and of what its queues point to */
HTAB *cache;           /* Queue by name */
HTAB *cache_by_id;     /* ById: leads into `cache` */
const Jsonb *policy;   /* the default policy's configuration, once it has been looked up */
bool policy_known;
SessionCache validity; /* of all of it */
bool kept;             /* even where it is not valid: a queue is being put together from it */
bool made_here;        /* this transaction has made queues, which a rollback takes away again */
bool name_here;        /* … and sessions are to be told that there are new names */

void
forget_all()
{
    validity.valid = false;
}

extern "C" void
queue_xact(XactEvent event, void *)
{
    kept = false;
    if (made_here && name_here && (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE))
        store::say_new_name();
    if (made_here && (event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE))
        forget_all();
    if (event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE || event == XACT_EVENT_COMMIT)
        made_here = name_here = false;
}

extern "C" void
queue_subxact(SubXactEvent event, SubTransactionId, SubTransactionId, void *)
{
    if (event != SUBXACT_EVENT_ABORT_SUB)
        return;
    kept = false;
    if (made_here)
        forget_all();
}

uint64
generation_now()
{
    return store::catalog_generation(store::Rel::queue);
}

void
make_cache()
{
    if (context == nullptr)
        context = AllocSetContextCreate(TopMemoryContext, "ojs queues", ALLOCSET_DEFAULT_SIZES);
    MemoryContextReset(context);
    policy = nullptr;
    policy_known = false;
    HASHCTL control = {};
    control.keysize = max_queue_name + 1;
    control.entrysize = sizeof(Queue);
    control.hcxt = context;
    cache = hash_create("ojs queues", 64, &control, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
    control.keysize = sizeof(int64);
    control.entrysize = sizeof(ById);
    cache_by_id = hash_create("ojs queues by id", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* The cache is one of this generation, or empty. */
void
renew()
{
    validity.refresh(kept ? validity.noted : generation_now(), make_cache);
}

int64
number_in(const Jsonb *config, const char *key, int scale, int64 otherwise)
{
    JsonbValue value;
    int64 n;
    return find_member(root_of(config), key, value) && number_of(value, scale, n) ? n : otherwise;
}

bool
bool_in(const Jsonb *config, const char *key, bool otherwise)
{
    JsonbValue value;
    return find_member(root_of(config), key, value) && value.type == jbvBool ? value.val.boolean : otherwise;
}

std::string_view
text_in(const Jsonb *config, const char *key)
{
    JsonbValue value;
    return find_member(root_of(config), key, value) && value.type == jbvString ? text_of(value) : std::string_view();
}

/* A member that is an object or an array, copied into the cache. */
const Jsonb *
json_in(const Jsonb *config, const char *key)
{
    JsonbValue value;
    if (!find_member(root_of(config), key, value) || value.type != jbvBinary)
        return nullptr;
    MemoryContext old = MemoryContextSwitchTo(context);
    const Jsonb *copy = jsonb_of(value);
    MemoryContextSwitchTo(old);
    return copy;
}

Overflow
overflow_in(const Jsonb *config)
{
    std::string_view policy = text_in(config, "discard");
    return policy == "drop_oldest" ? Overflow::drop_oldest : policy == "block" ? Overflow::block : Overflow::reject;
}

int64
duration_in(const JsonbContainer *object, const char *key, int64 otherwise)
{
    JsonbValue value;
    return find_member(object, key, value) && value.type == jbvString
               ? fixed_ms(stored_duration(text_of(value), Code::invalid_payload, key))
               : otherwise;
}

void
read_retention(const Jsonb *config, Queue &queue)
{
    JsonbValue retention;
    queue.kept_ms[0] = kept_completed_ms;
    queue.kept_ms[1] = kept_discarded_ms;
    queue.kept_ms[2] = kept_cancelled_ms;
    if (find_member(root_of(config), "retention", retention) && is_object(retention)) {
        const JsonbContainer *members = retention.val.binary.data;
        queue.kept_ms[0] = duration_in(members, "completed", kept_completed_ms);
        queue.kept_ms[1] = duration_in(members, "discarded", kept_discarded_ms);
        queue.kept_ms[2] = duration_in(members, "cancelled", kept_cancelled_ms);
    }
    queue.dead_letter_ttl_ms = duration_in(root_of(config), "dead_letter_ttl", kept_dead_letters_ms);
    queue.dead_letter_max = number_in(config, "dead_letter_max_size", 0, kept_dead_letters);
}

/* A row of the table; what points, points into memory of the caller. */
struct Row {
    int64 id;
    text *name;
    QueueState state;
    TimestampTz revised_at;
    Jsonb *config;
};

Row
row_in(TupleTableSlot *slot)
{
    slot_getallattrs(slot);
    text *state = DatumGetTextPP(slot->tts_values[col_state]);
    std::string_view state_text(VARDATA_ANY(state), VARSIZE_ANY_EXHDR(state));
    Row row = {};
    row.id = DatumGetInt64(slot->tts_values[col_id]);
    row.name = DatumGetTextPCopy(slot->tts_values[col_name]);
    row.state = state_text == "paused"     ? QueueState::paused
                : state_text == "draining" ? QueueState::draining
                : state_text == "deleted"  ? QueueState::deleted
                                           : QueueState::active;
    row.revised_at = DatumGetTimestampTz(slot->tts_values[col_revised_at]);
    row.config = DatumGetJsonbPCopy(slot->tts_values[col_config]);
    return row;
}

/* The newest revision of a queue by an index on one column. Not the statement's snapshot: what is committed now. */
bool
load(store::Idx index, RegProcedure equal, Datum key_value, Row &row)
{
    store::Table table = store::open(store::Rel::queue, AccessShareLock);
    Relation index_rel = index_open(store::index_oid(index), AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    IndexScanDesc scan = index_begin(table.rel, index_rel, snapshot, 1);
    ScanKeyData key;
    bool found = false;

    ScanKeyEntryInitialize(&key, 0, 1, BTEqualStrategyNumber, InvalidOid,
                           index == store::Idx::queue_name ? C_COLLATION_OID : InvalidOid, equal, key_value);
    index_rescan(scan, &key, 1, nullptr, 0);
    while (index_getnext_slot(scan, ForwardScanDirection, table.slot)) {
        slot_getallattrs(table.slot);
        TimestampTz revised = DatumGetTimestampTz(table.slot->tts_values[col_revised_at]);
        if (!found || revised > row.revised_at)
            row = row_in(table.slot);
        found = true;
    }
    index_endscan(scan);
    UnregisterSnapshot(snapshot);
    index_close(index_rel, AccessShareLock);
    store::close_and_unlock(table, AccessShareLock);
    return found;
}

bool
load_named(std::string_view name, Row &row)
{
    Datum key = PointerGetDatum(cstring_to_text_with_len(name.data(), static_cast<int>(name.size())));
    return load(store::Idx::queue_name, F_TEXTEQ, key, row);
}

/* A tenant's part of a queue has what the queue says behind what it says itself, also in a session that knows no
 * tenants. */
Row
with_base(const Row &row)
{
    Row base = {};
    Row both = row;
    std::string_view name = view(row.name);
    if (!load_named(name.substr(0, name.find('@')), base))
        return row;
    both.config = merge_queue_config(base.config, row.config);
    if (row.state == QueueState::active && base.state != QueueState::deleted)
        both.state = base.state;
    return both;
}

/* What a queue's configuration says, the default policy's behind it (QC-03). */
Queue
from_row(const Row &own)
{
    bool is_part = !tenant_in(view(own.name)).empty();
    const Row row = is_part ? with_base(own) : own;
    const Jsonb *config = merge_queue_config(default_policy(), row.config);
    Queue queue = {};
    std::string_view dead_letter = beside(view(row.name), text_in(config, "dead_letter"));

    queue.id = row.id;
    memcpy(queue.name, VARDATA_ANY(row.name), std::min<size_t>(VARSIZE_ANY_EXHDR(row.name), max_queue_name));
    queue.state = row.state;
    queue.revised_at = row.revised_at;
    queue.is_log = text_in(config, "type") == "log";
    queue.lease_ms = number_in(config, "lease_ms", 0, 0);
    queue.max_deliveries = number_in(config, "max_deliveries", 0, 0);
    queue.claim_jitter_ms = number_in(config, "claim_jitter_ms", 0, 0);
    queue.claim_rate = number_in(config, "claim_rate", 0, 0);
    queue.aging_s = static_cast<int32>(number_in(config, "priority_aging_s", 0, 0));
    queue.aging_limit = static_cast<int32>(number_in(config, "priority_aging_limit", 0, max_priority));
    queue.max_size = number_in(config, "max_size", 0, 0);
    queue.max_size_bytes = number_in(config, "max_size_bytes", 0, 0);
    queue.bounded = queue.max_size > 0 || queue.max_size_bytes > 0;
    queue.overflow = overflow_in(config);
    queue.block_ms = number_in(config, "block_timeout", 3, 0);
    JsonbValue threshold;
    queue.warning_threshold =
        find_member(root_of(config), "warning_threshold", threshold) ? double_of(threshold) : default_warning_threshold;
    queue.claim_rules = queue.claim_jitter_ms > 0 || queue.claim_rate > 0;
    if (dead_letter.size() <= max_queue_name && dead_letter != queue.name)
        std::copy(dead_letter.begin(), dead_letter.end(), queue.dead_letter);
    /* Where deliveries are bounded and dead letters collected, that is the bound on redelivery. */
    bool bounded = queue.max_deliveries > 0 && queue.dead_letter[0] != '\0';
    queue.expiry_counts_attempt = bool_in(config, "expiry_counts_attempt", !bounded);
    read_retention(config, queue);
    queue.delete_on_ack = bool_in(config, "delete_on_ack", false) || kept_ms_of(queue, State::completed) == 0;
    queue.lease_flags = (bool_in(config, "leases_durable", false) ? lease_durable : 0) |
                        (bool_in(config, "lease_log", false) ? lease_logged : 0);
    queue.durable = bool_in(config, "durable", true);
    JsonbValue rate_limit;
    queue.limit =
        find_member(root_of(config), "rate_limit", rate_limit) ? read_limit(rate_limit.val.binary.data) : no_limit;
    queue.limit.key = {};
    int64 concurrency = number_in(config, "concurrency", 0, 0);
    if (concurrency > 0 && (queue.limit.concurrency < 0 || concurrency < queue.limit.concurrency))
        queue.limit.concurrency = static_cast<int32>(concurrency);
    const TenantSettings *tenant = is_part ? settings_of_tenant(tenant_in(view(own.name))) : nullptr;
    queue.tenant_bounded = tenant != nullptr && tenant->bounds_pushes();
    queue.tenant_concurrency = tenant != nullptr ? tenant->max_concurrency : -1;
    queue.limited = queue.tenant_concurrency >= 0 || says_something(queue.limit);
    queue.default_timeout_ms = number_in(config, "default_timeout", 3, 0);
    queue.default_retry = json_in(config, "default_retry");
    queue.allowed_types = json_in(config, "allowed_job_types");
    for (int i = 0; i < n_rights; i++)
        queue.roles[i] = json_in(config, role_settings[i]);
    queue.restricted =
        std::any_of(queue.roles, queue.roles + n_rights, [](const Jsonb *list) { return list != nullptr; });
    queue.push_rules = queue.default_timeout_ms > 0 || queue.default_retry != nullptr ||
                       queue.allowed_types != nullptr || queue.restricted;
    return queue;
}

const Queue *
remember(const Queue &queue)
{
    auto *entry = static_cast<Queue *>(hash_search(cache, queue.name, HASH_ENTER, nullptr));
    *entry = queue;
    static_cast<ById *>(hash_search(cache_by_id, &queue.id, HASH_ENTER, nullptr))->queue = entry;
    return entry;
}

/* The queue whose row load_row() finds, from now on in the cache. Where one changed while it was read, what was read
 * may be older than the change, and would pass for newer: it is read again; the last time the next look forgets it. */
template <typename LoadRow>
const Queue *
read_queue(LoadRow load_row)
{
    for (int reads = 1;; reads++) {
        renew();
        kept = reads >= most_reads;
        uint64 noted = validity.noted;
        Row row = {};
        bool found = load_row(row);
        Queue queue = found ? from_row(row) : Queue{};
        bool as_read = !found || (validity.holds(noted) && (kept || generation_now() == noted));
        kept = false;
        if (as_read)
            return found ? remember(queue) : nullptr;
        CHECK_FOR_INTERRUPTS();
    }
}

/* The id for a new queue: refuses one that another name has. Only a key that has become known makes that possible. */
int64
new_id(std::string_view name)
{
    int64 id = name_hash(name);
    Row other = {};
    if (load(store::Idx::queue_id, F_INT8EQ, Int64GetDatum(id), other) && view(other.name) != name)
        raise(Code::invalid_queue, Details().add("field", "queue").add("queue", name).add("reason", "id_taken"),
              "Choose another name.", "queue \"%s\" would have the id of another queue", clipped(name));
    return id;
}

/* Any deliberate setting is newer than -infinity, and than the revision that follows the drop of a queue. */
void
make(std::string_view name, int64 id, TimestampTz revised_at, const Queue *dropped)
{
    ObjectBuilder config;
    for (int i = 0; dropped != nullptr && i < n_rights; i++) /* its jobs are still there to be seen */
        if (dropped->roles[i] != nullptr)
            config.add(role_settings[i], dropped->roles[i]);
    store::Table table = store::open(store::Rel::queue, RowExclusiveLock);
    TimestampTz at = now();
    Datum values[n_cols];
    bool nulls[n_cols] = {};

    values[col_id] = Int64GetDatum(id);
    values[col_name] = PointerGetDatum(cstring_to_text_with_len(name.data(), static_cast<int>(name.size())));
    values[col_state] = CStringGetTextDatum("active");
    values[col_created_at] = TimestampTzGetDatum(at);
    values[col_revised_at] = TimestampTzGetDatum(revised_at);
    values[col_config] = JsonbPGetDatum(config.finish());
    HeapTuple tuple = heap_form_tuple(RelationGetDescr(table.rel), values, nulls);
    store::insert(table, tuple);
    const TenantSettings *tenant = has_tenants() ? settings_of_tenant(tenant_in(name)) : nullptr;
    if (revised_at != DT_NOBEGIN || (tenant != nullptr && tenant->bounds_pushes()))
        CacheInvalidateRelcache(table.rel); /* sessions may know it as deleted, or count what its tenant has */
    else if (!tenant_in(name).empty())
        store::say_new_name();
    else
        name_here = true; /* claims may wait for it */
    store::close(table);
    CommandCounterIncrement();
    made_here = true;
}

} // namespace

/* The queue of this name, deleted or not. */
static const Queue *
look_up(std::string_view name)
{
    char key[max_queue_name + 1] = {};
    if (name.empty() || name.size() > max_queue_name || name.front() == '_')
        return nullptr;
    memcpy(key, name.data(), name.size());

    renew();
    auto *entry = static_cast<Queue *>(hash_search(cache, key, HASH_FIND, nullptr));
    return entry != nullptr ? entry : read_queue([name](Row &row) { return load_named(name, row); });
}

const Queue *
find_queue(std::string_view name)
{
    return find_stored_queue(stored_queue(name));
}

const Queue *
find_stored_queue(std::string_view name)
{
    const Queue *queue = look_up(name);
    return queue != nullptr && queue->state != QueueState::deleted ? queue : nullptr;
}

const Queue *
find_queue(int64 id)
{
    renew();
    auto *entry = static_cast<ById *>(hash_search(cache_by_id, &id, HASH_FIND, nullptr));
    return entry != nullptr
               ? entry->queue
               : read_queue([id](Row &row) { return load(store::Idx::queue_id, F_INT8EQ, Int64GetDatum(id), row); });
}

const Queue *
queue_for_push(std::string_view name)
{
    name = stored_queue(name);
    if (settings.strict_queues) {
        const Queue *queue = find_stored_queue(name);
        if (queue == nullptr && (tenant_in(name).empty() || find_stored_queue(shown_queue(name)) == nullptr))
            raise_no_queue(shown_queue(name));
        if (queue != nullptr)
            return queue;
    }
    return queue_to_move_to(name);
}

const Queue *
queue_to_move_to(std::string_view name)
{
    const Queue *queue = look_up(name);
    if (queue != nullptr && queue->state != QueueState::deleted)
        return queue;
    bool dropped = queue != nullptr;
    make(name, dropped ? queue->id : new_id(name), dropped ? queue->revised_at + 1 : DT_NOBEGIN,
         dropped ? queue : nullptr);
    return look_up(name); /* another session may have made it meanwhile, too, and have set it up */
}

int64
queue_id(std::string_view name)
{
    return stored_queue_id(stored_queue(name));
}

int64
stored_queue_id(std::string_view name)
{
    const Queue *queue = look_up(name);
    return queue != nullptr ? queue->id : name_hash(name);
}

const Jsonb *
default_policy()
{
    for (int reads = 1;; reads++) {
        renew();
        if (policy_known)
            return policy;
        Row row = {};
        bool found = load_named(default_policy_name, row);
        CHECK_FOR_INTERRUPTS();
        if (!validity.holds(generation_now()) && !kept && reads < most_reads) /* changed meanwhile */
            continue;
        if (found && row.state != QueueState::deleted) {
            void *copy = MemoryContextAlloc(context, VARSIZE(row.config));
            policy = static_cast<Jsonb *>(memcpy(copy, row.config, VARSIZE(row.config)));
        }
        policy_known = true;
        return policy;
    }
}

void
queue_init()
{
    RegisterXactCallback(queue_xact, nullptr);
    RegisterSubXactCallback(queue_subxact, nullptr);
}

} // namespace ojs

using namespace ojs;

/* ojs_store.new_queue_id(name text) returns bigint */
OJS_FUNCTION(ojs_new_queue_id)
{
    PG_RETURN_INT64(new_id(view(PG_GETARG_TEXT_PP(0))));
}
