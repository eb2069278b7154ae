/* In bfloat16 with AMX or AVX512-BF16: y += x @ weight.T, and the way back through a layer. x is
   rounded, sums are float. For AMX, panels of 32 outputs hold blocks of 32 inputs, as two tiles of
   16 outputs whose rows are pairs of inputs; else they are those of _product.h, with a pair in place
   of a float. Each value is summed in one order, whatever rows are beside its own. */

#define BLOCK 32
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bf16")
INLINE __m512 multiply_add_two(__m512 x, __m512 weights, __m512 sums)
{
    return _mm512_dpbf16_ps(sums, (__m512bh)x, (__m512bh)weights);
}
#define NAMED(FUNCTION) FUNCTION##_pairs
#define VECTOR __m512
#define LANES 16
#define BLOCK_ROWS 8
#define LOAD _mm512_loadu_ps
#define LOAD_HALF LOAD
#define EVERYWHERE _mm512_set1_ps
#define MULTIPLY_ADD multiply_add_two
#include "_product.h"
#pragma GCC pop_options

/* GCC does not know that the functions of tiles read and write memory, nor that floats are pairs. */
#define BARRIER __asm__ volatile("" ::: "memory")

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bf16,amx-tile,amx-bf16")
static void round_rows(const float *x, Py_ssize_t n, Py_ssize_t depth, uint16_t *low)
{
    for (Py_ssize_t row = 0; row < n; row++, x += depth)
        for (Py_ssize_t k = 0; k < (depth + BLOCK - 1) / BLOCK * BLOCK; k += 16) {
            __mmask16 mask = depth - k >= 16 ? 0xffff : depth > k ? (1 << (depth - k)) - 1 : 0;
            __m256bh part = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x + k));
            memcpy(low, &part, sizeof part);
            low += 16;
        }
}

static void set_tiles(Py_ssize_t n)
{
    struct __attribute__((packed)) {
        uint8_t palette, start, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        int is_second = tile == 2 || tile == 3 || tile == 5, has_weights = tile > 5;
        Py_ssize_t rows = has_weights ? 16 : is_second ? n - 16 : n;
        shape.bytes[tile] = 64;
        shape.rows[tile] = rows < 1 ? 1 : rows > 16 ? 16 : rows;
    }
    __asm__ volatile("" : : "r"(&shape) : "memory");
    _tile_loadconfig(&shape);
}

/* Add the products of at most 32 rows with one panel. Tiles 0 to 3 are sums, 4 and 5 rows of x. */
static void add_tiles(const uint16_t *x, Py_ssize_t depth, Py_ssize_t n, const uint16_t *panel,
                      float *y, Py_ssize_t width)
{
    float *more = y + 16 * width;
    BARRIER;
    _tile_loadd(0, y, 4 * width);
    _tile_loadd(1, y + 16, 4 * width);
    if (n > 16) {
        _tile_loadd(2, more, 4 * width);
        _tile_loadd(3, more + 16, 4 * width);
    }
    for (Py_ssize_t k = 0; k < depth; k += BLOCK, panel += BLOCK * BLOCK) {
        for (int line = 0; line < 2 * BLOCK * BLOCK; line += 64)
            __builtin_prefetch((const char *)panel + 2 * AHEAD + line, 0, 2);
        _tile_loadd(4, x + k, 2 * depth);
        _tile_loadd(6, panel, 64);
        _tile_loadd(7, panel + 16 * BLOCK, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (n > 16) {
            _tile_loadd(5, x + 16 * depth + k, 2 * depth);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, y, 4 * width);
    _tile_stored(1, y + 16, 4 * width);
    if (n > 16) {
        _tile_stored(2, more, 4 * width);
        _tile_stored(3, more + 16, 4 * width);
    }
    BARRIER;
}

static void add_product_tiles(const uint16_t *x, Py_ssize_t n, Weight weight, float *y)
{
    Py_ssize_t depth = weight.depth, width = weight.width;
    float edge[BLOCK * BLOCK]; /* Of a panel that has less than 32 outputs. */
    for (Py_ssize_t start = 0, end; start < n; start = end) {
        end = n - start < BLOCK ? n : n - n % BLOCK; /* Whole blocks of rows, then the rest. */
        set_tiles(end - start);
        for (Py_ssize_t column = 0; column < width; column += BLOCK)
            for (Py_ssize_t row = start; row < end; row += BLOCK) {
                const uint16_t *panel = (const uint16_t *)weight.panels + column * depth;
                const uint16_t *rows = x + row * depth;
                Py_ssize_t size = end - row < BLOCK ? end - row : BLOCK, rest = width - column;
                float *to = y + row * width + column;
                if (rest >= BLOCK) {
                    add_tiles(rows, depth, size, panel, to, width);
                    continue;
                }
                memset(edge, 0, sizeof edge);
                add_tiles(rows, depth, size, panel, edge, BLOCK);
                for (Py_ssize_t k = 0; k < size * rest; k++)
                    to[k / rest * width + k % rest] += edge[k / rest * BLOCK + k % rest];
            }
    }
    _tile_release();
}
#pragma GCC pop_options

/* x: rows in bfloat16, whose lengths are rounded up to whole blocks. */
static void add_product_low(const uint16_t *x, Py_ssize_t n, Weight weight, float *y)
{
    weight.depth = (weight.depth + BLOCK - 1) / BLOCK * BLOCK;
    if (weight.kind == TILES) {
        add_product_tiles(x, n, weight, y);
    } else {
        weight.depth /= 2;
        weight.kind = SINGLE; /* Nor are there cases of halves to compile. */
        BARRIER;
        add_product_pairs((const float *)x, n, weight, y);
    }
}

/* Go back through a layer that kept its gates, in bfloat16, and its cells. Pointers to what all
   steps have, y to cells and d_y, d_gates and hidden, begin behind the last row. d_y: the gradient
   of the outputs, becomes that before the clip. low: room for the rows of a step, of `out` and of
   `dim` values. */
static void run_layer_back(const int64_t *sizes, Py_ssize_t n_steps, Weight projection,
                           Weight recurrent, const float *y, const uint16_t *gates,
                           const float *cells, float *c0, float *d_y, float *d_c, float *d_bias,
                           uint16_t *d_gates, uint16_t *hidden, float *d_hidden, uint16_t *low,
                           float cell_clip, float clip)
{
    Py_ssize_t dim = recurrent.depth / 4, out = recurrent.width;
    while (n_steps--) {
        Py_ssize_t n = sizes[n_steps], n_before = n_steps ? sizes[n_steps - 1] : 0;
        y -= n * out;
        d_y -= n * out;
        cells -= n * dim;
        gates -= n * 4 * dim;
        d_gates -= n * 4 * dim;
        hidden -= n * dim;
        for (Py_ssize_t k = 0; k < n * out; k++)
            d_y[k] *= y[k] > -clip && y[k] < clip; /* What is not a number stays so. */
        if (projection.panels) {
            memset(d_hidden, 0, sizeof(float) * n * dim);
            round_rows(d_y, n, out, low);
            add_product_low(low, n, projection, d_hidden);
        }
        round_rows(projection.panels ? d_hidden : d_y, 1, n * dim, low);
        const float *c_previous = n_steps ? cells - n_before * dim : c0;
        const void *cell[] = {gates, c_previous, cells, low, d_c, d_bias, d_gates, hidden};
        run_all(1, (void **)cell, n, dim, cell_clip, 0, 1);
        if (n_steps)
            add_product_low(d_gates, n, recurrent, d_y - n_before * out);
    }
}
