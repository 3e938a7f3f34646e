/* The longest arrays there may be, INT32_MAX entries, in address space that is reserved and hardly
 * touched: pages that are only read cost no memory. */
#define _DEFAULT_SOURCE /* MAP_NORESERVE, sysconf */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define N   ((size_t)INT32_MAX)
#define MIB ((size_t)1 << 20)

/* `used`: what of it will be written. */
static void *reserve(size_t size, size_t used) {
    size_t pages = (size_t)sysconf(_SC_AVPHYS_PAGES);
    size_t free_mib = pages / (MIB / (size_t)sysconf(_SC_PAGESIZE));
    if (sizeof(size_t) < 8) {
        print_message("SKIP: addresses of this machine end before INT32_MAX floats\n");
        skip();
    }
    if (free_mib < used / MIB + 1024) {
        print_message("SKIP: %lu MiB of memory are free, %lu are needed\n", (unsigned long)free_mib,
                      (unsigned long)(used / MIB + 1024));
        skip();
    }
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        print_message("SKIP: %lu MiB of address space can't be reserved\n",
                      (unsigned long)(size / MIB));
        skip();
    }
    return map;
}

/* Scores other than zero: at both ends, and around 2^29 and 2^30, where offsets in bytes leave 31
 * and 32 bits. */
static const size_t marked[] = {0,          7,          536870911,  536870912,
                                536870913,  1073741823, 1073741824, 1500000000,
                                2147483639, 2147483640, 2147483645, 2147483646};
#define N_MARKED COUNT_OF(marked)

static float mark_of(size_t i) {
    return (float)(1 + i * 5 % N_MARKED); /* 5 and 12 have no common factor: all differ */
}

static float *new_scores(size_t n_written) {
    float *scores = reserve(N * sizeof(float), n_written * sizeof(int32_t));
    for (size_t i = 0; i < N_MARKED; i++) {
        scores[marked[i]] = mark_of(i);
    }
    return scores;
}

static void test_top_k(void **state) {
    (void)state;
    float *scores = new_scores(0);
    int32_t best[N_MARKED + 4];

    assert_ok(snapkv_top_k(scores, N, N_MARKED, SNAPKV_BY_POSITION, best));
    for (size_t i = 0; i < N_MARKED; i++) {
        assert_int_equal(best[i], marked[i]);
    }
    assert_ok(snapkv_top_k(scores, N, N_MARKED, SNAPKV_BY_SCORE, best));
    for (size_t i = 0; i < N_MARKED; i++) {
        assert_true(scores[best[i]] == (float)(N_MARKED - i));
    }
    /* Then the zeros, from the front: 1, 2, 3 and 4. */
    assert_ok(snapkv_top_k(scores, N, N_MARKED + 4, SNAPKV_BY_SCORE, best));
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(best[N_MARKED + i], i + 1);
    }
    /* Nearly the last of them only. */
    scores[N - 2] = -1;
    assert_status(snapkv_top_k(scores, N + 1, 1, SNAPKV_BY_SCORE, best), SNAPKV_ERROR_SHAPE);
    munmap(scores, N * sizeof(float));
}

/* More indices than 31 bits of bytes hold: all but the lowest are the zeros from the front. */
static void test_top_k_of_many(void **state) {
    (void)state;
    const size_t k = ((size_t)1 << 29) + 77;
    float *scores = new_scores(k);
    int32_t *best = reserve(k * sizeof(int32_t), k * sizeof(int32_t));
    assert_ok(snapkv_top_k(scores, N, k, SNAPKV_BY_POSITION, best));
    /* Marked positions from 2^29 + 72 on push out as many zeros. */
    size_t n_far = 0;
    for (size_t i = 0; i < N_MARKED; i++) {
        n_far += marked[i] >= k;
    }
    for (size_t i = 0; i < k - n_far; i++) {
        if (best[i] != (int32_t)i) {
            fail_msg("best[%lu] is %ld", (unsigned long)i, (long)best[i]);
        }
    }
    for (size_t i = 0; i < n_far; i++) {
        assert_int_equal(best[k - n_far + i], marked[N_MARKED - n_far + i]);
    }
    munmap(scores, N * sizeof(float));
    munmap(best, k * sizeof(int32_t));
}

/* A value that isn't finite in the very last place. */
static void test_last_not_finite(void **state) {
    (void)state;
    static const uint32_t nan_bits = 0x7FC00000;
    float *scores = new_scores(0);
    int32_t best = -5;
    memcpy(scores + N - 1, &nan_bits, sizeof nan_bits);
    assert_status(snapkv_top_k(scores, N, 1, SNAPKV_BY_SCORE, &best), SNAPKV_ERROR_NOT_FINITE);
    assert_int_equal(best, -5);
    munmap(scores, N * sizeof(float));
}

static void test_gather_rows(void **state) {
    (void)state;
    float *rows = new_scores(0);
    int32_t kept[N_MARKED];
    float out[N_MARKED];
    for (size_t i = 0; i < N_MARKED; i++) {
        kept[i] = (int32_t)marked[N_MARKED - 1 - i];
    }
    assert_ok(snapkv_gather_rows(kept, N_MARKED, rows, 4, N, 4, out, 4));
    for (size_t i = 0; i < N_MARKED; i++) {
        assert_true(out[i] == mark_of(N_MARKED - 1 - i));
    }
    /* In place, ascending. */
    for (size_t i = 0; i < N_MARKED; i++) {
        kept[i] = (int32_t)marked[i];
    }
    assert_ok(snapkv_gather_rows(kept, N_MARKED, rows, 4, N, 4, rows, 4));
    for (size_t i = 0; i < N_MARKED; i++) {
        assert_true(rows[i] == mark_of(i));
    }
    kept[3] = -1;
    assert_status(snapkv_gather_rows(kept, N_MARKED, rows, 4, N, 4, out, 4), SNAPKV_ERROR_INDEX);
    munmap(rows, N * sizeof(float));
}

static void test_gather_columns(void **state) {
    (void)state;
    float *columns = new_scores(0);
    int32_t kept[N_MARKED];
    float out[N_MARKED];
    for (size_t i = 0; i < N_MARKED; i++) {
        kept[i] = (int32_t)marked[i * 7 % N_MARKED];
    }
    assert_ok(snapkv_gather_columns(kept, N_MARKED, columns, N * 4, N, 4, 1, out, sizeof out));
    for (size_t i = 0; i < N_MARKED; i++) {
        assert_true(out[i] == mark_of(i * 7 % N_MARKED));
    }
    munmap(columns, N * sizeof(float));
}

/* A list with one entry beyond: the last that may be is N - 1. */
static void test_slots(void **state) {
    (void)state;
    snapkv_config config = snapkv_default_config();
    snapkv_cursor cursor = snapkv_cursor_start(&config, N);
    const int32_t kept = INT32_MAX - 1;
    size_t position = 0;
    assert_ok(snapkv_append(&cursor, N));
    assert_true(snapkv_next_position(&cursor) == 2 * N);
    assert_ok(snapkv_slot_position(&cursor, &kept, 0, &position));
    assert_true(position == N - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_k),           cmocka_unit_test(test_top_k_of_many),
        cmocka_unit_test(test_last_not_finite), cmocka_unit_test(test_gather_rows),
        cmocka_unit_test(test_gather_columns),  cmocka_unit_test(test_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
