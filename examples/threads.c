/* threads.c: a layer on a pool of threads.
 *
 *     cc -O3 -march=native -I include -I examples -o build/threads examples/threads.c -pthread -lm
 *     build/threads [--threads N] [--length N] [--kv-heads N] [--per-layer]
 *
 * The library starts no thread, and every call is re-entrant. Its unit of work is a set, a list of
 * kept positions: where there are as many sets as threads, a pool needs three things only: a number
 * that hands out the sets, a workspace for each thread, and outputs that belong to a set alone.
 *
 * Where there are fewer (a model with one K/V head, or one list for a whole layer), the threads
 * share each set: every one takes a run of parts of the prompt, observes its keys, waits for the
 * others' statistics, and turns its keys into votes; one of them then pools, keeps and gathers.
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

enum { GROUP = 4, DIM = 128, ROW = DIM * sizeof(float), ROUNDS = 5 };
enum { MOST_THREADS = 256, MOST_LENGTH = 1 << 20, MOST_KV_HEADS = 64 };

/* ---- the pool ------------------------------------------------------------------------------- */

/* One layer to compress: what goes in, and an output for each set. */
typedef struct job {
    const snapkv_config *config;
    const snapkv_layer *layer;
    size_t n_sets, n_kept, n_heads; /* heads of the outputs */
    int32_t *kept;                        /* [n_sets][n_kept] */
    snapkv_rows_out keys_out, values_out; /* [n_sets][n_kept][DIM] */
    snapkv_selection *selections;         /* [n_sets] */

    /* Of a set that the threads share. */
    size_t n_parts, n_groups, per_part;   /* groups: its K/V heads; statistics of a part of one */
    snapkv_statistic *statistics;         /* [n_groups][n_parts][per_part] */
    float *votes;                         /* [n_groups * GROUP][length - recent ones] */
    float *scores, *mean;                 /* [length] */
} job;

typedef struct pool {
    pthread_mutex_t lock; /* of everything below but the workspaces */
    pthread_cond_t work, finished;
    const job *job;
    size_t n_taken, n_done;       /* sets; when they are shared, threads */
    size_t n_waiting, n_meetings; /* threads at a meeting, and how many have been held */
    pthread_cond_t met;
    snapkv_status status;         /* the first error */
    int is_well, stop;
    size_t n_jobs;                /* so far */
    size_t n_threads, n_started, workspace_size;
    pthread_t threads[MOST_THREADS];
    void *workspaces[MOST_THREADS];
} pool;

static snapkv_status run_set(const job *j, size_t set, void *workspace, size_t workspace_size) {
    return snapkv_compress(j->config, j->layer, set, j->kept + set * j->n_kept, &j->keys_out,
                           &j->values_out, &j->selections[set], workspace, workspace_size);
}

static void report(pool *p, snapkv_status status) {
    pthread_mutex_lock(&p->lock);
    if (status != SNAPKV_OK && p->status == SNAPKV_OK)
        p->status = status;
    pthread_mutex_unlock(&p->lock);
}

/* Waits for all threads. False: one of them has met an error. */
static int meet(pool *p) {
    pthread_mutex_lock(&p->lock);
    const size_t meeting = p->n_meetings;
    if (++p->n_waiting == p->n_threads) {
        p->n_waiting = 0;
        p->n_meetings++;
        p->is_well = p->status == SNAPKV_OK; /* the same for all, whatever is reported next */
        pthread_cond_broadcast(&p->met);
    }
    while (p->n_meetings == meeting)
        pthread_cond_wait(&p->met, &p->lock);
    const int is_well = p->is_well; /* stands until all have left, for the next meeting needs all */
    pthread_mutex_unlock(&p->lock);
    return is_well;
}

/* From the votes of all heads to the kept rows: short beside what comes before. */
static snapkv_status finish_set(const job *j, size_t set) {
    const snapkv_config *const c = j->config;
    const size_t length = j->layer->length, n_recent = c->n_recent ? c->n_recent : c->window;
    const size_t prefix = length - n_recent, n_heads = j->n_groups * (j->per_part / c->window);
    int32_t *const kept = j->kept + set * j->n_kept;
    snapkv_selection *const selection = &j->selections[set];
    snapkv_status status = snapkv_part_score(c, n_heads, prefix, j->votes, j->votes, prefix,
                                             j->scores, j->mean);
    selection->n_kept = j->n_kept;
    selection->bypassed = 0;
    if (status == SNAPKV_OK)
        status = snapkv_keep(c, length, j->scores, j->n_kept - n_recent - c->n_sink, kept);
    if (status == SNAPKV_OK)
        status = snapkv_coverage(c, length, j->mean, kept, j->n_kept, &selection->coverage);
    if (status == SNAPKV_OK)
        status = snapkv_gather(c, j->layer, set, kept, j->n_kept, &j->keys_out, &j->values_out);
    return status;
}

