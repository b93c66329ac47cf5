/* What works here and fails on hardware: `ferroce run --strict` refuses it. */
#include "mistake.h"
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* Unsignalled requests fill the send queue, although the peer is on the same host and each has been executed.
 *
 * options: --strict
 * shows: request 17: ENOMEM
 * says: refused: ibv_post_send: QP #: the send queue is full: none of the last 16 requests (max_send_wr 16, 16 of them unsignalled) is
 *       free again. A NIC frees the entries of unsignalled requests only when a later signalled completion is polled, and 0 wait to be
 *       polled; set SIGNALED on at least one of 16 requests and poll it, or create a deeper queue
 */
MISTAKE(never_signalled)
{
	struct request request;
	struct ibv_send_wr *bad;
	int number = 0, i = 0;
	connect_pair();
	fill(&request, IBV_WR_RDMA_WRITE, 8);
	request.wr.send_flags = 0;
	for (; i < 1000 && number == 0; i++)
		number = ibv_post_send(client.qp, &request.wr, &bad);
	printf("request %d: %s\n", i, strerrorname_np(number));
}

/* Every fourth request is signalled, but nobody polls its completion.
 *
 * options: --strict
 * shows: request 17: ENOMEM
 * says: refused: ibv_post_send: QP #: the send queue is full: none of the last 16 requests (max_send_wr 16, 12 of them unsignalled) is
 *       free again. A NIC frees the entries of unsignalled requests only when a later signalled completion is polled, and # wait to be
 *       polled; set SIGNALED on at least one of 16 requests and poll it, or create a deeper queue
 */
MISTAKE(signalled_but_never_polled)
{
	struct request request;
	struct ibv_send_wr *bad;
	int number = 0, i = 0;
	connect_pair();
	for (; i < 1000 && number == 0; i++) {
		fill(&request, IBV_WR_RDMA_WRITE, 8);
		request.wr.send_flags = i % 4 == 3 ? IBV_SEND_SIGNALED : 0;
		number = ibv_post_send(client.qp, &request.wr, &bad);
	}
	printf("request %d: %s\n", i, strerrorname_np(number));
}

/* Receives are posted again before the completions of the last ones are polled.
 *
 * options: --strict
 * shows: ibv_post_recv: ENOMEM
 * says: refused: ibv_post_recv: QP #: the receive queue is full: of max_recv_wr 16, 0 receives are posted and 16 completions of receives
 *       wait to be polled. A NIC frees a receive only when its completion is polled; poll, or create a deeper queue
 */
