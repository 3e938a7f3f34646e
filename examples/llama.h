/* llama.h: a small Llama-style engine for the examples, made to show how snapkv.h is used.
 *
 * RMSNorm, rotary positions (interleaved pairs), grouped-query attention, SwiGLU, float weights in
 * the llama2.c checkpoint format. One thread, C99, the C library and snapkv.h only.
 *
 *     llama_model model;
 *     const char *error = llama_load(&model, "model.bin");    NULL, or what is wrong
 *     llama_state state;                                      scratch of the forward passes
 *     llama_cache full, small;                                keys and values
 *     error = llama_prefill(&model, &state, &full, tokens, n_tokens, config.window, queries);
 *     error = llama_compress(&config, &model, &full, queries, &small, kept, coverage);
 *     error = llama_decode(&model, &state, &small, token);    then read state.logits
 *
 * Where SnapKV touches an engine, and nowhere else:
 *   - the prefill keeps the rotated queries of the last `window` tokens of every layer;
 *   - after it, each layer's keys and values are replaced by the kept ones (llama_compress);
 *   - from then on the position of the next token (which rotates it) and the slot where its key and
 *     value go are two different numbers (cache.lists[].cursor).
 *
 * A cache is ragged: every head of every layer has a list with slots and a cursor of its own, since
 * lists that share a budget (llama_compress_shared) end up of different lengths. The full cache is
 * the case where they are equal.
 *
 * Activations of a forward pass are [feature][lanes], a tile of 16 tokens or one token alone: the
 * compiler turns the loops over lanes into vector instructions, and no sum is reordered by it. */
#ifndef LLAMA_H
#define LLAMA_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapkv.h"

enum { LLAMA_LANES = 16, LLAMA_HEADER_INTS = 7 };

typedef struct llama_model {
    size_t dim, hidden_dim, n_layers, n_heads, n_kv_heads, head_dim, vocab_size;
    size_t max_length;      /* the training length named in the file; nothing here depends on it */
    float *weights;         /* all of them, in the file's order; the pointers below lead into it */
    const float *embedding; /* [vocab_size][dim] */
    const float *rms_att;   /* [n_layers][dim] */
    const float *wq;        /* [n_layers][dim][dim] */
    const float *wk, *wv;   /* [n_layers][n_kv_heads * head_dim][dim] */
    const float *wo;        /* [n_layers][dim][dim] */
    const float *rms_ffn;   /* [n_layers][dim] */
    const float *w1, *w2, *w3; /* [n_layers] of [hidden_dim][dim], [dim][hidden_dim], as w1 */
    const float *rms_final;    /* [dim] */
    const float *classifier;   /* [vocab_size][dim]: the embedding, unless the file unties it */
} llama_model;

/* What one head of a layer holds of a sequence: slot i is row `first` + i of the cache. */
typedef struct llama_list {
    size_t first, n_slots;
    snapkv_cursor cursor; /* next position, the same in all lists, and next slot */
} llama_list;

/* Keys and values of one sequence. `n_heads` is the model's n_kv_heads, or its n_heads when the
 * query heads of a group keep different positions (SNAPKV_PER_QUERY_HEAD). */
typedef struct llama_cache {
    size_t n_layers, n_heads, head_dim, n_rows;
    float *keys, *values; /* [n_rows][head_dim] */
    llama_list *lists;    /* [n_layers][n_heads] */
} llama_cache;

/* Scratch of a forward pass over lists of at most `n_slots`. After a prefill or a decode step,
 * logits[vocab_size] are those of the last token. */
typedef struct llama_state {
    size_t n_slots;
    float *memory;
    float *x, *h, *attended; /* [dim][lanes] */
    float *q;                /* [n_heads][head_dim][lanes] */
    float *k, *v;            /* [n_kv_heads][head_dim][lanes] */
    float *gate, *up;        /* [hidden_dim][lanes] */
    float *cos, *sin;        /* [head_dim / 2][lanes] */
    float *scores;           /* [n_slots][lanes] */
    float *logits;           /* [vocab_size] */
} llama_state;

/* ---- sizes and memory ----------------------------------------------------------------------- */

/* a * b and a + b, or SIZE_MAX when that is beyond a size_t; SIZE_MAX stays SIZE_MAX. */
static inline size_t llama_times(size_t a, size_t b) {
    return a != 0 && b > SIZE_MAX / a ? SIZE_MAX : a * b;
}

static inline size_t llama_plus(size_t a, size_t b) {
    return b > SIZE_MAX - a ? SIZE_MAX : a + b;
}

/* `n` floats of value zero, or NULL. */
static inline float *llama_floats(size_t n) {
    return n > SIZE_MAX / sizeof(float) ? NULL : (float *)calloc(n, sizeof(float));
}

/* ---- the checkpoint ------------------------------------------------------------------------- */

/* Hands out the next n floats of a block; with a NULL base it only counts. */
typedef struct llama_cutter {
    float *base;
    size_t used; /* SIZE_MAX: too many */
} llama_cutter;

static inline float *llama_cut(llama_cutter *cutter, size_t n) {
    float *start = cutter->base == NULL ? NULL : cutter->base + cutter->used;
    cutter->used = llama_plus(cutter->used, n);
    return start;
}

