/*
 * claim_window.h: claims that share out a queue's jobs (claim_jitter_ms, Q-48 to Q-50).
 *
 * The first claim of a queue opens a window; those that arrive before it closes share that window. Whoever of them
 * first finds it closed divides: it counts the jobs, holding no lock, and gives each member its quota. Each then claims
 * up to that in its own transaction, as any claim. What the members are at lives in shared memory; without it there are
 * no cohorts.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* Joins the claim window of a queue, or opens one. */
void claim_window_join(int64 queue, int max, int64 window_ms);

/* Waits for the window to close, holding no lock. Nothing: this claim has its quota. Else it is the one to divide: it
 * counts the jobs that could be claimed, up to this number, and calls claim_window_divide(). */
std::optional<int64> claim_window_wait();

/* Every member gets its part of `jobs` in proportion to its max. */
void claim_window_divide(int64 jobs);

/* What this claim may take. */
int claim_window_quota();

/* Whether nobody else gathers for this queue or has yet to claim: what this claim makes available for all, nobody
 * lacks. */
bool claim_window_is_over();

/* This claim has taken what it took, or is given up. Where it was to divide, another does. */
void claim_window_leave();

} // namespace ojs
