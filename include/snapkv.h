/* snapkv.h - SnapKV in one header: shrink the KV cache of a long prompt before decoding.
 * MIT licence (end of file). C99 or C++11, libc only, no allocation, no globals, no threads.
 *
 *   #include "snapkv.h" // cc -O3 -march=native -I include examples/quickstart.c -lm
 *   #include <stdio.h>
 *   enum { H = 4, L = 8192, D = 64, W = 32, ROW = 4 * D }; // heads, length, dims, window, bytes
 *   static float Q[H * W * D], K[H * L * D], V[H * L * D]; // [head][position][dim]; Q: the last W
 *   static float workspace[300000]; // snapkv_workspace_size() says how much; 150000 work, slower
 *   static int32_t kept[2048];      // the original position of each slot of the small cache
 *   int main(void) {
 *       for (int i = 0; i < H * L * D; i++) K[i] = Q[i % (H * W * D)] = (float)(i * 7LL % 99) / 50;
 *       snapkv_config config = snapkv_default_config(); // keep 2048: the last 32, the best others
 *       snapkv_layer layer = {.n_query_heads = H, .n_kv_heads = H, .length = L, .head_dim = D,
 *           .queries = {.data = Q, .head_stride = W * ROW, .row_stride = ROW},
 *           .keys = {.data = K, .head_stride = L * ROW, .row_stride = ROW},
 *           .values = {.data = V, .head_stride = L * ROW, .row_stride = ROW}};
 *       snapkv_rows_out k_out = {K, L * ROW, ROW}, v_out = {V, L * ROW, ROW}; // here: in place
 *       for (size_t set = 0; set < snapkv_set_count(&config, &layer); set++) {
 *           snapkv_status status = snapkv_compress(&config, &layer, set, kept, &k_out, &v_out,
 *                                                  NULL, workspace, sizeof workspace);
 *           printf("head %d: %s\n", (int)set, snapkv_status_string(status));
 *       }
 *   }
 *
 * The last W queries of the prompt vote: each spreads one softmax over all it may see, and what
 * falls on the earlier positions is summed, pooled and ranked. The best, and the window, stay.
 */
#ifndef SNAPKV_H
#define SNAPKV_H

/* ---- Build options ---------------------------------------------------------------------------
 *
 * Define before the include, or with -D. Each is always defined to a value.
 *
 * SNAPKV_ISA         SNAPKV_ISA_SCALAR, _AVX2, _AVX512 or _NEON. Default: the best that the
 *                    compiler's flags allow. One that they don't allow is an #error.
 * SNAPKV_API         The linkage of every function. Default: static inline.
 * SNAPKV_SCALAR_FMA  1: the scalar path multiplies and adds with fmaf, and returns the bits of the
 *                    vector paths. Default: 1 where the target has it in hardware, else 0. Without
 *                    the hardware fmaf is a library call, 8 to 20 times slower.
 * SNAPKV_MEMCPY      Copies the rows of a gather. Default: memcpy. */

#define SNAPKV_ISA_SCALAR 1
#define SNAPKV_ISA_AVX2   2
#define SNAPKV_ISA_AVX512 3
#define SNAPKV_ISA_NEON   4

/* MSVC announces AVX2 alone, and means FMA and F16C too. */
#if defined(__AVX2__) && ((defined(__FMA__) && defined(__F16C__)) ||                               \
                          (defined(_MSC_VER) && !defined(__clang__)))
#define SKV_HAS_AVX2 1
#else
#define SKV_HAS_AVX2 0
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define SKV_HAS_AVX512 1
#else
#define SKV_HAS_AVX512 0
#endif

/* 32-bit Arm flushes subnormals in NEON: other bits, so it takes the scalar path. */
#if defined(__aarch64__) || defined(_M_ARM64)
#define SKV_HAS_NEON 1
#else
#define SKV_HAS_NEON 0
#endif

#ifndef SNAPKV_ISA
#if SKV_HAS_AVX512
#define SNAPKV_ISA SNAPKV_ISA_AVX512
#elif SKV_HAS_AVX2
#define SNAPKV_ISA SNAPKV_ISA_AVX2
#elif SKV_HAS_NEON
#define SNAPKV_ISA SNAPKV_ISA_NEON
#else
#define SNAPKV_ISA SNAPKV_ISA_SCALAR
#endif
#endif

#ifndef SNAPKV_API
#define SNAPKV_API static inline
#endif

#ifndef SNAPKV_SCALAR_FMA
#if defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA) || SKV_HAS_NEON ||   \
    SKV_HAS_AVX2
#define SNAPKV_SCALAR_FMA 1
#else
#define SNAPKV_SCALAR_FMA 0
#endif
#endif

#ifndef SNAPKV_MEMCPY
#define SNAPKV_MEMCPY memcpy
#endif

/* ---- Version and includes ------------------------------------------------------------------ */

#define SNAPKV_VERSION_MAJOR 1
#define SNAPKV_VERSION_MINOR 0
#define SNAPKV_VERSION_PATCH 0

#include <math.h>   /* fmaf, sqrtf */
#include <stddef.h> /* size_t */
#include <stdint.h> /* int32_t, uint32_t, uint64_t, uintptr_t */
#include <string.h> /* memcpy, memmove, memset */

/* ---- Portability -----------------------------------------------------------------------------
 *
 * SKV_INLINE          the kernels are written once over constants that only inlining folds away
 * SKV_NOINLINE        out of line; must not warn where it is unused, as inline functions don't
 * SKV_UNROLL          in full: keeps a register tile in registers at -O2 as well
 * SKV_FMAF, _SQRTF    -ffreestanding makes calls of the plain names even of instructions
 * SKV_LOWEST_BIT      its number, of a mask that is not 0
 * SKV_PREFETCH        a hint, to the second level: into the first it cost 1 to 8 % (Zen 4)
 * SKV_STEP_BY_STEP    GCC 12 -O3 makes in-order vector reductions of the scalar path's loop over
 *                     the dimensions where there is no fused multiply-add, and loses a factor of 3;
 *                     elsewhere it changes nothing */

#if defined(__GNUC__) || defined(__clang__)
#define SKV_INLINE           static inline __attribute__((always_inline))
#define SKV_NOINLINE         static __attribute__((noinline, unused))
#define SKV_FMAF(a, b, c)    __builtin_fmaf(a, b, c)
#define SKV_SQRTF(a)         __builtin_sqrtf(a)
#define SKV_LOWEST_BIT(mask) ((size_t)__builtin_ctz(mask))
#define SKV_PREFETCH(p)      __builtin_prefetch(p, 0, 2)
#else
#if defined(_MSC_VER)
#define SKV_INLINE   static __forceinline
#define SKV_NOINLINE static __declspec(noinline)
#else
#define SKV_INLINE   static inline
#define SKV_NOINLINE static inline
#endif
#define SKV_FMAF(a, b, c) fmaf(a, b, c)
#define SKV_SQRTF(a)      sqrtf(a)
static inline size_t skv_lowest_bit(uint32_t mask) {
    size_t bit = 0;
    while (!(mask >> bit & 1)) {
        bit++;
    }
    return bit;
}
#define SKV_LOWEST_BIT(mask) skv_lowest_bit(mask)
#define SKV_PREFETCH(p)      ((void)(p))
#endif

#if defined(__clang__)
#define SKV_UNROLL         _Pragma("unroll")
#define SKV_STEP_BY_STEP() ((void)0)
#elif defined(__GNUC__)
#define SKV_UNROLL         _Pragma("GCC unroll 16")
#define SKV_STEP_BY_STEP() __asm__ volatile("")
#else
#define SKV_UNROLL
#define SKV_STEP_BY_STEP() ((void)0)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Types -----------------------------------------------------------------------------------
 *
 * Symbols in the comments: L length of the prompt, W observation window, P = L - W prefix,
 * C capacity, D head dimension, G query heads per K/V head (Hq, Hkv: their numbers), B batch,
 * N layers, g generated tokens, s bytes of an element. */

typedef enum snapkv_status {
    SNAPKV_OK = 0,
    SNAPKV_ERROR_NULL,      /* a required pointer is NULL */
    SNAPKV_ERROR_SHAPE,     /* zero size, heads that don't divide, length > INT32_MAX, overflow */
    SNAPKV_ERROR_STRIDE,    /* rows overlap or are not aligned to their element; bad block table */
    SNAPKV_ERROR_WINDOW,    /* window is 0 or above length */
    SNAPKV_ERROR_CAPACITY,  /* capacity <= window + n_sink */
    SNAPKV_ERROR_KERNEL,    /* kernel_size is 0 or even */
    SNAPKV_ERROR_OPTION,    /* unknown enum value; scale, softcap, slope or sink logit not finite,
                               or negative where it can't be; custom rows without row_bytes */
    SNAPKV_ERROR_WORKSPACE, /* smaller than snapkv_workspace_min(), or not aligned to float */
    SNAPKV_ERROR_INDEX,     /* a set, head, position or slot out of range */
    SNAPKV_ERROR_ALIAS,     /* source and destination overlap in a way the call can't serve */
    SNAPKV_ERROR_NOT_FINITE /* a logit that some query sees, or a score, is NaN or infinite */
} snapkv_status;

typedef enum snapkv_dtype { SNAPKV_F32, SNAPKV_F16, SNAPKV_BF16, SNAPKV_CUSTOM } snapkv_dtype;

typedef enum snapkv_pooling {
    SNAPKV_POOL_AVG, /* zeros outside, always divided by kernel_size */
    SNAPKV_POOL_MAX  /* positions outside ignored */
} snapkv_pooling;

typedef enum snapkv_order {
    SNAPKV_BY_POSITION, /* ascending */
    SNAPKV_BY_SCORE     /* pinned, then falling score, then the window: the official order */
} snapkv_order;

typedef enum snapkv_sharing {
    SNAPKV_PER_KV_HEAD,    /* a list per K/V head: the cache stays in native GQA */
    SNAPKV_PER_QUERY_HEAD, /* a list per query head: K/V expanded, as the official code does */
    SNAPKV_PER_LAYER       /* one list: for a cache with one position table per layer */
} snapkv_sharing;

typedef enum snapkv_reduce { SNAPKV_REDUCE_MEAN, SNAPKV_REDUCE_MAX } snapkv_reduce;

/* The policy: the same for every layer, or one per layer. */
typedef struct snapkv_config {
    size_t         window;      /* W: last queries that vote; always kept */
    size_t         capacity;    /* C: positions kept per list, window included */
    size_t         kernel_size; /* of the pooling; odd; 1: none */
    size_t         n_sink;      /* first positions pinned; they count towards the capacity */
    snapkv_pooling pooling;
    snapkv_order   order;
    snapkv_sharing sharing;
    snapkv_reduce  reduce;      /* of the pooled scores of the query heads that share a list */
} snapkv_config;

/* Converts one row of a custom dtype (q8_0, fp8, ...) to head_dim floats. */
typedef void (*snapkv_decode_fn)(const void *row, float *out, size_t head_dim);

/* A read-only view of [head][position][dim], in either nesting; strides in bytes. Rows are aligned
 * to their element, custom rows to a byte. Zero what you don't use. */
typedef struct snapkv_rows {
    const void      *data;
    size_t           head_stride; /* read only when there are several heads */
    size_t           row_stride;
    size_t           row_bytes;   /* what a gather copies of a row; 0: head_dim elements of dtype */
    snapkv_dtype     dtype;
    snapkv_decode_fn decode;      /* SNAPKV_CUSTOM only */
    const int32_t   *block_table; /* paged caches; NULL: contiguous. Position p is row
                                     p % block_rows of block block_table[p / block_rows], which
                                     starts at data + block * block_stride; heads step inside it */
    size_t           block_rows;
    size_t           block_stride;
} snapkv_rows;

/* Where a gather writes: [head][slot], strides in bytes. */
typedef struct snapkv_rows_out {
    void  *data;
    size_t head_stride;
    size_t row_stride;
} snapkv_rows_out;

/* One layer of one sequence, without padding. Keys and queries as the model uses them, rotated. */
typedef struct snapkv_layer {
    size_t       n_query_heads;
    size_t       n_kv_heads;
    size_t       length;       /* L */
    size_t       head_dim;     /* D */
    snapkv_rows  queries;      /* [n_query_heads][window][head_dim]; row 0 is position L - W */
    snapkv_rows  keys;         /* [n_kv_heads][length][head_dim] */
    snapkv_rows  values;       /* [n_kv_heads][length]; only moved; for snapkv_compress alone */
    float        scale;        /* multiplies the queries; 0: 1 / sqrt(head_dim) */
    float        softcap;      /* logit = softcap * tanh(logit / softcap); 0: none */
    size_t       span;         /* sliding window: position t sees j > t - span; 0: full causal */
    const float *sink_logits;  /* [n_query_heads] or NULL: join the softmax denominator only */
    const float *alibi_slopes; /* [n_query_heads] or NULL: logit += slope * (j - t) */
} snapkv_layer;

typedef struct snapkv_selection {
    size_t n_kept;   /* entries written to kept */
    float  coverage; /* share of the window's attention mass that the kept positions hold, 0..1 */
    int    bypassed; /* 1: the prompt was shorter than the capacity, everything is kept */
} snapkv_selection;

typedef struct snapkv_model {
    size_t batch, n_layers, n_query_heads, n_kv_heads, head_dim;
    size_t element_size; /* bytes */
} snapkv_model;

typedef struct snapkv_ledger {
    uint64_t full_bytes;      /* native GQA, every position: 2 B N Hkv (L + g) D s */
    uint64_t kept_bytes;      /* 2 B N H (min(L, C) + g) D s; H: Hq when expanded, else Hkv */
    uint64_t score_bytes;     /* a W x L float matrix for the query heads of a layer: 4 B Hq W L */
    uint64_t workspace_bytes; /* what this library asks for instead, per thread */
} snapkv_ledger;

/* Where a compressed sequence stands. A kept key remembers its position (it is rotated by it), so
 * the logical position and the slot of the cache part ways. */
typedef struct snapkv_cursor {
    size_t prompt_length, prompt_kept, generated;
} snapkv_cursor;

/* ---- Public functions ------------------------------------------------------------------------
 *
 * Every call is re-entrant and keeps nothing. On any error no output is written (the workspace is
 * not an output). `in`, `out` and `tmp` give the shapes. A function that takes a workspace works
 * with any size from snapkv_workspace_min() up and returns the same bits with each (built with
 * -ffast-math, the same within rounding). Outputs must not overlap inputs, except where a function
 * says so. */

/* Window 32, capacity 2048, average pooling of 5, by position, per K/V head, mean, none pinned. */
SNAPKV_API snapkv_config snapkv_default_config(void);

/* The same per query head and by score: what the official code does (commit e216ddc8). */
SNAPKV_API snapkv_config snapkv_official_config(void);

/* A short English text, never NULL. */
SNAPKV_API const char *snapkv_status_string(snapkv_status status);

/* --- A layer --- */

/* Every rule of the statuses above but WORKSPACE, INDEX, ALIAS and NOT_FINITE, before any work.
 * Values are checked when values.data is not NULL; row_bytes of custom rows by compress alone. */
SNAPKV_API snapkv_status snapkv_check(const snapkv_config *config, const snapkv_layer *layer);

/* Lists per layer under config->sharing; 0: invalid. Like the workspace sizes below it needs only
 * the policy and the sizes of the layer, no pointers. */
SNAPKV_API size_t snapkv_set_count(const snapkv_config *config, const snapkv_layer *layer);

/* min(length, capacity): the entries of a kept list. 0 for a NULL config. */
SNAPKV_API size_t snapkv_kept_count(const snapkv_config *config, size_t length);

/* Bytes for the fastest run: about 4 W L per query head of a K/V head (of one, per query head) and
 * 12 L. 0: invalid; what only a selection needs (capacity, kernel) is not looked at. */
SNAPKV_API size_t snapkv_workspace_size(const snapkv_config *config, const snapkv_layer *layer);

/* Bytes for the slowest run, about twice the time: no W x L buffer. 0: invalid. A size between the
 * two is used in full. */
SNAPKV_API size_t snapkv_workspace_min(const snapkv_config *config, const snapkv_layer *layer);

/* Chooses the positions that one set keeps. Reads Q and K, changes neither.
 *
 *   in   set        0 .. set_count - 1: a K/V head, a query head, or 0 for the layer
 *   out  kept       [snapkv_kept_count()]  original positions; the last W are the window
 *        scores     [length - window]      pooled and reduced; NULL: not wanted
 *        selection                         NULL: not wanted
 *   tmp  workspace
 *
 * A prompt shorter than the capacity is bypassed: all is kept, scores stay as they are, coverage is
 * 1; the arguments are checked as ever. Coverage is 1 - (sum of the dropped votes) / W, averaged
 * over the query heads of the set.
 *
 * Errors: those of snapkv_check but for the values, INDEX (set), WORKSPACE, ALIAS (an output in the
 * workspace or in another output), NOT_FINITE. */
SNAPKV_API snapkv_status snapkv_select(const snapkv_config *config, const snapkv_layer *layer,
                                       size_t set, int32_t *kept, float *scores,
                                       snapkv_selection *selection, void *workspace,
                                       size_t workspace_size);

