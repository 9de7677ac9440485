/* From the wheel into topics, from topics to subscribers, and back by acks. */
#include "crc32c.h"
#include "rows.h"

enum { FRAME_HEAD = 16, DELIVER_HEAD = 8, FRAME_DELIVER = 22 };
enum { DELIVER_COLUMNS = 8 + 8 + 8 + 4 + 4 + 2 + 2 + 2 + 1 };

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

uint64_t tw_runs_end(const tw_run *runs, uint64_t n) {
    uint64_t end = 0;
    for (uint64_t i = 0; i < n; i++)
        if (runs[i].first + runs[i].count > end) end = runs[i].first + runs[i].count;
    return end;
}

uint64_t tw_runs_values(const tw_run *runs, uint64_t n) {
    uint64_t values = 0;
    for (uint64_t i = 0; i < n; i++) values += runs[i].count;
    return values;
}

/* ---- into the topic ---- */

void tw_due_times(const tw_store *store, const uint64_t *ids, uint64_t n, int64_t *due_ms) {
    for (uint64_t i = 0; i < n; i++) due_ms[i] = tw_due_ms(store, tw_row_at(store, ids[i]), ids[i]);
}

uint64_t tw_count_lateness(const tw_store *store, uint32_t group_id, const uint64_t *values, const uint32_t *epochs,
                           uint64_t n, int64_t now_ms, const int64_t *bounds, uint64_t bounds_count, int64_t *counts,
                           int64_t *sum_ms) {
    const tw_topic *topic = group_id ? &store->topics[store->groups[group_id].topic_id] : NULL;
    uint64_t        counted = 0;
    uint32_t        first_epoch = group_id ? store->groups[group_id].fence + 1 : 1;
    for (uint64_t i = 0; i < n; i++) {
        if (epochs && epochs[i] != first_epoch) continue;
        if (topic && values[i] >= topic->count) continue;
        uint64_t id = topic ? tw_id_at(topic, values[i]) : values[i];
        if (id == 0 || id >= store->next_id) continue;
        const tw_row *row = tw_row_at(store, id);
        int64_t       due_ms = tw_due_ms(store, row, id);
        int64_t       late_ms = now_ms - (due_ms > row->created_ms ? due_ms : row->created_ms);
        uint64_t      place = 0;
        if (late_ms < 0) late_ms = 0;
        while (place < bounds_count && bounds[place] < late_ms) place++;
        counts[place]++;
        *sum_ms += late_ms;
        counted++;
    }
    return counted;
}

/* Whether what lies in the log at a message's place is its record. */
static int is_whole(const tw_store *store, const tw_row *row, uint64_t id) {
    const uint8_t *record = tw_place(store->log, row->position);
    return row->record_bytes >= sizeof(tw_message) && row->record_bytes <= store->log_readable &&
           row->position <= store->log_readable - row->record_bytes && tw_load32(record + 4) == row->record_bytes &&
           tw_load64(record + 16) == id && tw_crc32c(record + 4, row->record_bytes - 4, 0) == tw_load32(record);
}

uint64_t tw_damaged(const tw_store *store, const uint64_t *ids, uint64_t n, uint64_t *damaged) {
    uint64_t found = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (i + 8 < n) __builtin_prefetch(&store->rows[ids[i + 8]]);
        if (i + 4 < n) __builtin_prefetch(tw_place(store->log, tw_row_at(store, ids[i + 4])->position));
        const tw_row *row = tw_row_at(store, ids[i]);
        if (row->position >= store->staging_position) continue;
        if (!is_whole(store, row, ids[i])) damaged[found++] = ids[i];
    }
    return found;
}

static int is_scheduled(const tw_store *store, uint64_t id, uint32_t version) {
    if (id == 0 || id >= store->next_id) return 0;
    const tw_row *row = tw_row_at(store, id);
    return row->state == TW_SCHEDULED && row->version == version && tw_topic_exists(store, row->topic_id);
}

