/* SNAPKV_MEMCPY: a gather copies rows through it, and never between areas that overlap, which no
 * memcpy promises to survive. */
#include <stddef.h>

static void *copy_apart(void *to, const void *from, size_t size);
#define SNAPKV_MEMCPY copy_apart
#undef SNAPKV_DECLARATIONS_ONLY /* a library of its own, with this copy in it */

#include "check.h"
#include "guard.h"
#include "problem.h"

#include <string.h>

static size_t n_bytes_copied;

static void *copy_apart(void *to, const void *from, size_t size) {
    const uintptr_t a = (uintptr_t)to;
    const uintptr_t b = (uintptr_t)from;
    assert_true(a < b ? b - a >= size : a - b >= size);
    n_bytes_copied += size;
    return memcpy(to, from, size);
}

/* Lists with runs that overlap their destination: rows 1.. to 0.., and gaps further on. */
static void test_gathers_in_place(void **state) {
    (void)state;
    static const int32_t lists[][8] = {{1, 2, 3, 4, 5, 6, 7, 8},
                                       {0, 1, 2, 3, 5, 6, 7, 9},
                                       {0, 2, 3, 4, 5, 6, 8, 9},
                                       {2, 3, 4, 5, 6, 7, 8, 9},
                                       {0, 1, 2, 3, 4, 5, 6, 7}};
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        for (size_t stride = 16; stride <= 20; stride += 4) {
            unsigned char rows[10 * 20];
            unsigned char expected[sizeof rows];
            for (size_t k = 0; k < sizeof rows; k++) {
                rows[k] = expected[k] = (unsigned char)k;
            }
            /* By the byte: gcc 12.2 -O2 with AVX-512 writes the memcpy of 16 as if aligned. */
            for (size_t k = 0; k < 8 * 16; k++) {
                expected[k / 16 * stride + k % 16] = rows[(size_t)lists[i][k / 16] * stride + k % 16];
            }
            assert_ok(snapkv_gather_rows(lists[i], 8, rows, stride, 10, 16, rows, stride));
            assert_memory_equal(rows, expected, sizeof rows);
        }
    }
}

static void test_compress_in_place(void **state) {
    (void)state;
    splitmix random = {71};
    problem p = problem_new(make_config(30, 50, 5), 2, 1, 60, 8);
    problem_fill(&p, &random, 4, 0);
    problem_pack_plainly(&p);
    guard_thaw(&p.packed_keys.memory);
    guard_thaw(&p.packed_values.memory);
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    guard workspace = guard_new(size, GUARD_AFTER);
    int32_t kept[50];
    snapkv_rows_out keys_out = {p.packed_keys.memory.data, 0, 32, NULL, 0, 0};
    snapkv_rows_out values_out = {p.packed_values.memory.data, 0, 32, NULL, 0, 0};
    assert_ok(snapkv_compress(&p.config, &p.layer, 0, kept, &keys_out, &values_out, NULL,
                              workspace.data, size));
    for (size_t i = 0; i < 50; i++) {
        assert_memory_equal(p.packed_keys.memory.data + i * 32, p.keys + kept[i] * 8, 32);
        assert_memory_equal(p.packed_values.memory.data + i * 32, p.values + kept[i] * 8, 32);
    }
    guard_free(&workspace);
    problem_free(&p);
}

static void test_rows_go_through_the_option(void **state) {
    (void)state;
    static const int32_t kept[3] = {1, 2, 5};
    const unsigned char rows[60] = {1, 2, 3};
    unsigned char out[30];
    n_bytes_copied = 0;
    assert_ok(snapkv_gather_rows(kept, 3, rows, 10, 6, 10, out, 10));
    assert_int_equal(n_bytes_copied, 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gathers_in_place),
        cmocka_unit_test(test_compress_in_place),
        cmocka_unit_test(test_rows_go_through_the_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
