/* A program that reads a signal from a descriptor: the library's threads must not receive it. */
#include "check.h"
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/signalfd.h>

/* Reads the line of a thread's status that begins with this name. */
static void read_status(const char *task, const char *name, char *value)
{
	char path[300], line[256];
	snprintf(path, sizeof(path), "/proc/self/task/%s/status", task);
	FILE *status = fopen(path, "r");
	CHECK(status);
	while (fgets(line, sizeof(line), status))
		if (strncmp(line, name, strlen(name)) == 0)
			strcpy(value, line + strlen(name));
	fclose(status);
}

/* Whether every thread of the library blocks the signal. The C library blocks all signals until a thread has its own mask; the thread
 * sets its name afterwards. */
static int library_blocks(int signal)
{
	char own[256] = "", name[256] = "", mask[256] = "", self[16];
	snprintf(self, sizeof(self), "%d", getpid());
	read_status(self, "Name:", own);
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	int blocks = 1, threads = 0;
	for (struct dirent *task; (task = readdir(tasks));) {
		if (task->d_name[0] == '.' || strcmp(task->d_name, self) == 0)
			continue;
		for (read_status(task->d_name, "Name:", name); strcmp(name, own) == 0; sched_yield())
			read_status(task->d_name, "Name:", name);
		read_status(task->d_name, "SigBlk:", mask);
		blocks &= strtoull(mask, NULL, 16) >> (signal - 1) & 1;
		threads++;
	}
	closedir(tasks);
	CHECK(threads > 0);
	return blocks;
}

int main(void)
{
	struct ibv_context *context = open_device();
	CHECK(library_blocks(SIGUSR2));
	sigset_t taken;
	sigemptyset(&taken);
	sigaddset(&taken, SIGUSR2);
	CHECK(sigprocmask(SIG_BLOCK, &taken, NULL) == 0);
	int fd = signalfd(-1, &taken, 0);
	CHECK(fd >= 0);
	for (int i = 0; i < 100; i++) {
		CHECK(kill(getpid(), SIGUSR2) == 0);
		struct signalfd_siginfo info;
		CHECK(read(fd, &info, sizeof(info)) == sizeof(info));
		CHECK(info.ssi_signo == SIGUSR2);
	}
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
