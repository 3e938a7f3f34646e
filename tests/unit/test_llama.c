/* The examples' engine: its loader on bad files, its forward pass against a plain one in double
 * precision, and what it must give when it decodes from a compressed cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../../examples/arguments.h"
#include "../../examples/llama.h"
#include "../../examples/tokenizer.h"

#ifndef DIRECTORY
#define DIRECTORY "build" /* where the file may go */
#endif

static const char PATH[] = DIRECTORY "/llama_test.bin";

enum { MAX_TOKENS = 64 };

static uint64_t random_state = 1;

static uint32_t random_word(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static double random_double(void) {
    return (double)random_word() / 2147483648.0 - 1;
}

/* ---- files ---------------------------------------------------------------------------------- */

typedef struct shape {
    int32_t dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, max_length;
} shape;

static const shape SHAPES[] = {
    {64, 48, 2, 4, 2, 50, 96},   /* grouped */
    {24, 20, 1, 4, 1, -7, 16},   /* one K/V head, head dimension 6, untied */
    {30, 33, 3, 3, 3, 11, 8},    /* as many K/V heads, nothing a multiple of the lanes */
    {2, 1, 1, 1, 1, 2, 1},       /* the smallest */
    {128, 96, 2, 4, 2, 96, 1152} /* the recall model's */
};
enum { N_SHAPES = sizeof SHAPES / sizeof SHAPES[0] };

static void put_word(FILE *file, uint32_t word) {
    for (int i = 0; i < 4; i++)
        fputc((int)(word >> 8 * i & 255), file);
}

static size_t count_floats(const shape *s) {
    const size_t d = (size_t)s->dim, f = (size_t)s->hidden_dim, n = (size_t)s->n_layers;
    const size_t hd = d / (size_t)s->n_heads, kv = hd * (size_t)s->n_kv_heads;
    const size_t v = (size_t)abs(s->vocab_size), c = s->vocab_size < 0 ? v * d : 0;
    return v * d + n * (2 * d + 2 * d * d + 2 * kv * d + 3 * d * f) + d +
           (size_t)s->max_length * hd + c;
}

static void put_header(FILE *file, const shape *s) {
    const int32_t n[] = {s->dim,        s->hidden_dim, s->n_layers,  s->n_heads,
                         s->n_kv_heads, s->vocab_size, s->max_length};
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++)
        put_word(file, (uint32_t)n[i]);
}

/* A checkpoint of random weights; `n_floats` of them instead of the right number if not 0. */
static void write_model(const shape *s, size_t n_floats, uint32_t last) {
    FILE *file = fopen(PATH, "wb");
    assert_non_null(file);
    put_header(file, s);
    const size_t n = n_floats != 0 ? n_floats : count_floats(s);
    for (size_t i = 0; i < n; i++) {
        const float weight = (float)(random_double() * 2 / sqrt((double)s->dim));
        uint32_t word;
        memcpy(&word, &weight, sizeof word);
        put_word(file, i + 1 == n && last != 0 ? last : word);
    }
    assert_int_equal(fclose(file), 0);
}

static void load(llama_model *m, const shape *s) {
    write_model(s, 0, 0);
    const char *error = llama_load(m, PATH);
    if (error != NULL)
        fail_msg("%s", error);
}

static void assert_refused(const char *path, const char *reason) {
    llama_model m;
    const char *error = llama_load(&m, path);
    assert_non_null(error);
    if (strstr(error, reason) == NULL)
        fail_msg("said \"%s\", not \"%s\"", error, reason);
    assert_null(m.weights);
}

static void loads_every_shape(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        llama_model m;
        load(&m, &SHAPES[i]);
        assert_int_equal(m.dim, SHAPES[i].dim);
        assert_int_equal(m.vocab_size, abs(SHAPES[i].vocab_size));
        assert_int_equal(m.classifier == m.embedding, SHAPES[i].vocab_size > 0);
        llama_free(&m);
    }
}

