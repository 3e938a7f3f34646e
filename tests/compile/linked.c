/* Two translation units with the whole interface (all_functions.c by two names), in one program. */
#include "snapkv.h"

#include <stdio.h>
#include <string.h>

#define DECLARE(name)                                                                              \
    size_t name(snapkv_config *config, snapkv_layer *layer, int32_t *kept, float *numbers,         \
                snapkv_selection *selection, snapkv_rows_out *out, void *memory, size_t size,      \
                snapkv_model *model, snapkv_ledger *ledger, snapkv_cursor *cursor)
DECLARE(use_everything_here);
DECLARE(use_everything_there);

int main(void) {
    enum { SIZE = 64 };
    static float numbers[2 * SIZE];
    static char memory[4096], moved[4096];
    size_t sums[2];
    for (int i = 0; i < 2; i++) {
        memset(memory, 0, sizeof memory);
        memset(moved, 0, sizeof moved);
        snapkv_config config = snapkv_default_config();
        snapkv_layer layer = {0};
        snapkv_selection selection;
        snapkv_rows_out out[2] = {{moved, 0, 8, NULL, 0, 0},
                                  {moved + 2048, 0, 8, NULL, 0, 0}};
        snapkv_model model = {1, 2, 4, 2, 8, 2};
        snapkv_ledger ledger;
        snapkv_cursor cursor;
        int32_t kept[SIZE] = {0};
        for (int j = 0; j < 2 * SIZE; j++) {
            numbers[j] = (float)(j * 37 % 64);
        }
        sums[i] = (i ? use_everything_here : use_everything_there)(
            &config, &layer, kept, numbers, &selection, out, memory, SIZE, &model, &ledger,
            &cursor);
    }
    if (sums[0] != sums[1]) {
        printf("the same calls add up to %lu here and %lu there\n", (unsigned long)sums[0],
               (unsigned long)sums[1]);
        return 1;
    }
    return 0;
}
