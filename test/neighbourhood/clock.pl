# The system's clock is set back by an hour, and forward, while jobs are done: nothing stands still for longer than the
# clock says, nothing fails. clock.c lies to the server about the time of day.
# OJS_PRELOAD=0: without preloading, so without workers.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../tap", $FindBin::RealBin;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Ojs;

my $preload = $ENV{OJS_PRELOAD} // 1;
my $library = "$PostgreSQL::Test::Utils::tmp_check/clock.so";
system('cc', '-shared', '-fPIC', '-o', $library, "$FindBin::RealBin/clock.c",
    '-ldl') == 0 or plan skip_all => 'there is no C compiler';

my $clock_file = "$PostgreSQL::Test::Utils::tmp_check/clock";
my $set_clock = sub {
    my ($seconds) = @_;
    open my $file, '+>>', $clock_file or die;
    close $file;
    open $file, '+<', $clock_file or die;
    syswrite $file, pack('q', $seconds) or die; # in place: the server has it mapped
    close $file;
};
$set_clock->(0);
my $node = do {
    local @ENV{qw(LD_PRELOAD OJS_CLOCK_FILE)} = ($library, $clock_file);
    server('clock', preload => $preload, conf => "ojs.notify_interval = '100ms'\n");
};
my $sql = sub { return $node->safe_psql('postgres', $_[0]) };
my $shift = sub {
    my ($seconds) = @_;
    $set_clock->($seconds);
    awaits($node, "select abs(extract(epoch from clock_timestamp()) - ${\ time} - ($seconds)) < 600",
        "the clock is off by $seconds s");
};
# Without a worker somebody ticks.
my $comes = sub {
    my ($query, $name) = @_;
    $query = "select case when (select ojs.tick()) is not null then ($query) end" if !$preload;
    awaits($node, $query, $name);
};

# Sessions that wait; each ends, or the test does not.
my %waiting;
my $begin = sub {
    my ($name, $query) = @_;
    my ($out, $err) = ('', '');
    local $ENV{PGAPPNAME} = $name;
    $waiting{$name} = { out => \$out, err => \$err, run => IPC::Run::start(
        ['psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', $query], '<', \undef, '>', \$out, '2>', \$err,
        IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)) };
    awaits($node, "select exists (select from pg_stat_activity where application_name = '$name'
        and wait_event_type in ('Extension', 'Timeout'))", "$name waits");
};
my $ends = sub {
    my ($name, $pattern) = @_;
    my $done = eval { $waiting{$name}{run}->finish; 1 };
    $waiting{$name}{run}->kill_kill if !$done;
    like($done ? ${ $waiting{$name}{out} } . ${ $waiting{$name}{err} } : "it still waits\n", $pattern,
        "$name waits no longer than it was asked to");
};

my $load_file = "$PostgreSQL::Test::Utils::tmp_check/load.sql";
PostgreSQL::Test::Utils::append_to_file($load_file, q{
select from ojs.push('load.one', queue => 'load');
select count(ojs.ack(id, lease_id => lease_id)) from ojs.claim('load', 'w' || :client_id, 2, wait => '100 ms');
\sleep 20 ms
});
my ($load_out, $load_err) = ('', '');
my $load = IPC::Run::start(['pgbench', '-n', '-f', $load_file, '-T', 600, '-c', 2, '-d', $node->connstr('postgres')],
    '<', \undef, '>', \$load_out, '2>', \$load_err);

# --- before ---------------------------------------------------------------------------------------------------------
$sql->(q{select from ojs.configure_queue('full', '{"max_size": 1, "overflow_policy": "block", "block_timeout": 3}');
    select from ojs.push('a.b',
        queue => 'full'); select from ojs.create_queue('idle'); select from ojs.create_queue('heard')});
my $open = pushed($node, 'open');
my $kept = pushed($node, 'kept');
my $kept_lease = $sql->(q{select lease_id from ojs.claim('kept', 'keeper', lease => '20 s')});
my $mute = pushed($node, 'mute');
$sql->(q{select from ojs.claim('mute', 'mute', lease => '1 h')});
$sql->(qq{select from ojs.beat('mute', array['$mute'::uuid], lease => '1 h')});
my $limit = q{'{"rate_limit": {"key": "k", "rate": {"limit": 1, "period": "PT2S"}}}'};
my $slow = pushed($node, 'slow', "options => $limit");
$sql->(q{select from ojs.claim('slow', 'w') c, ojs.fail(c.id, jsonb_build_object('type', 'slow_down', 'message', 'm',
    'rate_limit_until', to_char(now() at time zone 'UTC' + interval '20 s',
        'YYYY-MM-DD"T"HH24:MI:SS"Z"')), lease_id => c.lease_id)});
my $listener = listener($node);
$sql->(q{select count(*) from ojs.claim('heard', 'w', 10)}); # who comes back short may be listening
pushed($node, 'heard');
ok(heard($listener, 'heard'), 'a session hears of a queue');
my $cursor = $sql->(q{select ojs.events('now') ->> 'cursor'});
$sql->('select ojs.notify_events()');
my $event_listener = $node->background_psql('postgres', on_error_stop => 1);
$event_listener->query_safe('listen ojs_events');

