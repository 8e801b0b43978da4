#include "tests/cuda/emulate_fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/emulate_runtime.h"

#ifdef WEFT_EMULATE_ASAN
#include <sanitizer/common_interface_defs.h>
enum { STACK_BYTES = 512 << 10 };
#else
enum { STACK_BYTES = 128 << 10 };
#endif

static fiber *entering; /* whose first switch it is, and who made it */
static fiber *leaving;

/* Completes a switch for the sanitizer, on the new stack. */
static void arrived(fiber *self, fiber *from)
{
#ifdef WEFT_EMULATE_ASAN
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(self->fake_stack, &bottom, &bytes);
    if (!from->stack) { /* the thread's own, of which nobody told us */
        from->stack = (void *)(uintptr_t)bottom;
        from->stack_bytes = bytes;
    }
#else
    (void)self;
    (void)from;
#endif
}

static void enter(void)
{
    fiber *self = entering;
    arrived(self, leaving);
    self->run();
    abort();
}

#ifdef __x86_64__
/* Saves what a function must preserve on the stack that is left, and takes it from the other. */
void weft_emulate_jump(void **out_stack_pointer, void *stack_pointer);
__asm__(".text\n"
        ".p2align 4\n"
        ".type weft_emulate_jump, @function\n"
        "weft_emulate_jump:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size weft_emulate_jump, .-weft_emulate_jump\n");

static void prepare(fiber *self)
{
    void (*const function)(void) = enter;
    void **top = (void **)((unsigned char *)self->stack + self->stack_bytes);
    *--top = NULL; /* where a caller's address would be */
    memcpy(--top, &function, sizeof function);
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    self->stack_pointer = top;
}

static void jump(fiber *from, fiber *to)
{
    weft_emulate_jump(&from->stack_pointer, to->stack_pointer);
}
#else
#include <ucontext.h>

static ucontext_t *context(fiber *self)
{
    if (!self->stack_pointer && !(self->stack_pointer = calloc(1, sizeof(ucontext_t))))
        weft_emulate_die("out of memory");
    return self->stack_pointer;
}

static void prepare(fiber *self)
{
    ucontext_t *c = context(self);
    getcontext(c);
    c->uc_stack.ss_sp = self->stack;
    c->uc_stack.ss_size = self->stack_bytes;
    makecontext(c, enter, 0);
}

static void jump(fiber *from, fiber *to)
{
    swapcontext(context(from), context(to));
}
#endif

void fiber_adopt(fiber *self)
{
    self->stack = NULL;
    self->stack_bytes = 0;
}

bool fiber_started(const fiber *self)
{
    return self->run != NULL;
}

void fiber_start(fiber *self, void (*run)(void))
{
    const size_t guard = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *memory = mmap(NULL, STACK_BYTES + guard, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE))
        weft_emulate_die("no memory for a stack");
    self->stack = memory + guard;
    self->stack_bytes = STACK_BYTES;
    self->run = run;
    prepare(self);
}

void fiber_switch(fiber *from, fiber *to)
{
    entering = to;
    leaving = from;
#ifdef WEFT_EMULATE_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
    jump(from, to);
    arrived(from, leaving);
}
