# leases_durable: what a crash and a promotion make of leases, for both values.
# Runs long.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $error = q{'{"type": "E", "message": "m"}'};

# Claims with a history: the second delivery of "back", extended once; all under the names of their first args.
sub fill {
    my ($node) = @_;
    $node->safe_psql('postgres', qq{
        select ojs.create_queue('kept', '{"leases_durable": true}'), ojs.create_queue('plain');
        select ojs.push('test.job', '["back"]', queue => q) from unnest('{kept,plain}'::text[]) q;
        select ojs.fail(id, $error, delay => '0') from ojs.claim('{kept,plain}'::text[], 'w', max => 9);
        select ojs.tick();
        select ojs.push('test.job', '["first"]', queue => q,
            timeout => '10 minutes') from unnest('{kept,plain}'::text[]) q;
        select ojs.push('test.job', '["over"]', queue => 'kept', options => '{"delivery": "at_most_once"}');
        select ojs.push('test.job', format('["%s"]', what)::jsonb,
            queue => 'kept') from unnest('{acked,released,short,cancelled,late}'::text[]) what;
        -- Handed out again at an earlier time than it was given back: the clock was set back, or who took it had begun
        -- before.
        select ojs.push('test.job', '["turned"]', queue => 'kept', priority => 1);
        set ojs.clock_offset = '1 min';
        select ojs.nack(id) from ojs.claim('kept', 'w');
        reset ojs.clock_offset;
        create table held as select * from ojs.claim('{kept,plain}'::text[], 'w', max => 100, lease => '1 hour');
        select ojs.extend(id, '2 hours') from held where args = '["back"]';
        select ojs.ack(id) from held where args = '["acked"]';
        select ojs.nack(id, '1 hour') from held where args = '["released"]';
        select ojs.cancel(id) from held where args = '["cancelled"]';
        set ojs.clock_offset = '1 min';
        select ojs.extend(id, '3 hours') from held where args = '["late"]';
        reset ojs.clock_offset;
        select ojs.nack(id, '1 hour') from held where args = '["late"]'});
    my $session = $node->background_psql('postgres', on_error_stop => 0);
    $session->query_safe(q{select ojs.push('test.job', '["bound"]', queue => 'kept'); select ojs.work_open('kept',
        'bound'); select ojs.work_next()});
    # Last: work_next() takes back what has run out, and this one is older.
    $node->safe_psql('postgres', q{select ojs.extend(id, '1 second') from held where args = '["short"]'});
    return $session;
}

my $status = q{select string_agg(format('%s %s %s %s/%s', args ->> 0, queue, state, attempt, deliveries),
    ', ' order by args ->> 0, queue) from ojs.jobs};
my $leases = q{select string_agg(format('%s %s %s %s', h.args ->> 0, l.worker, l.lease_id = h.lease_id,
    round(extract(epoch from l.lease_expires_at - h.started_at) / 60)), ', ' order by h.args ->> 0)
    from held h join ojs.leases l on l.job_id = h.id where h.args <> '["short"]'};

my $after = 'acked kept completed 1/1, back kept active 2/2, back plain available 1/1, bound kept available 1/1, '
    . 'cancelled kept cancelled 1/1, first kept active 1/1, first plain available 0/0, late kept available 0/1, '
    . 'over kept active 1/1, released kept available 0/1, short kept available 1/1, turned kept active 1/2';

