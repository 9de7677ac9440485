/* The storage engine's hot paths: layouts that every part shares, and the functions over them.
 *
 * Python owns all memory and disk space: it hands in a tw_store of base addresses with how much of each may be
 * touched. A function that needs more room says so before it changes anything, and is called again.
 *
 * docs/file-formats.md describes the layouts. To change one of those on disk: raise the file's format version in
 * timerlog/layout.py, say in docs/file-formats.md what changed, and keep reading the older version. */
#ifndef TICKWHEEL_STORE_H
#define TICKWHEEL_STORE_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Marks what the C sources share and Python does not see: see build.py. */
#define TW_INTERNAL __attribute__((visibility("hidden")))

/* ---- CommitLog records: 16-byte head, then a payload by type; the next record starts at a multiple of 8. ---- */
typedef struct {
    uint32_t crc;          /* CRC-32C of bytes 4 .. record_bytes */
    uint32_t record_bytes; /* head and payload, without the padding */
    uint8_t  type;
    uint8_t  flags;
    uint16_t order_bytes; /* of a message: the length of its ordering key */
    uint32_t aux;         /* topic id or group id, by type */
} tw_head;

typedef struct {
    tw_head  head; /* flags: the priority; aux: the topic id */
    uint64_t id;
    int64_t  deliver_at_ms;
    int64_t  created_ms;
    uint16_t key_bytes;
    uint16_t headers_bytes;
    uint32_t body_bytes;
} tw_message; /* 48 bytes, then key, headers, ordering key, body */

enum { TW_RECORD_MESSAGE = 1, TW_RECORD_TRANSACTION = 12, TW_RECORD_MOVED = 13, TW_RECORD_FILL = 25, TW_RECORD_END = 255 };

/* MOVED: a head (aux: the topic id), this, an entry for each group that was given the message, then its complete
 * MESSAGE record. */
typedef struct {
    uint64_t topic_seq;
    uint16_t version;
    uint8_t  state;
    uint8_t  unused;
    uint16_t flags;
    uint16_t unused2;
    uint32_t groups;
    uint32_t unused3;
} tw_moved;

typedef struct {
    uint32_t group_id;
    uint32_t epoch;
    uint32_t base_epoch;
    uint8_t  state;
    uint8_t  flags; /* TW_CALLED */
    uint8_t  unused[2];
    int64_t  time_ms;
} tw_moved_group;

/* ---- MessageTable row; the row's index is the message's id ---- */
typedef struct {
    uint64_t position; /* of its record in the CommitLog */
    int64_t  deliver_at_ms;
    int64_t  created_ms;
    uint64_t topic_seq; /* its number in its topic, once it is there */
    uint16_t topic_id;
    uint16_t flags;
    uint32_t key_hash; /* 0: no key */
    uint32_t record_bytes;
    uint16_t version; /* +1 at each reschedule, so that an older timer is known as superseded */
    uint8_t  state;
    uint8_t  priority;
} tw_row;

enum { TW_NONE = 0, TW_SCHEDULED = 1, TW_READY = 2, TW_CANCELLED = 3, TW_DAMAGED = 4, TW_EXPIRED = 5,
       TW_DROPPED = 6 };
enum { TW_ORDERED = 1 }; /* flags: the message has an ordering key */

/* Message ids from `start` to below `end`. */
typedef struct {
    uint64_t start;
    uint64_t end;
} tw_gap;

enum { TW_MOST_GAPS = 64, TW_SPARSE_IDS = 1024 };

/* `count` consecutive values from `first` that share epoch and time. */
typedef struct {
    uint64_t first;
    uint32_t count;
    uint32_t epoch;
    int64_t  time_ms;
} tw_run;

/* A message in a topic, by topic_seq. Those of one priority form a lane through `next` (topic_seq + 1; 0: last). */
typedef struct {
    uint64_t id;
    uint64_t next;
} tw_arrival;

/* What one group knows of one message of its topic, by topic_seq. */
typedef struct {
    int64_t  time_ms;    /* leased: the lease's end; acked: when */
    uint64_t retry_next; /* chain of messages that wait for redelivery (topic_seq + 1; 0: last) */
    uint32_t epoch;      /* deliveries so far, counted from the group's fence; fences receipts; 0: none */
    uint32_t base_epoch; /* of its deliveries, those that do not count as attempts (any more) */
    uint32_t order_hash; /* of the ordering key; 0: none, or not looked at yet */
    uint16_t holder; /* number of the subscription that holds the lease; 0: none */
    uint8_t  state;
    uint8_t  flags;
} tw_delivery;

/* UNTOUCHED with an epoch: it was delivered before the group began anew, and counts as new with that. */
/* WAITING: given back with a delay, or called for again: no subscription holds it, and from time_ms on it is delivered again. */
enum { TW_UNTOUCHED = 0, TW_LEASED = 1, TW_ACKED = 2, TW_WAITING = 3, TW_DEAD = 4 };
/* PARKED: an earlier message of its ordering key is not done, or one that it was given out with is still out. IN_RUN: it was
 * given out together with an earlier one of its key, and keeps its place behind that until that is done. TAKEN: selected, and its lease not applied yet.
 * POSTPONED: it is in the retry chain or parked, and was given a time since: its timer brings it, not the chain.
 * CALLED: the group was done with it, and it is called for again; until its time comes it holds up no other message. This
 * flag is kept over a restart. */
enum { TW_IN_RETRY = 1, TW_ACKING = 2, TW_PARKED = 4, TW_TAKEN = 8, TW_POSTPONED = 16, TW_CALLED = 32,
       TW_IN_RUN = 64 };
