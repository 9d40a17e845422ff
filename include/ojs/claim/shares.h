/*
 * shares.h: how a claim of several queues is divided among them by weights (FS-01); round-robin has equal ones.
 *
 * Nothing is kept of a queue. A claim of k jobs gives a queue of weight w out of W k * w / W jobs, down or up to a
 * whole number. Which of the queues get the number above follows from the turn, a number below W that each session
 * keeps for each set of queues: it begins by chance, and passes all its values in W claims. So in W claims of k jobs
 * each queue has its exact part, and any one claim of any session has it on average. What dies with a session is a
 * number that another session draws anew.
 */
#pragma once

#include "ojs/claim/scan.h"

namespace ojs
{

constexpr int32 most_weight = 1000000;
constexpr int most_shared = 1000; /* queues */

/* The weights of the queues by a strategy, or null where they are served strictly one after the other. Raises on bad
 * parameters. */
int32 *weights_by(const text *strategy, const Jsonb *weights, const std::string_view *queues, int n);

/* The queues of a claim that may still have jobs for it. */
struct Shares {
    int n;
    int *queue; /* position in the request */
    int64 *weight;
    int *part; /* as share_out() says; who takes less sets the weight to 0 */
};

Shares shares_of(const Request &request);

/* Divides so many jobs among the queues that are left. Returns false if none is. */
bool share_out(Shares &shares, const Request &request, int jobs);

/* How far apart turns of claims of so many jobs lie that follow each other, of n queues with so many turns in all. Of
 * equal queues the next claim goes on behind those that the last one took from; else values that follow each other lie
 * far apart, so that a weight of 3 is served in three places of a cycle. */
int64 step_of(int64 turns, int n, int jobs);

/* Takes jobs of all queues of the claim by their weights. */
void walk_by_weight(struct Walk &walk, bool from_start);

/* The order of `n` jobs which are sorted by queue: each queue's next job when its turn comes by its weight. */
void take_turns(struct ClaimedJob *taken, int n, const int32 *weights);

} // namespace ojs
