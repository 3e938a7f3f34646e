/* compress.h: SnapKV between llama.cpp and its cache: what a server takes over, with state.h.
 *
 *     capture c = {.window = W, .is_open = 1};
 *     params.cb_eval = on_node, params.cb_eval_user_data = &c;   before llama_init_from_model
 *     llama_decode(full, ...)                                    the prompt, in any batches
 *     c.is_open = 0;                                             and c.error must be NULL
 *     llama_state_seq_get_data(full, bytes, size, 0);
 *     cut_state(&t, &config, &c, bytes, size);                   false: t.error says why not
 *     llama_state_seq_set_data(small, t.bytes, t.size, 0);       must return t.size
 *     llama_decode(small, ...)                                   from position t.next on
 *
 * One sequence at a time passes through a capture. */
#ifndef COMPRESS_H
#define COMPRESS_H

#include <ggml-backend.h>
#include <ggml.h>
#include <stdbool.h>
#include <stdlib.h>

#include "snapkv.h"
#include "state.h"

/* ---- the queries, on their way into the attention ------------------------------------------- */

/* The queries of the last `window` tokens, of every layer that has keys. */
typedef struct capture_layer {
    float *queries; /* [n_heads][window][head_dim] */
    size_t n_heads, n_kv_heads, head_dim;
    size_t n_seen; /* tokens so far */
    float scale;
} capture_layer;

typedef struct capture {
    size_t window;
    int is_open; /* during the prefill alone: decoding would shift the window */
    const char *error;
    float *rows; /* of one node, [n_tokens][n_heads][head_dim] */
    size_t n_rows;
    capture_layer layers[STATE_MOST_LAYERS];
} capture;

static void capture_free(capture *c) {
    for (size_t i = 0; i < STATE_MOST_LAYERS; i++)
        free(c->layers[i].queries);
    free(c->rows);
    memset(c, 0, sizeof *c);
}

/* Makes room for a layer's queries and for a node's. False: c->error says why not. */
static int capture_room(capture *c, capture_layer *layer, const struct ggml_tensor *q,
                        const struct ggml_tensor *k, size_t n_rows) {
    const size_t dim = (size_t)q->ne[0], heads = (size_t)q->ne[2], kv_heads = (size_t)k->ne[2];
    if (q->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float) || q->ne[3] != 1 || dim == 0 ||
        kv_heads == 0 || heads % kv_heads != 0 || q->nb[2] != dim * sizeof(float) ||
        q->nb[1] != heads * q->nb[2])
        c->error = "the queries of this model lie in memory in a way that is not known here";
    else if (layer->queries != NULL &&
             (layer->head_dim != dim || layer->n_heads != heads || layer->n_kv_heads != kv_heads))
        c->error = "a layer has changed its shape";
    if (c->error != NULL)
        return 0;
    if (layer->queries == NULL)
        layer->queries = calloc(heads * c->window * dim, sizeof(float));
    if (c->n_rows < n_rows * heads * dim) {
        free(c->rows);
        c->rows = malloc(n_rows * heads * dim * sizeof(float));
        c->n_rows = c->rows == NULL ? 0 : n_rows * heads * dim;
    }
    if (layer->queries == NULL || c->rows == NULL)
        c->error = "not enough memory for the queries";
    layer->n_heads = heads;
    layer->n_kv_heads = kv_heads;
    layer->head_dim = dim;
    return c->error == NULL;
}

/* Takes the queries of a micro-batch, q [dim][n_tokens][n_heads] in ggml's order. */
static void capture_take(capture *c, const struct ggml_tensor *q, const struct ggml_tensor *k) {
    int index;
    if (sscanf(k->name, "cache_k_l%d", &index) != 1 || index < 0 || index >= STATE_MOST_LAYERS) {
        c->error = "the attention of this model does not read the cache as is known here";
        return;
    }
    capture_layer *const layer = &c->layers[index];
    const size_t n_tokens = (size_t)q->ne[1];
    const size_t n_new = n_tokens < c->window ? n_tokens : c->window, n_old = c->window - n_new;
    if (!capture_room(c, layer, q, k, n_new))
        return;
    const size_t dim = layer->head_dim, row = dim * sizeof(float);
    ggml_backend_tensor_get(q, c->rows, (n_tokens - n_new) * q->nb[1], n_new * q->nb[1]);
    for (size_t head = 0; head < layer->n_heads; head++) {
        float *const queries = layer->queries + head * c->window * dim;
        memmove(queries, queries + n_new * dim, n_old * row);
        for (size_t i = 0; i < n_new; i++)
            memcpy(queries + (n_old + i) * dim, c->rows + (i * layer->n_heads + head) * dim, row);
    }
    layer->n_seen += n_tokens;
}

