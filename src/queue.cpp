/*
 * queue.cpp: the session's cache of queues, and making a queue on its first push.
 */
#include "ojs/queue.h"

#include "ojs/error.h"
#include "ojs/guc.h"
#include "ojs/store.h"

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

HTAB *cache;             /* Queue by name */
HTAB *cache_by_id;       /* ById: leads into `cache` */
uint64 cache_generation; /* of the queue table when the cache was made */
bool made_here;          /* this transaction has made queues, which a rollback takes away again */

void
forget_all()
{
    if (cache != nullptr) {
        hash_destroy(cache);
        hash_destroy(cache_by_id);
    }
    cache = cache_by_id = nullptr;
}

extern "C" void
queue_xact(XactEvent event, void *)
{
    if (!made_here)
        return;
    if (event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
        forget_all();
    if (event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE || event == XACT_EVENT_COMMIT)
        made_here = false;
}

extern "C" void
queue_subxact(SubXactEvent event, SubTransactionId, SubTransactionId, void *)
{
    if (event == SUBXACT_EVENT_ABORT_SUB && made_here)
        forget_all();
}

HTAB *
cache_now()
{
    uint64 generation = store::catalog_generation(store::Rel::queue);
    if (cache != nullptr && generation != cache_generation)
        forget_all();
    if (cache == nullptr) {
        HASHCTL control = {};
        control.keysize = max_queue_name + 1;
        control.entrysize = sizeof(Queue);
        control.hcxt = TopMemoryContext;
        HTAB *by_name = hash_create("ojs queues", 64, &control, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
        control.keysize = sizeof(int64);
        control.entrysize = sizeof(ById);
        cache_by_id = hash_create("ojs queues by id", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
        cache = by_name;
        cache_generation = generation;
    }
    return cache;
}

int64
number_in(Jsonb *config, const char *key, int64 otherwise)
{
    JsonbValue value;
    if (getKeyJsonValueFromContainer(&config->root, key, strlen(key), &value) == nullptr || value.type != jbvNumeric)
        return otherwise;
    return DatumGetInt64(DirectFunctionCall1(numeric_int8, NumericGetDatum(value.val.numeric)));
}

bool
bool_in(Jsonb *config, const char *key, bool otherwise)
{
    JsonbValue value;
    if (getKeyJsonValueFromContainer(&config->root, key, strlen(key), &value) == nullptr || value.type != jbvBool)
        return otherwise;
    return value.val.boolean;
}

bool
text_is(Jsonb *config, const char *key, std::string_view expected)
{
    JsonbValue value;
    return getKeyJsonValueFromContainer(&config->root, key, strlen(key), &value) != nullptr &&
           value.type == jbvString && std::string_view(value.val.string.val, value.val.string.len) == expected;
}

Queue
from_row(TupleTableSlot *slot)
{
    slot_getallattrs(slot);
    Queue queue = {};
    text *name = DatumGetTextPP(slot->tts_values[col_name]);
    text *state = DatumGetTextPP(slot->tts_values[col_state]);
    std::string_view state_text(VARDATA_ANY(state), VARSIZE_ANY_EXHDR(state));
    Jsonb *config = DatumGetJsonbP(slot->tts_values[col_config]);

    queue.id = DatumGetInt64(slot->tts_values[col_id]);
    memcpy(queue.name, VARDATA_ANY(name), std::min<size_t>(VARSIZE_ANY_EXHDR(name), max_queue_name));
    queue.state = state_text == "paused"     ? QueueState::paused
                  : state_text == "draining" ? QueueState::draining
                                             : QueueState::active;
    queue.is_log = text_is(config, "type", "log");
    queue.expiry_counts_attempt = bool_in(config, "expiry_counts_attempt", true);
    queue.lease_ms = number_in(config, "lease_ms", 0);
    queue.max_deliveries = number_in(config, "max_deliveries", 0);
    return queue;
}

/* The newest revision of a queue by an index on one column. Not the statement's snapshot: what is committed now. */
bool
load(store::Idx index, RegProcedure equal, Datum key_value, Queue &queue)
{
    store::Table table = store::open(store::Rel::queue, AccessShareLock);
    Relation index_rel = index_open(store::index_oid(index), AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    IndexScanDesc scan = index_begin(table.rel, index_rel, snapshot, 1);
    ScanKeyData key;
    TimestampTz newest = DT_NOBEGIN;
    bool found = false;

    ScanKeyEntryInitialize(&key, 0, 1, BTEqualStrategyNumber, InvalidOid,
                           index == store::Idx::queue_name ? C_COLLATION_OID : InvalidOid, equal, key_value);
    index_rescan(scan, &key, 1, nullptr, 0);
    while (index_getnext_slot(scan, ForwardScanDirection, table.slot)) {
        slot_getallattrs(table.slot);
        TimestampTz revised = DatumGetTimestampTz(table.slot->tts_values[col_revised_at]);
        if (!found || revised > newest)
            queue = from_row(table.slot);
        newest = std::max(newest, revised);
        found = true;
    }
    index_endscan(scan);
    UnregisterSnapshot(snapshot);
    index_close(index_rel, NoLock);
    store::close_and_unlock(table, AccessShareLock);
    return found;
}

const Queue *
remember(const Queue &queue)
{
    auto *entry = static_cast<Queue *>(hash_search(cache_now(), queue.name, HASH_ENTER, nullptr));
    *entry = queue;
    static_cast<ById *>(hash_search(cache_by_id, &queue.id, HASH_ENTER, nullptr))->queue = entry;
    return entry;
}

/* A queue's id is made from its name, so that sessions which make it at the same time agree without waiting. */
int64
id_of(std::string_view name)
{
    return static_cast<int64>(
        hash_bytes_extended(reinterpret_cast<const unsigned char *>(name.data()), static_cast<int>(name.size()), 0));
}

Queue
make(std::string_view name)
{
    store::Table table = store::open(store::Rel::queue, RowExclusiveLock);
    TimestampTz at = now();
    Datum values[n_cols];
    bool nulls[n_cols] = {};

    values[col_id] = Int64GetDatum(id_of(name));
    values[col_name] = PointerGetDatum(cstring_to_text_with_len(name.data(), static_cast<int>(name.size())));
    values[col_state] = CStringGetTextDatum("active");
    values[col_created_at] = TimestampTzGetDatum(at);
    values[col_revised_at] = TimestampTzGetDatum(DT_NOBEGIN); /* any deliberate setting is newer */
    values[col_config] = DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"));
    HeapTuple tuple = heap_form_tuple(RelationGetDescr(table.rel), values, nulls);
    store::insert(table, tuple);
    ExecForceStoreHeapTuple(tuple, table.slot, false);
    Queue queue = from_row(table.slot);
    store::close(table);
    CommandCounterIncrement();
    made_here = true;
    return queue;
}

} // namespace

const Queue *
find_queue(std::string_view name)
{
    char key[max_queue_name + 1] = {};
    if (name.size() > max_queue_name)
        return nullptr;
    memcpy(key, name.data(), name.size());

    auto *entry = static_cast<Queue *>(hash_search(cache_now(), key, HASH_FIND, nullptr));
    if (entry != nullptr)
        return entry;
    Queue queue;
    Datum text_key = PointerGetDatum(cstring_to_text_with_len(name.data(), static_cast<int>(name.size())));
    return load(store::Idx::queue_name, F_TEXTEQ, text_key, queue) ? remember(queue) : nullptr;
}

const Queue *
find_queue(int64 id)
{
    cache_now();
    auto *entry = static_cast<ById *>(hash_search(cache_by_id, &id, HASH_FIND, nullptr));
    if (entry != nullptr)
        return entry->queue;
    Queue queue;
    return load(store::Idx::queue_id, F_INT8EQ, Int64GetDatum(id), queue) ? remember(queue) : nullptr;
}

const Queue *
queue_for_push(std::string_view name)
{
    const Queue *queue = find_queue(name);
    if (queue != nullptr)
        return queue;
    if (settings.strict_queues)
        raise_no_queue(name);
    return remember(make(name));
}

void
raise_no_queue(std::string_view name)
{
    raise(Code::not_found, Details().add("queue", name).add("reason", "topic_not_found"),
          "Push to the queue, or create it with ojs.create_queue(name).", "queue \"%.*s\" does not exist",
          static_cast<int>(name.size()), name.data());
}

void
queue_init()
{
    RegisterXactCallback(queue_xact, nullptr);
    RegisterSubXactCallback(queue_subxact, nullptr);
}

} // namespace ojs
