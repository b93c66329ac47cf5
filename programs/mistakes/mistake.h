/*
 * What the mistakes share: two queue pairs, the requests that they post, and the lines that they print.
 *
 * A mistake is a function behind MISTAKE(name). The comment above it is its entry in docs/learn/mistakes.md:
 *
 *   first line(s)  the mistake
 *   shows:         what the program prints: what a hardware NIC shows, too
 *   says:          a sentence of `ferroce run --explain`; # stands for a number or an address
 *   options:       further options of `ferroce run`
 *
 * `udp` and `local` before these words: only over UDP, only through shared memory.
 * A mistake whose last line is `hangs` waits until its standard input ends.
 */
#ifndef MISTAKE_H
#define MISTAKE_H

#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void list_mistake(const char *name, void (*make)(void));

#define MISTAKE(name)                                                                   \
	static void name(void);                                                         \
	__attribute__((constructor)) static void list_##name(void)                      \
	{                                                                               \
		list_mistake(#name, name);                                              \
	}                                                                               \
	static void name(void)

/* For steps that must succeed before the mistake can be made. */
#define MUST(condition)                                                                 \
	do {                                                                            \
		if (!(condition)) {                                                     \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
			exit(2);                                                        \
		}                                                                       \
	} while (0)

/* Prints the verb and its errno. The first macro is for verbs that return the errno, the second for those that return a pointer. */
#define REFUSED(call) show_errno(#call, (call))
#define NO_OBJECT(call) show_errno(#call, (errno = 0, (call)) ? 0 : errno)

static inline void show_errno(const char *call, int number)
{
	printf("%.*s: %s\n", (int)strcspn(call, "("), call, number ? strerrorname_np(number) : "success");
}

#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define QKEY 0x11111111
#define BYTES 4096

/* One end, and the values that it is created and connected with. A mistake changes them first. */
struct end {
	const char *name;
	enum ibv_qp_type type;
	struct ibv_qp_cap cap;
	int cq_depth, region_access, qp_access, max_rd_atomic, max_dest_rd_atomic, timeout, retry_cnt, rnr_retry;
	uint32_t qkey, dest_qpn, rq_psn, sq_psn;
	enum ibv_mtu mtu;
	union ibv_gid dgid;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *buffer;
};

#define END(of)                                                                         \
	{                                                                               \
		.name = of, .type = IBV_QPT_RC, .cap = { 16, 16, 2, 2, 64 }, .cq_depth = 64, \
		.region_access = RIGHTS, .qp_access = RIGHTS, .max_rd_atomic = 4, .max_dest_rd_atomic = 4, \
		.timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .qkey = QKEY, .rq_psn = 100, .sq_psn = 100, \
		.mtu = IBV_MTU_1024                                                     \
	}

static struct ibv_context *context;
static struct end client = END("client"), server = END("server");

static inline void open_device(void)
{
	if (context)
		return;
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && list[0]);
	MUST((context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
}

/* Creates the objects of an end, except those that the mistake made. */
static inline void create(struct end *end)
{
	open_device();
	if (!end->pd)
		MUST((end->pd = ibv_alloc_pd(context)));
	if (!end->cq)
		MUST((end->cq = ibv_create_cq(context, end->cq_depth, NULL, end->channel, 0)));
	MUST((end->buffer = aligned_alloc(4096, BYTES)));
	memset(end->buffer, 0, BYTES);
	MUST((end->mr = ibv_reg_mr(end->pd, end->buffer, BYTES, end->region_access)));
	struct ibv_qp_init_attr attr = { .send_cq = end->cq, .recv_cq = end->cq, .srq = end->srq, .cap = end->cap,
					 .qp_type = end->type };
	MUST((end->qp = ibv_create_qp(end->pd, &attr)));
	MUST(ibv_query_gid(context, 1, 0, &end->dgid) == 0);
}

#define INIT_MASK (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RTR_MASK                                                                        \
	(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | \
	 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RTS_MASK                                                                        \
	(IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)

static inline struct ibv_qp_attr init_attr(const struct end *end)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = end->qp_access,
				     .qkey = end->qkey };
}

static inline struct ibv_qp_attr rtr_attr(const struct end *end)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = end->mtu, .dest_qp_num = end->dest_qpn,
				     .rq_psn = end->rq_psn, .max_dest_rd_atomic = end->max_dest_rd_atomic,
				     .min_rnr_timer = 12,
				     .ah_attr = { .is_global = 1, .port_num = 1,
						  .grh = { .dgid = end->dgid, .hop_limit = 64 } } };
}

static inline struct ibv_qp_attr rts_attr(const struct end *end)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = end->sq_psn, .timeout = end->timeout,
				     .retry_cnt = end->retry_cnt, .rnr_retry = end->rnr_retry,
				     .max_rd_atomic = end->max_rd_atomic };
}

/* Brings a queue pair to INIT, RTR or RTS. */
static inline void bring_to(struct end *end, enum ibv_qp_state state)
{
	int is_ud = end->type == IBV_QPT_UD;
	struct ibv_qp_attr init = init_attr(end), rtr = rtr_attr(end), rts = rts_attr(end);
	int uc = end->type == IBV_QPT_UC ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0;
	int rts_uc = ~(IBV_QP_STATE | IBV_QP_SQ_PSN);
	MUST(ibv_modify_qp(end->qp, &init, is_ud ? INIT_MASK ^ IBV_QP_ACCESS_FLAGS ^ IBV_QP_QKEY : INIT_MASK) == 0);
	if (state >= IBV_QPS_RTR)
		MUST(ibv_modify_qp(end->qp, &rtr, is_ud ? IBV_QP_STATE : RTR_MASK & ~uc) == 0);
	if (state >= IBV_QPS_RTS)
		MUST(ibv_modify_qp(end->qp, &rts, end->type == IBV_QPT_RC ? RTS_MASK : RTS_MASK & ~rts_uc) == 0);
}

