-- rebuild.sql: how the hot set learns that the truth was changed by SQL, and the net under it. C++: src/hot_set/rebuild.cpp.

-- Fires for COPY and INSERT, as in a restore; direct table access fires no trigger.
create function ojs_store.hot_set_lost() returns trigger
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_hot_set_lost';

create trigger hot_set_lost after insert on ojs_store.job for each statement execute function ojs_store.hot_set_lost();
create trigger hot_set_lost after insert on ojs_store.event for each statement execute function ojs_store.hot_set_lost();
create trigger hot_set_lost after insert on ojs_store.done for each statement execute function ojs_store.hot_set_lost();
create trigger hot_set_lost after insert on ojs_store.checkpoint for each statement execute function ojs_store.hot_set_lost();
alter table ojs_store.job enable always trigger hot_set_lost;
alter table ojs_store.event enable always trigger hot_set_lost;
alter table ojs_store.done enable always trigger hot_set_lost;
alter table ojs_store.checkpoint enable always trigger hot_set_lost;

-- Sessions that have cached the key of name_hash, and hashes made with it, read it again.
create function ojs_store.name_key_changed() returns trigger
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.changed('ojs_store.name_key');
    perform ojs_store.changed('ojs_store.rate_limit');
    return null;
end $$;

create trigger name_key_changed after insert or update or delete on ojs_store.name_key
for each row execute function ojs_store.name_key_changed();
alter table ojs_store.name_key enable always trigger name_key_changed;

create function ojs_store.reconcile(older_than interval default '1 minute') returns bigint
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_reconcile';
comment on function ojs_store.reconcile(interval)
    is 'Puts back open jobs that are in no place of the hot set, and counts them; done by the tick now and then';
