/* snapkv_part_*: a prompt shared out to any number of workers has the bits of one; what each worker
 * may hold, and every bad input. The expected values are those of the functions that take a whole
 * prompt, which other tests hold to the reference. */
#include "check.h"
#include "problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Counted without the library. */
static size_t n_parts_of(size_t length) {
    return (length + 6144 - 1) / 6144;
}

/* What a worker holds: its keys alone between forbidden pages, or a view of all of them. */
typedef struct worker {
    size_t first_part, n_parts, n_votes;
    packed keys;
    snapkv_layer layer;
    guard workspace;
} worker;

static worker new_worker(const problem *p, const float *keys, size_t first_part, size_t n_parts,
                         int alone, size_t size) {
    worker w;
    memset(&w, 0, sizeof w);
    const size_t length = p->layer.length, dim = p->layer.head_dim;
    const size_t first = first_part * SNAPKV_PART, prefix = problem_prefix(p);
    const size_t end = (first_part + n_parts) * SNAPKV_PART < length
                           ? (first_part + n_parts) * SNAPKV_PART
                           : length;
    w.first_part = first_part;
    w.n_parts = n_parts;
    w.n_votes = (end < prefix ? end : prefix) - (first < prefix ? first : prefix);
    w.layer = p->layer;
    memset(&w.layer.values, 0, sizeof w.layer.values);
    if (alone && n_parts > 0) {
        const size_t n = end - first;
        float *rows = new_array(p->layer.n_kv_heads * n * dim, sizeof *rows);
        for (size_t h = 0; h < p->layer.n_kv_heads; h++) {
            memcpy(rows + h * n * dim, keys + (h * length + first) * dim, n * dim * sizeof *rows);
        }
        packing how = p->packed_keys.how;
        w.keys = pack(rows, p->layer.n_kv_heads, n, dim, how);
        w.layer.keys = w.keys.rows;
        w.layer.first_row = first;
        free(rows);
    }
    const size_t most = snapkv_part_workspace_size(&p->config, &w.layer, n_parts);
    const size_t least = snapkv_part_workspace_min(&p->config, &w.layer);
    assert_true(least > 0 && most >= least);
    w.workspace = guard_new(size == 0 ? least : size == 1 ? most : least / 8 * 4 + most / 8 * 4 + 4,
                            GUARD_AFTER);
    return w;
}

static void free_worker(worker *w) {
    if (w->keys.n_rows) {
        packed_free(&w->keys);
    }
    guard_free(&w->workspace);
}

/* One K/V head, or one query head where lists are per query head, by n workers; their runs are
 * random. */
