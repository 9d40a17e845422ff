# counts.pl: the counters of jobs against a plain count of the rows: QC-06, Q-58, R-81. Many sessions push, claim, ack,
# fail, give back, cancel, retry, purge and move jobs of a few queues, in transactions and savepoints that are rolled
# back at random, while somebody counts the rows anew all the time; then a crash.
#
# OJS_STRESS_SEED repeats a run.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use IPC::Run ();
use Time::HiRes 'time';

my $seed = $ENV{OJS_STRESS_SEED} // time * 1000 % 2**31;
srand($seed);
note "OJS_STRESS_SEED=$seed";
my ($sessions, $steps) = (8, 150);

my $node = server('counts', preload => 1, conf => "max_connections = 40\nfsync = off\nojs.tick_interval = 20ms\n");
# Retention takes part: some of what ends goes at once, while others retry or delete it.
$node->safe_psql('postgres', q{select ojs.configure_queue('_default',
    '{"retention": {"completed": "PT0.1S", "cancelled": "PT0S", "discarded": "PT1S"}}')});
$node->safe_psql('postgres', q{
    create function one_step(me text) returns void language plpgsql as $$
    declare
        queue text := 'q' || floor(random() * 5);
        j ojs.job;
        n int := floor(random() * 4);
    begin
        case floor(random() * 14)
        when 0 then perform ojs.push('test.job', queue => queue);
        when 1 then perform ojs.push('test.job', queue => queue,
            options => '{"rate_limit": {"key": "k", "concurrency": 1000}}',
            retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}');
        when 2 then perform ojs.push('test.job', queue => queue, delay => random() * interval '100 ms');
        when 3 then perform ojs.push('test.job', queue => queue, pending => true);
        when 4 then perform ojs.push_many((select coalesce(jsonb_agg(jsonb_build_object('type', 'test.job', 'args',
            '[]'::jsonb, 'queue',
            'q' || floor(random() * 5))), '[]') from generate_series(1, n) where random() < 2));
        when 5, 6 then perform ojs.claim(queue, me, n, random() * interval '300 ms');
        when 7 then perform ojs.ack_many(me,
            (select array_agg(job_id) from (select l.job_id from ojs.leases l where worker = me limit n) x));
        when 8 then perform ojs.nack_many(me,
            (select array_agg(job_id) from (select l.job_id from ojs.leases l where worker = me limit n) x),
            random() * interval '50 ms');
        when 9 then
            select l.job_id into j.id from ojs.leases l where worker = me limit 1;
            if found then perform ojs.fail(j.id, '{"type": "x", "message": "y"}',
                delay => random() * interval '100 ms'); end if;
        when 10 then
            select id into j.id from ojs_store.job where type = 'test.job' order by random() limit 1;
            if found then perform ojs.cancel(j.id, true); end if;
        when 11 then
            select job_id into j.id from ojs_store.finished where state = 7 order by random() limit 1;
            if found then perform ojs.retry(j.id); end if;
        when 12 then
            select job_id into j.id from ojs_store.delayed where kind = 3 order by random() limit 1;
            if found then perform ojs.activate(j.id); end if;
        when 13 then
            case floor(random() * 4)
            when 0 then perform ojs.purge_queue(queue, '{available,scheduled,completed}', true) where random() < 0.2;
            when 1 then perform ojs.drop_queue(queue, 'move', 'q0') where random() < 0.2;
            when 2 then perform ojs.tick();
            else
                select job_id into j.id from ojs_store.finished order by random() limit 1;
                if found then perform ojs.delete_job(j.id); end if;
            end case;
        end case;
    exception when others then null; -- a savepoint, rolled back
    end $$;
    create procedure steps(me text, steps int) language plpgsql as $$
    begin
        for i in 1 .. steps loop
            for k in 1 .. 1 + floor(random() * 4) loop
                perform one_step(me);
                if random() < 0.2 then
                    begin
                        perform one_step(me);
                        perform one_step(me);
                        raise exception 'back';
                    exception when raise_exception then null;
                    end;
                end if;
            end loop;
            if random() < 0.3 then rollback; else commit; end if;
        end loop;
    end $$;
    create view counted as
        select s.queue, available, active, scheduled, retryable, pending, completed, cancelled, discarded, limited,
            dead_letters
        from ojs.queue_stats() s
        join ojs_store.counted_apart(array(select ojs_store.queue_id(name) from ojs.queues), true) c
            on c.queue = ojs_store.queue_id(s.queue)
        order by 1;
    create view plain as
        with rows as (
            select queue, 'ready' as state, count(*) as n from ojs_store.ready group by 1
            union all select queue, 'active', count(*) from ojs_store.lease group by 1
            union all select queue,
                case when kind = 4 or due_at <= ojs_store.now() then 'ready'
                    else (array['scheduled', 'retryable', 'pending'])[kind] end, count(*)
                from ojs_store.delayed where kind <> 5 group by 1, 2
            union all select queue, 'limited', count(*) from (
                select queue, flags from ojs_store.ready union all select queue, flags from ojs_store.lease
                union all select queue, flags from ojs_store.delayed where kind <> 5) hot
                where flags & 128 <> 0 group by 1
            union all select queue, 'dead', count(*) from ojs_store.dead_letter group by 1
            union all select queue, case state when 4 then 'completed' when 6 then 'cancelled' else 'discarded' end,
                count(*) from ojs_store.finished group by 1, 2)
        select q.name as queue, n('ready') as available, n('active') as active, n('scheduled') as scheduled,
            n('retryable') as retryable, n('pending') as pending, n('completed') as completed,
            n('cancelled') as cancelled, n('discarded') as discarded, n('limited') as limited, n('dead') as dead_letters
        from ojs.queues q order by 1;
} =~ s/ n\('(\w+)'\)/ coalesce((select sum(r.n)::bigint from rows r
    where r.queue = ojs_store.queue_id(q.name) and r.state = '$1'), 0)/gr);

