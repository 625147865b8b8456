// Runs a launch: blocks one after the other in a drawn order, the threads of a block as fibers in a drawn order. In every
// other block, by lot, that order is unfair: whoever could go on last goes on first.
#include "emulate.hpp"

#include <stdarg.h>
#include <stdio.h>

#include <memory>
#include <vector>

#include "fiber.hpp"

namespace emulate {

EMULATE_THREAD Position here;
EMULATE_THREAD Fiber* Fiber::arriving;
EMULATE_THREAD Fiber* Fiber::leaving;

namespace {

// What no device offers more of: compute capability 9.0.
constexpr uint32_t MOST_THREADS = 1024;
constexpr size_t MOST_STATIC = 48 << 10, MOST_SHARED = 227 << 10;

// Numbers for orders and garbage (splitmix64).
struct Draw {
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    uint32_t below(uint32_t n) { return uint32_t((next() >> 32) * n >> 32); }
};

// What the lanes of a mask gave to each other.
struct Exchange {
    alignas(16) unsigned char given[32 * LARGEST_EXCHANGE];
    // Lanes that have not looked at it yet.
    uint32_t readers = 0;
};

enum class Waits { No, Barrier, Warp };

struct Thread {
    // Null until it runs for the first time.
    Fiber* fiber = nullptr;
    uint3 index{};
    Waits waits = Waits::No;
    bool ended = false;
    Site site{};
    // Of a warp operation.
    const char* what = nullptr;
    uint32_t mask = 0;
    int exchange = -1;
};

bool same(const Site& a, const Site& b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// Lanes that wait for each other in one warp operation.
struct Meeting {
    const char* what;
    uint32_t mask;
    size_t bytes;
    Site site;
    uint32_t lanes;
    int exchange;
    bool is(const char* other, uint32_t with, size_t size, Site at) const {
        return what == other && mask == with && bytes == size && same(site, at);
    }
};

struct Warp {
    // At most one for each lane.
    std::vector<std::unique_ptr<Exchange>> exchanges;
    std::vector<int> free;
    std::vector<Meeting> meetings;
    // Lanes that wait in any of them, and those that have ended.
    uint32_t waiting = 0, ended = 0;
};

struct Array {
    const void* key;
    size_t bytes;
    void* memory;
    bool used;
};

// What one thread of the host needs to run launches, one after the other.
class Launcher {
public:
    int launch(const Kernel& kernel, uint3 grid, uint3 block, size_t dynamic, void** arguments, uint64_t seed);
    void barrier(Site site);
    void* shared(const void* key, size_t bytes, size_t alignment);
    void* dynamic() { return dynamic_; }
    const unsigned char* exchange(const char* what, uint32_t mask, const void* mine, size_t bytes, Site site);
    uint32_t lane() const { return current_ % 32; }
    [[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 2, 3)));
    [[noreturn]] void fiber_main();

    char error[512];

private:
    void run_block();
    // Goes on with another thread, or ends the block.
    void go_on();
    Fiber* pick();
    void say_who_waits();
    void complain(const char* format, va_list arguments);
    void garbage(void* memory, size_t bytes);
    void shuffle_ready();
    void forget();

    const Kernel* kernel_ = nullptr;
    void** arguments_ = nullptr;
    void* dynamic_ = nullptr;
    size_t dynamic_bytes_ = 0;
    Draw draw_{0};
    Fiber home_;
    std::vector<std::unique_ptr<Fiber>> fibers_;
    std::vector<Fiber*> free_;
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    // Threads that may go on.
    std::vector<uint32_t> ready_;
    std::vector<Array> arrays_;
    size_t static_bytes_ = 0;
    uint32_t current_ = 0, ended_ = 0, at_barrier_ = 0;
    // Where those at a barrier wait.
    Site barrier_{};
    bool failed_ = false;
    // Whether who could go on last goes on first: then a warp runs ahead of others as far as it can.
    bool ahead_ = false;
};

// Of this thread of the host, which makes it when it first launches and takes it with it when it ends.
EMULATE_THREAD Launcher* launcher;

const Kernel*& kernels() {
    static const Kernel* first = nullptr;
    return first;
}

void Launcher::complain(const char* format, va_list arguments) {
    char text[400];
    vsnprintf(text, sizeof text, format, arguments);
    snprintf(error, sizeof error, "kernel %s: %s", kernel_->name, text);
    failed_ = true;
}

// From a thread of the launch: its stack is given up.
void Launcher::fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    complain(format, arguments);
    va_end(arguments);
    threads_[current_].fiber->switch_to(home_);
    abort();
}

// One number a line: what differs within it is fixed.
void Launcher::garbage(void* memory, size_t bytes) {
    constexpr size_t LINE = 64;
    alignas(LINE) static const uint64_t within[LINE / 8] = {
        0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
        0x1f83d9abfb41bd6b, 0x5be0cd19137e2179, 0xcbbb9d5dc1059ed8, 0x629a292a367cd507,
    };
    unsigned char* at = static_cast<unsigned char*>(memory);
    for (size_t i = 0; i < bytes; i += LINE) {
        uint64_t number = draw_.next(), line[LINE / 8];
        for (size_t k = 0; k < LINE / 8; k++) {
            line[k] = number ^ within[k];
        }
        memcpy(at + i, line, bytes - i < LINE ? bytes - i : LINE);
    }
}

void Launcher::shuffle_ready() {
    for (size_t i = ready_.size(); ahead_ && i > 1; i--) {
        uint32_t other = draw_.below(uint32_t(i));
        uint32_t thread = ready_[i - 1];
        ready_[i - 1] = ready_[other];
        ready_[other] = thread;
    }
}

void Launcher::fiber_main() {
    Fiber::arrived();
    for (;;) {
        Fiber* fiber = threads_[current_].fiber;
        kernel_->call(arguments_);
        threads_[current_].ended = true;
        warps_[current_ / 32].ended |= 1u << current_ % 32;
        threads_[current_].fiber = nullptr;
        ended_++;
        // The next thread may begin on this stack.
        free_.push_back(fiber);
        Fiber* next = pick();
        if (next != fiber) {
            fiber->switch_to(*next);
        }
    }
}

void fiber_main() {
    launcher->fiber_main();
}

void Launcher::say_who_waits() {
    uint32_t first = 0;
    while (threads_[first].waits == Waits::No) {
        first++;
    }
    const Thread& thread = threads_[first];
    const char* what = thread.waits == Waits::Barrier ? "__syncthreads" : thread.what;
    snprintf(
        error, sizeof error,
        "kernel %s: divergence: thread (%u, %u, %u) of block (%u, %u, %u) waits in %s (%s:%d, mask %08x) for threads that "
        "never come; %u of %zu threads have ended, %u wait at barriers",
        kernel_->name, thread.index.x, thread.index.y, thread.index.z, here.block.x, here.block.y, here.block.z, what,
        thread.site.file, thread.site.line, thread.waits == Waits::Warp ? thread.mask : 0, ended_, threads_.size(),
        at_barrier_);
    failed_ = true;
}

// The stack of the thread that goes on, which is then the current one; home if none can.
Fiber* Launcher::pick() {
    if (ready_.empty()) {
        if (ended_ < threads_.size()) {
            say_who_waits();
        }
        return &home_;
    }
    uint32_t at = ahead_ ? uint32_t(ready_.size()) - 1 : draw_.below(uint32_t(ready_.size()));
    current_ = ready_[at];
    ready_[at] = ready_.back();
    ready_.pop_back();
    Thread& thread = threads_[current_];
    here.thread = thread.index;
    if (thread.fiber == nullptr) {
        if (free_.empty()) {
            fibers_.push_back(std::make_unique<Fiber>(emulate::fiber_main));
            free_.push_back(fibers_.back().get());
        }
        thread.fiber = free_.back();
        free_.pop_back();
    }
    return thread.fiber;
}

void Launcher::go_on() {
    Fiber* mine = threads_[current_].fiber;
    Fiber* next = pick();
    if (next != mine) {
        mine->switch_to(*next);
    }
}

void Launcher::barrier(Site site) {
    Thread& thread = threads_[current_];
    if (at_barrier_ > 0 && !same(barrier_, site)) {
        fail(
            "divergence: threads of a block wait at different barriers, %s:%d and %s:%d", barrier_.file, barrier_.line,
            site.file, site.line);
    }
    if (ended_ > 0) {
        fail("divergence: a barrier at %s:%d after threads of the block have ended", site.file, site.line);
    }
    thread.waits = Waits::Barrier;
    thread.site = barrier_ = site;
    at_barrier_++;
    if (at_barrier_ == threads_.size()) {
        at_barrier_ = 0;
        for (uint32_t i = 0; i < threads_.size(); i++) {
            threads_[i].waits = Waits::No;
            ready_.push_back(i);
        }
        shuffle_ready();
    }
    go_on();
}

const unsigned char* Launcher::exchange(
    const char* what, uint32_t mask, const void* mine, size_t bytes, Site site) {
    uint32_t first = current_ / 32 * 32, lane = current_ % 32;
    uint32_t lanes = uint32_t(threads_.size()) - first < 32 ? uint32_t(threads_.size()) - first : 32;
    Warp& warp = warps_[current_ / 32];
    Thread& thread = threads_[current_];
    if (thread.exchange >= 0) {
        Exchange& last = *warp.exchanges[thread.exchange];
        if (--last.readers == 0) {
            warp.free.push_back(thread.exchange);
        }
        thread.exchange = -1;
    }
    if (!(mask >> lane & 1)) {
        fail("divergence: %s at %s:%d by lane %u, which mask %08x lacks", what, site.file, site.line, lane, mask);
    }
    if (lanes < 32 && mask >> lanes != 0) {
        fail("divergence: %s at %s:%d with mask %08x in a warp of %u lanes", what, site.file, site.line, mask, lanes);
    }
    size_t at = 0;
    while (at < warp.meetings.size() && !warp.meetings[at].is(what, mask, bytes, site)) {
        at++;
    }
    uint32_t met = at < warp.meetings.size() ? warp.meetings[at].lanes : 0;
    // Whoever of the mask has ended or waits in something else never comes here.
    if (uint32_t never = mask & (warp.ended | (warp.waiting & ~met)); never != 0) {
        uint32_t i = uint32_t(__builtin_ctz(never));
        const Thread& other = threads_[first + i];
        if (other.ended) {
            fail("divergence: %s at %s:%d waits for lane %u, which has ended", what, site.file, site.line, i);
        }
        fail(
            "divergence: %s at %s:%d with mask %08x meets %s at %s:%d with mask %08x", what, site.file, site.line, mask,
            other.what, other.site.file, other.site.line, other.mask);
    }
    if (met == 0) {
        if (warp.free.empty()) {
            warp.free.push_back(int(warp.exchanges.size()));
            warp.exchanges.push_back(std::make_unique<Exchange>());
        }
        at = warp.meetings.size();
        warp.meetings.push_back(Meeting{what, mask, bytes, site, 0, warp.free.back()});
        warp.free.pop_back();
    }
    Meeting& meeting = warp.meetings[at];
    int number = meeting.exchange;
    Exchange& given = *warp.exchanges[number];
    memcpy(given.given + lane * LARGEST_EXCHANGE, mine, bytes);
    thread.waits = Waits::Warp;
    thread.site = site;
    thread.what = what;
    thread.mask = mask;
    meeting.lanes |= 1u << lane;
    warp.waiting |= 1u << lane;
    if (meeting.lanes == mask) {
        given.readers = uint32_t(__builtin_popcount(mask));
        for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
            uint32_t i = first + uint32_t(__builtin_ctz(rest));
            threads_[i].waits = Waits::No;
            threads_[i].exchange = number;
            ready_.push_back(i);
        }
        warp.waiting &= ~mask;
        warp.meetings[at] = warp.meetings.back();
        warp.meetings.pop_back();
    }
    go_on();
    return warp.exchanges[threads_[first + lane].exchange]->given;
}

