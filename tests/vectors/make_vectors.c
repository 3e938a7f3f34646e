/* Writes vectors.txt, format 2: inputs by the documented generator, outputs of the library as exact
 * hexadecimal floats. Built for the scalar path with fused multiply-add; every answer is held to
 * the double-precision reference before it is printed. The format is described by README.md beside
 * this file. */
#include "check.h"
#include "half.h"
#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct spec {
    const char *name;
    size_t window, capacity, kernel, n_sink;
    snapkv_pooling pooling;
    snapkv_order order;
    snapkv_sharing sharing;
    snapkv_reduce reduce;
    size_t n_query_heads, n_kv_heads, length, head_dim;
    float scale, softcap;
    size_t span;
    int sinks, slopes;
    int amplitude;
} spec;

/* What the later cases add. */
typedef struct variant {
    spec base;
    snapkv_voting voting;
    size_t n_recent, chunk;
    size_t first_voter, voter_step; /* positions first, first + step, ...; 0 0: the last */
    size_t gap;                     /* positions left out behind row 40; 0: none */
    size_t budget, least;           /* for all sets together; 0: no steps */
} variant;

#define AVG  SNAPKV_POOL_AVG
#define MAX  SNAPKV_POOL_MAX
#define POS  SNAPKV_BY_POSITION
#define SCO  SNAPKV_BY_SCORE
#define KVH  SNAPKV_PER_KV_HEAD
#define QRH  SNAPKV_PER_QUERY_HEAD
#define LAY  SNAPKV_PER_LAYER
#define MEAN SNAPKV_REDUCE_MEAN
#define RMAX SNAPKV_REDUCE_MAX

