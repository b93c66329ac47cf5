/* The bare shared-memory ping-pong: what two cores can do when nothing stands between them.
 *
 * Two processes, a word for each direction, both spinning; each side keeps to the core that the measured programs use. Prints half a
 * round trip in nanoseconds: the median over batches, since perftest's typical latency is a median too. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 400, ROUND_TRIPS = 500 };

/* Two lines apart: processors fetch them in pairs. */
struct words {
	_Alignas(128) _Atomic uint64_t there;
	_Alignas(128) _Atomic uint64_t back;
};

static int lonely;

static void keep_to(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (!lonely)
		(void)sched_setaffinity(0, sizeof set, &set);
}

static void await(_Atomic uint64_t *word, uint64_t value)
{
	while (atomic_load_explicit(word, memory_order_acquire) != value)
		if (lonely)
			sched_yield();
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(void)
{
	static double half_ns[BATCHES];
	struct words *words = mmap(NULL, sizeof *words, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child;
	uint64_t n = 0;

	if (words == MAP_FAILED)
		return perror("mmap"), 1;
	lonely = sysconf(_SC_NPROCESSORS_ONLN) < 2;
	child = fork();
	if (child < 0)
		return perror("fork"), 1;
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		keep_to(1);
		for (n = 1; n <= (uint64_t)BATCHES * ROUND_TRIPS; n++) {
			await(&words->there, n);
			atomic_store_explicit(&words->back, n, memory_order_release);
		}
		_exit(0);
	}
	keep_to(0);
	for (int batch = 0; batch < BATCHES; batch++) {
		double from = now_ns();

		for (int i = 0; i < ROUND_TRIPS; i++) {
			atomic_store_explicit(&words->there, ++n, memory_order_release);
			await(&words->back, n);
		}
		half_ns[batch] = (now_ns() - from) / ROUND_TRIPS / 2;
	}
	waitpid(child, NULL, 0);
	qsort(half_ns, BATCHES, sizeof half_ns[0], ascending);
	printf("%.1f\n", half_ns[BATCHES / 2]);
	return 0;
}
