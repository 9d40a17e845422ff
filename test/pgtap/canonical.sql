-- canonical.sql: canonical JSON (RFC 8785 after NFC), uniqueness policies and fingerprints. test/canonical compares the
-- same functions with ECMAScript and an independent library, by the million. Runs once: nothing here asks whether ojs
-- was preloaded.
begin;
select no_plan();

create function pg_temp.job(uniq jsonb, args jsonb default '[{"user_id": 42, "template": "welcome"}]',
    meta jsonb default '{}')
returns jsonb language sql as
$$ select jsonb_build_object('type', 'email.send', 'queue', 'notifications', 'args', args, 'meta', meta,
    'unique', uniq) $$;
create function pg_temp.input(uniq jsonb, args jsonb default '[{"user_id": 42, "template": "welcome"}]',
    meta jsonb default '{}')
returns text language sql as $$ select ojs.fingerprint_input(pg_temp.job(uniq, args, meta)) $$;

-- NUMBERS ----------------------------------------------------------------------------------------------------------

-- The finite rows of RFC 8785, appendix B: the bits of a double and its canonical text.
create temp table number_sample (bits text, canonical text);
insert into number_sample values
    ('0000000000000000', '0'),
    ('8000000000000000', '0'),
    ('0000000000000001', '5e-324'),
    ('8000000000000001', '-5e-324'),
    ('7fefffffffffffff', '1.7976931348623157e+308'),
    ('ffefffffffffffff', '-1.7976931348623157e+308'),
    ('4340000000000000', '9007199254740992'),
    ('c340000000000000', '-9007199254740992'),
    ('4430000000000000', '295147905179352830000'),
    ('44b52d02c7e14af5', '9.999999999999997e+22'),
    ('44b52d02c7e14af6', '1e+23'),
    ('44b52d02c7e14af7', '1.0000000000000001e+23'),
    ('444b1ae4d6e2ef4e', '999999999999999700000'),
    ('444b1ae4d6e2ef4f', '999999999999999900000'),
    ('444b1ae4d6e2ef50', '1e+21'),
    ('3eb0c6f7a0b5ed8c', '9.999999999999997e-7'),
    ('3eb0c6f7a0b5ed8d', '0.000001'),
    ('41b3de4355555553', '333333333.3333332'),
    ('41b3de4355555554', '333333333.33333325'),
    ('41b3de4355555555', '333333333.3333333'),
    ('41b3de4355555556', '333333333.3333334'),
    ('41b3de4355555557', '333333333.33333343'),
    ('becbf647612f3696', '-0.0000033333333333333333'),
    ('43143ff3c1cb0959', '1424953923781206.2');

-- Exact: a mantissa below 2^53 times a power of two.
create function pg_temp.double_of(bits text) returns double precision language sql as $$
    select case when b < 0 then -1 else 1 end
        * (m + case when e = 0 then 0 else 1::bigint << 52 end)::double precision
        * power(2::double precision, greatest(e, 1) - 1075)
    from (select b, (b >> 52) & 2047 as e, b & ((1::bigint << 52) - 1) as m
          from (select ('x' || bits)::bit(64)::bigint as b) as q) as p
$$;
select is((select count(*) from number_sample
           where bits <> '8000000000000000' and encode(float8send(pg_temp.double_of(bits)), 'hex') <> bits),
          0::bigint, 'the samples'' bits are read right');
select is(ojs.canonical_json(to_jsonb(pg_temp.double_of(bits))), canonical, 'UNQ-09 RFC 8785 number sample ' || bits)
from number_sample;

select is(ojs.canonical_json(given), canonical, 'UNQ-09 number ' || left(given::text, 40))
from (values
    ('1'::jsonb, '1'), ('1.0', '1'), ('1e0', '1'), ('10e-1', '1'), ('-0', '0'), ('-0.0', '0'), ('-1.50', '-1.5'),
    ('100', '100'), ('999999999999999', '999999999999999'), ('-99999999999999', '-99999999999999'),
    ('1000000000000000', '1000000000000000'), ('9007199254740991', '9007199254740991'),
    ('9007199254740993', '9007199254740992'), ('9007199254740995', '9007199254740996'),
    ('0.1', '0.1'), ('0.10000000000000000001', '0.1'), ('1e20', '100000000000000000000'), ('1e21', '1e+21'),
    ('0.000001', '0.000001'), ('0.0000001', '1e-7'), ('123e-9', '1.23e-7'), ('4.50', '4.5'), ('2e-3', '0.002'),
    ('1e-27', '1e-27'), ('333333333.33333329', '333333333.3333333'), ('1e-400', '0'), ('-1e-400', '0'),
    ('179769313486231570814527423731704356798070e267', '1.7976931348623157e+308')) as v(given, canonical);
