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
  REQUIRE(number("has_lse", p->has_lse, 0, 1));
  if (p->kv_dtype != TVA_NONE && p->kv_dtype != TVA_INT8)
    return tvi_fail(TVA_BAD_VALUE, "kv_dtype: expected TVA_NONE or TVA_INT8, got %d", p->kv_dtype);
  return TVA_OK;
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
  return options(p);
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
  axis mask[] = {{p->batch, p->mask_strides[0]},
                 {p->query_heads, p->mask_strides[1]},
                 {p->query_length, p->mask_strides[2]},
                 {p->key_length, p->mask_strides[3]}};
  axis lse[] = {{p->batch, p->lse.batch}, {p->query_heads, p->lse.head}};
  REQUIRE(tensor("query", &p->query, p->batch, p->query_heads, p->query_length, p->head_dim, 0));
  REQUIRE(tensor("key", &p->key, p->batch, p->kv_heads, p->key_length, p->head_dim, 0));
  REQUIRE(tensor("value", &p->value, p->batch, p->kv_heads, p->key_length, p->value_dim, 0));
  REQUIRE(tensor("out", &p->out, p->batch, p->query_heads, p->query_length, p->value_dim, 1));
  if (p->mask_dtype) REQUIRE(layout("mask", mask, 4, 1, 0));
  if (p->has_lse) REQUIRE(layout("lse", lse, 2, p->query_length, 1));
  if (p->kv_dtype) {
    REQUIRE(tensor("key_scale", &p->key_scale, p->batch, p->kv_heads, p->key_length, 1, 0));
    REQUIRE(tensor("value_scale", &p->value_scale, p->batch, p->kv_heads, p->key_length, 1, 0));
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

tva_status tvi_check_arrays(const tva_problem *p, const tva_arrays *a) {
  size_t bytes = tvi_bytes_of(p->dtype), kv_bytes = p->kv_dtype ? 1 : bytes;
  REQUIRE(address("out", a->out, bytes));
  if (p->has_lse) REQUIRE(address("lse", a->lse, 4));
  if (p->has_sinks) REQUIRE(address("sinks", a->sinks, 4));
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
  if (!p->has_kv_lengths) return TVA_OK;
  REQUIRE(address("kv_lengths", a->kv_lengths, 4));
  for (int32_t b = 0; b < p->batch; ++b)
    if (a->kv_lengths[b] < 0 || a->kv_lengths[b] > p->key_length)
      return tvi_fail(TVA_BAD_VALUE, "kv_lengths: expected 0 to %d, the keys that there are, got %d", p->key_length,
                      a->kv_lengths[b]);
  return TVA_OK;
}
