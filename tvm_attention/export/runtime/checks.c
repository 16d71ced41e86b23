/* Whether a problem and the arrays of a call are sound. */
#include <math.h>
#include <stdlib.h>

#include "checks.h"

#define MOST_LENGTH (1 << 30)  /* kernels count rows and tasks by 32-bit integers */
#define MOST_ELEMENTS (INT64_C(1) << 44)
#define MOST_SCALE 0x1p127f    /* times log2(e), it is still a float */
#define LEAST_SOFTCAP 0x1p-126f

static tva_status number(const char *name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return TVA_OK;
  return tvi_fail(TVA_BAD_VALUE, "%s: expected %lld to %lld, got %lld", name, (long long)least, (long long)most,
                  (long long)value);
}

#define REQUIRE(check)                      \
  do {                                      \
    tva_status required = (check);          \
    if (required != TVA_OK) return required; \
  } while (0)

static tva_status product(const char *name, int64_t a, int64_t b, int64_t c) {
  if (a * b <= MOST_LENGTH && (a * b) * c <= MOST_LENGTH) return TVA_OK; /* each at most 2**30: no overflow */
  return tvi_fail(TVA_UNSUPPORTED, "%s: expected at most %d rows of all heads, got %lld x %lld x %lld", name,
                  MOST_LENGTH, (long long)a, (long long)b, (long long)c);
}

static tva_status options(const tva_problem *p) {
  if (!(fabsf(p->scale) <= MOST_SCALE))
    return tvi_fail(TVA_BAD_VALUE, "scale: expected a finite number, got %g", (double)p->scale);
  if (p->softcap != 0 && !(p->softcap >= LEAST_SOFTCAP && p->softcap <= MOST_SCALE))
    return tvi_fail(TVA_BAD_VALUE, "softcap: expected a finite number above 0, or 0 for none, got %g",
                    (double)p->softcap);
  REQUIRE(number("causal", p->causal, TVA_NOT_CAUSAL, TVA_BOTTOM_RIGHT));
  REQUIRE(number("windowed", p->windowed, 0, 1));
  if (p->windowed) {
    REQUIRE(number("window_left", p->window_left, -1, INT32_MAX));
    REQUIRE(number("window_right", p->window_right, -1, INT32_MAX));
  }
  REQUIRE(number("mask_dtype", p->mask_dtype, TVA_NONE, TVA_BOOL));
  REQUIRE(number("has_alibi", p->has_alibi, 0, 1));
  REQUIRE(number("has_sinks", p->has_sinks, 0, 1));
  REQUIRE(number("has_kv_lengths", p->has_kv_lengths, 0, 1));
  REQUIRE(number("has_sequences", p->has_sequences, 0, 1 - p->has_kv_lengths));
  REQUIRE(number("has_lse", p->has_lse, 0, 1));
  if (p->kv_dtype != TVA_NONE && p->kv_dtype != TVA_INT8)
    return tvi_fail(TVA_BAD_VALUE, "kv_dtype: expected TVA_NONE or TVA_INT8, got %d", p->kv_dtype);
  return TVA_OK;
}

/* Rows that batch elements share, and pages. */
static tva_status shared(const tva_problem *p) {
  int most = p->has_sequences ? MOST_LENGTH : 0;
  REQUIRE(number("query_rows", p->query_rows, 0, most));
  REQUIRE(number("key_rows", p->key_rows, 0, p->page_rows ? 0 : most));
  REQUIRE(product("query_rows", p->query_heads, p->query_rows, 1));
  REQUIRE(product("key_rows", p->kv_heads, p->key_rows, 1));
  REQUIRE(number("page_rows", p->page_rows, 0, tvi_is_ragged(p) ? MOST_LENGTH : 0));
  if (!p->page_rows) return TVA_OK;
  if (p->page_rows & (p->page_rows - 1))
    return tvi_fail(TVA_BAD_VALUE, "page_rows: expected a power of two, got %d", p->page_rows);
  REQUIRE(number("pages", p->pages, 0, MOST_LENGTH));
  REQUIRE(number("page_columns", p->page_columns, 0, MOST_LENGTH));
  REQUIRE(product("pages", p->pages, p->kv_heads, p->page_rows));
  REQUIRE(product("page_columns", p->batch, p->page_columns, 1));
  return number("key_length", p->key_length, 0, (int64_t)p->page_columns * p->page_rows);
}

