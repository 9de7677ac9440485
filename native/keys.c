/* The key index: finds a message by topic and key.
 *
 * 1,024 partitions by the hash's top bits; each is an open-addressed table (linear probing) of 8-byte entries:
 * the id above, 24 bits of the hash below. A table is doubled by itself, so no send waits for more than 1/1,024 of the
 * index. An entry says "maybe"; the row's full hash and the key in the CommitLog decide. */
#include "crc32c.h"
#include "store.h"

typedef struct {
    uint64_t offset; /* of the table, from the start of the file */
    uint32_t capacity; /* a power of two */
    uint32_t count;
} partition_t;

typedef struct {
    char        magic[8];
    uint32_t    format;
    uint32_t    partitions;
    uint64_t    end; /* the first byte behind the last table */
    uint64_t    unused[5];
    partition_t partition[TW_KEY_PARTITIONS];
} header_t;

enum { FIRST_CAPACITY = 64, FIRST_TABLE = 20480, SMALLEST_SHRUNK = 512 };
_Static_assert(sizeof(header_t) <= FIRST_TABLE, "the header must end before the first table");

static inline uint32_t fingerprint(uint32_t hash) { return (hash >> 4) & 0xffffffu; }
static inline uint64_t entry_of(uint64_t id, uint32_t hash) { return (id << 24) | fingerprint(hash); }

void tw_keys_init(uint8_t *keys) {
    header_t *header = (header_t *)keys;
    memset(header, 0, sizeof *header);
    memcpy(header->magic, "TWKEYS01", 8);
    header->format = 1;
    header->partitions = TW_KEY_PARTITIONS;
    header->end = FIRST_TABLE;
    for (uint32_t p = 0; p < TW_KEY_PARTITIONS; p++) {
        header->partition[p] = (partition_t){header->end, FIRST_CAPACITY, 0};
        memset(keys + header->end, 0, FIRST_CAPACITY * 8);
        header->end += FIRST_CAPACITY * 8;
    }
}

uint32_t tw_key_hash(uint32_t topic_id, const uint8_t *key, uint64_t bytes) {
    uint32_t hash = tw_crc32c(key, bytes, topic_id * 0x9E3779B1u + 1);
    /* CRCs of similar keys differ in few bits: the finaliser of MurmurHash3 (Appleby, public domain) spreads them. */
    hash ^= hash >> 16;
    hash *= 0x85EBCA6Bu;
    hash ^= hash >> 13;
    hash *= 0xC2B2AE35u;
    hash ^= hash >> 16;
    return hash ? hash : 1;
}

void tw_keys_prefetch(const tw_store *store, uint32_t hash) {
    const partition_t *part = &((const header_t *)store->keys)->partition[tw_key_partition(hash)];
    __builtin_prefetch((const uint64_t *)(store->keys + part->offset) + (hash & (part->capacity - 1)), 1);
}

int tw_keys_may_hold(const tw_store *store, uint32_t hash) {
    const partition_t *part = &((const header_t *)store->keys)->partition[tw_key_partition(hash)];
    const uint64_t    *table = (const uint64_t *)(store->keys + part->offset);
    uint32_t           mask = part->capacity - 1;
    for (uint32_t i = hash & mask, probes = 0; table[i] && probes <= mask; i = (i + 1) & mask, probes++)
        if ((table[i] & 0xffffffu) == fingerprint(hash)) return 1;
    return 0;
}

static int is_whole(const uint8_t *record, const tw_row *row) {
    return tw_load32(record + 4) == row->record_bytes &&
           tw_crc32c(record + 4, row->record_bytes - 4, 0) == tw_load32(record);
}

/* Whether the transaction that is being judged or staged cancels a message: then its key is free for what it sends. */
static int is_leaving(const tw_store *store, uint64_t id) {
    uint64_t from = 0, to = store->leaving_count;
    while (from < to) {
        uint64_t middle = from + (to - from) / 2;
        if (store->leaving[middle] == id) return 1;
        if (store->leaving[middle] < id) from = middle + 1;
        else to = middle;
    }
    return 0;
}

