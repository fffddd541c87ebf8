/* Matrix products and convolutions of many small networks, on the widest vectors that the processor has.

   This file includes itself, once for every width. The batch is innermost in images: what one weight of a kernel meets
   in a row is a run of memory, so that a convolution is a product whose rows lie at offsets from a table, without any
   copies. Every client is a call of its own: its numbers cannot depend on who else is there. Vectors may be read beyond
   the end of a row (never written): tensors have some numbers to spare at their end. */

#ifndef LANES

#include <stdint.h>
#include <string.h>

/* Where in two vectors the lower halves of blocks lie. */
#define AT(l, half) ((l) / (half) * 2 * (half) + (l) % (half))
#define AT4(l, half) AT(l, half), AT(l + 1, half), AT(l + 2, half), AT(l + 3, half)
#define AT8(half) AT4(0, half), AT4(4, half)
#define AT16(half) AT8(half), AT4(8, half), AT4(12, half)
#define HALVE(half)                                                                                       \
    for (int t = 0; t < half; t++) {                                                                      \
        const ints low = {MASK(half)}, high = low + half;                                                 \
        vec one = sum[2 * t], two = sum[2 * t + 1];                                                       \
        sum[t] = __builtin_shuffle(one, two, low) + __builtin_shuffle(one, two, high);                    \
    }
#define SPARE 16 /* numbers at the end of tensors (places.py) and of rows of our own */
#define INLINE static inline __attribute__((always_inline))
#define PASTE_(name, lanes) name##_##lanes
#define PASTE(name, lanes) PASTE_(name, lanes)
#define NAME(name) PASTE(name, LANES)

/* c = keep * c + a b, of matrices [m, k], [k, n], [m, n]. Rows of c are runs of memory, and those of b or of its
   transpose are. `turned` has room for b. */
typedef struct {
    int64_t clients, m, n, k;
    const float *a, *b;
    float *c, *turned;
    int64_t a_client, b_client, c_client, a_m, b_n, c_m;
    const int32_t *a_at, *b_at, *turned_at; /* [k]: where their k-th column or row begins */
} Product;

/* A convolution of stride 1, and the maxima of blocks of its numbers. */
typedef struct {
    int64_t clients, outputs, channels, kernel_high, kernel_wide, batch;
    int64_t high, wide, pool_high, pool_wide; /* of the convolution, and of a block */
    const float *x, *w, *g_out;
    float *g_x, *g_w, *out; /* g_x: NULL where nobody asks for it */
    int32_t *which;         /* of each block's numbers was the largest */
    float *made, *g_made;   /* the convolution's own numbers: of a row of blocks; the gradients of all, amid zeros */
    int64_t x_client, x_channel, x_row, w_client, w_row, out_client, out_channel, g_channel, g_row;
    const int32_t *w_at, *x_at;    /* [weights]: of the numbers that make an output */
    const int32_t *back_at, *g_at; /* [kernel_high, outputs, kernel_wide]: of those that make an input's gradient */
} Convolution;

#define LANES 4
#define MASK(half) AT4(0, half)
#define ROWS 4
#define DOT_ROWS 2
#define TARGET
#include "kernel.c"

#if defined(__x86_64__)
#undef LANES
#undef MASK
#undef DOT_ROWS
#undef TARGET
#define LANES 8
#define MASK AT8
#define DOT_ROWS 2
#define TARGET __attribute__((target("avx2,fma")))
#include "kernel.c"

#undef LANES
#undef MASK
#undef ROWS
#undef DOT_ROWS
#undef TARGET
#define LANES 16
#define MASK AT16
#define ROWS 8
#define DOT_ROWS 4
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma")))
#include "kernel.c"

#endif

/* The widest vectors that this processor has. */
int lanes(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return 16;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 8;
#endif
    return 4;
}

#else /* once for every width */

#define vec NAME(vec)
#define ints NAME(ints)
#define VECS 3
#define DOT_COLUMNS (LANES / DOT_ROWS)

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* The next piece of what is left, in as many pieces of at most so many as are needed, all about as large. */
INLINE int NAME(piece)(int64_t left, int most) {
    int64_t pieces = (left + most - 1) / most;
    return (int)((left + pieces - 1) / pieces);
}

/* ---- sums of rows: c[m][n] = bias[m] + keep * c[m][n] + the sum over k of a[m * a_m + a_at[k]] * b[b_at[k] + n] */

