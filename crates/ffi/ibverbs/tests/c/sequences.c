/* Calls in a pseudo-random order from a seed (argv[1]; argv[2] is the number of rounds). They create, use and destroy objects, also while
 * other objects depend on them; some calls have wrong arguments. The test checks that a destroy returns EBUSY exactly when another object
 * depends on it, that every call returns, and that no descriptor is left. One test runs the program under valgrind, which checks memory. */
#include "pair.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>

#define MANY 12

static uint64_t state;

static uint32_t draw(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

static struct ibv_context *context;
static struct { struct ibv_pd *pd; int users; } pds[MANY];
static struct { struct ibv_comp_channel *channel; int users; } channels[MANY];
static struct { struct ibv_cq *cq; int users, channel; } cqs[MANY];
static struct { struct ibv_xrcd *xrcd; int users; } xrcds[MANY];
static struct { struct ibv_srq *srq; int users, pd, xrcd, cq; } srqs[MANY];
static struct { struct ibv_mr *mr; int pd; } mrs[MANY];
static struct { struct ibv_ah *ah; int pd; } ahs[MANY];
static struct { struct ibv_qp *qp; int pd, cq, srq, xrcd; } qps[MANY];
/* The regions to which a window may be bound; the completion decides. */
static struct { struct ibv_mw *mw; int pd; uint32_t maybe; } mws[MANY];
static struct { struct ibv_dm *dm; int users; } dms[MANY];
static struct { struct ibv_mr *mr; int pd, dm; } dm_mrs[MANY];
static char memory[MANY][4096];

static void toggle_pd(int i) {
    if (pds[i].pd == NULL) {
        MUST((pds[i].pd = ibv_alloc_pd(context)) != NULL);
        return;
    }
    RETURNS(pds[i].users ? EBUSY : 0, ibv_dealloc_pd(pds[i].pd));
    if (pds[i].users == 0)
        pds[i].pd = NULL;
}

static void toggle_channel(int i) {
    if (channels[i].channel == NULL) {
        MUST((channels[i].channel = ibv_create_comp_channel(context)) != NULL);
        return;
    }
    RETURNS(channels[i].users ? EBUSY : 0, ibv_destroy_comp_channel(channels[i].channel));
    if (channels[i].users == 0)
        channels[i].channel = NULL;
}

static void toggle_cq(int i) {
    if (cqs[i].cq == NULL) {
        int with = (int)draw(MANY);
        cqs[i].channel = channels[with].channel ? with : -1;
        struct ibv_comp_channel *channel = cqs[i].channel < 0 ? NULL : channels[with].channel;
        MUST((cqs[i].cq = ibv_create_cq(context, 1 + (int)draw(100), NULL, channel, 0)) != NULL);
        if (channel != NULL)
            channels[with].users++;
        return;
    }
    RETURNS(cqs[i].users ? EBUSY : 0, ibv_destroy_cq(cqs[i].cq));
    if (cqs[i].users == 0) {
        cqs[i].cq = NULL;
        if (cqs[i].channel >= 0)
            channels[cqs[i].channel].users--;
    }
}

static void toggle_xrcd(int i) {
    if (xrcds[i].xrcd == NULL) {
        struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            .fd = draw(2) ? -1 : STDERR_FILENO, .oflags = O_CREAT};
        MUST((xrcds[i].xrcd = ibv_open_xrcd(context, &attr)) != NULL);
        return;
    }
    RETURNS(xrcds[i].users ? EBUSY : 0, ibv_close_xrcd(xrcds[i].xrcd));
    if (xrcds[i].users == 0)
        xrcds[i].xrcd = NULL;
}

