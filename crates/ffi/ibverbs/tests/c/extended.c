/* Domains, imports, clocks, raw packets and the structures of the kernel: verbs that no foreign program in the tests calls. */
#include "pair.h"
#include <fcntl.h>
#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

/* No installed header declares these. */
void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *, struct ibv_sa_path_rec *);
void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *, struct ib_user_path_rec *);
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *, struct ib_uverbs_qp_attr *);

static int lent, returned;

static void *lend(struct ibv_pd *pd, void *cookie, size_t size, size_t alignment, uint64_t type) {
    (void)pd, (void)type;
    CHECK(cookie == &lent);
    lent++;
    void *memory = NULL;
    return posix_memalign(&memory, alignment, size) == 0 ? memory : NULL;
}

static void take_back(struct ibv_pd *pd, void *cookie, void *memory, uint64_t type) {
    (void)pd, (void)type;
    CHECK(cookie == &lent);
    returned++;
    free(memory);
}

static void *refuse(struct ibv_pd *pd, void *cookie, size_t size, size_t alignment, uint64_t type) {
    (void)pd, (void)cookie, (void)size, (void)alignment, (void)type;
    return NULL;
}

static void domains(struct ibv_context *context, struct ibv_pd *pd) {
    struct ibv_td_init_attr td_attr = {.comp_mask = 1};
    errno = 0;
    CHECK(ibv_alloc_td(context, &td_attr) == NULL && errno == EOPNOTSUPP);
    td_attr.comp_mask = 0;
    struct ibv_td *td = ibv_alloc_td(context, &td_attr);
    MUST(td != NULL);
    struct ibv_parent_domain_init_attr attr = {.pd = NULL, .td = td};
    errno = 0;
    CHECK(ibv_alloc_parent_domain(context, &attr) == NULL && errno == EINVAL);
    attr = (struct ibv_parent_domain_init_attr){
        .pd = pd,
        .td = td,
        .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
        .alloc = lend,
        .pd_context = &lent,
    };
    errno = 0;
    CHECK(ibv_alloc_parent_domain(context, &attr) == NULL && errno == EINVAL);
    attr.free = take_back;
    struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
    MUST(parent != NULL);
    RETURNS(EBUSY, ibv_dealloc_td(td));
    RETURNS(EBUSY, ibv_dealloc_pd(pd));

    struct ibv_cq_init_attr_ex cq_attr = {
        .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
    MUST(cq != NULL);
    CHECK(lent == 1 && returned == 0);
    RETURNS(EBUSY, ibv_dealloc_pd(parent));
    cq_attr.parent_domain = pd;
    errno = 0;
    CHECK(ibv_create_cq_ex(context, &cq_attr) == NULL && errno == EINVAL);
    RETURNS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
    CHECK(lent == 1 && returned == 1);
    RETURNS(0, ibv_dealloc_pd(parent));

    attr.alloc = refuse;
    parent = ibv_alloc_parent_domain(context, &attr);
    MUST(parent != NULL);
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 1, .max_sge = 1}};
    errno = 0;
    CHECK(ibv_create_srq(parent, &srq_attr) == NULL && errno == ENOMEM);
    RETURNS(0, ibv_dealloc_pd(parent));
    RETURNS(0, ibv_dealloc_td(td));
}

