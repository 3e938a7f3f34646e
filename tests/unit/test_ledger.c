/* snapkv_account(): the example of docs/algorithm.md, and counts that no longer fit. */
#include "check.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)

/* 32 layers, 32 query heads on 8 K/V heads, D 128, two bytes an element. */
static const snapkv_model MODEL = {1, 32, 32, 8, 128, 2};

static snapkv_config policy(snapkv_sharing sharing) {
    snapkv_config config = snapkv_default_config();
    config.capacity = 1024;
    config.sharing = sharing;
    return config;
}

static snapkv_ledger account(snapkv_config config, snapkv_model model, size_t length,
                             size_t generated) {
    snapkv_ledger ledger;
    memset(&ledger, 0xCB, sizeof ledger);
    assert_ok(snapkv_account(&config, &model, length, generated, &ledger));
    return ledger;
}

static void test_the_articles_example(void **state) {
    (void)state;
    snapkv_ledger expanded = account(policy(SNAPKV_PER_QUERY_HEAD), MODEL, 16384, 512);
    assert_true(expanded.full_bytes == 2112 * MIB);
    assert_true(expanded.kept_bytes == 768 * MIB);
    assert_true(expanded.score_bytes == 64 * MIB);
    assert_true(expanded.kept_bytes * 11 == expanded.full_bytes * 4);

    snapkv_ledger native = account(policy(SNAPKV_PER_KV_HEAD), MODEL, 16384, 512);
    assert_true(native.full_bytes == 2112 * MIB);
    assert_true(native.kept_bytes == 192 * MIB);
    assert_true(native.score_bytes == 64 * MIB);
    assert_true(native.kept_bytes * 11 == native.full_bytes);

    snapkv_ledger shared = account(policy(SNAPKV_PER_LAYER), MODEL, 16384, 512);
    assert_true(shared.kept_bytes == 192 * MIB);
}

static void test_workspace_is_what_the_library_asks_for(void **state) {
    (void)state;
    for (int sharing = 0; sharing < 3; sharing++) {
        snapkv_config config = policy((snapkv_sharing)sharing);
        snapkv_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.n_query_heads = 32;
        layer.n_kv_heads = 8;
        layer.length = 16384;
        layer.head_dim = 128;
        snapkv_ledger ledger = account(config, MODEL, 16384, 0);
        assert_true(ledger.workspace_bytes == snapkv_workspace_size(&config, &layer));
        assert_true(ledger.workspace_bytes > 0);
    }
}

/* min(L, C) + g, on either side of the capacity; expanded heads stay expanded when bypassed. */
static void test_lengths_around_the_capacity(void **state) {
    (void)state;
    const uint64_t position = 2 * 32 * 8 * 128 * 2;
    for (size_t length = 1022; length <= 1026; length++) {
        for (size_t generated = 0; generated <= 7; generated += 7) {
            uint64_t kept = length < 1024 ? length : 1024;
            snapkv_ledger native = account(policy(SNAPKV_PER_KV_HEAD), MODEL, length, generated);
            assert_true(native.full_bytes == position * (length + generated));
            assert_true(native.kept_bytes == position * (kept + generated));
            assert_true(native.score_bytes == (uint64_t)4 * 32 * 32 * length);
            snapkv_ledger expanded =
                account(policy(SNAPKV_PER_QUERY_HEAD), MODEL, length, generated);
            assert_true(expanded.kept_bytes == 4 * position * (kept + generated));
        }
    }
}

static void test_batch_scales_everything_but_the_workspace(void **state) {
    (void)state;
    snapkv_model batch = MODEL;
    batch.batch = 5;
    snapkv_ledger one = account(policy(SNAPKV_PER_KV_HEAD), MODEL, 5000, 100);
    snapkv_ledger five = account(policy(SNAPKV_PER_KV_HEAD), batch, 5000, 100);
    assert_true(five.full_bytes == 5 * one.full_bytes);
    assert_true(five.kept_bytes == 5 * one.kept_bytes);
    assert_true(five.score_bytes == 5 * one.score_bytes);
    assert_true(five.workspace_bytes == one.workspace_bytes);
}

/* Lists of their own length: 2 sequences, 3 layers, 8 query heads on 4 K/V heads, D 16, 2 bytes. A
 * position of one head is 2 * 16 * 2 = 64 bytes of K and V. */
