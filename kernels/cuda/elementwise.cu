// Elementwise operations on matrices, and their gradients: kernels/src/elementwise.rs on a device.
//
// All of them read each operand once and write each result once; the floor is these bytes over copy bandwidth.
// Operands may be the result itself, at the same place.
#include "dense.cuh"

// Without gaps a matrix is one row.
#define FLATTEN(gaps)      \
    if (!(gaps)) {         \
        columns *= rows;   \
        rows = 1;          \
    }

// y = f(x)
template <class F>
DEVICE void map(const REAL* x, uint64_t x_stride, REAL* y, uint64_t y_stride, uint32_t add, uint64_t rows, uint64_t columns, F f) {
    FLATTEN(x_stride != columns || y_stride != columns);
    auto from = view(x, x_stride);
    auto to = view(y, y_stride);
    for_packs(rows, columns, [&](uint64_t row, uint64_t column, uint32_t n) {
        float v[PACK];
        load_pack(at(from, row) + column, from.wide, n, v);
#pragma unroll
        for (uint32_t i = 0; i < PACK; i++) {
            v[i] = f(v[i]);
        }
        store_pack(at(to, row) + column, to.wide, n, v, add);
    });
}

// y = f(a, b)
template <class F>
DEVICE void map2(
    const REAL* a, uint64_t a_stride, const REAL* b, uint64_t b_stride, REAL* y, uint64_t y_stride, uint32_t add,
    uint64_t rows, uint64_t columns, F f) {
    FLATTEN(a_stride != columns || b_stride != columns || y_stride != columns);
    auto left = view(a, a_stride);
    auto right = view(b, b_stride);
    auto to = view(y, y_stride);
    for_packs(rows, columns, [&](uint64_t row, uint64_t column, uint32_t n) {
        float v[PACK], w[PACK];
        load_pack(at(left, row) + column, left.wide, n, v);
        load_pack(at(right, row) + column, right.wide, n, w);
#pragma unroll
        for (uint32_t i = 0; i < PACK; i++) {
            v[i] = f(v[i], w[i]);
        }
        store_pack(at(to, row) + column, to.wide, n, v, add);
    });
}

enum Function : uint32_t {
    SILU = 0,
    RELU = 1,
    GELU = 2,
    SIGMOID = 3,
};

// The normal distribution function, by the complementary error function: exact also where it is small.
DEVICE float normal_cdf(float x) {
    return 0.5f * erfcf(x * -0.70710678f);
}

struct Silu {
    DEVICE float of(float x) { return x * sigmoid(x); }
};
struct Relu {
    DEVICE float of(float x) { return x > 0.0f ? x : 0.0f; }
};
struct Gelu {
    DEVICE float of(float x) { return x * normal_cdf(x); }
};
struct Sigmoid {
    DEVICE float of(float x) { return sigmoid(x); }
};

// Does `what` with the function of a number as its last argument: NVRTC has no lambdas that take a function of any type.
#define WITH_FUNCTION(function, what, ...)   \
    switch (function) {                      \
        case SILU: {                         \
            what(__VA_ARGS__, Silu());       \
            break;                           \
        }                                    \
        case RELU: {                         \
            what(__VA_ARGS__, Relu());       \
            break;                           \
        }                                    \
        case GELU: {                         \
            what(__VA_ARGS__, Gelu());       \
            break;                           \
        }                                    \
        default: {                           \
            what(__VA_ARGS__, Sigmoid());    \
        }                                    \
    }

// y = F(x)
template <class F>
DEVICE void map_of(
    const REAL* x, uint64_t x_stride, REAL* y, uint64_t y_stride, uint32_t add, uint64_t rows, uint64_t columns, F) {
    map(x, x_stride, y, y_stride, add, rows, columns, [](float v) { return F::of(v); });
}

// y = function(x)
KERNEL(unary)
(uint32_t function, const REAL* x, uint64_t x_stride, REAL* y, uint64_t y_stride, uint32_t add, uint64_t rows,
 uint64_t columns) {
    WITH_FUNCTION(function, map_of, x, x_stride, y, y_stride, add, rows, columns)
}

// z += bias in every row, y = F(z)
template <class F>
DEVICE void bias_and_map(
    const float* bias, REAL* z, uint64_t z_stride, REAL* y, uint64_t y_stride, uint64_t rows, uint64_t columns, F) {
    auto from = view(bias, 0);
    auto sum = view(z, z_stride);
    auto to = view(y, y_stride);
    for_packs(rows, columns, [&](uint64_t row, uint64_t column, uint32_t n) {
        float v[PACK];
        load_pack(from.data + column, from.wide, n, v);
        store_pack(at(sum, row) + column, sum.wide, n, v, 1);
#pragma unroll
        for (uint32_t i = 0; i < PACK; i++) {
            v[i] = F::of(rounded(v[i]));
        }
        store_pack(at(to, row) + column, to.wide, n, v, 0);
    });
}

