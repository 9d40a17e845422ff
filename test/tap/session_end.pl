# A work session gives back its jobs in a transaction of its own at the end of the session, which neither SIGTERM nor a
# fast shutdown can interrupt: nothing in it may wait, neither for a standby that is away, nor for a safe snapshot, nor
# for the lock on notifications (Q-64).
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = server('session_end', streaming => 1, conf => "log_lock_waits = on\n");
$node->safe_psql('postgres', q{select ojs.push('test.job', queue => 'orders') from generate_series(1, 10)});

sub gone {
    my ($pid, $name) = @_;
    awaits($node, "select not exists (select from pg_stat_activity where pid = $pid)", $name);
}

sub available { return $node->safe_psql('postgres',
    q{select count(*) from ojs.jobs where queue = 'orders' and state = 'available'}); }

# A session that holds one job of the queue, and its process.
sub holder {
    my ($worker, $settings) = @_;
    my $session = $node->background_psql('postgres');
    $session->query_safe("select ojs.work_open('orders', '$worker', 1, '1 h'); select count(*) from ojs.work_next()");
    $session->query_safe($settings) if $settings;
    return ($session, $session->query_safe('select pg_backend_pid()') =~ s/\s//gr);
}

my ($clean, $clean_pid) = holder('clean');
my ($last, $last_pid) = holder('last');
my ($notifying, $notifying_pid) = holder('notifying');
my ($deferred, $deferred_pid) = holder('deferred', q{set default_transaction_isolation = 'serializable';
    set default_transaction_read_only = on; set default_transaction_deferrable = on});
is(available(), 6, 'four sessions hold a job each');
is($node->safe_psql('postgres', q{select count(*) from ojs_store.listener_flag}), 0, 'nobody listens yet');

# A safe snapshot is waited for while a serializable transaction that writes is open.
my $serializable = $node->background_psql('postgres');
$serializable->query_safe(q{begin isolation level serializable; select count(*) from ojs_store.queue;
    create temp table written (a int)});
$deferred->quit;
gone($deferred_pid, 'Q-64: a session ends while a serializable transaction is open, where it would wait for one');
is(available(), 7, 'Q-64: its job is back');
$serializable->query_safe('commit');
$serializable->quit;

# A job that comes back takes the next number of the sequence, which somebody may have locked.
my ($numbered, $numbered_pid) = holder('numbered');
my $sequence = $node->background_psql('postgres');
$sequence->query_safe('begin; alter sequence ojs_store.seq no cycle');
$numbered->quit;
gone($numbered_pid, 'Q-64: a session ends while somebody has locked the sequence');
is($node->safe_psql('postgres', q{select count(*) from ojs.leases where worker = 'numbered'}), 1,
    'Q-64: its lease runs out then');
$sequence->query_safe('rollback');
$sequence->quit;

# What it gives back may let the next job of an ordering key go on, which happens before the commit: under a snapshot.
$node->safe_psql('postgres', q{select ojs.push('test.job', queue => 'lined',
    options => '{"ordering_key": "k", "ordering": "relaxed"}') from generate_series(1, 2)});
my $lined = $node->background_psql('postgres');
$lined->query_safe(q{select ojs.work_open('lined', 'lined', 1, '1 h'); select count(*) from ojs.work_next()});
is($node->safe_psql('postgres', q{select string_agg(kind::text, ' ') from ojs_store.delayed}), '6',
    'the second job waits for the first');
my $lined_pid = $lined->query_safe('select pg_backend_pid()') =~ s/\s//gr;
$lined->quit;
gone($lined_pid, 'a session that holds the first job of an ordering key ends');
is($node->safe_psql('postgres', q{select string_agg(state, ' ') from ojs.jobs where queue = 'lined'}),
    'available available', 'Q-64: its job is back');
is($node->safe_psql('postgres', q{select count(*) from ojs.leases where worker = 'lined'}), 0, 'Q-64: no lease stays');

# The standby is away.
$node->safe_psql('postgres', q{alter system set synchronous_standby_names = 'nobody'});
$node->reload;
awaits($node, q{select current_setting('synchronous_standby_names') = 'nobody'}, 'commits wait for a standby');
$clean->quit;
gone($clean_pid, 'Q-64: a session ends while the synchronous standby is away');
is(available(), 7, 'Q-64: and its job is back');

# A session that sends a notification keeps the lock on them until its commit is confirmed.
$node->safe_psql('postgres', q{set synchronous_commit = local;
    insert into ojs_store.listener_flag select id from ojs_store.queue where name = 'orders'});
my $sender = $node->background_psql('postgres');
$sender->{stdin} .= "begin; select ojs.push('test.job', queue => 'news'); notify others, 'news'; commit;\n";
$sender->{run}->pump_nb;
awaits($node, q{select exists (select from pg_stat_activity where wait_event = 'SyncRep')},
    'a notification waits for the standby');
$notifying->quit;
gone($notifying_pid, 'Q-64: a session ends while another one holds the lock on notifications');
is(available(), 8, 'Q-64: its job is back');
is($node->safe_psql('postgres', q{select count(*) from ojs_store.listener_flag}), 1,
    'whoever listens hears of it from a later commit');

is($node->safe_psql('postgres', "select count(*) from pg_stat_activity where pid = $last_pid"), 1,
    'one session still holds its job');
{
    local $ENV{PGCTLTIMEOUT} = 60;
    ok($node->stop('fast', fail_ok => 1), 'Q-64: a fast shutdown ends it');
}
$_->{run}->kill_kill for $last, $sender;
$node->stop('immediate', fail_ok => 1);
done_testing();
