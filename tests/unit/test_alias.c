/* Outputs that lie where another output, the list, the workspace or a row still to be read lies. */
#include "check.h"
#include "problem.h"

#include <stdlib.h>
#include <string.h>

enum { LENGTH = 60, WINDOW = 4, CAPACITY = 16, DIM = 8, ROW = DIM * 4 };

typedef struct setup {
    problem p;
    size_t size;
    float *workspace;
    int32_t *kept;
    float *out; /* room for two outputs of two heads, and more */
} setup;

static setup begin(snapkv_sharing sharing, size_t n_query_heads, size_t n_kv_heads) {
    setup s;
    splitmix random = {7};
    snapkv_config config = make_config(WINDOW, CAPACITY, 3);
    config.sharing = sharing;
    s.p = problem_new(config, n_query_heads, n_kv_heads, LENGTH, DIM);
    problem_fill(&s.p, &random, 4, 0);
    problem_pack_plainly(&s.p);
    s.size = snapkv_workspace_size(&s.p.config, &s.p.layer);
    s.workspace = new_array(s.size / 4 + 1, 4);
    s.kept = new_array(CAPACITY, sizeof *s.kept);
    s.out = new_array(8 * CAPACITY * DIM, sizeof *s.out);
    return s;
}

static void end(setup *s) {
    free(s->workspace);
    free(s->kept);
    free(s->out);
    problem_free(&s->p);
}

static snapkv_status compress(setup *s, size_t set, int32_t *kept, void *keys, void *values,
                              snapkv_selection *selection) {
    const snapkv_rows_out keys_out = {keys, CAPACITY * ROW, ROW, NULL, 0, 0};
    const snapkv_rows_out values_out = {values, CAPACITY * ROW, ROW, NULL, 0, 0};
    return snapkv_compress(&s->p.config, &s->p.layer, set, kept, &keys_out, &values_out, selection,
                           s->workspace, s->size);
}

static void test_list_inside_an_output(void **state) {
    (void)state;
    setup s = begin(SNAPKV_PER_KV_HEAD, 1, 1);
    float *keys = s.out, *values = s.out + CAPACITY * DIM;
    int32_t *inside[2] = {(int32_t *)(void *)(keys + 5), (int32_t *)(void *)(values + 5)};
    for (int i = 0; i < 2; i++) {
        assert_status(compress(&s, 0, inside[i], keys, values, NULL), SNAPKV_ERROR_ALIAS);
    }
    assert_status(compress(&s, 0, s.kept, keys, values, NULL), SNAPKV_OK);
    end(&s);
}

static void test_output_inside_the_workspace(void **state) {
    (void)state;
    setup s = begin(SNAPKV_PER_KV_HEAD, 1, 1);
    assert_status(compress(&s, 0, s.kept, s.workspace + 20, s.out, NULL), SNAPKV_ERROR_ALIAS);
    assert_status(compress(&s, 0, s.kept, s.out, s.workspace + 20, NULL), SNAPKV_ERROR_ALIAS);
    end(&s);
}

static void test_selection_inside_another_output(void **state) {
    (void)state;
    setup s = begin(SNAPKV_PER_KV_HEAD, 1, 1);
    float scores[LENGTH];
    void *places[3] = {s.kept, s.workspace, scores};
    for (int i = 0; i < 3; i++) {
        assert_status(snapkv_select(&s.p.config, &s.p.layer, 0, s.kept, scores,
                                    (snapkv_selection *)places[i], s.workspace, s.size),
                      SNAPKV_ERROR_ALIAS);
    }
    assert_status(compress(&s, 0, s.kept, s.out, s.out + CAPACITY * DIM,
                           (snapkv_selection *)(void *)s.out),
                  SNAPKV_ERROR_ALIAS);
    end(&s);
}

/* Sets are calls of their own: where another would write is the caller's. Those of one call are
 * not: K of one head and V of another may not meet. */
static void test_outputs_of_different_sets(void **state) {
    (void)state;
    setup s = begin(SNAPKV_PER_KV_HEAD, 2, 2);
    float *keys = s.out, *values = s.out + CAPACITY * DIM; /* V of head 0 is K of head 1 */
    for (size_t set = 0; set < 2; set++) {
        assert_status(compress(&s, set, s.kept, keys, values, NULL), SNAPKV_OK);
    }
    snapkv_rows_out keys_out = {keys, CAPACITY * DIM * 4, DIM * 4, NULL, 0, 0};
    snapkv_rows_out values_out = {values, CAPACITY * DIM * 4, DIM * 4, NULL, 0, 0};
    assert_status(snapkv_compress_layer(&s.p.config, &s.p.layer, s.kept, &keys_out, &values_out,
                                        NULL, s.workspace, s.size),
                  SNAPKV_ERROR_ALIAS);
    assert_status(compress(&s, 1, s.kept, keys, keys + 2 * CAPACITY * DIM, NULL), SNAPKV_OK);
    end(&s);
}

