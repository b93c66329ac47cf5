/* Calls that are refused: the program gets an errno. */
#include "mistake.h"
#include <sys/wait.h>

/* A request is posted before the queue pair is connected.
 *
 * shows: ibv_post_send: EINVAL
 * says: refused: ibv_post_send: QP #: this cannot be posted in state RESET; receives need INIT, sends need RTS
 */
MISTAKE(post_before_connecting)
{
	struct request request;
	struct ibv_send_wr *bad;
	create(&client);
	create(&server);
	fill(&request, IBV_WR_SEND, 8);
	REFUSED(ibv_post_send(client.qp, &request.wr, &bad));
}

/* A receive is posted in state RESET.
 *
 * shows: ibv_post_recv: EINVAL
 * says: refused: ibv_post_recv: QP #: this cannot be posted in state RESET; receives need INIT, sends need RTS
 */
MISTAKE(receive_before_init)
{
	create(&client);
	struct ibv_recv_wr wr = { .wr_id = 2 }, *bad;
	REFUSED(ibv_post_recv(client.qp, &wr, &bad));
}

/* The queue pair goes from INIT to RTS without RTR.
 *
 * shows: ibv_modify_qp: EINVAL
 * says: refused: ibv_modify_qp: QP #: a queue pair cannot go from INIT to RTS; the order is RESET, INIT, RTR, RTS
 */
MISTAKE(skip_rtr)
{
	create(&client);
	bring_to(&client, IBV_QPS_INIT);
	struct ibv_qp_attr attr = rts_attr(&client);
	REFUSED(ibv_modify_qp(client.qp, &attr, RTS_MASK));
}

/* An attribute is missing in the mask of the transition to RTR.
 *
 * shows: ibv_modify_qp: EINVAL
 * says: refused: ibv_modify_qp: QP #: the transition also needs MIN_RNR_TIMER in the attribute mask
 */
MISTAKE(missing_attribute)
{
	create_pair();
	bring_to(&client, IBV_QPS_INIT);
	struct ibv_qp_attr attr = rtr_attr(&client);
	REFUSED(ibv_modify_qp(client.qp, &attr, RTR_MASK & ~IBV_QP_MIN_RNR_TIMER));
}

/* The mask names an attribute that the transition to INIT does not take.
 *
 * shows: ibv_modify_qp: EINVAL
 * says: refused: ibv_modify_qp: QP #: the transition does not take DEST_QPN; remove it from the attribute mask
 */
MISTAKE(attribute_too_early)
{
	create_pair();
	struct ibv_qp_attr attr = init_attr(&client);
	REFUSED(ibv_modify_qp(client.qp, &attr, INIT_MASK | IBV_QP_DEST_QPN));
}

/* cur_state claims RTS, but the queue pair is in INIT.
 *
 * shows: ibv_modify_qp: EINVAL
 * says: refused: ibv_modify_qp: QP #: cur_state is RTS, but the queue pair is in INIT
 */
MISTAKE(wrong_current_state)
{
	create(&client);
	bring_to(&client, IBV_QPS_INIT);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR, .cur_qp_state = IBV_QPS_RTS };
	REFUSED(ibv_modify_qp(client.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE));
}

/* port_num is 0: ports count from 1.
 *
 * shows: ibv_modify_qp: EINVAL
 * says: refused: ibv_modify_qp: QP #: port must not be zero
 */
MISTAKE(port_zero)
{
	create(&client);
	struct ibv_qp_attr attr = init_attr(&client);
	attr.port_num = 0;
	REFUSED(ibv_modify_qp(client.qp, &attr, INIT_MASK));
}

/* sgid_index is an index that the GID table does not have.
 *
 * shows: ibv_modify_qp: EINVAL
 * says: refused: ibv_modify_qp: QP #: sgid_index is 99, but the GID table has 1 entries; `ferroce gids` lists them
 */
