-- tick.sql: upkeep by whoever calls. C++: src/upkeep/tick.cpp, src/state/reap.cpp and src/upkeep/retention.cpp.

create function ojs.tick(budget int default null) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_tick';
comment on function ojs.tick(int)
    is 'One pass of upkeep: reaps lapsed leases, promotes due jobs, discards expired ones, removes what is kept no longer; at most budget rows per duty';
