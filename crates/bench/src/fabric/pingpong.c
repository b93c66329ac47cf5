/* The bare ping-pong: the lower bound for two cores without a protocol.
 *
 * Two processes spin, each on the core that the measured programs use. They share a word for each direction or, with the argument `tcp`, a TCP
 * connection. Prints half a round trip in nanoseconds: the median over batches, because perftest's typical latency is a median too. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 400, ROUND_TRIPS = 500, TCP_ROUND_TRIPS = 100 };

/* Two cache lines apart, because processors fetch lines in pairs. */
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

/* One side of a ping-pong: sends a number, or waits for it. */
struct side {
	struct words *words;
	int socket;
};

static void put(struct side *side, _Atomic uint64_t *word, uint64_t n)
{
	if (side->socket < 0)
		atomic_store_explicit(word, n, memory_order_release);
	else if (send(side->socket, &n, sizeof n, MSG_NOSIGNAL) != sizeof n)
		_exit(1);
}

static void get(struct side *side, _Atomic uint64_t *word, uint64_t n)
{
	uint64_t got = 0;
	size_t have = 0;

	if (side->socket < 0)
		return await(word, n);
	while (have < sizeof got) {
		ssize_t count = recv(side->socket, (char *)&got + have, sizeof got - have, MSG_DONTWAIT);

		if (count > 0)
			have += count;
		else if (count == 0 || (errno != EAGAIN && errno != EINTR))
			_exit(1);
		else if (lonely)
			sched_yield();
	}
	if (got != n)
		_exit(1);
}

/* Two connected sockets with TCP_NODELAY. */
static int connect_tcp(int sockets[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;

	sockets[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (void *)&address, len) || listen(listener, 1) || getsockname(listener, (void *)&address, &len) ||
	    connect(sockets[0], (void *)&address, len) || (sockets[1] = accept(listener, NULL, NULL)) < 0)
		return -1;
	for (int i = 0; i < 2; i++)
		if (setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes))
			return -1;
	return 0;
}

int main(int argc, char **argv)
{
	static double half_ns[BATCHES];
	struct words *words = mmap(NULL, sizeof *words, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int sockets[2] = { -1, -1 };
	int round_trips = ROUND_TRIPS;
	pid_t child;
	uint64_t n = 0;

	if (words == MAP_FAILED)
		return perror("mmap"), 1;
	if (argc > 1 && !strcmp(argv[1], "tcp")) {
		round_trips = TCP_ROUND_TRIPS;
		if (connect_tcp(sockets))
			return perror("connecting"), 1;
	}
	lonely = sysconf(_SC_NPROCESSORS_ONLN) < 2;
	child = fork();
	if (child < 0)
		return perror("fork"), 1;
	if (child == 0) {
		struct side side = { words, sockets[1] };

		close(sockets[0]);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		keep_to(1);
		for (n = 1; n <= (uint64_t)BATCHES * round_trips; n++) {
			get(&side, &words->there, n);
			put(&side, &words->back, n);
		}
		_exit(0);
	}
	struct side side = { words, sockets[0] };

	close(sockets[1]);
	keep_to(0);
	for (int batch = 0; batch < BATCHES; batch++) {
		double from = now_ns();

		for (int i = 0; i < round_trips; i++) {
			put(&side, &words->there, ++n);
			get(&side, &words->back, n);
		}
		half_ns[batch] = (now_ns() - from) / round_trips / 2;
	}
	waitpid(child, NULL, 0);
	qsort(half_ns, BATCHES, sizeof half_ns[0], ascending);
	printf("%.1f\n", half_ns[BATCHES / 2]);
	return 0;
}
