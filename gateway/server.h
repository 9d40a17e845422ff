/*
 * server.h: the HTTP side of the gateway, on libmicrohttpd: one thread per connection, limits for all that a client sends.
 */
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include <microhttpd.h>

#include "database.h"

namespace gateway
{

struct Options {
    std::string listen = "127.0.0.1:8080";
    std::string database; /* empty: PGHOST and so on */
    int pool = 8;
    int connections = 1000;
    size_t max_body = 16 << 20;
    size_t max_headers = 32 << 10;
    std::chrono::seconds timeout{30}; /* of a client that is silent, of a whole request's arrival, of a call */
    std::chrono::seconds max_wait{30};
};

class Server {
public:
    explicit Server(const Options &options);
    ~Server();

    bool start(); /* false: the address is not to be had */
    std::string address() const;
    void stop(); /* takes no more connections, finishes the requests that are under way, and ends */

private:
    struct Exchange;

    static void *begin(void *server, const char *uri, MHD_Connection *connection);
    static MHD_Result receive(void *server, MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *data, size_t *size, void **exchange);
    static void end(void *server, MHD_Connection *connection, void **exchange, MHD_RequestTerminationCode code);

    MHD_Result handle(MHD_Connection *connection, Exchange &exchange);
    Answer ask(MHD_Connection *connection, const Exchange &exchange);
    MHD_Result respond(MHD_Connection *connection, const Exchange &exchange, const Answer &answer) const;

    const Options options;
    Pool pool;
    Ear ear;
    MHD_Daemon *daemon = nullptr;
    std::atomic<bool> stopping = false;
    std::mutex mutex;
    std::condition_variable all_done;
    int under_way = 0;
};

} // namespace gateway
