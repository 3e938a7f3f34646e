/* threads.c: the sets of a layer, side by side on a pool of threads.
 *
 *     cc -O3 -march=native -I include -I examples -o build/threads examples/threads.c -pthread -lm
 *     build/threads [--threads N] [--length N]
 *
 * The library starts no thread: its unit of work is one set, a list of kept positions, and every
 * call is re-entrant. So a pool needs three things only: a number that hands out the sets, a
 * workspace for each thread, and outputs that belong to a set alone. (One list for a whole layer,
 * SNAPKV_PER_LAYER, is one set: then the layers are what can run side by side.)
 *
 * It compresses a layer with one thread and with the pool, compares every byte of the results, and
 * prints both times. */
#define _POSIX_C_SOURCE 200112L /* clock_gettime, sysconf */
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "arguments.h"
#include "snapkv.h"

enum { QUERY_HEADS = 32, KV_HEADS = 8, DIM = 128, ROW = DIM * sizeof(float), ROUNDS = 5 };
enum { MOST_THREADS = 256, MOST_LENGTH = 1 << 20 };

/* ---- the pool ------------------------------------------------------------------------------- */

/* One layer to compress: what goes in, and an output for each set. */
typedef struct job {
    const snapkv_config *config;
    const snapkv_layer *layer;
    size_t n_sets, n_kept;
    int32_t *kept;                        /* [n_sets][n_kept] */
    snapkv_rows_out keys_out, values_out; /* [n_sets][n_kept][DIM] */
    snapkv_selection *selections;         /* [n_sets] */
} job;

typedef struct pool {
    pthread_mutex_t lock; /* of everything below but the workspaces */
    pthread_cond_t work, finished;
    const job *job;
    size_t n_taken, n_done; /* sets */
    snapkv_status status;   /* the first error */
    int stop;
    size_t n_threads, n_started, workspace_size;
    pthread_t threads[MOST_THREADS];
    void *workspaces[MOST_THREADS];
} pool;

static snapkv_status run_set(const job *j, size_t set, void *workspace, size_t workspace_size) {
    return snapkv_compress(j->config, j->layer, set, j->kept + set * j->n_kept, &j->keys_out,
                           &j->values_out, &j->selections[set], workspace, workspace_size);
}

/* Takes sets while there are any, then waits for the next layer. */
static void *work(void *argument) {
    pool *const p = argument;
    pthread_mutex_lock(&p->lock);
    void *const workspace = p->workspaces[p->n_started++];
    while (!p->stop) {
        if (p->job == NULL || p->n_taken == p->job->n_sets) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        const job *const j = p->job;
        const size_t set = p->n_taken++;
        pthread_mutex_unlock(&p->lock);
        const snapkv_status status = run_set(j, set, workspace, p->workspace_size);
        pthread_mutex_lock(&p->lock);
        if (status != SNAPKV_OK && p->status == SNAPKV_OK)
            p->status = status;
        if (++p->n_done == j->n_sets)
            pthread_cond_signal(&p->finished);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void pool_free(pool *p) {
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    for (size_t i = 0; i < MOST_THREADS; i++)
        free(p->workspaces[i]);
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
}

/* `p` is all zero. False: not enough memory or threads; pool_free() in any case. */
static int pool_new(pool *p, size_t n_threads, size_t workspace_size) {
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->finished, NULL);
    p->workspace_size = workspace_size;
    for (size_t i = 0; i < n_threads; i++)
        if ((p->workspaces[i] = malloc(workspace_size)) == NULL)
            return 0;
    for (; p->n_threads < n_threads; p->n_threads++)
        if (pthread_create(&p->threads[p->n_threads], NULL, work, p) != 0)
            return 0;
    return 1;
}

/* Compresses one layer; returns when all its sets are done. */
static snapkv_status pool_run(pool *p, const job *j) {
    pthread_mutex_lock(&p->lock);
    p->job = j;
    p->n_taken = p->n_done = 0;
    p->status = SNAPKV_OK;
    pthread_cond_broadcast(&p->work);
    while (p->n_done < j->n_sets)
        pthread_cond_wait(&p->finished, &p->lock);
    p->job = NULL;
    const snapkv_status status = p->status;
    pthread_mutex_unlock(&p->lock);
    return status;
}

/* ---- the program ---------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fill(float *x, size_t n) {
    static uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(state >> 40) / 4194304.0f - 2.0f; /* 24 bits: -2 .. 2 */
    }
}

/* False: not enough memory. */
static int job_new(job *j, const snapkv_config *config, const snapkv_layer *layer) {
    j->config = config;
    j->layer = layer;
    j->n_sets = snapkv_set_count(config, layer);
    j->n_kept = snapkv_kept_count(config, layer->length);
    const size_t n_bytes = j->n_kept * ROW;
    j->kept = calloc(j->n_sets * j->n_kept, sizeof *j->kept);
    j->selections = calloc(j->n_sets, sizeof *j->selections);
    j->keys_out.data = calloc(j->n_sets, n_bytes);
    j->values_out.data = calloc(j->n_sets, n_bytes);
    j->keys_out.head_stride = j->values_out.head_stride = n_bytes;
    j->keys_out.row_stride = j->values_out.row_stride = ROW;
    return j->kept != NULL && j->selections != NULL && j->keys_out.data != NULL &&
           j->values_out.data != NULL;
}

static void job_free(job *j) {
    free(j->kept);
    free(j->selections);
    free(j->keys_out.data);
    free(j->values_out.data);
}