select throws_ok('select ojs.canonical_json(''[1e309]'')', 'OJ100', null,
    'UNQ-09 a number beyond the range of a double is refused');
select throws_ok('select ojs.canonical_json(''-1e400'')', 'OJ100', null, 'UNQ-09 so is a negative one');

-- STRINGS AND STRUCTURE --------------------------------------------------------------------------------------------

select is(ojs.canonical_json('{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA''\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}'),
    '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
    '"string":"€$\u000f\nA''B\"\\\\\"/"}',
    'UNQ-09 the sample document of RFC 8785');
select is(ojs.canonical_json('{"\uffe6": 1, "\ud83d\ude00": 2, "\ue000": 3, "\u20ac": 4, "\ud7ff": 5, "a": 6, "": 7, '
    '"aa": 8, "B": 9}'),
    '{"":7,"B":9,"a":6,"aa":8,"€":4,"' || U&'\D7FF' || '":5,"😀":2,"' || U&'\E000' || '":3,"' || U&'\FFE6' || '":1}',
    'UNQ-09 keys by UTF-16 code units: a surrogate comes before U+E000');
select is(ojs.canonical_json('{"b": {"d": [], "c": {}}, "a": [{"z": 1, "y": [[2]]}, "x"]}'),
    '{"a":[{"y":[[2]],"z":1},"x"],"b":{"c":{},"d":[]}}', 'UNQ-09 keys are sorted at every level, without white space');
select is(ojs.canonical_json(to_jsonb(string_agg(chr(c), '' order by c))),
    '"\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n\u000b\f\r\u000e\u000f\u0010\u0011\u0012\u0013\u0014\u0015\u0016'
    || '\u0017\u0018\u0019\u001a\u001b\u001c\u001d\u001e\u001f !"',
    'UNQ-09 control characters, and nothing else, are escaped')
from generate_series(1, 33) as c;
select is(ojs.canonical_json(to_jsonb(U&'/\007F\0080\2028"\005C'::text)), U&'"/\007F\0080\2028\005C"\005C\005C"',
    'UNQ-09 no other escapes than those of quote and backslash');
select is(ojs.canonical_json(v), c, 'UNQ-09 a value of its own: ' || c)
from (values ('null'::jsonb, 'null'), ('true', 'true'), ('"a"', '"a"'), ('[]', '[]'), ('{}', '{}'),
    ('[[]]', '[[]]')) as t(v, c);
select is(ojs.canonical_json(null), null, 'null gives null');

-- NFC --------------------------------------------------------------------------------------------------------------

select is(ojs.canonical_json(jsonb_build_object(U&'cafe\0301', U&'e\0301')), U&'{"caf\00E9":"\00E9"}'::text,
    'UNQ-11 strings and keys are composed');
select is(ojs.canonical_json(to_jsonb(U&'\212B \1100\1161\11A8 a\0323\0302 \0958'::text)),
    to_jsonb(normalize(U&'\212B \1100\1161\11A8 a\0323\0302 \0958'))::text,
    'UNQ-11 as the server''s own normalize() does it');
select is(ojs.canonical_json(jsonb_build_object('f', 1, U&'e\0301', 2, 'e~', 3)), U&'{"e~":3,"f":1,"\00E9":2}',
    'UNQ-09 keys are sorted after they are normalised');
select throws_ok($$ select ojs.canonical_json(jsonb_build_object(U&'e\0301', 1, U&'\00E9', 2)) $$, 'OJ100',
    U&'value holds an object with two keys that are the same in Unicode''s form NFC: "e\0301"',
    'UNQ-09 two keys that NFC makes one are refused');
select is(ojs.canonical_json(to_jsonb(repeat(U&'\AC00\1100\1161 e\0301', 5000))),
    to_jsonb(normalize(repeat(U&'\AC00\1100\1161 e\0301', 5000)))::text, 'UNQ-11 long text is normalised in pieces');
select throws_ok($$ select ojs.canonical_json(to_jsonb(repeat(U&'\0301\0316', 200000))) $$, 'OJ100', null,
    'UNQ-11 marks without end, which take the server minutes to put into order, are refused');

