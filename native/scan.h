/* Reading a log from outside: which records lie where, and copying pieces of them. */
#ifndef TICKWHEEL_SCAN_H
#define TICKWHEEL_SCAN_H
#include <stdint.h>

/* Checks records from `position` and notes in `positions` where those lie whose type t has wanted[t]. Returns where it
 * stopped, and why in *reason: TW_READ_FULL when `positions` is full and another wanted record follows. *found: how many were noted. */
uint64_t tw_log_scan(const uint8_t *log, uint64_t position, uint64_t end, const uint8_t *wanted, uint64_t capacity,
                     uint64_t *positions, uint64_t *found, int32_t *reason);
/* Copies n pieces of the log to `out`, one behind the other; the caller knows that they exist and fit. */
void     tw_gather(const uint8_t *log, const uint64_t *starts, const uint64_t *sizes, uint64_t n, uint8_t *out);
/* Says of n records whether their bytes match their checksum; the caller knows that the bytes exist. */
void     tw_check_records(const uint8_t *log, const uint64_t *positions, const uint64_t *sizes, uint64_t n, uint8_t *ok);
/* Says of n messages whether the record at their position is theirs: a MESSAGE with this id and size, whose parts fill
 * it; and how long its parts are: lengths[0..n) of keys, then n of headers, of ordering keys, of bodies. Where sizes[i]
 * is 0 nothing is looked at. The caller knows that the bytes exist. */
void     tw_message_parts(const uint8_t *log, const uint64_t *ids, const uint64_t *positions, const uint64_t *sizes,
                          uint64_t n, uint8_t *is_whole, int64_t *lengths);
#endif
