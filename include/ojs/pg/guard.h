/*
 * guard.h: the frame between PostgreSQL and our C++.
 *
 * House style throws nothing, but a library call can (bad_alloc, a bad
 * optional), and an exception that reaches the server ends every session.
 * guarded() turns one into an ordinary ERROR. It must do so outside of the
 * handler, or the exception in flight leaks, and with the error stacks as they
 * were at entry, since a throw from inside PG_TRY leaves them in a dead frame.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

template <typename Body>
auto
guarded(Body body) -> decltype(body())
{
    sigjmp_buf *exception_stack = PG_exception_stack;
    ErrorContextCallback *context_stack = error_context_stack;
    char what[256] = "unknown exception";

    try {
        return body();
    } catch (const std::exception &e) {
        strlcpy(what, e.what(), sizeof what);
    } catch (...) {
    }
    PG_exception_stack = exception_stack;
    error_context_stack = context_stack;
    ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("unexpected C++ exception in ojs"),
                    errdetail_internal("%s", what)));
    pg_unreachable();
}

} // namespace ojs

/* Defines the SQL-callable function NAME; the body follows in braces and sees fcinfo. */
#define OJS_FUNCTION(name)                                                                                             \
    static Datum name##_body(FunctionCallInfo fcinfo);                                                                 \
    extern "C" {                                                                                                       \
    PGDLLEXPORT Datum name(PG_FUNCTION_ARGS);                                                                          \
    PG_FUNCTION_INFO_V1(name);                                                                                         \
    Datum name(PG_FUNCTION_ARGS)                                                                                       \
    {                                                                                                                  \
        return ojs::guarded([fcinfo] { return name##_body(fcinfo); });                                                 \
    }                                                                                                                  \
    }                                                                                                                  \
    static Datum name##_body([[maybe_unused]] FunctionCallInfo fcinfo)
