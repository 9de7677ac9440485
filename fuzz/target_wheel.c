/* The timer wheel against a list of what is pending: nothing is lost, nothing comes twice or early. With the last bit of
 * the first byte set, chains are damaged: then the only promise is that it notices, or goes on within bounds. */
#include "../native/wheel.h"
#include "harness.h"

enum { TIMERS = 128, OUT = 24 };

typedef struct {
    tw_wheel *wheel;
    tw_timer *log;
    int64_t   due_ms[TIMERS]; /* by ref - 1; 0: not pending */
    uint64_t  pending, next_ref;
    int       is_damaged;
} model_t;

static void fired(model_t *model, uint64_t ref, int64_t now) {
    if (model->is_damaged) return;
    MUST(ref >= 1 && ref < model->next_ref && model->due_ms[ref - 1] && model->due_ms[ref - 1] <= now);
    model->due_ms[ref - 1] = 0;
    model->pending--;
}

static void link_some(model_t *model, input_t *in) {
    int64_t  due[8];
    uint64_t ref[8], n = 1 + take8(in) % 8;
    uint32_t epoch[8] = {0}, owner[8] = {0};
    if (model->next_ref + n > TIMERS) return;
    for (uint64_t i = 0; i < n; i++) {
        uint8_t shift = take8(in) % 47;
        due[i] = model->wheel->tick + (int64_t)((uint64_t)take16(in) << (shift > 30 ? shift - 16 : shift % 20));
        if (due[i] > TW_WHEEL_LAST_DUE_MS || due[i] < 1) due[i] = TW_WHEEL_LAST_DUE_MS;
        ref[i] = model->next_ref + i;
    }
    int64_t before = model->wheel->tick;
    int64_t linked = tw_wheel_link(model->wheel, model->log, TIMERS, due, ref, epoch, owner, n);
    if (model->is_damaged) return;
    MUST(linked >= 0 && (uint64_t)linked <= n);
    for (int64_t i = 0; i < linked; i++) model->due_ms[ref[i] - 1] = due[i] > before ? due[i] : before + 1;
    model->pending += (uint64_t)linked;
    model->next_ref += n;
}

static int turn(model_t *model, int64_t target, uint64_t capacity, uint64_t budget, uint64_t crowd_limit) {
    int64_t   due[OUT], last = 0, before = model->wheel->tick;
    uint64_t  ref[OUT];
    uint32_t  epoch[OUT], owner[OUT];
    int32_t   more = 0;
    tw_timers out = {due, ref, epoch, owner, capacity};
    int64_t   n = tw_wheel_turn(model->wheel, model->log, target, &out, budget, crowd_limit, &more);
    if (n < 0) { MUST(model->is_damaged); return 0; }
    MUST((uint64_t)n <= capacity);
    for (int64_t i = 0; i < n; i++) {
        MUST(model->is_damaged || (due[i] >= last && due[i] <= target));
        last = due[i];
        fired(model, ref[i], target);
    }
    MUST(model->is_damaged || model->wheel->tick >= before);
    return n || more || model->wheel->tick > before;
}

static int walk(model_t *model, uint64_t limit) {
    uint64_t ref[TIMERS];
    uint32_t epoch[TIMERS], owner[TIMERS];
    if (!model->wheel->crowds) return 0;
    int64_t tick = model->wheel->crowd[0].number;
    if (model->wheel->crowd[0].count > TIMERS) { MUST(model->is_damaged); return 0; }
    uint64_t left = model->wheel->crowd[0].count;
    int64_t  n = tw_wheel_walk(model->wheel, model->log, 0, ref, epoch, owner, limit);
    if (n < 0) { MUST(model->is_damaged); return 0; }
    MUST((uint64_t)n <= limit);
    /* Timer j is written to item j, from the newest (the last item) on. */
    for (int64_t i = 0; i < n && !model->is_damaged; i++) fired(model, ref[left - (uint64_t)n + (uint64_t)i], tick);
    return n > 0;
}

/* Counts and positions, of which wheel.h says that they are checked; and the timers' records. */
static void damage(model_t *model, input_t *in) {
    tw_wheel *wheel = model->wheel;
    tw_chain *chains[] = {&wheel->free_list, &wheel->cascade[take8(in) % 3], &wheel->crowd[0], &wheel->slots[0][0]};
    uint8_t   which = take8(in) % 5, place = take8(in), bit = take8(in) | 1;
    model->is_damaged = 1;
    if (which == 4) {
        ((uint8_t *)model->log)[take16(in) % (TIMERS * sizeof(tw_timer))] ^= bit;
        return;
    }
    tw_chain *chain = chains[which];
    if (which == 3) chain = &wheel->slots[take8(in) % TW_LEVELS][take16(in) % TW_SLOTS];
    size_t numbered = offsetof(tw_chain, count);
    ((uint8_t *)chain)[numbered + place % (sizeof(tw_chain) - numbered)] ^= bit;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static model_t model;
    if (size < 1 || size > 2048) return 0;
    input_t in = {data + 1, size - 1};
    if (!model.wheel) { model.wheel = malloc(sizeof(tw_wheel)); model.log = malloc(TIMERS * sizeof(tw_timer)); }
    model = (model_t){.wheel = model.wheel, .log = model.log, .next_ref = 1};
    memset(model.wheel, 0, sizeof(tw_wheel));
    memset(model.log, 0, TIMERS * sizeof(tw_timer));
    tw_wheel_init(model.wheel, START_MS);
    while (in.left) {
        int64_t tick = model.wheel->tick;
        switch (take8(&in) % (data[0] & 1 ? 6 : 5)) {
        case 0: case 1: link_some(&model, &in); break;
        case 2: turn(&model, tick + take16(&in), take8(&in) % (OUT + 1), take8(&in), take8(&in)); break;
        case 3: turn(&model, tick + ((int64_t)take16(&in) << take8(&in) % 24), OUT, 1 + take8(&in), 1 + take8(&in)); break;
        case 4: walk(&model, take8(&in) % TIMERS); break;
        case 5: damage(&model, &in); break;
        }
        if (!model.is_damaged) MUST(model.wheel->pending == model.pending);
        tw_wheel_next_event(model.wheel);
    }
    if (model.is_damaged) return 0;
    for (int turns = 0; model.pending; turns++) {
        int64_t next = tw_wheel_next_event(model.wheel);
        MUST(next != TW_WHEEL_NEVER && turns < 100000);
        while (walk(&model, TIMERS)) continue;
        turn(&model, next > model.wheel->tick ? next : model.wheel->tick, OUT, 64, OUT);
    }
    MUST(tw_wheel_next_event(model.wheel) == TW_WHEEL_NEVER);
    return 0;
}
