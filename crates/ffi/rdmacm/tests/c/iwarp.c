// An iWARP device: results of verbs, connections from the request to the end, and calls that iWARP does not support. The error numbers are
// those of Linux with siw.
#include "cm.h"

int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static struct rdma_event_channel *here, *there;

static void device(struct ibv_context *verbs)
{
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid gid, nothing = { 0 };
	struct ibv_gid_entry entry, entries[4];
	uint16_t pkey;
	char text[16];
	CHECK(verbs->device->node_type == IBV_NODE_RNIC && verbs->device->transport_type == IBV_TRANSPORT_IWARP);
	CHECK(ibv_read_sysfs_file(verbs->device->ibdev_path, "node_type", text, sizeof text) > 0);
	CHECK(strcmp(text, "4: RNIC") == 0);
	DONE(ibv_query_device(verbs, &attr));
	CHECK(attr.atomic_cap == IBV_ATOMIC_NONE && attr.max_ah == 0 && attr.max_mcast_grp == 0 && attr.max_pkeys == 0);
	CHECK((attr.device_cap_flags & IBV_DEVICE_XRC) == 0 && attr.max_srq > 0);
	DONE(ibv_query_port(verbs, 1, &port));
	CHECK(port.gid_tbl_len == 1 && port.pkey_tbl_len == 0 && port.lid == 0 && port.link_layer == IBV_LINK_LAYER_ETHERNET);
	CHECK(port.state == IBV_PORT_ACTIVE && (port.flags & IBV_QPF_GRH_REQUIRED) == 0);
	// The Ethernet address, followed by zeros.
	DONE(ibv_query_gid(verbs, 1, 0, &gid));
	CHECK(memcmp(gid.raw, nothing.raw, 6) != 0 && memcmp(gid.raw + 6, nothing.raw, 10) == 0);
	DONE(ibv_query_gid_ex(verbs, 1, 0, &entry, 0));
	CHECK(entry.gid_type == IBV_GID_TYPE_IB && memcmp(entry.gid.raw, gid.raw, 16) == 0);
	CHECK(ibv_query_gid_table(verbs, entries, 4, 0) == 1);
	REFUSED(ibv_query_gid(verbs, 1, 1, &gid), EINVAL);
	REFUSED(ibv_query_pkey(verbs, 1, 0, &pkey), EINVAL);
}

static void refusals(struct ibv_context *verbs)
{
	struct ibv_pd *pd = ibv_alloc_pd(verbs);
	struct ibv_cq *cq = ibv_create_cq(verbs, 8, NULL, NULL, 0);
	CHECK(pd && cq);
	enum ibv_qp_type missing[] = { IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND, IBV_QPT_RAW_PACKET };
	for (int i = 0; i < 4; i++) {
		struct ibv_qp_init_attr attr = small_qp(missing[i]);
		attr.send_cq = attr.recv_cq = cq;
		CHECK_NULL(ibv_create_qp(pd, &attr), EOPNOTSUPP);
	}
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid.raw = { [10] = 255, 255, 127, 0, 0, 1 } } };
	CHECK_NULL(ibv_create_ah(pd, &to), EOPNOTSUPP);
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	CHECK_NULL(ibv_open_xrcd(verbs, &xrcd), EOPNOTSUPP);

	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC), shown;
	attr.send_cq = attr.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	CHECK(qp && qp->state == IBV_QPS_INIT);
	union ibv_gid group = { .raw = { [10] = 255, 255, 239, 1, 1, 1 } };
	CHECK(ibv_attach_mcast(qp, &group, 0) == EOPNOTSUPP);
	// By hand, as in ibv_rc_pingpong: INIT has no effect, and only a connection leaves INIT.
	struct ibv_qp_attr state = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	CHECK(ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	// TCP has its own timers, so setting one has no effect.
	state.min_rnr_timer = 12;
	CHECK(ibv_modify_qp(qp, &state, IBV_QP_MIN_RNR_TIMER) == 0);
	state.qp_state = IBV_QPS_RTR, state.path_mtu = IBV_MTU_1024;
	CHECK(ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == EINVAL);
	DONE(ibv_query_qp(qp, &state, IBV_QP_STATE, &shown));
	CHECK(state.qp_state == IBV_QPS_INIT);
	DONE(ibv_destroy_qp(qp));
	DONE(ibv_destroy_cq(cq));
	DONE(ibv_dealloc_pd(pd));

	struct rdma_cm_id *id;
	struct sockaddr_in any = address("127.0.0.1", 0);
	DONE(rdma_create_id(here, &id, NULL, RDMA_PS_UDP));
	REFUSED(rdma_bind_addr(id, SA(any)), EOPNOTSUPP);
	DONE(rdma_destroy_id(id));
}

static struct rdma_conn_param asking(const char *bytes, int len)
{
	return (struct rdma_conn_param){
		.private_data = bytes, .private_data_len = len, .responder_resources = 2, .initiator_depth = 3 };
}

