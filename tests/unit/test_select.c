/* snapkv_select(): bypass and its edges, sharing, order, pinned positions, coverage; the presets.
 */
#include "check.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Heads, length and dimension of most tests here: four query heads on two K/V heads. */
static problem random_problem(snapkv_config config, size_t length) {
    splitmix random = {length * 31 + config.capacity};
    problem p = problem_new(config, 4, 2, length, 12);
    problem_fill(&p, &random, 4, 0);
    problem_pack_plainly(&p);
    return p;
}

static outcome select_fully(const problem *p, size_t set) {
    outcome o = run_select(p, set, snapkv_workspace_size(&p->config, &p->layer), GUARD_AFTER);
    assert_int_equal(o.status, SNAPKV_OK);
    return o;
}

/* Every set against the reference. */
static void check_sets(const problem *p) {
    assert_int_equal(snapkv_set_count(&p->config, &p->layer), problem_set_count(p));
    for (size_t set = 0; set < problem_set_count(p); set++) {
        outcome o = select_fully(p, set);
        check_selection(p, set, &o);
        outcome_free(&o);
    }
}

static void test_presets(void **state) {
    (void)state;
    snapkv_config config = snapkv_default_config();
    assert_int_equal(config.window, 32);
    assert_int_equal(config.capacity, 2048);
    assert_int_equal(config.kernel_size, 5);
    assert_int_equal(config.n_sink, 0);
    assert_int_equal(config.pooling, SNAPKV_POOL_AVG);
    assert_int_equal(config.order, SNAPKV_BY_POSITION);
    assert_int_equal(config.sharing, SNAPKV_PER_KV_HEAD);
    assert_int_equal(config.reduce, SNAPKV_REDUCE_MEAN);
    config = snapkv_official_config();
    assert_int_equal(config.window, 32);
    assert_int_equal(config.capacity, 2048);
    assert_int_equal(config.kernel_size, 5);
    assert_int_equal(config.n_sink, 0);
    assert_int_equal(config.pooling, SNAPKV_POOL_AVG);
    assert_int_equal(config.order, SNAPKV_BY_SCORE);
    assert_int_equal(config.sharing, SNAPKV_PER_QUERY_HEAD);
    assert_int_equal(config.reduce, SNAPKV_REDUCE_MEAN);
}

/* Shorter than the capacity: everything in order, coverage 1, scores left alone. */
static void check_bypass(size_t window, size_t length, size_t capacity) {
    problem p = random_problem(make_config(window, capacity, 3), length);
    p.config.order = SNAPKV_BY_SCORE;
    for (size_t set = 0; set < 2; set++) {
        guard kept = guard_new(length * sizeof(int32_t), GUARD_AFTER);
        guard scores = guard_new(problem_prefix(&p) * sizeof(float), GUARD_AFTER);
        size_t size = snapkv_workspace_min(&p.config, &p.layer);
        guard workspace = guard_new(size, GUARD_AFTER);
        snapkv_selection selection;
        memset(&selection, 0xFF, sizeof selection);
        assert_ok(snapkv_select(&p.config, &p.layer, set, (int32_t *)(void *)kept.data,
                                (float *)(void *)scores.data, &selection, workspace.data, size));
        for (size_t j = 0; j < length; j++) {
            assert_int_equal(((int32_t *)(void *)kept.data)[j], j);
        }
        assert_int_equal(selection.n_kept, length);
        assert_true(selection.coverage == 1);
        assert_int_equal(selection.bypassed, 1);
        guard_check_untouched(&scores);
        guard_free(&kept);
        guard_free(&scores);
        guard_free(&workspace);
    }
    problem_free(&p);
}

static void test_shorter_than_capacity_is_bypassed(void **state) {
    (void)state;
    check_bypass(4, 19, 20);
    check_bypass(4, 5, 20);
    check_bypass(1, 1, 2);
    check_bypass(4, 4, 20); /* all of it window: there is no prefix to vote on */
    check_bypass(4, 30, SIZE_MAX);
}