static void imports(struct ibv_context *context, struct ibv_pd *pd) {
    static char bytes[4096];
    errno = 0;
    CHECK(ibv_import_device(0) == NULL);
    CHECK(ibv_import_device(-1) == NULL && errno == EBADF);
    /* Import without a copy of the descriptor: the original must stay usable. */
    struct ibv_context *twin = ibv_import_device(context->cmd_fd), *other = ibv_import_device(dup(context->cmd_fd));
    MUST(twin != NULL && other != NULL);
    CHECK(twin->cmd_fd != context->cmd_fd && twin->async_fd != context->async_fd);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr != NULL);
    errno = 0;
    CHECK(ibv_import_pd(twin, 0xffffffff) == NULL && errno == EINVAL);
    struct ibv_pd *same = ibv_import_pd(twin, pd->handle);
    MUST(same != NULL);
    CHECK(same->context == twin && same->handle == pd->handle);
    errno = 0;
    CHECK(ibv_import_mr(same, 0xffffffff) == NULL && errno == EINVAL);
    struct ibv_mr *window = ibv_import_mr(same, mr->handle);
    MUST(window != NULL);
    CHECK(window->addr == NULL && window->lkey == mr->lkey && window->rkey == mr->rkey);
    RETURNS(EBUSY, ibv_dealloc_pd(same));
    ibv_unimport_mr(window);
    RETURNS(EBUSY, ibv_dealloc_pd(same));
    window = ibv_import_mr(same, mr->handle);
    MUST(window != NULL);
    /* After the first deregistration, the other handle refers to no region. */
    RETURNS(0, ibv_dereg_mr(mr));
    ibv_unimport_mr(window);
    ibv_unimport_pd(same);
    RETURNS(0, ibv_close_device(other));
    RETURNS(0, ibv_close_device(twin));
    CHECK(fcntl(context->cmd_fd, F_GETFD) >= 0);
}

static void clocks(struct ibv_context *context) {
    struct ibv_device_attr_ex device = {0};
    RETURNS(0, ibv_query_device_ex(context, NULL, &device));
    CHECK(device.hca_core_clock == 1000000 && device.completion_timestamp_mask == UINT64_MAX);
    struct ibv_cq_init_attr_ex attr = {.cqe = 1, .wc_flags = IBV_WC_EX_WITH_CVLAN};
    errno = 0;
    CHECK(ibv_create_cq_ex(context, &attr) == NULL && errno == EOPNOTSUPP);
    attr = (struct ibv_cq_init_attr_ex){.cqe = 1, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = 1 << 9};
    errno = 0;
    CHECK(ibv_create_cq_ex(context, &attr) == NULL && errno == EOPNOTSUPP);
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
    MUST(cq != NULL);
    struct ibv_modify_cq_attr moderation = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {8, 50}};
    RETURNS(0, ibv_modify_cq(cq, &moderation));
    moderation.attr_mask = IBV_CQ_ATTR_RESERVED;
    RETURNS(EINVAL, ibv_modify_cq(cq, &moderation));
    RETURNS(0, ibv_destroy_cq(cq));
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RESERVED};
    RETURNS(EOPNOTSUPP, ibv_query_rt_values_ex(context, &values));
}

