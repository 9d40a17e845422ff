/*
 * spi.cpp: see spi.h.
 */
#include "ojs/store/spi.h"

#include "ojs/store/store.h"

namespace ojs
{

namespace
{

/* Assigned last: a failure on the way leaves no half-made plan behind. */
void
prepare(Statement &statement)
{
    int n = 0;
    while (n < max_spi_args && OidIsValid(statement.types[n]))
        n++;
    SPIPlanPtr plan = SPI_prepare(statement.sql, n, statement.types.data());
    if (plan == nullptr)
        elog(ERROR, "could not prepare \"%s\": %s", statement.sql, SPI_result_code_string(SPI_result));
    if (SPI_keepplan(plan) != 0)
        elog(ERROR, "could not keep the plan of \"%s\"", statement.sql);
    statement.plan = plan;
}

uint64
run(Statement &statement, std::initializer_list<SpiArg> args, Snapshot snapshot)
{
    Datum values[max_spi_args] = {};
    char nulls[max_spi_args] = {};
    int n = 0;
    for (const SpiArg &arg : args) {
        values[n] = arg.value;
        nulls[n++] = arg.null ? 'n' : ' ';
    }
    if (statement.plan == nullptr)
        prepare(statement);
    int result = SPI_execute_snapshot(statement.plan, values, nulls, snapshot, InvalidSnapshot, false, true, 0);
    if (result < 0)
        elog(ERROR, "could not run \"%s\": %s", statement.sql, SPI_result_code_string(result));
    return SPI_processed;
}

} // namespace

uint64
execute(Statement &statement, std::initializer_list<SpiArg> args)
{
    return run(statement, args, InvalidSnapshot);
}

uint64
execute_latest(Statement &statement, std::initializer_list<SpiArg> args)
{
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    uint64 n = run(statement, args, snapshot);
    UnregisterSnapshot(snapshot);
    return n;
}

void
execute_latest_into(Statement &statement, std::initializer_list<SpiArg> args, DestReceiver *receiver)
{
    if (statement.plan != nullptr) {
        SPI_freeplan(statement.plan);
        statement.plan = nullptr;
    }
    prepare(statement);

    ParamListInfo params = makeParamList(static_cast<int>(args.size()));
    int n = 0;
    for (const SpiArg &arg : args) {
        params->params[n] = {arg.value, arg.null, PARAM_FLAG_CONST, statement.types[n]};
        n++;
    }
    SPIExecuteOptions options = {};
    options.params = params;
    options.read_only = true; /* as to SPI: it takes the active snapshot then */
    options.dest = receiver;
    PushActiveSnapshot(GetLatestSnapshot());
    int result = SPI_execute_plan_extended(statement.plan, &options);
    PopActiveSnapshot();
    if (result < 0)
        elog(ERROR, "could not run \"%s\": %s", statement.sql, SPI_result_code_string(result));
}

void
set_for_body(const char *name, const char *value)
{
    (void)set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

void
plan_by_index()
{
    /* What is left of these costs so much to the planner that it would have it compiled. */
    for (const char *way : {"enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"})
        set_for_body(way, "off");
}

SpiScope
enter_spi()
{
    SpiScope scope;
    Oid owner = store::owner();

    GetUserIdAndSecContext(&scope.user, &scope.security_context);
    scope.settings_level = NewGUCNestLevel();
    SetUserIdAndSecContext(owner, scope.security_context | SECURITY_LOCAL_USERID_CHANGE);
    set_for_body("search_path", "pg_catalog, pg_temp");
    if (SPI_connect() != SPI_OK_CONNECT)
        elog(ERROR, "could not connect to SPI");
    return scope;
}

void
leave_spi(const SpiScope &scope)
{
    SPI_finish();
    AtEOXact_GUC(true, scope.settings_level);
    SetUserIdAndSecContext(scope.user, scope.security_context);
}

} // namespace ojs
