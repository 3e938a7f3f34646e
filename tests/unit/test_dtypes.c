/* float16, bfloat16 and custom rows give the bits of the floats they hold. */
#include "check.h"
#include "half.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Numbers that every dtype holds exactly, in every dtype and layout. */
static void test_every_dtype_gives_the_same_bits(void **state) {
    (void)state;
    static const size_t dims[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 80};
    static const snapkv_dtype dtypes[] = {SNAPKV_F32, SNAPKV_F16, SNAPKV_BF16, SNAPKV_CUSTOM};
    for (size_t i = 0; i < COUNT_OF(dims); i++) {
        splitmix random = {i};
        problem p = problem_new(make_config(6, 20, 5), 4, 2, 101, dims[i]);
        problem_fill(&p, &random, 6, 1);
        problem_pack_plainly(&p);
        size_t size = snapkv_workspace_size(&p.config, &p.layer);
        outcome expected = run_select(&p, 1, size, GUARD_AFTER);
        float *votes = run_vote(&p, 1, size, GUARD_AFTER);
        for (size_t j = 0; j < 32; j++) {
            packing how = {(layout)(j / 4 % 4),
                           dtypes[j % 4],
                           j % 3 ? GUARD_AFTER : GUARD_BEFORE,
                           j / 8,
                           j / 16,
                           6};
            problem_pack(&p, how);
            outcome o = run_select(&p, 1, snapkv_workspace_size(&p.config, &p.layer), how.side);
            assert_same_outcome(&o, &expected);
            outcome_free(&o);
            o = run_select(&p, 1, snapkv_workspace_min(&p.config, &p.layer), how.side);
            assert_same_outcome(&o, &expected);
            outcome_free(&o);
            float *same = run_vote(&p, 1, snapkv_workspace_min(&p.config, &p.layer), how.side);
            assert_memory_equal(same, votes, 95 * sizeof(float));
            free(same);
        }
        free(votes);
        outcome_free(&expected);
        problem_free(&p);
    }
}

/* Queries of one type on keys of another. */
static void test_types_mix(void **state) {
    (void)state;
    static const snapkv_dtype dtypes[] = {SNAPKV_F32, SNAPKV_F16, SNAPKV_BF16, SNAPKV_CUSTOM};
    splitmix random = {9};
    problem p = problem_new(make_config(6, 20, 5), 4, 2, 101, 24);
    problem_fill(&p, &random, 6, 1);
    problem_pack_plainly(&p);
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    outcome expected = run_select(&p, 0, size, GUARD_AFTER);
    for (size_t i = 0; i < 16; i++) {
        packing how;
        memset(&how, 0, sizeof how);
        packed_free(&p.packed_queries);
        packed_free(&p.packed_keys);
        how.dtype = dtypes[i % 4];
        p.packed_queries = pack(p.queries, 4, 6, 24, how);
        how.dtype = dtypes[i / 4];
        p.packed_keys = pack(p.keys, 2, 101, 24, how);
        p.layer.queries = p.packed_queries.rows;
        p.layer.keys = p.packed_keys.rows;
        outcome o = run_select(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
        assert_same_outcome(&o, &expected);
        outcome_free(&o);
    }
    outcome_free(&expected);
    problem_free(&p);
}

/* Votes for keys of one dimension: the halves first .. first + n - 1, next to the same numbers as
 * floats. `magnify` brings them near 1, where every bit of theirs shows in the votes. */
static void check_conversion(snapkv_dtype dtype, unsigned first, size_t n, double magnify,
                             size_t n_columns) {
    size_t length = n / n_columns + 1;
    problem p = problem_new(make_config(1, 2, 1), 1, 1, length, n_columns);
    guard halves = guard_new(length * n_columns * sizeof(uint16_t), GUARD_AFTER);
    memset(halves.data, 0, halves.size);
    for (size_t i = 0; i < n; i++) {
        uint16_t half = (uint16_t)(first + i);
        memcpy(halves.data + i * sizeof half, &half, sizeof half);
        p.keys[i] = dtype == SNAPKV_F16 ? f16_decode(half) : bf16_decode(half);
    }
    for (size_t d = 0; d < n_columns; d++) {
        p.queries[d] = 1 - (float)d / 32;
    }
    p.layer.scale = (float)magnify;
    problem_pack_plainly(&p);
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    float *expected = run_vote(&p, 0, size, GUARD_AFTER);
    p.layer.keys.data = halves.data;
    p.layer.keys.dtype = dtype;
    p.layer.keys.row_stride = n_columns * sizeof(uint16_t);
    float *votes = run_vote(&p, 0, size, GUARD_AFTER);
    assert_memory_equal(votes, expected, (length - 1) * sizeof(float));
    /* The floats tell the halves apart, or equal votes would say nothing. */
    for (size_t j = 1; j + 1 < length; j++) {
        assert_true(n_columns > 1 || expected[j] != expected[j - 1]);
    }
    free(votes);
    free(expected);
    guard_free(&halves);
    problem_free(&p);
}

/* Every finite half of both formats, subnormals and both signs. Each run has one exponent. */
static void test_every_half(void **state) {
    (void)state;
    for (unsigned sign = 0; sign < 2; sign++) {
        for (unsigned exponent = 0; exponent < 31; exponent++) {
            unsigned first = sign << 15 | exponent << 10;
            double magnify = ldexp(1, exponent ? 15 - (int)exponent : 14);
            check_conversion(SNAPKV_F16, first, 1024, magnify, 1);
            check_conversion(SNAPKV_F16, first, 1024, magnify, 16); /* a vector's width at once */
        }
        for (unsigned exponent = 0; exponent < 255; exponent++) {
            unsigned first = sign << 15 | exponent << 7;
            /* Past 2^-126 the scale itself is subnormal; the bits still have to agree. */
            double magnify = ldexp(1, exponent ? 127 - (int)exponent : 126);
            check_conversion(SNAPKV_BF16, first, 128, magnify, 1);
            if (exponent < 240) { /* 16 products of more add up to what no float holds */
                check_conversion(SNAPKV_BF16, first, 128, magnify, 16);
            }
        }
    }
}

/* A decoder that counts its rows: it must be given each row's own address. */
static size_t decoded_rows;

static void decode_counting(void *context, const void *row, size_t head, size_t position,
                            float *out, size_t head_dim) {
    decoded_rows++;
    decode_bytes(context, row, head, position, out, head_dim);
}

static void test_custom_rows_are_decoded_by_the_caller(void **state) {
    (void)state;
    packing how;
    memset(&how, 0, sizeof how);
    how.dtype = SNAPKV_CUSTOM;
    splitmix random = {9};
    problem p = problem_new(make_config(6, 20, 5), 2, 1, 101, 24);
    problem_fill(&p, &random, 6, 1);
    problem_pack(&p, how);
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    outcome expected = run_select(&p, 0, size, GUARD_AFTER);
    p.layer.keys.decode = decode_counting;
    p.layer.keys.row_bytes = 0; /* nobody gathers here */
    p.layer.queries.row_bytes = 0;
    decoded_rows = 0;
    outcome o = run_select(&p, 0, size, GUARD_AFTER);
    assert_same_outcome(&o, &expected);
    assert_true(decoded_rows >= 101);
    outcome_free(&o);
    outcome_free(&expected);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_dtype_gives_the_same_bits),
        cmocka_unit_test(test_types_mix),
        cmocka_unit_test(test_every_half),
        cmocka_unit_test(test_custom_rows_are_decoded_by_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
