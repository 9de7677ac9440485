/* Sends, deliveries, acks, cancels, new times, purges and restarts in any order, with receipts and ids as hostile clients
 * make them, and calls as the engine makes them. Each call does what it says to the rows that it names, and nothing to
 * others; after each step the invariants of the whole store hold. */
#include "harness.h"

enum { MANY = 64 };

typedef struct {
    tw_store *store;
    int64_t   now_ms;
    uint64_t  purged_to;
} engine_t;

/* How things stood before a call. */
static tw_row      rows_before[ROWS];
static tw_delivery deliveries_before[GROUPS][SEQS];
static tw_group    groups_before[GROUPS];

static void remember(const tw_store *store) {
    memcpy(rows_before, store->rows, sizeof rows_before);
    for (uint32_t g = 1; g < GROUPS; g++) {
        groups_before[g] = store->groups[g];
        memcpy(deliveries_before[g], store->groups[g].rows, sizeof deliveries_before[g]);
    }
}

static int is_among(uint64_t value, const uint64_t *values, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (values[i] == value) return 1;
    return 0;
}

static int same_delivery(const tw_delivery *one, const tw_delivery *other) {
    return one->state == other->state && one->epoch == other->epoch && one->base_epoch == other->base_epoch &&
           one->time_ms == other->time_ms && one->holder == other->holder &&
           ((one->flags ^ other->flags) & (TW_ACKING | TW_CALLED)) == 0;
}

enum { IN_A_CHAIN = TW_IN_RETRY | TW_PARKED };

/* No row of a group has changed but those; chains may have. */
static void only_these(const tw_store *store, uint32_t group_id, const uint64_t *seqs, uint64_t n) {
    for (uint32_t g = 1; g < GROUPS; g++)
        for (uint64_t seq = 0; seq < SEQS; seq++)
            MUST((g == group_id && is_among(seq, seqs, n)) ||
                 same_delivery(&store->groups[g].rows[seq], &deliveries_before[g][seq]));
    MUST(memcmp(rows_before, store->rows, sizeof rows_before) == 0);
}

static int was_done(uint32_t group_id, uint64_t seq) {
    uint8_t state = deliveries_before[group_id][seq].state;
    return state == TW_ACKED || state == TW_DEAD;
}

/* Whether the message of a number was in the group's topic, by itself or by its row. */
static int was_in_topic(const tw_store *store, uint32_t group_id, uint64_t seq) {
    const tw_group *group = &store->groups[group_id];
    uint64_t        id = seq < SEQS ? store->topics[group->topic_id].arrivals[seq].id : 0;
    return id && rows_before[id].state == TW_READY && rows_before[id].topic_seq == seq;
}

static void send(engine_t *engine, input_t *in) {
    static uint8_t replies[8192], frame[4096];
    tw_ingested    result;
    size_t         bytes = make_send(in, frame);
    uint64_t       freed_offset, freed_bytes;
    for (int tries = 0; tries < 4; tries++) {
        tw_ingest(engine->store, frame, bytes, engine->now_ms, replies, sizeof replies, &result);
        if (result.stop == TW_STOP_NEED_FLUSH) flush_store(engine->store);
        else if (result.stop != TW_STOP_NEED_KEYS) return;
        else if (tw_keys_grow(engine->store, (uint32_t)result.need, &freed_offset, &freed_bytes)) return;
    }
}

static uint64_t some_ids(input_t *in, uint64_t *ids) {
    uint64_t n = 1 + take8(in) % 12;
    for (uint64_t i = 0; i < n; i++) {
        uint8_t choice = take8(in);
        ids[i] = choice == 255 ? take64(in) : choice;
    }
    return n;
}

/* Message ids that were seen: dequeue gets each timer once. */
static uint64_t unique(uint64_t *ids, uint64_t n) {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t j = 0;
        while (j < kept && ids[j] != ids[i]) j++;
        if (j == kept) ids[kept++] = ids[i];
    }
    return kept;
}

