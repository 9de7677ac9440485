/* From a socket's bytes to the CommitLog: one call takes every whole SEND frame. */
#include "crc32c.h"
#include "store.h"

enum { FRAME_HEAD = 16, SEND_HEAD = 24, REPLY_HEAD = 16, FRAME_SEND = 12, FRAME_SEND_OK = 13 };
enum { COLUMN_TIMES = 1, COLUMN_PRIORITY = 2, COLUMN_KEYS = 4, COLUMN_HEADERS = 8, TIMES_ARE_DELAYS = 16 };
enum { COLUMN_ORDERS = 32, TELL_DIFFERENCES = 64, ALL_COLUMNS = 127 };
enum { DUPLICATE = 1, DUPLICATE_DIFFERS = 7 };
enum { BODY_TOO_LARGE = 2, BAD_TIME = 3, KEY_TOO_LONG = 4, HEADERS_TOO_LARGE = 5 };
enum { ORDER_KEY_TOO_LONG = 6 };

/* Where each column of a SEND payload starts; NULL for a column that is not there. */
typedef struct {
    uint32_t       topic_id, count, columns, priority;
    int64_t        time;
    const uint8_t *times, *body_bytes, *key_bytes, *headers_bytes, *order_bytes, *priorities;
    const uint8_t *keys, *headers, *orders, *bodies;
    uint64_t       payload_bytes;
    uint64_t       blob_bytes; /* keys, headers, ordering keys and bodies together */
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
    if (send->count == 0 || send->count > TW_MAX_BATCH || send->columns > ALL_COLUMNS ||
        send->priority > TW_TOPIC_PRIORITY)
        return 0;
    uint64_t n = send->count, fixed = SEND_HEAD + 4 * n;
    if (send->columns & COLUMN_TIMES) fixed += 8 * n;
    if (send->columns & COLUMN_KEYS) fixed += 2 * n;
    if (send->columns & COLUMN_HEADERS) fixed += 2 * n;
    if (send->columns & COLUMN_ORDERS) fixed += 2 * n;
    if (send->columns & COLUMN_PRIORITY) fixed += n;
    if (fixed > bytes) return 0;
    const uint8_t *at = payload + SEND_HEAD;
    send->times = send->key_bytes = send->headers_bytes = send->order_bytes = send->priorities = NULL;
    if (send->columns & COLUMN_TIMES) { send->times = at; at += 8 * n; }
    send->body_bytes = at;
    at += 4 * n;
    if (send->columns & COLUMN_KEYS) { send->key_bytes = at; at += 2 * n; }
    if (send->columns & COLUMN_HEADERS) { send->headers_bytes = at; at += 2 * n; }
    if (send->columns & COLUMN_ORDERS) { send->order_bytes = at; at += 2 * n; }
    if (send->columns & COLUMN_PRIORITY) { send->priorities = at; at += n; }
    uint64_t keys = send->key_bytes ? sum16(send->key_bytes, send->count) : 0;
    uint64_t headers = send->headers_bytes ? sum16(send->headers_bytes, send->count) : 0;
    uint64_t orders = send->order_bytes ? sum16(send->order_bytes, send->count) : 0;
    send->blob_bytes = keys + headers + orders + sum32(send->body_bytes, send->count);
    if (send->blob_bytes != bytes - fixed) return 0;
    send->keys = at;
    send->headers = at + keys;
    send->orders = send->headers + headers;
    send->bodies = send->orders + orders;
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
        .flags = message->head.order_bytes ? TW_ORDERED : 0,
        .priority = message->head.flags,
    };
    /* What was taken in as a whole has numbers that were set aside before, and may lie below others. */
    if (id >= store->next_id) store->next_id = id + 1;
    if (id < store->first_id) store->first_id = id;
    store->topics[message->head.aux].messages++;
    store->topics[message->head.aux].scheduled++;
}

/* One message of a SEND, as its columns say. */
typedef struct {
    uint64_t       body_bytes;
    uint32_t       key_bytes, headers_bytes, order_bytes, key_hash, priority;
    int64_t        time, due_ms;
    const uint8_t *key, *headers, *order, *body;
} item_t;

