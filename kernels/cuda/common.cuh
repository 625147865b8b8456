// What every kernel source includes. The same sources are compiled by NVRTC for a device, and as C++ against
// emulate/emulate.hpp for the CPU. Nothing of a toolkit's headers is needed: NVRTC gets these files alone.
//
// Rules of the sources:
// - Arguments of kernels are pointers, 32- and 64-bit integers, float and double, so that one array of pointers to
//   arguments serves both ways of launching; those of several launches that are one are one struct (KERNEL_JOINED).
// - Products are fused only where `fmaf` says so (NVRTC is told -fmad=false), so that bits do not depend on a compiler.
// - No atomics on floats, and atomics on integers only where the result does not depend on their order.
// - An index that is out of range sets a bit of `fault` and is passed over; it never traps.
#pragma once

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

// `KERNEL(name)(arguments) { body }`: a kernel that is launched by name.
#define KERNEL(name) extern "C" __global__ void name
// The same for blocks of at most so many threads: the compiler may use more registers.
#define KERNEL_OF(name, threads) extern "C" __global__ void __launch_bounds__(threads, 1) name
#define BODY static __device__ __forceinline__ void
#define DEVICE static __device__ __forceinline__
// Static shared memory: `name` is an array of n, or of rows x columns.
#define SHARED(type, name, n) __shared__ type name[n]
#define SHARED_2D(type, name, rows, columns) __shared__ type name[rows][columns]
// Dynamic shared memory: `name` is a pointer to what the launch asked for, aligned to 16 bytes.
#define DYNAMIC_SHARED(type, name)                          \
    extern __shared__ __align__(16) unsigned char all_of_dynamic_shared_memory[]; \
    type* name = reinterpret_cast<type*>(all_of_dynamic_shared_memory)
#define INFINITY_F __int_as_float(0x7f800000)
// An argument of which threads have no copies.
#define OF_GRID(...) const __grid_constant__ __VA_ARGS__
#else
#include "emulate/emulate.hpp"
#define BODY static __attribute__((noinline)) void
#define OF_GRID(...) const __VA_ARGS__&
#endif

// Numbers of activations: REAL is float or bf16. A brain float is the upper half of a float.
struct alignas(2) bf16 {
    uint16_t bits;
};

#ifndef __CUDACC_RTC__
namespace emulate {
EMULATE_TYPE(bf16, "bf16");
}
#endif

#ifndef REAL
#define REAL float
#endif

DEVICE float to_float(float x) {
    return x;
}
DEVICE float to_float(bf16 x) {
    return __uint_as_float(uint32_t(x.bits) << 16);
}

// Rounds to the nearest brain float, to the even one of two; what is no number stays none.
DEVICE bf16 round_to_bf16(float x) {
#ifdef __CUDACC_RTC__
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#else
    uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return bf16{0x7fff};
    }
    return bf16{uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
#endif
}

template <class T>
struct From;
template <>
struct From<float> {
    DEVICE float of(float x) {
        return x;
    }
};
template <>
struct From<bf16> {
    DEVICE bf16 of(float x) {
        return round_to_bf16(x);
    }
};
// A float as another type of numbers.
template <class T>
DEVICE T from_float(float x) {
    return From<T>::of(x);
}

// Functions whose last bits differ between a device and the CPU.
DEVICE float fast_exp(float x) {
#ifdef __CUDACC_RTC__
    return __expf(x);
#else
    return expf(x);
#endif
}
DEVICE float fast_divide(float x, float y) {
#ifdef __CUDACC_RTC__
    return __fdividef(x, y);
#else
    return x / y;
#endif
}

// What went wrong, as bits of `fault`.
enum Fault : uint32_t {
    FAULT_ID = 1,     // an id that no row has
    FAULT_ROW = 2,    // a row or position out of range
    FAULT_CLASS = 4,  // a class or microbatch that there is not
    FAULT_SIZE = 8,   // sizes that do not agree
};

DEVICE void raise_fault(uint32_t* fault, Fault what) {
    atomicOr(fault, uint32_t(what));
}

