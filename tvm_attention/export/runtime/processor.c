/* What the processor can do, asked of itself; names are LLVM's, as the kernels' targets have them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* Features that are to count as absent, separated by commas: to try what another processor would get. */
#define WITHOUT "TVM_ATTENTION_WITHOUT"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EAX, EBX, ECX, EDX };
/* State that the system must save: bits of XCR0. */
enum { NOTHING = 0, YMM = 0x6, ZMM = 0xe6, TILES = 0x60006 };

enum { BASIC, EXTENDED, EXTENDED_1, FARTHER, LEAVES };

static const struct {
  const char *name;
  int leaf, word, bit;
  uint32_t state;
} known[] = {
    {"sse3", BASIC, ECX, 0, NOTHING},
    {"pclmul", BASIC, ECX, 1, NOTHING},
    {"ssse3", BASIC, ECX, 9, NOTHING},
    {"fma", BASIC, ECX, 12, YMM},
    {"cx16", BASIC, ECX, 13, NOTHING},
    {"sse4.1", BASIC, ECX, 19, NOTHING},
    {"sse4.2", BASIC, ECX, 20, NOTHING},
    {"movbe", BASIC, ECX, 22, NOTHING},
    {"popcnt", BASIC, ECX, 23, NOTHING},
    {"aes", BASIC, ECX, 25, NOTHING},
    {"xsave", BASIC, ECX, 26, NOTHING},
    {"avx", BASIC, ECX, 28, YMM},
    {"f16c", BASIC, ECX, 29, YMM},
    {"bmi", EXTENDED, EBX, 3, NOTHING},
    {"avx2", EXTENDED, EBX, 5, YMM},
    {"bmi2", EXTENDED, EBX, 8, NOTHING},
    {"avx512f", EXTENDED, EBX, 16, ZMM},
    {"avx512dq", EXTENDED, EBX, 17, ZMM},
    {"avx512ifma", EXTENDED, EBX, 21, ZMM},
    {"avx512cd", EXTENDED, EBX, 28, ZMM},
    {"avx512bw", EXTENDED, EBX, 30, ZMM},
    {"avx512vl", EXTENDED, EBX, 31, ZMM},
    {"avx512vbmi", EXTENDED, ECX, 1, ZMM},
    {"avx512vbmi2", EXTENDED, ECX, 6, ZMM},
    {"gfni", EXTENDED, ECX, 8, NOTHING},
    {"vaes", EXTENDED, ECX, 9, YMM},
    {"vpclmulqdq", EXTENDED, ECX, 10, YMM},
    {"avx512vnni", EXTENDED, ECX, 11, ZMM},
    {"avx512bitalg", EXTENDED, ECX, 12, ZMM},
    {"avx512vpopcntdq", EXTENDED, ECX, 14, ZMM},
    {"avx512vp2intersect", EXTENDED, EDX, 8, ZMM},
    {"amx-bf16", EXTENDED, EDX, 22, TILES},
    {"avx512fp16", EXTENDED, EDX, 23, ZMM},
    {"amx-tile", EXTENDED, EDX, 24, TILES},
    {"amx-int8", EXTENDED, EDX, 25, TILES},
    {"avxvnni", EXTENDED_1, EAX, 4, YMM},
    {"avx512bf16", EXTENDED_1, EAX, 5, ZMM},
    {"amx-fp16", EXTENDED_1, EAX, 21, TILES},
    {"avxifma", EXTENDED_1, EAX, 23, YMM},
    {"avxvnniint8", EXTENDED_1, EDX, 4, YMM},
    {"avxneconvert", EXTENDED_1, EDX, 5, YMM},
    {"avxvnniint16", EXTENDED_1, EDX, 10, YMM},
    {"sahf", FARTHER, ECX, 0, NOTHING},
    {"lzcnt", FARTHER, ECX, 5, NOTHING},
    {"sse4a", FARTHER, ECX, 6, NOTHING},
    {"xop", FARTHER, ECX, 11, YMM},
    {"fma4", FARTHER, ECX, 16, YMM},
    {"tbm", FARTHER, ECX, 21, NOTHING},
};

