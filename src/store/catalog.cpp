/*
 * catalog.cpp: which relations are ours. Names are looked up once and kept until
 * something about one of them changes (DROP/CREATE EXTENSION, REINDEX
 * CONCURRENTLY, ALTER), which the relation cache tells us.
 */
#include "ojs/pg/error.h"
#include "ojs/store/rows.h"
#include "ojs/store/store.h"
#include "ojs/pg/session_cache.h"

namespace ojs::store
{

namespace
{

constexpr int n_rels = static_cast<int>(Rel::count);
constexpr int n_indexes = static_cast<int>(Idx::count);

constexpr const char *rel_names[n_rels] = {
    "job",          "job_history",   "finished",      "ready",        "lease",        "delayed",    "hot_set_state",
    "queue",        "worker",        "unique_key",    "rate_limit",   "limit_use",    "lease_log",  "hook",
    "checkpoint",   "progress",      "dead_letter",   "maintenance",  "pool",         "name_key",   "deduplication",
    "idempotency",  "listener_flag", "workflow_open", "workflow_end", "workflow_due", "job_schema", "ordering_line",
    "ordering_due", "tenant_role",   "tenant",        "job_parent"};
constexpr const char *index_names[n_indexes] = {"job_id",
                                                "job_history_job",
                                                "finished_job",
                                                "ready_order",
                                                "ready_job",
                                                "lease_job",
                                                "lease_reap",
                                                "delayed_job",
                                                "delayed_due",
                                                "queue_name",
                                                "queue_id",
                                                "unique_key_held",
                                                "limit_use_key",
                                                "checkpoint_job",
                                                "progress_job",
                                                "dead_letter_job",
                                                "deduplication_pkey",
                                                "deduplication_job",
                                                "idempotency_pkey",
                                                "listener_flag_queue",
                                                "workflow_open_member",
                                                "workflow_open_order",
                                                "ordering_line_order",
                                                "ordering_line_job",
                                                "ordering_due_key",
                                                "worker_pkey",
                                                "job_parent_job"};

struct CatalogIds {
    Oid rels[n_rels];
    Oid indexes[n_indexes];
    Oid seq;
    Oid owner;
    Oid job_type;
    Oid claimed_type;
    uint32 objects[4]; /* hash values of our schemas and types in the syscaches */
};

CatalogIds known;
SessionCache cache; /* of `known` */
uint64 changes;     /* of anything that is known; of anything at all while that is not known */
uint64 generations[n_rels];
uint64 generation_all;
uint64 new_names;

extern "C" void
relation_changed(Datum, Oid relid)
{
    if (relid == InvalidOid) {
        changes++;
        generation_all++;
        return;
    }
    changes += !cache.valid;
    for (int i = 0; i < n_rels; i++)
        if (known.rels[i] == relid) {
            changes++;
            generations[i]++;
        }
    new_names += known.indexes[static_cast<int>(Idx::queue_name)] == relid;
}

/* Each temporary table is a new type, so this hears of much that does not concern us. A hash of 0 stands for all. */
extern "C" void
object_changed(Datum, int, uint32 hash)
{
    if (cache.valid && hash != 0 &&
        std::find(std::begin(known.objects), std::end(known.objects), hash) == std::end(known.objects))
        return;
    changes++;
    generation_all++;
}

Oid
relation_in(Oid schema, const char *name)
{
    Oid oid = get_relname_relid(name, schema);
    if (!OidIsValid(oid))
        raise(Code::unavailable, Details().add("relation", name), "Run ALTER EXTENSION ojs UPDATE.",
              "the extension ojs in this database does not fit the library");
    return oid;
}

Oid
type_in(Oid schema, const char *name)
{
    Oid oid = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum(name), ObjectIdGetDatum(schema));
    if (!OidIsValid(oid))
        raise(Code::unavailable, Details().add("type", name), "Run ALTER EXTENSION ojs UPDATE.",
              "the extension ojs in this database does not fit the library");
    return oid;
}

void
look_up()
{
    Oid schema = get_namespace_oid("ojs_store", true);
    Oid surface = get_namespace_oid("ojs", true);
    if (!OidIsValid(schema) || !OidIsValid(surface))
        raise(Code::unavailable, Details(), "Run CREATE EXTENSION ojs.",
              "the extension ojs is not installed in this database");

    CatalogIds found = {};
    for (int i = 0; i < n_rels; i++)
        found.rels[i] = relation_in(schema, rel_names[i]);
    for (int i = 0; i < n_indexes; i++)
        found.indexes[i] = relation_in(schema, index_names[i]);
    found.seq = relation_in(schema, "seq");
    found.job_type = type_in(surface, "job");
    found.claimed_type = type_in(surface, "claimed_job");
    found.objects[0] = GetSysCacheHashValue1(NAMESPACEOID, ObjectIdGetDatum(schema));
    found.objects[1] = GetSysCacheHashValue1(NAMESPACEOID, ObjectIdGetDatum(surface));
    found.objects[2] = GetSysCacheHashValue1(TYPEOID, ObjectIdGetDatum(found.job_type));
    found.objects[3] = GetSysCacheHashValue1(TYPEOID, ObjectIdGetDatum(found.claimed_type));

    HeapTuple pg_class = SearchSysCache1(RELOID, ObjectIdGetDatum(found.rels[0]));
    if (!HeapTupleIsValid(pg_class))
        elog(ERROR, "cache lookup failed for relation %u", found.rels[0]);
    found.owner = reinterpret_cast<Form_pg_class>(GETSTRUCT(pg_class))->relowner;
    ReleaseSysCache(pg_class);
    known = found;
}

const CatalogIds &
catalog()
{
    for (int reads = 0; !cache.holds(changes) && reads < most_reads; reads++) { /* a look-up may hear of changes */
        CHECK_FOR_INTERRUPTS();
        cache.refresh(changes, look_up);
    }
    return known;
}

/* --- whether a table is one that this library can read and write --- */

SessionCache fits[n_rels];

void
check_columns(Relation rel, const Shape &shape)
{
    TupleDesc desc = RelationGetDescr(rel);
    bool same = desc->natts == shape.n;
    for (int i = 0; i < shape.n && same; i++)
        same = TupleDescAttr(desc, i)->atttypid == shape.types[i];
    if (!same)
        raise(Code::unavailable, Details().add("relation", RelationGetRelationName(rel)),
              "Run ALTER EXTENSION ojs UPDATE.", "the extension ojs in this database does not fit the library");
}

/* What tells of a crash has to be lost in it: else the hot set would be empty, and pass for complete. */
void
check_unlogged(Relation rel)
{
    if (rel->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT)
        raise(Code::unavailable, Details().add("relation", RelationGetRelationName(rel)),
              "Run ALTER TABLE ojs_store.hot_set_state SET UNLOGGED.",
              "table ojs_store.%s is logged, so nobody would notice that a crash has emptied the hot set",
              RelationGetRelationName(rel));
}

/* Rows are written past triggers, and foreign keys are made of triggers: better not at all than unnoticed. */
void
refuse_row_triggers(Relation rel)
{
    const TriggerDesc *triggers = rel->trigdesc;
    if (triggers == nullptr)
        return;
    for (int i = 0; i < triggers->numtriggers; i++)
        if (TRIGGER_FOR_ROW(triggers->triggers[i].tgtype))
            raise(Code::unavailable,
                  Details().add("relation", RelationGetRelationName(rel)).add("trigger", triggers->triggers[i].tgname),
                  "Drop the trigger, or the foreign key that it belongs to. To follow jobs, use ojs.events or hooks.",
                  "table ojs_store.%s has a row trigger or a foreign key, which ojs would pass by",
                  RelationGetRelationName(rel));
}

} // namespace

