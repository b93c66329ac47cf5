// Addresses of the family AF_IB, as on Linux with a RoCE device, and datagrams in the port space RDMA_PS_IB.
#include "cm.h"
#include <infiniband/ib.h>

static struct rdma_event_channel *here, *there;

static struct sockaddr_ib service(uint64_t sid, uint64_t mask)
{
	return (struct sockaddr_ib){ .sib_family = AF_IB, .sib_sid = htobe64(sid), .sib_sid_mask = htobe64(mask) };
}

static struct sockaddr_ib *names(struct sockaddr *address)
{
	CHECK(address->sa_family == AF_IB);
	return (struct sockaddr_ib *)address;
}

static struct rdma_cm_id *fresh(struct rdma_event_channel *channel, enum rdma_port_space ps)
{
	struct rdma_cm_id *id;
	DONE(rdma_create_id(channel, &id, NULL, ps));
	return id;
}

// Numeric addresses become GIDs if the program requests the family AF_IB, and stay IP addresses otherwise.
static void names_of_numbers(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_FAMILY | RAI_NUMERICHOST, .ai_family = AF_IB,
				       .ai_port_space = RDMA_PS_IB, .ai_qp_type = IBV_QPT_RC }, *res;
	DONE(rdma_getaddrinfo("fe80::1:2", "7471", &hints, &res));
	struct sockaddr_ib *ib = names(res->ai_dst_addr);
	uint8_t gid[16] = { 0xfe, 0x80, [13] = 1, [15] = 2 };
	CHECK(res->ai_family == AF_IB && res->ai_dst_len == sizeof *ib && res->ai_src_len == 0);
	CHECK(memcmp(&ib->sib_addr, gid, 16) == 0 && ib->sib_pkey == 0xffff);
	CHECK(be64toh(ib->sib_sid) == (RDMA_IB_PS_IB | 7471) && ib->sib_sid_mask == ~0ull);
	CHECK(res->ai_port_space == RDMA_PS_IB && res->ai_qp_type == IBV_QPT_RC);
	rdma_freeaddrinfo(res);
	hints.ai_flags |= RAI_PASSIVE;
	DONE(rdma_getaddrinfo("::", NULL, &hints, &res));
	ib = names(res->ai_src_addr);
	CHECK(be64toh(ib->sib_sid) == RDMA_IB_PS_IB && be64toh(ib->sib_sid_mask) == RDMA_IB_IP_PS_MASK);
	rdma_freeaddrinfo(res);
	hints.ai_flags = RAI_FAMILY;
	DONE(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &res));
	CHECK(res->ai_family == AF_INET && res->ai_dst_addr->sa_family == AF_INET);
	rdma_freeaddrinfo(res);
}

static void binding(void)
{
	struct rdma_cm_id *id = fresh(here, RDMA_PS_IB), *tcp = fresh(here, RDMA_PS_TCP), *ipoib = fresh(here, RDMA_PS_IPOIB);
	struct sockaddr_ib of_tcp = service(RDMA_IB_IP_PS_TCP, RDMA_IB_IP_PS_MASK), any = service(0, 0), gid = any;
	struct sockaddr_in ip = address("127.0.0.1", 9);
	// A GID always has the family AF_IB, even if it is one of the device.
	gid.sib_addr.sib_raw[10] = gid.sib_addr.sib_raw[11] = 0xff;
	gid.sib_addr.sib_raw[12] = 127, gid.sib_addr.sib_raw[15] = 1;
	REFUSED(rdma_bind_addr(id, SA(gid)), ENODEV);
	REFUSED(rdma_resolve_addr(id, NULL, SA(gid), 100), ENODEV);
	REFUSED(rdma_bind_addr(tcp, SA(gid)), ENODEV);
	rdma_destroy_id(id);
	id = fresh(here, RDMA_PS_IB);
	// The port space of the id, or another that is allowed for it.
	struct sockaddr_ib of_udp = service(RDMA_IB_IP_PS_UDP, RDMA_IB_IP_PS_MASK), nobodys = service(0x7700000000, RDMA_IB_IP_PS_MASK);
	REFUSED(rdma_bind_addr(tcp, SA(of_udp)), EPROTONOSUPPORT);
	REFUSED(rdma_bind_addr(id, SA(nobodys)), EPROTONOSUPPORT);
	REFUSED(rdma_bind_addr(ipoib, SA(any)), EPROTONOSUPPORT);
	DONE(rdma_bind_addr(id, SA(of_tcp)));
	struct sockaddr_ib *own = names(rdma_get_local_addr(id));
	int port = ntohs(rdma_get_src_port(id));
	CHECK(port != 0 && be64toh(own->sib_sid) == (RDMA_IB_IP_PS_TCP | port) && own->sib_sid_mask == ~0ull);
	CHECK(id->verbs == NULL);
	REFUSED(rdma_bind_addr(id, SA(any)), EINVAL);
	// The port is taken in the space that the service id contains.
	struct sockaddr_ib same = service(RDMA_IB_IP_PS_TCP | port, ~0ull);
	DONE(rdma_listen(id, 1));
	REFUSED(rdma_bind_addr(tcp, SA(same)), EADDRNOTAVAIL);
	DONE(rdma_destroy_id(id));
	DONE(rdma_bind_addr(tcp, SA(same)));
	CHECK(ntohs(rdma_get_src_port(tcp)) == port);
	// Both ends must have the same family.
	REFUSED(rdma_resolve_addr(tcp, NULL, SA(ip), 100), EINVAL);
	DONE(rdma_destroy_id(tcp));
	tcp = fresh(here, RDMA_PS_TCP);
	REFUSED(rdma_resolve_addr(tcp, SA(ip), SA(any), 100), EINVAL);
	DONE(rdma_bind_addr(tcp, SA(ip)));
	REFUSED(rdma_resolve_addr(tcp, NULL, SA(any), 100), EINVAL);
	DONE(rdma_destroy_id(tcp));
	DONE(rdma_destroy_id(ipoib));
}

