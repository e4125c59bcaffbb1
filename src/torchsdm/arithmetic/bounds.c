/* Norms of points, and the rows' side of the bounds of matching (torchsdm.matching._bounds, _coarse). */

#include <stdlib.h>

#include "distance.h"

enum { SMALLEST_QUERY = 60, LARGEST_QUERY = 20 }; /* exponents below and above the typical norm that are trusted */

static double sum_of(eight_doubles r) {
    return ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
}

/* |x'|^2 and x'.c of a point, x' = x - c, which replaces the point; any order of summation works. */
static void centre_point(double *point, const double *centre, int64_t width, double *squared, double *cross) {
    eight_doubles a = {0}, b = {0};
    int64_t k = 0;
    for (; k + 8 <= width; k += 8) {
        eight_doubles c = load_double(centre + k), x = load_double(point + k) - c;
        a += x * x, b += x * c;
        memcpy(point + k, &x, sizeof x);
    }
    double rest_a = 0, rest_b = 0;
    for (; k < width; k++) {
        point[k] -= centre[k];
        rest_a += point[k] * point[k], rest_b += point[k] * centre[k];
    }
    *squared = sum_of(a) + rest_a, *cross = sum_of(b) + rest_b;
}

int centred_products(const points_t *points, const double *centre, double *squared, double *cross, int64_t begin,
                     int64_t end) {
    double *point = malloc((points->width + 1) * sizeof(double));
    if (!point)
        return -1;
    for (int64_t i = begin; i < end; i++) {
        copy_point(points, i, point);
        centre_point(point, centre, points->width, squared + i, cross + i);
    }
    free(point);
    return 0;
}

/* The largest float32 not above a float64. */
static float round_down(double value) {
    float rounded = (float)value;
    return rounded > value ? nextafterf(rounded, -INFINITY) : rounded;
}

static float round_up(double value) { return -round_down(-value); }

/* The numbers that the rows' side depends on. */
typedef struct {
    int64_t exponent; /* sigma = 2^-exponent */
    double cross;     /* what x'.c is multiplied by: 2, or 0 if the support is centred too */
    double row_error;
    double underflow;
    int64_t decide_nothing;
} bound_terms_t;

/* A query, centred; its exponent k, with 2^k > |x'|; and whether it is too far out to be left to products. */
static int is_left_out(const points_t *queries, const double *centre, const bound_terms_t *terms, int64_t i,
                       double *point, double *squared, double *cross, int *exponent) {
    copy_point(queries, i, point);
    centre_point(point, centre, queries->width, squared, cross);
    frexp(sqrt(*squared), exponent);
    if (*exponent < terms->exponent - SMALLEST_QUERY)
        *exponent = (int)terms->exponent - SMALLEST_QUERY;
    return terms->decide_nothing || !(*squared < INFINITY) || *exponent > terms->exponent + LARGEST_QUERY;
}

/* The rows' side of the bounds for each query; see Bounds.queries. */
int query_bounds(const points_t *queries, const double *centre, const bound_terms_t *terms, float *multiplier,
                 float *factor, float *low, float *high, int64_t begin, int64_t end) {
    int64_t width = queries->width;
    double *point = malloc((width + 1) * sizeof(double));
    if (!point)
        return -1;
    double scale = ldexp(1.0, -2 * (int)terms->exponent); /* sigma^2 */
    for (int64_t i = begin; i < end; i++) {
        double squared, cross;
        int exponent;
        if (is_left_out(queries, centre, terms, i, point, &squared, &cross, &exponent)) {
            memset(multiplier + i * width, 0, width * sizeof(float));
            factor[i] = 1, low[i] = -INFINITY, high[i] = INFINITY;
            continue;
        }
        double down = ldexp(1.0, -exponent), up = ldexp(1.0, (int)(exponent + 1 - 2 * terms->exponent));
        for (int64_t k = 0; k < width; k++)
            multiplier[i * width + k] = (float)(point[k] * down);
        double shift = (squared + terms->cross * cross) * scale;
        double slack = squared * scale * terms->row_error + (up + 1) * terms->underflow;
        factor[i] = (float)up, low[i] = round_down(shift - slack), high[i] = round_up(shift + slack);
    }
    free(point);
    return 0;
}

/* --- bfloat16 --------------------------------------------------------------------------------------------------- */

