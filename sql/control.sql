-- control.sql: what a producer may still do about its job. C++: src/push/cancel.cpp.

create function ojs.cancel(job_id uuid, idempotent boolean default false) returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_cancel';
comment on function ojs.cancel(uuid, boolean)
    is 'Cancels an open job, an active one too; with idempotent a finished job is returned as it is instead of an '
       'error';

create function ojs.activate(job_id uuid) returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_activate';
comment on function ojs.activate(uuid) is 'Makes a pending job available, or scheduled where its time is still to come';
