-- once.sql: side effects that must not be repeated.

-- Waits for an open transaction that has stored the same token, and answers by how that ends.
create function ojs.once(token text, scope text default '') returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if coalesce(token, '') = '' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'token must not be empty', '{"field": "token"}',
            'Give what must not be done twice a name, such as the job''s id.');
    end if;
    if octet_length(token) + octet_length(coalesce(scope, '')) > 1024 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'token and scope are longer than 1024 bytes', '{"field": "token"}',
            'Give a hash of the token instead.');
    end if;
    insert into ojs_store.once_token (scope, token, at)
        values (coalesce(ojs_store.caller_tenant() || e'\t', '') || coalesce(scope, ''), token, ojs_store.now())
        on conflict do nothing;
    return found;
end $$;
comment on function ojs.once(text, text)
    is 'True for one transaction only of all that commit with this token and scope; remembered as long as a dead '
       'letter can be replayed, 180 days by default';
