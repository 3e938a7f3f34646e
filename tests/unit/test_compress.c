/* snapkv_compress(): K and V gathered with one list, out of place and in place. */
#include "check.h"
#include "half.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static problem random_problem(snapkv_config config, size_t n_query_heads, size_t n_kv_heads,
                              size_t length) {
    splitmix random = {length * 17 + n_query_heads};
    problem p = problem_new(config, n_query_heads, n_kv_heads, length, 10);
    problem_fill(&p, &random, 4, 1);
    problem_pack_plainly(&p);
    return p;
}

/* Where one set's output heads are: all K/V heads of a shared layer, else the one of the set. */
static void output_heads(const problem *p, size_t set, size_t *first, size_t *n) {
    int shared = p->config.sharing == SNAPKV_PER_LAYER;
    *first = shared ? 0 : set;
    *n = shared ? p->layer.n_kv_heads : 1;
}

static size_t source_head(const problem *p, size_t output_head) {
    return p->config.sharing == SNAPKV_PER_QUERY_HEAD
               ? output_head / (p->layer.n_query_heads / p->layer.n_kv_heads)
               : output_head;
}

/* Compressed K, V and kept lists of a whole layer: one output buffer each for all sets. */
typedef struct compressed {
    guard keys, values;
    snapkv_rows_out keys_out, values_out;
    size_t n_heads, n_kept, row_bytes;
    int32_t *kept; /* [set][n_kept] */
} compressed;

/* Rows `gap` bytes further apart than their size, heads another gap. */
static compressed new_output(const problem *p, size_t gap, guard_side side) {
    compressed c;
    memset(&c, 0, sizeof c);
    c.n_heads =
        p->config.sharing == SNAPKV_PER_QUERY_HEAD ? p->layer.n_query_heads : p->layer.n_kv_heads;
    c.n_kept = problem_kept_count(p);
    c.row_bytes = p->packed_keys.row_bytes;
    c.keys_out.row_stride = c.row_bytes + gap;
    c.keys_out.head_stride = c.n_kept * c.keys_out.row_stride + gap;
    c.values_out.row_stride = c.row_bytes + 2 * gap;
    c.values_out.head_stride = c.n_kept * c.values_out.row_stride + gap;
    c.keys = guard_new(c.n_heads * c.keys_out.head_stride - 2 * gap, side);
    c.values = guard_new(c.n_heads * c.values_out.head_stride - 3 * gap, side);
    c.keys_out.data = c.keys.data;
    c.values_out.data = c.values.data;
    c.kept = new_array(problem_set_count(p) * c.n_kept, sizeof(int32_t));
    return c;
}

static void free_output(compressed *c) {
    guard_free(&c->keys);
    guard_free(&c->values);
    free(c->kept);
}

static void compress_set(const problem *p, size_t set, compressed *c) {
    size_t size = snapkv_workspace_size(&p->config, &p->layer);
    guard workspace = guard_new(size, GUARD_AFTER);
    guard kept = guard_new(c->n_kept * sizeof(int32_t), GUARD_AFTER);
    snapkv_selection selection;
    assert_ok(snapkv_compress(&p->config, &p->layer, set, (int32_t *)(void *)kept.data,
                              &c->keys_out, &c->values_out, &selection, workspace.data, size));
    memcpy(c->kept + set * c->n_kept, kept.data, kept.size);
    outcome o = run_select(p, set, size, GUARD_AFTER);
    assert_indices(c->kept + set * c->n_kept, o.kept, c->n_kept);
    assert_int_equal(selection.n_kept, c->n_kept);
    assert_memory_equal(&selection.coverage, &o.selection.coverage, sizeof(float));
    assert_int_equal(selection.bypassed, o.selection.bypassed);
    outcome_free(&o);
    guard_free(&kept);
    guard_free(&workspace);
}

static unsigned char *output_row(const snapkv_rows_out *out, size_t head, size_t row) {
    return (unsigned char *)out->data + head * out->head_stride + row * out->row_stride;
}

