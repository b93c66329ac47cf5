/*
 * The steps that chapters 2, 3 and 5 explain, as functions. Both ends of a connection are in one process, so that each
 * program of the book runs alone.
 */
#ifndef RDMA_H
#define RDMA_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* For verbs that return 0 or an errno, and for verbs that return an object or NULL. A failure ends the program. */
#define CHECK(call) check(#call, (call))
#define MAKE(call) make(#call, (call))

static inline void check(const char *call, int error)
{
	if (error) {
		printf("%.*s: %s\n", (int)strcspn(call, "("), call, strerror(error));
		exit(1);
	}
}

static inline void *make(const char *call, void *object)
{
	check(call, object ? 0 : errno);
	return object;
}

enum { SIZE = 4096, QKEY = 0x11111111 };
enum { REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* One end of a connection, with SIZE registered bytes. The numbers take effect when it connects. */
struct end {
	const char *name;
	enum ibv_qp_type type;
	int access, timeout, retry_cnt, rnr_retry;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *buffer;
};

static inline struct ibv_context *open_device(void)
{
	static struct ibv_context *context;
	if (!context) {
		/* A program that hangs has shown its lines before, also in a pipe. */
		setvbuf(stdout, NULL, _IOLBF, 0);
		struct ibv_device **list = MAKE(ibv_get_device_list(NULL));
		if (!list[0]) {
			puts("no RDMA device; start the program with: ferroce run -- ./main");
			exit(1);
		}
		context = MAKE(ibv_open_device(list[0]));
		ibv_free_device_list(list);
	}
	return context;
}

/* Chapter 2: protection domain, completion queue, memory region, queue pair. The completion queue may exist already. */
static inline struct end create_end_with(const char *name, enum ibv_qp_type type, struct ibv_cq *cq)
{
	struct end end = { .name = name, .type = type, .access = REMOTE | IBV_ACCESS_LOCAL_WRITE,
			   .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
	end.pd = MAKE(ibv_alloc_pd(open_device()));
	end.cq = cq ? cq : MAKE(ibv_create_cq(open_device(), 64, NULL, NULL, 0));
	end.buffer = MAKE(aligned_alloc(SIZE, SIZE));
	memset(end.buffer, 0, SIZE);
	end.mr = MAKE(ibv_reg_mr(end.pd, end.buffer, SIZE, end.access));
	struct ibv_qp_init_attr attr = { .send_cq = end.cq, .recv_cq = end.cq, .qp_type = type,
					 .cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1,
						  .max_recv_sge = 1, .max_inline_data = 64 } };
	end.qp = MAKE(ibv_create_qp(end.pd, &attr));
	return end;
}

static inline struct end create_end(const char *name, enum ibv_qp_type type)
{
	return create_end_with(name, type, NULL);
}

/* Chapter 5: RESET, INIT, RTR, RTS. The peer is the queue pair with this number, on this host. */
static inline void connect_end(struct end *end, uint32_t peer)
{
	int connected = end->type != IBV_QPT_UD, reliable = connected && end->type != IBV_QPT_UC;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .qp_access_flags = end->access };
	CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						    (connected ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY)));

	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 1000,
				     .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
				     .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } } };
	CHECK(ibv_query_gid(open_device(), 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(ibv_modify_qp(end->qp, &attr,
			    IBV_QP_STATE |
				    (connected ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN : 0) |
				    (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));

	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 1000, .timeout = end->timeout,
				     .retry_cnt = end->retry_cnt, .rnr_retry = end->rnr_retry, .max_rd_atomic = 4 };
	CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN |
						    (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
									IBV_QP_MAX_QP_RD_ATOMIC : 0)));
}

static inline void connect_ends(struct end *one, struct end *other)
{
	connect_end(one, other->qp->qp_num);
	connect_end(other, one->qp->qp_num);
}

/* Chapter 3: a receive into the first bytes of the buffer. */
static inline void post_receive(struct end *end, uint64_t wr_id, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)end->buffer, length, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(end->qp, &wr, &bad));
}

/* Chapter 3: polls until there is a completion. */
static inline struct ibv_wc wait_completion(struct end *end)
{
	struct ibv_wc wc;
	int count;
	while ((count = ibv_poll_cq(end->cq, 1, &wc)) == 0)
		;
	check("ibv_poll_cq", count < 0 ? EIO : 0);
	return wc;
}

/* Prints the outcome of a request; a failure ends the program. */
static inline void report(const struct end *end, const char *what, const struct ibv_wc *wc)
{
	printf("%s: %s: %s\n", end->name, what, ibv_wc_status_str(wc->status));
	if (wc->status != IBV_WC_SUCCESS)
		exit(1);
}

#endif
