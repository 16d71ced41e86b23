// Products of 16-bit matrices on tensor cores, summed in float32: ldmatrix and mma.m16n8k16 of the PTX manual.
// half stands for float16, ushort for the bits of bfloat16.
#ifdef __CUDACC__
// Four 8x8 matrices from shared memory; lane i says where row i % 8 of matrix i / 8 is, at 16 bytes.
typedef uint shared_place;  // of a byte
__device__ __forceinline__ shared_place place_of(const void* p) {
  uint address;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(address) : "l"(p));
  return address;
}
__device__ __forceinline__ void load_matrices(uint (&r)[4], shared_place row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
__device__ __forceinline__ void load_transposed(uint (&r)[4], shared_place row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
// c (16 x 8) += a (16 x 16) b (16 x 8).
__device__ __forceinline__ void multiply_add(float* c, const uint (&a)[4], uint b0, uint b1, const half*) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}
__device__ __forceinline__ void multiply_add(float* c, const uint (&a)[4], uint b0, uint b1, const ushort*) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
#endif

// sums[i][j]: rows of a times b, as the threads of a warp own them: of ROWS x 8 rows, row 8 i + lane / 4; of
// COLUMNS x 8 columns, column 8 (j / 2) + 2 (lane % 4) + j % 2. a has DEPTH columns; b is (column, depth) or,
// BY_ROWS, (depth, column). A warp's rows follow those of the warp before.
template <class T, int ROWS, int COLUMNS, int DEPTH, int A_STRIDE, int B_STRIDE, bool BY_ROWS>
__device__ __forceinline__ void multiply_rows(float* sums, const T* a, const T* b) {
  // Where a lane's rows of a and of b begin: all else is a number that instructions hold.
  const int lane = (threadIdx.y * 4 + threadIdx.x) % 32, size = sizeof(T);
  const shared_place own =
      place_of(a + ((threadIdx.y / 8) * (ROWS * 8) + lane % 16) * A_STRIDE + lane / 16 * 8);
  const shared_place others = place_of(
      BY_ROWS ? b + lane % 16 * B_STRIDE + lane / 16 * 8
              : b + (lane / 16 * 8 + lane % 8) * B_STRIDE + lane / 8 % 2 * 8);
#pragma unroll
  for (int i = 0; i < ROWS * COLUMNS * 2; ++i) sums[i] = 0.0f;
#pragma unroll 2  // all at once, matrices would be loaded so early that registers run out
  for (int k = 0; k < DEPTH; k += 16) {
    uint rows[ROWS / 2][4];
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i) load_matrices(rows[i], own + (i * 16 * A_STRIDE + k) * size);
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 2) {  // two matrices of eight columns at a time
      uint columns[4];
      if (BY_ROWS)
        load_transposed(columns, others + (k * B_STRIDE + j * 8) * size);
      else
        load_matrices(columns, others + (j * 8 * B_STRIDE + k) * size);
#pragma unroll
      for (int i = 0; i < ROWS / 2; ++i)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float* upper = sums + 2 * i * (COLUMNS * 2) + (j + n) * 2;
          float* lower = upper + COLUMNS * 2;
          float c[4] = {upper[0], upper[1], lower[0], lower[1]};
          multiply_add(c, rows[i], columns[2 * n], columns[2 * n + 1], a);
          upper[0] = c[0], upper[1] = c[1], lower[0] = c[2], lower[1] = c[3];
        }
    }
  }
}

