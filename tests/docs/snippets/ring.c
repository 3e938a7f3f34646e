/* A ring fed token by token is the view of the last queries, wherever it is cut. */
#include "check.h"
#include "ring.h"

enum { L = 40, HQ = 4, HKV = 2, D = 8, W = 6, P = L - W };

static float all[L][HQ][D], rows[W][HQ][D], keys[HKV][L][D];

int main(void) {
    int32_t table[W];
    const query_ring ring = {rows[0][0], table, HQ, W, D};
    snapkv_config config = snapkv_default_config();
    snapkv_layer layer = {0};
    float votes[2][P];
    size_t size, length, t = 0, h;
    void *workspace;

    fill(all[0][0], L * HQ * D);
    fill(keys[0][0], HKV * L * D);
    config.window = W;
    layer.n_query_heads = HQ;
    layer.n_kv_heads = HKV;
    layer.length = L;
    layer.head_dim = D;
    layer.keys = float_rows(keys[0][0], L, D);
    size = snapkv_workspace_size(&config, &layer);
    workspace = malloc(size);
    for (length = L - W; length <= L; length++) {
        for (; t < length; t++) {
            push_query(&ring, t, all[t][0]);
        }
        layer.length = length;
        for (h = 0; h < HQ; h++) {
            layer.queries = rows_of_ring(&ring, length);
            CHECK(snapkv_vote(&config, &layer, h, votes[0], workspace, size) == SNAPKV_OK);
            layer.queries = snapkv_rows_by_position(all[length - W], SNAPKV_F32, HQ, D);
            CHECK(snapkv_vote(&config, &layer, h, votes[1], workspace, size) == SNAPKV_OK);
            CHECK(memcmp(votes[0], votes[1], (length - W) * sizeof votes[0][0]) == 0);
        }
    }
    free(workspace);
    return 0;
}
