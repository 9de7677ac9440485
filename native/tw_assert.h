/* What must hold, in builds for developers: `make` and the fuzz targets define TICKWHEEL_ASSERT, wheels do not. It ends the
 * process: what is in memory is not to be trusted, and what is on the disk is whole. */
#ifndef TICKWHEEL_ASSERT_H
#define TICKWHEEL_ASSERT_H
#ifdef TICKWHEEL_ASSERT
#include <stdio.h>
#include <stdlib.h>
#define TW_ASSERT(condition, what) ((condition) ? (void)0 : tw_assert_failed(what, __FILE__, __LINE__))
__attribute__((noreturn, cold)) static inline void tw_assert_failed(const char *what, const char *file, int line) {
    fprintf(stderr, "%s:%d: it must hold that %s\n", file, line, what);
    abort();
}
#else
#define TW_ASSERT(condition, what) ((void)sizeof(condition))
#endif
/* A replay may meet rows that hold what came later; what is asserted of a store is so while it is live. */
#define TW_ASSERT_LIVE(store, condition, what) TW_ASSERT(!(store)->is_live || (condition), what)
#endif