/* How messages are redelivered: their attempts count from 0 again; the group was done with them. */
enum { TW_RESET_ATTEMPTS = 1, TW_WERE_DONE = 2 };

typedef struct {
    tw_arrival *arrivals;       /* where number 0 would be: only those from arrivals_start to below allocated are there */
    uint64_t    arrivals_start; /* numbers below it are gone, and have no addresses */
    uint64_t    allocated;
    uint64_t    count;     /* messages that reached the topic */
    uint64_t    messages;  /* all ever sent to it */
    uint64_t    scheduled; /* of these, waiting for their time */
    uint64_t    ready;     /* in the topic */
    uint64_t    cancelled;
    uint64_t    purged_messages; /* of `messages`, those whose rows are gone */
    uint64_t    purged_cancelled;
    uint64_t    lane_first[256]; /* topic_seq + 1 */
    uint64_t    lane_last[256];
    uint64_t    lanes[4]; /* bit p: lane p has held a message */
    uint32_t    exists;
    uint32_t    max_body_bytes; /* 0: the store's */
    uint32_t    spread_ms;      /* a message is due up to so much after its deliver_at */
    uint32_t    default_priority;
    uint32_t    parent; /* of a shard: the topic that it belongs to, whose keys it shares; 0: none */
    uint32_t    shards; /* 0: messages are put here themselves */
    uint16_t    shard_of_byte[256]; /* topic id by the first byte of the routing hash */
    uint32_t    first_group;        /* chain of its groups; 0: none */
    uint64_t    first_seq;          /* everything below is gone */
    int64_t     purge_after_ms;     /* messages that are done stay for so long */
} tw_topic;

/* A busy ordering key of a group: its first message that is not done, and those that come after it, chained through
 * retry_next: first those of its run, which were given out with it, up to last_run, then those that wait: the ones that
 * were delivered before, up to last_again, and new ones (all topic_seq + 1; 0: none). */
typedef struct {
    uint32_t hash; /* 0: an empty place in the table */
    uint32_t taken; /* while the current message is being taken: the length of its run */
    uint64_t current;
    uint64_t first;
    uint64_t last_run;
    uint64_t last_again;
    uint64_t last;
} tw_order;

typedef struct {
    tw_delivery *rows;       /* where that of number 0 would be: only those from rows_start to below allocated are there */
    uint64_t     rows_start; /* messages below it are gone, and their rows have no addresses */
    uint64_t     allocated;
    uint64_t     start_seq;
    uint64_t     floor_seq; /* everything below is acked or cancelled */
    uint64_t     high_seq;  /* rows at and above were never touched */
    uint64_t     touched;   /* messages delivered at least once */
    uint64_t     leased;
    uint64_t     acked;
    uint64_t     dead;
    uint64_t     deliveries;
    uint64_t     pending; /* messages of the topic that this group is not done with */
    uint64_t     purged_acked; /* of `acked`, `dead`, `deliveries`: of messages whose rows are gone */
    uint64_t     purged_dead;
    uint64_t     purged_deliveries;
    int64_t      ack_wait_ms;
    int64_t      min_backoff_ms;
    int64_t      max_backoff_ms;
    uint64_t     cursor[256]; /* topic_seq + 1 of the message last taken from each lane; 0: none yet */
    uint64_t     retry_first[256];
    uint64_t     retry_last[256];
    uint64_t     retry_lanes[4];
    uint32_t     topic_id;
    uint32_t     exists;
    uint32_t     max_attempts; /* 0: without end */
    uint32_t     turn;         /* counts deliveries, for the share that is kept for the longest-waiting */
    uint32_t     next_group;   /* of the same topic; 0: the last */
    tw_order    *orders;       /* open addressing; NULL until the first message with an ordering key */
    uint32_t     orders_capacity; /* a power of two */
    uint32_t     orders_count;
    uint32_t     ignores_order; /* messages with an ordering key are given to it as those without */
    uint64_t     rows_from; /* no row below was ever used: at most start_seq */
    uint32_t     fence;     /* epochs up to it were given out by groups that had its number before: its own are higher */
    uint32_t     highest_epoch; /* that it has given out of what is not purged; at least fence */
} tw_group;

typedef struct {
    const uint8_t *log; /* position p is at tw_place(log, p), for p < log_readable that is not purged */
    uint64_t log_readable;
    uint8_t *staging; /* records appended but not yet written; the first is at staging_position */
    uint64_t staging_capacity;
    uint64_t staging_bytes;
    uint64_t staging_position;
    uint64_t segment_end;   /* no record crosses it */
    uint64_t message_limit; /* messages must end before it; the rest is kept for acks and other control records */
    tw_row  *rows; /* where that of id 0 would be: only those from rows_start to below rows_allocated are there */
    uint64_t rows_start; /* messages below it are gone, and their rows have no addresses */
    uint64_t rows_allocated;
    uint64_t next_id;
    uint8_t *keys;
    uint64_t keys_allocated;
    tw_topic *topics;
    uint32_t topics_capacity;
    tw_group *groups;
    uint32_t groups_capacity;
    uint32_t *outstanding; /* by holder: un-acked messages; 65,536 numbers */
    uint32_t max_body_bytes;
    uint32_t max_frame_bytes;
    uint32_t *key_hashes; /* scratch, TW_MAX_BATCH */
    uint16_t *key_counts; /* scratch, TW_KEY_PARTITIONS, zero between calls */
    uint64_t first_id;    /* everything below is gone */
    tw_gap   gaps[TW_MOST_GAPS]; /* in order: ids that were and are given to no message of this log; they have no rows */
    uint32_t gaps_count;
    const tw_gap *empty; /* in order and apart: ids whose messages are gone; a bulk job alone may still bring some */
    uint64_t      empty_count;
    const uint8_t *has_space; /* by TW_SPARSE_IDS ids: whether their rows have disk space, below sparse_end; a replay asks for it */
    uint64_t       sparse_end;
    const uint8_t *foreign; /* what is being taken in: position TW_FOREIGN + p is at foreign + p */
    uint64_t adopted_first_id; /* these messages are in the log, and are made visible step by step */
    uint64_t adopted_end_id;
    uint8_t is_full;         /* there is no room: a frame that stores nothing is answered all the same */
    uint8_t is_live;    /* requests change it, and no replay: what is judged holds when it is applied */
    uint8_t keeps_keys; /* a replay enters keys into the index: it held those of all that was replayed before */
    const uint8_t *may_send; /* by topic: whether the connection whose bytes are taken may send to it; NULL: to all */
    const uint64_t *leaving; /* in order: messages that the transaction being judged or staged cancels; their keys are free */
    uint64_t leaving_count;
    uint32_t newest_record; /* the highest type of a record that was ever appended or replayed; END is none */
} tw_store;

