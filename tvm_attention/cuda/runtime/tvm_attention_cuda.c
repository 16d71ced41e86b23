/* Kernels on a GPU by its driver: choosing, loading, launching. See tvm_attention_cuda.h. */
#include "tvm_attention_cuda.h"

#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

enum { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, DYNAMIC_SHARED = 8, STATIC_SHARED = 48 << 10 };
enum { BLOCKS_A_MULTIPROCESSOR = 4, NO_BOUND = 1 << 30 };

static __thread char message[512];

const char *tva_cuda_last_error(void) { return message; }

static tva_status fail(tva_status status, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(message, sizeof message, format, values);
  va_end(values);
  return status;
}

static tva_status check(const driver *d, const char *name, int status) {
  const char *text = NULL;
  if (status == 0) return TVA_OK;
  if (d->cuGetErrorString) d->cuGetErrorString(status, &text);
  return fail(TVA_FAILED, "CUDA driver: %s failed with error %d: %s", name, status, text ? text : "unknown");
}

#define REQUIRE(call)                        \
  do {                                       \
    tva_status required = (call);            \
    if (required != TVA_OK) return required; \
  } while (0)
#define DRIVER(gpu, name, ...) check(&(gpu)->d, #name, (gpu)->d.name(__VA_ARGS__))

static tva_status load_driver(driver *d) {
  d->library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!d->library) return fail(TVA_PROCESSOR, "expected NVIDIA's driver (libcuda.so.1), got none: %s", dlerror());
