/* Two ranks with half of the heads each choose the list of the whole layer. */
#include "check.h"
#include "tensor_parallel.h"

enum { L = 220, HQ = 4, HKV = 2, D = 16, W = 8, C = 50, P = L - W };

static float queries[HQ][W][D], keys[HKV][L][D];

int main(void) {
    snapkv_config config = snapkv_default_config();
    snapkv_layer whole = {0};
    float scores[P], reduced[P];
    int32_t expected[C], kept[C];
    size_t size, rank, j;
    void *workspace;

    fill(queries[0][0], HQ * W * D);
    fill(keys[0][0], HKV * L * D);
    config.window = W;
    config.capacity = C;
    config.n_sink = 3;
    config.sharing = SNAPKV_PER_LAYER;
    config.reduce = SNAPKV_REDUCE_MAX;
    whole.n_query_heads = HQ;
    whole.n_kv_heads = HKV;
    whole.length = L;
    whole.head_dim = D;
    whole.queries = float_rows(queries[0][0], W, D);
    whole.keys = float_rows(keys[0][0], L, D);
    size = snapkv_workspace_size(&config, &whole);
    workspace = malloc(size);
    CHECK(snapkv_select(&config, &whole, 0, expected, NULL, NULL, workspace, size) == SNAPKV_OK);
    for (rank = 0; rank < 2; rank++) {
        snapkv_layer local = whole;

        local.n_query_heads = HQ / 2;
        local.n_kv_heads = HKV / 2;
        local.queries = float_rows(queries[rank * HQ / 2][0], W, D);
        local.keys = float_rows(keys[rank * HKV / 2][0], L, D);
        CHECK(snapkv_score(&config, &local, 0, scores, NULL, workspace, size) == SNAPKV_OK);
        for (j = 0; j < P; j++) { /* the all-reduce */
            reduced[j] = rank == 0 || scores[j] > reduced[j] ? scores[j] : reduced[j];
        }
    }
    CHECK(list_of_scores(&config, L, reduced, kept) == SNAPKV_OK);
    CHECK(memcmp(kept, expected, sizeof kept) == 0);
    CHECK(list_of_scores(&config, C - 1, NULL, kept) == SNAPKV_OK); /* bypassed */
    for (j = 0; j < C - 1; j++) {
        CHECK(kept[j] == (int32_t)j);
    }
    free(workspace);
    return 0;
}