/* What follows Q K^T: [0] the scale, [1] ALiBi; flash attention also [2], a soft cap. */
static void capture_scale(capture *c, const struct ggml_tensor *node, const struct ggml_tensor *kq,
                          const char *name, const struct ggml_tensor *sinks, int n_parameters) {
    float p[3] = {0};
    int index;
    memcpy(p, node->op_params, (size_t)n_parameters * sizeof(float));
    if (sscanf(kq->name, name, &index) != 1 || index < 0 || index >= STATE_MOST_LAYERS ||
        p[1] != 0 || p[2] != 0 || sinks != NULL)
        c->error = "the attention has a soft cap, ALiBi or sinks, which this tool does not serve";
    else
        c->layers[index].scale = p[0];
}

/* llama.cpp asks about every node before it computes it (ask), and shows those that were wanted
 * afterwards. Q is taken where the attention reads it: `Qcur` by name is another thing where the
 * cache is quantised, for llama.cpp then rotates Q, K and V once more. */
static bool on_node(struct ggml_tensor *node, bool ask, void *context) {
    capture *const c = context;
    struct ggml_tensor *const *const src = node->src;
    if (!c->is_open || c->error != NULL)
        return !ask;
    const int is_flash = node->op == GGML_OP_FLASH_ATTN_EXT;
    const int is_kq = node->op == GGML_OP_MUL_MAT && strncmp(node->name, "kq-", 3) == 0;
    if (ask) {
        if (is_flash)
            capture_scale(c, node, src[1], "cache_k_l%d", src[4], 3);
        else if (node->op == GGML_OP_SOFT_MAX && strncmp(node->name, "kq_soft_max-", 12) == 0)
            capture_scale(c, node, src[0], "kq-%d", src[2], 2);
        return is_flash || is_kq;
    }
    capture_take(c, is_flash ? src[0] : src[1], is_flash ? src[1] : src[0]);
    return true;
}

/* ---- the state of the full cache, cut down -------------------------------------------------- */

typedef struct cut {
    unsigned char *bytes; /* for llama_state_seq_set_data */
    size_t size, full_size;
    size_t length, n_kept;
    size_t next; /* the position of the next token */
    size_t n_layers, n_sets;
    double coverage[STATE_MOST_LAYERS]; /* the mean of a layer's lists */
    int32_t *kept;                      /* [n_layers][n_sets][n_kept] */
    char error[200];
} cut;

static void cut_free(cut *t) {
    free(t->bytes);
    free(t->kept);
    memset(t, 0, sizeof *t);
}

static void decode_q8_0(void *context, const void *row, size_t head, size_t position, float *out,
                        size_t head_dim) {
    (void)context, (void)head, (void)position;
    ggml_get_type_traits(GGML_TYPE_Q8_0)->to_float(row, out, (int64_t)head_dim);
}

/* The view of a layer's keys. Cells that lie out of order are read through a table. */
static snapkv_layer view_layer(const state *s, const state_layer *rows, const capture_layer *q,
                               size_t window, const int32_t *cells) {
    const size_t row = q->head_dim * sizeof(float);
    snapkv_layer view;
    memset(&view, 0, sizeof view);
    view.n_query_heads = q->n_heads;
    view.n_kv_heads = q->n_kv_heads;
    view.length = s->n_cells;
    view.head_dim = q->head_dim;
    view.scale = q->scale;
    view.queries.data = q->queries;
    view.queries.head_stride = window * row;
    view.queries.row_stride = row;
    view.keys.data = s->bytes + rows->key_at;
    view.keys.head_stride = rows->key_row / q->n_kv_heads;
    view.keys.row_stride = rows->key_row;
    view.keys.dtype = rows->key_type == STATE_F32   ? SNAPKV_F32
                      : rows->key_type == STATE_F16 ? SNAPKV_F16
                                                    : SNAPKV_CUSTOM;
    view.keys.row_bytes = view.keys.head_stride;
    view.keys.decode = decode_q8_0;
    view.keys.block_table = cells;
    view.keys.block_rows = 1;
    view.keys.block_stride = rows->key_row;
    return view;
}