enum {
    TW_MAX_BATCH = 65536,
    TW_KEY_PARTITIONS = 1024,
    TW_MAX_KEY_BYTES = 255,
    TW_MAX_HEADERS_BYTES = 32768,
    TW_TOPIC_PRIORITY = 256, /* in SEND: the topic's default */
    TW_ORDERED_PRIORITY = 50, /* of every message with an ordering key: one lane keeps their order */
    TW_RESERVED_SHARE = 8,    /* one of so many deliveries goes to the message that waits longest, another to a new one */
    TW_NEW_SHARE = 7,         /* which of them goes to a new one, though messages wait for redelivery */
};
/* The log ends before this position; those from here on are not in the log yet: see bulk.c. */
#define TW_FOREIGN (UINT64_C(1) << 62)
#define TW_NEED_ORDERS UINT64_MAX
#define TW_NEED_MORE_TIME (UINT64_MAX - 1)
#define TW_MAX_TIME_MS INT64_C(253402300799999)
#define TW_MAX_ID ((UINT64_C(1) << 40) - 1) /* what an entry of the key index has room for */

/* Why tw_ingest stopped. NEED_*: nothing of that frame was done; provide it and call again. */
enum {
    TW_STOP_NEED_MORE = 0,   /* the rest is not a whole frame */
    TW_STOP_OTHER_FRAME = 1, /* a checked frame of another type: see stop_*; it counts as consumed */
    TW_STOP_BAD_CRC = 2,
    TW_STOP_FRAME_TOO_LARGE = 3,
    TW_STOP_BAD_FRAME = 4,     /* a SEND whose columns do not add up; consumed */
    TW_STOP_UNKNOWN_TOPIC = 5, /* consumed */
    TW_STOP_FORBIDDEN = 7,     /* see may_send; not consumed: perhaps it is asked for the first time */
    TW_STOP_NEED_FLUSH = 10,
    TW_STOP_NEED_DISK = 11, /* need: bytes of log */
    TW_STOP_NEED_ROWS = 12, /* need: first row not wanted */
    TW_STOP_NEED_KEYS = 13, /* need: the partition to grow */
    TW_STOP_NEED_REPLIES = 14,
    TW_STOP_NEED_DELIVERIES = 15, /* need: the group whose rows must reach all of its topic */
};

typedef struct {
    uint64_t consumed_bytes;
    uint64_t reply_bytes;
    uint64_t stop_payload_offset;
    uint64_t stop_payload_bytes;
    uint64_t need;
    uint32_t stop_correlation;
    uint32_t stop_type;
    uint32_t frames;
    uint32_t messages;
    int32_t  stop;
} tw_ingested;

static inline uint16_t tw_load16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t tw_load32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t tw_load64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline void tw_store32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void tw_store64(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); }
static inline uint64_t tw_padded(uint64_t bytes) { return (bytes + 7) & ~UINT64_C(7); }

/* The byte at a position of a log. `log` is where position 0 would be, which may be outside of all that is mapped: a number,
 * no pointer to anything. */
static inline const uint8_t *tw_place(const uint8_t *log, uint64_t position) {
    return (const uint8_t *)((uintptr_t)log + position);
}

/* The bytes of the log at a position, written or still staged. */
static inline const uint8_t *tw_at(const tw_store *store, uint64_t position) {
    if (position >= TW_FOREIGN) return store->foreign + (position - TW_FOREIGN);
    if (position >= store->staging_position) return store->staging + (position - store->staging_position);
    return tw_place(store->log, position);
}

/* The topic whose keys those of a topic's messages are: a shard's are its parent's. 0 for a number that no topic can
 * have, which a damaged table may hold. */
static inline uint32_t tw_key_topic(const tw_store *store, uint32_t topic_id) {
    if (topic_id >= store->topics_capacity) return 0;
    return store->topics[topic_id].parent ? store->topics[topic_id].parent : topic_id;
}

/* 0 for a topic that was deleted, and for a number that no topic can have: a damaged table may hold any. */
static inline int tw_topic_exists(const tw_store *store, uint32_t topic_id) {
    return topic_id < store->topics_capacity && store->topics[topic_id].exists;
}

/* The row of an id below rows_allocated; that of a message that never was, if it has no address. */
static inline const tw_row *tw_row_at(const tw_store *store, uint64_t id) {
    static const tw_row none;
    return id < store->rows_start ? &none : &store->rows[id];
}

