/* Integers that the scaled queries see vote as scaled keys do, within rounding. */
#include "check.h"
#include "folded.h"

enum { L = 90, HQ = 4, HKV = 2, D = 16, W = 6, P = L - W };

static float whole[HKV][L][D], scaled[HKV][L][D], queries[HQ][W][D], folded[HQ][W][D];

int main(void) {
    float scales[HKV][D], votes[2][P];
    snapkv_config config = snapkv_default_config();
    snapkv_layer layer = {0}, other;
    size_t size, h, i, d;
    void *workspace;

    fill(queries[0][0], HQ * W * D);
    memcpy(folded, queries, sizeof folded);
    for (h = 0; h < HKV; h++) {
        for (d = 0; d < D; d++) {
            scales[h][d] = 0.01f + fabsf(random_float()) / 50.0f;
        }
        for (i = 0; i < L; i++) {
            for (d = 0; d < D; d++) {
                whole[h][i][d] = floorf(random_float() * 63.0f);
                scaled[h][i][d] = whole[h][i][d] * scales[h][d];
            }
        }
    }
    fold_scales(folded[0][0], HQ, HKV, W, D, scales[0]);
    config.window = W;
    layer.n_query_heads = HQ;
    layer.n_kv_heads = HKV;
    layer.length = L;
    layer.head_dim = D;
    layer.queries = float_rows(queries[0][0], W, D);
    layer.keys = float_rows(scaled[0][0], L, D);
    other = layer;
    other.queries = float_rows(folded[0][0], W, D);
    other.keys = float_rows(whole[0][0], L, D);
    size = snapkv_workspace_size(&config, &layer);
    workspace = malloc(size);
    for (h = 0; h < HQ; h++) {
        CHECK(snapkv_vote(&config, &layer, h, votes[0], workspace, size) == SNAPKV_OK);
        CHECK(snapkv_vote(&config, &other, h, votes[1], workspace, size) == SNAPKV_OK);
        for (i = 0; i < P; i++) {
            CHECK(fabsf(votes[1][i] - votes[0][i]) <= 1e-5f * votes[0][i]);
        }
    }
    free(workspace);
    return 0;
}
