/* Makes a process believe that it runs on an AVX2 machine (no AVX-512, AMX, AVX-VNNI, GFNI), or, with
 * XNORPP_HIDDEN=amx in the environment, on a machine that is the same but has no matrix unit (AMX).
 *
 *     gcc -O2 -shared -fPIC -o libavx2_only.so avx2_only.c -ldl
 *     LD_PRELOAD=./libavx2_only.so python benchmarks/resnet18_cpu.py
 *
 * Why: our figures are promised for AVX2 machines, and every engine here picks its kernels at run time
 * from CPUID. On a newer machine each has its own switch (and some have none), so none can be compared fairly.
 * Here one switch serves all: Linux can let CPUID fault (`arch_prctl(ARCH_SET_CPUID, 0)`, inherited by
 * threads and children); the SIGSEGV handler below executes the real instruction, clears the bits of everything
 * that a Zen 3 does not have, and goes on behind it. Kernels already chosen by the C library are not touched.
 *
 * AMD's processors mostly cannot let CPUID fault. There `xnorpp bench` runs copies of the other engines in which every CPUID
 * is the undefined instruction 0f 0a, and XNORPP_PATCHED=1 lets the SIGILL handler answer it in the same way.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID_ = 0x1012 };

static int (*real_sigaction)(int, const struct sigaction *, struct sigaction *);
static int (*real_sigmask)(int, const sigset_t *, sigset_t *);
static int (*real_procmask)(int, const sigset_t *, sigset_t *);
static struct sigaction others; /* the handler somebody else wanted for our signal */
static int only_amx;            /* whether nothing but the matrix unit is hidden */
static int patched;             /* whether CPUID was replaced in the files, and need not fault */
static int ours = SIGSEGV;      /* the signal that stands for a CPUID */

/* Raw system call: a signal handler may not touch errno or the C library's state. */
static long set_cpuid(long enabled) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_arch_prctl), "D"(ARCH_SET_CPUID_), "S"(enabled)
                     : "rcx", "r11", "memory");
    return result;
}

static void masked_cpuid(uint32_t leaf, uint32_t sub, uint32_t r[4]) {
    if (!patched) set_cpuid(1);
    __asm__ volatile("cpuid" : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3]) : "a"(leaf), "c"(sub));
    if (!patched) set_cpuid(0);
    if (only_amx) {
        if (leaf == 7 && sub == 0) r[3] &= ~((1u << 22) | (1u << 24) | (1u << 25));
        else if (leaf == 7 && sub == 1) r[0] &= ~(1u << 21), r[3] &= ~(1u << 8);
        else if (leaf == 0xd && sub == 0) r[0] &= ~((1u << 17) | (1u << 18)); /* its state */
        else if ((leaf == 0xd && (sub == 17 || sub == 18)) || leaf == 0x1d || leaf == 0x1e) memset(r, 0, 16);
        return;
    }
    if (leaf == 7 && sub == 0) {
        r[1] &= ~((1u << 16) | (1u << 17) | (1u << 21) | (1u << 26) | (1u << 27) | (1u << 28) | (1u << 30) | (1u << 31));
        r[2] &= ~((1u << 1) | (1u << 6) | (1u << 8) | (1u << 11) | (1u << 12) | (1u << 14));
        r[3] &= ~((1u << 2) | (1u << 3) | (1u << 8) | (1u << 22) | (1u << 23) | (1u << 24) | (1u << 25));
    } else if (leaf == 7 && sub == 1) {
        r[0] &= ~((1u << 4) | (1u << 5) | (1u << 21) | (1u << 23));
        r[3] &= ~((1u << 4) | (1u << 5) | (1u << 8) | (1u << 10) | (1u << 19));
    } else if (leaf == 0xd && sub == 0) {
        r[0] &= 7; /* x87, SSE, AVX state only */
    } else if ((leaf == 0xd && sub > 2 && sub < 64) || leaf == 0x1d || leaf == 0x1e || leaf == 0x24) {
        memset(r, 0, 16);
    }
}

static void on_cpuid(int signal, siginfo_t *info, void *context) {
    ucontext_t *uc = (ucontext_t *)context;
    greg_t *g = uc->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)g[REG_RIP];
    /* A CPUID fault is a general protection fault: SI_KERNEL, no address. Only then is RIP safe to read. */
    if (patched ? code[0] == 0x0f && code[1] == 0x0a : info->si_code == SI_KERNEL && code[0] == 0x0f && code[1] == 0xa2) {
        uint32_t r[4];
        masked_cpuid((uint32_t)g[REG_RAX], (uint32_t)g[REG_RCX], r);
        g[REG_RAX] = r[0], g[REG_RBX] = r[1], g[REG_RCX] = r[2], g[REG_RDX] = r[3];
        g[REG_RIP] += 2;
        return;
    }
    if (others.sa_flags & SA_SIGINFO) {
        others.sa_sigaction(signal, info, context);
    } else if (others.sa_handler != SIG_DFL && others.sa_handler != SIG_IGN) {
        others.sa_handler(signal);
    } else {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        real_sigaction(ours, &plain, NULL); /* the instruction runs again and ends the process */
    }
}

static void resolve(void) {
    if (!real_sigaction) real_sigaction = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
    if (!real_sigmask) real_sigmask = (int (*)(int, const sigset_t *, sigset_t *))dlsym(RTLD_NEXT, "pthread_sigmask");
    if (!real_procmask) real_procmask = (int (*)(int, const sigset_t *, sigset_t *))dlsym(RTLD_NEXT, "sigprocmask");
}

int sigaction(int signal, const struct sigaction *action, struct sigaction *old) {
    resolve();
    if (signal != ours) return real_sigaction(signal, action, old);
    if (old) *old = others;
    if (action) others = *action;
    return 0;
}

void (*signal(int number, void (*handler)(int)))(int) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    return sigaction(number, &action, &old) == 0 ? old.sa_handler : SIG_ERR;
}

/* A blocked signal that is raised by an instruction kills the process, so it is never blocked. */
static int without_ours(int (*real)(int, const sigset_t *, sigset_t *), int how, const sigset_t *set, sigset_t *old) {
    sigset_t copy;
    if (set && how != SIG_UNBLOCK) {
        copy = *set;
        sigdelset(&copy, ours);
        set = &copy;
    }
    return real(how, set, old);
}
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) { resolve(); return without_ours(real_sigmask, how, set, old); }
int sigprocmask(int how, const sigset_t *set, sigset_t *old) { resolve(); return without_ours(real_procmask, how, set, old); }

__attribute__((constructor)) static void start(void) {
    struct sigaction action;
    const char *hidden = getenv("XNORPP_HIDDEN");
    patched = getenv("XNORPP_PATCHED") != NULL;
    if (patched) ours = SIGILL;
    only_amx = hidden && strcmp(hidden, "amx") == 0;
    resolve();
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_cpuid;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    real_sigaction(ours, &action, NULL);
    if (!patched && set_cpuid(0) != 0) {
        fprintf(stderr, "avx2_only: this processor or kernel cannot make CPUID fault; nothing is masked\n");
        exit(3);
    }
}