static const spec specs[] = {
    /* name, W, C, kernel, n_sink, policy, heads, L, D, scale, cap, span, sinks, slopes, amplitude*/
    {"plain", 8, 24, 5, 0, AVG, POS, KVH, MEAN, 1, 1, 100, 16, 0, 0, 0, 0, 0, 4},
    {"one_query", 1, 9, 1, 0, AVG, POS, KVH, MEAN, 1, 1, 60, 4, 0, 0, 0, 0, 0, 4},
    {"one_dimension", 3, 12, 3, 0, AVG, POS, KVH, MEAN, 1, 1, 70, 1, 0, 0, 0, 0, 0, 8},
    {"odd_dimensions", 5, 20, 3, 0, MAX, POS, KVH, MEAN, 2, 2, 97, 3, 0, 0, 0, 0, 0, 4},
    {"sixteen_queries", 16, 32, 5, 0, AVG, POS, KVH, MEAN, 1, 1, 96, 8, 0, 0, 0, 0, 0, 4},
    {"seventeen_queries", 17, 40, 5, 0, AVG, POS, KVH, MEAN, 1, 1, 97, 8, 0, 0, 0, 0, 0, 4},
    {"window_32", 32, 64, 5, 0, AVG, POS, KVH, MEAN, 2, 1, 145, 64, 0, 0, 0, 0, 0, 4},
    {"window_130", 130, 150, 7, 0, AVG, POS, KVH, MEAN, 1, 1, 193, 8, 0, 0, 0, 0, 0, 4},
    {"window_all_but_one", 47, 48, 1, 0, AVG, POS, KVH, MEAN, 1, 1, 48, 8, 0, 0, 0, 0, 0, 4},
    {"length_equals_capacity", 8, 60, 5, 0, AVG, POS, KVH, MEAN, 1, 1, 60, 8, 0, 0, 0, 0, 0, 4},
    {"bypass", 8, 61, 5, 0, AVG, POS, KVH, MEAN, 2, 1, 60, 8, 0, 0, 0, 0, 0, 4},
    {"head_dim_128", 32, 80, 5, 0, AVG, POS, KVH, MEAN, 1, 1, 150, 128, 0, 0, 0, 0, 0, 4},
    {"head_dim_576", 8, 40, 5, 0, AVG, POS, KVH, MEAN, 1, 1, 100, 576, 0, 0, 0, 0, 0, 4},
    {"kernel_wider_than_prefix", 4, 12, 201, 0, AVG, POS, KVH, MEAN, 1, 1, 50, 8, 0, 0, 0, 0, 0, 4},
    {"max_wider_than_prefix", 4, 12, 201, 0, MAX, POS, KVH, MEAN, 1, 1, 50, 8, 0, 0, 0, 0, 0, 4},
    {"kernel_63", 8, 40, 63, 0, AVG, POS, KVH, MEAN, 1, 1, 160, 16, 0, 0, 0, 0, 0, 4},
    {"official", 8, 30, 5, 0, AVG, SCO, QRH, MEAN, 4, 2, 100, 16, 0, 0, 0, 0, 0, 4},
    {"group_mean", 8, 30, 5, 0, AVG, POS, KVH, MEAN, 6, 2, 100, 16, 0, 0, 0, 0, 0, 4},
    {"group_max", 8, 30, 5, 0, AVG, POS, KVH, RMAX, 6, 2, 100, 16, 0, 0, 0, 0, 0, 4},
    {"group_max_of_max", 8, 30, 7, 0, MAX, SCO, KVH, RMAX, 4, 1, 100, 16, 0, 0, 0, 0, 0, 4},
    {"layer_mean", 8, 30, 5, 0, AVG, POS, LAY, MEAN, 6, 3, 100, 16, 0, 0, 0, 0, 0, 4},
    {"layer_max", 8, 30, 5, 0, AVG, SCO, LAY, RMAX, 4, 4, 100, 16, 0, 0, 0, 0, 0, 4},
    {"pinned", 8, 30, 5, 4, AVG, POS, KVH, MEAN, 2, 1, 100, 16, 0, 0, 0, 0, 0, 4},
    {"pinned_by_score", 8, 30, 5, 4, AVG, SCO, KVH, MEAN, 2, 1, 100, 16, 0, 0, 0, 0, 0, 4},
    {"scale", 8, 30, 5, 0, AVG, POS, KVH, MEAN, 1, 1, 100, 16, 0.37f, 0, 0, 0, 0, 4},
    {"softcap", 8, 30, 5, 0, AVG, POS, KVH, MEAN, 2, 1, 100, 16, 0, 1.5f, 0, 0, 0, 6},
    {"span", 8, 30, 5, 0, AVG, POS, KVH, MEAN, 1, 1, 120, 16, 0, 0, 60, 0, 0, 4},
    {"span_inside_window", 8, 30, 5, 0, AVG, POS, KVH, MEAN, 1, 1, 120, 16, 0, 0, 3, 0, 0, 4},
    {"sinks", 8, 30, 5, 0, AVG, POS, KVH, MEAN, 2, 1, 100, 16, 0, 0, 0, 1, 0, 4},
    {"alibi", 8, 30, 5, 0, AVG, POS, KVH, MEAN, 2, 1, 100, 16, 0, 0, 0, 0, 1, 4},
    {"everything", 20, 60, 7, 3, AVG, SCO, LAY, MEAN, 4, 2, 180, 48, 0.2f, 3, 100, 1, 1, 5},
    {"long", 16, 64, 5, 0, AVG, POS, KVH, MEAN, 3, 1, 1700, 4, 0, 0, 0, 0, 0, 4},
    {"two_parts", 6100, 6130, 5, 0, AVG, POS, KVH, MEAN, 1, 1, 6200, 1, 0, 0, 0, 1, 0, 16},
    {"deep", 4, 40, 1, 0, AVG, POS, KVH, MEAN, 1, 1, 250, 2, 1.5f, 0, 0, 0, 0, 12},
    {"peaked", 16, 40, 5, 0, AVG, POS, KVH, MEAN, 2, 1, 150, 32, 1, 0, 0, 0, 0, 5},
};

