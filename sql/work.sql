-- work.sql: work bound to the session. C++: src/work/session.cpp.

create function ojs.work_open(queue text, worker text, max int default 1, lease interval default null) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_work_open';
comment on function ojs.work_open(text, text, int, interval)
    is 'Begins push mode: ojs.work_next gives this session at most max unfinished jobs, which are given back when it '
       'ends';

create function ojs.work_next(wait interval default '0', worker text default null) returns setof ojs.claimed_job
language c volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_work_next';
comment on function ojs.work_next(interval, text)
    is 'The next jobs of the work session, as many as it has finished since; waits up to wait (at most 30 s) for the '
       'first';

create function ojs.work_close() returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_work_close';
comment on function ojs.work_close() is 'Ends push mode and gives back what the session has not finished';
