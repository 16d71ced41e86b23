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

