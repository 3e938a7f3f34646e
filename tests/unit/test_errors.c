/* The error table: one change to a valid call, and the status that every function which goes by
 * that rule must answer with. Nothing may be written, whichever rule is broken. */
#define _DEFAULT_SOURCE /* alarm() */
#include "check.h"
#include "problem.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Which functions a change concerns. COUNT is set_count, SIZES both workspace sizes: they answer 0.
 * The sizes serve snapkv_vote() too, and like it don't look at capacity, kernel and pinning. */
enum {
    COUNT = 1,
    SIZES = 2,
    CHECK = 4,
    VOTE = 8,
    SELECT = 16,
    COMPRESS = 32,
    MASS = 64,
    COMPRESS_LAYER = 128,
    SCORE = 256,
    GATHER = 512,
    WORKING = VOTE | SELECT | COMPRESS | COMPRESS_LAYER | MASS | SCORE, /* take a workspace */
    LISTS = SELECT | COMPRESS,
    WRITING = COMPRESS | COMPRESS_LAYER | GATHER,
    MOVES = CHECK | COMPRESS | COMPRESS_LAYER,
    RULES = CHECK | WORKING,
    ALL = COUNT | SIZES | RULES
};

/* A valid call of everything, to be spoilt. */
typedef struct attempt {
    problem p;
    snapkv_config config;
    snapkv_layer layer;
    const snapkv_config *config_at;
    const snapkv_layer *layer_at;
    size_t set, query_head;
    int32_t *kept;
    float *scores, *votes, *mass;
    snapkv_selection *selection;
    snapkv_rows_out keys_out, values_out;
    const snapkv_rows_out *keys_out_at, *values_out_at;
    const float *query;
    size_t position;
    const int32_t *list;
    size_t n_list;
    void *workspace;
    size_t workspace_size;
    guard outputs[7];
    guard scratch;
} attempt;

static const float QUERY[8] = {1, 0.5f, -1, 2, 0, 0.25f, 1, -2};
static const int32_t LIST[4] = {0, 7, 11, 39};
static const float SINKS[4] = {1, 0, -1, 2};
static const float SLOPES[4] = {0.5f, 0.25f, 0.125f, 0.0625f};

/* Four query heads on two K/V heads, 40 positions, W 4, C 12, D 8. */
static void start(attempt *a) {
    splitmix random = {41};
    memset(a, 0, sizeof *a);
    a->p = problem_new(make_config(4, 12, 3), 4, 2, 40, 8);
    problem_fill(&a->p, &random, 4, 1);
    problem_pack_plainly(&a->p);
    a->config = a->p.config;
    a->layer = a->p.layer;
    a->config_at = &a->config;
    a->layer_at = &a->layer;
    static const size_t sizes[7] = {4 * 12 * 4, 36 * 4, 4 * sizeof(snapkv_selection), 36 * 4, 4,
                                    4 * 12 * 32, 4 * 12 * 32};
    for (size_t i = 0; i < 7; i++) {
        a->outputs[i] = guard_new(sizes[i], GUARD_AFTER);
    }
    a->kept = (int32_t *)(void *)a->outputs[0].data;
    a->scores = (float *)(void *)a->outputs[1].data;
    a->selection = (snapkv_selection *)(void *)a->outputs[2].data;
    a->votes = (float *)(void *)a->outputs[3].data;
    a->mass = (float *)(void *)a->outputs[4].data;
    a->keys_out.data = a->outputs[5].data;
    a->values_out.data = a->outputs[6].data;
    a->keys_out.row_stride = a->values_out.row_stride = 32;
    a->keys_out.head_stride = a->values_out.head_stride = 12 * 32;
    a->keys_out_at = &a->keys_out;
    a->values_out_at = &a->values_out;
    a->query = QUERY;
    a->position = 40;
    a->list = LIST;
    a->n_list = 4;
    a->workspace_size = snapkv_workspace_size(&a->config, &a->layer);
    a->scratch = guard_new(a->workspace_size, GUARD_AFTER);
    a->workspace = a->scratch.data;
}

static snapkv_status run(attempt *a, int function) {
    switch (function) {
    case CHECK:
        return snapkv_check(a->config_at, a->layer_at);
    case VOTE:
        return snapkv_vote(a->config_at, a->layer_at, a->query_head, a->votes, a->workspace,
                           a->workspace_size);
    case SELECT:
        return snapkv_select(a->config_at, a->layer_at, a->set, a->kept, a->scores, a->selection,
                             a->workspace, a->workspace_size);
    case COMPRESS:
        return snapkv_compress(a->config_at, a->layer_at, a->set, a->kept, a->keys_out_at,
                               a->values_out_at, a->selection, a->workspace, a->workspace_size);
    case COMPRESS_LAYER:
        return snapkv_compress_layer(a->config_at, a->layer_at, a->kept, a->keys_out_at,
                                     a->values_out_at, a->selection, a->workspace,
                                     a->workspace_size);
    case SCORE:
        return snapkv_score(a->config_at, a->layer_at, a->set, a->scores, a->votes, a->workspace,
                            a->workspace_size);
    case GATHER:
        return snapkv_gather(a->config_at, a->layer_at, a->set, a->list, a->n_list, a->keys_out_at,
                             a->values_out_at);
    default:
        return snapkv_retained_mass(a->config_at, a->layer_at, a->query_head, a->query, a->position,
                                    a->list, a->n_list, a->mass, a->workspace, a->workspace_size);
    }
}

static const char *name_of(int function) {
    switch (function) {
    case CHECK:
        return "check";
    case VOTE:
        return "vote";
    case SELECT:
        return "select";
    case COMPRESS:
        return "compress";
    case COMPRESS_LAYER:
        return "compress_layer";
    case SCORE:
        return "score";
    case GATHER:
        return "gather";
    default:
        return "retained_mass";
    }
}

static void judge(attempt *a, snapkv_status expected, int functions, const char *change, int line) {
    for (int function = CHECK; function <= GATHER; function *= 2) {
        if (!(functions & function)) {
            continue;
        }
        snapkv_status status = run(a, function);
        if (status != expected) {
            print_error("%s\n  snapkv_%s gives \"%s\" (%d), not \"%s\" (%d)\n", change,
                        name_of(function), snapkv_status_string(status), (int)status,
                        snapkv_status_string(expected), (int)expected);
            _fail(__FILE__, line);
        }
        if (function == CHECK &&
            (snapkv_explain(a->config_at, a->layer_at) == NULL) != (status == SNAPKV_OK)) {
            print_error("%s\n  snapkv_explain does not agree with snapkv_check\n", change);
            _fail(__FILE__, line);
        }
        for (size_t i = 0; i < 7 && status != SNAPKV_OK; i++) {
            guard_check_untouched(&a->outputs[i]);
        }
    }
    if (functions & COUNT && snapkv_set_count(a->config_at, a->layer_at) != 0) {
        print_error("%s\n  set_count isn't 0\n", change);
        _fail(__FILE__, line);
    }
    if (functions & SIZES && (snapkv_workspace_size(a->config_at, a->layer_at) != 0 ||
                              snapkv_workspace_min(a->config_at, a->layer_at) != 0)) {
        print_error("%s\n  a workspace size isn't 0\n", change);
        _fail(__FILE__, line);
    }
    for (size_t i = 0; i < 7; i++) {
        guard_free(&a->outputs[i]);
    }
    guard_free(&a->scratch);
    problem_free(&a->p);
}