/* A raw queue pair that sends frames to itself, with a flow, counters and timestamps. */
static void raw_packets(struct ibv_context *context, struct ibv_pd *pd) {
    static uint8_t bytes[4096];
    struct ibv_values_ex before = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK}, after = before;
    RETURNS(0, ibv_query_rt_values_ex(context, &before));
    struct ibv_cq_init_attr_ex cq_attr = {
        .cqe = 4,
        .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_FLOW_TAG |
                    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
        .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
        .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    };
    struct ibv_cq_ex *timed = ibv_create_cq_ex(context, &cq_attr);
    struct ibv_cq *sent = ibv_create_cq(context, 4, NULL, NULL, 0);
    MUST(timed != NULL && sent != NULL);
    struct ibv_qp_init_attr init = {.send_cq = sent,
                                    .recv_cq = ibv_cq_ex_to_cq(timed),
                                    .cap = {4, 4, 2, 2, 64},
                                    .qp_type = IBV_QPT_RAW_PACKET,
                                    .sq_sig_all = 1};
    errno = 0;
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    if (qp == NULL) {
        /* Raw packets need CAP_NET_RAW to open packet sockets. */
        CHECK(errno == EPERM);
        printf("SKIPPED: raw packets need CAP_NET_RAW\n");
        RETURNS(0, ibv_destroy_cq(sent));
        RETURNS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(timed)));
        return;
    }
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_QKEY));
    RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
    attr.qp_state = IBV_QPS_RTS;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTR;
    RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));

    struct ibv_counters_init_attr counters_attr = {0};
    struct ibv_counters *counters = ibv_create_counters(context, &counters_attr);
    MUST(counters != NULL);
    struct ibv_counter_attach_attr point = {.counter_desc = IBV_COUNTER_BYTES, .index = 1};
    RETURNS(0, ibv_attach_counters_point_flow(counters, &point, NULL));
    point = (struct ibv_counter_attach_attr){.counter_desc = IBV_COUNTER_PACKETS, .index = 0};
    RETURNS(0, ibv_attach_counters_point_flow(counters, &point, NULL));

    struct __attribute__((packed, aligned(8))) {
        struct ibv_flow_attr attr;
        struct ibv_flow_spec_eth eth;
        struct ibv_flow_spec_action_tag tag;
        struct ibv_flow_spec_counter_action count;
    } rule = {
        .attr = {.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .num_of_specs = 3, .port = 2},
        .eth = {.type = IBV_FLOW_SPEC_ETH,
                .size = sizeof rule.eth,
                .val = {.dst_mac = {2, 0xfe, 0x70, 0xce, 0, 1}},
                .mask = {.dst_mac = {255, 255, 255, 255, 255, 255}}},
        .tag = {.type = IBV_FLOW_SPEC_ACTION_TAG, .size = sizeof rule.tag, .tag_id = 77},
        .count = {.type = IBV_FLOW_SPEC_ACTION_COUNT, .size = sizeof rule.count, .counters = counters},
    };
    errno = 0;
    CHECK(ibv_create_flow(qp, (struct ibv_flow_attr *)&rule) == NULL && errno == EINVAL);
    rule.attr.port = 1;
    struct ibv_flow *flow = ibv_create_flow(qp, (struct ibv_flow_attr *)&rule);
    MUST(flow != NULL);
    RETURNS(EBUSY, ibv_destroy_qp(qp));
    RETURNS(EBUSY, ibv_destroy_counters(counters));
    RETURNS(EBUSY, ibv_attach_counters_point_flow(counters, &point, NULL));

    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr != NULL);
    struct ibv_sge into = {(uintptr_t)bytes + 2048, 2048, mr->lkey}, from = {(uintptr_t)bytes, 60, mr->lkey};
    struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &into, .num_sge = 1}, *bad_receive;
    RETURNS(0, ibv_post_recv(qp, &receive, &bad_receive));
    memcpy(bytes, (uint8_t[]){2, 0xfe, 0x70, 0xce, 0, 1, 2, 0xfe, 0x70, 0xce, 0, 2, 0x88, 0xb5}, 14);
    memset(bytes + 14, 0x5a, 46);
    struct ibv_send_wr send = {.wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    RETURNS(0, ibv_post_send(qp, &send, &bad_send));
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(sent, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 2);
    struct ibv_poll_cq_attr poll_attr = {0};
    int found;
    do
        found = ibv_start_poll(timed, &poll_attr);
    while (found == ENOENT);
    MUST(found == 0);
    CHECK(timed->status == IBV_WC_SUCCESS && timed->wr_id == 1 && ibv_wc_read_byte_len(timed) == 60);
    CHECK(ibv_wc_read_flow_tag(timed) == 77 && ibv_wc_read_opcode(timed) == IBV_WC_RECV);
    RETURNS(0, ibv_query_rt_values_ex(context, &after));
    uint64_t stamp = ibv_wc_read_completion_ts(timed);
    CHECK(stamp >= (uint64_t)before.raw_clock.tv_nsec && stamp <= (uint64_t)after.raw_clock.tv_nsec);
    CHECK(ibv_wc_read_completion_wallclock_ns(timed) > 1000000000ull * 1000000000ull);
    ibv_end_poll(timed);
    CHECK(memcmp(bytes, bytes + 2048, 60) == 0);
    uint64_t values[2] = {0};
    RETURNS(EINVAL, ibv_read_counters(counters, values, 1, 0));
    RETURNS(0, ibv_read_counters(counters, values, 2, IBV_READ_COUNTERS_ATTR_PREFER_CACHED));
    CHECK(values[0] == 1 && values[1] == 60);

    /* A frame that is shorter than its addresses is invalid. */
    from.length = 5;
    RETURNS(0, ibv_post_send(qp, &send, &bad_send));
    CHECK(ibv_poll_cq(sent, 1, &wc) == 1 && wc.status == IBV_WC_LOC_LEN_ERR);
    RETURNS(0, ibv_destroy_flow(flow));
    RETURNS(0, ibv_destroy_counters(counters));
    RETURNS(0, ibv_destroy_qp(qp));
    RETURNS(0, ibv_dereg_mr(mr));
    RETURNS(0, ibv_destroy_cq(sent));
    RETURNS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(timed)));
}