// Reads a connection request. Private data keeps its length, and the depths are the ORD and IRD of the peer.
static struct rdma_cm_id *connect_request(const char *bytes, int len)
{
	struct rdma_cm_event *event = EXPECT(there, CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	CHECK(event->listen_id && event->status == 0 && id->channel == there && id->verbs && id->pd);
	CHECK(event->param.conn.private_data_len == len);
	CHECK(len == 0 ? event->param.conn.private_data == NULL : memcmp(event->param.conn.private_data, bytes, len) == 0);
	CHECK(event->param.conn.responder_resources == 3 && event->param.conn.initiator_depth == 2);
	CHECK(rdma_get_dst_port(id) != 0 && rdma_get_src_port(id) == rdma_get_src_port(event->listen_id));
	CHECK(id->route.num_paths == 0);
	DONE(rdma_ack_cm_event(event));
	return id;
}

static void exchange(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	static char out[64] = "over the connection", in[64];
	struct ibv_wc wc;
	memset(in, 0, sizeof in);
	struct ibv_mr *out_mr = rdma_reg_read(from, out, sizeof out), *in_mr = rdma_reg_write(to, in, sizeof in);
	CHECK(out_mr && in_mr);
	DONE(rdma_post_recv(to, in, in, sizeof in, in_mr));
	DONE(rdma_post_send(from, out, out, 20, out_mr, 0));
	CHECK(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == (uintptr_t)out);
	CHECK(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 20);
	CHECK(strcmp(in, out) == 0);
	// A WRITE, followed by an empty SEND whose completion proves that the data was placed. Then a READ by the other end.
	DONE(rdma_post_recv(to, NULL, in, 0, in_mr));
	DONE(rdma_post_write(from, out, out, sizeof out, out_mr, 0, (uintptr_t)in, in_mr->rkey));
	DONE(rdma_post_send(from, NULL, out, 0, out_mr, 0));
	for (int i = 0; i < 2; i++)
		CHECK(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS && memcmp(in, out, sizeof in) == 0);
	memset(in, 0, sizeof in);
	DONE(rdma_post_read(to, in, in, sizeof in, in_mr, 0, (uintptr_t)out, out_mr->rkey));
	CHECK(rdma_get_send_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS && memcmp(in, out, sizeof in) == 0);
	rdma_dereg_mr(out_mr);
	rdma_dereg_mr(in_mr);
}

// Inline data from two pieces, which belong to no region and may change after the call.
static void inline_pieces(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	static char in[64];
	char first[] = "two ", second[] = "pieces";
	struct ibv_sge pieces[] = { { (uintptr_t)first, 4, 0 }, { (uintptr_t)second, sizeof second, 0 } };
	struct ibv_wc wc;
	struct ibv_mr *mr = rdma_reg_write(to, in, sizeof in);
	CHECK(mr);
	DONE(rdma_post_recv(to, in, in, sizeof in, mr));
	DONE(rdma_post_sendv(from, NULL, pieces, 2, IBV_SEND_INLINE));
	memset(first, 'x', sizeof first);
	CHECK(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS && strcmp(in, "two pieces") == 0);
	REFUSED(rdma_post_sendv(from, NULL, (struct ibv_sge[3]){ 0 }, 3, IBV_SEND_INLINE), EINVAL);
	rdma_dereg_mr(mr);
	memset(in, 0, sizeof in);
}

static void whole_life(int port, int len)
{
	char bytes[255];
	memset(bytes, 'h', sizeof bytes);
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	attr.cap.max_send_sge = 2, attr.cap.max_inline_data = 32;
	struct rdma_cm_id *active = routed(here, RDMA_PS_TCP, port);
	union ibv_gid gid;
	DONE(ibv_query_gid(active->verbs, 1, 0, &gid));
	CHECK(memcmp(active->route.addr.addr.ibaddr.sgid.raw, gid.raw, 16) == 0 && active->route.path_rec == NULL);
	struct rdma_conn_param param = asking(bytes, len);
	DONE(rdma_create_qp(active, NULL, &attr));
	CHECK(active->qp->state == IBV_QPS_INIT);
	DONE(rdma_connect(active, &param));
	struct rdma_cm_id *passive = connect_request(bytes, len);
	attr = small_qp(IBV_QPT_RC);
	DONE(rdma_create_qp(passive, NULL, &attr));
	param = (struct rdma_conn_param){ .private_data = "world", .private_data_len = 5, .responder_resources = 3, .initiator_depth = 2 };
	DONE(rdma_accept(passive, &param));
	// The connection has moved the queue pair to RTS: no CONNECT_RESPONSE.
	struct rdma_cm_event *event = EXPECT(here, ESTABLISHED);
	CHECK(event->id == active && event->status == 0 && event->param.conn.private_data_len == 5);
	CHECK(memcmp(event->param.conn.private_data, "world", 5) == 0);
	DONE(rdma_ack_cm_event(event));
	PASS(there, ESTABLISHED);
	exchange(active, passive);
	exchange(passive, active);
	inline_pieces(active, passive);
	DONE(rdma_disconnect(active));
	PASS(there, DISCONNECTED);
	PASS(here, DISCONNECTED);
	DONE(rdma_disconnect(passive));
	rdma_destroy_qp(active);
	rdma_destroy_qp(passive);
	DONE(rdma_destroy_id(active));
	DONE(rdma_destroy_id(passive));
	// No TIMEWAIT_EXIT.
	struct pollfd fds[2] = { { .fd = here->fd, .events = POLLIN }, { .fd = there->fd, .events = POLLIN } };
	CHECK(poll(fds, 2, 0) == 0);
}

// A program that sets up its own queue pairs, with the attributes of rdma_init_qp_attr.
static void own_queue_pairs(int port)
{
	struct rdma_cm_id *active = routed(here, RDMA_PS_TCP, port);
	struct end ends[2] = { make_end(active->verbs, IBV_QPT_RC, NULL, NULL), make_end(active->verbs, IBV_QPT_RC, NULL, NULL) };
	struct rdma_conn_param param = asking("mine", 4);
	param.qp_num = 5;
	REFUSED(rdma_connect(active, &param), EINVAL);
	param.qp_num = ends[0].qp->qp_num;
	DONE(rdma_connect(active, &param));
	struct rdma_cm_id *passive = connect_request("mine", 4);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int mask;
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		attr.qp_state = state;
		DONE(rdma_init_qp_attr(passive, &attr, &mask));
		CHECK(ibv_modify_qp(ends[1].qp, &attr, mask) == 0);
	}
	param = (struct rdma_conn_param){ .qp_num = ends[1].qp->qp_num, .responder_resources = 3, .initiator_depth = 2 };
	DONE(rdma_accept(passive, &param));
	PASS(here, ESTABLISHED);
	PASS(there, ESTABLISHED);
	for (int i = 0; i < 2; i++) {
		DONE(ibv_query_qp(ends[i].qp, &attr, IBV_QP_STATE, &init));
		CHECK(attr.qp_state == IBV_QPS_RTS);
	}
	REFUSED(rdma_establish(active), EINVAL);
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
	struct rdma_conn_param param = asking("may I", 5);
	DONE(rdma_create_qp(active, NULL, &attr));
	DONE(rdma_connect(active, &param));
	struct rdma_cm_id *passive = connect_request("may I", 5);
	DONE(rdma_reject(passive, "no", 2));
	struct rdma_cm_event *event = EXPECT(here, REJECTED);
	CHECK(event->status == -ECONNRESET && event->param.conn.private_data_len == 2);
	CHECK(memcmp(event->param.conn.private_data, "no", 2) == 0 && active->qp->state == IBV_QPS_ERR);
	DONE(rdma_ack_cm_event(event));
	DONE(rdma_destroy_id(passive));
	rdma_destroy_ep(active);