#define EXPECT(expected, functions, change)                                                        \
    do {                                                                                           \
        attempt a;                                                                                 \
        start(&a);                                                                                 \
        change;                                                                                    \
        judge(&a, expected, functions, #change, __LINE__);                                         \
    } while (0)

static void test_the_unspoilt_call(void **state) {
    (void)state;
    EXPECT(SNAPKV_OK, RULES, (void)a);
    EXPECT(SNAPKV_OK, SELECT, a.scores = NULL);
    EXPECT(SNAPKV_OK, LISTS, a.selection = NULL);
    EXPECT(SNAPKV_OK, RULES & ~(COMPRESS | COMPRESS_LAYER),
           memset(&a.layer.values, 0, sizeof a.layer.values));
    EXPECT(SNAPKV_OK, LISTS | SCORE | GATHER, a.set = 1);
    EXPECT(SNAPKV_OK, VOTE | MASS, a.query_head = 3);
    EXPECT(SNAPKV_OK, MASS, a.position = 39);
    EXPECT(SNAPKV_OK, MASS, a.position = INT32_MAX);
    EXPECT(SNAPKV_OK, MASS | GATHER, a.n_list = 0);
    EXPECT(SNAPKV_OK, SCORE, a.votes = NULL);
}

static void test_null(void **state) {
    (void)state;
    EXPECT(SNAPKV_ERROR_NULL, ALL, a.config_at = NULL);
    EXPECT(SNAPKV_ERROR_NULL, ALL, a.layer_at = NULL);
    EXPECT(SNAPKV_ERROR_NULL, RULES, a.layer.queries.data = NULL);
    EXPECT(SNAPKV_ERROR_NULL, RULES, a.layer.keys.data = NULL);
    EXPECT(SNAPKV_ERROR_NULL, COMPRESS | COMPRESS_LAYER, a.layer.values.data = NULL);
    EXPECT(SNAPKV_ERROR_NULL, RULES, a.layer.queries.dtype = SNAPKV_CUSTOM);
    EXPECT(SNAPKV_ERROR_NULL, RULES, a.layer.keys.dtype = SNAPKV_CUSTOM);
    EXPECT(SNAPKV_ERROR_NULL, LISTS | COMPRESS_LAYER, a.kept = NULL);
    EXPECT(SNAPKV_ERROR_NULL, SCORE, a.scores = NULL);
    EXPECT(SNAPKV_ERROR_NULL, VOTE, a.votes = NULL);
    EXPECT(SNAPKV_ERROR_NULL, WORKING, a.workspace = NULL);
    EXPECT(SNAPKV_ERROR_NULL, WORKING, (a.workspace = NULL, a.workspace_size = 0));
    EXPECT(SNAPKV_ERROR_NULL, WRITING, a.keys_out_at = NULL);
    EXPECT(SNAPKV_ERROR_NULL, WRITING, a.values_out_at = NULL);
    EXPECT(SNAPKV_ERROR_NULL, WRITING, a.keys_out.data = NULL);
    EXPECT(SNAPKV_ERROR_NULL, WRITING, a.values_out.data = NULL);
    EXPECT(SNAPKV_ERROR_NULL, MASS, a.query = NULL);
    EXPECT(SNAPKV_ERROR_NULL, MASS, a.list = NULL);
    EXPECT(SNAPKV_ERROR_NULL, MASS, a.mass = NULL);
}

static void test_shape(void **state) {
    (void)state;
    EXPECT(SNAPKV_ERROR_SHAPE, ALL, a.layer.n_query_heads = 0);
    EXPECT(SNAPKV_ERROR_SHAPE, ALL, a.layer.n_kv_heads = 0);
    EXPECT(SNAPKV_ERROR_SHAPE, ALL, a.layer.length = 0);
    EXPECT(SNAPKV_ERROR_SHAPE, ALL, a.layer.head_dim = 0);
    EXPECT(SNAPKV_ERROR_SHAPE, ALL, a.layer.n_kv_heads = 3);
    EXPECT(SNAPKV_ERROR_SHAPE, ALL, a.layer.n_kv_heads = 8);
    EXPECT(SNAPKV_ERROR_SHAPE, ALL, a.layer.n_query_heads = 5);
    EXPECT(SNAPKV_ERROR_SHAPE, ALL, a.layer.length = SIZE_MAX);
    if (SIZE_MAX > INT32_MAX) {
        EXPECT(SNAPKV_ERROR_SHAPE, ALL, a.layer.length = (size_t)INT32_MAX + 1);
    }
    const snapkv_config config = make_config(4, 12, 3);
    assert_int_equal(snapkv_kept_count(&config, INT32_MAX), 12);
    assert_int_equal(snapkv_kept_count(&config, (size_t)INT32_MAX + 1), 0);
}

#if SIZE_MAX <= UINT32_MAX /* make check-builds; with 64 bits there is no such array */
/* An array whose entries can be counted and whose bytes can't. */
static void test_arrays_beyond_32_bits(void **state) {
    (void)state;
    static const size_t sizes[] = {(size_t)1 << 29, (size_t)1 << 30, INT32_MAX};
    float votes[2] = {1, 2}, scores[2] = {3, 4};
    int32_t indices[1] = {5};
    size_t counts[1] = {6};
    const snapkv_config config = make_config(4, 12, 3);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        const size_t n = sizes[i];
        const snapkv_list list = {votes, n};
        assert_status(snapkv_pool(votes, n, 3, SNAPKV_POOL_AVG, scores), SNAPKV_ERROR_SHAPE);
        assert_status(snapkv_top_k(votes, n, 1, SNAPKV_BY_SCORE, indices), SNAPKV_ERROR_SHAPE);
        assert_status(snapkv_keep(&config, n, votes, 1, indices), SNAPKV_ERROR_SHAPE);
        assert_status(snapkv_coverage(&config, n, votes, indices, 1, scores), SNAPKV_ERROR_SHAPE);
        assert_status(snapkv_allocate(&list, 1, 9, 1, counts), SNAPKV_ERROR_SHAPE);
    }
    assert_true(scores[0] == 3 && scores[1] == 4 && indices[0] == 5 && counts[0] == 6);
}
#endif

