/* Whether a problem is sound. */
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

static int64_t at_least_one(int64_t n) { return n ? n : 1; }

/* Of extents each at most 2**30; one of none does not excuse the others, whose product makes strides. */
static tva_status product(const char *name, int64_t a, int64_t b, int64_t c) {
  int64_t two = at_least_one(a) * at_least_one(b);
  if (two <= MOST_LENGTH && two * at_least_one(c) <= MOST_LENGTH) return TVA_OK;
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
  if (a->stride != b->stride) return a->stride < b->stride ? -1 : 1;
  return (a->extent > b->extent) - (a->extent < b->extent);
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
