// Invalid calls, and the errno of each.
#include "cm.h"

static struct rdma_event_channel *channel;

static struct rdma_cm_id *fresh(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;
	DONE(rdma_create_id(channel, &id, NULL, ps));
	return id;
}

static void pointers(void)
{
	struct rdma_cm_id *id = NULL;
	struct rdma_cm_event *event;
	struct sockaddr_in to = address("127.0.0.1", 1);
	REFUSED(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
	REFUSED(rdma_create_id(channel, &id, NULL, 0x999), EINVAL);
	REFUSED(rdma_destroy_id(NULL), EINVAL);
	REFUSED(rdma_bind_addr(NULL, SA(to)), EINVAL);
	REFUSED(rdma_ack_cm_event(NULL), EINVAL);
	REFUSED(rdma_get_cm_event(channel, NULL), EINVAL);
	REFUSED(rdma_get_cm_event(NULL, &event), EINVAL);
	rdma_destroy_event_channel(NULL);
	rdma_freeaddrinfo(NULL);
	rdma_free_devices(NULL);
}

static void addresses(void)
{
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP), *other = fresh(RDMA_PS_TCP);
	struct sockaddr unix_socket = { .sa_family = AF_UNIX };
	struct sockaddr_in foreign = address("192.0.2.1", 0), any = address("0.0.0.0", 0);
	REFUSED(rdma_bind_addr(id, NULL), EINVAL);
	REFUSED(rdma_bind_addr(id, &unix_socket), EINVAL);
	REFUSED(rdma_bind_addr(id, SA(foreign)), EADDRNOTAVAIL);
	CHECK(id->verbs == NULL);
	DONE(rdma_bind_addr(id, SA(any)));
	CHECK(id->verbs == NULL && rdma_get_src_port(id) != 0);
	REFUSED(rdma_bind_addr(id, SA(any)), EINVAL);
	// The port is taken, in this space only.
	struct sockaddr_in same = address("127.0.0.1", ntohs(rdma_get_src_port(id)));
	DONE(rdma_listen(id, 0));
	// The kernel's rule: EADDRINUSE only where two specific addresses are equal.
	REFUSED(rdma_bind_addr(other, SA(same)), EADDRNOTAVAIL);
	struct sockaddr_in wildcard = address("0.0.0.0", ntohs(rdma_get_src_port(id)));
	REFUSED(rdma_bind_addr(other, SA(wildcard)), EADDRNOTAVAIL);
	struct rdma_cm_id *datagrams = fresh(RDMA_PS_UDP);
	DONE(rdma_bind_addr(datagrams, SA(same)));
	CHECK(datagrams->verbs != NULL && datagrams->pd != NULL && datagrams->port_num == 1);
	REFUSED(rdma_listen(id, 0), EINVAL);
	REFUSED(rdma_resolve_addr(other, NULL, NULL, 100), EINVAL);
	REFUSED(rdma_resolve_addr(other, &unix_socket, SA(same), 100), EINVAL);
	REFUSED(rdma_resolve_addr(id, NULL, SA(same), 100), EINVAL);
	DONE(rdma_destroy_id(id));
	// The port is free again.
	DONE(rdma_bind_addr(other, SA(same)));
	DONE(rdma_destroy_id(other));
	DONE(rdma_destroy_id(datagrams));
}

static void shared_ports(void)
{
	struct rdma_cm_id *one = fresh(RDMA_PS_TCP), *two = fresh(RDMA_PS_TCP);
	struct sockaddr_in at = address("127.0.0.1", 7777);
	int yes = 1;
	DONE(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes));
	DONE(rdma_bind_addr(one, SA(at)));
	REFUSED(rdma_bind_addr(two, SA(at)), EADDRINUSE);
	DONE(rdma_set_option(two, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes));
	DONE(rdma_bind_addr(two, SA(at)));
	// A shared port cannot be listened on, as in the kernel.
	REFUSED(rdma_listen(one, 1), EADDRINUSE);
	DONE(rdma_destroy_id(two));
	DONE(rdma_listen(one, 1));
	DONE(rdma_destroy_id(one));
}