/* Selects one set, then gathers its keys and its values with that list. Call it after the prefill
 * attention of the layer has used the full K and V.
 *
 *   out  kept        [snapkv_kept_count()]
 *        keys_out    output head `set`, for PER_LAYER every K/V head; slots 0 .. kept_count - 1
 *        values_out  likewise
 *
 * A query-head set reads source head set / G. In place (keys_out is layer->keys.data with its
 * strides, values_out likewise) works for contiguous rows and SNAPKV_BY_POSITION. Not for query
 * heads of a group, whose lists differ while they read the same rows; nor for values that share the
 * keys' memory (MLA): there, select and gather the rows once.
 *
 * Errors: those of snapkv_select, NULL or OPTION (values, custom row_bytes), STRIDE (outputs),
 * ALIAS (an output row overlaps a row that this set or another may still read). */
SNAPKV_API snapkv_status snapkv_compress(const snapkv_config *config, const snapkv_layer *layer,
                                         size_t set, int32_t *kept,
                                         const snapkv_rows_out *keys_out,
                                         const snapkv_rows_out *values_out,
                                         snapkv_selection *selection, void *workspace,
                                         size_t workspace_size);

/* --- Building blocks: one head, each usable alone --- */

/* Votes of one query head: how much the observation window attends to each prefix position.
 *
 *   out  votes      [length - window]  sum over the window of the softmax weights, 0 .. window
 *   tmp  workspace
 *
 * Each softmax spans all positions that its query sees, the window too; the window's columns are
 * dropped only afterwards. They must be in the denominator, or a query that attends mostly to
 * itself would vote as loudly as the others.
 *
 * Uses of the config the window and, for the workspace, the sharing. Errors: as snapkv_check
 * without CAPACITY and KERNEL; WINDOW also when there is no prefix; INDEX (query_head); WORKSPACE;
 * ALIAS; NOT_FINITE. */
SNAPKV_API snapkv_status snapkv_vote(const snapkv_config *config, const snapkv_layer *layer,
                                     size_t query_head, float *votes, void *workspace,
                                     size_t workspace_size);

/* Pools n votes, stride 1, centred. Takes n times min(kernel_size, n) operations.
 *
 *   in   votes   [n]  finite; a sum beyond float, which no votes of a window reach, is infinite
 *   out  scores  [n]  must not overlap votes: ALIAS
 *
 * Errors: NULL, SHAPE (n is 0 or above INT32_MAX), KERNEL, OPTION, ALIAS, NOT_FINITE. */
SNAPKV_API snapkv_status snapkv_pool(const float *votes, size_t n, size_t kernel_size,
                                     snapkv_pooling pooling, float *scores);

/* The k highest scores, ties to the lower position, +0 and -0 tied. Linear in n by position;
 * sorting by score adds k log k.
 *
 *   in   scores   [n]  finite
 *   out  indices  [k]
 *
 * k = 0 writes nothing. Errors: NULL, SHAPE (n is 0 or above INT32_MAX, k > n), OPTION, ALIAS,
 * NOT_FINITE. */
SNAPKV_API snapkv_status snapkv_top_k(const float *scores, size_t n, size_t k, snapkv_order order,
                                      int32_t *indices);

/* Copies the rows that kept lists, in its order: opaque bytes, so quantised rows survive.
 *
 *   in   kept  [n_kept]  0 .. n_rows - 1
 *        src   [n_rows]  rows of row_bytes, src_stride bytes apart
 *   out  dst   [n_kept]  rows of row_bytes, dst_stride bytes apart
 *
 * In place (dst == src, equal strides) works when kept ascends; any other overlap is ALIAS.
 * n_kept = 0 writes nothing. Errors: NULL, SHAPE (n_rows or row_bytes is 0, overflow), STRIDE,
 * INDEX, ALIAS. */
SNAPKV_API snapkv_status snapkv_gather_rows(const int32_t *kept, size_t n_kept, const void *src,
                                            size_t src_stride, size_t n_rows, size_t row_bytes,
                                            void *dst, size_t dst_stride);

/* The same for a transposed V: [dim][position], n_rows = head_dim rows of n_columns positions.
 *
 *   in   kept  [n_kept]             0 .. n_columns - 1
 *        src   [n_rows][n_columns]  elements of element_size bytes, rows src_stride bytes apart
 *   out  dst   [n_rows][n_kept]     rows dst_stride bytes apart
 *
 * In place and errors as above, a row being n_columns elements in src and n_kept in dst. */
SNAPKV_API snapkv_status snapkv_gather_columns(const int32_t *kept, size_t n_kept, const void *src,
                                               size_t src_stride, size_t n_columns,
                                               size_t element_size, size_t n_rows, void *dst,
                                               size_t dst_stride);

/* --- What was saved, and what was lost --- */

/* The bytes of a cache with `generated` tokens appended after the prompt. Errors: NULL, SHAPE (also
 * a count beyond 64 bits), WINDOW, CAPACITY, KERNEL, OPTION. */
SNAPKV_API snapkv_status snapkv_account(const snapkv_config *config, const snapkv_model *model,
                                        size_t length, size_t generated, snapkv_ledger *ledger);

/* The share of one later query's attention over the whole prompt that the kept positions hold. A
 * sink logit, which is never evicted, counts as kept; so does what the query's span hides.
 *
 *   in   query     [head_dim]  float, rotated, of query head query_head
 *        position  its logical position, length - 1 .. INT32_MAX: for ALiBi and span
 *        kept      [n_kept]    in any order; a position listed twice counts once
 *   out  mass      0 .. 1
 *   tmp  workspace             any that serves snapkv_select
 *
 * The layer is checked whole: its queries too, which are not read. Errors: as snapkv_vote, with
 * INDEX also for position and kept, and without its WINDOW for a prompt that is all window. */
SNAPKV_API snapkv_status snapkv_retained_mass(const snapkv_config *config,
                                              const snapkv_layer *layer, size_t query_head,
                                              const float *query, size_t position,
                                              const int32_t *kept, size_t n_kept, float *mass,
                                              void *workspace, size_t workspace_size);

/* 2 (1 - mass) value_norm_max: how far, in that norm, the attention output of that query can move
 * when the rest is evicted (triangle inequality). */
SNAPKV_API float snapkv_error_bound(float mass, float value_norm_max);

/* --- Where a compressed sequence stands --- */

/* After the prompt: nothing generated. All zero for a NULL config. */
SNAPKV_API snapkv_cursor snapkv_cursor_start(const snapkv_config *config, size_t length);

/* prompt_length + generated: the position that RoPE rotates the next token by. 0 for NULL. */
SNAPKV_API size_t snapkv_next_position(const snapkv_cursor *cursor);

/* prompt_kept + generated: the slot that the next token's K/V row goes to. 0 for NULL. */
SNAPKV_API size_t snapkv_next_slot(const snapkv_cursor *cursor);

/* n_tokens more have their K/V in the cache. Errors: NULL, SHAPE (overflow). */
SNAPKV_API snapkv_status snapkv_append(snapkv_cursor *cursor, size_t n_tokens);

/* The last n_tokens are taken back (speculative decoding). Errors: NULL, INDEX (more than were
 * generated). */
SNAPKV_API snapkv_status snapkv_rewind(snapkv_cursor *cursor, size_t n_tokens);

/* The logical position of a slot. `kept` [prompt_kept] is needed for a prompt's slot only. Errors:
 * NULL, INDEX (nothing is in that slot, or kept lies outside the prompt). */
SNAPKV_API snapkv_status snapkv_slot_position(const snapkv_cursor *cursor, const int32_t *kept,
                                              size_t slot, size_t *position);

/* ==============================================================================================
 * Nothing below is API: names with skv_ and SKV_ may change with every version.
 * ============================================================================================== */

#ifdef __cplusplus
} /* extern "C": the intrinsics' headers have their own linkage */
#endif

/* ---- ISA choice ------------------------------------------------------------------------------
 *
 * SKV_LANES       floats of a native vector
 * SKV_TILE_KEYS   the register tile of the logits: keys x native vectors of queries. Keys times
 * SKV_TILE_VECS   vectors are the accumulators: enough to hide the latency of the multiply-adds
 *                 (2 a cycle, 4 cycles: 8), with registers left for the queries and one key.
 * SKV_BATCH       vectors whose exp is computed abreast; the scalar path, whose vector is 4 chains
 *                 already, keeps its code small (3 KiB on a Cortex-M4F). */

#if SNAPKV_ISA == SNAPKV_ISA_AVX512
#if !SKV_HAS_AVX512
#error "SNAPKV_ISA_AVX512 needs -mavx512f -mavx512bw -mavx512dq -mavx512vl (MSVC: /arch:AVX512)"
#endif
#include <immintrin.h>
#define SNAPKV_ISA_NAME "AVX-512"
#define SKV_LANES       16
#define SKV_TILE_KEYS   12 /* 24 accumulators + 2 queries + 1 key of 32 registers */
#define SKV_TILE_VECS   2
#define SKV_BATCH       4

#elif SNAPKV_ISA == SNAPKV_ISA_AVX2
#if !SKV_HAS_AVX2
#error "SNAPKV_ISA_AVX2 needs -mavx2 -mfma -mf16c (MSVC: /arch:AVX2)"
#endif
#include <immintrin.h>
#define SNAPKV_ISA_NAME "AVX2"
#define SKV_LANES       8
#define SKV_TILE_KEYS   6 /* 12 accumulators + 2 queries + 1 key of 16 registers */
#define SKV_TILE_VECS   2
#define SKV_BATCH       4

#elif SNAPKV_ISA == SNAPKV_ISA_NEON
#if !SKV_HAS_NEON
#error "SNAPKV_ISA_NEON needs an AArch64 target"
#endif
#include <arm_neon.h>
#define SNAPKV_ISA_NAME "NEON"
#define SKV_LANES       4
#define SKV_TILE_KEYS   6 /* 24 accumulators + 4 queries + 1 key of 32 registers */
#define SKV_TILE_VECS   4
#define SKV_BATCH       4

#elif SNAPKV_ISA == SNAPKV_ISA_SCALAR
#define SNAPKV_ISA_NAME "scalar"
#define SKV_LANES       4
#define SKV_TILE_KEYS   4
#define SKV_TILE_VECS   1
#define SKV_BATCH       1

#else
#error "SNAPKV_ISA is none of SNAPKV_ISA_SCALAR, _AVX2, _AVX512, _NEON"
#endif

/* ---- Lane primitives: one block per ISA, the same functions in the same order ---------------
 *
 * skv_vec holds SKV_LANES floats, skv_int as many int32. skv_fma is a * b + c and skv_fnma is
 * c - a * b, rounded once. skv_max is a > b ? a : b, the second for a NaN. A mask lane is all ones
 * or zero; skv_mask_bits has a bit of each. skv_sum_block adds the 16 lanes of one block: lane i to
 * lane i + 8, then + 4, + 2, + 1. */

#if SNAPKV_ISA == SNAPKV_ISA_AVX512

/* GCC 12 warns in C++ of its own intrinsics, whose unmasked forms pass an undefined vector for the
 * lanes that are masked out (its bug 105593). With all lanes on, the zeroing forms are the same
 * instructions. */
#define SKV_ALL ((__mmask16)-1)

typedef __m512 skv_vec;
typedef __m512i skv_int;