MISTAKE(no_such_gid_index)
{
	create_pair();
	bring_to(&client, IBV_QPS_INIT);
	struct ibv_qp_attr attr = rtr_attr(&client);
	attr.ah_attr.grh.sgid_index = 99;
	REFUSED(ibv_modify_qp(client.qp, &attr, RTR_MASK));
}

/* The peer's GID is a link-local IPv6 address, but sgid_index names an IPv4 address.
 *
 * shows: ibv_modify_qp: EINVAL
 * says: refused: ibv_modify_qp: QP #: sgid_index: source and destination GID are not of the same IP version
 */
MISTAKE(gid_of_another_ip_version)
{
	create_pair();
	bring_to(&client, IBV_QPS_INIT);
	struct ibv_qp_attr attr = rtr_attr(&client);
	attr.ah_attr.grh.dgid = (union ibv_gid){ .raw = { 0xfe, 0x80, [15] = 1 } };
	REFUSED(ibv_modify_qp(client.qp, &attr, RTR_MASK));
}

/* path_mtu holds bytes instead of a value of enum ibv_mtu.
 *
 * shows: ibv_modify_qp: EINVAL
 * says: refused: ibv_modify_qp: QP #: path_mtu is no value of enum ibv_mtu: 1 (256 bytes) to 5 (4096 bytes)
 */
MISTAKE(mtu_in_bytes)
{
	create_pair();
	bring_to(&client, IBV_QPS_INIT);
	struct ibv_qp_attr attr = rtr_attr(&client);
	attr.path_mtu = 1024;
	REFUSED(ibv_modify_qp(client.qp, &attr, RTR_MASK));
}

/* rnr_retry is 8, but has three bits.
 *
 * shows: ibv_modify_qp: EINVAL
 * says: refused: ibv_modify_qp: QP #: rnr_retry is 8 (0x8), the limit is 7 (0x7)
 */
MISTAKE(retry_count_too_high)
{
	client.rnr_retry = 8;
	create_pair();
	bring_to(&client, IBV_QPS_RTR);
	struct ibv_qp_attr attr = rts_attr(&client);
	REFUSED(ibv_modify_qp(client.qp, &attr, RTS_MASK));
}

/* A queue pair asks for more work requests than the device allows.
 *
 * shows: ibv_create_qp: EINVAL
 * says: refused: ibv_create_qp: max_send_wr is 1073741824, the device allows 65536
 */
