/* Address space and disk space for the memory-mapped files.
 *
 * A derived file lives in one large reserved range of addresses, of which only the part that the file has
 * allocated on disk may be touched. So the C code sees one flat array, however far the file grows, and a full disk
 * shows as an error code of tw_allocate, never as a SIGBUS.
 *
 * All functions return 0 or a negated errno; tw_reserve returns NULL on failure. `base` with an `offset`: only their sum
 * must be an address that is reserved, as for a log that begins at a position above 0. */
#ifndef TICKWHEEL_MEMORY_H
#define TICKWHEEL_MEMORY_H
#include <stdint.h>

void *tw_reserve(uint64_t bytes);
int   tw_map_file(void *base, uint64_t offset, int fd, uint64_t file_offset, uint64_t bytes, int writable);
int   tw_unmap_to_reserved(void *base, uint64_t offset, uint64_t bytes);
int   tw_release(void *base, uint64_t bytes);
int   tw_allocate(int fd, uint64_t offset, uint64_t bytes);
int   tw_punch_hole(int fd, uint64_t offset, uint64_t bytes);
int   tw_sync_map(void *base, uint64_t bytes);
/* Writes everything of a file system to the disk: much faster than file by file where there are many. */
int   tw_sync_file_system(int fd);

/* From now on, a mapped page that cannot be read or written (SIGBUS) ends the process with an exit code, after these words
 * on standard error. Without words: as the system does it. */
int   tw_words_for_bus_error(const uint8_t *words, uint64_t bytes, int exit_code);

/* 1 where reading a hole through a mapping takes a block, so that it raises SIGBUS on a full disk: tmpfs. */
int tw_reading_fills_holes(int fd);
/* Puts zeros that belong to no file in the place of a part of a mapped file. */
int tw_cover(void *base, uint64_t offset, uint64_t bytes, int writable);
/* Finds ranges of [*from, end) without disk blocks, in whole pages, on such a file system: (start, end) each into `ranges`,
 * at most `capacity`. Returns how many, or a negated errno; *from: where to go on. Blocks that were never written look like a
 * hole from outside; is_own: no other process writes the file, so they can be told apart, by allocating and punching. */
int64_t tw_find_holes(int fd, uint64_t *from, uint64_t end, int is_own, uint64_t capacity, uint64_t *ranges);

/* Writes what is dirty there, a little at a time and with as long a pause after each, so that syncs of other
 * files meanwhile do not wait for all of it. What goes wrong shows at the next sync. */
void tw_write_back(int fd, uint64_t offset, uint64_t bytes);
/* [start, end) of a file was written, and everything before it: has the disk begin with that, and waits until it has what
 * lies more than `behind` bytes before it. So the sync of a file that is written from its start to its end finds little left,
 * and syncs of other files do not wait for all of it. Returns 0 or a negated errno; the error may be of any part of the file,
 * and the next sync does not tell it again. */
int tw_keep_pace(int fd, uint64_t start, uint64_t end, uint64_t behind);
#endif
