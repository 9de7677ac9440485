/* What a request says: its head, its messages, and why it may not be served. */
#include "session.h"

static int is(const uint8_t *text, size_t bytes, const char *wanted) {
    return bytes == strlen(wanted) && !memcmp(text, wanted, bytes);
}

/* The end of a feed: some streams have something to tell then. */

void set_due(stream_t *stream) {
    session_t *session = stream->session;
    if (stream->is_due) return;
    stream->is_due = 1;
    stream->due_before = session->due_last;
    stream->due_next = NULL;
    *(session->due_last ? &session->due_last->due_next : &session->due) = stream;
    session->due_last = stream;
}

void forget_due(stream_t *stream) {
    session_t *session = stream->session;
    if (!stream->is_due) return;
    stream->is_due = 0;
    *(stream->due_before ? &stream->due_before->due_next : &session->due) = stream->due_next;
    *(stream->due_next ? &stream->due_next->due_before : &session->due_last) = stream->due_before;
}

void count_partial(stream_t *stream, uint64_t bytes) {
    stream->session->partial_bytes += bytes - stream->partial_bytes;
    stream->partial_bytes = bytes;
}

static void drop_body(stream_t *stream) {
    free(stream->body);
    stream->body = NULL;
    stream->have = stream->capacity = 0;
}

void judge(stream_t *stream, int verdict, uint32_t at, uint32_t size) {
    if (stream->is_judged) return;
    stream->is_judged = 1;
    stream->verdict = verdict;
    stream->verdict_at = at;
    stream->verdict_size = size;
    drop_body(stream);
    count_partial(stream, 0);
    set_due(stream);
}

/* Heads. */

void begin_head(session_t *session) {
    block_t *block = &session->block;
    block->fields.count = 0;
    block->list_bytes = block->path_bytes = 0;
    block->is_post = block->is_grpc = block->is_large = block->is_timeout_bad = 0;
    block->seconds = -1;
}

static void take_timeout(block_t *block, const uint8_t *value, size_t bytes) {
    static const struct { char unit; double seconds; } units[] = {{'H', 3600}, {'M', 60}, {'S', 1}, {'m', 1e-3}, {'u', 1e-6}, {'n', 1e-9}};
    double number = 0;
    size_t i = 0;
    block->seconds = -1; /* the last one counts */
    block->is_timeout_bad = 0;
    for (; i < bytes && value[i] >= '0' && value[i] <= '9'; i++) number = number * 10 + (value[i] - '0');
    if (i >= 1 && i <= 8 && i + 1 == bytes)
        for (size_t u = 0; u < sizeof units / sizeof *units; u++)
            if (units[u].unit == (char)value[i]) {
                block->seconds = number * units[u].seconds;
                return;
            }
    block->is_timeout_bad = 1;
}

static void take_path(host_t *host, stream_t *stream, const uint8_t *path, size_t bytes) {
    for (uint32_t i = 0; i < host->methods; i++)
        if (host->path_bytes[i] == bytes && !memcmp(host->paths[i], path, bytes)) {
            stream->method = (int32_t)i;
            stream->takes_stream = host->streams[i];
            return;
        }
    block_t *block = &stream->session->block;
    block->path_bytes = bytes < PATH_BYTES ? (uint32_t)bytes : PATH_BYTES;
    if (block->path_bytes) memcpy(block->path, path, block->path_bytes);
}

/* Of a compression that is neither none nor gzip; two of them are joined by a comma. */
static int take_encoding(stream_t *stream, const uint8_t *value, size_t bytes) {
    int is_first = !stream->has_encoding;
    stream->has_encoding = 1;
    if (is_first && is(value, bytes, "identity")) return 0;
    if (is_first && is(value, bytes, "gzip")) {
        stream->knows_gzip = 1;
        return 0;
    }
    const char *before = stream->encoding ? stream->encoding : is_first ? "" : stream->knows_gzip ? "gzip" : "identity";
    char       *joined = malloc(ENCODING_BYTES);
    if (!joined) return -1;
    if (bytes > ENCODING_BYTES) bytes = ENCODING_BYTES;
    snprintf(joined, ENCODING_BYTES, "%s%s%.*s", before, is_first ? "" : ",", (int)bytes, (const char *)value);
    free(stream->encoding);
    stream->encoding = joined;
    stream->knows_gzip = 0;
    return 0;
}

static int is_grpc(const uint8_t *value, size_t bytes) {
    static const char kind[] = "application/grpc";
    const size_t      length = sizeof kind - 1;
    return bytes >= length && !memcmp(value, kind, length) && (bytes == length || strchr("+; ", value[length]));
}

