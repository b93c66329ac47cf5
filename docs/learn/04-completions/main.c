/* Of three SENDs only the last makes a completion. The server sleeps until there are completions. */
#include "rdma.h"

int main(void)
{
	struct ibv_comp_channel *channel = MAKE(ibv_create_comp_channel(open_device()));
	struct ibv_cq *cq = MAKE(ibv_create_cq(open_device(), 16, NULL, channel, 0));
	struct end client = create_end("client", IBV_QPT_RC), server = create_end_with("server", IBV_QPT_RC, cq);
	connect_ends(&client, &server);
	for (int i = 1; i <= 3; i++)
		post_receive(&server, i, 64);

	/* Armed: the next completion makes the channel readable, once. */
	CHECK(ibv_req_notify_cq(cq, 0));

	for (int i = 1; i <= 3; i++) {
		struct ibv_sge bytes = { .addr = (uintptr_t)client.buffer, .length = 5, .lkey = client.mr->lkey };
		struct ibv_send_wr send = { .wr_id = i, .opcode = IBV_WR_SEND, .sg_list = &bytes, .num_sge = 1,
					    .send_flags = i == 3 ? IBV_SEND_SIGNALED : 0 }, *bad;
		CHECK(ibv_post_send(client.qp, &send, &bad));
	}
	struct ibv_wc sent = wait_completion(&client);
	printf("client: one completion for three SENDs: wr_id %d\n", (int)sent.wr_id);

	for (int received = 0; received < 3;) {
		struct ibv_cq *ready;
		void *context;
		check("ibv_get_cq_event", ibv_get_cq_event(channel, &ready, &context) ? errno : 0); /* sleeps */
		ibv_ack_cq_events(ready, 1);
		/* Arm first, then poll until the queue is empty. */
		CHECK(ibv_req_notify_cq(ready, 0));
		struct ibv_wc wc;
		int count;
		while ((count = ibv_poll_cq(ready, 1, &wc)) == 1) {
			printf("server: RECV wr_id %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
			received++;
		}
		check("ibv_poll_cq", count < 0 ? EIO : 0);
	}
	CHECK(ibv_destroy_qp(server.qp));
	CHECK(ibv_destroy_cq(cq));
	CHECK(ibv_destroy_comp_channel(channel));
	return 0;
}
