// Optimizers of dense parameters: kernels/src/optimizer.rs on a device. Parameters, gradients and states are floats.
//
// What depends on the step alone is worked out by the host in double precision. Both can also write the parameter as
// activations are (`rounded`, or null), which saves a matrix product's cast another pass.
#include "dense.cuh"

// w -= lr b with b = momentum b + g; g includes `decay w`. Without a momentum buffer (null) b = g.
KERNEL(dense_sgd)
(float* w, const float* g, float* buffer, REAL* rounded, float lr, float momentum, float decay, uint64_t n) {
    for (uint64_t i = thread_in_grid(); i < n; i += threads_of_grid()) {
        float b = g[i] + decay * w[i];
        if (buffer) {
            b = momentum * buffer[i] + b;
            buffer[i] = b;
        }
        float updated = w[i] - lr * b;
        w[i] = updated;
        if (rounded) {
            rounded[i] = from_float<REAL>(updated);
        }
    }
}

// Adam: m += keep1 (g - m), v += keep2 (g^2 - v), w -= rate m / (sqrt(v) root + eps); g includes `decay w`. With `keep` =
// 1 - beta, `rate` = lr / (1 - beta1^step) and `root` = 1 / sqrt(1 - beta2^step).
KERNEL(dense_adam)
(float* w, const float* g, float* m, float* v, REAL* rounded, float rate, float root, float keep1, float keep2,
 float eps, float decay, uint64_t n) {
    for (uint64_t i = thread_in_grid(); i < n; i += threads_of_grid()) {
        float gradient = fmaf(decay, w[i], g[i]);
        float first = fmaf(keep1, gradient - m[i], m[i]);
        float second = fmaf(keep2, gradient * gradient - v[i], v[i]);
        m[i] = first;
        v[i] = second;
        float updated = w[i] - (rate * first) / fmaf(sqrtf(second), root, eps);
        w[i] = updated;
        if (rounded) {
            rounded[i] = from_float<REAL>(updated);
        }
    }
}
