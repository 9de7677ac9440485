/* What calls are answered: queues of messages, from which nghttp2 takes as much as the windows allow. */
#include "session.h"

#define FIELD(name, value)                                                                                   \
    {(uint8_t *)(name), (uint8_t *)(value), sizeof(name) - 1, sizeof(value) - 1,                             \
     NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE}

enum { MOST_FIELDS = 16 };

static const nghttp2_nv ok_head[] = {FIELD(":status", "200"), FIELD("content-type", "application/grpc")};
static const nghttp2_nv ok_end[] = {FIELD("grpc-status", "0")};
enum { HEAD_FIELDS = sizeof ok_head / sizeof *ok_head };

static void drop_piece(stream_t *stream, piece_t *before, piece_t *piece) {
    *(before ? &before->next : &stream->first) = piece->next;
    if (stream->last == piece) stream->last = before;
    stream->session->queued_bytes -= piece->size - piece->at;
    free(piece);
}

void free_pieces(stream_t *stream) {
    while (stream->first) drop_piece(stream, NULL, stream->first);
}

static int put_piece(stream_t *stream, const char *message, uint32_t bytes, int is_reported) {
    piece_t *piece = malloc(sizeof *piece + PREFIX_BYTES + bytes);
    if (!piece) return -1;
    *piece = (piece_t){.size = PREFIX_BYTES + bytes, .is_reported = is_reported};
    piece->data[0] = 0;
    for (int i = 0; i < 4; i++) piece->data[1 + i] = (char)(bytes >> (24 - 8 * i));
    if (bytes) memcpy(piece->data + PREFIX_BYTES, message, bytes);
    *(stream->last ? &stream->last->next : &stream->first) = piece;
    stream->last = piece;
    stream->session->queued_bytes += piece->size;
    return 0;
}

/* One of its messages ends in what is sent. Returns -1 when there is no memory. */
static int report(stream_t *stream) {
    area_t   *whole = &stream->session->host->whole;
    uint32_t *pairs = whole->at, pair[2] = {(uint32_t)stream->id, 1};
    if (whole->count && pairs[whole->count - 2] == pair[0]) {
        pairs[whole->count - 1]++;
        return 0;
    }
    return area_put(whole, pair, 2) ? 0 : -1;
}

static ssize_t read_pieces(nghttp2_session *nghttp2, int32_t stream_id, uint8_t *buffer, size_t bytes, uint32_t *flags,
                           nghttp2_data_source *source, void *user) {
    stream_t *stream = source->ptr;
    size_t    given = 0;
    piece_t  *piece;
    while ((piece = stream->first) && given < bytes) {
        size_t part = piece->size - piece->at;
        if (part > bytes - given) part = bytes - given;
        memcpy(buffer + given, piece->data + piece->at, part);
        given += part;
        piece->at += (uint32_t)part;
        stream->session->queued_bytes -= part;
        if (piece->at < piece->size) break;
        if (piece->is_reported && report(stream)) return NGHTTP2_ERR_CALLBACK_FAILURE;
        drop_piece(stream, NULL, piece);
    }
    if (given) stream->blocked_since = -1;
    if (!stream->first && stream->is_ending && !stream->is_finished) {
        stream->is_finished = 1;
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        if (nghttp2_submit_trailer(nghttp2, stream_id, ok_end, sizeof ok_end / sizeof *ok_end)) return NGHTTP2_ERR_CALLBACK_FAILURE;
    } else if (!given) {
        stream->is_idle = 1;
        return NGHTTP2_ERR_DEFERRED;
    }
    return (ssize_t)given;
}

static int begin_answer(stream_t *stream) {
    nghttp2_session *nghttp2 = stream->session->nghttp2;
    if (stream->is_head_sent) {
        if (!stream->is_idle) return 0;
        stream->is_idle = 0;
        return nghttp2_session_resume_data(nghttp2, stream->id) == NGHTTP2_ERR_NOMEM ? -1 : 0;
    }
    nghttp2_data_provider source = {.source.ptr = stream, .read_callback = read_pieces};
    stream->is_head_sent = 1;
    return nghttp2_submit_response(nghttp2, stream->id, ok_head, HEAD_FIELDS, &source) == NGHTTP2_ERR_NOMEM ? -1 : 0;
}

static stream_t *open_stream(session_t *session, uint32_t stream_id) {
    stream_t *stream = stream_of(session, stream_id);
    return stream && !stream->is_over && !stream->is_finished ? stream : NULL;
}

static int no_memory(session_t *session) {
    session->is_dead = session->has_ended = 1;
    return -1;
}

int tw_http2_reply(void *handle, const uint32_t *stream_ids, const uint32_t *sizes, uint32_t count, const char *messages, uint64_t bytes) {
    session_t *session = handle;
    for (uint32_t i = 0; i < count; i++) {
        if (sizes[i] > bytes) return -1;
        stream_t *stream = open_stream(session, stream_ids[i]);
        if (stream && !stream->is_ending) {
            stream->is_ending = 1;
            if (put_piece(stream, messages, sizes[i], 0) || begin_answer(stream)) return no_memory(session);
        }
        messages += sizes[i];
        bytes -= sizes[i];
    }
    return 0;
}