static void test_lists_of_their_own_length(void **state) {
    (void)state;
    static const snapkv_model model = {2, 3, 8, 4, 16, 2};
    static const size_t n_sets[3] = {4, 8, 1}, heads[3] = {4, 8, 4}; /* by sharing */
    for (int sharing = 0; sharing < 3; sharing++) {
        size_t counts[2 * 3 * 8], n = 2 * 3 * n_sets[sharing], sum = 0;
        snapkv_config config = policy((snapkv_sharing)sharing);
        snapkv_ledger ledger, plain = account(config, model, 5000, 7), before = plain;
        for (size_t i = 0; i < n; i++) {
            counts[i] = i * i * 2; /* below 5000 */
            sum += counts[i] * (heads[sharing] / n_sets[sharing]);
        }
        assert_ok(snapkv_account_lists(&config, &model, 5000, 7, counts, &ledger));
        assert_true(ledger.kept_bytes == 64 * (sum + 2 * 3 * heads[sharing] * 7));
        assert_true(ledger.full_bytes == plain.full_bytes);
        assert_true(ledger.score_bytes == plain.score_bytes);
        assert_true(ledger.workspace_bytes == plain.workspace_bytes);
        for (size_t i = 0; i < n; i++) {
            counts[i] = config.capacity;
        }
        assert_ok(snapkv_account_lists(&config, &model, 5000, 7, counts, &ledger));
        assert_true(ledger.kept_bytes == plain.kept_bytes);
        for (size_t i = 0; i < n; i++) { /* each is looked at */
            counts[i] = 5001;
            ledger = before;
            assert_status(snapkv_account_lists(&config, &model, 5000, 7, counts, &ledger),
                          SNAPKV_ERROR_INDEX);
            assert_memory_equal(&ledger, &before, sizeof before);
            counts[i] = 5000;
        }
        assert_ok(snapkv_account_lists(&config, &model, 5000, 7, counts, &ledger));
        assert_status(snapkv_account_lists(&config, &model, 5000, 7, NULL, &ledger),
                      SNAPKV_ERROR_NULL);
    }
}

static void expect(snapkv_config config, snapkv_model model, size_t length, size_t generated,
                   snapkv_status status) {
    snapkv_ledger ledger;
    snapkv_ledger before;
    memset(&ledger, 0xCB, sizeof ledger);
    before = ledger;
    assert_status(snapkv_account(&config, &model, length, generated, &ledger), status);
    assert_memory_equal(&ledger, &before, sizeof ledger);
}

static void test_errors_write_nothing(void **state) {
    (void)state;
    snapkv_config config = policy(SNAPKV_PER_KV_HEAD);
    snapkv_model model = MODEL;
    snapkv_ledger ledger;
    assert_status(snapkv_account(NULL, &model, 5000, 0, &ledger), SNAPKV_ERROR_NULL);
    assert_status(snapkv_account(&config, NULL, 5000, 0, &ledger), SNAPKV_ERROR_NULL);
    assert_status(snapkv_account(&config, &model, 5000, 0, NULL), SNAPKV_ERROR_NULL);

    size_t *const sizes[] = {&model.batch,      &model.n_layers, &model.n_query_heads,
                             &model.n_kv_heads, &model.head_dim, &model.element_size};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        model = MODEL;
        *sizes[i] = 0;
        expect(config, model, 5000, 0, SNAPKV_ERROR_SHAPE);
    }
    model = MODEL;
    model.n_kv_heads = 5;
    expect(config, model, 5000, 0, SNAPKV_ERROR_SHAPE);
    expect(config, MODEL, 0, 0, SNAPKV_ERROR_SHAPE);
    if (SIZE_MAX > INT32_MAX) {
        expect(config, MODEL, (size_t)INT32_MAX + 1, 0, SNAPKV_ERROR_SHAPE);
    }
    expect(config, MODEL, SIZE_MAX, 0, SNAPKV_ERROR_SHAPE);
    config.capacity = 31; /* not bypassed */
    config.n_recent = 4;
    expect(config, MODEL, 31, 0, SNAPKV_ERROR_WINDOW);
    config = policy(SNAPKV_PER_KV_HEAD);
    config.window = 0;
    expect(config, MODEL, 5000, 0, SNAPKV_ERROR_WINDOW);
    config = policy(SNAPKV_PER_KV_HEAD);
    config.capacity = 32;
    expect(config, MODEL, 5000, 0, SNAPKV_ERROR_CAPACITY);
    config = policy(SNAPKV_PER_KV_HEAD);
    config.kernel_size = 4;
    expect(config, MODEL, 5000, 0, SNAPKV_ERROR_KERNEL);
    config = policy((snapkv_sharing)3);
    expect(config, MODEL, 5000, 0, SNAPKV_ERROR_OPTION);
}