/* L = C goes through selection: everything is kept, but voted on and scored. */
static void test_as_long_as_the_capacity(void **state) {
    (void)state;
    problem p = random_problem(make_config(4, 20, 3), 20);
    check_sets(&p);
    outcome o = select_fully(&p, 0);
    for (size_t j = 0; j < 20; j++) {
        assert_int_equal(o.kept[j], j);
    }
    assert_close(o.selection.coverage, 1, 1e-6);
    outcome_free(&o);

    /* And by score it comes out by score. */
    p.config.order = SNAPKV_BY_SCORE;
    check_sets(&p);
    o = select_fully(&p, 0);
    int ascending = 1;
    for (size_t i = 1; i < 16; i++) {
        ascending &= o.kept[i - 1] < o.kept[i];
        assert_true(o.scores[o.kept[i - 1]] >= o.scores[o.kept[i]]);
    }
    assert_false(ascending);
    outcome_free(&o);
    problem_free(&p);
}

static void test_one_longer_than_the_capacity(void **state) {
    (void)state;
    problem p = random_problem(make_config(4, 20, 3), 21);
    check_sets(&p);
    outcome o = select_fully(&p, 1);
    size_t lowest = 0;
    for (size_t j = 0; j < 17; j++) {
        lowest = o.scores[j] < o.scores[lowest] ? j : lowest;
    }
    for (size_t i = 0; i < 20; i++) {
        assert_int_equal(o.kept[i], i < lowest ? i : i + 1);
    }
    outcome_free(&o);
    problem_free(&p);
}

/* One prefix position to choose, and all but one. */
static void test_smallest_and_largest_choice(void **state) {
    (void)state;
    problem p = random_problem(make_config(4, 5, 1), 60);
    check_sets(&p);
    p.config.capacity = 59;
    check_sets(&p);
    problem_free(&p);
}

static void test_window_is_kept_whatever_it_scores(void **state) {
    (void)state;
    for (size_t window = 1; window < 20; window++) {
        problem p = random_problem(make_config(window, window + 3, 5), 40);
        for (size_t set = 0; set < 2; set++) {
            outcome o = select_fully(&p, set);
            for (size_t i = 0; i < window; i++) {
                assert_int_equal(o.kept[3 + i], 40 - window + i);
            }
            outcome_free(&o);
        }
        problem_free(&p);
    }
}

static void test_sharing_and_reducing(void **state) {
    (void)state;
    static const snapkv_sharing sharings[] = {SNAPKV_PER_KV_HEAD, SNAPKV_PER_QUERY_HEAD,
                                              SNAPKV_PER_LAYER};
    for (size_t i = 0; i < 12; i++) {
        problem p = random_problem(make_config(5, 23, 3), 120);
        p.config.sharing = sharings[i % 3];
        p.config.reduce = i / 3 % 2 ? SNAPKV_REDUCE_MAX : SNAPKV_REDUCE_MEAN;
        p.config.pooling = i / 6 ? SNAPKV_POOL_MAX : SNAPKV_POOL_AVG;
        check_sets(&p);
        problem_free(&p);
    }
}

/* Pool, then reduce. Maxima of averages aren't averages of maxima, so the order shows. */
static void test_pools_before_it_reduces(void **state) {
    (void)state;
    problem p = problem_new(make_config(1, 3, 3), 2, 1, 6, 2);
    /* Head 0 sees a peak at position 1, head 1 one at position 2. */
    p.queries[0] = p.queries[3] = 4;
    p.keys[1 * 2 + 0] = p.keys[2 * 2 + 1] = 4;
    p.layer.scale = 1;
    p.config.reduce = SNAPKV_REDUCE_MAX;
    problem_pack_plainly(&p);
    outcome o = select_fully(&p, 0);
    /* Each average holds one peak (nearly 1): never two, as after a maximum over the heads. */
    assert_true(o.scores[1] < 0.34f && o.scores[2] < 0.34f && o.scores[1] > 0.33f);
    outcome_free(&o);
    check_sets(&p);
    problem_free(&p);
}

/* By score: pinned positions, then the prefix by falling score, then the window. */
static void test_by_score(void **state) {
    (void)state;
    for (size_t n_sink = 0; n_sink < 8; n_sink++) {
        problem p = random_problem(make_config(5, 25, 3), 120);
        p.config.order = SNAPKV_BY_SCORE;
        p.config.n_sink = n_sink;
        check_sets(&p);
        outcome o = select_fully(&p, 1);
        for (size_t i = 0; i < n_sink; i++) {
            assert_int_equal(o.kept[i], i);
        }
        for (size_t i = n_sink + 1; i < 20; i++) {
            assert_true(o.scores[o.kept[i - 1]] >= o.scores[o.kept[i]]);
        }
        for (size_t i = 20; i < 25; i++) {
            assert_int_equal(o.kept[i], 95 + i);
        }
        outcome_free(&o);
        problem_free(&p);
    }
}

