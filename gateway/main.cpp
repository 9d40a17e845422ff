/*
 * main.cpp: ojs-gateway: a pipe from HTTP to ojs.http in PostgreSQL. docs/gateway.md explains it.
 */
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "server.h"

namespace
{

constexpr const char *usage =
    "ojs-gateway: serves the Open Job Spec HTTP binding out of PostgreSQL (docs/gateway.md).\n"
    "\n"
    "  --listen HOST:PORT       127.0.0.1:8080; port 0 takes a free one\n"
    "  --database CONNINFO      a connection string or URI; without it PGHOST and so on count\n"
    "  --pool N                 connections to the database: 8, and one that listens\n"
    "  --connections N          HTTP connections at a time: 1000\n"
    "  --max-body BYTES         16777216\n"
    "  --max-headers BYTES      32768, of one request\n"
    "  --timeout SECONDS        30: a silent client, the arrival of a body, a call of the database\n"
    "  --max-wait SECONDS       30: the longest wait for work (Prefer: wait=N) or for a result\n"
    "\n"
    "SIGTERM and SIGINT end it: it finishes the requests that are under way.\n";

[[noreturn]] void
wrong(const char *what)
{
    fprintf(stderr, "ojs-gateway: %s\n\n%s", what, usage);
    exit(2);
}

long
number(const char *text, long low, long high)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < low || value > high)
        wrong((std::string("not a number, or out of range: ") + text).c_str());
    return value;
}

gateway::Options
read_options(int n, char **words)
{
    gateway::Options options;
    for (int i = 1; i < n; i++) {
        std::string_view word = words[i];
        if (word == "--help") {
            fputs(usage, stdout);
            exit(0);
        }
        const char *value = words[i + 1];
        if (value == nullptr)
            wrong((std::string("unknown option, or without its value: ") + words[i]).c_str());
        i++;
        if (word == "--listen")
            options.listen = value;
        else if (word == "--database")
            options.database = value;
        else if (word == "--pool")
            options.pool = static_cast<int>(number(value, 1, 1000));
        else if (word == "--connections")
            options.connections = static_cast<int>(number(value, 1, 100000));
        else if (word == "--max-body")
            options.max_body = static_cast<size_t>(number(value, 1, 1 << 29));
        else if (word == "--max-headers")
            options.max_headers = static_cast<size_t>(number(value, 4096, 1 << 20));
        else if (word == "--timeout")
            options.timeout = std::chrono::seconds(number(value, 1, 3600));
        else if (word == "--max-wait")
            options.max_wait = std::chrono::seconds(number(value, 0, 3600));
        else
            wrong((std::string("unknown option: ") + words[i - 1]).c_str());
    }
    return options;
}

} // namespace

int
main(int n, char **words)
{
    gateway::Options options = read_options(n, words);

    /* Before any thread is there, so that all of them leave the signals to this one. */
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    signal(SIGPIPE, SIG_IGN);

    gateway::Server server(options);
    if (!server.start()) {
        fprintf(stderr, "ojs-gateway: cannot listen at %s: %s\n", options.listen.c_str(), strerror(errno));
        return 1;
    }
    printf("ojs-gateway listens at %s\n", server.address().c_str());
    fflush(stdout);

    int received;
    sigwait(&signals, &received);
    server.stop();
    return 0;
}
