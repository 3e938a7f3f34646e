/* Stack below 16 KiB per call: each call runs on a stack of its own that was painted before, and
 * the paint that is gone afterwards is what it used. */
#define _XOPEN_SOURCE 600 /* ucontext */
#include "check.h"
#include "problem.h"

#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define STACK_SIZE ((size_t)256 * 1024)
#define LIMIT      ((size_t)16 * 1024)
#define PAINT      0xA7

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer) ||                         \
    __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

static ucontext_t caller;
static void (*work)(void);

static void enter(void) {
    work();
}

static size_t stack_used_by(void (*function)(void)) {
    ucontext_t context;
    guard stack = guard_new(STACK_SIZE, GUARD_BEFORE);
    memset(stack.data, PAINT, STACK_SIZE);
    getcontext(&context);
    context.uc_stack.ss_sp = stack.data;
    context.uc_stack.ss_size = STACK_SIZE;
    context.uc_link = &caller;
    makecontext(&context, enter, 0);
    work = function;
    swapcontext(&caller, &context);
    size_t untouched = 0;
    while (untouched < STACK_SIZE && stack.data[untouched] == PAINT) {
        untouched++;
    }
    guard_free(&stack);
    return STACK_SIZE - untouched;
}

/* What the calls work on; they take no arguments on the painted stack. */
static problem p;
static guard workspace, kept, floats, rows;
static snapkv_rows_out keys_out, values_out;
static snapkv_status status;
static snapkv_selection selection, selections[4];
static snapkv_ledger ledger;
static snapkv_cursor cursor;
static size_t workspace_size;

static int32_t *list(void) {
    return (int32_t *)(void *)kept.data;
}

static float *numbers(void) {
    return (float *)(void *)floats.data;
}

static void call_nothing(void) {
    status = SNAPKV_OK;
}

static void call_vote(void) {
    status = snapkv_vote(&p.config, &p.layer, 1, numbers(), workspace.data, workspace_size);
}

static void call_select(void) {
    status = snapkv_select(&p.config, &p.layer, 0, list(), numbers(), &selection, workspace.data,
                           workspace_size);
}

static void call_compress(void) {
    status = snapkv_compress(&p.config, &p.layer, 0, list(), &keys_out, &values_out, &selection,
                             workspace.data, workspace_size);
}

static void call_mass(void) {
    status = snapkv_retained_mass(&p.config, &p.layer, 1, p.queries, p.layer.length, list(), 10,
                                  numbers(), workspace.data, workspace_size);
}

static void call_compress_layer(void) {
    status = snapkv_compress_layer(&p.config, &p.layer, list(), &keys_out, &values_out, selections,
                                   workspace.data, workspace_size);
}

static void call_gather(void) {
    status = snapkv_gather(&p.config, &p.layer, 0, list(), 10, &keys_out, &values_out);
}

static void call_score(void) {
    status = snapkv_score(&p.config, &p.layer, 0, numbers(), NULL, workspace.data, workspace_size);
}

static void call_keep(void) {
    status = snapkv_keep(&p.config, p.layer.length, p.keys,
                         problem_kept_count(&p) - p.config.window, list());
}

static void call_coverage(void) {
    status = snapkv_coverage(&p.config, p.layer.length, p.keys, list(), 10, numbers());
}

/* Long lists are looked at in a sample first; the same one may stand there twice. */
static void call_allocate(void) {
    static float scores[1 << 17];
    size_t counts[2];
    const snapkv_list lists[2] = {{scores, COUNT_OF(scores)}, {scores, COUNT_OF(scores)}};
    for (size_t i = 0; i < COUNT_OF(scores); i++) {
        scores[i] = p.keys[i % problem_prefix(&p)];
    }
    status = snapkv_allocate(lists, 2, 1000, 10, counts);
}

static void call_explain(void) {
    status = snapkv_explain(&p.config, &p.layer) ? SNAPKV_ERROR_SHAPE : SNAPKV_OK;
}

static void call_check(void) {
    status = snapkv_check(&p.config, &p.layer);
}

static void call_pool(void) {
    status = snapkv_pool(p.keys, problem_prefix(&p), 7, SNAPKV_POOL_AVG, numbers());
}

static void call_top_k(void) {
    status = snapkv_top_k(p.keys, problem_prefix(&p), 40, SNAPKV_BY_SCORE, list());
}

static void call_gather_rows(void) {
    status = snapkv_gather_rows(list(), 10, p.keys, 64, 100, 64, rows.data, 64);
}

static void call_gather_columns(void) {
    status = snapkv_gather_columns(list(), 10, p.keys, 400, 100, 4, 10, rows.data, 40);
}

static void call_account(void) {
    static const snapkv_model model = {1, 2, 4, 2, 8, 2};
    static const size_t counts[8] = {0};
    status = snapkv_account(&p.config, &model, p.layer.length, 3, &ledger);
    if (status == SNAPKV_OK) {
        status = snapkv_account_lists(&p.config, &model, p.layer.length, 3, counts, &ledger);
    }
}

