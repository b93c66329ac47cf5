// Connections from the request to the end, both ends in one process: events, their order, and their parameters.
#include "cm.h"

static struct rdma_event_channel *here, *there;

// Reads a connection request and returns its new id.
static struct rdma_cm_id *connect_request(const char *bytes)
{
	struct rdma_cm_event *event = EXPECT(there, CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	CHECK(event->listen_id && event->listen_id != id && event->status == 0);
	CHECK(id->context == event->listen_id->context && id->channel == there && id->verbs && id->pd);
	CHECK(event->param.conn.private_data_len == 56);
	CHECK(memcmp(event->param.conn.private_data, bytes, strlen(bytes)) == 0);
	CHECK(event->param.conn.responder_resources == 3 && event->param.conn.initiator_depth == 2);
	CHECK(event->param.conn.retry_count == 6 && event->param.conn.rnr_retry_count == 5);
	CHECK(event->param.conn.qp_num != 0);
	CHECK(rdma_get_dst_port(id) != 0 && rdma_get_src_port(id) == rdma_get_src_port(event->listen_id));
	CHECK(id->route.num_paths == 1);
	DONE(rdma_ack_cm_event(event));
	return id;
}

static struct rdma_conn_param asking(const char *bytes)
{
	return (struct rdma_conn_param){
		.private_data = bytes,
		.private_data_len = strlen(bytes),
		.responder_resources = 2,
		.initiator_depth = 3,
		.retry_count = 6,
		.rnr_retry_count = 5,
	};
}

static void send_and_receive(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	static char out[64] = "over the connection", in[64];
	struct ibv_wc wc;
	memset(in, 0, sizeof in);
	struct ibv_mr *out_mr = rdma_reg_msgs(from, out, sizeof out), *in_mr = rdma_reg_msgs(to, in, sizeof in);
	CHECK(out_mr && in_mr);
	DONE(rdma_post_recv(to, in, in, sizeof in, in_mr));
	DONE(rdma_post_send(from, out, out, sizeof out, out_mr, 0));
	CHECK(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == (uintptr_t)out);
	CHECK(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == sizeof in);
	CHECK(strcmp(in, out) == 0);
	rdma_dereg_mr(out_mr);
	rdma_dereg_mr(in_mr);
}

static void whole_life(int port)
{
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_cm_id *active = routed(here, RDMA_PS_TCP, port);
	struct rdma_conn_param param = asking("hello");
	DONE(rdma_create_qp(active, NULL, &attr));
	DONE(rdma_connect(active, &param));
	struct rdma_cm_id *passive = connect_request("hello");
	attr = small_qp(IBV_QPT_RC);
	DONE(rdma_create_qp(passive, NULL, &attr));
	param = (struct rdma_conn_param){ .private_data = "world", .private_data_len = 5,
					  .responder_resources = 3, .initiator_depth = 2, .rnr_retry_count = 4 };
	DONE(rdma_accept(passive, &param));
	CHECK(passive->qp->state == IBV_QPS_RTS);
	struct rdma_cm_event *event = EXPECT(here, ESTABLISHED);
	CHECK(event->id == active && event->listen_id == NULL && event->param.conn.private_data_len == 196);
	CHECK(memcmp(event->param.conn.private_data, "world", 5) == 0);
	CHECK(event->param.conn.responder_resources == 2 && event->param.conn.initiator_depth == 3);
	CHECK(event->param.conn.qp_num == passive->qp->qp_num && active->qp->state == IBV_QPS_RTS);
	DONE(rdma_ack_cm_event(event));
	event = EXPECT(there, ESTABLISHED);
	CHECK(event->id == passive && event->status == 0);
	DONE(rdma_ack_cm_event(event));
	DONE(rdma_notify(passive, IBV_EVENT_COMM_EST));
	send_and_receive(active, passive);
	send_and_receive(passive, active);

	DONE(rdma_disconnect(active));
	CHECK(active->qp->state == IBV_QPS_ERR);
	PASS(there, DISCONNECTED);
	PASS(here, DISCONNECTED);
	// The other end may disconnect too, and no further event follows.
	DONE(rdma_disconnect(passive));
	PASS(there, TIMEWAIT_EXIT);
	PASS(here, TIMEWAIT_EXIT);
	rdma_destroy_qp(active);
	rdma_destroy_qp(passive);
	DONE(rdma_destroy_id(active));
	DONE(rdma_destroy_id(passive));
}

// A program that sets up its own queue pairs.
static void own_queue_pairs(int port)
{
	struct rdma_cm_id *active = routed(here, RDMA_PS_TCP, port);
	struct end ends[2] = { make_end(active->verbs, IBV_QPT_RC, NULL, NULL), make_end(active->verbs, IBV_QPT_RC, NULL, NULL) };
	struct rdma_conn_param param = asking("mine");
	struct ibv_ece ece = { .vendor_id = 0x1234, .options = 0x55 };
	param.qp_num = ends[0].qp->qp_num;
	DONE(rdma_set_local_ece(active, &ece));
	DONE(rdma_connect(active, &param));
	struct rdma_cm_id *passive = connect_request("mine");
	DONE(rdma_get_remote_ece(passive, &ece));
	CHECK(ece.vendor_id == 0x1234 && ece.options == 0x55);
	ece.options = 0x11;
	DONE(rdma_set_local_ece(passive, &ece));
	struct ibv_qp_attr qp_attr;
	int mask;
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		qp_attr.qp_state = state;
		DONE(rdma_init_qp_attr(passive, &qp_attr, &mask));
		DONE(ibv_modify_qp(ends[1].qp, &qp_attr, mask));
	}
	param = (struct rdma_conn_param){ .qp_num = ends[1].qp->qp_num, .responder_resources = 3, .initiator_depth = 2 };
	DONE(rdma_accept(passive, &param));
	PASS(here, CONNECT_RESPONSE);
	DONE(rdma_get_remote_ece(active, &ece));
	CHECK(ece.vendor_id == 0x1234 && ece.options == 0x11);
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		qp_attr.qp_state = state;
		DONE(rdma_init_qp_attr(active, &qp_attr, &mask));
		DONE(ibv_modify_qp(ends[0].qp, &qp_attr, mask));
	}
	CHECK(qp_attr.retry_cnt == 6);
	DONE(rdma_establish(active));
	REFUSED(rdma_establish(active), EINVAL);
	PASS(there, ESTABLISHED);
	// Destroying the id ends the connection.
	DONE(rdma_destroy_id(active));
	PASS(there, DISCONNECTED);
	DONE(rdma_destroy_id(passive));
	for (int i = 0; i < 2; i++) {
		free_end(&ends[i]);
		DONE(ibv_dealloc_pd(ends[i].pd));
	}
}

