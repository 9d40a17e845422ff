# unique.pl: uniqueness under concurrency: UNQ-13, UNQ-16, DDP-05.
#
# First a few races, step by step. Then many sessions push few keys with all strategies, states lists and periods, alone
# and in longer transactions, rolled back at random, at all isolation levels, while workers claim and finish the jobs.
# Each call writes down what it was told, in its own transaction. A checker then replays that against a plain model:
# pushes of one key in the order in which they held its lock (the log's sequence is drawn under it), and for each the
# states that the jobs before it can have had, by the snapshots taken before and after the call.
#
# OJS_STRESS_ROUNDS=20 makes it a very long run; OJS_STRESS_SEED repeats one.
# Runs long.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use List::Util 'max';
use Test::More;
use Time::HiRes qw(time sleep);

my $rounds = $ENV{OJS_STRESS_ROUNDS} // 1;
my $seed = $ENV{OJS_STRESS_SEED} // time * 1000 % 2**31;
srand($seed);
my ($pushers, $workers, $steps) = (26, 8, 150);

my $node = PostgreSQL::Test::Cluster->new('unique');
$node->init;
$node->append_conf('postgresql.conf',
    "max_connections = 80\nfsync = off\ndeadlock_timeout = 100ms\nshared_buffers = 64MB\n");
$node->start;
$node->safe_psql('postgres', 'create extension ojs');

# --- races, step by step ---

sub session
{
    my $session = $node->background_psql('postgres', on_error_stop => 0);
    $session->query_safe("set client_min_messages = error");
    return $session;
}

# Starts a query in a session without waiting for its answer; answer() fetches it.
sub begin_query
{
    my ($session, $query) = @_;
    $session->{stdin} .= "$query\n\\echo :SQLSTATE\n\\echo done\n";
    $session->{run}->pump_nb;
}
sub answer
{
    my ($session) = @_;
    IPC::Run::pump $session->{run} until $session->{stdout} =~ /^done$/m;
    my $out = $session->{stdout};
    $session->{stdout} = '';
    $session->{stderr} = '';
    $out =~ s/\s*done\s*$//;
    return $out =~ s/\n/ /gr;
}
sub wait_for_waiting
{
    $node->poll_query_until('postgres', "select count(*) = $_[0] from pg_stat_activity where wait_event_type = 'Lock'")
        or die 'nobody waits';
}

if ($node->can('background_psql') && PostgreSQL::Test::BackgroundPsql->can('query_safe'))
{
    my ($a, $b) = (session(), session());
    my $push = q{select 'id ' || id || ' ' || deduplicated from ojs.push('race.%s', "unique" => '%s');};
    for my $isolation ('read committed', 'repeatable read', 'serializable')
    {
        my $key = $isolation =~ s/ /_/r;
        for my $end ('commit', 'rollback')
        {
            $a->query_safe('begin');
            my $first = $a->query_safe(sprintf($push, "$key.$end", '{}'));
            begin_query($b, "begin isolation level $isolation; " . sprintf($push, "$key.$end", '{}') . ' commit;');
            wait_for_waiting(1);
            $a->query_safe($end);
            my $answer = answer($b);
            $end eq 'commit' ? like($answer, qr/OJ301|25P02|00000$/, "UNQ-13, $isolation: the second pusher waits")
                : like($answer, qr/id .* false/, "UNQ-13, $isolation: and has the key if the first one rolls back");
            is($node->safe_psql('postgres', "select count(*) from ojs.jobs where type = 'race.$key.$end'"), '1',
                'one job');
        }
    }
    my $keyed = q{select id || ' ' || deduplicated from ojs.push('race.d', deduplication_key => '%s');};
    for my $end ('commit', 'rollback')
    {
        $a->query_safe('begin');
        $a->query_safe(sprintf($keyed, $end));
        begin_query($b, sprintf($keyed, $end));
        wait_for_waiting(1);
        $a->query_safe($end);
        like(answer($b), $end eq 'commit' ? qr/true/ : qr/false/,
            "DDP-05: two pushers of a deduplication key, the first ends with $end");
    }
    # A worker holds the job's row when it is replaced: the pusher waits, and decides by what the worker made of it.
    for my $states ('["available"]', '["available", "active"]')
    {
        my $name = 'race.claim' . length($states);
        $node->safe_psql('postgres', qq{select ojs.push('$name', queue => '$name', "unique" => '{}')});
        $a->query_safe('begin');
        $a->query_safe("select id from ojs.claim('$name', 'w')");
        begin_query($b, qq{select deduplicated from ojs.push('$name', queue => '$name',
            "unique" => '{"on_conflict": "replace", "states": $states}');});
        wait_for_waiting(1);
        $a->query_safe('commit');
        answer($b);
        is($node->safe_psql('postgres',
            "select string_agg(state, ' ' order by seq) from ojs.jobs where type = '$name'"),
            $states =~ /active/ ? 'cancelled available' : 'active available',
            "a job that is claimed while it is replaced, for $states");
    }
    $_->quit for $a, $b;
}

