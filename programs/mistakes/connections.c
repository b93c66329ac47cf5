/* Mistakes with librdmacm: the call returns an errno, or an event reports that the connection was not made. */
#include "mistake.h"
#include <rdma/rdma_cma.h>

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;

/* An address of the device. */
static struct sockaddr_in own_address(int port)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_port = htons(port) };
	union ibv_gid gid;
	open_device();
	MUST(ibv_query_gid(context, 1, 0, &gid) == 0);
	memcpy(&own.sin_addr, gid.raw + 12, 4);
	return own;
}

static struct rdma_cm_id *create_id(enum rdma_port_space space)
{
	struct rdma_cm_id *made;
	MUST(channel || (channel = rdma_create_event_channel()));
	MUST(rdma_create_id(channel, &made, NULL, space) == 0);
	return made;
}

/* Prints the verb and its errno, for verbs that return -1. */
#define FAILS(call) show_errno(#call, (call) == 0 ? 0 : errno)

static void next_event(int is_shown)
{
	struct rdma_cm_event *event;
	MUST(rdma_get_cm_event(channel, &event) == 0);
	if (is_shown)
		printf("event: %s, status %d\n", rdma_event_str(event->event), event->status);
	rdma_ack_cm_event(event);
}

/* Resolves the way to a port of this host and makes a queue pair. */
static void resolve(enum rdma_port_space space, int port)
{
	struct sockaddr_in to = own_address(port);
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	id = create_id(space);
	MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
	next_event(0);
	MUST(rdma_resolve_route(id, 2000) == 0);
	next_event(0);
	if (space == RDMA_PS_TCP)
		MUST(rdma_create_qp(id, NULL, &attr) == 0);
}

/* A connection is requested before the address and the route are resolved.
 *
 * shows: rdma_connect: EINVAL
 * says: refused: rdma_connect: the id is not in a state for this: the route is not resolved
 */
MISTAKE(connect_before_resolving)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	id = create_id(RDMA_PS_TCP);
	FAILS(rdma_connect(id, &param));
}

/* The private data of a request is longer than the 56 bytes that are left in it.
 *
 * shows: rdma_connect: EINVAL
 * says: refused: rdma_connect: 200 bytes of private data exceed the 56 that the message can carry
 */
MISTAKE(private_data_too_long)
{
	char data[200] = "";
	struct rdma_conn_param param = { .private_data = data, .private_data_len = sizeof data, .retry_count = 7 };
	resolve(RDMA_PS_TCP, 7471);
	FAILS(rdma_connect(id, &param));
}

/* An id is bound to an address that no device here has.
 *
 * shows: rdma_bind_addr: EADDRNOTAVAIL
 * says: refused: rdma_bind_addr: 198.51.100.1 is not an address of this device; `ferroce gids` lists them
 */
MISTAKE(bind_to_foreign_address)
{
	struct sockaddr_in foreign = own_address(7471);
	foreign.sin_addr.s_addr = htonl(0xc6336401); /* 198.51.100.1 */
	id = create_id(RDMA_PS_TCP);
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&foreign));
}

/* Two listeners want the same port.
 *
 * shows: rdma_bind_addr: EADDRINUSE
 * says: refused: rdma_bind_addr: this program itself has the port
 */
MISTAKE(port_in_use)
{
	struct sockaddr_in own = own_address(7471);
	struct rdma_cm_id *first = create_id(RDMA_PS_TCP);
	MUST(rdma_bind_addr(first, (struct sockaddr *)&own) == 0 && rdma_listen(first, 1) == 0);
	id = create_id(RDMA_PS_TCP);
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&own));
}

/* Nobody listens on the port.
 *
 * shows: event: RDMA_CM_EVENT_REJECTED, status 8
 * says: failed: connection to # in port space Tcp was rejected with reason 8: nobody listens to this service id:
 *       check port and port space, and that the server runs
 */
MISTAKE(nobody_listens)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	resolve(RDMA_PS_TCP, 7471);
	MUST(rdma_connect(id, &param) == 0);
	next_event(1);
}

/* The listener is in another port space than the client.
 *
 * shows: event: RDMA_CM_EVENT_REJECTED, status 8
 * says: failed: connection to # in port space Tcp was rejected with reason 8: nobody listens to this service id:
 *       check port and port space, and that the server runs
 */
MISTAKE(wrong_port_space)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	struct sockaddr_in own = own_address(7471);
	struct rdma_cm_id *listener = create_id(RDMA_PS_UDP);
	MUST(rdma_bind_addr(listener, (struct sockaddr *)&own) == 0 && rdma_listen(listener, 1) == 0);
	resolve(RDMA_PS_TCP, 7471);
	MUST(rdma_connect(id, &param) == 0);
	next_event(1);
}
