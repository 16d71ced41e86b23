/* tva_prepare and tva_run: from a problem and its arrays to the arguments of a kernel. */
#include <math.h>
#include <string.h>

#include "checks.h"

#define MAGIC UINT64_C(0x7476615f6f6b3031)
#define MOST_VALUES 64
#define ALL_KEYS (1 << 30) /* on an unbounded side of a window */
#define MOST_WORKSPACE (INT64_C(1) << 33) /* kernels count its elements by 32-bit integers */
#define LOG2_E 1.4426950408889634

/* Arguments whose values are addresses, which a call fills in. */
enum {
  QUERY, KEY, VALUE, OUT, WORKSPACE, MASK, SLOPES, SINKS, RAGGED, TABLE, KEY_SCALE, VALUE_SCALE, LSE, ADDRESSES
};

typedef struct {
  uint64_t magic;
  tva_problem problem;
  const tva_kernel *kernel; /* null where there is nothing to multiply */
  int64_t kernel_bytes, ragged_bytes;
  int32_t count;
  int8_t place[ADDRESSES]; /* which of the values is this address, -1 for none */
  tva_value values[MOST_VALUES];
} prepared_call;

_Static_assert(sizeof(prepared_call) <= sizeof(tva_prepared), "tva_prepared is too small");

static void whole(prepared_call *c, int64_t value) {
  c->values[c->count].kind = 1;
  c->values[c->count++].as.whole = value;
}

static void real(prepared_call *c, double value) {
  c->values[c->count].kind = 3;
  c->values[c->count++].as.number = value;
}

static void address(prepared_call *c, int which) {
  c->place[which] = (int8_t)c->count;
  whole(c, 0);
}

static void strides(prepared_call *c, const tva_strides *s) {
  whole(c, s->batch), whole(c, s->head), whole(c, s->row);
}

static void dense(tva_strides *s, int64_t heads, int64_t rows, int64_t elements) {
  if (s->batch || s->head || s->row) return;
  s->row = elements;
  s->head = rows * elements;
  s->batch = heads * rows * elements;
}

static int32_t least(int64_t a, int64_t b) { return (int32_t)(a < b ? a : b); }

static void defaults(tva_problem *p) {
  if (!p->value_dim) p->value_dim = p->head_dim;
  if (!p->kv_heads) p->kv_heads = p->query_heads;
  if (!p->threads) p->threads = 1;
  if (p->scale == 0 && p->head_dim > 0) p->scale = (float)(1.0 / sqrt((double)p->head_dim));
}

static void default_strides(tva_problem *p) {
  int64_t rows = p->query_rows ? p->query_rows : p->query_length;
  int64_t keys = p->page_rows ? p->page_rows : p->key_rows ? p->key_rows : p->key_length;
  dense(&p->query, p->query_heads, rows, p->head_dim);
  dense(&p->key, p->kv_heads, keys, p->head_dim);
  dense(&p->value, p->kv_heads, keys, p->value_dim);
  dense(&p->out, p->query_heads, rows, p->value_dim);
  if (!p->page_strides[0]) p->page_strides[0] = p->kv_heads * keys * p->head_dim;
  if (!p->page_strides[1]) p->page_strides[1] = p->kv_heads * keys * p->value_dim;
  if (p->lse.batch == 0 && p->lse.head == 0) {
    p->lse.head = rows;
    p->lse.batch = (int64_t)p->query_heads * rows;
  }
  if (p->query_rows) p->query.batch = p->out.batch = p->lse.batch = 0;
  if (p->key_rows || p->page_rows) p->key.batch = p->value.batch = 0;
}

/* What depends on sizes that have been checked. */
static void normalise(tva_problem *p) {
  default_strides(p);
  if (!p->windowed) return;
  /* Beyond all rows and keys a bound says nothing; causal is the tighter bound on the right. */
  int64_t most = (int64_t)p->query_length + p->key_length;
  p->window_left = p->window_left < 0 ? -1 : least(p->window_left, most);
  p->window_right = p->causal || p->window_right < 0 ? -1 : least(p->window_right, most);
  p->windowed = p->window_left >= 0 || p->window_right >= 0;
}

/* Runs of keys that decoding computes apart: so many that every thread gets the same number of tasks, and that
 * a task's scores stay in cache. As tvm_attention/splits.py. */
static int32_t splits(const tva_problem *p, int32_t rows) {
  int64_t tasks = (int64_t)p->batch * p->kv_heads, keys = least(1 << 11, (1 << 13) / rows);
  int64_t most = p->key_length / 128 > 1 ? p->key_length / 128 : 1;
  int64_t first = least(most, (p->key_length + keys - 1) / keys);
  for (int64_t n = first; n <= least(most, first + p->threads); ++n)
    if (tasks * n % p->threads == 0 || tasks * n >= 8 * (int64_t)p->threads) return (int32_t)n;
  return (int32_t)(tasks >= p->threads ? first : most < p->threads ? most : first);
}

