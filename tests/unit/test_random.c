/* Thousands of random configurations against the reference: sizes, policy, layer options, layout,
 * dtype and workspace drawn together, because faults hide in combinations. */
#include "check.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_PROBLEMS 4000

/* Mostly small; sometimes so long that several tiles and windows beyond a vector take part. */
static size_t draw_window(splitmix *random) {
    return splitmix_between(random, 1, splitmix_once_in(random, 4) ? 70 : 12);
}

static size_t draw_prefix(splitmix *random) {
    return splitmix_between(random, 1, splitmix_once_in(random, 10) ? 600 : 90);
}

static size_t draw_head_dim(splitmix *random) {
    static const size_t usual[] = {1, 2, 3, 4, 8, 16, 24, 32, 64, 80};
    return splitmix_once_in(random, 3) ? splitmix_between(random, 1, 40)
                                       : usual[splitmix_between(random, 0, COUNT_OF(usual) - 1)];
}

static snapkv_config draw_config(splitmix *random, size_t window, size_t recent, size_t prefix) {
    snapkv_config config = make_config(window, 0, 0);
    config.n_recent = recent == window && splitmix_once_in(random, 2) ? 0 : recent;
    config.voting = splitmix_once_in(random, 3) ? SNAPKV_VOTE_MAX : SNAPKV_VOTE_SUM;
    /* From one prefix position to a little more than there are: bypassed then. */
    config.capacity = recent + splitmix_between(random, 1, prefix + prefix / 8 + 1);
    config.n_sink =
        splitmix_once_in(random, 3) ? splitmix_between(random, 0, config.capacity - recent - 1) : 0;
    config.kernel_size = 2 * splitmix_between(random, 0, 4) + 1;
    if (splitmix_once_in(random, 12)) {
        config.kernel_size = 2 * splitmix_between(random, 0, prefix) + 1;
    }
    config.pooling = splitmix_once_in(random, 3) ? SNAPKV_POOL_MAX : SNAPKV_POOL_AVG;
    config.order = splitmix_once_in(random, 2) ? SNAPKV_BY_SCORE : SNAPKV_BY_POSITION;
    config.sharing = (snapkv_sharing)splitmix_between(random, 0, 2);
    config.reduce = splitmix_once_in(random, 3) ? SNAPKV_REDUCE_MAX : SNAPKV_REDUCE_MEAN;
    return config;
}

static void draw_layer_options(splitmix *random, problem *p) {
    float numbers[32];
    if (splitmix_once_in(random, 4)) {
        /* Logits up to about 12: beyond some 50, rounding them alone costs 1e-5 of the weights. */
        p->layer.scale = (splitmix_float(random, 2) + 1.1f) / sqrtf((float)p->layer.head_dim);
    }
    if (splitmix_once_in(random, 4)) {
        p->layer.softcap = splitmix_float(random, 10) + 5.5f;
    }
    if (splitmix_once_in(random, 4)) {
        p->layer.span = splitmix_between(random, 1, p->layer.length + 2);
    } else if (splitmix_once_in(random, 4)) {
        p->layer.chunk = splitmix_between(random, 1, p->layer.length + 2);
    }
    if (splitmix_once_in(random, 4)) {
        for (size_t i = 0; i < p->layer.n_query_heads; i++) {
            numbers[i] = splitmix_float(random, 10);
        }
        problem_set_sinks(p, numbers);
    }
    if (splitmix_once_in(random, 4)) {
        for (size_t i = 0; i < p->layer.n_query_heads; i++) {
            numbers[i] = splitmix_float(random, 0.1);
        }
        problem_set_slopes(p, numbers);
    }
}

/* Rows with gaps between them, now and then wide ones; the voters anywhere, from before the first
 * row to behind the last. */
static void draw_positions(splitmix *random, problem *p) {
    size_t length = p->layer.length;
    int32_t *rows = new_array(length, sizeof *rows);
    int32_t *voters = new_array(p->config.window, sizeof *voters);
    size_t at = splitmix_between(random, 0, 3);
    for (size_t i = 0; i < length; i++) {
        rows[i] = (int32_t)at;
        at += splitmix_once_in(random, 8) ? splitmix_between(random, 1, 40) : 1;
    }
    if (splitmix_once_in(random, 4)) {
        problem_set_key_positions(p, rows);
    } else {
        at = length;
    }
    size_t lowest = splitmix_once_in(random, 2) ? at : splitmix_between(random, 0, at);
    for (size_t i = 0; i < p->config.window; i++) {
        lowest += splitmix_once_in(random, 3) ? 0 : 1; /* several may stand at one position */
        voters[i] = (int32_t)lowest;
    }
    if (splitmix_once_in(random, 4)) {
        problem_set_query_positions(p, voters);
    }
    free(rows);
    free(voters);
}

