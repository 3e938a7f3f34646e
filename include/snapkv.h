/* snapkv.h - SnapKV in one header: shrink the KV cache of a long prompt before decoding.
 * MIT licence (end of file). C99 or C++11, libc only, no allocation, no globals, no threads.
 *
 *   #include "snapkv.h" // cc -O3 -march=native -I include examples/quickstart.c -lm
 *   #include <stdio.h>
 *   enum { H = 4, L = 8192, D = 64, W = 32, C = 2048 }; // heads, length, dims, window, capacity
 *   static float Q[H * W * D], K[H * L * D], V[H * L * D]; // [head][position][dim]; Q: the last W
 *   static float workspace[300000]; // snapkv_workspace_size() says how much; 150000 work, slower
 *   static int32_t kept[H * C];     // the original position of each slot of the small cache
 *   static snapkv_layer layer;      // zeros: what isn't set below is not there
 *   int main(void) {
 *       for (int i = 0; i < H * L * D; i++) K[i] = Q[i % (H * W * D)] = (float)(i * 7LL % 99) / 50;
 *       snapkv_config config = snapkv_default_config(); // keep 2048: the last 32, the best others
 *       layer.n_query_heads = layer.n_kv_heads = H;
 *       layer.length = L;
 *       layer.head_dim = D;
 *       layer.queries = snapkv_rows_by_head(Q, SNAPKV_F32, W, D);
 *       layer.keys = snapkv_rows_by_head(K, SNAPKV_F32, L, D);
 *       layer.values = snapkv_rows_by_head(V, SNAPKV_F32, L, D);
 *       snapkv_rows_out keys_out = snapkv_rows_in_place(&layer.keys);
 *       snapkv_rows_out values_out = snapkv_rows_in_place(&layer.values);
 *       snapkv_status status = snapkv_compress_layer(&config, &layer, kept, &keys_out, &values_out,
 *                                                    NULL, workspace, sizeof workspace);
 *       snapkv_cursor cursor = snapkv_cursor_start(&config, L);
 *       printf("%s: the next token goes to position %d, slot %d\n", snapkv_status_string(status),
 *              (int)snapkv_next_position(&cursor), (int)snapkv_next_slot(&cursor));
 *       return status == SNAPKV_OK ? 0 : 1;
 *   }
 *
 * The last W queries of the prompt vote: each spreads one softmax over all it may see, and what
 * falls on the earlier positions is summed, pooled and ranked. The best, and the window, stay. */
#ifndef SNAPKV_H
#define SNAPKV_H

/* ---- Build options ---------------------------------------------------------------------------
 *
 * Define before the include, or with -D. The first four are always defined to a value.
 *
 * SNAPKV_ISA         SNAPKV_ISA_SCALAR, _AVX2, _AVX512 or _NEON. Default: the best that the
 *                    compiler's flags allow. One that they don't allow is an #error. On x86 AVX2
 *                    needs -mavx2 -mfma -mf16c (or -march=native, or -march=x86-64-v3); plain flags
 *                    give the scalar path without fused multiply-add, some 7 times slower and
 *                    outside the promise of equal bits. SNAPKV_ISA_NAME: the path, as text.
 * SNAPKV_API         The linkage of every function. Default: static inline.
 * SNAPKV_SCALAR_FMA  1: the scalar path multiplies and adds with fmaf, and returns the bits of the
 *                    vector paths. Default: 1 where the target has it in hardware, else 0. Without
 *                    the hardware fmaf is a library call, 8 to 20 times slower.
 * SNAPKV_MEMCPY      Copies the rows of a gather. Default: memcpy.
 * SNAPKV_DECLARATIONS_ONLY
 *                    Types and prototypes, no bodies: for all files but the one that compiles the
 *                    library, with SNAPKV_API defined to nothing. */

#if !defined(_MSC_VER) && defined(__cplusplus) && __cplusplus < 201103L
#error "snapkv.h needs C++11 (-std=c++11) or C99"
#elif !defined(_MSC_VER) && !defined(__cplusplus) &&                                               \
    (!defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L)
#error "snapkv.h needs C99 (-std=c99) or C++11"
#endif

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

/* 32-bit Arm flushes subnormals in NEON: other bits. A big-endian AArch64 numbers the lanes of the
 * byte-wise loads backwards. Both take the scalar path. */
#if (defined(__aarch64__) && !defined(__AARCH64EB__)) || defined(_M_ARM64)
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
#if defined(__AVX2__) && !defined(SNAPKV_DECLARATIONS_ONLY)
#pragma message("snapkv.h: AVX2 without -mfma -mf16c takes the scalar path, several times slower \
and with other bits. Add the flags, or define SNAPKV_ISA to say that you mean it.")
#endif
#endif
#endif

#ifndef SNAPKV_API
#ifdef SNAPKV_DECLARATIONS_ONLY
#define SNAPKV_API
#else
#define SNAPKV_API static inline
#endif
#endif

#ifndef SNAPKV_SCALAR_FMA
#if defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA) || SKV_HAS_NEON ||   \
    SKV_HAS_AVX2 || defined(__aarch64__)
#define SNAPKV_SCALAR_FMA 1
#else
#define SNAPKV_SCALAR_FMA 0
#endif
#endif

#ifndef SNAPKV_MEMCPY
#define SNAPKV_MEMCPY memcpy
#endif

/* ---- Version and includes ------------------------------------------------------------------ */

#define SNAPKV_VERSION_MAJOR 2
#define SNAPKV_VERSION_MINOR 0
#define SNAPKV_VERSION_PATCH 0

/* The numeric contract (docs/numerics.md): the same number, the same bits. */
#define SNAPKV_CONTRACT 2

/* Positions of a part: the softmax statistics start afresh at each multiple of it and are merged in
 * order, so that any worker can take any run of whole parts. 128 tiles of 48 keys. */
#define SNAPKV_PART 6144

#include <math.h>   /* fmaf, sqrtf */
#include <stddef.h> /* size_t */
#include <stdint.h> /* int32_t, uint32_t, uint64_t, uintptr_t */
#include <string.h> /* memcpy, memmove, memset */

/* Whoever chooses plain static functions need not use them all. */
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Types -----------------------------------------------------------------------------------
 *
 * Symbols in the comments: L length of the prompt, W window, R recent positions, P = L - R
 * positions that compete, C capacity, D head dimension, G query heads per K/V head (Hq, Hkv: their
 * numbers), B batch, N layers, g generated tokens, s bytes of an element. */

typedef enum snapkv_status {
    SNAPKV_OK = 0,
    SNAPKV_ERROR_NULL,      /* a required pointer is NULL */
    SNAPKV_ERROR_SHAPE,     /* zero size, heads that don't divide, length > INT32_MAX, overflow */
    SNAPKV_ERROR_STRIDE,    /* rows of a view overlap or are not aligned to their element, or a bad
                               block table; snapkv_explain() names the field */
    SNAPKV_ERROR_OUTPUT,    /* the same of keys_out or values_out, or of a gather's destination */
    SNAPKV_ERROR_WINDOW,    /* window is 0, or above length without query_positions; or no position
                               competes */
    SNAPKV_ERROR_CAPACITY,  /* capacity <= n_recent + n_sink; more to keep than there is */
    SNAPKV_ERROR_KERNEL,    /* kernel_size is 0 or even */
    SNAPKV_ERROR_OPTION,    /* unknown enum value; scale, softcap, slope or sink logit not finite,
                               or negative where it can't be; span and chunk both set; custom rows
                               without row_bytes */
    SNAPKV_ERROR_WORKSPACE, /* smaller than snapkv_workspace_min(), or not aligned to float */
    SNAPKV_ERROR_INDEX,     /* a set, head, position or slot out of range; positions that don't
                               ascend */
    SNAPKV_ERROR_ALIAS,     /* source and destination overlap in a way the call can't serve */
    SNAPKV_ERROR_NOT_FINITE /* a logit that some query sees, or a score, is NaN or infinite */
} snapkv_status;

typedef enum snapkv_dtype { SNAPKV_F32, SNAPKV_F16, SNAPKV_BF16, SNAPKV_CUSTOM } snapkv_dtype;

typedef enum snapkv_pooling {
    SNAPKV_POOL_AVG, /* zeros outside, always divided by kernel_size */
    SNAPKV_POOL_MAX  /* positions outside ignored */
} snapkv_pooling;

typedef enum snapkv_voting {
    SNAPKV_VOTE_SUM, /* of the weights that the window's queries give a position: the article */
    SNAPKV_VOTE_MAX  /* the largest of them: one query's need suffices */
} snapkv_voting;

typedef enum snapkv_order {
    SNAPKV_BY_POSITION, /* ascending */
    SNAPKV_BY_SCORE     /* pinned, then falling score, then the recent: the official order */
} snapkv_order;

typedef enum snapkv_sharing {
    SNAPKV_PER_KV_HEAD,    /* a list per K/V head: the cache stays in native GQA */
    SNAPKV_PER_QUERY_HEAD, /* a list per query head: K/V expanded, as the official code does */
    SNAPKV_PER_LAYER       /* one list: for a cache with one position table per layer */
} snapkv_sharing;

typedef enum snapkv_reduce { SNAPKV_REDUCE_MEAN, SNAPKV_REDUCE_MAX } snapkv_reduce;

/* The policy: the same for every layer, or one per layer. */
typedef struct snapkv_config {
    size_t         window;      /* W: queries that vote */
    size_t         capacity;    /* C: positions kept per list, pinned and recent ones included */
    size_t         kernel_size; /* of the pooling; odd; 1: none */
    size_t         n_sink;      /* first positions pinned; they count towards the capacity */
    size_t         n_recent;    /* R: last positions always kept; 0: as many as the window */
    snapkv_pooling pooling;
    snapkv_voting  voting;
    snapkv_order   order;
    snapkv_sharing sharing;
    snapkv_reduce  reduce;      /* of the pooled scores of the query heads that share a list */
} snapkv_config;

/* Converts one row of a custom dtype (q8_0, fp8, ...) to head_dim floats. context is the view's;
 * head and position say which row of the view it is, for scales that lie outside the row. */
typedef void (*snapkv_decode_fn)(void *context, const void *row, size_t head, size_t position,
                                 float *out, size_t head_dim);

/* A read-only view of [head][position][dim], in either nesting; strides in bytes. Rows are aligned
 * to their element, custom rows to a byte. Zero what you don't use. */
typedef struct snapkv_rows {
    const void      *data;
    size_t           head_stride; /* read only when there are several heads */
    size_t           row_stride;
    size_t           row_bytes;   /* what a gather copies of a row; 0: head_dim elements of dtype */
    snapkv_dtype     dtype;
    snapkv_decode_fn decode;      /* SNAPKV_CUSTOM only */
    void            *decode_context;
    const int32_t   *block_table; /* paged caches; NULL: contiguous. Position p is row
                                     p % block_rows of block block_table[p / block_rows], which
                                     starts at data + block * block_stride; heads step inside it */
    size_t           block_rows;
    size_t           block_stride;
} snapkv_rows;

/* Where a gather writes: [head][slot], strides in bytes, blocks as in snapkv_rows. */
typedef struct snapkv_rows_out {
    void          *data;
    size_t         head_stride;
    size_t         row_stride;
    const int32_t *block_table; /* NULL: contiguous */
    size_t         block_rows;
    size_t         block_stride;
} snapkv_rows_out;

/* One layer of one sequence, without padding. Keys and queries as the model uses them, rotated. */
typedef struct snapkv_layer {
    size_t         n_query_heads;
    size_t         n_kv_heads;
    size_t         length;          /* L: rows of K and V */
    size_t         head_dim;        /* D */
    snapkv_rows    queries;         /* [n_query_heads][window][head_dim]: the voters */
    snapkv_rows    keys;            /* [n_kv_heads][length][head_dim] */
    snapkv_rows    values;          /* [n_kv_heads][length]; only moved */
    float          scale;           /* multiplies the queries; 0: 1 / sqrt(head_dim) */
    float          softcap;         /* logit = softcap * tanh(logit / softcap); 0: none */
    size_t         span;            /* sliding window: t sees j > t - span; 0: full causal */
    size_t         chunk;           /* chunked attention: t sees j >= t - t % chunk; 0: none */
    const float   *sink_logits;     /* [n_query_heads] or NULL: join the softmax denominator only */
    const float   *alibi_slopes;    /* [n_query_heads] or NULL: logit += slope * (j - t) */
    const int32_t *query_positions; /* [window] the voters' positions, none before its predecessor;
                                       NULL: the last W of the prompt. From L on they see it all. */
    const int32_t *key_positions;   /* [length] ascending: the position that each row holds, where a
                                       cache that was compressed before has gaps; NULL: row i is
                                       position i. Kept lists and votes go by row. */
    size_t         first_row;       /* the row of the prompt that K begins with, where a worker of
                                       snapkv_part_* holds only a part; elsewhere 0 */
} snapkv_layer;

typedef struct snapkv_selection {
    size_t n_kept;   /* entries written to kept */
    float  coverage; /* share of the window's attention mass that the kept positions hold, 0..1 */
    int    bypassed; /* 1: the prompt was shorter than the capacity, everything is kept */
} snapkv_selection;

/* The scores that one list may choose from, for snapkv_allocate. */
typedef struct snapkv_list {
    const float *scores; /* [n] */
    size_t       n;
} snapkv_list;

/* What one voter's softmax knows of a part's keys. Plain data, to be sent. */
typedef struct snapkv_statistic {
    float peak, sum; /* an even upper bound of the logits, in base 2, and their weights beside it */
} snapkv_statistic;

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
 * the logical position and the slot of the cache part ways. It counts tokens: where positions
 * advance otherwise (M-RoPE), the engine keeps the rotation's position itself. Plain data: a list
 * with a count of its own starts as {length, n_kept, 0}. */
typedef struct snapkv_cursor {
    size_t prompt_length, prompt_kept, generated;
} snapkv_cursor;

/* ---- Public functions ------------------------------------------------------------------------
 *
 * Every call is re-entrant and keeps nothing. On any error no output is written, except where a
 * function says so (the workspace is not an output). `in`, `out` and `tmp` give the shapes. A
 * function that takes a workspace works with any size from snapkv_workspace_min() up and returns
 * the same bits with each (built with -ffast-math, the same within rounding). Outputs must not
 * overlap inputs, the workspace or each other, except where a function says so: ALIAS. */

/* Window 32, capacity 2048, average pooling of 5, by position, per K/V head, mean, none pinned. */
SNAPKV_API snapkv_config snapkv_default_config(void);

/* The same per query head and by score: what the official code does (commit e216ddc8). */
SNAPKV_API snapkv_config snapkv_official_config(void);

/* A short English text, never NULL. */
SNAPKV_API const char *snapkv_status_string(snapkv_status status);

/* --- Views --- */
/* A contiguous [head][row][dim], n_rows rows a head, or [row][head][dim]. Custom rows have no size
 * of their own: set row_stride, head_stride, row_bytes and decode afterwards. */
SNAPKV_API snapkv_rows snapkv_rows_by_head(const void *data, snapkv_dtype dtype, size_t n_rows,
                                           size_t head_dim);
SNAPKV_API snapkv_rows snapkv_rows_by_position(const void *data, snapkv_dtype dtype,
                                               size_t n_heads, size_t head_dim);

/* The same memory to write to: kept rows move to the first slots. All zero for NULL. */
SNAPKV_API snapkv_rows_out snapkv_rows_in_place(const snapkv_rows *rows);

/* --- A layer --- */
/* Compresses a layer: selects every set, then gathers K and V. Call it after the prefill attention
 * of the layer has used the full K and V.
 *
 *   out  kept                  [set_count][kept_count]  original positions, a list per set
 *        keys_out, values_out  [heads][kept_count]  set s writes head s; PER_LAYER every K/V head
 *        selections            [set_count]  NULL: not wanted
 *   tmp  workspace
 *
 * A prompt shorter than the capacity is bypassed: all is kept, in order, and its queries are not
 * looked at. In place works as in snapkv_gather.
 * Errors: those of snapkv_select and snapkv_gather. No row moves before every set is selected: on
 * any error the caches are as they were. NOT_FINITE leaves kept and selections undefined. */
SNAPKV_API snapkv_status snapkv_compress_layer(
    const snapkv_config *config, const snapkv_layer *layer, int32_t *kept,
    const snapkv_rows_out *keys_out, const snapkv_rows_out *values_out,
    snapkv_selection *selections, void *workspace, size_t workspace_size);

/* Whether a policy and a layer are in order, before any work: all statuses but OUTPUT, WORKSPACE,
 * ALIAS and NOT_FINITE. Values are checked where values.data is not NULL. */
SNAPKV_API snapkv_status snapkv_check(const snapkv_config *config, const snapkv_layer *layer);

/* The same in words: NULL where that is OK, else a constant text, "config.kernel_size: even". */
SNAPKV_API const char *snapkv_explain(const snapkv_config *config, const snapkv_layer *layer);

/* Lists per layer under config->sharing; 0: invalid. Like the workspace sizes below it needs only
 * the policy and the sizes of the layer, no pointers. */
SNAPKV_API size_t snapkv_set_count(const snapkv_config *config, const snapkv_layer *layer);

/* min(length, capacity): the entries of a kept list. 0 for NULL, a length of 0 or above INT32_MAX,
 * and a policy that snapkv_check refuses. */
SNAPKV_API size_t snapkv_kept_count(const snapkv_config *config, size_t length);

/* The workspace in bytes. Size: for the fastest run, some 12 L, and 4 W L for each query head of a
 * K/V head (for one, where lists are per query head). Min: without the W x L part, in about twice
 * the time. Anything between is used in full. 0: invalid; capacity and kernel don't count. */
SNAPKV_API size_t snapkv_workspace_size(const snapkv_config *config, const snapkv_layer *layer);
SNAPKV_API size_t snapkv_workspace_min(const snapkv_config *config, const snapkv_layer *layer);

/* --- One set of a layer --- */
/* Chooses the positions that one set keeps. Reads Q and K, changes neither. It is snapkv_score,
 * then snapkv_keep of capacity - n_sink - R, then snapkv_coverage.
 *
 *   in   set        0 .. set_count - 1: a K/V head, a query head, or 0 for the layer
 *   out  kept       [snapkv_kept_count()]  original positions; the last R are the recent ones
 *        scores     [length - R]           pooled and reduced; NULL: not wanted
 *        selection                         NULL: not wanted
 *   tmp  workspace
 *
 * A prompt shorter than the capacity is bypassed: all is kept, scores stay as they are, coverage is
 * 1. Errors: those of snapkv_check, INDEX (set), WORKSPACE, ALIAS (an output inside Q, K or V too),
 * NOT_FINITE. */
SNAPKV_API snapkv_status snapkv_select(
    const snapkv_config *config, const snapkv_layer *layer, size_t set, int32_t *kept,
    float *scores, snapkv_selection *selection, void *workspace, size_t workspace_size);

/* Copies the rows of any list of one set, a count of its own included: opaque bytes, so quantised
 * rows survive. Reads and writes contiguous and paged views.
 *
 *   in   kept                  [n_kept]  0 .. length - 1, in any order
 *   out  keys_out, values_out  head `set`, for PER_LAYER every K/V head; slots 0 .. n_kept - 1
 *
 * A query-head set reads source head set / G. In place (keys_out = snapkv_rows_in_place(&keys), or
 * the same with a table that starts alike) works for lists that ascend. It does not for query heads
 * of a group, whose lists differ while they read the same rows, nor for values that share the keys'
 * memory (MLA): select there, and gather the rows once. Only what this call writes is looked at: a
 * buffer per head is a view with head_stride 0.
 *
 * Uses of the config the sharing, and the window and the capacity to know where Q lies. n_kept = 0
 * writes nothing. Errors: NULL, SHAPE, STRIDE, OPTION (sharing, dtype, custom row_bytes), OUTPUT,
 * INDEX (set, kept), ALIAS (a written row, of a page all, in Q, K, V, kept or the other output). */
SNAPKV_API snapkv_status snapkv_gather(
    const snapkv_config *config, const snapkv_layer *layer, size_t set, const int32_t *kept,
    size_t n_kept, const snapkv_rows_out *keys_out, const snapkv_rows_out *values_out);

/* snapkv_select, then snapkv_gather with that list: the same outputs. Checks everything before the
 * first write; errors: those of both. */
SNAPKV_API snapkv_status snapkv_compress(
    const snapkv_config *config, const snapkv_layer *layer, size_t set, int32_t *kept,
    const snapkv_rows_out *keys_out, const snapkv_rows_out *values_out, snapkv_selection *selection,
    void *workspace, size_t workspace_size);

/* --- Selection in steps: hold the scores of many lists, decide the counts, keep --- */
/* The scores that one set ranks its positions by, pinned ones included.
 *
 *   out  scores  [length - R]  pooled, and reduced over the query heads of the set
 *        votes   [length - R]  summed over the window, mean over the same heads; NULL: not wanted
 *   tmp  workspace
 *
 * There is no bypass, and the capacity is not looked at. Errors: those of snapkv_vote with KERNEL,
 * and INDEX (set). */
SNAPKV_API snapkv_status snapkv_score(const snapkv_config *config, const snapkv_layer *layer,
                                      size_t set, float *scores, float *votes, void *workspace,
                                      size_t workspace_size);

/* The list of the pinned positions, the n_best highest scores behind them, and the recent ones.
 *
 *   in   scores  [length - R]           finite
 *   out  kept    [n_sink + n_best + R]  in config->order
 * Errors: NULL, SHAPE, WINDOW (R above length), CAPACITY (n_sink + n_best + R above length), OPTION
 * (order), ALIAS, NOT_FINITE. */
SNAPKV_API snapkv_status snapkv_keep(const snapkv_config *config, size_t length,
                                     const float *scores, size_t n_best, int32_t *kept);

/* The share of the window's attention that a list holds: 1 - (sum of the votes it drops) / W.
 *
 *   in   votes     [length - R]  of snapkv_score, finite
 *        kept      [n_kept]      in any order; a position listed twice counts once
 *   out  coverage  0 .. 1
 * Errors: NULL, SHAPE, WINDOW, INDEX (kept), ALIAS, NOT_FINITE. */
SNAPKV_API snapkv_status snapkv_coverage(const snapkv_config *config, size_t length,
                                         const float *votes, const int32_t *kept, size_t n_kept,
                                         float *coverage);

/* How many of each list's best scores survive when all lists share a budget: of every list its
 * `least` best (or all it has), the rest of the budget to the highest scores that are left, ties to
 * the lower list. The lists may be the heads of a layer (Ada-KV, arXiv:2407.11550, whose alpha is
 * `least` over the mean count), of all layers, or the parts of a prompt. Linear: some 6 passes.
 *
 *   in   lists   [n_lists]  finite scores, without pinned positions: scores + n_sink; may be empty
 *   out  counts  [n_lists]  they add up to min(budget, all scores)
 * Errors: NULL, SHAPE (no lists, n above INT32_MAX, overflow), CAPACITY (n_lists * least above
 * budget), ALIAS, NOT_FINITE. */
SNAPKV_API snapkv_status snapkv_allocate(const snapkv_list *lists, size_t n_lists, size_t budget,
                                         size_t least, size_t *counts);