/* Sizes each of which could be, with a product that can't. */
static void test_overflowing_products(void **state) {
    (void)state;
    EXPECT(SNAPKV_ERROR_SHAPE, ALL, a.layer.head_dim = SIZE_MAX);
    EXPECT(SNAPKV_ERROR_SHAPE, ALL, a.layer.head_dim = SIZE_MAX / 4 + 1);
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, a.layer.head_dim = SIZE_MAX / 64);
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, a.layer.keys.row_stride = SIZE_MAX / 4 * 4);
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, a.layer.keys.row_stride = SIZE_MAX / 128 * 4);
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, a.layer.keys.head_stride = SIZE_MAX / 4 * 4);
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, a.layer.keys.head_stride = SIZE_MAX / 4 * 4 - 1024);
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, a.layer.queries.row_stride = SIZE_MAX / 4 * 4);
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, a.layer.queries.head_stride = SIZE_MAX / 8 * 4);
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, a.layer.values.row_stride = SIZE_MAX / 4);
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, a.layer.values.head_stride = SIZE_MAX - 64);
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, a.layer.values.row_bytes = SIZE_MAX);
    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS, a.keys_out.row_stride = SIZE_MAX / 4);
    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS_LAYER, a.keys_out.head_stride = SIZE_MAX - 8);
    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS, a.values_out.row_stride = SIZE_MAX / 4);
    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS_LAYER, a.values_out.head_stride = SIZE_MAX - 8);
    /* Of one head there is no extent, but a way to it. */
    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS | GATHER,
           (a.set = 1, a.keys_out.head_stride = PTRDIFF_MAX));
    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS | GATHER,
           (a.set = 1, a.values_out.head_stride = PTRDIFF_MAX));
}

/* As many heads as there are addresses: refused at once, not after a look at each. */
static void test_hostile_head_counts(void **state) {
    (void)state;
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, a.layer.n_query_heads = SIZE_MAX - 1);
    EXPECT(SNAPKV_ERROR_SHAPE, RULES,
           (a.layer.n_query_heads = SIZE_MAX - 1, a.layer.n_kv_heads = SIZE_MAX - 1));
    EXPECT(SNAPKV_ERROR_SHAPE, RULES,
           (a.layer.n_query_heads = SIZE_MAX - 1, a.layer.sink_logits = SINKS));
}

static void test_window(void **state) {
    (void)state;
    EXPECT(SNAPKV_ERROR_WINDOW, ALL, a.config.window = 0);
    EXPECT(SNAPKV_ERROR_WINDOW, ALL, a.config.window = 41);
    EXPECT(SNAPKV_ERROR_WINDOW, ALL, a.config.window = SIZE_MAX);
    EXPECT(SNAPKV_ERROR_WINDOW, ALL, a.config.window = SIZE_MAX - 8);
    EXPECT(SNAPKV_ERROR_WINDOW, VOTE | MASS, (a.config.window = 41, a.config.capacity = 1000));
    EXPECT(SNAPKV_OK, CHECK, (a.config.window = 41, a.config.capacity = 1000));
    /* All window: nothing to vote on, though a bypass keeps it. */
    EXPECT(SNAPKV_ERROR_WINDOW, VOTE,
           (a.layer.length = 4, a.config.capacity = 12, a.layer.keys.head_stride = 4 * 32));
}

static void test_capacity(void **state) {
    (void)state;
    const int functions = COUNT | CHECK | LISTS; /* the others don't ask how many are kept */
    EXPECT(SNAPKV_ERROR_CAPACITY, functions, a.config.capacity = 0);
    EXPECT(SNAPKV_ERROR_CAPACITY, functions, a.config.capacity = 3);
    EXPECT(SNAPKV_ERROR_CAPACITY, functions, a.config.capacity = 4);
    EXPECT(SNAPKV_ERROR_CAPACITY, functions, a.config.n_sink = 8);
    EXPECT(SNAPKV_ERROR_CAPACITY, functions, a.config.n_sink = 9);
    EXPECT(SNAPKV_ERROR_CAPACITY, functions, a.config.n_sink = SIZE_MAX);
    /* window + n_sink wraps to 0 and 1. */
    EXPECT(SNAPKV_ERROR_CAPACITY, functions, a.config.n_sink = SIZE_MAX - 3);
    EXPECT(SNAPKV_ERROR_CAPACITY, functions, a.config.n_sink = SIZE_MAX - 2);
    EXPECT(SNAPKV_ERROR_CAPACITY, functions,
           (a.config.capacity = SIZE_MAX, a.config.n_sink = SIZE_MAX - 4));
    EXPECT(SNAPKV_OK, CHECK | SELECT, a.config.n_sink = 7);
    EXPECT(SNAPKV_OK, CHECK, (a.config.capacity = SIZE_MAX, a.config.n_sink = SIZE_MAX - 5));
    EXPECT(SNAPKV_OK, VOTE, a.config.capacity = 0);
    EXPECT(SNAPKV_OK, VOTE, a.config.n_sink = SIZE_MAX);
}

static void test_kernel(void **state) {
    (void)state;
    const int functions = COUNT | CHECK | LISTS;
    EXPECT(SNAPKV_ERROR_KERNEL, functions, a.config.kernel_size = 0);
    EXPECT(SNAPKV_ERROR_KERNEL, functions, a.config.kernel_size = 2);
    EXPECT(SNAPKV_ERROR_KERNEL, functions, a.config.kernel_size = 1000);
    EXPECT(SNAPKV_ERROR_KERNEL, functions, a.config.kernel_size = SIZE_MAX - 1);
    EXPECT(SNAPKV_ERROR_KERNEL, SCORE, a.config.kernel_size = 2);
    EXPECT(SNAPKV_OK, CHECK | LISTS | SCORE, a.config.kernel_size = SIZE_MAX);
    EXPECT(SNAPKV_OK, VOTE, a.config.kernel_size = 2);
}