/* Moves what one K/V head keeps: `cells` says where it lies. */
static snapkv_status move_head(const state *from, const state *to, unsigned char *out, size_t layer,
                               size_t head, size_t n_heads, const int32_t *cells) {
    const state_layer *const f = &from->layers[layer], *const t = &to->layers[layer];
    const size_t key = f->key_row / n_heads, value = f->value_row / n_heads;
    const snapkv_status status =
        snapkv_gather_rows(cells, to->n_cells, from->bytes + f->key_at + head * key, f->key_row,
                           from->n_cells, key, out + t->key_at + head * key, t->key_row);
    if (status != SNAPKV_OK)
        return status;
    if (!from->is_transposed)
        return snapkv_gather_rows(cells, to->n_cells, from->bytes + f->value_at + head * value,
                                  f->value_row, from->n_cells, value,
                                  out + t->value_at + head * value, t->value_row);
    const size_t dims = f->n_values / n_heads, element = f->value_row;
    const size_t row = from->n_cells * element, small_row = to->n_cells * element;
    return snapkv_gather_columns(cells, to->n_cells, from->bytes + f->value_at + head * dims * row,
                                 row, from->n_cells, element, dims,
                                 out + t->value_at + head * dims * small_row, small_row);
}

/* Selects from every layer and gathers into `t`, of `t->n_kept` cells. tmp: see cut_state. */
static const char *cut_layers(cut *t, const snapkv_config *config, const capture *c, const state *s,
                              const state *small, const int32_t *cells, int32_t *chosen,
                              const int *index, void *workspace, size_t workspace_size) {
    snapkv_status status = SNAPKV_OK;
    for (size_t layer = 0; layer < s->n_layers && status == SNAPKV_OK; layer++) {
        const capture_layer *const q = &c->layers[index[layer]];
        const snapkv_layer view = view_layer(s, &s->layers[layer], q, c->window, cells);
        const char *const wrong = snapkv_explain(config, &view);
        if (wrong != NULL)
            return wrong;
        for (size_t set = 0; set < t->n_sets && status == SNAPKV_OK; set++) {
            int32_t *const kept = t->kept + (layer * t->n_sets + set) * t->n_kept;
            snapkv_selection selection = {0, 0, 0};
            status = snapkv_select(config, &view, set, kept, NULL, &selection, workspace,
                                   workspace_size);
            t->coverage[layer] += (double)selection.coverage / (double)t->n_sets;
            for (size_t i = 0; i < t->n_kept && status == SNAPKV_OK; i++)
                chosen[i] = cells == NULL ? kept[i] : cells[kept[i]];
            /* A list of the whole layer moves all its heads. */
            const size_t first = t->n_sets == 1 ? 0 : set;
            const size_t end = t->n_sets == 1 ? q->n_kv_heads : set + 1;
            for (size_t head = first; head < end && status == SNAPKV_OK; head++)
                status = move_head(s, small, t->bytes, layer, head, q->n_kv_heads, chosen);
        }
    }
    return status == SNAPKV_OK ? NULL : snapkv_status_string(status);
}

