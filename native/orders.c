/* Ordering keys: of all messages of a group that share one, at most one may be with a subscriber, in the order in which
 * they reached the topic; or a run of several that follow each other, which one request was given together.
 *
 * A table holds the keys that are busy now: the message that is being delivered (or waits for its redelivery), and the
 * chain of those behind it. A message is entered when its turn comes, in the lane or in the retry chain, and only
 * the current one of its key goes out. It leaves when the group is done with it, and the next of its chain goes to the
 * retry chain, which is served before new messages. A message is in one chain at most: that of its key, or the retry
 * chain. Keys are compared by 32 bits of hash: two that collide wait for each other, which delays one and breaks
 * neither's order.
 *
 * Those of a run stand in the chain of their key from the moment when they are taken, before those that wait. One whose
 * lease has ended is parked there. So it comes again behind the current one, or with it; and the current one does not
 * before all others of the run are back or done: its key is with one subscriber at a time. */
#include "rows.h"

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

static tw_order *order_of(const tw_group *group, uint64_t seq) {
    return place_of(group->orders, group->orders_capacity, group->rows[seq].order_hash);
}

void tw_order_park(tw_group *group, uint64_t seq) {
    tw_delivery *row = &group->rows[seq];
    tw_order    *order = order_of(group, seq);
    int          is_new = row->state == TW_UNTOUCHED;
    uint64_t     before = is_new ? order->last : order->last_again ? order->last_again : order->last_run;
    uint64_t    *link = before ? &group->rows[before - 1].retry_next : &order->first;
    row->flags |= TW_PARKED;
    if (order->current == seq + 1) return;
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

/* ---- runs ---- */

static int is_out(const tw_order *order, const tw_group *group) {
    for (uint64_t at = order->first; at && (group->rows[at - 1].flags & TW_IN_RUN); at = group->rows[at - 1].retry_next)
        if (group->rows[at - 1].state == TW_LEASED && !(group->rows[at - 1].flags & TW_PARKED)) return 1;
    return 0;
}

int tw_order_is_out(const tw_group *group, uint64_t seq) { return is_out(order_of(group, seq), group); }

/* The group was done with it, and calls for it again: until its time has come it holds up no other. */
static int is_called(const tw_delivery *row) {
    return (row->flags & TW_CALLED) && (!(row->flags & TW_PARKED) || (row->flags & TW_POSTPONED));
}

static void join(tw_group *group, tw_order *order, uint64_t seq) {
    tw_delivery *row = &group->rows[seq];
    row->flags |= TW_IN_RUN;
    row->retry_next = 0;
    if (order->last) group->rows[order->last - 1].retry_next = seq + 1;
    else order->first = seq + 1;
    order->last = order->last_run = seq + 1;
}

void tw_order_join(tw_group *group, uint64_t seq) { join(group, order_of(group, seq), seq); }

void tw_order_take(tw_group *group, uint64_t seq) {
    tw_order *order = order_of(group, seq);
    if (order->current == seq + 1) { order->taken = 1; return; }
    join(group, order, seq);
    order->taken++;
}

int tw_order_may_follow(const tw_group *group, uint64_t seq, uint32_t run_limit) {
    const tw_order *order = order_of(group, seq);
    return (group->rows[order->current - 1].flags & TW_TAKEN) && order->taken < run_limit && order->last == order->last_run;
}

uint64_t tw_order_follow(const tw_store *store, tw_group *group, uint64_t seq, uint32_t run_limit) {
    tw_order *order = order_of(group, seq);
    if (order->taken >= run_limit) return 0;
    for (uint64_t at = order->first; at; at = group->rows[at - 1].retry_next) {
        tw_delivery *row = &group->rows[at - 1];
        int          is_open = tw_is_open(store, group, at - 1), waits = !(row->flags & TW_PARKED) || (row->flags & TW_POSTPONED);
        if (row->flags & TW_TAKEN) continue;
        /* One that is not back yet, or comes by its timer: it and what lies behind it are not taken now. */
        if (is_open && waits && !((row->flags & TW_IN_RUN) && is_called(row))) break;
        if (!(row->flags & TW_IN_RUN)) {
            row->flags |= TW_IN_RUN;
            order->last_run = at;
            if (order->last_again == at) order->last_again = 0;
        }
        if (!is_open || waits) continue;
        row->flags &= (uint8_t)~TW_PARKED;
        order->taken++;
        return at;
    }
    /* New ones do not follow one that is not back yet. */
    for (uint64_t at = order->first; at && order->taken < run_limit; at = group->rows[at - 1].retry_next)
        if (!(group->rows[at - 1].flags & TW_TAKEN) && tw_is_open(store, group, at - 1) && !is_called(&group->rows[at - 1]))
            order->taken = run_limit;
    return 0;
}

static void let_current_go(const tw_store *store, tw_group *group, tw_order *order) {
    uint64_t     current = order->current;
    tw_delivery *row = &group->rows[current - 1];
    if (!(row->flags & TW_PARKED) || is_out(order, group)) return;
    int postponed = row->flags & TW_POSTPONED;
    row->flags &= (uint8_t)~(TW_PARKED | TW_POSTPONED);
    if (!postponed && tw_is_open(store, group, current - 1))
        tw_push_retry(group, tw_row_of(store, group, current - 1)->priority, current - 1);
}

void tw_order_ease(const tw_store *store, tw_group *group, uint64_t seq) {
    uint32_t hash = group->rows[seq].order_hash;
    if (!hash || !group->orders_capacity) return;
    tw_order *order = order_of(group, seq);
    if (order->hash == hash) let_current_go(store, group, order);
}

/* ---- done ---- */

/* Takes the first out of the chain of a key; 1: the key is busy with it from now on. */
static int is_next(const tw_store *store, tw_group *group, tw_order *order) {
    uint64_t     next = order->first;
    tw_delivery *row = &group->rows[next - 1];
    order->first = row->retry_next;
    if (!order->first) order->last = 0;
    if (order->last_again == next) order->last_again = 0;
    if (order->last_run == next) order->last_run = 0;
    int in_run = row->flags & TW_IN_RUN, waits = !(row->flags & TW_PARKED) || (row->flags & TW_POSTPONED);
    int called = is_called(row);
    row->flags &= (uint8_t)~(TW_PARKED | TW_POSTPONED | TW_IN_RUN);
    if (!tw_is_open(store, group, next - 1) || (waits && (!in_run || called))) return 0;
    order->current = next;
    if (!waits) tw_push_retry(group, tw_row_of(store, group, next - 1)->priority, next - 1);
    return 1;
}

void tw_order_leave(const tw_store *store, tw_group *group, uint64_t seq) {
    uint32_t hash = group->rows[seq].order_hash;
    if (!hash || !group->orders_capacity) return;
    tw_order *order = order_of(group, seq);
    if (order->hash != hash) return;
    if (order->current != seq + 1) { /* it stands in the chain, and is passed over when its turn comes */
        let_current_go(store, group, order);
        return;
    }
    group->rows[seq].flags &= (uint8_t)~(TW_PARKED | TW_POSTPONED);
    while (order->first)
        if (is_next(store, group, order)) return;
    empty_place(group, order);
}

/* What was parked waits no more: a new message is found in its lane again, in its order. */
static void let_out(const tw_store *store, tw_group *group, uint64_t at) {
    tw_delivery *row = &group->rows[at - 1];
    int          is_ready = (row->flags & TW_PARKED) && !(row->flags & TW_POSTPONED) && row->state != TW_UNTOUCHED;
    row->flags &= (uint8_t)~(TW_IN_RUN | TW_PARKED | TW_POSTPONED);
    if (is_ready && tw_is_open(store, group, at - 1))
        tw_push_retry(group, tw_row_of(store, group, at - 1)->priority, at - 1);
}

void tw_orders_release(tw_store *store, uint32_t group_id) {
    tw_group *group = &store->groups[group_id];
    for (uint32_t i = 0; i < group->orders_capacity; i++) {
        if (!group->orders[i].hash) continue;
        let_out(store, group, group->orders[i].current);
        for (uint64_t at = group->orders[i].first, next; at; at = next) {
            next = group->rows[at - 1].retry_next;
            group->rows[at - 1].retry_next = 0;
            let_out(store, group, at);
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
