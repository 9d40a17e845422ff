/*
 * subtransaction.h: a part of a call that may fail without the call failing: a subtransaction around it.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

ErrorData *attempt_call(void (*body)(void *), void *arg);

/*
 * Runs body() in a subtransaction. Returns null if it succeeded; what it did stays. Otherwise nothing of it stays, and
 * it returns the error, which the caller judges: ReThrowError() for one that it cannot answer for. Tables that the body
 * opens must be closed by it; what it allocates stays.
 */
template <typename Body>
ErrorData *
attempt(Body body)
{
    return attempt_call([](void *arg) { (*static_cast<Body *>(arg))(); }, &body);
}

/* Whether something is wrong with the session or the server, and not with what the body was about. */
bool is_of_server(const ErrorData &error);

} // namespace ojs
