/* Fibers: functions with stacks of their own that give the processor to each other by name, in one
 * thread of the operating system at a time. Sanitizers are told. */
#ifndef WEFT_TESTS_CUDA_EMULATE_FIBER_H
#define WEFT_TESTS_CUDA_EMULATE_FIBER_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __SANITIZE_ADDRESS__
#define WEFT_EMULATE_ASAN
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define WEFT_EMULATE_ASAN
#endif
#endif

#ifdef WEFT_EMULATE_ASAN
#include <sanitizer/asan_interface.h>
#define forbid_access(memory, bytes) __asan_poison_memory_region((memory), (bytes))
#define allow_access(memory, bytes) __asan_unpoison_memory_region((memory), (bytes))
#else
#define forbid_access(memory, bytes) ((void)(memory), (void)(bytes))
#define allow_access(memory, bytes) ((void)(memory), (void)(bytes))
#endif

typedef struct fiber {
    void *stack_pointer; /* while it does not run; elsewhere a ucontext_t */
    void *stack, *fake_stack;
    size_t stack_bytes;
    void (*run)(void);
} fiber;

/* Makes a fiber of the caller, which then can switch to others and be switched to. */
void fiber_adopt(fiber *self);
/* Gives the fiber a stack. `run` is called by the first switch to it, and never returns. */
void fiber_start(fiber *self, void (*run)(void));
bool fiber_started(const fiber *self);
/* Goes on in `to` where that left off, until somebody switches to `from`, which is the caller. */
void fiber_switch(fiber *from, fiber *to);

#endif
