/*
 * pg.h: the only file that includes PostgreSQL's headers.
 *
 * Order matters: C++ standard headers first, then one extern "C" block that
 * begins with postgres.h (the other way round <cstdio> silently undoes the
 * server's own snprintf). What differs between PostgreSQL 14 and 18 is settled
 * here, one comment each, so that no other file asks for a version.
 */
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>

extern "C" {
#include "postgres.h"

/* 14 and 15 leave PGDLLEXPORT empty, which hides the magic block once the module is built with hidden visibility. */
#if PG_VERSION_NUM < 160000
#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))
#endif

#include "access/detoast.h"
#include "access/genam.h"
#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/parallel.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_database.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/async.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "common/hashfn.h"
#include "common/int.h"
#include "common/jsonapi.h"
#include "common/unicode_norm.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/pathnodes.h"
#include "nodes/supportnodes.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "portability/instr_time.h"
#include "postmaster/autovacuum.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "regex/regex.h"
#include "replication/walsender.h"
#include "storage/bufmgr.h"
#include "storage/condition_variable.h"
#include "storage/freespace.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "storage/smgr.h"
#include "storage/spin.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/date.h"
#include "utils/datum.h"
#include "utils/datetime.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/inval.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/plancache.h"
#include "utils/memutils.h"
#include "utils/numeric.h"
#include "utils/ps_status.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/typcache.h"
#include "utils/uuid.h"
#include "utils/wait_event.h"
#if PG_VERSION_NUM >= 150000
#include "common/pg_prng.h"
#endif
#if PG_VERSION_NUM >= 160000
#include "varatt.h" /* part of postgres.h before 16 */
#endif

/* libpq/libpq.h declares it, but asks for headers of Kerberos. */
extern bool pq_check_connection(void);
}

/* The backend's own unicode/number helpers define these as macros; ours are std:: ones. */
#undef Min
#undef Max
#undef Abs
#undef foreach_ptr

