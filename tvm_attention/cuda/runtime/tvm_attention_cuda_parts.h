/* What the parts of the C entry points for GPUs share. Internal. */
#ifndef TVM_ATTENTION_CUDA_PARTS_H
#define TVM_ATTENTION_CUDA_PARTS_H

#include "tvm_attention_cuda.h"

/* The driver's functions, by their names in cuda.h; all take and give what is as wide as here. */
typedef struct {
  void *library;
  int (*cuInit)(unsigned);
  int (*cuDeviceGet)(int *, int);
  int (*cuDeviceGetAttribute)(int *, int, int);
  int (*cuDevicePrimaryCtxRetain)(void **, int);
  int (*cuDevicePrimaryCtxRelease_v2)(int);
  int (*cuCtxPushCurrent_v2)(void *);
  int (*cuCtxPopCurrent_v2)(void **);
  int (*cuModuleLoadData)(void **, const void *);
  int (*cuModuleUnload)(void *);
  int (*cuModuleGetFunction)(void **, void *, const char *);
  int (*cuFuncSetAttribute)(void *, int, int);
  int (*cuGetErrorString)(int, const char **);
  int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);
} driver;

struct tva_cuda {
  driver d;
  int device, capability, multiprocessors;
  void *context;
  char *folder;
  void **modules; /* by kernel, null until loaded */
};

#define REQUIRE(call)                        \
  do {                                       \
    tva_status required = (call);            \
    if (required != TVA_OK) return required; \
  } while (0)

/* Sets the thread's message and gives the status back. */
tva_status tva_cuda_fail(tva_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Puts a kernel on a GPU, unless it is there: its functions, then, of kernels with lengths, what fills those in. */
tva_status tva_cuda_load(tva_cuda *gpu, const tva_cuda_kernel *kernel, void **functions);
tva_status tva_cuda_launch(tva_cuda *gpu, void *function, int64_t blocks, int x, int y, int shared_bytes, void **given,
                           void *stream);

/* Fills in the defaults of a problem and checks it. */
tva_status tva_cuda_open_problem(tva_problem *problem);
/* The kernel for a problem, among those that take vectors as its strides suit, or, `plain`, take none; null for none. */
const tva_cuda_kernel *tva_cuda_choose(const tva_problem *problem, int capability, int plain);
/* Whether batch elements have lengths of their own. */
static inline int tva_cuda_ragged(const tva_problem *p) { return p->has_kv_lengths || p->has_sequences; }

#endif