sub check {
    my ($node, $how) = @_;
    # Leases that ran out, or whose session has gone, are taken back by whoever comes first.
    ok($node->poll_query_until('postgres', "select ojs.tick() is not null and (select count(*) = 4 from ojs.leases)"),
        "Q-60: leases in such a queue stand, $how");
    is($node->safe_psql('postgres', $status), $after,
        "Q-60, R-17: with their counts, and the others are claimable, $how");
    is($node->safe_psql('postgres', $leases), 'back w t 120, first w t 60, over w t 60, turned w t 60',
        "Q-60: with their holders, tokens and deadlines, $how");
    is($node->safe_psql('postgres',
        "select count(*) from ojs.claim('kept', 'other', max => 9) where args <> '[\"short\"]'
            and args <> '[\"bound\"]'"), 0, "Q-60: nobody else gets the jobs, $how");
    my $id = q{(select id from held where queue = 'kept' and args = '["back"]')};
    is($node->safe_psql('postgres',
        "select state from ojs.ack($id, lease_id => (select lease_id from held where id = $id), worker => 'w')"),
        'completed',
        "Q-60: their workers finish them, $how");
    is($node->safe_psql('postgres', "select error ->> 'type' from ojs.jobs where args = '[\"short\"]'"),
        'visibility_timeout', "Q-60: a lease that ran out meanwhile counts as one, $how");
    is($node->safe_psql('postgres',
        q{set ojs.clock_offset = '11 min'; select ojs.tick(); select error ->> 'type' from ojs.jobs
            where args = '["first"]' and queue = 'kept'}) =~ s/^\{.*\n//r, 'timeout',
        "TMO-01: the execution timeout goes on, $how");
    is($node->safe_psql('postgres',
        q{set ojs.clock_offset = '61 min'; select ojs.tick(); select state from ojs.jobs where args = '["over"]'})
            =~ s/^\{.*\n//r, 'discarded',
        "DLV-01: a job that may be delivered once is discarded when its lease runs out, $how");
}

for my $preload (1, 0) {
    my $how = 'after a crash, ' . ($preload ? 'preloaded' : 'not preloaded');
    my $node = server('leases_' . ($preload ? 'preloaded' : 'plain'), preload => $preload);
    my $session = fill($node);
    $node->stop('immediate');
    eval { $session->quit };
    $node->start;
    check($node, $how);
    $node->stop('immediate');
    $node->start;
    is($node->safe_psql('postgres',
        "select count(*) from ojs.leases join held on id = job_id where args = '[\"back\"]'"), 0,
        "Q-60: what ended does not come back, $how");
    $node->stop;
}

# A session that ends in whatever way leaves `released` in the lease log.
{
    my $node = server('log');
    $node->safe_psql('postgres', q{select ojs.create_queue('logged',
        '{"lease_log": true}'); select ojs.push('test.job', queue => 'logged') from generate_series(1, 2)});
    for my $how ('clean close', 'pg_terminate_backend') {
        my $session = $node->background_psql('postgres', on_error_stop => 0);
        my $pid = $session->query_safe(q{select ojs.work_open('logged', 'bound'); select pg_backend_pid()}) =~ s/\D//gr;
        $session->query_safe('select ojs.work_next()');
        $node->safe_psql('postgres', "select pg_terminate_backend($pid)") if $how ne 'clean close';
        eval { $session->quit };
        awaits($node, "select (array_agg(event order by number desc))[1] = 'released' from ojs.lease_log",
            "Q-64: $how leaves `released` in the lease log");
    }
    # Durable leases go on taking their places in limits: of their queue, and of a key that the job names.
    $node->safe_psql('postgres', q{
        select ojs.create_queue('capped', '{"leases_durable": true, "concurrency": 2}'), ojs.create_queue('keyed',
            '{"leases_durable": true}');
        select ojs.push('test.job', queue => 'capped') from generate_series(1, 3);
        select ojs.push('test.job', queue => 'keyed',
            options => '{"rate_limit": {"key": "api", "concurrency": 1}}') from generate_series(1, 2);
        select ojs.claim('{capped,keyed}'::text[], 'w', max => 9, lease => '1 hour')});
    my $held = q{select string_agg(queue, ' ' order by queue) from ojs.leases};
    is($node->safe_psql('postgres', $held), 'capped capped keyed', 'RL-01: as many jobs as the limits allow');
    $node->stop('immediate');
    $node->start;
    is($node->safe_psql('postgres', q{select count(*) from ojs.claim('{capped,keyed}'::text[], 'w', max => 9)}), 0,
        'Q-60: after a crash durable leases count against their limits');
    is($node->safe_psql('postgres', $held), 'capped capped keyed', 'Q-60: they stand');
    $node->safe_psql('postgres', q{select ojs.ack(job_id) from ojs.leases});
    is($node->safe_psql('postgres', q{select count(*) from ojs.claim('{capped,keyed}'::text[], 'w', max => 9)}), 2,
        'RL-01: their ends make places free');
    $node->stop;
}

my $primary = server('leases_primary', preload => 1, streaming => 1);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('leases_standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
my $session = fill($primary);
$primary->wait_for_catchup($standby);
like($standby->safe_psql('postgres', $status), qr/back kept active 2\/2, back plain available 1\/1/,
    'DLV-10: a standby knows the leases that it will keep');
$primary->stop('immediate');
eval { $session->quit };
$standby->promote;
check($standby, 'after a promotion');
$standby->stop;

done_testing();
