/* The examples' tokenizer: its file, good and bad, merges by score, byte fallback, and the way back
 * to the text. The merges are compared with the plain way: look at every pair before every merge.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../../examples/tokenizer.h"

#ifndef DIRECTORY
#define DIRECTORY "build" /* where the file may go */
#endif

static const char PATH[] = DIRECTORY "/tokenizer_test.bin";

static uint64_t random_state = 1;

static uint32_t random_word(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

/* ---- a small vocabulary --------------------------------------------------------------------- */

typedef struct entry {
    const char *bytes;
    float score;
} entry;

/* After the three that stand for no text and the 256 bytes. */
static const entry WORDS[] = {{" ", -100},
                              {"a", -101},
                              {"b", -102},
                              {"c", -103},
                              {"d", -104},
                              {"ab", -3},
                              {"bc", -2},
                              {"abc", -1},
                              {" a", -9},
                              {"cd", -7},
                              {"bcd", -8},
                              {"aa", -4},
                              {"aaaa", -5},
                              {"\xc3\xa4", -105},
                              {" \xc3\xa4", -6},
                              {"a", -1},
                              {"<0x", -110},
                              {"<0x41", -111},
                              {" abcabcabcabc", -12}};
enum { N_WORDS = sizeof WORDS / sizeof WORDS[0], FIRST_BYTE = 3, FIRST_WORD = FIRST_BYTE + 256 };
enum { SPACE = FIRST_WORD, A, B, C, D, AB, BC, ABC, SPACE_A, CD, BCD, AA, AAAA, UMLAUT };
enum { SPACE_UMLAUT = UMLAUT + 1, VOCABULARY = FIRST_WORD + N_WORDS, FILE_MOST = 8192 };

typedef struct image {
    unsigned char bytes[FILE_MOST];
    size_t n;
} image;

static void put_word(image *f, uint32_t word) {
    assert_true(f->n + 4 <= FILE_MOST);
    for (int i = 0; i < 4; i++)
        f->bytes[f->n++] = (unsigned char)(word >> 8 * i & 255);
}

static void put_token(image *f, const char *bytes, float score) {
    const size_t n = strlen(bytes);
    uint32_t word;
    memcpy(&word, &score, sizeof word);
    put_word(f, word);
    put_word(f, (uint32_t)n);
    assert_true(f->n + n <= FILE_MOST);
    memcpy(f->bytes + f->n, bytes, n);
    f->n += n;
}

static void make_image(image *f) {
    f->n = 0;
    put_word(f, 13);
    put_token(f, "<unk>", 0);
    put_token(f, "ab", 0); /* a name that is also text: must not be found */
    put_token(f, "\n</s>\n", 0);
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        put_token(f, name, 0);
    }
    for (size_t i = 0; i < N_WORDS; i++)
        put_token(f, WORDS[i].bytes, WORDS[i].score);
}

static const char *load_image(tokenizer *t, const image *f, size_t vocab_size) {
    (void)remove(PATH); /* writing over a file can wait for the disk, thousands of times here */
    FILE *file = fopen(PATH, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(f->bytes, 1, f->n, file), f->n);
    assert_int_equal(fclose(file), 0);
    return tokenizer_load(t, PATH, vocab_size);
}

static void load(tokenizer *t) {
    image f;
    make_image(&f);
    const char *const error = load_image(t, &f, VOCABULARY);
    if (error != NULL)
        fail_msg("%s", error);
}

/* ---- encode and decode ---------------------------------------------------------------------- */

static size_t encode(const tokenizer *t, const char *text, size_t n_bytes, int32_t *tokens) {
    size_t n;
    const char *const error = tokenizer_encode(t, text, n_bytes, tokens, &n);
    if (error != NULL)
        fail_msg("%s", error);
    return n;
}

