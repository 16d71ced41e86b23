/* Attention kernels exported by tvm_attention: softmax(scale * query key^T) value.
 *
 *   tva_problem problem = {TVA_ABI};            sizes, dtype and options, everything else zero
 *   tva_prepared prepared;
 *   tva_prepare(&problem, &prepared);           picks a kernel this processor can run, checks everything
 *   void *workspace = malloc(tva_workspace_bytes(&prepared));
 *   tva_run(&prepared, &arrays, workspace, bytes);       as often as you like; allocates nothing
 *
 * Every function that can fail returns a tva_status; tva_last_error() then says what was expected, what was
 * got and what to do. Nothing here needs Python, TVM or a C++ runtime. All functions may be called from any
 * thread; concurrent tva_run calls need a workspace each.
 *
 * Tensors are query (batch, query_heads, query_length, head_dim), key (batch, kv_heads, key_length,
 * head_dim), value (batch, kv_heads, key_length, value_dim) and out (batch, query_heads, query_length,
 * value_dim), with any (batch, head, row) strides; the last axis is dense. query_heads may be a multiple of
 * kv_heads (grouped-query attention). A row that sees no key gives zeros.
 */
#ifndef TVM_ATTENTION_H
#define TVM_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TVA_API __attribute__((visibility("default")))
#else
#define TVA_API
#endif

/* Version of this interface: the first field of tva_problem. */
#define TVA_ABI 2

typedef enum tva_status {
  TVA_OK = 0,
  TVA_NULL_POINTER = 1, /* a pointer that is needed is null */
  TVA_BAD_VALUE = 2,    /* a number, or an address's alignment, is out of range */
  TVA_BAD_STRIDE = 3,   /* strides that overlap in the output, are negative or overflow */
  TVA_UNSUPPORTED = 4,  /* the archive holds no kernel for this problem */
  TVA_PROCESSOR = 5,    /* it does, but this processor lacks features that they need */
  TVA_WORKSPACE = 6,    /* the workspace is too small */
  TVA_NOT_PREPARED = 7, /* not a value that tva_prepare filled in */
  TVA_FAILED = 8,       /* the launch callback failed */
  TVA_NO_MEMORY = 9     /* threads or memory for a pool could not be had */
} tva_status;

typedef enum tva_dtype {
  TVA_NONE = 0,
  TVA_FLOAT32 = 1,
  TVA_FLOAT16 = 2,
  TVA_BFLOAT16 = 3,
  TVA_BOOL = 4, /* of masks: one byte, 0 where a key must not be seen */
  TVA_INT8 = 5  /* of keys and values, with scales */
} tva_dtype;

typedef enum tva_causal {
  TVA_NOT_CAUSAL = 0,
  TVA_TOP_LEFT = 1,    /* query i sees keys 0 to i */
  TVA_BOTTOM_RIGHT = 2 /* query i sees keys 0 to i + key_length - query_length */
} tva_causal;

/* In elements. All three zero means dense in the order (batch, head, row, element). */
typedef struct tva_strides {
  int64_t batch, head, row;
} tva_strides;

/* Runs task(data, i) once for every i from 0 to tasks - 1, on any threads, and returns 0 when all have
 * returned; anything else is a failure. */
typedef int (*tva_launch)(void *user, int tasks, void (*task)(void *data, int index), void *data);

/* What to compute. Zero everything, then set what you need: a field of zero means its default. */
typedef struct tva_problem {
  uint32_t abi; /* TVA_ABI */
  int32_t dtype; /* tva_dtype of query and out, and of key and value unless kv_dtype says otherwise */
  int32_t head_dim;
  int32_t value_dim; /* 0: head_dim */
  int32_t batch;
  int32_t query_heads;
  int32_t kv_heads; /* 0: query_heads */
  int32_t query_length;
  int32_t key_length;
  int32_t causal; /* tva_causal */
  tva_strides query, key, value, out;
  float scale; /* 0: 1 / sqrt(head_dim) */
  float softcap; /* c > 0: scores become c * tanh(score / c); 0: none */
  /* 1: query i sees keys from i + offset - window_left to i + offset + window_right, where offset aligns as
   * causal does (bottom right when not causal); -1 on a side is no bound. */
  int32_t windowed;
  int32_t window_left;
  int32_t window_right;
  /* TVA_NONE, TVA_BOOL, or the dtype of a mask that is added to the scores; its strides over (batch, head,
   * query, key), 0 where one serves all. */
  int32_t mask_dtype;
  int64_t mask_strides[4];
  int32_t has_alibi;      /* tva_arrays.alibi_slopes is read */
  int32_t has_sinks;      /* tva_arrays.sinks is read */
  int32_t has_kv_lengths; /* tva_arrays.kv_lengths is read */
  /* 1, in place of has_kv_lengths: tva_arrays.sequences says where each batch element's queries and keys are.
   * query_length and key_length are then the most that an element has. */
  int32_t has_sequences;
  /* With has_sequences: 0, or how many rows query and out have that all batch elements share, packed one
   * behind the other (batch strides are not used); likewise key and value. */
  int32_t query_rows, key_rows;
  /* Keys and values in pages: rows of a page, a power of two; 0 for none. key and value are then (pages, kv_heads,
   * page_rows, dim) with page_strides[] from page to page, batch strides are not used, and key_length is at most
   * what a row of the page table covers. Needs has_kv_lengths or has_sequences. */
  int32_t page_rows;
  int32_t pages;           /* that there are */
  int32_t page_columns;    /* of tva_arrays.page_table, (batch, page_columns) dense */
  int64_t page_strides[2]; /* of key and of value */
  int32_t has_lse;         /* tva_arrays.lse is written */
  tva_strides lse;        /* batch and head; rows are dense */
  int32_t kv_dtype;       /* TVA_INT8: keys and values are int8; TVA_NONE: as dtype */
  tva_strides key_scale, value_scale; /* of the float32 scales, over (batch, kv head, key); 0 one for all */
  /* Tasks the work is cut into, 1 to 1024, 0 for one. They run by launch(user, ...); a null launch runs them
   * one after the other in the calling thread. tva_pool_launch and tva_openmp_launch are such functions. */
  int32_t threads;
  tva_launch launch;
  void *launch_user;
  const char *target; /* null: the best this processor can run; else a target's name in the manifest */
} tva_problem;

