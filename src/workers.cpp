/*
 * workers.cpp: workers by their beats, and who of them takes no new jobs.
 */
#include "ojs/workers.h"

#include "ojs/args.h"
#include "ojs/guc.h"
#include "ojs/spi.h"
#include "ojs/store.h"

namespace ojs
{

namespace
{

/* Columns of ojs_store.worker. */
enum { col_name, col_directive, col_state, n_looked_at };

/* Names of the workers that are to take nothing, zero-terminated; read anew when the table says that it changed. */
MemoryContext stopped_context;
const char **stopped;
int n_stopped;
uint64 stopped_generation;
bool stopped_known;

constinit Statement upsert_beat = {
    "insert into ojs_store.worker as w (name, state, info, registered_at, seen_at, beats)"
    " values ($1, coalesce($2, 'running'), coalesce($3, '{}'), $4, $4, true)"
    " on conflict (name) do update set state = coalesce($2, w.state), info = coalesce($3, w.info), seen_at = $4,"
    " beats = true"
    " returning directive, state",
    {TEXTOID, TEXTOID, JSONBOID, TIMESTAMPTZOID},
    nullptr};

void
load_stopped()
{
    stopped_known = false;
    if (stopped_context == nullptr)
        stopped_context = AllocSetContextCreate(TopMemoryContext, "ojs stopped workers", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(stopped_context);
    stopped = nullptr;
    n_stopped = 0;
    uint64 generation = store::catalog_generation(store::Rel::worker);

    store::Table table = store::open(store::Rel::worker, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    int room = 0;
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        slot_getsomeattrs(table.slot, n_looked_at);
        std::string_view directive = view(DatumGetTextPP(table.slot->tts_values[col_directive]));
        std::string_view state = view(DatumGetTextPP(table.slot->tts_values[col_state]));
        if (directive == "running" && state == "running")
            continue;
        MemoryContext old = MemoryContextSwitchTo(stopped_context);
        if (n_stopped == room) {
            room = std::max(8, room * 2);
            auto **wider = static_cast<const char **>(palloc(sizeof(char *) * room));
            if (n_stopped > 0)
                memcpy(wider, stopped, sizeof(char *) * n_stopped);
            stopped = wider;
        }
        stopped[n_stopped++] = text_to_cstring(DatumGetTextPP(table.slot->tts_values[col_name]));
        MemoryContextSwitchTo(old);
    }
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    store::close_and_unlock(table, AccessShareLock);
    stopped_generation = generation;
    stopped_known = true;
}

} // namespace

bool
worker_stopped(const text *worker)
{
    if (!stopped_known || stopped_generation != store::catalog_generation(store::Rel::worker))
        load_stopped();
    std::string_view name = view(worker);
    for (int i = 0; i < n_stopped; i++)
        if (name == stopped[i])
            return true;
    return false;
}

const char *
note_beat(text *worker, text *state, Jsonb *info, TimestampTz now)
{
    std::string_view said = state != nullptr ? view(state) : std::string_view();
    if (said == "drain") /* */
        state = cstring_to_text("quiet");
    else if (state != nullptr && said != "running" && said != "quiet" && said != "terminate")
        raise_field(Code::invalid_payload, "state", "Use running, quiet or terminate.",
                    "\"%.*s\" is not a state of a worker", static_cast<int>(said.size()), said.data());
    if (info != nullptr && !JB_ROOT_IS_OBJECT(info))
        raise_field(Code::invalid_payload, "info", "Give a JSON object.", "info must be an object");

    const char *directive = "running";
    bool stops = false;
    MemoryContext caller = CurrentMemoryContext;
    with_spi([&] {
        execute(upsert_beat, {PointerGetDatum(worker), state != nullptr ? SpiArg(PointerGetDatum(state)) : nullptr,
                              info != nullptr ? SpiArg(PointerGetDatum(info)) : nullptr, TimestampTzGetDatum(now)});
        bool is_null;
        stops = view(DatumGetTextPP(cell(0, 2, &is_null))) != "running";
        std::string_view told = view(DatumGetTextPP(cell(0, 1, &is_null)));
        directive = MemoryContextStrdup(caller, pnstrdup(told.data(), told.size()));
    });
    /* Claims keep a list of those that are stopped: it is outdated where this beat joins or leaves them. */
    if (stops != worker_stopped(worker) && strcmp(directive, "running") == 0)
        CacheInvalidateRelcacheByRelid(store::relation_oid(store::Rel::worker));
    return directive;
}

} // namespace ojs
