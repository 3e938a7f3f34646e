#include "engine.h"

#include "../../examples/llama.h"
#include "../../examples/recall_task.h"

enum { WINDOW = 16, SLOTS = LENGTH + ENGINE_ANSWER };

static struct {
    llama_model model;
    llama_state state;
    llama_cache full, small;
    float *queries;
} engine;

const char *engine_open(const char *path) {
    const char *const error = llama_load(&engine.model, path);
    const llama_model *const m = &engine.model;
    if (error != NULL)
        return error;
    engine.queries = llama_floats(m->n_layers * m->n_heads * WINDOW * m->head_dim);
    return engine.queries != NULL && llama_state_new(&engine.state, m, SLOTS) &&
                   llama_cache_new(&engine.full, m, m->n_kv_heads, SLOTS) &&
                   llama_cache_new(&engine.small, m, m->n_kv_heads, SLOTS)
               ? NULL
               : "not enough memory";
}

void engine_close(void) {
    free(engine.queries);
    llama_state_free(&engine.state);
    llama_cache_free(&engine.full);
    llama_cache_free(&engine.small);
    llama_free(&engine.model);
}

void engine_prompt(uint64_t *seed, int32_t *tokens, int32_t *right) {
    make_prompt(seed, tokens, right);
}

const char *engine_answer(const int32_t *tokens, size_t capacity, int32_t *kept, int32_t *answer,
                          float *logits) {
    const llama_model *const m = &engine.model;
    snapkv_config config = snapkv_default_config();
    config.window = WINDOW;
    config.capacity = capacity;
    const char *error =
        llama_prefill(m, &engine.state, &engine.full, tokens, LENGTH, WINDOW, engine.queries);
    if (error == NULL)
        error = llama_compress(&config, m, &engine.full, engine.queries, &engine.small, kept, NULL);
    for (size_t i = 0; i < ENGINE_ANSWER && error == NULL; i++) {
        memcpy(logits + i * ENGINE_VOCABULARY, engine.state.logits,
               ENGINE_VOCABULARY * sizeof *logits);
        answer[i] = llama_best(m, &engine.state);
        error = llama_decode(m, &engine.state, &engine.small, answer[i]);
    }
    return error;
}