# --- the stress ---

$node->safe_psql('postgres', <<'SQL');
create schema stress;
create sequence stress.seq;
create table stress.log (
    seq bigint default nextval('stress.seq'), kind text, key text, job uuid, policy jsonb, state text, deliveries int,
    xid xid8 default pg_current_xact_id(), before pg_snapshot, after pg_snapshot, since timestamptz,
    at timestamptz default clock_timestamp(), isolation text default current_setting('transaction_isolation'));

-- Where the push may raise: caught, and so a subtransaction of its own.
create function stress.push(key text, policy jsonb, delay interval) returns void language plpgsql as $$
declare
    before constant pg_snapshot := pg_current_snapshot();
    since constant timestamptz := clock_timestamp();
    job ojs.job; detail jsonb;
begin
    if coalesce(policy ->> 'on_conflict', 'reject') <> 'reject' then
        job := ojs.push(key, queue => 'q', "unique" => policy, delay => delay,
            retry => '{"max_attempts": 100, "initial_interval": "PT0.2S", "max_interval": "PT0.2S"}');
    else
        begin
            job := ojs.push(key, queue => 'q', "unique" => policy, delay => delay,
                retry => '{"max_attempts": 100, "initial_interval": "PT0.2S", "max_interval": "PT0.2S"}');
        exception when sqlstate 'OJ301' then
            get stacked diagnostics detail = pg_exception_detail;
            insert into stress.log (kind, key, job, policy, state, before, after, since) values ('rejected', key,
                (detail #>> '{details,existing_job_id}')::uuid, policy, detail #>> '{details,existing_job_state}',
                before, pg_current_snapshot(), since);
            return;
        end;
    end if;
    insert into stress.log (kind, key, job, policy, state, before, after,
        since) values (case when job.deduplicated then 'ignored' else 'new' end, key,
        job.id, policy, job.state, before, pg_current_snapshot(), since);
end $$;

create function stress.push_many(jobs jsonb) returns void language plpgsql as $$
declare
    before constant pg_snapshot := pg_current_snapshot();
    since constant timestamptz := clock_timestamp();
    answers jsonb := (select jsonb_agg(to_jsonb(r) order by index) from ojs.push_many(jobs) r);
begin
    insert into stress.log (kind, key, job, policy, state, before, after, since)
    select case r ->> 'status' when 'created' then 'new' else 'ignored' end, j ->> 'type', (r ->> 'id')::uuid,
        j -> 'unique', null,
        before, pg_current_snapshot(), since
    from jsonb_array_elements(jobs) with ordinality as j(j, n), jsonb_array_elements(answers) with ordinality as r(r, m)
    where m = n order by n;
end $$;

create function stress.claim(name text, n int, lease interval) returns void language sql as $$
    insert into stress.log (kind, key, job, state, deliveries, since)
    select 'move', type, id, 'active', deliveries, clock_timestamp() from ojs.claim('q', name, n, lease => lease)
$$;
create function stress.finish(name text, how text) returns void language plpgsql as $$
declare
    held record;
    job ojs.job;
begin
    select * into held from ojs.leases where worker = name and lease_expires_at > clock_timestamp()
        order by random() limit 1;
    if not found then return; end if;
    case how
        when 'ack' then job := ojs.ack(held.job_id, worker => name);
        when 'fail' then job := ojs.fail(held.job_id, '{"type": "t", "message": "m"}', worker => name);
        when 'discard' then job := ojs.fail(held.job_id, '{"type": "t", "message": "m", "retryable": false}',
            worker => name);
        when 'nack' then job := ojs.nack(held.job_id, worker => name);
        when 'cancel' then job := ojs.cancel(held.job_id);
    end case;
    insert into stress.log (kind, key, job, state, deliveries, since) values ('move', job.type, job.id, job.state,
        held.deliveries, job.next_attempt_at);
end $$;
-- Several at once: their rows are locked in one call, as those of a push that replaces several are.
create function stress.ack_all(name text) returns void language plpgsql as $$
declare
    ids uuid[] := (select coalesce(array_agg(job_id order by random()), '{}') from ojs.leases where worker = name);
    answer record;
begin
    select * into answer from ojs.ack_many(name, ids);
    insert into stress.log (kind, key, job, state, deliveries)
    select 'move', j.type, id, 'completed', d.deliveries from unnest(ids) as i(id) join ojs.jobs j using (id)
        , lateral (select j.deliveries) d where id <> all (answer.skipped);
end $$;
SQL

my @keys = map { "k$_" } 1 .. 4;
my %fingerprint = map { $_ => $node->safe_psql('postgres',
    qq{select ojs.fingerprint('{"type": "$_", "args": [], "unique": {}}')}) } @keys;
my @states = (undef, undef, undef, ['available'], ['scheduled'], ['active'], ['available', 'active', 'completed'],
    ['completed'],
    ['retryable', 'available'], ['scheduled', 'available', 'pending', 'active', 'completed', 'retryable', 'cancelled',
        'discarded']);
my @periods = (undef, undef, undef, 'PT0.05S', 'PT1S', 'PT0.3S');
my @strategies = ('reject', 'ignore', 'replace', 'replace_except_schedule');
sub one_of { return $_[ rand @_ ] }

sub policy
{
    my ($states, $period) = (one_of(@states), one_of(@periods));
    return '{"on_conflict": "' . one_of(@_ ? @_ : @strategies) . '"'
        . ($states ? ', "states": [' . join(', ',
            map { "\"$_\"" } @$states) . ']' : '') . ($period ? ", \"period\": \"$period\"" : '') . '}';
}
sub push_one
{
    my ($key) = @_;
    return sprintf("select stress.push('%s', '%s', %s);\n", $key, policy(),
        one_of('null', 'null', "'0.1 s'", "'1 hour'"));
}

sub pusher_script
{
    my ($long, $round) = @_;
    my @lines;
    for my $step (1 .. $steps)
    {
        # Now and then a key that all sessions meet for the first time at about the same moment.
        my $fresh = sprintf('f%dx%d', $round, $step / 4);
        my $dice = rand($long ? 1 : 0.7);
        if ($dice < 0.55) { push @lines, push_one(one_of(@keys, $fresh, $fresh)); }
        elsif ($dice < 0.7)
        {
            my @jobs = map { sprintf('{"type": "%s", "queue": "q", "args": [], "unique": %s}', one_of(@keys),
                policy('ignore', 'replace', 'replace')) } 1 .. 1 + int rand 5;
            push @lines, "select stress.push_many('[" . join(', ', @jobs) . "]');\n";
        }
        else
        {
            # In a longer transaction keys are taken in the order of their fingerprints, as a batch takes them.
            my $level = one_of('read committed', 'read committed', 'repeatable read', 'serializable');
            my @wanted = sort { $fingerprint{$a} cmp $fingerprint{$b} } map { one_of(@keys) } 1 .. 1 + int rand 3;
            push @lines, "begin isolation level $level;\n";
            for my $key (@wanted)
            {
                my $savepoint = rand() < 0.3;
                push @lines, "savepoint s;\n" if $savepoint;
                push @lines, push_one($key);
                push @lines, one_of("rollback to savepoint s;\n", "release savepoint s;\n") if $savepoint;
            }
            push @lines, one_of("commit;\n", "commit;\n", "rollback;\n");
        }
    }
    return join('', @lines);
}
sub worker_script
{
    my ($name, $long) = @_;
    my @lines;
    for (1 .. $steps)
    {
        push @lines, sprintf("select stress.claim('%s', %d, '%s');\n", $name, 1 + rand 3,
            one_of('1 hour', '1 hour', '0.15 s')) if rand() < 0.6;
        my $end = "select stress.finish('$name', '" . one_of('ack', 'ack', 'fail', 'discard', 'nack',
            'cancel') . "');\n";
        $end = "select stress.ack_all('$name');\n" if rand() < 0.25;
        $end = "begin; $end" . one_of("commit;\n", "rollback;\n") if $long && rand() < 0.3;
        push @lines, $end, 'select pg_sleep(' . rand(0.02) . ");\n";
    }
    return join('', @lines);
}

# Each round is one of single calls, which must never meet in a deadlock, and one with longer transactions. Those take
# locks call by call, so there a deadlock is PostgreSQL's answer, as with any rows that are locked in two orders.
my %errors;
for my $round (1 .. 2 * $rounds)
{
    my $long = $round % 2 == 0;
    my (@running, @files);
    my $started = time;
    for my $n (1 .. $pushers + $workers)
    {
        my $file = $node->basedir . "/session_$n.sql";
        open(my $out, '>', $file) or die $!;
        print $out "\\set VERBOSITY verbose\nset client_min_messages = error;\n", $n <= $pushers ? pusher_script($long,
            $round) : worker_script("w$round-$n", $long);
        close $out;
        my $pid = fork // die $!;
        if (!$pid)
        {
            open(STDOUT, '>', '/dev/null');
            open(STDERR, '>', "$file.err");
            exec('psql', '-qAtX', '-d', $node->connstr('postgres'), '-f', $file);
        }
        push @running, $pid;
        push @files, $file;
    }
    waitpid($_, 0) for @running;
    for my $file (@files)
    {
        open(my $in, '<', "$file.err") or die $!;
        while (<$in>) {
            $errors{$long ? 'long' : 'single'}{ $1 // $_ }++ if /(?:ERROR|FATAL|PANIC): +(\w{5})|connection/;
        }
    }
    note sprintf 'round %d took %.1f s', $round, time - $started;
}
# A worker whose job was replaced hears OJ303 and the like; a session whose transaction failed hears 25P02 and 3B001.
my %expected = (single => { map { $_ => 1 } qw(OJ303 OJ302 OJ311 OJ105) },
    long => { map { $_ => 1 } qw(OJ303 OJ302 OJ311 OJ105 40001 40P01 25P02 3B001) });
for my $kind ('single', 'long')
{
    my $seen = $errors{$kind} // {};
    note "$kind: " . join(', ', map { "$_: $seen->{$_}" } sort keys %$seen);
    is_deeply([ grep { !$expected{$kind}{$_} } sort keys %$seen ], [],
        $kind eq 'single' ? 'single calls: no unique violation, no deadlock, no unexpected error'
        : 'longer transactions: no unexpected error');
}

# --- the checker ---

sub rows { return map { [ split /\|/, $_, -1 ] } split /\n/, $node->safe_psql('postgres', $_[0]) }
sub snapshot
{
    my ($text) = @_;
    my ($xmin, $xmax, $list) = split /:/, $text;
    return { xmin => $xmin, xmax => $xmax, open => { map { $_ => 1 } split /,/, $list // '' } };
}
sub sees { my ($s, $xid) = @_; return $xid < $s->{xmin} || ($xid < $s->{xmax} && !$s->{open}{$xid}) }

my (%job, @pushes, %moves, %by_row_xid);
for (rows(q{select seq, kind, key, job, coalesce(policy, '{}')::text, state, xid, before, after,
    extract(epoch from since), extract(epoch from at),
        isolation, xmin, deliveries from stress.log order by seq}))
{
    my %row;
    @row{qw(seq kind key job policy state xid before after since at isolation row_xid deliveries)} = @$_;
    if ($row{kind} eq 'move') { push @{ $moves{ $row{job} } }, \%row; next; }
    $row{before} = snapshot($row{before});
    # Above read committed, pg_current_snapshot() is that of the transaction: what came later may have been seen too.
    $row{after} = $row{isolation} eq 'read committed' ? snapshot($row{after}) : undef;
    $row{strategy} = $row{policy} =~ /"on_conflict": "(\w+)"/ ? $1 : 'reject';
    my $list = $row{policy} =~ /"states": \[(.*?)\]/ ? $1
        : '"scheduled", "available", "pending", "active", "retryable"';
    $row{states} = { map { $_ => 1 } $list =~ /"(\w+)"/g };
    $row{period} = $row{policy} =~ /"period": "PT([\d.]+)S"/ ? $1 : undef;
    push @pushes, \%row;
    push @{ $by_row_xid{ $row{row_xid} } }, \%row;
    $job{ $row{job} } = { created => \%row } if $row{kind} eq 'new';
}
my @problems;
sub problem { push @problems, join(' ', @_) }

# What the truth says: creation, lapsed leases, ends.
my ($stored, %cancelled_by) = (0);
for (rows(q{select j.id, extract(epoch from j.created_at), extract(epoch from j.scheduled_at), d.state, d.xmin, v.state
        from ojs_store.job j left join ojs_store.finished d on d.job_id = j.id left join ojs.jobs v on v.id = j.id
        where j.type ~ '^[kf][0-9]'}))
{
    my ($id, $created_at, $scheduled_at, $end, $end_xid, $state) = @$_;
    $stored++;
    my $job = $job{$id} or problem("job $id is stored, but no push says so"), next;
    @$job{qw(id created_at scheduled_at state end_xid)} = ($id, $created_at, $scheduled_at, $state, $end_xid);
    $job->{replaced} = $state eq 'cancelled' && !grep { $_->{state} eq 'cancelled' } @{ $moves{$id} // [] };
}
for (keys %job) { problem("job $_ was pushed and is lost") unless $job{$_}{id}; }
is($stored, scalar(keys %job), 'as many jobs as pushes that made one');
for (rows(q{select e.job_id, e.deliveries,
    e.xmin from ojs_store.job_history e join ojs_store.job j on j.id = e.job_id where e.kind = 3
        and j.type ~ '^[kf][0-9]'}))
{
    push @{ $moves{ $_->[0] } }, { state => 'available', deliveries => $_->[1], xid => $_->[2], seq => 1e18,
        lapse => 1 };
}

# The moves of a job in their order: by delivery, the claim first.
my %last_xid;
for my $id (keys %moves)
{
    @{ $moves{$id} } = sort { $a->{deliveries} <=> $b->{deliveries}
        || ($b->{state} eq 'active') <=> ($a->{state} eq 'active') } @{ $moves{$id} };
    $last_xid{$id} = max map { $_->{xid} } @{ $moves{$id} };
}

# The states that job J can have had when push P decided about it.
sub states_at
{
    my ($j, $p) = @_;
    my %possible;
    my $add = sub {
        my ($state, $due) = @_;
        # `due`: when a scheduled or retryable job became available by itself
        if (defined $due && $due ne '')
        {
            $possible{$state} = 1 if $p->{since} < $due;
            $possible{available} = 1 if $p->{at} >= $due;
        }
        else { $possible{$state} = 1; }
    };
    my $by = $j->{replaced_by};
    return { cancelled => 1 } if $by && $p->{kind} eq 'new' && $by->{seq} < $p->{seq};
    my $all = $moves{ $j->{id} } // [];
    # All of them were over before the push began: only the last one counts.
    my @uncertain = @$all && $last_xid{ $j->{id} } < $p->{before}{xmin} ? $all->[-1] : @$all;
    my $start = ($j->{scheduled_at} // '') ne '' && $j->{scheduled_at} > $j->{created_at} ? 'scheduled' : 'available';
    $add->($start, $start eq 'scheduled' ? $j->{scheduled_at} : undef);
    for my $move (@uncertain)
    {
        my $own = $move->{xid} == $p->{xid};
        my $sure = $own ? $move->{seq} < $p->{seq} : sees($p->{before}, $move->{xid});
        my $maybe = $own ? $sure : !$p->{after} || sees($p->{after}, $move->{xid});
        last unless $maybe;
        %possible = () if $sure;
        $add->($move->{state}, $move->{state} eq 'retryable' ? $move->{since} : undef);
    }
    if ($by)
    {
        # Who holds the key's lock has seen what the holders before it did; a look without the lock may not have.
        my $sure = $p->{kind} eq 'new' || $by->{xid} == $p->{xid} ? $by->{seq} < $p->{seq}
            : sees($p->{before}, $by->{xid});
        my $maybe = $by->{seq} < $p->{seq};
        %possible = () if $sure;
        $possible{cancelled} = 1 if $maybe;
    }
    return \%possible;
}
sub in_the_way
{
    my ($j, $p) = @_;
    my $left = defined $p->{period} ? $j->{created_at} + $p->{period} : 9e15;
    return (0, 0, {}) if $p->{kind} eq 'new' && $left <= $p->{since} - 0.001;
    my $possible = states_at($j, $p);
    my $all = !grep { !$p->{states}{$_} } keys %$possible;
    my $any = grep { $p->{states}{$_} } keys %$possible;
    return ($all && $left > $p->{at} + 0.001, $any && $left > $p->{since} - 0.001, $possible);
}

my (%of_key, %seen);
for my $p (@pushes)
{
    $seen{"$p->{kind} $p->{strategy}"}++;
    my $named = "push $p->{seq} ($p->{kind}, $p->{policy}, $p->{isolation})";
    if ($p->{kind} ne 'new')
    {
        my $j = $job{ $p->{job} };
        if (!$j || !$j->{id} || $j->{created}{key} ne $p->{key} || $j->{created}{seq} > $p->{seq}) {
            problem("$named answers with $p->{job}, which is no such job");
            next;
        }
        my (undef, $maybe, $possible) = in_the_way($j, $p);
        problem("$named was refused for $j->{id}, which was", join('/', sort keys %$possible)) unless $maybe;
        problem("$named was told $p->{state} of a job that was",
            join('/', sort keys %$possible)) if $p->{state} ne '' && !$possible->{ $p->{state} };
        next;
    }
    my $replaces = $p->{strategy} =~ /^replace/;
    for my $j (@{ $of_key{ $p->{key} } // [] })
    {
        my ($sure, $maybe, $possible) = in_the_way($j, $p);
        my $mine = 0;
        if ($replaces && $j->{replaced} && !$j->{replaced_by} && $maybe && $j->{end_xid} == $p->{row_xid})
        {
            $j->{replaced_by} = $p;
            $mine = 1;
        }
        next if $mine || !$sure;
        my $open = grep { !/^(completed|cancelled|discarded)$/ } keys %$possible;
        problem("$named was accepted beside $j->{id} of push $j->{created}{seq}, which was",
            join('/', sort keys %$possible)) if !$replaces || $open == keys %$possible;
    }
    push @{ $of_key{ $p->{key} } }, $job{ $p->{job} };
}
for my $j (values %job) {
    problem("job $j->{id} was cancelled by nobody") if $j->{id} && $j->{replaced} && !$j->{replaced_by};
}

# What the keys name: the newest job, and every open one.
my $unnamed = $node->safe_psql('postgres', q{select count(*) from (
    select id from ojs.jobs where type ~ '^[kf][0-9]' and state not in ('completed', 'cancelled', 'discarded')
    except (select job_id from ojs_store.unique_key union all select unnest(past) from ojs_store.unique_key)) unnamed});
is($unnamed, '0', 'every open job is named by its key');
is($node->safe_psql('postgres', 'select count(*) - count(distinct fingerprint) from ojs_store.unique_key'), '0',
    'one row per key');
note join(', ', map { "$_: $seen{$_}" } sort keys %seen);
is(scalar(@problems), 0, 'the outcome is one of the sequential model') or diag("seed $seed\n",
    join("\n", @problems[ 0 .. ($#problems > 19 ? 19 : $#problems) ]));
cmp_ok(scalar(@pushes), '>', 500, 'there was something to check');
is($node->safe_psql('postgres', 'select ojs_store.reconcile(interval \'0\')'), '0', 'no job is without a place');

$node->stop;
done_testing();
