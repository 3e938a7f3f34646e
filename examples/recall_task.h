/* recall_task.h: the task of the built-in model, examples/recall_model.bin, and its prompts.
 *
 * A prompt of LENGTH tokens is noise in which N_FACTS facts `key v1 v2 v3` are hidden, then
 * `QUERY key`. The model must answer v1 v2 v3. */
#ifndef RECALL_TASK_H
#define RECALL_TASK_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
    LENGTH = 1024, /* tokens of a prompt, QUERY key included */
    N_FACTS = 16,
    N_VALUES = 3, /* values of a fact */
    BOS = 0,
    QUERY = 1,
    FIRST_KEY = 2,
    N_KEYS = 32,
    FIRST_VALUE = 34,
    N_VALUE_TOKENS = 16,
    FIRST_FILLER = 50,
    N_FILLER = 46,
    VOCABULARY = 96
};

/* splitmix64: the same prompts on every machine. */
static inline uint64_t random_bits(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline size_t random_below(uint64_t *state, size_t n) {
    return (size_t)(((random_bits(state) >> 32) * (uint64_t)n) >> 32);
}

/* `k` of 0..n-1, ascending, every choice equally likely. */
static inline void random_choice(uint64_t *state, size_t n, size_t k, int32_t *chosen) {
    size_t taken = 0;
    for (size_t i = 0; i < n && taken < k; i++)
        if (random_below(state, n - i) < k - taken)
            chosen[taken++] = (int32_t)i;
}

/* The next prompt: tokens [LENGTH], and the right answer [N_VALUES]. */
static inline void make_prompt(uint64_t *state, int32_t *tokens, int32_t *answer) {
    int32_t keys[N_KEYS], unit[N_FACTS];
    for (size_t i = 0; i < LENGTH; i++)
        tokens[i] = FIRST_FILLER + (int32_t)random_below(state, N_FILLER);
    tokens[0] = BOS;
    for (size_t i = 0; i < N_KEYS; i++)
        keys[i] = FIRST_KEY + (int32_t)i;
    for (size_t i = 0; i < N_FACTS; i++) {
        const size_t other = i + random_below(state, N_KEYS - i);
        const int32_t key = keys[other];
        keys[other] = keys[i];
        keys[i] = key;
    }
    /* Between BOS and QUERY key, a fact counts as one unit among the noise tokens. */
    random_choice(state, LENGTH - 3 - N_FACTS * N_VALUES, N_FACTS, unit);
    const size_t asked = random_below(state, N_FACTS);
    for (size_t i = 0; i < N_FACTS; i++) {
        int32_t *const fact = tokens + 1 + (size_t)unit[i] + i * N_VALUES;
        fact[0] = keys[i];
        for (size_t v = 0; v < N_VALUES; v++)
            fact[1 + v] = FIRST_VALUE + (int32_t)random_below(state, N_VALUE_TOKENS);
        if (i == asked)
            memcpy(answer, fact + 1, N_VALUES * sizeof *answer);
    }
    tokens[LENGTH - 2] = QUERY;
    tokens[LENGTH - 1] = keys[asked];
}

/* The token at i begins a fact: keys occur there and in the question only. */
static inline int is_fact(const int32_t *tokens, size_t i) {
    return i < LENGTH - N_VALUES && tokens[i] >= FIRST_KEY && tokens[i] < FIRST_KEY + N_KEYS;
}

/* What a person reads: k7, v3, "?" for the question, "." for noise. */
static inline void token_name(int32_t token, char name[16]) {
    if (token >= FIRST_KEY && token < FIRST_KEY + N_KEYS)
        snprintf(name, 16, "k%d", (int)token - FIRST_KEY);
    else if (token >= FIRST_VALUE && token < FIRST_VALUE + N_VALUE_TOKENS)
        snprintf(name, 16, "v%d", (int)token - FIRST_VALUE);
    else
        snprintf(name, 16, "%s", token == BOS ? "^" : token == QUERY ? "?" : ".");
}

#endif