static void check_workers(splitmix *random, const problem *p, size_t index, size_t n_workers) {
    const size_t group = p->config.sharing == SNAPKV_PER_QUERY_HEAD
                             ? 1
                             : p->layer.n_query_heads / p->layer.n_kv_heads;
    const size_t w = p->config.window;
    const size_t n_parts = n_parts_of(p->layer.length), prefix = problem_prefix(p);
    const size_t per_part = group * w;
    snapkv_statistic *statistics = new_array(n_parts * per_part, sizeof *statistics);
    assert_int_equal(snapkv_part_count(p->layer.length), n_parts);
    float *votes = new_array(group * prefix, sizeof *votes);
    float *sums = new_array(group * prefix, sizeof *sums);
    worker *workers = new_array(n_workers, sizeof *workers);
    size_t next = 0;
    for (size_t i = 0; i < n_workers; i++) {
        const size_t n = i + 1 == n_workers ? n_parts - next
                                            : splitmix_between(random, 0, n_parts - next);
        workers[i] = new_worker(p, p->keys, next, n, splitmix_once_in(random, 2),
                                splitmix_between(random, 0, 2));
        next += n;
    }
    for (size_t i = n_workers; i-- > 0;) {
        worker *v = &workers[i];
        assert_ok(snapkv_part_observe(&p->config, &v->layer, index, v->first_part, v->n_parts,
                                      statistics + v->first_part * per_part, v->workspace.data,
                                      v->workspace.size));
    }
    const int by_max = p->config.voting == SNAPKV_VOTE_MAX;
    for (size_t i = 0; i < n_workers; i++) {
        worker *v = &workers[i];
        const size_t first = v->first_part * SNAPKV_PART;
        const int is_kept = v->n_parts > 0 && splitmix_once_in(random, 2);
        if (!is_kept) {
            memset(v->workspace.data, 0xFF, v->workspace.size);
        }
        float *at = votes + (first < prefix ? first : 0), *sums_at = sums + (at - votes);
        assert_ok(snapkv_part_vote(&p->config, &v->layer, index, v->first_part, v->n_parts,
                                    statistics, is_kept, at, sums_at, prefix, v->workspace.data,
                                    v->workspace.size));
        free_worker(v);
    }
    problem summed = *p;
    summed.config.voting = SNAPKV_VOTE_SUM;
    for (size_t g = 0; g < group; g++) {
        const size_t size = snapkv_workspace_min(&p->config, &p->layer);
        float *expected = run_vote(p, index * group + g, size, GUARD_AFTER);
        assert_memory_equal(votes + g * prefix, expected, prefix * sizeof *votes);
        free(expected);
        expected = by_max ? run_vote(&summed, index * group + g, size, GUARD_AFTER) : NULL;
        if (by_max) {
            assert_memory_equal(sums + g * prefix, expected, prefix * sizeof *votes);
        }
        free(expected);
    }

    /* A set of these heads, pooled in stretches that end anywhere, each with its neighbours. */
    problem one = *p;
    one.config.sharing = group == 1 ? SNAPKV_PER_QUERY_HEAD : SNAPKV_PER_KV_HEAD;
    const size_t size = snapkv_workspace_size(&one.config, &one.layer);
    const size_t set = group == 1 && p->config.sharing != SNAPKV_PER_QUERY_HEAD
                           ? index * (p->layer.n_query_heads / p->layer.n_kv_heads)
                           : index;
    void *workspace = new_array(size, 1);
    float *expected[2], *scores = new_array(prefix, 4), *mean = new_array(prefix, 4);
    expected[0] = new_array(prefix, sizeof(float));
    expected[1] = new_array(prefix, sizeof(float));
    assert_ok(snapkv_score(&one.config, &one.layer, set, expected[0], expected[1], workspace,
                           size));
    const size_t radius = p->config.kernel_size / 2;
    for (size_t first = 0; first < prefix;) {
        const size_t n = splitmix_between(random, 1, prefix - first);
        const size_t from = first > radius ? first - radius : 0;
        const size_t to = first + n + radius < prefix ? first + n + radius : prefix;
        const int wants_mean = !splitmix_once_in(random, 3);
        guard out = guard_new((to - from) * sizeof(float), GUARD_AFTER);
        guard out_mean = guard_new((to - from) * sizeof(float), GUARD_BEFORE);
        assert_ok(snapkv_part_score(&p->config, group, to - from, votes + from,
                                    by_max ? sums + from : votes + from, prefix,
                                    (float *)(void *)out.data,
                                    wants_mean ? (float *)(void *)out_mean.data : NULL));
        memcpy(scores + first, out.data + (first - from) * 4, n * 4);
        memcpy(mean + first, wants_mean ? out_mean.data + (first - from) * 4
                                        : (unsigned char *)(expected[1] + first), n * 4);
        guard_free(&out);
        guard_free(&out_mean);
        first += n;
    }
    assert_memory_equal(scores, expected[0], prefix * sizeof(float));
    assert_memory_equal(mean, expected[1], prefix * sizeof(float));

    free(workspace);
    free(scores);
    free(mean);
    free(expected[0]);
    free(expected[1]);
    free(workers);
    free(statistics);
    free(votes);
    free(sums);
}

