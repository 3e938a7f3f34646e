/* The building blocks that need no layer, for fuzz_layer.c. */
#ifndef TESTS_FUZZ_BLOCKS_H
#define TESTS_FUZZ_BLOCKS_H

#include "input.h"

/* One of pool, top_k, keep and coverage, allocate, gather_rows and gather_columns. */
void fuzz_blocks(input *in);

#endif
