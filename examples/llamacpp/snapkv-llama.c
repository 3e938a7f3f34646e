/* snapkv-llama.c: SnapKV on an unmodified llama.cpp, through its public C interface.
 *
 *     snapkv-llama -m model.gguf -f prompt.txt -n 128 --capacity 1024
 *
 * Reads the prompt with the full cache, keeps the positions that its last tokens look at, and
 * decodes from a second, small context. --help lists the options, docs/llamacpp.md tells how it
 * works. The text goes to standard output, all else to standard error. Greedy; one sequence. */
#include <llama.h>
#include <math.h>

#include "../arguments.h"
#include "compress.h"

static const char USAGE[] =
    "usage: snapkv-llama -m MODEL.gguf -f PROMPT.txt [options]\n"
    "  -n N                 tokens to generate (128)\n"
    "  --capacity N         positions kept per K/V head (1024)\n"
    "  --window N           last tokens of the prompt that vote (32)\n"
    "  --recent N           last tokens that are kept whatever the votes (as the window)\n"
    "  --kernel N           width of the pooling, odd (5)\n"
    "  --pooling avg|max, --voting sum|max           (avg, sum)\n"
    "  --sharing kv|layer   a list per K/V head or per layer (kv)\n"
    "  --cache-type f16|f32|q8_0, --flash on|off     of both caches (f16, on)\n"
    "  --threads N, --ubatch N                       as llama.cpp has them (4, 512)\n"
    "  --compare            decodes with the full cache as well: speed, agreement, KL\n"
    "  --save FILE          writes the small cache\n"
    "  --load FILE          instead of a prefill; PROMPT.txt goes on from there\n"
    "  --backends FOLDER    where llama.cpp's backends lie, if not where it looks by itself\n";

typedef struct options {
    const char *model, *prompt, *save, *load, *backends;
    unsigned long n_predict, threads, ubatch, cache_type, flash, is_compared;
    unsigned long capacity, window, recent, kernel, pooling, voting, sharing;
} options;

/* The names of a choice, in the order of their values. */
static const char *const TYPES[] = {"f32", "f16", "q8_0", NULL};
static const enum ggml_type GGML_TYPES[] = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0};
static const char *const SWITCH[] = {"off", "on", NULL}, *const POOLING[] = {"avg", "max", NULL};
static const char *const VOTING[] = {"sum", "max", NULL}, *const SHARING[] = {"kv", "layer", NULL};

static int read_choice(const char *text, const char *const *names, unsigned long *value) {
    for (*value = 0; names[*value] != NULL; ++*value)
        if (strcmp(text, names[*value]) == 0)
            return 1;
    return 0;
}

/* NULL, or the argument that is wrong. */
static const char *read_options(options *o, int argc, char **argv) {
    const struct {
        const char *name, **text;
        unsigned long *number;
        const char *const *names;
    } known[] = {{"-m", &o->model, NULL, NULL},
                 {"-f", &o->prompt, NULL, NULL},
                 {"--save", &o->save, NULL, NULL},
                 {"--load", &o->load, NULL, NULL},
                 {"--backends", &o->backends, NULL, NULL},
                 {"-n", NULL, &o->n_predict, NULL},
                 {"--capacity", NULL, &o->capacity, NULL},
                 {"--window", NULL, &o->window, NULL},
                 {"--recent", NULL, &o->recent, NULL},
                 {"--kernel", NULL, &o->kernel, NULL},
                 {"--threads", NULL, &o->threads, NULL},
                 {"--ubatch", NULL, &o->ubatch, NULL},
                 {"--pooling", NULL, &o->pooling, POOLING},
                 {"--voting", NULL, &o->voting, VOTING},
                 {"--sharing", NULL, &o->sharing, SHARING},
                 {"--cache-type", NULL, &o->cache_type, TYPES},
                 {"--flash", NULL, &o->flash, SWITCH}};
    const size_t n_known = sizeof known / sizeof known[0];
    for (int i = 1; i < argc; i++) {
        size_t which = 0;
        const char *const value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--compare") == 0) {
            o->is_compared = 1;
            continue;
        }
        while (which < n_known && strcmp(argv[i], known[which].name) != 0)
            which++;
        if (which == n_known || value[0] == '\0' ||
            !(known[which].text != NULL ? (*known[which].text = value) != NULL
              : known[which].names != NULL
                  ? read_choice(value, known[which].names, known[which].number)
                  : read_number(value, 1 << 24, known[which].number)))
            return argv[i];
        i++;
    }
    return o->model == NULL ? "-m" : o->prompt == NULL ? "-f" : NULL;
}

