/* Algorithm 1's pass over the candidates; torchsdm.core.region has the same in Python. */

#include <stdint.h>
#include <stdlib.h>

static int64_t threshold_index(int64_t n, double alpha) {
    int64_t index = (int64_t)((1 - alpha) * (double)n + 0.5e-9);
    return index < n - 1 ? index : n - 1;
}

int best_candidates(const double *rescaled_similarity, const double *truth, const int64_t *labels, int64_t n,
                    const double *alphas, int64_t n_classes, int64_t min_class_count, int64_t *sizes) {
    int64_t *n_points = calloc(3 * n_classes + 1, sizeof(int64_t));
    if (!n_points)
        return -1;
    int64_t *n_low = n_points + n_classes, *fails = n_points + 2 * n_classes;
    int64_t n_failing = n_classes, fewest = n_classes + 1, holds = 0, best = 0;
    for (int64_t c = 0; c < n_classes; c++)
        fails[c] = 1; /* a class without points fails */
    for (int64_t i = 0; i < n; i++) {
        int64_t c = labels[i];
        n_points[c] += 1;
        n_low[c] += truth[i] < alphas[c];
        int64_t now_fails = n_low[c] > threshold_index(n_points[c], alphas[c]) || n_points[c] < min_class_count;
        n_failing += now_fails - fails[c];
        fails[c] = now_fails;
        int is_whole = i + 1 == n || rescaled_similarity[i + 1] < rescaled_similarity[i];
        if (is_whole && n_failing <= fewest) {
            fewest = n_failing, best = i + 1;
            if (n_failing == 0)
                holds = i + 1;
        }
    }
    sizes[0] = holds, sizes[1] = best;
    free(n_points);
    return 0;
}
