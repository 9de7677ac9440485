/* From the wheel into topics, from topics to subscribers, and back by acks. */
#include "crc32c.h"
#include "store.h"

enum { FRAME_HEAD = 16, DELIVER_HEAD = 8, FRAME_DELIVER = 22 };
enum { DELIVER_COLUMNS = 8 + 8 + 8 + 4 + 4 + 2 + 2 + 1 };
enum { ALREADY_ACKED = 1, STALE_RECEIPT = 2, NOT_FOUND = 3, NEVER_DELIVERED = 4 };

int64_t tw_runs(const uint64_t *values, const uint32_t *epochs, const int64_t *times, uint64_t n, tw_run *runs) {
    int64_t count = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t epoch = epochs ? epochs[i] : 0;
        int64_t  time_ms = times ? times[i] : 0;
        tw_run  *last = count ? &runs[count - 1] : NULL;
        if (last && last->first + last->count == values[i] && last->epoch == epoch && last->time_ms == time_ms &&
            last->count < UINT32_MAX)
            last->count++;
        else
            runs[count++] = (tw_run){values[i], 1, epoch, time_ms};
    }
    return count;
}

/* ---- into the topic ---- */

int64_t tw_lookup(const tw_store *store, const uint64_t *ids, const uint32_t *versions, uint64_t n, uint8_t *verdicts) {
    int64_t due = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (i + 8 < n && ids[i + 8] < store->next_id) __builtin_prefetch(&store->rows[ids[i + 8]]);
        if (i + 4 < n && ids[i + 4] < store->next_id) __builtin_prefetch(store->log + store->rows[ids[i + 4]].position);
        verdicts[i] = 0;
        if (ids[i] == 0 || ids[i] >= store->next_id) continue;
        const tw_row *row = &store->rows[ids[i]];
        if (row->state != TW_SCHEDULED || row->version != versions[i]) continue;
        const uint8_t *record = store->log + row->position;
        int whole = row->record_bytes >= sizeof(tw_message) && row->record_bytes <= store->log_readable &&
                    row->position <= store->log_readable - row->record_bytes &&
                    tw_load32(record + 4) == row->record_bytes && tw_load64(record + 16) == ids[i] &&
                    tw_crc32c(record + 4, row->record_bytes - 4, 0) == tw_load32(record);
        verdicts[i] = whole ? 1 : 2;
        due += whole;
    }
    return due;
}

/* 1 when no run reaches beyond `end`, whatever numbers a record holds. */
static int runs_end_by(const tw_run *runs, uint64_t n, uint64_t end) {
    for (uint64_t r = 0; r < n; r++)
        if (runs[r].first > end || runs[r].count > end - runs[r].first) return 0;
    return 1;
}

void tw_link_lane(tw_topic *topic, uint32_t priority, uint64_t seq) {
    topic->arrivals[seq].next = 0;
    if (topic->lane_last[priority]) topic->arrivals[topic->lane_last[priority] - 1].next = seq + 1;
    else topic->lane_first[priority] = seq + 1;
    topic->lane_last[priority] = seq + 1;
    topic->lanes[priority >> 6] |= UINT64_C(1) << (priority & 63);
}

int tw_apply_put(tw_store *store, uint32_t topic_id, uint64_t first_seq, const tw_run *runs, uint64_t n) {
    tw_topic *topic = &store->topics[topic_id];
    uint64_t  seq = first_seq, total = 0;
    for (uint64_t r = 0; r < n; r++) {
        if (runs[r].first == 0) return -1;
        total += runs[r].count;
    }
    if (first_seq > topic->allocated || total > topic->allocated - first_seq) return -1;
    if (!runs_end_by(runs, n, store->next_id)) return -1;
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t id = runs[r].first; id < runs[r].first + runs[r].count; id++, seq++) {
            tw_row *row = &store->rows[id];
            if (row->state == TW_SCHEDULED && topic->scheduled) topic->scheduled--;
            topic->ready += row->state != TW_READY;
            row->state = TW_READY;
            row->topic_seq = seq;
            topic->arrivals[seq].id = id;
            tw_link_lane(topic, row->priority, seq);
        }
    }
    if (seq > topic->count) topic->count = seq;
    return 0;
}

/* ---- from the topic to a subscriber ---- */

