/* Prints a digest of everything that must have the same bits on every path: votes, scores, kept
 * positions, coverage, retained mass and shared budgets of several hundred random problems, with
 * the smallest workspace, the fastest, and one between. The last two problems are long enough that
 * top-k guesses from a sample, and so does a budget over many scores behind them. Two builds agree
 * when their outputs do, to the byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapkv.h"

#ifndef PROBLEMS
#define PROBLEMS 240
#endif

static uint64_t state = 20240417;

/* splitmix64 */
static uint64_t next_u64(void) {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static size_t below(size_t n) {
    return (size_t)(next_u64() % n);
}

/* In [-amplitude / 2, amplitude / 2), exact in float. */
static float next_float(float amplitude) {
    return ((float)(next_u64() >> 40) * (1.0f / 16777216.0f) - 0.5f) * amplitude;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ p[i]) * 0x100000001B3u; /* FNV-1a */
    }
    return hash;
}

/* Values go in as 32-bit numbers, so that the digest does not depend on the byte order. */
static uint64_t hash_words(uint64_t hash, const void *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, (const char *)data + 4 * i, sizeof word);
        const unsigned char bytes[4] = {(unsigned char)word, (unsigned char)(word >> 8),
                                        (unsigned char)(word >> 16), (unsigned char)(word >> 24)};
        hash = hash_bytes(hash, bytes, 4);
    }
    return hash;
}

/* A custom dtype: eight-bit integers behind one float scale. */
static void decode_int8(void *context, const void *row, size_t head, size_t position, float *out,
                        size_t head_dim) {
    (void)context;
    (void)head;
    (void)position;
    float scale;
    memcpy(&scale, row, sizeof scale);
    const signed char *p = (const signed char *)row + sizeof scale;
    for (size_t d = 0; d < head_dim; d++) {
        out[d] = (float)p[d] * scale;
    }
}

static void *allocate(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "digest: out of memory\n");
        exit(1);
    }
    return p;
}

/* Random rows of a random dtype. */
static snapkv_rows make_rows(size_t heads, size_t rows, size_t head_dim, float amplitude) {
    static const snapkv_dtype dtypes[] = {SNAPKV_F32, SNAPKV_F32, SNAPKV_F16, SNAPKV_BF16,
                                          SNAPKV_CUSTOM};
    snapkv_rows view;
    memset(&view, 0, sizeof view);
    view.dtype = dtypes[below(5)];
    const size_t element = view.dtype == SNAPKV_F32 ? 4 : view.dtype == SNAPKV_CUSTOM ? 1 : 2;
    const size_t bytes = element * head_dim + (view.dtype == SNAPKV_CUSTOM ? 4 : 0);
    view.row_stride = bytes + element * below(3);
    view.head_stride = rows * view.row_stride;
    view.decode = decode_int8;
    char *data = (char *)allocate(heads * view.head_stride);
    for (size_t h = 0; h < heads; h++) {
        for (size_t r = 0; r < rows; r++) {
            char *row = data + h * view.head_stride + r * view.row_stride;
            const float scale = amplitude / 256;
            if (view.dtype == SNAPKV_CUSTOM) {
                memcpy(row, &scale, 4);
            }
            for (size_t d = 0; d < head_dim; d++) {
                const float x = next_float(amplitude);
                const uint64_t z = next_u64();
                if (view.dtype == SNAPKV_F32) {
                    memcpy(row + 4 * d, &x, 4);
                } else if (view.dtype == SNAPKV_CUSTOM) {
                    row[4 + d] = (char)(z & 0xFF);
                } else { /* any pattern below 2 in magnitude, subnormals too */
                    const uint16_t limit = 0x4000; /* 2.0 in both */
                    const uint16_t half = (uint16_t)((z & 0x8000) | (z >> 16) % limit);
                    memcpy(row + 2 * d, &half, 2);
                }
            }
        }
    }
    view.data = data;
    return view;
}

/* Ascending positions from below(start) on; strictly, or some twice. */
static int32_t *make_positions(size_t n, size_t start, size_t strictly) {
    int32_t *positions = (int32_t *)allocate(n * sizeof(int32_t));
    size_t at = below(start);
    for (size_t i = 0; i < n; i++) {
        positions[i] = (int32_t)at;
        at += strictly + below(3);
    }
    return positions;
}

