/* The worked example and the other examples of docs/algorithm.md, to every number. The exponential
 * weights below are that page's; what is expected follows from them by the fractions written out
 * here. */
#include "check.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Exponential weights of the two window queries (positions 6 and 7); query 6 can't see position 7.
 */
static const double WEIGHTS[2][8] = {{1, 2, 10, 8, 1, 1, 2, 1}, {1, 1, 8, 12, 1, 1, 1, 1}};

/* Queries and keys of two dimensions whose dot products, over sqrt(2), are the logarithms of the
 * weights: query r is sqrt(2) in dimension r, key j holds the two logarithms. Values are (j, -j).
 */
static problem weighted(const double *first, const double *second, size_t length,
                        snapkv_config config) {
    problem p = problem_new(config, 1, 1, length, 2);
    for (size_t i = 0; i < config.window; i++) {
        size_t row = 2 - config.window + i;
        p.queries[i * 2 + row] = sqrtf(2);
    }
    for (size_t j = 0; j < length; j++) {
        p.keys[j * 2] = (float)log(first[j]);
        p.keys[j * 2 + 1] = (float)log(second[j]);
        p.values[j * 2] = (float)j;
        p.values[j * 2 + 1] = -(float)j;
    }
    problem_pack_plainly(&p);
    return p;
}

static problem worked_example(void) {
    return weighted(WEIGHTS[0], WEIGHTS[1], 8, make_config(2, 5, 3));
}

