/* Measures the library's exp and tanh against double, and holds them to what the header claims:
 * accuracy HEADER. exp: every float from 0 down to where it is 0. tanh: every 61st float. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapkv.h"

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

static skv_vec exp_of(skv_vec x) {
    return skv_exp(x);
}

static skv_vec tanh_of(skv_vec x) {
    return skv_tanh(x);
}

int main(int argc, char **argv) {
    enum { N = 4096 };
    float x[N], y[N];
    const char *header = argc > 1 ? argv[1] : "include/snapkv.h";
    int failed = 0;

    const double zero_below = -87.0;
    double worst = 0, at = 0, vanished = -1e9; /* the largest x whose exp is 0 */
    for (uint32_t bits = 0x80000000u; bits <= 0xC2AF0000u; bits += N) { /* -0 .. -87.5 */
        for (uint32_t i = 0; i < N; i++) {
            x[i] = from_bits(bits + i);
        }
        eval(exp_of, x, y, N);
        for (uint32_t i = 0; i < N; i++) {
            const double exact = exp((double)x[i]);
            const double error = ulps(y[i], exact);
            if (y[i] == 0.0f) {
                vanished = (double)x[i] > vanished ? (double)x[i] : vanished;
            } else if (error > worst) {
                worst = error;
                at = (double)x[i];
            }
        }
    }
    const double exp_claim = claim(header, "exp(x) for x <= 0; worst error ");
    printf("exp: worst error %.4f ULP at %.9g (claimed %.2f), 0 from %.9g down\n", worst, at,
           exp_claim, vanished);
    failed |= worst > exp_claim || vanished > zero_below + 0.02 || vanished < zero_below - 0.02;
    for (int i = 0; i < N; i++) {
        x[i] = i ? -from_bits(0x42AE0000u + (uint32_t)i * 0x18000u) : -0.0f; /* -87 .. -1e38 */
    }
    eval(exp_of, x, y, N);
    failed |= y[0] != 1.0f;
    for (int i = 2; i < N; i++) {
        failed |= y[i] != 0.0f && x[i] < -87.0f;
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
    printf(failed ? "FAILED\n" : "ok\n");
    return failed;
}
