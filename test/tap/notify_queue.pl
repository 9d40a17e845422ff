# notify_queue.pl: a listener that stays in its transaction fills the server's queue of notifications, and no call of
# ojs fails over it: PGX-08, OBS-01.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Ojs;
use PostgreSQL::Test::Cluster;
use Test::More;

plan skip_all => 'before 17 that queue has 8 GB' if `$ENV{PG_CONFIG} --version` =~ / 1[456]\b/;

for my $preload (0, 1) {
    my $name = $preload ? 'preloaded' : 'plain';
    # Without the worker, so that transactions notify where ojs is preloaded, too.
    my $node = server($name, preload => $preload, conf => "max_notify_queue_pages = 64\nojs.worker = off\n");
    my $sql = sub { return $node->safe_psql('postgres', shift) };
    my $listens = $node->background_psql('postgres');
    my $work = $node->background_psql('postgres', on_error_stop => 0);
    $sql->(q{select ojs.create_queue('q'); select ojs.notify_events(true)});
    $listens->query_safe('listen ojs');
    $sql->(q{select ojs.claim('q', 'w')});
    $listens->query_safe('begin; select 1');
    $node->psql('postgres', q{select pg_notify('other', i || repeat('x', 7000)) from generate_series(1, 60) i});
    cmp_ok($sql->('select pg_notification_queue_usage()'), '>=', 0.9, "$name: the queue is nearly full");
    # What is left fits a little, and what ojs sends must not be what fails.
    while (($node->psql('postgres', q{select pg_notify('other', repeat('x', 3000))}))[0] == 0) { }
    while (($node->psql('postgres', q{select pg_notify('other', 'x')}))[0] == 0) { }
    my $push = q{select state from ojs.push('a.b', queue => 'q')};
    is($sql->($push), 'available', "$name: a push commits though the queue is full");
    is($sql->(q{select a.state from ojs.claim('q', 'w') c, ojs.ack(c.id) a}), 'completed',
        "$name: so do a claim and an ack");
    is($sql->(q{select state from ojs.push('a.b', queue => 'q', delay => '1 hour');
        set ojs.clock_offset = '2h'; select ojs.tick() ->> 'promoted'}), "scheduled\n1", "$name: and a tick");
    is($sql->(q{select ojs.health() ->> 'status', (ojs.health() ->> 'notify_queue_used')::float > 0.9}), 'degraded|t',
        "$name: health says so");
    my ($heard) = $listens->query('commit; select 2');
    is($sql->(q{select ojs.health() ->> 'status'}), 'ok', "$name: and that there is room again");
    $sql->(q{select ojs.claim('q', 'w', 10)});
    $sql->($push);
    ok(heard($listens, 'q'), "$name: who listens hears of the next push");
    $_->quit for $listens, $work;
    $node->stop;
}
done_testing();