/* A problem with its kernel. Copy it as you like; it holds no resource. */
typedef struct tva_prepared {
  uint64_t opaque[224];
} tva_prepared;

/* The rows of a batch element: its first query and key among the shared rows (0 without query_rows, key_rows), and
 * how many it has. Rows of out beyond an element's queries are left as they are. */
typedef struct tva_sequence {
  int32_t query_start, queries, key_start, keys;
} tva_sequence;

/* Addresses of one call. Only what the problem has is read. */
typedef struct tva_arrays {
  const void *query, *key, *value;
  void *out; /* shares no memory with what is read */
  const void *mask;
  const float *alibi_slopes; /* (batch, query_heads), dense */
  const float *sinks;        /* (query_heads,): exp(sink) joins the softmax's denominator */
  const int32_t *kv_lengths; /* (batch,): keys that each batch element has, 0 to key_length */
  const float *key_scale, *value_scale;
  float *lse; /* log-sum-exp of every row of scores */
  const tva_sequence *sequences; /* (batch,) */
  const int32_t *page_table;     /* numbers of the pages of each batch element's keys, in order */
} tva_arrays;

/* A kernel of the archive, for tva_kernel_at. */
typedef struct tva_kernel_info {
  const char *name, *target, *features, *workload;
  int32_t runs_here; /* whether this processor has the features */
} tva_kernel_info;

/* Picks the kernel for a problem and fills in `prepared`. Allocates nothing. */
TVA_API tva_status tva_prepare(const tva_problem *problem, tva_prepared *prepared);

/* Bytes of scratch memory that tva_run needs, of any alignment; 0 if `prepared` is null or not prepared. */
TVA_API size_t tva_workspace_bytes(const tva_prepared *prepared);

/* The name of the kernel that was picked, as the manifest has it; null if there is none. */
TVA_API const char *tva_kernel_name(const tva_prepared *prepared);

/* Computes. Allocates nothing and, without a launch function, starts nothing. */
TVA_API tva_status tva_run(const tva_prepared *prepared, const tva_arrays *arrays, void *workspace,
                           size_t workspace_bytes);

/* What went wrong in the calling thread's last call that failed; "" if none did. Stays the thread's until its
 * next failure. */
TVA_API const char *tva_last_error(void);

/* TVA_ABI, the version of tvm_attention and the architecture this archive was built with and for. */
TVA_API uint32_t tva_abi(void);
TVA_API const char *tva_version(void);
TVA_API const char *tva_architecture(void);

/* The kernels of the archive, in the order in which they are preferred. */
TVA_API int tva_kernel_count(void);
TVA_API tva_status tva_kernel_at(int index, tva_kernel_info *info);

/* A pool of threads that sleep when idle. Opening it is the only thing here that allocates. */
typedef struct tva_pool tva_pool;
TVA_API tva_status tva_pool_open(int threads, tva_pool **pool);
/* Ends its threads; none may be running tasks. Null is allowed. */
TVA_API void tva_pool_close(tva_pool *pool);
/* A tva_launch whose `user` is a tva_pool. A pool that is busy leaves the tasks to the caller. */
TVA_API int tva_pool_launch(void *pool, int tasks, void (*task)(void *data, int index), void *data);

#ifdef _OPENMP
/* A tva_launch on the OpenMP library of the program that includes this header; `user` is unused. */
static inline int tva_openmp_launch(void *user, int tasks, void (*task)(void *data, int index), void *data) {
  (void)user;
#pragma omp parallel for schedule(static, 1) num_threads(tasks)
  for (int i = 0; i < tasks; ++i) task(data, i);
  return 0;
}
#endif

#ifdef __cplusplus
}
#endif
#endif