static void assert_tokens(const tokenizer *t, const char *text, const int32_t *expected, size_t n) {
    int32_t tokens[64];
    assert_true(strlen(text) + 2 <= 64);
    assert_int_equal(encode(t, text, strlen(text), tokens), n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(tokens[i], expected[i]);
}

#define EXPECT(text, ...)                                                                          \
    do {                                                                                           \
        const int32_t expected[] = {__VA_ARGS__};                                                  \
        assert_tokens(&t, text, expected, sizeof expected / sizeof expected[0]);                   \
    } while (0)

static void merges_by_score(void **state) {
    tokenizer t;
    (void)state;
    load(&t);
    EXPECT("", TOKENIZER_BEGIN);
    EXPECT("b", TOKENIZER_BEGIN, SPACE, B);
    EXPECT("a", TOKENIZER_BEGIN, SPACE_A);          /* the space in front joins in */
    EXPECT("abc", TOKENIZER_BEGIN, SPACE, ABC);     /* bc, then a bc */
    EXPECT("abcd", TOKENIZER_BEGIN, SPACE, ABC, D); /* bc before cd: no bcd is left to make */
    EXPECT("bcd", TOKENIZER_BEGIN, SPACE, BCD);     /* bc d */
    EXPECT("cd", TOKENIZER_BEGIN, SPACE, CD);
    EXPECT("aaa", TOKENIZER_BEGIN, SPACE, AA, A); /* the first of equals */
    EXPECT("aaaa", TOKENIZER_BEGIN, SPACE, AAAA);
    EXPECT("aaaaab", TOKENIZER_BEGIN, SPACE, AAAA, AB); /* ab first of all */
    EXPECT("ab ab", TOKENIZER_BEGIN, SPACE, AB, SPACE, AB);
    tokenizer_free(&t);
}

static void falls_back_to_bytes(void **state) {
    tokenizer t;
    (void)state;
    load(&t);
    EXPECT("\xc3\xa4", TOKENIZER_BEGIN, SPACE_UMLAUT);
    EXPECT("a\xc3\xa4", TOKENIZER_BEGIN, SPACE_A, UMLAUT);
    EXPECT("Z", TOKENIZER_BEGIN, SPACE, FIRST_BYTE + 'Z');
    EXPECT("\n", TOKENIZER_BEGIN, SPACE, FIRST_BYTE + '\n');
    EXPECT("b\xe2\x82\xac", TOKENIZER_BEGIN, SPACE, B, FIRST_BYTE + 0xe2, FIRST_BYTE + 0x82,
           FIRST_BYTE + 0xac);
    /* Broken UTF-8: a lone continuation byte, a start without its rest. */
    EXPECT("b\xa4", TOKENIZER_BEGIN, SPACE, FIRST_BYTE + 'b', FIRST_BYTE + 0xa4);
    EXPECT("\xc3", TOKENIZER_BEGIN, SPACE, FIRST_BYTE + 0xc3);
    tokenizer_free(&t);
}

/* Every text comes back, whatever its bytes. */
static void decodes_what_it_encoded(void **state) {
    enum { MOST = 200 };
    tokenizer t;
    (void)state;
    load(&t);
    for (int round = 0; round < 2000; round++) {
        char text[MOST], back[MOST + 1];
        int32_t tokens[MOST + 2];
        const size_t n_bytes = random_word() % MOST;
        for (size_t i = 0; i < n_bytes; i++)
            if (round % 2 == 0)
                text[i] = "abcd "[random_word() % 5];
            else
                text[i] = (char)(random_word() >> 24);
        const size_t n = encode(&t, text, n_bytes, tokens);
        size_t used = 0;
        assert_int_equal(tokens[0], TOKENIZER_BEGIN);
        for (size_t i = 1; i < n; i++) {
            size_t length;
            const unsigned char *const piece =
                tokenizer_piece(&t, tokens[i - 1], tokens[i], &length);
            assert_true(used + length <= MOST);
            memcpy(back + used, piece, length);
            used += length;
        }
        assert_int_equal(used, n_bytes);
        assert_memory_equal(back, text, n_bytes);
    }
    tokenizer_free(&t);
}

/* A token that stands for no text, or is none, gives no bytes. */
static void names_are_not_text(void **state) {
    tokenizer t;
    (void)state;
    load(&t);
    const int32_t without[] = {0, 1, 2, -1, INT32_MIN, VOCABULARY, INT32_MAX};
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++) {
        size_t n = 99;
        assert_non_null(tokenizer_piece(&t, TOKENIZER_BEGIN, without[i], &n));
        assert_int_equal(n, 0);
    }
    tokenizer_free(&t);
}

