/* Sessions, what their peers must not do, and bytes in and out. */
#ifdef __APPLE__
#include <malloc/malloc.h>
#define malloc_usable_size malloc_size
#else
#include <malloc.h>
#endif
#include <sys/mman.h>
#include "session.h"

/* Newer libraries, and older ones of distributions that keep them safe, have limits of their own that are stricter than ours. */
extern void nghttp2_option_set_stream_reset_rate_limit(nghttp2_option *, uint64_t, uint64_t) __attribute__((weak));
extern void nghttp2_option_set_max_continuations(nghttp2_option *, size_t) __attribute__((weak));

#define LARGE_BYTES 16384
#define SPARE_BYTES 64
/* Answers have three different fields, seldom a text. A session has room for the most entries from its beginning. */
#define ANSWERS_TABLE_BYTES 512

/* Memory of nghttp2: counted, and not more than the limit. Large blocks have pages of their own: each session has a buffer for a
 * whole frame and mostly writes short ones, so that most of its pages are never there. How large another block is the system
 * knows, so that it does not stand before it: header tables are hundreds of small blocks. */

static large_t **large_of(session_t *session, const void *block) {
    large_t **at = &session->large;
    while (*at && (*at)->at != block) at = &(*at)->next;
    return at;
}

static size_t size_of(session_t *session, void *block) {
    const large_t *large = *large_of(session, block);
    return large ? large->bytes : malloc_usable_size(block);
}

static void *get_large(session_t *session, size_t bytes) {
    large_t *large = malloc(sizeof *large);
    if (!large) return NULL;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        free(large);
        return NULL;
    }
#ifdef MADV_NOHUGEPAGE
    madvise(at, bytes, MADV_NOHUGEPAGE);
#endif
    *large = (large_t){.next = session->large, .at = at, .bytes = bytes};
    session->large = large;
    return at;
}

/* A block may be a little larger than it was asked to be. */
static int has_room(const session_t *session, size_t more) {
    uint64_t most = session->host->limits.memory_bytes, taken = session->memory_bytes + SPARE_BYTES;
    return taken <= most && more <= most - taken;
}

static void *give(size_t bytes, void *user) {
    session_t *session = user;
    if (!has_room(session, bytes)) return NULL;
    void *block = bytes < LARGE_BYTES ? malloc(bytes) : get_large(session, bytes);
    if (block) session->memory_bytes += size_of(session, block);
    return block;
}

static void take(void *block, void *user) {
    session_t *session = user;
    if (!block) return;
    large_t **at = large_of(session, block), *large = *at;
    if (!large) {
        session->memory_bytes -= malloc_usable_size(block);
        free(block);
        return;
    }
    *at = large->next;
    session->memory_bytes -= large->bytes;
    munmap(block, large->bytes);
    free(large);
}

static void *give_zeros(size_t count, size_t each, void *user) {
    if (each && count > SIZE_MAX / each) return NULL;
    void *block = give(count * each, user);
    return block ? memset(block, 0, count * each) : NULL;
}

static void *give_more(void *block, size_t bytes, void *user) {
    session_t *session = user;
    if (!block) return give(bytes, user);
    size_t before = size_of(session, block);
    if (bytes < LARGE_BYTES && before < LARGE_BYTES) {
        if (bytes > before && !has_room(session, bytes - before)) return NULL;
        void *moved = realloc(block, bytes);
        if (moved) session->memory_bytes += malloc_usable_size(moved) - before;
        return moved;
    }
    void *moved = give(bytes, user);
    if (!moved) return NULL;
    memcpy(moved, block, before < bytes ? before : bytes);
    take(block, user);
    return moved;
}

/* What the peer must not do. */

static int count_answers(session_t *session, uint32_t count) {
    session->answers += count;
    return session->answers > session->host->limits.control_answers ? fail(session, TW_HTTP2_ABUSE_ANSWERS) : 0;
}

/* Also of those that nghttp2 itself sends, when the peer breaks the rules of a stream. They end the session with what is fed next. */
static void count_reset(session_t *session) {
    if (session->now - session->second >= 1.0) {
        session->second = session->now;
        session->resets = 0;
    }
    if (++session->resets > session->host->limits.resets_a_second) fail(session, TW_HTTP2_ABUSE_RESETS);
}

