/* Changing messages after they were sent: what state they are in, cancelling, giving another time. */
#include "rows.h"

int tw_judge(const tw_store *store, uint64_t id) {
    if (id == 0 || id >= store->next_id) return TW_IS_UNKNOWN;
    const tw_row *row = tw_row_at(store, id);
    if (!tw_topic_exists(store, row->topic_id)) return TW_IS_UNKNOWN;
    const tw_topic *topic = &store->topics[row->topic_id];
    if (row->state == TW_SCHEDULED) return TW_IS_SCHEDULED;
    if (row->state == TW_CANCELLED) return TW_IS_CANCELLED;
    if (row->state == TW_EXPIRED) return TW_IS_EXPIRED;
    if (row->state != TW_READY) return TW_IS_UNKNOWN;
    int touched = 0, open = !topic->first_group;
    for (uint32_t g = topic->first_group; g; g = store->groups[g].next_group) {
        const tw_group *group = &store->groups[g];
        const tw_delivery *delivery = tw_delivery_at(group, row->topic_seq);
        uint8_t            state = delivery ? delivery->state : TW_UNTOUCHED;
        touched |= state != TW_UNTOUCHED || (delivery && delivery->epoch);
        open |= row->topic_seq >= group->start_seq && state != TW_ACKED && state != TW_DEAD;
    }
    if (!touched) return TW_IS_READY;
    return open ? TW_IS_DELIVERED : TW_IS_DONE;
}

void tw_judge_all(const tw_store *store, const uint64_t *ids, uint64_t n, uint8_t *verdicts) {
    for (uint64_t i = 0; i < n; i++) verdicts[i] = (uint8_t)tw_judge(store, ids[i]);
}

static int exist(const tw_store *store, uint64_t id) { return id && id < store->next_id; }

/* A message in its topic is taken out again: no group waits for it any more. */
static void withdraw(tw_store *store, const tw_row *row) {
    tw_topic *topic = &store->topics[row->topic_id];
    TW_ASSERT_LIVE(store, topic->ready, "a topic counts what is in it");
    if (topic->ready) topic->ready--;
    for (uint32_t g = topic->first_group; g; g = store->groups[g].next_group) {
        tw_group *group = &store->groups[g];
        if (row->topic_seq < group->start_seq) continue;
        int          has_row = row->topic_seq >= group->rows_start && row->topic_seq < group->allocated;
        tw_delivery *delivery = has_row ? &group->rows[row->topic_seq] : NULL;
        if (delivery && (delivery->state == TW_ACKED || delivery->state == TW_DEAD)) continue;
        if (group->pending) group->pending--;
        if (!delivery || delivery->state != TW_LEASED) continue;
        tw_let_go(store, group, delivery);
        delivery->state = TW_WAITING; /* it is not in the topic, so it is never taken */
    }
}

/* After the row has changed: the next message of its ordering key may go. */
static void leave_orders(tw_store *store, const tw_row *row) {
    const tw_topic *topic = &store->topics[row->topic_id];
    for (uint32_t g = topic->first_group; g; g = store->groups[g].next_group) {
        tw_group *group = &store->groups[g];
        int       has_row = row->topic_seq >= group->rows_start && row->topic_seq < group->allocated;
        if (has_row) tw_order_leave(store, group, row->topic_seq);
    }
}

int tw_apply_end(tw_store *store, const uint64_t *ids, uint64_t n, uint8_t state) {
    for (uint64_t i = 0; i < n; i++)
        if (!exist(store, ids[i])) return -1;
    for (uint64_t i = 0; i < n; i++) {
        if (ids[i] < store->rows_start) continue;
        tw_row *row = &store->rows[ids[i]];
        if (row->topic_id >= store->topics_capacity) continue;
        tw_topic *topic = &store->topics[row->topic_id];
        uint8_t   before = row->state;
        TW_ASSERT_LIVE(store, before == TW_SCHEDULED || (before == TW_READY && row->topic_seq < topic->count),
                       "a message ends once");
        if (before != TW_SCHEDULED && before != TW_READY) continue;
        if (before == TW_READY) withdraw(store, row);
        else if (topic->scheduled) topic->scheduled--;
        row->state = state;
        topic->cancelled += state == TW_CANCELLED;
        if (row->key_hash) tw_keys_remove(store, ids[i]);
        if (before == TW_READY && (row->flags & TW_ORDERED)) leave_orders(store, row);
    }
    return 0;
}

int tw_apply_reschedule(tw_store *store, const tw_run *runs, uint64_t n, uint32_t priority) {
    for (uint64_t r = 0; r < n; r++)
        if (!exist(store, runs[r].first)) return -1;
    for (uint64_t r = 0; r < n; r++) {
        if (runs[r].first < store->rows_start) continue;
        tw_row *row = &store->rows[runs[r].first];
        if (row->topic_id >= store->topics_capacity) continue;
        tw_topic *topic = &store->topics[row->topic_id];
        uint8_t   before = row->state;
        TW_ASSERT_LIVE(store, before == TW_SCHEDULED || before == TW_READY, "what gets another time has not ended");
        TW_ASSERT_LIVE(store, (uint16_t)runs[r].epoch != row->version, "another time has another version");
        if (before != TW_SCHEDULED && before != TW_READY) continue;
        if (before == TW_READY) {
            withdraw(store, row);
            topic->scheduled++;
        }
        row->state = TW_SCHEDULED;
        row->deliver_at_ms = runs[r].time_ms;
        row->version = (uint16_t)runs[r].epoch;
        if (priority <= 255 && !(row->flags & TW_ORDERED)) row->priority = (uint8_t)priority;
        if (before == TW_READY && (row->flags & TW_ORDERED)) leave_orders(store, row);
    }
    return 0;
}
