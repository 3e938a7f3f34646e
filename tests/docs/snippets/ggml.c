/* q8_0 and q4_0 keys vote as their decoded floats do; a transposed V is compacted in place. These
 * declarations stand in for ggml.h, in the parts that the snippet uses. */
#include "check.h"

typedef uint16_t ggml_fp16_t;
enum ggml_type {
    GGML_TYPE_F32 = 0,
    GGML_TYPE_F16 = 1,
    GGML_TYPE_Q4_0 = 2,
    GGML_TYPE_Q5_0 = 6,
    GGML_TYPE_Q8_0 = 8,
    GGML_TYPE_BF16 = 30
};
struct ggml_tensor {
    enum ggml_type type;
    int64_t ne[4];
    size_t nb[4];
    void *data;
};

static float ggml_fp16_to_fp32(ggml_fp16_t half) {
    return from_half(half);
}

#include "ggml.h"

enum { L = 150, HQ = 4, HKV = 2, D = 64, W = 8, C = 32, BLOCK = 34, ROW = D / 32 * BLOCK };
enum { Q4_BLOCK = 18, Q4_ROW = D / 32 * Q4_BLOCK };

static unsigned char k_q8[L][HKV][ROW], k_q4[L][HKV][Q4_ROW];
static float k_float[HKV][L][D];
static float q_ggml[W + 3][HQ][D]; /* [head_dim, n_head, n_tokens], the first tokens not wanted */
static uint16_t v[HKV][D][L], v_before[HKV][D][L];

int main(void) {
    struct ggml_tensor keys = {GGML_TYPE_Q8_0, {D, L, HKV, 1}, {BLOCK, HKV * ROW, ROW, 0}, k_q8};
    struct ggml_tensor queries = {
        GGML_TYPE_F32, {D, HQ, W + 3, 1}, {4, 4 * D, 4 * D * HQ, 0}, q_ggml};
    struct ggml_tensor values = {GGML_TYPE_F16, {L, D, HKV, 1}, {2, 2 * L, 2 * L * D, 0}, v};
    snapkv_config config = snapkv_default_config();
    snapkv_layer layer = {0}, decoded;
    float votes[2][L - W];
    int32_t kept[C];
    size_t size, h, i, d;
    void *workspace;

    fill(q_ggml[0][0], (W + 3) * HQ * D);
    for (i = 0; i < L; i++) {
        for (h = 0; h < HKV; h++) {
            for (d = 0; d < D; d++) {
                unsigned char *block = k_q8[i][h] + d / 32 * BLOCK;
                const uint16_t scale = to_half(1.0f / 64.0f + (float)(i % 7) / 1024.0f);
                const int8_t quant = (int8_t)(random_float() * 63.0f);

                memcpy(block, &scale, 2);
                memcpy(block + 2 + d % 32, &quant, 1);
                k_float[h][i][d] = from_half(scale) * (float)quant;
                v[h][d][i] = (uint16_t)(1000 * h + 10 * i + d);
            }
        }
    }
    memcpy(v_before, v, sizeof v);
    config.window = W;
    config.capacity = C;
    layer.n_query_heads = HQ;
    layer.n_kv_heads = HKV;
    layer.length = L;
    layer.head_dim = D;
    layer.queries = rows_of_ggml(&queries, 2, 1, 3);
    layer.keys = rows_of_ggml(&keys, 1, 2, 0);
    CHECK(layer.keys.row_bytes == ROW);
    decoded = layer;
    decoded.keys = float_rows(k_float[0][0], L, D);
    size = snapkv_workspace_size(&config, &layer);
    workspace = malloc(size);
    for (h = 0; h < HQ; h++) {
        CHECK(snapkv_vote(&config, &layer, h, votes[0], workspace, size) == SNAPKV_OK);
        CHECK(snapkv_vote(&config, &decoded, h, votes[1], workspace, size) == SNAPKV_OK);
        CHECK(memcmp(votes[0], votes[1], sizeof votes[0]) == 0);
    }
    for (h = 0; h < HKV; h++) {
        CHECK(snapkv_select(&config, &layer, h, kept, NULL, NULL, workspace, size) == SNAPKV_OK);
        CHECK(compact_transposed_v(&values, h, kept, C) == SNAPKV_OK);
        for (d = 0; d < D; d++) {
            for (i = 0; i < C; i++) {
                CHECK(v[h][d][i] == v_before[h][d][kept[i]]);
            }
        }
    }
    /* q4_0, against the format: x = scale * (nibble - 8), the low halves first. */
    for (i = 0; i < L; i++) {
        for (h = 0; h < HKV; h++) {
            for (d = 0; d < D; d++) {
                unsigned char *block = k_q4[i][h] + d / 32 * Q4_BLOCK;
                const uint16_t scale = to_half(0.25f + (float)(i % 5) / 64.0f);
                const int nibble = (int)((random_float() + 2.0f) * 3.99f);

                memcpy(block, &scale, 2);
                block[2 + d % 16] |= (unsigned char)(d % 32 < 16 ? nibble : nibble << 4);
                k_float[h][i][d] = from_half(scale) * (float)(nibble - 8);
            }
        }
    }
    keys.type = GGML_TYPE_Q4_0;
    keys.nb[0] = Q4_BLOCK;
    keys.nb[1] = HKV * Q4_ROW;
    keys.nb[2] = Q4_ROW;
    keys.data = k_q4;
    layer.keys = rows_of_ggml(&keys, 1, 2, 0);
    CHECK(layer.keys.row_bytes == Q4_ROW);
    for (h = 0; h < HQ; h++) {
        CHECK(snapkv_vote(&config, &layer, h, votes[0], workspace, size) == SNAPKV_OK);
        CHECK(snapkv_vote(&config, &decoded, h, votes[1], workspace, size) == SNAPKV_OK);
        CHECK(memcmp(votes[0], votes[1], sizeof votes[0]) == 0);
    }
    keys.type = GGML_TYPE_Q5_0;
    layer.keys = rows_of_ggml(&keys, 1, 2, 0);
    CHECK(snapkv_check(&config, &layer) == SNAPKV_ERROR_NULL);
    free(workspace);
    return 0;
}