/* ---- llama.cpp ------------------------------------------------------------------------------ */

typedef struct session {
    options o;
    struct llama_model *model;
    struct llama_context *full, *small;
    capture queries;
    cut state;
    llama_token *tokens;
    llama_token first; /* after the prompt */
    int32_t n_tokens, n_vocab;
    size_t n_generated;
    double prefill_seconds, select_seconds, decode_seconds;
    char message[200], part[4096];
} session;

static double now(void) {
    return 1e-6 * (double)llama_time_us();
}

static void log_errors(enum ggml_log_level level, const char *text, void *context) {
    (void)context;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

/* NULL, or why this tool can't serve the model. */
static const char *refuse(const struct llama_model *model) {
    const enum llama_rope_type rope = llama_model_rope_type(model);
    char arch[64] = "", key[128], text[64];
    if (llama_model_n_swa(model) > 0)
        return "layers with a sliding window keep a cache of their own, which is not served";
    if (rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE ||
        rope == LLAMA_ROPE_TYPE_VISION)
        return "M-RoPE has several positions a token, which is not served";
    if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model) ||
        llama_model_has_encoder(model))
        return "only models whose whole memory is one cache of keys and values are served";
    /* A stretched rotation with a length of its own, unless it is one that only looks at that. */
    (void)llama_model_meta_val_str(model, "general.architecture", arch, sizeof arch);
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", arch);
    const int is_stretched = llama_model_meta_val_str(model, key, text, sizeof text) >= 0;
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    if (is_stretched && (llama_model_meta_val_str(model, key, text, sizeof text) < 0 ||
                         strcmp(text, "longrope") == 0))
        return "LongRoPE chooses its rotation by the size of the context, which is not served";
    return NULL;
}

static struct llama_context *new_context(session *s, size_t n_ctx, capture *queries) {
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = (uint32_t)n_ctx;
    p.n_ubatch = (uint32_t)s->o.ubatch;
    p.n_seq_max = 1;
    p.n_threads = p.n_threads_batch = (int32_t)s->o.threads;
    p.type_k = p.type_v = GGML_TYPES[s->o.cache_type];
    p.flash_attn_type = s->o.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    if (!s->o.flash && p.type_v == GGML_TYPE_Q8_0)
        p.type_v = GGML_TYPE_F16; /* llama.cpp transposes no quantised V */
    if (queries != NULL) {
        p.cb_eval = on_node;
        p.cb_eval_user_data = queries;
    }
    return llama_init_from_model(s->model, p);
}

/* Appends tokens, n_batch at a time; positions go on from the last. */
static const char *feed(session *s, struct llama_context *to, const char *what) {
    const int32_t batch = (int32_t)llama_n_batch(to);
    for (int32_t at = 0; at < s->n_tokens; at += batch) {
        const int32_t n = s->n_tokens - at < batch ? s->n_tokens - at : batch;
        if (llama_decode(to, llama_batch_get_one(s->tokens + at, n)) != 0)
            return "llama.cpp can't decode the prompt";
        if (s->queries.error != NULL)
            return s->queries.error;
        fprintf(stderr, "\r%s: %d of %d tokens", what, (int)(at + n), (int)s->n_tokens);
    }
    fprintf(stderr, "\n");
    return NULL;
}

static const char *read_prompt(session *s) {
    const struct llama_vocab *const vocab = llama_model_get_vocab(s->model);
    const char *error;
    size_t n_bytes;
    char *const text = read_file(s->o.prompt, &n_bytes, &error);
    if (text == NULL)
        return error;
    const int32_t room = (int32_t)n_bytes + 8;
    s->tokens = malloc((size_t)room * sizeof *s->tokens);
    if (s->tokens != NULL)
        s->n_tokens =
            llama_tokenize(vocab, text, (int32_t)n_bytes, s->tokens, room, s->o.load == NULL, true);
    free(text);
    s->n_vocab = llama_vocab_n_tokens(vocab);
    return s->tokens == NULL  ? "not enough memory for the tokens"
           : s->n_tokens <= 0 ? "the prompt has no tokens"
                              : NULL;
}

