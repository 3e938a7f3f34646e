#include "snapkv.h" // cc -O3 -march=native -I include examples/quickstart.c -lm
#include <stdio.h>
enum { H = 4, L = 8192, D = 64, W = 32, C = 2048 }; // heads, length, dims, window, capacity
static float Q[H * W * D], K[H * L * D], V[H * L * D]; // [head][position][dim]; Q: the last W
static float workspace[300000]; // snapkv_workspace_size() says how much; 150000 work, slower
static int32_t kept[H * C];     // the original position of each slot of the small cache
static snapkv_layer layer;      // zeros: what isn't set below is not there
int main(void) {
    for (int i = 0; i < H * L * D; i++) K[i] = Q[i % (H * W * D)] = (float)(i * 7LL % 99) / 50;
    snapkv_config config = snapkv_default_config(); // keep 2048: the last 32, the best others
    layer.n_query_heads = layer.n_kv_heads = H;
    layer.length = L;
    layer.head_dim = D;
    layer.queries = snapkv_rows_by_head(Q, SNAPKV_F32, W, D);
    layer.keys = snapkv_rows_by_head(K, SNAPKV_F32, L, D);
    layer.values = snapkv_rows_by_head(V, SNAPKV_F32, L, D);
    snapkv_rows_out keys_out = snapkv_rows_in_place(&layer.keys);
    snapkv_rows_out values_out = snapkv_rows_in_place(&layer.values);
    snapkv_status status = snapkv_compress_layer(&config, &layer, kept, &keys_out, &values_out,
                                                 NULL, workspace, sizeof workspace);
    snapkv_cursor cursor = snapkv_cursor_start(&config, L);
    printf("%s: the next token goes to position %d, slot %d\n", snapkv_status_string(status),
           (int)snapkv_next_position(&cursor), (int)snapkv_next_slot(&cursor));
    return status == SNAPKV_OK ? 0 : 1;
}
