/* A prompt of 2^20 tokens: the whole selection held to the double-precision reference, with the
 * widest and the narrowest workspace. */
#include "check.h"
#include "reference.h"

#include <stdlib.h>
#include <string.h>

#define LENGTH   ((size_t)1 << 20)
#define CAPACITY ((size_t)65536)

/* Two query heads that share a K/V head; the prompt has no structure, so that scores lie close. */
static problem long_problem(size_t window, snapkv_order order) {
    splitmix random = {window};
    problem p = problem_new(make_config(window, CAPACITY, 5), 2, 1, LENGTH, 8);
    p.config.order = order;
    p.config.n_sink = 4;
    problem_fill(&p, &random, 4, 0);
    problem_pack_plainly(&p);
    return p;
}

static void check_window(size_t window, snapkv_order order) {
    problem p = long_problem(window, order);
    assert_ok(snapkv_check(&p.config, &p.layer));
    outcome full = run_select(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    outcome least = run_select(&p, 0, snapkv_workspace_min(&p.config, &p.layer), GUARD_BEFORE);
    assert_same_outcome(&full, &least);
    check_selection(&p, 0, &full);
    assert_int_equal(full.n_kept, CAPACITY);
    print_message("window %lu: coverage %.4f\n", (unsigned long)window,
                  (double)full.selection.coverage);
    outcome_free(&full);
    outcome_free(&least);
    problem_free(&p);
}

static void test_window_32(void **state) {
    (void)state;
    check_window(32, SNAPKV_BY_POSITION);
}

static void test_window_64(void **state) {
    (void)state;
    check_window(64, SNAPKV_BY_SCORE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window_32),
        cmocka_unit_test(test_window_64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
