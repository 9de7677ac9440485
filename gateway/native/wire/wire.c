#include "wire.h"

#include <string.h>

enum {
    NAME = 100,      /* a name of at most so many characters is good whatever it becomes in Tickwheel */
    MOST_SEVERAL = 16, /* properties or keys of a message */
    OK = 20000,
    NORMAL = 1,
    FIFO = 2,
    DELAY = 3,
    TRANSACTION = 4,
    LITE = 5,
    PRIORITY = 6,
    IDENTITY = 1,
    MD5 = 2,
    DEFAULT_PRIORITY = 50,
};
#define MAX_SECONDS INT64_C(253402300799)

/* A part of the input. */
typedef struct {
    const uint8_t *at;
    uint64_t       bytes;
} span;

static int equals(span text, const char *word) { return text.bytes == strlen(word) && !memcmp(text.at, word, text.bytes); }

static int begins(span text, const char *word) {
    return text.bytes >= strlen(word) && !memcmp(text.at, word, strlen(word));
}

/* -- texts -- */

enum { TEXT_BAD = 0, TEXT_GOOD = 1, TEXT_HAS_CONTROL = 2, TEXT_IS_SEEN = 4 };

/* Whether it is UTF-8, has a control character, and surely is not blank. */
static int look_at(span text) {
    int      found = TEXT_GOOD;
    uint64_t i = 0;
    while (i < text.bytes) {
        const uint8_t *at = text.at + i;
        uint64_t       left = text.bytes - i;
        if (at[0] < 0x80) {
            if (at[0] < 0x20 || at[0] == 0x7f) found |= TEXT_HAS_CONTROL;
            else if (at[0] > 0x20) found |= TEXT_IS_SEEN;
            i++;
            continue;
        }
        uint64_t more = at[0] >= 0xf0 ? 3 : at[0] >= 0xe0 ? 2 : 1;
        if (at[0] < 0xc2 || at[0] > 0xf4 || left <= more) return TEXT_BAD;
        for (uint64_t k = 1; k <= more; k++)
            if ((at[k] & 0xc0) != 0x80) return TEXT_BAD;
        if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf0 && at[1] < 0x90) ||
            (at[0] == 0xf4 && at[1] > 0x8f))
            return TEXT_BAD;
        if (at[0] == 0xc2 && at[1] < 0xa0) found |= TEXT_HAS_CONTROL;
        /* All spaces beyond ASCII begin with one of these. */
        if (at[0] != 0xc2 && at[0] != 0xe1 && at[0] != 0xe2 && !(at[0] == 0xe3 && at[1] == 0x80)) found |= TEXT_IS_SEEN;
        i += more + 1;
    }
    return found;
}

static int is_clean(span text) { return look_at(text) == (TEXT_GOOD | TEXT_IS_SEEN); }

static int has_byte(span text, uint8_t byte) { return text.bytes && memchr(text.at, byte, text.bytes) != NULL; }

/* -- reading protobuf -- */

typedef struct {
    const uint8_t *at, *end;
    int            is_bad;
} reader;

static reader read_in(span part) { return (reader){part.at, part.at + part.bytes, 0}; }

static uint64_t read_varint(reader *in) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;
        if (shift == 63 && byte > 1) break;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
    in->is_bad = 1;
    return 0;
}

static span read_bytes(reader *in) {
    uint64_t bytes = read_varint(in);
    if (in->is_bad || bytes > (uint64_t)(in->end - in->at)) {
        in->is_bad = 1;
        return (span){in->end, 0};
    }
    span found = {in->at, bytes};
    in->at += bytes;
    return found;
}

/* The number of the next field, which may not come twice unless `several` has its bit; 0 at the end, or when something is
 * wrong. Only varints and bytes are usual, and numbers below 32. */
static uint32_t next_field(reader *in, uint32_t *seen, uint32_t several, int *is_bytes) {
    if (in->is_bad || in->at == in->end) return 0;
    uint64_t tag = read_varint(in), number = tag >> 3;
    *is_bytes = (tag & 7) == 2;
    if (in->is_bad || ((tag & 7) && !*is_bytes) || number == 0 || number > 31 || (*seen & ~several & 1u << number)) {
        in->is_bad = 1;
        return 0;
    }
    *seen |= 1u << number;
    return (uint32_t)number;
}

#define TYPED(wanted)                \
    if (is_bytes != (wanted)) {      \
        in.is_bad = 1;               \
        break;                       \
    }

/* A Timestamp in milliseconds, rounded up; -1: it is not usual. */
static int64_t read_time(span part) {
    reader   in = read_in(part);
    uint32_t seen = 0, number;
    uint64_t seconds = 0, nanos = 0;
    int      is_bytes;
    while ((number = next_field(&in, &seen, 0, &is_bytes))) {
        TYPED(0)
        if (number == 1) seconds = read_varint(&in);
        else if (number == 2) nanos = read_varint(&in);
        else in.is_bad = 1;
    }
    if (in.is_bad || seconds > MAX_SECONDS || nanos > 999999999) return -1;
    return (int64_t)(seconds * 1000 + (nanos + 999999) / 1000000);
}

