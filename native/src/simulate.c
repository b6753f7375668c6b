/* simulate.c - replays a recorded routing trace through cache policies: ours (policy.c, the functions that
 * the store runs) and those it is measured against. Pure functions; no engine, no files. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "colibri.h"
#include "error.h"
#include "fault.h"
#include "policy.h"

#define NEVER INT64_MAX

typedef struct {
    double key; /* the smallest goes first */
    int32_t item;
    uint32_t stamp; /* of the item when this was pushed; an older one is out of date */
} entry;

typedef struct {
    const colibri_replay_options *options;
    int64_t n_items;
    uint8_t *resident;
    uint8_t *wanted;
    uint8_t *guessed; /* 1 = loaded on a guess and not asked for yet */
    int32_t n_resident;
    colibri_replay_result *result;
    /* all but ours */
    uint32_t *stamp;
    double *count; /* LFU: uses; decayed: log2 of the heat at step 0 */
    entry *heap;
    int64_t n_heap, room;
    entry *held;   /* [n_experts] scratch */
    int64_t *next; /* Belady: [accesses] index of the next access to the same item */
    /* ours */
    clb_policy policy;
    int64_t number;      /* of the record */
    int64_t *guessed_in; /* [n_items] record in which the guess was made */
    int32_t *guesses;    /* [slots] items that nobody has asked for yet */
    int32_t n_guesses;
    int32_t pool;
} replay;

/* ---- a heap by key ------------------------------------------------------------------------- */

static int before(const entry *a, const entry *b)
{
    return a->key != b->key ? a->key < b->key : a->item < b->item;
}

static int push(replay *r, double key, int32_t item)
{
    if (r->n_heap == r->room) {
        int64_t room = r->room * 2 + 1024;
        entry *heap = realloc(r->heap, (size_t)room * sizeof *heap);
        if (heap == NULL)
            return 0;
        r->heap = heap;
        r->room = room;
    }
    int64_t at = r->n_heap++;
    const entry new = {key, item, r->stamp[item]};
    while (at > 0 && before(&new, &r->heap[(at - 1) / 2])) {
        r->heap[at] = r->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    r->heap[at] = new;
    return 1;
}

static entry pop(replay *r)
{
    entry top = r->heap[0], last = r->heap[--r->n_heap];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= r->n_heap)
            break;
        if (child + 1 < r->n_heap && before(&r->heap[child + 1], &r->heap[child]))
            child++;
        if (!before(&r->heap[child], &last))
            break;
        r->heap[at] = r->heap[child];
        at = child;
    }
    if (r->n_heap > 0)
        r->heap[at] = last;
    return top;
}

/* The resident item of the smallest key outside the request, -1 = none. */
static int32_t pop_victim(replay *r)
{
    int32_t n_held = 0, victim = -1;
    while (r->n_heap > 0 && victim < 0) {
        entry top = pop(r);
        if (top.stamp != r->stamp[top.item])
            continue;
        if (r->wanted[top.item])
            r->held[n_held++] = top;
        else if (r->resident[top.item])
            victim = top.item;
    }
    while (n_held > 0) {
        n_held--;
        /* There is room: it has just been taken out. */
        (void)push(r, r->held[n_held].key, r->held[n_held].item);
    }
    return victim;
}

/* ---- policies ------------------------------------------------------------------------------ */

static double heap_key(replay *r, int32_t item, int32_t step, int64_t access)
{
    switch (r->options->kind) {
    case COLIBRI_POLICY_LRU:
        return (double)access;
    case COLIBRI_POLICY_LFU:
        /* Ties go to the least recently used. */
        r->count[item] += 1;
        return r->count[item] + (double)access / 1e15;
    case COLIBRI_POLICY_DECAYED_LFU: {
        /* log2(2^a + 2^b), so that no heat ever overflows. */
        double a = r->count[item], b = (double)step / (double)r->options->half_life;
        r->count[item] = a < 0 ? b : b + log2(1 + exp2(a - b));
        return r->count[item];
    }
    default:
        return r->next[access] == NEVER ? -1e18 : -(double)r->next[access];
    }
}

static int may_go(const void *context, int32_t item, int32_t class)
{
    (void)class;
    const replay *r = context;
    return r->resident[item] && !r->wanted[item] && !r->guessed[item];
}

/* Planted fault: whatever is expected soonest. */
static int32_t worst_victim(const replay *r)
{
    int32_t worst = -1;
    for (int32_t i = 0; i < r->n_items; i++)
        if (may_go(r, i, 0) && (worst < 0 || r->policy.heat[i].chance > r->policy.heat[worst].chance))
            worst = i;
    return worst;
}

