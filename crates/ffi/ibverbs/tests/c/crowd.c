// Several threads share one context, one protection domain, one queue pair and one completion queue. Verbs are thread-safe, so
// the threads take no locks.
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

#define THREADS 4
#define ROUNDS 60

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct end from, to;
static atomic_int posted, completed;

static void take_completions(void)
{
	struct ibv_wc wc[4];
	int n = ibv_poll_cq(from.cq, 4, wc);
	CHECK(n >= 0);
	for (int i = 0; i < n; i++)
		CHECK(wc[i].status == IBV_WC_SUCCESS);
	completed += n;
}

// A WRITE of a word that belongs to this thread, at both ends.
static void write_word(long number)
{
	struct ibv_sge word = { (uintptr_t)from.buf + 64 * number, 8, from.mr->lkey };
	struct ibv_send_wr write = { .wr_id = number,
				     .sg_list = &word,
				     .num_sge = 1,
				     .opcode = IBV_WR_RDMA_WRITE,
				     .send_flags = IBV_SEND_SIGNALED,
				     .wr.rdma = { (uintptr_t)to.buf + 64 * number, to.mr->rkey } };
	struct ibv_send_wr *bad;
	int refused;
	while ((refused = ibv_post_send(from.qp, &write, &bad)) != 0) {
		CHECK(refused == ENOMEM);
		take_completions();
	}
	posted++;
}

// Creates and destroys objects during the traffic.
static void make_and_drop(void)
{
	static _Thread_local char memory[256];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(mr && channel);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, channel, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(cq && qp);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0 && ibv_dereg_mr(mr) == 0);
}

static void query(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_port_attr port;
	union ibv_gid gid;
	CHECK(ibv_query_qp(from.qp, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(ibv_query_port(context, 1, &port) == 0);
	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
	CHECK(ibv_req_notify_cq(from.cq, 0) == 0);
}

static void *work(void *number)
{
	for (int round = 0; round < ROUNDS; round++) {
		write_word((long)number);
		take_completions();
		if (round % 6 == (long)number)
			make_and_drop();
		if (round % 4 == (long)number)
			query();
	}
	while (completed < THREADS * ROUNDS)
		take_completions();
	return NULL;
}

int main(void)
{
	context = open_device();
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	from = make_end(context, IBV_QPT_RC, NULL, pd);
	to = make_end(context, IBV_QPT_RC, NULL, pd);
	connect_end(&from, to.qp->qp_num);
	connect_end(&to, from.qp->qp_num);
	pthread_t threads[THREADS];
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(posted == THREADS * ROUNDS && completed == posted);
	free_end(&from);
	free_end(&to);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
