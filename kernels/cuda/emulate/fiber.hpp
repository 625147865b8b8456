// Fibers: stacks of their own on one thread, switched by hand. On x86-64 by saving what a callee must keep, elsewhere by
// ucontext. The address sanitizer is told of every switch.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMULATE_ASAN 1
#else
#define EMULATE_ASAN 0
#endif

namespace emulate {

constexpr size_t STACK = EMULATE_ASAN ? 256 << 10 : 64 << 10;

#if defined(__x86_64__)
extern "C" void emulate_switch(void** from, void* to);
asm(R"(
.text
.type emulate_switch, @function
emulate_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulate_switch, .-emulate_switch
)");
#endif

// A stack, or the one of the thread that launches.
class Fiber {
public:
    // The thread's own stack, learnt when it is first left.
    Fiber() = default;
    // A stack that will run `main`, which never returns.
    explicit Fiber(void (*main)()) : main_(main) {
        size_t page = size_t(sysconf(_SC_PAGESIZE));
        memory_ = mmap(nullptr, STACK + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory_ == MAP_FAILED) {
            abort();
        }
        // Whoever outgrows the stack dies there.
        mprotect(memory_, page, PROT_NONE);
        bottom_ = static_cast<char*>(memory_) + page;
        size_ = STACK;
        reset();
    }
    ~Fiber() {
        if (memory_ != nullptr) {
            unpoison();
            munmap(memory_, size_t(static_cast<const char*>(bottom_) - static_cast<char*>(memory_)) + STACK);
        }
    }
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // Begins anew; what was on the stack is forgotten.
    void reset() {
        unpoison();
        fake_ = nullptr;
#if defined(__x86_64__)
        void** top = reinterpret_cast<void**>(static_cast<char*>(const_cast<void*>(bottom_)) + size_);
        // As after a call: 8 below a multiple of 16 once `main` has been returned to.
        *--top = nullptr;
        *--top = reinterpret_cast<void*>(main_);
        for (int i = 0; i < 6; i++) {
            *--top = nullptr;
        }
        stack_ = top;
#else
        getcontext(&context_);
        context_.uc_stack.ss_sp = const_cast<void*>(bottom_);
        context_.uc_stack.ss_size = size_;
        context_.uc_link = nullptr;
        makecontext(&context_, main_, 0);
#endif
    }

    // Goes on at `to`; returns when somebody comes back here.
    void switch_to(Fiber& to) {
        arriving = &to;
        leaving = this;
#if EMULATE_ASAN
        __sanitizer_start_switch_fiber(&fake_, to.bottom_, to.size_);
#endif
#if defined(__x86_64__)
        emulate_switch(&stack_, to.stack_);
#else
        swapcontext(&context_, &to.context_);
#endif
        arrived();
    }

    // The first thing that happens on a stack that was switched to.
    static void arrived() {
#if EMULATE_ASAN
        const void* bottom;
        size_t size;
        __sanitizer_finish_switch_fiber(arriving->fake_, &bottom, &size);
        if (leaving->memory_ == nullptr) {
            leaving->bottom_ = bottom;
            leaving->size_ = size;
        }
#endif
    }

private:
    void unpoison() {
#if EMULATE_ASAN
        __asan_unpoison_memory_region(bottom_, size_);
#endif
    }

    static EMULATE_THREAD Fiber* arriving;
    static EMULATE_THREAD Fiber* leaving;

    void (*main_)() = nullptr;
    void* memory_ = nullptr;
    const void* bottom_ = nullptr;
    size_t size_ = 0;
    [[maybe_unused]] void* fake_ = nullptr;
#if defined(__x86_64__)
    void* stack_ = nullptr;
#else
    ucontext_t context_;
#endif
};

}  // namespace emulate
