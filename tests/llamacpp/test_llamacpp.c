/* SnapKV on llama.cpp: what must hold of examples/llamacpp with the library that is there.
 *
 *     test_llamacpp FOLDER    recall.gguf, random-64.gguf and random-128.gguf in it
 *
 * BACKENDS in the environment names llama.cpp's backends, where it doesn't find them by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define main snapkv_llama_main
#include "../../examples/llamacpp/snapkv-llama.c"
#undef main

#include "engine.h"

enum { RECALL, RANDOM_64, RANDOM_128, N_MODELS };
static struct llama_model *models[N_MODELS];

/* ---- sessions ------------------------------------------------------------------------------- */

/* A session as the tool opens it, on n tokens. */
static session *new_session(int model, const llama_token *tokens, size_t n) {
    session *const s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->o = (options){.threads = 1, .ubatch = 512, .window = 16, .capacity = 64, .kernel = 5};
    s->model = models[model];
    s->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(s->model));
    s->tokens = malloc(n * sizeof *tokens);
    assert_non_null(s->tokens);
    memcpy(s->tokens, tokens, n * sizeof *tokens);
    s->n_tokens = (int32_t)n;
    return s;
}

static void end_session(session *s) {
    llama_free(s->full);
    llama_free(s->small);
    capture_free(&s->queries);
    cut_free(&s->state);
    free(s->tokens);
    free(s);
}

static void must(const char *error) {
    if (error != NULL)
        fail_msg("%s", error);
}

/* Prefill, selection, and the small context with its state. */
static void run_session(session *s) {
    must(shrink(s, 32));
    s->small = new_context(s, s->state.n_kept + 32, NULL);
    assert_non_null(s->small);
    must(load_cut(s));
}

static void random_tokens(uint64_t seed, llama_token *tokens, size_t n) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (llama_token)(seed >> 33) % 256;
    }
}

static const float *decode(struct llama_context *context, llama_token token) {
    assert_int_equal(llama_decode(context, llama_batch_get_one(&token, 1)), 0);
    return llama_get_logits_ith(context, -1);
}

static float farthest(const float *a, const float *b, int32_t n) {
    float most = 0;
    for (int32_t i = 0; i < n; i++)
        most = fabsf(a[i] - b[i]) > most ? fabsf(a[i] - b[i]) : most;
    return most;
}

/* The share of a's positions that b has too, of lists that ascend. */
static double common(const cut *a, const cut *b) {
    size_t n = 0;
    assert_true(a->n_kept == b->n_kept && a->n_sets == b->n_sets && a->n_layers == b->n_layers);
    for (size_t list = 0; list < a->n_layers * a->n_sets; list++) {
        const int32_t *const x = a->kept + list * a->n_kept, *const y = b->kept + list * a->n_kept;
        for (size_t i = 0, j = 0; i < a->n_kept && j < a->n_kept;) {
            n += x[i] == y[j];
            const int step_i = x[i] <= y[j], step_j = y[j] <= x[i];
            i += (size_t)step_i;
            j += (size_t)step_j;
        }
    }
    return (double)n / (double)(a->n_layers * a->n_sets * a->n_kept);
}

/* ---- the whole prompt kept: the full cache's bits ------------------------------------------- */

enum { SHORT = 300 };

static void keep_all(int model, unsigned long type, unsigned long flash, size_t capacity) {
    llama_token tokens[SHORT];
    random_tokens(7, tokens, SHORT);
    for (size_t i = 0; i < SHORT; i++)
        tokens[i] %= model == RECALL ? ENGINE_VOCABULARY : 256;
    session *const s = new_session(model, tokens, SHORT);
    s->o.cache_type = type;
    s->o.flash = flash;
    s->o.capacity = capacity;
    run_session(s);
    assert_int_equal(s->state.n_kept, SHORT);
    assert_int_equal(s->state.size, s->state.full_size);
    llama_token token = s->first;
    for (int i = 0; i < 16; i++) {
        const float *const full = decode(s->full, token);
        const float *const small = decode(s->small, token);
        assert_memory_equal(full, small, (size_t)s->n_vocab * sizeof *full);
        token = best(s, s->full);
    }
    end_session(s);
}

