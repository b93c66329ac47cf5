// A peer that is killed at each step: the other end gets an event, nothing hangs, and the next connection works.
//
// With a step and a port as arguments the program is the peer; without, it starts peers and checks the outcome.
#include "cm.h"

static struct rdma_event_channel *channel;

static void die(void)
{
	kill(getpid(), SIGKILL);
	for (;;)
		pause();
}

static int is(const char *step, const char *wanted)
{
	return strcmp(step, wanted) == 0;
}

// A client that ends at `step`.
static void client(const char *step, int port)
{
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_conn_param param = { .retry_count = 2 };
	channel = rdma_create_event_channel();
	CHECK(channel);
	struct rdma_cm_id *id = routed(channel, RDMA_PS_TCP, port);
	DONE(rdma_create_qp(id, NULL, &attr));
	DONE(rdma_connect(id, &param));
	if (is(step, "client after REQ"))
		die();
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, PATIENCE_MS) == 1);
	// The REP has arrived, but the queue pair is not set up and no RTU was sent.
	if (is(step, "client after REP"))
		die();
	PASS(channel, ESTABLISHED);
	if (is(step, "client when connected"))
		die();
	DONE(rdma_disconnect(id));
	if (is(step, "client after DREQ"))
		die();
	PASS(channel, DISCONNECTED);
	rdma_destroy_ep(id);
	rdma_destroy_event_channel(channel);
}

// A server that ends at `step`. It first writes its port to its output.
static void server(const char *step)
{
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_conn_param param = { .rnr_retry_count = 2 };
	int port;
	channel = rdma_create_event_channel();
	CHECK(channel);
	struct rdma_cm_id *listens = listener(channel, RDMA_PS_TCP, &port);
	CHECK(write(1, &port, sizeof port) == sizeof port);
	struct rdma_cm_event *event = EXPECT(channel, CONNECT_REQUEST);
	if (is(step, "server after REQ"))
		die();
	struct rdma_cm_id *id = event->id;
	DONE(rdma_ack_cm_event(event));
	DONE(rdma_create_qp(id, NULL, &attr));
	DONE(rdma_accept(id, &param));
	if (is(step, "server after REP"))
		die();
	PASS(channel, ESTABLISHED);
	if (is(step, "server when connected"))
		die();
	DONE(rdma_disconnect(id));
	if (is(step, "server after DREQ"))
		die();
	(void)listens;
	exit(0);
}

// Starts another process of this program, whose output can be read from `out`.
static pid_t peer(const char *program, const char *step, int port, int *out)
{
	char number[16];
	int ends[2];
	snprintf(number, sizeof number, "%d", port);
	CHECK(pipe(ends) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		dup2(ends[1], 1);
		close(ends[0]), close(ends[1]);
		execl(program, program, step, number, NULL);
		_exit(127);
	}
	close(ends[1]);
	*out = ends[0];
	return pid;
}

static void gone(pid_t pid)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

// The next event of any kind. Another process answers for a dead peer of this host, so it does not take a minute.
static enum rdma_cm_event_type next(struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, PATIENCE_MS) == 1);
	DONE(rdma_get_cm_event(channel, &event));
	CHECK(event->id == id);
	enum rdma_cm_event_type kind = event->event;
	fprintf(stderr, "  %s, status %d\n", rdma_event_str(kind), event->status);
	DONE(rdma_ack_cm_event(event));
	return kind;
}

static void client_dies(const char *program, const char *step, struct rdma_cm_id *listens)
{
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_conn_param param = { .rnr_retry_count = 2 };
	int out;
	fprintf(stderr, "%s\n", step);
	pid_t pid = peer(program, step, ntohs(rdma_get_src_port(listens)), &out);
	struct rdma_cm_event *event = EXPECT(channel, CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	DONE(rdma_ack_cm_event(event));
	if (is(step, "client after REQ")) {
		gone(pid);
		pid = 0;
	}
	DONE(rdma_create_qp(id, NULL, &attr));
	DONE(rdma_accept(id, &param));
	enum rdma_cm_event_type kind = next(id);
	if (kind == RDMA_CM_EVENT_ESTABLISHED) {
		CHECK(!is(step, "client after REQ") && !is(step, "client after REP"));
		// Its last message may be lost. One event reports the disconnection, whichever end caused it.
		gone(pid);
		pid = 0;
		DONE(rdma_disconnect(id));
		CHECK(next(id) == RDMA_CM_EVENT_DISCONNECTED);
	} else {
		// The process that answers for the peer rejects the REP.
		CHECK(kind == RDMA_CM_EVENT_REJECTED || kind == RDMA_CM_EVENT_UNREACHABLE);
		CHECK(id->qp->state == IBV_QPS_ERR || kind == RDMA_CM_EVENT_UNREACHABLE);
	}
	if (pid)
		gone(pid);
	close(out);
	rdma_destroy_ep(id);
}

static void server_dies(const char *program, const char *step)
{
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_conn_param param = { .retry_count = 2 };
	int out, port = 0;
	fprintf(stderr, "%s\n", step);
	pid_t pid = peer(program, step, 0, &out);
	CHECK(read(out, &port, sizeof port) == sizeof port);
	struct rdma_cm_id *id = routed(channel, RDMA_PS_TCP, port);
	DONE(rdma_create_qp(id, NULL, &attr));
	DONE(rdma_connect(id, &param));
	enum rdma_cm_event_type kind = next(id);
	if (is(step, "server after REQ")) {
		CHECK(kind == RDMA_CM_EVENT_REJECTED || kind == RDMA_CM_EVENT_UNREACHABLE);
	} else {
		CHECK(kind == RDMA_CM_EVENT_ESTABLISHED);
		gone(pid);
		pid = 0;
		DONE(rdma_disconnect(id));
		CHECK(next(id) == RDMA_CM_EVENT_DISCONNECTED);
	}
	if (pid)
		gone(pid);
	close(out);
	rdma_destroy_ep(id);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strncmp(argv[1], "client", 6) == 0)
		return client(argv[1], atoi(argv[2])), 0;
	if (argc == 3)
		return server(argv[1]), 0;
	int port, out, status;
	channel = rdma_create_event_channel();
	CHECK(channel);
	struct rdma_cm_id *listens = listener(channel, RDMA_PS_TCP, &port);
	const char *const clients[] = { "client after REQ", "client after REP", "client when connected", "client after DREQ" };
	const char *const servers[] = { "server after REQ", "server after REP", "server when connected", "server after DREQ" };
	for (int i = 0; i < 4; i++)
		client_dies(argv[0], clients[i], listens);
	for (int i = 0; i < 4; i++)
		server_dies(argv[0], servers[i]);

	// A peer that is not killed.
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_conn_param param = { .rnr_retry_count = 2 };
	pid_t pid = peer(argv[0], "client that lives", port, &out);
	struct rdma_cm_event *event = EXPECT(channel, CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	DONE(rdma_ack_cm_event(event));
	DONE(rdma_create_qp(id, NULL, &attr));
	DONE(rdma_accept(id, &param));
	CHECK(next(id) == RDMA_CM_EVENT_ESTABLISHED && next(id) == RDMA_CM_EVENT_DISCONNECTED);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	rdma_destroy_ep(id);
	DONE(rdma_destroy_id(listens));
	rdma_destroy_event_channel(channel);
	return 0;
}
