/* Looks at messages and deliveries by their numbers, and the chains in which they wait: what delivery, orders, acks and
 * purges share. */
#ifndef TICKWHEEL_ROWS_H
#define TICKWHEEL_ROWS_H
#include "tw_assert.h"
#include "store.h"

/* When a message is due: its deliver_at, and its part of the topic's spread. */
static inline int64_t tw_due_ms(const tw_store *store, const tw_row *row, uint64_t id) {
    uint64_t spread_ms = store->topics[row->topic_id].spread_ms;
    if (!spread_ms) return row->deliver_at_ms;
    /* Fibonacci hashing (Knuth, TAOCP 3, 6.4): ids in a row come to lie evenly over the range. */
    uint64_t part = (id * UINT64_C(0x9E3779B97F4A7C15)) >> 32;
    return row->deliver_at_ms + (int64_t)((part * spread_ms) >> 32);
}

/* 1 when no run reaches beyond `end`, whatever numbers a record holds. */
static inline int tw_runs_end_by(const tw_run *runs, uint64_t n, uint64_t end) {
    for (uint64_t r = 0; r < n; r++)
        if (runs[r].first > end || runs[r].count > end - runs[r].first) return 0;
    return 1;
}

static inline const tw_row *tw_row_of(const tw_store *store, const tw_group *group, uint64_t seq) {
    return tw_row_at(store, tw_id_at(&store->topics[group->topic_id], seq));
}

/* A group's row of a message; NULL: it has none. */
static inline const tw_delivery *tw_delivery_at(const tw_group *group, uint64_t seq) {
    return seq < group->rows_from || seq < group->rows_start || seq >= group->allocated ? NULL : &group->rows[seq];
}

/* 1 when nothing is known of a number of the group's topic: what was there is gone. */
static inline int tw_is_gone(const tw_store *store, const tw_group *group, uint64_t seq) {
    const tw_topic *topic = &store->topics[group->topic_id];
    return seq >= topic->allocated || tw_id_at(topic, seq) == 0 || tw_row_of(store, group, seq)->state == TW_NONE;
}

/* 1 when the message of that number is in its topic now (and not cancelled, or rescheduled and there under another). */
static inline int tw_is_in_topic(const tw_store *store, const tw_group *group, uint64_t seq) {
    const tw_row *row = tw_row_of(store, group, seq);
    return row->state == TW_READY && row->topic_seq == seq && row->topic_id == group->topic_id;
}

/* 1 when, besides, the group is not done with it. */
static inline int tw_is_open(const tw_store *store, const tw_group *group, uint64_t seq) {
    uint8_t state = group->rows[seq].state;
    return state != TW_ACKED && state != TW_DEAD && tw_is_in_topic(store, group, seq);
}

/* Appends a message of the topic to the end of its lane. */
static inline void tw_link_lane(tw_topic *topic, uint32_t priority, uint64_t seq) {
    topic->arrivals[seq].next = 0;
    if (topic->lane_last[priority]) topic->arrivals[topic->lane_last[priority] - 1].next = seq + 1;
    else topic->lane_first[priority] = seq + 1;
    topic->lane_last[priority] = seq + 1;
    topic->lanes[priority >> 6] |= UINT64_C(1) << (priority & 63);
}

/* Appends to the chain of those that wait for redelivery. */
static inline void tw_push_retry(tw_group *group, uint32_t priority, uint64_t seq) {
    tw_delivery *row = &group->rows[seq];
    row->retry_next = 0;
    row->flags |= TW_IN_RETRY;
    if (group->retry_last[priority]) group->rows[group->retry_last[priority] - 1].retry_next = seq + 1;
    else group->retry_first[priority] = seq + 1;
    group->retry_last[priority] = seq + 1;
    group->retry_lanes[priority >> 6] |= UINT64_C(1) << (priority & 63);
}

#endif