static int same_bytes(const job *a, const job *b) {
    const size_t n = a->n_sets * a->n_kept;
    return memcmp(a->kept, b->kept, n * sizeof *a->kept) == 0 &&
           memcmp(a->selections, b->selections, a->n_sets * sizeof *a->selections) == 0 &&
           memcmp(a->keys_out.data, b->keys_out.data, n * ROW) == 0 &&
           memcmp(a->values_out.data, b->values_out.data, n * ROW) == 0;
}

static snapkv_status run_alone(const job *j, void *workspace, size_t workspace_size) {
    snapkv_status status = SNAPKV_OK;
    for (size_t set = 0; set < j->n_sets && status == SNAPKV_OK; set++)
        status = run_set(j, set, workspace, workspace_size);
    return status;
}

/* Returns NULL or an error. */
static const char *run(pool *p, const job *alone, const job *together, size_t n_threads,
                       size_t workspace_size) {
    void *const workspace = malloc(workspace_size);
    if (workspace == NULL || !pool_new(p, n_threads, workspace_size)) {
        free(workspace);
        return "not enough memory or threads";
    }
    double best_alone = 0, best_together = 0;
    snapkv_status status = SNAPKV_OK;
    for (int round = 0; round < ROUNDS && status == SNAPKV_OK; round++) {
        const double start = now();
        status = run_alone(alone, workspace, workspace_size);
        const double middle = now();
        if (status == SNAPKV_OK)
            status = pool_run(p, together);
        const double end = now();
        best_alone = round == 0 || middle - start < best_alone ? middle - start : best_alone;
        best_together = round == 0 || end - middle < best_together ? end - middle : best_together;
    }
    free(workspace);
    if (status != SNAPKV_OK)
        return snapkv_status_string(status);
    printf("%zu sets of a layer: %d query heads, %d K/V heads, %zu positions, dim %d, capacity %zu"
           " (%s)\n",
           alone->n_sets, QUERY_HEADS, KV_HEADS, alone->layer->length, DIM, alone->n_kept,
           SNAPKV_ISA_NAME);
    printf("one thread: %.2f ms; %zu threads: %.2f ms, %.2f times as fast (best of %d)\n",
           1e3 * best_alone, n_threads, 1e3 * best_together, best_alone / best_together, ROUNDS);
    if (!same_bytes(alone, together))
        return "the pool's results differ from those of one thread";
    printf("kept positions, coverage, keys and values: the same bytes\n");
    return NULL;
}

#define USAGE "usage: threads [--threads 1..%d] [--length up to %d]\n"

/* Returns NULL, or the argument that is wrong. */
static const char *read_options(size_t *n_threads, size_t *length, int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        const char *const value = i + 1 < argc ? argv[i + 1] : "";
        unsigned long number;
        if (strcmp(argv[i], "--threads") == 0 && read_number(value, MOST_THREADS, &number) &&
            number > 0)
            *n_threads = number;
        else if (strcmp(argv[i], "--length") == 0 && read_number(value, MOST_LENGTH, &number))
            *length = number;
        else
            return argv[i];
    }
    return NULL;
}

int main(int argc, char **argv) {
    static pool p;
    const long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    size_t length = 8192;
    size_t n_threads = n_processors < 2              ? 2
                       : n_processors < MOST_THREADS ? (size_t)n_processors
                                                     : MOST_THREADS;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        printf(USAGE, MOST_THREADS, MOST_LENGTH);
        return EXIT_SUCCESS;
    }
    const char *const wrong = read_options(&n_threads, &length, argc, argv);
    if (wrong != NULL) {
        fprintf(stderr, "threads: bad argument or value: %s\n" USAGE, wrong, MOST_THREADS,
                MOST_LENGTH);
        return EXIT_FAILURE;
    }

    snapkv_config config = snapkv_default_config();
    config.capacity = 1024;
    const size_t n_queries = QUERY_HEADS * config.window * DIM, n_keys = KV_HEADS * length * DIM;
    float *const queries = malloc(n_queries * sizeof(float));
    float *const keys = malloc(n_keys * sizeof(float) + 1); /* a length of 0 gets its error below */
    float *const values = malloc(n_keys * sizeof(float) + 1);
    job alone = {0}, together = {0};
    const snapkv_layer layer = {
        .n_query_heads = QUERY_HEADS,
        .n_kv_heads = KV_HEADS,
        .length = length,
        .head_dim = DIM,
        .queries = {.data = queries, .head_stride = config.window * ROW, .row_stride = ROW},
        .keys = {.data = keys, .head_stride = length * ROW, .row_stride = ROW},
        .values = {.data = values, .head_stride = length * ROW, .row_stride = ROW},
    };
    const char *error = NULL;
    if (queries == NULL || keys == NULL || values == NULL)
        error = "not enough memory";
    else if (snapkv_check(&config, &layer) != SNAPKV_OK)
        error = snapkv_status_string(snapkv_check(&config, &layer));
    else if (!job_new(&alone, &config, &layer) || !job_new(&together, &config, &layer))
        error = "not enough memory";
    if (error == NULL) {
        fill(queries, n_queries);
        fill(keys, n_keys);
        fill(values, n_keys);
        error = run(&p, &alone, &together, n_threads, snapkv_workspace_size(&config, &layer));
        if (p.workspaces[0] != NULL)
            pool_free(&p);
    }
    if (error != NULL)
        fprintf(stderr, "threads: %s\n", error);
    job_free(&alone);
    job_free(&together);
    free(queries);
    free(keys);
    free(values);
    return error == NULL && is_printed("threads") ? EXIT_SUCCESS : EXIT_FAILURE;
}