sub run_all {
    my ($name, $meanwhile) = @_;
    my @runs = map {
        my %run = (err => '');
        my $s = rand() * 2 - 1;
        $run{handle} = IPC::Run::start(['psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'),
            '-c',
            "select setseed($s)", '-c', "call steps('w$_', $steps)"], '<', \undef, '>', \my $out, '2>', \$run{err},
            IPC::Run::timer(180));
        \%run;
    } 1 .. $sessions;
    $meanwhile->() if $meanwhile;
    for my $run (@runs) { $run->{handle}->finish; is($run->{err}, '', "$name: a session ends without an error"); }
}
# Leases run out and delays pass within 300 ms, upkeep does the rest; then all is at rest but for retention, so the rows
# are counted before and after.
sub compare {
    my ($name) = @_;
    my ($plain, $counted, $again);
    $node->poll_query_until('postgres',
        q{select not exists (select from ojs_store.delayed where due_at < 'infinity')
            and not exists (table ojs_store.lease)});
    do {
        $plain = $node->safe_psql('postgres', 'table plain');
        $counted = $node->safe_psql('postgres', 'table counted');
        $again = $node->safe_psql('postgres', 'table plain');
    } while ($plain ne $again);
    is($counted, $plain, $name);
    return $plain;
}

$node->safe_psql('postgres', q{select from ojs.create_queue('q0')});
$node->safe_psql('postgres', 'table counted'); # counts the rows: from now on commits add to that
run_all('QC-06');
like(compare('QC-06: after random operations and rollbacks the counters say what is there'), qr/^q0\|.*[1-9]/m,
    'and there is something');

# Jobs with a limit that wait for a time.
$node->safe_psql('postgres', q{
    select count(ojs.push('test.job', queue => 'later', options => '{"rate_limit": {"key": "l", "concurrency": 9}}',
        delay => d)) from unnest('{0 s,1 hour}'::interval[]) d;
    select (ojs.nack(id, '1 hour')).id from ojs.claim('later', 'w')});
is($node->safe_psql('postgres', q{select scheduled, limited from counted where queue = 'later'}), '1|2',
    'QC-06: jobs with a limit that are scheduled or given back are counted');
is($node->safe_psql('postgres', q{select ojs.purge_queue('later', confirm => true);
    select limited from counted where queue = 'later'}), "2\n0", 'until they are gone');

