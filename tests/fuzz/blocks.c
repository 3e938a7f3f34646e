#define _DEFAULT_SOURCE /* setenv */
#include "blocks.h"
#include "guard.h"
#include "judge.h"
#include "reference.h"

#include <float.h>
#include <math.h>

static float *floats(const guard *g) {
    return (float *)(void *)g->data;
}

static int32_t *ints(const guard *g) {
    return (int32_t *)(void *)g->data;
}

static guard_side draw_side(input *in) {
    return draw_once_in(in, 2) ? GUARD_BEFORE : GUARD_AFTER;
}

/* Numbers of one kind, a few of them of any bits. */
static guard draw_floats(input *in, size_t n) {
    guard g = guard_new(n * sizeof(float), draw_side(in));
    splitmix random = {draw_bytes(in, 2)};
    size_t kind = draw_between(in, 0, 4);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)(splitmix_next(&random) >> 32);
        float x = splitmix_float(&random, 2);
        if (kind == 1) {
            x = (float)splitmix_between(&random, 0, 2); /* ties */
        } else if (kind == 2) {
            bits = (bits & 0x7F800000) == 0x7F800000 ? bits & 0xBFFFFFFF : bits;
            memcpy(&x, &bits, sizeof x);
        } else if (kind == 3) {
            x = draw_float_bits(in);
        } else if (kind == 4) {
            bits = 0x3F800000 + (bits & 3); /* neighbours */
            memcpy(&x, &bits, sizeof x);
        }
        floats(&g)[i] = x;
    }
    for (size_t odd = draw_once_in(in, 3) ? draw_between(in, 1, 3) : 0; odd > 0 && n > 0; odd--) {
        floats(&g)[draw_between(in, 0, n - 1)] = draw_float_bits(in);
    }
    return g;
}

static int all_finite(const float *numbers, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(numbers[i])) {
            return 0;
        }
    }
    return 1;
}

/* What both take: n floats, of which the caller may say that there are more. */
static verdict judge_floats(const float *numbers, size_t n, size_t claimed) {
    verdict v = {0, 0};
    if (claimed == 0 || claimed > INT32_MAX) {
        v.must |= BIT(SNAPKV_ERROR_SHAPE);
    } else if (claimed == n && !all_finite(numbers, n)) {
        v.must |= BIT(SNAPKV_ERROR_NOT_FINITE);
    }
    return v;
}

static void check_pooled(const float *votes, const float *scores, size_t n, size_t kernel_size,
                         snapkv_pooling pooling) {
    double *exact = new_array(n, sizeof(double));
    double *expected = new_array(n, sizeof(double));
    double *sizes = new_array(n, sizeof(double));
    for (size_t j = 0; j < n; j++) {
        exact[j] = (double)votes[j];
    }
    reference_pool(exact, n, kernel_size, pooling, expected);
    for (size_t j = 0; j < n; j++) {
        exact[j] = fabs(exact[j]);
    }
    reference_pool(exact, n, kernel_size, SNAPKV_POOL_AVG, sizes);
    for (size_t j = 0; j < n; j++) {
        double size = sizes[j] * (double)kernel_size;
        if (pooling == SNAPKV_POOL_MAX) {
            assert_true((double)scores[j] == expected[j]);
        } else if (size < (double)FLT_MAX * 0.99) { /* else a partial sum may be infinite */
            assert_close(scores[j], expected[j], 1e-7 * (double)(n + 3) * sizes[j] + 3e-45);
        }
    }
    free(exact);
    free(expected);
    free(sizes);
}

