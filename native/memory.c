#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>

void *tw_reserve(uint64_t bytes) {
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

int tw_map_file(void *base, uint64_t offset, int fd, uint64_t file_offset, uint64_t bytes, int writable) {
    int   protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *at = mmap((uint8_t *)base + offset, bytes, protection, MAP_SHARED | MAP_FIXED, fd, (off_t)file_offset);
    return at == MAP_FAILED ? -errno : 0;
}

int tw_unmap_to_reserved(void *base, uint64_t offset, uint64_t bytes) {
    int   flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    void *at = mmap((uint8_t *)base + offset, bytes, PROT_NONE, flags, -1, 0);
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

int tw_sync_map(void *base, uint64_t bytes) { return msync(base, bytes, MS_SYNC) == 0 ? 0 : -errno; }