static void test_keep_all(void **context) {
    (void)context;
    for (int model = 0; model < N_MODELS; model++)
        for (unsigned long type = 0; type < 3; type++)
            for (unsigned long flash = 0; flash < 2; flash++) {
                keep_all(model, type, flash, SHORT);
                keep_all(model, type, flash, SHORT + 1);
            }
}

/* ---- the recall model: the same positions and answers as the project's own engine ----------- */

enum { N_PROMPTS = 20, N_LISTS = 4 };

static void recall(size_t capacity) {
    uint64_t seed = 1;
    size_t n_exact = 0;
    float most = 0;
    for (int prompt = 0; prompt < N_PROMPTS; prompt++) {
        int32_t tokens[ENGINE_LENGTH], right[ENGINE_ANSWER], answer[ENGINE_ANSWER];
        static int32_t kept[N_LISTS * ENGINE_LENGTH];
        static float logits[ENGINE_ANSWER * ENGINE_VOCABULARY];
        engine_prompt(&seed, tokens, right);
        must(engine_answer(tokens, capacity, kept, answer, logits));
        session *const s = new_session(RECALL, tokens, ENGINE_LENGTH);
        s->o.capacity = capacity;
        run_session(s);
        assert_int_equal(s->state.n_layers * s->state.n_sets, N_LISTS);
        assert_memory_equal(s->state.kept, kept, N_LISTS * capacity * sizeof *kept);
        llama_token token = s->first;
        int is_exact = 1;
        for (int i = 0; i < ENGINE_ANSWER; i++) {
            assert_int_equal(token, answer[i]);
            is_exact = is_exact && token == right[i];
            if (i + 1 < ENGINE_ANSWER) {
                const float apart = farthest(decode(s->small, token),
                                             logits + (i + 1) * ENGINE_VOCABULARY, s->n_vocab);
                most = apart > most ? apart : most;
                token = best(s, s->small);
            }
        }
        n_exact += (size_t)is_exact;
        end_session(s);
    }
    print_message("recall, %zu of %d kept: %zu of %d answers exact; all positions and answers the "
                  "engine's, logits within %.1e\n",
                  capacity, (int)ENGINE_LENGTH, n_exact, (int)N_PROMPTS, (double)most);
    assert_true(most < 1e-3f);
    assert_true(n_exact * 10 >= N_PROMPTS * 9);
}

static void test_recall(void **context) {
    (void)context;
    recall(64);
    recall(48);
}

/* ---- micro-batches -------------------------------------------------------------------------- */

/* Sums are ordered otherwise, so the queries may differ by rounding: the lists must not. */
static void test_micro_batches(void **context) {
    (void)context;
    const unsigned long sizes[] = {512, 100, 2048, 7};
    session *all[4];
    uint64_t seed = 99;
    int32_t tokens[ENGINE_LENGTH], right[ENGINE_ANSWER];
    engine_prompt(&seed, tokens, right);
    for (int i = 0; i < 4; i++) {
        all[i] = new_session(RECALL, tokens, ENGINE_LENGTH);
        all[i]->o.ubatch = sizes[i];
        must(shrink(all[i], 0));
        assert_true(common(&all[0]->state, &all[i]->state) == 1);
        for (size_t layer = 0; layer < all[0]->state.n_layers; layer++) {
            const capture_layer *const a = &all[0]->queries.layers[layer];
            const capture_layer *const b = &all[i]->queries.layers[layer];
            assert_int_equal(b->n_seen, ENGINE_LENGTH);
            assert_true(farthest(a->queries, b->queries, (int32_t)(a->n_heads * 16 * a->head_dim)) <
                        1e-3f);
        }
    }
    for (int i = 0; i < 4; i++)
        end_session(all[i]);
}