tva_status tvi_check_sizes(const tva_problem *p) {
  if (p->abi != TVA_ABI)
    return tvi_fail(TVA_BAD_VALUE, "abi: expected TVA_ABI = %d of this archive's header, got %u", TVA_ABI, p->abi);
  REQUIRE(number("dtype", p->dtype, TVA_FLOAT32, TVA_BFLOAT16));
  REQUIRE(number("head_dim", p->head_dim, 1, 512));
  REQUIRE(number("value_dim", p->value_dim, 1, 512));
  REQUIRE(number("batch", p->batch, 0, MOST_LENGTH));
  REQUIRE(number("query_heads", p->query_heads, 0, MOST_LENGTH));
  REQUIRE(number("kv_heads", p->kv_heads, 0, MOST_LENGTH));
  REQUIRE(number("query_length", p->query_length, 0, MOST_LENGTH));
  REQUIRE(number("key_length", p->key_length, 0, MOST_LENGTH));
  REQUIRE(number("threads", p->threads, 1, 1024));
  if (p->query_heads && (!p->kv_heads || p->query_heads % p->kv_heads))
    return tvi_fail(TVA_BAD_VALUE, "query_heads: expected a multiple of kv_heads, got %d and %d", p->query_heads,
                    p->kv_heads);
  REQUIRE(product("query", p->batch, p->query_heads, p->query_length));
  REQUIRE(product("key", p->batch, p->kv_heads, p->key_length));
  REQUIRE(options(p));
  return shared(p);
}

typedef struct {
  int64_t extent, stride;
} axis;

static int by_stride(const void *left, const void *right) {
  const axis *a = left, *b = right;
  return a->stride != b->stride ? (a->stride < b->stride ? -1 : 1) : (a->extent > b->extent) - (a->extent < b->extent);
}

/* `elements` of a row are dense; with `apart`, no two elements may be one. */
static tva_status layout(const char *name, axis *axes, int count, int64_t elements, int apart) {
  for (int i = 0; i < count; ++i) {
    if (axes[i].extent <= 1) continue;
    if (axes[i].stride < 0 || axes[i].stride > MOST_ELEMENTS / axes[i].extent)
      return tvi_fail(TVA_BAD_STRIDE, "%s: expected strides of 0 to %lld elements, got %lld over %lld", name,
                      (long long)(MOST_ELEMENTS / axes[i].extent), (long long)axes[i].stride,
                      (long long)axes[i].extent);
  }
  if (!apart) return TVA_OK;
  int64_t filled = elements - 1;
  qsort(axes, (size_t)count, sizeof *axes, by_stride);
  for (int i = 0; i < count; ++i) {
    if (axes[i].extent <= 1) continue;
    if (axes[i].stride <= filled)
      return tvi_fail(TVA_BAD_STRIDE,
                      "%s: expected distinct elements, got a stride of %lld where %lld are already filled", name,
                      (long long)axes[i].stride, (long long)filled + 1);
    filled += (axes[i].extent - 1) * axes[i].stride;
  }
  return TVA_OK;
}

static tva_status tensor(const char *name, const tva_strides *s, int64_t batch, int64_t heads, int64_t rows,
                         int64_t elements, int apart) {
  axis axes[] = {{batch, s->batch}, {heads, s->head}, {rows, s->row}};
  return layout(name, axes, 3, elements, apart);
}

tva_status tvi_check_strides(const tva_problem *p) {
  int64_t batch = p->query_rows ? 1 : p->batch, rows = p->query_rows ? p->query_rows : p->query_length;
  int64_t blocks = p->page_rows ? p->pages : p->key_rows ? 1 : p->batch;
  int64_t keys = p->page_rows ? p->page_rows : p->key_rows ? p->key_rows : p->key_length;
  tva_strides key = p->key, value = p->value;
  axis mask[] = {{p->batch, p->mask_strides[0]},
                 {p->query_heads, p->mask_strides[1]},
                 {p->query_length, p->mask_strides[2]},
                 {p->key_length, p->mask_strides[3]}};
  axis lse[] = {{batch, p->lse.batch}, {p->query_heads, p->lse.head}};
  if (p->page_rows) key.batch = p->page_strides[0], value.batch = p->page_strides[1];
  REQUIRE(tensor("query", &p->query, batch, p->query_heads, rows, p->head_dim, 0));
  REQUIRE(tensor("key", &key, blocks, p->kv_heads, keys, p->head_dim, 0));
  REQUIRE(tensor("value", &value, blocks, p->kv_heads, keys, p->value_dim, 0));
  REQUIRE(tensor("out", &p->out, batch, p->query_heads, rows, p->value_dim, 1));
  if (p->mask_dtype) REQUIRE(layout("mask", mask, 4, 1, 0));
  if (p->has_lse) REQUIRE(layout("lse", lse, 2, rows, 1));
  if (p->kv_dtype) {
    keys = p->key_rows ? p->key_rows : p->key_length;
    REQUIRE(tensor("key_scale", &p->key_scale, p->batch, p->kv_heads, keys, 1, 0));
    REQUIRE(tensor("value_scale", &p->value_scale, p->batch, p->kv_heads, keys, 1, 0));
  }
  return TVA_OK;
}

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
        return tvi_fail(TVA_BAD_VALUE, "page_table: expected pages 0 to %d, got %d as number %lld of %d", p->pages - 1,
                        row[i], (long long)i, b);
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
