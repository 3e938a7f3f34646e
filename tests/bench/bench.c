/* The benchmark: `make bench BENCH="[--quick] [--cpu-time] [SECTION ...]"`.
 *
 * Every instruction set that the compiler knows is a path (path.c); those that this machine can't
 * run say SKIP. What is compared runs alternately, A B A B ..., and the tables give medians. A
 * share "of the peak" refers to the multiply-add peak of the same path, measured between the runs
 * of the same table row. Times never make it fail: the last table says what was met and what was
 * not. It does fail when two things that should agree differ (bits of two workspace sizes,
 * positions of two selections, moved bytes). */
#define _POSIX_C_SOURCE 200809L

#include "bench.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    HEADS = 8,
    QUERY_HEADS = 32, /* in the table of grouped heads; elsewhere as many as K/V heads */
    DIM = 128,        /* elements of a stored row; shapes with D 64 use half rows, back to back */
    WINDOW = 32,      /* of the main shape */
    MAX_WINDOW = 64,
    CAPACITY = 1024,
    KERNEL = 5,
    ROW = 256, /* bytes of a row in the gather section: D 128 in half precision */
    MAX_PATHS = 16,
    MAX_TASKS = 8,
    MIN_ROUNDS = 5,
    MAX_ROUNDS = 41,
    MAX_GOALS = 128
};

static int quick;
static int cpu_time;

static void __attribute__((noreturn)) die(const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    fflush(stdout);
    fputs("bench: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static void must(snapkv_status status, const char *call) {
    if (status != SNAPKV_OK) {
        die("%s: %s", call, snapkv_status_string(status));
    }
}

static void *allocate(size_t bytes) {
    void *memory = NULL;

    if (posix_memalign(&memory, 4096, bytes) != 0) {
        die("no memory for %zu bytes", bytes);
    }
    return memory;
}

/* Peers that are not there: never called, but named. */
#if !BENCH_HAS_CXX
float bench_nth_value(const float *scores, size_t n, size_t k, float *copy) {
    (void)n, (void)k, (void)copy;
    return scores[0];
}

void bench_nth_positions(const float *scores, size_t n, size_t k, int32_t *positions,
                         int ascending) {
    (void)scores, (void)n, (void)k, (void)positions, (void)ascending;
}
#endif

#if !BENCH_HAS_OPENBLAS
const char *bench_sgemm_name(void) {
    return "SKIP (libopenblas-dev)";
}

void bench_sgemm(int keys_are_rows, size_t window, size_t length, size_t head_dim,
                 const float *queries, const float *keys, float *logits) {
    (void)keys_are_rows, (void)window, (void)length, (void)head_dim;
    (void)queries, (void)keys, (void)logits;
}
#endif

/* ---- the paths ------------------------------------------------------------------------------- */

#define PATH(symbol) extern const bench_path symbol;
BENCH_PATHS
BENCH_OTHER_PATHS
#undef PATH
#define PATH(symbol) &symbol,
static const bench_path *const main_paths[] = {BENCH_PATHS NULL};
static const bench_path *const other_paths[] = {BENCH_OTHER_PATHS NULL};
#undef PATH

static const bench_path *paths[MAX_PATHS];  /* those of the main compiler that run here */
static const bench_path *others[MAX_PATHS]; /* those of the other compiler */
static size_t n_paths, n_others;

static int machine_runs(const bench_path *path) {
#if defined(__x86_64__) || defined(__i386__)
    if (path->needs == BENCH_NEEDS_AVX2) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    }
    if (path->needs == BENCH_NEEDS_AVX512) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    }
#endif
    return path->needs == BENCH_NEEDS_NOTHING;
}

static size_t find_paths(const bench_path *const *from, const bench_path **to) {
    size_t n = 0;

    for (; *from; from++) {
        if (machine_runs(*from)) {
            printf("path %-14s %s, %s\n", (*from)->label, (*from)->compiler, (*from)->flags);
            to[n++] = *from;
        } else {
            printf("SKIP path %s: this processor can't run it\n", (*from)->label);
        }
    }
    return n;
}

static int is_fast(const bench_path *path) {
    return strncmp(path->label, "scalar", 6) != 0;
}

/* Prints the head of a Markdown table and the rule below it. A title that fills its column is a
 * number's, and goes to the right. */
static void table(const char *titles) {
    const char *c;

    puts(titles);
    for (c = titles; *c; c++) {
        const int ends_column = c[1] == '|';

        putchar(*c == '|' ? '|' : ends_column && c[-1] != ' ' ? ':' : '-');
    }
    putchar('\n');
}

/* ---- alternating runs ------------------------------------------------------------------------ */

typedef struct task {
    double (*run)(void *context); /* does the work once; its own time in seconds, or 0: ours */
    void *context;
    double median; /* seconds of one run */
} task;