/* The id of the message with a number below `allocated` in a topic; 0 of those that have no addresses. */
static inline uint64_t tw_id_at(const tw_topic *topic, uint64_t seq) {
    return seq < topic->arrivals_start ? 0 : topic->arrivals[seq].id;
}

/* Where to begin with numbers from `seq` on: at the first whose row has an address. */
static inline uint64_t tw_with_rows(const tw_group *group, uint64_t seq) {
    return seq < group->rows_start ? group->rows_start : seq;
}

/* Applies one message record to the MessageTable and its topic's counters. */
TW_INTERNAL void tw_apply_message(tw_store *store, const tw_message *message, uint64_t position, uint32_t key_hash);

/* ---- ingest.c ---- */
/* Handles every whole SEND frame at the head of `data`: checks, appends to staging, fills rows and key index, and
 * writes one SEND_OK frame each into `replies`. Stops at the first frame of another type. */
void tw_ingest(tw_store *store, const uint8_t *data, uint64_t bytes, int64_t now_ms,
               uint8_t *replies, uint64_t replies_capacity, tw_ingested *result);

/* Takes back the messages from first_id on, which lie in staging from there on. */
void tw_unsend(tw_store *store, uint64_t first_id, uint64_t staging_bytes);
/* Judges the messages of a SEND payload without storing anything: codes as in SEND_OK (0: it can be stored), with the
 * id of the message that has the key already, and the log bytes that all take at most. Returns their number, -1 for a
 * payload that does not add up, -2 for an unknown topic. */
int64_t tw_send_check(tw_store *store, const uint8_t *payload, uint64_t bytes, int64_t now_ms, uint32_t *codes,
                      uint64_t *earlier, uint64_t *log_bytes);

/* ---- log.c ---- */
/* Why reading a log stopped where it did. */
enum {
    TW_READ_END_OF_RANGE = 0,
    TW_READ_ZEROS = 1, /* nothing was written there */
    TW_READ_BAD_LENGTH = 2,
    TW_READ_BAD_CHECKSUM = 3,
    TW_READ_END_RECORD = 4,
    TW_READ_FULL = 5, /* only tw_log_scan: there is no room for another position */
};
/* What is wrong with the record at the head of `room` bytes, at least a head's; TW_READ_END_OF_RANGE: nothing. */
TW_INTERNAL int32_t  tw_judge_record(const uint8_t *record, uint64_t room);
/* Checks records from `position`; returns where the first one that is not whole, padding included, starts, and why in
 * *reason. counts[256] grows by type. */
uint64_t tw_log_verify(const uint8_t *log, uint64_t position, uint64_t end, uint64_t *counts, int32_t *reason);
/* Appends one control record to staging; returns its position, or -1 when staging or the segment has no room. */
int64_t  tw_log_append(tw_store *store, uint8_t type, uint32_t aux, const uint8_t *payload, uint64_t bytes);
/* A record of records: starts one in staging (payload: a multiple of 8 bytes), so that what is appended next lies inside
 * it; `room`: log bytes that it will take at most. Returns where it starts in staging, or -1 when there is no room. */
int64_t  tw_group_begin(tw_store *store, uint8_t type, uint32_t aux, const uint8_t *payload, uint64_t bytes, uint64_t room);
/* Fills in its length and checksum. */
void     tw_group_end(tw_store *store, uint64_t at);
/* Applies message records (already verified) from *position on. Returns 0 at `end`, 1 at a record of another type,
 * TW_STOP_NEED_ROWS (a row at *need - 1), TW_STOP_NEED_DELIVERIES or TW_STOP_NEED_KEYS with *need, -1 when one does not make
 * sense. MOVED records count as message records. The key index is left alone unless store->keeps_keys. */
int      tw_replay(tw_store *store, uint64_t *position, uint64_t end, uint64_t *need);

/* ---- keys.c ---- */
void     tw_keys_init(uint8_t *keys);
uint32_t tw_key_hash(uint32_t topic_id, const uint8_t *key, uint64_t bytes);
uint64_t tw_keys_find(const tw_store *store, uint32_t topic_id, const uint8_t *key, uint64_t bytes);
/* Asks for the place of a hash before it is needed. */
TW_INTERNAL void     tw_keys_prefetch(const tw_store *store, uint32_t hash);
/* 0: no message has a key with this hash. */
TW_INTERNAL int      tw_keys_may_hold(const tw_store *store, uint32_t hash);
/* Also messages that are not visible yet. */
TW_INTERNAL uint64_t tw_keys_find_any(const tw_store *store, uint32_t topic_id, uint32_t hash, const uint8_t *key,
                                      uint64_t bytes);
/* Only messages with an id from first_id to below end_id. */
TW_INTERNAL uint64_t tw_keys_find_among(const tw_store *store, uint32_t topic_id, uint32_t hash, const uint8_t *key,
                                        uint64_t bytes, uint64_t first_id, uint64_t end_id);
TW_INTERNAL uint64_t tw_keys_find_hashed(const tw_store *store, uint32_t topic_id, uint32_t hash, const uint8_t *key,
                                         uint64_t bytes);
TW_INTERNAL int      tw_keys_has_room(const tw_store *store, uint32_t partition, uint64_t more);
TW_INTERNAL void     tw_keys_insert(tw_store *store, uint64_t id, uint32_t hash);
/* The same for one that may be there already. Returns 0 when its partition, *need, must grow first. */
TW_INTERNAL int      tw_keys_enter(tw_store *store, uint64_t id, uint32_t hash, uint64_t *need);
int      tw_keys_remove(tw_store *store, uint64_t id);
uint64_t tw_keys_bytes_to_grow(const tw_store *store, uint32_t partition);
/* Doubles a partition's table into the space after the last one. Returns 0, or -1 when keys_allocated is too small.
 * The old table's place comes back in *freed_offset and *freed_bytes. */
