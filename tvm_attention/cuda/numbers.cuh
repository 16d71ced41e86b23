// Small arrays beside the tensors (lengths, offsets, page tables, slopes), computed where they lie, element by
// element of up to three axes: to = op(from, other) within limits. All strides are in elements.

enum { TVA_TAKE, TVA_SUM, TVA_DIFFERENCE, TVA_PRODUCT, TVA_LESS };  // as tvm_attention.cuda.numbers names them
enum { TVA_INDEX, TVA_INT8, TVA_UINT8, TVA_INT16, TVA_INT32, TVA_INT64, TVA_FLOAT16, TVA_BFLOAT16, TVA_FLOAT32 };

__device__ __forceinline__ float tva_float(const char* from, int64_t n, int type) {
  if (type == TVA_FLOAT32) return ((const float*)from)[n];
  if (type == TVA_FLOAT16) return (float)((const half*)from)[n];
  return __int_as_float((int)((uint)((const ushort*)from)[n] << 16));
}
__device__ __forceinline__ int64_t tva_whole(const char* from, int64_t n, int type) {
  if (type == TVA_INT8) return ((const signed char*)from)[n];
  if (type == TVA_UINT8) return ((const uchar*)from)[n];
  if (type == TVA_INT16) return ((const short*)from)[n];
  if (type == TVA_INT32) return ((const int*)from)[n];
  return ((const int64_t*)from)[n];
}

extern "C" __global__ void __launch_bounds__(128) tva_numbers(int* to, const char* from, const int* other, int total, int extent_1, int extent_2, int type, int op, int scalar, int low, int high, int64_t to_0, int64_t to_1, int64_t to_2, int64_t from_0, int64_t from_1, int64_t from_2, int64_t other_0, int64_t other_1, int64_t other_2) {
  int n = (int)blockIdx.x * 128 + (int)threadIdx.x;
  if (n >= total) return;
  const int64_t k = n % extent_2, j = n / extent_2 % extent_1, i = n / extent_2 / extent_1;
  const int64_t place = i * from_0 + j * from_1 + k * from_2;
  int* const result = to + (i * to_0 + j * to_1 + k * to_2);
  if (type >= TVA_FLOAT16) {
    *(float*)result = tva_float(from, place, type);
    return;
  }
  int64_t x = type == TVA_INDEX ? k : tva_whole(from, place, type);
  const int64_t y = other == nullptr ? scalar : other[i * other_0 + j * other_1 + k * other_2];
  if (op == TVA_SUM) x += y;
  if (op == TVA_DIFFERENCE) x -= y;
  if (op == TVA_PRODUCT) x *= y;
  if (op == TVA_LESS) x = x < y;
  *result = (int)(x < low ? low : x > high ? high : x);
}

// A number, of 2 or 4 bytes, to all elements (batch, head, row, column) of rows that a batch element has not.
extern "C" __global__ void __launch_bounds__(128) tva_beyond(char* to, const int* rows_of, int total, int heads, int rows, int columns, int size, int bits, int64_t rows_of_0, int64_t to_0, int64_t to_1, int64_t to_2, int64_t to_3) {
  int n = (int)blockIdx.x * 128 + (int)threadIdx.x;
  if (n >= total) return;
  const int64_t column = n % columns, row = n / columns % rows, head = n / columns / rows % heads, b = n / columns / rows / heads;
  if (row < rows_of[b * rows_of_0]) return;
  char* const place = to + size * (b * to_0 + head * to_1 + row * to_2 + column * to_3);
  if (size == 2)
    *(ushort*)place = (ushort)bits;
  else
    *(int*)place = bits;
}
