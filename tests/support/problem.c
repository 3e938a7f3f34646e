#include "problem.h"
#include "check.h"
#include "half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

snapkv_config make_config(size_t window, size_t capacity, size_t kernel_size) {
    snapkv_config config;
    memset(&config, 0, sizeof config);
    config.window = window;
    config.capacity = capacity;
    config.kernel_size = kernel_size;
    config.pooling = SNAPKV_POOL_AVG;
    config.order = SNAPKV_BY_POSITION;
    config.sharing = SNAPKV_PER_KV_HEAD;
    config.reduce = SNAPKV_REDUCE_MEAN;
    return config;
}

problem problem_new(snapkv_config config, size_t n_query_heads, size_t n_kv_heads, size_t length,
                    size_t head_dim) {
    problem p;
    memset(&p, 0, sizeof p);
    p.config = config;
    p.layer.n_query_heads = n_query_heads;
    p.layer.n_kv_heads = n_kv_heads;
    p.layer.length = length;
    p.layer.head_dim = head_dim;
    p.queries = new_array(n_query_heads * config.window * head_dim, sizeof(float));
    p.keys = new_array(n_kv_heads * length * head_dim, sizeof(float));
    p.values = new_array(n_kv_heads * length * head_dim, sizeof(float));
    p.sink_logits = new_array(n_query_heads, sizeof(float));
    p.alibi_slopes = new_array(n_query_heads, sizeof(float));
    p.query_positions = new_array(config.window, sizeof(int32_t));
    p.key_positions = new_array(length, sizeof(int32_t));
    return p;
}

static void unpack(problem *p) {
    if (p->packed_keys.memory.data) {
        packed_free(&p->packed_queries);
        packed_free(&p->packed_keys);
        packed_free(&p->packed_values);
    }
}

void problem_free(problem *p) {
    unpack(p);
    free(p->queries);
    free(p->keys);
    free(p->values);
    free(p->sink_logits);
    free(p->alibi_slopes);
    free(p->query_positions);
    free(p->key_positions);
    memset(p, 0, sizeof *p);
}

static void fill(float *numbers, size_t n, splitmix *random, double amplitude, int coarse) {
    for (size_t i = 0; i < n; i++) {
        float x = splitmix_float(random, amplitude);
        numbers[i] = coarse ? rintf(x * 32) / 32 + 0.0f : x; /* no negative zeros */
    }
}

void problem_fill(problem *p, splitmix *random, double amplitude, int coarse) {
    const snapkv_layer *layer = &p->layer;
    size_t n_keys = layer->n_kv_heads * layer->length * layer->head_dim;
    fill(p->queries, layer->n_query_heads * p->config.window * layer->head_dim, random, amplitude,
         coarse);
    fill(p->keys, n_keys, random, amplitude, coarse);
    fill(p->values, n_keys, random, amplitude, coarse);
}

void problem_set_sinks(problem *p, const float *sink_logits) {
    memcpy(p->sink_logits, sink_logits, p->layer.n_query_heads * sizeof(float));
    p->layer.sink_logits = p->sink_logits;
}

void problem_set_slopes(problem *p, const float *alibi_slopes) {
    memcpy(p->alibi_slopes, alibi_slopes, p->layer.n_query_heads * sizeof(float));
    p->layer.alibi_slopes = p->alibi_slopes;
}

void problem_set_query_positions(problem *p, const int32_t *positions) {
    memcpy(p->query_positions, positions, p->config.window * sizeof *positions);
    p->layer.query_positions = p->query_positions;
}

void problem_set_key_positions(problem *p, const int32_t *positions) {
    memcpy(p->key_positions, positions, p->layer.length * sizeof *positions);
    p->layer.key_positions = p->key_positions;
}

void problem_pack(problem *p, packing how) {
    const snapkv_layer *layer = &p->layer;
    unpack(p);
    p->packed_queries =
        pack(p->queries, layer->n_query_heads, p->config.window, layer->head_dim, how);
    p->packed_keys = pack(p->keys, layer->n_kv_heads, layer->length, layer->head_dim, how);
    p->packed_values = pack(p->values, layer->n_kv_heads, layer->length, layer->head_dim, how);
    p->layer.queries = p->packed_queries.rows;
    p->layer.keys = p->packed_keys.rows;
    p->layer.values = p->packed_values.rows;
}

void problem_pack_plainly(problem *p) {
    packing how;
    memset(&how, 0, sizeof how);
    problem_pack(p, how);
}

