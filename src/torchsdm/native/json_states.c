/* Reads [[number, ...], ...] straight into float32 (torchsdm._json_states, which says why).

   The text ends with a brace, and nothing in rows of numbers goes on behind one: whoever reads them stops there. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FULL INT64_C(100000000000000000) /* 10^17: no digit is added from here on: it has more than a float64 */
#define EXACT (INT64_C(1) << 53)         /* integers up to here are float64 */
enum { UNUSUAL = -1, N_POWERS = 61 };

static const double POWERS[N_POWERS] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27, 1e28, 1e29, 1e30, 1e31,
    1e32, 1e33, 1e34, 1e35, 1e36, 1e37, 1e38, 1e39, 1e40, 1e41, 1e42, 1e43, 1e44, 1e45, 1e46, 1e47,
    1e48, 1e49, 1e50, 1e51, 1e52, 1e53, 1e54, 1e55, 1e56, 1e57, 1e58, 1e59, 1e60};

static inline int is_digit(uint8_t character) { return character >= '0' && character <= '9'; }

static inline int64_t skip_blanks(const uint8_t *text, int64_t at) {
    while (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t')
        at++;
    return at;
}

/* Whether eight characters are digits, 0x30 to 0x39: the upper half of each is 3, also when 6 is added. */
static inline int are_digits(uint64_t eight) {
    const uint64_t upper = 0xF0F0F0F0F0F0F0F0, threes = 0x3030303030303030;
    return (eight & upper) == threes && ((eight + 0x0606060606060606) & upper) == threes;
}

/* The number that eight digits are: neighbours are joined to pairs, pairs to fours, and these to the number. */
static inline int64_t number_of(uint64_t eight) {
    uint64_t pairs = (eight & 0x0F0F0F0F0F0F0F0F) * ((10 << 8) + 1) >> 8;
    uint64_t fours = (pairs & 0x00FF00FF00FF00FF) * ((100 << 16) + 1) >> 16;
    return (int64_t)((fours & 0x0000FFFF0000FFFF) * ((UINT64_C(10000) << 32) + 1) >> 32);
}

/* Read digits, until they end or the number of all of them is full. */
static inline int64_t read_fraction(const uint8_t *text, int64_t length, int64_t at, int64_t *digits) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (*digits < FULL / 10000000 && at + 8 <= length) {
        uint64_t eight;
        memcpy(&eight, text + at, sizeof eight);
        if (!are_digits(eight))
            break;
        *digits = 100000000 * *digits + number_of(eight), at += 8;
    }
#endif
    for (; *digits < FULL && is_digit(text[at]); at++)
        *digits = 10 * *digits + (text[at] - '0');
    return at;
}

/* Whether a float64 that is a few units in the last place off becomes the right float32: no midpoint is near. */
static inline int is_sure(double value) {
    const int64_t lost = (1 << 29) - 1, midpoint = 1 << 28, near = 16;
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return value > 1.2e-38 && value < 3.4e38 && llabs((bits & lost) - midpoint) > near;
}

/* Read a number of JSON's grammar: where it ends. */
static inline int64_t read_number(const uint8_t *text, int64_t length, int64_t at, float *number) {
    int is_negative = text[at] == '-', is_integer = 1;
    at += is_negative;
    int64_t start = at, digits = 0, exponent = 0;
    for (; digits < FULL && is_digit(text[at]); at++)
        digits = 10 * digits + (text[at] - '0');
    if (at == start || (text[start] == '0' && at > start + 1) || is_digit(text[at]))
        return UNUSUAL;
    if (text[at] == '.') {
        is_integer = 0, start = at + 1;
        at = read_fraction(text, length, start, &digits);
        exponent = start - at;
        while (is_digit(text[at])) /* digits are full: these change less than a unit in the last place of a float64 */
            at++;
        if (at == start)
            return UNUSUAL;
    }
    if (text[at] == 'e' || text[at] == 'E') {
        is_integer = 0, at++;
        int64_t sign = text[at] == '-' ? -1 : 1, given = 0;
        at += text[at] == '-' || text[at] == '+';
        start = at;
        for (; given < N_POWERS && is_digit(text[at]); at++)
            given = 10 * given + (text[at] - '0');
        if (at == start || is_digit(text[at]))
            return UNUSUAL;
        exponent += sign * given;
    }
    if (llabs(exponent) >= N_POWERS || (is_integer && digits > EXACT) || (is_negative && digits == 0))
        return UNUSUAL;
    double value = exponent < 0 ? (double)digits / POWERS[-exponent] : (double)digits * POWERS[exponent];
    if (digits != 0 && !is_sure(value))
        return UNUSUAL;
    *number = (float)(is_negative ? -value : value);
    return at;
}

/* Read rows of numbers from `at` on: where they end, how many rows there are, and how many numbers in each. */
int read_rows(const uint8_t *text, int64_t length, int64_t at, float *numbers, int64_t *result) {
    int64_t n = 0, n_rows = 0, width = 0;
    result[0] = UNUSUAL, result[1] = result[2] = 0;
    while (text[at] == (n_rows ? ',' : '[')) { /* before each row */
        int64_t first = n;
        at = skip_blanks(text, at + 1);
        while (text[at] == (n > first ? ',' : '[')) { /* before each number */
            at = read_number(text, length, skip_blanks(text, at + 1), numbers + n);
            if (at == UNUSUAL)
                return 0;
            n++, at = skip_blanks(text, at);
        }
        if (n_rows == 0)
            width = n - first;
        if (text[at] != ']' || n - first != width || width == 0)
            return 0;
        n_rows++, at = skip_blanks(text, at + 1);
    }
    if (n_rows && text[at] == ']')
        result[0] = at + 1, result[1] = n_rows, result[2] = width;
    return 0;
}
