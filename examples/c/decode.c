/* Decoding against a cache of keys and values that grows by a row a step, in memory that is allocated once.
 *
 *   tvm-attention export --workload head_dim=64,query_length=1,kv_heads=2 --targets native,cortex-a72 -o archive
 *   cmake -S examples/c -B build -Dtvm_attention_DIR=$PWD/archive/cmake && cmake --build build
 *   build/decode
 */
#define _POSIX_C_SOURCE 199309L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tvm_attention.h"

enum { HEADS = 8, KV_HEADS = 2, DIM = 64, CAPACITY = 256, STEPS = 200 };

static float key[KV_HEADS][CAPACITY][DIM], value[KV_HEADS][CAPACITY][DIM], query[HEADS][DIM], out[HEADS][DIM];

static float number(void) {
  static unsigned state = 1;
  state = state * 1664525u + 1013904223u;
  return (float)(state >> 8) / (float)(1u << 23) - 1.0f;
}

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, tva_last_error());
  return 1;
}

/* The largest difference of the last step from the textbook in double precision. */
static double error(int keys) {
  double worst = 0;
  for (int h = 0; h < HEADS; ++h) {
    double weights[CAPACITY], total = 0;
    int kv = h / (HEADS / KV_HEADS);
    for (int j = 0; j < keys; ++j) {
      double score = 0;
      for (int d = 0; d < DIM; ++d) score += (double)query[h][d] * key[kv][j][d];
      total += weights[j] = exp(score / sqrt(DIM));
    }
    for (int d = 0; d < DIM; ++d) {
      double expected = 0;
      for (int j = 0; j < keys; ++j) expected += weights[j] / total * value[kv][j][d];
      worst = fmax(worst, fabs(expected - out[h][d]));
    }
  }
  return worst;
}

static double microseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

int main(void) {
  tva_problem problem = {.abi = TVA_ABI, .dtype = TVA_FLOAT32, .head_dim = DIM, .batch = 1};
  tva_arrays arrays = {.query = query, .key = key, .value = value, .out = out};
  tva_prepared prepared;
  double spent = 0;

  problem.query_heads = HEADS, problem.kv_heads = KV_HEADS, problem.query_length = 1;
  /* Room for more keys than there are: strides say where the next head's begin. */
  problem.key.row = problem.value.row = DIM;
  problem.key.head = problem.value.head = CAPACITY * DIM;
  problem.key.batch = problem.value.batch = KV_HEADS * CAPACITY * DIM;
  problem.key_length = CAPACITY;
  if (tva_prepare(&problem, &prepared) != TVA_OK) return failed("prepare");
  size_t bytes = tva_workspace_bytes(&prepared);
  void *workspace = malloc(bytes);
  if (!workspace) return 1;

  for (int step = 1; step <= STEPS; ++step) {
    for (int h = 0; h < KV_HEADS; ++h)
      for (int d = 0; d < DIM; ++d) key[h][step - 1][d] = number(), value[h][step - 1][d] = number();
    for (int h = 0; h < HEADS; ++h)
      for (int d = 0; d < DIM; ++d) query[h][d] = number();
    double start = microseconds();
    problem.key_length = step;
    if (tva_prepare(&problem, &prepared) != TVA_OK) return failed("prepare");
    if (tva_run(&prepared, &arrays, workspace, bytes) != TVA_OK) return failed("run");
    spent += microseconds() - start;
  }
  double worst = error(STEPS);
  printf("kernel %s, %d steps, %.1f us each, largest error %.2g\n", tva_kernel_name(&prepared), STEPS, spent / STEPS,
         worst);
  free(workspace);
  return worst < 2e-6 ? 0 : 1;
}
