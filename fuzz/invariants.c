#include "invariants.h"
#include <stdlib.h>

#define TEXT_OF(line) #line
#define TEXT(line) TEXT_OF(line)
#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) return "invariants.c:" TEXT(__LINE__) ": " #condition " does not hold"; \
    } while (0)
#define CHECKED(call)                       \
    do {                                    \
        const char *broken = (call);        \
        if (broken) return broken;          \
    } while (0)

enum { LIMIT = 4096, ALL_HOLDERS = 65536, IN_A_CHAIN = TW_IN_RETRY | TW_PARKED };

static int has_bit(const uint64_t *bits, uint32_t place) { return bits[place >> 6] >> (place & 63) & 1; }

/* ---- the log, the MessageTable and the key index ---- */

static const char *check_records(const tw_store *store) {
    uint64_t counts[256] = {0};
    int32_t  reason;
    HOLDS(store->staging_bytes <= store->staging_capacity);
    HOLDS(tw_log_verify(store->staging, 0, store->staging_bytes, counts, &reason) == store->staging_bytes);
    HOLDS(reason == 0);
    for (uint64_t id = store->first_id; id < store->next_id; id++) {
        const tw_row *row = &store->rows[id];
        if (row->state == TW_NONE) continue;
        HOLDS(row->position + row->record_bytes <= store->staging_position + store->staging_bytes);
        const uint8_t *record = tw_at(store, row->position);
        HOLDS(tw_load32(record + 4) == row->record_bytes && tw_load64(record + 16) == id);
        HOLDS(tw_judge_record(record, tw_padded(row->record_bytes)) == 0);
        if (!row->key_hash || (row->state != TW_SCHEDULED && row->state != TW_READY)) continue;
        HOLDS(tw_keys_find(store, row->topic_id, record + sizeof(tw_message), tw_load16(record + 40)) == id);
    }
    return NULL;
}

static const char *check_topic(const tw_store *store, uint32_t topic_id) {
    const tw_topic *topic = &store->topics[topic_id];
    uint64_t        messages = topic->purged_messages, cancelled = topic->purged_cancelled, scheduled = 0, ready = 0;
    for (uint64_t id = 1; id < store->next_id; id++) {
        const tw_row *row = &store->rows[id];
        HOLDS(id >= store->first_id || row->state == TW_NONE);
        if (row->state == TW_NONE || row->topic_id != topic_id) continue;
        messages++;
        scheduled += row->state == TW_SCHEDULED;
        ready += row->state == TW_READY;
        cancelled += row->state == TW_CANCELLED;
        if (row->state != TW_READY) continue;
        HOLDS(row->topic_seq >= topic->first_seq && row->topic_seq < topic->count);
        HOLDS(topic->arrivals[row->topic_seq].id == id);
    }
    HOLDS(topic->messages == messages && topic->cancelled == cancelled);
    HOLDS(topic->scheduled == scheduled && topic->ready == ready);
    HOLDS(topic->count <= topic->allocated);
    return NULL;
}

static const char *check_keys(const tw_store *store) {
    uint64_t keys = 0;
    for (uint64_t id = store->first_id; id < store->next_id; id++) {
        const tw_row *row = &store->rows[id];
        keys += row->key_hash && (row->state == TW_SCHEDULED || row->state == TW_READY);
        HOLDS(row->state == TW_NONE || tw_topic_exists(store, row->topic_id));
    }
    HOLDS(tw_keys_count(store->keys) == keys);
    for (uint32_t p = 0; p < TW_KEY_PARTITIONS; p++) HOLDS(store->key_counts[p] == 0);
    return NULL;
}

/* ---- lanes: each arrival is in one, in the order of arrival ---- */

static uint32_t rank_of[LIMIT]; /* by topic_seq: 0 in no lane, otherwise from 1 on its place there */
static uint8_t  lane_of[LIMIT];

static const char *check_lanes(const tw_store *store, const tw_topic *topic) {
    HOLDS(topic->count <= LIMIT);
    memset(rank_of, 0, sizeof rank_of);
    for (uint32_t p = 0; p < 256; p++) {
        uint64_t last = 0;
        uint32_t rank = 0;
        HOLDS(has_bit(topic->lanes, p) == (topic->lane_first[p] != 0));
        for (uint64_t at = topic->lane_first[p]; at; at = topic->arrivals[at - 1].next) {
            HOLDS(at <= topic->count && at > last && at > topic->first_seq);
            rank_of[at - 1] = ++rank;
            lane_of[at - 1] = (uint8_t)p;
            last = at;
        }
        HOLDS(topic->lane_last[p] == last);
    }
    for (uint64_t seq = topic->first_seq; seq < topic->count; seq++) {
        uint64_t id = topic->arrivals[seq].id;
        if (!id || store->rows[id].state == TW_NONE) continue;
        HOLDS(rank_of[seq]);
        HOLDS(store->rows[id].state != TW_READY || store->rows[id].topic_seq != seq || lane_of[seq] == store->rows[id].priority);
    }
    return NULL;
}

