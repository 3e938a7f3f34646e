/* The numeric contract (docs/numerics.md): votes have the bits of its steps, written down here
 * without the library; and equal keys have equal votes, to the bit, wherever they stand: in
 * different tiles of the softmax, in different parts, kept or computed again, and also in builds
 * and threads that flush subnormals or compute with -ffast-math (the builds fast, fast-plain). */
#include "check.h"
#include "problem.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* Subnormals flushed, as an engine's threads often have it. Where we can't, the test runs twice. */
static void flush_subnormals(int on) {
#if defined(__x86_64__)
    static unsigned before;
    if (on) {
        before = _mm_getcsr();
        _mm_setcsr(before | 0x8040); /* results and operands */
    } else {
        _mm_setcsr(before);
    }
#else
    (void)on;
#endif
}

/* Which keys are copies of which: position j has the vector `kind[j]` of a pool. */
typedef struct pooled {
    problem p;
    size_t n_kinds;
    size_t *kind; /* [length] */
} pooled;

static pooled new_pooled(splitmix *random, size_t window, size_t length, size_t head_dim,
                         size_t n_kinds) {
    pooled q;
    const snapkv_config config = make_config(window, window + 1, 1);
    q.p = problem_new(config, splitmix_between(random, 1, 2), 1, length, head_dim);
    q.p.config.voting = (snapkv_voting)splitmix_between(random, 0, 1);
    q.n_kinds = n_kinds;
    q.kind = new_array(length, sizeof *q.kind);
    for (size_t j = 0; j < length; j++) {
        q.kind[j] = splitmix_between(random, 0, n_kinds - 1);
    }
    return q;
}

static void set_keys(pooled *q, const float *pool) {
    const size_t bytes = q->p.layer.head_dim * sizeof(float);
    for (size_t j = 0; j < q->p.layer.length; j++) {
        memcpy((char *)q->p.keys + j * bytes, (const char *)pool + q->kind[j] * bytes, bytes);
    }
    problem_pack_plainly(&q->p);
}

/* Every position of a kind has the bits of the first one, with every workspace; no vote is
 * subnormal. Returns how many ties were seen. */
static size_t check_ties(const pooled *q) {
    const problem *p = &q->p;
    const size_t prefix = problem_prefix(p);
    const size_t least = snapkv_workspace_min(&p->config, &p->layer);
    const size_t most = snapkv_workspace_size(&p->config, &p->layer);
    size_t *first = new_array(q->n_kinds, sizeof *first);
    size_t n_ties = 0;
    for (size_t head = 0; head < p->layer.n_query_heads; head++) {
        float *votes = run_vote(p, head, most, GUARD_AFTER);
        float *others[2];
        others[0] = run_vote(p, head, least, GUARD_BEFORE);
        others[1] = run_vote(p, head, least / 4 * 2 + most / 4 * 2, GUARD_AFTER);
        memset(first, 0xFF, q->n_kinds * sizeof *first);
        for (size_t j = 0; j < prefix; j++) {
            size_t *at = first + q->kind[j];
            uint32_t bits[4];
            if (*at == SIZE_MAX) {
                *at = j;
            } else {
                n_ties++;
            }
            memcpy(bits, votes + j, 4);
            memcpy(bits + 1, others[0] + j, 4);
            memcpy(bits + 2, others[1] + j, 4);
            memcpy(bits + 3, votes + *at, 4);
            if (bits[0] != bits[1] || bits[0] != bits[2] || bits[0] != bits[3]) {
                fail_msg("head %lu: votes[%lu] is %a, with less workspace %a and %a; the equal key "
                         "at %lu has %a",
                         (unsigned long)head, (unsigned long)j, (double)votes[j],
                         (double)others[0][j], (double)others[1][j], (unsigned long)*at,
                         (double)votes[*at]);
            }
            assert_true(bits[0] == 0 || (bits[0] >= 0x00800000 && bits[0] < 0x7F800000));
        }
        free(votes);
        free(others[0]);
        free(others[1]);
    }
    free(first);
    return n_ties;
}

static void free_pooled(pooled *q) {
    free(q->kind);
    problem_free(&q->p);
}