static double seconds(void) {
    struct timespec t;

    clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double run_task(const task *t, size_t repeats) {
    const double start = seconds();
    double own = 0.0;
    size_t i;

    for (i = 0; i < repeats; i++) {
        own += t->run(t->context);
    }
    return (own > 0.0 ? own : seconds() - start) / (double)repeats;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Runs the tasks in turn, as often as fits into `budget` seconds. */
static void alternate(task *tasks, size_t n_tasks, double budget) {
    static double samples[MAX_TASKS][MAX_ROUNDS];
    const double shortest =
        0.2e-3; /* of a sample: the clock and a call cost well below 1 % of it */
    size_t repeats[MAX_TASKS];
    double round_time = 0.0;
    size_t rounds, r, i;

    if (n_tasks > MAX_TASKS) {
        die("too many tasks");
    }
    for (i = 0; i < n_tasks; i++) {
        double once;

        run_task(&tasks[i], 1); /* touches the memory and warms the caches */
        once = run_task(&tasks[i], 1);
        repeats[i] = once < shortest ? (size_t)(shortest / (once + 1e-9)) + 1 : 1;
        round_time += once * (double)repeats[i];
    }
    rounds = (size_t)((quick ? budget / 4 : budget) / round_time);
    rounds = rounds < MIN_ROUNDS ? MIN_ROUNDS : rounds > MAX_ROUNDS ? MAX_ROUNDS : rounds | 1;
    for (r = 0; r < rounds; r++) {
        for (i = 0; i < n_tasks; i++) {
            samples[i][r] = run_task(&tasks[i], repeats[i]);
        }
    }
    for (i = 0; i < n_tasks; i++) {
        qsort(samples[i], rounds, sizeof samples[i][0], by_value);
        tasks[i].median = samples[i][rounds / 2];
    }
}

/* The multiply-add peak as a task: the best of many bursts of about 0.1 ms. */
typedef struct peak_job {
    const bench_path *path;
    double best; /* floating-point operations per second */
} peak_job;

static double run_peak(void *context) {
    peak_job *job = (peak_job *)context;
    int burst;

    for (burst = 0; burst < 4; burst++) {
        const double start = seconds();
        const double flop = job->path->fma_chains(30000);
        const double rate = flop / (seconds() - start);

        job->best = rate > job->best ? rate : job->best;
    }
    return 0.0;
}

/* ---- what must hold -------------------------------------------------------------------------- */

typedef struct goal {
    char what[80];
    char bound[24];
    char value[24];
    const char *verdict;
} goal;

static goal goals[MAX_GOALS];
static size_t n_goals;

static goal *new_goal(void) {
    if (n_goals == MAX_GOALS) {
        die("too many goals");
    }
    return &goals[n_goals++];
}

/* sense > 0: value should be at least the bound; < 0: at most. */
static void set_goal(int sense, double bound, double value, const char *unit, const char *what,
                     ...) {
    goal *g = new_goal();
    va_list arguments;

    va_start(arguments, what);
    vsnprintf(g->what, sizeof g->what, what, arguments);
    va_end(arguments);
    snprintf(g->bound, sizeof g->bound, "%s %.4g%s", sense > 0 ? ">=" : "<=", bound, unit);
    snprintf(g->value, sizeof g->value, "%.3g%s", value, unit);
    g->verdict = (sense > 0 ? value >= bound : value <= bound) ? "met" : "NOT MET";
}

static void skip_goal(const char *what, const char *reason) {
    goal *g = new_goal();

    snprintf(g->what, sizeof g->what, "%s", what);
    snprintf(g->bound, sizeof g->bound, "-");
    snprintf(g->value, sizeof g->value, "%s", reason);
    g->verdict = "SKIP";
}

static void print_goals(void) {
    static const char dashes[] = "----------------------------------------------------------------";
    size_t i, met = 0, missed = 0, skipped = 0;

    printf("\n## What must hold%s\n\n", quick ? " (--quick: fewer runs, shorter prompts)" : "");
    printf("| %-62s | %-10s | %-10s | %-7s |\n", "number", "goal", "measured", "");
    printf("|%.64s|%.12s|%.12s|%.9s|\n", dashes, dashes, dashes, dashes);
    for (i = 0; i < n_goals; i++) {
        printf("| %-62s | %-10s | %-10s | %-7s |\n", goals[i].what, goals[i].bound, goals[i].value,
               goals[i].verdict);
        met += goals[i].verdict[0] == 'm';
        missed += goals[i].verdict[0] == 'N';
        skipped += goals[i].verdict[0] == 'S';
    }
    printf("\n%zu met, %zu not met, %zu skipped\n", met, missed, skipped);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Keys are [HEADS][max_length][DIM] in each type. The first L rows of a head are the same whatever
 * the length, and the same that official.py makes: value i of a head is output i of splitmix64. */
typedef struct inputs {
    size_t max_length;
    float *keys_f32, *values; /* values: the negated keys, elsewhere in memory */
    uint16_t *keys_f16, *keys_bf16;
    float *queries_f32; /* [QUERY_HEADS][MAX_WINDOW][DIM] */
    uint16_t *queries_f16, *queries_bf16;
    float *votes; /* [max_length] */
    void *workspace[2];
    size_t workspace_bytes;
} inputs;

static inputs in;

static float uniform(uint64_t seed, uint64_t i) {
    uint64_t z = seed + i * 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return ((float)(z >> 40) * 0x1p-24f - 0.5f) * 4.0f;
}

static uint32_t float_bits(float x) {
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Truncating conversions: good enough for times. What half precision can't hold becomes 0. */
static uint16_t to_f16(float x) {
    const uint32_t bits = float_bits(x);
    const uint32_t exponent = bits >> 23 & 0xff;
    const uint32_t sign = bits >> 16 & 0x8000;

    return (uint16_t)(exponent < 113 ? sign : sign | (exponent - 112) << 10 | (bits >> 13 & 0x3ff));
}

static uint16_t to_bf16(float x) {
    return (uint16_t)(float_bits(x) >> 16);
}

static void make_inputs(size_t max_length) {
    const size_t per_head = max_length * DIM;
    const size_t per_window = MAX_WINDOW * DIM;
    size_t h, i;

    in.max_length = max_length;
    in.keys_f32 = allocate(HEADS * per_head * 4);
    in.values = allocate(HEADS * per_head * 4);
    in.keys_f16 = allocate(HEADS * per_head * 2);
    in.keys_bf16 = allocate(HEADS * per_head * 2);
    in.queries_f32 = allocate(QUERY_HEADS * per_window * 4);
    in.queries_f16 = allocate(QUERY_HEADS * per_window * 2);
    in.queries_bf16 = allocate(QUERY_HEADS * per_window * 2);
    in.votes = allocate(max_length * 4);
    for (h = 0; h < HEADS; h++) {
        for (i = 0; i < per_head; i++) {
            const float x = uniform(1000 + h, i + 1);

            in.keys_f32[h * per_head + i] = x;
            in.values[h * per_head + i] = -x;
            in.keys_f16[h * per_head + i] = to_f16(x);
            in.keys_bf16[h * per_head + i] = to_bf16(x);
        }
    }
    for (h = 0; h < QUERY_HEADS; h++) {
        for (i = 0; i < per_window; i++) {
            const float x = uniform(2000 + h, i + 1);

            in.queries_f32[h * per_window + i] = x;
            in.queries_f16[h * per_window + i] = to_f16(x);
            in.queries_bf16[h * per_window + i] = to_bf16(x);
        }
    }
}

static snapkv_config make_config(size_t window) {
    snapkv_config config = snapkv_default_config();

    config.window = window;
    config.capacity = CAPACITY;
    config.kernel_size = KERNEL;
    return config;
}

static snapkv_layer make_layer(size_t n_query_heads, size_t n_kv_heads, size_t length, size_t dim,
                               snapkv_dtype dtype) {
    const size_t element = dtype == SNAPKV_F32 ? 4 : 2;
    snapkv_layer layer;

    memset(&layer, 0, sizeof layer);
    layer.n_query_heads = n_query_heads;
    layer.n_kv_heads = n_kv_heads;
    layer.length = length;
    layer.head_dim = dim;
    layer.keys.dtype = dtype;
    layer.keys.head_stride = in.max_length * DIM * element;
    layer.keys.row_stride = dim * element;
    layer.queries = layer.values = layer.keys;
    layer.queries.head_stride = MAX_WINDOW * DIM * element;
    if (dtype == SNAPKV_F32) {
        layer.keys.data = in.keys_f32;
        layer.queries.data = in.queries_f32;
    } else if (dtype == SNAPKV_F16) {
        layer.keys.data = in.keys_f16;
        layer.queries.data = in.queries_f16;
    } else {
        layer.keys.data = in.keys_bf16;
        layer.queries.data = in.queries_bf16;
    }
    layer.values.data = dtype == SNAPKV_F32 ? in.values : layer.keys.data;
    return layer;
}

/* One workspace for each of two threads, grown to the largest that was asked for. */
static size_t need_workspace(size_t bytes) {
    if (bytes == 0) {
        die("the library rejects a shape of the benchmark");
    }
    if (bytes > in.workspace_bytes) {
        free(in.workspace[0]);
        free(in.workspace[1]);
        in.workspace[0] = allocate(bytes);
        in.workspace[1] = allocate(bytes);
        in.workspace_bytes = bytes;
    }
    return bytes;
}

/* ---- votes ----------------------------------------------------------------------------------- */

typedef struct vote_job {
    const bench_path *path;
    snapkv_config config;
    snapkv_layer layer;
    size_t workspace_bytes;
    float *votes;
} vote_job;

static double run_vote(void *context) {
    const vote_job *job = (const vote_job *)context;
    size_t h;

    for (h = 0; h < job->layer.n_query_heads; h++) {
        must(job->path->vote(&job->config, &job->layer, h, job->votes, in.workspace[0],
                             job->workspace_bytes),
             "snapkv_vote");
    }
    return 0.0;
}

static vote_job make_vote_job(const bench_path *path, size_t window, size_t length, size_t dim,
                              snapkv_dtype dtype) {
    vote_job job;

    job.path = path;
    job.config = make_config(window);
    job.layer = make_layer(HEADS, HEADS, length, dim, dtype);
    job.workspace_bytes = need_workspace(path->workspace_size(&job.config, &job.layer));
    job.votes = in.votes;
    return job;
}

static double ns_per_key(double time, size_t length) {
    return time * 1e9 / (double)(HEADS * length);
}

static double vote_flops(const vote_job *job, double time) {
    return 2.0 * HEADS * (double)(job->config.window * job->layer.length * job->layer.head_dim) /
           time;
}

static const snapkv_dtype dtypes[3] = {SNAPKV_F32, SNAPKV_F16, SNAPKV_BF16};
static const char *const dtype_names[3] = {"f32", "f16", "bf16"};

static void vote_header(const bench_path *path) {
    printf("\n%s (%s), snapkv_vote of %d heads of distinct keys, median\n\n", path->label,
           path->compiler, HEADS);
    table("|  W |   D |      L | peak GFLOP/s "
          "| f32 ns/key | GFLOP/s | of peak | f16 ns/key | GFLOP/s | of peak "
          "| bf16 ns/key | GFLOP/s | of peak |");
}

/* One row of the table; returns the share of the peak in f32 and both ratios of the times. */
static void vote_row(const bench_path *path, size_t window, size_t length, size_t dim,
                     double *share, double ratio[3]) {
    peak_job peak = {path, 0.0};
    vote_job jobs[3];
    task tasks[4] = {{run_peak, &peak, 0.0}};
    size_t i;

    for (i = 0; i < 3; i++) {
        jobs[i] = make_vote_job(path, window, length, dim, dtypes[i]);
        tasks[1 + i].run = run_vote;
        tasks[1 + i].context = &jobs[i];
    }
    alternate(tasks, 4, 0.8);
    printf("| %2zu | %3zu | %6zu | %12.1f ", window, dim, length, peak.best * 1e-9);
    for (i = 0; i < 3; i++) {
        const double flops = vote_flops(&jobs[i], tasks[1 + i].median);

        printf("| %*.2f | %7.1f | %5.1f %% ", i == 2 ? 11 : 10,
               ns_per_key(tasks[1 + i].median, length), flops * 1e-9, 100.0 * flops / peak.best);
        ratio[i] = tasks[1 + i].median / tasks[1].median;
    }
    puts("|");
    fflush(stdout);
    *share = 100.0 * vote_flops(&jobs[0], tasks[1].median) / peak.best;
}

static double share_goal(const bench_path *path, size_t length) {
    if (strncmp(path->label, "avx512", 6) == 0) {
        return length == 4096 ? 75.0 : 65.0;
    }
    return length == 4096 ? 80.0 : 70.0;
}

static void section_vote(void) {
    static const size_t lengths[] = {1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
    size_t p, i, k;

    for (p = 0; p < n_paths; p++) {
        const bench_path *path = paths[p];

        vote_header(path);
        for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            const size_t length = lengths[i];
            double share, ratio[3];

            if (length > in.max_length || (!is_fast(path) && length > 8192)) {
                continue;
            }
            vote_row(path, WINDOW, length, DIM, &share, ratio);
            if (!is_fast(path) || (length != 4096 && length != 32768)) {
                continue;
            }
            set_goal(1, share_goal(path, length), share, " %", "%s: votes of the FMA peak, L %zu",
                     path->label, length);
            for (k = 1; k < 3; k++) {
                set_goal(-1, 1.1, ratio[k], "x", "%s: %s time to f32 time, L %zu", path->label,
                         dtype_names[k], length);
            }
        }
    }
}

static void section_shapes(void) {
    static const size_t shapes[][2] = {{8, 128}, {64, 128}, {8, 64}, {32, 64}, {64, 64}};
    static const size_t lengths[] = {4096, 32768, 131072};
    size_t p, s, i;

    for (p = 0; p < n_paths; p++) {
        vote_header(paths[p]);
        for (s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
                double share, ratio[3];

                if (lengths[i] <= in.max_length && (is_fast(paths[p]) || i == 0)) {
                    vote_row(paths[p], shapes[s][0], lengths[i], shapes[s][1], &share, ratio);
                }
            }
        }
    }
}

static void section_window(void) {
    static const size_t lengths[] = {4096, 32768};
    size_t p, i;

    puts("\nTime per key with W 8, to that with W 32 (D 128, f32)\n");
    table("| path           |      L | W 8 ns/key | W 32 ns/key | ratio |");
    for (p = 0; p < n_paths; p++) {
        for (i = 0; i < 2 && is_fast(paths[p]); i++) {
            const size_t length = lengths[i];
            vote_job small = make_vote_job(paths[p], 8, length, DIM, SNAPKV_F32);
            vote_job large = make_vote_job(paths[p], 32, length, DIM, SNAPKV_F32);
            task tasks[2] = {{run_vote, &small, 0.0}, {run_vote, &large, 0.0}};

            alternate(tasks, 2, 0.5);
            printf("| %-14s | %6zu | %10.2f | %11.2f | %5.2f |\n", paths[p]->label, length,
                   ns_per_key(tasks[0].median, length), ns_per_key(tasks[1].median, length),
                   tasks[0].median / tasks[1].median);
            if (strncmp(paths[p]->label, "avx2", 4) == 0) {
                set_goal(-1, 0.5, tasks[0].median / tasks[1].median, "x",
                         "%s: W 8 time per key to W 32, L %zu", paths[p]->label, length);
            }
        }
    }
}

static void section_workspace(void) {
    static const size_t lengths[] = {4096, 32768, 131072};
    size_t p, i;

    puts("\nThe smallest workspace against the fastest (W 32, D 128, f32, votes of 8 heads; same "
         "bits)\n");
    table("| path           |      L |     min bytes |    full bytes |   min ms |  full ms | ratio "
          "|");
    for (p = 0; p < n_paths; p++) {
        for (i = 0; i < 3 && is_fast(paths[p]); i++) {
            vote_job full, small;
            task tasks[2] = {{run_vote, NULL, 0.0}, {run_vote, NULL, 0.0}};
            float *other;

            if (lengths[i] > in.max_length) {
                continue;
            }
            full = make_vote_job(paths[p], WINDOW, lengths[i], DIM, SNAPKV_F32);
            small = full;
            small.workspace_bytes = paths[p]->workspace_min(&full.config, &full.layer);
            small.votes = other = allocate(lengths[i] * sizeof(float));
            tasks[0].context = &small;
            tasks[1].context = &full;
            alternate(tasks, 2, 0.8);
            if (memcmp(full.votes, small.votes, (lengths[i] - WINDOW) * sizeof(float)) != 0) {
                die("two workspace sizes give different votes");
            }
            free(other);
            printf("| %-14s | %6zu | %13zu | %13zu | %8.2f | %8.2f | %5.2f |\n", paths[p]->label,
                   lengths[i], small.workspace_bytes, full.workspace_bytes, tasks[0].median * 1e3,
                   tasks[1].median * 1e3, tasks[0].median / tasks[1].median);
            fflush(stdout);
            if (lengths[i] == 131072) {
                set_goal(-1, 4.0, (double)small.workspace_bytes / (1024.0 * 1024.0), " MiB",
                         "%s: smallest workspace, L 131072", paths[p]->label);
                set_goal(-1, 2.2, tasks[0].median / tasks[1].median, "x",
                         "%s: its time to the fastest, L 131072", paths[p]->label);
            }
        }
    }
}

static void section_compilers(void) {
    static const size_t lengths[] = {4096, 32768};
    size_t p, q, i;

    puts("\nThe same path by two compilers (W 32, D 128, f32, votes of 8 heads)\n");
    table("| path           |      L |       ms | of peak | other          |       ms | of peak |");
    for (p = 0; p < n_paths; p++) {
        for (q = 0; q < n_others; q++) {
            if (strcmp(paths[p]->isa, others[q]->isa) != 0) {
                continue;
            }
            for (i = 0; i < (is_fast(paths[p]) ? 2u : 1u); i++) {
                peak_job peak = {paths[p], 0.0};
                vote_job one = make_vote_job(paths[p], WINDOW, lengths[i], DIM, SNAPKV_F32);
                vote_job two = make_vote_job(others[q], WINDOW, lengths[i], DIM, SNAPKV_F32);
                task tasks[3] = {
                    {run_peak, &peak, 0.0}, {run_vote, &one, 0.0}, {run_vote, &two, 0.0}};
                double share[2];

                alternate(tasks, 3, 0.8);
                share[0] = 100.0 * vote_flops(&one, tasks[1].median) / peak.best;
                share[1] = 100.0 * vote_flops(&two, tasks[2].median) / peak.best;
                printf("| %-14s | %6zu | %8.2f | %5.1f %% | %-14s | %8.2f | %5.1f %% |\n",
                       paths[p]->label, lengths[i], tasks[1].median * 1e3, share[0],
                       others[q]->label, tasks[2].median * 1e3, share[1]);
                fflush(stdout);
                if (is_fast(paths[p])) {
                    set_goal(1, 0.9 * share_goal(paths[p], lengths[i]), share[1], " %",
                             "%s: votes of the FMA peak, L %zu", others[q]->label, lengths[i]);
                }
            }
        }
    }
    if (n_others == 0) {
        puts("SKIP: only one compiler is installed");
        skip_goal("the other compiler within 10 %", "missing");
    }
}

/* ---- top-k ----------------------------------------------------------------------------------- */

typedef struct top_k_job {
    const bench_path *path;
    const float *scores;
    size_t n, k;
    float *copy;        /* [n] */
    int32_t *positions; /* [n] */
    int ascending;
} top_k_job;

static double run_top_k(void *context) {
    const top_k_job *job = (const top_k_job *)context;

    must(job->path->top_k(job->scores, job->n, job->k, SNAPKV_BY_POSITION, job->positions),
         "snapkv_top_k");
    return 0.0;
}

static double run_nth_value(void *context) {
    const top_k_job *job = (const top_k_job *)context;

    bench_nth_value(job->scores, job->n, job->k, job->copy);
    return 0.0;
}

static double run_nth_positions(void *context) {
    const top_k_job *job = (const top_k_job *)context;

    bench_nth_positions(job->scores, job->n, job->k, job->positions, job->ascending);
    return 0.0;
}

static void measure_top_k(void) {
    const size_t k = 2048;
    const size_t n = in.max_length - WINDOW < 131072 ? in.max_length - WINDOW : 131072;
    float *scores = allocate(n * sizeof(float));
    float *copy = allocate(n * sizeof(float));
    int32_t *ours = allocate(n * sizeof(int32_t));
    int32_t *theirs = allocate(n * sizeof(int32_t));
    vote_job vote = make_vote_job(paths[n_paths - 1], WINDOW, n + WINDOW, DIM, SNAPKV_F32);
    size_t p, i;
    int input;

    printf("\nsnapkv_top_k against std::nth_element (n %zu, k %zu)\n\n", n, k);
    puts(
        "The peer that does the same work selects among positions (higher score, then lower "
        "position)\nand sorts the k it found; without the sort its list has no order; on a copy of "
        "the values it\nfinds the threshold only.\n");
    table("| scores         | path           | snapkv_top_k ms | positions, sorted | ratio | "
          "positions | ratio | values only | ratio |");
    for (input = 0; input < 2; input++) {
        if (input == 0) {
            must(vote.path->vote(&vote.config, &vote.layer, 0, in.votes, in.workspace[0],
                                 vote.workspace_bytes),
                 "snapkv_vote");
            must(vote.path->pool(in.votes, n, KERNEL, SNAPKV_POOL_AVG, scores), "snapkv_pool");
        } else {
            for (i = 0; i < n; i++) {
                scores[i] = uniform(77, i + 1);
            }
        }
        for (p = 0; p < n_paths; p++) {
            top_k_job jobs[4];
            task tasks[4] = {{run_top_k, NULL, 0.0},
                             {run_nth_positions, NULL, 0.0},
                             {run_nth_positions, NULL, 0.0},
                             {run_nth_value, NULL, 0.0}};

            for (i = 0; i < 4; i++) {
                jobs[i].path = paths[p];
                jobs[i].scores = scores;
                jobs[i].n = n;
                jobs[i].k = k;
                jobs[i].copy = copy;
                jobs[i].positions = i == 0 ? ours : theirs;
                jobs[i].ascending = i == 1;
                tasks[i].context = &jobs[i];
            }
            run_top_k(&jobs[0]);
            run_nth_positions(&jobs[1]);
            if (memcmp(ours, theirs, k * sizeof(int32_t)) != 0) {
                die("snapkv_top_k and std::nth_element choose different positions");
            }
            alternate(tasks, 4, 0.5);
            printf("| %-14s | %-14s | %15.3f | %17.3f | %5.2f | %9.3f | %5.2f | %11.3f | %5.2f |\n",
                   input == 0 ? "pooled votes" : "uniform", paths[p]->label, tasks[0].median * 1e3,
                   tasks[1].median * 1e3, tasks[1].median / tasks[0].median, tasks[2].median * 1e3,
                   tasks[2].median / tasks[0].median, tasks[3].median * 1e3,
                   tasks[3].median / tasks[0].median);
            fflush(stdout);
            if (is_fast(paths[p])) {
                set_goal(1, 5.0, tasks[1].median / tasks[0].median, "x",
                         "%s: top-k to std::nth_element, positions, %s", paths[p]->label,
                         input == 0 ? "votes" : "uniform");
                set_goal(1, 5.0, tasks[3].median / tasks[0].median, "x",
                         "%s: top-k to std::nth_element, values only, %s", paths[p]->label,
                         input == 0 ? "votes" : "uniform");
            }
        }
    }
    free(scores);
    free(copy);
    free(ours);
    free(theirs);
}

static void section_top_k(void) {
    if (!BENCH_HAS_CXX) {
        puts("\nSKIP top-k: no C++ compiler for std::nth_element");
        skip_goal("top-k to std::nth_element", "no C++");
    } else {
        measure_top_k();
    }
}

/* ---- one budget, and the largest vote -------------------------------------------------------- */

typedef struct budget_job {
    const bench_path *path;
    const snapkv_list *lists;
    size_t n_lists, budget, least;
    size_t *counts;
    float total; /* of the sums, so that they are not left out */
} budget_job;

static double run_allocate(void *context) {
    const budget_job *job = (const budget_job *)context;

    must(job->path->allocate(job->lists, job->n_lists, job->budget, job->least, job->counts),
         "snapkv_allocate");
    return 0.0;
}

static double run_sum(void *context) {
    budget_job *job = (budget_job *)context;
    size_t i;

    for (i = 0; i < job->n_lists; i++) {
        job->total += job->path->sum(job->lists[i].scores, job->lists[i].n);
    }
    return 0.0;
}

/* Scores of 0 .. 1: uniform, or over 16 powers of two, each list with a range of its own. */
static void fill_lists(float *scores, size_t n_lists, size_t n, int input) {
    size_t i;

    for (i = 0; i < n_lists * n; i++) {
        const float u = (uniform(99, i + 1) + 2.0f) * 0.25f;

        scores[i] = input == 0 ? u : exp2f(-16.0f * u - (float)(i / n % 4));
    }
}

static void measure_budget(const bench_path *path, budget_job *job, size_t n, const char *name) {
    static const size_t kept[] = {1024, 64};
    size_t i;

    for (i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        task tasks[2] = {{run_sum, NULL, 0.0}, {run_allocate, NULL, 0.0}};

        tasks[0].context = tasks[1].context = job;
        job->path = path;
        job->budget = job->n_lists * kept[i];
        job->least = kept[i] / 5;
        alternate(tasks, 2, 2.0);
        printf("| %-14s | %-7s | %5zu | %6zu | %4zu | %6.2f | %11.2f | %5.2f |\n", path->label,
               name, job->n_lists, n, kept[i], tasks[0].median * 1e3, tasks[1].median * 1e3,
               tasks[1].median / tasks[0].median);
        fflush(stdout);
        if (is_fast(path)) {
            set_goal(-1, 12.0, tasks[1].median / tasks[0].median, "x",
                     "%s: budget of lists to their sum, %s, %zu each", path->label, name, kept[i]);
        }
    }
}

static void section_budget(void) {
    const size_t n_lists = quick ? 64 : 256, n = quick ? 32768 : 131072;
    float *scores = allocate(n_lists * n * sizeof *scores);
    snapkv_list *lists = allocate(n_lists * sizeof *lists);
    budget_job job = {NULL, lists, n_lists, 0, 0, allocate(n_lists * sizeof(size_t)), 0.0f};
    size_t p, i;
    int input;

    puts("\nsnapkv_allocate, one budget for many lists, to the sum of all scores\n");
    table("| path           | scores  | lists |      n | each | sum ms | allocate ms | ratio |");
    for (i = 0; i < n_lists; i++) {
        lists[i].scores = scores + i * n;
        lists[i].n = n;
    }
    for (input = 0; input < 2; input++) {
        fill_lists(scores, n_lists, n, input);
        for (p = 0; p < n_paths; p++) {
            measure_budget(paths[p], &job, n, input == 0 ? "uniform" : "votes");
        }
    }
    if (job.total == 0.0f) {
        die("the sums are zero");
    }
    free(scores);
    free(lists);
    free(job.counts);
}

static void section_voting(void) {
    static const size_t lengths[] = {4096, 32768};
    size_t p, i;

    puts("\nThe largest vote, to the sum of the votes (snapkv_vote, W 32, D 128, f32)\n");
    table("| path           |      L | sum ms | largest ms | ratio |");
    for (p = 0; p < n_paths; p++) {
        for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            vote_job jobs[2];
            task tasks[2] = {{run_vote, &jobs[0], 0.0}, {run_vote, &jobs[1], 0.0}};

            if (!is_fast(paths[p]) && lengths[i] > 8192) {
                continue;
            }
            jobs[0] = jobs[1] = make_vote_job(paths[p], WINDOW, lengths[i], DIM, SNAPKV_F32);
            jobs[1].config.voting = SNAPKV_VOTE_MAX;
            jobs[1].workspace_bytes =
                need_workspace(paths[p]->workspace_size(&jobs[1].config, &jobs[1].layer));
            alternate(tasks, 2, 1.0);
            printf("| %-14s | %6zu | %6.2f | %10.2f | %5.3f |\n", paths[p]->label, lengths[i],
                   tasks[0].median * 1e3, tasks[1].median * 1e3,
                   tasks[1].median / tasks[0].median);
            fflush(stdout);
            if (is_fast(paths[p])) {
                set_goal(-1, 1.03, tasks[1].median / tasks[0].median, "x",
                         "%s: largest vote to the sum, L %zu", paths[p]->label, lengths[i]);
            }
        }
    }
}

/* ---- gathers --------------------------------------------------------------------------------- */

typedef struct gather_job {
    const bench_path *path;
    const int32_t *kept; /* every second row or column */
    size_t n_kept;
    char *src, *dst;
    size_t element; /* columns: bytes of an element; there are DIM rows of 2 n_kept columns */
} gather_job;

static double run_gather_rows(void *context) {
    const gather_job *job = (const gather_job *)context;

    must(job->path->gather_rows(job->kept, job->n_kept, job->src, ROW, 2 * job->n_kept, ROW,
                                job->dst, ROW),
         "snapkv_gather_rows");
    return 0.0;
}

static double run_gather_columns(void *context) {
    const gather_job *job = (const gather_job *)context;
    const size_t stride = 2 * job->n_kept * job->element;

    must(job->path->gather_columns(job->kept, job->n_kept, job->src, stride, 2 * job->n_kept,
                                   job->element, DIM, job->dst,
                                   job->dst == job->src ? stride : stride / 2),
         "snapkv_gather_columns");
    return 0.0;
}

/* The bytes of the destination in one piece: what no gather can beat. */
static double run_memcpy(void *context) {
    const gather_job *job = (const gather_job *)context;

    memcpy(job->dst, job->src, job->n_kept * (job->element ? DIM * job->element : ROW));
    return 0.0;
}

/* The same rows, one memcpy each. */
static double run_memcpy_rows(void *context) {
    const gather_job *job = (const gather_job *)context;
    size_t i;

    for (i = 0; i < job->n_kept; i++) {
        memcpy(job->dst + i * ROW, job->src + (size_t)job->kept[i] * ROW, ROW);
    }
    return 0.0;
}

static void section_gather(void) {
    static const size_t counts[] = {1024, 65536};
    const size_t most = 65536;
    int32_t *kept = allocate(most * sizeof(int32_t));
    char *src = allocate(2 * most * ROW);
    char *dst = allocate(2 * most * ROW);
    size_t p, c, i;
    int element;

    for (i = 0; i < most; i++) {
        kept[i] = (int32_t)(2 * i);
    }
    for (i = 0; i < 2 * most * ROW; i++) {
        src[i] = (char)(i * 2654435761u >> 13);
    }
    printf(
        "\nsnapkv_gather_rows of every second %d-byte row; the speed counts the bytes copied\n\n",
        ROW);
    puts("Ratios of speed: to one memcpy of as many bytes in one piece, and to a memcpy of each of "
         "the\nsame rows.\n");
    table("| path           | rows kept |  GB/s | of memcpy | of memcpy by row | in place GB/s | "
          "of memcpy |");
    for (p = 0; p < n_paths; p++) {
        for (c = 0; c < 2; c++) {
            const double bytes = (double)(counts[c] * ROW);
            gather_job job = {paths[p], kept, counts[c], src, dst, 0};
            gather_job in_place = job;
            task tasks[4] = {{run_gather_rows, &job, 0.0},
                             {run_memcpy, &job, 0.0},
                             {run_memcpy_rows, &job, 0.0},
                             {run_gather_rows, &in_place, 0.0}};

            in_place.src = in_place.dst = allocate(2 * counts[c] * ROW);
            memcpy(in_place.src, src, 2 * counts[c] * ROW);
            run_gather_rows(&job);
            run_gather_rows(&in_place);
            for (i = 0; i < counts[c]; i++) {
                if (memcmp(dst + i * ROW, src + 2 * i * ROW, ROW) != 0) {
                    die("snapkv_gather_rows moved the wrong bytes");
                }
            }
            if (memcmp(dst, in_place.dst, counts[c] * ROW) != 0) {
                die("snapkv_gather_rows in place moved the wrong bytes");
            }
            alternate(tasks, 4, 0.3);
            free(in_place.src);
            printf("| %-14s | %9zu | %5.1f | %7.1f %% | %14.1f %% | %13.1f | %7.1f %% |\n",
                   paths[p]->label, counts[c], bytes / tasks[0].median * 1e-9,
                   100.0 * tasks[1].median / tasks[0].median,
                   100.0 * tasks[2].median / tasks[0].median, bytes / tasks[3].median * 1e-9,
                   100.0 * tasks[1].median / tasks[3].median);
            fflush(stdout);
            if (is_fast(paths[p])) {
                set_goal(1, 80.0, 100.0 * tasks[1].median / tasks[0].median, " %",
                         "%s: row gather to one memcpy, %zu rows", paths[p]->label, counts[c]);
                set_goal(1, 80.0, 100.0 * tasks[2].median / tasks[0].median, " %",
                         "%s: row gather to memcpy by row, %zu rows", paths[p]->label, counts[c]);
            }
        }
    }

    printf("\nsnapkv_gather_columns of every second column of %d rows (a transposed V)\n\n", DIM);
    table("| path           | element | columns kept |  GB/s | of memcpy | in place GB/s | of "
          "memcpy |");
    for (p = 0; p < n_paths; p++) {
        for (element = 1; element <= 4; element *= 2) {
            const size_t n = 1024;
            const double bytes = (double)(n * DIM * (size_t)element);
            gather_job job = {paths[p], kept, n, src, dst, (size_t)element};
            gather_job in_place = job;
            task tasks[3] = {{run_gather_columns, &job, 0.0},
                             {run_memcpy, &job, 0.0},
                             {run_gather_columns, &in_place, 0.0}};

            in_place.src = in_place.dst = allocate(2 * n * DIM * (size_t)element);
            alternate(tasks, 3, 0.2);
            free(in_place.src);
            printf("| %-14s | %7d | %12zu | %5.1f | %7.1f %% | %13.1f | %7.1f %% |\n",
                   paths[p]->label, element, n, bytes / tasks[0].median * 1e-9,
                   100.0 * tasks[1].median / tasks[0].median, bytes / tasks[2].median * 1e-9,
                   100.0 * tasks[1].median / tasks[2].median);
            fflush(stdout);
        }
    }
    free(kept);
    free(src);
    free(dst);
}

/* ---- the peers of a whole layer -------------------------------------------------------------- */

/* official.py as a child that answers one line for each line it is sent. */
typedef struct official {
    pid_t child;
    FILE *to, *from;
    char name[256];
} official;

static official peer;

static int ask_official(char *answer, size_t size, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vfprintf(peer.to, format, arguments);
    va_end(arguments);
    fflush(peer.to);
    return fgets(answer, (int)size, peer.from) != NULL;
}

static int start_official(void) {
    static const char *const pythons[] = {"python3", "/usr/bin/python3"};
    char line[256] = "no answer\n";
    size_t i;

    signal(SIGPIPE, SIG_IGN);
    for (i = 0; i < sizeof pythons / sizeof pythons[0]; i++) {
        int request[2], reply[2];

        if (pipe(request) != 0 || pipe(reply) != 0) {
            die("no pipe");
        }
        fflush(stdout);
        peer.child = fork();
        if (peer.child == 0) {
            dup2(request[0], 0);
            dup2(reply[1], 1);
            close(request[1]);
            close(reply[0]);
            setenv("OPENBLAS_NUM_THREADS", "1", 1);
            setenv("OMP_NUM_THREADS", "1", 1);
            setenv("MKL_NUM_THREADS", "1", 1);
            execlp(pythons[i], pythons[i], "tests/bench/official.py", "--serve",
                   cpu_time ? "--cpu-time" : (char *)NULL, (char *)NULL);
            _exit(127);
        }
        close(request[0]);
        close(reply[1]);
        peer.to = fdopen(request[1], "w");
        peer.from = fdopen(reply[0], "r");
        if (fgets(line, sizeof line, peer.from) && strncmp(line, "ready ", 6) == 0) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(peer.name, sizeof peer.name, "%s", line + 6);
            return 1;
        }
        fclose(peer.to);
        fclose(peer.from);
        waitpid(peer.child, NULL, 0);
    }
    printf("%s%s", strncmp(line, "SKIP", 4) == 0 ? "" : "SKIP PyTorch: ", line);
    return 0;
}

static void stop_official(void) {
    fclose(peer.to);
    fclose(peer.from);
    waitpid(peer.child, NULL, 0);
}

static double run_official(void *context) {
    char line[64];

    (void)context;
    if (!ask_official(line, sizeof line, "run\n")) {
        die("official.py ended");
    }
    return strtod(line, NULL);
}

typedef struct sgemm_job {
    size_t length;
    int keys_are_rows;
    float *logits; /* [WINDOW][length] */
} sgemm_job;

static double run_sgemm(void *context) {
    const sgemm_job *job = (const sgemm_job *)context;
    size_t h;

    for (h = 0; h < HEADS; h++) {
        bench_sgemm(job->keys_are_rows, WINDOW, job->length, DIM,
                    in.queries_f32 + h * MAX_WINDOW * DIM, in.keys_f32 + h * in.max_length * DIM,
                    job->logits);
    }
    return 0.0;
}

/* ---- a whole layer --------------------------------------------------------------------------- */

typedef struct compress_job {
    const bench_path *path;
    snapkv_config config;
    snapkv_layer layer;
    size_t workspace_bytes;
    size_t n_threads;
    float *keys_out, *values_out; /* [n_kv_heads][CAPACITY][DIM] */
    int32_t *kept;                /* [n_kv_heads][CAPACITY] */
} compress_job;

/* Thread t of n takes the sets t, t + n, ... */
static void compress_sets(const compress_job *job, size_t thread) {
    snapkv_rows_out keys_out = {0}, values_out;
    size_t set;

    keys_out.data = job->keys_out;
    keys_out.head_stride = CAPACITY * DIM * sizeof(float);
    keys_out.row_stride = DIM * sizeof(float);
    values_out = keys_out;
    values_out.data = job->values_out;
    for (set = thread; set < job->layer.n_kv_heads; set += job->n_threads) {
        must(job->path->compress(&job->config, &job->layer, set, job->kept + set * CAPACITY,
                                 &keys_out, &values_out, NULL, in.workspace[thread],
                                 job->workspace_bytes),
             "snapkv_compress");
    }
}

static void *second_thread(void *context) {
    compress_sets((const compress_job *)context, 1);
    return NULL;
}

static double run_compress(void *context) {
    compress_job *job = (compress_job *)context;
    pthread_t thread;

    if (job->n_threads == 1) {
        compress_sets(job, 0);
        return 0.0;
    }
    if (pthread_create(&thread, NULL, second_thread, job) != 0) {
        die("no thread");
    }
    compress_sets(job, 0);
    pthread_join(thread, NULL);
    return 0.0;
}

static compress_job make_compress_job(const bench_path *path, size_t n_query_heads,
                                      size_t n_kv_heads, size_t length, size_t n_threads) {
    compress_job job;

    job.path = path;
    job.config = make_config(WINDOW);
    job.layer = make_layer(n_query_heads, n_kv_heads, length, DIM, SNAPKV_F32);
    job.workspace_bytes = need_workspace(path->workspace_size(&job.config, &job.layer));
    job.n_threads = n_threads;
    job.keys_out = allocate(n_kv_heads * CAPACITY * DIM * sizeof(float));
    job.values_out = allocate(n_kv_heads * CAPACITY * DIM * sizeof(float));
    job.kept = allocate(n_kv_heads * CAPACITY * sizeof(int32_t));
    return job;
}

static void free_compress_job(compress_job *job) {
    free(job->keys_out);
    free(job->values_out);
    free(job->kept);
}

/* The share of the positions that PyTorch keeps too; near ties may differ by rounding. */
static double common_positions(const compress_job *job) {
    const size_t n = CAPACITY - WINDOW;
    size_t common = 0;
    size_t h, i;

    for (h = 0; h < HEADS; h++) {
        static char line[CAPACITY * 8];
        char *next = line;

        if (!ask_official(line, sizeof line, "kept %zu\n", h)) {
            die("official.py ended");
        }
        for (i = 0; i < n; i++) {
            const int32_t position = (int32_t)strtol(next, &next, 10);
            size_t low = 0, high = n;

            while (low < high) {
                const size_t middle = (low + high) / 2;

                if (job->kept[h * CAPACITY + middle] < position) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            common += low < n && job->kept[h * CAPACITY + low] == position;
        }
    }
    return (double)common / (double)(HEADS * n);
}

static void print_or_dash(const char *format, int width, double x) {
    if (x > 0.0) {
        printf(format, x);
    } else {
        printf("| %*s ", width, "-");
    }
}

/* One row of the table. previous: the time of the row above, 0 where there is none; returns this
 * row's. */
static double compress_row(const bench_path *path, size_t length, int with_official,
                           double previous) {
    peak_job peak = {path, 0.0};
    compress_job job = make_compress_job(path, HEADS, HEADS, length, 1);
    sgemm_job products[2];
    task tasks[5] = {{run_compress, NULL, 0.0}, {run_peak, NULL, 0.0}};
    double time, sgemm = 0.0, slow = 0.0, common = 0.0;
    size_t n = 2, k;

    tasks[0].context = &job;
    tasks[1].context = &peak;
    for (k = 0; k < 2; k++) {
        products[k].length = length;
        products[k].keys_are_rows = (int)k;
        products[k].logits = allocate(WINDOW * length * sizeof(float));
        if (BENCH_HAS_OPENBLAS) {
            tasks[n].run = run_sgemm;
            tasks[n++].context = &products[k];
        }
    }
    if (with_official) {
        char line[64];

        if (!ask_official(line, sizeof line, "shape %d %zu %d %d %d %d\n", HEADS, length, DIM,
                          WINDOW, CAPACITY, KERNEL)) {
            die("official.py ended");
        }
        tasks[n].run = run_official;
        tasks[n++].context = NULL;
    }
    alternate(tasks, n, 1.0);
    time = tasks[0].median;
    if (BENCH_HAS_OPENBLAS) {
        sgemm = fmin(tasks[2].median, tasks[3].median);
    }
    if (with_official) {
        slow = tasks[n - 1].median;
        common = common_positions(&job);
    }
    printf("| %-14s | %6zu | %8.2f | %6.2f ", path->label, length, time * 1e3,
           ns_per_key(time, length));
    print_or_dash("| %8.2fx ", 9, previous > 0.0 ? time / previous : 0.0);
    printf("| %10.2f ", 2e3 * HEADS * (double)(WINDOW * length * DIM) / peak.best);
    print_or_dash("| %9.2f ", 9, sgemm * 1e3);
    print_or_dash("| %5.2f ", 5, sgemm / time);
    print_or_dash("| %11.2f ", 11, slow * 1e3);
    print_or_dash("| %5.2f ", 5, slow / time);
    print_or_dash("| %12.2f %% ", 14, common * 100.0);
    puts("|");
    fflush(stdout);
    if (is_fast(path) && (length == 4096 || length == 16384 || length == 65536)) {
        if (slow > 0.0) {
            set_goal(1, 5.0, slow / time, "x", "%s: compress to the official sequence, L %zu",
                     path->label, length);
        }
        if (sgemm > 0.0) {
            set_goal(1, 1.0, sgemm / time, "x", "%s: compress to the bare sgemm, L %zu",
                     path->label, length);
        }
    }
    free_compress_job(&job);
    free(products[0].logits);
    free(products[1].logits);
    return time;
}

static void section_compress(void) {
    static const size_t lengths[] = {1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
    const int has_official = start_official();
    size_t p, i;

    printf("\nsnapkv_compress of a layer, from Q, K and V to the gathered cache (%d heads, C %d, "
           "kernel %d,\nW %d, D %d, f32, one thread), against\n",
           HEADS, CAPACITY, KERNEL, WINDOW, DIM);
    puts("- the votes' multiply-adds alone, at the peak of the path");
    printf("- sgemm, the bare product of Q and K^T, the faster of both layouts of its result: %s\n",
           bench_sgemm_name());
    printf("- the official sequence of operations: %s\n\n", has_official ? peer.name : "SKIP");
    table("| path           |      L |       ms | ns/key | L doubled | at peak ms |  sgemm ms | "
          "ratio | "
          "official ms | ratio | same positions |");
    for (p = 0; p < n_paths; p++) {
        double previous = 0.0;

        for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            const size_t length = lengths[i];

            if (length <= in.max_length && (is_fast(paths[p]) || length <= 8192)) {
                previous = compress_row(paths[p], length,
                                        has_official &&
                                            (length == 4096 || length == 16384 || length == 65536),
                                        previous);
            }
        }
    }
    if (has_official) {
        stop_official();
    } else {
        skip_goal("compress to the official sequence", "no PyTorch");
    }
    if (!BENCH_HAS_OPENBLAS) {
        skip_goal("compress to the bare sgemm", "no BLAS");
    }

    puts("\nGrouped heads (D 128, W 32, f32, C 1024, one list per K/V head): 32 query heads on 8 "
         "K/V heads,\nto 8 on 8: four times the votes, the same keys\n");
    table("| path           |      L | 8 on 8 ms | 32 on 8 ms | ratio |");
    for (p = 0; p < n_paths; p++) {
        for (i = 2; i < 6 && is_fast(paths[p]); i += 3) { /* 4096, 32768 */
            compress_job one, four;
            task tasks[2] = {{run_compress, NULL, 0.0}, {run_compress, NULL, 0.0}};

            one = make_compress_job(paths[p], HEADS, HEADS, lengths[i], 1);
            four = make_compress_job(paths[p], QUERY_HEADS, HEADS, lengths[i], 1);
            tasks[0].context = &one;
            tasks[1].context = &four;
            alternate(tasks, 2, 0.5);
            printf("| %-14s | %6zu | %9.2f | %10.2f | %5.2f |\n", paths[p]->label, lengths[i],
                   tasks[0].median * 1e3, tasks[1].median * 1e3, tasks[1].median / tasks[0].median);
            fflush(stdout);
            free_compress_job(&one);
            free_compress_job(&four);
        }
    }
}

static void section_threads(void) {
    static const struct { size_t heads, length; } shapes[] = {{2, 32768}, {8, 4096}, {8, 32768}};
    size_t p, i;

    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
        puts("\nSKIP threads: one processor");
        skip_goal("two threads on two heads", "one processor");
        return;
    }
    puts(
        "\nsnapkv_compress on two threads, a workspace each (C 1024, W 32, D 128, f32; wall clock, "
        "with the\nstart of a thread)\n");
    table("| path           | heads |      L | 1 thread ms | 2 threads ms | speed-up |");
    for (p = 0; p < n_paths; p++) {
        for (i = 0; i < 3 && is_fast(paths[p]); i++) {
            const int was = cpu_time;
            compress_job jobs[2];
            task tasks[2] = {{run_compress, &jobs[0], 0.0}, {run_compress, &jobs[1], 0.0}};
            size_t k;

            for (k = 0; k < 2; k++) {
                jobs[k] = make_compress_job(paths[p], shapes[i].heads, shapes[i].heads,
                                            shapes[i].length, k + 1);
            }
            cpu_time = 0;
            alternate(tasks, 2, 0.5);
            cpu_time = was;
            printf("| %-14s | %5zu | %6zu | %11.2f | %12.2f | %7.2fx |\n", paths[p]->label,
                   shapes[i].heads, shapes[i].length, tasks[0].median * 1e3, tasks[1].median * 1e3,
                   tasks[0].median / tasks[1].median);
            fflush(stdout);
            if (shapes[i].heads == 2) {
                set_goal(1, 1.8, tasks[0].median / tasks[1].median, "x",
                         "%s: two threads on two heads, L %zu", paths[p]->label, shapes[i].length);
            }
            free_compress_job(&jobs[0]);
            free_compress_job(&jobs[1]);
        }
    }
}

/* ---- stack ----------------------------------------------------------------------------------- */

enum { STACK_BYTES = 512 * 1024, PAINT = 0xA5 };

static void decode_f32(void *context, const void *row, size_t head, size_t position,
                       float *out, size_t head_dim) {
    (void)context;
    (void)head;
    (void)position;
    memcpy(out, row, head_dim * sizeof(float));
}

enum { STACK_LENGTH = 16600 }; /* long enough for top-k to look at a sample first */

/* Calls everything with the options that need most: custom rows, D 576, W 130, a group of heads. */
static void *call_everything(void *context) {
    const bench_path *path = (const bench_path *)context;
    const size_t length = STACK_LENGTH;
    snapkv_config config = snapkv_default_config();
    snapkv_layer layer = make_layer(4, 1, length, 576, SNAPKV_F32);
    static float votes[STACK_LENGTH], scores[STACK_LENGTH], slopes[4] = {0.5f, 0.25f, 0.125f, 0.0625f};
    static float mass, out[2][256 * 576];
    static int32_t kept[256];
    snapkv_rows_out keys_out = {NULL, 256 * 576 * 4, 576 * 4, NULL, 0, 0};
    snapkv_rows_out values_out = keys_out;

    config.window = 130;
    config.capacity = 256;
    layer.queries.data = in.values;
    layer.queries.head_stride = 130 * 576 * 4;
    layer.queries.dtype = layer.keys.dtype = SNAPKV_CUSTOM;
    layer.queries.decode = layer.keys.decode = decode_f32;
    layer.queries.row_bytes = layer.keys.row_bytes = 576 * 4;
    layer.softcap = 50.0f;
    layer.span = 700;
    layer.alibi_slopes = layer.sink_logits = slopes;
    keys_out.data = out[0];
    values_out.data = out[1];
    must(path->vote(&config, &layer, 3, votes, in.workspace[0], in.workspace_bytes), "vote");
    must(path->pool(votes, length - 130, 5, SNAPKV_POOL_MAX, scores), "pool");
    must(path->top_k(scores, length - 130, 100, SNAPKV_BY_SCORE, kept), "top_k");
    must(path->select(&config, &layer, 0, kept, scores, NULL, in.workspace[0], in.workspace_bytes),
         "select");
    must(path->retained_mass(&config, &layer, 0, in.keys_f32, length, kept, 256, &mass,
                             in.workspace[0], in.workspace_bytes),
         "retained_mass");
    must(path->compress(&config, &layer, 0, kept, &keys_out, &values_out, NULL, in.workspace[0],
                        in.workspace_bytes),
         "compress");
    return NULL;
}

static void *call_nothing(void *context) {
    return context;
}

/* Bytes of a painted stack that a thread running `function` overwrote. */
static size_t stack_used(void *(*function)(void *), const bench_path *path) {
    unsigned char *stack = allocate(STACK_BYTES);
    pthread_attr_t attributes;
    pthread_t thread;
    size_t untouched = 0;

    memset(stack, PAINT, STACK_BYTES);
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, stack, STACK_BYTES) != 0 ||
        pthread_create(&thread, &attributes, function, (void *)(uintptr_t)path) != 0) {
        die("no thread with a stack of its own");
    }
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    while (untouched < STACK_BYTES && stack[untouched] == PAINT) {
        untouched++;
    }
    free(stack);
    return STACK_BYTES - untouched;
}

