#include "wheel.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

static_assert(sizeof(tw_timer) == 32, "a TimerLog record has 32 bytes");
static_assert(sizeof(tw_chain) == 64, "a slot fills one cache line");
static_assert(offsetof(tw_wheel, slots) == 12288, "slots begin on a page");
static_assert(sizeof(tw_wheel) == 12288 + TW_LEVELS * TW_SLOTS * 64, "no hidden padding");

enum { SLOT_MASK = TW_SLOTS - 1, OPEN_LEVELS = TW_LEVELS - 1 };

/* The due time of a record on the free list, so that a wrong pointer to it, or from it, is noticed. */
static const int64_t FREE = -1;

static const int64_t lead_ms[OPEN_LEVELS] = {TW_LEAD_0_MS, TW_LEAD_1_MS, TW_LEAD_2_MS};

static inline int slot_shift(int level) { return TW_BLOCK_BITS * level; }
static inline int block_shift(int level) { return TW_BLOCK_BITS * (level + 1); }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

void tw_wheel_init(tw_wheel *wheel, int64_t tick) {
    memcpy(wheel->magic, "TWWHEEL1", 8);
    wheel->version = 1;
    wheel->tick = tick;
    for (int k = 0; k < OPEN_LEVELS; k++) wheel->open[k] = (tick + lead_ms[k]) >> block_shift(k);
}

/* ---- chains ---------------------------------------------------------------------------------------------------- */

static inline void chain_push(tw_chain *chain, tw_timer *log, uint64_t position) {
    uint64_t *head = &chain->heads[chain->count % TW_STRANDS];
    log[position - 1].prev_pos = chain->count >= TW_STRANDS ? *head : 0;
    *head = position;
    chain->count++;
}

/* Takes the newest record off a chain that is not empty. 0: the chain is damaged. */
static inline uint64_t chain_pop(tw_chain *chain, const tw_timer *log, uint64_t tail) {
    uint64_t  j = chain->count - 1;
    uint64_t *head = &chain->heads[j % TW_STRANDS];
    uint64_t  position = *head;
    if (position - 1 >= tail) return 0;
    uint64_t previous = log[position - 1].prev_pos;
    if (j >= TW_STRANDS) {
        if (previous - 1 >= tail) return 0;
        __builtin_prefetch(&log[previous - 1], 1);
        *head = previous;
    } else if (previous != 0) {
        return 0;
    }
    chain->count = j;
    return position;
}

static void prefetch_heads(const tw_chain *chain, const tw_timer *log, uint64_t tail) {
    uint64_t strands = chain->count < TW_STRANDS ? chain->count : TW_STRANDS;
    for (uint64_t i = 0; i < strands; i++)
        if (chain->heads[i] - 1 < tail) __builtin_prefetch(&log[chain->heads[i] - 1], 1);
}

/* ---- slots ----------------------------------------------------------------------------------------------------- */

static inline void mark_occupied(tw_wheel *wheel, int level, uint32_t index) {
    wheel->occupied[level][index >> 6] |= 1ull << (index & 63);
    wheel->summary[level][index >> 12] |= 1ull << ((index >> 6) & 63);
}

static inline void mark_empty(tw_wheel *wheel, int level, uint32_t index) {
    uint64_t *word = &wheel->occupied[level][index >> 6];
    *word &= ~(1ull << (index & 63));
    if (*word == 0) wheel->summary[level][index >> 12] &= ~(1ull << ((index >> 6) & 63));
}

/* The number of the first occupied slot at or after `from`, going once round the ring. */
static int64_t next_occupied(const tw_wheel *wheel, int level, int64_t from) {
    uint32_t        start = (uint32_t)(from & SLOT_MASK), word = start >> 6, half = word >> 6;
    const uint64_t *words = wheel->occupied[level], *halves = wheel->summary[level];
    uint64_t        bits = words[word] & (~0ull << (start & 63));
    if (bits == 0) {
        /* Shifted twice: a shift by 64 is undefined. */
        uint64_t later = halves[half] & (~0ull << (word & 63) << 1);
        if (later == 0) {
            half ^= 1;
            later = halves[half];
        }
        if (later == 0) {
            half ^= 1;
            later = halves[half];
        }
        if (later == 0) return TW_WHEEL_NEVER;
        word = half * 64 + (uint32_t)__builtin_ctzll(later);
        bits = words[word];
        if (bits == 0) return TW_WHEEL_NEVER;
    }
    return wheel->slots[level][word * 64 + (uint32_t)__builtin_ctzll(bits)].number;
}

/* Empties a slot into `into`. */
static void detach(tw_wheel *wheel, int level, int64_t number, tw_chain *into) {
    uint32_t  index = (uint32_t)(number & SLOT_MASK);
    tw_chain *slot = &wheel->slots[level][index];
    *into = *slot;
    slot->count = 0;
    mark_empty(wheel, level, index);
    wheel->level_timers[level] -= into->count;
}

