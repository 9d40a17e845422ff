# From an older major to this one: by pg_upgrade, by pg_dump and pg_restore, by logical replication. No job is lost.
# OJS_OLD is where the older one is installed, with ojs.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# All rows of the logged tables, or of the hot set: kind is p or u.
sub rows_of {
    my ($node, $kind, $condition) = @_;
    my @tables = split /\n/, $node->safe_psql('postgres', "select oid::regclass from pg_class
        where relnamespace = 'ojs_store'::regnamespace and relkind = 'r' and relpersistence = '$kind'
            and " . ($condition // 'true') . ' order by 1');
    return $node->safe_psql('postgres', join(' union all ',
        map { "select '$_ ' || t::text from $_ t" } @tables) . ' order by 1');
}

# What a dump carries, but for the keys: a restored database has two.
my $dumped = q{oid = any ((select extconfig from pg_extension where extname = 'ojs')::oid[])
    and relname not in ('event_notify_cursor', 'name_key')};
my $states = q{select string_agg(format('%s %s %s', id, queue, state), e'\n' order by seq) from ojs.jobs};

# Jobs in every state, leases that are held, and all that belongs to queues.
sub old_server {
    my ($name, %with) = @_;
    my $node = server($name, install => $ENV{OJS_OLD}, preload => 1, %with);
    $node->safe_psql('postgres', q{
        select ojs.push('test.job', queue => 'ready', priority => n) from generate_series(1, 5) n;
        select from ojs.push('test.job', queue => 'scheduled', delay => '1 hour');
        select from ojs.push('test.job', queue => 'pending', pending => true);
        select from ojs.push('test.job', queue => 'expiring', expires_at => now() + interval '1 hour');
        select from ojs.push('test.job', queue => 'retryable');
        select ojs.fail(id, '{"type": "E", "message": "m"}', delay => '1 hour') from ojs.claim('retryable', 'w');
        select from ojs.push('test.job', queue => 'done');
        select ojs.ack(id, '{"answer": 42}') from ojs.claim('done', 'w');
        select ojs.cancel(id) from ojs.push('test.job', queue => 'cancelled');
        select from ojs.push('test.job', queue => 'dead');
        select ojs.fail(id, '{"code": "DEAD_LETTER", "type": "E", "message": "m"}') from ojs.claim('dead', 'w');
        select from ojs.push('test.job', queue => 'unique', "unique" => '{"keys": ["type", "queue"]}');
        select ojs.configure_queue('held', '{"lease_log": true, "max_size": 100}');
        select ojs.push('test.job', queue => 'held') from generate_series(1, 3);
        select ojs.checkpoint(id, '{"row": 7}'), ojs.progress(id, 0.5) from ojs.claim('held', 'w', max => 2,
            lease => '1 day');
        select ojs.set_rate_limit('limit', '{"concurrency": 1}');
        select from ojs.push('test.job', queue => 'paused');
        select ojs.pause_queue('paused');
        select ojs.schedule('yearly', '@yearly', '{"type": "test.job"}', '{"timezone": "Europe/Berlin"}');
    });
    return $node;
}

# The jobs can be worked on: every one once, none twice.
sub goes_on {
    my ($node, $how, $held) = @_;
    my $sql = sub { return $node->safe_psql('postgres', $_[0]); };
    is($sql->(q{select ojs.ready()}), 't', "$how: ready");
    is($sql->(q{select deduplicated from ojs.push('test.job', queue => 'unique',
        "unique" => '{"keys": ["type", "queue"], "on_conflict": "ignore"}')}), 't',
        "$how: a unique job is still the only one");
    is($sql->(q{select count(*) || ' ' || count(distinct id) from ojs.claim('ready', 'w', max => 10)}), '5 5',
        "$how: what was available is claimed, once");
    is($sql->(q{select count(*) from ojs.claim('held', 'w', max => 10)}), 3 - $held,
        "$how: what was held is claimed, unless the lease goes on");
    is($sql->(q{select count(*) from ojs.claim(array['scheduled', 'pending', 'retryable', 'paused', 'done', 'dead',
        'cancelled'], 'w', max => 10)}), 0, "$how: what waits still waits");
    is($sql->(q{set ojs.clock_offset = '61 min'; select count(*) from ojs.claim(array['scheduled', 'retryable'], 'w',
        max => 10)}), 2, "$how: and its time comes");
    is($sql->(q{select state from ojs.retry((select id from ojs.dead_letters))}), 'available',
        "$how: a dead letter can be retried");
    is($sql->(q{select result ->> 'answer' from ojs.jobs where queue = 'done'}), '42', "$how: results are kept");
    is($sql->(q{select name from ojs.crons}), 'yearly', "$how: cron entries too");
    is($sql->('select count(*) from ojs_store.checkpoint'), 2, "$how: and checkpoints");
    $sql->(q{select from ojs.push('test.job', queue => 'later')});
    is($sql->(q{select max(seq) = (select last_value from ojs_store.seq) from ojs_store.job}), 't',
        "$how: the sequence goes on");
    $node->append_conf('postgresql.conf', "ojs.worker = on\n");
    $node->reload;
    awaits($node, 'select ' . workers() . ' = 1', "$how: a worker begins");
    is($sql->('select ojs.ready()'), 't', "$how: and is content");
}

my @quiet = (conf => "ojs.worker = off\n");

# pg_upgrade. Both servers have preloaded ojs, with its worker.
{
    my $old = old_server('upgrade_old', extra => ['-k']);
    my $held = $old->safe_psql('postgres', 'select job_id, lease_id from ojs.leases order by 1');
    $old->append_conf('postgresql.conf', "ojs.worker = off\n");
    $old->restart;
    my %before = (jobs => $old->safe_psql('postgres', $states), logged => rows_of($old, 'p'),
        hot => rows_of($old, 'u'));
    my $new = server('upgrade_new', preload => 1, extra => ['-k'], extension => 0, @quiet);
    # Minor releases of late 2026 keep an option with each column of a table, which older ones of the new major refuse.
    my $versions = q{select from pg_attribute where attoptions::text like '%pg_attver%'};
    if ($old->safe_psql('postgres', "select exists ($versions)") eq 't' && $new->safe_psql('postgres',
        "create table t (a int); select exists ($versions)") eq 'f') {
        note 'the new server is of an older minor release: taking pg_attver away';
        $old->safe_psql('postgres',
            q{set allow_system_table_mods = on; update pg_attribute set attoptions = null
                where attoptions::text like '%pg_attver%'});
    }
    $new->safe_psql('postgres', 'drop table if exists t');
    $old->append_conf('postgresql.conf', "ojs.worker = on\n");
    $old->stop;
    $new->stop;
    $new->append_conf('postgresql.conf', "ojs.worker = on\n");
    chdir $new->basedir or die;
    $new->command_ok(['pg_upgrade', '-d', $old->data_dir, '-D', $new->data_dir, '-b', $old->config_data('--bindir'),
        '-B', $new->config_data('--bindir'),
        '-s', $new->host, '-p', $old->port, '-P', $new->port], 'pg_upgrade');
    $new->append_conf('postgresql.conf', "ojs.worker = off\n");
    $new->start;
    is(rows_of($new, 'p'), $before{logged}, 'pg_upgrade: the logged tables are as they were');
    is(rows_of($new, 'u'), $before{hot}, 'pg_upgrade: so is the hot set');
    is($new->safe_psql('postgres', $states), $before{jobs}, 'pg_upgrade: and every job');
    is($new->safe_psql('postgres', 'select job_id, lease_id from ojs.leases order by 1'), $held,
        'pg_upgrade: leases go on');
    my ($job, $lease) = split /\|/, (split /\n/, $held)[0];
    is($new->safe_psql('postgres', "select state from ojs.ack('$job', lease_id => '$lease')"), 'completed',
        'pg_upgrade: who held a job before acknowledges it');
    goes_on($new, 'pg_upgrade', 2);
    $new->stop;
}

# pg_dump of the newer major from the older server.
{
    my $old = old_server('dump_old', @quiet);
    my $new = server('dump_new', preload => 1, extension => 0, @quiet);
    my %before = (jobs => $old->safe_psql('postgres', $states), logged => rows_of($old, 'p', $dumped));
    my $dump = $old->basedir . '/dump';
    $new->command_ok(['pg_dump', '-Fc', '-f', $dump, '-d', $old->connstr('postgres')], 'pg_dump');
    $old->stop;
    $new->command_ok(['pg_restore', '--exit-on-error', '-d', $new->connstr('postgres'), $dump], 'pg_restore');
    is(rows_of($new, 'p', $dumped), $before{logged}, 'dump: the tables are as they were');
    $before{jobs} =~ s/active/available/g;
    is($new->safe_psql('postgres', $states), $before{jobs}, 'dump: and every job, but that leases end');
    goes_on($new, 'dump', 0);
    $new->stop;
}

# Logical replication and switching over, as docs/how-to/upkeep.md has it.
{
    my $old = old_server('logical_old', conf => "wal_level = logical\nmax_wal_senders = 10\n");
    my $new = server('logical_new', preload => 1, streaming => 'logical', @quiet);
    my $tables = $new->safe_psql('postgres', q{select string_agg(oid::regclass::text, ', ') from pg_class
        where relnamespace = 'ojs_store'::regnamespace and relkind = 'r' and relpersistence = 'p'});
    $new->safe_psql('postgres', "truncate $tables");
    $old->safe_psql('postgres', 'create publication everything for all tables');
    $new->safe_psql('postgres',
        "create subscription everything connection '" . $old->connstr . " dbname=postgres' publication everything");
    $new->wait_for_subscription_sync($old, 'everything');
    $old->safe_psql('postgres', q{select from ojs.push('test.job',
        queue => 'more'); select ojs.ack(id) from ojs.claim('more', 'w')});
    $old->append_conf('postgresql.conf', "ojs.worker = off\n");
    $old->reload;
    awaits($old, 'select ' . workers() . ' = 0', 'logical replication: the worker ends');
    my %before = (jobs => $old->safe_psql('postgres', $states), logged => rows_of($old, 'p'));
    $old->wait_for_catchup('everything');
    $new->safe_psql('postgres', 'drop subscription everything');
    $old->stop;
    is(rows_of($new, 'p'), $before{logged}, 'logical replication: the tables are the same');
    $new->safe_psql('postgres', q{select setval('ojs_store.seq', (select max(seq) from ojs_store.job))});
    $before{jobs} =~ s/active/available/g;
    is($new->safe_psql('postgres', $states), $before{jobs}, 'logical replication: and every job, but that leases end');
    goes_on($new, 'logical replication', 0);
    $new->stop;
}

done_testing();
