/* snapkv_vote(): every shape of the window, the head and the group, and what the layer adds to a
 * logit, against the reference. */
#include "check.h"
#include "reference.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Votes of every query head against the reference, with the smallest workspace too. */
static void check_votes(const problem *p) {
    size_t prefix = problem_prefix(p);
    double *expected = new_array(prefix, sizeof(double));
    for (size_t head = 0; head < p->layer.n_query_heads; head++) {
        reference_votes(p, head, expected);
        float *votes = run_vote(p, head, snapkv_workspace_size(&p->config, &p->layer), GUARD_AFTER);
        assert_all_close(votes, expected, prefix);
        free(votes);
        votes = run_vote(p, head, snapkv_workspace_min(&p->config, &p->layer), GUARD_BEFORE);
        assert_all_close(votes, expected, prefix);
        free(votes);
    }
    free(expected);
}

static problem random_problem(size_t window, size_t n_query_heads, size_t n_kv_heads, size_t length,
                              size_t head_dim) {
    splitmix random = {window * 1000003 + length * 1009 + head_dim};
    problem p = problem_new(make_config(window, window + 1, 1), n_query_heads, n_kv_heads, length,
                            head_dim);
    problem_fill(&p, &random, 4, 0);
    problem_pack_plainly(&p);
    return p;
}

static void test_shapes(void **state) {
    (void)state;
    static const size_t shapes[][3] = {
        /* window, length, head_dim */
        {1, 2, 1},    {1, 40, 8},    {1, 500, 3},   {2, 3, 1},     {7, 8, 5},    {39, 40, 3},
        {63, 64, 80}, {16, 100, 80}, {17, 130, 1},  {15, 97, 3},   {31, 300, 2}, {32, 257, 128},
        {33, 96, 64}, {64, 192, 96}, {65, 193, 16}, {128, 400, 4}, {4, 50, 576}, {32, 129, 576},
        {5, 6, 80},   {3, 1000, 7},  {48, 49, 24},  {100, 111, 9}, {2, 48, 13},  {2, 49, 13},
        {2, 50, 13},  {2, 51, 13},   {2, 95, 13},   {2, 96, 13},   {2, 97, 13},  {2, 98, 13},
    };
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        problem p = random_problem(shapes[i][0], 1, 1, shapes[i][1], shapes[i][2]);
        check_votes(&p);
        problem_free(&p);
    }
}

/* Every length around every length: tails of the prefix and of the causal corner. */
static void test_every_small_shape(void **state) {
    (void)state;
    for (size_t window = 1; window <= 36; window += 5) {
        for (size_t length = window + 1; length <= window + 60; length++) {
            problem p = random_problem(window, 1, 1, length, 1 + length % 5);
            check_votes(&p);
            problem_free(&p);
        }
    }
}

static void test_head_groups(void **state) {
    (void)state;
    static const size_t heads[][2] = {{4, 1}, {6, 2}, {8, 4}, {3, 3}, {71, 1}};
    for (size_t i = 0; i < COUNT_OF(heads); i++) {
        problem p = random_problem(5, heads[i][0], heads[i][1], 70, 6);
        check_votes(&p);
        problem_free(&p);
    }
}

