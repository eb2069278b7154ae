/* A whole layer, on x86-64 Linux: products by vectors of floats (_product.h) or
   bytes (_bytes.h), or in bfloat16 (_bfloat16.h), and the cell of _kernels.c. */

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SINGLE, HALF, PAIRS, TILES, BYTES };
typedef struct { const void *panels; Py_ssize_t depth, width; int kind; } Weight;
/* Inputs whose products are summed before they are added: rounding errors grow with it. */
#define MOST_INPUTS 512
/* Bytes of weights that are asked for before they are needed. */
#define AHEAD 8192
/* A CASE for each number of rows up to N: loops of known length stay in registers. */
#define CASES_5 CASE(1) CASE(2) CASE(3) CASE(4) CASE(5)
#define CASES_8 CASES_5 CASE(6) CASE(7) CASE(8)
#define CASES_OF(N) CASES_##N
#define CASES(N) CASES_OF(N)

#pragma GCC push_options
#pragma GCC target("avx512f")
#define NAMED(FUNCTION) FUNCTION##_avx512
#define VECTOR __m512
#define LANES 16
#define BLOCK_ROWS 8
#define LOAD _mm512_loadu_ps
#define LOAD_HALF(ADDRESS) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(ADDRESS)))
#define EVERYWHERE _mm512_set1_ps
#define MULTIPLY_ADD _mm512_fmadd_ps
#include "_product.h"
#pragma GCC target("avx512vnni")
#define WHOLE __m512i
#define START _mm512_loadu_si512
#define LOAD_WHOLE _mm512_loadu_si512
#define FOUR_EVERYWHERE _mm512_set1_epi32
#define MULTIPLY_ADD_FOUR _mm512_dpbusd_epi32
#define TO_FLOAT _mm512_cvtepi32_ps
#include "_bytes.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define NAMED(FUNCTION) FUNCTION##_avx2
#define VECTOR __m256
#define LANES 8
#define BLOCK_ROWS 5
#define LOAD _mm256_loadu_ps
#define LOAD_HALF(ADDRESS) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(ADDRESS)))
#define EVERYWHERE _mm256_set1_ps
#define MULTIPLY_ADD _mm256_fmadd_ps
#include "_product.h"
/* Products of two neighbours fit into 16 bits if x has a sign and both are at most 127. */
INLINE __m256i multiply_add_four(__m256i sums, __m256i x, __m256i weights)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(weights, x));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#define WHOLE __m256i
#define START(ADDRESS) _mm256_setzero_si256()
#define LOAD_WHOLE(ADDRESS) _mm256_loadu_si256((const __m256i *)(ADDRESS))
#define FOUR_EVERYWHERE(FOUR) _mm256_set1_epi32((FOUR) ^ 0x80808080)
#define MULTIPLY_ADD_FOUR multiply_add_four
#define TO_FLOAT _mm256_cvtepi32_ps
#include "_bytes.h"

/* Round rows to 8 bits, from 1 to 255: 128 more than what is multiplied, which has the scale of the
   row, NaN if a number is not finite. Up to 4 bytes are written behind the last row. */
static void round_bytes(const float *x, Py_ssize_t n, Py_ssize_t depth, float *scales, uint8_t *low)
{
    const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (Py_ssize_t row = 0; row < n; row++, x += depth, low += (depth + 3) / 4 * 4) {
        int32_t found[8], bits = 0;
        float largest, inverse;
        __m256i most = _mm256_setzero_si256(); /* Bits of floats without a sign are in order. */
#define PART(K) \
    _mm256_maskload_ps(x + K, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(depth - K)), places))
        for (Py_ssize_t k = 0; k < depth; k += 8)
            most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(PART(k)),
                                                           _mm256_set1_epi32(0x7fffffff)));
        _mm256_storeu_si256((__m256i *)found, most);
        for (int k = 0; k < 8; k++)
            bits = bits < found[k] ? found[k] : bits;
        memcpy(&largest, &bits, 4);
        inverse = largest >= 1e-30f && bits < 0x7f800000 ? 127 / largest : 0;
        scales[row] = bits < 0x7f800000 ? largest / 127 : NAN;
        for (Py_ssize_t k = 0; k < depth; k += 8) {
            __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(PART(k), _mm256_set1_ps(inverse)));
            __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole),
                                            _mm256_extracti128_si256(whole, 1));
            __m128i bytes = _mm_xor_si128(_mm_packs_epi16(words, words), _mm_set1_epi8(-128));
            _mm_storel_epi64((__m128i *)(low + k), bytes);
        }