MISTAKE(queue_too_deep)
{
	create(&client);
	struct ibv_qp_init_attr attr = { .send_cq = client.cq, .recv_cq = client.cq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 1 << 30, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	NO_OBJECT(ibv_create_qp(client.pd, &attr));
}

/* A completion queue is deeper than the device allows.
 *
 * shows: ibv_create_cq: EINVAL
 * says: refused: ibv_create_cq: cqe is 1073741824, the device allows 4194304
 */
MISTAKE(completion_queue_too_deep)
{
	open_device();
	NO_OBJECT(ibv_create_cq(context, 1 << 30, NULL, NULL, 0));
}

/* A request has more scatter/gather entries than the queue pair was created for.
 *
 * shows: ibv_post_send: EINVAL
 * says: refused: ibv_post_send: QP #: 3 scatter/gather entries given, the queue was created with max_sge 2
 */
MISTAKE(too_many_entries)
{
	struct request request;
	struct ibv_send_wr *bad;
	connect_pair();
	fill(&request, IBV_WR_SEND, 8);
	struct ibv_sge three[] = { request.sge, request.sge, request.sge };
	request.wr.sg_list = three;
	request.wr.num_sge = 3;
	REFUSED(ibv_post_send(client.qp, &request.wr, &bad));
}

/* Inline data is longer than max_inline_data.
 *
 * shows: ibv_post_send: EINVAL
 * says: refused: ibv_post_send: QP #: 1000 bytes of inline data given, max_inline_data is 64; create the queue pair with
 *       more, or post without INLINE
 */
MISTAKE(inline_too_long)
{
	struct request request;
	struct ibv_send_wr *bad;
	connect_pair();
	fill(&request, IBV_WR_SEND, 1000);
	request.wr.send_flags |= IBV_SEND_INLINE;
	REFUSED(ibv_post_send(client.qp, &request.wr, &bad));
}

/* A READ has the flag IBV_SEND_INLINE.
 *
 * shows: ibv_post_send: EINVAL
 * says: refused: ibv_post_send: QP #: a READ, atomic or bind cannot be inline: it has no data to send; post it without
 *       INLINE
 */
MISTAKE(inline_read)
{
	struct request request;
	struct ibv_send_wr *bad;
	connect_pair();
	fill(&request, IBV_WR_RDMA_READ, 8);
	request.wr.send_flags |= IBV_SEND_INLINE;
	REFUSED(ibv_post_send(client.qp, &request.wr, &bad));
}

/* A WRITE is posted to a UD queue pair.
 *
 * shows: ibv_post_send: EINVAL
 * says: refused: ibv_post_send: QP #: a queue pair of transport Ud has no such operation: UD only sends, UC has neither
 *       READ nor atomics
 */
MISTAKE(write_on_ud)
{
	struct request request;
	struct ibv_send_wr *bad;
	client.type = server.type = IBV_QPT_UD;
	connect_pair();
	fill(&request, IBV_WR_RDMA_WRITE, 8);
	REFUSED(ibv_post_send(client.qp, &request.wr, &bad));
}

/* A datagram has no address handle.
 *
 * shows: ibv_post_send: EINVAL
 * says: refused: ibv_post_send: QP #: a datagram needs an address handle
 */
MISTAKE(no_address_handle)
{
	struct request request;
	struct ibv_send_wr *bad;
	client.type = server.type = IBV_QPT_UD;
	connect_pair();
	fill(&request, IBV_WR_SEND, 8);
	request.wr.wr.ud.ah = NULL;
	REFUSED(ibv_post_send(client.qp, &request.wr, &bad));
}

/* More receives are posted than the receive queue holds.
 *
 * shows: ibv_post_recv: ENOMEM
 * says: refused: ibv_post_recv: QP #: the queue is full: all 16 work requests are outstanding; poll completions (an
 *       unsignalled send makes none) or create a deeper queue
 */
MISTAKE(receive_queue_full)
{
	connect_pair();
	for (uint32_t i = 0; i < server.cap.max_recv_wr; i++)
		post_receive(8);
	struct ibv_recv_wr wr = { .wr_id = 3 }, *bad;
	REFUSED(ibv_post_recv(server.qp, &wr, &bad));
}

/* A receive is posted to a queue pair that uses a shared receive queue.
 *
 * shows: ibv_post_recv: EINVAL
 * says: refused: ibv_post_recv: QP #: this queue pair takes its receives from a shared receive queue; post there
 */
MISTAKE(receive_despite_srq)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	open_device();
	MUST((server.pd = ibv_alloc_pd(context)));
	MUST((server.srq = ibv_create_srq(server.pd, &attr)));
	connect_pair();
	struct ibv_recv_wr wr = { .wr_id = 3 }, *bad;
	REFUSED(ibv_post_recv(server.qp, &wr, &bad));
}

/* A region lies outside the mapped memory.
 *
 * shows: ibv_reg_mr: EFAULT
 * says: refused: ibv_reg_mr: 8192 bytes at # are not (all) mapped, or not writable
 */
MISTAKE(register_unmapped_memory)
{
	create(&client);
	char *gone = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(gone, 8192);
	NO_OBJECT(ibv_reg_mr(client.pd, gone, 8192, RIGHTS));
}

/* A region grants REMOTE_WRITE without LOCAL_WRITE.
 *
 * shows: ibv_reg_mr: EINVAL
 * says: refused: ibv_reg_mr: access: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too
 */