/* What the window's queries spend on the prefix and what they spend on the window make up W. */
static void test_votes_sum_to_what_the_window_leaves(void **state) {
    (void)state;
    problem p = random_problem(9, 1, 1, 120, 16);
    size_t prefix = problem_prefix(&p);
    float *votes = run_vote(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    double *weights = new_array(p.layer.length, sizeof(double));
    double sum = 0;
    for (size_t j = 0; j < prefix; j++) {
        assert_true(votes[j] > 0);
        sum += (double)votes[j];
    }
    assert_true(sum < 9);
    for (size_t i = 0; i < 9; i++) {
        reference_weights(&p, 0, p.queries + i * 16, prefix + i, weights);
        for (size_t j = prefix; j < p.layer.length; j++) {
            sum += weights[j];
        }
    }
    assert_close(sum, 9, 9 * TOLERANCE);
    free(weights);
    free(votes);
    problem_free(&p);
}

/* A query sees itself and no later one: with equal logits, each of the last two positions shows. */
static void test_causal_mask_includes_the_diagonal(void **state) {
    (void)state;
    problem p = problem_new(make_config(2, 3, 1), 1, 1, 6, 2);
    const double expected[4] = {1 / 5. + 1 / 6., 1 / 5. + 1 / 6., 1 / 5. + 1 / 6., 1 / 5. + 1 / 6.};
    problem_pack_plainly(&p);
    float *votes = run_vote(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_all_close(votes, expected, 4);
    free(votes);
    problem_free(&p);
}

/* The scale of a layer, and its default of 1 / sqrt(head_dim). */
static void test_scale(void **state) {
    (void)state;
    static const float scales[] = {0, -0.0f, 1, 0.125f, 0.3f, 1e-3f, 1e-30f, 0.08838834764f};
    for (size_t i = 0; i < COUNT_OF(scales); i++) {
        problem p = random_problem(6, 2, 1, 60, 24);
        p.layer.scale = scales[i];
        check_votes(&p);
        problem_free(&p);
    }
}

/* From a cap that flattens everything to one that changes nothing. A cap that isn't even a normal
 * number is legal: every logit is then next to 0. */
static void test_soft_cap(void **state) {
    (void)state;
    static const float caps[] = {0, -0.0f, 1e-40f, 1e-30f, 0.01f, 0.5f,
                                 2, 30,    50,     1e6f,   1e30f, FLT_MAX};
    for (size_t i = 0; i < COUNT_OF(caps); i++) {
        problem p = random_problem(6, 2, 1, 60, 24);
        p.layer.scale = 0.5f;
        p.layer.softcap = caps[i];
        check_votes(&p);
        /* And with logits that are exactly 0. */
        memset(p.queries, 0, 2 * 6 * 24 * sizeof(float));
        problem_pack_plainly(&p);
        check_votes(&p);
        problem_free(&p);
    }
}

/* The cap comes after the scale and before ALiBi: with a cap of 1 on logits of tens, slopes that
 * reach beyond it still tell. */
static void test_order_of_what_a_layer_adds(void **state) {
    (void)state;
    const float slopes[3] = {0.25f, 0.0625f, -0.125f};
    problem p = random_problem(6, 3, 1, 60, 24);
    p.layer.scale = 2;
    p.layer.softcap = 1;
    problem_set_slopes(&p, slopes);
    check_votes(&p);
    p.layer.span = 20;
    check_votes(&p);
    problem_free(&p);
}

static void test_alibi(void **state) {
    (void)state;
    static const float slopes[][2] = {
        {0.5f, 0.25f}, {0, 1e-3f}, {-0.03f, 0.03f}, {2, 1}, {0.00390625f, -0.1f}};
    for (size_t i = 0; i < COUNT_OF(slopes); i++) {
        problem p = random_problem(5, 2, 2, 90, 8);
        problem_set_slopes(&p, slopes[i]);
        check_votes(&p);
        problem_free(&p);
    }
}

/* j > t - span: a span of 1 sees itself alone, spans past the length see everything. */
static void test_span(void **state) {
    (void)state;
    static const size_t spans[] = {1,  2,  4,  5,   6,   7,   16,        47,           48,
                                   50, 58, 99, 100, 101, 102, INT32_MAX, SIZE_MAX - 1, SIZE_MAX};
    for (size_t i = 0; i < COUNT_OF(spans); i++) {
        problem p = random_problem(5, 2, 1, 101, 8);
        p.layer.span = spans[i];
        check_votes(&p);
        problem_free(&p);
    }
}

/* With equal logits the span can be read off the votes. */
static void test_span_reaches_exactly_so_far(void **state) {
    (void)state;
    problem p = problem_new(make_config(2, 4, 1), 1, 1, 8, 2);
    const double expected[6] = {0, 0, 0, 0.25, 0.5, 0.5};
    p.layer.span = 4;
    problem_pack_plainly(&p);
    float *votes = run_vote(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_all_close(votes, expected, 6);
    assert_true(votes[0] == 0 && votes[1] == 0 && votes[2] == 0);
    free(votes);
    problem_free(&p);
}

static void test_sink_logits(void **state) {
    (void)state;
    static const float sinks[][2] = {{0, 1}, {-3, 4}, {20, -20}, {FLT_MAX, -FLT_MAX}, {-100, 70}};
    for (size_t i = 0; i < COUNT_OF(sinks); i++) {
        problem p = random_problem(5, 2, 1, 90, 8);
        problem_set_sinks(&p, sinks[i]);
        check_votes(&p);
        p.layer.span = 3;
        check_votes(&p);
        problem_free(&p);
    }
}

/* The largest logits that a float holds in base 2, of either sign: their difference is beyond
 * float. */
static void test_extreme_logits(void **state) {
    (void)state;
    const float top = FLT_MAX * 0.693f;
    const float keys[6] = {-top, top, 0, -top, top, -top};
    problem p = problem_new(make_config(2, 3, 1), 1, 1, 6, 1);
    const double expected[4] = {0, 2 / 2., 0, 0};
    p.queries[0] = p.queries[1] = 1;
    for (size_t j = 0; j < 6; j++) {
        p.keys[j] = keys[j];
    }
    problem_pack_plainly(&p);
    float *votes = run_vote(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_all_close(votes, expected, 4);
    free(votes);

    /* All of them as low as can be: equal, so uniform. */
    for (size_t j = 0; j < 6; j++) {
        p.keys[j] = -top;
    }
    problem_pack_plainly(&p);
    check_votes(&p);
    problem_free(&p);
}

/* Logits far apart: the running maximum moves, up and down the prompt and only at its end. */
static void test_wide_logits(void **state) {
    (void)state;
    for (size_t shape = 0; shape < 3; shape++) {
        problem p = problem_new(make_config(3, 4, 1), 1, 1, 300, 1);
        for (size_t i = 0; i < 3; i++) {
            p.queries[i] = 1;
        }
        for (size_t j = 0; j < 300; j++) {
            float ramp = (float)j / 4;
            p.keys[j] = shape == 0 ? ramp : shape == 1 ? -ramp : j < 297 ? 0 : 60;
        }
        problem_pack_plainly(&p);
        check_votes(&p);
        problem_free(&p);
    }
}

/* Voting is no selection: whatever the policy would do with the votes, it isn't asked. */
static void test_only_the_window_of_the_policy_counts(void **state) {
    (void)state;
    problem p = random_problem(5, 2, 1, 90, 8);
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    p.config.capacity = 1000; /* a bypassed length still votes */
    float *expected = run_vote(&p, 1, size, GUARD_AFTER);
    p.config.capacity = 0;
    p.config.kernel_size = 2;
    p.config.n_sink = SIZE_MAX;
    float *votes = run_vote(&p, 1, size, GUARD_AFTER);
    assert_memory_equal(votes, expected, 85 * sizeof(float));
    free(votes);
    free(expected);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_every_small_shape),
        cmocka_unit_test(test_head_groups),
        cmocka_unit_test(test_votes_sum_to_what_the_window_leaves),
        cmocka_unit_test(test_causal_mask_includes_the_diagonal),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_soft_cap),
        cmocka_unit_test(test_order_of_what_a_layer_adds),
        cmocka_unit_test(test_alibi),
        cmocka_unit_test(test_span),
        cmocka_unit_test(test_span_reaches_exactly_so_far),
        cmocka_unit_test(test_sink_logits),
        cmocka_unit_test(test_extreme_logits),
        cmocka_unit_test(test_wide_logits),
        cmocka_unit_test(test_only_the_window_of_the_policy_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
