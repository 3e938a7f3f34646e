/* snapkv_allocate() against the reference, which sorts all scores. */
#include "check.h"
#include "guard.h"
#include "reference.h"
#include "splitmix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float draw_score(splitmix *random, size_t kind) {
    switch (kind) {
    case 0: /* many ties, zeros of both signs */
        return (float)((int)splitmix_between(random, 0, 4) - 2) *
               (splitmix_once_in(random, 2) ? 0.5f : -0.5f);
    case 1:
        return splitmix_float(random, 2);
    case 2: /* as votes fall: few are high */
        return expf(splitmix_float(random, 40));
    case 3:
        return splitmix_once_in(random, 2) ? 0.0f : -0.0f;
    default:
        return (splitmix_once_in(random, 2) ? 1.0f : -1.0f) *
               ldexpf(1.0f + splitmix_float(random, 1),
                      (int)splitmix_between(random, 0, 250) - 125);
    }
}

static void check_problem(splitmix *random, size_t n_lists, size_t most, size_t kind, size_t budget,
                          size_t least) {
    snapkv_list *lists = new_array(n_lists, sizeof *lists);
    size_t *expected = new_array(n_lists, sizeof *expected);
    guard *scores = new_array(n_lists, sizeof *scores);
    guard counts = guard_new(n_lists * sizeof(size_t), GUARD_AFTER);
    size_t all = 0, sum = 0;
    for (size_t i = 0; i < n_lists; i++) {
        lists[i].n = splitmix_once_in(random, 6) ? splitmix_between(random, 0, 3)
                                                 : splitmix_between(random, 0, most);
        scores[i] = guard_new(lists[i].n * sizeof(float), i % 2 ? GUARD_BEFORE : GUARD_AFTER);
        float *numbers = (float *)(void *)scores[i].data;
        const float lift = splitmix_once_in(random, 3) ? 1.0f : 0.0f; /* one list above others */
        for (size_t j = 0; j < lists[i].n; j++) {
            numbers[j] = draw_score(random, kind) + lift * (kind == 1 ? 1.0f : 0.0f);
        }
        guard_freeze(&scores[i]);
        lists[i].scores = lists[i].n || i % 2 ? numbers : NULL;
        all += lists[i].n;
    }
    if (budget == SIZE_MAX) {
        budget = splitmix_between(random, n_lists * least, n_lists * least + all + all / 8);
    }
    reference_allocate(lists, n_lists, budget, least, expected);
    assert_ok(snapkv_allocate(lists, n_lists, budget, least, (size_t *)(void *)counts.data));
    for (size_t i = 0; i < n_lists; i++) {
        sum += expected[i];
        if (((size_t *)(void *)counts.data)[i] != expected[i]) {
            print_error("list %lu of %lu gets %lu, not %lu; budget %lu, least %lu, kind %lu\n",
                        (unsigned long)i, (unsigned long)n_lists,
                        (unsigned long)((size_t *)(void *)counts.data)[i],
                        (unsigned long)expected[i], (unsigned long)budget, (unsigned long)least,
                        (unsigned long)kind);
            _fail(__FILE__, __LINE__);
        }
        guard_free(&scores[i]);
    }
    assert_int_equal(sum, budget < all ? budget : all);
    guard_free(&counts);
    free(scores);
    free(expected);
    free(lists);
}

static void test_random_problems(void **state) {
    (void)state;
    for (size_t i = 0; i < 5000; i++) {
        splitmix random = {i};
        const size_t n_lists = splitmix_between(&random, 1, 12);
        const size_t most = splitmix_once_in(&random, 8) ? 700 : splitmix_between(&random, 0, 60);
        const size_t least = splitmix_once_in(&random, 2) ? 0 : splitmix_between(&random, 0, 40);
        const size_t budget = splitmix_once_in(&random, 20)   ? n_lists * least
                              : splitmix_once_in(&random, 20) ? n_lists * (most + least)
                                                              : SIZE_MAX;
        check_problem(&random, n_lists, most, i % 5, budget, least);
    }
}

/* Above 4 * 2^16 scores a sample guesses first. */
static void test_problems_that_are_guessed(void **state) {
    (void)state;
    for (size_t i = 0; i < 24; i++) {
        splitmix random = {i};
        const size_t n_lists = splitmix_between(&random, 1, 8);
        const size_t least = i % 3 ? 0 : splitmix_between(&random, 0, 9000);
        const size_t budget = i % 10 == 9 ? n_lists * least : SIZE_MAX;
        check_problem(&random, n_lists, 2 * 400000 / n_lists, i % 5, budget, least);
    }
}

/* Samples are taken at a fixed step: scores that are high only there, and low only there. */
static void test_misleading_samples(void **state) {
    (void)state;
    enum { N = 1 << 19 };
    float *scores = new_array(N, sizeof *scores);
    for (int high = 0; high < 2; high++) {
        for (size_t step = 2; step <= 8; step *= 4) {
            for (size_t offset = 0; offset < step; offset += step / 2) {
                for (size_t j = 0; j < N; j++) {
                    scores[j] = (j % step == offset) == high ? 1 + (float)j : -1 - (float)j;
                }
                const snapkv_list lists[2] = {{scores, N / 2}, {scores + N / 2, N / 2}};
                static const size_t budgets[] = {1, N / 16, N / 8, N / 8 + 1, N - 1};
                for (size_t i = 0; i < COUNT_OF(budgets); i++) {
                    size_t counts[2], expected[2];
                    assert_ok(snapkv_allocate(lists, 2, budgets[i], 0, counts));
                    reference_allocate(lists, 2, budgets[i], 0, expected);
                    assert_int_equal(counts[0], expected[0]);
                    assert_int_equal(counts[1], expected[1]);
                }
            }
        }
    }
    free(scores);
}

