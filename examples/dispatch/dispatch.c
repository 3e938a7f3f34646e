/* dispatch.c: one binary that runs anywhere and is fast where it can be.
 *
 *     build/dispatch            takes the best path that this machine can run, and says which
 *     build/dispatch avx2       takes that one
 *     build/dispatch --check    runs all that the machine can, and compares their bits
 *
 * snapkv.h has one instruction set per compilation, chosen by the compiler's flags. A binary that
 * is built for others' machines compiles it several times (path.c) and chooses when it starts:
 *
 *     cc -O3 -DSNAPKV_ISA=SNAPKV_ISA_SCALAR -DDISPATCH_PATH=path_scalar -c path.c -o scalar.o
 *     cc -O3 -DSNAPKV_ISA=SNAPKV_ISA_AVX2 -mavx2 -mfma -mf16c
 *        -DDISPATCH_PATH=path_avx2 -c path.c -o avx2.o
 *     cc -O3 -DSNAPKV_ISA=SNAPKV_ISA_AVX512 -mavx512f -mavx512bw -mavx512dq -mavx512vl
 *        -mavx2 -mfma -mf16c -DDISPATCH_PATH=path_avx512 -c path.c -o avx512.o
 *     cc -O2 dispatch.c ...             everything else: the plain flags, and all the objects
 *
 * On AArch64 there are SNAPKV_ISA_SCALAR and SNAPKV_ISA_NEON, both without flags, and every such
 * processor runs either.
 *
 * A processor too old for AVX2 takes the scalar path. It multiplies and adds with two roundings, as
 * such processors do, so its last bits differ from the others'. path_scalar_fma, the same with
 * -DSNAPKV_SCALAR_FMA=1, gives the bits of all the others everywhere, but each multiply-add is a
 * call of fmaf: 8 to 20 times the time where that finds the instruction, far more where it doesn't.
 * Take it instead if all your machines must agree; here it runs when it is asked for, and in the
 * check.
 */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "path.h"

/* x86 asks the processor; the cpuid header is GCC's and Clang's. */
#if defined(__x86_64__) || defined(__i386__)
#define IS_X86 1
#include <cpuid.h>
#else
#define IS_X86 0
#endif

/* ---- the chooser ---------------------------------------------------------------------------- */

static int always(void) {
    return 1;
}

#if IS_X86
/* __builtin_cpu_supports says yes to these only if the operating system, too, saves the wide
 * registers. Every object's flags need their question: the compiler uses what it was allowed. */
static int has_avx2(void) {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    /* F16C: older Clang can't be asked for it by name. */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

typedef struct choice {
    const char *name;
    const dispatch_path *path;
    int (*can_run)(void);
} choice;

/* The best first; of the last two, "scalar" is the one that is taken unasked. */
static const choice CHOICES[] = {
#if IS_X86
    {"avx512", &path_avx512, has_avx512},
    {"avx2", &path_avx2, has_avx2},
#elif defined(__aarch64__)
    {"neon", &path_neon, always},
#endif
    {"scalar", &path_scalar, always},
    {"scalar-fma", &path_scalar_fma, always},
};
enum { N_CHOICES = sizeof CHOICES / sizeof CHOICES[0] };

static const choice *choose(void) {
    size_t i = 0;
    while (!CHOICES[i].can_run())
        i++;
    return &CHOICES[i];
}

/* ---- something to run ----------------------------------------------------------------------- */

enum { QUERY_HEADS = 4, KV_HEADS = 2, LENGTH = 1500, DIM = 72, WINDOW = 20, CAPACITY = 200 };
enum { PREFIX = LENGTH - WINDOW, ROW = DIM * sizeof(float), N_LAYERS = 3 };

static float queries[QUERY_HEADS * WINDOW * DIM], keys[KV_HEADS * LENGTH * DIM];
static const float SLOPES[QUERY_HEADS] = {0.01f, 0.005f, 0.002f, 0.001f};
static const float SINKS[QUERY_HEADS] = {1, -1, 0, 2};

typedef struct result {
    int32_t kept[KV_HEADS][CAPACITY];
    float scores[KV_HEADS][PREFIX];
    float coverage[KV_HEADS];
} result;

static void fill(float *x, size_t n) {
    static uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(state >> 40) / 4194304.0f - 2.0f; /* 24 bits: -2 .. 2 */
    }
}

/* A plain layer, one with a soft cap and a sliding window, one with ALiBi and sink logits. */
static snapkv_layer make_layer(size_t i) {
    snapkv_layer layer = {
        .n_query_heads = QUERY_HEADS,
        .n_kv_heads = KV_HEADS,
        .length = LENGTH,
        .head_dim = DIM,
        .queries = {.data = queries, .head_stride = WINDOW * ROW, .row_stride = ROW},
        .keys = {.data = keys, .head_stride = LENGTH * ROW, .row_stride = ROW},
    };
    if (i == 1) {
        layer.softcap = 3;
        layer.span = 1000;
    } else if (i == 2) {
        layer.alibi_slopes = SLOPES;
        layer.sink_logits = SINKS;
    }
    return layer;
}

