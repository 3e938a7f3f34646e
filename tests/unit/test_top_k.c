/* snapkv_top_k() against a sort. */
#include "check.h"
#include "guard.h"
#include "reference.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_top_k(const float *scores, size_t n, size_t k, guard_side side) {
    double *exact = new_array(n, sizeof(double));
    int32_t *expected = new_array(k, sizeof(int32_t));
    for (size_t i = 0; i < n; i++) {
        exact[i] = (double)scores[i];
    }
    reference_top_k(exact, n, k, expected);
    guard in = guard_copy(scores, n * sizeof(float), side);
    guard_freeze(&in);
    for (int pass = 0; pass < 2; pass++) {
        guard out = guard_new(k * sizeof(int32_t), side);
        assert_ok(snapkv_top_k((const float *)(void *)in.data, n, k,
                               pass == 0 ? SNAPKV_BY_SCORE : SNAPKV_BY_POSITION,
                               (int32_t *)(void *)out.data));
        assert_indices((const int32_t *)(void *)out.data, expected, k);
        guard_free(&out);
        sort_ascending(expected, k);
    }
    guard_free(&in);
    free(exact);
    free(expected);
}

static void test_every_k_of_small_n(void **state) {
    (void)state;
    splitmix random = {7};
    float scores[70];
    for (size_t n = 1; n <= COUNT_OF(scores); n++) {
        for (size_t i = 0; i < n; i++) {
            scores[i] = splitmix_float(&random, 2);
        }
        for (size_t k = 0; k <= n; k++) {
            check_top_k(scores, n, k, k % 2 ? GUARD_AFTER : GUARD_BEFORE);
        }
    }
}

/* Few different values: nearly every boundary is a tie. */
static void test_ties_go_to_the_lower_position(void **state) {
    (void)state;
    splitmix random = {8};
    for (size_t round = 0; round < 300; round++) {
        size_t n = splitmix_between(&random, 1, 200);
        size_t n_values = splitmix_between(&random, 1, 4);
        float *scores = new_array(n, sizeof(float));
        for (size_t i = 0; i < n; i++) {
            scores[i] = (float)splitmix_between(&random, 0, n_values) - 2;
        }
        check_top_k(scores, n, splitmix_between(&random, 0, n), GUARD_AFTER);
        free(scores);
    }
}

static void test_zeros_of_both_signs_tie(void **state) {
    (void)state;
    const float scores[6] = {-1, -0.0f, 0.0f, -0.0f, 0.0f, -2};
    const float spread[5] = {-0.0f, -FLT_MIN, 0.0f, -0.0f, FLT_MIN / 8};
    for (size_t k = 0; k <= 6; k++) {
        check_top_k(scores, 6, k, GUARD_AFTER);
    }
    for (size_t k = 0; k <= 5; k++) {
        check_top_k(spread, 5, k, GUARD_AFTER);
    }
}

/* The whole range of float, subnormals and neighbours one bit apart. */
static void test_every_magnitude(void **state) {
    (void)state;
    splitmix random = {9};
    const size_t n = 2000;
    float *scores = new_array(n, sizeof(float));
    for (size_t round = 0; round < 12; round++) {
        for (size_t i = 0; i < n; i++) {
            do {
                uint32_t bits = (uint32_t)splitmix_next(&random);
                if (round % 3 == 1) {
                    bits = 0x3F800000u + bits % 64;
                } else if (round % 3 == 2) {
                    bits = bits % 2 << 31 | bits % 4096;
                }
                memcpy(&scores[i], &bits, sizeof bits);
            } while (!isfinite(scores[i]));
        }
        scores[n / 2] = FLT_MAX;
        scores[n / 3] = -FLT_MAX;
        check_top_k(scores, n, splitmix_between(&random, 0, n), GUARD_AFTER);
        check_top_k(scores, n, n - 1, GUARD_AFTER);
        check_top_k(scores, n, 1, GUARD_AFTER);
    }
    free(scores);
}

static void test_long(void **state) {
    (void)state;
    static const size_t ks[] = {1, 2016, 65536, 131071, 131072};
    splitmix random = {10};
    const size_t n = 131072;
    float *scores = new_array(n, sizeof(float));
    for (size_t i = 0; i < n; i++) {
        scores[i] = expf(splitmix_float(&random, 30));
    }
    for (size_t i = 0; i < COUNT_OF(ks); i++) {
        check_top_k(scores, n, ks[i], GUARD_AFTER);
    }
    /* Sorted input, rising and falling: what a naive selection is slow on. */
    for (size_t i = 0; i < n; i++) {
        scores[i] = (float)i;
    }
    check_top_k(scores, n, 4096, GUARD_AFTER);
    for (size_t i = 0; i < n; i++) {
        scores[i] = -(float)i;
    }
    check_top_k(scores, n, 4096, GUARD_AFTER);
    /* One value everywhere. */
    memset(scores, 0, n * sizeof(float));
    check_top_k(scores, n, 65536, GUARD_AFTER);
    free(scores);
}

/* Scores laid out against a look at every n-th of them: all of those have the middle one of three
 * neighbouring floats, and k lies at the edges of what is above them, equal and below. */
