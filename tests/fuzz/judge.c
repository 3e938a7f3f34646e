#include "judge.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void check_verdict(snapkv_status status, verdict v, const char *what) {
    int fits = status == SNAPKV_OK ? v.must == 0 : ((v.must | v.may) & BIT(status)) != 0;
    if (!fits) {
        fail_msg("%s returns \"%s\" (%d); must be one of %#x, or of %#x", what,
                 snapkv_status_string(status), (int)status, v.must, v.may);
    }
}

int has_voters(const snapkv_config *config, const snapkv_layer *layer, int needs) {
    return !(needs & BYPASSING) || layer->length >= config->capacity;
}

verdict judge_sizes(const snapkv_config *config, const snapkv_layer *layer, int needs) {
    verdict v = {0, 0};
    if (!config || !layer) {
        v.must = BIT(SNAPKV_ERROR_NULL);
        return v;
    }
    if (layer->n_query_heads == 0 || layer->n_kv_heads == 0 || layer->length == 0 ||
        layer->head_dim == 0 || layer->length > INT32_MAX ||
        layer->n_query_heads % layer->n_kv_heads != 0) {
        v.must |= BIT(SNAPKV_ERROR_SHAPE);
    }
    size_t recent = config->n_recent ? config->n_recent : config->window;
    int late = config->window > layer->length && !layer->query_positions;
    if (config->window == 0 || (late && has_voters(config, layer, needs)) ||
        (needs & COMPETING && recent >= layer->length)) {
        v.must |= BIT(SNAPKV_ERROR_WINDOW);
    }
    if (layer->first_row != 0) { /* K is whole but for snapkv_part_* */
        v.must |= BIT(SNAPKV_ERROR_INDEX);
    }
    if (needs & KEEPING && (wide)config->capacity <= (wide)recent + config->n_sink) {
        v.must |= BIT(SNAPKV_ERROR_CAPACITY);
    }
    if (needs & SCORING && config->kernel_size % 2 == 0) {
        v.must |= BIT(SNAPKV_ERROR_KERNEL);
    }
    if ((needs & SCORING && ((unsigned)config->pooling > 1 || (unsigned)config->reduce > 1)) ||
        (needs & KEEPING && (unsigned)config->order > 1) || (unsigned)config->voting > 1 ||
        (unsigned)config->sharing > 2) {
        v.must |= BIT(SNAPKV_ERROR_OPTION);
    }
    if (v.must) {
        return v;
    }
    /* The workspace: certainly no less than the scaled queries and the W x L weights that a full
     * run keeps where nothing is hidden by a span, and not much more than twice as much. */
    wide heads =
        config->sharing == SNAPKV_PER_QUERY_HEAD ? 1 : layer->n_query_heads / layer->n_kv_heads;
    size_t n_queries = late ? layer->length : config->window;
    wide lanes = heads * (((wide)n_queries + 15) / 16 * 16);
    wide queries = lanes > SIZE_MAX ? lanes : lanes * layer->head_dim;
    wide most = 4 * (queries + 2 * lanes * ((wide)layer->length + 128) +
                     64 * ((wide)layer->head_dim + 16) + 64 * (wide)layer->length);
    if (lanes > SIZE_MAX || queries > SIZE_MAX / 4 || 48 * (wide)layer->head_dim > SIZE_MAX / 4) {
        v.must |= BIT(SNAPKV_ERROR_SHAPE);
    } else if (most >= PTRDIFF_MAX) {
        v.may |= BIT(SNAPKV_ERROR_SHAPE);
    }
    return v;
}

snapkv_status status_of_text(const char *text) {
    static const struct {
        const char *part;
        snapkv_status status;
    } rules[] = {
        {": NULL", SNAPKV_ERROR_NULL},
        {"workspace does not fit", SNAPKV_ERROR_SHAPE},
        {"beyond all memory", SNAPKV_ERROR_SHAPE},
        {"config.window:", SNAPKV_ERROR_WINDOW},
        {"config.n_recent:", SNAPKV_ERROR_WINDOW},
        {"config.capacity:", SNAPKV_ERROR_CAPACITY},
        {"config.kernel_size:", SNAPKV_ERROR_KERNEL},
        {"config.", SNAPKV_ERROR_OPTION},
        {"layer.n_query_heads:", SNAPKV_ERROR_SHAPE},
        {"layer.n_kv_heads:", SNAPKV_ERROR_SHAPE},
        {"layer.length:", SNAPKV_ERROR_SHAPE},
        {"layer.head_dim:", SNAPKV_ERROR_SHAPE},
        {"_positions:", SNAPKV_ERROR_INDEX},
        {"layer.first_row:", SNAPKV_ERROR_INDEX},
        {"layer.", SNAPKV_ERROR_OPTION},
        {".dtype:", SNAPKV_ERROR_OPTION},
        {".row_bytes:", SNAPKV_ERROR_OPTION},
        {".row_stride:", SNAPKV_ERROR_STRIDE},
        {".head_stride:", SNAPKV_ERROR_STRIDE},
        {".data, strides:", SNAPKV_ERROR_STRIDE},
        {".block_", SNAPKV_ERROR_STRIDE},
    };
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        if (strstr(text, rules[i].part)) {
            return rules[i].status;
        }
    }
    fail_msg("no rule: %s", text);
    return SNAPKV_OK;
}