static llama_token best(const session *s, struct llama_context *from) {
    const float *const logits = llama_get_logits_ith(from, -1);
    llama_token top = 0;
    for (llama_token i = 1; i < s->n_vocab; i++)
        if (logits[i] > logits[top])
            top = i;
    return top;
}

static const char *load_cut(session *s) {
    llama_memory_clear(llama_get_memory(s->small), true);
    return llama_state_seq_set_data(s->small, s->state.bytes, s->state.size, 0) == s->state.size
               ? NULL
               : "llama.cpp refuses the small state: another model, cache type or flash setting?";
}

/* ---- the small cache, in a file ------------------------------------------------------------- */

static const char MAGIC[] = "snapkv-llama-1";

/* A line of text, then the state. The file appears when it is whole. */
static const char *save_cut(session *s) {
    const int n = snprintf(s->part, sizeof s->part, "%s.part", s->o.save);
    FILE *const file = (size_t)n < sizeof s->part ? fopen(s->part, "wb") : NULL;
    if (file == NULL)
        return "the file to save to can't be opened";
    fprintf(file, "%s %llu %zu %zu %lu %lu %zu\n", MAGIC,
            (unsigned long long)llama_model_n_params(s->model), s->state.next, s->state.length,
            s->o.cache_type, s->o.flash, s->state.size);
    (void)fwrite(s->state.bytes, 1, s->state.size, file);
    const int is_written = fflush(file) == 0 && !ferror(file);
    if (fclose(file) == 0 && is_written && rename(s->part, s->o.save) == 0)
        return NULL;
    remove(s->part);
    return "the file to save to can't be written";
}

/* The cache type and flash attention are the file's. */
static const char *read_cut(session *s) {
    unsigned long long n_params = 0;
    char line[200] = "", magic[sizeof MAGIC] = "";
    state *const parsed = malloc(sizeof *parsed);
    FILE *const file = fopen(s->o.load, "rb");
    const char *error = file == NULL ? "the file to load can't be opened" : NULL;
    if (error == NULL &&
        (fgets(line, sizeof line, file) == NULL ||
         sscanf(line, "%14s %llu %zu %zu %lu %lu %zu", magic, &n_params, &s->state.next,
                &s->state.length, &s->o.cache_type, &s->o.flash, &s->state.size) != 7 ||
         strcmp(magic, MAGIC) != 0 || s->o.cache_type > 2 || s->o.flash > 1))
        error = "the file to load is not one that --save has written";
    else if (error == NULL && n_params != llama_model_n_params(s->model))
        error = "the file to load was saved from another model";
    if (error == NULL && s->state.size < SIZE_MAX)
        s->state.bytes = malloc(s->state.size + 1);
    if (error == NULL && (s->state.bytes == NULL || parsed == NULL))
        error = "not enough memory for the file to load";
    if (error == NULL && fread(s->state.bytes, 1, s->state.size + 1, file) != s->state.size)
        error = "the file to load is cut or too long";
    if (error == NULL && !state_parse(parsed, s->state.bytes, s->state.size)) {
        snprintf(s->message, sizeof s->message, "the file to load: %s", parsed->error);
        error = s->message;
    }
    if (error == NULL) {
        s->state.n_kept = parsed->n_cells;
        if ((size_t)state_position(parsed, parsed->n_cells - 1) + 1 != s->state.next)
            error = "the file to load contradicts itself about the next position";
    }
    if (file != NULL)
        fclose(file);
    free(parsed);
    return error;
}

/* ---- the work ------------------------------------------------------------------------------- */

