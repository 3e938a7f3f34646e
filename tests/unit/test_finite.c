/* NaN and infinity: found at every place that some query sees, and only there. */
#include "check.h"
#include "half.h"
#include "reference.h"

#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Two query heads on each of two K/V heads, 23 positions, W 3, C 9, D 5. */
static problem small_problem(void) {
    splitmix random = {51};
    problem p = problem_new(make_config(3, 9, 3), 4, 2, 23, 5);
    problem_fill(&p, &random, 4, 1);
    problem_pack_plainly(&p);
    return p;
}

static snapkv_status select_status(const problem *p, size_t set, int least) {
    size_t size = least ? snapkv_workspace_min(&p->config, &p->layer)
                        : snapkv_workspace_size(&p->config, &p->layer);
    outcome o = run_select(p, set, size, GUARD_AFTER);
    outcome_free(&o);
    return o.status;
}

/* Votes by the smallest workspace, which recomputes its logits, and by the full one. */
static snapkv_status vote_status(const problem *p, size_t query_head) {
    snapkv_status status[2];
    for (int least = 0; least < 2; least++) {
        size_t size = least ? snapkv_workspace_min(&p->config, &p->layer)
                            : snapkv_workspace_size(&p->config, &p->layer);
        guard workspace = guard_new(size, GUARD_AFTER);
        guard votes = guard_new(problem_prefix(p) * sizeof(float), GUARD_AFTER);
        status[least] = snapkv_vote(&p->config, &p->layer, query_head, (float *)(void *)votes.data,
                                    workspace.data, size);
        if (status[least] != SNAPKV_OK) {
            guard_check_untouched(&votes);
        }
        guard_free(&workspace);
        guard_free(&votes);
    }
    assert_status(status[1], status[0]);
    return status[0];
}

static void poke(packed *rows, size_t head, size_t row, size_t d, const void *bits,
                 size_t size) {
    guard_thaw(&rows->memory);
    memcpy(packed_row(rows, head, row) + d * size, bits, size);
    guard_freeze(&rows->memory);
}

/* Every float that isn't one: quiet and signalling NaN, of both signs and with payloads. */
static const uint32_t BAD_F32[] = {0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001,
                                   0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0xFF800000};
static const uint16_t BAD_F16[] = {0x7E00, 0xFE00, 0x7C01, 0xFC01, 0x7FFF, 0xFFFF, 0x7C00, 0xFC00};
static const uint16_t BAD_BF16[] = {0x7FC0, 0xFFC0, 0x7F81, 0xFF81, 0x7FFF, 0xFFFF, 0x7F80, 0xFF80};

static void check_places(problem *p, const void *bad, size_t size) {
    uint32_t good;
    for (size_t head = 0; head < 4; head++) {
        for (size_t row = 0; row < 3; row++) {
            for (size_t d = 0; d < 5; d++) {
                memcpy(&good, packed_row(&p->packed_queries, head, row) + d * size, size);
                poke(&p->packed_queries, head, row, d, bad, size);
                for (size_t other = 0; other < 4; other++) {
                    assert_status(vote_status(p, other),
                                  other == head ? SNAPKV_ERROR_NOT_FINITE : SNAPKV_OK);
                }
                assert_status(select_status(p, head / 2, d % 2), SNAPKV_ERROR_NOT_FINITE);
                assert_status(select_status(p, 1 - head / 2, d % 2), SNAPKV_OK);
                poke(&p->packed_queries, head, row, d, &good, size);
            }
        }
    }
    for (size_t head = 0; head < 2; head++) {
        for (size_t row = 0; row < 23; row++) {
            for (size_t d = 0; d < 5; d++) {
                memcpy(&good, packed_row(&p->packed_keys, head, row) + d * size, size);
                poke(&p->packed_keys, head, row, d, bad, size);
                assert_status(vote_status(p, head * 2 + 1), SNAPKV_ERROR_NOT_FINITE);
                assert_status(vote_status(p, (1 - head) * 2), SNAPKV_OK);
                assert_status(select_status(p, head, d % 2), SNAPKV_ERROR_NOT_FINITE);
                assert_status(select_status(p, 1 - head, d % 2), SNAPKV_OK);
                poke(&p->packed_keys, head, row, d, &good, size);
            }
        }
    }
    assert_status(select_status(p, 0, 0), SNAPKV_OK);
}

