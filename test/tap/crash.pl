# After a crash or a promotion the hot set is rebuilt from the truth, and no job is lost.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Jobs in every state; what each must be after the leases are forgotten.
sub fill {
    my ($node) = @_;
    $node->safe_psql('postgres', q{
        select ojs.push('test.job', queue => 'ready', priority => 5) from generate_series(1, 3);
        select from ojs.push('test.job', queue => 'scheduled', delay => '1 hour');
        select from ojs.push('test.job', queue => 'pending', pending => true);
        select from ojs.push('test.job', queue => 'leased');
        select from ojs.claim('leased', 'w', lease => '1 hour');
        select from ojs.push('test.job', queue => 'done');
        select ojs.ack(id) from ojs.claim('done', 'w');
        select from ojs.push('test.job', queue => 'retryable');
        select ojs.fail(id, '{"type": "E", "message": "m"}', delay => '1 hour') from ojs.claim('retryable', 'w');
        select from ojs.push('test.job', queue => 'released');
        select ojs.nack(id, '1 hour') from ojs.claim('released', 'w');
        select from ojs.push('test.job', queue => 'returned');
        select ojs.nack(id) from ojs.claim('returned', 'w');
        select from ojs.push('test.job', queue => 'returned');
        select from ojs.push('test.job', queue => 'expiring', expires_at => now() + interval '1 hour');
    });
    my $pending = $node->safe_psql('postgres', q{select id from ojs.push('test.job', queue => 'activated',
        pending => true)});
    $node->safe_psql('postgres', "select ojs.activate('$pending')");
}

my $states = q{select string_agg(format('%s %s %s/%s', queue, state, attempt, deliveries), ', ' order by queue,
    seq) from ojs.jobs};

sub expected {
    my ($before) = @_;
    $before =~ s{(leased|reporting) active 1/1}{$1 available 0/0}g; # the lease and what it counted are forgotten
    return $before;
}