static void put(engine_t *engine, input_t *in) {
    tw_store *store = engine->store;
    uint64_t  ids[ROWS], chosen[ROWS], n = 0;
    uint32_t  versions[ROWS];
    uint8_t   verdicts[ROWS];
    tw_run    runs[ROWS];
    if (take8(in) % 4) flush_store(store);
    if (take8(in) & 1) n = unique(ids, some_ids(in, ids));
    else
        for (uint64_t id = 1; id < store->next_id; id++)
            if (store->rows[id].state == TW_SCHEDULED) ids[n++] = id;
    for (uint64_t i = 0; i < n; i++) versions[i] = ids[i] < store->next_id ? store->rows[ids[i]].version : 0;
    if (n && take8(in) % 4 == 0) versions[0]++;
    tw_lookup(store, ids, versions, n, engine->now_ms, verdicts);
    uint64_t still = tw_still_scheduled(store, ids, versions, n, chosen), found = 0;
    for (uint64_t i = 0; i < n; i++)
        if (ids[i] && ids[i] < store->next_id && store->rows[ids[i]].state == TW_SCHEDULED &&
            store->rows[ids[i]].version == versions[i])
            MUST(found < still && chosen[found++] == ids[i]);
    MUST(found == still);
    uint64_t live = 0;
    for (uint64_t id = 1; id < store->next_id; id++)
        if (store->rows[id].state == TW_SCHEDULED || store->rows[id].state == TW_READY) chosen[live++] = id;
    MUST(!tw_damaged(store, chosen, live, chosen));
    for (uint64_t i = 0; i < n; i++) {
        const tw_row *row = ids[i] && ids[i] < store->next_id ? &store->rows[ids[i]] : NULL;
        int is_due = row && row->state == TW_SCHEDULED && row->version == versions[i] && row->deliver_at_ms <= engine->now_ms;
        MUST(verdicts[i] == (!is_due ? 0 : row->position < store->staging_position ? 1 : 2)); /* staged: not readable yet */
    }
    for (uint32_t t = 1; t <= 2; t++) {
        uint64_t count = 0;
        for (uint64_t i = 0; i < n; i++)
            if (verdicts[i] == 1 && store->rows[ids[i]].topic_id == t) chosen[count++] = ids[i];
        uint64_t first_seq = store->topics[t].count;
        int64_t  made = tw_runs(chosen, NULL, NULL, count, runs);
        MUST(tw_runs_values(runs, (uint64_t)made) == count);
        for (uint64_t i = 0; i < count; i++) MUST(chosen[i] < tw_runs_end(runs, (uint64_t)made));
        int      is_done = tw_apply_put(store, t, first_seq, runs, (uint64_t)made) == 0;
        MUST(is_done == (first_seq + count <= SEQS));
        for (uint64_t i = 0; is_done && i < count; i++)
            MUST(store->rows[chosen[i]].state == TW_READY && store->rows[chosen[i]].topic_seq == first_seq + i);
    }
}

/* What a group could be given now, apart from messages with an ordering key, which wait for each other. */
static int could_go(const tw_store *store, const tw_group *group, uint64_t seq) {
    const tw_delivery *row = &group->rows[seq];
    if (seq < group->start_seq || tw_is_gone(store, group, seq) || !tw_is_open(store, group, seq)) return 0;
    if ((tw_row_of(store, group, seq)->flags & TW_ORDERED) || (row->flags & (TW_TAKEN | TW_POSTPONED | TW_PARKED))) return 0;
    return row->state == TW_UNTOUCHED || (row->flags & TW_IN_RETRY);
}

static int has_many_lanes(const tw_store *store, const tw_group *group) {
    int lanes = 0;
    for (uint32_t p = 0; p < 256; p++) lanes += store->topics[group->topic_id].lane_first[p] || group->retry_first[p];
    return lanes > 1;
}

/* What was selected may be given out, is what comes first, and nothing that could have gone too was passed over. */
static void check_selected(const tw_store *store, uint32_t group_id, const uint64_t *seqs, const uint32_t *epochs,
                           const int64_t *until_ms, uint64_t n, uint32_t run_limit, int had_many_lanes, int is_all,
                           int64_t now_ms) {
    const tw_group *group = &store->groups[group_id];
    for (uint64_t i = 0; i < n; i++) {
        const tw_delivery *was = &deliveries_before[group_id][seqs[i]];
        const tw_row      *row = tw_row_of(store, group, seqs[i]);
        int                is_retry = (was->flags & TW_IN_RETRY) != 0, attempts = (int)(epochs[i] - was->base_epoch);
        MUST(seqs[i] >= group->start_seq && tw_is_open(store, group, seqs[i]) && !is_among(seqs[i], seqs, i));
        uint64_t           of_its_key = 0;
        for (uint64_t j = 0; (row->flags & TW_ORDERED) && j < i; j++)
            of_its_key += group->rows[seqs[j]].order_hash == group->rows[seqs[i]].order_hash;
        MUST(of_its_key < run_limit);
        MUST(is_retry || was->state == TW_UNTOUCHED || (of_its_key && (was->flags & TW_PARKED)));
        MUST(epochs[i] == was->epoch + 1);
        MUST(until_ms[i] == now_ms + tw_backoff_ms(1000, 700, 60000, store->topics[group->topic_id].arrivals[seqs[i]].id,
                                                   (uint32_t)attempts));
        uint32_t share = (groups_before[group_id].turn + (uint32_t)i + 1) % TW_RESERVED_SHARE;
        int      is_reserved = had_many_lanes && share == 0, is_new_turn = share == TW_NEW_SHARE && !is_retry;
        for (uint64_t other = 0; other < SEQS; other++) {
            if (!could_go(store, group, other)) continue;
            MUST(!is_all);
            if (of_its_key) continue; /* it goes with one that was taken in its turn */
            if (is_reserved) { MUST((group->rows[other].flags & TW_IN_RETRY) || other > seqs[i]); continue; }
            if (is_new_turn && (group->rows[other].flags & TW_IN_RETRY)) continue;
            uint8_t priority = tw_row_of(store, group, other)->priority;
            MUST(priority >= row->priority);
            /* Of one lane: redeliveries before new ones, new ones in the order of the topic. */
            if (priority != row->priority || is_retry) continue;
            MUST(group->rows[other].state == TW_UNTOUCHED && other > seqs[i]);
        }
        if (is_retry || !(row->flags & TW_ORDERED) || was->state != TW_UNTOUCHED) continue;
        for (uint64_t other = group->start_seq; other < seqs[i]; other++) /* of an ordering key: in the order of the topic */
            MUST(tw_is_gone(store, group, other) || !tw_is_open(store, group, other) ||
                 !(tw_row_of(store, group, other)->flags & TW_ORDERED) || group->rows[other].state != TW_UNTOUCHED ||
                 (group->rows[other].flags & TW_TAKEN) ||
                 tw_order_hash(store, tw_row_of(store, group, other)) != tw_order_hash(store, row));
    }
}