/* The order changes where an entry stands, not which entries there are. */
static void test_orders_keep_the_same_positions(void **state) {
    (void)state;
    problem p = random_problem(make_config(5, 40, 5), 200);
    for (size_t set = 0; set < 2; set++) {
        p.config.order = SNAPKV_BY_POSITION;
        outcome by_position = select_fully(&p, set);
        p.config.order = SNAPKV_BY_SCORE;
        outcome by_score = select_fully(&p, set);
        assert_memory_equal(by_score.scores, by_position.scores, 195 * sizeof(float));
        assert_true(by_score.selection.coverage == by_position.selection.coverage);
        sort_ascending(by_score.kept, 40);
        assert_indices(by_score.kept, by_position.kept, 40);
        outcome_free(&by_position);
        outcome_free(&by_score);
    }
    problem_free(&p);
}

/* Pinned positions count towards the capacity, and are kept though nobody votes for them. */
static void test_pinned_positions(void **state) {
    (void)state;
    for (size_t n_sink = 1; n_sink < 16; n_sink++) {
        problem p = random_problem(make_config(4, 20, 3), 90);
        p.config.n_sink = n_sink;
        p.layer.span = 30; /* the first positions get no vote at all */
        check_sets(&p);
        outcome o = select_fully(&p, 0);
        for (size_t i = 0; i < n_sink; i++) {
            assert_int_equal(o.kept[i], i);
            assert_true(o.scores[i] == 0);
        }
        assert_true((size_t)o.kept[n_sink] > n_sink);
        outcome_free(&o);
        problem_free(&p);
    }
}

/* Equal keys, equal scores: the lowest positions stay, with either order, pinned or not. */
static void test_ties_keep_the_lowest_positions(void **state) {
    (void)state;
    for (size_t i = 0; i < 8; i++) {
        problem p = problem_new(make_config(3, 11, i & 4 ? 3 : 1), 2, 1, 40, 4);
        p.config.pooling = SNAPKV_POOL_MAX;
        p.config.order = i & 1 ? SNAPKV_BY_SCORE : SNAPKV_BY_POSITION;
        p.config.n_sink = i & 2 ? 3 : 0;
        problem_pack_plainly(&p);
        outcome o = select_fully(&p, 0);
        for (size_t k = 0; k < 8; k++) {
            assert_int_equal(o.kept[k], k);
        }
        for (size_t k = 8; k < 11; k++) {
            assert_int_equal(o.kept[k], 29 + k);
        }
        outcome_free(&o);
        problem_free(&p);
    }
}

/* Maximum pooling makes plateaus: a tie at the boundary inside one goes to its lower end. */
static void test_plateaus_of_maximum_pooling(void **state) {
    (void)state;
    problem p = random_problem(make_config(4, 14, 7), 120);
    p.config.pooling = SNAPKV_POOL_MAX;
    for (size_t capacity = 5; capacity < 120; capacity++) {
        p.config.capacity = capacity;
        check_sets(&p);
    }
    problem_free(&p);
}

static void test_kernel_wider_than_the_prefix(void **state) {
    (void)state;
    static const size_t kernels[] = {5, 7, 9, 11, 31, 1001, SIZE_MAX};
    for (size_t i = 0; i < COUNT_OF(kernels); i++) {
        problem p = random_problem(make_config(6, 9, kernels[i]), 11);
        p.config.pooling = SNAPKV_POOL_MAX;
        check_sets(&p);
        if (kernels[i] < SIZE_MAX) {
            p.config.pooling = SNAPKV_POOL_AVG;
            check_sets(&p);
        }
        problem_free(&p);
    }
}

/* What the dropped positions lose, counted on the votes rather than on the pooled scores. */
static void test_coverage_counts_votes(void **state) {
    (void)state;
    problem p = random_problem(make_config(2, 3, 5), 12);
    p.config.sharing = SNAPKV_PER_QUERY_HEAD;
    p.config.n_sink = 0;
    check_sets(&p);
    outcome narrow = select_fully(&p, 2);
    p.config.capacity = 11;
    check_sets(&p);
    outcome wide = select_fully(&p, 2);
    assert_true(narrow.selection.coverage > 0);
    assert_true(narrow.selection.coverage < wide.selection.coverage);
    assert_true(wide.selection.coverage < 1);
    outcome_free(&narrow);
    outcome_free(&wide);
    problem_free(&p);
}