static uint32_t judge(const tw_store *store, const tw_topic *topic, const item_t *item) {
    uint32_t max_body_bytes = topic->max_body_bytes ? topic->max_body_bytes : store->max_body_bytes;
    if (item->body_bytes > store->max_body_bytes || item->body_bytes > max_body_bytes) return BODY_TOO_LARGE;
    if (item->time < 0 || item->due_ms < 0 || item->due_ms > TW_MAX_TIME_MS) return BAD_TIME;
    if (item->key_bytes > TW_MAX_KEY_BYTES) return KEY_TOO_LONG;
    if (item->headers_bytes > TW_MAX_HEADERS_BYTES) return HEADERS_TOO_LARGE;
    if (item->order_bytes > TW_MAX_KEY_BYTES) return ORDER_KEY_TOO_LONG;
    return 0;
}

/* 0 = now, a delay counts from now; a sum that does not fit is refused by judge(). */
static int64_t due_time(const send_t *send, int64_t time, int64_t now_ms) {
    if (time == 0) return now_ms;
    if (!(send->columns & TIMES_ARE_DELAYS)) return time;
    return time > TW_MAX_TIME_MS ? INT64_MAX : now_ms + time;
}

static uint32_t priority_of(const send_t *send, const tw_topic *topic, uint32_t i, uint32_t order_bytes) {
    if (order_bytes) return TW_ORDERED_PRIORITY;
    if (send->priorities) return send->priorities[i];
    return send->priority == TW_TOPIC_PRIORITY ? topic->default_priority : send->priority;
}

static void first_item(const send_t *send, item_t *item) {
    *item = (item_t){.key = send->keys, .headers = send->headers, .order = send->orders, .body = send->bodies};
}

/* Reads the i-th message's columns; its key, headers, ordering key and body start where the one before ended. */
static void read_item(const tw_store *store, const send_t *send, uint32_t i, int64_t now_ms, item_t *item) {
    item->key += item->key_bytes;
    item->headers += item->headers_bytes;
    item->order += item->order_bytes;
    item->body += item->body_bytes;
    item->body_bytes = tw_load32(send->body_bytes + 4 * (uint64_t)i);
    item->key_bytes = send->key_bytes ? tw_load16(send->key_bytes + 2 * (uint64_t)i) : 0;
    item->headers_bytes = send->headers_bytes ? tw_load16(send->headers_bytes + 2 * (uint64_t)i) : 0;
    item->order_bytes = send->order_bytes ? tw_load16(send->order_bytes + 2 * (uint64_t)i) : 0;
    item->time = send->times ? (int64_t)tw_load64(send->times + 8 * (uint64_t)i) : send->time;
    item->due_ms = due_time(send, item->time, now_ms);
    item->priority = priority_of(send, &store->topics[send->topic_id], i, item->order_bytes);
    item->key_hash = item->key_bytes ? store->key_hashes[i] : 0;
}

/* The topic, or the shard of it, that a message belongs to. */
static uint32_t route(const tw_store *store, const send_t *send, const item_t *item) {
    const tw_topic *topic = &store->topics[send->topic_id];
    if (!topic->shards) return send->topic_id;
    uint32_t hash = (uint32_t)(store->next_id * 0x9E3779B1u);
    if (item->order_bytes) hash = tw_key_hash(0, item->order, item->order_bytes);
    else if (item->key_bytes) hash = tw_key_hash(0, item->key, item->key_bytes);
    return topic->shard_of_byte[hash >> 24];
}