static void fetch(engine_t *engine, input_t *in) {
    tw_store *store = engine->store;
    uint32_t  group_id = 1 + take8(in) % 3, holder = 1 + take8(in) % (HOLDERS - 1), epochs[MANY];
    uint64_t  seqs[MANY], frame_bytes, need, limits = take8(in), limit = 1 + limits % 6, limit_bytes = 64 * take8(in);
    uint32_t  run_limit = 1 + (uint32_t)limits / 6 % 3;
    int64_t   until_ms[MANY];
    tw_run    runs[MANY];
    tw_group *group = &store->groups[group_id];
    int       had_many_lanes = has_many_lanes(store, group);
    int64_t n = tw_select(store, group_id, limit, limit_bytes, run_limit, engine->now_ms, seqs, epochs, until_ms, &frame_bytes, &need);
    MUST(n >= 0 && (uint64_t)n <= limit && need == 0);
    int is_all = (uint64_t)n < limit && (n == 0 || frame_bytes - 16 < limit_bytes);
    check_selected(store, group_id, seqs, epochs, until_ms, (uint64_t)n, run_limit, had_many_lanes, is_all,
                   engine->now_ms);
    if (take8(in) % 4 == 0) {
        tw_unselect(store, group_id, seqs, (uint64_t)n);
        MUST(group->turn == groups_before[group_id].turn);
        only_these(store, group_id, NULL, 0);
        return;
    }
    int64_t made = tw_runs(seqs, epochs, until_ms, (uint64_t)n, runs);
    MUST(tw_apply_lease(store, group_id, holder, runs, (uint64_t)made) == 0);
    only_these(store, group_id, seqs, (uint64_t)n);
    for (int64_t i = 0; i < n; i++) {
        const tw_delivery *row = &group->rows[seqs[i]];
        const tw_delivery *was = &deliveries_before[group_id][seqs[i]];
        MUST(row->state == TW_LEASED && row->epoch == epochs[i] && row->time_ms == until_ms[i] && row->holder == holder);
        MUST(row->base_epoch == (was->state == TW_UNTOUCHED ? was->epoch : was->base_epoch) && !(row->flags & ~TW_IN_RUN));
    }
    MUST(group->leased == groups_before[group_id].leased + (uint64_t)n);
    if (!n) return;
    uint8_t *frame = malloc(frame_bytes);
    MUST(tw_deliver_frame(store, group_id, 9, seqs, (uint64_t)n, frame, frame_bytes) == (int64_t)frame_bytes);
    MUST(tw_deliver_frame(store, group_id, 9, seqs, (uint64_t)n, frame, frame_bytes - 1) == -1);
    free(frame);
}