SKV_INLINE skv_vec skv_load(const float *p) { return _mm512_loadu_ps(p); }
SKV_INLINE void skv_store(float *p, skv_vec a) { _mm512_storeu_ps(p, a); }
SKV_INLINE skv_vec skv_set1(float x) { return _mm512_set1_ps(x); }
SKV_INLINE skv_vec skv_add(skv_vec a, skv_vec b) { return _mm512_add_ps(a, b); }
SKV_INLINE skv_vec skv_sub(skv_vec a, skv_vec b) { return _mm512_sub_ps(a, b); }
SKV_INLINE skv_vec skv_mul(skv_vec a, skv_vec b) { return _mm512_mul_ps(a, b); }
SKV_INLINE skv_vec skv_div(skv_vec a, skv_vec b) { return _mm512_div_ps(a, b); }
SKV_INLINE skv_vec skv_fma(skv_vec a, skv_vec b, skv_vec c) { return _mm512_fmadd_ps(a, b, c); }
SKV_INLINE skv_vec skv_fnma(skv_vec a, skv_vec b, skv_vec c) { return _mm512_fnmadd_ps(a, b, c); }
SKV_INLINE skv_vec skv_max(skv_vec a, skv_vec b) { return _mm512_maskz_max_ps(SKV_ALL, a, b); }
SKV_INLINE skv_int skv_bits(skv_vec a) { return _mm512_castps_si512(a); }
SKV_INLINE skv_vec skv_from_bits(skv_int a) { return _mm512_castsi512_ps(a); }
SKV_INLINE skv_vec skv_to_float(skv_int a) { return _mm512_maskz_cvtepi32_ps(SKV_ALL, a); }
SKV_INLINE skv_int skv_int_load(const void *p) { return _mm512_loadu_si512(p); }
SKV_INLINE void skv_int_store(void *p, skv_int a) { _mm512_storeu_si512(p, a); }
SKV_INLINE skv_int skv_int_set1(int32_t x) { return _mm512_set1_epi32(x); }
SKV_INLINE skv_int skv_int_add(skv_int a, skv_int b) { return _mm512_add_epi32(a, b); }
SKV_INLINE skv_int skv_int_sub(skv_int a, skv_int b) { return _mm512_sub_epi32(a, b); }
SKV_INLINE skv_int skv_int_and(skv_int a, skv_int b) { return _mm512_and_si512(a, b); }
SKV_INLINE skv_int skv_int_xor(skv_int a, skv_int b) { return _mm512_xor_si512(a, b); }
SKV_INLINE skv_int skv_int_max(skv_int a, skv_int b) {
    return _mm512_maskz_max_epi32(SKV_ALL, a, b);
}
SKV_INLINE skv_int skv_int_shl(skv_int a, int n) {
    return _mm512_maskz_sll_epi32(SKV_ALL, a, _mm_cvtsi32_si128(n));
}
SKV_INLINE skv_int skv_int_gt(skv_int a, skv_int b) {
    return _mm512_movm_epi32(_mm512_cmpgt_epi32_mask(a, b));
}
SKV_INLINE unsigned skv_mask_bits(skv_int mask) { return (unsigned)_mm512_movepi32_mask(mask); }
SKV_INLINE skv_vec skv_blend(skv_int mask, skv_vec a, skv_vec b) {
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(mask), b, a);
}
SKV_INLINE skv_vec skv_load_f16(const void *p) {
    return _mm512_maskz_cvtph_ps(SKV_ALL, _mm256_loadu_si256((const __m256i *)p));
}
SKV_INLINE skv_vec skv_load_bf16(const void *p) {
    const __m256i half = _mm256_loadu_si256((const __m256i *)p);
    const __m512i wide = _mm512_maskz_cvtepu16_epi32(SKV_ALL, half);
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(SKV_ALL, wide, 16));
}
SKV_INLINE float skv_sum_block(const skv_vec *parts) {
    const __m256 eight = _mm256_add_ps(_mm512_maskz_extractf32x8_ps((__mmask8)-1, parts[0], 0),
                                       _mm512_maskz_extractf32x8_ps((__mmask8)-1, parts[0], 1));
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

#elif SNAPKV_ISA == SNAPKV_ISA_AVX2

typedef __m256 skv_vec;
typedef __m256i skv_int;

SKV_INLINE skv_vec skv_load(const float *p) { return _mm256_loadu_ps(p); }
SKV_INLINE void skv_store(float *p, skv_vec a) { _mm256_storeu_ps(p, a); }
SKV_INLINE skv_vec skv_set1(float x) { return _mm256_set1_ps(x); }
SKV_INLINE skv_vec skv_add(skv_vec a, skv_vec b) { return _mm256_add_ps(a, b); }
SKV_INLINE skv_vec skv_sub(skv_vec a, skv_vec b) { return _mm256_sub_ps(a, b); }
SKV_INLINE skv_vec skv_mul(skv_vec a, skv_vec b) { return _mm256_mul_ps(a, b); }
SKV_INLINE skv_vec skv_div(skv_vec a, skv_vec b) { return _mm256_div_ps(a, b); }
SKV_INLINE skv_vec skv_fma(skv_vec a, skv_vec b, skv_vec c) { return _mm256_fmadd_ps(a, b, c); }
SKV_INLINE skv_vec skv_fnma(skv_vec a, skv_vec b, skv_vec c) { return _mm256_fnmadd_ps(a, b, c); }
SKV_INLINE skv_vec skv_max(skv_vec a, skv_vec b) { return _mm256_max_ps(a, b); }
SKV_INLINE skv_int skv_bits(skv_vec a) { return _mm256_castps_si256(a); }
SKV_INLINE skv_vec skv_from_bits(skv_int a) { return _mm256_castsi256_ps(a); }
SKV_INLINE skv_vec skv_to_float(skv_int a) { return _mm256_cvtepi32_ps(a); }
SKV_INLINE skv_int skv_int_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
SKV_INLINE void skv_int_store(void *p, skv_int a) { _mm256_storeu_si256((__m256i *)p, a); }
SKV_INLINE skv_int skv_int_set1(int32_t x) { return _mm256_set1_epi32(x); }
SKV_INLINE skv_int skv_int_add(skv_int a, skv_int b) { return _mm256_add_epi32(a, b); }
SKV_INLINE skv_int skv_int_sub(skv_int a, skv_int b) { return _mm256_sub_epi32(a, b); }
SKV_INLINE skv_int skv_int_and(skv_int a, skv_int b) { return _mm256_and_si256(a, b); }
SKV_INLINE skv_int skv_int_xor(skv_int a, skv_int b) { return _mm256_xor_si256(a, b); }
SKV_INLINE skv_int skv_int_max(skv_int a, skv_int b) { return _mm256_max_epi32(a, b); }
SKV_INLINE skv_int skv_int_shl(skv_int a, int n) {
    return _mm256_sll_epi32(a, _mm_cvtsi32_si128(n));
}
SKV_INLINE skv_int skv_int_gt(skv_int a, skv_int b) { return _mm256_cmpgt_epi32(a, b); }
SKV_INLINE unsigned skv_mask_bits(skv_int mask) {
    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(mask));
}
SKV_INLINE skv_vec skv_blend(skv_int mask, skv_vec a, skv_vec b) {
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(mask));
}
SKV_INLINE skv_vec skv_load_f16(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
SKV_INLINE skv_vec skv_load_bf16(const void *p) {
    const __m128i half = _mm_loadu_si128((const __m128i *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
SKV_INLINE float skv_sum_block(const skv_vec *parts) {
    const __m256 eight = _mm256_add_ps(parts[0], parts[1]);
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

#elif SNAPKV_ISA == SNAPKV_ISA_NEON

typedef float32x4_t skv_vec;
typedef int32x4_t skv_int;

SKV_INLINE skv_vec skv_load(const float *p) { return vld1q_f32(p); }
SKV_INLINE void skv_store(float *p, skv_vec a) { vst1q_f32(p, a); }
SKV_INLINE skv_vec skv_set1(float x) { return vdupq_n_f32(x); }
SKV_INLINE skv_vec skv_add(skv_vec a, skv_vec b) { return vaddq_f32(a, b); }
SKV_INLINE skv_vec skv_sub(skv_vec a, skv_vec b) { return vsubq_f32(a, b); }
SKV_INLINE skv_vec skv_mul(skv_vec a, skv_vec b) { return vmulq_f32(a, b); }
SKV_INLINE skv_vec skv_div(skv_vec a, skv_vec b) { return vdivq_f32(a, b); }
SKV_INLINE skv_vec skv_fma(skv_vec a, skv_vec b, skv_vec c) { return vfmaq_f32(c, a, b); }
SKV_INLINE skv_vec skv_fnma(skv_vec a, skv_vec b, skv_vec c) { return vfmsq_f32(c, a, b); }
SKV_INLINE skv_vec skv_max(skv_vec a, skv_vec b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b); /* vmaxq orders +0 and -0 and returns NaN */
}
SKV_INLINE skv_int skv_bits(skv_vec a) { return vreinterpretq_s32_f32(a); }
SKV_INLINE skv_vec skv_from_bits(skv_int a) { return vreinterpretq_f32_s32(a); }
SKV_INLINE skv_vec skv_to_float(skv_int a) { return vcvtq_f32_s32(a); }
SKV_INLINE skv_int skv_int_load(const void *p) {
    return vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)p));
}
SKV_INLINE void skv_int_store(void *p, skv_int a) {
    vst1q_u8((uint8_t *)p, vreinterpretq_u8_s32(a));
}
SKV_INLINE skv_int skv_int_set1(int32_t x) { return vdupq_n_s32(x); }
SKV_INLINE skv_int skv_int_add(skv_int a, skv_int b) { return vaddq_s32(a, b); }
SKV_INLINE skv_int skv_int_sub(skv_int a, skv_int b) { return vsubq_s32(a, b); }
SKV_INLINE skv_int skv_int_and(skv_int a, skv_int b) { return vandq_s32(a, b); }
SKV_INLINE skv_int skv_int_xor(skv_int a, skv_int b) { return veorq_s32(a, b); }
SKV_INLINE skv_int skv_int_max(skv_int a, skv_int b) { return vmaxq_s32(a, b); }
SKV_INLINE skv_int skv_int_shl(skv_int a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }
SKV_INLINE skv_int skv_int_gt(skv_int a, skv_int b) {
    return vreinterpretq_s32_u32(vcgtq_s32(a, b));
}
SKV_INLINE unsigned skv_mask_bits(skv_int mask) {
    const uint32_t bit[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vreinterpretq_u32_s32(mask), vld1q_u32(bit)));
}
SKV_INLINE skv_vec skv_blend(skv_int mask, skv_vec a, skv_vec b) {
    return vbslq_f32(vreinterpretq_u32_s32(mask), a, b);
}
SKV_INLINE skv_vec skv_load_f16(const void *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)p)));
}
SKV_INLINE skv_vec skv_load_bf16(const void *p) {
    const uint16x4_t half = vreinterpret_u16_u8(vld1_u8((const uint8_t *)p));
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}
SKV_INLINE float skv_sum_block(const skv_vec *parts) {
    const float32x4_t four =
        vaddq_f32(vaddq_f32(parts[0], parts[2]), vaddq_f32(parts[1], parts[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

#else /* SNAPKV_ISA_SCALAR */

typedef struct skv_vec { float lane[SKV_LANES]; } skv_vec;
typedef struct skv_int { int32_t lane[SKV_LANES]; } skv_int;

/* Without fused multiply-add the two roundings are this path's own: the compiler may fuse them. */
#if SNAPKV_SCALAR_FMA
#define SKV_FMA1(a, b, c) SKV_FMAF(a, b, c)
#else
#define SKV_FMA1(a, b, c) ((a) * (b) + (c))
#endif

#define SKV_MAP(type, expression)                                                                  \
    type r;                                                                                        \
    SKV_UNROLL for (int i = 0; i < SKV_LANES; i++) r.lane[i] = (expression);                       \
    return r

SKV_INLINE skv_vec skv_load(const float *p) { SKV_MAP(skv_vec, p[i]); }
SKV_INLINE void skv_store(float *p, skv_vec a) {
    SKV_UNROLL for (int i = 0; i < SKV_LANES; i++) p[i] = a.lane[i];
}
SKV_INLINE skv_vec skv_set1(float x) { SKV_MAP(skv_vec, x); }
SKV_INLINE skv_vec skv_add(skv_vec a, skv_vec b) { SKV_MAP(skv_vec, a.lane[i] + b.lane[i]); }
SKV_INLINE skv_vec skv_sub(skv_vec a, skv_vec b) { SKV_MAP(skv_vec, a.lane[i] - b.lane[i]); }
SKV_INLINE skv_vec skv_mul(skv_vec a, skv_vec b) { SKV_MAP(skv_vec, a.lane[i] * b.lane[i]); }
SKV_INLINE skv_vec skv_div(skv_vec a, skv_vec b) { SKV_MAP(skv_vec, a.lane[i] / b.lane[i]); }
SKV_INLINE skv_vec skv_fma(skv_vec a, skv_vec b, skv_vec c) {
    SKV_MAP(skv_vec, SKV_FMA1(a.lane[i], b.lane[i], c.lane[i]));
}
SKV_INLINE skv_vec skv_fnma(skv_vec a, skv_vec b, skv_vec c) {
    SKV_MAP(skv_vec, SKV_FMA1(-a.lane[i], b.lane[i], c.lane[i]));
}
SKV_INLINE skv_vec skv_max(skv_vec a, skv_vec b) {
    SKV_MAP(skv_vec, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}
SKV_INLINE skv_int skv_bits(skv_vec a) {
    skv_int r;
    memcpy(&r, &a, sizeof r);
    return r;
}
SKV_INLINE skv_vec skv_from_bits(skv_int a) {
    skv_vec r;
    memcpy(&r, &a, sizeof r);
    return r;
}
SKV_INLINE skv_vec skv_to_float(skv_int a) { SKV_MAP(skv_vec, (float)a.lane[i]); }
SKV_INLINE skv_int skv_int_load(const void *p) {
    skv_int r;
    memcpy(&r, p, sizeof r);
    return r;
}
SKV_INLINE void skv_int_store(void *p, skv_int a) { memcpy(p, &a, sizeof a); }
SKV_INLINE skv_int skv_int_set1(int32_t x) { SKV_MAP(skv_int, x); }
SKV_INLINE skv_int skv_int_add(skv_int a, skv_int b) {
    SKV_MAP(skv_int, (int32_t)((uint32_t)a.lane[i] + (uint32_t)b.lane[i]));
}
SKV_INLINE skv_int skv_int_sub(skv_int a, skv_int b) {
    SKV_MAP(skv_int, (int32_t)((uint32_t)a.lane[i] - (uint32_t)b.lane[i]));
}
SKV_INLINE skv_int skv_int_and(skv_int a, skv_int b) { SKV_MAP(skv_int, a.lane[i] & b.lane[i]); }
SKV_INLINE skv_int skv_int_xor(skv_int a, skv_int b) { SKV_MAP(skv_int, a.lane[i] ^ b.lane[i]); }
SKV_INLINE skv_int skv_int_max(skv_int a, skv_int b) {
    SKV_MAP(skv_int, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}
SKV_INLINE skv_int skv_int_shl(skv_int a, int n) {
    SKV_MAP(skv_int, (int32_t)((uint32_t)a.lane[i] << n));
}
SKV_INLINE skv_int skv_int_gt(skv_int a, skv_int b) {
    SKV_MAP(skv_int, a.lane[i] > b.lane[i] ? -1 : 0);
}
SKV_INLINE unsigned skv_mask_bits(skv_int mask) {
    unsigned bits = 0;
    SKV_UNROLL for (int i = 0; i < SKV_LANES; i++) bits |= (unsigned)(mask.lane[i] & 1) << i;
    return bits;
}
SKV_INLINE skv_vec skv_blend(skv_int mask, skv_vec a, skv_vec b) {
    SKV_MAP(skv_vec, mask.lane[i] ? a.lane[i] : b.lane[i]);
}
SKV_INLINE float skv_float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
SKV_INLINE float skv_f16_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t magnitude = half & 0x7FFF;
    if (magnitude >= 0x7C00) { /* infinity or NaN */
        return skv_float_of_bits(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
    }
    if (magnitude >= 0x0400) { /* exponent bias 15 to 127 */
        return skv_float_of_bits(sign | ((magnitude << 13) + ((127 - 15) << 23)));
    }
    /* Zero or subnormal: magnitude * 2^-24, exact. */
    return (sign ? -1.0f : 1.0f) * ((float)magnitude * (1.0f / 16777216.0f));
}
SKV_INLINE skv_vec skv_load_f16(const void *p) {
    uint16_t half[SKV_LANES];
    memcpy(half, p, sizeof half);
    SKV_MAP(skv_vec, skv_f16_to_float(half[i]));
}
SKV_INLINE skv_vec skv_load_bf16(const void *p) {
    uint16_t half[SKV_LANES];
    memcpy(half, p, sizeof half);
    SKV_MAP(skv_vec, skv_float_of_bits((uint32_t)half[i] << 16));
}
SKV_INLINE float skv_sum_block(const skv_vec *parts) {
    const skv_vec four = skv_add(skv_add(parts[0], parts[2]), skv_add(parts[1], parts[3]));
    return (four.lane[0] + four.lane[2]) + (four.lane[1] + four.lane[3]);
}

#endif

/* ---- Constants of the numeric contract ----------------------------------------------------- */

enum {
    SKV_BLOCK = 16,  /* queries whose weights skv_sum_block adds: the widest native vector */
    SKV_TILE = 48,   /* keys of one softmax step: a multiple of every register tile, and a tile of
                        logits (6 KiB at W 32) and of keys (24 KiB at D 128) stays near in cache */
    SKV_PARTS = SKV_BLOCK / SKV_LANES
};

#define SKV_LOWEST (-3.402823466e38f) /* -FLT_MAX: no logit is lower, and it is no infinity */

/* ---- Lane maths ---------------------------------------------------------------------------- */

/* A statement for each i below count, a constant: vectors abreast hide each other's latency. */
#define SKV_EACH(statement)                                                                        \
    SKV_UNROLL for (int i = 0; i < SKV_BATCH; i++) {                                               \
        if (i < count) {                                                                           \
            statement;                                                                             \
        }                                                                                          \
    }                                                                                              \
    (void)0

/* exp(x) for x <= 0; worst error 4.5 ULP, near -87, and 1.1 above -10. Exactly 1 at 0, exactly 0
 * from -86.989975 down.
 *
 * x = n ln 2 + r with |r| <= ln(2) / 2. Adding 1.5 * 2^23 rounds x / ln 2 to the integer n and
 * leaves n + 126 in the low bits; n comes back through integers, since fast-math would cancel the
 * floats. n ln 2 is exact inside the multiply-add but for the rounding of ln 2 itself, 1.9e-9 n:
 * the price of leaving out its second part, 2 % of the votes' time. The polynomial is 2 exp(r),
 * minimax in relative error with its first two coefficients fixed (3.1e-9, Remez). The factor
 * 2^(n-1) is 0 at n = -126, where x is clamped: no subnormal appears, whose flushing would change
 * bits. */
SKV_INLINE void skv_exp_each(skv_vec *x, const int count) {
    const skv_vec magic = skv_set1(12583038.0f); /* 1.5 * 2^23 + 126; its bits are 0x4B40007E */
    const float coefficients[] = {0.0167374332f, 0.083336778f, 0.333330423f, 0.999999881f, 2, 2};
    skv_int t[SKV_BATCH];
    skv_vec n[SKV_BATCH], r[SKV_BATCH], p[SKV_BATCH];
    SKV_EACH(x[i] = skv_max(x[i], skv_set1(-87.4f))); /* rounds to n = -126 */
    SKV_EACH(t[i] = skv_bits(skv_fma(x[i], skv_set1(1.44269504f), magic)));
    SKV_EACH(n[i] = skv_to_float(skv_int_sub(t[i], skv_int_set1(0x4B40007E))));
    SKV_EACH(r[i] = skv_fnma(n[i], skv_set1(0.693147182f), x[i]));
    SKV_EACH(p[i] = skv_set1(0.00276291976f));
    SKV_UNROLL for (int c = 0; c < 6; c++) {
        SKV_EACH(p[i] = skv_fma(p[i], r[i], skv_set1(coefficients[c])));
    }
    SKV_EACH(x[i] = skv_mul(p[i], skv_from_bits(skv_int_shl(t[i], 23))));
}

/* One vector; out of line, for it is no hot path and has many callers. */
SKV_NOINLINE skv_vec skv_exp(skv_vec x) {
    skv_exp_each(&x, 1);
    return x;
}

/* The magnitude's bits: above 0x7F7FFFFF for infinities and NaN, whatever -ffast-math assumes. */
SKV_INLINE skv_int skv_magnitude(skv_vec a) {
    return skv_int_and(skv_bits(a), skv_int_set1(0x7FFFFFFF));
}

SKV_INLINE int skv_any_not_finite(skv_int magnitudes) {
    return skv_mask_bits(skv_int_gt(magnitudes, skv_int_set1(0x7F7FFFFF))) != 0;
}

/* tanh(x); worst error 1.6 ULP. From exp(-2 |x|), and near 0, where that cancels, x + x^3 P(x^2)
 * (minimax on |x| <= 0.625, 4.1e-9, Remez). */
SKV_INLINE skv_vec skv_tanh(skv_vec x) {
    const skv_int sign = skv_int_and(skv_bits(x), skv_int_set1((int32_t)-0x7FFFFFFF - 1));
    const skv_vec a = skv_from_bits(skv_magnitude(x));
    const skv_vec one = skv_set1(1.0f);
    const skv_vec e = skv_exp(skv_mul(a, skv_set1(-2.0f)));
    const skv_vec large = skv_div(skv_sub(one, e), skv_add(one, e));
    const skv_vec z = skv_mul(a, a);
    skv_vec p = skv_set1(-0.00571705f);
    p = skv_fma(p, z, skv_set1(0.02065059f));
    p = skv_fma(p, z, skv_set1(-0.0537435f));
    p = skv_fma(p, z, skv_set1(0.13331491f));
    p = skv_fma(p, z, skv_set1(-0.33333284f));
    const skv_vec near_zero = skv_fma(skv_mul(a, z), p, a);
    const skv_int is_large = skv_int_gt(skv_bits(a), skv_bits(skv_set1(0.625f)));
    return skv_from_bits(skv_int_xor(skv_bits(skv_blend(is_large, large, near_zero)), sign));
}

/* ---- Sizes: saturating, so that SIZE_MAX means "does not fit" ------------------------------- */

SKV_INLINE size_t skv_size_add(size_t a, size_t b) {
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

SKV_INLINE size_t skv_size_mul(size_t a, size_t b) {
    return b != 0 && a > SIZE_MAX / b ? SIZE_MAX : a * b;
}

SKV_INLINE size_t skv_size_min(size_t a, size_t b) {
    return a < b ? a : b;
}

SKV_INLINE size_t skv_round_up(size_t n, size_t step) {
    return skv_size_mul(n / step + (n % step != 0), step);
}

/* ---- Row loading --------------------------------------------------------------------------- */

/* Bytes of an element; 0: the rows are custom. */
SKV_INLINE size_t skv_element_bytes(snapkv_dtype dtype) {
    return dtype == SNAPKV_F32 ? 4 : dtype == SNAPKV_CUSTOM ? 0 : 2;
}

/* What a gather copies of a row; 0: custom rows that don't say. */
SKV_INLINE size_t skv_row_bytes(const snapkv_rows *rows, size_t head_dim) {
    const size_t numbers = skv_size_mul(head_dim, skv_element_bytes(rows->dtype));
    return rows->row_bytes ? rows->row_bytes : numbers;
}

/* What a row occupies, where it is read as numbers too. */
SKV_INLINE size_t skv_row_width(const snapkv_rows *rows, size_t head_dim, int as_numbers) {
    const size_t numbers = skv_size_mul(head_dim, skv_element_bytes(rows->dtype));
    const size_t bytes = skv_row_bytes(rows, head_dim);
    const size_t width = as_numbers && bytes < numbers ? numbers : bytes;
    return width ? width : 1; /* custom rows that nobody gathers: at least a byte */
}

SKV_INLINE const char *skv_row(const snapkv_rows *rows, size_t head, size_t position) {
    const char *base = (const char *)rows->data;
    if (rows->block_table) {
        /* Positions fit in 31 bits, and a division of 32 is much cheaper than one of 64. */
        const uint32_t block_rows = (uint32_t)skv_size_min(rows->block_rows, UINT32_MAX);
        const uint32_t block = (uint32_t)position / block_rows;
        base += (size_t)rows->block_table[block] * rows->block_stride;
        position -= (size_t)block * block_rows;
    }
    return base + (head ? head * rows->head_stride : 0) + position * rows->row_stride;
}

/* One row to floats, exactly. out has room for head_dim rounded up to SKV_BLOCK. */
SKV_NOINLINE void skv_decode_row(const snapkv_rows *rows, const char *row, size_t head_dim,
                                 float *out) {
    if (rows->dtype == SNAPKV_CUSTOM) {
        rows->decode(row, out, head_dim);
    } else if (rows->dtype == SNAPKV_F32) {
        memcpy(out, row, head_dim * sizeof(float));
    } else {
        const int is_f16 = rows->dtype == SNAPKV_F16;
        size_t d = 0;
        for (; d + SKV_LANES <= head_dim; d += SKV_LANES) {
            const char *p = row + 2 * d;
            skv_store(out + d, is_f16 ? skv_load_f16(p) : skv_load_bf16(p));
        }
        if (d < head_dim) { /* the rest as a padded copy, since nothing behind the row is ours */
            uint16_t rest[SKV_LANES] = {0};
            memcpy(rest, row + 2 * d, 2 * (head_dim - d));
            skv_store(out + d, is_f16 ? skv_load_f16(rest) : skv_load_bf16(rest));
        }
    }
}

/* ---- A scan: the queries of some heads against the keys of one K/V head ---------------------- */

/* Its sizes, and what they take of the workspace, in floats (int32 positions count as such). */
typedef struct skv_plan {
    size_t n_heads;    /* query heads that share each key tile while it is in cache */
    size_t n_queries;  /* per head: the window, or 1 */
    size_t n_lanes;    /* n_queries, in whole blocks */
    size_t n_votes;    /* first keys whose weights are asked for */
    size_t first_tile; /* first tile that a query sees: a span hides what lies before */
    size_t vote_tiles; /* end of the tiles that hold votes */
    size_t fixed;      /* floats that every run needs */
    size_t per_tile;   /* floats that keep the weights of one tile for the last pass */
} skv_plan;

typedef struct skv_scan {
    skv_plan plan;
    const snapkv_layer *layer;
    size_t first_head;   /* query heads first_head .. first_head + n_heads - 1 */
    size_t n_stored;     /* tiles whose weights are kept; the rest is computed again */
    float *queries;      /* [n_heads][n_lanes / 16][head_dim][16], scaled; unused lanes 0 */
    float *key_rows;     /* [SKV_TILE][pitch]: one tile decoded */
    float *tile;         /* [SKV_TILE][n_lanes]: logits, then weights of a tile not kept */
    float *first;        /* [n_lanes] int32: first position that the query sees */
    float *position;     /* [n_lanes] int32: the query's own; unused lanes: -1, they see nothing */
    float *running_max;  /* [n_heads][n_lanes] */
    float *running_sum;  /* [n_heads][n_lanes]; 0 in lanes that see nothing */
    float *replay_max;   /* [n_lanes] */
    float *replay_sum;   /* [n_lanes] */
    float *factors;      /* [n_lanes] */
    float *votes;        /* [length] of one head */
    float *scores;       /* [length] pooled and reduced */
    float *total_votes;  /* [length] summed over the heads of a set */
    float *stored;       /* [n_stored][n_heads][SKV_TILE + 1][n_lanes]: weights, then the maximum */
} skv_scan;

/* Sizes of a scan; first_position is that of the first query. fixed is SIZE_MAX on overflow. */
SKV_NOINLINE skv_plan skv_make_plan(const snapkv_layer *layer, size_t n_heads, size_t n_queries,
                                    size_t n_votes, size_t first_position) {
    skv_plan plan;
    const size_t span = layer->span;
    const size_t first = span && span <= first_position ? first_position - span + 1 : 0;
    plan.n_heads = n_heads;
    plan.n_queries = n_queries;
    plan.n_lanes = skv_round_up(n_queries, SKV_BLOCK);
    plan.n_votes = n_votes;
    plan.first_tile = skv_size_min(first, layer->length) / SKV_TILE;
    plan.vote_tiles = n_votes / SKV_TILE + (n_votes % SKV_TILE != 0);
    const size_t head_lanes = skv_size_mul(n_heads, plan.n_lanes);
    const size_t pitch = skv_round_up(layer->head_dim, SKV_BLOCK);
    plan.fixed = skv_size_mul(head_lanes, layer->head_dim);
    plan.fixed = skv_size_add(plan.fixed, skv_size_mul(SKV_TILE, pitch));
    plan.fixed = skv_size_add(plan.fixed, skv_size_mul(SKV_TILE + 5, plan.n_lanes));
    plan.fixed = skv_size_add(plan.fixed, skv_size_mul(2, head_lanes));
    plan.fixed = skv_size_add(plan.fixed, skv_size_mul(3, layer->length));
    plan.per_tile = skv_size_mul(SKV_TILE + 1, head_lanes);
    return plan;
}

enum { SKV_ALIGN = 64 }; /* of the arrays inside a workspace: a cache line and the widest vector */

SKV_INLINE size_t skv_workspace_bytes(size_t floats) {
    return skv_size_add(skv_size_mul(floats, sizeof(float)), SKV_ALIGN - sizeof(float));
}

SKV_INLINE float *skv_take(float **next, size_t floats) {
    float *taken = *next;
    *next += floats;
    return taken;
}

/* Lays a scan out in a workspace of at least skv_workspace_bytes(plan->fixed). */
SKV_NOINLINE void skv_start_scan(skv_scan *scan, const skv_plan *plan, const snapkv_layer *layer,
                                 size_t first_head, void *workspace, size_t workspace_size) {
    const size_t pad = (0 - (uintptr_t)workspace) % SKV_ALIGN;
    const size_t floats = (workspace_size - pad) / sizeof(float);
    const size_t head_lanes = plan->n_heads * plan->n_lanes;
    float *next = (float *)(void *)((char *)workspace + pad);
    scan->plan = *plan;
    scan->layer = layer;
    scan->first_head = first_head;
    scan->queries = skv_take(&next, head_lanes * layer->head_dim);
    scan->key_rows = skv_take(&next, SKV_TILE * skv_round_up(layer->head_dim, SKV_BLOCK));
    scan->tile = skv_take(&next, SKV_TILE * plan->n_lanes);
    scan->first = skv_take(&next, plan->n_lanes);
    scan->position = skv_take(&next, plan->n_lanes);
    scan->running_max = skv_take(&next, head_lanes);
    scan->running_sum = skv_take(&next, head_lanes);
    scan->replay_max = skv_take(&next, plan->n_lanes);
    scan->replay_sum = skv_take(&next, plan->n_lanes);
    scan->factors = skv_take(&next, plan->n_lanes);
    scan->votes = skv_take(&next, layer->length);
    scan->scores = skv_take(&next, layer->length);
    scan->total_votes = skv_take(&next, layer->length);
    scan->stored = next;
    scan->n_stored = skv_size_min((floats - plan->fixed) / plan->per_tile,
                                  plan->vote_tiles - plan->first_tile);
}

/* The kept weights of one head's tile; behind them [n_lanes] the maximum they are relative to. */
SKV_INLINE float *skv_stored_tile(const skv_scan *scan, size_t tile, size_t head) {
    const size_t index = (tile - scan->plan.first_tile) * scan->plan.n_heads + head;
    return scan->stored + index * (SKV_TILE + 1) * scan->plan.n_lanes;
}

/* Reads the queries of the scan's heads, scales them, and turns them so that lanes are queries.
 * rows holds head first_row_head and those behind it; row 0 is position first_position. */
SKV_NOINLINE void skv_pack_queries(skv_scan *scan, const snapkv_rows *rows, size_t first_row_head,
                                   size_t first_position) {
    const snapkv_layer *layer = scan->layer;
    const size_t head_dim = layer->head_dim, n_lanes = scan->plan.n_lanes;
    const float scale = layer->scale != 0.0f ? layer->scale : 1.0f / SKV_SQRTF((float)head_dim);
    float *row = scan->key_rows; /* free until the first tile */
    memset(scan->queries, 0, scan->plan.n_heads * n_lanes * head_dim * sizeof(float));
    for (size_t head = 0; head < scan->plan.n_heads; head++) {
        float *out = scan->queries + head * n_lanes * head_dim;
        for (size_t i = 0; i < scan->plan.n_queries; i++) {
            float *lane = out + i / SKV_BLOCK * SKV_BLOCK * head_dim + i % SKV_BLOCK;
            skv_decode_row(rows, skv_row(rows, first_row_head + head, i), head_dim, row);
            for (size_t d = 0; d < head_dim; d++) {
                lane[d * SKV_BLOCK] = row[d] * scale;
            }
        }
    }
    for (size_t i = 0; i < n_lanes; i++) {
        const size_t t = first_position + i;
        int32_t position = -1;
        int32_t first = 0;
        if (i < scan->plan.n_queries) {
            position = (int32_t)t;
            first = layer->span && layer->span <= t ? (int32_t)(t - layer->span + 1) : 0;
        }
        memcpy(scan->position + i, &position, sizeof position);
        memcpy(scan->first + i, &first, sizeof first);
    }
    for (size_t i = 0; i < scan->plan.n_heads * n_lanes; i++) {
        scan->running_max[i] = SKV_LOWEST;
        scan->running_sum[i] = 0.0f;
    }
}

/* ---- Logits ---------------------------------------------------------------------------------- */

/* One register tile: keys against vectors of queries. */
typedef struct skv_dot {
    const float *queries[SKV_TILE_VECS]; /* a vector each; from d to d + 1 SKV_BLOCK floats */
    const float *keys[SKV_TILE_KEYS];
    const char *ahead[SKV_TILE_KEYS]; /* rows whose cache lines are asked for meanwhile, */
    size_t ahead_step;                /* so many bytes per SKV_BLOCK dimensions */
    size_t head_dim;
    float *logits; /* rows n_lanes apart */
    size_t n_lanes;
} skv_dot;

/* Each logit is one chain of multiply-adds over head_dim, whatever the vector width. */
SKV_INLINE void skv_dot_tile(const skv_dot *dot, const int n_vecs) {
    skv_vec sum[SKV_TILE_KEYS][SKV_TILE_VECS];
    const size_t head_dim = dot->head_dim;
    SKV_UNROLL for (int k = 0; k < SKV_TILE_KEYS; k++) {
        SKV_UNROLL for (int v = 0; v < SKV_TILE_VECS; v++) {
            sum[k][v] = skv_set1(0.0f);
        }
    }
    size_t d = 0;
    for (size_t line = 0; d < head_dim; line += dot->ahead_step) {
        const size_t end = d + skv_size_min(head_dim - d, SKV_BLOCK);
        SKV_UNROLL for (int k = 0; k < SKV_TILE_KEYS; k++) {
            SKV_PREFETCH(dot->ahead[k] + line);
        }
        for (; d < end; d++) {
            SKV_STEP_BY_STEP();
            skv_vec query[SKV_TILE_VECS];
            SKV_UNROLL for (int v = 0; v < SKV_TILE_VECS; v++) {
                if (v < n_vecs) {
                    query[v] = skv_load(dot->queries[v] + d * SKV_BLOCK);
                }
            }
            SKV_UNROLL for (int k = 0; k < SKV_TILE_KEYS; k++) {
                const skv_vec key = skv_set1(dot->keys[k][d]);
                SKV_UNROLL for (int v = 0; v < SKV_TILE_VECS; v++) {
                    if (v < n_vecs) {
                        sum[k][v] = skv_fma(key, query[v], sum[k][v]);
                    }
                }
            }
        }
    }
    SKV_UNROLL for (int k = 0; k < SKV_TILE_KEYS; k++) {
        SKV_UNROLL for (int v = 0; v < SKV_TILE_VECS; v++) {
            if (v < n_vecs) {
                skv_store(dot->logits + (size_t)k * dot->n_lanes + v * SKV_LANES, sum[k][v]);
            }
        }
    }
}

/* Out of line, where all registers are theirs: inlined, GCC 12 spilled pointers in the inner loop
 * and lost 15 % (AVX2, L 4096). */
SKV_NOINLINE void skv_dot_all(const skv_dot *dot) {
    skv_dot_tile(dot, SKV_TILE_VECS);
}
SKV_NOINLINE void skv_dot_one(const skv_dot *dot) {
    skv_dot_tile(dot, 1);
}

/* A tile of keys as evenly spaced floats: where they lie, or decoded. */
typedef struct skv_keys {
    const char *rows;
    size_t stride; /* bytes */
    size_t first;  /* position */
    size_t count;
    size_t kv_head;
    size_t ahead; /* how many keys on to prefetch */
} skv_keys;

/* 3000 cycles ahead at W 32, D 128: far above the latency of memory; 6 to 48 measured alike. Where
 * a tile is decoded as a whole, the next tile is prefetched. */
enum { SKV_KEYS_AHEAD = 12 };

static inline skv_keys skv_load_keys(const skv_scan *scan, size_t tile) {
    const snapkv_layer *layer = scan->layer;
    const snapkv_rows *rows = &layer->keys;
    skv_keys keys;
    keys.first = tile * SKV_TILE;
    keys.count = skv_size_min(layer->length - keys.first, SKV_TILE);
    keys.kv_head = scan->first_head / (layer->n_query_heads / layer->n_kv_heads);
    const int one_block =
        !rows->block_table || keys.first % rows->block_rows + keys.count <= rows->block_rows;
    if (rows->dtype == SNAPKV_F32 && one_block) {
        keys.rows = skv_row(rows, keys.kv_head, keys.first);
        keys.stride = rows->row_stride;
        keys.ahead = SKV_KEYS_AHEAD;
        return keys;
    }
    const size_t pitch = skv_round_up(layer->head_dim, SKV_BLOCK);
    for (size_t k = 0; k < keys.count; k++) {
        const char *row = skv_row(rows, keys.kv_head, keys.first + k);
        skv_decode_row(rows, row, layer->head_dim, scan->key_rows + k * pitch);
    }
    keys.rows = (const char *)scan->key_rows;
    keys.stride = pitch * sizeof(float);
    keys.ahead = SKV_TILE;
    return keys;
}

/* The dot products of one head's queries with a tile of keys: logits [SKV_TILE][n_lanes]. */
static inline void skv_logits(const skv_scan *scan, size_t head, const skv_keys *keys,
                              float *logits) {
    const snapkv_layer *layer = scan->layer;
    const size_t head_dim = layer->head_dim, n_lanes = scan->plan.n_lanes;
    const size_t n_vecs = (scan->plan.n_queries + SKV_LANES - 1) / SKV_LANES;
    const float *packed = scan->queries + head * n_lanes * head_dim;
    skv_dot dot;
    dot.ahead_step = skv_element_bytes(layer->keys.dtype) * SKV_BLOCK;
    dot.head_dim = head_dim;
    dot.n_lanes = n_lanes;
    for (size_t k = 0; k < keys->count; k += SKV_TILE_KEYS) {
        /* Behind the last key the register tile repeats it: there is room for those logits. */
        for (size_t i = 0; i < SKV_TILE_KEYS; i++) {
            const size_t j = skv_size_min(k + i, keys->count - 1);
            const size_t next = skv_size_min(keys->first + j + keys->ahead, layer->length - 1);
            dot.keys[i] = (const float *)(const void *)(keys->rows + j * keys->stride);
            dot.ahead[i] = skv_row(&layer->keys, keys->kv_head, next);
        }
        for (size_t v = 0; v < n_vecs;) {
            const size_t step = v + SKV_TILE_VECS <= n_vecs ? SKV_TILE_VECS : 1;
            dot.logits = logits + k * n_lanes + v * SKV_LANES;
            for (size_t i = 0; i < step; i++) {
                const size_t lane = (v + i) * SKV_LANES, in_block = lane % SKV_BLOCK;
                dot.queries[i] = packed + (lane - in_block) * head_dim + in_block;
            }
            if (step == SKV_TILE_VECS) {
                skv_dot_all(&dot);
            } else {
                skv_dot_one(&dot);
            }
            v += step;
        }
    }
    /* The softmax step takes whole tiles; its masks hide what is not there. */
    memset(logits + keys->count * n_lanes, 0, (SKV_TILE - keys->count) * n_lanes * sizeof(float));
}

/* ---- Softmax --------------------------------------------------------------------------------- */

/* Which lanes see key k of a tile: first <= j <= position. Rows behind the last key nobody sees:
 * they lie before every first. */
SKV_INLINE skv_int skv_visible(const skv_scan *scan, const skv_keys *keys, size_t lane, size_t k) {
    const skv_int j = skv_int_set1(k < keys->count ? (int32_t)(keys->first + k) : -1);
    const skv_int late = skv_int_gt(j, skv_int_load(scan->position + lane));
    const skv_int early = skv_int_gt(skv_int_load(scan->first + lane), j);
    return skv_int_and(skv_int_xor(late, skv_int_set1(-1)), skv_int_xor(early, skv_int_set1(-1)));
}

/* Soft cap, ALiBi and mask on the dot products of one vector of queries. A logit that is not seen
 * becomes SKV_LOWEST. Returns the largest magnitude seen, before the cap can hide it and after. */
SKV_NOINLINE skv_int skv_shape_logits(const skv_scan *scan, size_t head, const skv_keys *keys,
                                      size_t lane, float *logits) {
    const snapkv_layer *layer = scan->layer;
    const float *slopes = layer->alibi_slopes;
    const skv_vec cap = skv_set1(layer->softcap);
    const skv_vec slope = skv_set1(slopes ? slopes[scan->first_head + head] : 0.0f);
    skv_int worst = skv_int_set1(0);
    for (size_t k = 0; k < SKV_TILE; k++) {
        float *p = logits + k * scan->plan.n_lanes;
        const skv_int seen = skv_visible(scan, keys, lane, k);
        skv_vec logit = skv_load(p);
        worst = skv_int_max(worst, skv_int_and(skv_magnitude(logit), seen));
        if (layer->softcap != 0.0f) {
            logit = skv_mul(cap, skv_tanh(skv_div(logit, cap)));
        }
        if (slopes) {
            const skv_int distance = skv_int_sub(skv_int_set1((int32_t)(keys->first + k)),
                                                 skv_int_load(scan->position + lane));
            logit = skv_fma(slope, skv_to_float(distance), logit);
        }
        worst = skv_int_max(worst, skv_int_and(skv_magnitude(logit), seen));
        skv_store(p, skv_blend(seen, logit, skv_set1(SKV_LOWEST)));
    }
    return worst;
}

/* One softmax step of one vector of queries over a tile: logits become weights exp(logit - m) with
 * the running maximum m, and m and the running sum go on. Returns the largest magnitude of a logit.
 * is_shaped, a constant: not all is plainly visible dot products. */
SKV_INLINE skv_int skv_softmax_lanes(const skv_scan *scan, size_t head, const skv_keys *keys,
                                     size_t lane, float *tile, float *running_max,
                                     float *running_sum, const int is_shaped) {
    const size_t n_lanes = scan->plan.n_lanes;
    const skv_vec old = skv_load(running_max);
    skv_vec peak = old, sum = skv_set1(0.0f);
    skv_int worst = skv_int_set1(0);
    if (is_shaped) {
        worst = skv_shape_logits(scan, head, keys, lane, tile);
    }
    for (size_t k = 0; k < SKV_TILE; k += SKV_BATCH) {
        SKV_UNROLL for (size_t i = 0; i < SKV_BATCH; i++) {
            const skv_vec logit = skv_load(tile + (k + i) * n_lanes);
            if (!is_shaped) {
                worst = skv_int_max(worst, skv_magnitude(logit));
            }
            peak = skv_max(logit, peak);
        }
    }
    for (size_t k = 0; k < SKV_TILE; k += SKV_BATCH) {
        skv_vec weight[SKV_BATCH];
        SKV_UNROLL for (size_t i = 0; i < SKV_BATCH; i++) {
            weight[i] = skv_sub(skv_load(tile + (k + i) * n_lanes), peak);
        }
        skv_exp_each(weight, SKV_BATCH);
        SKV_UNROLL for (size_t i = 0; i < SKV_BATCH; i++) {
            if (is_shaped) {
                const skv_int seen = skv_visible(scan, keys, lane, k + i);
                weight[i] = skv_blend(seen, weight[i], skv_set1(0.0f));
            }
            skv_store(tile + (k + i) * n_lanes, weight[i]);
            sum = skv_add(sum, weight[i]);
        }
    }
    skv_store(running_max, peak);
    skv_store(running_sum, skv_fma(skv_load(running_sum), skv_exp(skv_sub(old, peak)), sum));
    return worst;
}

/* The same for all queries of one head. Returns whether a logit that is seen isn't finite. */
static inline int skv_softmax_tile(const skv_scan *scan, size_t head, const skv_keys *keys,
                                   float *tile, float *running_max, float *running_sum) {
    const snapkv_layer *layer = scan->layer;
    const size_t n_queries = scan->plan.n_queries;
    int32_t first_query, last_first;
    memcpy(&first_query, scan->position, sizeof first_query);
    memcpy(&last_first, scan->first + n_queries - 1, sizeof last_first);
    const int is_masked = keys->count < SKV_TILE || keys->first < (size_t)last_first ||
                          keys->first + SKV_TILE > (size_t)first_query + 1;
    const int is_shaped = is_masked || layer->softcap != 0.0f || layer->alibi_slopes != NULL;
    skv_int worst = skv_int_set1(0);
    for (size_t lane = 0; lane < n_queries; lane += SKV_LANES) {
        float *p = tile + lane, *peak = running_max + lane, *sum = running_sum + lane;
        worst = skv_int_max(
            worst, is_shaped ? skv_softmax_lanes(scan, head, keys, lane, p, peak, sum, 1)
                             : skv_softmax_lanes(scan, head, keys, lane, p, peak, sum, 0));
    }
    return skv_any_not_finite(worst);
}

/* The first pass: the softmax statistics of every head, and the weights of as many tiles as the
 * workspace keeps. */
SKV_NOINLINE snapkv_status skv_scan_keys(skv_scan *scan) {
    const skv_plan *plan = &scan->plan;
    const size_t n_tiles = skv_round_up(scan->layer->length, SKV_TILE) / SKV_TILE;
    int not_finite = 0;
    for (size_t tile = plan->first_tile; tile < n_tiles; tile++) {
        const skv_keys keys = skv_load_keys(scan, tile);
        const int keep = tile - plan->first_tile < scan->n_stored;
        for (size_t head = 0; head < plan->n_heads; head++) {
            float *weights = keep ? skv_stored_tile(scan, tile, head) : scan->tile;
            float *peak = scan->running_max + head * plan->n_lanes;
            float *sum = scan->running_sum + head * plan->n_lanes;
            skv_logits(scan, head, &keys, weights);
            not_finite |= skv_softmax_tile(scan, head, &keys, weights, peak, sum);
            if (keep) {
                memcpy(weights + SKV_TILE * plan->n_lanes, peak, plan->n_lanes * sizeof(float));
            }
        }
    }
    for (size_t head = 0; head < plan->n_heads; head++) {
        float *peak = scan->running_max + head * plan->n_lanes;
        float *sum = scan->running_sum + head * plan->n_lanes;
        const float *sinks = scan->layer->sink_logits;
        if (sinks) {
            const skv_vec sink = skv_set1(sinks[scan->first_head + head]);
            for (size_t lane = 0; lane < plan->n_queries; lane += SKV_LANES) {
                const skv_vec old = skv_load(peak + lane);
                const skv_vec all = skv_max(sink, old);
                skv_store(peak + lane, all);
                skv_store(sum + lane, skv_fma(skv_load(sum + lane), skv_exp(skv_sub(old, all)),
                                              skv_exp(skv_sub(sink, all))));
            }
        }
        for (size_t lane = plan->n_queries; lane < plan->n_lanes; lane++) {
            sum[lane] = 0.0f; /* unused lanes weigh nothing */
        }
    }
    return not_finite ? SNAPKV_ERROR_NOT_FINITE : SNAPKV_OK;
}

/* ---- Votes ----------------------------------------------------------------------------------- */

/* The last pass of one head: the weights of each key, brought to the final maximum and divided by
 * the sum, added over the queries. Tiles that were not kept are computed again. */
SKV_NOINLINE void skv_sum_votes(skv_scan *scan, size_t head, float *votes) {
    const skv_plan *plan = &scan->plan;
    const size_t n_lanes = plan->n_lanes;
    const size_t n_vecs = (plan->n_queries + SKV_LANES - 1) / SKV_LANES;
    const float *final_max = scan->running_max + head * n_lanes;
    const float *final_sum = scan->running_sum + head * n_lanes;
    memset(votes, 0, skv_size_min(plan->first_tile * SKV_TILE, plan->n_votes) * sizeof(float));
    for (size_t i = 0; i < n_lanes; i++) {
        scan->replay_max[i] = SKV_LOWEST;
        scan->replay_sum[i] = 0.0f;
    }
    for (size_t tile = plan->first_tile; tile < plan->vote_tiles; tile++) {
        const float *weights = scan->tile;
        if (tile - plan->first_tile < scan->n_stored) {
            weights = skv_stored_tile(scan, tile, head);
            memcpy(scan->replay_max, weights + SKV_TILE * n_lanes, n_lanes * sizeof(float));
        } else {
            const skv_keys keys = skv_load_keys(scan, tile);
            skv_logits(scan, head, &keys, scan->tile);
            skv_softmax_tile(scan, head, &keys, scan->tile, scan->replay_max, scan->replay_sum);
        }
        for (size_t v = 0; v < n_vecs; v++) {
            const size_t lane = v * SKV_LANES;
            const skv_vec sum = skv_load(final_sum + lane);
            const skv_vec decay = skv_exp(skv_sub(skv_load(scan->replay_max + lane),
                                                  skv_load(final_max + lane)));
            const skv_int used = skv_int_gt(skv_bits(sum), skv_int_set1(0));
            /* No sum is below 1, the weight of the maximum; a lane that sees nothing has 0. */
            const skv_vec divisor = skv_max(sum, skv_set1(1.0f));
            skv_store(scan->factors + lane,
                      skv_blend(used, skv_div(decay, divisor), skv_set1(0.0f)));
        }
        const size_t first = tile * SKV_TILE;
        const size_t count = skv_size_min(plan->n_votes - first, SKV_TILE);
        for (size_t k = 0; k < count; k++) {
            skv_vec parts[SKV_PARTS];
            SKV_UNROLL for (int i = 0; i < SKV_PARTS; i++) {
                parts[i] = skv_set1(0.0f);
            }
            for (size_t v = 0; v < n_vecs; v += SKV_PARTS) {
                SKV_UNROLL for (size_t i = 0; i < SKV_PARTS; i++) {
                    if (v + i < n_vecs) {
                        const size_t lane = (v + i) * SKV_LANES;
                        parts[i] = skv_fma(skv_load(weights + k * n_lanes + lane),
                                           skv_load(scan->factors + lane), parts[i]);
                    }
                }
            }
            votes[first + k] = skv_sum_block(parts);
        }
    }
}

/* ---- Pooling and reduction ------------------------------------------------------------------- */

/* votes[p .. p + SKV_LANES - 1], with `fill` in place of what lies outside 0 .. n - 1. */
SKV_INLINE skv_vec skv_load_inside(const float *votes, size_t n, ptrdiff_t p, float fill) {
    if (p >= 0 && (size_t)p + SKV_LANES <= n) {
        return skv_load(votes + p);
    }
    float lanes[SKV_LANES];
    for (ptrdiff_t i = 0; i < SKV_LANES; i++) {
        lanes[i] = p + i >= 0 && (size_t)(p + i) < n ? votes[p + i] : fill;
    }
    return skv_load(lanes);
}

/* The pooled scores of positions j .. j + SKV_LANES - 1. One running sum in order of position:
 * equal neighbourhoods, and windows cut to the same positions, tie exactly. */
SKV_INLINE skv_vec skv_pool_lanes(const float *votes, size_t n, size_t kernel_size,
                                  snapkv_pooling pooling, size_t j) {
    /* A radius of n already reaches everything from everywhere. */
    const size_t radius = skv_size_min(kernel_size / 2, n);
    const size_t reach = radius < j + SKV_LANES - 1 ? 0 : radius - (j + SKV_LANES - 1);
    const size_t last = skv_size_min(2 * radius, n - 1 - j + radius);
    const int average = pooling == SNAPKV_POOL_AVG;
    const float fill = average ? 0.0f : SKV_LOWEST;
    skv_vec all = skv_set1(fill);
    for (size_t i = reach; i <= last; i++) { /* offsets whose positions are not all outside */
        const ptrdiff_t p = (ptrdiff_t)(j + i) - (ptrdiff_t)radius;
        const skv_vec vote = skv_load_inside(votes, n, p, fill);
        all = average ? skv_add(all, vote) : skv_max(vote, all);
    }
    return average ? skv_div(all, skv_set1((float)kernel_size)) : all;
}

/* Stores the first lanes of a vector into out[j .. n - 1]. */
SKV_INLINE void skv_store_inside(float *out, size_t n, size_t j, skv_vec a) {
    if (n - j >= SKV_LANES) {
        skv_store(out + j, a);
    } else {
        float lanes[SKV_LANES];
        skv_store(lanes, a);
        memcpy(out + j, lanes, (n - j) * sizeof(float));
    }
}

/* Pools the votes of a query head into the scores of its set, and adds them to the set's total. */
SKV_NOINLINE void skv_add_head(const skv_scan *scan, const snapkv_config *config, int is_first) {
    const float *votes = scan->votes;
    float *scores = scan->scores, *total = scan->total_votes;
    const size_t n = scan->plan.n_votes;
    for (size_t j = 0; j < n; j += SKV_LANES) {
        skv_vec pooled = skv_pool_lanes(votes, n, config->kernel_size, config->pooling, j);
        skv_vec sum = skv_load_inside(votes, n, (ptrdiff_t)j, 0.0f);
        if (!is_first) {
            const skv_vec score = skv_load_inside(scores, n, (ptrdiff_t)j, 0.0f);
            pooled = config->reduce == SNAPKV_REDUCE_MAX ? skv_max(pooled, score)
                                                         : skv_add(score, pooled);
            sum = skv_add(skv_load_inside(total, n, (ptrdiff_t)j, 0.0f), sum);
        }
        skv_store_inside(scores, n, j, pooled);
        skv_store_inside(total, n, j, sum);
    }
}

/* The sum of n votes, in runs of SKV_TILE vectors of SKV_BLOCK lanes, each by one tree. */
SKV_NOINLINE float skv_sum(const float *votes, size_t n) {
    float sum = 0.0f;
    for (size_t j = 0; j < n;) {
        const size_t end = j + skv_size_min(n - j, SKV_TILE * SKV_BLOCK);
        skv_vec parts[SKV_PARTS];
        SKV_UNROLL for (int i = 0; i < SKV_PARTS; i++) {
            parts[i] = skv_set1(0.0f);
        }
        for (; j < end; j += SKV_BLOCK) {
            SKV_UNROLL for (size_t i = 0; i < SKV_PARTS; i++) {
                const ptrdiff_t p = (ptrdiff_t)(j + i * SKV_LANES);
                parts[i] = skv_add(parts[i], skv_load_inside(votes, n, p, 0.0f));
            }
        }
        sum += skv_sum_block(parts);
    }
    return sum;
}

/* The share of n_rows attention rows that is left when only `kept` stays: what the others hold is
 * subtracted, so that sinks, the window and rounding count as kept. Clears the kept votes. */
SKV_NOINLINE float skv_kept_share(float *votes, size_t n, const int32_t *kept, size_t n_kept,
                                  float n_rows) {
    for (size_t i = 0; i < n_kept; i++) {
        if ((size_t)kept[i] < n) {
            votes[kept[i]] = 0.0f;
        }
    }
    const float share = 1.0f - skv_sum(votes, n) / n_rows;
    return share < 0.0f ? 0.0f : share;
}

/* ---- Top-k ----------------------------------------------------------------------------------- */

/* Scores as integers of the same order; +0 and -0 are one. */
SKV_INLINE skv_int skv_code(skv_vec score) {
    const skv_int magnitude = skv_magnitude(score);
    const skv_int negative = skv_int_gt(skv_int_set1(0), skv_bits(score));
    return skv_int_sub(skv_int_xor(magnitude, negative), negative);
}

/* The same where only codes from `low` up matter: above 0 they are the scores' own bits, and the
 * bits of all other scores lie below (131072 scores, AVX2: 73 to 60 us). */
SKV_INLINE skv_int skv_code_from(skv_vec score, int32_t low) {
    return low > 0 ? skv_bits(score) : skv_code(score);
}

SKV_INLINE int32_t skv_code_at(const float *scores, size_t i) {
    int32_t bits;
    memcpy(&bits, scores + i, sizeof bits);
    return bits < 0 ? -(bits & 0x7FFFFFFF) : bits;
}

SKV_NOINLINE int skv_all_finite(const float *scores, size_t n) {
    skv_int worst = skv_int_set1(0);
    for (size_t j = 0; j < n; j += SKV_LANES) {
        const skv_vec score = skv_load_inside(scores, n, (ptrdiff_t)j, 0.0f);
        worst = skv_int_max(worst, skv_magnitude(score));
    }
    return !skv_any_not_finite(worst);
}

enum {
    SKV_GROUP = 32,     /* scores looked at before a branch: the bits of a word */
    SKV_BINS = 512,     /* of a round: 4 rounds for 32 bits, 2 KiB of stack */
    SKV_SAMPLES = 1024, /* leaves some 4000 of 131072 scores in question; 4 KiB of stack */
    SKV_SLACK = 4       /* standard deviations of a rank in the sample: misses 1 guess in 16000 */
};

/* A bit for each of scores[j .. j + SKV_GROUP - 1] whose code lies in low .. high. */
SKV_INLINE uint32_t skv_codes_in(const float *scores, size_t n, size_t j, int32_t low,
                                 int32_t high) {
    uint32_t found = 0;
    if (n - j < SKV_GROUP) {
        for (size_t i = 0; i < n - j; i++) {
            const int32_t code = skv_code_at(scores, j + i);
            found |= (uint32_t)(low <= code && code <= high) << i;
        }
        return found;
    }
    const skv_int under = skv_int_set1(low - 1), over = skv_int_set1(high + 1);
    SKV_UNROLL for (int i = 0; i < SKV_GROUP; i += SKV_LANES) {
        const skv_int code = skv_code_from(skv_load(scores + j + i), low);
        const skv_int inside = skv_int_and(skv_int_gt(code, under), skv_int_gt(over, code));
        found |= (uint32_t)skv_mask_bits(inside) << i;
    }
    return found;
}

/* The codes low .. high that are in question, and which of their scores is searched: the rest-th
 * highest. */
typedef struct skv_range {
    int32_t low, high;
    size_t rest;
} skv_range;

/* Narrows a range to one code, or to one whose scores are all among the first. Each round counts
 * the codes in question in 512 equal bins and goes on with the bin that holds the one searched: at
 * most 4 rounds for 32 bits. Out of line, so that its bins stand on the stack once. */
SKV_NOINLINE skv_range skv_narrow(const float *scores, size_t n, skv_range range) {
    while (range.low < range.high) {
        uint32_t count[SKV_BINS];
        const uint32_t low = (uint32_t)range.low, width = (uint32_t)range.high - low;
        int shift = 0;
        while (width >> shift >= SKV_BINS) {
            shift++;
        }
        memset(count, 0, sizeof count);
        for (size_t j = 0; j < n; j += SKV_GROUP) {
            uint32_t found = skv_codes_in(scores, n, j, range.low, range.high);
            for (; found; found &= found - 1) {
                const int32_t code = skv_code_at(scores, j + SKV_LOWEST_BIT(found));
                count[((uint32_t)code - low) >> shift]++;
            }
        }
        uint32_t bin = width >> shift;
        while (count[bin] < range.rest) {
            range.rest -= count[bin];
            bin--;
        }
        const uint32_t bin_low = low + (bin << shift), bin_width = ((uint32_t)1 << shift) - 1;
        range.low = (int32_t)bin_low;
        if ((uint32_t)range.high - bin_low > bin_width) {
            range.high = (int32_t)(bin_low + bin_width);
        }
        if (count[bin] == range.rest) { /* the whole bin */
            break;
        }
    }
    return range;
}

/* Guesses a narrower range from every (n / 1024)-th score, and takes what one count over all scores
 * confirms: the one searched lies above the guess, inside or below. Usually a few thousand scores
 * are left, which the rounds above find among the others 32 at a time. */
SKV_NOINLINE skv_range skv_guess(const float *scores, size_t n, skv_range range) {
    float sample[SKV_SAMPLES];
    const size_t step = n / SKV_SAMPLES;
    for (size_t i = 0; i < SKV_SAMPLES; i++) {
        sample[i] = scores[i * step];
    }
    const size_t rank = range.rest / step; /* about: the deviation is below its root */
    size_t slack = SKV_SLACK;
    while (slack * slack < SKV_SLACK * SKV_SLACK * rank) {
        slack++;
    }
    skv_range top = range, bottom = range;
    top.rest = rank > slack ? rank - slack : 1;
    bottom.rest = skv_size_min(rank + slack, SKV_SAMPLES);
    const int32_t high = skv_narrow(sample, SKV_SAMPLES, top).high;
    const int32_t low = skv_narrow(sample, SKV_SAMPLES, bottom).low;
    const skv_int over = skv_int_set1(high), under = skv_int_set1(low - 1);
    skv_int n_over = skv_int_set1(0), n_under = n_over; /* counted down: a mask lane is -1 */
    const size_t whole = n - n % SKV_LANES;
    for (size_t j = 0; j < whole; j += SKV_LANES) {
        const skv_int code = skv_code_from(skv_load(scores + j), low);
        n_over = skv_int_add(n_over, skv_int_gt(code, over));
        n_under = skv_int_add(n_under, skv_int_gt(code, under));
    }
    int32_t lanes[2][SKV_LANES];
    size_t above = 0, not_below = 0;
    skv_int_store(lanes[0], n_over);
    skv_int_store(lanes[1], n_under);
    for (int i = 0; i < SKV_LANES; i++) {
        above -= (size_t)lanes[0][i];
        not_below -= (size_t)lanes[1][i];
    }
    for (size_t j = whole; j < n; j++) {
        above += skv_code_at(scores, j) > high;
        not_below += skv_code_at(scores, j) >= low;
    }
    if (range.rest <= above) {
        range.low = high + 1;
    } else if (range.rest <= not_below) {
        range.low = low;
        range.high = high;
        range.rest -= above;
    } else {
        range.high = low - 1;
        range.rest -= not_below;
    }
    return range;
}

/* Whether position a comes before position b by score. */
SKV_INLINE int skv_comes_first(const float *scores, int32_t a, int32_t b) {
    const int32_t code_a = skv_code_at(scores, (size_t)a), code_b = skv_code_at(scores, (size_t)b);
    return code_a != code_b ? code_a > code_b : a < b;
}

/* Heapsort: in place, and no worst case. */
SKV_NOINLINE void skv_sort_by_score(const float *scores, int32_t *indices, size_t k) {
    size_t start = k / 2, end = k;
    while (end > 1) {
        int32_t moved;
        if (start > 0) {
            moved = indices[--start];
        } else {
            moved = indices[--end];
            indices[end] = indices[0];
        }
        size_t hole = start;
        for (;;) {
            size_t child = 2 * hole + 1;
            if (child >= end) {
                break;
            }
            if (child + 1 < end && skv_comes_first(scores, indices[child], indices[child + 1])) {
                child++; /* the heap's top comes last */
            }
            if (!skv_comes_first(scores, moved, indices[child])) {
                break;
            }
            indices[hole] = indices[child];
            hole = child;
        }
        indices[hole] = moved;
    }
}

/* The k best of n finite scores, 1 <= k <= n, as positions offset by `base`. */
SKV_NOINLINE void skv_pick_top(const float *scores, size_t n, size_t k, snapkv_order order,
                               size_t base, int32_t *indices) {
    skv_range range = {-0x7F7FFFFF, 0x7F7FFFFF, 0};
    range.rest = k;
    if (n / SKV_SAMPLES >= 16) { /* where a pass over all costs more than those over the sample */
        range = skv_guess(scores, n, range);
    }
    range = skv_narrow(scores, n, range);
    /* All from range.low up, but where that is one code, of its scores only the first. */
    size_t n_found = 0, n_tied = range.low < range.high ? n : range.rest;
    for (size_t j = 0; n_found < k; j += SKV_GROUP) {
        uint32_t found = skv_codes_in(scores, n, j, range.low, 0x7F7FFFFF);
        for (; found; found &= found - 1) {
            const size_t i = j + SKV_LOWEST_BIT(found);
            const int is_tied = skv_code_at(scores, i) == range.low;
            if (n_tied > 0 || !is_tied) {
                indices[n_found++] = (int32_t)i;
                n_tied -= (size_t)is_tied;
            }
        }
    }
    if (order == SNAPKV_BY_SCORE) {
        skv_sort_by_score(scores, indices, k);
    }
    for (size_t i = 0; base && i < k; i++) {
        indices[i] += (int32_t)base;
    }
}

/* ---- Gather ---------------------------------------------------------------------------------- */

/* Scattered rows come from memory: asking for them 16 rows ahead took 8 heads of 1024 rows of 512
 * bytes from 0.68 to 0.50 ms (Zen 4), and costs nothing where they are in cache. The end of longer
 * rows the processor finds by itself. */
enum { SKV_ROWS_AHEAD = 16, SKV_BYTES_AHEAD = 1024 };

/* The rows that kept lists, dst_stride apart. Rows that touch in both places go in one copy. */
SKV_NOINLINE void skv_gather(const snapkv_rows *src, size_t head, size_t bytes,
                             const int32_t *kept, size_t n_kept, char *dst, size_t dst_stride) {
    const int touching = !src->block_table && src->row_stride == bytes && dst_stride == bytes &&
                         dst != skv_row(src, head, 0);
    for (size_t i = 0; i < n_kept;) {
        const char *row = skv_row(src, head, (size_t)kept[i]);
        const size_t later = skv_size_min(i + SKV_ROWS_AHEAD, n_kept - 1);
        const char *ahead = skv_row(src, head, (size_t)kept[later]);
        for (size_t pair = 0; pair < skv_size_min(bytes, SKV_BYTES_AHEAD); pair += 128) {
            SKV_PREFETCH(ahead + pair); /* two lines: the processor takes the other */
        }
        size_t run = 1;
        while (touching && i + run < n_kept && kept[i + run] - kept[i] == (int32_t)run) {
            run++;
        }
        if (row != dst + i * dst_stride) { /* in place: a row that stays */
            SNAPKV_MEMCPY(dst + i * dst_stride, row, run * bytes);
        }
        i += run;
    }
}

/* Four rows of a transposed V at once: an index is read once for all four. In place kept ascends,
 * so no column is read after another was written to it. To one row at a time, 2 bytes, one head in
 * cache / 8 heads of L 32768 from memory (Zen 5): gcc 12 1.6 / 1.4, clang 14 1.4 / 1.4 times. */
SKV_INLINE void skv_move_columns(const int32_t *kept, size_t n_kept, const char *const src[4],
                                 char *const dst[4], const size_t size) {
    const char *s0 = src[0], *s1 = src[1], *s2 = src[2], *s3 = src[3];
    char *d0 = dst[0], *d1 = dst[1], *d2 = dst[2], *d3 = dst[3];
    for (size_t i = 0; i < n_kept; i++) {
        const size_t from = (size_t)kept[i] * size, to = i * size;
        memmove(d0 + to, s0 + from, size);
        memmove(d1 + to, s1 + from, size);
        memmove(d2 + to, s2 + from, size);
        memmove(d3 + to, s3 + from, size);
    }
}

/* A move of a constant size is no call. Each out of line: next to other code GCC runs out of
 * registers for the eight pointers, and half of what is gained is lost. */
SKV_NOINLINE void skv_move_columns_1(const int32_t *kept, size_t n_kept, const char *const src[4],
                                     char *const dst[4]) {
    skv_move_columns(kept, n_kept, src, dst, 1);
}
SKV_NOINLINE void skv_move_columns_2(const int32_t *kept, size_t n_kept, const char *const src[4],
                                     char *const dst[4]) {
    skv_move_columns(kept, n_kept, src, dst, 2);
}
SKV_NOINLINE void skv_move_columns_4(const int32_t *kept, size_t n_kept, const char *const src[4],
                                     char *const dst[4]) {
    skv_move_columns(kept, n_kept, src, dst, 4);
}

/* ---- Validation ------------------------------------------------------------------------------ */

#define SKV_TRY(call)                                                                              \
    do {                                                                                           \
        const snapkv_status skv_tried = (call);                                                    \
        if (skv_tried != SNAPKV_OK) {                                                              \
            return skv_tried;                                                                      \
        }                                                                                          \
    } while (0)

SKV_INLINE int skv_is_finite(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7FFFFFFF) < 0x7F800000;
}

/* Finite and not negative; on the bits, since fast-math knows no infinities. */
SKV_INLINE int skv_is_amount(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0x7F800000 || bits == 0x80000000;
}

enum { SKV_HEADS_SEARCHED = 1 << 20 }; /* no cache has more; a bound on the time of a check */

/* Whether two of n_heads x n_rows rows share a byte. n_rows - 1 and n_heads - 1 strides, and the
 * bytes of a row behind them, fit in size_t. */
SKV_NOINLINE int skv_rows_overlap(size_t n_heads, size_t head_stride, size_t n_rows,
                                  size_t row_stride, size_t bytes) {
    if (n_rows > 1 && row_stride < bytes) {
        return 1;
    }
    if (n_heads > 1 && head_stride < bytes) {
        return 1;
    }
    if (n_heads == 1 || n_rows == 1 || row_stride >= (n_heads - 1) * head_stride + bytes) {
        return 0;
    }
    if (n_heads > SKV_HEADS_SEARCHED) {
        return 1;
    }
    for (size_t h = 1; h < n_heads; h++) { /* where do the rows nearest to head h's first lie? */
        const size_t row = h * head_stride / row_stride, behind = h * head_stride % row_stride;
        if (row >= n_rows) {
            break;
        }
        if (behind < bytes || (row + 1 < n_rows && row_stride - behind < bytes)) {
            return 1;
        }
    }
    return 0;
}

/* The bytes from the first row to the end of the last; SIZE_MAX: they don't fit. */
SKV_INLINE size_t skv_extent(size_t n_heads, size_t head_stride, size_t n_rows, size_t row_stride,
                             size_t bytes) {
    const size_t heads = n_heads > 1 ? skv_size_mul(n_heads - 1, head_stride) : 0;
    const size_t rows = n_rows > 1 ? skv_size_mul(n_rows - 1, row_stride) : 0;
    return skv_size_add(skv_size_add(heads, rows), bytes);
}

/* A view of n_heads x n_rows rows. as_numbers: read as head_dim elements, not only moved. */
SKV_NOINLINE snapkv_status skv_check_rows(const snapkv_rows *rows, size_t n_heads, size_t n_rows,
                                          size_t head_dim, int as_numbers) {
    const size_t element = skv_element_bytes(rows->dtype);
    const size_t bytes = skv_row_width(rows, head_dim, as_numbers);
    const size_t in_block =
        rows->block_table ? skv_size_min(rows->block_rows, n_rows) : n_rows;
    if (in_block == 0) {
        return SNAPKV_ERROR_STRIDE;
    }
    const size_t extent =
        skv_extent(n_heads, rows->head_stride, in_block, rows->row_stride, bytes);
    if (extent >= PTRDIFF_MAX) {
        return SNAPKV_ERROR_SHAPE;
    }
    if (skv_rows_overlap(n_heads, rows->head_stride, in_block, rows->row_stride, bytes)) {
        return SNAPKV_ERROR_STRIDE;
    }
    if (as_numbers && element) {
        const size_t heads = n_heads > 1 ? rows->head_stride : 0;
        const size_t steps = in_block > 1 ? rows->row_stride : 0;
        const size_t blocks = rows->block_table ? rows->block_stride : 0;
        if (((uintptr_t)rows->data | heads | steps | blocks) % element != 0) {
            return SNAPKV_ERROR_STRIDE;
        }
    }
    if (rows->block_table) {
        const size_t n_blocks = (n_rows - 1) / rows->block_rows + 1;
        const size_t block_rows = skv_extent(1, 0, in_block, rows->row_stride, bytes);
        size_t highest = 0;
        for (size_t i = 0; i < n_blocks; i++) {
            if (rows->block_table[i] < 0) {
                return SNAPKV_ERROR_STRIDE;
            }
            if ((size_t)rows->block_table[i] > highest) {
                highest = (size_t)rows->block_table[i];
            }
        }
        const size_t blocks = skv_size_mul(highest, rows->block_stride);
        if (skv_size_add(blocks, extent) >= PTRDIFF_MAX) {
            return SNAPKV_ERROR_SHAPE;
        }
        /* Heads lie inside a block, or all blocks inside a head. */
        const int outer_heads = rows->block_stride >= block_rows && n_heads > 1 &&
                                rows->head_stride >= skv_size_add(blocks, block_rows);
        if (highest > 0 && rows->block_stride < extent && !outer_heads) {
            return SNAPKV_ERROR_STRIDE;
        }
    }
    return SNAPKV_OK;
}

SKV_INLINE size_t skv_heads_per_set(const snapkv_config *config, const snapkv_layer *layer) {
    return config->sharing == SNAPKV_PER_QUERY_HEAD ? 1 : layer->n_query_heads / layer->n_kv_heads;
}

/* The scan of one set, or of one K/V head's part of a layer. */
SKV_NOINLINE skv_plan skv_set_plan(const snapkv_config *config, const snapkv_layer *layer) {
    const size_t prefix = layer->length - config->window;
    return skv_make_plan(layer, skv_heads_per_set(config, layer), config->window, prefix, prefix);
}

/* Sizes and policy, no pointers. What only a selection needs is left out for the votes alone. */
SKV_NOINLINE snapkv_status skv_check_sizes(const snapkv_config *config, const snapkv_layer *layer,
                                           int for_selection) {
    if (!config || !layer) {
        return SNAPKV_ERROR_NULL;
    }
    if (layer->n_query_heads == 0 || layer->n_kv_heads == 0 || layer->length == 0 ||
        layer->head_dim == 0 || layer->n_query_heads % layer->n_kv_heads != 0 ||
        layer->length > INT32_MAX) {
        return SNAPKV_ERROR_SHAPE;
    }
    if (config->window == 0 || config->window > layer->length) {
        return SNAPKV_ERROR_WINDOW;
    }
    if (for_selection) {
        if (config->window >= config->capacity ||
            config->n_sink >= config->capacity - config->window) {
            return SNAPKV_ERROR_CAPACITY;
        }
        if (config->kernel_size % 2 == 0) {
            return SNAPKV_ERROR_KERNEL;
        }
        if ((unsigned)config->pooling > SNAPKV_POOL_MAX ||
            (unsigned)config->order > SNAPKV_BY_SCORE ||
            (unsigned)config->reduce > SNAPKV_REDUCE_MAX) {
            return SNAPKV_ERROR_OPTION;
        }
    }
    if ((unsigned)config->sharing > SNAPKV_PER_LAYER) { /* the workspace depends on it */
        return SNAPKV_ERROR_OPTION;
    }
    const skv_plan plan = skv_set_plan(config, layer);
    const size_t tiles = plan.vote_tiles - plan.first_tile;
    const size_t floats = skv_size_add(plan.fixed, skv_size_mul(tiles, plan.per_tile));
    return skv_workspace_bytes(floats) >= PTRDIFF_MAX ? SNAPKV_ERROR_SHAPE : SNAPKV_OK;
}

/* Everything that a scan of the layer reads. */
SKV_NOINLINE snapkv_status skv_check_layer(const snapkv_config *config, const snapkv_layer *layer,
                                           int for_selection) {
    if (!config || !layer) {
        return SNAPKV_ERROR_NULL;
    }
    const snapkv_rows *queries = &layer->queries, *keys = &layer->keys;
    if (!queries->data || !keys->data || (queries->dtype == SNAPKV_CUSTOM && !queries->decode) ||
        (keys->dtype == SNAPKV_CUSTOM && !keys->decode)) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_check_sizes(config, layer, for_selection));
    if ((unsigned)queries->dtype > SNAPKV_CUSTOM || (unsigned)keys->dtype > SNAPKV_CUSTOM ||
        !skv_is_amount(layer->scale) || !skv_is_amount(layer->softcap)) {
        return SNAPKV_ERROR_OPTION;
    }
    SKV_TRY(skv_check_rows(queries, layer->n_query_heads, config->window, layer->head_dim, 1));
    SKV_TRY(skv_check_rows(keys, layer->n_kv_heads, layer->length, layer->head_dim, 1));
    /* Last, since the rows have shown that there are not absurdly many heads. */
    for (size_t head = 0; layer->sink_logits && head < layer->n_query_heads; head++) {
        if (!skv_is_finite(layer->sink_logits[head])) {
            return SNAPKV_ERROR_OPTION;
        }
    }
    for (size_t head = 0; layer->alibi_slopes && head < layer->n_query_heads; head++) {
        if (!skv_is_finite(layer->alibi_slopes[head])) {
            return SNAPKV_ERROR_OPTION;
        }
    }
    return SNAPKV_OK;
}

SKV_NOINLINE snapkv_status skv_check_values(const snapkv_layer *layer) {
    if ((unsigned)layer->values.dtype > SNAPKV_CUSTOM) {
        return SNAPKV_ERROR_OPTION;
    }
    return skv_check_rows(&layer->values, layer->n_kv_heads, layer->length, layer->head_dim, 0);
}

/* n entries that don't run out of 0 .. limit - 1. */
SKV_NOINLINE int skv_indices_inside(const int32_t *indices, size_t n, size_t limit) {
    for (size_t i = 0; i < n; i++) {
        if (indices[i] < 0 || (size_t)indices[i] >= limit) {
            return 0;
        }
    }
    return 1;
}

SKV_NOINLINE int skv_ascends(const int32_t *indices, size_t n) {
    for (size_t i = 1; i < n; i++) {
        if (indices[i] <= indices[i - 1]) {
            return 0;
        }
    }
    return 1;
}

/* Whether two memory areas share a byte. */
SKV_INLINE int skv_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    const uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    if (a_bytes == 0 || b_bytes == 0) {
        return 0;
    }
    return first < second ? second - first < a_bytes : first - second < b_bytes;
}

/* Whether n_a rows at a and n_b rows at b share a byte. Equal strides may interleave. */
SKV_NOINLINE int skv_strided_overlap(const void *a, size_t n_a, size_t a_stride, size_t a_bytes,
                                     const void *b, size_t n_b, size_t b_stride, size_t b_bytes) {
    if (n_a == 0 || n_b == 0 || !skv_overlap(a, (n_a - 1) * a_stride + a_bytes, b,
                                             (n_b - 1) * b_stride + b_bytes)) {
        return 0;
    }
    if (a_stride != b_stride || a_stride == 0) {
        return 1;
    }
    const size_t ahead = (uintptr_t)b > (uintptr_t)a
                             ? ((uintptr_t)b - (uintptr_t)a) % a_stride
                             : (a_stride - ((uintptr_t)a - (uintptr_t)b) % a_stride) % a_stride;
    return ahead < a_bytes || a_stride - ahead < b_bytes;
}

/* The workspace of a call, apart from what it writes. */
SKV_NOINLINE snapkv_status skv_check_workspace(const snapkv_config *config,
                                               const snapkv_layer *layer, const void *workspace,
                                               size_t workspace_size, const void *out,
                                               size_t out_bytes) {
    if ((uintptr_t)workspace % sizeof(float) != 0 ||
        workspace_size < skv_workspace_bytes(skv_set_plan(config, layer).fixed)) {
        return SNAPKV_ERROR_WORKSPACE;
    }
    return skv_overlap(workspace, workspace_size, out, out_bytes) ? SNAPKV_ERROR_ALIAS : SNAPKV_OK;
}

/* Of a selection, once the layer is checked: no output in the workspace or in another output. */
SKV_NOINLINE snapkv_status skv_check_select(const snapkv_config *config, const snapkv_layer *layer,
                                            size_t set, const int32_t *kept, const float *scores,
                                            const snapkv_selection *selection,
                                            const void *workspace, size_t workspace_size) {
    const void *areas[4] = {workspace, kept, scores, selection};
    size_t bytes[4] = {workspace_size, 0, 0, 0};
    bytes[1] = snapkv_kept_count(config, layer->length) * sizeof *kept;
    bytes[2] = scores ? (layer->length - config->window) * sizeof *scores : 0;
    bytes[3] = selection ? sizeof *selection : 0;
    if (set >= snapkv_set_count(config, layer)) {
        return SNAPKV_ERROR_INDEX;
    }
    SKV_TRY(skv_check_workspace(config, layer, workspace, workspace_size, kept, bytes[1]));
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < i; j++) {
            if (skv_overlap(areas[i], bytes[i], areas[j], bytes[j])) {
                return SNAPKV_ERROR_ALIAS;
            }
        }
    }
    return SNAPKV_OK;
}

SKV_NOINLINE char *skv_out_head(const snapkv_rows_out *out, size_t head) {
    return (char *)out->data + (head ? head * out->head_stride : 0);
}

/* Whether a gather into `out` moves the rows of `view` inside their own memory. */
SKV_NOINLINE int skv_is_same_view(const snapkv_rows_out *out, const snapkv_rows *view,
                                  size_t n_heads) {
    return out->data == view->data && !view->block_table && out->row_stride == view->row_stride &&
           (n_heads == 1 || out->head_stride == view->head_stride);
}

/* Rows that a gather writes. */
typedef struct skv_written {
    char *data;
    size_t n_rows, stride, bytes;
} skv_written;

SKV_NOINLINE int skv_written_overlaps(const skv_written *out, const void *data, size_t n_rows,
                                      size_t stride, size_t bytes) {
    return skv_strided_overlap(out->data, out->n_rows, out->stride, out->bytes, data, n_rows,
                               stride, bytes);
}

/* Whether they share a byte with the rows of a view, except those of the head `excepted`. */
SKV_NOINLINE int skv_written_overlaps_view(const skv_written *out, const snapkv_rows *view,
                                           size_t n_heads, size_t n_rows, size_t width,
                                           size_t excepted) {
    const size_t step = view->block_table ? skv_size_min(view->block_rows, n_rows) : n_rows;
    size_t extent = skv_extent(n_heads, view->head_stride, step, view->row_stride, width);
    size_t highest = 0;
    for (size_t i = 0; view->block_table && i <= (n_rows - 1) / step; i++) {
        if ((size_t)view->block_table[i] > highest) {
            highest = (size_t)view->block_table[i];
        }
    }
    extent += highest * view->block_stride;
    if (!skv_written_overlaps(out, view->data, 1, 0, extent)) {
        return 0; /* far away, as nearly always */
    }
    for (size_t head = 0; head < n_heads; head++) {
        for (size_t p = 0; p < n_rows && head != excepted; p += step) {
            if (skv_written_overlaps(out, skv_row(view, head, p), skv_size_min(step, n_rows - p),
                                     view->row_stride, width)) {
                return 1;
            }
        }
    }
    return 0;
}

/* What the gathers of a call may not touch: rows that this set or another still reads, the outputs
 * of any set, the list, the selection, the workspace. */
SKV_NOINLINE snapkv_status skv_check_outputs(const snapkv_config *config,
                                             const snapkv_layer *layer, size_t first_head,
                                             size_t end_head, size_t n_out_heads,
                                             const snapkv_rows_out *const outs[2],
                                             const size_t bytes[2], const int32_t *kept,
                                             const snapkv_selection *selection,
                                             const void *workspace, size_t workspace_size) {
    const size_t n_kept = snapkv_kept_count(config, layer->length), head_dim = layer->head_dim;
    const snapkv_rows *views[2] = {&layer->keys, &layer->values};
    for (size_t head = first_head; head < end_head; head++) {
        for (int i = 0; i < 2; i++) {
            const snapkv_rows_out *other = outs[1 - i];
            skv_written out;
            out.data = skv_out_head(outs[i], head);
            out.n_rows = n_kept;
            out.stride = outs[i]->row_stride;
            out.bytes = bytes[i];
            for (int j = 0; j < 2; j++) {
                const int in_place = i == j && config->order == SNAPKV_BY_POSITION &&
                                     n_out_heads == layer->n_kv_heads &&
                                     skv_is_same_view(outs[i], views[j], layer->n_kv_heads);
                if (skv_written_overlaps_view(&out, views[j], layer->n_kv_heads, layer->length,
                                              skv_row_width(views[j], head_dim, j == 0),
                                              in_place ? head : SIZE_MAX)) {
                    return SNAPKV_ERROR_ALIAS;
                }
            }
            if (skv_written_overlaps_view(&out, &layer->queries, layer->n_query_heads,
                                          config->window,
                                          skv_row_width(&layer->queries, head_dim, 1), SIZE_MAX) ||
                skv_written_overlaps(&out, kept, 1, 0, n_kept * sizeof *kept) ||
                skv_written_overlaps(&out, selection, 1, 0, selection ? sizeof *selection : 0) ||
                skv_written_overlaps(&out, workspace, 1, 0, workspace_size)) {
                return SNAPKV_ERROR_ALIAS;
            }
            for (size_t h = 0; h < n_out_heads; h++) {
                if (skv_written_overlaps(&out, skv_out_head(other, h), n_kept, other->row_stride,
                                         bytes[1 - i])) {
                    return SNAPKV_ERROR_ALIAS;
                }
            }
        }
    }
    return SNAPKV_OK;
}

/* ---- Selection ------------------------------------------------------------------------------- */

/* snapkv_select after every check. */
SKV_NOINLINE snapkv_status skv_select_set(const snapkv_config *config, const snapkv_layer *layer,
                                          size_t set, int32_t *kept, float *scores,
                                          snapkv_selection *selection, void *workspace,
                                          size_t workspace_size) {
    const size_t length = layer->length, prefix = length - config->window;
    const int whole_layer = config->sharing == SNAPKV_PER_LAYER;
    snapkv_selection result;
    result.n_kept = snapkv_kept_count(config, length);
    result.coverage = 1.0f;
    result.bypassed = length < config->capacity;
    if (result.bypassed) {
        for (size_t i = 0; i < length; i++) {
            kept[i] = (int32_t)i;
        }
    } else {
        const skv_plan plan = skv_set_plan(config, layer);
        const size_t first = whole_layer ? 0 : set * plan.n_heads;
        const size_t end = whole_layer ? layer->n_query_heads : first + plan.n_heads;
        skv_scan scan;
        size_t head = first;
        do {
            skv_start_scan(&scan, &plan, layer, head, workspace, workspace_size);
            skv_pack_queries(&scan, &layer->queries, head, prefix);
            SKV_TRY(skv_scan_keys(&scan));
            for (size_t i = 0; i < plan.n_heads; i++) {
                skv_sum_votes(&scan, i, scan.votes);
                skv_add_head(&scan, config, head + i == first);
            }
            head += plan.n_heads;
        } while (head < end);
        if (config->reduce == SNAPKV_REDUCE_MEAN) {
            for (size_t j = 0; j < prefix; j++) {
                scan.scores[j] /= (float)(end - first);
            }
        }
        const size_t n_sink = config->n_sink;
        const size_t n_best = config->capacity - config->window - n_sink;
        for (size_t i = 0; i < n_sink; i++) {
            kept[i] = (int32_t)i;
        }
        skv_pick_top(scan.scores + n_sink, prefix - n_sink, n_best, config->order, n_sink,
                     kept + n_sink);
        for (size_t i = 0; i < config->window; i++) {
            kept[n_sink + n_best + i] = (int32_t)(prefix + i);
        }
        if (scores) {
            memcpy(scores, scan.scores, prefix * sizeof *scores);
        }
        result.coverage = skv_kept_share(scan.total_votes, prefix, kept, n_sink + n_best,
                                         (float)config->window * (float)(end - first));
    }
    if (selection) {
        *selection = result;
    }
    return SNAPKV_OK;
}

/* ---- Public bodies --------------------------------------------------------------------------- */

SNAPKV_API snapkv_config snapkv_default_config(void) {
    snapkv_config config;
    config.window = 32; /* the official code's defaults, as is the kernel */
    config.capacity = 2048;
    config.kernel_size = 5;
    config.n_sink = 0;
    config.pooling = SNAPKV_POOL_AVG;
    config.order = SNAPKV_BY_POSITION;
    config.sharing = SNAPKV_PER_KV_HEAD;
    config.reduce = SNAPKV_REDUCE_MEAN;
    return config;
}

SNAPKV_API snapkv_config snapkv_official_config(void) {
    snapkv_config config = snapkv_default_config();
    config.sharing = SNAPKV_PER_QUERY_HEAD;
    config.order = SNAPKV_BY_SCORE;
    return config;
}

SNAPKV_API const char *snapkv_status_string(snapkv_status status) {
    switch (status) {
    case SNAPKV_OK:
        return "ok";
    case SNAPKV_ERROR_NULL:
        return "a required pointer is NULL";
    case SNAPKV_ERROR_SHAPE:
        return "zero size, heads that don't divide, length above INT32_MAX, or overflow";
    case SNAPKV_ERROR_STRIDE:
        return "rows overlap or are misaligned, or bad block table";
    case SNAPKV_ERROR_WINDOW:
        return "window is 0 or above length, or leaves no prefix to vote on";
    case SNAPKV_ERROR_CAPACITY:
        return "capacity does not exceed window + n_sink";
    case SNAPKV_ERROR_KERNEL:
        return "kernel_size is 0 or even";
    case SNAPKV_ERROR_OPTION:
        return "unknown option, parameter negative or not finite, or custom rows without row_bytes";
    case SNAPKV_ERROR_WORKSPACE:
        return "workspace smaller than snapkv_workspace_min() or misaligned";
    case SNAPKV_ERROR_INDEX:
        return "set, head, position or slot out of range";
    case SNAPKV_ERROR_ALIAS:
        return "source and destination overlap";
    case SNAPKV_ERROR_NOT_FINITE:
        return "a logit or score is NaN or infinite";
    }
    return "unknown status";
}

SNAPKV_API snapkv_status snapkv_check(const snapkv_config *config, const snapkv_layer *layer) {
    SKV_TRY(skv_check_layer(config, layer, 1));
    return layer->values.data ? skv_check_values(layer) : SNAPKV_OK;
}

SNAPKV_API size_t snapkv_set_count(const snapkv_config *config, const snapkv_layer *layer) {
    if (skv_check_sizes(config, layer, 1) != SNAPKV_OK) {
        return 0;
    }
    return config->sharing == SNAPKV_PER_LAYER        ? 1
           : config->sharing == SNAPKV_PER_QUERY_HEAD ? layer->n_query_heads
                                                      : layer->n_kv_heads;
}

SNAPKV_API size_t snapkv_kept_count(const snapkv_config *config, size_t length) {
    return config ? skv_size_min(length, config->capacity) : 0;
}

SNAPKV_API size_t snapkv_workspace_size(const snapkv_config *config, const snapkv_layer *layer) {
    if (skv_check_sizes(config, layer, 0) != SNAPKV_OK) {
        return 0;
    }
    const skv_plan plan = skv_set_plan(config, layer);
    return skv_workspace_bytes(plan.fixed + (plan.vote_tiles - plan.first_tile) * plan.per_tile);
}

SNAPKV_API size_t snapkv_workspace_min(const snapkv_config *config, const snapkv_layer *layer) {
    if (skv_check_sizes(config, layer, 0) != SNAPKV_OK) {
        return 0;
    }
    return skv_workspace_bytes(skv_set_plan(config, layer).fixed);
}

SNAPKV_API snapkv_status snapkv_vote(const snapkv_config *config, const snapkv_layer *layer,
                                     size_t query_head, float *votes, void *workspace,
                                     size_t workspace_size) {
    if (!votes || !workspace) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_check_layer(config, layer, 0));
    const size_t prefix = layer->length - config->window;
    if (prefix == 0) {
        return SNAPKV_ERROR_WINDOW;
    }
    if (query_head >= layer->n_query_heads) {
        return SNAPKV_ERROR_INDEX;
    }
    SKV_TRY(skv_check_workspace(config, layer, workspace, workspace_size, votes,
                                prefix * sizeof *votes));
    skv_scan scan;
    const skv_plan plan = skv_make_plan(layer, 1, config->window, prefix, prefix);
    skv_start_scan(&scan, &plan, layer, query_head, workspace, workspace_size);
    skv_pack_queries(&scan, &layer->queries, query_head, prefix);
    SKV_TRY(skv_scan_keys(&scan));
    skv_sum_votes(&scan, 0, votes);
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_pool(const float *votes, size_t n, size_t kernel_size,
                                     snapkv_pooling pooling, float *scores) {
    if (!votes || !scores) {
        return SNAPKV_ERROR_NULL;
    }
    if (n == 0 || n > INT32_MAX || skv_size_mul(n, sizeof *votes) >= PTRDIFF_MAX) {
        return SNAPKV_ERROR_SHAPE;
    }
    if (kernel_size % 2 == 0) {
        return SNAPKV_ERROR_KERNEL;
    }
    if ((unsigned)pooling > SNAPKV_POOL_MAX) {
        return SNAPKV_ERROR_OPTION;
    }
    if (skv_overlap(votes, n * sizeof *votes, scores, n * sizeof *scores)) {
        return SNAPKV_ERROR_ALIAS;
    }
    if (!skv_all_finite(votes, n)) {
        return SNAPKV_ERROR_NOT_FINITE;
    }
    for (size_t j = 0; j < n; j += SKV_LANES) {
        skv_store_inside(scores, n, j, skv_pool_lanes(votes, n, kernel_size, pooling, j));
    }
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_top_k(const float *scores, size_t n, size_t k, snapkv_order order,
                                      int32_t *indices) {
    if (!scores || !indices) {
        return SNAPKV_ERROR_NULL;
    }
    if (n == 0 || n > INT32_MAX || k > n || skv_size_mul(n, sizeof *scores) >= PTRDIFF_MAX) {
        return SNAPKV_ERROR_SHAPE;
    }
    if ((unsigned)order > SNAPKV_BY_SCORE) {
        return SNAPKV_ERROR_OPTION;
    }
    if (skv_overlap(scores, n * sizeof *scores, indices, k * sizeof *indices)) {
        return SNAPKV_ERROR_ALIAS;
    }
    if (!skv_all_finite(scores, n)) {
        return SNAPKV_ERROR_NOT_FINITE;
    }
    if (k > 0) {
        skv_pick_top(scores, n, k, order, 0, indices);
    }
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_gather_rows(const int32_t *kept, size_t n_kept, const void *src,
                                            size_t src_stride, size_t n_rows, size_t row_bytes,
                                            void *dst, size_t dst_stride) {
    if (!kept || !src || !dst) {
        return SNAPKV_ERROR_NULL;
    }
    if (n_rows == 0 || row_bytes == 0 ||
        skv_extent(1, 0, n_rows, src_stride, row_bytes) >= PTRDIFF_MAX ||
        skv_extent(1, 0, n_kept, dst_stride, row_bytes) >= PTRDIFF_MAX) {
        return SNAPKV_ERROR_SHAPE;
    }
    if ((n_rows > 1 && src_stride < row_bytes) || (n_kept > 1 && dst_stride < row_bytes)) {
        return SNAPKV_ERROR_STRIDE;
    }
    if (!skv_indices_inside(kept, n_kept, n_rows)) {
        return SNAPKV_ERROR_INDEX;
    }
    const int in_place = src == dst && src_stride == dst_stride && skv_ascends(kept, n_kept);
    const size_t dst_bytes = n_kept ? skv_extent(1, 0, n_kept, dst_stride, row_bytes) : 0;
    if (skv_overlap(kept, n_kept * sizeof *kept, dst, dst_bytes) ||
        (!in_place && skv_strided_overlap(src, n_rows, src_stride, row_bytes, dst, n_kept,
                                          dst_stride, row_bytes))) {
        return SNAPKV_ERROR_ALIAS;
    }
    snapkv_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.data = src;
    rows.row_stride = src_stride;
    skv_gather(&rows, 0, row_bytes, kept, n_kept, (char *)dst, dst_stride);
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_gather_columns(const int32_t *kept, size_t n_kept, const void *src,
                                               size_t src_stride, size_t n_columns,
                                               size_t element_size, size_t n_rows, void *dst,
                                               size_t dst_stride) {
    if (!kept || !src || !dst) {
        return SNAPKV_ERROR_NULL;
    }
    const size_t src_bytes = skv_size_mul(n_columns, element_size);
    const size_t dst_bytes = skv_size_mul(n_kept, element_size);
    if (n_columns == 0 || element_size == 0 || n_rows == 0 ||
        skv_extent(1, 0, n_rows, src_stride, src_bytes) >= PTRDIFF_MAX ||
        skv_extent(1, 0, n_rows, dst_stride, dst_bytes) >= PTRDIFF_MAX) {
        return SNAPKV_ERROR_SHAPE;
    }
    if (n_rows > 1 && (src_stride < src_bytes || dst_stride < dst_bytes)) {
        return SNAPKV_ERROR_STRIDE;
    }
    if (!skv_indices_inside(kept, n_kept, n_columns)) {
        return SNAPKV_ERROR_INDEX;
    }
    const int in_place = src == dst && src_stride == dst_stride && skv_ascends(kept, n_kept);
    if (n_kept > 0 &&
        (skv_overlap(kept, n_kept * sizeof *kept, dst,
                     skv_extent(1, 0, n_rows, dst_stride, dst_bytes)) ||
         (!in_place && skv_strided_overlap(src, n_rows, src_stride, src_bytes, dst, n_rows,
                                           dst_stride, dst_bytes)))) {
        return SNAPKV_ERROR_ALIAS;
    }
    for (size_t first = 0; first < n_rows; first += 4) {
        const char *from[4];
        char *to[4];
        for (size_t i = 0; i < 4; i++) { /* of fewer, the last one again */
            const size_t row = skv_size_min(first + i, n_rows - 1);
            from[i] = (const char *)src + row * src_stride;
            to[i] = (char *)dst + row * dst_stride;
        }
        if (element_size == 1) {
            skv_move_columns_1(kept, n_kept, from, to);
        } else if (element_size == 2) {
            skv_move_columns_2(kept, n_kept, from, to);
        } else if (element_size == 4) {
            skv_move_columns_4(kept, n_kept, from, to);
        } else {
            skv_move_columns(kept, n_kept, from, to, element_size);
        }
    }
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_select(const snapkv_config *config, const snapkv_layer *layer,
                                       size_t set, int32_t *kept, float *scores,
                                       snapkv_selection *selection, void *workspace,
                                       size_t workspace_size) {
    if (!kept || !workspace) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_check_layer(config, layer, 1));
    SKV_TRY(skv_check_select(config, layer, set, kept, scores, selection, workspace,
                             workspace_size));
    return skv_select_set(config, layer, set, kept, scores, selection, workspace, workspace_size);
}

SNAPKV_API snapkv_status snapkv_compress(const snapkv_config *config, const snapkv_layer *layer,
                                         size_t set, int32_t *kept,
                                         const snapkv_rows_out *keys_out,
                                         const snapkv_rows_out *values_out,
                                         snapkv_selection *selection, void *workspace,
                                         size_t workspace_size) {
    if (!kept || !workspace || !keys_out || !values_out || !keys_out->data || !values_out->data ||
        (layer && !layer->values.data)) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_check_layer(config, layer, 1));
    SKV_TRY(skv_check_values(layer));
    const snapkv_rows *views[2] = {&layer->keys, &layer->values};
    const snapkv_rows_out *outs[2] = {keys_out, values_out};
    const size_t n_kept = snapkv_kept_count(config, layer->length);
    const int expanded = config->sharing == SNAPKV_PER_QUERY_HEAD;
    const size_t n_out_heads = expanded ? layer->n_query_heads : layer->n_kv_heads;
    const size_t source_head = expanded ? set / (layer->n_query_heads / layer->n_kv_heads) : set;
    const int whole_layer = config->sharing == SNAPKV_PER_LAYER;
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        bytes[i] = skv_row_bytes(views[i], layer->head_dim);
        if (bytes[i] == 0) {
            return SNAPKV_ERROR_OPTION;
        }
    }
    for (int i = 0; i < 2; i++) {
        const snapkv_rows_out *out = outs[i];
        if (skv_extent(n_out_heads, out->head_stride, n_kept, out->row_stride, bytes[i]) >=
            PTRDIFF_MAX) {
            return SNAPKV_ERROR_SHAPE;
        }
        if (skv_rows_overlap(n_out_heads, out->head_stride, n_kept, out->row_stride, bytes[i])) {
            return SNAPKV_ERROR_STRIDE;
        }
    }
    SKV_TRY(skv_check_select(config, layer, set, kept, NULL, selection, workspace, workspace_size));
    const size_t first_out = whole_layer ? 0 : set;
    const size_t end_out = whole_layer ? n_out_heads : set + 1;
    SKV_TRY(skv_check_outputs(config, layer, first_out, end_out, n_out_heads, outs, bytes, kept,
                              selection, workspace, workspace_size));
    SKV_TRY(skv_select_set(config, layer, set, kept, NULL, selection, workspace, workspace_size));
    for (size_t head = first_out; head < end_out; head++) {
        for (int i = 0; i < 2; i++) {
            skv_gather(views[i], whole_layer ? head : source_head, bytes[i], kept, n_kept,
                       skv_out_head(outs[i], head), outs[i]->row_stride);
        }
    }
    return SNAPKV_OK;
}

/* a * b in 64 bits, saturating. */
SKV_INLINE uint64_t skv_count_mul(uint64_t a, uint64_t b) {
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

SNAPKV_API snapkv_status snapkv_account(const snapkv_config *config, const snapkv_model *model,
                                        size_t length, size_t generated, snapkv_ledger *ledger) {
    if (!config || !model || !ledger) {
        return SNAPKV_ERROR_NULL;
    }
    if (model->batch == 0 || model->n_layers == 0 || model->element_size == 0) {
        return SNAPKV_ERROR_SHAPE;
    }
    snapkv_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.n_query_heads = model->n_query_heads;
    layer.n_kv_heads = model->n_kv_heads;
    layer.length = length;
    layer.head_dim = model->head_dim;
    SKV_TRY(skv_check_sizes(config, &layer, 1));
    const size_t kept = snapkv_kept_count(config, length);
    const int expanded = config->sharing == SNAPKV_PER_QUERY_HEAD;
    uint64_t row = skv_count_mul(2, model->batch); /* the K and V of one position in one head */
    row = skv_count_mul(row, model->n_layers);
    row = skv_count_mul(row, model->head_dim);
    row = skv_count_mul(row, model->element_size);
    snapkv_ledger result;
    result.full_bytes = skv_count_mul(skv_count_mul(row, model->n_kv_heads),
                                      skv_size_add(length, generated));
    result.kept_bytes = skv_count_mul(
        skv_count_mul(row, expanded ? model->n_query_heads : model->n_kv_heads),
        skv_size_add(kept, generated));
    result.score_bytes = skv_count_mul(skv_count_mul(4, skv_count_mul(model->batch, length)),
                                       skv_count_mul(model->n_query_heads, config->window));
    result.workspace_bytes = snapkv_workspace_size(config, &layer);
    if (skv_size_add(length, generated) == SIZE_MAX || result.full_bytes == UINT64_MAX ||
        result.kept_bytes == UINT64_MAX || result.score_bytes == UINT64_MAX) {
        return SNAPKV_ERROR_SHAPE;
    }
    *ledger = result;
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_retained_mass(const snapkv_config *config,
                                              const snapkv_layer *layer, size_t query_head,
                                              const float *query, size_t position,
                                              const int32_t *kept, size_t n_kept, float *mass,
                                              void *workspace, size_t workspace_size) {
    if (!query || !kept || !mass || !workspace) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_check_layer(config, layer, 0));
    if (query_head >= layer->n_query_heads || position < layer->length - 1 ||
        position > INT32_MAX || !skv_indices_inside(kept, n_kept, layer->length)) {
        return SNAPKV_ERROR_INDEX;
    }
    SKV_TRY(skv_check_workspace(config, layer, workspace, workspace_size, mass, sizeof *mass));
    snapkv_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.data = query;
    skv_scan scan;
    const skv_plan plan = skv_make_plan(layer, 1, 1, layer->length, position);
    skv_start_scan(&scan, &plan, layer, query_head, workspace, workspace_size);
    skv_pack_queries(&scan, &rows, 0, position);
    SKV_TRY(skv_scan_keys(&scan));
    skv_sum_votes(&scan, 0, scan.votes);
    *mass = skv_kept_share(scan.votes, layer->length, kept, n_kept, 1.0f);
    return SNAPKV_OK;
}

SNAPKV_API float snapkv_error_bound(float mass, float value_norm_max) {
    return 2.0f * (1.0f - mass) * value_norm_max;
}

SNAPKV_API snapkv_cursor snapkv_cursor_start(const snapkv_config *config, size_t length) {
    snapkv_cursor cursor;
    cursor.prompt_length = config ? length : 0;
    cursor.prompt_kept = snapkv_kept_count(config, length);
    cursor.generated = 0;
    return cursor;
}

SNAPKV_API size_t snapkv_next_position(const snapkv_cursor *cursor) {
    return cursor ? cursor->prompt_length + cursor->generated : 0;
}

SNAPKV_API size_t snapkv_next_slot(const snapkv_cursor *cursor) {
    return cursor ? cursor->prompt_kept + cursor->generated : 0;
}

SNAPKV_API snapkv_status snapkv_append(snapkv_cursor *cursor, size_t n_tokens) {
    if (!cursor) {
        return SNAPKV_ERROR_NULL;
    }
    if (n_tokens > SIZE_MAX - snapkv_next_position(cursor)) {
        return SNAPKV_ERROR_SHAPE;
    }
    cursor->generated += n_tokens;
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_rewind(snapkv_cursor *cursor, size_t n_tokens) {
    if (!cursor) {
        return SNAPKV_ERROR_NULL;
    }
    if (n_tokens > cursor->generated) {
        return SNAPKV_ERROR_INDEX;
    }
    cursor->generated -= n_tokens;
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_slot_position(const snapkv_cursor *cursor, const int32_t *kept,
                                              size_t slot, size_t *position) {
    if (!cursor || !position || (!kept && slot < cursor->prompt_kept)) {
        return SNAPKV_ERROR_NULL;
    }
    if (slot >= snapkv_next_slot(cursor)) {
        return SNAPKV_ERROR_INDEX;
    }
    if (slot >= cursor->prompt_kept) {
        *position = cursor->prompt_length + (slot - cursor->prompt_kept);
        return SNAPKV_OK;
    }
    if (!skv_indices_inside(kept + slot, 1, cursor->prompt_length)) {
        return SNAPKV_ERROR_INDEX;
    }
    *position = (size_t)kept[slot];
    return SNAPKV_OK;
}

#undef SKV_HAS_AVX2
#undef SKV_HAS_AVX512
#undef SKV_HAS_NEON
#undef SKV_INLINE
#undef SKV_NOINLINE
#undef SKV_UNROLL
#undef SKV_EACH
#undef SKV_FMAF
#undef SKV_SQRTF
#undef SKV_STEP_BY_STEP
#undef SKV_LOWEST_BIT
#undef SKV_PREFETCH
#undef SKV_LANES
#undef SKV_TILE_KEYS
#undef SKV_TILE_VECS
#undef SKV_BATCH
#undef SKV_FMA1
#undef SKV_ALL
#undef SKV_MAP
#undef SKV_LOWEST
#undef SKV_TRY

#endif /* SNAPKV_H */

/* MIT License
 *
 * Copyright (c) 2026 the snapkv.h authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 */
