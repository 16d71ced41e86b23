/* Anything goes into the entry points: a status comes out, with a message if it is not TVA_OK, and never a
 * step outside an array (the sanitizers watch). any_input SEED ROUNDS; prints how often what came out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tvm_attention.h"

enum { MOST_ELEMENTS = 1 << 18, TOO_MANY = 1 << 30, MOST_WORKSPACE = 1 << 24, STATUSES = 10 };

static uint64_t state;
static uint32_t drawn(uint32_t below) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33) % below;
}

static int64_t strange(void) {
  static const int64_t numbers[] = {0, 1, -1, 2, 3, 7, 63, 64, 65, 512, 513, 1024, INT32_MAX, INT32_MIN, INT64_MAX,
                                    INT64_MIN, INT64_C(1) << 40, -64, 1 << 30, (1 << 30) + 1};
  return numbers[drawn(sizeof numbers / sizeof *numbers)];
}

static int32_t length(void) { return drawn(40) ? (int32_t)drawn(40) : (int32_t)strange(); }

static float strange_number(void) {
  static const float numbers[] = {0, 1, -1, 0.125f, NAN, INFINITY, -INFINITY, 1e-45f, 3e38f, 20};
  return numbers[drawn(sizeof numbers / sizeof *numbers)];
}

static tva_strides strides_of(int32_t all_heads, int32_t all_rows, int64_t dim) {
  int64_t heads = all_heads % 100, rows = all_rows % 100; /* of sizes that are computed, exact */
  tva_strides s = {0, 0, 0};
  switch (drawn(6)) {
    case 0: s.head = dim, s.row = heads * dim, s.batch = rows * heads * dim; break; /* (batch, row, head, dim) */
    case 1: s.row = dim + 3, s.head = rows * (dim + 3), s.batch = heads * rows * (dim + 3) + 5; break;
    case 2: s.row = strange(), s.head = strange(), s.batch = strange(); break;
    default: break;
  }
  return s;
}

static tva_problem problem_drawn(void) {
  tva_problem p;
  memset(&p, 0, sizeof p);
  p.abi = drawn(50) ? TVA_ABI : drawn(3);
  p.dtype = drawn(50) ? TVA_FLOAT32 : (int32_t)strange();
  p.head_dim = drawn(20) ? 64 : (int32_t)strange();
  p.value_dim = drawn(20) ? 0 : (int32_t)strange();
  p.batch = drawn(3) ? 1 : length();
  p.query_heads = drawn(20) ? 1 + (int32_t)drawn(4) : length();
  p.kv_heads = drawn(3) ? 0 : length();
  p.query_length = length(), p.key_length = length();
  p.query = strides_of(p.query_heads, p.query_length, 64);
  p.key = strides_of(p.query_heads, p.key_length, 64);
  p.value = strides_of(p.query_heads, p.key_length, 64);
  p.out = strides_of(p.query_heads, p.query_length, 64);
  p.threads = drawn(10) ? (int32_t)drawn(4) : (int32_t)strange();
  if (!drawn(4)) p.scale = strange_number();
  if (!drawn(40)) p.softcap = strange_number();
  if (!drawn(3)) p.causal = drawn(20) ? (int32_t)drawn(3) : (int32_t)strange();
  if (!drawn(3)) p.mask_dtype = drawn(20) ? TVA_BOOL : (int32_t)strange();
  if (p.mask_dtype)
    for (int i = 0; i < 4; ++i) p.mask_strides[i] = drawn(20) ? (int64_t)drawn(50) : strange();
  if (!drawn(40)) p.windowed = (int32_t)strange(), p.window_left = (int32_t)strange();
  if (!drawn(3)) p.has_kv_lengths = drawn(20) ? 1 : (int32_t)strange();
  if (!drawn(3)) p.has_lse = drawn(20) ? 1 : (int32_t)strange();
  if (!drawn(40)) p.kv_dtype = (int32_t)strange();
  if (!drawn(40)) p.target = drawn(2) ? "x86-64-v3" : "no such target";
  return p;
}

/* Bytes that strides reach; TOO_MANY for what is not worth having. */
static int64_t reach(const int64_t *extents, const int64_t *strides, int count, int64_t last, int64_t size) {
  int64_t end = last;
  for (int i = 0; i < count; ++i) {
    if (extents[i] <= 0) return 0;
    if (extents[i] > 1 && strides[i] > MOST_ELEMENTS) return TOO_MANY;
    end += (extents[i] - 1) * (extents[i] > 1 ? strides[i] : 0);
    if (extents[i] > MOST_ELEMENTS || end > MOST_ELEMENTS) return TOO_MANY;
  }
  return end * size;
}

