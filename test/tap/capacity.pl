# capacity.pl: bounds of queues under many producers: BP-01 to BP-06. Sessions push single jobs and batches, in
# transactions and savepoints that are rolled back at random, while others claim; no committed state ever has more jobs
# than the bound, and in the end each queue is exactly full. With preload, where nobody waits, and without; after a
# crash; with prepared transactions.
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
my ($sessions, $steps) = (8, 60);

my $setup = q{
    create table odd (what text);
    create function push_some(queue text, me text) returns void language plpgsql as $$
    declare
        n int := 1 + floor(random() * 3);
        detail text;
    begin
        case floor(random() * 6)
        when 0 then perform ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'test.job', 'args', '[]'::jsonb,
            'queue', q))
            from unnest(array['a', 'b', queue]) q, generate_series(1, n)));
        when 1 then perform ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'test.job', 'args', '[]'::jsonb,
            'queue', q))
            from unnest(array['b', 'a', queue]) q), atomicity => 'partial');
        when 2 then perform ojs.push('test.job', queue => queue, delay => '1 hour');
        when 3 then perform ojs.push('test.job', queue => queue,
            "unique" => jsonb_build_object('keys', '["type"]'::jsonb, 'on_conflict', 'replace'));
        when 4 then perform ojs.push('test.job', jsonb_build_array(repeat('x', floor(random() * 300)::int)),
            queue => queue);
        else perform ojs.push('test.job', queue => queue);
        end case;
    exception when sqlstate 'OJ601' then
        get stacked diagnostics detail = pg_exception_detail;
        insert into odd select detail
        from jsonb_to_record(detail::jsonb -> 'details') as d (depth int, jobs int, bound int,
            depth_bytes int, job_bytes int, bound_bytes int)
        where coalesce(depth + jobs <= bound, true) and coalesce(depth_bytes + job_bytes <= bound_bytes, true);
    end $$;
    -- What waits in one snapshot, and what may.
    create view beyond as
        select q.name, n, q.config ->> 'max_size' as bound
        from ojs.queues q, lateral (select
            (select count(*) from ojs_store.ready r where r.queue = ojs_store.queue_id(q.name))
            + (select count(*) from ojs_store.delayed l
                where l.queue = ojs_store.queue_id(q.name) and l.kind <> 5) as n) c
        where n > (q.config ->> 'max_size')::int
        union all
        select q.name, n, q.config ->> 'max_size_bytes'
        from ojs.queues q, lateral (
            select sum(100 + octet_length(j.type) + s.n) as n
            from (select r.job_id from ojs_store.ready r where r.queue = ojs_store.queue_id(q.name)
                union all select l.job_id from ojs_store.delayed l
                where l.queue = ojs_store.queue_id(q.name) and l.kind <> 5) w
            join ojs_store.job j on j.id = w.job_id,
                lateral (select sum(pg_column_size(v::text::jsonb || '[]') - 4) as n from unnest(array[j.args]) v) s) c
        where n > (q.config ->> 'max_size_bytes')::int;
    create function some_pushes(queue text, me text, pushes int) returns void language plpgsql as $$
    begin
        for k in 1 .. 1 + floor(random() * pushes) loop
            if random() < 0.3 then
                begin
                    perform push_some(queue, me);
                    if random() < 0.5 then perform ojs.claim(queue, me); end if;
                    if pushes > 1 then perform push_some(queue, me); end if;
                    raise exception 'back';
                exception when raise_exception then null;
                end;
                exit when pushes = 1;
            end if;
            perform push_some(queue, me);
        end loop;
        if random() < 0.4 then perform ojs.claim(array['a', 'b', 'drop', 'block', 'bytes', 'shed'], me, 3,
            '1 hour'); end if;
    end $$;
    -- Transactions of several calls may deadlock, as with any rows: over a uniqueness key and a job that they claimed,
    -- over a key again where a savepoint was rolled back, and without shared counters over queues. There each keeps one
    -- push, or rolls it back to a savepoint.
    create procedure produce(me text, steps int, pushes int) language plpgsql as $$
    begin
        for i in 1 .. steps loop
            begin
                perform some_pushes((array['a', 'b', 'drop', 'block', 'bytes', 'shed'])[1 + floor(random() * 6)], me,
                    pushes);
            exception when deadlock_detected then
                if pushes = 1 then raise; end if;
            end;
            if random() < 0.3 then rollback; else commit; end if;
            insert into odd select format('%s: %s of %s', name, n, bound) from beyond;
            commit;
        end loop;
    end $$;
    create procedure observe() language plpgsql as $$
    begin
        for i in 1 .. 100000 loop
            insert into odd select format('%s: %s of %s', name, n, bound) from beyond;
            exit when exists (select from stop);
            commit;
        end loop;
    end $$;
    create table stop ();
    create function fill(queue text) returns int language plpgsql as $$
    declare
        n int := 0;
    begin
        loop
            begin
                perform ojs.push('test.job', queue => queue);
            exception when sqlstate 'OJ601' then return n;
            end;
            n := n + 1;
        end loop;
    end $$;
    create procedure fill_up(queue text) language plpgsql as $$
    declare
        refused int := 0;
    begin
        while refused < 3 loop
            begin
                perform ojs.push('test.job', queue => queue);
            exception when sqlstate 'OJ601' then refused := refused + 1;
            end;
            commit;
        end loop;
    end $$;
};