static void call_the_rest(void) {
    size_t position =
        snapkv_workspace_size(&p.config, &p.layer) + snapkv_workspace_min(&p.config, &p.layer) +
        snapkv_set_count(&p.config, &p.layer) + snapkv_kept_count(&p.config, p.layer.length);
    snapkv_rows view = snapkv_rows_by_head(p.keys, SNAPKV_F32, 3, 4);
    view = snapkv_rows_by_position(view.data, SNAPKV_F32, 2, 4);
    position += snapkv_rows_in_place(&view).row_stride;
    snapkv_config config = snapkv_official_config();
    config = snapkv_default_config();
    cursor = snapkv_cursor_start(&config, 100);
    status = snapkv_append(&cursor, 3);
    status = snapkv_rewind(&cursor, 2);
    position += snapkv_next_position(&cursor) + snapkv_next_slot(&cursor);
    status = snapkv_slot_position(&cursor, list(), 100, &position);
    numbers()[0] = snapkv_error_bound(0.5f, (float)position);
    if (!snapkv_status_string(status)) {
        status = SNAPKV_ERROR_NULL;
    }
}

static const struct {
    const char *name;
    void (*function)(void);
} CALLS[] = {
    {"vote", call_vote},
    {"select", call_select},
    {"compress", call_compress},
    {"compress_layer", call_compress_layer},
    {"gather", call_gather},
    {"score", call_score},
    {"keep", call_keep},
    {"coverage", call_coverage},
    {"allocate", call_allocate},
    {"explain", call_explain},
    {"retained_mass", call_mass},
    {"check", call_check},
    {"pool", call_pool},
    {"top_k", call_top_k},
    {"gather_rows", call_gather_rows},
    {"gather_columns", call_gather_columns},
    {"account", call_account},
    {"the rest", call_the_rest},
};

static size_t most[COUNT_OF(CALLS)];

/* Runs every call on the packed problem and remembers the largest use of each. */
static void measure(size_t size) {
    workspace_size = size;
    workspace = guard_new(size, GUARD_AFTER);
    for (size_t i = 0; i < COUNT_OF(CALLS); i++) {
        for (size_t k = 0; k < 40; k++) {
            list()[k] = (int32_t)k;
        }
        size_t used = stack_used_by(CALLS[i].function);
        assert_ok(status);
        most[i] = used > most[i] ? used : most[i];
    }
    guard_free(&workspace);
}

static void test_stack(void **state) {
    (void)state;
    /* Window, length, dimension; the last is long enough for top-k to look at a sample first. */
    static const size_t shapes[][3] = {
        {1, 300, 3}, {17, 200, 80}, {128, 400, 128}, {32, 300, 576}, {5, 16400, 4}};
    static const float sinks[4] = {0, 1, 2, 3};
    static const float slopes[4] = {0.01f, 0.02f, 0.03f, 0.04f};
    if (SANITIZED) {
        print_message("SKIP: a sanitizer's own frames are not the library's\n");
        skip();
    }
    size_t nothing = stack_used_by(call_nothing);
    for (size_t i = 0; i < COUNT_OF(shapes) * 4; i++) {
        static const snapkv_dtype dtypes[] = {SNAPKV_F32, SNAPKV_F16, SNAPKV_BF16, SNAPKV_CUSTOM};
        const size_t *shape = shapes[i / 4];
        packing how = {(layout)(i % 4), dtypes[i % 4], GUARD_AFTER, 0, 1, 24};
        splitmix random = {i};
        p = problem_new(make_config(shape[0], shape[0] + 40, 5), 4, 2, shape[1], shape[2]);
        problem_fill(&p, &random, 4, 1);
        problem_pack(&p, how);
        p.layer.softcap = 20;
        p.layer.span = 150;
        problem_set_sinks(&p, sinks);
        problem_set_slopes(&p, slopes);
        p.config.order = i % 2 ? SNAPKV_BY_SCORE : SNAPKV_BY_POSITION;
        kept = guard_new(2 * problem_kept_count(&p) * sizeof(int32_t), GUARD_AFTER);
        floats = guard_new(shape[1] * sizeof(float), GUARD_AFTER);
        size_t row = p.packed_keys.row_bytes;
        size_t head = problem_kept_count(&p) * row;
        rows = guard_new(4 * head, GUARD_AFTER);
        keys_out.data = rows.data;
        values_out.data = rows.data + 2 * head;
        keys_out.head_stride = values_out.head_stride = head;
        keys_out.row_stride = values_out.row_stride = row;
        measure(snapkv_workspace_size(&p.config, &p.layer));
        measure(snapkv_workspace_min(&p.config, &p.layer));
        guard_free(&kept);
        guard_free(&floats);
        guard_free(&rows);
        problem_free(&p);
    }
    for (size_t i = 0; i < COUNT_OF(CALLS); i++) {
        size_t used = most[i] > nothing ? most[i] - nothing : 0;
        print_message("%-15s %6lu bytes of stack\n", CALLS[i].name, (unsigned long)used);
        assert_true(used < LIMIT);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