/* Receipts, some forged; those that count are acked, given back, given up or extended, or their marks are taken back. */
static void settle(engine_t *engine, input_t *in) {
    tw_store *store = engine->store;
    uint32_t  group_id = 1 + take8(in) % 3, epochs[16], codes[16];
    uint64_t  ids[16], seqs[16], n = some_ids(in, ids);
    uint8_t   payload[16 * 12];
    int64_t   times[16];
    tw_run    runs[16];
    for (uint64_t i = 0; i < n; i++) {
        uint8_t  choice = take8(in);
        uint32_t epoch = choice;
        if (choice > 3 && ids[i] < store->next_id && store->rows[ids[i]].topic_seq < SEQS)
            epoch = store->groups[group_id].rows[store->rows[ids[i]].topic_seq].epoch;
        tw_store64(payload + 8 * i, ids[i]);
        tw_store32(payload + 8 * n + 4 * i, epoch);
    }
    uint64_t good = (uint64_t)tw_ack_check(store, group_id, payload, n, seqs, epochs, codes), accepted = 0;
    for (uint64_t i = 0; i < n; i++) {
        const tw_row *row = ids[i] && ids[i] < store->next_id ? &rows_before[ids[i]] : NULL;
        int           is_there = row && row->state == TW_READY && row->topic_id == store->groups[group_id].topic_id;
        const tw_delivery *was = is_there ? &deliveries_before[group_id][row->topic_seq] : NULL;
        int is_held = was && was->state == TW_LEASED && was->epoch == tw_load32(payload + 8 * n + 4 * i);
        /* Each lease is given back once. */
        MUST((codes[i] == 0) == (is_held && !is_among(row->topic_seq, seqs, accepted)));
        if (codes[i]) continue;
        MUST(seqs[accepted] == row->topic_seq && epochs[accepted] == was->epoch);
        accepted++;
    }
    MUST(good == accepted);
    uint8_t how = take8(in) % 5, delay = take8(in);
    for (uint64_t i = 0; i < good; i++) times[i] = engine->now_ms + delay;
    uint64_t made = (uint64_t)tw_runs(seqs, epochs, times, good, runs);
    if (how == 0) tw_unmark_acks(store, group_id, seqs, good);
    else if (how == 1) MUST(tw_apply_ack(store, group_id, runs, made) == 0);
    else if (how == 2) MUST(tw_apply_nack(store, group_id, runs, made) == 0);
    else if (how == 3) MUST(tw_apply_dead(store, group_id, runs, made) == 0);
    else MUST(tw_apply_release(store, group_id, runs, made) == 0);
    only_these(store, group_id, seqs, how ? good : 0);
    static const uint8_t state_after[] = {TW_LEASED, TW_ACKED, TW_WAITING, TW_DEAD, TW_LEASED};
    for (uint64_t i = 0; how && i < good; i++) {
        const tw_delivery *row = &store->groups[group_id].rows[seqs[i]];
        MUST(row->state == state_after[how] && row->time_ms == times[i] && !(row->flags & TW_ACKING));
        MUST(row->epoch == epochs[i] && row->base_epoch == deliveries_before[group_id][seqs[i]].base_epoch);
        MUST(how == 4 || !row->holder);
    }
}

static void redeliver(engine_t *engine, input_t *in) {
    tw_store *store = engine->store;
    uint32_t  group_id = 1 + take8(in) % 3, epochs[16];
    uint64_t  ids[16], seqs[16], n = unique(ids, some_ids(in, ids)), kept = 0;
    int64_t   times[16];
    tw_run    runs[16];
    tw_group *group = &store->groups[group_id];
    for (uint64_t i = 0; i < n; i++) {
        int verdict = tw_judge(store, ids[i]);
        if (verdict < TW_IS_READY || verdict > TW_IS_DONE || store->rows[ids[i]].topic_id != group->topic_id) continue;
        uint64_t seq = store->rows[ids[i]].topic_seq;
        if (seq < group->start_seq || group->rows[seq].state == TW_UNTOUCHED) continue;
        seqs[kept] = seq;
        epochs[kept] = group->rows[seq].epoch;
        times[kept++] = engine->now_ms + 5;
    }
    uint64_t made = (uint64_t)tw_runs(seqs, epochs, times, kept, runs);
    int      how = take8(in) % 4;
    MUST(tw_apply_redeliver(store, group_id, runs, made, how) == 0);
    only_these(store, group_id, seqs, kept);
    for (uint64_t i = 0; i < kept; i++) {
        const tw_delivery *row = &group->rows[seqs[i]], *was = &deliveries_before[group_id][seqs[i]];
        MUST(row->state == TW_WAITING && row->time_ms == engine->now_ms + 5 && row->epoch == was->epoch && !row->holder);
        MUST(row->base_epoch == (how & TW_RESET_ATTEMPTS ? was->epoch : was->base_epoch));
        MUST(!(row->flags & TW_CALLED) == !(how & TW_WERE_DONE));
        MUST(!(row->flags & TW_POSTPONED) == !(row->flags & (TW_IN_RETRY | TW_PARKED)));
    }
}

