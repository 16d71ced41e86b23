/* What an archive promises beside numbers: no allocation after tva_prepare, launch functions kept to their
 * contract, pools that serve several callers. Exits with 1 and says what does not hold. Needs a kernel for
 * head_dim 64, float32, and -Wl,--wrap= for the functions below. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tvm_attention.h"

enum { HEADS = 3, QUERIES = 50, KEYS = 90, DIM = 64, CALLERS = 3 };

#define HOLDS(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "line %d: %s does not hold (%s)\n", __LINE__, #condition, tva_last_error()); \
      exit(1);                                                                               \
    }                                                                                        \
  } while (0)

static int allocations;
void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
void *__real_realloc(void *, size_t);
int __real_posix_memalign(void **, size_t, size_t);
int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
void *__wrap_malloc(size_t n) { return ++allocations, __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t m) { return ++allocations, __real_calloc(n, m); }
void *__wrap_realloc(void *p, size_t n) { return ++allocations, __real_realloc(p, n); }
int __wrap_posix_memalign(void **p, size_t a, size_t n) { return ++allocations, __real_posix_memalign(p, a, n); }
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x) {
  return ++allocations, __real_pthread_create(t, a, f, x);
}

static float query[HEADS * QUERIES * DIM], key[HEADS * KEYS * DIM], value[HEADS * KEYS * DIM];
static float expected[HEADS * QUERIES * DIM];

static tva_problem problem_of(int threads, tva_launch launch, void *user) {
  tva_problem p;
  memset(&p, 0, sizeof p);
  p.abi = TVA_ABI, p.dtype = TVA_FLOAT32, p.head_dim = DIM, p.batch = 1, p.query_heads = HEADS;
  p.query_length = QUERIES, p.key_length = KEYS, p.threads = threads, p.launch = launch, p.launch_user = user;
  return p;
}

static tva_status compute(const tva_problem *p, float *out, tva_prepared *prepared, void *workspace, size_t bytes) {
  tva_arrays arrays = {.query = query, .key = key, .value = value, .out = out};
  tva_status status = tva_prepare(p, prepared);
  return status == TVA_OK ? tva_run(prepared, &arrays, workspace, bytes) : status;
}

/* Computes with room to spare; whether the result is the expected one. */
static tva_status result(const tva_problem *p, int *right) {
  static _Thread_local float out[HEADS * QUERIES * DIM];
  static _Thread_local char workspace[1 << 22];
  tva_prepared prepared;
  memset(out, 0, sizeof out);
  tva_status status = compute(p, out, &prepared, workspace, sizeof workspace);
  *right = memcmp(out, expected, sizeof out) == 0;
  return status;
}

static int calls;
static int backwards(void *user, int tasks, void (*task)(void *, int), void *data) {
  (void)user, ++calls;
  while (tasks--) task(data, tasks);
  return 0;
}
static int refusing(void *user, int tasks, void (*task)(void *, int), void *data) {
  (void)user, (void)tasks, (void)task, (void)data;
  return 7;
}
static int lazy(void *user, int tasks, void (*task)(void *, int), void *data) {
  (void)user;
  for (int i = 1; i < tasks; ++i) task(data, i);
  return 0;
}
static int wild(void *user, int tasks, void (*task)(void *, int), void *data) {
  (void)user;
  for (int i = -1; i <= tasks; ++i) task(data, i);
  return 0;
}

static void *caller(void *pool) {
  tva_problem p = problem_of(3, tva_pool_launch, pool);
  for (int i = 0; i < 20; ++i) {
    int right = 0;
    HOLDS(result(&p, &right) == TVA_OK && right);
  }
  return NULL;
}

static void check_allocations(tva_pool *pool) {
  tva_problem p = problem_of(2, tva_pool_launch, pool);
  tva_prepared prepared;
  float *out = malloc(sizeof expected);
  HOLDS(tva_prepare(&p, &prepared) == TVA_OK);
  size_t bytes = tva_workspace_bytes(&prepared);
  char *workspace = malloc(bytes);
  int before = allocations;
  for (int i = 0; i < 10; ++i) HOLDS(compute(&p, out, &prepared, workspace, bytes) == TVA_OK);
  HOLDS(compute(&p, NULL, &prepared, workspace, bytes) == TVA_NULL_POINTER);
  HOLDS(allocations == before && before > 0);
  HOLDS(compute(&p, out, &prepared, workspace, bytes - 1) == TVA_WORKSPACE);
  HOLDS(strstr(tva_last_error(), "tva_workspace_bytes"));
  HOLDS(compute(&p, out, &prepared, NULL, bytes) == TVA_NULL_POINTER);
  free(out), free(workspace);
}