/* A policy and a layer without rows. */
static snapkv_layer make_layer(int problem, snapkv_config *config) {
    static const size_t dims[] = {1, 3, 8, 16, 31, 64, 80, 128, 192, 576};
    static const size_t windows[] = {1, 2, 7, 8, 15, 16, 17, 32, 33, 64, 130};
    const int is_long = problem >= PROBLEMS; /* L above 17000 */
    snapkv_layer layer;
    memset(&layer, 0, sizeof layer);
    *config = snapkv_default_config();
    layer.head_dim = is_long ? 4 : dims[below(problem % 40 ? 8 : 10)];
    config->window = windows[below(is_long ? 5 : problem % 10 ? 9 : 11)];
    layer.length = config->window + 2 + below(problem % 10 ? 150 : 600) + (is_long ? 17500 : 0);
    config->n_recent = below(2) ? 0 : 1 + below(layer.length / 2);
    const size_t recent = config->n_recent ? config->n_recent : config->window;
    config->n_sink = below(3) ? 0 : below(layer.length - recent - 1);
    config->capacity = recent + config->n_sink + 1 + below(layer.length - recent - config->n_sink);
    config->kernel_size = 1 + 2 * below(problem % 8 || is_long ? 5 : 200);
    config->pooling = below(2) ? SNAPKV_POOL_AVG : SNAPKV_POOL_MAX;
    config->voting = below(2) ? SNAPKV_VOTE_SUM : SNAPKV_VOTE_MAX;
    config->order = below(2) ? SNAPKV_BY_POSITION : SNAPKV_BY_SCORE;
    config->sharing = (snapkv_sharing)below(3);
    config->reduce = below(2) ? SNAPKV_REDUCE_MEAN : SNAPKV_REDUCE_MAX;
    layer.n_kv_heads = is_long ? 1 : 1 + below(2);
    layer.n_query_heads = layer.n_kv_heads * (1 + below(is_long ? 2 : 3));
    layer.scale = below(2) ? 0.0f : 0.3f;
    layer.softcap = below(3) ? 0.0f : 2.0f;
    layer.span = below(3) ? 0 : 1 + below(layer.length);
    layer.chunk = layer.span || below(3) ? 0 : 1 + below(layer.length);
    if (!below(3)) {
        layer.key_positions = make_positions(layer.length, 50, 1);
    }
    if (!below(3)) { /* anywhere from the middle on, and behind the prompt */
        layer.query_positions = make_positions(config->window, 2 * layer.length, 0);
    }
    return layer;
}

/* The numbers of a call, a word each: sizes are below 2^32. */
static uint64_t hash_sizes(uint64_t hash, const size_t *sizes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t word = (uint32_t)sizes[i];
        hash = hash_words(hash, &word, 1);
    }
    return hash;
}

/* A budget that is guessed from a sample first. */
static uint64_t hash_large_budget(uint64_t hash) {
    enum { LISTS = 16, SCORES = 17000 }; /* more than 4 times SKV_BUDGET_SAMPLES */
    float *scores = (float *)allocate(LISTS * SCORES * sizeof(float));
    snapkv_list lists[LISTS];
    size_t counts[LISTS] = {0};
    for (size_t i = 0; i < LISTS * SCORES; i++) {
        scores[i] = next_float((float)(1 + i / SCORES));
    }
    for (size_t i = 0; i < LISTS; i++) {
        lists[i].scores = scores + i * SCORES;
        lists[i].n = SCORES;
    }
    for (size_t budget = 100; budget < LISTS * SCORES; budget *= 7) {
        const snapkv_status status = snapkv_allocate(lists, LISTS, budget, budget / 40, counts);
        const uint32_t word = (uint32_t)status;
        hash = hash_sizes(hash_words(hash, &word, 1), counts, LISTS);
    }
    free(scores);
    return hash;
}

/* The same votes by two workers, the second with no more than its own workspace; 0 where they are
 * not those that snapkv_vote has given for the last query head. */
