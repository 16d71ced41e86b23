/* A pool of POSIX threads. A thread with nothing to do looks for it for 50 microseconds, then sleeps; the caller of a
 * launch looks longer for its end: woken late, it would find the others asleep at its next launch. By the clock: a
 * pause takes 3 nanoseconds on one processor and 50 on another.
 *
 * A launch is published as a ticket, its number and how many tasks it has. A task is claimed by writing the
 * launch's number over an older one, so that who comes late claims nothing; what to run is read before that. Each
 * thread begins with the task of its own number: what that read and wrote in the last launch is in its cache. */
#ifndef __wasm__ /* which has serial_pool.c */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels.h"

#define MOST_THREADS 1024
#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() __asm__ volatile("" ::: "memory")
#endif

#define LOOKS 64 /* from one glance at the clock to the next */
#define PATIENCE 50000 /* nanoseconds */
#define CALLERS_PATIENCE (20 * PATIENCE)
#define TASK_BITS 16

typedef void (*pool_task)(void *, int);

typedef struct {
  struct tva_pool *pool;
  pthread_t thread;
  pid_t id;
  int asleep, barred; /* under the mutex of sleep */
  cpu_set_t allowed;  /* to run on, when it is not barred from one */
} worker;

struct tva_pool {
  pthread_mutex_t busy; /* held by the one launch that has the pool */
  _Atomic(pool_task) task;
  _Atomic(void *) data;
  _Atomic uint64_t ticket; /* launch << TASK_BITS | tasks */
  _Atomic uint64_t claimed[MOST_THREADS]; /* of each task, the last launch in which somebody took it */
  atomic_int unfinished, sleeping, waiting, closing;
  pthread_mutex_t mutex; /* of sleep */
  pthread_cond_t work, done;
  int threads; /* that were started; the caller of a launch is one more */
  worker workers[];
};

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int claim(tva_pool *pool, int index, uint64_t launch) {
  uint64_t last = pool->claimed[index];
  return last < launch && atomic_compare_exchange_strong(&pool->claimed[index], &last, launch);
}

/* The tasks that nobody has taken, from `first` on round to it. */
static void take_tasks(tva_pool *pool, uint64_t ticket, int first) {
  int tasks = (int)(ticket & ((1 << TASK_BITS) - 1));
  pool_task task = pool->task;
  void *data = pool->data;
  for (int i = 0; i < tasks; ++i) {
    int index = (first + i) % tasks;
    if (!claim(pool, index, ticket >> TASK_BITS)) continue;
    task(data, index);
    if (atomic_fetch_sub(&pool->unfinished, 1) == 1 && pool->waiting) {
      pthread_mutex_lock(&pool->mutex);
      pthread_cond_signal(&pool->done);
      pthread_mutex_unlock(&pool->mutex);
    }
  }
}

/* For a launch after the one that was seen, as long as patience lasts; while others still compute their caller has
 * not gone on yet. */
static void look(tva_pool *pool, uint64_t seen) {
  int64_t begin = nanoseconds(), idle = begin;
  for (int looks = 1; pool->ticket == seen && !pool->closing; ++looks) {
    PAUSE();
    if (looks % LOOKS) continue;
    int64_t now = nanoseconds();
    if (pool->unfinished && now - begin < CALLERS_PATIENCE) idle = now;
    if (now - idle > PATIENCE) return;
    looks = 0;
  }
}

/* Until there is a launch after the one that was seen. */
static void doze(worker *self, uint64_t seen) {
  tva_pool *pool = self->pool;
  pthread_mutex_lock(&pool->mutex);
  ++pool->sleeping; /* before the last look: a launch that this look misses sees it */
  self->asleep = 1;
  while (pool->ticket == seen && !pool->closing) pthread_cond_wait(&pool->work, &pool->mutex);
  self->asleep = 0;
  --pool->sleeping;
  int barred = self->barred;
  self->barred = 0;
  pthread_mutex_unlock(&pool->mutex);
  if (barred) sched_setaffinity(0, sizeof self->allowed, &self->allowed);
}

/* Linux may queue a woken thread behind the one that wakes it, on the same processor, launch after launch: it may not
 * start there. */