MISTAKE(remote_write_without_local_write)
{
	create(&client);
	NO_OBJECT(ibv_reg_mr(client.pd, client.buffer, BYTES, IBV_ACCESS_REMOTE_WRITE));
}

/* A region is deregistered while a memory window is bound to it.
 *
 * shows: ibv_dereg_mr: EBUSY
 * says: refused: ibv_dereg_mr: the memory region is still in use by 1 memory window
 */
MISTAKE(deregister_under_window)
{
	client.region_access |= IBV_ACCESS_MW_BIND;
	connect_pair();
	struct ibv_mw *mw = ibv_alloc_mw(client.pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .wr_id = 3, .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { client.mr, (uintptr_t)client.buffer, 64, IBV_ACCESS_REMOTE_READ } };
	MUST(mw && ibv_bind_mw(client.qp, mw, &bind) == 0);
	struct ibv_wc wc;
	while (ibv_poll_cq(client.cq, 1, &wc) == 0)
		;
	REFUSED(ibv_dereg_mr(client.mr));
}

/* A protection domain is freed while a region and a queue pair are in it.
 *
 * shows: ibv_dealloc_pd: EBUSY
 * says: refused: ibv_dealloc_pd: the protection domain still has regions, queue pairs or address handles (2 uses);
 *       destroy them first
 */
MISTAKE(free_domain_in_use)
{
	create(&client);
	REFUSED(ibv_dealloc_pd(client.pd));
}

/* A completion queue is destroyed before its queue pair.
 *
 * shows: ibv_destroy_cq: EBUSY
 * says: refused: ibv_destroy_cq: queue pairs still use the completion queue (2 uses); destroy them first
 */
MISTAKE(destroy_completion_queue_in_use)
{
	create(&client);
	REFUSED(ibv_destroy_cq(client.cq));
}

/* A shared receive queue is destroyed before its queue pair.
 *
 * shows: ibv_destroy_srq: EBUSY
 * says: refused: ibv_destroy_srq: queue pairs still take receives from it (1 uses); destroy them first
 */
MISTAKE(destroy_srq_in_use)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	open_device();
	MUST((client.pd = ibv_alloc_pd(context)));
	MUST((client.srq = ibv_create_srq(client.pd, &attr)));
	create(&client);
	REFUSED(ibv_destroy_srq(client.srq));
}

/* A UD queue pair joins a GID that is no multicast group.
 *
 * shows: ibv_attach_mcast: EINVAL
 * says: refused: ibv_attach_mcast: gid: is no multicast address: 224.0.0.0/4 or ff00::/8
 */
MISTAKE(attach_to_unicast)
{
	client.type = server.type = IBV_QPT_UD;
	connect_pair();
	REFUSED(ibv_attach_mcast(client.qp, &client.dgid, 0));
}

/* The child of fork uses the device that its parent opened.
 *
 * shows: ibv_create_cq: EIO
 * says: refused: ibv_create_cq: this device was opened before fork(); open it again in the child
 */
MISTAKE(use_after_fork)
{
	open_device();
	fflush(stdout);
	if (fork() == 0) {
		NO_OBJECT(ibv_create_cq(context, 16, NULL, NULL, 0));
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
}

/* Unsignalled requests fill the send queue: without a completion no entry becomes free.
 *
 * udp shows: ibv_post_send: ENOMEM
 * local shows: ibv_post_send: success
 * udp says: refused: ibv_post_send: QP #: the queue is full: all 16 work requests are outstanding; poll completions (an
 *       unsignalled send makes none) or create a deeper queue
 */
MISTAKE(all_unsignalled)
{
	struct request request;
	struct ibv_send_wr *bad;
	int number = 0;
	connect_pair();
	fill(&request, IBV_WR_RDMA_WRITE, 8);
	request.wr.send_flags = 0;
	for (int i = 0; i < 1000 && number == 0; i++)
		number = ibv_post_send(client.qp, &request.wr, &bad);
	show_errno("ibv_post_send", number);
}
