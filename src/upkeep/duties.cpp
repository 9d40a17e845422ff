/*
 * duties.cpp: how the duties of upkeep are doing; see duties.h.
 */
#include "ojs/upkeep/duties.h"

#include "ojs/shared/shmem.h"

namespace ojs
{

namespace
{

constexpr const char *names[n_duties] = {
    "hot_set",          "reap",         "dead_workers", "promote",        "workflows", "deduplication_keys",
    "idempotency_keys", "events",       "backpressure", "event_notices",  "retention", "dead_letters",
    "unique_keys",      "lease_log",    "queues",       "workers",        "hooks",     "rate_limits",
    "replay",           "webhooks",     "cron",         "priority_aging", "reconcile", "wake_up",
    "recount",          "notifications"};
static_assert(names[n_duties - 1] != nullptr);

struct Slot {
    Oid database; /* another one's: the slot has changed hands, and says nothing */
    DutyState states[n_duties];
};

Slot *slots; /* by the database's slot in `shared`, under shared->lock; null without preload */
Slot own;    /* of this session, where there are none or no slot is free */

/* Under the lock, where there is one. */
Slot &
slot_of(Database *database)
{
    Slot &slot = database == nullptr || slots == nullptr ? own : slots[database - shared->databases];
    if (slot.database != MyDatabaseId) {
        memset(static_cast<void *>(&slot), 0, sizeof slot);
        slot.database = MyDatabaseId;
    }
    return slot;
}

template <typename Body>
void
with_slot(Body body)
{
    Database *database = my_database();
    if (database == nullptr)
        return body(slot_of(nullptr));
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    body(slot_of(database));
    LWLockRelease(shared->lock);
}

} // namespace

const char *
duty_name(Duty duty)
{
    return names[static_cast<int>(duty)];
}

Size
duties_size()
{
    return mul_size(max_databases, sizeof(Slot));
}

void
duties_startup(bool found)
{
    bool found_slots;
    slots = static_cast<Slot *>(ShmemInitStruct("ojs duties", duties_size(), &found_slots));
    if (!found)
        memset(static_cast<void *>(slots), 0, duties_size());
}

void
read_duty_states(DutyState (&states)[n_duties])
{
    with_slot([&](Slot &slot) { std::copy(std::begin(slot.states), std::end(slot.states), std::begin(states)); });
}

void
duty_succeeded(Duty duty, bool more)
{
    TimestampTz at = GetCurrentTimestamp();
    bool failed = false;
    with_slot([&](Slot &slot) {
        DutyState &state = slot.states[static_cast<int>(duty)];
        failed = state.failing_since != 0;
        state.failing_since = 0;
        state.more = more;
        state.good_at = at;
    });
    if (failed)
        ereport(LOG, (errmsg("ojs: upkeep duty \"%s\" succeeds again", duty_name(duty))));
}

void
duty_failed(Duty duty, const ErrorData &error)
{
    TimestampTz at = GetCurrentTimestamp();
    const char *message = error.message != nullptr ? error.message : "";
    bool known = false;
    with_slot([&](Slot &slot) {
        DutyState &state = slot.states[static_cast<int>(duty)];
        known = state.failing_since != 0 && state.sqlstate == error.sqlerrcode;
        if (state.failing_since == 0)
            state.failing_since = at;
        state.failures++;
        state.sqlstate = error.sqlerrcode;
        int n = pg_mbcliplen(message, static_cast<int>(strlen(message)), sizeof state.message - 1);
        memcpy(state.message, message, n);
        state.message[n] = '\0';
    });
    if (!known)
        ereport(WARNING,
                (errcode(error.sqlerrcode), errmsg("ojs: upkeep duty \"%s\" failed: %s", duty_name(duty), message),
                 error.detail != nullptr ? errdetail_internal("%s", error.detail) : 0,
                 errhint("Other duties go on, and this one is tried again. See ojs.health().")));
}

bool
ends_the_call(const ErrorData &error)
{
    return error.sqlerrcode == ERRCODE_QUERY_CANCELED || error.sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE ||
           ERRCODE_TO_CATEGORY(error.sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION;
}

} // namespace ojs