/* Whether a timer ends a lease or a wait. */
static int ends(const tw_store *store, uint32_t group_id, uint64_t seq, uint32_t epoch, int64_t now_ms) {
    if (seq >= SEQS) return 0;
    const tw_delivery *was = &deliveries_before[group_id][seq];
    return (was->state == TW_LEASED || was->state == TW_WAITING) && was->epoch == epoch && was->time_ms <= now_ms &&
           !(was->flags & (TW_IN_RETRY | TW_PARKED)) && was_in_topic(store, group_id, seq);
}

/* Ends leases and waits by their timers: exactly those whose time has come go on, or have had all their attempts. */
static void end_by_timers(engine_t *engine, uint32_t group_id, const uint64_t *seqs, const uint32_t *epochs, uint64_t n) {
    tw_store *store = engine->store;
    tw_group *group = &store->groups[group_id];
    uint64_t  exhausted[SEQS + 2], count, expected = 0, stalled = 0;
    remember(store);
    int64_t moved = tw_expire(store, group_id, seqs, epochs, n, engine->now_ms, exhausted, &count);
    MUST(moved >= 0);
    for (uint64_t seq = 0; seq < SEQS; seq++) {
        const tw_delivery *was = &deliveries_before[group_id][seq], *row = &group->rows[seq];
        int                is_over = 0;
        /* It may go on with one that it was given out with, and its own timer counts then. */
        if ((was->flags & TW_PARKED) && (was->flags & TW_POSTPONED)) { stalled++; continue; }
        for (uint64_t i = 0; i < n; i++) is_over |= seqs[i] == seq && ends(store, group_id, seq, epochs[i], engine->now_ms);
        int had_all = is_over && group->max_attempts && was->epoch - was->base_epoch >= group->max_attempts;
        MUST(is_among(seq, exhausted, count) == had_all);
        MUST(!(row->flags & IN_A_CHAIN) == !((was->flags & IN_A_CHAIN) || (is_over && !had_all)));
        MUST(row->state == was->state && row->epoch == was->epoch && row->time_ms == was->time_ms);
        MUST(row->holder == (is_over && !had_all ? 0 : was->holder));
        expected += is_over && !had_all;
    }
    MUST((uint64_t)moved >= expected && (uint64_t)moved <= expected + stalled);
    count = unique(exhausted, count);
    tw_requeue(store, group_id, exhausted, count);
    for (uint64_t i = 0; i < count; i++) MUST(group->rows[exhausted[i]].flags & IN_A_CHAIN);
}

/* Timers that went off, some of them stale or never set. */
static void expire(engine_t *engine, input_t *in) {
    tw_store *store = engine->store;
    uint32_t  group_id = 1 + take8(in) % 3, epochs[SEQS + 2];
    uint64_t  seqs[SEQS + 2], from_seq = 0, waiting = 0;
    int64_t   until_ms[SEQS];
    int64_t   n = tw_leased(store, group_id, &from_seq, SEQS, until_ms, seqs, epochs);
    for (uint64_t seq = 0; seq < SEQS; seq++) {
        const tw_delivery *was = &deliveries_before[group_id][seq];
        if ((was->state != TW_LEASED && was->state != TW_WAITING) || !was_in_topic(store, group_id, seq)) continue;
        MUST(seqs[waiting] == seq && epochs[waiting] == was->epoch && until_ms[waiting] == was->time_ms);
        waiting++;
    }
    MUST((uint64_t)n == waiting);
    seqs[n] = take8(in);
    epochs[n++] = take8(in) % 4;
    seqs[n] = take64(in);
    epochs[n++] = 1;
    end_by_timers(engine, group_id, seqs, epochs, (uint64_t)n);
}

/* A subscription ends: all that it held is given back. */
static void leave(engine_t *engine, input_t *in) {
    tw_store *store = engine->store;
    uint32_t  group_id = 1 + take8(in) % 3, holder = 1 + take8(in) % (HOLDERS - 1), epochs[SEQS];
    uint64_t  seqs[SEQS], from_seq = 0, held = 0;
    int64_t   times[SEQS];
    tw_run    runs[SEQS];
    uint64_t  n = (uint64_t)tw_held_by(store, group_id, holder, &from_seq, seqs, epochs, SEQS);
    int       is_unseen = take8(in) & 1;
    for (uint64_t seq = 0; seq < SEQS; seq++) {
        if (deliveries_before[group_id][seq].state != TW_LEASED || deliveries_before[group_id][seq].holder != holder) continue;
        MUST(seqs[held] == seq && epochs[held] == deliveries_before[group_id][seq].epoch);
        held++;
    }
    MUST(n == held);
    for (uint64_t i = 0; i < n; i++) times[i] = is_unseen ? store->groups[group_id].rows[seqs[i]].base_epoch + 1 : engine->now_ms;
    uint64_t made = (uint64_t)tw_runs(seqs, epochs, times, n, runs);
    if (is_unseen) MUST(tw_apply_return(store, group_id, runs, made, engine->now_ms) == 0);
    else MUST(tw_apply_release(store, group_id, runs, made) == 0);
    only_these(store, group_id, seqs, n);
    for (uint64_t i = 0; i < n; i++) {
        const tw_delivery *row = &store->groups[group_id].rows[seqs[i]];
        MUST(row->state == TW_LEASED && row->time_ms == engine->now_ms && row->holder == holder);
        MUST(row->base_epoch == deliveries_before[group_id][seqs[i]].base_epoch + (uint32_t)is_unseen);
    }
    end_by_timers(engine, group_id, seqs, epochs, n);
}