void* Launcher::shared(const void* key, size_t bytes, size_t alignment) {
    for (Array& array : arrays_) {
        if (array.key == key) {
            if (!array.used) {
                array.used = true;
                garbage(array.memory, bytes);
            }
            return array.memory;
        }
    }
    static_bytes_ += bytes;
    if (static_bytes_ > MOST_STATIC) {
        fail("%zu bytes of static shared memory, at most %zu are allowed", static_bytes_, MOST_STATIC);
    }
    // Each array by itself, so that an access past its end is found.
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, bytes) != 0) {
        abort();
    }
    garbage(memory, bytes);
    arrays_.push_back(Array{key, bytes, memory, true});
    return memory;
}

void Launcher::run_block() {
    uint3 size = here.block_size;
    ready_.clear();
    ended_ = at_barrier_ = 0;
    uint32_t i = 0;
    for (uint32_t z = 0; z < size.z; z++) {
        for (uint32_t y = 0; y < size.y; y++) {
            for (uint32_t x = 0; x < size.x; x++, i++) {
                Thread& thread = threads_[i];
                thread.fiber = nullptr;
                thread.index = uint3{x, y, z};
                thread.waits = Waits::No;
                thread.ended = false;
                thread.exchange = -1;
                ready_.push_back(i);
            }
        }
    }
    for (Warp& warp : warps_) {
        warp.waiting = warp.ended = 0;
        warp.meetings.clear();
        warp.free.clear();
        for (size_t e = 0; e < warp.exchanges.size(); e++) {
            warp.free.push_back(int(e));
        }
    }
    for (Array& array : arrays_) {
        array.used = false;
    }
    if (dynamic_ != nullptr) {
        garbage(dynamic_, dynamic_bytes_);
    }
    ahead_ = draw_.below(2) == 1;
    shuffle_ready();
    home_.switch_to(*pick());
}

