/* Generated rows come back behind the prompt. */
#include "check.h"
#include "multi_turn.h"

int main(void) {
    snapkv_config config = snapkv_default_config();
    snapkv_cursor cursor;
    int compressed[9][2], full[12][2];
    int i;

    config.window = 2;
    config.capacity = 5;
    cursor = snapkv_cursor_start(&config, 8);
    CHECK(snapkv_append(&cursor, 4) == SNAPKV_OK);
    for (i = 0; i < 9; i++) {
        compressed[i][0] = compressed[i][1] = 100 + i;
    }
    memset(full, 0, sizeof full);
    return_generated(&cursor, compressed, full, sizeof full[0]);
    for (i = 0; i < 12; i++) {
        CHECK(full[i][1] == (i < 8 ? 0 : 97 + i));
    }
    return 0;
}