namespace ojs
{

/* Random bits that need not be secret: a fencing token is compared for equality only. */
inline uint64
random64()
{
#if PG_VERSION_NUM >= 150000
    return pg_prng_uint64(&pg_global_prng_state);
#else
    uint64 bits; /* 14 has no pg_prng.h */
    if (!pg_strong_random(&bits, sizeof bits))
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not generate random bits")));
    return bits;
#endif
}

/* 18 passes a place for index scan statistics. */
inline IndexScanDesc
index_begin(Relation table, Relation index, Snapshot snapshot, int nkeys)
{
#if PG_VERSION_NUM >= 180000
    return index_beginscan(table, index, snapshot, nullptr, nkeys, 0);
#else
    return index_beginscan(table, index, snapshot, nkeys, 0);
#endif
}

/* The row version at tuple->t_self, whoever may see it; 15 added an argument. */
inline bool
fetch_any(Relation table, HeapTuple tuple, Buffer *buffer)
{
#if PG_VERSION_NUM >= 150000
    return heap_fetch(table, SnapshotAny, tuple, buffer, false);
#else
    return heap_fetch(table, SnapshotAny, tuple, buffer);
#endif
}

/* Whether a snapshot of this session keeps rows from being cleaned away. 14 has no call that says so: its list of
 * registered snapshots may also hold one of the catalogs, which keeps no row of ours. */
inline bool
holds_snapshot()
{
#if PG_VERSION_NUM >= 150000
    return HaveRegisteredOrActiveSnapshot();
#else
    if (ActiveSnapshotSet())
        return true;
    InvalidateCatalogSnapshot();
    return GetOldestSnapshot() != nullptr;
#endif
}

/* Which index entries a new version of a row needs. Before 16, BRIN indexes forbade heap-only updates; since then such
 * an update may change what they summarize. */
enum class NewEntries { none, summaries, all };

/* A new version of a row that we have locked. */
inline NewEntries
update_tuple(Relation table, ItemPointer tid, TupleTableSlot *slot)
{
    TM_FailureData failure;
    LockTupleMode mode;
#if PG_VERSION_NUM >= 160000
    TU_UpdateIndexes indexes;
#else
    bool indexes;
#endif
    TM_Result result = table_tuple_update(table, tid, slot, GetCurrentCommandId(true), InvalidSnapshot, InvalidSnapshot,
                                          true, &failure, &mode, &indexes);
    if (result != TM_Ok)
        elog(ERROR, "a locked row could not be updated: %d", result);
#if PG_VERSION_NUM >= 160000
    return indexes == TU_All ? NewEntries::all : indexes == TU_Summarizing ? NewEntries::summaries : NewEntries::none;
#else
    return indexes ? NewEntries::all : NewEntries::none;
#endif
}

/* Index entries of a row: of all indexes, or of those that summarize. With `conflict`, an entry that may be there
 * already in one of `keys` is no error. 16 added an argument. */
inline void
insert_index_tuples(ResultRelInfo *indexes, TupleTableSlot *slot, EState *state, bool *conflict, List *keys,
                    NewEntries which = NewEntries::all)
{
#if PG_VERSION_NUM >= 160000
    list_free(ExecInsertIndexTuples(indexes, slot, state, false, conflict != nullptr, conflict, keys,
                                    which == NewEntries::summaries));
#else
    (void)which;
    list_free(ExecInsertIndexTuples(indexes, slot, state, false, conflict != nullptr, conflict, keys));
#endif
}

/* Whether this transaction has an earlier statement of a pipeline. Minor releases before August 2022 do not say. */
inline bool
in_pipeline()
{
#ifdef XACT_FLAGS_PIPELINING
    return (MyXactFlags & XACT_FLAGS_PIPELINING) != 0;
#else
    return false;
#endif
}

/* Whether a role may call a function; 16 has one function for all kinds of objects. */
inline bool
may_execute(Oid role, Oid function)
{
#if PG_VERSION_NUM >= 160000
    return object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE) == ACLCHECK_OK;
#else
    return pg_proc_aclcheck(function, role, ACL_EXECUTE) == ACLCHECK_OK;
#endif
}

/* 15 renamed the call that keeps others from taking a settings prefix. */
inline void
reserve_settings_prefix(const char *prefix)
{
#if PG_VERSION_NUM >= 150000
    MarkGUCPrefixReserved(prefix);
#else
    EmitWarningsOnPlaceholders(prefix);
#endif
}

/* All settings of this session, and how many; 16 counts them itself. */
inline config_generic **
all_settings(int *n)
{
#if PG_VERSION_NUM >= 160000
    return get_guc_variables(n);
#else
    *n = GetNumConfigOptions();
    return get_guc_variables();
#endif
}

/* How many processes can have a place in the array of processes, auxiliary ones and prepared transactions aside; 14 has
 * not added it up yet while libraries are loaded. */
inline int
most_backends()
{
#if PG_VERSION_NUM >= 150000
    return MaxBackends;
#else
    return MaxConnections + autovacuum_max_workers + 1 + max_worker_processes + max_wal_senders;
#endif
}

/* 15 moved requests for shared memory to a hook; 14 takes them while libraries are loaded. Answers the next one. */
using RequestHook = void (*)();
inline RequestHook
chain_request_hook(RequestHook hook)
{
#if PG_VERSION_NUM >= 150000
    RequestHook next = shmem_request_hook;
    shmem_request_hook = hook;
    return next;
#else
    hook();
    return nullptr;
#endif
}

/* What pg_stat_activity shows of a wait of ours; 17 lets an extension name it. */
inline uint32
wait_event([[maybe_unused]] const char *name, [[maybe_unused]] uint32 *known)
{
#if PG_VERSION_NUM >= 170000
    if (*known == 0)
        *known = WaitEventExtensionNew(name);
    return *known;
#else
    return PG_WAIT_EXTENSION;
#endif
}

} // namespace ojs
