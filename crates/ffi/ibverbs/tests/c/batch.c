/* ibv_wr_complete posts all requests of a batch or none. */
#include "pair.h"

enum { SLOT = 64, GRH = 40, QKEY = 0x11111111 };

struct end {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_qp_ex *ex;
};

static struct end make_end(struct ibv_context *context, struct ibv_pd *pd, enum ibv_qp_type type) {
    struct end end = {.cq = ibv_create_cq(context, 32, NULL, NULL, 0)};
    MUST(end.cq != NULL);
    struct ibv_qp_init_attr_ex init = {.send_cq = end.cq, .recv_cq = end.cq, .qp_type = type, .sq_sig_all = 1, .pd = pd,
        .cap = {.max_send_wr = 4, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND};
    MUST((end.qp = ibv_create_qp_ex(context, &init)) != NULL);
    MUST((end.ex = ibv_qp_to_qp_ex(end.qp)) != NULL);
    return end;
}

static void close_end(struct end *end) {
    RETURNS(0, ibv_destroy_qp(end->qp));
    RETURNS(0, ibv_destroy_cq(end->cq));
}

static void start_datagrams(struct end *end) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    MUST(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    attr.qp_state = IBV_QPS_RTR;
    MUST(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTS;
    MUST(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

static void receive(struct end *end, struct ibv_mr *mr, int slot) {
    struct ibv_sge sge = {(uintptr_t)mr->addr + slot * (GRH + SLOT), GRH + SLOT, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;
    MUST(ibv_post_recv(end->qp, &wr, &bad) == 0);
}

/* Sends of 8 bytes with wr_ids `first`, `first` + 1, … */
static void build(struct end *from, const struct end *to, struct ibv_ah *ah, struct ibv_mr *mr, uint64_t first, int count) {
    for (int i = 0; i < count; i++) {
        from->ex->wr_id = first + i, from->ex->wr_flags = 0;
        ibv_wr_send(from->ex);
        if (ah != NULL)
            ibv_wr_set_ud_addr(from->ex, ah, to->qp->qp_num, QKEY);
        ibv_wr_set_sge(from->ex, mr->lkey, (uintptr_t)mr->addr, 8);
    }
}

static void append(struct end *from, uint64_t wr_id) {
    from->ex->wr_id = wr_id, from->ex->wr_flags = 0;
    ibv_wr_send(from->ex);
}

/* Each refused batch begins with a correct request. Afterwards a correct batch shows that no request of them was posted: its own are
 * the first that arrive and complete. */
static void refused_batches(struct end *from, struct end *to, struct ibv_ah *ah, struct ibv_mr *mr) {
    struct ibv_wc wc;
    ibv_wr_start(from->ex);
    build(from, to, ah, mr, 100, 1);
    if (ah != NULL) {
        append(from, 101);
        ibv_wr_set_sge(from->ex, mr->lkey, (uintptr_t)mr->addr, 8);
        RETURNS(EINVAL, ibv_wr_complete(from->ex)); /* no destination */
        ibv_wr_start(from->ex);
        build(from, to, ah, mr, 110, 1);
    }
    struct ibv_sge huge[2] = {{(uintptr_t)mr->addr, 0x80000000, mr->lkey}, {(uintptr_t)mr->addr, 1, mr->lkey}};
    append(from, 111);
    if (ah != NULL)
        ibv_wr_set_ud_addr(from->ex, ah, to->qp->qp_num, QKEY);
    ibv_wr_set_sge_list(from->ex, 2, huge);
    RETURNS(EINVAL, ibv_wr_complete(from->ex)); /* more than 2^31 bytes */
    ibv_wr_start(from->ex);
    build(from, to, ah, mr, 120, 5);
    RETURNS(ENOMEM, ibv_wr_complete(from->ex)); /* more than max_send_wr */

    ibv_wr_start(from->ex);
    build(from, to, ah, mr, 1, 4);
    RETURNS(0, ibv_wr_complete(from->ex));
    for (uint64_t i = 1; i <= 4; i++) {
        wc = await(from->cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND && wc.wr_id == i);
        wc = await(to->cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == i - 1);
    }
    CHECK(ibv_poll_cq(from->cq, 1, &wc) == 0);
    CHECK(ibv_poll_cq(to->cq, 1, &wc) == 0);
}

static void datagrams(struct ibv_context *context, struct ibv_pd *pd, struct ibv_mr *mr) {
    struct end from = make_end(context, pd, IBV_QPT_UD), to = make_end(context, pd, IBV_QPT_UD);
    start_datagrams(&from);
    start_datagrams(&to);
    struct ibv_ah_attr address = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};
    MUST(ibv_query_gid(context, 1, 0, &address.grh.dgid) == 0);
    struct ibv_ah *ah = ibv_create_ah(pd, &address);
    MUST(ah != NULL);
    for (int slot = 0; slot < 8; slot++)
        receive(&to, mr, slot);
    refused_batches(&from, &to, ah, mr);

    /* As in the kernel, a queue pair that is attached to a multicast group cannot be destroyed. */
    union ibv_gid group = {.raw = {[10] = 255, 255, 239, 1, 2, 3}};
    RETURNS(0, ibv_attach_mcast(to.qp, &group, 0));
    RETURNS(EBUSY, ibv_destroy_qp(to.qp));
    RETURNS(0, ibv_detach_mcast(to.qp, &group, 0));
    RETURNS(EINVAL, ibv_detach_mcast(to.qp, &group, 0));
    RETURNS(0, ibv_destroy_ah(ah));
    close_end(&from);
    close_end(&to);
}

static void connections(struct ibv_context *context, struct ibv_pd *pd, struct ibv_mr *mr) {
    struct end ends[2] = {make_end(context, pd, IBV_QPT_RC), make_end(context, pd, IBV_QPT_RC)};
    struct pair pair = {.context = context, .pd = pd, .qp = {ends[0].qp, ends[1].qp}};
    pair_connect(&pair, 0, 1);
    pair_connect(&pair, 1, 0);
    for (int slot = 0; slot < 8; slot++)
        receive(&ends[1], mr, slot);
    refused_batches(&ends[0], &ends[1], NULL, mr);
    close_end(&ends[0]);
    close_end(&ends[1]);
}

int main(void) {
    static char bytes[8 * (GRH + SLOT)];
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    MUST(pd != NULL);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr != NULL);
    datagrams(context, pd, mr);
    connections(context, pd, mr);
    RETURNS(0, ibv_dereg_mr(mr));
    RETURNS(0, ibv_dealloc_pd(pd));
    RETURNS(0, ibv_close_device(context));
    return verdict();
}