-- FINGERPRINTS -----------------------------------------------------------------------------------------------------

select is(ojs.fingerprint_input(j), '{"args":{"user_id":42},"queue":"notifications","type":"email.send"}',
    'UNQ-10 golden vector: input')
from pg_temp.job('{"keys": ["type", "queue", "args"], "args_keys": ["user_id"]}') as j;
select is(ojs.fingerprint(j), '71f9344b82e66297a49775bbe27752297922842b675330641ebe3ff4fea46c1f',
    'UNQ-10 golden vector: SHA-256')
from pg_temp.job('{"keys": ["type", "queue", "args"], "args_keys": ["user_id"]}') as j;
select is(ojs.fingerprint(j), encode(sha256(convert_to(ojs.fingerprint_input(j), 'UTF8')), 'hex'),
    'UNQ-12 the hash is SHA-256 of the UTF-8 bytes')
from pg_temp.job('{"keys": ["args"]}', '["ÄΩ€😀"]') as j;

select is(ojs.fingerprint('{"type": "a", "args": []}'), null, 'a job without a policy has no fingerprint');
select is(ojs.fingerprint_input('{"type": "a", "args": []}'), null, 'nor an input to one');
select is(ojs.fingerprint('{"type": "a", "args": [], "unique": null}'), null, 'a policy of null is none');

select is(pg_temp.input(uniq), '{"type":"email.send"}', 'UNQ-01 R-46 only the type counts: ' || uniq::text)
from (values ('{}'::jsonb), ('{"keys": null}'), ('{"keys": []}'), ('{"keys": ["type"]}'),
    ('{"args_keys": [], "meta_keys": []}'),
        ('{"args_keys": null, "meta_keys": null, "period": null, "states": null, "on_conflict": null}')) as v(uniq);
select is(pg_temp.input('{"keys": ["args"]}', '[1, "two"]'), '{"args":[1,"two"],"type":"email.send"}',
    'UNQ-03 type counts without being named');
select is(pg_temp.input('{"keys": ["queue"]}'), '{"queue":"notifications","type":"email.send"}', 'UNQ-06 queue');
select is(ojs.fingerprint_input('{"type": "a", "args": [], "unique": {"keys": ["queue"]}}'),
    '{"queue":"default","type":"a"}',
    'UNQ-06 the queue of a job that names none');
select is(ojs.fingerprint_input('{"type": "a.b@2.0", "args": [], "unique": {}}'), '{"type":"a.b"}',
    'R-57 versions of a type count as one type');
select is(ojs.fingerprint_input(j), '{"args":[{"a":1}],"type":"t"}', 'R-01 a bare object counts as an array of one')
from (values ('{"type": "t", "args": {"a": 1}, "unique": {"keys": ["args"]}}'::jsonb),
    ('{"type": "t", "args": [{"a": 1}], "unique": {"keys": ["args"]}}')) as v(j);
select is(pg_temp.input('{"keys": ["args"], "args_keys": ["b", "a"]}',
    '[1, {"x": 0}, {"b": 2, "c": 3}, {"a": 4, "b": 5}]'),
    '{"args":{"a":4,"b":2},"type":"email.send"}', 'R-01 args_keys takes each key from the first object that has it');
select is(pg_temp.input('{"keys": ["args"], "args_keys": ["a"]}', '[{"a": null}]'),
    '{"args":{"a":null},"type":"email.send"}', 'UNQ-05 a key that is null is not absent');
select is(pg_temp.input('{"keys": ["args"], "args_keys": ["user_id"]}', '[{"user_id": 42, "locale": "en"}]'),
    pg_temp.input('{"keys": ["args"], "args_keys": ["user_id"]}', '[{"user_id": 42, "locale": "de"}]'),
        'UNQ-07 only the named keys count');
select is(pg_temp.input('{"keys": ["meta"], "meta_keys": ["tenant", "b"]}', meta => '{"tenant": "acme", "trace": 7}'),
    '{"meta":{"b":null,"tenant":"acme"},"type":"email.send"}', 'UNQ-08 R-49 meta; an absent key counts as null');
select is(ojs.fingerprint_input('{"type": "a", "args": [], "unique": {"keys": ["meta"], "meta_keys": ["b"]}}'),
    '{"meta":{"b":null},"type":"a"}', 'R-49 also for a job without meta');
select is(pg_temp.input(uniq), '{"args":{"user_id":42},"type":"email.send"}',
    'R-45 key is an older spelling of keys and args_keys')
