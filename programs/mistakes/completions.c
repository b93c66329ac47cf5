/* Requests that fail: the completion has a status other than success. */
#include "mistake.h"

/* The rkey names no region: it was never registered.
 *
 * shows: client: IBV_WC_REM_ACCESS_ERR (10)
 * shows: event: local access violation work queue error
 * says: failed: QP #: WRITE from QP # refused: key # names no region here; check that the key is that of the region, and
 *       lkey and rkey are not exchanged
 * says: failed: QP #: WRITE wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK RemoteAccess: a key
 *       that names no region
 */
MISTAKE(wrong_rkey)
{
	struct request request;
	connect_pair();
	fill(&request, IBV_WR_RDMA_WRITE, 8);
	request.wr.wr.rdma.rkey ^= 0x55555555;
	post(&request);
	show_completion(&client);
	show_event();
}

/* The rkey names a region that its owner has deregistered.
 *
 * shows: client: IBV_WC_REM_ACCESS_ERR (10)
 * says: failed: QP #: READ from QP # refused: key # is not valid now: its region was deregistered,
 *       the key was changed or invalidated, or the window is not bound
 * says: failed: QP #: READ wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK RemoteAccess: the key
 *       of a region that was deregistered, or an invalidated key
 */
MISTAKE(rkey_after_deregistration)
{
	struct request request;
	connect_pair();
	fill(&request, IBV_WR_RDMA_READ, 8);
	MUST(ibv_dereg_mr(server.mr) == 0);
	post(&request);
	show_completion(&client);
}

/* The rkey names a region of another protection domain than the responder's queue pair.
 *
 * shows: client: IBV_WC_REM_ACCESS_ERR (10)
 * says: failed: QP #: WRITE from QP # refused: key # names a region of PD 1, this QP is in PD 3; register the memory in
 *       the PD of the QP
 * says: failed: QP #: WRITE wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK RemoteAccess: memory
 *       of another protection domain
 */
MISTAKE(rkey_of_another_domain)
{
	struct request request;
	connect_pair();
	fill(&request, IBV_WR_RDMA_WRITE, 8);
	request.wr.wr.rdma.remote_addr = (uintptr_t)client.buffer;
	request.wr.wr.rdma.rkey = client.mr->rkey;
	post(&request);
	show_completion(&client);
}

/* A WRITE reaches beyond the end of the region.
 *
 * shows: client: IBV_WC_REM_ACCESS_ERR (10)
 * says: failed: QP #: WRITE from QP # refused: 64 bytes at # are not inside the region of key #, which has 4096 bytes at
 *       #
 * says: failed: QP #: WRITE wr_id 0x1 of 64 bytes at # with rkey # was refused by QP # at # with NAK RemoteAccess:
 *       outside the region or memory window
 */
MISTAKE(beyond_the_region)
{
	struct request request;
	connect_pair();
	fill(&request, IBV_WR_RDMA_WRITE, 64);
	request.wr.wr.rdma.remote_addr += BYTES - 28;
	post(&request);
	show_completion(&client);
}

/* The region does not grant REMOTE_WRITE.
 *
 * shows: client: IBV_WC_REM_ACCESS_ERR (10)
 * says: failed: QP #: WRITE from QP # refused: key # grants LOCAL_WRITE and REMOTE_READ, the operation needs
 *       REMOTE_WRITE; register the memory with it
 * says: failed: QP #: WRITE wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK RemoteAccess: a right
 *       that the region or the queue pair does not grant
 */
MISTAKE(region_without_remote_write)
{
	server.region_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
	connect_pair();
	post_plain(IBV_WR_RDMA_WRITE, 8);
	show_completion(&client);
}

/* The region does not grant REMOTE_READ.
 *
 * shows: client: IBV_WC_REM_ACCESS_ERR (10)
 * says: failed: QP #: READ from QP # refused: key # grants LOCAL_WRITE and REMOTE_WRITE, the operation needs REMOTE_READ;
 *       register the memory with it
 * says: failed: QP #: READ wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK RemoteAccess: a right
 *       that the region or the queue pair does not grant
 */
