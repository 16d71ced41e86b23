/* Anything goes into the entry points: a status comes out, with a message if it is not TVA_OK, and never a step
 * outside an array: sanitizers watch the runtime, pages without access behind the arrays the kernels.
 *
 * any_input SEED ROUNDS prints how often what came out. With -DFUZZ it is a libFuzzer target, whose input is what
 * is drawn. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tvm_attention.h"

enum { MOST_ELEMENTS = 1 << 16, TOO_MANY = 1 << 30, MOST_WORKSPACE = 1 << 24, PAGE = 4096 };
enum { STATUSES = 10, ARRAYS = 13 };
enum { QUERY, KEY, VALUE, OUT, MASK, ALIBI, SINKS, LENGTHS, KEY_SCALE, VALUE_SCALE, LSE, SEQUENCES, TABLE };

#ifdef FUZZ
static const uint8_t *input;
static size_t left;

static uint32_t drawn(uint32_t below) {
  uint32_t number = 0;
  if (!left) return below - 1; /* what is rare is 0 */
  for (int i = 0; i < 2 && left; ++i, --left) number = number << 8 | *input++;
  return number % below;
}
#else
static uint64_t state;

static uint32_t drawn(uint32_t below) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33) % below;
}
#endif

static int64_t strange(void) {
  static const int64_t numbers[] = {0, 1, -1, 2, 3, 7, 63, 64, 65, 512, 513, 1024, INT32_MAX, INT32_MIN, INT64_MAX,
                                    INT64_MIN, INT64_C(1) << 40, -64, 1 << 30, (1 << 30) + 1};
  return numbers[drawn(sizeof numbers / sizeof *numbers)];
}

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
    case 2:
      if (!drawn(4)) s.row = strange(), s.head = strange(), s.batch = strange();
      break;
    default: break;
  }
  return s;
}

/* What kernels of the archive are for: plain, decoding, masked with the log-sum-exp, int8, pages, all options. */
static void kind_of_problem(tva_problem *p) {
  int kind = (int)drawn(8);
  if (kind == 1) p->query_length = 1, p->query_heads = 8, p->kv_heads = 2;
  if (kind == 2 || kind == 3) p->mask_dtype = TVA_BOOL, p->causal = 1 + (int)drawn(2), p->has_lse = 1;
  if (kind == 2) p->has_kv_lengths = 1;
  if (kind == 3) {
    p->has_sequences = 1, p->batch = 1 + (int)drawn(3);
    if (drawn(3)) p->query_rows = 2 + (int)drawn(60), p->key_rows = 2 + (int)drawn(60);
  }
  if (kind == 4) p->kv_dtype = TVA_INT8, p->causal = 1 + (int)drawn(2), p->key_scale.row = p->value_scale.row = 1;
  if (kind == 5) {
    p->causal = 1 + (int)drawn(2), p->page_rows = 1 << drawn(5), p->pages = 1 + (int)drawn(6), p->page_columns = 3;
    p->has_kv_lengths = (int)drawn(2), p->has_sequences = !p->has_kv_lengths;
    p->key_length = (int)drawn(1 + 3 * (uint32_t)p->page_rows);
  }
  if (kind == 6) {
    p->windowed = p->has_alibi = p->has_sinks = 1, p->softcap = 20;
    p->window_left = (int)drawn(9) - 1, p->window_right = (int)drawn(9) - 1;
  }
}

/* One field in some is anything. */
static void spoil(tva_problem *p) {
  int32_t *fields[] = {
      &p->dtype, &p->head_dim, &p->value_dim, &p->batch, &p->query_heads, &p->kv_heads, &p->query_length,
      &p->key_length, &p->causal, &p->windowed, &p->window_left, &p->window_right, &p->mask_dtype, &p->has_alibi,
      &p->has_sinks, &p->has_kv_lengths, &p->has_sequences, &p->query_rows, &p->key_rows, &p->page_rows, &p->pages,
      &p->page_columns, &p->has_lse, &p->kv_dtype, &p->threads};
  int64_t *wide[] = {&p->page_strides[0], &p->page_strides[1], &p->lse.batch, &p->lse.head, &p->key_scale.head,
                     &p->value_scale.batch, &p->mask_strides[0], &p->mask_strides[2], &p->mask_strides[3]};
  for (int i = 0; i < 4 && !drawn(2); ++i)
    *fields[drawn(sizeof fields / sizeof *fields)] = drawn(2) ? (int32_t)strange() : (int32_t)drawn(9);
  if (!drawn(12)) *wide[drawn(sizeof wide / sizeof *wide)] = strange();
  if (!drawn(60)) p->scale = strange_number(), p->softcap = strange_number();
  if (!drawn(60)) p->abi = drawn(4);
  if (!drawn(40)) p->target = drawn(2) ? "x86-64-v3" : "no such target";
}

