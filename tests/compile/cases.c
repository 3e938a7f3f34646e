/* Every case of the vectors file, and non-finite input, in ISO C alone: for builds that have no
 * cmocka and no pages to guard (other processors, Windows, bare metal), and for -ffast-math, where
 * this file is compiled without and only subject.c with it.
 *
 *     cases [--near-ties] [tests/vectors/cases.txt]
 *
 * It expects what tests/unit/test_cases.c does: votes and scores within 1e-5 of the answers, the
 * kept positions exactly, the same with the smallest workspace and the largest. With --near-ties
 * scores within 1e-5 of each other may come in either order: -ffast-math adds equal numbers up in
 * different orders, and then they don't tie. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "subject.h"

enum { MAX_HEADS = 8, MAX_LINE = 65536 };

typedef struct problem {
    char name[64];
    snapkv_config config;
    snapkv_layer layer;
    float sinks[MAX_HEADS], slopes[MAX_HEADS];
    float *queries, *keys;
    int32_t *query_positions, *key_positions;
} problem;

static int near_ties;
static size_t n_answers, n_cases, n_failed, n_refused;
static char line[MAX_LINE];

static void stop(const char *name, const char *why) {
    printf("%s: %s\n", name, why);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) {
        stop("cases", "out of memory");
    }
    return p;
}

static void fail(const problem *p, const char *what, double index, double got, double expected) {
    printf("%s: %s %.9g is %.9g, not %.9g\n", p->name, what, index, got, expected);
    n_failed++;
}

static void expect(const problem *p, const char *what, size_t i, double got, double expected) {
    const double allowed = 1e-5 * fabs(expected) + 1e-36; /* a weight below float's range: 0 */
    n_answers++;
    if (!(fabs(got - expected) <= allowed)) {
        fail(p, what, (double)i, got, expected);
    }
}

static void expect_status(const problem *p, const char *what, size_t i, snapkv_status got,
                          snapkv_status expected) {
    n_answers++;
    if (got != expected) {
        fail(p, what, (double)i, (double)got, (double)expected);
    }
}