/* ---- rows in memory -------------------------------------------------------------------------- */

static size_t element_size(snapkv_dtype dtype) {
    return dtype == SNAPKV_F32 ? 4 : dtype == SNAPKV_CUSTOM ? 1 : 2;
}

void decode_bytes(void *context, const void *row, size_t head, size_t position,
                  float *out, size_t head_dim) {
    (void)context;
    (void)head;
    (void)position;
    const int8_t *bytes = (const int8_t *)row + 1;
    for (size_t d = 0; d < head_dim; d++) {
        out[d] = (float)bytes[d] / 32;
    }
}

static void encode_row(unsigned char *row, const float *numbers, size_t head_dim,
                       snapkv_dtype dtype) {
    uint16_t half;
    float check;
    int8_t byte;
    if (dtype == SNAPKV_F32) {
        memcpy(row, numbers, head_dim * sizeof(float));
        return;
    }
    for (size_t d = 0; d < head_dim; d++) {
        switch (dtype) {
        case SNAPKV_F16:
        case SNAPKV_BF16:
            half = dtype == SNAPKV_F16 ? f16_encode(numbers[d]) : bf16_encode(numbers[d]);
            memcpy(row + d * sizeof half, &half, sizeof half);
            break;
        default:
            byte = (int8_t)(numbers[d] * 32);
            check = (float)byte / 32;
            assert_memory_equal(&check, &numbers[d], sizeof check);
            memcpy(row + 1 + d, &byte, sizeof byte);
        }
    }
}

packed pack(const float *plain, size_t n_heads, size_t n_rows, size_t head_dim, packing how) {
    size_t size = element_size(how.dtype);
    packed p;
    memset(&p, 0, sizeof p);
    p.how = how;
    p.n_heads = n_heads;
    p.n_rows = n_rows;
    p.head_dim = head_dim;
    p.row_bytes = head_dim * size + (how.dtype == SNAPKV_CUSTOM ? 1 : 0);

    int paged = how.layout == LAYOUT_BLOCKS_BY_HEAD || how.layout == LAYOUT_BLOCKS_BY_ROW;
    int by_head = how.layout == LAYOUT_HEAD_MAJOR || how.layout == LAYOUT_BLOCKS_BY_HEAD;
    size_t step = p.row_bytes + how.pad * size;
    size_t rows_together = paged ? how.block_rows : n_rows;
    size_t n_table = (n_rows + rows_together - 1) / rows_together;
    size_t n_blocks = paged ? n_table + 2 : 1; /* two that belong to somebody else */

    snapkv_rows *rows = &p.rows;
    rows->dtype = how.dtype;
    rows->row_stride = by_head ? step : n_heads * step;
    rows->head_stride = by_head ? rows_together * step : step;
    if (how.dtype == SNAPKV_CUSTOM) {
        rows->row_bytes = p.row_bytes;
        rows->decode = decode_bytes;
    }
    size_t block_stride = n_heads * rows_together * step;
    p.table = guard_new(paged ? n_table * sizeof(int32_t) : 0, how.side);
    if (paged) {
        int32_t *blocks = new_array(n_blocks, sizeof *blocks);
        splitmix random = {n_rows};
        for (size_t i = 0; i < n_blocks; i++) {
            size_t other = splitmix_between(&random, 0, i);
            blocks[i] = blocks[other];
            blocks[other] = (int32_t)i;
        }
        memcpy(p.table.data, blocks, n_table * sizeof *blocks);
        free(blocks);
        rows->block_table = (const int32_t *)(const void *)p.table.data;
        rows->block_rows = how.block_rows;
        rows->block_stride = block_stride;
    }
    guard_freeze(&p.table);

    /* Up to the end of the last row: its padding doesn't exist. */
    p.memory = guard_new(how.lead * size + n_blocks * block_stride - how.pad * size, how.side);
    memset(p.memory.data, 0xFF, p.memory.size);
    rows->data = p.memory.data + how.lead * size;
    for (size_t head = 0; head < n_heads; head++) {
        for (size_t row = 0; row < n_rows; row++) {
            encode_row(packed_row(&p, head, row), plain + (head * n_rows + row) * head_dim,
                       head_dim, how.dtype);
        }
    }
    guard_freeze(&p.memory);
    return p;
}