static tva_problem problem_drawn(void) {
  tva_problem p;
  memset(&p, 0, sizeof p);
  p.abi = TVA_ABI, p.dtype = TVA_FLOAT32, p.head_dim = 64;
  p.batch = 1 + (int32_t)(drawn(3) ? 0 : drawn(3)), p.query_heads = 1 + (int32_t)drawn(4);
  p.query_length = (int32_t)drawn(40), p.key_length = (int32_t)drawn(40);
  p.threads = drawn(10) ? (int32_t)drawn(4) : (int32_t)drawn(20);
  kind_of_problem(&p);
  int32_t kv = p.kv_heads ? p.kv_heads : p.query_heads, keys = p.key_rows ? p.key_rows : p.key_length;
  p.query = strides_of(p.query_heads, p.query_rows ? p.query_rows : p.query_length, 64);
  p.out = strides_of(p.query_heads, p.query_rows ? p.query_rows : p.query_length, 64);
  p.key = strides_of(kv, p.page_rows ? p.page_rows : keys, 64);
  p.value = strides_of(kv, p.page_rows ? p.page_rows : keys, 64);
  for (int i = 0; p.mask_dtype && i < 4; ++i) p.mask_strides[i] = (int64_t)drawn(50);
  if (!drawn(4)) p.scale = drawn(8) ? 0.3f : strange_number();
  if (!drawn(3)) spoil(&p);
  return p;
}

/* Bytes that strides reach; TOO_MANY for what is not worth having. */
static int64_t reach(const int64_t *extents, const int64_t *strides, int count, int64_t last, int64_t size) {
  int64_t end = last;
  for (int i = 0; i < count; ++i) {
    if (extents[i] <= 0) return 0;
    if (extents[i] > 1 && strides[i] > MOST_ELEMENTS) return TOO_MANY;
    if (extents[i] > MOST_ELEMENTS) return TOO_MANY;
    end += (extents[i] - 1) * (extents[i] > 1 ? strides[i] : 0);
    if (end > MOST_ELEMENTS) return TOO_MANY;
  }
  return end * size;
}

static int64_t tensor(const tva_strides *s, int64_t batch, int64_t heads, int64_t rows, int64_t dim, int64_t size) {
  int64_t extents[] = {batch, heads, rows}, strides[] = {s->batch, s->head, s->row};
  if (!s->batch && !s->head && !s->row) strides[2] = dim, strides[1] = rows * dim, strides[0] = heads * rows * dim;
  return reach(extents, strides, 3, dim, size);
}

/* Bytes of every array as the header says, of a problem that was prepared. */
static void sizes_of(const tva_problem *p, int64_t *bytes) {
  int64_t kv = p->kv_heads ? p->kv_heads : p->query_heads;
  int64_t dim = p->head_dim, width = p->value_dim ? p->value_dim : dim;
  int64_t rows = p->query_rows ? p->query_rows : p->query_length, batch = p->query_rows ? 1 : p->batch;
  int64_t keys = p->page_rows ? p->page_rows : p->key_rows ? p->key_rows : p->key_length;
  int64_t blocks = p->page_rows ? p->pages : p->key_rows ? 1 : p->batch, size = p->kv_dtype ? 1 : 4;
  int64_t mask[] = {p->batch, p->query_heads, p->query_length, p->key_length}, lse[] = {batch, p->query_heads};
  int64_t lse_strides[] = {p->lse.batch, p->lse.head};
  int64_t scales[] = {p->batch, kv, p->key_rows ? p->key_rows : p->key_length};
  const tva_strides *ks = &p->key_scale, *vs = &p->value_scale;
  tva_strides key = p->key, value = p->value;
  if (p->page_rows) {
    if (!key.head && !key.row && !key.batch) key.row = dim, key.head = keys * dim;
    if (!value.head && !value.row && !value.batch) value.row = width, value.head = keys * width;
    key.batch = p->page_strides[0] ? p->page_strides[0] : kv * keys * dim;
    value.batch = p->page_strides[1] ? p->page_strides[1] : kv * keys * width;
  }
  if (!p->lse.batch && !p->lse.head) lse_strides[1] = rows, lse_strides[0] = (int64_t)p->query_heads * rows;
  bytes[QUERY] = tensor(&p->query, batch, p->query_heads, rows, dim, 4);
  bytes[KEY] = tensor(&key, blocks, kv, keys, dim, size);
  bytes[VALUE] = tensor(&value, blocks, kv, keys, width, size);
  bytes[OUT] = tensor(&p->out, batch, p->query_heads, rows, width, 4);
  bytes[MASK] = p->mask_dtype ? reach(mask, p->mask_strides, 4, 1, 1) : 0;
  bytes[ALIBI] = p->has_alibi ? 4 * (int64_t)p->batch * p->query_heads : 0;
  bytes[SINKS] = p->has_sinks ? 4 * (int64_t)p->query_heads : 0;
  bytes[LENGTHS] = p->has_kv_lengths ? 4 * (int64_t)p->batch : 0;
  bytes[KEY_SCALE] = p->kv_dtype ? reach(scales, (int64_t[]){ks->batch, ks->head, ks->row}, 3, 1, 4) : 0;
  bytes[VALUE_SCALE] = p->kv_dtype ? reach(scales, (int64_t[]){vs->batch, vs->head, vs->row}, 3, 1, 4) : 0;
  bytes[LSE] = p->has_lse ? reach(lse, lse_strides, 2, rows, 4) : 0;
  bytes[SEQUENCES] = p->has_sequences ? 16 * (int64_t)p->batch : 0;
  bytes[TABLE] = p->page_rows ? 4 * (int64_t)p->batch * p->page_columns : 0;
}

