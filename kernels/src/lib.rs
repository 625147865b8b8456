//! What runs on a device: CPU kernels for every primitive, forward and backward.