static uint64_t hash_parts(uint64_t hash, const snapkv_config *config, const snapkv_layer *layer,
                           size_t prefix, const float *votes) {
    const size_t n_parts = snapkv_part_count(layer->length), first[3] = {0, n_parts / 2, n_parts};
    const size_t n_heads = config->sharing == SNAPKV_PER_QUERY_HEAD
                               ? 1
                               : layer->n_query_heads / layer->n_kv_heads;
    const size_t group = layer->n_query_heads / n_heads - 1, per_part = n_heads * config->window;
    const size_t bytes = snapkv_part_workspace_size(config, layer, n_parts);
    const size_t least = snapkv_part_workspace_min(config, layer);
    snapkv_statistic *statistics =
        (snapkv_statistic *)allocate(n_parts * per_part * sizeof *statistics);
    float *own = (float *)allocate(n_heads * prefix * sizeof *own);
    float *sums = (float *)allocate(n_heads * prefix * sizeof *own);
    void *workspaces[2] = {allocate(bytes), allocate(least)};
    snapkv_status status = SNAPKV_OK;
    for (int i = 0; i < 2 && !status; i++) {
        status = snapkv_part_observe(config, layer, group, first[i], first[i + 1] - first[i],
                                     statistics + first[i] * per_part, workspaces[i],
                                     i ? least : bytes);
    }
    for (int i = 0; i < 2 && !status; i++) {
        const size_t row = first[i] * SNAPKV_PART < prefix ? first[i] * SNAPKV_PART : prefix;
        status = snapkv_part_vote(config, layer, group, first[i], first[i + 1] - first[i],
                                  statistics, 1, own + row, sums + row, prefix, workspaces[i],
                                  i ? least : bytes);
    }
    const float *last = own + (n_heads - 1) * prefix;
    const int same = !status && memcmp(last, votes, prefix * sizeof *votes) == 0;
    hash = hash_words(hash, statistics, n_parts * per_part * 2);
    hash = hash_words(hash, own, n_heads * prefix);
    free(workspaces[0]);
    free(workspaces[1]);
    free(statistics);
    free(own);
    free(sums);
    return same ? hash : 0;
}

