-- worker.sql: the background worker, and how the extension is doing. C++: src/background/worker.cpp and
-- src/admin/health.cpp.

create function ojs.start_worker() returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_start_worker';
comment on function ojs.start_worker()
    is 'Starts this database''s upkeep worker where the library is not preloaded; false if one runs already';

create function ojs.health() returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_health';
comment on function ojs.health()
    is 'How the extension is doing: version, worker, wake-up, the last rebuild of the hot set, queues';

create function ojs.ready() returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_ready';
comment on function ojs.ready() is 'Whether calls that write can be served here; false on a standby';

create function ojs_store.worker_running() returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_worker_running';

create function ojs_store.ask_for_worker() returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_ask_for_worker';

-- The launcher hears of the extension when this transaction commits.
select ojs_store.ask_for_worker();