/* Two texts: of a Resource, or an entry of a map. */
static int read_pair(span part, span *first, span *second) {
    reader   in = read_in(part);
    uint32_t seen = 0, number;
    int      is_bytes;
    *first = *second = (span){part.at, 0};
    while ((number = next_field(&in, &seen, 0, &is_bytes))) {
        TYPED(1)
        if (number == 1) *first = read_bytes(&in);
        else if (number == 2) *second = read_bytes(&in);
        else in.is_bad = 1;
    }
    return !in.is_bad && look_at(*first) && look_at(*second);
}

static int is_digest(span part) {
    reader   in = read_in(part);
    uint32_t seen = 0, number;
    int      is_bytes;
    while ((number = next_field(&in, &seen, 0, &is_bytes))) {
        TYPED(number == 2)
        if (number == 1) read_varint(&in);
        else if (number != 2 || !look_at(read_bytes(&in))) in.is_bad = 1;
    }
    return !in.is_bad;
}

/* -- messages -- */

/* What a message has, on its way there or back. */
typedef struct {
    span     names[MOST_SEVERAL], values[MOST_SEVERAL], keys[MOST_SEVERAL];
    uint32_t properties, key_count;
    span     topic, body, tag, id, born_host, group, trace;
    int      has_tag, has_group;
    uint64_t encoding, type;
    int64_t  born_ms, deliver_at_ms, priority;
} message;

static int names_differ(const message *one) {
    for (uint32_t i = 1; i < one->properties; i++)
        for (uint32_t k = 0; k < i; k++)
            if (one->names[i].bytes == one->names[k].bytes && !memcmp(one->names[i].at, one->names[k].at, one->names[i].bytes))
                return 0;
    return 1;
}

static int read_system(span part, message *one) {
    reader   in = read_in(part);
    uint32_t seen = 0, number;
    int      is_bytes;
    while ((number = next_field(&in, &seen, 1u << 2, &is_bytes))) {
        TYPED(number != 5 && number != 6 && number != 13 && number != 22)
        if (!is_bytes) {
            uint64_t value = read_varint(&in);
            if (number == 5) one->encoding = value;
            else if (number == 6) one->type = value;
            else if (number == 22) one->priority = value > INT32_MAX ? -2 : (int64_t)value;
            continue; /* the queue is not looked at */
        }
        span value = read_bytes(&in);
        switch (number) {
        case 1: one->tag = value; one->has_tag = 1; break;
        case 2:
            if (one->key_count == MOST_SEVERAL) return 0;
            one->keys[one->key_count++] = value;
            break;
        case 3: one->id = value; break;
        case 4:
            if (!is_digest(value)) return 0;
            break;
        case 7:
            if ((one->born_ms = read_time(value)) < 0) return 0;
            break;
        case 8: one->born_host = value; break;
        case 11:
            if ((one->deliver_at_ms = read_time(value)) < 0) return 0;
            break;
        case 17: one->group = value; one->has_group = 1; break;
        case 18: one->trace = value; break;
        default: return 0;
        }
    }
    return !in.is_bad;
}

static int read_message(span part, message *one) {
    reader   in = read_in(part);
    uint32_t seen = 0, number;
    int      is_bytes;
    span     unused;
    while ((number = next_field(&in, &seen, 1u << 2, &is_bytes))) {
        TYPED(1)
        span value = read_bytes(&in);
        if (in.is_bad) break;
        switch (number) {
        case 1:
            if (!read_pair(value, &unused, &one->topic)) return 0;
            break;
        case 2:
            if (one->properties == MOST_SEVERAL) return 0;
            if (!read_pair(value, &one->names[one->properties], &one->values[one->properties])) return 0;
            one->properties++;
            break;
        case 3:
            if (!read_system(value, one)) return 0;
            break;
        case 4: one->body = value; break;
        default: return 0;
        }
    }
    return !in.is_bad;
}

static int is_reserved(span name, const tw_sender *sender) {
    const uint8_t *at = sender->reserved, *end = at + sender->reserved_bytes;
    while (at < end) {
        const uint8_t *stop = memchr(at, 0, (size_t)(end - at));
        if (!stop) return 1;
        if ((uint64_t)(stop - at) == name.bytes && !memcmp(at, name.at, name.bytes)) return 1;
        at = stop + 1;
    }
    return equals(name, "rocketmq") || begins(name, "tickwheel-");
}