/* Two neighbours among the floats: where the samples see the lower one alone, and the higher. */
static void test_misleading_neighbours(void **state) {
    (void)state;
    enum { N = 1 << 19 };
    const float pair[2] = {1.0f, nextafterf(1.0f, 2.0f)};
    float *scores = new_array(N, sizeof *scores);
    for (int high = 0; high < 2; high++) {
        for (size_t j = 0; j < N; j++) {
            scores[j] = pair[(j % 8 == 4) == high];
        }
        const snapkv_list lists[2] = {{scores, N / 4}, {scores + N / 4, N / 4 * 3}};
        static const size_t budgets[] = {1, N / 32, N / 8, N / 4, N / 8 * 7, N / 8 * 7 + 1, N - 1};
        for (size_t i = 0; i < COUNT_OF(budgets); i++) {
            size_t counts[2], expected[2];
            assert_ok(snapkv_allocate(lists, 2, budgets[i], 0, counts));
            reference_allocate(lists, 2, budgets[i], 0, expected);
            assert_int_equal(counts[0], expected[0]);
            assert_int_equal(counts[1], expected[1]);
        }
    }
    free(scores);
}

/* By hand: 5 entries for three lists, one each at least. */
static void test_by_hand(void **state) {
    (void)state;
    const float a[] = {9, 1, 8, 7}, b[] = {0.5f, -3}, c[] = {7, 7, 2};
    const snapkv_list lists[3] = {{a, 4}, {b, 2}, {c, 3}};
    size_t counts[3];
    assert_ok(snapkv_allocate(lists, 3, 5, 1, counts)); /* 9, 0.5, 7; then 8 and a's 7 */
    assert_true(counts[0] == 3 && counts[1] == 1 && counts[2] == 1);
    assert_ok(snapkv_allocate(lists, 3, 5, 0, counts)); /* 9, 8, 7, 7, 7 */
    assert_true(counts[0] == 3 && counts[1] == 0 && counts[2] == 2);
    assert_ok(snapkv_allocate(lists, 3, 9, 3, counts)); /* b has no three */
    assert_true(counts[0] == 4 && counts[1] == 2 && counts[2] == 3);
    assert_ok(snapkv_allocate(lists, 3, 0, 0, counts));
    assert_true(counts[0] == 0 && counts[1] == 0 && counts[2] == 0);
}

static void test_errors_write_nothing(void **state) {
    (void)state;
    float scores[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    snapkv_list lists[2] = {{scores, 4}, {scores + 4, 4}};
    const snapkv_list good[2] = {{scores, 4}, {scores + 4, 4}};
    guard out = guard_new(2 * sizeof(size_t), GUARD_AFTER);
    size_t *counts = (size_t *)(void *)out.data;
    assert_status(snapkv_allocate(NULL, 2, 4, 0, counts), SNAPKV_ERROR_NULL);
    assert_status(snapkv_allocate(lists, 2, 4, 0, NULL), SNAPKV_ERROR_NULL);
    assert_status(snapkv_allocate(lists, 0, 4, 0, counts), SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_allocate(lists, SIZE_MAX / 8, 4, 0, counts), SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_allocate(lists, 2, 4, 3, counts), SNAPKV_ERROR_CAPACITY);
    assert_status(snapkv_allocate(lists, 2, 4, SIZE_MAX / 2 + 1, counts), SNAPKV_ERROR_CAPACITY);
    assert_status(snapkv_allocate(lists, 2, 4, 0, (size_t *)(void *)lists), SNAPKV_ERROR_ALIAS);
    for (int i = 0; i < 2; i++) {
        lists[i].scores = NULL;
        assert_status(snapkv_allocate(lists, 2, 4, 0, counts), SNAPKV_ERROR_NULL);
        lists[i] = good[i];
        lists[i].n = (size_t)INT32_MAX + 1;
        assert_status(snapkv_allocate(lists, 2, 4, 0, counts), SNAPKV_ERROR_SHAPE);
        lists[i].n = SIZE_MAX;
        assert_status(snapkv_allocate(lists, 2, 4, 0, counts), SNAPKV_ERROR_SHAPE);
        lists[i] = good[i];
        lists[i].scores = (const float *)(const void *)out.data;
        lists[i].n = 1;
        assert_status(snapkv_allocate(lists, 2, 4, 0, counts), SNAPKV_ERROR_ALIAS);
        lists[i] = good[i];
    }
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 8 * COUNT_OF(bad); i++) {
        scores[i / 4] = bad[i % 4];
        assert_status(snapkv_allocate(lists, 2, 4, 0, counts), SNAPKV_ERROR_NOT_FINITE);
        assert_status(snapkv_allocate(lists, 2, 100, 0, counts), SNAPKV_ERROR_NOT_FINITE);
        scores[i / 4] = 1;
    }
    guard_check_untouched(&out);
    assert_ok(snapkv_allocate(lists, 2, 4, 2, counts));
    guard_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_random_problems),
        cmocka_unit_test(test_problems_that_are_guessed),
        cmocka_unit_test(test_misleading_samples),
        cmocka_unit_test(test_misleading_neighbours),
        cmocka_unit_test(test_errors_write_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
