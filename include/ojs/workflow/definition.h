/*
 * definition.h: what a workflow is asked to be, checked as a whole before anything of it is stored.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

constexpr int max_workflow_depth = 8;     /* a chain of jobs has 1 */
constexpr int max_workflow_steps = 10000; /* of one chain */
constexpr int max_workflow_jobs = 100000; /* in all, callbacks and inner workflows included */
constexpr int max_workflow_queues = 1000; /* that its jobs go to */
constexpr int max_workflow_bytes = 64 * 1024 * 1024;
constexpr int max_workflow_name = 255;

struct Definition {
    bool has_id;
    pg_uuid_t id;
    int64 *queues; /* ids of all that its jobs may go to */
    int n_queues;
    int jobs; /* callbacks included */
};
static_assert(std::is_trivially_destructible_v<Definition>);

/* A definition whose jobs all name the tenant that the caller acts for, if it acts for one. */
Jsonb *definition_of_caller(Jsonb *json);

/* Raises INVALID_WORKFLOW, or what a push of one of the jobs would raise. The current user must be allowed to push
 * each. */
Definition check_definition(const Jsonb *json, TimestampTz now);

/* Likewise for what a workflow of this type, at this depth, is to get more: {"steps": […]} for a chain, {"jobs": […]}
 * for a group or a batch. */
Definition check_extension(const Jsonb *json, std::string_view type, int depth, TimestampTz now);

} // namespace ojs