MISTAKE(region_without_remote_read)
{
	server.region_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	connect_pair();
	post_plain(IBV_WR_RDMA_READ, 8);
	show_completion(&client);
}

/* The region does not grant REMOTE_ATOMIC.
 *
 * shows: client: IBV_WC_REM_ACCESS_ERR (10)
 * says: failed: QP #: atomic from QP # refused: key # grants LOCAL_WRITE and REMOTE_WRITE, the operation needs
 *       REMOTE_ATOMIC; register the memory with it
 * says: failed: QP #: atomic wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK RemoteAccess: a
 *       right that the region or the queue pair does not grant
 */
MISTAKE(region_without_remote_atomic)
{
	server.region_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	connect_pair();
	post_plain(IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
	show_completion(&client);
}

/* The region grants REMOTE_WRITE, but the responder's queue pair does not.
 *
 * shows: client: IBV_WC_REM_ACCESS_ERR (10)
 * says: failed: QP #: WRITE from QP # refused: the access flags of the QP grant nothing, the operation needs
 *       REMOTE_WRITE; set it in qp_access_flags
 * says: failed: QP #: WRITE wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK RemoteAccess: a right
 *       that the region or the queue pair does not grant
 */
MISTAKE(queue_pair_without_remote_write)
{
	server.qp_access = 0;
	connect_pair();
	post_plain(IBV_WR_RDMA_WRITE, 8);
	show_completion(&client);
}

/* The region grants REMOTE_READ, but the responder's queue pair does not.
 *
 * shows: client: IBV_WC_REM_ACCESS_ERR (10)
 * says: failed: QP #: READ from QP # refused: the access flags of the QP grant REMOTE_WRITE, the operation needs
 *       REMOTE_READ; set it in qp_access_flags
 * says: failed: QP #: READ wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK RemoteAccess: a right
 *       that the region or the queue pair does not grant
 */
MISTAKE(queue_pair_without_remote_read)
{
	server.qp_access = IBV_ACCESS_REMOTE_WRITE;
	connect_pair();
	post_plain(IBV_WR_RDMA_READ, 8);
	show_completion(&client);
}

/* The lkey of a SEND names no region.
 *
 * shows: client: IBV_WC_LOC_PROT_ERR (4)
 * says: failed: QP #: send wr_id 0x1 cannot read its data: key # names no region here; check that the key is that of the
 *       region, and lkey and rkey are not exchanged
 */
MISTAKE(wrong_lkey)
{
	struct request request;
	connect_pair();
	post_receive(64);
	fill(&request, IBV_WR_SEND, 8);
	request.sge.lkey ^= 0x55555555;
	post(&request);
	show_completion(&client);
}

/* The data of a SEND lies partly outside its region.
 *
 * shows: client: IBV_WC_LOC_PROT_ERR (4)
 * says: failed: QP #: send wr_id 0x1 cannot read its data: 64 bytes at # are not inside the region of key #, which has
 *       4096 bytes at #
 */
MISTAKE(data_beyond_the_region)
{
	struct request request;
	connect_pair();
	post_receive(64);
	fill(&request, IBV_WR_SEND, 64);
	request.sge.addr += BYTES - 28;
	post(&request);
	show_completion(&client);
}

/* The lkey belongs to another protection domain than the queue pair.
 *
 * shows: client: IBV_WC_LOC_PROT_ERR (4)
 * says: failed: QP #: send wr_id 0x1 cannot read its data: key # names a region of PD 3, this QP is in PD 1; register the
 *       memory in the PD of the QP
 */
MISTAKE(lkey_of_another_domain)
{
	struct request request;
	connect_pair();
	post_receive(64);
	fill(&request, IBV_WR_SEND, 8);
	request.sge.lkey = server.mr->lkey;
	request.sge.addr = (uintptr_t)server.buffer;
	post(&request);
	show_completion(&client);
}

/* The memory of a receive does not grant LOCAL_WRITE.
 *
 * shows: client: IBV_WC_REM_OP_ERR (11)
 * shows: server: IBV_WC_LOC_PROT_ERR (4)
 * says: failed: QP #: a message from QP # cannot be placed into its receive: key # grants nothing, the operation needs
 *       LOCAL_WRITE; register the memory with it
 * says: failed: QP #: SEND wr_id 0x1 of 8 bytes was refused by QP # at # with NAK RemoteOperational: the memory of the
 *       receive is not accessible
 */
MISTAKE(receive_without_local_write)
{
	server.region_access = 0;
	connect_pair();
	post_receive(64);
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_completion(&server);
}

/* A READ returns its data into memory that does not grant LOCAL_WRITE.
 *
 * shows: client: IBV_WC_LOC_PROT_ERR (4)
 * says: failed: QP #: the answer to wr_id 0x1 cannot be placed: key # grants nothing, the operation needs LOCAL_WRITE;
 *       register the memory with it
 */
MISTAKE(read_without_local_write)
{
	client.region_access = 0;
	connect_pair();
	post_plain(IBV_WR_RDMA_READ, 8);
	show_completion(&client);
}

/* A message is longer than the receive that it meets.
 *
 * shows: client: IBV_WC_REM_INV_REQ_ERR (9)
 * shows: server: IBV_WC_LOC_LEN_ERR (1)
 * says: failed: QP #: a message of at least 100 bytes from QP # exceeds the receive of 64 bytes
 * says: failed: QP #: SEND wr_id 0x1 of 100 bytes was refused by QP # at # with NAK InvalidRequest: longer than its
 *       receive
 */
MISTAKE(receive_too_small)
{
	connect_pair();
	post_receive(64);
	post_plain(IBV_WR_SEND, 100);
	show_completion(&client);
	show_completion(&server);
}

/* No receive is posted, and rnr_retry is 0.
 *
 * shows: client: IBV_WC_RNR_RETRY_EXC_ERR (13)
 * says: failed: QP #: QP # at # had no receive posted for PSN 100, 0 RNR retries used up; post receives there first, or
 *       raise rnr_retry
 */
MISTAKE(no_receive)
{
	client.rnr_retry = 0;
	connect_pair();
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
}

/* No receive is posted for a WRITE with immediate data, which consumes one.
 *
 * shows: client: IBV_WC_RNR_RETRY_EXC_ERR (13)
 * says: failed: QP #: QP # at # had no receive posted for PSN 100, 3 RNR retries used up; post receives there first, or
 *       raise rnr_retry
 */
MISTAKE(no_receive_for_immediate)
{
	client.rnr_retry = 3;
	connect_pair();
	post_plain(IBV_WR_RDMA_WRITE_WITH_IMM, 8);
	show_completion(&client);
}

/* The shared receive queue is empty.
 *
 * shows: client: IBV_WC_RNR_RETRY_EXC_ERR (13)
 * says: failed: QP #: QP # at # had no receive posted for PSN 100, 0 RNR retries used up; post receives there first, or
 *       raise rnr_retry
 */
MISTAKE(empty_srq)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	open_device();
	MUST((server.pd = ibv_alloc_pd(context)));
	MUST((server.srq = ibv_create_srq(server.pd, &attr)));
	client.rnr_retry = 0;
	connect_pair();
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
}