/* ---- a quantised cache is rotated: the node's queries are the right ones, Qcur is not -------- */

enum { LONG = 1024, KEPT = 128 };

/* Captures by name, the last node of that name: [dim][n_heads][n_tokens]. */
typedef struct by_name {
    capture queries;
    size_t n_kv_heads;
} by_name;

static bool on_name(struct ggml_tensor *node, bool ask, void *context) {
    by_name *const b = context;
    int index;
    if (!b->queries.is_open || node->op != GGML_OP_ROPE ||
        sscanf(node->name, "Qcur-%d", &index) != 1)
        return ask ? on_node(node, true, &b->queries) && false : true;
    if (ask)
        return true;
    struct ggml_tensor q = *node, k = *node;
    q.ne[1] = node->ne[2];
    q.ne[2] = node->ne[1];
    q.nb[1] = node->nb[2];
    q.nb[2] = node->nb[1];
    k.ne[2] = (int64_t)b->n_kv_heads;
    snprintf(k.name, sizeof k.name, "cache_k_l%d", index);
    capture_take(&b->queries, &q, &k);
    return true;
}

/* The lists by `Qcur`, from a context and a state of their own. */
static void cut_by_name(session *s, cut *t) {
    by_name b;
    memset(&b, 0, sizeof b);
    b.queries.window = s->o.window;
    b.queries.is_open = 1;
    b.n_kv_heads = (size_t)llama_model_n_head_kv(s->model);
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = LONG;
    p.n_batch = LONG;
    p.n_threads = p.n_threads_batch = 1;
    p.type_k = p.type_v = GGML_TYPES[s->o.cache_type];
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    p.cb_eval = on_name;
    p.cb_eval_user_data = &b;
    struct llama_context *const context = llama_init_from_model(s->model, p);
    assert_non_null(context);
    assert_int_equal(llama_decode(context, llama_batch_get_one(s->tokens, LONG)), 0);
    must(b.queries.error);
    const size_t size = llama_state_seq_get_size(context, 0);
    unsigned char *const bytes = malloc(size);
    assert_non_null(bytes);
    assert_int_equal(llama_state_seq_get_data(context, bytes, size, 0), size);
    snapkv_config config = snapkv_default_config();
    config.window = s->o.window;
    config.capacity = s->o.capacity;
    if (!cut_state(t, &config, &b.queries, bytes, size))
        fail_msg("%s", t->error);
    free(bytes);
    capture_free(&b.queries);
    llama_free(context);
}

static void test_rotated(void **context) {
    (void)context;
    for (int model = RANDOM_64; model <= RANDOM_128; model++) {
        llama_token tokens[LONG];
        session *all[2];
        cut named[2];
        random_tokens(3, tokens, LONG);
        for (unsigned long i = 0; i < 2; i++) {
            all[i] = new_session(model, tokens, LONG);
            all[i]->o.flash = 1;
            all[i]->o.cache_type = 1 + i; /* f16, q8_0 */
            all[i]->o.capacity = KEPT;
            must(shrink(all[i], 0));
            cut_by_name(all[i], &named[i]);
        }
        const double node = common(&all[0]->state, &all[1]->state);
        const double control = common(&all[0]->state, &named[0]);
        const double wrong = common(&all[0]->state, &named[1]);
        print_message("q8_0, D %zu: %.1f %% of the f16 cache's positions; by the name Qcur %.1f %% "
                      "(of f16: %.1f %%)\n",
                      all[0]->queries.layers[0].head_dim, 100 * node, 100 * wrong, 100 * control);
        assert_true(node >= 0.9);
        assert_true(control == 1); /* the name is wrong only where the cache is rotated */
        assert_true(wrong < 0.5);
        for (int i = 0; i < 2; i++) {
            cut_free(&named[i]);
            end_session(all[i]);
        }
    }
}

