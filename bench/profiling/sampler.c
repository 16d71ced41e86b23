/* Where the program is, every so often of the processor time that it uses: SIGPROF's program counters. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>

enum { MOST = 1 << 20 };
static uint64_t places[MOST];
static int64_t count;

static void sampled(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)info;
  int64_t own = __sync_fetch_and_add(&count, 1);
  const mcontext_t *machine = &((ucontext_t *)context)->uc_mcontext;
  if (own >= MOST) return;
#if defined(__x86_64__)
  places[own] = (uint64_t)machine->gregs[REG_RIP];
#elif defined(__aarch64__)
  places[own] = machine->pc;
#else
#error "expected x86-64 or aarch64"
#endif
}

static void timer(int microseconds) {
  struct itimerval every = {{0, microseconds}, {0, microseconds}};
  setitimer(ITIMER_PROF, &every, 0);
}

void sampler_start(int microseconds) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = sampled;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGPROF, &action, 0);
  count = 0;
  timer(microseconds);
}

/* How many there are; they stay until the next start. */
int64_t sampler_stop(const uint64_t **found) {
  timer(0);
  *found = places;
  return count < MOST ? count : MOST;
}