/* splitmix64 */
static uint64_t mix(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* `values NUMBERS...` or `splitmix SEED AMPLITUDE` */
static float *read_numbers(const problem *p, const char *text, size_t n) {
    float *numbers = (float *)allocate(n * sizeof(float));
    char *next;
    if (strncmp(text, "splitmix ", 9) == 0) {
        uint64_t state = (uint64_t)strtod(text + 9, &next);
        const double amplitude = strtod(next, NULL);
        for (size_t i = 0; i < n; i++) {
            numbers[i] = (float)(((double)(mix(&state) >> 40) / 16777216.0 - 0.5) * amplitude);
        }
        return numbers;
    }
    if (strncmp(text, "values ", 7) != 0) {
        stop(p->name, "numbers of an unknown kind");
    }
    text += 7;
    for (size_t i = 0; i < n; i++, text = next) {
        numbers[i] = (float)strtod(text, &next);
        if (next == text) {
            stop(p->name, "numbers are missing");
        }
    }
    return numbers;
}

static int32_t *read_positions(const char *text, size_t n) {
    int32_t *positions = (int32_t *)allocate(n * sizeof *positions);
    char *next;
    for (size_t i = 0; i < n; i++, text = next) {
        positions[i] = (int32_t)strtod(text, &next);
    }
    return positions;
}

static void read_heads(const char *text, float *out) {
    char *next;
    for (size_t i = 0; i < MAX_HEADS; i++, text = next) {
        out[i] = (float)strtod(text, &next);
    }
}

/* One line about the policy or the layer. */
static int read_setting(problem *p, const char *key, const char *text) {
    snapkv_config *config = &p->config;
    snapkv_layer *layer = &p->layer;
    char *next;
    const double number = strtod(text, &next);
    if (strcmp(key, "window") == 0) {
        config->window = (size_t)number;
    } else if (strcmp(key, "capacity") == 0) {
        config->capacity = (size_t)number;
    } else if (strcmp(key, "kernel") == 0) {
        config->kernel_size = (size_t)number;
    } else if (strcmp(key, "n_sink") == 0) {
        config->n_sink = (size_t)number;
    } else if (strcmp(key, "pooling") == 0) {
        config->pooling = strcmp(text, "max") == 0 ? SNAPKV_POOL_MAX : SNAPKV_POOL_AVG;
    } else if (strcmp(key, "reduce") == 0) {
        config->reduce = strcmp(text, "max") == 0 ? SNAPKV_REDUCE_MAX : SNAPKV_REDUCE_MEAN;
    } else if (strcmp(key, "sharing") == 0) {
        config->sharing = strcmp(text, "layer") == 0     ? SNAPKV_PER_LAYER
                          : strcmp(text, "kv_head") == 0 ? SNAPKV_PER_KV_HEAD
                                                         : SNAPKV_PER_QUERY_HEAD;
    } else if (strcmp(key, "heads") == 0) {
        layer->n_query_heads = (size_t)number;
        layer->n_kv_heads = (size_t)strtod(next, NULL);
    } else if (strcmp(key, "length") == 0) {
        layer->length = (size_t)number;
    } else if (strcmp(key, "head_dim") == 0) {
        layer->head_dim = (size_t)number;
    } else if (strcmp(key, "scale") == 0) {
        layer->scale = (float)number;
    } else if (strcmp(key, "softcap") == 0) {
        layer->softcap = (float)number;
    } else if (strcmp(key, "span") == 0) {
        layer->span = (size_t)number;
    } else if (strcmp(key, "n_recent") == 0) {
        config->n_recent = (size_t)number;
    } else if (strcmp(key, "voting") == 0) {
        config->voting = strcmp(text, "max") == 0 ? SNAPKV_VOTE_MAX : SNAPKV_VOTE_SUM;
    } else if (strcmp(key, "chunk") == 0) {
        layer->chunk = (size_t)number;
    } else if (strcmp(key, "query_positions") == 0) {
        layer->query_positions = p->query_positions = read_positions(text, config->window);
    } else if (strcmp(key, "key_positions") == 0) {
        layer->key_positions = p->key_positions = read_positions(text, layer->length);
    } else if (strcmp(key, "sink_logits") == 0) {
        read_heads(text, p->sinks);
        layer->sink_logits = p->sinks;
    } else if (strcmp(key, "alibi_slopes") == 0) {
        read_heads(text, p->slopes);
        layer->alibi_slopes = p->slopes;
    } else {
        return 0;
    }
    return 1;
}

/* Positions that compete. */
static size_t prefix_of(const problem *p) {
    const size_t recent = p->config.n_recent ? p->config.n_recent : p->config.window;
    return p->layer.length - recent;
}

/* Whether no score that was dropped is higher, beyond rounding, than one that was kept. */
static int are_the_best(const problem *p, const int32_t *kept, size_t n_kept, const float *scores) {
    const size_t prefix = prefix_of(p);
    size_t next = 0;
    double lowest = HUGE_VAL, highest = -HUGE_VAL; /* of the kept, of the dropped */
    for (size_t j = 0; j < p->layer.length; j++) {
        const int is_kept = next < n_kept && kept[next] == (int32_t)j;
        if (!is_kept && (j < p->config.n_sink || j >= prefix)) {
            return 0;
        }
        if (is_kept && j >= p->config.n_sink && j < prefix && (double)scores[j] < lowest) {
            lowest = (double)scores[j];
        }
        if (!is_kept && (double)scores[j] > highest) {
            highest = (double)scores[j];
        }
        next += (size_t)is_kept;
    }
    return next == n_kept && lowest >= highest * (1 - 1e-5);
}

/* One line of answers: `votes`, `votes_sum`, `scores` or `kept`, an index, then the numbers. */
static void check_answer(const problem *p, const char *key, const char *text) {
    char *next;
    const size_t index = (size_t)strtod(text, &next);
    const size_t prefix = prefix_of(p);
    const size_t n_kept = snapkv_kept_count(&p->config, p->layer.length);
    const size_t sizes[2] = {snapkv_workspace_min(&p->config, &p->layer),
                             snapkv_workspace_size(&p->config, &p->layer)};
    float *numbers = (float *)allocate(prefix * sizeof(float));
    int32_t *kept = (int32_t *)allocate(n_kept * sizeof(int32_t));
    for (int i = 0; i < 2; i++) {
        void *workspace = allocate(sizes[i]);
        const char *rest = next;
        char *end;
        if (strncmp(key, "votes", 5) == 0) {
            expect_status(p, "status of vote, head", index,
                          subject_vote(&p->config, &p->layer, index, numbers, workspace, sizes[i]),
                          SNAPKV_OK);
        } else {
            expect_status(p, "status of select, set", index,
                          subject_select(&p->config, &p->layer, index, kept, numbers, NULL,
                                         workspace, sizes[i]),
                          SNAPKV_OK);
        }
        if (strcmp(key, "votes_sum") == 0) {
            double sum = 0;
            for (size_t j = 0; j < prefix; j++) {
                sum += (double)numbers[j];
            }
            expect(p, "sum of votes, head", index, sum, strtod(rest, NULL));
        } else if (strcmp(key, "kept") == 0) {
            for (size_t j = 0; j < n_kept; j++, rest = end) {
                const double expected = strtod(rest, &end);
                n_answers++;
                if (near_ties && (double)kept[j] != expected &&
                    are_the_best(p, kept, n_kept, numbers)) {
                    break;
                }
                if ((double)kept[j] != expected || end == rest) {
                    fail(p, "kept", (double)j, (double)kept[j], expected);
                    break;
                }
            }
        } else if (strcmp(key, "votes") == 0 || strcmp(key, "scores") == 0) {
            for (size_t j = 0; j < prefix; j++, rest = end) {
                expect(p, key, j, (double)numbers[j], strtod(rest, &end));
            }
        } else {
            stop(p->name, "an unknown key");
        }
        free(workspace);
    }
    free(numbers);
    free(kept);
}

static char *next_line(FILE *file) {
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "#\r\n")] = '\0';
        if (line[0]) {
            char *space = strchr(line, ' ');
            if (!space) {
                return line + strlen(line);
            }
            *space = '\0';
            return space + 1;
        }
    }
    return NULL;
}

