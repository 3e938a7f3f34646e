/* A cache that is compressed over and over: each slot holds the row of its position, span and ALiBi
 * are those of the positions, and the cursor goes on. */
#include "check.h"
#include "again.h"

enum { L = 70, STEPS = 60, LIMIT = 40, HQ = 2, D = 8, W = 6, C = 24 };

static float all_queries[L + STEPS][HQ][D], all_keys[L + STEPS][D];
static float keys[L][D], values[L][D];

int main(void) {
    static const float slopes[HQ] = {0.25f, 0.0625f};
    int32_t positions[L], kept[L];
    slot_map map = {{0, 0, 0}, positions};
    snapkv_config config = snapkv_default_config();
    snapkv_layer layer = {0};
    snapkv_rows_out keys_out, values_out;
    double votes[HQ][LIMIT];
    size_t size, i, h, n, t, rounds = 0;
    void *workspace;

    fill(all_queries[0][0], (L + STEPS) * HQ * D);
    fill(all_keys[0], (L + STEPS) * D);
    memcpy(keys, all_keys, sizeof keys);
    memcpy(values, all_keys, sizeof values);
    config.window = W;
    config.capacity = C;
    config.kernel_size = 1;
    layer.n_query_heads = HQ;
    layer.n_kv_heads = 1;
    layer.length = L;
    layer.head_dim = D;
    layer.span = 50;
    layer.alibi_slopes = slopes;
    layer.queries = snapkv_rows_by_position(all_queries[L - W], SNAPKV_F32, HQ, D);
    layer.keys = float_rows(keys[0], L, D);
    layer.values = float_rows(values[0], L, D);
    keys_out = snapkv_rows_in_place(&layer.keys);
    values_out = snapkv_rows_in_place(&layer.values);
    size = snapkv_workspace_size(&config, &layer);
    workspace = malloc(size);
    CHECK(snapkv_compress_layer(&config, &layer, kept, &keys_out, &values_out, NULL, workspace,
                                size) == SNAPKV_OK);
    map_start(&map, &config, L, kept);
    for (t = L; t < L + STEPS; t++) {
        const size_t slot = snapkv_next_slot(&map.cursor);

        CHECK(snapkv_next_position(&map.cursor) == t && slot < LIMIT);
        memcpy(keys[slot], all_keys[t], sizeof keys[slot]);
        memcpy(values[slot], all_keys[t], sizeof values[slot]);
        map_append(&map);
        if (snapkv_next_slot(&map.cursor) == LIMIT) {
            layer.queries = snapkv_rows_by_position(all_queries[t + 1 - W], SNAPKV_F32, HQ, D);
            layer.length = LIMIT;
            layer.key_positions = positions;
            for (h = 0; h < HQ; h++) {
                CHECK(votes_agree(&config, &layer, h));
                votes_by_formula(&layer, W, LIMIT - W, h, votes[h]);
            }
            layer.key_positions = NULL;
            CHECK(compress_again(&config, &layer, &map, kept, workspace, size) == SNAPKV_OK);
            for (i = 0; i + W < C; i++) { /* none that is dropped has more votes */
                const double least = votes[0][kept[i]] + votes[1][kept[i]];

                for (h = 0, n = 0; n < LIMIT - W; n++) {
                    if (h < C && kept[h] == (int32_t)n) {
                        h++;
                    } else {
                        CHECK(votes[0][n] + votes[1][n] <= least + 1e-5);
                    }
                }
            }
            CHECK(snapkv_next_slot(&map.cursor) == C);
            CHECK(snapkv_rewind(&map.cursor, 1) == SNAPKV_ERROR_INDEX);
            rounds++;
        }
        n = snapkv_next_slot(&map.cursor);
        for (i = 0; i < n; i++) {
            size_t position = 0;

            CHECK(memcmp(keys[i], all_keys[positions[i]], sizeof keys[i]) == 0);
            CHECK(memcmp(values[i], all_keys[positions[i]], sizeof values[i]) == 0);
            CHECK(snapkv_slot_position(&map.cursor, positions, i, &position) == SNAPKV_OK);
            CHECK(position == (size_t)positions[i]);
        }
    }
    CHECK(rounds == 3);
    free(workspace);
    return 0;
}
