/* What a C program waits for: archive_timing NANOSECONDS, the monotonic clock when it was started. Prints
 * milliseconds from then to its first result (a BERT layer's attention, 12 x 128 x 128 x 64), and microseconds of
 * the smallest call there is, one row, one key, one head: its checks and its launch, hardly any arithmetic; then
 * of tva_prepare. */
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tvm_attention.h"

enum { HEADS = 12, ROWS = 128, DIM = 64, CALLS = 20000, ROUNDS = 15 };

static int64_t nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int failed(void) {
  fprintf(stderr, "%s\n", tva_last_error());
  return 1;
}

static float query[HEADS * ROWS * DIM], key[HEADS * ROWS * DIM], value[HEADS * ROWS * DIM], out[HEADS * ROWS * DIM];

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) * 2 - 1; }

int main(int argc, char **argv) {
  int64_t started = argc > 1 ? atoll(argv[1]) : nanoseconds();
  tva_problem problem = {.abi = TVA_ABI, .dtype = TVA_FLOAT32, .head_dim = DIM, .batch = 1, .query_heads = HEADS};
  tva_arrays arrays = {.query = query, .key = key, .value = value, .out = out};
  tva_prepared prepared;
  double run[ROUNDS], prepare[ROUNDS];
  for (size_t i = 0; i < HEADS * ROWS * DIM; ++i) query[i] = key[i] = value[i] = (float)(i % 101) / 101;
  problem.query_length = problem.key_length = ROWS;
  if (tva_prepare(&problem, &prepared) != TVA_OK) return failed();
  size_t bytes = tva_workspace_bytes(&prepared);
  void *workspace = malloc(bytes);
  if (tva_run(&prepared, &arrays, workspace, bytes) != TVA_OK) return failed();
  double first = 1e-6 * (double)(nanoseconds() - started);
  problem.query_heads = problem.query_length = problem.key_length = 1;
  for (int r = 0; r < ROUNDS; ++r) {
    int64_t start = nanoseconds();
    for (int i = 0; i < CALLS; ++i)
      if (tva_prepare(&problem, &prepared) != TVA_OK) return failed();
    prepare[r] = 1e-3 * (double)(nanoseconds() - start) / CALLS;
    start = nanoseconds();
    for (int i = 0; i < CALLS; ++i)
      if (tva_run(&prepared, &arrays, workspace, bytes) != TVA_OK) return failed();
    run[r] = 1e-3 * (double)(nanoseconds() - start) / CALLS;
  }
  qsort(run, ROUNDS, sizeof *run, by_size), qsort(prepare, ROUNDS, sizeof *prepare, by_size);
  printf("%.4f %.4f %.4f\n", first, run[ROUNDS / 2], prepare[ROUNDS / 2]);
  free(workspace);
  return 0;
}
