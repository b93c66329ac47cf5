/* Extended reliable connections (XRC): domains and their files, SRQs by number, queue pairs that are opened twice. */
#include "pair.h"
#include <fcntl.h>

static struct ibv_xrcd *open_domain(struct ibv_context *context, int fd, int oflags) {
    struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd,
        .oflags = oflags};
    return ibv_open_xrcd(context, &attr);
}

static void domains(struct ibv_context *context) {
    char name[] = "/tmp/ferroce-xrcd-XXXXXX";
    int fd = mkstemp(name);
    MUST(fd >= 0);
    unlink(name);
    NULL_WITH(EAGAIN, open_domain(context, fd, 0));
    struct ibv_xrcd *first = open_domain(context, fd, O_CREAT | O_EXCL);
    CHECK(first != NULL);
    NULL_WITH(EINVAL, open_domain(context, fd, O_CREAT | O_EXCL));
    struct ibv_xrcd *second = open_domain(context, fd, 0), *third = open_domain(context, fd, O_CREAT);
    CHECK(second != NULL && third != NULL);
    NULL_WITH(EBADF, open_domain(context, 4000, O_CREAT));
    struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1};
    NULL_WITH(EINVAL, ibv_open_xrcd(context, &attr));
    attr.comp_mask = 7;
    NULL_WITH(EOPNOTSUPP, ibv_open_xrcd(context, &attr));
    NULL_WITH(EINVAL, ibv_open_xrcd(context, NULL));
    RETURNS(0, ibv_close_xrcd(first));
    RETURNS(0, ibv_close_xrcd(second));
    RETURNS(0, ibv_close_xrcd(third));
    NULL_WITH(EAGAIN, open_domain(context, fd, 0));
    close(fd);
}

static struct ibv_srq_init_attr_ex xrc_queue(struct ibv_pd *pd, struct ibv_xrcd *xrcd, struct ibv_cq *cq) {
    return (struct ibv_srq_init_attr_ex){.attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = pd,
        .xrcd = xrcd, .cq = cq, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
            IBV_SRQ_INIT_ATTR_CQ};
}

static struct ibv_qp *receiving_end(struct ibv_context *context, struct ibv_xrcd *xrcd) {
    struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};
    return ibv_create_qp_ex(context, &init);
}

static struct ibv_qp *sending_end(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd,
        .send_cq = cq, .sq_sig_all = 1, .cap = {.max_send_wr = 4, .max_send_sge = 1}};
    return ibv_create_qp_ex(context, &init);
}

static void refusals(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_xrcd *xrcd = open_domain(context, -1, O_CREAT);
    MUST(xrcd != NULL);
    struct ibv_srq_init_attr_ex init = xrc_queue(pd, xrcd, cq);
    init.comp_mask &= ~IBV_SRQ_INIT_ATTR_CQ;
    NULL_WITH(EINVAL, ibv_create_srq_ex(context, &init));
    init = xrc_queue(pd, xrcd, cq);
    init.comp_mask |= IBV_SRQ_INIT_ATTR_TM;
    NULL_WITH(EOPNOTSUPP, ibv_create_srq_ex(context, &init));
    init = xrc_queue(pd, xrcd, cq);
    init.srq_type = 9;
    NULL_WITH(EOPNOTSUPP, ibv_create_srq_ex(context, &init));
    init = xrc_queue(pd, NULL, cq);
    NULL_WITH(EINVAL, ibv_create_srq_ex(context, &init));
    init = xrc_queue(pd, xrcd, cq);
    struct ibv_srq *srq = ibv_create_srq_ex(context, &init);
    MUST(srq != NULL);
    uint32_t number = 0;
    RETURNS(0, ibv_get_srq_num(srq, &number));
    CHECK(number != 0);
    struct ibv_srq_init_attr plain = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *basic = ibv_create_srq(pd, &plain);
    RETURNS(EINVAL, ibv_get_srq_num(basic, &number));
    RETURNS(0, ibv_destroy_srq(basic));

    struct ibv_qp_init_attr on_srq = {.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC};
    NULL_WITH(EINVAL, ibv_create_qp(pd, &on_srq));

    struct ibv_qp_init_attr_ex no_domain = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
    NULL_WITH(EINVAL, ibv_create_qp_ex(context, &no_domain));
    struct ibv_qp *qp = receiving_end(context, xrcd);
    MUST(qp != NULL);
    struct ibv_recv_wr recv = {.wr_id = 1}, *bad_recv;
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
    RETURNS(EINVAL, ibv_post_recv(qp, &recv, &bad_recv));
    RETURNS(EINVAL, ibv_post_send(qp, &send, &bad_send));

    struct ibv_qp_open_attr open = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
        .qp_num = qp->qp_num + 1, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV};
    NULL_WITH(EINVAL, ibv_open_qp(context, &open));
    open.qp_num = qp->qp_num;
    open.qp_type = IBV_QPT_RC;
    NULL_WITH(EINVAL, ibv_open_qp(context, &open));
    open.qp_type = IBV_QPT_XRC_RECV;
    open.comp_mask = IBV_QP_OPEN_ATTR_NUM;
    NULL_WITH(EINVAL, ibv_open_qp(context, &open));

    RETURNS(EBUSY, ibv_close_xrcd(xrcd));
    RETURNS(EBUSY, ibv_destroy_cq(cq));
    RETURNS(0, ibv_destroy_srq(srq));
    RETURNS(EBUSY, ibv_close_xrcd(xrcd));
    RETURNS(0, ibv_destroy_qp(qp));
    RETURNS(0, ibv_close_xrcd(xrcd));
}