/* How a message stands, by what its groups say. */
static int expected_verdict(const tw_store *store, uint64_t id) {
    const tw_row *row = id && id < store->next_id ? &rows_before[id] : NULL;
    int           were_given = 0, are_open = 0;
    if (!row || row->state == TW_NONE) return TW_IS_UNKNOWN;
    if (row->state != TW_READY)
        return row->state == TW_SCHEDULED ? TW_IS_SCHEDULED : row->state == TW_CANCELLED ? TW_IS_CANCELLED :
               row->state == TW_EXPIRED ? TW_IS_EXPIRED : TW_IS_UNKNOWN;
    for (uint32_t g = 1; g < GROUPS; g++) {
        if (store->groups[g].topic_id != row->topic_id) continue;
        const tw_delivery *was = &deliveries_before[g][row->topic_seq];
        were_given += was->epoch || was->state != TW_UNTOUCHED;
        are_open += row->topic_seq >= store->groups[g].start_seq && !was_done(g, row->topic_seq);
    }
    return !were_given ? TW_IS_READY : are_open ? TW_IS_DELIVERED : TW_IS_DONE;
}

/* A message has left the topic: what groups are done with stays, no subscription holds it, and nothing else changed. */
static void check_withdrawn(const tw_store *store, const uint64_t *ids, uint64_t n) {
    for (uint64_t id = 1; id < ROWS; id++)
        MUST(is_among(id, ids, n) || memcmp(&rows_before[id], &store->rows[id], sizeof(tw_row)) == 0);
    for (uint32_t g = 1; g < GROUPS; g++) {
        uint32_t topic_id = store->groups[g].topic_id;
        for (uint64_t seq = 0; seq < SEQS; seq++) {
            tw_delivery was = deliveries_before[g][seq];
            uint64_t    id = store->topics[topic_id].arrivals[seq].id;
            int         is_named = id && is_among(id, ids, n) && was_in_topic(store, g, seq);
            if (is_named && was.state == TW_LEASED) {
                was.state = TW_WAITING;
                was.holder = 0;
            }
            MUST(same_delivery(&store->groups[g].rows[seq], &was));
        }
    }
}

static void change(engine_t *engine, input_t *in) {
    tw_store *store = engine->store;
    uint64_t  ids[16], n = unique(ids, some_ids(in, ids)), kept = 0;
    uint8_t   how = take8(in);
    tw_run    runs[16];
    for (uint64_t i = 0; i < n; i++) {
        int verdict = tw_judge(store, ids[i]);
        MUST(verdict == expected_verdict(store, ids[i]));
        /* The engine gives no other time to what was delivered. */
        int can = verdict == TW_IS_SCHEDULED || verdict == TW_IS_READY || ((how & 3) == 2 && verdict == TW_IS_DELIVERED);
        if (can) ids[kept++] = ids[i];
    }
    if (how & 1) {
        uint32_t priority = take16(in) % 300;
        for (uint64_t i = 0; i < kept; i++)
            runs[i] = (tw_run){.first = ids[i], .count = 1, .epoch = (uint16_t)(store->rows[ids[i]].version + 1),
                               .time_ms = engine->now_ms + take8(in)};
        MUST(tw_apply_reschedule(store, runs, kept, priority) == 0);
        for (uint64_t i = 0; i < kept; i++) {
            const tw_row *row = &store->rows[ids[i]], *was = &rows_before[ids[i]];
            uint8_t       given = priority <= 255 && !(was->flags & TW_ORDERED) ? (uint8_t)priority : was->priority;
            MUST(row->state == TW_SCHEDULED && row->deliver_at_ms == runs[i].time_ms && row->priority == given);
            MUST(row->version == runs[i].epoch && row->position == was->position && row->key_hash == was->key_hash);
        }
    } else {
        uint8_t state = how & 4 ? TW_EXPIRED : TW_CANCELLED;
        MUST(tw_apply_end(store, ids, kept, state) == 0);
        for (uint64_t i = 0; i < kept; i++) {
            const tw_row  *row = &store->rows[ids[i]];
            const uint8_t *record = tw_at(store, row->position);
            MUST(row->state == state && row->version == rows_before[ids[i]].version);
            MUST(!row->key_hash ||
                 tw_keys_find(store, row->topic_id, record + sizeof(tw_message), tw_load16(record + 40)) != ids[i]);
        }
    }
    check_withdrawn(store, ids, kept);
}

