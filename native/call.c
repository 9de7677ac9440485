/* One message of a client that blocks, there and back: see call.h. */
#include "call.h"
#include "crc32c.h"
#include "store.h"
#include "tw_assert.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { FRAME_HEAD = 16, FRAME_SEND = 12, FRAME_SEND_OK = 13, ANSWER_BYTES = 32 };

int tw_call_send(tw_call *call, int fd, uint32_t correlation, const uint8_t *columns, uint64_t columns_bytes,
                 const uint8_t *key, uint64_t key_bytes, const uint8_t *body, uint64_t body_bytes) {
    uint8_t head[FRAME_HEAD + TW_CALL_COLUMNS_BYTES];
    call->frame_bytes = call->written_bytes = call->came_bytes = call->is_answered = 0;
    if (columns_bytes > TW_CALL_COLUMNS_BYTES || key_bytes > TW_MAX_KEY_BYTES || body_bytes > INT32_MAX) return 0;
    uint64_t payload_bytes = columns_bytes + key_bytes + body_bytes;
    tw_store32(head, (uint32_t)payload_bytes);
    tw_store32(head + 8, FRAME_SEND);
    tw_store32(head + 12, correlation);
    memcpy(head + FRAME_HEAD, columns, columns_bytes);
    uint32_t crc = tw_crc32c(head + 8, FRAME_HEAD - 8 + columns_bytes, 0);
    crc = tw_crc32c(key, key_bytes, crc);
    tw_store32(head + 4, tw_crc32c(body, body_bytes, crc));
    struct iovec pieces[3] = {
        {head, FRAME_HEAD + columns_bytes},
        {(void *)(uintptr_t)key, key_bytes},
        {(void *)(uintptr_t)body, body_bytes},
    };
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 3};
    call->frame_bytes = FRAME_HEAD + payload_bytes;
    ssize_t written = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (written > 0) call->written_bytes = (uint64_t)written;
    TW_ASSERT(call->written_bytes <= call->frame_bytes, "no more is written than there is");
    return call->written_bytes == call->frame_bytes;
}

int tw_call_wait(int fd, int ear_fd, int timeout_ms) {
    struct pollfd watched[2] = {{.fd = fd, .events = POLLIN}, {.fd = ear_fd, .events = POLLIN}};
    return poll(watched, 2, timeout_ms) > 0 && watched[0].revents == POLLIN && !watched[1].revents;
}

/* Whether what came is the good end. Flags, and what is reserved beside the type, are 0. */
static int is_good(const uint8_t *frame, uint64_t bytes, uint32_t correlation) {
    return bytes == ANSWER_BYTES && tw_load32(frame) == ANSWER_BYTES - FRAME_HEAD && tw_load32(frame + 8) == FRAME_SEND_OK &&
           tw_load32(frame + 12) == correlation && tw_load32(frame + 24) == 1 && tw_load32(frame + 28) == 0 &&
           tw_load32(frame + 4) == tw_crc32c(frame + 8, ANSWER_BYTES - 8, 0);
}

int tw_call_answer(tw_call *call, int fd, uint32_t correlation) {
    TW_ASSERT(!call->came_bytes && !call->is_answered, "what was read before has been taken");
    ssize_t came = recv(fd, call->came, sizeof call->came, MSG_DONTWAIT);
    if (came <= 0) return 0; /* the usual way meets it again */
    if (!is_good(call->came, (uint64_t)came, correlation)) {
        call->came_bytes = (uint64_t)came;
        return 0;
    }
    call->first_id = tw_load64(call->came + FRAME_HEAD);
    call->is_answered = 1;
    return 1;
}
