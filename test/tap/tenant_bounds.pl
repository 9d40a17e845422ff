# tenant_bounds.pl: the bounds of a tenant (depth, scheduled, concurrency, rate) through crashes, prepared transactions,
# clocks that jump, VACUUM FULL, changes of settings, races, dump and restore: MT-04.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

# Says how many of the jobs, pushed one at a time, are taken, and by which limit the rest is refused.
my $set_up = q{
    create function pushes(queue text, tenant text, n int, delay text default null) returns text
    language plpgsql as $$
    declare
        detail text; taken int := 0; said text := '';
    begin
        for i in 1 .. n loop
            begin
                perform ojs.push('t', to_jsonb(array[i]), queue => pushes.queue,
                    meta => jsonb_build_object('tenant_id', tenant),
                    scheduled_at => clock_timestamp() + delay::interval);
                taken := taken + 1;
            exception when sqlstate 'OJ604' then
                get stacked diagnostics detail = pg_exception_detail;
                said := ' ' || (detail::jsonb -> 'details' ->> 'limit');
            end;
        end loop;
        return taken || said;
    end $$;
    create function claims(queue text, n int, worker text default 'w') returns bigint language sql as $$
        select count(*) from ojs.claim(queue, worker, n, lease => '1 hour', missing_ok => true)
    $$};
my $limits = q{
    select ojs.set_tenant('deep', '{"max_queue_depth": 6}'), ojs.set_tenant('later', '{"max_scheduled": 4}'),
        ojs.set_tenant('busy', '{"max_concurrency": 3}'),
        ojs.set_tenant('fast', '{"max_enqueue_rate": {"limit": 5, "period": "PT24H"}}')};
# One line: what is taken of each, one more than there is room for.
my $asks = q{select concat_ws(', ', pushes('a', 'deep', 9), pushes('b', 'later', 9, '1 hour'), pushes('a', 'fast', 9),
    claims('a@busy', 9) + claims('b@busy', 9))};

