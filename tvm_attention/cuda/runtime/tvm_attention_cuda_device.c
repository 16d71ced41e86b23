/* A GPU by its driver: opening it, putting kernels on it, starting them. See tvm_attention_cuda.h. */
#include "tvm_attention_cuda_parts.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, DYNAMIC_SHARED = 8, STATIC_SHARED = 48 << 10 };

static __thread char message[512];

const char *tva_cuda_last_error(void) { return message; }

tva_status tva_cuda_fail(tva_status status, const char *format, ...) {
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
  return tva_cuda_fail(TVA_FAILED, "CUDA driver: %s failed with error %d: %s", name, status, text ? text : "unknown");
}

#define DRIVER(gpu, name, ...) check(&(gpu)->d, #name, (gpu)->d.name(__VA_ARGS__))

static tva_status load_driver(driver *d) {
  d->library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!d->library) return tva_cuda_fail(TVA_PROCESSOR, "expected NVIDIA's driver (libcuda.so.1), got none: %s", dlerror());
#define FIND(name)                                                               \
  do {                                                                           \
    void *found = dlsym(d->library, #name);                                      \
    if (!found) return tva_cuda_fail(TVA_PROCESSOR, "NVIDIA's driver lacks %s", #name);   \
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
  if (!gpu->folder || !gpu->modules) return tva_cuda_fail(TVA_NO_MEMORY, "out of memory");
  strcpy(gpu->folder, folder);
  return DRIVER(gpu, cuDevicePrimaryCtxRetain, &gpu->context, gpu->device);
}

tva_status tva_cuda_open(int device, const char *folder, tva_cuda **gpu) {
  if (!folder || !gpu) return tva_cuda_fail(TVA_NULL_POINTER, "tva_cuda_open: expected a folder and a place, got null");
  *gpu = NULL;
  tva_cuda *made = calloc(1, sizeof *made);
  if (!made) return tva_cuda_fail(TVA_NO_MEMORY, "out of memory");
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

static tva_status function(tva_cuda *gpu, void *module, const char *name, int shared_bytes, void **made) {
  REQUIRE(DRIVER(gpu, cuModuleGetFunction, made, module, name));
  if (shared_bytes <= STATIC_SHARED) return TVA_OK;
  return DRIVER(gpu, cuFuncSetAttribute, *made, DYNAMIC_SHARED, shared_bytes);
}

static tva_status load(tva_cuda *gpu, const tva_cuda_kernel *k, void **functions) {
  void **module = &gpu->modules[k - tva_cuda_kernels];
  if (!*module) {
    const char *ending = k->capability == gpu->capability ? ".cubin" : ".ptx";
    void *image = file_contents(gpu->folder, k->name, ending);
    if (!image) return tva_cuda_fail(TVA_FAILED, "expected the file %s/%s%s, got none", gpu->folder, k->name, ending);
    tva_status status = DRIVER(gpu, cuModuleLoadData, module, image);
    free(image);
    REQUIRE(status);
  }
  for (int i = 0; i < k->functions; ++i) {
    const tva_cuda_function *f = &k->function[i];
    REQUIRE(function(gpu, *module, f->name, f->shared_bytes, &functions[i]));
  }
  return k->ragged ? function(gpu, *module, "tva_lengths", 0, &functions[2]) : TVA_OK;
}

tva_status tva_cuda_load(tva_cuda *gpu, const tva_cuda_kernel *k, void **functions) {
  void *popped;
  REQUIRE(DRIVER(gpu, cuCtxPushCurrent_v2, gpu->context));
  tva_status status = load(gpu, k, functions);
  gpu->d.cuCtxPopCurrent_v2(&popped);
  return status;
}

tva_status tva_cuda_launch(tva_cuda *gpu, void *function, int64_t blocks, int x, int y, int shared_bytes, void **given,
                           void *stream) {
  void *popped;
  if (blocks < 1 || blocks > INT32_MAX)
    return tva_cuda_fail(TVA_UNSUPPORTED, "sizes: expected 1 to %d blocks of threads, got %lld; split the batch", INT32_MAX,
                         (long long)blocks);
  REQUIRE(DRIVER(gpu, cuCtxPushCurrent_v2, gpu->context));
  tva_status status = DRIVER(gpu, cuLaunchKernel, function, (unsigned)blocks, 1, 1, (unsigned)x, (unsigned)y, 1,
                             (unsigned)shared_bytes, stream, given, NULL);
  gpu->d.cuCtxPopCurrent_v2(&popped);
  return status;
}
