/* The counts add up, and what is kept is what one ranking of all scores keeps. */
#include "check.h"
#include "budget.h"

enum { L = 120, HQ = 6, HKV = 3, D = 16, W = 8, SINKS = 2, P = L - W, BUDGET = 60, LEAST = 5 };

static float queries[HQ][W][D], keys[HKV][L][D], scores[HKV][P];
static int32_t kept[HKV][L];

int main(void) {
    snapkv_config config = snapkv_default_config();
    snapkv_layer layer = {0};
    snapkv_list lists[HKV];
    size_t n_kept[HKV], size, h, i, j, sum = 0;
    float lowest = 1e30f;
    void *workspace;

    fill(queries[0][0], HQ * W * D);
    fill(keys[0][0], HKV * L * D);
    for (i = 0; i < L * D; i++) {
        keys[1][0][i] *= 3.0f; /* a head of few, high scores */
    }
    memcpy(keys[0][0], queries[0][0], sizeof keys[0][0]); /* pinned, and high scores as well */
    memcpy(keys[0][1], queries[1][0], sizeof keys[0][1]);
    config.window = W;
    config.n_sink = SINKS;
    layer.n_query_heads = HQ;
    layer.n_kv_heads = HKV;
    layer.length = L;
    layer.head_dim = D;
    layer.queries = float_rows(queries[0][0], W, D);
    layer.keys = float_rows(keys[0][0], L, D);
    size = snapkv_workspace_size(&config, &layer);
    workspace = malloc(size);
    CHECK(select_by_budget(&config, &layer, BUDGET, LEAST, kept[0], n_kept, scores[0], lists,
                           workspace, size) == SNAPKV_OK);
    for (h = 0; h < HKV; h++) {
        const size_t n_best = n_kept[h] - SINKS - W;

        CHECK(n_best >= LEAST);
        sum += n_best;
        CHECK(kept[h][0] == 0 && kept[h][1] == 1 && kept[h][n_kept[h] - 1] == L - 1);
        for (i = SINKS; i < SINKS + n_best; i++) {
            if (n_best > LEAST && scores[h][kept[h][i]] < lowest) {
                lowest = scores[h][kept[h][i]];
            }
        }
    }
    CHECK(sum == BUDGET && n_kept[0] != n_kept[1]);
    for (h = 0; h < HKV; h++) { /* nothing that was dropped beats what was kept beyond the least */
        for (j = SINKS, i = SINKS; j < P; j++) {
            if (i < n_kept[h] && kept[h][i] == (int32_t)j) {
                i++;
            } else {
                CHECK(scores[h][j] <= lowest);
            }
        }
    }
    config.capacity = 0;
    CHECK(select_by_budget(&config, &layer, BUDGET, LEAST, kept[0], n_kept, scores[0], lists,
                           workspace, size) == SNAPKV_ERROR_CAPACITY);
    free(workspace);
    return 0;
}