#undef PART
    }
}
#pragma GCC pop_options
#if __GNUC__ >= 11
#define HAS_BFLOAT16
#include "_bfloat16.h"
#endif

/* outputs_per_panel(): How the weights of `layer` lie, and those of 8 bits; 0 and 0 if it is not for
   this processor. */
static PyObject *outputs_per_panel(PyObject *self, PyObject *args)
{
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 16 : 0;
    int avx512 = __builtin_cpu_supports("avx512f");
    return Py_BuildValue("ii", avx512 ? 32 : avx2,
                         avx512 && __builtin_cpu_supports("avx512vnni") ? 32 : avx2);
}

#ifdef HAS_BFLOAT16
/* bfloat16_kind(): How weights in bfloat16 lie; 0 if the processor has no products of them. With AMX,
   the system has to allow the data of tiles, once for the process (ARCH_REQ_XCOMP_PERM). */
static PyObject *bfloat16_kind(PyObject *self, PyObject *args)
{
    unsigned a, b, c, low = 0, tiles = 0;
    if (__builtin_cpu_supports("avx512f") && __get_cpuid_count(7, 1, &low, &b, &c, &a))
        __get_cpuid_count(7, 0, &a, &b, &c, &tiles);
    int has_pairs = low >> 5 & 1, has_tiles = (tiles >> 22 & 1) && (tiles >> 24 & 1);
    has_tiles = has_pairs && has_tiles && !syscall(SYS_arch_prctl, 0x1023, 18);
    return PyLong_FromLong(has_tiles ? TILES : has_pairs ? PAIRS : 0);
}
#endif

static void add_product(const float *x, Py_ssize_t n, Weight weight, Py_ssize_t panel, void *low,
                        float *y)
{
    if (weight.kind == BYTES) {
        uint8_t *rows = (uint8_t *)low + sizeof(float) * n; /* Behind their scales. */
        round_bytes(x, n, weight.depth, low, rows);
        (panel == 32 ? add_product_bytes_avx512 : add_product_bytes_avx2)(rows, low, n, weight, y);
    }
#ifdef HAS_BFLOAT16
    else if (weight.kind == PAIRS || weight.kind == TILES) {
        round_rows(x, n, weight.depth, low);
        add_product_low(low, n, weight, y);
    }
#endif
    else
        (panel == 32 ? add_product_avx512 : add_product_avx2)(x, n, weight, y);
}

static void run_layer(const float *x, const int64_t *sizes, Py_ssize_t n_steps,
                      const Weight *weights, const float *bias, Py_ssize_t panel, float *gates,
                      void *low, Py_ssize_t max_rows, float *hidden, float *c, float *h,
                      float *y, float *cells, uint16_t *kept, float cell_clip, float clip)
{
    Weight inputs = weights[0], recurrent = weights[1], projection = weights[2];
    Py_ssize_t dim = inputs.width / 4, out = recurrent.depth, n_ready = 0;
    const float *previous = h;
    float *now = gates;
    for (Py_ssize_t t = 0; t < n_steps; t++) {
        Py_ssize_t n = sizes[t];
        if (!n_ready) { /* What inputs contribute, for as many steps as there is room for. */
            for (Py_ssize_t step = t; step < n_steps && n_ready + sizes[step] <= max_rows; step++)
                n_ready += sizes[step];
            now = gates;
            for (Py_ssize_t row = 0; row < n_ready; row++)
                memcpy(now + row * 4 * dim, bias, sizeof(float) * 4 * dim);
            add_product(x, n_ready, inputs, panel, low, now);
            x += n_ready * inputs.depth;
        }
        if (previous)
            add_product(previous, n, recurrent, panel, low, now);
        void *cell[] = {now, NULL, c, cells ? cells : c, projection.panels ? hidden : y};
        run_all(0, cell, n, dim, cell_clip, cells != NULL, 0);
#ifdef HAS_BFLOAT16
        if (cells) {
            round_rows(now, 1, n * 4 * dim, kept);
            c = cells;
            cells += n * dim;
            kept += n * 4 * dim;
        }
#endif
        if (projection.panels) {
            memset(y, 0, sizeof(float) * n * out);
            add_product(hidden, n, projection, panel, low, y);
        }
        for (Py_ssize_t k = 0; k < n * out; k++) {
            y[k] = y[k] < -clip ? -clip : y[k];
            y[k] = y[k] > clip ? clip : y[k];
        }
        if (h && !cells)
            memcpy(h, y, sizeof(float) * n * out);
        previous = y;
        y += n * out;
        now += n * 4 * dim;
        n_ready -= n;
    }
}