static void test_every_place_in_f32(void **state) {
    (void)state;
    problem p = small_problem();
    for (size_t i = 0; i < COUNT_OF(BAD_F32); i++) {
        check_places(&p, &BAD_F32[i], sizeof BAD_F32[i]);
    }
    problem_free(&p);
}

static void test_every_place_in_halves(void **state) {
    (void)state;
    packing how;
    memset(&how, 0, sizeof how);
    problem p = small_problem();
    for (size_t i = 0; i < COUNT_OF(BAD_F16); i++) {
        how.dtype = SNAPKV_F16;
        problem_pack(&p, how);
        check_places(&p, &BAD_F16[i], sizeof BAD_F16[i]);
        how.dtype = SNAPKV_BF16;
        problem_pack(&p, how);
        check_places(&p, &BAD_BF16[i], sizeof BAD_BF16[i]);
    }
    problem_free(&p);
}

static void decode_and_spoil(void *context, const void *row, size_t head, size_t position,
                             float *out, size_t head_dim) {
    decode_bytes(context, row, head, position, out, head_dim);
    if (*(const unsigned char *)row == 0) {
        out[head_dim - 1] = NAN;
    }
}

static inline void test_what_a_decoder_returns(void **state) {
    (void)state;
    packing how;
    memset(&how, 0, sizeof how);
    how.dtype = SNAPKV_CUSTOM;
    problem p = small_problem();
    problem_pack(&p, how);
    p.layer.keys.decode = decode_and_spoil;
    p.layer.queries.decode = decode_and_spoil;
    assert_status(select_status(&p, 0, 0), SNAPKV_OK);
    poke(&p.packed_keys, 1, 22, 0, "", 1);
    assert_status(select_status(&p, 0, 0), SNAPKV_OK);
    assert_status(select_status(&p, 1, 0), SNAPKV_ERROR_NOT_FINITE);
    poke(&p.packed_queries, 0, 2, 0, "", 1);
    assert_status(select_status(&p, 0, 1), SNAPKV_ERROR_NOT_FINITE);
    problem_free(&p);
}

/* The last element of the last row of a prompt that no tile or vector divides. */
static void test_last_element_of_the_last_row(void **state) {
    (void)state;
    static const size_t lengths[] = {33, 47, 48, 49, 95, 96, 97, 200, 1000, 1021};
    static const size_t dims[] = {1, 15, 16, 17, 80};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        for (size_t j = 0; j < COUNT_OF(dims); j++) {
            splitmix random = {i};
            problem p = problem_new(make_config(19, 25, 3), 2, 1, lengths[i], dims[j]);
            problem_fill(&p, &random, 2, 0);
            problem_pack_plainly(&p);
            poke(&p.packed_keys, 0, lengths[i] - 1, dims[j] - 1, &BAD_F32[i % 8], 4);
            assert_status(vote_status(&p, 0), SNAPKV_ERROR_NOT_FINITE);
            problem_pack_plainly(&p);
            assert_status(vote_status(&p, 1), SNAPKV_OK);
            poke(&p.packed_queries, 1, 18, dims[j] - 1, &BAD_F32[j], 4);
            assert_status(vote_status(&p, 0), SNAPKV_OK);
            assert_status(vote_status(&p, 1), SNAPKV_ERROR_NOT_FINITE);
            problem_free(&p);
        }
    }
}

