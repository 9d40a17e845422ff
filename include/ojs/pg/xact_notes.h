/*
 * xact_notes.h: what the running transaction will tell others once it has committed, as a stack: the notes of inner
 * subtransactions lie above those of outer ones. A subtransaction that ends hands its notes to its parent, one that is
 * rolled back takes them away.
 *
 * A Note has a `level` (the depth of its subtransaction), and three functions: same(), whether another one is about the
 * same thing; before(), an order in which such ones are neighbours; add(), which takes another one in.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

template <typename Note> struct Notes {
    static constexpr int look_back = 8; /* so far a new note looks for one to be added to */
    static constexpr int first_room = 8;

    Note *all; /* in TopTransactionContext */
    int n;
    int room;

    /* Returns the note that it has become or been added to; good until the next one. */
    Note &add(const Note &note)
    {
        for (int i = n - 1; i >= 0 && i >= n - look_back && all[i].level == note.level; i--)
            if (all[i].same(note)) {
                all[i].add(note);
                return all[i];
            }
        make_room();
        return all[n++] = note;
    }

    /* The subtransaction at `level` has ended. Its notes are added to those of its parent, or else a loop of savepoints
     * would pile them up. */
    void hand_up(int level)
    {
        int from = n;
        while (from > 0 && all[from - 1].level >= level)
            from--;
        int end = n;
        n = from;
        for (int i = from; i < end; i++) {
            Note note = all[i];
            note.level = level - 1;
            (void)add(note); /* never more than there were, so nothing moves away under us */
        }
    }

    void drop(int level)
    {
        while (n > 0 && all[n - 1].level >= level)
            n--;
    }

    /* The memory has gone with the transaction. */
    void forget()
    {
        all = nullptr;
        n = room = 0;
    }

    /* Down to one note for each thing and level. */
    void merge()
    {
        if (n < 2)
            return;
        std::sort(all, all + n,
                  [](const Note &a, const Note &b) { return a.level != b.level ? a.level < b.level : a.before(b); });
        int kept = 0;
        for (int i = 1; i < n; i++) {
            if (all[kept].level == all[i].level && all[kept].same(all[i]))
                all[kept].add(all[i]);
            else
                all[++kept] = all[i];
        }
        n = kept + 1;
    }

private:
    void make_room()
    {
        if (n < room)
            return;
        merge();
        if (room > 0 && n <= room / 2)
            return;
        int wider = room > 0 ? room * 2 : first_room;
        auto *array = static_cast<Note *>(MemoryContextAllocHuge(TopTransactionContext, sizeof(Note) * wider));
        if (n > 0)
            memcpy(static_cast<void *>(array), all, sizeof(Note) * n);
        if (all != nullptr)
            pfree(all);
        all = array;
        room = wider;
    }
};

} // namespace ojs