/* Whether every rule is kept, and nothing is unusual. */
static int is_usual(const message *one, const tw_sender *sender) {
    uint64_t size = one->tag.bytes;
    if (!one->body.bytes || one->body.bytes > sender->max_body_bytes || !one->topic.bytes) return 0;
    if (!is_clean(one->id) || one->id.bytes > sender->max_id_bytes) return 0;
    if (one->type == TRANSACTION || one->type == LITE || one->type > 127 || one->encoding > 127) return 0;
    if (one->has_tag && (!is_clean(one->tag) || has_byte(one->tag, '|'))) return 0;
    for (uint32_t i = 0; i < one->key_count; i++) {
        if (!is_clean(one->keys[i])) return 0;
        size += one->keys[i].bytes + 1;
    }
    for (uint32_t i = 0; i < one->properties; i++) {
        if (is_reserved(one->names[i], sender)) return 0;
        if ((look_at(one->names[i]) | look_at(one->values[i])) & TEXT_HAS_CONTROL) return 0;
        size += one->names[i].bytes + one->values[i].bytes;
    }
    if (size > sender->max_properties_bytes || !names_differ(one)) return 0;
    if (one->has_group && (!is_clean(one->group) || one->group.bytes > sender->max_group_bytes)) return 0;
    if (!look_at(one->born_host) || !look_at(one->trace)) return 0;
    if (one->deliver_at_ms >= 0 && one->deliver_at_ms <= sender->now_ms) return 0;
    return one->deliver_at_ms <= sender->max_deliver_at_ms && one->priority >= -1;
}

/* -- writing -- */

/* Forwards: headers as MessagePack. */
typedef struct {
    uint8_t *at, *end;
    int      is_full;
} writer;

static void put(writer *out, const void *data, uint64_t bytes) {
    if (out->is_full || bytes > (uint64_t)(out->end - out->at)) {
        out->is_full = 1;
        return;
    }
    if (bytes) memcpy(out->at, data, bytes);
    out->at += bytes;
}