/* Prefill and selection: the full context stays open for --compare. */
static const char *shrink(session *s, size_t n_more) {
    snapkv_config config = snapkv_default_config();
    config.window = s->o.window;
    config.capacity = s->o.capacity;
    config.kernel_size = s->o.kernel;
    config.pooling = s->o.pooling == 0 ? SNAPKV_POOL_AVG : SNAPKV_POOL_MAX;
    config.n_recent = s->o.recent;
    config.voting = s->o.voting == 0 ? SNAPKV_VOTE_SUM : SNAPKV_VOTE_MAX;
    config.sharing = s->o.sharing == 0 ? SNAPKV_PER_KV_HEAD : SNAPKV_PER_LAYER;
    snapkv_layer sizes;
    memset(&sizes, 0, sizeof sizes);
    sizes.n_query_heads = sizes.n_kv_heads = sizes.head_dim = 1;
    sizes.length = (size_t)s->n_tokens;
    sizes.queries = sizes.keys = snapkv_rows_by_head(s, SNAPKV_F32, sizes.length, 1);
    const char *error = snapkv_explain(&config, &sizes); /* reads no rows: before the prefill */
    if (error != NULL)
        return error;
    s->queries.window = s->o.window;
    s->queries.is_open = 1;
    s->full = new_context(s, (size_t)s->n_tokens + n_more, &s->queries);
    if (s->full == NULL)
        return "llama.cpp can't open a context for the prompt";
    const double start = now();
    error = feed(s, s->full, "prefill");
    s->queries.is_open = 0;
    if (error != NULL)
        return error;
    s->first = best(s, s->full);
    const double prefilled = now();
    const size_t size = llama_state_seq_get_size(s->full, 0);
    unsigned char *const bytes = malloc(size);
    if (bytes == NULL)
        return "not enough memory for the state";
    if (llama_state_seq_get_data(s->full, bytes, size, 0) != size)
        error = "llama.cpp does not tell its state";
    else if (!cut_state(&s->state, &config, &s->queries, bytes, size))
        error = s->state.error;
    free(bytes);
    s->prefill_seconds = prefilled - start;
    s->select_seconds = now() - prefilled;
    return error;
}

/* Decodes from the small context and streams the text. */
static const char *generate(session *s) {
    const struct llama_vocab *const vocab = llama_model_get_vocab(s->model);
    llama_token token = s->first;
    const double start = now();
    for (unsigned long i = 0; i < s->o.n_predict && !llama_vocab_is_eog(vocab, token); i++) {
        char text[256];
        const int32_t n = llama_token_to_piece(vocab, token, text, sizeof text, 0, false);
        (void)fwrite(text, 1, n > 0 ? (size_t)n : 0, stdout);
        (void)fflush(stdout);
        if (llama_decode(s->small, llama_batch_get_one(&token, 1)) != 0)
            return "llama.cpp can't decode from the small cache";
        token = best(s, s->small);
        s->n_generated++;
    }
    s->decode_seconds = now() - start;
    putchar('\n');
    return NULL;
}

/* log p of every token, in place. */
static void log_softmax(float *logits, int32_t n) {
    double sum = 0, top = logits[0];
    for (int32_t i = 1; i < n; i++)
        top = (double)logits[i] > top ? (double)logits[i] : top;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - top);
    for (int32_t i = 0; i < n; i++)
        logits[i] = (float)((double)logits[i] - top - log(sum));
}

/* Decodes the full cache's tokens from both, and tells how far the small one's predictions lie from
 * the full one's. */
static const char *compare(session *s) {
    const unsigned long n = s->o.n_predict;
    llama_token token = s->first;
    double seconds[2] = {0}, divergence = 0;
    unsigned long n_same = 0;
    const char *const error = load_cut(s);
    if (error != NULL)
        return error;
    for (unsigned long i = 0; i < n; i++) {
        struct llama_context *const contexts[2] = {s->full, s->small};
        float *logits[2];
        for (int j = 0; j < 2; j++) {
            const double start = now();
            if (llama_decode(contexts[j], llama_batch_get_one(&token, 1)) != 0)
                return "llama.cpp can't decode for --compare";
            logits[j] = llama_get_logits_ith(contexts[j], -1);
            seconds[j] += now() - start;
        }
        token = best(s, s->full);
        n_same += token == best(s, s->small);
        log_softmax(logits[0], s->n_vocab);
        log_softmax(logits[1], s->n_vocab);
        for (int32_t t = 0; t < s->n_vocab; t++)
            divergence += exp((double)logits[0][t]) * ((double)logits[0][t] - (double)logits[1][t]);
    }
    fprintf(stderr,
            "full cache:      %.1f tokens/s; small: %.1f, %.2f times; the same next token %lu of "
            "%lu times, mean KL %.2g\n",
            (double)n / seconds[0], (double)n / seconds[1], seconds[0] / seconds[1], n_same, n,
            divergence / (double)n);
    return NULL;
}