static snapkv_rows plain_rows(const float *data, size_t n_rows, size_t head_dim) {
    snapkv_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.data = data;
    rows.row_stride = head_dim * sizeof(float);
    rows.head_stride = n_rows * rows.row_stride;
    return rows;
}

static int read_case(FILE *file) {
    problem p;
    char *text = next_line(file);
    if (!text) {
        return 0;
    }
    memset(&p, 0, sizeof p);
    strncpy(p.name, text, sizeof p.name - 1);
    p.config = snapkv_default_config();
    p.config.kernel_size = 1;
    while ((text = next_line(file)) != NULL && strcmp(line, "end") != 0) {
        snapkv_layer *layer = &p.layer;
        if (strcmp(line, "q") == 0) {
            p.queries = read_numbers(&p, text,
                                     layer->n_query_heads * p.config.window * layer->head_dim);
            layer->queries = plain_rows(p.queries, p.config.window, layer->head_dim);
        } else if (strcmp(line, "k") == 0) {
            p.keys = read_numbers(&p, text, layer->n_kv_heads * layer->length * layer->head_dim);
            layer->keys = plain_rows(p.keys, layer->length, layer->head_dim);
        } else if (strcmp(line, "budget") == 0 || strcmp(line, "own") == 0) {
            continue; /* whole numbers from the scores: tests/unit/test_cases.c, and the digest */
        } else if (!read_setting(&p, line, text)) {
            check_answer(&p, line, text);
        }
    }
    n_cases++;
    free(p.queries);
    free(p.keys);
    free(p.query_positions);
    free(p.key_positions);
    return 1;
}

/* NaN and infinities by their bits: what -ffast-math promises not to see. */
static const uint32_t not_finite[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001};
enum { N_NOT_FINITE = sizeof not_finite / sizeof not_finite[0] };

static void put_bits(float *where, uint32_t bits) {
    memcpy(where, &bits, sizeof bits);
}