int      tw_keys_grow(tw_store *store, uint32_t partition, uint64_t *freed_offset, uint64_t *freed_bytes);
/* The same for any capacity (a power of two that has room for all entries). */
uint64_t tw_keys_bytes_to_resize(const tw_store *store, uint32_t capacity);
int      tw_keys_resize(tw_store *store, uint32_t partition, uint32_t capacity, uint64_t *freed_offset,
                        uint64_t *freed_bytes);
/* The capacity to which a partition should shrink; 0: none. */
uint32_t tw_keys_fitting(const tw_store *store, uint32_t partition);
/* The capacity with which a partition has room for so many keys more; 0: the one that it has. */
uint32_t tw_keys_capacity_for(const tw_store *store, uint32_t partition, uint64_t more);
uint64_t tw_keys_count(const uint8_t *keys);
static inline uint32_t tw_key_partition(uint32_t hash) { return hash >> 22; }

/* ---- delivery.c: each change is "decide, log, apply"; the apply functions also serve replay ---- */
/* Compresses n values into runs (at most n); epochs and times may be NULL. Returns the number of runs. */
int64_t  tw_runs(const uint64_t *values, const uint32_t *epochs, const int64_t *times, uint64_t n, tw_run *runs);
/* The value behind the last one of any run; how many values all have. 0: there are none. */
uint64_t tw_runs_end(const tw_run *runs, uint64_t n);
uint64_t tw_runs_values(const tw_run *runs, uint64_t n);
enum {
    TW_IS_NOT_DUE = 0, /* cancelled, superseded, or in its topic already */
    TW_IS_DUE = 1,
    TW_IS_BROKEN = 2, /* its checksum is wrong */
};
/* Whether messages are due for their topics. Returns how many are. */
int64_t  tw_lookup(const tw_store *store, const uint64_t *ids, const uint32_t *versions, uint64_t n, int64_t now_ms,
                   uint8_t *verdicts);
/* Those of messages that were looked up that are still as they were: waiting for their time, with the same version, and
 * with a topic. Returns how many. */
uint64_t tw_still_scheduled(const tw_store *store, const uint64_t *ids, const uint32_t *versions, uint64_t n,
                            uint64_t *still);
/* Those of some messages whose record in the log does not match its checksum: at most n. What is still being collected
 * for the log lies in memory, and is not looked at. Returns how many. */
uint64_t tw_damaged(const tw_store *store, const uint64_t *ids, uint64_t n, uint64_t *damaged);
/* Puts the runs of ids into their topic from first_seq on. 0, or -1: arrivals not allocated, or an unknown id.
 * This and the other apply functions change nothing when they return -1. */
int      tw_apply_put(tw_store *store, uint32_t topic_id, uint64_t first_seq, const tw_run *runs, uint64_t n);
void     tw_due_times(const tw_store *store, const uint64_t *ids, uint64_t n, int64_t *due_ms);
/* Adds to a histogram how long it is past the time of messages, or past their coming if that was later. values: ids, or
 * with a group_id numbers in its topic. With epochs, only those of the group's first one. counts has one place for each bound, which
 * rise and are inclusive, and one for what is above. Returns how many messages were counted. */
uint64_t tw_count_lateness(const tw_store *store, uint32_t group_id, const uint64_t *values, const uint32_t *epochs,
                           uint64_t n, int64_t now_ms, const int64_t *bounds, uint64_t bounds_count, int64_t *counts,
                           int64_t *sum_ms);
/* clamp(min_backoff * 2^(epoch-1), ack_wait, max_backoff), spread by up to a third inside the clamps from epoch 2. */
int64_t  tw_backoff_ms(int64_t ack_wait_ms, int64_t min_backoff_ms, int64_t max_backoff_ms, uint64_t id, uint32_t epoch);
/* The first of some gaps, in order, that ends behind an id; `count` if there is none. */
static inline uint64_t tw_gap_behind(const tw_gap *gaps, uint64_t count, uint64_t id) {
    uint64_t first = 0;
    while (first < count) {
        uint64_t middle = first + (count - first) / 2;
        if (gaps[middle].end > id) count = middle;
        else first = middle + 1;
    }
    return first;
}
/* Moves *id out of gaps and empty stretches; returns where the next of them begins, or `end`: rows up to there may be
 * looked at. */
static inline uint64_t tw_rows_until(const tw_store *store, uint64_t *id, uint64_t end) {
    const tw_gap  *lists[] = {store->gaps, store->empty};
    const uint64_t counts[] = {store->gaps_count, store->empty_count};
    uint64_t       stop = end, at;
    do {
        at = *id;
        stop = end;
        for (int l = 0; l < 2; l++) {
            uint64_t g = tw_gap_behind(lists[l], counts[l], *id);
            if (g == counts[l]) continue;
            if (lists[l][g].start <= *id) *id = lists[l][g].end;
            else if (lists[l][g].start < stop) stop = lists[l][g].start;
        }
    } while (*id != at);
    return stop;
}
/* Whether a replay may fill a row below rows_allocated: it has disk space, and lies in no stretch that is left out. */
static inline int tw_may_fill(const tw_store *store, uint64_t id) {
    if (id < store->sparse_end && !store->has_space[id / TW_SPARSE_IDS]) return 0;
    if (!store->empty_count || id >= store->empty[store->empty_count - 1].end) return 1;
    return id < store->empty[tw_gap_behind(store->empty, store->empty_count, id)].start;
}
/* Of the deliveries of a message those that are no attempts, counted as those to come will be: an epoch that lies at or
 * below the fence was given in another past, and the next one follows the fence. */
