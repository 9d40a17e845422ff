/*
 * replay.h: rules by which dead letters are tried again without anybody's doing (DLQ-10).
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* The setting replay_rules of a queue; raises INVALID_PAYLOAD where it is none. */
void check_replay_rules(const JsonbValue &value);

/* Retries at most `limit` dead letters for which a rule's delay has passed; how many. Looks every 10 s only. */
int replay_dead_letters(int limit, TimestampTz now);

} // namespace ojs
