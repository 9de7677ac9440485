/* Reading a log from outside: for processes that are not its broker. */
#include "scan.h"
#include "crc32c.h"
#include "store.h"

enum { AHEAD = 8 };

uint64_t tw_log_scan(const uint8_t *log, uint64_t position, uint64_t end, const uint8_t *wanted, uint64_t capacity,
                     uint64_t *positions, uint64_t *found, int32_t *reason) {
    *found = 0;
    *reason = TW_READ_END_OF_RANGE;
    while (position < end && end - position >= sizeof(tw_head)) {
        *reason = tw_judge_record(tw_place(log, position), end - position);
        if (*reason != TW_READ_END_OF_RANGE) return position;
        uint8_t type = *tw_place(log, position + 8);
        if (type == TW_RECORD_END) { *reason = TW_READ_END_RECORD; return position; }
        if (wanted[type]) {
            if (*found == capacity) { *reason = TW_READ_FULL; return position; }
            positions[(*found)++] = position;
        }
        position += tw_padded(tw_load32(tw_place(log, position + 4)));
    }
    return position;
}

void tw_gather(const uint8_t *log, const uint64_t *starts, const uint64_t *sizes, uint64_t n, uint8_t *out) {
    for (uint64_t i = 0; i < n; i++) {
        if (sizes[i]) memcpy(out, tw_place(log, starts[i]), sizes[i]);
        out += sizes[i];
    }
}

void tw_check_records(const uint8_t *log, const uint64_t *positions, const uint64_t *sizes, uint64_t n, uint8_t *ok) {
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *record = tw_place(log, positions[i]);
        ok[i] = sizes[i] >= sizeof(tw_head) && tw_load32(record + 4) == sizes[i] &&
                tw_crc32c(record + 4, sizes[i] - 4, 0) == tw_load32(record);
    }
}

void tw_message_parts(const uint8_t *log, const uint64_t *ids, const uint64_t *positions, const uint64_t *sizes,
                      uint64_t n, uint8_t *is_whole, int64_t *lengths) {
    for (uint64_t i = 0; i < n; i++) {
        if (i + AHEAD < n && sizes[i + AHEAD]) __builtin_prefetch(tw_place(log, positions[i + AHEAD]));
        tw_message message = {0};
        if (sizes[i]) memcpy(&message, tw_place(log, positions[i]), sizeof message);
        uint64_t of_parts = (uint64_t)message.key_bytes + message.headers_bytes + message.head.order_bytes;
        of_parts += message.body_bytes;
        is_whole[i] = message.head.type == TW_RECORD_MESSAGE && message.id == ids[i] &&
                      message.head.record_bytes == sizes[i] && sizeof message + of_parts == sizes[i];
        lengths[i] = message.key_bytes;
        lengths[n + i] = message.headers_bytes;
        lengths[2 * n + i] = message.head.order_bytes;
        lengths[3 * n + i] = message.body_bytes;
    }
}
