/* What the programs around the documents' snippets share: inputs, a check, and votes in double. */
#ifndef SNIPPET_CHECK_H
#define SNIPPET_CHECK_H

#include "snapkv.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Uniform in [-2, 2). */
static float random_float(void) {
    static uint32_t state = 12345;

    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) * (4.0f / 16777216.0f) - 2.0f;
}

static void fill(float *x, size_t n) {
    size_t i;

    for (i = 0; i < n; i++) {
        x[i] = random_float();
    }
}

static uint16_t to_half(float x) { /* normal numbers, truncated */
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if ((bits >> 23 & 0xff) < 113) {
        return (uint16_t)(bits >> 16 & 0x8000);
    }
    return (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 |
                      (bits >> 13 & 0x3ff));
}

static float from_half(uint16_t half) {
    const int exponent = half >> 10 & 31;
    const float fraction = (float)(half & 0x3ff);
    const float size = exponent ? ldexpf(1024.0f + fraction, exponent - 25) : ldexpf(fraction, -24);

    return half & 0x8000 ? -size : size;
}

static snapkv_rows float_rows(const float *data, size_t n_positions, size_t dim) {
    snapkv_rows rows = {0};

    rows.data = data;
    rows.row_stride = dim * sizeof(float);
    rows.head_stride = n_positions * rows.row_stride;
    return rows;
}

static size_t position_of_row(const snapkv_layer *layer, size_t row) {
    return layer->key_positions ? (size_t)layer->key_positions[row] : row;
}

/* The votes of the contiguous float keys and queries of one head, by the formula, in double. */
static void votes_by_formula(const snapkv_layer *layer, size_t window, size_t n_votes,
                             size_t query_head, double *votes) {
    const size_t length = layer->length;
    const size_t group = layer->n_query_heads / layer->n_kv_heads;
    const char *keys =
        (const char *)layer->keys.data + query_head / group * layer->keys.head_stride;
    const char *queries =
        (const char *)layer->queries.data + query_head * layer->queries.head_stride;
    double *weights = (double *)malloc(length * sizeof *weights);
    size_t i, j, d;

    memset(votes, 0, n_votes * sizeof *votes);
    for (i = 0; i < window; i++) {
        const float *q = (const float *)(const void *)(queries + i * layer->queries.row_stride);
        const size_t t = layer->query_positions ? (size_t)layer->query_positions[i]
                                                : position_of_row(layer, length - window + i);
        double sum = layer->sink_logits ? exp((double)layer->sink_logits[query_head]) : 0.0;

        for (j = 0; j < length; j++) {
            const float *k = (const float *)(const void *)(keys + j * layer->keys.row_stride);
            const size_t at = position_of_row(layer, j);
            const int seen = at <= t && (layer->span == 0 || at + layer->span > t) &&
                             (layer->chunk == 0 || at >= t - t % layer->chunk);
            double x = 0.0;

            for (d = 0; d < layer->head_dim; d++) {
                x += (double)q[d] * (double)k[d];
            }
            x *= layer->scale > 0.0f ? (double)layer->scale : 1.0 / sqrt((double)layer->head_dim);
            if (layer->softcap > 0.0f) {
                x = (double)layer->softcap * tanh(x / (double)layer->softcap);
            }
            if (layer->alibi_slopes) {
                x += (double)layer->alibi_slopes[query_head] * ((double)at - (double)t);
            }
            weights[j] = seen ? exp(x) : 0.0;
            sum += weights[j];
        }
        for (j = 0; j < n_votes; j++) {
            votes[j] += sum > 0.0 ? weights[j] / sum : 0.0;
        }
    }
    free(weights);
}

/* Whether the library's votes are those of the formula. */
static int votes_agree(const snapkv_config *config, const snapkv_layer *layer, size_t query_head) {
    const size_t prefix =
        layer->length - (config->n_recent > 0 ? config->n_recent : config->window);
    const size_t size = snapkv_workspace_size(config, layer);
    void *workspace = malloc(size);
    float *votes = (float *)malloc(prefix * sizeof *votes);
    double *expected = (double *)malloc(prefix * sizeof *expected);
    int agree = snapkv_vote(config, layer, query_head, votes, workspace, size) == SNAPKV_OK;
    size_t j;

    votes_by_formula(layer, config->window, prefix, query_head, expected);
    for (j = 0; j < prefix; j++) {
        agree = agree && fabs((double)votes[j] - expected[j]) <= 1e-5 * expected[j] + 1e-9;
    }
    free(workspace);
    free(votes);
    free(expected);
    return agree;
}

#endif
