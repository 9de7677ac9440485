/* A thread that syncs files, one after the other, and needs no lock of Python's to begin or to tell that it has ended.
 *
 * The answer that waits for a sync can be sent by the thread, too: it leaves before Python hears of the end.
 *
 * One caller; it begins the next sync when it has heard of the end of the last one. */
#ifndef TICKWHEEL_SYNC_THREAD_H
#define TICKWHEEL_SYNC_THREAD_H
#include <stdint.h>

/* told_fd: an eventfd, to which 1 is added at the end of each sync. NULL on failure, with errno. */
void *tw_sync_thread_start(int told_fd);
/* What is done behind a sync that has not failed: the mark is written to its place in a file, if it has any bytes; then
 * the reply is sent to a socket, as far as that takes it at once. */
typedef struct {
    const void *mark;
    uint64_t    mark_bytes;
    uint64_t    mark_offset;
    const void *reply;
    uint64_t    reply_bytes;
    int32_t     mark_fd;
    int32_t     reply_fd;
} tw_behind_sync;

/* fdatasync for each of these, up to the first that fails. behind may be NULL. All of it must stay until the end. */
void tw_sync_thread_begin(void *thread, const int *fds, uint64_t count, const tw_behind_sync *behind);
/* From now on the reply is not sent, if it was not yet: its socket may be closed. */
void tw_sync_thread_withhold(void *thread);
/* 0 or a negated errno of the sync that has ended, or of its mark; how long it took, and how many bytes of the reply were
 * sent. */
int tw_sync_thread_ended(void *thread, uint64_t *took_ns, uint64_t *sent_bytes);
/* Ends the thread, after what it does. */
void tw_sync_thread_stop(void *thread);
#endif
