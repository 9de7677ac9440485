/* Purging: what a part of the oldest segment holds is forgotten, or moved to the head of the log, so that the segment
 * can be deleted.
 *
 * One walk serves all: it goes from record to record, and into the records that hold others. A record's place inside
 * another one is a position like any other, so a walk may stop and go on anywhere between two messages. */
#include "crc32c.h"
#include "rows.h"

enum { NO_MESSAGE = 0, MESSAGE = 1, DAMAGED_MESSAGE = 2, NO_RECORD = -1 };
enum { TRANSACTION_HEAD = sizeof(tw_head) + 16, DELIVER_AT = 24, PRIORITY = 9 };

static int is_whole(const uint8_t *record, uint64_t room) {
    if (room < sizeof(tw_head)) return 0;
    uint64_t bytes = tw_load32(record + 4);
    return bytes >= sizeof(tw_head) && tw_padded(bytes) <= room &&
           tw_crc32c(record + 4, bytes - 4, 0) == tw_load32(record);
}

/* Goes on to the next message below `limit`; nothing at or behind `end` is read. A record that fails its checksum is
 * passed over if a whole one starts where its length says: its length can be trusted then. `is_known`: a walk went here
 * before and was satisfied. This one may end in the middle of the record that follows, and could not tell. */
static int next_message(const tw_store *store, uint64_t *at, uint64_t limit, uint64_t end, int is_known,
                        uint64_t *message) {
    while (*at < limit) {
        const uint8_t *record = tw_place(store->log, *at);
        uint64_t       room = end - *at;
        if (room < sizeof(tw_head)) { *at = end; return NO_MESSAGE; }
        uint64_t bytes = tw_load32(record + 4);
        if (record[8] == TW_RECORD_TRANSACTION && bytes >= TRANSACTION_HEAD && room >= TRANSACTION_HEAD) {
            *at += TRANSACTION_HEAD;
            continue;
        }
        if (bytes < sizeof(tw_head)) return NO_RECORD;
        if (record[8] == TW_RECORD_MOVED && room >= sizeof(tw_head) + sizeof(tw_moved)) {
            uint64_t groups = tw_load32(record + sizeof(tw_head) + offsetof(tw_moved, groups));
            uint64_t skip = sizeof(tw_head) + sizeof(tw_moved) + groups * sizeof(tw_moved_group);
            if (skip > bytes || skip > room) return NO_RECORD;
            *at += skip;
            continue;
        }
        if (tw_padded(bytes) > room) return NO_RECORD;
        int whole = is_whole(record, room);
        if (!whole && !is_known && tw_padded(bytes) < room &&
            !is_whole(record + tw_padded(bytes), room - tw_padded(bytes)))
            return NO_RECORD;
        if (record[8] == TW_RECORD_END) { *at = end; return NO_MESSAGE; }
        uint64_t start = *at;
        *at += tw_padded(bytes);
        if (record[8] != TW_RECORD_MESSAGE || bytes < sizeof(tw_message)) continue;
        *message = start;
        return whole ? MESSAGE : DAMAGED_MESSAGE;
    }
    return NO_MESSAGE;
}

/* The id of the message whose record lies there, if that is where its row finds it; 0: it was moved, or is gone. */
static uint64_t current_id(const tw_store *store, uint64_t position) {
    uint64_t id = tw_load64(tw_place(store->log, position + sizeof(tw_head)));
    if (id == 0 || id >= store->next_id) return 0;
    const tw_row *row = tw_row_at(store, id);
    return row->state != TW_NONE && row->position == position ? id : 0;
}

/* ---- what may go ---- */

static const tw_delivery *delivery_of(const tw_group *group, const tw_row *row) {
    const tw_delivery *delivery = tw_delivery_at(group, row->topic_seq);
    return delivery && (delivery->state != TW_UNTOUCHED || delivery->epoch) ? delivery : NULL;
}

/* Every group is done with a message, and the last of them for long enough. */
static int is_done(const tw_store *store, const tw_row *row, int64_t now_ms) {
    const tw_topic *topic = &store->topics[row->topic_id];
    int64_t         last_ms = row->deliver_at_ms;
    if (!topic->first_group) return 0;
    for (uint32_t g = topic->first_group; g; g = store->groups[g].next_group) {
        const tw_group *group = &store->groups[g];
        if (row->topic_seq < group->start_seq) continue;
        const tw_delivery *delivery = delivery_of(group, row);
        if (!delivery || (delivery->state != TW_ACKED && delivery->state != TW_DEAD)) return 0;
        if (delivery->time_ms > last_ms) last_ms = delivery->time_ms;
    }
    return last_ms <= now_ms - topic->purge_after_ms;
}

