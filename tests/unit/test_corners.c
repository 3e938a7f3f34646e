/* Corners of the header that no other test reaches, and what only a mutation of it brought to
 * light: each case here tells two nearly equal headers apart (tests/unit/mutants.sh). */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "splitmix.h"

/* ---- top-k of many scores: the guess from a sample may be far off ---------------------------- */

static const float *sorted_scores;

static int by_falling_score(const void *a, const void *b) {
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (sorted_scores[i] != sorted_scores[j]) {
        return sorted_scores[i] > sorted_scores[j] ? -1 : 1;
    }
    return (i > j) - (i < j);
}

static int by_position(const void *a, const void *b) {
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return (i > j) - (i < j);
}

static void check_top_k(const float *scores, size_t n, size_t k) {
    int32_t *expected = new_array(n, sizeof *expected), *got = new_array(k, sizeof *got);
    for (size_t i = 0; i < n; i++) {
        expected[i] = (int32_t)i;
    }
    sorted_scores = scores;
    qsort(expected, n, sizeof *expected, by_falling_score);
    assert_ok(snapkv_top_k(scores, n, k, SNAPKV_BY_SCORE, got));
    assert_indices(got, expected, k);
    qsort(expected, k, sizeof *expected, by_position);
    assert_ok(snapkv_top_k(scores, n, k, SNAPKV_BY_POSITION, got));
    assert_indices(got, expected, k);
    free(expected);
    free(got);
}

/* Scores whose every (n / 1024)-th says nothing about the others, of lengths that are no multiple
 * of a vector. */
static void test_misleading_samples(void **state) {
    (void)state;
    static const size_t sizes[] = {1024, 16384, 32775, 65537, 70001};
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        const size_t n = sizes[s], step = n / 1024;
        float *scores = new_array(n, sizeof *scores);
        for (int kind = 0; kind < 5; kind++) {
            splitmix random = {s * 10 + (size_t)kind};
            for (size_t i = 0; i < n; i++) {
                const float x = splitmix_float(&random, 2) + 1;
                const int sampled = i % step == 0;
                scores[i] = kind == 0   ? x
                            : kind == 1 ? (sampled ? x + 10 : x)
                            : kind == 2 ? (sampled ? x : x + 10)
                            : kind == 3 ? (float)(int)(4 * x)
                                        : (i + 3 > n ? 100 + x : -x);
            }
            const size_t ks[] = {1, 2, 700, n / 16, n / 2, n - 700, n - 1, n};
            for (size_t i = 0; i < COUNT_OF(ks); i++) {
                check_top_k(scores, n, ks[i]);
            }
        }
        free(scores);
    }
}

/* Both zeros at the threshold, in whole groups of scores and behind them. */
static void test_zeros_at_the_threshold(void **state) {
    (void)state;
    enum { N = 20007 };
    float *scores = new_array(N, sizeof *scores);
    for (size_t i = 0; i < N; i++) {
        const float sign = i / 7 % 2 ? -1.0f : 1.0f;
        scores[i] = sign * (i % 5 == 0 ? (float)(1 + i % 3) : 0.0f);
    }
    for (size_t n = 33; n <= N; n = n * 3 + 1) {
        for (size_t part = 1; part < 10; part++) {
            check_top_k(scores, n, n * part / 10);
        }
    }
    check_top_k(scores, N, N / 3);
    free(scores);
}

/* The counts of what lies above the guess, and of what does not lie below it, are exactly k. */
static void test_counts_that_are_exactly_k(void **state) {
    (void)state;
    enum { N = 16387, STEP = N / 1024 };
    float *scores = new_array(N, sizeof *scores);
    size_t n_ones = 0, n_zeros = 0;
    for (size_t i = 0; i < N; i++) { /* the sample is all zeros */
        scores[i] = i % STEP == 0 ? 0.0f : 1.0f;
        n_ones += i % STEP != 0;
    }
    for (size_t k = n_ones - 2; k <= n_ones + 2; k++) {
        check_top_k(scores, N, k);
    }
    for (size_t i = 0; i < N; i++) { /* zeros in half of the sample and behind the last vector */
        scores[i] = i % (2 * STEP) == 0 || i >= N - 3 ? 0.0f : -1.0f;
        n_zeros += scores[i] == 0;
    }
    for (size_t k = n_zeros - 4; k <= n_zeros + 2; k++) {
        check_top_k(scores, N, k);
    }
    free(scores);
}

