// A panic inside the library, which FERROCE_TEST_PANIC causes in the call that argv[1] names. The call fails with EIO, the device
// raises an event, and the program continues and destroys its objects.
#include "check.h"

static void expect_fatal(struct ibv_context *context)
{
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&event);
}

static struct ibv_send_wr a_write(struct ibv_sge *word, const struct end *to)
{
	return (struct ibv_send_wr){ .sg_list = word,
				     .num_sge = 1,
				     .opcode = IBV_WR_RDMA_WRITE,
				     .send_flags = IBV_SEND_SIGNALED,
				     .wr.rdma = { (uintptr_t)to->buf, to->mr->rkey } };
}

// A panic while a batch is posted releases the lock that ibv_wr_start took: the next batch begins, and is refused.
static void panic_in_a_batch(struct ibv_context *context, struct ibv_pd *pd)
{
	struct end a = make_end(context, IBV_QPT_RC, NULL, pd), b = make_end(context, IBV_QPT_RC, NULL, pd);
	struct ibv_qp_init_attr_ex init = { .send_cq = a.cq,
					    .recv_cq = a.cq,
					    .cap = { END_DEPTH, END_DEPTH, 4, 4, 64 },
					    .qp_type = IBV_QPT_RC,
					    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					    .pd = pd,
					    .send_ops_flags = IBV_QP_EX_WITH_SEND };
	CHECK(ibv_destroy_qp(a.qp) == 0);
	a.qp = ibv_create_qp_ex(context, &init);
	CHECK(a.qp);
	connect_end(&a, b.qp->qp_num);
	connect_end(&b, a.qp->qp_num);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a.qp);
	for (int i = 0; i < 2; i++) {
		ibv_wr_start(ex);
		ibv_wr_send(ex);
		ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 8);
		CHECK(ibv_wr_complete(ex) == EIO);
	}
	free_end(&a);
	free_end(&b);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	struct ibv_context *context = open_device(), *bystander = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);
	if (strcmp(argv[1], "ibv_reg_mr") == 0) {
		static char memory[64];
		CHECK_NULL(ibv_reg_mr(pd, memory, sizeof memory, 0), EIO);
	} else if (strcmp(argv[1], "ibv_wr_complete, locked") == 0) {
		panic_in_a_batch(context, pd);
	} else {
		struct end a = make_end(context, IBV_QPT_RC, NULL, pd), b = make_end(context, IBV_QPT_RC, NULL, pd);
		connect_end(&a, b.qp->qp_num);
		connect_end(&b, a.qp->qp_num);
		struct ibv_sge word = { (uintptr_t)a.buf, 8, a.mr->lkey };
		struct ibv_send_wr write = a_write(&word, &b), *bad = NULL;
		struct ibv_wc wc;
		errno = 0;
		if (strcmp(argv[1], "ibv_poll_cq") == 0) {
			CHECK(ibv_post_send(a.qp, &write, &bad) == 0);
			CHECK(ibv_poll_cq(a.cq, 1, &wc) < 0 && errno == EIO);
		} else {
			CHECK(ibv_post_send(a.qp, &write, &bad) == EIO);
			// All locks are released: this succeeds and does not hang.
			CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
			struct ibv_qp_attr attr;
			struct ibv_qp_init_attr init;
			CHECK(ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS);
		}
		free_end(&a);
		free_end(&b);
	}
	// Every open context of the device receives the event.
	expect_fatal(context);
	expect_fatal(bystander);
	struct ibv_device_attr attr;
	CHECK(ibv_query_device(context, &attr) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0 && ibv_close_device(bystander) == 0);
	return 0;
}