static int32_t find_victim(replay *r)
{
    if (r->options->kind != COLIBRI_POLICY_OURS)
        return pop_victim(r);
    if (r->options->fault == CLB_FAULT_POLICY)
        return worst_victim(r);
    return clb_policy_victim(&r->policy, 0, may_go, r);
}

static void set_resident(replay *r, int32_t item, int resident)
{
    r->resident[item] = (uint8_t)resident;
    r->n_resident += resident ? 1 : -1;
    if (r->options->kind == COLIBRI_POLICY_OURS)
        clb_policy_changed(&r->policy, item / r->options->n_experts);
}

static void drop_guess(replay *r, int32_t place)
{
    r->guessed[r->guesses[place]] = 0;
    r->guesses[place] = r->guesses[--r->n_guesses];
}

static void guess_came_true(replay *r, int32_t item)
{
    int32_t place = 0;
    while (r->guesses[place] != item)
        place++;
    drop_guess(r, place);
    r->result->guesses_useful++;
}

/* Place in the list of a guess that its request did not ask for; -1 = none. With `any`, any that may go. */
static int32_t wrong_guess(const replay *r, int any)
{
    for (int32_t i = 0; i < r->n_guesses; i++)
        if (!r->wanted[r->guesses[i]] && (any || r->guessed_in[r->guesses[i]] < r->number))
            return i;
    return -1;
}

static void give_up_guess(replay *r, int32_t place)
{
    int32_t item = r->guesses[place];
    drop_guess(r, place);
    set_resident(r, item, 0);
}

/* As clb_store_take_slot does it. 0 = no room. */
static int make_room(replay *r)
{
    int free = r->n_resident < r->options->slots;
    if (free && r->n_resident - r->n_guesses < r->options->slots - r->pool)
        return 1;
    int32_t victim = find_victim(r), wrong = victim < 0 ? wrong_guess(r, 1) : -1;
    if (victim >= 0)
        set_resident(r, victim, 0);
    else if (wrong >= 0)
        give_up_guess(r, wrong);
    return free || victim >= 0 || wrong >= 0;
}

static int make_room_for_guess(replay *r)
{
    if (r->n_resident < r->options->slots)
        return 1;
    int greedy = r->options->fault == CLB_FAULT_GUESSES && r->n_guesses < 2 * r->pool;
    int32_t wrong = greedy ? -1 : wrong_guess(r, 0);
    if (wrong >= 0) {
        give_up_guess(r, wrong);
        return 1;
    }
    if (r->n_guesses >= r->pool && !greedy)
        return 0;
    int32_t victim = find_victim(r);
    if (victim < 0 || (r->policy.heat[victim].chance >= CLB_POLICY_COLD && !greedy))
        return 0;
    set_resident(r, victim, 0);
    r->result->demand_evictions += r->n_resident - r->n_guesses < r->options->slots - r->pool;
    return 1;
}

/* Loads experts of a request to come, some of them wrong ones. */
static void guess(replay *r, const int32_t *record)
{
    int32_t n_experts = r->options->n_experts;
    for (int32_t i = 0; i < record[3]; i++) {
        uint32_t hash =
            ((uint32_t)record[0] * 31u + (uint32_t)record[1]) * 2654435761u + (uint32_t)i * 40503u;
        hash = (hash ^ hash >> 15) * 2246822519u;
        hash ^= hash >> 13;
        int32_t expert = record[CLB_TRACE_HEAD + i];
        if ((float)(hash % 1000) >= r->options->guess_share * 1000)
            expert = (int32_t)((uint32_t)expert + 1 + hash / 1000 % (uint32_t)n_experts) % n_experts;
        int32_t item = record[1] * n_experts + expert;
        if (r->resident[item] || r->n_guesses >= r->options->slots / 2 || !make_room_for_guess(r))
            continue;
        r->guessed[item] = 1;
        r->guessed_in[item] = r->number;
        r->guesses[r->n_guesses++] = item;
        r->result->guesses++;
        set_resident(r, item, 1);
    }
}