static void test_option(void **state) {
    (void)state;
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    EXPECT(SNAPKV_ERROR_OPTION, COUNT | CHECK | LISTS, a.config.pooling = (snapkv_pooling)2);
    EXPECT(SNAPKV_ERROR_OPTION, COUNT | CHECK | LISTS, a.config.order = (snapkv_order)2);
    EXPECT(SNAPKV_ERROR_OPTION, ALL, a.config.sharing = (snapkv_sharing)3);
    EXPECT(SNAPKV_ERROR_OPTION, COUNT | CHECK | LISTS, a.config.reduce = (snapkv_reduce)2);
    EXPECT(SNAPKV_ERROR_OPTION, COUNT | CHECK | LISTS, a.config.pooling = (snapkv_pooling)0x7F);
    EXPECT(SNAPKV_ERROR_OPTION, RULES, a.layer.queries.dtype = (snapkv_dtype)4);
    EXPECT(SNAPKV_ERROR_OPTION, RULES, a.layer.keys.dtype = (snapkv_dtype)4);
    EXPECT(SNAPKV_ERROR_OPTION, RULES, a.layer.values.dtype = (snapkv_dtype)4);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        EXPECT(SNAPKV_ERROR_OPTION, RULES, a.layer.scale = bad[i]);
        EXPECT(SNAPKV_ERROR_OPTION, RULES, a.layer.softcap = bad[i]);
        for (size_t head = 0; head < 4; head++) {
            float numbers[4];
            memcpy(numbers, SINKS, sizeof numbers);
            numbers[head] = bad[i];
            EXPECT(SNAPKV_ERROR_OPTION, CHECK | LISTS,
                   (a.layer.sink_logits = numbers, a.set = head / 2));
            EXPECT(SNAPKV_ERROR_OPTION, VOTE | MASS,
                   (a.layer.sink_logits = numbers, a.query_head = head));
            memcpy(numbers, SLOPES, sizeof numbers);
            numbers[head] = bad[i];
            EXPECT(SNAPKV_ERROR_OPTION, CHECK | LISTS,
                   (a.layer.alibi_slopes = numbers, a.set = head / 2));
            EXPECT(SNAPKV_ERROR_OPTION, VOTE | MASS,
                   (a.layer.alibi_slopes = numbers, a.query_head = head));
        }
    }
    EXPECT(SNAPKV_ERROR_OPTION, RULES, a.layer.scale = -1);
    EXPECT(SNAPKV_ERROR_OPTION, RULES, a.layer.scale = -FLT_MIN / 4);
    EXPECT(SNAPKV_ERROR_OPTION, RULES, a.layer.softcap = -1);
    EXPECT(SNAPKV_ERROR_OPTION, RULES, a.layer.softcap = -FLT_MAX);
    EXPECT(SNAPKV_OK, RULES, (a.layer.sink_logits = SINKS, a.layer.alibi_slopes = SLOPES));
    EXPECT(SNAPKV_OK, RULES, a.layer.scale = a.layer.softcap = -0.0f); /* it is 0 */
}

/* A gather asks of the policy how lists are shared, of the layer what it moves, and where the
 * voters lie. */
static void test_gather(void **state) {
    (void)state;
    const int32_t high[2] = {39, 40}, negative[2] = {0, -1};
    EXPECT(SNAPKV_OK, GATHER, (void)a);
    EXPECT(SNAPKV_ERROR_NULL, GATHER, a.config_at = NULL);
    EXPECT(SNAPKV_ERROR_NULL, GATHER, a.layer_at = NULL);
    EXPECT(SNAPKV_ERROR_NULL, GATHER, a.list = NULL);
    EXPECT(SNAPKV_ERROR_NULL, GATHER, a.layer.keys.data = NULL);
    EXPECT(SNAPKV_ERROR_NULL, GATHER, a.layer.values.data = NULL);
    EXPECT(SNAPKV_OK, GATHER, a.layer.queries.data = NULL);
    EXPECT(SNAPKV_ERROR_SHAPE, GATHER, a.layer.n_kv_heads = 3);
    EXPECT(SNAPKV_ERROR_SHAPE, GATHER, a.layer.head_dim = 0);
    EXPECT(SNAPKV_ERROR_SHAPE, GATHER, a.layer.keys.head_stride = SIZE_MAX / 4 * 4);
    EXPECT(SNAPKV_ERROR_SHAPE, GATHER, a.layer.values.row_bytes = SIZE_MAX);
    EXPECT(SNAPKV_ERROR_OPTION, GATHER, a.config.sharing = (snapkv_sharing)3);
    EXPECT(SNAPKV_ERROR_OPTION, GATHER, a.layer.queries.dtype = (snapkv_dtype)4);
    EXPECT(SNAPKV_ERROR_OPTION, GATHER, a.layer.keys.dtype = (snapkv_dtype)4);
    EXPECT(SNAPKV_ERROR_OPTION, GATHER, a.layer.values.dtype = SNAPKV_CUSTOM);
    EXPECT(SNAPKV_ERROR_STRIDE, GATHER, a.layer.queries.row_stride = 28);
    EXPECT(SNAPKV_ERROR_STRIDE, GATHER, a.layer.keys.row_stride = 28);
    EXPECT(SNAPKV_ERROR_STRIDE, GATHER, a.layer.values.row_stride = 31);
    EXPECT(SNAPKV_ERROR_OUTPUT, GATHER, a.keys_out.row_stride = 31);
    EXPECT(SNAPKV_ERROR_OUTPUT, GATHER, a.values_out.row_stride = 31);
    EXPECT(SNAPKV_ERROR_INDEX, GATHER, a.set = 2);
    EXPECT(SNAPKV_ERROR_INDEX, GATHER, (a.list = high, a.n_list = 2));
    EXPECT(SNAPKV_ERROR_INDEX, GATHER, (a.list = negative, a.n_list = 2));
    EXPECT(SNAPKV_ERROR_INDEX, GATHER, a.layer.first_row = SNAPKV_PART);
    EXPECT(SNAPKV_ERROR_ALIAS, GATHER, a.values_out.data = a.keys_out.data);
}

/* The last key, which the last query alone sees, and K/V head 0. */
static void test_not_finite(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
#define SPOIL                                                                                      \
    (guard_thaw(&a.p.packed_keys.memory),                                                          \
     memcpy(packed_row(&a.p.packed_keys, 0, 39), &bad[i], sizeof bad[i]))
        EXPECT(SNAPKV_ERROR_NOT_FINITE, VOTE | SCORE | MASS, SPOIL);
        EXPECT(SNAPKV_OK, SCORE, (SPOIL, a.set = 1));
#undef SPOIL
    }
}

/* To be gathered, a custom row must say how long it is; to be read it needn't. */
static void test_custom_rows(void **state) {
    (void)state;
    const packing how = {LAYOUT_HEAD_MAJOR, SNAPKV_CUSTOM, GUARD_AFTER, 0, 0, 0};
#define CUSTOM (problem_pack(&a.p, how), a.layer = a.p.layer)
    EXPECT(SNAPKV_OK, RULES, CUSTOM);
    EXPECT(SNAPKV_OK, VOTE | SELECT | MASS, (CUSTOM, a.layer.keys.row_bytes = 0));
    EXPECT(SNAPKV_OK, CHECK, (CUSTOM, a.layer.keys.row_bytes = 0, a.layer.values.data = NULL));
    EXPECT(SNAPKV_ERROR_OPTION, MOVES, (CUSTOM, a.layer.keys.row_bytes = 0));
    EXPECT(SNAPKV_ERROR_OPTION, RULES, (CUSTOM, a.layer.values.row_bytes = 0));
    EXPECT(SNAPKV_OK, RULES, (CUSTOM, a.layer.values.decode = NULL));
    EXPECT(SNAPKV_ERROR_NULL, RULES, (CUSTOM, a.layer.keys.decode = NULL));
    EXPECT(SNAPKV_ERROR_NULL, RULES, (CUSTOM, a.layer.queries.decode = NULL));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (CUSTOM, a.layer.keys.row_stride = 8));
