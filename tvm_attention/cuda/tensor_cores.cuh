// Products of 16-bit matrices on tensor cores, summed in float32: ldmatrix and mma.m16n8k16 of the PTX manual.
// half stands for float16, ushort for the bits of bfloat16.
#ifdef __CUDACC__
// Four 8x8 matrices from shared memory; lane i says where row i % 8 of matrix i / 8 is, at 16 bytes.
typedef uint shared_place;  // of a byte
__device__ __forceinline__ shared_place place_of(const void* p) { return (shared_place)__cvta_generic_to_shared(p); }
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
// Two numbers rounded to 16 bits, the first in the lower ones.
__device__ __forceinline__ uint pair_of(float x, float y, const half*) {
  uint pair;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(x), "f"(y));
#else
  asm("{ .reg .f16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b}; }"
      : "=r"(pair) : "f"(x), "f"(y));
#endif
  return pair;
}
__device__ __forceinline__ uint pair_of(float x, float y, const ushort*) {
  uint pair = 0;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(x), "f"(y));
#endif
  return pair;
}
#endif

// Sums of a warp's threads: sums[i][j] is of row 8 i + lane / 4 of ROWS x 8 rows, and of column
// 8 (j / 2) + 2 (lane % 4) + j % 2 of COLUMNS x 8 columns. A warp's rows follow those of the warp before.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void clear_sums(float* sums) {
#pragma unroll
  for (int i = 0; i < ROWS * COLUMNS * 2; ++i) sums[i] = 0.0f;
}
// Two matrices of eight columns from the j-th on.
template <class T, int ROWS, int COLUMNS>
__device__ __forceinline__ void add_products(float* sums, int j, const uint (&rows)[ROWS / 2][4], const uint (&columns)[4], const T* tag) {
#pragma unroll
  for (int i = 0; i < ROWS / 2; ++i)
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float* upper = sums + 2 * i * (COLUMNS * 2) + (j + n) * 2;
      float* lower = upper + COLUMNS * 2;
      float c[4] = {upper[0], upper[1], lower[0], lower[1]};
      multiply_add(c, rows[i], columns[2 * n], columns[2 * n + 1], tag);
      upper[0] = c[0], upper[1] = c[1], lower[0] = c[2], lower[1] = c[3];
    }
}

// Rows of a, which have DEPTH columns, times rows of b.
template <class T, int ROWS, int COLUMNS, int DEPTH, int A_STRIDE, int B_STRIDE>
__device__ __forceinline__ void multiply_rows(float* sums, const T* a, const T* b) {
  // Where a lane's rows of a and of b begin: all else is a number that instructions hold.
  const int lane = (threadIdx.y * 4 + threadIdx.x) % 32, size = sizeof(T);
  const shared_place own = place_of(a + ((threadIdx.y / 8) * (ROWS * 8) + lane % 16) * A_STRIDE + lane / 16 * 8);
  const shared_place others = place_of(b + (lane / 16 * 8 + lane % 8) * B_STRIDE + lane / 8 % 2 * 8);
  clear_sums<ROWS, COLUMNS>(sums);
#pragma unroll 2  // all at once, matrices would be loaded so early that registers run out
  for (int k = 0; k < DEPTH; k += 16) {
    uint rows[ROWS / 2][4];
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i) load_matrices(rows[i], own + (i * 16 * A_STRIDE + k) * size);
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 2) {
      uint columns[4];
      load_matrices(columns, others + (j * 8 * B_STRIDE + k) * size);
      add_products<T, ROWS, COLUMNS>(sums, j, rows, columns, a);
    }
  }
}

// Weights of DEPTH keys, which a warp's threads have as sums are dealt out, times b (key, column). The places of sums
// are those of the matrices that instructions multiply, two of eight columns at a time.
template <class T, int ROWS, int COLUMNS, int DEPTH, int B_STRIDE>
__device__ __forceinline__ void multiply_weights(float* sums, const float* weights, const T* b) {
  const int lane = (threadIdx.y * 4 + threadIdx.x) % 32, size = sizeof(T), own = DEPTH / 4;
  const shared_place others = place_of(b + lane % 16 * B_STRIDE + lane / 16 * 8);
  clear_sums<ROWS, COLUMNS>(sums);
#pragma unroll
  for (int k = 0; k < DEPTH; k += 16) {
    uint rows[ROWS / 2][4];
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float* pair = weights + (2 * i + n % 2) * own + k / 4 + n / 2 * 2;
        rows[i][n] = pair_of(pair[0], pair[1], b);
      }
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 2) {
      uint columns[4];
      load_transposed(columns, others + (k * B_STRIDE + j * 8) * size);
      add_products<T, ROWS, COLUMNS>(sums, j, rows, columns, b);
    }
  }
}