size_t element_bytes(snapkv_dtype dtype) {
    return dtype == SNAPKV_F32 ? 4 : dtype == SNAPKV_CUSTOM ? 1 : 2;
}

static int by_start(const void *left, const void *right) {
    wide a = *(const wide *)left;
    wide b = *(const wide *)right;
    return a < b ? -1 : a > b;
}

#define MAX_ROWS 4096

/* Whether two of the rows that the view names share a byte; -1: too many to look. */
static int rows_share_bytes(const snapkv_rows *view, size_t n_heads, size_t n_rows, wide bytes) {
    static wide starts[MAX_ROWS];
    size_t n = 0;
    size_t step = view->block_table ? view->block_rows : n_rows;
    if (n_heads > MAX_ROWS || n_rows > MAX_ROWS || n_heads * n_rows > MAX_ROWS) {
        return -1;
    }
    for (size_t p = 0; p < n_rows; p++) {
        wide block = view->block_table ? (wide)view->block_table[p / step] : 0;
        int again = 0; /* a block may be listed twice */
        for (size_t earlier = p % step; earlier < p && view->block_table; earlier += step) {
            again |= (wide)view->block_table[earlier / step] == block;
        }
        for (size_t head = 0; head < n_heads && !again; head++) {
            starts[n++] = (view->block_table ? block * view->block_stride : 0) +
                          (wide)head * view->head_stride + (wide)(p % step) * view->row_stride;
        }
    }
    qsort(starts, n, sizeof starts[0], by_start);
    for (size_t i = 1; i < n; i++) {
        if (starts[i] - starts[i - 1] < bytes) {
            return 1;
        }
    }
    return 0;
}

verdict judge_view(const snapkv_rows *view, size_t n_heads, size_t n_rows, size_t head_dim,
                   int as_numbers, size_t n_table) {
    verdict v = {0, 0};
    wide element = view->dtype == SNAPKV_CUSTOM ? 0 : element_bytes(view->dtype);
    wide numbers = element * head_dim;
    wide bytes = view->row_bytes ? view->row_bytes : numbers;
    if (as_numbers && bytes < numbers) {
        bytes = numbers;
    }
    if (bytes == 0) {
        bytes = 1;
    }
    size_t in_block = n_rows;
    if (view->block_table) {
        if (view->block_rows == 0) {
            v.must |= BIT(SNAPKV_ERROR_STRIDE);
            v.may |= BIT(SNAPKV_ERROR_SHAPE);
            return v;
        }
        in_block = view->block_rows < n_rows ? view->block_rows : n_rows;
    }
    wide extent = bytes + (n_heads > 1 ? (wide)(n_heads - 1) * view->head_stride : 0) +
                  (in_block > 1 ? (wide)(in_block - 1) * view->row_stride : 0);
    if (extent > SIZE_MAX) {
        v.must |= BIT(SNAPKV_ERROR_SHAPE);
    }
    if (extent >= PTRDIFF_MAX) {
        v.may |= BIT(SNAPKV_ERROR_SHAPE);
    }
    if (as_numbers && element > 1) {
        wide parts[] = {(wide)(uintptr_t)view->data, n_heads > 1 ? view->head_stride : 0,
                        in_block > 1 ? view->row_stride : 0};
        for (size_t i = 0; i < COUNT_OF(parts); i++) {
            if (parts[i] % element != 0) {
                v.must |= BIT(SNAPKV_ERROR_STRIDE);
            }
        }
    }
    wide highest = 0;
    if (view->block_table) {
        size_t n_blocks = (n_rows - 1) / view->block_rows + 1;
        if (n_blocks > n_table) {
            v.may |= BIT(SNAPKV_ERROR_STRIDE); /* the caller doesn't ask: see can_call() */
            return v;
        }
        for (size_t i = 0; i < n_blocks; i++) {
            if (view->block_table[i] < 0) {
                v.must |= BIT(SNAPKV_ERROR_STRIDE);
                return v;
            }
            highest = (wide)view->block_table[i] > highest ? (wide)view->block_table[i] : highest;
        }
        wide reach = highest * view->block_stride + extent;
        if (reach > SIZE_MAX) {
            v.must |= BIT(SNAPKV_ERROR_SHAPE);
        }
        if (reach >= PTRDIFF_MAX) {
            v.may |= BIT(SNAPKV_ERROR_SHAPE);
        }
        if (as_numbers && element > 1 && view->block_stride % element != 0) {
            statuses *which = highest > 0 ? &v.must : &v.may;
            *which |= BIT(SNAPKV_ERROR_STRIDE);
        }
        /* Blocks that interleave without a shared byte are refused too. */
        if (highest > 0 && view->block_stride < extent) {
            v.may |= BIT(SNAPKV_ERROR_STRIDE);
        }
    }
    if (extent <= SIZE_MAX) {
        int shared = rows_share_bytes(view, n_heads, n_rows, bytes);
        v.must |= shared == 1 ? BIT(SNAPKV_ERROR_STRIDE) : 0;
        v.may |= shared == -1 ? BIT(SNAPKV_ERROR_STRIDE) : 0;
    }
    return v;
}