static void make_srq(int i) {
    int pd = (int)draw(MANY), xrcd = (int)draw(MANY), cq = (int)draw(MANY);
    if (pds[pd].pd == NULL)
        return;
    int is_xrc = xrcds[xrcd].xrcd != NULL && cqs[cq].cq != NULL && draw(2);
    struct ibv_srq_init_attr_ex init = {.attr = {.max_wr = 1 + draw(50), .max_sge = 1 + draw(4)},
        .comp_mask = IBV_SRQ_INIT_ATTR_PD, .pd = pds[pd].pd};
    if (is_xrc) {
        init.comp_mask |= IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        init.srq_type = IBV_SRQT_XRC, init.xrcd = xrcds[xrcd].xrcd, init.cq = cqs[cq].cq;
        xrcds[xrcd].users++, cqs[cq].users++;
    }
    MUST((srqs[i].srq = ibv_create_srq_ex(context, &init)) != NULL);
    srqs[i].pd = pd, srqs[i].xrcd = is_xrc ? xrcd : -1, srqs[i].cq = cq;
    pds[pd].users++;
}

static void toggle_srq(int i) {
    if (srqs[i].srq == NULL) {
        make_srq(i);
        return;
    }
    RETURNS(srqs[i].users ? EBUSY : 0, ibv_destroy_srq(srqs[i].srq));
    if (srqs[i].users == 0) {
        srqs[i].srq = NULL;
        pds[srqs[i].pd].users--;
        if (srqs[i].xrcd >= 0)
            xrcds[srqs[i].xrcd].users--, cqs[srqs[i].cq].users--;
    }
}

static void toggle_mr(int i) {
    if (mrs[i].mr == NULL) {
        int pd = (int)draw(MANY);
        if (pds[pd].pd == NULL)
            return;
        int access = draw(2) ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ : 0;
        access |= (draw(2) ? IBV_ACCESS_MW_BIND : 0) | (draw(2) ? IBV_ACCESS_ON_DEMAND : 0);
        MUST((mrs[i].mr = ibv_reg_mr(pds[pd].pd, memory[i], 1 + draw(4096), access)) != NULL);
        mrs[i].pd = pd;
        pds[pd].users++;
        return;
    }
    int answer = ibv_dereg_mr(mrs[i].mr);
    if (answer == EBUSY) {
        int is_bound = 0;
        for (int w = 0; w < MANY; w++)
            is_bound |= mws[w].mw != NULL && mws[w].maybe >> i & 1;
        CHECK(is_bound);
        return;
    }
    RETURNS(0, answer);
    mrs[i].mr = NULL;
    pds[mrs[i].pd].users--;
}

static void toggle_mw(int i) {
    if (mws[i].mw == NULL) {
        int pd = (int)draw(MANY);
        if (pds[pd].pd == NULL)
            return;
        MUST((mws[i].mw = ibv_alloc_mw(pds[pd].pd, draw(2) ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2)) != NULL);
        mws[i].pd = pd, mws[i].maybe = 0;
        pds[pd].users++;
        return;
    }
    RETURNS(0, ibv_dealloc_mw(mws[i].mw));
    mws[i].mw = NULL;
    pds[mws[i].pd].users--;
}

/* Valid and invalid binds; the completion decides what the window is bound to. */
static void bind_window(int i) {
    int mr = (int)draw(MANY), qp = (int)draw(MANY);
    if (mws[i].mw == NULL || mrs[mr].mr == NULL || qps[qp].qp == NULL)
        return;
    struct ibv_mw_bind_info info = {.mr = mrs[mr].mr, .addr = (uintptr_t)memory[mr], .length = draw(200),
        .mw_access_flags = draw(2) ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE};
    int answer;
    if (draw(2)) {
        struct ibv_mw_bind bind = {.wr_id = i, .send_flags = draw(4), .bind_info = info};
        answer = ibv_bind_mw(qps[qp].qp, mws[i].mw, &bind);
    } else {
        struct ibv_send_wr *bad, wr = {.wr_id = i, .opcode = IBV_WR_BIND_MW, .send_flags = draw(4),
            .bind_mw = {.mw = mws[i].mw, .rkey = ibv_inc_rkey(mws[i].mw->rkey), .bind_info = info}};
        answer = ibv_post_send(qps[qp].qp, &wr, &bad);
    }
    CHECK(answer >= 0);
    if (answer == 0)
        mws[i].maybe |= 1u << mr;
}

static void toggle_dm(int i) {
    if (dms[i].dm == NULL) {
        struct ibv_alloc_dm_attr attr = {.length = 4 * (1 + draw(1000)), .log_align_req = draw(13)};
        MUST((dms[i].dm = ibv_alloc_dm(context, &attr)) != NULL);
        return;
    }
    RETURNS(dms[i].users ? EBUSY : 0, ibv_free_dm(dms[i].dm));
    if (dms[i].users == 0)
        dms[i].dm = NULL;
}

