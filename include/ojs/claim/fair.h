/*
 * fair.h: claims of all tenants' parts of a queue, "QUEUE@*", in turns by the weights of the tenants (FS-03).
 *
 * Which parts have jobs is looked up every now and then, and remembered by the session. A claim of k jobs takes from at
 * most k of them, those whose turn it is (shares.h says how turns go); a part that is found empty is left out until the
 * next look, and its share goes to others. A claim that comes short looks at once. The jobs of a higher
 * priority come first; turns are within a priority.
 *
 * As with other shares nothing is stored: what dies with a session is a number that another session draws anew.
 */
#pragma once

#include "ojs/claim/walk.h"

namespace ojs
{

/* Whether the name asks for all parts of a queue. */
bool names_all_parts(std::string_view name);

/* The request for such a claim: it has no queues yet. Raises where the caller may not claim so, or where there is no
 * such queue. */
Request fair_request(std::string_view name, text *worker, int max, Interval *lease, bool missing_ok);

/* Takes jobs of the parts whose turn it is; `from_start`: of all that the request has. */
void walk_fairly(Walk &walk, bool from_start);

/* The queues that a claim which finds too few jobs is about: all parts, too; awaited_ids() adds those that do not exist
 * yet, by the ids that a first push gives them. Of very many only some are told of by NOTIFY. */
QueueIds all_queue_ids(Request &request);
QueueIds awaited_ids(Request &request);
QueueIds notified_ids(Request &request);

} // namespace ojs