static problem draw_problem(splitmix *random, size_t i) {
    static const size_t lengths[] = {40, 6143, 6144, 6145, 6150, 12288, 12300, 20000, 31000};
    const size_t window = splitmix_between(random, 1, i % 4 ? 5 : 20);
    const size_t length = lengths[i % COUNT_OF(lengths)];
    const size_t n_kv_heads = splitmix_between(random, 1, 2);
    snapkv_config config = make_config(window, window + 4, 2 * splitmix_between(random, 0, 6) + 1);
    config.pooling = (snapkv_pooling)splitmix_between(random, 0, 1);
    config.voting = (snapkv_voting)splitmix_between(random, 0, 1);
    config.reduce = (snapkv_reduce)splitmix_between(random, 0, 1);
    config.sharing = (snapkv_sharing)splitmix_between(random, 0, 2);
    if (length > 40 && splitmix_once_in(random, 4)) {
        config.n_recent = splitmix_between(random, 1, length > 7000 ? 7000 : length - 1);
    }
    problem p = problem_new(config, n_kv_heads * splitmix_between(random, 1, 3), n_kv_heads, length,
                            splitmix_between(random, 1, 5));
    problem_fill(&p, random, 6, 1);
    if (splitmix_once_in(random, 3)) {
        p.layer.span = splitmix_between(random, 1, length);
    } else if (splitmix_once_in(random, 3)) {
        p.layer.chunk = splitmix_between(random, 1, length);
    }
    p.layer.softcap = splitmix_once_in(random, 4) ? 5 : 0;
    float numbers[8];
    for (size_t h = 0; h < p.layer.n_query_heads; h++) {
        numbers[h] = splitmix_float(random, 6);
    }
    if (splitmix_once_in(random, 3)) {
        problem_set_sinks(&p, numbers);
    }
    for (size_t h = 0; h < p.layer.n_query_heads; h++) {
        numbers[h] /= 4096;
    }
    if (splitmix_once_in(random, 3)) {
        problem_set_slopes(&p, numbers);
    }
    packing how = {LAYOUT_HEAD_MAJOR, SNAPKV_F32, GUARD_AFTER, 0, 0, 1};
    how.layout = (layout)splitmix_between(random, 0, 3);
    how.dtype = (snapkv_dtype)splitmix_between(random, 0, 3);
    how.block_rows = splitmix_once_in(random, 2) ? 16 : splitmix_between(random, 1, 100);
    problem_pack(&p, how);
    return p;
}

static void test_any_number_of_workers(void **state) {
    (void)state;
    for (size_t i = 0; i < 45; i++) {
        splitmix random = {500 + i};
        problem p = draw_problem(&random, i);
        const size_t n_groups = p.config.sharing == SNAPKV_PER_QUERY_HEAD ? p.layer.n_query_heads
                                                                          : p.layer.n_kv_heads;
        check_workers(&random, &p, splitmix_between(&random, 0, n_groups - 1),
                      splitmix_between(&random, 1, 5));
        problem_free(&p);
    }
}

/* The voters may stand anywhere, and a cache that was compressed before has gaps. */
static void test_positions(void **state) {
    (void)state;
    splitmix random = {9};
    problem p = problem_new(make_config(3, 9, 3), 2, 1, 13000, 3);
    int32_t voters[3] = {700, 9000, 40000};
    int32_t *positions = new_array(13000, sizeof *positions);
    for (size_t i = 0; i < 13000; i++) {
        positions[i] = (int32_t)(2 * i + (i > 6000 ? 500 : 0));
    }
    problem_fill(&p, &random, 6, 0);
    problem_pack_plainly(&p);
    p.layer.query_positions = voters;
    check_workers(&random, &p, 0, 3);
    p.layer.key_positions = positions;
    check_workers(&random, &p, 0, 2);
    p.layer.span = 3000;
    check_workers(&random, &p, 0, 4);
    p.layer.query_positions = NULL;
    check_workers(&random, &p, 0, 3);
    problem_free(&p);
    free(positions);
}

/* Custom rows that count how often they are read: once, where the workspace is kept. */
static void count_row(void *context, const void *row, size_t head, size_t position, float *out,
                      size_t head_dim) {
    (void)head, (void)position;
    ++*(size_t *)context;
    memcpy(out, row, head_dim * sizeof *out);
}

static void test_no_logit_twice(void **state) {
    (void)state;
    splitmix random = {12};
    problem p = problem_new(make_config(3, 9, 3), 2, 1, 13000, 2);
    problem_fill(&p, &random, 6, 0);
    problem_pack_plainly(&p);
    size_t n_read = 0;
    p.layer.keys.dtype = SNAPKV_CUSTOM;
    p.layer.keys.decode = count_row;
    p.layer.keys.decode_context = &n_read;
    const size_t size = snapkv_part_workspace_size(&p.config, &p.layer, 3);
    void *workspace = new_array(size, 1);
    snapkv_statistic statistics[3 * 2 * 3];
    float *votes = new_array(2 * 13000, sizeof *votes);
    assert_ok(snapkv_part_observe(&p.config, &p.layer, 0, 0, 3, statistics, workspace, size));
    assert_int_equal(n_read, 13000);
    assert_ok(snapkv_part_vote(&p.config, &p.layer, 0, 0, 3, statistics, 1, votes, NULL, 13000,
                               workspace, size));
    assert_int_equal(n_read, 13000);
    free(votes);
    free(workspace);
    problem_free(&p);
}

/* ---- errors ---------------------------------------------------------------------------------- */

typedef struct calls {
    problem p;
    size_t group, first_part, n_parts, stride, size;
    snapkv_statistic *statistics, *all; /* those of the run, and all */
    float *votes, *sums;
    void *workspace;
} calls;

