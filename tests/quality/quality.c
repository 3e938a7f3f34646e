/* What each way to cut a cache costs: answers of the recall model, and the divergence from the full
 * cache on running text, by the engine of the examples.
 *
 *     build/quality recall|text [--prompts N] [--seed N] [--data FILE] [--check]
 *
 * Prints a table per task: a row for each way, a column for each average number of positions kept
 * per K/V head and layer, the mean over the prompts and its standard error. FILE gets the same as
 * lines of: task, way, average, bytes of the cache, mean, standard error. --check: what the page
 * docs/choosing.md says of the order of the ways on text, and that each kept what it should. */
#include "../../examples/arguments.h"
#include "../../examples/llama.h"
#include "../../examples/recall_task.h"
#include "../../examples/tokenizer.h"

/* ---- the ways ------------------------------------------------------------------------------- */

typedef enum way { FULL, SNAPKV, PYRAMID, LAST, FIRST_AND_LAST, RANDOM } way;

typedef struct method {
    const char *name;
    way way;
    size_t window, n_recent, kernel_size;
    snapkv_pooling pooling;
    snapkv_voting voting;
    llama_budget budget;
} method;

enum { FIRST_KEPT = 4 /* what "first 4 + last" pins */ };

/* From the fourth on, W 16 vote and R 4 stay, unless the name says otherwise. */
static const method METHODS[] = {
    {"full cache", FULL, 16, 4, 1, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM, LLAMA_BUDGET_HEAD},
    {"the article: sum, average 5, recent 16", SNAPKV, 16, 16, 5, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM,
     LLAMA_BUDGET_HEAD},
    {"the same, one budget for the model", SNAPKV, 16, 16, 5, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM,
     LLAMA_BUDGET_MODEL},
    {"recent 4", SNAPKV, 16, 4, 5, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM, LLAMA_BUDGET_HEAD},
    {"recent 4, without pooling", SNAPKV, 16, 4, 1, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM,
     LLAMA_BUDGET_HEAD},
    {"recent 4, maximum pooling", SNAPKV, 16, 4, 5, SNAPKV_POOL_MAX, SNAPKV_VOTE_SUM,
     LLAMA_BUDGET_HEAD},
    {"recent 4, largest vote", SNAPKV, 16, 4, 5, SNAPKV_POOL_AVG, SNAPKV_VOTE_MAX,
     LLAMA_BUDGET_HEAD},
    {"recent 4, largest vote, maximum pooling", SNAPKV, 16, 4, 5, SNAPKV_POOL_MAX, SNAPKV_VOTE_MAX,
     LLAMA_BUDGET_HEAD},
    {"recent 4, one budget per layer", SNAPKV, 16, 4, 5, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM,
     LLAMA_BUDGET_LAYER},
    {"recent 4, one budget for the model", SNAPKV, 16, 4, 5, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM,
     LLAMA_BUDGET_MODEL},
    {"recent 4, pyramid: 1.5 C to 0.5 C", PYRAMID, 16, 4, 5, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM,
     LLAMA_BUDGET_HEAD},
    {"recent 4, pyramid, without pooling", PYRAMID, 16, 4, 1, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM,
     LLAMA_BUDGET_HEAD},
    {"all together: largest, maximum, model", SNAPKV, 16, 4, 5, SNAPKV_POOL_MAX, SNAPKV_VOTE_MAX,
     LLAMA_BUDGET_MODEL},
    {"the same without pooling", SNAPKV, 16, 4, 1, SNAPKV_POOL_AVG, SNAPKV_VOTE_MAX,
     LLAMA_BUDGET_MODEL},
    {"sum, without pooling, model", SNAPKV, 16, 4, 1, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM,
     LLAMA_BUDGET_MODEL},
    {"random + recent 4", RANDOM, 16, 4, 1, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM, LLAMA_BUDGET_HEAD},
    {"first 4 + last", FIRST_AND_LAST, 16, 4, 1, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM,
     LLAMA_BUDGET_HEAD},
    {"last C", LAST, 16, 4, 1, SNAPKV_POOL_AVG, SNAPKV_VOTE_SUM, LLAMA_BUDGET_HEAD},
};
enum { N_METHODS = sizeof METHODS / sizeof METHODS[0], WINDOW = 16 };