void Launcher::forget() {
    free(dynamic_);
    dynamic_ = nullptr;
    for (Array& array : arrays_) {
        free(array.memory);
    }
    arrays_.clear();
    static_bytes_ = 0;
    if (failed_) {
        // Threads were given up where they stood.
        free_.clear();
        for (auto& fiber : fibers_) {
            fiber->reset();
            free_.push_back(fiber.get());
        }
    }
}

int Launcher::launch(
    const Kernel& kernel, uint3 grid, uint3 block, size_t dynamic, void** arguments, uint64_t seed) {
    kernel_ = &kernel;
    arguments_ = arguments;
    failed_ = false;
    draw_ = Draw{seed};
    uint64_t threads = uint64_t(block.x) * block.y * block.z;
    bool fits = block.x > 0 && block.y > 0 && block.z > 0 && threads <= MOST_THREADS && block.z <= 64;
    bool blocks = grid.x > 0 && grid.x <= 0x7fffffffu && grid.y > 0 && grid.y <= 65535 && grid.z > 0 && grid.z <= 65535;
    if (!fits || !blocks || dynamic > MOST_SHARED) {
        snprintf(
            error, sizeof error,
            "kernel %s: a grid of (%u, %u, %u) blocks of (%u, %u, %u) threads with %zu bytes of shared memory is not "
            "possible",
            kernel.name, grid.x, grid.y, grid.z, block.x, block.y, block.z, dynamic);
        return 1;
    }
    if (dynamic > 0) {
        // Exactly as much as was asked for, so that an access past its end is found.
        if (posix_memalign(&dynamic_, 16, dynamic) != 0) {
            abort();
        }
    }
    dynamic_bytes_ = dynamic;
    threads_.resize(threads);
    warps_.resize((threads + 31) / 32);
    here.block_size = block;
    here.grid_size = grid;
    uint64_t count = uint64_t(grid.x) * grid.y * grid.z;
    // A drawn order without a list: steps through all numbers from somewhere, by a stride without common divisor.
    uint64_t at = draw_.next() % count, stride = draw_.next() % count;
    auto divisor = [](uint64_t a, uint64_t b) {
        while (b != 0) {
            uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        return a;
    };
    while (stride == 0 || divisor(count, stride) != 1) {
        stride++;
    }
    for (uint64_t done = 0; done < count && !failed_; done++) {
        here.block = uint3{
            uint32_t(at % grid.x), uint32_t(at / grid.x % grid.y), uint32_t(at / (uint64_t(grid.x) * grid.y))};
        run_block();
        if (!failed_ && static_bytes_ + dynamic > MOST_SHARED) {
            snprintf(error, sizeof error, "kernel %s: %zu bytes of shared memory", kernel.name, static_bytes_ + dynamic);
            failed_ = true;
        }
        at = (at + stride) % count;
    }
    forget();
    return failed_ ? 1 : 0;
}

}  // namespace