/* The file's floats, in its order. Returns how many there are; SIZE_MAX: more than memory. */
static inline size_t llama_lay_out(llama_model *m, float *base, int tied) {
    llama_cutter cutter = {base, 0};
    const size_t square = llama_times(llama_times(m->n_layers, m->dim), m->dim);
    const size_t kv = llama_times(m->n_layers, llama_times(m->n_kv_heads * m->head_dim, m->dim));
    const size_t ffn = llama_times(m->n_layers, llama_times(m->hidden_dim, m->dim));
    const size_t vocabulary = llama_times(m->vocab_size, m->dim);
    m->embedding = llama_cut(&cutter, vocabulary);
    m->rms_att = llama_cut(&cutter, llama_times(m->n_layers, m->dim));
    m->wq = llama_cut(&cutter, square);
    m->wk = llama_cut(&cutter, kv);
    m->wv = llama_cut(&cutter, kv);
    m->wo = llama_cut(&cutter, square);
    m->rms_ffn = llama_cut(&cutter, llama_times(m->n_layers, m->dim));
    m->w1 = llama_cut(&cutter, ffn);
    m->w2 = llama_cut(&cutter, ffn);
    m->w3 = llama_cut(&cutter, ffn);
    m->rms_final = llama_cut(&cutter, m->dim);
    (void)llama_cut(&cutter, llama_times(m->max_length, m->head_dim)); /* two RoPE tables, unused */
    m->classifier = tied ? m->embedding : llama_cut(&cutter, vocabulary);
    return cutter.used;
}

