/* Bulk scheduling: others make whole segments of messages, and the store takes them in without writing them again.
 *
 * Where they are made (a Spark task) there is no store: tw_bulk_build writes records in the order that it is told.
 * The store then takes a segment in three passes, each in small steps between which it does other work:
 * tw_bulk_check reads all of it and fills in its rows, whose state stays TW_NONE, so that nothing sees them;
 * tw_bulk_enter puts their keys into the index; and when the log says that the job holds, tw_bulk_adopt makes the rows
 * visible. RocksDB takes files in by the same idea ("IngestExternalFile"). */
#include "crc32c.h"
#include "store.h"

enum { AHEAD = 16 };

/* ---- making ---- */

typedef struct {
    const uint8_t *data;
    uint64_t       bytes;
} slice_t;

static slice_t slice_of(const int64_t *at, const uint8_t *data, uint32_t i) {
    if (!at) return (slice_t){NULL, 0};
    return (slice_t){data + at[i], (uint64_t)(at[i + 1] - at[i])};
}

static uint8_t *put(uint8_t *to, slice_t part) {
    if (part.bytes) memcpy(to, part.data, part.bytes);
    return to + part.bytes;
}

uint64_t tw_bulk_build(const tw_bulk *bulk, const uint32_t *order, uint64_t n, uint64_t first_id, uint8_t *out,
                       uint64_t capacity, uint64_t *bytes) {
    uint64_t done = 0;
    *bytes = 0;
    for (; done < n; done++) {
        uint32_t i = order[done];
        slice_t  key = slice_of(bulk->key_at, bulk->keys, i), headers = slice_of(bulk->headers_at, bulk->headers, i);
        slice_t  ordering = slice_of(bulk->order_at, bulk->orders, i), body = slice_of(bulk->body_at, bulk->bodies, i);
        uint64_t size = sizeof(tw_message) + key.bytes + headers.bytes + ordering.bytes + body.bytes;
        if (tw_padded(size) > capacity - *bytes) break;
        uint8_t   *record = out + *bytes;
        tw_message message = {
            .head = {.record_bytes = (uint32_t)size,
                     .type = TW_RECORD_MESSAGE,
                     .flags = bulk->priorities[i],
                     .order_bytes = (uint16_t)ordering.bytes,
                     .aux = bulk->topic_ids[i]},
            .id = first_id + done,
            .deliver_at_ms = bulk->deliver_at_ms[i],
            .created_ms = bulk->created_ms,
            .key_bytes = (uint16_t)key.bytes,
            .headers_bytes = (uint16_t)headers.bytes,
            .body_bytes = (uint32_t)body.bytes,
        };
        memcpy(record, &message, sizeof message);
        uint8_t *end = put(put(put(put(record + sizeof message, key), headers), ordering), body);
        memset(end, 0, tw_padded(size) - size);
        tw_store32(record, tw_crc32c(record + 4, size - 4, 0));
        *bytes += tw_padded(size);
    }
    return done;
}

void tw_bulk_hash(const int64_t *at, const uint8_t *data, uint64_t n, uint32_t *hashes) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t bytes = (uint64_t)(at[i + 1] - at[i]);
        hashes[i] = bytes ? tw_key_hash(0, data + at[i], bytes) : 0;
    }
}

/* ---- taking in ---- */

/* Whether a message is one that a SEND could have stored in its topic. */
static int is_sound(const tw_store *store, const tw_message *message, const uint8_t *record) {
    if (!tw_topic_exists(store, message->head.aux)) return 0;
    const tw_topic *topic = &store->topics[message->head.aux];
    uint32_t        limit = topic->max_body_bytes ? topic->max_body_bytes : store->max_body_bytes;
    if (topic->shards || message->body_bytes > limit) return 0;
    if (message->key_bytes > TW_MAX_KEY_BYTES || message->headers_bytes > TW_MAX_HEADERS_BYTES) return 0;
    if (message->head.order_bytes > TW_MAX_KEY_BYTES) return 0;
    if (message->head.order_bytes && message->head.flags != TW_ORDERED_PRIORITY) return 0;
    if (message->deliver_at_ms < 0 || message->deliver_at_ms > TW_MAX_TIME_MS) return 0;
    if (!topic->parent) return 1;
    const uint8_t *key = record + sizeof *message;
    uint32_t       bytes = message->key_bytes, hash = (uint32_t)(message->id * 0x9E3779B1u);
    if (message->head.order_bytes) {
        key += (uint64_t)bytes + message->headers_bytes;
        bytes = message->head.order_bytes;
    }
    if (bytes) hash = tw_key_hash(0, key, bytes);
    return store->topics[topic->parent].shard_of_byte[hash >> 24] == message->head.aux;
}

static int adds_up(const tw_message *message) {
    return message->head.record_bytes == sizeof *message + (uint64_t)message->key_bytes + message->headers_bytes +
                                             message->head.order_bytes + message->body_bytes;
}

static tw_row row_of(const tw_store *store, const tw_message *message, const uint8_t *record, uint64_t position) {
    uint32_t topic_id = tw_key_topic(store, message->head.aux);
    return (tw_row){
        .position = position,
        .deliver_at_ms = message->deliver_at_ms,
        .created_ms = message->created_ms,
        .topic_id = (uint16_t)message->head.aux,
        .key_hash = message->key_bytes ? tw_key_hash(topic_id, record + sizeof *message, message->key_bytes) : 0,
        .record_bytes = message->head.record_bytes,
        .state = TW_NONE,
        .flags = message->head.order_bytes ? TW_ORDERED : 0,
        .priority = message->head.flags,
    };
}

