/*
 * server.h: the gateway: takes connections, one thread each, and answers their requests with what ojs.http says.
 */
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "clients.h"
#include "database.h"
#include "duties.h"
#include "http.h"
#include "identity.h"
#include "log.h"
#include "pages.h"
#include "probes.h"
#include "sender.h"
#include "waiting.h"

namespace gateway
{

struct Options {
    std::string listen = "127.0.0.1:8080";
    std::string database; /* empty: PGHOST and so on */
    int pool = 8;
    size_t connections = 1000;
    std::optional<size_t> per_address;
    size_t max_body = 2 << 20;
    size_t max_bodies = 64 << 20;
    size_t max_headers = 32 << 10;
    std::chrono::seconds timeout{30};
    std::chrono::seconds max_wait{30};
    bool behind_proxy = false;
    std::vector<std::string> hosts;
    unsigned duties = admin;
    IdentityOptions identity;
    std::string access_log;
    std::string ui; /* a folder of pages; empty: none */
    SenderOptions webhooks;
};

class Server {
public:
    /* Listens from then on. Throws std::runtime_error. */
    explicit Server(Options options);

    const std::string &address() const { return listener.address; }
    void start();
    /* Takes no more connections and finishes the requests that are under way. Returns false if one did not end. */
    bool stop();
    /* Reads the secrets again, and opens the access log anew. */
    void reload();

private:
    struct Exchange;

    void accept_clients();
    void serve(Client &client);
    bool serve_request(Client &client, RequestReader &reader);
    void answer(Client &client, RequestReader &reader, Exchange &exchange);
    void admit(const Client &client, const RequestReader &reader, Exchange &exchange) const;
    void check_role(const Client &client, const Exchange &exchange) const;
    void read_body(Client &client, RequestReader &reader, Exchange &exchange);
    Call call_of(const Exchange &exchange) const;
    Answer ask(const Client &client, const Exchange &exchange);
    bool respond(Client &client, Exchange &exchange);
    void end_stream(Exchange &exchange);
    void write_log(const Client &client, const Exchange &exchange);

    const Options options;
    Identity identity;
    const Listener listener;
    const std::vector<std::string> hosts;
    const Pages pages;
    AccessLog log;
    Clients clients;
    Pool pool;
    Probes probes;
    WaitingRoom room;
    Ear ear;
    std::atomic<size_t> streams = 0;
    std::atomic<bool> stopping = false;
    std::thread acceptor;
};

} // namespace gateway
