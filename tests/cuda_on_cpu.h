// CUDA source as C++: the threads of a block are fibers that run one after the other between barriers.
//
// A thread runs until it waits or ends; the threads of a block run in an order that the caller picks, so that a
// missing barrier makes a thread read what another has not written yet, or has overwritten. Memory that nobody
// wrote holds NaN; a barrier that not all threads reach ends the program.
// With RACES defined and -fsanitize=thread, each thread is one to ThreadSanitizer, ordered to the others by barriers
// alone: what two of them do to one place without a barrier between is a race, whatever numbers come of it.
// The C headers alone: the standard library's would take most of the time of compiling a kernel.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <ucontext.h>

#ifdef RACES
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_read_range(void*, unsigned long);
extern "C" void __tsan_write_range(void*, unsigned long);
#define QUIET __attribute__((no_sanitize("thread")))  // what stands for the machine is no part of the program
#else
#define QUIET
static inline void __tsan_acquire(void*) {}
static inline void __tsan_release(void*) {}
static inline void __tsan_read_range(void*, unsigned long) {}
static inline void __tsan_write_range(void*, unsigned long) {}
#endif

// Which of the faults that a test wrote into a kernel is there now (cuda_faults.py); none is number 0.
static int mutation;

typedef unsigned char uchar;
struct dim3_ { int x, y, z; };
static dim3_ threadIdx, blockIdx;

