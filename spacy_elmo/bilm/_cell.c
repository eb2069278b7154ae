/* One step of an LSTM without its matrix products: each value is read once and written once.

   Functions take addresses of rows that follow one another without gaps. Gates, outputs and their
   gradients are float, or bfloat16 if `low` is set; cells, the gradients of cells and all
   arithmetic are float. See cell.py for the shapes. The loops are such that GCC and Clang vectorise
   them; on x86-64 Linux, GCC compiles them for three generations of processors. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define EVERY_PROCESSOR \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EVERY_PROCESSOR
#endif
#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static __forceinline
#endif
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT __pragma(loop(ivdep))
#endif

INLINE float as_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE uint32_t as_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

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
   2e-7 of the value. For |x| > 25 it is the value at 25: products of three of them are finite, and
   a sigmoid differs by 2e-11. NaN stays NaN. */
INLINE float exp_minus(float x)
{
    const float to_integer = 12582912.0f + 127.0f; /* 1.5 * 2^23, and the bias of the exponent. */
    x = x < -25.0f ? -25.0f : x;
    x = x > 25.0f ? 25.0f : x;
    float n = x * -1.44269504f + to_integer;
    float power = as_float(as_bits(n) << 23);
    n -= to_integer;
    float r = n * -0.693359375f - x; /* log(2) in two parts, the first one exact. */
    r = n * 2.12194440e-4f + r;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return (p * (r * r) + (r + 1.0f)) * power;
}

INLINE void forward_rows(void *gates, const void *addend, const float *c_previous, float *c,
                         void *hidden, Py_ssize_t n, Py_ssize_t dim, float clip, int keep, int low)
{
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
            float i1 = 1.0f + exp_minus(xi), f1 = 1.0f + exp_minus(xf), o1 = 1.0f + exp_minus(xo);
            float ej = exp_minus(2.0f * xj);
            float ij1 = i1 * (1.0f + ej);
            float scale = 1.0f / (ij1 * f1);
            float value = ((1.0f - ej) * f1 + c_previous[cell + k] * ij1) * scale;
            value = value < -clip ? -clip : value;
            value = value > clip ? clip : value;
            float ec = exp_minus(2.0f * value);
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

INLINE void backward_rows(void *gates, const float *c_previous, const float *c,
                          const void *d_hidden, float *d_c, void *hidden, Py_ssize_t n,
                          Py_ssize_t dim, float clip, int low)
{
    for (Py_ssize_t row = 0; row < n; row++) {
        Py_ssize_t i = row * 4 * dim, j = i + dim, f = j + dim, o = f + dim, cell = row * dim;
        INDEPENDENT
        for (Py_ssize_t k = 0; k < dim; k++) {
            float xi = load(gates, i + k, low), xj = load(gates, j + k, low);
            float xf = load(gates, f + k, low), xo = load(gates, o + k, low);
            float value = c[cell + k], dh = load(d_hidden, cell + k, low);
            float ec = exp_minus(2.0f * value);
            float tanh_c = (1.0f - ec) / (1.0f + ec);
            float d = d_c[cell + k] + dh * xo * (1.0f - tanh_c * tanh_c);
            d = value > -clip && value < clip ? d : 0.0f;
            d_c[cell + k] = d * xf;
            store(hidden, cell + k, low, tanh_c * xo);
            store(gates, i + k, low, d * xj * xi * (1.0f - xi));
            store(gates, j + k, low, d * xi * (1.0f - xj * xj));
            store(gates, f + k, low, d * c_previous[cell + k] * xf * (1.0f - xf));
            store(gates, o + k, low, dh * tanh_c * xo * (1.0f - xo));
        }
    }
}

EVERY_PROCESSOR static void forward_all(void *gates, const void *addend, const float *c_previous,
                                        float *c, void *hidden, Py_ssize_t n, Py_ssize_t dim,
                                        float clip, int keep, int low)
{
    /* Constants, so that each case is compiled without branches in the loop. */
#define CASE(ADDEND, KEEP, LOW) \
    forward_rows(gates, ADDEND, c_previous, c, hidden, n, dim, clip, KEEP, LOW)
    if (low)
        addend ? (keep ? CASE(addend, 1, 1) : CASE(addend, 0, 1))
               : (keep ? CASE(NULL, 1, 1) : CASE(NULL, 0, 1));
    else
        addend ? (keep ? CASE(addend, 1, 0) : CASE(addend, 0, 0))
               : (keep ? CASE(NULL, 1, 0) : CASE(NULL, 0, 0));
}

EVERY_PROCESSOR static void backward_all(void *gates, const float *c_previous, const float *c,
                                         const void *d_hidden, float *d_c, void *hidden,
                                         Py_ssize_t n, Py_ssize_t dim, float clip, int low)
{
    if (low)
        backward_rows(gates, c_previous, c, d_hidden, d_c, hidden, n, dim, clip, 1);
    else
        backward_rows(gates, c_previous, c, d_hidden, d_c, hidden, n, dim, clip, 0);
}

static PyObject *forward(PyObject *self, PyObject *args)
{
    unsigned long long gates, addend, c_previous, c, hidden;
    Py_ssize_t n, dim;
    float clip;
    int keep, low;
    if (!PyArg_ParseTuple(args, "KKKKKnnfpp", &gates, &addend, &c_previous, &c, &hidden, &n, &dim,
                          &clip, &keep, &low))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    forward_all((void *)(uintptr_t)gates, (void *)(uintptr_t)addend, (float *)(uintptr_t)c_previous,
                (float *)(uintptr_t)c, (void *)(uintptr_t)hidden, n, dim, clip, keep, low);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *backward(PyObject *self, PyObject *args)
{
    unsigned long long gates, c_previous, c, d_hidden, d_c, hidden;
    Py_ssize_t n, dim;
    float clip;
    int low;
    if (!PyArg_ParseTuple(args, "KKKKKKnnfp", &gates, &c_previous, &c, &d_hidden, &d_c, &hidden, &n,
                          &dim, &clip, &low))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    backward_all((void *)(uintptr_t)gates, (float *)(uintptr_t)c_previous, (float *)(uintptr_t)c,
                 (void *)(uintptr_t)d_hidden, (float *)(uintptr_t)d_c, (void *)(uintptr_t)hidden, n,
                 dim, clip, low);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"forward", forward, METH_VARARGS, NULL},
    {"backward", backward, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_cell", NULL, 0, functions};

PyMODINIT_FUNC PyInit__cell(void) { return PyModuleDef_Init(&module); }
