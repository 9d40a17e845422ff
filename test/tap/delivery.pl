# What each delivery guarantee promises, and no more: a worker's client, or the server, is lost at every point of the
# recipe of docs/explanation/delivery-guarantees.md; another worker then does what there is to do.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my %outside;    # effects that no rollback takes back, by queue

# The steps of a recipe, for one worker; `run` runs SQL. The first one claims, and says whether there was a job.
sub steps {
    my ($kind, $queue, $run) = @_;
    my ($id, $lease);
    my $claim = sub { ($id, $lease) = split /\|/,
        $run->("select id, lease_id from ojs.claim('$queue', 'w')"); return defined $id };
    my $ack = sub { $run->(($_[0] // '') . "select ojs.ack('$id', lease_id => '$lease') is null") };
    my $commit = sub { $run->('commit') };
    return ($claim, sub { $run->("begin; insert into effect values ('$queue', '$id')") }, $ack,
        $commit) if $kind eq 'ack in the transaction';
    return ($claim, sub { $run->("begin; insert into effect select '$queue', '$id' where ojs.once('$id')") }, $commit,
        $ack) if $kind eq 'ojs.once';
    return ($claim, sub { $outside{$queue}++ }, sub { $ack->('begin; ') }, $commit);
}

my @points = ('the push', 'the claim', 'the effect', 'the third step', 'the last step');
# How often there was an effect, and how the job ended, when all was lost after each point.
my %promised = (
    'at least once' => [ '1 completed', '1 completed', '2 completed', '2 completed', '1 completed' ],
    'at most once' => [ '1 completed', '0 discarded', '1 discarded', '1 discarded', '1 completed' ],
    'ack in the transaction' => [ ('1 completed') x 5 ],
    'ojs.once' => [ ('1 completed') x 5 ]);
my %requirement = ('at least once' => 'DLV-02', 'at most once' => 'DLV-01', 'ack in the transaction' => 'DLV-07',
    'ojs.once' => 'DLV-07');
my @kinds = sort keys %promised;

sub queue_of { my ($kind, $fault, $point) = @_; return join '.', $kind =~ s/ /-/gr, $fault, $point; }

sub session {
    my ($node, $setup) = @_;
    my $session = $node->background_psql('postgres');
    $session->query_safe($setup) if $setup;
    return $session;
}

sub kill_client {
    my ($session) = @_;
    $session->{run}->signal('KILL');
    eval { $session->{run}->finish };
}

# All kinds get as far as `point`; then comes the fault.
sub lose {
    my ($node, $fault, $point) = @_;
    my (@sessions, @pids);
    for my $kind (@kinds) {
        my $queue = queue_of($kind, $fault, $point);
        my $session = session($node);
        push @sessions, $session;
        push @pids, $session->query_safe('select pg_backend_pid()');
        my $options = $kind eq 'at most once' ? '{"delivery": "at_most_once"}' : '{}';
        $session->query_safe("select ojs.push('test.job', queue => '$queue', options => '$options') is null");
        my @steps = steps($kind, $queue, sub { $session->query_safe($_[0]) });
        $_->() for @steps[ 0 .. $point - 1 ];
    }
    # A push of a job that may be lost is not waited for. Here it shall be there, so that what follows can be told.
    $node->safe_psql('postgres', "select pg_logical_emit_message(true, 'test', 'flush')") if $point == 0;
    $node->stop('immediate') if $fault eq 'server';
    kill_client($_) for @sessions;
    $node->start if $fault eq 'server';
    $node->poll_query_until('postgres',
        "select count(*) = 0 from pg_stat_activity where pid in (@{[join ', ', @pids]})") or die if $fault eq 'client';
}

# Another worker, after all leases have run out.
sub finish_all {
    my ($node, $fault, $point) = @_;
    my $session = session($node, "set ojs.clock_offset = '1h'");
    for my $kind (@kinds) {
        for (1 .. 5) {
            my ($claim, @steps) = steps($kind, queue_of($kind, $fault, $point), sub { $session->query_safe($_[0]) });
            last unless $claim->();
            $_->() for @steps;
        }
    }
    $session->quit;
}

for my $preload (1, 0) {
    my $how = $preload ? 'preloaded' : 'not preloaded';
    my $node = server('delivery_' . ($preload ? 'preloaded' : 'plain'), preload => $preload);
    $node->safe_psql('postgres', 'create table effect (queue text, id uuid)');
    %outside = ();
    for my $fault ('server', 'client') {
        for my $point (0 .. $#points) {
            lose($node, $fault, $point);
            finish_all($node, $fault, $point);
            for my $kind (@kinds) {
                my $queue = queue_of($kind, $fault, $point);
                my $effects = ($outside{$queue} // 0) + $node->safe_psql('postgres',
                    "select count(*) from effect where queue = '$queue'");
                is($effects . ' ' . $node->safe_psql('postgres',
                    "select string_agg(state, ' ') from ojs.jobs where queue = '$queue'"), $promised{$kind}[$point],
                    "$requirement{$kind}: $kind, $fault lost after $points[$point], $how");
            }
        }
    }
    is($node->safe_psql('postgres', q{select count(*) from ojs.jobs where state not in ('completed', 'discarded')}), 0,
        "DLV-03: every job has come to an end, $how");
    is($node->safe_psql('postgres', 'select count(*) - count(distinct id) from effect'), 0,
        "DLV-05: each by its id, $how");
    $node->stop;
}

done_testing();
