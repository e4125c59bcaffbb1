/* Products of bfloat16 rows with bfloat16 columns, summed in float32, by the processor's own instruction.

   It adds the products of two pairs to a float32 sum, rounding at most twice, and takes what is smaller than a normal
   float32 for 0. Products of bfloat16 numbers are exact in float32, so the error of a sum of n terms is at most that of
   n roundings to nearest, or half as good if a processor truncates: gamma(n) of u = 2^-23. */

#include <stdint.h>
#include <string.h>

#ifdef __AVX512BF16__

#include <immintrin.h>
#include <stdlib.h>

enum { ROWS = 12, COLUMNS = 32, LANES = 16 }; /* of a block of sums, which fills 24 of 32 registers */

static inline __m512 add_pairs(__m512 sums, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sums, (__m512bh)a, (__m512bh)b);
}

/* 16 rows of 16 pairs become 16 columns: pairs, fours and eights change places with those of the row beside. */
static inline void transpose(__m512i r[LANES]) {
    __m512i t[LANES];
    for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) { /* r[4 a + i] has, in quarter q, the pairs 4 q + i of the rows 4 a to 4 a + 3 */
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
    }
}

/* 32 columns side by side: for each pair of numbers, that of the first column, of the second, ... */
static void pack(const uint16_t *columns, int64_t stride, int64_t n, int64_t n_pairs, uint32_t *packed) {
    for (int64_t first = 0; first < n_pairs; first += LANES) {
        int64_t n_here = n_pairs - first < LANES ? n_pairs - first : LANES;
        for (int half = 0; half < COLUMNS; half += LANES) {
            __m512i block[LANES];
            for (int j = 0; j < LANES; j++) /* columns beyond the last one are never stored: any will do */
                block[j] = _mm512_loadu_si512(columns + (half + j < n ? half + j : n - 1) * stride + 2 * first);
            transpose(block);
            for (int64_t pair = 0; pair < n_here; pair++)
                _mm512_store_si512(packed + (first + pair) * COLUMNS + half, block[pair]);
        }
    }
}

/* Sums of 12 rows with 32 packed columns. */
static inline void multiply_block(const uint16_t *const rows[ROWS], const uint32_t *packed, int64_t n_pairs,
                                  __m512 sums[ROWS][2]) {
    __m512 s[ROWS][2];
    for (int i = 0; i < ROWS; i++)
        s[i][0] = s[i][1] = _mm512_setzero_ps();
    for (int64_t pair = 0; pair < n_pairs; pair++) {
        __m512i left = _mm512_load_si512(packed + pair * COLUMNS);
        __m512i right = _mm512_load_si512(packed + pair * COLUMNS + LANES);
#pragma GCC unroll 12
        for (int i = 0; i < ROWS; i++) {
            int32_t both;
            memcpy(&both, rows[i] + 2 * pair, sizeof both);
            __m512i a = _mm512_set1_epi32(both);
            s[i][0] = add_pairs(s[i][0], a, left);
            s[i][1] = add_pairs(s[i][1], a, right);
        }
    }
    for (int i = 0; i < ROWS; i++)
        sums[i][0] = s[i][0], sums[i][1] = s[i][1];
}

/* One row with each column, without packing: for so few rows, reading the columns takes longest. */
static float multiply_one(const uint16_t *row, const uint16_t *column, int64_t n) {
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    int64_t k = 0;
    for (; k + 128 <= n; k += 128)
        for (int at = 0; at < 4; at++)
            sums[at] = add_pairs(sums[at], _mm512_loadu_si512(row + k + 32 * at),
                                 _mm512_loadu_si512(column + k + 32 * at));
    for (; k < n; k += 32)
        sums[0] = add_pairs(sums[0], _mm512_loadu_si512(row + k), _mm512_loadu_si512(column + k));
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

int has_coarse_products(void) { return 1; }

/* Products of `n` rows with the columns `begin` to `end`; rows have `width` numbers, of which whole vectors of 32 can
   be read: `stride` is a multiple of 32, and padding is 0. Row i is at out + i * out_stride. */
int coarse_products(const uint16_t *rows, int64_t n, const uint16_t *columns, int64_t width, int64_t stride, float *out,
                    int64_t out_stride, int64_t begin, int64_t end) {
    enum { FEW = 4 };
    if (n <= FEW) {
        for (int64_t j = begin; j < end; j++)
            for (int64_t i = 0; i < n; i++)
                out[i * out_stride + j] = multiply_one(rows + i * stride, columns + j * stride, stride);
        return 0;
    }
    int64_t n_pairs = (width + 1) / 2;
    uint32_t *packed = aligned_alloc(64, n_pairs * COLUMNS * sizeof(uint32_t));
    if (!packed)
        return -1;
    for (int64_t j = begin; j < end; j += COLUMNS) {
        int64_t m = end - j < COLUMNS ? end - j : COLUMNS;
        pack(columns + j * stride, stride, m, n_pairs, packed);
        __mmask16 left = m >= LANES ? 0xFFFF : (1u << m) - 1, right = m > LANES ? 0xFFFFu >> (COLUMNS - m) : 0;
        for (int64_t i = 0; i < n; i += ROWS) {
            const uint16_t *some[ROWS];
            __m512 sums[ROWS][2];
            for (int at = 0; at < ROWS; at++)
                some[at] = rows + (i + at < n ? i + at : n - 1) * stride;
            multiply_block(some, packed, n_pairs, sums);
            for (int at = 0; at < ROWS && i + at < n; at++) {
                float *to = out + (i + at) * out_stride + j;
                _mm512_mask_storeu_ps(to, left, sums[at][0]);
                _mm512_mask_storeu_ps(to + LANES, right, sums[at][1]);
            }
        }
    }
    free(packed);
    return 0;
}

#else

int has_coarse_products(void) { return 0; }

int coarse_products(const uint16_t *rows, int64_t n, const uint16_t *columns, int64_t width, int64_t stride, float *out,
                    int64_t out_stride, int64_t begin, int64_t end) {
    (void)rows, (void)n, (void)columns, (void)width, (void)stride, (void)out, (void)out_stride, (void)begin, (void)end;
    return -1;
}

#endif
