
// Lengths of batch elements as kernels read them (tva_sequence of tvm_attention.h), all rows of each being queries.
extern "C" __global__ void __launch_bounds__(128) tva_lengths(int* __restrict__ to, const int* __restrict__ lengths, int batch, int queries, int most) {
  int b = (int)blockIdx.x * 128 + (int)threadIdx.x;
  if (b >= batch) return;
  int keys = lengths[b];
  to[4 * b] = 0;
  to[4 * b + 1] = queries;
  to[4 * b + 2] = 0;
  to[4 * b + 3] = keys < 0 ? 0 : keys > most ? most : keys;
}
