// Helpers of the programs that test connections: calls that must fail with an errno, expected events, ids.
#ifndef FERROCE_CM_H
#define FERROCE_CM_H

#include "../../../ibverbs/tests/c/check.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <sys/wait.h>

// A call that must fail with this errno.
#define REFUSED(call, number)                                                                              \
	do {                                                                                               \
		errno = 0;                                                                                 \
		int answer_ = (call);                                                                      \
		if (answer_ != -1 || errno != (number)) {                                                  \
			fprintf(stderr, "%s:%d: %s: %d, errno %d, not %d\n", __FILE__, __LINE__, #call,     \
				answer_, errno, (number));                                                 \
			exit(1);                                                                           \
		}                                                                                          \
	} while (0)

// A call that must succeed.
#define DONE(call)                                                                                              \
	do {                                                                                                    \
		errno = 0;                                                                                      \
		int answer_ = (call);                                                                           \
		if (answer_ != 0) {                                                                             \
			fprintf(stderr, "%s:%d: %s: %d, errno %d\n", __FILE__, __LINE__, #call, answer_, errno); \
			exit(1);                                                                                \
		}                                                                                               \
	} while (0)

static inline struct sockaddr_in address(const char *ip, int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
	CHECK(inet_pton(AF_INET, ip, &a.sin_addr) == 1);
	return a;
}

#define SA(a) ((struct sockaddr *)&(a))
#define PATIENCE_MS 60000

// The next event, which must be of this kind. A time limit reports a hang with its line.
static inline struct rdma_cm_event *expect_at(int line, struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	if (poll(&fd, 1, PATIENCE_MS) != 1) {
		fprintf(stderr, "line %d: %s did not come\n", line, rdma_event_str(kind));
		exit(1);
	}
	struct rdma_cm_event *event;
	DONE(rdma_get_cm_event(channel, &event));
	if (event->event != kind) {
		fprintf(stderr, "line %d: %s (status %d) instead of %s\n", line, rdma_event_str(event->event),
			event->status, rdma_event_str(kind));
		exit(1);
	}
	return event;
}
#define EXPECT(channel, kind) expect_at(__LINE__, channel, RDMA_CM_EVENT_##kind)
#define PASS(channel, kind) DONE(rdma_ack_cm_event(EXPECT(channel, kind)))

static inline struct ibv_qp_init_attr small_qp(enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
		.sq_sig_all = 1,
	};
}

// A listener on a port that the library chooses.
static inline struct rdma_cm_id *listener(struct rdma_event_channel *channel, enum rdma_port_space ps, int *port)
{
	struct rdma_cm_id *id;
	struct sockaddr_in any = address("0.0.0.0", 0);
	DONE(rdma_create_id(channel, &id, NULL, ps));
	DONE(rdma_bind_addr(id, SA(any)));
	DONE(rdma_listen(id, 8));
	*port = ntohs(rdma_get_src_port(id));
	CHECK(*port != 0);
	return id;
}

// An id whose route to a port of this host is resolved.
static inline struct rdma_cm_id *routed(struct rdma_event_channel *channel, enum rdma_port_space ps, int port)
{
	struct rdma_cm_id *id;
	struct sockaddr_in to = address("127.0.0.1", port);
	DONE(rdma_create_id(channel, &id, NULL, ps));
	DONE(rdma_resolve_addr(id, NULL, SA(to), 2000));
	PASS(channel, ADDR_RESOLVED);
	DONE(rdma_resolve_route(id, 2000));
	PASS(channel, ROUTE_RESOLVED);
	return id;
}

#endif
