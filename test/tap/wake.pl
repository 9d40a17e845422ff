# Waking those who wait: NOTIFY and waiting claims, with the worker and without preload (PGX-07 to PGX-09, OP-11).
# Runs alone: it measures how soon.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Time::HiRes 'time';
use Test::More;

for my $preload (1, 0) {
    my $how = $preload ? 'preloaded' : 'not preloaded';
    my $node = server('wake_' . ($preload ? 'preloaded' : 'plain'), streaming => 1, preload => $preload);
    worker_pid($node) if $preload;

    # Listen, claim until short, then wait.
    $node->safe_psql('postgres', "select from ojs.push('test.job', queue => 'news')");
    my $session = listener($node);
    my $hears_of = sub {
        my ($push) = @_;
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 3;
        $push->();
        my $start = time;
        heard($session, 'news') or die 'nothing is heard';
        return time - $start;
    };
    cmp_ok(at_best(1, sub { $hears_of->(sub { pushed($node, 'news') }) }), '<', 1,
        "PGX-08: a listener hears of a push within a second, $how");
    is($session->query_safe("select count(*) from ojs.claim('news', 'w', max => 10)"), 1, "PGX-08: and finds it, $how");

    $session->query_safe("select from ojs.claim('{news, unborn}'::text[], 'w', max => 1000, missing_ok => true)");
    pushed($node, 'unborn');
    ok(heard($session, 'unborn'), "PGX-08: a listener hears of the push that makes its queue, $how");

    # Names that somebody has made up: nobody pushes to these queues, so nothing else takes their flags down.
    my $flags = $preload ? q{select used from ojs_store.shared_use() where what = 'listener_flags'}
        : 'select count(*) from ojs_store.listener_flag';
    my $names = q{select from ojs.claim(array(select 'nowhere' || i || 'x' || n from generate_series(1, 1000) n), 'w',
        missing_ok => true)};
    $node->safe_psql('postgres', join('; ', map { $names =~ s/\bi\b/$_/r } 1 .. 3));
    cmp_ok($node->safe_psql('postgres', $flags), '<', 300,
        "PGX-08: claims of 3,000 queues that do not exist leave few flags, $how");
    $node->safe_psql('postgres', 'select ojs.tick()');
    cmp_ok($node->safe_psql('postgres', $flags), '<', 10, "PGX-08: and a tick takes them down, $how");
    $session->query_safe("select from ojs.claim('{news, newborn}'::text[], 'w', max => 1000, missing_ok => true)");
    pushed($node, 'newborn');
    ok(heard($session, 'newborn', 20), "PGX-08: and the push that makes a queue is heard of again, $how");

    my $other = $node->background_psql('postgres');
    pushed($node, 'ten');
    my $ten = sub {
        my $start = time;
        for (1 .. 10) {
            $session->query_safe("select from ojs.claim('ten', 'w', max => 1000, lease => '1 hour')");
            $other->query_safe("select from ojs.push('test.job', queue => 'ten')");
            heard($session, 'ten') or die 'nothing is heard';
        }
        return time - $start;
    };
    cmp_ok(at_best(7, $ten), '<', 7,
        "PGX-08: a listener hears of ten pushes in a row at once, not of one in a second, $how");
    $other->query_safe("begin; select from ojs.push('test.job', queue => 'news')");
    ok(!heard($session, 'news', 0.3), "PGX-07: nothing is heard before the commit, $how");
    $other->query_safe('rollback');
    ok(!heard($session, 'news', 0.7), "PGX-09: nothing is heard after a rollback, $how");
    $other->query_safe("begin; savepoint s; select from ojs.push('test.job', queue => 'news'); rollback to s; commit");
    ok(!heard($session, 'news', 0.7), "PGX-09: nor after the rollback of a savepoint, $how");

    my $thousand = "begin; savepoint s; select count(ojs.push('test.job', queue => 'news'))
        from generate_series(1, 1000); release s; commit";
    cmp_ok(at_best(1, sub { $hears_of->(sub { $other->query_safe($thousand) }) }), '<', 1,
        "PGX-08: a thousand pushes in a released savepoint are heard, $how");
    if (!$preload) {
        # Pushes that nobody waits for do not take the lock of NOTIFY.
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 2;
        pushed($node, 'news');
        ok(heard($session, 'news'), 'PGX-08: the first push after a short claim is heard');
        pushed($node, 'news');
        ok(!heard($session, 'news', 0.5), 'PGX-08: who has not come back for it is not told of the next one');
        $session->query_safe("begin; select from ojs.claim('news', 'w', max => 1000)");
        pushed($node, 'news');
        ok(!heard($session, 'news', 0.3), 'PGX-08: a session hears nothing inside its transaction');
        ok($session->query_safe('commit') =~ /notification/ || heard($session, 'news'),
            'PGX-08: a claim that is not committed yet is a listener all the same');
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 2;
        $other->query_safe("begin; select from ojs.push('test.job', queue => 'news'); rollback");
        $other->query_safe("begin; lock ojs_store.listener_flag; select from ojs.push('test.job', queue => 'quiet')");
        pushed($node, 'news');
        ok(heard($session, 'news'), 'PGX-08: who locks the flags keeps nobody from pushing, nor from hearing');
        is($session->query_safe("select count(*) from ojs.claim('news', 'w', max => 1000)"), 1,
            'PGX-08: nor from claiming');
        $other->query_safe('rollback');

        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 2;
        $other->query_safe("begin; select from ojs.push('test.job', queue => 'news'); prepare transaction 'p'");
        $other->query_safe("commit prepared 'p'");
        ok(!heard($session, 'news', 0.3), 'PGX-07: nothing is heard of a prepared push');
        $node->safe_psql('postgres', 'select ojs.tick()');
        ok(heard($session, 'news'), 'PGX-08: but of the tick that finds it');
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 2;

        # A push looks for listeners before its commit is done: whoever may have come too late for it looks again.
        pushed($node, 'news');
        heard($session, 'news') or die 'nothing is heard';
        $other->query_safe("begin; select from ojs.push('test.job', queue => 'news')");
        my $answer = $session->query_safe("select from ojs.claim('news', 'w', max => 1000)");
        ok($answer =~ /notification/ || heard($session, 'news', 5),
            'PGX-08: a claim that got jobs, but not one that was arriving, is told to look again');
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)");
        ok(!heard($session, 'news', 0.3), 'PGX-08: an empty one is not');
        $other->query_safe('commit');
        ok(heard($session, 'news'), 'PGX-08: but of the commit');
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000, wait => '1 s')");
        pushed($node, 'news');
        ok(heard($session, 'news'),
            'PGX-08: who may have waited, and got less than it asked for, hears of the next push');
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 2;

        # The commit of a push lowers the flag, then waits for the lock of NOTIFY, and is cancelled there: another
        # commit has that lock until a standby answers.
        $node->safe_psql('postgres', q{create table note (n int);
            alter system set synchronous_standby_names = 'nobody'});
        $node->reload;
        awaits($node, q{select current_setting('synchronous_standby_names') = 'nobody'},
            'PGX-08: a commit waits for a standby');
        my $first = $node->background_psql('postgres', on_error_stop => 0);
        my $second = $node->background_psql('postgres', on_error_stop => 0);
        my $of_second = q{from pg_stat_activity where application_name = 'second'};
        $first->{stdin} .= q{begin; insert into note values (1); notify other; commit;} . "\n";
        $first->{run}->pump_nb;
        awaits($node, q{select true from pg_stat_activity where wait_event = 'SyncRep'}, 'PGX-08: it has the lock');
        $second->{stdin} .= q{set application_name = 'second';
            select from ojs.push('test.job', queue => 'news');} . "\n";
        $second->{run}->pump_nb;
        awaits($node, qq{select wait_event_type = 'Lock' $of_second},
            'PGX-08: the commit of a push waits for it');
        awaits($node, qq{select pg_cancel_backend(pid) and state = 'idle' $of_second},
            'PGX-08: it is cancelled');
        $node->safe_psql('postgres', 'alter system reset synchronous_standby_names');
        $node->reload;
        $_->quit for $first, $second;
        pushed($node, 'news');
        ok(heard($session, 'news'), 'PGX-08: a flag stays up if who lowered it rolls back');
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 2;
        $other->query_safe("begin; select from ojs.drop_queue('news', 'discard'); commit");
        ok(heard($session, 'news'), 'PGX-08: who listens to a queue that is dropped is told');
        $node->safe_psql('postgres', q{select ojs.create_queue('news')});
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 2;
        # So many flags that a push asks their index.
        $node->safe_psql('postgres',
            q{select from generate_series(1, 700) n, ojs.create_queue('many-' || n);
            select from generate_series(1, 700) n, ojs.claim('many-' || n, 'w')});
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 2;
        cmp_ok($node->safe_psql('postgres', q{select pg_relation_size('ojs_store.listener_flag')}), '>', 2 * 8192,
            'PGX-08: seven hundred queues are waited for');
        pushed($node, 'news');
        ok(heard($session, 'news'), 'PGX-08: a listener hears of its queue among so many');
        pushed($node, 'many-444');
        ok(heard($session, 'many-444'), 'PGX-08: of each of them');
        $node->safe_psql('postgres', 'truncate ojs_store.listener_flag');
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 2;

        $other->query_safe("set ojs.notify = off; select from ojs.push('test.job', queue => 'news'); reset ojs.notify");
        ok(!heard($session, 'news', 0.5), 'PGX-07: ojs.notify = off keeps quiet');
    }
    if ($preload) {
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 2;
        $node->safe_psql('postgres', q{alter system set ojs.notify = off});
        $node->reload;
        awaits($node, q{select current_setting('ojs.notify') = 'off'}, 'PGX-07: the worker has it off');
        $other->query_safe("set ojs.notify = on; select from ojs.push('test.job', queue => 'news'); reset ojs.notify");
        ok(heard($session, 'news'), 'PGX-07: a session that has it on is heard all the same');
        $node->safe_psql('postgres', q{alter system reset ojs.notify});
        $node->reload;
        awaits($node, q{select current_setting('ojs.notify') = 'on'}, 'PGX-07: on again');

        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 2;
        pushed($node, 'news', "delay => '400 ms'");
        ok(heard($session, 'news'), 'PGX-08: a scheduled job that falls due is heard of');

        # Two-phase commit leaves no mark; the worker looks again at the queues that somebody wants.
        $session->query_safe("select from ojs.claim('news', 'w', max => 1000)") for 1 .. 2;
        $other->query_safe("begin; select from ojs.push('test.job', queue => 'news'); prepare transaction 'p'");
        ok(!heard($session, 'news', 0.7), 'PGX-07: nothing is heard of a prepared push');
        $other->query_safe("commit prepared 'p'");
        ok(heard($session, 'news'), 'PGX-08: but of its commit');
    }

    # A claim that waits.
    my $waits = $node->background_psql('postgres', on_error_stop => 0);
    my $wait = sub {
        my ($queue, $time) = @_;
        $waits->{stdin} .= "select 'claimed ' || count(*) from ojs.claim('$queue', 'w', wait => '$time');\n";
        $waits->{run}->pump_nb;
        $node->poll_query_until('postgres',
            "select exists (select from pg_stat_activity where state = 'active' and wait_event_type = 'Extension'
                and query like '%wait =>%')")
            or die 'does not wait';
    };
    pushed($node, 'slow');
    $node->safe_psql('postgres', "select from ojs.claim('slow', 'w')");
    $wait->('slow', '20 s');
    is($node->safe_psql('postgres',
        "select count(*) from pg_locks l join pg_stat_activity a using (pid) where a.wait_event_type = 'Extension'
            and a.query like '%wait =>%' and l.relation::regclass::text like 'ojs_store.%'
            and l.mode <> 'AccessShareLock'"),
        0, "OP-11: a waiting claim holds no lock on a table, $how");
    pushed($node, 'slow');
    like($waits->query_until(qr/claimed \d/, ''), qr/claimed 1/, "OP-11: a waiting claim gets the job, $how");
    my $ends_by = sub {
        my ($act, $said) = @_;
        return sub {
            $wait->('slow', '20 s');
            my $start = time;
            $act->();
            $waits->query_until($said, '');
            return time - $start;
        };
    };
    cmp_ok(at_best(2, $ends_by->(sub { pushed($node, 'slow') }, qr/claimed 1/)), '<', 2, "OP-11: at once, $how");
    cmp_ok(at_best(3, $ends_by->(sub { pushed($node, 'slow', "delay => '300 ms'") }, qr/claimed 1/)), '<', 3,
        "OP-11: and one that falls due soon after, $how");
    my $cancel = "select pg_cancel_backend(pid) from pg_stat_activity where query like '%wait =>%'
        and pid <> pg_backend_pid()";
    cmp_ok(at_best(3, $ends_by->(sub { $node->safe_psql('postgres', $cancel); $waits->{stdin} .= "\\echo back\n" },
        qr/back/)), '<', 3, "OP-11: a waiting claim can be cancelled, $how");
    $waits->{stderr} = '';
    $waits->quit;

    # A waiter that is killed leaves its place, and jobs go to the others.
    my @waiters = map { $node->background_psql('postgres') } 1 .. 3;
    for my $waiter (@waiters) {
        $waiter->{stdin} .= "select 'claimed ' || count(*) from ojs.claim('slow', 'w', wait => '20 s');\n";
        $waiter->{run}->pump_nb;
    }
    $node->poll_query_until('postgres',
        "select count(*) = 3 from pg_stat_activity where wait_event_type = 'Extension' and query like '%wait =>%'")
            or die;
    $node->safe_psql('postgres',
        "select pg_terminate_backend(min(pid)) from pg_stat_activity where query like '%wait =>%'
            and pid <> pg_backend_pid()");
    $node->poll_query_until('postgres',
        "select count(*) = 2 from pg_stat_activity where wait_event_type = 'Extension' and query like '%wait =>%'")
            or die;
    pushed($node, 'slow') for 1 .. 2;
    $node->poll_query_until('postgres',
        "select count(*) = 2 from ojs.leases where queue = 'slow' and claimed_at > now() - interval '10 s'
            and worker = 'w' and lease_expires_at > now()");
    ok($node->poll_query_until('postgres',
        "select count(*) = 0 from pg_stat_activity where wait_event_type = 'Extension' and query like '%wait =>%'"),
        "OP-11: both other waiters got theirs, $how");
    eval { $_->{run}->kill_kill } for @waiters;
    eval { $_->quit } for $session, $other;
    $node->stop;
}

done_testing();