static void store_message(tw_store *store, const send_t *send, const item_t *item, int64_t now_ms) {
    uint64_t   position = store->staging_position + store->staging_bytes;
    uint8_t   *record = store->staging + store->staging_bytes;
    uint64_t   at = sizeof(tw_message);
    tw_message message = {
        .head = {.type = TW_RECORD_MESSAGE,
                 .flags = (uint8_t)item->priority,
                 .order_bytes = (uint16_t)item->order_bytes,
                 .aux = route(store, send, item)},
        .id = store->next_id,
        .deliver_at_ms = item->due_ms,
        .created_ms = now_ms,
        .key_bytes = (uint16_t)item->key_bytes,
        .headers_bytes = (uint16_t)item->headers_bytes,
        .body_bytes = (uint32_t)item->body_bytes,
    };
    message.head.record_bytes = (uint32_t)(at + item->key_bytes + item->headers_bytes + item->order_bytes + item->body_bytes);
    memcpy(record, &message, at);
    memcpy(record + at, item->key, item->key_bytes);
    at += item->key_bytes;
    memcpy(record + at, item->headers, item->headers_bytes);
    at += item->headers_bytes;
    memcpy(record + at, item->order, item->order_bytes);
    at += item->order_bytes;
    memcpy(record + at, item->body, item->body_bytes);
    at += item->body_bytes;
    memset(record + at, 0, tw_padded(at) - at);
    tw_store32(record, tw_crc32c(record + 4, at - 4, 0));
    store->staging_bytes += tw_padded(at);
    tw_apply_message(store, &message, position, item->key_hash);
    if (item->key_hash) tw_keys_insert(store, message.id, item->key_hash);
}

/* Whether the message that has the key already has another body, other headers, another ordering key, or, if one was
 * given, another time. */
static int differs(const tw_store *store, const send_t *send, const item_t *item, uint64_t earlier) {
    const tw_row  *row = &store->rows[earlier];
    const uint8_t *record = tw_at(store, row->position);
    uint64_t       order = tw_load16(record + 10), key = tw_load16(record + 40), headers = tw_load16(record + 42);
    uint64_t       body = tw_load32(record + 44), at = sizeof(tw_message) + key;
    if (at + headers + order + body != row->record_bytes) return 0; /* damaged: nothing is known of it */
    if (item->time && !(send->columns & TIMES_ARE_DELAYS) && item->due_ms != row->deliver_at_ms) return 1;
    if (headers != item->headers_bytes || order != item->order_bytes || body != item->body_bytes) return 1;
    return memcmp(record + at, item->headers, headers) || memcmp(record + at + headers, item->order, order) ||
           memcmp(record + at + headers + order, item->body, body);
}

/* Why a message cannot be stored; 0 when it can. *earlier: the message that has its key. */
static uint32_t refusal(const tw_store *store, const send_t *send, const item_t *item, uint64_t *earlier) {
    *earlier = 0;
    uint32_t code = judge(store, &store->topics[send->topic_id], item);
    if (code || !item->key_hash) return code;
    *earlier = tw_keys_find_hashed(store, send->topic_id, item->key_hash, item->key, item->key_bytes);
    if (!*earlier) return 0;
    return (send->columns & TELL_DIFFERENCES) && differs(store, send, item, *earlier) ? DUPLICATE_DIFFERS : DUPLICATE;
}

/* Whether every message of a frame is stored already, or is refused whatever room there is. */
static int stores_nothing(tw_store *store, const send_t *send, int64_t now_ms) {
    uint64_t earlier;
    item_t   item;
    if (send->key_bytes) hash_keys(store, send);
    first_item(send, &item);
    for (uint32_t i = 0; i < send->count; i++) {
        read_item(store, send, i, now_ms, &item);
        if (!refusal(store, send, &item, &earlier)) return 0;
    }
    return 1;
}

/* What must be there before the first message of the frame is stored. */
static int needs(tw_store *store, const send_t *send, int64_t now_ms, uint64_t reply_room, tw_ingested *result) {
    uint64_t n = send->count, log_bytes = n * (sizeof(tw_message) + 7) + send->blob_bytes;
    uint64_t position = store->staging_position + store->staging_bytes;
    if (reply_room < FRAME_HEAD + REPLY_HEAD + 16 * n) return TW_STOP_NEED_REPLIES;
    if (store->is_full && stores_nothing(store, send, now_ms)) return 0;
    if (store->staging_bytes + log_bytes > store->staging_capacity) return TW_STOP_NEED_FLUSH;
    if (position + log_bytes > store->message_limit) { result->need = log_bytes; return TW_STOP_NEED_DISK; }
    if (store->next_id + n > store->rows_allocated) { result->need = store->next_id + n; return TW_STOP_NEED_ROWS; }
    if (send->key_bytes) {
        result->need = hash_keys(store, send);
        if (result->need != TW_KEY_PARTITIONS) return TW_STOP_NEED_KEYS;
    }
    return 0;
}

