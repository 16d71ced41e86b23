/* From a problem and its arrays to the arguments of a kernel. */
#include <string.h>

#include "prepared.h"

#define ALL_KEYS (1 << 30) /* on an unbounded side of a window */
#define LOG2_E 1.4426950408889634

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

static int32_t least(int64_t a, int64_t b) { return (int32_t)(a < b ? a : b); }

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

void tvi_scalars(prepared_call *c) {
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
void tvi_arguments(prepared_call *c) {
  const tva_problem *p = &c->problem;
  for (int i = QUERY; i <= WORKSPACE; ++i) address(c, i);
  tvi_scalars(c);
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

void tvi_addresses(prepared_call *c, const tva_arrays *a, char *workspace) {
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
