#include "rows.h"
#include "wheel.h"

enum { AHEAD = 8 };
static const int64_t GONE = INT64_MIN;

static inline uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Whether a bit was not set before; it is now. */
static inline int is_first(uint64_t *bits, uint64_t bit) {
    uint64_t mask = UINT64_C(1) << (bit & 63), before = bits[bit >> 6];
    bits[bit >> 6] = before | mask;
    return !(before & mask);
}

/* Whether a timer that stands at `due` is that of something due at `wanted`. Later than wanted: it was linked when that
 * time had passed already; else it is an old one, of a topic that spread its messages more. */
static inline int stands_for(int64_t due, int64_t wanted, int64_t tick) {
    return due == wanted || (due > wanted && wanted <= tick);
}

/* When the message of a timer is due; GONE: it is gone, or has another timer. */
static int64_t message_due(const tw_store *store, const tw_timer *timer, int64_t tick, const tw_seen *seen) {
    if (timer->ref < store->first_id || timer->ref >= smaller(store->next_id, store->rows_allocated)) return GONE;
    if (timer->ref < seen->first || timer->ref - seen->first >= seen->count) return GONE;
    const tw_row *row = &store->rows[timer->ref];
    if (row->state != TW_SCHEDULED || row->version != timer->epoch) return GONE;
    if (!tw_topic_exists(store, row->topic_id)) return GONE;
    int64_t due = tw_due_ms(store, row, timer->ref);
    if (!stands_for(timer->due_ms, due, tick)) return GONE;
    /* Two timers alike: its topic got another spread, and the old one again. */
    return is_first(seen->bits, timer->ref - seen->first) ? due : GONE;
}

/* When the lease or the wait of a timer ends. */
static int64_t lease_due(const tw_store *store, const tw_timer *timer, int64_t tick) {
    if (timer->owner >= store->groups_capacity || !store->groups[timer->owner].exists) return GONE;
    const tw_group *group = &store->groups[timer->owner];
    if (timer->ref < group->floor_seq || timer->ref >= smaller(group->high_seq, group->allocated)) return GONE;
    const tw_delivery *row = &group->rows[timer->ref];
    if ((row->state != TW_LEASED && row->state != TW_WAITING) || row->epoch != timer->epoch) return GONE;
    /* In a chain: it can be had already. */
    if ((row->flags & (TW_IN_RETRY | TW_PARKED)) && !(row->flags & TW_POSTPONED)) return GONE;
    if (!stands_for(timer->due_ms, row->time_ms, tick)) return GONE;
    if (tw_is_gone(store, group, timer->ref) || !tw_is_in_topic(store, group, timer->ref)) return GONE;
    return row->time_ms;
}

void tw_forecast(const tw_store *store, const tw_timer *timers, uint64_t n, int64_t tick, const int64_t *until_ms,
                 uint64_t horizons, const tw_seen *seen, uint64_t *counts) {
    uint64_t *messages = counts, *leases = messages + horizons + 1, *gone = leases + horizons + 1;
    for (uint64_t i = 0; i < n; i++) {
        if (i + AHEAD < n && timers[i + AHEAD].owner == 0 && timers[i + AHEAD].ref < store->rows_allocated)
            __builtin_prefetch(&store->rows[timers[i + AHEAD].ref]);
        const tw_timer *timer = &timers[i];
        if (timer->due_ms < 0) continue; /* on the free list */
        int64_t   due = timer->owner ? lease_due(store, timer, tick) : message_due(store, timer, tick, seen);
        uint64_t *kind = due == GONE ? gone : timer->owner ? leases : messages;
        uint64_t  part = 0;
        if (due == GONE) due = timer->due_ms;
        while (part < horizons && until_ms[part] < due) part++;
        kind[part]++;
    }
}
