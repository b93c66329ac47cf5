// A connection to an address without a NIC: UNREACHABLE, as in the manual, after the time that the specification defines.
#include "cm.h"

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct sockaddr_in to = address("127.250.1.99", 5);
	CHECK(channel);
	DONE(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	DONE(rdma_resolve_addr(id, NULL, SA(to), 2000));
	PASS(channel, ADDR_RESOLVED);
	CHECK(strcmp(inet_ntoa(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr), "127.0.0.1") == 0);
	DONE(rdma_resolve_route(id, 2000));
	PASS(channel, ROUTE_RESOLVED);
	struct rdma_conn_param param = { .qp_num = 5 };
	time_t began = time(NULL);
	DONE(rdma_connect(id, &param));
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 150000) == 1);
	struct rdma_cm_event *event = EXPECT(channel, UNREACHABLE);
	CHECK(event->status == -ETIMEDOUT && event->id == id);
	// 16 times 4.3 seconds; less would mean that a retry is missing.
	CHECK(time(NULL) - began >= 60);
	DONE(rdma_ack_cm_event(event));
	DONE(rdma_destroy_id(id));
	return 0;
}