static void put_head(writer *out, uint8_t kind, uint64_t value, int bytes) {
    uint8_t head[9] = {kind};
    for (int i = 0; i < bytes; i++) head[1 + i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
    put(out, head, 1 + (uint64_t)bytes);
}

static void put_map(writer *out, uint64_t count) { put_head(out, count < 16 ? 0x80 | (uint8_t)count : 0xde, count, count < 16 ? 0 : 2); }

static void put_text(writer *out, const void *text, uint64_t bytes) {
    if (bytes < 32) put_head(out, 0xa0 | (uint8_t)bytes, 0, 0);
    else if (bytes <= 0xff) put_head(out, 0xd9, bytes, 1);
    else if (bytes <= 0xffff) put_head(out, 0xda, bytes, 2);
    else out->is_full = 1;
    put(out, text, bytes);
}

static void put_word(writer *out, const char *word) { put_text(out, word, strlen(word)); }

static void put_number(writer *out, uint64_t value) {
    if (value < 128) put_head(out, (uint8_t)value, 0, 0);
    else if (value <= 0xff) put_head(out, 0xcc, value, 1);
    else if (value <= 0xffff) put_head(out, 0xcd, value, 2);
    else if (value <= 0xffffffff) put_head(out, 0xce, value, 4);
    else put_head(out, 0xcf, value, 8);
}

static void put_headers(writer *out, const message *one, const tw_sender *sender) {
    put_map(out, one->properties + 1);
    for (uint32_t i = 0; i < one->properties; i++) {
        put_text(out, one->names[i].at, one->names[i].bytes);
        put_text(out, one->values[i].at, one->values[i].bytes);
    }
    put_word(out, "rocketmq");
    put_map(
        out, 3u + one->has_tag + (one->key_count > 0) + (one->type > 0) + (one->born_ms > 0) + (one->encoding > 0) +
                 (one->trace.bytes > 0) + (one->priority >= 0)
    );
    put_word(out, "id");
    put_text(out, one->id.at, one->id.bytes);
    put_word(out, "client");
    put_text(out, sender->client, sender->client_bytes);
    put_word(out, "born_host");
    if (one->born_host.bytes) put_text(out, one->born_host.at, one->born_host.bytes);
    else put_text(out, sender->host, sender->host_bytes);
    if (one->has_tag) {
        put_word(out, "tag");
        put_text(out, one->tag.at, one->tag.bytes);
    }
    if (one->key_count) {
        put_word(out, "keys");
        put_head(out, one->key_count < 16 ? 0x90 | (uint8_t)one->key_count : 0xdc, one->key_count, one->key_count < 16 ? 0 : 2);
        for (uint32_t i = 0; i < one->key_count; i++) put_text(out, one->keys[i].at, one->keys[i].bytes);
    }
    if (one->type) {
        put_word(out, "type");
        put_number(out, one->type);
    }
    if (one->born_ms > 0) {
        put_word(out, "born_ms");
        put_number(out, (uint64_t)one->born_ms);
    }
    if (one->encoding) {
        put_word(out, "encoding");
        put_number(out, one->encoding);
    }
    if (one->trace.bytes) {
        put_word(out, "trace");
        put_text(out, one->trace.at, one->trace.bytes);
    }
    if (one->priority >= 0) {
        put_word(out, "priority");
        put_number(out, (uint64_t)one->priority);
    }
}

/* Backwards: protobuf, where the length of a part comes before it. */
typedef struct {
    uint8_t *start, *at;
    int      is_full;
} stack;

static void push(stack *out, const void *data, uint64_t bytes) {
    if (out->is_full || bytes > (uint64_t)(out->at - out->start)) {
        out->is_full = 1;
        return;
    }
    out->at -= bytes;
    if (bytes) memcpy(out->at, data, bytes);
}

static void push_varint(stack *out, uint64_t value) {
    uint8_t  digits[10];
    uint64_t count = 0;
    do digits[count++] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
    while (value >>= 7);
    push(out, digits, count);
}

static void push_number(stack *out, uint32_t field, uint64_t value) {
    push_varint(out, value);
    push_varint(out, field << 3);
}

/* What was pushed since `end` becomes a field. */
static void close_part(stack *out, uint32_t field, const uint8_t *end) {
    if (out->is_full) return;
    push_varint(out, (uint64_t)(end - out->at));
    push_varint(out, field << 3 | 2);
}

static void push_bytes(stack *out, uint32_t field, const void *data, uint64_t bytes) {
    const uint8_t *end = out->at;
    push(out, data, bytes);
    close_part(out, field, end);
}

static void push_span(stack *out, uint32_t field, span part) { push_bytes(out, field, part.at, part.bytes); }

static void push_time(stack *out, uint32_t field, int64_t time_ms) {
    const uint8_t *end = out->at;
    if (time_ms % 1000) push_number(out, 2, (uint64_t)(time_ms % 1000) * 1000000);
    if (time_ms / 1000) push_number(out, 1, (uint64_t)(time_ms / 1000));
    close_part(out, field, end);
}

static void push_ok(stack *out, uint32_t field) {
    const uint8_t *end = out->at;
    push_bytes(out, 2, "OK", 2);
    push_number(out, 1, OK);
    close_part(out, field, end);
}

/* Decimal digits; returns how many. */
static uint64_t to_text(uint64_t value, uint8_t *text) {
    uint8_t  digits[20];
    uint64_t count = 0;
    do digits[count++] = '0' + (uint8_t)(value % 10);
    while (value /= 10);
    for (uint64_t i = 0; i < count; i++) text[i] = digits[count - 1 - i];
    return count;
}

static void push_text_number(stack *out, uint64_t value) {
    uint8_t digits[20];
    push(out, digits, to_text(value, digits));
}

/* An answer was made at the end of the room: it moves to where the last one has ended. */
static uint64_t settle(stack *out, uint8_t *to, const uint8_t *end) {
    uint64_t bytes = (uint64_t)(end - out->at);
    memmove(to, out->at, bytes);
    return bytes;
}

/* -- SendMessage -- */

uint64_t tw_wire_sends(
    const uint8_t *requests, const uint64_t *ends, uint64_t count, const tw_sender *sender, int64_t *numbers, uint8_t *out,
    uint64_t capacity
) {
    writer   to = {out, out + capacity, 0};
    uint64_t start = 0;
    for (uint64_t i = 0; i < count; start = ends[i++], numbers += TW_SENT_NUMBERS) {
        memset(numbers, 0, TW_SENT_NUMBERS * sizeof *numbers);
        message  one = {.deliver_at_ms = -1, .priority = -1};
        reader   in = read_in((span){requests + start, ends[i] - start});
        uint32_t seen = 0;
        int      is_bytes;
        one.body = one.topic = one.id = one.group = (span){requests + start, 0};
        if (next_field(&in, &seen, 0, &is_bytes) != 1 || !is_bytes) continue;
        span only = read_bytes(&in);
        if (in.is_bad || in.at != in.end || !read_message(only, &one) || !is_usual(&one, sender)) continue;
        uint8_t *key = to.at;
        put(&to, one.id.at, one.id.bytes);
        put(&to, ".", 1);
        put(&to, sender->mark, 8);
        uint8_t *headers = to.at;
        put_headers(&to, &one, sender);
        if (to.is_full) {
            to.at = key;
            to.is_full = 0;
            continue;
        }
        const span texts[] = {one.topic, one.id, one.body, one.group};
        for (int k = 0; k < 4; k++) {
            numbers[TW_SENT_TOPIC + 2 * k] = texts[k].at - requests;
            numbers[TW_SENT_TOPIC + 2 * k + 1] = texts[k].at - requests + (int64_t)texts[k].bytes;
        }
        numbers[TW_SENT_KEY] = key - out;
        numbers[TW_SENT_KEY + 1] = numbers[TW_SENT_HEADERS] = headers - out;
        numbers[TW_SENT_HEADERS + 1] = to.at - out;
        numbers[TW_SENT_DELIVER_AT] = one.deliver_at_ms;
        numbers[TW_SENT_PRIORITY] =
            one.priority < 0 ? -1 : one.priority > DEFAULT_PRIORITY ? 0 : DEFAULT_PRIORITY - one.priority;
        numbers[TW_SENT_IS_USUAL] = 1;
    }
    return (uint64_t)(to.at - out);
}

/* Base64 for URLs of what was pushed since `end`; it must be at most 768 bytes, else there is no room. */
static void push_base64(stack *out, const uint8_t *end) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t           text[1024];
    uint64_t          bytes = (uint64_t)(end - out->at), at = 0;
    if (out->is_full || bytes > 768) {
        out->is_full = 1;
        return;
    }
    const uint8_t *in = out->at;
    for (uint64_t i = 0; i < bytes; i += 3) {
        uint32_t three = (uint32_t)in[i] << 16 | (i + 1 < bytes ? (uint32_t)in[i + 1] << 8 : 0) | (i + 2 < bytes ? in[i + 2] : 0);
        text[at++] = (uint8_t)letters[three >> 18];
        text[at++] = (uint8_t)letters[three >> 12 & 63];
        text[at++] = i + 1 < bytes ? (uint8_t)letters[three >> 6 & 63] : '=';
        text[at++] = i + 2 < bytes ? (uint8_t)letters[three & 63] : '=';
    }
    out->at += bytes;
    push(out, text, at);
}

