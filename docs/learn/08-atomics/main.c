/* Two clients draw numbers from a counter in the server's memory, and one takes a lock. */
#include "rdma.h"

/* Executes an atomic on eight bytes of the server. Returns what they contained before. */
static uint64_t atomic(struct end *client, const struct end *server, size_t offset, struct ibv_send_wr wr)
{
	struct ibv_sge old = { .addr = (uintptr_t)client->buffer, .length = 8, .lkey = client->mr->lkey };
	struct ibv_send_wr *bad;
	wr.sg_list = &old;
	wr.num_sge = 1;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.atomic.remote_addr = (uintptr_t)server->buffer + offset;
	wr.wr.atomic.rkey = server->mr->rkey;
	CHECK(ibv_post_send(client->qp, &wr, &bad));
	struct ibv_wc wc = wait_completion(client);
	if (wc.status != IBV_WC_SUCCESS)
		report(client, "atomic", &wc);
	return *(uint64_t *)client->buffer;
}

static uint64_t fetch_add(struct end *client, const struct end *server, size_t offset, uint64_t add)
{
	return atomic(client, server, offset,
		      (struct ibv_send_wr){ .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .wr.atomic.compare_add = add });
}

static uint64_t compare_swap(struct end *client, const struct end *server, size_t offset, uint64_t expected, uint64_t value)
{
	return atomic(client, server, offset,
		      (struct ibv_send_wr){ .opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .wr.atomic.compare_add = expected,
					    .wr.atomic.swap = value });
}

int main(void)
{
	/* Each client has its own queue pair to the server. The counter is at offset 0, the lock at offset 8. */
	struct end alice = create_end("alice", IBV_QPT_RC), bob = create_end("bob", IBV_QPT_RC);
	struct end server = create_end("server", IBV_QPT_RC), second = create_end("second", IBV_QPT_RC);
	second.buffer = server.buffer;
	second.mr = MAKE(ibv_reg_mr(second.pd, server.buffer, SIZE, second.access));
	connect_ends(&alice, &server);
	connect_ends(&bob, &second);

	for (int i = 0; i < 2; i++) {
		printf("alice draws %d\n", (int)fetch_add(&alice, &server, 0, 1));
		printf("bob draws %d\n", (int)fetch_add(&bob, &second, 0, 1));
	}

	/* The lock: 0 is free. The swap happens only if the old value is the expected one. */
	printf("alice takes the lock: %s\n", compare_swap(&alice, &server, 8, 0, 1) == 0 ? "yes" : "no");
	printf("bob takes the lock: %s\n", compare_swap(&bob, &second, 8, 0, 2) == 0 ? "yes" : "no");
	compare_swap(&alice, &server, 8, 1, 0);
	printf("bob takes the lock: %s\n", compare_swap(&bob, &second, 8, 0, 2) == 0 ? "yes" : "no");
	return 0;
}
