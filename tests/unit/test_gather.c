/* snapkv_gather_rows() and snapkv_gather_columns(): bytes, wherever they lie. */
#include "check.h"
#include "guard.h"
#include "splitmix.h"

#include <stdlib.h>
#include <string.h>

static guard random_bytes(size_t n, guard_side side) {
    splitmix random = {n};
    guard bytes = guard_new(n, side);
    for (size_t i = 0; i < n; i++) {
        bytes.data[i] = (unsigned char)splitmix_next(&random);
    }
    return bytes;
}

/* Through pointers, or the compiler sees sizes that can't be, and warns. */
static snapkv_status (*volatile gather_rows)(const int32_t *, size_t, const void *, size_t, size_t,
                                             size_t, void *, size_t) = snapkv_gather_rows;
static snapkv_status (*volatile gather_columns)(const int32_t *, size_t, const void *, size_t,
                                                size_t, size_t, size_t, void *,
                                                size_t) = snapkv_gather_columns;

/* n_kept of 0..n-1, ascending; and in some other order. */
static int32_t *pick(splitmix *random, size_t n, size_t n_kept, int ascending) {
    int32_t *kept = new_array(n_kept, sizeof(int32_t));
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        if (splitmix_between(random, 0, n - i - 1) < n_kept - found) {
            kept[found++] = (int32_t)i;
        }
    }
    assert_int_equal(found, n_kept);
    for (size_t i = 1; i < n_kept && !ascending; i++) {
        size_t other = splitmix_between(random, 0, i);
        int32_t swap = kept[i];
        kept[i] = kept[other];
        kept[other] = swap;
    }
    return kept;
}

static guard copy_kept(const int32_t *kept, size_t n_kept) {
    guard copy = guard_copy(kept, n_kept * sizeof(int32_t), GUARD_AFTER);
    guard_freeze(&copy);
    return copy;
}

/* Rows of every width, padded differently on both sides; the padding of dst stays as it was. */
static void test_rows(void **state) {
    (void)state;
    splitmix random = {11};
    for (size_t row_bytes = 1; row_bytes <= 600; row_bytes += row_bytes < 140 ? 1 : 37) {
        guard_side side = row_bytes % 2 ? GUARD_AFTER : GUARD_BEFORE;
        size_t n_rows = splitmix_between(&random, 1, 40);
        size_t n_kept = splitmix_between(&random, 1, n_rows);
        size_t src_stride = row_bytes + splitmix_between(&random, 0, 9);
        size_t dst_stride = row_bytes + splitmix_between(&random, 0, 9);
        guard src = random_bytes((n_rows - 1) * src_stride + row_bytes, side);
        guard dst = guard_new((n_kept - 1) * dst_stride + row_bytes, side);
        int32_t *kept = pick(&random, n_rows, n_kept, row_bytes % 3 == 0);
        guard list = copy_kept(kept, n_kept);
        guard expected = guard_new(dst.size, GUARD_AFTER);
        guard_freeze(&src);
        for (size_t i = 0; i < n_kept; i++) {
            memcpy(expected.data + i * dst_stride, src.data + (size_t)kept[i] * src_stride,
                   row_bytes);
        }
        assert_ok(snapkv_gather_rows((const int32_t *)(void *)list.data, n_kept, src.data,
                                     src_stride, n_rows, row_bytes, dst.data, dst_stride));
        assert_memory_equal(dst.data, expected.data, dst.size);
        guard_free(&src);
        guard_free(&dst);
        guard_free(&expected);
        guard_free(&list);
        free(kept);
    }
}

static void test_rows_in_place(void **state) {
    (void)state;
    splitmix random = {12};
    for (size_t round = 0; round < 200; round++) {
        size_t row_bytes = splitmix_between(&random, 1, 200);
        size_t stride = row_bytes + splitmix_between(&random, 0, 20);
        size_t n_rows = splitmix_between(&random, 1, 60);
        size_t n_kept = splitmix_between(&random, 1, n_rows);
        guard rows = random_bytes((n_rows - 1) * stride + row_bytes, GUARD_AFTER);
        guard expected = guard_copy(rows.data, rows.size, GUARD_AFTER);
        int32_t *kept = pick(&random, n_rows, n_kept, 1);
        for (size_t i = 0; i < n_kept; i++) {
            memcpy(expected.data + i * stride, rows.data + (size_t)kept[i] * stride, row_bytes);
        }
        assert_ok(snapkv_gather_rows(kept, n_kept, rows.data, stride, n_rows, row_bytes, rows.data,
                                     stride));
        assert_memory_equal(rows.data, expected.data, rows.size);
        guard_free(&rows);
        guard_free(&expected);
        free(kept);
    }
}