static uint64_t mix(uint64_t value) { /* the finaliser of SplitMix64 (Steele, Lea, Flood 2014) */
    value = (value ^ (value >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94D049BB133111EB);
    return value ^ (value >> 31);
}

int64_t tw_backoff_ms(int64_t ack_wait_ms, int64_t min_backoff_ms, int64_t max_backoff_ms, uint64_t id, uint32_t epoch) {
    if (epoch <= 1) return ack_wait_ms;
    int64_t high = max_backoff_ms > ack_wait_ms ? max_backoff_ms : ack_wait_ms;
    int64_t backoff = min_backoff_ms;
    for (uint32_t i = 1; i < epoch && backoff > 0 && backoff < high; i++)
        backoff = backoff > high / 2 ? high : backoff * 2;
    if (backoff > high) backoff = high;
    if (backoff < ack_wait_ms) backoff = ack_wait_ms;
    int64_t spread = backoff / 3, from = backoff - spread;
    int64_t to = spread > high - backoff ? high : backoff + spread;
    if (from < ack_wait_ms) from = ack_wait_ms;
    return from + (int64_t)(mix(id * 1000003 + epoch) % (uint64_t)(to - from + 1));
}

static void push_retry(tw_group *group, uint32_t priority, uint64_t seq) {
    tw_delivery *row = &group->rows[seq];
    row->retry_next = 0;
    row->flags |= TW_IN_RETRY;
    if (group->retry_last[priority]) group->rows[group->retry_last[priority] - 1].retry_next = seq + 1;
    else group->retry_first[priority] = seq + 1;
    group->retry_last[priority] = seq + 1;
    group->retry_lanes[priority >> 6] |= UINT64_C(1) << (priority & 63);
}

/* Puts a message back in front of those that wait. */
static void return_retry(tw_group *group, uint32_t priority, uint64_t seq) {
    group->rows[seq].retry_next = group->retry_first[priority];
    group->rows[seq].flags |= TW_IN_RETRY;
    group->retry_first[priority] = seq + 1;
    if (!group->retry_last[priority]) group->retry_last[priority] = seq + 1;
    group->retry_lanes[priority >> 6] |= UINT64_C(1) << (priority & 63);
}

/* Returns topic_seq + 1 of the next message that really waits for redelivery, or 0. */
static uint64_t pop_retry(tw_group *group, uint32_t priority) {
    while (group->retry_first[priority]) {
        uint64_t     at = group->retry_first[priority];
        tw_delivery *row = &group->rows[at - 1];
        group->retry_first[priority] = row->retry_next;
        row->flags &= (uint8_t)~TW_IN_RETRY;
        if (!row->retry_next) {
            group->retry_last[priority] = 0;
            group->retry_lanes[priority >> 6] &= ~(UINT64_C(1) << (priority & 63));
        }
        if (row->state == TW_LEASED) return at; /* it may have been acked while it waited */
    }
    return 0;
}

/* Returns topic_seq + 1 of the lane's next new message, or 0. *need: the group's rows must first reach there. */
static uint64_t pop_lane(const tw_store *store, tw_group *group, uint32_t priority, uint64_t *need) {
    const tw_topic *topic = &store->topics[group->topic_id];
    while (1) {
        uint64_t cursor = group->cursor[priority];
        uint64_t next = cursor ? topic->arrivals[cursor - 1].next : topic->lane_first[priority];
        if (!next) return 0;
        if (next > group->allocated) { *need = next; return 0; }
        group->cursor[priority] = next;
        if (next - 1 < group->start_seq || group->rows[next - 1].state != TW_UNTOUCHED) continue;
        if (store->rows[topic->arrivals[next - 1].id].state == TW_READY) return next;
    }
}

static uint64_t body_offset_bytes(const tw_row *row) { return row->record_bytes - sizeof(tw_message); }

int64_t tw_select(tw_store *store, uint32_t group_id, uint64_t limit, uint64_t limit_bytes, int64_t now_ms,
                  uint64_t *seqs, uint32_t *epochs, int64_t *until_ms, uint64_t *frame_bytes, uint64_t *need) {
    tw_group       *group = &store->groups[group_id];
    const tw_topic *topic = &store->topics[group->topic_id];
    uint64_t        n = 0, bytes = DELIVER_HEAD;
    *need = 0;
    for (uint32_t word = 0; word < 4; word++) {
        uint64_t lanes = topic->lanes[word];
        while (lanes && n < limit && (n == 0 || bytes < limit_bytes) && !*need) {
            uint32_t priority = word * 64 + (uint32_t)__builtin_ctzll(lanes);
            uint64_t at = pop_retry(group, priority);
            if (!at) at = pop_lane(store, group, priority, need);
            if (!at) { lanes &= lanes - 1; continue; }
            uint64_t id = topic->arrivals[at - 1].id;
            seqs[n] = at - 1;
            epochs[n] = group->rows[at - 1].epoch + 1;
            until_ms[n] = now_ms + tw_backoff_ms(group->ack_wait_ms, group->min_backoff_ms, group->max_backoff_ms, id,
                                                 epochs[n]);
            bytes += DELIVER_COLUMNS + body_offset_bytes(&store->rows[id]);
            n++;
        }
    }
    *frame_bytes = FRAME_HEAD + bytes;
    return (int64_t)n;
}

void tw_unselect(tw_store *store, uint32_t group_id, const uint64_t *seqs, const uint32_t *epochs, uint64_t n) {
    tw_group       *group = &store->groups[group_id];
    const tw_topic *topic = &store->topics[group->topic_id];
    for (uint64_t i = n; i-- > 0;) {
        uint32_t priority = store->rows[topic->arrivals[seqs[i]].id].priority;
        /* A message that was new goes back by moving the lane's cursor before it; the rest of what was taken lies
         * behind it in the same lane and is skipped or found again by its state. */
        if (epochs[i] == 1) group->cursor[priority] = 0;
        else return_retry(group, priority, seqs[i]);
    }
}

int tw_apply_lease(tw_store *store, uint32_t group_id, uint32_t holder, const tw_run *runs, uint64_t n) {
    tw_group *group = &store->groups[group_id];
    if (!runs_end_by(runs, n, group->allocated)) return -1;
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t seq = runs[r].first; seq < runs[r].first + runs[r].count; seq++) {
            tw_delivery *row = &group->rows[seq];
            if (row->state == TW_UNTOUCHED) group->touched++;
            row->state = TW_LEASED;
            row->epoch = runs[r].epoch;
            row->time_ms = runs[r].time_ms;
            row->holder = (uint16_t)holder;
        }
        if (runs[r].first + runs[r].count > group->high_seq) group->high_seq = runs[r].first + runs[r].count;
        group->leased += runs[r].count;
        group->deliveries += runs[r].count;
        store->outstanding[holder] += runs[r].count;
    }
    return 0;
}

