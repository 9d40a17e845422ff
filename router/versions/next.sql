-- next.sql: what the next version of the router changes in its tables and types, and drops of functions and views that
-- are gone or cannot be replaced in place. As sql/versions/next.sql of ojs.

drop function ojs_http.push_once(ojs_http.request, jsonb, text);
