/* The gateway's side of an HTTP/2 connection: any bytes, cut anywhere, and any answers. Events make sense, what leaves is
 * whole frames, and memory is bounded and given back. */
#include "../gateway/native/http2.h"
#include "harness.h"

enum {
    STREAMS = 64, /* those that are followed; there may be more */
    MEMORY_BYTES = 1 << 20,
    PENDING_BYTES = 1 << 14,
    NONE = 0,
    BEGUN,
    ASKED,
    OVER,
};

static const char paths[] = "/t/Echo\0/t/Chat";
static const char takes[] = {0, 1};
static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

typedef struct {
    void    *host, *session;
    input_t  choices;
    uint8_t  states[STREAMS], method[STREAMS];
    uint32_t inbox;
} run_t;

static uint8_t *state_of(run_t *run, uint32_t stream) {
    static uint8_t other;
    MUST(stream > 0 && stream <= INT32_MAX && stream % 2 == 1);
    other = ASKED;
    return stream / 2 < STREAMS ? &run->states[stream / 2] : &other;
}

static void fail_call(run_t *run, uint32_t stream) {
    static const char text[] = "grpc-status\0" "13\0grpc-message\0no\0";
    if (tw_http2_end(run->session, stream, text, sizeof text - 1, 0) == 1) *state_of(run, stream) = OVER;
}

static void answer(run_t *run, uint32_t stream) {
    static const char message[3000];
    uint32_t          sizes[2] = {take8(&run->choices) * 10u, 3}, ids[2] = {stream, stream + 2};
    switch (take8(&run->choices) % 8) {
    case 0:
        fail_call(run, stream);
        break;
    case 1:
        tw_http2_send(run->session, stream, message, sizes[0]);
        tw_http2_send(run->session, stream, message, 20);
        tw_http2_take_back(run->session, stream, take8(&run->choices) % 3, take8(&run->choices) % 3, 1);
        break;
    case 2:
        tw_http2_send(run->session, stream, message, sizes[0]);
        tw_http2_finish(run->session, stream);
        tw_http2_take_back(run->session, stream, 0, 1, take8(&run->choices) % 2);
        break;
    case 3:
        tw_http2_finish(run->session, stream);
        break;
    case 4:
        break; /* later, or never */
    default:
        MUST(tw_http2_reply(run->session, ids, sizes, 2, message, sizes[0] + 3) == 0 || tw_http2_has_ended(run->session));
    }
}

static void look_at_events(run_t *run) {
    const tw_http2_counts *counts = tw_http2_counted(run->host);
    uint32_t               heads = 0;
    for (uint64_t i = 0; i < counts->events; i++) {
        tw_http2_event event = tw_http2_events(run->host)[i];
        const char    *arena = tw_http2_arena(run->host);
        uint8_t       *state = event.stream_id ? state_of(run, event.stream_id) : NULL;
        int            has_text = event.kind == TW_HTTP2_HEAD || event.kind == TW_HTTP2_ASKED || event.kind == TW_HTTP2_WHOLE ||
                       event.kind == TW_HTTP2_MESSAGE ||
                       (event.kind == TW_HTTP2_JUDGED && event.value != TW_HTTP2_LARGE_MESSAGE);
        MUST(!has_text || (uint64_t)event.at + event.size <= counts->arena_bytes);
        if (has_text && event.size) MUST(arena[event.at] + arena[event.at + event.size - 1] < 999); /* both can be read */
        switch (event.kind) {
        case TW_HTTP2_HEAD:
            MUST(event.size == 0 || arena[event.at + event.size - 1] == 0);
            heads++;
            break;
        case TW_HTTP2_BEGAN:
        case TW_HTTP2_ASKED:
            MUST(event.head < heads && event.value >= 0 && event.value < 2);
            MUST(*state == NONE || event.stream_id / 2 >= STREAMS);
            MUST(event.kind == TW_HTTP2_BEGAN || event.value == 0);
            *state = event.kind == TW_HTTP2_BEGAN ? BEGUN : ASKED;
            if (event.stream_id / 2 < STREAMS) run->method[event.stream_id / 2] = (uint8_t)event.value;
            answer(run, event.stream_id);
            break;
        case TW_HTTP2_WHOLE:
            MUST(*state != NONE);
            *state = ASKED;
            answer(run, event.stream_id);
            break;
        case TW_HTTP2_MESSAGE:
        case TW_HTTP2_ENDED:
            MUST(*state != NONE && (event.stream_id / 2 >= STREAMS || run->method[event.stream_id / 2] == 1));
            if (take8(&run->choices) % 4) tw_http2_took(run->session, event.stream_id);
            answer(run, event.stream_id);
            break;
        case TW_HTTP2_JUDGED:
            MUST(event.value >= TW_HTTP2_NOT_POST && event.value <= TW_HTTP2_NO_MESSAGE);
            *state = ASKED;
            fail_call(run, event.stream_id);
            break;
        case TW_HTTP2_RESET:
            *state = OVER;
            break;
        default:
            MUST(event.kind == TW_HTTP2_LEAVING || event.kind == TW_HTTP2_FAREWELL);
        }
    }
}