static void too_early(void)
{
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP), *got;
	struct rdma_conn_param param = { .qp_num = 1 };
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct ibv_qp_attr qp_attr = { .qp_state = IBV_QPS_RTR };
	int mask;
	REFUSED(rdma_resolve_route(id, 100), EINVAL);
	REFUSED(rdma_connect(id, &param), EINVAL);
	REFUSED(rdma_connect(id, NULL), EINVAL);
	REFUSED(rdma_accept(id, &param), EINVAL);
	REFUSED(rdma_accept(id, NULL), EINVAL);
	REFUSED(rdma_reject(id, NULL, 0), EINVAL);
	REFUSED(rdma_disconnect(id), EINVAL);
	REFUSED(rdma_establish(id), EINVAL);
	REFUSED(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	REFUSED(rdma_notify(id, IBV_EVENT_PATH_MIG), EINVAL);
	REFUSED(rdma_create_qp(id, NULL, &attr), EINVAL);
	REFUSED(rdma_create_qp(id, NULL, NULL), EINVAL);
	REFUSED(rdma_init_qp_attr(id, &qp_attr, &mask), EINVAL);
	qp_attr.qp_state = IBV_QPS_INIT;
	DONE(rdma_init_qp_attr(id, &qp_attr, &mask));
	CHECK(mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) && qp_attr.port_num == 1);
	REFUSED(rdma_get_request(id, &got), EINVAL);
	DONE(rdma_destroy_id(id));
}

static void limits(void)
{
	struct rdma_cm_id *id = routed(channel, RDMA_PS_TCP, 9);
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	char bytes[255] = { 0 };
	struct rdma_conn_param param = { .private_data = bytes, .private_data_len = 57 };
	CHECK(id->route.num_paths == 1 && id->route.path_rec->mtu >= IBV_MTU_256);
	DONE(rdma_create_qp(id, NULL, &attr));
	CHECK(id->qp->state == IBV_QPS_INIT && id->pd == id->qp->pd && id->send_cq && id->recv_cq);
	REFUSED(rdma_create_qp(id, NULL, &attr), EINVAL);
	REFUSED(rdma_establish(id), EINVAL);
	REFUSED(rdma_connect(id, &param), EINVAL);
	param.private_data_len = 255;
	REFUSED(rdma_connect(id, &param), EINVAL);
	struct ibv_device_attr device;
	DONE(ibv_query_device(id->verbs, &device));
	param.private_data_len = 0;
	if (device.max_qp_rd_atom < 254) {
		param.responder_resources = device.max_qp_rd_atom + 1;
		REFUSED(rdma_connect(id, &param), EINVAL);
		param = (struct rdma_conn_param){ .initiator_depth = device.max_qp_init_rd_atom + 1 };
		REFUSED(rdma_connect(id, &param), EINVAL);
	}
	rdma_destroy_qp(id);
	CHECK(id->qp == NULL && id->send_cq == NULL && id->recv_cq == NULL);
	DONE(rdma_destroy_id(id));
}

static void options(void)
{
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP), *datagrams = fresh(RDMA_PS_UDP);
	uint8_t byte = 16;
	int number = 1;
	struct sockaddr_in any = address("0.0.0.0", 0);
	DONE(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1));
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &number, sizeof number), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &byte, 1), EINVAL);
	DONE(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &number, sizeof number));
	DONE(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1));
	REFUSED(rdma_set_option(datagrams, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, 77, &byte, 1), ENOSYS);
	REFUSED(rdma_set_option(id, RDMA_OPTION_IB, 77, &byte, 1), ENOSYS);
	REFUSED(rdma_set_option(id, 77, 0, &byte, 1), ENOSYS);
	REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &byte, 1), EINVAL);
	DONE(rdma_bind_addr(id, SA(any)));
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &number, sizeof number), EINVAL);
	struct ibv_ece ece = { .vendor_id = 0 };
	REFUSED(rdma_set_local_ece(id, &ece), EINVAL);
	REFUSED(rdma_set_local_ece(id, NULL), EINVAL);
	ece.vendor_id = 7;
	DONE(rdma_set_local_ece(id, &ece));
	REFUSED(rdma_get_remote_ece(id, NULL), EINVAL);
	DONE(rdma_get_remote_ece(id, &ece));
	CHECK(ece.vendor_id == 0);
	DONE(rdma_destroy_id(id));
	DONE(rdma_destroy_id(datagrams));
}

