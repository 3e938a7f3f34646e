/* Fuzz target: bytes become a policy, a layer in some layout and dtype, and one or two faults; then
 * every function that reads a layer is called between guard pages. What it returns must be what the
 * documents say about that input, what it writes must agree with the reference in double precision,
 * and after an error nothing may have been written. */
#define _DEFAULT_SOURCE /* setenv */
#include "blocks.h"
#include "guard.h"
#include "half.h"
#include "input.h"
#include "judge.h"
#include "reference.h"

#include <math.h>

/* ---- the layer ------------------------------------------------------------------------------- */

typedef enum filling {
    FILL_TAME,  /* around 1: what an answer can be compared for */
    FILL_TIED,  /* every row one of three: exact ties */
    FILL_EDGE,  /* zeros, subnormals, and numbers whose products leave float */
    FILL_FINITE /* any finite bits */
} filling;

typedef struct subject {
    problem p;           /* config and layer are what the calls get, faults included */
    guard sinks, slopes; /* what the layer's options point to */
    guard tables[3];     /* copies of the block tables, with faults */
    size_t n_table[3];   /* their entries */
    size_t window, n_query_heads, n_kv_heads, length, head_dim; /* what the memory was made for */
    int views_changed; /* the views don't describe the memory any more */
} subject;

static void fuzz_decode(void *context, const void *row, size_t head, size_t position,
                        float *out, size_t head_dim) {
    (void)context;
    (void)head;
    (void)position;
    const int8_t *bytes = (const int8_t *)row + 1;
    for (size_t d = 0; d < head_dim; d++) {
        out[d] = bytes[d] == -128  ? (float)NAN
                 : bytes[d] == 127 ? (float)INFINITY
                                   : (float)bytes[d] / 32;
    }
}

/* The bits of one element. */
static uint32_t draw_element(splitmix *random, filling how, snapkv_dtype dtype) {
    static const uint32_t edge_f32[] = {0x00000000, 0x80000000, 0x00000001, 0x80400000, 0x3F800000,
                                        0x7F7FFFFF, 0xFF7FFFFF, 0x5F7FFFFF, 0xDF800000, 0x5E800000};
    static const uint32_t edge_f16[] = {0x0000, 0x8000, 0x0001, 0x83FF, 0x3C00,
                                        0x7BFF, 0xFBFF, 0x7800, 0xC000, 0x0400};
    static const uint32_t edge_bf16[] = {0x0000, 0x8000, 0x0001, 0x8040, 0x3F80,
                                         0x7F7F, 0xFF7F, 0x5F7F, 0xDF80, 0x5E80};
    uint32_t bits = (uint32_t)(splitmix_next(random) >> 32);
    size_t edge = splitmix_between(random, 0, COUNT_OF(edge_f32) - 1);
    switch (dtype) {
    case SNAPKV_F32:
        return how == FILL_EDGE                    ? edge_f32[edge]
               : how != FILL_FINITE                ? 0x3F000000 + (bits & 0x80FFFFFF)
               : (bits & 0x7F800000) == 0x7F800000 ? bits & 0xBFFFFFFF
                                                   : bits;
    case SNAPKV_F16:
        bits >>= 16;
        return how == FILL_EDGE            ? edge_f16[edge]
               : how != FILL_FINITE        ? 0x3800 + (bits & 0x87FF)
               : (bits & 0x7C00) == 0x7C00 ? bits & 0xBFFF
                                           : bits;
    case SNAPKV_BF16:
        bits >>= 16;
        return how == FILL_EDGE            ? edge_bf16[edge]
               : how != FILL_FINITE        ? 0x3F00 + (bits & 0x80FF)
               : (bits & 0x7F80) == 0x7F80 ? bits & 0xBFFF
                                           : bits;
    default:
        bits >>= 24;
        return bits == 0x80 || bits == 0x7F ? 0 : how == FILL_TAME ? bits & 0xBF : bits;
    }
}

static float decode_element(uint32_t bits, snapkv_dtype dtype) {
    float value;
    unsigned char row[2] = {0, (unsigned char)bits};
    switch (dtype) {
    case SNAPKV_F32:
        memcpy(&value, &bits, sizeof value);
        return value;
    case SNAPKV_F16:
        return f16_decode((uint16_t)bits);
    case SNAPKV_BF16:
        return bf16_decode((uint16_t)bits);
    default:
        fuzz_decode(NULL, row, 0, 0, &value, 1);
        return value;
    }
}

static void set_element(packed *rows, float *plain, size_t head, size_t row, size_t d,
                        uint32_t bits) {
    size_t size = element_bytes(rows->how.dtype);
    unsigned char bytes[4] = {(unsigned char)bits, (unsigned char)(bits >> 8),
                              (unsigned char)(bits >> 16), (unsigned char)(bits >> 24)};
    size_t lead = rows->how.dtype == SNAPKV_CUSTOM ? 1 : 0;
    memcpy(packed_row(rows, head, row) + lead + d * size, bytes, size);
    plain[(head * rows->n_rows + row) * rows->head_dim + d] = decode_element(bits, rows->how.dtype);
}