/* Every position of a prompt of many tiles, most of which each query sees as a whole. */
static void test_every_position_of_a_long_prompt(void **state) {
    (void)state;
    for (int options = 0; options < 2; options++) {
        splitmix random = {53};
        problem p = problem_new(make_config(20, 60, 5), 1, 1, 330, 3);
        problem_fill(&p, &random, 4, 0);
        p.layer.softcap = options ? 20 : 0;
        problem_pack_plainly(&p);
        assert_status(vote_status(&p, 0), SNAPKV_OK);
        for (size_t row = 0; row < 330; row++) {
            float good = p.keys[row * 3 + row % 3];
            poke(&p.packed_keys, 0, row, row % 3, &BAD_F32[row % 8], 4);
            assert_status(vote_status(&p, 0), SNAPKV_ERROR_NOT_FINITE);
            poke(&p.packed_keys, 0, row, row % 3, &good, 4);
        }
        problem_free(&p);
    }
}

/* For a whole layer every head counts, the last one too. */
static void test_per_layer(void **state) {
    (void)state;
    problem p = small_problem();
    p.config.sharing = SNAPKV_PER_LAYER;
    assert_status(select_status(&p, 0, 0), SNAPKV_OK);
    poke(&p.packed_queries, 3, 2, 4, &BAD_F32[0], 4);
    assert_status(select_status(&p, 0, 0), SNAPKV_ERROR_NOT_FINITE);
    assert_status(select_status(&p, 0, 1), SNAPKV_ERROR_NOT_FINITE);
    problem_pack_plainly(&p);
    poke(&p.packed_keys, 1, 0, 0, &BAD_F32[6], 4);
    assert_status(select_status(&p, 0, 0), SNAPKV_ERROR_NOT_FINITE);
    problem_free(&p);
}

/* With a span of 8, the queries at 20, 21, 22 see positions from 13, 14 and 15 on. What lies before
 * is not examined, and can't change a bit. */
static void test_keys_that_nobody_sees(void **state) {
    (void)state;
    problem p = small_problem();
    p.layer.span = 8;
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    outcome expected = run_select(&p, 0, size, GUARD_AFTER);
    check_selection(&p, 0, &expected);
    for (size_t row = 0; row < 13; row++) {
        for (size_t d = 0; d < 5; d++) {
            poke(&p.packed_keys, 0, row, d, &BAD_F32[(row + d) % 8], 4);
        }
    }
    outcome o = run_select(&p, 0, size, GUARD_AFTER);
    assert_same_outcome(&o, &expected);
    outcome_free(&o);
    o = run_select(&p, 0, snapkv_workspace_min(&p.config, &p.layer), GUARD_AFTER);
    assert_same_outcome(&o, &expected);
    outcome_free(&o);
    outcome_free(&expected);
    /* The first that is seen, by the first query alone. */
    poke(&p.packed_keys, 0, 13, 4, &BAD_F32[0], 4);
    assert_status(select_status(&p, 0, 0), SNAPKV_ERROR_NOT_FINITE);
    assert_status(select_status(&p, 0, 1), SNAPKV_ERROR_NOT_FINITE);
    problem_free(&p);
}

/* The same on a prompt of many tiles, most of which nobody sees. */
static void test_far_keys_that_nobody_sees(void **state) {
    (void)state;
    splitmix random = {52};
    problem p = problem_new(make_config(20, 60, 5), 1, 1, 900, 16);
    problem_fill(&p, &random, 4, 0);
    problem_pack_plainly(&p);
    for (size_t span = 1; span < 900; span += 53) {
        p.layer.span = span;
        size_t first_seen = 880 - span + 1;
        size_t size = snapkv_workspace_size(&p.config, &p.layer);
        outcome expected = run_select(&p, 0, size, GUARD_AFTER);
        check_selection(&p, 0, &expected);
        for (size_t row = 0; row < first_seen && row < 900; row++) {
            poke(&p.packed_keys, 0, row, row % 16, &BAD_F32[row % 8], 4);
        }
        outcome o = run_select(&p, 0, size, GUARD_AFTER);
        assert_same_outcome(&o, &expected);
        outcome_free(&o);
        if (first_seen > 0 && first_seen < 900) {
            poke(&p.packed_keys, 0, first_seen, 15, &BAD_F32[0], 4);
            assert_status(select_status(&p, 0, 0), SNAPKV_ERROR_NOT_FINITE);
            assert_status(select_status(&p, 0, 1), SNAPKV_ERROR_NOT_FINITE);
        }
        outcome_free(&expected);
        problem_pack_plainly(&p);
    }
    problem_free(&p);
}

