/* snapkv_pool() */
#include "check.h"
#include "guard.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Pools between guard pages; the caller frees the result. */
static float *run_pool(const float *votes, size_t n, size_t kernel_size, snapkv_pooling pooling,
                       guard_side side) {
    guard in = guard_copy(votes, n * sizeof(float), side);
    guard out = guard_new(n * sizeof(float), side);
    guard_freeze(&in);
    assert_ok(snapkv_pool((const float *)(void *)in.data, n, kernel_size, pooling,
                          (float *)(void *)out.data));
    float *scores = new_array(n, sizeof(float));
    memcpy(scores, out.data, out.size);
    guard_free(&in);
    guard_free(&out);
    return scores;
}

static void check_against_reference(const float *votes, size_t n, size_t kernel_size) {
    double *exact = new_array(n, sizeof(double));
    double *expected = new_array(n, sizeof(double));
    for (size_t i = 0; i < n; i++) {
        exact[i] = (double)votes[i];
    }
    float *scores = run_pool(votes, n, kernel_size, SNAPKV_POOL_AVG, GUARD_AFTER);
    reference_pool(exact, n, kernel_size, SNAPKV_POOL_AVG, expected);
    assert_all_close(scores, expected, n);
    free(scores);
    scores = run_pool(votes, n, kernel_size, SNAPKV_POOL_MAX, GUARD_BEFORE);
    reference_pool(exact, n, kernel_size, SNAPKV_POOL_MAX, expected);
    for (size_t i = 0; i < n; i++) {
        assert_true((double)scores[i] == expected[i]);
    }
    free(scores);
    free(exact);
    free(expected);
}

static void test_every_kernel_on_every_length(void **state) {
    (void)state;
    splitmix random = {3};
    float votes[80];
    for (size_t i = 0; i < COUNT_OF(votes); i++) {
        votes[i] = splitmix_float(&random, 2) + 1;
    }
    for (size_t n = 1; n <= COUNT_OF(votes); n++) {
        for (size_t kernel_size = 1; kernel_size <= 2 * n + 5; kernel_size += 2) {
            check_against_reference(votes, n, kernel_size);
        }
    }
}

static void test_long(void **state) {
    (void)state;
    static const size_t kernels[] = {1, 3, 5, 7, 63, 999};
    splitmix random = {4};
    const size_t n = 5000;
    float *votes = new_array(n, sizeof(float));
    for (size_t i = 0; i < n; i++) {
        /* From 1e-12 to 1: a running sum would lose the small ones. */
        votes[i] = powf(10, splitmix_float(&random, 12) - 6);
    }
    for (size_t i = 0; i < COUNT_OF(kernels); i++) {
        check_against_reference(votes, n, kernels[i]);
    }
    free(votes);
}

/* Outside counts as zero and in the divisor: the first of three ones gets 2/3, not 1. */
static void test_average_counts_padding(void **state) {
    (void)state;
    const float ones[3] = {1, 1, 1};
    const double expected[3] = {2 / 3., 1, 2 / 3.};
    const double wider[3] = {3 / 7., 3 / 7., 3 / 7.};
    float *scores = run_pool(ones, 3, 3, SNAPKV_POOL_AVG, GUARD_AFTER);
    assert_all_close(scores, expected, 3);
    free(scores);
    scores = run_pool(ones, 3, 7, SNAPKV_POOL_AVG, GUARD_AFTER);
    assert_all_close(scores, wider, 3);
    free(scores);
}

/* Outside is ignored, not zero: a maximum of negative numbers is negative. */
static void test_maximum_ignores_padding(void **state) {
    (void)state;
    const float votes[4] = {-3, -1, -4, -2};
    const float expected[4] = {-1, -1, -1, -2};
    float *scores = run_pool(votes, 4, 3, SNAPKV_POOL_MAX, GUARD_AFTER);
    assert_memory_equal(scores, expected, sizeof expected);
    free(scores);
}

static void test_kernel_of_one_copies(void **state) {
    (void)state;
    const float votes[5] = {0.1f, 1e-40f, -7, 3e38f, 0};
    float *scores = run_pool(votes, 5, 1, SNAPKV_POOL_AVG, GUARD_AFTER);
    assert_memory_equal(scores, votes, sizeof votes);
    free(scores);
    scores = run_pool(votes, 5, 1, SNAPKV_POOL_MAX, GUARD_AFTER);
    assert_memory_equal(scores, votes, sizeof votes);
    free(scores);
}

/* Positions whose neighbourhoods hold the same votes score the same bits, or ties would be lost. */
static void test_equal_neighbourhoods_tie(void **state) {
    (void)state;
    splitmix random = {5};
    float votes[40];
    for (size_t i = 0; i < 40; i++) {
        votes[i] = splitmix_float(&random, 1) + 0.5f;
    }
    float *scores = run_pool(votes, 40, 79, SNAPKV_POOL_AVG, GUARD_AFTER);
    for (size_t i = 1; i < 40; i++) {
        assert_memory_equal(&scores[i], &scores[0], sizeof(float));
    }
    free(scores);
}

