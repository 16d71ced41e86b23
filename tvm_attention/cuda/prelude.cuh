// What TVM's CUDA source needs and no header brings: NVRTC then compiles it where no toolkit is installed.
// float16 is converted by instructions, bfloat16 by integer arithmetic in the kernels themselves.
#ifdef __CUDACC_RTC__
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef signed char int8_t;
typedef unsigned char uint8_t;
#else
#include <cstdint>
#endif
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;

#define CUDART_INF_F __int_as_float(0x7f800000)

// What it is given, which TVM does not know: it computes that once.
__device__ __forceinline__ int known(int x) { return x; }
// In one instruction: exp2f takes three more for results below 2**-126, which are zero here.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

struct half {
  ushort bits;
  half() = default;
  __device__ __forceinline__ half(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  __device__ __forceinline__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};
__device__ __forceinline__ half __float2half_rn(float x) { return half(x); }
struct __align__(4) half2 { half x, y; };
struct __align__(8) half4 { half x, y, z, w; };
__device__ __forceinline__ half2 make_half2(half x, half y) { return {x, y}; }
__device__ __forceinline__ half4 make_half4(half x, half y, half z, half w) { return {x, y, z, w}; }

