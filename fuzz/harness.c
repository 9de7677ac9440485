#include "harness.h"
#include "invariants.h"

static void *zeroed(void *old, size_t bytes) {
    void *block = old ? old : malloc(bytes);
    MUST(block != NULL);
    return memset(block, 0, bytes);
}

tw_store *fresh_store(int number) {
    static tw_store stores[2];
    static uint8_t *logs[2];
    tw_store       *store = &stores[number];
    tw_store        old = *store;
    *store = (tw_store){
        .staging = zeroed(old.staging, STAGING_BYTES),
        .staging_capacity = STAGING_BYTES,
        .staging_position = LOG_START,
        .log_readable = LOG_START,
        .segment_end = LOG_BYTES,
        .message_limit = LOG_BYTES - 4096,
        .rows = zeroed(old.rows, ROWS * sizeof(tw_row)),
        .rows_allocated = ROWS,
        .next_id = 1,
        .first_id = 1,
        .keys = old.keys ? old.keys : malloc(KEYS_BYTES),
        .keys_allocated = KEYS_BYTES,
        .topics_capacity = TOPICS,
        .groups_capacity = GROUPS,
        .outstanding = zeroed(old.outstanding, 65536 * sizeof(uint32_t)),
        .max_body_bytes = 400,
        .max_frame_bytes = 8192,
        .key_hashes = zeroed(old.key_hashes, TW_MAX_BATCH * sizeof(uint32_t)),
        .key_counts = zeroed(old.key_counts, TW_KEY_PARTITIONS * sizeof(uint16_t)),
    };
    store->log = logs[number] = zeroed(logs[number], LOG_BYTES);
    tw_keys_init(store->keys);
    tw_topic *topics = old.topics ? old.topics : calloc(TOPICS, sizeof(tw_topic));
    tw_group *groups = old.groups ? old.groups : calloc(GROUPS, sizeof(tw_group));
    for (uint32_t t = 1; t <= 2; t++) {
        tw_arrival *arrivals = zeroed(topics[t].arrivals, SEQS * sizeof(tw_arrival));
        topics[t] = (tw_topic){.arrivals = arrivals, .allocated = SEQS, .exists = 1, .default_priority = 50};
    }
    for (uint32_t g = 1; g < GROUPS; g++) {
        tw_delivery *rows = zeroed(groups[g].rows, SEQS * sizeof(tw_delivery));
        tw_order    *orders = zeroed(groups[g].orders, ORDERS * sizeof(tw_order));
        uint32_t     topic_id = g == 3 ? 2 : 1;
        groups[g] = (tw_group){.rows = rows, .allocated = SEQS, .exists = 1, .topic_id = topic_id,
                               .ack_wait_ms = 1000, .min_backoff_ms = 700, .max_backoff_ms = 60000,
                               .next_group = topics[topic_id].first_group,
                               .orders = orders, .orders_capacity = ORDERS};
        topics[topic_id].first_group = g;
    }
    groups[3].max_attempts = 2;
    store->topics = topics;
    store->groups = groups;
    return store;
}

void flush_store(tw_store *store) {
    MUST(store->staging_position + store->staging_bytes <= LOG_BYTES);
    memcpy((uint8_t *)store->log + store->staging_position, store->staging, store->staging_bytes);
    store->staging_position += store->staging_bytes;
    store->log_readable = store->staging_position;
    store->staging_bytes = 0;
}

void check_store(const tw_store *store) {
    uint64_t    counts[256] = {0};
    int32_t     reason;
    const char *broken = broken_invariant(store, 1);
    if (broken) {
        fprintf(stderr, "%s\n", broken);
        abort();
    }
    MUST(tw_log_verify(store->log, LOG_START, store->staging_position, counts, &reason) == store->staging_position);
    MUST(reason == 0);
}

uint8_t *exact_copy(const uint8_t *data, size_t bytes) {
    uint8_t *copy = malloc(bytes ? bytes : 1);
    MUST(copy != NULL);
    if (bytes) memcpy(copy, data, bytes);
    return copy;
}

void mend_records(uint8_t *log, uint64_t bytes) {
    uint64_t at = 0;
    while (at < bytes && bytes - at >= sizeof(tw_head)) {
        uint32_t length = tw_load32(log + at + 4);
        if (length < sizeof(tw_head) || tw_padded(length) > bytes - at) return;
        tw_store32(log + at, tw_crc32c(log + at + 4, length - 4, 0));
        at += tw_padded(length);
    }
}

size_t make_send(input_t *in, uint8_t *frame) {
    enum { KEYS = 4, HEADERS = 8, COLUMN_ORDERS = 32, LANES = 8 };
    uint8_t *at = frame + 16;
    uint32_t n = 1 + take8(in) % 8, columns = take8(in) % 64, head[4] = {1 + take8(in) % 2, n, columns, take8(in) % LANES * 36};
    memcpy(at, head, sizeof head);
    tw_store64(at + 16, take8(in));
    at += 24;
    uint32_t lengths[4][8] = {{0}}, total = 0;
    static const uint32_t column_of[4] = {KEYS, HEADERS, COLUMN_ORDERS, 0}; /* the last: bodies, always there */
    for (uint32_t c = 0; c < 4; c++)
        for (uint32_t i = 0; i < n; i++)
            if (c == 3 || (columns & column_of[c])) total += lengths[c][i] = c == 2 ? take8(in) % 4 > 0 : take8(in) % (c == 3 ? 64 : 4);
    if (columns & 1)
        for (uint32_t i = 0; i < n; i++, at += 8) tw_store64(at, (uint64_t)START_MS + take8(in));
    for (uint32_t i = 0; i < n; i++, at += 4) tw_store32(at, lengths[3][i]);
    for (uint32_t c = 0; c < 3; c++)
        if (columns & column_of[c])
            for (uint32_t i = 0; i < n; i++, at += 2) memcpy(at, &lengths[c][i], 2);
    if (columns & 2)
        for (uint32_t i = 0; i < n; i++) *at++ = take8(in) % LANES * 36;
    for (uint32_t i = 0; i < total; i++) *at++ = take8(in) % 5; /* few keys and lanes, so that they meet */
    tw_finish_frame(frame, (uint64_t)(at - frame) - 16, 12, 7);
    return (size_t)(at - frame);
}
