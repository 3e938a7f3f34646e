/* Fuzz target: the cursor, the ledger and the small functions, with extreme numbers, against
 * arithmetic in 128 bits. */
#define _DEFAULT_SOURCE /* setenv */
#include "guard.h"
#include "input.h"
#include "judge.h"

#include <math.h>

#define MAX_KEPT 64

static size_t draw_size(input *in) {
    return draw_once_in(in, 2) ? draw_extreme(in) : draw_between(in, 0, 200);
}

static snapkv_config draw_config(input *in) {
    snapkv_config config = draw_once_in(in, 2) ? snapkv_official_config() : snapkv_default_config();
    config.window = draw_once_in(in, 2) ? draw_size(in) : draw_between(in, 1, 64);
    config.capacity = draw_once_in(in, 2) ? draw_size(in) : draw_between(in, 65, 300);
    config.n_sink = draw_once_in(in, 4) ? draw_size(in) : 0;
    config.n_recent = draw_once_in(in, 4) ? draw_size(in) : 0;
    config.kernel_size = draw_once_in(in, 4) ? draw_size(in) : 5;
    if (draw_once_in(in, 4)) {
        config.sharing = (snapkv_sharing)draw_between(in, 0, 3);
        config.order = (snapkv_order)draw_between(in, 0, 2);
        config.reduce = (snapkv_reduce)draw_between(in, 0, 2);
        config.pooling = (snapkv_pooling)draw_between(in, 0, 2);
        config.voting = (snapkv_voting)draw_between(in, 0, 2);
    }
    return config;
}

/* What the policy by itself, whatever the layer, lets a list hold. */
static size_t kept_count(const snapkv_config *config, size_t length) {
    snapkv_config policy = *config;
    snapkv_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.n_query_heads = layer.n_kv_heads = layer.head_dim = 1;
    layer.length = length;
    policy.n_recent = config->n_recent ? config->n_recent : config->window;
    policy.window = config->window ? 1 : 0; /* no workspace */
    return judge_sizes(&policy, &layer, SELECTION).must ? 0
           : length < config->capacity                  ? length
                                                        : config->capacity;
}

/* a * b, so large that it stays beyond 64 bits once it was. */
static wide product(wide a, wide b) {
    return a != 0 && b > ~(wide)0 / a ? ~(wide)0 : a * b;
}

static void judge_count(verdict *v, wide count) {
    if (count > UINT64_MAX) {
        v->must |= BIT(SNAPKV_ERROR_SHAPE);
    } else if (count == UINT64_MAX) {
        v->may |= BIT(SNAPKV_ERROR_SHAPE); /* the mark of saturation */
    }
}

