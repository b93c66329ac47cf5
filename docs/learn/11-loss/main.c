/* 100 messages of several packets each, and one message that finds its receive late. */
#include "rdma.h"
#include <unistd.h>

enum { MESSAGES = 100, LENGTH = 4000 };

static void post(struct end *client)
{
	struct ibv_sge bytes = { .addr = (uintptr_t)client->buffer, .length = LENGTH, .lkey = client->mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &bytes, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(client->qp, &wr, &bad));
}

int main(void)
{
	struct end client = create_end("client", IBV_QPT_RC), server = create_end("server", IBV_QPT_RC);
	connect_ends(&client, &server);

	int in_order = 1;
	for (int i = 0; i < MESSAGES; i++) {
		post_receive(&server, i, SIZE);
		memset(client.buffer, i, LENGTH);
		post(&client);
		struct ibv_wc sent = wait_completion(&client);
		if (sent.status != IBV_WC_SUCCESS)
			report(&client, "SEND", &sent);
		wait_completion(&server);
		in_order = in_order && server.buffer[0] == i && server.buffer[LENGTH - 1] == i;
	}
	printf("%d messages arrived, %s\n", MESSAGES, in_order ? "complete and in order" : "damaged");

	/* The server is late by 20 ms. The client's NIC repeats the message meanwhile. */
	post(&client);
	usleep(20000);
	post_receive(&server, MESSAGES, SIZE);
	struct ibv_wc late = wait_completion(&client);
	report(&client, "SEND with a late receive", &late);
	return 0;
}