unsigned char *packed_row(const packed *p, size_t head, size_t row) {
    size_t block = 0;
    const int32_t *table = (const int32_t *)(const void *)p->table.data;
    if (p->rows.block_table) {
        block = (size_t)table[row / p->how.block_rows];
        row %= p->how.block_rows;
    }
    return p->memory.data + p->how.lead * element_size(p->how.dtype) +
           block * p->rows.block_stride + head * p->rows.head_stride + row * p->rows.row_stride;
}

void packed_free(packed *p) {
    guard_free(&p->memory);
    guard_free(&p->table);
}

/* ---- what is asked for ----------------------------------------------------------------------- */

size_t problem_recent(const problem *p) {
    return p->config.n_recent ? p->config.n_recent : p->config.window;
}

size_t problem_prefix(const problem *p) {
    size_t recent = problem_recent(p);
    return p->layer.length > recent ? p->layer.length - recent : 0;
}

size_t problem_position(const problem *p, size_t row) {
    return p->layer.key_positions ? (size_t)p->layer.key_positions[row] : row;
}

size_t problem_voter_position(const problem *p, size_t voter) {
    if (p->layer.query_positions) {
        return (size_t)p->layer.query_positions[voter];
    }
    return problem_position(p, p->layer.length - p->config.window + voter);
}

size_t problem_kept_count(const problem *p) {
    return p->layer.length < p->config.capacity ? p->layer.length : p->config.capacity;
}

size_t problem_set_count(const problem *p) {
    switch (p->config.sharing) {
    case SNAPKV_PER_QUERY_HEAD:
        return p->layer.n_query_heads;
    case SNAPKV_PER_KV_HEAD:
        return p->layer.n_kv_heads;
    default:
        return 1;
    }
}

size_t problem_set_heads(const problem *p, size_t set, size_t *n) {
    *n = p->layer.n_query_heads / problem_set_count(p);
    return set * *n;
}

/* ---- running it ------------------------------------------------------------------------------ */

/* A workspace of all ones: as floats NaN, so that reading what was never written shows. */
static guard new_workspace(size_t size, guard_side side) {
    guard workspace = guard_new(size, side);
    memset(workspace.data, 0xFF, size);
    guard_undefine(&workspace);
    return workspace;
}

outcome run_select(const problem *p, size_t set, size_t workspace_size, guard_side side) {
    outcome o;
    memset(&o, 0, sizeof o);
    o.n_kept = problem_kept_count(p);
    o.n_scores = problem_prefix(p);
    guard kept = guard_new(o.n_kept * sizeof(int32_t), side);
    guard scores = guard_new(o.n_scores * sizeof(float), side);
    guard workspace = new_workspace(workspace_size, side);
    o.status =
        snapkv_select(&p->config, &p->layer, set, (int32_t *)(void *)kept.data,
                      (float *)(void *)scores.data, &o.selection, workspace.data, workspace_size);
    if (o.status != SNAPKV_OK) {
        guard_check_untouched(&kept);
        guard_check_untouched(&scores);
    } else {
        assert_int_equal(o.selection.n_kept, o.n_kept);
    }
    o.kept = new_array(o.n_kept, sizeof(int32_t));
    o.scores = new_array(o.n_scores, sizeof(float));
    memcpy(o.kept, kept.data, kept.size);
    memcpy(o.scores, scores.data, scores.size);
    guard_free(&kept);
    guard_free(&scores);
    guard_free(&workspace);
    return o;
}

float *run_vote(const problem *p, size_t query_head, size_t workspace_size, guard_side side) {
    size_t n = problem_prefix(p);
    guard votes = guard_new(n * sizeof(float), side);
    guard workspace = new_workspace(workspace_size, side);
    assert_ok(snapkv_vote(&p->config, &p->layer, query_head, (float *)(void *)votes.data,
                          workspace.data, workspace_size));
    float *copy = new_array(n, sizeof(float));
    memcpy(copy, votes.data, votes.size);
    guard_free(&votes);
    guard_free(&workspace);
    return copy;
}

void outcome_free(outcome *o) {
    free(o->kept);
    free(o->scores);
}

void assert_same_outcome(const outcome *a, const outcome *b) {
    assert_status(b->status, a->status);
    assert_int_equal(a->n_kept, b->n_kept);
    assert_int_equal(a->n_scores, b->n_scores);
    assert_memory_equal(a->kept, b->kept, a->n_kept * sizeof(int32_t));
    assert_memory_equal(a->scores, b->scores, a->n_scores * sizeof(float));
    assert_memory_equal(&a->selection.coverage, &b->selection.coverage, sizeof(float));
    assert_int_equal(a->selection.bypassed, b->selection.bypassed);
}