/* Selects every set of every layer; the time of it in seconds. */
static snapkv_status run(const dispatch_path *path, result *results, double *seconds) {
    struct timespec start, end;
    snapkv_config config = snapkv_default_config();
    config.window = WINDOW;
    config.capacity = CAPACITY;
    snapkv_status status = SNAPKV_OK;
    memset(results, 0, N_LAYERS * sizeof *results);
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (size_t i = 0; i < N_LAYERS; i++) {
        const snapkv_layer layer = make_layer(i);
        const size_t size = path->workspace_size(&config, &layer);
        void *const workspace = malloc(size);
        if (workspace == NULL)
            return SNAPKV_ERROR_WORKSPACE;
        for (size_t set = 0; set < KV_HEADS && status == SNAPKV_OK; set++) {
            snapkv_selection selection = {0, 0, 0};
            status = path->select(&config, &layer, set, results[i].kept[set],
                                  results[i].scores[set], &selection, workspace, size);
            results[i].coverage[set] = selection.coverage;
        }
        free(workspace);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    *seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    return status;
}

static int close_to(float a, float b) {
    return fabsf(a - b) <= 1e-5f * fabsf(b) + 1e-30f;
}

/* Without fused multiply-add: within rounding. Positions that nearly tie may change places, so the
 * lists are not compared. */
static int within_rounding(const result *a, const result *b) {
    for (size_t i = 0; i < N_LAYERS; i++)
        for (size_t set = 0; set < KV_HEADS; set++) {
            if (!close_to(a[i].coverage[set], b[i].coverage[set]))
                return 0;
            for (size_t j = 0; j < PREFIX; j++)
                if (!close_to(a[i].scores[set][j], b[i].scores[set][j]))
                    return 0;
        }
    return 1;
}

/* Returns the exit status. */
static int check(void) {
    static result exact[N_LAYERS], results[N_LAYERS];
    double seconds;
    int failed = 0;
    snapkv_status status = run(&path_scalar_fma, exact, &seconds);
    for (size_t i = 0; i < N_CHOICES && status == SNAPKV_OK; i++) {
        const choice *const c = &CHOICES[i];
        if (!c->can_run()) {
            printf("SKIP %s: this machine can't run it\n", c->name);
            continue;
        }
        status = run(c->path, results, &seconds);
        const int same = memcmp(results, exact, sizeof exact) == 0;
        const int fine = same || (!c->path->fma && within_rounding(results, exact));
        printf("%-10s %8.2f ms  %s\n", c->name, 1e3 * seconds,
               same   ? "the same bits"
               : fine ? "within rounding: no fused multiply-add"
                      : "DIFFERS");
        failed += !fine;
    }
    if (status != SNAPKV_OK)
        fprintf(stderr, "dispatch: %s\n", snapkv_status_string(status));
    return failed == 0 && status == SNAPKV_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

static void print_usage(FILE *file) {
    fprintf(file, "usage: dispatch [--check |");
    for (size_t i = 0; i < N_CHOICES; i++)
        fprintf(file, " %s%s", CHOICES[i].name, i + 1 < N_CHOICES ? " |" : "]\n");
}

int main(int argc, char **argv) {
    static result results[N_LAYERS];
    double seconds;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        print_usage(stdout);
        return EXIT_SUCCESS;
    }
    fill(queries, sizeof queries / sizeof queries[0]);
    fill(keys, sizeof keys / sizeof keys[0]);
    if (argc == 2 && strcmp(argv[1], "--check") == 0)
        return check();

    const choice *taken = argc < 2 ? choose() : NULL;
    for (size_t i = 0; i < N_CHOICES && argc == 2; i++)
        if (strcmp(argv[1], CHOICES[i].name) == 0)
            taken = &CHOICES[i];
    if (taken == NULL) {
        fprintf(stderr, "dispatch: unknown path\n");
        print_usage(stderr);
        return EXIT_FAILURE;
    }
    if (!taken->can_run()) {
        fprintf(stderr, "dispatch: this processor or its operating system can't run %s\n",
                taken->name);
        return EXIT_FAILURE;
    }
    const snapkv_status status = run(taken->path, results, &seconds);
    if (status != SNAPKV_OK) {
        fprintf(stderr, "dispatch: %s\n", snapkv_status_string(status));
        return EXIT_FAILURE;
    }
    printf("path: %s (%s%s)\n", taken->name, taken->path->isa,
           taken->path->fma ? "" : ", no fused multiply-add");
    printf("%d layers, %d of %d positions kept of each list, %.2f ms\n", N_LAYERS, CAPACITY, LENGTH,
           1e3 * seconds);
    for (size_t i = 0; i < N_LAYERS; i++)
        printf("layer %zu: coverage %.4f %.4f, first kept %ld\n", i, (double)results[i].coverage[0],
               (double)results[i].coverage[1], (long)results[i].kept[0][0]);
    return EXIT_SUCCESS;
}
