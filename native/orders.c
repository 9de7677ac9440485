/* Ordering keys: of all messages of a group that share one, at most one may be with a subscriber, in the order in which
 * they reached the topic.
 *
 * A table holds the keys that are busy now: the message that is being delivered (or waits for its redelivery), and the
 * chain of those parked behind it. A message is entered when its turn comes, in the lane or in the retry chain, and only
 * the current one of its key goes out. It leaves when the group is done with it, and the next of its chain goes to the
 * retry chain, which is served before new messages. A message is in one chain at most: that of its key, or the retry
 * chain. Keys are compared by 32 bits of hash: two that collide wait for each other, which delays one and breaks
 * neither's order. */
#include "store.h"

static tw_order *place_of(tw_order *table, uint32_t capacity, uint32_t hash) {
    uint32_t i = hash & (capacity - 1);
    while (table[i].hash && table[i].hash != hash) i = (i + 1) & (capacity - 1);
    return &table[i];
}

int tw_orders_have_room(const tw_group *group) {
    return (uint64_t)(group->orders_count + 1) * 4 <= (uint64_t)group->orders_capacity * 3;
}

void tw_orders_move(tw_store *store, uint32_t group_id, tw_order *table, uint32_t capacity) {
    tw_group *group = &store->groups[group_id];
    for (uint32_t i = 0; i < group->orders_capacity; i++)
        if (group->orders[i].hash) *place_of(table, capacity, group->orders[i].hash) = group->orders[i];
    group->orders = table;
    group->orders_capacity = capacity;
}

int tw_order_enter(tw_group *group, uint32_t hash, uint64_t seq) {
    tw_order    *order = place_of(group->orders, group->orders_capacity, hash);
    tw_delivery *row = &group->rows[seq];
    row->order_hash = hash;
    if (!order->hash) {
        *order = (tw_order){.hash = hash, .current = seq + 1};
        group->orders_count++;
    }
    return order->current == seq + 1;
}

void tw_order_park(tw_group *group, uint64_t seq) {
    tw_delivery *row = &group->rows[seq];
    tw_order    *order = place_of(group->orders, group->orders_capacity, row->order_hash);
    int          is_new = row->state == TW_UNTOUCHED;
    uint64_t     before = is_new ? order->last : order->last_again;
    uint64_t    *link = before ? &group->rows[before - 1].retry_next : &order->first;
    row->flags |= TW_PARKED;
    row->retry_next = *link;
    *link = seq + 1;
    if (before == order->last) order->last = seq + 1;
    if (!is_new) order->last_again = seq + 1;
}

/* Backward shift: later entries of the cluster move up if their home is not behind the hole. */
static void empty_place(tw_group *group, tw_order *order) {
    uint32_t mask = group->orders_capacity - 1, i = (uint32_t)(order - group->orders);
    group->orders[i].hash = 0;
    for (uint32_t j = (i + 1) & mask; group->orders[j].hash; j = (j + 1) & mask) {
        if (((j - group->orders[j].hash) & mask) < ((j - i) & mask)) continue;
        group->orders[i] = group->orders[j];
        group->orders[j].hash = 0;
        i = j;
    }
    group->orders_count--;
}

void tw_order_leave(const tw_store *store, tw_group *group, uint64_t seq) {
    uint32_t hash = group->rows[seq].order_hash;
    if (!hash || !group->orders_capacity) return;
    tw_order *order = place_of(group->orders, group->orders_capacity, hash);
    if (order->hash != hash || order->current != seq + 1) return; /* parked, and passed over when its turn comes */
    while (order->first) {
        uint64_t     next = order->first;
        tw_delivery *row = &group->rows[next - 1];
        order->first = row->retry_next;
        if (!order->first) order->last = 0;
        if (order->last_again == next) order->last_again = 0;
        int postponed = row->flags & TW_POSTPONED;
        row->flags &= (uint8_t)~(TW_PARKED | TW_POSTPONED);
        if (postponed || !tw_is_open(store, group, next - 1)) continue;
        order->current = next;
        tw_push_retry(group, tw_row_of(store, group, next - 1)->priority, next - 1);
        return;
    }
    empty_place(group, order);
}

void tw_orders_release(tw_store *store, uint32_t group_id) {
    tw_group *group = &store->groups[group_id];
    for (uint32_t i = 0; i < group->orders_capacity; i++) {
        uint64_t at = group->orders[i].hash ? group->orders[i].first : 0;
        while (at) {
            tw_delivery *row = &group->rows[at - 1];
            uint64_t     next = row->retry_next;
            int          postponed = row->flags & TW_POSTPONED;
            row->flags &= (uint8_t)~(TW_PARKED | TW_POSTPONED);
            row->retry_next = 0;
            /* New ones are found in their lane again, in its order. */
            if (row->state != TW_UNTOUCHED && !postponed && tw_is_open(store, group, at - 1))
                tw_push_retry(group, tw_row_of(store, group, at - 1)->priority, at - 1);
            at = next;
        }
    }
    tw_orders_resume(store, group_id);
}

void tw_orders_resume(tw_store *store, uint32_t group_id) {
    tw_group *group = &store->groups[group_id];
    if (group->orders) memset(group->orders, 0, group->orders_capacity * sizeof *group->orders);
    group->orders_count = 0;
    group->cursor[TW_ORDERED_PRIORITY] = 0;
}

uint32_t tw_order_hash(const tw_store *store, const tw_row *row) {
    const uint8_t *record = tw_at(store, row->position);
    uint64_t       start = sizeof(tw_message) + tw_load16(record + 40) + tw_load16(record + 42);
    uint16_t       bytes = tw_load16(record + 10);
    if (start + bytes > row->record_bytes) return 1; /* a damaged record: any order will do */
    return tw_key_hash(0, record + start, bytes);
}
