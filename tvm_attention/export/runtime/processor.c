/* What the processor can do, asked of itself; names are LLVM's, as the kernels' targets have them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* Features that are to count as absent, separated by commas: to try what another processor would get. */
#define WITHOUT "TVM_ATTENTION_WITHOUT"

#if defined(__x86_64__)
#include <cpuid.h>

enum { EAX, EBX, ECX, EDX };
/* State that the system must save: bits of XCR0. */
enum { NOTHING = 0, YMM = 0x6, ZMM = 0xe6, TILES = 0x60006 };

static const struct {
  const char *name;
  uint32_t leaf, subleaf;
  int word, bit;
  uint32_t state;
} known[] = {
    {"sse3", 1, 0, ECX, 0, NOTHING},
    {"pclmul", 1, 0, ECX, 1, NOTHING},
    {"ssse3", 1, 0, ECX, 9, NOTHING},
    {"fma", 1, 0, ECX, 12, YMM},
    {"cx16", 1, 0, ECX, 13, NOTHING},
    {"sse4.1", 1, 0, ECX, 19, NOTHING},
    {"sse4.2", 1, 0, ECX, 20, NOTHING},
    {"movbe", 1, 0, ECX, 22, NOTHING},
    {"popcnt", 1, 0, ECX, 23, NOTHING},
    {"aes", 1, 0, ECX, 25, NOTHING},
    {"xsave", 1, 0, ECX, 26, NOTHING},
    {"avx", 1, 0, ECX, 28, YMM},
    {"f16c", 1, 0, ECX, 29, YMM},
    {"bmi", 7, 0, EBX, 3, NOTHING},
    {"avx2", 7, 0, EBX, 5, YMM},
    {"bmi2", 7, 0, EBX, 8, NOTHING},
    {"avx512f", 7, 0, EBX, 16, ZMM},
    {"avx512dq", 7, 0, EBX, 17, ZMM},
    {"avx512ifma", 7, 0, EBX, 21, ZMM},
    {"avx512cd", 7, 0, EBX, 28, ZMM},
    {"avx512bw", 7, 0, EBX, 30, ZMM},
    {"avx512vl", 7, 0, EBX, 31, ZMM},
    {"avx512vbmi", 7, 0, ECX, 1, ZMM},
    {"avx512vbmi2", 7, 0, ECX, 6, ZMM},
    {"gfni", 7, 0, ECX, 8, NOTHING},
    {"vaes", 7, 0, ECX, 9, YMM},
    {"vpclmulqdq", 7, 0, ECX, 10, YMM},
    {"avx512vnni", 7, 0, ECX, 11, ZMM},
    {"avx512bitalg", 7, 0, ECX, 12, ZMM},
    {"avx512vpopcntdq", 7, 0, ECX, 14, ZMM},
    {"avx512vp2intersect", 7, 0, EDX, 8, ZMM},
    {"amx-bf16", 7, 0, EDX, 22, TILES},
    {"avx512fp16", 7, 0, EDX, 23, ZMM},
    {"amx-tile", 7, 0, EDX, 24, TILES},
    {"amx-int8", 7, 0, EDX, 25, TILES},
    {"avxvnni", 7, 1, EAX, 4, YMM},
    {"avx512bf16", 7, 1, EAX, 5, ZMM},
    {"amx-fp16", 7, 1, EAX, 21, TILES},
    {"avxifma", 7, 1, EAX, 23, YMM},
    {"avxvnniint8", 7, 1, EDX, 4, YMM},
    {"avxneconvert", 7, 1, EDX, 5, YMM},
    {"avxvnniint16", 7, 1, EDX, 10, YMM},
    {"sahf", 0x80000001, 0, ECX, 0, NOTHING},
    {"lzcnt", 0x80000001, 0, ECX, 5, NOTHING},
    {"sse4a", 0x80000001, 0, ECX, 6, NOTHING},
    {"xop", 0x80000001, 0, ECX, 11, YMM},
    {"fma4", 0x80000001, 0, ECX, 16, YMM},
    {"tbm", 0x80000001, 0, ECX, 21, NOTHING},
};

static uint32_t saved_state(void) {
  uint32_t a, b, c, d, low, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

static int has(size_t i) {
  uint32_t words[4];
  if (!__get_cpuid_count(known[i].leaf, known[i].subleaf, &words[0], &words[1], &words[2], &words[3]))
    return 0;
  if (!(words[known[i].word] >> known[i].bit & 1)) return 0;
  return known[i].state == NOTHING || (saved_state() & known[i].state) == known[i].state;
}

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

static int has(size_t i) { return (int)(getauxval(known[i].vector) >> known[i].bit & 1); }

uint32_t tvi_core(void) {
  uint64_t identity;
  if (!(getauxval(AT_HWCAP) >> 11 & 1)) return 0; /* the kernel does not emulate reading it */
  __asm__("mrs %0, midr_el1" : "=r"(identity));
  return (uint32_t)(identity >> 24 & 0xff) << 16 | (uint32_t)(identity >> 4 & 0xfff);
}

#else
#error "the archive's runtime is for x86-64 and aarch64"
#endif

static int listed(const char *list, const char *name, size_t length) {
  while (list && *list) {
    size_t here = strcspn(list, ",");
    if (here == length && strncmp(list, name, length) == 0) return 1;
    list += here + (list[here] == ',');
  }
  return 0;
}

static int present(const char *name, size_t length, const char *without) {
  if (listed(without, name, length)) return 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (strlen(known[i].name) == length && strncmp(known[i].name, name, length) == 0) return has(i);
  return 0; /* a feature this runtime does not know of is one it cannot vouch for */
}

int tvi_lacks(const char *features, char *missing, size_t size) {
  const char *without = getenv(WITHOUT);
  size_t used = 0;
  int any = 0;
  missing[0] = 0;
  while (*features) {
    size_t length = strcspn(features, " ");
    if (length && !present(features, length, without)) {
      if (used < size)
        used += (size_t)snprintf(missing + used, size - used, "%s%.*s", any ? ", " : "", (int)length, features);
      any = 1;
    }
    features += length + (features[length] == ' ');
  }
  return any;
}
