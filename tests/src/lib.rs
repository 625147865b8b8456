//! Tests over the whole path: end-to-end through the binaries, parity with PyTorch, gradient checks.
