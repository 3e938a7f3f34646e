/* Blocks in any order: the same list as from contiguous rows, and compaction through the table. */
#include "check.h"
#include "paged.h"

enum { L = 150, H = 2, D = 32, W = 8, C = 33, ROWS = 16, BLOCKS = 13 };

static float pool[BLOCKS][ROWS][H][D], fresh[3][ROWS][H][D], flat[H][L][D], queries[H][W][D];

int main(void) {
    static const int32_t table[] = {7, 2, 12, 0, 5, 9, 3, 11, 1, 8};
    static const int32_t fresh_table[] = {2, 0, 1};
    const size_t row_bytes = sizeof pool[0][0][0];
    const snapkv_rows to = rows_paged(fresh, fresh_table, ROWS, H, row_bytes, SNAPKV_F32);
    snapkv_config config = snapkv_default_config();
    snapkv_layer layer = {0}, contiguous;
    int32_t kept[C], expected[C];
    size_t size, h, i;
    void *workspace;

    fill(queries[0][0], H * W * D);
    fill(flat[0][0], H * L * D);
    for (h = 0; h < H; h++) {
        for (i = 0; i < L; i++) {
            memcpy(pool[table[i / ROWS]][i % ROWS][h], flat[h][i], row_bytes);
        }
    }
    config.window = W;
    config.capacity = C;
    layer.n_query_heads = layer.n_kv_heads = H;
    layer.length = L;
    layer.head_dim = D;
    layer.queries = float_rows(queries[0][0], W, D);
    contiguous = layer;
    contiguous.keys = float_rows(flat[0][0], L, D);
    layer.keys = rows_paged(pool, table, ROWS, H, row_bytes, SNAPKV_F32);
    size = snapkv_workspace_size(&config, &layer);
    workspace = malloc(size);
    for (h = 0; h < H; h++) {
        CHECK(snapkv_select(&config, &layer, h, kept, NULL, NULL, workspace, size) == SNAPKV_OK);
        CHECK(snapkv_select(&config, &contiguous, h, expected, NULL, NULL, workspace, size) ==
              SNAPKV_OK);
        CHECK(memcmp(kept, expected, sizeof kept) == 0);
        CHECK(compact_paged(&layer.keys, &to, h, row_bytes, kept, C) == 3);
        CHECK(compact_paged(&layer.keys, &layer.keys, h, row_bytes, kept, C) == 3);
        for (i = 0; i < C; i++) {
            CHECK(memcmp(fresh[fresh_table[i / ROWS]][i % ROWS][h], flat[h][kept[i]], row_bytes) ==
                  0);
            CHECK(memcmp(pool[table[i / ROWS]][i % ROWS][h], flat[h][kept[i]], row_bytes) == 0);
        }
    }
    free(workspace);
    return 0;
}