static snapkv_status observe(const calls *c) {
    return snapkv_part_observe(&c->p.config, &c->p.layer, c->group, c->first_part, c->n_parts,
                               c->statistics, c->workspace, c->size);
}

static snapkv_status vote(const calls *c) {
    return snapkv_part_vote(&c->p.config, &c->p.layer, c->group, c->first_part, c->n_parts, c->all,
                            0, c->votes, c->sums, c->stride, c->workspace, c->size);
}

/* 13,000 rows are 3 parts; the call is for the second. */
static calls new_calls(void) {
    calls c;
    memset(&c, 0, sizeof c);
    splitmix random = {3};
    c.p = problem_new(make_config(2, 9, 3), 4, 2, 13000, 2);
    c.p.config.voting = SNAPKV_VOTE_MAX;
    problem_fill(&c.p, &random, 6, 0);
    problem_pack_plainly(&c.p);
    c.group = 1;
    c.first_part = c.n_parts = 1;
    c.stride = SNAPKV_PART;
    c.size = snapkv_part_workspace_size(&c.p.config, &c.p.layer, 1);
    c.workspace = new_array(c.size, 1);
    c.statistics = new_array(4, sizeof *c.statistics);
    c.all = new_array(12, sizeof *c.all);
    c.votes = new_array(2 * SNAPKV_PART, 4);
    c.sums = new_array(2 * SNAPKV_PART, 4);
    return c;
}

static void free_calls(calls *c) {
    problem_free(&c->p);
    free(c->workspace);
    free(c->statistics);
    free(c->all);
    free(c->votes);
    free(c->sums);
}

/* Each bad input changes one thing; nothing may be written. */
#define OBSERVE(expected, change)                                                                  \
    do {                                                                                           \
        calls c = good;                                                                            \
        change;                                                                                    \
        assert_status(observe(&c), expected);                                                      \
    } while (0)

#define VOTE(expected, change)                                                                     \
    do {                                                                                           \
        calls c = good;                                                                            \
        change;                                                                                    \
        memset(good.votes, 0xA5, 2 * SNAPKV_PART * 4);                                             \
        assert_status(vote(&c), expected);                                                         \
        for (size_t i = 0; (expected) != SNAPKV_OK && i < 2 * SNAPKV_PART; i++) {                  \
            assert_memory_equal(good.votes + i, "\xA5\xA5\xA5\xA5", 4);                            \
        }                                                                                          \
    } while (0)

#define BOTH(expected, change)                                                                     \
    do {                                                                                           \
        OBSERVE(expected, change);                                                                 \
        VOTE(expected, change);                                                                    \
    } while (0)