int tw_is_dead(const tw_store *store, uint64_t id, int64_t now_ms) {
    const tw_row *row = tw_row_at(store, id);
    if (!tw_topic_exists(store, row->topic_id)) return 1;
    if (row->state == TW_READY) return is_done(store, row, now_ms);
    return row->state != TW_SCHEDULED;
}

/* ---- moving ---- */

static uint32_t touched_groups(const tw_store *store, const tw_row *row) {
    uint32_t n = 0;
    if (row->state != TW_READY) return 0;
    for (uint32_t g = store->topics[row->topic_id].first_group; g; g = store->groups[g].next_group) {
        const tw_delivery *delivery = delivery_of(&store->groups[g], row);
        n += delivery != NULL;
    }
    return n;
}

static uint64_t moved_bytes(const tw_store *store, const tw_row *row) {
    return tw_padded(sizeof(tw_head) + sizeof(tw_moved) + touched_groups(store, row) * sizeof(tw_moved_group) +
                     row->record_bytes);
}

static uint8_t *put_groups(const tw_store *store, const tw_row *row, uint8_t *to) {
    if (row->state != TW_READY) return to;
    for (uint32_t g = store->topics[row->topic_id].first_group; g; g = store->groups[g].next_group) {
        const tw_delivery *delivery = delivery_of(&store->groups[g], row);
        if (!delivery) continue;
        tw_moved_group entry = {.group_id = g, .epoch = delivery->epoch, .base_epoch = delivery->base_epoch,
                                .state = delivery->state, .flags = delivery->flags & TW_CALLED,
                                .time_ms = delivery->time_ms};
        memcpy(to, &entry, sizeof entry);
        to += sizeof entry;
    }
    return to;
}

/* Stages a MOVED record: the state of a message, then its own record with the time and priority that hold now. */
static void put_moved(tw_store *store, const tw_row *row) {
    uint8_t *start = store->staging + store->staging_bytes, *to = start + sizeof(tw_head);
    tw_moved moved = {.topic_seq = row->topic_seq, .version = row->version, .state = row->state,
                      .flags = row->flags, .groups = touched_groups(store, row)};
    memcpy(to, &moved, sizeof moved);
    to = put_groups(store, row, to + sizeof moved);
    memcpy(to, tw_place(store->log, row->position), row->record_bytes);
    to[PRIORITY] = row->priority;
    tw_store64(to + DELIVER_AT, (uint64_t)row->deliver_at_ms);
    tw_store32(to, tw_crc32c(to + 4, row->record_bytes - 4, 0));
    uint64_t bytes = (uint64_t)(to - start) + row->record_bytes;
    tw_head  head = {.record_bytes = (uint32_t)bytes, .type = TW_RECORD_MOVED, .aux = row->topic_id};
    memcpy(start, &head, sizeof head);
    memset(start + bytes, 0, tw_padded(bytes) - bytes);
    tw_store32(start, tw_crc32c(start + 4, bytes - 4, 0));
    store->staging_bytes += tw_padded(bytes);
}

static int has_room(const tw_store *store, uint64_t bytes) {
    return store->staging_bytes + bytes <= store->staging_capacity &&
           store->staging_position + store->staging_bytes + bytes <= store->message_limit;
}

int tw_purge_plan(tw_store *store, uint64_t *at, uint64_t limit, uint64_t end, int64_t now_ms, uint64_t capacity,
                  uint64_t *dead, uint64_t *damaged, tw_purging *result) {
    memset(result, 0, sizeof *result);
    while (*at < limit && result->dead < capacity && result->moved < capacity && result->damaged < capacity) {
        uint64_t next = *at, position = 0;
        int      found = next_message(store, &next, limit, end, 0, &position);
        if (found == NO_RECORD) return -1;
        uint64_t id = found == NO_MESSAGE ? 0 : current_id(store, position);
        if (id && tw_is_dead(store, id, now_ms)) {
            dead[result->dead++] = id;
        } else if (id && found == DAMAGED_MESSAGE) {
            damaged[result->damaged++] = id;
        } else if (id) {
            const tw_row *row = &store->rows[id];
            uint64_t      bytes = moved_bytes(store, row);
            if (!has_room(store, bytes)) { result->need = bytes; return TW_STOP_NEED_DISK; }
            put_moved(store, row);
            result->moved++;
            result->moved_bytes += bytes;
        }
        *at = next;
    }
    return 0;
}