MISTAKE(receives_posted_before_polling)
{
	struct ibv_wc wc;
	connect_pair();
	for (int i = 0; i < 16; i++)
		post_receive(64);
	for (int i = 0; i < 16; i++) {
		post_plain(IBV_WR_SEND, 8);
		while (ibv_poll_cq(client.cq, 1, &wc) == 0)
			;
	}
	struct ibv_sge sge = { (uintptr_t)server.buffer, 64, server.mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	REFUSED(ibv_post_recv(server.qp, &wr, &bad));
}

/* Receives are posted to a shared receive queue before the completions of the last ones are polled.
 *
 * options: --strict
 * shows: ibv_post_srq_recv: ENOMEM
 * says: refused: ibv_post_srq_recv: the shared receive queue is full: of max_wr 4, 0 receives are posted and 4 completions of its receives wait
 *       to be polled. A NIC frees a receive only when its completion is polled; poll, or create a deeper queue
 */
MISTAKE(shared_receives_posted_before_polling)
{
	struct ibv_wc wc;
	struct ibv_recv_wr *bad, wr = { .wr_id = 2 };
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	open_device();
	MUST((server.pd = ibv_alloc_pd(context)) && (server.srq = ibv_create_srq(server.pd, &attr)));
	connect_pair();
	for (int i = 0; i < 4; i++) {
		MUST(ibv_post_srq_recv(server.srq, &wr, &bad) == 0);
		post_plain(IBV_WR_SEND, 0);
		while (ibv_poll_cq(client.cq, 1, &wc) == 0)
			;
	}
	REFUSED(ibv_post_srq_recv(server.srq, &wr, &bad));
}

/* The address of the peer has no GRH, as programs for InfiniBand write it.
 *
 * options: --strict
 * shows: ibv_modify_qp: EINVAL
 * says: refused: ibv_modify_qp: QP #: ah_attr.is_global is 0: RoCE routes by GID, so a NIC needs the GRH; set is_global to 1 and grh.dgid to the
 *       peer's GID
 */
MISTAKE(no_grh)
{
	struct ibv_port_attr port;
	create_pair();
	bring_to(&client, IBV_QPS_INIT);
	MUST(ibv_query_port(context, 1, &port) == 0);
	struct ibv_qp_attr attr = rtr_attr(&client);
	attr.ah_attr = (struct ibv_ah_attr){ .port_num = 1, .dlid = port.lid };
	REFUSED(ibv_modify_qp(client.qp, &attr, RTR_MASK));
}

/* An address handle has no GRH.
 *
 * options: --strict
 * shows: ibv_create_ah: EINVAL
 * says: refused: ibv_create_ah: ah_attr.is_global is 0: RoCE routes by GID, so a NIC needs the GRH; set is_global to 1 and grh.dgid to the peer's GID
 */
MISTAKE(address_handle_without_grh)
{
	struct ibv_port_attr port;
	create(&client);
	MUST(ibv_query_port(context, 1, &port) == 0);
	struct ibv_ah_attr attr = { .port_num = 1, .dlid = port.lid };
	NO_OBJECT(ibv_create_ah(client.pd, &attr));
}

/* The ends use different path MTUs. Shared memory has no packets of that size, unless --strict makes them.
 *
 * options: --strict
 * shows: client: IBV_WC_REM_INV_REQ_ERR (9)
 * says: failed: QP #: request from QP # is invalid: SendOnly with 1000 bytes is not valid at this point of a message,
 *       or differs from path_mtu, which is 512 here
 * says: failed: QP #: SEND wr_id 0x1 of 1000 bytes was refused by QP # at # with NAK InvalidRequest: opcode, length
 *       or number of requests not allowed
 */
MISTAKE(path_mtu_differs_on_one_host)
{
	client.mtu = IBV_MTU_1024;
	server.mtu = IBV_MTU_512;
	connect_pair();
	post_receive(1000);
	post_plain(IBV_WR_SEND, 1000);
	show_completion(&client);
}

/* The same with a WRITE of several packets.
 *
 * options: --strict
 * shows: client: IBV_WC_REM_INV_REQ_ERR (9)
 * says: failed: QP #: request from QP # is invalid: WriteFirst with 1024 bytes is not valid at this point of a message,
 *       or differs from path_mtu, which is 512 here
 * says: failed: QP #: WRITE wr_id 0x1 of 4096 bytes at # with rkey # was refused by QP # at # with NAK InvalidRequest: opcode, length
 *       or number of requests not allowed
 */
MISTAKE(path_mtu_differs_for_write)
{
	client.mtu = IBV_MTU_1024;
	server.mtu = IBV_MTU_512;
	connect_pair();
	post_plain(IBV_WR_RDMA_WRITE, 4096);
	show_completion(&client);
}

/* More memory is registered than the process may lock.
 *
 * options: --strict
 * shows: ibv_reg_mr: ENOMEM
 * says: refused: ibv_reg_mr: a NIC pins registered memory: 1024 KiB more than the 4 KiB registered so far exceed RLIMIT_MEMLOCK, which is 64 KiB;
 *       raise it (`ulimit -l unlimited`, memlock in /etc/security/limits.conf, LimitMEMLOCK of systemd) or register less
 */
MISTAKE(too_much_locked_memory)
{
	struct rlimit limit = { 64 << 10, 64 << 10 };
	MUST(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	/* The superuser may lock more: give that right up. */
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];
	MUST(syscall(SYS_capget, &header, data) == 0);
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	MUST(syscall(SYS_capset, &header, data) == 0);
	create(&client);
	size_t size = 1 << 20;
	char *buffer = aligned_alloc(4096, size);
	NO_OBJECT(ibv_reg_mr(client.pd, buffer, size, RIGHTS));
}

/* More READs and atomics at a time than a ConnectX-6 has resources for.
 *
 * options: --strict=connectx-6
 * shows: ibv_modify_qp: EINVAL
 * says: refused: ibv_modify_qp: QP #: max_dest_rd_atomic is 17 (0x11), the limit is 16 (0x10)
 */
MISTAKE(too_many_reads_for_connectx_6)
{
	client.max_dest_rd_atomic = 17;
	create_pair();
	bring_to(&client, IBV_QPS_INIT);
	struct ibv_qp_attr attr = rtr_attr(&client);
	REFUSED(ibv_modify_qp(client.qp, &attr, RTR_MASK));
}

static void create_qp(struct ibv_qp_cap cap)
{
	create(&client);
	struct ibv_qp_init_attr attr = { .send_cq = client.cq, .recv_cq = client.cq, .qp_type = IBV_QPT_RC, .cap = cap };
	NO_OBJECT(ibv_create_qp(client.pd, &attr));
}

/* More scatter/gather entries than a ConnectX-6 has.
 *
 * options: --strict=connectx-6
 * shows: ibv_create_qp: EINVAL
 * says: refused: ibv_create_qp: max_send_sge is 31, the device allows 30
 */
MISTAKE(too_many_entries_for_connectx_6)
{
	create_qp((struct ibv_qp_cap){ .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 31, .max_recv_sge = 1 });
}

/* More inline data than a ConnectX-6 has.
 *
 * options: --strict=connectx-6
 * shows: ibv_create_qp: EINVAL
 * says: refused: ibv_create_qp: max_inline_data is 1024, the device allows 828
 */
MISTAKE(inline_too_long_for_connectx_6)
{
	create_qp((struct ibv_qp_cap){ .max_send_wr = 1, .max_send_sge = 1, .max_recv_wr = 1, .max_recv_sge = 1, .max_inline_data = 1024 });
}

/* As many requests as max_qp_wr says, but an entry takes several blocks of the queue.
 *
 * options: --strict=connectx-6
 * shows: ibv_create_qp: EINVAL
 * says: refused: ibv_create_qp: max_send_wr is 32768: with these max_send_sge and max_inline_data an entry takes 256 bytes, and the device has
 *       2097152 bytes per send queue, which is 8192 entries; ask for fewer, or for less inline data
 */
MISTAKE(send_queue_too_large_for_connectx_6)
{
	struct ibv_device_attr device;
	open_device();
	MUST(ibv_query_device(context, &device) == 0);
	create_qp((struct ibv_qp_cap){ .max_send_wr = device.max_qp_wr, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 });
}

/* A shared receive queue is deeper than a ConnectX-6 allows.
 *
 * options: --strict=connectx-6
 * shows: ibv_create_srq: EINVAL
 * says: refused: ibv_create_srq: max_wr is 32768, the device allows 32767
 */
MISTAKE(srq_too_deep_for_connectx_6)
{
	create(&client);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 32768, .max_sge = 1 } };
	NO_OBJECT(ibv_create_srq(client.pd, &attr));
}
