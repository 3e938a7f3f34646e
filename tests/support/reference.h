/* The algorithm in double precision, written to be read: the formulas of docs/algorithm.md, one
 * function each. It reads the plain arrays of a problem and shares no code with the library. */
#ifndef TESTS_REFERENCE_H
#define TESTS_REFERENCE_H

#include "problem.h"

/* Softmax weights [length] of one query at position t. They sum to 1 less the weight of the sink
 * logit; a query that sees nothing has none. */
void reference_weights(const problem *p, size_t query_head, const float *query, size_t t,
                       double *weights);

/* votes [length - recent]: of the window's weights the sum, or the largest, as the policy says */
void reference_votes(const problem *p, size_t query_head, double *votes);

void reference_pool(const double *votes, size_t n, size_t kernel_size, snapkv_pooling pooling,
                    double *scores);

/* Pooled and reduced over the query heads of the set: [length - recent] */
void reference_scores(const problem *p, size_t set, double *scores);

/* The sums of the votes, mean over the query heads of the set: [length - recent] */
void reference_total(const problem *p, size_t set, double *votes);

/* The k highest, ties to the lower position; by falling score. */
void reference_top_k(const double *scores, size_t n, size_t k, int32_t *indices);

void sort_ascending(int32_t *indices, size_t n);

/* The whole kept list for these scores (not looked at where the prompt is bypassed). */
void reference_kept(const problem *p, const double *scores, int32_t *kept);

/* The pinned positions, the n_best best behind them, the recent ones. */
void reference_keep(const problem *p, const double *scores, size_t n_best, int32_t *kept);

/* How many of each list's scores survive a common budget, by sorting all of them. */
void reference_allocate(const snapkv_list *lists, size_t n_lists, size_t budget, size_t least,
                        size_t *counts);

/* Whether float rounding can't change which positions these scores keep: no other score is within
 * 1e-4 relative of the boundary, unless it is exactly as high. */
int reference_unambiguous(const problem *p, const double *scores);

/* 1 - (sum of dropped votes) / window, averaged over the query heads of the set. */
double reference_coverage(const problem *p, size_t set, const int32_t *kept, size_t n_kept);

/* Holds a selection to the reference: scores and coverage within tolerance, the kept list exactly
 * what the returned scores ask for, and exactly the reference's where that is unambiguous (then 1).
 */
int check_selection(const problem *p, size_t set, const outcome *o);

/* Share of the full softmax that the kept positions, and the sink logit, hold. */
double reference_retained_mass(const problem *p, size_t query_head, const float *query,
                               size_t position, const int32_t *kept, size_t n_kept);

#endif
