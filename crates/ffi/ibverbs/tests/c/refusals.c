// Calls that must fail, each with the errno of its manual page.
#include "check.h"
#include <stdint.h>
#include <sys/mman.h>

static void in_use(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	CHECK(srq && srq_init.attr.max_wr >= 4);
	struct end end = make_end(context, IBV_QPT_RC, srq, pd);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, channel, 0);
	CHECK(cq && cq->cqe >= 1);

	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_cq(end.cq) == EBUSY);
	CHECK(ibv_destroy_srq(srq) == EBUSY);

	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	free_end(&end);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
}

static void arguments(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *buf = aligned_alloc(4096, 8192);
	// Parentheses avoid the macro of the header, which calls another symbol if the flags are not constant.
	CHECK_NULL((ibv_reg_mr)(NULL, buf, 8192, 0), EINVAL);
	CHECK_NULL((ibv_reg_mr)(pd, buf, 8192, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	CHECK_NULL((ibv_reg_mr)(pd, buf, 8192, 1 << 15), EINVAL);
	CHECK_NULL((ibv_reg_mr)(pd, (void *)4096, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	char *constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK_NULL((ibv_reg_mr)(pd, constant, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	struct ibv_mr *readable = (ibv_reg_mr)(pd, constant, 4096, IBV_ACCESS_REMOTE_READ);
	CHECK(readable);
	CHECK(ibv_dereg_mr(readable) == 0);
	munmap(constant, 4096);
	struct ibv_mr *optional = ibv_reg_mr_iova2(pd, buf, 8192, 0x1000, IBV_ACCESS_LOCAL_WRITE | 1 << 25);
	CHECK(optional);
	CHECK(ibv_dereg_mr(optional) == 0);
	CHECK(ibv_dereg_mr(NULL) == EINVAL);
	// From the first page to the end of the address space.
	for (uintptr_t start = 1; start <= 4096; start += 4095) {
		CHECK_NULL((ibv_reg_mr)(pd, (void *)start, SIZE_MAX - start + 1, IBV_ACCESS_LOCAL_WRITE), EFAULT);
		struct ibv_mr *moved = (ibv_reg_mr)(pd, buf, 8192, IBV_ACCESS_LOCAL_WRITE);
		CHECK(ibv_rereg_mr(moved, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)start, SIZE_MAX - start + 1, 0) ==
		      IBV_REREG_MR_ERR_INPUT);
		CHECK(ibv_dereg_mr(moved) == 0);
	}

	CHECK_NULL(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	CHECK_NULL(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	CHECK_NULL(ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors), EINVAL);
	CHECK_NULL(ibv_create_cq(context, 1, NULL, NULL, -1), EINVAL);

	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	CHECK_NULL(ibv_create_qp(pd, &init), EINVAL);
	struct ibv_ah_attr no_route = { .port_num = 1 };
	CHECK_NULL(ibv_create_ah(pd, &no_route), EINVAL);
	struct ibv_ah_attr no_port = { .is_global = 1, .port_num = 2 };
	CHECK_NULL(ibv_create_ah(pd, &no_port), EINVAL);

	struct ibv_port_attr port;
	CHECK(ibv_query_port(context, 2, &port) == EINVAL);
	union ibv_gid gid;
	CHECK(ibv_query_gid(context, 1, 255, &gid) == 0);
	CHECK(ibv_query_gid(context, 1, 256, &gid) == -1 && errno == EINVAL);
	struct ibv_gid_entry entry;
	CHECK(ibv_query_gid_ex(context, 1, 255, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid_table(context, &entry, 0, 0) < 0);
	__be16 pkey;
	CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK(ibv_query_pkey(context, 1, 1, &pkey) == -1 && errno == EINVAL);
	CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
	free(buf);
}

static void posts(struct ibv_context *context)
{
	struct end end = make_end(context, IBV_QPT_RC, NULL, NULL);
	struct ibv_sge sge = { (uintptr_t)end.buf, 8, end.mr->lkey };
	struct ibv_send_wr wrs[3] = {
		{ .wr_id = 0, .next = &wrs[1], .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND },
		{ .wr_id = 1, .next = &wrs[2], .sg_list = &sge, .num_sge = 99, .opcode = IBV_WR_SEND },
		{ .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND },
	};
	struct ibv_send_wr *bad = NULL;
	CHECK(ibv_post_send(end.qp, wrs, &bad) == EINVAL && bad == &wrs[0]);
	connect_end(&end, end.qp->qp_num);
	// The first request is accepted, the second has too many SGEs.
	CHECK(ibv_post_send(end.qp, wrs, &bad) == EINVAL && bad == &wrs[1]);
	// The same where the call itself reads the data: it reads no entries beyond the maximum.
	wrs[1].send_flags = IBV_SEND_INLINE;
	CHECK(ibv_post_send(end.qp, &wrs[1], &bad) == EINVAL && bad == &wrs[1]);
	wrs[1].opcode = IBV_WR_ATOMIC_WRITE;
	CHECK(ibv_post_send(end.qp, &wrs[1], &bad) == EINVAL && bad == &wrs[1]);
	wrs[1].send_flags = 0, wrs[1].opcode = IBV_WR_SEND;
	wrs[1].num_sge = -1;
	CHECK(ibv_post_send(end.qp, &wrs[1], &bad) == EINVAL && bad == &wrs[1]);
	wrs[1].num_sge = 1;
	wrs[1].opcode = 77;
	CHECK(ibv_post_send(end.qp, &wrs[1], &bad) != 0 && bad == &wrs[1]);

	struct ibv_recv_wr recv[END_DEPTH + 1], *bad_recv = NULL;
	for (int i = 0; i <= END_DEPTH; i++)
		recv[i] = (struct ibv_recv_wr){ i, i < END_DEPTH ? &recv[i + 1] : NULL, &sge, 1 };
	CHECK(ibv_post_recv(end.qp, recv, &bad_recv) == ENOMEM && bad_recv == &recv[END_DEPTH]);

	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE) == EINVAL);
	attr.qp_state = 99;
	CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE) == EINVAL);
	struct ibv_pd *pd = end.pd;
	free_end(&end);
	CHECK(ibv_dealloc_pd(pd) == 0);
}

// A pointer to a destroyed object, or to an object of another kind, is not read.
static void ended_objects(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	static char buf[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof(buf), 0);
	CHECK(pd && cq && mr);
	// A kernel driver identifies the object by its handle.
	mr->handle ^= 1;
	cq->handle ^= 1;
	CHECK(ibv_dereg_mr(mr) == EINVAL);
	CHECK(ibv_destroy_cq(cq) == EINVAL);
	mr->handle ^= 1;
	cq->handle ^= 1;
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_cq((struct ibv_cq *)(void *)mr) == EINVAL);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dereg_mr(mr) == EINVAL);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_cq(cq) == EINVAL);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_dealloc_pd(pd) == EINVAL);
	struct ibv_context *second = open_device();
	CHECK(ibv_close_device(second) == 0);
	CHECK(ibv_close_device(second) == -1 && errno == EINVAL);
}

int main(void)
{
	struct ibv_context *context = open_device();
	in_use(context);
	arguments(context);
	posts(context);
	ended_objects(context);
	CHECK(ibv_close_device(context) == 0);
	CHECK(ibv_close_device(NULL) == -1);
	return 0;
}
