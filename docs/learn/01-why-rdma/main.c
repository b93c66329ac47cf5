/* The same bytes twice: requested over a TCP connection, and read from the memory of a server whose program does nothing. */
#include "rdma.h"
#include <arpa/inet.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 2000, LENGTH = 64 };

/* For calls that return -1 and set errno. */
#define SOCKET(call) check(#call, (call) ? errno : 0)

static double now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

/* Two connected sockets of this process. */
static void connect_sockets(int ends[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	SOCKET(bind(listener, (struct sockaddr *)&address, length));
	SOCKET(listen(listener, 1));
	SOCKET(getsockname(listener, (struct sockaddr *)&address, &length));
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	SOCKET(connect(ends[0], (struct sockaddr *)&address, length));
	ends[1] = accept(listener, NULL, NULL);
}

/* The client asks, the server's program answers: four system calls, and the kernel copies each byte twice. */
static void ask(const int ends[2], const char *answer, char *into)
{
	char question;
	int done = write(ends[0], "?", 1) == 1 && read(ends[1], &question, 1) == 1 &&
		   write(ends[1], answer, LENGTH) == LENGTH && recv(ends[0], into, LENGTH, MSG_WAITALL) == LENGTH;
	check("TCP", done ? 0 : EIO);
}

/* The client names a place in the server's memory; the server's NIC answers. */
static void read_remote(struct end *client, const struct end *server)
{
	struct ibv_sge into = { .addr = (uintptr_t)client->buffer, .length = LENGTH, .lkey = client->mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ, .sg_list = &into, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = (uintptr_t)server->buffer, .rkey = server->mr->rkey } }, *bad;
	CHECK(ibv_post_send(client->qp, &wr, &bad));
	struct ibv_wc wc = wait_completion(client);
	if (wc.status != IBV_WC_SUCCESS)
		report(client, "READ", &wc);
}

int main(void)
{
	struct end client = create_end("client", IBV_QPT_RC), server = create_end("server", IBV_QPT_RC);
	connect_ends(&client, &server);
	strcpy(server.buffer, "hello from the server");
	char answer[LENGTH];
	int ends[2];
	connect_sockets(ends);

	double start = now_ns();
	for (int i = 0; i < ROUNDS; i++)
		ask(ends, server.buffer, answer);
	double tcp = (now_ns() - start) / ROUNDS;
	start = now_ns();
	for (int i = 0; i < ROUNDS; i++)
		read_remote(&client, &server);
	double rdma = (now_ns() - start) / ROUNDS;

	printf("TCP:  %s\n", answer);
	printf("READ: %s\n", client.buffer);
	printf("a request over TCP takes %.0f ns, a READ %.0f ns: %.1f times as long\n", tcp, rdma, tcp / rdma);
	return 0;
}