static int check_moved(const tw_store *store, const tw_moved *moved, const tw_message *message, uint64_t room) {
    uint64_t bytes = sizeof *message + message->key_bytes + message->headers_bytes + message->head.order_bytes +
                     (uint64_t)message->body_bytes;
    if (message->head.type != TW_RECORD_MESSAGE || bytes != message->head.record_bytes || bytes > room) return 0;
    if (message->id == 0 || message->id >= store->next_id) return 0;
    if (message->id < store->rows_start || message->id >= store->rows_allocated) return 0;
    if (!tw_topic_exists(store, message->head.aux)) return 0;
    const tw_topic *topic = &store->topics[message->head.aux];
    if (moved->state != TW_READY) return 1;
    return moved->topic_seq >= topic->arrivals_start && moved->topic_seq < topic->allocated;
}

/* 0, -1 for nonsense, or the number of a group whose rows must first reach the message. */
static int64_t check_groups(const tw_store *store, const tw_moved *moved, const uint8_t *entries, uint32_t topic_id) {
    for (uint32_t i = 0; i < moved->groups; i++) {
        tw_moved_group entry;
        memcpy(&entry, entries + i * sizeof entry, sizeof entry);
        if (entry.group_id == 0 || entry.group_id >= store->groups_capacity) return -1;
        const tw_group *group = &store->groups[entry.group_id];
        if (!group->exists || group->topic_id != topic_id) return -1;
        if (moved->topic_seq < group->rows_start) return -1;
        if (moved->topic_seq >= group->allocated) return entry.group_id;
    }
    return 0;
}

static void set_groups(tw_store *store, const tw_moved *moved, const uint8_t *entries) {
    for (uint32_t i = 0; i < moved->groups; i++) {
        tw_moved_group entry;
        memcpy(&entry, entries + i * sizeof entry, sizeof entry);
        tw_group    *group = &store->groups[entry.group_id];
        tw_delivery *delivery = &group->rows[moved->topic_seq];
        delivery->state = entry.state;
        delivery->flags = (uint8_t)((delivery->flags & ~TW_CALLED) | (entry.flags & TW_CALLED));
        delivery->epoch = entry.epoch;
        delivery->base_epoch = entry.base_epoch;
        delivery->time_ms = entry.time_ms;
        if (moved->topic_seq >= group->high_seq) group->high_seq = moved->topic_seq + 1;
    }
}

int tw_apply_moved(tw_store *store, uint64_t position, uint64_t *need) {
    const uint8_t *record = tw_place(store->log, position), *entries = record + sizeof(tw_head) + sizeof(tw_moved);
    uint64_t       bytes = tw_load32(record + 4), before = sizeof(tw_head) + sizeof(tw_moved);
    tw_moved       moved;
    tw_message     message;
    if (bytes < before + sizeof message) return -1;
    memcpy(&moved, record + sizeof(tw_head), sizeof moved);
    before += (uint64_t)moved.groups * sizeof(tw_moved_group);
    if (bytes < before + sizeof message) return -1;
    memcpy(&message, record + before, sizeof message);
    if (!check_moved(store, &moved, &message, bytes - before)) return -1;
    int64_t group_id = check_groups(store, &moved, entries, message.head.aux);
    if (group_id < 0) return -1;
    if (group_id) { *need = (uint64_t)group_id; return TW_STOP_NEED_DELIVERIES; }
    if (!tw_may_fill(store, message.id)) { *need = message.id + 1; return TW_STOP_NEED_ROWS; }
    const uint8_t *key = record + before + sizeof message;
    tw_topic      *topic = &store->topics[message.head.aux];
    uint32_t       key_topic = tw_key_topic(store, message.head.aux);
    uint32_t       hash = message.key_bytes ? tw_key_hash(key_topic, key, message.key_bytes) : 0;
    int            is_found_by_key = hash && (moved.state == TW_SCHEDULED || moved.state == TW_READY);
    if (store->keeps_keys && is_found_by_key && !tw_keys_enter(store, message.id, hash, need)) return TW_STOP_NEED_KEYS;
    store->rows[message.id] = (tw_row){
        .position = position + before,
        .deliver_at_ms = message.deliver_at_ms,
        .created_ms = message.created_ms,
        .topic_seq = moved.topic_seq,
        .topic_id = (uint16_t)message.head.aux,
        .flags = moved.flags,
        .key_hash = hash,
        .record_bytes = message.head.record_bytes,
        .version = moved.version,
        .state = moved.state,
        .priority = message.head.flags,
    };
    if (moved.state != TW_READY) return 0;
    if (topic->arrivals[moved.topic_seq].id != message.id) topic->arrivals[moved.topic_seq].id = message.id;
    set_groups(store, &moved, entries);
    return 0;
}

