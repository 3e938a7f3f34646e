/* A layer in one call, and in steps; who votes, from where, and what a decoder is told. Numbers by
 * hand or from the reference. */
#include "check.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };

/* One head of one dimension, scale 1, all queries 1. */
static problem line_of(snapkv_config config, size_t length, const float *keys) {
    problem p = problem_new(config, 1, 1, length, 1);
    memcpy(p.keys, keys, length * sizeof *keys);
    for (size_t i = 0; i < config.window; i++) {
        p.queries[i] = 1;
    }
    p.layer.scale = 1;
    problem_pack_plainly(&p);
    return p;
}

static outcome select_fully(const problem *p, size_t set) {
    size_t size = snapkv_workspace_size(&p->config, &p->layer);
    outcome o = run_select(p, set, size, GUARD_AFTER);
    outcome least = run_select(p, set, snapkv_workspace_min(&p->config, &p->layer), GUARD_BEFORE);
    check_selection(p, set, &o);
    assert_same_outcome(&least, &o);
    outcome_free(&least);
    return o;
}

/* Chunks of 4: of the voters at 3, 4 and 5 only the first sees position 1, beside two zeros and its
 * own 1. */
static void test_chunks(void **state) {
    (void)state;
    static const float keys[6] = {0, 5, 0, 1, 0, 0};
    problem p = line_of(make_config(3, 4, 1), 6, keys);
    p.layer.chunk = 4;
    float *votes = run_vote(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_close(votes[1], exp(5) / (exp(5) + 2 + exp(1)), 1e-6);
    assert_close(votes[1], 0.9692, 5e-5);
    assert_close(votes[0], 1 / (exp(5) + 2 + exp(1)), 1e-7);
    free(votes);
    problem_free(&p);
}

/* Rows at 0 and 40 .. 44: row numbers would give ALiBi and span other answers. */
static void test_key_positions(void **state) {
    (void)state;
    static const float keys[6] = {4.5f, 0, 1, 0, 0, 0};
    static const int32_t positions[6] = {0, 40, 41, 42, 43, 44};
    static const float slope[1] = {1};
    static const int32_t near[2] = {4, 5}, within[2] = {2, 5}, far[2] = {0, 5};
    problem p = line_of(make_config(1, 2, 1), 6, keys);
    outcome o = select_fully(&p, 0);
    assert_indices(o.kept, far, 2);
    outcome_free(&o);
    problem_set_key_positions(&p, positions);
    o = select_fully(&p, 0); /* without slope and span they make no difference */
    assert_indices(o.kept, far, 2);
    outcome_free(&o);
    p.layer.span = 10;
    o = select_fully(&p, 0);
    assert_indices(o.kept, within, 2);
    outcome_free(&o);
    p.layer.span = 0;
    problem_set_slopes(&p, slope);
    o = select_fully(&p, 0);
    assert_indices(o.kept, near, 2);
    outcome_free(&o);
    problem_free(&p);
}

/* Keys of 0: a voter at t gives each of the t + 1 positions up to its own the same. */
static void check_zero_keys(const int32_t positions[4], snapkv_voting voting) {
    snapkv_config config = make_config(4, 12, 1);
    config.voting = voting;
    problem p = problem_new(config, 2, 1, 60, 8);
    for (size_t i = 0; i < 2 * 4 * 8; i++) {
        p.queries[i] = 1;
    }
    problem_pack_plainly(&p);
    problem_set_query_positions(&p, positions);
    for (size_t head = 0; head < 2; head++) {
        float *votes = run_vote(&p, head, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
        for (int32_t j = 0; j < 56; j++) {
            double sum = 0, largest = 0;
            for (size_t i = 0; i < 4; i++) {
                double weight = 1.0 / (positions[i] < 60 ? positions[i] + 1 : 60);
                sum += j <= positions[i] ? weight : 0;
                largest = j <= positions[i] ? fmax(largest, weight) : largest;
            }
            double expected = voting == SNAPKV_VOTE_MAX ? largest : sum;
            assert_close(votes[j], expected, 1e-6 * expected);
        }
        free(votes);
    }
    outcome o = select_fully(&p, 0);
    outcome_free(&o);
    problem_free(&p);
}

static void test_query_positions(void **state) {
    (void)state;
    static const int32_t behind[4] = {60, 61, 62, 63}, far[4] = {60, 60, 1000, INT32_MAX};
    static const int32_t middle[4] = {20, 21, 22, 23}, equal[4] = {9, 9, 9, 30};
    static const int32_t last[4] = {56, 57, 58, 59}, early[4] = {0, 0, 1, 3};
    const int32_t *all[] = {behind, far, middle, equal, last, early};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        check_zero_keys(all[i], SNAPKV_VOTE_SUM);
        check_zero_keys(all[i], SNAPKV_VOTE_MAX);
    }
}

/* Positions of the default voters, said aloud, give the same bits; more of them than rows may vote.
 */
static void test_voters_said_aloud(void **state) {
    (void)state;
    splitmix random = {5};
    int32_t positions[MOST];
    problem p = problem_new(make_config(7, 20, 3), 4, 2, 50, 12);
    problem_fill(&p, &random, 4, 0);
    problem_pack_plainly(&p);
    outcome silent = select_fully(&p, 1);
    for (int32_t i = 0; i < 7; i++) {
        positions[i] = 43 + i;
    }
    problem_set_query_positions(&p, positions);
    outcome aloud = select_fully(&p, 1);
    assert_same_outcome(&aloud, &silent);
    outcome_free(&silent);
    outcome_free(&aloud);
    problem_free(&p);

    snapkv_config config = make_config(30, 12, 3);
    config.n_recent = 3;
    p = problem_new(config, 2, 2, 13, 5);
    problem_fill(&p, &random, 4, 0);
    problem_pack_plainly(&p);
    for (int32_t i = 0; i < 30; i++) {
        positions[i] = 13 + i;
    }
    problem_set_query_positions(&p, positions);
    aloud = select_fully(&p, 1);
    outcome_free(&aloud);
    problem_free(&p);
}

/* What always stays is not who votes. */
static void test_recent_positions(void **state) {
    (void)state;
    splitmix random = {6};
    for (size_t recent = 1; recent < 30; recent += 3) {
        for (int voting = 0; voting < 2; voting++) {
            snapkv_config config = make_config(16, recent + 9, 5);
            config.n_recent = recent;
            config.voting = (snapkv_voting)voting;
            config.n_sink = 2;
            problem p = problem_new(config, 4, 2, 60, 12);
            problem_fill(&p, &random, 4, 0);
            problem_pack_plainly(&p);
            for (size_t set = 0; set < 2; set++) {
                outcome o = select_fully(&p, set);
                for (size_t i = 0; i < recent; i++) {
                    assert_int_equal(o.kept[9 + i], 60 - recent + i);
                }
                outcome_free(&o);
            }
            problem_free(&p);
        }
    }

    /* All of a prompt votes, and its first positions compete all the same. */
    snapkv_config config = make_config(16, 9, 5);
    config.n_recent = 3;
    problem p = problem_new(config, 4, 2, 16, 12);
    problem_fill(&p, &random, 4, 0);
    problem_pack_plainly(&p);
    outcome o = select_fully(&p, 1);
    outcome_free(&o);
    problem_free(&p);
}

/* ---- A decoder whose numbers lie outside the rows ---------------------------------------------
 */

typedef struct outside {
    const float *numbers; /* [n_heads][n_rows][head_dim] */
    size_t n_heads, n_rows;
    unsigned char *asked; /* [n_heads][n_rows] */
} outside;

static void decode_outside(void *context, const void *row, size_t head, size_t position, float *out,
                           size_t head_dim) {
    outside *from = context;
    unsigned char tag[2];
    assert_true(head < from->n_heads && position < from->n_rows);
    memcpy(tag, row, sizeof tag); /* the row is that of this head and position */
    assert_true(tag[0] == head && tag[1] == position % 251);
    from->asked[head * from->n_rows + position] = 1;
    memcpy(out, from->numbers + (head * from->n_rows + position) * head_dim,
           head_dim * sizeof *out);
}

static snapkv_rows tagged_rows(outside *from, unsigned char *tags, int by_position) {
    snapkv_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.data = tags;
    rows.dtype = SNAPKV_CUSTOM;
    rows.decode = decode_outside;
    rows.decode_context = from;
    rows.row_bytes = 2;
    rows.row_stride = by_position ? 2 * from->n_heads : 2;
    rows.head_stride = by_position ? 2 : 2 * from->n_rows;
    for (size_t head = 0; head < from->n_heads; head++) {
        for (size_t row = 0; row < from->n_rows; row++) {
            unsigned char *tag = tags + head * rows.head_stride + row * rows.row_stride;
            tag[0] = (unsigned char)head;
            tag[1] = (unsigned char)(row % 251);
        }
    }
    return rows;
}

static void test_decoder_is_told_which_row(void **state) {
    (void)state;
    splitmix random = {8};
    for (int by_position = 0; by_position < 2; by_position++) {
        snapkv_config config = make_config(19, 40, 3);
        config.sharing = (snapkv_sharing)by_position;
        problem p = problem_new(config, 6, 3, 300, 5);
        problem_fill(&p, &random, 4, 0);
        problem_pack_plainly(&p);
        outcome plain[6];
        for (size_t set = 0; set < problem_set_count(&p); set++) {
            plain[set] = select_fully(&p, set);
        }
        outside queries = {p.queries, 6, 19, new_array(6 * 19, 1)};
        outside keys = {p.keys, 3, 300, new_array(3 * 300, 1)};
        unsigned char *query_tags = new_array(6 * 19, 2), *key_tags = new_array(3 * 300, 2);
        p.layer.queries = tagged_rows(&queries, query_tags, by_position);
        p.layer.keys = tagged_rows(&keys, key_tags, by_position);
        for (size_t set = 0; set < problem_set_count(&p); set++) {
            outcome o = select_fully(&p, set);
            assert_same_outcome(&o, &plain[set]);
            outcome_free(&o);
            outcome_free(&plain[set]);
        }
        for (size_t i = 0; i < 6 * 19; i++) {
            assert_true(queries.asked[i]);
        }
        for (size_t i = 0; i < 3 * 300; i++) {
            assert_true(keys.asked[i]);
        }
        free(queries.asked);
        free(keys.asked);
        free(query_tags);
        free(key_tags);
        problem_free(&p);
    }
}

/* ---- A layer in one call -----------------------------------------------------------------------
 */

/* A layer in memory that may be written, and its outputs. */
typedef struct cache {
    problem p;
    size_t n_sets, n_kept, size;
    int32_t *kept;
    snapkv_selection *selections;
    float *keys, *values;
    void *workspace;
    snapkv_rows_out keys_out, values_out;
} cache;

static cache new_cache(snapkv_config config, size_t length) {
    cache c;
    splitmix random = {length};
    memset(&c, 0, sizeof c);
    c.p = problem_new(config, 4, 2, length, 8);
    problem_fill(&c.p, &random, 4, 0);
    problem_pack_plainly(&c.p);
    c.keys = new_array(2 * length * 8, sizeof(float));
    c.values = new_array(2 * length * 8, sizeof(float));
    memcpy(c.keys, c.p.keys, 2 * length * 32);
    memcpy(c.values, c.p.values, 2 * length * 32);
    c.p.layer.keys = snapkv_rows_by_head(c.keys, SNAPKV_F32, length, 8);
    c.p.layer.values = snapkv_rows_by_head(c.values, SNAPKV_F32, length, 8);
    c.keys_out = snapkv_rows_in_place(&c.p.layer.keys);
    c.values_out = snapkv_rows_in_place(&c.p.layer.values);
    c.n_sets = problem_set_count(&c.p);
    c.n_kept = problem_kept_count(&c.p);
    c.kept = new_array(c.n_sets * c.n_kept, sizeof *c.kept);
    c.selections = new_array(c.n_sets, sizeof *c.selections);
    c.size = snapkv_workspace_size(&c.p.config, &c.p.layer);
    c.workspace = new_array(c.size ? c.size : 4096, 1);
    return c;
}

static snapkv_status compress(cache *c) {
    return snapkv_compress_layer(&c->p.config, &c->p.layer, c->kept, &c->keys_out, &c->values_out,
                                 c->selections, c->workspace, c->size);
}

static void assert_untouched(const cache *c) {
    assert_memory_equal(c->keys, c->p.keys, 2 * c->p.layer.length * 32);
    assert_memory_equal(c->values, c->p.values, 2 * c->p.layer.length * 32);
}

static void free_cache(cache *c) {
    free(c->keys);
    free(c->values);
    free(c->kept);
    free(c->selections);
    free(c->workspace);
    problem_free(&c->p);
}

static void test_layer_in_place(void **state) {
    (void)state;
    for (int sharing = 0; sharing < 3; sharing += 2) {
        for (size_t length = 3; length < 70; length += 11) { /* bypassed ones too */
            snapkv_config config = make_config(4, 16, 3);
            config.sharing = (snapkv_sharing)sharing;
            cache c = new_cache(config, length);
            if (length < 4) { /* shorter than the window: no queries are needed */
                memset(&c.p.layer.queries, 0, sizeof c.p.layer.queries);
            }
            assert_ok(compress(&c));
            for (size_t head = 0; head < 2; head++) {
                size_t set = sharing == SNAPKV_PER_LAYER ? 0 : head;
                const int32_t *kept = c.kept + set * c.n_kept;
                if (length >= 16) {
                    problem_pack_plainly(&c.p);
                    outcome o = select_fully(&c.p, set);
                    assert_indices(kept, o.kept, c.n_kept);
                    assert_memory_equal(&c.selections[set].coverage, &o.selection.coverage, 4);
                    outcome_free(&o);
                }
                for (size_t i = 0; i < c.n_kept; i++) {
                    size_t to = (head * length + i) * 8;
                    size_t from = (head * length + (size_t)kept[i]) * 8;
                    assert_memory_equal(c.keys + to, c.p.keys + from, 32);
                    assert_memory_equal(c.values + to, c.p.values + from, 32);
                    assert_true(length >= 16 || kept[i] == (int32_t)i);
                }
                assert_int_equal(c.selections[set].bypassed, length < 16);
                assert_int_equal(c.selections[set].n_kept, c.n_kept);
            }
            free_cache(&c);
        }
    }
}

/* What begins in place and goes on elsewhere is refused: it would write rows that are still read. */
static void test_nearly_in_place(void **state) {
    (void)state;
    static const int32_t table[15] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    static const int32_t list[5] = {0, 2, 20, 21, 59};
    cache c = new_cache(make_config(4, 16, 3), 60);
    c.keys_out.head_stride = 20 * 32; /* head 1 among the rows of head 0 */
    assert_status(compress(&c), SNAPKV_ERROR_ALIAS);
    c.p.layer.keys.block_table = table; /* the same rows, four a page */
    c.p.layer.keys.block_rows = 4;
    c.p.layer.keys.block_stride = 4 * 32;
    c.keys_out = snapkv_rows_in_place(&c.p.layer.keys);
    c.keys_out.block_rows = 2; /* slot 2 is row 4 */
    assert_status(snapkv_gather(&c.p.config, &c.p.layer, 1, list, 5, &c.keys_out, &c.values_out),
                  SNAPKV_ERROR_ALIAS);
    assert_untouched(&c);
    c.keys_out.block_rows = 4;
    assert_ok(snapkv_gather(&c.p.config, &c.p.layer, 1, list, 5, &c.keys_out, &c.values_out));
    for (size_t i = 0; i < 5; i++) {
        assert_memory_equal(c.keys + (60 + i) * 8, c.p.keys + (60 + (size_t)list[i]) * 8, 32);
    }
    free_cache(&c);
}

/* Whatever goes wrong, the caches are as they were, also where only the last head is to blame. */
static void test_layer_writes_nothing_on_errors(void **state) {
    (void)state;
    cache c = new_cache(make_config(4, 16, 3), 60);
    float *last = c.keys + 2 * 60 * 8 - 40 * 8;
    c.p.keys[2 * 60 * 8 - 40 * 8] = *last = NAN;
    assert_status(compress(&c), SNAPKV_ERROR_NOT_FINITE);
    assert_untouched(&c);
    c.p.keys[2 * 60 * 8 - 40 * 8] = *last = 1;
    c.p.config.sharing = SNAPKV_PER_QUERY_HEAD; /* four lists do not fit into two heads */
    assert_status(compress(&c), SNAPKV_ERROR_ALIAS);
    assert_untouched(&c);
    c.p.config.sharing = SNAPKV_PER_KV_HEAD;
    const snapkv_config good = c.p.config;
    const struct {
        size_t window, capacity, kernel, length;
        snapkv_status status;
    } policies[] = {{16, 10, 3, 60, SNAPKV_ERROR_CAPACITY}, {4, 16, 4, 60, SNAPKV_ERROR_KERNEL},
                    {32, 32, 3, 60, SNAPKV_ERROR_CAPACITY}, {0, 16, 3, 60, SNAPKV_ERROR_WINDOW},
                    {4, 16, 0, 60, SNAPKV_ERROR_KERNEL},    {16, 10, 3, 8, SNAPKV_ERROR_CAPACITY}};
    for (size_t i = 0; i < COUNT_OF(policies); i++) {
        c.p.config.window = policies[i].window;
        c.p.config.capacity = policies[i].capacity;
        c.p.config.kernel_size = policies[i].kernel;
        c.p.layer.length = policies[i].length;
        snapkv_cursor cursor = snapkv_cursor_start(&c.p.config, 200);
        assert_status(compress(&c), policies[i].status);
        assert_int_equal(snapkv_set_count(&c.p.config, &c.p.layer), 0);
        assert_int_equal(snapkv_kept_count(&c.p.config, policies[i].length), 0);
        assert_int_equal(snapkv_kept_count(&c.p.config, 200), 0);
        assert_int_equal(cursor.prompt_length + cursor.prompt_kept + cursor.generated, 0);
        assert_int_equal(snapkv_next_slot(&cursor), 0);
        c.p.layer.length = 60;
        assert_untouched(&c);
    }
    c.p.config = good;
    c.size = snapkv_workspace_min(&good, &c.p.layer) - 4;
    assert_status(compress(&c), SNAPKV_ERROR_WORKSPACE);
    assert_untouched(&c);
    free_cache(&c);
}

/* Default policy, L 20: shorter than the window, and no error anywhere. */
static void test_prompts_shorter_than_the_window(void **state) {
    (void)state;
    const snapkv_model model = {1, 2, 4, 2, 8, 4};
    snapkv_ledger ledger;
    cache c = new_cache(snapkv_default_config(), 20);
    memset(&c.p.layer.queries, 0, sizeof c.p.layer.queries);
    assert_ok(snapkv_check(&c.p.config, &c.p.layer));
    assert_null(snapkv_explain(&c.p.config, &c.p.layer));
    assert_int_equal(snapkv_set_count(&c.p.config, &c.p.layer), 2);
    assert_int_equal(snapkv_kept_count(&c.p.config, 20), 20);
    assert_true(snapkv_workspace_min(&c.p.config, &c.p.layer) > 0);
    assert_true(c.size >= snapkv_workspace_min(&c.p.config, &c.p.layer));
    assert_ok(snapkv_account(&c.p.config, &model, 20, 3, &ledger));
    assert_int_equal(ledger.kept_bytes, 2 * 2 * 2 * 23 * 8 * 4);
    for (size_t set = 0; set < 2; set++) {
        snapkv_selection selection;
        assert_ok(snapkv_select(&c.p.config, &c.p.layer, set, c.kept, NULL, &selection, c.workspace,
                                c.size));
        assert_true(selection.bypassed && selection.n_kept == 20 && selection.coverage == 1);
        assert_ok(snapkv_compress(&c.p.config, &c.p.layer, set, c.kept, &c.keys_out, &c.values_out,
                                  NULL, c.workspace, c.size));
    }
    assert_ok(compress(&c));
    assert_untouched(&c);
    c.p.layer.queries.data = c.p.queries; /* not looked at: they have no rows */
    assert_ok(compress(&c));
    assert_ok(snapkv_gather(&c.p.config, &c.p.layer, 0, c.kept, 20, &c.keys_out, &c.values_out));
    snapkv_cursor cursor = snapkv_cursor_start(&c.p.config, 20);
    assert_int_equal(snapkv_next_position(&cursor), 20);
    assert_int_equal(snapkv_next_slot(&cursor), 20);
    free_cache(&c);
}

/* A buffer per head: head_stride 0, one set a call. */
static void test_private_buffers(void **state) {
    (void)state;
    cache c = new_cache(make_config(4, 16, 3), 60);
    for (size_t set = 0; set < 2; set++) {
        guard keys = guard_new(16 * 32, GUARD_AFTER), values = guard_new(16 * 32, GUARD_BEFORE);
        const snapkv_rows_out keys_out = {keys.data, 0, 32, NULL, 0, 0};
        const snapkv_rows_out values_out = {values.data, 0, 32, NULL, 0, 0};
        assert_ok(snapkv_compress(&c.p.config, &c.p.layer, set, c.kept, &keys_out, &values_out,
                                  NULL, c.workspace, c.size));
        for (size_t i = 0; i < 16; i++) {
            size_t from = (set * 60 + (size_t)c.kept[i]) * 8;
            assert_memory_equal(keys.data + i * 32, c.p.keys + from, 32);
            assert_memory_equal(values.data + i * 32, c.p.values + from, 32);
        }
        assert_status(snapkv_compress_layer(&c.p.config, &c.p.layer, c.kept, &keys_out, &values_out,
                                            NULL, c.workspace, c.size),
                      SNAPKV_ERROR_OUTPUT); /* both heads in one buffer */
        guard_free(&keys);
        guard_free(&values);
    }
    free_cache(&c);
}

/* A gather asks of the policy how lists are shared, and nothing else. */
static void test_gather_needs_the_sharing_alone(void **state) {
    (void)state;
    static const int32_t list[3] = {50, 3, 3};
    cache c = new_cache(make_config(4, 16, 3), 60);
    float out[2][3 * 8];
    const snapkv_rows_out keys_out = {out[0], 0, 32, NULL, 0, 0};
    const snapkv_rows_out values_out = {out[1], 0, 32, NULL, 0, 0};
    memset(&c.p.config, 0, sizeof c.p.config);
    c.p.config.sharing = SNAPKV_PER_QUERY_HEAD;
    for (int paged = 0; paged < 2; paged++) {
        static const int32_t table[1] = {0};
        c.p.layer.queries.block_table = paged ? table : NULL;
        c.p.layer.queries.block_rows = 4;
        c.p.layer.queries.block_stride = 4 * 4 * 32;
        assert_ok(snapkv_gather(&c.p.config, &c.p.layer, 3, list, 3, &keys_out, &values_out));
        for (size_t i = 0; i < 3; i++) { /* query head 3 reads K/V head 1 */
            size_t from = (60 + (size_t)list[i]) * 8;
            assert_memory_equal(out[0] + i * 8, c.p.keys + from, 32);
            assert_memory_equal(out[1] + i * 8, c.p.values + from, 32);
        }
    }
    const int32_t beyond[2] = {3, 60};
    assert_status(snapkv_gather(&c.p.config, &c.p.layer, 4, list, 3, &keys_out, &values_out),
                  SNAPKV_ERROR_INDEX);
    assert_status(snapkv_gather(&c.p.config, &c.p.layer, 3, beyond, 2, &keys_out, &values_out),
                  SNAPKV_ERROR_INDEX);
    c.p.config.sharing = (snapkv_sharing)3;
    assert_status(snapkv_gather(&c.p.config, &c.p.layer, 0, list, 3, &keys_out, &values_out),
                  SNAPKV_ERROR_OPTION);
    free_cache(&c);
}

/* An output inside what a call reads would change it. */
static void test_outputs_inside_inputs(void **state) {
    (void)state;
    cache c = new_cache(make_config(4, 16, 3), 60);
    const snapkv_config *config = &c.p.config;
    snapkv_layer *layer = &c.p.layer;
    int32_t rows[MOST], voters[4] = {56, 57, 58, 59};
    float slopes[16] = {0}, sinks[16] = {0}, queries[4 * 4 * 8], scores[MOST], votes[MOST];
    for (int i = 0; i < MOST; i++) {
        rows[i] = i;
    }
    memcpy(queries, c.p.queries, sizeof queries);
    layer->queries = snapkv_rows_by_head(queries, SNAPKV_F32, 4, 8);
    layer->query_positions = voters;
    layer->key_positions = rows;
    layer->alibi_slopes = slopes;
    layer->sink_logits = sinks;
    void *places[] = {c.keys + 100, c.values + 100, queries + 7, voters, rows, slopes, sinks + 2};
    snapkv_rows_out keys_out = {scores, 0, 32, NULL, 0, 0};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        void *at = places[i];
        assert_status(snapkv_select(config, layer, 0, at, NULL, NULL, c.workspace, c.size),
                      SNAPKV_ERROR_ALIAS);
        assert_status(snapkv_select(config, layer, 0, c.kept, at, NULL, c.workspace, c.size),
                      SNAPKV_ERROR_ALIAS);
        assert_status(snapkv_select(config, layer, 0, c.kept, NULL, at, c.workspace, c.size),
                      SNAPKV_ERROR_ALIAS);
        assert_status(snapkv_select(config, layer, 0, c.kept, NULL, NULL, at, c.size),
                      SNAPKV_ERROR_ALIAS);
        assert_status(snapkv_score(config, layer, 0, at, votes, c.workspace, c.size),
                      SNAPKV_ERROR_ALIAS);
        assert_status(snapkv_score(config, layer, 0, scores, at, c.workspace, c.size),
                      SNAPKV_ERROR_ALIAS);
        assert_status(snapkv_score(config, layer, 0, scores, votes, at, c.size),
                      SNAPKV_ERROR_ALIAS);
        assert_status(snapkv_vote(config, layer, 0, at, c.workspace, c.size), SNAPKV_ERROR_ALIAS);
        assert_status(snapkv_compress_layer(config, layer, at, &c.keys_out, &c.values_out, NULL,
                                            c.workspace, c.size),
                      SNAPKV_ERROR_ALIAS);
        assert_status(snapkv_compress_layer(config, layer, c.kept, &c.keys_out, &c.values_out, at,
                                            c.workspace, c.size),
                      SNAPKV_ERROR_ALIAS);
        if (i >= 2) {
            keys_out.data = at;
            assert_status(snapkv_gather(config, layer, 0, c.kept, 1, &keys_out, &c.values_out),
                          SNAPKV_ERROR_ALIAS);
        }
    }
    assert_status(snapkv_score(config, layer, 0, scores, scores, c.workspace, c.size),
                  SNAPKV_ERROR_ALIAS);
    assert_ok(snapkv_score(config, layer, 0, scores, votes, c.workspace, c.size));
    assert_untouched(&c);
    free_cache(&c);
}

