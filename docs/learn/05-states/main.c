/* A queue pair goes through its states. It is connected to itself: the peer's number and the own one are the same. */
#include "rdma.h"

static void show(struct ibv_qp *qp, const char *what)
{
	static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	printf("%-5s  %s\n", names[attr.qp_state], what);
}

int main(void)
{
	struct end end = create_end("end", IBV_QPT_RC);
	struct ibv_qp *qp = end.qp;
	show(qp, "nothing can be posted");

	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .pkey_index = 0, .port_num = 1, .qp_access_flags = REMOTE };
	CHECK(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	post_receive(&end, 1, 64);
	show(qp, "receives can be posted");

	/* Ready to receive: it must know who sends, and with which first packet sequence number (PSN). */
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .dest_qp_num = qp->qp_num, .rq_psn = 7, .path_mtu = IBV_MTU_1024,
				   .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
				   .ah_attr = { .port_num = 1, .is_global = 1, .grh = { .hop_limit = 64 } } };
	CHECK(ibv_query_gid(qp->context, 1, 0, &rtr.ah_attr.grh.dgid));
	CHECK(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	show(qp, "messages can arrive");

	/* Ready to send: the own first PSN, and how often it retries. */
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				   .max_rd_atomic = 1 };
	CHECK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					      IBV_QP_MAX_QP_RD_ATOMIC));
	struct ibv_sge bytes = { .addr = (uintptr_t)end.buffer, .length = 5, .lkey = end.mr->lkey };
	struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND, .sg_list = &bytes, .num_sge = 1,
				    .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(qp, &send, &bad));
	wait_completion(&end);
	wait_completion(&end);
	show(qp, "a message was sent and received");

	/* Error: what is still posted is flushed. */
	post_receive(&end, 3, 64);
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(qp, &err, IBV_QP_STATE));
	show(qp, "a posted receive is flushed:");
	struct ibv_wc wc = wait_completion(&end);
	printf("       wr_id %d: %s\n", (int)wc.wr_id, wc.status == IBV_WC_WR_FLUSH_ERR ? "flushed" : "something else");

	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	CHECK(ibv_modify_qp(qp, &reset, IBV_QP_STATE));
	show(qp, "as new");
	return 0;
}
