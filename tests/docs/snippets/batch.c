/* A sequence with padding on either side selects as it does alone: NaN in the padding isn't seen.
 */
#include "check.h"
#include "batch.h"

enum { B = 2, CTX = 120, L = 100, HQ = 4, HKV = 2, D = 16, W = 8, C = 24 };

static float queries[B][CTX][HQ][D], keys[B][CTX][HKV][D], values[B][CTX][HKV][D];

int main(void) {
    static const size_t first[B] = {CTX - L, 0}; /* padding on the left, and on the right */
    const padded_batch batch = {queries[0][0][0], keys[0][0][0], values[0][0][0], CTX, HQ, HKV, D};
    snapkv_config config = snapkv_default_config();
    int32_t kept[B][HKV][C], bypassed[W];
    size_t b, i, set;

    memset(queries, 0xff, sizeof queries); /* NaN */
    memset(keys, 0xff, sizeof keys);
    for (i = 0; i < L; i++) {
        fill(queries[0][first[0] + i][0], HQ * D);
        fill(keys[0][first[0] + i][0], HKV * D);
        memcpy(queries[1][first[1] + i], queries[0][first[0] + i], sizeof queries[0][0]);
        memcpy(keys[1][first[1] + i], keys[0][first[0] + i], sizeof keys[0][0]);
    }
    config.window = W;
    config.capacity = C;
    for (b = 0; b < B; b++) {
        const snapkv_layer layer = sequence_of_batch(&batch, b, first[b], L, W);
        const snapkv_layer few = sequence_of_batch(&batch, b, first[b], W - 3, W);
        const size_t size = snapkv_workspace_size(&config, &layer);
        void *workspace = malloc(size);

        for (set = 0; set < HKV; set++) {
            CHECK(snapkv_select(&config, &layer, set, kept[b][set], NULL, NULL, workspace, size) ==
                  SNAPKV_OK);
        }
        CHECK(votes_agree(&config, &layer, 3));
        CHECK(layer.queries.data == queries[b][first[b] + L - W][0]);
        CHECK(few.queries.data == queries[b][first[b]][0]);
        CHECK(snapkv_select(&config, &few, 0, bypassed, NULL, NULL, workspace, size) == SNAPKV_OK);
        CHECK(bypassed[0] == 0 && bypassed[W - 4] == W - 4);
        free(workspace);
    }
    CHECK(memcmp(kept[0], kept[1], sizeof kept[0]) == 0);
    return 0;
}
