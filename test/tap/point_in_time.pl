# A base backup and the archived log bring every job back as it was at a point in time (PGX-04).
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = server('primary', preload => 1, streaming => 1, archive => 1);
my $states = q{select string_agg(format('%s %s %s', id, queue, state), e'\n' order by seq) from ojs.jobs};
my $push = q{select ojs.push('test.job', queue => 'q') from generate_series(1, 3)};

$node->safe_psql('postgres', $push);
# The backup is taken while a claim is open.
my $session = $node->background_psql('postgres', on_error_stop => 1);
$session->query_safe("begin; select from ojs.claim('q', 'w', lease => '1 day')");
$node->backup('base');
$session->query_safe('commit');
$session->quit;
$node->safe_psql('postgres', $push . q{;
    select from ojs.push('test.job', queue => 'scheduled', delay => '1 hour');
    select ojs.ack(id) from ojs.claim('q', 'w', max => 2);
    select ojs.fail(id, '{"type": "E", "message": "m"}', delay => '1 hour') from ojs.claim('q', 'w');
    select from ojs.push('test.job', queue => 'unique', "unique" => '{"keys": ["type", "queue"]}');
    select ojs.schedule('yearly', '@yearly', '{"type": "test.job"}');
});
(my $expected = $node->safe_psql('postgres', $states)) =~ s/active/available/g;
$node->safe_psql('postgres', q{select pg_create_restore_point('before')});
# What comes after that is undone.
$node->safe_psql('postgres', q{
    select ojs.purge_queue('q', array['available', 'active', 'completed'], confirm => true);
    select ojs.unschedule('yearly');
    select ojs.push('test.job', queue => 'too.late');
    select pg_switch_wal();
});
$node->stop;

my $back = PostgreSQL::Test::Cluster->new('back');
$back->init_from_backup($node, 'base', has_restoring => 1, standby => 0);
$back->append_conf('postgresql.conf', "recovery_target_name = 'before'\nrecovery_target_action = promote\n");
$back->start;
awaits($back, 'select not pg_is_in_recovery()', 'recovery ends');
is($back->safe_psql('postgres', $states), $expected, 'PGX-04: every job is as it was then, but that leases end');
is($back->safe_psql('postgres', q{select name from ojs.crons}), 'yearly', 'so are cron entries');
is($back->safe_psql('postgres', q{select deduplicated from ojs.push('test.job', queue => 'unique',
    "unique" => '{"keys": ["type", "queue"], "on_conflict": "ignore"}')}), 't',
    'a unique job is still the only one');
is($back->safe_psql('postgres', q{select count(*) || ' ' || count(distinct id) from ojs.claim('q', 'w', max => 10)}),
    '3 3',
    'what was open and not waiting is claimed once');
is($back->safe_psql('postgres', q{select count(*) from ojs.claim(array['q', 'scheduled'], 'w', max => 10)}), 0,
    'what waits still waits');
is(health($back, 'hot_set,last_rebuild,cause'), 'crash or promotion',
    'OBS-01: health says that the hot set was rebuilt');
$back->stop;

done_testing();