/* Compresses set after set; after each, exactly its output heads hold the rows of the list. */
static void check_compress(const problem *p, size_t gap, guard_side side) {
    compressed c = new_output(p, gap, side);
    guard keys = guard_copy(c.keys.data, c.keys.size, GUARD_AFTER);
    guard values = guard_copy(c.values.data, c.values.size, GUARD_AFTER);
    for (size_t set = 0; set < problem_set_count(p); set++) {
        size_t first;
        size_t n;
        compress_set(p, set, &c);
        output_heads(p, set, &first, &n);
        for (size_t head = first; head < first + n; head++) {
            for (size_t i = 0; i < c.n_kept; i++) {
                size_t position = (size_t)c.kept[set * c.n_kept + i];
                ptrdiff_t at = output_row(&c.keys_out, head, i) - c.keys.data;
                memcpy(keys.data + at, packed_row(&p->packed_keys, source_head(p, head), position),
                       c.row_bytes);
                at = output_row(&c.values_out, head, i) - c.values.data;
                memcpy(values.data + at,
                       packed_row(&p->packed_values, source_head(p, head), position), c.row_bytes);
            }
        }
        assert_memory_equal(c.keys.data, keys.data, keys.size);
        assert_memory_equal(c.values.data, values.data, values.size);
    }
    guard_free(&keys);
    guard_free(&values);
    free_output(&c);
}

static void test_every_sharing_and_order(void **state) {
    (void)state;
    static const snapkv_sharing sharings[] = {SNAPKV_PER_KV_HEAD, SNAPKV_PER_QUERY_HEAD,
                                              SNAPKV_PER_LAYER};
    for (size_t i = 0; i < 6; i++) {
        problem p = random_problem(make_config(5, 19, 3), 6, 2, 80);
        p.config.sharing = sharings[i % 3];
        p.config.order = i / 3 ? SNAPKV_BY_SCORE : SNAPKV_BY_POSITION;
        p.config.n_sink = i;
        check_compress(&p, 0, GUARD_AFTER);
        check_compress(&p, 8, GUARD_BEFORE);
        problem_free(&p);
    }
}

static void test_around_the_capacity(void **state) {
    (void)state;
    for (size_t length = 17; length <= 21; length++) {
        problem p = random_problem(make_config(5, 19, 3), 4, 2, length);
        check_compress(&p, 4, GUARD_AFTER);
        problem_free(&p);
    }
    problem p = random_problem(make_config(5, 19, 3), 4, 2, 5); /* nothing but the window */
    check_compress(&p, 0, GUARD_AFTER);
    problem_free(&p);
}

static void test_every_packing(void **state) {
    (void)state;
    static const snapkv_dtype dtypes[] = {SNAPKV_F32, SNAPKV_F16, SNAPKV_BF16, SNAPKV_CUSTOM};
    static const layout layouts[] = {LAYOUT_HEAD_MAJOR, LAYOUT_POSITION_MAJOR,
                                     LAYOUT_BLOCKS_BY_HEAD, LAYOUT_BLOCKS_BY_ROW};
    for (size_t i = 0; i < 16; i++) {
        problem p = random_problem(make_config(5, 19, 3), 6, 2, 80);
        packing how = {layouts[i / 4], dtypes[i % 4], i % 2 ? GUARD_AFTER : GUARD_BEFORE,
                       i % 3,          i % 5,         7};
        problem_pack(&p, how);
        check_compress(&p, 3, GUARD_AFTER);
        p.config.sharing = SNAPKV_PER_LAYER;
        check_compress(&p, 0, GUARD_BEFORE);
        problem_free(&p);
    }
}

/* Keys paged in one way, values in another, and both only byte-aligned when they leave. */
static void test_keys_and_values_packed_differently(void **state) {
    (void)state;
    problem p = random_problem(make_config(5, 19, 3), 6, 2, 80);
    packing keys = {LAYOUT_BLOCKS_BY_ROW, SNAPKV_F32, GUARD_AFTER, 1, 2, 16};
    packing values = {LAYOUT_BLOCKS_BY_HEAD, SNAPKV_F32, GUARD_BEFORE, 0, 1, 5};
    packed_free(&p.packed_keys);
    packed_free(&p.packed_values);
    p.packed_keys = pack(p.keys, 2, 80, 10, keys);
    p.packed_values = pack(p.values, 2, 80, 10, values);
    p.layer.keys = p.packed_keys.rows;
    p.layer.values = p.packed_values.rows;
    check_compress(&p, 1, GUARD_AFTER);
    problem_free(&p);
}

/* Values are moved, not read: not a number among them is a number like any other. */
static void test_values_may_be_anything(void **state) {
    (void)state;
    problem p = random_problem(make_config(5, 19, 3), 6, 2, 80);
    guard_thaw(&p.packed_values.memory);
    memset(p.packed_values.memory.data, 0xFF, p.packed_values.memory.size);
    check_compress(&p, 4, GUARD_AFTER);
    problem_free(&p);
}