static void groups(void)
{
	struct rdma_cm_id *id = fresh(RDMA_PS_UDP);
	struct sockaddr_in group = address("239.9.9.9", 0), single = address("127.0.0.1", 0);
	REFUSED(rdma_join_multicast(id, SA(group), NULL), EINVAL);
	DONE(rdma_bind_addr(id, SA(single)));
	REFUSED(rdma_join_multicast(id, SA(single), NULL), EINVAL);
	REFUSED(rdma_join_multicast(id, NULL, NULL), EINVAL);
	REFUSED(rdma_leave_multicast(id, SA(group)), EADDRNOTAVAIL);
	REFUSED(rdma_leave_multicast(id, NULL), EINVAL);
	struct rdma_cm_join_mc_attr_ex attr = { .comp_mask = 1 << 5, .addr = SA(group) };
	REFUSED(rdma_join_multicast_ex(id, &attr, NULL), ENOTSUP);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	REFUSED(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	attr.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	REFUSED(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	// Join and leave, with the event unread and with the event read.
	attr.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
	DONE(rdma_join_multicast_ex(id, &attr, &group));
	struct rdma_cm_event *event = EXPECT(channel, MULTICAST_JOIN);
	CHECK(event->param.ud.private_data == &group && event->param.ud.qp_num == 0xffffff);
	CHECK(event->param.ud.qkey == RDMA_UDP_QKEY && event->param.ud.ah_attr.is_global);
	DONE(rdma_ack_cm_event(event));
	DONE(rdma_leave_multicast(id, SA(group)));
	REFUSED(rdma_leave_multicast(id, SA(group)), EADDRNOTAVAIL);
	DONE(rdma_join_multicast(id, SA(group), NULL));
	DONE(rdma_leave_multicast(id, SA(group)));
	make_nonblocking(channel->fd);
	REFUSED(rdma_get_cm_event(channel, &event), EAGAIN);
	DONE(rdma_destroy_id(id));
}

static void names(void)
{
	struct rdma_addrinfo *res, hints = { .ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP };
	REFUSED(rdma_getaddrinfo(NULL, NULL, NULL, &res), EINVAL);
	REFUSED(rdma_getaddrinfo("127.0.0.1", NULL, NULL, NULL), EINVAL);
	CHECK(rdma_getaddrinfo("no such name", NULL, &hints, &res) != 0);
	DONE(rdma_getaddrinfo("127.0.0.1", "80", &hints, &res));
	CHECK(res->ai_family == AF_INET && res->ai_qp_type == IBV_QPT_RC && res->ai_port_space == RDMA_PS_TCP);
	CHECK(res->ai_dst_len == sizeof(struct sockaddr_in) && res->ai_src_addr == NULL);
	CHECK(((struct sockaddr_in *)res->ai_dst_addr)->sin_port == htons(80));
	rdma_freeaddrinfo(res);
	hints.ai_flags |= RAI_PASSIVE;
	hints.ai_port_space = RDMA_PS_UDP;
	DONE(rdma_getaddrinfo(NULL, "80", &hints, &res));
	CHECK(res->ai_flags & RAI_PASSIVE && res->ai_qp_type == IBV_QPT_UD && res->ai_src_len && !res->ai_dst_addr);
	rdma_freeaddrinfo(res);
	hints = (struct rdma_addrinfo){ .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	DONE(rdma_getaddrinfo(NULL, "80", &hints, &res));
	res->ai_port_space = 0x999;
	struct rdma_cm_id *id;
	REFUSED(rdma_create_ep(&id, res, NULL, NULL), EINVAL);
	REFUSED(rdma_create_ep(&id, NULL, NULL, NULL), EINVAL);
	rdma_freeaddrinfo(res);
	CHECK(strcmp(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT") == 0);
	CHECK(strcmp(rdma_event_str(99), "UNKNOWN EVENT") == 0);
	int count = 0;
	struct ibv_context **devices = rdma_get_devices(&count);
	CHECK(devices && count == 1 && devices[0] && devices[1] == NULL);
	CHECK(strcmp(ibv_get_device_name(devices[0]->device), "ferroce0") == 0);
	rdma_free_devices(devices);
}

static void waiting_ids(void)
{
	struct rdma_cm_id *id;
	struct sockaddr_in to = address("127.0.0.1", 9);
	DONE(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	REFUSED(rdma_migrate_id(id, NULL), EINVAL);
	DONE(rdma_resolve_addr(id, NULL, SA(to), 100));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED && id->verbs);
	DONE(rdma_resolve_route(id, 100));
	// The port has no listener.
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	DONE(rdma_create_qp(id, NULL, &attr));
	REFUSED(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == 8);
	rdma_destroy_ep(id);
}

int main(void)
{
	channel = rdma_create_event_channel();
	CHECK(channel);
	pointers();
	addresses();
	shared_ports();
	too_early();
	limits();
	options();
	names();
	waiting_ids();
	groups();
	rdma_destroy_event_channel(channel);
	return 0;
}