int take_field(session_t *session, stream_t *stream, const uint8_t *name, size_t name_bytes, const uint8_t *value, size_t value_bytes) {
    host_t  *host = session->host;
    block_t *block = &session->block;
    if (block->list_bytes > host->limits.header_list_bytes) block->is_large = 1;
    if (name[0] == ':') {
        if (is(name, name_bytes, ":method")) block->is_post = is(value, value_bytes, "POST");
        if (is(name, name_bytes, ":path")) take_path(host, stream, value, value_bytes);
        return 0;
    }
    if (is(name, name_bytes, "grpc-timeout")) {
        take_timeout(block, value, value_bytes);
        return 0;
    }
    if (is(name, name_bytes, "x-mq-request-id")) return 0; /* of this call alone */
    if (is(name, name_bytes, "content-type")) block->is_grpc = is_grpc(value, value_bytes);
    if (is(name, name_bytes, "grpc-encoding") && take_encoding(stream, value, value_bytes)) return -1;
    if (block->is_large) return 0;
    static const char zero = 0;
    return area_put(&block->fields, name, name_bytes) && area_put(&block->fields, &zero, 1) && area_put(&block->fields, value, value_bytes) &&
                   area_put(&block->fields, &zero, 1)
               ? 0
               : -1;
}

/* The number of these metadata in this feed: most calls of a client have the same. -1 when there is no memory. */
static int64_t save_head(session_t *session) {
    host_t  *host = session->host;
    area_t  *fields = &session->block.fields;
    uint32_t size = (uint32_t)fields->count;
    uint32_t saved = host->saved < SAVED_HEADS ? host->saved : SAVED_HEADS;
    for (uint32_t i = 0; i < saved; i++)
        if (host->saved_bytes[i] == size && !memcmp((char *)host->arena.at + host->saved_at[i], fields->at, size)) return host->saved_number[i];
    uint32_t slot = host->saved++ % SAVED_HEADS;
    uint32_t at = (uint32_t)host->arena.count;
    if (!area_put(&host->arena, fields->at, size)) return -1;
    tw_http2_event *event = tell(session, TW_HTTP2_HEAD, NULL);
    if (!event) return -1;
    event->at = at;
    event->size = size;
    host->saved_at[slot] = at;
    host->saved_bytes[slot] = size;
    host->head_bytes += size;
    return host->saved_number[slot] = host->heads++;
}

static int judge_head(session_t *session, stream_t *stream) {
    host_t  *host = session->host;
    block_t *block = &session->block;
    if (!block->is_post) {
        judge(stream, TW_HTTP2_NOT_POST, 0, 0);
    } else if (!block->is_grpc) {
        judge(stream, TW_HTTP2_NOT_GRPC, 0, 0);
    } else if (block->is_timeout_bad) {
        judge(stream, TW_HTTP2_BAD_TIMEOUT, 0, 0);
    } else if (block->is_large || host->head_bytes > HEADS_BYTES) {
        judge(stream, TW_HTTP2_LARGE_HEAD, 0, 0);
    } else if (stream->method < 0) {
        uint32_t at = (uint32_t)host->arena.count;
        judge(stream, TW_HTTP2_UNKNOWN_METHOD, at, area_put(&host->arena, block->path, block->path_bytes) ? block->path_bytes : 0);
    } else if (session->is_crowded) {
        judge(stream, TW_HTTP2_CROWDED, 0, 0);
    } else {
        int64_t number = save_head(session);
        if (number < 0) return -1;
        stream->head = (uint32_t)number;
        stream->seconds = block->seconds;
        if (stream->takes_stream) {
            stream->is_told = 1;
            return tell(session, TW_HTTP2_BEGAN, stream) ? 0 : -1;
        }
        set_due(stream);
        return 0;
    }
    stream->method = -1;
    return 0;
}

int end_head(session_t *session, stream_t *stream) {
    int result = judge_head(session, stream);
    area_clear(&session->block.fields, 0); /* an idle connection keeps nothing */
    return result;
}

/* Messages. */

static void judge_message(stream_t *stream, const uint8_t *prefix, uint32_t bytes) {
    host_t *host = stream->session->host;
    if (bytes > host->limits.message_bytes) {
        judge(stream, TW_HTTP2_LARGE_MESSAGE, 0, bytes);
    } else if (prefix[0] > 1) {
        judge(stream, TW_HTTP2_BAD_FLAG, 0, 0);
    } else if (prefix[0] && !stream->knows_gzip) {
        const char *encoding = stream->encoding ? stream->encoding : "identity";
        uint32_t    at = (uint32_t)host->arena.count, size = (uint32_t)strlen(encoding);
        judge(stream, TW_HTTP2_UNKNOWN_COMPRESSION, at, area_put(&host->arena, encoding, size) ? size : 0);
    }
}

static int take_message(session_t *session, stream_t *stream, const uint8_t *data, uint32_t bytes) {
    host_t *host = session->host;
    if (!stream->takes_stream && stream->has_request) {
        judge(stream, TW_HTTP2_TWO_MESSAGES, 0, 0);
        return 0;
    }
    uint32_t at = (uint32_t)host->arena.count;
    if (!area_put(&host->arena, data, bytes)) return -1;
    if (!stream->takes_stream) {
        stream->has_request = 1;
        stream->request_at = at;
        stream->need = bytes;
        stream->body_is_compressed = stream->is_compressed;
        set_due(stream);
        return 0;
    }
    tw_http2_event *event = tell(session, TW_HTTP2_MESSAGE, stream);
    if (!event) return -1;
    event->at = at;
    event->size = bytes;
    event->is_compressed = stream->is_compressed;
    stream->untaken++;
    return 0;
}

