/* recall.c: does a compressed cache still know the answer?
 *
 *     build/recall [--voting sum|max] [--recent N] [--budget head|layer|model] [--least F]
 *                  [--prompts N] [--seed N] [--svg FILE] [--check] [MODEL]
 *
 * A small model that really recalls (examples/train_recall.py made it) reads prompts of 1024
 * tokens: noise in which 16 facts `key v1 v2 v3` are hidden, then `QUERY key`. It must answer v1 v2
 * v3. The prompt is read once, with the full cache; then that cache is cut down in every way of the
 * table and the answer is decoded from what is left. v1 comes from the prefill, so every way gets
 * it right; v2 and v3 must be read from the kept positions.
 *
 * The first options change the way "all together", which takes all that is known to help: the
 * largest vote, maximum pooling, 4 recent positions instead of the window, one budget for the lists
 * of all layers of which each keeps at least 0.2 of the average.
 *
 * --check runs fewer prompts and compares the figures with what the project promises. */
#include <time.h>

#include "arguments.h"
#include "llama.h"
#include "recall_task.h"

/* ---- the ways to cut a cache ---------------------------------------------------------------- */

enum { WINDOW = 16, FIRST_KEPT = 4 /* what "first 4 + last" pins */ };

typedef enum way { FULL, SNAPKV, LAST, FIRST_AND_LAST, RANDOM } way;

typedef struct method {
    const char *name;
    way way;
    snapkv_sharing sharing;
    snapkv_pooling pooling;
    size_t kernel_size;
    const char *color, *dashes; /* in the plot */
    double width;
    size_t n_recent; /* 0: the window */
    snapkv_voting voting;
    llama_budget budget;
    double least;
} method;

enum {
    AVG_PER_QUERY_HEAD = 1,
    AVG_PER_KV_HEAD,
    FEW_RECENT,
    MAXIMUM,
    ALL_TOGETHER,
    NO_POOLING,
    N_RANDOM,
    N_FIRST,
    N_LAST
};

#define PLAIN 0, SNAPKV_VOTE_SUM, LLAMA_BUDGET_HEAD, 0 /* the article's way */
static method METHODS[] = {
    {"full cache", FULL, SNAPKV_PER_KV_HEAD, SNAPKV_POOL_AVG, 1, "#444444", "7 5", 1.5, PLAIN},
    {"SnapKV average, per query head", SNAPKV, SNAPKV_PER_QUERY_HEAD, SNAPKV_POOL_AVG, 5, "#0072b2",
     "none", 5, PLAIN},
    {"SnapKV average, per K/V head", SNAPKV, SNAPKV_PER_KV_HEAD, SNAPKV_POOL_AVG, 5, "#56b4e9",
     "none", 2.5, PLAIN},
    {"the same, 4 recent", SNAPKV, SNAPKV_PER_KV_HEAD, SNAPKV_POOL_AVG, 5, "#56b4e9", "5 3", 2, 4,
     SNAPKV_VOTE_SUM, LLAMA_BUDGET_HEAD, 0},
    {"SnapKV maximum, per query head", SNAPKV, SNAPKV_PER_QUERY_HEAD, SNAPKV_POOL_MAX, 5, "#009e73",
     "2 4", 2.5, PLAIN},
    {"all together, per K/V head", SNAPKV, SNAPKV_PER_KV_HEAD, SNAPKV_POOL_MAX, 5, "#000000",
     "none", 3.5, 4, SNAPKV_VOTE_MAX, LLAMA_BUDGET_MODEL, 0.2},
    {"SnapKV without pooling", SNAPKV, SNAPKV_PER_QUERY_HEAD, SNAPKV_POOL_AVG, 1, "#d55e00", "none",
     2.5, PLAIN},
    {"random + window", RANDOM, SNAPKV_PER_KV_HEAD, SNAPKV_POOL_AVG, 1, "#8a63b5", "none", 2,
     PLAIN},
    {"first 4 + last", FIRST_AND_LAST, SNAPKV_PER_KV_HEAD, SNAPKV_POOL_AVG, 1, "#c9a100", "none",
     4.5, PLAIN},
    {"last C", LAST, SNAPKV_PER_KV_HEAD, SNAPKV_POOL_AVG, 1, "#999999", "none", 2, PLAIN},
};
#undef PLAIN
enum { N_METHODS = sizeof METHODS / sizeof METHODS[0] };

