/* The loops of the drift guard; torchsdm.trust.guard has the same in Python. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* How many codes, whole numbers below n, come before each and are larger, and how many are equal to it.
   Counts are kept in a Fenwick tree: entry i has the codes in (i - lowbit(i), i]. */
int count_earlier(const int64_t *codes, int64_t n, int64_t *larger, int64_t *equal) {
    int64_t *tree = calloc(2 * n + 1, sizeof(int64_t));
    if (!tree)
        return -1;
    int64_t *seen = tree + n + 1;
    for (int64_t t = 0; t < n; t++) {
        int64_t not_larger = 0;
        for (int64_t i = codes[t] + 1; i > 0; i -= i & -i)
            not_larger += tree[i];
        larger[t] = t - not_larger, equal[t] = seen[codes[t]]++;
        for (int64_t i = codes[t] + 1; i <= n; i += i & -i)
            tree[i] += 1;
    }
    free(tree);
    return 0;
}

/* r_t, the money not yet on any bet after t inputs. */
static double reserve_after(int64_t t) { return t == 0 ? 1.0 : 0.5 * pow((double)t + 1.0, -0.2); }

/* log(e^a + e^b) */
static double log_add(double a, double b) { return (a > b ? a : b) + log1p(exp(-fabs(a - b))); }

/* Play the p-values (n_signals, n) of the inputs after `n_seen` on bets (n_bets, 2). */
int play(const double *p, int64_t n_signals, int64_t n, int64_t n_seen, const double *bets, int64_t n_bets,
         double held_back, double *log_bets, double *log_martingales) {
    for (int64_t i = 0; i < n; i++) {
        double reserve = reserve_after(n_seen + i + 1);
        double log_stake = log((reserve_after(n_seen + i) - reserve) / (double)n_bets); /* log(w_t / K) */
        for (int64_t signal = 0; signal < n_signals; signal++) {
            double x = p[signal * n + i], log_total = log(reserve);
            for (int64_t k = 0; k < n_bets; k++) {
                double a = bets[2 * k], b = bets[2 * k + 1], *money = log_bets + signal * n_bets + k;
                double f = held_back + (1 - held_back) * a * b * pow(x, a - 1) * pow(1 - x, b - 1);
                *money = log_add(*money, log_stake) + log(f);
                log_total = log_add(log_total, *money);
            }
            log_martingales[signal * n + i] = log_total;
        }
    }
    return 0;
}