static void fuzz_account(input *in) {
    snapkv_config config = draw_config(in);
    snapkv_model model;
    model.batch = draw_size(in);
    model.n_layers = draw_size(in);
    model.n_kv_heads = draw_size(in);
    model.n_query_heads =
        draw_once_in(in, 4) ? draw_size(in) : model.n_kv_heads * draw_between(in, 1, 8);
    model.head_dim = draw_size(in);
    model.element_size = draw_size(in);
    size_t length = draw_size(in);
    size_t generated = draw_size(in);

    snapkv_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.n_query_heads = model.n_query_heads;
    layer.n_kv_heads = model.n_kv_heads;
    layer.head_dim = model.head_dim;
    layer.length = length;
    verdict sizes = judge_sizes(&config, &layer, BYPASSING);
    verdict v = judge_sizes(&config, &layer, SELECTION);
    size_t workspace = snapkv_workspace_size(&config, &layer);
    size_t least = snapkv_workspace_min(&config, &layer);
    assert_true(!sizes.must || (workspace == 0 && least == 0));
    assert_true(sizes.must || sizes.may || (workspace > 0 && least > 0));
    assert_true(least <= workspace);
    size_t sets = snapkv_set_count(&config, &layer);
    if (v.must) {
        assert_int_equal(sets, 0);
    } else if (!v.may) {
        size_t expected = config.sharing == SNAPKV_PER_LAYER        ? 1
                          : config.sharing == SNAPKV_PER_QUERY_HEAD ? model.n_query_heads
                                                                    : model.n_kv_heads;
        assert_true(sets == expected);
    }

    if (model.batch == 0 || model.n_layers == 0 || model.element_size == 0) {
        v.must |= BIT(SNAPKV_ERROR_SHAPE);
    }
    size_t heads = config.sharing == SNAPKV_PER_QUERY_HEAD ? model.n_query_heads : model.n_kv_heads;
    size_t kept = length < config.capacity ? length : config.capacity;
    wide row = product(product(2, model.batch), model.n_layers);
    row = product(product(row, model.head_dim), model.element_size);
    wide full = product(product(row, model.n_kv_heads), (wide)length + generated);
    wide stored = product(product(row, heads), (wide)kept + generated);
    wide scores = product(product(product(4, model.batch), model.n_query_heads),
                          product(config.window, length));

    /* Lists with counts of their own, where they are few enough to exist. */
    wide n_lists = product(product(model.batch, model.n_layers), sets);
    size_t counts[64];
    verdict listed = v;
    wide own = 0;
    for (size_t i = 0; i < COUNT_OF(counts) && !v.must; i++) {
        counts[i] = draw_once_in(in, 16) ? draw_extreme(in)
                    : length > 255       ? length - draw_between(in, 0, 255)
                                         : draw_between(in, 0, length);
        if (i < n_lists) {
            own += counts[i];
            listed.must |= counts[i] > length ? BIT(SNAPKV_ERROR_INDEX) : 0;
        }
    }
    if (!v.must) {
        wide per_list = config.sharing == SNAPKV_PER_LAYER ? model.n_kv_heads : 1;
        wide position = product(product(2, model.head_dim), model.element_size);
        wide rows = product(product(product(model.batch, model.n_layers), heads), generated);
        wide kept_rows = product(own, per_list);
        wide all_rows = kept_rows > ~(wide)0 - rows ? ~(wide)0 : kept_rows + rows;
        own = product(position, all_rows);
        judge_count(&listed, full);
        judge_count(&listed, own);
        judge_count(&listed, scores);
        judge_count(&listed, (wide)length + generated);
        judge_count(&v, full);
        judge_count(&v, stored);
        judge_count(&v, scores);
        judge_count(&v, (wide)length + generated); /* size_t: as many bits */
    }

    snapkv_ledger ledger;
    snapkv_ledger before;
    memset(&before, 0xCB, sizeof before);
    ledger = before;
    snapkv_status status = snapkv_account(&config, &model, length, generated, &ledger);
    check_verdict(status, v, "snapkv_account");
    if (status == SNAPKV_OK) {
        assert_true(ledger.full_bytes == full && ledger.kept_bytes == stored);
        assert_true(ledger.score_bytes == scores && ledger.workspace_bytes == workspace);
    } else {
        assert_memory_equal(&ledger, &before, sizeof ledger);
    }
    if (n_lists <= COUNT_OF(counts) && !v.may && (sets > 0 || v.must)) {
        ledger = before;
        status = snapkv_account_lists(&config, &model, length, generated, counts, &ledger);
        check_verdict(status, listed, "snapkv_account_lists");
        if (status == SNAPKV_OK) {
            assert_true(ledger.full_bytes == full && ledger.kept_bytes == own);
            assert_true(ledger.score_bytes == scores && ledger.workspace_bytes == workspace);
        } else {
            assert_memory_equal(&ledger, &before, sizeof ledger);
        }
    }
    assert_status(snapkv_account_lists(&config, &model, length, generated, NULL, &ledger),
                  SNAPKV_ERROR_NULL);
    assert_status(snapkv_account(&config, &model, length, generated, NULL), SNAPKV_ERROR_NULL);
    assert_status(snapkv_account(&config, NULL, length, generated, &ledger), SNAPKV_ERROR_NULL);
    assert_status(snapkv_account(NULL, &model, length, generated, &ledger), SNAPKV_ERROR_NULL);
}

static void check_slot(const snapkv_cursor *cursor, const int32_t *kept, size_t slot) {
    size_t position = 12345;
    verdict v = {0, 0};
    wide expected = 0;
    if ((wide)slot >= (wide)cursor->prompt_kept + cursor->generated) {
        v.must |= BIT(SNAPKV_ERROR_INDEX);
    }
    if (slot >= cursor->prompt_kept) {
        expected = (wide)cursor->prompt_length + (slot - cursor->prompt_kept);
    } else if (!kept) {
        v.must |= BIT(SNAPKV_ERROR_NULL);
    } else if (kept[slot] < 0 || (size_t)kept[slot] >= cursor->prompt_length) {
        v.must |= BIT(SNAPKV_ERROR_INDEX);
    } else {
        expected = (wide)kept[slot];
    }
    snapkv_status status = snapkv_slot_position(cursor, kept, slot, &position);
    check_verdict(status, v, "snapkv_slot_position");
    assert_true(status == SNAPKV_OK ? position == expected : position == 12345);
}