/* ---- cells out of order --------------------------------------------------------------------- */

static void feed_sequence(struct llama_context *to, const llama_token *tokens, int32_t n,
                          int32_t position, llama_seq_id sequence) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens = n;
    for (int32_t i = 0; i < n; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = position + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = sequence;
        batch.logits[i] = i == n - 1;
    }
    assert_int_equal(llama_decode(to, batch), 0);
    llama_batch_free(batch);
}

/* A second sequence came between the first tokens and left again: later tokens fill its cells. */
static void refill(unsigned long flash, const int32_t *tokens) {
    enum { FIRST = 40, GUEST = 200 };
    session *const plain = new_session(RECALL, tokens, ENGINE_LENGTH);
    session *const s = new_session(RECALL, tokens, ENGINE_LENGTH);
    plain->o.flash = s->o.flash = flash;
    run_session(plain);
    s->queries.window = s->o.window;
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = ENGINE_LENGTH + GUEST;
    p.n_batch = ENGINE_LENGTH;
    p.n_seq_max = 2;
    p.kv_unified = true;
    p.n_threads = p.n_threads_batch = 1;
    p.type_k = p.type_v = GGML_TYPE_F32;
    p.flash_attn_type = (enum llama_flash_attn_type)flash;
    p.cb_eval = on_node;
    p.cb_eval_user_data = &s->queries;
    s->full = llama_init_from_model(s->model, p);
    assert_non_null(s->full);
    s->queries.is_open = 1;
    feed_sequence(s->full, tokens, FIRST, 0, 0);
    s->queries.is_open = 0;
    feed_sequence(s->full, tokens, GUEST, 0, 1);
    s->queries.is_open = 1;
    feed_sequence(s->full, tokens + FIRST, FIRST, FIRST, 0);
    assert_true(llama_memory_seq_rm(llama_get_memory(s->full), 1, -1, -1));
    feed_sequence(s->full, tokens + 2 * FIRST, ENGINE_LENGTH - 2 * FIRST, 2 * FIRST, 0);
    s->queries.is_open = 0;
    must(s->queries.error);

    const size_t size = llama_state_seq_get_size(s->full, 0);
    unsigned char *const bytes = malloc(size);
    state *const parsed = malloc(sizeof *parsed);
    assert_true(bytes != NULL && parsed != NULL);
    assert_int_equal(llama_state_seq_get_data(s->full, bytes, size, 0), size);
    assert_true(state_parse(parsed, bytes, size));
    size_t n_back = 0;
    for (size_t i = 1; i < parsed->n_cells; i++)
        n_back += state_position(parsed, i) < state_position(parsed, i - 1);
    assert_true(n_back > 0); /* else this tests nothing */
    snapkv_config config = snapkv_default_config();
    config.window = s->o.window;
    config.capacity = s->o.capacity;
    if (!cut_state(&s->state, &config, &s->queries, bytes, size))
        fail_msg("%s", s->state.error);
    assert_true(common(&plain->state, &s->state) == 1);
    s->small = new_context(s, s->state.n_kept + 32, NULL);
    assert_non_null(s->small);
    must(load_cut(s));
    llama_token token = plain->first;
    for (int i = 0; i < ENGINE_ANSWER; i++) {
        assert_true(farthest(decode(plain->small, token), decode(s->small, token), s->n_vocab) <
                    1e-3f);
        token = best(plain, plain->small);
    }
    free(bytes);
    free(parsed);
    end_session(s);
    end_session(plain);
}

static void test_refilled(void **context) {
    (void)context;
    uint64_t seed = 5;
    int32_t tokens[ENGINE_LENGTH], right[ENGINE_ANSWER];
    engine_prompt(&seed, tokens, right);
    refill(0, tokens);
    refill(1, tokens);
}

/* ---- what is refused ------------------------------------------------------------------------ */

