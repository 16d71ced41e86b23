/* Which kernel serves a problem: of the right kind, nearest in lengths, best that the processor can run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

static int32_t length_class(const tva_problem *p) {
  int64_t rows = (int64_t)(p->query_heads / p->kv_heads) * p->query_length;
  for (int32_t most = 1; most <= 8; most *= 2)
    if (rows <= most) return most;
  return p->key_length <= 256 ? TVA_SHORT : p->key_length <= 1024 ? TVA_MEDIUM : TVA_LONG;
}

static int serves(const tva_kernel *k, const tva_problem *p) {
  int per_key = p->mask_strides[2] == 0 || p->query_length == 1;
  int dense = p->mask_strides[3] == 1 || p->key_length == 1;
  if (k->head_dim != p->head_dim || k->value_dim != p->value_dim || k->dtype != p->dtype) return 0;
  if (k->kv_dtype != p->kv_dtype || k->causal != (p->causal != TVA_NOT_CAUSAL)) return 0;
  if (k->windowed != p->windowed || k->softcap != (p->softcap != 0)) return 0;
  if (k->alibi != p->has_alibi || k->sinks != p->has_sinks || k->lse != p->has_lse) return 0;
  if (k->ragged != tvi_is_ragged(p) || k->paged != (p->page_rows != 0)) return 0;
  if (k->mask_dtype != p->mask_dtype) return 0;
  /* Code for masks of any layout reads the simpler ones, too. */
  if (p->mask_dtype && ((k->mask_per_key && !per_key) || (k->mask_dense && !dense))) return 0;
  return 1;
}

static int enough_rows(const tva_kernel *k, const tva_problem *p) {
  return !k->most_rows || (int64_t)(p->query_heads / p->kv_heads) * p->query_length <= k->most_rows;
}

/* How far a kernel's lengths are from the problem's; the sharper code for a mask breaks a tie. */
static int distance(const tva_kernel *k, const tva_problem *p) {
  int32_t wanted = length_class(p);
  int far = k->lengths == wanted ? 0 : (k->lengths < TVA_SHORT) != (wanted < TVA_SHORT) ? 32 : 0;
  return 4 * (far + abs(k->lengths - wanted)) + !(k->mask_per_key || k->mask_dense);
}

static tva_status refused(const tva_problem *p, int kinds, int for_target, const char *missing) {
  static const char *const names[] = {"none", "float32", "float16", "bfloat16", "bool", "int8"};
  if (*missing)
    return tvi_fail(TVA_PROCESSOR,
                    "processor: the archive's kernels for this problem need features it lacks (%s); export "
                    "for a target without them",
                    missing);
  if (for_target)
    return tvi_fail(TVA_UNSUPPORTED, "target: the archive has no kernel for %.64s for this problem", p->target);
  if (kinds)
    return tvi_fail(TVA_UNSUPPORTED,
                    "query_length: %d rows of %d query heads over %d are more than the archive's decoding "
                    "kernels take; export a workload of this query length",
                    p->query_length, p->query_heads, p->kv_heads);
  return tvi_fail(TVA_UNSUPPORTED,
                  "problem: the archive has no kernel for head_dim %d, value_dim %d, %s%s%s%s%s%s%s%s%s%s, mask "
                  "%s; export one (the manifest lists those it has)",
                  p->head_dim, p->value_dim, names[p->dtype], p->kv_dtype ? ", int8 keys and values" : "",
                  p->causal ? ", causal" : "", p->windowed ? ", window" : "", p->softcap != 0 ? ", softcap" : "",
                  p->has_alibi ? ", alibi" : "", p->has_sinks ? ", sinks" : "",
                  tvi_is_ragged(p) ? ", ragged" : "", p->page_rows ? ", paged" : "", p->has_lse ? ", lse" : "",
                  names[p->mask_dtype]);
}

tva_status tvi_choose(const tva_problem *p, const tva_kernel **kernel) {
  char missing[256] = "", best_missing[256] = "";
  uint32_t core = tvi_core();
  int kinds = 0, for_target = 0, best = 0;
  *kernel = NULL;
  for (int i = 0; i < tvi_number_of_kernels; ++i) {
    const tva_kernel *k = &tvi_kernels[i];
    if (!serves(k, p)) continue;
    kinds = 1;
    if (!enough_rows(k, p)) continue;
    for_target |= p->target != NULL;
    if (p->target && strcmp(p->target, k->target) != 0) continue;
    if (tvi_lacks(k->features, missing, sizeof missing)) {
      memcpy(best_missing, missing, sizeof missing); /* of the last, which needs least */
      continue;
    }
    /* The table is in order of preference; a kernel scheduled for this very core goes before it. */
    int here = 2 * distance(k, p) + !(core && k->core == core);
    if (*kernel && here >= best) continue;
    *kernel = k;
    best = here;
  }
  return *kernel ? TVA_OK : refused(p, kinds, for_target, best_missing);
}

int tva_kernel_count(void) { return tvi_number_of_kernels; }

tva_status tva_kernel_at(int index, tva_kernel_info *info) {
  char missing[256];
  if (!info) return tvi_fail(TVA_NULL_POINTER, "info: expected an address, got null");
  if (index < 0 || index >= tvi_number_of_kernels)
    return tvi_fail(TVA_BAD_VALUE, "index: expected 0 to %d, got %d", tvi_number_of_kernels - 1, index);
  const tva_kernel *k = &tvi_kernels[index];
  info->name = k->name;
  info->target = k->target;
  info->features = k->features;
  info->workload = k->workload;
  info->runs_here = !tvi_lacks(k->features, missing, sizeof missing);
  return TVA_OK;
}