static const variant variants[] = {
    {{"largest_vote", 8, 30, 5, 0, MAX, POS, KVH, MEAN, 4, 2, 100, 16, 0, 0, 0, 0, 0, 6},
     .voting = SNAPKV_VOTE_MAX,
     .budget = 40,
     .least = 4},
    {{"largest_of_17", 17, 40, 1, 0, AVG, SCO, QRH, MEAN, 2, 1, 90, 8, 0, 0, 0, 0, 0, 8},
     .voting = SNAPKV_VOTE_MAX},
    {{"recent_4", 16, 24, 5, 0, AVG, POS, KVH, MEAN, 2, 1, 96, 8, 0, 0, 0, 0, 0, 4}, .n_recent = 4},
    {{"recent_beyond_window", 4, 40, 5, 2, AVG, SCO, KVH, MEAN, 1, 1, 110, 8, 0, 0, 0, 0, 0, 4},
     .n_recent = 20},
    {{"chunk", 8, 30, 5, 0, AVG, POS, KVH, MEAN, 2, 1, 120, 16, 0, 0, 0, 0, 0, 4}, .chunk = 100},
    {{"chunk_inside_window", 8, 30, 5, 0, AVG, POS, KVH, MEAN, 1, 1, 120, 16, 0, 0, 0, 1, 0, 4},
     .chunk = 3},
    {{"question_in_the_middle", 8, 30, 5, 0, AVG, POS, KVH, MEAN, 2, 1, 120, 16, 0, 0, 0, 0, 1, 4},
     .n_recent = 4,
     .first_voter = 50,
     .voter_step = 1},
    {{"question_behind", 4, 12, 3, 0, AVG, POS, KVH, MEAN, 2, 1, 60, 8, 0, 0, 0, 0, 1, 4},
     .n_recent = 1,
     .first_voter = 60,
     .voter_step = 1},
    {{"gap", 8, 30, 5, 0, AVG, POS, KVH, MEAN, 2, 1, 100, 16, 0, 0, 0, 0, 1, 4}, .gap = 1000},
    {{"gap_and_span", 8, 30, 5, 0, AVG, POS, KVH, MEAN, 1, 1, 100, 16, 0, 0, 70, 0, 0, 4},
     .gap = 7},
    {{"budget_of_heads", 8, 30, 5, 2, AVG, POS, KVH, MEAN, 8, 4, 100, 16, 0.7f, 0, 0, 0, 0, 5},
     .budget = 80,
     .least = 4},
    {{"budget_by_score", 16, 24, 5, 0, MAX, SCO, QRH, MEAN, 4, 2, 140, 8, 0, 0, 0, 0, 0, 8},
     .voting = SNAPKV_VOTE_MAX,
     .n_recent = 4,
     .budget = 48,
     .least = 3},
    {{"everything_new", 20, 40, 7, 3, MAX, SCO, LAY, MEAN, 4, 2, 180, 48, 0.2f, 3, 0, 1, 1, 5},
     .voting = SNAPKV_VOTE_MAX,
     .n_recent = 5,
     .chunk = 400,
     .first_voter = 200,
     .voter_step = 11,
     .gap = 90,
     .budget = 20},
};

static void print_floats(const char *key, size_t index, const float *x, size_t n) {
    printf("%s %zu", key, index);
    for (size_t i = 0; i < n; i++) {
        printf(" %a", (double)x[i]);
    }
    printf("\n");
}

static void fill(float *x, size_t n, uint64_t seed, int amplitude) {
    splitmix random = {seed};
    for (size_t i = 0; i < n; i++) {
        x[i] = splitmix_float(&random, amplitude);
    }
}

static void print_indices(const char *key, size_t index, const int32_t *x, size_t n) {
    printf("%s %zu", key, index);
    for (size_t i = 0; i < n; i++) {
        printf(" %d", (int)x[i]);
    }
    printf("\n");
}

static void hold(double got, double expected, double floor, const char *what, const char *name) {
    if (!(fabs(got - expected) <= 1e-5 * fabs(expected) + floor)) {
        fprintf(stderr, "make_vectors: %s of %s is %.9g, the reference has %.9g\n", what, name, got,
                expected);
        exit(1);
    }
}