static inline int level_of(const tw_wheel *wheel, int64_t due_ms) {
    for (int k = 0; k < OPEN_LEVELS; k++)
        if (due_ms >> block_shift(k) <= wheel->open[k]) return k;
    return OPEN_LEVELS;
}

static inline int put(tw_wheel *wheel, tw_timer *log, uint64_t position, int64_t due_ms) {
    int       level = level_of(wheel, due_ms);
    int64_t   number = due_ms >> slot_shift(level);
    uint32_t  index = (uint32_t)(number & SLOT_MASK);
    tw_chain *slot = &wheel->slots[level][index];
    if (slot->count == 0) {
        slot->number = number;
        mark_occupied(wheel, level, index);
    } else if (slot->number != number) {
        return TW_WHEEL_DAMAGED;
    }
    chain_push(slot, log, position);
    wheel->level_timers[level]++;
    return 0;
}

/* ---- linking --------------------------------------------------------------------------------------------------- */

uint64_t tw_wheel_room(const tw_wheel *wheel, uint64_t log_capacity) {
    return wheel->free_list.count + (log_capacity - wheel->tail);
}

/* A record that nothing refers to, or 0: the free list is damaged. */
static inline uint64_t take_free(tw_wheel *wheel, tw_timer *log) {
    if (wheel->free_list.count == 0) return ++wheel->tail;
    uint64_t position = chain_pop(&wheel->free_list, log, wheel->tail);
    return position != 0 && log[position - 1].due_ms == FREE ? position : 0;
}

static inline void free_record(tw_wheel *wheel, tw_timer *log, uint64_t position) {
    log[position - 1].due_ms = FREE;
    chain_push(&wheel->free_list, log, position);
}

int64_t tw_wheel_link(tw_wheel *wheel, tw_timer *log, uint64_t log_capacity, const int64_t *due_ms,
                      const uint64_t *ref, const uint32_t *epoch, const uint32_t *owner, uint64_t count) {
    int64_t last = 0;
    for (uint64_t i = 0; i < count; i++) last = due_ms[i] > last ? due_ms[i] : last;
    if (last > TW_WHEEL_LAST_DUE_MS) return TW_WHEEL_BAD_TIME;
    if (wheel->pending == 0) {
        /* Nothing refers to the log: write it from its start again, in order. */
        wheel->tail = 0;
        wheel->free_list.count = 0;
    }
    uint64_t room = tw_wheel_room(wheel, log_capacity);
    if (count > room) count = room;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t position = take_free(wheel, log);
        if (position == 0) return TW_WHEEL_DAMAGED;
        tw_timer *timer = &log[position - 1];
        int64_t   due = due_ms[i] > wheel->tick ? due_ms[i] : wheel->tick + 1;
        timer->due_ms = due;
        timer->ref = ref[i];
        timer->epoch = epoch[i];
        timer->owner = owner[i];
        if (put(wheel, log, position, due) != 0) return TW_WHEEL_DAMAGED;
        wheel->pending++;
    }
    return (int64_t)count;
}

/* ---- order inside a slot --------------------------------------------------------------------------------------- */

static inline int comes_before(uint32_t owner_a, uint64_t ref_a, uint32_t epoch_a, uint32_t owner_b, uint64_t ref_b,
                               uint32_t epoch_b) {
    if (owner_a != owner_b) return owner_a < owner_b;
    if (ref_a != ref_b) return ref_a < ref_b;
    return epoch_a < epoch_b;
}

static int is_sorted(const uint64_t *ref, const uint32_t *epoch, const uint32_t *owner, uint64_t count) {
    for (uint64_t i = 1; i < count; i++)
        if (comes_before(owner[i], ref[i], epoch[i], owner[i - 1], ref[i - 1], epoch[i - 1])) return 0;
    return 1;
}

static void reverse(uint64_t *ref, uint32_t *epoch, uint32_t *owner, uint64_t count) {
    for (uint64_t i = 0, j = count - 1; i < j; i++, j--) {
        uint64_t r = ref[i];
        uint32_t e = epoch[i], o = owner[i];
        ref[i] = ref[j], epoch[i] = epoch[j], owner[i] = owner[j];
        ref[j] = r, epoch[j] = e, owner[j] = o;
    }
}

/* A slot is already in order, or a cascade has turned it round, or both kinds are mixed: then Shell's sort, which
 * needs no memory. Slots beyond crowd_limit never come here. */