static int count_block(session_t *session, size_t bytes, int is_first) {
    const tw_http2_limits *limits = &session->host->limits;
    if (is_first) session->block_bytes = session->parts = 0;
    session->block_bytes += (uint32_t)bytes;
    if (session->block_bytes > limits->header_block_bytes || ++session->parts > limits->header_parts)
        return fail(session, TW_HTTP2_ABUSE_HEADER_BLOCK);
    return 0;
}

static int on_begin_frame(nghttp2_session *nghttp2, const nghttp2_frame_hd *head, void *user) {
    session_t *session = user;
    switch (head->type) {
    case NGHTTP2_HEADERS:
        if (!(head->flags & NGHTTP2_FLAG_END_HEADERS)) return count_block(session, head->length, 1);
        return 0;
    case NGHTTP2_CONTINUATION:
        return count_block(session, head->length, 0);
    case NGHTTP2_SETTINGS:
        return head->flags & NGHTTP2_FLAG_ACK ? 0 : count_answers(session, session->host->limits.settings_weight);
    default:
        return 0;
    }
}

/* Streams. */

static void unlink_stream(stream_t *stream) {
    session_t *session = stream->session;
    forget_due(stream);
    *(stream->before ? &stream->before->next : &session->streams) = stream->next;
    if (stream->next) stream->next->before = stream->before;
}

static void free_stream(stream_t *stream) {
    unlink_stream(stream);
    count_partial(stream, 0);
    free_pieces(stream);
    free(stream->body);
    free(stream->encoding);
    free(stream);
}

static int on_begin_headers(nghttp2_session *nghttp2, const nghttp2_frame *frame, void *user) {
    session_t *session = user;
    begin_head(session);
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    uint32_t id = (uint32_t)frame->hd.stream_id;
    session->last_stream = id;
    if (id > session->refuse_after || session->active >= session->host->limits.streams) {
        if (nghttp2_submit_rst_stream(nghttp2, NGHTTP2_FLAG_NONE, (int32_t)id, NGHTTP2_REFUSED_STREAM))
            return fail(session, TW_HTTP2_NO_MEMORY);
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    stream_t *stream = calloc(1, sizeof *stream);
    if (!stream) return fail(session, TW_HTTP2_NO_MEMORY);
    stream->session = session;
    stream->id = (int32_t)id;
    stream->method = -1;
    stream->seconds = stream->blocked_since = -1;
    stream->next = session->streams;
    if (stream->next) stream->next->before = stream;
    session->streams = stream;
    session->active++;
    nghttp2_session_set_stream_user_data(nghttp2, stream->id, stream);
    return 0;
}

static int on_header(nghttp2_session *nghttp2, const nghttp2_frame *frame, const uint8_t *name, size_t name_bytes,
                     const uint8_t *value, size_t value_bytes, uint8_t flags, void *user) {
    session_t *session = user;
    uint64_t   bytes = (uint64_t)session->block.list_bytes + name_bytes + value_bytes + 32;
    if (bytes > session->host->limits.header_block_bytes) return fail(session, TW_HTTP2_ABUSE_HEADER_LIST);
    session->block.list_bytes = (uint32_t)bytes;
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    stream_t *stream = stream_of(session, (uint32_t)frame->hd.stream_id);
    if (!stream) return 0;
    return take_field(session, stream, name, name_bytes, value, value_bytes) ? fail(session, TW_HTTP2_NO_MEMORY) : 0;
}

static int on_data(nghttp2_session *nghttp2, uint8_t flags, int32_t stream_id, const uint8_t *data, size_t bytes, void *user) {
    session_t *session = user;
    stream_t  *stream = stream_of(session, (uint32_t)stream_id);
    if (nghttp2_session_consume_connection(nghttp2, bytes)) return fail(session, TW_HTTP2_NO_MEMORY);
    if (!stream || stream->is_judged || stream->is_over || stream->is_ending) return 0; /* what it sends is not wanted */
    if (take_data(session, stream, data, bytes)) return fail(session, TW_HTTP2_NO_MEMORY);
    stream->unconsumed += (uint32_t)bytes;
    if (stream->untaken || stream->is_judged || flags & NGHTTP2_FLAG_END_STREAM) return 0;
    bytes = stream->unconsumed;
    stream->unconsumed = 0;
    return nghttp2_session_consume_stream(nghttp2, stream_id, bytes) == NGHTTP2_ERR_NOMEM ? fail(session, TW_HTTP2_NO_MEMORY) : 0;
}

static int on_frame(nghttp2_session *nghttp2, const nghttp2_frame *frame, void *user) {
    session_t *session = user;
    stream_t  *stream;
    int        is_last = 0;
    switch (frame->hd.type) {
    case NGHTTP2_DATA:
        is_last = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
        if (!is_last && frame->hd.length <= frame->data.padlen && ++session->empty > session->host->limits.empty_frames)
            return fail(session, TW_HTTP2_ABUSE_EMPTY);
        break;
    case NGHTTP2_HEADERS:
        is_last = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
        if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) break;
        stream = stream_of(session, (uint32_t)frame->hd.stream_id);
        if (stream && end_head(session, stream)) return fail(session, TW_HTTP2_NO_MEMORY);
        break;
    case NGHTTP2_GOAWAY:
        return tell(session, TW_HTTP2_LEAVING, NULL) ? 0 : fail(session, TW_HTTP2_NO_MEMORY);
    case NGHTTP2_PING:
        if (!(frame->hd.flags & NGHTTP2_FLAG_ACK) || memcmp(frame->ping.opaque_data, session->farewell, 8)) return 0;
        return tell(session, TW_HTTP2_FAREWELL, NULL) ? 0 : fail(session, TW_HTTP2_NO_MEMORY);
    default:
        return 0;
    }
    stream = is_last ? stream_of(session, (uint32_t)frame->hd.stream_id) : NULL;
    return stream && end_request(session, stream) ? fail(session, TW_HTTP2_NO_MEMORY) : 0;
}

