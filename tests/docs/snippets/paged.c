/* Blocks in any order: the same lists as from contiguous rows, and compaction into fresh blocks,
 * which leaves the old ones alone, and into the first of the sequence's own. */
#include "check.h"
#include "paged.h"

enum { L = 150, H = 2, D = 32, W = 8, C = 33, ROWS = 16, BLOCKS = 14, USED = 3 };

static float k[BLOCKS][ROWS][H][D], v[BLOCKS][ROWS][H][D], k_before[BLOCKS][ROWS][H][D],
    v_before[BLOCKS][ROWS][H][D];
static float flat[H][L][D], queries[H][W][D];

int main(void) {
    static const int32_t table[] = {7, 2, 12, 0, 5, 9, 3, 11, 1, 8};
    static const int32_t fresh[USED] = {13, 6, 4};
    snapkv_config config = snapkv_default_config();
    snapkv_layer layer = {0}, contiguous;
    int32_t kept[2][H][C];
    size_t size, h, i, b, pass;
    void *workspace;

    fill(queries[0][0], H * W * D);
    fill(flat[0][0], H * L * D);
    fill(v[0][0][0], BLOCKS * ROWS * H * D);
    for (h = 0; h < H; h++) {
        for (i = 0; i < L; i++) {
            memcpy(k[table[i / ROWS]][i % ROWS][h], flat[h][i], sizeof flat[h][i]);
        }
    }
    memcpy(k_before, k, sizeof k);
    memcpy(v_before, v, sizeof v);
    config.window = W;
    config.capacity = C;
    layer.n_query_heads = layer.n_kv_heads = H;
    layer.length = L;
    layer.head_dim = D;
    layer.queries = float_rows(queries[0][0], W, D);
    contiguous = layer;
    contiguous.keys = float_rows(flat[0][0], L, D);
    layer.keys = rows_paged(k, table, ROWS, H, SNAPKV_F32, D);
    layer.values = rows_paged(v, table, ROWS, H, SNAPKV_F32, D);
    size = snapkv_workspace_size(&config, &layer);
    workspace = malloc(size);
    for (pass = 0; pass < 2; pass++) {
        const int32_t *to = pass == 0 ? fresh : table;

        CHECK(compact_pages(&config, &layer, pass == 0 ? fresh : NULL, kept[0][0], workspace,
                            size) == USED);
        for (h = 0; h < H; h++) {
            CHECK(snapkv_select(&config, &contiguous, h, kept[1][h], NULL, NULL, workspace, size) ==
                  SNAPKV_OK);
            for (i = 0; i < C; i++) {
                const size_t p = (size_t)kept[0][h][i];

                CHECK(memcmp(k[to[i / ROWS]][i % ROWS][h], k_before[table[p / ROWS]][p % ROWS][h],
                             sizeof flat[h][i]) == 0);
                CHECK(memcmp(v[to[i / ROWS]][i % ROWS][h], v_before[table[p / ROWS]][p % ROWS][h],
                             sizeof flat[h][i]) == 0);
            }
        }
        CHECK(memcmp(kept[0], kept[1], sizeof kept[0]) == 0);
        for (b = 0; b < BLOCKS; b++) { /* no block is written but those of the destination */
            int written = 0;

            for (i = 0; i < USED; i++) {
                written = written || (size_t)fresh[i] == b || (pass == 1 && (size_t)table[i] == b);
            }
            CHECK(written || memcmp(k[b], k_before[b], sizeof k[b]) == 0);
        }
    }
    config.kernel_size = 2;
    CHECK(compact_pages(&config, &layer, NULL, kept[0][0], workspace, size) == 0);
    free(workspace);
    return 0;
}
