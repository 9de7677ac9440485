/* From subscribers back to the topic: acks, leases that end or are moved, messages given back or given up. */
#include "rows.h"

enum { TW_IN_A_CHAIN = TW_IN_RETRY | TW_PARKED };

static uint32_t judge_receipt(const tw_store *store, const tw_group *group, uint64_t id, uint32_t epoch) {
    /* Of a group that is gone and had this number, or of another timeline: also where its message is not known. */
    if (epoch && epoch <= group->fence) return TW_STALE_RECEIPT;
    if (id == 0 || id >= store->next_id) return TW_NOT_FOUND;
    const tw_row *row = tw_row_at(store, id);
    if (row->topic_id != group->topic_id || row->state == TW_NONE) return TW_NOT_FOUND;
    const tw_delivery *delivery = tw_delivery_at(group, row->topic_seq);
    if (row->state == TW_SCHEDULED || !delivery) return TW_NEVER_DELIVERED;
    if (delivery->state == TW_UNTOUCHED) return epoch && epoch <= delivery->epoch ? TW_STALE_RECEIPT : TW_NEVER_DELIVERED;
    /* The row keeps the epoch that was acked: of a message's holders only one is told that its ack counted. */
    if (delivery->state == TW_ACKED || (delivery->flags & TW_ACKING))
        return delivery->epoch == epoch ? TW_ALREADY_ACKED : TW_STALE_RECEIPT;
    if (row->state != TW_READY) return TW_WAS_CANCELLED;
    return delivery->state == TW_LEASED && delivery->epoch == epoch ? 0 : TW_STALE_RECEIPT;
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

void tw_unmark_acks(tw_store *store, uint32_t group_id, const uint64_t *seqs, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) store->groups[group_id].rows[seqs[i]].flags &= (uint8_t)~TW_ACKING;
}

void tw_let_go(tw_store *store, tw_group *group, tw_delivery *row) {
    if (row->state != TW_LEASED || (row->flags & TW_IN_A_CHAIN)) return;
    TW_ASSERT_LIVE(store, group->leased, "a group counts what it has leased");
    TW_ASSERT_LIVE(store, !row->holder || store->outstanding[row->holder], "a subscriber's credit counts what it holds");
    if (row->holder && store->outstanding[row->holder]) store->outstanding[row->holder]--;
    row->holder = 0;
    if (group->leased) group->leased--;
}

/* The group is done with a message: acked, or dead. */
static void finish(tw_store *store, tw_group *group, uint64_t seq, uint8_t state, int64_t time_ms) {
    tw_delivery *row = &group->rows[seq];
    row->flags &= (uint8_t)~(TW_ACKING | TW_CALLED);
    TW_ASSERT_LIVE(store, row->state == TW_LEASED || (state == TW_DEAD && row->state != TW_ACKED && row->state != TW_DEAD),
                   "a delivery ends once, and is acked while it is held");
    if (row->state == state) return;
    group->touched += row->state == TW_UNTOUCHED;
    tw_let_go(store, group, row);
    if (row->state != TW_ACKED && row->state != TW_DEAD && group->pending) group->pending--;
    if (row->state == TW_ACKED && group->acked) group->acked--;
    if (row->state == TW_DEAD && group->dead) group->dead--;
    row->state = state;
    row->time_ms = time_ms;
    if (state == TW_ACKED) group->acked++;
    else group->dead++;
    tw_order_leave(store, group, seq);
}

static int finish_runs(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n, uint8_t state) {
    tw_group *group = &store->groups[group_id];
    if (!tw_runs_end_by(runs, n, group->allocated)) return -1;
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t seq = tw_with_rows(group, runs[r].first); seq < runs[r].first + runs[r].count; seq++)
            if (!tw_is_gone(store, group, seq)) finish(store, group, seq, state, runs[r].time_ms);
        /* A message can be given up before it was ever delivered. */
        if (runs[r].first + runs[r].count > group->high_seq) group->high_seq = runs[r].first + runs[r].count;
    }
    return 0;
}

