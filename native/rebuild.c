/* At start: what follows from the tables is derived again, so only the tables need to be right. */
#include "rows.h"

int64_t tw_scheduled(const tw_store *store, uint64_t *from_id, uint64_t end_id, uint64_t capacity, int64_t *due_ms,
                     uint64_t *ids, uint32_t *versions) {
    uint64_t n = 0, id = *from_id > store->rows_start ? *from_id : store->rows_start, stop = tw_rows_until(store, &id, end_id);
    for (; id < end_id && n < capacity; id++) {
        if (id == stop) {
            stop = tw_rows_until(store, &id, end_id);
            if (id >= end_id) break;
        }
        const tw_row *row = &store->rows[id];
        if (row->state != TW_SCHEDULED) continue;
        if (!tw_topic_exists(store, row->topic_id)) continue;
        due_ms[n] = tw_due_ms(store, row, id);
        ids[n] = id;
        versions[n++] = row->version;
    }
    *from_id = id;
    return (int64_t)n;
}

int tw_rows_used(const tw_store *store, uint64_t from_id, uint64_t end_id, uint64_t *first, uint64_t *last) {
    while (from_id < end_id && store->rows[from_id].state == TW_NONE) from_id++;
    if (from_id >= end_id) return 0;
    *first = from_id;
    while (store->rows[end_id - 1].state == TW_NONE) end_id--;
    *last = end_id - 1;
    return 1;
}

static void count_messages(tw_store *store) {
    uint64_t stop = store->first_id;
    for (uint64_t id = store->first_id; id < store->next_id; id++) {
        if (id == stop) {
            stop = tw_rows_until(store, &id, store->next_id);
            if (id >= store->next_id) break;
        }
        const tw_row *row = &store->rows[id];
        if (row->state == TW_NONE || !tw_topic_exists(store, row->topic_id)) continue;
        tw_topic *topic = &store->topics[row->topic_id];
        topic->messages++;
        topic->scheduled += row->state == TW_SCHEDULED;
        topic->ready += row->state == TW_READY;
        topic->cancelled += row->state == TW_CANCELLED;
    }
}

static int link_lanes(tw_store *store, tw_topic *topic) {
    for (uint64_t seq = topic->first_seq; seq < topic->count; seq++) {
        uint64_t id = topic->arrivals[seq].id;
        if (id >= store->next_id) return -1;
        if (id == 0 || tw_row_at(store, id)->state == TW_NONE) continue; /* it was purged */
        tw_link_lane(topic, tw_row_at(store, id)->priority, seq);
    }
    return 0;
}

int tw_rebuild_topics(tw_store *store) {
    for (uint32_t t = 0; t < store->topics_capacity; t++) {
        tw_topic *topic = &store->topics[t];
        if (!topic->exists) continue;
        topic->messages = topic->purged_messages;
        topic->cancelled = topic->purged_cancelled;
        topic->scheduled = topic->ready = 0;
        memset(topic->lane_first, 0, sizeof topic->lane_first);
        memset(topic->lane_last, 0, sizeof topic->lane_last);
        memset(topic->lanes, 0, sizeof topic->lanes);
        if (link_lanes(store, topic)) return -1;
    }
    count_messages(store);
    return 0;
}

int tw_rebuild_keys(tw_store *store, uint64_t *from_id, uint64_t end_id, uint64_t *need) {
    uint64_t stop = *from_id;
    for (; *from_id < end_id; (*from_id)++) {
        if (*from_id == stop) {
            stop = tw_rows_until(store, from_id, end_id);
            if (*from_id >= end_id) break;
        }
        const tw_row *row = &store->rows[*from_id];
        if (!row->key_hash || (row->state != TW_SCHEDULED && row->state != TW_READY)) continue;
        if (!tw_topic_exists(store, row->topic_id)) continue;
        uint32_t partition = tw_key_partition(row->key_hash);
        if (!tw_keys_has_room(store, partition, 1)) { *need = partition; return TW_STOP_NEED_KEYS; }
        tw_keys_insert(store, *from_id, row->key_hash);
    }
    return 0;
}

void tw_skip_to_start(tw_store *store, uint32_t group_id) {
    tw_group       *group = &store->groups[group_id];
    const tw_topic *topic = &store->topics[group->topic_id];
    /* Along the lanes: a message may have another priority by now than when it came into one. */
    for (uint32_t priority = 0; priority < 256; priority++)
        for (uint64_t at = topic->lane_first[priority]; at && at <= group->start_seq; at = topic->arrivals[at - 1].next)
            group->cursor[priority] = at;
}

static void reset_group(tw_group *group, uint64_t first_seq) {
    memset(group->cursor, 0, sizeof group->cursor);
    memset(group->retry_first, 0, sizeof group->retry_first);
    memset(group->retry_last, 0, sizeof group->retry_last);
    memset(group->retry_lanes, 0, sizeof group->retry_lanes);
    group->floor_seq = group->start_seq > first_seq ? group->start_seq : first_seq;
    group->high_seq = group->floor_seq;
    group->touched = group->leased = group->pending = 0;
    group->acked = group->purged_acked;
    group->dead = group->purged_dead;
    group->deliveries = group->purged_deliveries;
}