for my $preload (1, 0) {
    my $how = $preload ? 'preloaded' : 'not preloaded';
    my $node = server("capacity$preload", preload => $preload,
        conf => "max_connections = 40\nfsync = off\ndeadlock_timeout = 100ms\nojs.worker = off\n"
            . "ojs.default_lease = 1h\n");
    my $sql = sub { $node->safe_psql('postgres', @_) };
    my $start = sub {
        my (@statements) = @_;
        my %run = (err => '', out => '');
        $run{handle} = IPC::Run::start(['psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'),
            map { ('-c', $_) } @statements],
            '<', \undef, '>', \$run{out}, '2>', \$run{err}, IPC::Run::timer(180));
        return \%run;
    };
    my $all = sub {
        my ($name, @statements) = @_;
        my @runs = map { my $me = $_; $start->('select setseed(' . (rand() * 2 - 1) . ')',
            map { s/ME/w$me/gr } @statements) } 1 .. $sessions;
        for my $run (@runs) { $run->{handle}->finish; is($run->{err}, '',
            "$how: $name: a session ends without an error"); }
    };
    my $session = sub { return $node->background_psql('postgres', on_error_stop => 0) };

    $sql->($setup);
    $sql->(q{select ojs.create_queue('a', '{"max_size": 7}'), ojs.create_queue('b', '{"max_size": 5}'),
        ojs.create_queue('drop', '{"max_size": 5, "discard": "drop_oldest"}'),
        ojs.create_queue('block', '{"max_size": 3, "discard": "block", "block_timeout_ms": 5}'),
        ojs.create_queue('bytes', '{"max_size_bytes": 1500}'), ojs.create_queue('shed',
            '{"max_size_bytes": 1200, "max_size": 6, "discard": "drop_oldest"}')});
    my $observer = $start->('call observe()');
    $all->('BP-01', "call produce('ME', $steps, " . ($preload ? 3 : 1) . ')');
    $sql->('alter table stop add x int; insert into stop values (1)');
    $observer->{handle}->finish;
    is($observer->{err}, '', "$how: the observer ends without an error");
    is($sql->('table odd limit 5'), '',
        "$how: BP-01: no committed state has more jobs than the bound, and no refusal a place left");
    my $taken = $sql->(q{select count(*) from ojs_store.job});
    cmp_ok($taken, '>', 30, "$how: and $taken jobs were taken");

    # All of them at the last places.
    $sql->(q{select ojs.purge_queue(q, confirm => true) from unnest('{a,b,drop,block}'::text[]) q});
    $all->('BP-01 filling', q{call fill_up('a')}, q{call fill_up('b')});
    is($sql->(q{select string_agg(q.queue || available,
        ' ' order by q.queue) from ojs.queue_stats() q where q.queue in ('a', 'b')}), 'a7 b5',
        "$how: BP-01: in the end exactly full");

    $sql->(q{select ojs.purge_queue('bytes', confirm => true),
        ojs.configure_queue('bytes', '{"max_size_bytes": 1232}')});
    $all->('BP-01 BP-02 filling by size', q{call fill_up('bytes')});
    is($sql->(q{select concat_ws(' ', s #>> '{stats,depth}', s #>> '{stats,depth_bytes}')
        from ojs.queue_info('bytes') s}), '11 1232', "$how: BP-02: full to the byte");

    # Open transactions.
    $sql->(q{select count(*) from ojs.claim('a', 'w', 2)});
    my $one = $session->();
    $one->query_safe(q{begin; select state from ojs.push('test.job', queue => 'a')});
    is($sql->(q{set statement_timeout = '60s'; select ojs.purge_queue('b',
        confirm => true); select fill('b')}) =~ s/\n/ /r, '5 5', "$how: BP-01: producers of another queue do not wait");
    if ($preload) {
        is($sql->(q{set statement_timeout = '60s'; select fill('a')}), '1',
            'BP-01: nor those of the same queue: one place is left');
        is($sql->(q{set statement_timeout = '60s'; select fill('a')}), '0',
            'BP-01: the open transaction has the other');
        $one->query_safe(q{savepoint s; select count(*) from ojs.claim('a', 'v', 3)});
        is($sql->('select fill(\'a\')'), '0', 'BP-01: what it has claimed makes no room before its commit');
        is($one->query_safe(q{select fill('a')}), '3', 'BP-01: but for itself');
        is($one->query_safe(q{select count(*) from ojs.claim('a', 'v', 1); select state from ojs.push('test.job',
            queue => 'a')}) =~ s/\n/ /r, '1 available', 'BP-01: and for itself again');
        is($sql->(q{select count(*) from ojs.claim('a', 'x', 1); select fill('a')}) =~ s/\n/ /r, '1 1',
            'BP-01: which takes no place twice: what another claims is free for others');
        $one->query_safe('rollback to s');
        is($one->query_safe(q{select fill('a')}), '0', 'BP-01: and not after a rollback');
        $one->query_safe('rollback');
        is($sql->(q{select fill('a')}), '1', 'BP-01: the rolled back push has given its place back');
        my $two = $session->();
        $sql->(q{select count(*) from ojs.claim('a', 'w', 2)});
        $one->query_safe(q{begin; select state from ojs.push('test.job', queue => 'a')});
        $two->query_safe(q{begin isolation level repeatable read; select count(*) from ojs.jobs});
        $one->query_safe('commit');
        is($two->query_safe(q{select fill('a')}), '1', 'BP-01: REPEATABLE READ counts what its snapshot does not show');
        $one->query_safe(q{begin});
        is($one->query_safe(q{select fill('a')}), '0', 'BP-01: and its places count for others');
        $one->query_safe('rollback');
        my $pid = $two->query_safe('select pg_backend_pid()');
        $sql->("select pg_terminate_backend($pid, 100000)");
        is($sql->(q{select fill('a')}), '1', 'BP-01: a session that is killed gives its places back');
        eval { $two->quit };
    } else {
        $one->query_safe('rollback');
        is($sql->(q{select fill('a')}), '2', 'BP-01: a rolled back push has taken nothing');
    }

    # block: a claim makes room for one that waits.
    $sql->(q{select ojs.configure_queue('block', '{"block_timeout": 30}'), ojs.purge_queue('block', confirm => true)});
    is($sql->(q{select count(*) from generate_series(1, 3) i,
        lateral ojs.push('test.job', jsonb_build_array(i), queue => 'block')}), '3',
        "$how: a full queue that lets producers wait");
    my $blocked = $start->(q{select state from ojs.push('test.job', queue => 'block')});
    ok($node->poll_query_until('postgres',
        q{select exists (select from pg_stat_activity where state = 'active' and query like '%''block'')'
            and pid <> pg_backend_pid()
        and wait_event_type in ('Extension', 'Lock'))}), "$how: BP-03: a push waits");
    is($sql->(q{select count(*) from ojs.claim('block', 'w')}), '1', "$how: BP-03: workers do not");
    $blocked->{handle}->finish;
    is($blocked->{out}, "available\n", "$how: BP-03: and one makes room for it");
    is($sql->(q{set ojs.block_timeout = '150ms'; select extract(milliseconds from clock_timestamp() - now())
        from (select fill('block')) f}) =~ /^(\d+)/ && $1 >= 150 && $1 < 10000, 1,
        "$how: BP-03: it waits as long as it may");
    $blocked = $start->(q{select pg_backend_pid()}, q{select state from ojs.push('test.job', queue => 'block')});
    ok($node->poll_query_until('postgres',
        q{select pg_cancel_backend(pid) from pg_stat_activity where state = 'active' and query like '%''block'')'
            and wait_event_type = 'Extension'
        and pid <> pg_backend_pid()}), "$how: a push waits, and is cancelled");
    eval { $blocked->{handle}->finish };
    like($blocked->{err}, qr/canceling statement due to user request/, "$how: BP-03: a wait can be cancelled");
    my $repeatable = $session->();
    $repeatable->query_safe(q{begin isolation level repeatable read; select count(*) from ojs.jobs});
    $blocked = $start->(q{select state from ojs.push('test.job', queue => 'block')});
    $node->poll_query_until('postgres',
        q{select exists (select from pg_stat_activity where query like '%''block'')'
            and wait_event_type = 'Extension')});
    $sql->(q{select count(*) from ojs.claim('block', 'w', 2)});
    $blocked->{handle}->finish;
    is($repeatable->query_safe(q{select state from ojs.push('test.job', queue => 'block'); commit}), 'available',
        "$how: BP-03: a snapshot does not hide the room that others made");
    $repeatable->quit;

    # Prepared transactions.
    $one->quit;
    $sql->(q{select ojs.purge_queue('a', confirm => true), ojs.purge_queue('b', confirm => true)});
    $sql->(q{begin; select count(*) from generate_series(1, 4) i,
        lateral ojs.push('test.job', jsonb_build_array(i), queue => 'b'); prepare transaction 'p'});
    isnt($node->psql('postgres', q{set lock_timeout = '200ms'; select fill('b')}), 0,
        "$how: BP-01: a prepared transaction keeps its places: others wait for it");
    if ($preload) {
        my (undef, undef, $refusal) = $node->psql('postgres', q{select ojs.push('test.job', queue => 'b')});
        like($refusal, qr/a prepared transaction has jobs in this bounded queue/, "$how: BP-01: and not without end");
    }
    is($sql->(q{set lock_timeout = '60s'; select fill('a')}), '7', "$how: BP-01: not in other queues");
    $node->restart;
    isnt($node->psql('postgres', q{set lock_timeout = '200ms'; select fill('b')}), 0,
        "$how: BP-01: after a restart, too");
    $sql->(q{commit prepared 'p'});
    is($sql->(q{select fill('b')}), '1', "$how: BP-01: once it is committed, one place is left");
    is($sql->(q{select available from ojs.queue_stats('b')}), '5', "$how: BP-01: five in all");
    $sql->(q{select count(*) from ojs.claim('b', 'w', 2)});
    $sql->(q{begin; select state from ojs.push('test.job', queue => 'b'); prepare transaction 'p'});
    $sql->(q{rollback prepared 'p'});
    is($sql->(q{select fill('b')}), '2', "$how: BP-01: rolled back, it gives its place back");

    # Events: what a push only notes, a tick tells; once for each change of a queue's state.
    if ($preload) {
        $sql->(q{select ojs.tick(); delete from ojs_store.stored_event; select ojs.create_queue('told',
            '{"max_size": 5}')});
        my $push = sub { my ($n) = @_; $sql->("select count(*) from generate_series(1, $n) i,
            lateral ojs.push('test.job', jsonb_build_array(i), queue => 'told')") };
        my $events = sub {
            $sql->('select ojs.tick()') for 1 .. 2;
            return $sql->(q{with told as (delete from ojs_store.stored_event where subject = 'told'
                and type like 'backpressure.%' returning *)
                select coalesce(string_agg(concat_ws(' ', split_part(type, '.', 2), data ->> 'depth', data ->> 'bound',
                    data ->> 'job_type'), ', ' order by at, type desc), '') from told});
        };
        $push->(3);
        is($events->(), '', 'backpressure events: none below the threshold');
        $push->(1);
        is($events->(), 'warning 4 5', 'backpressure.warning: with depth and bound');
        $push->(1);
        is($events->(), '', 'backpressure.warning: once');
        $node->psql('postgres', q{select ojs.push('refused.first', queue => 'told')});
        $node->psql('postgres', q{select ojs.push('refused.second', queue => 'told')});
        is($events->(), 'rejected 5 5 refused.first',
            'BP-05: backpressure.rejected, though nothing of the push was stored');
        $node->psql('postgres', q{select ojs.push('refused.third', queue => 'told')});
        is($events->(), '', 'backpressure.rejected: not for each push');
        $sql->(q{select count(*) from ojs.claim('told', 'w')});
        is($events->(), '', 'backpressure.cleared: not at the threshold');
        $push->(1);
        $node->psql('postgres', q{select ojs.push('refused.again', queue => 'told')});
        is($events->(), 'rejected 5 5 refused.again', 'backpressure.rejected: again, once it has taken a push');
        $sql->(q{begin; select ojs.purge_queue('told', confirm => true); rollback});
        is($events->(), '', 'backpressure.cleared: not of what is rolled back');
        $sql->(q{select count(*) from ojs.claim('told', 'w', 2)});
        $sql->(q{begin; select ojs.tick(); rollback});
        is($events->(), 'cleared 3 5',
            'backpressure.cleared: below the threshold; told again where a tick was rolled back');
        $push->(1);
        is($events->(), 'warning 4 5', 'backpressure.warning: again');
        $sql->(q{select count(ojs.push('test.job', queue => 'drop')) from generate_series(1, 6)});
        is($sql->(q{select string_agg(distinct type,
            ' ') from ojs.events where type = 'backpressure.dropped' and queue = 'drop' and job_id is not null}),
            'backpressure.dropped',
            'backpressure.dropped: of each dropped job');
        $sql->(q{select ojs.drop_queue('told', 'discard')});
        is($events->(), '', 'backpressure events: none of a queue that is gone');
    }

    # A crash.
    $one = $session->();
    $sql->(q{select ojs.ack(job_id) from ojs.leases}); # what is held comes back
    $one->query_safe(q{begin; select count(*) from ojs.claim('a', 'w', 2); select state from ojs.push('test.job',
        queue => 'a')});
    $node->stop('immediate');
    $node->start;
    is($sql->(q{select fill('a')}), '0', "$how: BP-01: after a crash the queue is full, as it was");
    $sql->(q{select count(*) from ojs.claim('a', 'w', 3)});
    $all->('BP-01 after a crash', q{call fill_up('a')});
    is($sql->(q{select available from ojs.queue_stats('a')}), '7', "$how: BP-01: and is filled to its bound again");
    is($sql->(q{select fill('bytes'), ojs.queue_info('bytes') #>> '{stats,depth_bytes}'}), '0|1232',
        "$how: BP-02: so is the one that is bounded by size");
    is($sql->('table odd limit 5'), '', "$how: nothing odd");
    unlike(slurp_file($node->logfile), qr/has corrected its counters/, "$how: no counter had to be corrected");
    eval { $one->quit };
    $node->stop;
}
done_testing();