static size_t merge_plainly(const tokenizer *t, int32_t *tokens, size_t n) {
    for (;;) {
        int32_t best = TOKENIZER_NONE;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            unsigned char joined[64];
            const size_t n_a = t->length[tokens[i]], n_b = t->length[tokens[i + 1]];
            if (tokens[i] < TOKENIZER_FIRST_TEXT || n_a + n_b > sizeof joined)
                continue;
            memcpy(joined, t->file + t->start[tokens[i]], n_a);
            memcpy(joined + n_a, t->file + t->start[tokens[i + 1]], n_b);
            for (int32_t token = TOKENIZER_FIRST_TEXT; token < VOCABULARY; token++)
                if (t->length[token] == n_a + n_b &&
                    memcmp(t->file + t->start[token], joined, n_a + n_b) == 0) {
                    if (best == TOKENIZER_NONE || t->score[token] > t->score[best]) {
                        best = token;
                        at = i;
                    }
                    break;
                }
        }
        if (best == TOKENIZER_NONE)
            return n;
        tokens[at] = best;
        n--;
        for (size_t i = at + 1; i < n; i++)
            tokens[i] = tokens[i + 1];
    }
}

static void merges_as_the_plain_way(void **state) {
    enum { MOST = 40 };
    tokenizer t;
    (void)state;
    load(&t);
    for (int round = 0; round < 500; round++) {
        char text[MOST];
        int32_t tokens[MOST + 2], expected[MOST + 2];
        const size_t n_bytes = 1 + random_word() % (MOST - 1);
        expected[0] = TOKENIZER_BEGIN;
        expected[1] = SPACE;
        for (size_t i = 0; i < n_bytes; i++) {
            const size_t letter = random_word() % 5;
            text[i] = " abcd"[letter];
            expected[i + 2] = SPACE + (int32_t)letter;
        }
        const size_t n_expected = merge_plainly(&t, expected, n_bytes + 2);
        assert_int_equal(encode(&t, text, n_bytes, tokens), n_expected);
        assert_memory_equal(tokens, expected, n_expected * sizeof *tokens);
    }
    tokenizer_free(&t);
}

static void says_when_a_byte_has_no_token(void **state) {
    image f;
    tokenizer t;
    int32_t tokens[8];
    size_t n;
    (void)state;
    f.n = 0;
    put_word(&f, 3);
    put_token(&f, "<u>", 0);
    put_token(&f, "<s>", 0);
    put_token(&f, "</>", 0);
    put_token(&f, "a", 0);
    assert_null(load_image(&t, &f, 4));
    assert_int_equal(encode(&t, "aa", 2, tokens), 3); /* and no space in front */
    const char *const error = tokenizer_encode(&t, "ab", 2, tokens, &n);
    assert_non_null(error);
    assert_non_null(strstr(error, "no token for a byte"));
    tokenizer_free(&t);
}

/* ---- bad files ------------------------------------------------------------------------------ */

static void assert_refused(const char *error, const char *reason, const tokenizer *t) {
    assert_non_null(error);
    if (strstr(error, reason) == NULL)
        fail_msg("said \"%s\", not \"%s\"", error, reason);
    assert_null(t->file);
}

