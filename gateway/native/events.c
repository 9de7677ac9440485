/* Areas of memory that grow, the events in one of them, and what a callback finds and says: what sessions, requests and answers
 * share. */
#include "session.h"

int area_reserve(area_t *area, size_t more) {
    if (more <= area->capacity - area->count) return 0;
    size_t capacity = area->capacity ? area->capacity : 1024;
    while (capacity - area->count < more) {
        if (capacity > (UINT32_MAX >> 1)) return -1;
        capacity *= 2;
    }
    void *at = realloc(area->at, capacity * area->each);
    if (!at) return -1;
    area->at = at;
    area->capacity = capacity;
    return 0;
}

void *area_put(area_t *area, const void *data, size_t count) {
    if (area_reserve(area, count)) return NULL;
    char *at = (char *)area->at + area->count * area->each;
    if (count) memcpy(at, data, count * area->each);
    area->count += count;
    return at;
}

void area_clear(area_t *area, size_t keep) {
    area->count = 0;
    if (area->capacity <= keep) return;
    free(area->at);
    area->at = NULL;
    area->capacity = 0;
}

tw_http2_event *tell(session_t *session, uint32_t kind, const stream_t *stream) {
    tw_http2_event event = {.kind = kind, .seconds = -1};
    if (stream) {
        event.stream_id = (uint32_t)stream->id;
        event.value = stream->method;
        event.head = stream->head;
        event.seconds = stream->seconds;
    }
    return area_put(&session->host->events, &event, 1);
}

stream_t *stream_of(session_t *session, uint32_t stream_id) {
    if (stream_id > INT32_MAX) return NULL;
    return nghttp2_session_get_stream_user_data(session->nghttp2, (int32_t)stream_id);
}

int fail(session_t *session, int why) {
    if (!session->failure) session->failure = why;
    return NGHTTP2_ERR_CALLBACK_FAILURE;
}