typedef struct {
    const float *a, *b, *bias;
    float *c, keep;
    int64_t a_m, c_m, bias_m;
    const int32_t *a_at, *b_at;
    int count;
} NAME(Rows);

TARGET INLINE void NAME(some_rows)(NAME(Rows) r, int rows, int vecs, int64_t n) {
    vec sum[ROWS][VECS];
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < vecs; v++) sum[m][v] = (vec){} + (r.bias ? r.bias[m * r.bias_m] : 0.0f);
    for (int k = 0; k < r.count; k++) {
        const float *a = r.a + r.a_at[k], *b = r.b + r.b_at[k];
        vec x[VECS];
        for (int v = 0; v < vecs; v++) x[v] = *(const vec *)(b + v * LANES);
        for (int m = 0; m < rows; m++)
            for (int v = 0; v < vecs; v++) sum[m][v] += a[m * r.a_m] * x[v];
    }
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < vecs; v++) {
            float *c = r.c + m * r.c_m + v * LANES;
            int64_t left = n - v * LANES;
            if (left >= LANES) {
                if (r.keep) sum[m][v] += r.keep * *(vec *)c;
                *(vec *)c = sum[m][v];
            } else {
                for (int64_t l = 0; l < left; l++) c[l] = sum[m][v][l] + (r.keep ? r.keep * c[l] : 0.0f);
            }
        }
}

#define CASE(rows)                                          \
    case rows:                                              \
        if (vecs == 1) NAME(some_rows)(r, rows, 1, n);      \
        else if (vecs == 2) NAME(some_rows)(r, rows, 2, n); \
        else NAME(some_rows)(r, rows, 3, n);                \
        break;

TARGET static void NAME(rows)(NAME(Rows) whole, int64_t m_all, int64_t n_all) {
    int vecs, rows;
    for (int64_t n = n_all, at = 0; n > 0; n -= vecs * LANES, at += vecs * LANES) {
        vecs = NAME(piece)((n + LANES - 1) / LANES, VECS);
        for (int64_t m = 0; m < m_all; m += rows) {
            NAME(Rows) r = whole;
            rows = NAME(piece)(m_all - m, ROWS);
            r.a += m * r.a_m, r.b += at, r.c += m * r.c_m + at, r.bias += r.bias ? m * r.bias_m : 0;
            switch (rows) {
                CASE(1) CASE(2) CASE(3) CASE(4)
#if ROWS > 4
                CASE(5) CASE(6) CASE(7) CASE(8)
#endif
            }
        }
    }
}
#undef CASE

/* ---- products of runs:
   c[m][n] = keep * c[m][n] + the sum over h, i of a[m * a_m + h * a_h + i] * b[b_at[n] + h * b_h + i] */

typedef struct {
    const float *a, *b;
    float *c, keep;
    int64_t a_m, a_h, b_h, b_n, c_m, high, wide;
    const int32_t *b_at; /* NULL: b_n apart */
} NAME(Dots);

TARGET INLINE void NAME(some_dots)(NAME(Dots) d, int rows, int columns) {
    vec sum[LANES];
    for (int t = 0; t < LANES; t++) sum[t] = (vec){};
    const float *b[DOT_COLUMNS];
    for (int n = 0; n < columns; n++) b[n] = d.b + (d.b_at ? d.b_at[n] : n * d.b_n);
    for (int64_t h = 0; h < d.high; h++)
        for (int64_t i = 0; i < d.wide; i += LANES) {
            vec x[DOT_ROWS];
            for (int m = 0; m < rows; m++) x[m] = *(const vec *)(d.a + m * d.a_m + h * d.a_h + i);
            if (i + LANES > d.wide) { /* neither may count beyond its end */
                ints on;
                for (int l = 0; l < LANES; l++) on[l] = i + l < d.wide ? -1 : 0;
                for (int m = 0; m < rows; m++) x[m] = (vec)((ints)x[m] & on);
                for (int n = 0; n < columns; n++) {
                    vec y = (vec)((ints)*(const vec *)(b[n] + h * d.b_h + i) & on);
                    for (int m = 0; m < rows; m++) sum[m * DOT_COLUMNS + n] += x[m] * y;
                }
                break;
            }
            for (int n = 0; n < columns; n++) {
                vec y = *(const vec *)(b[n] + h * d.b_h + i);
                for (int m = 0; m < rows; m++) sum[m * DOT_COLUMNS + n] += x[m] * y;
            }
        }
    /* Add up the lanes of all sums at once: halves of two of them make one, with half as many numbers of each. */
#if LANES > 8
    HALVE(8)
#endif
#if LANES > 4
    HALVE(4)
#endif
    HALVE(2) HALVE(1)
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < columns; n++) {
            float *c = d.c + m * d.c_m + n;
            *c = sum[0][m * DOT_COLUMNS + n] + (d.keep ? d.keep * *c : 0.0f);
        }
}

