/*
 * client_workers.cpp: workers by their beats, and who of them takes no new jobs.
 */
#include "ojs/state/client_workers.h"

#include "ojs/pg/args.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/tenant.h"
#include "ojs/job/envelope.h"
#include "ojs/store/spi.h"
#include "ojs/store/small_table.h"
#include "ojs/state/worker_versions.h"

namespace ojs
{

namespace
{

/* Columns of ojs_store.worker. */
enum { col_name, col_directive, col_state, n_looked_at };

/* Names of the workers that are to take nothing, sorted; read anew when the table says that it changed. */
store::SessionRows<const char *> stopped;

/*
 * A row that another transaction is at (somebody is telling this worker something) is left as it is: no beat waits for
 * that. What it would have said comes with the next one.
 */
constexpr char note_beat_sql[] = R"sql(
    with noted as (
        update ojs_store.worker w
        set state = coalesce($2, w.state), seen_at = $4, beats = true, died_at = null,
            registered_by = case when w.died_at is null then coalesce(w.registered_by, $5) else $5 end,
            info = coalesce(case when octet_length((w.info || $3)::text) <= 16384 then w.info || $3 end, $3, w.info),
            directive = case when w.directive = 'running' and coalesce($2, w.state) = 'running' then null
                else w.directive end
        from (select ctid as at, state as was, died_at, info -> 'handlers' as handlers
            from ojs_store.worker where name = $1
            for update skip locked) known
        where w.ctid = known.at and (w.registered_by = $5 or ojs_store.owns_worker(w, $5))
        returning directive, state, state = 'quiet' and was <> 'quiet' as calms_down, known.died_at is not null
            as revives,
            beats_for_jobs, w.info -> 'handlers' is distinct from known.handlers as other_handlers
    )
    select directive, state, calms_down, revives, beats_for_jobs, true, other_handlers from noted
    union all
    select directive, state, false, false, beats_for_jobs, ojs_store.owns_worker(w, $5), false from ojs_store.worker w
    where name = $1 and not exists (select from noted)
)sql";
constinit Statement note_known = {note_beat_sql, {TEXTOID, TEXTOID, JSONBOID, TIMESTAMPTZOID, TEXTOID}, nullptr};

constinit Statement note_new = {
    "insert into ojs_store.worker (name, state, info, registered_at, seen_at, beats, registered_by)"
    " select $1, coalesce($2, 'running'), coalesce($3, '{}'), $4, $4, true, $5"
    /* has_room_for_worker(), which version 0.1.0 has not: this library serves its functions until they are updated */
    " where (select count(*) from (select from ojs_store.worker limit 50000) w) < 50000"
    " or (select count(*) from (select from ojs_store.worker w where w.registered_by = $5 limit 50000) w) < 50000"
    " on conflict (name) do nothing returning directive, state, state = 'quiet', true, false, true, info ? 'handlers'",
    {TEXTOID, TEXTOID, JSONBOID, TIMESTAMPTZOID, TEXTOID},
    nullptr};

constinit Statement note_jobs = {"update ojs_store.worker set beats_for_jobs = true where ctid = any (array("
                                 "select ctid from ojs_store.worker where name = $1 for update skip locked))",
                                 {TEXTOID},
                                 nullptr};

constexpr char record_quiet_sql[] = R"sql(
    select ojs_store.record_event('worker.quiet', $1, jsonb_build_object('worker_id', $1,
        'active_jobs', (select count(*) from ojs_store.lease where worker = $1)))
)sql";
constinit Statement record_quiet = {record_quiet_sql, {TEXTOID}, nullptr};
constinit Statement record_started = {"select ojs_store.record_started($1)", {TEXTOID}, nullptr};

/*
 * The dead after a day; those that never sent a heartbeat, and perhaps still heed what they were told, after 30 days.
 */
constexpr char forget_silent_sql[] = R"sql(
    delete from ojs_store.worker where ctid = any (array(
        select ctid from ojs_store.worker
        where seen_at < $1 - case when died_at is null then interval '30 days' else interval '1 day' end
            and (died_at is not null or not beats)
        for update skip locked))
)sql";
constinit Statement forget_silent = {forget_silent_sql, {TIMESTAMPTZOID}, nullptr};
constexpr int max_info_size = 16384; /* bytes, as in ojs.register_worker */
constexpr int64 forget_every_us = 60 * USECS_PER_SEC;
TimestampTz forgotten_at;