/* A transposed V, one row per dimension, elements of every size a cache uses. */
static void test_columns(void **state) {
    (void)state;
    static const size_t element_sizes[] = {1, 2, 3, 4, 8, 12, 16, 18, 34};
    splitmix random = {13};
    for (size_t round = 0; round < 200; round++) {
        guard_side side = round % 2 ? GUARD_AFTER : GUARD_BEFORE;
        size_t element = element_sizes[round % COUNT_OF(element_sizes)];
        size_t n_columns = splitmix_between(&random, 1, 70);
        size_t n_kept = splitmix_between(&random, 1, n_columns);
        size_t n_rows = splitmix_between(&random, 1, 9);
        size_t src_stride = n_columns * element + splitmix_between(&random, 0, 20);
        size_t dst_stride = n_kept * element + splitmix_between(&random, 0, 20);
        guard src = random_bytes((n_rows - 1) * src_stride + n_columns * element, side);
        guard dst = guard_new((n_rows - 1) * dst_stride + n_kept * element, side);
        guard expected = guard_new(dst.size, GUARD_AFTER);
        int32_t *kept = pick(&random, n_columns, n_kept, round % 3 == 0);
        guard list = copy_kept(kept, n_kept);
        guard_freeze(&src);
        for (size_t row = 0; row < n_rows; row++) {
            for (size_t i = 0; i < n_kept; i++) {
                memcpy(expected.data + row * dst_stride + i * element,
                       src.data + row * src_stride + (size_t)kept[i] * element, element);
            }
        }
        assert_ok(snapkv_gather_columns((const int32_t *)(void *)list.data, n_kept, src.data,
                                        src_stride, n_columns, element, n_rows, dst.data,
                                        dst_stride));
        assert_memory_equal(dst.data, expected.data, dst.size);
        guard_free(&src);
        guard_free(&dst);
        guard_free(&expected);
        guard_free(&list);
        free(kept);
    }
}

static void test_columns_in_place(void **state) {
    (void)state;
    splitmix random = {14};
    for (size_t round = 0; round < 200; round++) {
        size_t element = splitmix_between(&random, 1, 17);
        size_t n_columns = splitmix_between(&random, 1, 70);
        size_t n_kept = splitmix_between(&random, 1, n_columns);
        size_t n_rows = splitmix_between(&random, 1, 9);
        size_t stride = n_columns * element + splitmix_between(&random, 0, 20);
        guard columns = random_bytes((n_rows - 1) * stride + n_columns * element, GUARD_AFTER);
        guard expected = guard_copy(columns.data, columns.size, GUARD_AFTER);
        int32_t *kept = pick(&random, n_columns, n_kept, 1);
        for (size_t row = 0; row < n_rows; row++) {
            for (size_t i = 0; i < n_kept; i++) {
                memcpy(expected.data + row * stride + i * element,
                       columns.data + row * stride + (size_t)kept[i] * element, element);
            }
        }
        assert_ok(snapkv_gather_columns(kept, n_kept, columns.data, stride, n_columns, element,
                                        n_rows, columns.data, stride));
        assert_memory_equal(columns.data, expected.data, columns.size);
        guard_free(&columns);
        guard_free(&expected);
        free(kept);
    }
}

static void test_nothing_kept_writes_nothing(void **state) {
    (void)state;
    const char src[6] = "abcde";
    const int32_t kept[1] = {0};
    guard dst = guard_new(6, GUARD_AFTER);
    assert_ok(snapkv_gather_rows(kept, 0, src, 2, 3, 2, dst.data, 2));
    assert_ok(snapkv_gather_columns(kept, 0, src, 3, 3, 1, 2, dst.data, 3));
    guard_check_untouched(&dst);
    guard_free(&dst);
}

