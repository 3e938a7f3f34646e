/* Every case of tests/vectors/cases.txt, between guard pages, with both workspace sizes. */
#include "case_file.h"
#include "check.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>

static void check_votes(test_case *c, size_t workspace_size) {
    size_t prefix = problem_prefix(&c->p);
    for (size_t head = 0; head < c->p.layer.n_query_heads; head++) {
        if (!c->votes[head] && !c->has_votes_sum[head]) {
            continue;
        }
        float *votes = run_vote(&c->p, head, workspace_size, GUARD_AFTER);
        if (c->votes[head]) {
            assert_all_close(votes, c->votes[head], prefix);
        } else {
            double sum = 0;
            for (size_t j = 0; j < prefix; j++) {
                sum += (double)votes[j];
            }
            assert_close(sum, c->votes_sum[head], TOLERANCE * c->votes_sum[head]);
        }
        free(votes);
    }
}

static void check_sets(test_case *c, size_t workspace_size) {
    size_t n_sets = problem_set_count(&c->p);
    size_t n_kept = problem_kept_count(&c->p);
    assert_int_equal(snapkv_set_count(&c->p.config, &c->p.layer), n_sets);
    assert_int_equal(snapkv_kept_count(&c->p.config, c->p.layer.length), n_kept);
    for (size_t set = 0; set < n_sets; set++) {
        outcome o = run_select(&c->p, set, workspace_size, GUARD_AFTER);
        assert_int_equal(o.status, SNAPKV_OK);
        if (c->scores[set]) {
            assert_all_close(o.scores, c->scores[set], o.n_scores);
        }
        assert_indices(o.kept, c->kept[set], n_kept);
        outcome_free(&o);
    }
}

static void test_every_case(void **state) {
    (void)state;
    FILE *file = fopen(CASE_FILE, "r");
    assert_non_null(file);
    test_case c;
    size_t n = 0;
    while (case_read(file, &c)) {
        print_message("%s\n", c.name);
        assert_ok(snapkv_check(&c.p.config, &c.p.layer));
        const size_t sizes[2] = {snapkv_workspace_size(&c.p.config, &c.p.layer),
                                 snapkv_workspace_min(&c.p.config, &c.p.layer)};
        for (size_t i = 0; i < 2; i++) {
            check_votes(&c, sizes[i]);
            check_sets(&c, sizes[i]);
        }
        case_free(&c);
        n++;
    }
    fclose(file);
    assert_true(n >= 29);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
