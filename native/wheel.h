/* The hierarchical timer wheel: 4 levels, ticks of 1 ms, level k's slots are 4096^k ms wide.
 *
 * A level's ring has 8192 slots: two blocks of 4096, so that the next block can be filled ("opened") ahead of time
 * while the current one is being collected. A timer goes to the lowest level whose block for its due time is open.
 * Opening block b of level k detaches slot b of level k + 1; its timers then move down in bounded pieces (a
 * cascade). The tick never enters a block whose cascade is unfinished.
 *
 * A slot holds its timers as a chain of TimerLog records. Record j of a chain points back to record j - TW_STRANDS,
 * not j - 1: so a walk from the newest to the oldest follows TW_STRANDS pointers that do not depend on each other,
 * and their cache misses overlap. Cascading changes only a record's prev_pos; it stays where it is, so the TimerLog
 * never holds more records than the largest number of timers that were ever pending, and only tw_wheel_link can
 * run out of space.
 *
 * The state is derived: it starts empty and is filled again by linking, so nothing here cares about torn writes.
 * Every position read from memory is checked; a wrong one gives TW_WHEEL_DAMAGED. The functions never allocate,
 * never block, never call back. Integers are little-endian. */
#ifndef TICKWHEEL_WHEEL_H
#define TICKWHEEL_WHEEL_H
#include <stdint.h>

#include "store.h"

enum { TW_LEVELS = 4, TW_BLOCK_BITS = 12, TW_SLOTS = 8192, TW_STRANDS = 6, TW_CROWDS = 64, TW_WORDS = TW_SLOTS / 64 };

/* How long before its first tick a block of level k is opened. Less than a block each, so at most two are open. */
enum { TW_LEAD_0_MS = 1024, TW_LEAD_1_MS = 60 * 1000, TW_LEAD_2_MS = 60 * 60 * 1000 };

#define TW_WHEEL_NEVER INT64_MAX
#define TW_WHEEL_LAST_DUE_MS (((int64_t)4096 << 36) - 1) /* in the year 10889 */

enum {
    TW_WHEEL_DAMAGED = -1,  /* a chain, count or slot number contradicts another: rebuild the wheel */
    TW_WHEEL_BAD_TIME = -2, /* a due time after TW_WHEEL_LAST_DUE_MS; nothing was linked */
};

/* One pending timer. Positions are index + 1; 0 is none. owner 0: a scheduled message (ref: its id, epoch: its
 * version); owner g > 0: a lease of group g (ref: sequence in the topic, epoch: of the lease). */
typedef struct {
    int64_t  due_ms;
    uint64_t ref;
    uint64_t prev_pos;
    uint32_t epoch;
    uint32_t owner;
} tw_timer;

/* A slot, a cascade, a crowd or the free list. Record j (0 is the oldest) is reached through heads[j % TW_STRANDS];
 * heads of strands that have no record yet are undefined. */
typedef struct {
    int64_t  number; /* absolute slot number: due_ms >> (12 * level) */
    uint64_t count;
    uint64_t heads[TW_STRANDS];
} tw_chain;

typedef struct {
    char     magic[8]; /* "TWWHEEL1" */
    uint32_t version;
    uint32_t crowds; /* used entries of crowd[] */
    int64_t  tick;   /* everything due up to here has left the slots */
    int64_t  open[TW_LEVELS - 1];
    uint64_t pending; /* in slots, cascades and crowds */
    uint64_t level_timers[TW_LEVELS];
    uint64_t tail; /* records of the TimerLog that were ever used */
    uint64_t relinks;
    uint64_t reserved0[3];
    tw_chain free_list;
    tw_chain cascade[TW_LEVELS - 1]; /* into level k; number: the block of level k */
    tw_chain crowd[TW_CROWDS];       /* number: the tick */
    uint64_t summary[TW_LEVELS][TW_WORDS / 64];
    uint64_t occupied[TW_LEVELS][TW_WORDS];
    uint64_t reserved1[456];
    tw_chain slots[TW_LEVELS][TW_SLOTS];
} tw_wheel;

/* Where tw_wheel_turn writes: four arrays of `capacity` items. */
typedef struct {
    int64_t  *due_ms;
    uint64_t *ref;
    uint32_t *epoch;
    uint32_t *owner;
    uint64_t  capacity;
} tw_timers;

/* Makes an empty wheel. `wheel` must be zeroed memory. */
void tw_wheel_init(tw_wheel *wheel, int64_t tick);

/* How many more timers the log has room for. */
uint64_t tw_wheel_room(const tw_wheel *wheel, uint64_t log_capacity);

/* Links timers; a due time of the past becomes tick + 1. Returns how many: fewer than `count` when the log (of
 * log_capacity records) is full. */
int64_t tw_wheel_link(tw_wheel *wheel, tw_timer *log, uint64_t log_capacity, const int64_t *due_ms,
                      const uint64_t *ref, const uint32_t *epoch, const uint32_t *owner, uint64_t count);

/* Moves the tick towards `target` and collects what becomes due into `out`, ordered by due, owner, ref, epoch.
 * Returns how many. Spends at most `budget` re-links on cascades: first on those that hold the tick up, then on
 * those that run ahead. A slot with more than crowd_limit timers (or more than out->capacity) is set aside as a
 * crowd, for tw_wheel_walk. *more: there is work left that does not have to wait for time to pass.
 * With out->capacity == 0 it only moves the tick as far as nothing is due. */
int64_t tw_wheel_turn(tw_wheel *wheel, tw_timer *log, int64_t target, const tw_timers *out, uint64_t budget,
                      uint64_t crowd_limit, int32_t *more);

/* Takes up to `limit` timers out of crowd `index`, newest first, and writes timer j to item j of the three arrays
 * (which must have room for the crowd's count at its start). Returns how many; a crowd that is empty then leaves
 * the table, and those behind it move up. */
int64_t tw_wheel_walk(tw_wheel *wheel, tw_timer *log, uint32_t index, uint64_t *ref, uint32_t *epoch,
                      uint32_t *owner, uint64_t limit);

/* The earliest tick at which tw_wheel_turn has something to do: the tick itself when a cascade or a crowd is
 * unfinished, TW_WHEEL_NEVER when the wheel is empty. */
int64_t tw_wheel_next_event(const tw_wheel *wheel);

/* ---- forecast.c ---- */
/* Messages first .. first + count that were counted already: each counts once, and later ones do not. */
typedef struct {
    uint64_t *bits;
    uint64_t  first;
    uint64_t  count;
} tw_seen;

/* Counts n records of a TimerLog by when they are due: at until_ms[0] or before, after that at until_ms[1] or before, and
 * so on (ascending), or later than all. `counts` grows: horizons + 1 numbers for messages that become due, as many for
 * leases and waits that end, and as many for timers whose message is gone or has another timer. `tick`: the wheel's. */
void tw_forecast(const tw_store *store, const tw_timer *timers, uint64_t n, int64_t tick, const int64_t *until_ms,
                 uint64_t horizons, const tw_seen *seen, uint64_t *counts);
#endif