static int64_t causal_offset(const tva_problem *p) {
  if (tvi_is_ragged(p)) return p->causal != TVA_TOP_LEFT;
  return p->causal == TVA_TOP_LEFT ? 0 : (int64_t)p->key_length - p->query_length;
}

static void scalars(prepared_call *c) {
  const tva_problem *p = &c->problem;
  whole(c, p->batch), whole(c, p->query_heads), whole(c, p->query_heads / p->kv_heads);
  whole(c, p->query_length), whole(c, p->key_length);
  /* Extents of the key tensor in memory. */
  whole(c, p->key_rows ? 1 : p->batch), whole(c, p->key_rows ? p->key_rows : p->key_length);
  whole(c, causal_offset(p)), whole(c, p->threads);
  whole(c, c->kernel->most_rows ? splits(p, c->kernel->most_rows) : 1);
  real(c, (double)p->scale * LOG2_E);
}

/* As tvm_attention/arguments.py: the order is the calling convention. */
static void arguments(prepared_call *c) {
  const tva_problem *p = &c->problem;
  for (int i = QUERY; i <= WORKSPACE; ++i) address(c, i);
  scalars(c);
  strides(c, &p->query), strides(c, &p->key), strides(c, &p->value), strides(c, &p->out);
  if (p->mask_dtype) {
    address(c, MASK);
    for (int i = 0; i < 4; ++i) whole(c, p->mask_strides[i]);
  }
  if (p->windowed) {
    whole(c, p->window_left < 0 ? ALL_KEYS : p->window_left);
    whole(c, p->causal ? 0 : p->window_right < 0 ? ALL_KEYS : p->window_right);
  }
  if (p->softcap != 0) real(c, (double)p->softcap * LOG2_E);
  if (p->has_alibi) address(c, SLOPES);
  if (p->has_sinks) address(c, SINKS);
  if (tvi_is_ragged(p)) address(c, RAGGED);
  if (p->page_rows) {
    address(c, TABLE), whole(c, __builtin_ctz((unsigned)p->page_rows)), whole(c, p->page_columns);
    whole(c, p->page_strides[0]), whole(c, p->page_strides[1]);
  }
  if (p->kv_dtype) {
    address(c, KEY_SCALE), strides(c, &p->key_scale);
    address(c, VALUE_SCALE), strides(c, &p->value_scale);
  }
  if (p->has_lse) address(c, LSE), whole(c, p->lse.batch), whole(c, p->lse.head);
}

static int empty(const tva_problem *p) { return !p->batch || !p->query_heads || !p->query_length; }

static tva_status kernel_bytes(prepared_call *c) {
  prepared_call sizes = {.count = 0, .problem = c->problem, .kernel = c->kernel};
  tva_value result = {0};
  scalars(&sizes);
  tva_status status = tvi_call(c->kernel->workspace, sizes.values, sizes.count, &result, &c->problem);
  if (status != TVA_OK) return status;
  c->kernel_bytes = result.as.whole;
  if (c->kernel_bytes < 0 || c->kernel_bytes > MOST_WORKSPACE)
    return tvi_fail(TVA_UNSUPPORTED,
                    "sizes: expected at most %d GiB of workspace, got %.1f GiB; call on parts of the batch or of "
                    "the heads",
                    (int)(MOST_WORKSPACE >> 30), (double)c->kernel_bytes / (1 << 30));
  return TVA_OK;
}

tva_status tva_prepare(const tva_problem *problem, tva_prepared *prepared) {
  if (!prepared) return tvi_fail(TVA_NULL_POINTER, "prepared: expected an address, got null");
  memset(prepared, 0, sizeof *prepared);
  if (!problem) return tvi_fail(TVA_NULL_POINTER, "problem: expected an address, got null");
  prepared_call c;
  memset(&c, 0, sizeof c);
  memset(c.place, -1, sizeof c.place);
  c.problem = *problem;
  defaults(&c.problem);
  tva_status status = tvi_check_sizes(&c.problem);
  if (status != TVA_OK) return status;
  normalise(&c.problem);
  status = tvi_check_strides(&c.problem);
  if (status != TVA_OK) return status;
  if (!empty(&c.problem) && c.problem.key_length) {
    status = tvi_choose(&c.problem, &c.kernel);
    if (status != TVA_OK) return status;
    arguments(&c);
    status = kernel_bytes(&c);
    if (status != TVA_OK) return status;
    if (tvi_is_ragged(&c.problem)) c.ragged_bytes = ((int64_t)c.problem.batch * 16 + 63) / 64 * 64;
  }
  c.problem.target = NULL; /* the caller's; not read again */
  c.magic = MAGIC;
  memcpy(prepared, &c, sizeof c);
  return TVA_OK;
}

static int opened(const tva_prepared *prepared, prepared_call *c) {
  if (!prepared) return 0;
  memcpy(c, prepared, sizeof *c);
  return c->magic == MAGIC;
}

