/* What every unit test includes: cmocka, the library, and assertions that say where and by how
 * much. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "snapkv.h"

/* Votes and scores of float arithmetic against double: 1e-5 relative. The floor only lets a vote
 * vanish beside what it is added to, 2^-98 in each of 16 lanes: a few roundings of 2^-118. */
#define TOLERANCE 1e-5
#define FLOOR     5e-35

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#define assert_status(call, expected) check_status(call, expected, #call, __FILE__, __LINE__)
#define assert_ok(call)               check_status(call, SNAPKV_OK, #call, __FILE__, __LINE__)
#define assert_close(actual, expected, tolerance)                                                  \
    check_close(actual, expected, tolerance, #actual, __FILE__, __LINE__)
#define assert_all_close(actual, expected, n)                                                      \
    check_all_close(actual, expected, n, #actual, __FILE__, __LINE__)
#define assert_indices(actual, expected, n)                                                        \
    check_indices(actual, expected, n, #actual, __FILE__, __LINE__)

void check_status(snapkv_status actual, snapkv_status expected, const char *what, const char *file,
                  int line);

/* |actual - expected| <= tolerance, absolute. */
void check_close(double actual, double expected, double tolerance, const char *what,
                 const char *file, int line);

/* Each element within TOLERANCE relative, FLOOR absolute. */
void check_all_close(const float *actual, const double *expected, size_t n, const char *what,
                     const char *file, int line);

void check_indices(const int32_t *actual, const int32_t *expected, size_t n, const char *what,
                   const char *file, int line);

/* calloc that fails the test instead of returning NULL; n = 0 gives a pointer too. */
void *new_array(size_t n, size_t size);

#endif