/* The last is the whole prompt; some figures are given for SHOWN alone. */
static const size_t CAPACITIES[] = {12, 16, 24, 32, 48, 64, 128, 256, LENGTH};
static const size_t CHECK_CAPACITIES[] = {12, 16, 64, LENGTH, LENGTH + 1};
enum { MAX_CAPACITIES = sizeof CAPACITIES / sizeof CAPACITIES[0], SHOWN = 64, FEWEST = 16 };

static snapkv_config config_of(const method *how, size_t capacity) {
    snapkv_config config = snapkv_default_config();
    config.window = WINDOW;
    config.capacity = capacity;
    config.kernel_size = how->kernel_size;
    config.pooling = how->pooling;
    config.sharing = how->sharing;
    config.n_recent = how->n_recent;
    config.voting = how->voting;
    return config;
}

/* Whether a way can keep so few: all but two keep recent positions anyhow, and SnapKV one more. */
static int is_possible(const method *how, size_t capacity) {
    const size_t n_recent = how->n_recent != 0 ? how->n_recent : WINDOW;
    return how->way == FULL || how->way == LAST || how->way == FIRST_AND_LAST ||
           capacity > n_recent;
}

/* What the three simple ways keep, ascending. */
static void simple_kept(const method *how, size_t capacity, uint64_t *state, int32_t *kept) {
    const size_t n = capacity < LENGTH ? capacity : LENGTH;
    const size_t n_first = how->way == RANDOM           ? n - WINDOW
                           : how->way == FIRST_AND_LAST ? FIRST_KEPT
                                                        : 0;
    if (how->way == RANDOM)
        random_choice(state, LENGTH - WINDOW, n_first, kept);
    else
        for (size_t i = 0; i < n_first; i++)
            kept[i] = (int32_t)i;
    for (size_t i = n_first; i < n; i++)
        kept[i] = (int32_t)(LENGTH - n + i);
}

/* ---- one run -------------------------------------------------------------------------------- */

typedef struct tally {
    size_t exact;    /* prompts with all three values right */
    size_t as_full;  /* prompts with the very answer that the full cache gave */
    double coverage; /* summed over prompts */
    double seconds;  /* likewise, to select and gather, all layers */
} tally;

typedef struct bench {
    llama_model model;
    llama_state state;
    llama_cache full, per_kv_head, per_query_head;
    float *queries;  /* [n_layers][n_heads][WINDOW][head_dim] */
    float *votes;    /* [n_layers][n_heads][LENGTH - WINDOW] */
    float *coverage; /* [n_layers][n_heads] */
    int32_t *kept;   /* [n_layers][n_heads][LENGTH] */
    size_t *counts;  /* [n_layers][n_heads] */
    size_t n_prompts, n_capacities;
    const size_t *capacities;
    tally tallies[N_METHODS][MAX_CAPACITIES];
} bench;