/* Numbers from a seed, then a few of any bits at any place: NaN and infinities among them. */
static packed draw_rows(input *in, float *plain, size_t n_heads, size_t n_rows, size_t head_dim) {
    packing how;
    how.layout = (layout)draw_between(in, 0, 3);
    how.dtype = (snapkv_dtype)draw_between(in, 0, 3);
    how.side = draw_once_in(in, 2) ? GUARD_BEFORE : GUARD_AFTER;
    how.lead = draw_between(in, 0, 3);
    how.pad = draw_between(in, 0, 3);
    how.block_rows = draw_between(in, 1, 40);
    packed rows = pack(plain, n_heads, n_rows, head_dim, how);
    if (how.dtype == SNAPKV_CUSTOM) {
        rows.rows.decode = fuzz_decode;
    }
    filling fill = draw_once_in(in, 2) ? (filling)draw_between(in, 0, 3) : FILL_TAME;
    splitmix random = {draw_bytes(in, 2)};
    guard_thaw(&rows.memory);
    for (size_t head = 0; head < n_heads; head++) {
        for (size_t row = 0; row < n_rows; row++) {
            splitmix one_of_three = {splitmix_between(&random, 0, 2)};
            splitmix *source = fill == FILL_TIED ? &one_of_three : &random;
            for (size_t d = 0; d < head_dim; d++) {
                set_element(&rows, plain, head, row, d, draw_element(source, fill, how.dtype));
            }
        }
    }
    size_t n_odd = draw_once_in(in, 4) ? draw_between(in, 1, 3) : 0;
    for (size_t i = 0; i < n_odd; i++) {
        float odd = draw_float_bits(in);
        uint32_t bits;
        memcpy(&bits, &odd, sizeof bits);
        bits >>= how.dtype == SNAPKV_F32 ? 0 : how.dtype == SNAPKV_CUSTOM ? 24 : 16;
        size_t head = draw_between(in, 0, n_heads - 1);
        size_t row = draw_between(in, 0, n_rows - 1);
        set_element(&rows, plain, head, row, draw_between(in, 0, head_dim - 1), bits);
    }
    guard_freeze(&rows.memory);
    return rows;
}

static snapkv_config draw_config(input *in, size_t window, size_t prefix) {
    snapkv_config config = make_config(window, 0, 0);
    config.capacity = window + draw_between(in, 1, prefix + prefix / 8 + 1);
    config.n_sink = draw_once_in(in, 3) ? draw_between(in, 0, config.capacity - window - 1) : 0;
    config.kernel_size = 2 * draw_between(in, 0, draw_once_in(in, 8) ? prefix : 4) + 1;
    config.pooling = (snapkv_pooling)draw_between(in, 0, 1);
    config.order = (snapkv_order)draw_between(in, 0, 1);
    config.sharing = (snapkv_sharing)draw_between(in, 0, 2);
    config.reduce = (snapkv_reduce)draw_between(in, 0, 1);
    return config;
}

static float draw_option(input *in, double lowest, double highest) {
    if (draw_once_in(in, 6)) {
        return draw_float_bits(in);
    }
    return (float)(lowest + (highest - lowest) * (double)draw_bytes(in, 1) / 255);
}

static guard draw_head_options(input *in, size_t n, double lowest, double highest) {
    guard numbers = guard_new(n * sizeof(float), GUARD_AFTER);
    for (size_t i = 0; i < n; i++) {
        ((float *)(void *)numbers.data)[i] = draw_option(in, lowest, highest);
    }
    guard_freeze(&numbers);
    return numbers;
}

/* What a view of one head, one row or one block doesn't need may have any value. */
static void draw_unneeded(input *in, snapkv_rows *view, const packed *rows) {
    if (rows->n_heads == 1 && draw_once_in(in, 2)) {
        view->head_stride = draw_extreme(in);
    }
    if (rows->n_rows == 1 && draw_once_in(in, 2)) {
        view->row_stride = draw_extreme(in);
    }
    if (view->block_table && view->block_rows >= rows->n_rows && draw_once_in(in, 2)) {
        size_t block_rows = draw_extreme(in);
        view->block_rows = block_rows > rows->n_rows ? block_rows : rows->n_rows;
        view->block_stride =
            view->block_table[0] == 0 ? draw_extreme(in) / 4 * 4 : view->block_stride;
    }
}

static subject draw_subject(input *in) {
    subject s;
    memset(&s, 0, sizeof s);
    size_t window = draw_between(in, 1, draw_once_in(in, 4) ? 40 : 8);
    size_t prefix = draw_between(in, 0, draw_once_in(in, 4) ? 200 : 60);
    size_t n_kv_heads = draw_between(in, 1, 3);
    size_t n_query_heads = n_kv_heads * draw_between(in, 1, 3);
    size_t head_dim = draw_between(in, 1, draw_once_in(in, 4) ? 40 : 9);
    snapkv_config config = draw_config(in, window, prefix);
    s.p = problem_new(config, n_query_heads, n_kv_heads, window + prefix, head_dim);
    snapkv_layer *layer = &s.p.layer;
    if (draw_once_in(in, 4)) {
        layer->scale = draw_option(in, 0, 2);
    }
    if (draw_once_in(in, 4)) {
        layer->softcap = draw_option(in, 0, 20);
    }
    if (draw_once_in(in, 4)) {
        layer->span = draw_once_in(in, 4) ? draw_extreme(in) : draw_between(in, 1, layer->length);
    }
    if (draw_once_in(in, 4)) {
        s.sinks = draw_head_options(in, n_query_heads, -5, 5);
        layer->sink_logits = (const float *)(const void *)s.sinks.data;
    }
    if (draw_once_in(in, 4)) {
        s.slopes = draw_head_options(in, n_query_heads, -0.1, 0.1);
        layer->alibi_slopes = (const float *)(const void *)s.slopes.data;
    }
    s.p.packed_queries = draw_rows(in, s.p.queries, n_query_heads, window, head_dim);
    s.p.packed_keys = draw_rows(in, s.p.keys, n_kv_heads, layer->length, head_dim);
    s.p.packed_values = draw_rows(in, s.p.values, n_kv_heads, layer->length, head_dim);
    const packed *rows[3] = {&s.p.packed_queries, &s.p.packed_keys, &s.p.packed_values};
    snapkv_rows *views[3] = {&layer->queries, &layer->keys, &layer->values};
    for (int i = 0; i < 3; i++) {
        *views[i] = rows[i]->rows;
        s.n_table[i] = rows[i]->table.size / sizeof(int32_t);
        s.tables[i] = guard_copy(rows[i]->table.data, rows[i]->table.size, GUARD_AFTER);
        if (views[i]->block_table) {
            views[i]->block_table = (const int32_t *)(const void *)s.tables[i].data;
        }
        draw_unneeded(in, views[i], rows[i]);
    }
    s.window = window;
    s.n_query_heads = n_query_heads;
    s.n_kv_heads = n_kv_heads;
    s.length = layer->length;
    s.head_dim = head_dim;
    return s;
}

