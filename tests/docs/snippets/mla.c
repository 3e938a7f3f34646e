/* One latent row for all heads, in the smallest workspace. */
#include "check.h"
#include "mla.h"

enum { L = 200, H = 16, W = 8, C = 48 };

static float queries[H][W][MLA_DIM];
static uint16_t rows[L][MLA_DIM], before[L][MLA_DIM];

int main(void) {
    snapkv_config config = snapkv_default_config();
    snapkv_layer sizes = {0};
    snapkv_selection selection;
    int32_t kept[C];
    size_t size, i, d;
    void *workspace;

    fill(queries[0][0], H * W * MLA_DIM);
    for (i = 0; i < L; i++) {
        for (d = 0; d < MLA_DIM; d++) {
            const float x = random_float() / 4.0f;
            uint32_t bits;

            memcpy(&bits, &x, sizeof bits);
            rows[i][d] = (uint16_t)(bits >> 16);
        }
    }
    memcpy(before, rows, sizeof rows);
    config.window = W;
    config.capacity = C;
    sizes.n_query_heads = H; /* the workspace sizes need no pointers */
    sizes.n_kv_heads = 1;
    sizes.length = L;
    sizes.head_dim = MLA_DIM;
    size = snapkv_workspace_min(&config, &sizes);
    CHECK(size > 0 && size < snapkv_workspace_size(&config, &sizes));
    workspace = malloc(size);
    CHECK(compact_mla(&config, rows[0], L, queries[0][0], H, kept, &selection, workspace, size) ==
          SNAPKV_OK);
    CHECK(selection.n_kept == C && !selection.bypassed);
    for (i = 0; i < C; i++) {
        CHECK(memcmp(rows[i], before[kept[i]], sizeof rows[i]) == 0);
    }
    CHECK(kept[C - W] == L - W);
    free(workspace);
    return 0;
}