static int on_stream_close(nghttp2_session *nghttp2, int32_t stream_id, uint32_t code, void *user) {
    session_t *session = user;
    stream_t  *stream = stream_of(session, (uint32_t)stream_id);
    if (!stream) return 0;
    nghttp2_session_set_stream_user_data(nghttp2, stream_id, NULL);
    if (!stream->is_over) { /* it was reset, and not by us */
        session->active--;
        count_reset(session);
        /* Of one whose head is not whole there is nothing to tell. */
        if (!stream->is_told && !stream->is_judged && stream->is_due) stream->is_told = tell(session, TW_HTTP2_BEGAN, stream) != NULL;
        if (stream->is_told || stream->is_judged) tell(session, TW_HTTP2_RESET, stream);
    }
    free_stream(stream);
    return 0;
}

static int on_frame_sent(nghttp2_session *nghttp2, const nghttp2_frame *frame, void *user) {
    sent_frame(user, frame);
    return 0;
}

/* Hosts. */

void tw_http2_free_host(void *handle) {
    host_t *host = handle;
    if (!host) return;
    nghttp2_session_callbacks_del(host->callbacks);
    nghttp2_option_del(host->option);
    area_t *areas[] = {&host->events, &host->arena, &host->out, &host->whole, &host->over};
    for (size_t i = 0; i < sizeof areas / sizeof *areas; i++) free(areas[i]->at);
    free(host->paths);
    free(host->path_bytes);
    free(host->path_text);
    free(host->streams);
    free(host);
}