static void refuses_bad_files(void **state) {
    (void)state;
    const shape good = SHAPES[0];
    shape s = good;
    assert_refused("build/no such file", "opened");
    assert_refused("build", "too short"); /* a directory */
    for (size_t n = 1; n < count_floats(&good); n += 997) {
        write_model(&good, n, 0);
        assert_refused(PATH, "shorter");
    }
    write_model(&good, count_floats(&good) - 1, 0);
    assert_refused(PATH, "shorter");
    write_model(&good, count_floats(&good) + 1, 0);
    assert_refused(PATH, "longer");
    write_model(&good, 0, 0x7fc00000u);
    assert_refused(PATH, "finite");
    write_model(&good, 0, 0xff800000u);
    assert_refused(PATH, "finite");
    s.n_layers = 0;
    write_model(&s, 10, 0);
    assert_refused(PATH, "zero or negative");
    s = good;
    s.n_heads = -4;
    write_model(&s, 10, 0);
    assert_refused(PATH, "zero or negative");
    s = good;
    s.n_kv_heads = 3;
    write_model(&s, 10, 0);
    assert_refused(PATH, "divide");
    s = good;
    s.n_kv_heads = 8;
    write_model(&s, 10, 0);
    assert_refused(PATH, "divide");
    s = good;
    s.dim = 20;
    s.n_heads = s.n_kv_heads = 4;
    write_model(&s, 10, 0);
    assert_refused(PATH, "odd");
    const shape huge = {2147483646, 2147483647, 2147483647, 1, 1, INT32_MIN + 1, 2147483647};
    write_model(&huge, 10, 0);
    assert_refused(PATH, "beyond memory");
    s = good;
    s.vocab_size = INT32_MIN;
    write_model(&s, 10, 0);
    assert_refused(PATH, "zero or negative");
}

/* Every length of a file below the header's, and headers of noise: an error, no crash. */
static void refuses_noise(void **state) {
    (void)state;
    for (size_t n = 0; n < 28; n++) {
        FILE *file = fopen(PATH, "wb");
        assert_non_null(file);
        for (size_t i = 0; i < n; i++)
            fputc(1, file);
        assert_int_equal(fclose(file), 0);
        assert_refused(PATH, "too short");
    }
    for (int round = 0; round < 500; round++) {
        FILE *file = fopen(PATH, "wb");
        assert_non_null(file);
        for (int i = 0; i < 100; i++)
            put_word(file, random_word() >> (i < 7 ? random_word() % 32 : 0));
        assert_int_equal(fclose(file), 0);
        assert_refused(PATH, "");
    }
}

/* ---- the plain forward pass ----------------------------------------------------------------- */

/* One token at a time, everything in double precision, keys and values of every position kept. */
typedef struct plain {
    const llama_model *m;
    double *keys, *values; /* [n_layers][n_kv_heads][MAX_TOKENS][head_dim] */
    double *logits;        /* [vocab_size] */
} plain;

static void plain_new(plain *p, const llama_model *m) {
    const size_t n = m->n_layers * m->n_kv_heads * MAX_TOKENS * m->head_dim;
    p->m = m;
    p->keys = calloc(n, sizeof(double));
    p->values = calloc(n, sizeof(double));
    p->logits = calloc(m->vocab_size, sizeof(double));
    assert_true(p->keys != NULL && p->values != NULL && p->logits != NULL);
}

static void plain_free(plain *p) {
    free(p->keys);
    free(p->values);
    free(p->logits);
}

static void plain_product(double *y, const float *w, const double *x, size_t n_out, size_t n_in) {
    for (size_t o = 0; o < n_out; o++) {
        y[o] = 0;
        for (size_t i = 0; i < n_in; i++)
            y[o] += (double)w[o * n_in + i] * x[i];
    }
}

static void plain_norm(double *y, const double *x, const float *weight, size_t dim) {
    double sum = 0;
    for (size_t i = 0; i < dim; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < dim; i++)
        y[i] = x[i] / sqrt(sum / (double)dim + 1e-5) * (double)weight[i];
}

static void plain_rotate(double *x, size_t n_heads, size_t head_dim, size_t position) {
    for (size_t i = 0; i < n_heads * head_dim; i += 2) {
        const double frequency = pow(1e4, -(double)(i % head_dim) / (double)head_dim);
        const double c = cos((double)position * frequency), s = sin((double)position * frequency);
        const double even = x[i], odd = x[i + 1];
        x[i] = even * c - odd * s;
        x[i + 1] = even * s + odd * c;
    }
}

