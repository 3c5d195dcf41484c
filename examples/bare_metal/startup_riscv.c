/* Start of a RISC-V: a stack, a cleared memory, main. The machine is QEMU's `virt`, whose program lies in RAM. */
#include <stdint.h>

extern uint32_t _bss_start, _bss_end;
int main(void);

void start(void)
{
    for (uint32_t *to = &_bss_start; to < &_bss_end; to++)
        *to = 0;
    main();
    for (;;)
        ;
}

__asm(".section .vectors,\"ax\"\n.globl reset\nreset:\n la sp, _stack_top\n"
#if defined(__riscv_flen)
      " li t0, 0x6000\n csrs mstatus, t0\n"
#endif
      " j start\n.text\n");
