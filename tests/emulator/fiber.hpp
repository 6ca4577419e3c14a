// Fibers: stacks on which threads run, one at a time. A switch takes some ten nanoseconds, and this program chooses the order.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifndef EMULATOR_UNSANITIZED
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
// Without sanitizers there is nothing to tell them.
inline void __asan_unpoison_memory_region(const volatile void*, size_t) {}
inline void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
inline void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
#endif

namespace emulator {

constexpr size_t kStackBytes = 96 << 10;

#ifdef __x86_64__
// Saves the callee-saved registers on the current stack, stores the stack's address in *from, and continues on the stack at `to`.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.weak emulator_switch
.hidden emulator_switch
emulator_switch:
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
)");
#endif

// One stack, and where its thread stopped.
class Fiber {
  public:
    Fiber() {
        void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            perror("mmap");
            abort();
        }
        stack = static_cast<char*>(memory);
    }
    ~Fiber() { munmap(stack, kStackBytes); }
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // Begins `body` at the next `resume`. It must end with `leave(true)`.
    void prepare(void (*body)()) {
        __asan_unpoison_memory_region(stack, kStackBytes);
#ifdef __x86_64__
        // Six registers, the address to return to, and the alignment that a call would have left.
        auto top = reinterpret_cast<void**>(stack + kStackBytes) - 1;
        *--top = reinterpret_cast<void*>(body);
        top -= 6;
        for (int i = 0; i < 6; ++i) top[i] = nullptr;
        at = top;
#else
        getcontext(&context);
        context.uc_stack = {stack, 0, kStackBytes};
        context.uc_link = nullptr;
        makecontext(&context, body, 0);
#endif
    }

    // Called by the scheduler: runs the fiber until it leaves.
    void resume() {
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(&fake, stack, kStackBytes);
#ifdef __x86_64__
        emulator_switch(&back, at);
#else
        swapcontext(&back, &context);
#endif
        __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
    }

    // Called by the fiber, before anything else.
    void enter() { __sanitizer_finish_switch_fiber(nullptr, &outer, &outer_bytes); }

    // Called by the fiber: returns to the scheduler.
    void leave(bool for_ever) {
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(for_ever ? nullptr : &fake, outer, outer_bytes);
#ifdef __x86_64__
        emulator_switch(&at, back);
#else
        swapcontext(&context, &back);
#endif
        __sanitizer_finish_switch_fiber(fake, &outer, &outer_bytes);
    }

  private:
    char* stack;
    const void* outer = nullptr;
    size_t outer_bytes = 0;
#ifdef __x86_64__
    void* at = nullptr;
    void* back = nullptr;
#else
    ucontext_t context;
    ucontext_t back;
#endif
};

}  // namespace emulator
