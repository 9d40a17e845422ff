# contention.pl: six sessions do everything at once to the same jobs, with ticks among them and the worker beside them:
# SM-26, SM-27, SM-29, PGX-05, PGX-16, DLV-06. Whatever the order, no call may fail but with an error of the catalogue,
# and each job must be in one place.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use IPC::Run ();

my $node = PostgreSQL::Test::Cluster->new('storm');
$node->init;
$node->append_conf('postgresql.conf',
    "shared_preload_libraries = 'ojs'\nfsync = off\nmax_connections = 40\n"
    . "deadlock_timeout = 200ms\nlog_lock_waits = off");
$node->start;
$node->safe_psql('postgres', q{
    create extension ojs;
    create table odd (session int, op text, error text);
    create unlogged table handed (job_id uuid, deliveries int, worker text);
    select count(*) from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'test.job', 'args', '[]'::jsonb,
        'queue', 'storm')) from generate_series(1, 40)));

    -- With `together`, a transaction may hold several calls, so that callers can get into each other's way.
    create procedure storm(session int, seconds float, together boolean) language plpgsql as $$
    declare
        until timestamptz := clock_timestamp() + seconds * interval '1 second';
        die float; op text; job uuid; several uuid[]; detail text; undo boolean;
    begin
        perform setseed(session / 10.0);
        while clock_timestamp() < until
            or (clock_timestamp() < until + interval '1 minute' and (select count(*) from handed) <= 500) loop
            die := random();
            undo := random() < 0.15;
            select id into job from ojs_store.job offset floor(random() * 40) limit 1;
            select array_agg(job_id order by random()) into several from ojs_store.lease;
            op := case when die < 0.08 then 'push' when die < 0.38 then 'claim' when die < 0.46 then 'ack'
                when die < 0.54 then 'fail' when die < 0.62 then 'nack'
                when die < 0.68 then 'extend' when die < 0.72 then 'cancel' when die < 0.78 then 'tick'
                when die < 0.83 then 'ack_many' when die < 0.88 then 'nack_many'
                when die < 0.92 then 'extend_many' when die < 0.96 then 'beat' else 'ack_and_claim' end;
            begin
                case op
                when 'push' then
                    if (select count(*) from ojs_store.ready) < 60 then
                        perform ojs.push('test.job', queue => 'storm', priority => floor(random() * 3)::int,
                            delay => case when random() < 0.3 then interval '50 ms' end);
                    end if;
                when 'claim' then
                    insert into handed select id, deliveries, worker from ojs.claim('storm',
                        'w' || floor(random() * 3), 1 + floor(random() * 5)::int, '150 ms');
                when 'ack' then perform ojs.ack(job);
                when 'fail' then perform ojs.fail(job, '{"type": "t", "message": "m"}', delay => '30 ms');
                when 'nack' then perform ojs.nack(job,
                    case when random() < 0.5 then interval '0' else interval '20 ms' end);
                when 'extend' then perform ojs.extend(job, random() * interval '300 ms');
                when 'cancel' then perform ojs.cancel(job, idempotent => true);
                when 'tick' then perform ojs.tick(50);
                when 'ack_many' then perform ojs.ack_many('w0', several);
                when 'nack_many' then perform ojs.nack_many('w1', several, '10 ms');
                when 'extend_many' then perform ojs.extend_many('w2', several, '200 ms');
                when 'beat' then perform ojs.beat('w' || session, several);
                when 'ack_and_claim' then
                    select array_agg(job_id) into several
                        from (select job_id from ojs_store.lease where worker = 'w0' limit 2) x;
                    insert into handed select id, deliveries, worker from ojs.ack_and_claim('w0', 'storm',
                        coalesce(several, '{}'), max => 2, lease => '150 ms');
                end case;
                if undo then
                    raise exception using errcode = 'UNDO1';
                end if;
            exception when others then
                get stacked diagnostics detail = pg_exception_detail;
                if sqlstate <> 'UNDO1' and sqlstate not in ('OJ105', 'OJ302', 'OJ303',
                    'OJ311') and not (sqlstate in ('OJ100') and several is null)
                    and not (sqlstate = '40P01' and together) then
                    insert into odd values (session, op, sqlstate || ' ' || sqlerrm);
                end if;
            end;
            if not together or random() < 0.7 then commit; end if;
        end loop;
        commit;
    end $$;
});

sub storm
{
    my ($seconds, $together) = @_;
    my @runs = map {
        my %run = (out => '', err => '');
        $run{handle} = IPC::Run::start(['psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'),
            '-c', "call storm($_, $seconds, $together)"],
            '<', \undef, '>', \$run{out}, '2>', \$run{err}, IPC::Run::timer(90));
        \%run;
    } 1 .. 6;
    $_->{handle}->finish for @runs;
    my $errors = join '', map { $_->{err} } @runs;
    return $errors;
}

sub check
{
    my ($title) = @_;
    is($node->safe_psql('postgres', q{select op, error, count(*) from odd group by 1, 2}), '',
        "SM-29 PGX-05: $title: no error that is not the caller's");
    is($node->safe_psql('postgres', q{select count(*) from ojs_store.job j where (select count(*) from (
        select job_id from ojs_store.ready union all select job_id from ojs_store.lease
        union all select job_id from ojs_store.delayed where kind <> 5
        union all select job_id from ojs_store.finished) x where job_id = j.id) <> 1}), 0,
        "SM-26 SM-27: $title: every job is in exactly one place");
    is($node->safe_psql('postgres', q{select count(*) from (select job_id, deliveries from handed group by 1,
        2 having count(*) > 1) twice}), 0,
        "DLV-06: $title: no delivery was made twice");
    is($node->safe_psql('postgres',
        q{select count(*) from handed h left join ojs.jobs j on j.id = h.job_id
            where j.deliveries is null or j.deliveries < h.deliveries}), 0,
        "R-15 Q-21: $title: no delivery was forgotten");
}

is(storm(5, 'false'), '', 'SM-29: six sessions end without an error');
check('one call in a transaction');
is($node->safe_psql('postgres', q{select deadlocks from pg_stat_database where datname = 'postgres'}), 0,
    'PGX-05 OP-05: no deadlock');
cmp_ok($node->safe_psql('postgres', q{select count(*) from handed}), '>', 500, 'SM-29: and had work to do');
is(storm(3, 'true'), '', 'SM-29: six sessions with long transactions end without an error');
check('several calls in a transaction');
$node->safe_psql('postgres', q{alter database postgres set default_transaction_isolation = 'repeatable read'});
is(storm(2, 'false'), '', 'PGX-16: six sessions under repeatable read end without an error');
check('repeatable read');
$node->safe_psql('postgres', q{alter database postgres reset default_transaction_isolation});

# And then everything can be finished.
$node->safe_psql('postgres', q{set ojs.clock_offset = '1h'; select ojs.tick();});
my $left = $node->safe_psql('postgres', q{select count(*) from ojs.jobs where state not in ('completed', 'cancelled',
    'discarded')});
is($node->safe_psql('postgres',
    q{set ojs.clock_offset = '1h'; select count(*) from (select ojs.ack(id) from ojs.claim('storm', 'last', 1000)) x}),
    $left, 'SM-26: what is open can still be claimed and finished');
$node->stop;
done_testing();
