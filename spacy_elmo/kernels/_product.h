/* y += x @ weight.T for one generation of processors: vectors of LANES floats, BLOCK_ROWS rows at a
   time in registers. Each value is summed in one order, whatever rows are beside its own. */

/* Add the products of some rows with one panel: 2 * LANES outputs, those of one input after those
   of another. The last panel is padded. */
INLINE void NAMED(add_block)(const float *x, Py_ssize_t depth, Py_ssize_t n_rows, const void *panel,
                             Py_ssize_t n_inputs, int half, float *y, Py_ssize_t width,
                             Py_ssize_t n_outputs)
{
    VECTOR sums[BLOCK_ROWS][2];
    for (int r = 0; r < n_rows; r++)
        sums[r][0] = sums[r][1] = EVERYWHERE(0.0f);
    for (Py_ssize_t k = 0; k < n_inputs; k++) {
        const Py_ssize_t size = LANES * (half ? 2 : 4); /* Of a vector, in bytes. */
        const void *weights = (const char *)panel + 2 * size * k;
        const void *others = (const char *)weights + size;
        for (Py_ssize_t line = 0; line < 2 * size; line += 64)
            __builtin_prefetch((const char *)weights + AHEAD + line, 0, 2);
        VECTOR first = half ? LOAD_HALF(weights) : LOAD(weights);
        VECTOR second = half ? LOAD_HALF(others) : LOAD(others);
        for (int r = 0; r < n_rows; r++) {
            VECTOR value = EVERYWHERE(x[r * depth + k]);
            sums[r][0] = MULTIPLY_ADD(value, first, sums[r][0]);
            sums[r][1] = MULTIPLY_ADD(value, second, sums[r][1]);
        }
    }
    for (int r = 0; r < n_rows; r++)
        for (Py_ssize_t k = 0; k < n_outputs; k++)
            y[r * width + k] += ((float *)sums[r])[k];
}

static void NAMED(add_product)(const float *x, Py_ssize_t n, Weight weight, float *y)
{
    Py_ssize_t depth = weight.depth, width = weight.width;
    for (Py_ssize_t column = 0; column < width; column += 2 * LANES)
        for (Py_ssize_t k = 0; k < depth; k += MOST_INPUTS)
            for (Py_ssize_t row = 0, size; row < n; row += size) {
                size = n - row < BLOCK_ROWS ? n - row : BLOCK_ROWS;
                const char *panel = (const char *)weight.panels +
                                    (column * depth + 2 * LANES * k) * (weight.kind == HALF ? 2 : 4);
#define ROWS(R, HALF) \
    NAMED(add_block)(x + row * depth + k, depth, R, panel, \
                     depth - k < MOST_INPUTS ? depth - k : MOST_INPUTS, HALF, \
                     y + row * width + column, width, \
                     width - column < 2 * LANES ? width - column : 2 * LANES)
#define CASE(R) \
    case R: \
        weight.kind == HALF ? ROWS(R, 1) : ROWS(R, 0); \
        break;
                switch (size) { CASES(BLOCK_ROWS) }
#undef CASE
#undef ROWS
            }
}
