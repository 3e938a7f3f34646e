/* The double-precision reference against the answers of an independent implementation: whatever the
 * other tests compare with is itself compared here. No function of the library runs. */
#include "case_file.h"
#include "check.h"
#include "half.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>

/* The file prints nine digits. */
static void assert_printed(const double *actual, const double *expected, size_t n) {
    for (size_t i = 0; i < n; i++) {
        assert_close(actual[i], expected[i], 1e-8 * fabs(expected[i]));
    }
}

static void check_votes(test_case *c) {
    size_t prefix = problem_prefix(&c->p);
    double *votes = new_array(prefix, sizeof(double));
    for (size_t head = 0; head < c->p.layer.n_query_heads; head++) {
        reference_votes(&c->p, head, votes);
        if (c->votes[head]) {
            assert_printed(votes, c->votes[head], prefix);
        }
        if (c->has_votes_sum[head]) {
            double sum = 0;
            for (size_t j = 0; j < prefix; j++) {
                sum += votes[j];
            }
            assert_printed(&sum, &c->votes_sum[head], 1);
        }
    }
    free(votes);
}

static void check_sets(test_case *c) {
    size_t prefix = problem_prefix(&c->p);
    double *scores = new_array(prefix, sizeof(double));
    int32_t *kept = new_array(problem_kept_count(&c->p), sizeof(int32_t));
    for (size_t set = 0; set < problem_set_count(&c->p); set++) {
        reference_scores(&c->p, set, scores);
        if (c->scores[set]) {
            assert_printed(scores, c->scores[set], prefix);
        }
        assert_true(reference_unambiguous(&c->p, scores));
        reference_kept(&c->p, scores, kept);
        assert_non_null(c->kept[set]);
        assert_indices(kept, c->kept[set], problem_kept_count(&c->p));
    }
    free(scores);
    free(kept);
}

static void test_reference_solves_every_case(void **state) {
    (void)state;
    FILE *file = fopen(CASE_FILE, "r");
    assert_non_null(file);
    test_case c;
    size_t n = 0;
    while (case_read(file, &c)) {
        check_votes(&c);
        check_sets(&c);
        case_free(&c);
        n++;
    }
    fclose(file);
    assert_true(n >= 29);
}

static void test_halves(void **state) {
    (void)state;
    assert_int_equal(f16_encode(1.0f), 0x3C00);
    assert_int_equal(f16_encode(-2.5f), 0xC100);
    assert_int_equal(f16_encode(65504.0f), 0x7BFF);
    assert_int_equal(f16_encode(ldexpf(1, -24)), 0x0001);
    assert_int_equal(f16_encode(ldexpf(1, -14)), 0x0400);
    assert_int_equal(bf16_encode(1.0f), 0x3F80);
    assert_int_equal(bf16_encode(-2.5f), 0xC020);
    for (unsigned half = 0; half < 0x10000; half++) {
        float f16 = f16_decode((uint16_t)half);
        float bf16 = bf16_decode((uint16_t)half);
        if (isfinite(f16)) {
            assert_int_equal(f16_encode(f16), half);
        }
        if (isfinite(bf16)) {
            union {
                uint32_t bits;
                float value;
            } pun = {(uint32_t)half << 16};
            assert_memory_equal(&bf16, &pun.value, sizeof bf16);
            assert_int_equal(bf16_encode(bf16), half);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_solves_every_case),
        cmocka_unit_test(test_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
