/* state.h: what llama_state_seq_get_data writes for one sequence, read and written.
 *
 * llama.cpp documents this nowhere and stamps no version into it: it is read strictly, every count
 * is compared with the size, and all of it must be used up. Little-endian, no padding:
 *
 *     u32 magic, i32 sequence, u32 streams, u32 cells
 *     per cell: i32 position, u32 number of sequences, i32 sequence
 *     u32 whether V is transposed, u32 layers, from 0.7.0 on: u32, u32 size of K's and V's rotation
 *     K of each layer: i32 type, u64 bytes of a row, [cell][K/V head][dim]
 *     V of each layer: the same, or transposed (no flash attention)
 *                      i32 type, u32 bytes of an element, u32 rows, [K/V head][dim][cell]
 *
 *     state s;
 *     if (!state_parse(&s, bytes, size))
 *         puts(s.error);                                  what was found, what was expected
 *     size = state_size(&s, n_kept);                      of the same layers with n_kept cells
 *     state_start(&s, n_kept, first_position, out, &t);   writes all but the rows, which
 *                                                         t.layers[i].key_at and value_at tell
 * libc only; nothing is allocated. Tried with libllama 0.7.0. */
#ifndef STATE_H
#define STATE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { STATE_MOST_LAYERS = 512, STATE_HEAD = 16, STATE_CELL = 12 };

/* ggml's numbers of the cache types that are read here. */
enum { STATE_F32 = 0, STATE_F16 = 1, STATE_Q8_0 = 8 };

typedef struct state_layer {
    uint32_t key_type, value_type;
    size_t key_row;          /* bytes of a cell: of all K/V heads */
    size_t value_row;        /* likewise; transposed: bytes of an element */
    size_t n_values;         /* transposed: rows, K/V heads times dims */
    size_t key_at, value_at; /* where the rows begin, from the start of the bytes */
} state_layer;

typedef struct state {
    const unsigned char *bytes;
    size_t size;
    size_t n_cells, n_layers;
    int is_transposed;
    int has_rotations; /* 0.7.0 and later */
    state_layer layers[STATE_MOST_LAYERS];
    char error[160];
    size_t at; /* while reading: the next byte */
} state;

/* Of a type: `elements` take `bytes`. False: none that is read here. */
static inline int state_type(uint32_t type, size_t *elements, size_t *bytes) {
    *elements = type == STATE_Q8_0 ? 32 : 1;
    *bytes = type == STATE_Q8_0 ? 34 : type == STATE_F32 ? 4 : 2;
    return type == STATE_F32 || type == STATE_F16 || type == STATE_Q8_0;
}

/* ---- reading -------------------------------------------------------------------------------- */

/* The first thing that is wrong is what is told. */
static inline void state_fail(state *s, size_t at, const char *what, uint64_t found,
                              const char *expected) {
    if (s->error[0] == '\0')
        snprintf(s->error, sizeof s->error, "byte %llu: %s: %llu, expected %s",
                 (unsigned long long)at, what, (unsigned long long)found, expected);
}

static inline uint64_t state_number(const unsigned char *bytes, size_t n) {
    uint64_t number = 0;
    for (size_t i = n; i-- > 0;)
        number = number << 8 | bytes[i];
    return number;
}

/* The next n bytes as a number; 0 when something was wrong before. */
static inline uint64_t state_take(state *s, size_t n, const char *what) {
    if (s->size - s->at < n)
        state_fail(s, s->at, what, s->size - s->at, "more bytes: it is cut");
    if (s->error[0] != '\0')
        return 0;
    s->at += n;
    return state_number(s->bytes + s->at - n, n);
}

static inline uint64_t state_take_in(state *s, size_t n, uint64_t least, uint64_t most,
                                     const char *what, const char *expected) {
    const uint64_t number = state_take(s, n, what);
    if (number < least || number > most)
        state_fail(s, s->at - n, what, number, expected);
    return s->error[0] == '\0' ? number : 0;
}

static inline uint32_t state_take_type(state *s) {
    const uint32_t type = (uint32_t)state_take(s, 4, "type");
    size_t elements, bytes;
    if (!state_type(type, &elements, &bytes))
        state_fail(s, s->at - 4, "type", type, "0 (f32), 1 (f16) or 8 (q8_0)");
    return type;
}