for my $preload (1, 0) {
    my $how = $preload ? 'preloaded' : 'not preloaded';
    my $node = server('crash_' . ($preload ? 'preloaded' : 'plain'), preload => $preload,
        conf => "restart_after_crash = on\n");
    fill($node);
    # A checkpoint for one that waits and one that is held, and progress.
    $node->safe_psql('postgres', q{
        select ojs.push('test.job', queue => 'reporting') from generate_series(1, 2);
        select ojs.checkpoint(id, '{"row": 7}'), ojs.checkpoint(id,
            '{"row": 8}') from ojs.jobs where queue = 'reporting';
        select ojs.progress(id, 0.5) from ojs.claim('reporting', 'w')});
    # A job that one of them has pushed.
    $node->safe_psql('postgres', q{select ojs.push('test.child', queue => 'spawned', options =>
        jsonb_build_object('parent_id', id)) from ojs.jobs where queue = 'reporting' and state = 'active'});
    my $lineage = q{select string_agg(ojs.lineage(id)::text, ' ' order by id) from ojs.jobs
        where queue in ('reporting', 'spawned')};
    my $lineage_before = $node->safe_psql('postgres', $lineage);
    like($lineage_before, qr/"test.child"/, "HIS-02: a job has a child, $how");
    my $before = $node->safe_psql('postgres', $states);
    # The upper flags speak of a lease that has been.
    my $later = q{select string_agg(format('%s %s %s', kind, flags & 65535, date_trunc('second', due_at)),
        ', ' order by kind, due_at) from ojs_store.delayed};
    my $later_before = $node->safe_psql('postgres', $later);
    $node->stop('immediate');
    $node->start;
    is($node->safe_psql('postgres', $states), expected($before),
        "OP-22: every job stands as before, before anybody has had the hot set rebuilt, $how");
    is($node->safe_psql('postgres', 'select ojs.ready()'), 't', "PGX-04: ready after an immediate stop, $how");
    is(health($node, 'hot_set,last_rebuild,cause'), 'crash or promotion',
        "OBS-01: health says why there was a rebuild, $how");
    cmp_ok(health($node, 'hot_set,last_rebuild,took_ms'), '>', 0, "OBS-01: and how long it took, $how");
    is(health($node, 'hot_set,last_rebuild,jobs'), 15, "OBS-01: and how many jobs it put back, $how");
    is($node->safe_psql('postgres', $states), expected($before), "SM: every job stands as before, $how");
    is($node->safe_psql('postgres', $lineage), $lineage_before, "HIS-02: who has pushed whom is not forgotten, $how");
    is($node->safe_psql('postgres', $later), $later_before, "SM: each waits for what it waited for, $how");
    is($node->safe_psql('postgres',
        "select string_agg(deliveries::text, ' ') from ojs.claim('returned', 'w', max => 2)"), '2 1',
        "Q: what was delivered before comes first, $how");
    is($node->safe_psql('postgres', "select count(*) from ojs.claim('leased', 'w', max => 2)"), 1,
        "SM: the leased job is claimable, $how");

    is($node->safe_psql('postgres',
        "select string_agg(extra ->> 'checkpoint', ' ') from ojs.claim('reporting', 'w', max => 2)"),
        ('{"state": {"row": 8}, "sequence": 2} ' x 2) =~ s/ $//r,
        "DUR-04: checkpoints survive, and are brought by the next claim, $how");
    is($node->safe_psql('postgres', "select count(*) from ojs.jobs where queue = 'reporting' and extra ? 'progress'"),
        0, "PRG-02: the progress of a delivery that was forgotten is not shown, $how");

    # kill -9 of a backend that has claimed and not committed, beside one that has.
    my $session = $node->background_psql('postgres', on_error_stop => 0);
    my $pid = $session->query_safe('select pg_backend_pid()');
    $session->query_safe("begin; select from ojs.claim('ready', 'w', max => 2)");
    my $open = $node->safe_psql('postgres',
        'select count(*) from ojs_store.job j where not exists (
            select from ojs_store.finished d where d.job_id = j.id)');
    # The server takes a moment to hear of it; its other processes are new ones once it has restarted.
    my $checkpointer = q{select pid from pg_stat_activity where backend_type = 'checkpointer'};
    my $before_kill = $node->safe_psql('postgres', $checkpointer);
    kill 9, $pid;
    ok($node->poll_query_until('postgres', "select $before_kill <> ($checkpointer)"),
        "the server restarts after a kill -9, $how");
    is($node->safe_psql('postgres', "select count(*) from ojs.claim('ready', 'w', max => 10)"), 3,
        "SM: all jobs of the queue are there, each once, $how");
    is($node->safe_psql('postgres',
        'select count(distinct job_id) from (select job_id from ojs_store.ready
            union all select job_id from ojs_store.lease union all select job_id from ojs_store.delayed) hot'),
        $open, "SM: every open job is in a place, $how");
    eval { $session->quit };

    # A prepared push survives a crash, its hot row does not. Here nobody has seen that it was in doubt.
    $node->safe_psql('postgres', 'alter system set ojs.worker = off') if $preload;
    $node->safe_psql('postgres',
        "begin; select from ojs.push('test.job', queue => 'prepared'); prepare transaction 'p'");
    $node->stop('immediate');
    $node->start;
    $node->safe_psql('postgres', 'select ojs.ready()');
    $node->safe_psql('postgres', "commit prepared 'p'");
    is($node->safe_psql('postgres', "select count(*) from ojs.claim('prepared', 'w')"), 0,
        "after COMMIT PREPARED its job is in no place, $how");
    is($node->safe_psql('postgres', "set client_min_messages = error; select ojs_store.reconcile('0')"), 1,
        "SM: reconcile finds it, $how");
    is($node->safe_psql('postgres', "select count(*) from ojs.claim('prepared', 'w')"), 1,
        "SM: and puts it back, $how");
    is($node->safe_psql('postgres', "select ojs_store.reconcile('0')"), 0, "SM: once, $how");
    is(health($node, 'hot_set,last_reconcile,jobs'), 1, "OBS-01: health counts it, $how");

    # So does what it did with a job: until it is resolved, nobody knows whether that job is open.
    $node->safe_psql('postgres', q{select ojs.create_queue('removed', '{"delete_on_ack": true}')});
    for my $queue ('ended', 'removed', 'saved', 'spared', 'woken') {
        my ($call, $pending) = $queue eq 'woken' ? ('activate', 'true') : ('ack', 'false');
        my $more = $queue eq 'saved' ? q(, '{"at": 7}') : '';
        $call = 'checkpoint' if $more;
        my $id = pushed($node, $queue, "pending => $pending");
        $node->safe_psql('postgres', "select from ojs.claim('$queue', 'w')");
        $node->safe_psql('postgres', "begin; select from ojs.$call('$id'$more); prepare transaction '$queue'");
    }
    my $queues = "'ended', 'removed', 'saved', 'spared', 'woken'";
    my $claim = "select string_agg(concat_ws(' ', queue, deliveries, extra #>> '{last_checkpoint,at}'), ', '
            order by queue)
        from ojs.claim(array[$queues], 'w', 10)";
    $node->stop('immediate');
    $node->start;
    $node->safe_psql('postgres', 'select ojs.ready()');
    is($node->safe_psql('postgres', "select ojs_store.reconcile('0')"), 0,
        "SM-28: what a prepared transaction has ended is not put back, $how");
    is($node->safe_psql('postgres', $claim), '', "SM-28: and is nobody's, $how");
    $node->safe_psql('postgres',
        $_) for "commit prepared 'ended'", "commit prepared 'removed'", "commit prepared 'saved'",
            "commit prepared 'woken'", "rollback prepared 'spared'";
    is($node->safe_psql('postgres', "set client_min_messages = error; select ojs_store.reconcile('0')"), 3,
        "SM: what is open then is put back, $how");
    is($node->safe_psql('postgres', $claim), 'saved 1 7, spared 1, woken 1',
        "SM-28: with its checkpoint, and nothing else, $how");
    is($node->safe_psql('postgres',
        "select string_agg(queue || ' ' || state, ', ' order by queue) from ojs.jobs where queue in ($queues)"),
        'ended completed, saved active, spared active, woken active', "SM-28: what ended has ended, $how");

    # Whoever ticks and has seen the transaction in doubt looks again as soon as it has ended.
    $node->safe_psql('postgres', 'alter system reset ojs.worker') if $preload;
    $node->safe_psql('postgres',
        "begin; select from ojs.push('test.job', queue => 'awaited'); prepare transaction 'q'");
    $node->stop('immediate');
    $node->start;
    $node->safe_psql('postgres', 'select ojs.ready()');
    awaits($node, q{select ojs.metrics() ~ 'last_success_timestamp_seconds\{duty="reconcile"\} [1-9]'},
        'the worker has looked') if $preload;
    my $tick = $preload ? '' : 'select from ojs.tick();';
    $node->safe_psql('postgres', "$tick commit prepared 'q'; $tick");
    awaits($node, q{select count(*) = 1 from ojs.claim('awaited', 'w')},
        "SM: a job that was in doubt is claimed soon after COMMIT PREPARED, $how");
    $node->stop;
}

