#include "sync_thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    pthread_t       thread;
    pthread_mutex_t mutex;
    pthread_cond_t  is_asked;
    const int      *fds; /* NULL: nothing to do */
    uint64_t        count;
    uint64_t        took_ns;
    uint64_t        sent_bytes;
    tw_behind_sync  behind;
    int             told_fd;
    int             result;
    int             is_over;
} sync_thread;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int sync_all(const int *fds, uint64_t count) {
    for (uint64_t at = 0; at < count; at++)
        while (fdatasync(fds[at]))
            if (errno != EINTR)
                return -errno;
    return 0;
}

static int write_mark(const tw_behind_sync *behind) {
    uint64_t done = 0;
    while (done < behind->mark_bytes) {
        ssize_t written = pwrite(behind->mark_fd, (const char *)behind->mark + done, behind->mark_bytes - done,
                                 (off_t)(behind->mark_offset + done));
        if (written < 0 && errno != EINTR)
            return -errno;
        if (written > 0)
            done += (uint64_t)written;
    }
    return 0;
}

/* What the socket does not take now, and whether it is broken, is for those who own it. */
static uint64_t send_reply(int fd, const void *reply, uint64_t bytes) {
    ssize_t sent;
    do
        sent = send(fd, reply, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? 0 : (uint64_t)sent;
}

static void tell(int told_fd) {
    uint64_t one = 1;
    while (write(told_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

static void *serve(void *argument) {
    sync_thread *self = argument;
    pthread_mutex_lock(&self->mutex);
    for (;;) {
        while (!self->fds && !self->is_over)
            pthread_cond_wait(&self->is_asked, &self->mutex);
        if (!self->fds)
            break;
        const int *fds = self->fds;
        uint64_t   count = self->count, began_ns = now_ns();
        pthread_mutex_unlock(&self->mutex);
        int result = sync_all(fds, count);
        if (!result)
            result = write_mark(&self->behind);
        pthread_mutex_lock(&self->mutex);
        self->fds = NULL;
        self->result = result;
        self->took_ns = now_ns() - began_ns;
        self->sent_bytes = 0;
        if (!result && self->behind.reply_fd >= 0)
            self->sent_bytes = send_reply(self->behind.reply_fd, self->behind.reply, self->behind.reply_bytes);
        tell(self->told_fd);
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

void *tw_sync_thread_start(int told_fd) {
    sync_thread *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->told_fd = told_fd;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->is_asked, NULL);
    /* Signals are for the threads that Python knows. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&self->thread, NULL, serve, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(self);
        errno = failed;
        return NULL;
    }
    pthread_setname_np(self->thread, "tickwheel-sync");
    return self;
}

void tw_sync_thread_begin(void *thread, const int *fds, uint64_t count, const tw_behind_sync *behind) {
    static const tw_behind_sync nothing = {.mark_fd = -1, .reply_fd = -1};
    sync_thread                *self = thread;
    pthread_mutex_lock(&self->mutex);
    self->fds = fds;
    self->count = count;
    self->behind = behind ? *behind : nothing;
    pthread_mutex_unlock(&self->mutex);
    pthread_cond_signal(&self->is_asked); /* behind the lock: else the thread wakes only to wait for it */
}

void tw_sync_thread_withhold(void *thread) {
    sync_thread *self = thread;
    pthread_mutex_lock(&self->mutex);
    self->behind.reply_fd = -1;
    pthread_mutex_unlock(&self->mutex);
}

int tw_sync_thread_ended(void *thread, uint64_t *took_ns, uint64_t *sent_bytes) {
    sync_thread *self = thread;
    pthread_mutex_lock(&self->mutex);
    int result = self->result;
    *took_ns = self->took_ns;
    *sent_bytes = self->sent_bytes;
    pthread_mutex_unlock(&self->mutex);
    return result;
}

void tw_sync_thread_stop(void *thread) {
    sync_thread *self = thread;
    pthread_mutex_lock(&self->mutex);
    self->is_over = 1;
    pthread_cond_signal(&self->is_asked);
    pthread_mutex_unlock(&self->mutex);
    pthread_join(self->thread, NULL);
    pthread_cond_destroy(&self->is_asked);
    pthread_mutex_destroy(&self->mutex);
    free(self);
}
