/* The worked example of docs/algorithm.md, step by step: a prompt of 8 positions, the last 2 of
 * which observe, and a cache of 5. The library computes every number from the queries and keys. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "snapkv.h"

enum { LENGTH = 8, WINDOW = 2, CAPACITY = 5, DIM = 2, PREFIX = LENGTH - WINDOW };

/* exp(logit) of the two observing queries, 6 and 7, at every position. */
static const float weights[WINDOW][LENGTH] = {{1, 2, 10, 8, 1, 1, 2, 1}, {1, 1, 8, 12, 1, 1, 1, 1}};

static void must(snapkv_status status) {
    if (status != SNAPKV_OK) {
        fprintf(stderr, "worked_example: %s\n", snapkv_status_string(status));
        exit(1);
    }
}

static void print_row(const char *name, const float *x, size_t n, const char *format) {
    printf("%-28s", name);
    for (size_t j = 0; j < n; j++) {
        printf(format, (double)x[j]);
    }
    printf("\n");
}

int main(void) {
    /* Query 6 is (sqrt 2, 0), query 7 is (0, sqrt 2), and the key of position j holds the
     * logarithms of its two weights, which the dot products over sqrt(DIM) give back. */
    const float root = sqrtf(2.0f);
    const float queries[WINDOW][DIM] = {{root, 0}, {0, root}};
    float keys[LENGTH][DIM], values[LENGTH][DIM];
    for (int j = 0; j < LENGTH; j++) {
        keys[j][0] = logf(weights[0][j]);
        keys[j][1] = logf(weights[1][j]);
        values[j][0] = (float)j;
        values[j][1] = -(float)j;
    }

    snapkv_config config = snapkv_default_config();
    config.window = WINDOW;
    config.capacity = CAPACITY;
    config.kernel_size = 3;
    snapkv_layer layer = {
        .n_query_heads = 1,
        .n_kv_heads = 1,
        .length = LENGTH,
        .head_dim = DIM,
        .queries = {.data = queries, .row_stride = sizeof queries[0]},
        .keys = {.data = keys, .row_stride = sizeof keys[0]},
        .values = {.data = values, .row_stride = sizeof values[0]},
    };
    const size_t size = snapkv_workspace_size(&config, &layer);
    void *workspace = malloc(size);
    if (!workspace) {
        fprintf(stderr, "worked_example: out of memory\n");
        return 1;
    }

    printf("A prompt of %d positions: %d .. %d vote, 0 .. %d stand for election, %d stay.\n\n",
           LENGTH, PREFIX, LENGTH - 1, PREFIX - 1, CAPACITY);
    printf("%-28s", "position");
    for (int j = 0; j < LENGTH; j++) {
        printf("%8d", j);
    }
    printf("\n");

    /* 1. The causal softmax of each query over all it sees, the window too. One query's share of
     * the votes is what snapkv_vote gives for a window of that query alone: query 7's is its own,
     * and query 6's what is left of the sum. */
    float votes[PREFIX], of_7[LENGTH - 1], of_6[PREFIX];
    print_row("exp(logit) of query 6", weights[0], LENGTH - 1, "%8.0f");
    print_row("exp(logit) of query 7", weights[1], LENGTH, "%8.0f");
    must(snapkv_vote(&config, &layer, 0, votes, workspace, size));
    config.window = 1;
    layer.queries.data = queries[1];
    must(snapkv_vote(&config, &layer, 0, of_7, workspace, size));
    config.window = WINDOW;
    layer.queries.data = queries;
    for (int j = 0; j < PREFIX; j++) {
        of_6[j] = votes[j] - of_7[j];
    }
    print_row("softmax of query 6, x / 25", of_6, PREFIX, "%8.4f");
    print_row("softmax of query 7, x / 26", of_7, PREFIX, "%8.4f");
    print_row("votes: their sum", votes, PREFIX, "%8.4f");

    /* 2. Neighbours of a peak survive: the mean of 3, zeros outside, always divided by 3. */
    float scores[PREFIX];
    must(snapkv_pool(votes, PREFIX, config.kernel_size, config.pooling, scores));
    print_row("pooled scores", scores, PREFIX, "%8.4f");

    /* 3. The best CAPACITY - WINDOW, ties to the lower position, and the window. */
    int32_t kept[CAPACITY];
    snapkv_selection selection;
    float kept_keys[CAPACITY][DIM], kept_values[CAPACITY][DIM];
    const snapkv_rows_out keys_out = {kept_keys, 0, sizeof kept_keys[0], NULL, 0, 0};
    const snapkv_rows_out values_out = {kept_values, 0, sizeof kept_values[0], NULL, 0, 0};
    must(snapkv_compress(&config, &layer, 0, kept, &keys_out, &values_out, &selection, workspace,
                         size));
    printf("%-28s", "kept");
    for (int j = 0, i = 0; j < LENGTH; j++) {
        const int is_kept = i < CAPACITY && kept[i] == j;
        printf("%8s", is_kept ? (j < PREFIX ? "*" : "window") : "");
        i += is_kept;
    }
    printf("\n\n%-28s", "slot of the small cache");
    for (int i = 0; i < CAPACITY; i++) {
        printf("%8d", i);
    }
    printf("\n%-28s", "original position");
    for (int i = 0; i < CAPACITY; i++) {
        printf("%8d", (int)kept[i]);
    }
    printf("\n%-28s", "value row");
    for (int i = 0; i < CAPACITY; i++) {
        printf(" (%2.0f,%2.0f)", (double)kept_values[i][0], (double)kept_values[i][1]);
    }

    /* 4. The next token goes to position 8 and slot 5: they part ways. */
    const snapkv_cursor cursor = snapkv_cursor_start(&config, LENGTH);
    printf("\n\nThe next token: position %d, slot %d. "
           "The window's attention that is kept: %.1f %%.\n",
           (int)snapkv_next_position(&cursor), (int)snapkv_next_slot(&cursor),
           100 * (double)selection.coverage);
    free(workspace);
    return 0;
}
