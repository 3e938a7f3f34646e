/* snapkv_gather() in random memory: contiguous and paged views, K and V interleaved in one pool,
 * outputs anywhere, held to a model that knows of every byte who reads and who writes it. */
#include "check.h"
#include "problem.h"

#include <stdlib.h>
#include <string.h>

enum { POOL = 1 << 16, MOST_ROWS = 24, MOST_BLOCKS = 32, N_GATHERS = 30000 };

/* Where rows lie: what a view says, and its offset in the pool. */
typedef struct place {
    snapkv_rows rows;
    size_t base;
    int32_t table[MOST_BLOCKS];
} place;

typedef struct arrangement {
    snapkv_config config;
    snapkv_layer layer;
    size_t n_heads, bytes;
    place views[2], outs[2];
    size_t set, n_kept;
    int32_t kept[MOST_ROWS];
    int ascends;
    size_t used; /* bytes of the pool that any of them may reach */
} arrangement;

static unsigned char pool[POOL], before[POOL], model[POOL];
static unsigned char n_readers[2][POOL], is_written[2][POOL];

static size_t offset_of(const place *at, size_t head, size_t row) {
    const snapkv_rows *rows = &at->rows;
    size_t offset = at->base + head * rows->head_stride;
    if (rows->block_table) {
        offset += (size_t)rows->block_table[row / rows->block_rows] * rows->block_stride;
        row %= rows->block_rows;
    }
    return offset + row * rows->row_stride;
}

/* Rows and heads of one kind of layout. */
static snapkv_rows draw_geometry(splitmix *random, size_t n_heads, size_t n_rows, size_t bytes) {
    snapkv_rows rows;
    memset(&rows, 0, sizeof rows);
    size_t kind = splitmix_between(random, 0, 4);
    size_t step = bytes + splitmix_between(random, 0, 1) * splitmix_between(random, 0, bytes + 2);
    int paged = kind >= 2;
    size_t together = paged ? splitmix_between(random, 1, 7) : n_rows;
    int rows_inside = kind == 0 || kind == 2 || kind == 4;
    rows.row_stride = rows_inside ? step : n_heads * step;
    rows.head_stride = rows_inside ? together * step : step;
    if (paged) {
        size_t extent = (kind == 4 ? 1 : n_heads) * together * step;
        rows.block_rows = together;
        rows.block_stride = extent * (splitmix_once_in(random, 2) ? 2 : 1) +
                            (splitmix_once_in(random, 4) ? splitmix_between(random, 1, 9) : 0);
        if (kind == 4) { /* all blocks of a head before those of the next */
            rows.head_stride = MOST_BLOCKS * rows.block_stride;
        }
    }
    return rows;
}

/* The last rows of a layout need no more than this. */
static size_t room_of(const snapkv_rows *rows, size_t n_heads, size_t n_rows) {
    size_t in_block = rows->block_table || rows->block_rows ? rows->block_rows : n_rows;
    size_t blocks = rows->block_rows ? MOST_BLOCKS * rows->block_stride : 0;
    return n_heads * rows->head_stride + in_block * rows->row_stride + blocks + 64;
}

static void settle(splitmix *random, place *at, snapkv_rows geometry, const int32_t *blocks,
                   size_t base) {
    at->rows = geometry;
    at->base = base;
    if (geometry.block_rows) {
        memcpy(at->table, blocks, sizeof at->table);
        if (splitmix_once_in(random, 12)) { /* a page named twice */
            at->table[splitmix_between(random, 1, 3)] = at->table[0];
        }
    }
}

static void draw_list(splitmix *random, arrangement *a) {
    size_t length = a->layer.length;
    a->ascends = 1;
    a->n_kept = splitmix_between(random, 0, length);
    if (splitmix_once_in(random, 4)) {
        a->n_kept = splitmix_between(random, 0, MOST_ROWS); /* positions may repeat */
        for (size_t i = 0; i < a->n_kept; i++) {
            a->kept[i] = (int32_t)splitmix_between(random, 0, length - 1);
            a->ascends &= i == 0 || a->kept[i] > a->kept[i - 1];
        }
        return;
    }
    size_t found = 0;
    for (size_t i = 0; i < length; i++) {
        if (splitmix_between(random, 0, length - i - 1) < a->n_kept - found) {
            a->kept[found++] = (int32_t)i;
        }
    }
}

