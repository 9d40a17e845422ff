/*
 * sender.h: sends deliveries of webhooks. The database says what is to be sent and signs it (sql/webhooks.sql); a
 * thread with one connection claims deliveries, sends them side by side, and tells what came of each. What it had when
 * it was killed, another sender gets when the lease is over.
 */
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <curl/curl.h>

#include "database.h"
#include "network.h"

namespace gateway
{

struct SenderOptions {
    size_t most = 0;              /* deliveries at a time; 0: none are sent */
    std::string role;             /* that the connection takes on; empty: its own */
    std::vector<Network> allowed; /* besides the public internet */
    std::string ca_file;          /* empty: the authorities of the system */
};

class Sender {
public:
    Sender(SenderOptions options, std::string database);
    /* Claims nothing more, and waits a little for what is under way. */
    ~Sender();

private:
    struct Transfer;
    struct Outcome {
        std::string id, json;
        Clock::time_point since;
        Clock::time_point again_at = {};     /* when it is told */
        std::chrono::milliseconds rest = {}; /* before, if it was told in vain */
    };
    struct MultiCloser {
        void operator()(CURLM *multi) const { curl_multi_cleanup(multi); }
    };

    void run();
    void work();
    void open_connection();
    size_t room() const;
    size_t claim();
    void begin(std::unique_ptr<Transfer> transfer);
    void collect();
    void report();
    void tell_of_busy();

    const SenderOptions options;
    const std::string database;
    std::unique_ptr<CURLM, MultiCloser> multi;
    Connection connection;
    std::vector<std::unique_ptr<Transfer>> transfers;
    std::vector<Outcome> outcomes; /* not yet told */
    Clock::time_point claim_at;
    bool any_letter = false; /* can be stored in the database */
    bool complained = false; /* about the database, since it last answered */
    bool told_of_busy = false;
    std::atomic<bool> stopping = false;
    std::thread thread;
};

} // namespace gateway
