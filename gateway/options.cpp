/*
 * options.cpp: see options.h.
 */
#include "options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <stdexcept>

namespace gateway
{

namespace
{

constexpr const char *usage =
    "ojs-gateway: serves the Open Job Spec HTTP binding out of PostgreSQL (docs/how-to/gateway.md).\n"
    "\n"
    "  --listen WHERE           HOST:PORT or unix:PATH; 127.0.0.1:8080; port 0 takes a free one\n"
    "  --host NAME              a name that requests may give as Host; may be repeated; any without it, but at a\n"
    "                           loopback address localhost, 127.0.0.1 and ::1\n"
    "  --behind-proxy           a proxy in front sees to who may reach this: allows addresses beyond loopback\n"
    "  --database CONNINFO      a connection string or URI; without it PGHOST and so on count\n"
    "  --pool N                 connections to the database: 8, one for /ready and /health, and one that listens\n"
    "  --allow DUTIES           produce, work, observe, admin, with commas between: admin, which is everything\n"
    "\n"
    "  --token-file FILE        requests must bear one of the tokens: a line each, with a role or without\n"
    "  --jwt-key FILE           or a JSON Web Token: a public RSA key in PEM (RS256), or a secret (HS256)\n"
    "  --jwt-audience NAME      that it must be for\n"
    "  --jwt-role-claim NAME    which names the role: role\n"
    "  --role-header NAME       the header in which a proxy on this machine names the role\n"
    "  --roles A,B              the roles of PostgreSQL that requests may be served as\n"
    "\n"
    "  --connections N          HTTP connections at a time: 1000\n"
    "  --per-address N          of them, of one address: a tenth beyond loopback, else any number (0)\n"
    "  --max-body BYTES         2097152\n"
    "  --max-bodies BYTES       67108864, bodies and answers of all requests together\n"
    "  --max-headers BYTES      32768, of one request\n"
    "  --timeout SECONDS        30: a silent client, the arrival of a body, a call of the database\n"
    "  --max-wait SECONDS       30: the longest wait for work (Prefer: wait=N) or for a result\n"
    "  --access-log FILE        a JSON object for each request; - is standard output\n"
    "  --ui DIR                 serves the files of this folder, the official admin UI as it was built, under "
    "/ojs/admin/\n"
    "\n"
    "  --webhooks N             sends deliveries of webhooks, N at a time: 0, which is none\n"
    "  --webhook-role ROLE      the role of PostgreSQL that may claim them; without it that of the connection\n"
    "  --webhook-allow A,B      networks that they may go to besides the public internet, such as 10.1.0.0/16\n"
    "  --webhook-ca FILE        certificates of authorities, in place of the system's\n"
    "\n"
    "SIGTERM and SIGINT end it: it finishes the requests that are under way. SIGHUP opens the access log anew.\n";

[[noreturn]] void
wrong(const std::string &what)
{
    fprintf(stderr, "ojs-gateway: %s\n\n%s", what.c_str(), usage);
    exit(2);
}

/* A number in that range. */
size_t
number(std::string_view text, size_t low, size_t high)
{
    size_t value = 0;
    auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc() || end != text.data() + text.size() || value < low || value > high)
        wrong("not a number, or out of range: " + std::string(text));
    return value;
}

std::vector<std::string>
list(std::string_view text)
{
    std::vector<std::string> names;
    while (!text.empty()) {
        std::string_view name = text.substr(0, text.find(','));
        text.remove_prefix(std::min(name.size() + 1, text.size()));
        if (!name.empty())
            names.emplace_back(name);
    }
    return names;
}

void
set(Options &options, std::string_view word, const std::string &value)
{
    IdentityOptions &identity = options.identity;
    if (word == "--listen")
        options.listen = value;
    else if (word == "--host")
        options.hosts.push_back(value);
    else if (word == "--database")
        options.database = value;
    else if (word == "--pool")
        options.pool = static_cast<int>(number(value, 1, 1000));
    else if (word == "--allow")
        options.duties = read_duties(value);
    else if (word == "--token-file")
        identity.token_file = value;
    else if (word == "--jwt-key")
        identity.jwt_key = value;
    else if (word == "--jwt-audience")
        identity.jwt_audience = value;
    else if (word == "--jwt-role-claim")
        identity.jwt_role_claim = value;
    else if (word == "--role-header")
        identity.role_header = value;
    else if (word == "--roles")
        identity.roles = list(value);
    else if (word == "--connections")
        options.connections = number(value, 1, 100000);
    else if (word == "--per-address")
        options.per_address = number(value, 0, 100000);
    else if (word == "--max-body")
        options.max_body = number(value, 1, 1 << 29);
    else if (word == "--max-bodies")
        options.max_bodies = number(value, 1, size_t{1} << 40);
    else if (word == "--max-headers")
        options.max_headers = number(value, 4096, 1 << 20);
    else if (word == "--timeout")
        options.timeout = std::chrono::seconds(number(value, 1, 3600));
    else if (word == "--max-wait")
        options.max_wait = std::chrono::seconds(number(value, 0, 3600));
    else if (word == "--access-log")
        options.access_log = value;
    else if (word == "--ui")
        options.ui = value;
    else if (word == "--webhooks")
        options.webhooks.most = number(value, 0, 1000);
    else if (word == "--webhook-role")
        options.webhooks.role = value;
    else if (word == "--webhook-allow")
        std::ranges::transform(list(value), std::back_inserter(options.webhooks.allowed), read_network);
    else if (word == "--webhook-ca")
        options.webhooks.ca_file = value;
    else
        wrong("unknown option: " + std::string(word));
}

void
check(const Options &options)
{
    const IdentityOptions &identity = options.identity;
    if ((!identity.jwt_key.empty() || !identity.role_header.empty()) && identity.roles.empty())
        wrong("--jwt-key and --role-header let requests choose a role: name those that they may with --roles");
    if (!identity.jwt_key.empty() && !identity.role_header.empty())
        wrong("the role comes from the token or from the header: --jwt-key and --role-header exclude each other");
    if (options.max_bodies < options.max_body)
        wrong("--max-bodies must be --max-body at least");
}

} // namespace

Options
read_options(int n, char **words)
{
    Options options;
    try {
        for (int i = 1; i < n; i++) {
            std::string_view word = words[i];
            if (word == "--help") {
                fputs(usage, stdout);
                exit(0);
            }
            if (word == "--behind-proxy") {
                options.behind_proxy = true;
                continue;
            }
            if (words[i + 1] == nullptr)
                wrong("unknown option, or without its value: " + std::string(word));
            set(options, word, words[++i]);
        }
        check(options);
    } catch (const std::runtime_error &problem) {
        wrong(problem.what());
    }
    return options;
}

} // namespace gateway