static arrangement draw(splitmix *random) {
    arrangement a;
    memset(&a, 0, sizeof a);
    size_t n_kv_heads = splitmix_between(random, 1, 3), group = splitmix_between(random, 1, 2);
    size_t length = splitmix_between(random, 1, MOST_ROWS);
    a.bytes = splitmix_between(random, 2, 6);
    a.config = make_config(1, 2, 1);
    a.config.sharing = (snapkv_sharing)splitmix_between(random, 0, 2);
    a.layer.n_query_heads = n_kv_heads * group;
    a.layer.n_kv_heads = n_kv_heads;
    a.layer.length = length;
    a.layer.head_dim = a.bytes - 1;
    size_t n_sets = problem_set_count(&(problem){.config = a.config, .layer = a.layer});
    a.set = splitmix_between(random, 0, n_sets - 1);
    draw_list(random, &a);
    size_t most_heads = n_kv_heads * group, most_rows = MOST_ROWS;
    snapkv_rows common = draw_geometry(random, most_heads, most_rows, a.bytes);
    int32_t blocks[4 * MOST_BLOCKS];
    for (size_t i = 0; i < 4 * MOST_BLOCKS; i++) {
        blocks[i] = (int32_t)(i % MOST_BLOCKS);
    }
    for (size_t i = 1; i < MOST_BLOCKS; i++) { /* the pool's pages in some order, dealt out */
        size_t other = splitmix_between(random, 0, i);
        int32_t swap = blocks[i];
        blocks[i] = blocks[other];
        blocks[other] = swap;
    }
    memcpy(blocks + MOST_BLOCKS, blocks, MOST_BLOCKS * sizeof *blocks);
    size_t next = 0, half = common.block_rows ? common.block_stride / 2 : 0;
    size_t needed = common.block_rows ? (length - 1) / common.block_rows + 1 : 1;
    for (int i = 0; i < 4; i++) {
        place *at = i < 2 ? &a.views[i] : &a.outs[i - 2];
        const place *source = &a.views[i % 2];
        snapkv_rows geometry = common;
        size_t base = common.block_rows ? (size_t)(i % 2) * half : (size_t)i * (POOL / 4);
        if (i >= 2 && splitmix_once_in(random, 3)) { /* in place */
            *at = *source;
            if (splitmix_once_in(random, 4)) {
                at->base += splitmix_between(random, 1, 2 * at->rows.row_stride);
            }
            continue;
        }
        if (splitmix_once_in(random, 10)) {
            geometry = draw_geometry(random, most_heads, most_rows, a.bytes);
        }
        if (splitmix_once_in(random, 4)) {
            base = splitmix_between(random, 0, 1) ? splitmix_between(random, 0, 400)
                                                  : (size_t)(i % 2) * half;
        } else if (splitmix_once_in(random, 3)) {
            base = splitmix_between(random, 0, 3) * a.bytes;
        }
        settle(random, at, geometry, blocks + next % MOST_BLOCKS, base);
        next += half && splitmix_once_in(random, 2) && i == 0 ? 0 : needed;
    }
    return a;
}

/* The tables and data pointers, once the arrangement lies where it stays. */
static int connect(arrangement *a) {
    for (int i = 0; i < 4; i++) {
        place *at = i < 2 ? &a->views[i] : &a->outs[i - 2];
        size_t n_rows = i < 2 ? a->layer.length : MOST_ROWS;
        size_t end = at->base + room_of(&at->rows, a->layer.n_query_heads, n_rows);
        if (end > POOL) {
            return 0;
        }
        a->used = end > a->used ? end : a->used;
        at->rows.block_table = at->rows.block_rows ? at->table : NULL;
        at->rows.data = pool + at->base;
        at->rows.dtype = SNAPKV_CUSTOM;
        at->rows.decode = decode_bytes;
        at->rows.row_bytes = a->bytes;
    }
    a->layer.keys = a->views[0].rows;
    a->layer.values = a->views[1].rows;
    return 1;
}

static void out_heads(const arrangement *a, size_t *first, size_t *n, size_t *group) {
    int whole = a->config.sharing == SNAPKV_PER_LAYER;
    *first = whole ? 0 : a->set;
    *n = whole ? a->layer.n_kv_heads : 1;
    *group = a->config.sharing == SNAPKV_PER_QUERY_HEAD
                 ? a->layer.n_query_heads / a->layer.n_kv_heads
                 : 1;
}

/* Whether every slot is the memory of the row of the same number. */
static int is_identity(const arrangement *a, int i) {
    size_t first, n, group;
    out_heads(a, &first, &n, &group);
    for (size_t head = first; head < first + n; head++) {
        for (size_t slot = 0; slot < a->n_kept; slot++) {
            if (!a->ascends || group > 1 ||
                offset_of(&a->outs[i], head, slot) != offset_of(&a->views[i], head, slot)) {
                return 0;
            }
        }
    }
    return 1;
}

/* Rows that are looked at: of pages that the last rows fill in part, all. */
static size_t rows_of(const place *at, size_t n_rows, int whole_pages) {
    size_t in_block = at->rows.block_rows < n_rows ? at->rows.block_rows : n_rows;
    if (!at->rows.block_rows || !whole_pages || n_rows == 0) {
        return n_rows;
    }
    return n_rows <= in_block ? n_rows : (n_rows + in_block - 1) / in_block * in_block;
}