static void refused(int port)
{
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_cm_id *active = routed(here, RDMA_PS_TCP, port);
	struct rdma_conn_param param = asking("may I");
	DONE(rdma_create_qp(active, NULL, &attr));
	DONE(rdma_connect(active, &param));
	struct rdma_cm_id *passive = connect_request("may I");
	char many[255] = { 0 };
	REFUSED(rdma_reject(passive, many, 149), EINVAL);
	DONE(rdma_reject(passive, "no", 2));
	struct rdma_cm_event *event = EXPECT(here, REJECTED);
	CHECK(event->status == 28 && event->param.conn.private_data_len == 148);
	CHECK(memcmp(event->param.conn.private_data, "no", 3) == 0 && active->qp->state == IBV_QPS_ERR);
	DONE(rdma_ack_cm_event(event));
	DONE(rdma_destroy_id(passive));
	rdma_destroy_qp(active);
	DONE(rdma_destroy_id(active));

	// Destroying the id of a request, or a listener with an unread request, rejects the request.
	active = routed(here, RDMA_PS_TCP, port);
	param.qp_num = 77;
	DONE(rdma_connect(active, &param));
	DONE(rdma_destroy_id(connect_request("may I")));
	PASS(here, REJECTED);
	DONE(rdma_destroy_id(active));

	int other;
	struct rdma_cm_id *listens = listener(there, RDMA_PS_TCP, &other);
	active = routed(here, RDMA_PS_TCP, other);
	DONE(rdma_connect(active, &param));
	struct pollfd fd = { .fd = there->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, PATIENCE_MS) == 1);
	DONE(rdma_destroy_id(listens));
	CHECK(poll(&fd, 1, 0) == 0);
	PASS(here, REJECTED);
	DONE(rdma_destroy_id(active));
}

static void datagrams(void)
{
	int port;
	struct rdma_cm_id *listens = listener(there, RDMA_PS_UDP, &port), *active = routed(here, RDMA_PS_UDP, port);
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_UD);
	char bytes[181] = "question";
	struct rdma_conn_param param = { .private_data = bytes, .private_data_len = 181 };
	DONE(rdma_create_qp(active, NULL, &attr));
	CHECK(active->qp->state == IBV_QPS_RTS);
	REFUSED(rdma_connect(active, &param), EINVAL);
	param.private_data_len = 180;
	DONE(rdma_connect(active, &param));
	struct rdma_cm_event *event = EXPECT(there, CONNECT_REQUEST);
	CHECK(event->param.ud.private_data_len == 180 && strcmp(event->param.ud.private_data, "question") == 0);
	struct rdma_cm_id *passive = event->id;
	DONE(rdma_ack_cm_event(event));
	attr = small_qp(IBV_QPT_UD);
	DONE(rdma_create_qp(passive, NULL, &attr));
	param = (struct rdma_conn_param){ .private_data = "answer", .private_data_len = 7 };
	DONE(rdma_accept(passive, &param));
	event = EXPECT(here, ESTABLISHED);
	CHECK(event->param.ud.qp_num == passive->qp->qp_num && event->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK(event->param.ud.private_data_len == 136 && strcmp(event->param.ud.private_data, "answer") == 0);
	struct ibv_ah *ah = ibv_create_ah(active->pd, &event->param.ud.ah_attr);
	CHECK(ah);
	DONE(ibv_destroy_ah(ah));
	DONE(rdma_ack_cm_event(event));
	DONE(rdma_disconnect(active));
	rdma_destroy_ep(active);
	rdma_destroy_ep(passive);
	// No listener for the service.
	DONE(rdma_destroy_id(listens));
	active = routed(here, RDMA_PS_UDP, port);
	param.private_data_len = 0;
	DONE(rdma_connect(active, &param));
	event = EXPECT(here, UNREACHABLE);
	CHECK(event->status == 1);
	DONE(rdma_ack_cm_event(event));
	DONE(rdma_destroy_id(active));
}

