/* snapkv_retained_mass() and snapkv_error_bound(). */
#include "check.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static problem random_problem(size_t n_query_heads, size_t n_kv_heads, size_t length,
                              size_t head_dim) {
    splitmix random = {length + head_dim};
    problem p = problem_new(make_config(5, 17, 3), n_query_heads, n_kv_heads, length, head_dim);
    problem_fill(&p, &random, 4, 1);
    problem_pack_plainly(&p);
    return p;
}

static float run_mass(const problem *p, size_t query_head, const float *query, size_t position,
                      const int32_t *kept, size_t n_kept, size_t workspace_size) {
    guard workspace = guard_new(workspace_size, GUARD_AFTER);
    guard list = guard_copy(kept, n_kept * sizeof(int32_t), GUARD_AFTER);
    guard row = guard_copy(query, p->layer.head_dim * sizeof(float), GUARD_AFTER);
    guard out = guard_new(sizeof(float), GUARD_AFTER);
    guard_freeze(&list);
    guard_freeze(&row);
    memset(workspace.data, 0xFF, workspace_size);
    assert_ok(snapkv_retained_mass(&p->config, &p->layer, query_head,
                                   (const float *)(void *)row.data, position,
                                   (const int32_t *)(void *)list.data, n_kept,
                                   (float *)(void *)out.data, workspace.data, workspace_size));
    float mass;
    memcpy(&mass, out.data, sizeof mass);
    guard_free(&workspace);
    guard_free(&list);
    guard_free(&row);
    guard_free(&out);
    return mass;
}

/* Against the reference with the full workspace; then the smallest must give the same bits. */
static float check_mass(const problem *p, size_t query_head, const float *query, size_t position,
                        const int32_t *kept, size_t n_kept) {
    float mass = run_mass(p, query_head, query, position, kept, n_kept,
                          snapkv_workspace_size(&p->config, &p->layer));
    float same = run_mass(p, query_head, query, position, kept, n_kept,
                          snapkv_workspace_min(&p->config, &p->layer));
    assert_close(mass, reference_retained_mass(p, query_head, query, position, kept, n_kept),
                 TOLERANCE);
    assert_memory_equal(&mass, &same, sizeof mass);
    assert_true(mass >= 0 && mass <= 1);
    return mass;
}

static float *random_query(splitmix *random, size_t head_dim) {
    float *query = new_array(head_dim, sizeof(float));
    for (size_t d = 0; d < head_dim; d++) {
        query[d] = splitmix_float(random, 4);
    }
    return query;
}

/* The list that selection gives, for queries at and after the end of the prompt. */
static void test_of_a_selection(void **state) {
    (void)state;
    static const size_t shapes[][4] = {
        {1, 1, 40, 1}, {4, 2, 60, 8}, {6, 1, 200, 3}, {3, 3, 97, 80}, {2, 1, 1000, 17}};
    splitmix random = {31};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        problem p = random_problem(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
        size_t group = shapes[i][0] / shapes[i][1];
        float *query = random_query(&random, shapes[i][3]);
        for (size_t head = 0; head < shapes[i][0]; head++) {
            outcome o = run_select(&p, head / group, snapkv_workspace_size(&p.config, &p.layer),
                                   GUARD_AFTER);
            float mass = check_mass(&p, head, query, shapes[i][2] - 1, o.kept, 17);
            assert_true(mass > 0 && mass < 1);
            /* Without ALiBi and span it doesn't matter where the query stands. */
            const size_t later[] = {shapes[i][2], shapes[i][2] + 99, INT32_MAX - 1, INT32_MAX};
            for (size_t k = 0; k < COUNT_OF(later); k++) {
                float same = check_mass(&p, head, query, later[k], o.kept, 17);
                assert_memory_equal(&same, &mass, sizeof mass);
            }
            outcome_free(&o);
        }
        free(query);
        problem_free(&p);
    }
}

static void test_lists_of_every_kind(void **state) {
    (void)state;
    problem p = random_problem(2, 1, 60, 8);
    splitmix random = {32};
    float *query = random_query(&random, 8);
    int32_t all[60];
    const int32_t some[5] = {3, 10, 11, 40, 59};
    const int32_t shuffled[5] = {40, 3, 59, 11, 10};
    const int32_t doubled[8] = {40, 3, 3, 59, 11, 10, 40, 40};
    for (size_t i = 0; i < 60; i++) {
        all[i] = (int32_t)(59 - i);
    }
    assert_close(check_mass(&p, 1, query, 60, all, 60), 1, 1e-6);
    assert_close(check_mass(&p, 1, query, 60, all, 0), 0, 1e-6);
    float mass = check_mass(&p, 1, query, 60, some, 5);
    float same = check_mass(&p, 1, query, 60, shuffled, 5);
    assert_close(same, mass, 1e-6);
    same = check_mass(&p, 1, query, 60, doubled, 8);
    assert_close(same, mass, 1e-6);
    free(query);
    problem_free(&p);
}