Relation
open_relation(Rel which, LOCKMODE mode)
{
    /* Whoever gets the lock has heard of a DROP EXTENSION that it waited for, and says so in our own words. */
    Oid oid = relation_oid(which);
    LockRelationOid(oid, mode);
    for (Oid now; (now = relation_oid(which)) != oid; oid = now) {
        UnlockRelationOid(oid, mode);
        LockRelationOid(now, mode);
    }
    Relation rel = table_open(oid, NoLock);
    int i = static_cast<int>(which);
    fits[i].refresh(catalog_generation(which), [&] {
        check_columns(rel, shapes[i]);
        if (which == Rel::hot_set_state)
            check_unlogged(rel);
    });
    if (mode >= RowExclusiveLock && rel->trigdesc != nullptr)
        refuse_row_triggers(rel);
    return rel;
}

void
catalog_init()
{
    CacheRegisterRelcacheCallback(relation_changed, 0);
    CacheRegisterSyscacheCallback(NAMESPACEOID, object_changed, 0);
    CacheRegisterSyscacheCallback(TYPEOID, object_changed, 0);
}

const char *
relation_name(Rel rel)
{
    return rel_names[static_cast<int>(rel)];
}

Oid
relation_oid(Rel rel)
{
    return catalog().rels[static_cast<int>(rel)];
}

Oid
index_oid(Idx index)
{
    return catalog().indexes[static_cast<int>(index)];
}

Oid
seq_oid()
{
    return catalog().seq;
}

Oid
owner()
{
    return catalog().owner;
}

Oid
composite_type(bool claimed)
{
    return claimed ? catalog().claimed_type : catalog().job_type;
}

int64
next_seq()
{
    return nextval_internal(catalog().seq, false);
}

bool
installed()
{
    return cache.holds(changes) || OidIsValid(get_extension_oid("ojs", true));
}

uint64
catalog_generation(Rel rel)
{
    return generation_all + generations[static_cast<int>(rel)];
}

uint64
queue_names_generation()
{
    return catalog_generation(Rel::queue) + new_names;
}

/* The table's description stays: sessions keep what they know of other queues. */
void
say_new_name()
{
    CacheInvalidateRelcacheByRelid(index_oid(Idx::queue_name));
}

} // namespace ojs::store