/* A message to an SRQ by its number, and an error that raises an event for every handle of the queue pair. */
static void traffic(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_xrcd *xrcd = open_domain(context, -1, O_CREAT);
    struct ibv_srq_init_attr_ex init = xrc_queue(pd, xrcd, cq);
    struct ibv_srq *srq = ibv_create_srq_ex(context, &init);
    struct ibv_qp *to = receiving_end(context, xrcd), *from = sending_end(context, pd, cq);
    MUST(srq != NULL && to != NULL && from != NULL);
    struct ibv_qp_open_attr open = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE |
            IBV_QP_OPEN_ATTR_CONTEXT, .qp_num = to->qp_num, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV,
        .qp_context = &open};
    struct ibv_qp *other = ibv_open_qp(context, &open);
    MUST(other != NULL && other != to);
    CHECK(other->qp_num == to->qp_num && other->qp_context == &open);
    struct pair p = {.context = context, .qp = {from, to}};
    pair_connect(&p, 0, 1);
    pair_connect(&p, 1, 0);

    static char bytes[64] = "hello";
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_sge into = {.addr = (uintptr_t)bytes + 32, .length = 32, .lkey = mr->lkey};
    struct ibv_sge out = {.addr = (uintptr_t)bytes, .length = 6, .lkey = mr->lkey};
    struct ibv_recv_wr recv = {.wr_id = 7, .sg_list = &into, .num_sge = 1}, *bad_recv;
    RETURNS(0, ibv_post_srq_recv(srq, &recv, &bad_recv));
    struct ibv_send_wr send = {.wr_id = 8, .opcode = IBV_WR_SEND, .sg_list = &out, .num_sge = 1}, *bad;
    RETURNS(0, ibv_get_srq_num(srq, &send.qp_type.xrc.remote_srqn));
    RETURNS(0, ibv_post_send(from, &send, &bad));
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = await(cq);
        CHECK(wc.status == IBV_WC_SUCCESS);
        CHECK(wc.wr_id == 8 ? wc.qp_num == from->qp_num : wc.wr_id == 7 && wc.qp_num == to->qp_num);
    }
    CHECK(strcmp(bytes + 32, "hello") == 0);

    /* No such region: the request fails, and each handle of the receiving end receives an event. */
    send.opcode = IBV_WR_RDMA_WRITE;
    send.wr.rdma.rkey = 1;
    RETURNS(0, ibv_post_send(from, &send, &bad));
    CHECK(await(cq).status == IBV_WC_REM_ACCESS_ERR);
    unsigned seen = 0;
    while (seen != 3) {
        struct ibv_async_event event;
        RETURNS(0, ibv_get_async_event(context, &event));
        if (event.event_type == IBV_EVENT_QP_ACCESS_ERR)
            seen |= event.element.qp == to ? 1 : event.element.qp == other ? 2 : 4;
        CHECK(seen < 4);
        ibv_ack_async_event(&event);
    }
    RETURNS(0, ibv_destroy_qp(to));
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr how;
    RETURNS(0, ibv_query_qp(other, &attr, IBV_QP_STATE, &how));
    CHECK(attr.qp_state == IBV_QPS_ERR && how.qp_type == IBV_QPT_XRC_RECV);
    RETURNS(0, ibv_destroy_qp(other));
    NULL_WITH(EINVAL, ibv_open_qp(context, &open));
    RETURNS(0, ibv_destroy_qp(from));
    RETURNS(0, ibv_destroy_srq(srq));
    RETURNS(0, ibv_dereg_mr(mr));
    RETURNS(0, ibv_close_xrcd(xrcd));
}

int main(void) {
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    MUST(pd != NULL && cq != NULL);
    domains(context);
    refusals(context, pd, cq);
    traffic(context, pd, cq);
    RETURNS(0, ibv_destroy_cq(cq));
    RETURNS(0, ibv_dealloc_pd(pd));
    RETURNS(0, ibv_close_device(context));
    return verdict();
}
