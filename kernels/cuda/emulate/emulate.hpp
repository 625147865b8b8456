// CUDA's execution model on a CPU, for tests: grid, blocks, barriers, shared memory, warp operations and atomics.
//
// The threads of a block are fibers. Each runs until it waits (a barrier, an operation of its warp) or ends; which goes
// on next is drawn (in some blocks fairly, in some so that a warp runs ahead), and so is the order of blocks. A kernel that is right for every order is right here; one that
// lacks a barrier soon meets an order that shows it. What CUDA leaves undefined is an error here: a barrier
// that not all threads reach, a warp operation whose lanes do not all come. Shared memory begins as garbage.
//
// What is not seen: two threads that write one place without an atomic operation between two waits. Fibers take turns
// only where they wait, so each sees a consistent memory; compute-sanitizer's racecheck looks for these on a device.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

#define DEVICE static inline
#define KERNEL(name) static void name
#define KERNEL_OF(name, threads) static void name
#define __restrict__ __restrict
#define INFINITY_F __builtin_inff()

struct uint3 {
    uint32_t x, y, z;
};
typedef uint3 dim3;
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) int2 {
    int32_t x, y;
};
struct alignas(16) int4 {
    int32_t x, y, z, w;
};
static inline float2 make_float2(float x, float y) {
    return float2{x, y};
}
static inline float4 make_float4(float x, float y, float z, float w) {
    return float4{x, y, z, w};
}
static inline uint2 make_uint2(uint32_t x, uint32_t y) {
    return uint2{x, y};
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    return uint4{x, y, z, w};
}

// A thread's own, found without a call: what every access and every switch asks for. There are few bytes of it.
#define EMULATE_THREAD __thread __attribute__((tls_model("initial-exec")))

namespace emulate {

// Where a thread is: what CUDA's built-in variables say.
struct Position {
    uint3 thread, block, block_size, grid_size;
};
// Of the thread that runs now.
extern EMULATE_THREAD Position here;

// A place in a source.
struct Site {
    const char* file;
    int line;
};

// Waits until all threads of the block have come to this place.
void barrier(Site site);

// Memory that all threads of a block share, the same for one `key`; garbage when the block begins.
void* shared(const void* key, size_t bytes, size_t alignment);
// The memory that the launch asked for.
void* dynamic_shared();

// Most bytes that lanes hand each other at once.
constexpr size_t LARGEST_EXCHANGE = 128;
// What the lanes of a mask gave: 32 places of LARGEST_EXCHANGE bytes. Lanes that are not in the mask gave nothing.
// It stays as it is until this thread's next call.
const unsigned char* exchange(const char* what, uint32_t mask, const void* mine, size_t bytes, Site site);
// This thread's lane, and the lanes that its warp has.
uint32_t lane();
// Ends the launch with an error.
[[noreturn]] void fail(Site site, const char* message);

// What each lane of the mask gave.
template <class T>
struct Given {
    const unsigned char* all;
    uint32_t mask;
    Site site;
    T of(uint32_t lane) const {
        if (lane >= 32 || !(mask >> lane & 1)) {
            fail(site, "a lane reads of one that does not take part");
        }
        T value;
        memcpy(&value, all + lane * LARGEST_EXCHANGE, sizeof(T));
        return value;
    }
};
template <class T>
Given<T> exchange(const char* what, uint32_t mask, const T& mine, Site site) {
    static_assert(sizeof(T) <= LARGEST_EXCHANGE, "too large to hand over at once");
    static_assert(std::is_trivially_copyable<T>::value, "lanes hand over plain data");
    return Given<T>{exchange(what, mask, &mine, sizeof(T), site), mask, site};
}

// An array for each block.
template <class T, class Key>
T& array(Key) {
    // One for each place in the source, as each has a type of its own.
    static char key;
    return *static_cast<T*>(shared(&key, sizeof(T), alignof(T) < 16 ? 16 : alignof(T)));
}

}  // namespace emulate

#define EMULATE_SITE \
    emulate::Site { file, line }
#define EMULATE_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

#define threadIdx (emulate::here.thread)
#define blockIdx (emulate::here.block)
#define blockDim (emulate::here.block_size)
#define gridDim (emulate::here.grid_size)