static void *destroys(void *id)
{
	DONE(rdma_destroy_id(id));
	return NULL;
}

// rdma_destroy_id waits until the program has acknowledged all events of the id.
static void destruction_waits(int port)
{
	struct rdma_cm_id *id;
	struct sockaddr_in to = address("127.0.0.1", port);
	DONE(rdma_create_id(here, &id, NULL, RDMA_PS_TCP));
	DONE(rdma_resolve_addr(id, NULL, SA(to), 2000));
	struct rdma_cm_event *event = EXPECT(here, ADDR_RESOLVED);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, destroys, id) == 0);
	struct timespec soon;
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_nsec += 50000000;
	soon.tv_sec += soon.tv_nsec / 1000000000, soon.tv_nsec %= 1000000000;
	CHECK(pthread_timedjoin_np(thread, NULL, &soon) == ETIMEDOUT);
	CHECK(event->id == id && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	DONE(rdma_ack_cm_event(event));
	CHECK(pthread_join(thread, NULL) == 0);
	// Destroying an id drops its unread events.
	DONE(rdma_create_id(here, &id, NULL, RDMA_PS_TCP));
	DONE(rdma_resolve_addr(id, NULL, SA(to), 2000));
	DONE(rdma_destroy_id(id));
	struct pollfd fd = { .fd = here->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 0) == 0);
}

static void migration(int port)
{
	struct rdma_cm_id *id;
	struct sockaddr_in to = address("127.0.0.1", port);
	DONE(rdma_create_id(here, &id, NULL, RDMA_PS_TCP));
	DONE(rdma_resolve_addr(id, NULL, SA(to), 2000));
	// Pending events move with the id.
	DONE(rdma_migrate_id(id, there));
	CHECK(id->channel == there);
	PASS(there, ADDR_RESOLVED);
	DONE(rdma_migrate_id(id, NULL));
	DONE(rdma_resolve_route(id, 2000));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	DONE(rdma_migrate_id(id, here));
	CHECK(id->event == NULL && id->channel == here);
	DONE(rdma_destroy_id(id));
}

static void *serves(void *listens)
{
	struct rdma_cm_id *id;
	DONE(rdma_get_request(listens, &id));
	CHECK(id->qp && id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	DONE(rdma_accept(id, NULL));
	CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	return id;
}

// Endpoints, whose calls block.
static void endpoints(void)
{
	struct rdma_addrinfo *res, hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_cm_id *listens, *active, *passive;
	char service[8];
	DONE(rdma_getaddrinfo(NULL, "0", &hints, &res));
	DONE(rdma_create_ep(&listens, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	DONE(rdma_listen(listens, 0));
	snprintf(service, sizeof service, "%d", ntohs(rdma_get_src_port(listens)));
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, serves, listens) == 0);
	hints.ai_flags = 0;
	DONE(rdma_getaddrinfo("127.0.0.1", service, &hints, &res));
	attr = small_qp(IBV_QPT_RC);
	DONE(rdma_create_ep(&active, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	DONE(rdma_connect(active, NULL));
	CHECK(pthread_join(thread, (void **)&passive) == 0);
	send_and_receive(active, passive);
	DONE(rdma_disconnect(active));
	CHECK(active->event->event == RDMA_CM_EVENT_DISCONNECTED);
	DONE(rdma_disconnect(passive));
	CHECK(passive->event->event == RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_ep(active);
	rdma_destroy_ep(passive);
	rdma_destroy_ep(listens);
}

int main(void)
{
	int port;
	here = rdma_create_event_channel();
	there = rdma_create_event_channel();
	CHECK(here && there && here->fd != there->fd);
	struct rdma_cm_id *listens = listener(there, RDMA_PS_TCP, &port);
	whole_life(port);
	own_queue_pairs(port);
	refused(port);
	datagrams();
	destruction_waits(port);
	migration(port);
	endpoints();
	whole_life(port);
	DONE(rdma_destroy_id(listens));
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
	return 0;
}