/* Values of other rows than the keys', as the latent attention of one shared head has them: the
 * first part of the key row itself. */
static void test_values_of_another_width(void **state) {
    (void)state;
    problem p = random_problem(make_config(5, 19, 3), 6, 1, 80);
    p.layer.values = p.layer.keys;
    p.layer.values.row_bytes = 7 * sizeof(float);
    int32_t kept[19];
    guard keys = guard_new(19 * 40, GUARD_AFTER);
    guard values = guard_new(19 * 28, GUARD_AFTER);
    snapkv_rows_out keys_out = {keys.data, 0, 40, NULL, 0, 0};
    snapkv_rows_out values_out = {values.data, 0, 28, NULL, 0, 0};
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    guard workspace = guard_new(size, GUARD_AFTER);
    assert_ok(snapkv_compress(&p.config, &p.layer, 0, kept, &keys_out, &values_out, NULL,
                              workspace.data, size));
    for (size_t i = 0; i < 19; i++) {
        const unsigned char *row = packed_row(&p.packed_keys, 0, (size_t)kept[i]);
        assert_memory_equal(keys.data + i * 40, row, 40);
        assert_memory_equal(values.data + i * 28, row, 28);
    }
    guard_free(&keys);
    guard_free(&values);
    guard_free(&workspace);
    problem_free(&p);
}

/* Quantised rows survive as they are: bytes that the decoder never reads travel along. */
static void test_custom_rows_travel_whole(void **state) {
    (void)state;
    problem p = random_problem(make_config(5, 19, 3), 6, 2, 80);
    packing how = {LAYOUT_HEAD_MAJOR, SNAPKV_CUSTOM, GUARD_AFTER, 0, 0, 0};
    problem_pack(&p, how);
    guard_thaw(&p.packed_keys.memory);
    for (size_t j = 0; j < 80; j++) {
        packed_row(&p.packed_keys, 1, j)[0] = (unsigned char)j;
    }
    guard_freeze(&p.packed_keys.memory);
    check_compress(&p, 0, GUARD_AFTER);
    problem_free(&p);
}

/* In place gives the rows that out of place gives; what lies behind them stays as it was. */
static void check_in_place(problem *p) {
    compressed apart = new_output(p, 0, GUARD_AFTER);
    for (size_t set = 0; set < problem_set_count(p); set++) {
        compress_set(p, set, &apart);
    }
    packed *const both[2] = {&p->packed_keys, &p->packed_values};
    guard before[2];
    for (size_t i = 0; i < 2; i++) {
        guard_thaw(&both[i]->memory);
        before[i] = guard_copy(both[i]->memory.data, both[i]->memory.size, GUARD_AFTER);
        for (size_t head = 0; head < p->layer.n_kv_heads; head++) {
            for (size_t row = 0; row < apart.n_kept; row++) {
                ptrdiff_t at = packed_row(both[i], head, row) - both[i]->memory.data;
                memcpy(before[i].data + at,
                       output_row(i ? &apart.values_out : &apart.keys_out, head, row),
                       apart.row_bytes);
            }
        }
    }
    size_t size = snapkv_workspace_size(&p->config, &p->layer);
    guard workspace = guard_new(size, GUARD_AFTER);
    int32_t *kept = new_array(apart.n_kept, sizeof(int32_t));
    snapkv_rows_out keys_out = {packed_row(both[0], 0, 0), p->layer.keys.head_stride,
                                p->layer.keys.row_stride, NULL, 0, 0};
    snapkv_rows_out values_out = {packed_row(both[1], 0, 0), p->layer.values.head_stride,
                                  p->layer.values.row_stride, NULL, 0, 0};
    for (size_t set = 0; set < problem_set_count(p); set++) {
        assert_ok(snapkv_compress(&p->config, &p->layer, set, kept, &keys_out, &values_out, NULL,
                                  workspace.data, size));
        assert_indices(kept, apart.kept + set * apart.n_kept, apart.n_kept);
    }
    for (size_t i = 0; i < 2; i++) {
        assert_memory_equal(both[i]->memory.data, before[i].data, before[i].size);
        guard_free(&before[i]);
    }
    free(kept);
    guard_free(&workspace);
    free_output(&apart);
}

