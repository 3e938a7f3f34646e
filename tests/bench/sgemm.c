/* The peer of the votes in `make bench`: OpenBLAS, one thread, the bare product of Q and K^T. */
#include "bench.h"

#include <cblas.h>

const char *bench_sgemm_name(void) {
    openblas_set_num_threads(1);
    return openblas_get_config();
}

/* logits[window][length], or logits[length][window] where the keys are the rows of the product. */
void bench_sgemm(int keys_are_rows, size_t window, size_t length, size_t head_dim,
                 const float *queries, const float *keys, float *logits) {
    const blasint w = (blasint)window;
    const blasint l = (blasint)length;
    const blasint d = (blasint)head_dim;

    if (keys_are_rows) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, l, w, d, 1.0f, keys, d, queries, d,
                    0.0f, logits, w);
    } else {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, w, l, d, 1.0f, queries, d, keys, d,
                    0.0f, logits, l);
    }
}
