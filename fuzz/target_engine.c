/* Sends, deliveries, acks, cancels and new times in any order, with receipts and ids as hostile clients make them, and
 * calls as the engine makes them. After each step the counters are compared with a recount. */
#include "harness.h"

enum { MANY = 64 };

typedef struct {
    tw_store *store;
    int64_t   now_ms;
} engine_t;

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
    if (take8(in) & 1) n = unique(ids, some_ids(in, ids));
    else
        for (uint64_t id = 1; id < store->next_id; id++)
            if (store->rows[id].state == TW_SCHEDULED) ids[n++] = id;
    for (uint64_t i = 0; i < n; i++) versions[i] = ids[i] < store->next_id ? store->rows[ids[i]].version : 0;
    tw_lookup(store, ids, versions, n, engine->now_ms, verdicts);
    for (uint32_t t = 1; t <= 2; t++) {
        uint64_t count = 0;
        for (uint64_t i = 0; i < n; i++)
            if (verdicts[i] == 1 && store->rows[ids[i]].topic_id == t) chosen[count++] = ids[i];
        uint64_t first_seq = store->topics[t].count;
        int64_t  made = tw_runs(chosen, NULL, NULL, count, runs);
        int      is_done = tw_apply_put(store, t, first_seq, runs, (uint64_t)made) == 0;
        MUST(is_done == (first_seq + count <= SEQS));
    }
}

static void fetch(engine_t *engine, input_t *in) {
    tw_store *store = engine->store;
    uint32_t  group_id = 1 + take8(in) % 3, holder = 1 + take8(in) % (HOLDERS - 1), epochs[MANY];
    uint64_t  seqs[MANY], frame_bytes, need, limit = 1 + take8(in) % MANY, limit_bytes = 64 * take8(in);
    int64_t   until_ms[MANY];
    tw_run    runs[MANY];
    int64_t n = tw_select(store, group_id, limit, limit_bytes, engine->now_ms, seqs, epochs, until_ms, &frame_bytes, &need);
    MUST(n >= 0 && (uint64_t)n <= limit);
    if (take8(in) % 4 == 0) {
        tw_unselect(store, group_id, seqs, (uint64_t)n);
        return;
    }
    int64_t made = tw_runs(seqs, epochs, until_ms, (uint64_t)n, runs);
    MUST(tw_apply_lease(store, group_id, holder, runs, (uint64_t)made) == 0);
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
    for (uint64_t i = 0; i < n; i++) accepted += codes[i] == 0;
    MUST(good == accepted);
    uint8_t how = take8(in) % 5, delay = take8(in);
    for (uint64_t i = 0; i < good; i++) times[i] = engine->now_ms + delay;
    uint64_t made = (uint64_t)tw_runs(seqs, epochs, times, good, runs);
    if (how == 0) tw_unmark_acks(store, group_id, seqs, good);
    else if (how == 1) MUST(tw_apply_ack(store, group_id, runs, made) == 0);
    else if (how == 2) MUST(tw_apply_nack(store, group_id, runs, made) == 0);
    else if (how == 3) MUST(tw_apply_dead(store, group_id, runs, made) == 0);
    else MUST(tw_apply_release(store, group_id, runs, made) == 0);
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
        if (group->rows[seq].state == TW_UNTOUCHED || (group->rows[seq].flags & TW_IN_RETRY)) continue;
        seqs[kept] = seq;
        epochs[kept] = group->rows[seq].epoch;
        times[kept++] = engine->now_ms + 5;
    }
    uint64_t made = (uint64_t)tw_runs(seqs, epochs, times, kept, runs);
    MUST(tw_apply_redeliver(store, group_id, runs, made, take8(in) % 4) == 0);
}

/* Timers that went off, some of them stale or never set. */
static void expire(engine_t *engine, input_t *in) {
    tw_store *store = engine->store;
    uint32_t  group_id = 1 + take8(in) % 3, epochs[SEQS + 2];
    uint64_t  seqs[SEQS + 2], exhausted[SEQS + 2], count, from_seq = 0;
    int64_t   until_ms[SEQS];
    int64_t   n = tw_leased(store, group_id, &from_seq, SEQS, until_ms, seqs, epochs);
    seqs[n] = take8(in);
    epochs[n++] = take8(in) % 4;
    seqs[n] = take64(in);
    epochs[n++] = 1;
    int64_t moved = tw_expire(store, group_id, seqs, epochs, (uint64_t)n, engine->now_ms, exhausted, &count);
    MUST(moved >= 0 && (uint64_t)moved + count <= (uint64_t)n);
    count = unique(exhausted, count);
    tw_requeue(store, group_id, exhausted, count);
}