#define CASE(rows)                                                  \
    case rows:                                                      \
        if (columns == 1) NAME(some_dots)(d, rows, 1);              \
        else if (columns == 2) NAME(some_dots)(d, rows, 2);         \
        else if (columns == 3) NAME(some_dots)(d, rows, DOT_COLUMNS > 3 ? 3 : 2); \
        else NAME(some_dots)(d, rows, DOT_COLUMNS);                 \
        break;

TARGET static void NAME(dots)(NAME(Dots) whole, int64_t m_all, int64_t n_all) {
    int rows, columns;
    for (int64_t n = 0; n < n_all; n += columns) {
        columns = NAME(piece)(n_all - n, DOT_COLUMNS);
        for (int64_t m = 0; m < m_all; m += rows) {
            NAME(Dots) d = whole;
            rows = NAME(piece)(m_all - m, DOT_ROWS);
            d.a += m * d.a_m, d.c += m * d.c_m + n;
            if (d.b_at) d.b_at += n;
            else d.b += n * d.b_n;
            switch (rows) {
                CASE(1) CASE(2)
#if DOT_ROWS > 2
                CASE(3) CASE(4)
#endif
            }
        }
    }
}
#undef CASE

/* ---- what is asked for */

TARGET void NAME(multiply)(const Product *p, float keep) {
    for (int64_t client = 0; client < p->clients; client++) {
        const float *a = p->a + client * p->a_client, *b = p->b + client * p->b_client;
        float *c = p->c + client * p->c_client;
        if (p->b_n != 1 && p->k >= 2 * p->m) {
            NAME(dots)((NAME(Dots)){a, b, c, keep, p->a_m, 0, 0, p->b_n, p->c_m, 1, p->k, 0}, p->m, p->n);
            continue;
        }
        const int32_t *b_at = p->b_at;
        if (p->b_n != 1) { /* less work than to add up the lanes of every number */
            for (int64_t n = 0; n < p->n; n++)
                for (int64_t k = 0; k < p->k; k++) p->turned[k * p->n + n] = b[n * p->b_n + k];
            b = p->turned, b_at = p->turned_at;
        }
        NAME(rows)((NAME(Rows)){a, b, 0, c, keep, p->a_m, p->c_m, 0, p->a_at, b_at, (int)p->k}, p->m, p->n);
    }
}

/* The largest number of each block of a row, and which one it was; the first one where several are. A vector may reach
   beyond its block: what it spoils there is written later, so that only the last one must not. */
TARGET INLINE void NAME(take_largest)(const Convolution *c, int64_t o, int64_t to, int high, int wide) {
    int64_t run = c->wide * c->batch + SPARE, blocks = c->wide / wide;
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t at = 0; at < c->batch; at += LANES) {
            const float *first = c->made + o * run + block * wide * c->batch + at;
            vec most = *(const vec *)first;
            ints number = {};
            for (int q = 1; q < high * wide; q++) {
                vec y = *(const vec *)(first + q / wide * c->outputs * run + q % wide * c->batch);
                ints more = y > most;
                most = (vec)(((ints)y & more) | ((ints)most & ~more));
                number = (q & more) | (number & ~more);
            }
            float *out = c->out + to + block * c->batch + at;
            int32_t *which = c->which + to + block * c->batch + at;
            int64_t left = (blocks - block) * c->batch - at;
            if (left >= LANES) {
                *(vec *)out = most;
                *(ints *)which = number;
            } else {
                for (int64_t l = 0; l < left; l++) out[l] = most[l], which[l] = number[l];
            }
        }
}

/* The gradients of a row of blocks go to those numbers; zeros to the others. */
TARGET INLINE void NAME(give_back)(const Convolution *c, int64_t o, int64_t h, int64_t from, int high, int wide) {
    int64_t blocks = c->wide / wide;
    float *to = c->g_made + o * c->g_channel + h * high * c->g_row + (c->kernel_wide - 1) * c->batch;
    for (int64_t block = 0; block < blocks; block++)
        for (int q = 0; q < high * wide; q++)
            for (int64_t at = 0; at < c->batch; at += LANES) {
                vec g = *(const vec *)(c->g_out + from + block * c->batch + at);
                ints here = *(const ints *)(c->which + from + block * c->batch + at) == q;
                *(vec *)(to + q / wide * c->g_row + (block * wide + q % wide) * c->batch + at) = (vec)((ints)g & here);
            }
    for (int q = 0; q < high; q++) memset(to + q * c->g_row + blocks * wide * c->batch, 0, 4 * LANES);
}