static packing draw_packing(splitmix *random, int coarse) {
    packing how;
    how.layout = (layout)splitmix_between(random, 0, 3);
    how.dtype = coarse ? (snapkv_dtype)splitmix_between(random, 0, 3) : SNAPKV_F32;
    how.side = splitmix_once_in(random, 2) ? GUARD_BEFORE : GUARD_AFTER;
    how.lead = splitmix_between(random, 0, 3);
    how.pad = splitmix_between(random, 0, 3);
    how.block_rows = splitmix_between(random, 1, 40);
    return how;
}

static problem draw_problem(splitmix *random) {
    size_t n_kv_heads = splitmix_between(random, 1, 3);
    size_t group = splitmix_between(random, 1, 4);
    size_t window = draw_window(random);
    size_t prefix = draw_prefix(random);
    size_t recent = window;
    size_t length = window + prefix;
    if (splitmix_once_in(random, 3)) { /* whoever votes, others may be pinned: fewer, or more */
        recent = splitmix_between(random, 1, length - 1);
    }
    snapkv_config config = draw_config(random, window, recent, length - recent);
    problem p =
        problem_new(config, n_kv_heads * group, n_kv_heads, length, draw_head_dim(random));
    int coarse = splitmix_once_in(random, 3);
    problem_fill(&p, random, 4, coarse);
    draw_layer_options(random, &p);
    draw_positions(random, &p);
    problem_pack(&p, draw_packing(random, coarse));
    return p;
}

static size_t draw_workspace(splitmix *random, const problem *p) {
    size_t least = snapkv_workspace_min(&p->config, &p->layer);
    size_t full = snapkv_workspace_size(&p->config, &p->layer);
    switch (splitmix_between(random, 0, 2)) {
    case 0:
        return least;
    case 1:
        return full;
    default:
        return splitmix_between(random, least / 4, full / 4) * 4;
    }
}

static void check_votes(splitmix *random, const problem *p) {
    size_t head = splitmix_between(random, 0, p->layer.n_query_heads - 1);
    double *expected = new_array(problem_prefix(p), sizeof(double));
    float *votes = run_vote(p, head, draw_workspace(random, p), p->packed_keys.how.side);
    reference_votes(p, head, expected);
    assert_all_close(votes, expected, problem_prefix(p));
    free(votes);
    free(expected);
}

/* K and V of a per-head set, byte for byte. */
static void check_compress(splitmix *random, const problem *p, size_t set, const int32_t *kept) {
    size_t n_kept = problem_kept_count(p);
    size_t row_bytes = p->packed_keys.row_bytes;
    size_t n_heads = problem_set_count(p);
    size_t stride = row_bytes + splitmix_between(random, 0, 5);
    size_t source = set / (n_heads / p->layer.n_kv_heads);
    size_t workspace_size = draw_workspace(random, p);
    guard keys = guard_new(n_heads * n_kept * stride, GUARD_AFTER);
    guard values = guard_new(n_heads * n_kept * stride, GUARD_BEFORE);
    guard list = guard_new(n_kept * sizeof(int32_t), GUARD_AFTER);
    guard workspace = guard_new(workspace_size, GUARD_AFTER);
    snapkv_rows_out keys_out = {keys.data, n_kept * stride, stride, NULL, 0, 0};
    snapkv_rows_out values_out = {values.data, n_kept * stride, stride, NULL, 0, 0};
    assert_ok(snapkv_compress(&p->config, &p->layer, set, (int32_t *)(void *)list.data, &keys_out,
                              &values_out, NULL, workspace.data, workspace_size));
    assert_memory_equal(list.data, kept, list.size);
    for (size_t i = 0; i < n_kept; i++) {
        size_t at = (set * n_kept + i) * stride;
        size_t position = (size_t)kept[i];
        assert_memory_equal(keys.data + at, packed_row(&p->packed_keys, source, position),
                            row_bytes);
        assert_memory_equal(values.data + at, packed_row(&p->packed_values, source, position),
                            row_bytes);
    }
    guard_free(&keys);
    guard_free(&values);
    guard_free(&list);
    guard_free(&workspace);
}