/* One value that is not finite in each place in turn must be reported, never be an answer. */
static void check_not_finite(void) {
    enum { LENGTH = 70, WINDOW = 3, DIM = 5 };
    static float queries[WINDOW * DIM], keys[LENGTH * DIM], row[LENGTH], out[LENGTH];
    int32_t kept[LENGTH];
    problem p;
    uint64_t state = 7;
    memset(&p, 0, sizeof p);
    strcpy(p.name, "not finite");
    for (size_t i = 0; i < WINDOW * DIM; i++) {
        queries[i] = (float)(mix(&state) >> 40) / 8388608.0f - 1.0f;
    }
    for (size_t i = 0; i < LENGTH * DIM; i++) {
        keys[i] = (float)(mix(&state) >> 40) / 8388608.0f - 1.0f;
    }
    for (size_t i = 0; i < LENGTH; i++) {
        row[i] = (float)(mix(&state) >> 40) / 8388608.0f - 1.0f;
    }
    p.config = snapkv_default_config();
    p.config.window = WINDOW;
    p.config.capacity = 20;
    p.layer.n_query_heads = 1;
    p.layer.n_kv_heads = 1;
    p.layer.length = LENGTH;
    p.layer.head_dim = DIM;
    p.layer.queries = plain_rows(queries, WINDOW, DIM);
    p.layer.keys = plain_rows(keys, LENGTH, DIM);
    const size_t size = snapkv_workspace_size(&p.config, &p.layer);
    void *workspace = allocate(size);
    for (int options = 0; options < 3; options++) {
        const float slope = 0.01f;
        p.layer.softcap = options == 1 ? 3.0f : 0.0f;
        p.layer.alibi_slopes = options == 2 ? &slope : NULL;
        expect_status(&p, "status of select, options", (size_t)options,
                      subject_select(&p.config, &p.layer, 0, kept, NULL, NULL, workspace, size),
                      SNAPKV_OK);
        for (size_t i = 0; i < (WINDOW + LENGTH) * DIM; i++) {
            float *where = i < WINDOW * DIM ? queries + i : keys + (i - WINDOW * DIM);
            const float old = *where;
            put_bits(where, not_finite[i % N_NOT_FINITE]);
            expect_status(&p, "status of select, Q and K element", i,
                          subject_select(&p.config, &p.layer, 0, kept, NULL, NULL, workspace, size),
                          SNAPKV_ERROR_NOT_FINITE);
            expect_status(&p, "status of vote, Q and K element", i,
                          subject_vote(&p.config, &p.layer, 0, out, workspace, size),
                          SNAPKV_ERROR_NOT_FINITE);
            n_refused += 2;
            *where = old;
        }
    }
    p.layer.softcap = 0.0f;
    p.layer.alibi_slopes = NULL;
    for (size_t i = 0; i < LENGTH; i++) {
        const float old = row[i];
        put_bits(row + i, not_finite[i % N_NOT_FINITE]);
        expect_status(&p, "status of pool, vote", i,
                      subject_pool(row, LENGTH, 5, SNAPKV_POOL_MAX, out), SNAPKV_ERROR_NOT_FINITE);
        expect_status(&p, "status of top_k, score", i,
                      subject_top_k(row, LENGTH, 7, SNAPKV_BY_SCORE, kept),
                      SNAPKV_ERROR_NOT_FINITE);
        n_refused += 2;
        row[i] = old;
    }
    for (size_t i = 0; i < N_NOT_FINITE; i++) {
        float bad;
        put_bits(&bad, not_finite[i]);
        for (int field = 0; field < 4; field++) {
            snapkv_layer layer = p.layer;
            if (field < 2) {
                put_bits(field ? &layer.softcap : &layer.scale, not_finite[i]);
            } else {
                layer.sink_logits = field == 2 ? &bad : NULL;
                layer.alibi_slopes = field == 3 ? &bad : NULL;
            }
            expect_status(&p, "status of select, option", (size_t)field,
                          subject_select(&p.config, &layer, 0, kept, NULL, NULL, workspace, size),
                          SNAPKV_ERROR_OPTION);
            n_refused++;
        }
    }
    /* Finite factors whose product is not. */
    queries[0] = 3e38f;
    keys[0] = 3e38f;
    expect_status(&p, "status of select, overflow", 0,
                  subject_select(&p.config, &p.layer, 0, kept, NULL, NULL, workspace, size),
                  SNAPKV_ERROR_NOT_FINITE);
    n_refused++;
    free(workspace);
}

int main(int argc, char **argv) {
    near_ties = argc > 1 && strcmp(argv[1], "--near-ties") == 0;
    const char *name = argc > 1 + near_ties ? argv[1 + near_ties] : "tests/vectors/cases.txt";
    FILE *file = fopen(name, "r");
    if (!file) {
        stop(name, "can't be opened");
    }
    while (read_case(file)) {
    }
    fclose(file);
    check_not_finite();
    printf("%s, %d-bit: %lu cases, %lu answers, %lu refusals, %lu wrong\n", subject_name(),
           (int)(8 * sizeof(void *)), (unsigned long)n_cases, (unsigned long)n_answers,
           (unsigned long)n_refused, (unsigned long)n_failed);
    return n_failed != 0 || n_cases == 0;
}
