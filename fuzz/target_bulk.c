/* Segments of bulk scheduling: built from columns they are taken in whole; from strangers they may hold anything. */
#include "harness.h"

enum { MOST = 32 };

/* Takes in what lies in `foreign`, as the engine does in steps: checks, enters keys, then adopts or forgets. */
static uint64_t take_in(tw_store *store, uint64_t bytes, uint64_t first_id, input_t *in) {
    uint64_t at = TW_FOREIGN, next_id = first_id, filled = 0, count, need, freed_offset, freed_bytes;
    int      stop = 0;
    while (at < TW_FOREIGN + bytes && !stop) {
        uint64_t before = next_id;
        stop = tw_bulk_check(store, &at, TW_FOREIGN + bytes, &next_id, ROWS, 1 + take8(in) % 8, &filled);
        MUST(at <= TW_FOREIGN + bytes && next_id <= ROWS && next_id >= before);
    }
    uint64_t n = next_id - first_id, ids[ROWS], duplicates[ROWS], earlier[ROWS];
    uint32_t hashes[ROWS];
    store->next_id = next_id > store->next_id ? next_id : store->next_id;
    tw_bulk_order(store, first_id, n, ids, hashes, &count);
    MUST(count <= n);
    uint64_t entered = 0, refused = 0;
    while (entered < count) {
        uint64_t found;
        entered += tw_bulk_enter(store, ids + entered, hashes + entered, count - entered, duplicates, earlier, &found, &need);
        refused += found;
        for (uint64_t i = 0; i < found; i++) MUST(earlier[i] != duplicates[i] && earlier[i] < store->next_id);
        tw_bulk_forget(store, duplicates, found, 0);
        if (entered < count && tw_keys_grow(store, (uint32_t)need, &freed_offset, &freed_bytes)) break;
    }
    tw_bulk_racers(store, first_id, n, first_id, next_id, duplicates, earlier);
    if (stop || entered < count || take8(in) % 4 == 0) {
        for (uint64_t i = 0; i < n; i++) ids[i] = first_id + i;
        tw_bulk_forget(store, ids, n, 1);
        return 0;
    }
    uint64_t base = store->staging_position;
    if (base + bytes > LOG_BYTES) return 0;
    memcpy((uint8_t *)store->log + base, store->foreign, bytes);
    store->staging_position = store->log_readable = base + bytes;
    uint64_t adopted = tw_bulk_adopt(store, first_id, n, base);
    MUST(adopted + refused + filled == n);
    return adopted;
}

/* Columns as the input says; the lengths are within the fields' limits, as the caller of tw_bulk_build makes sure. */
static uint64_t build(input_t *in, uint64_t first_id, uint8_t *out, uint64_t capacity, uint64_t *bytes) {
    uint64_t n = 1 + take8(in) % MOST;
    uint16_t topics[MOST];
    int64_t  due[MOST], at[4][MOST + 1] = {{0}};
    uint8_t  priorities[MOST], texts[MOST * 8];
    uint32_t order[MOST];
    for (uint64_t i = 0; i < n; i++) {
        topics[i] = 1 + take8(in) % 2;
        due[i] = START_MS + take8(in);
        order[i] = (uint32_t)(n - 1 - i);
        for (int c = 0; c < 4; c++) at[c][i + 1] = at[c][i] + take8(in) % 8;
        priorities[i] = at[2][i + 1] > at[2][i] ? TW_ORDERED_PRIORITY : take8(in);
    }
    for (size_t i = 0; i < sizeof texts; i++) texts[i] = take8(in) % 4;
    tw_bulk bulk = {.topic_ids = topics, .deliver_at_ms = due, .priorities = priorities, .key_at = at[0], .headers_at = at[1],
                    .order_at = at[2], .body_at = at[3], .keys = texts, .headers = texts, .orders = texts, .bodies = texts,
                    .created_ms = START_MS};
    return tw_bulk_build(&bulk, order, n, first_id, out, capacity, bytes);
}

static void check_adopted(const tw_store *store) {
    for (uint64_t id = 1; id < store->next_id; id++) {
        const tw_row *row = &store->rows[id];
        MUST(row->state == TW_NONE || row->position + row->record_bytes <= store->staging_position);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > 8192) return 0;
    input_t   in = {data + 1, size - 1};
    tw_store *store = fresh_store(0);
    uint64_t  bytes = 0;
    if (data[0] & 2) {
        uint64_t capacity = 64 + take16(&in) % 4096;
        uint8_t *out = malloc(capacity);
        uint64_t built = build(&in, 1, out, capacity, &bytes);
        MUST(bytes <= capacity && built <= MOST);
        store->foreign = out;
        uint64_t at = TW_FOREIGN, next_id = 1, filled = 0;
        MUST(tw_bulk_check(store, &at, TW_FOREIGN + bytes, &next_id, ROWS, MOST, &filled) == 0);
        MUST(next_id == 1 + built && !filled);
        memset(store->rows, 0, ROWS * sizeof(tw_row));
        take_in(store, bytes, 1, &in);
        free(out);
        check_adopted(store);
        return 0;
    }
    bytes = in.left & ~(uint64_t)7;
    uint8_t *foreign = exact_copy(in.data, bytes);
    if (data[0] & 1) mend_records(foreign, bytes);
    store->foreign = foreign;
    take_in(store, bytes, 1 + (data[0] >> 4), &in);
    free(foreign);
    check_adopted(store);
    return 0;
}
