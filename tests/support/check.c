#include "check.h"

#include <math.h>
#include <stdlib.h>

void check_status(snapkv_status actual, snapkv_status expected, const char *what, const char *file,
                  int line) {
    if (actual != expected) {
        print_error("%s\n  gives \"%s\" (%d), not \"%s\" (%d)\n", what,
                    snapkv_status_string(actual), (int)actual, snapkv_status_string(expected),
                    (int)expected);
        _fail(file, line);
    }
}

void check_close(double actual, double expected, double tolerance, const char *what,
                 const char *file, int line) {
    if (!(fabs(actual - expected) <= tolerance)) {
        print_error("%s is %.9g, not %.9g within %g\n", what, actual, expected, tolerance);
        _fail(file, line);
    }
}

void check_all_close(const float *actual, const double *expected, size_t n, const char *what,
                     const char *file, int line) {
    for (size_t i = 0; i < n; i++) {
        double error = fabs((double)actual[i] - expected[i]);
        if (!(error <= TOLERANCE * fabs(expected[i]) + FLOOR)) {
            print_error("%s[%lu of %lu] is %.9g, not %.9g\n", what, (unsigned long)i,
                        (unsigned long)n, (double)actual[i], expected[i]);
            _fail(file, line);
        }
    }
}

void check_indices(const int32_t *actual, const int32_t *expected, size_t n, const char *what,
                   const char *file, int line) {
    for (size_t i = 0; i < n; i++) {
        if (actual[i] != expected[i]) {
            print_error("%s[%lu of %lu] is %ld, not %ld\n", what, (unsigned long)i,
                        (unsigned long)n, (long)actual[i], (long)expected[i]);
            _fail(file, line);
        }
    }
}

void *new_array(size_t n, size_t size) {
    void *array = calloc(n ? n : 1, size);
    if (!array) {
        print_error("out of memory: %lu elements of %lu bytes\n", (unsigned long)n,
                    (unsigned long)size);
        _fail(__FILE__, __LINE__);
    }
    return array;
}
