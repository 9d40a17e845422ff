# The background worker is asked to end in the middle of its work: nothing is left half done (GS-01).
use strict;
use warnings;
use Ojs;
use Test::More;

my $node = server('shutdown', preload => 1, conf => "ojs.tick_interval = '10ms'\nlog_min_messages = debug1\n");

# A fast shutdown in the middle of much work: every job is where it was, or where the pass put it.
$node->safe_psql('postgres', q{
    select count(*) from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 't', 'args', '[]'::jsonb, 'queue',
        'busy', 'options', '{"delay_until": "+PT0.5S"}'::jsonb)) from generate_series(1, 5000)));
    select count(*) from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 't', 'args', '[]'::jsonb, 'queue',
        'running', 'options', '{"retry": {"max_attempts": 100}}'::jsonb)) from generate_series(1, 3000)));
    select count(*) from (select ojs.claim('running', 'w', 1000, '100 ms') from generate_series(1, 3)) c});
awaits($node, q{select exists (select from ojs_store.ready r join ojs_store.job j on j.id = r.job_id
    where j.scheduled_at is not null)}, 'GS-01: the worker is at it');
$node->stop('fast');
$node->start;
awaits($node, q{select count(*) = 8000 from ojs_store.ready},
    'GS-01: a fast shutdown loses nothing: all are claimable in the end');
is($node->safe_psql('postgres',
    q{select count(*) - count(distinct job_id) from (select job_id from ojs_store.ready
        union all select job_id from ojs_store.delayed union all select job_id from ojs_store.lease) h}),
    0, 'GS-01: and each is in one place');
is($node->safe_psql('postgres',
    q{select count(*) from ojs_store.job_history where kind = 3
        and job_id in (select id from ojs.jobs where queue = 'running')
        group by job_id, deliveries having count(*) > 1}), '',
    'GS-01: no lapse is counted twice');
$node->stop('fast');

done_testing();
