// Many threads: several read one channel, others connect with ids whose calls block.
#include "cm.h"

#define CLIENTS 4
#define ROUNDS 200
#define READERS 3

static struct rdma_event_channel *requests;
static int port;

// Accepts connection requests, and destroys each id after its connection has ended. Different threads may receive the events of one
// connection.
static void *serves(void *ignored)
{
	(void)ignored;
	for (;;) {
		struct rdma_cm_event *event;
		DONE(rdma_get_cm_event(requests, &event));
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type kind = event->event;
		struct rdma_cm_id *listens = event->listen_id;
		DONE(rdma_ack_cm_event(event));
		switch (kind) {
		case RDMA_CM_EVENT_CONNECT_REQUEST: {
			CHECK(listens);
			struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
			DONE(rdma_create_qp(id, NULL, &attr));
			DONE(rdma_accept(id, NULL));
			break;
		}
		case RDMA_CM_EVENT_ESTABLISHED:
		case RDMA_CM_EVENT_DISCONNECTED:
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			rdma_destroy_ep(id);
			break;
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			// The main thread stops the readers: one event for each.
			return NULL;
		default:
			fprintf(stderr, "unexpected %s\n", rdma_event_str(kind));
			exit(1);
		}
	}
}

static void *connects(void *ignored)
{
	(void)ignored;
	for (int round = 0; round < ROUNDS; round++) {
		struct rdma_cm_id *id;
		struct sockaddr_in to = address("127.0.0.1", port);
		struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
		DONE(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
		DONE(rdma_resolve_addr(id, NULL, SA(to), 2000));
		DONE(rdma_resolve_route(id, 2000));
		DONE(rdma_create_qp(id, NULL, &attr));
		DONE(rdma_connect(id, NULL));
		if (round % 2)
			DONE(rdma_disconnect(id));
		rdma_destroy_ep(id);
	}
	return NULL;
}

int main(void)
{
	pthread_t readers[READERS], clients[CLIENTS];
	requests = rdma_create_event_channel();
	CHECK(requests);
	struct rdma_cm_id *listens = listener(requests, RDMA_PS_TCP, &port);
	for (int i = 0; i < READERS; i++)
		CHECK(pthread_create(&readers[i], NULL, serves, NULL) == 0);
	for (int i = 0; i < CLIENTS; i++)
		CHECK(pthread_create(&clients[i], NULL, connects, NULL) == 0);
	for (int i = 0; i < CLIENTS; i++)
		CHECK(pthread_join(clients[i], NULL) == 0);
	struct rdma_cm_id *ends[READERS];
	struct sockaddr_in to = address("127.0.0.1", port);
	for (int i = 0; i < READERS; i++) {
		DONE(rdma_create_id(requests, &ends[i], NULL, RDMA_PS_TCP));
		DONE(rdma_resolve_addr(ends[i], NULL, SA(to), 2000));
	}
	for (int i = 0; i < READERS; i++)
		CHECK(pthread_join(readers[i], NULL) == 0);
	for (int i = 0; i < READERS; i++)
		DONE(rdma_destroy_id(ends[i]));
	DONE(rdma_destroy_id(listens));
	return 0;
}
