/* Start of a Cortex-M: the vector table, and what C expects before main. */
#include <stdint.h>

extern uint32_t _stack_top, _data_start, _data_end, _data_load, _bss_start, _bss_end;
int main(void);

void reset(void)
{
    uint32_t *to;
    const uint32_t *from = &_data_load;
    for (to = &_data_start; to < &_data_end; to++)
        *to = *from++;
    for (to = &_bss_start; to < &_bss_end; to++)
        *to = 0;
#if defined(__ARM_FP)
    *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20; /* switch the floating-point unit on */
    __asm volatile("dsb\n isb");
#endif
    main();
    for (;;)
        ;
}

static void fault(void)
{
    __asm volatile("bkpt 0");
    for (;;)
        ;
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    &_stack_top, (const void *)reset, (const void *)fault, (const void *)fault,
};
