/*
 * hooks.cpp: see hooks.h.
 *
 * A hook runs as the role that registered it, on a search path that nobody can put anything into, and only as long as
 * that role may call the function. Each session keeps the chains; a change of the table, of a function, a schema or a
 * role drops them.
 */
#include "ojs/job/hooks.h"

#include "ojs/job/schema_registry.h"
#include "ojs/pg/args.h"
#include "ojs/pg/subtransaction.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/json.h"
#include "ojs/store/small_table.h"
#include "ojs/store/spi.h"
#include "ojs/pg/uuid.h"
#include "ojs/pg/session_cache.h"

namespace ojs
{

bool (*hook_may_see)(const JsonbContainer *job, bool at_push, Oid role);

namespace
{

constexpr int n_points = static_cast<int>(Point::count);
constexpr const char *point_names[n_points] = {"enqueue", "before_execute", "after_execute"};

MemoryContext context;  /* of what follows */
Hooks chains[n_points]; /* after_execute backwards: the first that was added is the outermost (MW-06) */
SessionCache cache;
bool any_known;        /* hooks are registered, so functions and roles matter */
uint64 changes_around; /* of functions and roles, as far as they matter */

constexpr int64 tidy_every_us = 60 * USECS_PER_SEC;
TimestampTz tidied_at; /* by this session */

constinit Statement read_hooks = {R"sql(
    select h.point, h.name, format('%I.%I(jsonb)', h.function_schema, h.function_name), h.role, p.oid, r.oid,
        nullif(pg_get_userbyid(p.proowner), h.function_owner)
    from ojs_store.hook h
    left join pg_namespace n on n.nspname = h.function_schema
    left join pg_proc p on p.pronamespace = n.oid and p.proname = h.function_name
        and p.pronargs = 1 and p.proargtypes[0] = 'jsonb'::regtype
    left join pg_roles r on r.rolname = h.role
    order by case when h.point = 'after_execute' then -h.position else h.position end
)sql",
                                  {},
                                  nullptr};

constinit Statement add_hook = {"select ojs_store.add_hook($1, $2, $3, $4, $5, $6)",
                                {TEXTOID, TEXTOID, REGPROCEDUREOID, TEXTOID, TEXTOID, NAMEOID},
                                nullptr};

constinit Statement note_failures = {
    "insert into ojs_store.hook_failure (hook, failures, failed_at, error) values ($1, $2, $3, $4)",
    {TEXTOID, INT8OID, TIMESTAMPTZOID, TEXTOID},
    nullptr};

constinit Statement add_up_failures = {R"sql(
    with taken as (
        delete from ojs_store.hook_failure where ctid = any (array(
            select f.ctid from ojs_store.hook_failure f
            where (select count(*) > count(distinct every.hook) from ojs_store.hook_failure every)
                or not exists (select from ojs_store.hook h where h.name = f.hook)
            for update skip locked))
        returning hook, failures, failed_at, error
    )
    insert into ojs_store.hook_failure (hook, failures, failed_at, error)
    select hook, sum(failures), max(failed_at), (array_agg(error order by failed_at desc))[1]
    from taken
    where exists (select from ojs_store.hook h where h.name = taken.hook)
    group by hook
)sql",
                                       {},
                                       nullptr};

extern "C" void
function_or_role_changed(Datum, int, uint32)
{
    changes_around += any_known || !cache.valid;
}

bool
any_registered()
{
    bool any = false;
    store::each_row(store::Rel::hook, [&](TupleTableSlot *) {
        any = true;
        return false;
    });
    return any;
}

const char *
kept_text(uint64 row, int column)
{
    const char *text = SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);
    return MemoryContextStrdup(context, text != nullptr ? text : "");
}

Oid
oid_in(uint64 row, int column)
{
    bool null;
    Datum value = cell(row, column, &null);
    return null ? InvalidOid : DatumGetObjectId(value);
}