void *tw_http2_host(const char *paths, uint64_t bytes, const char *streams, uint32_t methods, const tw_http2_limits *limits) {
    host_t *host = calloc(1, sizeof *host);
    if (!host) return NULL;
    host->limits = *limits;
    host->events.each = sizeof(tw_http2_event);
    host->arena.each = host->out.each = 1;
    host->whole.each = host->over.each = sizeof(uint32_t);
    host->paths = calloc(methods + 1, sizeof *host->paths);
    host->path_bytes = calloc(methods + 1, sizeof *host->path_bytes);
    host->path_text = calloc(1, bytes + 1);
    host->streams = calloc(1, methods + 1);
    if (!host->paths || !host->path_bytes || !host->path_text || !host->streams) goto none;
    if (nghttp2_session_callbacks_new(&host->callbacks) || nghttp2_option_new(&host->option)) goto none;
    memcpy(host->path_text, paths, bytes);
    const char *at = host->path_text, *end = host->path_text + bytes;
    for (; host->methods < methods && at < end; host->methods++) {
        size_t size = strnlen(at, (size_t)(end - at));
        host->paths[host->methods] = at;
        host->path_bytes[host->methods] = (uint32_t)size;
        host->streams[host->methods] = streams[host->methods] != 0;
        at += size + 1;
    }
    nghttp2_session_callbacks_set_on_begin_frame_callback(host->callbacks, on_begin_frame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(host->callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(host->callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(host->callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(host->callbacks, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(host->callbacks, on_stream_close);
    nghttp2_session_callbacks_set_on_frame_send_callback(host->callbacks, on_frame_sent);
    nghttp2_option_set_no_auto_window_update(host->option, 1);
    nghttp2_option_set_no_closed_streams(host->option, 1);
    nghttp2_option_set_max_deflate_dynamic_table_size(host->option, ANSWERS_TABLE_BYTES);
    nghttp2_option_set_max_outbound_ack(host->option, (size_t)limits->control_answers + 1); /* ours comes first */
    if (nghttp2_option_set_stream_reset_rate_limit) nghttp2_option_set_stream_reset_rate_limit(host->option, UINT32_MAX, UINT32_MAX);
    if (nghttp2_option_set_max_continuations) nghttp2_option_set_max_continuations(host->option, limits->header_parts);
    return host;
none:
    tw_http2_free_host(host);
    return NULL;
}

const tw_http2_counts *tw_http2_counted(const void *host) { return &((const host_t *)host)->counts; }
const tw_http2_event  *tw_http2_events(const void *host) { return ((const host_t *)host)->events.at; }
const char            *tw_http2_arena(const void *host) { return ((const host_t *)host)->arena.at; }
const char            *tw_http2_out(const void *host) { return ((const host_t *)host)->out.at; }
const uint32_t        *tw_http2_whole(const void *host) { return ((const host_t *)host)->whole.at; }
const uint32_t        *tw_http2_over(const void *host) { return ((const host_t *)host)->over.at; }

static void clear(host_t *host) {
    area_clear(&host->events, 1 << 14);
    area_clear(&host->arena, 1 << 20);
    area_clear(&host->out, 1 << 18);
    area_clear(&host->whole, 1 << 14);
    area_clear(&host->over, 1 << 14);
    host->heads = host->saved = host->head_bytes = 0;
}

static void count(host_t *host) {
    host->counts = (tw_http2_counts){.events = host->events.count, .arena_bytes = host->arena.count, .out_bytes = host->out.count,
                                     .whole = host->whole.count / 2, .over = host->over.count};
}

/* Sessions. */

void *tw_http2_open(void *handle) {
    host_t    *host = handle;
    session_t *session = calloc(1, sizeof *session);
    if (!session) return NULL;
    session->host = host;
    session->block.fields.each = 1;
    session->refuse_after = INT32_MAX;
    session->second = -1e300;
    nghttp2_mem memory = {session, give, take, give_zeros, give_more};
    if (nghttp2_session_server_new3(&session->nghttp2, host->callbacks, session, host->option, &memory)) goto none;
    const tw_http2_limits *limits = &host->limits;
    /* The first is written over before it leaves: nghttp2 would end the connection of a peer that goes beyond it, and here the
     * streams are refused one by one. */
    nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, INT32_MAX},
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits->stream_window_bytes},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, TW_HTTP2_FRAME_BYTES},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, limits->header_list_bytes},
    };
    if (nghttp2_submit_settings(session->nghttp2, NGHTTP2_FLAG_NONE, settings, sizeof settings / sizeof *settings)) goto none;
    if (nghttp2_session_set_local_window_size(session->nghttp2, NGHTTP2_FLAG_NONE, 0, (int32_t)limits->connection_window_bytes)) goto none;
    return session;
none:
    tw_http2_close(session);
    return NULL;
}

void tw_http2_close(void *handle) {
    session_t *session = handle;
    if (!session) return;
    while (session->streams) free_stream(session->streams);
    area_clear(&session->block.fields, 0);
    nghttp2_session_del(session->nghttp2);
    free(session);
}

int tw_http2_feed(void *handle, const char *data, uint64_t bytes, double now) {
    session_t *session = handle;
    host_t    *host = session->host;
    clear(host);
    count(host);
    if (session->failure) return session->failure;
    session->now = now;
    if (session->is_written) {
        session->is_written = 0;
        session->answers = 0;
    }
    session->is_crowded = session->queued_bytes >= host->limits.pending_bytes;
    size_t  waiting = nghttp2_session_get_outbound_queue_size(session->nghttp2);
    ssize_t taken = nghttp2_session_mem_recv(session->nghttp2, (const uint8_t *)data, bytes);
    if (tell_due(session)) fail(session, TW_HTTP2_NO_MEMORY);
    count(host);
    if (!session->failure && taken < 0) {
        session->failure = taken == NGHTTP2_ERR_BAD_CLIENT_MAGIC            ? TW_HTTP2_NO_HTTP2
                           : taken == NGHTTP2_ERR_NOMEM                     ? TW_HTTP2_NO_MEMORY
                           : taken == NGHTTP2_ERR_FLOODED                   ? TW_HTTP2_ABUSE_ANSWERS
                                                                            : TW_HTTP2_BROKEN;
    }
    if (session->failure == TW_HTTP2_NO_MEMORY) session->is_dead = 1;
    if (session->failure) return session->failure;
    /* What it is to say now: acks, and resets. */
    size_t more = nghttp2_session_get_outbound_queue_size(session->nghttp2);
    return more > waiting && count_answers(session, (uint32_t)(more - waiting)) ? session->failure : 0;
}