#undef CUSTOM
}

/* Rows of 32 bytes; 40 of them are a head of keys, 4 one of queries. */
static void test_stride(void **state) {
    (void)state;
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.keys.row_stride = 28);
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.keys.row_stride = 0);
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.queries.row_stride = 28);
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.queries.row_stride = 0);
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.values.row_stride = 31);
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.values.row_bytes = 33);
    EXPECT(SNAPKV_ERROR_STRIDE, MOVES, a.layer.keys.row_bytes = 36);

    EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.keys.head_stride = 0);
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.keys.head_stride = 32);
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.keys.head_stride = 40 * 32 - 4);
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.queries.head_stride = 0);
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.queries.head_stride = 4 * 32 - 4);
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.values.head_stride = 40 * 32 - 1);
    /* Positions outside, heads inside: two heads need twice the row. */
    EXPECT(SNAPKV_ERROR_STRIDE, RULES,
           (a.layer.keys.row_stride = 60, a.layer.keys.head_stride = 32));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES,
           (a.layer.keys.row_stride = 64, a.layer.keys.head_stride = 28));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES,
           (a.layer.queries.row_stride = 124, a.layer.queries.head_stride = 32));

    /* A head that begins behind the last row of the one before, if not at a multiple; and rows of
     * one head in the gaps between those of the other. */
    EXPECT(SNAPKV_OK, CHECK,
           (a.layer.keys.row_stride = 64, a.layer.keys.head_stride = 39 * 64 + 32));
    EXPECT(SNAPKV_OK, CHECK,
           (a.layer.keys.row_stride = 64, a.layer.keys.head_stride = 39 * 64 + 48));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES,
           (a.layer.keys.row_stride = 64, a.layer.keys.head_stride = 39 * 64 + 28));
    EXPECT(SNAPKV_OK, CHECK,
           (a.layer.keys.row_stride = 64, a.layer.keys.head_stride = 5 * 64 + 32));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES,
           (a.layer.keys.row_stride = 64, a.layer.keys.head_stride = 5 * 64 + 28));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES,
           (a.layer.keys.row_stride = 64, a.layer.keys.head_stride = 5 * 64 + 36));

    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS, a.keys_out.row_stride = 31);
    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS, a.keys_out.row_stride = 0);
    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS, a.values_out.row_stride = 31);
    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS_LAYER, a.keys_out.head_stride = 0);
    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS_LAYER, a.keys_out.head_stride = 12 * 32 - 1);
    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS_LAYER, a.values_out.head_stride = 0);
    EXPECT(SNAPKV_ERROR_OUTPUT, COMPRESS_LAYER, a.values_out.head_stride = 12 * 32 - 1);
}

/* Rows lie at multiples of their element; values are bytes and may lie anywhere. */
static void test_misaligned_rows(void **state) {
    (void)state;
    for (size_t offset = 1; offset < 4; offset++) {
        EXPECT(SNAPKV_ERROR_STRIDE, RULES,
               a.layer.keys.data = (const char *)a.layer.keys.data + offset);
        EXPECT(SNAPKV_ERROR_STRIDE, RULES,
               a.layer.queries.data = (const char *)a.layer.queries.data + offset);
        EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.keys.row_stride = 32 + offset);
        EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.keys.head_stride += offset);
        EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.queries.row_stride = 32 + offset);
        EXPECT(SNAPKV_ERROR_STRIDE, RULES, a.layer.queries.head_stride += offset);
        EXPECT(SNAPKV_OK, CHECK,
               (a.layer.values.row_stride = 32 + offset, a.layer.values.head_stride += 200));
    }
    const packing half = {LAYOUT_HEAD_MAJOR, SNAPKV_F16, GUARD_AFTER, 0, 0, 0};
    const packing custom = {LAYOUT_HEAD_MAJOR, SNAPKV_CUSTOM, GUARD_AFTER, 0, 3, 0};
#define PACK(how) (problem_pack(&a.p, how), a.layer = a.p.layer)
    EXPECT(SNAPKV_OK, RULES, PACK(half));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES,
           (PACK(half), a.layer.keys.data = (const char *)a.layer.keys.data + 1));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES,
           (PACK(half), a.layer.queries.data = (const char *)a.layer.queries.data + 1));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PACK(half), a.layer.keys.row_stride += 1));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PACK(half), a.layer.queries.head_stride += 1));
    EXPECT(SNAPKV_OK, RULES, PACK(custom)); /* rows of nine bytes, twelve apart */
#undef PACK
}

/* Five blocks of eight positions, two more that aren't ours. */
static void test_block_tables(void **state) {
    (void)state;
    const packing how = {LAYOUT_BLOCKS_BY_HEAD, SNAPKV_F32, GUARD_AFTER, 0, 0, 8};
    int32_t table[5] = {4, 2, 0, 1, 3};
#define PAGED (problem_pack(&a.p, how), a.layer = a.p.layer)
    EXPECT(SNAPKV_OK, RULES, PAGED);
    EXPECT(SNAPKV_OK, CHECK, (PAGED, a.layer.keys.block_table = table));
#define ALIAS_OF_THE_TABLE(view)                                                                   \
    EXPECT(SNAPKV_ERROR_ALIAS, LISTS | COMPRESS_LAYER,                                             \
           (PAGED, a.layer.view.block_table = table, a.kept = table));                             \
    EXPECT(SNAPKV_ERROR_ALIAS, VOTE | SCORE,                                                       \
           (PAGED, a.layer.view.block_table = table, a.votes = (float *)(void *)table));           \
    EXPECT(SNAPKV_ERROR_ALIAS, WRITING,                                                            \
           (PAGED, a.layer.view.block_table = table, a.keys_out.data = table))
    ALIAS_OF_THE_TABLE(queries);
    ALIAS_OF_THE_TABLE(keys);
    ALIAS_OF_THE_TABLE(values);
#undef ALIAS_OF_THE_TABLE
    EXPECT(SNAPKV_ERROR_OUTPUT, WRITING,
           (a.keys_out.block_table = table, a.keys_out.block_stride = 2 * 12 * 32));
    EXPECT(SNAPKV_ERROR_OUTPUT, WRITING,
           (a.values_out.block_table = table, a.values_out.block_stride = 2 * 12 * 32));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.keys.block_rows = 0));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.queries.block_rows = 0));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.values.block_rows = 0));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.keys.block_stride = 0));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.keys.block_stride = 2 * 8 * 32 - 4));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.values.block_stride = 511));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.keys.block_stride += 2));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.keys.row_stride = 28));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.keys.head_stride = 8 * 32 - 4));
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, (PAGED, a.layer.keys.block_stride = SIZE_MAX / 4 * 4));
    EXPECT(SNAPKV_ERROR_STRIDE, RULES,
           (PAGED, a.layer.values.block_rows = SIZE_MAX / 2,
            a.layer.values.block_stride = SIZE_MAX / 2));
    for (size_t i = 0; i < 5; i++) {
        table[i] = -1;
        EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.keys.block_table = table));
        EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.values.block_table = table));
        table[i] = INT32_MIN;
        EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.keys.block_table = table));
        table[i] = (int32_t)i;
    }
    table[0] = -1;
    EXPECT(SNAPKV_ERROR_STRIDE, RULES, (PAGED, a.layer.queries.block_table = table));
    /* Block numbers that reach past the end of the address space. */
    table[0] = INT32_MAX;
    EXPECT(SNAPKV_ERROR_SHAPE, RULES,
           (PAGED, a.layer.keys.block_table = table,
            a.layer.keys.block_stride = SIZE_MAX / INT32_MAX / 4 * 4 + 4));