/* The example of the numeric contract: 3.25 stands at 10, before the maximum grows, and at 60. */
static void test_lower_position_of_two_tiles(void **state) {
    (void)state;
    const int32_t expected[4] = {0, 10, 61, 99};
    problem p = problem_new(make_config(1, 4, 1), 1, 1, 100, 1);
    p.queries[0] = 1;
    for (size_t j = 0; j < 100; j++) {
        p.keys[j] = -20;
    }
    p.keys[0] = 5.25f;
    p.keys[61] = 5.5f;
    p.keys[10] = p.keys[60] = 3.25f;
    problem_pack_plainly(&p);
    outcome o = run_select(&p, 0, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
    assert_ok(o.status);
    assert_indices(o.kept, expected, 4);
    assert_true(o.scores[10] == o.scores[60]);
    outcome_free(&o);
    problem_free(&p);
}

/* Two equal keys among random ones; the lower position is kept first. */
static void test_random_pairs(void **state) {
    (void)state;
    for (size_t i = 0; i < 3000; i++) {
        splitmix random = {i};
        const size_t window = splitmix_between(&random, 1, i % 8 ? 9 : 40);
        const size_t prefix = splitmix_between(&random, 97, i % 100 ? 400 : 13000);
        const size_t head_dim = splitmix_between(&random, 1, i % 8 ? 12 : 64);
        const size_t a = splitmix_between(&random, 0, prefix - 49);
        const size_t b = splitmix_between(&random, (a / 48 + 1) * 48, prefix - 1);
        problem p = problem_new(make_config(window, window + 1, 1), 1, 1, window + prefix, head_dim);
        p.config.voting = i % 3 ? SNAPKV_VOTE_SUM : SNAPKV_VOTE_MAX;
        problem_fill(&p, &random, 6, 0);
        memcpy(p.keys + b * head_dim, p.keys + a * head_dim, head_dim * sizeof(float));
        problem_pack_plainly(&p);
        const size_t size = i % 2 ? snapkv_workspace_size(&p.config, &p.layer)
                                  : snapkv_workspace_min(&p.config, &p.layer);
        float *votes = run_vote(&p, 0, size, GUARD_AFTER);
        if (memcmp(votes + a, votes + b, sizeof *votes) != 0) {
            fail_msg("problem %lu: %a at %lu, %a at %lu", (unsigned long)i, (double)votes[a],
                     (unsigned long)a, (double)votes[b], (unsigned long)b);
        }
        /* A list that ends between the two. */
        size_t above = 0;
        for (size_t j = 0; j < prefix; j++) {
            above += votes[j] > votes[a];
        }
        p.config.capacity = window + above + 1;
        outcome o = run_select(&p, 0, size, GUARD_AFTER);
        int has_a = 0, has_b = 0;
        for (size_t k = 0; k < o.n_kept; k++) {
            has_a |= (size_t)o.kept[k] == a;
            has_b |= (size_t)o.kept[k] == b;
        }
        assert_true(has_a && !has_b);
        outcome_free(&o);
        free(votes);
        problem_free(&p);
    }
}

/* The float whose product with log2 e is 1, so that logits in base 2 are what the keys say. */
static float unit_query(void) {
    float q = 0.693147f;
    while (q * 1.44269504f < 1) {
        q = nextafterf(q, 1);
    }
    assert_true(q * 1.44269504f == 1);
    return q;
}

/* Logits where tiles round, flush and overflow differently. */
static void check_hard(splitmix *random, size_t i) {
    enum { KINDS = 12 };
    float pool[KINDS];
    const size_t window = splitmix_between(random, 1, i % 4 ? 6 : 40);
    const size_t length = window + splitmix_between(random, 2, i % 100 ? 700 : 13000);
    pooled q = new_pooled(random, window, length, 1, KINDS);
    const float scales[] = {1, 1, 2, -1, 0.5f};
    const float unit = unit_query();
    for (size_t w = 0; w < q.p.layer.n_query_heads * window; w++) {
        q.p.queries[w] = unit * scales[splitmix_between(random, 0, i % 3 ? 1 : 4)];
    }
    q.p.layer.scale = 1;
    for (size_t k = 0; k < KINDS; k++) {
        const float step = (float)splitmix_between(random, 0, 600);
        switch (i % 7) {
        case 0: /* halves, a few around the maximum */
            pool[k] = step / 20 - 0.5f + (float)(k % 2) * 0.5f;
            pool[k] = floorf(pool[k] * 2) / 2;
            break;
        case 1: /* halves and quarters down to where weights flush and votes vanish */
            pool[k] = -floorf(step) / 4;
            break;
        case 2: /* the same with any number */
            pool[k] = -step / 4 + splitmix_float(random, 0.5);
            break;
        case 3: /* around the numbers beyond which halves, odd numbers and magic numbers end */
            pool[k] = ldexpf(1, (int)splitmix_between(random, 20, 25)) + step / 4 - 60;
            pool[k] *= splitmix_once_in(random, 2) ? 1 : -1;
            break;
        case 4: /* huge, near together */
            pool[k] = 1e20f * (1 + (float)splitmix_between(random, 0, 4) * FLT_EPSILON);
            break;
        case 5: /* any size */
            pool[k] = ldexpf(splitmix_float(random, 2), (int)splitmix_between(random, 0, 66));
            break;
        default: /* maxima that grow from tile to tile */
            pool[k] = (float)k * 9.5f + splitmix_float(random, 1);
            break;
        }
    }
    if (i % 7 == 3) { /* one of the powers, with its neighbours */
        const float power = ldexpf(splitmix_once_in(random, 2) ? 1 : -1,
                                   (int)splitmix_between(random, 20, 25));
        for (size_t k = 0; k < KINDS; k++) {
            pool[k] = power + (float)splitmix_between(random, 0, 500) / 2 - 125;
        }
    }
    if (i % 7 == 6) {
        for (size_t j = 0; j < length; j++) {
            const size_t end = 1 + j * (KINDS - 1) / length;
            q.kind[j] = splitmix_between(random, 0, end);
        }
    }
    float extra[2] = {splitmix_float(random, 200), -150};
    if (i % 5 == 1) {
        problem_set_sinks(&q.p, extra);
    }
    if (i % 11 == 1) {
        q.p.layer.softcap = 20 + 60 * (float)splitmix_between(random, 0, 2);
    }
    set_keys(&q, pool);
    check_ties(&q);
    free_pooled(&q);
}

static void test_hard_logits(void **state) {
    (void)state;
    for (size_t i = 0; i < 700; i++) {
        splitmix random = {1000000 + i};
        check_hard(&random, i);
    }
}

static void test_hard_logits_flushed(void **state) {
    flush_subnormals(1);
    test_hard_logits(state);
    flush_subnormals(0);
}

/* ---- the steps 2 to 7, without soft cap ------------------------------------------------------ */

#if (SNAPKV_ISA != SNAPKV_ISA_SCALAR || SNAPKV_SCALAR_FMA) && !defined(__FAST_MATH__)
#define IS_EXACT 1
#else
#define IS_EXACT 0 /* within rounding */
#endif

#define LOG2E 1.44269504f

typedef struct statistics {
    float m, z;
} statistics;

static float power_of_2(float n) {
    return n <= -127 ? 0 : ldexpf(1, (int)n);
}

static float even(float x) {
    return fabsf(x) > 8388608 ? x : 2 * (float)rint((double)x / 2);
}

static float weigh(float l, float m) {
    static const float coefficients[6] = {0.00265297899f, 0.0193425808f, 0.111014418f,
                                          0.480444938f,   1.38629401f,   2};
    const double n = rint((double)l - (double)m);
    if (m == -FLT_MAX || n <= -126) {
        return 0;
    }
    const float f = (float)((double)l - ((double)m + n));
    float p = coefficients[0];
    for (size_t c = 1; c < 6; c++) {
        p = fmaf(p, f, coefficients[c]);
    }
    return ldexpf(p, (int)n - 1);
}

static statistics merge(statistics a, statistics b) {
    const float m = a.m > b.m ? a.m : b.m;
    const statistics both = {m, fmaf(a.z, power_of_2(a.m - m), b.z * power_of_2(b.m - m))};
    return both;
}

/* The votes of one head. weights: [length], tile_max: [length / 48 + 1], acc: [length][16] */
static void contract_votes(const problem *p, size_t head, float *votes, float *weights,
                           float *tile_max, float *acc) {
    const snapkv_layer *layer = &p->layer;
    const size_t length = layer->length, dim = layer->head_dim, window = p->config.window;
    const int by_max = p->config.voting == SNAPKV_VOTE_MAX;
    const float *keys = p->keys + head / (layer->n_query_heads / layer->n_kv_heads) * length * dim;
    const float slope = p->layer.alibi_slopes ? p->layer.alibi_slopes[head] * LOG2E : 0;
    const float scale = layer->scale > 0 ? layer->scale : 1 / sqrtf((float)dim);
    for (size_t i = 0; i < length * 16; i++) {
        acc[i] = ldexpf(1, -66);
    }
    for (size_t i = 0; i < window; i++) {
        const float *query = p->queries + (head * window + i) * dim;
        const size_t t = length - window + i;
        const statistics none = {-FLT_MAX, 0};
        statistics total = none, part = none;
        for (size_t first = 0; first < length; first += 48) {
            float highest = -FLT_MAX;
            statistics tile = none;
            for (size_t j = first; j < first + 48 && j < length; j++) {
                float l = 0;
                for (size_t d = 0; d < dim; d++) {
                    l = fmaf(keys[j * dim + d], query[d] * scale * LOG2E, l);
                }
                l = fmaf(slope, (float)j - (float)t, l);
                weights[j] = j <= t && (!layer->span || t - j < layer->span) ? l : -FLT_MAX;
                highest = weights[j] > highest ? weights[j] : highest;
            }
            highest = even(highest);
            tile.m = highest > part.m ? highest : part.m;
            for (size_t j = first; j < first + 48 && j < length; j++) {
                weights[j] = weigh(weights[j], tile.m);
                tile.z += weights[j];
            }
            tile_max[first / 48] = tile.m;
            part = merge(part, tile);
            if ((first + 48) % 6144 == 0 || first + 48 >= length) {
                total = merge(total, part);
                part = none;
            }
        }
        if (layer->sink_logits) {
            const float sink = layer->sink_logits[head] * LOG2E;
            const statistics last = {even(sink), weigh(sink, even(sink))};
            total = merge(total, last);
        }
        for (size_t j = 0; j < length - window; j++) {
            const float decay = power_of_2(tile_max[j / 48] - total.m) * 4294967296.0f;
            float *lane = acc + j * 16 + i % 16;
            if (by_max) {
                *lane = fmaxf(*lane, fmaf(weights[j], decay / total.z, ldexpf(1, -66)));
            } else {
                *lane = fmaf(weights[j], decay / total.z, *lane);
            }
        }
    }
    for (size_t j = 0; j < length - window; j++) {
        float *lane = acc + j * 16;
        for (size_t half = 8; half > 0; half /= 2) {
            for (size_t i = 0; i < half; i++) {
                lane[i] = by_max ? fmaxf(lane[i], lane[i + half]) : lane[i] + lane[i + half];
            }
        }
        votes[j] = (lane[0] - ldexpf(1, by_max ? -66 : -62)) * ldexpf(1, -32);
    }
}

/* Prompts of one part, of several, and with a border just before, at and behind the end. */
static void test_steps(void **state) {
    (void)state;
    static const size_t lengths[] = {60, 97, 700, 6143, 6144, 6145, 6200, 12288, 12337, 20000};
    for (size_t i = 0; i < 8 * COUNT_OF(lengths); i++) {
        splitmix random = {77 + i};
        const size_t length = lengths[i % COUNT_OF(lengths)];
        const size_t dim = splitmix_between(&random, 1, 9);
        const size_t window = splitmix_between(&random, 1, i % 3 ? 4 : 35);
        problem p = problem_new(make_config(window, window + 1, 1), 2, 1, length, dim);
        const float sinks[2] = {splitmix_float(&random, 30), 2.5f};
        const float slopes[2] = {splitmix_float(&random, 0.1), 0.0078125f};
        problem_fill(&p, &random, i % 5 || !IS_EXACT ? 6 : 40, 0);
        p.layer.scale = i % 2 ? 0 : 0.7f;
        p.config.voting = i % 6 < 4 ? SNAPKV_VOTE_SUM : SNAPKV_VOTE_MAX;
        if (i % 4 == 1) {
            problem_set_sinks(&p, sinks);
        }
        if (i % 7 == 2) {
            problem_set_slopes(&p, slopes);
        }
        if (i % 3 == 2) {
            p.layer.span = splitmix_between(&random, 1, length);
        }
        problem_pack_plainly(&p);
        float *expected = new_array(length, sizeof(float));
        float *weights = new_array(length, sizeof(float));
        float *tile_max = new_array(length / 48 + 1, sizeof(float));
        float *acc = new_array(length * 16, sizeof(float));
        for (size_t head = 0; head < 2; head++) {
            contract_votes(&p, head, expected, weights, tile_max, acc);
            float *votes =
                run_vote(&p, head, snapkv_workspace_size(&p.config, &p.layer), GUARD_AFTER);
            for (size_t j = 0; j < length - window; j++) {
                const float error = IS_EXACT ? 0 : 2e-4f * expected[j] + 5e-35f;
                if (!(fabsf(votes[j] - expected[j]) <= error)) {
                    fail_msg("problem %lu: votes[%lu] is %a, not %a", (unsigned long)i,
                             (unsigned long)j, (double)votes[j], (double)expected[j]);
                }
            }
            free(votes);
        }
        free(expected);
        free(weights);
        free(tile_max);
        free(acc);
        problem_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lower_position_of_two_tiles),
        cmocka_unit_test(test_random_pairs),
        cmocka_unit_test(test_hard_logits),
        cmocka_unit_test(test_hard_logits_flushed),
        cmocka_unit_test(test_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