/* Where the next n rows begin; they are skipped. */
static inline size_t state_take_rows(state *s, size_t n, uint64_t row, const char *what) {
    const size_t at = s->at;
    if (s->error[0] == '\0' && row > (s->size - at) / n)
        state_fail(s, at, what, row, "rows that end before the state does");
    if (s->error[0] == '\0')
        s->at += n * (size_t)row;
    return at;
}

/* Rows of cells: type and bytes of a row first. */
static inline size_t state_take_cells(state *s, uint32_t *type, size_t *row, const char *what) {
    size_t elements, bytes;
    *type = state_take_type(s);
    (void)state_type(*type, &elements, &bytes);
    const uint64_t found = state_take_in(s, 8, bytes, s->size, what, "a row that fits");
    if (found % bytes != 0)
        state_fail(s, s->at - 8, what, found, "whole elements of its type");
    *row = (size_t)found;
    return state_take_rows(s, s->n_cells, found, what);
}

static inline size_t state_take_transposed(state *s, state_layer *layer) {
    size_t elements, bytes;
    layer->value_type = state_take_type(s);
    (void)state_type(layer->value_type, &elements, &bytes);
    if (elements != 1)
        state_fail(s, s->at - 4, "type of a transposed V", layer->value_type, "0 or 1");
    layer->value_row = (size_t)state_take_in(s, 4, bytes, bytes, "bytes of an element of V",
                                             "as many as its type has");
    layer->n_values = (size_t)state_take_in(s, 4, 1, UINT32_MAX, "rows of V", "at least one");
    /* The number of cells is below the size by a factor of 12: no overflow. */
    return s->error[0] != '\0' ? 0
                               : state_take_rows(s, layer->n_values, s->n_cells * layer->value_row,
                                                 "bytes of a row of V");
}

static inline int state_read(state *s, const unsigned char *bytes, size_t size, int has_rotations) {
    memset(s, 0, sizeof *s);
    s->bytes = bytes;
    s->size = size;
    s->has_rotations = has_rotations;
    (void)state_take(s, 4, "magic");
    (void)state_take(s, 4, "sequence");
    (void)state_take_in(s, 4, 1, 1, "streams", "1: a state of one sequence");
    s->n_cells = (size_t)state_take_in(s, 4, 1, INT32_MAX, "cells", "at least one, below 2^31");
    for (size_t i = 0; i < s->n_cells && s->error[0] == '\0'; i++) {
        (void)state_take_in(s, 4, 0, INT32_MAX - 1, "position of a cell", "0 or more");
        (void)state_take_in(s, 4, 1, 1, "sequences of a cell", "1");
        (void)state_take(s, 4, "sequence of a cell");
    }
    s->is_transposed = (int)state_take_in(s, 4, 0, 1, "whether V is transposed", "0 or 1");
    s->n_layers = (size_t)state_take_in(s, 4, 1, STATE_MOST_LAYERS, "layers", "1 to 512");
    if (has_rotations)
        (void)state_take(s, 8, "rotations of K and V");
    for (size_t i = 0; i < s->n_layers && s->error[0] == '\0'; i++)
        s->layers[i].key_at =
            state_take_cells(s, &s->layers[i].key_type, &s->layers[i].key_row, "row of K");
    for (size_t i = 0; i < s->n_layers && s->error[0] == '\0'; i++) {
        state_layer *const layer = &s->layers[i];
        layer->value_at = s->is_transposed ? state_take_transposed(s, layer)
                                           : state_take_cells(s, &layer->value_type,
                                                              &layer->value_row, "row of V");
    }
    if (s->error[0] == '\0' && s->at != size)
        state_fail(s, s->at, "bytes after the last row", size - s->at, "none");
    return s->error[0] == '\0';
}

/* Reads a state of either version; the bytes must outlive it. False: s->error says what is wrong,
 * with the version that could read more of it. */
static inline int state_parse(state *s, const unsigned char *bytes, size_t size) {
    if (state_read(s, bytes, size, 1))
        return 1;
    const size_t read = s->at;
    if (state_read(s, bytes, size, 0))
        return 1;
    if (s->at < read)
        (void)state_read(s, bytes, size, 1);
    return 0;
}

