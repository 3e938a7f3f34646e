/* The project's own engine (examples/llama.h) on the recall model, behind a wall: its names are
 * those of llama.cpp. */
#ifndef TESTS_LLAMACPP_ENGINE_H
#define TESTS_LLAMACPP_ENGINE_H

#include <stddef.h>
#include <stdint.h>

enum { ENGINE_LENGTH = 1024, ENGINE_ANSWER = 3, ENGINE_VOCABULARY = 96 };

/* NULL, or what is wrong. */
const char *engine_open(const char *model);
void engine_close(void);

/* The next prompt of the recall task. */
void engine_prompt(uint64_t *seed, int32_t *tokens, int32_t *right);

/* Prefill, selection per K/V head (window 16, kernel 5) and the greedy answer.
 *
 *   out  kept    [layers][K/V heads][capacity]
 *        answer  [ENGINE_ANSWER]
 *        logits  [ENGINE_ANSWER][ENGINE_VOCABULARY]  before each token of the answer */
const char *engine_answer(const int32_t *tokens, size_t capacity, int32_t *kept, int32_t *answer,
                          float *logits);

#endif
