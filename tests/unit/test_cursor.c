/* Where a compressed sequence stands: logical positions apart from cache slots. */
#include "check.h"

#include <string.h>

static void test_starts_at_the_end_of_the_prompt(void **state) {
    (void)state;
    snapkv_config config = snapkv_default_config();
    static const size_t lengths[] = {32, 2047, 2048, 2049, 100000};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        snapkv_cursor cursor = snapkv_cursor_start(&config, lengths[i]);
        size_t kept = lengths[i] < 2048 ? lengths[i] : 2048;
        assert_int_equal(cursor.prompt_length, lengths[i]);
        assert_int_equal(cursor.prompt_kept, kept);
        assert_int_equal(cursor.generated, 0);
        assert_int_equal(snapkv_next_position(&cursor), lengths[i]);
        assert_int_equal(snapkv_next_slot(&cursor), kept);
    }
}

/* L + g and min(L, C) + g, token by token and in larger steps, and back again. */
static void test_appends_and_rewinds(void **state) {
    (void)state;
    snapkv_config config = snapkv_default_config();
    snapkv_cursor cursor = snapkv_cursor_start(&config, 5000);
    size_t generated = 0;
    for (size_t step = 0; step < 20; step++) {
        assert_ok(snapkv_append(&cursor, step));
        generated += step;
        assert_int_equal(snapkv_next_position(&cursor), 5000 + generated);
        assert_int_equal(snapkv_next_slot(&cursor), 2048 + generated);
        assert_ok(snapkv_rewind(&cursor, step / 2));
        generated -= step / 2;
        assert_int_equal(snapkv_next_position(&cursor), 5000 + generated);
        assert_int_equal(snapkv_next_slot(&cursor), 2048 + generated);
    }
    assert_ok(snapkv_rewind(&cursor, generated));
    assert_int_equal(snapkv_next_position(&cursor), 5000);
    assert_int_equal(snapkv_next_slot(&cursor), 2048);
}

static void test_prompt_cannot_be_rewound(void **state) {
    (void)state;
    snapkv_config config = snapkv_default_config();
    snapkv_cursor cursor = snapkv_cursor_start(&config, 5000);
    assert_status(snapkv_rewind(&cursor, 1), SNAPKV_ERROR_INDEX);
    assert_ok(snapkv_append(&cursor, 3));
    const snapkv_cursor before = cursor;
    assert_status(snapkv_rewind(&cursor, 4), SNAPKV_ERROR_INDEX);
    assert_status(snapkv_rewind(&cursor, SIZE_MAX), SNAPKV_ERROR_INDEX);
    assert_memory_equal(&cursor, &before, sizeof cursor);
    assert_ok(snapkv_rewind(&cursor, 0));
    assert_memory_equal(&cursor, &before, sizeof cursor);
}

static void test_append_does_not_wrap(void **state) {
    (void)state;
    snapkv_config config = snapkv_default_config();
    snapkv_cursor cursor = snapkv_cursor_start(&config, 5000);
    assert_ok(snapkv_append(&cursor, 10));
    const snapkv_cursor before = cursor;
    assert_status(snapkv_append(&cursor, SIZE_MAX), SNAPKV_ERROR_SHAPE);
    assert_status(snapkv_append(&cursor, SIZE_MAX - 9), SNAPKV_ERROR_SHAPE);
    /* What has to fit is the position, not the count alone. */
    assert_status(snapkv_append(&cursor, SIZE_MAX - 5009), SNAPKV_ERROR_SHAPE);
    assert_memory_equal(&cursor, &before, sizeof cursor);
}

static void test_positions_of_slots(void **state) {
    (void)state;
    snapkv_config config = snapkv_default_config();
    const int32_t kept[6] = {4, 9, 2, 20, 21, 22};
    config.window = 3;
    config.capacity = 6;
    snapkv_cursor cursor = snapkv_cursor_start(&config, 23);
    assert_ok(snapkv_append(&cursor, 4));
    for (size_t slot = 0; slot < 10; slot++) {
        size_t position = 12345;
        assert_ok(snapkv_slot_position(&cursor, kept, slot, &position));
        assert_int_equal(position, slot < 6 ? (size_t)kept[slot] : 23 + slot - 6);
    }
    /* A generated token's slot says where it is without the list. */
    size_t position = 12345;
    assert_ok(snapkv_slot_position(&cursor, NULL, 9, &position));
    assert_int_equal(position, 26);
}

static void test_slots_out_of_range(void **state) {
    (void)state;
    snapkv_config config = snapkv_default_config();
    const int32_t kept[6] = {4, 9, 12, 20, 21, 22};
    config.window = 3;
    config.capacity = 6;
    snapkv_cursor cursor = snapkv_cursor_start(&config, 23);
    size_t position = 12345;
    assert_status(snapkv_slot_position(&cursor, kept, 6, &position), SNAPKV_ERROR_INDEX);
    assert_ok(snapkv_append(&cursor, 2));
    assert_status(snapkv_slot_position(&cursor, kept, 8, &position), SNAPKV_ERROR_INDEX);
    assert_status(snapkv_slot_position(&cursor, kept, SIZE_MAX, &position), SNAPKV_ERROR_INDEX);
    assert_int_equal(position, 12345);
}

/* A list that is not of this prompt. */
static void test_lists_out_of_range(void **state) {
    (void)state;
    snapkv_config config = snapkv_default_config();
    const int32_t kept[6] = {-1, 22, 23, INT32_MIN, INT32_MAX, 0};
    config.window = 3;
    config.capacity = 6;
    snapkv_cursor cursor = snapkv_cursor_start(&config, 23);
    size_t position = 12345;
    assert_status(snapkv_slot_position(&cursor, kept, 0, &position), SNAPKV_ERROR_INDEX);
    assert_status(snapkv_slot_position(&cursor, kept, 2, &position), SNAPKV_ERROR_INDEX);
    assert_status(snapkv_slot_position(&cursor, kept, 3, &position), SNAPKV_ERROR_INDEX);
    assert_status(snapkv_slot_position(&cursor, kept, 4, &position), SNAPKV_ERROR_INDEX);
    assert_int_equal(position, 12345);
    assert_ok(snapkv_slot_position(&cursor, kept, 1, &position));
    assert_int_equal(position, 22);
}

static void test_nulls(void **state) {
    (void)state;
    snapkv_config config = snapkv_default_config();
    const int32_t kept[1] = {0};
    snapkv_cursor cursor = snapkv_cursor_start(&config, 100);
    size_t position = 12345;
    assert_status(snapkv_append(NULL, 1), SNAPKV_ERROR_NULL);
    assert_status(snapkv_rewind(NULL, 0), SNAPKV_ERROR_NULL);
    assert_status(snapkv_slot_position(NULL, kept, 0, &position), SNAPKV_ERROR_NULL);
    assert_status(snapkv_slot_position(&cursor, NULL, 0, &position), SNAPKV_ERROR_NULL);
    assert_status(snapkv_slot_position(&cursor, kept, 0, NULL), SNAPKV_ERROR_NULL);
    assert_int_equal(position, 12345);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_starts_at_the_end_of_the_prompt),
        cmocka_unit_test(test_appends_and_rewinds),
        cmocka_unit_test(test_prompt_cannot_be_rewound),
        cmocka_unit_test(test_append_does_not_wrap),
        cmocka_unit_test(test_positions_of_slots),
        cmocka_unit_test(test_slots_out_of_range),
        cmocka_unit_test(test_lists_out_of_range),
        cmocka_unit_test(test_nulls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
