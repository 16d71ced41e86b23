// CUDA source as C++: the threads of a block are fibers that run one after the other between barriers.
//
// A thread runs until it waits or ends; the threads of a block run in an order that the caller picks, so that a
// missing barrier makes a thread read what another has not written yet, or has overwritten. Memory that nobody
// wrote holds NaN; a barrier that not all threads reach ends the program.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <ucontext.h>
#include <vector>

typedef unsigned char uchar;
struct dim3_ { int x, y, z; };
static dim3_ threadIdx, blockIdx;

struct half {
  _Float16 number;
  half() = default;
  half(float x) : number(static_cast<_Float16>(x)) {}
  operator float() const { return static_cast<float>(number); }
};
struct alignas(8) half4 { half x, y, z, w; };
struct alignas(4) half2 { half x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) uint4 { uint x, y, z, w; };
struct alignas(8) uint2 { uint x, y; };
struct alignas(8) ushort4 { ushort x, y, z, w; };
struct alignas(4) ushort2 { ushort x, y; };
struct alignas(16) int4 { int x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline uint4 make_uint4(uint x, uint y, uint z, uint w) { return {x, y, z, w}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
using std::max;
using std::min;

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

static const size_t SHARED = 1 << 18, STACK = 1 << 17;
alignas(64) uchar buf_dyn_shmem_ptr[SHARED];

enum State { RUNNING, WAITING, DONE };
struct Fiber { ucontext_t context; State state; dim3_ index; };
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static size_t current;
static void (*body)(void**);
static void** body_arguments;

static void wait_for_all() {
  fibers[current].state = WAITING;
  swapcontext(&fibers[current].context, &scheduler);
}

static void run_fiber() {
  body(body_arguments);
  fibers[current].state = DONE;
  swapcontext(&fibers[current].context, &scheduler);
}

static std::vector<size_t> order_of(size_t threads, int order, std::mt19937& random) {
  std::vector<size_t> indices(threads);
  for (size_t i = 0; i < threads; ++i) indices[i] = order == 1 ? threads - 1 - i : i;
  if (order > 1) std::shuffle(indices.begin(), indices.end(), random);
  return indices;
}

// One block of threads; 0, or 1 when only some of them wait at a barrier.
static int run_block(int x, int y, std::vector<uchar>& stacks, int order, std::mt19937& random) {
  for (size_t t = 0; t < fibers.size(); ++t) {
    Fiber& fiber = fibers[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks.data() + t * STACK;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.state = RUNNING;
    fiber.index = {static_cast<int>(t) % x, static_cast<int>(t) / x, 0};
    makecontext(&fiber.context, run_fiber, 0);
  }
  for (;;) {
    for (size_t t : order_of(fibers.size(), order, random)) {
      if (fibers[t].state == DONE) continue;
      current = t;
      threadIdx = fibers[t].index;
      swapcontext(&scheduler, &fibers[t].context);
    }
    size_t waiting = 0;
    for (const Fiber& fiber : fibers) waiting += fiber.state == WAITING;
    if (waiting == 0) return 0;
    if (waiting != fibers.size()) return 1;
  }
}

// 0; 1: not all threads of a block reach a barrier; 2: a write beyond the shared memory asked for.
static int run_grid(void (*kernel)(void**), void** arguments, int blocks, int x, int y, int shared, int order) {
  std::mt19937 random(order);
  fibers.resize(static_cast<size_t>(x) * y);
  std::vector<uchar> stacks(fibers.size() * STACK);
  body = kernel;
  body_arguments = arguments;
  for (int block = 0; block < blocks; ++block) {
    memset(buf_dyn_shmem_ptr, 0xFF, SHARED);  // NaN
    blockIdx = {block, 0, 0};
    if (int fault = run_block(x, y, stacks, order, random)) return fault;
    for (size_t i = shared; i < SHARED; ++i)
      if (buf_dyn_shmem_ptr[i] != 0xFF) return 2;
  }
  return 0;
}
