/* What a connection gives to the engine: any bytes. Frames with right checksums are reached by mending them. However the
 * stream is cut, the same must come of it. */
#include "harness.h"

enum { FRAME_HEAD = 16, FRAME_ACK = 23 };

static void mend_frames(uint8_t *stream, size_t bytes) {
    size_t at = 0;
    while (bytes - at >= FRAME_HEAD) {
        uint64_t payload = tw_load32(stream + at);
        if (payload > bytes - at - FRAME_HEAD) return;
        tw_store32(stream + at + 4, tw_crc32c(stream + at + 8, payload + 8, 0));
        at += FRAME_HEAD + payload;
    }
}

static void check_replies(const uint8_t *replies, const tw_ingested *result) {
    uint64_t at = 0, messages = 0, frames = 0;
    while (at < result->reply_bytes) {
        uint64_t payload = tw_load32(replies + at), exceptions = tw_load32(replies + at + 28);
        MUST(payload == 16 + 16 * exceptions);
        MUST(tw_crc32c(replies + at + 8, payload + 8, 0) == tw_load32(replies + at + 4));
        messages += tw_load32(replies + at + 24) + exceptions;
        at += FRAME_HEAD + payload;
        frames++;
    }
    MUST(at == result->reply_bytes && frames == result->frames && messages == result->messages);
}

/* As Store.ack: the payload is checked, then judged. */
static void ack(tw_store *store, const uint8_t *payload, uint64_t bytes) {
    if (bytes < 8) return;
    uint32_t group_id = tw_load32(payload), n = tw_load32(payload + 4);
    if (!group_id || group_id >= GROUPS || !n || n > 512 || bytes != 8 + 12 * (uint64_t)n) return;
    uint64_t *seqs = malloc(8 * n);
    uint32_t *epochs = malloc(4 * n), *codes = malloc(4 * n);
    int64_t   good = tw_ack_check(store, group_id, payload + 8, n, seqs, epochs, codes);
    MUST(good >= 0 && good <= n);
    tw_unmark_acks(store, group_id, seqs, (uint64_t)good);
    free(seqs);
    free(epochs);
    free(codes);
}

/* One step of the engine's loop. Returns 0 when the rest cannot be taken (yet). */
static int step(tw_store *store, const uint8_t *data, uint64_t bytes, uint64_t *at, int *is_over) {
    static uint8_t *replies;
    tw_ingested     result;
    uint64_t        freed_offset, freed_bytes;
    if (!replies) replies = malloc(REPLIES_BYTES);
    tw_ingest(store, data + *at, bytes - *at, START_MS, replies, REPLIES_BYTES, &result);
    MUST(result.consumed_bytes <= bytes - *at);
    check_replies(replies, &result);
    uint64_t frame = *at + result.consumed_bytes, skipped = FRAME_HEAD + result.stop_payload_bytes;
    *at = frame;
    switch (result.stop) {
    case TW_STOP_OTHER_FRAME:
        if (result.stop_type == FRAME_ACK)
            ack(store, data + *at - result.stop_payload_bytes, result.stop_payload_bytes);
        return 1;
    case TW_STOP_BAD_FRAME:
    case TW_STOP_UNKNOWN_TOPIC: return 1;
    case TW_STOP_NEED_FLUSH:
        if (store->staging_bytes) flush_store(store);
        else *at += skipped; /* larger than staging: the engine's is larger than any frame */
        return 1;
    case TW_STOP_NEED_KEYS:
        if (tw_keys_grow(store, (uint32_t)result.need, &freed_offset, &freed_bytes)) *at += skipped;
        return 1;
    case TW_STOP_NEED_REPLIES:
        if (!result.reply_bytes) *at += skipped;
        return 1;
    case TW_STOP_NEED_DISK:
    case TW_STOP_NEED_ROWS: *at += skipped; return 1; /* disk full */
    case TW_STOP_NEED_MORE: return 0;
    default: *is_over = 1; return 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > 20000) return 0;
    uint8_t  how = data[0], cut = data[1];
    size_t   bytes = size - 2;
    uint8_t *stream = exact_copy(data + 2, bytes);
    if (how & 1) mend_frames(stream, bytes);
    tw_store *whole = fresh_store(0), *cut_store = fresh_store(1);
    if (how & 2) whole->topics[1].shards = cut_store->topics[1].shards = 0, whole->max_body_bytes = cut_store->max_body_bytes = 20;
    uint64_t at = 0;
    int      is_over = 0;
    while (step(whole, stream, bytes, &at, &is_over)) MUST(at <= bytes);
    check_store(whole);
    free(stream);

    uint8_t *pieces = exact_copy(data + 2, bytes);
    if (how & 1) mend_frames(pieces, bytes);
    uint64_t from = 0, step_bytes = 1 + cut, rounds = 0;
    if (bytes / step_bytes > 200) step_bytes = bytes / 200;
    is_over = 0;
    for (uint64_t end = 0; end < bytes && !is_over;) {
        end = end + step_bytes < bytes ? end + step_bytes : bytes;
        uint8_t *part = exact_copy(pieces + from, end - from); /* nothing behind it may be looked at */
        uint64_t used = 0;
        while (step(cut_store, part, end - from, &used, &is_over)) MUST(++rounds < 100000);
        free(part);
        from += used;
    }
    free(pieces);
    flush_store(whole);
    flush_store(cut_store);
    MUST(whole->next_id == cut_store->next_id && whole->staging_position == cut_store->staging_position);
    MUST(memcmp(whole->log, cut_store->log, whole->staging_position) == 0);
    MUST(memcmp(whole->rows, cut_store->rows, whole->next_id * sizeof(tw_row)) == 0);
    return 0;
}