static void toggle_dm_mr(int i) {
    if (dm_mrs[i].mr == NULL) {
        int pd = (int)draw(MANY), dm = (int)draw(MANY);
        if (pds[pd].pd == NULL || dms[dm].dm == NULL)
            return;
        RETURNS(0, ibv_memcpy_to_dm(dms[dm].dm, 0, memory[i], 4));
        MUST((dm_mrs[i].mr = ibv_reg_dm_mr(pds[pd].pd, dms[dm].dm, 0, 4, IBV_ACCESS_ZERO_BASED)) != NULL);
        dm_mrs[i].pd = pd, dm_mrs[i].dm = dm;
        pds[pd].users++, dms[dm].users++;
        return;
    }
    RETURNS(0, ibv_dereg_mr(dm_mrs[i].mr));
    dm_mrs[i].mr = NULL;
    pds[dm_mrs[i].pd].users--, dms[dm_mrs[i].dm].users--;
}

static void toggle_ah(int i) {
    if (ahs[i].ah == NULL) {
        int pd = (int)draw(MANY);
        if (pds[pd].pd == NULL)
            return;
        struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}};
        MUST(ibv_query_gid(context, 1, 0, &attr.grh.dgid) == 0);
        MUST((ahs[i].ah = ibv_create_ah(pds[pd].pd, &attr)) != NULL);
        ahs[i].pd = pd;
        pds[pd].users++;
        return;
    }
    RETURNS(0, ibv_destroy_ah(ahs[i].ah));
    ahs[i].ah = NULL;
    pds[ahs[i].pd].users--;
}

/* One end or the other of an extended reliable connection. */
static void make_xrc_qp(int i) {
    int pd = (int)draw(MANY), cq = (int)draw(MANY), xrcd = (int)draw(MANY);
    int receives = (int)draw(2);
    if (receives ? xrcds[xrcd].xrcd == NULL : pds[pd].pd == NULL || cqs[cq].cq == NULL)
        return;
    struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = pds[pd].pd, .send_cq = cqs[cq].cq, .cap = {.max_send_wr = 1 + draw(20), .max_send_sge = 1}};
    if (receives)
        init = (struct ibv_qp_init_attr_ex){.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD,
            .xrcd = xrcds[xrcd].xrcd};
    MUST((qps[i].qp = ibv_create_qp_ex(context, &init)) != NULL);
    qps[i].srq = -1, qps[i].pd = receives ? -1 : pd, qps[i].cq = cq, qps[i].xrcd = receives ? xrcd : -1;
    if (receives)
        xrcds[xrcd].users++;
    else
        pds[pd].users++, cqs[cq].users++;
}

static void make_qp(int i) {
    if (draw(3) == 0) {
        make_xrc_qp(i);
        return;
    }
    int pd = (int)draw(MANY), cq = (int)draw(MANY), srq = (int)draw(MANY);
    if (pds[pd].pd == NULL || cqs[cq].cq == NULL)
        return;
    if (srqs[srq].srq == NULL || srqs[srq].pd != pd || srqs[srq].xrcd >= 0 || draw(2))
        srq = -1;
    static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
    struct ibv_qp_init_attr init = {.send_cq = cqs[cq].cq, .recv_cq = cqs[cq].cq,
        .srq = srq < 0 ? NULL : srqs[srq].srq, .qp_type = types[draw(srq < 0 ? 3 : 1)], .sq_sig_all = (int)draw(2),
        .cap = {.max_send_wr = 1 + draw(20), .max_recv_wr = 1 + draw(20), .max_send_sge = 1 + draw(3),
            .max_recv_sge = 1 + draw(3), .max_inline_data = draw(200)}};
    MUST((qps[i].qp = ibv_create_qp(pds[pd].pd, &init)) != NULL);
    qps[i].pd = pd, qps[i].cq = cq, qps[i].srq = srq, qps[i].xrcd = -1;
    pds[pd].users++, cqs[cq].users++;
    if (srq >= 0)
        srqs[srq].users++;
}

