/* A wall clock that a test can set for one process, as `date -s` sets that of the machine; for LD_PRELOAD.
 *
 * The file named by TICKWHEEL_CLOCK_SHIFT holds an i64: nanoseconds to add to CLOCK_REALTIME. Everything that asks for the
 * time of day gets it so. Timers on the wall clock are told in shifted time and kept by the kernel in its own, so they are
 * set anew when the clock is set; and like the kernel with TFD_TIMER_CANCEL_ON_SET, they wake whoever waits for them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

enum { MOST_TIMERS = 256 };
static const int64_t     SECOND_NS = 1000000000, STEP_NS = 20000000;
static volatile int64_t *shift;
static int               timers[MOST_TIMERS], count;
static pthread_mutex_t   lock = PTHREAD_MUTEX_INITIALIZER;
static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_settime)(int, int, const struct itimerspec *, struct itimerspec *);
static int (*real_create)(int, int);
static int (*real_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_cnd_wait)(cnd_t *, mtx_t *, const struct timespec *);

static struct timespec moved(struct timespec from, int64_t by_ns) {
    int64_t ns = from.tv_sec * SECOND_NS + from.tv_nsec + by_ns;
    if (ns < 1) ns = 1;
    return (struct timespec){ns / SECOND_NS, ns % SECOND_NS};
}

static void *watch(void *unused) {
    int64_t seen = *shift;
    for (;;) {
        nanosleep(&(struct timespec){0, 2000000}, NULL);
        if (*shift == seen) continue;
        seen = *shift;
        pthread_mutex_lock(&lock);
        struct itimerspec at_once = {.it_value = {0, 1}};
        for (int i = 0; i < count; i++) real_settime(timers[i], TFD_TIMER_ABSTIME, &at_once, NULL);
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

/* What the functions below need. The constructors of the libraries that a program is linked with come before the one here,
 * and may ask for the time: mimalloc does, which is in Python since 3.13. So each function looks whether it is there. */
static void find(void) {
    if (shift) return;
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_settime = dlsym(RTLD_NEXT, "timerfd_settime");
    real_create = dlsym(RTLD_NEXT, "timerfd_create");
    real_wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real_wait) real_wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    real_cnd_wait = dlsym(RTLD_NEXT, "cnd_timedwait");
    const char *path = getenv("TICKWHEEL_CLOCK_SHIFT");
    int         fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) abort();
    void *mapped = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) abort();
    shift = mapped;
    close(fd);
}

__attribute__((constructor)) static void start(void) {
    find();
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch, NULL)) abort();
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    find();
    int result = real_gettime(clock, out);
    if (result == 0 && clock == CLOCK_REALTIME) *out = moved(*out, *shift);
    return result;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

typedef int timed_wait(void *condition, void *mutex, const struct timespec *until);

/* Until a time of day, as the kernel waits: who sets the clock moves the end of it. A time that no machine has been up for is
 * one of day. */
static int wait_until(timed_wait *real, int timed_out, void *condition, void *mutex, const struct timespec *until) {
    if (until->tv_sec <= 1000000000) return real(condition, mutex, until);
    for (;;) {
        struct timespec now, end = moved(*until, -*shift);
        real_gettime(CLOCK_REALTIME, &now);
        struct timespec soon = moved(now, STEP_NS);
        int is_soon = end.tv_sec < soon.tv_sec || (end.tv_sec == soon.tv_sec && end.tv_nsec <= soon.tv_nsec);
        int result = real(condition, mutex, is_soon ? &end : &soon);
        if (is_soon || result != timed_out) return result;
    }
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    find();
    return wait_until((timed_wait *)real_wait, ETIMEDOUT, condition, mutex, until);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until) {
    find();
    return wait_until((timed_wait *)real_cnd_wait, thrd_timedout, condition, mutex, until);
}

int timerfd_create(int clock, int flags) {
    find();
    int fd = real_create(clock, flags);
    if (fd >= 0 && clock == CLOCK_REALTIME) {
        pthread_mutex_lock(&lock);
        if (count < MOST_TIMERS) timers[count++] = fd;
        pthread_mutex_unlock(&lock);
    }
    return fd;
}

int timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old) {
    find();
    struct itimerspec real = *value;
    if (flags & TFD_TIMER_ABSTIME) real.it_value = moved(value->it_value, -*shift);
    return real_settime(fd, flags, &real, old);
}