static void test_errors(void **state) {
    (void)state;
    calls good = new_calls();
    assert_ok(observe(&good));
    assert_ok(vote(&good));
    BOTH(SNAPKV_ERROR_NULL, c.workspace = NULL);
    for (int of_config = 0; of_config < 2; of_config++) {
        const snapkv_config *config = of_config ? NULL : &good.p.config;
        const snapkv_layer *layer = of_config ? &good.p.layer : NULL;
        assert_status(
            snapkv_part_observe(config, layer, 0, 0, 1, good.statistics, good.workspace, good.size),
            SNAPKV_ERROR_NULL);
        assert_status(snapkv_part_vote(config, layer, 0, 0, 1, good.all, 0, good.votes, good.sums,
                                       good.stride, good.workspace, good.size),
                      SNAPKV_ERROR_NULL);
    }
    BOTH(SNAPKV_ERROR_NULL, c.statistics = c.all = NULL);
    BOTH(SNAPKV_ERROR_NULL, c.p.layer.keys.data = NULL);
    BOTH(SNAPKV_ERROR_NULL, c.p.layer.queries.data = NULL);
    BOTH(SNAPKV_ERROR_INDEX, c.group = 2);
    BOTH(SNAPKV_ERROR_INDEX, (c.group = 4, c.p.config.sharing = SNAPKV_PER_QUERY_HEAD));
    BOTH(SNAPKV_ERROR_INDEX, c.first_part = 3);
    BOTH(SNAPKV_ERROR_INDEX, c.first_part = SIZE_MAX);
    BOTH(SNAPKV_ERROR_INDEX, (c.n_parts = 3, c.stride = 13000));
    BOTH(SNAPKV_ERROR_INDEX, (c.n_parts = SIZE_MAX, c.stride = 13000));
    BOTH(SNAPKV_ERROR_INDEX, c.p.layer.first_row = 2 * SNAPKV_PART);
    BOTH(SNAPKV_ERROR_INDEX, c.p.layer.first_row = 1);
    BOTH(SNAPKV_ERROR_SHAPE, c.p.layer.length = 0);
    BOTH(SNAPKV_ERROR_SHAPE, c.p.layer.n_kv_heads = 3);
    BOTH(SNAPKV_ERROR_WINDOW, c.p.config.window = 0);
    BOTH(SNAPKV_ERROR_WINDOW, c.p.config.n_recent = 13000);
    BOTH(SNAPKV_ERROR_OPTION, c.p.layer.softcap = -1);
    BOTH(SNAPKV_ERROR_STRIDE, c.p.layer.keys.row_stride = 4);
    BOTH(SNAPKV_ERROR_WORKSPACE,
         c.size = snapkv_part_workspace_min(&c.p.config, &c.p.layer) - 1);
    BOTH(SNAPKV_ERROR_WORKSPACE, c.workspace = (char *)c.workspace + 1);
    BOTH(SNAPKV_ERROR_ALIAS, c.statistics = c.all = c.workspace);
    OBSERVE(SNAPKV_ERROR_ALIAS, c.statistics = (snapkv_statistic *)(uintptr_t)c.p.layer.keys.data);
    VOTE(SNAPKV_ERROR_NULL, c.votes = NULL);
    VOTE(SNAPKV_ERROR_NULL, c.sums = NULL);
    VOTE(SNAPKV_ERROR_ALIAS, c.votes = c.sums);
    VOTE(SNAPKV_ERROR_ALIAS, c.sums = (float *)(void *)(c.all + 3));
    VOTE(SNAPKV_ERROR_ALIAS, c.votes = (float *)(uintptr_t)c.p.layer.queries.data);
    VOTE(SNAPKV_ERROR_OUTPUT, c.stride = SNAPKV_PART - 1);
    VOTE(SNAPKV_ERROR_OUTPUT, c.stride = SIZE_MAX / 4);
    const float bad[4] = {NAN, INFINITY, -INFINITY, -1};
    for (size_t k = 0; k < 4; k++) {
        good.all[11].sum = bad[k];
        VOTE(SNAPKV_ERROR_NOT_FINITE, (void)0);
        good.all[11].sum = 0;
        good.all[0].peak = bad[k];
        if (k < 3) {
            VOTE(SNAPKV_ERROR_NOT_FINITE, (void)0);
        } else {
            assert_ok(vote(&good));
        }
        good.all[0].peak = 0;
    }
    /* A run of no parts needs no keys and writes nothing. */
    BOTH(SNAPKV_OK, (c.n_parts = 0, c.first_part = 3, c.p.layer.keys.data = NULL,
                     c.statistics = NULL, c.votes = c.sums = NULL));
    /* Nor does it look at the pages of V, whose table may be anything. */
    const int32_t table[1] = {0};
    BOTH(SNAPKV_OK, (c.n_parts = 0, c.first_part = 3, c.p.layer.keys.data = NULL,
                     c.p.layer.values.data = good.all, c.p.layer.values.block_table = table,
                     c.statistics = NULL, c.votes = c.sums = NULL));

    /* A NaN is found by the worker that holds it, and by no other. */
    const float nan_key = NAN;
    guard_thaw(&good.p.packed_keys.memory);
    memcpy(packed_row(&good.p.packed_keys, 1, SNAPKV_PART + 77), &nan_key, 4);
    OBSERVE(SNAPKV_ERROR_NOT_FINITE, (void)0);
    OBSERVE(SNAPKV_OK, c.first_part = 0);
    OBSERVE(SNAPKV_OK, c.first_part = 2);

    /* Functions of a whole prompt take no part of it. */
    good.p.layer.first_row = SNAPKV_PART;
    assert_status(snapkv_check(&good.p.config, &good.p.layer), SNAPKV_ERROR_INDEX);
    assert_string_equal(snapkv_explain(&good.p.config, &good.p.layer),
                        "layer.first_row: not 0; only for snapkv_part_*");
    assert_int_equal(snapkv_part_workspace_size(NULL, &good.p.layer, 1), 0);
    assert_int_equal(snapkv_part_workspace_min(&good.p.config, NULL), 0);
    assert_int_equal(snapkv_part_count(0), 0);
    assert_int_equal(snapkv_part_count(SIZE_MAX), SIZE_MAX / 6144 + 1);
    free_calls(&good);
}

