/* Heads move together in the same memory; what lies behind them stays. */
#include "check.h"
#include "dense.h"

enum { H = 3, CTX = 50, C = 20, D = 4 };

static float cache[H][CTX][D], before[H][CTX][D];

int main(void) {
    int32_t kept[H][C];
    size_t h, i;

    fill(before[0][0], H * CTX * D);
    memcpy(cache, before, sizeof cache);
    for (h = 0; h < H; h++) {
        for (i = 0; i < C; i++) {
            kept[h][i] = (int32_t)(2 * i + h); /* of 45 positions; head 2 keeps the last of them */
        }
    }
    CHECK(compact_dense(cache, H, CTX, sizeof cache[0][0], kept[0], C) == SNAPKV_OK);
    for (h = 0; h < H; h++) {
        for (i = 0; i < C; i++) {
            CHECK(memcmp((float(*)[D])cache[0] + h * C + i, before[h][kept[h][i]],
                         sizeof before[h][i]) == 0);
        }
    }
    CHECK(memcmp((float(*)[D])cache[0] + H * C, (float(*)[D])before[0] + H * C,
                 (H * CTX - H * C) * sizeof cache[0][0]) == 0);
    return 0;
}
