/* CRC-32C (Castagnoli, reflected polynomial 0x82F63B78, RFC 3720 appendix B.4).
 * A seed is the CRC of the bytes before, so crc(ab) == crc(b, seed = crc(a)). */
#ifndef TICKWHEEL_CRC32C_H
#define TICKWHEEL_CRC32C_H
#include <stddef.h>
#include <stdint.h>

/* Uses the CPU's instruction where there is one, the table otherwise; the result is the same. */
uint32_t tw_crc32c(const uint8_t *data, size_t bytes, uint32_t seed);
/* Slicing-by-8 table version; also the reference that tests compare the instruction with. */
uint32_t tw_crc32c_table(const uint8_t *data, size_t bytes, uint32_t seed);
int      tw_crc32c_is_hardware(void);
#endif