static void test_refused(void **context) {
    (void)context;
    llama_token tokens[SHORT];
    random_tokens(11, tokens, SHORT);
    session *const s = new_session(RANDOM_64, tokens, SHORT);
    s->o.cache_type = 1;
    run_session(s);

    s->state.size--; /* cut */
    assert_non_null(load_cut(s));
    s->state.size++;
    must(load_cut(s));
    llama_free(s->small); /* another flash setting, another type */
    s->o.flash = 1;
    s->small = new_context(s, s->state.n_kept + 32, NULL);
    assert_non_null(load_cut(s));
    llama_free(s->small);
    s->o.flash = 0;
    s->o.cache_type = 0;
    s->small = new_context(s, s->state.n_kept + 32, NULL);
    assert_non_null(load_cut(s));
    llama_free(s->small); /* too few cells */
    s->o.cache_type = 1;
    s->o.capacity = SHORT;
    s->small = new_context(s, 1, NULL);
    must(load_cut(s)); /* 64 fit into the least context, of 256 */
    cut_free(&s->state);
    llama_free(s->full);
    capture_free(&s->queries);
    must(shrink(s, 32));
    assert_non_null(load_cut(s));

    /* A window that was not seen whole, and a policy that can't be. */
    snapkv_config config = snapkv_default_config();
    const size_t size = llama_state_seq_get_size(s->full, 0);
    unsigned char *const bytes = malloc(size);
    cut t;
    assert_non_null(bytes);
    assert_int_equal(llama_state_seq_get_data(s->full, bytes, size, 0), size);
    config.window = s->o.window;
    config.capacity = 64;
    assert_true(cut_state(&t, &config, &s->queries, bytes, size));
    cut_free(&t);
    s->queries.layers[1].n_seen = s->o.window - 1;
    assert_false(cut_state(&t, &config, &s->queries, bytes, size));
    assert_non_null(strstr(t.error, "fewer queries"));
    cut_free(&t);
    s->queries.layers[1].n_seen = SHORT;
    config.kernel_size = 4;
    assert_false(cut_state(&t, &config, &s->queries, bytes, size));
    cut_free(&t);
    config.kernel_size = 5;
    assert_false(cut_state(&t, &config, &s->queries, bytes, size - 1));
    cut_free(&t);
    free(bytes);
    end_session(s);
}

/* ---- after the selection -------------------------------------------------------------------- */

/* Decoding on in the context that was captured must not shift the window. */
static void test_closed(void **context) {
    (void)context;
    llama_token tokens[SHORT];
    random_tokens(13, tokens, SHORT);
    session *const s = new_session(RANDOM_64, tokens, SHORT);
    run_session(s);
    const capture_layer *const layer = &s->queries.layers[1];
    const size_t size = layer->n_heads * s->o.window * layer->head_dim * sizeof(float);
    float *const before = malloc(size);
    assert_non_null(before);
    memcpy(before, layer->queries, size);
    decode(s->full, s->first);
    assert_memory_equal(layer->queries, before, size);
    s->queries.is_open = 1; /* what would happen */
    decode(s->full, s->first);
    assert_memory_not_equal(layer->queries, before, size);
    free(before);
    end_session(s);
}

/* A draft of four tokens is taken back: as if it had not been. */
static void test_rollback(void **context) {
    (void)context;
    llama_token tokens[SHORT], draft[4] = {1, 2, 3, 4};
    random_tokens(17, tokens, SHORT);
    for (unsigned long flash = 0; flash < 2; flash++) {
        session *const s = new_session(RANDOM_64, tokens, SHORT);
        s->o.cache_type = 1;
        s->o.flash = flash;
        run_session(s);
        float expected[2][256];
        memcpy(expected[0], decode(s->small, s->first), sizeof expected[0]);
        memcpy(expected[1], decode(s->small, 5), sizeof expected[1]);
        must(load_cut(s));
        (void)decode(s->small, s->first);
        assert_int_equal(llama_decode(s->small, llama_batch_get_one(draft, 4)), 0);
        const llama_memory_t memory = llama_get_memory(s->small);
        assert_int_equal(llama_memory_seq_pos_max(memory, 0), SHORT + 4);
        assert_true(llama_memory_seq_rm(memory, 0, SHORT + 1, -1));
        assert_memory_equal(decode(s->small, 5), expected[1], sizeof expected[1]);
        assert_int_equal(llama_memory_seq_pos_max(memory, 0), SHORT + 1);
        end_session(s);
    }
}