# Held jobs, before their first beat and after it.
my $held = q{
    select (ojs.push('test.job', queue => 'held', options => '{"rate_limit": {"key": "h", "concurrency": 9}}')).id
        from generate_series(1, 3);
    create table of_held as select id, lease_id from ojs.claim('held', 'w', 2, '1 hour')};
my $as_counted = q{select active, limited from counted where queue = 'held'};
$node->safe_psql('postgres', $held);
is($node->safe_psql('postgres', $as_counted), '2|3', 'QC-06: held jobs with a limit are counted');
$node->safe_psql('postgres', q{select (ojs.extend(id, '1 hour', lease_id)).id from of_held});
is($node->safe_psql('postgres', $as_counted), '2|3', 'and after they were extended');
$node->safe_psql('postgres', q{select (ojs.ack(id, lease_id => lease_id)).id from of_held;
    select ojs.purge_queue('held', confirm => true)});
is($node->safe_psql('postgres', $as_counted), '0|0', 'and gone');

# While a transaction is prepared, every look counts the rows anew. Its job is of a type that the sessions leave alone.
$node->safe_psql('postgres', q{begin; select from ojs.push('prepared.job',
    queue => 'prepared'); prepare transaction 'p'});
my $looks = 0;
run_all('QC-06 under recounts', sub {
    my $until = time + 3;
    $node->safe_psql('postgres', 'table counted') while $looks++ < 500 && time < $until;
    $node->safe_psql('postgres', q{commit prepared 'p'});
    $node->safe_psql('postgres', 'table counted');
});
note "$looks recounts";
compare('QC-06: recounts that run while others commit leave the counters right');
is($node->safe_psql('postgres', q{select ready from ojs.queue_stats('prepared')}), 1,
    'QC-06: a prepared transaction is counted once it is committed');

is($node->safe_psql('postgres', q{
    begin;
    select ready from ojs.queue_stats('prepared');
    savepoint a;
    select from ojs.push('test.job', queue => 'prepared');
    savepoint b;
    select from ojs.push('test.job', queue => 'prepared');
    select ready from ojs.queue_stats('prepared');
    rollback to b;
    select ready from ojs.queue_stats('prepared');
    release a;
    select ready from ojs.queue_stats('prepared');
    rollback;
    select ready from ojs.queue_stats('prepared')}) =~ s/\n+/ /gr, '1 3 2 2 1',
        'Q-23: a transaction counts what it has changed itself');

# From here on all is kept, so that the first look can be compared.
$node->safe_psql('postgres', q{select ojs.configure_queue('_default',
    '{"retention": {"completed": "P1D", "cancelled": "P1D", "discarded": "P1D"}}')});
$node->stop('immediate');
$node->start;
my $first = $node->safe_psql('postgres', 'table counted');
is($first, $node->safe_psql('postgres', 'table plain'), 'QC-06: the first look after a crash is right');
$node->safe_psql('postgres', q{select setseed(0.5); call steps('again', 50)});
compare('QC-06: and so is what follows');
$node->restart;
compare('QC-06: after a restart');

# A prepared transaction outlives the server, and what this one knows of it.
$node->safe_psql('postgres', q{begin; select from ojs.push('test.job', queue => 'outlives'),
    ojs.create_queue('outlives'); prepare transaction 'p'});
$node->restart;
$node->safe_psql('postgres', q{select from ojs.push('test.job', queue => 'outlives'); select * from ojs.queue_stats()});
$node->safe_psql('postgres', q{commit prepared 'p'});
is($node->safe_psql('postgres', q{select ready from ojs.queue_stats('outlives')}), 2,
    'QC-06: a transaction that was prepared before a restart is counted once it is committed');

# The extension anew: nothing of the old one is counted.
$node->safe_psql('postgres', 'drop extension ojs cascade; create extension ojs');
$node->safe_psql('postgres', q{select from ojs.push('test.job', queue => 'q0')});
is($node->safe_psql('postgres', q{select ready, completed from ojs.queue_stats('q0')}), '1|0',
    'QC-06: a new extension begins at nothing');
unlike(slurp_file($node->logfile), qr/has corrected its counters/, 'QC-06: no counter had to be corrected');
$node->stop;
done_testing();