for my $preload (0, 1) {
    my $as = $preload ? 'preloaded' : 'without preload';
    my $node = server("tenant_bounds$preload", preload => $preload, conf => "max_connections = 60\n");
    my $sql = sub { $node->safe_psql('postgres', $_[0]) };
    $sql->('alter database postgres set ojs.tenancy = optional');
    $sql->($set_up);
    $sql->($limits);
    $sql->(q{select pushes('a', 'busy', 4), pushes('b', 'busy', 4), pushes('a', 'deep', 2), pushes('b', 'deep', 1),
        pushes('b', 'later', 1, '1 hour'), pushes('a', 'fast', 2), claims('b@busy', 1)});

    # A crash. What waits is counted from the logged tables; places of leases, and pushes under a rate, are forgotten.
    $node->stop('immediate');
    $node->start;
    is($sql->($asks), '3 max_queue_depth, 3 max_scheduled, 5 max_enqueue_rate, 3', "MT-04: after a crash, $as");
    is($sql->($asks), '0 max_queue_depth, 0 max_scheduled, 0 max_enqueue_rate, 0', "MT-04: and no more, $as");

    # Prepared transactions hold what they have, and give it back or keep it.
    $sql->(q{do $$ begin while exists (select from ojs.claim('a@deep', 'w', 9)) loop end loop; end $$});
    $sql->(q{select ojs.ack(job_id) from ojs.leases where queue like 'a%'});
    is($sql->(q{select pushes('b', 'deep', 3)}), '3', "MT-04: acks make room, $as");
    my ($before) = $sql->(q{select sum(waiting) from ojs.tenant_stats('deep')});
    $sql->(q{begin; select pushes('a', 'deep', 1); select claims('a@busy', 1); prepare transaction 'one'});
    my ($code, $out, $err) = $node->psql('postgres', "set lock_timeout = '200 ms'; set ojs.clock_offset = 0;
        select pushes('a', 'deep', 9)");
    like("$out$err", $preload ? qr/a prepared transaction has jobs/ : qr/lock timeout/,
        "MT-04: a push beside a prepared one is told, $as");
    is($sql->(q{select claims('a@busy', 9) + claims('b@busy', 9)}), 2, "MT-04: a prepared claim has its place, $as");
    $sql->(q{rollback prepared 'one'});
    is($sql->(q{select claims('a@busy', 9) + claims('b@busy', 9)}), 1, "MT-04: and gives it back, $as");
    my $room = 6 - $sql->(q{select waiting from ojs.tenant_stats('deep')});
    is($sql->(q{select pushes('a', 'deep', 9)}), "$room max_queue_depth", "MT-04: so does a prepared push, $as");
    $sql->(q{select count(*) from ojs.claim('a@deep', 'w', 2)});
    $sql->(q{begin; select pushes('b', 'deep', 1); prepare transaction 'two'});
    $node->stop('immediate');
    $node->start;
    $sql->(q{commit prepared 'two'});
    # The next tick brings back what was undecided at the rebuild.
    $sql->(q{select ojs.tick()});
    $node->poll_query_until('postgres', q{select not exists (select from ojs_store.job j
        where not exists (select from ojs_store.ready r where r.job_id = j.id)
            and not exists (select from ojs_store.delayed d where d.job_id = j.id)
            and not exists (select from ojs_store.lease l where l.job_id = j.id)
            and not exists (select from ojs_store.finished f where f.job_id = j.id))}) or die 'it is not brought back';
    # Leases are forgotten, so their jobs wait again: there may be more than would have been let in.
    $room = 6 - $sql->(q{select waiting from ojs.tenant_stats('deep')});
    is($sql->(q{select pushes('a', 'deep', 9)}) =~ s/ .*//r, $room < 0 ? 0 : $room,
        "MT-04: one that outlives a crash counts, $as");

    # A clock that is set back, and one that jumps.
    $sql->(q{select ojs.set_tenant('clock', '{"max_enqueue_rate": {"limit": 3, "period": "PT10S"}}')});
    is($sql->(q{select pushes('a', 'clock', 9)}), '3 max_enqueue_rate', "MT-04: a rate, $as");
    is($sql->(q{set ojs.clock_offset = '-30s'; select pushes('a', 'clock', 9)}), '0 max_enqueue_rate',
        "MT-04: a clock that is set back by a little does not open it, $as");
    is($sql->(q{set ojs.clock_offset = '-3600s'; select pushes('a', 'clock', 9)}), '3 max_enqueue_rate',
        "MT-04: one that is set back by an hour does not keep it shut for an hour, $as");
    is($sql->(q{set ojs.clock_offset = '-3585s'; select pushes('a', 'clock', 9)}), '3 max_enqueue_rate',
        "MT-04: and it goes on by the new clock, $as");
    is($sql->(q{set ojs.clock_offset = '3600s'; select pushes('a', 'clock', 9)}), '3 max_enqueue_rate',
        "MT-04: one that jumps on opens it once, $as");

    # VACUUM FULL, and settings that change or go under sessions that know them.
    my $session = $node->background_psql('postgres');
    $session->query_safe(q{select ojs.set_tenant('moved', '{"max_queue_depth": 2, "max_concurrency": 1}')});
    is($session->query_safe(q{select pushes('a', 'moved', 3), claims('a@moved', 3)}), '2 max_queue_depth|1',
        "MT-04: a session knows the settings, $as");
    $sql->(q{vacuum full; vacuum analyze});
    is($session->query_safe(q{select pushes('a', 'moved', 3), claims('a@moved', 3)}), '1 max_queue_depth|0',
        "MT-04: after VACUUM FULL, $as");
    $sql->(q{select ojs.set_tenant('moved', '{"max_queue_depth": 3, "max_concurrency": 2}')});
    is($session->query_safe(q{select pushes('a', 'moved', 3), claims('a@moved', 3)}), '1 max_queue_depth|1',
        "MT-04: a change counts at once, $as");
    $sql->(q{select ojs.drop_tenant('moved')});
    is($session->query_safe(q{select pushes('a', 'moved', 9), claims('a@moved', 9)}), '9|9',
        "MT-04: and so does the end of it, $as");
    $sql->(q{select ojs.set_tenant('moved', '{"max_concurrency": 1}')});
    is($session->query_safe(q{select claims('a@moved', 9)}), '0', "MT-04: what comes anew holds at once, $as");
    $session->quit;

    # Many sessions at the bound at once: exact, and nobody gets anything but a refusal.
    $sql->(q{select ojs.set_tenant('race', '{"max_queue_depth": 50, "max_scheduled": 20, "max_concurrency": 7,
        "max_enqueue_rate": {"limit": 60, "period": "PT24H"}}')});
    my ($clients, $each) = (8, 20);
    # Who is serializable may be told to try again (40001), as anywhere; pgbench does so as of version 15.
    for my $level ('read committed', 'repeatable read', 'serializable') {
        next if $level eq 'serializable' && $node->safe_psql('postgres', 'show server_version_num') < 150000;
        my $tries = $level eq 'serializable' ? '--max-tries=1000' : '';
        $node->pgbench("--client=$clients --transactions=$each --jobs=2 --no-vacuum $tries", 0,
            [qr{processed: @{[$clients * $each]}/}], [qr/^$/], "MT-04: sessions push, $level, $as",
            { "race$preload" . substr($level, 0, 3) => q{
                \set q random(1, 5)
                \set later random(0, 1)
                begin isolation level } . $level . q{;
                select pushes('r' || :q, 'race', 1, case when :later = 1 then '1 hour' end);
                end;} });
    }
    is($sql->(q{select waiting, scheduled <= 20 from ojs.tenant_stats('race')}), '50|t',
        "MT-04: exactly as many as may wait, $as");
    $node->pgbench("--client=$clients --transactions=$each --jobs=2 --no-vacuum", 0,
        [qr{processed: @{[$clients * $each]}/}], [qr/^$/], "MT-04: sessions claim, $as",
        { "hold$preload" => q{\set q random(1, 5)
            select claims('r' || :q || '@race', 2);} });
    is($sql->(q{select active from ojs.tenant_stats('race')}), 7,
        "MT-04: exactly as many as may be held, $as");
    is($sql->(q{select count(*) from pg_locks where locktype = 'object' and granted and pid <> pg_backend_pid()}), 0,
        "MT-04: no lock is left, $as");
    $sql->(q{select ojs.set_tenant('race', '{"max_queue_depth": null, "max_scheduled": null}')});
    is($sql->(q{select pushes('r1', 'race', 20)}), '10 max_enqueue_rate', "MT-04: refused ones did not count, $as");

    # Dump and restore, into a new database; and the extension anew.
    my $dump = $node->backup_dir . "/tenants.sql";
    $node->command_ok(['pg_dump', '-d', $node->connstr('postgres'), '-f', $dump], "MT-04: a dump, $as");
    $sql->('create database copy');
    $node->command_ok(['psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('copy'), '-f', $dump],
        "MT-04: is restored, $as");
    my $of = q{select string_agg(tenant || ' ' || waiting + active, ', ' order by tenant) from ojs.tenants t,
        lateral ojs.tenant_stats(t.tenant)};
    my $optional = "set ojs.tenancy = optional; ";
    is($node->safe_psql('copy', "$optional $of"), $sql->($of), "MT-04: with what waits, $as");
    is($node->safe_psql('copy', "$optional select pushes('a', 'deep', 9)"), '0 max_queue_depth',
        "MT-04: and its bounds, $as");
    $sql->(q{drop extension ojs cascade; create extension ojs});
    is($sql->(q{select count(*) from ojs.tenants}), 0, "MT-04: a new extension knows no tenant, $as");
    is($sql->(q{select pushes('a', 'deep', 9)}), '9', "MT-04: and no bound, $as");
    $sql->($limits);
    is($sql->(q{select pushes('a', 'deep', 1), pushes('c', 'fast', 9)}), '0 max_queue_depth|5 max_enqueue_rate',
        "MT-04: until it is told, $as");
    $node->stop;
}
done_testing();
