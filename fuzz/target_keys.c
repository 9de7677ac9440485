/* The key index against a list: what was entered is found, what was removed is not, whatever size the tables have. */
#include "harness.h"

static uint64_t append(tw_store *store, uint64_t id, const uint8_t *key, uint32_t bytes) {
    uint8_t    payload[32 + 8];
    uint64_t   position = store->staging_position + store->staging_bytes;
    uint16_t   key_bytes = (uint16_t)bytes;
    memset(payload, 0, sizeof payload);
    tw_store64(payload, id);
    memcpy(payload + 24, &key_bytes, 2);
    memcpy(payload + 32, key, bytes);
    if (tw_log_append(store, TW_RECORD_MESSAGE, 1, payload, 32 + bytes) < 0) return 0;
    return position;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size > 4096) return 0;
    input_t   in = {data, size};
    tw_store *store = fresh_store(0);
    uint8_t   keys[ROWS][8];
    uint32_t  lengths[ROWS];
    uint64_t  offset, freed, live = 0;
    int       is_there[ROWS] = {0};
    while (in.left) {
        uint8_t  how = take8(&in) % 6;
        uint8_t  key[8];
        uint32_t bytes = 1 + take8(&in) % 3;
        for (uint32_t i = 0; i < bytes; i++) key[i] = take8(&in) % 8;
        uint32_t hash = tw_key_hash(1, key, bytes);
        uint64_t expected = 0, id = store->next_id;
        for (uint64_t other = 1; other < id; other++)
            if (is_there[other] && lengths[other] == bytes && !memcmp(keys[other], key, bytes)) expected = other;
        MUST(tw_keys_find(store, 1, key, bytes) == expected);
        if (how <= 1 && !expected && id < ROWS) {
            /* As many hashes as may be in one partition: the fuzzer cannot search for collisions. */
            uint32_t partition = tw_key_partition(hash);
            if (!tw_keys_has_room(store, partition, 1) && tw_keys_grow(store, partition, &offset, &freed)) continue;
            uint64_t position = append(store, id, key, bytes);
            if (!position) continue;
            store->rows[id] = (tw_row){.position = position, .topic_id = 1, .key_hash = hash, .state = TW_SCHEDULED,
                                       .record_bytes = (uint32_t)sizeof(tw_message) + bytes};
            tw_keys_insert(store, id, hash);
            memcpy(keys[id], key, bytes);
            lengths[id] = bytes;
            is_there[id] = 1;
            live++;
            store->next_id++;
        } else if (how == 2 && expected) {
            MUST(tw_keys_remove(store, expected));
            MUST(!tw_keys_remove(store, expected));
            is_there[expected] = 0;
            live--;
        } else if (how == 3) {
            tw_keys_resize(store, tw_key_partition(hash), 16u << take8(&in) % 6, &offset, &freed);
        } else if (how == 4) {
            uint32_t fitting = tw_keys_fitting(store, tw_key_partition(hash));
            if (fitting) MUST(tw_keys_resize(store, tw_key_partition(hash), fitting, &offset, &freed) <= 0);
        } else if (how == 5) {
            tw_keys_capacity_for(store, tw_key_partition(hash), take16(&in));
        }
        MUST(tw_keys_count(store->keys) == live);
    }
    return 0;
}
