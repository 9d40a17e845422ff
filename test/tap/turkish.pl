# turkish.pl: the HTTP binding in a database whose letters follow the rules of Turkish, where lower('ID') is not 'id'.
# All cases of HTTP in such a database: part_pgtap of test/run. HTTP-01.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Ojs;
use Test::More;

my $node = server('turkish', extension => 0, conf => "fsync = off\n");
my $turkish = q{locale_provider icu icu_locale 'tr-TR' locale 'C' encoding 'UTF8'};
my ($failed, undef, $why) = $node->psql('postgres', "create database tr template template0 $turkish");
if ($failed) {
    $node->stop;
    plan skip_all => "this server makes no database with the locale tr-TR of ICU: $why";
}
isnt($node->safe_psql('tr', q{select lower('ID')}), 'id', 'letters follow the rules of Turkish');
$node->safe_psql('tr', 'create extension ojs');

my $http = sub {
    my ($method, $path, $headers, $body) = @_;
    return $node->safe_psql('tr', "select status, headers ->> 'X-Request-Id',
        nullif(body, '')::jsonb #>> '{jobs,0,id}' from ojs.http('$method', '$path', '$headers', nullif('$body', ''))");
};
my $batch = '{"jobs": [{"type": "mail.send", "args": [1]}]}';
my $asked = sub {
    return $http->('POST', '/ojs/v1/jobs/batch',
        qq({"Content-Type": "$_[0]", "Idempotency-Key": "order-1", "X-Request-ID": "r1"}), $batch);
};
my $first = $asked->('application/json');
like($first, qr/^201\|r1\|./, 'a batch is pushed, and its X-Request-ID is answered HTTP-01');
is($asked->('APPLICATION/JSON'), $first, 'the same Idempotency-Key gets the same answer HTTP-01');
is($node->safe_psql('tr', 'select count(*) from ojs.jobs'), 1, 'the batch was pushed once HTTP-01');
like($http->('options', '/ojs/v1/jobs', '{}', ''), qr/^204/, 'a method may be in small letters HTTP-01');

$node->stop;
done_testing();