# Promotion.
my $primary = server('primary', preload => 1, streaming => 1);
fill($primary);
my $before = $primary->safe_psql('postgres', $states);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
pushed($primary, 'ready');
$primary->safe_psql('postgres', q[set ojs.tenancy = optional; select ojs.push('x.y', queue => 'parts',
    meta => jsonb_build_object('tenant_id', tenant)) from unnest('{acme,acme,brown}'::text[]) tenant]);
$primary->safe_psql('postgres', q[select from generate_series(1, 2),
    ojs.push_job('{"type": "x.y", "args": [], "queue": "line", "ordering_key": "k"}')]);
$before = $primary->safe_psql('postgres', $states);
$primary->safe_psql('postgres', <<'SQL');
-- What each function, each kind of job and each GET says here beyond an answer, an error of ojs and 25006; 57P03 is a
-- node of a router that cannot tell yet.
create function surprises() returns setof text language plpgsql as $$
declare
    given constant jsonb := '{"uuid": "(select id from ojs.jobs limit 1)", "text": "''parts''", "name": "''parts''",
        "interval": "interval ''1 s''", "bool": "true", "timestamptz": "now()", "jsonb": "jsonb ''{}''",
        "regprocedure": "0", "_jsonb": "array[jsonb ''{}'']",
        "_text": "array[''parts'']", "_uuid": "array(select id from ojs.jobs limit 1)"}';
    call text;
    response record;