int64_t tw_deliver_frame(const tw_store *store, uint32_t group_id, uint32_t subscription, const uint64_t *seqs,
                         uint64_t n, uint8_t *frame, uint64_t frame_capacity) {
    const tw_topic *topic = &store->topics[store->groups[group_id].topic_id];
    const tw_group *group = &store->groups[group_id];
    uint8_t        *ids = frame + FRAME_HEAD + DELIVER_HEAD, *dues = ids + 8 * n, *created = dues + 8 * n;
    uint8_t        *epochs = created + 8 * n, *bodies = epochs + 4 * n, *keys = bodies + 4 * n;
    uint8_t        *headers = keys + 2 * n, *priorities = headers + 2 * n, *blob = priorities + n;
    if (frame_capacity < FRAME_HEAD + DELIVER_HEAD + DELIVER_COLUMNS * n) return -1;
    tw_store32(frame + FRAME_HEAD, subscription);
    tw_store32(frame + FRAME_HEAD + 4, (uint32_t)n);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t      id = topic->arrivals[seqs[i]].id;
        const tw_row *row = &store->rows[id];
        if (i + 4 < n) __builtin_prefetch(store->log + store->rows[topic->arrivals[seqs[i + 4]].id].position);
        const uint8_t *record = tw_at(store, row->position);
        uint64_t       content = row->record_bytes - sizeof(tw_message);
        if (content > frame_capacity - (uint64_t)(blob - frame)) return -1;
        tw_store64(ids + 8 * i, id);
        tw_store64(dues + 8 * i, (uint64_t)row->deliver_at_ms);
        tw_store64(created + 8 * i, (uint64_t)row->created_ms);
        tw_store32(epochs + 4 * i, group->rows[seqs[i]].epoch);
        memcpy(bodies + 4 * i, record + 44, 4);
        memcpy(keys + 2 * i, record + 40, 2);
        memcpy(headers + 2 * i, record + 42, 2);
        priorities[i] = row->priority;
        memcpy(blob, record + sizeof(tw_message), content);
        blob += content;
    }
    uint64_t payload = (uint64_t)(blob - frame) - FRAME_HEAD;
    tw_finish_frame(frame, payload, FRAME_DELIVER, 0);
    return (int64_t)(FRAME_HEAD + payload);
}

/* ---- back ---- */

static uint32_t judge_receipt(const tw_store *store, const tw_group *group, uint64_t id, uint32_t epoch) {
    if (id == 0 || id >= store->next_id) return NOT_FOUND;
    const tw_row *row = &store->rows[id];
    if (row->topic_id != group->topic_id || row->state == TW_NONE) return NOT_FOUND;
    if (row->state != TW_READY || row->topic_seq >= group->allocated) return NEVER_DELIVERED;
    const tw_delivery *delivery = &group->rows[row->topic_seq];
    if (delivery->state == TW_UNTOUCHED) return NEVER_DELIVERED;
    if (delivery->state == TW_ACKED || (delivery->flags & TW_ACKING)) return ALREADY_ACKED;
    return delivery->epoch == epoch ? 0 : STALE_RECEIPT;
}

