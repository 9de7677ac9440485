#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* As a number: `base` alone may be outside of what is reserved. */
static void *at_offset(void *base, uint64_t offset) { return (void *)((uintptr_t)base + offset); }

void *tw_reserve(uint64_t bytes) {
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

int tw_map_file(void *base, uint64_t offset, int fd, uint64_t file_offset, uint64_t bytes, int writable) {
    int   protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *at = mmap(at_offset(base, offset), bytes, protection, MAP_SHARED | MAP_FIXED, fd, (off_t)file_offset);
    return at == MAP_FAILED ? -errno : 0;
}

int tw_unmap_to_reserved(void *base, uint64_t offset, uint64_t bytes) {
    int   flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    void *at = mmap(at_offset(base, offset), bytes, PROT_NONE, flags, -1, 0);
    return at == MAP_FAILED ? -errno : 0;
}

int tw_release(void *base, uint64_t bytes) { return munmap(base, bytes) == 0 ? 0 : -errno; }

int tw_allocate(int fd, uint64_t offset, uint64_t bytes) {
    /* Returns its error instead of setting errno. */
    return -posix_fallocate(fd, (off_t)offset, (off_t)bytes);
}

int tw_punch_hole(int fd, uint64_t offset, uint64_t bytes) {
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    /* What is dirty there is written first, by some file systems under a lock that page faults wait for: so do it here,
     * without one. */
    sync_file_range(fd, (off_t)offset, (off_t)bytes,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    return fallocate(fd, mode, (off_t)offset, (off_t)bytes) == 0 ? 0 : -errno;
}

void tw_write_back(int fd, uint64_t offset, uint64_t bytes) {
    const uint64_t piece = 1 << 20;
    for (uint64_t done = 0; done < bytes; done += piece) {
        uint64_t        count = bytes - done < piece ? bytes - done : piece;
        struct timespec start, end;
        clock_gettime(CLOCK_MONOTONIC, &start);
        sync_file_range(fd, (off_t)(offset + done), (off_t)count,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
        clock_gettime(CLOCK_MONOTONIC, &end);
        int64_t took_ns = (end.tv_sec - start.tv_sec) * INT64_C(1000000000) + end.tv_nsec - start.tv_nsec;
        nanosleep(&(struct timespec){took_ns / 1000000000, took_ns % 1000000000}, NULL);
    }
}

/* Of a range of a file, which has bytes: with none, all that follows would be meant. */
static int sync_range(int fd, uint64_t start, uint64_t end, unsigned flags) {
    if (start >= end || sync_file_range(fd, (off_t)start, (off_t)(end - start), flags) == 0) return 0;
    /* Other errors say that the file system cannot do it: then only the pace is lost. */
    return errno == EIO || errno == ENOSPC || errno == EDQUOT ? -errno : 0;
}

static uint64_t before(uint64_t place, uint64_t bytes) { return place > bytes ? place - bytes : 0; }

int tw_keep_pace(int fd, uint64_t start, uint64_t end, uint64_t behind) {
    int begun = sync_range(fd, start, end, SYNC_FILE_RANGE_WRITE);
    if (begun < 0) return begun;
    return sync_range(fd, before(start, behind), before(end, behind), SYNC_FILE_RANGE_WAIT_BEFORE);
}

int tw_sync_map(void *base, uint64_t bytes) { return msync(base, bytes, MS_SYNC) == 0 ? 0 : -errno; }

int tw_sync_file_system(int fd) { return syncfs(fd) == 0 ? 0 : -errno; }

int tw_reading_fills_holes(int fd) {
    struct statfs of;
    return fstatfs(fd, &of) == 0 && of.f_type == TMPFS_MAGIC;
}

int tw_cover(void *base, uint64_t offset, uint64_t bytes, int writable) {
    int   protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    int   flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    void *at = mmap(at_offset(base, offset), bytes, protection, flags, -1, 0);
    return at == MAP_FAILED ? -errno : 0;
}

/* Where a range begins that may be a hole, and where it ends; 0: there is none below `end`. */
static int next_gap(int fd, uint64_t from, uint64_t end, uint64_t *gap, uint64_t *gap_end) {
    off_t start = lseek(fd, (off_t)from, SEEK_HOLE);
    if (start < 0 || (uint64_t)start >= end) return 0;
    off_t data = lseek(fd, start, SEEK_DATA);
    *gap = (uint64_t)start / PAGE * PAGE;
    *gap_end = data < 0 || (uint64_t)data > end ? end : (uint64_t)data / PAGE * PAGE;
    return 1;
}

/* Whether a page has no block. One page at a time: where a longer range does not fit, the system takes blocks out of it that
 * were there before. */
static int is_hole(int fd, uint64_t page, int64_t *blocks) {
    struct stat now;
    if (fallocate(fd, 0, (off_t)page, PAGE) || fstat(fd, &now)) return 1;
    int was_there = now.st_blocks <= *blocks;
    if (was_there) return 0;
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)page, PAGE);
    return 1;
}

int64_t tw_find_holes(int fd, uint64_t *from, uint64_t end, int is_own, uint64_t capacity, uint64_t *ranges) {
    struct stat before;
    int64_t     n = 0;
    uint64_t    gap, gap_end;
    if (fstat(fd, &before)) return -errno;
    int64_t blocks = before.st_blocks;
    while (*from < end && next_gap(fd, *from, end, &gap, &gap_end)) {
        for (uint64_t page = gap; page < gap_end; page = *from) {
            *from = is_own ? page + PAGE : gap_end;
            if (is_own && !is_hole(fd, page, &blocks)) continue;
            if (n && ranges[2 * n - 1] == page) { ranges[2 * n - 1] = *from; continue; }
            if ((uint64_t)n == capacity) { *from = page; return n; }
            ranges[2 * n] = page;
            ranges[2 * n + 1] = *from;
            n++;
        }
        *from = gap_end > gap ? gap_end : gap + PAGE;
    }
    if (*from < end) *from = end;
    return n;
}

/* What a signal handler may look at: written once, before it is installed. */
static struct {
    char   words[2048];
    size_t bytes;
    int    exit_code;
} bus_error;

static void tell_and_exit(int number, siginfo_t *info, void *context) {
    /* Not a page of a file: damaged memory, or a signal that a process sent. */
    if (info->si_code != BUS_ADRERR && info->si_code != BUS_OBJERR) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    ssize_t told = write(2, bus_error.words, bus_error.bytes);
    _exit(told < 0 ? bus_error.exit_code : bus_error.exit_code);
}

int tw_words_for_bus_error(const uint8_t *words, uint64_t bytes, int exit_code) {
    if (bytes == 0) return signal(SIGBUS, SIG_DFL) == SIG_ERR ? -errno : 0;
    if (bytes > sizeof bus_error.words) bytes = sizeof bus_error.words;
    memcpy(bus_error.words, words, bytes);
    bus_error.bytes = bytes;
    bus_error.exit_code = exit_code;
    struct sigaction action = {.sa_sigaction = tell_and_exit, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, NULL) ? -errno : 0;
}
