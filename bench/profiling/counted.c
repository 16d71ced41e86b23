/* One call of an exported float32 kernel on one thread, for callgrind to count:
 * batch query_heads kv_heads queries keys head_dim value_dim causal */
#include <stdio.h>
#include <stdlib.h>

#include "tvm_attention.h"

static float *numbers(size_t count) {
  float *made = malloc(count * sizeof *made);
  unsigned state = 1;
  for (size_t i = 0; made && i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    made[i] = (float)(state >> 8) / (float)(1u << 23) - 1.0f;
  }
  return made;
}

int main(int argc, char **argv) {
  if (argc != 9) return 2;
  int n[8];
  for (int i = 0; i < 8; ++i) n[i] = atoi(argv[i + 1]);
  tva_problem problem = {.abi = TVA_ABI, .dtype = TVA_FLOAT32};
  problem.batch = n[0], problem.query_heads = n[1], problem.kv_heads = n[2];
  problem.query_length = n[3], problem.key_length = n[4];
  problem.head_dim = n[5], problem.value_dim = n[6], problem.causal = n[7];
  tva_prepared prepared;
  if (tva_prepare(&problem, &prepared) != TVA_OK) {
    fprintf(stderr, "%s\n", tva_last_error());
    return 1;
  }
  size_t rows = (size_t)n[0] * n[1] * n[3], keys = (size_t)n[0] * n[2] * n[4];
  size_t bytes = tva_workspace_bytes(&prepared);
  void *workspace = malloc(bytes);
  float *out = malloc(rows * n[6] * sizeof *out);
  tva_arrays arrays = {
      .query = numbers(rows * n[5]), .key = numbers(keys * n[5]), .value = numbers(keys * n[6]), .out = out};
  if (!workspace || !out || tva_run(&prepared, &arrays, workspace, bytes) != TVA_OK) {
    fprintf(stderr, "%s\n", tva_last_error());
    return 1;
  }
  printf("%s\n", tva_kernel_name(&prepared));
  return 0;
}
