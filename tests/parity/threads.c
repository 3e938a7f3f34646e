/* Many sets on several threads at once, each with a workspace of its own, over shared layers: the
 * same bits as one thread returns, and nothing that ThreadSanitizer has to say. */
#define _XOPEN_SOURCE 600
#include "snapkv.h"
#include "splitmix.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_LAYERS = 12,
    N_THREADS = 6,
    N_ROUNDS = 4,
    QUERY_HEADS = 6,
    KV_HEADS = 3,
    LENGTH = 700,
    WINDOW = 20,
    CAPACITY = 150,
    DIM = 24,
    ROW = DIM * 4,
    MOST_SETS = N_LAYERS * QUERY_HEADS
};

static float queries[N_LAYERS][QUERY_HEADS][WINDOW][DIM];
static float keys[N_LAYERS][KV_HEADS][LENGTH][DIM];
static float slopes[QUERY_HEADS], sinks[QUERY_HEADS];
static snapkv_config configs[N_LAYERS];
static snapkv_layer layers[N_LAYERS];

/* What a set gives. */
typedef struct answer {
    snapkv_status status;
    int32_t kept[CAPACITY];
    float scores[LENGTH - WINDOW];
    float mass;
    snapkv_selection selection;
} answer;

static struct work { size_t layer, set; } work[MOST_SETS];
static size_t n_work;
static answer expected[MOST_SETS];
static answer actual[N_ROUNDS][MOST_SETS];
/* K and V of each layer: the sets of a layer write side by side. The last is the expected one. */
static float gathered[N_ROUNDS + 1][N_LAYERS][2][QUERY_HEADS][CAPACITY][DIM];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t next;

static void fill(float *numbers, size_t n, splitmix *random) {
    for (size_t i = 0; i < n; i++) {
        numbers[i] = splitmix_float(random, 4);
    }
}

/* Every sharing, order and option takes part. */
static void make_layers(void) {
    splitmix random = {9};
    fill(&queries[0][0][0][0], sizeof queries / 4, &random);
    fill(&keys[0][0][0][0], sizeof keys / 4, &random);
    fill(slopes, QUERY_HEADS, &random);
    fill(sinks, QUERY_HEADS, &random);
    for (size_t i = 0; i < N_LAYERS; i++) {
        snapkv_config *config = &configs[i];
        snapkv_layer *layer = &layers[i];
        *config = snapkv_default_config();
        config->window = WINDOW;
        config->capacity = CAPACITY;
        config->sharing = (snapkv_sharing)(i % 3);
        config->order = i % 2 ? SNAPKV_BY_SCORE : SNAPKV_BY_POSITION;
        config->pooling = i % 4 == 3 ? SNAPKV_POOL_MAX : SNAPKV_POOL_AVG;
        layer->n_query_heads = QUERY_HEADS;
        layer->n_kv_heads = KV_HEADS;
        layer->length = LENGTH;
        layer->head_dim = DIM;
        layer->queries.data = queries[i];
        layer->queries.head_stride = WINDOW * ROW;
        layer->queries.row_stride = ROW;
        layer->keys.data = keys[i];
        layer->keys.head_stride = LENGTH * ROW;
        layer->keys.row_stride = ROW;
        layer->values = layer->keys;
        layer->softcap = i % 5 == 1 ? 20.0f : 0.0f;
        layer->span = i % 5 == 2 ? 300 : 0;
        layer->alibi_slopes = i % 5 == 3 ? slopes : NULL;
        layer->sink_logits = i % 5 == 4 ? sinks : NULL;
        for (size_t set = 0; set < snapkv_set_count(config, layer); set++) {
            work[n_work].layer = i;
            work[n_work++].set = set;
        }
    }
}

static void run(size_t round, size_t i, answer *out, void *workspace, size_t size) {
    const size_t set = work[i].set;
    const snapkv_config *config = &configs[work[i].layer];
    const snapkv_layer *layer = &layers[work[i].layer];
    float(*caches)[QUERY_HEADS][CAPACITY][DIM] = gathered[round][work[i].layer];
    const snapkv_rows_out keys_out = {caches[0], sizeof caches[0][0], ROW, NULL, 0, 0};
    const snapkv_rows_out values_out = {caches[1], sizeof caches[1][0], ROW, NULL, 0, 0};
    out->status =
        snapkv_select(config, layer, set, out->kept, out->scores, &out->selection, workspace, size);
    if (out->status == SNAPKV_OK) {
        out->status = snapkv_compress(config, layer, set, out->kept, &keys_out, &values_out, NULL,
                                      workspace, size);
    }
    if (out->status == SNAPKV_OK) {
        out->status = snapkv_retained_mass(config, layer, set, queries[0][0][0], LENGTH + 5,
                                           out->kept, CAPACITY, &out->mass, workspace, size);
    }
}

static size_t largest_workspace(int least) {
    size_t most = 0;
    for (size_t i = 0; i < N_LAYERS; i++) {
        const size_t size = least ? snapkv_workspace_min(&configs[i], &layers[i])
                                  : snapkv_workspace_size(&configs[i], &layers[i]);
        most = size > most ? size : most;
    }
    return most;
}

/* Threads with an odd number have the smallest workspace. */
static void *thread(void *argument) {
    const size_t size = largest_workspace(*(const int *)argument % 2);
    void *workspace = malloc(size);
    for (;;) {
        pthread_mutex_lock(&lock);
        const size_t i = next++;
        pthread_mutex_unlock(&lock);
        if (!workspace || i >= N_ROUNDS * n_work) {
            break;
        }
        run(i / n_work, i % n_work, &actual[i / n_work][i % n_work], workspace, size);
    }
    free(workspace);
    return NULL;
}

int main(void) {
    pthread_t threads[N_THREADS];
    int numbers[N_THREADS];
    make_layers();
    const size_t size = largest_workspace(0);
    void *workspace = malloc(size);
    if (!workspace) {
        return 1;
    }
    for (size_t i = 0; i < n_work; i++) {
        run(N_ROUNDS, i, &expected[i], workspace, size);
        if (expected[i].status != SNAPKV_OK) {
            printf("set %d: %s\n", (int)i, snapkv_status_string(expected[i].status));
            return 1;
        }
    }
    free(workspace);
    for (int i = 0; i < N_THREADS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, thread, &numbers[i])) {
            return 1;
        }
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (size_t round = 0; round < N_ROUNDS; round++) {
        if (memcmp(gathered[round], gathered[N_ROUNDS], sizeof gathered[0])) {
            printf("round %d: other rows than one thread gathers\n", (int)round);
            return 1;
        }
        for (size_t i = 0; i < n_work; i++) {
            if (memcmp(&actual[round][i], &expected[i], sizeof(answer))) {
                printf("round %d, set %d: other bits than one thread returns\n", (int)round,
                       (int)i);
                return 1;
            }
        }
    }
    printf("%d sets on %d threads (%s): the bits of one thread\n", (int)(N_ROUNDS * n_work),
           N_THREADS, SNAPKV_ISA_NAME);
    return 0;
}
