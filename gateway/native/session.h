/* What the sources share, and Python does not see. */
#ifndef TICKWHEEL_SESSION_H
#define TICKWHEEL_SESSION_H
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <nghttp2/nghttp2.h>
#include "http2.h"

enum {
    PREFIX_BYTES = 5,
    PATH_BYTES = 200,    /* as much is told of a path */
    ENCODING_BYTES = 64, /* of a compression that is not known, for the text */
    SAVED_HEADS = 8,     /* those of one read that are looked at for equal ones */
};
#define HEADS_BYTES (4u << 20) /* metadata of one read, together: HPACK makes much of little */

typedef struct piece {
    struct piece *next;
    uint32_t      size, at;
    int           is_reported;
    char          data[];
} piece_t;

typedef struct session session_t;

/* A block of memory with pages of its own. */
typedef struct large {
    struct large *next;
    void         *at;
    size_t        bytes;
} large_t;

typedef struct stream {
    struct stream *next, *before;       /* of the session */
    struct stream *due_next, *due_before; /* those with something to tell at the end of a feed */
    session_t     *session;
    int32_t        id;
    int32_t        method; /* -1: none */
    uint32_t       head;
    double         seconds;
    /* The request. */
    uint8_t  prefix[PREFIX_BYTES];
    uint8_t  prefix_bytes;
    uint8_t  is_compressed, body_is_compressed;
    uint8_t  is_due, is_told, is_judged, is_over, has_request, has_all, knows_gzip, has_encoding;
    uint8_t  takes_stream;
    int      verdict;
    uint32_t verdict_at, verdict_size;
    char    *encoding; /* NULL: identity or gzip */
    char    *body;     /* of a message that is not whole, or of a request without its end */
    uint32_t need, have, capacity;
    uint32_t request_at; /* in the arena, within one feed */
    uint64_t partial_bytes;
    uint32_t untaken, unconsumed;
    /* The answer. */
    piece_t *first, *last;
    uint32_t whole;
    uint8_t  is_head_sent, is_ending, is_finished, is_idle; /* finished: its trailers are with nghttp2; idle: nghttp2 waits for data */
    double   blocked_since;
} stream_t;

typedef struct {
    void  *at;
    size_t count, capacity, each;
} area_t;

typedef struct {
    tw_http2_limits  limits;
    tw_http2_counts  counts;
    area_t           events, arena, out, whole, over;
    nghttp2_session_callbacks *callbacks;
    nghttp2_option  *option;
    uint32_t         methods;
    const char     **paths;
    uint32_t        *path_bytes;
    char            *path_text;
    uint8_t         *streams;
    /* Within one feed. */
    uint32_t heads, saved;
    uint32_t saved_at[SAVED_HEADS], saved_bytes[SAVED_HEADS], saved_number[SAVED_HEADS];
    uint32_t head_bytes;
} host_t;

/* The header block that a session is reading. It may come in several feeds, with those of others between. */
typedef struct {
    area_t   fields; /* what goes into the metadata */
    uint32_t list_bytes;
    uint8_t  is_post, is_grpc, is_large, is_timeout_bad;
    double   seconds;
    uint32_t path_bytes; /* of one that is no method's */
    char     path[PATH_BYTES];
} block_t;

struct session {
    host_t          *host;
    block_t          block;
    nghttp2_session *nghttp2;
    stream_t        *streams, *due, *due_last;
    large_t         *large;
    uint32_t         active;
    uint32_t         last_stream, refuse_after;
    uint64_t         memory_bytes, queued_bytes, partial_bytes;
    double           now, second;
    uint32_t         resets, answers, empty, block_bytes, parts;
    int              failure; /* why a callback ended it */
    uint8_t          is_written, said_settings, has_ended, is_dead, is_crowded;
    char             farewell[8];
};

/* Not for other libraries of the process: they may have functions of the same names. */
#pragma GCC visibility push(hidden)

/* events.c */
int       area_reserve(area_t *area, size_t more);
void      area_clear(area_t *area, size_t keep);
void     *area_put(area_t *area, const void *data, size_t count);
tw_http2_event *tell(session_t *session, uint32_t kind, const stream_t *stream);
stream_t *stream_of(session_t *session, uint32_t stream_id);
int       fail(session_t *session, int why);

/* requests.c */
void begin_head(session_t *session);
int  take_header(session_t *session, const uint8_t *name, size_t name_bytes, const uint8_t *value, size_t value_bytes);
int  take_field(session_t *session, stream_t *stream, const uint8_t *name, size_t name_bytes, const uint8_t *value, size_t value_bytes);
int  end_head(session_t *session, stream_t *stream);
int  take_data(session_t *session, stream_t *stream, const uint8_t *data, size_t bytes);
int  end_request(session_t *session, stream_t *stream);
int  tell_due(session_t *session);
void set_due(stream_t *stream);
void forget_due(stream_t *stream);
void judge(stream_t *stream, int verdict, uint32_t at, uint32_t size);
void count_partial(stream_t *stream, uint64_t bytes);

/* answers.c */
void free_pieces(stream_t *stream);
void sent_frame(session_t *session, const nghttp2_frame *frame);

#pragma GCC visibility pop
#endif