$begin->('claim', q{select count(*) from ojs.claim('idle', 'w', wait => '3 s')});
$begin->('result', qq{select (ojs.wait_result('$open', '3 s')).id is null});
$begin->('push', q{select from ojs.push('a.b', queue => 'full')});

# --- an hour back ---------------------------------------------------------------------------------------------------
$shift->(-3600);
$ends->('claim', qr/^0$/);
$ends->('result', qr/^t$/);
$ends->('push', qr/full/);
my $lapsed = q{select count(*) from ojs_store.job_history where kind = 3};
is($sql->($lapsed), 0, 'no lease has run out');

$sql->(q{select count(*) from ojs.claim('heard', 'w', 10)}); # who comes back short may be listening
pushed($node, 'heard');
ok(heard($listener, 'heard'), 'a session hears of a queue as before');
like($sql->("select ojs.events('$cursor', queues => '{heard}') #>> '{events,0,type}'"), qr/^job/,
    'no event is passed over by who reads them with a cursor');
$comes->(q{select ojs_store.from_micros(split_part(cursor, '.',
    2)::bigint) < clock_timestamp() from ojs_store.event_notify_cursor}, 'ticks go on with the new time');
my $noticed = pushed($node, 'noticed');
$sql->('select ojs.tick()');
like($event_listener->query_safe('select pg_sleep(0.1)'), qr/ojs_events/, 'and tell of events');

my $delayed = pushed($node, 'delayed', "delay => '1 s'");
$comes->(qq{select state = 'available' from ojs.jobs where id = '$delayed'}, 'a delay takes as long as it says');
$comes->(qq{select exists (select from ojs_store.ready where job_id = '$delayed')}, 'and is promoted');
is($sql->(qq{select count(*) from ojs.extend('$kept', '1 s', lease_id => '$kept_lease')}), 1,
    'a lease from before can be extended');
$comes->(qq{select state = 'available' from ojs.jobs where id = '$kept'},
    'a lease that was extended by a second ends after a second');
pushed($node, 'slow', "options => $limit");
is($sql->(q{select count(*) from ojs.claim('slow', 'w', wait => '10 s')}), 1,
    'neither a pause nor a rate from before keeps a limit shut');
$sql->(q{select from ojs.schedule('tick', '* * * * * *', '{"type": "cron.tick", "args": [], "queue": "cron"}',
    '{"overlap_policy": "allow"}')});
$comes->(q{select count(*) > 1 from ojs.jobs where type = 'cron.tick'}, 'cron entries run');

# A worker that sends its last heartbeat now, and has claimed in the time to come, is dead 30 s from now.
$sql->(q{select from ojs.beat('mute')});
$shift->(-3600 + 45);
$comes->(qq{select state = 'available' from ojs.jobs where id = '$mute'}, 'a worker that is silent is seen to be dead');
$comes->(q{select ojs.health() ->> 'status' = 'ok'}, 'health is ok');

# --- an hour forward ------------------------------------------------------------------------------------------------
$sql->(q{select from ojs.configure_queue('brief', '{"retention": {"completed": "PT10M"}}')});
my $brief = pushed($node, 'brief');
$sql->(q{select count(ojs.ack(id, lease_id => lease_id)) from ojs.claim('brief', 'w')});
my $half = pushed($node, 'half', "delay => '30 min'");
my $held = pushed($node, 'held');
my $held_lease = $sql->(q{select lease_id from ojs.claim('held', 'holder', lease => '60 s')});
my $once = q{select id from ojs.push('once', queue => 'once', deduplication_key => 'k', deduplication_ttl => '5 min')};
my $first = $sql->($once);
my $crons = $sql->(q{select count(*) from ojs.jobs where type = 'cron.tick'});
$begin->('claim again', q{select count(*) from ojs.claim('idle', 'w', wait => '3 s')});
$shift->(3600);
$ends->('claim again', qr/^0$/);
$comes->(qq{select state = 'available' from ojs.jobs where id = '$held'}, 'a lease is over');
$comes->(qq{select exists (select from ojs_store.ready where job_id = '$half')}, 'what was due in between is promoted');
$comes->(qq{select not exists (select from ojs.jobs where id = '$brief')}, 'what has been kept long enough is removed');
$comes->("select count(*) between $crons + 1 and $crons + 300 from ojs.jobs where type = 'cron.tick'",
    'a cron entry does not run for each second that was passed over');
isnt($sql->($once), $first, 'a deduplication key is free again after its time');
$comes->(q{select ojs.health() ->> 'status' = 'ok'}, 'health is ok');

$load->signal('TERM');
$load->finish;
unlike($load_err, qr/ERROR|aborted/, 'no call of those who worked all the time failed');
my $log = PostgreSQL::Test::Utils::slurp_file($node->logfile);
unlike($log, qr/PANIC:|TRAP:|terminated by signal|upkeep duty/, 'no process crashed, no duty failed');
$_->quit for $listener, $event_listener;
$node->stop('fast');

done_testing();
