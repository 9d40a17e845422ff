# Jobs that rise while they wait (Q-71): claims and ticks that meet, and a crash.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = server('priority_aging', preload => 0);

# In the order in which they are served: type and priority.
my $line = q{select string_agg(j.type || ':' || -r.npriority, ' ' order by r.npriority, r.position)
    from ojs_store.ready r join ojs_store.job j on j.id = r.job_id};
# Nobody waits here for a lock: who does gives up.
my $hurry = q{set lock_timeout = '10 s';};

sub at {
    my ($minutes, $sql) = @_;
    return $node->safe_psql('postgres', "$hurry set ojs.clock_offset = '${minutes}min'; $sql");
}

sub tick {
    return at($_[0], q{select ojs.tick() #>> '{failed}'});
}

at(0, q{select ojs.create_queue('q', '{"priority_aging_s": 60000}');
    select ojs.push('t.' || n, queue => 'q') from unnest('{a,b,c}'::text[]) n});
tick(0);
my $session = $node->background_psql('postgres');
is($session->query_safe(q{begin; select type from ojs.claim('q', 'w')}), 't.a', 'a claim has a job');
is(tick(1100), '[]', 'Q-71: a tick does not wait for it');
is(at(1100, $line), 't.b:1 t.c:1 t.a:0', 'Q-71: it raises the others');
$session->query_safe('rollback');
tick(1300);
is(at(1300, $line), 't.b:1 t.c:1 t.a:1', 'Q-71: and that one when it is there again');

$session->query_safe(q{begin; set ojs.clock_offset = '2500min'; select ojs.tick()});
is(at(2500, $line), 't.b:1 t.c:1 t.a:1', 'Q-71: a tick that has not committed has raised nothing');
is(tick(2500), '[]', 'Q-71: another tick does not wait for it');
is(at(2500, q{select count(*) from ojs.claim('q', 'w', max => 3)}), 0, 'Q-71: nor does a claim');
at(2500, q{select ojs.push('t.d', queue => 'q', priority => -1)});
is(at(2500, q{begin; select type from ojs.claim('q', 'w', max => 3); rollback}), 't.d',
    'Q-71: which takes what the tick is not at');
$session->query_safe('commit');
is(at(2500, $line), 't.b:2 t.c:2 t.a:2 t.d:-1', 'Q-71: all have risen');
is(at(2500, q{begin; select type from ojs.claim('q', 'w'); select type from ojs.claim('q', 'w'); rollback}),
    "t.b\nt.c", 'Q-71: and are served in their order');
tick(2600); # has seen the job that came last

# A tick that is rolled back has raised nobody, and the next one does.
$session->query_safe(q{begin; set ojs.clock_offset = '4000min'; select ojs.tick(); rollback});
is(at(4000, $line), 't.b:2 t.c:2 t.a:2 t.d:-1', 'Q-71: a tick that is rolled back has raised nobody');
tick(4000);
is(at(4000, $line), 't.b:3 t.c:3 t.a:3 t.d:0', 'Q-71: the next one does');
$session->quit;

$node->stop('immediate');
$node->start;
is(at(4000, "select ojs.ready(); $line"), "t\nt.a:0 t.b:0 t.c:0 t.d:-1",
    'Q-71: after a crash each job is at the priority of its envelope');
is(at(4000, q{select count(*) from ojs.jobs where queue = 'q' and state = 'available'}), 4, 'Q-71: and none is lost');
tick(4000);
tick(4900);
is(at(4900, $line), 't.a:0 t.b:0 t.c:0 t.d:-1', 'Q-71: its wait begins anew');
tick(5100);
is(at(5100, $line), 't.a:1 t.b:1 t.c:1 t.d:0', 'Q-71: and it rises again');
$node->stop;
done_testing();
