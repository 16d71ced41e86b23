/* Whether the arrays of a call are sound. */
#include "checks.h"

static tva_status address(const char *name, const void *at, size_t alignment) {
  if (!at) return tvi_fail(TVA_NULL_POINTER, "%s: expected an address, got null", name);
  if ((uintptr_t)at % alignment)
    return tvi_fail(TVA_BAD_VALUE, "%s: expected an address aligned to %zu bytes, got %p", name, alignment, at);
  return TVA_OK;
}

size_t tvi_bytes_of(int32_t dtype) {
  return dtype == TVA_FLOAT32 ? 4 : dtype == TVA_FLOAT16 || dtype == TVA_BFLOAT16 ? 2 : 1;
}

static tva_status lengths(const tva_problem *p, const tva_arrays *a) {
  REQUIRE(address("kv_lengths", a->kv_lengths, 4));
  for (int32_t b = 0; b < p->batch; ++b)
    if (a->kv_lengths[b] < 0 || a->kv_lengths[b] > p->key_length)
      return tvi_fail(TVA_BAD_VALUE, "kv_lengths: expected 0 to %d, the keys that there are, got %d", p->key_length,
                      a->kv_lengths[b]);
  return TVA_OK;
}

static tva_status run_of(const char *name, int32_t b, int32_t start, int32_t count, int32_t most, int32_t rows) {
  if (count >= 0 && count <= most && start >= 0 && start <= (rows ? rows - count : 0)) return TVA_OK;
  return tvi_fail(TVA_BAD_VALUE, "sequences: expected 0 to %d %s within %d shared rows, got %d from row %d on in %d",
                  most, name, rows, count, start, b);
}

static tva_status sequences(const tva_problem *p, const tva_arrays *a) {
  REQUIRE(address("sequences", a->sequences, 4));
  for (int32_t b = 0; b < p->batch; ++b) {
    const tva_sequence *s = &a->sequences[b];
    REQUIRE(run_of("queries", b, s->query_start, s->queries, p->query_length, p->query_rows));
    REQUIRE(run_of("keys", b, s->key_start, s->keys, p->key_length, p->key_rows));
  }
  return TVA_OK;
}

/* The numbers of the pages that batch elements have keys in. */
static tva_status page_table(const tva_problem *p, const tva_arrays *a) {
  REQUIRE(address("page_table", a->page_table, 4));
  for (int32_t b = 0; b < p->batch; ++b) {
    int64_t keys = p->has_sequences ? a->sequences[b].keys : a->kv_lengths[b];
    const int32_t *row = a->page_table + (int64_t)b * p->page_columns;
    for (int64_t i = 0; i * p->page_rows < keys; ++i)
      if (row[i] < 0 || row[i] >= p->pages)
        return tvi_fail(TVA_BAD_VALUE, "page_table: expected pages 0 to %d, got %d as number %lld of %d",
                        p->pages - 1, row[i], (long long)i, b);
  }
  return TVA_OK;
}

tva_status tvi_check_arrays(const tva_problem *p, const tva_arrays *a) {
  size_t bytes = tvi_bytes_of(p->dtype), kv_bytes = p->kv_dtype ? 1 : bytes;
  REQUIRE(address("out", a->out, bytes));
  if (p->has_lse) REQUIRE(address("lse", a->lse, 4));
  if (p->has_sinks) REQUIRE(address("sinks", a->sinks, 4));
  if (p->has_sequences) REQUIRE(sequences(p, a));
  if (p->key_length == 0) return TVA_OK; /* nothing else is read */
  REQUIRE(address("query", a->query, bytes));
  REQUIRE(address("key", a->key, kv_bytes));
  REQUIRE(address("value", a->value, kv_bytes));
  if (p->mask_dtype) REQUIRE(address("mask", a->mask, tvi_bytes_of(p->mask_dtype)));
  if (p->has_alibi) REQUIRE(address("alibi_slopes", a->alibi_slopes, 4));
  if (p->kv_dtype) {
    REQUIRE(address("key_scale", a->key_scale, 4));
    REQUIRE(address("value_scale", a->value_scale, 4));
  }
  if (p->has_kv_lengths) REQUIRE(lengths(p, a));
  return p->page_rows ? page_table(p, a) : TVA_OK;
}