int tw_http2_farewell(void *handle, const char *eight_bytes) {
    session_t *session = handle;
    memcpy(session->farewell, eight_bytes, 8);
    return nghttp2_submit_ping(session->nghttp2, NGHTTP2_FLAG_NONE, (const uint8_t *)eight_bytes) ? -1 : 0;
}

/* Says the number of streams that is really served: see tw_http2_open. */
static void correct_settings(session_t *session, uint8_t *frame, size_t bytes) {
    enum { HEAD = 9, NUMBER = 2 };
    uint32_t streams = session->host->limits.streams;
    session->said_settings = 1;
    if (bytes < HEAD + 6 || frame[3] != NGHTTP2_SETTINGS || frame[HEAD + 1] != NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS) return;
    for (int i = 0; i < 4; i++) frame[HEAD + NUMBER + i] = (uint8_t)(streams >> (24 - 8 * i));
}

int tw_http2_drain(void *handle) {
    session_t *session = handle;
    host_t    *host = session->host;
    int        is_open_block = 0;
    clear(host);
    while (!session->is_dead && (host->out.count < TW_HTTP2_SEND_BYTES || is_open_block)) {
        const uint8_t *data;
        ssize_t        bytes = nghttp2_session_mem_send(session->nghttp2, &data);
        if (bytes == 0) break;
        if (bytes < 0 || !area_put(&host->out, data, (size_t)bytes)) {
            session->is_dead = session->has_ended = 1;
            break;
        }
        if (!session->said_settings) correct_settings(session, (uint8_t *)host->out.at, (size_t)bytes);
        if (bytes >= 9 && (data[3] == NGHTTP2_HEADERS || data[3] == NGHTTP2_CONTINUATION)) is_open_block = !(data[4] & NGHTTP2_FLAG_END_HEADERS);
    }
    if (host->out.count) session->is_written = 1;
    count(host);
    return session->is_dead ? TW_HTTP2_NO_MEMORY : 0;
}

void tw_http2_refuse_after(void *handle, uint32_t stream_id) { ((session_t *)handle)->refuse_after = stream_id; }

uint32_t tw_http2_last_stream(const void *handle) { return ((const session_t *)handle)->last_stream; }
int      tw_http2_has_ended(const void *handle) { return ((const session_t *)handle)->has_ended; }
uint64_t tw_http2_queued_bytes(const void *handle) { return ((const session_t *)handle)->queued_bytes; }
uint64_t tw_http2_partial_bytes(const void *handle) { return ((const session_t *)handle)->partial_bytes; }
uint64_t tw_http2_memory_bytes(const void *handle) { return ((const session_t *)handle)->memory_bytes; }

int tw_http2_may_send(void *handle) {
    session_t *session = handle;
    return session->has_ended || session->is_dead || nghttp2_session_want_write(session->nghttp2);
}

uint64_t tw_http2_unwritten_bytes(const void *handle) {
    const session_t *session = handle;
    return session->queued_bytes + 256 * nghttp2_session_get_outbound_queue_size(session->nghttp2);
}

double tw_http2_blocked_since(void *handle, double now) {
    session_t *session = handle;
    double     found = -1;
    int        is_shut = nghttp2_session_get_remote_window_size(session->nghttp2) <= 0;
    for (stream_t *stream = session->streams; stream; stream = stream->next) {
        if (!stream->first) continue;
        if (stream->blocked_since < 0 && (is_shut || nghttp2_session_get_stream_remote_window_size(session->nghttp2, stream->id) <= 0))
            stream->blocked_since = now;
        if (stream->blocked_since >= 0 && (found < 0 || stream->blocked_since < found)) found = stream->blocked_since;
    }
    return found;
}