static uint32_t saved_state(uint32_t basic_ecx) {
  uint32_t low, high;
  if (!(basic_ecx >> 27 & 1)) return 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

static uint64_t detected(void) {
  static const uint32_t leaves[LEAVES][2] = {{1, 0}, {7, 0}, {7, 1}, {0x80000001, 0}};
  uint32_t words[LEAVES][4] = {{0}};
  uint64_t found = 0;
  for (int i = 0; i < LEAVES; ++i)
    __get_cpuid_count(leaves[i][0], leaves[i][1], &words[i][EAX], &words[i][EBX], &words[i][ECX], &words[i][EDX]);
  uint32_t state = saved_state(words[BASIC][ECX]);
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (words[known[i].leaf][known[i].word] >> known[i].bit & 1 && (state & known[i].state) == known[i].state)
      found |= UINT64_C(1) << i;
  return found;
}

uint32_t tvi_core(void) { return 0; }

/* Linux saves the matrix unit's registers only for processes that ask; asked when a kernel could use them. */
static int permitted(const char *name) {
  static _Atomic int answer; /* 1 yes, 2 no */
  if (strncmp(name, "amx-", 4) != 0) return 1;
  if (!answer) answer = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) ? 2 : 1;
  return answer == 1;
}

#elif defined(__riscv)
#include <sys/auxv.h>

/* Letters of the extensions in AT_HWCAP. */
static const struct {
  const char *name;
  int bit;
} known[] = {{"v", 'v' - 'a'}};

static uint64_t detected(void) { return (uint64_t)(getauxval(AT_HWCAP) >> known[0].bit & 1); }
uint32_t tvi_core(void) { return 0; }

#elif defined(__wasm_simd128__)
/* An engine without them does not load the module. */
static const struct {
  const char *name;
} known[] = {{"simd128"}};

static uint64_t detected(void) { return 1; }
uint32_t tvi_core(void) { return 0; }

#elif defined(__aarch64__)
#include <sys/auxv.h>

/* Bits of AT_HWCAP and AT_HWCAP2, part of the kernel's interface. */
static const struct {
  const char *name;
  unsigned long vector;
  int bit;
} known[] = {
    {"neon", AT_HWCAP, 1},       {"crc", AT_HWCAP, 7},      {"lse", AT_HWCAP, 8},
    {"fullfp16", AT_HWCAP, 10},  {"rdm", AT_HWCAP, 12},     {"jsconv", AT_HWCAP, 13},
    {"complxnum", AT_HWCAP, 14}, {"rcpc", AT_HWCAP, 15},    {"dotprod", AT_HWCAP, 20},
    {"sve", AT_HWCAP, 22},       {"fp16fml", AT_HWCAP, 23}, {"sve2", AT_HWCAP2, 1},
    {"i8mm", AT_HWCAP2, 13},     {"bf16", AT_HWCAP2, 14},
};

static uint64_t detected(void) {
  uint64_t found = 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    found |= (uint64_t)(getauxval(known[i].vector) >> known[i].bit & 1) << i;
  return found;
}

uint32_t tvi_core(void) {
  uint64_t identity;
  if (!(getauxval(AT_HWCAP) >> 11 & 1)) return 0; /* the kernel does not emulate reading it */
  __asm__("mrs %0, midr_el1" : "=r"(identity));
  return (uint32_t)(identity >> 24 & 0xff) << 16 | (uint32_t)(identity >> 4 & 0xfff);
}

#else
#error "the archive's runtime is for x86-64, aarch64, riscv64 and wasm32 with simd128"
#endif

#ifndef __x86_64__
static int permitted(const char *name) { return name != NULL; }
#endif

#define DONE (UINT64_C(1) << 63)
_Static_assert(sizeof known / sizeof *known < 63, "a bit each");

/* Asked once: a virtual machine takes tens of microseconds to answer. */
static int has(size_t i) {
  static _Atomic uint64_t features;
  uint64_t found = features;
  if (!found) features = found = detected() | DONE;
  return (int)(found >> i & 1);
}

static int listed(const char *list, const char *name, size_t length) {
  while (list && *list) {
    size_t here = strcspn(list, ",");
    if (here == length && strncmp(list, name, length) == 0) return 1;
    list += here + (list[here] == ',');
  }
  return 0;
}

static int present(const char *name, size_t length) {
  if (listed(getenv(WITHOUT), name, length)) return 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (strlen(known[i].name) == length && strncmp(known[i].name, name, length) == 0)
      return has(i) && permitted(name);
  return 0; /* a feature this runtime does not know of is one it cannot vouch for */
}

int tvi_lacks(const char *features, char *missing, size_t size) {
  size_t used = 0;
  int any = 0;
  missing[0] = 0;
  while (*features) {
    size_t length = strcspn(features, " ");
    if (length && !present(features, length)) {
      if (used < size)
        used += (size_t)snprintf(missing + used, size - used, "%s%.*s", any ? ", " : "", (int)length, features);
      any = 1;
    }
    features += length + (features[length] == ' ');
  }
  return any;
}
