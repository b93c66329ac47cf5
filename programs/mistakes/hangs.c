/* Programs that wait for ever. */
#include "mistake.h"
#include <pthread.h>
#include <rdma/rdma_cma.h>

/* No receive is posted, and rnr_retry is 7: the requester repeats for ever.
 *
 * shows: hangs
 * says: stalled: QP #: SEND wr_id 0x1 of 8 bytes waits for QP # at #, which has no receive posted for it: # RNR NAKs
 *       meanwhile; post receives there before this end sends
 */
MISTAKE(no_receive_for_ever)
{
	connect_pair();
	post_plain(IBV_WR_SEND, 8);
	hang(&client);
}

/* The peer is still in state INIT, and timeout is 0: the requester never repeats.
 *
 * shows: hangs
 * says: dropped: QP # is in state INIT, which receives nothing; it must be in RTR or RTS
 * says: stalled: QP #: SEND wr_id 0x1 of 8 bytes waits for QP # at #, which does not acknowledge PSN 100; nothing was
 *       ever acknowledged: check dest_qp_num, the GID and both PSNs, and that the peer is in RTR; timeout is 0, so it
 *       waits for ever
 */
MISTAKE(timeout_zero)
{
	client.timeout = 0;
	create_pair();
	bring_to(&server, IBV_QPS_INIT);
	bring_to(&client, IBV_QPS_RTS);
	post_plain(IBV_WR_SEND, 8);
	hang(&client);
}

/* The packets go to an address where no RDMA device is, and the timeout is long.
 *
 * shows: hangs
 * says: stalled: QP #: SEND wr_id 0x1 of 8 bytes waits for QP # at #, which does not acknowledge PSN 100; nothing was
 *       ever acknowledged: check dest_qp_num, the GID and both PSNs, and that the peer is in RTR
 */
MISTAKE(long_timeout_to_nowhere)
{
	client.timeout = 31;
	create_pair();
	client.dgid.raw[15] ^= 0x40;
	bring_to(&client, IBV_QPS_RTS);
	post_plain(IBV_WR_SEND, 8);
	hang(&client);
}

/* The completion goes to one completion queue, and the program polls another.
 *
 * shows: hangs
 * says: stalled: nobody has polled CQ 2 (completions in it: 1, the first of wr_id 0x1 on QP #) for 2 s: poll it; perhaps
 *       the program polls another one
 */
MISTAKE(wrong_completion_queue)
{
	connect_pair();
	post_plain(IBV_WR_RDMA_WRITE, 8);
	hang(&server);
}

/* Nobody polls.
 *
 * shows: hangs
 * says: stalled: nobody has polled CQ 2 (completions in it: 1, the first of wr_id 0x1 on QP #) for 2 s: poll it; perhaps
 *       the program polls another one
 * says: stalled: nobody has polled CQ 4 (completions in it: 1, the first of wr_id 0x2 on QP #) for 2 s: poll it; perhaps
 *       the program polls another one
 */
MISTAKE(nobody_polls)
{
	connect_pair();
	post_receive(64);
	post_plain(IBV_WR_SEND, 8);
	hang(NULL);
}

static void *end_with_input(void *unused)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	poll(&input, 1, -1);
	exit(0);
	return unused;
}

/* Prints `hangs`. The next call blocks, so another thread ends the program with its input. */
static void hang_in_call(void)
{
	pthread_t thread;
	puts("hangs");
	fflush(stdout);
	MUST(pthread_create(&thread, NULL, end_with_input, NULL) == 0);
}

static void wait_for_event(struct end *end)
{
	struct ibv_cq *cq;
	void *unused;
	MUST(ibv_get_cq_event(end->channel, &cq, &unused) == 0);
}

/* The completion queue is not armed again before the next wait for an event.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: hangs
 * says: stalled: nobody has polled CQ 2 (completions in it: 1, the first of wr_id 0x1 on QP #) for 2 s: it is not armed,
 *       so its channel wakes nobody: arm it, poll once more, and only then wait
 */
