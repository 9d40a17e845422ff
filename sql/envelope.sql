-- envelope.sql: a job in the JSON form of the Open Job Spec.

create function ojs.envelope(job ojs.job) returns jsonb
    language c immutable strict parallel safe
    as 'MODULE_PATHNAME', 'ojs_envelope';
comment on function ojs.envelope(ojs.job) is
    'The OJS JSON envelope of a job: what is absent is left out, unknown attributes stand at the top level';