/* Feeds a token. `dropped` [n_layers][n_heads][MAX_TOKENS], if not NULL, marks positions that a
 * query head doesn't see. */
static void plain_feed(plain *p, int32_t token, size_t position, const char *dropped) {
    enum { MOST = 128 };
    const llama_model *const m = p->m;
    const size_t dim = m->dim, hd = m->head_dim, kv_dim = m->n_kv_heads * hd;
    double x[MOST], h[MOST], q[MOST], kv[MOST], attended[MOST], gate[MOST], up[MOST];
    assert_true(dim <= MOST && m->hidden_dim <= MOST && position < MAX_TOKENS);
    for (size_t i = 0; i < dim; i++)
        x[i] = (double)m->embedding[(size_t)token * dim + i];
    for (size_t layer = 0; layer < m->n_layers; layer++) {
        plain_norm(h, x, m->rms_att + layer * dim, dim);
        plain_product(q, m->wq + layer * dim * dim, h, dim, dim);
        plain_rotate(q, m->n_heads, hd, position);
        double *const keys = p->keys + layer * m->n_kv_heads * MAX_TOKENS * hd;
        double *const values = p->values + layer * m->n_kv_heads * MAX_TOKENS * hd;
        plain_product(kv, m->wk + layer * kv_dim * dim, h, kv_dim, dim);
        plain_rotate(kv, m->n_kv_heads, hd, position);
        for (size_t i = 0; i < kv_dim; i++)
            keys[(i / hd * MAX_TOKENS + position) * hd + i % hd] = kv[i];
        plain_product(kv, m->wv + layer * kv_dim * dim, h, kv_dim, dim);
        for (size_t i = 0; i < kv_dim; i++)
            values[(i / hd * MAX_TOKENS + position) * hd + i % hd] = kv[i];
        for (size_t head = 0; head < m->n_heads; head++) {
            const size_t at = head * m->n_kv_heads / m->n_heads * MAX_TOKENS * hd;
            double sum = 0, out[MOST] = {0};
            for (size_t j = 0; j <= position; j++) {
                double logit = 0;
                if (dropped != NULL && dropped[(layer * m->n_heads + head) * MAX_TOKENS + j])
                    continue;
                for (size_t d = 0; d < hd; d++)
                    logit += q[head * hd + d] * keys[at + j * hd + d];
                const double weight = exp(logit / sqrt((double)hd)); /* small: no overflow */
                sum += weight;
                for (size_t d = 0; d < hd; d++)
                    out[d] += weight * values[at + j * hd + d];
            }
            for (size_t d = 0; d < hd; d++)
                attended[head * hd + d] = out[d] / sum;
        }
        plain_product(h, m->wo + layer * dim * dim, attended, dim, dim);
        for (size_t i = 0; i < dim; i++)
            x[i] += h[i];
        plain_norm(h, x, m->rms_ffn + layer * dim, dim);
        plain_product(gate, m->w1 + layer * m->hidden_dim * dim, h, m->hidden_dim, dim);
        plain_product(up, m->w3 + layer * m->hidden_dim * dim, h, m->hidden_dim, dim);
        for (size_t i = 0; i < m->hidden_dim; i++)
            gate[i] *= up[i] / (1 + exp(-gate[i]));
        plain_product(h, m->w2 + layer * m->hidden_dim * dim, gate, dim, m->hidden_dim);
        for (size_t i = 0; i < dim; i++)
            x[i] += h[i];
    }
    plain_norm(h, x, m->rms_final, dim);
    plain_product(p->logits, m->classifier, h, m->vocab_size, dim);
}

static void assert_logits(const plain *p, const llama_state *s) {
    double most = 0;
    for (size_t i = 0; i < p->m->vocab_size; i++)
        most = fmax(most, fabs(p->logits[i]));
    for (size_t i = 0; i < p->m->vocab_size; i++)
        if (!(fabs((double)s->logits[i] - p->logits[i]) <= 2e-5 * most))
            fail_msg("logit %zu: %g, not %g", i, (double)s->logits[i], p->logits[i]);
}