/* ---- Steps
 * --------------------------------------------------------------------------------------- */

static void test_keep_by_hand(void **state) {
    (void)state;
    const float scores[7] = {1, 9, 3, 9, -2, 3, 0};
    snapkv_config config = make_config(2, 100, 1);
    int32_t kept[9];
    config.n_sink = 1;
    config.n_recent = 3;
    static const int32_t ascending[7] = {0, 1, 2, 3, 7, 8, 9};
    static const int32_t falling[7] = {0, 1, 3, 2, 7, 8, 9};
    assert_ok(snapkv_keep(&config, 10, scores, 3, kept));
    assert_indices(kept, ascending, 7);
    config.order = SNAPKV_BY_SCORE;
    assert_ok(snapkv_keep(&config, 10, scores, 3, kept));
    assert_indices(kept, falling, 7);
    assert_ok(snapkv_keep(&config, 10, scores, 0, kept)); /* the pinned and the recent alone */
    assert_indices(kept + 1, falling + 4, 3);
    assert_int_equal(kept[0], 0);
    kept[0] = -7;
    assert_status(snapkv_keep(&config, 10, scores, 7, kept), SNAPKV_ERROR_CAPACITY);
    assert_status(snapkv_keep(&config, 10, scores, SIZE_MAX, kept), SNAPKV_ERROR_CAPACITY);
    config.n_sink = 8; /* of the 7 that the recent ones leave */
    assert_status(snapkv_keep(&config, 10, scores, 0, kept), SNAPKV_ERROR_CAPACITY);
    config.n_sink = 1;
    assert_status(snapkv_keep(NULL, 10, scores, 3, kept), SNAPKV_ERROR_NULL);
    assert_status(snapkv_keep(&config, 10, NULL, 3, kept), SNAPKV_ERROR_NULL);
    assert_status(snapkv_keep(&config, 10, scores, 3, NULL), SNAPKV_ERROR_NULL);
    assert_status(snapkv_keep(&config, 0, scores, 3, kept), SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_keep(&config, SIZE_MAX, scores, 3, kept), SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_keep(&config, 2, scores, 0, kept), SNAPKV_ERROR_WINDOW);
    config.window = 0;
    assert_status(snapkv_keep(&config, 10, scores, 3, kept), SNAPKV_ERROR_WINDOW);
    config.window = 2;
    assert_status(snapkv_keep(&config, 10, scores, 3, (int32_t *)(uintptr_t)(scores + 2)),
                  SNAPKV_ERROR_ALIAS);
    const float bad[7] = {1, 9, 3, 9, -2, INFINITY, 0};
    assert_status(snapkv_keep(&config, 10, bad, 3, kept), SNAPKV_ERROR_NOT_FINITE);
    config.order = (snapkv_order)2;
    assert_status(snapkv_keep(&config, 10, scores, 3, kept), SNAPKV_ERROR_OPTION);
    assert_int_equal(kept[0], -7);
}

