/* Calls of kernels on a GPU. See tvm_attention_cuda.h. */
#include <string.h>

#include "tvm_attention_cuda_parts.h"

enum { BLOCKS_A_MULTIPROCESSOR = 4, NO_BOUND = 1 << 30, LENGTHS_A_BLOCK = 128 };

static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

tva_status tva_cuda_prepare(tva_cuda *gpu, const tva_problem *problem, tva_cuda_call *call) {
  if (!gpu || !problem || !call)
    return tva_cuda_fail(TVA_NULL_POINTER, "tva_cuda_prepare: expected three pointers, got null");
  memset(call, 0, sizeof *call);
  tva_problem *p = &call->problem;
  *p = *problem;
  REQUIRE(tva_cuda_open_problem(p));
  const tva_cuda_kernel *k = tva_cuda_choose(p, gpu->capability, 0);
  if (!k)
    return tva_cuda_fail(TVA_UNSUPPORTED,
                         "expected a kernel for this problem on compute capability %d or lower in the archive, got none "
                         "for head_dim %d, dtype %d; export one",
                         gpu->capability, p->head_dim, p->dtype);
  const tva_cuda_kernel *plain = tva_cuda_choose(p, gpu->capability, 1);
  /* They share grids and workspace if they differ in vectors alone. */
  if (plain && (plain->query_block != k->query_block || plain->key_block != k->key_block || plain->part != k->part))
    plain = NULL;
  int64_t heads = (int64_t)p->batch * p->kv_heads, wanted = ceil_div(BLOCKS_A_MULTIPROCESSOR * gpu->multiprocessors, heads);
  int64_t most = ceil_div(p->key_length, k->key_block);
  call->splits = !k->part || wanted < 1 ? 1 : (int32_t)(wanted < most ? wanted : most);
  REQUIRE(tva_cuda_load(gpu, k, call->functions));
  if (plain) REQUIRE(tva_cuda_load(gpu, plain, call->plain_functions));
  call->gpu = gpu;
  call->kernel = k;
  call->plain = plain;
  return TVA_OK;
}

static size_t part_bytes(const tva_cuda_call *call) {
  const tva_problem *p = &call->problem;
  return (size_t)p->batch * (size_t)p->kv_heads * (size_t)call->splits * (size_t)call->kernel->part * sizeof(float);
}

size_t tva_cuda_workspace_bytes(const tva_cuda_call *call) {
  if (!call || !call->kernel) return 0;
  size_t lengths = call->problem.has_kv_lengths ? (size_t)call->problem.batch * sizeof(tva_sequence) : 0;
  return part_bytes(call) + lengths;
}

const char *tva_cuda_kernel_name(const tva_cuda_call *call) { return call && call->kernel ? call->kernel->name : NULL; }

typedef union {
  const void *address;
  int64_t wide;
  int32_t whole;
  float number;
} value;

static int32_t causal_offset(const tva_problem *p) {
  if (tva_cuda_ragged(p)) return p->causal != TVA_TOP_LEFT;
  return p->causal == TVA_TOP_LEFT ? 0 : p->key_length - p->query_length;
}

/* In the order of tvm_attention.cuda.export_table.SLOTS. */
static void fill_values(const tva_cuda_call *c, const tva_arrays *a, const void *part, const void *ragged, value *v) {
  const tva_problem *p = &c->problem;
  const double log2_e = 1.4426950408889634;
  const void *addresses[] = {a->query, a->key, a->value, a->out, part, a->mask, a->alibi_slopes, a->sinks, ragged,
                             a->page_table, a->key_scale, a->value_scale, a->lse};
  int32_t sizes[] = {p->batch, p->query_heads, p->query_heads / p->kv_heads, p->query_length, p->key_length,
                     p->key_rows ? 1 : p->batch, p->key_rows ? p->key_rows : p->key_length, causal_offset(p), 1, c->splits,
                     p->window_left < 0 ? NO_BOUND : p->window_left,
                     p->causal != TVA_NOT_CAUSAL ? 0 : p->window_right < 0 ? NO_BOUND : p->window_right,
                     p->page_rows ? __builtin_ctz((unsigned)p->page_rows) : 0};
  const tva_strides *s[] = {&p->query, &p->key, &p->value, &p->out, &p->key_scale, &p->value_scale};
  int n = 0;
  for (size_t i = 0; i < sizeof addresses / sizeof *addresses; ++i) v[n++].address = addresses[i];
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) v[n++].whole = sizes[i];
  v[n++].number = (float)(p->scale * log2_e);
  v[n++].number = (float)(p->softcap * log2_e);
  for (size_t i = 0; i < sizeof s / sizeof *s; ++i) {
    v[n++].wide = s[i]->batch;
    v[n++].wide = s[i]->head;
    v[n++].wide = s[i]->row;
  }
  for (int i = 0; i < 4; ++i) v[n++].wide = p->mask_strides[i];
  v[n++].wide = p->lse.batch;
  v[n++].wide = p->lse.head;
  v[n++].wide = p->page_columns;
  v[n++].wide = p->page_strides[0];
  v[n++].wide = p->page_strides[1];
}

