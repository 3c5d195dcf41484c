/* Runs a generated network on embedded inputs; prints each output word in hexadecimal, then the deepest stack in bytes. */
#include "console.h"
#include "inputs.h"

extern uint32_t _bss_end, _stack_top;
#define PATTERN 0xa5c3f00du
#define DEEPEST 4096u

static void word(uint32_t bits)
{
    char text[10];
    for (int i = 0; i < 8; i++)
        text[i] = "0123456789abcdef"[bits >> (28 - 4 * i) & 15];
    text[8] = '\n';
    text[9] = 0;
    print(text);
}

static void __attribute__((noinline)) run_all(void)
{
    static output_type output[OUTPUTS];
    for (int i = 0; i < INPUTS; i++) {
        RUN(inputs[i], output);
        for (int o = 0; o < OUTPUTS; o++) {
            uint32_t bits;
            __builtin_memcpy(&bits, &output[o], 4);
            word(bits);
        }
    }
}

int main(void)
{
    uint32_t *const top = &_stack_top - 16; /* main's own frame is above */
    uint32_t *low = &_stack_top - DEEPEST / 4;
    if (low < &_bss_end)
        low = &_bss_end;
    for (volatile uint32_t *at = low; at < (uint32_t *)__builtin_frame_address(0) - 16 && at < top; at++)
        *at = PATTERN;
    run_all();
    while (*low == PATTERN)
        low++;
    print("stack\n");
    word((uint32_t)((uintptr_t)&_stack_top - (uintptr_t)low));
    finish();
    return 0;
}
