/* The same numbers in every memory layout give the same bits. */
#include "check.h"
#include "reference.h"

#include <stdlib.h>
#include <string.h>

static problem random_problem(size_t window, size_t length, size_t head_dim) {
    splitmix random = {length};
    problem p = problem_new(make_config(window, window + 12, 3), 6, 2, length, head_dim);
    problem_fill(&p, &random, 4, 1);
    problem_pack_plainly(&p);
    return p;
}

/* Votes of each query head and every set's selection, against those of plain rows. */
typedef struct answers {
    outcome sets[2];
    float *votes[6];
} answers;

static answers solve(const problem *p) {
    answers a;
    size_t size = snapkv_workspace_size(&p->config, &p->layer);
    guard_side side = p->packed_keys.how.side;
    assert_ok(snapkv_check(&p->config, &p->layer));
    for (size_t set = 0; set < 2; set++) {
        a.sets[set] = run_select(p, set, size, side);
        assert_int_equal(a.sets[set].status, SNAPKV_OK);
    }
    for (size_t head = 0; head < 6; head++) {
        a.votes[head] = run_vote(p, head, size, side);
    }
    return a;
}

static void free_answers(answers *a) {
    for (size_t set = 0; set < 2; set++) {
        outcome_free(&a->sets[set]);
    }
    for (size_t head = 0; head < 6; head++) {
        free(a->votes[head]);
    }
}

static void check_same(const problem *p, const answers *expected) {
    answers a = solve(p);
    for (size_t set = 0; set < 2; set++) {
        assert_same_outcome(&a.sets[set], &expected->sets[set]);
    }
    for (size_t head = 0; head < 6; head++) {
        assert_memory_equal(a.votes[head], expected->votes[head],
                            problem_prefix(p) * sizeof(float));
    }
    free_answers(&a);
}

static void test_contiguous_layouts(void **state) {
    (void)state;
    static const size_t dims[] = {1, 3, 16, 80};
    for (size_t i = 0; i < COUNT_OF(dims); i++) {
        problem p = random_problem(7, 113, dims[i]);
        answers expected = solve(&p);
        for (size_t j = 0; j < 16; j++) {
            packing how = {j % 2 ? LAYOUT_POSITION_MAJOR : LAYOUT_HEAD_MAJOR,
                           SNAPKV_F32,
                           j / 2 % 2 ? GUARD_AFTER : GUARD_BEFORE,
                           j % 5,
                           j / 4 * 3,
                           0};
            problem_pack(&p, how);
            check_same(&p, &expected);
        }
        free_answers(&expected);
        problem_free(&p);
    }
}

/* Blocks in shuffled order; from one row a block to all of them in one. */
static void test_paged_layouts(void **state) {
    (void)state;
    static const size_t block_rows[] = {1, 2, 3, 7, 16, 48, 64, 113, 128, 1000};
    problem p = random_problem(7, 113, 12);
    answers expected = solve(&p);
    for (size_t i = 0; i < COUNT_OF(block_rows); i++) {
        for (size_t j = 0; j < 4; j++) {
            packing how = {j % 2 ? LAYOUT_BLOCKS_BY_ROW : LAYOUT_BLOCKS_BY_HEAD,
                           SNAPKV_F32,
                           j / 2 ? GUARD_AFTER : GUARD_BEFORE,
                           0,
                           j,
                           block_rows[i]};
            problem_pack(&p, how);
            check_same(&p, &expected);
        }
    }
    free_answers(&expected);
    problem_free(&p);
}

/* A block larger than the prompt, than 32 bits, than half the address space: all of it is block
 * number table[0], and nothing is multiplied with that size. */
static void test_blocks_larger_than_any_prompt(void **state) {
    (void)state;
    const size_t sizes[] = {113,     65536, UINT32_MAX, (size_t)UINT32_MAX + 1, SIZE_MAX / 4 + 9,
                            SIZE_MAX};
    static const int32_t table[1] = {0};
    problem p = random_problem(7, 113, 12);
    answers expected = solve(&p);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        if (sizes[i] < 113) {
            continue; /* what 32 bits make of 2^32 */
        }
        p.layer.keys.block_table = table;
        p.layer.keys.block_rows = sizes[i];
        p.layer.queries.block_table = table;
        p.layer.queries.block_rows = sizes[i];
        check_same(&p, &expected);
    }
    free_answers(&expected);
    problem_free(&p);
}

/* Queries may lie in one way, keys in another. */
static void test_queries_and_keys_packed_differently(void **state) {
    (void)state;
    problem p = random_problem(20, 90, 9);
    answers expected = solve(&p);
    static const packing hows[] = {
        {LAYOUT_HEAD_MAJOR, SNAPKV_F32, GUARD_AFTER, 1, 2, 0},
        {LAYOUT_POSITION_MAJOR, SNAPKV_F32, GUARD_BEFORE, 0, 1, 0},
        {LAYOUT_BLOCKS_BY_HEAD, SNAPKV_F32, GUARD_AFTER, 0, 3, 6},
        {LAYOUT_BLOCKS_BY_ROW, SNAPKV_F32, GUARD_BEFORE, 3, 0, 13},
    };
    for (size_t i = 0; i < 16; i++) {
        packed_free(&p.packed_queries);
        packed_free(&p.packed_keys);
        p.packed_queries = pack(p.queries, 6, 20, 9, hows[i % 4]);
        p.packed_keys = pack(p.keys, 2, 90, 9, hows[i / 4]);
        p.layer.queries = p.packed_queries.rows;
        p.layer.keys = p.packed_keys.rows;
        check_same(&p, &expected);
    }
    free_answers(&expected);
    problem_free(&p);
}

/* With one head nobody steps from head to head: what the stride says isn't read. */
static void test_head_stride_of_a_single_head(void **state) {
    (void)state;
    static const size_t strides[] = {0, 1, 4, SIZE_MAX};
    splitmix random = {5};
    problem p = problem_new(make_config(4, 9, 3), 1, 1, 50, 6);
    problem_fill(&p, &random, 4, 0);
    problem_pack_plainly(&p);
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    outcome expected = run_select(&p, 0, size, GUARD_AFTER);
    for (size_t i = 0; i < COUNT_OF(strides); i++) {
        p.layer.queries.head_stride = strides[i];
        p.layer.keys.head_stride = strides[i];
        p.layer.values.head_stride = strides[i];
        assert_ok(snapkv_check(&p.config, &p.layer));
        outcome o = run_select(&p, 0, size, GUARD_AFTER);
        assert_same_outcome(&o, &expected);
        outcome_free(&o);
    }
    outcome_free(&expected);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contiguous_layouts),
        cmocka_unit_test(test_paged_layouts),
        cmocka_unit_test(test_blocks_larger_than_any_prompt),
        cmocka_unit_test(test_queries_and_keys_packed_differently),
        cmocka_unit_test(test_head_stride_of_a_single_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