/* Logits beyond float between a query and a key that it doesn't see, though another query sees the
 * key: one behind the mask, one in front of the span. */
static void test_logits_that_nobody_sees(void **state) {
    (void)state;
    problem p = problem_new(make_config(2, 3, 1), 1, 1, 8, 2);
    p.layer.scale = 1;
    for (size_t j = 0; j < 8; j++) {
        p.keys[j * 2] = (float)j / 8;
    }
    /* Query 6 times key 7 would overflow. */
    p.queries[0] = 1;
    p.queries[1] = FLT_MAX / 2;
    p.queries[2] = 1;
    p.keys[7 * 2 + 1] = FLT_MAX / 4;
    problem_pack_plainly(&p);
    assert_status(vote_status(&p, 0), SNAPKV_OK);
    double expected[6];
    reference_votes(&p, 0, expected);
    float *votes = run_vote(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_all_close(votes, expected, 6);
    free(votes);

    /* Query 7 times key 3 would, and query 6 sees it as its last. */
    p.layer.span = 4;
    p.queries[1] = 0;
    p.queries[3] = FLT_MAX / 2;
    p.keys[7 * 2 + 1] = 0;
    p.keys[3 * 2 + 1] = FLT_MAX / 4;
    problem_pack_plainly(&p);
    assert_status(vote_status(&p, 0), SNAPKV_OK);
    reference_votes(&p, 0, expected);
    votes = run_vote(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_all_close(votes, expected, 6);
    free(votes);
    p.layer.span = 5;
    assert_status(vote_status(&p, 0), SNAPKV_ERROR_NOT_FINITE);
    problem_free(&p);
}

/* Finite numbers with a dot product that isn't; a soft cap must not make it look like one. */
static void test_dot_products_beyond_float(void **state) {
    (void)state;
    for (int capped = 0; capped < 2; capped++) {
        problem p = problem_new(make_config(2, 3, 1), 1, 1, 8, 2);
        p.layer.softcap = capped ? 5 : 0;
        p.layer.scale = 1;
        p.queries[0] = p.queries[2] = 1e30f;
        problem_pack_plainly(&p);
        assert_status(vote_status(&p, 0), SNAPKV_OK);
        for (int sign = 0; sign < 2; sign++) {
            p.keys[3 * 2] = sign ? -1e30f : 1e30f;
            problem_pack_plainly(&p);
            assert_status(vote_status(&p, 0), SNAPKV_ERROR_NOT_FINITE);
        }
        /* Two infinite halves of opposite sign. */
        p.queries[1] = p.queries[3] = 1e30f;
        p.keys[3 * 2 + 1] = 1e30f;
        problem_pack_plainly(&p);
        assert_status(vote_status(&p, 0), SNAPKV_ERROR_NOT_FINITE);
        problem_free(&p);
    }
}

/* An infinite key times a query of zero, which no product of finite numbers is. */
static void test_infinity_times_zero(void **state) {
    (void)state;
    problem p = small_problem();
    memset(p.queries, 0, 4 * 3 * 5 * sizeof(float));
    problem_pack_plainly(&p);
    assert_status(select_status(&p, 0, 0), SNAPKV_OK);
    poke(&p.packed_keys, 0, 4, 2, &BAD_F32[6], 4);
    assert_status(select_status(&p, 0, 0), SNAPKV_ERROR_NOT_FINITE);
    p.layer.softcap = 10;
    assert_status(select_status(&p, 0, 0), SNAPKV_ERROR_NOT_FINITE);
    problem_free(&p);
}

/* A soft cap would turn an infinite logit into a finite one. */
static void test_soft_cap_hides_nothing(void **state) {
    (void)state;
    problem p = small_problem();
    p.layer.softcap = 10;
    for (size_t i = 0; i < COUNT_OF(BAD_F32); i++) {
        problem_pack_plainly(&p);
        poke(&p.packed_keys, 1, 7, 0, &BAD_F32[i], 4);
        assert_status(select_status(&p, 1, 0), SNAPKV_ERROR_NOT_FINITE);
        assert_status(select_status(&p, 1, 1), SNAPKV_ERROR_NOT_FINITE);
    }
    problem_free(&p);
}

/* Slopes that carry a finite logit beyond float. */
static void test_alibi_beyond_float(void **state) {
    (void)state;
    const float steep[4] = {3e38f, -3e38f, 0, 0};
    problem p = small_problem();
    problem_set_slopes(&p, steep);
    assert_status(vote_status(&p, 0), SNAPKV_ERROR_NOT_FINITE);
    assert_status(vote_status(&p, 1), SNAPKV_ERROR_NOT_FINITE);
    assert_status(vote_status(&p, 2), SNAPKV_OK);
    /* Nobody looks further than one back. */
    p.layer.span = 2;
    assert_status(vote_status(&p, 0), SNAPKV_OK);
    problem_free(&p);
}

/* A bypassed prompt isn't read. */
static void test_bypass_examines_nothing(void **state) {
    (void)state;
    problem p = small_problem();
    p.config.capacity = 24;
    poke(&p.packed_keys, 0, 4, 2, &BAD_F32[0], 4);
    assert_status(select_status(&p, 0, 0), SNAPKV_OK);
    problem_free(&p);
}

/* On a bad number in place of the cache, the cache is still there. */
static void test_compress_in_place_changes_nothing(void **state) {
    (void)state;
    problem p = small_problem();
    poke(&p.packed_keys, 0, 22, 4, &BAD_F32[0], 4);
    guard_thaw(&p.packed_keys.memory);
    guard_thaw(&p.packed_values.memory);
    guard keys = guard_copy(p.packed_keys.memory.data, p.packed_keys.memory.size, GUARD_AFTER);
    guard values =
        guard_copy(p.packed_values.memory.data, p.packed_values.memory.size, GUARD_AFTER);
    guard kept = guard_new(9 * sizeof(int32_t), GUARD_AFTER);
    guard selection = guard_new(sizeof(snapkv_selection), GUARD_AFTER);
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    guard workspace = guard_new(size, GUARD_AFTER);
    snapkv_rows_out keys_out = {p.packed_keys.memory.data, 23 * 20, 20, NULL, 0, 0};
    snapkv_rows_out values_out = {p.packed_values.memory.data, 23 * 20, 20, NULL, 0, 0};
    assert_status(snapkv_compress(&p.config, &p.layer, 0, (int32_t *)(void *)kept.data, &keys_out,
                                  &values_out, (snapkv_selection *)(void *)selection.data,
                                  workspace.data, size),
                  SNAPKV_ERROR_NOT_FINITE);
    assert_memory_equal(p.packed_keys.memory.data, keys.data, keys.size);
    assert_memory_equal(p.packed_values.memory.data, values.data, values.size);
    guard_check_untouched(&kept);
    guard_check_untouched(&selection);
    guard_free(&keys);
    guard_free(&values);
    guard_free(&kept);
    guard_free(&selection);
    guard_free(&workspace);
    problem_free(&p);
}

/* The later query, and every key that it sees, kept or not. */
static void test_retained_mass(void **state) {
    (void)state;
    const int32_t kept[2] = {3, 22};
    problem p = small_problem();
    size_t size = snapkv_workspace_size(&p.config, &p.layer);
    guard workspace = guard_new(size, GUARD_AFTER);
    guard mass = guard_new(sizeof(float), GUARD_AFTER);
    float *out = (float *)(void *)mass.data;
    for (size_t i = 0; i < COUNT_OF(BAD_F32); i++) {
        for (size_t d = 0; d < 5; d++) {
            float query[5] = {1, 2, 3, 4, 5};
            memcpy(&query[d], &BAD_F32[i], 4);
            assert_status(snapkv_retained_mass(&p.config, &p.layer, 1, query, 23, kept, 2, out,
                                               workspace.data, size),
                          SNAPKV_ERROR_NOT_FINITE);
        }
        const float query[5] = {1, 2, 3, 4, 5};
        for (size_t row = 0; row < 23; row++) {
            problem_pack_plainly(&p);
            poke(&p.packed_keys, 0, row, row % 5, &BAD_F32[i], 4);
            assert_status(snapkv_retained_mass(&p.config, &p.layer, 1, query, 23, kept, 2, out,
                                               workspace.data, size),
                          SNAPKV_ERROR_NOT_FINITE);
        }
        problem_pack_plainly(&p);
    }
    guard_check_untouched(&mass);

    /* Out of its span a key isn't looked at. */
    const float query[5] = {1, 2, 3, 4, 5};
    p.layer.span = 8;
    poke(&p.packed_keys, 0, 15, 0, &BAD_F32[0], 4);
    assert_ok(snapkv_retained_mass(&p.config, &p.layer, 1, query, 23, kept, 2, out, workspace.data,
                                   size));
    poke(&p.packed_keys, 0, 16, 0, &BAD_F32[0], 4);
    assert_status(
        snapkv_retained_mass(&p.config, &p.layer, 1, query, 23, kept, 2, out, workspace.data, size),
        SNAPKV_ERROR_NOT_FINITE);
    guard_free(&workspace);
    guard_free(&mass);
    problem_free(&p);
}

/* A caller that traps them must not be stopped by lanes without a query. */
static inline void test_no_exception_is_raised(void **state) {
    (void)state;
    static const size_t windows[] = {1, 5, 8, 16, 33};
    static const float sinks[2] = {-1, 30};
    static const float slopes[2] = {0.5f, 0.01f};
    const int traps = FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW;
    splitmix random = {77};
    for (size_t i = 0; i < COUNT_OF(windows) * 2; i++) {
        const size_t window = windows[i / 2];
        problem p = problem_new(make_config(window, window + 30, 5), 2, 1, 150, 7);
        problem_fill(&p, &random, 60, 0);
        problem_pack_plainly(&p);
        if (i % 2) {
            p.layer.softcap = 20;
            p.layer.span = 100;
            problem_set_sinks(&p, sinks);
            problem_set_slopes(&p, slopes);
        }
        const size_t size = snapkv_workspace_size(&p.config, &p.layer);
        guard workspace = guard_new(size, GUARD_AFTER);
        int32_t *kept = new_array(window + 30, sizeof *kept);
        float mass;
        feclearexcept(FE_ALL_EXCEPT);
        assert_ok(snapkv_select(&p.config, &p.layer, 0, kept, NULL, NULL, workspace.data, size));
        assert_ok(snapkv_retained_mass(&p.config, &p.layer, 1, p.queries, 150, kept, window + 30,
                                       &mass, workspace.data, size));
        assert_int_equal(fetestexcept(traps), 0);
        free(kept);
        guard_free(&workspace);
        problem_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_place_in_f32),
        cmocka_unit_test(test_every_place_in_halves),
        cmocka_unit_test(test_last_element_of_the_last_row),
        cmocka_unit_test(test_every_position_of_a_long_prompt),
        cmocka_unit_test(test_per_layer),
        cmocka_unit_test(test_keys_that_nobody_sees),
        cmocka_unit_test(test_far_keys_that_nobody_sees),
        cmocka_unit_test(test_logits_that_nobody_sees),
        cmocka_unit_test(test_dot_products_beyond_float),
        cmocka_unit_test(test_infinity_times_zero),
        cmocka_unit_test(test_soft_cap_hides_nothing),
        cmocka_unit_test(test_alibi_beyond_float),
        cmocka_unit_test(test_bypass_examines_nothing),
        cmocka_unit_test(test_compress_in_place_changes_nothing),
        cmocka_unit_test(test_retained_mass),
#ifndef __FAST_MATH__ /* where the compiler may divide before it looks, and -0 isn't kept */
        cmocka_unit_test(test_no_exception_is_raised),
        cmocka_unit_test(test_what_a_decoder_returns),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
