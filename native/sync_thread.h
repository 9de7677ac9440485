/* A thread that syncs files, one after the other, and needs no lock of Python's to begin or to tell that it has ended.
 *
 * One caller; it begins the next sync when it has heard of the end of the last one. */
#ifndef TICKWHEEL_SYNC_THREAD_H
#define TICKWHEEL_SYNC_THREAD_H
#include <stdint.h>

/* told_fd: an eventfd, to which 1 is added at the end of each sync. NULL on failure, with errno. */
void *tw_sync_thread_start(int told_fd);
/* fdatasync for each of these, up to the first that fails. The array must stay until the end. */
void tw_sync_thread_begin(void *thread, const int *fds, uint64_t count);
/* 0 or a negated errno of the sync that has ended; and how long it took. */
int tw_sync_thread_ended(void *thread, uint64_t *took_ns);
/* Ends the thread, after what it does; the end of that can still be asked for. */
void tw_sync_thread_stop(void *thread);
/* What is left of a thread that was stopped. */
void tw_sync_thread_free(void *thread);
#endif