static void test_in_place(void **state) {
    (void)state;
    static const snapkv_dtype dtypes[] = {SNAPKV_F32, SNAPKV_F16, SNAPKV_CUSTOM};
    for (size_t i = 0; i < 12; i++) {
        size_t n_kv_heads = i / 6 ? 3 : 2;
        problem p = random_problem(make_config(5, 19, 3), 6, n_kv_heads, 80);
        packing how = {i / 6 ? LAYOUT_POSITION_MAJOR : LAYOUT_HEAD_MAJOR,
                       dtypes[i % 3],
                       GUARD_AFTER,
                       0,
                       i % 4,
                       0};
        p.config.sharing = i % 2 ? SNAPKV_PER_LAYER : SNAPKV_PER_KV_HEAD;
        p.config.n_sink = i % 5;
        problem_pack(&p, how);
        check_in_place(&p);
        problem_free(&p);
    }
}

/* One query head per K/V head: each list has rows of its own. */
static void test_in_place_per_query_head(void **state) {
    (void)state;
    problem p = random_problem(make_config(5, 19, 3), 3, 3, 80);
    p.config.sharing = SNAPKV_PER_QUERY_HEAD;
    check_in_place(&p);
    problem_free(&p);
}

static void test_in_place_of_a_bypassed_prompt(void **state) {
    (void)state;
    problem p = random_problem(make_config(5, 19, 3), 4, 2, 18);
    check_in_place(&p);
    problem_free(&p);
}

/* A one-query attention over a kept cache doesn't depend on the order of its entries. */
static double *attend(const float *query, const unsigned char *keys, const unsigned char *values,
                      size_t n, size_t dim) {
    double *output = new_array(dim, sizeof(double));
    double *logits = new_array(n, sizeof(double));
    double largest = -INFINITY;
    double total = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t d = 0; d < dim; d++) {
            float key;
            memcpy(&key, keys + (i * dim + d) * sizeof key, sizeof key);
            logits[i] += (double)query[d] * (double)key;
        }
        largest = fmax(largest, logits[i]);
    }
    for (size_t i = 0; i < n; i++) {
        double weight = exp(logits[i] - largest);
        total += weight;
        for (size_t d = 0; d < dim; d++) {
            float value;
            memcpy(&value, values + (i * dim + d) * sizeof value, sizeof value);
            output[d] += weight * (double)value;
        }
    }
    for (size_t d = 0; d < dim; d++) {
        output[d] /= total;
    }
    free(logits);
    return output;
}

static void test_attention_does_not_see_the_order(void **state) {
    (void)state;
    problem p = random_problem(make_config(5, 40, 3), 4, 2, 200);
    splitmix random = {77};
    compressed by_position = new_output(&p, 0, GUARD_AFTER);
    compressed by_score = new_output(&p, 0, GUARD_AFTER);
    for (size_t set = 0; set < 2; set++) {
        p.config.order = SNAPKV_BY_POSITION;
        compress_set(&p, set, &by_position);
        p.config.order = SNAPKV_BY_SCORE;
        compress_set(&p, set, &by_score);
        assert_memory_not_equal(by_position.kept + set * 40, by_score.kept + set * 40,
                                40 * sizeof(int32_t));
        float query[10];
        for (size_t d = 0; d < 10; d++) {
            query[d] = splitmix_float(&random, 4);
        }
        double *a = attend(query, output_row(&by_position.keys_out, set, 0),
                           output_row(&by_position.values_out, set, 0), 40, 10);
        double *b = attend(query, output_row(&by_score.keys_out, set, 0),
                           output_row(&by_score.values_out, set, 0), 40, 10);
        for (size_t d = 0; d < 10; d++) {
            assert_close(a[d], b[d], 1e-12);
        }
        free(a);
        free(b);
    }
    free_output(&by_position);
    free_output(&by_score);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_sharing_and_order),
        cmocka_unit_test(test_around_the_capacity),
        cmocka_unit_test(test_every_packing),
        cmocka_unit_test(test_keys_and_values_packed_differently),
        cmocka_unit_test(test_values_may_be_anything),
        cmocka_unit_test(test_values_of_another_width),
        cmocka_unit_test(test_custom_rows_travel_whole),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_in_place_per_query_head),
        cmocka_unit_test(test_in_place_of_a_bypassed_prompt),
        cmocka_unit_test(test_attention_does_not_see_the_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
