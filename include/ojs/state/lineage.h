/*
 * lineage.h: which job has pushed which (HIS-02), in a table of its own, so that a job which names no parent pays
 * nothing. What is asked of it stands in sql/lineage.sql.
 */
#pragma once

#include "ojs/store/tables.h"

namespace ojs
{

struct JobRow;

/* Of a job whose row is stored; its flags have job_spawned. */
void store_parent(Tables &tables, const pg_uuid_t &id, const pg_uuid_t &parent);
void store_parent(Tables &tables, const JobRow &job); /* by what its options say */

/* With the job. */
void forget_parent(Tables &tables, const pg_uuid_t &id);

} // namespace ojs
