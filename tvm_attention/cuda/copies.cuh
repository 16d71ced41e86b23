// Copies to shared memory that a thread starts and later waits for (cp.async of sm_80 and newer).
template <int BYTES>
__device__ __forceinline__ void start_copy(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  uint place;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(place) : "l"(to));
  if (BYTES == 16)  // past the first cache, from which nothing is read again
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(place), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(place), "l"(from), "n"(BYTES) : "memory");
#endif
}
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
template <int BYTES>
__device__ __forceinline__ void clear(void* to) {
#pragma unroll
  for (int i = 0; i < BYTES / 4; ++i) static_cast<uint*>(to)[i] = 0;
}
