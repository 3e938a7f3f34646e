/* Offsets beyond 32 bits, in address space that is reserved and hardly touched: a product of an
 * index and a stride computed in an int would land elsewhere. */
#define _DEFAULT_SOURCE /* MAP_NORESERVE */
#include "check.h"
#include "reference.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GIB ((size_t)1 << 30)

static unsigned char *reserve(size_t size) {
    if (sizeof(size_t) < 8) {
        print_message("SKIP: addresses of this machine end before these offsets\n");
        skip();
    }
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        print_message("SKIP: %lu GiB of address space can't be reserved\n",
                      (unsigned long)(size / GIB));
        skip();
    }
    return map;
}

static problem small_problem(void) {
    splitmix random = {61};
    problem p = problem_new(make_config(2, 4, 3), 4, 2, 6, 5);
    problem_fill(&p, &random, 4, 0);
    problem_pack_plainly(&p);
    return p;
}

/* Copies packed rows into a view whose strides are set already. */
static void spread(const packed *rows, const snapkv_rows *view, unsigned char *memory) {
    for (size_t head = 0; head < rows->n_heads; head++) {
        for (size_t row = 0; row < rows->n_rows; row++) {
            size_t block = 0;
            size_t inside = row;
            if (view->block_table) {
                block = (size_t)view->block_table[row / view->block_rows];
                inside = row % view->block_rows;
            }
            memcpy(memory + block * view->block_stride + head * view->head_stride +
                       inside * view->row_stride,
                   packed_row(rows, head, row), rows->row_bytes);
        }
    }
}

static void check_spread(problem *p, snapkv_rows view, size_t size) {
    size_t workspace_size = snapkv_workspace_size(&p->config, &p->layer);
    outcome expected = run_select(p, 1, workspace_size, GUARD_AFTER);
    check_selection(p, 1, &expected);
    unsigned char *memory = reserve(size);
    view.data = memory;
    spread(&p->packed_keys, &view, memory);
    p->layer.keys = view;
    outcome o = run_select(p, 1, workspace_size, GUARD_AFTER);
    assert_same_outcome(&o, &expected);
    outcome_free(&o);

    /* And out of it: keys and values are the same rows. */
    float keys[2][4][5];
    float values[2][4][5];
    snapkv_rows_out keys_out = {keys, sizeof keys[0], sizeof keys[0][0], NULL, 0, 0};
    snapkv_rows_out values_out = {values, sizeof values[0], sizeof values[0][0], NULL, 0, 0};
    int32_t kept[4];
    guard workspace = guard_new(workspace_size, GUARD_AFTER);
    p->layer.values = view;
    assert_ok(snapkv_compress(&p->config, &p->layer, 1, kept, &keys_out, &values_out, NULL,
                              workspace.data, workspace_size));
    for (size_t i = 0; i < 4; i++) {
        const unsigned char *row = packed_row(&p->packed_keys, 1, (size_t)kept[i]);
        assert_memory_equal(keys[1][i], row, sizeof keys[1][i]);
        assert_memory_equal(values[1][i], row, sizeof values[1][i]);
    }
    guard_free(&workspace);
    outcome_free(&expected);
    munmap(memory, size);
}

static void test_strides_beyond_32_bits(void **state) {
    (void)state;
    problem p = small_problem();
    snapkv_rows view = p.layer.keys;
    view.head_stride = 5 * GIB; /* heads outside */
    check_spread(&p, view, 6 * GIB);
    problem_free(&p);

    p = small_problem();
    view.head_stride = 20; /* positions outside */
    view.row_stride = 3 * GIB / 2;
    check_spread(&p, view, 8 * GIB);
    problem_free(&p);
}

static void test_blocks_beyond_32_bits(void **state) {
    (void)state;
    static const int32_t table[3] = {5, 0, 3};
    problem p = small_problem();
    snapkv_rows view = p.layer.keys;
    view.block_table = table;
    view.block_rows = 2;
    view.head_stride = 2 * 20;
    view.block_stride = GIB;
    check_spread(&p, view, 6 * GIB);
    problem_free(&p);
}

static void test_outputs_beyond_32_bits(void **state) {
    (void)state;
    problem p = small_problem();
    unsigned char *memory = reserve(16 * GIB);
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    guard workspace = guard_new(size, GUARD_AFTER);
    int32_t kept[4];
    snapkv_rows_out keys_out = {memory, 5 * GIB, GIB + 12, NULL, 0, 0};
    snapkv_rows_out values_out = {memory + 10 * GIB, 20, 3 * GIB / 2, NULL, 0, 0};
    assert_ok(snapkv_compress(&p.config, &p.layer, 1, kept, &keys_out, &values_out, NULL,
                              workspace.data, size));
    for (size_t i = 0; i < 4; i++) {
        size_t position = (size_t)kept[i];
        assert_memory_equal(memory + 5 * GIB + i * (GIB + 12),
                            packed_row(&p.packed_keys, 1, position), 20);
        assert_memory_equal(memory + 10 * GIB + 20 + i * (3 * GIB / 2),
                            packed_row(&p.packed_values, 1, position), 20);
    }
    guard_free(&workspace);
    munmap(memory, 16 * GIB);
    problem_free(&p);
}

static void test_gathers_beyond_32_bits(void **state) {
    (void)state;
    static const int32_t kept[3] = {0, 3, 5};
    unsigned char *memory = reserve(16 * GIB);
    for (size_t i = 0; i < 6; i++) {
        memory[i * 5 * GIB / 4] = (unsigned char)(i + 1);
    }
    /* Rows far apart, gathered behind them and still far apart. */
    unsigned char *out = memory + 8 * GIB;
    assert_ok(snapkv_gather_rows(kept, 3, memory, 5 * GIB / 4, 6, 1, out, 3 * GIB));
    assert_true(out[0] == 1 && out[3 * GIB] == 4 && out[6 * GIB] == 6);

    /* Six rows of columns. */
    unsigned char *columns = memory + 7 * GIB;
    assert_ok(snapkv_gather_columns(kept, 1, memory, 5 * GIB / 4, 6, 1, 6, columns, GIB + 1));
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(columns[i * (GIB + 1)], i + 1);
    }
    munmap(memory, 16 * GIB);
}

/* Positions themselves beyond 32 bits of bytes: column 2^31 - 2 of four bytes each. */
static void test_indices_beyond_32_bits(void **state) {
    (void)state;
    static const int32_t kept[2] = {INT32_MAX / 2 + 7, INT32_MAX - 1};
    const size_t n = (size_t)INT32_MAX;
    unsigned char *memory = reserve(9 * GIB);
    unsigned char out[8] = {0};
    memory[(size_t)kept[0] * 4] = 17;
    memory[(size_t)kept[1] * 4 + 3] = 18;
    assert_ok(snapkv_gather_rows(kept, 2, memory, 4, n, 4, out, 4));
    assert_true(out[0] == 17 && out[7] == 18);
    memset(out, 0, sizeof out);
    assert_ok(snapkv_gather_columns(kept, 2, memory, n * 4, n, 4, 1, out, 8));
    assert_true(out[0] == 17 && out[7] == 18);
    munmap(memory, 9 * GIB);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strides_beyond_32_bits),
        cmocka_unit_test(test_blocks_beyond_32_bits),
        cmocka_unit_test(test_outputs_beyond_32_bits),
        cmocka_unit_test(test_gathers_beyond_32_bits),
        cmocka_unit_test(test_indices_beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