static void toggle_qp(int i) {
    if (qps[i].qp == NULL) {
        make_qp(i);
        return;
    }
    RETURNS(0, ibv_destroy_qp(qps[i].qp));
    qps[i].qp = NULL;
    if (qps[i].xrcd >= 0) {
        xrcds[qps[i].xrcd].users--;
        return;
    }
    pds[qps[i].pd].users--, cqs[qps[i].cq].users--;
    if (qps[i].srq >= 0)
        srqs[qps[i].srq].users--;
}

/* Any attributes with any mask: most are refused, and none may crash the library. */
static void change_qp(int i) {
    if (qps[i].qp == NULL)
        return;
    int to = (int)draw(MANY);
    struct ibv_qp_attr attr = {.qp_state = (enum ibv_qp_state)draw(8), .port_num = (uint8_t)draw(2),
        .path_mtu = (enum ibv_mtu)draw(7), .max_dest_rd_atomic = (uint8_t)draw(40), .timeout = 10, .retry_cnt = 1,
        .rnr_retry = 1, .dest_qp_num = qps[to].qp ? qps[to].qp->qp_num : draw(1 << 24), .qkey = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}}};
    MUST(ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
    static const int usual[] = {
        IBV_QP_STATE,
        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
            IBV_QP_MIN_RNR_TIMER,
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
            IBV_QP_MAX_QP_RD_ATOMIC,
        IBV_QP_STATE | IBV_QP_SQ_PSN,
    };
    int mask = draw(4) ? usual[draw(6)] : (int)draw(1 << 22);
    int answer = ibv_modify_qp(qps[i].qp, &attr, mask);
    CHECK(answer >= 0);
    struct ibv_qp_init_attr init;
    RETURNS(0, ibv_query_qp(qps[i].qp, &attr, IBV_QP_STATE, &init));
    CHECK(attr.qp_state == qps[i].qp->state && init.qp_type == qps[i].qp->qp_type);
}

