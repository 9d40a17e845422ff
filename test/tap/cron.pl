# Cron entries run by several tickers at once, through a crash and a restart, and by the worker: each occurrence exactly
# once (CRN-09, PGX-05). What a ticker cannot get it leaves to others.
# Runs long.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;
use IPC::Run ();

my $entries = 30;
my $register = qq{select ojs.schedule('e' || n, '* * * * * *', jsonb_build_object('type', 't', 'queue', 'q' || n),
    '{"overlap_policy": "allow"}') from generate_series(1, $entries) n};
# How often an occurrence was run twice, a count is wrong, or a run has no event.
my $wrong = q{
    select (select count(*) from (select from ojs.jobs group by meta ->> 'cron_name',
        meta ->> 'cron_scheduled_at' having count(*) > 1) twice)
        + (select count(*) from ojs.crons c
            where run_count <> (select count(*) from ojs.jobs where queue = replace(c.name, 'e', 'q')))
        + (select count(*) from ojs.crons c where run_count <> (
            select count(*) from ojs_store.stored_event where subject = c.name and type = 'cron.triggered'))};

# Six sessions that tick as fast as they can, each second of a moved clock; then a crash among them.
my $node = server('tickers', conf => "restart_after_crash = on\nfsync = on\n");
$node->safe_psql('postgres', $register);
$node->safe_psql('postgres', q{
    -- Until each entry has had so many runs.
    create procedure tick_until(runs int) language plpgsql as $$
    begin
        while exists (select from ojs.crons where run_count < runs) loop
            perform ojs.tick();
            commit;
        end loop;
    end $$;
});
sub tickers {
    my ($call) = @_;
    return map {
        my %run = (out => '', err => '');
        $run{handle} = IPC::Run::start(['psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', $call], '<', \undef,
            '>', \$run{out}, '2>', \$run{err});
        \%run;
    } 1 .. 6;
}
for my $run (tickers('call tick_until(3)')) { $run->{handle}->finish; is($run->{err}, '',
    'PGX-05: a ticker among six fails never'); }
is($node->safe_psql('postgres', $wrong), 0, 'CRN-09: six tickers run each occurrence once');

my @doomed = tickers('call tick_until(1000)');
$node->poll_query_until('postgres', "select sum(run_count) > 5 * $entries from ojs.crons") or die;
$node->stop('immediate');
for my $run (@doomed) { $run->{handle}->finish; }
$node->start;
is($node->safe_psql('postgres', $wrong), 0, 'CRN-09: after a crash no occurrence has run twice');
$node->poll_query_until('postgres',
    "select bool_and(next_run_at < ojs_store.now() - interval '2 seconds') from ojs.crons") or die;
my $since = $node->safe_psql('postgres', 'select ojs_store.now()');
for my $run (tickers('select ojs.tick()')) { $run->{handle}->finish; is($run->{err}, '', 'PGX-05: nor after a crash'); }
is($node->safe_psql('postgres', $wrong), 0, 'CRN-09: nor when what was missed is made up for');
is($node->safe_psql('postgres', qq{
    with late as (select meta ->> 'cron_name' as name, (meta ->> 'cron_scheduled_at')::timestamptz <= '$since' as missed
        from ojs.jobs where (meta ->> 'cron_triggered_at')::timestamptz > '$since')
    select max(n) <= 1, count(*) from (select count(*) filter (where missed) as n from late group by name) x}),
        "t|$entries", 'CRN-09: by one run each');

# An open transaction that has an entry, or a unique key that an entry's job needs, holds up that entry alone.
$node->safe_psql('postgres', q{
    select ojs.unschedule(name) from ojs.crons;
    select ojs.schedule(name, '@every 1s',
        format('{"type": "t", "queue": "%s", "unique": {"keys": ["queue"], "states": ["completed"]}}',
        name)::jsonb) from unnest('{row,key,free}'::text[]) name});
my $holder = $node->background_psql('postgres', on_error_stop => 1);
$holder->query_safe(q{begin; select ojs.schedule('row', null, null, '{"description": "held"}'); select ojs.push('t',
    queue => 'key', "unique" => '{"keys": ["queue"]}')});
$node->poll_query_until('postgres', "select bool_and(next_run_at < ojs_store.now()) from ojs.crons") or die;
is($node->safe_psql('postgres', "select ojs.tick() ->> 'crons'"), 2, 'PGX-05: a tick takes what it can get');
is($node->safe_psql('postgres', "select string_agg(name, ' ') from ojs.crons where run_count > 0"), 'free',
    'PGX-05: and waits for nobody');
is($node->safe_psql('postgres', "select count(*) from ojs_store.stored_event where type = 'cron.skipped'"), 0,
    'CRN-09: what was held up is not given up');
$holder->query_safe('rollback');
$holder->quit;
ok($node->poll_query_until('postgres',
    "select ojs.tick() is not null and (select count(*) = 3 from ojs.crons where run_count > 0)"),
    'CRN-09: it runs when the other is done');

# A transaction with one snapshot for all of it leaves entries to others.
$node->poll_query_until('postgres', "select bool_and(next_run_at < ojs_store.now()) from ojs.crons") or die;
is($node->safe_psql('postgres', "begin isolation level serializable; select ojs.tick() ->> 'crons'; commit"), 0,
    'PGX-05: a serializable tick runs none');
$node->stop;

# The worker.
my $preloaded = server('cron_worker', preload => 1, conf => "ojs.tick_interval = '60s'\n");
worker_pid($preloaded);
$preloaded->safe_psql('postgres', q{select ojs.schedule('beat', '@every 1s', '{"type": "t"}',
    '{"overlap_policy": "allow"}')});
awaits($preloaded, 'select run_count >= 3 from ojs.crons',
    'CRN-09: the worker wakes up for an entry, not at its own interval');
# On a machine of its own none is late. Elsewhere the best of them shows when the worker wakes up.
is($preloaded->safe_psql('postgres',
    q{select min((meta ->> 'cron_triggered_at')::timestamptz - (meta ->> 'cron_scheduled_at')::timestamptz)
        < interval '1 second' from ojs.jobs}), 't',
    'CRN-09: within a second');
$preloaded->restart;
awaits($preloaded, q{select run_count >= 5 from ojs.crons}, 'CRN-09: after a restart it goes on');
is($preloaded->safe_psql('postgres',
    q{select count(*) from (select from ojs.jobs group by meta ->> 'cron_scheduled_at' having count(*) > 1) twice}), 0,
    'CRN-09: without running anything twice');
$preloaded->stop;
done_testing();
