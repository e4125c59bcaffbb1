/* What matching does with a tile of products while it is in cache (torchsdm.matching._tiles).

   A tile has float32 products of queries (rows) with support points (columns). With them,

       lower_j + low_i - factor_i p_ij  <=  scaled squared distance  <=  upper_j + high_i - factor_i p_ij

   (torchsdm.matching._bounds). Vector instructions scan the rows with these bounds; only pairs that they leave open are
   decided by the distance itself. torchsdm.matching._tiles does the same in torch operations.

   Every function touches only the rows from `begin` to `end`, so threads can share a tile. A row that would have more
   than `limit` distances measured is left to tighter bounds. */

#include <float.h>
#include <stdlib.h>

#include "distance.h"

enum { CACHED_CHUNKS = 8, LONGEST_CHUNK = 256 }; /* the bounds of these chunks stay in the first-level cache */

typedef struct {
    const float *products; /* of all rows with the columns `start` to `stop`; transposed: of columns with rows */
    int64_t stride;        /* from one row of products to the next */
    int64_t offset;        /* where the tile starts in a row of products */
    int64_t start, stop;
    int64_t transposed;
    int64_t chunk; /* columns that are scanned together */
    int64_t limit; /* distances that may be measured for a row */
    double scale;  /* multiplies a distance before it is compared with the bounds */
} tile_t;

typedef struct {
    points_t points;
    const int64_t *index; /* the position of each row's query in points */
    const int64_t *own;   /* the column that is the query itself */
    const int32_t *predictions;
    const float *factor, *low, *high;
} rows_t;

typedef struct {
    points_t points;
    int64_t start;         /* the support index of the first point */
    const int64_t *index;  /* the position of each column's point in points */
    const int32_t *groups; /* the class that the point can vouch for, or -1 */
    const float *lower, *upper;
} columns_t;

typedef struct {
    double *nearest_distance;
    int64_t *nearest_index;
    double *boundary_distance; /* the first non-match */
    int64_t *boundary_index;
    int64_t *count; /* matches before the boundary */
    uint8_t *left;  /* whether a row is left to tighter bounds */
    double *neighbor_distance;
    int64_t *neighbor_index;
    int64_t k;
} found_t;

/* A query and its distances to columns, measured when they are needed. */
typedef struct {
    const rows_t *rows;
    const columns_t *columns;
    int64_t row;
    int is_loaded;
    double *query;
} measure_t;

static double measured(measure_t *measure, int64_t at) {
    if (!measure->is_loaded) {
        copy_point(&measure->rows->points, measure->rows->index[measure->row], measure->query);
        measure->is_loaded = 1;
    }
    return distance(measure->query, &measure->columns->points, at);
}

static inline int is_before(double distance, int64_t index, double other, int64_t other_index) {
    return distance < other || (distance == other && index < other_index);
}

/* A float32 not below the scaled square of a distance; the largest if that is infinite, as bounds are finite. */
static inline float squared_above(double distance, double scale) {
    double square = (distance * scale) * (distance * scale) * (1 + 0x1p-22);
    return square < FLT_MAX ? (float)square : FLT_MAX;
}

/* A float32 not above the scaled square of a distance. */
static inline float squared_below(double distance, double scale) {
    return (float)((distance * scale) * (distance * scale) * (1 - 0x1p-22));
}

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t n_chunks_of(const tile_t *tile) {
    return (tile->stop - tile->start + tile->chunk - 1) / tile->chunk;
}