static void sort_slot(uint64_t *ref, uint32_t *epoch, uint32_t *owner, uint64_t count) {
    static const uint64_t gaps[] = {29524, 13122, 5832, 2592, 1152, 512, 228, 102, 45, 20, 9, 4, 1};
    if (is_sorted(ref, epoch, owner, count)) return;
    reverse(ref, epoch, owner, count);
    if (is_sorted(ref, epoch, owner, count)) return;
    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++) {
        uint64_t gap = gaps[g];
        for (uint64_t i = gap; i < count; i++) {
            uint64_t r = ref[i], j = i;
            uint32_t e = epoch[i], o = owner[i];
            for (; j >= gap && comes_before(o, r, e, owner[j - gap], ref[j - gap], epoch[j - gap]); j -= gap)
                ref[j] = ref[j - gap], epoch[j] = epoch[j - gap], owner[j] = owner[j - gap];
            ref[j] = r, epoch[j] = e, owner[j] = o;
        }
    }
}

/* ---- turning --------------------------------------------------------------------------------------------------- */

/* Opens blocks up to the lead, from the highest level down. A block without timers opens at once; one with timers
 * starts a cascade, or waits for the cascade into the same level to finish. */
static void open_blocks(tw_wheel *wheel) {
    for (int k = OPEN_LEVELS - 1; k >= 0; k--) {
        int64_t wanted = (wheel->tick + lead_ms[k]) >> block_shift(k);
        if (k + 1 < OPEN_LEVELS) wanted = smaller(wanted, ((wheel->open[k + 1] + 1) << TW_BLOCK_BITS) - 1);
        if (wanted <= wheel->open[k]) continue;
        int64_t filled = next_occupied(wheel, k + 1, wheel->open[k] + 1);
        if (filled > wanted) {
            wheel->open[k] = wanted;
        } else if (wheel->cascade[k].count == 0) {
            detach(wheel, k + 1, filled, &wheel->cascade[k]);
            wheel->open[k] = filled;
        } else {
            wheel->open[k] = filled - 1;
        }
    }
}

/* How far the tick may go before a block has to be opened or a cascade has to end. */
static int64_t next_barrier(const tw_wheel *wheel) {
    int64_t barrier = TW_WHEEL_NEVER;
    for (int k = 0; k < OPEN_LEVELS; k++) {
        if (wheel->cascade[k].count)
            barrier = smaller(barrier, (wheel->cascade[k].number << block_shift(k)) - 1);
        int64_t filled = next_occupied(wheel, k + 1, wheel->open[k] + 1);
        if (filled == TW_WHEEL_NEVER) continue;
        int64_t start = filled << block_shift(k), opens = start - lead_ms[k];
        /* Past its opening time: it waits for the cascade before it. */
        barrier = smaller(barrier, opens > wheel->tick ? opens : start - 1);
    }
    return barrier;
}

/* Moves up to *budget timers of the cascade into level k down. */
static int run_cascade(tw_wheel *wheel, tw_timer *log, int k, uint64_t *budget) {
    tw_chain *chain = &wheel->cascade[k];
    prefetch_heads(chain, log, wheel->tail);
    for (; chain->count && *budget; (*budget)--) {
        uint64_t position = chain_pop(chain, log, wheel->tail);
        if (position == 0) return TW_WHEEL_DAMAGED;
        int64_t due = log[position - 1].due_ms;
        if (due >> block_shift(k) != chain->number) return TW_WHEEL_DAMAGED;
        if (put(wheel, log, position, due) != 0) return TW_WHEEL_DAMAGED;
        wheel->relinks++;
    }
    return 0;
}

/* Copies a whole slot to the items from `at` on, oldest first, and frees its records. */
static int take_slot(tw_wheel *wheel, tw_timer *log, int64_t tick, const tw_timers *out, uint64_t at) {
    uint32_t  index = (uint32_t)(tick & SLOT_MASK);
    tw_chain *slot = &wheel->slots[0][index];
    uint64_t  count = slot->count;
    while (slot->count) {
        uint64_t position = chain_pop(slot, log, wheel->tail);
        if (position == 0) return TW_WHEEL_DAMAGED;
        const tw_timer *timer = &log[position - 1];
        if (timer->due_ms != tick) return TW_WHEEL_DAMAGED;
        uint64_t i = at + slot->count;
        out->due_ms[i] = tick;
        out->ref[i] = timer->ref;
        out->epoch[i] = timer->epoch;
        out->owner[i] = timer->owner;
        free_record(wheel, log, position);
    }
    mark_empty(wheel, 0, index);
    wheel->level_timers[0] -= count;
    wheel->pending -= count;
    if (count > 1) sort_slot(out->ref + at, out->epoch + at, out->owner + at, count);
    return 0;
}