static inline uint32_t tw_base_epoch(const tw_group *group, const tw_delivery *row) {
    return row->epoch > group->fence ? row->base_epoch : group->fence - (row->epoch - row->base_epoch);
}
/* How often a group was given the message of a row. */
static inline uint32_t tw_times_delivered(const tw_group *group, const tw_delivery *row) {
    return row->epoch > group->fence ? row->epoch - group->fence : 0;
}
/* Takes up to `limit` messages for a delivery, of an ordering key up to `run_limit` (at least 1) that follow each other: lowest priority number first, redeliveries before new ones; of
 * TW_RESERVED_SHARE one is the longest-waiting, and one a new one. Returns how many (one always fits limit_bytes); *frame_bytes: the size of their
 * DELIVER frame; *need: 0, or what must be provided for more: TW_NEED_ORDERS, TW_NEED_MORE_TIME (call again), or the
 * number that the group's rows must first reach. */
int64_t  tw_select(tw_store *store, uint32_t group_id, uint64_t limit, uint64_t limit_bytes, uint32_t run_limit, int64_t now_ms,
                   uint64_t *seqs, uint32_t *epochs, int64_t *until_ms, uint64_t *frame_bytes, uint64_t *need);
/* Gives selected messages back to where they were taken from, when their lease could not be logged. */
void     tw_unselect(tw_store *store, uint32_t group_id, const uint64_t *seqs, uint64_t n);
int      tw_apply_lease(tw_store *store, uint32_t group_id, uint32_t holder, const tw_run *runs, uint64_t n);
/* Writes a whole DELIVER frame; returns its bytes, -1 when it does not fit. */
int64_t  tw_deliver_frame(const tw_store *store, uint32_t group_id, uint32_t subscription, const uint64_t *seqs,
                          uint64_t n, uint8_t *frame, uint64_t frame_capacity);
/* ---- acks.c ---- */
/* Why a receipt does not count, as docs/protocol.md has it. */
enum { TW_ALREADY_ACKED = 1, TW_STALE_RECEIPT = 2, TW_NOT_FOUND = 3, TW_NEVER_DELIVERED = 4, TW_WAS_CANCELLED = 5 };
/* Judges n receipts of an ACK payload (ids, then epochs). codes: 0 accepted, else why it does not count. Accepted
 * ones are put into seqs/epochs (of the delivery) and marked as being acked. Returns how many. */
int64_t  tw_ack_check(tw_store *store, uint32_t group_id, const uint8_t *payload, uint64_t n,
                      uint64_t *seqs, uint32_t *epochs, uint32_t *codes);
/* Takes the marks of tw_ack_check back, when the acks could not be logged. */
void     tw_unmark_acks(tw_store *store, uint32_t group_id, const uint64_t *seqs, uint64_t n);
/* The subscription no longer holds the message: its credit comes back. */
TW_INTERNAL void     tw_let_go(tw_store *store, tw_group *group, tw_delivery *row);
int      tw_apply_ack(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n);
int      tw_apply_dead(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n);
/* Leases and waits end; the messages are delivered again from the runs' time on. */
int      tw_apply_nack(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n);
/* As a nack, whatever became of them. `how`: TW_RESET_ATTEMPTS (backoff and max_attempts start anew), TW_WERE_DONE. */
int      tw_apply_redeliver(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n, int how);
/* The group begins anew at a number of its topic: what lies before is not delivered to it (what it was done with stays
 * so), everything from there on counts as new. Epochs go on, so that receipts from before count no more. */
void     tw_apply_seek(tw_store *store, uint32_t group_id, uint64_t start_seq);
/* Moves messages whose lease (or wait) of that epoch has ended to the retry chain; those that had all their attempts
 * are listed instead. Returns how many were moved. */
int64_t  tw_expire(tw_store *store, uint32_t group_id, const uint64_t *seqs, const uint32_t *epochs, uint64_t n,
                   int64_t now_ms, uint64_t *exhausted, uint64_t *exhausted_count);
/* Moves messages to the retry chain, whatever state they are in. */
void     tw_requeue(tw_store *store, uint32_t group_id, const uint64_t *seqs, uint64_t n);
/* Lists messages leased by a holder from *from_seq on (which moves); fewer than capacity: these were the last. */
int64_t  tw_held_by(tw_store *store, uint32_t group_id, uint32_t holder, uint64_t *from_seq,
                    uint64_t *seqs, uint32_t *epochs, uint64_t capacity);
/* Moves the end of leases to the runs' time: now, or later. */
int      tw_apply_release(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n);
/* Ends leases at time_ms of messages that no handler has looked at: a run's time_ms is their base_epoch from now on, so that
 * the delivery is no attempt. */
int      tw_apply_return(tw_store *store, uint32_t group_id, const tw_run *runs, uint64_t n, int64_t time_ms);

