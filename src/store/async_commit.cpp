/*
 * async_commit.cpp: commits that nobody waits for: of a queue that is not durable, and of jobs that may be lost
 * (DLV-01).
 *
 * Such a commit is not flushed only if it holds nothing of the caller's own: the call is not part of a transaction
 * block, and whatever the transaction has written was written by calls like it. What came before a call is known by the
 * transaction's id; what came after it, up to the commit itself, by where the session's WAL ends.
 */
#include "ojs/store/store.h"

namespace ojs::store
{

namespace
{

/* Of the call that is under way. */
bool alone;   /* nothing else has been written */
bool spared;  /* it wrote what may be lost */
bool awaited; /* it wrote what must not */

XLogRecPtr spared_up_to; /* all that this transaction has written up to here may be lost; 0: nothing has been */

extern "C" void
commit_xact(XactEvent event, void *)
{
    if (event == XACT_EVENT_PRE_COMMIT && spared_up_to != 0 && spared_up_to == XactLastRecEnd)
        (void)set_config_option("synchronous_commit", "off", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0,
                                false);
    if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
        spared_up_to = 0;
}

} // namespace

void
note_write(bool durable)
{
    (durable ? awaited : spared) = true;
}

void
begin_noting_writes()
{
    alone =
        !IsTransactionBlock() && GetCurrentTransactionNestLevel() == 1 &&
        (!TransactionIdIsValid(GetTopTransactionIdIfAny()) || (spared_up_to != 0 && spared_up_to == XactLastRecEnd));
    spared = awaited = false;
}

void
end_noting_writes()
{
    if (spared && !awaited && alone)
        spared_up_to = XactLastRecEnd;
}

void
commit_init()
{
    RegisterXactCallback(commit_xact, nullptr);
}

} // namespace ojs::store
