/* A log from a disk that may hold anything: verified, scanned, replayed, and what was replayed is looked at as the engine
 * and the readers from outside do. Checksums are mended in half of the inputs, so that nonsense gets behind them. */
#include "../native/scan.h"
#include "harness.h"

static void scan(const uint8_t *log, uint64_t bytes, uint8_t choice) {
    uint8_t  wanted[256];
    uint64_t positions[64], sizes[64], ids[64], found, at = 0;
    int32_t  reason;
    memset(wanted, choice & 1, sizeof wanted);
    wanted[TW_RECORD_MESSAGE] = 1;
    do {
        uint64_t from = at;
        at = tw_log_scan(log, at, bytes, wanted, 1 + choice % 64, positions, &found, &reason);
        MUST(at >= from && at <= bytes && found <= 1u + choice % 64);
        uint8_t ok[64], whole[64];
        int64_t lengths[4 * 64];
        uint64_t total = 0;
        for (uint64_t i = 0; i < found; i++) {
            sizes[i] = tw_load32(log + positions[i] + 4);
            MUST(positions[i] + sizes[i] <= bytes);
            /* Readers take a position for a message's only if its row says a size of at least a message's. */
            if (sizes[i] < sizeof(tw_message)) sizes[i] = 0;
            ids[i] = sizes[i] ? tw_load64(log + positions[i] + 16) : 0;
            total += sizes[i];
        }
        tw_check_records(log, positions, sizes, found, ok);
        tw_message_parts(log, ids, positions, sizes, found, whole, lengths);
        uint8_t *pieces = malloc(total ? total : 1);
        tw_gather(log, positions, sizes, found, pieces);
        free(pieces);
        for (uint64_t i = 0; i < found; i++) {
            MUST(ok[i] == (sizes[i] != 0));
            if (!whole[i]) continue;
            int64_t parts = lengths[i] + lengths[found + i] + lengths[2 * found + i] + lengths[3 * found + i];
            MUST((uint64_t)parts + sizeof(tw_message) == sizes[i]);
        }
    } while (reason == 5 && found);
}

/* What a start does with tables that a replay has filled. */
static void look(tw_store *store) {
    uint64_t need, from_id = 1, ids[ROWS], scheduled[ROWS], epoch_bytes;
    uint32_t versions[ROWS], epochs[ROWS];
    int64_t  due_ms[ROWS], until_ms[ROWS];
    uint8_t  verdicts[ROWS];
    if (tw_rebuild_topics(store)) return;
    if (tw_rebuild_keys(store, &from_id, store->next_id, &need)) return; /* more keys of one partition than it has room for */
    for (uint64_t id = 0; id < ROWS; id++) { ids[id] = id; versions[id] = 0; }
    tw_judge_all(store, ids, ROWS, verdicts);
    tw_lookup(store, ids, versions, ROWS, INT64_MAX, verdicts);
    tw_damaged(store, ids, ROWS, scheduled);
    from_id = 0;
    tw_scheduled(store, &from_id, store->next_id, ROWS, due_ms, scheduled, versions);
    for (uint32_t g = 1; g < GROUPS; g++) {
        uint64_t from_seq = 0, seqs[SEQS];
        if (tw_rebuild_group(store, g) || tw_rebuild_orders(store, g, &from_seq)) return;
        int64_t n = tw_select(store, g, SEQS, 1 << 20, 1, START_MS, seqs, epochs, until_ms, &epoch_bytes, &need);
        if (n > 0) {
            uint8_t *frame = malloc(epoch_bytes);
            tw_deliver_frame(store, g, 1, seqs, (uint64_t)n, frame, epoch_bytes);
            free(frame);
        }
        tw_unselect(store, g, seqs, (uint64_t)(n > 0 ? n : 0));
    }
    uint64_t moved[16], damaged[16], at = LOG_START;
    tw_purging purging;
    tw_purge_plan(store, &at, store->log_readable, store->log_readable, INT64_MAX / 2, 16, moved, damaged, &purging);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > 16384) return 0;
    uint8_t  how = data[0];
    uint64_t bytes = (size - 2) & ~(uint64_t)7, counts[256] = {0}, need = 0;
    int32_t  reason;
    uint8_t *log = exact_copy(data + 2, bytes);
    if (how & 1) mend_records(log, bytes);
    uint64_t end = tw_log_verify(log, 0, bytes, counts, &reason);
    MUST(end <= bytes && end % 8 == 0);
    scan(log, bytes, data[1]);
    tw_store *store = fresh_store(0);
    memcpy((uint8_t *)store->log + LOG_START, log, end);
    free(log);
    store->staging_position = store->log_readable = LOG_START + end;
    uint64_t at = LOG_START;
    while (at < LOG_START + end) {
        uint64_t before = at;
        int      stop = tw_replay(store, &at, LOG_START + end, &need);
        MUST(at >= before && at <= LOG_START + end);
        if (stop == 1) at += tw_padded(tw_load32(store->log + at + 4)); /* other records are Python's */
        else break;
    }
    look(store);
    return 0;
}
