/*
 * fair_look.h: what a session knows of the parts of a queue: which have jobs, of which priority, and whose turn it is.
 */
#pragma once

#include "ojs/pg/session_cache.h"
#include "ojs/queue/queue.h"

namespace ojs
{

/* A part that had jobs at the last look. */
struct FairPart {
    int64 queue;
    int64 weight; /* 0: it gave less than its share since */
    int16 npriority;
};

constexpr int max_fresh = 32;

struct FairLook {
    char name[max_queue_name + 1]; /* of the whole queue: key */
    int64 next_us;                 /* look again, by the steady clock */
    Oid role;                      /* for whom it was */
    uint64 settings;               /* of tenants, as they were */
    int64 *ids;                    /* of the whole queue and its parts, in order, whatever they are now */
    int n_ids;
    SessionCache names; /* what `ids` are of */
    uint64 heard;       /* news of parts up to here (part_news.h) */
    FairPart *parts;    /* by priority */
    int64 *upto;        /* sums of the weights of parts[first] to the one at that place */
    int room;
    int n;
    int first; /* the priority whose turn it is: parts[first] to parts[end - 1] */
    int end;
    bool summed;            /* `upto` is right */
    int64 fresh[max_fresh]; /* parts that have got jobs and had none, the oldest first */
    int n_fresh;
    int64 served;    /* the one of them that the last claim began with; 0: none */
    int out_of_turn; /* so many claims one after the other have begun with such a part */
    int64 turn;
    int64 turns; /* that `turn` is one of */
};

/* Of a whole queue. */
FairLook &look_of(std::string_view whole);

/* Learns which parts there are; one that another session has made is heard of, as other changes are. */
void renew_ids(FairLook &look);

/* Brings the look up to date: by looking, every now and then, and by what commits tell. */
void renew_look(FairLook &look);

/*
 * A part that has just got jobs and had none, or has one alone, goes first, of the next claim: so a tenant with little
 * to do does not wait for one with much. It then has turns like the others, until a look or its turn finds it empty.
 * Returns its place in `parts`; -1: none. Now and then, if there are always such parts, a claim goes by the turns
 * alone.
 */
int fresh_part(FairLook &look);

/* At the start of a claim: fresh parts whose jobs have gone, to other sessions too, have none; new ones make them fresh
 * again. */
void forget_empty(FairLook &look);

bool may_claim_part(const Queue &queue);
int32 weight_of(const Queue &queue);

} // namespace ojs
