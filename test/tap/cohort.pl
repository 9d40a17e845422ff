# cohort.pl: claims that arrive within a queue's window share its jobs out: Q-47 to Q-51; throttled claims: Q-68; a work
# session whose queue goes away: Q-66.
# Runs alone: ten sessions must send their claims within a window.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;
use IPC::Run ();
use List::Util qw(max min sum);
use Time::HiRes 'time';

my $seed = $ENV{OJS_SEED} // time ^ $$;
srand $seed;
note "OJS_SEED=$seed";

my $window_ms = 300;    # long enough for sessions that are open to send a line, on a machine that has time for them
# No lease lapses on its own: a claim that does upkeep for others comes back early.
my $node = server('cohort', preload => 1, conf => "ojs.default_lease = '1h'\n");

# A session that is open: ask() sends it a statement, answer() waits for its output.
sub session {
    my ($on) = @_;
    my %s = (in => '', out => '');
    $s{handle} = IPC::Run::start(['psql', '-XAtq', '-d', ($on // $node)->connstr('postgres')], '<', \$s{in}, '>',
        \$s{out}, '2>&1',
        IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
    my $session = \%s;
    ask($session, 'select pg_backend_pid()');
    $s{pid} = answer($session);
    return $session;
}

sub ask {
    my ($s, $sql) = @_;
    $s->{out} = '';
    $s->{in} .= "$sql;\n\\echo done\n";
    IPC::Run::pump_nb $s->{handle};
}

sub answer {
    my ($s) = @_;
    IPC::Run::pump $s->{handle} until $s->{out} =~ /^done$/m || !$s->{handle}->pumpable;
    $s->{out} =~ s/^done\n//m;
    chomp $s->{out};
    return $s->{out};
}

# A new queue with so many jobs.
my $queues = 0;
sub queue_of {
    my ($jobs, $config) = @_;
    my $queue = 'q' . ++$queues;
    $config //= qq({"claim_jitter_ms": $window_ms});
    $node->safe_psql('postgres', "select ojs.create_queue('$queue', '$config')");
    push_to($queue, $jobs) if $jobs > 0;
    return $queue;
}

sub push_to {
    my ($queue, $jobs) = @_;
    $node->safe_psql('postgres',
        qq{select count(*) from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'test.job', 'args',
        jsonb_build_array(n), 'queue', '$queue')) from generate_series(1, $jobs) n))});
}