/* --- Building blocks: one head, each usable alone --- */
/* Votes of one query head: how much the window's queries attend to each position that competes.
 *
 *   out  votes      [length - R]  over the window's softmax weights: their sum, 0 .. window, or the
 *                                 largest, 0 .. 1, as config->voting says
 *   tmp  workspace
 *
 * Each softmax spans all positions that its query sees, the recent ones too; their columns are
 * dropped only afterwards. They must be in the denominator, or a query that attends mostly to
 * itself would vote as loudly as the others.
 *
 * Uses of the config the window, n_recent and voting and, for the workspace, the sharing. Errors:
 * those of snapkv_check for Q, K, V and these fields; WINDOW also where no position competes; INDEX
 * (query_head); WORKSPACE; ALIAS; NOT_FINITE. */
SNAPKV_API snapkv_status snapkv_vote(const snapkv_config *config, const snapkv_layer *layer,
                                     size_t query_head, float *votes, void *workspace,
                                     size_t workspace_size);

/* Pools n votes, stride 1, centred. Takes n times min(kernel_size, n) operations.
 *
 *   in   votes   [n]  finite; a sum beyond float, which no votes of a window reach, is infinite
 *   out  scores  [n]
 * Errors: NULL, SHAPE (n is 0 or above INT32_MAX), KERNEL, OPTION, ALIAS, NOT_FINITE. */
SNAPKV_API snapkv_status snapkv_pool(const float *votes, size_t n, size_t kernel_size,
                                     snapkv_pooling pooling, float *scores);

/* The k highest scores, ties to the lower position, +0 and -0 tied. Linear in n by position;
 * sorting by score adds k log k. k = 0 writes nothing.
 *
 *   in   scores   [n]  finite
 *   out  indices  [k]
 * Errors: NULL, SHAPE (n is 0 or above INT32_MAX, k > n), OPTION, ALIAS, NOT_FINITE. */
SNAPKV_API snapkv_status snapkv_top_k(const float *scores, size_t n, size_t k, snapkv_order order,
                                      int32_t *indices);

/* Copies the rows that kept lists, in its order: opaque bytes, without a layer.
 *
 *   in   kept  [n_kept]  0 .. n_rows - 1
 *        src   [n_rows]  rows of row_bytes, src_stride bytes apart
 *   out  dst   [n_kept]  rows of row_bytes, dst_stride bytes apart
 *
 * Where kept ascends and the strides are equal, dst may be src, or lie whole rows before it (heads
 * moved together, the first first); any other overlap is ALIAS. n_kept = 0 writes nothing. Errors:
 * NULL, SHAPE (n_rows or row_bytes is 0, overflow), STRIDE, OUTPUT, INDEX, ALIAS. */
SNAPKV_API snapkv_status snapkv_gather_rows(const int32_t *kept, size_t n_kept, const void *src,
                                            size_t src_stride, size_t n_rows, size_t row_bytes,
                                            void *dst, size_t dst_stride);

/* The same for a transposed V: [dim][position], n_rows = head_dim rows of n_columns positions.
 *
 *   in   kept  [n_kept]             0 .. n_columns - 1
 *        src   [n_rows][n_columns]  elements of element_size bytes, rows src_stride bytes apart
 *   out  dst   [n_rows][n_kept]     rows dst_stride bytes apart
 *
 * In place (dst is src, equal strides) works when kept ascends; any other overlap is ALIAS. Errors
 * as above, a row being n_columns elements in src and n_kept in dst. */
SNAPKV_API snapkv_status snapkv_gather_columns(
    const int32_t *kept, size_t n_kept, const void *src, size_t src_stride, size_t n_columns,
    size_t element_size, size_t n_rows, void *dst, size_t dst_stride);

/* --- One prompt, many workers: threads, or machines that hold a part each --- */
/* Parts of SNAPKV_PART positions, counted from 0, the last maybe shorter; bytes of the workspace of
 * a worker that keeps all weights of n_parts parts, and of the smallest. 0: invalid. */
SNAPKV_API size_t snapkv_part_count(size_t length);
SNAPKV_API size_t snapkv_part_workspace_size(const snapkv_config *config,
                                             const snapkv_layer *layer, size_t n_parts);
SNAPKV_API size_t snapkv_part_workspace_min(const snapkv_config *config, const snapkv_layer *layer);

/* First step of a worker: how its keys, those of n_parts parts from first_part on, enter the
 * softmax. The layer describes the whole prompt; K may begin with layer->first_row, a multiple of
 * SNAPKV_PART.
 *
 *   in   group       a K/V head and its G query heads; with PER_QUERY_HEAD one query head: G is 1
 *   out  statistics  [n_parts][G][window]
 *   tmp  workspace   kept for snapkv_part_vote, no logit is computed twice
 *
 * n_parts = 0 writes nothing and needs no K. Errors: those of snapkv_vote, INDEX (group; parts that
 * are not there). NOT_FINITE leaves the statistics undefined. */
SNAPKV_API snapkv_status snapkv_part_observe(
    const snapkv_config *config, const snapkv_layer *layer, size_t group, size_t first_part,
    size_t n_parts, snapkv_statistic *statistics, void *workspace, size_t workspace_size);

/* Second step: the votes of the same parts, with the bits of snapkv_vote over the whole prompt.
 *
 *   in   statistics  [snapkv_part_count()][G][window]  of all parts, in order
 *        observed    1: the workspace is as snapkv_part_observe left it in the call of these parts;
 *                    0: compute the logits again
 *   out  votes       [G] rows, `stride` floats apart, of the positions that compete in these parts
 *        sums        with SNAPKV_VOTE_MAX the summed votes likewise; else not used
 *
 * Joined in order they go on as ever: snapkv_part_score, then snapkv_keep, or snapkv_allocate with
 * a list per worker. Errors: as above, NOT_FINITE (a statistic). */
SNAPKV_API snapkv_status snapkv_part_vote(
    const snapkv_config *config, const snapkv_layer *layer, size_t group, size_t first_part,
    size_t n_parts, const snapkv_statistic *statistics, int observed, float *votes, float *sums,
    size_t stride, void *workspace, size_t workspace_size);

/* Pools the votes of a set's heads and reduces them: snapkv_score from its votes.
 *
 *   in   votes   [n_heads] rows, `stride` floats apart, of n positions: within half a kernel of its
 *                border a worker needs its neighbour's too. sums: likewise, or the votes again
 *   out  scores  [n]
 *        mean    [n]  the votes for snapkv_coverage; NULL: not wanted, and sums not looked at
 * Errors: NULL, SHAPE, KERNEL, OPTION, STRIDE, ALIAS, NOT_FINITE. */
SNAPKV_API snapkv_status snapkv_part_score(const snapkv_config *config, size_t n_heads, size_t n,
                                           const float *votes, const float *sums, size_t stride,
                                           float *scores, float *mean);

/* --- What was saved, and what was lost --- */
/* The bytes of a cache with `generated` tokens appended after the prompt; the second for lists with
 * counts of their own, [batch][n_layers][set_count]. Errors: NULL, SHAPE (also a number beyond 64
 * bits), WINDOW, CAPACITY, KERNEL, OPTION, INDEX (a count above length). */
SNAPKV_API snapkv_status snapkv_account(const snapkv_config *config, const snapkv_model *model,
                                        size_t length, size_t generated, snapkv_ledger *ledger);
SNAPKV_API snapkv_status snapkv_account_lists(
    const snapkv_config *config, const snapkv_model *model, size_t length, size_t generated,
    const size_t *counts, snapkv_ledger *ledger);

/* How much of one later query's attention over the whole prompt falls on the kept positions: 1 less
 * the sum of its weights on the others. A sink logit, and what the span hides, count as kept.
 *
 *   in   query     [head_dim]  float, rotated, of query head query_head
 *        position  its logical position, that of the last key .. INT32_MAX: for ALiBi, span, chunk
 *        kept      [n_kept]    in any order; a position listed twice counts once
 *   out  mass      0 .. 1
 *   tmp  workspace             any that serves snapkv_select
 *
 * The layer's own queries are checked and not read. Errors: those of snapkv_vote, but a prompt
 * without competing positions is none; INDEX also for position and kept. */
SNAPKV_API snapkv_status snapkv_retained_mass(
    const snapkv_config *config, const snapkv_layer *layer, size_t query_head, const float *query,
    size_t position, const int32_t *kept, size_t n_kept, float *mass, void *workspace,
    size_t workspace_size);

/* 2 (1 - mass) value_norm_max: how far, in that norm, the attention output of that query can move
 * when the rest is evicted (triangle inequality). */
SNAPKV_API float snapkv_error_bound(float mass, float value_norm_max);

/* --- Where a compressed sequence stands --- */
/* After the prompt: nothing generated. All zero where snapkv_kept_count is 0. */
SNAPKV_API snapkv_cursor snapkv_cursor_start(const snapkv_config *config, size_t length);

/* Where the next token goes: RoPE rotates it by prompt_length + generated, and its K/V row lies in
 * slot prompt_kept + generated. 0 for NULL. */
SNAPKV_API size_t snapkv_next_position(const snapkv_cursor *cursor);
SNAPKV_API size_t snapkv_next_slot(const snapkv_cursor *cursor);

/* n_tokens more have their K/V in the cache, or the last n_tokens are taken back (speculative
 * decoding). Errors: NULL, SHAPE (overflow), INDEX (more taken back than were generated). */
SNAPKV_API snapkv_status snapkv_append(snapkv_cursor *cursor, size_t n_tokens);
SNAPKV_API snapkv_status snapkv_rewind(snapkv_cursor *cursor, size_t n_tokens);

/* The logical position of a slot. `kept` [prompt_kept] is needed for a prompt's slot only. Errors:
 * NULL, INDEX (nothing is in that slot, or kept lies outside the prompt). */
SNAPKV_API snapkv_status snapkv_slot_position(const snapkv_cursor *cursor, const int32_t *kept,
                                              size_t slot, size_t *position);

#ifdef __cplusplus
} /* extern "C": the intrinsics' headers have their own linkage */
#endif

/* ==============================================================================================
 * Nothing below is API: names with skv_ and SKV_ may change with every version.
 * ============================================================================================== */

#ifndef SNAPKV_DECLARATIONS_ONLY

/* ---- Portability -----------------------------------------------------------------------------
 *
 * SKV_INLINE          the kernels are written once over constants that only inlining folds away
 * SKV_NOINLINE        one copy, called: GCC inlines plain static functions into one giant, which
 *                     took it 4.2 s for the program above instead of 1.4 (GCC 12 -O3)
 * SKV_WRAPS           unsigned arithmetic wraps around here, and is meant to: clang's
 *                     -fsanitize=integer would report it
 * SKV_UNROLL          in full: keeps a register tile in registers at -O2 as well
 * SKV_FMAF, _SQRTF    -ffreestanding makes calls of the plain names even of instructions
 * SKV_LOWEST_BIT      its number, of a mask that is not 0
 * SKV_PREFETCH        a hint, to the second level: into the first it cost 1 to 8 % (Zen 4)
 * SKV_STEP_BY_STEP    GCC 12 -O3 makes in-order vector reductions of the scalar path's loop over
 *                     the dimensions where there is no fused multiply-add, and loses a factor of 3.
 *                     In a short loop it saves some 600 bytes of vector code */

#if defined(__clang__)
#define SKV_WRAPS    __attribute__((no_sanitize("integer")))
#define SKV_NOINLINE static __attribute__((noinline, unused))
#elif defined(__GNUC__)
#define SKV_WRAPS
#define SKV_NOINLINE static __attribute__((noinline, noclone, unused))
#else
#define SKV_WRAPS
#define SKV_NOINLINE static
#endif

#if defined(__GNUC__) || defined(__clang__)
#define SKV_INLINE           static inline __attribute__((always_inline))
#define SKV_FMAF(a, b, c)    __builtin_fmaf(a, b, c)
#define SKV_SQRTF(a)         __builtin_sqrtf(a)
#define SKV_LOWEST_BIT(mask) ((size_t)__builtin_ctz(mask))
#define SKV_PREFETCH(p)      __builtin_prefetch(p, 0, 2)
#else
#if defined(_MSC_VER)
#define SKV_INLINE static __forceinline
#else
#define SKV_INLINE static inline
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

/* ---- ISA choice ------------------------------------------------------------------------------
 *
 * SKV_LANES       floats of a native vector
 * SKV_TILE_KEYS   the register tile of the logits: keys x native vectors of queries. Keys times
 * SKV_TILE_VECS   vectors are the accumulators: enough to hide the latency of the multiply-adds
 *                 (2 a cycle, 4 cycles: 8), with registers left for the queries and one key.
 * SKV_LARGE       functions that unroll to much code: inline, but on the scalar path, where a call
 *                 costs little beside them
 * SKV_BATCH       vectors whose exp is computed abreast. The scalar path's vector is 4 chains
 *                 already, and 4 abreast take 3 KiB more code (Cortex-M4F, -Os). */

#if SNAPKV_ISA == SNAPKV_ISA_AVX512
#if !SKV_HAS_AVX512
#error "SNAPKV_ISA_AVX512 needs -mavx512f -mavx512bw -mavx512dq -mavx512vl (MSVC: /arch:AVX512)"
#endif
#include <immintrin.h>
#define SNAPKV_ISA_NAME "AVX-512"
#define SKV_LARGE       SKV_INLINE
#define SKV_LANES       16
#define SKV_TILE_KEYS   12 /* 24 accumulators + 2 queries + 1 key of 32 registers */
#define SKV_TILE_VECS   2
#define SKV_BATCH       2 /* gcc: softmax step 0.87 of the time of 4 abreast, 0.91 of 8 */

#elif SNAPKV_ISA == SNAPKV_ISA_AVX2
#if !SKV_HAS_AVX2
#error "SNAPKV_ISA_AVX2 needs -mavx2 -mfma -mf16c (MSVC: /arch:AVX2)"
#endif
#include <immintrin.h>
#define SNAPKV_ISA_NAME "AVX2"
#define SKV_LARGE       SKV_INLINE
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
#define SKV_LARGE       SKV_INLINE
#define SKV_LANES       4
#define SKV_TILE_KEYS   6 /* 24 accumulators + 4 queries + 1 key of 32 registers */
#define SKV_TILE_VECS   4
#define SKV_BATCH       4

#elif SNAPKV_ISA == SNAPKV_ISA_SCALAR
#define SNAPKV_ISA_NAME "scalar"
#define SKV_LARGE       SKV_NOINLINE
#define SKV_LANES       4
#define SKV_TILE_KEYS   4
#define SKV_TILE_VECS   1
#define SKV_BATCH       1

#else
#error "SNAPKV_ISA is none of SNAPKV_ISA_SCALAR, _AVX2, _AVX512, _NEON"
#endif