static void drain(run_t *run) {
    for (int i = 0; i < 1000; i++) {
        tw_http2_drain(run->session);
        const tw_http2_counts *counts = tw_http2_counted(run->host);
        const uint8_t         *out = (const uint8_t *)tw_http2_out(run->host);
        uint64_t               at = 0;
        while (at < counts->out_bytes) {
            MUST(counts->out_bytes - at >= 9);
            at += 9 + ((uint64_t)out[at] << 16 | (uint64_t)out[at + 1] << 8 | out[at + 2]);
        }
        MUST(at == counts->out_bytes);
        for (uint64_t n = 0; n < counts->over; n++) *state_of(run, tw_http2_over(run->host)[n]) = OVER;
        for (uint64_t n = 0; n < counts->whole; n++) MUST(tw_http2_whole(run->host)[2 * n + 1] > 0);
        look_at_events(run);
        if (!at) return;
    }
    MUST(!"it ends");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3 || size > 1 << 15) return 0;
    tw_http2_limits limits = {.streams = 8, .message_bytes = 2000, .pending_bytes = PENDING_BYTES, .header_list_bytes = 1000,
                              .header_block_bytes = 4000, .stream_window_bytes = 4000, .connection_window_bytes = 1 << 20,
                              .resets_a_second = 20, .control_answers = 50, .settings_weight = 10, .empty_frames = 50,
                              .header_parts = 10, .memory_bytes = MEMORY_BYTES};
    uint8_t  how = data[0], cut = data[1];
    uint32_t choices = data[2];
    data += 3, size -= 3;
    if (choices > size) choices = (uint32_t)size;
    run_t run = {.choices = {data, choices}, .host = tw_http2_host(paths, sizeof paths, takes, 2, &limits)};
    MUST(run.host != NULL);
    MUST((run.session = tw_http2_open(run.host)) != NULL);
    data += choices, size -= choices;
    double   now = 1;
    uint8_t *whole = malloc(size + sizeof preface - 1);
    MUST(whole != NULL);
    size_t before = how & 1 ? 0 : sizeof preface - 1;
    memcpy(whole, preface, before);
    if (size) memcpy(whole + before, data, size);
    size += before;
    int result = 0;
    for (size_t at = 0; at < size && !result;) {
        size_t   part = cut && cut < size - at ? cut : size - at;
        uint8_t *exact = exact_copy(whole + at, part);
        result = tw_http2_feed(run.session, (const char *)exact, part, now += 0.01);
        free(exact);
        at += part;
        look_at_events(&run);
        MUST(tw_http2_memory_bytes(run.session) <= MEMORY_BYTES);
        MUST(tw_http2_partial_bytes(run.session) <= PENDING_BYTES + 8 * 2005);
        if (how & 2) tw_http2_blocked_since(run.session, now);
        if (how & 4) tw_http2_refuse_after(run.session, tw_http2_last_stream(run.session));
        if (!(how & 8) || at >= size) drain(&run);
    }
    MUST(result <= 0);
    if (result) MUST(tw_http2_feed(run.session, "x", 1, now) == result);
    drain(&run);
    for (uint32_t stream = 1; stream < 2 * STREAMS; stream += 2) /* what is not there is passed over */
        if (take8(&run.choices) % 2) answer(&run, stream);
    drain(&run);
    tw_http2_close(run.session);
    tw_http2_free_host(run.host);
    free(whole);
    return 0;
}
