/* Runs one problem through the C entry points for GPUs: cuda_calls FOLDER ROWS KEYS QUERY_HEADS KV_HEADS DIM OUT,
 * with numbers that tests/test_cuda_export.py knows; says in words what goes wrong. */
#include <stdio.h>
#include <stdlib.h>

#include "tvm_attention_cuda.h"

static float *numbers(size_t count, unsigned seed) {
  float *made = malloc(count * sizeof *made);
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    made[i] = (float)(int)(seed >> 8) / (1 << 23) - 1.0f;
  }
  return made;
}

static int failed(const char *what) {
  printf("%s: %s\n", what, tva_cuda_last_error());
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 8) return 2;
  int rows = atoi(argv[2]), keys = atoi(argv[3]), heads = atoi(argv[4]), kv_heads = atoi(argv[5]), dim = atoi(argv[6]);
  tva_cuda *gpu;
  if (tva_cuda_open(1, argv[1], &gpu) != TVA_OK) return failed("open");
  tva_problem problem = {.abi = TVA_ABI};
  problem.dtype = TVA_FLOAT32, problem.head_dim = dim, problem.batch = 2, problem.query_heads = heads;
  problem.kv_heads = kv_heads, problem.query_length = rows, problem.key_length = keys;
  problem.causal = TVA_BOTTOM_RIGHT;
  tva_cuda_call call;
  if (tva_cuda_prepare(gpu, &problem, &call) != TVA_OK) return failed("prepare");
  size_t queries = 2 * (size_t)heads * rows * dim, stored = 2 * (size_t)kv_heads * keys * dim;
  tva_arrays arrays = {.query = numbers(queries, 1), .key = numbers(stored, 2), .value = numbers(stored, 3)};
  arrays.out = malloc(queries * 4);
  size_t bytes = tva_cuda_workspace_bytes(&call);
  void *workspace = malloc(bytes + 1);
  if (bytes && tva_cuda_run(&call, &arrays, workspace, bytes - 1, NULL) != TVA_WORKSPACE) return 3;
  if (tva_cuda_run(&call, &arrays, workspace, bytes, (void *)77) != TVA_OK) return failed("run");
  printf("%s\n", tva_cuda_kernel_name(&call));
  FILE *file = fopen(argv[7], "wb");
  fwrite(arrays.out, 4, queries, file);
  fclose(file);
  problem.head_dim = 99;
  if (tva_cuda_prepare(gpu, &problem, &call) != TVA_UNSUPPORTED) return 4;
  problem.head_dim = dim, problem.has_kv_lengths = 1;
  if (tva_cuda_prepare(gpu, &problem, &call) != TVA_UNSUPPORTED) return 5;
  problem.has_kv_lengths = 0, problem.kv_heads = heads + 1;
  if (tva_cuda_prepare(gpu, &problem, &call) != TVA_BAD_VALUE) return 6;
  tva_cuda_close(gpu);
  return 0;
}
