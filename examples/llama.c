/* llama.c: a small Llama that decodes from a compressed cache.
 *
 *     build/llama                  the built-in text model goes on after 1024 tokens, from 64 slots
 *     build/llama --prompt "And the king said"
 *     build/llama examples/recall_model.bin
 *                                  the model of the recall example answers a question
 *     build/llama --tokenizer tokenizer.bin --prompt "Once upon a time" model.bin
 *     build/llama --help           the other options
 *
 * It loads a checkpoint in the llama2.c format, runs the prompt once with the full cache, and
 * decodes twice: from that full cache, and from what snapkv_compress leaves of it. It prints both
 * continuations, tokens per second, the bytes of both caches and what the kept positions cover.
 *
 * With --compare the small cache is also fed the full cache's own tokens, and the distributions of
 * the next token are compared step by step: how often the most likely one is the same, and the mean
 * Kullback-Leibler divergence, sum of p log(p / q), p of the full cache. The same follows for a
 * cache of the last positions alone, as many.
 *
 * The built-in text model is trained by train_text.py; its prompt is the beginning of the Book of
 * Ruth, one of three books that the training left out (examples/text_unseen.txt). */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <time.h>

#include "arguments.h"
#include "llama.h"
#include "recall_task.h"
#include "tokenizer.h"

enum { MOST_STEPS = 1000000, PRINTED_NUMBERS = 24, TEXT_LENGTH = 1024 };

static const char TEXT_MODEL[] = "examples/text_model.bin";
static const char TEXT_TOKENIZER[] = "examples/text_tokenizer.bin";
static const char TEXT[] = "examples/text_unseen.txt";
static const char RECALL_MODEL[] = "examples/recall_model.bin";

static const char USAGE[] =
    "usage: llama [options] [MODEL]\n"
    "  MODEL             a llama2.c checkpoint (examples/text_model.bin, with its tokenizer)\n"
    "the prompt; without one, the text that the built-in model has not seen, or a question for\n"
    "examples/recall_model.bin:\n"
    "  --tokenizer FILE  turns text into tokens and back\n"
    "  --prompt TEXT     the prompt as text\n"
    "  --prompt-file F   the same from a file\n"
    "  --tokens \"1 2 3\"  the prompt as numbers, for models without a tokenizer\n"
    "  --length N        of the prompt, the first N tokens at most (1024 of the unseen text)\n"
    "the cache:\n"
    "  --capacity N      positions kept of each head, the window included (64)\n"
    "  --window N        last positions, whose queries choose (16)\n"
    "  --kernel N        width of the pooling, odd; 1: none (5)\n"
    "  --pooling P       avg or max (avg)\n"
    "  --voting V        the window's weights count by their sum or the largest: sum, max (sum)\n"
    "  --recent N        last positions always kept; 0: as many as the window (0)\n"
    "  --sharing S       a list per kv head, per query head or per layer: kv, query, layer (kv)\n"
    "  --budget B        who shares the capacity: none (head), the lists of a layer, or of the\n"
    "                    model: head, layer, model (head)\n"
    "  --least F         what each list keeps of the average all the same, 0 to 1 (0.2)\n"
    "  --in-place        compress into the full cache itself; not with query\n"
    "  --full            don't compress\n"
    "  --compare         compare with the full cache, on the full cache's tokens; so for the\n"
    "                    last positions alone\n"
    "the tokens:\n"
    "  --steps N         how many to generate (3 for a recall prompt, else 64)\n"
    "  --temperature T   0: always the most likely (0)\n"
    "  --seed N          of the sampling and of the recall prompt (1)\n";

/* ---- options -------------------------------------------------------------------------------- */

typedef struct options {
    const char *model, *tokenizer, *prompt, *prompt_file, *tokens;
    snapkv_config config;
    llama_budget budget;
    double least, temperature;
    uint64_t seed;
    size_t n_steps, length; /* 0: not given */
    int full, compare, in_place, help;
} options;

static int read_size(const char *text, size_t *size) {
    unsigned long number;
    if (!read_number(text, INT32_MAX, &number))
        return 0;
    *size = number;
    return 1;
}