/* The remote address of an atomic is not a multiple of 8.
 *
 * shows: client: IBV_WC_REM_INV_REQ_ERR (9)
 * says: failed: QP #: request from QP # is invalid: atomic address # is not a multiple of 8
 * says: failed: QP #: atomic wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK InvalidRequest: an
 *       atomic that is not aligned to 8
 */
MISTAKE(atomic_not_aligned)
{
	struct request request;
	connect_pair();
	fill(&request, IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
	request.wr.wr.atomic.remote_addr += 4;
	post(&request);
	show_completion(&client);
}

/* The local buffer of an atomic has 4 bytes.
 *
 * shows: client: IBV_WC_LOC_LEN_ERR (1)
 * says: failed: QP #: atomic wr_id 0x1 has a buffer of 4 bytes, it must be 8
 */
MISTAKE(atomic_of_four_bytes)
{
	connect_pair();
	post_plain(IBV_WR_ATOMIC_FETCH_AND_ADD, 4);
	show_completion(&client);
}

/* max_rd_atomic of the requester is 0.
 *
 * shows: client: IBV_WC_LOC_QP_OP_ERR (2)
 * says: failed: QP #: READ or atomic posted, but max_rd_atomic is 0
 */
MISTAKE(no_reads_at_requester)
{
	client.max_rd_atomic = 0;
	connect_pair();
	post_plain(IBV_WR_RDMA_READ, 8);
	show_completion(&client);
}

/* max_dest_rd_atomic of the responder is 0.
 *
 * shows: client: IBV_WC_REM_INV_REQ_ERR (9)
 * says: failed: QP #: request from QP # is invalid: more READs and atomics outstanding than max_dest_rd_atomic 0
 * says: failed: QP #: READ wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK InvalidRequest:
 *       opcode, length or number of requests not allowed
 */
MISTAKE(no_reads_at_responder)
{
	server.max_dest_rd_atomic = 0;
	connect_pair();
	post_plain(IBV_WR_RDMA_READ, 8);
	show_completion(&client);
}

/* A datagram is longer than the active MTU of the port.
 *
 * shows: client: IBV_WC_LOC_LEN_ERR (1)
 * says: failed: QP #: datagram wr_id 0x1 has 8192 bytes, the active MTU of the port is 4096
 */
MISTAKE(datagram_beyond_the_mtu)
{
	struct request request;
	client.type = server.type = IBV_QPT_UD;
	connect_pair();
	fill(&request, IBV_WR_SEND, BYTES);
	struct ibv_sge twice[] = { request.sge, request.sge };
	request.wr.sg_list = twice;
	request.wr.num_sge = 2;
	post(&request);
	show_completion(&client);
}

/* The ends use different path MTUs.
 *
 * udp shows: client: IBV_WC_REM_INV_REQ_ERR (9)
 * local shows: client: IBV_WC_SUCCESS (0)
 * udp says: failed: QP #: request from QP # is invalid: SendOnly with 1000 bytes is not valid at this point of a message,
 *       or differs from path_mtu, which is 512 here
 * udp says: failed: QP #: SEND wr_id 0x1 of 1000 bytes was refused by QP # at # with NAK InvalidRequest: opcode, length
 *       or number of requests not allowed
 */
MISTAKE(path_mtu_differs)
{
	client.mtu = IBV_MTU_1024;
	server.mtu = IBV_MTU_512;
	connect_pair();
	post_receive(1000);
	post_plain(IBV_WR_SEND, 1000);
	show_completion(&client);
}

/* A request is posted after an earlier one failed: the queue pair is in state ERR.
 *
 * shows: client: IBV_WC_REM_ACCESS_ERR (10)
 * shows: client: IBV_WC_WR_FLUSH_ERR (5)
 * says: failed: QP #: WRITE from QP # refused: the access flags of the QP grant nothing, the operation needs
 *       REMOTE_WRITE; set it in qp_access_flags
 * says: failed: QP #: WRITE wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK RemoteAccess: a right
 *       that the region or the queue pair does not grant
 */
MISTAKE(post_after_error)
{
	server.qp_access = 0;
	connect_pair();
	post_plain(IBV_WR_RDMA_WRITE, 8);
	show_completion(&client);
	post_plain(IBV_WR_RDMA_WRITE, 8);
	show_completion(&client);
}

/* More completions wait than the completion queue holds.
 *
 * shows: event: CQ error
 * shows: client: ibv_poll_cq fails
 * says: failed: QP #: completion of wr_id 0x1 found CQ 2 full with 4 completions; poll more often, or create it deeper
 * says: refused: ibv_poll_cq: the completion queue overflowed: more than 4 completions were waiting; make it deeper or
 *       poll more often
 */
MISTAKE(completion_queue_overrun)
{
	struct ibv_wc wc;
	client.cq_depth = 4;
	connect_pair();
	for (int i = 0; i < 8; i++)
		post_plain(IBV_WR_RDMA_WRITE, 8);
	show_event();
	while (ibv_poll_cq(client.cq, 1, &wc) >= 0)
		;
	puts("client: ibv_poll_cq fails");
}

/* A memory window of type 2 is used through another queue pair than the one that bound it.
 *
 * shows: client: IBV_WC_REM_ACCESS_ERR (10)
 * says: failed: QP #: WRITE from QP # refused: key # names a window that was bound through QP #, this is QP #
 * says: failed: QP #: WRITE wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK RemoteAccess: a
 *       memory window of another queue pair
 */
MISTAKE(window_of_another_queue_pair)
{
	struct request request;
	server.region_access |= IBV_ACCESS_MW_BIND;
	connect_pair();
	struct ibv_mw *mw = ibv_alloc_mw(server.pd, IBV_MW_TYPE_2);
	MUST(mw);
	struct end first = server;
	/* The window is bound through the first server's queue pair. */
	struct ibv_send_wr bind = { .wr_id = 4, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
				    .bind_mw = { .mw = mw, .rkey = ibv_inc_rkey(mw->rkey),
						 .bind_info = { server.mr, (uintptr_t)server.buffer, 64, IBV_ACCESS_REMOTE_WRITE } } },
			   *bad;
	struct ibv_wc wc;
	MUST(ibv_post_send(server.qp, &bind, &bad) == 0);
	while (ibv_poll_cq(server.cq, 1, &wc) == 0)
		;
	MUST(wc.status == IBV_WC_SUCCESS);
	/* A second connection to the same domain. */
	client = (struct end)END("client");
	server = (struct end)END("server");
	server.pd = first.pd;
	connect_pair();
	fill(&request, IBV_WR_RDMA_WRITE, 8);
	request.wr.wr.rdma.remote_addr = (uintptr_t)first.buffer;
	request.wr.wr.rdma.rkey = bind.bind_mw.rkey;
	post(&request);
	show_completion(&client);
}

/* The peer's queue pair is destroyed while this end still sends to it.
 *
 * shows: client: IBV_WC_RETRY_EXC_ERR (12)
 * shows: server: no completion
 * says: dropped: no QP # here for a packet from #: it was destroyed, or the sender has a wrong number
 * says: failed: QP #: PSN 100 not acknowledged by QP # at # within 4194 us, 2 retries used up; nothing was ever
 *       acknowledged: check dest_qp_num, the GID and both PSNs, and that the peer is in RTR
 */
MISTAKE(peer_destroyed)
{
	retry_shortly();
	connect_pair();
	MUST(ibv_destroy_qp(server.qp) == 0);
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_silence(&server);
}

/* The peer's queue pair is still in state INIT: nobody brought it to RTR.
 *
 * shows: client: IBV_WC_RETRY_EXC_ERR (12)
 * shows: server: no completion
 * says: dropped: QP # is in state INIT, which receives nothing; it must be in RTR or RTS
 * says: failed: QP #: PSN 100 not acknowledged by QP # at # within 4194 us, 2 retries used up; nothing was ever
 *       acknowledged: check dest_qp_num, the GID and both PSNs, and that the peer is in RTR
 */
MISTAKE(peer_not_ready)
{
	retry_shortly();
	create_pair();
	bring_to(&server, IBV_QPS_INIT);
	bring_to(&client, IBV_QPS_RTS);
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_silence(&server);
}

/* rq_psn of the responder is not sq_psn of the requester.
 *
 * shows: client: IBV_WC_RETRY_EXC_ERR (12)
 * shows: server: no completion
 * says: dropped: QP #: the peer expects PSN 100, but this QP began with sq_psn 4000: its rq_psn must be the same
 * says: failed: QP #: PSN 4000 not acknowledged by QP # at # within 67108 us, 2 retries used up; nothing was ever
 *       acknowledged: check dest_qp_num, the GID and both PSNs, and that the peer is in RTR
 */
MISTAKE(psn_mismatch)
{
	retry_shortly();
	client.timeout = 14; /* the NAK comes first on a loaded machine, too */
	client.sq_psn = 4000;
	connect_pair();
	post_receive(64);
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_silence(&server);
}

/* The same, but sq_psn is behind rq_psn: the responder takes the request for a duplicate.
 *
 * shows: client: IBV_WC_RETRY_EXC_ERR (12)
 * shows: server: no completion
 * says: dropped: QP #: response to PSN 99, but only PSNs before 51 were sent, from sq_psn 50 on: rq_psn of the peer must
 *       be the same
 * says: failed: QP #: PSN 50 not acknowledged by QP # at # within 67108 us, 2 retries used up; nothing was ever
 *       acknowledged: check dest_qp_num, the GID and both PSNs, and that the peer is in RTR
 */
MISTAKE(psn_behind)
{
	retry_shortly();
	client.timeout = 14; /* the NAK comes first on a loaded machine, too */
	client.sq_psn = 50;
	connect_pair();
	post_receive(64);
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_silence(&server);
}

/* dest_qp_num is not the number of the peer's queue pair.
 *
 * shows: client: IBV_WC_RETRY_EXC_ERR (12)
 * shows: server: no completion
 * says: dropped: no QP # here for a packet from #: it was destroyed, or the sender has a wrong number
 * says: failed: QP #: PSN 100 not acknowledged by QP # at # within 4194 us, 2 retries used up; nothing was ever
 *       acknowledged: check dest_qp_num, the GID and both PSNs, and that the peer is in RTR
 */
MISTAKE(wrong_destination_number)
{
	retry_shortly();
	create_pair();
	client.dest_qpn ^= 1;
	bring_to(&server, IBV_QPS_RTS);
	bring_to(&client, IBV_QPS_RTS);
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_silence(&server);
}

/* The destination GID is an address where no RDMA device is.
 *
 * shows: client: IBV_WC_RETRY_EXC_ERR (12)
 * shows: server: no completion
 * says: failed: QP #: PSN 100 not acknowledged by QP # at # within 4194 us, 2 retries used up; nothing was ever
 *       acknowledged: check dest_qp_num, the GID and both PSNs, and that the peer is in RTR
 */
MISTAKE(wrong_destination_address)
{
	retry_shortly();
	create_pair();
	client.dgid.raw[15] ^= 0x40;
	bring_to(&server, IBV_QPS_RTS);
	bring_to(&client, IBV_QPS_RTS);
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_silence(&server);
}

/* The responder's queue pair is connected to another peer.
 *
 * shows: client: IBV_WC_RETRY_EXC_ERR (12)
 * shows: server: no completion
 * says: dropped: QP # is connected from # to #, the packet went from # to #: the ends name different addresses,
 *       or the sender another queue pair
 * says: failed: QP #: PSN 100 not acknowledged by QP # at # within 4194 us, 2 retries used up; nothing was ever
 *       acknowledged: check dest_qp_num, the GID and both PSNs, and that the peer is in RTR
 */
MISTAKE(peer_connected_elsewhere)
{
	retry_shortly();
	create_pair();
	server.dgid.raw[15] ^= 0x40;
	bring_to(&server, IBV_QPS_RTS);
	bring_to(&client, IBV_QPS_RTS);
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_silence(&server);
}
