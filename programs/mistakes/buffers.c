/* Buffers and objects that are still in use: `ferroce run --explain=strict` watches them. */
#include "mistake.h"
#include <pthread.h>

/* The program fills a buffer anew before the completion of the SEND that sends it was polled.
 *
 * options: --explain=strict
 * shows: client: IBV_WC_SUCCESS (0)
 * says: misused: QP #: thread # writes to address #, offset 100 of the buffer of 4096 bytes at #, which the SEND with wr_id 0x1 sends and whose
 *       completion was not polled. The NIC may send the old bytes, the new ones or a mixture; change a buffer only after its completion
 *       was polled
 */
MISTAKE(buffer_changed_in_flight)
{
	connect_pair();
	post_receive(BYTES);
	post_plain(IBV_WR_SEND, BYTES);
	client.buffer[100] = 1;
	client.buffer[200] = 1;
	show_completion(&client);
	client.buffer[100] = 2;
}

/* The same with a buffer that does not fill a page: the change is found when the completion is polled.
 *
 * options: --explain=strict
 * shows: client: IBV_WC_SUCCESS (0)
 * says: misused: QP #: bytes 0..64 of the buffer of 64 bytes at # were changed between the post of the WRITE with wr_id 0x1 and the poll of its
 *       completion. The NIC may have sent the old bytes, the new ones or a mixture; change a buffer only after its completion was polled
 */
MISTAKE(small_buffer_changed_in_flight)
{
	connect_pair();
	post_plain(IBV_WR_RDMA_WRITE, 64);
	client.buffer[8] = 1;
	show_completion(&client);
}

/* The program reuses the buffer of an unsignalled WRITE. Only a later completion says that it may.
 *
 * options: --explain=strict
 * shows: client: IBV_WC_SUCCESS (0)
 * says: misused: QP #: thread # writes to address #, offset 0 of the buffer of 4096 bytes at #, which the WRITE with wr_id 0x1 sends and whose
 *       completion was not polled. The NIC may send the old bytes, the new ones or a mixture; change a buffer only after its completion
 *       was polled
 */
MISTAKE(buffer_of_unsignalled_write_changed)
{
	struct request request;
	connect_pair();
	fill(&request, IBV_WR_RDMA_WRITE, BYTES);
	request.wr.send_flags = 0;
	post(&request);
	client.buffer[0] = 1;
	post_plain(IBV_WR_RDMA_WRITE, BYTES);
	show_completion(&client);
	client.buffer[0] = 2;
}

/* Two receives are posted with the same buffer. The second message overwrites the first.
 *
 * options: --explain=strict
 * shows: server: IBV_WC_SUCCESS (0)
 * shows: server: IBV_WC_SUCCESS (0)
 * says: misused: QP #: the receive with wr_id 0x2 fills 64 bytes at #, and so does the receive with wr_id 0x2 on QP #, which is not completed:
 *       one overwrites the other. Give each outstanding receive and READ memory of its own
 */
MISTAKE(one_buffer_for_two_receives)
{
	connect_pair();
	post_receive(64);
	post_receive(64);
	post_plain(IBV_WR_SEND, 8);
	post_plain(IBV_WR_SEND, 8);
	show_completion(&server);
	show_completion(&server);
}

/* A READ fills the memory of an earlier READ that is not completed.
 *
 * options: --explain=strict
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: client: IBV_WC_SUCCESS (0)
 * says: misused: QP #: the READ with wr_id 0x1 fills 2048 bytes at #, and so does the READ with wr_id 0x1 on QP #, which is not completed: one
 *       overwrites the other. Give each outstanding receive and READ memory of its own
 */
MISTAKE(one_buffer_for_two_reads)
{
	struct request request;
	connect_pair();
	post_plain(IBV_WR_RDMA_READ, BYTES);
	fill(&request, IBV_WR_RDMA_READ, BYTES / 2);
	request.sge.addr += BYTES / 2;
	post(&request);
	show_completion(&client);
	show_completion(&client);
}

static void *destroy_client(void *unused)
{
	(void)unused;
	MUST(ibv_destroy_qp(client.qp) == 0);
	return NULL;
}

/* One thread destroys the queue pair, another one posts to it.
 *
 * options: --explain=strict
 * shows: ibv_post_send: EINVAL
 * says: misused: ibv_post_send: thread # uses the object at #, which thread # has destroyed with ibv_destroy_qp. On hardware this reads freed
 *       memory; destroy an object only after every thread has stopped using it
 */
