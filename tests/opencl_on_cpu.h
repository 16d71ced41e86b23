// What kernels call, in OpenCL: copies are made at once; products as tensor_cores.cuh says what they are, not how.
#define known(x) (x)
#define power_of_two(x) exp2(x)
#define __syncwarp() barrier(CLK_LOCAL_MEM_FENCE)
#define wait_for_copies()
#define TO(type, bytes, to, from) \
  for (int i = 0; i < bytes / sizeof(type); ++i) ((__local type*)(to))[i] = ((__global const type*)(from))[i];
#define COPY(bytes, to, from, there) \
  if (there) { TO(uint, bytes, to, from) } else { CLEAR(bytes, to) }
#define start_copy_4(to, from, there) COPY(4, to, from, there)
#define start_copy_8(to, from, there) COPY(8, to, from, there)
#define start_copy_16(to, from, there) COPY(16, to, from, there)
#define CLEAR(bytes, to) for (int i = 0; i < bytes / 4; ++i) ((__local uint*)(to))[i] = 0;
#define clear_4(to) CLEAR(4, to)
#define clear_8(to) CLEAR(8, to)
#define clear_16(to) CLEAR(16, to)

// bfloat16, whose bits are the upper half of a float32's.
static float number(ushort bits) { return as_float((uint)bits << 16); }

static float product(float x, ushort y) { return x * number(y); }

static void multiply_rows(int ROWS, int COLUMNS, int DEPTH, int A_STRIDE, int B_STRIDE, float* sums,
                          __local const ushort* a, __local const ushort* b) {
  int thread = get_local_id(1) * 4 + get_local_id(0), warp = thread / 32, lane = thread % 32;
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < COLUMNS * 2; ++j) {
      int row = warp * ROWS * 8 + 8 * i + lane / 4, column = 8 * (j / 2) + 2 * (lane % 4) + j % 2;
      float sum = 0.0f;
      for (int k = 0; k < DEPTH; ++k) sum += product(number(a[row * A_STRIDE + k]), b[column * B_STRIDE + k]);
      sums[i * COLUMNS * 2 + j] = sum;
    }
}

// The weights of a row are in the registers of four threads, which show them to each other.
static void multiply_weights(__local float* shown, int ROWS, int COLUMNS, int DEPTH, int B_STRIDE, float* sums,
                             const float* weights, __local const ushort* b) {
  int thread = get_local_id(1) * 4 + get_local_id(0), own = ROWS * DEPTH / 4;
  for (int i = 0; i < own; ++i) {
    uint bits = as_uint(weights[i]);  // rounded to bfloat16
    shown[thread * own + i] = as_float((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < COLUMNS * 2; ++j) {
      int column = 8 * (j / 2) + 2 * (thread % 4) + j % 2;
      float sum = 0.0f;
      for (int k = 0; k < DEPTH; ++k) {
        int owner = thread / 4 * 4 + k % 8 / 2, place = i * DEPTH / 4 + k / 8 * 2 + k % 2;
        sum += product(shown[owner * own + place], b[k * B_STRIDE + column]);
      }
      sums[i * COLUMNS * 2 + j] = sum;
    }
  barrier(CLK_LOCAL_MEM_FENCE);
}
