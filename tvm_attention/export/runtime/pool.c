/* A pool of POSIX threads. Workers look for new tasks for a moment, then sleep. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "kernels.h"

#define MOST_THREADS 1024
#define LOOKS 2000 /* before a worker sleeps: some ten microseconds */

struct tva_pool {
  pthread_mutex_t busy;  /* held by the one launch that has the pool */
  pthread_mutex_t mutex; /* of all below */
  pthread_cond_t work, idle;
  void (*task)(void *, int);
  void *data;
  int tasks, next, unfinished, closing;
  atomic_uint launches; /* read without the mutex by workers that are still looking */
  int threads;          /* that were started; the caller of a launch is one more */
  pthread_t workers[];
};

/* Takes tasks until none is left; the mutex is held before and after. */
static void take_tasks(tva_pool *pool) {
  while (pool->next < pool->tasks) {
    int index = pool->next++;
    void (*task)(void *, int) = pool->task;
    void *data = pool->data;
    pthread_mutex_unlock(&pool->mutex);
    task(data, index);
    pthread_mutex_lock(&pool->mutex);
    if (--pool->unfinished == 0) pthread_cond_signal(&pool->idle);
  }
}

static void look_for_work(tva_pool *pool, unsigned seen) {
  for (int i = 0; i < LOOKS && atomic_load(&pool->launches) == seen; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
  }
}

static void *work(void *argument) {
  tva_pool *pool = argument;
  pthread_mutex_lock(&pool->mutex);
  while (!pool->closing) {
    take_tasks(pool);
    unsigned seen = atomic_load(&pool->launches);
    pthread_mutex_unlock(&pool->mutex);
    look_for_work(pool, seen);
    pthread_mutex_lock(&pool->mutex);
    while (pool->next >= pool->tasks && !pool->closing) pthread_cond_wait(&pool->work, &pool->mutex);
  }
  pthread_mutex_unlock(&pool->mutex);
  return 0;
}

int tva_pool_launch(void *user, int tasks, void (*task)(void *, int), void *data) {
  tva_pool *pool = user;
  if (!task) return -1;
  if (!pool || !pool->threads || pthread_mutex_trylock(&pool->busy) != 0) {
    for (int i = 0; i < tasks; ++i) task(data, i);
    return 0;
  }
  pthread_mutex_lock(&pool->mutex);
  pool->task = task;
  pool->data = data;
  pool->next = 0;
  pool->tasks = pool->unfinished = tasks;
  atomic_fetch_add(&pool->launches, 1);
  pthread_cond_broadcast(&pool->work);
  take_tasks(pool);
  while (pool->unfinished > 0) pthread_cond_wait(&pool->idle, &pool->mutex);
  pthread_mutex_unlock(&pool->mutex);
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
  pthread_cond_init(&pool->idle, NULL);
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
  pthread_mutex_lock(&pool->mutex);
  pool->closing = 1;
  atomic_fetch_add(&pool->launches, 1);
  pthread_cond_broadcast(&pool->work);
  pthread_mutex_unlock(&pool->mutex);
  for (int i = 0; i < pool->threads; ++i) pthread_join(pool->workers[i], NULL);
  pthread_mutex_destroy(&pool->busy);
  pthread_mutex_destroy(&pool->mutex);
  pthread_cond_destroy(&pool->work);
  pthread_cond_destroy(&pool->idle);
  free(pool);
}