void barrier(Site site) {
    launcher->barrier(site);
}
void* shared(const void* key, size_t bytes, size_t alignment) {
    return launcher->shared(key, bytes, alignment);
}
void* dynamic_shared() {
    return launcher->dynamic();
}
const unsigned char* exchange(const char* what, uint32_t mask, const void* mine, size_t bytes, Site site) {
    return launcher->exchange(what, mask, mine, bytes, site);
}
uint32_t lane() {
    return launcher->lane();
}
void fail(Site site, const char* message) {
    launcher->fail("%s (%s:%d)", message, site.file, site.line);
}

Kernel::Kernel(const char* name, const char* (*arguments)(), Call call)
    : name(name), arguments(arguments), call(call), next(kernels()) {
    kernels() = this;
}

}  // namespace emulate

// What the host calls.
#define EXPORT extern "C" __attribute__((visibility("default")))

// A kernel by name, or null.
EXPORT const void* emulate_find(const char* name) {
    for (const emulate::Kernel* kernel = emulate::kernels(); kernel != nullptr; kernel = kernel->next) {
        if (strcmp(kernel->name, name) == 0) {
            return kernel;
        }
    }
    return nullptr;
}

// The types of a kernel's arguments, each ended by a comma.
EXPORT const char* emulate_arguments(const void* kernel) {
    return static_cast<const emulate::Kernel*>(kernel)->arguments();
}

// The number of a kernel in an order of its own, for listing: null past the last.
EXPORT const char* emulate_name(size_t number) {
    for (const emulate::Kernel* kernel = emulate::kernels(); kernel != nullptr; kernel = kernel->next) {
        if (number-- == 0) {
            return kernel->name;
        }
    }
    return nullptr;
}

// Runs a launch to its end. 0, or 1 with a message in `error`.
EXPORT int emulate_launch(
    const void* kernel, const uint32_t* grid, const uint32_t* block, size_t shared, void** arguments, uint64_t seed,
    char* error, size_t error_bytes) {
    static thread_local const std::unique_ptr<emulate::Launcher> own = std::make_unique<emulate::Launcher>();
    emulate::launcher = own.get();
    int result = own->launch(
        *static_cast<const emulate::Kernel*>(kernel), uint3{grid[0], grid[1], grid[2]},
        uint3{block[0], block[1], block[2]}, shared, arguments, seed);
    if (result != 0 && error_bytes > 0) {
        snprintf(error, error_bytes, "%s", own->error);
    }
    return result;
}
