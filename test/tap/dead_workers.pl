# A worker whose process dies loses its jobs long before their leases end (WRK-07, DLV-04), and nobody waits for anybody
# over it.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

# As if the last beat had been long ago: the servers' background worker has no clock of ours.
sub grows_silent {
    my ($node, $worker) = @_;
    $node->safe_psql('postgres',
        "update ojs_store.worker set seen_at = seen_at - interval '1 minute' where name = '$worker';
        update ojs_store.lease set claimed_at = claimed_at - interval '1 minute',
            beat_at = beat_at - interval '1 minute' where worker = '$worker'");
}

sub state_of { my ($node, $id) = @_; return $node->safe_psql('postgres',
    "select state || '/' || coalesce(error ->> 'type', '') from ojs.jobs where id = '$id'"); }

for my $preload (0, 1) {
    my $how = $preload ? 'by the background worker' : 'by ojs.tick()';
    my $node = server("dead_$preload", preload => $preload);
    my $id = pushed($node, 'dead');

    my $process = $node->background_psql('postgres', on_error_stop => 1);
    $process->query_safe(q{select count(*) from ojs.claim('dead', 'mortal', lease => '1 hour')});
    $process->query_safe("select directive from ojs.beat('mortal', array['$id']::uuid[], lease => '1 hour')");
    my $pid = $process->query_safe('select pg_backend_pid()');
    $node->safe_psql('postgres', "select pg_terminate_backend($pid)");
    $process->{run}->kill_kill;
    is(state_of($node, $id), 'active/', 'DLV-04: the end of a session is not the end of its leases');

    grows_silent($node, 'mortal');
    $node->safe_psql('postgres', 'select ojs.tick()') unless $preload;
    awaits($node, "select state = 'available' from ojs.jobs where id = '$id'", "WRK-07 DLV-04: taken back $how");
    is(state_of($node, $id), 'available/worker_death', 'WRK-07: for that reason');
    is($node->safe_psql('postgres', q{select count(*) from ojs.claim('dead', 'successor')}), 1,
        'WRK-07: and claimed by another');

    # A beat waits neither for somebody who tells its worker something, nor for a tick in an open transaction.
    my $other = pushed($node, 'alive');
    $node->safe_psql('postgres', qq{select ojs.claim('alive', 'alive', lease => '1 hour'); select ojs.beat('alive',
        array['$other']::uuid[])});
    my $admin = $node->background_psql('postgres', on_error_stop => 1);
    $admin->query_safe("begin; select ojs.set_worker_state('alive', 'quiet')");
    my $beat = "set statement_timeout = '20s'; select extended = array['$other']::uuid[]
        from ojs.beat('alive', array['$other']::uuid[], lease => '1 hour')";
    is($node->safe_psql('postgres', $beat), 't', 'WRK-05: a beat does not wait for one who tells the worker something');
    $node->safe_psql('postgres',
        "update ojs_store.lease set claimed_at = claimed_at - interval '1 minute' where worker = 'alive'");
    $admin->query_safe("update ojs_store.worker set seen_at = seen_at - interval '1 minute' where name = 'alive';
        commit");
    $node->safe_psql('postgres', 'select ojs.tick()');
    is(state_of($node, $other), 'active/', 'WRK-07: and counts, though it could not be written to its row');
    is($node->safe_psql('postgres', q{select directive from ojs.beat('alive')}), 'quiet',
        'WRK-05: what was told is heard then');
    $admin->quit;

    if (!$preload) {
        grows_silent($node, 'alive');
        my $ticker = $node->background_psql('postgres', on_error_stop => 1);
        $ticker->query_safe('begin; select ojs.tick()');
        is($node->safe_psql('postgres', q{set statement_timeout = '20s'; select directive from ojs.beat('alive')}),
            'quiet', 'WRK-07: nor for a tick that has not committed');
        $ticker->query_safe('commit');
        $ticker->quit;
        is(state_of($node, $other), 'available/worker_death', 'WRK-07: which takes its jobs back');
        is($node->safe_psql('postgres',
            "select lost = array['$other']::uuid[] from ojs.beat('alive', array['$other']::uuid[])"), 't',
            'WRK-09: the next beat says so');
    }
    $node->stop;
}

done_testing();