// Address resolution to this host works. Route resolution fails, since there is no subnet administrator.
static void loopback(void)
{
	struct rdma_cm_id *id = fresh(here, RDMA_PS_IB);
	struct sockaddr_ib to = service(RDMA_IB_PS_IB | 9, ~0ull);
	to.sib_addr.sib_raw[15] = 1;
	DONE(rdma_resolve_addr(id, NULL, SA(to), 100));
	PASS(here, ADDR_RESOLVED);
	CHECK(id->verbs && id->pd && id->port_num == 1 && ntohs(rdma_get_dst_port(id)) == 9);
	CHECK(ib_addr_loopback(&names(rdma_get_local_addr(id))->sib_addr));
	REFUSED(rdma_resolve_route(id, 100), ENODEV);
	struct rdma_conn_param param = { .qp_num = 1 };
	REFUSED(rdma_connect(id, &param), EINVAL);
	DONE(rdma_destroy_id(id));
}

// A listener on a service id receives all requests for it, with their private data unchanged.
static void listening(void)
{
	struct rdma_cm_id *listens = fresh(there, RDMA_PS_TCP), *passive;
	struct sockaddr_ib any = service(0, 0);
	DONE(rdma_bind_addr(listens, SA(any)));
	DONE(rdma_listen(listens, 4));
	int port = ntohs(rdma_get_src_port(listens));
	struct rdma_cm_id *active = routed(here, RDMA_PS_TCP, port);
	struct ibv_port_attr at;
	CHECK(ibv_query_port(active->verbs, 1, &at) == 0);
	// The rate of the path is that of the port: one lane of EDR.
	CHECK(at.active_width == 1 && at.active_speed == 32);
	CHECK(active->route.num_paths == 1 && active->route.path_rec->rate == IBV_RATE_25_GBPS);
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	DONE(rdma_create_qp(active, NULL, &attr));
	struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 6 };
	DONE(rdma_connect(active, &param));
	struct rdma_cm_event *event = EXPECT(there, CONNECT_REQUEST);
	const uint8_t *data = event->param.conn.private_data;
	CHECK(event->param.conn.private_data_len == 92 && data[1] == 0x40 && strcmp((char *)data + 36, "hello") == 0);
	CHECK(memcmp(data + 16, (uint8_t[]){ 127, 0, 0, 1 }, 4) == 0);
	passive = event->id;
	uint8_t gid[16] = { [10] = 0xff, 0xff, 127, 0, 0, 1 };
	struct sockaddr_ib *own = names(rdma_get_local_addr(passive)), *peer = names(rdma_get_peer_addr(passive));
	CHECK(memcmp(&own->sib_addr, gid, 16) == 0 && memcmp(&peer->sib_addr, gid, 16) == 0);
	CHECK(be64toh(own->sib_sid) == (RDMA_IB_IP_PS_TCP | port) && peer->sib_sid == 0);
	CHECK(passive->verbs && ntohs(rdma_get_src_port(passive)) == port);
	DONE(rdma_ack_cm_event(event));
	attr = small_qp(IBV_QPT_RC);
	DONE(rdma_create_qp(passive, NULL, &attr));
	param = (struct rdma_conn_param){ 0 };
	DONE(rdma_accept(passive, &param));
	PASS(here, ESTABLISHED);
	PASS(there, ESTABLISHED);
	DONE(rdma_disconnect(active));
	PASS(here, DISCONNECTED);
	PASS(there, DISCONNECTED);
	rdma_destroy_ep(active);
	rdma_destroy_ep(passive);
	DONE(rdma_destroy_id(listens));
}

