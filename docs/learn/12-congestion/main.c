/* 1 MiB in sixteen WRITEs that are all posted at once. How fast they leave is up to the congestion window. */
#include "rdma.h"
#include <time.h>

enum { WRITES = 16, LENGTH = 65536 };

static double now_ms(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

int main(void)
{
	struct end client = create_end("client", IBV_QPT_RC), server = create_end("server", IBV_QPT_RC);
	connect_ends(&client, &server);
	char *from = MAKE(aligned_alloc(SIZE, LENGTH)), *to = MAKE(aligned_alloc(SIZE, LENGTH));
	memset(from, 7, LENGTH);
	struct ibv_mr *source = MAKE(ibv_reg_mr(client.pd, from, LENGTH, 0));
	struct ibv_mr *target = MAKE(ibv_reg_mr(server.pd, to, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));

	double start = now_ms();
	for (int i = 1; i <= WRITES; i++) {
		struct ibv_sge bytes = { .addr = (uintptr_t)from, .length = LENGTH, .lkey = source->lkey };
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &bytes, .num_sge = 1,
					  .send_flags = i == WRITES ? IBV_SEND_SIGNALED : 0,
					  .wr.rdma = { .remote_addr = (uintptr_t)to, .rkey = target->rkey } }, *bad;
		CHECK(ibv_post_send(client.qp, &wr, &bad));
	}
	struct ibv_wc wc = wait_completion(&client);
	double elapsed = now_ms() - start;
	report(&client, "1 MiB", &wc);
	printf("%.1f ms, %.0f Mbit/s\n", elapsed, WRITES * LENGTH * 8 / elapsed / 1e3);
	return 0;
}
