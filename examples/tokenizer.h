/* tokenizer.h: the byte-pair tokenizer of a llama2.c model, and its file.
 *
 *     tokenizer t;
 *     const char *error = tokenizer_load(&t, "tokenizer.bin", model.vocab_size);
 *     error = tokenizer_encode(&t, text, n_bytes, tokens, &n_tokens);
 *     const unsigned char *piece = tokenizer_piece(&t, previous, token, &n_piece);
 *
 * The file, little-endian: int32 longest token in bytes; then for each token of the vocabulary, in
 * order, float score, int32 byte count, the bytes. A space is a space in it. Token 1 begins a text,
 * token 2 ends it, and <0xNN> stands for a byte that no other token has. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENIZER_BEGIN = 1, TOKENIZER_END = 2, TOKENIZER_FIRST_TEXT = 3, TOKENIZER_NONE = -1 };

typedef struct tokenizer {
    size_t n_tokens, n_sorted, longest;
    unsigned char *file; /* the whole of it; the tokens' bytes are there */
    size_t *start;       /* [n_tokens] where in it */
    size_t *length;      /* [n_tokens] bytes of a token */
    float *score;        /* [n_tokens] a merge with a higher one comes first */
    int32_t *sorted;     /* [n_sorted] those from TOKENIZER_FIRST_TEXT on, by bytes, then number */
    int32_t bytes[256];  /* the token <0xNN> of each byte, or TOKENIZER_NONE */
    unsigned char byte_values[256];
} tokenizer;

static inline void tokenizer_free(tokenizer *t) {
    free(t->file);
    free(t->start);
    free(t->length);
    free(t->score);
    free(t->sorted);
    memset(t, 0, sizeof *t);
}

/* ---- the file ------------------------------------------------------------------------------- */

static inline uint32_t tokenizer_word(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

/* Reads the whole file; *n_bytes is its length. */
static inline const char *tokenizer_read(tokenizer *t, const char *path, size_t *n_bytes) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return "can't be opened";
    const char *error = NULL;
    unsigned char first[4];
    long end = -1;
    /* The first bytes before the length: a directory has a length, of LONG_MAX, but no bytes. */
    if (fread(first, 1, sizeof first, file) != sizeof first)
        error = "too short for a tokenizer";
    else if (fseek(file, 0, SEEK_END) != 0 || (end = ftell(file)) < 0 ||
             fseek(file, 0, SEEK_SET) != 0)
        error = "not a file that can be read twice";
    else if (end > INT32_MAX)
        error = "not a tokenizer: more than 2 GB";
    if (error == NULL) {
        *n_bytes = (size_t)end;
        t->file = (unsigned char *)malloc(*n_bytes);
        if (t->file == NULL)
            error = "not enough memory";
        else if (fread(t->file, 1, *n_bytes, file) != *n_bytes)
            error = "can't be read";
    }
    fclose(file);
    return error;
}

static inline const char *tokenizer_parse(tokenizer *t, size_t n_bytes) {
    size_t at = 4;
    t->longest = tokenizer_word(t->file);
    if (t->longest == 0 || t->longest > n_bytes)
        return "not a tokenizer: its longest token is longer than the file, or empty";
    for (size_t i = 0; i < t->n_tokens; i++) {
        if (n_bytes - at < 8)
            return "shorter than the model's vocabulary";
        const uint32_t score = tokenizer_word(t->file + at);
        const uint32_t length = tokenizer_word(t->file + at + 4);
        at += 8;
        if ((score & 0x7f800000u) == 0x7f800000u)
            return "not a tokenizer: a score is not a finite number";
        if (length > t->longest)
            return "not a tokenizer: a token is longer than the longest";
        if (length > n_bytes - at)
            return "shorter than the model's vocabulary";
        memcpy(&t->score[i], &score, sizeof score);
        t->start[i] = at;
        t->length[i] = length;
        at += length;
    }
    return at == n_bytes ? NULL : "longer than the model's vocabulary";
}

