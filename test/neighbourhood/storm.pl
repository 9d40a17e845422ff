# A rough neighbourhood: what databases really live with, all at once, while jobs are done. More databases than worker
# slots, thousands of queues, a publication, prepared transactions, an administrator who locks and rewrites tables, long
# waits beside short leases, killed workers. OJS_PRELOAD=0: the same without preloading, so without workers.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../tap", $FindBin::RealBin;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);
use Ojs;

my $preload = $ENV{OJS_PRELOAD} // 1;
my $databases = 12;
my $queues = $ENV{OJS_QUEUES} // 10_000;
my $seconds = $ENV{OJS_SECONDS} // 20;

# max_worker_processes stays at its default of 8: fewer than there are databases.
my $node = server('storm', preload => $preload, conf => "wal_level = logical\nautovacuum = on\nmax_connections = 60\n");
my $sql = sub { my ($query, $database) = @_; return $node->safe_psql($database // 'postgres', $query) };
my $one = sub { my ($query, $database) = @_; my ($code, $out, $err) = $node->psql($database // 'postgres',
    $query); return $code ? $err : $out };

# --- the neighbours move in -----------------------------------------------------------------------------------------
for my $n (1 .. $databases - 1) {
    $sql->("create database d$n");
    $sql->('create extension ojs', "d$n");
}
my @all = ('postgres', map { "d$_" } 1 .. $databases - 1);

my $buffers = sub {
    # The third of a session: the first one plans, and once a minute the table of queues is put in order.
    my $plan = $sql->('select ojs.tick(); select ojs.tick();
        explain (analyze, buffers, costs off, timing off, format json) select ojs.tick()');
    my ($hit) = $plan =~ /"Shared Hit Blocks": (\d+)/;
    return $hit;
};
$sql->('select ojs.tick()');
my $few = $buffers->();
$sql->("select count(*) from generate_series(1, $queues) n, ojs.create_queue('many-' || n)");
$sql->('vacuum analyze ojs_store.queue');
$sql->('select ojs.tick()') for 1 .. 2;
my @passes = sort { $a <=> $b } map { $buffers->() } 1 .. 5;
cmp_ok($passes[2], '<', $few + 1000,
    "PGX: a tick over $queues idle queues reads no more than one over none ($few, $passes[2] blocks)");

$sql->('create publication everything for all tables');
$sql->(q{select pg_create_logical_replication_slot('drain', 'pgoutput')});
is($one->($_), '', "a publication stops no administration: $_") for
    q{select from ojs.create_queue('work')}, q{select from ojs.pause_queue('work')},
    q{select from ojs.resume_queue('work')};

# A job without its envelope, removed by hand.
$sql->(q{select from ojs.push('gone.one', queue => 'gone'); select from ojs.push('gone.two', queue => 'gone')});
$sql->(q{delete from ojs_store.job where type = 'gone.one'});
is($sql->(q{select type from ojs.claim('gone', 'w', 5)}), 'gone.two', 'a row without its envelope is passed by');

# What would be bypassed is refused.
$sql->('create function spy() returns trigger language plpgsql as $$ begin return new; end $$;
    create trigger spy before insert on ojs_store.job for each row execute function spy()');
like($one->(q{select from ojs.push('spied.on', queue => 'work')}), qr/trigger/,
    'a row trigger on a table of ours is refused, not bypassed');
$sql->('drop trigger spy on ojs_store.job');

$sql->(q{begin; select from ojs.push('prepared.one', queue => 'prepared'); prepare transaction 'left open'});

# A cron entry whose time zone has vanished, beside a good one.
$sql->(q{select from ojs.schedule('good', '* * * * * *', '{"type": "cron.good", "args": [], "queue": "cron"}',
    '{"overlap_policy": "allow"}')});
$sql->(q{select from ojs.schedule('bad', '* * * * * *', '{"type": "cron.bad", "args": [], "queue": "cron"}',
    '{"timezone": "Europe/Berlin"}')});
$sql->(q{update ojs_store.cron set timezone = 'Atlantis/Lost' where name = 'bad'});

# Thousands of dead letters that have been kept long enough.
$sql->(q{select from ojs.configure_queue('dead',
    '{"dead_letter_ttl": "PT1S", "default_retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}')});
$sql->(q{select from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'dead.one', 'args', '[]'::jsonb,
    'queue', 'dead')) from generate_series(1, 3000)))});
