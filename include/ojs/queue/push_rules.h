/*
 * push_rules.h: what a queue's settings mean to a push.
 */
#pragma once

#include "ojs/job/envelope.h"
#include "ojs/queue/queue.h"

namespace ojs
{

/* Refuses a role that is no producer of the queue, if that exists. Asked before a push is told anything
 * about jobs that are there. */
void check_push(const Envelope &envelope);

/* For a queue with push_rules: refuses a type or a role that it does not allow, and fills in what the job leaves to the
 * queue. */
void apply_push_rules(const Queue &queue, Envelope &envelope);

} // namespace ojs