/* Rows are read in full although a gather copies only their first half. */
static void test_part_of_a_row_that_is_only_read(void **state) {
    (void)state;
    setup s = begin(SNAPKV_PER_KV_HEAD, 1, 1);
    float *keys = new_array(LENGTH * DIM, sizeof *keys);
    memcpy(keys, s.p.keys, LENGTH * ROW);
    s.p.layer.keys.data = keys;
    s.p.layer.keys.row_stride = ROW;
    s.p.layer.keys.row_bytes = ROW / 2;
    const snapkv_rows_out keys_out = {keys + DIM / 2, 0, ROW, NULL, 0, 0};
    const snapkv_rows_out values_out = {s.out, 0, ROW, NULL, 0, 0};
    assert_status(snapkv_compress(&s.p.config, &s.p.layer, 0, s.kept, &keys_out, &values_out, NULL,
                                  s.workspace, s.size),
                  SNAPKV_ERROR_ALIAS);
    free(keys);
    end(&s);
}

/* K in every second row of a buffer, outputs at another stride: somewhere two rows meet, though the
 * first of the output lies in a gap of K. At the same stride all lie in the gaps. */
static void test_outputs_in_the_gaps_of_an_input(void **state) {
    (void)state;
    setup s = begin(SNAPKV_PER_KV_HEAD, 1, 1);
    float *keys = new_array(2 * LENGTH * DIM, sizeof *keys);
    for (size_t row = 0; row < LENGTH; row++) {
        memcpy(keys + 2 * row * DIM, s.p.keys + row * DIM, ROW);
    }
    s.p.layer.keys = snapkv_rows_by_head(keys, SNAPKV_F32, LENGTH, DIM);
    s.p.layer.keys.row_stride = 2 * ROW;
    for (size_t stride = 2 * ROW; stride <= 3 * ROW; stride += ROW) {
        const snapkv_rows_out keys_out = {keys + DIM, 0, stride, NULL, 0, 0};
        const snapkv_rows_out values_out = {s.out, 0, ROW, NULL, 0, 0};
        assert_status(snapkv_compress(&s.p.config, &s.p.layer, 0, s.kept, &keys_out, &values_out,
                                      NULL, s.workspace, s.size),
                      stride == 2 * ROW ? SNAPKV_OK : SNAPKV_ERROR_ALIAS);
    }
    free(keys);
    end(&s);
}

/* K in a pool of many blocks, wherever in it: an output in its lowest block or its highest, or the
 * paged output that shares a block, is refused; blocks of the pool that K does not have are free. */
static void test_outputs_in_a_pool(void **state) {
    (void)state;
    static const int32_t highest[] = {LENGTH, 32766, 32767, 32768, 32769, 65536};
    for (size_t i = 0; i < COUNT_OF(highest); i++) {
        for (int descending = 0; descending < 2; descending++) {
            setup s = begin(SNAPKV_PER_KV_HEAD, 1, 1);
            float *pool = new_array(((size_t)highest[i] + CAPACITY + 1) * DIM, sizeof *pool);
            int32_t table[LENGTH];
            int32_t pages[CAPACITY];
            for (int32_t row = 0; row < LENGTH; row++) { /* blocks 0, 1, 2 ... and the highest */
                const int32_t block = row < LENGTH - 1 ? row : highest[i];
                table[descending ? LENGTH - 1 - row : row] = block;
            }
            for (size_t row = 0; row < LENGTH; row++) {
                memcpy(pool + (size_t)table[row] * DIM, s.p.keys + row * DIM, ROW);
            }
            s.p.layer.keys = snapkv_rows_by_head(pool, SNAPKV_F32, LENGTH, DIM);
            s.p.layer.keys.block_table = table;
            s.p.layer.keys.block_rows = 1;
            s.p.layer.keys.block_stride = ROW;
            const snapkv_rows_out values_out = {s.out, 0, ROW, NULL, 0, 0};
            snapkv_rows_out keys_out = {pool + (size_t)highest[i] * DIM, 0, ROW, NULL, 0, 0};
            assert_status(snapkv_compress(&s.p.config, &s.p.layer, 0, s.kept, &keys_out,
                                          &values_out, NULL, s.workspace, s.size),
                          SNAPKV_ERROR_ALIAS);
            keys_out.data = pool + ((size_t)highest[i] + 1) * DIM;
            assert_status(snapkv_compress(&s.p.config, &s.p.layer, 0, s.kept, &keys_out,
                                          &values_out, NULL, s.workspace, s.size),
                          SNAPKV_OK);
            for (int shared = 0; shared < 2; shared++) {
                for (int32_t row = 0; row < CAPACITY; row++) {
                    pages[row] = highest[i] + 1 + row;
                }
                pages[0] -= shared; /* the highest of K's */
                /* Where the pool starts a block earlier or later, a block is another number. */
                for (int32_t shift = -1; shift <= 1; shift++) {
                    int32_t shifted[CAPACITY];
                    for (int32_t row = 0; row < CAPACITY; row++) {
                        shifted[row] = pages[row] - shift;
                    }
                    keys_out.data = (char *)pool + shift * ROW;
                    keys_out.row_stride = keys_out.block_stride = ROW;
                    keys_out.block_rows = 1;
                    keys_out.block_table = shifted;
                    assert_status(snapkv_compress(&s.p.config, &s.p.layer, 0, s.kept, &keys_out,
                                                  &values_out, NULL, s.workspace, s.size),
                                  shared ? SNAPKV_ERROR_ALIAS : SNAPKV_OK);
                }
            }
            /* The shared block is the output's last, a whole number of searches behind its first. */
            for (int32_t row = 0; highest[i] == 65536 && row < CAPACITY; row++) {
                pages[row] = row < CAPACITY - 1 ? 32768 + row : highest[i];
            }
            keys_out.data = pool;
            keys_out.block_table = pages;
            keys_out.row_stride = keys_out.block_stride = ROW;
            assert_status(snapkv_compress(&s.p.config, &s.p.layer, 0, s.kept, &keys_out,
                                          &values_out, NULL, s.workspace, s.size),
                          SNAPKV_ERROR_ALIAS);
            free(pool);
            end(&s);
        }
    }
}

