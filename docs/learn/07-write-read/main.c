/* The client writes into the memory of the server and reads from it. Only the third request involves the server's program. */
#include "rdma.h"
#include <arpa/inet.h>

/* Posts a request about the first bytes of both buffers, and waits. */
static void transfer(struct end *client, const struct end *server, enum ibv_wr_opcode opcode, const char *what)
{
	struct ibv_sge local = { .addr = (uintptr_t)client->buffer, .length = 4, .lkey = client->mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &local, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
				  .imm_data = htonl(42),
				  .wr.rdma = { .remote_addr = (uintptr_t)server->buffer, .rkey = server->mr->rkey } }, *bad;
	CHECK(ibv_post_send(client->qp, &wr, &bad));
	struct ibv_wc wc = wait_completion(client);
	report(client, what, &wc);
}

int main(void)
{
	struct end client = create_end("client", IBV_QPT_RC), server = create_end("server", IBV_QPT_RC);
	connect_ends(&client, &server);

	/* WRITE: from the client's memory to the server's. */
	strcpy(client.buffer, "ping");
	transfer(&client, &server, IBV_WR_RDMA_WRITE, "WRITE");
	printf("in the server's memory: %s\n", server.buffer);

	/* READ: from the server's memory to the client's. */
	strcpy(server.buffer, "pong");
	transfer(&client, &server, IBV_WR_RDMA_READ, "READ");
	printf("in the client's memory: %s\n", client.buffer);

	/* WRITE with immediate data: takes a receive, so that the server's program is informed. */
	post_receive(&server, 1, 0);
	transfer(&client, &server, IBV_WR_RDMA_WRITE_WITH_IMM, "WRITE with immediate");
	struct ibv_wc wc = wait_completion(&server);
	printf("server: immediate data %u, %u bytes written\n", ntohl(wc.imm_data), wc.byte_len);
	return 0;
}