/* Factors each of which is fine, and whose product isn't. */
static void test_counts_beyond_64_bits(void **state) {
    (void)state;
    snapkv_config config = policy(SNAPKV_PER_KV_HEAD);
    snapkv_model model = MODEL;
    model.batch = SIZE_MAX;
    model.n_layers = SIZE_MAX;
    expect(config, model, 5000, 0, SNAPKV_ERROR_SHAPE);
    model = MODEL;
    model.n_layers = SIZE_MAX / 2;
    model.batch = 4 + SIZE_MAX / 1024;
    expect(config, model, 5000, 0, SNAPKV_ERROR_SHAPE);
    if (SIZE_MAX == UINT32_MAX) {
        return; /* it takes three such factors, and the generated tokens alone don't do it */
    }
    model = MODEL;
    model.element_size = SIZE_MAX / 1024;
    expect(config, model, 5000, 0, SNAPKV_ERROR_SHAPE);
    expect(config, MODEL, 5000, SIZE_MAX, SNAPKV_ERROR_SHAPE);
    expect(config, MODEL, 5000, SIZE_MAX - 5000, SNAPKV_ERROR_SHAPE);
    expect(config, MODEL, 5000, SIZE_MAX >> 16, SNAPKV_ERROR_SHAPE);

    /* 2^63 bytes fit with the native heads; expanded four times they don't. */
    model = MODEL;
    model.n_layers = (size_t)1 << 17;
    model.head_dim = 64;
    model.element_size = (size_t)1 << 15;
    size_t generated = ((size_t)1 << 21) - 4096;
    snapkv_ledger ledger = account(config, model, 4096, generated);
    assert_true(ledger.full_bytes == (uint64_t)1 << 63);
    expect(policy(SNAPKV_PER_QUERY_HEAD), model, 4096, generated, SNAPKV_ERROR_SHAPE);

    /* A cache of 2^32 bytes, and 4 x 2^20 heads x 2^20 queries x 2^31 positions: 2^73. */
    config = policy(SNAPKV_PER_QUERY_HEAD);
    config.window = (size_t)1 << 20;
    config.capacity = config.window + 1;
    const snapkv_model wide = {1, 1, (size_t)1 << 20, 1, 1, 1};
    expect(config, wide, INT32_MAX, 0, SNAPKV_ERROR_SHAPE);
}

/* More lists than an array of counts could have. */
static void test_more_lists_than_memory(void **state) {
    (void)state;
    const size_t counts[1] = {0};
    snapkv_model model = {1, PTRDIFF_MAX / sizeof(size_t), 1, 1, 1, 1};
    snapkv_ledger ledger;
    memset(&ledger, 0xA5, sizeof ledger);
    const snapkv_ledger before = ledger;
    const snapkv_config config = policy(SNAPKV_PER_KV_HEAD);
    assert_status(snapkv_account_lists(&config, &model, 5000, 0, counts, &ledger),
                  SNAPKV_ERROR_SHAPE);
    assert_memory_equal(&ledger, &before, sizeof ledger);
    model.n_layers = 1;
    assert_ok(snapkv_account_lists(&config, &model, 5000, 0, counts, &ledger));
    assert_true(ledger.kept_bytes == 0 && ledger.full_bytes == 2 * 5000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_articles_example),
        cmocka_unit_test(test_workspace_is_what_the_library_asks_for),
        cmocka_unit_test(test_lengths_around_the_capacity),
        cmocka_unit_test(test_batch_scales_everything_but_the_workspace),
        cmocka_unit_test(test_lists_of_their_own_length),
        cmocka_unit_test(test_errors_write_nothing),
        cmocka_unit_test(test_counts_beyond_64_bits),
        cmocka_unit_test(test_more_lists_than_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