int tw_bulk_check(tw_store *store, uint64_t *at, uint64_t end, uint64_t *next_id, uint64_t end_id, uint64_t limit,
                  uint64_t *filled) {
    for (; limit && *at < end; limit--) {
        uint64_t room = end - *at;
        if (room < sizeof(tw_message)) return TW_BULK_BAD_RECORD;
        const uint8_t *record = store->foreign + (*at - TW_FOREIGN);
        tw_message     message;
        memcpy(&message, record, sizeof message);
        uint64_t bytes = message.head.record_bytes;
        if (bytes < sizeof message || tw_padded(bytes) > room) return TW_BULK_BAD_RECORD;
        if (tw_crc32c(record + 4, bytes - 4, 0) != message.head.crc) return TW_BULK_BAD_RECORD;
        if (message.id == *next_id && store->rows[message.id].state != TW_NONE) return TW_BULK_TAKEN_ID;
        if (message.id == *next_id && message.head.type == TW_RECORD_FILL) {
            memset(&store->rows[message.id], 0, sizeof(tw_row)); /* it may be there from before a crash */
            *at += tw_padded(bytes);
            ++*next_id;
            ++*filled;
            continue;
        }
        if (message.head.type != TW_RECORD_MESSAGE || !adds_up(&message)) return TW_BULK_BAD_RECORD;
        if (message.id != *next_id || message.id >= end_id) return TW_BULK_BAD_ID;
        if (!is_sound(store, &message, record)) return TW_BULK_BAD_MESSAGE;
        store->rows[message.id] = row_of(store, &message, record, *at);
        *at += tw_padded(bytes);
        ++*next_id;
    }
    return 0;
}

void tw_bulk_order(const tw_store *store, uint64_t first_id, uint64_t n, uint64_t *ids, uint32_t *hashes,
                   uint64_t *count) {
    uint64_t starts[TW_KEY_PARTITIONS + 1] = {0};
    for (uint64_t id = first_id; id < first_id + n; id++)
        if (store->rows[id].key_hash) starts[tw_key_partition(store->rows[id].key_hash) + 1]++;
    for (uint32_t p = 0; p < TW_KEY_PARTITIONS; p++) starts[p + 1] += starts[p];
    *count = starts[TW_KEY_PARTITIONS];
    for (uint64_t id = first_id; id < first_id + n; id++) {
        uint32_t hash = store->rows[id].key_hash;
        if (!hash) continue;
        uint64_t place = starts[tw_key_partition(hash)]++;
        ids[place] = id;
        hashes[place] = hash;
    }
}

/* The message that has the key of this one; 0: none. The message itself is looked at only if its hash is there. */
static uint64_t same_key(const tw_store *store, uint64_t id, uint32_t hash) {
    if (!tw_keys_may_hold(store, hash)) return 0;
    const tw_row  *row = &store->rows[id];
    const uint8_t *record = tw_at(store, row->position);
    return tw_keys_find_any(store, tw_key_topic(store, row->topic_id), hash, record + sizeof(tw_message),
                            tw_load16(record + 40));
}

uint64_t tw_bulk_enter(tw_store *store, const uint64_t *ids, const uint32_t *hashes, uint64_t n, uint64_t *duplicates,
                       uint64_t *earlier, uint64_t *count, uint64_t *need) {
    *count = 0;
    *need = TW_KEY_PARTITIONS;
    for (uint64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) tw_keys_prefetch(store, hashes[i + AHEAD]);
        uint32_t hash = hashes[i];
        uint64_t known = same_key(store, ids[i], hash);
        if (known) {
            duplicates[*count] = ids[i];
            earlier[(*count)++] = known;
            continue;
        }
        if (!tw_keys_has_room(store, tw_key_partition(hash), 1)) {
            *need = tw_key_partition(hash);
            return i;
        }
        tw_keys_insert(store, ids[i], hash);
    }
    return n;
}

uint64_t tw_bulk_racers(const tw_store *store, uint64_t from_id, uint64_t n, uint64_t first_id, uint64_t end_id,
                        uint64_t *duplicates, uint64_t *earlier) {
    uint64_t count = 0;
    for (uint64_t id = from_id; id < from_id + n; id++) {
        const tw_row *row = &store->rows[id];
        if (row->state == TW_NONE || !row->key_hash) continue;
        const uint8_t *record = tw_at(store, row->position);
        uint64_t       known = tw_keys_find_among(store, tw_key_topic(store, row->topic_id), row->key_hash,
                                                  record + sizeof(tw_message), tw_load16(record + 40), first_id, end_id);
        if (!known) continue;
        duplicates[count] = known;
        earlier[count++] = id;
    }
    return count;
}

void tw_bulk_forget(tw_store *store, const uint64_t *ids, uint64_t n, int with_keys) {
    for (uint64_t i = 0; i < n; i++) {
        if (with_keys && store->rows[ids[i]].key_hash) tw_keys_remove(store, ids[i]);
        memset(&store->rows[ids[i]], 0, sizeof(tw_row));
    }
}

uint64_t tw_bulk_adopt(tw_store *store, uint64_t first_id, uint64_t n, uint64_t base) {
    uint64_t adopted = 0;
    for (uint64_t id = first_id; id < first_id + n; id++) {
        tw_row *row = &store->rows[id];
        if (row->state != TW_NONE || !row->record_bytes) continue;
        row->position = row->position - TW_FOREIGN + base;
        row->state = TW_SCHEDULED;
        store->topics[row->topic_id].messages++;
        store->topics[row->topic_id].scheduled++;
        adopted++;
    }
    return adopted;
}
