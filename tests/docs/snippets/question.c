/* A question in the middle sees what stands before it, one behind the prompt all of it. */
#include "check.h"
#include "question.h"

enum { L = 60, D = 8, W = 4 };

static float keys[L][D], queries[W][D];

int main(void) {
    static const size_t firsts[] = {20, L - W, L, 3 * L};
    snapkv_config config = snapkv_default_config();
    snapkv_layer layer = {0};
    int32_t positions[W];
    float votes[L], workspace[4096];
    size_t i, j;

    fill(keys[0], L * D);
    fill(queries[0], W * D);
    config.window = W;
    config.n_recent = 1;
    layer.n_query_heads = layer.n_kv_heads = 1;
    layer.length = L;
    layer.head_dim = D;
    layer.keys = float_rows(keys[0], L, D);
    for (i = 0; i < sizeof firsts / sizeof firsts[0]; i++) {
        vote_by(&layer, &config, float_rows(queries[0], W, D), firsts[i], positions);
        CHECK(votes_agree(&config, &layer, 0));
        CHECK(snapkv_vote(&config, &layer, 0, votes, workspace, sizeof workspace) == SNAPKV_OK);
        for (j = 0; j < L - 1; j++) {
            CHECK((votes[j] > 0.0f) == (j < firsts[i] + W));
        }
    }
    return 0;
}