/* ---- the engine ----------------------------------------------------------------------------- */

/* A model with everything a test needs. */
typedef struct engine {
    llama_model m;
    llama_state s;
    llama_cache full, per_kv_head, per_query_head;
    float *queries;
    size_t *counts;
    int32_t *kept, tokens[MAX_TOKENS];
} engine;

static void engine_new(engine *e, const shape *s) {
    load(&e->m, s);
    const size_t heads = e->m.n_layers * e->m.n_heads;
    assert_true(llama_state_new(&e->s, &e->m, MAX_TOKENS));
    assert_true(llama_cache_new(&e->full, &e->m, e->m.n_kv_heads, MAX_TOKENS));
    assert_true(llama_cache_new(&e->per_kv_head, &e->m, e->m.n_kv_heads, MAX_TOKENS));
    assert_true(llama_cache_new(&e->per_query_head, &e->m, e->m.n_heads, MAX_TOKENS));
    e->queries = llama_floats(heads * MAX_TOKENS * e->m.head_dim);
    e->kept = malloc(heads * MAX_TOKENS * sizeof *e->kept);
    e->counts = calloc(heads, sizeof *e->counts);
    assert_true(e->queries != NULL && e->kept != NULL && e->counts != NULL);
    for (size_t i = 0; i < MAX_TOKENS; i++)
        e->tokens[i] = (int32_t)(random_word() % e->m.vocab_size);
}

static void engine_free(engine *e) {
    llama_state_free(&e->s);
    llama_cache_free(&e->full);
    llama_cache_free(&e->per_kv_head);
    llama_cache_free(&e->per_query_head);
    free(e->queries);
    free(e->kept);
    free(e->counts);
    llama_free(&e->m);
}

static void assert_fine(const char *error) {
    if (error != NULL)
        fail_msg("%s", error);
}

static void assert_error(const char *error, const char *reason) {
    assert_non_null(error);
    if (strstr(error, reason) == NULL)
        fail_msg("said \"%s\", not \"%s\"", error, reason);
}

static void prefill(engine *e, size_t n_tokens, size_t window) {
    assert_fine(llama_prefill(&e->m, &e->s, &e->full, e->tokens, n_tokens, window, e->queries));
}

static void agrees_with_plain(void **state) {
    static const size_t LENGTHS[] = {1, 2, 15, 16, 17, 40};
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        engine e;
        engine_new(&e, &SHAPES[i]);
        for (size_t n = 0; n < sizeof LENGTHS / sizeof LENGTHS[0]; n++) {
            plain p;
            plain_new(&p, &e.m);
            for (size_t t = 0; t < LENGTHS[n]; t++)
                plain_feed(&p, e.tokens[t], t, NULL);
            prefill(&e, LENGTHS[n], 1);
            assert_logits(&p, &e.s);
            for (size_t t = LENGTHS[n]; t < LENGTHS[n] + 3; t++) {
                plain_feed(&p, e.tokens[t], t, NULL);
                assert_fine(llama_decode(&e.m, &e.s, &e.full, e.tokens[t]));
                assert_logits(&p, &e.s);
            }
            plain_free(&p);
        }
        engine_free(&e);
    }
}

static snapkv_config config_of(snapkv_sharing sharing, size_t window, size_t capacity) {
    snapkv_config config = snapkv_default_config();
    config.window = window;
    config.capacity = capacity;
    config.sharing = sharing;
    return config;
}

static const snapkv_sharing SHARINGS[] = {SNAPKV_PER_KV_HEAD, SNAPKV_PER_QUERY_HEAD,
                                          SNAPKV_PER_LAYER};

/* Compresses to `to`: each list the capacity, or lists that share a budget, none below `least`. */
static void compress(engine *e, const snapkv_config *config, llama_budget budget, double least,
                     llama_cache *to) {
    const snapkv_layer view = llama_layer(&e->m, &e->full, 0, e->queries, config->window);
    for (size_t i = 0; i < e->m.n_layers * snapkv_set_count(config, &view); i++)
        e->counts[i] = snapkv_kept_count(config, view.length);
    if (budget == LLAMA_BUDGET_HEAD)
        assert_fine(llama_compress(config, &e->m, &e->full, e->queries, to, e->kept, NULL));
    else
        assert_fine(llama_compress_shared(config, budget, least, &e->m, &e->full, e->queries, to,
                                          e->counts, e->kept, NULL));
}