#define FIND(name)                                                               \
  do {                                                                           \
    void *found = dlsym(d->library, #name);                                      \
    if (!found) return fail(TVA_PROCESSOR, "NVIDIA's driver lacks %s", #name);   \
    memcpy(&d->name, &found, sizeof found); /* C has no cast to a function */    \
  } while (0)
  FIND(cuInit); FIND(cuDeviceGet); FIND(cuDeviceGetAttribute); FIND(cuDevicePrimaryCtxRetain);
  FIND(cuDevicePrimaryCtxRelease_v2); FIND(cuCtxPushCurrent_v2); FIND(cuCtxPopCurrent_v2); FIND(cuModuleLoadData);
  FIND(cuModuleUnload); FIND(cuModuleGetFunction); FIND(cuFuncSetAttribute); FIND(cuGetErrorString);
  FIND(cuLaunchKernel);
#undef FIND
  return check(d, "cuInit", d->cuInit(0));
}

static tva_status open_device(tva_cuda *gpu, int device, const char *folder) {
  int major = 0, minor = 0;
  REQUIRE(load_driver(&gpu->d));
  REQUIRE(DRIVER(gpu, cuDeviceGet, &gpu->device, device));
  REQUIRE(DRIVER(gpu, cuDeviceGetAttribute, &major, MAJOR, gpu->device));
  REQUIRE(DRIVER(gpu, cuDeviceGetAttribute, &minor, MINOR, gpu->device));
  REQUIRE(DRIVER(gpu, cuDeviceGetAttribute, &gpu->multiprocessors, MULTIPROCESSORS, gpu->device));
  gpu->capability = major * 10 + minor;
  gpu->folder = malloc(strlen(folder) + 1);
  gpu->modules = calloc((size_t)tva_cuda_number_of_kernels, sizeof *gpu->modules);
  if (!gpu->folder || !gpu->modules) return fail(TVA_NO_MEMORY, "out of memory");
  strcpy(gpu->folder, folder);
  return DRIVER(gpu, cuDevicePrimaryCtxRetain, &gpu->context, gpu->device);
}

tva_status tva_cuda_open(int device, const char *folder, tva_cuda **gpu) {
  if (!folder || !gpu) return fail(TVA_NULL_POINTER, "tva_cuda_open: expected a folder and a place, got null");
  *gpu = NULL;
  tva_cuda *made = calloc(1, sizeof *made);
  if (!made) return fail(TVA_NO_MEMORY, "out of memory");
  tva_status status = open_device(made, device, folder);
  if (status == TVA_OK)
    *gpu = made;
  else
    tva_cuda_close(made);
  return status;
}

void tva_cuda_close(tva_cuda *gpu) {
  void *popped;
  if (!gpu) return;
  if (gpu->context && gpu->d.cuCtxPushCurrent_v2(gpu->context) == 0) {
    for (int i = 0; i < tva_cuda_number_of_kernels; ++i)
      if (gpu->modules[i]) gpu->d.cuModuleUnload(gpu->modules[i]);
    gpu->d.cuCtxPopCurrent_v2(&popped);
    gpu->d.cuDevicePrimaryCtxRelease_v2(gpu->device);
  }
  if (gpu->d.library) dlclose(gpu->d.library);
  free(gpu->modules);
  free(gpu->folder);
  free(gpu);
}

static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

static int serves(const tva_cuda_kernel *k, const tva_problem *p, int capability) {
  int64_t rows = (int64_t)(p->query_heads / p->kv_heads) * p->query_length;
  /* Every second generation's machine code runs on no other; PTX on the same and on newer ones. */
  return k->capability <= capability && k->head_dim == p->head_dim && k->value_dim == p->value_dim &&
         k->dtype == p->dtype && k->kv_dtype == p->kv_dtype && k->mask_dtype == p->mask_dtype &&
         k->causal == (p->causal != TVA_NOT_CAUSAL && !p->windowed) && k->windowed == p->windowed &&
         k->softcap == (p->softcap != 0) && k->alibi == p->has_alibi && k->sinks == p->has_sinks &&
         k->lse == p->has_lse && (k->most_rows == 0 || rows <= k->most_rows);
}

/* The nearest capability, then a kernel for so few rows as there are, then lengths. */
static int64_t rank(const tva_cuda_kernel *k, const tva_problem *p, int capability) {
  int64_t rows = k->most_rows ? k->most_rows : 1 << 20;
  int64_t limit = k->lengths ? k->lengths : NO_BOUND, apart = limit < p->key_length ? NO_BOUND : limit;
  return ((int64_t)(capability - k->capability) << 52) + (rows << 31) + apart;
}

static const tva_cuda_kernel *chosen(const tva_problem *p, int capability) {
  const tva_cuda_kernel *best = NULL;
  for (int i = 0; i < tva_cuda_number_of_kernels; ++i) {
    const tva_cuda_kernel *k = &tva_cuda_kernels[i];
    if (serves(k, p, capability) && (!best || rank(k, p, capability) < rank(best, p, capability))) best = k;
  }
  return best;
}

static void *file_contents(const char *folder, const char *name, const char *ending) {
  char path[1024];
  if (snprintf(path, sizeof path, "%s/%s%s", folder, name, ending) >= (int)sizeof path) return NULL;
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  char *text = NULL;
  if (fseek(file, 0, SEEK_END) == 0) {
    long size = ftell(file);
    rewind(file);
    text = size < 0 ? NULL : malloc((size_t)size + 1);
    if (text) text[fread(text, 1, (size_t)size, file)] = 0;
  }
  fclose(file);
  return text;
}

static tva_status load(tva_cuda *gpu, const tva_cuda_kernel *k, tva_cuda_call *call) {
  void **module = &gpu->modules[k - tva_cuda_kernels];
  if (!*module) {
    const char *ending = k->capability == gpu->capability ? ".cubin" : ".ptx";
    void *image = file_contents(gpu->folder, k->name, ending);
    if (!image) return fail(TVA_FAILED, "expected the file %s/%s%s, got none", gpu->folder, k->name, ending);
    tva_status status = DRIVER(gpu, cuModuleLoadData, module, image);
    free(image);
    REQUIRE(status);
  }
  for (int i = 0; i < k->functions; ++i) {
    const tva_cuda_function *f = &k->function[i];
    REQUIRE(DRIVER(gpu, cuModuleGetFunction, &call->functions[i], *module, f->name));
    if (f->shared_bytes > STATIC_SHARED)
      REQUIRE(DRIVER(gpu, cuFuncSetAttribute, call->functions[i], DYNAMIC_SHARED, f->shared_bytes));
  }
  return TVA_OK;
}

static void fill(tva_strides *s, int64_t heads, int64_t rows, int64_t columns) {
  if (s->batch || s->head || s->row) return;
  *s = (tva_strides){heads * rows * columns, rows * columns, columns};
}

static void fill_defaults(tva_problem *p) {
  if (!p->value_dim) p->value_dim = p->head_dim;
  if (!p->kv_heads) p->kv_heads = p->query_heads;
  if (p->scale == 0) p->scale = 1.0f / sqrtf((float)p->head_dim);
  fill(&p->query, p->query_heads, p->query_length, p->head_dim);
  fill(&p->key, p->kv_heads, p->key_length, p->head_dim);
  fill(&p->value, p->kv_heads, p->key_length, p->value_dim);
  fill(&p->out, p->query_heads, p->query_length, p->value_dim);
  if (!p->lse.batch && !p->lse.head)
    p->lse = (tva_strides){(int64_t)p->query_heads * p->query_length, p->query_length, 1};
}

static tva_status sound(const tva_problem *p) {
  if (p->abi != TVA_ABI) return fail(TVA_BAD_VALUE, "abi: expected %d, got %u", TVA_ABI, p->abi);
  if (p->head_dim < 1 || p->batch < 1 || p->query_heads < 1 || p->query_length < 1 || p->key_length < 1)
    return fail(TVA_BAD_VALUE, "extents: expected at least 1 of each, got head_dim %d, batch %d, query_heads %d, "
                "query_length %d, key_length %d", p->head_dim, p->batch, p->query_heads, p->query_length, p->key_length);
  if (p->kv_heads && (p->kv_heads < 1 || p->query_heads % p->kv_heads))
    return fail(TVA_BAD_VALUE, "kv_heads: expected a divisor of query_heads, got %d of %d", p->kv_heads, p->query_heads);
  if (p->has_kv_lengths) return fail(TVA_UNSUPPORTED, "has_kv_lengths: expected 0 on a GPU, got %d", p->has_kv_lengths);
  return TVA_OK;
}

static tva_status aligned(const char *name, int64_t value, int64_t unit) {
  if (value % unit == 0) return TVA_OK;
  return fail(TVA_BAD_VALUE, "%s: expected a multiple of %lld for this kernel, got %lld; export one with other tiles",
              name, (long long)unit, (long long)value);
}

tva_status tva_cuda_prepare(tva_cuda *gpu, const tva_problem *problem, tva_cuda_call *call) {
  void *popped;
  if (!gpu || !problem || !call) return fail(TVA_NULL_POINTER, "tva_cuda_prepare: expected three pointers, got null");
  memset(call, 0, sizeof *call);
  REQUIRE(sound(problem));
  tva_problem *p = &call->problem;
  *p = *problem;
  fill_defaults(p);
  const tva_cuda_kernel *k = chosen(p, gpu->capability);
  if (!k)
    return fail(TVA_UNSUPPORTED, "expected a kernel for this problem on compute capability %d or lower in the archive, "
                "got none for head_dim %d, dtype %d; export one", gpu->capability, p->head_dim, p->dtype);
  const tva_strides *s[] = {&p->query, &p->key, &p->value};
  for (int i = 0; i < 3; ++i) {
    REQUIRE(aligned("strides", s[i]->batch, k->aligned));
    REQUIRE(aligned("strides", s[i]->head, k->aligned));
    REQUIRE(aligned("strides", s[i]->row, k->aligned));
  }
  int64_t heads = (int64_t)p->batch * p->kv_heads, wanted = ceil_div(BLOCKS_A_MULTIPROCESSOR * gpu->multiprocessors, heads);
  int64_t most = ceil_div(p->key_length, k->key_block);
  call->splits = !k->part || wanted < 1 ? 1 : (int32_t)(wanted < most ? wanted : most);
  REQUIRE(DRIVER(gpu, cuCtxPushCurrent_v2, gpu->context));
  tva_status status = load(gpu, k, call);
  gpu->d.cuCtxPopCurrent_v2(&popped);
  REQUIRE(status);
  call->gpu = gpu;
  call->kernel = k;
  return TVA_OK;
}

size_t tva_cuda_workspace_bytes(const tva_cuda_call *call) {
  if (!call || !call->kernel || !call->kernel->part) return 0;
  const tva_problem *p = &call->problem;
  return (size_t)p->batch * (size_t)p->kv_heads * (size_t)call->splits * (size_t)call->kernel->part * sizeof(float);
}

const char *tva_cuda_kernel_name(const tva_cuda_call *call) { return call && call->kernel ? call->kernel->name : NULL; }

typedef union {
  const void *address;
  int64_t wide;
  int32_t whole;
  float number;
} value;

/* In the order of tvm_attention.cuda.export_table.SLOTS. */
static void fill_values(const tva_cuda_call *c, const tva_arrays *a, const void *workspace, value *v) {
  const tva_problem *p = &c->problem;
  const double log2_e = 1.4426950408889634;
  const void *tensors[] = {a->query, a->key, a->value, a->out, workspace, a->mask, a->alibi_slopes, a->sinks,
                           a->key_scale, a->value_scale, a->lse};
  int32_t sizes[] = {p->batch, p->query_heads, p->query_heads / p->kv_heads, p->query_length, p->key_length, p->batch,
                     p->key_length, p->causal == TVA_TOP_LEFT ? 0 : p->key_length - p->query_length, 1, c->splits,
                     p->window_left < 0 ? NO_BOUND : p->window_left,
                     p->causal != TVA_NOT_CAUSAL ? 0 : p->window_right < 0 ? NO_BOUND : p->window_right};
  const tva_strides *s[] = {&p->query, &p->key, &p->value, &p->out, &p->key_scale, &p->value_scale};
  int n = 0;
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i) v[n++].address = tensors[i];
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
}