static void fuzz_pool(input *in) {
    size_t n = draw_between(in, 0, draw_once_in(in, 4) ? 300 : 40);
    size_t claimed = draw_once_in(in, 16) ? draw_extreme(in) : n;
    size_t kernel_size = draw_once_in(in, 8) ? draw_extreme(in) : 2 * draw_between(in, 0, 20) + 1;
    snapkv_pooling pooling = (snapkv_pooling)draw_between(in, 0, draw_once_in(in, 16) ? 3 : 1);
    guard votes = draw_floats(in, n);
    guard scores = guard_new(n * sizeof(float), draw_side(in));
    verdict v = judge_floats(floats(&votes), n, claimed);
    if (kernel_size % 2 == 0) {
        v.must |= BIT(SNAPKV_ERROR_KERNEL);
    }
    if ((unsigned)pooling > 1) {
        v.must |= BIT(SNAPKV_ERROR_OPTION);
    }
    float *in_place = floats(&votes);
    if (n > 0 && claimed == n && draw_once_in(in, 16)) { /* not served, whole or in part */
        in_place += draw_between(in, 0, n - 1);
        v.must |= BIT(SNAPKV_ERROR_ALIAS);
        guard_freeze(&votes);
        check_verdict(snapkv_pool(floats(&votes), n, kernel_size, pooling, in_place), v,
                      "snapkv_pool in place");
    } else if (claimed == n || v.must & ~BIT(SNAPKV_ERROR_NOT_FINITE)) {
        guard_freeze(&votes);
        snapkv_status status =
            snapkv_pool(floats(&votes), claimed, kernel_size, pooling, floats(&scores));
        check_verdict(status, v, "snapkv_pool");
        if (status == SNAPKV_OK) {
            check_pooled(floats(&votes), floats(&scores), n, kernel_size, pooling);
        } else {
            guard_check_untouched(&scores);
        }
        assert_status(snapkv_pool(NULL, n, kernel_size, pooling, floats(&scores)),
                      SNAPKV_ERROR_NULL);
        assert_status(snapkv_pool(floats(&votes), n, kernel_size, pooling, NULL),
                      SNAPKV_ERROR_NULL);
    }
    guard_free(&votes);
    guard_free(&scores);
}

