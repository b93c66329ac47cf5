/* The same 16-byte WRITEs in four ways. */
#include "rdma.h"
#include <time.h>

enum { ROUNDS = 200, BATCH = 32, LENGTH = 16 };

static double now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

/* Posts BATCH requests, `linked` of them with each call. Every `signalled`-th makes a completion. Returns ns per request. */
static double measure(struct end *client, const struct end *server, int linked, int signalled, int flags)
{
	struct ibv_sge bytes = { .addr = (uintptr_t)client->buffer, .length = LENGTH, .lkey = client->mr->lkey };
	struct ibv_send_wr wrs[BATCH], *bad;
	for (int i = 0; i < BATCH; i++) {
		int last = (i + 1) % signalled == 0;
		wrs[i] = (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE, .sg_list = &bytes, .num_sge = 1,
					       .next = (i + 1) % linked ? &wrs[i + 1] : NULL,
					       .send_flags = flags | (last ? IBV_SEND_SIGNALED : 0),
					       .wr.rdma = { .remote_addr = (uintptr_t)server->buffer, .rkey = server->mr->rkey } };
	}
	double start = now_ns();
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < BATCH; i += linked)
			CHECK(ibv_post_send(client->qp, &wrs[i], &bad));
		for (int i = 0; i < BATCH / signalled; i++) {
			struct ibv_wc wc = wait_completion(client);
			if (wc.status != IBV_WC_SUCCESS)
				report(client, "WRITE", &wc);
		}
	}
	return (now_ns() - start) / ROUNDS / BATCH;
}

/* One request at a time: post, wait, post. */
static double one_by_one(struct end *client, const struct end *server)
{
	struct ibv_sge bytes = { .addr = (uintptr_t)client->buffer, .length = LENGTH, .lkey = client->mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &bytes, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = (uintptr_t)server->buffer, .rkey = server->mr->rkey } }, *bad;
	double start = now_ns();
	for (int round = 0; round < ROUNDS; round++) {
		CHECK(ibv_post_send(client->qp, &wr, &bad));
		wait_completion(client);
	}
	return (now_ns() - start) / ROUNDS;
}

int main(void)
{
	struct end client = create_end("client", IBV_QPT_RC), server = create_end("server", IBV_QPT_RC);
	connect_ends(&client, &server);
	measure(&client, &server, 1, 1, 0); /* warms the caches */
	double base = one_by_one(&client, &server);
	printf("one by one:                  %.0f ns per WRITE\n", base);
	printf("32 outstanding:              %.2f of it\n", measure(&client, &server, 1, 1, 0) / base);
	printf("and one doorbell for all:    %.2f\n", measure(&client, &server, BATCH, 1, 0) / base);
	printf("and only the last signalled: %.2f\n", measure(&client, &server, BATCH, BATCH, 0) / base);
	printf("and inline:                  %.2f\n", measure(&client, &server, BATCH, BATCH, IBV_SEND_INLINE) / base);
	return 0;
}
