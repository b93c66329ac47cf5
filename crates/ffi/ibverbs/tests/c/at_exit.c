/* Verbs in an exit handler, as libraries with a finalizer use them. At that point the thread-locals of the calling thread are destroyed. */
#include "check.h"

static struct ibv_context *context;
static char bytes[4096];

static void use_everything(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(pd && cq);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(mr && mw);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11111111};
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);

	/* It sends to itself, so that packets are sent and received, too. */
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1};
	CHECK(ibv_query_gid(context, 1, 0, &to.grh.dgid) == 0);
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	CHECK(ah);
	struct ibv_sge in = {.addr = (uintptr_t)bytes, .length = 64, .lkey = mr->lkey};
	struct ibv_sge out = {.addr = (uintptr_t)bytes + 2048, .length = 8, .lkey = mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &in, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &out, .num_sge = 1,
		.wr.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = 0x11111111}}, *bad_send;
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == 0);
	CHECK(ibv_post_send(qp, &send, &bad_send) == 0);
	for (int done = 0, looks = 0; done < 2; looks++) {
		struct ibv_wc wc;
		int found = ibv_poll_cq(cq, 1, &wc);
		CHECK(found >= 0 && looks < 2000000);
		CHECK(found == 0 || wc.status == IBV_WC_SUCCESS);
		done += found;
		if (found == 0)
			usleep(1);
	}
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0 && ibv_dealloc_mw(mw) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
}

static void handler(void)
{
	use_everything();
	/* A handler must not call `exit`. */
	_exit(0);
}

int main(void)
{
	context = open_device();
	/* The first use creates the thread-locals, which are destroyed when the handler runs. */
	use_everything();
	CHECK(atexit(handler) == 0);
	/* The exit status is a failure unless the handler runs to its end. */
	return 1;
}
