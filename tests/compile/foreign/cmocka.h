/* The part of cmocka that the unit tests use, for the processors that the tests are cross-compiled
 * for: the first failure ends the program. On this machine they run with cmocka itself. */
#ifndef TESTS_FOREIGN_CMOCKA_H
#define TESTS_FOREIGN_CMOCKA_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(function) {#function, function}

#define print_message(...) printf(__VA_ARGS__)
#define print_error(...)   printf(__VA_ARGS__)

static inline void _fail(const char *file, int line) {
    printf("%s:%d: fails\n", file, line);
    exit(1);
}

#define fail_msg(...)                                                                              \
    do {                                                                                           \
        print_error(__VA_ARGS__);                                                                  \
        _fail(__FILE__, __LINE__);                                                                 \
    } while (0)

#define assert_true(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fail_msg("not true: %s\n", #condition);                                                \
        }                                                                                          \
    } while (0)

#define assert_false(condition)          assert_true(!(condition))
#define assert_null(pointer)             assert_true((pointer) == NULL)
#define assert_non_null(pointer)         assert_true((pointer) != NULL)
#define assert_int_equal(a, b)           assert_true((uint64_t)(a) == (uint64_t)(b))
#define assert_string_equal(a, b)        assert_true(strcmp(a, b) == 0)
#define assert_string_not_equal(a, b)    assert_true(strcmp(a, b) != 0)
#define assert_memory_equal(a, b, n)     assert_true(memcmp(a, b, n) == 0)
#define assert_memory_not_equal(a, b, n) assert_true(memcmp(a, b, n) != 0)

static jmp_buf skipped;

static inline void skip(void) {
    longjmp(skipped, 1);
}

#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    run_tests(tests, sizeof(tests) / sizeof((tests)[0]))

static inline void run_test(const struct CMUnitTest *test) {
    void *state = NULL;
    printf("%s\n", test->name);
    if (setjmp(skipped) == 0) {
        test->run(&state);
    }
}

static inline int run_tests(const struct CMUnitTest *tests, size_t n) {
    for (size_t i = 0; i < n; i++) {
        run_test(&tests[i]);
    }
    printf("%lu tests\n", (unsigned long)n);
    return 0;
}

#endif
