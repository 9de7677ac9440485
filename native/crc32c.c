#include "crc32c.h"

#include <string.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#include <asm/hwcap.h>
#endif

static uint32_t table[8][256];

/* Runs when the library is loaded: after that the tables are read only, so no locking is needed. */
__attribute__((constructor)) static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
        table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++) table[k][byte] = (table[k - 1][byte] >> 8) ^ table[0][table[k - 1][byte] & 0xff];
}

uint32_t tw_crc32c_table(const uint8_t *data, size_t bytes, uint32_t seed) {
    uint32_t crc = ~seed;
    while (bytes >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= crc;
        crc = table[7][word & 0xff] ^ table[6][(word >> 8) & 0xff] ^ table[5][(word >> 16) & 0xff] ^
              table[4][(word >> 24) & 0xff] ^ table[3][(word >> 32) & 0xff] ^ table[2][(word >> 40) & 0xff] ^
              table[1][(word >> 48) & 0xff] ^ table[0][word >> 56];
        data += 8;
        bytes -= 8;
    }
    while (bytes--) crc = (crc >> 8) ^ table[0][(crc ^ *data++) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
/* The instruction has a latency of 3 cycles and a throughput of 1, so three independent streams keep it busy. Their
 * results are joined by "advancing" a CRC over LANE zero bytes, which is linear: a table look-up a byte. */
enum { LANE = 1024 };
static uint32_t advance_table[4][256];

static uint32_t advance_lane(uint32_t crc) {
    return advance_table[0][crc & 0xff] ^ advance_table[1][(crc >> 8) & 0xff] ^ advance_table[2][(crc >> 16) & 0xff] ^
           advance_table[3][crc >> 24];
}

__attribute__((constructor(201))) static void make_advance_table(void) {
    for (int k = 0; k < 4; k++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte << (8 * k);
            for (int i = 0; i < LANE * 8; i++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
            advance_table[k][byte] = crc;
        }
}

static inline uint64_t load64(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

__attribute__((target("sse4.2"))) static uint32_t crc32c_instruction(const uint8_t *data, size_t bytes,
                                                                    uint32_t seed) {
    uint64_t crc = (uint32_t)~seed;
    while (bytes >= 3 * LANE) {
        uint64_t second = 0, third = 0;
        for (size_t i = 0; i < LANE; i += 8) {
            crc = _mm_crc32_u64(crc, load64(data + i));
            second = _mm_crc32_u64(second, load64(data + LANE + i));
            third = _mm_crc32_u64(third, load64(data + 2 * LANE + i));
        }
        crc = advance_lane((uint32_t)crc) ^ second;
        crc = advance_lane((uint32_t)crc) ^ third;
        data += 3 * LANE;
        bytes -= 3 * LANE;
    }
    for (; bytes >= 8; data += 8, bytes -= 8) crc = _mm_crc32_u64(crc, load64(data));
    for (; bytes; data++, bytes--) crc = _mm_crc32_u8((uint32_t)crc, *data);
    return ~(uint32_t)crc;
}
static int has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__)
__attribute__((target("+crc"))) static uint32_t crc32c_instruction(const uint8_t *data, size_t bytes, uint32_t seed) {
    uint32_t crc = ~seed;
    for (; bytes >= 8; data += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = __crc32cd(crc, word);
    }
    for (; bytes; data++, bytes--) crc = __crc32cb(crc, *data);
    return ~crc;
}
static int has_instruction(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
#define crc32c_instruction tw_crc32c_table
static int has_instruction(void) { return 0; }
#endif

int tw_crc32c_is_hardware(void) { return has_instruction() ? 1 : 0; }

uint32_t tw_crc32c(const uint8_t *data, size_t bytes, uint32_t seed) {
    return has_instruction() ? crc32c_instruction(data, bytes, seed) : tw_crc32c_table(data, bytes, seed);
}
