/* The same numbers in both nestings give the same lists. */
#include "check.h"
#include "layouts.h"

enum { L = 200, CTX = 256, HQ = 4, HKV = 2, D = 32, W = 8, C = 40 };

static uint16_t q_hld[HQ][W][D], k_hld[HKV][CTX][D], q_lhd[W][HQ][D], k_lhd[L][HKV][D];

int main(void) {
    snapkv_config config = snapkv_default_config();
    snapkv_layer one = {0}, other;
    int32_t kept[2][C];
    size_t size, h, i, d, set;
    void *workspace;

    for (d = 0; d < D; d++) {
        for (h = 0; h < HQ; h++) {
            for (i = 0; i < W; i++) {
                q_hld[h][i][d] = q_lhd[i][h][d] = to_half(random_float());
            }
        }
        for (h = 0; h < HKV; h++) {
            for (i = 0; i < L; i++) {
                k_hld[h][i][d] = k_lhd[i][h][d] = to_half(random_float());
            }
        }
    }
    config.window = W;
    config.capacity = C;
    one.n_query_heads = HQ;
    one.n_kv_heads = HKV;
    one.length = L;
    one.head_dim = D;
    other = one;
    one.queries = rows_hld(q_hld, SNAPKV_F16, W, D);
    one.keys = rows_hld(k_hld, SNAPKV_F16, CTX, D);
    other.queries = rows_lhd(q_lhd, SNAPKV_F16, HQ, D);
    other.keys = rows_lhd(k_lhd, SNAPKV_F16, HKV, D);
    size = snapkv_workspace_size(&config, &one);
    workspace = malloc(size);
    for (set = 0; set < HKV; set++) {
        CHECK(snapkv_select(&config, &one, set, kept[0], NULL, NULL, workspace, size) == SNAPKV_OK);
        CHECK(snapkv_select(&config, &other, set, kept[1], NULL, NULL, workspace, size) ==
              SNAPKV_OK);
        CHECK(memcmp(kept[0], kept[1], sizeof kept[0]) == 0);
    }
    free(workspace);
    return 0;
}