/* ---- rows in the gaps of others -------------------------------------------------------------- */

/* Rows of 8 bytes, 16 apart; the copies go into the gaps, or a byte too far. */
static void test_interleaved_rows(void **state) {
    (void)state;
    static const int32_t kept[3] = {0, 2, 4};
    static const struct {
        int offset;
        snapkv_status status;
    } cases[] = {{8, SNAPKV_OK},           {7, SNAPKV_ERROR_ALIAS},  {9, SNAPKV_ERROR_ALIAS},
                 {1, SNAPKV_ERROR_ALIAS},  {15, SNAPKV_ERROR_ALIAS}, {16, SNAPKV_ERROR_ALIAS},
                 {24, SNAPKV_OK},          {-8, SNAPKV_OK},          {-7, SNAPKV_ERROR_ALIAS},
                 {-9, SNAPKV_ERROR_ALIAS}, {-16, SNAPKV_OK}, {72, SNAPKV_OK},
                 {-40, SNAPKV_OK},         {-39, SNAPKV_ERROR_ALIAS}, {71, SNAPKV_ERROR_ALIAS}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        unsigned char memory[256], before[256];
        for (size_t i = 0; i < sizeof memory; i++) {
            memory[i] = (unsigned char)i;
        }
        memcpy(before, memory, sizeof memory);
        unsigned char *src = memory + 96, *dst = src + cases[c].offset;
        assert_status(snapkv_gather_rows(kept, 3, src, 16, 5, 8, dst, 16), cases[c].status);
        for (size_t i = 0; i < 3 && cases[c].status == SNAPKV_OK; i++) {
            assert_memory_equal(dst + 16 * i, before + 96 + 16 * kept[i], 8);
            memcpy(before + 96 + cases[c].offset + 16 * (ptrdiff_t)i, dst + 16 * i, 8);
        }
        assert_memory_equal(memory, before, sizeof memory);
    }
}

/* In place a position listed twice would be read after it was written. */
static void test_in_place_twice(void **state) {
    (void)state;
    static const int32_t kept[3] = {0, 0, 1};
    char memory[] = "abcdefgh";
    assert_status(snapkv_gather_rows(kept, 3, memory, 2, 4, 2, memory, 2), SNAPKV_ERROR_ALIAS);
    assert_status(snapkv_gather_columns(kept, 3, memory, 8, 4, 2, 1, memory, 8),
                  SNAPKV_ERROR_ALIAS);
    assert_string_equal(memory, "abcdefgh");
}

/* ---- views ----------------------------------------------------------------------------------- */

static float numbers[64];

static snapkv_layer small_layer(void) {
    snapkv_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.n_query_heads = 1;
    layer.n_kv_heads = 1;
    layer.length = 4;
    layer.head_dim = 4;
    layer.queries.data = numbers;
    layer.queries.row_stride = 16;
    layer.keys.data = numbers;
    layer.keys.row_stride = 16;
    return layer;
}

static snapkv_config small_config(void) {
    snapkv_config config = snapkv_default_config();
    config.window = 2;
    config.capacity = 3;
    return config;
}

/* row_bytes is what a gather copies: less than the numbers that are read is no smaller row. */
static void test_row_bytes_below_the_numbers(void **state) {
    (void)state;
    const snapkv_config config = small_config();
    snapkv_layer layer = small_layer();
    assert_ok(snapkv_check(&config, &layer));
    layer.keys.row_bytes = 8;
    assert_ok(snapkv_check(&config, &layer));
    layer.keys.row_stride = 12;
    assert_status(snapkv_check(&config, &layer), SNAPKV_ERROR_STRIDE);
    layer.keys.row_stride = 16;
    layer.keys.row_bytes = 20;
    assert_status(snapkv_check(&config, &layer), SNAPKV_ERROR_STRIDE);
}

/* More heads than the search for overlaps looks through. */
static void test_a_million_heads(void **state) {
    (void)state;
    snapkv_config config = small_config();
    snapkv_layer layer = small_layer();
    config.sharing = SNAPKV_PER_QUERY_HEAD; /* or the workspace would not fit in 32 bits */
    layer.n_query_heads = ((size_t)1 << 20) + 1;
    layer.queries.row_stride = 16;
    layer.queries.head_stride = 32;
    assert_status(snapkv_check(&config, &layer), SNAPKV_ERROR_STRIDE);
    layer.n_query_heads--;
    assert_ok(snapkv_check(&config, &layer));
}