static size_t needed(const prepared_call *c) {
  return c->kernel ? (size_t)(c->kernel_bytes + c->ragged_bytes) + 63 : 0; /* it is aligned to 64 bytes */
}

size_t tva_workspace_bytes(const tva_prepared *prepared) {
  prepared_call c;
  return opened(prepared, &c) ? needed(&c) : 0;
}

const char *tva_kernel_name(const tva_prepared *prepared) {
  prepared_call c;
  return opened(prepared, &c) && c.kernel ? c.kernel->name : NULL;
}

/* Rows that see no key, for there is none. */
static void no_keys(const tva_problem *p, const tva_arrays *a) {
  size_t bytes = tvi_bytes_of(p->dtype);
  for (int64_t b = 0; b < p->batch; ++b)
    for (int64_t h = 0; h < p->query_heads; ++h)
      for (int64_t n = 0; n < (p->has_sequences ? a->sequences[b].queries : p->query_length); ++n) {
        int64_t i = n + (p->has_sequences ? a->sequences[b].query_start : 0);
        char *out = a->out;
        memset(out + (size_t)(b * p->out.batch + h * p->out.head + i * p->out.row) * bytes, 0,
               (size_t)p->value_dim * bytes);
        if (p->has_lse) a->lse[b * p->lse.batch + h * p->lse.head + i] = p->has_sinks ? a->sinks[h] : -INFINITY;
      }
}

static void at(prepared_call *c, int which, const void *address) {
  if (c->place[which] >= 0) c->values[c->place[which]].as.whole = (int64_t)(intptr_t)address;
}

/* The fields of each batch element as kernels read them. */
static void ragged_fields(const tva_problem *p, const tva_arrays *a, char *workspace) {
  for (int32_t b = 0; b < p->batch; ++b) {
    tva_sequence s = {0, p->query_length, 0, p->has_sequences ? 0 : a->kv_lengths[b]};
    if (p->has_sequences) s = a->sequences[b];
    /* Packing takes one element's keys to begin at row 0: their address moves instead. */
    if (p->batch == 1) s.key_start = 0;
    memcpy(workspace + (size_t)b * sizeof s, &s, sizeof s);
  }
}

static void addresses(prepared_call *c, const tva_arrays *a, char *workspace) {
  const tva_problem *p = &c->problem;
  const char *key = a->key, *value = a->value;
  if (p->has_sequences && p->batch == 1) {
    size_t bytes = p->kv_dtype ? 1 : tvi_bytes_of(p->dtype), start = (size_t)a->sequences[0].key_start;
    key += start * (size_t)p->key.row * bytes, value += start * (size_t)p->value.row * bytes;
  }
  at(c, QUERY, a->query), at(c, KEY, key), at(c, VALUE, value), at(c, OUT, a->out);
  at(c, MASK, a->mask), at(c, SLOPES, a->alibi_slopes), at(c, SINKS, a->sinks), at(c, TABLE, a->page_table);
  at(c, KEY_SCALE, a->key_scale), at(c, VALUE_SCALE, a->value_scale), at(c, LSE, a->lse);
  at(c, RAGGED, workspace), at(c, WORKSPACE, workspace + c->ragged_bytes);
  if (tvi_is_ragged(p)) ragged_fields(p, a, workspace);
}

tva_status tva_run(const tva_prepared *prepared, const tva_arrays *arrays, void *workspace,
                   size_t workspace_bytes) {
  prepared_call c;
  if (!prepared) return tvi_fail(TVA_NULL_POINTER, "prepared: expected an address, got null");
  if (!opened(prepared, &c))
    return tvi_fail(TVA_NOT_PREPARED, "prepared: expected what tva_prepare filled in and returned TVA_OK for");
  if (empty(&c.problem)) return TVA_OK;
  if (!arrays) return tvi_fail(TVA_NULL_POINTER, "arrays: expected an address, got null");
  tva_status status = tvi_check_arrays(&c.problem, arrays);
  if (status != TVA_OK) return status;
  if (!c.kernel) {
    no_keys(&c.problem, arrays);
    return TVA_OK;
  }
  if (!workspace) return tvi_fail(TVA_NULL_POINTER, "workspace: expected %zu bytes, got null", needed(&c));
  if (workspace_bytes < needed(&c))
    return tvi_fail(TVA_WORKSPACE, "workspace: expected %zu bytes (tva_workspace_bytes), got %zu", needed(&c),
                    workspace_bytes);
  char *aligned = (char *)workspace + (-(uintptr_t)workspace & 63);
  addresses(&c, arrays, aligned);
  tva_value result = {0};
  return tvi_call(c.kernel->run, c.values, c.count, &result, &c.problem);
}

uint32_t tva_abi(void) { return TVA_ABI; }
const char *tva_version(void) { return tvi_built_version; }
const char *tva_architecture(void) { return tvi_built_architecture; }