struct half {
  _Float16 number;
  half() = default;
  half(float x) : number(static_cast<_Float16>(x)) {}
  operator float() const { return static_cast<float>(number); }
};
static inline half __float2half_rn(float x) { return half(x); }
struct alignas(8) half4 { half x, y, z, w; };
struct alignas(4) half2 { half x, y; };
static inline half2 make_half2(half x, half y) { return {x, y}; }
static inline half4 make_half4(half x, half y, half z, half w) { return {x, y, z, w}; }
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) uint4 { uint x, y, z, w; };
struct alignas(8) uint2 { uint x, y; };
struct alignas(8) ushort4 { ushort x, y, z, w; };
struct alignas(4) ushort2 { ushort x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(2) char2 { signed char x, y; };
struct alignas(4) char4 { signed char x, y, z, w; };
static inline ushort4 make_ushort4(ushort x, ushort y, ushort z, ushort w) { return {x, y, z, w}; }
static inline ushort2 make_ushort2(ushort x, ushort y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline uint4 make_uint4(uint x, uint y, uint z, uint w) { return {x, y, z, w}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static inline int known(int x) { return x; }
static inline float power_of_two(float x) { return x < -126.0f ? 0.0f : exp2f(x); }
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
template <class T> static inline T max(T x, T y) { return x < y ? y : x; }
template <class T> static inline T min(T x, T y) { return y < x ? y : x; }
static inline float max(float x, float y) { return fmaxf(x, y); }
static inline float min(float x, float y) { return fminf(x, y); }

#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __syncthreads() wait_for_all()
#define __syncwarp() wait_for_warp()

static const size_t SHARED = 1 << 18, STACK = 1 << 17, MOST_THREADS = 1024, WARP = 32;
alignas(64) uchar buf_dyn_shmem_ptr[SHARED];

enum State { RUNNING, WAITING, IN_WARP, DONE };
// waits, warp_waits: how many barriers of the block and of the warp it has passed.
struct Fiber { ucontext_t context; State state; dim3_ index; size_t waits, warp_waits; void* sanitised; };
static Fiber fibers[MOST_THREADS];
static size_t turns[MOST_THREADS];  // in which order they run
static uchar* stacks;
static ucontext_t scheduler;
static size_t current;
static bool met;  // whether threads of a warp have, since the scheduler looked
static void (*body)(void**);
static void** body_arguments;

// What barriers order: of two in a row, lest a thread that is already at the next one shows what it did meanwhile.
static char everybody[2], warps[MOST_THREADS / WARP][2], begun, ended;
static void* sanitised_scheduler;

QUIET static void to_scheduler() {
#ifdef RACES
  __tsan_switch_to_fiber(sanitised_scheduler, __tsan_switch_to_fiber_no_sync);
#endif
  swapcontext(&fibers[current].context, &scheduler);
}

QUIET static void to_fiber(Fiber& fiber) {
#ifdef RACES
  if (fiber.sanitised == nullptr) fiber.sanitised = __tsan_create_fiber(0);
  __tsan_switch_to_fiber(fiber.sanitised, __tsan_switch_to_fiber_no_sync);
#endif
  swapcontext(&scheduler, &fiber.context);
}

QUIET static void wait_for_all() {
  Fiber& own = fibers[current];
  char* place = &everybody[own.waits++ % 2];
  own.state = WAITING;
  __tsan_release(place);
  to_scheduler();
  __tsan_acquire(place);
}

// Until all threads of the warp are here: it goes on without the other warps.
QUIET static void wait_for_warp() {
  Fiber *own = fibers + current, *warp = fibers + current / WARP * WARP;
  char* place = &warps[current / WARP][own->warp_waits++ % 2];
  __tsan_release(place);
  size_t here = 1;
  for (size_t i = 0; i < WARP; ++i) here += warp[i].state == IN_WARP;
  if (here == WARP) {
    for (size_t i = 0; i < WARP; ++i) warp[i].state = RUNNING;
    met = true;
  } else {
    own->state = IN_WARP;
    to_scheduler();
  }
  __tsan_acquire(place);
}

// Copies that a thread has started: made when it waits for them, or at once, or one way or the other, as it may
// be on a GPU. Late ones show a missing wait, early ones memory that is still read.
struct Copy { void* to; const void* from; int bytes; bool made; };
static const size_t MOST_COPIES = 512;
static Copy copies[MOST_THREADS][MOST_COPIES];
static size_t started[MOST_THREADS];
static int turn_order;  // see set_turns
static bool forgotten;  // whether a thread ended before its copies were made

static const uint nothing[4] = {0, 0, 0, 0};
template <int BYTES> QUIET static void start_copy(void* to, const void* from, bool there) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "sizes of cp.async");
  if (reinterpret_cast<uintptr_t>(to) % BYTES || reinterpret_cast<uintptr_t>(from) % BYTES) abort();
  if (!there) from = nothing;
  __tsan_read_range(const_cast<void*>(from), BYTES);
  __tsan_write_range(to, BYTES);  // now, and again when it is waited for
  static uint64_t random = 1;
  random = random * 6364136223846793005ull + 1442695040888963407ull;
  bool made = turn_order == 1 || (turn_order > 1 && random >> 63);
  if (made) memcpy(to, from, BYTES);
  if (started[current] == MOST_COPIES) abort();
  copies[current][started[current]++] = {to, from, BYTES, made};
}
QUIET static void wait_for_copies() {
  for (size_t i = 0; i < started[current]; ++i) {
    const Copy& copy = copies[current][i];
    __tsan_write_range(copy.to, copy.bytes);
    if (!copy.made) memcpy(copy.to, copy.from, copy.bytes);
  }
  started[current] = 0;
}
template <int BYTES> static void clear(void* to) { memset(to, 0, BYTES); }

QUIET static void run_fiber() {
  started[current] = 0;
  __tsan_acquire(&begun);
  body(body_arguments);
  forgotten = forgotten || started[current] != 0;
  fibers[current].state = DONE;
  __tsan_release(&ended);
  to_scheduler();
}

// Ascending, descending, or (order > 1) shuffled anew each time.
QUIET static void set_turns(size_t threads, int order) {
  static uint64_t random = 1;
  for (size_t i = 0; i < threads; ++i) turns[i] = order == 1 ? threads - 1 - i : i;
  for (size_t i = threads; order > 1 && i > 1; --i) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    size_t j = (random >> 33) % i, kept = turns[i - 1];
    turns[i - 1] = turns[j];
    turns[j] = kept;
  }
}

// One block of threads; 0, or 1 when only some of them wait at a barrier.
QUIET static int run_block(size_t threads, int x, int order) {
  for (size_t t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks + t * STACK;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.state = RUNNING;
    fiber.index = {static_cast<int>(t) % x, static_cast<int>(t) / x, 0};
    fiber.waits = fiber.warp_waits = 0;
    makecontext(&fiber.context, run_fiber, 0);
  }
  __tsan_release(&begun);
  for (;;) {
    set_turns(threads, order);
    for (size_t i = 0; i < threads;) {  // always the first that can: a warp runs as far ahead of others as it may
      current = turns[i];
      if (fibers[current].state != RUNNING) {
        ++i;
        continue;
      }
      threadIdx = fibers[current].index;
      to_fiber(fibers[current]);
      if (met) i = 0;
      met = false;
    }
    size_t waiting = 0, done = 0;
    for (size_t t = 0; t < threads; ++t) waiting += fibers[t].state == WAITING, done += fibers[t].state == DONE;
    __tsan_acquire(&ended);
    if (done == threads) return 0;
    if (waiting != threads) return 1;
    for (size_t t = 0; t < threads; ++t) fibers[t].state = RUNNING;
  }
}