static double now(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

static void bench_free(bench *b) {
    llama_state_free(&b->state);
    llama_cache_free(&b->full);
    llama_cache_free(&b->per_kv_head);
    llama_cache_free(&b->per_query_head);
    free(b->queries);
    free(b->votes);
    free(b->coverage);
    free(b->kept);
    free(b->counts);
    llama_free(&b->model);
}

/* Everything but the model. False: not enough memory. */
static int bench_new(bench *b) {
    const llama_model *const m = &b->model;
    const size_t slots = LENGTH + N_VALUES, heads = m->n_layers * m->n_heads;
    b->queries = llama_floats(heads * WINDOW * m->head_dim);
    b->votes = llama_floats(heads * (LENGTH - WINDOW));
    b->coverage = llama_floats(heads);
    b->kept = malloc(heads * LENGTH * sizeof *b->kept);
    b->counts = calloc(heads, sizeof *b->counts);
    return b->queries != NULL && b->votes != NULL && b->coverage != NULL && b->kept != NULL &&
           b->counts != NULL && llama_state_new(&b->state, m, slots) &&
           llama_cache_new(&b->full, m, m->n_kv_heads, slots) &&
           llama_cache_new(&b->per_kv_head, m, m->n_kv_heads, slots) &&
           llama_cache_new(&b->per_query_head, m, m->n_heads, slots);
}

/* The votes of every head, once a prompt: they tell what any list of positions covers. */
static const char *take_votes(bench *b) {
    const llama_model *const m = &b->model;
    const snapkv_config config = config_of(&METHODS[NO_POOLING], SHOWN);
    snapkv_layer view = llama_layer(m, &b->full, 0, b->queries, WINDOW);
    const size_t size = snapkv_workspace_size(&config, &view);
    void *workspace = malloc(size + (size == 0));
    if (workspace == NULL)
        return "not enough memory for the workspace";
    snapkv_status status = SNAPKV_OK;
    for (size_t i = 0; i < m->n_layers * m->n_heads && status == SNAPKV_OK; i++) {
        view = llama_layer(m, &b->full, i / m->n_heads, b->queries, WINDOW);
        status = snapkv_vote(&config, &view, i % m->n_heads, b->votes + i * (LENGTH - WINDOW),
                             workspace, size);
    }
    free(workspace);
    return status == SNAPKV_OK ? NULL : snapkv_status_string(status);
}

/* The share of the window's attention that a list holds, averaged over layers and heads. */
static double covered(const bench *b, const int32_t *kept, size_t n_kept) {
    const size_t heads = b->model.n_layers * b->model.n_heads;
    double dropped = 0;
    for (size_t i = 0; i < heads; i++) {
        const float *const votes = b->votes + i * (LENGTH - WINDOW);
        size_t next = 0;
        for (size_t j = 0; j < LENGTH - WINDOW; j++)
            if (next < n_kept && (size_t)kept[next] == j)
                next++;
            else
                dropped += (double)votes[j];
    }
    return 1 - dropped / (WINDOW * (double)heads);
}

/* Gathers the same list for every layer and K/V head. */
static const char *gather_all(const bench *b, llama_cache *to, size_t n_kept) {
    const size_t row = b->model.head_dim * sizeof(float);
    const snapkv_cursor start = {LENGTH, n_kept, 0};
    llama_start(to, start);
    llama_share_rows(to);
    for (size_t layer = 0; layer < b->model.n_layers; layer++)
        for (size_t head = 0; head < b->model.n_kv_heads; head++) {
            const size_t from_at = llama_cache_at(&b->full, layer, head);
            const size_t to_at = llama_cache_at(to, layer, head);
            snapkv_status status = snapkv_gather_rows(b->kept, n_kept, b->full.keys + from_at, row,
                                                      LENGTH, row, to->keys + to_at, row);
            if (status == SNAPKV_OK) /* the same list for K and V */
                status = snapkv_gather_rows(b->kept, n_kept, b->full.values + from_at, row, LENGTH,
                                            row, to->values + to_at, row);
            if (status != SNAPKV_OK)
                return snapkv_status_string(status);
        }
    return NULL;
}

/* Cuts the full cache to a capacity; *cut is the cache to decode from. */
static const char *cut_cache(bench *b, const method *how, size_t capacity, uint64_t *state,
                             llama_cache **cut, tally *t) {
    const llama_model *const m = &b->model;
    const snapkv_config config = config_of(how, capacity);
    const size_t n_kept = capacity < LENGTH ? capacity : LENGTH;
    const char *error = NULL;
    if (how->way == FULL) {
        *cut = &b->full;
        t->coverage += 1;
        return NULL;
    }
    *cut = how->sharing == SNAPKV_PER_QUERY_HEAD ? &b->per_query_head : &b->per_kv_head;
    const double start = now();
    if (how->way == SNAPKV) {
        if (how->budget == LLAMA_BUDGET_HEAD)
            error = llama_compress(&config, m, &b->full, b->queries, *cut, b->kept, b->coverage);
        else
            error = llama_compress_shared(&config, how->budget, how->least, m, &b->full, b->queries,
                                          *cut, b->counts, b->kept, b->coverage);
        t->seconds += now() - start;
        const size_t n = m->n_layers * (*cut)->n_heads;
        for (size_t i = 0; i < n && error == NULL; i++)
            t->coverage += (double)b->coverage[i] / (double)n;
        return error;
    }
    simple_kept(how, capacity, state, b->kept);
    error = gather_all(b, *cut, n_kept);
    t->seconds += now() - start;
    t->coverage += covered(b, b->kept, n_kept);
    return error;
}

/* Decodes the values after the first from a cache; the cache is left as it was. */
static const char *answer_from(bench *b, llama_cache *cache, int32_t *answer) {
    for (size_t v = 1; v < N_VALUES; v++) {
        const char *const error = llama_decode(&b->model, &b->state, cache, answer[v - 1]);
        if (error != NULL)
            return error;
        answer[v] = llama_best(&b->model, &b->state);
    }
    return llama_rewind(cache, N_VALUES - 1);
}

static const char *run_prompt(bench *b, uint64_t *state) {
    int32_t tokens[LENGTH], right[N_VALUES], full_answer[N_VALUES], answer[N_VALUES];
    make_prompt(state, tokens, right);
    uint64_t draws = *state; /* the prompts must not depend on what is drawn for the random way */
    const char *error =
        llama_prefill(&b->model, &b->state, &b->full, tokens, LENGTH, WINDOW, b->queries);
    if (error == NULL)
        error = take_votes(b);
    if (error != NULL)
        return error;
    full_answer[0] = answer[0] = llama_best(&b->model, &b->state);
    for (size_t i = 0; i < N_METHODS; i++)
        for (size_t c = 0; c < b->n_capacities; c++) {
            llama_cache *cut;
            tally *const t = &b->tallies[i][c];
            if (!is_possible(&METHODS[i], b->capacities[c]))
                continue;
            error = cut_cache(b, &METHODS[i], b->capacities[c], &draws, &cut, t);
            if (error == NULL)
                error = answer_from(b, cut, answer);
            if (error != NULL)
                return error;
            if (METHODS[i].way == FULL)
                memcpy(full_answer, answer, sizeof answer);
            t->exact += memcmp(answer, right, sizeof answer) == 0;
            t->as_full += memcmp(answer, full_answer, sizeof answer) == 0;
        }
    return NULL;
}

static const char *run(bench *b, uint64_t seed) {
    const double start = now();
    uint64_t state = seed;
    for (size_t i = 0; i < b->n_prompts; i++) {
        const char *const error = run_prompt(b, &state);
        if (error != NULL)
            return error;
        if (i % 10 == 9 || i + 1 == b->n_prompts)
            fprintf(stderr, "\rprompt %zu of %zu, %.0f s ", i + 1, b->n_prompts, now() - start);
        fflush(stderr);
    }
    fprintf(stderr, "\n");
    return NULL;
}

/* ---- what it shows -------------------------------------------------------------------------- */

static double percent(const bench *b, size_t row, size_t column) {
    return 100.0 * (double)b->tallies[row][column].exact / (double)b->n_prompts;
}

/* Where a capacity stands in the list. */
static size_t index_of(const bench *b, size_t capacity) {
    size_t c = 0;
    while (c + 1 < b->n_capacities && b->capacities[c] != capacity)
        c++;
    return c;
}

static uint64_t cache_bytes(const bench *b, const method *how, size_t capacity) {
    const llama_model *const m = &b->model;
    const snapkv_config config = config_of(how, capacity);
    const snapkv_model shape = {1,           m->n_layers,  m->n_heads, m->n_kv_heads,
                                m->head_dim, sizeof(float)};
    snapkv_ledger ledger;
    if (snapkv_account(&config, &shape, LENGTH, 0, &ledger) != SNAPKV_OK)
        return 0;
    return how->way == FULL ? ledger.full_bytes : ledger.kept_bytes;
}

static void print_tables(const bench *b) {
    const size_t shown = index_of(b, SHOWN);
    const double n = (double)b->n_prompts;
    printf("\nExact answers, %%, by capacity: %zu prompts of %d tokens with %d facts,"
           " window %d, kernel %zu\n\n",
           b->n_prompts, LENGTH, N_FACTS, WINDOW, METHODS[AVG_PER_QUERY_HEAD].kernel_size);
    printf("%-31s", "positions kept, of each head");
    for (size_t c = 0; c < b->n_capacities; c++)
        printf("%7zu", b->capacities[c]);
    printf("\n");
    for (size_t i = 0; i < N_METHODS; i++) {
        printf("%-31s", METHODS[i].name);
        for (size_t c = 0; c < b->n_capacities; c++)
            if (METHODS[i].way == FULL && c + 1 < b->n_capacities)
                printf("%7s", "");
            else if (!is_possible(&METHODS[i], b->capacities[c]))
                printf("%7s", "-");
            else
                printf("%7.1f", percent(b, i, c));
        printf("\n");
    }
    printf("\n%-31s%14s%12s%12s%14s\n", "", "cache, bytes", "of full, %", "coverage, %",
           "select, ms");
    for (size_t i = 0; i < N_METHODS; i++) {
        const tally *const t = &b->tallies[i][shown];
        const uint64_t bytes = cache_bytes(b, &METHODS[i], SHOWN);
        printf("%-31s%14llu%12.2f%12.1f", METHODS[i].name, (unsigned long long)bytes,
               100.0 * (double)bytes / (double)cache_bytes(b, &METHODS[0], SHOWN),
               100 * t->coverage / n);
        if (METHODS[i].way == SNAPKV)
            printf("%14.2f\n", 1e3 * t->seconds / n);
        else
            printf("%14s\n", "");
    }
    printf("At capacity %d of %d. Coverage: the share of the window's attention that the kept"
           " positions hold.\nSelect: all layers, selection and gather, one thread (%s).\n\n",
           SHOWN, LENGTH, SNAPKV_ISA_NAME);
    printf(
        "What it shows: with %d of %d positions kept SnapKV gives %.1f %% exact answers (%.1f %%"
        " when the\nquery heads of a group share one list), the full cache %.1f %%, and pooling is"
        " what makes it work:\n%.1f %% without, because attention peaks on the first value and"
        " pooling keeps its neighbours.\n",
        SHOWN, LENGTH, percent(b, AVG_PER_QUERY_HEAD, shown), percent(b, AVG_PER_KV_HEAD, shown),
        percent(b, 0, b->n_capacities - 1), percent(b, NO_POOLING, shown));
    const size_t least = index_of(b, FEWEST), more = index_of(b, 48);
    printf("With all together %d of %d positions on average do what %zu do in the article's way:\n"
           "%.1f %% and %.1f %%.\n\n",
           FEWEST, LENGTH, b->capacities[more], percent(b, ALL_TOGETHER, least),
           percent(b, AVG_PER_KV_HEAD, more));
}

/* ---- the plot ------------------------------------------------------------------------------- */

enum { PLOT_LEFT = 80, PLOT_TOP = 84, PLOT_WIDTH = 520, PLOT_HEIGHT = 340 };

static double plot_x(const bench *b, size_t capacity) {
    const double low = log2((double)b->capacities[0]);
    const double high = log2((double)b->capacities[b->n_capacities - 1]);
    return PLOT_LEFT + PLOT_WIDTH * (log2((double)capacity) - low) / (high - low);
}

static double plot_y(double share) {
    return PLOT_TOP + PLOT_HEIGHT * (1 - share / 100);
}

static void plot_frame(const bench *b, FILE *f) {
    const int right = PLOT_LEFT + PLOT_WIDTH, bottom = PLOT_TOP + PLOT_HEIGHT;
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"940\" height=\"500\""
               " viewBox=\"0 0 940 500\" font-family=\"Helvetica, Arial, sans-serif\""
               " font-size=\"13\" fill=\"#333333\">\n"
               "<rect width=\"940\" height=\"500\" fill=\"#ffffff\"/>\n");
    fprintf(f,
            "<text x=\"%d\" y=\"34\" font-size=\"19\" font-weight=\"bold\">"
            "Recall from a compressed KV cache</text>\n",
            PLOT_LEFT);
    fprintf(f,
            "<text x=\"%d\" y=\"56\" fill=\"#666666\">%zu prompts of %d tokens with %d hidden"
            " facts; the answer to one of them</text>\n",
            PLOT_LEFT, b->n_prompts, LENGTH, N_FACTS);
    for (int share = 0; share <= 100; share += 20) {
        fprintf(f, "<path d=\"M%d %.1fH%d\" stroke=\"#e4e4e4\"/>\n", PLOT_LEFT, plot_y(share),
                right);
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d</text>\n", PLOT_LEFT - 10,
                plot_y(share) + 4.5, share);
    }
    for (size_t c = 0; c < b->n_capacities; c++) {
        const double x = plot_x(b, b->capacities[c]);
        fprintf(f, "<path d=\"M%.1f %dv6\" stroke=\"#888888\"/>\n", x, bottom);
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%zu</text>\n", x, bottom + 22,
                b->capacities[c]);
    }
    const double shown = plot_x(b, SHOWN);
    fprintf(f, "<path d=\"M%.1f %dV%d\" stroke=\"#cccccc\" stroke-dasharray=\"3 3\"/>\n", shown,
            PLOT_TOP, bottom);
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" fill=\"#666666\">1/%d of the prompt</text>\n",
            shown + 7, plot_y(30), LENGTH / SHOWN);
    fprintf(f, "<path d=\"M%d %dH%d\" stroke=\"#888888\"/>\n", PLOT_LEFT, bottom, right);
    fprintf(f,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">capacity: positions kept of %d"
            " (logarithmic)</text>\n",
            PLOT_LEFT + PLOT_WIDTH / 2, bottom + 50, LENGTH);
    fprintf(f,
            "<text transform=\"translate(%d %d) rotate(-90)\" text-anchor=\"middle\">"
            "exact answers, %%</text>\n",
            PLOT_LEFT - 50, PLOT_TOP + PLOT_HEIGHT / 2);
}

