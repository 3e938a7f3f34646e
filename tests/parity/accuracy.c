/* Measures the library's 2^x and tanh against double, and holds them to what the header claims:
 * accuracy HEADER. 2^x: every float from 0 down to where it is 0. tanh: every 61st float. Then the
 * votes, for logits of several sizes, against bounds that docs/numerics.md states. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapkv.h"
#include "splitmix.h"

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* |y - exact| in units of the float next to exact. */
static double ulps(float y, double exact) {
    int exponent;
    frexp(exact, &exponent);
    return fabs((double)y - exact) * ldexp(1.0, 24 - exponent);
}

/* The number behind `phrase` in the header. */
static double claim(const char *header, const char *phrase) {
    static char text[400000];
    FILE *file = fopen(header, "r");
    if (!file) {
        perror(header);
        exit(1);
    }
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *p = strstr(text, phrase);
    if (!p) {
        fprintf(stderr, "%s does not say \"%s\"\n", header, phrase);
        exit(1);
    }
    return strtod(p + strlen(phrase), NULL);
}

static void eval(skv_vec (*function)(skv_vec), const float *x, float *y, size_t n) {
    float lanes[16]; /* at least a native vector */
    for (size_t i = 0; i < n; i += sizeof(skv_vec) / sizeof(float)) {
        skv_store(lanes, function(skv_load(x + i)));
        memcpy(y + i, lanes, sizeof(skv_vec));
    }
}

static skv_vec exp2_of(skv_vec x) {
    return skv_exp2(x);
}

static skv_vec tanh_of(skv_vec x) {
    return skv_tanh(x);
}

/* The worst relative error of the votes of 20 problems whose largest logit is `amplitude`. */
static double vote_error(double amplitude) {
    enum { L = 2000, D = 64, W = 32, PREFIX = L - W };
    static float queries[W * D], keys[L * D], votes[PREFIX];
    static double logits[W][L], exact[PREFIX];
    splitmix random = {20240417};
    double worst = 0;
    for (int problem = 0; problem < 20; problem++) {
        double largest = 0;
        for (int i = 0; i < W * D; i++) {
            queries[i] = splitmix_float(&random, 2);
        }
        for (int i = 0; i < L * D; i++) {
            keys[i] = splitmix_float(&random, 2);
        }
        for (int i = 0; i < W; i++) {
            for (int j = 0; j < L; j++) {
                logits[i][j] = 0;
                for (int d = 0; d < D; d++) {
                    logits[i][j] += (double)queries[i * D + d] * (double)keys[j * D + d];
                }
                largest = fmax(largest, fabs(logits[i][j]));
            }
        }
        snapkv_config config = snapkv_default_config();
        snapkv_layer layer;
        memset(&layer, 0, sizeof layer);
        config.window = W;
        layer.n_query_heads = layer.n_kv_heads = 1;
        layer.length = L;
        layer.head_dim = D;
        layer.scale = (float)(amplitude / largest);
        layer.queries.data = queries;
        layer.keys.data = keys;
        layer.queries.row_stride = layer.keys.row_stride = D * sizeof(float);
        const size_t size = snapkv_workspace_size(&config, &layer);
        void *workspace = malloc(size);
        if (!workspace || snapkv_vote(&config, &layer, 0, votes, workspace, size)) {
            fprintf(stderr, "no votes\n");
            exit(1);
        }
        free(workspace);
        memset(exact, 0, sizeof exact);
        for (int i = 0; i < W; i++) {
            double sum = 0;
            for (int j = 0; j <= PREFIX + i; j++) {
                sum += exp(logits[i][j] * (double)layer.scale);
            }
            for (int j = 0; j < PREFIX; j++) {
                exact[j] += exp(logits[i][j] * (double)layer.scale) / sum;
            }
        }
        for (int j = 0; j < PREFIX; j++) {
            worst = fmax(worst, fabs((double)votes[j] - exact[j]) / exact[j]);
        }
    }
    return worst;
}

int main(int argc, char **argv) {
    enum { N = 4096 };
    float x[N], y[N];
    const char *header = argc > 1 ? argv[1] : "include/snapkv.h";
    int failed = 0;

    double worst = 0, at = 0, vanished = -1e9; /* the largest x whose power is 0 */
    for (uint32_t bits = 0x80000000u; bits <= 0xC2FC0000u; bits += N) { /* -0 .. -126 */
        for (uint32_t i = 0; i < N; i++) {
            x[i] = from_bits(bits + i);
        }
        eval(exp2_of, x, y, N);
        for (uint32_t i = 0; i < N; i++) {
            const double error = ulps(y[i], exp2((double)x[i]));
            if (y[i] == 0.0f) {
                vanished = (double)x[i] > vanished ? (double)x[i] : vanished;
            } else if (error > worst) {
                worst = error;
                at = (double)x[i];
            }
        }
    }
    const double exp2_claim = claim(header, "magic = SKV_MAGIC - m; worst error ");
    printf("2^x: worst error %.4f ULP at %.9g (claimed %.2f), 0 from %.9g down\n", worst, at,
           exp2_claim, vanished);
    failed |= worst > exp2_claim || vanished != -125.5;
    for (int i = 0; i < N; i++) { /* whole numbers, exact; then -126 .. -1e38 */
        x[i] = i <= 126 ? -(float)i : -from_bits(0x42FC0000u + (uint32_t)i * 0x18000u);
    }
    eval(exp2_of, x, y, N);
    for (int i = 0; i < N; i++) {
        failed |= y[i] != (i < 126 ? ldexpf(1.0f, -i) : 0.0f);
    }
    /* Both ends of the polynomial: x.5 has the same power whichever way it is rounded. */
    for (int i = 0; i < 125; i++) {
        x[i] = -(float)i - 0.5f;
    }
    eval(exp2_of, x, y, N);
    for (int i = 1; i < 124; i++) {
        failed |= y[i] != y[0] * ldexpf(1.0f, -i);
    }

    worst = 0;
    for (uint32_t bits = 0; bits < 0x7F000000u; bits += N * 61) {
        for (uint32_t i = 0; i < N; i++) {
            x[i] = from_bits((bits + i * 61) | (i & 1) << 31);
        }
        eval(tanh_of, x, y, N);
        for (uint32_t i = 0; i < N; i++) {
            const double error = fabs(x[i]) < 1.2e-38f ? 0 : ulps(y[i], tanh((double)x[i]));
            if (error > worst) {
                worst = error;
                at = (double)x[i];
            }
        }
    }
    const double tanh_claim = claim(header, "tanh(x); worst error ");
    printf("tanh: worst error %.4f ULP at %.9g (claimed %.2f)\n", worst, at, tanh_claim);
    failed |= worst > tanh_claim;

    static const double bounds[][2] = {{5, 5e-6}, {10, 1e-5}, {30, 3e-5}, {80, 8e-5}};
    for (int i = 0; i < 4; i++) {
        const double error = vote_error(bounds[i][0]);
        printf("votes, logits up to %g: worst relative error %.2g (bound %g)\n", bounds[i][0], error,
               bounds[i][1]);
        failed |= !(error <= bounds[i][1]);
    }
    printf(failed ? "FAILED\n" : "ok\n");
    return failed;
}
