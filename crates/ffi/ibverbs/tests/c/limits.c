/* The device's limits, the states of a queue pair, and invalid keys. */
#include "pair.h"

static void sizes_and_arguments(struct ibv_context *context, struct ibv_pd *pd) {
    struct ibv_device_attr device;
    MUST(ibv_query_device(context, &device) == 0);

    NULL_WITH(EINVAL, ibv_create_cq(context, 0, NULL, NULL, 0));
    NULL_WITH(EINVAL, ibv_create_cq(context, -1, NULL, NULL, 0));
    NULL_WITH(EINVAL, ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0));
    NULL_WITH(EINVAL, ibv_create_cq(context, 16, NULL, NULL, context->num_comp_vectors));

    char bytes[64];
    NULL_WITH(EINVAL, ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_REMOTE_WRITE));
    NULL_WITH(EINVAL, ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_REMOTE_ATOMIC));
    NULL_WITH(EINVAL, ibv_reg_mr(pd, bytes, sizeof bytes, 1 << 18));
    NULL_WITH(EFAULT, ibv_reg_mr(pd, (void *)4096, 4096, IBV_ACCESS_LOCAL_WRITE));

    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    MUST(cq != NULL);
    struct ibv_qp_init_attr good = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp_init_attr bad = good;
    bad.cap.max_send_wr = device.max_qp_wr + 1;
    NULL_WITH(EINVAL, ibv_create_qp(pd, &bad));
    bad = good;
    bad.cap.max_recv_sge = device.max_sge + 1;
    NULL_WITH(EINVAL, ibv_create_qp(pd, &bad));
    bad = good;
    bad.cap.max_inline_data = 1 << 20;
    NULL_WITH(EINVAL, ibv_create_qp(pd, &bad));
    bad = good;
    bad.send_cq = NULL;
    NULL_WITH(EINVAL, ibv_create_qp(pd, &bad));

    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = device.max_srq_wr + 1, .max_sge = 1}};
    NULL_WITH(EINVAL, ibv_create_srq(pd, &srq_attr));
    srq_attr.attr.max_wr = 4;
    srq_attr.attr.max_sge = device.max_srq_sge + 1;
    NULL_WITH(EINVAL, ibv_create_srq(pd, &srq_attr));

    /* Ethernet needs a GRH, unless the LID identifies a GID. */
    struct ibv_ah_attr ah = {.dlid = 0, .port_num = 1};
    NULL_WITH(EINVAL, ibv_create_ah(pd, &ah));
    struct ibv_port_attr own;
    RETURNS(0, ibv_query_port(context, 1, &own));
    ah.dlid = own.lid;
    struct ibv_ah *by_lid = ibv_create_ah(pd, &ah);
    CHECK((by_lid != NULL) == (own.lid != 0));
    CHECK(by_lid == NULL || ibv_destroy_ah(by_lid) == 0);
    ah.is_global = 1;
    ah.grh.sgid_index = 255;
    CHECK(ibv_create_ah(pd, &ah) == NULL && errno != 0);

    union ibv_gid gid;
    struct ibv_port_attr port;
    uint16_t pkey;
    CHECK(ibv_query_gid(context, 1, 100000, &gid) != 0);
    CHECK(ibv_query_gid(context, 2, 0, &gid) != 0);
    CHECK(ibv_query_pkey(context, 1, 100, &pkey) != 0);
    RETURNS(EINVAL, ibv_query_port(context, 0, &port));
    RETURNS(EINVAL, ibv_query_port(context, 2, &port));
    CHECK(ibv_resize_cq(cq, 0) != 0);
    CHECK(ibv_resize_cq(cq, device.max_cqe + 1) != 0);
    RETURNS(0, ibv_resize_cq(cq, 64));
    CHECK(cq->cqe >= 64);
    RETURNS(0, ibv_destroy_cq(cq));
}

static void states(struct ibv_context *context, struct ibv_pd *pd) {
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    MUST(qp != NULL);
    CHECK(init.cap.max_send_wr >= 2);

    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_INIT;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE)); /* port, P_Key index and rights are missing */
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, 1 << 30));
    attr.port_num = 2;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr,
        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));

    /* Nothing may be posted in RESET; a send not before RTS. */
    struct ibv_recv_wr recv = {.wr_id = 1}, *bad_recv = NULL;
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send = NULL;
    RETURNS(EINVAL, ibv_post_recv(qp, &recv, &bad_recv));
    CHECK(bad_recv == &recv);
    RETURNS(EINVAL, ibv_post_send(qp, &send, &bad_send));
    CHECK(bad_send == &send);
    attr.port_num = 1;
    RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    RETURNS(EINVAL, ibv_post_send(qp, &send, &bad_send));

    /* A full queue: the list stops at the request that did not fit. */
    struct ibv_recv_wr wrs[256];
    int count = (int)init.cap.max_recv_wr + 1;
    MUST(count < 256);
    for (int i = 0; i < count; i++)
        wrs[i] = (struct ibv_recv_wr){.wr_id = i, .next = i + 1 < count ? &wrs[i + 1] : NULL};
    RETURNS(ENOMEM, ibv_post_recv(qp, wrs, &bad_recv));
    CHECK(bad_recv == &wrs[count - 1]);

    /* In the error state all requests complete with a flush error. */
    attr.qp_state = IBV_QPS_ERR;
    RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    for (int i = 0; i + 1 < count; i++) {
        struct ibv_wc wc = await(cq);
        CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == (uint64_t)i);
    }
    RETURNS(0, ibv_destroy_qp(qp));
    RETURNS(0, ibv_destroy_cq(cq));
}

static void wrong_keys(struct ibv_context *context) {
    struct pair p = pair_open(context, 8192);
    struct ibv_sge sge = {.addr = (uintptr_t)p.buffer, .length = 8, .lkey = p.mr->lkey ^ 0x5555};
    struct ibv_send_wr wr = {.wr_id = 7, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = {.remote_addr = (uintptr_t)p.buffer, .rkey = p.mr->rkey}}, *bad = NULL;
    struct ibv_send_wr many = wr;
    many.num_sge = 3;
    RETURNS(EINVAL, ibv_post_send(p.qp[0], &many, &bad));
    CHECK(bad == &many);
    RETURNS(0, ibv_post_send(p.qp[0], &wr, &bad));
    struct ibv_wc wc = await(p.cq);
    CHECK(wc.status == IBV_WC_LOC_PROT_ERR && wc.wr_id == 7 && wc.qp_num == p.qp[0]->qp_num);
    pair_close(&p);

    p = pair_open(context, 8192);
    sge.addr = (uintptr_t)p.buffer;
    sge.lkey = p.mr->lkey;
    wr.wr.rdma.remote_addr = (uintptr_t)p.buffer + p.size - 4; /* half of it is behind the end */
    wr.wr.rdma.rkey = p.mr->rkey;
    RETURNS(0, ibv_post_send(p.qp[0], &wr, &bad));
    wc = await(p.cq);
    CHECK(wc.status == IBV_WC_REM_ACCESS_ERR);
    struct ibv_async_event event;
    RETURNS(0, ibv_get_async_event(context, &event));
    CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == p.qp[1]);
    ibv_ack_async_event(&event);
    pair_close(&p);
}

int main(void) {
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    MUST(pd != NULL);
    sizes_and_arguments(context, pd);
    states(context, pd);
    wrong_keys(context);
    RETURNS(0, ibv_dealloc_pd(pd));
    RETURNS(0, ibv_close_device(context));
    return verdict();
}