/* Moves a queue pair toward RTS, connected to another or to itself, so that some requests are executed. */
static void connect_qp(int i) {
    int to = draw(2) ? i : (int)draw(MANY);
    if (qps[i].qp == NULL || qps[to].qp == NULL)
        return;
    int is_ud = qps[i].qp->qp_type == IBV_QPT_UD;
    struct ibv_qp_attr attr = {.port_num = 1, .path_mtu = IBV_MTU_1024, .qkey = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, .dest_qp_num = qps[to].qp->qp_num,
        .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 1, .timeout = 8, .retry_cnt = 1, .rnr_retry = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}}};
    MUST(ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
    int receives = qps[i].qp->qp_type == IBV_QPT_RC || qps[i].qp->qp_type == IBV_QPT_XRC_RECV;
    int requests = qps[i].qp->qp_type == IBV_QPT_RC || qps[i].qp->qp_type == IBV_QPT_XRC_SEND;
    const int masks[] = {0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | (is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS),
        (is_ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
            (receives ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0),
        IBV_QP_SQ_PSN | (receives || requests ? IBV_QP_TIMEOUT : 0) |
            (requests ? IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)};
    for (int state = IBV_QPS_RESET; state <= IBV_QPS_RTS; state++) {
        attr.qp_state = (enum ibv_qp_state)state;
        /* An invalid request of the other end, or a CQ overrun, may have moved it to the error state. */
        CHECK(ibv_modify_qp(qps[i].qp, &attr, IBV_QP_STATE | masks[state]) >= 0);
    }
}

static void post(int i) {
    int mr = (int)draw(MANY), ah = (int)draw(MANY);
    if (qps[i].qp == NULL)
        return;
    uint32_t key = mrs[mr].mr ? mrs[mr].mr->lkey : draw(1u << 31);
    struct ibv_sge sge = {.addr = (uintptr_t)memory[mr], .length = draw(200), .lkey = key};
    struct ibv_recv_wr recv = {.wr_id = i, .sg_list = &sge, .num_sge = (int)draw(2)}, *bad_recv;
    if (draw(2)) {
        (void)(qps[i].srq >= 0 ? ibv_post_srq_recv(srqs[qps[i].srq].srq, &recv, &bad_recv)
                               : ibv_post_recv(qps[i].qp, &recv, &bad_recv));
        return;
    }
    struct ibv_send_wr send = {.wr_id = i, .sg_list = &sge, .num_sge = (int)draw(2),
        .opcode = (enum ibv_wr_opcode)draw(8), .send_flags = draw(16)}, *bad_send;
    if (qps[i].qp->qp_type == IBV_QPT_UD) {
        if (ahs[ah].ah == NULL)
            return;
        send.wr.ud.ah = ahs[ah].ah;
        send.wr.ud.remote_qpn = draw(1 << 24);
        send.wr.ud.remote_qkey = 1;
    } else {
        if (qps[i].qp->qp_type == IBV_QPT_XRC_SEND)
            send.qp_type.xrc.remote_srqn = draw(1 << 24);
        send.wr.rdma.remote_addr = (uintptr_t)memory[mr];
        send.wr.rdma.rkey = mrs[mr].mr ? mrs[mr].mr->rkey : 1;
    }
    (void)ibv_post_send(qps[i].qp, &send, &bad_send);
}

static void poll(int i) {
    struct ibv_wc wc[4];
    if (cqs[i].cq == NULL)
        return;
    /* A CQ overrun is the only possible error. */
    (void)ibv_poll_cq(cqs[i].cq, 4, wc);
    if (draw(8) == 0)
        RETURNS(0, ibv_req_notify_cq(cqs[i].cq, (int)draw(2)));
    if (draw(16) == 0)
        (void)ibv_resize_cq(cqs[i].cq, 1 + (int)draw(100));
}

/* Wrong arguments: every call below may fail or succeed, and must return. Objects that it creates are destroyed immediately. */

/* A value at a limit, or an arbitrary one. */
static uint64_t odd(void) {
    static const uint64_t limits[] = {0, 1, 2, 255, 4096, INT_MAX, (uint64_t)INT_MAX + 1, UINT_MAX, (uint64_t)UINT_MAX + 1,
        INT64_MAX, UINT64_MAX - 4095, UINT64_MAX};
    uint32_t choice = draw(sizeof limits / sizeof *limits + 2);
    if (choice < sizeof limits / sizeof *limits)
        return limits[choice];
    return (uint64_t)draw(UINT_MAX) << draw(33);
}

/* Mostly a small value, so that some calls pass the first check. */
static uint32_t mostly(uint32_t below) {
    return draw(4) ? draw(below) : (uint32_t)odd();
}

static void fill(void *at, size_t length) {
    for (size_t i = 0; i < length; i++)
        ((unsigned char *)at)[i] = (unsigned char)(draw(2) ? 0 : draw(256));
}

/* An object of the table or NULL; the entry may be NULL, too. */
#define SOME(table, field) (draw(8) ? (table)[draw(MANY)].field : NULL)

static void wrong_mr(int i) {
    void *addr = draw(2) ? (void *)memory[i] : (void *)(uintptr_t)odd();
    struct ibv_pd *pd = SOME(pds, pd);
    int access = draw(2) ? (int)draw(1 << 9) : (int)odd();
    struct ibv_mr *mr = draw(2) ? (ibv_reg_mr)(pd, addr, odd(), access)
                                : ibv_reg_mr_iova2(pd, addr, odd(), odd(), (unsigned)access);
    if (mr == NULL)
        return;
    /* An implicit region may be registered at any address. */
    (void)ibv_rereg_mr(mr, (int)draw(9), SOME(pds, pd), draw(2) ? (void *)memory[i] : (void *)(uintptr_t)odd(), odd(), (int)odd());
    RETURNS(0, ibv_dereg_mr(mr));
}

static void wrong_queues(int i) {
    struct ibv_cq *cq = ibv_create_cq(draw(8) ? context : NULL, (int)mostly(100), &cqs[i], SOME(channels, channel), (int)mostly(2));
    if (cq != NULL)
        RETURNS(0, ibv_destroy_cq(cq));
    struct ibv_srq_init_attr init = {.attr = {.max_wr = mostly(50), .max_sge = mostly(5), .srq_limit = mostly(5)}};
    struct ibv_srq *srq = ibv_create_srq(SOME(pds, pd), &init);
    if (srq != NULL) {
        struct ibv_srq_attr attr = {.max_wr = mostly(50), .max_sge = mostly(5), .srq_limit = mostly(50)};
        (void)ibv_modify_srq(srq, &attr, (int)mostly(4));
        RETURNS(0, ibv_destroy_srq(srq));
    }
    if (cqs[i].cq != NULL) {
        struct ibv_wc wc[4];
        (void)ibv_poll_cq(cqs[i].cq, -(int)draw(2), wc);
        (void)ibv_resize_cq(cqs[i].cq, (int)mostly(100));
    }
}

static void wrong_qp(int i) {
    (void)i;
    struct ibv_qp_init_attr init = {.send_cq = SOME(cqs, cq), .recv_cq = SOME(cqs, cq), .srq = draw(4) ? NULL : SOME(srqs, srq),
        .qp_type = (enum ibv_qp_type)mostly(12), .cap = {mostly(20), mostly(20), mostly(4), mostly(4), mostly(200)}};
    struct ibv_qp *qp = ibv_create_qp(SOME(pds, pd), &init);
    if (qp != NULL)
        RETURNS(0, ibv_destroy_qp(qp));
}

static void wrong_ah(int i) {
    (void)i;
    struct ibv_ah_attr attr;
    fill(&attr, sizeof attr);
    attr.is_global = (uint8_t)draw(2), attr.port_num = (uint8_t)mostly(2);
    struct ibv_ah *ah = ibv_create_ah(SOME(pds, pd), &attr);
    if (ah != NULL)
        RETURNS(0, ibv_destroy_ah(ah));
}

static void wrong_change(int i) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    fill(&attr, sizeof attr);
    attr.qp_state = (enum ibv_qp_state)mostly(8), attr.port_num = (uint8_t)mostly(2);
    CHECK(ibv_modify_qp(qps[i].qp, &attr, (int)mostly(1 << 22)) >= 0);
    CHECK(ibv_query_qp(qps[i].qp, &attr, (int)odd(), &init) >= 0);
    union ibv_gid gid;
    fill(&gid, sizeof gid);
    gid.raw[0] = draw(2) ? 0xff : gid.raw[0];
    uint16_t lid = (uint16_t)odd();
    if (ibv_attach_mcast(qps[i].qp, &gid, lid) == 0)
        RETURNS(0, ibv_detach_mcast(qps[i].qp, &gid, lid));
}

