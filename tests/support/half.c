#include "half.h"
#include "check.h"

#include <math.h>

/* Sign, an exponent field of `exponent_bits`, a fraction of the rest of 16 bits. */
static float decode(uint16_t half, int exponent_bits) {
    int fraction_bits = 15 - exponent_bits;
    int largest = (1 << exponent_bits) - 1;
    int bias = largest / 2;
    int exponent = (half >> fraction_bits) & largest;
    double fraction = ldexp(half & ((1 << fraction_bits) - 1), -fraction_bits);
    double sign = half >> 15 ? -1 : 1;
    if (exponent == largest) {
        return fraction > 0 ? (float)NAN : (float)(sign * INFINITY);
    }
    if (exponent == 0) {
        return (float)(sign * ldexp(fraction, 1 - bias));
    }
    return (float)(sign * ldexp(1 + fraction, exponent - bias));
}

static uint16_t encode(float value, int exponent_bits) {
    int fraction_bits = 15 - exponent_bits;
    int bias = (1 << (exponent_bits - 1)) - 1;
    unsigned half = signbit(value) ? 0x8000u : 0;
    double size = fabs((double)value);
    if (size > 0) {
        int exponent;
        double fraction = 2 * frexp(size, &exponent); /* size = fraction * 2^(exponent - 1) */
        int field = exponent - 1 + bias;
        if (field > 0) {
            half |= (unsigned)field << fraction_bits;
            half += (unsigned)ldexp(fraction - 1, fraction_bits);
        } else {
            half += (unsigned)ldexp(size, bias - 1 + fraction_bits);
        }
    }
    if (decode((uint16_t)half, exponent_bits) != value) {
        fail_msg("%.9g is no %d-bit-exponent half", (double)value, exponent_bits);
    }
    return (uint16_t)half;
}

float f16_decode(uint16_t half) {
    return decode(half, 5);
}

float bf16_decode(uint16_t half) {
    return decode(half, 8);
}

uint16_t f16_encode(float value) {
    return encode(value, 5);
}

uint16_t bf16_encode(float value) {
    return encode(value, 8);
}