/* ---- forgetting ---- */

static int has_arrival(const tw_topic *topic, const tw_row *row, uint64_t id) {
    return row->topic_seq < topic->allocated && tw_id_at(topic, row->topic_seq) == id;
}

void tw_purge_count(const tw_store *store, const uint64_t *ids, uint64_t n, uint64_t *of_topics, uint64_t *of_groups) {
    for (uint64_t i = 0; i < n; i++) {
        const tw_row *row = &store->rows[ids[i]];
        if (!tw_topic_exists(store, row->topic_id)) continue;
        const tw_topic *topic = &store->topics[row->topic_id];
        of_topics[2 * row->topic_id]++;
        of_topics[2 * row->topic_id + 1] += row->state == TW_CANCELLED;
        if (!has_arrival(topic, row, ids[i])) continue;
        for (uint32_t g = topic->first_group; g; g = store->groups[g].next_group) {
            const tw_delivery *delivery = delivery_of(&store->groups[g], row);
            if (!delivery) continue;
            of_groups[3 * g] += delivery->state == TW_ACKED;
            of_groups[3 * g + 1] += delivery->state == TW_DEAD;
            of_groups[3 * g + 2] += tw_times_delivered(&store->groups[g], delivery);
        }
    }
}

/* What a group knows of a message goes; only its place in a chain stays, until the chain comes by. */
static void forget_delivery(tw_group *group, const tw_row *row) {
    if (!tw_delivery_at(group, row->topic_seq)) return;
    tw_delivery *delivery = &group->rows[row->topic_seq];
    if (delivery->state == TW_UNTOUCHED && !delivery->flags && !delivery->epoch) return;
    if (delivery->state != TW_UNTOUCHED && group->touched) group->touched--;
    uint8_t in_chain = delivery->flags & (TW_IN_RETRY | TW_PARKED | TW_IN_RUN);
    *delivery = (tw_delivery){.flags = in_chain, .retry_next = in_chain ? delivery->retry_next : 0};
}

/* Queries read the tables meanwhile, from other processes. The row goes first: a reader that finds it after it read the rest
 * knows that the rest was still there. */
static void forget(tw_store *store, uint64_t id) {
    tw_row row = store->rows[id];
    if (row.key_hash && (row.state == TW_SCHEDULED || row.state == TW_READY)) tw_keys_remove(store, id);
    memset(&store->rows[id], 0, sizeof row);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!tw_topic_exists(store, row.topic_id)) return;
    tw_topic *topic = &store->topics[row.topic_id];
    if (row.state == TW_READY && topic->ready) topic->ready--;
    if (!has_arrival(topic, &row, id)) return;
    topic->arrivals[row.topic_seq].id = 0; /* `next` stays: lanes go through it */
    for (uint32_t g = topic->first_group; g; g = store->groups[g].next_group) forget_delivery(&store->groups[g], &row);
}

uint64_t tw_purge_list(const tw_store *store, uint64_t *from, uint64_t to, uint64_t capacity, uint64_t *ids) {
    uint64_t count = 0;
    while (*from < to && count < capacity) {
        uint64_t position = 0;
        int      found = next_message(store, from, to, to, 1, &position);
        if (found == NO_RECORD) *from = to;
        uint64_t id = found == NO_MESSAGE || found == NO_RECORD ? 0 : current_id(store, position);
        if (id) ids[count++] = id;
    }
    return count;
}

int tw_apply_purged(tw_store *store, uint64_t from, uint64_t to) {
    while (from < to) {
        uint64_t position = 0;
        int      found = next_message(store, &from, to, to, 1, &position);
        if (found == NO_RECORD) return -1;
        uint64_t id = found == NO_MESSAGE ? 0 : current_id(store, position);
        if (id) forget(store, id);
    }
    return 0;
}