#undef PAGED
}

static void test_index(void **state) {
    (void)state;
    const int32_t high[4] = {0, 7, 11, 40};
    const int32_t negative[4] = {-1, 7, 11, 39};
    const int32_t lowest[4] = {0, 7, INT32_MIN, 39};
    EXPECT(SNAPKV_ERROR_INDEX, LISTS | SCORE, a.set = 2);
    EXPECT(SNAPKV_ERROR_INDEX, LISTS | SCORE, a.set = SIZE_MAX);
    EXPECT(SNAPKV_ERROR_INDEX, LISTS, (a.config.sharing = SNAPKV_PER_LAYER, a.set = 1));
    EXPECT(SNAPKV_ERROR_INDEX, LISTS, (a.config.sharing = SNAPKV_PER_QUERY_HEAD, a.set = 4));
    EXPECT(SNAPKV_OK, LISTS, (a.config.sharing = SNAPKV_PER_QUERY_HEAD, a.set = 3));
    EXPECT(SNAPKV_ERROR_INDEX, SELECT, (a.config.capacity = 41, a.set = 2)); /* bypassed */
    EXPECT(SNAPKV_ERROR_INDEX, VOTE | MASS, a.query_head = 4);
    EXPECT(SNAPKV_ERROR_INDEX, VOTE | MASS, a.query_head = SIZE_MAX);
    EXPECT(SNAPKV_ERROR_INDEX, MASS, a.position = 38);
    EXPECT(SNAPKV_ERROR_INDEX, MASS, a.position = 0);
    EXPECT(SNAPKV_ERROR_INDEX, MASS, a.position = (size_t)INT32_MAX + 1);
    EXPECT(SNAPKV_ERROR_INDEX, MASS, a.list = high);
    EXPECT(SNAPKV_ERROR_INDEX, MASS, a.list = negative);
    EXPECT(SNAPKV_ERROR_INDEX, MASS, a.list = lowest);
}

/* The sizes of test_workspace.c, here with every function; and an address that no float has. */
static void test_workspace(void **state) {
    (void)state;
    EXPECT(SNAPKV_ERROR_WORKSPACE, WORKING, a.workspace_size = 0);
    EXPECT(SNAPKV_ERROR_WORKSPACE, WORKING,
           a.workspace_size = snapkv_workspace_min(&a.config, &a.layer) - 4);
    EXPECT(SNAPKV_OK, WORKING, a.workspace_size = snapkv_workspace_min(&a.config, &a.layer));
    for (size_t offset = 1; offset < 4; offset++) {
        EXPECT(SNAPKV_ERROR_WORKSPACE, WORKING, a.workspace = a.scratch.data + offset);
    }
    EXPECT(SNAPKV_ERROR_WORKSPACE, SELECT, (a.config.capacity = 41, a.workspace_size = 0));
}

/* Outputs over rows that are still to be read, and over each other. */
static void test_alias(void **state) {
    (void)state;
#define THAW (guard_thaw(&a.p.packed_keys.memory), guard_thaw(&a.p.packed_values.memory))
#define IN_PLACE                                                                                   \
    (THAW, a.keys_out.data = a.p.packed_keys.memory.data,                                          \
     a.values_out.data = a.p.packed_values.memory.data,                                            \
     a.keys_out.head_stride = a.values_out.head_stride = 40 * 32)
    EXPECT(SNAPKV_OK, COMPRESS, IN_PLACE);
    EXPECT(SNAPKV_OK, COMPRESS, (IN_PLACE, a.config.sharing = SNAPKV_PER_LAYER));
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS, (IN_PLACE, a.config.order = SNAPKV_BY_SCORE));
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS, (IN_PLACE, a.config.sharing = SNAPKV_PER_QUERY_HEAD));
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS, (IN_PLACE, a.keys_out.head_stride = 12 * 32, a.set = 1));
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS,
           (IN_PLACE, a.keys_out.row_stride = 36, a.keys_out.head_stride = 45 * 32));
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS, (IN_PLACE, a.keys_out.row_stride = 36));
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS, (IN_PLACE, a.values_out.row_stride = 33));
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS,
           (IN_PLACE, a.keys_out.data = a.p.packed_keys.memory.data + 32));
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS,
           (IN_PLACE, a.keys_out.data = a.p.packed_values.memory.data));
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS,
           (IN_PLACE, a.values_out.data = a.p.packed_keys.memory.data));
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS,
           (IN_PLACE, a.keys_out.data = a.p.packed_values.memory.data,
            a.values_out.data = a.p.packed_keys.memory.data));
    /* Head 1 a row further than its own. */
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS, (IN_PLACE, a.keys_out.head_stride = 41 * 32, a.set = 1));
    EXPECT(
        SNAPKV_ERROR_ALIAS, COMPRESS,
        (guard_thaw(&a.p.packed_queries.memory), a.keys_out.data = a.p.packed_queries.memory.data));
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS, a.values_out.data = a.keys_out.data);
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS, a.values_out.data = (char *)a.keys_out.data + 11 * 32);
    /* A page belongs to others, too. */
    const packing paged = {LAYOUT_BLOCKS_BY_HEAD, SNAPKV_F32, GUARD_AFTER, 0, 0, 40};
    EXPECT(SNAPKV_ERROR_ALIAS, COMPRESS,
           (problem_pack(&a.p, paged), a.layer = a.p.layer, THAW,
            a.keys_out.data = packed_row(&a.p.packed_keys, 0, 0),
            a.values_out.data = packed_row(&a.p.packed_values, 0, 0),
            a.keys_out.head_stride = a.values_out.head_stride = 40 * 32));
#undef IN_PLACE
#undef THAW
}

