/* The server lets the client write 1024 bytes of its memory, and takes the right back. */
#include "rdma.h"

/* A request without data, of the server to its own NIC. */
static void execute(struct end *end, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	wr->send_flags = IBV_SEND_SIGNALED;
	CHECK(ibv_post_send(end->qp, wr, &bad));
	struct ibv_wc wc = wait_completion(end);
	if (wc.status != IBV_WC_SUCCESS) {
		printf("server: request: status %d\n", wc.status);
		exit(1);
	}
}

/* WRITEs six bytes to an address of the server, and prints the outcome. */
static void write_to(struct end *client, const char *address, uint32_t rkey, const char *what)
{
	struct ibv_sge bytes = { .addr = (uintptr_t)client->buffer, .length = 6, .lkey = client->mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &bytes, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = (uintptr_t)address, .rkey = rkey } }, *bad;
	CHECK(ibv_post_send(client->qp, &wr, &bad));
	struct ibv_wc wc = wait_completion(client);
	printf("client: WRITE %s: status %d\n", what, wc.status);
}

int main(void)
{
	struct end client = create_end("client", IBV_QPT_RC), server = create_end("server", IBV_QPT_RC);
	connect_ends(&client, &server);
	strcpy(client.buffer, "result");

	/* The region itself grants nothing to peers, but windows can be bound to it. */
	char *page = memset(MAKE(aligned_alloc(SIZE, SIZE)), '-', SIZE);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(server.pd, page, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));

	/* A window: a key of its own for bytes 1024 to 2047, for writing only. */
	struct ibv_mw *mw = MAKE(ibv_alloc_mw(server.pd, IBV_MW_TYPE_2));
	uint32_t key = ibv_inc_rkey(mw->rkey);
	struct ibv_send_wr bind = { .opcode = IBV_WR_BIND_MW,
				    .bind_mw = { .mw = mw, .rkey = key,
						 .bind_info = { .mr = mr, .addr = (uintptr_t)page + 1024, .length = 1024,
								.mw_access_flags = IBV_ACCESS_REMOTE_WRITE } } };
	execute(&server, &bind);
	write_to(&client, page + 1024, key, "through the window");
	printf("server: %.6s\n", page + 1024);

	/* The key is revoked. The memory stays registered. */
	struct ibv_send_wr invalidate = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = key };
	execute(&server, &invalidate);
	write_to(&client, page + 1024, key, "after the invalidation");
	return 0;
}
