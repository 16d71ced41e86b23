/* What the parts of the archive share: the table of kernels, messages, the processor. Internal. */
#ifndef TVM_ATTENTION_KERNELS_H
#define TVM_ATTENTION_KERNELS_H

#include "tvm_attention.h"

#define TVA_HIDDEN __attribute__((visibility("hidden")))

/* A value as TVM's calling convention has it. */
typedef struct {
  int32_t kind, unused;
  union {
    int64_t whole;
    double number;
  } as;
} tva_value;

typedef int (*tva_entry)(void *self, const tva_value *values, int32_t count, tva_value *result);

/* Lengths a kernel was chosen for: at most so many rows a key-value head, or one of these. */
enum { TVA_SHORT = 100, TVA_MEDIUM = 101, TVA_LONG = 102 };

typedef struct {
  const char *name, *target, *features, *workload;
  uint32_t core; /* implementer << 16 | part of the ARM core it was scheduled for, 0 for none */
  tva_entry run, workspace;
  int32_t head_dim, value_dim, dtype, kv_dtype;
  int32_t lengths;   /* 1, 2, 4, 8 (decoding) or TVA_SHORT and so on */
  int32_t most_rows; /* query rows a key-value head that it serves at most, 0 for any */
  int32_t mask_dtype;
  uint8_t causal, windowed, mask_per_key, mask_dense, softcap, alibi, sinks, ragged, paged, lse;
} tva_kernel;

/* Whether batch elements have lengths of their own. */
static inline int tvi_is_ragged(const tva_problem *p) { return p->has_kv_lengths || p->has_sequences; }

/* Generated beside the kernels. */
extern TVA_HIDDEN const tva_kernel tvi_kernels[];
extern TVA_HIDDEN const int tvi_number_of_kernels;
extern TVA_HIDDEN const char tvi_built_version[], tvi_built_architecture[];

/* Sets the thread's message and gives the status back. */
TVA_HIDDEN tva_status tvi_fail(tva_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Writes the names among `features` (separated by spaces) that this processor lacks; 1 if there are any. */
TVA_HIDDEN int tvi_lacks(const char *features, char *missing, size_t size);
/* This processor's core as in tva_kernel.core, 0 if unknown. */
TVA_HIDDEN uint32_t tvi_core(void);

/* The kernel for a problem whose sizes have been checked. */
TVA_HIDDEN tva_status tvi_choose(const tva_problem *problem, const tva_kernel **kernel);

/* Calls an entry with this launch function for its parallel loops. */
TVA_HIDDEN tva_status tvi_call(tva_entry entry, const tva_value *values, int count, tva_value *result,
                               const tva_problem *problem);
#endif
