/* The canonical distance: to the bit what numpy.sqrt(((a - b) ** 2).sum()) gives in float64 (docs/decisions/0002).

   numpy's order of summation: fewer than 8 terms one after the other, up to 128 in eight running sums, more by halves.
   The library is compiled without contraction, so that no product is fused with a sum. */

#ifndef TORCHSDM_DISTANCE_H
#define TORCHSDM_DISTANCE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef double eight_doubles __attribute__((vector_size(64)));
typedef float eight_floats __attribute__((vector_size(32)));

static inline eight_doubles load_float(const float *values) {
    eight_floats loaded;
    memcpy(&loaded, values, sizeof loaded);
    return __builtin_convertvector(loaded, eight_doubles);
}

static inline eight_doubles load_double(const double *values) {
    eight_doubles loaded;
    memcpy(&loaded, values, sizeof loaded);
    return loaded;
}

#define DEFINE_SQUARED_DISTANCE(TYPE)                                                                                  \
    static double squared_distance_##TYPE(const double *a, const TYPE *b, int64_t n) {                                 \
        if (n > 128) {                                                                                                 \
            int64_t half = n / 2 - (n / 2) % 8;                                                                        \
            double left = squared_distance_##TYPE(a, b, half);                                                         \
            return left + squared_distance_##TYPE(a + half, b + half, n - half);                                       \
        }                                                                                                              \
        double total = -0.0;                                                                                           \
        int64_t whole = n - n % 8;                                                                                     \
        if (whole) {                                                                                                   \
            eight_doubles d = load_double(a) - load_##TYPE(b), r = d * d;                                              \
            for (int64_t i = 8; i < whole; i += 8) {                                                                   \
                d = load_double(a + i) - load_##TYPE(b + i);                                                           \
                r += d * d;                                                                                            \
            }                                                                                                          \
            total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));                                 \
        }                                                                                                              \
        for (int64_t i = whole; i < n; i++) {                                                                          \
            double d = a[i] - (double)b[i];                                                                            \
            total += d * d;                                                                                            \
        }                                                                                                              \
        return total;                                                                                                  \
    }

DEFINE_SQUARED_DISTANCE(float)
DEFINE_SQUARED_DISTANCE(double)

/* Points (., width) in float32 or float64. */
typedef struct {
    const void *values;
    int64_t width;
    int64_t is_double;
} points_t;

static inline double distance(const double *query, const points_t *points, int64_t at) {
    int64_t width = points->width;
    if (points->is_double)
        return sqrt(squared_distance_double(query, (const double *)points->values + at * width, width));
    return sqrt(squared_distance_float(query, (const float *)points->values + at * width, width));
}

/* A point in float64, into a buffer of its width. */
static inline void copy_point(const points_t *points, int64_t at, double *copy) {
    int64_t width = points->width;
    const double *doubles = (const double *)points->values + at * width;
    const float *floats = (const float *)points->values + at * width;
    for (int64_t k = 0; k < width; k++)
        copy[k] = points->is_double ? doubles[k] : (double)floats[k];
}

#endif