static void bar(worker *w, int processor) {
  cpu_set_t others;
  if (processor < 0 || processor >= CPU_SETSIZE) return;
  if (sched_getaffinity(w->id, sizeof w->allowed, &w->allowed)) return;
  others = w->allowed;
  CPU_CLR(processor, &others);
  w->barred = CPU_COUNT(&others) > 0 && !sched_setaffinity(w->id, sizeof others, &others);
}

static void *work(void *argument) {
  worker *self = argument;
  tva_pool *pool = self->pool;
  uint64_t seen = 0;
  self->id = (pid_t)syscall(SYS_gettid);
  while (!pool->closing) {
    look(pool, seen);
    if (pool->ticket == seen) doze(self, seen);
    seen = pool->ticket;
    take_tasks(pool, seen, (int)(self - pool->workers) + 1);
  }
  return 0;
}

static void wake(tva_pool *pool) {
  if (!pool->sleeping) return;
  int processor = sched_getcpu();
  pthread_mutex_lock(&pool->mutex);
  for (int i = 0; i < pool->threads; ++i)
    if (pool->workers[i].asleep && !pool->workers[i].barred) bar(&pool->workers[i], processor);
  pthread_cond_broadcast(&pool->work);
  pthread_mutex_unlock(&pool->mutex);
}

int tva_pool_launch(void *user, int tasks, void (*task)(void *, int), void *data) {
  tva_pool *pool = user;
  if (!task) return -1;
  if (!pool || !pool->threads || tasks < 1 || tasks > MOST_THREADS || pthread_mutex_trylock(&pool->busy) != 0) {
    for (int i = 0; i < tasks; ++i) task(data, i);
    return 0;
  }
  pool->task = task;
  pool->data = data;
  pool->unfinished = tasks;
  uint64_t ticket = ((pool->ticket >> TASK_BITS) + 1) << TASK_BITS | (uint64_t)tasks;
  pool->ticket = ticket;
  wake(pool);
  take_tasks(pool, ticket, 0);
  int64_t begin = nanoseconds();
  for (int looks = 1; pool->unfinished; ++looks) {
    PAUSE();
    if (looks % (4 * LOOKS)) continue;
    if (nanoseconds() - begin > CALLERS_PATIENCE) break;
    sched_yield(); /* to a worker that waits for this processor */
    looks = 0;
  }
  if (pool->unfinished) {
    pthread_mutex_lock(&pool->mutex);
    pool->waiting = 1;
    while (pool->unfinished) pthread_cond_wait(&pool->done, &pool->mutex);
    pool->waiting = 0;
    pthread_mutex_unlock(&pool->mutex);
  }
  pthread_mutex_unlock(&pool->busy);
  return 0;
}

tva_status tva_pool_open(int threads, tva_pool **result) {
  if (!result) return tvi_fail(TVA_NULL_POINTER, "pool: expected an address, got null");
  *result = NULL;
  if (threads < 1 || threads > MOST_THREADS)
    return tvi_fail(TVA_BAD_VALUE, "threads: expected 1 to %d, got %d", MOST_THREADS, threads);
  tva_pool *pool = calloc(1, sizeof *pool + (size_t)threads * sizeof(worker));
  if (!pool) return tvi_fail(TVA_NO_MEMORY, "pool: no memory for %d threads", threads);
  pthread_mutex_init(&pool->busy, NULL);
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->work, NULL);
  pthread_cond_init(&pool->done, NULL);
  while (pool->threads < threads - 1) {
    worker *next = &pool->workers[pool->threads];
    next->pool = pool;
    if (pthread_create(&next->thread, NULL, work, next) != 0) {
      int started = pool->threads;
      tva_pool_close(pool);
      return tvi_fail(TVA_NO_MEMORY, "pool: the system gave %d of %d threads", started, threads - 1);
    }
    ++pool->threads;
  }
  *result = pool;
  return TVA_OK;
}

void tva_pool_close(tva_pool *pool) {
  if (!pool) return;
  pool->closing = 1;
  wake(pool);
  for (int i = 0; i < pool->threads; ++i) pthread_join(pool->workers[i].thread, NULL);
  pthread_mutex_destroy(&pool->busy);
  pthread_mutex_destroy(&pool->mutex);
  pthread_cond_destroy(&pool->work);
  pthread_cond_destroy(&pool->done);
  free(pool);
}
#endif