/* Scores, list and coverage one by one, and the gather behind them: the bits of one call. */
static void check_steps(splitmix *random, const problem *p, size_t set, const outcome *o) {
    const snapkv_config *config = &p->config;
    size_t n = problem_prefix(p), n_kept = problem_kept_count(p);
    size_t size = draw_workspace(random, p);
    size_t heads = p->config.sharing == SNAPKV_PER_QUERY_HEAD ? p->layer.n_query_heads
                                                              : p->layer.n_kv_heads;
    size_t stride = p->packed_keys.row_bytes;
    guard scores = guard_new(n * sizeof(float), GUARD_AFTER);
    guard votes = guard_new(n * sizeof(float), GUARD_BEFORE);
    guard kept = guard_new(n_kept * sizeof(int32_t), GUARD_AFTER);
    guard workspace = guard_new(size, GUARD_AFTER);
    guard moved[4];
    snapkv_rows_out outs[4];
    float coverage;
    assert_ok(snapkv_score(config, &p->layer, set, (float *)(void *)scores.data,
                           (float *)(void *)votes.data, workspace.data, size));
    assert_memory_equal(scores.data, o->scores, scores.size);
    assert_ok(snapkv_keep(config, p->layer.length, (const float *)(void *)scores.data,
                          n_kept - problem_recent(p) - config->n_sink,
                          (int32_t *)(void *)kept.data));
    assert_memory_equal(kept.data, o->kept, kept.size);
    assert_ok(snapkv_coverage(config, p->layer.length, (const float *)(void *)votes.data, o->kept,
                              n_kept, &coverage));
    assert_memory_equal(&coverage, &o->selection.coverage, sizeof coverage);
    for (int i = 0; i < 4; i++) {
        moved[i] = guard_new(heads * n_kept * stride, GUARD_AFTER);
        memset(&outs[i], 0, sizeof outs[i]);
        outs[i].data = moved[i].data;
        outs[i].row_stride = stride;
        outs[i].head_stride = n_kept * stride;
    }
    assert_ok(snapkv_gather(config, &p->layer, set, o->kept, n_kept, &outs[0], &outs[1]));
    assert_ok(snapkv_compress(config, &p->layer, set, (int32_t *)(void *)kept.data, &outs[2],
                              &outs[3], NULL, workspace.data, size));
    assert_memory_equal(kept.data, o->kept, kept.size);
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(moved[i].data, moved[i + 2].data, moved[i].size);
        guard_free(&moved[i]);
        guard_free(&moved[i + 2]);
    }
    guard_free(&scores);
    guard_free(&votes);
    guard_free(&kept);
    guard_free(&workspace);
}

/* Of the unambiguous ones, enough must be real choices. */
static void test_random_problems(void **state) {
    (void)state;
    size_t n_chosen = 0;
    size_t n_unambiguous = 0;
    for (size_t i = 0; i < N_PROBLEMS; i++) {
        splitmix random = {i};
        problem p = draw_problem(&random);
        /* Should anything below fail, this says what to run again. */
        if (getenv("SNAPKV_RANDOM_TRACE")) {
            print_message("problem %lu\n", (unsigned long)i);
        }
        assert_ok(snapkv_check(&p.config, &p.layer));
        check_votes(&random, &p);
        size_t set = splitmix_between(&random, 0, problem_set_count(&p) - 1);
        outcome o = run_select(&p, set, draw_workspace(&random, &p), p.packed_keys.how.side);
        int unambiguous = check_selection(&p, set, &o);
        if (!o.selection.bypassed) {
            n_chosen++;
            n_unambiguous += (size_t)unambiguous;
            check_steps(&random, &p, set, &o);
        }
        if (p.config.sharing != SNAPKV_PER_LAYER && i % 4 == 0) {
            check_compress(&random, &p, set, o.kept);
        }
        outcome_free(&o);
        problem_free(&p);
    }
    print_message("%lu selections, %lu of them unambiguous\n", (unsigned long)n_chosen,
                  (unsigned long)n_unambiguous);
    assert_true(n_chosen > N_PROBLEMS * 3 / 4);
    assert_true(n_unambiguous > n_chosen * 3 / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_problems),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