/* The nearest bfloat16, ties to even; 0 for what processors take for 0. */
static inline uint16_t bfloat16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000;
    return (bits & 0x7F800000) ? (uint16_t)(bits >> 16) : 0;
}

static inline float float_of_bfloat16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A point times `scale` in bfloat16, padded with zeros to `stride`; returns the norm of what rounding changed. */
static double to_bfloat16(const double *point, double scale, int64_t width, uint16_t *restrict halves,
                          int64_t stride) {
    eight_doubles changed = {0};
    int64_t k = 0;
    for (; k < width; k++)
        halves[k] = bfloat16_of((float)(point[k] * scale));
    memset(halves + width, 0, (stride - width) * sizeof(uint16_t));
    for (k = 0; k + 8 <= width; k += 8) {
        float kept[8];
        for (int at = 0; at < 8; at++)
            kept[at] = float_of_bfloat16(halves[k + at]);
        eight_doubles change = load_double(point + k) * scale - load_float(kept);
        changed += change * change;
    }
    double rest = 0;
    for (; k < width; k++) {
        double change = point[k] * scale - float_of_bfloat16(halves[k]);
        rest += change * change;
    }
    return sqrt(sum_of(changed) + rest);
}

/* sigma (s - c) in bfloat16 for support points, and the norm of what rounding changed; see CoarsePoints. */
int coarse_points(const points_t *points, const double *centre, double scale, uint16_t *halves, int64_t stride,
                  double *changed, int64_t begin, int64_t end) {
    int64_t width = points->width;
    double *point = malloc((width + 1) * sizeof(double)), squared, cross;
    if (!point)
        return -1;
    for (int64_t i = begin; i < end; i++) {
        copy_point(points, i, point);
        centre_point(point, centre, width, &squared, &cross);
        changed[i] = to_bfloat16(point, scale, width, halves + i * stride, stride);
    }
    free(point);
    return 0;
}

/* The numbers that the rows' side of the coarse bounds depends on. */
typedef struct {
    bound_terms_t terms;
    double ratio, rounding, product_error, sum_error; /* r, e, gamma and eta of torchsdm.matching._coarse */
} coarse_terms_t;

/* The rows' side of the coarse bounds; see CoarsePoints.queries. */
int coarse_queries(const points_t *queries, const double *centre, const coarse_terms_t *coarse, uint16_t *halves,
                   int64_t stride, float *factor, float *low, float *high, int64_t begin, int64_t end) {
    const bound_terms_t *terms = &coarse->terms;
    int64_t width = queries->width;
    double *point = malloc((width + 1) * sizeof(double));
    if (!point)
        return -1;
    double sigma = ldexp(1.0, -(int)terms->exponent), r = coarse->ratio, e = coarse->rounding;
    for (int64_t i = begin; i < end; i++) {
        double squared, cross;
        int exponent;
        if (is_left_out(queries, centre, terms, i, point, &squared, &cross, &exponent)) {
            memset(halves + i * stride, 0, stride * sizeof(uint16_t));
            factor[i] = 1, low[i] = -INFINITY, high[i] = INFINITY;
            continue;
        }
        double down = ldexp(1.0, -exponent), up = ldexp(1.0, (int)(exponent - terms->exponent)); /* 2^k sigma */
        double changed = to_bfloat16(point, down, width, halves + i * stride, stride) * up; /* delta_x */
        double norm = sqrt(squared) * sigma, rounded = norm + changed;                      /* X, X + delta_x */
        double slack = changed * changed / (e * r) + (e + coarse->product_error) * rounded * rounded / r;
        slack += coarse->sum_error * (norm * norm / r + norm * norm);
        slack = slack * (1 + 1e-9) + (2 * up + 1) * terms->underflow;
        factor[i] = (float)(2 * up);
        low[i] = round_down(norm * norm - slack), high[i] = round_up(norm * norm + slack);
    }
    free(point);
    return 0;
}

/* sum over k of w_k b_k mod 2^64 for each row of bits (n, width); see torchsdm.matching.rows. */
int row_hashes(const uint32_t *bits, const uint64_t *weights, int64_t width, uint64_t *hashes, int64_t begin,
               int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        uint64_t total = 0;
        for (int64_t k = 0; k < width; k++)
            total += bits[i * width + k] * weights[k];
        hashes[i] = total;
    }
    return 0;
}
