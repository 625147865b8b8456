// Kernels that test the emulation itself. Not for a device.
#include "common.cuh"

// data[i] = the sum of the numbers up to i, by a scan of the block and through dynamic shared memory.
KERNEL(selftest_scan)(uint32_t* data, uint32_t n) {
    DYNAMIC_SHARED(uint32_t, turned);
    uint32_t i = thread_in_block();
    turned[n - 1 - i] = i;
    __syncthreads();
    uint32_t value = turned[n - 1 - i], total;
    uint32_t before = block_scan(value, total);
    data[i] = total == n * (n - 1) / 2 ? before + value : 0;
}

KERNEL(selftest_barrier_of_some)(uint32_t*, uint32_t) {
    if (thread_in_block() < 40) {
        __syncthreads();
    }
}

KERNEL(selftest_two_barriers)(uint32_t*, uint32_t) {
    if (thread_in_block() < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}

KERNEL(selftest_missing_lane)(uint32_t* data, uint32_t) {
    if (thread_in_block() % 32 != 5) {
        data[thread_in_block()] = __shfl_sync(ALL_LANES, 1u, 0);
    }
}

KERNEL(selftest_not_in_mask)(uint32_t* data, uint32_t) {
    data[thread_in_block()] = __shfl_sync(0xffu, 1u, 0);
}

KERNEL(selftest_reads_outside_mask)(uint32_t* data, uint32_t) {
    if (thread_in_block() % 32 < 16) {
        data[thread_in_block()] = __shfl_sync(0xffffu, 1u, 20);
    }
}

// Even and odd lanes sum by themselves, at the same place and at once.
KERNEL(selftest_halves)(uint32_t* data, uint32_t) {
    uint32_t lane = thread_in_block(), mask = lane % 2 == 0 ? 0x55555555u : 0xaaaaaaaau, sum = lane;
    if (lane % 2 == 0) {
        for (uint32_t step = 2; step < WARP; step *= 2) {
            sum += __shfl_xor_sync(mask, sum, step);
        }
    } else {
        for (uint32_t step = 16; step > 1; step /= 2) {
            sum += __shfl_xor_sync(mask, sum, step);
        }
    }
    data[lane] = sum;
}

// Turns numbers around, without waiting for them.
KERNEL(selftest_no_barrier)(uint32_t* data, uint32_t n) {
    SHARED(uint32_t, numbers, 64);
    uint32_t i = thread_in_block();
    numbers[i] = i;
    data[i] = numbers[n - 1 - i];
}

// For the sanitizers: each of these does what no kernel may.
KERNEL(selftest_reads_past_the_end)(uint32_t* data, uint32_t n) {
    data[0] = data[n];
}
KERNEL(selftest_writes_past_shared)(uint32_t* data, uint32_t n) {
    DYNAMIC_SHARED(uint32_t, numbers);
    numbers[n] = data[0];
}
KERNEL(selftest_writes_past_an_array)(uint32_t* data, uint32_t n) {
    SHARED(uint32_t, numbers, 64);
    numbers[n] = data[0];
}
KERNEL(selftest_misaligned)(uint32_t* data, uint32_t) {
    data[0] = uint32_t(load4(reinterpret_cast<const float*>(data + 1)).x);
}
KERNEL(selftest_overflows)(uint32_t* data, uint32_t n) {
    int32_t most = 0x7fffffff - int32_t(n);
    for (uint32_t i = 0; i <= n; i++) {
        most += int32_t(data[0]);
    }
    data[0] = uint32_t(most);
}
