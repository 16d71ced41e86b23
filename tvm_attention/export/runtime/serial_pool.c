/* Where there are no threads: a pool of the calling one alone. */
#ifdef __wasm__
#include "kernels.h"

tva_status tva_pool_open(int threads, tva_pool **result) {
  if (!result) return tvi_fail(TVA_NULL_POINTER, "pool: expected an address, got null");
  *result = NULL;
  if (threads != 1) return tvi_fail(TVA_NO_MEMORY, "threads: expected 1 in WebAssembly, got %d", threads);
  return TVA_OK;
}

void tva_pool_close(tva_pool *pool) { (void)pool; }

int tva_pool_launch(void *pool, int tasks, void (*task)(void *, int), void *data) {
  (void)pool;
  if (!task) return -1;
  for (int i = 0; i < tasks; ++i) task(data, i);
  return 0;
}
#endif