static void push_recall(stack *out, span topic, uint64_t deliver_at_ms, uint64_t id, span message_id) {
    const uint8_t *end = out->at;
    push(out, message_id.at, message_id.bytes);
    push(out, " ", 1);
    push_text_number(out, id);
    push(out, " ", 1);
    push_text_number(out, deliver_at_ms);
    push(out, " tickwheel ", 11);
    push(out, topic.at, topic.bytes);
    push(out, "v1 ", 3);
    push_base64(out, end);
    close_part(out, 5, end);
}

uint64_t tw_wire_stored(
    const uint8_t *requests, const int64_t *numbers, const uint64_t *ids, uint64_t count, int64_t now_ms, uint8_t *out,
    uint64_t capacity, uint64_t *ends
) {
    uint64_t used = 0;
    for (uint64_t i = 0; i < count; i++, numbers += TW_SENT_NUMBERS) {
        uint8_t *end = out + capacity;
        stack    to = {out + used, end, 0};
        span     topic = {requests + numbers[TW_SENT_TOPIC], (uint64_t)(numbers[TW_SENT_TOPIC + 1] - numbers[TW_SENT_TOPIC])};
        span     id = {requests + numbers[TW_SENT_ID], (uint64_t)(numbers[TW_SENT_ID + 1] - numbers[TW_SENT_ID])};
        int64_t  deliver_at_ms = numbers[TW_SENT_DELIVER_AT];
        if (deliver_at_ms > now_ms) push_recall(&to, topic, (uint64_t)deliver_at_ms, ids[i], id);
        push_number(&to, 4, ids[i]);
        push_span(&to, 3, id);
        push_span(&to, 2, id);
        push_ok(&to, 1);
        close_part(&to, 2, end);
        push_ok(&to, 1);
        if (to.is_full) return i;
        used += settle(&to, out + used, end);
        ends[i] = used;
    }
    return count;
}

/* -- AckMessage -- */

/* A name that no rule refuses, whatever it is the name of. */
static int is_name(span name) {
    if (!name.bytes || name.bytes > NAME || begins(name, "rmq%")) return 0;
    for (uint64_t i = 0; i < name.bytes; i++) {
        uint8_t c = name.at[i], letter = c | 0x20;
        int     is_plain = (c >= '0' && c <= '9') || (letter >= 'a' && letter <= 'z');
        if (!is_plain && (!i || (c != '%' && c != '_' && c != '-'))) return 0;
    }
    return 1;
}

/* The next number of a handle, and the dot before it. */
static int read_part(span *text, uint64_t *value) {
    uint64_t i = 1, found = 0;
    if (!text->bytes || text->at[0] != '.') return 0;
    for (; i < text->bytes && text->at[i] >= '0' && text->at[i] <= '9'; i++) {
        uint64_t digit = text->at[i] - (uint64_t)'0';
        if (i > 20 || found > (UINT64_MAX - digit) / 10) return 0;
        found = found * 10 + digit;
    }
    *value = found;
    text->at += i;
    text->bytes -= i;
    return i > 1;
}

static int read_handle(span handle, uint64_t max_id, int64_t now_ms, int64_t *numbers) {
    uint64_t group, id, epoch, until_ms, number;
    if (!begins(handle, "tw1")) return 0;
    handle = (span){handle.at + 3, handle.bytes - 3};
    if (!read_part(&handle, &group) || !read_part(&handle, &id) || !read_part(&handle, &epoch) ||
        !read_part(&handle, &until_ms) || !read_part(&handle, &number) || handle.bytes)
        return 0;
    if (group > UINT32_MAX || epoch > UINT32_MAX || id > max_id || id > INT64_MAX) return 0;
    if (until_ms && until_ms <= (uint64_t)now_ms) return 0;
    numbers[TW_ACKED_GROUP] = (int64_t)group;
    numbers[TW_ACKED_ID] = (int64_t)id;
    numbers[TW_ACKED_EPOCH] = (int64_t)epoch;
    return 1;
}

static int read_ack(span request, span *message_id, span *handle) {
    reader   in = read_in(request);
    uint32_t seen = 0, number;
    int      is_bytes;
    span     unused, group = {request.at, 0}, topic = {request.at, 0}, entry = {request.at, 0};
    while ((number = next_field(&in, &seen, 0, &is_bytes))) {
        TYPED(1)
        span value = read_bytes(&in);
        if (in.is_bad) break;
        if (number == 3) entry = value;
        else if (number > 2 || !read_pair(value, &unused, number == 1 ? &group : &topic)) in.is_bad = 1;
    }
    if (in.is_bad || !(seen & 1u << 3) || !is_name(group) || !is_name(topic)) return 0;
    return read_pair(entry, message_id, handle);
}

