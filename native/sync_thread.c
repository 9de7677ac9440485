#include "sync_thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    pthread_t       thread;
    pthread_mutex_t mutex;
    pthread_cond_t  is_asked;
    const int      *fds; /* NULL: nothing to do */
    uint64_t        count;
    uint64_t        took_ns;
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
        pthread_mutex_lock(&self->mutex);
        self->fds = NULL;
        self->result = result;
        self->took_ns = now_ns() - began_ns;
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

void tw_sync_thread_begin(void *thread, const int *fds, uint64_t count) {
    sync_thread *self = thread;
    pthread_mutex_lock(&self->mutex);
    self->fds = fds;
    self->count = count;
    pthread_cond_signal(&self->is_asked);
    pthread_mutex_unlock(&self->mutex);
}

int tw_sync_thread_ended(void *thread, uint64_t *took_ns) {
    sync_thread *self = thread;
    pthread_mutex_lock(&self->mutex);
    int result = self->result;
    *took_ns = self->took_ns;
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
}

void tw_sync_thread_free(void *thread) {
    sync_thread *self = thread;
    pthread_cond_destroy(&self->is_asked);
    pthread_mutex_destroy(&self->mutex);
    free(self);
}
