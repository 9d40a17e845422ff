/*
 * lineage.cpp: see lineage.h.
 *
 * Equivalent SQL: insert into ojs_store.job_parent (job_id, parent) values ($1, $2);
 * delete from ojs_store.job_parent where job_id = $1;
 */
#include "ojs/state/lineage.h"

#include "ojs/job/attributes.h"
#include "ojs/pg/json.h"

namespace ojs
{

void
store_parent(Tables &tables, const pg_uuid_t &id, const pg_uuid_t &parent)
{
    store::Table &table = tables.get(store::Rel::job_parent);
    store::insert(table, form(table.rel, ParentRow{id, parent}));
}

void
store_parent(Tables &tables, const JobRow &job)
{
    JsonbValue value;
    if (job.options != nullptr && find_member(root_of(job.options), "parent_id", value))
        store_parent(tables, job.id, id_value(value, "parent_id"));
}

void
forget_parent(Tables &tables, const pg_uuid_t &id)
{
    store::Table &table = tables.get(store::Rel::job_parent);
    ItemPointerData tid;
    while (store::find(table, store::Idx::job_parent_job, id, &tid) != store::Row::none &&
           store::take_waiting(table, &tid) != store::Outcome::ok)
        CHECK_FOR_INTERRUPTS();
}

} // namespace ojs
