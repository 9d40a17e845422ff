# Nobody sleeps with a lock: a call that waits for jobs, or that is part of a longer transaction, has written and locked
# nothing but the jobs that it hands out. What it must leave alone here: an extended lease whose index entry is due, a
# reminder, what a rate limit counts and says, a due job that may not start.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use IPC::Run ();
use Test::More;

my $folder = PostgreSQL::Test::Utils::tempdir();
for my $preload (1, 0) {
    my $how = $preload ? 'preloaded' : 'not preloaded';
    # Without the worker: it would move the index entry itself.
    my $node = server("waiting$preload", preload => $preload, conf => "ojs.worker = off\n");
    my $limit = q{options => '{"rate_limit":
        {"key": "api", "concurrency": 5, "rate": {"limit": 2, "period": "PT1H"}}}'};
    pushed($node, 'limited', $limit) for 1 .. 3;
    # One use of a place is over, and the window full.
    $node->safe_psql('postgres', q{select ojs.ack(id) from ojs.claim('limited', 'w', max => 2)});
    $node->safe_psql('postgres', q{select ojs.push('test.job', queue => 'mortal',
        expires_at => now() + interval '1 ms', delay => '1 hour')});
    my $uses = 'select count(*) from ojs_store.limit_use';
    my $used = $node->safe_psql('postgres', $uses);

    my $id = pushed($node, 'long');
    my ($lease) = $node->safe_psql('postgres', q{select lease_id from ojs.claim('long', 'holder', lease => '100 ms')});

    my $extend = sub {
        return $node->safe_psql('postgres',
            "set lock_timeout = '100ms'; select state from ojs.extend('$id', '1 hour', '$lease')");
    };
    my $overdue = "select reap_at < now() and deadline > now() from ojs_store.lease where job_id = '$id'";
    $extend->();
    awaits($node, $overdue, "a lease is held beyond its index entry, $how");

    my %form = (
        'a claim' => q{select 'over ' || count(*) from ojs.claim('%s', 'waits', wait => '30 s');},
        'a claim of several queues' => q{select 'over ' || count(*) from ojs.claim('{mortal,%s}'::text[], 'waits',
            wait => '30 s');},
        'work_next' => q{select ojs.work_open('%s', 'waits'); select 'over ' || count(*) from ojs.work_next('30 s');},
        'a claim in a transaction' => q{begin; select 'over ' || count(*) from ojs.claim('%s', 'waits',
            wait => '30 s');},
        'a claim in a savepoint' => q{begin; savepoint s; select 'over ' || count(*) from ojs.claim('%s', 'waits',
            wait => '30 s');},
        'a claim in a block' => q{do $$ begin perform from ojs.claim('%s', 'waits',
            wait => '30 s'); exception when division_by_zero then null; end $$; select 'over';},
        'work_next in a transaction' => q{begin; select ojs.work_open('%s',
            'waits'); select 'over ' || count(*) from ojs.work_next('30 s');},
    );
    for my $form (sort keys %form) {
        for my $queue ('long', 'limited') {
            my $session = $node->background_psql('postgres', on_error_stop => 0);
            my $pid = $session->query_safe('select pg_backend_pid()');
            $session->{stdin} .= sprintf("$form{$form}\n", $queue);
            $session->{run}->pump_nb;
            my $asleep = "from pg_stat_activity where pid = $pid";
            awaits($node, "select wait_event_type = 'Extension' $asleep", "$form of $queue waits, $how");
            # It looks for work now and then, and has locks while it does.
            awaits($node, "select wait_event_type = 'Extension' and backend_xid is null
                and not exists (select from pg_locks l where l.pid = a.pid
                and (locktype in ('tuple', 'transactionid', 'object') or mode not in ('AccessShareLock',
                    'ExclusiveLock')
                    or relation in (select oid from pg_class where relnamespace = 'ojs_store'::regnamespace)))
                from pg_stat_activity a where pid = $pid",
                "$form of $queue that waits has written nothing, and holds no lock that anybody waits for, $how");
            is($extend->(), 'active', "and nobody who extends a lease waits for it, $how");
            $node->safe_psql('postgres', "select pg_cancel_backend($pid)");
            $node->poll_query_until('postgres', "select state <> 'active' $asleep") or die;
            $session->{stderr} = '';
            eval { $session->quit };
        }
    }
    is($node->safe_psql('postgres', $overdue), 't', "the entry is still where it was, $how");
    is($node->safe_psql('postgres', $uses), $used, "and what the limit counts, $how");

    # A claim that waits for a queue which nobody has made yet is woken by that queue's first job, not by others.
    my $absent = $node->background_psql('postgres');
    my $waits = $absent->query_safe('select pg_backend_pid()');
    $absent->{stdin} .= "select count(*) from ojs.claim('absent', 'w', wait => '60 s', missing_ok => true);\n";
    $absent->{run}->pump_nb;
    my $state = "from pg_stat_activity where pid = $waits";
    awaits($node, "select wait_event_type = 'Extension' $state", "a claim waits for a queue that is not there, $how");
    my $switches = sub { return slurp_file("/proc/$waits/status") =~ /^voluntary_ctxt_switches:\s*(\d+)/m ? $1 : 0 };
    my $slept = -e '/proc/self/status' ? $switches->() : 0;
    append_to_file("$folder/others$preload", "select (ojs.push('test.job', queue => 'others')).id;\n");
    $node->command_ok(['pgbench', '-n', '-t', 1000, '-f', "$folder/others$preload", $node->connstr('postgres')],
        "others push, $how");
    cmp_ok($switches->() - $slept, '<', 500, "and do not wake it each time, $how") if -e '/proc/self/status';
    pushed($node, 'absent');
    awaits($node, "select state = 'idle' $state", "its first job does, $how");
    like($absent->query_safe('select 2'), qr/^1\n/, "and is handed out, $how");
    $absent->quit;

    # A claim in a transaction that does not wait.
    my $session = $node->background_psql('postgres');
    is($session->query_safe(q{begin; select count(*) from ojs.claim('{long,mortal}'::text[], 'w', max => 10)}), '0',
        "nothing to claim, $how");
    # Without preload it has said that somebody may be listening, in rows that nobody waits for.
    is($session->query_safe("select coalesce(string_agg(distinct relation::regclass::text, ' '), '') from pg_locks
        where pid = pg_backend_pid() and mode = 'RowExclusiveLock' and relation::regclass::text ~ 'listener_flag'
            and pg_current_xact_id_if_assigned() is not null"),
            $preload ? '' : 'ojs_store.listener_flag ojs_store.listener_flag_queue',
        "a claim in a transaction that finds nothing has written nothing but a flag, $how");
    is($extend->(), 'active', "and nobody who extends a lease waits for it, $how");
    $session->query_safe('rollback');
    $session->quit;

    # A claim that does not wait, in a block that goes on.
    for my $block ("perform from ojs.claim('{long,mortal}'::text[], 'w')",
        "for id in select c.id from ojs.claim('{long,mortal}'::text[], 'w') c loop end loop") {
        $session = $node->background_psql('postgres', on_error_stop => 0);
        my $pid = $session->query_safe('select pg_backend_pid()');
        $session->{stdin} .= "do \$\$ declare id uuid; begin $block; perform pg_sleep(600); end \$\$;\n";
        $session->{run}->pump_nb;
        awaits($node, "select wait_event = 'PgSleep' from pg_stat_activity where pid = $pid",
            "a block goes on after a claim, $how");
        is($extend->(), 'active', "and nobody who extends a lease waits for it, $how");
        $node->safe_psql('postgres', "select pg_cancel_backend($pid)");
        $node->poll_query_until('postgres', "select state <> 'active' from pg_stat_activity where pid = $pid") or die;
        $session->{stderr} = '';
        eval { $session->quit };
    }

    # One in a pipeline that goes on.
    append_to_file("$folder/pipeline$preload", "\\startpipeline\nselect 1;\n"
        . "select from ojs.claim('{long,mortal}'::text[], 'w');\nselect pg_sleep(600);\n\\endpipeline\n");
    my $pipeline = IPC::Run::start(['pgbench', '-n', '-M', 'extended', '-t', 1, '-f', "$folder/pipeline$preload",
        $node->connstr('postgres')], '>', \my $out, '2>', \my $err);
    my $in_it = "from pg_stat_activity where wait_event = 'PgSleep'";
    awaits($node, "select exists (select $in_it)", "a pipeline goes on after a claim, $how");
    is($extend->(), 'active', "and nobody who extends a lease waits for it, $how");
    $node->safe_psql('postgres', "select pg_terminate_backend(pid) $in_it");
    $pipeline->finish;

    # What a call has written on its way and cannot use itself, it lets go of by returning.
    pushed($node, 'limited', "delay => '1 ms', $limit");
    is($node->safe_psql('postgres', q{select count(*) from ojs.claim('limited', 'w', wait => '30 s')}), 0,
        "a claim that makes a job available and may not start it returns, $how");
    is($node->safe_psql('postgres',
        q{select count(*) from ojs_store.delayed where kind <> 5
            and queue = (select id from ojs_store.queue where name = 'limited')}), 0, "and the job is available, $how");

    # A claim of its own that has nothing to wait for does it for all.
    is($node->safe_psql('postgres', q{select count(*) from ojs.claim('long', 'w')}), 0, "the job is held, $how");
    is($node->safe_psql('postgres', $overdue), 'f', "a claim of its own moves the entry along, $how");
    is($node->safe_psql('postgres', q{select state from ojs.jobs where queue = 'mortal'}), 'discarded',
        "and discards what has expired, $how");
    is($node->safe_psql('postgres', q{select count(*) from ojs.claim('limited', 'w')}), 0, "the limit holds, $how");
    cmp_ok($node->safe_psql('postgres', $uses . ' where kind = 0'), '<', 2,
        "and the uses that are over are removed, $how");
    is($node->safe_psql('postgres', q{select count(*) from ojs_store.stored_event where type = 'rate_limit.exceeded'}),
        1, "and its event is written, $how");
    $node->stop;
}
# A call that had to rebuild the hot set itself does not sleep before that is committed.
my $node = server('waits_alone', conf => "max_worker_processes = 0\nmax_parallel_workers = 0\n");
for my $call (q{from ojs.claim('alone', 'w', wait => '30 s')}, q{from ojs.work_next('30 s')}) {
    $node->safe_psql('postgres', "select from ojs.push('test.job', queue => 'alone', delay => '1 hour')");
    $node->safe_psql('postgres',
        "truncate ojs_store.hot_set_state, ojs_store.ready, ojs_store.lease, ojs_store.delayed");
    is($node->safe_psql('postgres',
        "select ojs.work_open('alone', 'w'); set statement_timeout = '20 s'; select count(*) $call"), "\n0",
        "after a rebuild in place a call returns: $call");
}
$node->stop;
done_testing();