static int keep(stream_t *stream, const uint8_t *data, uint32_t bytes) {
    if (bytes > stream->capacity - stream->have) {
        uint64_t capacity = stream->capacity ? stream->capacity : 256;
        while (capacity < (uint64_t)stream->have + bytes) capacity *= 2;
        char *body = realloc(stream->body, capacity);
        if (!body) return -1;
        stream->body = body;
        stream->capacity = (uint32_t)capacity;
    }
    if (bytes) memcpy(stream->body + stream->have, data, bytes);
    stream->have += bytes;
    return 0;
}

static uint32_t length_of(const uint8_t *prefix) {
    return (uint32_t)prefix[1] << 24 | (uint32_t)prefix[2] << 16 | (uint32_t)prefix[3] << 8 | prefix[4];
}

int take_data(session_t *session, stream_t *stream, const uint8_t *data, size_t bytes) {
    while (bytes) {
        if (stream->prefix_bytes < PREFIX_BYTES) {
            size_t more = PREFIX_BYTES - stream->prefix_bytes;
            if (more > bytes) more = bytes;
            memcpy(stream->prefix + stream->prefix_bytes, data, more);
            stream->prefix_bytes += (uint8_t)more;
            data += more;
            bytes -= more;
            if (stream->prefix_bytes < PREFIX_BYTES) break;
            uint32_t length = length_of(stream->prefix);
            judge_message(stream, stream->prefix, length);
            if (!stream->is_judged && !stream->takes_stream && stream->has_request) judge(stream, TW_HTTP2_TWO_MESSAGES, 0, 0);
            if (stream->is_judged) return 0;
            stream->need = length;
            stream->is_compressed = stream->prefix[0];
        }
        uint32_t left = stream->need - stream->have;
        uint32_t part = bytes < left ? (uint32_t)bytes : left;
        if (stream->have == 0 && part == stream->need) { /* the usual case: all of it in one frame */
            if (take_message(session, stream, data, part)) return -1;
        } else {
            if (keep(stream, data, part)) return -1;
            if (stream->have < stream->need) break;
            if (take_message(session, stream, (const uint8_t *)stream->body, stream->have)) return -1;
            drop_body(stream);
        }
        if (stream->is_judged) return 0;
        stream->prefix_bytes = 0;
        data += part;
        bytes -= part;
    }
    uint64_t partial = (uint64_t)stream->prefix_bytes + stream->have;
    if (partial != stream->partial_bytes) {
        count_partial(stream, partial);
        if (session->partial_bytes > session->host->limits.pending_bytes) judge(stream, TW_HTTP2_TOO_MUCH_PARTIAL, 0, 0);
    }
    return 0;
}

int end_request(session_t *session, stream_t *stream) {
    stream->has_all = 1;
    if (stream->is_judged || stream->is_over || stream->is_ending) return 0;
    if (stream->prefix_bytes) {
        judge(stream, TW_HTTP2_HALF_MESSAGE, 0, 0);
        return 0;
    }
    if (stream->takes_stream) return tell(session, TW_HTTP2_ENDED, stream) ? 0 : -1;
    if (!stream->has_request) {
        judge(stream, TW_HTTP2_NO_MESSAGE, 0, 0);
        return 0;
    }
    if (stream->body) { /* it was whole before this feed */
        uint32_t at = (uint32_t)session->host->arena.count;
        if (!area_put(&session->host->arena, stream->body, stream->have)) return -1;
        stream->request_at = at;
        stream->need = stream->have;
        drop_body(stream);
    }
    count_partial(stream, 0);
    forget_due(stream);
    tw_http2_event *event = tell(session, stream->is_told ? TW_HTTP2_WHOLE : TW_HTTP2_ASKED, stream);
    if (!event) return -1;
    event->at = stream->request_at;
    event->size = stream->need;
    event->is_compressed = stream->body_is_compressed;
    stream->is_told = 1;
    return 0;
}

static int tell_verdict(session_t *session, stream_t *stream) {
    tw_http2_event *event = tell(session, TW_HTTP2_JUDGED, stream);
    if (!event) return -1;
    event->value = stream->verdict;
    event->at = stream->verdict_at;
    event->size = stream->verdict_size;
    return 0;
}

int tell_due(session_t *session) {
    stream_t *stream;
    while ((stream = session->due)) {
        forget_due(stream);
        if (stream->is_over) continue;
        if (stream->is_judged) {
            if (tell_verdict(session, stream)) return -1;
            continue;
        }
        if (!stream->is_told) {
            stream->is_told = 1;
            if (!tell(session, TW_HTTP2_BEGAN, stream)) return -1;
        }
        if (stream->has_request && !stream->body) { /* it stays until its end comes */
            const char *arena = session->host->arena.at;
            if (keep(stream, (const uint8_t *)arena + stream->request_at, stream->need)) return -1;
            if (!stream->body && !(stream->body = malloc(1))) return -1;
            count_partial(stream, PREFIX_BYTES + stream->have);
        }
    }
    return 0;
}