/* A group begins anew at a number of its topic: what it was done with before stays so, the rest counts as new. */
static void seek(engine_t *engine, input_t *in) {
    tw_store *store = engine->store;
    uint32_t  group_id = 1 + take8(in) % 3;
    tw_group *group = &store->groups[group_id];
    uint64_t  start_seq = take8(in) % (store->topics[group->topic_id].count + 1);
    tw_apply_seek(store, group_id, start_seq);
    for (uint64_t seq = store->topics[group->topic_id].first_seq; seq < SEQS; seq++) {
        const tw_delivery *row = &group->rows[seq], *was = &deliveries_before[group_id][seq];
        int                stays = seq < start_seq && was_done(group_id, seq);
        MUST(row->state == (stays ? was->state : TW_UNTOUCHED) && row->epoch == was->epoch && !row->holder && !row->flags);
        MUST(stays || was->state == TW_UNTOUCHED || row->base_epoch == was->epoch);
    }
}

/* A start derives from the tables what is never stored. Leases stay, their holders are gone. */
static void restart(engine_t *engine) {
    tw_store *store = engine->store;
    uint64_t  need, from_id = 1, keys = tw_keys_count(store->keys), scheduled = 0, ids[ROWS], at = 1;
    int64_t   due_ms[ROWS];
    uint32_t  versions[ROWS];
    flush_store(store);
    memset(store->outstanding, 0, HOLDERS * sizeof(uint32_t));
    MUST(tw_rebuild_topics(store) == 0);
    for (uint32_t g = 1; g < GROUPS; g++) {
        uint64_t from_seq = 0;
        for (uint64_t seq = 0; seq < SEQS; seq++) deliveries_before[g][seq].holder = 0;
        for (uint64_t seq = 0; seq < SEQS; seq++) deliveries_before[g][seq].flags &= TW_CALLED;
        memset(store->groups[g].orders, 0, ORDERS * sizeof(tw_order));
        store->groups[g].orders_count = 0;
        MUST(tw_rebuild_group(store, g) == 0);
        MUST(tw_rebuild_orders(store, g, &from_seq) == 0);
        const tw_group *group = &store->groups[g], *was = &groups_before[g];
        MUST(group->touched == was->touched && group->acked == was->acked && group->dead == was->dead);
        MUST(group->pending == was->pending && group->deliveries == was->deliveries);
    }
    only_these(store, 0, NULL, 0);
    tw_keys_init(store->keys);
    MUST(tw_rebuild_keys(store, &from_id, store->next_id, &need) == 0);
    MUST(tw_keys_count(store->keys) == keys);
    int64_t n = tw_scheduled(store, &at, store->next_id, ROWS, due_ms, ids, versions);
    for (uint64_t id = 1; id < store->next_id; id++) {
        if (rows_before[id].state != TW_SCHEDULED) continue;
        MUST(ids[scheduled] == id && versions[scheduled] == rows_before[id].version);
        MUST(due_ms[scheduled] == rows_before[id].deliver_at_ms);
        scheduled++;
    }
    MUST((uint64_t)n == scheduled);
}

/* Whether a group, or a timer, may still ask for a message: then it must not go. */
static int is_needed(const tw_store *store, uint64_t id, int64_t now_ms) {
    const tw_row *row = &rows_before[id];
    int64_t       after_ms = store->topics[row->topic_id].purge_after_ms, last_ms = row->deliver_at_ms;
    if (row->state != TW_READY) return row->state == TW_SCHEDULED;
    for (uint32_t g = 1; g < GROUPS; g++) {
        if (store->groups[g].topic_id != row->topic_id || row->topic_seq < store->groups[g].start_seq) continue;
        if (!was_done(g, row->topic_seq)) return 1;
        if (deliveries_before[g][row->topic_seq].time_ms > last_ms) last_ms = deliveries_before[g][row->topic_seq].time_ms;
    }
    return last_ms + after_ms > now_ms;
}

