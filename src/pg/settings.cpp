/*
 * settings.cpp: defines the ojs.* settings, in alphabetical order.
 */
#include "ojs/pg/settings.h"

#include "ojs/pg/guard.h"

namespace ojs
{

Settings settings;
uint64 clock_generation;

namespace
{

constexpr config_enum_entry schema_modes[] = {
    {"off", schema_off, false}, {"warn", schema_warn, false}, {"strict", schema_strict, false}, {nullptr, 0, false}};

constexpr config_enum_entry tenancies[] = {{"off", tenancy_off, false},
                                           {"optional", tenancy_optional, false},
                                           {"required", tenancy_required, false},
                                           {nullptr, 0, false}};

extern "C" bool
check_tenant(char **value, void **, GucSource)
{
    if (**value == '\0' || is_tenant(*value))
        return true;
    GUC_check_errdetail("A tenant has 1 to 63 letters, digits, dots, underscores, colons or hyphens, and begins with a "
                        "letter or a digit.");
    return false;
}

/* Where there are no tenants, plans leave out what views ask (access.cpp). */
extern "C" void
tenancy_changed(int, void *)
{
    ResetPlanCache();
}

extern "C" void
clock_moved(double, void *)
{
    clock_generation++;
}

bool
is_ours(const config_generic *setting)
{
    return pg_strncasecmp(setting->name, "ojs.", 4) == 0;
}

/* The names that the client has given values on connecting, or those whose values are the client's or a SET's. */
List *
named(bool on_connecting)
{
    List *names = NIL;
    int n;
    config_generic **all = all_settings(&n);
    for (int i = 0; i < n; i++)
        if (is_ours(all[i]) && (on_connecting ? all[i]->reset_source == PGC_S_CLIENT : all[i]->source >= PGC_S_CLIENT))
            names = lappend(names, pstrdup(all[i]->name));
    return names;
}

/*
 * Ends a session that has given a setting a value which was refused, with a
 * warning, as the library was loaded: a client's, since it had taken the place
 * of what the database or the configuration says, and the default would count;
 * and whatever value of a setting that anyone may set, since a session whose
 * tenant is refused would act for none. Another SET is worth nothing anyhow.
 */
void
refuse_session(List *on_connecting, List *by_session)
{
    int n;
    config_generic **all = all_settings(&n);
    for (int i = 0; i < n; i++) {
        if (!is_ours(all[i]) || all[i]->source >= PGC_S_CLIENT)
            continue;
        ListCell *cell;
        foreach (cell, all[i]->context == PGC_USERSET ? by_session : on_connecting)
            if (pg_strcasecmp(all[i]->name, static_cast<char *>(lfirst(cell))) == 0)
                ereport(FATAL,
                        (errcode(all[i]->context == PGC_USERSET ? ERRCODE_INVALID_PARAMETER_VALUE
                                                                : ERRCODE_INSUFFICIENT_PRIVILEGE),
                         errmsg("this session may not set parameter \"%s\" to what it has said", all[i]->name),
                         errdetail("The value came before the library was loaded; the warning before this says why."),
                         errhint("Look at SET, at options in the connection string, and at PGOPTIONS.")));
    }
}

} // namespace

bool
is_tenant(std::string_view name)
{
    auto is_plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
    return !name.empty() && name.size() <= max_tenant && is_plain(name.front()) &&
           std::all_of(name.begin(), name.end(),
                       [&](char c) { return is_plain(c) || c == '.' || c == '_' || c == ':' || c == '-'; });
}

void
guc_init()
{
    List *on_connecting = named(true), *by_session = named(false);
    DefineCustomIntVariable("ojs.audit_retention", "How long the audit of administrators is kept.", nullptr,
                            &settings.audit_retention_s, 365 * 86400, 86400, INT_MAX, PGC_SUSET, GUC_UNIT_S, nullptr,
                            nullptr, nullptr);
    DefineCustomIntVariable("ojs.block_timeout",
                            "How long a push waits at the bound of a queue with overflow policy block.",
                            "-1 leaves it to the queue's block_timeout.", &settings.block_timeout_ms, -1, -1,
                            max_block_ms, PGC_USERSET, GUC_UNIT_MS, nullptr, nullptr, nullptr);
    DefineCustomRealVariable("ojs.clock_offset", "Moves the clock of ojs, for tests.", nullptr,
                             &settings.clock_offset_ms, 0, -1e14, 1e14, PGC_SUSET, GUC_UNIT_MS, nullptr, clock_moved,
                             nullptr);
    DefineCustomBoolVariable("ojs.conformance_mode", "Allows ojs.reset() and the directives of conformance cases.",
                             nullptr, &settings.conformance_mode, false, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ojs.deduplication_ttl", "How long a deduplication key is remembered by default.", nullptr,
                            &settings.deduplication_ttl_s, 3600, 1, INT_MAX, PGC_USERSET, GUC_UNIT_S, nullptr, nullptr,
                            nullptr);
    DefineCustomIntVariable("ojs.default_lease", "Length of a lease where neither claim, job nor queue gives one.",
                            nullptr, &settings.default_lease_ms, 30000, 100, 86400000, PGC_USERSET, GUC_UNIT_MS,
                            nullptr, nullptr, nullptr);
    DefineCustomStringVariable("ojs.default_tenant", "The tenant of jobs that name none.",
                               "Empty: they belong to no tenant. Counts where ojs.tenancy is not off.",
                               &settings.default_tenant, "", PGC_SUSET, 0, check_tenant, nullptr, nullptr);
    DefineCustomIntVariable("ojs.event_retention", "How long events that have rows of their own are kept.", nullptr,
                            &settings.event_retention_s, 7 * 86400, 0, INT_MAX, PGC_SUSET, GUC_UNIT_S, nullptr, nullptr,
                            nullptr);
    DefineCustomStringVariable("ojs.events_off", "Types of events that get no row of their own, such as worker.*.",
                               nullptr, &settings.events_off, "", PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ojs.http_lease", "Like ojs.default_lease, for fetches of ojs.http.", nullptr,
                            &settings.http_lease_ms, 1800000, 100, 86400000, PGC_USERSET, GUC_UNIT_MS, nullptr, nullptr,
                            nullptr);
    DefineCustomIntVariable("ojs.max_args_depth", "How deep args may be nested.", nullptr, &settings.max_args_depth, 32,
                            1, 1000, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ojs.max_args_elements", "How many values args may hold, at all levels together.", nullptr,
                            &settings.max_args_elements, 10000, 1, 10000000, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ojs.max_batch_size", "How many jobs one ojs.push_many call may bring.", nullptr,
                            &settings.max_batch_size, 10000, 1, 1000000, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ojs.max_envelope_size", "Largest job envelope, as JSON text.", nullptr,
                            &settings.max_envelope_size, 1024 * 1024, 1024, 10 * 1024 * 1024, PGC_SUSET, GUC_UNIT_BYTE,
                            nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ojs.max_events", "How many events that have rows of their own are kept.", nullptr,
                            &settings.max_events, 1000000, 1, INT_MAX, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ojs.max_meta_size", "Largest meta object of a job, as JSON text.", nullptr,
                            &settings.max_meta_size, 64 * 1024, 64, 10 * 1024 * 1024, PGC_SUSET, GUC_UNIT_BYTE, nullptr,
                            nullptr, nullptr);
    DefineCustomIntVariable("ojs.max_result_size", "Largest result of a job, as JSON text.", nullptr,
                            &settings.max_result_size, 1024 * 1024, 64 * 1024, 64 * 1024 * 1024, PGC_SUSET,
                            GUC_UNIT_BYTE, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ojs.max_workers", "How many background workers run at once in all databases.",
                            "-1 means half of max_worker_processes.", &settings.max_workers, -1, -1, 1000, PGC_SIGHUP,
                            0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ojs.node_id", "Number of this node, which ids made here carry.",
                            "0 leaves ids random. Each node of a cluster needs a number of its own.", &settings.node_id,
                            0, 0, max_node_id, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomBoolVariable("ojs.notify", "Sends NOTIFY when work may be waiting.", nullptr, &settings.notify, true,
                             PGC_USERSET, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ojs.notify_interval", "Shortest time between two NOTIFY for one queue.", nullptr,
                            &settings.notify_interval_ms, 10, 0, 60000, PGC_SIGHUP, GUC_UNIT_MS, nullptr, nullptr,
                            nullptr);
    DefineCustomBoolVariable("ojs.redact_backtrace", "Drops the backtrace of reported errors.", nullptr,
                             &settings.redact_backtrace, false, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomBoolVariable("ojs.require_lease_id", "Refuses calls that end or extend a lease and do not name it.",
                             nullptr, &settings.require_lease_id, false, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    settings.schema_validation = schema_warn; /* a server with assertions asks that the default is there beforehand */
    DefineCustomEnumVariable("ojs.schema_validation",
                             "What becomes of a job whose arguments do not fit the schema of its type.",
                             "A mode that was set for the type goes before it.", &settings.schema_validation,
                             schema_warn, schema_modes, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomBoolVariable("ojs.strict_queues", "Refuses a push to a queue that was not created before.", nullptr,
                             &settings.strict_queues, false, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomEnumVariable("ojs.tenancy", "Whether jobs belong to tenants, and whether each job must.", nullptr,
                             &settings.tenancy, tenancy_off, tenancies, PGC_SUSET, 0, nullptr, tenancy_changed,
                             nullptr);
    DefineCustomStringVariable("ojs.tenant", "The tenant that this session acts for.",
                               "A role that ojs.bind_tenant has bound acts for its tenants only.", &settings.tenant, "",
                               PGC_USERSET, 0, check_tenant, nullptr, nullptr);
    DefineCustomIntVariable("ojs.tick_interval", "Longest time between two passes of upkeep by the worker.", nullptr,
                            &settings.tick_interval_ms, 500, 10, 60000, PGC_SIGHUP, GUC_UNIT_MS, nullptr, nullptr,
                            nullptr);
    DefineCustomBoolVariable("ojs.webhooks_over_http", "Lets webhooks have addresses without TLS.", nullptr,
                             &settings.webhooks_over_http, false, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomBoolVariable("ojs.worker", "Starts background workers where the library is preloaded.", nullptr,
                             &settings.worker, true, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    refuse_session(on_connecting, by_session);
    reserve_settings_prefix("ojs");
}

TimestampTz
now()
{
    return GetCurrentTimestamp() + static_cast<int64>(settings.clock_offset_ms * 1000.0);
}

int64
steady_us()
{
    instr_time at;
    INSTR_TIME_SET_CURRENT(at);
    return static_cast<int64>(INSTR_TIME_GET_MICROSEC(at));
}

} // namespace ojs