static void plot_mark(const method *how, FILE *f, double x, double y) {
    if (how->way != FULL)
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\" stroke=\"#ffffff\"/>\n",
                x, y, how->width + 2, how->color);
}

static void plot_stroke(const method *how, FILE *f) {
    fprintf(f,
            "\" fill=\"none\" stroke=\"%s\" stroke-width=\"%.1f\" stroke-dasharray=\"%s\""
            " stroke-linejoin=\"round\"/>\n",
            how->color, how->width, how->dashes);
}

/* False: the file could not be written. */
static int write_plot(const bench *b, const char *path) {
    FILE *f = fopen(path, "w");
    if (f == NULL)
        return 0;
    plot_frame(b, f);
    for (size_t i = 0; i < N_METHODS; i++) {
        const method *const how = &METHODS[i];
        size_t first = 0;
        while (!is_possible(how, b->capacities[first]))
            first++;
        fprintf(f, "<path d=\"");
        for (size_t c = first; c < b->n_capacities; c++)
            fprintf(f, "%c%.1f %.1f", c == first ? 'M' : 'L', plot_x(b, b->capacities[c]),
                    plot_y(percent(b, i, c)));
        plot_stroke(how, f);
        for (size_t c = first; c < b->n_capacities; c++)
            plot_mark(how, f, plot_x(b, b->capacities[c]), plot_y(percent(b, i, c)));
        const double y = PLOT_TOP + 8 + 27.0 * (double)i, x = PLOT_LEFT + PLOT_WIDTH + 28;
        fprintf(f, "<path d=\"M%.1f %.1fh30", x, y);
        plot_stroke(how, f);
        plot_mark(how, f, x + 15, y);
        fprintf(f, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 40, y + 4.5, how->name);
    }
    fprintf(f, "</svg>\n");
    const int failed = ferror(f);
    return fclose(f) == 0 && !failed;
}