int64_t tw_ack_check(tw_store *store, uint32_t group_id, const uint8_t *payload, uint64_t n, uint64_t *seqs,
                     uint32_t *epochs, uint32_t *codes) {
    const tw_group *group = &store->groups[group_id];
    int64_t         accepted = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t id = tw_load64(payload + 8 * i);
        uint32_t epoch = tw_load32(payload + 8 * n + 4 * i);
        codes[i] = judge_receipt(store, group, id, epoch);
        if (codes[i]) continue;
        seqs[accepted] = store->rows[id].topic_seq;
        epochs[accepted] = epoch;
        group->rows[seqs[accepted]].flags |= TW_ACKING;
        accepted++;
    }
    return accepted;
}

/* The subscription no longer holds the message: its credit comes back. */
static void let_go(tw_store *store, tw_group *group, tw_delivery *row) {
    if (row->holder && store->outstanding[row->holder]) store->outstanding[row->holder]--;
    row->holder = 0;
    if (group->leased) group->leased--;
}

int tw_apply_ack(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n) {
    tw_group *group = &store->groups[group_id];
    if (!runs_end_by(runs, n, group->allocated)) return -1;
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t seq = runs[r].first; seq < runs[r].first + runs[r].count; seq++) {
            tw_delivery *row = &group->rows[seq];
            row->flags &= (uint8_t)~TW_ACKING;
            if (row->state == TW_ACKED) continue;
            if (row->state == TW_LEASED && !(row->flags & TW_IN_RETRY)) let_go(store, group, row);
            row->state = TW_ACKED;
            row->time_ms = runs[r].time_ms;
            group->acked++;
        }
    }
    return 0;
}

int64_t tw_expire(tw_store *store, uint32_t group_id, const uint64_t *seqs, const uint32_t *epochs, uint64_t n,
                  int64_t now_ms) {
    tw_group       *group = &store->groups[group_id];
    const tw_topic *topic = &store->topics[group->topic_id];
    int64_t         moved = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (seqs[i] >= group->allocated) continue;
        tw_delivery *row = &group->rows[seqs[i]];
        if (row->state != TW_LEASED || row->epoch != epochs[i] || row->time_ms > now_ms || (row->flags & TW_IN_RETRY))
            continue;
        let_go(store, group, row);
        push_retry(group, store->rows[topic->arrivals[seqs[i]].id].priority, seqs[i]);
        moved++;
    }
    return moved;
}

static void raise_floor(const tw_store *store, tw_group *group) {
    const tw_topic *topic = &store->topics[group->topic_id];
    while (group->floor_seq < group->high_seq &&
           (group->rows[group->floor_seq].state == TW_ACKED ||
            store->rows[topic->arrivals[group->floor_seq].id].state == TW_CANCELLED))
        group->floor_seq++;
}

int64_t tw_held_by(tw_store *store, uint32_t group_id, uint32_t holder, uint64_t *from_seq, uint64_t *seqs,
                   uint32_t *epochs, uint64_t capacity) {
    tw_group *group = &store->groups[group_id];
    raise_floor(store, group);
    uint64_t n = 0, seq = *from_seq > group->floor_seq ? *from_seq : group->floor_seq;
    for (; seq < group->high_seq && n < capacity; seq++) {
        const tw_delivery *row = &group->rows[seq];
        if (row->state != TW_LEASED || row->holder != holder) continue;
        seqs[n] = seq;
        epochs[n++] = row->epoch;
    }
    *from_seq = seq;
    return (int64_t)n;
}

int tw_apply_release(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n) {
    tw_group *group = &store->groups[group_id];
    if (!runs_end_by(runs, n, group->allocated)) return -1;
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t seq = runs[r].first; seq < runs[r].first + runs[r].count; seq++)
            if (group->rows[seq].state == TW_LEASED && group->rows[seq].epoch == runs[r].epoch)
                group->rows[seq].time_ms = runs[r].time_ms;
    }
    return 0;
}

int tw_group_untouched(const tw_store *store, uint32_t topic_id, uint64_t seq) {
    for (uint32_t g = 1; g < store->groups_capacity; g++) {
        const tw_group *group = &store->groups[g];
        if (group->exists && group->topic_id == topic_id && seq < group->allocated &&
            group->rows[seq].state != TW_UNTOUCHED)
            return 0;
    }
    return 1;
}

void tw_unmark_acks(tw_store *store, uint32_t group_id, const uint64_t *seqs, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) store->groups[group_id].rows[seqs[i]].flags &= (uint8_t)~TW_ACKING;
}