static const double LEAST = 0.2; /* Ada-KV's alpha */

static snapkv_config config_of(const method *how, size_t capacity) {
    snapkv_config config = snapkv_default_config();
    config.window = how->window;
    config.n_recent = how->n_recent;
    config.kernel_size = how->kernel_size;
    config.pooling = how->pooling;
    config.voting = how->voting;
    config.capacity = capacity;
    return config;
}

/* ---- the tables ----------------------------------------------------------------------------- */

enum { MOST_CAPACITIES = 10, MOST_TASKS = 8, MOST_TOKENS = 1200, MOST_QUESTIONS = 2, STEPS = 40 };

typedef struct tally {
    double sum, squares;
    uint64_t bytes;
    size_t n, kept; /* kept: of all lists and prompts */
} tally;

typedef struct bench {
    llama_model model;
    llama_state state;
    llama_cache full, small;
    float *queries;  /* [n_layers][n_heads][WINDOW][head_dim] */
    float *logits;   /* [STEPS][vocab_size] of the full cache */
    float *first;    /* [vocab_size] after the prompt */
    int32_t *kept;   /* [n_layers][n_kv_heads][MOST_TOKENS] */
    size_t *counts;  /* [n_layers][n_kv_heads] */
    double *p;       /* [2][vocab_size] */
    uint64_t random; /* of the random way */
    size_t n_prompts, n_capacities;
    const size_t *capacities;
    tally tallies[MOST_TASKS][N_METHODS][MOST_CAPACITIES];
} bench;

static void bench_free(bench *b) {
    llama_state_free(&b->state);
    llama_cache_free(&b->full);
    llama_cache_free(&b->small);
    llama_free(&b->model);
    free(b->queries);
    free(b->logits);
    free(b->first);
    free(b->kept);
    free(b->counts);
    free(b->p);
}

/* Everything but the model. False: not enough memory. */
static int bench_new(bench *b) {
    const llama_model *const m = &b->model;
    const size_t lists = m->n_layers * m->n_kv_heads;
    b->queries = llama_floats(m->n_layers * m->n_heads * WINDOW * m->head_dim);
    b->logits = llama_floats(STEPS * m->vocab_size);
    b->first = llama_floats(m->vocab_size);
    b->kept = calloc(lists * MOST_TOKENS, sizeof *b->kept);
    b->counts = calloc(lists, sizeof *b->counts);
    b->p = calloc(2 * m->vocab_size, sizeof *b->p);
    return b->queries != NULL && b->logits != NULL && b->first != NULL && b->kept != NULL &&
           b->counts != NULL && b->p != NULL && llama_state_new(&b->state, m, MOST_TOKENS) &&
           llama_cache_new(&b->full, m, m->n_kv_heads, MOST_TOKENS) &&
           llama_cache_new(&b->small, m, m->n_kv_heads, MOST_TOKENS);
}

/* Ways that look at no query are scores too: the position, and the first ones on top; or a draw. */
static void simple_scores(bench *b, const method *how, llama_scores *s) {
    for (size_t i = 0; i < s->n_layers * s->n_sets * s->n; i++) {
        const size_t j = i % s->n;
        s->scores[i] = how->way == RANDOM ? (float)(random_bits(&b->random) >> 40)
                       : how->way == FIRST_AND_LAST && j < FIRST_KEPT ? (float)(s->n + 4 - j)
                                                                      : (float)j;
    }
}

