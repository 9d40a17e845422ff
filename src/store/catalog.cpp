/*
 * catalog.cpp: which relations are ours. Names are looked up once and kept until
 * something about one of them changes (DROP/CREATE EXTENSION, REINDEX
 * CONCURRENTLY, ALTER), which the relation cache tells us.
 */
#include "ojs/pg/error.h"
#include "ojs/store/rows.h"
#include "ojs/store/store.h"

namespace ojs::store
{

namespace
{

constexpr int n_rels = static_cast<int>(Rel::count);
constexpr int n_indexes = static_cast<int>(Idx::count);

constexpr const char *rel_names[n_rels] = {"job",   "event", "done",  "ready", "lease",
                                           "later", "feed",  "queue", "worker", "uniq",  "rate_limit",
                                           "limit_use", "lease_log", "hook", "checkpoint", "progress", "dead_letter", "maintenance",
                                           "name_key", "deduplication", "idempotency"};
constexpr const char *index_names[n_indexes] = {"job_id",     "event_job", "done_job",  "ready_order", "ready_job", "lease_job",
                                                "lease_reap", "later_job", "later_due", "queue_name",  "queue_id",
                                                "uniq_held",  "limit_use_key", "checkpoint_job", "progress_job", "dead_letter_job",
                                                "deduplication_pkey", "deduplication_job", "idempotency_pkey"};

struct Known {
    Oid rels[n_rels];
    Oid indexes[n_indexes];
    Oid seq;
    Oid owner;
    Oid job_type;
    Oid claimed_type;
};

Known known;
bool fresh;                 /* `known` may be used */
uint64 generations[n_rels];
uint64 generation_all;

extern "C" void
relation_changed(Datum, Oid relid)
{
    if (relid == InvalidOid) {
        fresh = false;
        generation_all++;
        return;
    }
    for (int i = 0; i < n_rels; i++)
        if (known.rels[i] == relid) {
            fresh = false;
            generations[i]++;
        }
}

extern "C" void
extension_changed(Datum, int, uint32)
{
    fresh = false;
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

int
columns_of(Oid relation)
{
    HeapTuple pg_class = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
    if (!HeapTupleIsValid(pg_class))
        elog(ERROR, "cache lookup failed for relation %u", relation);
    int n = reinterpret_cast<Form_pg_class>(GETSTRUCT(pg_class))->relnatts;
    ReleaseSysCache(pg_class);
    return n;
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

    Known found = {};
    for (int i = 0; i < n_rels; i++) {
        found.rels[i] = relation_in(schema, rel_names[i]);
        if (row_columns[i] != 0 && columns_of(found.rels[i]) != row_columns[i])
            raise(Code::unavailable, Details().add("relation", rel_names[i]), "Run ALTER EXTENSION ojs UPDATE.",
                  "the extension ojs in this database does not fit the library");
    }
    for (int i = 0; i < n_indexes; i++)
        found.indexes[i] = relation_in(schema, index_names[i]);
    found.seq = relation_in(schema, "seq");
    found.job_type = type_in(surface, "job");
    found.claimed_type = type_in(surface, "claimed_job");

    HeapTuple pg_class = SearchSysCache1(RELOID, ObjectIdGetDatum(found.rels[0]));
    if (!HeapTupleIsValid(pg_class))
        elog(ERROR, "cache lookup failed for relation %u", found.rels[0]);
    found.owner = reinterpret_cast<Form_pg_class>(GETSTRUCT(pg_class))->relowner;
    ReleaseSysCache(pg_class);
    known = found;
}

const Known &
catalog()
{
    /* A look-up may itself take in invalidations: `fresh` is set before, so that they count. */
    while (!fresh) {
        fresh = true;
        PG_TRY();
        {
            look_up();
        }
        PG_CATCH();
        {
            fresh = false;
            PG_RE_THROW();
        }
        PG_END_TRY();
    }
    return known;
}

} // namespace

void
catalog_init()
{
    CacheRegisterRelcacheCallback(relation_changed, 0);
    CacheRegisterSyscacheCallback(NAMESPACEOID, extension_changed, 0);
    CacheRegisterSyscacheCallback(TYPEOID, extension_changed, 0);
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
    return fresh || OidIsValid(get_extension_oid("ojs", true));
}

uint64
catalog_generation(Rel rel)
{
    return generation_all + generations[static_cast<int>(rel)];
}

} // namespace ojs::store
