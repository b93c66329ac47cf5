// Several threads of one process share one NIC. Each has its own context, pair of queue pairs and traffic.
#include "check.h"
#include <pthread.h>

#define THREADS 4
#define ROUNDS 200

static void *work(void *number)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct end a = make_end(context, IBV_QPT_RC, NULL, pd), b = make_end(context, IBV_QPT_RC, NULL, pd);
	connect_end(&a, b.qp->qp_num);
	connect_end(&b, a.qp->qp_num);
	for (uint64_t round = 0; round < ROUNDS; round++) {
		struct ibv_sge into = { (uintptr_t)b.buf, END_BYTES, b.mr->lkey };
		struct ibv_recv_wr recv = { .wr_id = round, .sg_list = &into, .num_sge = 1 }, *bad_recv;
		CHECK(ibv_post_recv(b.qp, &recv, &bad_recv) == 0);
		uint64_t words[2] = { round, (uintptr_t)number };
		struct ibv_sge from[2] = { { (uintptr_t)&words[0], 8, 0 }, { (uintptr_t)&words[1], 8, 0 } };
		// A list of two: a WRITE, and a SEND that gathers two pieces of inline data.
		struct ibv_sge word = { (uintptr_t)a.buf, 8, a.mr->lkey };
		struct ibv_send_wr message = { .wr_id = round,
					       .sg_list = from,
					       .num_sge = 2,
					       .opcode = IBV_WR_SEND_WITH_IMM,
					       .imm_data = 0x01020304,
					       .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };
		struct ibv_send_wr write = { .next = &message,
					     .sg_list = &word,
					     .num_sge = 1,
					     .opcode = IBV_WR_RDMA_WRITE,
					     .wr.rdma = { (uintptr_t)b.buf + 64, b.mr->rkey } };
		struct ibv_send_wr *bad;
		memcpy(a.buf, &round, 8);
		CHECK(ibv_post_send(a.qp, &write, &bad) == 0);
		struct ibv_wc wc = next_wc(b.cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 16);
		CHECK(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 0x01020304);
		CHECK(memcmp(b.buf, words, 16) == 0 && memcmp(b.buf + 64, &round, 8) == 0);
		wc = next_wc(a.cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == round && wc.opcode == IBV_WC_SEND);
	}
	free_end(&a);
	free_end(&b);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	return 0;
}