uint64_t tw_still_scheduled(const tw_store *store, const uint64_t *ids, const uint32_t *versions, uint64_t n,
                            uint64_t *still) {
    uint64_t found = 0;
    for (uint64_t i = 0; i < n; i++)
        if (is_scheduled(store, ids[i], versions[i])) still[found++] = ids[i];
    return found;
}

int64_t tw_lookup(const tw_store *store, const uint64_t *ids, const uint32_t *versions, uint64_t n, int64_t now_ms,
                  uint8_t *verdicts) {
    int64_t due = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (i + 8 < n && ids[i + 8] < store->next_id) __builtin_prefetch(&store->rows[ids[i + 8]]);
        if (i + 4 < n && ids[i + 4] < store->next_id)
            __builtin_prefetch(tw_place(store->log, tw_row_at(store, ids[i + 4])->position));
        verdicts[i] = TW_IS_NOT_DUE;
        if (!is_scheduled(store, ids[i], versions[i])) continue;
        const tw_row *row = &store->rows[ids[i]];
        if (tw_due_ms(store, row, ids[i]) > now_ms) continue; /* its topic spreads more since: another timer is set */
        int whole = is_whole(store, row, ids[i]);
        verdicts[i] = whole ? TW_IS_DUE : TW_IS_BROKEN;
        due += whole;
    }
    return due;
}

