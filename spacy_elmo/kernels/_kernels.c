/* Work on a CPU: the cell of an LSTM, forward and backward, the gradient of a softmax, and a whole
   layer. Rows follow one another without gaps; compiled.py says what they hold.
   With `low`, gates, outputs, logits and their gradients are bfloat16; all else and all arithmetic
   is float. On x86-64 Linux, GCC compiles the loops for three generations of processors. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__) || !defined(__GNUC__) || !defined(__x86_64__) || !defined(__GLIBC__)
#define EVERY_PROCESSOR
#else
#define HAS_LAYER
#if __GNUC__ >= 12
#define EVERY_PROCESSOR \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else /* Earlier ones do not know these names. */
#define EVERY_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
#ifdef _MSC_VER
#define INLINE static __forceinline
#define PRAGMA(x)
#else
#define INLINE static inline __attribute__((always_inline))
#define PRAGMA(x) _Pragma(#x)
#endif
#define INDEPENDENT PRAGMA(omp simd)
#define SUM(OPERATION, VARIABLE) PRAGMA(omp simd reduction(OPERATION : VARIABLE))

typedef union { float x; uint32_t bits; } Word;
INLINE float as_float(uint32_t bits) { return ((Word){.bits = bits}).x; }
INLINE uint32_t as_bits(float x) { return ((Word){.x = x}).bits; }

INLINE float load(const void *values, Py_ssize_t k, int low)
{
    return low ? as_float((uint32_t)((const uint16_t *)values)[k] << 16)
               : ((const float *)values)[k];
}

/* Rounds to the nearest, ties to even. */
INLINE void store(void *values, Py_ssize_t k, int low, float x)
{
    if (low) {
        uint32_t bits = as_bits(x);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        ((uint16_t *)values)[k] = (uint16_t)(x == x ? rounded : 0x7fc0);
    } else {
        ((float *)values)[k] = x;
    }
}

/* exp(-x) as 2^n * exp(r) with |r| <= log(2)/2 (the polynomial is that of Cephes' expf), within
   2e-7 of the value. For |x| > bound it is the value at the bound. NaN stays NaN. */
INLINE float exp_minus(float x, float bound)
{
    const float to_integer = 12582912.0f + 127.0f; /* 1.5 * 2^23, and the bias of the exponent. */
    x = x < -bound ? -bound : x;
    x = x > bound ? bound : x;
    float n = x * -1.44269504f + to_integer;
    float power = as_float(as_bits(n) << 23);
    n -= to_integer;
    float r = n * -0.693359375f - x; /* log(2) in two parts, the first one exact. */
    r = n * 2.12194440e-4f + r;
    float p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = (p * r + 8.3334519073e-3f) * r + 4.1665795894e-2f;
    p = (p * r + 1.6666665459e-1f) * r + 5.0000001201e-1f;
    return (p * (r * r) + (r + 1.0f)) * power;
}

/* The bound of gates: products of three values are finite, and a sigmoid differs by 2e-11. */
#define GATE 25.0f

INLINE void forward_rows(void **a, const void *addend, Py_ssize_t n, Py_ssize_t dim, float clip,
                         int keep, int low)
{
    void *gates = a[0], *hidden = a[4];
    const float *c_previous = a[2];
    float *c = a[3];
    for (Py_ssize_t row = 0; row < n; row++) {
        Py_ssize_t i = row * 4 * dim, j = i + dim, f = j + dim, o = f + dim, cell = row * dim;
        INDEPENDENT
        for (Py_ssize_t k = 0; k < dim; k++) {
            float xi = load(gates, i + k, low), xj = load(gates, j + k, low);
            float xf = load(gates, f + k, low), xo = load(gates, o + k, low);
            if (addend) {
                xi += load(addend, i + k, low);
                xj += load(addend, j + k, low);
                xf += load(addend, f + k, low);
                xo += load(addend, o + k, low);
            }
            /* sigmoid(x) = 1 / (1 + e), tanh(x) = (1 - e^2) / (1 + e^2), over one denominator. */
            float i1 = 1.0f + exp_minus(xi, GATE), f1 = 1.0f + exp_minus(xf, GATE);
            float o1 = 1.0f + exp_minus(xo, GATE);
            float ej = exp_minus(2.0f * xj, GATE);
            float ij1 = i1 * (1.0f + ej);
            float scale = 1.0f / (ij1 * f1);
            float value = ((1.0f - ej) * f1 + c_previous[cell + k] * ij1) * scale;
            value = value < -clip ? -clip : value;
            value = value > clip ? clip : value;
            float ec = exp_minus(2.0f * value, GATE);
            float c1 = 1.0f + ec;
            float output_scale = 1.0f / (c1 * o1);
            c[cell + k] = value;
            store(hidden, cell + k, low, (1.0f - ec) * output_scale);
            if (keep) {
                store(gates, i + k, low, (1.0f + ej) * f1 * scale);
                store(gates, j + k, low, (1.0f - ej) * i1 * f1 * scale);
                store(gates, f + k, low, ij1 * scale);
                store(gates, o + k, low, c1 * output_scale);
            }
        }
    }
}