static void free_subject(subject *s) {
    if (s->sinks.data) {
        guard_free(&s->sinks);
    }
    if (s->slopes.data) {
        guard_free(&s->slopes);
    }
    for (int i = 0; i < 3; i++) {
        guard_free(&s->tables[i]);
    }
    problem_free(&s->p);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static size_t draw_change(input *in, size_t old) {
    switch (draw_between(in, 0, 3)) {
    case 0:
        return old + 1;
    case 1:
        return old - 1;
    case 2:
        return draw_between(in, 0, 255);
    default:
        return draw_extreme(in);
    }
}

static void spoil_view(input *in, subject *s, int i) {
    snapkv_rows *views[3] = {&s->p.layer.queries, &s->p.layer.keys, &s->p.layer.values};
    snapkv_rows *view = views[i];
    s->views_changed = 1;
    switch (draw_between(in, 0, 9)) {
    case 0:
        view->data = NULL;
        break;
    case 1:
        view->data = view->data ? (const char *)view->data + draw_between(in, 1, 3) : NULL;
        break;
    case 2:
        view->head_stride = draw_change(in, view->head_stride);
        break;
    case 3:
        view->row_stride = draw_change(in, view->row_stride);
        break;
    case 4:
        view->row_bytes = draw_change(in, view->row_bytes);
        break;
    case 5:
        view->dtype = (snapkv_dtype)draw_between(in, 0, 5);
        break;
    case 6:
        view->decode = NULL;
        break;
    case 7:
        view->block_rows = draw_change(in, view->block_rows);
        break;
    case 8:
        view->block_stride = draw_change(in, view->block_stride);
        break;
    default:
        if (s->n_table[i] > 0) {
            int32_t entry = (int32_t)draw_bytes(in, 4);
            size_t at = draw_between(in, 0, s->n_table[i] - 1);
            memcpy(s->tables[i].data + at * sizeof entry, &entry, sizeof entry);
        }
    }
}

static void spoil(input *in, subject *s) {
    snapkv_config *config = &s->p.config;
    snapkv_layer *layer = &s->p.layer;
    size_t *sizes[] = {
        &config->window, &config->capacity,     &config->kernel_size,
        &config->n_sink, &layer->n_query_heads, &layer->n_kv_heads,
        &layer->length,  &layer->head_dim,      &layer->span,
    };
    size_t which = draw_between(in, 0, COUNT_OF(sizes) + 9);
    if (which < COUNT_OF(sizes)) {
        *sizes[which] = draw_change(in, *sizes[which]);
        return;
    }
    switch (which - COUNT_OF(sizes)) {
    case 0:
        config->pooling = (snapkv_pooling)draw_between(in, 0, 3);
        break;
    case 1:
        config->order = (snapkv_order)draw_between(in, 0, 3);
        break;
    case 2:
        config->sharing = (snapkv_sharing)(draw_between(in, 0, 5) - 1);
        break;
    case 3:
        config->reduce = (snapkv_reduce)draw_between(in, 0, 3);
        break;
    case 4:
        layer->scale = draw_float_bits(in);
        break;
    case 5:
        layer->softcap = draw_float_bits(in);
        break;
    default:
        spoil_view(in, s, (int)draw_between(in, 0, 2));
    }
}

/* ---- what the documents say ------------------------------------------------------------------ */

/* Finite and not negative. */
static int is_amount(float x) {
    return isfinite(x) && x >= 0;
}

static verdict judge_layer(const subject *s, int for_selection, int with_values) {
    const snapkv_config *config = &s->p.config;
    const snapkv_layer *layer = &s->p.layer;
    verdict v = judge_sizes(config, layer, for_selection);
    int sound = !v.must;
    const snapkv_rows *views[3] = {&layer->queries, &layer->keys, &layer->values};
    for (int i = 0; i < 3; i++) {
        if (i == 2 && !with_values) {
            continue;
        }
        if (!views[i]->data || (i < 2 && views[i]->dtype == SNAPKV_CUSTOM && !views[i]->decode)) {
            v.must |= BIT(SNAPKV_ERROR_NULL);
        } else if ((unsigned)views[i]->dtype > SNAPKV_CUSTOM) {
            v.must |= BIT(SNAPKV_ERROR_OPTION);
        } else if (sound) {
            size_t n_heads = i == 0 ? layer->n_query_heads : layer->n_kv_heads;
            size_t n_rows = i == 0 ? config->window : layer->length;
            add_verdict(
                &v, judge_view(views[i], n_heads, n_rows, layer->head_dim, i < 2, s->n_table[i]));
        }
    }
    if (!is_amount(layer->scale) || !is_amount(layer->softcap)) {
        v.must |= BIT(SNAPKV_ERROR_OPTION);
    }
    for (size_t i = 0; i < s->n_query_heads && i < layer->n_query_heads; i++) {
        if ((layer->sink_logits && !isfinite(layer->sink_logits[i])) ||
            (layer->alibi_slopes && !isfinite(layer->alibi_slopes[i]))) {
            v.must |= BIT(SNAPKV_ERROR_OPTION);
        }
    }
    return v;
}

/* Whether the arrays beside the views are as long as the call may read them, and the time that it
 * takes bounded: a number of heads that is only absurd can't be told from a true one. */
static int can_call(const subject *s) {
    const snapkv_config *config = &s->p.config;
    const snapkv_layer *layer = &s->p.layer;
    if (judge_sizes(config, layer, 0).must) {
        return 1;
    }
    const snapkv_rows *views[3] = {&layer->queries, &layer->keys, &layer->values};
    for (int i = 0; i < 3; i++) {
        size_t n_rows = i == 0 ? config->window : layer->length;
        if (views[i]->block_table && views[i]->block_rows > 0 &&
            (n_rows - 1) / views[i]->block_rows + 1 > s->n_table[i]) {
            return 0;
        }
    }
    if (layer->n_query_heads <= s->n_query_heads) {
        return 1;
    }
    /* More heads than there are options: refused before those are read, or not called. */
    statuses early = BIT(SNAPKV_ERROR_NULL) | BIT(SNAPKV_ERROR_SHAPE);
    int has_options = layer->sink_logits || layer->alibi_slopes;
    return (judge_layer(s, 1, 0).must & early) != 0 ||
           (!has_options && layer->n_query_heads < 1 << 16);
}

static void check_near(const float *actual, const double *expected, size_t n, double tolerance,
                       const char *what) {
    for (size_t i = 0; i < n; i++) {
        double distance = fabs((double)actual[i] - expected[i]);
        if (!(distance <= tolerance * fabs(expected[i]) + FLOOR)) {
            fail_msg("%s[%lu] is %.9g, not %.9g within %g", what, (unsigned long)i,
                     (double)actual[i], expected[i], tolerance);
        }
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

typedef struct area {
    guard memory;
    void *data; /* what the call gets */
    size_t size;
    int broken; /* NULL, too small or misaligned */
} area;

/* A workspace of any size that serves, seldom one that doesn't. */
static area draw_workspace(input *in, const subject *s, verdict *v) {
    size_t least = snapkv_workspace_min(&s->p.config, &s->p.layer);
    size_t full = snapkv_workspace_size(&s->p.config, &s->p.layer);
    area a;
    memset(&a, 0, sizeof a);
    if (full > 1 << 24) { /* only calls that fail before they use it */
        least = full = 0;
    }
    size_t spread = full - least;
    a.size =
        draw_once_in(in, 2) ? least : least + draw_between(in, 0, spread < 65535 ? spread : 65535);
    guard_side side = draw_once_in(in, 2) ? GUARD_BEFORE : GUARD_AFTER;
    size_t misaligned = a.size % sizeof(float);
    if (side == GUARD_AFTER) {
        a.size -= misaligned; /* ends at a page, starts at a float */
        a.size += a.size < least ? sizeof(float) : 0;
    }
    switch (draw_between(in, 0, 15)) {
    case 13:
        a.size -= a.size ? 1 : 0;
        if (side == GUARD_AFTER || a.size < least) {
            v->must |= BIT(SNAPKV_ERROR_WORKSPACE);
        }
        break;
    case 14:
        a.size = draw_between(in, 0, least ? least - 1 : 0);
        v->must |= BIT(SNAPKV_ERROR_WORKSPACE);
        break;
    default:
        break;
    }
    a.memory = guard_new(a.size, side);
    memset(a.memory.data, 0xFF, a.size);
    a.data = a.memory.data;
    if (draw_once_in(in, 32)) {
        a.data = NULL;
        v->must |= BIT(SNAPKV_ERROR_NULL);
    }
    return a;
}

static size_t draw_index(input *in, size_t n) {
    return draw_once_in(in, 16) ? draw_extreme(in) : draw_between(in, 0, n > 255 ? 255 : n - 1);
}

/* Whether the views still describe the memory, so that a call without an error can read it. */
static int is_readable(const subject *s) {
    const snapkv_layer *layer = &s->p.layer;
    return !s->views_changed && s->p.config.window == s->window && layer->length == s->length &&
           layer->n_query_heads == s->n_query_heads && layer->n_kv_heads == s->n_kv_heads &&
           layer->head_dim == s->head_dim;
}

static void fuzz_sizes(const subject *s) {
    const snapkv_config *config = &s->p.config;
    const snapkv_layer *layer = &s->p.layer;
    verdict all = judge_sizes(config, layer, 1);
    verdict votes = judge_sizes(config, layer, 0);
    size_t sets = snapkv_set_count(config, layer);
    size_t least = snapkv_workspace_min(config, layer);
    size_t full = snapkv_workspace_size(config, layer);
    assert_true(least <= full && (least == 0) == (full == 0));
    assert_true(!all.must || sets == 0);
    assert_true(all.must || all.may || sets == problem_set_count(&s->p));
    assert_true(!votes.must || full == 0);
    assert_true(votes.must || votes.may || full > 0);
    assert_true(snapkv_kept_count(config, layer->length) == problem_kept_count(&s->p));
}

static void fuzz_vote(input *in, const subject *s) {
    const problem *p = &s->p;
    int readable = is_readable(s);
    verdict v = judge_layer(s, 0, 0);
    size_t head = draw_index(in, s->n_query_heads);
    exactness e = {0, 0, 0};
    if (p->config.window == p->layer.length) {
        v.must |= BIT(SNAPKV_ERROR_WINDOW);
    }
    if (head >= p->layer.n_query_heads) {
        v.must |= BIT(SNAPKV_ERROR_INDEX);
    } else if (readable && !v.must) {
        e = judge_window(p, head, 1);
        add_exactness(&v, e);
    }
    area workspace = draw_workspace(in, s, &v);
    if (readable || v.must) {
        size_t n = readable ? problem_prefix(p) : 8;
        guard votes =
            guard_new(n * sizeof(float), draw_once_in(in, 2) ? GUARD_BEFORE : GUARD_AFTER);
        float *out = (float *)(void *)votes.data;
        snapkv_status status =
            snapkv_vote(&p->config, &p->layer, head, out, workspace.data, workspace.size);
        check_verdict(status, v, "snapkv_vote");
        if (status != SNAPKV_OK) {
            guard_check_untouched(&votes);
        } else {
            double tolerance = tolerance_of(e);
            double sum = 0;
            for (size_t j = 0; j < n; j++) {
                assert_true(out[j] >= 0);
                sum += (double)out[j];
            }
            assert_true(sum <= (double)p->config.window * (1 + 1e-4));
            if (tolerance > 0) {
                double *expected = new_array(n, sizeof(double));
                reference_votes(p, head, expected);
                check_near(out, expected, n, tolerance, "votes");
                free(expected);
            }
        }
        guard_free(&votes);
    }
    guard_free(&workspace.memory);
}

/* Only scores about as high as the last that is kept may have changed sides. */
static void check_boundary(const problem *p, const double *exact, const int32_t *kept,
                           double tolerance) {
    size_t prefix = problem_prefix(p);
    size_t n_sink = p->config.n_sink;
    size_t n_chosen = problem_kept_count(p) - p->config.window - n_sink;
    int32_t *best = new_array(n_chosen, sizeof(int32_t));
    unsigned char *is_kept = new_array(prefix, 1);
    reference_top_k(exact + n_sink, prefix - n_sink, n_chosen, best);
    double last = exact[n_sink + (size_t)best[n_chosen - 1]];
    double slack = 2 * tolerance * last + 2 * FLOOR;
    for (size_t i = 0; i < n_sink + n_chosen; i++) {
        is_kept[kept[i]] = 1;
    }
    for (size_t j = n_sink; j < prefix; j++) {
        assert_true(is_kept[j] ? exact[j] >= last - slack : exact[j] <= last + slack);
    }
    free(best);
    free(is_kept);
}

/* What a selection must be, given its exactness. */
static void check_selected(const problem *p, size_t set, const int32_t *kept, const float *scores,
                           const snapkv_selection *selection, exactness e) {
    size_t prefix = problem_prefix(p);
    size_t n_kept = problem_kept_count(p);
    int bypassed = p->layer.length < p->config.capacity;
    double *exact = new_array(prefix, sizeof(double));
    int32_t *expected = new_array(n_kept, sizeof(int32_t));
    assert_true(selection->n_kept == n_kept && selection->bypassed == bypassed);
    assert_true(selection->coverage >= 0 && selection->coverage <= 1);

    /* The list is exactly what the returned scores ask for. */
    for (size_t j = 0; j < prefix && !bypassed; j++) {
        assert_true(isfinite(scores[j]) && scores[j] >= 0);
        exact[j] = (double)scores[j];
    }
    reference_kept(p, exact, expected);
    assert_indices(kept, expected, n_kept);

    double tolerance = tolerance_of(e);
    if (bypassed) {
        assert_true(selection->coverage == 1);
    } else if (tolerance > 0) {
        reference_scores(p, set, exact);
        check_near(scores, exact, prefix, tolerance, "scores");
        check_boundary(p, exact, kept, tolerance);
        assert_close(selection->coverage, reference_coverage(p, set, kept, n_kept), tolerance);
    }
    free(exact);
    free(expected);
}

/* Adds what a selection says of the set and of the numbers; they are looked at where they exist. */
static exactness judge_set(const subject *s, size_t set, verdict *v) {
    const problem *p = &s->p;
    exactness e = {0, 0, 0};
    if (judge_sizes(&p->config, &p->layer, 1).must) {
        return e;
    }
    if (set >= problem_set_count(p)) {
        v->must |= BIT(SNAPKV_ERROR_INDEX);
    } else if (is_readable(s) && !v->must && p->layer.length >= p->config.capacity) {
        size_t n_heads;
        size_t first = problem_set_heads(p, set, &n_heads);
        e = judge_window(p, first, n_heads);
        add_exactness(v, e);
    }
    return e;
}

static const snapkv_selection untouched = {12345, -7, 99};

static void fuzz_select(input *in, const subject *s) {
    const problem *p = &s->p;
    int readable = is_readable(s);
    verdict v = judge_layer(s, 1, 0);
    size_t set = draw_index(in, s->n_query_heads);
    exactness e = judge_set(s, set, &v);
    area workspace = draw_workspace(in, s, &v);
    if (readable || v.must) {
        guard_side side = draw_once_in(in, 2) ? GUARD_BEFORE : GUARD_AFTER;
        guard kept = guard_new((readable ? problem_kept_count(p) : 4) * sizeof(int32_t), side);
        guard scores = guard_new((readable ? problem_prefix(p) : 4) * sizeof(float), side);
        int32_t *list = (int32_t *)(void *)kept.data;
        float *out = (float *)(void *)scores.data;
        snapkv_selection selection = untouched;
        snapkv_status status = snapkv_select(&p->config, &p->layer, set, list, out, &selection,
                                             workspace.data, workspace.size);
        check_verdict(status, v, "snapkv_select");
        if (status != SNAPKV_OK) {
            guard_check_untouched(&kept);
            guard_check_untouched(&scores);
            assert_memory_equal(&selection, &untouched, sizeof selection);
        } else {
            check_selected(p, set, list, out, &selection, e);
            if (selection.bypassed) {
                guard_check_untouched(&scores);
            }
            /* Without the outputs that may be missing, in another workspace: the same list. */
            size_t least = snapkv_workspace_min(&p->config, &p->layer);
            guard small = guard_new(least, GUARD_BEFORE);
            guard again = guard_new(kept.size, side);
            assert_ok(snapkv_select(&p->config, &p->layer, set, (int32_t *)(void *)again.data, NULL,
                                    NULL, small.data, least));
            assert_memory_equal(again.data, kept.data, kept.size);
            guard_free(&again);
            guard_free(&small);
        }
        guard_free(&kept);
        guard_free(&scores);
    }
    guard_free(&workspace.memory);
}

/* The bytes that a gather moves of a row of keys or values. */
static size_t gathered_bytes(const packed *rows) {
    return rows->row_bytes;
}

/* Rows of one output head against the rows that kept lists. */
static void check_gathered(const packed *rows, const unsigned char *memory, size_t source,
                           const unsigned char *out, size_t stride, const int32_t *kept, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const unsigned char *row =
            memory + (packed_row(rows, source, (size_t)kept[i]) - rows->memory.data);
        assert_memory_equal(out + i * stride, row, gathered_bytes(rows));
    }
}

static void fuzz_compress(input *in, const subject *s) {
    const problem *p = &s->p;
    int readable = is_readable(s);
    verdict v = judge_layer(s, 1, 1);
    size_t set = draw_index(in, s->n_query_heads);
    int expanded = p->config.sharing == SNAPKV_PER_QUERY_HEAD;
    size_t n_out_heads = expanded ? s->n_query_heads : s->n_kv_heads;
    size_t n_kept = readable && p->config.capacity > 0 ? problem_kept_count(p) : 4;
    const packed *rows[2] = {&p->packed_keys, &p->packed_values};
    guard memory[2];
    snapkv_rows_out outs[2];
    for (int i = 0; i < 2; i++) {
        size_t stride = gathered_bytes(rows[i]) + draw_between(in, 0, 3);
        size_t used = (n_out_heads * n_kept - 1) * stride + gathered_bytes(rows[i]);
        memory[i] = guard_new(used, draw_once_in(in, 2) ? GUARD_BEFORE : GUARD_AFTER);
        outs[i].data = memory[i].data;
        outs[i].row_stride = stride;
        outs[i].head_stride = n_kept * stride;
        if (draw_once_in(in, 16)) {
            size_t *field = draw_once_in(in, 2) ? &outs[i].row_stride : &outs[i].head_stride;
            *field = draw_change(in, *field);
            if (readable) {
                snapkv_rows view;
                memset(&view, 0, sizeof view);
                view.data = outs[i].data;
                view.row_stride = outs[i].row_stride;
                view.head_stride = outs[i].head_stride;
                view.row_bytes = gathered_bytes(rows[i]);
                verdict out = judge_view(&view, n_out_heads, n_kept, 1, 0, 0);
                int matters = (field == &outs[i].row_stride ? n_kept : n_out_heads) > 1;
                if (matters && !out.must) { /* legal, and somewhere else */
                    outs[i].row_stride = stride;
                    outs[i].head_stride = n_kept * stride;
                } else {
                    add_verdict(&v, out);
                }
            }
        }
    }
    const snapkv_rows *views[2] = {&p->layer.keys, &p->layer.values};
    for (int i = 0; i < 2; i++) { /* nothing says what to move */
        if (views[i]->dtype == SNAPKV_CUSTOM && views[i]->row_bytes == 0) {
            v.must |= BIT(SNAPKV_ERROR_OPTION);
        }
    }
    if (!readable) { /* another layer than the outputs were made for */
        v.may |= BIT(SNAPKV_ERROR_SHAPE) | BIT(SNAPKV_ERROR_STRIDE);
    }
    exactness e = judge_set(s, set, &v);
    area workspace = draw_workspace(in, s, &v);
    if (readable || v.must) {
        guard kept = guard_new(n_kept * sizeof(int32_t), GUARD_AFTER);
        int32_t *list = (int32_t *)(void *)kept.data;
        snapkv_selection selection = untouched;
        snapkv_status status = snapkv_compress(&p->config, &p->layer, set, list, &outs[0], &outs[1],
                                               &selection, workspace.data, workspace.size);
        check_verdict(status, v, "snapkv_compress");
        if (status != SNAPKV_OK) {
            guard_check_untouched(&kept);
            guard_check_untouched(&memory[0]);
            guard_check_untouched(&memory[1]);
            assert_memory_equal(&selection, &untouched, sizeof selection);
        } else {
            guard plain = guard_new(kept.size, GUARD_AFTER);
            guard scores = guard_new(problem_prefix(p) * sizeof(float), GUARD_AFTER);
            snapkv_selection same = untouched;
            assert_ok(snapkv_select(&p->config, &p->layer, set, (int32_t *)(void *)plain.data,
                                    (float *)(void *)scores.data, &same, workspace.data,
                                    workspace.size));
            assert_memory_equal(plain.data, kept.data, kept.size);
            assert_true(same.coverage == selection.coverage && same.n_kept == selection.n_kept);
            check_selected(p, set, list, (const float *)(const void *)scores.data, &selection, e);
            guard_free(&plain);
            guard_free(&scores);
            int whole = p->config.sharing == SNAPKV_PER_LAYER;
            for (size_t head = whole ? 0 : set; head < (whole ? n_out_heads : set + 1); head++) {
                size_t source = head / (n_out_heads / s->n_kv_heads);
                for (int i = 0; i < 2; i++) {
                    check_gathered(rows[i], rows[i]->memory.data, source,
                                   memory[i].data +
                                       (n_out_heads > 1 ? head : 0) * outs[i].head_stride,
                                   outs[i].row_stride, list, n_kept);
                }
            }
        }
        guard_free(&kept);
    }
    guard_free(&memory[0]);
    guard_free(&memory[1]);
    guard_free(&workspace.memory);
}

/* ---- compaction inside the memory of the layer ----------------------------------------------- */

typedef struct strip { /* rows at regular distances */
    const unsigned char *first;
    size_t n, stride, bytes;
} strip;

static int strips_share_bytes(strip a, strip b) {
    for (size_t i = 0; i < a.n; i++) {
        for (size_t j = 0; j < b.n; j++) {
            uintptr_t x = (uintptr_t)a.first + i * a.stride;
            uintptr_t y = (uintptr_t)b.first + j * b.stride;
            if (x < y + b.bytes && y < x + a.bytes) {
                return 1;
            }
        }
    }
    return 0;
}

/* Destination i is the cache itself, in place or moved by some rows or bytes. Only for sets of one
 * head and two views: for PER_LAYER the same holds of each head. */
static void fuzz_in_place(input *in, subject *s) {
    problem *p = &s->p;
    verdict v = judge_layer(s, 1, 1);
    if (!is_readable(s) || v.must || problem_set_count(p) == 0) {
        return;
    }
    size_t set = draw_between(in, 0, problem_set_count(p) - 1);
    exactness e = judge_set(s, set, &v);
    (void)e;
    int whole = p->config.sharing == SNAPKV_PER_LAYER;
    int expanded = p->config.sharing == SNAPKV_PER_QUERY_HEAD;
    size_t n_out_heads = expanded ? s->n_query_heads : s->n_kv_heads;
    size_t n_kept = problem_kept_count(p);
    packed *rows[3] = {&p->packed_keys, &p->packed_values, &p->packed_queries};
    const snapkv_rows *views[3] = {&p->layer.keys, &p->layer.values, &p->layer.queries};
    snapkv_rows_out outs[2];
    unsigned char *before[3];
    size_t moved[2];
    for (int i = 0; i < 2; i++) {
        packed *into = rows[((size_t)i + (draw_once_in(in, 8) ? draw_between(in, 1, 2) : 0)) % 3];
        moved[i] = draw_once_in(in, 3) ? draw_between(in, 0, 255) : 0;
        outs[i].data = (unsigned char *)into->memory.data +
                       into->how.lead * element_bytes(into->how.dtype) + moved[i];
        outs[i].row_stride = into->rows.row_stride;
        outs[i].head_stride = into->rows.head_stride;
        if (draw_once_in(in, 8)) {
            outs[i].row_stride += draw_between(in, 1, 4);
        }
        wide end = (wide)((unsigned char *)outs[i].data - into->memory.data) +
                   (wide)(n_out_heads - 1) * outs[i].head_stride +
                   (wide)(n_kept - 1) * outs[i].row_stride + gathered_bytes(rows[i]);
        snapkv_rows view;
        memset(&view, 0, sizeof view);
        view.data = outs[i].data;
        view.row_stride = outs[i].row_stride;
        view.head_stride = outs[i].head_stride;
        view.row_bytes = gathered_bytes(rows[i]);
        if (end > into->memory.size || judge_view(&view, n_out_heads, n_kept, 1, 0, 0).must) {
            return; /* fuzz_compress() looks at those */
        }
    }

    /* Every destination row against every row of the layer, and of the other destination. */
    size_t first = whole ? 0 : set;
    size_t last = whole ? n_out_heads : set + 1;
    for (int i = 0; i < 2; i++) {
        for (size_t head = first; head < last; head++) {
            strip to = {(unsigned char *)outs[i].data + head * outs[i].head_stride, n_kept,
                        outs[i].row_stride, gathered_bytes(rows[i])};
            for (int j = 0; j < 3; j++) {
                int in_place = i == j && p->config.order == SNAPKV_BY_POSITION &&
                               outs[i].data == views[j]->data && !views[j]->block_table &&
                               outs[i].row_stride == views[j]->row_stride &&
                               (!expanded || s->n_query_heads == s->n_kv_heads);
                v.may |= BIT(SNAPKV_ERROR_ALIAS); /* the memory between rows is not for others */
                for (size_t h = 0; h < rows[j]->n_heads; h++) {
                    if (in_place && h == head / (n_out_heads / s->n_kv_heads)) {
                        continue;
                    }
                    for (size_t row = 0; row < rows[j]->n_rows; row++) {
                        strip from = {packed_row(rows[j], h, row), 1, 0, rows[j]->row_bytes};
                        v.must |= strips_share_bytes(to, from) ? BIT(SNAPKV_ERROR_ALIAS) : 0;
                    }
                }
            }
            for (size_t other = first; i == 0 && other < last; other++) {
                strip values = {(unsigned char *)outs[1].data + other * outs[1].head_stride, n_kept,
                                outs[1].row_stride, gathered_bytes(rows[1])};
                v.must |= strips_share_bytes(to, values) ? BIT(SNAPKV_ERROR_ALIAS) : 0;
            }
        }
    }
    /* What must work: both exactly in place. */
    int exact =
        p->config.order == SNAPKV_BY_POSITION && (!expanded || s->n_query_heads == s->n_kv_heads);
    for (int i = 0; i < 2; i++) {
        exact = exact && outs[i].data == views[i]->data && !views[i]->block_table &&
                outs[i].row_stride == views[i]->row_stride;
    }
    if (exact) {
        v.may &= ~BIT(SNAPKV_ERROR_ALIAS);
        assert_true((v.must & BIT(SNAPKV_ERROR_ALIAS)) == 0);
    }

    for (int j = 0; j < 3; j++) {
        before[j] = new_array(rows[j]->memory.size, 1);
        memcpy(before[j], rows[j]->memory.data, rows[j]->memory.size);
        guard_thaw(&rows[j]->memory);
    }
    size_t size = snapkv_workspace_size(&p->config, &p->layer);
    guard workspace = guard_new(size, GUARD_AFTER);
    guard kept = guard_new(n_kept * sizeof(int32_t), GUARD_AFTER);
    int32_t *list = (int32_t *)(void *)kept.data;
    snapkv_status status = snapkv_compress(&p->config, &p->layer, set, list, &outs[0], &outs[1],
                                           NULL, workspace.data, size - size % sizeof(float));
    check_verdict(status, v, "snapkv_compress in place");
    if (status != SNAPKV_OK) {
        guard_check_untouched(&kept);
        for (int j = 0; j < 3; j++) {
            assert_memory_equal(rows[j]->memory.data, before[j], rows[j]->memory.size);
        }
    } else {
        for (size_t head = first; head < last; head++) {
            size_t source = head / (n_out_heads / s->n_kv_heads);
            for (int i = 0; i < 2; i++) {
                check_gathered(rows[i], before[i], source,
                               (unsigned char *)outs[i].data + head * outs[i].head_stride,
                               outs[i].row_stride, list, n_kept);
                /* Bytes that belong to no destination row stay. */
                for (int j = 0; j < 3; j++) {
                    unsigned char *memory = rows[j]->memory.data;
                    for (size_t r = 0; r < n_kept; r++) {
                        unsigned char *row = (unsigned char *)outs[i].data +
                                             head * outs[i].head_stride + r * outs[i].row_stride;
                        if (row >= memory && row < memory + rows[j]->memory.size) {
                            memcpy(before[j] + (row - memory), row, gathered_bytes(rows[i]));
                        }
                    }
                }
            }
        }
        for (int j = 0; j < 3; j++) {
            assert_memory_equal(rows[j]->memory.data, before[j], rows[j]->memory.size);
        }
    }
    guard_free(&workspace);
    guard_free(&kept);
    for (int j = 0; j < 3; j++) {
        free(before[j]);
    }
}

static void fuzz_retained_mass(input *in, const subject *s) {
    const problem *p = &s->p;
    int readable = is_readable(s);
    verdict v = judge_layer(s, 0, 0);
    size_t head = draw_index(in, s->n_query_heads);
    size_t position = s->length - 1 + draw_between(in, 0, 20);
    if (draw_once_in(in, 4)) {
        position = draw_once_in(in, 2) ? draw_extreme(in) : INT32_MAX;
    }
    size_t n_kept = draw_between(in, 0, 30);
    guard kept = guard_new(n_kept * sizeof(int32_t), GUARD_AFTER);
    int32_t *list = (int32_t *)(void *)kept.data;
    int inside = 1;
    for (size_t i = 0; i < n_kept; i++) {
        list[i] = draw_once_in(in, 64) ? (int32_t)draw_bytes(in, 4)
                                       : (int32_t)draw_between(in, 0, s->length - 1);
        inside = inside && list[i] >= 0 && (size_t)list[i] < p->layer.length;
    }
    guard_freeze(&kept);
    guard query = guard_new(s->head_dim * sizeof(float), GUARD_AFTER);
    float *numbers = (float *)(void *)query.data;
    splitmix random = {draw_bytes(in, 1)};
    for (size_t d = 0; d < s->head_dim; d++) {
        numbers[d] = splitmix_float(&random, 4);
    }
    if (draw_once_in(in, 8)) {
        numbers[draw_between(in, 0, s->head_dim - 1)] = draw_float_bits(in);
    }
    guard_freeze(&query);

    exactness e = {0, 0, 0};
    if (head >= p->layer.n_query_heads || position + 1 < p->layer.length + (position + 1 == 0) ||
        position > INT32_MAX || !inside) {
        v.must |= BIT(SNAPKV_ERROR_INDEX);
    } else if (readable && !v.must) {
        judge_query(p, head, numbers, position, &e);
        add_exactness(&v, e);
    }
    area workspace = draw_workspace(in, s, &v);
    guard mass = guard_new(sizeof(float), GUARD_AFTER);
    if (readable || v.must) {
        float *out = (float *)(void *)mass.data;
        snapkv_status status =
            snapkv_retained_mass(&p->config, &p->layer, head, numbers, position, list, n_kept, out,
                                 workspace.data, workspace.size);
        check_verdict(status, v, "snapkv_retained_mass");
        if (status != SNAPKV_OK) {
            guard_check_untouched(&mass);
        } else {
            size_t span = p->layer.span;
            int sees = !span || position - (p->layer.length - 1) < span;
            double tolerance = tolerance_of(e);
            assert_true(*out >= 0 && *out <= 1);
            if (!sees) {
                assert_true(*out == 1);
            } else if (tolerance > 0) {
                double exact = reference_retained_mass(p, head, numbers, position, list, n_kept);
                assert_close(*out, exact, tolerance);
            }
        }
    }
    guard_free(&mass);
    guard_free(&query);
    guard_free(&kept);
    guard_free(&workspace.memory);
}

static void fuzz_null(const subject *s) {
    const problem *p = &s->p;
    int32_t kept = 0;
    float number = 0;
    snapkv_rows_out out = {&number, 4, 4, NULL, 0, 0};
    statuses null = BIT(SNAPKV_ERROR_NULL);
    verdict v = {null, 0};
    check_verdict(snapkv_check(NULL, &p->layer), v, "check");
    check_verdict(snapkv_check(&p->config, NULL), v, "check");
    check_verdict(snapkv_vote(&p->config, &p->layer, 0, NULL, &number, 4), v, "vote");
    check_verdict(snapkv_vote(NULL, &p->layer, 0, &number, &number, 4), v, "vote");
    check_verdict(snapkv_select(&p->config, &p->layer, 0, NULL, NULL, NULL, &number, 4), v,
                  "select");
    check_verdict(snapkv_select(&p->config, NULL, 0, &kept, NULL, NULL, &number, 4), v, "select");
    check_verdict(snapkv_compress(&p->config, &p->layer, 0, &kept, NULL, &out, NULL, &number, 4), v,
                  "compress");
    check_verdict(snapkv_compress(&p->config, &p->layer, 0, &kept, &out, NULL, NULL, &number, 4), v,
                  "compress");
    check_verdict(snapkv_compress(NULL, NULL, 0, &kept, &out, &out, NULL, &number, 4), v,
                  "compress");
    check_verdict(
        snapkv_retained_mass(&p->config, &p->layer, 0, NULL, 0, &kept, 1, &number, &number, 4), v,
        "retained_mass");
    assert_int_equal(snapkv_set_count(NULL, &p->layer), 0);
    assert_int_equal(snapkv_workspace_size(&p->config, NULL), 0);
    assert_int_equal(snapkv_workspace_min(NULL, &p->layer), 0);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    return abort_on_failure();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    if (draw_once_in(&in, 4)) {
        fuzz_blocks(&in);
        return 0;
    }
    subject s = draw_subject(&in);
    for (size_t n = draw_once_in(&in, 2) ? draw_between(&in, 1, 2) : 0; n > 0; n--) {
        spoil(&in, &s);
    }
    for (int i = 0; i < 3; i++) {
        guard_freeze(&s.tables[i]);
    }
    fuzz_sizes(&s);
    fuzz_null(&s);
    if (can_call(&s)) {
        verdict v = judge_layer(&s, 1, s.p.layer.values.data != NULL);
        check_verdict(snapkv_check(&s.p.config, &s.p.layer), v, "snapkv_check");
        fuzz_vote(&in, &s);
        fuzz_select(&in, &s);
        fuzz_compress(&in, &s);
        fuzz_retained_mass(&in, &s);
        fuzz_in_place(&in, &s);
    }
    free_subject(&s);
    return 0;
}
