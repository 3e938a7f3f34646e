#include "snapkv.h" // cc -O3 -march=native -I include examples/quickstart.c -lm
#include <stdio.h>
enum { H = 4, L = 8192, D = 64, W = 32, ROW = 4 * D }; // heads, length, dims, window, bytes
static float Q[H * W * D], K[H * L * D], V[H * L * D]; // [head][position][dim]; Q: the last W
static float workspace[300000]; // snapkv_workspace_size() says how much; 150000 work, slower
static int32_t kept[2048];      // the original position of each slot of the small cache
int main(void) {
    for (int i = 0; i < H * L * D; i++) K[i] = Q[i % (H * W * D)] = (float)(i * 7LL % 99) / 50;
    snapkv_config config = snapkv_default_config(); // keep 2048: the last 32, the best others
    snapkv_layer layer = {.n_query_heads = H, .n_kv_heads = H, .length = L, .head_dim = D,
        .queries = {.data = Q, .head_stride = W * ROW, .row_stride = ROW},
        .keys = {.data = K, .head_stride = L * ROW, .row_stride = ROW},
        .values = {.data = V, .head_stride = L * ROW, .row_stride = ROW}};
    snapkv_rows_out k_out = {K, L * ROW, ROW}, v_out = {V, L * ROW, ROW}; // here: in place
    for (size_t set = 0; set < snapkv_set_count(&config, &layer); set++) {
        snapkv_status status = snapkv_compress(&config, &layer, set, kept, &k_out, &v_out,
                                               NULL, workspace, sizeof workspace);
        printf("head %d: %s\n", (int)set, snapkv_status_string(status));
    }
}
