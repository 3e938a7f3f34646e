/* One selection problem: the policy, a layer, its numbers as plain arrays, and the same numbers
 * packed the way a cache of some engine would hold them. */
#ifndef TESTS_PROBLEM_H
#define TESTS_PROBLEM_H

#include "guard.h"
#include "snapkv.h"
#include "splitmix.h"

typedef enum layout {
    LAYOUT_HEAD_MAJOR,     /* [head][position][dim] */
    LAYOUT_POSITION_MAJOR, /* [position][head][dim] */
    LAYOUT_BLOCKS_BY_HEAD, /* paged: [block][head][row][dim] */
    LAYOUT_BLOCKS_BY_ROW   /* paged: [block][row][head][dim] */
} layout;

typedef struct packing {
    layout layout;
    snapkv_dtype dtype; /* SNAPKV_CUSTOM: bytes, see decode_bytes() */
    guard_side side;
    size_t lead;       /* elements before the first, to move its address */
    size_t pad;        /* elements between a row and the next */
    size_t block_rows; /* of the paged layouts */
} packing;

/* Rows in memory of exactly their size, frozen. What no row covers is all ones, a NaN in every
 * type. */
typedef struct packed {
    packing how;
    size_t n_heads, n_rows, head_dim, row_bytes;
    guard memory, table;
    snapkv_rows rows;
} packed;

typedef struct problem {
    snapkv_config config;
    snapkv_layer layer;
    float *queries; /* [n_query_heads][window][head_dim] */
    float *keys;    /* [n_kv_heads][length][head_dim] */
    float *values;  /* [n_kv_heads][length][head_dim] */
    float *sink_logits, *alibi_slopes;
    int32_t *query_positions, *key_positions;
    packed packed_queries, packed_keys, packed_values; /* what the views of the layer read */
} problem;

/* All numbers zero, the layer without options, nothing packed. */
problem problem_new(snapkv_config config, size_t n_query_heads, size_t n_kv_heads, size_t length,
                    size_t head_dim);
void problem_free(problem *p);

/* Random numbers in [-amplitude / 2, amplitude / 2), in multiples of 1/32 if `coarse`: those are
 * exact in every dtype as long as the amplitude is at most 7. */
void problem_fill(problem *p, splitmix *random, double amplitude, int coarse);

/* Options per query head; they take effect at once. */
void problem_set_sinks(problem *p, const float *sink_logits);
void problem_set_slopes(problem *p, const float *alibi_slopes);

/* Where the voters stand [window], and which position each row holds [length]. */
void problem_set_query_positions(problem *p, const int32_t *positions);
void problem_set_key_positions(problem *p, const int32_t *positions);

/* Packs queries, keys and values anew and points the layer at them. */
void problem_pack(problem *p, packing how);
void problem_pack_plainly(problem *p);

/* Policy with the given sizes, else as snapkv_default_config() documents it. */
snapkv_config make_config(size_t window, size_t capacity, size_t kernel_size);

/* `plain` is [n_heads][n_rows][head_dim]. */
packed pack(const float *plain, size_t n_heads, size_t n_rows, size_t head_dim, packing how);
void packed_free(packed *rows);

/* The bytes of a row, found without the library. */
unsigned char *packed_row(const packed *rows, size_t head, size_t row);

/* The custom format: an odd number of bytes, the first one is not a number, then 32nds as int8. */
void decode_bytes(void *context, const void *row, size_t head, size_t position, float *out,
                  size_t head_dim);

/* What the problem asks for, counted without the library. */
size_t problem_recent(const problem *p);
size_t problem_prefix(const problem *p); /* rows that compete: 0 where all are recent */
size_t problem_position(const problem *p, size_t row);
size_t problem_voter_position(const problem *p, size_t voter);
size_t problem_kept_count(const problem *p);
size_t problem_set_count(const problem *p);
/* The query heads of a set: *n of them from the result on. */
size_t problem_set_heads(const problem *p, size_t set, size_t *n);

/* A call of snapkv_select() between guard pages, or of snapkv_vote(). Arrays are the caller's to
 * free. */
typedef struct outcome {
    snapkv_status status;
    snapkv_selection selection;
    size_t n_kept, n_scores;
    int32_t *kept;
    float *scores;
} outcome;

outcome run_select(const problem *p, size_t set, size_t workspace_size, guard_side side);
float *run_vote(const problem *p, size_t query_head, size_t workspace_size, guard_side side);
void outcome_free(outcome *o);

/* Fails the test unless both have the same status and the same bits. */
void assert_same_outcome(const outcome *a, const outcome *b);

#endif