/* Every option of the policy reaches the selection: its lists differ from those without. */
static void test_policies(void **context) {
    (void)context;
    llama_token tokens[SHORT];
    random_tokens(19, tokens, SHORT);
    enum { PLAIN, LAYER, MAX_POOL, MAX_VOTE, RECENT, KERNEL, WINDOW, N_POLICIES };
    session *all[N_POLICIES];
    for (int i = 0; i < N_POLICIES; i++) {
        session *const s = all[i] = new_session(RANDOM_64, tokens, SHORT);
        s->o.sharing = i == LAYER;
        s->o.pooling = i == MAX_POOL;
        s->o.voting = i == MAX_VOTE;
        s->o.recent = i == RECENT ? 4 : 0;
        s->o.kernel = i == KERNEL ? 3 : 5;
        s->o.window = i == WINDOW ? 8 : 16;
        run_session(s);
        (void)decode(s->small, s->first);
        for (size_t layer = 0; layer < s->state.n_layers; layer++)
            assert_true(s->state.coverage[layer] > 0 && s->state.coverage[layer] <= 1);
        assert_int_equal(s->state.n_sets, i == LAYER ? 1 : 2);
        if (i != PLAIN && i != LAYER)
            assert_true(common(&all[PLAIN]->state, &s->state) < 1);
        const size_t recent = i == RECENT ? 4 : i == WINDOW ? 8 : 16;
        for (size_t j = 0; j < recent; j++)
            assert_int_equal(s->state.kept[63 - j], SHORT - 1 - j);
        if (i != PLAIN)
            end_session(s);
    }
    end_session(all[PLAIN]);
}

/* Fewer tokens than the window: all are kept, and no queries are needed. */
static void test_tiny(void **context) {
    (void)context;
    llama_token tokens[5] = {1, 2, 3, 4, 5};
    session *const s = new_session(RANDOM_64, tokens, 5);
    run_session(s);
    assert_int_equal(s->state.n_kept, 5);
    for (int i = 0; i < 4; i++) {
        const float *const full = decode(s->full, s->first);
        const float *const small = decode(s->small, s->first);
        assert_memory_equal(full, small, (size_t)s->n_vocab * sizeof *full);
        s->first = best(s, s->full);
    }
    end_session(s);
}

int main(int argc, char **argv) {
    static const char *const NAMES[] = {"recall", "random-64", "random-128"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep_all),      cmocka_unit_test(test_recall),
        cmocka_unit_test(test_micro_batches), cmocka_unit_test(test_rotated),
        cmocka_unit_test(test_refilled),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_closed),        cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_policies),      cmocka_unit_test(test_tiny)};
    if (argc != 2 || engine_open("examples/recall_model.bin") != NULL)
        return EXIT_FAILURE;
    llama_log_set(log_errors, NULL);
    if (getenv("BACKENDS") == NULL)
        ggml_backend_load_all();
    else
        ggml_backend_load_all_from_path(getenv("BACKENDS"));
    llama_backend_init();
    printf("libllama %s\n", llama_version());
    for (int i = 0; i < N_MODELS; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.gguf", argv[1], NAMES[i]);
        models[i] = llama_model_load_from_file(path, llama_model_default_params());
        if (models[i] == NULL)
            return EXIT_FAILURE;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < N_MODELS; i++)
        llama_model_free(models[i]);
    engine_close();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