/* The little-endian 32 bits at `bytes`, on any processor. */
static inline uint32_t llama_word(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static inline void llama_free(llama_model *m) {
    free(m->weights);
    memset(m, 0, sizeof *m);
}

/* Reads the seven header numbers into the model. */
static inline const char *llama_read_header(llama_model *m, FILE *file, int *tied) {
    unsigned char bytes[4 * LLAMA_HEADER_INTS];
    size_t n[LLAMA_HEADER_INTS];
    if (fread(bytes, 1, sizeof bytes, file) != sizeof bytes)
        return "too short for a checkpoint's header";
    *tied = 1;
    for (size_t i = 0; i < LLAMA_HEADER_INTS; i++) {
        uint32_t word = llama_word(bytes + 4 * i);
        if (i == 5 && word >> 31 != 0) { /* a negative vocabulary size: a classifier of its own */
            *tied = 0;
            word = 0u - word;
        }
        if (word == 0 || word > INT32_MAX)
            return "not a checkpoint: a size in its header is zero or negative";
        n[i] = word;
    }
    m->dim = n[0];
    m->hidden_dim = n[1];
    m->n_layers = n[2];
    m->n_heads = n[3];
    m->n_kv_heads = n[4];
    m->vocab_size = n[5];
    m->max_length = n[6];
    if (m->dim % m->n_heads != 0 || m->n_heads % m->n_kv_heads != 0)
        return "not a checkpoint: the heads in its header don't divide";
    m->head_dim = m->dim / m->n_heads;
    if (m->head_dim % 2 != 0)
        return "not a checkpoint: an odd head dimension can't be rotated";
    return NULL;
}

static inline const char *llama_read_weights(llama_model *m, FILE *file, int tied) {
    const size_t n = llama_lay_out(m, NULL, tied);
    const size_t n_bytes = llama_times(n, sizeof(float));
    const char *const shorter = "shorter than its header says";
    if (n_bytes == SIZE_MAX)
        return "not a checkpoint: the sizes in its header are beyond memory";
    /* The length is compared before anything is allocated, so a nonsense header asks for nothing.
     */
    if (fseek(file, 0, SEEK_END) != 0)
        return "not a file that can be read twice";
    const long end = ftell(file);
    if (end < 0 || fseek(file, 4 * LLAMA_HEADER_INTS, SEEK_SET) != 0)
        return "not a file that can be read twice";
    if ((unsigned long)end < 4 * LLAMA_HEADER_INTS ||
        (unsigned long)end - 4 * LLAMA_HEADER_INTS < n_bytes)
        return shorter;
    if ((unsigned long)end - 4 * LLAMA_HEADER_INTS > n_bytes)
        return "longer than its header says";
    m->weights = llama_floats(n);
    if (m->weights == NULL)
        return "not enough memory for its weights";
    if (fread(m->weights, sizeof(float), n, file) != n)
        return shorter;
    for (size_t i = 0; i < n; i++) {
        unsigned char bytes[4];
        memcpy(bytes, m->weights + i, sizeof bytes);
        const uint32_t word = llama_word(bytes);
        if ((word & 0x7f800000u) == 0x7f800000u)
            return "holds a weight that is not a finite number";
        memcpy(m->weights + i, &word, sizeof word);
    }
    (void)llama_lay_out(m, m->weights, tied);
    return NULL;
}

/* Loads a checkpoint. Returns NULL, or what is wrong with the file; then nothing is to be freed. */
static inline const char *llama_load(llama_model *m, const char *path) {
    memset(m, 0, sizeof *m);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return "can't be opened";
    int tied;
    const char *error = llama_read_header(m, file, &tied);
    if (error == NULL)
        error = llama_read_weights(m, file, tied);
    fclose(file);
    if (error != NULL)
        llama_free(m);
    return error;
}

/* ---- caches and scratch --------------------------------------------------------------------- */

static inline void llama_cache_free(llama_cache *cache) {
    free(cache->keys);
    free(cache->lists);
    memset(cache, 0, sizeof *cache);
}

static inline size_t llama_n_lists(const llama_cache *cache) {
    return cache->n_layers * cache->n_heads;
}

/* Hands out the rows: to each list what it keeps of the prompt, and an equal part of what is left.
 * They suffice for what is kept. */
static inline void llama_share_rows(llama_cache *cache) {
    const size_t n_lists = llama_n_lists(cache);
    size_t left = cache->n_rows, first = 0;
    for (size_t i = 0; i < n_lists; i++)
        left -= cache->lists[i].cursor.prompt_kept;
    for (size_t i = 0; i < n_lists; i++) {
        llama_list *const list = cache->lists + i;
        list->first = first;
        list->n_slots = list->cursor.prompt_kept + left / n_lists;
        first += list->n_slots;
    }
}

/* The same cursor for every list. */
static inline void llama_start(llama_cache *cache, snapkv_cursor cursor) {
    for (size_t i = 0; i < llama_n_lists(cache); i++)
        cache->lists[i].cursor = cursor;
}

/* An empty cache with room for `n_slots` tokens. False: not enough memory. */
static inline int llama_cache_new(llama_cache *cache, const llama_model *m, size_t n_heads,
                                  size_t n_slots) {
    const size_t n_lists = llama_times(m->n_layers, n_heads);
    const size_t n_rows = llama_times(n_lists, n_slots), n = llama_times(n_rows, m->head_dim);
    memset(cache, 0, sizeof *cache);
    cache->n_layers = m->n_layers;
    cache->n_heads = n_heads;
    cache->head_dim = m->head_dim;
    cache->n_rows = n_rows;
    cache->keys = llama_floats(llama_times(n, 2));
    cache->lists = (llama_list *)calloc(n_lists, sizeof *cache->lists);
    if (cache->keys == NULL || cache->lists == NULL) {
        llama_cache_free(cache);
        return 0;
    }
    cache->values = cache->keys + n;
    llama_share_rows(cache);
    return 1;
}

/* The rows [n_slots][head_dim] of one head begin here, in keys and in values. */
static inline size_t llama_cache_at(const llama_cache *cache, size_t layer, size_t head) {
    return cache->lists[layer * cache->n_heads + head].first * cache->head_dim;
}

/* Where the sequence stands; for lists of different lengths, in its first list. */
static inline snapkv_cursor llama_cursor(const llama_cache *cache) {
    return cache->lists[0].cursor;
}

/* The last n_tokens that were decoded are taken back. Returns NULL or an error. */
static inline const char *llama_rewind(llama_cache *cache, size_t n_tokens) {
    snapkv_status status = SNAPKV_OK;
    for (size_t i = 0; i < llama_n_lists(cache) && status == SNAPKV_OK; i++)
        status = snapkv_rewind(&cache->lists[i].cursor, n_tokens);
    return status == SNAPKV_OK ? NULL : snapkv_status_string(status);
}

static inline void llama_state_free(llama_state *s) {
    free(s->memory);
    memset(s, 0, sizeof *s);
}

static inline size_t llama_state_lay_out(llama_state *s, const llama_model *m, float *base) {
    llama_cutter cutter = {base, 0};
    const size_t dim = llama_times(m->dim, LLAMA_LANES);
    const size_t kv = llama_times(m->n_kv_heads * m->head_dim, LLAMA_LANES);
    s->x = llama_cut(&cutter, dim);
    s->h = llama_cut(&cutter, dim);
    s->attended = llama_cut(&cutter, dim);
    s->q = llama_cut(&cutter, dim);
    s->k = llama_cut(&cutter, kv);
    s->v = llama_cut(&cutter, kv);
    s->gate = llama_cut(&cutter, llama_times(m->hidden_dim, LLAMA_LANES));
    s->up = llama_cut(&cutter, llama_times(m->hidden_dim, LLAMA_LANES));
    s->cos = llama_cut(&cutter, llama_times(m->head_dim / 2, LLAMA_LANES));
    s->sin = llama_cut(&cutter, llama_times(m->head_dim / 2, LLAMA_LANES));
    s->scores = llama_cut(&cutter, llama_times(s->n_slots, LLAMA_LANES));
    s->logits = llama_cut(&cutter, m->vocab_size);
    return cutter.used;
}

/* False: not enough memory. */
static inline int llama_state_new(llama_state *s, const llama_model *m, size_t n_slots) {
    memset(s, 0, sizeof *s);
    s->n_slots = n_slots;
    s->memory = llama_floats(llama_state_lay_out(s, m, NULL));
    if (s->memory == NULL)
        return 0;
    (void)llama_state_lay_out(s, m, s->memory);
    return 1;
}

/* ---- the arithmetic ------------------------------------------------------------------------- */

/* Dot product of two rows, by 16 partial sums: the order of the additions is written down here, so
 * the compiler may use vectors without -ffast-math. */
static inline float llama_dot(const float *a, const float *b, size_t n) {
    float sum[LLAMA_LANES] = {0};
    size_t i = 0;
    for (; i + LLAMA_LANES <= n; i += LLAMA_LANES)
        for (size_t lane = 0; lane < LLAMA_LANES; lane++)
            sum[lane] += a[i + lane] * b[i + lane];
    for (; i < n; i++)
        sum[0] += a[i] * b[i];
    for (size_t half = LLAMA_LANES / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            sum[lane] += sum[lane + half];
    return sum[0];
}

/* One product for a tile of tokens, everywhere in the model:
 *     y[o][lane] = sum over i of w[o * out_step + i * in_step] * x[i][lane]
 * Four rows of w at a time in one loop over the lanes: a row of x that was loaded is used four
 * times, and gcc vectorises just that loop. (With a loop over the four rows it vectorised the one
 * over i instead, with shuffles: 6 GFLOP/s instead of 30; gcc 12 -O3, AVX2 at 2.6 GHz.) */
static inline void llama_tile_product(float *y, const float *w, size_t out_step, size_t in_step,
                                      const float *x, size_t n_out, size_t n_in) {
    size_t o = 0;
    for (; o + 4 <= n_out; o += 4) {
        const float *const row = w + o * out_step;
        float a[LLAMA_LANES] = {0}, b[LLAMA_LANES] = {0};
        float c[LLAMA_LANES] = {0}, d[LLAMA_LANES] = {0};
        for (size_t i = 0; i < n_in; i++) {
            const float *const xi = x + i * LLAMA_LANES;
            const float wa = row[i * in_step], wb = row[out_step + i * in_step];
            const float wc = row[2 * out_step + i * in_step], wd = row[3 * out_step + i * in_step];
            for (size_t lane = 0; lane < LLAMA_LANES; lane++) {
                a[lane] += wa * xi[lane];
                b[lane] += wb * xi[lane];
                c[lane] += wc * xi[lane];
                d[lane] += wd * xi[lane];
            }
        }
        memcpy(y + o * LLAMA_LANES, a, sizeof a);
        memcpy(y + (o + 1) * LLAMA_LANES, b, sizeof b);
        memcpy(y + (o + 2) * LLAMA_LANES, c, sizeof c);
        memcpy(y + (o + 3) * LLAMA_LANES, d, sizeof d);
    }
    for (; o < n_out; o++) {
        float sum[LLAMA_LANES] = {0};
        for (size_t i = 0; i < n_in; i++) {
            const float weight = w[o * out_step + i * in_step];
            for (size_t lane = 0; lane < LLAMA_LANES; lane++)
                sum[lane] += weight * x[i * LLAMA_LANES + lane];
        }
        memcpy(y + o * LLAMA_LANES, sum, sizeof sum);
    }
}

/* y = w x, with w [n_out][n_in], x [n_in][lanes], y [n_out][lanes]. */
static inline void llama_product(float *y, const float *w, const float *x, size_t n_out,
                                 size_t n_in, size_t lanes) {
    if (lanes == LLAMA_LANES) {
        llama_tile_product(y, w, n_in, 1, x, n_out, n_in);
        return;
    }
    for (size_t o = 0; o < n_out; o++)
        y[o] = llama_dot(w + o * n_in, x, n_in);
}

static inline void llama_rms_norm(float *y, const float *x, const float *weight, size_t dim,
                                  size_t lanes) {
    for (size_t lane = 0; lane < lanes; lane++) {
        float sum = 0;
        for (size_t i = 0; i < dim; i++)
            sum += x[i * lanes + lane] * x[i * lanes + lane];
        const float factor = 1.0f / sqrtf(sum / (float)dim + 1e-5f);
        for (size_t i = 0; i < dim; i++)
            y[i * lanes + lane] = x[i * lanes + lane] * factor * weight[i];
    }
}

/* Rotates the pairs (2i, 2i + 1) of every head of x [n_heads][head_dim][lanes]. */
static inline void llama_rotate(float *x, const llama_state *s, size_t n_heads, size_t head_dim,
                                size_t lanes) {
    for (size_t pair = 0; pair < n_heads * (head_dim / 2); pair++) {
        const size_t angle = pair % (head_dim / 2) * lanes;
        float *const even = x + 2 * pair * lanes;
        float *const odd = even + lanes;
        for (size_t lane = 0; lane < lanes; lane++) {
            const float c = s->cos[angle + lane], d = s->sin[angle + lane];
            const float e = even[lane], o = odd[lane];
            even[lane] = e * c - o * d;
            odd[lane] = e * d + o * c;
        }
    }
}

/* The angles of the tokens at `position`, `position` + 1, ... */
static inline void llama_angles(llama_state *s, size_t head_dim, size_t position, size_t lanes) {
    for (size_t pair = 0; pair < head_dim / 2; pair++) {
        const double frequency = pow(1e4, -2.0 * (double)pair / (double)head_dim);
        for (size_t lane = 0; lane < lanes; lane++) {
            const double angle = (double)(position + lane) * frequency;
            s->cos[pair * lanes + lane] = (float)cos(angle);
            s->sin[pair * lanes + lane] = (float)sin(angle);
        }
    }
}

/* Attention of one query head over the slots of one stored head. Token `lane` stands in slot
 * `slot` + lane and sees the slots up to its own; of the tile's lanes, `n` are tokens.
 * Positions play no part any more: they are in the rotated keys and queries. */
static inline void llama_attend(float *out, const float *query, const float *keys,
                                const float *values, float *scores, size_t head_dim, size_t slot,
                                size_t n, size_t lanes) {
    const size_t n_seen = slot + n;
    const float scale = 1.0f / sqrtf((float)head_dim);
    if (lanes == LLAMA_LANES)
        llama_tile_product(scores, keys, head_dim, 1, query, n_seen, head_dim);
    else
        for (size_t j = 0; j < n_seen; j++)
            scores[j] = llama_dot(keys + j * head_dim, query, head_dim);

    float top[LLAMA_LANES], sum[LLAMA_LANES] = {0};
    for (size_t lane = 0; lane < lanes; lane++)
        top[lane] = scores[lane];
    for (size_t j = slot + 1; j < n_seen; j++) /* hide what comes after a token */
        for (size_t lane = 0; lane < j - slot; lane++)
            scores[j * lanes + lane] = -INFINITY;
    for (size_t j = 1; j < n_seen; j++)
        for (size_t lane = 0; lane < lanes; lane++)
            top[lane] = scores[j * lanes + lane] > top[lane] ? scores[j * lanes + lane] : top[lane];
    for (size_t j = 0; j < n_seen; j++)
        for (size_t lane = 0; lane < lanes; lane++) {
            const float weight = expf((scores[j * lanes + lane] - top[lane]) * scale);
            scores[j * lanes + lane] = weight;
            sum[lane] += weight;
        }

    if (lanes == LLAMA_LANES) {
        llama_tile_product(out, values, 1, head_dim, scores, head_dim, n_seen);
    } else {
        memset(out, 0, head_dim * sizeof(float));
        for (size_t j = 0; j < n_seen; j++)
            for (size_t d = 0; d < head_dim; d++)
                out[d] += scores[j] * values[j * head_dim + d];
    }
    for (size_t d = 0; d < head_dim; d++)
        for (size_t lane = 0; lane < lanes; lane++)
            out[d * lanes + lane] /= sum[lane];
}

/* ---- the forward pass ----------------------------------------------------------------------- */

/* Copies x [n_heads][head_dim][lanes] of token `lane` to a row of each head. */
static inline void llama_store(float *rows, size_t head_step, const float *x, size_t n_heads,
                               size_t head_dim, size_t lane, size_t lanes) {
    for (size_t head = 0; head < n_heads; head++)
        for (size_t d = 0; d < head_dim; d++)
            rows[head * head_step + d] = x[(head * head_dim + d) * lanes + lane];
}

/* Feeds `n` tokens (1 to LLAMA_LANES): to the next position, and in every list to its next slot.
 * `queries`, if not NULL, is [n_layers][n_heads][window][head_dim] and receives the rotated queries
 * of the tokens from `first_query` on, which is a position. `last`: the logits of the last token
 * are wanted. */
static inline void llama_feed(const llama_model *m, llama_state *s, llama_cache *cache,
                              const int32_t *tokens, size_t n, float *queries, size_t window,
                              size_t first_query, int last) {
    const size_t lanes = n == 1 ? 1 : LLAMA_LANES;
    const size_t dim = m->dim, head_dim = m->head_dim, kv_dim = m->n_kv_heads * head_dim;
    const size_t position = snapkv_next_position(&cache->lists[0].cursor);

    memset(s->x, 0, dim * lanes * sizeof(float)); /* lanes without a token stay zero */
    for (size_t lane = 0; lane < n; lane++)
        for (size_t i = 0; i < dim; i++)
            s->x[i * lanes + lane] = m->embedding[(size_t)tokens[lane] * dim + i];
    llama_angles(s, head_dim, position, lanes);

    for (size_t layer = 0; layer < m->n_layers; layer++) {
        llama_rms_norm(s->h, s->x, m->rms_att + layer * dim, dim, lanes);
        llama_product(s->k, m->wk + layer * kv_dim * dim, s->h, kv_dim, dim, lanes);
        llama_product(s->v, m->wv + layer * kv_dim * dim, s->h, kv_dim, dim, lanes);
        llama_rotate(s->k, s, m->n_kv_heads, head_dim, lanes);
        const llama_list *const lists = cache->lists + layer * cache->n_heads;
        for (size_t head = 0; head < cache->n_heads; head++) {
            /* A cache that was compressed per query head stores each of them. */
            const size_t kv = head * m->n_kv_heads / cache->n_heads * head_dim * lanes;
            const size_t slot = snapkv_next_slot(&lists[head].cursor);
            const size_t at = (lists[head].first + slot) * head_dim;
            for (size_t lane = 0; lane < n; lane++) {
                llama_store(cache->keys + at + lane * head_dim, 0, s->k + kv, 1, head_dim, lane,
                            lanes);
                llama_store(cache->values + at + lane * head_dim, 0, s->v + kv, 1, head_dim, lane,
                            lanes);
            }
        }
        /* Of the last layer, only the window's queries and the last token's output are used. */
        if (layer + 1 == m->n_layers && !last && position + n <= first_query)
            break;

        llama_product(s->q, m->wq + layer * dim * dim, s->h, dim, dim, lanes);
        llama_rotate(s->q, s, m->n_heads, head_dim, lanes);
        for (size_t lane = 0; queries != NULL && lane < n; lane++)
            if (position + lane >= first_query)
                llama_store(queries +
                                (layer * m->n_heads * window + position + lane - first_query) *
                                    head_dim,
                            window * head_dim, s->q, m->n_heads, head_dim, lane, lanes);

        for (size_t head = 0; head < m->n_heads; head++) {
            const llama_list *const list = lists + head * cache->n_heads / m->n_heads;
            const size_t at = list->first * head_dim;
            llama_attend(s->attended + head * head_dim * lanes, s->q + head * head_dim * lanes,
                         cache->keys + at, cache->values + at, s->scores, head_dim,
                         snapkv_next_slot(&list->cursor), n, lanes);
        }
        llama_product(s->h, m->wo + layer * dim * dim, s->attended, dim, dim, lanes);
        for (size_t i = 0; i < dim * lanes; i++)
            s->x[i] += s->h[i];

        llama_rms_norm(s->h, s->x, m->rms_ffn + layer * dim, dim, lanes);
        const size_t ffn = layer * m->hidden_dim * dim;
        llama_product(s->gate, m->w1 + ffn, s->h, m->hidden_dim, dim, lanes);
        llama_product(s->up, m->w3 + ffn, s->h, m->hidden_dim, dim, lanes);
        for (size_t i = 0; i < m->hidden_dim * lanes; i++)
            s->gate[i] *= s->up[i] / (1.0f + expf(-s->gate[i]));
        llama_product(s->h, m->w2 + ffn, s->gate, dim, m->hidden_dim, lanes);
        for (size_t i = 0; i < dim * lanes; i++)
            s->x[i] += s->h[i];
    }
    if (!last)
        return;
    for (size_t i = 0; i < dim; i++)
        s->h[i] = s->x[i * lanes + n - 1];
    llama_rms_norm(s->h, s->h, m->rms_final, dim, 1);
    llama_product(s->logits, m->classifier, s->h, m->vocab_size, dim, 1);
}

static inline const char *llama_append(llama_cache *cache, size_t n_tokens) {
    snapkv_status status = SNAPKV_OK;
    for (size_t i = 0; i < llama_n_lists(cache) && status == SNAPKV_OK; i++)
        status = snapkv_append(&cache->lists[i].cursor, n_tokens);
    return status == SNAPKV_OK ? NULL : snapkv_status_string(status);
}

static inline const char *llama_check_feed(const llama_model *m, const llama_state *s,
                                           const llama_cache *cache, const int32_t *tokens,
                                           size_t n_tokens) {
    for (size_t i = 0; i < llama_n_lists(cache); i++) {
        const llama_list *const list = cache->lists + i;
        const size_t slot = snapkv_next_slot(&list->cursor);
        if (n_tokens > list->n_slots - slot || slot + n_tokens > s->n_slots)
            return "the cache has no slot left";
    }
    for (size_t i = 0; i < n_tokens; i++)
        if (tokens[i] < 0 || (size_t)tokens[i] >= m->vocab_size)
            return "a token is not in the vocabulary";
    return NULL;
}

/* Starts a new sequence: runs the whole prompt and fills the cache, which stores the K/V heads.
 *
 *   in   tokens   [n_tokens]
 *   out  queries  [n_layers][n_heads][window][head_dim], the rotated queries of the last `window`
 *                 tokens, for llama_compress; NULL if they are not wanted
 *
 * Returns NULL or an error. */
static inline const char *llama_prefill(const llama_model *m, llama_state *s, llama_cache *cache,
                                        const int32_t *tokens, size_t n_tokens, size_t window,
                                        float *queries) {
    const snapkv_cursor nothing = {0, 0, 0}, prompt = {n_tokens, n_tokens, 0};
    llama_start(cache, nothing);
    llama_share_rows(cache);
    const char *error = llama_check_feed(m, s, cache, tokens, n_tokens);
    if (error != NULL)
        return error;
    if (n_tokens == 0 || (queries != NULL && (window == 0 || window > n_tokens)))
        return "the prompt is empty or shorter than the window";
    const size_t first_query = queries == NULL ? n_tokens : n_tokens - window;
    for (size_t start = 0; start < n_tokens && error == NULL; start += LLAMA_LANES) {
        const size_t left = n_tokens - start;
        const size_t n = left < LLAMA_LANES ? left : LLAMA_LANES;
        llama_feed(m, s, cache, tokens + start, n, queries, window, first_query, n == left);
        error = llama_append(cache, n);
    }
    llama_start(cache, prompt);
    return error;
}

/* Feeds one more token. Its position continues the prompt's, whatever the cache has dropped; its
 * key and value go to the next slot. Returns NULL or an error. */
static inline const char *llama_decode(const llama_model *m, llama_state *s, llama_cache *cache,
                                       int32_t token) {
    const char *error = llama_check_feed(m, s, cache, &token, 1);
    if (error != NULL)
        return error;
    llama_feed(m, s, cache, &token, 1, NULL, 0, SIZE_MAX, 1);
    return llama_append(cache, 1);
}

/* The most likely next token; the lowest of equals. */
static inline int32_t llama_best(const llama_model *m, const llama_state *s) {
    size_t best = 0;
    for (size_t i = 1; i < m->vocab_size; i++)
        if (s->logits[i] > s->logits[best])
            best = i;
    return (int32_t)best;
}

/* ---- SnapKV --------------------------------------------------------------------------------- */

/* How many heads a compressed cache stores. */
static inline size_t llama_stored_heads(const snapkv_config *config, const llama_model *m) {
    return config->sharing == SNAPKV_PER_QUERY_HEAD ? m->n_heads : m->n_kv_heads;
}

/* The view of one layer that snapkv.h reads: of a prefilled cache, whose lists are equal. */
static inline snapkv_layer llama_layer(const llama_model *m, const llama_cache *cache, size_t layer,
                                       const float *queries, size_t window) {
    const size_t row = cache->head_dim * sizeof(float);
    snapkv_layer view;
    memset(&view, 0, sizeof view);
    view.n_query_heads = m->n_heads;
    view.n_kv_heads = m->n_kv_heads;
    view.length = llama_cursor(cache).prompt_length;
    view.head_dim = m->head_dim;
    view.queries.data = queries + layer * m->n_heads * window * m->head_dim;
    view.queries.head_stride = window * row;
    view.queries.row_stride = row;
    view.keys.data = cache->keys + llama_cache_at(cache, layer, 0);
    view.keys.head_stride = cache->lists[0].n_slots * row;
    view.keys.row_stride = row;
    view.values = view.keys;
    view.values.data = cache->values + llama_cache_at(cache, layer, 0);
    return view;
}

/* Where rows go: to a list, or from it on to lists `head_stride` bytes apart. */
static inline snapkv_rows_out llama_rows_out(const llama_cache *to, float *rows,
                                             const llama_list *list, size_t head_stride) {
    snapkv_rows_out out;
    memset(&out, 0, sizeof out);
    out.data = rows + list->first * to->head_dim;
    out.head_stride = head_stride;
    out.row_stride = to->head_dim * sizeof(float);
    return out;
}

/* What can't be compressed, or NULL. */
static inline const char *llama_check_compress(const snapkv_config *config, const llama_model *m,
                                               const llama_cache *from, const float *queries,
                                               const llama_cache *to) {
    const snapkv_cursor cursor = llama_cursor(from);
    if (cursor.prompt_kept != cursor.prompt_length || cursor.generated != 0 ||
        from->n_heads != m->n_kv_heads)
        return "only the full cache of a prompt can be compressed";
    const size_t n_kept = snapkv_kept_count(config, cursor.prompt_length);
    if (to->n_heads != llama_stored_heads(config, m) || to->n_rows / llama_n_lists(to) < n_kept)
        return "the compressed cache has the wrong shape";
    const snapkv_layer view = llama_layer(m, from, 0, queries, config->window);
    const snapkv_status status = snapkv_check(config, &view);
    return status == SNAPKV_OK ? NULL : snapkv_status_string(status);
}

/* Compresses every layer of a prefilled cache.
 *
 *   in   from      as llama_prefill left it
 *        queries   [n_layers][n_heads][config->window][head_dim], from the same prefill
 *   out  to        a cache of llama_stored_heads() with room for the kept tokens and what is to be
 *                  decoded; may be `from` itself (in place) unless query heads keep their own lists
 *        kept      [n_layers][sets][kept_count], the positions kept
 *        coverage  [n_layers][sets], the share of attention they hold; may be NULL
 *
 * Returns NULL or an error. */
static inline const char *llama_compress(const snapkv_config *config, const llama_model *m,
                                         const llama_cache *from, const float *queries,
                                         llama_cache *to, int32_t *kept, float *coverage) {
    const char *error = llama_check_compress(config, m, from, queries, to);
    if (error != NULL)
        return error;
    const size_t length = llama_cursor(from).prompt_length;
    const size_t n_kept = snapkv_kept_count(config, length);
    snapkv_layer view = llama_layer(m, from, 0, queries, config->window);
    const size_t n_sets = snapkv_set_count(config, &view);
    const size_t workspace_size = snapkv_workspace_size(config, &view);
    void *workspace = malloc(workspace_size);
    if (workspace == NULL)
        return "not enough memory for the workspace";
    llama_start(to, snapkv_cursor_start(config, length));
    if (to != from)
        llama_share_rows(to);
    snapkv_status status = SNAPKV_OK;
    for (size_t layer = 0; layer < m->n_layers && status == SNAPKV_OK; layer++) {
        const llama_list *const first = to->lists + layer * to->n_heads;
        const size_t head_stride = first->n_slots * to->head_dim * sizeof(float);
        const snapkv_rows_out keys_out = llama_rows_out(to, to->keys, first, head_stride);
        const snapkv_rows_out values_out = llama_rows_out(to, to->values, first, head_stride);
        view = llama_layer(m, from, layer, queries, config->window);
        for (size_t set = 0; set < n_sets && status == SNAPKV_OK; set++) {
            snapkv_selection selection;
            status = snapkv_compress(config, &view, set, kept + (layer * n_sets + set) * n_kept,
                                     &keys_out, &values_out, &selection, workspace, workspace_size);
            if (status == SNAPKV_OK && coverage != NULL)
                coverage[layer * n_sets + set] = selection.coverage;
        }
    }
    free(workspace);
    return status == SNAPKV_OK ? NULL : snapkv_status_string(status);
}

/* ---- one budget for many lists -------------------------------------------------------------- */

/* Which lists share a budget: none, those of a layer, or all. */
typedef enum llama_budget {
    LLAMA_BUDGET_HEAD,
    LLAMA_BUDGET_LAYER,
    LLAMA_BUDGET_MODEL
} llama_budget;

/* What the lists of all layers rank their positions by. An engine fills it layer by layer while the
 * prompt runs, and decides after the last. */
typedef struct llama_scores {
    size_t n_layers, n_sets, length, n; /* n positions compete */
    float *scores, *votes;              /* [n_layers][n_sets][n] */
    snapkv_list *lists;                 /* [n_layers][n_sets] without the pinned positions */
} llama_scores;

static inline void llama_scores_free(llama_scores *s) {
    free(s->scores);
    free(s->lists);
    memset(s, 0, sizeof *s);
}

/* Scores every list of a prefilled cache; `queries` as in llama_compress. The scores are
 * those of every capacity. Returns NULL or an error; then nothing is to be freed. */
static inline const char *llama_score(llama_scores *s, const snapkv_config *config,
                                      const llama_model *m, const llama_cache *from,
                                      const float *queries) {
    snapkv_layer view = llama_layer(m, from, 0, queries, config->window);
    const size_t n_recent = config->n_recent != 0 ? config->n_recent : config->window;
    memset(s, 0, sizeof *s);
    if (n_recent + config->n_sink >= view.length)
        return snapkv_status_string(SNAPKV_ERROR_WINDOW);
    s->n_layers = m->n_layers;
    s->n_sets = snapkv_set_count(config, &view);
    s->length = view.length;
    s->n = view.length - n_recent;
    const size_t n_lists = s->n_layers * s->n_sets;
    const size_t workspace_size = snapkv_workspace_size(config, &view);
    void *workspace = malloc(workspace_size + (workspace_size == 0));
    s->scores = llama_floats(llama_times(2, llama_times(n_lists, s->n)));
    s->lists = (snapkv_list *)calloc(n_lists + 1, sizeof *s->lists);
    if (workspace == NULL || s->scores == NULL || s->lists == NULL) {
        free(workspace);
        llama_scores_free(s);
        return "not enough memory for the scores";
    }
    s->votes = s->scores + n_lists * s->n;
    snapkv_status status = n_lists == 0 ? SNAPKV_ERROR_OPTION : SNAPKV_OK;
    for (size_t i = 0; i < n_lists && status == SNAPKV_OK; i++) {
        view = llama_layer(m, from, i / s->n_sets, queries, config->window);
        s->lists[i].scores = s->scores + i * s->n + config->n_sink;
        s->lists[i].n = s->n - config->n_sink;
        status = snapkv_score(config, &view, i % s->n_sets, s->scores + i * s->n,
                              s->votes + i * s->n, workspace, workspace_size);
    }
    free(workspace);
    if (status == SNAPKV_OK)
        return NULL;
    llama_scores_free(s);
    return snapkv_status_string(status);
}

/* How many positions each list keeps, pinned and recent ones included: config->capacity on average.
 * A list keeps at least `least` (0 .. 1) of the average number of its best. */
static inline const char *llama_share(const llama_scores *s, const snapkv_config *config,
                                      llama_budget budget, double least,
                                      size_t *counts /* [n_layers][n_sets] */) {
    const size_t n_lists = s->n_layers * s->n_sets;
    const size_t n_pinned = s->length - s->n + config->n_sink;
    const size_t n_together = budget == LLAMA_BUDGET_HEAD    ? 1
                              : budget == LLAMA_BUDGET_LAYER ? s->n_sets
                                                             : n_lists;
    if (config->capacity <= n_pinned)
        return snapkv_status_string(SNAPKV_ERROR_CAPACITY);
    const size_t mean = config->capacity - n_pinned;
    for (size_t i = 0; i < n_lists; i += n_together) {
        const snapkv_status status = snapkv_allocate(s->lists + i, n_together, n_together * mean,
                                                     (size_t)(least * (double)mean), counts + i);
        if (status != SNAPKV_OK)
            return snapkv_status_string(status);
    }
    for (size_t i = 0; i < n_lists; i++)
        counts[i] += n_pinned;
    return NULL;
}

/* Compresses with lists of those lengths; the rest as in llama_compress, but that `kept` holds one
 * list after the other, and no list of `to` has slots that another could use. */
static inline const char *llama_keep(const llama_scores *s, const snapkv_config *config,
                                     const size_t *counts, const llama_model *m,
                                     const llama_cache *from, const float *queries, llama_cache *to,
                                     int32_t *kept, float *coverage) {
    const size_t n_lists = s->n_layers * s->n_sets, n_pinned = s->length - s->n + config->n_sink;
    const size_t n_heads = to->n_heads / s->n_sets; /* of `to` that have the same list */
    const char *error = llama_check_compress(config, m, from, queries, to);
    snapkv_status status = SNAPKV_OK;
    size_t at = 0;
    if (error != NULL)
        return error;
    for (size_t i = 0; i < n_lists && status == SNAPKV_OK; at += counts[i++]) {
        status =
            snapkv_keep(config, s->length, s->scores + i * s->n, counts[i] - n_pinned, kept + at);
        if (status == SNAPKV_OK && coverage != NULL)
            status = snapkv_coverage(config, s->length, s->votes + i * s->n, kept + at, counts[i],
                                     &coverage[i]);
    }
    if (status != SNAPKV_OK)
        return snapkv_status_string(status);
    for (size_t i = 0; i < n_lists * n_heads; i++) {
        const snapkv_cursor start = {s->length, counts[i / n_heads], 0};
        to->lists[i].cursor = start;
    }
    if (to != from)
        llama_share_rows(to);
    at = 0;
    for (size_t i = 0; i < n_lists && status == SNAPKV_OK; at += counts[i++]) {
        const llama_list *const list = to->lists + i * n_heads;
        const size_t head_stride = n_heads == 1 ? 0 : list->n_slots * to->head_dim * sizeof(float);
        const snapkv_rows_out keys_out = llama_rows_out(to, to->keys, list, head_stride);
        const snapkv_rows_out values_out = llama_rows_out(to, to->values, list, head_stride);
        const snapkv_layer view = llama_layer(m, from, i / s->n_sets, queries, config->window);
        status = snapkv_gather(config, &view, i % s->n_sets, kept + at, counts[i], &keys_out,
                               &values_out);
    }
    return status == SNAPKV_OK ? NULL : snapkv_status_string(status);
}

/* llama_compress where lists share a budget: as many positions in all, and a list that needs more
 * of them keeps more.
 *
 *   out  counts  [n_layers][sets]  how many positions each list keeps */
static inline const char *llama_compress_shared(const snapkv_config *config, llama_budget budget,
                                                double least, const llama_model *m,
                                                const llama_cache *from, const float *queries,
                                                llama_cache *to, size_t *counts, int32_t *kept,
                                                float *coverage) {
    const size_t length = llama_cursor(from).prompt_length;
    llama_scores scores;
    const char *error = llama_check_compress(config, m, from, queries, to);
    if (error != NULL)
        return error;
    if (length < config->capacity) { /* all of it stays */
        const snapkv_layer view = llama_layer(m, from, 0, queries, config->window);
        for (size_t i = 0; i < m->n_layers * snapkv_set_count(config, &view); i++)
            counts[i] = length;
        return llama_compress(config, m, from, queries, to, kept, coverage);
    }
    error = llama_score(&scores, config, m, from, queries);
    if (error != NULL)
        return error;
    error = llama_share(&scores, config, budget, least, counts);
    if (error == NULL)
        error = llama_keep(&scores, config, counts, m, from, queries, to, kept, coverage);
    llama_scores_free(&scores);
    return error;
}

#endif
