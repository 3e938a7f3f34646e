#include "reference.h"
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double dot(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

void reference_weights(const problem *p, size_t query_head, const float *query, size_t t,
                       double *weights) {
    const snapkv_layer *layer = &p->layer;
    size_t kv_head = query_head / (layer->n_query_heads / layer->n_kv_heads);
    const float *keys = p->keys + kv_head * layer->length * layer->head_dim;
    double scale = layer->scale > 0 ? (double)layer->scale : 1 / sqrt((double)layer->head_dim);
    double softcap = (double)layer->softcap;
    double slope = layer->alibi_slopes ? (double)layer->alibi_slopes[query_head] : 0;
    double sink = layer->sink_logits ? (double)layer->sink_logits[query_head] : -INFINITY;

    double largest = sink;
    for (size_t j = 0; j < layer->length; j++) {
        size_t at = problem_position(p, j);
        int visible = at <= t && (layer->span == 0 || t - at < layer->span) &&
                      (layer->chunk == 0 || at >= t - t % layer->chunk);
        double logit = dot(query, keys + j * layer->head_dim, layer->head_dim) * scale;
        if (softcap > 0) {
            logit = softcap * tanh(logit / softcap);
        }
        logit += slope * ((double)at - (double)t);
        weights[j] = visible ? logit : -INFINITY;
        largest = fmax(largest, weights[j]);
    }
    if (isinf(largest)) { /* nothing is seen */
        memset(weights, 0, layer->length * sizeof *weights);
        return;
    }
    double total = exp(sink - largest);
    for (size_t j = 0; j < layer->length; j++) {
        weights[j] = exp(weights[j] - largest);
        total += weights[j];
    }
    for (size_t j = 0; j < layer->length; j++) {
        weights[j] /= total;
    }
}

static void count_votes(const problem *p, size_t query_head, snapkv_voting voting, double *votes) {
    size_t window = p->config.window;
    size_t prefix = problem_prefix(p);
    double *weights = new_array(p->layer.length, sizeof(double));
    memset(votes, 0, prefix * sizeof(double));
    for (size_t i = 0; i < window; i++) {
        const float *query = p->queries + (query_head * window + i) * p->layer.head_dim;
        reference_weights(p, query_head, query, problem_voter_position(p, i), weights);
        for (size_t j = 0; j < prefix; j++) {
            double both = votes[j] + weights[j];
            votes[j] = voting == SNAPKV_VOTE_MAX ? fmax(votes[j], weights[j]) : both;
        }
    }
    free(weights);
}

void reference_votes(const problem *p, size_t query_head, double *votes) {
    count_votes(p, query_head, p->config.voting, votes);
}

void reference_pool(const double *votes, size_t n, size_t kernel_size, snapkv_pooling pooling,
                    double *scores) {
    size_t radius = kernel_size / 2;
    for (size_t j = 0; j < n; j++) {
        size_t first = j < radius ? 0 : j - radius;
        size_t last = radius < n - j ? j + radius : n - 1;
        double sum = 0;
        double largest = votes[first];
        for (size_t i = first; i <= last; i++) {
            sum += votes[i];
            largest = fmax(largest, votes[i]);
        }
        scores[j] = pooling == SNAPKV_POOL_AVG ? sum / (double)kernel_size : largest;
    }
}

void reference_scores(const problem *p, size_t set, double *scores) {
    size_t prefix = problem_prefix(p);
    size_t n_heads;
    size_t first = problem_set_heads(p, set, &n_heads);
    double *votes = new_array(prefix, sizeof(double));
    double *pooled = new_array(prefix, sizeof(double));
    for (size_t i = 0; i < n_heads; i++) {
        reference_votes(p, first + i, votes);
        reference_pool(votes, prefix, p->config.kernel_size, p->config.pooling, pooled);
        for (size_t j = 0; j < prefix; j++) {
            if (i == 0) {
                scores[j] = pooled[j];
            } else if (p->config.reduce == SNAPKV_REDUCE_MAX) {
                scores[j] = fmax(scores[j], pooled[j]);
            } else {
                scores[j] += pooled[j];
            }
        }
    }
    if (p->config.reduce == SNAPKV_REDUCE_MEAN) {
        for (size_t j = 0; j < prefix; j++) {
            scores[j] /= (double)n_heads;
        }
    }
    free(votes);
    free(pooled);
}

void reference_total(const problem *p, size_t set, double *total) {
    size_t prefix = problem_prefix(p);
    size_t n_heads;
    size_t first = problem_set_heads(p, set, &n_heads);
    double *votes = new_array(prefix, sizeof(double));
    memset(total, 0, prefix * sizeof *total);
    for (size_t i = 0; i < n_heads; i++) {
        count_votes(p, first + i, SNAPKV_VOTE_SUM, votes);
        for (size_t j = 0; j < prefix; j++) {
            total[j] += votes[j] / (double)n_heads;
        }
    }
    free(votes);
}

typedef struct ranked {
    double score;
    int32_t position;
} ranked;

static int higher_score_first(const void *left, const void *right) {
    const ranked *a = left;
    const ranked *b = right;
    if (a->score < b->score) {
        return 1;
    }
    if (a->score > b->score) {
        return -1;
    }
    return a->position < b->position ? -1 : 1;
}

void reference_top_k(const double *scores, size_t n, size_t k, int32_t *indices) {
    ranked *all = new_array(n, sizeof *all);
    for (size_t i = 0; i < n; i++) {
        all[i].score = scores[i];
        all[i].position = (int32_t)i;
    }
    qsort(all, n, sizeof *all, higher_score_first);
    for (size_t i = 0; i < k; i++) {
        indices[i] = all[i].position;
    }
    free(all);
}

static int lower_first(const void *left, const void *right) {
    int32_t a = *(const int32_t *)left;
    int32_t b = *(const int32_t *)right;
    return a < b ? -1 : a > b;
}

void sort_ascending(int32_t *indices, size_t n) {
    qsort(indices, n, sizeof *indices, lower_first);
}

void reference_kept(const problem *p, const double *scores, int32_t *kept) {
    size_t n_kept = problem_kept_count(p);
    if (p->layer.length < p->config.capacity) {
        for (size_t i = 0; i < n_kept; i++) {
            kept[i] = (int32_t)i;
        }
        return;
    }
    reference_keep(p, scores, n_kept - problem_recent(p) - p->config.n_sink, kept);
}

void reference_keep(const problem *p, const double *scores, size_t n_chosen, int32_t *kept) {
    size_t prefix = problem_prefix(p);
    size_t n_sink = p->config.n_sink;
    for (size_t i = 0; i < n_sink; i++) {
        kept[i] = (int32_t)i;
    }
    reference_top_k(scores + n_sink, prefix - n_sink, n_chosen, kept + n_sink);
    for (size_t i = 0; i < n_chosen; i++) {
        kept[n_sink + i] += (int32_t)n_sink;
    }
    if (p->config.order == SNAPKV_BY_POSITION) {
        sort_ascending(kept + n_sink, n_chosen);
    }
    for (size_t i = 0; i < problem_recent(p); i++) {
        kept[n_sink + n_chosen + i] = (int32_t)(prefix + i);
    }
}

typedef struct contender {
    float score;
    size_t list, position;
    int stays; /* among the `least` best of its list */
} contender;

static int better_first(const void *left, const void *right) {
    const contender *a = left;
    const contender *b = right;
    if (a->stays != b->stays) {
        return a->stays ? -1 : 1;
    }
    if (a->score < b->score || a->score > b->score) {
        return a->score > b->score ? -1 : 1;
    }
    if (a->list != b->list) {
        return a->list < b->list ? -1 : 1;
    }
    return a->position < b->position ? -1 : a->position > b->position;
}

void reference_allocate(const snapkv_list *lists, size_t n_lists, size_t budget, size_t least,
                        size_t *counts) {
    size_t n = 0;
    for (size_t i = 0; i < n_lists; i++) {
        n += lists[i].n;
        counts[i] = 0;
    }
    contender *all = new_array(n, sizeof *all);
    contender *next = all;
    for (size_t i = 0; i < n_lists; i++) {
        contender *own = next;
        for (size_t j = 0; j < lists[i].n; j++, next++) {
            next->score = lists[i].scores[j];
            next->list = i;
            next->position = j;
        }
        qsort(own, lists[i].n, sizeof *own, better_first);
        for (size_t j = 0; j < lists[i].n && j < least; j++) {
            own[j].stays = 1;
        }
    }
    qsort(all, n, sizeof *all, better_first);
    for (size_t i = 0; i < n && i < budget; i++) {
        counts[all[i].list]++;
    }
    free(all);
}

int reference_unambiguous(const problem *p, const double *scores) {
    size_t n_sink = p->config.n_sink;
    size_t n_candidates = problem_prefix(p) - n_sink;
    size_t n_chosen = problem_kept_count(p) - problem_recent(p) - n_sink;
    if (p->layer.length < p->config.capacity || n_chosen == n_candidates) {
        return 1;
    }
    int32_t *order = new_array(n_candidates, sizeof *order);
    reference_top_k(scores + n_sink, n_candidates, n_candidates, order);
    double boundary = scores[n_sink + (size_t)order[n_chosen - 1]];
    int tied = !(scores[n_sink + (size_t)order[n_chosen]] < boundary);
    int clear = 1;
    for (size_t i = tied ? 0 : n_chosen; i < n_candidates; i++) {
        double distance = fabs(boundary - scores[n_sink + (size_t)order[i]]);
        if (distance > 0 && distance <= 1e-4 * boundary + 1e-30) {
            clear = 0;
        }
    }
    free(order);
    return clear;
}

double reference_coverage(const problem *p, size_t set, const int32_t *kept, size_t n_kept) {
    size_t prefix = problem_prefix(p);
    double *votes = new_array(prefix, sizeof(double));
    double dropped = 0;
    reference_total(p, set, votes);
    for (size_t k = 0; k < n_kept; k++) {
        if ((size_t)kept[k] < prefix) {
            votes[kept[k]] = 0;
        }
    }
    for (size_t j = 0; j < prefix; j++) {
        dropped += votes[j];
    }
    free(votes);
    return 1 - dropped / (double)p->config.window;
}

int check_selection(const problem *p, size_t set, const outcome *o) {
    int bypassed = p->layer.length < p->config.capacity;
    double *scores = new_array(o->n_scores, sizeof(double));
    int32_t *kept = new_array(o->n_kept, sizeof(int32_t));
    assert_int_equal(o->status, SNAPKV_OK);
    assert_int_equal(o->selection.bypassed, bypassed);
    for (size_t j = 0; j < o->n_scores && !bypassed; j++) {
        scores[j] = (double)o->scores[j];
    }
    reference_kept(p, scores, kept);
    assert_indices(o->kept, kept, o->n_kept);
    int unambiguous = 1;
    if (bypassed) {
        assert_true(o->selection.coverage == 1);
    } else {
        reference_scores(p, set, scores);
        assert_all_close(o->scores, scores, o->n_scores);
        unambiguous = reference_unambiguous(p, scores);
        reference_kept(p, scores, kept);
        if (unambiguous) {
            /* By score, near ties among the kept may swap: compare which are kept. */
            int32_t *sorted = new_array(o->n_kept, sizeof(int32_t));
            memcpy(sorted, o->kept, o->n_kept * sizeof(int32_t));
            sort_ascending(sorted, o->n_kept);
            sort_ascending(kept, o->n_kept);
            assert_indices(sorted, kept, o->n_kept);
            free(sorted);
        }
        double coverage = reference_coverage(p, set, o->kept, o->n_kept);
        assert_close(o->selection.coverage, coverage, TOLERANCE);
        assert_true(o->selection.coverage >= 0 && o->selection.coverage <= 1);
    }
    free(scores);
    free(kept);
    return unambiguous;
}

double reference_retained_mass(const problem *p, size_t query_head, const float *query,
                               size_t position, const int32_t *kept, size_t n_kept) {
    double *weights = new_array(p->layer.length, sizeof(double));
    reference_weights(p, query_head, query, position, weights);
    double mass = 1;
    for (size_t j = 0; j < p->layer.length; j++) {
        mass -= weights[j]; /* what remains is the sink logit's */
    }
    for (size_t i = 0; i < n_kept; i++) {
        mass += weights[kept[i]];
        weights[kept[i]] = 0; /* listed twice, it counts once */
    }
    free(weights);
    return mass;
}