/* One request: all its hits are counted before anything is given up, as in the store. */
static int request(replay *r, const int32_t *record, int64_t access)
{
    int32_t layer = record[1], rows = record[2], n = record[3];
    const int32_t *experts = record + CLB_TRACE_HEAD;
    int32_t first = layer * r->options->n_experts;
    int ours = r->options->kind == COLIBRI_POLICY_OURS;
    int scan = clb_policy_is_scan(r->options->n_experts, n, rows);
    r->number++;
    for (int32_t i = 0; i < n; i++)
        r->wanted[first + experts[i]] = 1;
    if (ours)
        clb_policy_use(&r->policy, layer, experts, n, rows);
    for (int32_t i = 0; i < n; i++) {
        int32_t item = first + experts[i];
        if (!scan) {
            r->result->lookups++;
            r->result->hits += r->resident[item];
        }
        if (r->guessed[item])
            guess_came_true(r, item);
        if (!ours) {
            r->stamp[item]++;
            if (!push(r, heap_key(r, item, record[0], access + i), item))
                return 0;
        }
    }
    for (int32_t i = 0; i < n; i++) {
        if (!r->resident[first + experts[i]] && make_room(r))
            set_resident(r, first + experts[i], 1);
        if (scan) {
            /* A prompt's experts are used one after the other. */
            r->wanted[first + experts[i]] = 0;
            if (ours)
                clb_policy_changed(&r->policy, layer);
        }
    }
    for (int32_t i = 0; i < n; i++)
        r->wanted[first + experts[i]] = 0;
    if (ours)
        clb_policy_changed(&r->policy, layer);
    return 1;
}

/* ---- set-up -------------------------------------------------------------------------------- */