/* Two heads of 2^30 queries: all the weights of one part, 4 G W x 6144 bytes, could be kept; those
 * of 2^31 positions, 2^64 bytes, could not. */
static void test_more_weights_than_memory(void **state) {
    (void)state;
    if (SIZE_MAX == UINT32_MAX) {
        return; /* nor could one part's */
    }
    const size_t window = (size_t)1 << 30;
    const snapkv_config config = make_config(window, window + 1, 1);
    snapkv_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.n_query_heads = 2;
    layer.n_kv_heads = layer.head_dim = 1;
    layer.length = INT32_MAX;
    const size_t least = snapkv_part_workspace_min(&config, &layer);
    assert_true(least > 0 && least < 8 * window * SNAPKV_PART);
    assert_true(snapkv_part_workspace_size(&config, &layer, 1) >= 8 * window * SNAPKV_PART);
    assert_int_equal(snapkv_part_workspace_size(&config, &layer, snapkv_part_count(layer.length)),
                     0);
}

static void test_errors_of_scores(void **state) {
    (void)state;
    snapkv_config config = make_config(2, 9, 5);
    float votes[60], scores[30], mean[30];
    for (size_t i = 0; i < 60; i++) {
        votes[i] = 1;
        scores[i / 2] = mean[i / 2] = 7;
    }
#define SCORE(n_heads, n, votes, sums, stride, scores, mean)                                       \
    snapkv_part_score(&config, n_heads, n, votes, sums, stride, scores, mean)
    assert_status(snapkv_part_score(NULL, 2, 24, votes, votes, 30, scores, mean),
                  SNAPKV_ERROR_NULL);
    assert_status(SCORE(2, 24, NULL, votes, 30, scores, mean), SNAPKV_ERROR_NULL);
    assert_status(SCORE(2, 24, votes, NULL, 30, scores, mean), SNAPKV_ERROR_NULL);
    assert_status(SCORE(2, 24, votes, votes, 30, NULL, mean), SNAPKV_ERROR_NULL);
    assert_status(SCORE(0, 24, votes, votes, 30, scores, mean), SNAPKV_ERROR_SHAPE);
    assert_status(SCORE(2, 0, votes, votes, 30, scores, mean), SNAPKV_ERROR_SHAPE);
    assert_status(SCORE(2, SIZE_MAX / 8, votes, votes, SIZE_MAX / 8, scores, mean),
                  SNAPKV_ERROR_SHAPE);
    assert_status(SCORE(2, 24, votes, votes, SIZE_MAX / 8, scores, mean), SNAPKV_ERROR_SHAPE);
    assert_status(SCORE(2, 24, votes, votes, 23, scores, mean), SNAPKV_ERROR_STRIDE);
    assert_status(SCORE(2, 24, votes, votes, 30, scores, scores), SNAPKV_ERROR_ALIAS);
    assert_status(SCORE(2, 24, votes, votes, 30, votes + 30, mean), SNAPKV_ERROR_ALIAS);
    assert_status(SCORE(2, 24, votes, votes, 30, scores, votes + 53), SNAPKV_ERROR_ALIAS);
    votes[53] = NAN;
    assert_status(SCORE(2, 24, votes, votes, 30, scores, mean), SNAPKV_ERROR_NOT_FINITE);
    votes[53] = 1;
    float sums[60];
    memcpy(sums, votes, sizeof sums);
    sums[53] = INFINITY;
    assert_status(SCORE(2, 24, votes, sums, 30, scores, mean), SNAPKV_ERROR_NOT_FINITE);
    config.kernel_size = 4;
    assert_status(SCORE(2, 24, votes, votes, 30, scores, mean), SNAPKV_ERROR_KERNEL);
    config.kernel_size = 5;
    config.pooling = (snapkv_pooling)2;
    assert_status(SCORE(2, 24, votes, votes, 30, scores, mean), SNAPKV_ERROR_OPTION);
    config.pooling = SNAPKV_POOL_AVG;
    for (size_t i = 0; i < 30; i++) {
        assert_true(scores[i] == 7 && mean[i] == 7);
    }
    assert_ok(SCORE(2, 24, votes, votes, 30, scores, mean));
    assert_true(scores[2] == 1 && mean[23] == 1 && scores[24] == 7 && mean[24] == 7);
    assert_ok(SCORE(2, 24, votes, sums, 30, scores, NULL)); /* the sums are not looked at */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_number_of_workers),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_no_logit_twice),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_more_weights_than_memory),
        cmocka_unit_test(test_errors_of_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