static void must(int holds, const char *what, const char *name) {
    if (!holds) {
        fprintf(stderr, "make_vectors: %s of %s\n", what, name);
        exit(1);
    }
}

/* Where the voters stand, and which positions the rows hold. */
static void print_positions(const variant *v, problem *p) {
    const spec *s = &v->base;
    int32_t *positions = malloc((s->window + s->length) * sizeof *positions);
    if (v->gap) {
        for (size_t i = 0; i < s->length; i++) {
            positions[i] = (int32_t)(i + (i > 40 ? v->gap : 0));
        }
        problem_set_key_positions(p, positions);
        printf("key_positions");
        for (size_t i = 0; i < s->length; i++) {
            printf(" %d", (int)positions[i]);
        }
        printf("\n");
    }
    if (v->voter_step) {
        printf("query_positions");
        for (size_t i = 0; i < s->window; i++) {
            positions[i] = (int32_t)(v->first_voter + i * v->voter_step);
            printf(" %d", (int)positions[i]);
        }
        problem_set_query_positions(p, positions);
        printf("\n");
    }
    free(positions);
}

/* The selection in steps, with one budget for all sets. */
static void print_steps(const variant *v, const problem *p, void *workspace, size_t size) {
    const spec *s = &v->base;
    const size_t n_sets = problem_set_count(p), prefix = problem_prefix(p);
    const size_t pinned = s->n_sink + problem_recent(p);
    snapkv_list lists[8];
    size_t counts[8], expected[8];
    float *scores = malloc(n_sets * prefix * sizeof *scores);
    float *votes = malloc(n_sets * prefix * sizeof *votes);
    double *exact = malloc(prefix * sizeof *exact);
    int32_t *kept = malloc(s->length * sizeof *kept);
    int32_t *all = malloc(s->length * sizeof *all);
    for (size_t set = 0; set < n_sets; set++) {
        float *own = scores + set * prefix, *vote = votes + set * prefix;
        must(snapkv_score(&p->config, &p->layer, set, own, vote, workspace, size) == SNAPKV_OK,
             "the scores", s->name);
        reference_scores(p, set, exact);
        for (size_t j = 0; j < prefix; j++) {
            hold(own[j], exact[j], 1e-9, "a score", s->name);
        }
        reference_total(p, set, exact);
        for (size_t j = 0; j < prefix; j++) {
            hold(vote[j], exact[j], 1e-9, "a total", s->name);
        }
        print_floats("total", set, vote, prefix);
        lists[set].scores = own + s->n_sink;
        lists[set].n = prefix - s->n_sink;
    }
    must(snapkv_allocate(lists, n_sets, v->budget, v->least, counts) == SNAPKV_OK, "the counts",
         s->name);
    reference_allocate(lists, n_sets, v->budget, v->least, expected);
    must(memcmp(counts, expected, n_sets * sizeof *counts) == 0, "the counts", s->name);
    printf("budget %zu %zu", v->budget, v->least);
    for (size_t set = 0; set < n_sets; set++) {
        printf(" %zu", counts[set]);
    }
    printf("\n");
    for (size_t set = 0; set < n_sets; set++) {
        const float *own = scores + set * prefix;
        const size_t n_kept = pinned + counts[set];
        float coverage;
        for (size_t j = 0; j < prefix; j++) {
            exact[j] = (double)own[j];
        }
        reference_keep(p, exact, counts[set], all);
        must(snapkv_keep(&p->config, s->length, own, counts[set], kept) == SNAPKV_OK &&
                 memcmp(kept, all, n_kept * sizeof *kept) == 0,
             "a list", s->name);
        must(snapkv_coverage(&p->config, s->length, votes + set * prefix, kept, n_kept,
                             &coverage) == SNAPKV_OK,
             "the coverage", s->name);
        hold(coverage, reference_coverage(p, set, kept, n_kept), 5e-7, "the coverage", s->name);
        print_indices("own", set, kept, n_kept);
        print_floats("own_coverage", set, &coverage, 1);
    }
    free(scores);
    free(votes);
    free(exact);
    free(kept);
    free(all);
}