/* Options of the layer count as they do in the votes; the sink's share is always retained. */
static void test_layer_options(void **state) {
    (void)state;
    const float sinks[2] = {1, 2.5f};
    const float slopes[2] = {0.05f, 0.2f};
    const int32_t kept[6] = {0, 20, 33, 50, 55, 59};
    problem p = random_problem(2, 1, 60, 8);
    splitmix random = {33};
    float *query = random_query(&random, 8);
    for (size_t options = 0; options < 16; options++) {
        p.layer.softcap = options & 1 ? 0.7f : 0;
        p.layer.span = options & 2 ? 31 : 0;
        p.layer.sink_logits = NULL;
        p.layer.alibi_slopes = NULL;
        if (options & 4) {
            problem_set_sinks(&p, sinks);
        }
        if (options & 8) {
            problem_set_slopes(&p, slopes);
        }
        for (size_t head = 0; head < 2; head++) {
            for (size_t position = 59; position < 85; position += 5) {
                check_mass(&p, head, query, position, kept, 6);
                float alone = check_mass(&p, head, query, position, kept, 0);
                assert_true(options & 4 ? alone > 0 : alone < 1e-6f);
            }
        }
    }
    free(query);
    problem_free(&p);
}

/* Where the span has left the whole prompt behind there is no mass to lose. */
static void test_span_past_the_prompt(void **state) {
    (void)state;
    static const size_t positions[] = {69, 70, 71, 1000, INT32_MAX};
    problem p = random_problem(1, 1, 60, 8);
    const float query[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const int32_t kept[1] = {59};
    p.layer.span = 11;
    check_mass(&p, 0, query, 68, kept, 1);
    check_mass(&p, 0, query, 69, kept, 1); /* sees position 59 and no other */
    for (size_t i = 1; i < COUNT_OF(positions); i++) {
        float mass = run_mass(&p, 0, query, positions[i], kept, 1,
                              snapkv_workspace_size(&p.config, &p.layer));
        assert_close(mass, 1, 0);
    }
    problem_free(&p);
}

static void test_dtypes_and_layouts(void **state) {
    (void)state;
    static const snapkv_dtype dtypes[] = {SNAPKV_F32, SNAPKV_F16, SNAPKV_BF16, SNAPKV_CUSTOM};
    const int32_t kept[4] = {5, 17, 60, 99};
    problem p = random_problem(4, 2, 100, 13);
    splitmix random = {34};
    float *query = random_query(&random, 13);
    float expected = check_mass(&p, 3, query, 100, kept, 4);
    for (size_t i = 0; i < 16; i++) {
        packing how = {(layout)(i / 4), dtypes[i % 4], GUARD_AFTER, 1, 2, 9};
        problem_pack(&p, how);
        float mass = check_mass(&p, 3, query, 100, kept, 4);
        assert_memory_equal(&mass, &expected, sizeof mass);
    }
    free(query);
    problem_free(&p);
}

/* The bound holds for the attention that it speaks of. */
static void test_error_bound_bounds(void **state) {
    (void)state;
    problem p = random_problem(1, 1, 120, 6);
    splitmix random = {35};
    double *weights = new_array(120, sizeof(double));
    double largest = 0;
    for (size_t j = 0; j < 120; j++) {
        largest = fmax(largest, fabs((double)p.values[j * 6]));
    }
    for (size_t round = 0; round < 50; round++) {
        float *query = random_query(&random, 6);
        int32_t kept[30];
        double full = 0;
        double cut = 0;
        double held = 0;
        reference_weights(&p, 0, query, 120, weights);
        for (size_t j = 0; j < 120; j++) {
            full += weights[j] * (double)p.values[j * 6];
        }
        for (size_t i = 0; i < 30; i++) {
            kept[i] = (int32_t)(i * 4);
            cut += weights[kept[i]] * (double)p.values[kept[i] * 6];
            held += weights[kept[i]];
        }
        float mass = check_mass(&p, 0, query, 120, kept, 30);
        assert_true(fabs(full - cut / held) <=
                    (double)snapkv_error_bound(mass, (float)largest) + 1e-5);
        free(query);
    }
    free(weights);
    problem_free(&p);
}

static void test_error_bound(void **state) {
    (void)state;
    assert_close(snapkv_error_bound(1, 10), 0, 0);
    assert_close(snapkv_error_bound(0, 10), 20, 1e-6);
    assert_close(snapkv_error_bound(0.75f, 4), 2, 1e-6);
    assert_close(snapkv_error_bound(0.5f, 0), 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_of_a_selection),     cmocka_unit_test(test_lists_of_every_kind),
        cmocka_unit_test(test_layer_options),      cmocka_unit_test(test_span_past_the_prompt),
        cmocka_unit_test(test_dtypes_and_layouts), cmocka_unit_test(test_error_bound_bounds),
        cmocka_unit_test(test_error_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
