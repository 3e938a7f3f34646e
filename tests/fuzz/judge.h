/* What the documents say about a call: which statuses it may return, and how exact its answer is.
 * Compiled without instrumentation, since it is the larger part of the work. */
#ifndef TESTS_FUZZ_JUDGE_H
#define TESTS_FUZZ_JUDGE_H

#include "check.h"
#include "problem.h"

typedef unsigned __int128 wide;

/* A set of statuses: bit s for status s. */
typedef unsigned statuses;
#define BIT(status) (1u << (status))

/* What a call may return: it must fail if a rule of `must` is broken, and then with a broken rule,
 * of `must` or of `may`. `may` holds the cases where the documents leave room. */
typedef struct verdict {
    statuses must, may;
} verdict;

void check_verdict(snapkv_status status, verdict v, const char *what);

static inline void add_verdict(verdict *v, verdict other) {
    v->must |= other.must;
    v->may |= other.may;
}

/* What a call needs of the policy beyond window, voting and sharing. */
enum {
    COMPETING = 1, /* a position that competes */
    SCORING = 2,   /* kernel, pooling, reduction */
    KEEPING = 4,   /* capacity, order */
    BYPASSING = 8, /* a prompt shorter than the capacity is not voted on */
    VOTES = COMPETING,
    SCORES = COMPETING | SCORING,
    SELECTION = SCORING | KEEPING | BYPASSING
};

/* Numbers of the policy and the shape alone: what set_count and the workspace sizes look at. */
verdict judge_sizes(const snapkv_config *config, const snapkv_layer *layer, int needs);

/* Whether a call with these needs looks at the voters. */
int has_voters(const snapkv_config *config, const snapkv_layer *layer, int needs);

/* The status that a text of snapkv_explain stands for. */
snapkv_status status_of_text(const char *text);

/* A view whose shape is sound. as_numbers: read as head_dim elements, not only moved. n_table: the
 * entries of its block table that exist. */
verdict judge_view(const snapkv_rows *view, size_t n_heads, size_t n_rows, size_t head_dim,
                   int as_numbers, size_t n_table);

/* Bytes of an element of a row; 1 for custom rows. */
size_t element_bytes(snapkv_dtype dtype);

/* Whether the logits of some queries are finite, and how exact float can be about them. */
typedef struct exactness {
    int must_fail, may_fail;
    double error; /* of a logit, absolute; the weights err by about as much, relative */
} exactness;

/* One query at position t, added to *e. */
void judge_query(const problem *p, size_t query_head, const float *query, size_t t, exactness *e);

/* The window of some query heads. */
exactness judge_window(const problem *p, size_t first_head, size_t n_heads);

static inline void add_exactness(verdict *v, exactness e) {
    v->must |= e.must_fail ? BIT(SNAPKV_ERROR_NOT_FINITE) : 0;
    v->may |= e.may_fail ? BIT(SNAPKV_ERROR_NOT_FINITE) : 0;
}

/* Relative, of votes and scores. 0: too inexact to compare. */
static inline double tolerance_of(exactness e) {
    return e.error > 0.02 ? 0 : 2 * TOLERANCE + 4 * e.error;
}

#endif