static void fuzz_top_k(input *in) {
    size_t n = draw_between(in, 0, draw_once_in(in, 4) ? 2000 : 60);
    n += draw_once_in(in, 32) ? 16384 : 0; /* where a sample says where to look */
    size_t k = draw_between(in, 0, n);
    size_t claimed = draw_once_in(in, 16) ? draw_extreme(in) : n;
    size_t claimed_k = draw_once_in(in, 16) ? draw_extreme(in) : k;
    snapkv_order order = (snapkv_order)draw_between(in, 0, draw_once_in(in, 16) ? 3 : 1);
    guard scores = draw_floats(in, n);
    guard indices = guard_new(k * sizeof(int32_t), draw_side(in));
    verdict v = judge_floats(floats(&scores), n, claimed);
    if (claimed_k > claimed) {
        v.must |= BIT(SNAPKV_ERROR_SHAPE);
    }
    if ((unsigned)order > 1) {
        v.must |= BIT(SNAPKV_ERROR_OPTION);
    }
    guard_freeze(&scores);
    if (draw_once_in(in, 16) && k > 0 && claimed == n && claimed_k == k) {
        v.must |= BIT(SNAPKV_ERROR_ALIAS);
        int32_t *inside = (int32_t *)(void *)scores.data + draw_between(in, 0, n - 1);
        check_verdict(snapkv_top_k(floats(&scores), n, k, order, inside), v, "snapkv_top_k alias");
    } else if ((claimed == n && claimed_k == k) || v.must & ~BIT(SNAPKV_ERROR_NOT_FINITE)) {
        snapkv_status status =
            snapkv_top_k(floats(&scores), claimed, claimed_k, order, ints(&indices));
        check_verdict(status, v, "snapkv_top_k");
        if (status == SNAPKV_OK) {
            double *exact = new_array(n, sizeof(double));
            int32_t *expected = new_array(k, sizeof(int32_t));
            for (size_t i = 0; i < n; i++) {
                exact[i] = (double)floats(&scores)[i];
            }
            reference_top_k(exact, n, k, expected);
            if (order == SNAPKV_BY_POSITION) {
                sort_ascending(expected, k);
            }
            assert_indices(ints(&indices), expected, k);
            free(exact);
            free(expected);
        } else {
            guard_check_untouched(&indices);
        }
        assert_status(snapkv_top_k(NULL, n, k, order, ints(&indices)), SNAPKV_ERROR_NULL);
        assert_status(snapkv_top_k(floats(&scores), n, k, order, NULL), SNAPKV_ERROR_NULL);
    }
    guard_free(&scores);
    guard_free(&indices);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* A list of the scores of any prompt, and the share of any votes that a list holds. */
static void fuzz_keep(input *in) {
    problem p;
    memset(&p, 0, sizeof p);
    size_t length = draw_between(in, 1, draw_once_in(in, 4) ? 2000 : 60);
    length += draw_once_in(in, 16) ? 8192 : 0; /* more than are marked at a time */
    size_t recent = draw_between(in, 0, draw_once_in(in, 8) ? length + 2 : length);
    p.config = make_config(draw_between(in, draw_once_in(in, 16) ? 0 : 1, 40), 0, 0);
    p.config.n_recent = draw_once_in(in, 2) ? recent : 0;
    p.config.order = (snapkv_order)draw_between(in, 0, draw_once_in(in, 16) ? 3 : 1);
    p.layer.length = length;
    size_t n = problem_prefix(&p);
    p.config.n_sink = draw_once_in(in, 2) ? draw_between(in, 0, n) : 0;
    size_t n_best = draw_between(in, 0, n - p.config.n_sink);
    size_t n_kept = p.config.n_sink + n_best + length - n;
    guard scores = draw_floats(in, n);
    guard kept = guard_new(n_kept * sizeof(int32_t), draw_side(in));
    verdict v = {0, 0};
    if (p.config.window == 0 || problem_recent(&p) > length) {
        v.must |= BIT(SNAPKV_ERROR_WINDOW);
    }
    verdict whole = v;
    if (!all_finite(floats(&scores), n)) {
        v.must |= BIT(SNAPKV_ERROR_NOT_FINITE);
    }
    size_t claimed = length;
    size_t claimed_best = n_best;
    if (draw_once_in(in, 8)) { /* a length is believed, and so it is refused or not asked */
        size_t *field = draw_once_in(in, 2) ? &claimed_best : &claimed;
        *field = field == &claimed ? 0 : draw_extreme(in);
        if (claimed == 0 || claimed > INT32_MAX) {
            v.must |= BIT(SNAPKV_ERROR_SHAPE);
        } else if (claimed_best > n - p.config.n_sink) {
            v.must |= BIT(SNAPKV_ERROR_CAPACITY);
        } else {
            claimed_best = n_best;
        }
    }
    verdict listed = v;
    listed.must |= (unsigned)p.config.order > 1 ? BIT(SNAPKV_ERROR_OPTION) : 0;
    guard_freeze(&scores);
    snapkv_status status =
        snapkv_keep(&p.config, claimed, floats(&scores), claimed_best, ints(&kept));
    check_verdict(status, listed, "snapkv_keep");
    if (status != SNAPKV_OK) {
        guard_check_untouched(&kept);
    } else {
        double *exact = new_array(n, sizeof(double));
        int32_t *expected = new_array(n_kept, sizeof(int32_t));
        for (size_t i = 0; i < n; i++) {
            exact[i] = (double)floats(&scores)[i];
        }
        reference_keep(&p, exact, n_best, expected);
        assert_indices(ints(&kept), expected, n_kept);
        free(exact);
        free(expected);
    }

    /* Votes are as good as any scores, if they aren't so large that their sum is none. */
    size_t n_listed = draw_between(in, 0, 40);
    guard list = guard_new(n_listed * sizeof(int32_t), draw_side(in));
    unsigned char *is_kept = new_array(n, 1);
    verdict share = whole;
    if (!all_finite(floats(&scores), n)) {
        share.must |= BIT(SNAPKV_ERROR_NOT_FINITE);
    }
    for (size_t i = 0; i < n_listed; i++) {
        size_t at = draw_between(in, 0, length - 1);
        ints(&list)[i] = draw_once_in(in, 64) ? (int32_t)draw_bytes(in, 4) : (int32_t)at;
        int32_t position = ints(&list)[i];
        if (position < 0 || (size_t)position >= length) {
            share.must |= BIT(SNAPKV_ERROR_INDEX);
        } else if ((size_t)position < n) {
            is_kept[position] = 1;
        }
    }
    guard_freeze(&list);
    float coverage = -7;
    status = snapkv_coverage(&p.config, length, floats(&scores), ints(&list), n_listed, &coverage);
    check_verdict(status, share, "snapkv_coverage");
    if (status != SNAPKV_OK) {
        assert_true(coverage == -7);
    } else {
        double dropped = 0;
        double size = 0;
        for (size_t i = 0; i < n; i++) {
            dropped += is_kept[i] ? 0 : (double)floats(&scores)[i];
            size += is_kept[i] ? 0 : fabs((double)floats(&scores)[i]);
        }
        double rows = (double)p.config.window;
        double exact = 1 - dropped / rows;
        if (size < (double)FLT_MAX * 0.99) {
            assert_close(coverage, exact < 0 ? 0 : exact, 3e-7 * (40 * size / rows + 2));
        }
    }
    free(is_kept);
    guard_free(&list);
    guard_free(&kept);
    guard_free(&scores);
}

static void fuzz_allocate(input *in) {
    enum { MAX_LISTS = 9 };
    snapkv_list lists[MAX_LISTS];
    guard scores[MAX_LISTS];
    size_t n_lists = draw_between(in, 1, MAX_LISTS);
    size_t long_lists = draw_once_in(in, 32) ? 16384 : 0; /* a sample says where to look */
    size_t least = draw_once_in(in, 2) ? draw_between(in, 0, 12) : 0;
    size_t n = 0;
    verdict v = {0, 0};
    for (size_t i = 0; i < n_lists; i++) {
        lists[i].n = draw_between(in, 0, draw_once_in(in, 4) ? 300 : 20) + long_lists;
        scores[i] = draw_floats(in, lists[i].n);
        lists[i].scores = lists[i].n == 0 && draw_once_in(in, 2) ? NULL : floats(&scores[i]);
        n += lists[i].n;
        if (!all_finite(floats(&scores[i]), lists[i].n)) {
            v.must |= BIT(SNAPKV_ERROR_NOT_FINITE);
        }
        guard_freeze(&scores[i]);
    }
    size_t budget = draw_between(in, 0, n + n / 8 + 2);
    guard counts = guard_new(n_lists * sizeof(size_t), GUARD_AFTER);
    size_t *out = (size_t *)(void *)counts.data;
    snapkv_list *broken = &lists[draw_between(in, 0, n_lists - 1)];
    snapkv_list kept = *broken;
    size_t claimed = n_lists;
    switch (draw_between(in, 0, 31)) {
    case 27:
        least = draw_extreme(in);
        break;
    case 28:
        broken->scores = NULL;
        v.must |= broken->n > 0 ? BIT(SNAPKV_ERROR_NULL) : 0;
        break;
    case 29:
        broken->n = (size_t)INT32_MAX + draw_between(in, 1, 9);
        v.must |= BIT(SNAPKV_ERROR_SHAPE);
        v.may |= broken->scores ? 0 : BIT(SNAPKV_ERROR_NULL);
        break;
    case 30:
        claimed = draw_once_in(in, 2) ? 0 : SIZE_MAX / 8;
        v.must |= BIT(SNAPKV_ERROR_SHAPE);
        break;
    case 31: /* the counts among the lists */
        out = (size_t *)(void *)lists;
        v.must |= BIT(SNAPKV_ERROR_ALIAS);
        break;
    default:
        break;
    }
    if ((wide)claimed * least > budget) {
        v.must |= BIT(SNAPKV_ERROR_CAPACITY);
    }
    snapkv_list before[MAX_LISTS];
    memcpy(before, lists, n_lists * sizeof *lists);
    snapkv_status status = snapkv_allocate(lists, claimed, budget, least, out);
    check_verdict(status, v, "snapkv_allocate");
    assert_memory_equal(lists, before, n_lists * sizeof *lists);
    if (status != SNAPKV_OK) {
        guard_check_untouched(&counts);
    } else {
        size_t expected[MAX_LISTS];
        reference_allocate(lists, n_lists, budget, least, expected);
        assert_memory_equal(out, expected, n_lists * sizeof *out);
    }
    *broken = kept;
    for (size_t i = 0; i < n_lists; i++) {
        guard_free(&scores[i]);
    }
    guard_free(&counts);
}

/* ---- gathers --------------------------------------------------------------------------------- */

/* Rows: n_src rows of `wide_src` bytes are there, n_dst of wide_dst are written. For the columns
 * n_src and n_dst are the same. */
typedef struct gather {
    size_t n_kept, n_columns, element_size; /* n_columns: positions to choose from */
    size_t src_stride, dst_stride, n_rows;  /* n_rows: of columns; of rows unused */
    int columns;
} gather;

static wide src_rows(const gather *g) {
    return g->columns ? g->n_rows : g->n_columns;
}

static wide dst_rows(const gather *g) {
    return g->columns ? g->n_rows : g->n_kept;
}

static wide src_bytes(const gather *g) {
    return g->columns ? (wide)g->n_columns * g->element_size : g->element_size;
}

static wide dst_bytes(const gather *g) {
    return g->columns ? (wide)g->n_kept * g->element_size : g->element_size;
}

/* From the first row to the end of the last. */
static wide reach_of(wide rows, size_t stride, wide bytes) {
    return (rows > 1 ? (rows - 1) * stride : 0) + bytes;
}

static verdict judge_gather(const gather *g) {
    verdict v = {0, 0};
    wide src = reach_of(src_rows(g), g->src_stride, src_bytes(g));
    wide dst = reach_of(dst_rows(g), g->dst_stride, dst_bytes(g));
    if (g->n_columns == 0 || g->element_size == 0 || (g->columns && g->n_rows == 0) ||
        src > SIZE_MAX || dst > SIZE_MAX) {
        v.must |= BIT(SNAPKV_ERROR_SHAPE);
    }
    if (src >= PTRDIFF_MAX || dst >= PTRDIFF_MAX) {
        v.may |= BIT(SNAPKV_ERROR_SHAPE);
    }
    if (src_rows(g) > 1 && g->src_stride < src_bytes(g)) {
        v.must |= BIT(SNAPKV_ERROR_STRIDE);
    }
    if (dst_rows(g) > 1 && g->dst_stride < dst_bytes(g)) {
        v.must |= BIT(SNAPKV_ERROR_OUTPUT);
    }
    return v;
}

static snapkv_status call_gather(const gather *g, const int32_t *kept, const void *src, void *dst) {
    return g->columns ? snapkv_gather_columns(kept, g->n_kept, src, g->src_stride, g->n_columns,
                                              g->element_size, g->n_rows, dst, g->dst_stride)
                      : snapkv_gather_rows(kept, g->n_kept, src, g->src_stride, g->n_columns,
                                           g->element_size, dst, g->dst_stride);
}

/* Does it by bytes, into a copy of the memory. */
static void gather_slowly(const gather *g, const int32_t *kept, const unsigned char *src,
                          unsigned char *dst) {
    size_t n_rows = g->columns ? g->n_rows : 1;
    size_t step = g->columns ? g->element_size : g->src_stride;
    size_t out_step = g->columns ? g->element_size : g->dst_stride;
    for (size_t row = 0; row < n_rows; row++) {
        for (size_t i = 0; i < g->n_kept; i++) {
            for (size_t b = 0; b < g->element_size; b++) {
                dst[row * g->dst_stride + i * out_step + b] =
                    src[row * g->src_stride + (size_t)kept[i] * step + b];
            }
        }
    }
}

/* Marks the bytes of rows; returns whether one was marked before. */
static int mark(unsigned char *marks, size_t at, wide rows, size_t stride, wide bytes) {
    int shared = 0;
    for (size_t row = 0; row < rows; row++) {
        for (size_t b = 0; b < bytes; b++) {
            shared |= marks[at + row * stride + b];
            marks[at + row * stride + b] = 1;
        }
    }
    return shared;
}

static void fuzz_gather(input *in) {
    gather g;
    g.columns = draw_once_in(in, 2);
    g.n_columns = draw_between(in, 0, 40);
    g.n_kept = draw_between(in, 0, draw_once_in(in, 4) ? 60 : g.n_columns);
    g.element_size = draw_between(in, 1, draw_once_in(in, 4) ? 70 : 8);
    g.n_rows = draw_between(in, 1, 6);
    g.src_stride = (size_t)src_bytes(&g) + draw_between(in, 0, 9);
    g.dst_stride =
        draw_once_in(in, 2) ? g.src_stride : (size_t)dst_bytes(&g) + draw_between(in, 0, 9);
    guard list = guard_new(g.n_kept * sizeof(int32_t), draw_side(in));
    size_t at = 0;
    int ascends = draw_once_in(in, 2);
    for (size_t i = 0; i < g.n_kept; i++) {
        size_t most = g.n_columns ? g.n_columns - 1 : 0;
        at = ascends ? at + draw_between(in, 0, 2) : draw_between(in, 0, most);
        ints(&list)[i] = draw_once_in(in, 64) ? (int32_t)draw_bytes(in, 4) : (int32_t)at;
        at += ascends ? 1 : 0;
    }
    guard_freeze(&list);

    gather claimed = g;
    size_t *fields[] = {&claimed.n_kept,     &claimed.n_columns,  &claimed.element_size,
                        &claimed.src_stride, &claimed.dst_stride, &claimed.n_rows};
    if (draw_once_in(in, 6)) {
        size_t *field = fields[draw_between(in, 0, COUNT_OF(fields) - 1)];
        *field = draw_once_in(in, 2) ? *field - 1 : draw_extreme(in);
    }
    verdict v = judge_gather(&claimed);
    size_t src_size = (size_t)reach_of(src_rows(&g), g.src_stride, src_bytes(&g));
    size_t dst_size = (size_t)reach_of(dst_rows(&g), g.dst_stride, dst_bytes(&g));
    if (src_rows(&g) == 0) {
        src_size = 0;
    }
    if (dst_rows(&g) == 0) {
        dst_size = 0;
    }
    int same = memcmp(&claimed, &g, sizeof g) == 0;
    if (!same && !v.must) {
        guard_free(&list);
        return; /* it would be served, and with other memory than this */
    }
    for (size_t i = 0; i < g.n_kept && same; i++) {
        if (ints(&list)[i] < 0 || (size_t)ints(&list)[i] >= g.n_columns) {
            v.must |= BIT(SNAPKV_ERROR_INDEX);
        }
    }

    /* Source and destination apart, in one place, or anywhere in the same memory. */
    size_t src_at = 0;
    size_t dst_at = src_size;
    switch (draw_between(in, 0, 3)) {
    case 2:
        dst_at = 0;
        break;
    case 3:
        src_at = draw_between(in, 0, dst_size);
        dst_at = draw_between(in, 0, src_size + src_at);
        break;
    default:
        break;
    }
    size_t src_end = src_at + src_size;
    size_t dst_end = dst_at + dst_size;
    guard memory = guard_new(src_end > dst_end ? src_end : dst_end, draw_side(in));
    unsigned char *marks = new_array(memory.size, 1);
    unsigned char *expected = new_array(memory.size, 1);
    for (size_t i = 0; i < memory.size; i++) {
        memory.data[i] = (unsigned char)(i * 7 + i / 251 + 1);
        expected[i] = memory.data[i];
    }
    if (same && !v.must) {
        int strictly = 1;
        for (size_t i = 1; i < g.n_kept; i++) {
            strictly = strictly && ints(&list)[i] > ints(&list)[i - 1];
        }
        /* Rows may move down by whole rows, too. */
        int moves_down = src_at == dst_at || (!g.columns && src_at > dst_at && g.src_stride > 0 &&
                                              (src_at - dst_at) % g.src_stride == 0);
        int in_place = moves_down && g.src_stride == g.dst_stride && strictly;
        if (!in_place) {
            mark(marks, src_at, src_rows(&g), g.src_stride, src_bytes(&g));
            if (mark(marks, dst_at, dst_rows(&g), g.dst_stride, dst_bytes(&g))) {
                v.must |= BIT(SNAPKV_ERROR_ALIAS);
            } else if (src_at < dst_end && dst_at < src_end) {
                v.may |= BIT(SNAPKV_ERROR_ALIAS); /* interleaved */
            }
        }
    }
    const unsigned char *src = memory.data + src_at;
    snapkv_status status = call_gather(&claimed, ints(&list), src, memory.data + dst_at);
    check_verdict(status, v, g.columns ? "snapkv_gather_columns" : "snapkv_gather_rows");
    if (status == SNAPKV_OK) {
        unsigned char *copy = new_array(memory.size, 1);
        memcpy(copy, expected, memory.size);
        gather_slowly(&g, ints(&list), copy + src_at, expected + dst_at);
        free(copy);
    }
    assert_memory_equal(memory.data, expected, memory.size);
    assert_status(call_gather(&g, NULL, src, memory.data), SNAPKV_ERROR_NULL);
    assert_status(call_gather(&g, ints(&list), NULL, memory.data), SNAPKV_ERROR_NULL);
    assert_status(call_gather(&g, ints(&list), src, NULL), SNAPKV_ERROR_NULL);
    free(marks);
    free(expected);
    guard_free(&memory);
    guard_free(&list);
}

void fuzz_blocks(input *in) {
    switch (draw_between(in, 0, 5)) {
    case 0:
        fuzz_pool(in);
        break;
    case 1:
        fuzz_top_k(in);
        break;
    case 2:
        fuzz_keep(in);
        break;
    case 3:
        fuzz_allocate(in);
        break;
    default:
        fuzz_gather(in);
    }
}