static struct rdma_addrinfo *datagram_info(int port, int flags)
{
	char text[8];
	snprintf(text, sizeof text, "%d", port);
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_family = AF_INET, .ai_port_space = RDMA_PS_IB,
				       .ai_qp_type = IBV_QPT_UD }, *res;
	DONE(rdma_getaddrinfo("127.0.0.1", text, &hints, &res));
	CHECK(res->ai_port_space == RDMA_PS_IB && res->ai_qp_type == IBV_QPT_UD);
	return res;
}

static void *answers(void *argument)
{
	struct rdma_cm_id *listens = argument, *passive;
	DONE(rdma_get_request(listens, &passive));
	CHECK(passive->event->param.ud.private_data_len == 180 && passive->qp && passive->qp_type == IBV_QPT_UD);
	static char bytes[100];
	struct ibv_mr *mr = rdma_reg_msgs(passive, bytes, sizeof bytes);
	CHECK(mr);
	DONE(rdma_post_recv(passive, NULL, bytes, sizeof bytes, mr));
	struct rdma_conn_param param = { .qp_num = passive->qp->qp_num };
	DONE(rdma_accept(passive, &param));
	struct ibv_wc wc;
	CHECK(rdma_get_recv_comp(passive, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 40 + 6);
	CHECK(strcmp(bytes + 40, "datum") == 0);
	DONE(rdma_dereg_mr(mr));
	rdma_destroy_ep(passive);
	return NULL;
}

// The port space RDMA_PS_IB is for datagrams, too: the type of the queue pair decides.
static void datagrams(void)
{
	struct rdma_cm_id *listens, *active;
	struct rdma_addrinfo *res = datagram_info(0, RAI_PASSIVE);
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_UD);
	DONE(rdma_create_ep(&listens, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	DONE(rdma_listen(listens, 4));
	int port = ntohs(rdma_get_src_port(listens));
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, answers, listens) == 0);
	res = datagram_info(port, 0);
	attr = small_qp(IBV_QPT_UD);
	DONE(rdma_create_ep(&active, res, NULL, &attr));
	CHECK(active->qp->state == IBV_QPS_RTS && active->ps == RDMA_PS_IB);
	struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 6 };
	DONE(rdma_connect(active, &param));
	struct rdma_ud_param *ud = &active->event->param.ud;
	CHECK(active->event->event == RDMA_CM_EVENT_ESTABLISHED && ud->qkey == RDMA_UDP_QKEY);
	struct ibv_ah *ah = ibv_create_ah(active->pd, &ud->ah_attr);
	char datum[6] = "datum";
	struct ibv_mr *mr = rdma_reg_msgs(active, datum, sizeof datum);
	CHECK(ah && mr);
	DONE(rdma_post_ud_send(active, NULL, datum, sizeof datum, mr, IBV_SEND_SIGNALED, ah, ud->qp_num));
	struct ibv_wc wc;
	CHECK(rdma_get_send_comp(active, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(pthread_join(thread, NULL) == 0);
	DONE(ibv_destroy_ah(ah));
	DONE(rdma_dereg_mr(mr));
	rdma_destroy_ep(active);
	// It does not accept connection requests.
	active = routed(here, RDMA_PS_IB, port);
	param = (struct rdma_conn_param){ .qp_num = 1 };
	DONE(rdma_connect(active, &param));
	struct rdma_cm_event *event = EXPECT(here, REJECTED);
	CHECK(event->status == 28);
	DONE(rdma_ack_cm_event(event));
	DONE(rdma_destroy_id(active));
	rdma_destroy_ep(listens);
	// A listener for connections does not answer SIDR requests.
	listens = listener(there, RDMA_PS_IB, &port);
	res = datagram_info(port, 0);
	attr = small_qp(IBV_QPT_UD);
	DONE(rdma_create_ep(&active, res, NULL, &attr));
	CHECK(rdma_connect(active, &param) == -1 && active->event->event == RDMA_CM_EVENT_UNREACHABLE);
	CHECK(active->event->status == 2);
	rdma_freeaddrinfo(res);
	rdma_destroy_ep(active);
	DONE(rdma_destroy_id(listens));
}

int main(void)
{
	here = rdma_create_event_channel(), there = rdma_create_event_channel();
	CHECK(here && there);
	names_of_numbers();
	binding();
	loopback();
	listening();
	datagrams();
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
	return 0;
}