/* ---- what must hold ------------------------------------------------------------------------- */

static int expect(int holds, const char *what, double value) {
    printf("%s  %s: %.1f\n", holds ? "ok  " : "FAIL", what, value);
    return holds ? 0 : 1;
}

/* Compaction in place and into another cache give the same logits, for the prompt at hand. */
static const char *same_in_place(bench *b, int *same) {
    const llama_model *const m = &b->model;
    const snapkv_config config = config_of(&METHODS[AVG_PER_KV_HEAD], SHOWN);
    const size_t n_bytes = m->vocab_size * sizeof(float);
    float *const logits = malloc(n_bytes);
    if (logits == NULL)
        return "not enough memory";
    const char *error =
        llama_compress(&config, m, &b->full, b->queries, &b->per_kv_head, b->kept, NULL);
    if (error == NULL)
        error = llama_decode(m, &b->state, &b->per_kv_head, FIRST_VALUE);
    memcpy(logits, b->state.logits, n_bytes);
    if (error == NULL)
        error = llama_compress(&config, m, &b->full, b->queries, &b->full, b->kept, NULL);
    if (error == NULL)
        error = llama_decode(m, &b->state, &b->full, FIRST_VALUE);
    *same = memcmp(logits, b->state.logits, n_bytes) == 0;
    free(logits);
    return error;
}

