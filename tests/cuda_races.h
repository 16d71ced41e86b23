// A program that runs one kernel on the arrays of a file and writes them back: ThreadSanitizer wants a process of its
// own. The file: blocks, x, y, shared bytes, order, mutation, arguments (int32 each); for each argument whether it is an
// array, its bytes, what its address leaves at a division by 64 (int64 each), and its bytes.
#define RACES
#include "cuda_on_cpu.h"
#include <stdio.h>

static const size_t MOST_ARGUMENTS = 64;
struct Kernel { const char* name; int (*run)(void**, int, int, int, int, int); };

static void transfer(size_t (*way)(FILE*, void*, size_t), FILE* file, void* data, size_t bytes) {
  if (bytes && way(file, data, bytes) != bytes) exit(3);
}
static size_t in(FILE* file, void* data, size_t bytes) { return fread(data, 1, bytes, file); }
static size_t out(FILE* file, void* data, size_t bytes) { return fwrite(data, 1, bytes, file); }

// Exit status: what run_grid returns, plus 10 where that is a fault; 66 (ThreadSanitizer's) for a race.
static int run_file(const Kernel* kernels, size_t count, const char* name, const char* path) {
  int32_t launch[7];
  int64_t about[MOST_ARGUMENTS][3];
  void* arguments[MOST_ARGUMENTS];
  void* places[MOST_ARGUMENTS];
  FILE* file = fopen(path, "r+b");
  if (file == nullptr) return 3;
  transfer(in, file, launch, sizeof launch);
  for (int i = 0; i < launch[6]; ++i) {
    transfer(in, file, about[i], sizeof about[i]);
    char* memory = static_cast<char*>(aligned_alloc(64, (about[i][1] + about[i][2] + 127) / 64 * 64)) + about[i][2];
    transfer(in, file, memory, about[i][1]);
    places[i] = memory;
    arguments[i] = about[i][0] ? static_cast<void*>(&places[i]) : memory;
  }
  mutation = launch[5];
  for (size_t n = 0; n < count; ++n) {
    if (strcmp(kernels[n].name, name) != 0) continue;
    int status = kernels[n].run(arguments, launch[0], launch[1], launch[2], launch[3], launch[4]);
    rewind(file);
    transfer(out, file, launch, sizeof launch);
    for (int i = 0; i < launch[6]; ++i) {
      transfer(out, file, about[i], sizeof about[i]);
      transfer(out, file, places[i], about[i][1]);
    }
    fclose(file);
    return status == 0 ? 0 : 10 + status;
  }
  return 3;
}
