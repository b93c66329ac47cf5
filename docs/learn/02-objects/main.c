/* Creates one object of each kind that a program needs, and destroys them. */
#include "rdma.h"

int main(void)
{
	/* The device, opened: a context. */
	struct ibv_device **devices = MAKE(ibv_get_device_list(NULL));
	struct ibv_context *context = MAKE(ibv_open_device(devices[0]));
	printf("context: device %s\n", ibv_get_device_name(devices[0]));
	ibv_free_device_list(devices);

	/* The protection domain: what may be used together. */
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(context));

	/* The memory region: 4096 bytes that the device may access. */
	char *buffer = MAKE(aligned_alloc(4096, 4096));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
	printf("memory region: %zu bytes, lkey 0x%x, rkey 0x%x\n", mr->length, mr->lkey, mr->rkey);

	/* The completion queue: where finished work is reported. */
	struct ibv_cq *cq = MAKE(ibv_create_cq(context, 16, NULL, NULL, 0));
	printf("completion queue: %s\n", cq->cqe >= 16 ? "at least 16 entries" : "too small");

	/* The queue pair: where work is posted. */
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = MAKE(ibv_create_qp(pd, &attr));
	printf("queue pair: number 0x%06x\n", qp->qp_num);

	/* In reverse order: what is in use cannot be destroyed. */
	CHECK(ibv_destroy_qp(qp));
	CHECK(ibv_destroy_cq(cq));
	CHECK(ibv_dereg_mr(mr));
	CHECK(ibv_dealloc_pd(pd));
	CHECK(ibv_close_device(context));
	free(buffer);
	puts("all destroyed");
	return 0;
}