static void test_coverage_by_hand(void **state) {
    (void)state;
    const float votes[6] = {0.5f, 0.25f, 0, 0.25f, 1, 0.5f}; /* of 4 queries */
    const int32_t kept[5] = {4, 7, 1, 4, 6};                 /* 1.25 dropped; one twice */
    const snapkv_config config = make_config(4, 8, 1);
    float coverage = -1;
    assert_ok(snapkv_coverage(&config, 10, votes, kept, 5, &coverage));
    assert_close(coverage, 1 - 1.25 / 4, 1e-7);
    assert_ok(snapkv_coverage(&config, 10, votes, kept, 0, &coverage));
    assert_close(coverage, 1 - 2.5 / 4, 1e-7);
    coverage = -1;
    const int32_t high[1] = {10}, negative[1] = {-1};
    const float bad[6] = {0, 0, 0, 0, 0, NAN};
    assert_status(snapkv_coverage(&config, 10, votes, high, 1, &coverage), SNAPKV_ERROR_INDEX);
    assert_status(snapkv_coverage(&config, 10, votes, negative, 1, &coverage), SNAPKV_ERROR_INDEX);
    assert_status(snapkv_coverage(NULL, 10, votes, kept, 5, &coverage), SNAPKV_ERROR_NULL);
    assert_status(snapkv_coverage(&config, 10, NULL, kept, 5, &coverage), SNAPKV_ERROR_NULL);
    assert_status(snapkv_coverage(&config, 10, votes, NULL, 5, &coverage), SNAPKV_ERROR_NULL);
    assert_status(snapkv_coverage(&config, 10, votes, kept, 5, NULL), SNAPKV_ERROR_NULL);
    assert_status(snapkv_coverage(&config, 0, votes, kept, 5, &coverage), SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_coverage(&config, 3, votes, kept, 0, &coverage), SNAPKV_ERROR_WINDOW);
    assert_status(snapkv_coverage(&config, 10, votes, kept, 5, (float *)(uintptr_t)(votes + 5)),
                  SNAPKV_ERROR_ALIAS);
    assert_status(snapkv_coverage(&config, 10, votes, kept, 5, (float *)(uintptr_t)(kept + 4)),
                  SNAPKV_ERROR_ALIAS);
    assert_status(snapkv_coverage(&config, 10, bad, kept, 5, &coverage), SNAPKV_ERROR_NOT_FINITE);
    assert_true(coverage == -1);
}

