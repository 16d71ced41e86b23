/* Runs one problem through the C entry points for GPUs: cuda_calls FOLDER KIND ROWS KEYS OUT, with numbers that
 * tests/test_cuda_export.py knows, on a stand-in whose GPU's memory is the processor's; says in words what goes
 * wrong. KIND is dense, unaligned, lengths, packed or pages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tvm_attention_cuda.h"

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, DIM = 64, PAGE_ROWS = 16 };

/* With room for one element before them. */
static float *numbers(size_t count, unsigned seed) {
  float *made = (float *)malloc((count + 1) * sizeof *made) + 1;
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    made[i] = (float)(int)(seed >> 8) / (1 << 23) - 1.0f;
  }
  return made;
}

static float *moved(float *from, size_t count, int by) { return memmove(from - 1 + by, from, count * sizeof *from); }

static int failed(const char *what) {
  printf("%s: %s\n", what, tva_cuda_last_error());
  return 1;
}

/* What is refused before anything runs. */
static int refused(tva_cuda *gpu, const tva_problem *sound) {
  tva_cuda_call call;
  tva_problem p = *sound;
  p.head_dim = 99;
  if (tva_cuda_prepare(gpu, &p, &call) != TVA_UNSUPPORTED) return 4;
  p = *sound, p.has_kv_lengths = p.has_sequences = 1;
  if (tva_cuda_prepare(gpu, &p, &call) != TVA_BAD_VALUE) return 5;
  p = *sound, p.kv_heads = HEADS + 1;
  if (tva_cuda_prepare(gpu, &p, &call) != TVA_BAD_VALUE) return 6;
  p = *sound, p.page_rows = 12;
  if (tva_cuda_prepare(gpu, &p, &call) != TVA_BAD_VALUE) return 7;
  p = *sound, p.has_kv_lengths = p.has_sequences = 0, p.key_rows = 9;
  if (tva_cuda_prepare(gpu, &p, &call) != TVA_BAD_VALUE) return 8;
  p = *sound, p.batch = 1 << 30, p.query_heads = p.kv_heads = 1;
  tva_arrays arrays = {.query = &p, .key = &p, .value = &p, .out = &p, .lse = (float *)&p};
  if (sound->has_kv_lengths || sound->has_sequences) return 0;
  if (tva_cuda_prepare(gpu, &p, &call) != TVA_OK) return 9;
  p.query_length = 1 << 10;
  if (tva_cuda_workspace_bytes(&call)) return 0; /* of split keys: no memory is that large */
  if (tva_cuda_prepare(gpu, &p, &call) != TVA_OK) return 10;
  return tva_cuda_run(&call, &arrays, NULL, 0, NULL) == TVA_UNSUPPORTED ? 0 : 11;
}

int main(int argc, char **argv) {
  if (argc != 6) return 2;
  const char *kind = argv[2];
  int rows = atoi(argv[3]), keys = atoi(argv[4]), pages = strcmp(kind, "pages") == 0, packed = strcmp(kind, "packed") == 0;
  int lengths = pages || strcmp(kind, "lengths") == 0, columns = (keys + PAGE_ROWS - 1) / PAGE_ROWS;
  tva_cuda *gpu;
  if (tva_cuda_open(1, argv[1], &gpu) != TVA_OK) return failed("open");
  tva_problem problem = {.abi = TVA_ABI};
  problem.dtype = TVA_FLOAT32, problem.head_dim = DIM, problem.batch = BATCH, problem.query_heads = HEADS;
  problem.kv_heads = KV_HEADS, problem.query_length = rows, problem.key_length = keys;
  problem.causal = TVA_BOTTOM_RIGHT;
  size_t stored = (size_t)BATCH * KV_HEADS * keys * DIM, queries = (size_t)BATCH * HEADS * rows * DIM;
  int32_t given[] = {keys, keys / 3}, table[64];
  tva_sequence sequences[] = {{0, rows, 0, keys}, {rows, rows - 2, keys, keys - 5}};
  tva_arrays arrays = {0};
  if (lengths) problem.has_kv_lengths = 1, arrays.kv_lengths = given;
  if (packed) {
    problem.has_sequences = 1, problem.query_rows = BATCH * rows, problem.key_rows = BATCH * keys;
    arrays.sequences = sequences;
  }
  if (pages) {
    problem.page_rows = PAGE_ROWS, problem.page_columns = columns, problem.pages = BATCH * columns;
    for (int i = 0; i < BATCH * columns; ++i) table[i] = BATCH * columns - 1 - i;
    arrays.page_table = table;
    stored = (size_t)BATCH * columns * KV_HEADS * PAGE_ROWS * DIM;
  }
  problem.has_lse = packed || strcmp(kind, "lengths") == 0;
  int by = strcmp(kind, "unaligned") != 0;
  arrays.query = moved(numbers(queries, 1), queries, by);
  arrays.key = moved(numbers(stored, 2), stored, by), arrays.value = moved(numbers(stored, 3), stored, by);
  arrays.out = calloc(queries, 4), arrays.lse = calloc(queries / DIM, 4);
  tva_cuda_call call;
  if (tva_cuda_prepare(gpu, &problem, &call) != TVA_OK) return failed("prepare");
  size_t bytes = tva_cuda_workspace_bytes(&call);
  void *workspace = malloc(bytes + 1);
  if (bytes && tva_cuda_run(&call, &arrays, workspace, bytes - 1, NULL) != TVA_WORKSPACE) return 3;
  if (tva_cuda_run(&call, &arrays, workspace, bytes, (void *)77) != TVA_OK) return failed("run");
  printf("%s\n", tva_cuda_kernel_name(&call));
  FILE *file = fopen(argv[5], "wb");
  fwrite(arrays.out, 4, queries, file);
  fwrite(arrays.lse, 4, queries / DIM, file);
  fclose(file);
  int status = refused(gpu, &problem);
  tva_arrays lacking = arrays;
  lacking.kv_lengths = NULL, lacking.sequences = NULL;
  if ((lengths || packed) && tva_cuda_run(&call, &lacking, workspace, bytes, NULL) != TVA_NULL_POINTER) return 12;
  tva_cuda_close(gpu);
  return status;
}