# What each of these sessions gets when they claim together; `how` makes the statement. They say when theirs began.
my $spread_s;
my $got = q{count(*) || ' at ' || extract(epoch from statement_timestamp())};
sub together {
    my ($sessions, $how) = @_;
    ask($sessions->[$_], $how->($_)) for 0 .. $#$sessions;
    my @answers = map { answer($_) } @$sessions;
    my @at = map { / at ([\d.]+)$/m ? $1 : () } @answers;
    $spread_s = @at ? max(@at) - min(@at) : 0;
    return map { s/ at [\d.]+$//mr } @answers;
}

# An attempt by sessions that must claim within a window. Where the machine let some of them wait for longer than that,
# it has shown nothing, and there is another one.
sub shared_out {
    my ($attempt) = @_;
    for (1 .. 20) {
        return 1 if $attempt->();
        return 0 if $spread_s < $window_ms / 2000;
        note "the claims began within $spread_s s: once more";
    }
    return 0;
}

sub claim_of { my ($queue, $max,
    $more) = @_; return sub { "select $got from ojs.claim('$queue', 'w$_[0]', $max->[$_[0]]" . ($more // '') . ')' } }

sub waits {
    my ($s) = @_;
    return "select exists (select from pg_stat_activity where pid = $s->{pid}
        and state = 'active' and wait_event_type = 'Extension')";
}
sub leased { my ($queue) = @_; return $node->safe_psql('postgres',
    "select count(*) from ojs.leases where queue = '$queue'"); }
sub ready { my ($queue) = @_; return $node->safe_psql('postgres', "select ready from ojs.queue_stats('$queue')"); }

my @ten = map { session() } 1 .. 10;

my $queue;
ok(shared_out(sub { join(' ', together(\@ten, claim_of(queue_of(50), [(10) x 10]))) eq join(' ', (5) x 10) }),
    'Q-48: ten claimers of 10 get 5 of 50 each');
ok(shared_out(sub { join(' ', together([@ten[0, 1]], claim_of(queue_of(20), [30, 10]))) eq '15 5' }),
    'Q-49: by their max: 15 and 5 of 20');
ok(shared_out(sub { join('', sort { $a <=> $b } together(\@ten,
    claim_of(queue_of(3), [(100) x 10]))) eq '0000000111' }),
    'Q-49: fewer jobs than claimers: all are given, one each at most');

my $others = 0;
for my $round (1 .. 20) {
    my @who = @ten[0 .. 1 + int rand 9];
    my @max = map { 1 + int rand(rand() < 0.3 ? 100 : 12) } @who;
    my $all = sum(@max);
    my $jobs = 1 + int rand(1.3 * $all);
    my @work = map { rand() < 0.3 } @who;
    my @list = map { rand() < 0.3 } @who;
    my @got;
    ok(shared_out(sub {
        my $q = queue_of($jobs);
        for (grep { $work[$_] } 0 .. $#who) { ask($who[$_],
            "select ojs.work_open('$q', 'w$_', $max[$_])"); answer($who[$_]); }
        @got = together(\@who, sub {
            my ($i) = @_;
            return "select $got from ojs.work_next()" if $work[$i];
            return "begin; select $got from ojs.claim(array['$q'], 'w$i', $max[$i]); commit" if $list[$i];
            return "select $got from ojs.claim('$q', 'w$i', $max[$i])";
        });
        for (grep { $work[$_] } 0 .. $#who) { ask($who[$_], 'select ojs.work_close()'); answer($who[$_]); }
        $others += leased($q) - sum(map { $work[$_] ? 0 : $got[$_] } 0 .. $#who);
        my $shared = min($jobs, $all);
        return sum(@got) == $shared && !grep {
            abs($got[$_] - $shared * $max[$_] / $all) >= 1 || $got[$_] > $max[$_]
        } 0 .. $#who;
    }), "Q-49 Q-50: round $round: $jobs jobs") or diag "jobs $jobs, max @max, got @got, work mode @work, lists @list";
}
is($others, 0, 'Q-62: closed work sessions have given theirs back');

# The one that divides goes while it counts: here it waits for a lock. The others are served all the same.
$queue = queue_of(20);
{
    my ($locks, @two) = map { session() } 1 .. 3;
    ask($locks, 'begin; lock table ojs_store.ready in access exclusive mode');
    answer($locks);
    my $counts = "(select min(pid) from pg_stat_activity where state = 'active' and wait_event_type = 'Lock'
        and query like '%''$queue''%' and pid <> pg_backend_pid())";
    ask($two[$_], "select count(*) from ojs.claim('$queue', 'd$_', 10)") for 0, 1;
    ok($node->poll_query_until('postgres', "select $counts is not null"),
        'Q-50: a claim counts the jobs of its cohort');
    my $divider = $node->safe_psql('postgres', "select $counts");
    is($node->safe_psql('postgres', "select pg_terminate_backend($divider, 10000)"), 't', 'Q-50: its session ends');
    ask($locks, 'rollback');
    answer($locks);
    my ($left) = grep { $_->{pid} != $divider } @two;
    is(answer($left), '10', 'Q-50: the other one has jobs');
    eval { $_->{handle}->kill_kill } for $locks, @two;
}

# Members that go.
$queue = queue_of(20);
my $long = '{"claim_jitter_ms": 5000}';
$node->safe_psql('postgres', "select ojs.configure_queue('$queue', '$long')");
my ($cancelled, $ended, $killed, $timed) = map { session() } 1 .. 4;
my %wants = (cancelled => $cancelled, ended => $ended, killed => $killed);
ask($wants{$_}, "select count(*) from ojs.claim('$queue', '$_', 10)") for sort keys %wants;
ask($timed, "set statement_timeout = '500ms'; select count(*) from ojs.claim('$queue', 'timed', 10)");
ask($ten[$_], "select count(*) from ojs.claim('$queue', 'w$_', 15)") for 0, 1;
awaits($node, waits($_), 'a claim waits in the window') for $cancelled, $ended, $killed;
my $start = time;
$node->safe_psql('postgres', "select pg_cancel_backend($cancelled->{pid}), pg_terminate_backend($ended->{pid})");
like(answer($cancelled), qr/canceling statement due to user request/, 'Q-50: a cancel interrupts the wait');
like(answer($timed), qr/canceling statement due to statement timeout/, 'Q-50: a timeout too');
cmp_ok(time - $start, '<', 4, 'Q-50: at once');
$killed->{handle}->kill_kill(grace => 0);
is(join(' ', map { answer($ten[$_]) } 0, 1), '10 10',
    'Q-50: what cancelled, timed out, terminated and vanished members would have had goes to the others');
is(leased($queue), 20, 'Q-50: nothing is stranded');
awaits($node, "select not exists (select from pg_stat_activity where pid in ($killed->{pid}, $ended->{pid}))",
    'Q-50: the session of a killed client ends');
$_->{handle}->kill_kill for $ended;

# A claim that waits for jobs shares them out when they come.
$queue = queue_of(0, '{"claim_jitter_ms": 200}');
ask($ten[$_], "select count(*) from ojs.claim('$queue', 'w$_', 10, wait => '20 s')") for 0 .. 3;
awaits($node, waits($ten[$_]), 'OP-11: a claim waits for jobs') for 0 .. 3;
push_to($queue, 8);
is(sum(map { answer($ten[$_]) } 0 .. 3), 8, 'Q-48: claims that waited get all jobs');
is($node->safe_psql('postgres',
    "select max(n) <= 4 from (select count(*) n from ojs.leases where queue = '$queue' group by worker) x"), 't',
    'Q-48: and none of them drains the queue');

# No window: at once, the first may drain.
$queue = queue_of(20, '{}');
is($node->safe_psql('postgres', "select count(*) from ojs.claim('$queue', 'w', 100)"), 20,
    'Q-47: without a window the first claim may drain the queue');

# What fell due, and leases that lapsed, are shared out too, without anybody's upkeep.
$node->append_conf('postgresql.conf', 'ojs.worker = off');
$node->reload;
awaits($node, 'select not exists (select from pg_stat_activity where backend_type = \'ojs worker\')',
    'the worker is off');
for my $round (1 .. 10) {
    ok(shared_out(sub {
        $queue = queue_of(8, '{}');
        $node->safe_psql('postgres', "select count(*) from ojs.claim('$queue', 'dead', 8, lease => '100 ms')");
        $node->safe_psql('postgres', "select ojs.configure_queue('$queue', '{\"claim_jitter_ms\": $window_ms}')");
        $node->safe_psql('postgres',
            "select count(id) from generate_series(1, 12) n, ojs.push('test.job', jsonb_build_array(n),
                queue => '$queue', delay => '200 ms')");
        push_to($queue, 10);
        return join(' ', together([@ten[0 .. 4]], claim_of($queue, [(10) x 5]))) eq '6 6 6 6 6';
    }), "Q-48 Q-45: ready, due and lapsed jobs are shared out alike, without a worker, round $round");
}
$node->append_conf('postgresql.conf', 'ojs.worker = on');
$node->reload;

# The reply of lease_claim.
$queue = queue_of(1, '{"claim_jitter_ms": 300}');
my $reply = $node->safe_psql('postgres',
    "select (r #>> '{performance,throttle_wait_ms}')::numeric between 290
        and (r #>> '{performance,server_total_ms}')::numeric from ojs.lease_claim('$queue', '{\"node\": \"w\"}') r");
is($reply, 't', 'Q-17: throttle_wait_ms is the time in the window');
is($node->safe_psql('postgres',
    "select count(*) from ojs.claim('$queue', 'w');
        select ojs.lease_claim('plain', '{\"node\": \"w\"}') #>> '{performance,throttle_wait_ms}'
        from ojs.create_queue('plain')"), "0\n0",
    'Q-17: and that of this call only');
is(health($node, 'coalescing'), 'true', 'Q-51: health says that windows work');

# Q-68: a cap on claims per worker and queue, among sessions.
$queue = queue_of(10, '{"claim_rate": 2}');
my @answers = together([@ten[0 .. 3]],
    sub { "\\set VERBOSITY sqlstate\nselect count(*) from ojs.claim('$queue', 'w', 1)" });
is(scalar(grep { /^1$/ } @answers), 2,
    'Q-68: of four claims of one worker in four sessions, two go through') or diag "@answers";
is(scalar(grep { /OJ600/ } @answers), 2, 'Q-68: the others are RATE_LIMITED');
is($node->safe_psql('postgres', "select count(*) from ojs.claim('$queue', 'another', 1)"), 1,
    'Q-68: another worker has a count of its own');
$node->safe_psql('postgres', "select ojs.configure_queue('$queue', '{\"claim_rate\": 1}')");
ask($ten[0], "\\set VERBOSITY terse
    select ojs.work_open('$queue', 'pushed', 2); select count(*) from ojs.work_next();
    select count(*) from ojs.work_next();
    select from ojs.ack((select job_id from ojs.leases where worker = 'pushed' limit 1));
    select 'then ' || count(*) from ojs.work_next('2 s'); select ojs.work_close()");
my $told = answer($ten[0]);
like($told, qr/^2\nNOTICE:  a worker may claim from queue "$queue" 1 times in a second\n0$/m,
    'Q-66 Q-68: a work session over its rate is told, and not held up') or diag $told;
like($told, qr/^then 1$/m, 'Q-68: one that waits gets its jobs when it may');

# Q-66: a work session whose queue goes away.
for (['dropped', '', qr/does not exist/], ['replaced by a log',
    q{; select ojs.create_queue('gone', '{"type": "log"}')}, qr/is a log and hands out no jobs/]) {
    my ($what, $then, $error) = @$_;
    $node->safe_psql('postgres',
        q{select ojs.drop_queue('gone') where exists (select from ojs.queues where name = 'gone');
            select ojs.create_queue('gone')});
    ask($ten[0], q{select ojs.work_open('gone', 'w');
        select count(*) from ojs.work_next('25 s'); select ojs.work_close()});
    awaits($node, waits($ten[0]), 'a work session waits');
    $start = time;
    $node->safe_psql('postgres', "begin; select ojs.drop_queue('gone')$then; commit");
    like(answer($ten[0]), $error, "Q-66: work_next on a queue that was $what ends with an error");
    cmp_ok(time - $start, '<', 12, 'Q-66: soon, not when its time is over');
}
$_->{handle}->kill_kill for @ten, $cancelled, $timed;

# Q-47: whose share is nothing has not looked at leases, and so does not believe that none has lapsed.
my $empty = queue_of(0);
$node->safe_psql('postgres', q{alter system set ojs.worker = off});
$node->reload;
awaits($node, 'select ' . workers() . ' = 0', 'the worker has gone');
push_to('lapsed', 1);
$node->safe_psql('postgres', q{select from ojs.claim('lapsed', 'w', 1, '100 ms')});
awaits($node, 'select lease_expires_at < clock_timestamp() from ojs.leases where queue = \'lapsed\'', 'a lease lapses');
is($node->safe_psql('postgres',
    "select count(*) from ojs.claim('$empty', 'w', 1); select count(*) from ojs.claim('lapsed', 'w')"), "0\n1",
    'Q-47: its next claim gets what a lapsed lease leaves');
$node->stop;

# Without preload.
$node = server('greedy');
my $alone = session();
$node->safe_psql('postgres', q{select ojs.create_queue('greedy', '{"claim_jitter_ms": 5000}'),
    ojs.push('test.job', queue => 'greedy')});
$start = time;
ask($alone, "select count(*) from ojs.claim('greedy', 'w', 10); select count(*) from ojs.claim('greedy', 'w', 10)");
my $said = answer($alone);
is(() = $said =~ /NOTICE:  claims of queue "greedy" are served at once/g, 1,
    'Q-51: without preload a NOTICE says so, once') or diag $said;
like($said, qr/^1\n0$/m, 'Q-51: and claims are served');
cmp_ok(time - $start, '<', 4, 'Q-51: at once');
is(health($node, 'coalescing'), 'false', 'Q-51: health says it too');
$alone->{handle}->kill_kill;
$node->stop;
done_testing();