/* One thread's share of a set: a run of its parts. */
static void share_set(pool *p, const job *j, size_t set, size_t thread) {
    const snapkv_config *const c = j->config;
    const size_t n_recent = c->n_recent ? c->n_recent : c->window;
    const size_t prefix = j->layer->length - n_recent, heads = j->per_part / c->window;
    const size_t first = j->n_parts * thread / p->n_threads;
    const size_t n = j->n_parts * (thread + 1) / p->n_threads - first;
    const size_t first_row = first * SNAPKV_PART < prefix ? first * SNAPKV_PART : prefix;
    void *const workspace = p->workspaces[thread];
    for (size_t i = 0; i < j->n_groups; i++) {
        const size_t group = set * j->n_groups + i;
        snapkv_statistic *const all = j->statistics + i * j->n_parts * j->per_part;
        report(p, snapkv_part_observe(c, j->layer, group, first, n, all + first * j->per_part,
                                      workspace, p->workspace_size));
        if (!meet(p))
            return;
        report(p, snapkv_part_vote(c, j->layer, group, first, n, all, 1,
                                   j->votes + i * heads * prefix + first_row, NULL, prefix,
                                   workspace, p->workspace_size));
    }
    if (meet(p) && thread == 0)
        report(p, finish_set(j, set));
    meet(p); /* before the next set takes the votes' place */
}

/* A bypassed layer has nothing to share. */
static int is_shared(const job *j, size_t n_threads) {
    return j->n_sets < n_threads && j->layer->length >= j->config->capacity;
}

/* Takes sets while there are any, or its share of each, then waits for the next layer. */
static void *work(void *argument) {
    pool *const p = argument;
    size_t last_job = 0; /* the number of the last one that it had a share of */
    pthread_mutex_lock(&p->lock);
    const size_t thread = p->n_started++;
    void *const workspace = p->workspaces[thread];
    while (!p->stop) {
        const job *const j = p->job;
        if (j == NULL || p->n_taken == j->n_sets || p->n_jobs == last_job) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        if (is_shared(j, p->n_threads)) {
            last_job = p->n_jobs;
            pthread_mutex_unlock(&p->lock);
            for (size_t set = 0; set < j->n_sets; set++)
                share_set(p, j, set, thread);
            pthread_mutex_lock(&p->lock);
            if (++p->n_done == p->n_threads)
                pthread_cond_signal(&p->finished);
            continue;
        }
        const size_t set = p->n_taken++;
        pthread_mutex_unlock(&p->lock);
        report(p, run_set(j, set, workspace, p->workspace_size));
        pthread_mutex_lock(&p->lock);
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
    pthread_cond_destroy(&p->met);
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
}

/* `p` is all zero. False: not enough memory or threads; pool_free() in any case. */
static int pool_new(pool *p, size_t n_threads, size_t workspace_size) {
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->finished, NULL);
    pthread_cond_init(&p->met, NULL);
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
    const size_t n_shares = is_shared(j, p->n_threads) ? p->n_threads : j->n_sets;
    p->job = j;
    p->n_jobs++;
    p->n_taken = p->n_done = p->n_waiting = 0;
    p->status = SNAPKV_OK;
    pthread_cond_broadcast(&p->work);
    while (p->n_done < n_shares)
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
    const int per_layer = config->sharing == SNAPKV_PER_LAYER;
    j->config = config;
    j->layer = layer;
    j->n_sets = snapkv_set_count(config, layer);
    j->n_kept = snapkv_kept_count(config, layer->length);
    j->n_heads = layer->n_kv_heads;
    j->n_parts = snapkv_part_count(layer->length);
    j->n_groups = per_layer ? layer->n_kv_heads : 1;
    j->per_part = GROUP * config->window;
    j->statistics = malloc(j->n_groups * j->n_parts * j->per_part * sizeof *j->statistics);
    j->votes = malloc(j->n_groups * GROUP * layer->length * sizeof *j->votes);
    j->scores = malloc(layer->length * sizeof *j->scores);
    j->mean = malloc(layer->length * sizeof *j->mean);
    const size_t n_bytes = j->n_kept * ROW;
    j->kept = calloc(j->n_sets * j->n_kept, sizeof *j->kept);
    j->selections = calloc(j->n_sets, sizeof *j->selections);
    j->keys_out.data = calloc(j->n_heads, n_bytes);
    j->values_out.data = calloc(j->n_heads, n_bytes);
    j->keys_out.head_stride = j->values_out.head_stride = n_bytes;
    j->keys_out.row_stride = j->values_out.row_stride = ROW;
    return j->kept != NULL && j->selections != NULL && j->keys_out.data != NULL &&
           j->values_out.data != NULL && j->statistics != NULL && j->votes != NULL &&
           j->scores != NULL && j->mean != NULL;
}