/* Falling capacities, fixed by layer: from 1.5 times the mean down to half of it. */
static void pyramid(size_t n_layers, size_t n_sets, size_t mean, size_t n_pinned, size_t *counts) {
    const long last = (long)n_layers - 1;
    for (size_t i = 0; i < n_layers * n_sets; i++) {
        const long step = (long)mean * (last - 2 * (long)(i / n_sets)) / (2 * last);
        counts[i] = (size_t)((long)(n_pinned + mean) + step);
    }
}

/* Cuts the full cache; the small one is then what to decode from. */
static const char *cut(bench *b, const method *how, const llama_scores *s, size_t capacity,
                       tally *t) {
    const llama_model *const m = &b->model;
    const snapkv_model shape = {1,           m->n_layers,  m->n_heads, m->n_kv_heads,
                                m->head_dim, sizeof(float)};
    const snapkv_config config = config_of(how, capacity);
    snapkv_ledger ledger;
    const char *error = llama_share(s, &config, how->budget, LEAST, b->counts);
    if (how->way == PYRAMID)
        pyramid(s->n_layers, s->n_sets, capacity - how->n_recent, how->n_recent, b->counts);
    if (error == NULL)
        error =
            llama_keep(s, &config, b->counts, m, &b->full, b->queries, &b->small, b->kept, NULL);
    if (error != NULL)
        return error;
    for (size_t i = 0; i < m->n_layers * m->n_kv_heads; i++)
        t->kept += b->counts[i];
    const snapkv_status status =
        snapkv_account_lists(&config, &shape, s->length, 0, b->counts, &ledger);
    t->bytes += ledger.kept_bytes;
    return status == SNAPKV_OK ? NULL : snapkv_status_string(status);
}

/* What a task makes of a cache that was prefilled and cut: a figure. The cache stays as it was. */
typedef const char *(*measure_fn)(bench *b, llama_cache *cache, const void *task, double *figure);

static void add(tally *t, double figure) {
    t->sum += figure;
    t->squares += figure * figure;
    t->n++;
}

/* One prompt of a task through every way and capacity. */
static const char *run_ways(bench *b, size_t task, const int32_t *tokens, size_t n_tokens,
                            measure_fn measure, const void *details) {
    const char *error =
        llama_prefill(&b->model, &b->state, &b->full, tokens, n_tokens, WINDOW, b->queries);
    memcpy(b->first, b->state.logits, b->model.vocab_size * sizeof(float));
    for (size_t i = 0; i < N_METHODS && error == NULL; i++) {
        const method *const how = &METHODS[i];
        const snapkv_config config = config_of(how, n_tokens);
        llama_scores scores;
        double figure;
        if (how->way == FULL) {
            tally *const t = &b->tallies[task][i][b->n_capacities - 1];
            const snapkv_model shape = {1,
                                        b->model.n_layers,
                                        b->model.n_heads,
                                        b->model.n_kv_heads,
                                        b->model.head_dim,
                                        sizeof(float)};
            const snapkv_config any = config_of(how, n_tokens);
            snapkv_ledger ledger;
            error = measure(b, &b->full, details, &figure);
            if (error == NULL && snapkv_account(&any, &shape, n_tokens, 0, &ledger) != SNAPKV_OK)
                error = "can't be accounted";
            if (error == NULL) {
                t->bytes += ledger.full_bytes;
                t->kept += n_tokens * b->model.n_layers * b->model.n_kv_heads;
                add(t, figure);
            }
            continue;
        }
        error = llama_score(&scores, &config, &b->model, &b->full, b->queries);
        if (error != NULL)
            return error;
        if (how->way != SNAPKV && how->way != PYRAMID)
            simple_scores(b, how, &scores);
        for (size_t c = 0; c < b->n_capacities && error == NULL; c++) {
            tally *const t = &b->tallies[task][i][c];
            if (b->capacities[c] <= how->n_recent)
                continue;
            error = cut(b, how, &scores, b->capacities[c], t);
            if (error == NULL)
                error = measure(b, &b->small, details, &figure);
            if (error == NULL)
                add(t, figure);
        }
        llama_scores_free(&scores);
    }
    return error;
}

