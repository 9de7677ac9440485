/* What must hold of a store between two calls, whatever was called before. */
#ifndef TICKWHEEL_FUZZ_INVARIANTS_H
#define TICKWHEEL_FUZZ_INVARIANTS_H
#include "../native/rows.h"

/* Walks all rows, lanes, chains and tables. Returns what does not hold, in words, or NULL. Without `check_log`, records
 * are not looked at: their bytes may be damaged. */
const char *broken_invariant(const tw_store *store, int check_log);
#endif
