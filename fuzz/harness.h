/* What the fuzz targets share: reading choices from the input, a small store whose every array is an allocation of its
 * own (so that AddressSanitizer sees each step beside one), and checks that must hold after any input. */
#ifndef TICKWHEEL_FUZZ_HARNESS_H
#define TICKWHEEL_FUZZ_HARNESS_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "../native/crc32c.h"
#include "../native/rows.h"

/* Not assert(): these stay whatever NDEBUG says. */
#define MUST(condition)                                                              \
    do {                                                                             \
        if (!(condition)) {                                                          \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            abort();                                                                 \
        }                                                                            \
    } while (0)

enum {
    TOPICS = 4,      /* 1 and 2 exist, 3 does not */
    GROUPS = 4,      /* 1 and 2 of topic 1, 3 of topic 2 */
    ROWS = 256,
    SEQS = 256,
    LOG_BYTES = 1 << 16,
    STAGING_BYTES = 1 << 14,
    HOLDERS = 4, /* those in use; the array has 65,536 */
    ORDERS = 8, /* a power of two with room for all ordering keys that make_send makes: 5 */
    LOG_START = 64,
    KEYS_BYTES = 20480 + TW_KEY_PARTITIONS * 512 + (1 << 14),
    REPLIES_BYTES = 1 << 15,
};
#define START_MS INT64_C(1700000000000)

typedef struct {
    const uint8_t *data;
    size_t         left;
} input_t;

/* Zero when nothing is left: an input can be short. */
static inline uint8_t take8(input_t *in) {
    if (!in->left) return 0;
    in->left--;
    return *in->data++;
}
static inline uint32_t take16(input_t *in) { uint32_t low = take8(in); return low | (uint32_t)take8(in) << 8; }
static inline uint32_t take32(input_t *in) { uint32_t low = take16(in); return low | take16(in) << 16; }
static inline uint64_t take64(input_t *in) { uint64_t low = take32(in); return low | (uint64_t)take32(in) << 32; }

/* The store is the same allocations each time, emptied. Two may be used side by side. */
tw_store *fresh_store(int number);
/* Moves what is staged into the log, as the engine does before it syncs. */
void flush_store(tw_store *store);
/* What must hold after any input: see invariants.h. */
void check_store(const tw_store *store);
/* A copy of exactly so many bytes, at an address that is a multiple of 16. */
uint8_t *exact_copy(const uint8_t *data, size_t bytes);
/* Gives the records of a log the checksums that they should have, as far as their lengths make sense. */
void mend_records(uint8_t *log, uint64_t bytes);
/* A whole SEND frame, with the columns and lengths that the input chooses; returns its bytes, at most 4,096. */
size_t make_send(input_t *in, uint8_t *frame);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
#endif
