# Ticks tell those who listen to ojs_events of each event, once, in the order of ojs.events() (EVT-07).
use strict;
use warnings;
use Ojs;
use Test::More;

for my $preload (1, 0) {
    my $how = $preload ? 'by the worker' : 'by calls of ojs.tick';
    my $node = server('events_' . ($preload ? 'preloaded' : 'plain'), preload => $preload);
    worker_pid($node) if $preload;
    pushed($node, 'before');
    my $listener = $node->background_psql('postgres');
    $listener->query_safe('listen ojs_events');
    my @told;
    # Ticks until so many were told.
    my $hear = sub {
        my ($n) = @_;
        my $until = time + $PostgreSQL::Test::Utils::timeout_default;
        while (time < $until) {
            $node->safe_psql('postgres', 'select ojs.tick()') unless $preload;
            push @told, $listener->query_safe('select pg_sleep(0.05)')
                =~ /notification "ojs_events" with payload "(\w+-\S+?)"/g;
            last if @told >= $n;
        }
    };
    my $events = sub {
        return split /\n/, $node->safe_psql('postgres',
            "select e ->> 'id' from jsonb_array_elements(
                ojs.events(types => '{job.*}', queues => '{$_[0]}') -> 'events') e");
    };

    $node->safe_psql('postgres', 'select ojs.notify_events()');
    my $open = $node->background_psql('postgres');
    $open->query_safe("begin; select from ojs.push('test.job', queue => 'late')");
    $node->safe_psql('postgres', "begin; select from ojs.push('test.job', queue => 'never'); rollback");
    $open->query_safe('commit');
    pushed($node, 'now');
    $node->safe_psql('postgres', "select ojs.ack(id) from ojs.claim('now', 'w')");
    my @expected = ($events->('late'), $events->('now'));
    is(scalar @expected, 4, "four events, $how");
    $hear->(4);
    is_deeply([sort @told], [sort @expected],
        "EVT-07: each is told of once, none from before and none that was rolled back, $how");
    is(join(' ', grep { my $id = $_; grep { $_ eq $id } $events->('now') } @told), join(' ', $events->('now')),
        "EVT-07: in the order of a job's life, $how");

    $node->safe_psql('postgres', 'select ojs.notify_events(false)');
    pushed($node, 'silent');
    $node->safe_psql('postgres', 'select ojs.tick()');
    $node->safe_psql('postgres', 'select ojs.notify_events()');
    pushed($node, 'again');
    @told = ();
    $hear->(1);
    is_deeply(\@told, [$events->('again')], "EVT-07: nothing was told in between, $how");
    $_->quit for $listener, $open;
    $node->stop;
}

done_testing();
