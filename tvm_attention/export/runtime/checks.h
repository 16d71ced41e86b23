/* Checks of what a caller gives. Internal. */
#ifndef TVM_ATTENTION_CHECKS_H
#define TVM_ATTENTION_CHECKS_H

#include "kernels.h"

#define REQUIRE(check)                      \
  do {                                      \
    tva_status required = (check);          \
    if (required != TVA_OK) return required; \
  } while (0)

/* Extents and options; every default has been filled in. */
TVA_HIDDEN tva_status tvi_check_sizes(const tva_problem *problem);
/* Strides, of sizes that have been checked. */
TVA_HIDDEN tva_status tvi_check_strides(const tva_problem *problem);
/* Addresses of a call with something to compute. */
TVA_HIDDEN tva_status tvi_check_arrays(const tva_problem *problem, const tva_arrays *arrays);
/* Bytes of an element. */
TVA_HIDDEN size_t tvi_bytes_of(int32_t dtype);
#endif
