/* Problems for a GPU: their defaults, whether they are sound, which kernel serves them. */
#include <math.h>

#include "tvm_attention_cuda_parts.h"

enum { NO_BOUND = 1 << 30 };

static void dense(tva_strides *s, int64_t heads, int64_t rows, int64_t columns) {
  if (s->batch || s->head || s->row) return;
  *s = (tva_strides){heads * rows * columns, rows * columns, columns};
}

static void fill_in(tva_problem *p) {
  int64_t rows = p->query_rows ? p->query_rows : p->query_length;
  int64_t keys = p->page_rows ? p->page_rows : p->key_rows ? p->key_rows : p->key_length;
  if (p->scale == 0) p->scale = 1.0f / sqrtf((float)p->head_dim);
  dense(&p->query, p->query_heads, rows, p->head_dim);
  dense(&p->key, p->kv_heads, keys, p->head_dim);
  dense(&p->value, p->kv_heads, keys, p->value_dim);
  dense(&p->out, p->query_heads, rows, p->value_dim);
  if (!p->page_strides[0]) p->page_strides[0] = p->kv_heads * keys * p->head_dim;
  if (!p->page_strides[1]) p->page_strides[1] = p->kv_heads * keys * p->value_dim;
  if (!p->lse.batch && !p->lse.head) p->lse = (tva_strides){p->query_heads * rows, rows, 1};
  if (p->query_rows) p->query.batch = p->out.batch = p->lse.batch = 0;
  if (p->key_rows || p->page_rows) p->key.batch = p->value.batch = 0;
}

static tva_status shared_rows(const tva_problem *p) {
  if (p->has_kv_lengths && p->has_sequences)
    return tva_cuda_fail(TVA_BAD_VALUE, "has_sequences: expected 0 beside has_kv_lengths, got 1");
  if (p->query_rows < 0 || p->key_rows < 0 || ((p->query_rows || p->key_rows) && !p->has_sequences))
    return tva_cuda_fail(TVA_BAD_VALUE, "query_rows, key_rows: expected 0 without has_sequences, got %d and %d",
                         p->query_rows, p->key_rows);
  if (!p->page_rows) return TVA_OK;
  if (p->page_rows < 0 || p->page_rows & (p->page_rows - 1))
    return tva_cuda_fail(TVA_BAD_VALUE, "page_rows: expected a power of two, got %d", p->page_rows);
  if (!tva_cuda_ragged(p) || p->key_rows)
    return tva_cuda_fail(TVA_BAD_VALUE, "page_rows: expected has_kv_lengths or has_sequences with it, and no key_rows");
  if (p->page_columns < 1 || p->key_length > (int64_t)p->page_columns * p->page_rows)
    return tva_cuda_fail(TVA_BAD_VALUE, "key_length: expected at most page_columns times page_rows, got %d of %d x %d",
                         p->key_length, p->page_columns, p->page_rows);
  return TVA_OK;
}

tva_status tva_cuda_open_problem(tva_problem *p) {
  if (p->abi != TVA_ABI) return tva_cuda_fail(TVA_BAD_VALUE, "abi: expected %d, got %u", TVA_ABI, p->abi);
  if (!p->value_dim) p->value_dim = p->head_dim;
  if (!p->kv_heads) p->kv_heads = p->query_heads;
  if (p->head_dim < 1 || p->batch < 1 || p->query_heads < 1 || p->query_length < 1 || p->key_length < 1)
    return tva_cuda_fail(TVA_BAD_VALUE,
                         "extents: expected at least 1 of each, got head_dim %d, batch %d, query_heads %d, "
                         "query_length %d, key_length %d",
                         p->head_dim, p->batch, p->query_heads, p->query_length, p->key_length);
  if (p->kv_heads < 1 || p->query_heads % p->kv_heads)
    return tva_cuda_fail(TVA_BAD_VALUE, "kv_heads: expected a divisor of query_heads, got %d of %d", p->kv_heads,
                         p->query_heads);
  REQUIRE(shared_rows(p));
  fill_in(p);
  return TVA_OK;
}

/* Whether vectors of so many elements begin at whole multiples of their size in every row. */
static int suits(const tva_problem *p, int64_t unit) {
  const tva_strides *s[] = {&p->query, &p->key, &p->value};
  for (int i = 0; i < 3; ++i)
    if (s[i]->batch % unit || s[i]->head % unit || s[i]->row % unit) return 0;
  return !p->page_rows || !(p->page_strides[0] % unit || p->page_strides[1] % unit);
}

static int serves(const tva_cuda_kernel *k, const tva_problem *p, int capability) {
  int64_t rows = (int64_t)(p->query_heads / p->kv_heads) * p->query_length;
  /* Every second generation's machine code runs on no other; PTX on the same and on newer ones. */
  return k->capability <= capability && k->head_dim == p->head_dim && k->value_dim == p->value_dim &&
         k->dtype == p->dtype && k->kv_dtype == p->kv_dtype && k->mask_dtype == p->mask_dtype &&
         k->causal == (p->causal != TVA_NOT_CAUSAL && !p->windowed) && k->windowed == p->windowed &&
         k->softcap == (p->softcap != 0) && k->alibi == p->has_alibi && k->sinks == p->has_sinks &&
         k->lse == p->has_lse && k->ragged == tva_cuda_ragged(p) && k->paged == (p->page_rows != 0) &&
         (k->most_rows == 0 || rows <= k->most_rows);
}

/* The nearest capability, then a kernel for so few rows as there are, then lengths, then vectors. */
static int64_t rank(const tva_cuda_kernel *k, const tva_problem *p, int capability) {
  int64_t rows = k->most_rows ? k->most_rows : 1 << 16;
  int64_t limit = k->lengths ? k->lengths : NO_BOUND, apart = limit < p->key_length ? NO_BOUND : limit;
  return ((int64_t)(capability - k->capability) << 52) + (rows << 35) + (apart << 4) + (k->aligned == 1);
}

const tva_cuda_kernel *tva_cuda_choose(const tva_problem *p, int capability, int plain) {
  const tva_cuda_kernel *best = NULL;
  for (int i = 0; i < tva_cuda_number_of_kernels; ++i) {
    const tva_cuda_kernel *k = &tva_cuda_kernels[i];
    if (!serves(k, p, capability) || (plain ? k->aligned != 1 : !suits(p, k->aligned))) continue;
    if (!best || rank(k, p, capability) < rank(best, p, capability)) best = k;
  }
  return best;
}
