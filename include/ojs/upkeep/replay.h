/*
 * replay.h: rules by which dead letters are tried again without anybody's doing (DLQ-10).
 */
#pragma once

#include "ojs/upkeep/duties.h"

namespace ojs
{

/* The setting replay_rules of a queue; raises INVALID_PAYLOAD where it is none. */
void check_replay_rules(const JsonbValue &value);

/* Retries dead letters for which a rule's delay has passed. Looks every 10 s only. A rule that fails stops no other. */
void replay_dead_letters(Pass &pass);

} // namespace ojs
