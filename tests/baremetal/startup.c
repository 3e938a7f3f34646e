/* From reset to main on a Cortex-M with a floating-point unit; output by newlib's semihosting. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern char data_start[], data_end[], data_load[], bss_start[], bss_end[], stack_top[];
extern void initialise_monitor_handles(void);
extern int main(int argc, char **argv);

void reset(void);
static void fault(void) {
    for (;;) {
        exit(1);
    }
}

__attribute__((section(".vectors"), used)) static void (*const vectors[])(void) = {
    (void (*)(void))(uintptr_t)stack_top,
    reset,
    fault, /* NMI */
    fault, /* hard fault */
    fault, /* memory */
    fault, /* bus */
    fault, /* usage */
};

/* Coprocessors 10 and 11 are the floating-point unit: off after a reset. */
__attribute__((naked)) void reset(void) {
    __asm__ volatile("ldr r0, =0xE000ED88\n" /* CPACR */
                     "ldr r1, [r0]\n"
                     "orr r1, r1, #0xF00000\n"
                     "str r1, [r0]\n"
                     "dsb\n"
                     "isb\n"
                     "b start\n");
}

__attribute__((used)) void start(void);
void start(void) {
    memcpy(data_start, data_load, (size_t)(data_end - data_start));
    memset(bss_start, 0, (size_t)(bss_end - bss_start));
    initialise_monitor_handles();
    static char name[] = "program";
    static char *arguments[] = {name, NULL};
    exit(main(1, arguments));
}

/* newlib's exit calls what crti.o would hold. */
void _init(void);
void _init(void) {}
void _fini(void);
void _fini(void) {}
