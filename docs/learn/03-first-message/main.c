/* One message from a client to a server, over a reliable connection. */
#include "rdma.h"

int main(void)
{
	struct end client = create_end("client", IBV_QPT_RC), server = create_end("server", IBV_QPT_RC);
	connect_ends(&client, &server);

	/* The server posts a receive: the buffer for one message. */
	struct ibv_sge room = { .addr = (uintptr_t)server.buffer, .length = 64, .lkey = server.mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &room, .num_sge = 1 }, *bad_receive;
	CHECK(ibv_post_recv(server.qp, &receive, &bad_receive));

	/* The client posts a send: the bytes of the message. */
	strcpy(client.buffer, "hello");
	struct ibv_sge bytes = { .addr = (uintptr_t)client.buffer, .length = 5, .lkey = client.mr->lkey };
	struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND, .sg_list = &bytes, .num_sge = 1,
				    .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	CHECK(ibv_post_send(client.qp, &send, &bad_send));

	/* Each end gets a completion. */
	struct ibv_wc sent = wait_completion(&client);
	report(&client, "SEND", &sent);
	struct ibv_wc received = wait_completion(&server);
	report(&server, "RECV", &received);
	printf("server: wr_id %d, %u bytes: %.*s\n", (int)received.wr_id, received.byte_len, (int)received.byte_len,
	       server.buffer);
	return 0;
}