#define FOR_BLOCKS(function, ...)                                                        \
    if (c->pool_high == 2) NAME(function)(__VA_ARGS__, 2, 2);                            \
    else if (c->pool_wide == 2) NAME(function)(__VA_ARGS__, 1, 2);                       \
    else NAME(function)(__VA_ARGS__, 1, 1)

TARGET void NAME(convolve)(const Convolution *c) {
    int64_t weights = c->channels * c->kernel_high * c->kernel_wide, run = c->wide * c->batch, stride = run + SPARE;
    for (int64_t client = 0; client < c->clients; client++)
        for (int64_t h = 0; h < c->high / c->pool_high; h++) {
            const float *w = c->w + client * c->w_client;
            for (int64_t q = 0; q < c->pool_high; q++) {
                const float *x = c->x + client * c->x_client + (h * c->pool_high + q) * c->x_row;
                float *to = c->made + q * c->outputs * stride;
                NAME(Rows) r = {w, x, w + weights, to, 0, c->w_row, stride, c->w_row, c->w_at, c->x_at, (int)weights};
                NAME(rows)(r, c->outputs, run);
            }
            for (int64_t o = 0; o < c->outputs; o++) {
                int64_t to = client * c->out_client + o * c->out_channel + h * (c->wide / c->pool_wide) * c->batch;
                FOR_BLOCKS(take_largest, c, o, to);
            }
        }
}

/* keep * before + all numbers of an output */
TARGET static float NAME(all_of)(const Convolution *c, int64_t o, float before, float keep) {
    vec total = {};
    for (int64_t h = 0; h < c->high; h++)
        for (int64_t i = 0; i < c->wide * c->batch; i += LANES)
            total += *(const vec *)(c->g_made + o * c->g_channel + h * c->g_row + (c->kernel_wide - 1) * c->batch + i);
    float sum = keep ? keep * before : 0;
    for (int l = 0; l < LANES; l++) sum += total[l];
    return sum;
}

TARGET void NAME(convolve_back)(const Convolution *c, float keep) {
    int64_t run = c->wide * c->batch, left = (c->kernel_wide - 1) * c->batch, per_row = c->outputs * c->kernel_wide;
    int64_t taps = c->kernel_high * c->kernel_wide, weights = c->channels * taps;
    for (int64_t client = 0; client < c->clients; client++) {
        const float *w = c->w + client * c->w_client, *x = c->x + client * c->x_client;
        float *g_w = c->g_w + client * c->w_client;
        for (int64_t o = 0; o < c->outputs; o++) {
            for (int64_t h = 0; h < c->high / c->pool_high; h++) {
                int64_t from = client * c->out_client + o * c->out_channel + h * (c->wide / c->pool_wide) * c->batch;
                FOR_BLOCKS(give_back, c, o, h, from);
            }
            float *bias = g_w + o * c->w_row + weights;
            *bias = NAME(all_of)(c, o, *bias, keep);
        }
        NAME(Dots) d = {c->g_made + left, x, g_w, keep, c->g_channel, c->g_row, c->x_row, 0, c->w_row, c->high, run, 0};
        d.b_at = c->x_at;
        NAME(dots)(d, c->outputs, weights);
        if (!c->g_x) continue;
        for (int64_t h = 0; h < c->high + c->kernel_high - 1; h++) { /* by those rows of the kernel that meet any */
            int64_t first = h < c->high ? 0 : h - c->high + 1, last = h < c->kernel_high ? h : c->kernel_high - 1;
            float *to = c->g_x + client * c->x_client + h * c->x_row;
            const int32_t *w_at = c->back_at + first * per_row, *g_at = c->g_at + first * per_row;
            int count = (int)((last - first + 1) * per_row);
            NAME(Rows) r = {w, c->g_made + h * c->g_row, 0, to, 0, taps, c->x_channel, 0, w_at, g_at, count};
            NAME(rows)(r, c->channels, run + left);
        }
    }
}
#undef FOR_BLOCKS

#undef vec
#undef ints
#undef VECS
#undef DOT_COLUMNS
#endif
