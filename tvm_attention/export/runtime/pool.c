/* A pool of POSIX threads. Whoever has nothing to do looks for it for some 50 microseconds, then sleeps.
 *
 * A launch is published as a ticket, its number and how many tasks are left; taking a task counts the latter
 * down. The task is read before that: if it was another launch's, counting down fails. */
#ifndef __wasm__ /* which has serial_pool.c */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "kernels.h"

#define MOST_THREADS 1024
#if defined(__x86_64__)
#define LOOKS 1000
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define LOOKS 20000
#define PAUSE() __asm__ volatile("yield")
#else
#define LOOKS 20000
#define PAUSE() __asm__ volatile("" ::: "memory")
#endif

typedef void (*pool_task)(void *, int);

struct tva_pool {
  pthread_mutex_t busy; /* held by the one launch that has the pool */
  _Atomic(pool_task) task;
  _Atomic(void *) data;
  _Atomic uint64_t ticket; /* launch << 32 | tasks that nobody has taken */
  atomic_int unfinished, sleeping, waiting, closing;
  pthread_mutex_t mutex; /* of sleep */
  pthread_cond_t work, done;
  int threads; /* that were started; the caller of a launch is one more */
  pthread_t workers[];
};

static int any_left(tva_pool *pool) { return (uint32_t)pool->ticket != 0; }

static void take_tasks(tva_pool *pool) {
  for (;;) {
    uint64_t ticket = pool->ticket;
    if (!(uint32_t)ticket) return;
    pool_task task = pool->task;
    void *data = pool->data;
    if (!atomic_compare_exchange_weak(&pool->ticket, &ticket, ticket - 1)) continue;
    task(data, (int)(uint32_t)ticket - 1);
    if (atomic_fetch_sub(&pool->unfinished, 1) == 1 && pool->waiting) {
      pthread_mutex_lock(&pool->mutex);
      pthread_cond_signal(&pool->done);
      pthread_mutex_unlock(&pool->mutex);
    }
  }
}

static void *work(void *argument) {
  tva_pool *pool = argument;
  while (!pool->closing) {
    take_tasks(pool);
    for (int i = 0; i < LOOKS && !any_left(pool) && !pool->closing; ++i) PAUSE();
    if (any_left(pool)) continue;
    pthread_mutex_lock(&pool->mutex);
    ++pool->sleeping; /* before the last look: a launch that this look misses sees it */
    while (!any_left(pool) && !pool->closing) pthread_cond_wait(&pool->work, &pool->mutex);
    --pool->sleeping;
    pthread_mutex_unlock(&pool->mutex);
  }
  return 0;
}

static void wake(tva_pool *pool) {
  if (!pool->sleeping) return;
  pthread_mutex_lock(&pool->mutex);
  pthread_cond_broadcast(&pool->work);
  pthread_mutex_unlock(&pool->mutex);
}

int tva_pool_launch(void *user, int tasks, void (*task)(void *, int), void *data) {
  tva_pool *pool = user;
  if (!task) return -1;
  if (!pool || !pool->threads || tasks < 1 || pthread_mutex_trylock(&pool->busy) != 0) {
    for (int i = 0; i < tasks; ++i) task(data, i);
    return 0;
  }
  pool->task = task;
  pool->data = data;
  pool->unfinished = tasks;
  pool->ticket = ((pool->ticket >> 32) + 1) << 32 | (uint32_t)tasks;
  wake(pool);
  take_tasks(pool);
  for (int i = 0; i < LOOKS && pool->unfinished; ++i) PAUSE();
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
  tva_pool *pool = calloc(1, sizeof *pool + (size_t)threads * sizeof(pthread_t));
  if (!pool) return tvi_fail(TVA_NO_MEMORY, "pool: no memory for %d threads", threads);
  pthread_mutex_init(&pool->busy, NULL);
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->work, NULL);
  pthread_cond_init(&pool->done, NULL);
  while (pool->threads < threads - 1) {
    if (pthread_create(&pool->workers[pool->threads], NULL, work, pool) != 0) {
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
  for (int i = 0; i < pool->threads; ++i) pthread_join(pool->workers[i], NULL);
  pthread_mutex_destroy(&pool->busy);
  pthread_mutex_destroy(&pool->mutex);
  pthread_cond_destroy(&pool->work);
  pthread_cond_destroy(&pool->done);
  free(pool);
}
#endif