void tw_wire_acks(
    const uint8_t *requests, const uint64_t *ends, uint64_t count, uint64_t max_id, int64_t now_ms, int64_t *numbers
) {
    uint64_t start = 0;
    for (uint64_t i = 0; i < count; start = ends[i++], numbers += TW_ACKED_NUMBERS) {
        span message_id, handle;
        memset(numbers, 0, TW_ACKED_NUMBERS * sizeof *numbers);
        if (!read_ack((span){requests + start, ends[i] - start}, &message_id, &handle)) continue;
        if (!read_handle(handle, max_id, now_ms, numbers)) continue;
        numbers[TW_ACKED_MESSAGE] = message_id.at - requests;
        numbers[TW_ACKED_MESSAGE + 1] = message_id.at - requests + (int64_t)message_id.bytes;
        numbers[TW_ACKED_HANDLE] = handle.at - requests;
        numbers[TW_ACKED_HANDLE + 1] = handle.at - requests + (int64_t)handle.bytes;
        numbers[TW_ACKED_IS_USUAL] = 1;
    }
}

uint64_t tw_wire_acked(
    const uint8_t *requests, const int64_t *numbers, uint64_t count, uint8_t *out, uint64_t capacity, uint64_t *ends
) {
    uint64_t used = 0;
    for (uint64_t i = 0; i < count; i++, numbers += TW_ACKED_NUMBERS) {
        uint8_t *end = out + capacity;
        stack    to = {out + used, end, 0};
        int64_t  id_at = numbers[TW_ACKED_MESSAGE], handle_at = numbers[TW_ACKED_HANDLE];
        push_ok(&to, 3);
        push_bytes(&to, 2, requests + handle_at, (uint64_t)(numbers[TW_ACKED_HANDLE + 1] - handle_at));
        if (numbers[TW_ACKED_MESSAGE + 1] > id_at)
            push_bytes(&to, 1, requests + id_at, (uint64_t)(numbers[TW_ACKED_MESSAGE + 1] - id_at));
        close_part(&to, 2, end);
        push_ok(&to, 1);
        if (to.is_full) return i;
        used += settle(&to, out + used, end);
        ends[i] = used;
    }
    return count;
}

/* -- ReceiveMessage -- */