/* layer(addresses, depths, widths, kinds, steps, panel, max_rows, cell_clip, clip): of inputs,
   sizes of the steps, weights of inputs, outputs and projection, bias, gates, hidden, c, h and y,
   for weights in bfloat16 or 8 bits room for rows of x, and, to train, of all cells and gates. */
static PyObject *layer(PyObject *self, PyObject *args)
{
    unsigned long long x[14];
    Weight weights[3];
    Py_ssize_t n_steps, panel, max_rows;
    float cell_clip, clip;
    if (!PyArg_ParseTuple(args, "(KKKKKKKKKKKKKK)(nnn)(nnn)(iii)nnnff", x, x + 1, x + 2, x + 3,
                          x + 4, x + 5, x + 6, x + 7, x + 8, x + 9, x + 10, x + 11, x + 12, x + 13,
                          &weights[0].depth, &weights[1].depth, &weights[2].depth,
                          &weights[0].width, &weights[1].width, &weights[2].width,
                          &weights[0].kind, &weights[1].kind, &weights[2].kind, &n_steps, &panel,
                          &max_rows, &cell_clip, &clip))
        return NULL;
    for (int k = 0; k < 3; k++)
        weights[k].panels = (void *)(uintptr_t)x[2 + k];
#define POINTER(K) ((void *)(uintptr_t)x[K])
    Py_BEGIN_ALLOW_THREADS
    run_layer(POINTER(0), POINTER(1), n_steps, weights, POINTER(5), panel, POINTER(6), POINTER(11),
              max_rows, POINTER(7), POINTER(8), POINTER(9), POINTER(10), POINTER(12), POINTER(13),
              cell_clip, clip);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

#ifdef HAS_BFLOAT16
/* layer_back(addresses, kind, steps, dim, out, cell_clip, clip): of sizes of the steps, weights of
   the projection and of the outputs, and then as the arguments of `run_layer_back`. */
static PyObject *layer_back(PyObject *self, PyObject *args)
{
    unsigned long long x[14];
    Py_ssize_t n_steps, n = 0, dim, out;
    float cell_clip, clip;
    int kind;
    if (!PyArg_ParseTuple(args, "(KKKKKKKKKKKKKK)innnff", x, x + 1, x + 2, x + 3, x + 4, x + 5,
                          x + 6, x + 7, x + 8, x + 9, x + 10, x + 11, x + 12, x + 13, &kind,
                          &n_steps, &dim, &out, &cell_clip, &clip))
        return NULL;
    Weight projection = {POINTER(1), out, dim, kind}, recurrent = {POINTER(2), 4 * dim, out, kind};
    for (Py_ssize_t step = 0; step < n_steps; step++)
        n += ((int64_t *)POINTER(0))[step];
    Py_BEGIN_ALLOW_THREADS
    run_layer_back(POINTER(0), n_steps, projection, recurrent, (float *)POINTER(3) + n * out,
                   (uint16_t *)POINTER(4) + n * 4 * dim, (float *)POINTER(5) + n * dim, POINTER(6),
                   (float *)POINTER(7) + n * out, POINTER(8), POINTER(9),
                   (uint16_t *)POINTER(10) + n * 4 * dim, (uint16_t *)POINTER(11) + n * dim,
                   POINTER(12), POINTER(13), cell_clip, clip);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
#endif
