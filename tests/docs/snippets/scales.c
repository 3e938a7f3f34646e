/* Rows whose scales lie elsewhere vote as the floats that they stand for; contiguous and paged. */
#include "check.h"
#include "scales.h"

enum { L = 96, HQ = 4, HKV = 2, D = 32, W = 8, GROUP = 32, P = L - W };

static unsigned char keys[L][HKV][D], paged[L][HKV][D];
static float decoded[HKV][L][D], queries[HQ][W][D];
static float by_token[L][HKV], by_channel[L / GROUP][HKV][D], zeros[L / GROUP][HKV][D];

int main(void) {
    static const float by_head[HKV] = {0.02f, 0.05f};
    const token_scales tokens = {by_token[0], HKV};
    const channel_scales channels = {by_channel[0][0], zeros[0][0], HKV, GROUP};
    fp8_heads fp8;
    int32_t table[L / 8];
    snapkv_config config = snapkv_default_config();
    snapkv_layer layer = {0}, plain;
    float votes[3][P];
    size_t size, kind, i, h, d;
    void *workspace;

    fp8_start(&fp8, by_head);
    CHECK(fp8.values[0x38] == 1.0f && fp8.values[0xb8] == -1.0f && fp8.values[0x7e] == 448.0f);
    CHECK(fp8.values[0x01] == 0.001953125f && fp8.values[0x08] == 0.015625f);
    CHECK(isnan(fp8.values[0x7f]) && isnan(fp8.values[0xff]));
    fill(queries[0][0], HQ * W * D);
    fill(by_token[0], L * HKV);
    fill(by_channel[0][0], L / GROUP * HKV * D);
    fill(zeros[0][0], L / GROUP * HKV * D);
    for (i = 0; i < L; i++) {
        for (h = 0; h < HKV; h++) {
            by_token[i][h] = 0.01f + 0.005f * fabsf(by_token[i][h]);
            for (d = 0; d < D; d++) {
                const unsigned char x = (unsigned char)((random_float() + 2.0f) * 31.75f);

                keys[i][h][d] = (unsigned char)(i % 2 ? x : x | 0x80);
                keys[i][h][d] = keys[i][h][d] == 0xff ? 0xfe : keys[i][h][d];
                if (i < L / GROUP) {
                    by_channel[i][h][d] = 0.01f + 0.002f * fabsf(by_channel[i][h][d]);
                }
            }
        }
    }
    for (i = 0; i < L / 8; i++) { /* blocks of 8 rows, from the last to the first */
        table[i] = (int32_t)(L / 8 - 1 - i);
        memcpy(paged[8 * (L / 8 - 1 - i)], keys[8 * i], 8 * sizeof keys[0]);
    }
    config.window = W;
    config.capacity = 32;
    layer.n_query_heads = HQ;
    layer.n_kv_heads = HKV;
    layer.length = L;
    layer.head_dim = D;
    layer.queries = float_rows(queries[0][0], W, D);
    plain = layer;
    plain.keys = float_rows(decoded[0][0], L, D);
    size = snapkv_workspace_size(&config, &layer);
    workspace = malloc(size);
    for (kind = 0; kind < 3; kind++) {
        const snapkv_decode_fn decode = kind == 0   ? decode_int8_by_token
                                        : kind == 1 ? decode_uint8_by_channel
                                                    : decode_fp8;
        void *context = kind == 0 ? (void *)&tokens : kind == 1 ? (void *)&channels : (void *)&fp8;

        for (i = 0; i < L; i++) {
            for (h = 0; h < HKV; h++) {
                for (d = 0; d < D; d++) {
                    const unsigned char x = keys[i][h][d];

                    const size_t group = i / GROUP;

                    decoded[h][i][d] = kind == 0 ? by_token[i][h] * (float)(x < 128 ? x : x - 256)
                                       : kind == 1
                                           ? by_channel[group][h][d] * (float)x + zeros[group][h][d]
                                           : by_head[h] * fp8.values[x];
                }
            }
        }
        for (h = 0; h < HQ; h++) {
            CHECK(votes_agree(&config, &plain, h));
            CHECK(snapkv_vote(&config, &plain, h, votes[0], workspace, size) == SNAPKV_OK);
            layer.keys = rows_of_bytes(keys, HKV, D, decode, context);
            CHECK(snapkv_vote(&config, &layer, h, votes[1], workspace, size) == SNAPKV_OK);
            layer.keys = rows_of_bytes(paged, HKV, D, decode, context);
            layer.keys.block_table = table;
            layer.keys.block_rows = 8;
            layer.keys.block_stride = 8 * sizeof paged[0];
            CHECK(snapkv_vote(&config, &layer, h, votes[2], workspace, size) == SNAPKV_OK);
            for (i = 0; i < P; i++) {
                CHECK(fabsf(votes[1][i] - votes[0][i]) <= 1e-5f * votes[0][i]);
                CHECK(votes[2][i] == votes[1][i]);
            }
        }
    }
    free(workspace);
    return 0;
}