int tw_apply_ack(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n) {
    return finish_runs(store, group_id, runs, n, TW_ACKED);
}

int tw_apply_dead(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n) {
    return finish_runs(store, group_id, runs, n, TW_DEAD);
}

/* No subscription holds it, and its timer brings it back; also when it is in a chain that would do so before. */
static void wait_until(const tw_store *store, tw_group *group, uint64_t seq, int64_t time_ms) {
    tw_delivery *row = &group->rows[seq];
    row->state = TW_WAITING;
    row->time_ms = time_ms;
    row->flags &= (uint8_t)~TW_CALLED;
    if (row->flags & TW_IN_A_CHAIN) row->flags |= TW_POSTPONED;
    if (row->flags & TW_IN_RUN) tw_order_ease(store, group, seq);
}

int tw_apply_nack(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n) {
    tw_group *group = &store->groups[group_id];
    if (!tw_runs_end_by(runs, n, group->allocated)) return -1;
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t seq = tw_with_rows(group, runs[r].first); seq < runs[r].first + runs[r].count; seq++) {
            tw_delivery *row = &group->rows[seq];
            int is_held = row->state == TW_LEASED || row->state == TW_WAITING;
            TW_ASSERT_LIVE(store, is_held && row->epoch == runs[r].epoch, "what is given back is held under this receipt");
            if (!is_held || row->epoch != runs[r].epoch) continue;
            row->flags &= (uint8_t)~TW_ACKING;
            tw_let_go(store, group, row);
            wait_until(store, group, seq, runs[r].time_ms);
        }
    }
    return 0;
}

int tw_apply_redeliver(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n, int how) {
    tw_group *group = &store->groups[group_id];
    if (!tw_runs_end_by(runs, n, group->allocated)) return -1;
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t seq = tw_with_rows(group, runs[r].first); seq < runs[r].first + runs[r].count; seq++) {
            tw_delivery *row = &group->rows[seq];
            TW_ASSERT_LIVE(store, row->state != TW_UNTOUCHED, "what is delivered again was delivered before");
            if (row->state == TW_UNTOUCHED) continue;
            tw_let_go(store, group, row);
            if (row->state == TW_ACKED && group->acked) group->acked--;
            if (row->state == TW_DEAD && group->dead) group->dead--;
            if (row->state == TW_ACKED || row->state == TW_DEAD) group->pending++;
            wait_until(store, group, seq, runs[r].time_ms);
            /* As it was when the record was written: replay may see a row of a later time. */
            if (how & TW_WERE_DONE) row->flags |= TW_CALLED;
            if (how & TW_RESET_ATTEMPTS) row->base_epoch = runs[r].epoch;
        }
        uint64_t first = tw_with_rows(group, runs[r].first);
        if (first < group->floor_seq) group->floor_seq = first;
    }
    return 0;
}

void tw_apply_seek(tw_store *store, uint32_t group_id, uint64_t start_seq) {
    tw_group *group = &store->groups[group_id];
    uint64_t  first_seq = store->topics[group->topic_id].first_seq;
    /* A replay does not know yet how far rows were used: its tables may be those of a checkpoint. */
    uint64_t  used = store->is_live ? group->high_seq : store->topics[group->topic_id].count;
    uint64_t  end = used < group->allocated ? used : group->allocated;
    for (uint64_t seq = group->rows_from > first_seq ? group->rows_from : first_seq; seq < end; seq++) {
        tw_delivery *row = &group->rows[seq];
        if (row->state == TW_UNTOUCHED && !row->flags) continue;
        tw_let_go(store, group, row);
        row->flags = 0;
        if (seq < start_seq && (row->state == TW_ACKED || row->state == TW_DEAD)) continue;
        row->state = TW_UNTOUCHED;
        row->base_epoch = row->epoch;
        row->time_ms = 0;
    }
    if (group->orders) memset(group->orders, 0, group->orders_capacity * sizeof *group->orders);
    group->orders_count = 0;
    group->start_seq = start_seq;
    if (start_seq < group->rows_from) group->rows_from = start_seq;
    tw_rebuild_group(store, group_id);
}