static void check_launches(void) {
  int right = 0;
  tva_problem p = problem_of(4, backwards, NULL);
  HOLDS(result(&p, &right) == TVA_OK && right && calls > 0);
  p.launch = refusing;
  HOLDS(result(&p, &right) == TVA_FAILED && strstr(tva_last_error(), "returned 7"));
  p.launch = lazy;
  HOLDS(result(&p, &right) == TVA_FAILED && strstr(tva_last_error(), "4 tasks"));
  p.launch = wild;
  HOLDS(result(&p, &right) == TVA_OK && right);
}

static void check_what_is_not_prepared(void) {
  tva_prepared prepared;
  tva_arrays arrays = {.query = query};
  tva_kernel_info info;
  memset(&prepared, 0x5a, sizeof prepared);
  HOLDS(tva_run(&prepared, &arrays, NULL, 0) == TVA_NOT_PREPARED);
  HOLDS(tva_workspace_bytes(&prepared) == 0 && !tva_kernel_name(&prepared));
  HOLDS(tva_run(NULL, &arrays, NULL, 0) == TVA_NULL_POINTER);
  HOLDS(tva_workspace_bytes(NULL) == 0 && !tva_kernel_name(NULL));
  HOLDS(tva_prepare(NULL, &prepared) == TVA_NULL_POINTER);
  tva_problem p = problem_of(1, NULL, NULL);
  HOLDS(tva_prepare(&p, NULL) == TVA_NULL_POINTER);
  HOLDS(tva_prepare(&p, &prepared) == TVA_OK && tva_run(&prepared, NULL, NULL, 0) == TVA_NULL_POINTER);
  p.head_dim = 65;
  HOLDS(tva_prepare(&p, &prepared) == TVA_UNSUPPORTED && strstr(tva_last_error(), "head_dim 65"));
  HOLDS(tva_run(&prepared, &arrays, NULL, 0) == TVA_NOT_PREPARED);
  HOLDS(tva_kernel_at(tva_kernel_count(), &info) == TVA_BAD_VALUE && tva_kernel_at(0, NULL) == TVA_NULL_POINTER);
  HOLDS(tva_kernel_at(0, &info) == TVA_OK && info.name && info.target);
}

int main(void) {
  tva_pool *pool = NULL, *none = NULL;
  pthread_t callers[CALLERS];
  tva_prepared prepared;
  static char workspace[1 << 22];
  for (size_t i = 0; i < sizeof key / sizeof *key; ++i) key[i] = value[i] = (float)(i * 7919 % 1013) / 1013 - 0.5f;
  for (size_t i = 0; i < sizeof query / sizeof *query; ++i) query[i] = (float)(i * 104729 % 997) / 997 - 0.5f;
  tva_problem alone = problem_of(1, NULL, NULL);
  HOLDS(strcmp(tva_last_error(), "") == 0);
  HOLDS(compute(&alone, expected, &prepared, workspace, sizeof workspace) == TVA_OK);
  HOLDS(tva_pool_open(3, &pool) == TVA_OK);
  check_allocations(pool);
  check_launches();
  check_what_is_not_prepared();
  for (int i = 0; i < CALLERS; ++i) HOLDS(__real_pthread_create(&callers[i], NULL, caller, pool) == 0);
  for (int i = 0; i < CALLERS; ++i) pthread_join(callers[i], NULL);
  HOLDS(tva_pool_open(0, &none) == TVA_BAD_VALUE && tva_pool_open(1 << 20, &none) == TVA_BAD_VALUE && !none);
  HOLDS(tva_pool_open(2, NULL) == TVA_NULL_POINTER);
  tva_pool_close(NULL);
  tva_pool_close(pool);
  puts("holds");
  return 0;
}
