/*
 * process.cpp: see process.h.
 */
#include "ojs/pg/process.h"

namespace ojs
{

BackgroundWorker
describe_process(const char *name, const char *main)
{
    BackgroundWorker process = {};
    strlcpy(process.bgw_name, name, BGW_MAXLEN);
    strlcpy(process.bgw_type, name, BGW_MAXLEN);
    process.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    process.bgw_start_time = BgWorkerStart_RecoveryFinished;
    process.bgw_restart_time = BGW_NEVER_RESTART;
    strlcpy(process.bgw_library_name, "ojs", sizeof process.bgw_library_name);
    strlcpy(process.bgw_function_name, main, BGW_MAXLEN);
    return process;
}

BackgroundWorkerHandle *
start_process(const char *name, const char *main, Oid database, int notify_pid)
{
    BackgroundWorkerHandle *handle;
    BackgroundWorker process = describe_process(name, main);
    process.bgw_main_arg = ObjectIdGetDatum(database);
    process.bgw_notify_pid = notify_pid;
    return RegisterDynamicBackgroundWorker(&process, &handle) ? handle : nullptr;
}

LOCKTAG
process_lock(ProcessLock which)
{
    /* Field 4 is 1 or 2 for the keys that SQL functions take. */
    constexpr uint16 kind = 0x6a73;
    LOCKTAG tag;
    SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, static_cast<uint32>(which), kind);
    return tag;
}

bool
worker_present()
{
    LOCKTAG tag = process_lock(ProcessLock::present);
    if (LockAcquire(&tag, AccessShareLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
        return true;
    LockRelease(&tag, AccessShareLock, true);
    return false;
}

bool
become_leader()
{
    LOCKTAG lead = process_lock(ProcessLock::leading);
    LOCKTAG here = process_lock(ProcessLock::present);
    if (LockAcquire(&lead, AccessExclusiveLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
        return false;
    (void)LockAcquire(&here, AccessExclusiveLock, true, false);
    return true;
}

void
give_up_lead()
{
    for (ProcessLock which : {ProcessLock::present, ProcessLock::leading}) {
        LOCKTAG tag = process_lock(which);
        LockRelease(&tag, AccessExclusiveLock, true);
    }
}

bool
database_in_use_by_ddl(Oid database)
{
    /* DROP, RENAME and CREATE … TEMPLATE lock the database first and then wait for others to leave it. The lock asked
     * for is the one that each session takes when it connects. */
    LOCKTAG tag;
    SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
    if (LockAcquire(&tag, RowExclusiveLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
        return true;
    LockRelease(&tag, RowExclusiveLock, true);
    return false;
}

std::optional<uint64>
hash_of_stored_settings()
{
    if (!ConditionalLockRelationOid(DbRoleSettingRelationId, AccessShareLock))
        return std::nullopt;
    Relation table = table_open(DbRoleSettingRelationId, NoLock);
    uint64 hash = 0;
    for (Oid database : {MyDatabaseId, InvalidOid})
        for (Oid role : {GetSessionUserId(), InvalidOid}) {
            ScanKeyData keys[2];
            bool null = true;
            ScanKeyInit(&keys[0], Anum_pg_db_role_setting_setdatabase, BTEqualStrategyNumber, F_OIDEQ,
                        ObjectIdGetDatum(database));
            ScanKeyInit(&keys[1], Anum_pg_db_role_setting_setrole, BTEqualStrategyNumber, F_OIDEQ,
                        ObjectIdGetDatum(role));
            SysScanDesc scan = systable_beginscan(table, DbRoleSettingDatidRolidIndexId, true, nullptr, 2, keys);
            HeapTuple row = systable_getnext(scan);
            Datum settings = HeapTupleIsValid(row)
                                 ? heap_getattr(row, Anum_pg_db_role_setting_setconfig, RelationGetDescr(table), &null)
                                 : 0;
            hash = hash_combine64(hash, 1);
            if (!null) {
                ArrayType *array = DatumGetArrayTypeP(settings);
                hash = hash_combine64(hash,
                                      hash_bytes_extended(reinterpret_cast<unsigned char *>(array), VARSIZE(array), 0));
            }
            systable_endscan(scan);
        }
    table_close(table, AccessShareLock);
    return hash;
}

} // namespace ojs