static llama_cache *cache_of(engine *e, snapkv_sharing sharing) {
    return sharing == SNAPKV_PER_QUERY_HEAD ? &e->per_query_head : &e->per_kv_head;
}

/* Decoding from a compressed cache is decoding from the full one with the dropped positions hidden,
 * each head its own; positions go on at the prompt's length, the slots of each list at its own kept
 * count. Lists that share a budget keep as much in all. */
static void decodes_from_what_is_kept(void **state) {
    enum { LENGTH = 40, WINDOW = 5, RECENT = 2, CAPACITY = 12, STEPS = 5 };
    size_t n_ragged = 0;
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++)
        for (size_t k = 0; k < 9; k++) {
            const llama_budget budget = (llama_budget)(k / 3);
            snapkv_config config = config_of(SHARINGS[k % 3], WINDOW, CAPACITY);
            config.n_recent = k < 3 ? 0 : RECENT;
            config.n_sink = k < 6 ? 0 : 1;
            engine e;
            engine_new(&e, &SHAPES[i]);
            prefill(&e, LENGTH, WINDOW);
            const snapkv_layer view = llama_layer(&e.m, &e.full, 0, e.queries, WINDOW);
            const size_t n_sets = snapkv_set_count(&config, &view);
            llama_cache tight, *const to = &tight; /* not a row more than it needs */
            assert_true(
                llama_cache_new(to, &e.m, llama_stored_heads(&config, &e.m), CAPACITY + STEPS));
            compress(&e, &config, budget, 0.2, to);

            const size_t n_rows = e.m.n_layers * e.m.n_heads, n_lists = e.m.n_layers * n_sets;
            char *const dropped = malloc(n_rows * MAX_TOKENS);
            size_t at = 0;
            assert_non_null(dropped);
            memset(dropped, 0, n_rows * MAX_TOKENS);
            for (size_t list = 0; list < n_lists; list++) {
                for (size_t row = list * n_rows / n_lists; row < (list + 1) * n_rows / n_lists;
                     row++) {
                    memset(dropped + row * MAX_TOKENS, 1, LENGTH);
                    for (size_t n = 0; n < e.counts[list]; n++)
                        dropped[row * MAX_TOKENS + (size_t)e.kept[at + n]] = 0;
                }
                at += e.counts[list];
                n_ragged += e.counts[list] != CAPACITY;
            }
            assert_int_equal(at, n_lists * CAPACITY);
            plain p;
            plain_new(&p, &e.m);
            for (size_t t = 0; t < LENGTH; t++)
                plain_feed(&p, e.tokens[t], t, NULL);
            for (size_t t = LENGTH; t < LENGTH + STEPS; t++) {
                for (size_t list = 0; list < llama_n_lists(to); list++) {
                    const snapkv_cursor *const cursor = &to->lists[list].cursor;
                    assert_int_equal(snapkv_next_position(cursor), t);
                    assert_int_equal(snapkv_next_slot(cursor),
                                     e.counts[list * n_lists / llama_n_lists(to)] + t - LENGTH);
                }
                assert_fine(llama_decode(&e.m, &e.s, to, e.tokens[t]));
                plain_feed(&p, e.tokens[t], t, dropped);
                assert_logits(&p, &e.s);
            }
            assert_error(llama_decode(&e.m, &e.s, to, 1), "slot");
            llama_cache_free(to);
            plain_free(&p);
            free(dropped);
            engine_free(&e);
        }
    assert_true(n_ragged > 20);
}

/* Decodes three tokens and keeps their logits. */
static void three_steps(engine *e, llama_cache *cache, float *logits) {
    for (size_t t = 0; t < 3; t++) {
        assert_fine(llama_decode(&e->m, &e->s, cache, e->tokens[t]));
        memcpy(logits + t * e->m.vocab_size, e->s.logits, e->m.vocab_size * sizeof(float));
    }
}