/* A gather asks nothing of the queries: slopes of more heads than memory has reach everywhere. */
static void test_slopes_without_end(void **state) {
    (void)state;
    const int32_t list[2] = {3, 5};
    setup s = begin(SNAPKV_PER_KV_HEAD, 1, 1);
    const snapkv_rows_out keys_out = {s.out, 0, ROW, NULL, 0, 0};
    const snapkv_rows_out values_out = {s.out + 2 * DIM, 0, ROW, NULL, 0, 0};
    s.p.layer.queries.data = NULL;
    s.p.layer.alibi_slopes = s.out;
    s.p.layer.n_query_heads = SIZE_MAX / sizeof(float) + 1;
    assert_status(snapkv_gather(&s.p.config, &s.p.layer, 0, list, 2, &keys_out, &values_out),
                  SNAPKV_ERROR_ALIAS);
    s.p.layer.alibi_slopes = NULL;
    assert_ok(snapkv_gather(&s.p.config, &s.p.layer, 0, list, 2, &keys_out, &values_out));
    end(&s);
}

static void test_mass_inside_what_is_read(void **state) {
    (void)state;
    setup s = begin(SNAPKV_PER_KV_HEAD, 1, 1);
    int32_t kept[4] = {1, 2, 3, 4};
    float query[DIM] = {1};
    float mass;
    float *inside[] = {s.workspace, s.workspace + s.size / 4 - 1, (float *)(void *)(kept + 3),
                       query + DIM - 1};
    for (size_t i = 0; i < COUNT_OF(inside); i++) {
        assert_status(snapkv_retained_mass(&s.p.config, &s.p.layer, 0, query, LENGTH, kept, 4,
                                           inside[i], s.workspace, s.size),
                      SNAPKV_ERROR_ALIAS);
    }
    assert_ok(snapkv_retained_mass(&s.p.config, &s.p.layer, 0, query, LENGTH, kept, 4, &mass,
                                   s.workspace, s.size));
    end(&s);
}

static void test_gathers_over_their_list(void **state) {
    (void)state;
    int32_t area[64];
    float src[64] = {0};
    for (int i = 0; i < 64; i++) {
        area[i] = i % 8;
    }
    assert_status(snapkv_gather_rows(area, 4, src, 16, 8, 16, area + 2, 16), SNAPKV_ERROR_ALIAS);
    assert_status(snapkv_gather_rows(area, 4, src, 16, 8, 16, area + 4, 16), SNAPKV_OK);
    for (int i = 0; i < 64; i++) {
        area[i] = i % 8;
    }
    assert_status(snapkv_gather_columns(area, 4, src, 32, 8, 4, 4, area + 3, 16),
                  SNAPKV_ERROR_ALIAS);
    assert_status(snapkv_gather_columns(area, 4, src, 32, 8, 4, 4, area + 4, 16), SNAPKV_OK);
    assert_status(snapkv_top_k(src, 64, 0, SNAPKV_BY_POSITION, (int32_t *)(void *)src), SNAPKV_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_inside_an_output),
        cmocka_unit_test(test_output_inside_the_workspace),
        cmocka_unit_test(test_selection_inside_another_output),
        cmocka_unit_test(test_outputs_of_different_sets),
        cmocka_unit_test(test_part_of_a_row_that_is_only_read),
        cmocka_unit_test(test_outputs_in_the_gaps_of_an_input),
        cmocka_unit_test(test_outputs_in_a_pool),
        cmocka_unit_test(test_slopes_without_end),
        cmocka_unit_test(test_mass_inside_what_is_read),
        cmocka_unit_test(test_gathers_over_their_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
