/* The server's side of gRPC over HTTP/2, on nghttp2: bytes in, requests out; answers in, bytes out. No input or output.
 *
 * A host has what all its connections share: the methods, the limits, and three areas that grow with use. What a call leaves
 * there is good until the next call for any session of the host: events, the arena that they point into, and what is to be
 * sent. A session is one connection. A host and its sessions belong to one thread.
 *
 * nghttp2 allocates; each session's share is counted and bounded (memory_bytes). No function keeps a pointer that it is given. */
#ifndef TICKWHEEL_HTTP2_H
#define TICKWHEEL_HTTP2_H
#include <stdint.h>

#define TW_HTTP2_FRAME_BYTES 16384
#define TW_HTTP2_SEND_BYTES 65536 /* data_to_send stops at the first frame that reaches it */

/* Kinds of events. `head` is the number of the last TW_HTTP2_HEAD of the same feed that applies. */
enum {
    TW_HTTP2_HEAD = 1, /* at, size: metadata, each name and value followed by a zero; numbered from 0 in each feed */
    TW_HTTP2_BEGAN,    /* a call whose request is not whole, or is a stream: value is its method */
    TW_HTTP2_ASKED,    /* a call with its request: value, head, seconds, at, size */
    TW_HTTP2_WHOLE,    /* the request of a call that began: at, size */
    TW_HTTP2_MESSAGE,  /* one of a stream: at, size */
    TW_HTTP2_ENDED,    /* the client ends its stream of requests */
    TW_HTTP2_RESET,    /* no answer can reach the client any more */
    TW_HTTP2_JUDGED,   /* value says why; what else there is to say is in at and size: a text, or size alone a number */
    TW_HTTP2_LEAVING,  /* the peer sends no more requests */
    TW_HTTP2_FAREWELL, /* the ack of the farewell */
};

/* Why a request cannot be served. */
enum {
    TW_HTTP2_NOT_POST = 1,
    TW_HTTP2_NOT_GRPC,
    TW_HTTP2_BAD_TIMEOUT,
    TW_HTTP2_LARGE_HEAD,
    TW_HTTP2_UNKNOWN_METHOD,
    TW_HTTP2_CROWDED,
    TW_HTTP2_LARGE_MESSAGE,
    TW_HTTP2_BAD_FLAG,
    TW_HTTP2_UNKNOWN_COMPRESSION,
    TW_HTTP2_TWO_MESSAGES,
    TW_HTTP2_TOO_MUCH_PARTIAL,
    TW_HTTP2_HALF_MESSAGE,
    TW_HTTP2_NO_MESSAGE,
};

/* What tw_http2_feed returns when the connection cannot go on. */
enum {
    TW_HTTP2_NO_HTTP2 = -1,
    TW_HTTP2_NO_MEMORY = -2,
    TW_HTTP2_BROKEN = -3,
    TW_HTTP2_ABUSE_HEADER_BLOCK = -10,
    TW_HTTP2_ABUSE_HEADER_LIST = -11,
    TW_HTTP2_ABUSE_RESETS = -12,
    TW_HTTP2_ABUSE_ANSWERS = -13,
    TW_HTTP2_ABUSE_EMPTY = -14,
};

typedef struct {
    uint32_t kind;
    uint32_t stream_id;
    int32_t  value;
    uint32_t head;
    uint32_t at;
    uint32_t size;
    uint32_t is_compressed;
    uint32_t unused;
    double   seconds; /* time-out; negative without one */
} tw_http2_event;

/* Counts of one connection, as the limits of the transport have them. */
typedef struct {
    uint32_t streams;
    uint32_t message_bytes;
    uint64_t pending_bytes;
    uint32_t header_list_bytes;
    uint32_t header_block_bytes;
    uint32_t stream_window_bytes;
    uint32_t connection_window_bytes;
    uint32_t resets_a_second;
    uint32_t control_answers;
    uint32_t settings_weight;
    uint32_t empty_frames;
    uint32_t header_parts;
    uint64_t memory_bytes; /* for nghttp2 itself */
} tw_http2_limits;

/* Of the last call for one of its sessions. */
typedef struct {
    uint64_t events;
    uint64_t arena_bytes;
    uint64_t out_bytes;
    uint64_t whole; /* pairs: a stream, and how many of its messages end in what is sent */
    uint64_t over;  /* streams that end in it */
} tw_http2_counts;

/* ``paths``: of the methods, each followed by a zero; ``streams``: one byte each, 1 where the request is a stream.
 * NULL when there is no memory. */
void *tw_http2_host(const char *paths, uint64_t bytes, const char *streams, uint32_t methods, const tw_http2_limits *limits);
void  tw_http2_free_host(void *host);
/* Where the areas are now. They move when they grow. */
const tw_http2_counts *tw_http2_counted(const void *host);
const tw_http2_event  *tw_http2_events(const void *host);
const char            *tw_http2_arena(const void *host);
const char            *tw_http2_out(const void *host);
const uint32_t        *tw_http2_whole(const void *host);
const uint32_t        *tw_http2_over(const void *host);

/* NULL when there is no memory. */
void *tw_http2_open(void *host);
void  tw_http2_close(void *session);

/* Returns 0 or one of the codes above. Events before an error count all the same. Nothing may be fed after an error. */
int  tw_http2_feed(void *session, const char *data, uint64_t bytes, double now);
/* Lets the peer send more on a stream, when none of its messages waits any more. */
void tw_http2_took(void *session, uint32_t stream_id);
void tw_http2_refuse_after(void *session, uint32_t stream_id);

/* All of these return 0, or -1 when there is no memory; a stream that has ended is passed over. */
/* The only message of each answer, and status 0 after it; ``messages`` has them one after another. */
int tw_http2_reply(void *session, const uint32_t *stream_ids, const uint32_t *sizes, uint32_t count, const char *messages, uint64_t bytes);
/* One more message of an answer. */
int tw_http2_send(void *session, uint32_t stream_id, const char *message, uint64_t bytes);
/* Status 0 after what there is. */
int tw_http2_finish(void *session, uint32_t stream_id);
/* Drops what was not begun and ends with these headers: pairs, each name and value followed by a zero. Returns 1 if a message had begun, and the stream
 * was reset. is_head: they begin with :status. */
int tw_http2_end(void *session, uint32_t stream_id, const char *headers, uint64_t bytes, int is_head);
/* Drops so many messages from the one at that place on, but not one that has begun; returns how many went. reopen: more may follow then. */
uint32_t tw_http2_take_back(void *session, uint32_t stream_id, uint32_t at, uint32_t count, int reopen);
int  tw_http2_farewell(void *session, const char *eight_bytes);
/* Some whole frames into `out`; 0, or TW_HTTP2_NO_MEMORY. */
int tw_http2_drain(void *session);

uint32_t tw_http2_last_stream(const void *session);
int      tw_http2_has_ended(const void *session); /* nghttp2 has said GOAWAY, or is out of memory */
int      tw_http2_may_send(void *session); /* whether tw_http2_drain may give something, or it has ended */
uint64_t tw_http2_queued_bytes(const void *session);
uint64_t tw_http2_partial_bytes(const void *session);
uint64_t tw_http2_unwritten_bytes(const void *session);
uint64_t tw_http2_memory_bytes(const void *session);
/* Since when a stream has waited for a window; negative: none does. */
double tw_http2_blocked_since(void *session, double now);
#endif
