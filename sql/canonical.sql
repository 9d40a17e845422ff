-- canonical.sql: canonical JSON and fingerprints. C++: src/job/canonical.cpp, src/job/unique_key.cpp.

create function ojs.canonical_json(jsonb) returns text
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_canonical_json';
comment on function ojs.canonical_json(jsonb)
    is 'The RFC 8785 canonical text of a JSON value, its strings and keys in Unicode''s form NFC; numbers are rounded '
       'to doubles';

-- Stable, not immutable: what a valid job is depends on settings. Unsafe, not safe: the caller's tenant may have to be
-- read, by a snapshot that a parallel query cannot take.
create function ojs.fingerprint_input(job jsonb) returns text
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_fingerprint_input';
comment on function ojs.fingerprint_input(jsonb)
    is 'The canonical JSON that the fingerprint of an OJS envelope is made of; null for a job without a uniqueness '
       'policy';

create function ojs.fingerprint(job jsonb) returns text
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_fingerprint';
comment on function ojs.fingerprint(jsonb)
    is 'The fingerprint of an OJS envelope: SHA-256, in hex, of ojs.fingerprint_input; null for a job without a '
       'uniqueness policy';