/* A sink logit takes its share of the mass and is never dropped. */
static void test_coverage_with_sinks(void **state) {
    (void)state;
    const float sinks[4] = {2, -1, 5, 90};
    problem p = random_problem(make_config(4, 20, 3), 90);
    problem_set_sinks(&p, sinks);
    check_sets(&p);
    p.config.sharing = SNAPKV_PER_QUERY_HEAD;
    outcome o = select_fully(&p, 3);
    assert_close(o.selection.coverage, 1, 1e-6);
    outcome_free(&o);
    problem_free(&p);
}

static void test_scores_and_selection_are_optional(void **state) {
    (void)state;
    problem p = random_problem(make_config(4, 20, 3), 90);
    outcome expected = select_fully(&p, 1);
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    for (int full = 0; full < 2; full++) {
        size = full ? size : snapkv_workspace_min(&p.config, &p.layer);
        guard workspace = guard_new(size, GUARD_AFTER);
        guard kept = guard_new(20 * sizeof(int32_t), GUARD_AFTER);
        assert_ok(snapkv_select(&p.config, &p.layer, 1, (int32_t *)(void *)kept.data, NULL, NULL,
                                workspace.data, size));
        assert_memory_equal(kept.data, expected.kept, kept.size);
        guard_free(&workspace);
        guard_free(&kept);
    }
    outcome_free(&expected);
    problem_free(&p);
}

/* Selection reads the cache: values aren't asked for, and keys may lie in read-only memory (they do
 * in every test). */
static void test_needs_no_values(void **state) {
    (void)state;
    problem p = random_problem(make_config(4, 20, 3), 90);
    outcome expected = select_fully(&p, 0);
    memset(&p.layer.values, 0, sizeof p.layer.values);
    assert_ok(snapkv_check(&p.config, &p.layer));
    outcome o = select_fully(&p, 0);
    assert_same_outcome(&o, &expected);
    outcome_free(&o);
    outcome_free(&expected);
    problem_free(&p);
}

static void test_counts(void **state) {
    (void)state;
    snapkv_config config = make_config(4, 20, 3);
    assert_int_equal(snapkv_kept_count(&config, 19), 19);
    assert_int_equal(snapkv_kept_count(&config, 20), 20);
    assert_int_equal(snapkv_kept_count(&config, 21), 20);
    assert_int_equal(snapkv_kept_count(&config, 1000000), 20);
    assert_int_equal(snapkv_kept_count(NULL, 5), 0);
    problem p = random_problem(config, 40);
    assert_int_equal(snapkv_set_count(&p.config, &p.layer), 2);
    p.config.sharing = SNAPKV_PER_QUERY_HEAD;
    assert_int_equal(snapkv_set_count(&p.config, &p.layer), 4);
    p.config.sharing = SNAPKV_PER_LAYER;
    assert_int_equal(snapkv_set_count(&p.config, &p.layer), 1);
    problem_free(&p);
}

/* Two calls with the same arguments, and calls for other sets in between, can't matter. */
static void test_calls_leave_nothing_behind(void **state) {
    (void)state;
    problem p = random_problem(make_config(4, 20, 3), 90);
    problem other = random_problem(make_config(7, 30, 5), 200);
    outcome first = select_fully(&p, 0);
    outcome between = select_fully(&other, 1);
    outcome second = select_fully(&p, 0);
    assert_same_outcome(&first, &second);
    outcome_free(&first);
    outcome_free(&between);
    outcome_free(&second);
    problem_free(&p);
    problem_free(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_shorter_than_capacity_is_bypassed),
        cmocka_unit_test(test_as_long_as_the_capacity),
        cmocka_unit_test(test_one_longer_than_the_capacity),
        cmocka_unit_test(test_smallest_and_largest_choice),
        cmocka_unit_test(test_window_is_kept_whatever_it_scores),
        cmocka_unit_test(test_sharing_and_reducing),
        cmocka_unit_test(test_pools_before_it_reduces),
        cmocka_unit_test(test_by_score),
        cmocka_unit_test(test_orders_keep_the_same_positions),
        cmocka_unit_test(test_pinned_positions),
        cmocka_unit_test(test_ties_keep_the_lowest_positions),
        cmocka_unit_test(test_plateaus_of_maximum_pooling),
        cmocka_unit_test(test_kernel_wider_than_the_prefix),
        cmocka_unit_test(test_coverage_counts_votes),
        cmocka_unit_test(test_coverage_with_sinks),
        cmocka_unit_test(test_scores_and_selection_are_optional),
        cmocka_unit_test(test_needs_no_values),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_calls_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
