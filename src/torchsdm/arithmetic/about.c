/* What torchsdm.arithmetic.loops asks of a library before it uses it. */

/* The digest of the sources that it was compiled from. */
const char *sources(void) { return SOURCES; }

/* Which of the libraries this processor can run: 0 for every processor, then in the order of torchsdm.arithmetic.loops. */
int level(void) {
#ifdef __x86_64__
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi") ||
        !__builtin_cpu_supports("bmi2"))
        return 0;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512cd"))
        return 1;
    return __builtin_cpu_supports("avx512bf16") ? 3 : 2;
#else
    return 0;
#endif
}