static void capacity_of_the_prompt_changes_nothing(void **state) {
    enum { LENGTH = 40, WINDOW = 5 };
    float expected[3 * 96], logits[3 * 96];
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++)
        for (size_t k = 0; k < 3; k++)
            for (size_t capacity = LENGTH; capacity < LENGTH + 2; capacity++) {
                const snapkv_config config = config_of(SHARINGS[k], WINDOW, capacity);
                engine e;
                engine_new(&e, &SHAPES[i]);
                llama_cache *const to =
                    SHARINGS[k] == SNAPKV_PER_QUERY_HEAD ? &e.per_query_head : &e.per_kv_head;
                prefill(&e, LENGTH, WINDOW);
                assert_fine(llama_compress(&config, &e.m, &e.full, e.queries, to, e.kept, NULL));
                three_steps(&e, &e.full, expected);
                three_steps(&e, to, logits);
                assert_memory_equal(logits, expected, 3 * e.m.vocab_size * sizeof(float));
                engine_free(&e);
            }
}

static void in_place_is_the_same(void **state) {
    enum { LENGTH = 40, WINDOW = 5, CAPACITY = 12 };
    float expected[3 * 96], logits[3 * 96];
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++)
        for (size_t k = 0; k < 9; k++) {
            const llama_budget budget = (llama_budget)(k / 3);
            const snapkv_config config = config_of(SHARINGS[k % 3], WINDOW, CAPACITY);
            engine e;
            engine_new(&e, &SHAPES[i]);
            prefill(&e, LENGTH, WINDOW);
            if (config.sharing != SNAPKV_PER_QUERY_HEAD) {
                compress(&e, &config, budget, 0.2, &e.per_kv_head);
                three_steps(&e, &e.per_kv_head, expected);
                compress(&e, &config, budget, 0.2, &e.full);
                three_steps(&e, &e.full, logits);
                assert_memory_equal(logits, expected, 3 * e.m.vocab_size * sizeof(float));
            } else if (e.m.n_heads != e.m.n_kv_heads) {
                assert_error(
                    llama_compress(&config, &e.m, &e.full, e.queries, &e.full, e.kept, NULL),
                    "shape");
                assert_error(llama_compress_shared(&config, LLAMA_BUDGET_MODEL, 0.2, &e.m, &e.full,
                                                   e.queries, &e.full, e.counts, e.kept, NULL),
                             "shape");
            }
            engine_free(&e);
        }
}

/* A budget that leaves every list its capacity, because no list may keep less than the average, or
 * because the prompt is shorter, gives the bits of the plain way. */
static void equal_counts_are_the_plain_cache(void **state) {
    enum { LENGTH = 40, WINDOW = 5 };
    float expected[3 * 96], logits[3 * 96];
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++)
        for (size_t k = 0; k < 12; k++) {
            const snapkv_config config =
                config_of(SHARINGS[k % 3], WINDOW, k < 6 ? 12 : LENGTH + 1);
            const llama_budget budget = k / 3 % 2 ? LLAMA_BUDGET_LAYER : LLAMA_BUDGET_MODEL;
            engine e;
            engine_new(&e, &SHAPES[i]);
            prefill(&e, LENGTH, WINDOW);
            llama_cache *const to = cache_of(&e, config.sharing);
            compress(&e, &config, LLAMA_BUDGET_HEAD, 0, to);
            three_steps(&e, to, expected);
            compress(&e, &config, budget, 1, to);
            three_steps(&e, to, logits);
            assert_memory_equal(logits, expected, 3 * e.m.vocab_size * sizeof(float));
            engine_free(&e);
        }
}

