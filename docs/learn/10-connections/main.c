/* A connection by address and port, through the connection manager. Client and server take turns in one thread. */
#include "rdma.h"
#include <arpa/inet.h>
#include <rdma/rdma_verbs.h>

/* For calls of librdmacm: -1 and errno. */
#define CM(call) check(#call, (call) ? errno : 0)

/* An IPv4 address of the device, which is also a GID. */
static struct sockaddr_in own_address(void)
{
	struct sockaddr_in own = { .sin_family = AF_INET };
	union ibv_gid gid;
	for (int i = 0; ibv_query_gid(open_device(), 1, i, &gid) == 0 && !own.sin_addr.s_addr; i++)
		if (gid.raw[10] == 0xff && gid.raw[11] == 0xff)
			memcpy(&own.sin_addr, gid.raw + 12, 4);
	return own;
}

/* Waits for the next event of a channel, which must be this one. The caller acknowledges it. */
static struct rdma_cm_event *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CM(rdma_get_cm_event(channel, &event));
	if (event->event != type) {
		printf("%s, status %d\n", rdma_event_str(event->event), event->status);
		exit(1);
	}
	return event;
}

/* A queue pair with completion queues of its own. */
static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
					 .qp_type = IBV_QPT_RC };
	CM(rdma_create_qp(id, NULL, &attr));
}

int main(void)
{
	struct rdma_event_channel *clients = MAKE(rdma_create_event_channel()), *servers = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *listener, *client, *server;
	char sent[64] = "ping", received[64];
	struct ibv_wc wc;

	/* The server listens on a free port. */
	struct sockaddr_in address = own_address();
	CM(rdma_create_id(servers, &listener, NULL, RDMA_PS_TCP));
	CM(rdma_bind_addr(listener, (struct sockaddr *)&address));
	CM(rdma_listen(listener, 8));
	address.sin_port = rdma_get_src_port(listener);

	/* The client finds device and route, creates its queue pair, and asks. */
	CM(rdma_create_id(clients, &client, NULL, RDMA_PS_TCP));
	CM(rdma_resolve_addr(client, NULL, (struct sockaddr *)&address, 2000));
	rdma_ack_cm_event(expect(clients, RDMA_CM_EVENT_ADDR_RESOLVED));
	CM(rdma_resolve_route(client, 2000));
	rdma_ack_cm_event(expect(clients, RDMA_CM_EVENT_ROUTE_RESOLVED));
	create_qp(client);
	struct rdma_conn_param ask = { .private_data = "hello", .private_data_len = 6, .retry_count = 7, .rnr_retry_count = 7 };
	CM(rdma_connect(client, &ask));

	/* The server gets an id for this client, posts a receive, and accepts. */
	struct rdma_cm_event *request = expect(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	server = request->id;
	printf("server: a request with \"%s\"\n", (const char *)request->param.conn.private_data);
	rdma_ack_cm_event(request);
	create_qp(server);
	struct ibv_mr *room = MAKE(rdma_reg_msgs(server, received, sizeof received));
	CM(rdma_post_recv(server, NULL, received, sizeof received, room));
	struct rdma_conn_param accept = { .private_data = "welcome", .private_data_len = 8, .rnr_retry_count = 7 };
	CM(rdma_accept(server, &accept));

	struct rdma_cm_event *established = expect(clients, RDMA_CM_EVENT_ESTABLISHED);
	printf("client: connected, the server says \"%s\"\n", (const char *)established->param.conn.private_data);
	rdma_ack_cm_event(established);
	rdma_ack_cm_event(expect(servers, RDMA_CM_EVENT_ESTABLISHED));

	/* From here on the queue pairs are as in chapter 3. */
	struct ibv_mr *bytes = MAKE(rdma_reg_msgs(client, sent, sizeof sent));
	CM(rdma_post_send(client, NULL, sent, 5, bytes, IBV_SEND_SIGNALED));
	check("rdma_get_send_comp", rdma_get_send_comp(client, &wc) == 1 ? 0 : EIO);
	check("rdma_get_recv_comp", rdma_get_recv_comp(server, &wc) == 1 ? 0 : EIO);
	printf("server: received %s\n", received);

	CM(rdma_disconnect(client));
	rdma_ack_cm_event(expect(servers, RDMA_CM_EVENT_DISCONNECTED));
	printf("server: disconnected\n");
	return 0;
}