/* Of the messages with an id from first_id to below end_id; visible: only those that requests may see. */
static uint64_t find_among(const tw_store *store, uint32_t topic_id, uint32_t hash, const uint8_t *key, uint64_t bytes,
                           uint64_t first_id, uint64_t end_id, int visible) {
    const partition_t *part = &((const header_t *)store->keys)->partition[tw_key_partition(hash)];
    const uint64_t    *table = (const uint64_t *)(store->keys + part->offset);
    uint32_t           mask = part->capacity - 1;
    uint64_t           damaged = 0;
    for (uint32_t i = hash & mask, probes = 0; table[i] && probes <= mask; i = (i + 1) & mask, probes++) {
        if ((table[i] & 0xffffffu) != fingerprint(hash)) continue;
        uint64_t id = table[i] >> 24;
        if (id >= store->next_id || id < first_id || id >= end_id) continue;
        const tw_row *row = tw_row_at(store, id);
        if (row->key_hash != hash || tw_key_topic(store, row->topic_id) != topic_id) continue;
        /* Between the record that says it and the last of its steps, what was taken in has its keys already. */
        if (visible && row->state == TW_NONE && !(id >= store->adopted_first_id && id < store->adopted_end_id)) continue;
        if (visible && is_leaving(store, id)) continue;
        const uint8_t *record = tw_at(store, row->position);
        if (sizeof(tw_message) + bytes > row->record_bytes) continue;
        if (tw_load16(record + 40) == bytes && memcmp(record + sizeof(tw_message), key, bytes) == 0) return id;
        if (!damaged && !is_whole(record, row)) damaged = id;
    }
    /* A record that no longer says its key: all 32 bits of the hash speak for it, and against sending it once more. */
    return damaged;
}

uint64_t tw_keys_find_hashed(const tw_store *store, uint32_t topic_id, uint32_t hash, const uint8_t *key,
                             uint64_t bytes) {
    return find_among(store, topic_id, hash, key, bytes, 0, UINT64_MAX, 1);
}

uint64_t tw_keys_find_any(const tw_store *store, uint32_t topic_id, uint32_t hash, const uint8_t *key, uint64_t bytes) {
    return find_among(store, topic_id, hash, key, bytes, 0, UINT64_MAX, 0);
}

uint64_t tw_keys_find_among(const tw_store *store, uint32_t topic_id, uint32_t hash, const uint8_t *key, uint64_t bytes,
                            uint64_t first_id, uint64_t end_id) {
    return find_among(store, topic_id, hash, key, bytes, first_id, end_id, 0);
}

uint64_t tw_keys_find(const tw_store *store, uint32_t topic_id, const uint8_t *key, uint64_t bytes) {
    return tw_keys_find_hashed(store, topic_id, tw_key_hash(topic_id, key, bytes), key, bytes);
}

int tw_keys_has_room(const tw_store *store, uint32_t partition, uint64_t more) {
    const partition_t *part = &((const header_t *)store->keys)->partition[partition];
    return (part->count + more) * 4 <= (uint64_t)part->capacity * 3;
}

/* A damaged file may name an id that is not there: then 0, so that nothing is read out of bounds. */
static uint32_t hash_of(const tw_store *store, uint64_t entry) {
    return (entry >> 24) < store->next_id ? tw_row_at(store, entry >> 24)->key_hash : 0;
}

static void put_entry(uint64_t *table, uint32_t mask, uint32_t hash, uint64_t entry) {
    uint32_t i = hash & mask;
    while (table[i]) i = (i + 1) & mask;
    table[i] = entry;
}

void tw_keys_insert(tw_store *store, uint64_t id, uint32_t hash) {
    partition_t *part = &((header_t *)store->keys)->partition[tw_key_partition(hash)];
    put_entry((uint64_t *)(store->keys + part->offset), part->capacity - 1, hash, entry_of(id, hash));
    part->count++;
}

int tw_keys_enter(tw_store *store, uint64_t id, uint32_t hash, uint64_t *need) {
    uint32_t           partition = tw_key_partition(hash);
    const partition_t *part = &((const header_t *)store->keys)->partition[partition];
    const uint64_t    *table = (const uint64_t *)(store->keys + part->offset);
    uint32_t           mask = part->capacity - 1;
    for (uint32_t i = hash & mask, probes = 0; table[i] && probes <= mask; i = (i + 1) & mask, probes++)
        if (table[i] == entry_of(id, hash)) return 1;
    *need = partition;
    if (!tw_keys_has_room(store, partition, 1)) return 0;
    tw_keys_insert(store, id, hash);
    return 1;
}