from (values ('{"key": ["user_id"]}'::jsonb), ('{"keys": ["args", "type"], "args_keys": ["user_id"]}'),
    ('{"key": ["user_id"], "keys": null}')) as v(uniq);
select is(pg_temp.input('{"key": []}', '[1]'), '{"args":[1],"type":"email.send"}', 'R-45 an empty key is all of args');

select is(pg_temp.input('{"keys": ["args"], "args_keys": ["a"]}',
    '[{"b": [2, {"d": 1, "c": 1.0}], "a": {"y": 1e0, "x": "e"}}]'),
    pg_temp.input('{"args_keys": ["a"], "keys": ["args"]}', '[  {"a":{"x":"e","y":1}}]'),
        'UNQ-11 order of keys and form of numbers do not matter');
select isnt(pg_temp.input('{"keys": ["args"]}', '[1, 2]'), pg_temp.input('{"keys": ["args"]}', '[2, 1]'),
    'UNQ-11 the order of an array does');
select is(count(distinct ojs.fingerprint(pg_temp.job(jsonb_build_object('keys', '["args"]'::jsonb, 'args_keys',
    jsonb_build_array(k)),
        jsonb_build_array(jsonb_build_object(a, 1))))), 1::bigint, 'UNQ-11 args_keys finds a key in either spelling')
from (values (U&'\00E9'), (U&'e\0301')) as v(k), (values (U&'\00E9'), (U&'e\0301')) as w(a);
select is(pg_temp.input('{"keys": ["args"], "args_keys": ["K"]}', jsonb_build_array(jsonb_build_object(U&'\212A', 1))),
    '{"args":{"K":1},"type":"email.send"}', 'UNQ-11 also one that NFC makes ASCII');
select throws_ok($$ select pg_temp.input(jsonb_build_object('keys', '["args"]'::jsonb, 'args_keys',
    jsonb_build_array(U&'\00E9')),
        jsonb_build_array(jsonb_build_object(U&'e\0301', 1, U&'\00E9', 2))) $$, 'OJ702',
    U&'args has several keys that are "\00E9" in Unicode''s form NFC', 'UNQ-11 but not when both are there');

-- POLICIES THAT ARE REFUSED ----------------------------------------------------------------------------------------

select throws_ok(format('select pg_temp.input(%L)', uniq), 'OJ702', null, 'UNQ-02 refused: ' || uniq)
from (values
    ('[]'), ('"type"'), ('1'), ('{"kyes": ["type"]}'), ('{"Keys": ["type"]}'), ('{"keys": "type"}'),
        ('{"keys": {"type": 1}}'),
    ('{"keys": ["type", 1]}'), ('{"keys": ["types"]}'), ('{"keys": ["Type"]}'), ('{"keys": ["type", "type"]}'),
        ('{"keys": ["args", "args"]}'),
    ('{"keys": ["args"], "args_keys": "user_id"}'), ('{"keys": ["args"], "args_keys": {"user_id": 1}}'),
        ('{"keys": ["args"], "args_keys": [1]}'),
    ('{"keys": ["args"], "args_keys": ["user_id", "user_id"]}'), ('{"period": "1h"}'), ('{"period": "PT0S"}'),
        ('{"period": 3600}'),
    ('{"period": "3600s"}'), ('{"period": ""}'), ('{"period": "-PT5S"}'),
    ('{"states": []}'), ('{"states": "active"}'), ('{"states": ["Active"]}'), ('{"states": ["running"]}'),
        ('{"states": ["active", "active"]}'),
    ('{"states": [null]}'), ('{"on_conflict": "Reject"}'), ('{"on_conflict": "raise"}'), ('{"on_conflict": 1}'),
    ('{"key": "user_id"}'), ('{"key": ["user_id"], "keys": ["args"]}'),
        ('{"key": ["user_id"], "args_keys": ["user_id"]}')) as v(uniq);
select throws_ok(format('select pg_temp.input(%L)', uniq), 'OJ702', null, 'UNQ-04 meta without meta_keys: ' || uniq)
from (values ('{"keys": ["meta"]}'), ('{"keys": ["meta"], "meta_keys": []}'),
    ('{"keys": ["meta"], "meta_keys": null}')) as v(uniq);
