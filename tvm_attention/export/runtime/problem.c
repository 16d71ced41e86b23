/* What a problem leaves open. */
#include <math.h>

#include "prepared.h"

static void dense(tva_strides *s, int64_t heads, int64_t rows, int64_t elements) {
  if (s->batch || s->head || s->row) return;
  s->row = elements;
  s->head = rows * elements;
  s->batch = heads * rows * elements;
}

static int32_t least(int64_t a, int64_t b) { return (int32_t)(a < b ? a : b); }

void tvi_fill_in(tva_problem *p) {
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

void tvi_normalise(tva_problem *p) {
  default_strides(p);
  if (!p->windowed) return;
  /* Beyond all rows and keys a bound says nothing; causal is the tighter bound on the right. */
  int64_t most = (int64_t)p->query_length + p->key_length;
  p->window_left = p->window_left < 0 ? -1 : least(p->window_left, most);
  p->window_right = p->causal || p->window_right < 0 ? -1 : least(p->window_right, most);
  p->windowed = p->window_left >= 0 || p->window_right >= 0;
}