/* Collects the slots of level 0 up to `limit`, and moves the tick along. *full: it stopped before `limit`. */
static int collect(tw_wheel *wheel, tw_timer *log, int64_t limit, const tw_timers *out, uint64_t crowd_limit,
                   uint64_t *collected, int *full) {
    for (;;) {
        int64_t due = next_occupied(wheel, 0, wheel->tick + 1);
        if (due > limit) break;
        if (due <= wheel->tick) return TW_WHEEL_DAMAGED;
        uint64_t count = wheel->slots[0][due & SLOT_MASK].count, room = out->capacity - *collected;
        if (count == 0 || count > wheel->pending) return TW_WHEEL_DAMAGED;
        int crowd = count > crowd_limit || count > out->capacity;
        if (out->capacity == 0 || (crowd ? wheel->crowds == TW_CROWDS : count > room)) {
            wheel->tick = due - 1;
            *full = 1;
            return 0;
        }
        if (crowd) {
            detach(wheel, 0, due, &wheel->crowd[wheel->crowds++]);
        } else {
            if (take_slot(wheel, log, due, out, *collected) != 0) return TW_WHEEL_DAMAGED;
            *collected += count;
        }
        wheel->tick = due;
    }
    if (limit > wheel->tick) wheel->tick = limit;
    return 0;
}

/* The lowest level whose cascade must end before the tick can move; OPEN_LEVELS: none. */
static int blocking_cascade(const tw_wheel *wheel) {
    for (int k = 0; k < OPEN_LEVELS; k++)
        if (wheel->cascade[k].count && wheel->cascade[k].number << block_shift(k) <= wheel->tick + 1) return k;
    return OPEN_LEVELS;
}

static int is_cascading(const tw_wheel *wheel) {
    for (int k = 0; k < OPEN_LEVELS; k++)
        if (wheel->cascade[k].count) return 1;
    return 0;
}

int64_t tw_wheel_turn(tw_wheel *wheel, tw_timer *log, int64_t target, const tw_timers *out, uint64_t budget,
                      uint64_t crowd_limit, int32_t *more) {
    uint64_t collected = 0;
    int      full = 0;
    target = smaller(target, TW_WHEEL_LAST_DUE_MS);
    while (wheel->tick < target && !full) {
        int64_t before = wheel->tick;
        open_blocks(wheel);
        int k = blocking_cascade(wheel);
        if (k < OPEN_LEVELS) {
            if (budget == 0) break;
            if (run_cascade(wheel, log, k, &budget) != 0) return TW_WHEEL_DAMAGED;
            continue;
        }
        int64_t limit = smaller(target, next_barrier(wheel));
        if (collect(wheel, log, limit, out, crowd_limit, &collected, &full) != 0) return TW_WHEEL_DAMAGED;
        if (wheel->tick == before && !full) return TW_WHEEL_DAMAGED;
    }
    open_blocks(wheel);
    for (int k = 0; k < OPEN_LEVELS && budget; k++)
        if (wheel->cascade[k].count && run_cascade(wheel, log, k, &budget) != 0) return TW_WHEEL_DAMAGED;
    *more = full || wheel->tick < target || wheel->crowds || is_cascading(wheel);
    return (int64_t)collected;
}

int64_t tw_wheel_walk(tw_wheel *wheel, tw_timer *log, uint32_t index, uint64_t *ref, uint32_t *epoch,
                      uint32_t *owner, uint64_t limit) {
    if (index >= wheel->crowds) return 0;
    if (wheel->crowds > TW_CROWDS) return TW_WHEEL_DAMAGED;
    tw_chain *crowd = &wheel->crowd[index];
    uint64_t  walked = 0;
    prefetch_heads(crowd, log, wheel->tail);
    for (; crowd->count && walked < limit; walked++) {
        uint64_t position = chain_pop(crowd, log, wheel->tail);
        if (position == 0) return TW_WHEEL_DAMAGED;
        const tw_timer *timer = &log[position - 1];
        if (timer->due_ms != crowd->number) return TW_WHEEL_DAMAGED;
        ref[crowd->count] = timer->ref;
        epoch[crowd->count] = timer->epoch;
        owner[crowd->count] = timer->owner;
        free_record(wheel, log, position);
        wheel->pending--;
    }
    if (crowd->count == 0) {
        wheel->crowds--;
        memmove(crowd, crowd + 1, (wheel->crowds - index) * sizeof *crowd);
    }
    return (int64_t)walked;
}

int64_t tw_wheel_next_event(const tw_wheel *wheel) {
    if (wheel->crowds || is_cascading(wheel)) return wheel->tick;
    int64_t event = next_occupied(wheel, 0, wheel->tick + 1);
    for (int k = 0; k < OPEN_LEVELS; k++) {
        int64_t filled = next_occupied(wheel, k + 1, wheel->open[k] + 1);
        if (filled != TW_WHEEL_NEVER) event = smaller(event, (filled << block_shift(k)) - lead_ms[k]);
    }
    return event > wheel->tick ? event : wheel->tick;
}