/* An option that takes a value. False: it is unknown or the value is wrong. */
static int read_value(options *o, const char *name, const char *value) {
    unsigned long number;
    size_t index;
    if (strcmp(name, "--tokenizer") == 0) {
        o->tokenizer = value;
    } else if (strcmp(name, "--prompt") == 0) {
        o->prompt = value;
    } else if (strcmp(name, "--prompt-file") == 0) {
        o->prompt_file = value;
    } else if (strcmp(name, "--tokens") == 0) {
        o->tokens = value;
    } else if (strcmp(name, "--length") == 0) {
        return read_size(value, &o->length) && o->length > 0;
    } else if (strcmp(name, "--capacity") == 0) {
        return read_size(value, &o->config.capacity);
    } else if (strcmp(name, "--window") == 0) {
        return read_size(value, &o->config.window);
    } else if (strcmp(name, "--kernel") == 0) {
        return read_size(value, &o->config.kernel_size);
    } else if (strcmp(name, "--pooling") == 0) {
        static const char *const names[] = {"avg", "max"}; /* here and below in the enum's order */
        if (!read_name(value, names, 2, &index))
            return 0;
        o->config.pooling = (snapkv_pooling)index;
    } else if (strcmp(name, "--voting") == 0) {
        static const char *const names[] = {"sum", "max"};
        if (!read_name(value, names, 2, &index))
            return 0;
        o->config.voting = (snapkv_voting)index;
    } else if (strcmp(name, "--sharing") == 0) {
        static const char *const names[] = {"kv", "query", "layer"};
        if (!read_name(value, names, 3, &index))
            return 0;
        o->config.sharing = (snapkv_sharing)index;
    } else if (strcmp(name, "--budget") == 0) {
        static const char *const names[] = {"head", "layer", "model"};
        if (!read_name(value, names, 3, &index))
            return 0;
        o->budget = (llama_budget)index;
    } else if (strcmp(name, "--least") == 0) {
        return read_real(value, 1, &o->least);
    } else if (strcmp(name, "--recent") == 0) {
        return read_size(value, &o->config.n_recent);
    } else if (strcmp(name, "--steps") == 0) {
        return read_size(value, &o->n_steps) && o->n_steps > 0 && o->n_steps <= MOST_STEPS;
    } else if (strcmp(name, "--temperature") == 0) {
        return read_real(value, 100, &o->temperature);
    } else if (strcmp(name, "--seed") == 0) {
        if (!read_number(value, 4294967295u, &number))
            return 0;
        o->seed = number;
    } else {
        return 0;
    }
    return 1;
}

/* Returns NULL, or the argument that is wrong. */
static const char *read_options(options *o, int argc, char **argv) {
    int has_model = 0;
    for (int i = 1; i < argc; i++) {
        const char *const name = argv[i];
        if (strcmp(name, "--full") == 0)
            o->full = 1;
        else if (strcmp(name, "--compare") == 0)
            o->compare = 1;
        else if (strcmp(name, "--in-place") == 0)
            o->in_place = 1;
        else if (strcmp(name, "--help") == 0)
            o->help = 1;
        else if (name[0] != '-' && name[0] != '\0' && !has_model) {
            o->model = name;
            has_model = 1;
        } else if (i + 1 < argc && read_value(o, name, argv[i + 1])) {
            i++;
        } else {
            return name;
        }
    }
    return NULL;
}

/* Without a model, the text model with its tokenizer, and without a prompt too, its text. */
static void fill_in_text(options *o) {
    if (o->model != NULL)
        return;
    o->model = TEXT_MODEL;
    if (o->tokenizer != NULL)
        return;
    o->tokenizer = TEXT_TOKENIZER;
    if (o->prompt == NULL && o->prompt_file == NULL && o->tokens == NULL) {
        o->prompt_file = TEXT;
        if (o->length == 0)
            o->length = TEXT_LENGTH;
    }
}

