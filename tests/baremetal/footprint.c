/* What a call costs a firmware: bytes of workspace, and the deepest stack, painted before each
 * call and looked at after it. A prompt of 1024 positions, a window of 16, 2 query heads on 1 K/V
 * head of dimension 64 in float16, a cache of 256. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapkv.h"

enum { LENGTH = 1024, WINDOW = 16, HEADS = 2, DIM = 64, CAPACITY = 256, PREFIX = LENGTH - WINDOW };
enum { PAINTED = 24 * 1024, PAINT = 0xA5 };
#define STACK_LIMIT 16384 /* as tests/unit/test_stack.c */

static uint16_t queries[HEADS][WINDOW][DIM], keys[LENGTH][DIM], values[LENGTH][DIM];
static uint16_t kept_keys[CAPACITY][DIM], kept_values[CAPACITY][DIM];
static float votes[PREFIX], scores[PREFIX];
static int32_t kept[CAPACITY];
static snapkv_config config;
static snapkv_layer layer;
static void *workspace;
static size_t workspace_size;
static snapkv_status status;

static void call_nothing(void) {
    status = SNAPKV_OK;
}
static void call_vote(void) {
    status = snapkv_vote(&config, &layer, 1, votes, workspace, workspace_size);
}
static void call_pool(void) {
    status = snapkv_pool(votes, PREFIX, config.kernel_size, config.pooling, scores);
}
static void call_top_k(void) {
    status = snapkv_top_k(scores, PREFIX, CAPACITY, SNAPKV_BY_SCORE, kept);
}
static void call_gather_rows(void) {
    status = snapkv_gather_rows(kept, CAPACITY, keys, sizeof keys[0], LENGTH, sizeof keys[0],
                                kept_keys, sizeof kept_keys[0]);
}
static void call_compress(void) {
    const snapkv_rows_out keys_out = {kept_keys, 0, sizeof kept_keys[0], NULL, 0, 0};
    const snapkv_rows_out values_out = {kept_values, 0, sizeof kept_values[0], NULL, 0, 0};
    status = snapkv_compress(&config, &layer, 0, kept, &keys_out, &values_out, NULL, workspace,
                             workspace_size);
}

__attribute__((noinline)) static size_t stack_used_by(void (*call)(void)) {
    volatile unsigned char *here = (volatile unsigned char *)__builtin_frame_address(0);
    volatile unsigned char *bottom = here - PAINTED;
    for (size_t i = 0; i < PAINTED - 96; i++) { /* this frame is not to be painted over */
        bottom[i] = PAINT;
    }
    call();
    for (size_t i = 0; i < PAINTED; i++) {
        if (bottom[i] != PAINT) {
            return PAINTED - i;
        }
    }
    return 0;
}

static void fill(uint16_t *halves, size_t n) {
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        halves[i] = (uint16_t)((state >> 16 & 0x8000) | (state >> 17 & 0x3FFF)); /* below 2 */
    }
}

int main(void) {
    static const struct {
        const char *name;
        void (*call)(void);
    } calls[] = {{"vote", call_vote},
                 {"pool", call_pool},
                 {"top_k", call_top_k},
                 {"gather_rows", call_gather_rows},
                 {"compress", call_compress}};
    int failed = 0;
    fill(&queries[0][0][0], HEADS * WINDOW * DIM);
    fill(&keys[0][0], LENGTH * DIM);
    fill(&values[0][0], LENGTH * DIM);
    config = snapkv_default_config();
    config.window = WINDOW;
    config.capacity = CAPACITY;
    layer.n_query_heads = HEADS;
    layer.n_kv_heads = 1;
    layer.length = LENGTH;
    layer.head_dim = DIM;
    layer.queries.data = queries;
    layer.queries.dtype = SNAPKV_F16;
    layer.queries.head_stride = sizeof queries[0];
    layer.queries.row_stride = sizeof queries[0][0];
    layer.keys.data = keys;
    layer.keys.dtype = SNAPKV_F16;
    layer.keys.row_stride = sizeof keys[0];
    layer.values = layer.keys;
    layer.values.data = values;
    const size_t least = snapkv_workspace_min(&config, &layer);
    const size_t most = snapkv_workspace_size(&config, &layer);
    printf("  workspace: %lu bytes at least, %lu for the fastest run\n", (unsigned long)least,
           (unsigned long)most);
    workspace = malloc(most);
    if (!workspace) {
        printf("out of memory\n");
        return 1;
    }
    const size_t nothing = stack_used_by(call_nothing);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        size_t used = 0;
        for (int size = 0; size < 2; size++) {
            workspace_size = size ? most : least;
            const size_t now = stack_used_by(calls[i].call);
            used = now > used ? now : used;
            if (status != SNAPKV_OK) {
                printf("%s: %s\n", calls[i].name, snapkv_status_string(status));
                failed = 1;
            }
        }
        used -= nothing;
        printf("  stack: %5lu bytes in %s\n", (unsigned long)used, calls[i].name);
        failed |= used > STACK_LIMIT;
    }
    return failed;
}