static void reports_misuse(void **state) {
    enum { LENGTH = 20, WINDOW = 5 };
    engine e;
    (void)state;
    engine_new(&e, &SHAPES[0]);
    const llama_model *const m = &e.m;
    assert_error(llama_prefill(m, &e.s, &e.full, e.tokens, 0, 0, NULL), "empty");
    assert_error(llama_prefill(m, &e.s, &e.full, e.tokens, 4, 5, e.queries), "window");
    assert_error(llama_prefill(m, &e.s, &e.full, e.tokens, MAX_TOKENS + 1, 0, NULL), "slot");
    assert_error(llama_prefill(m, &e.s, &e.full, e.tokens, SIZE_MAX, 0, NULL), "slot");
    prefill(&e, LENGTH, WINDOW);
    assert_error(llama_decode(m, &e.s, &e.full, -1), "vocabulary");
    assert_error(llama_decode(m, &e.s, &e.full, 50), "vocabulary");
    const snapkv_config small = config_of(SNAPKV_PER_KV_HEAD, WINDOW, WINDOW);
    assert_string_equal(llama_compress(&small, m, &e.full, e.queries, &e.per_kv_head, e.kept, NULL),
                        snapkv_status_string(SNAPKV_ERROR_CAPACITY));
    assert_string_equal(llama_compress_shared(&small, LLAMA_BUDGET_MODEL, 0.2, m, &e.full,
                                              e.queries, &e.per_kv_head, e.counts, e.kept, NULL),
                        snapkv_status_string(SNAPKV_ERROR_CAPACITY));
    assert_error(llama_rewind(&e.full, 1), snapkv_status_string(SNAPKV_ERROR_INDEX));
    const snapkv_config config = config_of(SNAPKV_PER_KV_HEAD, WINDOW, 10);
    assert_error(llama_compress(&config, m, &e.full, e.queries, &e.per_query_head, e.kept, NULL),
                 "shape");
    assert_fine(llama_compress(&config, m, &e.full, e.queries, &e.full, e.kept, NULL));
    assert_error(llama_compress(&config, m, &e.full, e.queries, &e.per_kv_head, e.kept, NULL),
                 "only the full cache");
    prefill(&e, MAX_TOKENS, WINDOW);
    assert_error(llama_decode(m, &e.s, &e.full, 1), "slot");
    engine_free(&e);
}

/* ---- the text model ------------------------------------------------------------------------- */

/* The unseen text is as likely to the engine as to PyTorch, which is what the first figure of
 *     python3 examples/train_text.py --evaluate
 * says: the mean of -log p over the tokens 1 to 1023. */
static void reads_the_unseen_text(void **state) {
    enum { N = 1024 };
    static const double EXPECTED = 2.23466;
    const char *error;
    size_t n_bytes, n_tokens;
    llama_model m;
    llama_state s;
    llama_cache cache;
    tokenizer t;
    (void)state;
    assert_fine(llama_load(&m, "examples/text_model.bin"));
    assert_fine(tokenizer_load(&t, "examples/text_tokenizer.bin", m.vocab_size));
    char *const text = read_file("examples/text_unseen.txt", &n_bytes, &error);
    assert_fine(error);
    int32_t *const tokens = malloc((n_bytes + 2) * sizeof *tokens);
    assert_non_null(tokens);
    assert_fine(tokenizer_encode(&t, text, n_bytes, tokens, &n_tokens));
    assert_true(n_tokens >= N);
    assert_true(llama_state_new(&s, &m, N));
    assert_true(llama_cache_new(&cache, &m, m.n_kv_heads, N));
    double loss = 0;
    for (size_t i = 0; i + 1 < N; i++) {
        double sum = 0;
        assert_fine(llama_decode(&m, &s, &cache, tokens[i]));
        for (size_t k = 0; k < m.vocab_size; k++)
            sum += exp((double)s.logits[k]);
        loss += log(sum) - (double)s.logits[tokens[i + 1]];
    }
    assert_float_equal(loss / (N - 1), EXPECTED, 2e-4);
    llama_state_free(&s);
    llama_cache_free(&cache);
    llama_free(&m);
    tokenizer_free(&t);
    free(tokens);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_every_shape),
        cmocka_unit_test(refuses_bad_files),
        cmocka_unit_test(refuses_noise),
        cmocka_unit_test(agrees_with_plain),
        cmocka_unit_test(decodes_from_what_is_kept),
        cmocka_unit_test(capacity_of_the_prompt_changes_nothing),
        cmocka_unit_test(in_place_is_the_same),
        cmocka_unit_test(equal_counts_are_the_plain_cache),
        cmocka_unit_test(reports_misuse),
        cmocka_unit_test(reads_the_unseen_text),
    };
    return cmocka_run_group_tests_name("llama", tests, NULL, NULL);
}