static void section_stack(void) {
    size_t p;

    puts("\nStack that the calls use (the deepest of vote, pool, top_k, select, retained_mass and "
         "compress;\npainted stack, less an empty thread)\n");
    table("| path           | bytes |");
    for (p = 0; p < n_paths; p++) {
        snapkv_config config = snapkv_default_config();
        snapkv_layer layer = make_layer(4, 1, STACK_LENGTH, 576, SNAPKV_F32);
        size_t bytes;

        config.window = 130;
        config.capacity = 256;
        layer.keys.dtype = layer.queries.dtype = SNAPKV_CUSTOM;
        need_workspace(paths[p]->workspace_size(&config, &layer));
        call_everything((void *)(uintptr_t)paths[p]); /* binds symbols outside the painted stack */
        bytes = stack_used(call_everything, paths[p]) - stack_used(call_nothing, paths[p]);
        printf("| %-14s | %5zu |\n", paths[p]->label, bytes);
        set_goal(-1, 16.0, (double)bytes / 1024.0, " KiB", "%s: stack of any call",
                 paths[p]->label);
    }
}

/* ---- the program ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(void);
    const char *what;
} sections[] = {
    {"vote", section_vote, "snapkv_vote over L, in f32, f16 and bf16"},
    {"shapes", section_shapes, "snapkv_vote with other W and D"},
    {"window", section_window, "time per key with W 8 and W 32"},
    {"workspace", section_workspace, "the smallest workspace against the fastest"},
    {"compilers", section_compilers, "the same path by gcc and clang"},
    {"topk", section_top_k, "snapkv_top_k against std::nth_element"},
    {"budget", section_budget, "snapkv_allocate against one sum of all scores"},
    {"voting", section_voting, "the largest vote against the sum"},
    {"gather", section_gather, "the gathers against memcpy"},
    {"compress", section_compress, "a whole layer, against PyTorch and OpenBLAS"},
    {"threads", section_threads, "a whole layer on one and on two threads"},
    {"stack", section_stack, "stack use"},
};

enum { N_SECTIONS = sizeof sections / sizeof sections[0] };

static void usage(FILE *to) {
    size_t i;

    fputs("usage: bench [--quick] [--cpu-time] [SECTION ...]\n"
          "  --quick     prompts up to 32768 and fewer runs\n"
          "  --cpu-time  count the time that the thread ran, where others load the machine\n"
          "sections:\n",
          to);
    for (i = 0; i < N_SECTIONS; i++) {
        fprintf(to, "  %-10s  %s\n", sections[i].name, sections[i].what);
    }
}

/* What follows `key` on the first line of a file that begins with it. */
static void print_from(const char *file, const char *key) {
    const size_t skipped = strlen(key);
    char line[256];
    FILE *f = fopen(file, "r");

    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, skipped) == 0) {
            fputs(line + skipped, stdout);
            fclose(f);
            return;
        }
    }
    puts("unknown");
    if (f) {
        fclose(f);
    }
}

