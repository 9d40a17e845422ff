/*
 * subtransaction.cpp: see subtransaction.h.
 */
#include "ojs/pg/subtransaction.h"

namespace ojs
{

ErrorData *
attempt_call(void (*body)(void *), void *arg)
{
    MemoryContext context = CurrentMemoryContext;
    ResourceOwner owner = CurrentResourceOwner;
    ErrorData *volatile error = nullptr;

    BeginInternalSubTransaction(nullptr);
    MemoryContextSwitchTo(context);
    PG_TRY();
    {
        body(arg);
        ReleaseCurrentSubTransaction();
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(context);
        error = CopyErrorData();
        FlushErrorState();
        RollbackAndReleaseCurrentSubTransaction();
    }
    PG_END_TRY();
    MemoryContextSwitchTo(context);
    CurrentResourceOwner = owner;
    return error;
}

bool
is_of_server(const ErrorData &error)
{
    switch (ERRCODE_TO_CATEGORY(error.sqlerrcode)) {
    case ERRCODE_TRANSACTION_ROLLBACK:
    case ERRCODE_INSUFFICIENT_RESOURCES:
    case ERRCODE_OPERATOR_INTERVENTION:
    case ERRCODE_SYSTEM_ERROR:
        return true;
    default:
        return false;
    }
}

} // namespace ojs