/* Heads and rows nested either way, and a stride that makes one head's row fall into another's. */
static void test_nested_strides(void **state) {
    (void)state;
    const snapkv_config config = small_config();
    snapkv_layer layer = small_layer();
    layer.n_query_heads = 3;
    static const struct {
        size_t row_stride, head_stride;
        snapkv_status status;
    } cases[] = {{16, 32, SNAPKV_OK},           {48, 16, SNAPKV_OK},
                 {44, 16, SNAPKV_ERROR_STRIDE}, {16, 28, SNAPKV_ERROR_STRIDE},
                 {32, 48, SNAPKV_OK},           {32, 16, SNAPKV_ERROR_STRIDE},
                 {16, 16, SNAPKV_ERROR_STRIDE}, {20, 16, SNAPKV_ERROR_STRIDE},
                 {28, 16, SNAPKV_ERROR_STRIDE}, {16, 12, SNAPKV_ERROR_STRIDE},
                 {12, 64, SNAPKV_ERROR_STRIDE}, {80, 32, SNAPKV_OK}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        layer.queries.row_stride = cases[c].row_stride;
        layer.queries.head_stride = cases[c].head_stride;
        assert_status(snapkv_check(&config, &layer), cases[c].status);
    }
}

/* ---- a sink logit far above everything ------------------------------------------------------- */

static void test_a_sink_that_takes_all(void **state) {
    (void)state;
    const snapkv_config config = small_config();
    snapkv_layer layer = small_layer();
    static const float sinks[] = {90, 1000, 3e38f};
    const size_t size = snapkv_workspace_size(&config, &layer);
    void *workspace = new_array(size, 1);
    for (size_t i = 0; i < COUNT_OF(sinks); i++) {
        float votes[2] = {7, 7}, mass = 0;
        int32_t kept[3];
        snapkv_selection selection = {0, 0, 0};
        layer.sink_logits = sinks + i;
        assert_ok(snapkv_vote(&config, &layer, 0, votes, workspace, size));
        assert_true(votes[0] >= 0 && votes[0] < 1e-38f);
        assert_true(votes[1] >= 0 && votes[1] < 1e-38f);
        assert_ok(snapkv_select(&config, &layer, 0, kept, NULL, &selection, workspace, size));
        assert_true(selection.coverage == 1);
        assert_ok(snapkv_retained_mass(&config, &layer, 0, numbers, 3, kept, 0, &mass, workspace,
                                       size));
        assert_true(mass == 1);
    }
    free(workspace);
}

/* ---- cursor ---------------------------------------------------------------------------------- */

static void test_cursor_corners(void **state) {
    (void)state;
    const snapkv_config config = small_config();
    const snapkv_cursor nothing = snapkv_cursor_start(NULL, 9);
    assert_int_equal(nothing.prompt_length, 0);
    assert_int_equal(nothing.prompt_kept, 0);
    assert_int_equal(snapkv_next_position(NULL), 0);
    assert_int_equal(snapkv_next_slot(NULL), 0);

    const snapkv_cursor cursor = snapkv_cursor_start(&config, 9);
    size_t position = 77;
    static const int32_t wrong[3] = {-1, 9, INT32_MAX};
    for (size_t slot = 0; slot < 3; slot++) {
        assert_status(snapkv_slot_position(&cursor, wrong, slot, &position), SNAPKV_ERROR_INDEX);
        assert_int_equal(position, 77);
    }
    static const int32_t right[3] = {0, 7, 8};
    assert_ok(snapkv_slot_position(&cursor, right, 2, &position));
    assert_int_equal(position, 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_misleading_samples),
        cmocka_unit_test(test_zeros_at_the_threshold),
        cmocka_unit_test(test_counts_that_are_exactly_k),
        cmocka_unit_test(test_interleaved_rows),
        cmocka_unit_test(test_in_place_twice),
        cmocka_unit_test(test_row_bytes_below_the_numbers),
        cmocka_unit_test(test_a_million_heads),
        cmocka_unit_test(test_nested_strides),
        cmocka_unit_test(test_a_sink_that_takes_all),
        cmocka_unit_test(test_cursor_corners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
