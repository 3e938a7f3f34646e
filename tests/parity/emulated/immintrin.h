/* AVX-512 in plain C, by SIMDe (Debian: libsimde-dev), so that the AVX-512 block of the header runs
 * on machines without it. Found before the compiler's own header through -I. */
#ifndef EMULATED_IMMINTRIN_H
#define EMULATED_IMMINTRIN_H

#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

/* What SIMDe 0.7.4 lacks, from its 256-bit halves. */
static inline __m512 emulated_join(__m256 low, __m256 high) {
    return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(low)),
                                               _mm256_castps_pd(high), 1));
}

static inline __m512 emulated_cvtepi32_ps(__m512i a) {
    return emulated_join(_mm256_cvtepi32_ps(_mm512_castsi512_si256(a)),
                         _mm256_cvtepi32_ps(_mm512_extracti64x4_epi64(a, 1)));
}

static inline __m512 emulated_cvtph_ps(__m256i a) {
    return emulated_join(_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                         _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
}

static inline __m512i emulated_cvtepu16_epi32(__m256i a) {
    const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(a));
    const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1));
    return _mm512_castps_si512(emulated_join(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)));
}

static inline __m256 emulated_extract(__m512 a, int high) {
    return _mm256_castpd_ps(high ? _mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)
                                 : _mm512_extractf64x4_pd(_mm512_castps_pd(a), 0));
}

/* The zeroing forms, with all lanes on. */
#define _mm512_maskz_max_epi32(k, a, b)       _mm512_max_epi32(a, b)
#define _mm512_maskz_max_ps(k, a, b)          _mm512_max_ps(a, b)
#define _mm512_maskz_min_ps(k, a, b)          _mm512_min_ps(a, b)
#define _mm512_maskz_sub_epi32(k, a, b)       _mm512_sub_epi32(a, b)
#define _mm512_maskz_slli_epi32(k, a, n)      _mm512_slli_epi32(a, n)
#define _mm512_maskz_cvtepi32_ps(k, a)        emulated_cvtepi32_ps(a)
#define _mm512_maskz_cvtph_ps(k, a)           emulated_cvtph_ps(a)
#define _mm512_maskz_cvtepu16_epi32(k, a)     emulated_cvtepu16_epi32(a)
#define _mm512_maskz_extractf32x8_ps(k, a, i) emulated_extract(a, i)

#endif