static tva_status launch(const tva_cuda_call *call, int index, int64_t blocks, value *values, void *stream) {
  const tva_cuda_function *f = &call->kernel->function[index];
  void *given[64];
  for (int i = 0; i < f->parameters; ++i) given[i] = &values[f->slots[i]];
  return DRIVER(call->gpu, cuLaunchKernel, call->functions[index], (unsigned)blocks, 1, 1, (unsigned)f->x, (unsigned)f->y,
                1, (unsigned)f->shared_bytes, stream, given, NULL);
}

tva_status tva_cuda_run(const tva_cuda_call *call, const tva_arrays *arrays, void *workspace, size_t workspace_bytes,
                        void *stream) {
  if (!call || !call->kernel) return fail(TVA_NOT_PREPARED, "expected a call that tva_cuda_prepare filled in");
  if (!arrays || !arrays->query || !arrays->key || !arrays->value || !arrays->out)
    return fail(TVA_NULL_POINTER, "arrays: expected query, key, value and out, got null");
  const tva_cuda_kernel *k = call->kernel;
  const tva_problem *p = &call->problem;
  size_t bytes = tva_cuda_workspace_bytes(call);
  if (bytes > workspace_bytes || (bytes && !workspace))
    return fail(TVA_WORKSPACE, "workspace: expected %zu bytes, got %zu", bytes, workspace_bytes);
  int64_t unit = k->aligned * (k->kv_dtype == TVA_INT8 ? 1 : k->dtype == TVA_FLOAT32 ? 4 : 2);
  const void *read[] = {arrays->query, arrays->key, arrays->value};
  for (int i = 0; i < 3; ++i) REQUIRE(aligned("address", (int64_t)(intptr_t)read[i], unit));
  value values[64];
  void *popped;
  fill_values(call, arrays, workspace, values);
  int64_t heads = (int64_t)p->batch * p->kv_heads;
  int64_t blocks = k->part ? heads * call->splits
                           : (int64_t)p->batch * p->query_heads * ceil_div(p->query_length, k->query_block);
  REQUIRE(DRIVER(call->gpu, cuCtxPushCurrent_v2, call->gpu->context));
  tva_status status = launch(call, 0, blocks, values, stream);
  if (status == TVA_OK && k->functions > 1) status = launch(call, 1, heads, values, stream);
  call->gpu->d.cuCtxPopCurrent_v2(&popped);
  return status;
}
