/* y += x @ weight.T in 8 bits for one generation of processors. Each row of x is rounded with a scale
   of its own. Sums are whole numbers, so that a value is the same on each processor, and whatever
   rows are beside its own. A panel has 2 * LANES scales, as many whole numbers with which the sums
   of UNSIGNED x begin, and the weights of four inputs after those of another four. */

INLINE void NAMED(add_bytes)(const uint8_t *x, const float *scales, Py_ssize_t depth,
                             Py_ssize_t n_rows, const char *panel, float *y, Py_ssize_t width,
                             Py_ssize_t n_outputs)
{
    WHOLE sums[BLOCK_ROWS][2];
    const Py_ssize_t size = 4 * LANES; /* Of a vector, in bytes. */
    const char *weights = panel + 4 * size;
    VECTOR factors[2] = {LOAD((const float *)panel), LOAD((const float *)panel + LANES)};
    for (int r = 0; r < n_rows; r++) {
        sums[r][0] = START(panel + 2 * size);
        sums[r][1] = START(panel + 3 * size);
    }
    for (Py_ssize_t k = 0; k < depth; k += 4, weights += 2 * size) {
        for (Py_ssize_t line = 0; line < 2 * size; line += 64)
            __builtin_prefetch(weights + AHEAD + line, 0, 2);
        WHOLE first = LOAD_WHOLE(weights), second = LOAD_WHOLE(weights + size);
        for (int r = 0; r < n_rows; r++) {
            int32_t four;
            memcpy(&four, x + r * depth + k, 4);
            WHOLE value = FOUR_EVERYWHERE(four);
            sums[r][0] = MULTIPLY_ADD_FOUR(sums[r][0], value, first);
            sums[r][1] = MULTIPLY_ADD_FOUR(sums[r][1], value, second);
        }
    }
    for (int r = 0; r < n_rows; r++) {
        VECTOR scale = EVERYWHERE(scales[r]);
        VECTOR row[2] = {TO_FLOAT(sums[r][0]) * (scale * factors[0]),
                         TO_FLOAT(sums[r][1]) * (scale * factors[1])};
        for (Py_ssize_t k = 0; k < n_outputs; k++)
            y[r * width + k] += ((float *)row)[k];
    }
}

static void NAMED(add_product_bytes)(const uint8_t *x, const float *scales, Py_ssize_t n,
                                     Weight weight, float *y)
{
    Py_ssize_t depth = (weight.depth + 3) / 4 * 4, width = weight.width;
    const char *panel = weight.panels;
    for (Py_ssize_t column = 0; column < width; column += 2 * LANES) {
        for (Py_ssize_t row = 0, size; row < n; row += size) {
            size = n - row < BLOCK_ROWS ? n - row : BLOCK_ROWS;
#define CASE(R) \
    case R: \
        NAMED(add_bytes)(x + row * depth, scales + row, depth, R, panel, \
                         y + row * width + column, width, \
                         width - column < 2 * LANES ? width - column : 2 * LANES); \
        break;
            switch (size) { CASES(BLOCK_ROWS) }
#undef CASE
        }
        panel += 2 * LANES * (8 + depth);
    }
}

/* What follows is for another generation. */
#undef NAMED
#undef VECTOR
#undef LANES
#undef BLOCK_ROWS
#undef LOAD
#undef LOAD_HALF
#undef EVERYWHERE
#undef MULTIPLY_ADD
#undef WHOLE
#undef START
#undef LOAD_WHOLE
#undef FOUR_EVERYWHERE
#undef MULTIPLY_ADD_FOUR
#undef TO_FLOAT
