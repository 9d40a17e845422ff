/*
 * setting_lock.cpp: turns of calls that change the same setting, of a queue or of anything else that has a name.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/error.h"

using namespace ojs;

namespace
{

constexpr uint16 setting_lock_kind = 0x6a73; /* field 4 is 1 or 2 for the keys that SQL functions take */
constexpr uint16 all_settings_lock_kind = setting_lock_kind + 1;

} // namespace

/*
 * ojs_store.lock_setting(contents_of regclass, name text): to the end of the transaction; two names may share a lock.
 *
 * The server has room for a bounded number of locks. So a transaction that changes very many settings locks all of them
 * instead; it does not wait for that, since two such transactions would deadlock.
 */
OJS_FUNCTION(ojs_lock_setting)
{
    constexpr int most_names = 256;
    static TransactionId locked_by;
    static int n_locked; /* by this transaction */
    PreventCommandIfReadOnly("a change of settings");
    /* At once what the change will take: who reads first and asks for more later can meet REINDEX in a deadlock. */
    LockRelationOid(PG_GETARG_OID(0), RowExclusiveLock);
    TransactionId xid = GetTopTransactionId();
    n_locked = xid == locked_by ? n_locked + 1 : 1;
    locked_by = xid;
    LOCKTAG all;
    SET_LOCKTAG_ADVISORY(all, MyDatabaseId, PG_GETARG_OID(0), 0, all_settings_lock_kind);
    if (n_locked > most_names) {
        if (LockAcquire(&all, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
            raise(Code::unavailable, Details().add("most", static_cast<int64>(most_names)),
                  psprintf("Commit after every %d names, or try again.", most_names),
                  "other transactions are changing settings, and this one has changed more than %d", most_names);
        PG_RETURN_VOID();
    }
    (void)LockAcquire(&all, RowExclusiveLock, false, false);
    std::string_view name = view(PG_GETARG_TEXT_PP(1));
    uint32 hash = hash_bytes(reinterpret_cast<const unsigned char *>(name.data()), static_cast<int>(name.size()));
    LOCKTAG tag;
    SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, PG_GETARG_OID(0), hash, setting_lock_kind);
    (void)LockAcquire(&tag, ExclusiveLock, false, false);
    AcceptInvalidationMessages(); /* what others have changed while this waited, rights too */
    PG_RETURN_VOID();
}
