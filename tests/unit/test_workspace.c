/* The workspace: any size from the minimum up gives the same bits, and not a byte outside is used.
 */
#include "check.h"
#include "reference.h"

#include <stdlib.h>
#include <string.h>

static problem random_problem(size_t n_query_heads, size_t n_kv_heads, size_t window, size_t length,
                              size_t head_dim) {
    splitmix random = {length + window};
    problem p = problem_new(make_config(window, window + 9, 5), n_query_heads, n_kv_heads, length,
                            head_dim);
    problem_fill(&p, &random, 4, 1);
    problem_pack_plainly(&p);
    return p;
}

/* Sizes from the minimum to beyond the full one, all multiples of a float. */
static size_t sizes_between(size_t least, size_t full, size_t *sizes, size_t max) {
    size_t n = 0;
    size_t step = (full - least) / (max - 5) / 4 * 4 + 4;
    for (size_t size = least; size < full && n < max - 4; size += step) {
        sizes[n++] = size;
    }
    sizes[n++] = least + 4 < full ? least + 4 : full;
    sizes[n++] = full - least >= 4 ? full - 4 : full;
    sizes[n++] = full;
    sizes[n++] = full + 4096;
    return n;
}

static void check_sizes(const problem *p) {
    size_t sizes[24];
    size_t least = snapkv_workspace_min(&p->config, &p->layer);
    size_t full = snapkv_workspace_size(&p->config, &p->layer);
    assert_true(least > 0 && least <= full);
    size_t n = sizes_between(least, full, sizes, COUNT_OF(sizes));
    for (size_t set = 0; set < problem_set_count(p); set++) {
        outcome expected = run_select(p, set, full, GUARD_AFTER);
        check_selection(p, set, &expected);
        for (size_t i = 0; i < n; i++) {
            outcome o = run_select(p, set, sizes[i], i % 2 ? GUARD_AFTER : GUARD_BEFORE);
            assert_same_outcome(&o, &expected);
            outcome_free(&o);
        }
        outcome_free(&expected);
    }
    for (size_t head = 0; head < p->layer.n_query_heads; head++) {
        float *expected = run_vote(p, head, full, GUARD_AFTER);
        for (size_t i = 0; i < n; i++) {
            float *votes = run_vote(p, head, sizes[i], i % 2 ? GUARD_BEFORE : GUARD_AFTER);
            assert_memory_equal(votes, expected, problem_prefix(p) * sizeof(float));
            free(votes);
        }
        free(expected);
    }
}

static void test_every_size_gives_the_same_bits(void **state) {
    (void)state;
    static const size_t shapes[][5] = {
        {1, 1, 1, 12, 1},   {1, 1, 5, 40, 3},    {2, 1, 17, 300, 8},  {4, 2, 32, 500, 16},
        {3, 3, 33, 200, 5}, {8, 1, 16, 700, 12}, {2, 2, 64, 1000, 7}, {6, 2, 3, 97, 80},
    };
    static const snapkv_sharing sharings[] = {SNAPKV_PER_KV_HEAD, SNAPKV_PER_QUERY_HEAD,
                                              SNAPKV_PER_LAYER};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        problem p =
            random_problem(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], shapes[i][4]);
        for (size_t j = 0; j < 3; j++) {
            p.config.sharing = sharings[j];
            check_sizes(&p);
        }
        problem_free(&p);
    }
}

/* What a layer adds to its logits passes through both ways of using memory. */
static void test_every_option_with_every_size(void **state) {
    (void)state;
    const float sinks[4] = {1, -2, 3, 0};
    const float slopes[4] = {0.03f, 0.06f, 0, -0.01f};
    problem p = random_problem(4, 2, 18, 400, 16);
    p.layer.softcap = 3;
    check_sizes(&p);
    p.layer.span = 70;
    check_sizes(&p);
    problem_set_sinks(&p, sinks);
    check_sizes(&p);
    problem_set_slopes(&p, slopes);
    p.config.pooling = SNAPKV_POOL_MAX;
    p.config.order = SNAPKV_BY_SCORE;
    p.config.n_sink = 2;
    check_sizes(&p);
    packing how = {LAYOUT_BLOCKS_BY_ROW, SNAPKV_BF16, GUARD_AFTER, 1, 3, 16};
    problem_pack(&p, how);
    check_sizes(&p);
    p.config.voting = SNAPKV_VOTE_MAX;
    p.config.n_recent = 3;
    check_sizes(&p);
    p.layer.span = 0;
    p.layer.chunk = 150;
    check_sizes(&p);
    int32_t rows[400], voters[18];
    for (int i = 0; i < 400; i++) {
        rows[i] = i + (i > 100 ? 50 : 0) + i / 7;
    }
    for (int i = 0; i < 18; i++) {
        voters[i] = 300 + i / 2 * 25;
    }
    problem_set_key_positions(&p, rows);
    check_sizes(&p);
    problem_set_query_positions(&p, voters);
    check_sizes(&p);
    how.dtype = SNAPKV_CUSTOM;
    problem_pack(&p, how);
    check_sizes(&p);
    problem_free(&p);
}