/* ---- Lane primitives: one block per ISA, the same functions in the same order ---------------
 *
 * skv_vec holds SKV_LANES floats, skv_int as many int32. skv_fma is a * b + c, rounded once.
 * skv_max is a > b ? a : b, skv_min a < b ? a : b: the second for a NaN. skv_nearest is the integer
 * next to x, halves to even: by an instruction, or from t, x + magic rounded to float, whose bits
 * count the integers from those of magic. skv_exponent is the float whose bits are those of t
 * shifted left by 23. A mask lane is all ones or zero; skv_mask_bits has a bit of each.
 * skv_sum_block adds the 16 lanes of one block: lane i to lane i + 8, then + 4, + 2, + 1.
 * skv_max_block is the largest of them; none is a NaN. */

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
SKV_INLINE skv_vec skv_max(skv_vec a, skv_vec b) { return _mm512_maskz_max_ps(SKV_ALL, a, b); }
SKV_INLINE skv_vec skv_min(skv_vec a, skv_vec b) { return _mm512_maskz_min_ps(SKV_ALL, a, b); }
SKV_INLINE skv_vec skv_nearest(skv_vec x, skv_vec t, skv_vec magic) {
    const __m512i from = _mm512_castps_si512(magic);
    (void)x;
    return _mm512_maskz_cvtepi32_ps(
        SKV_ALL, _mm512_maskz_sub_epi32(SKV_ALL, _mm512_castps_si512(t), from));
}
SKV_INLINE skv_vec skv_exponent(skv_vec t) {
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(SKV_ALL, _mm512_castps_si512(t), 23));
}
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
SKV_INLINE float skv_sum_block(const skv_vec *block) {
    const __m256 eight = _mm256_add_ps(_mm512_maskz_extractf32x8_ps((__mmask8)-1, block[0], 0),
                                       _mm512_maskz_extractf32x8_ps((__mmask8)-1, block[0], 1));
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
SKV_INLINE float skv_max_block(const skv_vec *block) {
    const __m256 eight = _mm256_max_ps(_mm512_maskz_extractf32x8_ps((__mmask8)-1, block[0], 0),
                                       _mm512_maskz_extractf32x8_ps((__mmask8)-1, block[0], 1));
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    return _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
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
SKV_INLINE skv_vec skv_max(skv_vec a, skv_vec b) { return _mm256_max_ps(a, b); }
SKV_INLINE skv_vec skv_min(skv_vec a, skv_vec b) { return _mm256_min_ps(a, b); }
SKV_INLINE skv_vec skv_nearest(skv_vec x, skv_vec t, skv_vec magic) {
    (void)t, (void)magic;
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SKV_INLINE skv_vec skv_exponent(skv_vec t) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
}
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
SKV_INLINE float skv_sum_block(const skv_vec *block) {
    const __m256 eight = _mm256_add_ps(block[0], block[1]);
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
SKV_INLINE float skv_max_block(const skv_vec *block) {
    const __m256 eight = _mm256_max_ps(block[0], block[1]);
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    return _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
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
SKV_INLINE skv_vec skv_max(skv_vec a, skv_vec b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b); /* vmaxq orders +0 and -0 and returns NaN */
}
SKV_INLINE skv_vec skv_min(skv_vec a, skv_vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
SKV_INLINE skv_vec skv_nearest(skv_vec x, skv_vec t, skv_vec magic) {
    (void)t, (void)magic;
    return vrndnq_f32(x);
}
SKV_INLINE skv_vec skv_exponent(skv_vec t) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(t), 23));
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
SKV_INLINE float skv_sum_block(const skv_vec *block) {
    const float32x4_t four =
        vaddq_f32(vaddq_f32(block[0], block[2]), vaddq_f32(block[1], block[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
SKV_INLINE float skv_max_block(const skv_vec *block) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(block[0], block[1]), vmaxq_f32(block[2], block[3])));
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

/* clang 14 and 16 make wrong vectors of the lanes on a big-endian AArch64, from -O2 on: there they
 * stay apart. */
#if defined(__clang__) && defined(__AARCH64EB__)
#define SKV_LANES_APART() __asm__ volatile("")
#else
#define SKV_LANES_APART() ((void)0)
#endif

#define SKV_MAP(type, expression)                                                                  \
    type r;                                                                                        \
    SKV_UNROLL for (int i = 0; i < SKV_LANES; i++) {                                               \
        r.lane[i] = (expression);                                                                  \
        SKV_LANES_APART();                                                                         \
    }                                                                                              \
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
SKV_INLINE skv_vec skv_max(skv_vec a, skv_vec b) {
    SKV_MAP(skv_vec, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}
SKV_INLINE skv_vec skv_min(skv_vec a, skv_vec b) {
    SKV_MAP(skv_vec, a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]);
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
SKV_WRAPS SKV_INLINE skv_int skv_int_add(skv_int a, skv_int b) {
    SKV_MAP(skv_int, (int32_t)((uint32_t)a.lane[i] + (uint32_t)b.lane[i]));
}
SKV_WRAPS SKV_INLINE skv_int skv_int_sub(skv_int a, skv_int b) {
    SKV_MAP(skv_int, (int32_t)((uint32_t)a.lane[i] - (uint32_t)b.lane[i]));
}
SKV_INLINE skv_int skv_int_and(skv_int a, skv_int b) { SKV_MAP(skv_int, a.lane[i] & b.lane[i]); }
SKV_INLINE skv_int skv_int_xor(skv_int a, skv_int b) { SKV_MAP(skv_int, a.lane[i] ^ b.lane[i]); }
SKV_INLINE skv_int skv_int_max(skv_int a, skv_int b) {
    SKV_MAP(skv_int, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}
SKV_INLINE skv_int skv_int_gt(skv_int a, skv_int b) {
    SKV_MAP(skv_int, a.lane[i] > b.lane[i] ? -1 : 0);
}
SKV_INLINE skv_vec skv_nearest(skv_vec x, skv_vec t, skv_vec magic) {
    (void)x;
    return skv_to_float(skv_int_sub(skv_bits(t), skv_bits(magic)));
}
SKV_WRAPS SKV_INLINE skv_vec skv_exponent(skv_vec t) {
    skv_int bits = skv_bits(t);
    SKV_UNROLL for (int i = 0; i < SKV_LANES; i++) {
        bits.lane[i] = (int32_t)((uint32_t)bits.lane[i] << 23);
    }
    return skv_from_bits(bits);
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
SKV_NOINLINE float skv_f16_to_float(uint16_t half) {
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
SKV_LARGE skv_vec skv_load_f16(const void *p) {
    uint16_t half[SKV_LANES];
    memcpy(half, p, sizeof half);
    SKV_MAP(skv_vec, skv_f16_to_float(half[i]));
}
SKV_LARGE skv_vec skv_load_bf16(const void *p) {
    uint16_t half[SKV_LANES];
    memcpy(half, p, sizeof half);
    SKV_MAP(skv_vec, skv_float_of_bits((uint32_t)half[i] << 16));
}
SKV_INLINE float skv_sum_block(const skv_vec *block) {
    const skv_vec four = skv_add(skv_add(block[0], block[2]), skv_add(block[1], block[3]));
    return (four.lane[0] + four.lane[2]) + (four.lane[1] + four.lane[3]);
}
SKV_INLINE float skv_max_block(const skv_vec *block) {
    const skv_vec four = skv_max(skv_max(block[0], block[1]), skv_max(block[2], block[3]));
    float top = four.lane[0];
    SKV_UNROLL for (int i = 1; i < SKV_LANES; i++) top = four.lane[i] > top ? four.lane[i] : top;
    return top;
}

#endif

/* ---- Constants of the numeric contract ----------------------------------------------------- */

enum {
    SKV_BLOCK = 16,  /* queries whose weights skv_sum_block adds: the widest native vector */
    SKV_TILE = 48,   /* keys of one softmax step: a multiple of every register tile, and a tile of
                        logits (6 KiB at W 32) and of keys (24 KiB at D 128) stays near in cache */
    SKV_BLOCK_VECS = SKV_BLOCK / SKV_LANES,
    SKV_PART_TILES = SNAPKV_PART / SKV_TILE
};

#define SKV_LOWEST (-3.402823466e38f) /* -FLT_MAX: stands for a logit that is not seen, and for the
                                         maximum where there is none; no infinity */
#define SKV_LOG2E  1.44269504f

#define SKV_HIGHEST_BITS 0x7F7FFFFF /* of FLT_MAX: the magnitudes of infinities and NaN are above */

/* ---- Lane maths ---------------------------------------------------------------------------- */

/* A statement for each i below count, a constant: vectors abreast hide each other's latency. */
#define SKV_EACH(statement)                                                                        \
    SKV_UNROLL for (int i = 0; i < SKV_BATCH; i++) {                                               \
        if (i < count) {                                                                           \
            statement;                                                                             \
        }                                                                                          \
    }                                                                                              \
    (void)0

/* The magnitude's bits, which know infinities and NaN whatever -ffast-math assumes. */
SKV_INLINE skv_int skv_magnitude(skv_vec a) {
    return skv_int_and(skv_bits(a), skv_int_set1(0x7FFFFFFF));
}

SKV_INLINE int skv_any_not_finite(skv_int magnitudes) {
    return skv_mask_bits(skv_int_gt(magnitudes, skv_int_set1(SKV_HIGHEST_BITS))) != 0;
}

/* Powers of two. x = n + f with n the nearest integer; that part is exact, so equal x have an equal
 * f, and all that a maximum m, which is even, does to 2^(x - m) is to move the exponent.
 *
 * 1.5 * 2^23 + 126 added to x - m leaves n - m + 126 in the low bits, ready for the exponent. What
 * is added is SKV_MAGIC - m, exact as long as m is an integer of at most 2^22: x alone is rounded,
 * and m being even, halves go the same way under each m. */
#define SKV_MAGIC      12583038.0f /* 1.5 * 2^23 + 126 */
#define SKV_MAGIC_BITS 0x4B40007E

/* SKV_MAGIC - m; through integers, lest fast-math subtract m from x first. */
SKV_INLINE skv_vec skv_magic_less(skv_vec m) {
    const skv_int counted = skv_bits(skv_add(m, skv_set1(SKV_MAGIC)));
    const skv_int whole = skv_int_sub(counted, skv_int_set1(SKV_MAGIC_BITS));
    return skv_from_bits(skv_int_sub(skv_int_set1(SKV_MAGIC_BITS), whole));
}

/* 2^(x - m), in place, for x - m from -126 to 1 and magic = SKV_MAGIC - m; worst error 2.0 ULP.
 *
 * The polynomial is 2 * 2^f for |f| <= 1/2: minimax in relative error (9.1e-8, Remez; 1.53e-7 as
 * rounded here) with the constant term fixed, so that powers of whole numbers are exact. Both ends
 * meet: at 1/2 it is twice what it is at -1/2, to the bit. The factor 2^(n - m - 1) is 0 at -126:
 * no subnormal appears, whose flushing would change bits. */
SKV_LARGE void skv_exp2_each(skv_vec *x, skv_vec magic, const int count) {
    const float coefficients[] = {0.0193425808f, 0.111014418f, 0.480444938f, 1.38629401f, 2};
    skv_vec t[SKV_BATCH], f[SKV_BATCH], p[SKV_BATCH];
    SKV_EACH(t[i] = skv_add(x[i], magic));
    SKV_EACH(f[i] = skv_sub(x[i], skv_nearest(x[i], t[i], magic)));
    SKV_EACH(p[i] = skv_set1(0.00265297899f));
    SKV_UNROLL for (int c = 0; c < 5; c++) {
        SKV_EACH(p[i] = skv_fma(p[i], f[i], skv_set1(coefficients[c])));
    }
    SKV_EACH(x[i] = skv_mul(p[i], skv_exponent(t[i])));
}

/* 2^x for x <= 0: exactly 1 at 0, exactly 0 from -125.5 down. Out of line, being no hot path. */
SKV_NOINLINE skv_vec skv_exp2(skv_vec x) {
    x = skv_max(x, skv_set1(-126.0f));
    skv_exp2_each(&x, skv_set1(SKV_MAGIC), 1);
    return x;
}

/* 2^n for an integer n <= 0, exactly; 0 from -127 down. */
SKV_LARGE skv_vec skv_power(skv_vec n) {
    return skv_exponent(skv_add(skv_max(n, skv_set1(-127.0f)), skv_set1(SKV_MAGIC + 1.0f)));
}

/* The even number next to x. Adding 1.5 * 2^24 rounds to a multiple of 2; it comes back through
 * integers, since fast-math would cancel the floats. Beyond 2^23 x itself, an integer. */
SKV_LARGE skv_vec skv_even(skv_vec x) {
    const skv_int counted = skv_bits(skv_add(x, skv_set1(25165824.0f))); /* bits 0x4BC00000 */
    const skv_int half = skv_int_sub(counted, skv_int_set1(0x4BC00000));
    const skv_int is_large = skv_int_gt(skv_magnitude(x), skv_bits(skv_set1(8388608.0f)));
    return skv_blend(is_large, x, skv_to_float(skv_int_add(half, half)));
}

/* tanh(x); worst error 2.3 ULP. From exp(-2 |x|), a power of 2, and near 0, where that cancels,
 * x + x^3 P(x^2) (minimax on |x| <= 0.625, 4.1e-9, Remez). */
SKV_INLINE skv_vec skv_tanh(skv_vec x) {
    const skv_int sign = skv_int_and(skv_bits(x), skv_int_set1((int32_t)-0x7FFFFFFF - 1));
    const skv_vec a = skv_from_bits(skv_magnitude(x));
    const skv_vec one = skv_set1(1.0f);
    const skv_vec e = skv_exp2(skv_mul(a, skv_set1(-2.88539008f))); /* -2 log2 e */
    const skv_vec large = skv_div(skv_sub(one, e), skv_add(one, e));
    const skv_vec z = skv_mul(a, a);
    const float coefficients[] = {0.02065059f, -0.0537435f, 0.13331491f, -0.33333284f};
    skv_vec p = skv_set1(-0.00571705f);
    for (int c = 0; c < 4; c++) {
        p = skv_fma(p, z, skv_set1(coefficients[c]));
    }
    const skv_vec near_zero = skv_fma(skv_mul(a, z), p, a);
    const skv_int is_large = skv_int_gt(skv_bits(a), skv_bits(skv_set1(0.625f)));
    return skv_from_bits(skv_int_xor(skv_bits(skv_blend(is_large, large, near_zero)), sign));
}

/* ---- Sizes: saturating, so that SIZE_MAX means "does not fit" ------------------------------- */

SKV_INLINE size_t skv_size_add(size_t a, size_t b) {
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

SKV_NOINLINE size_t skv_size_mul(size_t a, size_t b) {
    return b != 0 && a > SIZE_MAX / b ? SIZE_MAX : a * b;
}

SKV_INLINE size_t skv_size_min(size_t a, size_t b) {
    return a < b ? a : b;
}

SKV_INLINE size_t skv_div_up(size_t n, size_t step) {
    return n / step + (n % step != 0);
}

SKV_INLINE size_t skv_round_up(size_t n, size_t step) {
    return skv_size_mul(skv_div_up(n, step), step);
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

/* Bytes from the data of a view to one of its rows. */
SKV_INLINE size_t skv_row_offset(const snapkv_rows *rows, size_t head, size_t position) {
    size_t offset = head * rows->head_stride;
    if (rows->block_table) {
        /* Positions fit in 31 bits, and a division of 32 is much cheaper than one of 64. */
        const uint32_t block_rows = (uint32_t)skv_size_min(rows->block_rows, UINT32_MAX);
        const uint32_t block = (uint32_t)position / block_rows;
        offset += (size_t)rows->block_table[block] * rows->block_stride;
        position -= (size_t)block * block_rows;
    }
    return offset + position * rows->row_stride;
}

/* What a view may not write to, for the one who may: no cast that a compiler could warn of. */
SKV_INLINE char *skv_writable(const void *data) {
    char *writable;
    memcpy(&writable, &data, sizeof writable);
    return writable;
}

SKV_INLINE const char *skv_row(const snapkv_rows *rows, size_t head, size_t position) {
    return (const char *)rows->data + skv_row_offset(rows, head, position);
}

/* One row to floats, exactly. out has room for head_dim rounded up to SKV_BLOCK. */
SKV_NOINLINE void skv_decode_row(const snapkv_rows *rows, size_t head, size_t position,
                                 size_t head_dim, float *out) {
    const char *row = skv_row(rows, head, position);
    if (rows->dtype == SNAPKV_CUSTOM) {
        rows->decode(rows->decode_context, row, head, position, out, head_dim);
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

typedef struct skv_scan {
    const snapkv_layer *layer;
    size_t first_head, n_heads; /* query heads that share each key tile while it is in cache */
    size_t n_queries;    /* per head: the window, or 1 */
    size_t n_lanes;      /* n_queries, in whole blocks */
    size_t first_row;    /* rows of the prompt that are scanned: 0 .. length - 1, or some parts */
    size_t end_row;
    size_t n_votes;      /* the rows before this one have their weights asked for */
    size_t n_scored;     /* rows that votes, sums, scores and total_votes have room for */
    int by_max;          /* the votes are the largest weights; sums besides */
    size_t first_tile;   /* first tile that a query sees: a span hides what lies before, */
    size_t end_tile;     /* and behind the last query's position none sees any */
    size_t n_stored;     /* tiles whose weights are kept; the rest is computed again */
    float *queries;      /* [n_heads][n_lanes / 16][head_dim][16], scaled; unused lanes 0 */
    float *key_rows;     /* [SKV_TILE][pitch]: one tile decoded */
    float *tile;         /* [SKV_TILE][n_lanes]: logits, then weights of a tile not kept */
    int32_t *position;   /* [n_lanes] of the query */
    int32_t *first;      /* [n_lanes] first row that it sees, */
    int32_t *last;       /* [n_lanes] and the last: -1 in unused lanes, which see nothing */
    float *part_max;     /* [n_heads][n_lanes] of the part that is scanned */
    float *part_sum;     /* [n_heads][n_lanes] */
    float *total_max;    /* [n_heads][n_lanes] of the parts before it */
    float *total_sum;    /* [n_heads][n_lanes]; 0 in lanes that see nothing */
    float *factors;      /* [n_lanes] */
    float *votes;        /* [n_scored] of one head */
    float *sums;         /* [n_scored] of one head; the votes themselves unless by_max */
    float *scores;       /* [n_scored] pooled and reduced */
    float *total_votes;  /* [n_scored] sums, added over the heads of a set */
    float *stored;       /* [n_stored][n_heads][SKV_TILE + 1][n_lanes]: weights, then the maximum */
} skv_scan;

enum { SKV_ALIGN = 64 }; /* of the arrays inside a workspace: a cache line and the widest vector */

/* A workspace that arrays are taken from; base NULL: only counted. */
typedef struct skv_arena {
    char *base;
    size_t used; /* bytes; SIZE_MAX: they don't fit */
} skv_arena;

SKV_NOINLINE void *skv_take(skv_arena *arena, size_t count, size_t size) {
    void *taken = arena->base ? arena->base + arena->used : NULL;
    const size_t bytes = skv_round_up(skv_size_mul(count, size), SKV_ALIGN);
    arena->used = skv_size_add(arena->used, bytes);
    return taken;
}

SKV_INLINE float *skv_take_floats(skv_arena *arena, size_t count) {
    return (float *)skv_take(arena, count, sizeof(float));
}

SKV_INLINE int32_t *skv_take_ints(skv_arena *arena, size_t count) {
    return (int32_t *)skv_take(arena, count, sizeof(int32_t));
}

/* Places what every scan needs; the kept weights lie behind it. Returns its bytes. */
SKV_NOINLINE size_t skv_lay_out(skv_scan *scan, char *base) {
    const size_t n_scored = scan->n_scored, n_lanes = scan->n_lanes;
    const size_t head_lanes = skv_size_mul(scan->n_heads, n_lanes);
    const size_t pitch = skv_round_up(scan->layer->head_dim, SKV_BLOCK);
    skv_arena arena;
    arena.base = base;
    arena.used = 0;
    scan->queries = skv_take_floats(&arena, skv_size_mul(head_lanes, scan->layer->head_dim));
    scan->key_rows = skv_take_floats(&arena, skv_size_mul(SKV_TILE, pitch));
    scan->tile = skv_take_floats(&arena, skv_size_mul(SKV_TILE, n_lanes));
    scan->position = skv_take_ints(&arena, n_lanes);
    scan->first = skv_take_ints(&arena, n_lanes);
    scan->last = skv_take_ints(&arena, n_lanes);
    scan->part_max = skv_take_floats(&arena, head_lanes);
    scan->part_sum = skv_take_floats(&arena, head_lanes);
    scan->total_max = skv_take_floats(&arena, head_lanes);
    scan->total_sum = skv_take_floats(&arena, head_lanes);
    scan->factors = skv_take_floats(&arena, n_lanes);
    scan->votes = skv_take_floats(&arena, n_scored);
    scan->sums = scan->by_max ? skv_take_floats(&arena, n_scored) : scan->votes;
    scan->scores = skv_take_floats(&arena, n_scored);
    scan->total_votes = skv_take_floats(&arena, n_scored);
    scan->stored = skv_take_floats(&arena, 0);
    return arena.used;
}

/* Floats of one head's kept tile; behind the weights [n_lanes] the maximum they are relative to. */
SKV_INLINE size_t skv_stored_floats(const skv_scan *scan) {
    return skv_size_mul(SKV_TILE + 1, scan->n_lanes);
}

SKV_INLINE float *skv_stored_tile(const skv_scan *scan, size_t tile, size_t head) {
    const size_t index = (tile - scan->first_tile) * scan->n_heads + head;
    return scan->stored + index * skv_stored_floats(scan);
}

SKV_INLINE size_t skv_tiles(size_t rows) {
    return skv_div_up(rows, SKV_TILE);
}

/* The first position that a query at position t sees. */
SKV_INLINE size_t skv_first_seen(const snapkv_layer *layer, size_t t) {
    if (layer->chunk) {
        return t - t % layer->chunk;
    }
    return layer->span && layer->span <= t ? t - layer->span + 1 : 0;
}

/* The position that a row of the keys holds. */
SKV_INLINE int32_t skv_position(const snapkv_layer *layer, size_t row) {
    return layer->key_positions ? layer->key_positions[row] : (int32_t)row;
}

/* The first row whose position is not below one; length where there is none. */
SKV_NOINLINE size_t skv_row_from(const snapkv_layer *layer, size_t position) {
    size_t low = 0, high = layer->length;
    if (!layer->key_positions) {
        return skv_size_min(position, high);
    }
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((size_t)layer->key_positions[middle] < position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Sizes of a scan. first_tile is a lower bound as long as no positions are read. */
SKV_NOINLINE skv_scan skv_make_scan(const snapkv_layer *layer, size_t n_heads, size_t n_queries,
                                    size_t n_votes, int by_max) {
    skv_scan scan;
    const int is_tail = !layer->query_positions && !layer->key_positions;
    memset(&scan, 0, sizeof scan);
    scan.layer = layer;
    scan.n_heads = n_heads;
    scan.n_queries = n_queries;
    scan.n_lanes = skv_round_up(n_queries, SKV_BLOCK);
    scan.n_votes = n_votes;
    scan.by_max = by_max;
    scan.first_tile = is_tail ? skv_first_seen(layer, layer->length - n_queries) / SKV_TILE : 0;
    scan.end_tile = skv_tiles(layer->length);
    scan.end_row = scan.n_scored = layer->length;
    return scan;
}

/* Tiles whose weights are needed again, from first_tile on. */
SKV_INLINE size_t skv_vote_tiles(const skv_scan *scan) {
    const size_t end = skv_size_min(skv_tiles(scan->n_votes), scan->end_tile);
    return end > scan->first_tile ? end - scan->first_tile : 0;
}

/* Bytes of a workspace: the smallest, and that in which all weights are kept. */
SKV_INLINE size_t skv_scan_min(skv_scan scan) {
    return skv_size_add(skv_lay_out(&scan, NULL), SKV_ALIGN - sizeof(float));
}

SKV_INLINE size_t skv_scan_size(skv_scan scan) {
    const size_t kept = skv_vote_tiles(&scan);
    const size_t floats = skv_size_mul(kept, skv_size_mul(scan.n_heads, skv_stored_floats(&scan)));
    return skv_size_add(skv_scan_min(scan), skv_size_mul(floats, sizeof(float)));
}

/* Which rows each query sees, and so which tiles the scan visits. positions NULL: the queries are
 * the last of the rows. */
SKV_NOINLINE void skv_place_queries(skv_scan *scan, const int32_t *positions) {
    const snapkv_layer *layer = scan->layer;
    for (size_t i = 0; i < scan->n_lanes; i++) {
        SKV_STEP_BY_STEP();
        scan->position[i] = scan->first[i] = 0;
        scan->last[i] = -1;
        if (i < scan->n_queries) {
            const int32_t t = positions ? positions[i]
                                        : skv_position(layer, layer->length - scan->n_queries + i);
            scan->position[i] = t;
            scan->first[i] = (int32_t)skv_row_from(layer, skv_first_seen(layer, (size_t)t));
            scan->last[i] = (int32_t)skv_row_from(layer, (size_t)t + 1) - 1;
        }
    }
    /* Positions ascend, and so do the ends of what is seen. */
    const int32_t seen_rows = scan->last[scan->n_queries - 1] + 1;
    const size_t seen_tiles = skv_tiles((size_t)seen_rows);
    const size_t unseen_tiles = (size_t)scan->first[0] / SKV_TILE;
    scan->end_tile = skv_size_min(seen_tiles, skv_tiles(scan->end_row));
    scan->first_tile = unseen_tiles > scan->first_row / SKV_TILE ? unseen_tiles
                                                                 : scan->first_row / SKV_TILE;
    scan->first_tile = skv_size_min(scan->first_tile, scan->end_tile);
}

/* Lays a scan out in a workspace of at least skv_scan_min(). */
SKV_NOINLINE void skv_start_scan(skv_scan *scan, size_t first_head, const int32_t *positions,
                                 void *workspace, size_t workspace_size) {
    const size_t off = (uintptr_t)workspace % SKV_ALIGN, pad = off ? SKV_ALIGN - off : 0;
    const size_t fixed = skv_lay_out(scan, (char *)workspace + pad);
    const size_t tile_bytes = scan->n_heads * skv_stored_floats(scan) * sizeof(float);
    scan->first_head = first_head;
    skv_place_queries(scan, positions);
    scan->n_stored =
        skv_size_min(skv_vote_tiles(scan), (workspace_size - pad - fixed) / tile_bytes);
}

/* The softmax statistics of queries that have seen nothing. */
SKV_NOINLINE void skv_clear_statistics(const skv_scan *scan, float *maxima, float *sums) {
    for (size_t i = 0; i < scan->n_heads * scan->n_lanes; i += SKV_LANES) {
        skv_store(maxima + i, skv_set1(SKV_LOWEST));
        skv_store(sums + i, skv_set1(0.0f));
    }
}

/* Reads the queries of the scan's heads, scales them, and turns them so that lanes are queries.
 * rows holds head first_row_head and those behind it. */
SKV_NOINLINE void skv_pack_queries(skv_scan *scan, const snapkv_rows *rows,
                                   size_t first_row_head) {
    const snapkv_layer *layer = scan->layer;
    const size_t head_dim = layer->head_dim, n_lanes = scan->n_lanes;
    const float scale = layer->scale != 0.0f ? layer->scale : 1.0f / SKV_SQRTF((float)head_dim);
    float *row = scan->key_rows; /* free until the first tile */
    memset(scan->queries, 0, scan->n_heads * n_lanes * head_dim * sizeof(float));
    for (size_t head = 0; head < scan->n_heads; head++) {
        float *out = scan->queries + head * n_lanes * head_dim;
        for (size_t i = 0; i < scan->n_queries; i++) {
            float *lane = out + i / SKV_BLOCK * SKV_BLOCK * head_dim + i % SKV_BLOCK;
            skv_decode_row(rows, first_row_head + head, i, head_dim, row);
            for (size_t d = 0; d < head_dim; d++) {
                SKV_STEP_BY_STEP();
                lane[d * SKV_BLOCK] = row[d] * scale * SKV_LOG2E; /* logits in base 2 */
            }
        }
    }
    skv_clear_statistics(scan, scan->part_max, scan->part_sum);
    skv_clear_statistics(scan, scan->total_max, scan->total_sum);
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
    size_t first;  /* row of the prompt */
    size_t count;
    size_t kv_head;
    size_t ahead; /* how many keys on to prefetch */
} skv_keys;

/* 3000 cycles ahead at W 32, D 128: far above the latency of memory; 6 to 48 measured alike. Where
 * a tile is decoded as a whole, the next tile is prefetched. */
enum { SKV_KEYS_AHEAD = 12 };

SKV_NOINLINE skv_keys skv_load_keys(const skv_scan *scan, size_t tile) {
    const snapkv_layer *layer = scan->layer;
    const snapkv_rows *rows = &layer->keys;
    skv_keys keys;
    keys.first = tile * SKV_TILE;
    keys.count = skv_size_min(scan->end_row - keys.first, SKV_TILE);
    keys.kv_head = scan->first_head / (layer->n_query_heads / layer->n_kv_heads);
    const size_t first = keys.first - layer->first_row; /* of the view */
    const int one_block =
        !rows->block_table || first % rows->block_rows + keys.count <= rows->block_rows;
    if (rows->dtype == SNAPKV_F32 && one_block) {
        keys.rows = skv_row(rows, keys.kv_head, first);
        keys.stride = rows->row_stride;
        keys.ahead = SKV_KEYS_AHEAD;
        return keys;
    }
    const size_t pitch = skv_round_up(layer->head_dim, SKV_BLOCK);
    for (size_t k = 0; k < keys.count; k++) {
        skv_decode_row(rows, keys.kv_head, first + k, layer->head_dim,
                       scan->key_rows + k * pitch);
    }
    keys.rows = (const char *)scan->key_rows;
    keys.stride = pitch * sizeof(float);
    keys.ahead = SKV_TILE;
    return keys;
}

/* The dot products of one head's queries with a tile of keys: logits [SKV_TILE][n_lanes]. */
SKV_INLINE void skv_logits(const skv_scan *scan, size_t head, const skv_keys *keys,
                           float *logits) {
    const snapkv_layer *layer = scan->layer;
    const size_t head_dim = layer->head_dim, n_lanes = scan->n_lanes;
    const size_t n_vecs = (scan->n_queries + SKV_LANES - 1) / SKV_LANES;
    const float *packed = scan->queries + head * n_lanes * head_dim;
    skv_dot dot;
    dot.ahead_step = skv_element_bytes(layer->keys.dtype) * SKV_BLOCK;
    dot.head_dim = head_dim;
    dot.n_lanes = n_lanes;
    for (size_t k = 0; k < keys->count; k += SKV_TILE_KEYS) {
        /* Behind the last key the register tile repeats it: there is room for those logits. */
        for (size_t i = 0; i < SKV_TILE_KEYS; i++) {
            const size_t j = skv_size_min(k + i, keys->count - 1);
            const size_t next = skv_size_min(keys->first + j + keys->ahead, scan->end_row - 1);
            dot.keys[i] = (const float *)(const void *)(keys->rows + j * keys->stride);
            dot.ahead[i] = skv_row(&layer->keys, keys->kv_head, next - layer->first_row);
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

/* Which lanes see key k of a tile: first <= j <= last. What a tile has room for behind the last key
 * no lane sees: -1 lies before every first. */
SKV_INLINE skv_int skv_visible(const skv_scan *scan, const skv_keys *keys, size_t lane, size_t k) {
    const skv_int j = skv_int_set1(k < keys->count ? (int32_t)(keys->first + k) : -1);
    const skv_int late = skv_int_gt(j, skv_int_load(scan->last + lane));
    const skv_int early = skv_int_gt(skv_int_load(scan->first + lane), j);
    return skv_int_and(skv_int_xor(late, skv_int_set1(-1)), skv_int_xor(early, skv_int_set1(-1)));
}

/* A constant of the layer for logits in base 2; saturates. */
SKV_INLINE float skv_base_2(float x) {
    const float limit = -SKV_LOWEST / SKV_LOG2E;
    return x > limit ? -SKV_LOWEST : x < -limit ? SKV_LOWEST : x * SKV_LOG2E;
}

/* Soft cap, ALiBi and mask on the dot products of one vector of queries. A logit that is not seen
 * becomes SKV_LOWEST. Returns the largest magnitude seen, before the cap can hide it and after. */
SKV_NOINLINE skv_int skv_shape_logits(const skv_scan *scan, size_t head, const skv_keys *keys,
                                      size_t lane, float *logits) {
    const snapkv_layer *layer = scan->layer;
    const float *slopes = layer->alibi_slopes;
    const skv_vec cap = skv_set1(skv_base_2(layer->softcap));
    const skv_vec slope = skv_set1(slopes ? skv_base_2(slopes[scan->first_head + head]) : 0.0f);
    skv_int worst = skv_int_set1(0);
    for (size_t k = 0; k < SKV_TILE; k++) {
        float *p = logits + k * scan->n_lanes;
        const skv_int seen = skv_visible(scan, keys, lane, k);
        skv_vec logit = skv_load(p);
        worst = skv_int_max(worst, skv_int_and(skv_magnitude(logit), seen));
        if (layer->softcap != 0.0f) {
            logit = skv_mul(cap, skv_tanh(skv_div(logit, cap)));
        }
        if (slopes) {
            const size_t row = keys->first + skv_size_min(k, keys->count - 1);
            const skv_int distance = skv_int_sub(skv_int_set1(skv_position(layer, row)),
                                                 skv_int_load(scan->position + lane));
            logit = skv_fma(slope, skv_to_float(distance), logit);
        }
        worst = skv_int_max(worst, skv_int_and(skv_magnitude(logit), seen));
        skv_store(p, skv_blend(seen, logit, skv_set1(SKV_LOWEST)));
    }
    return worst;
}

/* How logits x are weighed against a maximum m, whatever both are: 2^(r - rest) with r = x - base,
 * but not below `least`, where the weight is 0. Beyond 2^21, where the magic number has no room for
 * them, they are taken relative to m: those that weigh anything are so near that x - m is exact.
 * Where nothing has been seen, m = SKV_LOWEST, all logits are as low, and weigh nothing. */
typedef struct skv_weigher {
    skv_vec base, least, magic;
} skv_weigher;

#define SKV_ROOM 2097152.0f /* 2^21 */

SKV_INLINE skv_int skv_has_no_room(skv_vec m) {
    return skv_int_gt(skv_magnitude(m), skv_bits(skv_set1(SKV_ROOM)));
}

SKV_LARGE skv_weigher skv_make_weigher(skv_vec m) {
    const skv_int is_large = skv_has_no_room(m);
    const skv_int is_seen = skv_int_gt(skv_bits(skv_sub(m, skv_set1(SKV_LOWEST))), skv_int_set1(0));
    skv_weigher weigher;
    weigher.base = skv_blend(skv_int_and(is_large, is_seen), m, skv_set1(0.0f));
    const skv_vec rest = skv_max(skv_sub(m, weigher.base), skv_set1(-SKV_ROOM));
    weigher.least = skv_sub(rest, skv_set1(126.0f));
    weigher.magic = skv_magic_less(rest);
    return weigher;
}

SKV_INLINE skv_vec skv_clamp_logit(const skv_weigher *weigher, skv_vec x) {
    return skv_max(skv_sub(x, weigher->base), weigher->least);
}

/* The weights of one vector of a tile, in place, whatever its logits are; their sum goes to *sum.
 * Returns the largest magnitude of a logit. */
SKV_NOINLINE skv_int skv_weigh_any(float *tile, size_t n_lanes, const float *m, float *tile_sum) {
    const skv_weigher weigher = skv_make_weigher(skv_load(m));
    skv_vec sum = skv_set1(0.0f);
    skv_int worst = skv_int_set1(0);
    for (size_t k = 0; k < SKV_TILE; k += SKV_BATCH) {
        skv_vec weight[SKV_BATCH];
        SKV_UNROLL for (size_t i = 0; i < SKV_BATCH; i++) {
            const skv_vec logit = skv_load(tile + (k + i) * n_lanes);
            worst = skv_int_max(worst, skv_magnitude(logit));
            weight[i] = skv_clamp_logit(&weigher, logit);
        }
        skv_exp2_each(weight, weigher.magic, SKV_BATCH);
        SKV_UNROLL for (size_t i = 0; i < SKV_BATCH; i++) {
            skv_store(tile + (k + i) * n_lanes, weight[i]);
            sum = skv_add(sum, weight[i]);
        }
    }
    skv_store(tile_sum, sum);
    return worst;
}

/* The same where every logit lies within 120 below m, and m has room: 11 operations a vector.
 * A NaN, which no comparison has noticed, reaches the sum. */
SKV_INLINE skv_int skv_weigh_near(float *tile, size_t n_lanes, skv_vec m, skv_vec *tile_sum) {
    const skv_vec magic = skv_magic_less(m);
    skv_vec sum = skv_set1(0.0f);
    for (size_t k = 0; k < SKV_TILE; k += SKV_BATCH) {
        skv_vec weight[SKV_BATCH];
        SKV_UNROLL for (size_t i = 0; i < SKV_BATCH; i++) {
            weight[i] = skv_load(tile + (k + i) * n_lanes);
        }
        skv_exp2_each(weight, magic, SKV_BATCH);
        SKV_UNROLL for (size_t i = 0; i < SKV_BATCH; i++) {
            skv_store(tile + (k + i) * n_lanes, weight[i]);
            sum = skv_add(sum, weight[i]);
        }
    }
    *tile_sum = sum;
    return skv_magnitude(sum);
}

/* Whether logits from `lowest` up to m are near enough for that loop. */
SKV_INLINE int skv_are_near(skv_vec m, skv_vec lowest) {
    const skv_int is_deep = skv_int_gt(skv_bits(skv_sub(m, lowest)), skv_bits(skv_set1(120.0f)));
    return skv_mask_bits(is_deep) == 0 && skv_mask_bits(skv_has_no_room(m)) == 0;
}

/* One softmax step of one vector of queries over a tile: logits become weights 2^(logit - m) with
 * the running maximum m, rounded to an even number, and m and the running sum go on. Returns the
 * largest magnitude of a logit, or of what one that isn't finite made of the sum. */
SKV_INLINE skv_int skv_softmax_lanes(float *tile, size_t n_lanes, float *running_max,
                                     float *running_sum) {
    const skv_vec old = skv_load(running_max);
    skv_vec highest = skv_set1(SKV_LOWEST), lowest = skv_set1(-SKV_LOWEST), sum;
    skv_int worst;
    for (size_t k = 0; k < SKV_TILE; k += SKV_BATCH) {
        SKV_UNROLL for (size_t i = 0; i < SKV_BATCH; i++) {
            const skv_vec logit = skv_load(tile + (k + i) * n_lanes);
            highest = skv_max(logit, highest);
            lowest = skv_min(logit, lowest);
        }
    }
    const skv_vec m = skv_max(skv_even(highest), old);
    skv_store(running_max, m);
    /* The scalar path, whose code is to be small, has but one of the two loops. */
    if (SKV_BATCH > 1 && skv_are_near(m, lowest)) {
        worst = skv_weigh_near(tile, n_lanes, m, &sum);
    } else {
        float lanes[SKV_LANES];
        worst = skv_weigh_any(tile, n_lanes, running_max, lanes);
        sum = skv_load(lanes);
    }
    skv_store(running_sum, skv_fma(skv_load(running_sum), skv_power(skv_sub(old, m)), sum));
    return worst;
}

/* The weights of a tile of keys for all queries of one head, [SKV_TILE][n_lanes]. Returns whether a
 * logit that is seen isn't finite. */
SKV_NOINLINE int skv_weigh_tile(const skv_scan *scan, size_t head, const skv_keys *keys,
                                float *tile, float *running_max, float *running_sum) {
    const snapkv_layer *layer = scan->layer;
    const size_t n_queries = scan->n_queries;
    const int32_t first = scan->first[n_queries - 1], end = scan->last[0] + 1; /* seen by all */
    const int is_masked = keys->count < SKV_TILE || keys->first < (size_t)first ||
                          keys->first + SKV_TILE > (size_t)end;
    const int is_shaped = is_masked || layer->softcap != 0.0f || layer->alibi_slopes != NULL;
    skv_int worst = skv_int_set1(0);
    skv_logits(scan, head, keys, tile);
    for (size_t lane = 0; lane < n_queries; lane += SKV_LANES) {
        float *p = tile + lane, *peak = running_max + lane, *sum = running_sum + lane;
        if (is_shaped) {
            worst = skv_int_max(worst, skv_shape_logits(scan, head, keys, lane, p));
        }
        worst = skv_int_max(worst, skv_softmax_lanes(p, scan->n_lanes, peak, sum));
    }
    return skv_any_not_finite(worst);
}

/* Merges the statistics m and sum of one vector of queries, of later keys, into total_max and
 * total_sum. Both factors are powers of two, the larger one 1. */
SKV_LARGE void skv_merge(float *total_max, float *total_sum, skv_vec m, skv_vec sum) {
    const skv_vec old = skv_load(total_max);
    const skv_vec all = skv_max(m, old);
    sum = skv_mul(sum, skv_power(skv_sub(m, all)));
    skv_store(total_max, all);
    skv_store(total_sum, skv_fma(skv_load(total_sum), skv_power(skv_sub(old, all)), sum));
}

/* Ends a part: its statistics join those of the parts before, and begin afresh. */
SKV_NOINLINE void skv_merge_part(skv_scan *scan) {
    for (size_t i = 0; i < scan->n_heads * scan->n_lanes; i += SKV_LANES) {
        skv_merge(scan->total_max + i, scan->total_sum + i, skv_load(scan->part_max + i),
                  skv_load(scan->part_sum + i));
    }
    skv_clear_statistics(scan, scan->part_max, scan->part_sum);
}

/* The first pass over the tiles of one part: the softmax statistics of every head, and the weights
 * of as many tiles as the workspace keeps. Returns whether a logit isn't finite. */
SKV_NOINLINE int skv_scan_tiles(skv_scan *scan, size_t first_tile, size_t end_tile) {
    int not_finite = 0;
    for (size_t tile = first_tile; tile < end_tile; tile++) {
        const skv_keys keys = skv_load_keys(scan, tile);
        const int keep = tile - scan->first_tile < scan->n_stored;
        for (size_t head = 0; head < scan->n_heads; head++) {
            float *weights = keep ? skv_stored_tile(scan, tile, head) : scan->tile;
            float *m = scan->part_max + head * scan->n_lanes;
            float *sum = scan->part_sum + head * scan->n_lanes;
            not_finite |= skv_weigh_tile(scan, head, &keys, weights, m, sum);
            if (keep) {
                memcpy(weights + SKV_TILE * scan->n_lanes, m, scan->n_lanes * sizeof(float));
            }
        }
    }
    return not_finite;
}

/* Behind the last part: the sinks, a part of their own. */
SKV_NOINLINE void skv_merge_sinks(skv_scan *scan) {
    const float *sinks = scan->layer->sink_logits;
    for (size_t head = 0; head < scan->n_heads; head++) {
        float *total_max = scan->total_max + head * scan->n_lanes;
        float *total_sum = scan->total_sum + head * scan->n_lanes;
        if (sinks) {
            skv_vec sink = skv_set1(skv_base_2(sinks[scan->first_head + head]));
            const skv_vec m = skv_even(sink);
            const skv_weigher weigher = skv_make_weigher(m);
            sink = skv_clamp_logit(&weigher, sink);
            skv_exp2_each(&sink, weigher.magic, 1);
            for (size_t lane = 0; lane < scan->n_queries; lane += SKV_LANES) {
                skv_merge(total_max + lane, total_sum + lane, m, sink);
            }
        }
        for (size_t lane = scan->n_queries; lane < scan->n_lanes; lane++) {
            total_sum[lane] = 0.0f; /* unused lanes weigh nothing */
        }
    }
}

/* The first pass over a whole prompt, part by part. */
SKV_NOINLINE snapkv_status skv_scan_keys(skv_scan *scan) {
    int not_finite = 0;
    for (size_t tile = scan->first_tile; tile < scan->end_tile;) {
        const size_t end = (tile / SKV_PART_TILES + 1) * SKV_PART_TILES;
        not_finite |= skv_scan_tiles(scan, tile, skv_size_min(end, scan->end_tile));
        skv_merge_part(scan);
        tile = end;
    }
    skv_merge_sinks(scan);
    return not_finite ? SNAPKV_ERROR_NOT_FINITE : SNAPKV_OK;
}

/* ---- Votes ----------------------------------------------------------------------------------- */

/* What the last pass adds to. A weight so far below the maximum of its own tile that it became 0
 * may be kept in another tile, though equal: at most 2^-125.5 beside a sum of at least 2^-1. Votes
 * add up in units of 2^-32, which makes 2^-92.5 of it, onto SKV_GROUND, whose half ulp is 2^-90:
 * the difference rounds away, and so does what a subnormal could lose. From some 1e-29 up votes are
 * exact to rounding. */
#define SKV_UNIT   4294967296.0f           /* 2^32 */
#define SKV_GROUND 1.3552527156068805e-20f /* 2^-66, in each of the SKV_BLOCK lanes */

/* The votes of `count` keys of a tile from their weights, brought to the final maximum and divided
 * by the sum: added over the queries. */
SKV_INLINE void skv_add_weights(const skv_scan *scan, const float *weights, size_t count,
                                float *sums) {
    const size_t n_lanes = scan->n_lanes;
    const size_t n_vecs = (scan->n_queries + SKV_LANES - 1) / SKV_LANES;
    for (size_t k = 0; k < count; k++) {
        skv_vec sum[SKV_BLOCK_VECS];
        SKV_UNROLL for (int i = 0; i < SKV_BLOCK_VECS; i++) {
            sum[i] = skv_set1(SKV_GROUND);
        }
        for (size_t v = 0; v < n_vecs; v += SKV_BLOCK_VECS) {
            SKV_UNROLL for (size_t i = 0; i < SKV_BLOCK_VECS; i++) {
                if (v + i < n_vecs) {
                    const size_t lane = (v + i) * SKV_LANES;
                    sum[i] = skv_fma(skv_load(weights + k * n_lanes + lane),
                                     skv_load(scan->factors + lane), sum[i]);
                }
            }
        }
        sums[k] = (skv_sum_block(sum) - (float)SKV_BLOCK * SKV_GROUND) * (1 / SKV_UNIT);
    }
}

/* The same, but of each key the largest: SKV_GROUND is added once. */
SKV_INLINE void skv_top_weights(const skv_scan *scan, const float *weights, size_t count,
                                float *votes) {
    const size_t n_lanes = scan->n_lanes;
    const size_t n_vecs = (scan->n_queries + SKV_LANES - 1) / SKV_LANES;
    const skv_vec ground = skv_set1(SKV_GROUND);
    for (size_t k = 0; k < count; k++) {
        skv_vec peak[SKV_BLOCK_VECS];
        SKV_UNROLL for (int i = 0; i < SKV_BLOCK_VECS; i++) {
            peak[i] = ground;
        }
        for (size_t v = 0; v < n_vecs; v++) { /* the largest knows no order */
            const size_t lane = v * SKV_LANES;
            const skv_vec vote = skv_fma(skv_load(weights + k * n_lanes + lane),
                                         skv_load(scan->factors + lane), ground);
            peak[0] = skv_max(vote, peak[0]);
        }
        votes[k] = (skv_max_block(peak) - SKV_GROUND) * (1 / SKV_UNIT);
    }
}

/* The last pass of one head: votes and sums of the rows from first_row on. Tiles that were not kept
 * are computed again, with the final maximum from the start: the same numbers but for a power of
 * two, which their factor lacks. */
SKV_NOINLINE void skv_sum_votes(skv_scan *scan, size_t head, float *votes, float *sums) {
    const size_t n_lanes = scan->n_lanes, n_votes = scan->n_votes;
    float *final_max = scan->total_max + head * n_lanes;
    const float *final_sum = scan->total_sum + head * n_lanes;
    const size_t end_tile = scan->first_tile + skv_vote_tiles(scan);
    if (scan->first_tile * SKV_TILE > scan->first_row || end_tile < skv_tiles(n_votes)) {
        const size_t bytes = (n_votes - scan->first_row) * sizeof(float); /* what no query sees */
        memset(votes, 0, bytes);
        memset(sums, 0, bytes);
    }
    for (size_t tile = scan->first_tile; tile < end_tile; tile++) {
        const float *weights = scan->tile, *tile_max = final_max;
        if (tile - scan->first_tile < scan->n_stored) {
            weights = skv_stored_tile(scan, tile, head);
            tile_max = weights + SKV_TILE * n_lanes;
        } else {
            /* The maximum stays; the sums of the parts are done with. */
            const skv_keys keys = skv_load_keys(scan, tile);
            skv_weigh_tile(scan, head, &keys, scan->tile, final_max, scan->part_sum);
        }
        for (size_t lane = 0; lane < scan->n_queries; lane += SKV_LANES) {
            const skv_vec sum = skv_load(final_sum + lane);
            const skv_vec decay =
                skv_power(skv_sub(skv_load(tile_max + lane), skv_load(final_max + lane)));
            const skv_int used = skv_int_gt(skv_bits(sum), skv_int_set1(0));
            /* No sum is below 1/2, the least weight of a maximum; a lane that sees nothing: 0. */
            const skv_vec divisor = skv_max(sum, skv_set1(0.25f));
            const skv_vec factor = skv_div(skv_mul(decay, skv_set1(SKV_UNIT)), divisor);
            skv_store(scan->factors + lane, skv_blend(used, factor, skv_set1(0.0f)));
        }
        const size_t first = tile * SKV_TILE - scan->first_row;
        const size_t count = skv_size_min(n_votes - tile * SKV_TILE, SKV_TILE);
        skv_add_weights(scan, weights, count, sums + first);
        if (scan->by_max) {
            skv_top_weights(scan, weights, count, votes + first);
        }
    }
}

/* ---- Pooling and reduction ------------------------------------------------------------------- */

SKV_NOINLINE skv_vec skv_load_edge(const float *votes, size_t n, ptrdiff_t p, float fill) {
    float lanes[SKV_LANES];
    const ptrdiff_t end = (ptrdiff_t)n - p < SKV_LANES ? (ptrdiff_t)n - p : SKV_LANES;
    skv_store(lanes, skv_set1(fill));
    for (ptrdiff_t i = p < 0 ? -p : 0; i < end; i++) {
        SKV_STEP_BY_STEP();
        lanes[i] = votes[p + i];
    }
    return skv_load(lanes);
}

/* votes[p .. p + SKV_LANES - 1], with `fill` in place of what lies outside 0 .. n - 1. */
SKV_INLINE skv_vec skv_load_inside(const float *votes, size_t n, ptrdiff_t p, float fill) {
    return p >= 0 && (size_t)p + SKV_LANES <= n ? skv_load(votes + p)
                                                : skv_load_edge(votes, n, p, fill);
}

/* The pooled scores of positions j .. j + SKV_LANES - 1. One running sum in order of position:
 * equal neighbourhoods, and windows cut to the same positions, tie exactly. */
SKV_NOINLINE skv_vec skv_pool_lanes(const float *votes, size_t n, size_t kernel_size,
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

/* Pools n votes of a query head into the scores of its set, and adds its sums to the total. */
SKV_NOINLINE void skv_add_head(const snapkv_config *config, size_t n, const float *votes,
                               const float *sums, int is_first, float *scores, float *total) {
    for (size_t j = 0; j < n; j += SKV_LANES) {
        skv_vec pooled = skv_pool_lanes(votes, n, config->kernel_size, config->pooling, j);
        if (!is_first) {
            const skv_vec score = skv_load_inside(scores, n, (ptrdiff_t)j, 0.0f);
            pooled = config->reduce == SNAPKV_REDUCE_MAX ? skv_max(pooled, score)
                                                         : skv_add(score, pooled);
        }
        skv_store_inside(scores, n, j, pooled);
        if (total) {
            skv_vec sum = skv_load_inside(sums, n, (ptrdiff_t)j, 0.0f);
            sum = is_first ? sum : skv_add(skv_load_inside(total, n, (ptrdiff_t)j, 0.0f), sum);
            skv_store_inside(total, n, j, sum);
        }
    }
}

SKV_NOINLINE void skv_divide(float *sums, size_t n, float divisor) {
    for (size_t j = 0; j < n; j += SKV_LANES) {
        const skv_vec sum = skv_load_inside(sums, n, (ptrdiff_t)j, 0.0f);
        skv_store_inside(sums, n, j, skv_div(sum, skv_set1(divisor)));
    }
}

/* Ends a set: the means over its heads. Of one head it is itself. */
SKV_NOINLINE void skv_end_heads(const snapkv_config *config, size_t n, size_t n_heads,
                                float *scores, float *total) {
    if (n_heads > 1 && config->reduce == SNAPKV_REDUCE_MEAN) {
        skv_divide(scores, n, (float)n_heads);
    }
    if (n_heads > 1 && total) {
        skv_divide(total, n, (float)n_heads);
    }
}

enum {
    SKV_RUN = SKV_TILE * SKV_BLOCK, /* votes that are added by one tree */
    SKV_MARKED = 10 * SKV_RUN       /* positions marked at a time: 960 bytes of stack */
};

/* The share of n_rows attention rows that is left when only `kept` stays: what the others hold is
 * subtracted, so that sinks, the recent positions and rounding count as kept. */
SKV_NOINLINE float skv_kept_share(const float *votes, size_t n, const int32_t *kept, size_t n_kept,
                                  float n_rows) {
    float dropped = 0.0f;
    for (size_t start = 0; start < n; start += SKV_MARKED) {
        uint16_t marks[(size_t)SKV_MARKED / SKV_BLOCK];
        memset(marks, 0, sizeof marks);
        for (size_t i = 0; i < n_kept; i++) {
            const size_t p = (size_t)kept[i];
            if (p >= start && p - start < SKV_MARKED) {
                marks[(p - start) / SKV_BLOCK] |= (uint16_t)(1u << (p - start) % SKV_BLOCK);
            }
        }
        for (size_t run = start; run < skv_size_min(n, start + SKV_MARKED); run += SKV_RUN) {
            const size_t end = run + skv_size_min(n - run, SKV_RUN);
            skv_vec sum[SKV_BLOCK_VECS];
            SKV_UNROLL for (int i = 0; i < SKV_BLOCK_VECS; i++) {
                sum[i] = skv_set1(0.0f);
            }
            for (size_t j = run; j < end; j += SKV_BLOCK) {
                unsigned marked = marks[(j - start) / SKV_BLOCK];
                float rest[SKV_BLOCK];
                const float *block = votes + j;
                if (marked || n - j < SKV_BLOCK) {
                    memset(rest, 0, sizeof rest);
                    memcpy(rest, block, skv_size_min(n - j, SKV_BLOCK) * sizeof *rest);
                    for (; marked; marked &= marked - 1) {
                        rest[SKV_LOWEST_BIT(marked)] = 0.0f;
                    }
                    block = rest;
                }
                SKV_UNROLL for (int i = 0; i < SKV_BLOCK_VECS; i++) {
                    sum[i] = skv_add(sum[i], skv_load(block + i * SKV_LANES));
                }
            }
            dropped += skv_sum_block(sum);
        }
    }
    const float share = 1.0f - dropped / n_rows;
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
SKV_LARGE uint32_t skv_codes_in(const float *scores, size_t n, size_t j, int32_t low,
                                int32_t high) {
    const size_t count = skv_size_min(n - j, SKV_GROUP);
    const float *group = scores + j;
    float rest[SKV_GROUP];
    if (count < SKV_GROUP) {
        memset(rest, 0, sizeof rest);
        memcpy(rest, group, count * sizeof *rest);
        group = rest;
    }
    uint32_t found = 0;
    const skv_int under = skv_int_set1(low - 1), over = skv_int_set1(high + 1);
    for (int i = 0; i < SKV_GROUP; i += SKV_LANES) {
        const skv_int code = skv_code_from(skv_load(group + i), low);
        const skv_int inside = skv_int_and(skv_int_gt(code, under), skv_int_gt(over, code));
        found |= (uint32_t)skv_mask_bits(inside) << i;
    }
    return found & UINT32_MAX >> (SKV_GROUP - count);
}

/* The codes low .. high that are in question, and which of their scores is searched: the rest-th
 * highest. */
typedef struct skv_range {
    int32_t low, high;
    size_t rest;
} skv_range;

/* A round looks at codes in 512 equal bins of 2^shift: the shift for codes that span `width`. */
SKV_INLINE int skv_bin_shift(uint32_t width) {
    int shift = 0;
    while (width >> shift >= SKV_BINS) {
        shift++;
    }
    return shift;
}

/* Narrows low .. high to one of its bins. */
SKV_WRAPS SKV_INLINE void skv_take_bin(int32_t *low, int32_t *high, uint32_t bin, int shift) {
    const uint32_t bin_low = (uint32_t)*low + (bin << shift);
    const uint32_t bin_width = ((uint32_t)1 << shift) - 1;
    if ((uint32_t)*high - bin_low > bin_width) {
        *high = (int32_t)(bin_low + bin_width);
    }
    *low = (int32_t)bin_low;
}

/* Counts the codes of low .. high in bins of 2^shift. */
SKV_WRAPS SKV_NOINLINE void skv_fill_bins(const float *scores, size_t n, int32_t low,
                                          int32_t high, int shift, uint32_t *count) {
    for (size_t j = 0; j < n; j += SKV_GROUP) {
        uint32_t found = skv_codes_in(scores, n, j, low, high);
        for (; found; found &= found - 1) {
            const int32_t code = skv_code_at(scores, j + SKV_LOWEST_BIT(found));
            count[((uint32_t)code - (uint32_t)low) >> shift]++;
        }
    }
}

/* Narrows a range until it is one code, or until all its scores are among the first. Each round
 * goes on with the bin that holds the one searched: at most 4 rounds for 32 bits. */
SKV_WRAPS SKV_NOINLINE skv_range skv_narrow(const float *scores, size_t n, skv_range range) {
    while (range.low < range.high) {
        uint32_t count[SKV_BINS];
        const uint32_t width = (uint32_t)range.high - (uint32_t)range.low;
        const int shift = skv_bin_shift(width);
        memset(count, 0, sizeof count);
        skv_fill_bins(scores, n, range.low, range.high, shift, count);
        uint32_t bin = width >> shift;
        while (count[bin] < range.rest) {
            range.rest -= count[bin];
            bin--;
        }
        skv_take_bin(&range.low, &range.high, bin, shift);
        if (count[bin] == range.rest) { /* the whole bin */
            break;
        }
    }
    return range;
}

/* Counts the codes of n scores above `high` and from `low` up. */
SKV_NOINLINE void skv_count_codes(const float *scores, size_t n, int32_t low, int32_t high,
                                  size_t *above, size_t *not_below) {
    const skv_int over = skv_int_set1(high), under = skv_int_set1(low - 1);
    skv_int n_over = skv_int_set1(0), n_under = n_over; /* counted down: a mask lane is -1 */
    const size_t whole = n - n % SKV_LANES;
    for (size_t j = 0; j < whole; j += SKV_LANES) {
        const skv_int code = skv_code_from(skv_load(scores + j), low);
        n_over = skv_int_add(n_over, skv_int_gt(code, over));
        n_under = skv_int_add(n_under, skv_int_gt(code, under));
    }
    int32_t lanes[2][SKV_LANES];
    skv_int_store(lanes[0], n_over);
    skv_int_store(lanes[1], n_under);
    *above = *not_below = 0;
    for (int i = 0; i < SKV_LANES; i++) {
        *above += (size_t)-lanes[0][i];
        *not_below += (size_t)-lanes[1][i];
    }
    for (size_t j = whole; j < n; j++) {
        *above += skv_code_at(scores, j) > high;
        *not_below += skv_code_at(scores, j) >= low;
    }
}

/* How far the place of a score in a sample may lie from the one expected, whose root is above the
 * standard deviation. */
SKV_NOINLINE size_t skv_slack(size_t rank) {
    size_t slack = SKV_SLACK;
    while (slack * slack < SKV_SLACK * SKV_SLACK * rank) {
        slack++;
    }
    return slack;
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
    const size_t rank = range.rest / step; /* about */
    const size_t slack = skv_slack(rank);
    skv_range top = range, bottom = range;
    top.rest = rank > slack ? rank - slack : 1;
    bottom.rest = skv_size_min(rank + slack, SKV_SAMPLES);
    const int32_t high = skv_narrow(sample, SKV_SAMPLES, top).high;
    const int32_t low = skv_narrow(sample, SKV_SAMPLES, bottom).low;
    size_t above, not_below;
    skv_count_codes(scores, n, low, high, &above, &not_below);
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
    skv_range range = {-SKV_HIGHEST_BITS, SKV_HIGHEST_BITS, 0};
    range.rest = k;
    if (n / SKV_SAMPLES >= 16) { /* where a pass over all costs more than those over the sample */
        range = skv_guess(scores, n, range);
    }
    range = skv_narrow(scores, n, range);
    /* Every code from range.low up is kept. Where the range is one code, scores tie there, and only
     * the first range.rest of them are kept. */
    size_t n_found = 0, n_tied = range.low < range.high ? n : range.rest;
    for (size_t j = 0; n_found < k; j += SKV_GROUP) {
        uint32_t found = skv_codes_in(scores, n, j, range.low, SKV_HIGHEST_BITS);
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

/* ---- One budget for many lists --------------------------------------------------------------- */

/* Lists that share a budget: every score whose code is at or above a threshold survives, and of
 * each list at least its `least` best. The higher the threshold, the fewer; it is to be the highest
 * at which they reach the budget. */
typedef struct skv_lists {
    const snapkv_list *lists;
    size_t n_lists, least;
} skv_lists;

/* What survives of a list, `above` of whose codes pass the threshold. */
SKV_INLINE size_t skv_survivors(const skv_lists *all, size_t list, size_t above) {
    const size_t least = skv_size_min(all->least, all->lists[list].n);
    return above < least ? least : above;
}

/* Counts the codes of a list above `high`, and those of low .. high in bins of 2^shift. Only every
 * step-th score is looked at. */
SKV_WRAPS SKV_NOINLINE size_t skv_bin_list(const snapkv_list *list, size_t step, int32_t low,
                                           int32_t high, int shift, uint32_t count[SKV_BINS]) {
    const float *scores = list->scores;
    size_t above = 0, not_below;
    memset(count, 0, SKV_BINS * sizeof *count);
    if (step == 1) {
        skv_count_codes(scores, list->n, low, high, &above, &not_below);
        if (above < not_below) {
            skv_fill_bins(scores, list->n, low, high, shift, count);
        }
        return above;
    }
    for (size_t j = step / 2; j < list->n; j += step) {
        const int32_t code = skv_code_at(scores, j);
        if (code > high) {
            above++;
        } else if (code >= low) {
            count[((uint32_t)code - (uint32_t)low) >> shift]++;
        }
    }
    return above;
}

/* The highest threshold in low .. high at which the survivors reach the budget; low where none
 * does. Rounds of 512 bins, as in skv_narrow. With a step above 1 it is a guess. */
SKV_WRAPS SKV_NOINLINE int32_t skv_find_threshold(const skv_lists *all, size_t step,
                                                  size_t budget, int32_t low, int32_t high) {
    while (low < high) {
        uint32_t count[SKV_BINS];
        size_t reached[SKV_BINS];
        const uint32_t width = (uint32_t)high - (uint32_t)low;
        const int shift = skv_bin_shift(width);
        const uint32_t n_bins = (width >> shift) + 1;
        memset(reached, 0, sizeof reached);
        for (size_t list = 0; list < all->n_lists; list++) {
            size_t above = skv_bin_list(&all->lists[list], step, low, high, shift, count);
            for (uint32_t bin = n_bins; bin-- > 0;) {
                above += count[bin];
                reached[bin] += skv_survivors(all, list, above * step);
            }
        }
        uint32_t bin = n_bins - 1;
        while (bin > 0 && reached[bin] < budget) {
            bin--;
        }
        skv_take_bin(&low, &high, bin, shift);
        if (reached[bin] == budget) {
            break;
        }
    }
    return low;
}

/* The survivors of all lists above the threshold `high`, and at the threshold `low`. */
SKV_NOINLINE void skv_count_survivors(const skv_lists *all, int32_t low, int32_t high,
                                      size_t *above, size_t *not_below) {
    *above = *not_below = 0;
    for (size_t list = 0; list < all->n_lists; list++) {
        size_t list_above, list_not_below;
        skv_count_codes(all->lists[list].scores, all->lists[list].n, low, high, &list_above,
                        &list_not_below);
        *above += skv_survivors(all, list, list_above);
        *not_below += skv_survivors(all, list, list_not_below);
    }
}

/* Of all lists together, for the guess. For 256 lists of 131,072 the allocation took 7.0 to 11.0
 * times the sum of all scores with 2^15 of them, 5.8 to 8.6 with 2^16, 6.8 to 9.8 with 2^17 (Zen 5,
 * AVX2 and AVX-512; `make bench BENCH=budget`). */
enum { SKV_BUDGET_SAMPLES = 1 << 16 };

/* The threshold of a budget. As in skv_guess a sample first says where it is to be looked for, and
 * one count over all scores whether that is right. */
SKV_NOINLINE int32_t skv_budget_threshold(const skv_lists *all, size_t n_scores, size_t budget) {
    int32_t low = -SKV_HIGHEST_BITS, high = SKV_HIGHEST_BITS;
    const size_t step = n_scores / SKV_BUDGET_SAMPLES;
    if (step >= 4) {
        const size_t slack = skv_slack(budget / step);
        size_t above, not_below;
        const size_t less = budget > slack * step ? budget - slack * step : 1;
        const int32_t top = skv_find_threshold(all, step, less, low, high);
        const int32_t bottom = skv_find_threshold(all, step, budget + slack * step, low, top);
        skv_count_survivors(all, bottom, top, &above, &not_below);
        if (above >= budget) {
            low = top + 1;
        } else if (not_below >= budget) {
            low = bottom;
            high = top;
        } else {
            high = bottom - 1;
        }
    }
    return skv_find_threshold(all, 1, budget, low, high);
}

/* ---- Gather ---------------------------------------------------------------------------------- */

/* Scattered rows come from memory: asking for them 16 rows ahead took 8 heads of 1024 rows of 512
 * bytes from 0.68 to 0.50 ms (Zen 4), and costs nothing where they are in cache. The end of longer
 * rows the processor finds by itself. */
enum { SKV_ROWS_AHEAD = 16, SKV_BYTES_AHEAD = 1024 };

/* Copies the rows of one head that kept lists, dst->row_bytes of each, to the slots of a head of
 * `dst`, which the caller may write to. are_apart: no slot is memory of a row, so that rows which
 * touch in both places may go in one copy. Else no row may be overwritten before it was read. */
SKV_NOINLINE void skv_move_rows(const snapkv_rows *src, size_t src_head, const snapkv_rows *dst,
                                size_t dst_head, const int32_t *kept, size_t n_kept,
                                int are_apart) {
    char *data = skv_writable(dst->data);
    const size_t bytes = dst->row_bytes;
    const int touching = are_apart && !src->block_table && !dst->block_table &&
                         src->row_stride == bytes && dst->row_stride == bytes;
    for (size_t i = 0; i < n_kept;) {
        const char *row = skv_row(src, src_head, (size_t)kept[i]);
        char *slot = data + skv_row_offset(dst, dst_head, i);
        const size_t later = skv_size_min(i + SKV_ROWS_AHEAD, n_kept - 1);
        const char *ahead = skv_row(src, src_head, (size_t)kept[later]);
        for (size_t pair = 0; pair < skv_size_min(bytes, SKV_BYTES_AHEAD); pair += 128) {
            SKV_PREFETCH(ahead + pair); /* two lines: the processor takes the other */
        }
        size_t run = 1;
        while (touching && i + run < n_kept && kept[i + run] - kept[i] == (int32_t)run) {
            run++;
        }
        if (row != slot) { /* in place: a row that stays */
            SNAPKV_MEMCPY(slot, row, run * bytes);
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

/* ---- Broken rules ---------------------------------------------------------------------------- */

/* Every rule of snapkv_check, once: its status, and what snapkv_explain says of it. Those of a view
 * hold for each of the three, and a broken one is told as rule + view * SKV_N_RULES. */
#define SKV_RULES(RULE, VIEW_RULE)                                                                 \
    RULE(SKV_CONFIG_NULL, NULL, "config: NULL")                                                    \
    RULE(SKV_LAYER_NULL, NULL, "layer: NULL")                                                      \
    VIEW_RULE(SKV_DATA_NULL, NULL, "data: NULL")                                                   \
    VIEW_RULE(SKV_DECODE_NULL, NULL, "decode: NULL for custom rows")                               \
    RULE(SKV_NO_QUERY_HEADS, SHAPE, "layer.n_query_heads: 0")                                      \
    RULE(SKV_NO_KV_HEADS, SHAPE, "layer.n_kv_heads: 0")                                            \
    RULE(SKV_HEADS_DONT_DIVIDE, SHAPE, "layer.n_query_heads: no multiple of n_kv_heads")           \
    RULE(SKV_NO_LENGTH, SHAPE, "layer.length: 0")                                                  \
    RULE(SKV_LONG_LENGTH, SHAPE, "layer.length: above INT32_MAX")                                  \
    RULE(SKV_NO_HEAD_DIM, SHAPE, "layer.head_dim: 0")                                              \
    RULE(SKV_LARGE_WORKSPACE, SHAPE, "config.window: the workspace does not fit into memory")      \
    VIEW_RULE(SKV_LARGE_VIEW, SHAPE, "row_stride, head_stride, block_table: beyond all memory")    \
    VIEW_RULE(SKV_ROW_STRIDE, STRIDE, "row_stride: rows overlap; it counts bytes")                 \
    VIEW_RULE(SKV_HEAD_STRIDE, STRIDE, "head_stride: heads overlap; it counts bytes")              \
    VIEW_RULE(SKV_MISALIGNED, STRIDE, "data, strides: not aligned to the element")                 \
    VIEW_RULE(SKV_BLOCK_ROWS, STRIDE, "block_rows: 0")                                             \
    VIEW_RULE(SKV_BLOCK_NUMBER, STRIDE, "block_table: a negative block")                           \
    VIEW_RULE(SKV_BLOCK_STRIDE, STRIDE, "block_stride: blocks overlap; it counts bytes")           \
    RULE(SKV_NO_WINDOW, WINDOW, "config.window: 0")                                                \
    RULE(SKV_LONG_WINDOW, WINDOW, "config.window: above the length, and no query_positions")       \
    RULE(SKV_NO_PREFIX, WINDOW, "config.n_recent: no position is left to compete")                 \
    RULE(SKV_SMALL_CAPACITY, CAPACITY, "config.capacity: not above n_sink + n_recent (0: window)") \
    RULE(SKV_NO_KERNEL, KERNEL, "config.kernel_size: 0")                                           \
    RULE(SKV_EVEN_KERNEL, KERNEL, "config.kernel_size: even")                                      \
    RULE(SKV_POOLING, OPTION, "config.pooling: unknown")                                           \
    RULE(SKV_VOTING, OPTION, "config.voting: unknown")                                             \
    RULE(SKV_ORDER, OPTION, "config.order: unknown")                                               \
    RULE(SKV_SHARING, OPTION, "config.sharing: unknown")                                           \
    RULE(SKV_REDUCE, OPTION, "config.reduce: unknown")                                             \
    VIEW_RULE(SKV_DTYPE, OPTION, "dtype: unknown")                                                 \
    VIEW_RULE(SKV_ROW_BYTES, OPTION, "row_bytes: 0 for custom rows")                               \
    RULE(SKV_SCALE, OPTION, "layer.scale: negative or not finite")                                 \
    RULE(SKV_SOFTCAP, OPTION, "layer.softcap: negative or not finite")                             \
    RULE(SKV_SPAN_AND_CHUNK, OPTION, "layer.chunk: set together with span")                        \
    RULE(SKV_SINK_LOGITS, OPTION, "layer.sink_logits: not finite")                                 \
    RULE(SKV_ALIBI_SLOPES, OPTION, "layer.alibi_slopes: not finite")                               \
    RULE(SKV_FIRST_ROW, INDEX, "layer.first_row: not 0; only for snapkv_part_*")                   \
    RULE(SKV_QUERY_POSITIONS, INDEX, "layer.query_positions: negative or descending")              \
    RULE(SKV_KEY_POSITIONS, INDEX, "layer.key_positions: negative or not ascending")

enum { SKV_QUERIES, SKV_KEYS, SKV_VALUES, SKV_N_VIEWS };

#define SKV_RULE_NAME(name, status, text) name,
enum { SKV_NO_RULE, SKV_RULES(SKV_RULE_NAME, SKV_RULE_NAME) SKV_N_RULES };

SKV_NOINLINE snapkv_status skv_status(int rule) {
#define SKV_RULE_STATUS(name, status, text) SNAPKV_ERROR_##status,
    static const unsigned char statuses[] = {SNAPKV_OK,
                                             SKV_RULES(SKV_RULE_STATUS, SKV_RULE_STATUS)};
    return (snapkv_status)statuses[rule % SKV_N_RULES];
}

SKV_NOINLINE const char *skv_rule_text(int rule) {
#define SKV_RULE_TEXT(name, status, text) {text, text, text},
#define SKV_VIEW_RULE_TEXT(name, status, text) {"queries." text, "keys." text, "values." text},
    static const char *const texts[][SKV_N_VIEWS] = {
        {NULL, NULL, NULL}, SKV_RULES(SKV_RULE_TEXT, SKV_VIEW_RULE_TEXT)};
    return texts[rule % SKV_N_RULES][rule / SKV_N_RULES];
}

/* Returns a broken rule, or an error, from the function that it stands in. */
#define SKV_OBEY(call)                                                                             \
    do {                                                                                           \
        const int skv_broken = (call);                                                             \
        if (skv_broken) {                                                                          \
            return skv_broken;                                                                     \
        }                                                                                          \
    } while (0)

#define SKV_TRY(call)                                                                              \
    do {                                                                                           \
        const snapkv_status skv_tried = (call);                                                    \
        if (skv_tried != SNAPKV_OK) {                                                              \
            return skv_tried;                                                                      \
        }                                                                                          \
    } while (0)

/* ---- Validation ------------------------------------------------------------------------------ */

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

/* Whether rows of different heads share a byte. n_rows - 1 and n_heads - 1 strides, and the bytes
 * of a row behind them, fit in size_t; rows of one head don't overlap. */
SKV_NOINLINE int skv_heads_overlap(size_t n_heads, size_t head_stride, size_t n_rows,
                                   size_t row_stride, size_t bytes) {
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

/* Rows of a view that lie in one block, and the blocks that n_rows take. */
SKV_INLINE size_t skv_rows_in_block(const snapkv_rows *rows, size_t n_rows) {
    return rows->block_table ? skv_size_min(rows->block_rows, n_rows) : n_rows;
}

SKV_INLINE size_t skv_n_blocks(const snapkv_rows *rows, size_t n_rows) {
    return rows->block_table ? (n_rows - 1) / rows->block_rows + 1 : 1;
}

/* The lowest and the highest block that n_rows rows lie in; both 0 where the view isn't paged. */
SKV_NOINLINE void skv_find_blocks(const snapkv_rows *rows, size_t n_rows, int32_t *lowest,
                                  int32_t *highest) {
    const int32_t *table = rows->block_table;
    const size_t n_blocks = skv_n_blocks(rows, n_rows);
    int32_t low = table ? table[0] : 0, high = low;
    for (size_t i = 1; i < n_blocks; i++) {
        low = table[i] < low ? table[i] : low;
        high = table[i] > high ? table[i] : high;
    }
    *lowest = low;
    *highest = high;
}

/* The blocks of a paged view, whose rows within a block take `extent` bytes. */
SKV_NOINLINE int skv_check_blocks(const snapkv_rows *rows, size_t n_heads, size_t n_rows,
                                  size_t bytes, size_t extent) {
    const size_t in_block = skv_rows_in_block(rows, n_rows);
    const size_t head_extent = skv_extent(1, 0, in_block, rows->row_stride, bytes);
    int32_t lowest, highest;
    skv_find_blocks(rows, n_rows, &lowest, &highest);
    if (lowest < 0) {
        return SKV_BLOCK_NUMBER;
    }
    const size_t blocks = skv_size_mul((size_t)highest, rows->block_stride);
    if (skv_size_add(blocks, extent) >= PTRDIFF_MAX) {
        return SKV_LARGE_VIEW;
    }
    /* Heads lie inside a block, or all blocks inside a head. */
    const int outer_heads = rows->block_stride >= head_extent && n_heads > 1 &&
                            rows->head_stride >= skv_size_add(blocks, head_extent);
    return highest > 0 && rows->block_stride < extent && !outer_heads ? SKV_BLOCK_STRIDE : 0;
}

/* A view of n_heads x n_rows rows. as_numbers: read as head_dim elements, not only moved. */
SKV_NOINLINE int skv_check_rows(const snapkv_rows *rows, size_t n_heads, size_t n_rows,
                                size_t head_dim, int as_numbers) {
    const size_t element = skv_element_bytes(rows->dtype);
    const size_t bytes = skv_row_width(rows, head_dim, as_numbers);
    const size_t in_block = skv_rows_in_block(rows, n_rows);
    if (in_block == 0) {
        return SKV_BLOCK_ROWS;
    }
    const size_t extent =
        skv_extent(n_heads, rows->head_stride, in_block, rows->row_stride, bytes);
    if (extent >= PTRDIFF_MAX) {
        return SKV_LARGE_VIEW;
    }
    if (in_block > 1 && rows->row_stride < bytes) {
        return SKV_ROW_STRIDE;
    }
    if (skv_heads_overlap(n_heads, rows->head_stride, in_block, rows->row_stride, bytes)) {
        return SKV_HEAD_STRIDE;
    }
    if (as_numbers && element) {
        const size_t heads = n_heads > 1 ? rows->head_stride : 0;
        const size_t steps = in_block > 1 ? rows->row_stride : 0;
        const size_t blocks = rows->block_table ? rows->block_stride : 0;
        if (((uintptr_t)rows->data | heads | steps | blocks) % element != 0) {
            return SKV_MISALIGNED;
        }
    }
    return rows->block_table ? skv_check_blocks(rows, n_heads, n_rows, bytes, extent) : 0;
}

SKV_INLINE size_t skv_recent(const snapkv_config *config) {
    return config->n_recent ? config->n_recent : config->window;
}

/* Positions that compete. */
SKV_INLINE size_t skv_prefix(const snapkv_config *config, size_t length) {
    const size_t recent = skv_recent(config);
    return length > recent ? length - recent : 0;
}

SKV_INLINE int skv_is_bypassed(const snapkv_config *config, const snapkv_layer *layer) {
    return layer->length < config->capacity;
}

SKV_INLINE size_t skv_set_count(const snapkv_config *config, const snapkv_layer *layer) {
    return config->sharing == SNAPKV_PER_LAYER        ? 1
           : config->sharing == SNAPKV_PER_QUERY_HEAD ? layer->n_query_heads
                                                      : layer->n_kv_heads;
}

/* The scan of one set, or of one K/V head's part of a layer. */
SKV_NOINLINE skv_scan skv_set_scan(const snapkv_config *config, const snapkv_layer *layer) {
    /* Only a prompt that is bypassed may be shorter than its window. */
    const size_t n_queries = layer->query_positions
                                 ? config->window
                                 : skv_size_min(config->window, layer->length);
    const size_t n_heads = config->sharing == SNAPKV_PER_QUERY_HEAD
                               ? 1
                               : layer->n_query_heads / layer->n_kv_heads;
    return skv_make_scan(layer, n_heads, n_queries, skv_prefix(config, layer->length),
                         config->voting == SNAPKV_VOTE_MAX);
}

/* The smallest workspace of one set. */
SKV_NOINLINE size_t skv_set_min(const snapkv_config *config, const snapkv_layer *layer) {
    return skv_scan_min(skv_set_scan(config, layer));
}

/* What a call needs of the policy, beyond the window, the voting and the sharing. */
enum {
    SKV_FOR_VOTES = 1,     /* a position that competes */
    SKV_FOR_SCORES = 2,    /* pooling and reduction */
    SKV_FOR_SELECTION = 4, /* capacity and order */
    SKV_FOR_PARTS = 8,     /* of the keys only some parts are there */
    SKV_BYPASSES = 16      /* a prompt shorter than the capacity needs no window */
};

/* The policy by itself. */
SKV_NOINLINE int skv_check_policy(const snapkv_config *config, int needs) {
    const size_t recent = skv_recent(config);
    if (config->window == 0) {
        return SKV_NO_WINDOW;
    }
    if (needs & SKV_FOR_SELECTION) {
        if (recent >= config->capacity || config->n_sink >= config->capacity - recent) {
            return SKV_SMALL_CAPACITY;
        }
    }
    if (needs & SKV_FOR_SCORES && config->kernel_size % 2 == 0) {
        return config->kernel_size ? SKV_EVEN_KERNEL : SKV_NO_KERNEL;
    }
    if (needs & SKV_FOR_SELECTION && (unsigned)config->order > SNAPKV_BY_SCORE) {
        return SKV_ORDER;
    }
    if (needs & SKV_FOR_SCORES) {
        if ((unsigned)config->pooling > SNAPKV_POOL_MAX) {
            return SKV_POOLING;
        }
        if ((unsigned)config->reduce > SNAPKV_REDUCE_MAX) {
            return SKV_REDUCE;
        }
    }
    if ((unsigned)config->voting > SNAPKV_VOTE_MAX) {
        return SKV_VOTING;
    }
    return (unsigned)config->sharing > SNAPKV_PER_LAYER ? SKV_SHARING : 0;
}

SKV_NOINLINE int skv_check_heads(const snapkv_layer *layer) {
    if (layer->n_query_heads == 0) {
        return SKV_NO_QUERY_HEADS;
    }
    if (layer->n_kv_heads == 0) {
        return SKV_NO_KV_HEADS;
    }
    if (layer->n_query_heads % layer->n_kv_heads != 0) {
        return SKV_HEADS_DONT_DIVIDE;
    }
    if (layer->length == 0) {
        return SKV_NO_LENGTH;
    }
    if (layer->length > INT32_MAX) {
        return SKV_LONG_LENGTH;
    }
    return layer->head_dim == 0 ? SKV_NO_HEAD_DIM : 0;
}

/* Whether a call may look at the voters: those of a bypassed prompt need not be there. */
SKV_INLINE int skv_has_voters(const snapkv_config *config, const snapkv_layer *layer, int needs) {
    return !(needs & SKV_BYPASSES && skv_is_bypassed(config, layer));
}

/* Whether they are memory that a call must leave alone. */
SKV_INLINE int skv_holds_voters(const snapkv_config *config, const snapkv_layer *layer,
                                int needs) {
    return layer->queries.data && config->window && skv_has_voters(config, layer, needs);
}

/* Sizes and policy, no pointers. */
SKV_NOINLINE int skv_check_sizes(const snapkv_config *config, const snapkv_layer *layer,
                                 int needs) {
    if (!config) {
        return SKV_CONFIG_NULL;
    }
    if (!layer) {
        return SKV_LAYER_NULL;
    }
    SKV_OBEY(skv_check_heads(layer));
    if (config->window > layer->length && !layer->query_positions &&
        skv_has_voters(config, layer, needs)) {
        return SKV_LONG_WINDOW;
    }
    SKV_OBEY(skv_check_policy(config, needs));
    if (layer->first_row && !(needs & SKV_FOR_PARTS)) {
        return SKV_FIRST_ROW;
    }
    if (needs & SKV_FOR_VOTES && skv_prefix(config, layer->length) == 0) {
        return SKV_NO_PREFIX;
    }
    const skv_scan scan = skv_set_scan(config, layer);
    const size_t bytes = needs & SKV_FOR_PARTS ? skv_scan_min(scan) : skv_scan_size(scan);
    return bytes >= PTRDIFF_MAX ? SKV_LARGE_WORKSPACE : 0;
}

/* The pointers of a view that is read as numbers. */
SKV_NOINLINE int skv_check_data(const snapkv_rows *rows) {
    if (!rows->data) {
        return SKV_DATA_NULL;
    }
    return rows->dtype == SNAPKV_CUSTOM && !rows->decode ? SKV_DECODE_NULL : 0;
}

SKV_INLINE int skv_check_dtype(const snapkv_rows *rows) {
    return (unsigned)rows->dtype > SNAPKV_CUSTOM ? SKV_DTYPE : 0;
}

/* A view with data that a gather moves, and that is read as numbers or not. */
SKV_NOINLINE int skv_check_moved(const snapkv_rows *rows, const snapkv_layer *layer, size_t n_rows,
                                 int as_numbers) {
    SKV_OBEY(skv_check_dtype(rows));
    if (skv_row_bytes(rows, layer->head_dim) == 0) {
        return SKV_ROW_BYTES;
    }
    return skv_check_rows(rows, layer->n_kv_heads, n_rows, layer->head_dim, as_numbers);
}

/* The rule with the view that breaks it. */
SKV_INLINE int skv_in_view(int rule, int view) {
    return rule ? rule + view * SKV_N_RULES : 0;
}

/* Whether n positions, none negative, ascend; is_strict: without equal ones. */
SKV_NOINLINE int skv_ascends(const int32_t *positions, size_t n, int is_strict) {
    int32_t before = is_strict ? -1 : 0;
    for (size_t i = 0; positions && i < n; i++) {
        if (positions[i] < before || (is_strict && positions[i] == before)) {
            return 0;
        }
        before = positions[i];
    }
    return 1;
}

/* A number per query head. */
SKV_NOINLINE int skv_heads_finite(const float *numbers, size_t n_heads) {
    for (size_t head = 0; numbers && head < n_heads; head++) {
        if (!skv_is_finite(numbers[head])) {
            return 0;
        }
    }
    return 1;
}

SKV_NOINLINE int skv_check_attention(const snapkv_layer *layer) {
    if (!skv_is_amount(layer->scale)) {
        return SKV_SCALE;
    }
    if (!skv_is_amount(layer->softcap)) {
        return SKV_SOFTCAP;
    }
    return layer->span && layer->chunk ? SKV_SPAN_AND_CHUNK : 0;
}

/* Everything that a scan of the layer reads, in the order NULL, sizes, options, strides. Of K and V
 * n_rows are there. */
SKV_NOINLINE int skv_check_scanned(const snapkv_config *config, const snapkv_layer *layer,
                                   int needs, size_t n_rows) {
    if (!config) {
        return SKV_CONFIG_NULL;
    }
    if (!layer) {
        return SKV_LAYER_NULL;
    }
    const snapkv_rows *queries = &layer->queries, *keys = &layer->keys;
    const int has_voters = skv_has_voters(config, layer, needs);
    if (has_voters) {
        SKV_OBEY(skv_in_view(skv_check_data(queries), SKV_QUERIES));
    }
    if (n_rows > 0) {
        SKV_OBEY(skv_in_view(skv_check_data(keys), SKV_KEYS));
    }
    SKV_OBEY(skv_check_sizes(config, layer, needs));
    if (has_voters) {
        SKV_OBEY(skv_in_view(skv_check_dtype(queries), SKV_QUERIES));
    }
    if (n_rows > 0) {
        SKV_OBEY(skv_in_view(skv_check_dtype(keys), SKV_KEYS));
    }
    SKV_OBEY(skv_check_attention(layer));
    if (has_voters) {
        SKV_OBEY(skv_in_view(skv_check_rows(queries, layer->n_query_heads, config->window,
                                            layer->head_dim, 1), SKV_QUERIES));
        if (!skv_ascends(layer->query_positions, config->window, 0)) {
            return SKV_QUERY_POSITIONS;
        }
    }
    if (n_rows > 0) {
        SKV_OBEY(skv_in_view(skv_check_rows(keys, layer->n_kv_heads, n_rows, layer->head_dim, 1),
                             SKV_KEYS));
    }
    if (!skv_ascends(layer->key_positions, layer->length, 1)) {
        return SKV_KEY_POSITIONS;
    }
    /* Last, since the rows have shown that there are not absurdly many heads. */
    if (!skv_heads_finite(layer->sink_logits, layer->n_query_heads)) {
        return SKV_SINK_LOGITS;
    }
    if (!skv_heads_finite(layer->alibi_slopes, layer->n_query_heads)) {
        return SKV_ALIBI_SLOPES;
    }
    /* Only moved, but no output may lie there. */
    return layer->values.data && n_rows > 0
               ? skv_in_view(skv_check_moved(&layer->values, layer, n_rows, 0), SKV_VALUES)
               : 0;
}

SKV_INLINE int skv_check_layer(const snapkv_config *config, const snapkv_layer *layer, int needs) {
    return skv_check_scanned(config, layer, needs, layer ? layer->length : 0);
}

enum { SKV_FOR_LAYER = SKV_FOR_SCORES | SKV_FOR_SELECTION | SKV_BYPASSES };

/* What snapkv_check looks at. */
SKV_NOINLINE int skv_find_broken(const snapkv_config *config, const snapkv_layer *layer) {
    SKV_OBEY(skv_check_layer(config, layer, SKV_FOR_LAYER));
    return layer->values.data
               ? skv_in_view(skv_check_moved(&layer->keys, layer, layer->length, 1), SKV_KEYS)
               : 0;
}

/* What snapkv_compress asks of the policy and the layer. */
SKV_NOINLINE int skv_check_compress(const snapkv_config *config, const snapkv_layer *layer) {
    if (layer && !layer->values.data) {
        return skv_in_view(SKV_DATA_NULL, SKV_VALUES);
    }
    return skv_find_broken(config, layer);
}

/* Whether all n indices lie in 0 .. limit - 1. */
SKV_NOINLINE int skv_indices_inside(const int32_t *indices, size_t n, size_t limit) {
    for (size_t i = 0; i < n; i++) {
        if (indices[i] < 0 || (size_t)indices[i] >= limit) {
            return 0;
        }
    }
    return 1;
}

/* ---- Overlap --------------------------------------------------------------------------------- */

/* Whether two memory areas share a byte. */
SKV_INLINE int skv_overlap(uintptr_t a, size_t a_bytes, uintptr_t b, size_t b_bytes) {
    if (a_bytes == 0 || b_bytes == 0) {
        return 0;
    }
    return a < b ? b - a < a_bytes : a - b < b_bytes;
}

/* Whether n_a rows at a and n_b rows at b share a byte. Equal strides may interleave. */
SKV_NOINLINE int skv_strided_overlap(uintptr_t a, size_t n_a, size_t a_stride, size_t a_bytes,
                                     uintptr_t b, size_t n_b, size_t b_stride, size_t b_bytes) {
    if (n_a == 0 || n_b == 0 || !skv_overlap(a, (n_a - 1) * a_stride + a_bytes, b,
                                             (n_b - 1) * b_stride + b_bytes)) {
        return 0;
    }
    if (a_stride != b_stride || a_stride == 0) {
        return 1;
    }
    const size_t ahead = b > a ? (b - a) % a_stride : (a_stride - (a - b) % a_stride) % a_stride;
    return ahead < a_bytes || a_stride - ahead < b_bytes;
}

/* Rows of one head, for the question which memory they share with others. */
typedef struct skv_region {
    uintptr_t data;
    size_t n_rows, stride, bytes;   /* of one block */
    const int32_t *table;           /* NULL: one block, at data */
    size_t n_blocks, block_stride;
    int32_t lowest, highest;        /* blocks */
} skv_region;

SKV_NOINLINE skv_region skv_area(const void *data, size_t bytes) {
    skv_region area;
    memset(&area, 0, sizeof area);
    area.data = (uintptr_t)data;
    area.n_rows = data && bytes ? 1 : 0;
    area.bytes = bytes;
    area.n_blocks = 1;
    return area;
}

/* The first n_rows rows, at least one, of a view's head 0, each `width` bytes. */
SKV_NOINLINE skv_region skv_view_region(const snapkv_rows *view, size_t n_rows, size_t width) {
    skv_region region = skv_area(view->data, width);
    region.n_rows = skv_rows_in_block(view, n_rows);
    region.stride = view->row_stride;
    if (region.n_rows) { /* a block_rows of 0 is refused later */
        skv_find_blocks(view, n_rows, &region.lowest, &region.highest);
        region.n_blocks = skv_n_blocks(view, n_rows);
        region.block_stride = view->block_table ? view->block_stride : 0;
    }
    if (region.lowest < region.highest) {
        region.table = view->block_table;
    } else {
        region.data += (size_t)region.lowest * region.block_stride; /* all in one block */
    }
    return region;
}

SKV_INLINE size_t skv_block_extent(const skv_region *region) {
    return skv_extent(1, 0, region->n_rows, region->stride, region->bytes);
}

SKV_INLINE int skv_blocks_overlap(const skv_region *a, uintptr_t a_block, const skv_region *b,
                                  uintptr_t b_block) {
    return skv_strided_overlap(a_block, a->n_rows, a->stride, a->bytes, b_block, b->n_rows,
                               b->stride, b->bytes);
}

enum { SKV_BLOCKS_MARKED = 1 << 15 }; /* 4 KiB of stack */

/* Whether some block of b is one of a's plus `shift`, or a's own blocks repeat. Marks a's blocks in
 * a bitmap, a part of the pool at a time. */
SKV_NOINLINE int skv_blocks_meet(const skv_region *a, const int32_t *b, size_t n_b,
                                 int64_t shift) {
    for (int64_t base = a->lowest; base <= a->highest; base += SKV_BLOCKS_MARKED) {
        uint32_t marks[SKV_BLOCKS_MARKED / 32];
        memset(marks, 0, sizeof marks);
        for (size_t i = 0; i < a->n_blocks; i++) {
            const int64_t at = a->table[i] - base;
            if (at >= 0 && at < SKV_BLOCKS_MARKED) {
                uint32_t *mark = &marks[(uint32_t)at / 32];
                const uint32_t bit = (uint32_t)1 << (uint32_t)at % 32;
                if (*mark & bit) {
                    return 1;
                }
                *mark |= bit;
            }
        }
        for (size_t i = 0; i < n_b; i++) {
            const int64_t at = b[i] - shift - base;
            if (at >= 0 && at < SKV_BLOCKS_MARKED &&
                marks[(uint32_t)at / 32] >> (uint32_t)at % 32 & 1) {
                return 1;
            }
        }
    }
    return 0;
}

/* Two paged regions. Blocks at one stride meet in at most two ways: b's block starts less than a
 * stride behind a's, or less than a stride before it. */
SKV_NOINLINE int skv_pages_overlap(const skv_region *a, const skv_region *b) {
    const size_t stride = a->block_stride;
    if (stride != b->block_stride) {
        return 1; /* no pool has two sizes of blocks */
    }
    const int b_ahead = b->data >= a->data;
    const size_t distance = b_ahead ? b->data - a->data : a->data - b->data;
    const size_t blocks = distance / stride, rest = distance % stride; /* spans meet: < 2^31 */
    /* b's block j lies (j - i) blocks and the distance behind a's block i. */
    for (int next = 0; next < 2; next++) {
        const int64_t shift = (int64_t)blocks + next;
        const size_t apart = next ? stride - rest : rest;
        const int behind = b_ahead != next;
        const uintptr_t from = a->data + stride; /* no address of ours, but none wraps around */
        if (skv_blocks_overlap(a, from, b, behind ? from + apart : from - apart) &&
            skv_blocks_meet(a, b->table, b->n_blocks, b_ahead ? -shift : shift)) {
            return 1;
        }
    }
    return 0;
}

/* Whether a paged region meets one that isn't: only blocks of some numbers can. */
SKV_NOINLINE int skv_page_overlaps(const skv_region *paged, const skv_region *plain) {
    const size_t stride = paged->block_stride, extent = skv_block_extent(paged);
    const uintptr_t end = plain->data + skv_block_extent(plain);
    const uintptr_t first = paged->data + extent; /* where block 0 ends */
    const size_t lowest = plain->data < first ? 0 : (plain->data - first) / stride + 1;
    const size_t highest = (end - paged->data - 1) / stride; /* spans meet: end lies behind */
    for (size_t i = 0; i < paged->n_blocks; i++) {
        const size_t block = (size_t)paged->table[i];
        if (block >= lowest && block <= highest &&
            skv_blocks_overlap(paged, paged->data + block * stride, plain, plain->data)) {
            return 1;
        }
    }
    return 0;
}

/* Whether two regions share a byte. */
SKV_NOINLINE int skv_regions_overlap(const skv_region *a, const skv_region *b) {
    const skv_region *paged = a->table ? a : b, *plain = a->table ? b : a;
    const uintptr_t a_first = a->data + (size_t)(a->table ? a->lowest : 0) * a->block_stride;
    const uintptr_t b_first = b->data + (size_t)(b->table ? b->lowest : 0) * b->block_stride;
    const size_t a_more = a->table ? (size_t)(a->highest - a->lowest) * a->block_stride : 0;
    const size_t b_more = b->table ? (size_t)(b->highest - b->lowest) * b->block_stride : 0;
    if (a->n_rows == 0 || b->n_rows == 0 ||
        !skv_overlap(a_first, a_more + skv_block_extent(a), b_first,
                     b_more + skv_block_extent(b))) {
        return 0; /* far away, as nearly always */
    }
    if (a->table && b->table) {
        return skv_pages_overlap(a, b);
    }
    if (!paged->table) {
        return skv_blocks_overlap(a, a->data, b, b->data);
    }
    return skv_page_overlaps(paged, plain);
}

/* Whether a region shares a byte with n_heads x n_rows rows of a view. */
SKV_NOINLINE int skv_region_meets_view(const skv_region *region, const snapkv_rows *view,
                                       size_t n_heads, size_t n_rows, size_t width) {
    skv_region of_head = skv_view_region(view, n_rows, width), hull = of_head;
    const size_t heads = n_heads > 1 ? (n_heads - 1) * view->head_stride : 0;
    hull.bytes = heads + skv_block_extent(&of_head);
    hull.n_rows = hull.n_rows ? 1 : 0;
    if ((!hull.table || hull.bytes <= hull.block_stride) && !skv_regions_overlap(region, &hull)) {
        return 0;
    }
    for (size_t head = 0; head < n_heads; head++) {
        if (skv_regions_overlap(region, &of_head)) {
            return 1;
        }
        of_head.data += view->head_stride;
    }
    return 0;
}

/* Whether a region shares a byte with what a layer consists of. in_place: the view that the region
 * is to be written over; SKV_N_VIEWS: none. */
SKV_NOINLINE int skv_meets_layer(const skv_region *region, const snapkv_config *config,
                                 const snapkv_layer *layer, int needs, int in_place) {
    const snapkv_rows *views[SKV_N_VIEWS] = {&layer->queries, &layer->keys, &layer->values};
    const int has_voters = skv_holds_voters(config, layer, needs);
    const size_t heads = skv_size_mul(layer->n_query_heads, sizeof(float));
    skv_region arrays[4];
    arrays[0] = skv_area(layer->sink_logits, heads);
    arrays[1] = skv_area(layer->alibi_slopes, heads);
    arrays[2] = skv_area(layer->query_positions, has_voters ? config->window * sizeof(int32_t) : 0);
    arrays[3] = skv_area(layer->key_positions, layer->length * sizeof(int32_t));
    for (int i = 0; i < 4; i++) {
        if (skv_regions_overlap(region, &arrays[i])) {
            return 1;
        }
    }
    for (int view = 0; view < SKV_N_VIEWS; view++) {
        const int is_query = view == SKV_QUERIES;
        const size_t n_heads = is_query ? layer->n_query_heads : layer->n_kv_heads;
        const size_t n_rows = is_query ? config->window : layer->length;
        const size_t width = skv_row_width(views[view], layer->head_dim, view != SKV_VALUES);
        if (!views[view]->data || (is_query && !has_voters)) {
            continue;
        }
        const skv_region table = skv_area(views[view]->block_table,
                                          skv_n_blocks(views[view], n_rows) * sizeof(int32_t));
        if (skv_regions_overlap(region, &table) ||
            (view != in_place &&
             skv_region_meets_view(region, views[view], n_heads, n_rows, width))) {
            return 1;
        }
    }
    return 0;
}

/* The memory that a call writes: areas[0] is its workspace, of at least `least` bytes; the others
 * are its outputs. None may lie in another, or in what the layer holds. */
SKV_NOINLINE snapkv_status skv_check_areas(const skv_region *areas, size_t n_areas,
                                           size_t least, const snapkv_config *config,
                                           const snapkv_layer *layer, int needs) {
    if (areas[0].data % sizeof(float) != 0 || areas[0].bytes < least) {
        return SNAPKV_ERROR_WORKSPACE;
    }
    for (size_t i = 0; i < n_areas; i++) {
        if (skv_meets_layer(&areas[i], config, layer, needs, SKV_N_VIEWS)) {
            return SNAPKV_ERROR_ALIAS;
        }
        for (size_t j = 0; j < i; j++) {
            if (skv_regions_overlap(&areas[i], &areas[j])) {
                return SNAPKV_ERROR_ALIAS;
            }
        }
    }
    return SNAPKV_OK;
}

/* ---- A gather: what moves where -------------------------------------------------------------- */

/* The rows that a call moves: K and V of some sets, to the same number of slots. */
typedef struct skv_gathering {
    const snapkv_config *config;
    const snapkv_layer *layer;
    size_t first_head; /* outputs first_head .. first_head + n_heads - 1 */
    size_t n_heads;
    size_t group;      /* outputs that read one head of K and V */
    size_t n_kept;
    int ascends;       /* the lists */
    const snapkv_rows *views[2];
    snapkv_rows outs[2]; /* their head 0 is first_head; row_bytes: what is moved */
} skv_gathering;

/* Whether each slot is the memory of the row of the same number. */
SKV_NOINLINE int skv_is_in_place(const skv_gathering *gathering, int i) {
    const snapkv_rows *view = gathering->views[i], *out = &gathering->outs[i];
    const size_t first = gathering->first_head, n_kept = gathering->n_kept;
    const uintptr_t head = (uintptr_t)(first * view->head_stride);
    if (!gathering->ascends || gathering->group > 1 ||
        (uintptr_t)out->data - head != (uintptr_t)view->data ||
        out->row_stride != view->row_stride ||
        (gathering->n_heads > 1 && out->head_stride != view->head_stride) ||
        !out->block_table != !view->block_table) {
        return 0;
    }
    if (out->block_table &&
        (out->block_rows != view->block_rows || out->block_stride != view->block_stride)) {
        return 0;
    }
    for (size_t i_block = 0; out->block_table && i_block < skv_n_blocks(out, n_kept); i_block++) {
        if (out->block_table[i_block] != view->block_table[i_block]) {
            return 0;
        }
    }
    return 1;
}

/* Whether the pages behind those that an in-place gather writes are others: a table may name one
 * twice. */
SKV_NOINLINE int skv_rest_overlaps(const skv_gathering *gathering, int i, size_t head,
                                   const skv_region *written) {
    snapkv_rows rest = *gathering->views[i];
    const size_t length = gathering->layer->length;
    const size_t n_written = skv_n_blocks(&rest, gathering->n_kept);
    if (!rest.block_table || n_written == skv_n_blocks(&rest, length)) {
        return 0;
    }
    rest.block_table += n_written;
    skv_region region =
        skv_view_region(&rest, length - n_written * rest.block_rows, gathering->outs[i].row_bytes);
    region.data += (gathering->first_head + head) * rest.head_stride;
    return skv_regions_overlap(written, &region);
}

/* The rows that a gather writes to one head of an output. */
SKV_INLINE skv_region skv_written(const skv_gathering *gathering, int i, size_t head) {
    const snapkv_rows *out = &gathering->outs[i];
    skv_region region = skv_view_region(out, gathering->n_kept, gathering->outs[i].row_bytes);
    region.data += head * out->head_stride;
    return region;
}

/* One output: its rows and pages are apart from each other. */
SKV_NOINLINE snapkv_status skv_check_output(const skv_gathering *gathering, int i) {
    const snapkv_rows *out = &gathering->outs[i];
    const skv_region written = skv_written(gathering, i, 0);
    if (skv_check_rows(out, gathering->n_heads, gathering->n_kept, 0, 0) ||
        (out->block_table && skv_n_blocks(out, gathering->n_kept) > 1 &&
         (!written.table || skv_blocks_meet(&written, NULL, 0, 0)))) {
        return SNAPKV_ERROR_OUTPUT;
    }
    return SNAPKV_OK;
}

/* What a gather may not touch: rows that are still read, the other output, and `areas`. */
SKV_NOINLINE snapkv_status skv_check_written(const skv_gathering *gathering,
                                             const skv_region *areas, size_t n_areas) {
    for (int i = 0; i < 2; i++) {
        const int in_place = skv_is_in_place(gathering, i);
        for (size_t head = 0; head < gathering->n_heads; head++) {
            const skv_region written = skv_written(gathering, i, head);
            if (skv_meets_layer(&written, gathering->config, gathering->layer, SKV_BYPASSES,
                                in_place ? SKV_KEYS + i : SKV_N_VIEWS) ||
                (in_place && skv_rest_overlaps(gathering, i, head, &written)) ||
                (i == 0 && skv_region_meets_view(&written, &gathering->outs[1],
                                                 gathering->n_heads, gathering->n_kept,
                                                 gathering->outs[1].row_bytes))) {
                return SNAPKV_ERROR_ALIAS;
            }
            for (size_t area = 0; area < n_areas; area++) {
                if (skv_regions_overlap(&written, &areas[area])) {
                    return SNAPKV_ERROR_ALIAS;
                }
            }
        }
    }
    return SNAPKV_OK;
}

/* An output as a view that begins at the first head written. */
SKV_NOINLINE snapkv_status skv_view_output(skv_gathering *gathering, int i,
                                           const snapkv_rows_out *out) {
    const size_t first = gathering->first_head;
    const size_t offset = skv_size_mul(first, out->head_stride);
    snapkv_rows view;
    if (offset >= PTRDIFF_MAX) {
        return SNAPKV_ERROR_OUTPUT;
    }
    memset(&view, 0, sizeof view);
    view.data = (const char *)out->data + offset;
    view.head_stride = out->head_stride;
    view.row_stride = out->row_stride;
    view.row_bytes = skv_row_bytes(gathering->views[i], gathering->layer->head_dim);
    view.dtype = SNAPKV_CUSTOM;
    view.block_table = out->block_table;
    view.block_rows = out->block_rows;
    view.block_stride = out->block_stride;
    gathering->outs[i] = view;
    return skv_check_output(gathering, i);
}

/* The gather of n_sets sets, once K and V are checked. */
SKV_NOINLINE snapkv_status skv_plan_gather(skv_gathering *gathering, const snapkv_config *config,
                                           const snapkv_layer *layer, size_t first_set,
                                           size_t n_sets, size_t n_kept, int ascends,
                                           const snapkv_rows_out *keys_out,
                                           const snapkv_rows_out *values_out) {
    const int expanded = config->sharing == SNAPKV_PER_QUERY_HEAD;
    const int whole_layer = config->sharing == SNAPKV_PER_LAYER;
    gathering->config = config;
    gathering->layer = layer;
    gathering->first_head = first_set;
    gathering->n_heads = whole_layer ? layer->n_kv_heads : n_sets;
    gathering->group = expanded ? layer->n_query_heads / layer->n_kv_heads : 1;
    gathering->n_kept = n_kept;
    gathering->ascends = ascends;
    gathering->views[0] = &layer->keys;
    gathering->views[1] = &layer->values;
    for (int i = 0; i < 2; i++) {
        SKV_TRY(skv_view_output(gathering, i, i ? values_out : keys_out));
    }
    return SNAPKV_OK;
}

/* Moves the rows that kept lists into n_heads output heads, from first_head on. */
SKV_NOINLINE void skv_gather_heads(const skv_gathering *gathering, size_t first_head,
                                   size_t n_heads, const int32_t *kept) {
    for (size_t head = first_head; head < first_head + n_heads; head++) {
        const size_t source = (gathering->first_head + head) / gathering->group;
        for (int i = 0; i < 2; i++) {
            const snapkv_rows *view = gathering->views[i], *out = &gathering->outs[i];
            const int in_place = skv_row(view, source, 0) == skv_row(out, head, 0);
            skv_move_rows(view, source, out, head, kept, gathering->n_kept, !in_place);
        }
    }
}

/* ---- Selection ------------------------------------------------------------------------------- */

/* The scores and votes of one set, left in the scan, after every check. */
SKV_NOINLINE snapkv_status skv_score_set(skv_scan *scan, const snapkv_config *config,
                                         const snapkv_layer *layer, size_t set, void *workspace,
                                         size_t workspace_size) {
    const int whole_layer = config->sharing == SNAPKV_PER_LAYER;
    *scan = skv_set_scan(config, layer);
    const size_t first = whole_layer ? 0 : set * scan->n_heads;
    const size_t n_heads = whole_layer ? layer->n_query_heads : scan->n_heads;
    for (size_t head = first; head < first + n_heads; head += scan->n_heads) {
        skv_start_scan(scan, head, layer->query_positions, workspace, workspace_size);
        skv_pack_queries(scan, &layer->queries, head);
        SKV_TRY(skv_scan_keys(scan));
        for (size_t i = 0; i < scan->n_heads; i++) {
            skv_sum_votes(scan, i, scan->votes, scan->sums);
            skv_add_head(config, scan->n_votes, scan->votes, scan->sums, head + i == first,
                         scan->scores, scan->total_votes);
        }
    }
    skv_end_heads(config, scan->n_votes, n_heads, scan->scores, scan->total_votes);
    return SNAPKV_OK;
}

/* Keeps positions first .. end - 1. Returns where the list goes on. */
SKV_NOINLINE int32_t *skv_keep_all(int32_t *kept, size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        *kept++ = (int32_t)i;
    }
    return kept;
}

/* snapkv_keep after every check. */
SKV_NOINLINE void skv_keep_best(const snapkv_config *config, size_t length, const float *scores,
                                size_t n_best, int32_t *kept) {
    const size_t prefix = skv_prefix(config, length), n_sink = config->n_sink;
    kept = skv_keep_all(kept, 0, n_sink);
    if (n_best > 0) {
        skv_pick_top(scores + n_sink, prefix - n_sink, n_best, config->order, n_sink, kept);
    }
    skv_keep_all(kept + n_best, prefix, length);
}

/* snapkv_select after every check. */
SKV_NOINLINE snapkv_status skv_select_set(const snapkv_config *config, const snapkv_layer *layer,
                                          size_t set, int32_t *kept, float *scores,
                                          snapkv_selection *selection, void *workspace,
                                          size_t workspace_size) {
    const size_t length = layer->length, prefix = skv_prefix(config, length);
    snapkv_selection result;
    result.n_kept = skv_size_min(length, config->capacity);
    result.coverage = 1.0f;
    result.bypassed = skv_is_bypassed(config, layer);
    if (result.bypassed) {
        skv_keep_all(kept, 0, length);
    } else {
        const size_t n_best = config->capacity - config->n_sink - skv_recent(config);
        skv_scan scan;
        SKV_TRY(skv_score_set(&scan, config, layer, set, workspace, workspace_size));
        skv_keep_best(config, length, scan.scores, n_best, kept);
        result.coverage = skv_kept_share(scan.total_votes, prefix, kept, result.n_kept,
                                         (float)config->window);
        if (scores) {
            memcpy(scores, scan.scores, prefix * sizeof *scores);
        }
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
    config.n_recent = 0;
    config.voting = SNAPKV_VOTE_SUM;
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
        return "rows of a view overlap or are misaligned, or bad block table: see snapkv_explain()";
    case SNAPKV_ERROR_OUTPUT:
        return "rows to be written overlap or reach beyond memory, or bad block table";
    case SNAPKV_ERROR_WINDOW:
        return "window is 0 or above length, or no position is left to compete";
    case SNAPKV_ERROR_CAPACITY:
        return "capacity not above n_sink + n_recent (0: window), or more to keep than there is";
    case SNAPKV_ERROR_KERNEL:
        return "kernel_size is 0 or even";
    case SNAPKV_ERROR_OPTION:
        return "unknown option or a bad number: see snapkv_explain()";
    case SNAPKV_ERROR_WORKSPACE:
        return "workspace smaller than snapkv_workspace_min() or misaligned";
    case SNAPKV_ERROR_INDEX:
        return "set, head, position or slot out of range or order";
    case SNAPKV_ERROR_ALIAS:
        return "an output overlaps an input or another output; in place: ascending lists only";
    case SNAPKV_ERROR_NOT_FINITE:
        return "a logit or score is NaN or infinite";
    }
    return "unknown status";
}

SNAPKV_API snapkv_rows snapkv_rows_by_head(const void *data, snapkv_dtype dtype, size_t n_rows,
                                           size_t head_dim) {
    snapkv_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.data = data;
    rows.dtype = dtype;
    rows.row_stride = skv_row_bytes(&rows, head_dim);
    rows.head_stride = skv_size_mul(n_rows, rows.row_stride);
    return rows;
}

SNAPKV_API snapkv_rows snapkv_rows_by_position(const void *data, snapkv_dtype dtype,
                                               size_t n_heads, size_t head_dim) {
    snapkv_rows rows = snapkv_rows_by_head(data, dtype, 1, head_dim);
    rows.row_stride = skv_size_mul(n_heads, rows.head_stride);
    return rows;
}

SNAPKV_API snapkv_rows_out snapkv_rows_in_place(const snapkv_rows *rows) {
    snapkv_rows_out out;
    memset(&out, 0, sizeof out);
    if (rows) {
        out.data = skv_writable(rows->data); /* whoever asks for this owns the cache */
        out.head_stride = rows->head_stride;
        out.row_stride = rows->row_stride;
        out.block_table = rows->block_table;
        out.block_rows = rows->block_rows;
        out.block_stride = rows->block_stride;
    }
    return out;
}

SNAPKV_API snapkv_status snapkv_check(const snapkv_config *config, const snapkv_layer *layer) {
    return skv_status(skv_find_broken(config, layer));
}

SNAPKV_API const char *snapkv_explain(const snapkv_config *config, const snapkv_layer *layer) {
    return skv_rule_text(skv_find_broken(config, layer));
}

SNAPKV_API size_t snapkv_set_count(const snapkv_config *config, const snapkv_layer *layer) {
    return skv_check_sizes(config, layer, SKV_FOR_LAYER) ? 0 : skv_set_count(config, layer);
}

SNAPKV_API size_t snapkv_kept_count(const snapkv_config *config, size_t length) {
    if (!config || length > INT32_MAX || skv_check_policy(config, SKV_FOR_LAYER)) {
        return 0;
    }
    return skv_size_min(length, config->capacity);
}

SNAPKV_API size_t snapkv_workspace_size(const snapkv_config *config, const snapkv_layer *layer) {
    if (skv_check_sizes(config, layer, SKV_BYPASSES)) {
        return 0;
    }
    return skv_scan_size(skv_set_scan(config, layer));
}

SNAPKV_API size_t snapkv_workspace_min(const snapkv_config *config, const snapkv_layer *layer) {
    if (skv_check_sizes(config, layer, SKV_BYPASSES)) {
        return 0;
    }
    return skv_set_min(config, layer);
}

/* snapkv_compress of n_sets sets. All are selected before a row moves. */
SKV_NOINLINE snapkv_status skv_compress_sets(const snapkv_config *config, const snapkv_layer *layer,
                                             size_t first_set, size_t n_sets, int32_t *kept,
                                             const snapkv_rows_out *keys_out,
                                             const snapkv_rows_out *values_out,
                                             snapkv_selection *selections, void *workspace,
                                             size_t workspace_size) {
    const size_t n_kept = skv_size_min(layer->length, config->capacity);
    const int ascends = config->order == SNAPKV_BY_POSITION || skv_is_bypassed(config, layer);
    const size_t least = skv_set_min(config, layer);
    skv_gathering gathering;
    skv_region areas[3];
    areas[0] = skv_area(workspace, workspace_size);
    areas[1] = skv_area(kept, skv_size_mul(skv_size_mul(n_sets, n_kept), sizeof *kept));
    areas[2] = skv_area(selections, skv_size_mul(n_sets, sizeof *selections));
    SKV_TRY(skv_plan_gather(&gathering, config, layer, first_set, n_sets, n_kept, ascends, keys_out,
                            values_out));
    SKV_TRY(skv_check_areas(areas, 3, least, config, layer, SKV_BYPASSES));
    SKV_TRY(skv_check_written(&gathering, areas, 3));
    for (size_t i = 0; i < n_sets; i++) {
        SKV_TRY(skv_select_set(config, layer, first_set + i, kept + i * n_kept, NULL,
                               selections ? selections + i : NULL, workspace, workspace_size));
    }
    const size_t heads_per_list = gathering.n_heads / n_sets;
    for (size_t i = 0; i < n_sets; i++) {
        skv_gather_heads(&gathering, i * heads_per_list, heads_per_list, kept + i * n_kept);
    }
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_compress_layer(
    const snapkv_config *config, const snapkv_layer *layer, int32_t *kept,
    const snapkv_rows_out *keys_out, const snapkv_rows_out *values_out,
    snapkv_selection *selections, void *workspace, size_t workspace_size) {
    if (!kept || !workspace || !keys_out || !values_out || !keys_out->data || !values_out->data) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_status(skv_check_compress(config, layer)));
    return skv_compress_sets(config, layer, 0, skv_set_count(config, layer), kept, keys_out,
                             values_out, selections, workspace, workspace_size);
}

SNAPKV_API snapkv_status snapkv_select(const snapkv_config *config, const snapkv_layer *layer,
                                       size_t set, int32_t *kept, float *scores,
                                       snapkv_selection *selection, void *workspace,
                                       size_t workspace_size) {
    if (!kept || !workspace) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_status(skv_check_layer(config, layer, SKV_FOR_LAYER)));
    if (set >= skv_set_count(config, layer)) {
        return SNAPKV_ERROR_INDEX;
    }
    const size_t least = skv_set_min(config, layer);
    const size_t n_kept = skv_size_min(layer->length, config->capacity);
    skv_region areas[4];
    areas[0] = skv_area(workspace, workspace_size);
    areas[1] = skv_area(kept, n_kept * sizeof *kept);
    areas[2] = skv_area(scores, skv_prefix(config, layer->length) * sizeof *scores);
    areas[3] = skv_area(selection, sizeof *selection);
    SKV_TRY(skv_check_areas(areas, 4, least, config, layer, SKV_BYPASSES));
    return skv_select_set(config, layer, set, kept, scores, selection, workspace, workspace_size);
}

SNAPKV_API snapkv_status snapkv_gather(const snapkv_config *config, const snapkv_layer *layer,
                                       size_t set, const int32_t *kept, size_t n_kept,
                                       const snapkv_rows_out *keys_out,
                                       const snapkv_rows_out *values_out) {
    if (!config || !layer || !kept || !keys_out || !values_out || !keys_out->data ||
        !values_out->data || !layer->keys.data || !layer->values.data) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_status(skv_check_heads(layer)));
    if ((unsigned)config->sharing > SNAPKV_PER_LAYER) {
        return SNAPKV_ERROR_OPTION;
    }
    SKV_TRY(skv_status(skv_check_moved(&layer->keys, layer, layer->length, 1)));
    SKV_TRY(skv_status(skv_check_moved(&layer->values, layer, layer->length, 0)));
    if (skv_holds_voters(config, layer, SKV_BYPASSES)) {
        SKV_TRY(skv_status(skv_check_dtype(&layer->queries)));
        SKV_TRY(skv_status(skv_check_rows(&layer->queries, layer->n_query_heads, config->window,
                                          layer->head_dim, 1)));
    }
    if (layer->first_row != 0 || set >= skv_set_count(config, layer) ||
        !skv_indices_inside(kept, n_kept, layer->length)) {
        return SNAPKV_ERROR_INDEX;
    }
    if (n_kept == 0) {
        return SNAPKV_OK;
    }
    const skv_region list = skv_area(kept, skv_size_mul(n_kept, sizeof *kept));
    skv_gathering gathering;
    SKV_TRY(skv_plan_gather(&gathering, config, layer, set, 1, n_kept, skv_ascends(kept, n_kept, 1),
                            keys_out, values_out));
    SKV_TRY(skv_check_written(&gathering, &list, 1));
    skv_gather_heads(&gathering, 0, gathering.n_heads, kept);
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_compress(const snapkv_config *config, const snapkv_layer *layer,
                                         size_t set, int32_t *kept,
                                         const snapkv_rows_out *keys_out,
                                         const snapkv_rows_out *values_out,
                                         snapkv_selection *selection, void *workspace,
                                         size_t workspace_size) {
    if (!kept || !workspace || !keys_out || !values_out || !keys_out->data || !values_out->data) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_status(skv_check_compress(config, layer)));
    if (set >= skv_set_count(config, layer)) {
        return SNAPKV_ERROR_INDEX;
    }
    return skv_compress_sets(config, layer, set, 1, kept, keys_out, values_out, selection,
                             workspace, workspace_size);
}

SNAPKV_API snapkv_status snapkv_score(const snapkv_config *config, const snapkv_layer *layer,
                                      size_t set, float *scores, float *votes, void *workspace,
                                      size_t workspace_size) {
    if (!scores || !workspace) {
        return SNAPKV_ERROR_NULL;
    }
    const int needs = SKV_FOR_VOTES | SKV_FOR_SCORES;
    SKV_TRY(skv_status(skv_check_layer(config, layer, needs)));
    if (set >= skv_set_count(config, layer)) {
        return SNAPKV_ERROR_INDEX;
    }
    skv_scan scan = skv_set_scan(config, layer);
    const size_t bytes = scan.n_votes * sizeof *scores;
    skv_region areas[3];
    areas[0] = skv_area(workspace, workspace_size);
    areas[1] = skv_area(scores, bytes);
    areas[2] = skv_area(votes, bytes);
    SKV_TRY(skv_check_areas(areas, 3, skv_set_min(config, layer), config, layer, needs));
    SKV_TRY(skv_score_set(&scan, config, layer, set, workspace, workspace_size));
    memcpy(scores, scan.scores, bytes);
    if (votes) {
        memcpy(votes, scan.total_votes, bytes);
    }
    return SNAPKV_OK;
}

/* What snapkv_keep and snapkv_coverage ask of the policy and the length. */
SKV_NOINLINE snapkv_status skv_check_prefix(const snapkv_config *config, size_t length) {
    if (length == 0 || length > INT32_MAX || skv_size_mul(length, sizeof(float)) >= PTRDIFF_MAX) {
        return SNAPKV_ERROR_SHAPE;
    }
    return config->window == 0 || skv_recent(config) > length ? SNAPKV_ERROR_WINDOW : SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_keep(const snapkv_config *config, size_t length,
                                     const float *scores, size_t n_best, int32_t *kept) {
    if (!config || !scores || !kept) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_check_prefix(config, length));
    const size_t prefix = skv_prefix(config, length);
    if (config->n_sink > prefix || n_best > prefix - config->n_sink) {
        return SNAPKV_ERROR_CAPACITY;
    }
    if ((unsigned)config->order > SNAPKV_BY_SCORE) {
        return SNAPKV_ERROR_OPTION;
    }
    const size_t n_kept = config->n_sink + n_best + (length - prefix);
    if (skv_overlap((uintptr_t)scores, prefix * sizeof *scores, (uintptr_t)kept,
                    n_kept * sizeof *kept)) {
        return SNAPKV_ERROR_ALIAS;
    }
    if (!skv_all_finite(scores, prefix)) {
        return SNAPKV_ERROR_NOT_FINITE;
    }
    skv_keep_best(config, length, scores, n_best, kept);
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_coverage(const snapkv_config *config, size_t length,
                                         const float *votes, const int32_t *kept, size_t n_kept,
                                         float *coverage) {
    if (!config || !votes || !kept || !coverage) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_check_prefix(config, length));
    const size_t prefix = skv_prefix(config, length);
    if (!skv_indices_inside(kept, n_kept, length)) {
        return SNAPKV_ERROR_INDEX;
    }
    if (skv_overlap((uintptr_t)votes, prefix * sizeof *votes, (uintptr_t)coverage,
                    sizeof *coverage) ||
        skv_overlap((uintptr_t)kept, n_kept * sizeof *kept, (uintptr_t)coverage,
                    sizeof *coverage)) {
        return SNAPKV_ERROR_ALIAS;
    }
    if (!skv_all_finite(votes, prefix)) {
        return SNAPKV_ERROR_NOT_FINITE;
    }
    *coverage = skv_kept_share(votes, prefix, kept, n_kept, (float)config->window);
    return SNAPKV_OK;
}

/* The lists and what they hold; sets the number of all scores. */
SKV_NOINLINE snapkv_status skv_check_lists(const snapkv_list *lists, size_t n_lists,
                                           const size_t *counts, size_t *n_scores) {
    const size_t counts_bytes = n_lists * sizeof *counts;
    size_t all = 0;
    for (size_t i = 0; i < n_lists; i++) {
        const size_t n = lists[i].n;
        if (n > 0 && !lists[i].scores) {
            return SNAPKV_ERROR_NULL;
        }
        all = skv_size_add(all, n);
        if (n > INT32_MAX || skv_size_mul(n, sizeof(float)) >= PTRDIFF_MAX || all == SIZE_MAX) {
            return SNAPKV_ERROR_SHAPE;
        }
        if (skv_overlap((uintptr_t)lists[i].scores, n * sizeof(float), (uintptr_t)counts,
                        counts_bytes)) {
            return SNAPKV_ERROR_ALIAS;
        }
    }
    for (size_t i = 0; i < n_lists; i++) {
        if (!skv_all_finite(lists[i].scores, lists[i].n)) {
            return SNAPKV_ERROR_NOT_FINITE;
        }
    }
    *n_scores = all;
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_allocate(const snapkv_list *lists, size_t n_lists, size_t budget,
                                         size_t least, size_t *counts) {
    if (!lists || !counts) {
        return SNAPKV_ERROR_NULL;
    }
    if (n_lists == 0 || skv_size_mul(n_lists, sizeof *lists) >= PTRDIFF_MAX) {
        return SNAPKV_ERROR_SHAPE;
    }
    if (skv_size_mul(n_lists, least) > budget) {
        return SNAPKV_ERROR_CAPACITY;
    }
    if (skv_overlap((uintptr_t)lists, n_lists * sizeof *lists, (uintptr_t)counts,
                    n_lists * sizeof *counts)) {
        return SNAPKV_ERROR_ALIAS;
    }
    size_t n_scores = 0;
    SKV_TRY(skv_check_lists(lists, n_lists, counts, &n_scores));
    if (budget >= n_scores) {
        for (size_t i = 0; i < n_lists; i++) {
            counts[i] = lists[i].n;
        }
        return SNAPKV_OK;
    }
    skv_lists all;
    all.lists = lists;
    all.n_lists = n_lists;
    all.least = least;
    const int32_t threshold = skv_budget_threshold(&all, n_scores, budget);
    size_t above, not_below, rest = budget;
    for (size_t i = 0; i < n_lists; i++) {
        skv_count_codes(lists[i].scores, lists[i].n, threshold, threshold, &above, &not_below);
        counts[i] = skv_survivors(&all, i, above);
        rest -= counts[i];
    }
    for (size_t i = 0; rest > 0; i++) { /* goes to scores at the threshold, in order */
        skv_count_codes(lists[i].scores, lists[i].n, threshold, threshold, &above, &not_below);
        const size_t more = skv_size_min(skv_survivors(&all, i, not_below) - counts[i], rest);
        counts[i] += more;
        rest -= more;
    }
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_vote(const snapkv_config *config, const snapkv_layer *layer,
                                     size_t query_head, float *votes, void *workspace,
                                     size_t workspace_size) {
    if (!votes || !workspace) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_status(skv_check_layer(config, layer, SKV_FOR_VOTES)));
    if (query_head >= layer->n_query_heads) {
        return SNAPKV_ERROR_INDEX;
    }
    skv_scan scan = skv_set_scan(config, layer);
    skv_region areas[2];
    areas[0] = skv_area(workspace, workspace_size);
    areas[1] = skv_area(votes, scan.n_votes * sizeof *votes);
    SKV_TRY(skv_check_areas(areas, 2, skv_set_min(config, layer), config, layer,
                            SKV_FOR_VOTES));
    scan.n_heads = 1;
    skv_start_scan(&scan, query_head, layer->query_positions, workspace, workspace_size);
    skv_pack_queries(&scan, &layer->queries, query_head);
    SKV_TRY(skv_scan_keys(&scan));
    skv_sum_votes(&scan, 0, votes, scan.by_max ? scan.sums : votes);
    return SNAPKV_OK;
}

SNAPKV_API size_t snapkv_part_count(size_t length) {
    return skv_div_up(length, SNAPKV_PART);
}

/* A worker's scan of the parts first_part .. first_part + n_parts - 1. */
SKV_NOINLINE skv_scan skv_part_scan(const snapkv_config *config, const snapkv_layer *layer,
                                    size_t first_part, size_t n_parts) {
    skv_scan scan = skv_set_scan(config, layer);
    const size_t end_part = skv_size_add(first_part, n_parts);
    scan.first_row = skv_size_min(skv_size_mul(first_part, SNAPKV_PART), layer->length);
    scan.end_row = skv_size_min(skv_size_mul(end_part, SNAPKV_PART), layer->length);
    scan.n_votes = skv_size_min(scan.n_votes, scan.end_row);
    scan.n_scored = 0;
    scan.first_tile = scan.first_row / SKV_TILE;
    scan.end_tile = skv_tiles(scan.end_row);
    return scan;
}

SNAPKV_API size_t snapkv_part_workspace_size(const snapkv_config *config,
                                             const snapkv_layer *layer, size_t n_parts) {
    if (skv_check_sizes(config, layer, SKV_FOR_VOTES | SKV_FOR_PARTS)) {
        return 0;
    }
    const size_t bytes = skv_scan_size(skv_part_scan(config, layer, 0, n_parts));
    return bytes >= PTRDIFF_MAX ? 0 : bytes;
}

SNAPKV_API size_t snapkv_part_workspace_min(const snapkv_config *config,
                                            const snapkv_layer *layer) {
    if (skv_check_sizes(config, layer, SKV_FOR_VOTES | SKV_FOR_PARTS)) {
        return 0;
    }
    return skv_scan_min(skv_part_scan(config, layer, 0, 0));
}

/* A part's statistics as they leave a worker, and as they come back. Both return those of the next
 * part. */
SKV_NOINLINE snapkv_statistic *skv_write_statistics(skv_scan *scan, snapkv_statistic *next) {
    for (size_t head = 0; head < scan->n_heads; head++) {
        for (size_t i = 0; i < scan->n_queries; i++, next++) {
            SKV_STEP_BY_STEP();
            next->peak = scan->part_max[head * scan->n_lanes + i];
            next->sum = scan->part_sum[head * scan->n_lanes + i];
        }
    }
    skv_clear_statistics(scan, scan->part_max, scan->part_sum);
    return next;
}

SKV_NOINLINE const snapkv_statistic *skv_read_statistics(skv_scan *scan,
                                                         const snapkv_statistic *next) {
    for (size_t head = 0; head < scan->n_heads; head++) {
        for (size_t i = 0; i < scan->n_queries; i++, next++) {
            SKV_STEP_BY_STEP();
            scan->part_max[head * scan->n_lanes + i] = next->peak;
            scan->part_sum[head * scan->n_lanes + i] = next->sum;
        }
    }
    return next;
}

/* The votes of n_heads heads, as a region. */
SKV_INLINE skv_region skv_head_rows(const float *votes, size_t n_heads, size_t n, size_t stride) {
    skv_region rows = skv_area(votes, n * sizeof *votes);
    rows.n_rows = rows.n_rows ? n_heads : 0;
    rows.stride = stride * sizeof *votes;
    return rows;
}

/* What both steps of a worker ask, their sizes checked. The areas are as in skv_check_areas. */
SKV_NOINLINE snapkv_status skv_check_part(const snapkv_config *config, const snapkv_layer *layer,
                                          size_t group, size_t first_part, size_t n_parts,
                                          const skv_region *areas, size_t n_areas) {
    const int needs = SKV_FOR_VOTES | SKV_FOR_PARTS;
    const skv_scan scan = skv_part_scan(config, layer, first_part, n_parts);
    const size_t n_all = snapkv_part_count(layer->length);
    const size_t n_groups = layer->n_query_heads / scan.n_heads;
    const size_t first_row = layer->first_row;
    const int are_there = first_row % SNAPKV_PART == 0 && first_row <= scan.first_row;
    const size_t n_rows = n_parts > 0 && are_there ? scan.end_row - first_row : 0;
    SKV_TRY(skv_status(skv_check_scanned(config, layer, needs, n_rows)));
    if (group >= n_groups || first_part > n_all || n_parts > n_all - first_part ||
        (n_parts > 0 && !are_there)) {
        return SNAPKV_ERROR_INDEX;
    }
    snapkv_layer part = *layer;
    part.length = n_rows;
    part.keys.data = n_rows > 0 ? part.keys.data : NULL;
    part.values.data = n_rows > 0 ? part.values.data : NULL;
    return skv_check_areas(areas, n_areas, skv_scan_min(scan), config, &part, needs);
}

SNAPKV_API snapkv_status snapkv_part_observe(const snapkv_config *config,
                                             const snapkv_layer *layer, size_t group,
                                             size_t first_part, size_t n_parts,
                                             snapkv_statistic *statistics, void *workspace,
                                             size_t workspace_size) {
    if (!config || !layer || !workspace || (!statistics && n_parts > 0)) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_status(skv_check_sizes(config, layer, SKV_FOR_VOTES | SKV_FOR_PARTS)));
    skv_scan scan = skv_part_scan(config, layer, first_part, n_parts);
    const size_t per_part = skv_size_mul(scan.n_heads, scan.n_queries);
    skv_region areas[2];
    areas[0] = skv_area(workspace, workspace_size);
    areas[1] = skv_area(statistics, skv_size_mul(skv_size_mul(n_parts, per_part),
                                                 sizeof *statistics));
    SKV_TRY(skv_check_part(config, layer, group, first_part, n_parts, areas, 2));
    if (n_parts == 0) {
        return SNAPKV_OK;
    }
    const size_t first_head = group * scan.n_heads;
    int not_finite = 0;
    skv_start_scan(&scan, first_head, layer->query_positions, workspace, workspace_size);
    skv_pack_queries(&scan, &layer->queries, first_head);
    for (size_t part = first_part; part < first_part + n_parts; part++) {
        const size_t first = part * SKV_PART_TILES, end = first + SKV_PART_TILES;
        not_finite |= skv_scan_tiles(&scan, first > scan.first_tile ? first : scan.first_tile,
                                     skv_size_min(end, scan.end_tile));
        statistics = skv_write_statistics(&scan, statistics);
    }
    return not_finite ? SNAPKV_ERROR_NOT_FINITE : SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_part_vote(const snapkv_config *config, const snapkv_layer *layer,
                                          size_t group, size_t first_part, size_t n_parts,
                                          const snapkv_statistic *statistics, int observed,
                                          float *votes, float *sums, size_t stride,
                                          void *workspace, size_t workspace_size) {
    if (!config || !layer || !workspace || !statistics || (!votes && n_parts > 0) ||
        (!sums && n_parts > 0 && config->voting == SNAPKV_VOTE_MAX)) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_status(skv_check_sizes(config, layer, SKV_FOR_VOTES | SKV_FOR_PARTS)));
    skv_scan scan = skv_part_scan(config, layer, first_part, n_parts);
    const size_t n_all = snapkv_part_count(layer->length);
    const size_t n_rows = scan.n_votes > scan.first_row ? scan.n_votes - scan.first_row : 0;
    const size_t n_statistics = skv_size_mul(n_all, scan.n_heads * scan.n_queries);
    const skv_region read = skv_area(statistics, skv_size_mul(n_statistics, sizeof *statistics));
    skv_region areas[3];
    areas[0] = skv_area(workspace, workspace_size);
    areas[1] = skv_head_rows(votes, scan.n_heads, n_rows, stride);
    areas[2] = skv_head_rows(scan.by_max ? sums : NULL, scan.n_heads, n_rows, stride);
    if (scan.n_heads > 1 && (stride < n_rows || stride > PTRDIFF_MAX / sizeof *votes)) {
        return SNAPKV_ERROR_OUTPUT;
    }
    SKV_TRY(skv_check_part(config, layer, group, first_part, n_parts, areas, 3));
    for (int i = 0; i < 3; i++) {
        if (skv_regions_overlap(&areas[i], &read)) {
            return SNAPKV_ERROR_ALIAS;
        }
    }
    for (size_t i = 0; i < n_statistics; i++) {
        if (!skv_is_finite(statistics[i].peak) || !skv_is_amount(statistics[i].sum)) {
            return SNAPKV_ERROR_NOT_FINITE;
        }
    }
    if (n_rows == 0) {
        return SNAPKV_OK;
    }
    const size_t first_head = group * scan.n_heads;
    skv_start_scan(&scan, first_head, layer->query_positions, workspace, workspace_size);
    skv_pack_queries(&scan, &layer->queries, first_head);
    scan.n_stored = observed ? scan.n_stored : 0;
    for (size_t part = 0; part < n_all; part++) {
        statistics = skv_read_statistics(&scan, statistics);
        skv_merge_part(&scan);
    }
    skv_merge_sinks(&scan);
    for (size_t head = 0; head < scan.n_heads; head++) {
        float *out = votes + head * stride;
        skv_sum_votes(&scan, head, out, scan.by_max ? sums + head * stride : out);
    }
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_part_score(const snapkv_config *config, size_t n_heads, size_t n,
                                           const float *votes, const float *sums, size_t stride,
                                           float *scores, float *mean) {
    if (!config || !votes || !scores || (mean && !sums)) {
        return SNAPKV_ERROR_NULL;
    }
    if (n_heads == 0 || n == 0 || n > INT32_MAX ||
        skv_extent(1, 0, n_heads, stride, n) >= PTRDIFF_MAX / sizeof *votes) {
        return SNAPKV_ERROR_SHAPE;
    }
    SKV_TRY(skv_status(skv_check_policy(config, SKV_FOR_SCORES)));
    if (n_heads > 1 && stride < n) {
        return SNAPKV_ERROR_STRIDE;
    }
    skv_region in[2], out[2];
    in[0] = skv_head_rows(votes, n_heads, n, stride);
    in[1] = skv_head_rows(mean ? sums : NULL, n_heads, n, stride);
    out[0] = skv_area(scores, n * sizeof *scores);
    out[1] = skv_area(mean, n * sizeof *mean);
    if (skv_regions_overlap(&out[0], &out[1])) {
        return SNAPKV_ERROR_ALIAS;
    }
    for (int i = 0; i < 4; i++) {
        if (skv_regions_overlap(&in[i / 2], &out[i % 2])) {
            return SNAPKV_ERROR_ALIAS;
        }
    }
    for (size_t head = 0; head < n_heads; head++) {
        if (!skv_all_finite(votes + head * stride, n) ||
            (mean && !skv_all_finite(sums + head * stride, n))) {
            return SNAPKV_ERROR_NOT_FINITE;
        }
    }
    for (size_t head = 0; head < n_heads; head++) {
        skv_add_head(config, n, votes + head * stride, mean ? sums + head * stride : NULL,
                     head == 0, scores, mean);
    }
    skv_end_heads(config, n, n_heads, scores, mean);
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
    if (skv_overlap((uintptr_t)votes, n * sizeof *votes, (uintptr_t)scores, n * sizeof *scores)) {
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
    if (skv_overlap((uintptr_t)scores, n * sizeof *scores, (uintptr_t)indices,
                    k * sizeof *indices)) {
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
    if (n_rows > 1 && src_stride < row_bytes) {
        return SNAPKV_ERROR_STRIDE;
    }
    if (n_kept > 1 && dst_stride < row_bytes) {
        return SNAPKV_ERROR_OUTPUT;
    }
    if (!skv_indices_inside(kept, n_kept, n_rows)) {
        return SNAPKV_ERROR_INDEX;
    }
    const uintptr_t from = (uintptr_t)src, to = (uintptr_t)dst;
    const size_t dst_bytes = n_kept ? skv_extent(1, 0, n_kept, dst_stride, row_bytes) : 0;
    /* Slot i then lies at or before the row it takes, and the rows to come lie behind it. */
    const int moves_down = src_stride == dst_stride && from >= to &&
                           (from == to || (src_stride > 0 && (from - to) % src_stride == 0)) &&
                           skv_ascends(kept, n_kept, 1);
    const int are_apart = !skv_strided_overlap(from, n_rows, src_stride, row_bytes, to, n_kept,
                                               dst_stride, row_bytes);
    if (skv_overlap((uintptr_t)kept, n_kept * sizeof *kept, to, dst_bytes) ||
        (!are_apart && !moves_down)) {
        return SNAPKV_ERROR_ALIAS;
    }
    snapkv_rows rows, slots;
    memset(&rows, 0, sizeof rows);
    rows.data = src;
    rows.row_stride = src_stride;
    slots = rows;
    slots.data = dst;
    slots.row_stride = dst_stride;
    slots.row_bytes = row_bytes;
    skv_move_rows(&rows, 0, &slots, 0, kept, n_kept, are_apart);
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
    if (n_rows > 1 && src_stride < src_bytes) {
        return SNAPKV_ERROR_STRIDE;
    }
    if (n_rows > 1 && dst_stride < dst_bytes) {
        return SNAPKV_ERROR_OUTPUT;
    }
    if (!skv_indices_inside(kept, n_kept, n_columns)) {
        return SNAPKV_ERROR_INDEX;
    }
    const int in_place = src == dst && src_stride == dst_stride && skv_ascends(kept, n_kept, 1);
    if (n_kept > 0 &&
        (skv_overlap((uintptr_t)kept, n_kept * sizeof *kept, (uintptr_t)dst,
                     skv_extent(1, 0, n_rows, dst_stride, dst_bytes)) ||
         (!in_place && skv_strided_overlap((uintptr_t)src, n_rows, src_stride, src_bytes,
                                           (uintptr_t)dst, n_rows, dst_stride, dst_bytes)))) {
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

/* In 64 bits, saturating. */
SKV_NOINLINE uint64_t skv_count_mul(uint64_t a, uint64_t b) {
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

SKV_INLINE uint64_t skv_count_add(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* counts NULL: min(length, capacity) each. */
SKV_NOINLINE snapkv_status skv_account(const snapkv_config *config, const snapkv_model *model,
                                       size_t length, size_t generated, const size_t *counts,
                                       snapkv_ledger *ledger) {
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
    SKV_TRY(skv_status(skv_check_sizes(config, &layer, SKV_FOR_LAYER)));
    const uint64_t heads = config->sharing == SNAPKV_PER_QUERY_HEAD ? model->n_query_heads
                                                                    : model->n_kv_heads;
    const uint64_t layers = skv_count_mul(model->batch, model->n_layers);
    const uint64_t lists = skv_count_mul(layers, skv_set_count(config, &layer));
    const uint64_t rows = skv_count_mul(layers, heads); /* one per head */
    const uint64_t heads_per_list =
        config->sharing == SNAPKV_PER_LAYER ? model->n_kv_heads : 1;
    uint64_t row = skv_count_mul(2, model->head_dim);   /* a position's K and V in one head */
    row = skv_count_mul(row, model->element_size);
    uint64_t kept = skv_count_mul(rows, skv_size_min(length, config->capacity));
    if (counts) {
        if (lists >= PTRDIFF_MAX / sizeof *counts) {
            return SNAPKV_ERROR_SHAPE;
        }
        kept = 0;
        for (size_t i = 0; i < (size_t)lists; i++) {
            if (counts[i] > length) {
                return SNAPKV_ERROR_INDEX;
            }
            kept = skv_count_add(kept, skv_count_mul(heads_per_list, counts[i]));
        }
    }
    const uint64_t full = skv_count_mul(layers, model->n_kv_heads);
    snapkv_ledger result;
    result.full_bytes =
        skv_count_mul(row, skv_count_mul(full, skv_count_add(length, generated)));
    result.kept_bytes =
        skv_count_mul(row, skv_count_add(kept, skv_count_mul(rows, generated)));
    result.score_bytes = skv_count_mul(skv_count_mul(4, skv_count_mul(model->batch, length)),
                                       skv_count_mul(model->n_query_heads, config->window));
    result.workspace_bytes = skv_scan_size(skv_set_scan(config, &layer));
    if (generated > SIZE_MAX - length || result.full_bytes == UINT64_MAX ||
        result.kept_bytes == UINT64_MAX || result.score_bytes == UINT64_MAX) {
        return SNAPKV_ERROR_SHAPE;
    }
    *ledger = result;
    return SNAPKV_OK;
}

SNAPKV_API snapkv_status snapkv_account(const snapkv_config *config, const snapkv_model *model,
                                        size_t length, size_t generated, snapkv_ledger *ledger) {
    return skv_account(config, model, length, generated, NULL, ledger);
}

SNAPKV_API snapkv_status snapkv_account_lists(const snapkv_config *config,
                                              const snapkv_model *model, size_t length,
                                              size_t generated, const size_t *counts,
                                              snapkv_ledger *ledger) {
    return !counts ? SNAPKV_ERROR_NULL
                   : skv_account(config, model, length, generated, counts, ledger);
}

SNAPKV_API snapkv_status snapkv_retained_mass(const snapkv_config *config,
                                              const snapkv_layer *layer, size_t query_head,
                                              const float *query, size_t position,
                                              const int32_t *kept, size_t n_kept, float *mass,
                                              void *workspace, size_t workspace_size) {
    if (!query || !kept || !mass || !workspace) {
        return SNAPKV_ERROR_NULL;
    }
    SKV_TRY(skv_status(skv_check_layer(config, layer, 0)));
    if (query_head >= layer->n_query_heads || position > INT32_MAX ||
        position < (size_t)skv_position(layer, layer->length - 1) ||
        !skv_indices_inside(kept, n_kept, layer->length)) {
        return SNAPKV_ERROR_INDEX;
    }
    const int32_t query_position = (int32_t)position;
    skv_region areas[2];
    areas[0] = skv_area(workspace, workspace_size);
    areas[1] = skv_area(mass, sizeof *mass);
    SKV_TRY(skv_check_areas(areas, 2, skv_set_min(config, layer), config, layer, 0));
    for (int i = 0; i < 2; i++) {
        if (skv_overlap(areas[i].data, areas[i].bytes, (uintptr_t)kept, n_kept * sizeof *kept) ||
            skv_overlap(areas[i].data, areas[i].bytes, (uintptr_t)query,
                        layer->head_dim * sizeof *query)) {
            return SNAPKV_ERROR_ALIAS;
        }
    }
    snapkv_rows rows = snapkv_rows_by_head(query, SNAPKV_F32, 1, layer->head_dim);
    skv_scan scan = skv_make_scan(layer, 1, 1, layer->length, 0);
    skv_start_scan(&scan, query_head, &query_position, workspace, workspace_size);
    skv_pack_queries(&scan, &rows, 0);
    SKV_TRY(skv_scan_keys(&scan));
    skv_sum_votes(&scan, 0, scan.votes, scan.votes);
    *mass = skv_kept_share(scan.votes, layer->length, kept, n_kept, 1.0f);
    return SNAPKV_OK;
}

SNAPKV_API float snapkv_error_bound(float mass, float value_norm_max) {
    return 2.0f * (1.0f - mass) * value_norm_max;
}

SNAPKV_API snapkv_cursor snapkv_cursor_start(const snapkv_config *config, size_t length) {
    snapkv_cursor cursor;
    cursor.prompt_kept = snapkv_kept_count(config, length);
    cursor.prompt_length = cursor.prompt_kept ? length : 0;
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

#undef SKV_INLINE
#undef SKV_WRAPS
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
#undef SKV_LARGE
#undef SKV_FMA1
#undef SKV_ALL
#undef SKV_MAP
#undef SKV_LANES_APART
#undef SKV_LOWEST
#undef SKV_HIGHEST_BITS
#undef SKV_RULES
#undef SKV_RULE_NAME
#undef SKV_RULE_STATUS
#undef SKV_RULE_TEXT
#undef SKV_VIEW_RULE_TEXT
#undef SKV_OBEY
#undef SKV_LOG2E
#undef SKV_MAGIC
#undef SKV_MAGIC_BITS
#undef SKV_ROOM
#undef SKV_UNIT
#undef SKV_GROUND
#undef SKV_TRY

#endif /* SNAPKV_DECLARATIONS_ONLY */

#undef SKV_HAS_AVX2
#undef SKV_HAS_AVX512
#undef SKV_HAS_NEON
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic pop
#endif

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
