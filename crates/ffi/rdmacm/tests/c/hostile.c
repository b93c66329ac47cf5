// A hostile peer of an rsocket: it connects with the plain calls and sends invalid messages of the protocol.
#include "cm.h"
#include <rdma/rsocket.h>

// The private data that the two ends exchange when they connect, in wire format.
struct connect_data {
	uint8_t version, flags;
	uint16_t credits;
	uint8_t reserved[3], mappings;
	uint64_t table_addr;
	uint32_t table_key, table_length;
	uint64_t data_addr;
	uint32_t data_key, data_length;
} __attribute__((packed));

enum { DATA = 0u << 29, CREDITS = 4u << 29, MAPPING = 6u << 29, CONTROL = 7u << 29 };

static int listens, port;

struct attacker {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct connect_data own, theirs;
	uint16_t data_len; // bytes of private data
	int is_nowhere;    // announces invalid memory
	int answer;        // the event that it received
	struct ibv_mr *mr;
	uint8_t memory[8192];
};

static struct connect_data valid_data(void)
{
	return (struct connect_data){ .version = 1, .flags = 2, .credits = htons(16), .mappings = 4,
			       .table_addr = htobe64(0x1000), .table_key = htonl(1), .table_length = htonl(2),
			       .data_addr = htobe64(0x2000), .data_key = htonl(1), .data_length = htonl(4096) };
}

static void *attack(void *argument)
{
	struct attacker *a = argument;
	a->id = routed(a->channel, RDMA_PS_TCP, port);
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 64;
	DONE(rdma_create_qp(a->id, NULL, &attr));
	CHECK((a->mr = rdma_reg_write(a->id, a->memory, sizeof a->memory)));
	if (!a->is_nowhere) {
		a->own.table_addr = htobe64((uintptr_t)a->memory), a->own.data_addr = htobe64((uintptr_t)a->memory + 4096);
		a->own.table_key = a->own.data_key = htonl(a->mr->rkey);
	}
	struct rdma_conn_param param = { .private_data = &a->own, .private_data_len = a->data_len, .rnr_retry_count = 7,
					 .retry_count = 7 };
	for (int i = 0; i < 64; i++)
		DONE(rdma_post_recvv(a->id, NULL, NULL, 0));
	DONE(rdma_connect(a->id, &param));
	struct pollfd fd = { .fd = a->channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, PATIENCE_MS) == 1);
	struct rdma_cm_event *event;
	DONE(rdma_get_cm_event(a->channel, &event));
	a->answer = event->event;
	if (a->answer == RDMA_CM_EVENT_ESTABLISHED)
		memcpy(&a->theirs, event->param.conn.private_data, sizeof a->theirs);
	DONE(rdma_ack_cm_event(event));
	return NULL;
}

// Connects with valid private data; returns the victim's socket.
static int connect_attacker(struct attacker *a, int is_nowhere)
{
	*a = (struct attacker){ .channel = rdma_create_event_channel(), .own = valid_data(), .data_len = sizeof a->own,
				.is_nowhere = is_nowhere };
	CHECK(a->channel);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, attack, a) == 0);
	int victim = raccept(listens, NULL, NULL);
	CHECK(pthread_join(thread, NULL) == 0);
	return victim;
}

static void close_attacker(struct attacker *a, int victim)
{
	if (victim >= 0)
		CHECK(rclose(victim) == 0);
	DONE(rdma_dereg_mr(a->mr));
	rdma_destroy_ep(a->id);
	rdma_destroy_event_channel(a->channel);
}

// Writes bytes to any address of the victim's memory, with a message as immediate data.
static enum ibv_wc_status send_message(struct attacker *a, uint32_t message, const void *bytes, uint32_t length, uint64_t to, uint32_t key)
{
	struct ibv_mr *mr = length ? rdma_reg_msgs(a->id, (void *)bytes, length) : NULL;
	CHECK(!length || mr);
	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = length, .lkey = mr ? mr->lkey : 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = length ? 1 : 0, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				  .imm_data = htonl(message), .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = to, .rkey = key } }, *bad;
	CHECK(ibv_post_send(a->id->qp, &wr, &bad) == 0);
	struct ibv_wc wc;
	CHECK(rdma_get_send_comp(a->id, &wc) == 1);
	if (mr)
		DONE(rdma_dereg_mr(mr));
	return wc.status;
}

static void expect_reset(int victim)
{
	char byte;
	errno = 0;
	CHECK(rrecv(victim, &byte, 1, 0) == -1 && errno == ECONNRESET);
}

static void an_honest_client(void);

