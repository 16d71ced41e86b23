/* Runs calls that a test has written to a file and writes what came of them to another; each array has an
 * allocation of its own, so that sanitizers see every step outside it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tvm_attention.h"

enum { ARRAYS = 13, OUT = 3, LSE = 10, GUARD = 64 };

typedef struct {
  tva_problem problem;
  char target[64]; /* "" for none */
  int64_t bytes[ARRAYS]; /* of the arrays in the order of tva_arrays; -1 for a null pointer */
  int64_t workspace;     /* bytes to pass less those needed; 0 for just those */
} call;

typedef struct {
  int32_t status, guard; /* guard: whether what lies behind the workspace was touched */
  int64_t workspace;
  char message[256], kernel[64];
} answer;

static void take(void *to, size_t bytes, FILE *from) {
  if (bytes && fread(to, bytes, 1, from) != 1) exit(3);
}

static void give(const void *what, size_t bytes, FILE *to) {
  if (bytes && fwrite(what, bytes, 1, to) != 1) exit(4);
}

static tva_status run(call *c, char **arrays, answer *a) {
  tva_prepared prepared;
  tva_arrays all;
  tva_pool *pool = NULL;
  tva_status status;
  if (c->problem.threads > 1 && tva_pool_open(c->problem.threads, &pool) == TVA_OK) {
    c->problem.launch = tva_pool_launch;
    c->problem.launch_user = pool;
  }
  c->problem.target = c->target[0] ? c->target : NULL;
  status = tva_prepare(&c->problem, &prepared);
  if (status == TVA_OK) {
    size_t needed = tva_workspace_bytes(&prepared);
    size_t given = (size_t)((int64_t)needed + c->workspace);
    char *workspace = malloc(given + GUARD);
    memset(workspace, 0xff, given + GUARD); /* NaN, whatever reads it as a number */
    memcpy(&all, arrays, sizeof all);
    status = tva_run(&prepared, &all, workspace, given);
    for (size_t i = 0; i < GUARD; ++i) a->guard |= (unsigned char)workspace[given + i] != 0xff;
    free(workspace);
    a->workspace = (int64_t)needed;
    if (tva_kernel_name(&prepared)) snprintf(a->kernel, sizeof a->kernel, "%s", tva_kernel_name(&prepared));
  }
  tva_pool_close(pool);
  return status;
}

int main(int argc, char **argv) {
  FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL, *out = in ? fopen(argv[2], "wb") : NULL;
  call c;
  if (!out) return 2;
  while (fread(&c, sizeof c, 1, in) == 1) {
    char *arrays[ARRAYS] = {0};
    answer a;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < ARRAYS; ++i) {
      if (c.bytes[i] < 0) continue;
      arrays[i] = malloc((size_t)c.bytes[i]);
      take(arrays[i], (size_t)c.bytes[i], in);
    }
    a.status = (int32_t)run(&c, arrays, &a);
    snprintf(a.message, sizeof a.message, "%s", a.status ? tva_last_error() : "");
    give(&a, sizeof a, out);
    for (int i = OUT; i <= LSE; i += LSE - OUT)
      if (arrays[i]) give(arrays[i], (size_t)c.bytes[i], out);
    for (int i = 0; i < ARRAYS; ++i) free(arrays[i]);
  }
  return fclose(out) == 0 ? 0 : 5;
}