// A thread's number within its block, and the threads of a block.
DEVICE uint32_t thread_in_block() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
DEVICE uint32_t threads_of_block() {
    return blockDim.x * blockDim.y * blockDim.z;
}
// Which block of a grid of one dimension a thread is in, and how many there are: of the grid that was asked for, which may be
// a part of the one that was launched.
struct Grid {
    uint32_t block, blocks;
};
DEVICE Grid whole_grid() {
    return Grid{blockIdx.x, gridDim.x};
}
// A thread's number within a grid of one dimension, and the threads of that.
DEVICE uint64_t thread_in_grid(Grid grid) {
    return uint64_t(grid.block) * blockDim.x + threadIdx.x;
}
DEVICE uint64_t threads_of_grid(Grid grid) {
    return uint64_t(grid.blocks) * blockDim.x;
}
DEVICE uint64_t thread_in_grid() {
    return thread_in_grid(whole_grid());
}
DEVICE uint64_t threads_of_grid() {
    return threads_of_grid(whole_grid());
}

// `KERNEL_JOINED(name, (arguments), (their names)) { body }`: two kernels with one body, which finds in `grid` where it is.
// `name` is launched with its arguments, as any other. `name_joined` does the work of several such launches of as many
// threads a block: it gets where the blocks of each end, and the words of the arguments of each.
const uint32_t MOST_JOINED = 32;
template <uint32_t arguments>
struct Joined {
    // Rising; behind the last launch all are the number of blocks.
    uint32_t ends[MOST_JOINED];
    uint64_t words[MOST_JOINED][arguments];
};

// An argument from its word.
template <class T>
struct Word {
    DEVICE T get(uint64_t word) {
        return T(word);
    }
};
template <class T>
struct Word<T*> {
    DEVICE T* get(uint64_t word) {
        return reinterpret_cast<T*>(word);
    }
};
template <>
struct Word<float> {
    DEVICE float get(uint64_t word) {
        return __uint_as_float(uint32_t(word));
    }
};

template <uint32_t... numbers>
struct Numbers {};
template <uint32_t n, uint32_t... numbers>
struct Below : Below<n - 1, n - 1, numbers...> {};
template <uint32_t... numbers>
struct Below<0, numbers...> {
    typedef Numbers<numbers...> All;
};

template <class Body>
struct Launches;
template <class... A>
struct Launches<void (*)(Grid, A...)> {
    typedef Joined<sizeof...(A)> Arguments;
    typedef typename Below<sizeof...(A)>::All Each;
    template <void (*body)(Grid, A...), uint32_t... numbers>
    DEVICE void call(Grid grid, const uint64_t* words, Numbers<numbers...>) {
        body(grid, Word<A>::get(words[numbers])...);
    }
    // Does what the block is for.
    template <void (*body)(Grid, A...)>
    DEVICE void run(const Arguments& all) {
        uint32_t one = 0, begin = 0;
        while (blockIdx.x >= all.ends[one]) {
            begin = all.ends[one];
            one++;
        }
        call<body>(Grid{blockIdx.x - begin, all.ends[one] - begin}, all.words[one], Each());
    }
};

#define BEHIND_GRID(...) ([[maybe_unused]] Grid grid, __VA_ARGS__)
#define OF_WHOLE_GRID(...) (whole_grid(), __VA_ARGS__)
#define KERNELS_WITH_BODY(entry, joined_entry, body, arguments, names)             \
    BODY body BEHIND_GRID arguments;                                                \
    entry arguments {                                                              \
        body OF_WHOLE_GRID names;                                                  \
    }                                                                              \
    joined_entry(OF_GRID(Launches<decltype(&body)>::Arguments) all) {               \
        Launches<decltype(&body)>::run<&body>(all);                                \
    }                                                                              \
    BODY body BEHIND_GRID arguments
