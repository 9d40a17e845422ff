/*
 * stream.h: events as they happen (text/event-stream). ojs.http answers with those after a cursor; the gateway asks
 * again and writes them to the same answer, until the client goes, the stream ends or the gateway does.
 */
#pragma once

#include "clients.h"
#include "database.h"
#include "waiting.h"

namespace gateway
{

/* Whether an answer is the beginning of a stream. */
bool is_stream(const Answer &answer);

/* Writes `first`, whose head is written, and what comes after it. `call` is what it was the answer to. */
void send_events(Client &client, Clients &clients, Pool &pool, WaitingRoom &room, const Call &call, Answer first);

} // namespace gateway