/* Lists of up to three requests. Inline data always has a valid address, since the call copies it. */
static void wrong_post(int i) {
    if (qps[i].qp == NULL)
        return;
    struct ibv_sge sges[3][2];
    struct ibv_send_wr sends[3], *bad_send;
    struct ibv_recv_wr recvs[3], *bad_recv;
    int last = (int)draw(3);
    for (int n = 0; n <= last; n++) {
        int mr = (int)draw(MANY), ah = (int)draw(MANY);
        fill(&sends[n], sizeof sends[n]);
        sends[n].next = n < last ? &sends[n + 1] : NULL;
        sends[n].sg_list = sges[n], sends[n].num_sge = draw(4) ? (int)draw(3) : (int)odd();
        sends[n].opcode = (enum ibv_wr_opcode)mostly(16), sends[n].send_flags = mostly(1 << 6);
        if (qps[i].qp->qp_type == IBV_QPT_UD)
            sends[n].wr.ud.ah = ahs[ah].ah;
        if (sends[n].opcode == IBV_WR_BIND_MW)
            sends[n].opcode = IBV_WR_SEND; /* bind_window does that */
        recvs[n] = (struct ibv_recv_wr){.next = n < last ? &recvs[n + 1] : NULL, .sg_list = sges[n], .num_sge = sends[n].num_sge};
        for (int e = 0; e < 2; e++)
            sges[n][e] = (struct ibv_sge){.length = mostly(200), .lkey = mrs[mr].mr && draw(4) ? mrs[mr].mr->lkey : (uint32_t)odd(),
                .addr = draw(2) || sends[n].send_flags & IBV_SEND_INLINE ? (uintptr_t)memory[mr] : odd()};
    }
    if (draw(2))
        CHECK(ibv_post_send(qps[i].qp, sends, &bad_send) >= 0);
    else if (qps[i].srq >= 0)
        CHECK(ibv_post_srq_recv(srqs[qps[i].srq].srq, recvs, &bad_recv) >= 0);
    else
        CHECK(ibv_post_recv(qps[i].qp, recvs, &bad_recv) >= 0);
}