/* Stores a frame's messages; `needs` has made sure that all fit. Writes the SEND_OK frame; returns its bytes. */
static uint64_t store_frame(tw_store *store, const send_t *send, int64_t now_ms, uint32_t correlation, uint8_t *reply) {
    uint64_t first_id = store->next_id;
    uint8_t *exception = reply + FRAME_HEAD + REPLY_HEAD;
    item_t   item;
    first_item(send, &item);
    for (uint32_t i = 0; i < send->count; i++) {
        uint64_t earlier;
        read_item(store, send, i, now_ms, &item);
        uint32_t code = refusal(store, send, &item, &earlier);
        if (!code) { store_message(store, send, &item, now_ms); continue; }
        tw_store32(exception, i);
        tw_store32(exception + 4, code);
        tw_store64(exception + 8, earlier);
        exception += 16;
    }
    uint64_t payload = (uint64_t)(exception - reply) - FRAME_HEAD;
    tw_store64(reply + FRAME_HEAD, first_id);
    tw_store32(reply + FRAME_HEAD + 8, (uint32_t)(store->next_id - first_id));
    tw_store32(reply + FRAME_HEAD + 12, (uint32_t)((payload - REPLY_HEAD) / 16));
    tw_finish_frame(reply, payload, FRAME_SEND_OK, correlation);
    return FRAME_HEAD + payload;
}

static int is_open_topic(const tw_store *store, uint32_t topic_id) {
    return topic_id < store->topics_capacity && store->topics[topic_id].exists && !store->topics[topic_id].parent;
}

static int may_send(const tw_store *store, uint32_t topic_id) {
    return !store->may_send || (topic_id < store->topics_capacity && store->may_send[topic_id]);
}

int64_t tw_send_check(tw_store *store, const uint8_t *payload, uint64_t bytes, int64_t now_ms, uint32_t *codes,
                      uint64_t *earlier, uint64_t *log_bytes) {
    send_t send;
    item_t item;
    if (!parse_send(payload, bytes, &send)) return -1;
    if (!is_open_topic(store, send.topic_id)) return -2;
    *log_bytes = (uint64_t)send.count * (sizeof(tw_message) + 7) + send.blob_bytes;
    first_item(&send, &item);
    for (uint32_t i = 0; i < send.count; i++) {
        store->key_hashes[i] = 0;
        read_item(store, &send, i, now_ms, &item);
        item.key_hash = item.key_bytes ? tw_key_hash(send.topic_id, item.key, item.key_bytes) : 0;
        codes[i] = refusal(store, &send, &item, &earlier[i]);
    }
    return send.count;
}

void tw_unsend(tw_store *store, uint64_t first_id, uint64_t staging_bytes) {
    for (uint64_t id = first_id; id < store->next_id; id++) {
        tw_row *row = &store->rows[id];
        if (row->key_hash) tw_keys_remove(store, id);
        store->topics[row->topic_id].messages--;
        store->topics[row->topic_id].scheduled--;
        memset(row, 0, sizeof *row);
    }
    store->next_id = first_id;
    store->staging_bytes = staging_bytes;
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
        else if (!may_send(store, send.topic_id)) { result->stop = TW_STOP_FORBIDDEN; return; }
        else if (!is_open_topic(store, send.topic_id))
            result->stop = TW_STOP_UNKNOWN_TOPIC;
        else {
            result->stop = needs(store, &send, now_ms, replies_capacity - result->reply_bytes, result);
            if (result->stop) return;
            result->reply_bytes += store_frame(store, &send, now_ms, result->stop_correlation,
                                               replies + result->reply_bytes);
            result->frames++;
            result->messages += send.count;
        }
        result->consumed_bytes += FRAME_HEAD + payload_bytes;
    }
}