int tw_keys_remove(tw_store *store, uint64_t id) {
    uint32_t     hash = store->rows[id].key_hash;
    partition_t *part = &((header_t *)store->keys)->partition[tw_key_partition(hash)];
    uint64_t    *table = (uint64_t *)(store->keys + part->offset);
    uint32_t     mask = part->capacity - 1, i = hash & mask, probes = 0;
    while (table[i] != entry_of(id, hash)) {
        if (!table[i] || ++probes > mask) return 0;
        i = (i + 1) & mask;
    }
    /* Backward shift: later entries of the cluster move up if their home is not behind the hole. */
    table[i] = 0;
    for (uint32_t j = (i + 1) & mask; table[j]; j = (j + 1) & mask) {
        uint32_t home = hash_of(store, table[j]) & mask;
        if (((j - home) & mask) >= ((j - i) & mask)) {
            table[i] = table[j];
            table[j] = 0;
            i = j;
        }
    }
    part->count--;
    return 1;
}

uint64_t tw_keys_bytes_to_resize(const tw_store *store, uint32_t capacity) {
    return ((const header_t *)store->keys)->end + (uint64_t)capacity * 8;
}

uint64_t tw_keys_bytes_to_grow(const tw_store *store, uint32_t partition) {
    return tw_keys_bytes_to_resize(store, ((const header_t *)store->keys)->partition[partition].capacity * 2);
}

int tw_keys_resize(tw_store *store, uint32_t partition, uint32_t capacity, uint64_t *freed_offset,
                   uint64_t *freed_bytes) {
    header_t    *header = (header_t *)store->keys;
    partition_t *part = &header->partition[partition];
    if (tw_keys_bytes_to_resize(store, capacity) > store->keys_allocated || part->count >= capacity) return -1;
    const uint64_t *old = (const uint64_t *)(store->keys + part->offset);
    uint64_t       *table = (uint64_t *)(store->keys + header->end);
    memset(table, 0, (uint64_t)capacity * 8);
    for (uint32_t i = 0; i < part->capacity; i++)
        if (old[i]) put_entry(table, capacity - 1, hash_of(store, old[i]), old[i]);
    *freed_offset = part->offset;
    *freed_bytes = (uint64_t)part->capacity * 8;
    part->offset = header->end;
    part->capacity = capacity;
    header->end += (uint64_t)capacity * 8;
    return 0;
}

int tw_keys_grow(tw_store *store, uint32_t partition, uint64_t *freed_offset, uint64_t *freed_bytes) {
    uint32_t capacity = ((const header_t *)store->keys)->partition[partition].capacity;
    return tw_keys_resize(store, partition, capacity * 2, freed_offset, freed_bytes);
}

/* An eighth full: half of what it could be, so that it does not grow again at once. */
uint32_t tw_keys_fitting(const tw_store *store, uint32_t partition) {
    const partition_t *part = &((const header_t *)store->keys)->partition[partition];
    uint32_t           capacity = part->capacity;
    if (capacity <= SMALLEST_SHRUNK || (uint64_t)part->count * 8 > capacity) return 0;
    while (capacity > SMALLEST_SHRUNK && (uint64_t)part->count * 4 <= capacity) capacity /= 2;
    return capacity;
}

uint32_t tw_keys_capacity_for(const tw_store *store, uint32_t partition, uint64_t more) {
    const partition_t *part = &((const header_t *)store->keys)->partition[partition];
    uint64_t           capacity = part->capacity;
    while ((part->count + more) * 4 > capacity * 3 && capacity < (UINT64_C(1) << 31)) capacity *= 2;
    return capacity == part->capacity ? 0 : (uint32_t)capacity;
}

uint64_t tw_keys_count(const uint8_t *keys) {
    const header_t *header = (const header_t *)keys;
    uint64_t        count = 0;
    for (uint32_t p = 0; p < TW_KEY_PARTITIONS; p++) count += header->partition[p].count;
    return count;
}
