// Helpers of the C programs: a check that prints its line, and an open device.
#ifndef FERROCE_CHECK_H
#define FERROCE_CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(cond)                                                                                  \
	do {                                                                                         \
		if (!(cond)) {                                                                       \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #cond, errno); \
			exit(1);                                                                     \
		}                                                                                    \
	} while (0)

// A call that must return NULL and set this errno.
#define CHECK_NULL(call, number)            \
	do {                                \
		errno = 0;                  \
		CHECK((call) == NULL);      \
		CHECK(errno == (number));   \
	} while (0)

static inline struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(context);
	return context;
}

static inline void make_nonblocking(int fd)
{
	CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

// A queue pair with its own completion queue, region and buffer.
struct end {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *buf;
};

#define END_BYTES 4096
#define END_DEPTH 8

static inline struct end make_end(struct ibv_context *context, enum ibv_qp_type type, struct ibv_srq *srq,
				  struct ibv_pd *pd)
{
	struct end end = { .pd = pd ? pd : ibv_alloc_pd(context) };
	CHECK(end.pd);
	end.cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	CHECK(end.cq);
	end.buf = aligned_alloc(4096, END_BYTES);
	memset(end.buf, 0, END_BYTES);
	end.mr = ibv_reg_mr(end.pd, end.buf, END_BYTES,
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				    IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(end.mr);
	struct ibv_qp_init_attr init = {
		.send_cq = end.cq,
		.recv_cq = end.cq,
		.srq = srq,
		.cap = { END_DEPTH, END_DEPTH, 4, 4, 64 },
		.qp_type = type,
	};
	end.qp = ibv_create_qp(end.pd, &init);
	CHECK(end.qp);
	return end;
}

static inline void free_end(struct end *end)
{
	CHECK(ibv_destroy_qp(end->qp) == 0);
	CHECK(ibv_dereg_mr(end->mr) == 0);
	CHECK(ibv_destroy_cq(end->cq) == 0);
	free(end->buf);
}

static inline void connect_end(struct end *end, uint32_t peer)
{
	union ibv_gid gid;
	CHECK(ibv_query_gid(end->qp->context, 1, 0, &gid) == 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						       IBV_ACCESS_REMOTE_ATOMIC };
	CHECK(ibv_modify_qp(end->qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				     .path_mtu = IBV_MTU_1024,
				     .dest_qp_num = peer,
				     .rq_psn = 7,
				     .max_dest_rd_atomic = 4,
				     .min_rnr_timer = 12,
				     .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } } };
	CHECK(ibv_modify_qp(end->qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				     .sq_psn = 7,
				     .timeout = 14,
				     .retry_cnt = 7,
				     .rnr_retry = 7,
				     .max_rd_atomic = 4 };
	CHECK(ibv_modify_qp(end->qp, &attr,
			    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	CHECK(end->qp->state == IBV_QPS_RTS);
}

// Waits for the next completion. Only the test as a whole has a time limit.
static inline struct ibv_wc next_wc(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;
	do
		n = ibv_poll_cq(cq, 1, &wc);
	while (n == 0);
	CHECK(n == 1);
	return wc;
}

#endif
