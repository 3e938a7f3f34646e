/* float16 and bfloat16 by arithmetic on values, not on bits: slow, and independent of the library.
 */
#ifndef TESTS_HALF_H
#define TESTS_HALF_H

#include <stdint.h>

float f16_decode(uint16_t half);
float bf16_decode(uint16_t half);

/* Exact: a value that the format can't hold fails the test. */
uint16_t f16_encode(float value);
uint16_t bf16_encode(float value);

#endif