#define SHARED(type, name, n) auto& name = emulate::array<type[n]>([] {})
#define SHARED_2D(type, name, rows, columns) auto& name = emulate::array<type[rows][columns]>([] {})
#define DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(emulate::dynamic_shared())

static inline void __syncthreads(EMULATE_HERE) {
    emulate::barrier(EMULATE_SITE);
}
static inline void __syncwarp(uint32_t mask = 0xffffffffu, EMULATE_HERE) {
    char none = 0;
    emulate::exchange("__syncwarp", mask, none, EMULATE_SITE);
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}

// The lane that a shuffle within parts of `width` lanes reads.
template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32, EMULATE_HERE) {
    auto given = emulate::exchange("__shfl_sync", mask, value, EMULATE_SITE);
    uint32_t lane = emulate::lane(), part = lane / width * width;
    return given.of(part + uint32_t(source) % width);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, uint32_t by, int width = 32, EMULATE_HERE) {
    auto given = emulate::exchange("__shfl_up_sync", mask, value, EMULATE_SITE);
    uint32_t lane = emulate::lane(), within = lane % width;
    return given.of(within >= by ? lane - by : lane);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, uint32_t by, int width = 32, EMULATE_HERE) {
    auto given = emulate::exchange("__shfl_down_sync", mask, value, EMULATE_SITE);
    uint32_t lane = emulate::lane(), within = lane % width;
    return given.of(within + by < uint32_t(width) ? lane + by : lane);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int with, int width = 32, EMULATE_HERE) {
    auto given = emulate::exchange("__shfl_xor_sync", mask, value, EMULATE_SITE);
    uint32_t lane = emulate::lane(), other = lane ^ uint32_t(with);
    // A part may be read from those above it, not from those below.
    return given.of(other / width <= lane / width ? other : lane);
}
static inline uint32_t __ballot_sync(uint32_t mask, int predicate, EMULATE_HERE) {
    auto given = emulate::exchange("__ballot_sync", mask, predicate, EMULATE_SITE);
    uint32_t found = 0;
    for (uint32_t lane = 0; lane < 32; lane++) {
        if (mask >> lane & 1 && given.of(lane)) {
            found |= 1u << lane;
        }
    }
    return found;
}
static inline int __any_sync(uint32_t mask, int predicate, EMULATE_HERE) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}
static inline int __all_sync(uint32_t mask, int predicate, EMULATE_HERE) {
    return __ballot_sync(mask, predicate, file, line) == mask;
}
template <class T>
uint32_t __match_any_sync(uint32_t mask, T value, EMULATE_HERE) {
    auto given = emulate::exchange("__match_any_sync", mask, value, EMULATE_SITE);
    uint32_t same = 0;
    for (uint32_t lane = 0; lane < 32; lane++) {
        if (mask >> lane & 1 && given.of(lane) == value) {
            same |= 1u << lane;
        }
    }
    return same;
}