int main(int argc, char **argv) {
    int wanted[N_SECTIONS] = {0};
    int any = 0;
    int a;
    size_t i;

    for (a = 1; a < argc; a++) {
        if (strcmp(argv[a], "--quick") == 0) {
            quick = 1;
        } else if (strcmp(argv[a], "--cpu-time") == 0) {
            cpu_time = 1;
        } else if (strcmp(argv[a], "--help") == 0) {
            usage(stdout);
            return 0;
        } else {
            for (i = 0; i < N_SECTIONS && strcmp(argv[a], sections[i].name) != 0; i++) {
            }
            if (i == N_SECTIONS) {
                usage(stderr);
                return 2;
            }
            wanted[i] = any = 1;
        }
    }
    printf("# snapkv.h %d.%d.%d: benchmark%s\n\n", SNAPKV_VERSION_MAJOR, SNAPKV_VERSION_MINOR,
           SNAPKV_VERSION_PATCH, quick ? " (--quick)" : "");
    fputs("processor: ", stdout);
    print_from("/proc/cpuinfo", "model name\t: ");
    printf("processors: %ld, load average when it began: ", sysconf(_SC_NPROCESSORS_ONLN));
    print_from("/proc/loadavg", "");
    fputs("transparent huge pages: ", stdout);
    print_from("/sys/kernel/mm/transparent_hugepage/enabled", "");
    printf("clock: %s\n", cpu_time ? "processor time of the thread" : "wall clock");
    n_paths = find_paths(main_paths, paths);
    n_others = find_paths(other_paths, others);
    if (n_paths == 0) {
        die("no path runs here");
    }
    make_inputs((quick ? 32768 : 131072) + WINDOW);
    for (i = 0; i < N_SECTIONS; i++) {
        if (!any || wanted[i]) {
            sections[i].run();
        }
    }
    print_goals();
    return 0;
}
