# pg_dump and pg_restore into a server with a live worker keep all jobs (PGX-13).
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = server('restore', preload => 1);
$node->safe_psql('postgres', q{
    select ojs.push('test.job', queue => 'ready') from generate_series(1, 5);
    select from ojs.push('test.job', queue => 'scheduled', delay => '1 hour');
    select from ojs.push('test.job', queue => 'retryable');
    select ojs.fail(id, '{"type": "E", "message": "m"}', delay => '1 hour') from ojs.claim('retryable', 'w');
    select ojs.push('test.job', queue => 'done') from generate_series(1, 2);
    select ojs.ack(id) from ojs.claim('done', 'w', max => 2);
    select from ojs.push('test.job', queue => 'leased');
    select from ojs.claim('leased', 'w', lease => '1 hour');
    select ojs.checkpoint(id, '[1]') from ojs.jobs where queue in ('leased', 'done',
        'scheduled') and state not in ('completed');
    select ojs.push('test.child', queue => 'ready', options => jsonb_build_object('parent_id', id)) from ojs.jobs
        where queue = 'leased';
    select ojs.schedule('yearly', '@yearly', '{"type": "test.job"}',
        '{"timezone": "Europe/Berlin", "description": "kept"}');
});
my $crons = q{select string_agg(format('%s', c), ', ' order by name) from ojs.crons c};
my $crons_before = $node->safe_psql('postgres', $crons);
my $states = q{select string_agg(format('%s %s %s', queue, case state when 'active' then 'available' else state end,
    case state when 'active' then 0 else attempt end), ', ' order by queue, seq) from ojs.jobs};
my $before = $node->safe_psql('postgres', $states);
my $lineage = q{select string_agg(ojs.lineage(id)::text, ' ' order by id) from ojs.jobs
    where type = 'test.child' or queue = 'leased'};
my $lineage_before = $node->safe_psql('postgres', $lineage);
my $hash = q{select ojs_store.name_hash('new')};
my $hash_before = $node->safe_psql('postgres', $hash);
my $dump = $node->basedir . '/dump';
$node->command_ok(['pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('postgres')], 'PGX-13: pg_dump');

for my $mode ('one by one', 'with triggers disabled', 'in one transaction', 'two at a time') {
    $node->safe_psql('postgres', 'create database target');
    my @options = $mode eq 'in one transaction' ? '--single-transaction'
        : $mode eq 'two at a time' ? '--jobs=2'
        : $mode eq 'with triggers disabled' ? '--disable-triggers' : ();
    # Sessions and the worker use the database while it is filled.
    $node->safe_psql('target', 'create extension ojs; select ojs.ready()') if $mode =~ /^one by|triggers/;
    my $extension_there = $mode =~ /^one by|triggers/;
    $node->command_ok(['pg_restore', '--exit-on-error', @options, ($extension_there ? '--data-only' : ()), '-d',
        $node->connstr('target'), $dump], "PGX-13: pg_restore $mode");
    $node->poll_query_until('target', 'select ' . workers('target') . ' = 1') or die;
    awaits($node, "select ojs.ready() and ojs.health() #>> '{hot_set,last_rebuild,cause}' = 'restore'",
        "PGX-13: the restore is noticed, $mode", 'target');
    awaits($node, "select count(*) = 4 from pg_trigger where tgname = 'hot_set_lost' and tgenabled = 'A'",
        "PGX-13: and the next would be, $mode", 'target');
    is($node->safe_psql('target', 'select ojs.ready()'), 't', "PGX-13: ready, $mode");
    is($node->safe_psql('target', $states), $before, "PGX-13: all jobs stand as they did, $mode");
    is($node->safe_psql('target', $hash), $hash_before, "the key of queue ids is restored, $mode");
    is($node->safe_psql('target', $lineage), $lineage_before, "HIS-02: and who has pushed whom, $mode");
    is($node->safe_psql('target', $crons), $crons_before, "PGX-13 CRN-01: cron entries too, $mode");
    is($node->safe_psql('target', "select ojs.health() #>> '{hot_set,last_rebuild,cause}'"), 'restore',
        "OBS-01: health says that they were restored, $mode");
    is($node->safe_psql('target', 'select count(*) from ojs_store.ready'), 7,
        "PGX-13: what was available or leased can be claimed, $mode");
    is($node->safe_psql('target',
        "select count(*) || ' ' || count(extra -> 'checkpoint')
            from ojs.claim(array['ready', 'leased', 'done', 'retryable'], 'w', max => 100)"), '7 1',
        "PGX-13: once, and DUR-04: with its checkpoint, $mode");
    is($node->safe_psql('target', 'select count(*) from ojs_store.delayed'), 2,
        "PGX-13: what waits still waits, $mode");
    $node->safe_psql('target', "select from ojs.push('test.job', queue => 'more')");
    is($node->safe_psql('target', 'select max(seq) = (select last_value from ojs_store.seq) from ojs_store.job'), 't',
        "PGX-13: the sequence goes on, $mode");
    $node->safe_psql('postgres', 'drop database target');
}
# Another database's key is its own.
$node->safe_psql('postgres', 'create database other');
isnt($node->safe_psql('other', "create extension ojs; $hash"), $hash_before, 'each CREATE EXTENSION makes a key');
$node->stop;

done_testing();