bool
keep_stopped(const Datum *values, const bool *nulls, const char *&name)
{
    bool directed = !nulls[col_directive] && view(DatumGetTextPP(values[col_directive])) != "running";
    if (!directed && view(DatumGetTextPP(values[col_state])) == "running")
        return false;
    name = text_to_cstring(DatumGetTextPP(values[col_name]));
    return true;
}

} // namespace

bool
worker_stopped(const text *worker)
{
    if (stopped.refresh(store::Rel::worker, n_looked_at, keep_stopped))
        std::sort(stopped.begin(), stopped.end(), [](const char *a, const char *b) { return strcmp(a, b) < 0; });
    if (stopped.n == 0)
        return false;
    worker = stored_worker(worker);
    return std::binary_search(stopped.begin(), stopped.end(), view(worker),
                              [](std::string_view a, std::string_view b) { return a < b; });
}

Beat
note_beat(text *worker, text *state, Jsonb *info, TimestampTz now)
{
    std::string_view said = state != nullptr ? view(state) : std::string_view();
    if (said == "drain") /* R-65 */
        state = cstring_to_text("quiet");
    else if (state != nullptr && said != "running" && said != "quiet" && said != "terminate")
        raise_field(Code::invalid_payload, "state", "Use running, quiet or terminate.",
                    "\"%s\" is not a state of a worker", clipped(said));
    if (info != nullptr && !JB_ROOT_IS_OBJECT(info))
        raise_field(Code::invalid_payload, "info", "Give a JSON object.", "info must be an object");
    if (info != nullptr && VARSIZE(info) > max_info_size)
        raise_field(Code::payload_too_large, "info", "Keep what is large elsewhere, and name the place.",
                    "info must not be longer than %d bytes", max_info_size);

    check_handlers(info);
    const text *name = stored_worker(worker);
    Beat beat = {"running", false};
    bool stops = false;
    bool other_handlers = false;
    Datum role = CStringGetTextDatum(GetUserNameFromId(GetUserId(), false));
    MemoryContext caller = CurrentMemoryContext;
    with_spi([&] {
        std::initializer_list<SpiArg> args = {
            PointerGetDatum(name), state != nullptr ? SpiArg(PointerGetDatum(state)) : nullptr,
            info != nullptr ? SpiArg(PointerGetDatum(info)) : nullptr, TimestampTzGetDatum(now), role};
        if (execute_latest(note_known, args) == 0 && execute_latest(note_new, args) == 0)
            return; /* just registered by another session; or there are too many, and it is not listed */
        bool none;
        if (!DatumGetBool(cell(0, 6, &none)))
            raise(Code::permission_denied,
                  Details().add("worker", clipped(view(worker))).add("reason", "worker_of_another_role"),
                  "Choose another name, or have the role that registered it deregister it.",
                  "worker \"%s\" belongs to another role", clipped(view(worker)));
        Datum directive = cell(0, 1, &none);
        std::string_view is = view(DatumGetTextPP(cell(0, 2, &stops)));
        /* Without a word from the server it goes on as it said; and there is no way back from terminate. */
        std::string_view answer = none || is == "terminate" ? is : view(DatumGetTextPP(directive));
        stops = answer != "running" || is != "running";
        beat.directive = MemoryContextStrdup(caller, pnstrdup(answer.data(), answer.size()));
        beat.for_jobs = DatumGetBool(cell(0, 5, &none));
        other_handlers = DatumGetBool(cell(0, 7, &none));
        bool calms_down = DatumGetBool(cell(0, 3, &none));
        bool starts = DatumGetBool(cell(0, 4, &none)); /* new, or back from the dead */
        if (starts)
            (void)execute_latest(record_started, {PointerGetDatum(name)});
        if (calms_down)
            (void)execute_latest(record_quiet, {PointerGetDatum(name)});
    });
    /* Claims keep a list of those that are stopped: it is outdated where this beat joins or leaves them. */
    if (other_handlers || stops != worker_stopped(worker))
        CacheInvalidateRelcacheByRelid(store::relation_oid(store::Rel::worker));
    return beat;
}

void
note_beat_for_jobs(text *worker)
{
    with_spi([&] { (void)execute_latest(note_jobs, {PointerGetDatum(stored_worker(worker))}); });
}

void
forget_workers(TimestampTz now)
{
    if (now >= forgotten_at && now - forgotten_at < forget_every_us)
        return;
    uint64 n = 0;
    with_spi([&] { n = execute_latest(forget_silent, {TimestampTzGetDatum(now)}); });
    if (n > 0)
        CacheInvalidateRelcacheByRelid(store::relation_oid(store::Rel::worker));
    forgotten_at = now;
}

} // namespace ojs