/* What doesn't go together, or NULL. */
static const char *check_options(const options *o) {
    const int n_prompts = (o->prompt != NULL) + (o->prompt_file != NULL) + (o->tokens != NULL);
    if (n_prompts > 1)
        return "one prompt, please: --prompt, --prompt-file or --tokens";
    if (o->length != 0 && n_prompts == 0 && o->tokenizer == NULL)
        return "--length cuts a prompt, and there is none";
    if ((o->prompt != NULL || o->prompt_file != NULL) && o->tokenizer == NULL)
        return "a prompt of text needs a --tokenizer; without one, give numbers with --tokens";
    if (o->tokenizer != NULL && n_prompts == 0)
        return "a tokenizer needs a prompt: --prompt or --prompt-file";
    if (o->full && (o->compare || o->in_place))
        return "--full doesn't compress: there is nothing to compare or to put in place";
    if (o->in_place && o->config.sharing == SNAPKV_PER_QUERY_HEAD)
        return "--in-place needs lists per K/V head or per layer: query heads of a group keep"
               " different rows";
    return NULL;
}

/* ---- everything at once --------------------------------------------------------------------- */

typedef struct program {
    options o;
    llama_model model;
    tokenizer tokenizer;
    llama_state state;
    llama_cache full, small;
    int32_t *tokens; /* [n_tokens] the prompt */
    size_t n_tokens;
    int names;                /* tokens are those of the recall task */
    int32_t answer[N_VALUES]; /* of a recall prompt that this program made */
    int has_answer;
    float *queries;                  /* [n_layers][n_heads][window][head_dim] */
    float *first_logits;             /* [vocab_size] after the prompt */
    float *full_logits;              /* [n_steps - 1][vocab_size] with --compare, else NULL */
    float *probabilities;            /* [2][vocab_size] scratch */
    float *coverage;                 /* [n_layers][sets] */
    size_t *counts;                  /* [n_layers][sets] positions kept */
    int32_t *kept;                   /* [n_layers][sets][kept_count] */
    int32_t *from_full, *from_small; /* [n_steps] */
    size_t n_from_full, n_from_small;
    double prefill_seconds, compress_seconds, full_speed, small_speed;
} program;

static void program_free(program *p) {
    llama_state_free(&p->state);
    llama_cache_free(&p->full);
    llama_cache_free(&p->small);
    llama_free(&p->model);
    tokenizer_free(&p->tokenizer);
    free(p->tokens);
    free(p->queries);
    free(p->first_logits);
    free(p->full_logits);
    free(p->probabilities);
    free(p->coverage);
    free(p->counts);
    free(p->kept);
    free(p->from_full);
    free(p->from_small);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the prompt ----------------------------------------------------------------------------- */

static const char *encode_prompt(program *p, const char *text, size_t n_bytes) {
    p->tokens = malloc((n_bytes + 2) * sizeof *p->tokens);
    if (p->tokens == NULL)
        return "not enough memory";
    return tokenizer_encode(&p->tokenizer, text, n_bytes, p->tokens, &p->n_tokens);
}

/* Numbers with spaces or commas between them. */
static const char *read_token_list(program *p, const char *text) {
    p->tokens = malloc((strlen(text) + 1) * sizeof *p->tokens);
    if (p->tokens == NULL)
        return "not enough memory";
    for (;;) {
        char number[16];
        unsigned long token;
        text += strspn(text, " ,\t\n");
        const size_t n = strcspn(text, " ,\t\n");
        if (n == 0)
            return p->n_tokens == 0 ? "no token in it" : NULL;
        if (n >= sizeof number)
            return "a token is not in the vocabulary";
        memcpy(number, text, n);
        number[n] = '\0';
        if (!read_number(number, INT32_MAX, &token))
            return "something in it is not a number";
        if (token >= p->model.vocab_size)
            return "a token is not in the vocabulary";
        p->tokens[p->n_tokens++] = (int32_t)token;
        text += n;
    }
}

static const char *make_recall_prompt(program *p) {
    uint64_t state = p->o.seed;
    p->tokens = malloc(LENGTH * sizeof *p->tokens);
    if (p->tokens == NULL)
        return "not enough memory";
    make_prompt(&state, p->tokens, p->answer);
    p->n_tokens = LENGTH;
    p->has_answer = 1;
    return NULL;
}

/* Returns NULL or an error; *where is what it is about. */
static const char *load_all(program *p, const char **where) {
    const options *const o = &p->o;
    *where = o->model;
    const char *error = llama_load(&p->model, o->model);
    if (error != NULL)
        return error;
    p->names = o->tokenizer == NULL && strcmp(o->model, RECALL_MODEL) == 0;
    if (o->tokenizer != NULL) {
        *where = o->tokenizer;
        error = tokenizer_load(&p->tokenizer, o->tokenizer, p->model.vocab_size);
        if (error != NULL)
            return error;
    }
    if (o->tokens != NULL) {
        *where = "--tokens";
        return read_token_list(p, o->tokens);
    }
    if (o->prompt != NULL) {
        *where = "--prompt";
        return encode_prompt(p, o->prompt, strlen(o->prompt));
    }
    if (o->prompt_file != NULL) {
        size_t n_bytes;
        *where = o->prompt_file;
        char *const text = read_file(o->prompt_file, &n_bytes, &error);
        if (error == NULL)
            error = encode_prompt(p, text, n_bytes);
        free(text);
        return error;
    }
    if (p->model.vocab_size != VOCABULARY)
        return "another vocabulary than the recall task's: give a prompt, --prompt or --tokens";
    p->names = 1;
    return make_recall_prompt(p);
}

/* ---- printing ------------------------------------------------------------------------------- */

/* Control characters but newline and tab could play with the terminal. */
static void print_bytes(const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((bytes[i] >= ' ' && bytes[i] != 127) || bytes[i] == '\n' || bytes[i] == '\t')
            putchar(bytes[i]);
}

/* Text, names or numbers. `previous` is the token before them. */
static void print_tokens(const program *p, int32_t previous, const int32_t *tokens, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (p->o.tokenizer != NULL) {
            size_t length;
            const unsigned char *const piece = tokenizer_piece(
                &p->tokenizer, i == 0 ? previous : tokens[i - 1], tokens[i], &length);
            print_bytes(piece, length);
        } else if (p->names) {
            char name[16];
            token_name(tokens[i], name);
            printf("%s%s", i == 0 ? "" : " ", name);
        } else {
            printf("%s%ld", i == 0 ? "" : " ", (long)tokens[i]);
        }
    }
    putchar('\n');
}