static const uint32_t md5_sines[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501, 0x698098d8, 0x8b44f7af, 0xffff5bb1,
    0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821, 0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453,
    0xd8a1e681, 0xe7d3fbc8, 0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a, 0xfffa3942,
    0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70, 0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05,
    0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665, 0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d,
    0x85845dd1, 0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
};
static const uint8_t md5_turns[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

static void md5_block(uint32_t state[4], const uint8_t *block) {
    uint32_t words[16], a = state[0], b = state[1], c = state[2], d = state[3];
    for (int i = 0; i < 16; i++)
        words[i] = (uint32_t)block[4 * i] | (uint32_t)block[4 * i + 1] << 8 | (uint32_t)block[4 * i + 2] << 16 |
                   (uint32_t)block[4 * i + 3] << 24;
#define MD5_ROUND(round, mix, place)                                            \
    for (int i = 0; i < 16; i++) {                                              \
        uint32_t sum = a + (mix) + md5_sines[16 * (round) + i] + words[place];  \
        int      turn = md5_turns[round][i & 3];                                \
        a = d, d = c, c = b;                                                    \
        b += sum << turn | sum >> (32 - turn);                                  \
    }
    MD5_ROUND(0, (b & c) | (~b & d), i)
    MD5_ROUND(1, (d & b) | (~d & c), (5 * i + 1) & 15)
    MD5_ROUND(2, b ^ c ^ d, (3 * i + 5) & 15)
    MD5_ROUND(3, c ^ (b | ~d), (7 * i) & 15)
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
}

/* The digest in upper-case hex. */
static void md5_text(span body, uint8_t text[32]) {
    uint32_t state[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
    uint8_t  last[128] = {0};
    uint64_t whole = body.bytes & ~(uint64_t)63, rest = body.bytes - whole, padded = rest < 56 ? 64 : 128;
    for (uint64_t i = 0; i < whole; i += 64) md5_block(state, body.at + i);
    if (rest) memcpy(last, body.at + whole, rest);
    last[rest] = 0x80;
    for (int i = 0; i < 8; i++) last[padded - 8 + (uint64_t)i] = (uint8_t)(body.bytes * 8 >> 8 * i);
    for (uint64_t i = 0; i < padded; i += 64) md5_block(state, last + i);
    for (int i = 0; i < 16; i++) {
        uint8_t byte = (uint8_t)(state[i / 4] >> 8 * (i % 4));
        text[2 * i] = (uint8_t)"0123456789ABCDEF"[byte >> 4];
        text[2 * i + 1] = (uint8_t)"0123456789ABCDEF"[byte & 15];
    }
}

/* Big-endian, as MessagePack has it. */
static uint64_t read_big(reader *in, uint64_t bytes) {
    uint64_t value = 0;
    if (in->is_bad || bytes > (uint64_t)(in->end - in->at)) {
        in->is_bad = 1;
        return 0;
    }
    while (bytes--) value = value << 8 | *in->at++;
    return value;
}

static span packed_text(reader *in) {
    uint64_t kind = read_big(in, 1), bytes = 0;
    if ((kind & 0xe0) == 0xa0) bytes = kind & 31;
    else if (kind == 0xd9) bytes = read_big(in, 1);
    else if (kind == 0xda) bytes = read_big(in, 2);
    else in->is_bad = 1;
    if (in->is_bad || bytes > (uint64_t)(in->end - in->at)) {
        in->is_bad = 1;
        return (span){in->end, 0};
    }
    span found = {in->at, bytes};
    in->at += bytes;
    if (!look_at(found)) in->is_bad = 1;
    return found;
}

static uint64_t packed_number(reader *in) {
    uint64_t kind = read_big(in, 1);
    if (kind < 128) return kind;
    if (kind < 0xcc || kind > 0xcf) in->is_bad = 1;
    return in->is_bad ? 0 : read_big(in, UINT64_C(1) << (kind - 0xcc));
}

static int64_t packed_signed(reader *in) {
    uint64_t value = packed_number(in);
    if (value > INT64_MAX) in->is_bad = 1;
    return in->is_bad ? 0 : (int64_t)value;
}

/* How many there are: of pairs in a map (`few` 0x80, `many` 0xde), or in an array (0x90, 0xdc). */
static uint64_t packed_count(reader *in, uint64_t few, uint64_t many) {
    uint64_t kind = read_big(in, 1);
    if ((kind & 0xf0) == few) return kind & 15;
    if (kind == many) return read_big(in, 2);
    in->is_bad = 1;
    return 0;
}

/* The header with what Tickwheel has no place for. */
static void read_own(reader *in, message *one) {
    enum { ID = 1, HOST = 2, TAG = 4, KEYS = 8, TYPE = 16, BORN = 32, ENCODING = 64, TRACE = 128, PRIO = 256, CLIENT = 512 };
    uint32_t seen = 0, is;
    for (uint64_t left = packed_count(in, 0x80, 0xde); left && !in->is_bad; left--, seen |= is) {
        span name = packed_text(in);
        is = 0;
        if (equals(name, "id")) is = ID, one->id = packed_text(in);
        else if (equals(name, "client")) is = CLIENT, packed_text(in);
        else if (equals(name, "born_host")) is = HOST, one->born_host = packed_text(in);
        else if (equals(name, "tag")) is = TAG, one->tag = packed_text(in);
        else if (equals(name, "type")) is = TYPE, one->type = packed_number(in);
        else if (equals(name, "born_ms")) is = BORN, one->born_ms = packed_signed(in);
        else if (equals(name, "encoding")) is = ENCODING, one->encoding = packed_number(in);
        else if (equals(name, "trace")) is = TRACE, one->trace = packed_text(in);
        else if (equals(name, "priority")) is = PRIO, one->priority = packed_signed(in);
        else if (equals(name, "keys")) {
            is = KEYS;
            for (uint64_t keys = packed_count(in, 0x90, 0xdc); keys && !in->is_bad; keys--) {
                if (one->key_count == MOST_SEVERAL) in->is_bad = 1;
                else one->keys[one->key_count++] = packed_text(in);
            }
        }
        if (!is || seen & is) in->is_bad = 1;
    }
}

static int read_headers(span headers, message *one) {
    reader in = read_in(headers);
    int    has_own = 0;
    for (uint64_t left = packed_count(&in, 0x80, 0xde); left && !in.is_bad; left--) {
        span name = packed_text(&in);
        if (equals(name, "rocketmq") && !has_own) {
            has_own = 1;
            read_own(&in, one);
        } else if (equals(name, "rocketmq") || one->properties == MOST_SEVERAL) {
            return 0;
        } else {
            one->names[one->properties] = name;
            one->values[one->properties++] = packed_text(&in);
        }
    }
    if (in.is_bad || in.at != in.end || !has_own || !one->id.bytes || one->type == TRANSACTION) return 0;
    return one->encoding <= INT32_MAX && one->priority <= INT32_MAX && one->born_ms <= MAX_SECONDS * 1000 && names_differ(one);
}

/* What a delivery has beside the message. */
typedef struct {
    uint64_t id, epoch, attempt, number, group_id;
    int64_t  created_ms;
} delivered;

static void push_system(stack *out, const message *one, const delivered *as, const tw_receiver *receiver) {
    uint8_t        digest[32];
    const uint8_t *end = out->at, *part;
    int            is_scheduled = one->deliver_at_ms > as->created_ms;
    if (one->priority >= 0) push_number(out, 22, (uint64_t)one->priority);
    if (one->trace.bytes) push_span(out, 18, one->trace);
    if (one->has_group) push_span(out, 17, one->group);
    push_number(out, 16, as->attempt);
    push_time(out, 15, receiver->invisible_ms);
    push_number(out, 14, as->id);
    part = out->at;
    push_text_number(out, as->number);
    push(out, ".", 1);
    push_text_number(out, receiver->until_ms);
    push(out, ".", 1);
    push_text_number(out, as->epoch);
    push(out, ".", 1);
    push_text_number(out, as->id);
    push(out, ".", 1);
    push_text_number(out, as->group_id);
    push(out, "tw1.", 4);
    close_part(out, 12, part);
    if (is_scheduled) push_time(out, 11, one->deliver_at_ms);
    push_bytes(out, 10, receiver->store_host, receiver->store_host_bytes);
    push_time(out, 9, as->created_ms);
    if (one->born_host.bytes) push_span(out, 8, one->born_host);
    push_time(out, 7, one->born_ms ? one->born_ms : as->created_ms);
    push_number(out, 6, is_scheduled ? DELAY : one->has_group ? FIFO : one->priority >= 0 ? PRIORITY : NORMAL);
    push_number(out, 5, one->encoding ? one->encoding : IDENTITY);
    md5_text(one->body, digest);
    part = out->at;
    push_bytes(out, 2, digest, sizeof digest);
    push_number(out, 1, MD5);
    close_part(out, 4, part);
    push_span(out, 3, one->id);
    for (uint32_t i = one->key_count; i--;) push_span(out, 2, one->keys[i]);
    if (one->tag.bytes) push_span(out, 1, one->tag);
    close_part(out, 3, end);
}

static void push_property(stack *out, span name, span value) {
    const uint8_t *end = out->at;
    push_span(out, 2, value);
    push_span(out, 1, name);
    close_part(out, 2, end);
}

static void push_given(stack *out, const message *one, const delivered *as, const tw_receiver *receiver) {
    static const char sharding[] = "__SHARDINGKEY";
    const uint8_t    *end = out->at;
    push_span(out, 4, one->body);
    push_system(out, one, as, receiver);
    if (one->has_group) push_property(out, (span){(const uint8_t *)sharding, sizeof sharding - 1}, one->group);
    for (uint32_t i = one->properties; i--;) push_property(out, one->names[i], one->values[i]);
    push_bytes(out, 1, receiver->topic, receiver->topic_bytes);
    close_part(out, 2, end);
}

static uint64_t little(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    while (bytes--) value = value << 8 | at[bytes];
    return value;
}

uint64_t tw_wire_given(
    const uint8_t *payload, uint64_t bytes, const uint16_t *attempts, uint64_t count, const tw_receiver *receiver,
    int64_t *numbers, uint8_t *out, uint64_t capacity
) {
    enum { HEAD = 8, COLUMNS = 39 };
    if (bytes < HEAD || little(payload + 4, 4) != count || count > (bytes - HEAD) / COLUMNS) return 1;
    const uint8_t *ids = payload + HEAD, *due = ids + 8 * count, *created = due + 8 * count, *epochs = created + 8 * count,
                  *bodies = epochs + 4 * count, *keys = bodies + 4 * count, *headers = keys + 2 * count, *orders = headers + 2 * count;
    uint64_t at = HEAD + COLUMNS * count, used = 0, group_id = little(payload, 4);
    for (uint64_t i = 0; i < count; i++, numbers += TW_GIVEN_NUMBERS) {
        uint64_t key_bytes = little(keys + 2 * i, 2), headers_bytes = little(headers + 2 * i, 2),
                 order_bytes = little(orders + 2 * i, 2), body_bytes = little(bodies + 4 * i, 4);
        if (key_bytes + headers_bytes + order_bytes + body_bytes > bytes - at) return 1;
        message one = {.priority = -1};
        span    own = {payload + at + key_bytes, headers_bytes};
        one.group = (span){own.at + headers_bytes, order_bytes};
        one.body = (span){one.group.at + order_bytes, body_bytes};
        one.tag = (span){payload, 0};
        one.has_group = order_bytes > 0;
        one.deliver_at_ms = (int64_t)little(due + 8 * i, 8);
        at += key_bytes + headers_bytes + order_bytes + body_bytes;
        delivered as = {
            .id = little(ids + 8 * i, 8),
            .epoch = little(epochs + 4 * i, 4),
            .attempt = attempts[i],
            .number = receiver->number + i,
            .group_id = group_id,
            .created_ms = (int64_t)little(created + 8 * i, 8),
        };
        memset(numbers, 0, TW_GIVEN_NUMBERS * sizeof *numbers);
        numbers[TW_GIVEN_TAG] = -1;
        if (as.created_ms < 0 || as.id > INT64_MAX || !look_at(one.group) || !read_headers(own, &one)) continue;
        uint8_t *end = out + capacity;
        stack    to = {out + used, end, 0};
        push_given(&to, &one, &as, receiver);
        if (to.is_full) continue;
        numbers[TW_GIVEN_AT] = (int64_t)used;
        used += settle(&to, out + used, end);
        numbers[TW_GIVEN_AT + 1] = (int64_t)used;
        numbers[TW_GIVEN_IS_USUAL] = 1;
        if (one.tag.bytes) {
            numbers[TW_GIVEN_TAG] = one.tag.at - payload;
            numbers[TW_GIVEN_TAG + 1] = one.tag.at - payload + (int64_t)one.tag.bytes;
        }
    }
    return 0;
}