/* ---- orders.c: ordering keys ---- */
TW_INTERNAL int      tw_orders_have_room(const tw_group *group);
/* Rehashes the busy keys of a group into a larger, empty table. */
void     tw_orders_move(tw_store *store, uint32_t group_id, tw_order *table, uint32_t capacity);
/* 1: the message may go, and its key is busy with it; 0: another one of its key is not done. The table has room. */
TW_INTERNAL int      tw_order_enter(tw_group *group, uint32_t hash, uint64_t seq);
/* 1: of the messages that the key's current one was given out with, one is still with a subscriber. */
TW_INTERNAL int      tw_order_is_out(const tw_group *group, uint64_t seq);
/* The key's message, or one that follows it, is taken for a delivery: the current one, which begins a run, or the last. */
TW_INTERNAL void     tw_order_take(tw_group *group, uint64_t seq);
/* 1: the message follows those of its key that are being taken. */
TW_INTERNAL int      tw_order_may_follow(const tw_group *group, uint64_t seq, uint32_t run_limit);
/* topic_seq + 1 of the one that follows in the chain of the key of a message that was taken, and is taken, too; or 0. */
TW_INTERNAL uint64_t tw_order_follow(const tw_store *store, tw_group *group, uint64_t seq, uint32_t run_limit);
/* A message that was given out behind its key's current one is back, or is done: if that waits for it, it may go. */
TW_INTERNAL void     tw_order_ease(const tw_store *store, tw_group *group, uint64_t seq);
/* The message was given out together with the current one of its key: it is entered behind that. */
TW_INTERNAL void     tw_order_join(tw_group *group, uint64_t seq);
/* Lets a message that was entered, and may not go, wait for its key. */
TW_INTERNAL void     tw_order_park(tw_group *group, uint64_t seq);
/* The group is done with the message, or it was taken out of the topic: the next one of its key may go. */
TW_INTERNAL void     tw_order_leave(const tw_store *store, tw_group *group, uint64_t seq);
/* The group looks at ordering keys no longer: what is parked behind others may go. */
void     tw_orders_release(tw_store *store, uint32_t group_id);
/* It looks at them again: its lane is gone through anew. What subscribers hold makes its keys busy: tw_rebuild_orders. */
void     tw_orders_resume(tw_store *store, uint32_t group_id);
TW_INTERNAL uint32_t tw_order_hash(const tw_store *store, const tw_row *row);

/* ---- change.c ---- */
enum {
    TW_IS_UNKNOWN = 0,
    TW_IS_SCHEDULED = 1,
    TW_IS_READY = 2,     /* in its topic, and no group was given it */
    TW_IS_DELIVERED = 3, /* some group was given it, and some group is not done with it */
    TW_IS_DONE = 4,      /* every group is done with it */
    TW_IS_CANCELLED = 5,
    TW_IS_EXPIRED = 6,
};
TW_INTERNAL int      tw_judge(const tw_store *store, uint64_t id);
void     tw_judge_all(const tw_store *store, const uint64_t *ids, uint64_t n, uint8_t *verdicts);
/* Ends messages (TW_CANCELLED, TW_DAMAGED, TW_EXPIRED, TW_DROPPED) that are scheduled or in their topic; their keys
 * are free. */
int      tw_apply_end(tw_store *store, const uint64_t *ids, uint64_t n, uint8_t state);
/* Gives messages another time, also those that are in their topic already; priority 256: as it is. Runs of one. */
int      tw_apply_reschedule(tw_store *store, const tw_run *runs, uint64_t n, uint32_t priority);

/* ---- bulk.c: messages that others have written as whole segments ---- */
/* The columns of messages, by index. Each text is data[at[i]] to below data[at[i + 1]]; NULL: no message has one. */
typedef struct {
    const uint16_t *topic_ids;
    const int64_t  *deliver_at_ms;
    const uint8_t  *priorities;
    const int64_t  *key_at, *headers_at, *order_at, *body_at;
    const uint8_t  *keys, *headers, *orders, *bodies;
    int64_t         created_ms;
} tw_bulk;

enum { TW_BULK_BAD_RECORD = 1, TW_BULK_BAD_ID = 2, TW_BULK_BAD_MESSAGE = 3, TW_BULK_TAKEN_ID = 4 };

/* Writes the records of order[0..n) with ids from first_id on, as many as fit; returns how many, and their bytes. What
 * is too long for its field must not be handed in. */
uint64_t tw_bulk_build(const tw_bulk *bulk, const uint32_t *order, uint64_t n, uint64_t first_id, uint8_t *out,
                       uint64_t capacity, uint64_t *bytes);
/* The hashes by which a topic with shards spreads its messages; 0 where there is no text. */
void     tw_bulk_hash(const int64_t *at, const uint8_t *data, uint64_t n, uint32_t *hashes);
/* Checks up to `limit` records from *at (which moves; foreign positions) to `end`, with ids that go on at *next_id (which
 * moves) and stay below end_id, and fills in their rows, which stay invisible. A FILL was a message that was rejected
 * before: *filled counts those. 0, or why it stopped at *at. */
int      tw_bulk_check(tw_store *store, uint64_t *at, uint64_t end, uint64_t *next_id, uint64_t end_id, uint64_t limit,
                       uint64_t *filled);
/* Lists the ids that have a key, and its hash, by partition of the key index: entering them so is fast. */
void     tw_bulk_order(const tw_store *store, uint64_t first_id, uint64_t n, uint64_t *ids, uint32_t *hashes,
                       uint64_t *count);
/* Enters keys. Returns how many ids were looked at: fewer than n when partition *need must grow first. Those whose key is
 * there already are listed, with the message that has it. */
uint64_t tw_bulk_enter(tw_store *store, const uint64_t *ids, const uint32_t *hashes, uint64_t n, uint64_t *duplicates,
                       uint64_t *earlier, uint64_t *count, uint64_t *need);
/* Which of the invisible messages [first_id, end_id) have a key that a message from from_id on was sent with meanwhile.
 * Returns how many. */
uint64_t tw_bulk_racers(const tw_store *store, uint64_t from_id, uint64_t n, uint64_t first_id, uint64_t end_id,
                        uint64_t *duplicates, uint64_t *earlier);
