/* Whatever the chunks, the tail holds the last queries. */
#include "check.h"
#include "chunked.h"

enum { L = 60, H = 3, D = 4, W = 8 };

static float queries[L][H][D], tail_rows[H][W][D];

int main(void) {
    static const size_t chunkings[][5] = {
        {60}, {5, 1, 40, 3, 11}, {50, 3, 3, 2, 2}, {1, 2, 3, 49, 5}, {52, 8}};
    size_t c, i, h, chunk;

    fill(queries[0][0], L * H * D);
    for (c = 0; c < sizeof chunkings / sizeof chunkings[0]; c++) {
        query_tail tail = {NULL, H, W, D, 0};
        size_t done = 0;
        snapkv_rows rows;

        memset(tail_rows, 0, sizeof tail_rows);
        tail.rows = tail_rows[0][0];
        for (chunk = 0; chunk < 5 && chunkings[c][chunk] > 0; chunk++) {
            push_queries(&tail, queries[done][0], chunkings[c][chunk]);
            done += chunkings[c][chunk];
        }
        CHECK(done == L && tail.filled == W);
        rows = rows_of_tail(&tail);
        for (h = 0; h < H; h++) {
            for (i = 0; i < W; i++) {
                CHECK(memcmp((const char *)rows.data + h * rows.head_stride + i * rows.row_stride,
                             queries[L - W + i][h], sizeof queries[0][0]) == 0);
            }
        }
    }
    return 0;
}