static void print_case(const variant *v, uint64_t seed) {
    const spec *s = &v->base;
    static const char *const poolings[] = {"avg", "max"};
    static const char *const orders[] = {"position", "score"};
    static const char *const sharings[] = {"kv_head", "query_head", "layer"};
    static const char *const reduces[] = {"mean", "max"};
    snapkv_config config = make_config(s->window, s->capacity, s->kernel);
    config.n_sink = s->n_sink;
    config.pooling = s->pooling;
    config.order = s->order;
    config.sharing = s->sharing;
    config.reduce = s->reduce;
    config.voting = v->voting;
    config.n_recent = v->n_recent;
    problem p = problem_new(config, s->n_query_heads, s->n_kv_heads, s->length, s->head_dim);
    p.layer.scale = s->scale;
    p.layer.softcap = s->softcap;
    p.layer.span = s->span;
    p.layer.chunk = v->chunk;
    float extra[8];
    printf("case %s\nwindow %zu\ncapacity %zu\nkernel %zu\nn_sink %zu\n", s->name, s->window,
           s->capacity, s->kernel, s->n_sink);
    printf("pooling %s\norder %s\nsharing %s\nreduce %s\n", poolings[s->pooling], orders[s->order],
           sharings[s->sharing], reduces[s->reduce]);
    printf("heads %zu %zu\nlength %zu\nhead_dim %zu\n", s->n_query_heads, s->n_kv_heads, s->length,
           s->head_dim);
    printf("scale %a\nsoftcap %a\nspan %zu\n", (double)s->scale, (double)s->softcap, s->span);
    if (v->voting == SNAPKV_VOTE_MAX) {
        printf("voting max\n");
    }
    if (v->n_recent) {
        printf("n_recent %zu\n", v->n_recent);
    }
    if (v->chunk) {
        printf("chunk %zu\n", v->chunk);
    }
    print_positions(v, &p);
    for (int kind = 0; kind < 2; kind++) {
        if (kind ? s->slopes : s->sinks) {
            fill(extra, s->n_query_heads, seed + 3 + (uint64_t)kind, kind ? 1 : 6);
            printf("%s", kind ? "alibi_slopes" : "sink_logits");
            for (size_t h = 0; h < s->n_query_heads; h++) {
                extra[h] = kind ? extra[h] / 8 : extra[h];
                printf(" %a", (double)extra[h]);
            }
            printf("\n");
            if (kind) {
                problem_set_slopes(&p, extra);
            } else {
                problem_set_sinks(&p, extra);
            }
        }
    }
    printf("q splitmix %llu %d\nk splitmix %llu %d\nx splitmix %llu %d\n", (unsigned long long)seed,
           s->amplitude, (unsigned long long)seed + 1, s->amplitude, (unsigned long long)seed + 2,
           s->amplitude);
    fill(p.queries, s->n_query_heads * s->window * s->head_dim, seed, s->amplitude);
    fill(p.keys, s->n_kv_heads * s->length * s->head_dim, seed + 1, s->amplitude);
    problem_pack_plainly(&p);

    const size_t prefix = problem_prefix(&p);
    const size_t size = snapkv_workspace_size(&p.config, &p.layer);
    double *expected = malloc((s->length + 1) * sizeof *expected);
    float *query = malloc(s->head_dim * sizeof *query);
    void *workspace = malloc(size);
    fill(query, s->head_dim, seed + 2, s->amplitude);
    for (size_t h = 0; h < s->n_query_heads; h++) {
        float *votes = run_vote(&p, h, size, GUARD_AFTER);
        reference_votes(&p, h, expected);
        for (size_t j = 0; j < prefix; j++) {
            hold(votes[j], expected[j], 1e-9, "a vote", s->name);
        }
        print_floats("votes", h, votes, prefix);
        free(votes);
    }
    for (size_t set = 0; set < problem_set_count(&p); set++) {
        size_t n_heads;
        const size_t head = problem_set_heads(&p, set, &n_heads);
        outcome o = run_select(&p, set, size, GUARD_AFTER);
        if (o.status != SNAPKV_OK) {
            fprintf(stderr, "make_vectors: %s: %s\n", s->name, snapkv_status_string(o.status));
            exit(1);
        }
        if (!o.selection.bypassed) {
            check_selection(&p, set, &o);
            print_floats("scores", set, o.scores, prefix);
        }
        print_indices("kept", set, o.kept, o.n_kept);
        print_floats("coverage", set, &o.selection.coverage, 1);
        float mass = 0;
        const size_t position = problem_position(&p, s->length - 1) + 1; /* the next token */
        if (snapkv_retained_mass(&p.config, &p.layer, head, query, position, o.kept, o.n_kept,
                                 &mass, workspace, size) != SNAPKV_OK) {
            fprintf(stderr, "make_vectors: no mass for %s\n", s->name);
            exit(1);
        }
        /* 1 - what was dropped: exact to a few roundings of 1. */
        hold(mass, reference_retained_mass(&p, head, query, position, o.kept, o.n_kept), 5e-7,
             "the mass", s->name);
        print_floats("mass", set, &mass, 1);
        outcome_free(&o);
    }
    if (v->budget) {
        print_steps(v, &p, workspace, size);
    }
    printf("end\n\n");
    free(workspace);
    free(query);
    free(expected);
    problem_free(&p);
}

