// Copies to shared memory that a thread starts and later waits for (cp.async of sm_80 and newer); of zeros, and
// nothing is read, where there is nothing to copy.
template <int BYTES>
__device__ __forceinline__ void start_copy(void* to, const void* from, bool there) {
#if __CUDA_ARCH__ >= 800
  const uint place = (uint)__cvta_generic_to_shared(to), read = there ? BYTES : 0;
  if (BYTES == 16)  // past the first cache, from which nothing is read again
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(place), "l"(from), "r"(read) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;"
                 :: "r"(place), "l"(from), "r"(read), "n"(BYTES) : "memory");
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