static void report(const session *s) {
    const cut *const t = &s->state;
    double lowest = 1, mean = 0;
    if (s->o.load == NULL) {
        const double full = (double)t->full_size, small = (double)t->size;
        for (size_t i = 0; i < t->n_layers; i++) {
            lowest = t->coverage[i] < lowest ? t->coverage[i] : lowest;
            mean += t->coverage[i] / (double)t->n_layers;
        }
        fprintf(stderr, "prompt:          %zu tokens, %zu kept of each head\n", t->length,
                t->n_kept);
        fprintf(stderr, "cache, MiB:      %.2f full, %.2f small, %.1f times smaller\n",
                full / 1048576, small / 1048576, full / small);
        fprintf(stderr, "cells reserved:  %u full, %u small\n", (unsigned)llama_n_ctx(s->full),
                (unsigned)llama_n_ctx(s->small));
        fprintf(stderr, "coverage, %%:     %.1f lowest layer, %.1f mean\n", 100 * lowest,
                100 * mean);
        fprintf(stderr, "seconds:         %.3f prefill, %.3f selection\n", s->prefill_seconds,
                s->select_seconds);
    }
    if (s->n_generated > 0)
        fprintf(stderr, "decoding:        %zu tokens, %.3f s, %.1f tokens/s\n", s->n_generated,
                s->decode_seconds, (double)s->n_generated / s->decode_seconds);
}

static const char *run(session *s) {
    struct llama_model_params params = llama_model_default_params();
    llama_log_set(log_errors, NULL);
    if (s->o.backends == NULL)
        ggml_backend_load_all();
    else
        ggml_backend_load_all_from_path(s->o.backends);
    llama_backend_init();
    s->model = llama_model_load_from_file(s->o.model, params);
    if (s->model == NULL)
        return "the model can't be loaded";
    const char *error = refuse(s->model);
    if (error == NULL)
        error = read_prompt(s);
    const size_t n_more = s->o.n_predict + 1;
    if (error == NULL)
        error = s->o.load != NULL ? read_cut(s) : shrink(s, s->o.is_compared ? n_more : 0);
    if (error == NULL && s->o.save != NULL)
        error = save_cut(s);
    if (error != NULL)
        return error;
    s->small = new_context(
        s, s->state.n_kept + n_more + (s->o.load != NULL ? (size_t)s->n_tokens : 0), NULL);
    if (s->small == NULL)
        return "llama.cpp can't open the small context";
    error = load_cut(s);
    if (error == NULL && s->o.load != NULL) {
        fprintf(stderr,
                "%zu of %zu tokens are there; a question about the others can't be answered\n",
                s->state.n_kept, s->state.length);
        error = feed(s, s->small, "prompt");
        s->first = error == NULL ? best(s, s->small) : 0;
    }
    if (error == NULL)
        error = generate(s);
    if (error == NULL)
        report(s);
    return error == NULL && s->o.is_compared ? compare(s) : error;
}

int main(int argc, char **argv) {
    session *const s = calloc(1, sizeof *s);
    if (s == NULL)
        return EXIT_FAILURE;
    s->o = (options){.n_predict = 128,
                     .threads = 4,
                     .ubatch = 512,
                     .cache_type = 1,
                     .flash = 1,
                     .capacity = 1024,
                     .window = 32,
                     .kernel = 5};
    const char *error =
        argc == 2 && strcmp(argv[1], "--help") == 0 ? "" : read_options(&s->o, argc, argv);
    if (error != NULL && error[0] == '\0') {
        fputs(USAGE, stdout);
    } else if (error != NULL) {
        fprintf(stderr, "snapkv-llama: bad argument or missing value: %s\n%s", error, USAGE);
    } else {
        error = run(s);
        if (error != NULL)
            fprintf(stderr, "snapkv-llama: %s\n", error);
    }
    llama_free(s->small);
    llama_free(s->full);
    llama_model_free(s->model);
    capture_free(&s->queries);
    cut_free(&s->state);
    free(s->tokens);
    free(s);
    return is_printed("snapkv-llama") && (error == NULL || error[0] == '\0') ? EXIT_SUCCESS
                                                                             : EXIT_FAILURE;
}
