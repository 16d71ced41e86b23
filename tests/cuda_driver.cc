// A stand-in for libcuda: two devices, modules that are shared libraries of cuda_on_cpu.h's. A "cubin" is the path
// of such a library. What a program must not do is an error here, too.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_CONTEXT = 201, NOT_FOUND = 500, LAUNCH_FAILED = 719 };
typedef int (*Run)(void**, int, int, int, int, int);
struct Function { Run run; int context; int allowed; };

static pid_t initialised;  // by which process: it means nothing to those that are forked later
static bool capturing;
static int retained[2] = {1000, 1001};
static std::vector<int*> contexts;
static std::string journal;
static int allocated;

extern "C" {
int cuInit(unsigned) {
  if (initialised != 0 && initialised != getpid()) return NOT_INITIALIZED;
  initialised = getpid();
  return OK;
}
int cuDriverGetVersion(int* version) { *version = 13000; return OK; }
int cuGetErrorString(int status, const char** text) {
  *text = status == NO_CONTEXT ? "invalid device context" : status == NOT_FOUND ? "named symbol not found" : "stand-in error";
  return OK;
}
int cuDeviceGet(int* device, int number) {
  if (initialised != getpid()) return NOT_INITIALIZED;
  if (number < 0 || number > 1) return 101;
  *device = number;
  return OK;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  *value = attribute == 16 ? 3 : attribute == 38 ? 4096 : attribute == 75 ? 8 : attribute == 76 ? 7
           : attribute == 115 ? getenv("STAND_IN_WITHOUT_POOLS") == nullptr : -1;
  return OK;
}
int cuDeviceGetName(char* name, int size, int device) {
  snprintf(name, size, "stand-in %d", device);
  return OK;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  if (contexts.empty()) return NO_CONTEXT;
  *free = *total = 1 << 30;
  return OK;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = &retained[device]; return OK; }
int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
int cuModuleUnload(void*) { return OK; }
int cuCtxPushCurrent_v2(void* context) { contexts.push_back(static_cast<int*>(context)); return OK; }
int cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) return NO_CONTEXT;
  *context = contexts.back();
  contexts.pop_back();
  return OK;
}
int cuModuleLoadData(void** module, const void* image) {
  if (contexts.empty()) return NO_CONTEXT;
  *module = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  return *module == nullptr ? INVALID_VALUE : OK;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (contexts.empty()) return NO_CONTEXT;
  Run run = reinterpret_cast<Run>(dlsym(module, (std::string("run_") + name).c_str()));
  if (run == nullptr) return NOT_FOUND;
  *function = new Function{run, *contexts.back(), 48 << 10};
  return OK;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute != 8) return INVALID_VALUE;
  static_cast<Function*>(function)->allowed = value;
  return OK;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** parameters, void** extra) {
  Function* f = static_cast<Function*>(function);
  if (contexts.empty() || *contexts.back() != f->context) return NO_CONTEXT;
  if (gy != 1 || gz != 1 || bz != 1 || extra != nullptr || static_cast<int>(shared) > f->allowed) return INVALID_VALUE;
  char line[80];
  snprintf(line, sizeof line, "device %d stream %ld\n", f->context - 1000, reinterpret_cast<long>(stream));
  journal += line;
  return f->run(parameters, gx, bx, by, shared, 2) == 0 ? OK : LAUNCH_FAILED;
}
// Memory is the processor's. What a stream is asked for is written into the journal, and done at once.
static void note(const char* what, void* stream) {
  char line[80];
  snprintf(line, sizeof line, "%s stream %ld\n", what, reinterpret_cast<long>(stream));
  journal += line;
}
int cuMemAllocAsync(uint64_t* place, size_t size, void* stream) {
  if (contexts.empty()) return NO_CONTEXT;
  void* memory = malloc(size);
  memset(memory, 0xFF, size);  // NaN
  *place = reinterpret_cast<uint64_t>(memory);
  ++allocated;
  note("allocate", stream);
  return OK;
}
int cuMemFreeAsync(uint64_t place, void* stream) {
  if (contexts.empty()) return NO_CONTEXT;
  free(reinterpret_cast<void*>(place));
  --allocated;
  note("free", stream);
  return OK;
}
int cuMemAlloc_v2(uint64_t* place, size_t size) { return cuMemAllocAsync(place, size, nullptr); }
int cuMemFree_v2(uint64_t place) { return cuMemFreeAsync(place, nullptr); }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t size, void* stream) {
  if (contexts.empty()) return NO_CONTEXT;
  memcpy(reinterpret_cast<void*>(to), from, size);
  note("copy", stream);
  return OK;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t size, void* stream) {
  if (contexts.empty()) return NO_CONTEXT;
  memcpy(to, reinterpret_cast<void*>(from), size);
  note("copy back", stream);
  return OK;
}
int cuMemsetD8Async(uint64_t place, unsigned char value, size_t size, void*) {
  if (contexts.empty()) return NO_CONTEXT;
  memset(reinterpret_cast<void*>(place), value, size);
  return OK;
}
int cuStreamIsCapturing(void*, int* status) {
  if (contexts.empty()) return NO_CONTEXT;
  *status = capturing;
  return OK;
}
int cuStreamSynchronize(void* stream) { note("wait for", stream); return OK; }
// An event knows its stream and, unless it is not to (flag 2), when it came.
struct Event { unsigned flags; long stream; double seconds; };
int cuEventCreate(void** event, unsigned flags) {
  if (contexts.empty()) return NO_CONTEXT;
  if (flags != 0 && flags != 2) return INVALID_VALUE;
  *event = new Event{flags, -1, -1.0};
  return OK;
}
int cuEventRecord(void* event, void* stream) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  static_cast<Event*>(event)->stream = reinterpret_cast<long>(stream);
  static_cast<Event*>(event)->seconds = now.tv_sec + 1e-9 * now.tv_nsec;
  return OK;
}
int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  Event *first = static_cast<Event*>(start), *last = static_cast<Event*>(end);
  if (first->flags || last->flags || first->seconds < 0 || last->seconds < 0) return INVALID_VALUE;
  *milliseconds = 1e3 * (last->seconds - first->seconds);
  return OK;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  char line[80];
  snprintf(line, sizeof line, "stream %ld waits for %ld\n", reinterpret_cast<long>(stream), static_cast<Event*>(event)->stream);
  journal += line;
  return OK;
}
int cuEventDestroy_v2(void* event) { delete static_cast<Event*>(event); return OK; }
void stand_in_capture(int yes) { capturing = yes; }
int stand_in_allocated() { return allocated; }
int stand_in_contexts() { return contexts.size(); }
const char* stand_in_journal() { return journal.c_str(); }
}
