/* What the gateway does for each message, many at a time: requests of RocketMQ's clients become columns for the broker,
 * and what it delivers becomes their answers. Only the usual is done here. All else is "hard" and left to the Python code
 * (tickwheel_gateway.wire), which alone decides what is refused, and how. No function keeps or allocates anything. */
#ifndef TICKWHEEL_WIRE_H
#define TICKWHEEL_WIRE_H
#include <stdint.h>

/* The numbers of a SendMessage: whether it is usual, then where in the requests its texts are, where in the output its
 * key and headers are (each as start and end), and its values. */
enum {
    TW_SENT_IS_USUAL = 0,
    TW_SENT_TOPIC = 1,
    TW_SENT_ID = 3,
    TW_SENT_BODY = 5,
    TW_SENT_ORDER = 7,
    TW_SENT_KEY = 9,
    TW_SENT_HEADERS = 11,
    TW_SENT_DELIVER_AT = 13, /* -1: none is given */
    TW_SENT_PRIORITY = 14,   /* -1: none is given */
    TW_SENT_NUMBERS = 15,
};

/* The numbers of an AckMessage. */
enum {
    TW_ACKED_IS_USUAL = 0,
    TW_ACKED_GROUP = 1,
    TW_ACKED_ID = 2,
    TW_ACKED_EPOCH = 3,
    TW_ACKED_MESSAGE = 4,
    TW_ACKED_HANDLE = 6,
    TW_ACKED_NUMBERS = 8,
};

/* The numbers of a message that is delivered: whether it is usual, where it is in the output, and where in the payload
 * its tag is; without a tag -1. */
enum {
    TW_GIVEN_IS_USUAL = 0,
    TW_GIVEN_AT = 1,
    TW_GIVEN_TAG = 3,
    TW_GIVEN_NUMBERS = 5,
};

/* What holds for all messages of some calls. */
typedef struct {
    const uint8_t *client;
    uint64_t       client_bytes;
    const uint8_t *host;
    uint64_t       host_bytes;
    const uint8_t *mark; /* of the client: 8 bytes of text, behind each id in a key */
    const uint8_t *reserved; /* names that no property may have, each ends with a zero */
    uint64_t       reserved_bytes;
    uint64_t       max_id_bytes;
    uint64_t       max_group_bytes;
    uint64_t       max_properties_bytes;
    uint64_t       max_body_bytes;
    int64_t        now_ms; /* a message that was due by then is not usual: its time has to be kept apart */
    int64_t        max_deliver_at_ms;
} tw_sender;

/* What holds for all messages of an answer to ReceiveMessage. */
typedef struct {
    const uint8_t *topic; /* a Resource */
    uint64_t       topic_bytes;
    const uint8_t *store_host;
    uint64_t       store_host_bytes;
    int64_t        invisible_ms;
    uint64_t       until_ms;
    uint64_t       number; /* of the first receipt handle; each has the next one */
} tw_receiver;

/* Reads SendMessageRequests that lie one behind the other and end where `ends` says. Writes TW_SENT_NUMBERS of each, and
 * keys and headers to `out`. Returns how much of `out` is used. */
uint64_t tw_wire_sends(
    const uint8_t *requests, const uint64_t *ends, uint64_t count, const tw_sender *sender, int64_t *numbers, uint8_t *out,
    uint64_t capacity
);
/* Writes the SendMessageResponse to each of them, stored under these ids, and where each ends. Messages due after now have
 * recall handles. Returns how many were written: fewer than `count` when there is no room for more. */
uint64_t tw_wire_stored(
    const uint8_t *requests, const int64_t *numbers, const uint64_t *ids, uint64_t count, int64_t now_ms, uint8_t *out,
    uint64_t capacity, uint64_t *ends
);
/* Reads AckMessageRequests. Writes TW_ACKED_NUMBERS of each. */
void tw_wire_acks(
    const uint8_t *requests, const uint64_t *ends, uint64_t count, uint64_t max_id, int64_t now_ms, int64_t *numbers
);
/* Writes the AckMessageResponse to each of them, all of them acked. Returns as tw_wire_stored. */
uint64_t tw_wire_acked(
    const uint8_t *requests, const int64_t *numbers, uint64_t count, uint8_t *out, uint64_t capacity, uint64_t *ends
);
/* Reads the payload of a DELIVER. Writes TW_GIVEN_NUMBERS of each message, and the usual ones as ReceiveMessageResponse to
 * `out`. Returns 0, or 1 when the payload is none. */
uint64_t tw_wire_given(
    const uint8_t *payload, uint64_t bytes, const uint16_t *attempts, uint64_t count, const tw_receiver *receiver,
    int64_t *numbers, uint8_t *out, uint64_t capacity
);
#endif
