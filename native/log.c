/* Reading and appending CommitLog records. */
#include "crc32c.h"
#include "store.h"

int32_t tw_judge_record(const uint8_t *record, uint64_t room) {
    uint32_t bytes = tw_load32(record + 4);
    if (bytes == 0 && tw_load32(record) == 0) return TW_READ_ZEROS;
    /* A record goes with its padding: without it, the next one would not start at a multiple of 8. */
    if (bytes < sizeof(tw_head) || tw_padded(bytes) > room) return TW_READ_BAD_LENGTH;
    return tw_crc32c(record + 4, bytes - 4, 0) == tw_load32(record) ? TW_READ_END_OF_RANGE : TW_READ_BAD_CHECKSUM;
}

uint64_t tw_log_verify(const uint8_t *log, uint64_t position, uint64_t end, uint64_t *counts, int32_t *reason) {
    *reason = TW_READ_END_OF_RANGE;
    while (position < end && end - position >= sizeof(tw_head)) {
        const uint8_t *record = tw_place(log, position);
        *reason = tw_judge_record(record, end - position);
        if (*reason != TW_READ_END_OF_RANGE) return position;
        counts[record[8]]++;
        if (record[8] == TW_RECORD_END) { *reason = TW_READ_END_RECORD; return position; }
        position += tw_padded(tw_load32(record + 4));
    }
    return position;
}

int64_t tw_log_append(tw_store *store, uint8_t type, uint32_t aux, const uint8_t *payload, uint64_t bytes) {
    uint64_t total = sizeof(tw_head) + bytes, position = store->staging_position + store->staging_bytes;
    if (store->staging_bytes + tw_padded(total) > store->staging_capacity) return -1;
    if (position + tw_padded(total) > store->segment_end) return -1;
    uint8_t *record = store->staging + store->staging_bytes;
    tw_head  head = {.record_bytes = (uint32_t)total, .type = type, .aux = aux};
    memcpy(record, &head, sizeof head);
    if (bytes) memcpy(record + sizeof head, payload, bytes);
    memset(record + total, 0, tw_padded(total) - total);
    tw_store32(record, tw_crc32c(record + 4, total - 4, 0));
    store->staging_bytes += tw_padded(total);
    if (type > store->newest_record && type != TW_RECORD_END) store->newest_record = type;
    return (int64_t)position;
}

/* Lengths that add up, and references that exist: a checksum says only that the bytes are as they were written. */
static int makes_sense(const tw_store *store, const tw_message *message) {
    uint64_t bytes = sizeof *message;
    if (message->head.record_bytes < bytes || message->id == 0 || message->id > TW_MAX_ID) return 0;
    bytes += (uint64_t)message->key_bytes + message->headers_bytes + message->head.order_bytes + message->body_bytes;
    return bytes == message->head.record_bytes && message->head.aux < store->topics_capacity &&
           store->topics[message->head.aux].exists;
}

int tw_replay(tw_store *store, uint64_t *position, uint64_t end, uint64_t *need) {
    while (*position < end && end - *position >= sizeof(tw_head)) {
        const uint8_t *record = tw_place(store->log, *position);
        uint32_t bytes = tw_load32(record + 4);
        if (record[8] == TW_RECORD_MOVED) {
            int stop = tw_apply_moved(store, *position, need);
            if (stop) return stop;
            *position += tw_padded(bytes);
            continue;
        }
        if (record[8] == TW_RECORD_FILL) {  /* it means nothing; the rejects of a bulk job are many of them */
            if (store->newest_record < TW_RECORD_FILL) store->newest_record = TW_RECORD_FILL;
            *position += tw_padded(bytes);
            continue;
        }
        if (record[8] != TW_RECORD_MESSAGE) return 1;
        if (bytes < sizeof(tw_message) || bytes > end - *position) return -1;
        tw_message message;
        memcpy(&message, record, sizeof message);
        if (!makes_sense(store, &message)) return -1;
        int has_row = message.id >= store->rows_start && message.id < store->rows_allocated;
        if (!has_row || !tw_may_fill(store, message.id)) { *need = message.id + 1; return TW_STOP_NEED_ROWS; }
        const uint8_t *key = record + sizeof message;
        uint32_t       topic_id = tw_key_topic(store, message.head.aux);
        uint32_t       hash = message.key_bytes ? tw_key_hash(topic_id, key, message.key_bytes) : 0;
        if (store->keeps_keys && hash && !tw_keys_enter(store, message.id, hash, need)) return TW_STOP_NEED_KEYS;
        tw_apply_message(store, &message, *position, hash);
        *position += tw_padded(message.head.record_bytes);
    }
    return 0;
}

int64_t tw_group_begin(tw_store *store, uint8_t type, uint32_t aux, const uint8_t *payload, uint64_t bytes, uint64_t room) {
    if (room < sizeof(tw_head) + bytes) room = sizeof(tw_head) + bytes;
    if (room > store->staging_capacity - store->staging_bytes) return -1;
    if (store->staging_position + store->staging_bytes + room > store->segment_end) return -1;
    uint64_t at = store->staging_bytes;
    tw_head  head = {.type = type, .aux = aux};
    memcpy(store->staging + at, &head, sizeof head);
    memcpy(store->staging + at + sizeof head, payload, bytes);
    store->staging_bytes += sizeof head + bytes;
    return (int64_t)at;
}

void tw_group_end(tw_store *store, uint64_t at) {
    uint8_t *record = store->staging + at;
    uint64_t bytes = store->staging_bytes - at;
    tw_store32(record + 4, (uint32_t)bytes);
    tw_store32(record, tw_crc32c(record + 4, bytes - 4, 0));
}
