/* Products of a few rows with weights in float64 (torchsdm.arithmetic.exact.invariant_linear); any order of summation works.

   Weights are read once, as they are: for one row, a float64 copy of them would take ten times as long as the product. */

#include "distance.h"

/* x . w for each row of x (n, width) and the weights `begin` to `end`, into products (n, n_weights); and |w|^2. */
int products_and_norms(const double *x, int64_t n, const float *weights, int64_t n_weights, int64_t width,
                       double *products, double *squared, int64_t begin, int64_t end) {
    int64_t whole = width - width % 8;
    for (int64_t j = begin; j < end; j++) {
        const float *w = weights + j * width;
        for (int64_t i = -1; i < n; i++) { /* the norm first, then each row */
            const double *row = x + i * width;
            eight_doubles sums = {0};
            double rest = 0;
            for (int64_t k = 0; k < whole; k += 8) {
                eight_doubles some = load_float(w + k);
                sums += some * (i < 0 ? some : load_double(row + k));
            }
            for (int64_t k = whole; k < width; k++)
                rest += (double)w[k] * (i < 0 ? (double)w[k] : row[k]);
            double total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
            *(i < 0 ? squared + j : products + i * n_weights + j) = total + rest;
        }
    }
    return 0;
}