INLINE void backward_rows(void **a, Py_ssize_t n, Py_ssize_t dim, float clip, int low)
{
    const void *gates = a[0], *d_hidden = a[3];
    const float *c_previous = a[1], *c = a[2];
    float *d_c = a[4], *d_bias = a[5];
    void *d_gates = a[6], *hidden = a[7];
    for (Py_ssize_t row = 0; row < n; row++) {
        Py_ssize_t i = row * 4 * dim, j = i + dim, f = j + dim, o = f + dim, cell = row * dim;
        INDEPENDENT
        for (Py_ssize_t k = 0; k < dim; k++) {
            float xi = load(gates, i + k, low), xj = load(gates, j + k, low);
            float xf = load(gates, f + k, low), xo = load(gates, o + k, low);
            float value = c[cell + k], dh = load(d_hidden, cell + k, low);
            float ec = exp_minus(2.0f * value, GATE);
            float tanh_c = (1.0f - ec) / (1.0f + ec);
            float d = d_c[cell + k] + dh * xo * (1.0f - tanh_c * tanh_c);
            d = value > -clip && value < clip ? d : 0.0f;
            float di = d * xj * xi * (1.0f - xi), dj = d * xi * (1.0f - xj * xj);
            float df = d * c_previous[cell + k] * xf * (1.0f - xf);
            float d_o = dh * tanh_c * xo * (1.0f - xo);
            d_c[cell + k] = d * xf;
            d_bias[k] += di;
            d_bias[dim + k] += dj;
            d_bias[2 * dim + k] += df;
            d_bias[3 * dim + k] += d_o;
            store(hidden, cell + k, low, tanh_c * xo);
            store(d_gates, i + k, low, di);
            store(d_gates, j + k, low, dj);
            store(d_gates, f + k, low, df);
            store(d_gates, o + k, low, d_o);
        }
    }
}

INLINE void softmax_row(void **a, Py_ssize_t number, Py_ssize_t n, int low)
{
    void *logits = (char *)a[0] + number * n * (low ? 2 : 4);
    const float *bias = a[1], *given = a[3] ? (float *)a[3] + number : NULL;
    int64_t target = ((int64_t *)a[2])[number];
    float *loss = (float *)a[4] + number, *d_bias = a[5], *row = a[6];
    float most = given ? *given : -INFINITY, total = 0.0f;
    if (given && target >= 0) /* The target's logit is given: the column is left out. */
        store(logits, target, low, -INFINITY);
    SUM(max, most)
    for (Py_ssize_t k = 0; k < n; k++) {
        row[k] = load(logits, k, low) + bias[k];
        most = most > row[k] ? most : row[k];
    }
    float chosen = given ? *given : row[target];
    SUM(+, total)
    for (Py_ssize_t k = 0; k < n; k++) {
        row[k] = exp_minus(most - row[k], 87.0f);
        total += row[k];
    }
    if (given)
        total += expf(chosen - most);
    else
        row[target] -= total;
    *loss = most + logf(total) - chosen;
    float scale = 1.0f / total;
    INDEPENDENT
    for (Py_ssize_t k = 0; k < n; k++) {
        float p = row[k] * scale;
        d_bias[k] += p;
        store(logits, k, low, p);
    }
}

/* Each case is compiled by itself: without branches in the loops. */
EVERY_PROCESSOR static void run_all(int kind, void **a, Py_ssize_t n, Py_ssize_t width, float clip,
                                    int keep, int low)
{
#define FORWARD(ADDEND, KEEP, LOW) forward_rows(a, ADDEND, n, width, clip, KEEP, LOW)
#define FORWARD_CASES(LOW) \
    a[1] ? (keep ? FORWARD(a[1], 1, LOW) : FORWARD(a[1], 0, LOW)) \
         : (keep ? FORWARD(NULL, 1, LOW) : FORWARD(NULL, 0, LOW))
    if (kind == 0)
        low ? (FORWARD_CASES(1)) : (FORWARD_CASES(0));
    else if (kind == 1)
        low ? backward_rows(a, n, width, clip, 1) : backward_rows(a, n, width, clip, 0);
    else
        for (Py_ssize_t k = 0; k < n; k++)
            low ? softmax_row(a, k, width, 1) : softmax_row(a, k, width, 0);
}

/* run(kind, addresses, rows, width, clip, keep, low): the kinds are forward, backward, softmax. */
static PyObject *run(PyObject *self, PyObject *args)
{
    unsigned long long x[8];
    void *a[8];
    Py_ssize_t n, width;
    float clip;
    int kind, keep, low;
    if (!PyArg_ParseTuple(args, "i(KKKKKKKK)nnfpp", &kind, x, x + 1, x + 2, x + 3, x + 4, x + 5,
                          x + 6, x + 7, &n, &width, &clip, &keep, &low))
        return NULL;
    for (int k = 0; k < 8; k++)
        a[k] = (void *)(uintptr_t)x[k];
    Py_BEGIN_ALLOW_THREADS
    run_all(kind, a, n, width, clip, keep, low);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

#ifdef HAS_LAYER
#include "_layer.h"
#endif

static PyMethodDef functions[] = {
    {"run", run, METH_VARARGS, NULL},
#ifdef HAS_LAYER
    {"layer", layer, METH_VARARGS, NULL},
    {"outputs_per_panel", outputs_per_panel, METH_NOARGS, NULL},
#ifdef HAS_BFLOAT16
    {"bfloat16_kind", bfloat16_kind, METH_NOARGS, NULL},
    {"layer_back", layer_back, METH_VARARGS, NULL},
#endif
#endif
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", NULL, 0, functions};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModuleDef_Init(&module); }