static tva_status launch(const tva_cuda_call *call, const tva_cuda_kernel *k, void *const *functions, int index,
                         int64_t blocks, value *values, void *stream) {
  const tva_cuda_function *f = &k->function[index];
  void *given[64];
  for (int i = 0; i < f->parameters; ++i) given[i] = &values[f->slots[i]];
  return tva_cuda_launch(call->gpu, functions[index], blocks, f->x, f->y, f->shared_bytes, given, stream);
}

/* Lengths as kernels read them, each with all rows: from the GPU's memory to the GPU's memory. */
static tva_status fill_lengths(const tva_cuda_call *call, void *function, const tva_arrays *a, void *to, void *stream) {
  const tva_problem *p = &call->problem;
  const void *from = a->kv_lengths;
  int32_t batch = p->batch, rows = p->query_length, most = p->key_length;
  void *given[] = {&to, &from, &batch, &rows, &most};
  return tva_cuda_launch(call->gpu, function, ceil_div(batch, LENGTHS_A_BLOCK), LENGTHS_A_BLOCK, 1, 0, given, stream);
}

static tva_status check_arrays(const tva_problem *p, const tva_arrays *a) {
  if (!a || !a->query || !a->key || !a->value || !a->out)
    return tva_cuda_fail(TVA_NULL_POINTER, "arrays: expected query, key, value and out, got null");
  const struct { const char *name; int wanted; const void *given; } others[] = {
      {"mask", p->mask_dtype, a->mask}, {"alibi_slopes", p->has_alibi, a->alibi_slopes}, {"sinks", p->has_sinks, a->sinks},
      {"kv_lengths", p->has_kv_lengths, a->kv_lengths}, {"sequences", p->has_sequences, a->sequences},
      {"page_table", p->page_rows, a->page_table}, {"key_scale", p->kv_dtype, a->key_scale},
      {"value_scale", p->kv_dtype, a->value_scale}, {"lse", p->has_lse, a->lse}};
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i)
    if (others[i].wanted && !others[i].given)
      return tva_cuda_fail(TVA_NULL_POINTER, "%s: expected an address, got null", others[i].name);
  return TVA_OK;
}

/* Whether addresses suit a kernel's vectors. */
static int suits(const tva_cuda_kernel *k, const tva_arrays *a) {
  uintptr_t size = k->dtype == TVA_FLOAT32 ? 4 : 2, kv_size = k->kv_dtype == TVA_INT8 ? 1 : size;
  uintptr_t unit = (uintptr_t)k->aligned;
  return (uintptr_t)a->query % (unit * size) == 0 && (uintptr_t)a->key % (unit * kv_size) == 0 &&
         (uintptr_t)a->value % (unit * kv_size) == 0;
}

tva_status tva_cuda_run(const tva_cuda_call *call, const tva_arrays *arrays, void *workspace, size_t workspace_bytes,
                        void *stream) {
  if (!call || !call->kernel)
    return tva_cuda_fail(TVA_NOT_PREPARED, "expected a call that tva_cuda_prepare filled in");
  const tva_problem *p = &call->problem;
  REQUIRE(check_arrays(p, arrays));
  size_t bytes = tva_cuda_workspace_bytes(call);
  if (bytes > workspace_bytes || (bytes && !workspace))
    return tva_cuda_fail(TVA_WORKSPACE, "workspace: expected %zu bytes, got %zu", bytes, workspace_bytes);
  const tva_cuda_kernel *k = call->kernel;
  void *const *functions = call->functions;
  if (!suits(k, arrays)) {
    if (!call->plain)
      return tva_cuda_fail(TVA_BAD_VALUE,
                           "addresses: expected multiples of %d elements for this kernel, as the archive has none without "
                           "vectors",
                           k->aligned);
    k = call->plain, functions = call->plain_functions;
  }
  char *lengths = p->has_kv_lengths ? (char *)workspace + part_bytes(call) : NULL;
  value values[64];
  fill_values(call, arrays, workspace, p->has_sequences ? (const void *)arrays->sequences : lengths, values);
  if (lengths) REQUIRE(fill_lengths(call, functions[2], arrays, lengths, stream));
  int64_t heads = (int64_t)p->batch * p->kv_heads;
  int64_t blocks = k->part ? heads * call->splits
                           : (int64_t)p->batch * p->query_heads * ceil_div(p->query_length, k->query_block);
  REQUIRE(launch(call, k, functions, 0, blocks, values, stream));
  return k->functions > 1 ? launch(call, k, functions, 1, heads, values, stream) : TVA_OK;
}