static void print_recall_prompt(const program *p) {
    printf("%d tokens: noise, and %d facts in it, at\n", LENGTH, N_FACTS);
    size_t column = 0;
    for (size_t i = 0; i < LENGTH; i++)
        if (is_fact(p->tokens, i)) {
            char name[1 + N_VALUES][16];
            for (size_t v = 0; v <= N_VALUES; v++)
                token_name(p->tokens[i + v], name[v]);
            printf("%s%5zu  %-3s -> %-3s %-3s %-3s", column == 0 ? "" : "  ", i, name[0], name[1],
                   name[2], name[3]);
            column = (column + 1) % 3;
            if (column == 0)
                putchar('\n');
        }
    char key[16];
    token_name(p->tokens[LENGTH - 1], key);
    printf("%s%5d  %s -> ?\n", column == 0 ? "" : "\n", LENGTH - 2, key);
}

static void print_prompt(const program *p) {
    printf("---- prompt, %zu tokens\n", p->n_tokens);
    if (p->has_answer) {
        print_recall_prompt(p);
    } else if (p->o.tokenizer != NULL || p->n_tokens <= 2 * PRINTED_NUMBERS) {
        print_tokens(p, TOKENIZER_NONE, p->tokens, p->n_tokens);
    } else {
        print_tokens(p, TOKENIZER_NONE, p->tokens, PRINTED_NUMBERS);
        printf("... %zu more ...\n", p->n_tokens - 2 * PRINTED_NUMBERS);
        print_tokens(p, TOKENIZER_NONE, p->tokens + p->n_tokens - PRINTED_NUMBERS, PRINTED_NUMBERS);
    }
}

static void print_generated(const program *p, const char *from, const int32_t *tokens, size_t n) {
    printf("---- from the %s cache, %zu tokens\n", from, n);
    print_tokens(p, p->tokens[p->n_tokens - 1], tokens, n);
    if (p->has_answer && n >= N_VALUES)
        printf("%s\n", memcmp(tokens, p->answer, sizeof p->answer) == 0 ? "(right)" : "(wrong)");
}

