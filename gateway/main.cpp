/*
 * main.cpp: ojs-gateway: from HTTP to ojs.http in PostgreSQL. docs/how-to/gateway.md explains it.
 */
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>

#include "options.h"

int
main(int n, char **words)
{
    gateway::Options options = gateway::read_options(n, words);

    /* Before any thread is there, so that all of them leave the signals to this one. */
    sigset_t signals;
    sigemptyset(&signals);
    for (int signal : {SIGTERM, SIGINT, SIGHUP})
        sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    signal(SIGPIPE, SIG_IGN);
    curl_global_init(CURL_GLOBAL_DEFAULT);

    try {
        gateway::Server server(options);
        server.start();
        std::optional<gateway::Sender> sender;
        if (options.webhooks.most > 0)
            sender.emplace(options.webhooks, options.database);
        printf("ojs-gateway listens at %s\n", server.address().c_str());
        fflush(stdout);

        int received;
        while (sigwait(&signals, &received) == 0 && received == SIGHUP)
            server.reload();
        sender.reset();
        if (!server.stop())
            _Exit(1); /* a thread that does not end uses the server */
    } catch (const std::runtime_error &problem) {
        gateway::complain(problem.what());
        return 1;
    } catch (const gateway::Unavailable &problem) {
        gateway::complain(problem.why);
        return 1;
    }
    return 0;
}