// z += bias in every row, and y = function(z): what is left of a linear layer and a function of it behind the product.
KERNEL(bias_unary)
(uint32_t function, const float* bias, REAL* z, uint64_t z_stride, REAL* y, uint64_t y_stride, uint64_t rows,
 uint64_t columns) {
    WITH_FUNCTION(function, bias_and_map, bias, z, z_stride, y, y_stride, rows, columns)
}

// gx = function'(x) gy; relu's derivative at 0 is 0.
KERNEL(unary_grad)
(uint32_t function, const REAL* x, uint64_t x_stride, const REAL* gy, uint64_t gy_stride, REAL* gx, uint64_t gx_stride,
 uint32_t add, uint64_t rows, uint64_t columns) {
    switch (function) {
        case SILU: {
            map2(x, x_stride, gy, gy_stride, gx, gx_stride, add, rows, columns, [](float x, float g) {
                float sig = sigmoid(x);
                return g * (sig * fmaf(x, 1.0f - sig, 1.0f));
            });
            break;
        }
        case RELU: {
            map2(x, x_stride, gy, gy_stride, gx, gx_stride, add, rows, columns, [](float x, float g) {
                return x > 0.0f ? g : 0.0f;
            });
            break;
        }
        case GELU: {
            map2(x, x_stride, gy, gy_stride, gx, gx_stride, add, rows, columns, [](float x, float g) {
                float density = expf(-0.5f * (x * x)) * 0.3989423f;
                return g * fmaf(x, density, normal_cdf(x));
            });
            break;
        }
        default: {
            map2(x, x_stride, gy, gy_stride, gx, gx_stride, add, rows, columns, [](float x, float g) {
                float sig = sigmoid(x);
                return g * (sig * (1.0f - sig));
            });
        }
    }
}

// y = a b
KERNEL(mul)
(const REAL* a, uint64_t a_stride, const REAL* b, uint64_t b_stride, REAL* y, uint64_t y_stride, uint32_t add,
 uint64_t rows, uint64_t columns) {
    map2(a, a_stride, b, b_stride, y, y_stride, add, rows, columns, [](float a, float b) { return a * b; });
}

// ga = b gy, gb = a gy
KERNEL(mul_grad)
(const REAL* a, uint64_t a_stride, const REAL* b, uint64_t b_stride, const REAL* gy, uint64_t gy_stride, REAL* ga,
 uint64_t ga_stride, uint32_t ga_add, REAL* gb, uint64_t gb_stride, uint32_t gb_add, uint64_t rows, uint64_t columns) {
    FLATTEN(
        a_stride != columns || b_stride != columns || gy_stride != columns || ga_stride != columns ||
        gb_stride != columns);
    auto left = view(a, a_stride);
    auto right = view(b, b_stride);
    auto from = view(gy, gy_stride);
    auto to_left = view(ga, ga_stride);
    auto to_right = view(gb, gb_stride);
    for_packs(rows, columns, [&](uint64_t row, uint64_t column, uint32_t n) {
        float v[PACK], w[PACK], g[PACK];
        load_pack(at(left, row) + column, left.wide, n, v);
        load_pack(at(right, row) + column, right.wide, n, w);
        load_pack(at(from, row) + column, from.wide, n, g);
#pragma unroll
        for (uint32_t i = 0; i < PACK; i++) {
            v[i] *= g[i];
            w[i] *= g[i];
        }
        store_pack(at(to_left, row) + column, to_left.wide, n, w, ga_add);
        store_pack(at(to_right, row) + column, to_right.wide, n, v, gb_add);
    });
}

// y = factor x
KERNEL(scale)
(float factor, const REAL* x, uint64_t x_stride, REAL* y, uint64_t y_stride, uint32_t add, uint64_t rows,
 uint64_t columns) {
    map(x, x_stride, y, y_stride, add, rows, columns, [=](float x) { return x * factor; });
}

// y = x
KERNEL(copy)
(const REAL* x, uint64_t x_stride, REAL* y, uint64_t y_stride, uint32_t add, uint64_t rows, uint64_t columns) {
    map(x, x_stride, y, y_stride, add, rows, columns, [](float x) { return x; });
}

// y = value
KERNEL(fill)
(float value, REAL* y, uint64_t y_stride, uint64_t rows, uint64_t columns) {
    FLATTEN(y_stride != columns);
    auto to = view(y, y_stride);
    for_packs(rows, columns, [&](uint64_t row, uint64_t column, uint32_t n) {
        float v[PACK];
#pragma unroll
        for (uint32_t i = 0; i < PACK; i++) {
            v[i] = value;
        }
        store_pack(at(to, row) + column, to.wide, n, v, 0);
    });
}
// The same for floats.
KERNEL(fill_floats)
(float value, float* y, uint64_t n) {
    for (uint64_t i = thread_in_grid(); i < n; i += threads_of_grid()) {
        y[i] = value;
    }
}