// 0; 1: not all threads of a block reach a barrier; 2: a write beyond the shared memory asked for; 3: too many
// threads; 4: copies that were not waited for.
QUIET static int run_grid(void (*kernel)(void**), void** arguments, int blocks, int x, int y, int shared, int order) {
  size_t threads = static_cast<size_t>(x) * y;
  if (threads > MOST_THREADS) return 3;
#ifdef RACES
  sanitised_scheduler = __tsan_get_current_fiber();
#endif
  stacks = static_cast<uchar*>(malloc(threads * STACK));
  body = kernel;
  body_arguments = arguments;
  turn_order = order;
  forgotten = false;
  int fault = 0;
  for (int block = 0; block < blocks && fault == 0; ++block) {
    memset(buf_dyn_shmem_ptr, 0xFF, SHARED);  // NaN
    blockIdx = {block, 0, 0};
    fault = run_block(threads, x, order);
    for (size_t i = shared; i < SHARED && fault == 0; ++i)
      if (buf_dyn_shmem_ptr[i] != 0xFF) fault = 2;
  }
  free(stacks);
  if (fault == 0 && forgotten) fault = 4;
  return fault;
}

// What lanes of a warp show each other.
struct Shown { uint words[8]; };
static Shown shown[MOST_THREADS];

static inline float element(const half*, uint pair, int n) {
  ushort bits = pair >> (16 * n);
  half number;
  memcpy(&number, &bits, 2);
  return number;
}
static inline float element(const ushort*, uint pair, int n) {
  uint bits = (pair >> (16 * n) & 0xFFFF) << 16;
  float number;
  memcpy(&number, &bits, 4);
  return number;
}

// Two numbers rounded to 16 bits, to the nearest and even ones, the first in the lower bits.
static inline uint pair_of(float x, float y, const half*) {
  half both[2] = {half(x), half(y)};
  uint pair;
  memcpy(&pair, both, 4);
  return pair;
}
static inline uint upper_bits(float x) {
  uint bits;
  memcpy(&bits, &x, 4);
  return x != x ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
static inline uint pair_of(float x, float y, const ushort*) { return upper_bits(x) | upper_bits(y) << 16; }

// ldmatrix.x4: lane i reads row i % 8 of matrix i / 8; of each matrix a lane gets two neighbours of row lane / 4,
// or, transposed, of column lane / 4.
QUIET static void load_four(uint (&r)[4], const void* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) abort();
  const Shown* warp = shown + current / WARP * WARP;
  int lane = current % WARP;
  __tsan_read_range(const_cast<void*>(row), 16);
  memcpy(shown[current].words, row, 16);
  wait_for_warp();
  for (int m = 0; m < 4; ++m) {
    ushort pair[2];
    for (int n = 0; n < 2; ++n) {
      int i = transposed ? lane % 4 * 2 + n : lane / 4, j = transposed ? lane / 4 : lane % 4 * 2 + n;
      memcpy(&pair[n], reinterpret_cast<const char*>(warp[m * 8 + i].words) + 2 * j, 2);
    }
    memcpy(&r[m], pair, 4);
  }
  wait_for_warp();
}
typedef const char* shared_place;
static inline shared_place place_of(const void* p) { return static_cast<shared_place>(p); }
static void load_matrices(uint (&r)[4], shared_place row) { load_four(r, row, false); }
static void load_transposed(uint (&r)[4], shared_place row) { load_four(r, row, true); }

// mma.m16n8k16 by the fragments of the PTX manual: g = lane / 4, t = lane % 4; a: rows g and g + 8, columns 2 t and
// 2 t + 1, then those 8 further; b: rows 2 t and 2 t + 1, then 8 further, column g; c: rows g and g + 8, columns
// 2 t and 2 t + 1.
template <class T> QUIET static void multiply_add(float* c, const uint (&a)[4], uint b0, uint b1, const T* tag) {
  const Shown* warp = shown + current / WARP * WARP;
  int lane = current % WARP, g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) shown[current].words[i] = a[i];
  shown[current].words[4] = b0, shown[current].words[5] = b1;
  wait_for_warp();
  for (int i = 0; i < 4; ++i) {
    int row = g + i / 2 * 8, column = 2 * t + i % 2;
    for (int k = 0; k < 16; ++k) {
      uint x = warp[row % 8 * 4 + k % 8 / 2].words[row / 8 + k / 8 * 2];
      uint y = warp[column * 4 + k % 8 / 2].words[4 + k / 8];
      c[i] += element(tag, x, k % 2) * element(tag, y, k % 2);
    }
  }
  wait_for_warp();
}