static double mean(const tally *t) {
    return t->sum / (double)t->n;
}

static double standard_error(const tally *t) {
    const double n = (double)t->n, spread = t->squares / n - mean(t) * mean(t);
    return n < 2 || spread <= 0 ? 0 : sqrt(spread / (n - 1));
}

/* Figures with a factor, and where they fall below 10 with more digits. */
static void print_table(const bench *b, size_t task, const char *title, const char *name,
                        double factor, FILE *data) {
    const size_t n_lists = b->model.n_layers * b->model.n_kv_heads, last = b->n_capacities - 1;
    printf("\n%s\n\n%-40s", title, "positions kept of each head, average");
    for (size_t c = 0; c < b->n_capacities; c++)
        printf("%14zu", b->capacities[c]);
    printf("\n%-40s", "bytes of the cache");
    for (size_t c = 0; c < b->n_capacities; c++) {
        const tally *const t = &b->tallies[task][N_METHODS - 1][c];
        printf("%14.0f", (double)t->bytes / (double)t->n);
    }
    printf("\n");
    for (size_t i = 0; i < N_METHODS; i++) {
        const method *const how = &METHODS[i];
        if (how->budget == LLAMA_BUDGET_LAYER && b->model.n_kv_heads == 1)
            continue; /* a layer is one list */
        printf("%-40s", how->name);
        for (size_t c = 0; c < b->n_capacities; c++) {
            const tally *const t = &b->tallies[task][i][c];
            if (how->way == FULL && c == last) {
                printf(" %.1f +- %.1f (%.0f bytes)", factor * mean(t), factor * standard_error(t),
                       (double)t->bytes / (double)t->n);
            } else if (how->way != FULL && t->n == 0) {
                printf("%14s", "-");
            } else if (how->way != FULL) {
                const int digits = factor * mean(t) < 9.95 && factor > 100 ? 2 : 1;
                char cell[32];
                snprintf(cell, sizeof cell, "%.*f +- %.*f", digits, factor * mean(t), digits,
                         factor * standard_error(t));
                printf("%14s", cell);
            }
            if (data != NULL && t->n > 0)
                fprintf(data, "%s\t%s\t%.6g\t%.0f\t%.6g\t%.6g\n", name, how->name,
                        (double)t->kept / (double)(t->n * n_lists), (double)t->bytes / (double)t->n,
                        factor * mean(t), factor * standard_error(t));
        }
        printf("\n");
    }
}

/* ---- recall --------------------------------------------------------------------------------- */

typedef struct question {
    int asked;  /* 1: QUERY key are fed first; 0: the prompt ends with them */
    int counts; /* 0: only asked */
    int32_t key, right[N_VALUES];
} question;

typedef struct questions {
    question of[MOST_QUESTIONS];
    size_t n;
} questions;

static const char *ask(bench *b, llama_cache *cache, const void *task, double *figure) {
    const questions *const q = task;
    const char *error = NULL;
    size_t n_counted = 0, n_exact = 0;
    memcpy(b->state.logits, b->first, b->model.vocab_size * sizeof(float));
    for (size_t i = 0; i < q->n && error == NULL; i++) {
        const question *const a = &q->of[i];
        size_t n_right = 0;
        if (a->asked)
            error = llama_decode(&b->model, &b->state, cache, QUERY);
        if (a->asked && error == NULL)
            error = llama_decode(&b->model, &b->state, cache, a->key);
        for (size_t v = 0; v < N_VALUES && error == NULL; v++) {
            const int32_t answer = llama_best(&b->model, &b->state);
            n_right += answer == a->right[v];
            if (v + 1 < N_VALUES || i + 1 < q->n)
                error = llama_decode(&b->model, &b->state, cache, answer);
        }
        if (a->counts) {
            n_counted++;
            n_exact += n_right == N_VALUES;
        }
    }
    *figure = (double)n_exact / (double)n_counted;
    return error != NULL ? error : llama_rewind(cache, llama_cursor(cache).generated);
}