static void leave(engine_t *engine, input_t *in) {
    tw_store *store = engine->store;
    uint32_t  group_id = 1 + take8(in) % 3, holder = 1 + take8(in) % (HOLDERS - 1), epochs[MANY];
    uint64_t  seqs[MANY], exhausted[MANY], count, from_seq = 0;
    int64_t   times[MANY];
    tw_run    runs[MANY];
    uint64_t  n = (uint64_t)tw_held_by(store, group_id, holder, &from_seq, seqs, epochs, MANY);
    int       is_unseen = take8(in) & 1;
    for (uint64_t i = 0; i < n; i++) times[i] = is_unseen ? store->groups[group_id].rows[seqs[i]].base_epoch + 1 : engine->now_ms;
    uint64_t made = (uint64_t)tw_runs(seqs, epochs, times, n, runs);
    if (is_unseen) MUST(tw_apply_return(store, group_id, runs, made, engine->now_ms) == 0);
    else MUST(tw_apply_release(store, group_id, runs, made) == 0);
    tw_expire(store, group_id, seqs, epochs, n, engine->now_ms, exhausted, &count);
    tw_requeue(store, group_id, exhausted, unique(exhausted, count));
}

static void change(engine_t *engine, input_t *in) {
    tw_store *store = engine->store;
    uint64_t  ids[16], n = unique(ids, some_ids(in, ids)), kept = 0;
    uint8_t   how = take8(in);
    tw_run    runs[16];
    for (uint64_t i = 0; i < n; i++) {
        int verdict = tw_judge(store, ids[i]);
        int can = verdict == TW_IS_SCHEDULED || verdict == TW_IS_READY || ((how & 2) && verdict == TW_IS_DELIVERED);
        if (can) ids[kept++] = ids[i];
    }
    if (how & 1) {
        for (uint64_t i = 0; i < kept; i++)
            runs[i] = (tw_run){.first = ids[i], .count = 1, .epoch = (uint16_t)(store->rows[ids[i]].version + 1),
                               .time_ms = engine->now_ms + take8(in)};
        if (!(how & 2)) MUST(tw_apply_reschedule(store, runs, kept, take16(in)) == 0);
    } else MUST(tw_apply_end(store, ids, kept, how & 4 ? TW_EXPIRED : TW_CANCELLED) == 0);
}

/* A start derives from the tables what is never stored. Leases stay, their holders are gone. */
static void restart(engine_t *engine) {
    tw_store *store = engine->store;
    uint64_t  need, from_id = 1, keys = tw_keys_count(store->keys);
    flush_store(store);
    memset(store->outstanding, 0, HOLDERS * sizeof(uint32_t));
    MUST(tw_rebuild_topics(store) == 0);
    for (uint32_t g = 1; g < GROUPS; g++) {
        uint64_t from_seq = 0;
        for (uint64_t seq = 0; seq < SEQS; seq++) store->groups[g].rows[seq].holder = 0;
        memset(store->groups[g].orders, 0, ORDERS * sizeof(tw_order));
        store->groups[g].orders_count = 0;
        MUST(tw_rebuild_group(store, g) == 0);
        MUST(tw_rebuild_orders(store, g, &from_seq) == 0);
    }
    tw_keys_init(store->keys);
    MUST(tw_rebuild_keys(store, &from_id, store->next_id, &need) == 0);
    MUST(tw_keys_count(store->keys) == keys);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input_t  in = {data, size};
    engine_t engine = {fresh_store(0), START_MS};
    for (int steps = 0; in.left && steps < 400; steps++) {
        switch (take8(&in) % 12) {
        case 0: case 1: send(&engine, &in); break;
        case 2: put(&engine, &in); break;
        case 3: case 4: fetch(&engine, &in); break;
        case 5: settle(&engine, &in); break;
        case 6: redeliver(&engine, &in); break;
        case 7: expire(&engine, &in); break;
        case 8: leave(&engine, &in); break;
        case 9: change(&engine, &in); break;
        case 10: engine.now_ms += 10 * (int64_t)take16(&in); break;
        case 11: restart(&engine); break;
        }
        check_rows(engine.store);
        check_groups(engine.store);
    }
    return 0;
}