static void refuses_bad_files(void **state) {
    image good, f;
    tokenizer t;
    (void)state;
    make_image(&good);
    assert_refused(tokenizer_load(&t, "build/no such file", VOCABULARY), "opened", &t);
    assert_refused(tokenizer_load(&t, "build", VOCABULARY), "too short", &t); /* a directory */
    for (size_t n = 0; n < good.n; n++) {                                     /* every truncation */
        f = good;
        f.n = n;
        const char *const reason = n < 4 ? "too short" : "shorter";
        assert_refused(load_image(&t, &f, VOCABULARY), reason, &t);
    }
    f = good;
    f.bytes[f.n++] = 0;
    assert_refused(load_image(&t, &f, VOCABULARY), "longer than the model's", &t);
    assert_refused(load_image(&t, &good, VOCABULARY - 1), "longer than the model's", &t);
    assert_refused(load_image(&t, &good, VOCABULARY + 1), "shorter", &t);
    assert_refused(load_image(&t, &good, SIZE_MAX), "shorter", &t);
    assert_refused(load_image(&t, &good, 0), "shorter", &t);

    static const uint32_t LENGTHS[] = {14, 255, 0x7fffffffu, 0x80000000u, 0xffffffffu};
    for (size_t i = 0; i < sizeof LENGTHS / sizeof LENGTHS[0]; i++) {
        f = good;
        f.n = 8; /* the byte count of the first token */
        put_word(&f, LENGTHS[i]);
        f.n = good.n;
        assert_refused(load_image(&t, &f, VOCABULARY), "longer than the longest", &t);
    }
    static const uint32_t LONGEST[] = {0, FILE_MOST, 0x80000000u, 0xffffffffu};
    for (size_t i = 0; i < sizeof LONGEST / sizeof LONGEST[0]; i++) {
        f = good;
        f.n = 0;
        put_word(&f, LONGEST[i]);
        f.n = good.n;
        assert_refused(load_image(&t, &f, VOCABULARY), "longest token", &t);
    }
    static const uint32_t SCORES[] = {0x7fc00000u, 0x7f800000u, 0xff800000u};
    for (size_t i = 0; i < sizeof SCORES / sizeof SCORES[0]; i++) {
        f = good;
        f.n = 4;
        put_word(&f, SCORES[i]);
        f.n = good.n;
        assert_refused(load_image(&t, &f, VOCABULARY), "finite", &t);
    }
}

/* Noise, and good files with noise in them: an error, or a tokenizer that can be used. */
static void survives_noise(void **state) {
    image good, f;
    (void)state;
    make_image(&good);
    for (int round = 0; round < 3000; round++) {
        tokenizer t;
        f = good;
        if (round % 3 == 0)
            for (f.n = 0; f.n < good.n;)
                f.bytes[f.n++] = (unsigned char)(random_word() >> random_word() % 32);
        else
            for (uint32_t i = random_word() % 8; i < 8; i++)
                f.bytes[random_word() % good.n] = (unsigned char)random_word();
        if (load_image(&t, &f, VOCABULARY) != NULL)
            continue;
        static const char TEXT[] = "abcd abcabc aaaa \xc3\xa4 <0x41>";
        int32_t tokens[sizeof TEXT + 2];
        size_t n = 0, length;
        (void)tokenizer_encode(&t, TEXT, sizeof TEXT - 1, tokens, &n);
        for (size_t i = 0; i < VOCABULARY; i++)
            (void)tokenizer_piece(&t, TOKENIZER_BEGIN, (int32_t)i, &length);
        tokenizer_free(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_by_score),         cmocka_unit_test(falls_back_to_bytes),
        cmocka_unit_test(decodes_what_it_encoded), cmocka_unit_test(names_are_not_text),
        cmocka_unit_test(merges_as_the_plain_way), cmocka_unit_test(says_when_a_byte_has_no_token),
        cmocka_unit_test(refuses_bad_files),       cmocka_unit_test(survives_noise),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