/* What one row of a group adds to its counters; the cursor of its lane moves over it unless it is `held`. */
static void count_delivery(tw_store *store, tw_group *group, uint64_t seq, int *held) {
    tw_delivery  *row = &group->rows[seq];
    const tw_row *message = tw_row_of(store, group, seq);
    if (row->holder || (row->flags & ~TW_CALLED) || row->retry_next || row->order_hash) { /* no write where disk space was given back */
        row->holder = 0;
        row->flags &= TW_CALLED;
        row->retry_next = 0;
        row->order_hash = 0;
    }
    /* Replay gives the lease again, but does not take the message out again that the table says is out already. */
    if (row->state == TW_LEASED && !tw_is_in_topic(store, group, seq)) row->state = TW_WAITING;
    /* Ordering keys: from the first open message on, the lane is gone through again to see which keys are busy. */
    int is_ordered = (message->flags & TW_ORDERED) && !group->ignores_order;
    int is_before = seq < group->start_seq;
    if (is_ordered && !is_before && tw_is_open(store, group, seq)) *held = 1;
    if (row->state == TW_UNTOUCHED && !row->epoch) return;
    group->high_seq = seq + 1;
    group->deliveries += tw_times_delivered(group, row);
    if (row->epoch > group->highest_epoch) group->highest_epoch = row->epoch;
    if (row->state == TW_UNTOUCHED) return;
    group->touched++;
    group->acked += row->state == TW_ACKED;
    group->dead += row->state == TW_DEAD;
    group->leased += row->state == TW_LEASED;
    /* New messages leave a lane in its order, so its cursor stood at the last one delivered, or behind it. One that was
     * given up without a delivery says nothing of those before it, nor does one that has left the topic since: it may
     * have another priority now. */
    if (!row->epoch || is_before || !tw_is_in_topic(store, group, seq)) return;
    if (!(*held && message->priority == TW_ORDERED_PRIORITY)) group->cursor[message->priority] = seq + 1;
}

int tw_rebuild_group(tw_store *store, uint32_t group_id) {
    tw_group       *group = &store->groups[group_id];
    const tw_topic *topic = &store->topics[group->topic_id];
    uint64_t        end = group->allocated < topic->count ? group->allocated : topic->count;
    int             held = 0;
    reset_group(group, topic->first_seq);
    tw_skip_to_start(store, group_id);
    uint64_t from = group->rows_from > topic->first_seq ? group->rows_from : topic->first_seq;
    for (uint64_t seq = from; seq < end; seq++) count_delivery(store, group, seq, &held);
    for (uint64_t seq = group->floor_seq; seq < topic->count; seq++)
        group->pending += seq < end ? tw_is_open(store, group, seq) : tw_is_in_topic(store, group, seq);
    return 0;
}

int tw_rebuild_orders(tw_store *store, uint32_t group_id, uint64_t *from_seq) {
    tw_group *group = &store->groups[group_id];
    if (*from_seq == 0 && group->orders) {
        memset(group->orders, 0, group->orders_capacity * sizeof *group->orders);
        group->orders_count = 0;
    }
    if (group->ignores_order) return 0;
    /* Before it there may be neither rows nor disk space. */
    if (*from_seq < group->floor_seq) *from_seq = group->floor_seq;
    for (; *from_seq < group->high_seq; (*from_seq)++) {
        const tw_delivery *delivery = &group->rows[*from_seq];
        int is_held = delivery->state == TW_LEASED || (delivery->state == TW_WAITING && !(delivery->flags & TW_CALLED));
        if (!is_held || !tw_is_in_topic(store, group, *from_seq)) continue;
        const tw_row *row = tw_row_of(store, group, *from_seq);
        if (!(row->flags & TW_ORDERED)) continue;
        if (!tw_orders_have_room(group)) return 1;
        if (!tw_order_enter(group, tw_order_hash(store, row), *from_seq) && !(delivery->flags & TW_IN_RETRY))
            tw_order_join(group, *from_seq);
    }
    return 0;
}

int64_t tw_leased(tw_store *store, uint32_t group_id, uint64_t *from_seq, uint64_t capacity, int64_t *until_ms,
                  uint64_t *seqs, uint32_t *epochs) {
    const tw_group *group = &store->groups[group_id];
    uint64_t        n = 0, seq = tw_with_rows(group, *from_seq);
    for (; seq < group->high_seq && n < capacity; seq++) {
        const tw_delivery *row = &group->rows[seq];
        if ((row->state != TW_LEASED && row->state != TW_WAITING) || !tw_is_in_topic(store, group, seq)) continue;
        until_ms[n] = row->time_ms;
        seqs[n] = seq;
        epochs[n++] = row->epoch;
    }
    *from_seq = seq;
    return (int64_t)n;
}