#define HALF_ULP 6e-8    /* of 1, rounded up */
#define TINY     1.5e-45 /* the smallest subnormal: what an underflow loses */

void judge_query(const problem *p, size_t query_head, const float *query, size_t t, exactness *e) {
    const snapkv_layer *layer = &p->layer;
    size_t dim = layer->head_dim;
    size_t kv_head = query_head / (layer->n_query_heads / layer->n_kv_heads);
    double scale = layer->scale > 0 ? (double)layer->scale : 1 / sqrt((double)dim);
    double slope = layer->alibi_slopes ? (double)layer->alibi_slopes[query_head] : 0;
    double cap = (double)layer->softcap;
    double largest = (double)FLT_MAX / 1.4426950408889634; /* logits are in base 2 */
    double beyond = fabs(slope) > largest ? (double)FLT_MAX : largest; /* a slope saturates */
    for (size_t j = 0; j < layer->length; j++) {
        size_t at = problem_position(p, j);
        if (at > t || (layer->span && t - at >= layer->span) ||
            (layer->chunk && at < t - t % layer->chunk)) {
            continue;
        }
        const float *key = p->keys + (kv_head * layer->length + j) * dim;
        double sum = 0;
        double size = 0;
        double error = 0;
        for (size_t d = 0; d < dim; d++) {
            double q = (double)query[d] * scale;
            double product = q * (double)key[d];
            if (!isfinite(product) || fabs(q) > largest * (1 + 1e-6)) {
                e->must_fail = 1;
                return;
            }
            e->may_fail |= fabs(q) > largest * (1 - 1e-6);
            sum += product;
            size += fabs(product);
            error += 2 * TINY * (fabs((double)key[d]) + 1);
        }
        error += HALF_ULP * (double)(dim + 6) * size;
        e->must_fail |= fabs(sum) > largest * 1.001;
        e->may_fail |= size > largest * 0.999;
        if (cap > 0) {
            sum = cap * tanh(sum / cap);
            error += 16 * HALF_ULP * fabs(sum) + 4 * TINY * cap + TINY;
        }
        double bias = slope * ((double)at - (double)t);
        error += 3 * HALF_ULP * (fabs(bias) + fabs(sum));
        e->must_fail |= fabs(sum + bias) > beyond * 1.001;
        e->may_fail |= fabs(sum) + fabs(bias) > largest * 0.999;
        e->error = error > e->error ? error : e->error;
    }
}

exactness judge_window(const problem *p, size_t first_head, size_t n_heads) {
    exactness e = {0, 0, 0};
    for (size_t head = first_head; head < first_head + n_heads; head++) {
        for (size_t i = 0; i < p->config.window; i++) {
            const float *query = p->queries + (head * p->config.window + i) * p->layer.head_dim;
            judge_query(p, head, query, problem_voter_position(p, i), &e);
        }
    }
    return e;
}
