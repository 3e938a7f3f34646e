/* One path of the library for the benchmark, compiled once for each instruction set and compiler:
 * BENCH_PATH is the symbol, BENCH_LABEL the name in the tables, BENCH_FLAGS what it was compiled
 * with; SNAPKV_ISA chooses the instruction set. */
#include "bench.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#if defined(__clang__)
#define BENCH_COMPILER "clang " TEXT(__clang_major__) "." TEXT(__clang_minor__)
#elif defined(__GNUC__)
#define BENCH_COMPILER "gcc " __VERSION__
#else
#define BENCH_COMPILER "unknown compiler"
#endif

/* The vector type whose multiply-add peak is measured. Chains: enough to cover the latency of a
 * multiply-add (4 cycles, two to four at a time), few enough to stay in registers. */
#if SNAPKV_ISA == SNAPKV_ISA_AVX512
#include <immintrin.h>
typedef __m512 vector;
#define LANES        16
#define CHAINS       16
#define NEEDS        BENCH_NEEDS_AVX512
#define SET1(x)      _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#elif SNAPKV_ISA == SNAPKV_ISA_AVX2
#include <immintrin.h>
typedef __m256 vector;
#define LANES        8
#define CHAINS       12
#define NEEDS        BENCH_NEEDS_AVX2
#define SET1(x)      _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#elif SNAPKV_ISA == SNAPKV_ISA_NEON
#include <arm_neon.h>
typedef float32x4_t vector;
#define LANES        4
#define CHAINS       24
#define NEEDS        BENCH_NEEDS_NOTHING
#define SET1(x)      vdupq_n_f32(x)
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#else
/* The scalar path is plain C, which the compiler vectorises as far as its flags allow: four lanes,
 * multiply and add (fused only where the flags have it). */
typedef float vector __attribute__((vector_size(16)));
#define LANES        4
#define CHAINS       12
#define NEEDS        BENCH_NEEDS_NOTHING
#define SET1(x)      ((vector){(x), (x), (x), (x)})
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

static double fma_chains(size_t rounds) {
    /* Read at run time, so that nothing can be computed in advance. */
    static volatile float source[3] = {0.75f, 1.0f / 1024.0f, 0.0f};
    const vector factor = SET1(source[0]);
    const vector term = SET1(source[1]);
    vector chain[CHAINS];
    float sink[LANES];
    size_t round;
    int i;

    for (i = 0; i < CHAINS; i++) {
        chain[i] = SET1(source[2]);
    }
    for (round = 0; round < rounds; round++) {
        for (i = 0; i < CHAINS; i++) {
            chain[i] = FMA(chain[i], factor, term);
        }
    }
    for (i = 1; i < CHAINS; i++) {
        chain[0] = FMA(chain[0], factor, chain[i]);
    }
    SNAPKV_MEMCPY(sink, &chain[0], sizeof sink);
    source[2] = sink[0] * 0.0f;
    return 2.0 * LANES * CHAINS * (double)rounds;
}

static float sum(const float *x, size_t n) {
    float lane[4 * LANES] = {0};
    size_t i;
    int k;

    for (i = 0; i + 4 * LANES <= n; i += 4 * LANES) {
        for (k = 0; k < 4 * LANES; k++) {
            lane[k] += x[i + (size_t)k];
        }
    }
    for (; i < n; i++) {
        lane[0] += x[i];
    }
    for (k = 1; k < 4 * LANES; k++) {
        lane[0] += lane[k];
    }
    return lane[0];
}

extern const bench_path BENCH_PATH;
const bench_path BENCH_PATH = {
    .isa = SNAPKV_ISA_NAME,
    .label = BENCH_LABEL,
    .compiler = BENCH_COMPILER,
    .flags = BENCH_FLAGS,
    .needs = NEEDS,
    .fma_chains = fma_chains,
    .sum = sum,
    .vote = snapkv_vote,
    .pool = snapkv_pool,
    .top_k = snapkv_top_k,
    .allocate = snapkv_allocate,
    .gather_rows = snapkv_gather_rows,
    .gather_columns = snapkv_gather_columns,
    .select = snapkv_select,
    .compress = snapkv_compress,
    .retained_mass = snapkv_retained_mass,
    .workspace_size = snapkv_workspace_size,
    .workspace_min = snapkv_workspace_min,
};