/* What the documentation promises of this arrangement; sets the memory afterwards if it is OK. */
static snapkv_status judge(const arrangement *a, int whole_pages) {
    size_t first, n, group;
    out_heads(a, &first, &n, &group);
    for (int i = 0; i < 2; i++) {
        memset(n_readers[i], 0, a->used);
        memset(is_written[i], 0, a->used);
    }
    memcpy(model, pool, a->used);
    for (int i = 0; i < 2; i++) {
        for (size_t head = 0; head < a->layer.n_kv_heads; head++) {
            for (size_t row = 0; row < rows_of(&a->views[i], a->layer.length, whole_pages); row++) {
                for (size_t b = 0; b < a->bytes; b++) {
                    n_readers[i][offset_of(&a->views[i], head, row) + b]++;
                }
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        for (size_t head = first; head < first + n; head++) {
            for (size_t slot = 0; slot < rows_of(&a->outs[i], a->n_kept, whole_pages); slot++) {
                size_t to = offset_of(&a->outs[i], head, slot);
                size_t row = (size_t)a->kept[slot < a->n_kept ? slot : 0];
                size_t from = offset_of(&a->views[i], head / group, row);
                for (size_t b = 0; b < a->bytes; b++) {
                    if (is_written[i][to + b]) {
                        return SNAPKV_ERROR_OUTPUT;
                    }
                    is_written[i][to + b] = 1;
                    model[to + b] = pool[from + b];
                }
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        int own = is_identity(a, i); /* then each byte has one reader in this view: its own row */
        for (size_t at = 0; at < a->used; at++) {
            if (is_written[i][at] && (is_written[1 - i][at] || n_readers[1 - i][at] ||
                                      n_readers[i][at] > (own ? 1 : 0))) {
                return SNAPKV_ERROR_ALIAS;
            }
        }
    }
    return SNAPKV_OK;
}

/* Rows at different strides, and blocks of different sizes, count as overlapping where the memory
 * that they span does; so does what is in place by chance, not by its strides. The last page counts
 * whole. */
static int is_exact(const arrangement *a) {
    const snapkv_rows *all[4] = {&a->views[0].rows, &a->views[1].rows, &a->outs[0].rows,
                                 &a->outs[1].rows};
    for (int i = 0; i < 4; i++) {
        if (all[i]->row_stride != all[0]->row_stride ||
            all[i]->head_stride != all[0]->head_stride ||
            all[i]->block_rows != all[0]->block_rows ||
            all[i]->block_stride != all[0]->block_stride) {
            return 0;
        }
    }
    return 1;
}

/* What there is to see of one that fails. */
static void show(size_t number, const arrangement *a, snapkv_status expected) {
    print_error(
        "arrangement %lu: \"%s\" expected; sharing %d, %lu query heads on %lu, set %lu, %lu of "
        "%lu rows of %lu bytes, ascending: %d, in place: %d %d\n",
        (unsigned long)number, snapkv_status_string(expected), (int)a->config.sharing,
        (unsigned long)a->layer.n_query_heads, (unsigned long)a->layer.n_kv_heads,
        (unsigned long)a->set, (unsigned long)a->n_kept, (unsigned long)a->layer.length,
        (unsigned long)a->bytes, a->ascends, is_identity(a, 0), is_identity(a, 1));
    for (int i = 0; i < 4; i++) {
        static const char *const names[4] = {"K", "V", "K out", "V out"};
        const place *at = i < 2 ? &a->views[i] : &a->outs[i - 2];
        print_error("%-5s at %lu: head %lu, row %lu, %lu rows in a block, blocks at %lu:", names[i],
                    (unsigned long)at->base, (unsigned long)at->rows.head_stride,
                    (unsigned long)at->rows.row_stride, (unsigned long)at->rows.block_rows,
                    (unsigned long)at->rows.block_stride);
        for (int block = 0; at->rows.block_rows && block < 10; block++) {
            print_error(" %d", (int)at->table[block]);
        }
        print_error("\n");
    }
}

static void test_random_arrangements(void **state) {
    (void)state;
    size_t n_ok = 0, n_in_place = 0, n_alias = 0, n_output = 0, n_exact = 0, n_shy = 0;
    for (size_t i = 0; i < N_GATHERS; i++) {
        splitmix random = {i};
        arrangement a = draw(&random);
        if (!connect(&a) || snapkv_check(&a.config, &a.layer) != SNAPKV_ERROR_NULL) {
            continue; /* too large for the pool; the queries are the NULL */
        }
        for (size_t at = 0; at < a.used; at++) {
            pool[at] = (unsigned char)(at * 7 + at / 251);
        }
        memcpy(before, pool, a.used);
        snapkv_rows_out keys_out = snapkv_rows_in_place(&a.outs[0].rows);
        snapkv_rows_out values_out = snapkv_rows_in_place(&a.outs[1].rows);
        snapkv_status expected = judge(&a, 0);
        snapkv_status status =
            snapkv_gather(&a.config, &a.layer, a.set, a.kept, a.n_kept, &keys_out, &values_out);
        if (status == SNAPKV_ERROR_STRIDE) {
            continue; /* the views are none */
        }
        if (status == SNAPKV_OK) {
            if (expected != SNAPKV_OK) {
                show(i, &a, expected);
            }
            assert_status(status, expected);
            assert_memory_equal(pool, model, a.used);
            n_ok++;
            n_in_place += a.n_kept > 0 && is_identity(&a, 0) && is_identity(&a, 1);
        } else {
            assert_memory_equal(pool, before, a.used);
            if (is_exact(&a) && status != expected && status != judge(&a, 1)) {
                show(i, &a, expected);
                assert_status(status, expected);
            }
            n_shy += expected == SNAPKV_OK;
            n_alias += status == SNAPKV_ERROR_ALIAS;
            n_output += status == SNAPKV_ERROR_OUTPUT;
        }
        n_exact += (size_t)is_exact(&a);
    }
    print_message("%lu moved, %lu of them in place; %lu overlap, %lu outputs are none; %lu exact, "
                  "%lu refused for their strides\n",
                  (unsigned long)n_ok, (unsigned long)n_in_place, (unsigned long)n_alias,
                  (unsigned long)n_output, (unsigned long)n_exact, (unsigned long)n_shy);
    assert_true(n_ok > N_GATHERS / 10 && n_in_place > N_GATHERS / 100);
    assert_true(n_alias > N_GATHERS / 10 && n_output > N_GATHERS / 100);
    assert_true(n_exact > N_GATHERS / 3);
}

/* Pages far apart in a pool, a position each: four bytes of K, then four of V. An output is refused
 * where it takes one of the prompt's pages, and there alone: not where it takes one of the same
 * number modulo 2^15, as many as the header's bitmap holds. */
static void test_pages_far_apart(void **state) {
    (void)state;
    enum { LENGTH = 4, PAGES = 70002, PAGE = 8, ROW = 4 };
    static const int32_t taken[LENGTH] = {1, 40000, 0, 70000}, list[2] = {1, 3};
    static const int32_t asked[] = {0,     1,     2,     7232,  32767, 32768, 37232,
                                    39999, 40000, 40001, 65535, 65536, 69999, 70000};
    unsigned char *pages = new_array(PAGES, PAGE), *was = new_array(PAGES, PAGE);
    for (size_t i = 0; i < PAGES * PAGE; i++) {
        was[i] = (unsigned char)(i * 7 + i / 251);
    }
    const snapkv_config config = make_config(1, 2, 1);
    snapkv_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.n_query_heads = layer.n_kv_heads = layer.head_dim = 1;
    layer.length = LENGTH;
    layer.keys = snapkv_rows_by_head(pages, SNAPKV_F32, LENGTH, 1);
    layer.keys.block_table = taken;
    layer.keys.block_rows = 1;
    layer.keys.block_stride = PAGE;
    layer.values = layer.keys;
    layer.values.data = pages + ROW;
    for (size_t i = 0; i < COUNT_OF(asked); i++) {
        for (int side = 0; side < 2; side++) { /* with a free page, a low or a high one */
            const int32_t table[2] = {side ? asked[i] : 3, side ? 70001 : asked[i]};
            unsigned char values[2 * ROW];
            const snapkv_rows_out keys_out = {pages, 0, ROW, table, 1, PAGE};
            const snapkv_rows_out values_out = {values, 0, ROW, NULL, 0, 0};
            int is_taken = 0;
            for (size_t k = 0; k < LENGTH; k++) {
                is_taken |= asked[i] == taken[k];
            }
            memcpy(pages, was, PAGES * PAGE);
            assert_status(snapkv_gather(&config, &layer, 0, list, 2, &keys_out, &values_out),
                          is_taken ? SNAPKV_ERROR_ALIAS : SNAPKV_OK);
            for (size_t slot = 0; slot < 2 && !is_taken; slot++) {
                const size_t row = (size_t)taken[list[slot]] * PAGE;
                assert_memory_equal(pages + (size_t)table[slot] * PAGE, was + row, ROW);
                assert_memory_equal(values + slot * ROW, was + row + ROW, ROW);
                memcpy(pages + (size_t)table[slot] * PAGE, was + (size_t)table[slot] * PAGE, ROW);
            }
            assert_memory_equal(pages, was, PAGES * PAGE);
        }
    }
    free(pages);
    free(was);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_arrangements),
        cmocka_unit_test(test_pages_far_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
