// Descriptors are real and honour O_NONBLOCK. Events reach only the context that owns the object.
#include "check.h"
#include <sys/wait.h>

static int readable(int fd)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN | POLLOUT };
	poll(&poll_fd, 1, 0);
	/* The kernel's event files are never writable; InfiniStore polls for both. */
	CHECK(!(poll_fd.revents & POLLOUT));
	return poll_fd.revents & POLLIN;
}

static void completion_events(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, channel, channel, 0);
	CHECK(cq && cq->channel == channel);
	make_nonblocking(channel->fd);
	CHECK(!readable(channel->fd));
	struct ibv_cq *fired = NULL;
	void *cookie = NULL;
	CHECK(ibv_get_cq_event(channel, &fired, &cookie) == -1 && errno == EAGAIN);

	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct end end = { .pd = pd, .cq = cq, .qp = ibv_create_qp(pd, &init) };
	connect_end(&end, end.qp->qp_num);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(!readable(channel->fd));
	// A WRITE of 0 bytes to the same queue pair.
	struct ibv_send_wr wr = { .wr_id = 5, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(end.qp, &wr, &bad) == 0);
	struct pollfd poll_fd = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&poll_fd, 1, 20000) == 1);
	CHECK(ibv_get_cq_event(channel, &fired, &cookie) == 0 && fired == cq && cookie == channel);
	struct ibv_wc wc = next_wc(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5 && wc.qp_num == end.qp->qp_num);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_destroy_qp(end.qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
}

static void async_events(struct ibv_context *owner, struct ibv_context *other)
{
	make_nonblocking(owner->async_fd);
	make_nonblocking(other->async_fd);
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(owner, &event) == -1 && errno == EAGAIN);

	struct ibv_pd *pd = ibv_alloc_pd(owner);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct end end = make_end(owner, IBV_QPT_RC, srq, pd);
	connect_end(&end, end.qp->qp_num);
	struct ibv_sge sge = { (uintptr_t)end.buf, 64, end.mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == 0);
	struct ibv_srq_attr limit = { .srq_limit = 1 };
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(end.qp, &wr, &bad) == 0);
	CHECK(next_wc(end.cq).status == IBV_WC_SUCCESS);
	CHECK(next_wc(end.cq).status == IBV_WC_SUCCESS);

	CHECK(readable(owner->async_fd));
	CHECK(ibv_get_async_event(owner, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	CHECK(!readable(other->async_fd));
	ibv_ack_async_event(&event);
	free_end(&end);
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
}

// A forked child cannot use its parent's objects. It opens the device anew, without effect on the parent.
static void fork_child(struct ibv_context *context)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(ibv_alloc_pd(context) == NULL && errno == EIO);
		struct ibv_context *own = open_device();
		completion_events(own);
		CHECK(ibv_close_device(own) == 0);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	completion_events(context);
}

int main(void)
{
	struct ibv_context *one = open_device(), *two = open_device();
	CHECK(one != two && one->async_fd != two->async_fd && one->cmd_fd != two->cmd_fd);
	completion_events(one);
	async_events(one, two);
	fork_child(two);
	CHECK(ibv_close_device(one) == 0);
	CHECK(ibv_close_device(two) == 0);
	return 0;
}
