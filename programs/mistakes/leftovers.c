/* What a program leaves behind: the report at the end of `ferroce run --explain` tells. */
#include "mistake.h"
#include <signal.h>
#include <sys/wait.h>

/* Nothing is destroyed before the program ends.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * says: never destroyed: completion queues: 2, memory regions and windows: 2, protection domains: 2, queue pairs: 2
 */
MISTAKE(nothing_destroyed)
{
	connect_pair();
	post_plain(IBV_WR_RDMA_WRITE, 8);
	show_completion(&client);
}

/* A region is never deregistered, so its protection domain stays, too.
 *
 * shows: ibv_destroy_qp: success
 * shows: ibv_destroy_cq: success
 * says: never destroyed: memory regions and windows: 1, protection domains: 1
 */
MISTAKE(region_never_deregistered)
{
	create(&client);
	REFUSED(ibv_destroy_qp(client.qp));
	REFUSED(ibv_destroy_cq(client.cq));
}

/* Three messages arrive, and nobody polls for their receives.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: client: IBV_WC_SUCCESS (0)
 * says: never polled: completions: 3
 */
MISTAKE(receives_never_polled)
{
	connect_pair();
	for (int i = 0; i < 3; i++)
		post_receive(64);
	for (int i = 0; i < 3; i++) {
		post_plain(IBV_WR_SEND, 8);
		show_completion(&client);
	}
}

/* Memory is freed while it is registered, and the peer writes to it. A NIC has pinned the pages and writes where nobody reads.
 *
 * shows: child: SIGSEGV
 * says: fatal: address # belongs to the memory region of 1048576 bytes at # (lkey #), which is registered, but the program has freed or
 *       unmapped it. A NIC has pinned such memory and accesses pages that no process maps; here the access raises SIGSEGV. Deregister
 *       memory before you free it
 */
MISTAKE(freed_while_registered)
{
	pid_t child = fork();
	if (child == 0) {
		size_t size = 1 << 20;
		connect_pair();
		/* Far from where the system maps memory of its own choice, so that nothing takes its place. */
		char *buffer = mmap((void *)0x200000000000, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct ibv_mr *mr = ibv_reg_mr(server.pd, buffer, size, RIGHTS);
		MUST(mr && munmap(buffer, size) == 0);
		struct request request;
		fill(&request, IBV_WR_RDMA_WRITE, 8);
		request.wr.wr.rdma.remote_addr = (uintptr_t)buffer;
		request.wr.wr.rdma.rkey = mr->rkey;
		post(&request);
		show_completion(&client);
		_exit(0);
	}
	int status;
	MUST(waitpid(child, &status, 0) == child);
	printf("child: SIG%s\n", WIFSIGNALED(status) ? sigabbrev_np(WTERMSIG(status)) : " none");
}
