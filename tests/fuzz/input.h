/* What the fuzz targets share: bytes turned into numbers. */
#ifndef TESTS_FUZZ_INPUT_H
#define TESTS_FUZZ_INPUT_H

#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct input {
    const unsigned char *data;
    size_t size;
} input;

/* Little endian; zeros once the input is used up. */
static inline uint64_t draw_bytes(input *in, size_t n) {
    uint64_t value = 0;
    for (size_t i = 0; i < n && in->size > 0; i++) {
        value |= (uint64_t)in->data[0] << (8 * i);
        in->data++;
        in->size--;
    }
    return value;
}

/* lowest <= result <= highest */
static inline size_t draw_between(input *in, size_t lowest, size_t highest) {
    size_t range = highest - lowest;
    return lowest + (size_t)(draw_bytes(in, range > 255 ? 2 : 1) % (range + 1));
}

static inline int draw_once_in(input *in, size_t n) {
    return draw_between(in, 0, n - 1) == n - 1; /* never once the input is used up */
}

static inline float draw_float_bits(input *in) {
    static const uint32_t edges[] = {
        0x00000000, 0x80000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x3F800000,
        0xBF800000, 0x41200000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000,
        0x7FC00000, 0xFF800001, 0x5F800000, 0xDF800000, 0x1F800000, 0x33800000,
    };
    size_t i = draw_between(in, 0, 2 * COUNT_OF(edges) - 1);
    uint32_t bits = i < COUNT_OF(edges) ? edges[i] : (uint32_t)draw_bytes(in, 4);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Sizes where products and sums leave 31, 32, 63 and 64 bits, their neighbours, and any other. */
static inline size_t draw_extreme(input *in) {
    static const uint64_t edges[] = {
        0,
        UINT64_C(1) << 8,
        UINT64_C(1) << 16,
        UINT64_C(1) << 31,
        UINT64_C(1) << 32,
        UINT64_C(1) << 56,
        UINT64_C(1) << 62,
        UINT64_C(1) << 63,
        UINT64_MAX / 3,
        UINT64_MAX / 12,
        UINT64_MAX / 48,
        UINT64_MAX,
    };
    size_t i = draw_between(in, 0, COUNT_OF(edges) + 3);
    if (i < COUNT_OF(edges)) {
        return (size_t)(edges[i] + draw_between(in, 0, 4) - 2);
    }
    return (size_t)(draw_bytes(in, 8) >> draw_between(in, 0, 63));
}

/* What libFuzzer calls. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An abort is what libFuzzer takes for a find; cmocka would end the process politely. */
static inline int abort_on_failure(void) {
    return setenv("CMOCKA_TEST_ABORT", "1", 1);
}

#endif
