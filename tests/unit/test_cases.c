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

/* The steps: the scores of all sets, one budget, a list of its own each. */
static void check_budget(test_case *c, size_t workspace_size) {
    const problem *p = &c->p;
    size_t n_sets = problem_set_count(p);
    size_t prefix = problem_prefix(p);
    size_t n_sink = p->config.n_sink;
    float *scores = new_array(n_sets * prefix, sizeof *scores);
    void *workspace = new_array(workspace_size, 1);
    snapkv_list lists[MAX_HEADS];
    size_t counts[MAX_HEADS];
    for (size_t set = 0; set < n_sets; set++) {
        float *own = scores + set * prefix;
        assert_ok(snapkv_score(&p->config, &p->layer, set, own, NULL, workspace, workspace_size));
        lists[set].scores = own + n_sink;
        lists[set].n = prefix - n_sink;
    }
    assert_ok(snapkv_allocate(lists, n_sets, c->budget, c->least, counts));
    for (size_t set = 0; set < n_sets; set++) {
        size_t n_kept = n_sink + counts[set] + problem_recent(p);
        int32_t *kept = new_array(n_kept, sizeof *kept);
        assert_int_equal(counts[set], c->counts[set]);
        assert_ok(
            snapkv_keep(&p->config, p->layer.length, scores + set * prefix, counts[set], kept));
        assert_indices(kept, c->own[set], n_kept);
        free(kept);
    }
    free(workspace);
    free(scores);
}

static void test_every_case(void **state) {
    (void)state;
    FILE *file = fopen(CASE_FILE, "r");
    assert_non_null(file);
    test_case c;
    size_t n = 0;
    size_t n_budgets = 0;
    while (case_read(file, &c)) {
        print_message("%s\n", c.name);
        assert_ok(snapkv_check(&c.p.config, &c.p.layer));
        const size_t sizes[2] = {snapkv_workspace_size(&c.p.config, &c.p.layer),
                                 snapkv_workspace_min(&c.p.config, &c.p.layer)};
        for (size_t i = 0; i < 2; i++) {
            check_votes(&c, sizes[i]);
            check_sets(&c, sizes[i]);
            if (c.has_budget) {
                check_budget(&c, sizes[i]);
                n_budgets++;
            }
        }
        case_free(&c);
        n++;
    }
    fclose(file);
    assert_true(n >= 46 && n_budgets == 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
