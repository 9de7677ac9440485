/* At start: what follows from the tables is derived again, so only the tables need to be right. */
#include "store.h"

int64_t tw_scheduled(const tw_store *store, uint64_t *from_id, uint64_t end_id, uint64_t capacity, int64_t *due_ms,
                     uint64_t *ids, uint32_t *versions) {
    uint64_t n = 0, id = *from_id;
    for (; id < end_id && n < capacity; id++) {
        const tw_row *row = &store->rows[id];
        if (row->state != TW_SCHEDULED) continue;
        due_ms[n] = row->deliver_at_ms;
        ids[n] = id;
        versions[n++] = row->version;
    }
    *from_id = id;
    return (int64_t)n;
}

static void count_messages(tw_store *store) {
    for (uint64_t id = 1; id < store->next_id; id++) {
        const tw_row *row = &store->rows[id];
        if (row->state == TW_NONE || row->topic_id >= store->topics_capacity) continue;
        if (!store->topics[row->topic_id].exists) continue;
        tw_topic *topic = &store->topics[row->topic_id];
        topic->messages++;
        topic->scheduled += row->state == TW_SCHEDULED;
        topic->ready += row->state == TW_READY;
        topic->cancelled += row->state == TW_CANCELLED;
    }
}

static int link_lanes(tw_store *store, tw_topic *topic) {
    for (uint64_t seq = 0; seq < topic->count; seq++) {
        uint64_t id = topic->arrivals[seq].id;
        if (id == 0 || id >= store->next_id) return -1;
        uint32_t priority = store->rows[id].priority;
        tw_link_lane(topic, priority, seq);
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
    for (; *from_id < end_id; (*from_id)++) {
        const tw_row *row = &store->rows[*from_id];
        if (!row->key_hash || row->state == TW_NONE || row->state == TW_CANCELLED) continue;
        uint32_t partition = tw_key_partition(row->key_hash);
        if (!tw_keys_has_room(store, partition, 1)) { *need = partition; return TW_STOP_NEED_KEYS; }
        tw_keys_insert(store, *from_id, row->key_hash);
    }
    return 0;
}

int tw_rebuild_group(tw_store *store, uint32_t group_id) {
    tw_group       *group = &store->groups[group_id];
    const tw_topic *topic = &store->topics[group->topic_id];
    uint64_t        end = group->allocated < topic->count ? group->allocated : topic->count;
    memset(group->cursor, 0, sizeof group->cursor);
    memset(group->retry_first, 0, sizeof group->retry_first);
    memset(group->retry_last, 0, sizeof group->retry_last);
    memset(group->retry_lanes, 0, sizeof group->retry_lanes);
    group->floor_seq = group->start_seq;
    group->high_seq = group->start_seq;
    group->touched = group->leased = group->acked = group->deliveries = 0;
    for (uint64_t seq = 0; seq < end; seq++) {
        tw_delivery *row = &group->rows[seq];
        row->holder = 0;
        row->flags = 0;
        row->retry_next = 0;
        if (row->state == TW_UNTOUCHED) continue;
        group->high_seq = seq + 1;
        group->touched++;
        group->deliveries += row->epoch;
        group->acked += row->state == TW_ACKED;
        group->leased += row->state == TW_LEASED;
        /* New messages leave a lane in its order, so the last one touched is where its cursor stood. */
        group->cursor[store->rows[topic->arrivals[seq].id].priority] = seq + 1;
    }
    return 0;
}

int64_t tw_leased(tw_store *store, uint32_t group_id, uint64_t *from_seq, uint64_t capacity, int64_t *until_ms,
                  uint64_t *seqs, uint32_t *epochs) {
    const tw_group *group = &store->groups[group_id];
    uint64_t        n = 0, seq = *from_seq;
    for (; seq < group->high_seq && n < capacity; seq++) {
        const tw_delivery *row = &group->rows[seq];
        if (row->state != TW_LEASED) continue;
        until_ms[n] = row->time_ms;
        seqs[n] = seq;
        epochs[n++] = row->epoch;
    }
    *from_seq = seq;
    return (int64_t)n;
}
