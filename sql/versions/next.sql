-- next.sql: what the next version changes in the tables and types of the previous one, and drops of functions and views
-- that are gone or cannot be replaced in place. `make freeze` keeps it as part of the update script and empties it.

drop function ojs_http.pushed_items(jsonb, text, text, interval);
drop function ojs_http.tried_items(jsonb, text, interval);
drop function ojs_http.push_once(ojs_http.request, jsonb, text);
drop function ojs_http.do_push_bulk(ojs_http.request, jsonb, jsonb);
drop function ojs_http.do_push_batch(ojs_http.request, jsonb, jsonb);