static inline int32_t state_position(const state *s, size_t cell) {
    return (int32_t)state_number(s->bytes + STATE_HEAD + STATE_CELL * cell, 4);
}

/* The cells by position, lowest first: they come in any order after a hole was filled again.
 *
 *   out  cells    [n_cells]
 *   tmp  scratch  [n_cells]
 *
 * False: two cells share a position, as pictures do under M-RoPE. */
static inline int state_order(const state *s, int32_t *cells, int32_t *scratch) {
    /* Least significant byte first, stable: 4 passes, each from one array to the other. */
    for (size_t i = 0; i < s->n_cells; i++)
        cells[i] = (int32_t)i;
    for (unsigned shift = 0; shift < 32; shift += 8) {
        size_t starts[257] = {0};
        int32_t *const from = shift % 16 == 0 ? cells : scratch;
        int32_t *const to = shift % 16 == 0 ? scratch : cells;
        for (size_t i = 0; i < s->n_cells; i++)
            starts[((uint32_t)state_position(s, i) >> shift & 255) + 1]++;
        for (size_t byte = 0; byte < 256; byte++)
            starts[byte + 1] += starts[byte];
        for (size_t i = 0; i < s->n_cells; i++)
            to[starts[(uint32_t)state_position(s, (size_t)from[i]) >> shift & 255]++] = from[i];
    }
    for (size_t i = 1; i < s->n_cells; i++)
        if (state_position(s, (size_t)cells[i]) == state_position(s, (size_t)cells[i - 1]))
            return 0;
    return 1;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Bytes of a state with the same layers and n_cells cells. */
static inline size_t state_size(const state *s, size_t n_cells) {
    size_t size = STATE_HEAD + STATE_CELL * n_cells + 8 + (s->has_rotations ? 8 : 0);
    for (size_t i = 0; i < s->n_layers; i++) {
        const state_layer *const layer = &s->layers[i];
        size += 24 + n_cells * (layer->key_row +
                                layer->value_row * (s->is_transposed ? layer->n_values : 1));
    }
    return size;
}

static inline unsigned char *state_put(unsigned char *to, uint64_t number, size_t n) {
    for (size_t i = 0; i < n; i++)
        *to++ = (unsigned char)(number >> 8 * i);
    return to;
}

/* Writes a state of n_cells cells, at first_position and on, with the layers of `s`: all of it but
 * the rows, which are set to zero. `out` has state_size() bytes and must not overlap `s`; `t` is
 * what state_parse makes of it. n_cells <= s->n_cells, so that no size overflows. */
static inline void state_start(const state *s, size_t n_cells, size_t first_position,
                               unsigned char *out, state *t) {
    const size_t size = state_size(s, n_cells);
    const size_t after_cells = STATE_HEAD + STATE_CELL * s->n_cells;
    const size_t counts = s->has_rotations ? 16 : 8;
    unsigned char *to = out;
    memset(out, 0, size);
    memcpy(to, s->bytes, 12);
    to = state_put(to + 12, n_cells, 4);
    for (size_t i = 0; i < n_cells; i++) {
        to = state_put(to, first_position + i, 4);
        memcpy(to, s->bytes + STATE_HEAD + 4, 8); /* its sequence, as the first cell's */
        to += 8;
    }
    memcpy(to, s->bytes + after_cells, counts);
    to += counts;
    for (size_t i = 0; i < s->n_layers; i++) {
        to = state_put(to, s->layers[i].key_type, 4);
        to = state_put(to, s->layers[i].key_row, 8) + n_cells * s->layers[i].key_row;
    }
    for (size_t i = 0; i < s->n_layers; i++) {
        const state_layer *const layer = &s->layers[i];
        to = state_put(to, layer->value_type, 4);
        to = state_put(to, layer->value_row, s->is_transposed ? 4 : 8);
        if (s->is_transposed)
            to = state_put(to, layer->n_values, 4);
        to += n_cells * layer->value_row * (s->is_transposed ? layer->n_values : 1);
    }
    (void)state_parse(t, out, size);
}

#endif