select throws_ok(format('select pg_temp.input(%L)', uniq), 'OJ702', null, 'R-46 keys without their dimension: ' || uniq)
from (values ('{"args_keys": ["user_id"]}'), ('{"keys": ["args"], "meta_keys": ["a"]}'),
    ('{"keys": ["type"], "args_keys": ["user_id"]}')) as v(uniq);
select throws_ok(format('select pg_temp.input(%L, %L)', '{"keys": ["args"], "args_keys": ["user_id", "b"]}',
    args), 'OJ702',
    'unique.args_keys names "b", which args does not have', 'UNQ-05 a key that args does not have: ' || args)
from (values ('[{"user_id": 1}]')) as v(args);
select throws_ok(format('select pg_temp.input(%L, %L)', '{"keys": ["args"], "args_keys": ["b"]}', args), 'OJ702', null,
    'UNQ-05 args without such an object: ' || args)
from (values ('[]'), ('["b"]'), ('[{}]'), ('[[{"b": 1}]]'), ('[{"a": {"b": 1}}]')) as v(args);
select throws_ok($$ select pg_temp.input(jsonb_build_object('keys', '["args"]'::jsonb, 'args_keys',
    jsonb_build_array(U&'\00E9', U&'e\0301')),
        '[{"a": 1}]') $$, 'OJ702', U&'unique.args_keys lists "\00E9" twice',
            'UNQ-02 one key in two spellings is listed twice');
select lives_ok(format('select pg_temp.input(%L)', uniq), 'UNQ-01 UNQ-24 accepted: ' || uniq)
from (values
    ('{"states": ["scheduled"]}'),
        ('{"states": ["scheduled", "available", "pending", "active", "completed", "retryable", "cancelled", '
         '"discarded"]}'),
    ('{"period": "PT1H"}'), ('{"period": "P7D"}'), ('{"on_conflict": "reject"}'), ('{"on_conflict": "replace"}'),
    ('{"on_conflict": "replace_except_schedule"}'), ('{"on_conflict": "ignore"}')) as v(uniq);

-- R-13: WHAT WOULD MERGE -------------------------------------------------------------------------------------------

select throws_ok(format('select pg_temp.input(%L, %L)', '{"keys": ["args"]}', args), 'OJ702', null,
    'R-13 refused in args: ' || left(args, 40))
from (values ('[9007199254740992]'), ('[9007199254740993]'), ('[-9007199254740992]'),
    ('[{"a": [12345678901234567890]}]'), ('[1e21]'), ('[1e300]'),
    ('[0.10000000000000000001]'), ('[0.12345678901234567]'), ('[9007199254740991.5]'), ('[1e-350]'),
        ('[1e350]')) as v(args);
select is(pg_temp.input('{"keys": ["args"]}', args), '{"args":' || canonical || ',"type":"email.send"}',
    'R-13 accepted in args: ' || args::text)
from (values ('[9007199254740991]'::jsonb, '[9007199254740991]'), ('[-9007199254740991]', '[-9007199254740991]'),
    ('[0.1]', '[0.1]'),
    ('[1e-7]', '[1e-7]'), ('[0.00001]', '[0.00001]'), ('[1.50]', '[1.5]'),
        ('[4503599627370495.5]', '[4503599627370495.5]'),
    ('[5e-324]', '[5e-324]'), ('[-0]', '[0]'), ('["9007199254740993"]', '["9007199254740993"]')) as v(args, canonical);
select throws_ok($$ select pg_temp.input('{"keys": ["meta"], "meta_keys": ["a"]}',
    meta => '{"a": 9007199254740993}') $$, 'OJ702',
    'meta holds a number that canonical JSON cannot tell from its neighbours: 9007199254740993',
        'R-13 refused in meta, and named');
select lives_ok($$ select pg_temp.input('{"keys": ["args"], "args_keys": ["a"]}', '[{"a": 1, "b": 9007199254740993}]',
    '{"c": 1e30}') $$,
    'R-13 accepted where it is not hashed');
select throws_ok($$ select pg_temp.input('{"keys": ["args"]}',
    jsonb_build_array(jsonb_build_object(U&'e\0301', 1, U&'\00E9', 2))) $$, 'OJ702', null,
    'UNQ-09 two keys that NFC makes one are refused in what is hashed');

select throws_ok($$ select ojs.fingerprint('{"args": [], "unique": {}}') $$, 'OJ100', null,
    'what no push would take has no fingerprint: no type');
select throws_ok($$ select ojs.fingerprint('[]') $$, 'OJ100', null, 'nor has what is no object');

select * from finish();
rollback;