/* One float or one byte less than the minimum, and none. The guard page is where the claimed
 * workspace ends, so nothing may be touched either. */
static void test_too_small(void **state) {
    (void)state;
    problem p = random_problem(4, 2, 5, 90, 8);
    float query[8] = {0};
    size_t least = snapkv_workspace_min(&p.config, &p.layer);
    const size_t sizes[] = {least - sizeof(float), least - 1, sizeof(float), 1, 0};
    int32_t kept[14];
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        guard workspace = guard_new(sizes[i], GUARD_BEFORE);
        guard out = guard_new(85 * sizeof(float), GUARD_AFTER);
        guard rows = guard_new(14 * 2 * 2 * 32, GUARD_AFTER);
        snapkv_rows_out keys_out = {rows.data, 14 * 32, 32, NULL, 0, 0};
        snapkv_rows_out values_out = {rows.data + 2 * 14 * 32, 14 * 32, 32, NULL, 0, 0};
        void *memory = workspace.data;
        float *votes = (float *)(void *)out.data;
        assert_status(snapkv_select(&p.config, &p.layer, 0, kept, NULL, NULL, memory, sizes[i]),
                      SNAPKV_ERROR_WORKSPACE);
        assert_status(snapkv_vote(&p.config, &p.layer, 0, votes, memory, sizes[i]),
                      SNAPKV_ERROR_WORKSPACE);
        assert_status(snapkv_compress(&p.config, &p.layer, 0, kept, &keys_out, &values_out, NULL,
                                      memory, sizes[i]),
                      SNAPKV_ERROR_WORKSPACE);
        assert_status(snapkv_retained_mass(&p.config, &p.layer, 0, query, 90, kept, 0, votes,
                                           memory, sizes[i]),
                      SNAPKV_ERROR_WORKSPACE);
        guard_check_untouched(&workspace);
        guard_check_untouched(&out);
        guard_check_untouched(&rows);
        guard_free(&workspace);
        guard_free(&out);
        guard_free(&rows);
    }
    problem_free(&p);
}

