// Addresses that leave the host, and a device that is removed with its interface. Runs in its own network namespace.
#include "cm.h"
#include <sched.h>
#include <sys/stat.h>

#define CANNOT 77

static void run(const char *command)
{
	if (system(command) != 0) {
		fprintf(stderr, "failed: %s\n", command);
		exit(1);
	}
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

// A private network namespace; root needs no user namespace for it.
static void enter_network(void)
{
	char map[64];
	unsigned user = geteuid();
	if (unshare(CLONE_NEWNET | (user == 0 ? 0 : CLONE_NEWUSER)) != 0 || system("ip link show >/dev/null") != 0) {
		perror("no network namespace, or no ip");
		exit(CANNOT);
	}
	if (user != 0) {
		put("/proc/self/setgroups", "deny");
		snprintf(map, sizeof map, "0 %u 1", user);
		put("/proc/self/uid_map", map);
	}
	run("ip link set lo up");
	run("ip link add fe0 type veth peer name fe1");
	run("ip link set fe1 up && ip link set fe0 up");
	run("ip addr add 198.18.0.1/24 dev fe0 && ip addr add 198.19.0.1/24 dev fe0");
}

static struct rdma_cm_id *bound(struct rdma_event_channel *channel, const char *ip, int listens)
{
	struct rdma_cm_id *id;
	struct sockaddr_in at = address(ip, 0);
	DONE(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	DONE(rdma_bind_addr(id, SA(at)));
	if (listens)
		DONE(rdma_listen(id, 4));
	return id;
}

static struct rdma_cm_id *on_the_way(struct rdma_event_channel *channel, const char *ip, int port)
{
	struct rdma_cm_id *id;
	struct sockaddr_in to = address(ip, port);
	DONE(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	DONE(rdma_resolve_addr(id, NULL, SA(to), 2000));
	PASS(channel, ADDR_RESOLVED);
	DONE(rdma_resolve_route(id, 2000));
	PASS(channel, ROUTE_RESOLVED);
	return id;
}

static void expect_for(struct rdma_event_channel *channel, enum rdma_cm_event_type kind, struct rdma_cm_id *id)
{
	struct rdma_cm_event *event = expect_at(__LINE__, channel, kind);
	CHECK(event->id == id && event->status == 0);
	DONE(rdma_ack_cm_event(event));
}

static void quiet(struct rdma_event_channel *channel)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 0) == 0);
}

static struct rdma_event_channel *channel(void)
{
	struct rdma_event_channel *made = rdma_create_event_channel();
	CHECK(made);
	return made;
}

// Two ends of a connection from 198.18.0.1 to itself, each with a channel of its own.
struct ends {
	struct rdma_event_channel *here, *there;
	struct rdma_cm_id *active, *passive;
};

static struct ends connected(struct rdma_cm_id *listens)
{
	struct ends ends = { channel(), channel() };
	ends.active = on_the_way(ends.here, "198.18.0.1", ntohs(rdma_get_src_port(listens)));
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_conn_param param = { 0 };
	DONE(rdma_create_qp(ends.active, NULL, &attr));
	DONE(rdma_connect(ends.active, &param));
	struct rdma_cm_event *event = EXPECT(listens->channel, CONNECT_REQUEST);
	ends.passive = event->id;
	DONE(rdma_ack_cm_event(event));
	DONE(rdma_migrate_id(ends.passive, ends.there));
	attr = small_qp(IBV_QPT_RC);
	DONE(rdma_create_qp(ends.passive, NULL, &attr));
	DONE(rdma_accept(ends.passive, &param));
	PASS(ends.here, ESTABLISHED);
	PASS(ends.there, ESTABLISHED);
	return ends;
}

static void address_leaves(void)
{
	struct rdma_event_channel *all = channel(), *one = channel(), *other = channel(), *early = channel();
	struct rdma_cm_id *any = bound(all, "0.0.0.0", 1), *own = bound(one, "198.18.0.1", 1);
	struct rdma_cm_id *unaffected = bound(other, "198.19.0.1", 0);
	struct ends ends = connected(own);
	struct rdma_cm_id *resolved = on_the_way(early, "198.18.0.1", ntohs(rdma_get_src_port(own)));
	run("ip addr del 198.18.0.1/24 dev fe0");
	expect_for(one, RDMA_CM_EVENT_ADDR_CHANGE, own);
	expect_for(early, RDMA_CM_EVENT_ADDR_CHANGE, resolved);
	expect_for(ends.here, RDMA_CM_EVENT_ADDR_CHANGE, ends.active);
	expect_for(ends.there, RDMA_CM_EVENT_ADDR_CHANGE, ends.passive);
	// Ids without an address, or with another one, get no event.
	struct rdma_conn_param param = { .qp_num = 1 };
	REFUSED(rdma_connect(resolved, &param), EADDRNOTAVAIL);
	quiet(all), quiet(other);
	// The event is a hint and ends no connection: once the address is added again, everything works.
	run("ip addr add 198.18.0.1/24 dev fe0");
	struct ibv_async_event event;
	DONE(ibv_get_async_event(own->verbs, &event));
	CHECK(event.event_type == IBV_EVENT_GID_CHANGE);
	ibv_ack_async_event(&event);
	DONE(ibv_get_async_event(own->verbs, &event));
	ibv_ack_async_event(&event);
	quiet(one), quiet(early), quiet(ends.here), quiet(ends.there);
	struct ends again = connected(own);
	DONE(rdma_disconnect(again.active));
	PASS(again.here, DISCONNECTED);
	PASS(again.there, DISCONNECTED);
	DONE(rdma_disconnect(ends.active));
	PASS(ends.here, DISCONNECTED);
	PASS(ends.there, DISCONNECTED);
	struct rdma_cm_id *ids[] = { ends.active, ends.passive, again.active, again.passive, any, own, unaffected, resolved };
	for (unsigned i = 0; i < sizeof ids / sizeof *ids; i++)
		rdma_destroy_ep(ids[i]);
}

