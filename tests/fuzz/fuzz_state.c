/* Fuzz target: the reader of llama.cpp's states, and what is written from what it has read.
 *
 * The corpus starts from real states: of every input that is understood, every truncation and every
 * bit flip of its head is read too. */
#define _DEFAULT_SOURCE /* setenv */
#include "input.h"

#include "../../examples/llamacpp/state.h"

#include <stdlib.h>

static state parsed, written, cut;

static size_t value_bytes(const state *s, size_t layer) {
    return s->layers[layer].value_row * (s->is_transposed ? s->layers[layer].n_values : 1);
}

/* Bytes that a row of this type has a whole number of. */
static size_t unit_of(uint32_t type) {
    assert_true(type == 0 || type == 1 || type == 8);
    return type == 0 ? 4 : type == 1 ? 2 : 34; /* f32, f16; q8_0: a scale and 32 numbers */
}

/* All of the bytes is accounted for, in order and without a gap. */
static void check_layout(const state *s) {
    size_t at = STATE_HEAD + STATE_CELL * s->n_cells + (s->has_rotations ? 16 : 8);
    assert_true(s->n_cells > 0 && s->n_layers > 0 && s->n_layers <= STATE_MOST_LAYERS);
    for (size_t i = 0; i < s->n_layers; i++) {
        assert_true(s->layers[i].key_row > 0 && s->layers[i].value_row > 0);
        assert_true(s->layers[i].key_row % unit_of(s->layers[i].key_type) == 0);
        assert_true(s->layers[i].value_row % unit_of(s->layers[i].value_type) == 0);
        assert_true(s->layers[i].key_at == at + 12);
        at += 12 + s->n_cells * s->layers[i].key_row;
    }
    for (size_t i = 0; i < s->n_layers; i++) {
        assert_true(s->layers[i].value_at == at + 12);
        at += 12 + s->n_cells * value_bytes(s, i);
    }
    assert_true(at == s->size && state_size(s, s->n_cells) == s->size);
}

static void check_same_layers(const state *a, const state *b) {
    assert_true(a->n_layers == b->n_layers && a->is_transposed == b->is_transposed);
    for (size_t i = 0; i < a->n_layers; i++) {
        assert_true(a->layers[i].key_type == b->layers[i].key_type);
        assert_true(a->layers[i].value_type == b->layers[i].value_type);
        assert_true(a->layers[i].key_row == b->layers[i].key_row);
        assert_true(a->layers[i].value_row == b->layers[i].value_row);
        assert_true(a->layers[i].n_values == b->layers[i].n_values);
    }
}

/* Ascending by position, every cell once; unless two share a position. */
static void check_order(const state *s) {
    int32_t *cells = new_array(s->n_cells, sizeof *cells);
    int32_t *scratch = new_array(s->n_cells, sizeof *scratch);
    char *seen = new_array(s->n_cells, 1);
    const int is_ordered = state_order(s, cells, scratch);
    int has_twins = 0;
    for (size_t i = 0; i < s->n_cells; i++) {
        assert_true(cells[i] >= 0 && (size_t)cells[i] < s->n_cells && !seen[cells[i]]);
        seen[cells[i]] = 1;
        if (i > 0) {
            const int32_t last = state_position(s, (size_t)cells[i - 1]);
            const int32_t here = state_position(s, (size_t)cells[i]);
            assert_true(last <= here);
            has_twins |= last == here;
        }
    }
    assert_true(is_ordered == !has_twins);
    free(cells);
    free(scratch);
    free(seen);
}

/* A state of n cells is read as what it was written from; with all the rows in place it is the
 * same, but for the positions. */
static void check_writing(const state *s, size_t n) {
    const size_t size = state_size(s, n);
    unsigned char *bytes = new_array(size, 1);
    state_start(s, n, 1000, bytes, &written);
    assert_true(written.error[0] == '\0' && written.n_cells == n && written.size == size);
    assert_true(written.has_rotations == s->has_rotations);
    check_layout(&written);
    check_same_layers(s, &written);
    for (size_t i = 0; i < n; i++) {
        assert_true((size_t)state_position(&written, i) == 1000 + i);
    }
    if (n == s->n_cells) {
        const size_t rows = STATE_HEAD + STATE_CELL * n;
        for (size_t i = 0; i < s->n_layers; i++) {
            memcpy(bytes + written.layers[i].key_at, s->bytes + s->layers[i].key_at,
                   n * s->layers[i].key_row);
            memcpy(bytes + written.layers[i].value_at, s->bytes + s->layers[i].value_at,
                   n * value_bytes(s, i));
        }
        assert_memory_equal(bytes, s->bytes, STATE_HEAD);
        assert_memory_equal(bytes + rows, s->bytes + rows, size - rows);
    }
    free(bytes);
}

/* As versions before 0.7.0 wrote it. */
static void check_older(const state *s) {
    const size_t rotations = STATE_HEAD + STATE_CELL * s->n_cells + 8;
    unsigned char *older = new_array(s->size - 8, 1);
    memcpy(older, s->bytes, rotations);
    memcpy(older + rotations, s->bytes + rotations + 8, s->size - rotations - 8);
    assert_true(state_parse(&cut, older, s->size - 8) && !cut.has_rotations);
    assert_true(cut.n_cells == s->n_cells);
    check_layout(&cut);
    check_same_layers(s, &cut);
    free(older);
}

/* Understood or refused with a reason; nothing is read beyond the bytes. */
static int check_bytes(const uint8_t *data, size_t size) {
    unsigned char *input = new_array(size, 1); /* of exactly this size, for AddressSanitizer */
    memcpy(input, data, size);
    const int is_understood = state_parse(&parsed, input, size);
    assert_true(is_understood == (parsed.error[0] == '\0'));
    if (is_understood) {
        check_layout(&parsed);
        check_order(&parsed);
        check_writing(&parsed, 1);
        check_writing(&parsed, parsed.n_cells);
        if (parsed.has_rotations) {
            check_older(&parsed);
        }
    }
    free(input);
    return is_understood;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    return abort_on_failure();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (check_bytes(data, size)) {
        unsigned char *bytes = new_array(size, 1);
        const size_t head = STATE_HEAD + STATE_CELL * parsed.n_cells + 16 + 12;
        memcpy(bytes, data, size);
        for (size_t n = 0; n < size; n++) {
            assert_false(check_bytes(bytes, n)); /* nothing shorter is whole */
        }
        for (size_t bit = 0; bit < 8 * (head < size ? head : size); bit++) {
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
            (void)check_bytes(bytes, size);
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        free(bytes);
    }
    return 0;
}