/* Alone in a window of one, each query shows its own denominator. */
static void test_denominators_are_25_and_26(void **state) {
    (void)state;
    double expected[7];

    /* Query 6 is the last of the first seven positions. Row 0 of the weights: use dimension 0. */
    problem p = weighted(WEIGHTS[1], WEIGHTS[0], 7, make_config(1, 5, 3));
    float *votes = run_vote(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    for (size_t j = 0; j < 6; j++) {
        expected[j] = WEIGHTS[0][j] / 25;
    }
    assert_all_close(votes, expected, 6);
    free(votes);
    problem_free(&p);

    p = weighted(WEIGHTS[0], WEIGHTS[1], 8, make_config(1, 5, 3));
    votes = run_vote(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    for (size_t j = 0; j < 7; j++) {
        expected[j] = WEIGHTS[1][j] / 26;
    }
    assert_all_close(votes, expected, 7);
    free(votes);
    problem_free(&p);
}

static const double VOTES[6] = {1 / 25. + 1 / 26.,  2 / 25. + 1 / 26., 10 / 25. + 8 / 26.,
                                8 / 25. + 12 / 26., 1 / 25. + 1 / 26., 1 / 25. + 1 / 26.};

static void test_votes(void **state) {
    (void)state;
    problem p = worked_example();
    float *votes = run_vote(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_all_close(votes, VOTES, 6);
    assert_close(votes[2], 0.707692, 1e-6);
    assert_close(votes[3], 0.781538, 1e-6);
    free(votes);
    problem_free(&p);
}

static void test_pooled_scores(void **state) {
    (void)state;
    problem p = worked_example();
    const double *v = VOTES;
    const double scores[6] = {(v[0] + v[1]) / 3,        (v[0] + v[1] + v[2]) / 3,
                              (v[1] + v[2] + v[3]) / 3, (v[2] + v[3] + v[4]) / 3,
                              (v[3] + v[4] + v[5]) / 3, (v[4] + v[5]) / 3};
    outcome o = run_select(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_int_equal(o.status, SNAPKV_OK);
    assert_all_close(o.scores, scores, 6);
    assert_close(o.scores[0], 0.065641, 1e-6);
    assert_close(o.scores[2], 0.535897, 1e-6);
    assert_close(o.scores[5], 0.052308, 1e-6);
    outcome_free(&o);
    problem_free(&p);
}

static void test_kept_positions_and_gathered_rows(void **state) {
    (void)state;
    const int32_t expected[5] = {2, 3, 4, 6, 7};
    problem p = worked_example();
    int32_t kept[5];
    float keys[5][2];
    float values[5][2];
    snapkv_rows_out keys_out = {keys, sizeof keys, sizeof keys[0], NULL, 0, 0};
    snapkv_rows_out values_out = {values, sizeof values, sizeof values[0], NULL, 0, 0};
    snapkv_selection selection = {0, 0, 0};
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    guard workspace = guard_new(size, GUARD_AFTER);
    assert_ok(snapkv_compress(&p.config, &p.layer, 0, kept, &keys_out, &values_out, &selection,
                              workspace.data, size));
    assert_indices(kept, expected, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_memory_equal(keys[i], p.keys + expected[i] * 2, sizeof keys[i]);
        assert_true(values[i][0] == (float)expected[i] && values[i][1] == -(float)expected[i]);
    }
    assert_int_equal(selection.n_kept, 5);
    assert_int_equal(selection.bypassed, 0);
    assert_close(selection.coverage, 1 - (VOTES[0] + VOTES[1] + VOTES[5]) / 2, 1e-6);
    guard_free(&workspace);
    problem_free(&p);
}

/* Raw votes peak at position 3, pooled ones at 2; position 4 is kept for its neighbour alone. */
static void test_pooling_moves_the_peak(void **state) {
    (void)state;
    const int32_t by_score[5] = {2, 3, 4, 6, 7};
    const int32_t unpooled[5] = {3, 2, 1, 6, 7};
    problem p = worked_example();
    p.config.order = SNAPKV_BY_SCORE;
    outcome o = run_select(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_indices(o.kept, by_score, 5);
    outcome_free(&o);
    p.config.kernel_size = 1;
    o = run_select(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_indices(o.kept, unpooled, 5);
    assert_all_close(o.scores, VOTES, 6);
    outcome_free(&o);
    problem_free(&p);
}

static void test_maximum_pooling(void **state) {
    (void)state;
    const int32_t expected[5] = {2, 3, 4, 6, 7};
    const double scores[6] = {VOTES[1], VOTES[2], VOTES[3], VOTES[3], VOTES[3], VOTES[4]};
    problem p = worked_example();
    p.config.pooling = SNAPKV_POOL_MAX;
    outcome o = run_select(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_all_close(o.scores, scores, 6);
    assert_indices(o.kept, expected, 5);
    outcome_free(&o);
    problem_free(&p);
}

/* Weights over A, B and the window; normalised over A and B alone they would be 1.15 and 0.85, and
 * A would win. */
static void test_window_belongs_in_the_denominator(void **state) {
    (void)state;
    static const double first[4] = {9, 1, 90, 1};
    static const double second[4] = {9, 27, 2, 2};
    const double votes[2] = {0.09 + 0.225, 0.01 + 0.675};
    const double prefix_only[2] = {0.9 + 0.25, 0.1 + 0.75};
    const int32_t keeps_b[3] = {1, 2, 3};
    problem p = weighted(first, second, 4, make_config(2, 3, 1));
    outcome o = run_select(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_all_close(o.scores, votes, 2);
    assert_indices(o.kept, keeps_b, 3);

    /* The example would prove nothing if the wrong denominator kept B as well. */
    double wrong[2];
    for (size_t j = 0; j < 2; j++) {
        wrong[j] = first[j] / (first[0] + first[1]) + second[j] / (second[0] + second[1]);
        assert_close(wrong[j], prefix_only[j], 1e-12);
    }
    assert_true(wrong[0] > wrong[1] && o.scores[0] < o.scores[1]);
    outcome_free(&o);
    problem_free(&p);
}

/* Two query heads with keys of their own; the second one looks at the start of the prompt. */
static void test_heads_choose_for_themselves(void **state) {
    (void)state;
    static const double late[2][8] = {{1, 2, 10, 8, 1, 1, 2, 1}, {1, 1, 8, 12, 1, 1, 1, 1}};
    static const double early[2][8] = {{9, 8, 1, 1, 1, 1, 2, 1}, {9, 8, 7, 1, 1, 1, 1, 1}};
    const int32_t expected[2][5] = {{2, 3, 4, 6, 7}, {0, 1, 2, 6, 7}};
    problem p = problem_new(make_config(2, 5, 3), 2, 2, 8, 2);
    for (size_t head = 0; head < 2; head++) {
        p.queries[(head * 2 + 0) * 2 + 0] = sqrtf(2);
        p.queries[(head * 2 + 1) * 2 + 1] = sqrtf(2);
        for (size_t j = 0; j < 8; j++) {
            for (size_t d = 0; d < 2; d++) {
                p.keys[(head * 8 + j) * 2 + d] = (float)log((head ? early : late)[d][j]);
            }
        }
    }
    problem_pack_plainly(&p);
    assert_int_equal(snapkv_set_count(&p.config, &p.layer), 2);
    for (size_t set = 0; set < 2; set++) {
        outcome o = run_select(&p, set, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
        assert_indices(o.kept, expected[set], 5);
        outcome_free(&o);
    }
    problem_free(&p);
}

/* Two equal logits, V = [0, 10]: the full output is 5, what is kept gives 0, the bound allows 10.
 */
static void test_dropping_a_position_changes_the_output(void **state) {
    (void)state;
    const float values[2] = {0, 10};
    const float query[1] = {3};
    const int32_t kept[1] = {0};
    problem p = problem_new(make_config(1, 2, 1), 1, 1, 2, 1);
    p.keys[0] = p.keys[1] = 0.5f;
    problem_pack_plainly(&p);
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    guard workspace = guard_new(size, GUARD_AFTER);
    float mass = -1;
    assert_ok(snapkv_retained_mass(&p.config, &p.layer, 0, query, 2, kept, 1, &mass, workspace.data,
                                   size));
    assert_close(mass, 0.5, 1e-6);

    double weights[2];
    reference_weights(&p, 0, query, 2, weights);
    double full = weights[0] * (double)values[0] + weights[1] * (double)values[1];
    double renormalised = weights[0] / (double)mass;
    double cut = renormalised * (double)values[0];
    assert_close(full, 5, 1e-6);
    assert_close(renormalised, 1, 1e-6);
    assert_close(cut, 0, 0);
    assert_close(snapkv_error_bound(mass, 10), 10, 1e-5);
    assert_true(fabs(full - cut) <= (double)snapkv_error_bound(mass, 10));
    guard_free(&workspace);
    problem_free(&p);
}

/* The table of positions and slots of docs/algorithm.md, and its min(L, C) + g. */
static void test_positions_part_from_slots(void **state) {
    (void)state;
    const int32_t kept[5] = {2, 3, 4, 6, 7};
    snapkv_config config = make_config(2, 5, 3);
    snapkv_cursor cursor = snapkv_cursor_start(&config, 8);
    assert_int_equal(snapkv_next_position(&cursor), 8);
    assert_int_equal(snapkv_next_slot(&cursor), 5);
    for (size_t slot = 0; slot < 5; slot++) {
        size_t position = 0;
        assert_ok(snapkv_slot_position(&cursor, kept, slot, &position));
        assert_int_equal(position, kept[slot]);
    }
    assert_ok(snapkv_append(&cursor, 3));
    assert_int_equal(snapkv_next_position(&cursor), 8 + 3);
    assert_int_equal(snapkv_next_slot(&cursor), 5 + 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_denominators_are_25_and_26),
        cmocka_unit_test(test_votes),
        cmocka_unit_test(test_pooled_scores),
        cmocka_unit_test(test_kept_positions_and_gathered_rows),
        cmocka_unit_test(test_pooling_moves_the_peak),
        cmocka_unit_test(test_maximum_pooling),
        cmocka_unit_test(test_window_belongs_in_the_denominator),
        cmocka_unit_test(test_heads_choose_for_themselves),
        cmocka_unit_test(test_dropping_a_position_changes_the_output),
        cmocka_unit_test(test_positions_part_from_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