/* The lane functions and the conversions, one line a value. */
static void print_functions(void) {
    splitmix random = {99};
    float x[SKV_BLOCK], y[SKV_BLOCK];
    for (int round = 0; round < 8; round++) {
        for (int kind = 0; kind < 2; kind++) {
            for (int i = 0; i < SKV_BLOCK; i++) {
                x[i] = kind ? splitmix_float(&random, 8.0) : -fabsf(splitmix_float(&random, 260.0));
            }
            x[0] = round == 0 ? -0.0f : x[0];
            for (size_t i = 0; i < SKV_BLOCK; i += sizeof(skv_vec) / sizeof(float)) {
                const skv_vec v = skv_load(x + i);
                skv_store(y + i, kind ? skv_tanh(v) : skv_exp2(v));
            }
            for (int i = 0; i < SKV_BLOCK; i++) {
                const double exact = kind ? tanh(x[i]) : x[i] <= -125.5f ? 0 : exp2(x[i]);
                if (fabs(y[i] - exact) > 3e-7 * fabs(exact)) {
                    fprintf(stderr, "make_vectors: function %d of %a is %a\n", kind, (double)x[i],
                            (double)y[i]);
                    exit(1);
                }
                printf("%s %a %a\n", kind ? "tanh" : "exp2", (double)x[i], (double)y[i]);
            }
        }
    }
    for (uint32_t h = 0; h < 0x7C00; h += 397) {
        const uint16_t half = (uint16_t)(h | (h % 2 << 15));
        float row[SKV_BLOCK];
        snapkv_rows rows;
        memset(&rows, 0, sizeof rows);
        rows.dtype = SNAPKV_F16;
        rows.data = &half;
        skv_decode_row(&rows, 0, 0, 1, row);
        if (row[0] != f16_decode(half)) {
            fprintf(stderr, "make_vectors: f16 %04x is %a\n", half, (double)row[0]);
            exit(1);
        }
        printf("f16 %04x %a\n", half, (double)row[0]);
    }
    printf("\n");
}

int main(void) {
    printf(
        "# Exact answers of numeric contract %d, format 2 (README.md); written by make_vectors.c: "
        "make vectors\n\n",
        SNAPKV_CONTRACT);
    print_functions();
    uint64_t seed = 0;
    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        const variant plain = {.base = specs[i]};
        print_case(&plain, seed += 1000);
    }
    for (size_t i = 0; i < COUNT_OF(variants); i++) {
        print_case(&variants[i], seed += 1000);
    }
    return 0;
}
