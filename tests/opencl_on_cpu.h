// What kernels call, in OpenCL: copies are made at once; products as tensor_cores.cuh says what they are, not how.
#define known(x) (x)
#define power_of_two(x) exp2(x)
#define __syncwarp() barrier(CLK_LOCAL_MEM_FENCE)
#define wait_for_copies()
#define TO(type, bytes, to, from) \
  for (int i = 0; i < bytes / sizeof(type); ++i) ((__local type*)(to))[i] = ((__global const type*)(from))[i];
#define start_copy_4(to, from) TO(uint, 4, to, from)
#define start_copy_8(to, from) TO(uint, 8, to, from)
#define start_copy_16(to, from) TO(uint, 16, to, from)
#define CLEAR(bytes, to) for (int i = 0; i < bytes / 4; ++i) ((__local uint*)(to))[i] = 0;
#define clear_4(to) CLEAR(4, to)
#define clear_8(to) CLEAR(8, to)
#define clear_16(to) CLEAR(16, to)

// bfloat16, whose bits are the upper half of a float32's.
static float number(ushort bits) { return as_float((uint)bits << 16); }

static void multiply_rows(int ROWS, int COLUMNS, int DEPTH, int A_STRIDE, int B_STRIDE, bool BY_ROWS, float* sums,
                          __local const ushort* a, __local const ushort* b) {
  int thread = get_local_id(1) * 4 + get_local_id(0), warp = thread / 32, lane = thread % 32;
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < COLUMNS * 2; ++j) {
      int row = warp * ROWS * 8 + 8 * i + lane / 4, column = 8 * (j / 2) + 2 * (lane % 4) + j % 2;
      float sum = 0.0f;
      for (int k = 0; k < DEPTH; ++k)
        sum += number(a[row * A_STRIDE + k]) * number(BY_ROWS ? b[k * B_STRIDE + column] : b[column * B_STRIDE + k]);
      sums[i * COLUMNS * 2 + j] = sum;
    }
}
