// The peer of snapkv_top_k in `make bench`: std::nth_element.
#include "bench.h"

#include <algorithm>
#include <functional>
#include <numeric>

extern "C" float bench_nth_value(const float *scores, size_t n, size_t k, float *copy) {
    std::copy(scores, scores + n, copy);
    std::nth_element(copy, copy + (k - 1), copy + n, std::greater<float>());
    return copy[k - 1];
}

extern "C" void bench_nth_positions(const float *scores, size_t n, size_t k, int32_t *positions,
                                    int ascending) {
    std::iota(positions, positions + n, 0);
    std::nth_element(positions, positions + (k - 1), positions + n, [scores](int32_t a, int32_t b) {
        return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    });
    if (ascending) {
        std::sort(positions, positions + k);
    }
}