/* What is forgotten was needed by no group, and the counters keep its sums; what is moved is as it was, elsewhere. */
static void check_purged(const tw_store *store, uint64_t from, uint64_t to, uint64_t moved_from, int64_t now_ms) {
    for (uint64_t id = 1; id < store->next_id; id++) {
        const tw_row *was = &rows_before[id], *row = &store->rows[id];
        if (was->state == TW_NONE) continue;
        int lay_there = was->position >= from && was->position < to;
        if (!lay_there) { MUST(memcmp(was, row, sizeof *was) == 0); continue; }
        MUST((row->state == TW_NONE) == !is_needed(store, id, now_ms));
        if (row->state == TW_NONE) continue;
        tw_row moved = *was;
        moved.position = row->position;
        MUST(row->position > moved_from && memcmp(&moved, row, sizeof moved) == 0);
        const uint8_t *old = store->log + was->position, *now = tw_at(store, row->position);
        MUST(memcmp(old + sizeof(tw_message), now + sizeof(tw_message), row->record_bytes - sizeof(tw_message)) == 0);
        MUST(now[9] == row->priority && (int64_t)tw_load64(now + 24) == row->deliver_at_ms);
    }
    for (uint32_t g = 1; g < GROUPS; g++) {
        const tw_group *group = &store->groups[g], *was = &groups_before[g];
        MUST(group->acked == was->acked && group->dead == was->dead && group->deliveries == was->deliveries);
        MUST(group->pending == was->pending && group->leased == was->leased);
        for (uint64_t seq = 0; seq < SEQS; seq++)
            MUST(tw_is_gone(store, group, seq) || same_delivery(&group->rows[seq], &deliveries_before[g][seq]));
    }
}

/* Moves or forgets what a part of the log holds, as the engine does: plan, write, apply. */
static void purge(engine_t *engine, input_t *in) {
    tw_store  *store = engine->store;
    uint64_t   dead[ROWS], damaged[ROWS], live[4] = {0}, live_bytes[4] = {0}, gone[4] = {0}, need;
    uint64_t   of_topics[2 * TOPICS] = {0}, of_groups[3 * GROUPS] = {0};
    tw_purging result;
    flush_store(store);
    uint64_t from = engine->purged_to, end = store->staging_position, at = from, expected[2] = {0}, capacity = 1 + take8(in) % 16;
    uint64_t limit = from + 64 * (uint64_t)take8(in) < end ? from + 64 * (uint64_t)take8(in) : end;
    if (limit > end) limit = end;
    int64_t now_ms = engine->now_ms + take8(in);
    for (uint64_t id = 1; id < store->next_id; id++)
        if (rows_before[id].state != TW_NONE) expected[is_needed(store, id, now_ms)]++;
    tw_purge_survey(store, 1, store->next_id, now_ms, LOG_START, LOG_BYTES, 4, live, live_bytes, gone);
    MUST(live[0] == expected[1] && gone[0] == expected[0]);
    int stop = tw_purge_plan(store, &at, limit, end, now_ms, capacity, dead, damaged, &result);
    MUST((stop == 0 || stop == TW_STOP_NEED_DISK) && result.damaged == 0);
    MUST(result.dead <= capacity && result.moved <= capacity && result.moved_bytes == store->staging_bytes);
    uint64_t moved_from = end;
    flush_store(store);
    MUST(tw_replay(store, &end, store->staging_position, &need) == 0);
    tw_purge_count(store, dead, result.dead, of_topics, of_groups);
    MUST(tw_apply_purged(store, from, at) == 0);
    for (uint32_t t = 1; t <= 2; t++) {
        store->topics[t].purged_messages += of_topics[2 * t];
        store->topics[t].purged_cancelled += of_topics[2 * t + 1];
    }
    for (uint32_t g = 1; g < GROUPS; g++) {
        store->groups[g].purged_acked += of_groups[3 * g];
        store->groups[g].purged_dead += of_groups[3 * g + 1];
        store->groups[g].purged_deliveries += of_groups[3 * g + 2];
    }
    check_purged(store, from, at, moved_from, now_ms);
    engine->purged_to = at;
    for (uint32_t t = 1; t <= 2; t++) tw_raise_first_seq(store, t, 1 + take8(in));
    tw_raise_first_id(store, 1 + take8(in));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input_t  in = {data, size};
    engine_t engine = {fresh_store(0), START_MS, LOG_START};
    for (uint32_t t = 1; t <= 2; t++) engine.store->topics[t].purge_after_ms = 20;
    for (int steps = 0; in.left && steps < 400; steps++) {
        remember(engine.store);
        uint8_t step = take8(&in) % 32;
        if (step < 4) send(&engine, &in);
        else if (step < 8) put(&engine, &in);
        else if (step < 15) fetch(&engine, &in);
        else if (step < 19) settle(&engine, &in);
        else if (step < 22) redeliver(&engine, &in);
        else if (step < 25) expire(&engine, &in);
        else if (step < 26) leave(&engine, &in);
        else if (step < 28) change(&engine, &in);
        else if (step < 29) engine.now_ms += 10 * (int64_t)take16(&in);
        else if (step < 30) restart(&engine);
        else if (step < 31) purge(&engine, &in);
        else seek(&engine, &in);
        check_store(engine.store);
    }
    return 0;
}
