# PgBouncer in transaction mode, with two connections to the server: what goes through it, and what work sessions do.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';
plan skip_all => 'pgbouncer is not installed' unless $pgbouncer;

my $node = server('pooled', preload => 1);
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $folder = PostgreSQL::Test::Utils::tempdir();
my $host = $node->host;
append_to_file("$folder/pgbouncer.ini", <<"END");
[databases]
postgres = host=$host port=${\$node->port} user=${\$node->safe_psql('postgres', 'select current_user')} pool_size=2
one = host=$host port=${\$node->port} user=${\$node->safe_psql('postgres',
    'select current_user')} dbname=postgres pool_size=1
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = any
pool_mode = transaction
logfile = $folder/log
ignore_startup_parameters = extra_float_digits
END
my $pooler = IPC::Run::start([$pgbouncer, "$folder/pgbouncer.ini"], '>', "$folder/out", '2>&1');
END { $pooler->signal('TERM') && $pooler->finish if $pooler }

# What psql prints, with what it is told as an application, and errors with the reason that their detail gives.
sub pooled {
    my ($application, $sql, $database) = @_;
    my ($out, $err) = ('', '');
    # A psql that reaches no server ends before it has read what it is to run, and IPC::Run dies of that.
    eval {
        IPC::Run::run(['psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d',
            "host=127.0.0.1 port=$port dbname=" . ($database // 'postgres') . " application_name=$application"],
            '<', \$sql, '>', \$out, '2>', \$err);
    };
    $out .= $1 if $err =~ /"reason": ?"(\w+)"/;
    return $out =~ s/\n+$//r;
}

my $until = time + $PostgreSQL::Test::Utils::timeout_default;
select(undef, undef, undef, 0.05) while pooled('probe', 'select 1') ne '1' && time < $until;

# What works ----------------------------------------------------------------------------------------------------------

like(pooled('app', q{select id from ojs.push('a.b', queue => 'plain')}), qr/^[0-9a-f-]{36}$/, 'a push goes through');
is(pooled('app', q{begin; select count(*) from ojs.push('a.b', queue => 'plain'); rollback;}), '1',
    'and is rolled back with its transaction');
is(pooled('worker', q{select count(*) from ojs.claim('plain', 'w')}), '1', 'a claim does, of what was committed');
is(pooled('worker',
    q{select extended = 1 from (select cardinality(extended) as extended from ojs.beat('w',
    array(select job_id from ojs.leases)))  b}), 't', 'a beat from another session keeps the job');
is(pooled('worker', q{select state from ojs.leases l, ojs.ack(l.job_id, worker => 'w')}), 'completed',
    'and an ack ends it');
my $out = '';
my $waiting = IPC::Run::start(['psql', '-XAtq', '-d', "host=127.0.0.1 port=$port dbname=postgres",
    '-c', q{select count(*) from ojs.claim('soon', 'w', wait => '30 s', missing_ok => true)}], '>', \$out);
awaits($node, q{select exists (select from pg_stat_activity where query like '%soon%' and state = 'active'
    and pid <> pg_backend_pid())}, 'a claim waits, and has a connection of the pool meanwhile');
is(pooled('app', q{select count(*) from ojs.push('a.b', queue => 'soon')}), '1', 'a push through the other');
$waiting->finish;
is($out, "1\n", 'wakes it');
is(pooled('app', q{begin; set local ojs.default_lease = '7 s'; select current_setting('ojs.default_lease'); commit;}),
    '7s', 'a setting for a transaction');
is(pooled('app', q{select current_setting('ojs.default_lease')}, 'postgres'), '30s', 'is gone after it');

# Work sessions: one connection to the server, so each client comes to the same session -----------------------------

$node->safe_psql('postgres', q{select ojs.push('a.b', queue => 'work') from generate_series(1, 4)});
is(pooled('first', q{select ojs.work_open('work', 'w1', 2); select count(*) from ojs.work_next();}, 'one'), "\n2",
    'a client opens a work session, has two jobs, and goes');
is(pooled('second', q{select count(*) from ojs.work_next()}, 'one'), 'other_client',
    'another program that comes to the session is refused');
is(pooled('first', q{select count(*) from ojs.work_next('0', 'w2')}, 'one'), 'other_client',
    'and another worker of the same program, if it says who it is');
is(pooled('second', q{select ojs.work_close()}, 'one'), 'other_client', 'it cannot close it either');
is($node->safe_psql('postgres', q{select count(*) from ojs.leases where worker = 'w1'}), '2',
    'the jobs are still those of the first');
is(pooled('second', q{select ojs.work_open('work', 'w2', 2); select count(*) from ojs.work_next(worker => 'w2');},
    'one'), "\n2", 'but it may open one of its own there');
is(pooled('second', q{select count(*) from ojs.work_next(worker => 'w2'); select ojs.work_close();}, 'one'), '0',
    'and close that');
is($node->safe_psql('postgres', q{select string_agg(worker, ' ') from ojs.leases where worker in ('w1', 'w2')}),
    'w1 w1', 'its jobs are given back, those of the first client stay until their leases run out');
is(pooled('second', q{select count(*) from ojs.work_next()}, 'one'), 'no_work_session', 'then there is none');

done_testing();