MISTAKE(not_armed_again)
{
	open_device();
	MUST((client.channel = ibv_create_comp_channel(context)));
	connect_pair();
	MUST(ibv_req_notify_cq(client.cq, 0) == 0);
	post_plain(IBV_WR_RDMA_WRITE, 8);
	wait_for_event(&client);
	ibv_ack_cq_events(client.cq, 1);
	show_completion(&client);
	post_plain(IBV_WR_RDMA_WRITE, 8);
	hang_in_call();
	wait_for_event(&client);
}

/* The receiver waits for solicited completions, and the sender does not set IBV_SEND_SOLICITED.
 *
 * shows: hangs
 * says: stalled: nobody has polled CQ 4 (completions in it: 1, the first of wr_id 0x2 on QP #) for 2 s: it is armed for
 *       solicited completions only: send with SOLICITED, or arm it for all
 */
MISTAKE(nothing_solicited)
{
	open_device();
	MUST((server.channel = ibv_create_comp_channel(context)));
	connect_pair();
	MUST(ibv_req_notify_cq(server.cq, 1) == 0);
	post_receive(64);
	post_plain(IBV_WR_SEND, 8);
	while (ibv_poll_cq(client.cq, 1, &(struct ibv_wc){ 0 }) == 0)
		;
	hang_in_call();
	wait_for_event(&server);
}

/* A completion queue is destroyed, but an event of it is not acknowledged.
 *
 * shows: hangs
 * says: stalled: ibv_destroy_cq waits: 1 events of the object are not acknowledged; call ibv_ack_cq_events for each event
 *       that was read
 */
MISTAKE(completion_event_not_acknowledged)
{
	open_device();
	MUST((client.channel = ibv_create_comp_channel(context)));
	connect_pair();
	MUST(ibv_req_notify_cq(client.cq, 0) == 0);
	post_plain(IBV_WR_RDMA_WRITE, 8);
	wait_for_event(&client);
	MUST(ibv_destroy_qp(client.qp) == 0);
	hang_in_call();
	ibv_destroy_cq(client.cq);
}

/* A queue pair is destroyed, but an asynchronous event of it is not acknowledged.
 *
 * shows: hangs
 * says: failed: QP #: WRITE from QP # refused: the access flags of the QP grant nothing, the operation needs
 *       REMOTE_WRITE; set it in qp_access_flags
 * says: failed: QP #: WRITE wr_id 0x1 of 8 bytes at # with rkey # was refused by QP # at # with NAK RemoteAccess: a right
 *       that the region or the queue pair does not grant
 * says: stalled: ibv_destroy_qp waits: 1 events of the object are not acknowledged; call ibv_ack_async_event for each
 *       event that was read
 */
MISTAKE(asynchronous_event_not_acknowledged)
{
	struct ibv_async_event event;
	server.qp_access = 0;
	connect_pair();
	post_plain(IBV_WR_RDMA_WRITE, 8);
	while (ibv_poll_cq(client.cq, 1, &(struct ibv_wc){ 0 }) == 0)
		;
	MUST(ibv_get_async_event(context, &event) == 0);
	hang_in_call();
	ibv_destroy_qp(server.qp);
}

/* An id of librdmacm is destroyed, but an event of it is not acknowledged.
 *
 * shows: hangs
 * says: stalled: rdma_destroy_id waits: 1 events of the id are not acknowledged; call rdma_ack_cm_event for each event
 *       that was read
 */
MISTAKE(connection_event_not_acknowledged)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7471) };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	union ibv_gid gid;
	open_device();
	MUST(ibv_query_gid(context, 1, 0, &gid) == 0);
	memcpy(&to.sin_addr, gid.raw + 12, 4);
	MUST(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
	MUST(rdma_get_cm_event(channel, &event) == 0);
	hang_in_call();
	rdma_destroy_id(id);
}
