/* Attention from an exported archive, checked against the textbook in double precision, and timed.
 *
 *   tvm-attention export --workload head_dim=64 --targets x86-64-v2,x86-64-v3,x86-64-v4,cortex-a72 -o archive
 *   cmake -S examples/c -B build -Dtvm_attention_DIR=$PWD/archive/cmake && cmake --build build
 *   build/attention [threads]
 */
#define _POSIX_C_SOURCE 199309L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tvm_attention.h"

enum { HEADS = 4, QUERIES = 197, KEYS = 333, DIM = 64 };

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *random_numbers(size_t count, unsigned *state) {
  float *numbers = malloc(count * sizeof *numbers);
  for (size_t i = 0; numbers && i < count; ++i) {
    *state = *state * 1664525u + 1013904223u;
    numbers[i] = (float)(*state >> 8) / (float)(1u << 23) - 1.0f;
  }
  return numbers;
}

/* The largest difference from softmax(query key^T / sqrt(DIM)) value. */
static double error(const float *query, const float *key, const float *value, const float *out) {
  double worst = 0, weights[KEYS];
  for (size_t row = 0; row < HEADS * QUERIES; ++row) {
    const float *q = query + row * DIM, *k = key + row / QUERIES * KEYS * DIM, *v = value + row / QUERIES * KEYS * DIM;
    double most = -INFINITY, total = 0;
    for (size_t j = 0; j < KEYS; ++j) {
      double score = 0;
      for (size_t d = 0; d < DIM; ++d) score += (double)q[d] * k[j * DIM + d];
      weights[j] = score / sqrt(DIM);
      most = fmax(most, weights[j]);
    }
    for (size_t j = 0; j < KEYS; ++j) total += weights[j] = exp(weights[j] - most);
    for (size_t d = 0; d < DIM; ++d) {
      double expected = 0;
      for (size_t j = 0; j < KEYS; ++j) expected += weights[j] / total * v[j * DIM + d];
      worst = fmax(worst, fabs(expected - out[row * DIM + d]));
    }
  }
  return worst;
}

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, tva_last_error());
  return 1;
}

int main(int argc, char **argv) {
  double start = seconds();
  unsigned state = 1;
  float *query = random_numbers(HEADS * QUERIES * DIM, &state);
  float *key = random_numbers(HEADS * KEYS * DIM, &state);
  float *value = random_numbers(HEADS * KEYS * DIM, &state);
  float *out = malloc(HEADS * QUERIES * DIM * sizeof *out);
  tva_pool *pool = NULL;
  tva_problem problem = {.abi = TVA_ABI};
  tva_prepared prepared;

  problem.dtype = TVA_FLOAT32;
  problem.head_dim = DIM;
  problem.batch = 1;
  problem.query_heads = HEADS;
  problem.query_length = QUERIES;
  problem.key_length = KEYS;
  problem.threads = argc > 1 ? atoi(argv[1]) : 1;
  if (problem.threads > 1) {
    if (tva_pool_open(problem.threads, &pool) != TVA_OK) return failed("pool");
    problem.launch = tva_pool_launch;
    problem.launch_user = pool;
  }
  if (tva_prepare(&problem, &prepared) != TVA_OK) return failed("prepare");

  size_t bytes = tva_workspace_bytes(&prepared);
  void *workspace = malloc(bytes);
  tva_arrays arrays = {.query = query, .key = key, .value = value, .out = out};
  if (!query || !key || !value || !out || !workspace) return 1;
  if (tva_run(&prepared, &arrays, workspace, bytes) != TVA_OK) return failed("run");
  double first = seconds() - start, again = INFINITY;
  for (int i = 0; i < 20; ++i) {
    start = seconds();
    if (tva_run(&prepared, &arrays, workspace, bytes) != TVA_OK) return failed("run");
    again = fmin(again, seconds() - start);
  }

  for (int i = 0; i < tva_kernel_count(); ++i) {
    tva_kernel_info info;
    if (tva_kernel_at(i, &info) != TVA_OK) return failed("kernel");
    printf("%s for %s%s: %s\n", info.name, info.target, info.runs_here ? "" : " (not here)", info.workload);
  }
  double worst = error(query, key, value, out);
  printf("version %s on %s, kernel %s, workspace %zu bytes\n", tva_version(), tva_architecture(),
         tva_kernel_name(&prepared), bytes);
  printf("first result after %.3f ms, again in %.3f ms, largest error %.2g\n", 1e3 * first, 1e3 * again, worst);
  tva_pool_close(pool);
  free(query), free(key), free(value), free(out), free(workspace);
  return worst < 2e-6 ? 0 : 1;
}