/* Of two byte strings: negative, 0 or positive. */
static inline int tokenizer_compare(const unsigned char *a, size_t n_a, const unsigned char *b,
                                    size_t n_b) {
    const int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order != 0 ? order : n_a < n_b ? -1 : n_a > n_b;
}

static inline int tokenizer_compare_tokens(const tokenizer *t, int32_t a, int32_t b) {
    const int order =
        tokenizer_compare(t->file + t->start[a], t->length[a], t->file + t->start[b], t->length[b]);
    return order != 0 ? order : a < b ? -1 : a > b;
}

/* Heapsort: qsort has no way to hand the tokenizer to a comparison. */
static inline void tokenizer_sift(const tokenizer *t, size_t parent, size_t n) {
    for (;;) {
        size_t child = 2 * parent + 1;
        if (child >= n)
            return;
        if (child + 1 < n &&
            tokenizer_compare_tokens(t, t->sorted[child], t->sorted[child + 1]) < 0)
            child++;
        if (tokenizer_compare_tokens(t, t->sorted[parent], t->sorted[child]) >= 0)
            return;
        const int32_t token = t->sorted[parent];
        t->sorted[parent] = t->sorted[child];
        t->sorted[child] = token;
        parent = child;
    }
}

static inline void tokenizer_sort(tokenizer *t) {
    t->n_sorted = t->n_tokens - TOKENIZER_FIRST_TEXT;
    for (size_t i = 0; i < t->n_sorted; i++)
        t->sorted[i] = TOKENIZER_FIRST_TEXT + (int32_t)i;
    for (size_t i = t->n_sorted / 2; i-- > 0;)
        tokenizer_sift(t, i, t->n_sorted);
    for (size_t n = t->n_sorted; n-- > 1;) {
        const int32_t token = t->sorted[0];
        t->sorted[0] = t->sorted[n];
        t->sorted[n] = token;
        tokenizer_sift(t, 0, n);
    }
}

/* The token of these bytes, the lowest of equals, or TOKENIZER_NONE. The first three stand for no
 * text, whatever bytes the file gives them, and are never found. */
static inline int32_t tokenizer_find(const tokenizer *t, const unsigned char *bytes, size_t n) {
    size_t low = 0, high = t->n_sorted;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int32_t token = t->sorted[middle];
        if (tokenizer_compare(t->file + t->start[token], t->length[token], bytes, n) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == t->n_sorted)
        return TOKENIZER_NONE;
    const int32_t token = t->sorted[low];
    return tokenizer_compare(t->file + t->start[token], t->length[token], bytes, n) == 0
               ? token
               : TOKENIZER_NONE;
}

/* Loads the tokenizer of a model. Returns NULL, or what is wrong with the file; then nothing is to
 * be freed. */
static inline const char *tokenizer_load(tokenizer *t, const char *path, size_t vocab_size) {
    size_t n_bytes = 0;
    memset(t, 0, sizeof *t);
    t->n_tokens = vocab_size;
    const char *error = tokenizer_read(t, path, &n_bytes);
    /* A token takes 8 bytes and more: a vocabulary beyond the file asks for no memory. */
    if (error == NULL && (vocab_size <= TOKENIZER_FIRST_TEXT || vocab_size > n_bytes / 8))
        error = "shorter than the model's vocabulary";
    if (error == NULL) {
        t->start = (size_t *)malloc(vocab_size * sizeof *t->start);
        t->length = (size_t *)malloc(vocab_size * sizeof *t->length);
        t->score = (float *)malloc(vocab_size * sizeof *t->score);
        t->sorted = (int32_t *)malloc(vocab_size * sizeof *t->sorted);
        if (t->start == NULL || t->length == NULL || t->score == NULL || t->sorted == NULL)
            error = "not enough memory";
    }
    if (error == NULL)
        error = tokenizer_parse(t, n_bytes);
    if (error != NULL) {
        tokenizer_free(t);
        return error;
    }
    tokenizer_sort(t);
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        t->bytes[byte] = tokenizer_find(t, (const unsigned char *)name, 6);
        t->byte_values[byte] = (unsigned char)byte;
    }
    return NULL;
}