$sql->(q{select count(ojs.fail(id, '{"type": "t", "message": "m"}', lease_id => lease_id)) from ojs.claim('dead', 'w',
    1000)}) for 1 .. 3;

# --- the storm --------------------------------------------------------------------------------------------------------
my %began;
my $begin = sub {
    my ($name, $database, $text, @options) = @_;
    my $file = "$PostgreSQL::Test::Utils::tmp_check/$name.sql";
    PostgreSQL::Test::Utils::append_to_file($file, $text);
    my ($out, $err) = ('', '');
    $began{$name} = { out => \$out, err => \$err, run => IPC::Run::start(
        ['pgbench', '-n', '-f', $file, '-T', $seconds, @options, '-d',
            $node->connstr($database)], '<', \undef, '>', \$out, '2>', \$err) };
};
local $ENV{PGAPPNAME} = 'storm';
# Workers: a push, and whatever is there is claimed and done.
$begin->('load', 'postgres', q{
select from ojs.push('load.one', queue => 'work');
select count(ojs.ack(id, lease_id => lease_id)) from ojs.claim('work', 'w' || :client_id, 2);
}, '-c', 4);
my $keeper = $node->background_psql('postgres', on_error_stop => 0);
my $kept = $sql->(q{select id from ojs.push('kept.one', queue => 'kept')});
my $lease = $keeper->query_safe(q{select lease_id from ojs.claim('kept', 'keeper', lease => '4 s')});
# A round of the administrator's may take a while. The index entry of the lease stays where it was.
my $extend = "select count(*) from ojs.extend('$kept', '30 s', lease_id => '$lease')";
$keeper->query_safe($extend);
# Others wait for longer than its lease lasts.
$begin->('waits', 'postgres', q{select id from ojs.claim('kept', 'waiter', wait => '8 s')}, '-c', 2);
# An application with savepoints and temporary tables in plenty.
$begin->('application', 'postgres', q{
begin;
create temporary table t (i int) on commit drop;
do $$ begin for i in 1 .. 100 loop begin perform from ojs.push('sub.one',
    queue => 'sub'); exception when others then raise; end; end loop; end $$;
commit;
select ojs.purge_queue('sub', confirm => true);
\sleep 200 ms
}, '-c', 1);

my @administration = (
    'begin; lock table ojs_store.delayed in access exclusive mode; select pg_sleep(0.3); commit',
    'vacuum full ojs_store.finished', 'reindex table ojs_store.finished',
    'alter table ojs_store.lease set (fillfactor = 90)',
    'cluster ojs_store.finished using finished_job', 'analyze',
    'begin; lock table ojs_store.lease in share mode; select pg_sleep(0.3); commit',
    'create index extra on ojs_store.finished (state)', 'drop index ojs_store.extra', 'vacuum full ojs_store.lease',
    'analyze ojs_store.ready');
my (@refused, $lost);
my $end = time + $seconds;
my $next_administration = 0;
while (time < $end) {
    my $answer = $keeper->query($extend);
    $lost //= $keeper->{stderr} || "extend answered '$answer'" if $answer ne '1';
    $sql->(q{select count(pg_terminate_backend(pid)) from pg_stat_activity where backend_type = 'ojs worker'
        and random() < 0.2});
    my ($code, undef, $err) = $node->psql('postgres', $administration[$next_administration++ % @administration]);
    # The server may let the administrator wait for another round.
    push @refused, $err if $code && $err !~ /deadlock detected/;
    sleep 0.1;
}
is($lost, undef, 'DLV: who extends its lease keeps its job, whatever others wait for');
is(join("\n", @refused), '', 'the administrator got everything done');
is($keeper->query_safe("select state from ojs.ack('$kept', lease_id => '$lease')"), 'completed',
    'and the job is finished by its holder');
is($sql->("select attempt || ' ' || (errors is null) from ojs.jobs where id = '$kept'"), '1 true',
    'in one attempt, without an error');
$keeper->quit;