/* Five rows of four bytes six apart, and the same memory as five columns. */
static void test_row_errors(void **state) {
    (void)state;
    const int32_t kept[3] = {0, 2, 4};
    const int32_t high[3] = {0, 2, 5};
    const int32_t negative[3] = {0, -1, 4};
    const int32_t lowest[3] = {INT32_MIN, 1, 2};
    guard src = random_bytes(28, GUARD_AFTER);
    guard dst = guard_new(3 * 4, GUARD_AFTER);
    void *out = dst.data;
    guard_freeze(&src);

#define ROWS(kept, src, src_stride, n_rows, row_bytes, dst, dst_stride)                            \
    gather_rows(kept, 3, src, src_stride, n_rows, row_bytes, dst, dst_stride)
    assert_status(ROWS(NULL, src.data, 6, 5, 4, out, 4), SNAPKV_ERROR_NULL);
    assert_status(ROWS(kept, NULL, 6, 5, 4, out, 4), SNAPKV_ERROR_NULL);
    assert_status(ROWS(kept, src.data, 6, 5, 4, NULL, 4), SNAPKV_ERROR_NULL);
    assert_status(ROWS(kept, src.data, 6, 0, 4, out, 4), SNAPKV_ERROR_SHAPE);
    assert_status(ROWS(kept, src.data, 6, 5, 0, out, 4), SNAPKV_ERROR_SHAPE);
    assert_status(ROWS(kept, src.data, SIZE_MAX / 2, 5, 4, out, 4), SNAPKV_ERROR_SHAPE);
    assert_status(ROWS(kept, src.data, 6, SIZE_MAX, 4, out, 4), SNAPKV_ERROR_SHAPE);
    assert_status(ROWS(kept, src.data, 6, 5, 4, out, SIZE_MAX / 2 + 1), SNAPKV_ERROR_SHAPE);
    assert_status(ROWS(kept, src.data, 3, 5, 4, out, 4), SNAPKV_ERROR_STRIDE);
    assert_status(ROWS(kept, src.data, 0, 5, 4, out, 4), SNAPKV_ERROR_STRIDE);
    assert_status(ROWS(kept, src.data, 6, 5, 4, out, 3), SNAPKV_ERROR_OUTPUT);
    assert_status(ROWS(kept, src.data, 6, 5, 4, out, 0), SNAPKV_ERROR_OUTPUT);
    assert_status(ROWS(high, src.data, 6, 5, 4, out, 4), SNAPKV_ERROR_INDEX);
    assert_status(ROWS(negative, src.data, 6, 5, 4, out, 4), SNAPKV_ERROR_INDEX);
    assert_status(ROWS(lowest, src.data, 6, 5, 4, out, 4), SNAPKV_ERROR_INDEX);
#undef ROWS
    guard_check_untouched(&dst);
    guard_free(&src);
    guard_free(&dst);
}

static void test_column_errors(void **state) {
    (void)state;
    const int32_t kept[3] = {0, 2, 4};
    const int32_t high[3] = {0, 2, 5};
    const int32_t negative[3] = {0, -1, 4};
    guard src = random_bytes(22, GUARD_AFTER);
    guard dst = guard_new(2 * 6, GUARD_AFTER);
    void *out = dst.data;
    guard_freeze(&src);

    /* Two rows of five elements of two bytes, twelve apart. */
#define COLUMNS(kept, src, src_stride, n_columns, element_size, n_rows, dst, dst_stride)           \
    gather_columns(kept, 3, src, src_stride, n_columns, element_size, n_rows, dst, dst_stride)
    assert_status(COLUMNS(NULL, src.data, 12, 5, 2, 2, out, 6), SNAPKV_ERROR_NULL);
    assert_status(COLUMNS(kept, NULL, 12, 5, 2, 2, out, 6), SNAPKV_ERROR_NULL);
    assert_status(COLUMNS(kept, src.data, 12, 5, 2, 2, NULL, 6), SNAPKV_ERROR_NULL);
    assert_status(COLUMNS(kept, src.data, 12, 0, 2, 2, out, 6), SNAPKV_ERROR_SHAPE);
    assert_status(COLUMNS(kept, src.data, 12, 5, 0, 2, out, 6), SNAPKV_ERROR_SHAPE);
    assert_status(COLUMNS(kept, src.data, 12, 5, 2, 0, out, 6), SNAPKV_ERROR_SHAPE);
    assert_status(COLUMNS(kept, src.data, SIZE_MAX, 5, SIZE_MAX / 4, 2, out, 6),
                  SNAPKV_ERROR_SHAPE);
    assert_status(COLUMNS(kept, src.data, SIZE_MAX / 2, 5, 2, 5, out, 6), SNAPKV_ERROR_SHAPE);
    assert_status(COLUMNS(kept, src.data, 12, 5, 2, SIZE_MAX, out, 6), SNAPKV_ERROR_SHAPE);
    assert_status(COLUMNS(kept, src.data, 12, 5, 2, 2, out, SIZE_MAX), SNAPKV_ERROR_SHAPE);
    assert_status(COLUMNS(kept, src.data, 9, 5, 2, 2, out, 6), SNAPKV_ERROR_STRIDE);
    assert_status(COLUMNS(kept, src.data, 0, 5, 2, 2, out, 6), SNAPKV_ERROR_STRIDE);
    assert_status(COLUMNS(kept, src.data, 12, 5, 2, 2, out, 5), SNAPKV_ERROR_OUTPUT);
    assert_status(COLUMNS(kept, src.data, 12, 5, 2, 2, out, 0), SNAPKV_ERROR_OUTPUT);
    assert_status(COLUMNS(high, src.data, 12, 5, 2, 2, out, 6), SNAPKV_ERROR_INDEX);
    assert_status(COLUMNS(negative, src.data, 12, 5, 2, 2, out, 6), SNAPKV_ERROR_INDEX);
#undef COLUMNS
    guard_check_untouched(&dst);
    guard_free(&src);
    guard_free(&dst);
}