#define KERNEL_JOINED(name, arguments, names) \
    KERNELS_WITH_BODY(KERNEL(name), KERNEL(name##_joined), name##_body, arguments, names)
// The same for blocks of at most so many threads.
#define KERNEL_JOINED_OF(name, threads, arguments, names) \
    KERNELS_WITH_BODY(KERNEL_OF(name, threads), KERNEL_OF(name##_joined, threads), name##_body, arguments, names)

#ifndef __CUDACC_RTC__
namespace emulate {
template <uint32_t arguments>
struct TypeName<Joined<arguments>> {
    static const char* name() {
        static char text[] = "joined 00,";
        text[7] = char('0' + arguments / 10);
        text[8] = char('0' + arguments % 10);
        return text;
    }
};
}
#endif

template <class T>
DEVICE T least(T a, T b) {
    return b < a ? b : a;
}
template <class T>
DEVICE T greatest(T a, T b) {
    return a < b ? b : a;
}
DEVICE uint64_t ceiling(uint64_t a, uint64_t b) {
    return (a + b - 1) / b;
}

const uint32_t WARP = 32;
const uint32_t ALL_LANES = 0xffffffffu;

// The sum of the values of the lanes below, and in `total` that of the warp. All lanes take part.
template <class T>
DEVICE T warp_scan(T value, T& total) {
    uint32_t lane = thread_in_block() % WARP;
    T sum = value;
    for (uint32_t step = 1; step < WARP; step *= 2) {
        T below = __shfl_up_sync(ALL_LANES, sum, step);
        if (lane >= step) {
            sum += below;
        }
    }
    total = __shfl_sync(ALL_LANES, sum, WARP - 1);
    return sum - value;
}

// The sum of the values of the threads before, and in `total` that of the block: for integers, whose sums have no order.
// All threads take part, at most 1024, whole warps.
template <class T>
DEVICE T block_scan(T value, T& total) {
    SHARED(T, warps, 32);
    uint32_t thread = thread_in_block(), lane = thread % WARP, warp = thread / WARP;
    T of_warp;
    T before = warp_scan(value, of_warp);
    if (lane == 0) {
        warps[warp] = of_warp;
    }
    __syncthreads();
    uint32_t count = ceiling(threads_of_block(), WARP);
    T all = 0, below = 0;
    for (uint32_t w = 0; w < count; w++) {
        if (w == warp) {
            below = all;
        }
        all += warps[w];
    }
    // Before anybody writes there again.
    __syncthreads();
    total = all;
    return below + before;
}

// The sum over the lanes of a warp, in a fixed order (by halves), the same in all lanes. All lanes take part.
template <class T>
DEVICE T warp_sum(T value) {
    for (uint32_t step = WARP / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, step);
    }
    return value;
}
template <class T>
DEVICE T warp_max(T value) {
    for (uint32_t step = WARP / 2; step > 0; step /= 2) {
        value = greatest(value, __shfl_xor_sync(ALL_LANES, value, step));
    }
    return value;
}

// The sum over the threads of a block, in a fixed order, the same in all. All threads take part, whole warps.
template <class T>
DEVICE T block_sum(T value) {
    SHARED(T, sums, 32);
    uint32_t thread = thread_in_block();
    value = warp_sum(value);
    if (thread % WARP == 0) {
        sums[thread / WARP] = value;
    }
    __syncthreads();
    uint32_t count = ceiling(threads_of_block(), WARP);
    T sum = sums[0];
    for (uint32_t w = 1; w < count; w++) {
        sum += sums[w];
    }
    __syncthreads();
    return sum;
}
template <class T>
DEVICE T block_max(T value) {
    SHARED(T, tops, 32);
    uint32_t thread = thread_in_block();
    value = warp_max(value);
    if (thread % WARP == 0) {
        tops[thread / WARP] = value;
    }
    __syncthreads();
    uint32_t count = ceiling(threads_of_block(), WARP);
    T top = tops[0];
    for (uint32_t w = 1; w < count; w++) {
        top = greatest(top, tops[w]);
    }
    __syncthreads();
    return top;
}

// Whether vectors of 16 bytes can be read or written at `p` and at whole strides of elements from it.
template <class T>
DEVICE bool aligned16(const T* p, uint64_t stride) {
    return reinterpret_cast<uint64_t>(p) % 16 == 0 && stride * sizeof(T) % 16 == 0;
}

// Four numbers at a time.
DEVICE float4 load4(const float* p) {
    return *reinterpret_cast<const float4*>(p);
}
DEVICE float4 load4(const bf16* p) {
    uint2 x = *reinterpret_cast<const uint2*>(p);
    return make_float4(
        __uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
        __uint_as_float(x.y & 0xffff0000u));
}
DEVICE void store4(float* p, float4 x) {
    *reinterpret_cast<float4*>(p) = x;
}
DEVICE void store4(bf16* p, float4 x) {
    uint2 y;
    y.x = round_to_bf16(x.x).bits | uint32_t(round_to_bf16(x.y).bits) << 16;
    y.y = round_to_bf16(x.z).bits | uint32_t(round_to_bf16(x.w).bits) << 16;
    *reinterpret_cast<uint2*>(p) = y;
}
// Whether `load4` and `store4` may be used at whole strides from `p`.
template <class T>
DEVICE bool by_fours(const T* p, uint64_t stride) {
    return reinterpret_cast<uint64_t>(p) % (4 * sizeof(T)) == 0 && stride % 4 == 0;
}