# pgbench stops a client at its first error, and says so.
for my $name (sort keys %began) {
    $began{$name}{run}->finish;
    unlike(${ $began{$name}{err} }, qr/ERROR|aborted/, "no call of '$name' failed");
}

# --- after the storm ------------------------------------------------------------------------------------------------
$sql->(q{commit prepared 'left open'});
is($sql->(q{select type from ojs.claim('prepared', 'w', wait => '5 s')}), 'prepared.one',
    'the prepared job comes when its transaction is committed');
if ($preload) {
    $sql->(q{select from ojs.push('due.one', queue => 'due', delay => '1 s')}, $_) for @all;
    awaits($node, q{select exists (select from ojs_store.ready r join ojs_store.queue q on q.id = r.queue
        where q.name = 'due')},
        "a delayed job is promoted in $_, though there are more databases than slots", $_) for @all;
    awaits($node, q{select ojs.health() ->> 'status' <> 'starting'}, 'health says what it gets');
} else {
    $sql->('select ojs.tick()') for 1 .. 3;
}
cmp_ok($sql->(q{select count(*) from ojs.jobs where type = 'cron.good'}), '>', 0,
    'CRN: a good cron entry runs beside one whose time zone has vanished');

# Whoever waits gets a delayed job soon after it is due, in each database at once. A session that merely sleeps shows
# how late the machine is, and a wake-up goes through four processes.
my $timed = sub {
    my ($database, $before, $call) = @_;
    my $out = '';
    my @psql = ('psql', '-XAtqd', $node->connstr($database));
    return { database => $database, out => \$out, run => IPC::Run::start(\@psql, '<',
        \"select clock_timestamp() as began \\gset
        $before
        $call \\gset
        select :n, extract(epoch from clock_timestamp() - :'began')", '>', \$out) };
};
my @timed = (map { $timed->($_, q{select from ojs.push('soon.one', queue => 'soon', delay => '1 s');},
    q{select count(*) as n from ojs.claim('soon', 'w', wait => '20 s')}) } @all);
push @timed, $timed->('postgres', '', 'select 1 as n from pg_sleep(1)');
my @found = map { $_->{run}->finish; [split(/\|/, ${ $_->{out} }), $_->{database}] } @timed;
my $late = pop(@found)->[1] - 1;
is(scalar(grep { $_->[0] == 1 } @found), $databases, 'a delayed job is handed out in each database');
my ($slowest) = sort { $b->[1] <=> $a->[1] } @found;
note(sprintf('a delay of 1 s: handed out after %.2f s at the latest, in %s; the machine was %.2f s late',
    @$slowest[1, 2], $late));
cmp_ok($slowest->[1], '<', 2 + 4 * $late, 'within 2 s');

like($sql->(q{select ojs.metrics()}), qr/ojs_upkeep/, 'metrics answer');
awaits($node, q{select count(*) = 0 from ojs.dead_letters where queue = 'dead'},
    'dead letters that were kept long enough go') if $preload;
$sql->(q{select count(ojs.ack(id)) from ojs.claim('work', 'w', 1000)}) for 1 .. 3;
is($sql->(q{select count(*) from ojs_store.ready r join ojs_store.queue q on q.id = r.queue where q.name = 'work'}), 0,
    'nothing is left behind in the busy queue');
is($sql->(q{select count(*) from ojs_store.job j join ojs_store.queue q on q.id = j.queue
    where q.name = 'work' and not exists (select from ojs_store.finished d where d.job_id = j.id)}), 0,
    'every job of it was done');
cmp_ok($sql->(q{select count(*) from pg_logical_slot_peek_binary_changes('drain', null, 100, 'proto_version', '1',
    'publication_names', 'everything')}),
    '>', 0, 'the publication carries the logged tables');
$sql->(q{select pg_drop_replication_slot('drain')});

$sql->('drop database d1 with (force)');
my $stopped = time;
$node->stop('fast');
cmp_ok(time - $stopped, '<', 60, 'the server shuts down');
my $log = PostgreSQL::Test::Utils::slurp_file($node->logfile);
unlike($log, qr/PANIC:|TRAP:|terminated by signal/, 'no process crashed');

done_testing();
