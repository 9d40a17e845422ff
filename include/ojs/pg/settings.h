/*
 * settings.h: the ojs.* settings. docs/reference/settings.md is the reader's copy.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

constexpr int max_block_ms = 30000; /* a statement that waits keeps its snapshot */

constexpr int max_node_id = (1 << 14) - 1;

/* What becomes of a job whose args do not fit the schema of its type. */
enum SchemaMode { schema_off, schema_warn, schema_strict };

/* Whether jobs belong to tenants, and whether each must. */
enum Tenancy { tenancy_off, tenancy_optional, tenancy_required };
constexpr size_t max_tenant = 63; /* bytes */

/* One variable per setting, in the order of settings.cpp; times in milliseconds, sizes in the unit that the name's
 * documentation gives. */
struct Settings {
    int audit_retention_s;
    int block_timeout_ms; /* -1: as the queue says */
    double clock_offset_ms;
    bool conformance_mode;
    int deduplication_ttl_s;
    int default_lease_ms;
    char *default_tenant; /* of jobs that name none; empty: none */
    int http_lease_ms;
    int event_retention_s;
    char *events_off;
    int max_args_depth;
    int max_args_elements;
    int max_batch_size;
    int max_envelope_size; /* bytes */
    int max_events;
    int max_meta_size;   /* bytes */
    int max_result_size; /* bytes */
    int max_workers;     /* -1: half of max_worker_processes */
    int node_id;         /* 0: ids carry none */
    bool notify;
    int notify_interval_ms;
    bool redact_backtrace;
    bool require_lease_id;
    int schema_validation; /* a SchemaMode */
    bool strict_queues;
    int tenancy;  /* a Tenancy */
    char *tenant; /* whom this session acts for; empty: nobody (queue/tenant.h) */
    int tick_interval_ms;
    bool webhooks_over_http;
    bool worker;
};
extern Settings settings;

void guc_init();

/* Grows whenever this session's ojs.clock_offset is set: what was remembered of times no longer holds. */
extern uint64 clock_generation;

inline bool
has_tenants()
{
    return settings.tenancy != tenancy_off;
}

/* ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$, of at most max_tenant bytes. */
bool is_tenant(std::string_view name);

/* A tenant's part of a queue is a queue of its own, whose stored name is QUEUE@TENANT. */
inline std::string_view
shown_queue(std::string_view stored)
{
    return has_tenants() ? stored.substr(0, stored.find('@')) : stored;
}

inline std::string_view
tenant_in(std::string_view stored)
{
    size_t at = stored.find('@');
    return at == stored.npos ? std::string_view() : stored.substr(at + 1);
}

/* The database's clock, moved by ojs.clock_offset. Each call of a function reads it once. */
TimestampTz now();

/* A clock that is never set, in microseconds since some moment that all processes agree on: for intervals. */
int64 steady_us();

} // namespace ojs