/* 1: a chain brings it already, and whatever time it was given is over. */
static int is_in_a_chain(tw_delivery *row) {
    if (!(row->flags & TW_IN_A_CHAIN)) return 0;
    row->flags &= (uint8_t)~TW_POSTPONED;
    return 1;
}

/* It can be had again: by the retry chain, or in its place among those that it was given out with. */
static void come_back(tw_store *store, tw_group *group, uint64_t seq) {
    tw_delivery *row = &group->rows[seq];
    tw_let_go(store, group, row);
    if (!(row->flags & TW_IN_RUN)) {
        tw_push_retry(group, tw_row_of(store, group, seq)->priority, seq);
        return;
    }
    row->flags |= TW_PARKED;
    tw_order_ease(store, group, seq);
}

int64_t tw_expire(tw_store *store, uint32_t group_id, const uint64_t *seqs, const uint32_t *epochs, uint64_t n,
                  int64_t now_ms, uint64_t *exhausted, uint64_t *exhausted_count) {
    tw_group *group = &store->groups[group_id];
    int64_t   moved = 0;
    *exhausted_count = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (seqs[i] < group->rows_start || seqs[i] >= group->allocated) continue;
        tw_delivery *row = &group->rows[seqs[i]];
        if ((row->state != TW_LEASED && row->state != TW_WAITING) || row->epoch != epochs[i] || row->time_ms > now_ms ||
            is_in_a_chain(row) || !tw_is_in_topic(store, group, seqs[i]))
            continue;
        if (group->max_attempts && row->epoch - row->base_epoch >= group->max_attempts) {
            exhausted[(*exhausted_count)++] = seqs[i];
            continue;
        }
        come_back(store, group, seqs[i]);
        moved++;
    }
    return moved;
}

void tw_requeue(tw_store *store, uint32_t group_id, const uint64_t *seqs, uint64_t n) {
    tw_group *group = &store->groups[group_id];
    for (uint64_t i = 0; i < n; i++) {
        if (seqs[i] < group->rows_start || is_in_a_chain(&group->rows[seqs[i]])) continue;
        come_back(store, group, seqs[i]);
    }
}

static void raise_floor(const tw_store *store, tw_group *group) {
    while (group->floor_seq < group->high_seq && !tw_is_open(store, group, group->floor_seq)) group->floor_seq++;
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

/* base_epochs: the runs' times are those, and the leases end at time_ms. */
static int end_leases(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n, int base_epochs,
                      int64_t time_ms) {
    tw_group *group = &store->groups[group_id];
    if (!tw_runs_end_by(runs, n, group->allocated)) return -1;
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t seq = tw_with_rows(group, runs[r].first); seq < runs[r].first + runs[r].count; seq++) {
            tw_delivery *row = &group->rows[seq];
            TW_ASSERT_LIVE(store, row->state == TW_LEASED && row->epoch == runs[r].epoch, "a lease that gets another end is one");
            if (row->state != TW_LEASED || row->epoch != runs[r].epoch) continue;
            row->time_ms = base_epochs ? time_ms : runs[r].time_ms;
            if (base_epochs) row->base_epoch = (uint32_t)runs[r].time_ms;
            row->flags &= (uint8_t)~TW_ACKING;
        }
    }
    return 0;
}

int tw_apply_release(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n) {
    return end_leases(store, group_id, runs, n, 0, 0);
}

int tw_apply_return(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n, int64_t time_ms) {
    return end_leases(store, group_id, runs, n, 1, time_ms);
}
