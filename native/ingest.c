/* From a socket's bytes to the CommitLog: one call takes every whole SEND frame. */
#include "crc32c.h"
#include "store.h"

enum { FRAME_HEAD = 16, SEND_HEAD = 24, REPLY_HEAD = 16, FRAME_SEND = 12, FRAME_SEND_OK = 13 };
enum { COLUMN_TIMES = 1, COLUMN_PRIORITY = 2, COLUMN_KEYS = 4, COLUMN_HEADERS = 8, TIMES_ARE_DELAYS = 16 };
enum { DUPLICATE = 1, BODY_TOO_LARGE = 2, BAD_TIME = 3, KEY_TOO_LONG = 4, HEADERS_TOO_LARGE = 5 };

/* Where each column of a SEND payload starts; NULL for a column that is not there. */
typedef struct {
    uint32_t       topic_id, count, columns, priority;
    int64_t        time;
    const uint8_t *times, *body_bytes, *key_bytes, *headers_bytes, *priorities, *keys, *headers, *bodies;
    uint64_t       payload_bytes;
    uint64_t       blob_bytes; /* keys, headers and bodies together */
} send_t;

int tw_finish_frame(uint8_t *frame, uint64_t payload_bytes, uint32_t type, uint32_t correlation) {
    tw_store32(frame, (uint32_t)payload_bytes);
    tw_store32(frame + 8, type);
    tw_store32(frame + 12, correlation);
    tw_store32(frame + 4, tw_crc32c(frame + 8, payload_bytes + 8, 0));
    return 0;
}

/* Sums a column of lengths in 64 bits: 65,536 values of 32 bits cannot overflow it. */
static uint64_t sum32(const uint8_t *column, uint32_t count) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) total += tw_load32(column + 4 * (uint64_t)i);
    return total;
}
static uint64_t sum16(const uint8_t *column, uint32_t count) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) total += tw_load16(column + 2 * (uint64_t)i);
    return total;
}

/* Returns 0 when the columns do not add up to exactly the payload. */
static int parse_send(const uint8_t *payload, uint64_t bytes, send_t *send) {
    if (bytes < SEND_HEAD) return 0;
    send->topic_id = tw_load32(payload);
    send->count = tw_load32(payload + 4);
    send->columns = tw_load32(payload + 8);
    send->priority = tw_load32(payload + 12);
    send->time = (int64_t)tw_load64(payload + 16);
    send->payload_bytes = bytes;
    if (send->count == 0 || send->count > TW_MAX_BATCH || send->columns > 31 || send->priority > 255) return 0;
    uint64_t n = send->count, fixed = SEND_HEAD + 4 * n;
    if (send->columns & COLUMN_TIMES) fixed += 8 * n;
    if (send->columns & COLUMN_KEYS) fixed += 2 * n;
    if (send->columns & COLUMN_HEADERS) fixed += 2 * n;
    if (send->columns & COLUMN_PRIORITY) fixed += n;
    if (fixed > bytes) return 0;
    const uint8_t *at = payload + SEND_HEAD;
    send->times = send->key_bytes = send->headers_bytes = send->priorities = NULL;
    if (send->columns & COLUMN_TIMES) { send->times = at; at += 8 * n; }
    send->body_bytes = at;
    at += 4 * n;
    if (send->columns & COLUMN_KEYS) { send->key_bytes = at; at += 2 * n; }
    if (send->columns & COLUMN_HEADERS) { send->headers_bytes = at; at += 2 * n; }
    if (send->columns & COLUMN_PRIORITY) { send->priorities = at; at += n; }
    uint64_t keys = send->key_bytes ? sum16(send->key_bytes, send->count) : 0;
    uint64_t headers = send->headers_bytes ? sum16(send->headers_bytes, send->count) : 0;
    send->blob_bytes = keys + headers + sum32(send->body_bytes, send->count);
    if (send->blob_bytes != bytes - fixed) return 0;
    send->keys = at;
    send->headers = at + keys;
    send->bodies = send->headers + headers;
    return 1;
}

/* Hashes all keys of a frame and checks that each partition has room for those that fall into it. Returns
 * TW_KEY_PARTITIONS, or the partition that must grow first. */