/* An output inside the workspace would be overwritten before it is read, or the other way round. */
static void test_alias_of_the_workspace(void **state) {
    (void)state;
    EXPECT(SNAPKV_ERROR_ALIAS, LISTS, a.kept = (int32_t *)a.workspace);
    EXPECT(SNAPKV_ERROR_ALIAS, SELECT, a.scores = (float *)a.workspace + 8);
    EXPECT(SNAPKV_ERROR_ALIAS, VOTE, a.votes = (float *)a.workspace);
    EXPECT(SNAPKV_ERROR_ALIAS, SELECT, a.scores = (float *)(void *)a.kept);
}

/* Of two broken rules the earlier one in the order of the status codes is reported: NULL, SHAPE,
 * WINDOW, CAPACITY, KERNEL, OPTION, STRIDE, INDEX, WORKSPACE, ALIAS, NOT_FINITE. */
static void test_which_error_comes_first(void **state) {
    (void)state;
    EXPECT(SNAPKV_ERROR_NULL, RULES, (a.layer.keys.data = NULL, a.layer.head_dim = 0));
    EXPECT(SNAPKV_ERROR_SHAPE, RULES, (a.layer.head_dim = 0, a.config.window = 0));
    EXPECT(SNAPKV_ERROR_WINDOW, RULES, (a.config.window = 0, a.config.capacity = 0));
    EXPECT(SNAPKV_ERROR_CAPACITY, CHECK | LISTS, (a.config.capacity = 0, a.config.kernel_size = 0));
    EXPECT(SNAPKV_ERROR_KERNEL, CHECK | LISTS,
           (a.config.kernel_size = 0, a.config.pooling = (snapkv_pooling)9));
    EXPECT(SNAPKV_ERROR_OPTION, RULES, (a.layer.scale = -1, a.layer.keys.row_stride = 0));
    EXPECT(SNAPKV_ERROR_STRIDE, LISTS, (a.layer.keys.row_stride = 0, a.set = 2));
    EXPECT(SNAPKV_ERROR_INDEX, LISTS, (a.set = 2, a.workspace_size = 0));
    EXPECT(SNAPKV_ERROR_WORKSPACE, COMPRESS,
           (a.workspace_size = 0, a.values_out.data = a.keys_out.data));
}

/* One text for every rule that snapkv_check knows: whoever reads it sees the field. */
static char told[64][80];
static size_t n_told;

static void judge_text(attempt *a, snapkv_status expected, const char *text, const char *change,
                       int line) {
    const char *actual = snapkv_explain(a->config_at, a->layer_at);
    if (!actual || strcmp(actual, text) != 0) {
        print_error("%s\n  is explained by \"%s\", not \"%s\"\n", change, actual ? actual : "NULL",
                    text);
        _fail(__FILE__, line);
    }
    size_t same = 0;
    for (size_t i = 0; i < n_told; i++) {
        same += strcmp(told[i], text) == 0;
    }
    if (same == 0) {
        assert_true(n_told < COUNT_OF(told) && strlen(text) < sizeof told[0]);
        strcpy(told[n_told++], text);
    }
    judge(a, expected, CHECK, change, line);
}