/* ---- groups: counters, and where each message is that is not done ---- */

static uint8_t in_retry[LIMIT], parked[LIMIT], in_run[LIMIT]; /* by topic_seq: how many chains hold it */

static uint64_t items_of(const tw_store *store, const tw_group *group) {
    uint64_t count = store->topics[group->topic_id].count;
    return count < group->allocated ? count : group->allocated;
}

static const char *check_counters(const tw_store *store, const tw_group *group, uint32_t *held) {
    const tw_topic *topic = &store->topics[group->topic_id];
    uint64_t        end = items_of(store, group), leased = 0, acked = group->purged_acked, dead = group->purged_dead;
    uint64_t        touched = 0, pending = 0, deliveries = group->purged_deliveries;
    for (uint64_t seq = 0; seq < topic->count; seq++) {
        static const tw_delivery none;
        const tw_delivery *row = seq < end ? &group->rows[seq] : &none;
        int                done = row->state == TW_ACKED || row->state == TW_DEAD;
        int                open = !done && !tw_is_gone(store, group, seq) && tw_is_in_topic(store, group, seq);
        touched += row->state != TW_UNTOUCHED;
        acked += row->state == TW_ACKED;
        dead += row->state == TW_DEAD;
        deliveries += tw_times_delivered(group, row);
        HOLDS(!(row->flags & TW_TAKEN));
        HOLDS(row->epoch <= group->highest_epoch || row->epoch <= group->fence);
        HOLDS(row->state == TW_UNTOUCHED || seq < group->high_seq);
        HOLDS(!(row->flags & TW_POSTPONED) || (row->flags & IN_A_CHAIN));
        HOLDS(!row->holder || row->state == TW_LEASED);
        if (open && seq >= group->start_seq) {
            pending++;
            HOLDS(seq >= group->floor_seq);
        }
        if (row->state != TW_LEASED || (row->flags & IN_A_CHAIN)) continue;
        HOLDS(open);
        leased++;
        held[row->holder]++;
    }
    for (uint64_t seq = end; seq < group->allocated; seq++) HOLDS(group->rows[seq].state == TW_UNTOUCHED);
    HOLDS(group->leased == leased && group->acked == acked && group->dead == dead);
    HOLDS(group->touched == touched && group->pending == pending && group->deliveries == deliveries);
    return NULL;
}

static const char *walk_retry_chains(const tw_store *store, const tw_group *group, uint64_t end) {
    for (uint32_t p = 0; p < 256; p++) {
        uint64_t last = 0;
        HOLDS(has_bit(group->retry_lanes, p) == (group->retry_first[p] != 0));
        for (uint64_t at = group->retry_first[p]; at; at = group->rows[at - 1].retry_next) {
            HOLDS(at <= end && !in_retry[at - 1]);
            in_retry[at - 1] = 1;
            HOLDS(tw_is_gone(store, group, at - 1) || !tw_is_open(store, group, at - 1) ||
                  tw_row_of(store, group, at - 1)->priority == p);
            last = at;
        }
        HOLDS(group->retry_last[p] == last);
    }
    return NULL;
}

static const tw_order *order_of(const tw_group *group, uint32_t hash) {
    uint32_t mask = group->orders_capacity - 1;
    for (uint32_t step = 0; group->orders_capacity && step <= mask; step++) {
        const tw_order *order = &group->orders[(hash + step) & mask];
        if (order->hash == hash) return order;
        if (!order->hash) return NULL;
    }
    return NULL;
}

/* Each busy key is found, and is busy with an open message; those that come behind it are in its chain: those that it was
 * given out with, of which some are parked, and those that wait, which are. It is parked itself while one of them is out. */