/* Memory that ends where nothing may be touched. */
static char *region(int which, int64_t bytes) {
  static char *ends[ARRAYS];
  const size_t all = 4 * MOST_ELEMENTS;
  if (!ends[which]) {
    char *at = mmap(NULL, all + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + all, PAGE, PROT_NONE)) exit(2);
    ends[which] = at + all;
  }
  return ends[which] - bytes;
}

static int32_t within(int64_t most) { return drawn(40) ? (int32_t)drawn(1 + (uint32_t)most) : (int32_t)strange(); }

static void fill(const tva_problem *p, int which, char *at, int64_t bytes) {
  static float numbers[MOST_ELEMENTS];
  if (numbers[1] == 0)
    for (int i = 0; i < MOST_ELEMENTS; ++i) numbers[i] = (float)(i * 7919 % 1013) / 1013 - 0.5f;
  int32_t *whole = (int32_t *)(void *)at;
  tva_sequence *sequences = (tva_sequence *)(void *)at;
  memcpy(at, numbers, (size_t)bytes);
  for (int64_t i = 0; which == LENGTHS && i < bytes / 4; ++i) whole[i] = within(p->key_length);
  for (int64_t i = 0; which == TABLE && i < bytes / 4; ++i) whole[i] = within(p->pages > 0 ? p->pages - 1 : 0);
  for (int64_t i = 0; which == SEQUENCES && i < bytes / 16; ++i) {
    int64_t rows = p->query_rows, keys = p->key_rows;
    tva_sequence s = {0, within(rows && rows < p->query_length ? rows : p->query_length), 0,
                      within(keys && keys < p->key_length ? keys : p->key_length)};
    if (rows) s.query_start = within(rows > s.queries ? rows - s.queries : 0);
    if (keys) s.key_start = within(keys > s.keys ? keys - s.keys : 0);
    sequences[i] = s;
  }
}

/* Runs what was prepared, if its arrays are small; -1 if they are not. */
static int run(const tva_problem *p, const tva_prepared *prepared) {
  static char workspace_bytes[MOST_WORKSPACE];
  int64_t bytes[ARRAYS];
  char *at[ARRAYS];
  sizes_of(p, bytes);
  size_t needed = tva_workspace_bytes(prepared), given = needed;
  for (int i = 0; i < ARRAYS; ++i)
    if (bytes[i] >= TOO_MANY || bytes[i] > 4 * MOST_ELEMENTS) return -1;
  if (needed > MOST_WORKSPACE) return -1;
  if (!drawn(30)) given = drawn(1 + (uint32_t)(needed % 60000));
  for (int i = 0; i < ARRAYS; ++i) {
    at[i] = region(i, bytes[i]);
    fill(p, i, at[i], bytes[i]);
  }
  tva_arrays arrays;
  if (!drawn(30)) at[drawn(ARRAYS)] = NULL;
  memcpy(&arrays, at, sizeof arrays);
  if (!drawn(60) && !p->kv_dtype && arrays.key) arrays.key = (const char *)arrays.key + 1; /* no float's address */
  char *workspace = drawn(60) ? workspace_bytes + MOST_WORKSPACE - given : NULL; /* its end is watched */
  tva_status status = tva_run(prepared, drawn(60) ? &arrays : NULL, workspace, given);
  float first = bytes[OUT] >= 4 && at[OUT] ? *(float *)(void *)at[OUT] : 0;
  if (status == TVA_OK && isnan(first) && fabsf(p->scale) <= 20) {
    fprintf(stderr, "not a number came out\n");
    abort();
  }
  return status;
}

_Static_assert(sizeof(tva_arrays) == ARRAYS * sizeof(void *), "as the enumeration has them");

/* What came of one problem: a status, -1 for one not worth running; counts what was computed. */
static int one(long *computed) {
  tva_problem p = problem_drawn();
  tva_prepared prepared;
  int status = tva_prepare(drawn(200) ? &p : NULL, drawn(200) ? &prepared : NULL);
  if (status == TVA_OK) {
    status = run(&p, &prepared);
    *computed += status == TVA_OK;
  }
  if (status >= STATUSES || (status > 0 && !*tva_last_error())) {
    fprintf(stderr, "status %d says %s\n", status, tva_last_error());
    abort();
  }
  return status;
}

#ifdef FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static long computed;
  input = data, left = size;
  one(&computed);
  return 0;
}
#else
int main(int argc, char **argv) {
  long count[STATUSES] = {0}, computed = 0, rounds = argc > 2 ? atol(argv[2]) : 1000;
  state = argc > 1 ? (uint64_t)atol(argv[1]) : 1;
  for (long i = 0; i < rounds; ++i) {
    int status = one(&computed);
    if (status >= 0) ++count[status];
  }
  for (int i = 0; i < STATUSES; ++i) printf("%ld ", count[i]);
  printf("%ld\n", computed);
  return 0;
}
#endif