/* The smallest workspace of many shapes, ending at a guard page, and one float less refused. */
static void test_the_minimum_is_exact(void **state) {
    (void)state;
    splitmix random = {21};
    for (size_t round = 0; round < 150; round++) {
        size_t n_kv_heads = splitmix_between(&random, 1, 3);
        size_t window = splitmix_between(&random, 1, 40);
        problem p = random_problem(n_kv_heads * splitmix_between(&random, 1, 4), n_kv_heads, window,
                                   window + splitmix_between(&random, 9, 120),
                                   splitmix_between(&random, 1, 40));
        p.config.sharing = (snapkv_sharing)(round % 3);
        size_t least = snapkv_workspace_min(&p.config, &p.layer);
        outcome enough = run_select(&p, 0, least, GUARD_AFTER);
        outcome full = run_select(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
        outcome less = run_select(&p, 0, least - sizeof(float), GUARD_AFTER);
        assert_int_equal(enough.status, SNAPKV_OK);
        assert_same_outcome(&enough, &full);
        assert_int_equal(less.status, SNAPKV_ERROR_WORKSPACE);
        outcome_free(&enough);
        outcome_free(&full);
        outcome_free(&less);
        problem_free(&p);
    }
}

static void test_misaligned(void **state) {
    (void)state;
    problem p = random_problem(4, 2, 5, 90, 8);
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    guard workspace = guard_new(size + 4, GUARD_AFTER);
    int32_t kept[14];
    for (size_t offset = 1; offset < 4; offset++) {
        assert_status(
            snapkv_select(&p.config, &p.layer, 0, kept, NULL, NULL, workspace.data + offset, size),
            SNAPKV_ERROR_WORKSPACE);
    }
    guard_check_untouched(&workspace);
    /* The alignment of a float is all that is asked. */
    outcome expected = run_select(&p, 0, size, GUARD_BEFORE);
    assert_ok(snapkv_select(&p.config, &p.layer, 0, kept, NULL, NULL, workspace.data + 4, size));
    assert_indices(kept, expected.kept, 14);
    outcome_free(&expected);
    guard_free(&workspace);
    problem_free(&p);
}

/* A size need not be a multiple of anything. */
static void test_odd_sizes(void **state) {
    (void)state;
    problem p = random_problem(4, 2, 5, 90, 8);
    size_t least = snapkv_workspace_min(&p.config, &p.layer);
    outcome expected = run_select(&p, 0, least, GUARD_AFTER);
    for (size_t extra = 1; extra < 700; extra += 13) {
        outcome o = run_select(&p, 0, least + extra, GUARD_BEFORE);
        assert_same_outcome(&o, &expected);
        outcome_free(&o);
    }
    outcome_free(&expected);
    problem_free(&p);
}

/* 131072 positions, W 32, D 128: without a W x L buffer at most 4 MiB. The sizes need no data. */
static void test_sizes_of_a_long_prompt(void **state) {
    (void)state;
    snapkv_config config = make_config(32, 2048, 5);
    snapkv_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.n_query_heads = 32;
    layer.n_kv_heads = 8;
    layer.length = 131072;
    layer.head_dim = 128;
    for (int sharing = 0; sharing < 3; sharing++) {
        config.sharing = (snapkv_sharing)sharing;
        size_t least = snapkv_workspace_min(&config, &layer);
        assert_true(least > 0 && least <= (size_t)4 << 20);
        assert_true(snapkv_workspace_size(&config, &layer) >= least);
    }
    /* At the largest length the sizes are still sizes, not what is left of them. */
    layer.length = INT32_MAX;
    config.sharing = SNAPKV_PER_KV_HEAD;
    if (SIZE_MAX > UINT32_MAX) {
        assert_true(snapkv_workspace_min(&config, &layer) >= (size_t)INT32_MAX * sizeof(float));
        assert_true(snapkv_workspace_size(&config, &layer) >=
                    snapkv_workspace_min(&config, &layer));
    }
}

/* A span leaves out what no query sees, as far as sizes alone can tell: where positions are given
 * the voters may see every row, and the fastest workspace has room for all. */
static void test_sizes_with_positions(void **state) {
    (void)state;
    int32_t positions[400];
    problem p = random_problem(4, 2, 16, 400, 8);
    const size_t all = snapkv_workspace_size(&p.config, &p.layer);
    p.layer.span = 60;
    assert_true(snapkv_workspace_size(&p.config, &p.layer) < all);
    for (int32_t i = 0; i < 400; i++) {
        positions[i] = i;
    }
    problem_set_key_positions(&p, positions);
    assert_int_equal(snapkv_workspace_size(&p.config, &p.layer), all);
    p.layer.key_positions = NULL;
    problem_set_query_positions(&p, positions);
    assert_int_equal(snapkv_workspace_size(&p.config, &p.layer), all);
    problem_free(&p);
}

/* Bypassed calls go by the same rule. */
static void test_bypass_needs_a_workspace_too(void **state) {
    (void)state;
    problem p = random_problem(4, 2, 5, 90, 8);
    p.config.capacity = 91;
    size_t least = snapkv_workspace_min(&p.config, &p.layer);
    int32_t kept[90];
    guard workspace = guard_new(least, GUARD_AFTER);
    assert_status(snapkv_select(&p.config, &p.layer, 0, kept, NULL, NULL, NULL, least),
                  SNAPKV_ERROR_NULL);
    assert_status(snapkv_select(&p.config, &p.layer, 0, kept, NULL, NULL, workspace.data,
                                least - sizeof(float)),
                  SNAPKV_ERROR_WORKSPACE);
    assert_ok(snapkv_select(&p.config, &p.layer, 0, kept, NULL, NULL, workspace.data, least));
    guard_free(&workspace);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_size_gives_the_same_bits),
        cmocka_unit_test(test_every_option_with_every_size),
        cmocka_unit_test(test_too_small),
        cmocka_unit_test(test_the_minimum_is_exact),
        cmocka_unit_test(test_misaligned),
        cmocka_unit_test(test_odd_sizes),
        cmocka_unit_test(test_sizes_of_a_long_prompt),
        cmocka_unit_test(test_sizes_with_positions),
        cmocka_unit_test(test_bypass_needs_a_workspace_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