MISTAKE(queue_pair_used_after_destroy)
{
	struct request request;
	struct ibv_send_wr *bad;
	pthread_t thread;
	connect_pair();
	fill(&request, IBV_WR_RDMA_WRITE, 8);
	MUST(pthread_create(&thread, NULL, destroy_client, NULL) == 0 && pthread_join(thread, NULL) == 0);
	REFUSED(ibv_post_send(client.qp, &request.wr, &bad));
}

/* The completion queue is polled after it was destroyed.
 *
 * options: --explain=strict
 * shows: ibv_poll_cq: -1
 * says: misused: ibv_poll_cq: thread # uses the object at #, which thread # has destroyed with ibv_destroy_cq. On hardware this reads freed
 *       memory; destroy an object only after every thread has stopped using it
 */
MISTAKE(completion_queue_polled_after_destroy)
{
	struct ibv_wc wc;
	create(&client);
	MUST(ibv_destroy_qp(client.qp) == 0 && ibv_destroy_cq(client.cq) == 0);
	printf("ibv_poll_cq: %d\n", ibv_poll_cq(client.cq, 1, &wc));
}

/* A destroyed queue pair is reset, as if it could be used again.
 *
 * options: --explain=strict
 * shows: ibv_modify_qp: EINVAL
 * says: misused: ibv_modify_qp: thread # uses the object at #, which thread # has destroyed with ibv_destroy_qp. On hardware this reads freed
 *       memory; destroy an object only after every thread has stopped using it
 */
MISTAKE(queue_pair_modified_after_destroy)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	create(&client);
	MUST(ibv_destroy_qp(client.qp) == 0);
	REFUSED(ibv_modify_qp(client.qp, &attr, IBV_QP_STATE));
}

/* The extended interface posts to a queue pair that was destroyed.
 *
 * options: --explain=strict
 * shows: ibv_wr_complete: EINVAL
 * says: misused: ibv_wr_complete: thread # uses the object at #, which thread # has destroyed with ibv_destroy_qp. On hardware this reads freed
 *       memory; destroy an object only after every thread has stopped using it
 */
MISTAKE(extended_post_after_destroy)
{
	create(&client);
	struct ibv_qp_init_attr_ex attr = { .send_cq = client.cq, .recv_cq = client.cq, .cap = client.cap,
					    .qp_type = IBV_QPT_RC, .pd = client.pd,
					    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					    .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	MUST(qp);
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);
	MUST(ibv_destroy_qp(qp) == 0);
	ibv_wr_start(qpx);
	ibv_wr_rdma_write(qpx, client.mr->rkey, (uintptr_t)client.buffer);
	ibv_wr_set_sge(qpx, client.mr->lkey, (uintptr_t)client.buffer, 8);
	REFUSED(ibv_wr_complete(qpx));
}

/* The extended interface polls a completion queue that was destroyed.
 *
 * options: --explain=strict
 * shows: ibv_start_poll: EINVAL
 * says: misused: ibv_start_poll: thread # uses the object at #, which thread # has destroyed with ibv_destroy_cq. On hardware this reads freed
 *       memory; destroy an object only after every thread has stopped using it
 */
MISTAKE(extended_poll_after_destroy)
{
	open_device();
	struct ibv_cq_init_attr_ex attr = { .cqe = 8, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct ibv_poll_cq_attr poll = { 0 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	MUST(cq && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	REFUSED(ibv_start_poll(cq, &poll));
}

/* A memory region is changed after it was deregistered.
 *
 * options: --explain=strict
 * shows: ibv_rereg_mr: IBV_REREG_MR_ERR_INPUT
 * says: misused: ibv_rereg_mr: thread # uses the object at #, which thread # has destroyed with ibv_dereg_mr. On hardware this reads freed memory;
 *       destroy an object only after every thread has stopped using it
 */
MISTAKE(region_changed_after_deregistration)
{
	create(&client);
	MUST(ibv_dereg_mr(client.mr) == 0);
	int result = ibv_rereg_mr(client.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE);
	printf("ibv_rereg_mr: %s\n", result == IBV_REREG_MR_ERR_INPUT ? "IBV_REREG_MR_ERR_INPUT" : "another result");
}

/* Two receives of a shared receive queue have the same buffer.
 *
 * options: --explain=strict
 * says: misused: SRQ #: the receive with wr_id 0x2 fills 64 bytes at #, and so does the receive with wr_id 0x2 on SRQ #, which is not completed:
 *       one overwrites the other. Give each outstanding receive and READ memory of its own
 */
MISTAKE(one_buffer_for_two_shared_receives)
{
	create(&client);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(client.pd, &attr);
	struct ibv_sge sge = { (uintptr_t)client.buffer, 64, client.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;
	MUST(srq);
	for (int i = 0; i < 2; i++)
		MUST(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}
