/*
 * stream.h: events as they happen (text/event-stream). ojs.http answers with those after a cursor; the gateway asks
 * again and writes them to the same answer, until the client goes, the stream ends or the gateway does.
 */
#pragma once

#include <functional>

#include "clients.h"
#include "database.h"
#include "http.h"
#include "waiting.h"

namespace gateway
{

bool asks_for_stream(const Request &request);

/* Whether an answer is the beginning of a stream. */
bool is_stream(const Answer &answer);

/*
 * Writes `answer`, whose head is written, and those after it, which take its place. `call` is what it answers. `check`
 * throws a Refusal once the client may no longer ask as `call.role`; the stream ends then.
 */
void send_events(Client &client, Clients &clients, Pool &pool, WaitingRoom &room, const Call &call, Answer &answer,
                 const std::function<void()> &check);

/* Gives back the jobs that the connection was leased up to `last`, and that are held still; else their leases end. */
void release_jobs(Pool &pool, const Call &call, const Answer &last);

} // namespace gateway
