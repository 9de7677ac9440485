/* A send of a client that blocks: its frame is written, its answer awaited and compared, each in one call. Every other end
 * of a send is Python's affair: what was done until then is in tw_call, also where a signal was handled meanwhile.
 *
 * Writing and reading need the client's lock, waiting must be without it. The sockets do not block. */
#ifndef TICKWHEEL_CALL_H
#define TICKWHEEL_CALL_H
#include <stdint.h>

enum {
    TW_CALL_COLUMNS_BYTES = 64, /* at most: what stands in a SEND before key and body */
    TW_CALL_ROOM_BYTES = 16384, /* for what is read at once */
};

typedef struct {
    uint64_t frame_bytes;   /* of the request */
    uint64_t written_bytes; /* so many of them the socket took */
    uint64_t came_bytes;    /* in `came`: they are something else than the answer that was awaited, or a part of it */
    uint64_t first_id;      /* of an answer */
    uint64_t is_answered;
    uint8_t  came[TW_CALL_ROOM_BYTES];
} tw_call;

/* Writes a SEND: `columns` (the payload up to the key), key and body. 1: the socket took all of it. 0: a part or nothing;
 * the rest is not written. */
int tw_call_send(tw_call *call, int fd, uint32_t correlation, const uint8_t *columns, uint64_t columns_bytes,
                 const uint8_t *key, uint64_t key_bytes, const uint8_t *body, uint64_t body_bytes);
/* Waits, up to timeout_ms (-1: without end), until there is something to read. 0: there is not; or the bell was rung, a signal
 * came, the connection has ended. */
int tw_call_wait(int fd, int ear_fd, int timeout_ms);
/* Reads once. 1: it was one whole SEND_OK with this correlation, for one message, which was stored, and nothing else. */
int tw_call_answer(tw_call *call, int fd, uint32_t correlation);
#endif