/* Returns the exit status. */
static int check(bench *b) {
    const size_t shown = index_of(b, SHOWN);
    const double query = percent(b, AVG_PER_QUERY_HEAD, shown);
    const double kv = percent(b, AVG_PER_KV_HEAD, shown);
    const double unpooled = percent(b, NO_POOLING, shown), last = percent(b, N_LAST, shown);
    int failed = 0, same = 0;
    printf("%zu prompts, capacity %d of %d\n", b->n_prompts, SHOWN, LENGTH);
    failed += expect(percent(b, 0, shown) >= 98, "full cache, at least 98", percent(b, 0, shown));
    failed += expect(query >= 97, "SnapKV average per query head, at least 97", query);
    failed += expect(kv >= 95, "SnapKV average per K/V head, at least 95", kv);
    failed += expect(unpooled <= query - 25, "without pooling, at least 25 less", unpooled);
    failed += expect(last < 15, "last C, below 15", last);
    const double at_16 = percent(b, ALL_TOGETHER, index_of(b, 16));
    const double at_12 = percent(b, ALL_TOGETHER, index_of(b, 12));
    failed += expect(at_16 >= 95, "all together, 16 on average, at least 95", at_16);
    failed += expect(at_12 >= 90, "all together, 12 on average, at least 90", at_12);
    printf("      the article's way there, but 4 recent positions: %.1f and %.1f\n",
           percent(b, FEW_RECENT, index_of(b, 16)), percent(b, FEW_RECENT, index_of(b, 12)));
    for (size_t c = 0; c < b->n_capacities; c++)
        for (size_t i = 0; i < N_METHODS && b->capacities[c] >= LENGTH; i++) {
            const size_t as_full = b->tallies[i][c].as_full;
            char what[100];
            snprintf(what, sizeof what, "%s, capacity %zu: answers as the full cache's",
                     METHODS[i].name, b->capacities[c]);
            failed += expect(as_full == b->n_prompts, what, (double)as_full);
        }
    const char *const error = same_in_place(b, &same);
    if (error != NULL)
        fprintf(stderr, "recall: %s\n", error);
    failed += expect(error == NULL && same, "compaction in place: the same logits", same);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- the command ---------------------------------------------------------------------------- */

typedef struct options {
    const char *model, *svg;
    size_t n_prompts;
    uint64_t seed;
    int check, help;
} options;

/* Returns NULL, or the argument that is wrong. */
static const char *read_options(options *o, int argc, char **argv) {
    static const char *const VOTINGS[] = {"sum", "max"}; /* in the enums' order */
    static const char *const BUDGETS[] = {"head", "layer", "model"};
    int has_model = 0;
    size_t index;
    for (int i = 1; i < argc; i++) {
        const char *const name = argv[i], *const value = i + 1 < argc ? argv[i + 1] : "";
        unsigned long number;
        if (strcmp(name, "--check") == 0) {
            o->check = 1;
        } else if (strcmp(name, "--help") == 0) {
            o->help = 1;
        } else if (strcmp(name, "--prompts") == 0 && read_number(value, 1000000, &number) &&
                   number > 0) {
            o->n_prompts = number;
            i++;
        } else if (strcmp(name, "--seed") == 0 && read_number(value, 4294967295u, &number)) {
            o->seed = number;
            i++;
        } else if (strcmp(name, "--voting") == 0 && read_name(value, VOTINGS, 2, &index)) {
            METHODS[ALL_TOGETHER].voting = (snapkv_voting)index;
            i++;
        } else if (strcmp(name, "--budget") == 0 && read_name(value, BUDGETS, 3, &index)) {
            METHODS[ALL_TOGETHER].budget = (llama_budget)index;
            i++;
        } else if (strcmp(name, "--recent") == 0 && read_number(value, WINDOW, &number)) {
            METHODS[ALL_TOGETHER].n_recent = number;
            i++;
        } else if (strcmp(name, "--least") == 0 &&
                   read_real(value, 1, &METHODS[ALL_TOGETHER].least)) {
            i++;
        } else if (strcmp(name, "--svg") == 0 && value[0] != '\0') {
            o->svg = value;
            i++;
        } else if (name[0] != '-' && name[0] != '\0' && !has_model) {
            o->model = name;
            has_model = 1;
        } else {
            return name;
        }
    }
    return NULL;
}

/* Returns the exit status. */
static int report(bench *b, const options *o) {
    if (o->check)
        return check(b);
    print_tables(b);
    if (!write_plot(b, o->svg)) {
        fprintf(stderr, "recall: %s: can't be written\n", o->svg);
        return EXIT_FAILURE;
    }
    printf("Plot: %s\n", o->svg);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    static bench b;
    options o = {"examples/recall_model.bin", "build/recall.svg", 0, 1, 0, 0};
    const char *const wrong = read_options(&o, argc, argv);
    const char *const usage =
        "usage: recall [--voting sum|max] [--recent N] [--budget head|layer|model] [--least F]\n"
        "              [--prompts N] [--seed N] [--svg FILE] [--check] [MODEL]\n"
        "The first line changes the way \"all together\".\n";
    if (wrong != NULL) {
        fprintf(stderr, "recall: bad argument or missing value: %s\n%s", wrong, usage);
        return EXIT_FAILURE;
    }
    if (o.help) {
        fputs(usage, stdout);
        return EXIT_SUCCESS;
    }
    const char *error = llama_load(&b.model, o.model);
    if (error == NULL && b.model.vocab_size != VOCABULARY)
        error = "not the recall example's model: another vocabulary";
    if (error != NULL) {
        fprintf(stderr, "recall: %s: %s\n", o.model, error);
        llama_free(&b.model);
        return EXIT_FAILURE;
    }
    b.n_prompts = o.n_prompts != 0 ? o.n_prompts : 200;
    b.capacities = o.check ? CHECK_CAPACITIES : CAPACITIES;
    b.n_capacities = (o.check ? sizeof CHECK_CAPACITIES : sizeof CAPACITIES) / sizeof(size_t);
    if (!bench_new(&b))
        error = "not enough memory";
    if (error == NULL)
        error = run(&b, o.seed);
    int status = EXIT_FAILURE;
    if (error != NULL)
        fprintf(stderr, "recall: %s\n", error);
    else
        status = report(&b, &o);
    bench_free(&b);
    return is_printed("recall") ? status : EXIT_FAILURE;
}