static int64_t tensor(const tva_strides *s, int64_t batch, int64_t heads, int64_t rows, int64_t dim) {
  int64_t extents[] = {batch, heads, rows}, strides[] = {s->batch, s->head, s->row};
  if (!s->batch && !s->head && !s->row) strides[2] = dim, strides[1] = rows * dim, strides[0] = heads * rows * dim;
  return reach(extents, strides, 3, dim, 4);
}

static void *numbers(int64_t bytes) {
  float *at = malloc((size_t)bytes);
  for (int64_t i = 0; i < bytes / 4; ++i) at[i] = (float)drawn(1000) / 1000 - 0.5f;
  return at;
}

/* Runs what was prepared, if its arrays are small; -1 if they are not. */
static int run(const tva_problem *p, const tva_prepared *prepared) {
  int64_t kv = p->kv_heads ? p->kv_heads : p->query_heads, dim = p->head_dim, out = p->value_dim ? p->value_dim : dim;
  int64_t mask[] = {p->batch, p->query_heads, p->query_length, p->key_length}, lse[] = {p->batch, p->query_heads};
  int64_t rows[] = {p->lse.batch, p->lse.head};
  if (!rows[0] && !rows[1]) rows[1] = p->query_length, rows[0] = (int64_t)p->query_heads * p->query_length;
  int64_t bytes[] = {tensor(&p->query, p->batch, p->query_heads, p->query_length, dim),
                     tensor(&p->key, p->batch, kv, p->key_length, dim),
                     tensor(&p->value, p->batch, kv, p->key_length, out),
                     tensor(&p->out, p->batch, p->query_heads, p->query_length, out),
                     p->mask_dtype ? reach(mask, p->mask_strides, 4, 1, 1) : 0,
                     p->has_kv_lengths ? 4 * (int64_t)p->batch : 0,
                     p->has_lse ? reach(lse, rows, 2, p->query_length, 4) : 0};
  size_t needed = tva_workspace_bytes(prepared), given = drawn(8) ? needed : drawn(1 + (uint32_t)(needed % 100000));
  for (size_t i = 0; i < sizeof bytes / sizeof *bytes; ++i)
    if (bytes[i] >= TOO_MANY) return -1;
  if (needed > MOST_WORKSPACE) return -1;
  void *at[7], *workspace = drawn(16) ? malloc(given) : NULL;
  for (int i = 0; i < 7; ++i) at[i] = drawn(60) ? numbers(bytes[i]) : NULL;
  for (int32_t b = 0; at[5] && p->has_kv_lengths && b < p->batch; ++b)
    ((int32_t *)at[5])[b] = drawn(30) ? (int32_t)drawn(1 + (uint32_t)p->key_length) : (int32_t)strange();
  tva_arrays arrays = {.query = at[0], .key = at[1], .value = at[2], .out = at[3], .mask = at[4],
                       .kv_lengths = at[5], .lse = at[6]};
  if (!drawn(60)) arrays.key = (const char *)arrays.key + 1;
  tva_status status = tva_run(prepared, drawn(60) ? &arrays : NULL, workspace, given);
  if (status == TVA_OK && at[3] && bytes[3] >= 4 && isnan(*(float *)at[3]) && fabsf(p->scale) <= 20) {
    fprintf(stderr, "not a number came out\n");
    exit(1);
  }
  for (int i = 0; i < 7; ++i) free(at[i]);
  free(workspace);
  return status;
}

int main(int argc, char **argv) {
  long count[STATUSES] = {0}, computed = 0, rounds = argc > 2 ? atol(argv[2]) : 1000;
  state = argc > 1 ? (uint64_t)atol(argv[1]) : 1;
  for (long i = 0; i < rounds; ++i) {
    tva_problem p = problem_drawn();
    tva_prepared prepared;
    int status = tva_prepare(drawn(200) ? &p : NULL, drawn(200) ? &prepared : NULL);
    if (status == TVA_OK) {
      status = run(&p, &prepared);
      computed += status == TVA_OK;
      if (status < 0) continue;
    }
    if (status < 0 || status >= STATUSES || (status && !*tva_last_error())) {
      fprintf(stderr, "status %d says %s\n", status, tva_last_error());
      return 1;
    }
    ++count[status];
  }
  for (int i = 0; i < STATUSES; ++i) printf("%ld ", count[i]);
  printf("%ld\n", computed);
  return 0;
}