static void unblock(int fd) {
    MUST(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

static void wrong_query(int i) {
    struct ibv_port_attr port;
    union ibv_gid gid;
    uint16_t pkey;
    (void)ibv_query_port(context, (uint8_t)odd(), &port);
    (void)ibv_query_gid(context, (uint8_t)odd(), (int)odd(), &gid);
    (void)ibv_query_pkey(context, (uint8_t)odd(), (int)odd(), &pkey);
    (void)ibv_wc_status_str((enum ibv_wc_status)odd());
    (void)ibv_event_type_str((enum ibv_event_type)odd());
    struct ibv_async_event event;
    while (ibv_get_async_event(context, &event) == 0) {
        /* This event would be the result of a panic inside the library. */
        CHECK(event.event_type != IBV_EVENT_DEVICE_FATAL);
        ibv_ack_async_event(&event);
    }
    struct ibv_cq *cq;
    void *cq_context;
    if (channels[i].channel != NULL) {
        unblock(channels[i].channel->fd);
        if (ibv_get_cq_event(channels[i].channel, &cq, &cq_context) == 0)
            ibv_ack_cq_events(cq, 1);
    }
}

static void step(void) {
    static void (*const actions[])(int) = {toggle_pd, toggle_channel, toggle_cq, toggle_srq, toggle_mr, toggle_ah,
        toggle_xrcd, toggle_mw, bind_window, toggle_dm, toggle_dm_mr, toggle_qp, toggle_qp, change_qp, change_qp, change_qp, connect_qp, post, post, post, poll,
        wrong_mr, wrong_queues, wrong_qp, wrong_ah, wrong_change, wrong_post, wrong_query};
    actions[draw(sizeof actions / sizeof *actions)]((int)draw(MANY));
}

static void sweep(void) {
    for (int i = 0; i < MANY; i++) {
        if (qps[i].qp != NULL)
            toggle_qp(i);
        if (mws[i].mw != NULL)
            toggle_mw(i);
        if (dm_mrs[i].mr != NULL)
            toggle_dm_mr(i);
    }
    for (int i = 0; i < MANY; i++) {
        if (mrs[i].mr != NULL)
            toggle_mr(i);
        if (ahs[i].ah != NULL)
            toggle_ah(i);
        if (srqs[i].srq != NULL)
            toggle_srq(i);
        if (dms[i].dm != NULL)
            toggle_dm(i);
    }
    for (int i = 0; i < MANY; i++)
        if (cqs[i].cq != NULL)
            toggle_cq(i);
    for (int i = 0; i < MANY; i++) {
        if (xrcds[i].xrcd != NULL)
            toggle_xrcd(i);
        if (channels[i].channel != NULL)
            toggle_channel(i);
        if (pds[i].pd != NULL)
            toggle_pd(i);
    }
}

static int open_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

int main(int argc, char **argv) {
    MUST(argc == 3);
    state = strtoull(argv[1], NULL, 0);
    int before = open_descriptors();
    context = open_first();
    unblock(context->async_fd);
    for (long left = strtol(argv[2], NULL, 0); left > 0; left--)
        step();
    sweep();
    /* Unread async events must not block the end: closing drops them. */
    CHECK(ibv_close_device(context) == 0);
#ifdef __SANITIZE_THREAD__ /* it keeps pipes to a process that names functions */
    (void)before;
#else
    /* The threads of the device end, and close their descriptors, shortly afterwards. */
    for (int left = 3000; left > 0 && open_descriptors() > before; left--)
        usleep(10000);
    CHECK(open_descriptors() == before);
#endif
    if (failures)
        fprintf(stderr, "seed %s\n", argv[1]);
    return verdict();
}