/* Creates both ends; each connects to the other, unless the mistake named another number. */
static inline void create_pair(void)
{
	create(&client);
	create(&server);
	client.dest_qpn = client.dest_qpn ? client.dest_qpn : server.qp->qp_num;
	server.dest_qpn = server.dest_qpn ? server.dest_qpn : client.qp->qp_num;
}

static inline void connect_pair(void)
{
	create_pair();
	bring_to(&server, IBV_QPS_RTS);
	bring_to(&client, IBV_QPS_RTS);
}

/* The client gives up after some milliseconds instead of half a minute. */
static inline void retry_shortly(void)
{
	client.timeout = 10;
	client.retry_cnt = 2;
}

/* A request of the client about the first bytes of both buffers. The mistake may change it before it is posted. */
struct request {
	struct ibv_sge sge;
	struct ibv_send_wr wr;
};

static inline void fill(struct request *request, enum ibv_wr_opcode opcode, uint32_t length)
{
	struct request plain = {
		.sge = { (uintptr_t)client.buffer, length, client.mr->lkey },
		.wr = { .wr_id = 1, .opcode = opcode, .sg_list = &request->sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED },
	};
	*request = plain;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		request->wr.wr.atomic.remote_addr = (uintptr_t)server.buffer;
		request->wr.wr.atomic.rkey = server.mr->rkey;
	} else if (client.type == IBV_QPT_UD) {
		struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = client.dgid, .hop_limit = 64 } };
		MUST((request->wr.wr.ud.ah = ibv_create_ah(client.pd, &attr)));
		request->wr.wr.ud.remote_qpn = client.dest_qpn;
		request->wr.wr.ud.remote_qkey = client.qkey;
	} else {
		request->wr.wr.rdma.remote_addr = (uintptr_t)server.buffer;
		request->wr.wr.rdma.rkey = server.mr->rkey;
	}
}

static inline void post(struct request *request)
{
	struct ibv_send_wr *bad;
	MUST(ibv_post_send(client.qp, &request->wr, &bad) == 0);
}

static inline void post_plain(enum ibv_wr_opcode opcode, uint32_t length)
{
	struct request request;
	fill(&request, opcode, length);
	post(&request);
}

/* Posts a receive of so many bytes at the server. */
static inline void post_receive(uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)server.buffer, length, server.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;
	MUST(ibv_post_recv(server.qp, &wr, &bad) == 0);
}

static inline const char *status_name(enum ibv_wc_status status)
{
	static const char *const names[] = {
		"SUCCESS",	   "LOC_LEN_ERR",   "LOC_QP_OP_ERR",  "LOC_EEC_OP_ERR", "LOC_PROT_ERR",
		"WR_FLUSH_ERR",	   "MW_BIND_ERR",   "BAD_RESP_ERR",   "LOC_ACCESS_ERR", "REM_INV_REQ_ERR",
		"REM_ACCESS_ERR",  "REM_OP_ERR",    "RETRY_EXC_ERR",  "RNR_RETRY_EXC_ERR",
	};
	return status < sizeof names / sizeof *names ? names[status] : "other";
}

/* Polls until the end has a completion, and prints its status. */
static inline struct ibv_wc show_completion(struct end *end)
{
	struct ibv_wc wc;
	int got;
	while ((got = ibv_poll_cq(end->cq, 1, &wc)) == 0)
		;
	MUST(got == 1);
	printf("%s: IBV_WC_%s (%d)\n", end->name, status_name(wc.status), wc.status);
	return wc;
}

/* Prints that an end has no completion. A datagram between two other queue pairs passes behind the packets of the mistake, so that
 * those have arrived. */
static inline void show_silence(struct end *end)
{
	struct end saved[] = { client, server };
	struct ibv_wc wc;
	client = (struct end)END("prober");
	server = (struct end)END("probed");
	client.type = server.type = IBV_QPT_UD;
	connect_pair();
	post_receive(40 + 8);
	post_plain(IBV_WR_SEND, 8);
	while (ibv_poll_cq(server.cq, 1, &wc) == 0)
		;
	client = saved[0];
	server = saved[1];
	MUST(ibv_poll_cq(end->cq, 1, &wc) == 0);
	printf("%s: no completion\n", end->name);
}

/* Prints the next asynchronous event. */
static inline void show_event(void)
{
	struct ibv_async_event event;
	MUST(ibv_get_async_event(context, &event) == 0);
	printf("event: %s\n", ibv_event_type_str(event.event_type));
	ibv_ack_async_event(&event);
}

/* Prints `hangs`, polls as a program would that waits for this end (or sleeps, without one), and returns when standard input ends. */
static inline void hang(struct end *end)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	struct ibv_wc wc;
	puts("hangs");
	fflush(stdout);
	while (poll(&input, 1, 10) == 0)
		MUST(!end || ibv_poll_cq(end->cq, 1, &wc) == 0);
}

#endif
