#include "case_file.h"
#include "check.h"

#include <stdlib.h>
#include <string.h>

/* The longest line is a row of scores or queries: some thousand numbers at most. */
#define MAX_LINE    65536
#define MAX_NUMBERS 4096

/* What a case says before its arrays can be allocated. */
typedef struct header {
    snapkv_config config;
    snapkv_layer layer;
    float sink_logits[MAX_HEADS], alibi_slopes[MAX_HEADS];
    int has_sinks, has_slopes;
    int32_t query_positions[MAX_NUMBERS], key_positions[MAX_NUMBERS];
    int has_query_positions, has_key_positions;
} header;

typedef struct line {
    char key[32];
    char text[64]; /* the first word after the key */
    double numbers[MAX_NUMBERS];
    size_t n_numbers;
} line;

/* The next line that says something; 0 at the end of the file. */
static int read_line(FILE *file, line *l) {
    static char buffer[MAX_LINE];
    for (;;) {
        if (!fgets(buffer, sizeof buffer, file)) {
            return 0;
        }
        assert_non_null(strchr(buffer, '\n'));
        buffer[strcspn(buffer, "#\n")] = '\0';
        l->text[0] = '\0';
        l->n_numbers = 0;
        if (sscanf(buffer, "%31s %63s", l->key, l->text) < 1) {
            continue;
        }
        for (char *word = strtok(buffer, " "); word; word = strtok(NULL, " ")) {
            char *end;
            double x = strtod(word, &end);
            if (*end == '\0') {
                assert_true(l->n_numbers < MAX_NUMBERS);
                l->numbers[l->n_numbers++] = x;
            }
        }
        return 1;
    }
}

static size_t whole(const line *l) {
    assert_int_equal(l->n_numbers, 1);
    return (size_t)l->numbers[0];
}

static float real(const line *l) {
    assert_int_equal(l->n_numbers, 1);
    return (float)l->numbers[0];
}

static void heads(float *out, const line *l) {
    assert_true(l->n_numbers <= MAX_HEADS);
    for (size_t i = 0; i < l->n_numbers; i++) {
        out[i] = (float)l->numbers[i];
    }
}

static void positions(int32_t *out, const line *l) {
    for (size_t i = 0; i < l->n_numbers; i++) {
        out[i] = (int32_t)l->numbers[i];
    }
}

static int is(const line *l, const char *key) {
    return strcmp(l->key, key) == 0;
}

static int says(const line *l, const char *word, const char *other) {
    if (strcmp(l->text, word) != 0 && strcmp(l->text, other) != 0) {
        fail_msg("%s %s: neither %s nor %s", l->key, l->text, word, other);
    }
    return strcmp(l->text, word) == 0;
}

/* One `key value` line about policy or layer; 0 if it is none. */
static int read_setting(const line *l, header *h) {
    if (is(l, "window")) {
        h->config.window = whole(l);
    } else if (is(l, "capacity")) {
        h->config.capacity = whole(l);
    } else if (is(l, "kernel")) {
        h->config.kernel_size = whole(l);
    } else if (is(l, "n_sink")) {
        h->config.n_sink = whole(l);
    } else if (is(l, "pooling")) {
        h->config.pooling = says(l, "avg", "max") ? SNAPKV_POOL_AVG : SNAPKV_POOL_MAX;
    } else if (is(l, "reduce")) {
        h->config.reduce = says(l, "mean", "max") ? SNAPKV_REDUCE_MEAN : SNAPKV_REDUCE_MAX;
    } else if (is(l, "sharing")) {
        h->config.sharing = strcmp(l->text, "layer") == 0      ? SNAPKV_PER_LAYER
                            : says(l, "query_head", "kv_head") ? SNAPKV_PER_QUERY_HEAD
                                                               : SNAPKV_PER_KV_HEAD;
    } else if (is(l, "heads")) {
        assert_int_equal(l->n_numbers, 2);
        h->layer.n_query_heads = (size_t)l->numbers[0];
        h->layer.n_kv_heads = (size_t)l->numbers[1];
    } else if (is(l, "length")) {
        h->layer.length = whole(l);
    } else if (is(l, "head_dim")) {
        h->layer.head_dim = whole(l);
    } else if (is(l, "scale")) {
        h->layer.scale = real(l);
    } else if (is(l, "softcap")) {
        h->layer.softcap = real(l);
    } else if (is(l, "span")) {
        h->layer.span = whole(l);
    } else if (is(l, "n_recent")) {
        h->config.n_recent = whole(l);
    } else if (is(l, "voting")) {
        h->config.voting = says(l, "sum", "max") ? SNAPKV_VOTE_SUM : SNAPKV_VOTE_MAX;
    } else if (is(l, "chunk")) {
        h->layer.chunk = whole(l);
    } else if (is(l, "query_positions")) {
        positions(h->query_positions, l);
        h->has_query_positions = 1;
        assert_int_equal(l->n_numbers, h->config.window);
    } else if (is(l, "key_positions")) {
        positions(h->key_positions, l);
        h->has_key_positions = 1;
        assert_int_equal(l->n_numbers, h->layer.length);
    } else if (is(l, "sink_logits")) {
        heads(h->sink_logits, l);
        h->has_sinks = 1;
    } else if (is(l, "alibi_slopes")) {
        heads(h->alibi_slopes, l);
        h->has_slopes = 1;
    } else {
        return 0;
    }
    return 1;
}

