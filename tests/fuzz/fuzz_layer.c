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

static void fuzz_decode(void *context, const void *row, size_t head, size_t position, float *out,
                        size_t head_dim) {
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

static snapkv_config draw_config(input *in, size_t window, size_t length) {
    snapkv_config config = make_config(window, 0, 0);
    config.n_recent = draw_once_in(in, 3) ? draw_between(in, 0, length) : 0;
    config.voting = (snapkv_voting)draw_between(in, 0, 1);
    size_t recent = config.n_recent ? config.n_recent : window;
    size_t prefix = length > recent ? length - recent : 0;
    config.capacity = recent + draw_between(in, 1, prefix + prefix / 8 + 1);
    config.n_sink = draw_once_in(in, 3) ? draw_between(in, 0, config.capacity - recent - 1) : 0;
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

/* Ascending positions; strictly: as a cache with gaps holds them. */
static void draw_positions(input *in, int32_t *positions, size_t n, size_t start, int strictly) {
    splitmix random = {draw_bytes(in, 1)};
    size_t gaps = draw_between(in, 0, 3);
    size_t at = draw_between(in, 0, start);
    for (size_t i = 0; i < n; i++) {
        positions[i] = (int32_t)at;
        at += splitmix_between(&random, strictly ? 1 : 0, 1 + gaps * gaps);
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
    int placed = draw_once_in(in, 3); /* voters anywhere: the prompt may be shorter than them */
    size_t length = placed && prefix > 0 ? prefix : window + prefix;
    snapkv_config config = draw_config(in, window, length);
    s.p = problem_new(config, n_query_heads, n_kv_heads, length, head_dim);
    snapkv_layer *layer = &s.p.layer;
    if (draw_once_in(in, 4)) {
        layer->key_positions = s.p.key_positions;
        draw_positions(in, s.p.key_positions, length, 40, 1);
    }
    if (placed) {
        layer->query_positions = s.p.query_positions;
        draw_positions(in, s.p.query_positions, window, problem_position(&s.p, length - 1) + 8, 0);
    }
    if (draw_once_in(in, 4)) {
        layer->scale = draw_option(in, 0, 2);
    }
    if (draw_once_in(in, 4)) {
        layer->softcap = draw_option(in, 0, 20);
    }
    if (draw_once_in(in, 4)) {
        size_t *width = draw_once_in(in, 2) ? &layer->chunk : &layer->span;
        *width = draw_once_in(in, 4) ? draw_extreme(in) : draw_between(in, 1, layer->length);
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
        &config->window,   &config->capacity,     &config->kernel_size, &config->n_recent,
        &config->n_sink,   &layer->n_query_heads, &layer->n_kv_heads,   &layer->chunk,
        &layer->first_row, &layer->length,        &layer->head_dim,     &layer->span,
    };
    size_t which = draw_between(in, 0, COUNT_OF(sizes) + 12);
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
    case 6:
        config->voting = (snapkv_voting)draw_between(in, 0, 3);
        break;
    case 7:
        s->p.query_positions[draw_between(in, 0, s->window - 1)] = (int32_t)draw_bytes(in, 4);
        break;
    case 8:
        s->p.key_positions[draw_between(in, 0, s->length - 1)] = (int32_t)draw_bytes(in, 4);
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

/* Whether what the layer points to is as long as a call may read it. */
static int can_read_arrays(const subject *s) {
    const snapkv_config *config = &s->p.config;
    const snapkv_layer *layer = &s->p.layer;
    const snapkv_rows *views[3] = {&layer->queries, &layer->keys, &layer->values};
    for (int i = 0; i < 3; i++) {
        size_t n_rows = i == 0 ? config->window : layer->length;
        if (views[i]->block_table && views[i]->block_rows > 0 && n_rows > 0 &&
            (n_rows - 1) / views[i]->block_rows + 1 > s->n_table[i]) {
            return 0;
        }
    }
    return (!layer->query_positions || config->window <= s->window) &&
           (!layer->key_positions || layer->length <= s->length);
}

/* Custom rows that are moved must say how many bytes that is. */
static int lacks_bytes(const snapkv_rows *view) {
    return view->dtype == SNAPKV_CUSTOM && view->row_bytes == 0;
}

static verdict judge_layer(const subject *s, int needs) {
    const snapkv_config *config = &s->p.config;
    const snapkv_layer *layer = &s->p.layer;
    verdict v = judge_sizes(config, layer, needs);
    int sound = !v.must;
    int voters = has_voters(config, layer, needs);
    const snapkv_rows *views[3] = {&layer->queries, &layer->keys, &layer->values};
    for (int i = 0; i < 3; i++) {
        if ((i == 0 && !voters) || (i == 2 && !views[i]->data)) {
            continue; /* not looked at */
        }
        if (!views[i]->data || (i < 2 && views[i]->dtype == SNAPKV_CUSTOM && !views[i]->decode)) {
            v.must |= BIT(SNAPKV_ERROR_NULL);
        } else if ((unsigned)views[i]->dtype > SNAPKV_CUSTOM || (i == 2 && lacks_bytes(views[i]))) {
            v.must |= BIT(SNAPKV_ERROR_OPTION);
        } else if (sound) {
            size_t n_heads = i == 0 ? layer->n_query_heads : layer->n_kv_heads;
            size_t n_rows = i == 0 ? config->window : layer->length;
            add_verdict(
                &v, judge_view(views[i], n_heads, n_rows, layer->head_dim, i < 2, s->n_table[i]));
        }
    }
    if (!is_amount(layer->scale) || !is_amount(layer->softcap) || (layer->span && layer->chunk)) {
        v.must |= BIT(SNAPKV_ERROR_OPTION);
    }
    for (size_t i = 0; i < s->n_query_heads && i < layer->n_query_heads; i++) {
        if ((layer->sink_logits && !isfinite(layer->sink_logits[i])) ||
            (layer->alibi_slopes && !isfinite(layer->alibi_slopes[i]))) {
            v.must |= BIT(SNAPKV_ERROR_OPTION);
        }
    }
    for (size_t i = 0; sound && voters && layer->query_positions && i < config->window; i++) {
        const int32_t *at = layer->query_positions + i;
        v.must |= at[0] < 0 || (i > 0 && at[0] < at[-1]) ? BIT(SNAPKV_ERROR_INDEX) : 0;
    }
    for (size_t i = 0; sound && layer->key_positions && i < layer->length; i++) {
        const int32_t *at = layer->key_positions + i;
        v.must |= at[0] < 0 || (i > 0 && at[0] <= at[-1]) ? BIT(SNAPKV_ERROR_INDEX) : 0;
    }
    return v;
}

/* A call that moves rows, too. */
static verdict judge_compression(const subject *s) {
    const snapkv_layer *layer = &s->p.layer;
    verdict v = judge_layer(s, SELECTION);
    v.must |= layer->values.data ? 0 : BIT(SNAPKV_ERROR_NULL);
    v.must |= layer->keys.data && lacks_bytes(&layer->keys) ? BIT(SNAPKV_ERROR_OPTION) : 0;
    return v;
}

/* Whether the calls read no array beyond its end, and take a bounded time: a number of heads that
 * is only absurd can't be told from a true one. */
static int can_call(const subject *s) {
    const snapkv_layer *layer = &s->p.layer;
    if (judge_sizes(&s->p.config, layer, BYPASSING).must) {
        return 1;
    }
    if (!can_read_arrays(s)) {
        return 0;
    }
    if (layer->n_query_heads <= s->n_query_heads) {
        return 1;
    }
    /* More heads than there are options: refused before those are read, or not called. */
    statuses early = BIT(SNAPKV_ERROR_NULL) | BIT(SNAPKV_ERROR_SHAPE);
    int has_options = layer->sink_logits || layer->alibi_slopes;
    return (judge_layer(s, SELECTION).must & early) != 0 ||
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
    verdict all = judge_sizes(config, layer, SELECTION);
    verdict votes = judge_sizes(config, layer, BYPASSING);
    size_t sets = snapkv_set_count(config, layer);
    size_t least = snapkv_workspace_min(config, layer);
    size_t full = snapkv_workspace_size(config, layer);
    assert_true(least <= full && (least == 0) == (full == 0));
    assert_true(!all.must || sets == 0);
    assert_true(all.must || all.may || sets == problem_set_count(&s->p));
    assert_true(!votes.must || full == 0);
    assert_true(votes.must || votes.may || full > 0);
    snapkv_config policy = *config; /* the policy alone, and the length: no workspace */
    snapkv_layer small;
    memset(&small, 0, sizeof small);
    small.n_query_heads = small.n_kv_heads = small.head_dim = 1;
    small.length = layer->length;
    policy.n_recent = problem_recent(&s->p);
    policy.window = policy.window ? 1 : 0;
    int refused = judge_sizes(&policy, &small, SELECTION).must != 0;
    assert_true(snapkv_kept_count(config, layer->length) ==
                (refused ? 0 : problem_kept_count(&s->p)));
}

static void fuzz_check(const subject *s) {
    snapkv_status status = snapkv_check(&s->p.config, &s->p.layer);
    const char *text = snapkv_explain(&s->p.config, &s->p.layer);
    verdict v = judge_layer(s, SELECTION);
    if (s->p.layer.values.data && s->p.layer.keys.data && lacks_bytes(&s->p.layer.keys)) {
        v.must |= BIT(SNAPKV_ERROR_OPTION); /* rows are to be moved */
    }
    check_verdict(status, v, "snapkv_check");
    assert_true((text == NULL) == (status == SNAPKV_OK));
    if (text) {
        assert_status(status_of_text(text), status);
    }
}

static void fuzz_vote(input *in, const subject *s) {
    const problem *p = &s->p;
    int readable = is_readable(s);
    verdict v = judge_layer(s, VOTES);
    size_t head = draw_index(in, s->n_query_heads);
    exactness e = {0, 0, 0};
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
            for (size_t j = 0; j < n && p->config.voting == SNAPKV_VOTE_MAX; j++) {
                assert_true((double)out[j] <= 1 + 1e-4);
            }
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

/* The parts of a prompt: so short a one has a single part. The values are not looked at. */
static void fuzz_parts(input *in, const subject *whole) {
    subject s = *whole;
    problem *p = &s.p;
    snapkv_layer *layer = &p->layer;
    memset(&layer->values, 0, sizeof layer->values);
    layer->first_row = 0;
    if (!can_call(&s)) {
        return;
    }
    int readable = is_readable(&s);
    verdict v = judge_layer(&s, VOTES);
    int is_sound = !v.must && !v.may;
    size_t n_heads = is_sound && p->config.sharing != SNAPKV_PER_QUERY_HEAD
                         ? layer->n_query_heads / layer->n_kv_heads
                         : 1;
    size_t n_groups = is_sound ? layer->n_query_heads / n_heads : 1;
    size_t n_all = layer->length / 6144 + (layer->length % 6144 != 0);
    size_t group = draw_index(in, n_groups);
    size_t first = draw_once_in(in, 16) ? draw_extreme(in) : 0;
    size_t n_parts = draw_once_in(in, 16) ? draw_extreme(in) : 1;
    layer->first_row = draw_once_in(in, 16) ? draw_extreme(in) : 0;
    if (group >= n_groups || first > n_all || n_parts > n_all - first ||
        (n_parts > 0 && (layer->first_row % 6144 != 0 || layer->first_row / 6144 > first))) {
        v.must |= BIT(SNAPKV_ERROR_INDEX);
    }
    if (n_parts == 0 || (!is_sound && !v.must)) { /* K isn't needed, or who knows */
        v.may |= v.must;
        v.must = 0;
    }
    exactness e = {0, 0, 0};
    if (is_sound && readable && !v.must && n_parts > 0) {
        e = judge_window(p, group * n_heads, n_heads);
        add_exactness(&v, e);
    }
    assert_int_equal(snapkv_part_count(layer->length), n_all);
    if (!(is_sound && readable) && !(v.must & ~BIT(SNAPKV_ERROR_NOT_FINITE))) {
        return;
    }
    size_t least = snapkv_part_workspace_min(&p->config, layer);
    size_t full = snapkv_part_workspace_size(&p->config, layer, 1);
    assert_true(least <= full || full == 0); /* 0: that much does not fit */
    size_t size = full == 0 || full > 1 << 24 ? 64 : draw_once_in(in, 2) ? least : full;
    if (size < least || size == 0) {
        v.must |= BIT(SNAPKV_ERROR_WORKSPACE);
    }
    guard workspace = guard_new(size / 4 * 4, GUARD_AFTER);
    size_t n = is_sound && readable ? problem_prefix(p) : 8;
    size_t window = is_sound && readable ? p->config.window : 8;
    size_t stride = n + draw_between(in, 0, 3);
    guard statistics = guard_new(n_heads * window * sizeof(snapkv_statistic), GUARD_AFTER);
    guard votes = guard_new(((n_heads - 1) * stride + n) * sizeof(float), GUARD_AFTER);
    guard sums = guard_new(votes.size, GUARD_BEFORE);
    snapkv_statistic *known = (snapkv_statistic *)(void *)statistics.data;
    float *out = (float *)(void *)votes.data;
    snapkv_status status = snapkv_part_observe(&p->config, layer, group, first, n_parts, known,
                                               workspace.data, workspace.size);
    check_verdict(status, v, "snapkv_part_observe");
    if (status == SNAPKV_OK && n_parts > 0) {
        assert_ok(snapkv_part_vote(&p->config, layer, group, first, n_parts, known,
                                   draw_once_in(in, 2), out, (float *)(void *)sums.data, stride,
                                   workspace.data, workspace.size));
        for (size_t head = 0; head < n_heads; head++) {
            float *expected = run_vote(p, group * n_heads + head,
                                       snapkv_workspace_min(&p->config, layer), GUARD_AFTER);
            assert_memory_equal(out + head * stride, expected, n * sizeof(float));
            free(expected);
        }
        if (!judge_layer(&s, SCORES).must && p->config.sharing != SNAPKV_PER_LAYER) {
            int by_max = p->config.voting == SNAPKV_VOTE_MAX;
            size_t own_size = snapkv_workspace_min(&p->config, layer);
            void *own = new_array(own_size, 1);
            float *scores = new_array(4 * n, sizeof *scores); /* scores and means, twice */
            assert_ok(snapkv_score(&p->config, layer, group, scores, scores + n, own, own_size));
            assert_ok(snapkv_part_score(&p->config, n_heads, n, out,
                                        by_max ? (float *)(void *)sums.data : out, stride,
                                        scores + 2 * n, scores + 3 * n));
            assert_memory_equal(scores + 2 * n, scores, 2 * n * sizeof *scores);
            free(scores);
            free(own);
        }
        known[draw_between(in, 0, n_heads * window - 1)].sum = draw_once_in(in, 2) ? NAN : -1;
        assert_status(snapkv_part_vote(&p->config, layer, group, first, n_parts, known, 1, out,
                                       (float *)(void *)sums.data, stride, workspace.data,
                                       workspace.size),
                      SNAPKV_ERROR_NOT_FINITE);
    } else {
        guard_check_untouched(&votes);
    }
    guard_free(&workspace);
    guard_free(&statistics);
    guard_free(&votes);
    guard_free(&sums);
}

/* Only scores about as high as the last that is kept may have changed sides. */
static void check_boundary(const problem *p, const double *exact, const int32_t *kept,
                           double tolerance) {
    size_t prefix = problem_prefix(p);
    size_t n_sink = p->config.n_sink;
    size_t n_chosen = problem_kept_count(p) - problem_recent(p) - n_sink;
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
static exactness judge_set(const subject *s, size_t set, int needs, verdict *v) {
    const problem *p = &s->p;
    exactness e = {0, 0, 0};
    if (judge_sizes(&p->config, &p->layer, needs).must) {
        return e;
    }
    if (set >= problem_set_count(p)) {
        v->must |= BIT(SNAPKV_ERROR_INDEX);
    } else if (is_readable(s) && !v->must && has_voters(&p->config, &p->layer, needs)) {
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
    verdict v = judge_layer(s, SELECTION);
    size_t set = draw_index(in, s->n_query_heads);
    exactness e = judge_set(s, set, SELECTION, &v);
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

/* Scores, a list of any length, and its coverage; the composition is snapkv_select. */
static void fuzz_steps(input *in, const subject *s) {
    const problem *p = &s->p;
    int readable = is_readable(s);
    verdict v = judge_layer(s, SCORES);
    size_t set = draw_index(in, s->n_query_heads);
    exactness e = judge_set(s, set, SCORES, &v);
    area workspace = draw_workspace(in, s, &v);
    size_t n = readable ? problem_prefix(p) : 4;
    size_t n_best = draw_between(in, 0, n);
    guard scores = guard_new(n * sizeof(float), draw_once_in(in, 2) ? GUARD_BEFORE : GUARD_AFTER);
    guard votes = guard_new(n * sizeof(float), GUARD_AFTER);
    float *score = (float *)(void *)scores.data;
    float *vote = draw_once_in(in, 4) ? NULL : (float *)(void *)votes.data;
    snapkv_status status = SNAPKV_ERROR_NULL;
    if (readable || v.must) {
        status =
            snapkv_score(&p->config, &p->layer, set, score, vote, workspace.data, workspace.size);
        check_verdict(status, v, "snapkv_score");
    }
    if (status != SNAPKV_OK) {
        guard_check_untouched(&scores);
        guard_check_untouched(&votes);
    } else {
        double tolerance = tolerance_of(e);
        double *exact = new_array(n, sizeof(double));
        if (tolerance > 0) {
            reference_scores(p, set, exact);
            check_near(score, exact, n, tolerance, "scores");
            if (vote) {
                reference_total(p, set, exact);
                check_near(vote, exact, n, tolerance, "votes");
            }
        }
        for (size_t j = 0; j < n; j++) {
            exact[j] = (double)score[j];
        }
        size_t n_sink = p->config.n_sink;
        size_t n_kept = n_sink + n_best + problem_recent(p);
        verdict keep = {0, 0};
        if (n_sink > n || n_best > n - n_sink) {
            keep.must |= BIT(SNAPKV_ERROR_CAPACITY);
            n_kept = 0;
        }
        keep.must |= (unsigned)p->config.order > 1 ? BIT(SNAPKV_ERROR_OPTION) : 0;
        guard kept = guard_new(n_kept * sizeof(int32_t), GUARD_AFTER);
        int32_t *list = (int32_t *)(void *)kept.data;
        snapkv_status kept_status = snapkv_keep(&p->config, p->layer.length, score, n_best, list);
        check_verdict(kept_status, keep, "snapkv_keep");
        if (kept_status != SNAPKV_OK) {
            guard_check_untouched(&kept);
        } else {
            int32_t *expected = new_array(n_kept, sizeof *expected);
            reference_keep(p, exact, n_best, expected);
            assert_indices(list, expected, n_kept);
            free(expected);
            if (vote) {
                float coverage = -1;
                assert_ok(
                    snapkv_coverage(&p->config, p->layer.length, vote, list, n_kept, &coverage));
                assert_true(coverage >= 0 && coverage <= 1);
                if (tolerance > 0) {
                    assert_close(coverage, reference_coverage(p, set, list, n_kept), tolerance);
                }
            }
        }
        if (!judge_layer(s, SELECTION).must && has_voters(&p->config, &p->layer, SELECTION)) {
            size_t n_all = problem_kept_count(p);
            int32_t *selected = new_array(n_all, sizeof *selected);
            int32_t *composed = new_array(n_all, sizeof *composed);
            float *same = new_array(n, sizeof *same);
            snapkv_selection selection;
            float coverage = -1;
            assert_ok(snapkv_select(&p->config, &p->layer, set, selected, same, &selection,
                                    workspace.data, workspace.size));
            assert_memory_equal(same, score, n * sizeof *same);
            assert_ok(snapkv_keep(&p->config, p->layer.length, score,
                                  n_all - n_sink - problem_recent(p), composed));
            assert_memory_equal(composed, selected, n_all * sizeof *selected);
            if (vote) {
                assert_ok(
                    snapkv_coverage(&p->config, p->layer.length, vote, composed, n_all, &coverage));
                assert_true(coverage == selection.coverage);
            }
            free(selected);
            free(composed);
            free(same);
        }
        guard_free(&kept);
        free(exact);
    }
    guard_free(&votes);
    guard_free(&scores);
    guard_free(&workspace.memory);
}

/* The bytes that a gather moves of a row of keys or values. */
static size_t gathered_bytes(const packed *rows) {
    return rows->row_bytes;
}

/* ---- destinations ---------------------------------------------------------------------------- */

typedef struct destination {
    guard memory, table;
    snapkv_rows_out out;
} destination;

/* Where a slot of an output head lies, found without the library. */
static unsigned char *slot_address(const snapkv_rows_out *out, size_t head, size_t slot) {
    unsigned char *base = out->data;
    if (out->block_table) {
        base += (size_t)out->block_table[slot / out->block_rows] * out->block_stride;
        slot %= out->block_rows;
    }
    return base + head * out->head_stride + slot * out->row_stride;
}

/* An output as a view. */
static snapkv_rows view_of(const snapkv_rows_out *out, size_t bytes) {
    snapkv_rows view;
    memset(&view, 0, sizeof view);
    view.data = out->data;
    view.row_stride = out->row_stride;
    view.head_stride = out->head_stride;
    view.row_bytes = bytes;
    view.dtype = SNAPKV_CUSTOM;
    view.block_table = out->block_table;
    view.block_rows = out->block_rows;
    view.block_stride = out->block_stride;
    return view;
}

/* What is wrong with an output, whatever it is, is OUTPUT. A table names no page twice. */
static verdict judge_output(const snapkv_rows_out *out, size_t first_head, size_t n_heads,
                            size_t n_slots, size_t bytes, size_t n_table) {
    snapkv_rows view = view_of(out, bytes);
    verdict v = {0, 0};
    verdict seen = judge_view(&view, n_heads, n_slots, 0, 0, n_table);
    for (size_t i = 0; out->block_table && out->block_rows > 0 && !seen.must && i < n_slots; i++) {
        for (size_t j = i % out->block_rows; j < i; j += out->block_rows) {
            if (out->block_table[j / out->block_rows] == out->block_table[i / out->block_rows]) {
                seen.must |= BIT(SNAPKV_ERROR_OUTPUT);
            }
        }
    }
    wide offset = (wide)first_head * out->head_stride;
    v.must = seen.must || offset >= PTRDIFF_MAX ? BIT(SNAPKV_ERROR_OUTPUT) : 0;
    v.may = seen.may ? BIT(SNAPKV_ERROR_OUTPUT) : 0;
    return v;
}

/* Contiguous or paged, for output heads first .. first + n_heads - 1 of a view, or with a buffer
 * for this one head alone. Seldom with a fault: then nothing is written, or it is one after all. */
static destination draw_destination(input *in, size_t first, size_t n_heads, size_t n_slots,
                                    size_t bytes, verdict *v) {
    destination d;
    memset(&d, 0, sizeof d);
    int paged = draw_once_in(in, 3);
    int alone = n_heads == 1 && draw_once_in(in, 3);
    size_t n_all = alone ? 1 : first + n_heads;
    size_t stride = bytes + draw_between(in, 0, 3);
    size_t in_block = paged ? draw_between(in, 1, 12) : n_slots;
    size_t n_blocks = (n_slots + in_block - 1) / in_block;
    size_t n_pool = paged ? n_blocks + draw_between(in, 0, 2) : 1;
    d.out.row_stride = stride;
    d.out.head_stride = alone ? 0 : in_block * stride;
    size_t block = n_all * in_block * stride;
    d.memory = guard_new(n_pool * block - (stride - bytes),
                         draw_once_in(in, 2) ? GUARD_BEFORE : GUARD_AFTER);
    d.out.data = d.memory.data;
    d.table = guard_new(paged ? n_blocks * sizeof(int32_t) : 0, GUARD_AFTER);
    if (paged) {
        int32_t *table = (int32_t *)(void *)d.table.data;
        size_t shift = draw_between(in, 0, n_pool - 1);
        int backwards = draw_once_in(in, 2);
        for (size_t i = 0; i < n_blocks; i++) {
            size_t at = (i + shift) % n_pool;
            table[i] = (int32_t)(backwards ? n_pool - 1 - at : at);
        }
        d.out.block_table = table;
        d.out.block_rows = in_block;
        d.out.block_stride = block;
    }
    if (draw_once_in(in, 12)) {
        snapkv_rows_out whole = d.out;
        int32_t *entry = (int32_t *)(void *)d.table.data + draw_between(in, 0, n_blocks - 1);
        int32_t page = paged ? *entry : 0;
        size_t *fields[] = {&d.out.row_stride, &d.out.head_stride, &d.out.block_stride};
        size_t which = draw_between(in, 0, paged ? 4 : 1);
        if (which < COUNT_OF(fields)) {
            *fields[which] = draw_change(in, *fields[which]);
        } else if (which == 3) {
            d.out.block_rows = 0;
        } else {
            *entry =
                draw_once_in(in, 2) ? (int32_t)draw_bytes(in, 4) : *(int32_t *)(void *)d.table.data;
        }
        verdict bad = judge_output(&d.out, first, n_heads, n_slots, bytes, n_blocks);
        if (!bad.must) { /* legal perhaps, and somewhere else */
            d.out = whole;
            if (paged) {
                *entry = page;
            }
        }
        v->must |= bad.must;
    }
    guard_freeze(&d.table);
    return d;
}

static void free_destination(destination *d) {
    guard_free(&d->memory);
    guard_free(&d->table);
}

/* The slots of an output head against the rows that kept lists, as they were in `memory`. */
static void check_gathered(const packed *rows, const unsigned char *memory, size_t source,
                           const snapkv_rows_out *out, size_t head, const int32_t *kept, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const unsigned char *row =
            memory + (packed_row(rows, source, (size_t)kept[i]) - rows->memory.data);
        assert_memory_equal(slot_address(out, head, i), row, gathered_bytes(rows));
    }
}

/* What a call writes: output heads of some sets. */
typedef struct moves {
    size_t first_set, n_sets;
    size_t first_head, n_heads; /* of the outputs */
    size_t group;               /* outputs that read one head */
} moves;

static moves moves_of(const subject *s, size_t first_set, size_t n_sets) {
    snapkv_sharing sharing = s->p.config.sharing;
    moves m = {first_set, n_sets, first_set, n_sets, 1};
    if (sharing == SNAPKV_PER_LAYER) {
        m.first_head = 0;
        m.n_heads = s->n_kv_heads;
    } else if (sharing == SNAPKV_PER_QUERY_HEAD) {
        m.group = s->n_query_heads / s->n_kv_heads;
    }
    return m;
}

static void check_moves(const subject *s, moves m, const destination outs[2], const int32_t *kept,
                        size_t n_kept) {
    const packed *rows[2] = {&s->p.packed_keys, &s->p.packed_values};
    size_t heads_per_set = m.n_heads / m.n_sets;
    for (size_t i = 0; i < m.n_heads; i++) {
        size_t head = m.first_head + i;
        for (int j = 0; j < 2; j++) {
            check_gathered(rows[j], rows[j]->memory.data, head / m.group, &outs[j].out, head,
                           kept + i / heads_per_set * n_kept, n_kept);
        }
    }
}

/* One set with snapkv_compress, or all of them with snapkv_compress_layer. */
static void fuzz_compress(input *in, const subject *s) {
    const problem *p = &s->p;
    int readable = is_readable(s);
    int whole_layer = draw_once_in(in, 2);
    verdict v = judge_compression(s);
    size_t n_sets = whole_layer ? problem_set_count(p) : 1;
    size_t set = whole_layer ? 0 : draw_index(in, s->n_query_heads);
    exactness e = {0, 0, 0};
    for (size_t i = 0; i < n_sets && i < 16; i++) { /* more, in layers that aren't ours */
        e = judge_set(s, set + i, SELECTION, &v);
    }
    int served = readable && (v.must & ~BIT(SNAPKV_ERROR_NOT_FINITE)) == 0;
    size_t n_kept = served ? problem_kept_count(p) : 4;
    moves m = moves_of(s, served ? set : 0, served ? n_sets : 1);
    const packed *rows[2] = {&p->packed_keys, &p->packed_values};
    destination outs[2];
    for (int i = 0; i < 2; i++) {
        verdict unserved = {0, 0};
        outs[i] = draw_destination(in, m.first_head, m.n_heads, n_kept, gathered_bytes(rows[i]),
                                   served ? &v : &unserved);
    }
    if (!served) { /* other heads and slots than the outputs were made for */
        v.may |= BIT(SNAPKV_ERROR_OUTPUT);
    }
    int is_asked = readable || v.must; /* else the outputs fit no layer */
    area workspace = draw_workspace(in, s, &v);
    if (is_asked) {
        guard kept = guard_new(m.n_sets * n_kept * sizeof(int32_t), GUARD_AFTER);
        guard marks = guard_new(m.n_sets * sizeof(snapkv_selection), GUARD_AFTER);
        int32_t *list = (int32_t *)(void *)kept.data;
        snapkv_selection *selections =
            draw_once_in(in, 8) ? NULL : (snapkv_selection *)(void *)marks.data;
        snapkv_status status =
            whole_layer
                ? snapkv_compress_layer(&p->config, &p->layer, list, &outs[0].out, &outs[1].out,
                                        selections, workspace.data, workspace.size)
                : snapkv_compress(&p->config, &p->layer, set, list, &outs[0].out, &outs[1].out,
                                  selections, workspace.data, workspace.size);
        check_verdict(status, v, whole_layer ? "snapkv_compress_layer" : "snapkv_compress");
        if (status != SNAPKV_OK) {
            if (!whole_layer || status != SNAPKV_ERROR_NOT_FINITE) {
                guard_check_untouched(&kept);
                guard_check_untouched(&marks);
            }
            guard_check_untouched(&outs[0].memory);
            guard_check_untouched(&outs[1].memory);
        } else {
            guard plain = guard_new(n_kept * sizeof(int32_t), GUARD_AFTER);
            guard scores = guard_new(problem_prefix(p) * sizeof(float), GUARD_AFTER);
            for (size_t i = 0; i < m.n_sets; i++) {
                snapkv_selection same = untouched;
                assert_ok(snapkv_select(&p->config, &p->layer, set + i,
                                        (int32_t *)(void *)plain.data, (float *)(void *)scores.data,
                                        &same, workspace.data, workspace.size));
                assert_memory_equal(plain.data, list + i * n_kept, plain.size);
                if (selections) {
                    assert_true(same.coverage == selections[i].coverage &&
                                same.n_kept == selections[i].n_kept &&
                                same.bypassed == selections[i].bypassed);
                }
                if (m.n_sets == 1) {
                    check_selected(p, set, list, (const float *)(const void *)scores.data, &same,
                                   e);
                }
            }
            guard_free(&plain);
            guard_free(&scores);
            check_moves(s, m, outs, list, n_kept);
        }
        guard_free(&kept);
        guard_free(&marks);
    }
    free_destination(&outs[0]);
    free_destination(&outs[1]);
    guard_free(&workspace.memory);
}

/* A list of any length and order, one set. */
static void fuzz_gather(input *in, const subject *s) {
    const problem *p = &s->p;
    const snapkv_layer *layer = &p->layer;
    const snapkv_rows *views[3] = {&layer->keys, &layer->values, &layer->queries};
    int readable = is_readable(s);
    size_t set = draw_index(in, s->n_query_heads);
    size_t n_kept = draw_between(in, 0, draw_once_in(in, 4) ? 90 : 20);
    guard kept = guard_new(n_kept * sizeof(int32_t), GUARD_AFTER);
    int32_t *list = (int32_t *)(void *)kept.data;
    int ascends = draw_once_in(in, 2);
    int inside = 1;
    for (size_t i = 0; i < n_kept; i++) {
        list[i] = draw_once_in(in, 64) ? (int32_t)draw_bytes(in, 4)
                  : ascends            ? (int32_t)(i * s->length / n_kept)
                                       : (int32_t)draw_between(in, 0, s->length - 1);
        inside = inside && list[i] >= 0 && (size_t)list[i] < layer->length;
    }
    guard_freeze(&kept);

    /* Of the policy only the sharing, and no workspace. */
    snapkv_config policy = make_config(1, 2, 1);
    snapkv_layer sizes = *layer;
    policy.sharing = p->config.sharing;
    sizes.head_dim = sizes.head_dim ? 1 : 0;
    sizes.first_row = 0;
    if (sizes.n_kv_heads > 0 && sizes.n_query_heads % sizes.n_kv_heads == 0) {
        sizes.n_query_heads = sizes.n_query_heads ? sizes.n_kv_heads : 0;
    }
    verdict v = judge_sizes(&policy, &sizes, BYPASSING);
    int sound = !v.must;
    int voters =
        layer->queries.data && p->config.window > 0 && has_voters(&p->config, layer, BYPASSING);
    for (int i = 0; i < (voters ? 3 : 2); i++) {
        if (!views[i]->data) {
            v.must |= BIT(SNAPKV_ERROR_NULL);
        } else if ((unsigned)views[i]->dtype > SNAPKV_CUSTOM || (i < 2 && lacks_bytes(views[i]))) {
            v.must |= BIT(SNAPKV_ERROR_OPTION);
        } else if (sound && can_read_arrays(s)) {
            add_verdict(&v, judge_view(views[i], i == 2 ? layer->n_query_heads : layer->n_kv_heads,
                                       i == 2 ? p->config.window : layer->length, layer->head_dim,
                                       i != 1, s->n_table[(i + 1) % 3]));
        }
    }
    if (!can_read_arrays(s)) {
        guard_free(&kept);
        return;
    }
    if (sound && (layer->first_row != 0 || set >= problem_set_count(p) || !inside)) {
        v.must |= BIT(SNAPKV_ERROR_INDEX);
    }
    int served = readable && (v.must & ~BIT(SNAPKV_ERROR_NOT_FINITE)) == 0;
    moves m = moves_of(s, served ? set : 0, 1);
    const packed *rows[2] = {&p->packed_keys, &p->packed_values};
    destination outs[2];
    for (int i = 0; i < 2; i++) {
        verdict unserved = {0, 0};
        outs[i] = draw_destination(in, m.first_head, m.n_heads, n_kept ? n_kept : 1,
                                   gathered_bytes(rows[i]), served && n_kept ? &v : &unserved);
    }
    if (!served) {
        v.may |= BIT(SNAPKV_ERROR_OUTPUT);
    }
    if (readable || v.must) {
        snapkv_status status =
            snapkv_gather(&p->config, layer, set, list, n_kept, &outs[0].out, &outs[1].out);
        check_verdict(status, v, "snapkv_gather");
        if (status != SNAPKV_OK || n_kept == 0) {
            guard_check_untouched(&outs[0].memory);
            guard_check_untouched(&outs[1].memory);
        } else {
            check_moves(s, m, outs, list, n_kept);
        }
    }
    free_destination(&outs[0]);
    free_destination(&outs[1]);
    guard_free(&kept);
}

/* ---- compaction inside the memory of the layer ----------------------------------------------- */

static int share_bytes(const unsigned char *a, size_t a_bytes, const unsigned char *b,
                       size_t b_bytes) {
    uintptr_t x = (uintptr_t)a;
    uintptr_t y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

/* Whether an output with this list is exactly the memory that its view reads. */
static int is_exact(const subject *s, moves m, int ascends, const snapkv_rows_out *out,
                    const snapkv_rows *view, size_t n_kept) {
    if (!ascends || m.group > 1 || out->data != view->data || out->row_stride != view->row_stride ||
        out->head_stride != view->head_stride || !out->block_table != !view->block_table ||
        n_kept > s->length) {
        return 0;
    }
    for (size_t i = 0; out->block_table && i < n_kept; i++) {
        if (out->block_rows != view->block_rows || out->block_stride != view->block_stride ||
            out->block_table[i / out->block_rows] != view->block_table[i / out->block_rows]) {
            return 0;
        }
    }
    return 1;
}

/* Destination i is the cache itself, in place or moved by some rows or bytes, in pages too: with
 * snapkv_compress, snapkv_compress_layer, or snapkv_gather and a list. */
static void fuzz_in_place(input *in, subject *s) {
    problem *p = &s->p;
    verdict v = judge_compression(s);
    if (!is_readable(s) || v.must || problem_set_count(p) == 0) {
        return;
    }
    enum { ONE_SET, WHOLE_LAYER, LIST } call;
    call = draw_between(in, 0, 2) == 0 ? ONE_SET : draw_once_in(in, 2) ? LIST : WHOLE_LAYER;
    size_t n_sets = call == WHOLE_LAYER ? problem_set_count(p) : 1;
    size_t set = call == WHOLE_LAYER ? 0 : draw_between(in, 0, problem_set_count(p) - 1);
    for (size_t i = 0; i < n_sets && call != LIST; i++) {
        judge_set(s, set + i, SELECTION, &v);
    }
    moves m = moves_of(s, set, n_sets);
    size_t n_kept = call == LIST ? draw_between(in, 1, s->length) : problem_kept_count(p);
    int ascends = call == LIST ? !draw_once_in(in, 4)
                               : p->config.order == SNAPKV_BY_POSITION ||
                                     !has_voters(&p->config, &p->layer, SELECTION);
    guard kept = guard_new(n_sets * n_kept * sizeof(int32_t), GUARD_AFTER);
    int32_t *list = (int32_t *)(void *)kept.data;
    for (size_t i = 0; i < n_kept && call == LIST; i++) {
        size_t at = i * s->length / n_kept;
        list[i] = (int32_t)(ascends ? at : s->length - 1 - at);
    }
    ascends = ascends || (call == LIST && n_kept == 1);
    packed *rows[3] = {&p->packed_keys, &p->packed_values, &p->packed_queries};
    const snapkv_rows *views[3] = {&p->layer.keys, &p->layer.values, &p->layer.queries};
    snapkv_rows_out outs[2];
    unsigned char *before[3];
    int exact[2];
    for (int i = 0; i < 2; i++) {
        int from = (i + (draw_once_in(in, 8) ? (int)draw_between(in, 1, 2) : 0)) % 3;
        packed *into = rows[from];
        outs[i] = snapkv_rows_in_place(views[from]);
        outs[i].data =
            (unsigned char *)outs[i].data + (draw_once_in(in, 3) ? draw_between(in, 0, 255) : 0);
        if (draw_once_in(in, 8)) {
            outs[i].row_stride += draw_between(in, 1, 4);
        }
        if (outs[i].block_table && n_kept > into->n_rows) {
            guard_free(&kept); /* the table is too short */
            return;
        }
        snapkv_rows view = view_of(&outs[i], gathered_bytes(rows[i]));
        if (judge_view(&view, m.n_heads, n_kept, 0, 0, into->n_rows).must) {
            guard_free(&kept); /* fuzz_compress() looks at those */
            return;
        }
        for (size_t head = m.first_head; head < m.first_head + m.n_heads; head++) {
            for (size_t slot = 0; slot < n_kept; slot++) {
                wide end = (wide)(uintptr_t)outs[i].data + (wide)head * outs[i].head_stride;
                if (outs[i].block_table) {
                    end += (wide)outs[i].block_table[slot / outs[i].block_rows] *
                               outs[i].block_stride +
                           (wide)(slot % outs[i].block_rows) * outs[i].row_stride;
                } else {
                    end += (wide)slot * outs[i].row_stride;
                }
                end += gathered_bytes(rows[i]);
                if (end > (uintptr_t)into->memory.data + into->memory.size) {
                    guard_free(&kept);
                    return;
                }
            }
        }
        exact[i] = is_exact(s, m, ascends, &outs[i], views[i], n_kept);
    }

    /* Every slot against every row of the layer, and of the other output. */
    int voters = has_voters(&p->config, &p->layer, BYPASSING);
    for (int i = 0; i < 2; i++) {
        for (size_t slot = 0; slot < m.n_heads * n_kept; slot++) {
            size_t head = m.first_head + slot / n_kept;
            unsigned char *to = slot_address(&outs[i], head, slot % n_kept);
            for (int j = 0; j < (voters ? 3 : 2); j++) {
                for (size_t h = 0; h < rows[j]->n_heads && !(exact[i] && i == j); h++) {
                    for (size_t row = 0; row < rows[j]->n_rows; row++) {
                        if (share_bytes(to, gathered_bytes(rows[i]), packed_row(rows[j], h, row),
                                        rows[j]->row_bytes)) {
                            v.must |= BIT(SNAPKV_ERROR_ALIAS);
                        }
                    }
                }
            }
            for (size_t other = 0; i == 0 && other < m.n_heads * n_kept; other++) {
                unsigned char *value =
                    slot_address(&outs[1], m.first_head + other / n_kept, other % n_kept);
                if (share_bytes(to, gathered_bytes(rows[0]), value, gathered_bytes(rows[1]))) {
                    v.must |= BIT(SNAPKV_ERROR_ALIAS);
                }
            }
        }
    }
    /* Both exactly in place must work; else the memory between rows is not for others. */
    if (exact[0] && exact[1]) {
        assert_true((v.must & BIT(SNAPKV_ERROR_ALIAS)) == 0);
    } else {
        v.may |= BIT(SNAPKV_ERROR_ALIAS) | BIT(SNAPKV_ERROR_OUTPUT);
    }

    for (int j = 0; j < 3; j++) {
        before[j] = new_array(rows[j]->memory.size, 1);
        memcpy(before[j], rows[j]->memory.data, rows[j]->memory.size);
        guard_thaw(&rows[j]->memory);
    }
    size_t size = snapkv_workspace_size(&p->config, &p->layer);
    guard workspace = guard_new(size, GUARD_AFTER);
    size -= size % sizeof(float);
    snapkv_status status =
        call == LIST ? snapkv_gather(&p->config, &p->layer, set, list, n_kept, &outs[0], &outs[1])
        : call == WHOLE_LAYER ? snapkv_compress_layer(&p->config, &p->layer, list, &outs[0],
                                                      &outs[1], NULL, workspace.data, size)
                              : snapkv_compress(&p->config, &p->layer, set, list, &outs[0],
                                                &outs[1], NULL, workspace.data, size);
    check_verdict(status, v, "a gather in place");
    if (status == SNAPKV_OK) {
        size_t heads_per_set = m.n_heads / m.n_sets;
        for (size_t i = 0; i < m.n_heads; i++) {
            size_t head = m.first_head + i;
            for (int j = 0; j < 2; j++) {
                check_gathered(rows[j], before[j], head / m.group, &outs[j], head,
                               list + i / heads_per_set * n_kept, n_kept);
            }
        }
        /* Bytes that belong to no slot stay. */
        for (int i = 0; i < 2; i++) {
            for (size_t slot = 0; slot < m.n_heads * n_kept; slot++) {
                unsigned char *to =
                    slot_address(&outs[i], m.first_head + slot / n_kept, slot % n_kept);
                for (int j = 0; j < 3; j++) {
                    unsigned char *memory = rows[j]->memory.data;
                    if (to >= memory && to < memory + rows[j]->memory.size) {
                        memcpy(before[j] + (to - memory), to, gathered_bytes(rows[i]));
                    }
                }
            }
        }
    }
    for (int j = 0; j < 3; j++) {
        assert_memory_equal(rows[j]->memory.data, before[j], rows[j]->memory.size);
        free(before[j]);
    }
    guard_free(&workspace);
    guard_free(&kept);
}

static void fuzz_retained_mass(input *in, const subject *s) {
    const problem *p = &s->p;
    int readable = is_readable(s);
    verdict v = judge_layer(s, 0);
    size_t head = draw_index(in, s->n_query_heads);
    size_t last = problem_position(p, s->length - 1);
    size_t position = last + draw_between(in, 0, 20);
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
    if (readable && !v.must) {
        last = problem_position(p, p->layer.length - 1);
    } else {
        last = p->layer.key_positions ? 0 : p->layer.length - 1;
        v.may |= p->layer.key_positions ? BIT(SNAPKV_ERROR_INDEX) : 0;
    }
    if (head >= p->layer.n_query_heads || position < last || position > INT32_MAX || !inside) {
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
            size_t first = p->layer.chunk ? position - position % p->layer.chunk
                           : p->layer.span && p->layer.span <= position
                               ? position - p->layer.span + 1
                               : 0;
            int sees = last >= first;
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
    size_t count = 0;
    snapkv_list few = {&number, 1};
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
    check_verdict(snapkv_compress_layer(&p->config, &p->layer, NULL, &out, &out, NULL, &number, 4),
                  v, "compress_layer");
    check_verdict(snapkv_compress_layer(&p->config, NULL, &kept, &out, &out, NULL, &number, 4), v,
                  "compress_layer");
    check_verdict(snapkv_gather(&p->config, &p->layer, 0, NULL, 1, &out, &out), v, "gather");
    check_verdict(snapkv_gather(&p->config, &p->layer, 0, &kept, 1, &out, NULL), v, "gather");
    check_verdict(snapkv_score(&p->config, &p->layer, 0, NULL, NULL, &number, 4), v, "score");
    check_verdict(snapkv_score(NULL, &p->layer, 0, &number, NULL, &number, 4), v, "score");
    check_verdict(snapkv_keep(&p->config, 9, NULL, 1, &kept), v, "keep");
    check_verdict(snapkv_keep(NULL, 9, &number, 1, &kept), v, "keep");
    check_verdict(snapkv_coverage(&p->config, 9, &number, NULL, 1, &number), v, "coverage");
    check_verdict(snapkv_coverage(&p->config, 9, &number, &kept, 1, NULL), v, "coverage");
    check_verdict(snapkv_allocate(NULL, 1, 1, 0, &count), v, "allocate");
    check_verdict(snapkv_allocate(&few, 1, 1, 0, NULL), v, "allocate");
    assert_true(snapkv_explain(NULL, &p->layer) && snapkv_explain(&p->config, NULL));
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
        fuzz_check(&s);
        fuzz_vote(&in, &s);
        fuzz_parts(&in, &s);
        fuzz_select(&in, &s);
        fuzz_steps(&in, &s);
        fuzz_compress(&in, &s);
        fuzz_gather(&in, &s);
        fuzz_retained_mass(&in, &s);
        fuzz_in_place(&in, &s);
    }
    free_subject(&s);
    return 0;
}