/* The largest odd number is a kernel like any other, and takes no longer. */
static void test_hostile_kernel(void **state) {
    (void)state;
    const size_t n = 3000;
    float *votes = new_array(n, sizeof(float));
    for (size_t i = 0; i < n; i++) {
        votes[i] = 1 + (float)i;
    }
    check_against_reference(votes, n, SIZE_MAX);
    check_against_reference(votes, n, SIZE_MAX / 2);
    check_against_reference(votes, 5, SIZE_MAX - 2);
    free(votes);
}

static void test_errors_write_nothing(void **state) {
    (void)state;
    const float votes[4] = {1, 2, 3, 4};
    guard out = guard_new(sizeof votes, GUARD_AFTER);
    float *scores = (float *)(void *)out.data;
    assert_status(snapkv_pool(NULL, 4, 3, SNAPKV_POOL_AVG, scores), SNAPKV_ERROR_NULL);
    assert_status(snapkv_pool(votes, 4, 3, SNAPKV_POOL_AVG, NULL), SNAPKV_ERROR_NULL);
    assert_status(snapkv_pool(votes, 0, 3, SNAPKV_POOL_AVG, scores), SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_pool(votes, (size_t)INT32_MAX + 1, 3, SNAPKV_POOL_AVG, scores),
                  SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_pool(votes, SIZE_MAX, 3, SNAPKV_POOL_AVG, scores), SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_pool(votes, 4, 0, SNAPKV_POOL_AVG, scores), SNAPKV_ERROR_KERNEL);
    assert_status(snapkv_pool(votes, 4, 2, SNAPKV_POOL_MAX, scores), SNAPKV_ERROR_KERNEL);
    assert_status(snapkv_pool(votes, 4, SIZE_MAX - 1, SNAPKV_POOL_AVG, scores),
                  SNAPKV_ERROR_KERNEL);
    assert_status(snapkv_pool(votes, 4, 3, (snapkv_pooling)2, scores), SNAPKV_ERROR_OPTION);
    assert_status(snapkv_pool(votes, 4, 3, (snapkv_pooling)77, scores), SNAPKV_ERROR_OPTION);
    guard_check_untouched(&out);
    guard_free(&out);
}

static void test_overlap(void **state) {
    (void)state;
    float numbers[12];
    float before[12];
    for (size_t i = 0; i < 12; i++) {
        numbers[i] = before[i] = (float)i;
    }
    assert_status(snapkv_pool(numbers, 4, 3, SNAPKV_POOL_AVG, numbers), SNAPKV_ERROR_ALIAS);
    assert_status(snapkv_pool(numbers, 4, 1, SNAPKV_POOL_MAX, numbers + 3), SNAPKV_ERROR_ALIAS);
    assert_status(snapkv_pool(numbers + 3, 4, 3, SNAPKV_POOL_MAX, numbers), SNAPKV_ERROR_ALIAS);
    assert_memory_equal(numbers, before, sizeof numbers);
    assert_ok(snapkv_pool(numbers, 4, 1, SNAPKV_POOL_MAX, numbers + 4));
    assert_memory_equal(numbers + 4, before, 4 * sizeof(float));
}

static void test_not_finite_anywhere(void **state) {
    (void)state;
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t n = 1; n <= 40; n++) {
        guard out = guard_new(n * sizeof(float), GUARD_AFTER);
        float *scores = (float *)(void *)out.data;
        for (size_t i = 0; i < n; i++) {
            float *votes = new_array(n, sizeof(float));
            votes[i] = bad[i % 4];
            assert_status(snapkv_pool(votes, n, 1, SNAPKV_POOL_AVG, scores),
                          SNAPKV_ERROR_NOT_FINITE);
            assert_status(snapkv_pool(votes, n, 3, SNAPKV_POOL_AVG, scores),
                          SNAPKV_ERROR_NOT_FINITE);
            assert_status(snapkv_pool(votes, n, 5, SNAPKV_POOL_MAX, scores),
                          SNAPKV_ERROR_NOT_FINITE);
            free(votes);
        }
        guard_check_untouched(&out);
        guard_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kernel_on_every_length),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_average_counts_padding),
        cmocka_unit_test(test_maximum_ignores_padding),
        cmocka_unit_test(test_kernel_of_one_copies),
        cmocka_unit_test(test_equal_neighbourhoods_tie),
        cmocka_unit_test(test_hostile_kernel),
        cmocka_unit_test(test_errors_write_nothing),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_not_finite_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
