# Ojs.pm: what the TAP tests of ojs have in common.
package Ojs;
use strict;
use warnings;
use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'time';

our @EXPORT = qw(server awaits health worker_pid workers pushed listener heard at_best);

# A question to a session of background_psql, and its answer without the last newline. Minor releases before 2025 wait
# for less than the whole line that ends an answer, and so may give its rest with the next.
{
    no warnings 'redefine';
    my $asked = 0;
    *PostgreSQL::Test::BackgroundPsql::query = sub {
        my ($self, $sql) = @_;
        my $end = 'answered-' . ++$asked;
        note "asked of a session: $sql";
        $self->{timeout}->start if defined $self->{query_timer_restart};
        $self->{stdin} .= "$sql\n;\n\\echo '$end'\n\\warn '$end'\n";
        until ($self->{stdout} =~ /^$end\n/m && $self->{stderr} =~ /^$end\n/m) {
            die "no answer in time to: $sql" if $self->{timeout}->is_expired;
            $self->{run}->pump;
        }
        $self->{$_} =~ s/\n?^$end\n//m for qw(stdout stderr);
        my $answer = $self->{stdout};
        $self->{stdout} = '';
        return wantarray ? ($answer, $self->{stderr} ne '') : $answer;
    };
}

# A server, started. Options: preload, conf (lines), extension (0: none yet), streaming (0), install (another version's
# folder), extra (options of initdb), archive.
sub server {
    my ($name, %with) = @_;
    my $node = PostgreSQL::Test::Cluster->new($name, $with{install} ? (install_path => $with{install}) : ());
    $node->init(allows_streaming => $with{streaming} // 0, has_archiving => $with{archive} // 0,
        $with{extra} ? (extra => $with{extra}) : ());
    $node->append_conf('postgresql.conf', "max_prepared_transactions = 5\nautovacuum = off\n");
    $node->append_conf('postgresql.conf', "shared_preload_libraries = 'ojs'\n") if $with{preload};
    $node->append_conf('postgresql.conf', $with{conf}) if $with{conf};
    $node->start;
    $node->safe_psql('postgres', 'create extension ojs') if $with{extension} // 1;
    return $node;
}

# The condition becomes true within the time limit of PostgreSQL's tests.
sub awaits {
    my ($node, $query, $name, $database) = @_;
    ok($node->poll_query_until($database // 'postgres', $query), $name);
}

sub health { my ($node, $path) = @_; return $node->safe_psql('postgres', "select ojs.health() #>> '{$path}'"); }

sub workers {
    my ($database) = @_;
    return "(select count(*) from pg_stat_activity where backend_type = 'ojs worker'
        and datname = '" . ($database // 'postgres') . "')";
}

sub worker_pid {
    my ($node, $database) = @_;
    $node->poll_query_until($database // 'postgres', 'select ' . workers($database) . ' = 1');
    return $node->safe_psql('postgres',
        "select pid from pg_stat_activity where backend_type = 'ojs worker'
            and datname = '" . ($database // 'postgres') . "'");
}

# Pushes one job and gives its id.
sub pushed {
    my ($node, $queue, $more) = @_;
    return $node->safe_psql('postgres',
        "select id from ojs.push('test.job', queue => '$queue'" . ($more ? ", $more" : '') . ')');
}

# A session that listens, and whether it has heard of a queue: psql prints notifications with the next answer.
sub listener {
    my ($node) = @_;
    my $session = $node->background_psql('postgres', on_error_stop => 1);
    $session->query_safe('listen ojs');
    return $session;
}

sub heard {
    my ($session, $queue, $within_s) = @_;
    my $end = time + ($within_s // $PostgreSQL::Test::Utils::timeout_default);
    while (time <= $end) {
        return 1 if $session->query_safe('select pg_sleep(0.1)') =~ /notification "ojs" with payload "$queue"/;
    }
    return 0;
}

# How many seconds something took, as it says itself, at best: tried until it took less than the limit, ten times at
# most. Each try must come to its end; but a machine that others use as well may be slow now and then.
sub at_best {
    my ($limit, $try) = @_;
    my $best;
    for (1 .. 10) {
        my $took = $try->();
        $best = $took if !defined $best || $took < $best;
        last if $best < $limit;
    }
    return $best;
}

1;
