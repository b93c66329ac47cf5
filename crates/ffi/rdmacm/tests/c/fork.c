// A child has its own device and connections, and its parent keeps its connections.
#include "cm.h"

static void connect_to(struct rdma_event_channel *channel, int port)
{
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_cm_id *id = routed(channel, RDMA_PS_TCP, port);
	DONE(rdma_create_qp(id, NULL, &attr));
	DONE(rdma_connect(id, NULL));
	PASS(channel, ESTABLISHED);
	DONE(rdma_disconnect(id));
	PASS(channel, DISCONNECTED);
	rdma_destroy_ep(id);
}

static void accept_one(struct rdma_event_channel *channel)
{
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_cm_event *event = EXPECT(channel, CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	DONE(rdma_ack_cm_event(event));
	DONE(rdma_create_qp(id, NULL, &attr));
	DONE(rdma_accept(id, NULL));
	PASS(channel, ESTABLISHED);
	PASS(channel, DISCONNECTED);
	rdma_destroy_ep(id);
}

int main(void)
{
	int port, status;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	struct rdma_cm_id *listens = listener(channel, RDMA_PS_TCP, &port), *old = listens;
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		// The child cannot use the parent's objects.
		REFUSED(rdma_listen(old, 1), EIO);
		struct rdma_event_channel *own = rdma_create_event_channel();
		CHECK(own);
		connect_to(own, port);
		_exit(0);
	}
	accept_one(channel);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	DONE(rdma_destroy_id(listens));
	rdma_destroy_event_channel(channel);
	return 0;
}