/* ---- text to tokens ------------------------------------------------------------------------- */

/* How many of the `n` bytes at `text` belong to its first character: a byte and the continuation
 * bytes after it, at most 4. Broken UTF-8 gives broken characters, which become single bytes. */
static inline size_t tokenizer_character(const unsigned char *text, size_t n) {
    size_t length = 1;
    while (length < n && length < 4 && (text[length] & 0xc0) == 0x80)
        length++;
    return length;
}

/* The token of two neighbours' bytes together, or TOKENIZER_NONE. `joined` [longest] is scratch. */
static inline int32_t tokenizer_join(const tokenizer *t, int32_t a, int32_t b,
                                     unsigned char *joined) {
    const size_t n_a = t->length[a], n_b = t->length[b];
    if (a < TOKENIZER_FIRST_TEXT || b < TOKENIZER_FIRST_TEXT || n_b > t->longest - n_a)
        return TOKENIZER_NONE;
    memcpy(joined, t->file + t->start[a], n_a);
    memcpy(joined + n_a, t->file + t->start[b], n_b);
    return tokenizer_find(t, joined, n_a + n_b);
}

/* Two neighbours that have a token together: the first of them, and that token. */
typedef struct tokenizer_pair {
    float score;
    int32_t merged;
    size_t at;
} tokenizer_pair;

/* Scratch of an encoding of `n` bytes at most. The tokens are a list: a merge leaves its second one
 * out. The pairs are a heap, the next to merge first. */
typedef struct tokenizer_scratch {
    size_t *next, *previous; /* [n] of each token, in the list */
    int32_t *merged;         /* [n] what a token and its next one give, or TOKENIZER_NONE */
    tokenizer_pair *pairs;   /* [2 * n] a merge takes one and adds two at most */
    size_t n_pairs;
    unsigned char *joined; /* [longest] */
} tokenizer_scratch;

static inline int tokenizer_precedes(tokenizer_pair a, tokenizer_pair b) {
    return a.score > b.score || (a.score == b.score && a.at < b.at);
}

static inline void tokenizer_push(tokenizer_scratch *s, tokenizer_pair pair) {
    size_t i = s->n_pairs++;
    for (; i > 0 && tokenizer_precedes(pair, s->pairs[(i - 1) / 2]); i = (i - 1) / 2)
        s->pairs[i] = s->pairs[(i - 1) / 2];
    s->pairs[i] = pair;
}

static inline tokenizer_pair tokenizer_pop(tokenizer_scratch *s) {
    const tokenizer_pair first = s->pairs[0], last = s->pairs[--s->n_pairs];
    size_t i = 0;
    for (size_t child = 1; child < s->n_pairs; child = 2 * i + 1) {
        if (child + 1 < s->n_pairs && tokenizer_precedes(s->pairs[child + 1], s->pairs[child]))
            child++;
        if (!tokenizer_precedes(s->pairs[child], last))
            break;
        s->pairs[i] = s->pairs[child];
        i = child;
    }
    s->pairs[i] = last;
    return first;
}

/* Looks up what the token at `at` and its next one give. `n`: the list's end. */
static inline void tokenizer_look(const tokenizer *t, tokenizer_scratch *s, const int32_t *tokens,
                                  size_t at, size_t n) {
    s->merged[at] = s->next[at] == n
                        ? TOKENIZER_NONE
                        : tokenizer_join(t, tokens[at], tokens[s->next[at]], s->joined);
    if (s->merged[at] != TOKENIZER_NONE) {
        const tokenizer_pair pair = {t->score[s->merged[at]], s->merged[at], at};
        tokenizer_push(s, pair);
    }
}

/* Merges the neighbours whose token has the highest score, the first of equals, until none have
 * one. Returns how many tokens are left. */