// Invalid private data: the listener rejects it, and serves the next client.
static void bad_private_data(void)
{
	struct attacker a;
	struct connect_data none = { 0 }, later = valid_data(), no_table = valid_data();
	later.version = 9;
	no_table.table_length = 0;
	struct connect_data all[] = { none, later, no_table };
	for (unsigned i = 0; i < 3; i++) {
		pthread_t thread;
		a = (struct attacker){ .channel = rdma_create_event_channel(), .own = all[i], .data_len = i ? sizeof a.own : 0 };
		CHECK(a.channel && pthread_create(&thread, NULL, attack, &a) == 0);
		do {
			// Only raccept handles connection requests, and it returns only with a valid client.
			an_honest_client();
		} while (pthread_tryjoin_np(thread, NULL) != 0);
		CHECK(a.answer == RDMA_CM_EVENT_REJECTED);
		close_attacker(&a, -1);
	}
}

// Messages that announce more bytes than the ring has, and more than were granted.
static void too_much(void)
{
	uint32_t lengths[] = { 0x1fffffff, 1 << 20 };
	struct attacker a;
	for (unsigned i = 0; i < 2; i++) {
		int victim = connect_attacker(&a, 0);
		CHECK(victim >= 0);
		CHECK(send_message(&a, DATA | lengths[i], NULL, 0, 0, 0) == IBV_WC_SUCCESS);
		expect_reset(victim);
		close_attacker(&a, victim);
	}
}

// Buffers that do not exist: the victim's WRITEs fail, and its calls report the failure.
static void buffers_of_nobody(void)
{
	struct attacker a;
	int victim = connect_attacker(&a, 1);
	char bytes[5000] = "to nowhere";
	// rsend may fail already: the victim's own grants are written to an invalid address, too.
	CHECK(victim >= 0 && (rsend(victim, bytes, sizeof bytes, 0) > 0 || errno == ECONNRESET));
	expect_reset(victim);
	CHECK(rsend(victim, bytes, sizeof bytes, MSG_NOSIGNAL) == -1);
	close_attacker(&a, victim);
	// A third buffer where the table has two: this violates the protocol.
	victim = connect_attacker(&a, 0);
	uint8_t entry[16];
	memset(entry, 0xff, sizeof entry);
	uint64_t table = be64toh(a.theirs.table_addr);
	for (int i = 0; i < 3; i++)
		CHECK(send_message(&a, CREDITS | 99, entry, sizeof entry, table + 16 * (i % 2), ntohl(a.theirs.table_key)) == IBV_WC_SUCCESS);
	expect_reset(victim);
	close_attacker(&a, victim);
}

// Memory beyond the granted buffers is inaccessible, and mappings in slots that do not exist have no effect.
static void out_of_reach(void)
{
	struct attacker a;
	int victim = connect_attacker(&a, 0);
	CHECK(victim >= 0);
	uint8_t entry[24];
	memset(entry, 0xff, sizeof entry);
	for (uint32_t slot = 0; slot < 70000; slot += 9999)
		CHECK(send_message(&a, MAPPING | slot, NULL, 0, 0, 0) == IBV_WC_SUCCESS);
	CHECK(send_message(&a, CONTROL | 77, NULL, 0, 0, 0) == IBV_WC_SUCCESS);
	CHECK(send_message(&a, 2u << 29 | 77, NULL, 0, 0, 0) == IBV_WC_SUCCESS);
	char byte;
	CHECK(rrecv(victim, &byte, 1, MSG_DONTWAIT) == -1 && errno == EWOULDBLOCK);
	CHECK(riowrite(victim, "x", 1, 0xffffffff, MSG_DONTWAIT) <= 0);
	uint64_t end = be64toh(a.theirs.data_addr) + 2ull * ntohl(a.theirs.data_length);
	CHECK(send_message(&a, DATA | 1, entry, sizeof entry, end - 8, ntohl(a.theirs.data_key)) == IBV_WC_REM_ACCESS_ERR);
	expect_reset(victim);
	close_attacker(&a, victim);
}

static void *connects(void *unused)
{
	(void)unused;
	struct sockaddr_in to = address("127.0.0.1", port);
	int client = rsocket(AF_INET, SOCK_STREAM, 0);
	char got[6];
	CHECK(client >= 0 && rconnect(client, SA(to), sizeof to) == 0);
	CHECK(rsend(client, "hello", 6, 0) == 6 && rrecv(client, got, 6, MSG_WAITALL) == 6 && strcmp(got, "hello") == 0);
	CHECK(rclose(client) == 0);
	return NULL;
}

static void an_honest_client(void)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, connects, NULL) == 0);
	int server = raccept(listens, NULL, NULL);
	char got[6];
	CHECK(server >= 0 && rrecv(server, got, 6, MSG_WAITALL) == 6 && rsend(server, got, 6, 0) == 6);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(rclose(server) == 0);
}

int main(void)
{
	struct sockaddr_in at = address("127.0.0.1", 0);
	socklen_t length = sizeof at;
	listens = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(listens >= 0 && rbind(listens, SA(at), sizeof at) == 0 && rlisten(listens, 8) == 0);
	CHECK(rgetsockname(listens, SA(at), &length) == 0);
	port = ntohs(at.sin_port);
	bad_private_data();
	too_much();
	buffers_of_nobody();
	out_of_reach();
	an_honest_client();
	CHECK(rclose(listens) == 0);
	return 0;
}