int main(void) {
    uint64_t all = 0xCBF29CE484222325u;
    for (int problem = 0; problem < PROBLEMS + 2; problem++) {
        snapkv_config config;
        snapkv_layer layer = make_layer(problem, &config);
        float *sinks = (float *)allocate(layer.n_query_heads * sizeof(float));
        float *slopes = (float *)allocate(layer.n_query_heads * sizeof(float));
        for (size_t h = 0; h < layer.n_query_heads; h++) {
            sinks[h] = next_float(6);
            slopes[h] = next_float(0.2f);
        }
        layer.sink_logits = below(3) ? NULL : sinks;
        layer.alibi_slopes = below(3) ? NULL : slopes;
        layer.queries = make_rows(layer.n_query_heads, config.window, layer.head_dim, 4);
        layer.keys = make_rows(layer.n_kv_heads, layer.length, layer.head_dim, 4);
        const size_t recent = config.n_recent ? config.n_recent : config.window;
        const size_t prefix = layer.length - recent;
        const size_t n_kept = snapkv_kept_count(&config, layer.length);
        const size_t n_sets = snapkv_set_count(&config, &layer);
        const size_t least = snapkv_workspace_min(&config, &layer);
        const size_t most = snapkv_workspace_size(&config, &layer);
        float *votes = (float *)allocate(prefix * sizeof(float));
        float *scores = (float *)allocate(n_sets * prefix * sizeof(float));
        float *query = (float *)allocate(layer.head_dim * sizeof(float));
        int32_t *kept = (int32_t *)allocate(layer.length * sizeof(int32_t));
        snapkv_list *lists = (snapkv_list *)allocate(n_sets * sizeof *lists);
        size_t *counts = (size_t *)allocate(n_sets * sizeof *counts);
        const size_t last =
            layer.key_positions ? (size_t)layer.key_positions[layer.length - 1] : layer.length - 1;
        for (size_t d = 0; d < layer.head_dim; d++) {
            query[d] = next_float(4);
        }
        const size_t pinned = config.n_sink + recent;
        const size_t budget = n_sets * below(layer.length - pinned + 1);
        uint64_t first = 0;
        for (int size = 0; size < 3; size++) {
            const size_t bytes = size == 0 ? least : size == 1 ? most : (least + most) / 2;
            void *workspace = allocate(bytes);
            uint64_t hash = 0xCBF29CE484222325u;
            snapkv_status status = SNAPKV_OK;
            memset(workspace, 0xFF, bytes);
            memset(scores, 0, n_sets * prefix * sizeof(float)); /* a bypass leaves them alone */
            for (size_t h = 0; h < layer.n_query_heads && !status; h++) {
                status = snapkv_vote(&config, &layer, h, votes, workspace, bytes);
                hash = hash_words(hash, votes, prefix);
            }
            if (!status) {
                hash = hash_parts(hash, &config, &layer, prefix, votes);
            }
            if (!status && hash == 0) {
                printf("problem %d: the workers' votes differ from those of one\n", problem);
                return 1;
            }
            for (size_t set = 0; set < n_sets && !status; set++) {
                snapkv_selection selection = {0, 0, 0};
                float mass = 0;
                status =
                    snapkv_select(&config, &layer, set, kept, scores, &selection, workspace, bytes);
                hash = hash_words(hash, scores, prefix);
                hash = hash_words(hash, kept, n_kept);
                hash = hash_words(hash, &selection.coverage, 1);
                if (!status) {
                    status = snapkv_retained_mass(&config, &layer, set, query, last + 1 + set, kept,
                                                  n_kept, &mass, workspace, bytes);
                }
                hash = hash_words(hash, &mass, 1);
            }
            /* The same in steps, with one budget for all sets. */
            for (size_t set = 0; set < n_sets && !status; set++) {
                float *own = scores + set * prefix;
                status = snapkv_score(&config, &layer, set, own, votes, workspace, bytes);
                hash = hash_words(hash, own, prefix);
                hash = hash_words(hash, votes, prefix);
                lists[set].scores = own + config.n_sink;
                lists[set].n = prefix - config.n_sink;
            }
            if (!status) {
                status = snapkv_allocate(lists, n_sets, budget, budget / n_sets / 5, counts);
                hash = hash_sizes(hash, counts, n_sets);
            }
            for (size_t set = 0; set < n_sets && !status; set++) {
                float coverage = 0;
                status =
                    snapkv_keep(&config, layer.length, scores + set * prefix, counts[set], kept);
                hash = hash_words(hash, kept, pinned + counts[set]);
                if (!status) { /* the votes of the last set, whatever this one keeps */
                    status = snapkv_coverage(&config, layer.length, votes, kept,
                                             pinned + counts[set], &coverage);
                }
                hash = hash_words(hash, &coverage, 1);
            }
            free(workspace);
            if (status != SNAPKV_OK) {
                printf("problem %d: %s\n", problem, snapkv_status_string(status));
                return 1;
            }
            if (size == 0) {
                first = hash;
            } else if (hash != first) {
                printf("problem %d: the bits depend on the workspace size\n", problem);
                return 1;
            }
        }
        if (problem % 20 == 0 || problem >= PROBLEMS) { /* where two builds part, this tells */
            printf("%d %08lx%08lx\n", problem, (unsigned long)(first >> 32),
                   (unsigned long)(first & 0xFFFFFFFFu));
        }
        for (int i = 0; i < 64; i += 8) {
            const unsigned char byte = (unsigned char)(first >> i);
            all = hash_bytes(all, &byte, 1);
        }
        free(votes);
        free(scores);
        free(query);
        free(kept);
        free(lists);
        free(counts);
        free(sinks);
        free(slopes);
        free((void *)(uintptr_t)layer.key_positions);
        free((void *)(uintptr_t)layer.query_positions);
        free((void *)(uintptr_t)layer.queries.data);
        free((void *)(uintptr_t)layer.keys.data);
    }
    all = hash_large_budget(all);
    printf("all %08lx%08lx\n", (unsigned long)(all >> 32), (unsigned long)(all & 0xFFFFFFFFu));
    return 0;
}