#define EXPLAIN(expected, text, change)                                                            \
    do {                                                                                           \
        attempt a;                                                                                 \
        start(&a);                                                                                 \
        change;                                                                                    \
        judge_text(&a, expected, text, #change, __LINE__);                                         \
    } while (0)

/* The rules of a view, with its name before the text. */
#define EXPLAIN_VIEW(name, view)                                                                   \
    EXPLAIN(SNAPKV_ERROR_SHAPE, name "row_stride, head_stride, block_table: beyond all memory",    \
            a.layer.view.row_stride = SIZE_MAX / 4 * 4);                                           \
    EXPLAIN(SNAPKV_ERROR_STRIDE, name "row_stride: rows overlap; it counts bytes",                 \
            a.layer.view.row_stride = 28);                                                         \
    EXPLAIN(SNAPKV_ERROR_STRIDE, name "head_stride: heads overlap; it counts bytes",               \
            a.layer.view.head_stride = 0);                                                         \
    EXPLAIN(SNAPKV_ERROR_STRIDE, name "block_rows: 0", (PAGED, a.layer.view.block_rows = 0));      \
    EXPLAIN(SNAPKV_ERROR_STRIDE, name "block_table: a negative block",                             \
            (PAGED, a.layer.view.block_table = negative));                                         \
    EXPLAIN(SNAPKV_ERROR_OPTION, name "dtype: unknown", a.layer.view.dtype = (snapkv_dtype)4)

static void test_explain(void **state) {
    (void)state;
    const packing paged = {LAYOUT_BLOCKS_BY_HEAD, SNAPKV_F32, GUARD_AFTER, 0, 0, 2};
    const packing custom = {LAYOUT_HEAD_MAJOR, SNAPKV_CUSTOM, GUARD_AFTER, 0, 0, 0};
    const float infinite[4] = {0, 0, INFINITY, 0};
    const int32_t descending[4] = {5, 6, 4, 7};
    int32_t negative[20], rows[40];
    for (int i = 0; i < 40; i++) {
        rows[i] = i;
        negative[i % 20] = i % 20 == 1 ? -1 : i % 20;
    }
    n_told = 0;
#define PAGED  (problem_pack(&a.p, paged), a.layer = a.p.layer)
#define CUSTOM (problem_pack(&a.p, custom), a.layer = a.p.layer)
    EXPLAIN(SNAPKV_ERROR_NULL, "config: NULL", a.config_at = NULL);
    EXPLAIN(SNAPKV_ERROR_NULL, "layer: NULL", a.layer_at = NULL);
    EXPLAIN(SNAPKV_ERROR_NULL, "queries.data: NULL", a.layer.queries.data = NULL);
    EXPLAIN(SNAPKV_ERROR_NULL, "keys.data: NULL", a.layer.keys.data = NULL);
    EXPLAIN(SNAPKV_ERROR_NULL, "queries.decode: NULL for custom rows",
            (CUSTOM, a.layer.queries.decode = NULL));
    EXPLAIN(SNAPKV_ERROR_NULL, "keys.decode: NULL for custom rows",
            (CUSTOM, a.layer.keys.decode = NULL));
    EXPLAIN(SNAPKV_ERROR_SHAPE, "layer.n_query_heads: 0", a.layer.n_query_heads = 0);
    EXPLAIN(SNAPKV_ERROR_SHAPE, "layer.n_kv_heads: 0", a.layer.n_kv_heads = 0);
    EXPLAIN(SNAPKV_ERROR_SHAPE, "layer.n_query_heads: no multiple of n_kv_heads",
            a.layer.n_kv_heads = 3);
    EXPLAIN(SNAPKV_ERROR_SHAPE, "layer.length: 0", a.layer.length = 0);
    EXPLAIN(SNAPKV_ERROR_SHAPE, "layer.length: above INT32_MAX",
            a.layer.length = (size_t)INT32_MAX + 1);
    EXPLAIN(SNAPKV_ERROR_SHAPE, "layer.head_dim: 0", a.layer.head_dim = 0);
    EXPLAIN(SNAPKV_ERROR_SHAPE, "config.window: the workspace does not fit into memory",
            (a.config.window = SIZE_MAX / 64, a.config.n_recent = 4,
             a.layer.query_positions = descending));
    EXPLAIN(SNAPKV_ERROR_WINDOW, "config.window: 0", a.config.window = 0);
    EXPLAIN(SNAPKV_ERROR_WINDOW, "config.window: above the length, and no query_positions",
            a.config.window = 41);
    EXPLAIN(SNAPKV_ERROR_CAPACITY, "config.capacity: not above n_sink + n_recent (0: window)",
            a.config.n_sink = 8);
    EXPLAIN(SNAPKV_ERROR_KERNEL, "config.kernel_size: 0", a.config.kernel_size = 0);
    EXPLAIN(SNAPKV_ERROR_KERNEL, "config.kernel_size: even", a.config.kernel_size = 4);
    EXPLAIN(SNAPKV_ERROR_OPTION, "config.pooling: unknown", a.config.pooling = (snapkv_pooling)2);
    EXPLAIN(SNAPKV_ERROR_OPTION, "config.voting: unknown", a.config.voting = (snapkv_voting)2);
    EXPLAIN(SNAPKV_ERROR_OPTION, "config.order: unknown", a.config.order = (snapkv_order)2);
    EXPLAIN(SNAPKV_ERROR_OPTION, "config.sharing: unknown", a.config.sharing = (snapkv_sharing)3);
    EXPLAIN(SNAPKV_ERROR_OPTION, "config.reduce: unknown", a.config.reduce = (snapkv_reduce)2);
    EXPLAIN(SNAPKV_ERROR_OPTION, "layer.scale: negative or not finite", a.layer.scale = -1);
    EXPLAIN(SNAPKV_ERROR_OPTION, "layer.softcap: negative or not finite",
            a.layer.softcap = INFINITY);
    EXPLAIN(SNAPKV_ERROR_OPTION, "layer.chunk: set together with span",
            (a.layer.span = 3, a.layer.chunk = 3));
    EXPLAIN(SNAPKV_ERROR_OPTION, "layer.sink_logits: not finite", a.layer.sink_logits = infinite);
    EXPLAIN(SNAPKV_ERROR_OPTION, "layer.alibi_slopes: not finite",
            a.layer.alibi_slopes = infinite);
    EXPLAIN(SNAPKV_ERROR_INDEX, "layer.query_positions: negative or descending",
            a.layer.query_positions = descending);
    EXPLAIN(SNAPKV_ERROR_INDEX, "layer.query_positions: negative or descending",
            a.layer.query_positions = negative + 1);
    EXPLAIN(SNAPKV_ERROR_INDEX, "layer.key_positions: negative or not ascending",
            (rows[20] = 19, a.layer.key_positions = rows));
    EXPLAIN(SNAPKV_ERROR_INDEX, "layer.key_positions: negative or not ascending",
            (rows[20] = 20, rows[0] = -1, a.layer.key_positions = rows));
    EXPLAIN_VIEW("queries.", queries);
    EXPLAIN_VIEW("keys.", keys);
    EXPLAIN_VIEW("values.", values);
    EXPLAIN(SNAPKV_ERROR_STRIDE, "keys.block_stride: blocks overlap; it counts bytes",
            (PAGED, a.layer.keys.block_stride = 2 * 2 * 32 - 4));
    EXPLAIN(SNAPKV_ERROR_STRIDE, "queries.block_stride: blocks overlap; it counts bytes",
            (PAGED, a.layer.queries.block_stride = 2 * 4 * 32 - 4));
    EXPLAIN(SNAPKV_ERROR_STRIDE, "values.block_stride: blocks overlap; it counts bytes",
            (PAGED, a.layer.values.block_stride = 2 * 2 * 32 - 4));
    EXPLAIN(SNAPKV_ERROR_STRIDE, "queries.data, strides: not aligned to the element",
            a.layer.queries.head_stride += 2);
    EXPLAIN(SNAPKV_ERROR_STRIDE, "keys.data, strides: not aligned to the element",
            a.layer.keys.head_stride += 2);
    EXPLAIN(SNAPKV_ERROR_OPTION, "keys.row_bytes: 0 for custom rows",
            (CUSTOM, a.layer.keys.row_bytes = 0));
    EXPLAIN(SNAPKV_ERROR_OPTION, "values.row_bytes: 0 for custom rows",
            (CUSTOM, a.layer.values.row_bytes = 0));
#undef PAGED
#undef CUSTOM
    print_message("%lu texts\n", (unsigned long)n_told);
    /* Of 27 rules and 11 of each view. That a position competes follows from the capacity; values
     * may be missing, are not decoded and lie anywhere; queries are not gathered. */
    assert_int_equal(n_told, 27 + 3 * 11 - 5);
    attempt a;
    start(&a);
    assert_null(snapkv_explain(&a.config, &a.layer));
    judge(&a, SNAPKV_OK, RULES, "nothing", __LINE__);
}

static void test_status_strings(void **state) {
    (void)state;
    for (int i = 0; i <= SNAPKV_ERROR_NOT_FINITE; i++) {
        const char *text = snapkv_status_string((snapkv_status)i);
        assert_non_null(text);
        assert_true(strlen(text) > 1);
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(text, snapkv_status_string((snapkv_status)j));
        }
    }
    assert_non_null(snapkv_status_string((snapkv_status)12));
    assert_non_null(snapkv_status_string((snapkv_status)0x7F));
}

static void test_version(void **state) {
    (void)state;
    assert_true(SNAPKV_VERSION_MAJOR >= 0 && SNAPKV_VERSION_MINOR >= 0);
    assert_true(SNAPKV_VERSION_PATCH >= 0);
}

int main(void) {
    /* A call that doesn't return is a failure, too, and should show which one it was. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_unspoilt_call),
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_shape),
#if SIZE_MAX <= UINT32_MAX
        cmocka_unit_test(test_arrays_beyond_32_bits),
#endif
        cmocka_unit_test(test_overflowing_products),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_kernel),
        cmocka_unit_test(test_option),
        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_custom_rows),
        cmocka_unit_test(test_stride),
        cmocka_unit_test(test_misaligned_rows),
        cmocka_unit_test(test_block_tables),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_alias),
        cmocka_unit_test(test_alias_of_the_workspace),
        cmocka_unit_test(test_which_error_comes_first),
        cmocka_unit_test(test_explain),
        cmocka_unit_test(test_status_strings),
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_hostile_head_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