/* Takes invisible messages out again, and their keys if they are in the index. */
void     tw_bulk_forget(tw_store *store, const uint64_t *ids, uint64_t n, int with_keys);
/* Makes rows visible, whose foreign position 0 is the log's `base` now. Returns how many. */
uint64_t tw_bulk_adopt(tw_store *store, uint64_t first_id, uint64_t n, uint64_t base);

/* Fills in a frame's 16-byte head in front of its payload. */
int      tw_finish_frame(uint8_t *frame, uint64_t payload_bytes, uint32_t type, uint32_t correlation);

/* ---- rebuild.c: derives from the tables what is never stored ---- */
/* Lists scheduled messages from *from_id on (which moves). */
int64_t  tw_scheduled(const tw_store *store, uint64_t *from_id, uint64_t end_id, uint64_t capacity,
                      int64_t *due_ms, uint64_t *ids, uint32_t *versions);
/* The first and the last message in [from_id, end_id) whose row holds something; 0 if there is none. */
int      tw_rows_used(const tw_store *store, uint64_t from_id, uint64_t end_id, uint64_t *first, uint64_t *last);
/* Lanes and counters of all topics. 0, or -1: an arrival names a message that is not in the table. */
int      tw_rebuild_topics(tw_store *store);
/* Enters the keys of [*from_id, end_id) into the index. Returns 0 when done, TW_STOP_NEED_KEYS with *need. */
int      tw_rebuild_keys(tw_store *store, uint64_t *from_id, uint64_t end_id, uint64_t *need);
/* Moves the cursors of a new group over what lies before its start. */
void     tw_skip_to_start(tw_store *store, uint32_t group_id);
/* Cursors and counters of a group; empties its retry chains. */
int      tw_rebuild_group(tw_store *store, uint32_t group_id);
/* Then, from *from_seq on (which moves): makes the ordering keys of leased messages busy. Returns 0 when done, 1 when
 * the table of busy keys must be grown first. */
int      tw_rebuild_orders(tw_store *store, uint32_t group_id, uint64_t *from_seq);
/* Lists leased messages of a group from *from_seq on (which moves). */
int64_t  tw_leased(tw_store *store, uint32_t group_id, uint64_t *from_seq, uint64_t capacity,
                   int64_t *until_ms, uint64_t *seqs, uint32_t *epochs);

/* ---- purge.c ---- */
typedef struct {
    uint64_t dead;
    uint64_t damaged; /* messages that must be marked as damaged before they can go */
    uint64_t moved;
    uint64_t moved_bytes;
    uint64_t need; /* log bytes that the next message to be moved takes */
} tw_purging;

/* 1 when no group needs the message any more, and it was kept for long enough. */
int      tw_is_dead(const tw_store *store, uint64_t id, int64_t now_ms);
/* Looks at the messages between *at and limit (which lies in the same segment, whose records end by `end`), as far as
 * `capacity` allows; *at moves. Lists those that are dead or damaged, stages MOVED records for the others. Returns 0,
 * TW_STOP_NEED_DISK with result->need, -1 when there are no records where there should be. */
int      tw_purge_plan(tw_store *store, uint64_t *at, uint64_t limit, uint64_t end, int64_t now_ms, uint64_t capacity,
                       uint64_t *dead, uint64_t *damaged, tw_purging *result);
/* Applies a MOVED record. 0, -1 when it does not make sense, TW_STOP_NEED_DELIVERIES with *need. */
int      tw_apply_moved(tw_store *store, uint64_t position, uint64_t *need);
/* What messages have added to the counters of their topics (messages, cancelled) and groups (acked, dead, deliveries). */
void     tw_purge_count(const tw_store *store, const uint64_t *ids, uint64_t n, uint64_t *of_topics, uint64_t *of_groups);
/* Lists the messages whose records still lie between two positions, `capacity` at most; *from moves. Returns how many. */
uint64_t tw_purge_list(const tw_store *store, uint64_t *from, uint64_t to, uint64_t capacity, uint64_t *ids);
/* Forgets every message whose record still lies between two positions. 0, or -1: no records there. */
int      tw_apply_purged(tw_store *store, uint64_t from, uint64_t to);
/* Adds up the messages of [from_id, end_id) by the segment in which their records lie: live ones with the bytes that
 * they take when they are moved, and dead ones. */
void     tw_purge_survey(const tw_store *store, uint64_t from_id, uint64_t end_id, int64_t now_ms, uint64_t first,
                         uint64_t segment_bytes, uint64_t segments, uint64_t *live, uint64_t *live_bytes, uint64_t *dead);
/* The lowest number of a topic, and of a group's rows, that anything refers to: lanes; and what is gone may stand in a chain. */
uint64_t tw_lowest_arrival(const tw_store *store, uint32_t topic_id);
uint64_t tw_lowest_delivery(const tw_store *store, uint32_t group_id);
/* Moves first_seq and first_id up over what is gone, by `limit` at most. Returns 1 when the limit was reached. */
int      tw_raise_first_seq(tw_store *store, uint32_t topic_id, uint64_t limit);
int      tw_raise_first_id(tw_store *store, uint64_t limit);

_Static_assert(sizeof(tw_moved) == 24, "state of a moved message");
_Static_assert(sizeof(tw_moved_group) == 24, "group of a moved message");
_Static_assert(sizeof(tw_head) == 16, "record head");
_Static_assert(sizeof(tw_message) == 48, "message record");
_Static_assert(sizeof(tw_row) == 48, "MessageTable row");
_Static_assert(sizeof(tw_run) == 24, "run");
_Static_assert(sizeof(tw_arrival) == 16, "arrival");
_Static_assert(sizeof(tw_delivery) == 32, "delivery row");
#endif
