/*
 * fair_look.cpp: see fair_look.h.
 */
#include "ojs/claim/fair_look.h"

#include "ojs/claim/filled.h"
#include "ojs/counters/queue_counters.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/access.h"
#include "ojs/queue/tenant.h"
#include "ojs/queue/tenant_settings.h"
#include "ojs/shared/part_news.h"

namespace ojs
{

namespace
{

constexpr int64 look_every_us = 200 * 1000;
constexpr int max_looks = 256; /* queues that a session remembers */
constexpr int most_out_of_turn = 15;
constexpr int64 rest_per_look = 50; /* a look that takes long is made less often: it costs 2 % at most */

MemoryContext looks_context;
HTAB *looks; /* FairLook */

void
read_ids(FairLook &look)
{
    constexpr int id_column = 1;
    auto text_datum = [](const char *text) { return CStringGetTextDatum(text); };
    std::string_view whole = look.name;
    int room = 16;
    if (look.ids != nullptr)
        pfree(look.ids);
    look.ids = nullptr;
    look.n_ids = 0;
    look.ids = static_cast<int64 *>(MemoryContextAlloc(looks_context, sizeof(int64) * room));
    look.ids[look.n_ids++] = stored_queue_id(whole);
    store::Table table = store::open(store::Rel::queue, AccessShareLock);
    Relation index = index_open(store::index_oid(store::Idx::queue_name), AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    IndexScanDesc scan = index_begin(table.rel, index, snapshot, 2);
    ScanKeyData keys[2];
    ScanKeyEntryInitialize(&keys[0], 0, 1, BTGreaterStrategyNumber, InvalidOid, C_COLLATION_OID, F_TEXT_GT,
                           text_datum(psprintf("%s@", whole.data())));
    ScanKeyEntryInitialize(&keys[1], 0, 1, BTLessStrategyNumber, InvalidOid, C_COLLATION_OID, F_TEXT_LT,
                           text_datum(psprintf("%sA", whole.data()))); /* A follows @ */
    index_rescan(scan, keys, 2, nullptr, 0);
    while (index_getnext_slot(scan, ForwardScanDirection, table.slot)) {
        bool null;
        CHECK_FOR_INTERRUPTS();
        if (look.n_ids == room)
            look.ids = static_cast<int64 *>(repalloc_huge(look.ids, sizeof(int64) * (room *= 2)));
        look.ids[look.n_ids++] = DatumGetInt64(slot_getattr(table.slot, id_column, &null));
    }
    index_endscan(scan);
    UnregisterSnapshot(snapshot);
    index_close(index, AccessShareLock);
    store::close_and_unlock(table, AccessShareLock);
    std::sort(look.ids, look.ids + look.n_ids);
    look.n_ids = static_cast<int>(std::unique(look.ids, look.ids + look.n_ids) - look.ids);
}

/* The parts of the last look that have given what was asked of them, in the order of their ids. */
FilledQueue *
known_to(const FairLook &look, int *n)
{
    auto *known = static_cast<FilledQueue *>(palloc(sizeof(FilledQueue) * std::max(look.n, 1)));
    *n = 0;
    for (int i = look.first; i < look.n; i++)
        if (look.parts[i].weight > 0)
            known[(*n)++] = {look.parts[i].queue, look.parts[i].npriority};
    std::sort(known, known + *n, [](const FilledQueue &a, const FilledQueue &b) { return a.queue < b.queue; });
    return known;
}

void
note_fresh(FairLook &look, int64 queue)
{
    if (std::find(look.fresh, look.fresh + look.n_fresh, queue) != look.fresh + look.n_fresh)
        return;
    if (look.n_fresh == max_fresh)
        std::copy(look.fresh + 1, look.fresh + look.n_fresh--, look.fresh);
    look.fresh[look.n_fresh++] = queue;
}

void
look_again(FairLook &look)
{
    int64 from_us = steady_us();
    int n = 0;
    bool knows = look.parts != nullptr && look.role == GetUserId();
    look.heard = part_news();
    renew_ids(look);
    Tables tables(AccessShareLock);
    auto *filled =
        static_cast<FilledQueue *>(MemoryContextAllocHuge(CurrentMemoryContext, sizeof(FilledQueue) * look.n_ids));
    const FilledQueue *known = known_to(look, &n);
    int n_filled = filled_queues(tables, look.ids, look.n_ids, known, n, filled);
    tables.close_and_unlock();

    for (void *old : {static_cast<void *>(look.parts), static_cast<void *>(look.upto)})
        if (old != nullptr)
            pfree(old);
    look.parts = nullptr;
    look.upto = nullptr;
    look.n = look.first = look.end = 0;
    look.summed = false;
    look.room = n_filled + 16;
    look.parts = static_cast<FairPart *>(MemoryContextAllocHuge(looks_context, sizeof(FairPart) * look.room));
    look.upto = static_cast<int64 *>(MemoryContextAllocHuge(looks_context, sizeof(int64) * look.room));
    for (int i = 0; i < n_filled; i++) {
        const Queue *queue = find_queue(filled[i].queue);
        if (queue == nullptr || !may_claim_part(*queue) || queue->state == QueueState::paused)
            continue;
        look.parts[look.n++] = {queue->id, weight_of(*queue), filled[i].npriority};
        if (knows && (known_as(known, n, queue->id) == nullptr || ready_jobs(queue->id) == 1))
            note_fresh(look, queue->id);
    }
    pfree(filled);
    std::sort(look.parts, look.parts + look.n, [](const FairPart &a, const FairPart &b) {
        return a.npriority != b.npriority ? a.npriority < b.npriority : a.queue < b.queue;
    });
    look.role = GetUserId();
    look.settings = tenant_settings_generation();
    int64 at_us = steady_us();
    look.next_us = at_us + std::max(look_every_us, (at_us - from_us) * rest_per_look);
}

/* Puts a part in that has none of its jobs there, behind those of its priority. */
void
add_part(FairLook &look, const FairPart &part)
{
    FairPart *end = std::remove_if(look.parts, look.parts + look.n,
                                   [&part](const FairPart &one) { return one.queue == part.queue; });
    look.n = static_cast<int>(end - look.parts);
    if (look.n == look.room) {
        int room = look.room * 2;
        look.parts = static_cast<FairPart *>(repalloc_huge(look.parts, sizeof(FairPart) * room));
        look.upto = static_cast<int64 *>(repalloc_huge(look.upto, sizeof(int64) * room));
        look.room = room;
        end = look.parts + look.n;
    }
    FairPart *to =
        std::find_if(look.parts, end, [&part](const FairPart &one) { return one.npriority > part.npriority; });
    std::copy_backward(to, end, end + 1);
    *to = part;
    look.n++;
    look.first = 0;
    look.summed = false;
}

/* Parts that have got jobs since the last look. They pass for ones of the default priority: one that has none of these
 * moves on when its turn has come. */
void
hear_news(FairLook &look)
{
    int64 last = 0;
    if (look.heard != part_news())
        renew_ids(look);
    each_part_news(look.heard, [&look, &last](int64 queue) {
        bool again = queue == last;
        last = queue;
        if (again || !std::binary_search(look.ids, look.ids + look.n_ids, queue))
            return;
        int64 ready = ready_jobs(queue);
        bool is_known = std::any_of(look.parts, look.parts + look.n,
                                    [queue](const FairPart &one) { return one.queue == queue && one.weight > 0; });
        if (ready == 0 || (is_known && ready != 1))
            return;
        const Queue *found = is_known ? nullptr : find_queue(queue);
        if (!is_known && (found == nullptr || !may_claim_part(*found) || found->state == QueueState::paused))
            return;
        if (!is_known)
            add_part(look, {queue, weight_of(*found), 0});
        note_fresh(look, queue);
    });
}

} // namespace

void
renew_ids(FairLook &look)
{
    look.names.refresh(store::queue_names_generation(), [&look] { read_ids(look); });
}

FairLook &
look_of(std::string_view whole)
{
    char key[max_queue_name + 1] = {};
    bool found;
    memcpy(key, whole.data(), std::min(whole.size(), max_queue_name));
    if (looks != nullptr && hash_get_num_entries(looks) >= max_looks &&
        hash_search(looks, key, HASH_FIND, nullptr) == nullptr) {
        MemoryContextDelete(looks_context);
        looks = nullptr;
    }
    if (looks == nullptr) {
        looks_context = AllocSetContextCreate(TopMemoryContext, "ojs fair claims", ALLOCSET_SMALL_SIZES);
        HASHCTL control = {};
        control.keysize = max_queue_name + 1;
        control.entrysize = sizeof(FairLook);
        control.hcxt = looks_context;
        looks = hash_create("ojs fair claims", 16, &control, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
    }
    auto *look = static_cast<FairLook *>(hash_search(looks, key, HASH_ENTER, &found));
    if (!found) {
        *look = {};
        memcpy(look->name, key, sizeof key);
    }
    return *look;
}

bool
may_claim_part(const Queue &queue)
{
    return queue.state != QueueState::deleted && !queue.is_log && may_use_queue(queue, Right::work);
}

int32
weight_of(const Queue &queue)
{
    const TenantSettings *set = settings_of_tenant(tenant_in(queue.name));
    return set != nullptr ? set->weight : 1;
}

void
renew_look(FairLook &look)
{
    if (look.parts == nullptr || look.role != GetUserId() || look.settings != tenant_settings_generation() ||
        steady_us() >= look.next_us)
        look_again(look);
    else
        hear_news(look);
}

void
forget_empty(FairLook &look)
{
    int left = 0;
    for (int i = 0; i < look.n_fresh; i++) {
        bool served = look.fresh[i] == look.served;
        bool empty = seems_empty(look.fresh[i]);
        for (int at = 0; empty && at < look.n; at++)
            if (look.parts[at].queue == look.fresh[i] && look.parts[at].weight > 0) {
                look.parts[at].weight = 0;
                look.summed = false;
            }
        if (!served && !empty)
            look.fresh[left++] = look.fresh[i];
    }
    look.n_fresh = left;
    look.served = 0;
}

int
fresh_part(FairLook &look)
{
    for (int i = 0; i < look.n_fresh && look.out_of_turn < most_out_of_turn; i++)
        for (int at = look.first; at < look.end; at++)
            if (look.parts[at].queue == look.fresh[i] && look.parts[at].weight > 0) {
                look.served = look.fresh[i];
                look.out_of_turn++;
                return at;
            }
    look.out_of_turn = 0;
    return -1;
}

} // namespace ojs