static inline int32_t bits_of(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(int32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The lower bounds of row i from column `first` to `last`, clipped at 0. */
static inline void lower_bounds(const tile_t *tile, const rows_t *rows, const columns_t *columns, int64_t i,
                                int64_t first, int64_t last, float *restrict bounds) {
    const float *lower = columns->lower + first;
    float low = rows->low[i], factor = rows->factor[i];
    int64_t at = first - tile->start, n = last - first;
    if (tile->transposed) {
        const float *p = tile->products + at * tile->stride + tile->offset + i;
        for (int64_t j = 0; j < n; j++) {
            float bound = (lower[j] + low) - factor * p[j * tile->stride];
            bounds[j] = bound > 0 ? bound : 0;
        }
    } else {
        const float *p = tile->products + i * tile->stride + tile->offset + at;
        for (int64_t j = 0; j < n; j++) {
            float bound = (lower[j] + low) - factor * p[j];
            bounds[j] = bound > 0 ? bound : 0;
        }
    }
}

/* The smallest lower bound among non-matches and among matches in each chunk of each row.

   Bounds are clipped at 0 and compared as integers: the bits of floats that are not negative are in the same order, and
   compilers turn an integer minimum into vector instructions. */
static void lows_across(const tile_t *tile, const rows_t *rows, const columns_t *columns, float *other_lows,
                        float *match_lows, int64_t begin, int64_t end) {
    int64_t n_chunks = n_chunks_of(tile), cached = CACHED_CHUNKS * tile->chunk;
    const int32_t infinite = bits_of(INFINITY);
    for (int64_t first = tile->start; first < tile->stop; first += cached) {
        int64_t last = smaller(first + cached, tile->stop);
        for (int64_t i = begin; i < end; i++) {
            const float *p = tile->products + i * tile->stride + tile->offset - tile->start;
            float low = rows->low[i], factor = rows->factor[i];
            int32_t prediction = rows->predictions[i];
            for (int64_t start = first; start < last; start += tile->chunk) {
                int64_t stop = smaller(start + tile->chunk, last), c = (start - tile->start) / tile->chunk;
                int32_t other = infinite, match = infinite;
                for (int64_t j = start; j < stop; j++) {
                    float bound = (columns->lower[j] + low) - factor * p[j];
                    int32_t bits = bits_of(bound > 0 ? bound : 0);
                    int is_match = columns->groups[j] == prediction;
                    int32_t as_other = is_match ? infinite : bits, as_match = is_match ? bits : infinite;
                    other = as_other < other ? as_other : other;
                    match = as_match < match ? as_match : match;
                }
                other_lows[(i - begin) * n_chunks + c] = float_of(other);
                match_lows[i * n_chunks + c] = float_of(match);
            }
        }
    }
}

/* The same for a transposed tile: many rows at once, one column after the other. */
static void lows_down(const tile_t *tile, const rows_t *rows, const columns_t *columns, float *other_lows,
                      float *match_lows, int64_t begin, int64_t end) {
    enum { STRIPE = 256 };
    int64_t n_chunks = n_chunks_of(tile);
    const int32_t infinite = bits_of(INFINITY);
    int32_t other[STRIPE], match[STRIPE];
    for (int64_t top = begin; top < end; top += STRIPE) {
        int64_t n = smaller(STRIPE, end - top);
        const float *low = rows->low + top, *factor = rows->factor + top;
        const int32_t *predictions = rows->predictions + top;
        for (int64_t c = 0; c < n_chunks; c++) {
            int64_t first = tile->start + c * tile->chunk, last = smaller(first + tile->chunk, tile->stop);
            for (int64_t i = 0; i < n; i++)
                other[i] = match[i] = infinite;
            for (int64_t j = first; j < last; j++) {
                const float *p = tile->products + (j - tile->start) * tile->stride + tile->offset + top;
                float lower = columns->lower[j];
                int32_t group = columns->groups[j];
                for (int64_t i = 0; i < n; i++) {
                    float bound = (lower + low[i]) - factor[i] * p[i];
                    int32_t bits = bits_of(bound > 0 ? bound : 0);
                    int is_match = predictions[i] == group;
                    int32_t as_other = is_match ? infinite : bits, as_match = is_match ? bits : infinite;
                    other[i] = as_other < other[i] ? as_other : other[i];
                    match[i] = as_match < match[i] ? as_match : match[i];
                }
            }
            for (int64_t i = 0; i < n; i++) {
                other_lows[(top + i - begin) * n_chunks + c] = float_of(other[i]);
                match_lows[(top + i) * n_chunks + c] = float_of(match[i]);
            }
        }
    }
}

/* The chunk with the smallest bound, if that is within the limit, else -1. */
static int64_t best_within(const float *lows, int64_t n, float limit) {
    int64_t best = -1;
    for (int64_t c = 0; c < n; c++)
        if (lows[c] <= limit)
            limit = lows[c], best = c;
    return best;
}

/* Measure the points of a chunk that may come first: those with the bound `best`, then those still open.
   Returns how many distances were measured; stops once they are more than `limit`. */
static int64_t look(const tile_t *tile, measure_t *measure, const found_t *found, int64_t c, float best,
                    int64_t limit) {
    const rows_t *rows = measure->rows;
    const columns_t *columns = measure->columns;
    int64_t i = measure->row, n_measured = 0;
    int64_t first = tile->start + c * tile->chunk, last = smaller(first + tile->chunk, tile->stop);
    float bounds[LONGEST_CHUNK];
    lower_bounds(tile, rows, columns, i, first, last, bounds);
    float to_boundary = squared_above(found->boundary_distance[i], tile->scale);
    float to_nearest = squared_above(found->nearest_distance[i], tile->scale);
    for (int pick_best = 1; pick_best >= 0; pick_best--) {
        for (int64_t j = first; j < last; j++) {
            float bound = bounds[j - first];
            if ((bound == best) != pick_best || bound > to_boundary || j == rows->own[i])
                continue;
            int is_match = columns->groups[j] == rows->predictions[i];
            if (is_match && bound > to_nearest)
                continue;
            if (n_measured++ >= limit)
                return n_measured;
            int64_t at = columns->index[j], index = columns->start + at;
            double d = measured(measure, at);
            if (is_before(d, index, found->nearest_distance[i], found->nearest_index[i])) {
                found->nearest_distance[i] = d, found->nearest_index[i] = index;
                to_nearest = squared_above(d, tile->scale);
            }
            if (!is_match && is_before(d, index, found->boundary_distance[i], found->boundary_index[i])) {
                found->boundary_distance[i] = d, found->boundary_index[i] = index;
                to_boundary = squared_above(d, tile->scale);
            }
        }
    }
    return n_measured;
}

/* Update the nearest point and the first non-match of each row with a tile.
   `match_lows` (n, chunks) receives the smallest lower bound of the matches in each chunk, for count_matches. */
int find_first(const tile_t *tile, const rows_t *rows, const columns_t *columns, const found_t *found,
               float *match_lows, int64_t begin, int64_t end) {
    int64_t n_chunks = n_chunks_of(tile);
    float *other_lows = malloc(((end - begin) * n_chunks + 1) * sizeof(float));
    double *query = malloc((columns->points.width + 1) * sizeof(double));
    if (!other_lows || !query) {
        free(other_lows), free(query);
        return -1;
    }
    if (tile->transposed)
        lows_down(tile, rows, columns, other_lows, match_lows, begin, end);
    else
        lows_across(tile, rows, columns, other_lows, match_lows, begin, end);
    for (int64_t i = begin; i < end; i++) {
        const float *others = other_lows + (i - begin) * n_chunks, *matches = match_lows + i * n_chunks;
        if (found->left[i])
            continue;
        float to_boundary = squared_above(found->boundary_distance[i], tile->scale);
        float to_nearest = squared_above(found->nearest_distance[i], tile->scale);
        int64_t best_other = best_within(others, n_chunks, to_boundary);
        int64_t best_match = best_within(matches, n_chunks, to_nearest);
        if (best_other < 0 && best_match < 0)
            continue;
        measure_t measure = {rows, columns, i, 0, query};
        int64_t open = tile->limit;
        /* The most promising points first: with their distances known, few chunks remain to look at. */
        for (int64_t step = 0; step < n_chunks + 2 && open >= 0; step++) {
            int64_t c = step - 2;
            float best = -1; /* never a bound */
            if (step == 0 && best_other >= 0)
                c = best_other, best = others[c];
            else if (step == 1 && best_match >= 0)
                c = best_match, best = matches[c];
            else if (c < 0 || c == best_other || c == best_match)
                continue;
            if (others[c] > to_boundary && matches[c] > to_nearest)
                continue;
            open -= look(tile, &measure, found, c, best, open);
            to_boundary = squared_above(found->boundary_distance[i], tile->scale);
            to_nearest = squared_above(found->nearest_distance[i], tile->scale);
        }
        found->left[i] = open < 0;
    }
    free(other_lows), free(query);
    return 0;
}

/* Which matches of a row are certainly before the boundary, and which may be: the number of the former, and of those
   that are only possible. */
static inline void count_chunk(const float *p, const float *lower, const float *upper, const int32_t *groups, int64_t n,
                               float factor, float low, float high, int32_t prediction, float inside, float outside,
                               int64_t *n_certain, int64_t *n_open) {
    int32_t certain = 0, possible = 0;
    for (int64_t j = 0; j < n; j++) {
        int is_match = groups[j] == prediction;
        certain += ((upper[j] + high) - factor * p[j] < inside) & is_match;
        possible += ((lower[j] + low) - factor * p[j] <= outside) & is_match;
    }
    *n_certain += certain;
    *n_open += possible - certain;
}

/* The matches of a chunk before the boundary that the bounds leave open. */
static int64_t count_open(const tile_t *tile, measure_t *measure, const found_t *found, int64_t c, float inside,
                          float outside) {
    const rows_t *rows = measure->rows;
    const columns_t *columns = measure->columns;
    int64_t i = measure->row, n_before = 0;
    int64_t first = tile->start + c * tile->chunk, last = smaller(first + tile->chunk, tile->stop);
    for (int64_t j = first; j < last; j++) {
        if (columns->groups[j] != rows->predictions[i] || j == rows->own[i])
            continue;
        int64_t at = tile->transposed ? (j - tile->start) * tile->stride + tile->offset + i
                                      : i * tile->stride + tile->offset + j - tile->start;
        float product = rows->factor[i] * tile->products[at];
        int is_certain = (columns->upper[j] + rows->high[i]) - product < inside;
        if (!is_certain && (columns->lower[j] + rows->low[i]) - product <= outside) {
            int64_t index = columns->start + columns->index[j];
            double d = measured(measure, columns->index[j]);
            n_before += is_before(d, index, found->boundary_distance[i], found->boundary_index[i]);
        }
    }
    return n_before;
}

/* How many matches of the rows `begin` to `end` of a transposed tile are certain and open: one column after the other.*/
static void count_down(const tile_t *tile, const rows_t *rows, const columns_t *columns, const float *inside,
                       const float *outside, int32_t *n_certain, int32_t *n_open, int64_t begin, int64_t end) {
    int64_t n = end - begin;
    const float *low = rows->low + begin, *high = rows->high + begin, *factor = rows->factor + begin;
    const int32_t *predictions = rows->predictions + begin;
    for (int64_t i = 0; i < n; i++)
        n_certain[i] = n_open[i] = 0;
    for (int64_t j = tile->start; j < tile->stop; j++) {
        const float *p = tile->products + (j - tile->start) * tile->stride + tile->offset + begin;
        float lower = columns->lower[j], upper = columns->upper[j];
        int32_t group = columns->groups[j];
        for (int64_t i = 0; i < n; i++) {
            int is_match = predictions[i] == group;
            int is_certain = ((upper + high[i]) - factor[i] * p[i] < inside[i]) & is_match;
            int is_possible = ((lower + low[i]) - factor[i] * p[i] <= outside[i]) & is_match;
            n_certain[i] += is_certain;
            n_open[i] += is_possible & !is_certain;
        }
    }
}

/* Add to each row's count the matches of a tile that come before the row's boundary, which must be final. */
int count_matches(const tile_t *tile, const rows_t *rows, const columns_t *columns, const found_t *found,
                  const float *match_lows, int64_t begin, int64_t end) {
    int64_t n_chunks = n_chunks_of(tile), n = end - begin;
    float *inside = malloc((2 * n + 1) * sizeof(float));
    int32_t *n_certain = malloc((2 * n + 1) * sizeof(int32_t));
    double *query = malloc((columns->points.width + 1) * sizeof(double));
    if (!inside || !n_certain || !query) {
        free(inside), free(n_certain), free(query);
        return -1;
    }
    float *outside = inside + n;
    int32_t *n_open = n_certain + n;
    for (int64_t i = 0; i < n; i++) {
        inside[i] = squared_below(found->boundary_distance[begin + i], tile->scale);
        outside[i] = squared_above(found->boundary_distance[begin + i], tile->scale);
    }
    if (tile->transposed)
        count_down(tile, rows, columns, inside, outside, n_certain, n_open, begin, end);
    for (int64_t i = begin; i < end; i++) {
        const float *lows = match_lows + i * n_chunks;
        float within = outside[i - begin];
        int64_t certain = 0, open = 0;
        if (found->left[i])
            continue;
        if (tile->transposed) {
            certain = n_certain[i - begin], open = n_open[i - begin];
        } else {
            for (int64_t c = 0; c < n_chunks; c++) {
                int64_t at = c * tile->chunk, first = tile->start + at;
                if (lows[c] <= within)
                    count_chunk(tile->products + i * tile->stride + tile->offset + at, columns->lower + first,
                                columns->upper + first, columns->groups + first,
                                smaller(tile->chunk, tile->stop - first), rows->factor[i], rows->low[i], rows->high[i],
                                rows->predictions[i], inside[i - begin], within, &certain, &open);
            }
        }
        if (open > tile->limit) {
            found->left[i] = 1;
            continue;
        }
        found->count[i] += certain;
        measure_t measure = {rows, columns, i, 0, query};
        for (int64_t c = 0; c < n_chunks && open > 0; c++)
            if (lows[c] <= within)
                found->count[i] += count_open(tile, &measure, found, c, inside[i - begin], within);
    }
    free(inside), free(n_certain), free(query);
    return 0;
}

/* Put a point into a row that is sorted by (distance, index); the last one drops out. */
static void insert(double *distances, int64_t *indices, int64_t k, double distance, int64_t index) {
    int64_t at = k - 1;
    if (!is_before(distance, index, distances[at], indices[at]))
        return;
    for (; at > 0 && is_before(distance, index, distances[at - 1], indices[at - 1]); at--)
        distances[at] = distances[at - 1], indices[at] = indices[at - 1];
    distances[at] = distance, indices[at] = index;
}

/* Put a bound into a sorted row; the largest one drops out. */
static void insert_bound(float *bounds, int64_t k, float bound) {
    int64_t at = k - 1;
    if (!(bound < bounds[at]))
        return;
    for (; at > 0 && bound < bounds[at - 1]; at--)
        bounds[at] = bounds[at - 1];
    bounds[at] = bound;
}

/* Update the k nearest points of each row with a tile, which is not transposed.
   The k-th smallest upper bound limits which points may be among them, so hardly more than k are measured. */
int find_neighbors(const tile_t *tile, const rows_t *rows, const columns_t *columns, const found_t *found,
                   int64_t begin, int64_t end) {
    int64_t k = found->k, width = tile->stop - tile->start;
    if (k == 0)
        return 0;
    double *query = malloc((columns->points.width + 1) * sizeof(double));
    int64_t *candidates = malloc((width + 1) * sizeof(int64_t));
    float *smallest = malloc((k + 1) * sizeof(float));
    if (!query || !candidates || !smallest) {
        free(query), free(candidates), free(smallest);
        return -1;
    }
    for (int64_t i = begin; i < end; i++) {
        double *distances = found->neighbor_distance + i * k;
        int64_t *indices = found->neighbor_index + i * k;
        const float *p = tile->products + i * tile->stride + tile->offset - tile->start;
        float factor = rows->factor[i], low = rows->low[i], high = rows->high[i];
        float within = squared_above(distances[k - 1], tile->scale);
        int64_t n_candidates = 0, n_open = 0;
        if (found->left[i])
            continue;
        for (int64_t j = 0; j < k; j++)
            smallest[j] = INFINITY;
        for (int64_t first = tile->start; first < tile->stop; first += tile->chunk) {
            int64_t last = smaller(first + tile->chunk, tile->stop);
            int32_t n_possible = 0;
            for (int64_t j = first; j < last; j++)
                n_possible += (columns->lower[j] + low) - factor * p[j] <= within;
            for (int64_t j = first; j < last && n_possible; j++) {
                if (!((columns->lower[j] + low) - factor * p[j] <= within) || j == rows->own[i])
                    continue;
                candidates[n_candidates++] = j;
                insert_bound(smallest, k, (columns->upper[j] + high) - factor * p[j]);
                double largest = smallest[k - 1] * (1 + 0x1p-22);
                float narrower = largest < FLT_MAX ? (float)largest : FLT_MAX;
                within = narrower < within ? narrower : within;
            }
        }
        for (int64_t c = 0; c < n_candidates; c++)
            if ((columns->lower[candidates[c]] + low) - factor * p[candidates[c]] <= within)
                candidates[n_open++] = candidates[c];
        if (n_open - k > tile->limit) {
            found->left[i] = 1;
            continue;
        }
        measure_t measure = {rows, columns, i, 0, query};
        for (int64_t c = 0; c < n_open; c++) {
            int64_t j = candidates[c], at = columns->index[j];
            if (!((columns->lower[j] + low) - factor * p[j] <= within))
                continue;
            insert(distances, indices, k, measured(&measure, at), columns->start + at);
            float narrower = squared_above(distances[k - 1], tile->scale);
            within = narrower < within ? narrower : within;
        }
    }
    free(query), free(candidates), free(smallest);
    return 0;
}