	// A port without a listener.
	int other;
	DONE(rdma_destroy_id(listener(there, RDMA_PS_TCP, &other)));
	active = routed(here, RDMA_PS_TCP, other);
	attr = small_qp(IBV_QPT_RC);
	DONE(rdma_create_qp(active, NULL, &attr));
	DONE(rdma_connect(active, &param));
	event = EXPECT(here, REJECTED);
	CHECK(event->status == -ECONNREFUSED);
	DONE(rdma_ack_cm_event(event));
	rdma_destroy_ep(active);
}

static void *serves(void *listens)
{
	struct rdma_cm_id *id;
	DONE(rdma_get_request(listens, &id));
	CHECK(id->qp && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	DONE(rdma_accept(id, NULL));
	CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	return id;
}

// Endpoints, whose calls block, with a shared receive queue at one end.
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
	DONE(rdma_create_ep(&active, res, NULL, NULL));
	rdma_freeaddrinfo(res);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	DONE(rdma_create_srq(active, NULL, &srq));
	attr = small_qp(IBV_QPT_RC);
	DONE(rdma_create_qp(active, NULL, &attr));
	DONE(rdma_connect(active, NULL));
	CHECK(pthread_join(thread, (void **)&passive) == 0);
	exchange(active, passive);
	exchange(passive, active);
	// A synchronous id moves to a channel.
	DONE(rdma_migrate_id(active, here));
	DONE(rdma_disconnect(active));
	PASS(here, DISCONNECTED);
	DONE(rdma_disconnect(passive));
	CHECK(passive->event->event == RDMA_CM_EVENT_DISCONNECTED);
	// No further event comes, so this does not wait for one.
	DONE(rdma_disconnect(passive));
	rdma_destroy_ep(active);
	rdma_destroy_ep(passive);
	rdma_destroy_ep(listens);
}

int main(void)
{
	int port;
	here = rdma_create_event_channel();
	there = rdma_create_event_channel();
	CHECK(here && there);
	struct rdma_cm_id *listens = listener(there, RDMA_PS_TCP, &port), *any = routed(here, RDMA_PS_TCP, port);
	device(any->verbs);
	refusals(any->verbs);
	DONE(rdma_destroy_id(any));
	whole_life(port, 5);
	whole_life(port, 0);
	whole_life(port, 255);
	own_queue_pairs(port);
	refused(port);
	endpoints();
	DONE(rdma_destroy_id(listens));
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
	return 0;
}
