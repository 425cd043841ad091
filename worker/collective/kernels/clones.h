// Each kernel marked so is compiled once per instruction set, and the loader picks one. GCC can
// clone plain functions only. So the kernels are plain, and what they call is inlined into each
// clone. A call out of a clone would run code for plain x86-64.
#pragma once

// There are none under a sanitizer: the loader would run the choice before the sanitizer is ready.
// Each processor of arm64 has NEON, so one code is enough.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || !defined(__x86_64__)
#define DDPRUN_CLONES
#else
#define DDPRUN_CLONES [[gnu::target_clones("avx512f", "avx2", "default")]]
#endif