static void job_free(job *j) {
    free(j->kept);
    free(j->selections);
    free(j->keys_out.data);
    free(j->values_out.data);
    free(j->statistics);
    free(j->votes);
    free(j->scores);
    free(j->mean);
}

static int same_bytes(const job *a, const job *b) {
    const size_t n = a->n_heads * a->n_kept;
    return memcmp(a->kept, b->kept, a->n_sets * a->n_kept * sizeof *a->kept) == 0 &&
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
static const char *run(pool *p, const job *alone, const job *together, size_t n_threads) {
    const snapkv_layer *const layer = alone->layer;
    const size_t workspace_size = snapkv_workspace_size(alone->config, layer);
    /* A thread of a shared set keeps the weights of its own parts only. */
    const size_t share = (alone->n_parts + n_threads - 1) / n_threads;
    const size_t pool_size = is_shared(alone, n_threads)
                                 ? snapkv_part_workspace_size(alone->config, layer, share)
                                 : workspace_size;
    void *const workspace = malloc(workspace_size);
    if (workspace == NULL || !pool_new(p, n_threads, pool_size)) {
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
    printf("%zu %s of a layer%s: %zu query heads, %zu K/V heads, %zu positions, dim %d, capacity"
           " %zu (%s)\n",
           alone->n_sets, alone->n_sets == 1 ? "set" : "sets",
           is_shared(alone, n_threads) ? ", shared by the threads" : "", layer->n_query_heads,
           layer->n_kv_heads, layer->length, DIM, alone->n_kept, SNAPKV_ISA_NAME);
    printf("one thread: %.2f ms; %zu threads: %.2f ms, %.2f times as fast (best of %d)\n",
           1e3 * best_alone, n_threads, 1e3 * best_together, best_alone / best_together, ROUNDS);
    if (!same_bytes(alone, together))
        return "the pool's results differ from those of one thread";
    printf("kept positions, coverage, keys and values: the same bytes\n");
    return NULL;
}

#define USAGE                                                                                      \
    "usage: threads [--threads 1..%d] [--length up to %d] [--kv-heads 1..%d] [--per-layer]\n"

typedef struct options {
    size_t n_threads, length, n_kv_heads;
    snapkv_sharing sharing;
} options;

/* Returns NULL, or the argument that is wrong. */
static const char *read_options(options *o, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *const name = argv[i], *const value = i + 1 < argc ? argv[i + 1] : "";
        unsigned long number;
        if (strcmp(name, "--per-layer") == 0) {
            o->sharing = SNAPKV_PER_LAYER;
            continue;
        }
        if (strcmp(name, "--threads") == 0 && read_number(value, MOST_THREADS, &number) &&
            number > 0)
            o->n_threads = number;
        else if (strcmp(name, "--length") == 0 && read_number(value, MOST_LENGTH, &number))
            o->length = number;
        else if (strcmp(name, "--kv-heads") == 0 && read_number(value, MOST_KV_HEADS, &number) &&
                 number > 0)
            o->n_kv_heads = number;
        else
            return name;
        i++;
    }
    return NULL;
}

int main(int argc, char **argv) {
    static pool p;
    const long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    options o = {0, 8192, 8, SNAPKV_PER_KV_HEAD};
    o.n_threads = n_processors < 2              ? 2
                  : n_processors < MOST_THREADS ? (size_t)n_processors
                                                : MOST_THREADS;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        printf(USAGE, MOST_THREADS, MOST_LENGTH, MOST_KV_HEADS);
        return EXIT_SUCCESS;
    }
    const char *const wrong = read_options(&o, argc, argv);
    if (wrong != NULL) {
        fprintf(stderr, "threads: bad argument or value: %s\n" USAGE, wrong, MOST_THREADS,
                MOST_LENGTH, MOST_KV_HEADS);
        return EXIT_FAILURE;
    }

    snapkv_config config = snapkv_default_config();
    config.capacity = 1024;
    config.sharing = o.sharing;
    const size_t length = o.length, n_query_heads = GROUP * o.n_kv_heads;
    const size_t n_queries = n_query_heads * config.window * DIM;
    const size_t n_keys = o.n_kv_heads * length * DIM;
    float *const queries = malloc(n_queries * sizeof(float));
    float *const keys = malloc(n_keys * sizeof(float) + 1); /* a length of 0 gets its error below */
    float *const values = malloc(n_keys * sizeof(float) + 1);
    job alone = {0}, together = {0};
    const snapkv_layer layer = {
        .n_query_heads = n_query_heads,
        .n_kv_heads = o.n_kv_heads,
        .length = length,
        .head_dim = DIM,
        .queries = snapkv_rows_by_head(queries, SNAPKV_F32, config.window, DIM),
        .keys = snapkv_rows_by_head(keys, SNAPKV_F32, length, DIM),
        .values = snapkv_rows_by_head(values, SNAPKV_F32, length, DIM),
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
        error = run(&p, &alone, &together, o.n_threads);
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
