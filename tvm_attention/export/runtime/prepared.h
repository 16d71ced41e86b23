/* A problem with its kernel and the arguments of that. Internal. */
#ifndef TVM_ATTENTION_PREPARED_H
#define TVM_ATTENTION_PREPARED_H

#include "checks.h"

#define MOST_VALUES 64

/* Arguments whose values are addresses, which a call fills in. */
enum {
  QUERY, KEY, VALUE, OUT, WORKSPACE, MASK, SLOPES, SINKS, RAGGED, TABLE, KEY_SCALE, VALUE_SCALE, LSE, ADDRESSES
};

typedef struct {
  uint64_t magic;
  tva_problem problem;
  const tva_kernel *kernel; /* null where there is nothing to multiply */
  int64_t kernel_bytes, ragged_bytes;
  int32_t count;
  int8_t place[ADDRESSES]; /* which of the values is this address, -1 for none */
  tva_value values[MOST_VALUES];
} prepared_call;

_Static_assert(sizeof(prepared_call) <= sizeof(tva_prepared), "tva_prepared is too small");

/* What a field of zero stands for, before sizes are checked. */
TVA_HIDDEN void tvi_fill_in(tva_problem *problem);
/* Strides and bounds of sizes that have been checked. */
TVA_HIDDEN void tvi_normalise(tva_problem *problem);
/* The arguments of the kernel, but addresses; the scalars alone; and the addresses. */
TVA_HIDDEN void tvi_arguments(prepared_call *call);
TVA_HIDDEN void tvi_scalars(prepared_call *call);
TVA_HIDDEN void tvi_addresses(prepared_call *call, const tva_arrays *arrays, char *workspace);
#endif