static uint32_t hash_keys(tw_store *store, const send_t *send) {
    uint32_t       full = TW_KEY_PARTITIONS;
    const uint8_t *key = send->keys;
    for (uint32_t i = 0; i < send->count; i++) {
        uint32_t bytes = tw_load16(send->key_bytes + 2 * i);
        store->key_hashes[i] = bytes ? tw_key_hash(send->topic_id, key, bytes) : 0;
        key += bytes;
        if (!bytes) continue;
        uint16_t *keys = &store->key_counts[tw_key_partition(store->key_hashes[i])];
        if (*keys < UINT16_MAX) (*keys)++; /* one short of TW_MAX_BATCH: a table is never quite full */
    }
    for (uint32_t i = 0; i < send->count; i++) {
        if (!store->key_hashes[i]) continue;
        uint32_t part = tw_key_partition(store->key_hashes[i]);
        if (!store->key_counts[part]) continue;
        if (full == TW_KEY_PARTITIONS && !tw_keys_has_room(store, part, store->key_counts[part])) full = part;
        store->key_counts[part] = 0;
    }
    return full;
}

/* What must be there before the first message of the frame is stored. */
static int needs(tw_store *store, const send_t *send, uint64_t reply_room, tw_ingested *result) {
    uint64_t n = send->count, log_bytes = n * (sizeof(tw_message) + 7) + send->blob_bytes;
    uint64_t position = store->staging_position + store->staging_bytes;
    if (reply_room < FRAME_HEAD + REPLY_HEAD + 16 * n) return TW_STOP_NEED_REPLIES;
    if (store->staging_bytes + log_bytes > store->staging_capacity) return TW_STOP_NEED_FLUSH;
    if (position + log_bytes > store->message_limit) { result->need = log_bytes; return TW_STOP_NEED_DISK; }
    if (store->next_id + n > store->rows_allocated) { result->need = store->next_id + n; return TW_STOP_NEED_ROWS; }
    if (send->key_bytes) {
        result->need = hash_keys(store, send);
        if (result->need != TW_KEY_PARTITIONS) return TW_STOP_NEED_KEYS;
    }
    return 0;
}

void tw_apply_message(tw_store *store, const tw_message *message, uint64_t position, uint32_t key_hash) {
    uint64_t id = message->id;
    store->rows[id] = (tw_row){
        .position = position,
        .deliver_at_ms = message->deliver_at_ms,
        .created_ms = message->created_ms,
        .topic_id = (uint16_t)message->head.aux,
        .key_hash = key_hash,
        .record_bytes = message->head.record_bytes,
        .state = TW_SCHEDULED,
        .priority = message->head.flags,
    };
    store->next_id = id + 1;
    store->topics[message->head.aux].messages++;
    store->topics[message->head.aux].scheduled++;
}

static uint32_t judge(const tw_store *store, uint64_t body, uint64_t key, uint64_t headers, int64_t time,
                      int64_t deliver_at) {
    if (body > store->max_body_bytes) return BODY_TOO_LARGE;
    if (time < 0 || deliver_at < 0 || deliver_at > TW_MAX_TIME_MS) return BAD_TIME;
    if (key > TW_MAX_KEY_BYTES) return KEY_TOO_LONG;
    if (headers > TW_MAX_HEADERS_BYTES) return HEADERS_TOO_LARGE;
    return 0;
}

/* 0 = now, a delay counts from now; a sum that does not fit is refused by judge(). */
static int64_t due_time(const send_t *send, int64_t time, int64_t now_ms) {
    if (time == 0) return now_ms;
    if (!(send->columns & TIMES_ARE_DELAYS)) return time;
    return time > TW_MAX_TIME_MS ? INT64_MAX : now_ms + time;
}

static void store_message(tw_store *store, const tw_message *head, const uint8_t *key, const uint8_t *headers,
                          const uint8_t *body, uint32_t key_hash) {
    uint64_t    position = store->staging_position + store->staging_bytes;
    uint8_t    *record = store->staging + store->staging_bytes;
    uint64_t    at = sizeof(tw_message);
    tw_message  message = *head;
    message.head.record_bytes = (uint32_t)(at + head->key_bytes + head->headers_bytes + head->body_bytes);
    memcpy(record, &message, at);
    memcpy(record + at, key, head->key_bytes);
    at += head->key_bytes;
    memcpy(record + at, headers, head->headers_bytes);
    at += head->headers_bytes;
    memcpy(record + at, body, head->body_bytes);
    at += head->body_bytes;
    memset(record + at, 0, tw_padded(at) - at);
    tw_store32(record, tw_crc32c(record + 4, at - 4, 0));
    store->staging_bytes += tw_padded(at);
    tw_apply_message(store, &message, position, key_hash);
    if (key_hash) tw_keys_insert(store, message.id, key_hash);
}

