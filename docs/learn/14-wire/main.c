/* Without an argument: a SEND, a WRITE and a READ. With the name of a capture: the packets in it that arrived. */
#include "rdma.h"

/* A big-endian number of up to eight bytes. */
static uint64_t number(const unsigned char *from, int bytes)
{
	uint64_t value = 0;
	for (int i = 0; i < bytes; i++)
		value = value << 8 | from[i];
	return value;
}

/* The base transport header (BTH), the extended header that follows from the opcode, the payload. */
static void print_packet(const unsigned char *bth, int length)
{
	static const char *const names[32] = { [0x04] = "SEND_ONLY", [0x0a] = "WRITE_ONLY", [0x0c] = "READ_REQUEST",
					       [0x10] = "READ_RESPONSE_ONLY", [0x11] = "ACKNOWLEDGE" };
	int opcode = bth[0], padding = bth[1] >> 4 & 3, header = 12;
	const char *name = opcode < 32 && names[opcode] ? names[opcode] : "another opcode";
	printf("%-18s PSN %d%s", name, (int)number(bth + 9, 3), bth[8] & 0x80 ? ", ACK requested" : "");
	if (opcode == 0x0a || opcode == 0x0c) {
		printf(", RETH: address 0x%llx, rkey 0x%x, length %d", (unsigned long long)number(bth + 12, 8),
		       (unsigned)number(bth + 20, 4), (int)number(bth + 24, 4));
		header += 16;
	} else if (opcode == 0x10 || opcode == 0x11) {
		printf(", AETH: syndrome 0x%x, MSN %d", bth[12], (int)number(bth + 13, 3));
		header += 4;
	}
	printf(", payload %d + %d\n", length - header - padding - 4, padding); /* 4: the ICRC */
}

/* pcapng: blocks of type, length, body, length. Type 6 is a packet, and its option 2 the direction. */
static void print_capture(const char *name)
{
	static unsigned char file[1 << 20];
	FILE *stream = MAKE(fopen(name, "rb"));
	size_t size = fread(file, 1, sizeof file, stream);
	for (size_t at = 0; at + 12 <= size;) {
		uint32_t type, length, captured, flags;
		memcpy(&type, file + at, 4);
		memcpy(&length, file + at + 4, 4);
		memcpy(&captured, file + at + 20, 4);
		if (type == 6) {
			const unsigned char *frame = file + at + 28;
			memcpy(&flags, frame + (captured + 3) / 4 * 4 + 4, 4);
			int is_ipv6 = number(frame + 12, 2) == 0x86dd;
			int before = 14 + (is_ipv6 ? 40 : 20) + 8; /* Ethernet, IP, UDP */
			if ((flags & 3) == 1)
				print_packet(frame + before, (int)captured - before);
		}
		at += length;
	}
	fclose(stream);
}

static void transfer(struct end *client, const struct end *server, enum ibv_wr_opcode opcode)
{
	struct ibv_sge local = { .addr = (uintptr_t)client->buffer, .length = 5, .lkey = client->mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &local, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = (uintptr_t)server->buffer, .rkey = server->mr->rkey } }, *bad;
	CHECK(ibv_post_send(client->qp, &wr, &bad));
	struct ibv_wc wc = wait_completion(client);
	report(client, "request", &wc);
}

int main(int argc, char **argv)
{
	if (argc == 2) {
		print_capture(argv[1]);
		return 0;
	}
	struct end client = create_end("client", IBV_QPT_RC), server = create_end("server", IBV_QPT_RC);
	client.timeout = 20;
	connect_ends(&client, &server);
	strcpy(client.buffer, "hello");
	post_receive(&server, 1, 64);
	transfer(&client, &server, IBV_WR_SEND);
	transfer(&client, &server, IBV_WR_RDMA_WRITE);
	transfer(&client, &server, IBV_WR_RDMA_READ);
	return 0;
}
