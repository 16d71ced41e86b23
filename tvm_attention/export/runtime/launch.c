/* Parallel loops of the kernels: TVM's slots, filled here, lead to the caller's launch function. */
#include <stdatomic.h>

#include "kernels.h"

typedef struct {
  void *barrier; /* that no kernel uses */
  int32_t tasks;
} environment;

typedef int (*loop_body)(int task, environment *env, void *closure);

typedef struct {
  loop_body body;
  void *closure;
  environment env;
  atomic_int done, code;
} loop;

static __thread const tva_problem *current;

static void one_task(void *data, int index) {
  loop *l = data;
  if (index < 0 || index >= l->env.tasks) return;
  int code = l->body(index, &l->env, l->closure);
  if (code) atomic_store(&l->code, code);
  atomic_fetch_add(&l->done, 1);
}

static int parallel_launch(loop_body body, void *closure, int asked) {
  const tva_problem *p = current;
  loop l = {.body = body, .closure = closure, .env = {0, p->threads}};
  (void)asked;
  if (!p->launch || p->threads == 1) {
    for (int i = 0; i < p->threads; ++i) one_task(&l, i);
  } else {
    int code = p->launch(p->launch_user, p->threads, one_task, &l);
    if (code) {
      tvi_fail(TVA_FAILED, "launch: the launch function returned %d", code);
      return code;
    }
  }
  int done = atomic_load(&l.done);
  if (done != p->threads) {
    tvi_fail(TVA_FAILED, "launch: expected each of %d tasks to have run once, got %d runs", p->threads, done);
    return -1;
  }
  return atomic_load(&l.code);
}

/* Everything a kernel needs is in its workspace: it never asks. */
static void *no_memory(int kind, int id, uint64_t bytes, int code, int bits) {
  (void)kind, (void)id, (void)bytes, (void)code, (void)bits;
  return 0;
}

static int no_release(int kind, int id, void *address) {
  (void)kind, (void)id, (void)address;
  return 0;
}

TVA_HIDDEN int (*__TVMBackendParallelLaunch)(loop_body, void *, int) = parallel_launch;
TVA_HIDDEN void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = no_memory;
TVA_HIDDEN int (*__TVMBackendFreeWorkspace)(int, int, void *) = no_release;

tva_status tvi_call(tva_entry entry, const tva_value *values, int count, tva_value *result,
                    const tva_problem *problem) {
  const tva_problem *before = current; /* a launch function may compute attention itself */
  current = problem;
  int code = entry(0, values, count, result);
  current = before;
  return code ? TVA_FAILED : TVA_OK;
}