static const char *walk_orders(const tw_store *store, const tw_group *group, uint64_t end) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < group->orders_capacity; i++) {
        const tw_order *order = &group->orders[i];
        uint64_t        last = 0;
        int             is_again_there = order->last_again == 0, is_run_there = order->last_run == 0;
        if (!order->hash) continue;
        count++;
        HOLDS(order_of(group, order->hash) == order);
        HOLDS(order->current && order->current <= end);
        HOLDS(tw_is_open(store, group, order->current - 1) && group->rows[order->current - 1].order_hash == order->hash);
        HOLDS(!(group->rows[order->current - 1].flags & TW_IN_RUN));
        if (group->rows[order->current - 1].flags & TW_PARKED) {
            HOLDS(tw_order_is_out(group, order->current - 1) && !parked[order->current - 1]);
            parked[order->current - 1] = 1;
        }
        for (uint64_t at = order->first; at; at = group->rows[at - 1].retry_next) {
            uint8_t flags = group->rows[at - 1].flags;
            HOLDS(at <= end && !parked[at - 1] && !in_run[at - 1] && at != order->current);
            HOLDS(((flags & TW_IN_RUN) == 0) == is_run_there && ((flags & TW_IN_RUN) || (flags & TW_PARKED)));
            parked[at - 1] = (flags & TW_PARKED) != 0;
            in_run[at - 1] = (flags & TW_IN_RUN) != 0;
            is_run_there |= at == order->last_run;
            if (flags & TW_IN_RUN) { last = at; continue; }
            HOLDS(group->rows[at - 1].order_hash == order->hash || tw_is_gone(store, group, at - 1));
            /* Those that were delivered before come first. */
            HOLDS(is_again_there || group->rows[at - 1].state != TW_UNTOUCHED || tw_is_gone(store, group, at - 1));
            is_again_there |= at == order->last_again;
            last = at;
        }
        HOLDS(order->last == last);
        HOLDS(is_again_there && is_run_there);
    }
    HOLDS(group->orders_count == count);
    return NULL;
}

/* Nothing is lost: what the group has not been given lies before the cursor of its lane, what is to be given again is in one
 * chain, and of an ordering key one message at most is with a subscriber, or those that were given out together. */
static const char *check_places(const tw_store *store, const tw_group *group) {
    const tw_topic *topic = &store->topics[group->topic_id];
    uint64_t        end = items_of(store, group);
    memset(in_retry, 0, sizeof in_retry);
    memset(parked, 0, sizeof parked);
    memset(in_run, 0, sizeof in_run);
    CHECKED(walk_retry_chains(store, group, end));
    CHECKED(walk_orders(store, group, end));
    for (uint32_t p = 0; p < 256; p++) {
        uint64_t cursor = group->cursor[p];
        HOLDS(!cursor || (cursor <= topic->count && rank_of[cursor - 1] && lane_of[cursor - 1] == p));
    }
    for (uint64_t seq = 0; seq < topic->count; seq++) {
        static const tw_delivery none;
        const tw_delivery *row = seq < end ? &group->rows[seq] : &none;
        uint8_t chains = (uint8_t)((in_retry[seq] ? TW_IN_RETRY : 0) | (parked[seq] ? TW_PARKED : 0));
        /* Below first_seq nothing is looked at any more, also not by a start, which empties the chains. */
        HOLDS(chains == (row->flags & IN_A_CHAIN) || (seq < topic->first_seq && !chains));
        HOLDS(chains != IN_A_CHAIN);
        if (seq < group->start_seq || tw_is_gone(store, group, seq) || !tw_is_in_topic(store, group, seq)) continue;
        if (row->state == TW_UNTOUCHED && !(row->flags & IN_A_CHAIN)) {
            uint64_t cursor = group->cursor[tw_row_of(store, group, seq)->priority];
            HOLDS(!cursor || rank_of[seq] > rank_of[cursor - 1]);
        }
        if (row->state == TW_LEASED && (tw_row_of(store, group, seq)->flags & TW_ORDERED)) {
            const tw_order *order = order_of(group, row->order_hash);
            HOLDS(row->order_hash && order && (order->current == seq + 1 || in_run[seq]));
        }
    }
    return NULL;
}

const char *broken_invariant(const tw_store *store, int check_log) {
    static uint32_t held[ALL_HOLDERS];
    memset(held, 0, sizeof held);
    HOLDS(store->next_id <= store->rows_allocated);
    if (check_log) CHECKED(check_records(store));
    CHECKED(check_keys(store));
    for (uint32_t t = 1; t < store->topics_capacity; t++) {
        if (!store->topics[t].exists) continue;
        CHECKED(check_topic(store, t));
        CHECKED(check_lanes(store, &store->topics[t]));
        for (uint32_t g = store->topics[t].first_group; g; g = store->groups[g].next_group) {
            CHECKED(check_counters(store, &store->groups[g], held));
            CHECKED(check_places(store, &store->groups[g]));
        }
    }
    held[0] = store->outstanding[0]; /* during replay nobody holds a lease */
    HOLDS(memcmp(held, store->outstanding, sizeof held) == 0);
    return NULL;
}
