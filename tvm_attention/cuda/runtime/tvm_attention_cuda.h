/* Attention kernels for NVIDIA GPUs, exported by tvm_attention. Compile this folder's C files into a program and
 * link it with -ldl -lm: the driver is found at run time, and no toolkit is needed.
 *
 *   tva_cuda *gpu;
 *   tva_cuda_open(0, "archive/cuda", &gpu);           the folder with the kernels' files
 *   tva_cuda_call call;
 *   tva_cuda_prepare(gpu, &problem, &call);           picks a kernel and puts it on the GPU
 *   tva_cuda_run(&call, &arrays, workspace, bytes, stream);         starts it; waits for nothing
 *
 * Problems, arrays and statuses are those of tvm_attention.h; all addresses are of the GPU's memory, in its primary
 * context, which the CUDA runtime uses: lengths, sequences and page tables, too, whose numbers are therefore not
 * looked at but for kv_lengths, which are cut to key_length. Of a problem, threads, launch and target are not looked
 * at; extents of 0 are refused. A GPU of another compute capability than a kernel's gets its PTX, which the driver
 * compiles, if it is newer. One thread at a time may use a tva_cuda for opening, preparing and closing; calls run
 * from any thread.
 */
#ifndef TVM_ATTENTION_CUDA_H
#define TVM_ATTENTION_CUDA_H

#include "tvm_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tva_cuda tva_cuda; /* a GPU and the kernels on it */

/* A problem with its kernel. Copy it as you like; it holds no resource of its own. */
typedef struct tva_cuda_call {
  const struct tva_cuda_kernel *kernel;
  tva_cuda *gpu;
  tva_problem problem; /* with its defaults filled in */
  int32_t splits;
  void *functions[3];
  /* What serves addresses that suit no vectors; null if the archive has nothing of the kind. */
  const struct tva_cuda_kernel *plain;
  void *plain_functions[3];
} tva_cuda_call;

/* Opens a GPU by its number. `folder` holds the files of the archive's kernels. */
tva_status tva_cuda_open(int device, const char *folder, tva_cuda **gpu);
/* Takes the kernels off it. Null is allowed. */
void tva_cuda_close(tva_cuda *gpu);
/* Picks the kernel for a problem; with the first call for one, loads it. */
tva_status tva_cuda_prepare(tva_cuda *gpu, const tva_problem *problem, tva_cuda_call *call);
/* Bytes of the GPU's memory that tva_cuda_run needs beside the arrays; mostly 0. */
size_t tva_cuda_workspace_bytes(const tva_cuda_call *call);
/* The name of the kernel that was picked, as the manifest has it. */
const char *tva_cuda_kernel_name(const tva_cuda_call *call);
/* Starts the kernel on a stream (a CUstream or cudaStream_t, null for the default one). */
tva_status tva_cuda_run(const tva_cuda_call *call, const tva_arrays *arrays, void *workspace,
                        size_t workspace_bytes, void *stream);
/* What went wrong in the calling thread's last call that failed; "" if none did. */
const char *tva_cuda_last_error(void);

/* The table of kernels, generated beside their files. */
typedef struct tva_cuda_function {
  const char *name;
  int32_t x, y, shared_bytes, parameters;
  const uint8_t *slots; /* which value each parameter is */
} tva_cuda_function;

typedef struct tva_cuda_kernel {
  const char *name;
  int32_t capability; /* 87 for 8.7 */
  int32_t head_dim, value_dim, dtype, kv_dtype, mask_dtype;
  int32_t lengths;    /* keys that it was tuned for at most: 256, 1024, or 0 for more */
  int32_t most_rows;  /* query rows a key-value head that it serves at most, 0 for any */
  int32_t causal, windowed, softcap, alibi, sinks, lse, ragged, paged;
  int32_t query_block, key_block, part; /* part: floats of a split; 0 where keys are not split */
  int32_t aligned;    /* elements that addresses and strides are multiples of */
  int32_t functions;
  tva_cuda_function function[2];
} tva_cuda_kernel;

extern const tva_cuda_kernel tva_cuda_kernels[];
extern const int tva_cuda_number_of_kernels;

#ifdef __cplusplus
}
#endif
#endif
