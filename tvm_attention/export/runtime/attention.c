/* tva_prepare and tva_run. */
#include <math.h>
#include <string.h>

#include "prepared.h"

#define MAGIC UINT64_C(0x7476615f6f6b3031)
#define MOST_WORKSPACE (INT64_C(1) << 33) /* kernels count its elements by 32-bit integers */

static int empty(const tva_problem *p) { return !p->batch || !p->query_heads || !p->query_length; }

static tva_status kernel_bytes(prepared_call *c) {
  prepared_call sizes = {.count = 0, .problem = c->problem, .kernel = c->kernel};
  tva_value result = {0};
  tvi_scalars(&sizes);
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
  tvi_fill_in(&c.problem);
  tva_status status = tvi_check_sizes(&c.problem);
  if (status != TVA_OK) return status;
  tvi_normalise(&c.problem);
  status = tvi_check_strides(&c.problem);
  if (status != TVA_OK) return status;
  if (!empty(&c.problem) && c.problem.key_length) {
    status = tvi_choose(&c.problem, &c.kernel);
    if (status != TVA_OK) return status;
    tvi_arguments(&c);
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
  tvi_addresses(&c, arrays, aligned);
  tva_value result = {0};
  return tvi_call(c.kernel->run, c.values, c.count, &result, &c.problem);
}

uint32_t tva_abi(void) { return TVA_ABI; }
const char *tva_version(void) { return tvi_built_version; }
const char *tva_architecture(void) { return tvi_built_architecture; }