int tw_apply_put(tw_store *store, uint32_t topic_id, uint64_t first_seq, const tw_run *runs, uint64_t n) {
    tw_topic *topic = &store->topics[topic_id];
    uint64_t  seq = first_seq, total = 0;
    for (uint64_t r = 0; r < n; r++) {
        if (runs[r].first == 0) return -1;
        total += runs[r].count;
    }
    if (first_seq < topic->arrivals_start || first_seq > topic->allocated || total > topic->allocated - first_seq) return -1;
    if (!tw_runs_end_by(runs, n, store->next_id)) return -1;
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t id = runs[r].first; id < runs[r].first + runs[r].count; id++, seq++) {
            TW_ASSERT_LIVE(store, tw_row_at(store, id)->state == TW_SCHEDULED && tw_row_at(store, id)->topic_id == topic_id,
                           "what comes into a topic is scheduled for it");
            if (tw_row_at(store, id)->state == TW_NONE) { total--; continue; } /* it was purged since: its number stays empty */
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
    for (uint32_t g = topic->first_group; g; g = store->groups[g].next_group) store->groups[g].pending += total;
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

/* Puts a message back in front of those that wait. */
static void return_retry(tw_group *group, uint32_t priority, uint64_t seq) {
    group->rows[seq].retry_next = group->retry_first[priority];
    group->rows[seq].flags |= TW_IN_RETRY;
    group->retry_first[priority] = seq + 1;
    if (!group->retry_last[priority]) group->retry_last[priority] = seq + 1;
    group->retry_lanes[priority >> 6] |= UINT64_C(1) << (priority & 63);
}

static void drop_retry_head(tw_group *group, uint32_t priority) {
    tw_delivery *row = &group->rows[group->retry_first[priority] - 1];
    group->retry_first[priority] = row->retry_next;
    row->flags &= (uint8_t)~(TW_IN_RETRY | TW_POSTPONED);
    if (row->retry_next) return;
    group->retry_last[priority] = 0;
    group->retry_lanes[priority >> 6] &= ~(UINT64_C(1) << (priority & 63));
}

/* Messages passed over in one call: dead entries of a lane, or those behind a busy ordering key. */
enum { SCAN_LIMIT = 65536 };

typedef struct {
    const tw_store *store;
    tw_group       *group;
    const tw_topic *topic;
    uint64_t        lanes[4]; /* that may hold something */
    uint64_t        scanned;
    uint64_t        need;
    uint32_t        run_limit;
} picker_t;

/* Whether no other message of its ordering key is not done, or still out; then the key is busy with this one. */
static int has_its_key(picker_t *picker, uint64_t seq) {
    tw_group     *group = picker->group;
    const tw_row *row = tw_row_of(picker->store, group, seq);
    if (!(row->flags & TW_ORDERED) || group->ignores_order) return 1;
    if (!tw_orders_have_room(group)) { picker->need = TW_NEED_ORDERS; return 0; }
    uint32_t hash = group->rows[seq].order_hash;
    return tw_order_enter(group, hash ? hash : tw_order_hash(picker->store, row), seq) && !tw_order_is_out(group, seq);
}

/* topic_seq + 1 of the first message that really waits for redelivery, or 0. */
static uint64_t retry_head(picker_t *picker, uint32_t priority) {
    tw_group *group = picker->group;
    while (group->retry_first[priority]) {
        uint64_t at = group->retry_first[priority];
        int      waits = tw_is_open(picker->store, group, at - 1) && !(group->rows[at - 1].flags & TW_POSTPONED);
        if (waits && has_its_key(picker, at - 1)) return at;
        if (picker->need) return 0;
        drop_retry_head(group, priority); /* acked, cancelled or put off while it waited; or it has to wait longer */
        if (waits) tw_order_park(group, at - 1);
    }
    return 0;
}

/* Whether a new message may be delivered now: it is there, and no earlier one of its ordering key is open, or only such
 * that go with it. Others are looked at too, since after a start the table of busy keys is made again on the way. */
static int is_its_turn(picker_t *picker, uint64_t seq) {
    tw_group *group = picker->group;
    if (seq < group->start_seq || !tw_is_open(picker->store, group, seq)) return 0;
    const tw_delivery *row = &group->rows[seq];
    if (row->flags & (TW_PARKED | TW_TAKEN | TW_CALLED | TW_IN_RUN)) return 0;
    int is_new = row->state == TW_UNTOUCHED && !(row->flags & TW_IN_RETRY);
    if (has_its_key(picker, seq)) return is_new;
    if (is_new && !picker->need && picker->run_limit > 1 && tw_order_may_follow(group, seq, picker->run_limit)) return 1;
    if (is_new && !picker->need) tw_order_park(group, seq);
    return 0;
}

/* topic_seq + 1 of the lane's next new message, or 0; the cursor moves up to it, not over it. */
static uint64_t lane_head(picker_t *picker, uint32_t priority) {
    tw_group *group = picker->group;
    while (picker->scanned < SCAN_LIMIT) {
        uint64_t cursor = group->cursor[priority];
        uint64_t next = cursor ? picker->topic->arrivals[cursor - 1].next : picker->topic->lane_first[priority];
        if (!next) return 0;
        if (next > group->allocated) { picker->need = next; return 0; }
        if (is_its_turn(picker, next - 1)) return next;
        if (picker->need) return 0;
        group->cursor[priority] = next;
        picker->scanned++;
    }
    picker->need = TW_NEED_MORE_TIME;
    return 0;
}

/* Takes the next message of one lane: redeliveries before new ones. */
static uint64_t take(picker_t *picker, uint32_t priority) {
    uint64_t at = retry_head(picker, priority);
    if (at) { drop_retry_head(picker->group, priority); return at; }
    if (picker->need) return 0;
    at = lane_head(picker, priority);
    if (at) picker->group->cursor[priority] = at;
    return at;
}

/* Takes the next message of the lane with the lowest number that has one. */
static uint64_t take_first(picker_t *picker) {
    for (uint32_t word = 0; word < 4; word++) {
        while (picker->lanes[word]) {
            uint64_t at = take(picker, word * 64 + (uint32_t)__builtin_ctzll(picker->lanes[word]));
            if (at || picker->need) return at;
            picker->lanes[word] &= picker->lanes[word] - 1;
        }
    }
    return 0;
}

/* Takes the next new message of the lane with the lowest number that has one. */
static uint64_t take_first_new(picker_t *picker) {
    for (uint32_t word = 0; word < 4; word++) {
        for (uint64_t lanes = picker->lanes[word]; lanes; lanes &= lanes - 1) {
            uint32_t priority = word * 64 + (uint32_t)__builtin_ctzll(lanes);
            uint64_t at = lane_head(picker, priority);
            if (at) picker->group->cursor[priority] = at;
            if (at || picker->need) return at;
        }
    }
    return 0;
}

static int has_retries(const tw_group *group) {
    return (group->retry_lanes[0] | group->retry_lanes[1] | group->retry_lanes[2] | group->retry_lanes[3]) != 0;
}

/* Takes the message that reached the topic before all others that wait, whatever its lane. */
static uint64_t take_longest_waiting(picker_t *picker) {
    uint64_t oldest = 0;
    uint32_t lane = 0;
    int      is_retry = 0;
    for (uint32_t word = 0; word < 4; word++) {
        for (uint64_t lanes = picker->lanes[word]; lanes; lanes &= lanes - 1) {
            uint32_t priority = word * 64 + (uint32_t)__builtin_ctzll(lanes);
            uint64_t retry = retry_head(picker, priority), fresh = lane_head(picker, priority);
            if (picker->need) return 0;
            if (retry && (!oldest || retry < oldest)) { oldest = retry; lane = priority; is_retry = 1; }
            if (fresh && (!oldest || fresh < oldest)) { oldest = fresh; lane = priority; is_retry = 0; }
        }
    }
    if (oldest && is_retry) {
        /* The head of its chain, so it can be dropped there. */
        drop_retry_head(picker->group, lane);
    } else if (oldest) {
        picker->group->cursor[lane] = oldest;
    }
    return oldest;
}

static int has_one_lane(const picker_t *picker) {
    int lanes = 0;
    for (uint32_t word = 0; word < 4; word++) lanes += __builtin_popcountll(picker->lanes[word]);
    return lanes <= 1;
}

static uint64_t body_offset_bytes(const tw_row *row) { return row->record_bytes - sizeof(tw_message); }

int64_t tw_select(tw_store *store, uint32_t group_id, uint64_t limit, uint64_t limit_bytes, uint32_t run_limit, int64_t now_ms,
                  uint64_t *seqs, uint32_t *epochs, int64_t *until_ms, uint64_t *frame_bytes, uint64_t *need) {
    tw_group *group = &store->groups[group_id];
    picker_t  picker = {.store = store, .group = group, .topic = &store->topics[group->topic_id], .run_limit = run_limit};
    uint64_t  n = 0, bytes = DELIVER_HEAD, ordered = 0;
    for (uint32_t word = 0; word < 4; word++)
        picker.lanes[word] = picker.topic->lanes[word] | group->retry_lanes[word];
    int one_lane = has_one_lane(&picker);
    while (n < limit && (n == 0 || bytes < limit_bytes)) {
        uint64_t at = ordered ? tw_order_follow(store, group, ordered - 1, run_limit) : 0;
        int      follows = at != 0;
        uint32_t share = (group->turn + 1) % TW_RESERVED_SHARE;
        if (!at && !one_lane && share == 0) at = take_longest_waiting(&picker);
        if (!at && share == TW_NEW_SHARE && has_retries(group)) at = take_first_new(&picker);
        if (!at && !picker.need) at = take_first(&picker);
        if (!at) break;
        uint64_t     id = picker.topic->arrivals[at - 1].id;
        tw_delivery *row = &group->rows[at - 1];
        if (!follows) {
            ordered = run_limit > 1 && !group->ignores_order && (store->rows[id].flags & TW_ORDERED) ? at : 0;
            if (ordered) tw_order_take(group, at - 1);
        }
        row->flags |= TW_TAKEN;
        seqs[n] = at - 1;
        uint32_t base = tw_base_epoch(group, row);
        epochs[n] = (row->epoch > group->fence ? row->epoch : group->fence) + 1;
        until_ms[n] = now_ms + tw_backoff_ms(group->ack_wait_ms, group->min_backoff_ms, group->max_backoff_ms, id,
                                             epochs[n] - base);
        bytes += DELIVER_COLUMNS + body_offset_bytes(&store->rows[id]);
        group->turn++;
        n++;
    }
    *need = picker.need;
    *frame_bytes = FRAME_HEAD + bytes;
    return (int64_t)n;
}

void tw_unselect(tw_store *store, uint32_t group_id, const uint64_t *seqs, uint64_t n) {
    tw_group *group = &store->groups[group_id];
    group->turn -= (uint32_t)n;
    for (uint64_t i = n; i-- > 0;) {
        uint32_t priority = tw_row_of(store, group, seqs[i])->priority;
        group->rows[seqs[i]].flags &= (uint8_t)~TW_TAKEN;
        if (group->rows[seqs[i]].flags & TW_IN_RUN) {
            group->rows[seqs[i]].flags |= TW_PARKED;
            continue;
        }
        /* A message that was new goes back by moving the lane's cursor before it; the rest of what was taken lies
         * behind it in the same lane and is skipped or found again by its state. */
        if (group->rows[seqs[i]].state == TW_UNTOUCHED) group->cursor[priority] = 0;
        else return_retry(group, priority, seqs[i]);
    }
}

int tw_apply_lease(tw_store *store, uint32_t group_id, uint32_t holder, const tw_run *runs, uint64_t n) {
    tw_group *group = &store->groups[group_id];
    if (!tw_runs_end_by(runs, n, group->allocated)) return -1;
    for (uint64_t r = 0; r < n; r++) {
        uint64_t end = runs[r].first + runs[r].count, from = tw_with_rows(group, runs[r].first);
        uint64_t leased = from < end ? end - from : 0;
        for (uint64_t seq = from; seq < end; seq++) {
            tw_delivery *row = &group->rows[seq];
            TW_ASSERT_LIVE(store, tw_is_open(store, group, seq), "what is given out is in its topic, and not done with");
            TW_ASSERT_LIVE(store, runs[r].epoch > row->epoch, "each delivery has a higher epoch than the one before");
            if (tw_is_gone(store, group, seq)) { leased--; continue; }
            if (row->state == TW_UNTOUCHED) { /* also after it began anew: the attempts begin with this one */
                group->touched++;
                row->base_epoch = runs[r].epoch - 1;
            } else {
                row->base_epoch = tw_base_epoch(group, row);
            }
            row->flags &= (uint8_t)~(TW_TAKEN | TW_CALLED);
            row->state = TW_LEASED;
            row->epoch = runs[r].epoch;
            row->time_ms = runs[r].time_ms;
            row->holder = (uint16_t)holder;
        }
        if (end > group->high_seq) group->high_seq = end;
        if (runs[r].epoch > group->highest_epoch) group->highest_epoch = runs[r].epoch;
        group->leased += leased;
        group->deliveries += leased;
        store->outstanding[holder] += (uint32_t)leased;
    }
    return 0;
}

int64_t tw_deliver_frame(const tw_store *store, uint32_t group_id, uint32_t subscription, const uint64_t *seqs,
                         uint64_t n, uint8_t *frame, uint64_t frame_capacity) {
    const tw_topic *topic = &store->topics[store->groups[group_id].topic_id];
    const tw_group *group = &store->groups[group_id];
    uint8_t        *ids = frame + FRAME_HEAD + DELIVER_HEAD, *dues = ids + 8 * n, *created = dues + 8 * n;
    uint8_t        *epochs = created + 8 * n, *bodies = epochs + 4 * n, *keys = bodies + 4 * n;
    uint8_t        *headers = keys + 2 * n, *orders = headers + 2 * n, *priorities = orders + 2 * n;
    uint8_t        *blob = priorities + n;
    if (frame_capacity < FRAME_HEAD + DELIVER_HEAD + DELIVER_COLUMNS * n) return -1;
    tw_store32(frame + FRAME_HEAD, subscription);
    tw_store32(frame + FRAME_HEAD + 4, (uint32_t)n);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t      id = topic->arrivals[seqs[i]].id;
        const tw_row *row = &store->rows[id];
        if (i + 4 < n) __builtin_prefetch(tw_place(store->log, store->rows[topic->arrivals[seqs[i + 4]].id].position));
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
        memcpy(orders + 2 * i, record + 10, 2);
        priorities[i] = row->priority;
        memcpy(blob, record + sizeof(tw_message), content);
        blob += content;
    }
    uint64_t payload = (uint64_t)(blob - frame) - FRAME_HEAD;
    tw_finish_frame(frame, payload, FRAME_DELIVER, 0);
    return (int64_t)(FRAME_HEAD + payload);
}
