# Push mode: what a session was given comes back when it ends, in whatever way, and nothing else does (Q-62 to Q-67).
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'time';

my $node = server('work', conf => "restart_after_crash = on\n");
$node->safe_psql('postgres', q{select ojs.push('test.job', queue => 'work') from generate_series(1, 40)});

# A session of its own: psql prints a line when it has done what it was told.
sub session {
    my ($commands) = @_;
    my ($in, $out) = ("\\set ON_ERROR_STOP on\n$commands\n\\echo ready\n", '');
    my $session = IPC::Run::start(['psql', '-XAtq', '-d', $node->connstr('postgres')], '<', \$in, '>', \$out, '2>&1',
        IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
    IPC::Run::pump $session until $out =~ /ready/ || !$session->pumpable;
    like($out, qr/ready/, 'the session has its jobs') or diag $out;
    return ($session, \$in, \$out);
}

sub held { my ($worker) = @_; return $node->safe_psql('postgres',
    "select count(*) from ojs.leases where worker = '$worker'"); }

# A session that works ends; what it held comes back within a second, at best: a busy machine may be slow now and then.
sub comes_back {
    my ($worker, $end, $name) = @_;
    cmp_ok(at_best(1, sub {
        my ($session, $in) = session(qq{
            select ojs.work_open('work', '$worker', 8);
            select count(*) from ojs.work_next();
            select count(*) from ojs.work_next();
        });
        is(held($worker), 8, 'Q-62 Q-63: with max 8 and no ack exactly 8 are delivered');
        $end->($session, $in);
        my $start = time;
        $node->poll_query_until('postgres',
            "select not exists (select from ojs.leases where worker = '$worker')") or die 'it does not come back';
        my $took = time - $start;
        $session->kill_kill;
        return $took;
    }), '<', 1, "Q-64: $name, within a second");
}

comes_back('clean', sub {
    my ($session, $in) = @_;
    $$in .= "\\q\n";
    $session->finish;
}, 'a clean end gives them back');
comes_back('terminated', sub {
    $node->safe_psql('postgres',
        q{select pg_terminate_backend(pid) from pg_stat_activity where query like '%work_next%'
            and pid <> pg_backend_pid()});
}, 'a terminated session gives them back');
comes_back('killed', sub { $_[0]->kill_kill(grace => 0) }, 'a client killed with -9 loses them');

my ($session, $in, $out) = session(q{
    select ojs.work_open('work', 'clean', 1);
    select count(*) from ojs.work_next();
    select count(*) from ojs.claim('work', 'clean-too', 2);
});
$$in .= "\\q\n";
$session->finish;
$node->poll_query_until('postgres', "select not exists (select from ojs.leases where worker = 'clean')") or die;
is(held('clean-too'), 2, 'Q-64: a plain claim of the same session stays');

($session, $in, $out) = session(q{
    select ojs.work_open('work', 'flows', 3);
    select id from ojs.work_next() limit 1 \gset
    select from ojs.ack(:'id');
    select 'more ' || count(*) from ojs.work_next();
    select ojs.work_close();
});
like($$out, qr/more 1/, 'Q-62: a new job flows when one is acked');
is(held('flows'), 0, 'Q-62: closing gives the rest back');
$$in .= "\\q\n";
$session->finish;

is($node->safe_psql('postgres', q{select count(*) from ojs.jobs where state = 'available'}), 40 - 1 - 2,
    'Q-64: every job but the acked one and the plainly claimed ones is available again');
my ($code, $stdout, $stderr) = $node->psql('postgres', q{select ojs.work_next()});
like($stderr, qr/no work session/, 'Q-67: without a session there is no next job');
($code, $stdout, $stderr) = $node->psql('postgres', q{select ojs.work_open('nowhere', 'w')});
like($stderr, qr/queue "nowhere" does not exist/, 'Q-67: an unknown queue is refused');
($code, $stdout, $stderr) = $node->psql('postgres', q{select ojs.work_open('work', '')});
like($stderr, qr/worker must not be empty/, 'Q-67: a worker must have a name');

# Nothing can interrupt a session that ends: it waits for nobody, and leaves to another transaction what that is at.
($session, $in, $out) = session(q{
    select 'pid ' || pg_backend_pid();
    select ojs.work_open('work', 'leaving', 2, '60 s');
    select count(*) from ojs.work_next();
});
my ($leaving) = $$out =~ /pid (\d+)/;
my $holds = $node->background_psql('postgres');
$holds->query_safe(q{begin; select from ojs.extend((select job_id from ojs.leases where worker = 'leaving' limit 1),
    '50 s')});
$session->kill_kill(grace => 0);
awaits($node, "select not exists (select from pg_stat_activity where pid = $leaving)",
    'Q-64: a session ends beside a transaction that is at its job');
is(held('leaving'), 1, 'Q-64: and gives back the others');
$holds->query_safe('commit');
$holds->quit;
is(held('leaving'), 1, 'Q-64: the lease that was extended runs out');

($session, $in, $out) = session(q{
    select 'pid ' || pg_backend_pid();
    select ojs.work_open('work', 'locked-out', 2, '60 s');
    select count(*) from ojs.work_next();
});
($leaving) = $$out =~ /pid (\d+)/;
$holds = $node->background_psql('postgres');
$holds->query_safe(q{begin; lock table ojs_store.lease});
$session->kill_kill(grace => 0);
awaits($node, "select not exists (select from pg_stat_activity where pid = $leaving)",
    'Q-64: nor for a table that is locked');
$holds->query_safe('commit');
$holds->quit;
is(held('locked-out'), 2, 'Q-64: its leases run out');

# More may be held than a work session takes, where a close was rolled back.
is($node->safe_psql('postgres', q{
    select from ojs.work_open('work', 'again', 5);
    select count(*) from ojs.work_next();
    begin; select from ojs.work_close(); rollback;
    select from ojs.work_open('work', 'again', 1);
    select count(*) from ojs.work_next()}) =~ s/\n+/ /gr, '5 0', 'Q-63: who holds more than that gets nothing');

# With all that it may hold in hand a session waits, for an ack by whomever.
$node->safe_psql('postgres', q{select ojs.push('test.job', queue => 'flow') from generate_series(1, 2)});
my $flow = $node->background_psql('postgres');
my $first = $flow->query_safe(q{select ojs.work_open('flow', 'flows', 1); select id from ojs.work_next()}) =~ s/\s//gr;
my $flows = $flow->query_safe('select pg_backend_pid()');
$flow->{stdin} .= "select 'next ' || id from ojs.work_next('30 s');\n";
$flow->{run}->pump_nb;
awaits($node, "select wait_event_type = 'Extension' from pg_stat_activity where pid = $flows",
    'Q-62: at max, work_next waits');
is($node->safe_psql('postgres', "select backend_xid is null from pg_stat_activity where pid = $flows"), 't',
    'Q-62: with nothing locked');
$node->safe_psql('postgres', "select ojs.ack('$first')");
like($flow->query_until(qr/next [0-9a-f-]{36}/, ''), qr/next (?!$first)/,
    'Q-62: and gives the next job after an ack by another session');
$flow->quit;

# A lease of its own that has run out is no longer in its hands, though nobody has taken it back; it may do so itself.
my $lapses = $node->background_psql('postgres');
pushed($node, 'lapses');
$lapses->query_safe(q{select ojs.work_open('lapses', 'lapses', 1, '100 ms'); select count(*) from ojs.work_next()});
awaits($node, q{select deadline < now() from ojs_store.lease where worker = 'lapses'}, 'Q-45: its lease runs out');
is($lapses->query_safe('select deliveries from ojs.work_next()'), 2,
    'Q-45: the session takes its job again, without any upkeep');
$lapses->quit;

# A work session that was opened in a transaction that rolled back is not open.
for my $undone ('begin; select from ojs.work_open(\'work\', \'undone\'); rollback',
    'begin; savepoint s; select from ojs.work_open(\'work\', \'undone\'); rollback to s; commit',
    'begin; savepoint s; select from ojs.work_open(\'work\', \'undone\'); release s; rollback') {
    my ($code, $stdout, $stderr) = $node->psql('postgres', "$undone; select ojs.work_next()");
    like($stderr, qr/no work session/, "Q-67: not open after $undone");
}
is($node->safe_psql('postgres', q{begin; savepoint s; select from ojs.work_open('work',
    'done'); release s; commit; select from ojs.work_next(); select 'open'}) =~ s/\n//gr, 'open',
    'Q-67: open after a commit');

# No exit hook runs where the server process itself is killed; even so no lease of work mode outlives its session.
$node->safe_psql('postgres', q{select ojs.create_queue('kept', '{"leases_durable": true}'),
    count(ojs.push('test.job', queue => 'kept')) from generate_series(1, 2)});
($session, $in, $out) = session(q{
    select 'pid ' || pg_backend_pid();
    select count(*) from ojs.claim('kept', 'claimed', 1, '60 s');
    select ojs.work_open('kept', 'crashed', 1, '60 s');
    select count(*) from ojs.work_next();
});
my ($pid) = $$out =~ /pid (\d+)/;
kill 9, $pid;
$node->poll_query_until('postgres', "select not exists (select from pg_stat_activity where pid = $pid)");
is($node->safe_psql('postgres', q{select count(*) from ojs.claim('kept', 'other', 2)}), 1,
    'Q-65: its job can be claimed at once');
is(held('claimed'), 1, 'Q-65: a durable lease of a plain claim stands');
is($node->safe_psql('postgres', q{set ojs.clock_offset = '61 s'; select count(*) from ojs.claim('kept', 'other')}), 1,
    'Q-65: until it has run out');
$session->kill_kill;
$node->stop;
done_testing();