// The GID table is ordered, so a removed address moves the entries after it. A connection that is being set up must not use an
// old index, which belongs to another address.
static void addresses_move(void)
{
	struct rdma_event_channel *there = channel(), *here = channel();
	struct rdma_cm_id *listens = bound(there, "198.19.0.1", 1), *passive;
	struct rdma_cm_id *active = on_the_way(here, "198.19.0.1", ntohs(rdma_get_src_port(listens)));
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_conn_param param = { .retry_count = 3, .rnr_retry_count = 7 };
	DONE(rdma_create_qp(active, NULL, &attr));
	DONE(rdma_connect(active, &param));
	struct rdma_cm_event *event = EXPECT(there, CONNECT_REQUEST);
	passive = event->id;
	DONE(rdma_ack_cm_event(event));
	attr = small_qp(IBV_QPT_RC);
	DONE(rdma_create_qp(passive, NULL, &attr));
	static char sent[8] = "across", got[8];
	struct ibv_mr *from = rdma_reg_msgs(active, sent, sizeof sent), *to = rdma_reg_msgs(passive, got, sizeof got);
	CHECK(from && to);
	DONE(rdma_post_recv(passive, NULL, got, sizeof got, to));
	union ibv_gid first, own = { .raw = { [10] = 0xff, 0xff, 198, 19, 0, 1 } };
	run("ip addr del 198.18.0.1/24 dev fe0");
	struct ibv_async_event change;
	do {
		DONE(ibv_get_async_event(listens->verbs, &change));
		ibv_ack_async_event(&change);
		CHECK(ibv_query_gid(listens->verbs, 1, 0, &first) == 0);
	} while (memcmp(&first, &own, sizeof own) != 0);
	DONE(rdma_accept(passive, &param));
	PASS(here, ESTABLISHED);
	PASS(there, ESTABLISHED);
	struct ibv_qp_attr asked;
	struct ibv_qp_init_attr init;
	struct rdma_cm_id *ends[] = { active, passive };
	for (int i = 0; i < 2; i++) {
		DONE(ibv_query_qp(ends[i]->qp, &asked, IBV_QP_AV, &init));
		CHECK(asked.ah_attr.grh.sgid_index == 0);
	}
	DONE(rdma_post_send(active, NULL, sent, sizeof sent, from, IBV_SEND_SIGNALED));
	struct ibv_wc wc;
	CHECK(rdma_get_send_comp(active, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(passive, &wc) == 1 && strcmp(got, "across") == 0);
	run("ip addr add 198.18.0.1/24 dev fe0");
	DONE(rdma_dereg_mr(from));
	DONE(rdma_dereg_mr(to));
	rdma_destroy_ep(active);
	rdma_destroy_ep(passive);
	DONE(rdma_destroy_id(listens));
}

// ADDR_CHANGE may come first, since addresses are removed before their interface.
static void expect_removal(struct rdma_event_channel *channel, struct rdma_cm_id *id)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	do {
		CHECK(poll(&fd, 1, PATIENCE_MS) == 1);
		DONE(rdma_get_cm_event(channel, &event));
		enum rdma_cm_event_type kind = event->event;
		CHECK(event->id == id && event->status == 0);
		CHECK(kind == RDMA_CM_EVENT_ADDR_CHANGE || kind == RDMA_CM_EVENT_DEVICE_REMOVAL);
		DONE(rdma_ack_cm_event(event));
		if (kind == RDMA_CM_EVENT_DEVICE_REMOVAL)
			return;
	} while (1);
}

static void device_goes(void)
{
	struct rdma_event_channel *one = channel(), *all = channel();
	struct rdma_cm_id *own = bound(one, "198.18.0.1", 1), *any = bound(all, "0.0.0.0", 1);
	struct ends ends = connected(own);
	run("ip link del fe0");
	expect_removal(one, own);
	expect_removal(ends.here, ends.active);
	expect_removal(ends.there, ends.passive);
	quiet(all);
	struct rdma_conn_param param = { 0 };
	REFUSED(rdma_listen(own, 1), ENXIO);
	REFUSED(rdma_disconnect(ends.active), ENXIO);
	REFUSED(rdma_accept(ends.passive, &param), ENXIO);
	struct ibv_async_event event;
	do {
		DONE(ibv_get_async_event(own->verbs, &event));
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_DEVICE_FATAL);
	rdma_destroy_ep(ends.active);
	rdma_destroy_ep(ends.passive);
	DONE(rdma_destroy_id(own));
	DONE(rdma_destroy_id(any));
}

int main(void)
{
	enter_network();
	void (*parts[])(void) = { address_leaves, addresses_move, device_goes };
	const char *addresses[] = { "", "", "198.18.0.1" };
	int failed = 0;
	for (int i = 0; i < 3 && !failed; i++) {
		pid_t child = fork();
		if (child == 0) {
			setenv("FERROCE_ADDR", addresses[i], 1);
			parts[i]();
			exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		failed = status != 0;
	}
	// Registries are per network namespace, and this namespace ends with the test. Another user may have a registry of an earlier
	// namespace with the same number; the test cannot remove that one, and ignores the error.
	struct stat space;
	char command[128];
	CHECK(stat("/proc/self/ns/net", &space) == 0);
	snprintf(command, sizeof command, "rm -rf /dev/shm/ferroce-*-%lu 2>/dev/null || true", (unsigned long)space.st_ino);
	run(command);
	return failed;
}
