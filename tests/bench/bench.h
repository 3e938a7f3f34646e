/* What the parts of the benchmark share. Build and run it with `make bench`. */
#ifndef BENCH_H
#define BENCH_H

#include "snapkv.h"

/* One build of the library: the same source (path.c) compiled for an instruction set by a compiler.
 * The driver reaches every path through these pointers, so that all run in one process. */
typedef struct bench_path {
    const char *isa;      /* SNAPKV_ISA_NAME of that build */
    const char *label;    /* what the tables call it, e.g. "avx2 clang" */
    const char *compiler; /* name and version */
    const char *flags;    /* that matter */
    int needs;            /* a BENCH_NEEDS_ value: what the processor must have */

    /* Runs `rounds` rounds of independent multiply-add chains in registers, with the vector type of
     * the path, and returns the floating-point operations that were done. */
    double (*fma_chains)(size_t rounds);

    /* Adds n floats, 4 vectors at a time: what it takes to look at them once. */
    float (*sum)(const float *, size_t);

    snapkv_status (*vote)(const snapkv_config *, const snapkv_layer *, size_t, float *, void *,
                          size_t);
    snapkv_status (*pool)(const float *, size_t, size_t, snapkv_pooling, float *);
    snapkv_status (*top_k)(const float *, size_t, size_t, snapkv_order, int32_t *);
    snapkv_status (*allocate)(const snapkv_list *, size_t, size_t, size_t, size_t *);
    snapkv_status (*gather_rows)(const int32_t *, size_t, const void *, size_t, size_t, size_t,
                                 void *, size_t);
    snapkv_status (*gather_columns)(const int32_t *, size_t, const void *, size_t, size_t, size_t,
                                    size_t, void *, size_t);
    snapkv_status (*select)(const snapkv_config *, const snapkv_layer *, size_t, int32_t *, float *,
                            snapkv_selection *, void *, size_t);
    snapkv_status (*compress)(const snapkv_config *, const snapkv_layer *, size_t, int32_t *,
                              const snapkv_rows_out *, const snapkv_rows_out *, snapkv_selection *,
                              void *, size_t);
    snapkv_status (*retained_mass)(const snapkv_config *, const snapkv_layer *, size_t,
                                   const float *, size_t, const int32_t *, size_t, float *, void *,
                                   size_t);
    size_t (*workspace_size)(const snapkv_config *, const snapkv_layer *);
    size_t (*workspace_min)(const snapkv_config *, const snapkv_layer *);
} bench_path;

enum { BENCH_NEEDS_NOTHING, BENCH_NEEDS_AVX2, BENCH_NEEDS_AVX512 };

/* The peers, each in a file of its own; a missing one is left out of the build. */

/* std::nth_element (nth_element.cc). The k-th largest of a copy of the values: no positions. */
#ifdef __cplusplus
extern "C" {
#endif
float bench_nth_value(const float *scores, size_t n, size_t k, float *copy /* [n] */);
/* The positions of the k largest, equal ones by position: in no order, or ascending. */
void bench_nth_positions(const float *scores, size_t n, size_t k, int32_t *positions /* [n] */,
                         int ascending);

/* OpenBLAS (sgemm.c), one thread: the bare Q K^T of one head. Its core and version as text. */
const char *bench_sgemm_name(void);
void bench_sgemm(int keys_are_rows, size_t window, size_t length, size_t head_dim,
                 const float *queries, const float *keys, float *logits);
#ifdef __cplusplus
}
#endif

#endif