static size_t stored_sets(const program *p) {
    return p->o.config.sharing == SNAPKV_PER_LAYER ? 1
                                                   : llama_stored_heads(&p->o.config, &p->model);
}

/* The positions that the lists keep on average. */
static double mean_kept(const program *p) {
    const size_t n_lists = p->model.n_layers * stored_sets(p);
    double sum = 0;
    for (size_t i = 0; i < n_lists; i++)
        sum += (double)p->counts[i];
    return sum / (double)n_lists;
}

static void print_coverage(const program *p) {
    const size_t n_sets = stored_sets(p);
    printf("coverage: the share of the window's attention that the kept positions hold\n");
    for (size_t layer = 0; layer < p->model.n_layers; layer++) {
        const float *const c = p->coverage + layer * n_sets;
        double sum = 0, least = 1;
        for (size_t set = 0; set < n_sets; set++) {
            sum += (double)c[set];
            least = (double)c[set] < least ? (double)c[set] : least;
        }
        printf("  layer %-3zu %6.1f %%", layer, 100 * sum / (double)n_sets);
        if (n_sets > 1)
            printf("   lowest of %zu lists %.1f %%", n_sets, 100 * least);
        putchar('\n');
    }
}

static const char *print_bytes_of_caches(const program *p) {
    const llama_model *const m = &p->model;
    const snapkv_model shape = {1,           m->n_layers,  m->n_heads, m->n_kv_heads,
                                m->head_dim, sizeof(float)};
    snapkv_ledger ledger;
    const size_t n_fed = (p->n_from_small != 0 ? p->n_from_small : p->n_from_full) - 1;
    const snapkv_status status =
        p->o.full
            ? snapkv_account(&p->o.config, &shape, p->n_tokens, n_fed, &ledger)
            : snapkv_account_lists(&p->o.config, &shape, p->n_tokens, n_fed, p->counts, &ledger);
    if (status != SNAPKV_OK)
        return snapkv_status_string(status);
    printf("cache: %llu bytes in full", (unsigned long long)ledger.full_bytes);
    if (!p->o.full)
        printf(", %llu compressed (%.1f %%); selection took %llu bytes of workspace",
               (unsigned long long)ledger.kept_bytes,
               100.0 * (double)ledger.kept_bytes / (double)ledger.full_bytes,
               (unsigned long long)ledger.workspace_bytes);
    putchar('\n');
    return NULL;
}

static void print_next(const llama_cache *cache) {
    size_t low = SIZE_MAX, high = 0;
    for (size_t i = 0; i < llama_n_lists(cache); i++) {
        const size_t slot = snapkv_next_slot(&cache->lists[i].cursor);
        low = slot < low ? slot : low;
        high = slot > high ? slot : high;
    }
    printf("next: position %zu, ", snapkv_next_position(&cache->lists[0].cursor));
    printf(low == high ? "slot %zu\n" : "slots %zu to %zu\n", low, high);
}

/* ---- generation ----------------------------------------------------------------------------- */

