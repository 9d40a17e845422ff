/*
 * spi.h: static SQL on the extension's private tables, for what is not worth direct table access.
 *
 * with_spi([&] { … }) runs its body connected to SPI, as the owner of the extension's tables and with a search path
 * that no caller can put anything into. When the body raises, the abort of the (sub)transaction undoes all of it.
 *
 * A Statement is a text that is known when the library is compiled and, once it has run, its saved plan. Plans outlive
 * DROP and CREATE EXTENSION: the server analyses the text anew when what it named has gone. What is
 * allocated inside the body ends with it.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

constexpr int max_spi_args = 10;

/* constinit Statement retire = {"delete from ojs_store.queue where id = $1", {INT8OID}}; */
struct Statement {
    const char *sql;
    std::array<Oid, max_spi_args> types; /* up to the first 0 */
    SPIPlanPtr plan;
};
static_assert(std::is_trivially_destructible_v<Statement>);

struct SpiArg {
    Datum value;
    bool null;

    SpiArg(Datum datum) : value(datum), null(false) {}
    SpiArg(std::nullptr_t) : value(0), null(true) {}
};

/* Runs a statement and answers how many rows it handled; rows it returns are in SPI_tuptable. */
uint64 execute(Statement &statement, std::initializer_list<SpiArg> args = {});

/* Like execute(), but with a snapshot of this moment, whatever the caller's isolation level: for repairs, which must
 * see what others have committed. */
uint64 execute_latest(Statement &statement, std::initializer_list<SpiArg> args = {});

/* Like execute_latest(), but for a query whose rows go to a receiver, one by one. Planned anew each time: for passes
 * over whole tables. */
void execute_latest_into(Statement &statement, std::initializer_list<SpiArg> args, DestReceiver *receiver);

/* A column (from 1) of a row (from 0) that the last statement returned. */
inline Datum
cell(uint64 row, int column, bool *null)
{
    return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, null);
}

/* A setting for the rest of the body. */
void set_for_body(const char *name, const char *value);

/* For the rest of the body: plans go by indexes, row by row. They are saved when tables may still be empty, and nothing
 * may have counted the rows of a table that has grown. */
void plan_by_index();

struct SpiScope {
    Oid user;
    int security_context;
    int settings_level;
};
SpiScope enter_spi();
void leave_spi(const SpiScope &scope);

template <typename Body>
void
with_spi(Body body)
{
    SpiScope scope = enter_spi();
    body();
    leave_spi(scope);
}

} // namespace ojs