/* ---- Views
 * --------------------------------------------------------------------------------------- */

static void test_views(void **state) {
    (void)state;
    static const size_t bytes[3] = {4, 2, 2};
    char memory[4];
    for (int dtype = 0; dtype < 3; dtype++) {
        snapkv_rows rows = snapkv_rows_by_head(memory, (snapkv_dtype)dtype, 7, 5);
        assert_true(rows.data == memory && rows.dtype == (snapkv_dtype)dtype);
        assert_int_equal(rows.row_stride, 5 * bytes[dtype]);
        assert_int_equal(rows.head_stride, 7 * 5 * bytes[dtype]);
        rows = snapkv_rows_by_position(memory, (snapkv_dtype)dtype, 3, 5);
        assert_int_equal(rows.row_stride, 3 * 5 * bytes[dtype]);
        assert_int_equal(rows.head_stride, 5 * bytes[dtype]);
        assert_true(!rows.block_table && !rows.decode && !rows.decode_context);
        assert_int_equal(rows.block_rows + rows.block_stride + rows.row_bytes, 0);
    }
    const int32_t table[1] = {0};
    snapkv_rows paged = {memory, 1, 2, 3, SNAPKV_F32, NULL, NULL, table, 4, 5};
    snapkv_rows_out out = snapkv_rows_in_place(&paged);
    assert_true(out.data == memory && out.head_stride == 1 && out.row_stride == 2);
    assert_true(out.block_table == table && out.block_rows == 4 && out.block_stride == 5);
    out = snapkv_rows_in_place(NULL);
    assert_true(!out.data && !out.block_table);
    assert_int_equal(out.head_stride + out.row_stride + out.block_rows + out.block_stride, 0);
}