/* softmax(logits / temperature). */
static void softmax(const float *logits, size_t n, double temperature, float *probabilities) {
    float most = logits[0];
    double sum = 0;
    for (size_t i = 1; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (size_t i = 0; i < n; i++) {
        probabilities[i] = (float)exp(((double)logits[i] - (double)most) / temperature);
        sum += (double)probabilities[i];
    }
    for (size_t i = 0; i < n; i++)
        probabilities[i] = (float)((double)probabilities[i] / sum);
}

/* The next token, from state.logits. */
static int32_t sample(program *p, uint64_t *random) {
    const size_t n = p->model.vocab_size;
    if (p->o.temperature <= 0)
        return llama_best(&p->model, &p->state);
    softmax(p->state.logits, n, p->o.temperature, p->probabilities);
    double left =
        (double)(random_bits(random) >> 11) / 9007199254740992.0; /* 2^53: 0 <= left < 1 */
    size_t chosen = 0;
    for (size_t i = 0; i < n; i++) {
        if (p->probabilities[i] > 0)
            chosen = i; /* the last one, should rounding leave a rest */
        left -= (double)p->probabilities[i];
        if (left < 0)
            break;
    }
    return (int32_t)chosen;
}

/* Continues the prompt from a cache. The first token comes from the prompt's own logits, so all
 * but the last token are fed. `logits`, if not NULL, is [n_steps - 1][vocab_size] and receives what
 * each fed token gave. */
static const char *generate(program *p, llama_cache *cache, int32_t *tokens, size_t *n_generated,
                            float *logits) {
    const size_t vocabulary = p->model.vocab_size;
    uint64_t random = p->o.seed;
    memcpy(p->state.logits, p->first_logits, vocabulary * sizeof(float));
    *n_generated = 0;
    for (size_t step = 0; step < p->o.n_steps; step++) {
        if (step > 0) {
            const char *const error = llama_decode(&p->model, &p->state, cache, tokens[step - 1]);
            if (error != NULL)
                return error;
            if (logits != NULL)
                memcpy(logits + (step - 1) * vocabulary, p->state.logits,
                       vocabulary * sizeof(float));
        }
        tokens[step] = sample(p, &random);
        *n_generated = step + 1;
        if (p->o.tokenizer != NULL &&
            (tokens[step] == TOKENIZER_BEGIN || tokens[step] == TOKENIZER_END))
            break;
    }
    return NULL;
}

/* Takes back what was generated. */
static const char *rewind_cache(llama_cache *cache) {
    return llama_rewind(cache, llama_cursor(cache).generated);
}

/* Tokens per second of decoding, without the sampling: the same tokens are fed again, for a tenth
 * of a second at least. The cache is left as it was found. */
static const char *measure(program *p, llama_cache *cache, const int32_t *tokens, double *speed) {
    const size_t n_fed = llama_cursor(cache).generated, n = n_fed != 0 ? n_fed : 1;
    const double start = now();
    double seconds = 0;
    size_t n_decoded = 0;
    const char *error = NULL;
    while (error == NULL && seconds < 0.1) {
        error = rewind_cache(cache);
        for (size_t step = 0; step < n && error == NULL; step++)
            error = llama_decode(&p->model, &p->state, cache, tokens[step]);
        n_decoded += n;
        seconds = now() - start;
    }
    *speed = (double)n_decoded / seconds;
    if (error == NULL && n_fed == 0)
        error = rewind_cache(cache);
    return error;
}

/* Each list keeps the capacity, or shares it with others. */
static const char *compress(program *p, llama_cache *to) {
    const options *const o = &p->o;
    if (o->budget != LLAMA_BUDGET_HEAD)
        return llama_compress_shared(&o->config, o->budget, o->least, &p->model, &p->full,
                                     p->queries, to, p->counts, p->kept, p->coverage);
    for (size_t i = 0; i < p->model.n_layers * stored_sets(p); i++)
        p->counts[i] = snapkv_kept_count(&o->config, p->n_tokens);
    return llama_compress(&o->config, &p->model, &p->full, p->queries, to, p->kept, p->coverage);
}

/* What is left of the prompt if only its last positions stay: they lie together. */
static void keep_last(const program *p, llama_cache *to) {
    const llama_model *const m = &p->model;
    const size_t n_kept = snapkv_kept_count(&p->o.config, p->n_tokens);
    const size_t first = (p->n_tokens - n_kept) * m->head_dim, n = n_kept * m->head_dim;
    llama_start(to, snapkv_cursor_start(&p->o.config, p->n_tokens));
    llama_share_rows(to);
    for (size_t layer = 0; layer < m->n_layers; layer++)
        for (size_t head = 0; head < to->n_heads; head++) {
            const size_t at = llama_cache_at(to, layer, head);
            const size_t from =
                llama_cache_at(&p->full, layer, head * m->n_kv_heads / to->n_heads) + first;
            memcpy(to->keys + at, p->full.keys + from, n * sizeof(float));
            memcpy(to->values + at, p->full.values + from, n * sizeof(float));
        }
}

/* Feeds the full cache's tokens to a smaller one, and prints how far that is from the full one. */
static const char *compare(program *p, llama_cache *cache, const char *name) {
    const size_t n = p->model.vocab_size, n_fed = p->n_from_full - 1;
    float *const full = p->probabilities, *const small = full + n;
    size_t n_same = 0;
    double divergence = 0;
    for (size_t step = 0; step < n_fed; step++) {
        const char *const error = llama_decode(&p->model, &p->state, cache, p->from_full[step]);
        if (error != NULL)
            return error;
        const int32_t best = llama_best(&p->model, &p->state);
        softmax(p->state.logits, n, 1, small);
        memcpy(p->state.logits, p->full_logits + step * n, n * sizeof(float));
        n_same += best == llama_best(&p->model, &p->state);
        softmax(p->state.logits, n, 1, full);
        for (size_t i = 0; i < n; i++)
            if (full[i] > 0) /* one that underflowed counts as float's smallest normal */
                divergence += (double)full[i] *
                              log((double)full[i] /
                                  ((double)small[i] > 1.2e-38 ? (double)small[i] : 1.2e-38));
    }
    printf("  %-18s the most likely token agrees in %zu of %zu steps, mean KL divergence %.6f\n",
           name, n_same, n_fed, divergence / (double)n_fed);
    return NULL;
}

/* ---- the run -------------------------------------------------------------------------------- */

/* Everything but the model and the prompt. */
static const char *allocate(program *p) {
    const llama_model *const m = &p->model;
    const options *const o = &p->o;
    const size_t heads = m->n_layers * m->n_heads;
    const size_t n_kept = p->n_tokens < o->config.capacity ? p->n_tokens : o->config.capacity;
    const size_t slots = p->n_tokens + o->n_steps;
    p->queries = llama_floats(llama_times(heads, llama_times(o->config.window, m->head_dim)));
    p->first_logits = llama_floats(m->vocab_size);
    p->probabilities = llama_floats(llama_times(2, m->vocab_size));
    p->coverage = llama_floats(heads);
    p->counts = calloc(heads, sizeof *p->counts);
    p->kept = (int32_t *)llama_floats(llama_times(heads, n_kept + 1)); /* 4 bytes as well */
    p->from_full = (int32_t *)llama_floats(o->n_steps);
    p->from_small = (int32_t *)llama_floats(o->n_steps);
    if (o->compare)
        p->full_logits = llama_floats(llama_times(o->n_steps, m->vocab_size));
    const int fine =
        p->queries != NULL && p->first_logits != NULL && p->probabilities != NULL &&
        p->coverage != NULL && p->counts != NULL && p->kept != NULL && p->from_full != NULL &&
        p->from_small != NULL && (p->full_logits != NULL || !o->compare) &&
        llama_state_new(&p->state, m, slots) &&
        llama_cache_new(&p->full, m, m->n_kv_heads, slots) &&
        (o->full || o->in_place ||
         llama_cache_new(&p->small, m, llama_stored_heads(&o->config, m), n_kept + o->n_steps));
    return fine ? NULL : "not enough memory";
}

/* The policy must be right before the prompt is read; a prompt shorter than the window votes with
 * what it has. */
static const char *check_policy(program *p) {
    snapkv_config *const config = &p->o.config;
    const snapkv_model shape = {1, 1, p->model.n_heads, p->model.n_kv_heads, p->model.head_dim, 4};
    snapkv_ledger ledger;
    if (p->n_tokens > INT32_MAX - MOST_STEPS)
        return "the prompt is too long";
    if (p->n_tokens + p->o.n_steps > p->model.max_length)
        fprintf(stderr, "llama: note: %zu tokens, and the model was trained for %zu\n",
                p->n_tokens + p->o.n_steps, p->model.max_length);
    if (p->o.full) { /* any valid policy: only the full bytes will be asked for */
        *config = snapkv_default_config();
        config->window = 1;
        return NULL;
    }
    if (config->window > p->n_tokens)
        config->window = p->n_tokens;
    const snapkv_status status = snapkv_account(config, &shape, p->n_tokens, 0, &ledger);
    return status == SNAPKV_OK ? NULL : snapkv_status_string(status);
}

static const char *run(program *p) {
    const options *const o = &p->o;
    const char *error;
    if (o->length != 0 && p->n_tokens > o->length)
        p->n_tokens = o->length;
    if (p->o.n_steps == 0)
        p->o.n_steps = p->has_answer ? N_VALUES : 64;
    if ((error = check_policy(p)) != NULL || (error = allocate(p)) != NULL)
        return error;

    double start = now();
    error = llama_prefill(&p->model, &p->state, &p->full, p->tokens, p->n_tokens, o->config.window,
                          o->full ? NULL : p->queries);
    if (error != NULL)
        return error;
    p->prefill_seconds = now() - start;
    memcpy(p->first_logits, p->state.logits, p->model.vocab_size * sizeof(float));
    print_prompt(p);

    error = generate(p, &p->full, p->from_full, &p->n_from_full, p->full_logits);
    if (error == NULL)
        error = measure(p, &p->full, p->from_full, &p->full_speed);
    if (error != NULL)
        return error;
    print_generated(p, "full", p->from_full, p->n_from_full);
    if (!o->full) {
        if ((error = rewind_cache(&p->full)) != NULL)
            return error;
        start = now();
        llama_cache *const small = o->in_place ? &p->full : &p->small;
        error = compress(p, small);
        if (error != NULL)
            return error;
        p->compress_seconds = now() - start;
        error = generate(p, small, p->from_small, &p->n_from_small, NULL);
        if (error == NULL)
            error = measure(p, small, p->from_small, &p->small_speed);
        if (error != NULL)
            return error;
        print_generated(p, "compressed", p->from_small, p->n_from_small);
    }

    printf("----\n");
    return NULL;
}

static const char *summary(program *p) {
    const options *const o = &p->o;
    const char *error;
    printf("prompt: %.0f tokens a second\n", (double)p->n_tokens / p->prefill_seconds);
    printf("decoding: %.0f tokens a second from the full cache", p->full_speed);
    if (!o->full)
        printf(", %.0f from the compressed one", p->small_speed);
    putchar('\n');
    if (!o->full)
        printf("compression: %g of %zu positions kept of each list%s, window %zu; %.2f ms, all"
               " layers (%s)\n",
               mean_kept(p), p->n_tokens, o->budget == LLAMA_BUDGET_HEAD ? "" : " on average",
               o->config.window, 1e3 * p->compress_seconds, SNAPKV_ISA_NAME);
    if ((error = print_bytes_of_caches(p)) != NULL)
        return error;
    if (!o->full) {
        llama_cache *const small = o->in_place ? &p->full : &p->small;
        print_next(small);
        print_coverage(p);
        if (o->compare && p->n_from_full > 1) {
            printf("against the full cache, on its own tokens:\n");
            if ((error = rewind_cache(small)) != NULL ||
                (error = compare(p, small, "compressed cache")) != NULL)
                return error;
            if (!o->in_place) { /* else the last positions are overwritten */
                char name[32];
                keep_last(p, small);
                snprintf(name, sizeof name, "last %zu alone",
                         snapkv_kept_count(&o->config, p->n_tokens));
                if ((error = compare(p, small, name)) != NULL)
                    return error;
            }
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    static program p;
    p.o.config = snapkv_default_config();
    p.o.config.window = 16;
    p.o.config.capacity = 64;
    p.o.least = 0.2;
    p.o.seed = 1;
    const char *const wrong = read_options(&p.o, argc, argv);
    if (wrong != NULL) {
        fprintf(stderr, "llama: bad argument or value: %s\n%s", wrong, USAGE);
        return EXIT_FAILURE;
    }
    if (p.o.help) {
        fputs(USAGE, stdout);
        return EXIT_SUCCESS;
    }
    fill_in_text(&p.o);
    const char *where = NULL;
    const char *error = check_options(&p.o);
    if (error == NULL) {
        error = load_all(&p, &where);
        if (error == NULL) {
            where = NULL;
            error = run(&p);
        }
        if (error == NULL)
            error = summary(&p);
    }
    if (error != NULL)
        fprintf(stderr, "llama: %s%s%s\n", where != NULL ? where : "", where != NULL ? ": " : "",
                error);
    program_free(&p);
    return error == NULL && is_printed("llama") ? EXIT_SUCCESS : EXIT_FAILURE;
}