static void test_misleading_samples(void **state) {
    (void)state;
    static const size_t lengths[] = {16384, 20011};
    splitmix random = {12};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        size_t n = lengths[i];
        float *scores = new_array(n, sizeof(float));
        for (size_t step = n / 1024; step <= n / 1024 + 1; step++) {
            for (size_t kind = 0; kind < 4; kind++) {
                size_t n_above = 0;
                size_t n_equal = 0;
                for (size_t j = 0; j < n; j++) {
                    /* By kind: all above, all below, either, any of the three. */
                    int above = kind < 2 ? kind == 0 : splitmix_once_in(&random, 2);
                    int equal = j % step == 0 || (kind == 3 && splitmix_once_in(&random, 3));
                    scores[j] = equal ? 1 : nextafterf(1, above ? 2 : 0);
                    n_above += (size_t)(!equal && above);
                    n_equal += (size_t)equal;
                }
                for (size_t k = 0; k < 5; k++) {
                    check_top_k(scores, n, n_above + k > 2 ? n_above + k - 2 : 1, GUARD_AFTER);
                    size_t past = n_above + n_equal + k - 2;
                    check_top_k(scores, n, past < n ? past : n, GUARD_AFTER);
                }
                check_top_k(scores, n, splitmix_between(&random, 1, n), GUARD_AFTER);
            }
        }
        free(scores);
    }
}

/* Long lists of both signs, cut near zero: a sample then bounds the threshold from a negative score
 * to a positive one. */
static void test_long_lists_cut_near_zero(void **state) {
    (void)state;
    static const size_t lengths[] = {16384, 17003, 40000};
    splitmix random = {13};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        const size_t n = lengths[i];
        float *scores = new_array(n, sizeof(float));
        size_t n_positive = 0;
        for (size_t j = 0; j < n; j++) {
            scores[j] = splitmix_float(&random, 2);
            n_positive += scores[j] > 0;
        }
        for (size_t k = n_positive - 3; k <= n_positive + 3; k++) {
            check_top_k(scores, n, k, GUARD_AFTER);
        }
        check_top_k(scores, n, n_positive - n / 100, GUARD_AFTER);
        check_top_k(scores, n, n_positive + n / 100, GUARD_AFTER);
        free(scores);
    }
}

static void test_overlap(void **state) {
    (void)state;
    guard memory = guard_new(12 * sizeof(float), GUARD_AFTER);
    float *scores = (float *)(void *)memory.data;
    int32_t *indices = (int32_t *)(void *)memory.data;
    assert_status(snapkv_top_k(scores, 8, 4, SNAPKV_BY_SCORE, indices), SNAPKV_ERROR_ALIAS);
    assert_status(snapkv_top_k(scores, 8, 4, SNAPKV_BY_SCORE, indices + 7), SNAPKV_ERROR_ALIAS);
    assert_status(snapkv_top_k(scores + 3, 8, 4, SNAPKV_BY_SCORE, indices), SNAPKV_ERROR_ALIAS);
    guard_check_untouched(&memory);
    assert_ok(snapkv_top_k(scores, 8, 4, SNAPKV_BY_SCORE, indices + 8));
    assert_true(indices[8] == 0 && indices[11] == 3);
    guard_free(&memory);
}

static void test_errors_write_nothing(void **state) {
    (void)state;
    const float scores[4] = {1, 2, 3, 4};
    guard out = guard_new(4 * sizeof(int32_t), GUARD_AFTER);
    int32_t *indices = (int32_t *)(void *)out.data;
    assert_status(snapkv_top_k(NULL, 4, 2, SNAPKV_BY_SCORE, indices), SNAPKV_ERROR_NULL);
    assert_status(snapkv_top_k(scores, 4, 2, SNAPKV_BY_SCORE, NULL), SNAPKV_ERROR_NULL);
    assert_status(snapkv_top_k(scores, 0, 0, SNAPKV_BY_SCORE, indices), SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_top_k(scores, 4, 5, SNAPKV_BY_SCORE, indices), SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_top_k(scores, 4, SIZE_MAX, SNAPKV_BY_SCORE, indices), SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_top_k(scores, (size_t)INT32_MAX + 1, 2, SNAPKV_BY_SCORE, indices),
                  SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_top_k(scores, SIZE_MAX, 2, SNAPKV_BY_SCORE, indices), SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_top_k(scores, 4, 2, (snapkv_order)2, indices), SNAPKV_ERROR_OPTION);
    assert_ok(snapkv_top_k(scores, 4, 0, SNAPKV_BY_SCORE, indices));
    guard_check_untouched(&out);
    guard_free(&out);
}

static void test_not_finite_anywhere(void **state) {
    (void)state;
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t n = 1; n <= 40; n++) {
        guard out = guard_new(n * sizeof(int32_t), GUARD_AFTER);
        int32_t *indices = (int32_t *)(void *)out.data;
        for (size_t i = 0; i < n; i++) {
            float *scores = new_array(n, sizeof(float));
            scores[i] = bad[i % 4];
            assert_status(snapkv_top_k(scores, n, 1, SNAPKV_BY_POSITION, indices),
                          SNAPKV_ERROR_NOT_FINITE);
            assert_status(snapkv_top_k(scores, n, n, SNAPKV_BY_SCORE, indices),
                          SNAPKV_ERROR_NOT_FINITE);
            free(scores);
        }
        guard_check_untouched(&out);
        guard_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_k_of_small_n),
        cmocka_unit_test(test_ties_go_to_the_lower_position),
        cmocka_unit_test(test_zeros_of_both_signs_tie),
        cmocka_unit_test(test_every_magnitude),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_misleading_samples),
        cmocka_unit_test(test_long_lists_cut_near_zero),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_errors_write_nothing),
        cmocka_unit_test(test_not_finite_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