static question fact_at(const int32_t *tokens, size_t i, int asked, int counts) {
    question q = {asked, counts, tokens[i], {0}};
    memcpy(q.right, tokens + i + 1, sizeof q.right);
    return q;
}

static const char *const RECALL_TASKS[][2] = {
    {"end", "The question ends the prompt"},
    {"two", "Two questions in the window: the last, then the one before it asked again"},
    {"before", "The question, then 8 other tokens in the window; it is asked again"},
    {"later", "Another question than the window's, asked after the first answer"},
    {"again", "The same, selected again from the full cache with that question"},
};
enum { END, TWO, BEFORE, LATER, AGAIN, N_RECALL_TASKS };

static const char *run_recall(bench *b, uint64_t *state) {
    int32_t tokens[MOST_TOKENS], right[N_VALUES];
    size_t facts[N_FACTS], n_facts = 0, first = 0;
    make_prompt(state, tokens, right);
    for (size_t i = 0; i < LENGTH; i++)
        if (is_fact(tokens, i)) {
            if (tokens[i] == tokens[LENGTH - 1])
                first = n_facts;
            facts[n_facts++] = i;
        }
    const size_t second = (first + 1 + random_below(state, N_FACTS - 1)) % N_FACTS;
    const questions end = {{fact_at(tokens, facts[first], 0, 1)}, 1};
    const questions two = {
        {fact_at(tokens, facts[second], 0, 1), fact_at(tokens, facts[first], 1, 1)}, 2};
    const questions before = {{fact_at(tokens, facts[first], 1, 1)}, 1};
    const questions later = {
        {fact_at(tokens, facts[first], 0, 0), fact_at(tokens, facts[second], 1, 1)}, 2};
    const questions again = {{fact_at(tokens, facts[second], 0, 1)}, 1};

    const char *error = run_ways(b, END, tokens, LENGTH, ask, &end);
    if (error == NULL)
        error = run_ways(b, LATER, tokens, LENGTH, ask, &later);
    tokens[LENGTH] = QUERY;
    tokens[LENGTH + 1] = tokens[facts[second]];
    if (error == NULL)
        error = run_ways(b, TWO, tokens, LENGTH + 2, ask, &two);
    for (size_t i = 0; i < 8; i++)
        tokens[LENGTH + i] = FIRST_FILLER + (int32_t)random_below(state, N_FILLER);
    if (error == NULL)
        error = run_ways(b, BEFORE, tokens, LENGTH + 8, ask, &before);
    memcpy(tokens + LENGTH, tokens + facts[first] + 1, N_VALUES * sizeof *tokens);
    tokens[LENGTH + N_VALUES] = QUERY;
    tokens[LENGTH + N_VALUES + 1] = tokens[facts[second]];
    if (error == NULL)
        error = run_ways(b, AGAIN, tokens, LENGTH + N_VALUES + 2, ask, &again);
    return error;
}

/* ---- text ----------------------------------------------------------------------------------- */