/* The captured layer behind each layer of the state. NULL, or why they don't fit together. */
static const char *match_layers(const state *s, const capture *c, int needs_queries, int *index) {
    size_t n = 0;
    for (int i = 0; i < STATE_MOST_LAYERS; i++) {
        const capture_layer *const q = &c->layers[i];
        if (q->queries == NULL)
            continue;
        if (n == s->n_layers)
            return "the state has fewer layers than the attention";
        size_t elements, bytes;
        const state_layer *const rows = &s->layers[n];
        (void)state_type(rows->key_type, &elements, &bytes);
        if (rows->key_row * elements != q->n_kv_heads * q->head_dim * bytes)
            return "the state's rows of K don't hold the heads that the attention reads";
        if (rows->value_row % q->n_kv_heads != 0 && !s->is_transposed)
            return "the state's rows of V don't divide by the heads";
        if (s->is_transposed && rows->n_values % q->n_kv_heads != 0)
            return "the state's rows of V don't divide by the heads";
        if (q->scale == 0)
            return "the scale of the attention was not seen";
        if (needs_queries && q->n_seen < c->window)
            return "fewer queries were seen than vote";
        index[n++] = i;
    }
    return n == s->n_layers ? NULL : "the state has more layers than the attention";
}

static const char *cut_with(cut *t, const snapkv_config *config, const capture *c, state *s,
                            state *small, int32_t *cells, int32_t *chosen, int *index) {
    if (!state_order(s, cells, chosen))
        return "two cells of the state share a position (M-RoPE is not served)";
    int is_ordered = 1;
    for (size_t i = 0; i < s->n_cells; i++)
        is_ordered = is_ordered && cells[i] == (int32_t)i;
    const char *const error = match_layers(s, c, s->n_cells >= config->capacity, index);
    if (error != NULL)
        return error;
    size_t workspace_size = 1;
    for (size_t i = 0; i < s->n_layers; i++) {
        const snapkv_layer view =
            view_layer(s, &s->layers[i], &c->layers[index[i]], c->window, NULL);
        const size_t size = snapkv_workspace_size(config, &view);
        const size_t sets = snapkv_set_count(config, &view);
        if (sets == 0)
            return snapkv_explain(config, &view);
        if (t->n_sets != 0 && t->n_sets != sets)
            return "the layers have different numbers of K/V heads";
        t->n_sets = sets;
        workspace_size = size > workspace_size ? size : workspace_size;
    }
    t->length = s->n_cells;
    t->n_layers = s->n_layers;
    t->next = (size_t)state_position(s, (size_t)cells[s->n_cells - 1]) + 1;
    t->n_kept = snapkv_kept_count(config, s->n_cells);
    t->size = state_size(s, t->n_kept);
    t->bytes = malloc(t->size);
    t->kept = malloc(t->n_layers * t->n_sets * t->n_kept * sizeof *t->kept);
    void *const workspace = malloc(workspace_size);
    const char *failed = "not enough memory for the small state";
    if (t->bytes != NULL && t->kept != NULL && workspace != NULL) {
        /* The last positions before the next token's: it is at the largest plus 1, which is all
         * that llama.cpp asks; the keys stay rotated by their own. */
        state_start(s, t->n_kept, t->next - t->n_kept, t->bytes, small);
        failed = cut_layers(t, config, c, s, small, is_ordered ? NULL : cells, chosen, index,
                            workspace, workspace_size);
    }
    free(workspace);
    return failed;
}

/* Cuts the state of the full cache down to what the config keeps. False: t->error says why not. */
static int cut_state(cut *t, const snapkv_config *config, const capture *c,
                     const unsigned char *bytes, size_t size) {
    memset(t, 0, sizeof *t);
    t->full_size = size;
    state *const states = malloc(2 * sizeof *states);
    int32_t *const cells = malloc(size / STATE_CELL * 2 * sizeof *cells);
    int *const index = malloc(STATE_MOST_LAYERS * sizeof *index);
    if (states == NULL || cells == NULL || index == NULL)
        snprintf(t->error, sizeof t->error, "not enough memory for the positions");
    else if (!state_parse(&states[0], bytes, size))
        snprintf(t->error, sizeof t->error, "the state is not understood: %s", states[0].error);
    else {
        const char *const error =
            cut_with(t, config, c, &states[0], &states[1], cells, cells + states[0].n_cells, index);
        if (error != NULL)
            snprintf(t->error, sizeof t->error, "%s", error);
    }
    free(states);
    free(cells);
    free(index);
    return t->error[0] == '\0';
}

#endif