/* Refuses records that are cut off or out of range; counts the experts asked for. */
static int32_t check(const colibri_replay_options *o, const int32_t *records, int64_t n_words,
                     int64_t *accesses, const clb_error *error)
{
    *accesses = 0;
    int32_t step = INT32_MIN;
    uint8_t *seen = calloc((size_t)o->n_experts, 1);
    int32_t status = COLIBRI_OK;
    if (seen == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory to replay a trace");
    for (int64_t at = 0; at < n_words && status == COLIBRI_OK;) {
        const int32_t *record = records + at;
        if (n_words - at < CLB_TRACE_HEAD || record[3] < 0 || record[3] > n_words - at - CLB_TRACE_HEAD)
            status =
                clb_fail(error, COLIBRI_ERROR_FORMAT, "the trace ends in mid-record at word %" PRId64, at);
        else if (record[0] < step || record[1] < 0 || record[1] >= o->n_layers || record[2] < 1 ||
                 record[3] > o->n_experts)
            status = clb_fail(error, COLIBRI_ERROR_FORMAT,
                              "the trace's record at word %" PRId64 " is out of range", at);
        for (int32_t i = 0; status == COLIBRI_OK && i < record[3]; i++) {
            int32_t expert = record[CLB_TRACE_HEAD + i];
            if (expert < 0 || expert >= o->n_experts || seen[expert])
                status = clb_fail(error, COLIBRI_ERROR_FORMAT,
                                  "the trace's record at word %" PRId64 " names expert %" PRId32
                                  " wrongly or twice",
                                  at, expert);
            else
                seen[expert] = 1;
        }
        if (status != COLIBRI_OK)
            break;
        for (int32_t i = 0; i < record[3]; i++)
            seen[record[CLB_TRACE_HEAD + i]] = 0;
        step = record[0];
        *accesses += record[3];
        at += CLB_TRACE_HEAD + record[3];
    }
    free(seen);
    return status;
}

static int find_next_uses(replay *r, const int32_t *records, int64_t n_words, int64_t accesses)
{
    int64_t *last = malloc((size_t)r->n_items * sizeof *last);
    r->next = malloc((size_t)(accesses + 1) * sizeof *r->next);
    if (last == NULL || r->next == NULL) {
        free(last);
        return 0;
    }
    for (int64_t i = 0; i < r->n_items; i++)
        last[i] = -1;
    int64_t access = 0;
    for (int64_t at = 0; at < n_words; at += CLB_TRACE_HEAD + records[at + 3])
        for (int32_t i = 0; i < records[at + 3]; i++, access++) {
            int64_t item =
                (int64_t)records[at + 1] * r->options->n_experts + records[at + CLB_TRACE_HEAD + i];
            r->next[access] = NEVER;
            if (last[item] >= 0)
                r->next[last[item]] = access;
            last[item] = access;
        }
    free(last);
    return 1;
}

static int set_up(replay *r, const int32_t *records, int64_t n_words, int64_t accesses)
{
    size_t n = (size_t)r->n_items;
    r->resident = calloc(n, 1);
    r->wanted = calloc(n, 1);
    r->guessed = calloc(n, 1);
    r->guessed_in = calloc(n, sizeof *r->guessed_in);
    r->pool = r->options->guess_share > 0 ? clb_policy_pool(r->options->slots) : 0;
    r->guesses = malloc(((size_t)r->options->slots + 1) * sizeof *r->guesses);
    if (!r->resident || !r->wanted || !r->guessed || !r->guessed_in || !r->guesses)
        return 0;
    if (r->options->kind == COLIBRI_POLICY_OURS)
        return clb_policy_open(&r->policy, r->options->n_layers, r->options->n_experts);
    r->stamp = calloc(n, sizeof *r->stamp);
    r->held = malloc((size_t)r->options->n_experts * sizeof *r->held);
    r->count = malloc(n * sizeof *r->count);
    if (!r->stamp || !r->count || !r->held)
        return 0;
    for (size_t i = 0; i < n; i++)
        r->count[i] = r->options->kind == COLIBRI_POLICY_LFU ? 0 : -1;
    return r->options->kind != COLIBRI_POLICY_BELADY || find_next_uses(r, records, n_words, accesses);
}

static int run(replay *r, const int32_t *records, int64_t n_words)
{
    int64_t access = 0;
    int32_t step = n_words > 0 ? records[0] : 0;
    for (int64_t at = 0; at < n_words; at += CLB_TRACE_HEAD + records[at + 3]) {
        if (r->options->kind == COLIBRI_POLICY_OURS)
            clb_policy_pass(&r->policy, (int64_t)records[at] - step);
        step = records[at];
        if (!request(r, records + at, access))
            return 0;
        access += records[at + 3];
        int64_t next = at + CLB_TRACE_HEAD + records[at + 3];
        if (r->pool > 0 && next < n_words &&
            !clb_policy_is_scan(r->options->n_experts, records[next + 3], records[next + 2]))
            guess(r, records + next);
    }
    return 1;
}

static int32_t check_options(const colibri_replay_options *o, const clb_error *error)
{
    if (o->kind < COLIBRI_POLICY_OURS || o->kind > COLIBRI_POLICY_BELADY)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "replay: unknown policy %" PRId32, o->kind);
    if (o->n_layers < 1 || o->n_layers > 65536 || o->n_experts < 1 || o->n_experts > 65536 ||
        (int64_t)o->n_layers * o->n_experts > 1 << 24)
        return clb_fail(error, COLIBRI_ERROR_INVALID,
                        "replay: %" PRId32 " layers of %" PRId32 " experts are out of range", o->n_layers,
                        o->n_experts);
    if (o->slots < 1)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "replay: a cache needs at least one slot");
    if (o->kind == COLIBRI_POLICY_DECAYED_LFU && !(o->half_life > 0))
        return clb_fail(error, COLIBRI_ERROR_INVALID, "replay: the half-life must be above 0 steps");
    if (!(o->guess_share >= 0 && o->guess_share <= 1) ||
        (o->guess_share > 0 && o->kind != COLIBRI_POLICY_OURS))
        return clb_fail(error, COLIBRI_ERROR_INVALID,
                        "replay: a share of right guesses lies between 0 and 1, and belongs to our policy");
    return COLIBRI_OK;
}

int32_t colibri_policy_replay(const colibri_replay_options *options, const int32_t *records, int64_t n_words,
                              colibri_replay_result *result, char *err, size_t err_len)
{
    const clb_error error = {err, err_len};
    if (options == NULL || result == NULL || n_words < 0 || (records == NULL && n_words > 0) ||
        options->struct_size < sizeof *options || result->struct_size < sizeof *result)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "replay: options, trace or result missing");
    *result = (colibri_replay_result){.struct_size = result->struct_size};
    int64_t accesses = 0;
    int32_t status = check_options(options, &error);
    if (status == COLIBRI_OK)
        status = check(options, records, n_words, &accesses, &error);
    if (status != COLIBRI_OK)
        return status;
    replay r = {
        .options = options, .n_items = (int64_t)options->n_layers * options->n_experts, .result = result};
    if (!set_up(&r, records, n_words, accesses) || !run(&r, records, n_words))
        status = clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory to replay a trace");
    free(r.resident);
    free(r.wanted);
    free(r.guessed);
    free(r.guessed_in);
    free(r.guesses);
    free(r.stamp);
    free(r.count);
    free(r.heap);
    free(r.held);
    free(r.next);
    clb_policy_close(&r.policy);
    return status;
}