/* Fills p with the softmax of the logits. */
static void softmax(const float *logits, size_t n, double *p) {
    double most = (double)logits[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        most = (double)logits[i] > most ? (double)logits[i] : most;
    for (size_t i = 0; i < n; i++)
        sum += p[i] = exp((double)logits[i] - most);
    for (size_t i = 0; i < n; i++)
        p[i] /= sum;
}

/* Feeds the text that follows the prompt. The full cache comes first and leaves its logits. */
static const char *diverge(bench *b, llama_cache *cache, const void *task, double *figure) {
    const int32_t *const next = task;
    const size_t n = b->model.vocab_size;
    double *const p = b->p, *const q = b->p + n;
    *figure = 0;
    for (size_t step = 0; step < STEPS; step++) {
        float *const full = b->logits + step * n;
        const char *const error = llama_decode(&b->model, &b->state, cache, next[step]);
        if (error != NULL)
            return error;
        if (cache == &b->full)
            memcpy(full, b->state.logits, n * sizeof(float));
        softmax(full, n, p);
        softmax(b->state.logits, n, q);
        for (size_t i = 0; i < n; i++)
            *figure += p[i] * log(p[i] / q[i]) / STEPS;
    }
    return llama_rewind(cache, STEPS);
}

/* The prompt's tokens as they lie in the unseen text, `stride` further for each prompt. */
static const char *run_text(bench *b, const int32_t *tokens) {
    return run_ways(b, 0, tokens, LENGTH, diverge, tokens + LENGTH);
}

/* ---- the command ---------------------------------------------------------------------------- */

static const size_t RECALL_CAPACITIES[] = {8, 12, 16, 20, 24, 32, 48, 64, 128};
static const size_t CHECK_CAPACITIES[] = {64};
static const size_t TEXT_CAPACITIES[] = {16, 24, 32, 64, 128, 256};

/* The mean of a way at the only capacity of a check; NaN, with which nothing holds: no such way. */
static double figure_of(const bench *b, const char *name) {
    for (size_t i = 0; i < N_METHODS; i++)
        if (strcmp(METHODS[i].name, name) == 0)
            return 1000 * mean(&b->tallies[0][i][0]);
    fprintf(stderr, "quality: no way \"%s\"\n", name);
    return NAN;
}

static int expect(int holds, const char *what, double a, double b) {
    printf("%s  %s: %.1f and %.1f\n", holds ? "ok  " : "FAIL", what, a, b);
    return holds ? 0 : 1;
}

/* Returns the number of what fails. */
static int check_text(const bench *b) {
    const double one = figure_of(b, "sum, without pooling, model");
    const double each = figure_of(b, "recent 4, without pooling");
    const double article = figure_of(b, "the article: sum, average 5, recent 16");
    const double last = figure_of(b, "last C"), at_random = figure_of(b, "random + recent 4");
    const size_t n = b->n_prompts * b->model.n_layers * b->model.n_kv_heads * b->capacities[0];
    int failed = 0;
    failed += expect(one <= 0.95 * each, "one budget, at least 5 % below C per list", one, each);
    failed += expect(each <= 0.9 * article, "without pooling, 10 % below with it", each, article);
    failed += expect(article <= 0.95 * last, "the article, 5 % below the last C", article, last);
    failed += expect(last <= 0.7 * at_random, "the last C, 30 % below random", last, at_random);
    for (size_t i = 1; i < N_METHODS; i++)
        if (b->tallies[0][i][0].kept != n)
            failed += expect(0, METHODS[i].name, (double)b->tallies[0][i][0].kept, (double)n);
    return failed;
}

static void progress(size_t done, size_t all) {
    if (done % 10 == 0 || done == all)
        fprintf(stderr, "\rprompt %zu of %zu %s", done, all, done == all ? "\n" : "");
    fflush(stderr);
}

static const char *recall(bench *b, uint64_t seed, FILE *data) {
    const char *error = llama_load(&b->model, "examples/recall_model.bin");
    b->capacities = RECALL_CAPACITIES;
    b->n_capacities = sizeof RECALL_CAPACITIES / sizeof RECALL_CAPACITIES[0];
    if (error == NULL && !bench_new(b))
        error = "not enough memory";
    for (size_t i = 0; i < b->n_prompts && error == NULL; i++) {
        error = run_recall(b, &seed);
        progress(i + 1, b->n_prompts);
    }
    if (error != NULL)
        return error;
    printf("Recall: exact answers, %%, +- the standard error; %zu prompts of %d tokens and more\n",
           b->n_prompts, LENGTH);
    for (size_t task = 0; task < N_RECALL_TASKS; task++)
        print_table(b, task, RECALL_TASKS[task][1], RECALL_TASKS[task][0], 100, data);
    return NULL;
}

static const char *text(bench *b, int check, int *failed, FILE *data) {
    tokenizer t;
    size_t n_bytes, n_tokens = 0;
    const char *error = llama_load(&b->model, "examples/text_model.bin");
    if (error != NULL)
        return error;
    error = tokenizer_load(&t, "examples/text_tokenizer.bin", b->model.vocab_size);
    if (error != NULL)
        return error;
    b->capacities = TEXT_CAPACITIES;
    b->n_capacities = sizeof TEXT_CAPACITIES / sizeof TEXT_CAPACITIES[0];
    if (check) {
        b->capacities = CHECK_CAPACITIES;
        b->n_capacities = 1;
    }
    char *const unseen = read_file("examples/text_unseen.txt", &n_bytes, &error);
    int32_t *const tokens = error == NULL ? malloc((n_bytes + 2) * sizeof *tokens) : NULL;
    if (error == NULL && (tokens == NULL || !bench_new(b)))
        error = "not enough memory";
    if (error == NULL)
        error = tokenizer_encode(&t, unseen, n_bytes, tokens, &n_tokens);
    if (error == NULL && n_tokens < LENGTH + STEPS + b->n_prompts * STEPS)
        error = "the unseen text is too short for so many prompts";
    const size_t stride =
        error == NULL && b->n_prompts > 1 ? (n_tokens - LENGTH - STEPS) / (b->n_prompts - 1) : 0;
    for (size_t i = 0; i < b->n_prompts && error == NULL; i++) {
        error = run_text(b, tokens + i * stride);
        progress(i + 1, b->n_prompts);
    }
    if (error == NULL) {
        printf("Text: Kullback-Leibler divergence from the full cache x 1000, +- the standard"
               " error; %zu prompts of\n%d tokens, %zu apart in %zu tokens of unseen text, %d steps"
               " each\n",
               b->n_prompts, LENGTH, stride, n_tokens, STEPS);
        print_table(b, 0, "The text goes on", "text", 1000, data);
        *failed = check ? check_text(b) : 0;
    }
    tokenizer_free(&t);
    free(unseen);
    free(tokens);
    return error;
}

int main(int argc, char **argv) {
    static bench b;
    unsigned long n_prompts = 0, seed = 1;
    int check = 0, failed = 0;
    FILE *data = NULL;
    int fine = argc >= 2 && (strcmp(argv[1], "recall") == 0 || strcmp(argv[1], "text") == 0);
    const int is_recall = fine && strcmp(argv[1], "recall") == 0;
    for (int i = 2; i < argc && fine; i++) {
        const char *const name = argv[i], *const value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--check") == 0 && !is_recall) {
            check = 1;
            continue;
        }
        if (strcmp(name, "--prompts") == 0)
            fine = read_number(value, 1000000, &n_prompts) && n_prompts > 0;
        else if (strcmp(name, "--seed") == 0)
            fine = read_number(value, 4294967295u, &seed);
        else if (strcmp(name, "--data") == 0)
            fine = data == NULL && (data = fopen(value, "w")) != NULL;
        else
            fine = 0;
        i++;
    }
    if (!fine) {
        fputs("usage: quality recall [--prompts N] [--seed N] [--data FILE]\n"
              "       quality text [--prompts N] [--data FILE] [--check]\n",
              stderr);
        return EXIT_FAILURE;
    }
    b.n_prompts = n_prompts != 0 ? n_prompts : is_recall ? 400 : check ? 20 : 100;
    b.random = seed;
    const char *error = is_recall ? recall(&b, seed, data) : text(&b, check, &failed, data);
    bench_free(&b);
    if (data != NULL && fclose(data) != 0 && error == NULL)
        error = "the data can't be written";
    if (error != NULL)
        fprintf(stderr, "quality: %s\n", error);
    return error == NULL && failed == 0 && is_printed("quality") ? EXIT_SUCCESS : EXIT_FAILURE;
}
