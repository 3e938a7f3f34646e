/* In steps, in place: rows end where the lists say, and a layer of low coverage stays whole. */
#include "check.h"
#include "compact_layer.h"

enum { L = 300, HQ = 4, HKV = 2, D = 32, W = 8, C = 40 };

static float queries[HQ][W][D], keys[HKV][L][D], values[HKV][L][D];
static float keys_before[HKV][L][D], values_before[HKV][L][D];

int main(void) {
    static const snapkv_sharing sharings[2] = {SNAPKV_PER_KV_HEAD, SNAPKV_PER_LAYER};
    snapkv_config config = snapkv_default_config();
    snapkv_layer layer = {0};
    int32_t kept[HKV][C];
    size_t size, n_kept, s, h, i;
    void *workspace;

    config.window = W;
    config.capacity = C;
    layer.n_query_heads = HQ;
    layer.n_kv_heads = HKV;
    layer.length = L;
    layer.head_dim = D;
    layer.queries = float_rows(queries[0][0], W, D);
    layer.keys = float_rows(keys[0][0], L, D);
    layer.values = float_rows(values[0][0], L, D);
    config.sharing = SNAPKV_PER_LAYER; /* needs the larger workspace of the two */
    size = snapkv_workspace_size(&config, &layer);
    workspace = malloc(size);
    for (s = 0; s < 2; s++) {
        config.sharing = sharings[s];
        fill(queries[0][0], HQ * W * D);
        fill(keys_before[0][0], HKV * L * D);
        fill(values_before[0][0], HKV * L * D);
        memcpy(keys, keys_before, sizeof keys);
        memcpy(values, values_before, sizeof values);

        CHECK(compact_layer(&config, &layer, 1.01f, kept[0], &n_kept, workspace, size) ==
              SNAPKV_OK);
        CHECK(n_kept == L && memcmp(keys, keys_before, sizeof keys) == 0);

        CHECK(compact_layer(&config, &layer, 0.0f, kept[0], &n_kept, workspace, size) == SNAPKV_OK);
        CHECK(n_kept == C);
        for (h = 0; h < HKV; h++) {
            const int32_t *list = kept[sharings[s] == SNAPKV_PER_LAYER ? 0 : h];

            for (i = 0; i < C; i++) {
                CHECK(memcmp(keys[h][i], keys_before[h][list[i]], sizeof keys[h][i]) == 0);
                CHECK(memcmp(values[h][i], values_before[h][list[i]], sizeof keys[h][i]) == 0);
            }
        }

        /* The error of a policy that has no lists is not lost. */
        memcpy(keys, keys_before, sizeof keys);
        config.kernel_size = 4;
        CHECK(compact_layer(&config, &layer, 0.0f, kept[0], &n_kept, workspace, size) ==
              SNAPKV_ERROR_KERNEL);
        config.kernel_size = 5;
        layer.keys.row_stride = 2;
        CHECK(compact_layer(&config, &layer, 0.0f, kept[0], &n_kept, workspace, size) ==
              SNAPKV_ERROR_STRIDE);
        layer.keys.row_stride = sizeof keys[0][0];
        CHECK(memcmp(keys, keys_before, sizeof keys) == 0);
    }
    free(workspace);
    return 0;
}