void
keep_rows(uint64 n)
{
    for (Hooks &chain : chains)
        chain = {static_cast<Hook *>(MemoryContextAlloc(context, sizeof(Hook) * n)), 0};
    for (uint64 row = 0; row < n; row++) {
        const char *point = kept_text(row, 1);
        for (int i = 0; i < n_points; i++)
            if (strcmp(point, point_names[i]) == 0)
                chains[i].at[chains[i].n++] = {kept_text(row, 2),
                                               kept_text(row, 3),
                                               kept_text(row, 4),
                                               kept_text(row, 7),
                                               oid_in(row, 5),
                                               oid_in(row, 6),
                                               i == static_cast<int>(Point::enqueue),
                                               0,
                                               0};
    }
}

void
load()
{
    if (context == nullptr)
        context = AllocSetContextCreate(TopMemoryContext, "ojs hooks", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(context);
    std::fill(chains, chains + n_points, Hooks{});
    any_known = any_registered();
    if (any_known)
        with_spi([] { keep_rows(execute_latest(read_hooks)); });
}

extern "C" void
say_which(void *arg)
{
    errcontext("hook \"%s\"", static_cast<const Hook *>(arg)->name);
}

extern "C" void
say_hooks(void *)
{
    errcontext("the job as its enqueue hooks left it");
}

[[noreturn]] void
raise_broken(const Hook &hook, const char *what)
{
    raise(Code::unavailable, Details().add("hook", hook.name),
          psprintf("Mend that, or remove the hook: ojs.unregister_hook(%s).", quote_literal_cstr(hook.name)),
          "hook \"%s\" cannot run: %s", hook.name, what);
}

/*
 * A hook runs in the sessions of others, superusers and the background worker among them. What it leaves behind there
 * would run as they, after it: deferred triggers, temporary objects, prepared statements, cursors. PostgreSQL has the
 * same answer for functions of index expressions and for subscriptions. A session in which a role was taken on, as a
 * pool's are, goes on to serve others: it is the hook's own only if the hook's role has logged in.
 */
int
restriction(const Hook &hook, Oid user)
{
    bool own_session = hook.role_oid == user && hook.role_oid == GetSessionUserId() && hook.role_oid == MyProc->roleId;
    return own_session || superuser_arg(hook.role_oid) ? 0 : SECURITY_RESTRICTED_OPERATION;
}

/* Returns null if the hook returned null, or nothing. */
Jsonb *
call(Hook &hook, Jsonb *envelope, bool wants_result)
{
    if (!OidIsValid(hook.function_oid) || !SearchSysCacheExists1(PROCOID, ObjectIdGetDatum(hook.function_oid)))
        raise_broken(hook, psprintf("the function %s does not exist", hook.function));
    if (hook.stranger[0] != '\0')
        raise_broken(hook, psprintf("the function %s now belongs to the role \"%s\"", hook.function, hook.stranger));
    if (!OidIsValid(hook.role_oid))
        raise_broken(hook, psprintf("the role \"%s\" does not exist", hook.role));
    if (!may_execute(hook.role_oid, hook.function_oid))
        raise_broken(hook, psprintf("the role \"%s\" may not execute %s", hook.role, hook.function));
    if (!hook_may_see(root_of(envelope), hook.at_push, hook.role_oid))
        raise_broken(hook, psprintf("the role \"%s\" may not %s jobs of this queue", hook.role,
                                    hook.at_push ? "read and push" : "read"));

    ErrorContextCallback which = {error_context_stack, say_which, &hook};
    FmgrInfo function;
    PgStat_FunctionCallUsage usage;
    LOCAL_FCINFO(fcinfo, 1);
    Oid user;
    int security;
    Jsonb *result = nullptr;
    XLogRecPtr written = XactLastRecEnd;

    /* An error leaves all of this to the abort of the transaction, or of the subtransaction around the call. */
    error_context_stack = &which;
    GetUserIdAndSecContext(&user, &security);
    int settings_level = NewGUCNestLevel();
    SetUserIdAndSecContext(hook.role_oid, security | SECURITY_LOCAL_USERID_CHANGE | restriction(hook, user));
    set_for_body("search_path", "pg_catalog, pg_temp");
    fmgr_info(hook.function_oid, &function);
    InitFunctionCallInfoData(*fcinfo, &function, 1, DEFAULT_COLLATION_OID, nullptr, nullptr);
    fcinfo->args[0] = {JsonbPGetDatum(envelope), false};
    pgstat_init_function_usage(fcinfo, &usage);
    Datum returned = FunctionCallInvoke(fcinfo);
    pgstat_end_function_usage(&usage, true);
    if (XactLastRecEnd != written)
        store::note_write(true); /* whatever it wrote is not ours to lose */
    if (wants_result && !fcinfo->isnull)
        result = DatumGetJsonbP(returned);
    AtEOXact_GUC(false, settings_level); /* what a hook sets is not for the caller's statements */
    SetUserIdAndSecContext(user, security);
    error_context_stack = which.previous;
    return result;
}

/* What the hooks made of the job, read and validated. */
Envelope
read_again(const Envelope &received, const Jsonb *json, TimestampTz now)
{
    ErrorContextCallback hooked = {error_context_stack, say_hooks, nullptr};
    Envelope made = empty_envelope();

    error_context_stack = &hooked;
    made.checked_before = received.checked_before;
    envelope_from_json(json, now, false, made);
    if (!made.has_id || !same(made.id, received.id))
        raise_field(Code::invalid_payload, "id", "Let the hooks leave it as it is.",
                    "a hook must not change the id of a job");
    made.has_id = received.has_id;
    made.item = received.item;
    validate(made);
    if (made.unique_policy != nullptr && received.args != nullptr) {
        /* INT-01: the key is made of the args as they came, so that a hook may encrypt them. */
        Envelope as_received = made;
        as_received.args = received.args;
        as_received.queue = shown_queue(made.queue); /* validate() has named the tenant's part of it */
        validate(as_received);
        made.received_args = as_received.args;
    }
    check_schema_of(made, received.args != nullptr ? received.args : made.args);
    error_context_stack = hooked.previous;
    return made;
}

void
count_failure(Hook &hook, const ErrorData *error)
{
    hook.failures++;
    hook.sqlstate = error->sqlerrcode;
    /* The text may hold what is nobody else's business: only for who asks for it. */
    ereport(DEBUG1, (errmsg_internal("hook \"%s\": %s", hook.name, error->message)));
}

/* A failure of an execution hook is a failure of that hook only; but who cancels the call cancels the call. */
void
try_hook(Hook &hook, Jsonb *&envelope, bool wants_result)
{
    ErrorData *error = attempt([&] {
        Jsonb *result = call(hook, envelope, wants_result);
        if (result == nullptr)
            return;
        if (!is_object(result))
            raise_field(Code::invalid_payload, "job", "Return the job, or null.", "the hook must return an object");
        envelope = result;
    });
    if (error != nullptr && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
        ReThrowError(error);
    if (error != nullptr)
        count_failure(hook, error);
}

} // namespace

Hooks
hooks_at(Point point)
{
    cache.refresh(store::catalog_generation(store::Rel::hook) + changes_around, load);
    Hooks hooks = chains[static_cast<int>(point)];
    if (hooks.n == 0)
        return hooks;
    auto *copy = static_cast<Hook *>(palloc(sizeof(Hook) * hooks.n));
    for (int i = 0; i < hooks.n; i++) {
        copy[i] = hooks.at[i];
        for (const char **text : {&copy[i].name, &copy[i].function, &copy[i].role, &copy[i].stranger})
            *text = pstrdup(*text);
    }
    return {copy, hooks.n};
}

bool
admit_envelope(const Hooks &hooks, Envelope &envelope, TimestampTz now)
{
    if (hooks.n == 0) {
        validate(envelope);
        check_schema_of(envelope, envelope.args);
        return true;
    }
    assign_ids(&envelope, 1);
    Jsonb *json = request_json(envelope);
    if (!envelope.measured)
        check_envelope_size(root_of(json));
    for (int i = 0; i < hooks.n; i++) {
        json = call(hooks.at[i], json, true);
        if (json == nullptr)
            return false;
        if (!is_object(json))
            raise(Code::invalid_payload, Details().add("field", "job").add("hook", hooks.at[i].name),
                  "Let it return a job, or null to drop it.", "hook \"%s\" did not return a job", hooks.at[i].name);
    }
    error_item = envelope.item; /* a hook may have pushed jobs itself */
    envelope = read_again(envelope, json, now);
    return true;
}

void
before_execute(const Hooks &hooks, Datum *values, bool *nulls)
{
    Jsonb *envelope = envelope_json(values, nulls, true);
    for (int i = 0; i < hooks.n; i++) {
        Jsonb *before = envelope;
        try_hook(hooks.at[i], envelope, true);
        if (envelope != before && !take_changes(envelope, values, nulls)) {
            hooks.at[i].failures++;
            hooks.at[i].sqlstate = ERRCODE_INVALID_PARAMETER_VALUE;
            envelope = before;
        }
    }
}

void
after_execute(const Hooks &hooks, Jsonb *envelope)
{
    for (int i = 0; i < hooks.n; i++) {
        Jsonb *job = envelope;
        try_hook(hooks.at[i], job, false);
    }
}

void
report_failures(const Hooks &hooks, Point point)
{
    for (int i = 0; i < hooks.n; i++) {
        const Hook &hook = hooks.at[i];
        if (hook.failures == 0)
            continue;
        const char *state = unpack_sql_state(hook.sqlstate);
        with_spi([&] {
            execute(note_failures, {CStringGetTextDatum(hook.name), Int64GetDatum(hook.failures),
                                    TimestampTzGetDatum(now()), CStringGetTextDatum(state)});
        });
        ereport(WARNING,
                (errcode(hook.sqlstate),
                 errmsg("%s hook \"%s\" failed for %d of the jobs: SQLSTATE %s", point_names[static_cast<int>(point)],
                        hook.name, hook.failures, state),
                 errhint("The jobs are not affected. Call %s yourself to see why, or set client_min_messages = debug1.",
                         hook.function)));
    }
}

void
tidy_hooks(TimestampTz now)
{
    if (now >= tidied_at && now - tidied_at < tidy_every_us)
        return;
    with_spi([] { (void)execute_latest(add_up_failures); });
    tidied_at = now;
}

void
hooks_init()
{
    CacheRegisterSyscacheCallback(PROCOID, function_or_role_changed, 0);
    CacheRegisterSyscacheCallback(AUTHOID, function_or_role_changed, 0);
    CacheRegisterSyscacheCallback(NAMESPACEOID, function_or_role_changed, 0); /* a schema gets the name of another */
}

} // namespace ojs

using namespace ojs;

/* ojs.register_hook(name, point, function, place, other): for the role whose call it is, which no SQL function of
 * another's could tell. */
OJS_FUNCTION(ojs_register_hook)
{
    store::begin_write("ojs.register_hook()");
    NameData role = {};
    namestrcpy(&role, GetUserNameFromId(GetUserId(), false));
    auto arg = [fcinfo](int n) { return SpiArg(PG_ARGISNULL(n) ? SpiArg(nullptr) : SpiArg(PG_GETARG_DATUM(n))); };
    with_spi([&] { execute(add_hook, {arg(0), arg(1), arg(2), arg(3), arg(4), NameGetDatum(&role)}); });
    store::end_write();
    PG_RETURN_VOID();
}
