/* Requests of RocketMQ's clients, and what is delivered to them: any bytes, with room for all answers or for few. */
#include "../gateway/native/wire/wire.h"
#include "harness.h"

enum { MOST_REQUESTS = 8 };

static void check_part(const int64_t *part, uint64_t bytes) {
    MUST(part[0] >= 0 && part[0] <= part[1] && (uint64_t)part[1] <= bytes);
}

static void check_ends(const uint64_t *ends, uint64_t count, uint64_t capacity) {
    for (uint64_t i = 0; i < count; i++) MUST(ends[i] > (i ? ends[i - 1] : 0) && ends[i] <= capacity);
}

static void read_sends(const uint8_t *requests, uint64_t bytes, const uint64_t *ends, uint64_t count, input_t *in) {
    static const char reserved[] = "KEYS\0TAGS";
    uint64_t          capacity = take16(in) % 2048, small = take8(in), done[MOST_REQUESTS], ids[MOST_REQUESTS];
    uint8_t          *out = malloc(capacity + 1);
    int64_t           numbers[MOST_REQUESTS * TW_SENT_NUMBERS], usual[MOST_REQUESTS * TW_SENT_NUMBERS];
    tw_sender         sender = {
                .client = (const uint8_t *)"client", .client_bytes = 6, .host = (const uint8_t *)"host", .host_bytes = 4,
                .mark = (const uint8_t *)"01234567", .reserved = (const uint8_t *)reserved, .reserved_bytes = sizeof reserved,
                .max_id_bytes = 246, .max_group_bytes = 63, .max_properties_bytes = 1024, .max_body_bytes = 1024,
                .max_deliver_at_ms = START_MS,
    };
    uint64_t used = tw_wire_sends(requests, ends, count, &sender, numbers, out, capacity), found = 0;
    MUST(used <= capacity);
    for (uint64_t i = 0; i < count; i++) {
        const int64_t *one = numbers + i * TW_SENT_NUMBERS;
        if (!one[TW_SENT_IS_USUAL]) continue;
        for (int part = TW_SENT_TOPIC; part <= TW_SENT_ORDER; part += 2) check_part(one + part, bytes);
        check_part(one + TW_SENT_KEY, used);
        check_part(one + TW_SENT_HEADERS, used);
        MUST(one[TW_SENT_BODY + 1] - one[TW_SENT_BODY] <= 1024 && one[TW_SENT_BODY] < one[TW_SENT_BODY + 1]);
        MUST(one[TW_SENT_PRIORITY] >= -1 && one[TW_SENT_PRIORITY] <= 50 && one[TW_SENT_DELIVER_AT] <= START_MS);
        memcpy(usual + found * TW_SENT_NUMBERS, one, TW_SENT_NUMBERS * sizeof *one);
        ids[found++] = UINT64_MAX >> i;
    }
    free(out);
    uint64_t room = small % 2 ? small : 4096 * MOST_REQUESTS + 3 * bytes;
    out = malloc(room);
    uint64_t written = tw_wire_stored(requests, usual, ids, found, START_MS / 2, out, room, done);
    MUST(written <= found);
    check_ends(done, written, room);
    free(out);
}

static void read_acks(const uint8_t *requests, uint64_t bytes, const uint64_t *ends, uint64_t count, input_t *in) {
    uint64_t small = take8(in), done[MOST_REQUESTS], found = 0;
    int64_t  numbers[MOST_REQUESTS * TW_ACKED_NUMBERS], usual[MOST_REQUESTS * TW_ACKED_NUMBERS];
    tw_wire_acks(requests, ends, count, INT64_MAX, START_MS, numbers);
    for (uint64_t i = 0; i < count; i++) {
        const int64_t *one = numbers + i * TW_ACKED_NUMBERS;
        if (!one[TW_ACKED_IS_USUAL]) continue;
        check_part(one + TW_ACKED_MESSAGE, bytes);
        check_part(one + TW_ACKED_HANDLE, bytes);
        MUST(one[TW_ACKED_GROUP] >= 0 && one[TW_ACKED_GROUP] <= UINT32_MAX && one[TW_ACKED_ID] >= 0);
        MUST(one[TW_ACKED_EPOCH] >= 0 && one[TW_ACKED_EPOCH] <= UINT32_MAX);
        memcpy(usual + TW_ACKED_NUMBERS * found++, one, TW_ACKED_NUMBERS * sizeof *one);
    }
    uint64_t room = small % 2 ? small : 256 * MOST_REQUESTS + bytes;
    uint8_t *out = malloc(room);
    uint64_t written = tw_wire_acked(requests, usual, found, out, room, done);
    MUST(written <= found && (small % 2 || written == found));
    check_ends(done, written, room);
    free(out);
}

static void read_given(const uint8_t *payload, uint64_t bytes, input_t *in) {
    uint64_t    count = bytes < 8 ? 0 : payload[4] % 64, room = take16(in);
    uint16_t   *attempts = calloc(count + 1, sizeof *attempts);
    int64_t    *numbers = calloc(count * TW_GIVEN_NUMBERS + 1, sizeof *numbers);
    uint8_t    *out = malloc(room + 1);
    tw_receiver receiver = {
        .topic = (const uint8_t *)"\x12\x01t", .topic_bytes = 3, .store_host = (const uint8_t *)"h:1", .store_host_bytes = 3,
        .invisible_ms = 60001, .until_ms = START_MS, .number = UINT64_MAX,
    };
    if (!tw_wire_given(payload, bytes, attempts, count, &receiver, numbers, out, room)) {
        int64_t last = 0;
        for (uint64_t i = 0; i < count; i++) {
            const int64_t *one = numbers + i * TW_GIVEN_NUMBERS;
            if (!one[TW_GIVEN_IS_USUAL]) continue;
            check_part(one + TW_GIVEN_AT, room);
            MUST(one[TW_GIVEN_AT] == last && one[TW_GIVEN_AT + 1] > last);
            last = one[TW_GIVEN_AT + 1];
            if (one[TW_GIVEN_TAG] >= 0) check_part(one + TW_GIVEN_TAG, bytes);
        }
    }
    free(out);
    free(numbers);
    free(attempts);
}

/* How many requests there are, what is made of them, and choices; then the bytes, cut to equal parts. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 8 || size > 8192) return 0;
    input_t  in = {data, 8};
    uint64_t kind = take8(&in) % 3, count = 1 + take8(&in) % MOST_REQUESTS, bytes = size - 8, ends[MOST_REQUESTS];
    uint8_t *requests = exact_copy(data + 8, bytes);
    for (uint64_t i = 0; i < count; i++) ends[i] = bytes * (i + 1) / count;
    if (kind == 0) read_sends(requests, bytes, ends, count, &in);
    else if (kind == 1) read_acks(requests, bytes, ends, count, &in);
    else read_given(requests, bytes, &in);
    free(requests);
    return 0;
}