static void kernel_structures(struct ibv_context *context) {
    struct ibv_sa_path_rec path = {.dlid = 1, .mtu = 3, .reversible = 1, .pkey = 0xffff, .preference = 9}, back;
    struct ib_user_path_rec kernel;
    memset(&kernel, 0xff, sizeof kernel);
    ibv_copy_path_rec_to_kern(&kernel, &path);
    CHECK(kernel.dlid == 1 && kernel.mtu == 3 && kernel.reversible == 1 && kernel.preference == 9);
    ibv_copy_path_rec_from_kern(&back, &kernel);
    CHECK(back.mtu == 3 && back.pkey == 0xffff && back.preference == 9 && back.hop_limit == 0);
    struct ib_uverbs_qp_attr from = {.cur_qp_state = 2, .dest_qp_num = 5, .max_inline_data = 8, .alt_timeout = 4};
    from.ah_attr.grh.hop_limit = 7;
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_RTS};
    ibv_copy_qp_attr_from_kern(&to, &from);
    CHECK(to.qp_state == IBV_QPS_RTS && to.cur_qp_state == IBV_QPS_RTR && to.dest_qp_num == 5);
    CHECK(to.cap.max_inline_data == 8 && to.alt_timeout == 4 && to.ah_attr.grh.hop_limit == 7);

    struct ibv_ah_attr address = {.is_global = 1, .port_num = 1};
    MUST(ibv_query_gid(context, 1, 0, &address.grh.dgid) == 0);
    uint8_t mac[6];
    uint16_t vlan = 0;
    RETURNS(0, ibv_resolve_eth_l2_from_gid(context, &address, mac, &vlan));
    CHECK(vlan == 0xffff);
    memcpy(address.grh.dgid.raw, (uint8_t[16]){[10] = 255, 255, 198, 51, 100, 77}, 16);
    RETURNS(-EHOSTUNREACH, ibv_resolve_eth_l2_from_gid(context, &address, mac, &vlan));
}

static void work_queues(struct ibv_context *context, struct ibv_pd *pd) {
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
    MUST(cq != NULL);
    struct ibv_wq_init_attr attr = {.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = pd, .cq = cq, .comp_mask = 1 << 5};
    NULL_WITH(EOPNOTSUPP, ibv_create_wq(context, &attr));
    attr.comp_mask = IBV_WQ_INIT_ATTR_FLAGS, attr.create_flags = IBV_WQ_FLAGS_CVLAN_STRIPPING;
    NULL_WITH(EOPNOTSUPP, ibv_create_wq(context, &attr));
    /* Without its bit in comp_mask, this member is not read. */
    attr.comp_mask = 0;
    struct ibv_wq *wq = ibv_create_wq(context, &attr);
    MUST(wq != NULL);
    RETURNS(0, ibv_destroy_wq(wq));
    RETURNS(0, ibv_destroy_cq(cq));
}

int main(void) {
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    MUST(pd != NULL);
    domains(context, pd);
    imports(context, pd);
    clocks(context);
    work_queues(context, pd);
    raw_packets(context, pd);
    kernel_structures(context);
    RETURNS(0, ibv_dealloc_pd(pd));
    RETURNS(0, ibv_close_device(context));
    return verdict();
}