/* Stores a frame's messages; `needs` has made sure that all fit. Writes the SEND_OK frame; returns its bytes. */
static uint64_t store_frame(tw_store *store, const send_t *send, int64_t now_ms, uint32_t correlation, uint8_t *reply) {
    uint64_t       first_id = store->next_id;
    uint8_t       *exception = reply + FRAME_HEAD + REPLY_HEAD;
    const uint8_t *key = send->keys, *headers = send->headers, *body = send->bodies;
    for (uint32_t i = 0; i < send->count; i++) {
        uint64_t body_bytes = tw_load32(send->body_bytes + 4 * (uint64_t)i);
        uint16_t key_bytes = send->key_bytes ? tw_load16(send->key_bytes + 2 * i) : 0;
        uint16_t headers_bytes = send->headers_bytes ? tw_load16(send->headers_bytes + 2 * i) : 0;
        int64_t  time = send->times ? (int64_t)tw_load64(send->times + 8 * (uint64_t)i) : send->time;
        int64_t  due_ms = due_time(send, time, now_ms);
        uint32_t code = judge(store, body_bytes, key_bytes, headers_bytes, time, due_ms);
        uint32_t hash = key_bytes ? store->key_hashes[i] : 0;
        uint64_t earlier = 0;
        if (!code && hash) {
            earlier = tw_keys_find_hashed(store, send->topic_id, hash, key, key_bytes);
            if (earlier) code = DUPLICATE;
        }
        if (code) {
            tw_store32(exception, i);
            tw_store32(exception + 4, code);
            tw_store64(exception + 8, earlier);
            exception += 16;
        } else {
            tw_message head = {
                .head = {.type = TW_RECORD_MESSAGE,
                         .flags = send->priorities ? send->priorities[i] : (uint8_t)send->priority,
                         .aux = send->topic_id},
                .id = store->next_id,
                .deliver_at_ms = due_ms,
                .created_ms = now_ms,
                .key_bytes = key_bytes,
                .headers_bytes = headers_bytes,
                .body_bytes = (uint32_t)body_bytes,
            };
            store_message(store, &head, key, headers, body, hash);
        }
        key += key_bytes;
        headers += headers_bytes;
        body += body_bytes;
    }
    uint64_t payload = (uint64_t)(exception - reply) - FRAME_HEAD;
    tw_store64(reply + FRAME_HEAD, first_id);
    tw_store32(reply + FRAME_HEAD + 8, (uint32_t)(store->next_id - first_id));
    tw_store32(reply + FRAME_HEAD + 12, (uint32_t)((payload - REPLY_HEAD) / 16));
    tw_finish_frame(reply, payload, FRAME_SEND_OK, correlation);
    return FRAME_HEAD + payload;
}

void tw_ingest(tw_store *store, const uint8_t *data, uint64_t bytes, int64_t now_ms, uint8_t *replies,
               uint64_t replies_capacity, tw_ingested *result) {
    memset(result, 0, sizeof *result);
    while (result->stop == TW_STOP_NEED_MORE) {
        const uint8_t *frame = data + result->consumed_bytes;
        uint64_t       left = bytes - result->consumed_bytes;
        if (left < FRAME_HEAD) return;
        uint64_t payload_bytes = tw_load32(frame);
        if (payload_bytes > store->max_frame_bytes) { result->stop = TW_STOP_FRAME_TOO_LARGE; return; }
        if (left < FRAME_HEAD + payload_bytes) return;
        if (tw_crc32c(frame + 8, payload_bytes + 8, 0) != tw_load32(frame + 4)) { result->stop = TW_STOP_BAD_CRC; return; }
        send_t send;
        result->stop_type = frame[8];
        result->stop_correlation = tw_load32(frame + 12);
        result->stop_payload_offset = result->consumed_bytes + FRAME_HEAD;
        result->stop_payload_bytes = payload_bytes;
        if (frame[8] != FRAME_SEND) result->stop = TW_STOP_OTHER_FRAME;
        else if (!parse_send(frame + FRAME_HEAD, payload_bytes, &send)) result->stop = TW_STOP_BAD_FRAME;
        else if (send.topic_id >= store->topics_capacity || !store->topics[send.topic_id].exists)
            result->stop = TW_STOP_UNKNOWN_TOPIC;
        else {
            result->stop = needs(store, &send, replies_capacity - result->reply_bytes, result);
            if (result->stop) return;
            result->reply_bytes += store_frame(store, &send, now_ms, result->stop_correlation,
                                               replies + result->reply_bytes);
            result->frames++;
            result->messages += send.count;
        }
        result->consumed_bytes += FRAME_HEAD + payload_bytes;
    }
}