static inline size_t tokenizer_merge(const tokenizer *t, tokenizer_scratch *s, int32_t *tokens,
                                     size_t n) {
    for (size_t i = 0; i < n; i++) {
        s->next[i] = i + 1;
        s->previous[i] = i - 1; /* of the first: never read, it stands for no text */
        tokenizer_look(t, s, tokens, i, n);
    }
    while (s->n_pairs > 0) {
        const tokenizer_pair pair = tokenizer_pop(s);
        const size_t at = pair.at, second = s->next[at];
        if (s->merged[at] != pair.merged)
            continue; /* one of the two has been merged since */
        tokens[at] = pair.merged;
        s->merged[second] = TOKENIZER_NONE;
        s->next[at] = s->next[second];
        if (s->next[at] != n)
            s->previous[s->next[at]] = at;
        tokenizer_look(t, s, tokens, at, n);
        tokenizer_look(t, s, tokens, s->previous[at], n);
    }
    size_t n_left = 0;
    for (size_t i = 0; i != n; i = s->next[i])
        tokens[n_left++] = tokens[i];
    return n_left;
}

/* Encodes a text.
 *
 *   in   text      [n_bytes]
 *   out  tokens    [n_bytes + 2]
 *        n_tokens  how many: the beginning, a space in front of the text (the model was trained so)
 *                  unless the text is empty, and the text
 *
 * Returns NULL or an error. */
static inline const char *tokenizer_encode(const tokenizer *t, const char *text, size_t n_bytes,
                                           int32_t *tokens, size_t *n_tokens) {
    static const unsigned char SPACE[1] = {' '};
    const unsigned char *const bytes = (const unsigned char *)text;
    size_t n = 0;
    tokens[n++] = TOKENIZER_BEGIN;
    *n_tokens = n;
    if (n_bytes == 0)
        return NULL;
    const int32_t space = tokenizer_find(t, SPACE, 1);
    if (space != TOKENIZER_NONE)
        tokens[n++] = space;
    for (size_t at = 0; at < n_bytes;) {
        const size_t length = tokenizer_character(bytes + at, n_bytes - at);
        const int32_t token = tokenizer_find(t, bytes + at, length);
        for (size_t i = 0; i < length && token == TOKENIZER_NONE; i++) {
            tokens[n] = t->bytes[bytes[at + i]];
            if (tokens[n++] == TOKENIZER_NONE)
                return "the tokenizer has no token for a byte of the text";
        }
        if (token != TOKENIZER_NONE)
            tokens[n++] = token;
        at += length;
    }
    tokenizer_scratch s;
    s.next = (size_t *)malloc(n * sizeof *s.next);
    s.previous = (size_t *)malloc(n * sizeof *s.previous);
    s.merged = (int32_t *)malloc(n * sizeof *s.merged);
    s.pairs = (tokenizer_pair *)malloc(2 * n * sizeof *s.pairs);
    s.n_pairs = 0;
    s.joined = (unsigned char *)malloc(t->longest);
    const char *error = NULL;
    if (s.next == NULL || s.previous == NULL || s.merged == NULL || s.pairs == NULL ||
        s.joined == NULL)
        error = "not enough memory";
    else
        *n_tokens = tokenizer_merge(t, &s, tokens, n);
    free(s.next);
    free(s.previous);
    free(s.merged);
    free(s.pairs);
    free(s.joined);
    return error;
}

/* ---- tokens to text ------------------------------------------------------------------------- */

/* The bytes [*n] of a token that follows `previous`: the space in front of a text is left out, a
 * <0xNN> is its byte, the tokens that stand for no text give none. */
static inline const unsigned char *tokenizer_piece(const tokenizer *t, int32_t previous,
                                                   int32_t token, size_t *n) {
    *n = 0;
    if (token < TOKENIZER_FIRST_TEXT || (size_t)token >= t->n_tokens)
        return t->byte_values;
    const unsigned char *const bytes = t->file + t->start[token];
    *n = t->length[token];
    if (*n == 6 && bytes[0] == '<' && bytes[5] == '>')
        for (size_t byte = 0; byte < 256; byte++)
            if (t->bytes[byte] == token) {
                *n = 1;
                return t->byte_values + byte;
            }
    if (previous == TOKENIZER_BEGIN && *n > 0 && bytes[0] == ' ') {
        *n -= 1;
        return bytes + 1;
    }
    return bytes;
}

#endif
