/* A program that intercepts libc's memory functions, as UCX and Open MPI do. The library replaces the pages of registered memory. Its calls
 * must not reach the program's functions, which may be wrong: UCX before 1.14 drops the last argument of `mremap`, so pages would move to
 * an arbitrary address. */
#define _GNU_SOURCE
#include "check.h"
#include <sys/mman.h>
#include <sys/syscall.h>

static volatile int seen;

void *mmap(void *at, size_t len, int rights, int how, int fd, off_t offset)
{
	seen++;
	return (void *)syscall(SYS_mmap, at, len, rights, how, fd, offset);
}

int munmap(void *at, size_t len)
{
	seen++;
	return syscall(SYS_munmap, at, len);
}

int mprotect(void *at, size_t len, int rights)
{
	seen++;
	return syscall(SYS_mprotect, at, len, rights);
}

void *mremap(void *at, size_t before, size_t after, int how, ...)
{
	(void)at, (void)before, (void)after, (void)how;
	seen++;
	errno = EINVAL;
	return MAP_FAILED;
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);
	size_t len = 64 * 4096;
	unsigned char *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(bytes != MAP_FAILED && seen > 0);
	for (size_t i = 0; i < len; i++)
		bytes[i] = i * 7 + i / 4096;
	for (int round = 0; round < 20; round++) {
		seen = 0;
		struct ibv_mr *mr = ibv_reg_mr(pd, bytes, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		CHECK(mr && seen == 0);
		CHECK(ibv_dereg_mr(mr) == 0 && seen == 0);
		for (size_t i = 0; i < len; i++)
			CHECK(bytes[i] == (unsigned char)(i * 7 + i / 4096));
	}
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