static void fuzz_cursor(input *in) {
    snapkv_config config = draw_config(in);
    size_t length = draw_size(in);
    snapkv_cursor cursor = snapkv_cursor_start(&config, length);
    size_t n_kept = kept_count(&config, length);
    length = n_kept ? length : 0; /* of a policy that is refused, nothing */
    assert_true(cursor.prompt_length == length && cursor.generated == 0);
    assert_true(cursor.prompt_kept == n_kept);
    assert_true(snapkv_kept_count(&config, length) == n_kept);
    if (draw_once_in(in, 4)) { /* a list with a count of its own */
        cursor.prompt_kept = n_kept = n_kept ? draw_between(in, 0, n_kept) : 0;
    }

    /* A list where it is small enough to exist; some entries may lie anywhere. */
    guard list = guard_new(n_kept <= MAX_KEPT ? n_kept * sizeof(int32_t) : 0, GUARD_AFTER);
    int32_t *kept = n_kept <= MAX_KEPT ? (int32_t *)(void *)list.data : NULL;
    for (size_t i = 0; kept && i < n_kept; i++) {
        kept[i] = draw_once_in(in, 8) ? (int32_t)draw_bytes(in, 4) : (int32_t)i;
    }
    guard_freeze(&list);

    wide generated = 0;
    size_t n_steps = draw_between(in, 1, 12);
    for (size_t i = 0; i < n_steps; i++) {
        snapkv_cursor before = cursor;
        size_t n = draw_size(in);
        if (draw_once_in(in, 2)) {
            snapkv_status status = snapkv_rewind(&cursor, n);
            assert_status(status, n > generated ? SNAPKV_ERROR_INDEX : SNAPKV_OK);
            generated -= status == SNAPKV_OK ? n : 0;
        } else {
            snapkv_status status = snapkv_append(&cursor, n);
            int fits = length + generated + n <= SIZE_MAX;
            assert_status(status, fits ? SNAPKV_OK : SNAPKV_ERROR_SHAPE);
            generated += status == SNAPKV_OK ? n : 0;
        }
        assert_true(cursor.generated == generated);
        assert_true(cursor.prompt_length == before.prompt_length);
        assert_true(cursor.prompt_kept == before.prompt_kept);
        assert_true(snapkv_next_position(&cursor) == length + generated);
        assert_true(snapkv_next_slot(&cursor) == n_kept + generated);
        check_slot(&cursor, kept, draw_size(in));
        check_slot(&cursor, kept, n_kept + draw_between(in, 0, 4) - 2);
        check_slot(&cursor, kept, (size_t)(n_kept + generated + draw_between(in, 0, 4) - 2));
    }
    guard_free(&list);
}

static void fuzz_rest(input *in) {
    size_t length = draw_size(in);
    snapkv_cursor none = snapkv_cursor_start(NULL, length);
    size_t position = 7;
    assert_true(none.prompt_length == 0 && none.prompt_kept == 0 && none.generated == 0);
    assert_true(snapkv_kept_count(NULL, length) == 0);
    assert_true(snapkv_next_position(NULL) == 0 && snapkv_next_slot(NULL) == 0);
    assert_status(snapkv_append(NULL, length), SNAPKV_ERROR_NULL);
    assert_status(snapkv_rewind(NULL, length), SNAPKV_ERROR_NULL);
    assert_status(snapkv_slot_position(NULL, NULL, length, &position), SNAPKV_ERROR_NULL);
    assert_status(snapkv_slot_position(&none, NULL, length, NULL), SNAPKV_ERROR_NULL);
    assert_true(position == 7);
    snapkv_status status = (snapkv_status)draw_bytes(in, 4);
    assert_true(snapkv_status_string(status)[0] != '\0');

    /* 2 (1 - m) v: three roundings; beyond float it is infinite, and a NaN stays one. */
    float mass = draw_once_in(in, 2) ? draw_float_bits(in) : (float)draw_bytes(in, 2) / 65535.0f;
    float norm = draw_float_bits(in);
    float bound = snapkv_error_bound(mass, norm);
    double exact = 2 * (1 - (double)mass) * (double)norm;
    if (!isfinite(mass) || !isfinite(norm)) {
        assert_true(!isfinite(bound) || bound == 0);
    } else if (fabs(exact) < 3.4e38 && fabs(2 * (1 - (double)mass)) < 3.4e38) {
        double near_one = 1.2e-7 * fabs((double)norm) * fabs((double)mass); /* rounding of 1 - m */
        assert_close(bound, exact, 4e-7 * fabs(exact) + near_one + 3e-45);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    return abort_on_failure();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    fuzz_account(&in);
    fuzz_cursor(&in);
    fuzz_rest(&in);
    return 0;
}