// y = x0 + x1 + ..., from left to right, of the first `count` (1 to 8), rounded after each, so that a sum of three has the bits
// of two sums of two; more are added by more launches that begin with y.
KERNEL(add)
(uint32_t count, const REAL* x0, uint64_t stride0, const REAL* x1, uint64_t stride1, const REAL* x2, uint64_t stride2,
 const REAL* x3, uint64_t stride3, const REAL* x4, uint64_t stride4, const REAL* x5, uint64_t stride5, const REAL* x6,
 uint64_t stride6, const REAL* x7, uint64_t stride7, REAL* y, uint64_t y_stride, uint32_t add, uint64_t rows,
 uint64_t columns) {
    View<const REAL> xs[8] = {view(x0, stride0), view(x1, stride1), view(x2, stride2), view(x3, stride3),
                              view(x4, stride4), view(x5, stride5), view(x6, stride6), view(x7, stride7)};
    bool gaps = y_stride != columns;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        gaps = gaps || (k < count && xs[k].stride != columns);
    }
    FLATTEN(gaps);
    auto to = view(y, y_stride);
    for_packs(rows, columns, [&](uint64_t row, uint64_t column, uint32_t n) {
        float sum[PACK];
        load_pack(at(xs[0], row) + column, xs[0].wide, n, sum);
#pragma unroll
        for (uint32_t k = 1; k < 8; k++) {
            if (k < count) {
                float v[PACK];
                load_pack(at(xs[k], row) + column, xs[k].wide, n, v);
#pragma unroll
                for (uint32_t i = 0; i < PACK; i++) {
                    sum[i] = rounded(sum[i] + v[i]);
                }
            }
        }
        store_pack(at(to, row) + column, to.wide, n, sum, add);
    });
}

// y += bias in every row
KERNEL(add_bias)
(const float* bias, REAL* y, uint64_t y_stride, uint64_t rows, uint64_t columns) {
    auto from = view(bias, 0);
    auto to = view(y, y_stride);
    for_packs(rows, columns, [&](uint64_t row, uint64_t column, uint32_t n) {
        float v[PACK];
        load_pack(from.data + column, from.wide, n, v);
        store_pack(at(to, row) + column, to.wide, n, v, 1);
    });
}

// y = x, rounded to activations: input features, and parameters for matrix products.
KERNEL_JOINED(real_from_float,
    (const float* x, uint64_t x_stride, REAL* y, uint64_t y_stride, uint32_t add, uint64_t rows, uint64_t columns),
    (x, x_stride, y, y_stride, add, rows, columns)) {
    FLATTEN(x_stride != columns || y_stride != columns);
    auto from = view(x, x_stride);
    auto to = view(y, y_stride);
    for_packs(grid, rows, columns, [&](uint64_t row, uint64_t column, uint32_t n) {
        float v[PACK];
        load_pack(at(from, row) + column, from.wide, n, v);
        store_pack(at(to, row) + column, to.wide, n, v, add);
    });
}
// The other way, exactly.
KERNEL_JOINED(float_from_real,
    (const REAL* x, uint64_t x_stride, float* y, uint64_t y_stride, uint32_t add, uint64_t rows, uint64_t columns),
    (x, x_stride, y, y_stride, add, rows, columns)) {
    FLATTEN(x_stride != columns || y_stride != columns);
    auto from = view(x, x_stride);
    auto to = view(y, y_stride);
    for_packs(grid, rows, columns, [&](uint64_t row, uint64_t column, uint32_t n) {
        float v[PACK];
        load_pack(at(from, row) + column, from.wide, n, v);
        store_pack(at(to, row) + column, to.wide, n, v, add);
    });
}

// out = parts[0] + parts[1] + ..., from left to right, rounded once: an all-reduce's sum over ranks. `parts` holds the addresses of
// `count` parts of n numbers each. The sum begins with the first part, whose zeros keep their signs.
KERNEL(sum_in_rank_order)
(const uint64_t* parts, uint32_t count, REAL* out, uint64_t n) {
    for (uint64_t first = 4 * thread_in_grid(); first < n; first += 4 * threads_of_grid()) {
        uint64_t some = least<uint64_t>(4, n - first);
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (uint32_t k = 0; k < count; k++) {
            const REAL* part = reinterpret_cast<const REAL*>(parts[k]);
            float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (some == 4 && by_fours(part, 0)) {
                float4 four = load4(part + first);
                v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
            } else {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    if (i < some) {
                        v[i] = to_float(part[first + i]);
                    }
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                sum[i] = k == 0 ? v[i] : sum[i] + v[i];
            }
        }
        if (some == 4 && by_fours(out, 0)) {
            store4(out + first, make_float4(sum[0], sum[1], sum[2], sum[3]));
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                if (i < some) {
                    out[first + i] = from_float<REAL>(sum[i]);
                }
            }
        }
    }
}
