/* The same message over four transports. */
#include "rdma.h"
#include <fcntl.h>

static void send_hello(struct end *from, struct ibv_send_wr wr)
{
	struct ibv_sge bytes = { .addr = (uintptr_t)from->buffer, .length = 5, .lkey = from->mr->lkey };
	struct ibv_send_wr *bad;
	strcpy(from->buffer, "hello");
	wr.opcode = IBV_WR_SEND;
	wr.sg_list = &bytes;
	wr.num_sge = 1;
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(ibv_post_send(from->qp, &wr, &bad));
	struct ibv_wc wc = wait_completion(from);
	report(from, "SEND", &wc);
}

/* RC and UC: two queue pairs that know each other. */
static void connected(const char *name, enum ibv_qp_type type)
{
	struct end client = create_end(name, type), server = create_end(name, type);
	connect_ends(&client, &server);
	post_receive(&server, 1, 64);
	send_hello(&client, (struct ibv_send_wr){ 0 });
	struct ibv_wc wc = wait_completion(&server);
	printf("%s: received %u bytes: %s\n", name, wc.byte_len, server.buffer);
}

/* UD: each request names its destination, and each message is preceded by 40 bytes for the GRH. */
static void datagram(void)
{
	struct end client = create_end("UD", IBV_QPT_UD), server = create_end("UD", IBV_QPT_UD);
	connect_ends(&client, &server);
	post_receive(&server, 1, 40 + 64);
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };
	CHECK(ibv_query_gid(open_device(), 1, 0, &to.grh.dgid));
	struct ibv_ah *ah = MAKE(ibv_create_ah(client.pd, &to));
	send_hello(&client, (struct ibv_send_wr){ .wr.ud = { .ah = ah, .remote_qpn = server.qp->qp_num, .remote_qkey = QKEY } });
	struct ibv_wc wc = wait_completion(&server);
	printf("UD: received %u bytes, 40 of them for the GRH: %s\n", wc.byte_len, server.buffer + 40);
}

/* XRC: each request names a shared receive queue of the peer's domain. */
static void extended(void)
{
	struct end client = create_end("XRC", IBV_QPT_RC), server = create_end("XRC", IBV_QPT_RC);
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
					     .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = MAKE(ibv_open_xrcd(open_device(), &domain));
	struct ibv_srq_init_attr_ex queue = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = server.pd,
					      .xrcd = xrcd, .cq = server.cq,
					      .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
							   IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_srq *srq = MAKE(ibv_create_srq_ex(open_device(), &queue));
	struct ibv_qp_init_attr_ex initiator = { .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD,
						 .pd = client.pd, .send_cq = client.cq,
						 .cap = { .max_send_wr = 4, .max_send_sge = 1 } };
	struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	client.type = IBV_QPT_XRC_SEND, server.type = IBV_QPT_XRC_RECV;
	client.qp = MAKE(ibv_create_qp_ex(open_device(), &initiator));
	server.qp = MAKE(ibv_create_qp_ex(open_device(), &target));
	connect_ends(&client, &server);

	uint32_t number;
	CHECK(ibv_get_srq_num(srq, &number));
	struct ibv_sge room = { .addr = (uintptr_t)server.buffer, .length = 64, .lkey = server.mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &room, .num_sge = 1 }, *bad;
	CHECK(ibv_post_srq_recv(srq, &receive, &bad));
	send_hello(&client, (struct ibv_send_wr){ .qp_type.xrc.remote_srqn = number });
	struct ibv_wc wc = wait_completion(&server);
	printf("XRC: received %u bytes: %s\n", wc.byte_len, server.buffer);
}

int main(void)
{
	connected("RC", IBV_QPT_RC);
	connected("UC", IBV_QPT_UC);
	datagram();
	extended();
	return 0;
}