static void read_tensor(const line *l, float *out, size_t n) {
    if (says(l, "splitmix", "values")) {
        assert_int_equal(l->n_numbers, 2);
        splitmix random = {(uint64_t)l->numbers[0]};
        for (size_t i = 0; i < n; i++) {
            out[i] = splitmix_float(&random, l->numbers[1]);
        }
        return;
    }
    assert_int_equal(l->n_numbers, n);
    for (size_t i = 0; i < n; i++) {
        out[i] = (float)l->numbers[i];
    }
}

/* The numbers after the index of a head or set: n doubles. */
static double *answer(const line *l, size_t n) {
    assert_int_equal(l->n_numbers, n + 1);
    assert_true(l->numbers[0] < MAX_HEADS);
    double *numbers = new_array(n, sizeof(double));
    memcpy(numbers, l->numbers + 1, n * sizeof(double));
    return numbers;
}

/* The same as n positions. */
static int32_t *list(const line *l, size_t n) {
    double *numbers = answer(l, n);
    int32_t *kept = new_array(n, sizeof *kept);
    for (size_t i = 0; i < n; i++) {
        kept[i] = (int32_t)numbers[i];
    }
    free(numbers);
    return kept;
}

static void read_answer(const line *l, test_case *c) {
    size_t index = (size_t)l->numbers[0];
    size_t prefix = problem_prefix(&c->p);
    if (is(l, "votes")) {
        c->votes[index] = answer(l, prefix);
    } else if (is(l, "scores")) {
        c->scores[index] = answer(l, prefix);
    } else if (is(l, "votes_sum")) {
        double *sum = answer(l, 1);
        c->votes_sum[index] = *sum;
        c->has_votes_sum[index] = 1;
        free(sum);
    } else if (is(l, "kept")) {
        c->kept[index] = list(l, problem_kept_count(&c->p));
    } else if (is(l, "budget")) {
        size_t n_sets = problem_set_count(&c->p);
        assert_int_equal(l->n_numbers, 2 + n_sets);
        c->has_budget = 1;
        c->budget = (size_t)l->numbers[0];
        c->least = (size_t)l->numbers[1];
        for (size_t set = 0; set < n_sets; set++) {
            c->counts[set] = (size_t)l->numbers[2 + set];
        }
    } else if (is(l, "own")) {
        assert_true(index < MAX_HEADS && c->has_budget);
        c->own[index] = list(l, c->p.config.n_sink + c->counts[index] + problem_recent(&c->p));
    } else {
        fail_msg("%s: unknown key %s", c->name, l->key);
    }
}

int case_read(FILE *file, test_case *c) {
    static line l;
    static header h;
    memset(c, 0, sizeof *c);
    memset(&h, 0, sizeof h);
    if (!read_line(file, &l)) {
        return 0;
    }
    assert_string_equal(l.key, "case");
    strcpy(c->name, l.text);
    h.config = make_config(1, 2, 1);

    /* Settings come first, then q and k, then the answers. */
    while (read_line(file, &l) && read_setting(&l, &h)) {
    }
    assert_true(h.layer.n_query_heads <= MAX_HEADS);
    c->p = problem_new(h.config, h.layer.n_query_heads, h.layer.n_kv_heads, h.layer.length,
                       h.layer.head_dim);
    c->p.layer = h.layer;
    if (h.has_sinks) {
        problem_set_sinks(&c->p, h.sink_logits);
    }
    if (h.has_slopes) {
        problem_set_slopes(&c->p, h.alibi_slopes);
    }
    if (h.has_query_positions) {
        problem_set_query_positions(&c->p, h.query_positions);
    }
    if (h.has_key_positions) {
        problem_set_key_positions(&c->p, h.key_positions);
    }
    size_t dim = h.layer.head_dim;
    assert_string_equal(l.key, "q");
    read_tensor(&l, c->p.queries, h.layer.n_query_heads * h.config.window * dim);
    assert_true(read_line(file, &l));
    assert_string_equal(l.key, "k");
    read_tensor(&l, c->p.keys, h.layer.n_kv_heads * h.layer.length * dim);
    problem_pack_plainly(&c->p);

    while (read_line(file, &l) && !is(&l, "end")) {
        read_answer(&l, c);
    }
    assert_string_equal(l.key, "end");
    return 1;
}

void case_free(test_case *c) {
    for (size_t i = 0; i < MAX_HEADS; i++) {
        free(c->votes[i]);
        free(c->scores[i]);
        free(c->kept[i]);
        free(c->own[i]);
    }
    problem_free(&c->p);
}