begin
    for call in
        select format('select %s(%s)', p.oid::regproc, array_to_string(array(
            select coalesce(given ->> t.typname, '1') from unnest(p.proargtypes) with ordinality a (type, n)
                join pg_type t on t.oid = a.type order by a.n), ', '))
        from pg_proc p where p.pronamespace = 'ojs'::regnamespace and p.proname not in ('reset', 'envelope', 'storable')
        union all
        select format('select ojs.explain_job(%L), ojs.info(%1$L)', j.id) from ojs.jobs j
        union all
        select format('select from ojs.%I', v.viewname) from pg_views v where v.schemaname = 'ojs'
    loop
        begin
            execute call;
        exception when others then
            if sqlstate not like 'OJ%' and sqlstate not in ('25006', '57P03') then
                return next concat_ws(': ', call, sqlstate, sqlerrm);
            end if;
        end;
    end loop;
    for call in select replace(replace(r.pattern, ':name', 'parts'), ':id', (select id from ojs.jobs limit 1)::text)
        from ojs_http.routes() r where r.method = 'GET' and r.handler <> 'ready'
    loop
        select * into response from ojs.http('GET', call);
        if response.status >= 500 then
            return next call || ' ' || response.body;
        end if;
    end loop;
end $$;
SQL
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', 'select surprises()'), '', 'PGX-17: no function, view or GET fails on a standby');
is($standby->safe_psql('postgres', 'select ojs.ready()'), 'f', 'PGX-17: a standby is not ready for writers');
is(health($standby, 'in_recovery'), 'true', 'PGX-17: health works on a standby');
is($standby->safe_psql('postgres', "select count(*) from pg_stat_activity where backend_type like 'ojs%'"), 0,
    'PGX-17: and has no worker');
is($standby->safe_psql('postgres', $states), expected($before), 'PGX-17: views answer from the truth');
is($standby->safe_psql('postgres', q[set ojs.tenancy = optional; select string_agg(available::text, ' ')
    from unnest('{parts@acme,parts@brown}'::text[]) part, ojs.queue_stats(part)]), '2 1',
    'PGX-17, MT-03: and counts are of each tenant');
my ($code, $out, $err) = $standby->psql('postgres', "select from ojs.push('test.job')");
like($err, qr/during recovery|read-only transaction/, 'PGX-17: writers raise the ordinary error');
my $survivor = $standby->background_psql('postgres');
$survivor->query_safe('select count(*) from ojs.jobs');
$standby->promote;
is($survivor->query_safe("select count(*) from ojs.claim('leased', 'w')"), 1,
    'PGX-17: a session that lived through the promotion claims');
is($standby->safe_psql('postgres', "select count(*) from ojs.claim('ready', 'w', max => 10)"), 4,
    'PGX-17: all jobs are there after it');
awaits($standby, 'select ' . workers() . ' = 1', 'PGX-04: and a worker');
$survivor->quit;
$standby->stop;
$primary->stop;

done_testing();