/* In place needs equal strides and an ascending list; every other overlap is refused. */
static void test_overlap(void **state) {
    (void)state;
    const int32_t ascending[3] = {0, 2, 4};
    const int32_t falling[3] = {4, 2, 0};
    const int32_t nearly[3] = {1, 3, 2};
    guard memory = random_bytes(64, GUARD_AFTER);
    guard before = guard_copy(memory.data, memory.size, GUARD_AFTER);
    unsigned char *m = memory.data;

    assert_status(gather_rows(falling, 3, m, 4, 5, 4, m, 4), SNAPKV_ERROR_ALIAS);
    assert_status(gather_rows(nearly, 3, m, 4, 5, 4, m, 4), SNAPKV_ERROR_ALIAS);
    assert_status(gather_rows(ascending, 3, m, 6, 5, 4, m, 4), SNAPKV_ERROR_ALIAS);
    assert_status(gather_rows(ascending, 3, m, 4, 5, 4, m + 4, 4), SNAPKV_ERROR_ALIAS);
    assert_status(gather_rows(ascending, 3, m, 4, 5, 4, m + 19, 4), SNAPKV_ERROR_ALIAS);
    assert_status(gather_rows(ascending, 3, m + 11, 4, 5, 4, m, 4), SNAPKV_ERROR_ALIAS);
    assert_status(gather_columns(falling, 3, m, 10, 5, 2, 2, m, 10), SNAPKV_ERROR_ALIAS);
    assert_status(gather_columns(ascending, 3, m, 10, 5, 2, 2, m, 6), SNAPKV_ERROR_ALIAS);
    assert_status(gather_columns(ascending, 3, m, 10, 5, 2, 2, m + 2, 10), SNAPKV_ERROR_ALIAS);
    assert_status(gather_columns(ascending, 3, m, 10, 5, 2, 2, m + 19, 6), SNAPKV_ERROR_ALIAS);
    assert_status(gather_columns(ascending, 3, m + 11, 10, 5, 2, 2, m, 6), SNAPKV_ERROR_ALIAS);
    assert_memory_equal(m, before.data, memory.size);

    /* A single row needs no stride; a part of a row before it is no whole row. */
    static const int32_t only[1] = {0};
    assert_status(gather_rows(only, 1, m + 2, 0, 1, 4, m, 0), SNAPKV_ERROR_ALIAS);
    assert_memory_equal(m, before.data, memory.size);
    assert_ok(gather_rows(only, 1, m + 44, 0, 1, 4, m + 40, 0));
    assert_memory_equal(m + 40, before.data + 44, 4);
    assert_memory_equal(m + 44, before.data + 44, 20);

    /* Neighbours that touch don't overlap. */
    assert_ok(gather_rows(falling, 3, m, 4, 5, 4, m + 20, 4));
    assert_memory_equal(m + 20, before.data + 16, 4);
    assert_ok(gather_columns(falling, 3, m, 10, 5, 2, 2, m + 20, 6));
    assert_memory_equal(m + 20, before.data + 8, 2);
    assert_memory_equal(m, before.data, 20);
    guard_free(&memory);
    guard_free(&before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rows_in_place),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_columns_in_place),
        cmocka_unit_test(test_nothing_kept_writes_nothing),
        cmocka_unit_test(test_row_errors),
        cmocka_unit_test(test_column_errors),
        cmocka_unit_test(test_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
