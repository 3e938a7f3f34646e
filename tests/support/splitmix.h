/* The deterministic generator of the tests: splitmix64, as tests/vectors/README.md describes it. */
#ifndef TESTS_SPLITMIX_H
#define TESTS_SPLITMIX_H

#include <stddef.h>
#include <stdint.h>

typedef struct splitmix {
    uint64_t state;
} splitmix;

static inline uint64_t splitmix_next(splitmix *random) {
    random->state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t z = random->state;
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* A float in [-amplitude / 2, amplitude / 2). */
static inline float splitmix_float(splitmix *random, double amplitude) {
    return (float)(((double)(splitmix_next(random) >> 40) / 16777216.0 - 0.5) * amplitude);
}

/* lowest <= result <= highest; the bias of the remainder doesn't matter to a test. */
static inline size_t splitmix_between(splitmix *random, size_t lowest, size_t highest) {
    return lowest + (size_t)(splitmix_next(random) % (highest - lowest + 1));
}

/* True once in n times. */
static inline int splitmix_once_in(splitmix *random, size_t n) {
    return splitmix_next(random) % n == 0;
}

#endif