/* Compaction of [H][L][D] to [H][C][D] in the same memory, the first head first. */
static void test_heads_move_together(void **state) {
    (void)state;
    splitmix random = {3};
    for (size_t round = 0; round < 200; round++) {
        enum { HEADS = 4, LONGEST = 20, ROW = 12 };
        size_t length = splitmix_between(&random, 1, LONGEST);
        size_t n_kept = splitmix_between(&random, 1, length);
        unsigned char memory[HEADS * LONGEST * ROW], before[HEADS * LONGEST * ROW];
        for (size_t i = 0; i < sizeof memory; i++) {
            before[i] = memory[i] = (unsigned char)splitmix_next(&random);
        }
        for (size_t head = 0; head < HEADS; head++) {
            int32_t kept[LONGEST];
            size_t found = 0;
            for (size_t i = 0; i < length; i++) {
                if (splitmix_between(&random, 0, length - i - 1) < n_kept - found) {
                    kept[found++] = (int32_t)i;
                }
            }
            assert_ok(snapkv_gather_rows(kept, n_kept, memory + head * length * ROW, ROW, length,
                                         ROW, memory + head * n_kept * ROW, ROW));
            for (size_t i = 0; i < n_kept; i++) {
                assert_memory_equal(memory + (head * n_kept + i) * ROW,
                                    before + (head * length + (size_t)kept[i]) * ROW, ROW);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_key_positions),
        cmocka_unit_test(test_query_positions),
        cmocka_unit_test(test_voters_said_aloud),
        cmocka_unit_test(test_recent_positions),
        cmocka_unit_test(test_decoder_is_told_which_row),
        cmocka_unit_test(test_layer_in_place),
        cmocka_unit_test(test_nearly_in_place),
        cmocka_unit_test(test_layer_writes_nothing_on_errors),
        cmocka_unit_test(test_prompts_shorter_than_the_window),
        cmocka_unit_test(test_private_buffers),
        cmocka_unit_test(test_gather_needs_the_sharing_alone),
        cmocka_unit_test(test_outputs_inside_inputs),
        cmocka_unit_test(test_keep_by_hand),
        cmocka_unit_test(test_coverage_by_hand),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_heads_move_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
