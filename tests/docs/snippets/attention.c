/* Each model's attention, against the formula in double. */
#include "check.h"
#include "attention.h"

enum { L = 4200, H = 4, D = 8, W = 5 };

static float queries[H][W][D], keys[H][L][D];

int main(void) {
    static const float sinks[H] = {0.5f, -1.0f, 2.0f, 0.0f};
    float slopes[H];
    snapkv_config config = snapkv_default_config();
    snapkv_layer plain = {0}, layer;
    size_t h, index;

    fill(queries[0][0], H * W * D);
    fill(keys[0][0], H * L * D);
    config.window = W;
    plain.n_query_heads = plain.n_kv_heads = H;
    plain.length = L;
    plain.head_dim = D;
    plain.queries = float_rows(queries[0][0], W, D);
    plain.keys = float_rows(keys[0][0], L, D);
    for (h = 0; h < H; h++) {
        for (index = 0; index < 2; index++) {
            layer = plain;
            describe_gemma2(&layer, index, 144.0f);
            CHECK(layer.span == (index == 0 ? 4096u : 0u) && layer.softcap == 50.0f);
            CHECK(fabsf(layer.scale - 1.0f / 12.0f) < 1e-7f);
            CHECK(votes_agree(&config, &layer, h));
            layer = plain;
            describe_gpt_oss(&layer, index, sinks);
            CHECK(layer.span == (index == 0 ? 128u : 0u) && layer.sink_logits == sinks);
            CHECK(votes_agree(&config, &layer, h));
        }
        for (index = 2; index < 4; index++) {
            layer = plain;
            layer.length = 4098; /* of five voters three stand in the first chunk of 4096 */
            describe_llama4(&layer, index);
            CHECK(layer.chunk == (index == 2 ? 8192u : 0u));
            layer.chunk /= 2; /* the data are small */
            CHECK(votes_agree(&config, &layer, h));
        }
        layer = plain;
        describe_alibi(&layer, slopes);
        CHECK(slopes[0] == 0.25f && slopes[3] == 1.0f / 256.0f);
        CHECK(votes_agree(&config, &layer, h));
    }
    return 0;
}