// Atomics on 32- and 64-bit integers. Several launches may run at once, on threads of their own.
namespace emulate {
template <class T>
constexpr void check_atomic() {
    static_assert(std::is_integral<T>::value && (sizeof(T) == 4 || sizeof(T) == 8), "atomics are for integers");
}
template <class T>
struct Same {
    typedef T type;
};
template <class T, class F>
T update(T* at, F f) {
    check_atomic<T>();
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(at, &old, f(old), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
}  // namespace emulate
template <class T>
T atomicAdd(T* at, typename emulate::Same<T>::type x) {
    return emulate::update(at, [x](T old) { return T(old + x); });
}
template <class T>
T atomicSub(T* at, typename emulate::Same<T>::type x) {
    return emulate::update(at, [x](T old) { return T(old - x); });
}
template <class T>
T atomicOr(T* at, typename emulate::Same<T>::type x) {
    return emulate::update(at, [x](T old) { return T(old | x); });
}
template <class T>
T atomicAnd(T* at, typename emulate::Same<T>::type x) {
    return emulate::update(at, [x](T old) { return T(old & x); });
}
template <class T>
T atomicMax(T* at, typename emulate::Same<T>::type x) {
    return emulate::update(at, [x](T old) { return old < x ? x : old; });
}
template <class T>
T atomicMin(T* at, typename emulate::Same<T>::type x) {
    return emulate::update(at, [x](T old) { return x < old ? x : old; });
}
template <class T>
T atomicExch(T* at, typename emulate::Same<T>::type x) {
    return emulate::update(at, [x](T) { return x; });
}
template <class T>
T atomicCAS(T* at, typename emulate::Same<T>::type expected, typename emulate::Same<T>::type x) {
    return emulate::update(at, [=](T old) { return old == expected ? x : old; });
}

static inline int __popc(uint32_t x) {
    return __builtin_popcount(x);
}
static inline int __popcll(uint64_t x) {
    return __builtin_popcountll(x);
}
static inline int __ffs(uint32_t x) {
    return __builtin_ffs(int(x));
}
static inline int __ffsll(uint64_t x) {
    return __builtin_ffsll((long long)(x));
}
static inline int __clz(uint32_t x) {
    return x == 0 ? 32 : __builtin_clz(x);
}
static inline int __clzll(uint64_t x) {
    return x == 0 ? 64 : __builtin_clzll(x);
}
static inline uint32_t __umulhi(uint32_t a, uint32_t b) {
    return uint32_t(uint64_t(a) * b >> 32);
}
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
    return uint64_t((unsigned __int128)(a)*b >> 64);
}
template <class T>
T __ldg(const T* p) {
    return *p;
}
static inline float __uint_as_float(uint32_t x) {
    float y;
    memcpy(&y, &x, 4);
    return y;
}
static inline uint32_t __float_as_uint(float x) {
    uint32_t y;
    memcpy(&y, &x, 4);
    return y;
}
static inline float __int_as_float(int32_t x) {
    return __uint_as_float(uint32_t(x));
}
static inline int32_t __float_as_int(float x) {
    return int32_t(__float_as_uint(x));
}
static inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}

// How kernels become known by name. For each source the build writes a file that includes it and says
// `EMULATE_REGISTER(name)` for every kernel in it.
namespace emulate {

typedef void (*Call)(void** arguments);
struct Kernel {
    const char* name;
    // Types of its arguments, one after the other, each ended by a comma.
    const char* (*arguments)();
    Call call;
    const Kernel* next;
    Kernel(const char* name, const char* (*arguments)(), Call call);
};

template <class T>
struct TypeName;
#define EMULATE_TYPE(type, text)                                     \
    template <>                                                      \
    struct TypeName<type> {                                          \
        static const char* name() { return text ","; }               \
    };                                                               \
    template <>                                                      \
    struct TypeName<type*> {                                         \
        static const char* name() { return text "*,"; }              \
    };                                                               \
    template <>                                                      \
    struct TypeName<const type*> {                                   \
        static const char* name() { return "const " text "*,"; }     \
    }
EMULATE_TYPE(int8_t, "i8");
EMULATE_TYPE(uint8_t, "u8");
EMULATE_TYPE(uint16_t, "u16");
EMULATE_TYPE(int32_t, "i32");
EMULATE_TYPE(uint32_t, "u32");
EMULATE_TYPE(int64_t, "i64");
EMULATE_TYPE(uint64_t, "u64");
EMULATE_TYPE(float, "f32");
EMULATE_TYPE(double, "f64");

// Of an argument, which threads may share.
template <class A>
struct Value {
    typedef typename std::remove_const<typename std::remove_reference<A>::type>::type type;
};
template <auto function>
struct Caller;
template <class... A, void (*function)(A...)>
struct Caller<function> {
    template <size_t... i>
    static void spread(void** arguments, std::integer_sequence<size_t, i...>) {
        function(*static_cast<typename Value<A>::type*>(arguments[i])...);
    }
    static void call(void** arguments) {
        spread(arguments, std::make_integer_sequence<size_t, sizeof...(A)>());
    }
    static const char* arguments() {
        static char text[32 * (sizeof...(A) + 1)];
        text[0] = 0;
        (strcat(text, TypeName<typename Value<A>::type>::name()), ...);
        return text;
    }
};

}  // namespace emulate
#define EMULATE_REGISTER(kernel)                  \
    static const emulate::Kernel registered_##kernel( \
        #kernel, emulate::Caller<&kernel>::arguments, emulate::Caller<&kernel>::call)