int tw_http2_send(void *handle, uint32_t stream_id, const char *message, uint64_t bytes) {
    session_t *session = handle;
    stream_t  *stream = open_stream(session, stream_id);
    if (!stream || stream->is_ending) return 0;
    if (bytes > UINT32_MAX - PREFIX_BYTES) return -1;
    return put_piece(stream, message, (uint32_t)bytes, 1) || begin_answer(stream) ? no_memory(session) : 0;
}

/* The head of the answer may be all of it. Without window for what waits, its end does not wait either. */
static int submit_end(stream_t *stream, const nghttp2_nv *fields, size_t count, int is_head) {
    nghttp2_session *nghttp2 = stream->session->nghttp2;
    int              result;
    stream->is_ending = stream->is_finished = 1;
    if (stream->is_head_sent) {
        result = nghttp2_submit_trailer(nghttp2, stream->id, fields, count);
    } else {
        nghttp2_nv all[HEAD_FIELDS + MOST_FIELDS];
        size_t     head = is_head ? 0 : HEAD_FIELDS;
        memcpy(all, ok_head, head * sizeof *all);
        memcpy(all + head, fields, count * sizeof *all);
        stream->is_head_sent = 1;
        result = nghttp2_submit_response(nghttp2, stream->id, all, head + count, NULL);
    }
    return result == NGHTTP2_ERR_NOMEM ? no_memory(stream->session) : 0;
}

int tw_http2_finish(void *handle, uint32_t stream_id) {
    stream_t *stream = open_stream(handle, stream_id);
    if (!stream || stream->is_ending) return 0;
    if (!stream->first) return submit_end(stream, ok_end, sizeof ok_end / sizeof *ok_end, 0);
    stream->is_ending = 1;
    return 0;
}

uint32_t tw_http2_take_back(void *handle, uint32_t stream_id, uint32_t at, uint32_t count, int reopen) {
    stream_t *stream = open_stream(handle, stream_id);
    uint32_t  dropped = 0;
    if (!stream) return 0;
    piece_t *before = NULL, *piece = stream->first, *next;
    for (uint32_t i = 0; piece && dropped < count; i++, piece = next) {
        next = piece->next;
        if (i < at || piece->at) {
            if (i >= at) count--;
            before = piece;
        } else {
            drop_piece(stream, before, piece);
            dropped++;
        }
    }
    if (dropped && reopen) stream->is_ending = 0;
    return dropped;
}

static size_t split(const char *text, uint64_t bytes, nghttp2_nv *fields) {
    const char *end = text + bytes;
    size_t      count = 0;
    while (text < end && count < MOST_FIELDS) {
        size_t name = strnlen(text, (size_t)(end - text));
        if (name + 1 >= (size_t)(end - text)) break;
        const char *value = text + name + 1;
        size_t      size = strnlen(value, (size_t)(end - value));
        fields[count++] = (nghttp2_nv){(uint8_t *)text, (uint8_t *)value, name, size, NGHTTP2_NV_FLAG_NONE};
        text = value + size + (value + size < end);
    }
    return count;
}

int tw_http2_end(void *handle, uint32_t stream_id, const char *headers, uint64_t bytes, int is_head) {
    session_t *session = handle;
    stream_t  *stream = open_stream(session, stream_id);
    nghttp2_nv fields[MOST_FIELDS];
    if (!stream) return 0;
    tw_http2_take_back(session, stream_id, 0, UINT32_MAX, 0);
    if (!stream->first) return submit_end(stream, fields, split(headers, bytes, fields), is_head);
    stream->is_over = 1;
    session->active--;
    free_pieces(stream);
    return nghttp2_submit_rst_stream(session->nghttp2, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_CANCEL) ? no_memory(session) : 1;
}

void sent_frame(session_t *session, const nghttp2_frame *frame) {
    if (frame->hd.type == NGHTTP2_GOAWAY) session->has_ended = 1; /* ours are not nghttp2's */
    if (frame->hd.type != NGHTTP2_HEADERS || !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM)) return;
    stream_t *stream = stream_of(session, (uint32_t)frame->hd.stream_id);
    if (!stream || stream->is_over) return;
    uint32_t id = (uint32_t)stream->id;
    stream->is_over = 1;
    session->active--;
    if (!area_put(&session->host->over, &id, 1)) no_memory(session);
    if (!stream->has_all && nghttp2_submit_rst_stream(session->nghttp2, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_NO_ERROR)) no_memory(session);
}

void tw_http2_took(void *handle, uint32_t stream_id) {
    session_t *session = handle;
    stream_t  *stream = stream_of(session, stream_id);
    if (!stream || !stream->untaken || --stream->untaken || stream->has_all || stream->is_over) return;
    uint32_t bytes = stream->unconsumed;
    stream->unconsumed = 0;
    if (nghttp2_session_consume_stream(session->nghttp2, stream->id, bytes) == NGHTTP2_ERR_NOMEM) no_memory(session);
}