/* ---- what there is ---- */

void tw_purge_survey(const tw_store *store, uint64_t from_id, uint64_t end_id, int64_t now_ms, uint64_t first,
                     uint64_t segment_bytes, uint64_t segments, uint64_t *live, uint64_t *live_bytes, uint64_t *dead) {
    for (uint64_t id = from_id; id < end_id; id++) {
        const tw_row *row = tw_row_at(store, id);
        if (row->state == TW_NONE || row->position < first) continue;
        uint64_t segment = (row->position - first) / segment_bytes;
        if (segment >= segments) continue;
        if (tw_is_dead(store, id, now_ms)) { dead[segment]++; continue; }
        live[segment]++;
        live_bytes[segment] += moved_bytes(store, row);
    }
}

/* Whether nothing is, or comes to be, at a number of a topic again. */
static int is_empty(const tw_store *store, uint32_t topic_id, uint64_t seq) {
    uint64_t id = store->topics[topic_id].arrivals[seq].id;
    if (id == 0 || id >= store->next_id) return 1;
    const tw_row *row = tw_row_at(store, id);
    return row->state == TW_NONE || row->state == TW_SCHEDULED || row->topic_id != topic_id || row->topic_seq != seq;
}

/* The head of a lane goes; the groups that stand on it start with the lane's new head. */
static void drop_lane_head(tw_store *store, tw_topic *topic, uint32_t priority) {
    uint64_t head = topic->lane_first[priority];
    topic->lane_first[priority] = topic->arrivals[head - 1].next;
    if (!topic->lane_first[priority]) {
        topic->lane_last[priority] = 0;
        topic->lanes[priority >> 6] &= ~(UINT64_C(1) << (priority & 63));
    }
    for (uint32_t g = topic->first_group; g; g = store->groups[g].next_group)
        if (store->groups[g].cursor[priority] == head) store->groups[g].cursor[priority] = 0;
}

static uint64_t lower(uint64_t lowest, uint64_t link) { return link && link - 1 < lowest ? link - 1 : lowest; }

uint64_t tw_lowest_arrival(const tw_store *store, uint32_t topic_id) {
    const tw_topic *topic = &store->topics[topic_id];
    uint64_t        lowest = topic->first_seq;
    for (uint32_t p = 0; p < 256; p++) {
        lowest = lower(lowest, topic->lane_first[p]);
        for (uint32_t g = topic->first_group; g; g = store->groups[g].next_group)
            lowest = lower(lowest, store->groups[g].cursor[p]);
    }
    return lowest;
}

uint64_t tw_lowest_delivery(const tw_store *store, uint32_t group_id) {
    const tw_group *group = &store->groups[group_id];
    uint64_t        lowest = store->topics[group->topic_id].first_seq;
    for (uint32_t p = 0; p < 256; p++)
        for (uint64_t at = group->retry_first[p]; at; at = group->rows[at - 1].retry_next) lowest = lower(lowest, at);
    for (uint32_t i = 0; i < group->orders_capacity; i++) {
        if (!group->orders[i].hash) continue;
        lowest = lower(lowest, group->orders[i].current);
        for (uint64_t at = group->orders[i].first; at; at = group->rows[at - 1].retry_next) lowest = lower(lowest, at);
    }
    return lowest;
}

int tw_raise_first_seq(tw_store *store, uint32_t topic_id, uint64_t limit) {
    tw_topic *topic = &store->topics[topic_id];
    for (; topic->first_seq < topic->count; topic->first_seq++) {
        if (!limit--) return 1;
        if (!is_empty(store, topic_id, topic->first_seq)) return 0;
        for (uint32_t word = 0; word < 4; word++) {
            for (uint64_t lanes = topic->lanes[word]; lanes; lanes &= lanes - 1) {
                uint32_t priority = word * 64 + (uint32_t)__builtin_ctzll(lanes);
                if (topic->lane_first[priority] == topic->first_seq + 1) drop_lane_head(store, topic, priority);
            }
        }
    }
    return 0;
}

int tw_raise_first_id(tw_store *store, uint64_t limit) {
    uint64_t stop = store->first_id;
    for (;; store->first_id++) {
        if (store->first_id == stop) stop = tw_rows_until(store, &store->first_id, store->next_id);
        if (store->first_id >= store->next_id || store->rows[store->first_id].state != TW_NONE) return 0;
        if (!limit--) return 1;
    }
}
