/* Helpers for programs with many checks: checks that report a failure and continue, and a connected pair of queue pairs. */
#ifndef FERROCE_PAIR_H
#define FERROCE_PAIR_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures;

/* After a failed check the program continues, so that one run shows all failures. */
#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            failures++;                                                                           \
        }                                                                                         \
    } while (0)

/* For verbs that return the errno. */
#define RETURNS(number, call)                                                                     \
    do {                                                                                          \
        int seen_ = (call);                                                                       \
        if (seen_ != (number)) {                                                                  \
            fprintf(stderr, "%s:%d: %s returned %d (%s), not %d (%s)\n", __FILE__, __LINE__, #call, seen_, \
                    strerror(seen_), (number), strerror(number));                                 \
            failures++;                                                                           \
        }                                                                                         \
    } while (0)

/* For verbs that return NULL and set errno. */
#define NULL_WITH(number, call)                                                                   \
    do {                                                                                          \
        errno = 0;                                                                                \
        const void *seen_ = (call);                                                               \
        if (seen_ != NULL || errno != (number)) {                                                 \
            fprintf(stderr, "%s:%d: %s returned %p with errno %d (%s), not NULL with %d (%s)\n", __FILE__, \
                    __LINE__, #call, seen_, errno, strerror(errno), (number), strerror(number));  \
            failures++;                                                                           \
        }                                                                                         \
    } while (0)

/* For steps that all later ones depend on. */
#define MUST(condition)                                                                           \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: needed: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno, \
                    strerror(errno));                                                             \
            exit(2);                                                                              \
        }                                                                                         \
    } while (0)

static inline int verdict(void) {
    if (failures != 0) {
        fprintf(stderr, "%d checks failed\n", failures);
        return 1;
    }
    puts("ok");
    return 0;
}

static inline struct ibv_context *open_first(void) {
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    MUST(list != NULL && count > 0);
    struct ibv_context *context = ibv_open_device(list[0]);
    MUST(context != NULL);
    ibv_free_device_list(list);
    return context;
}

/* A connection within one process: both queue pairs, one completion queue, one buffer. */
struct pair {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp[2];
    struct ibv_mr *mr;
    char *buffer;
    size_t size;
};

static inline void pair_connect(struct pair *p, int from, int to) {
    struct ibv_qp *qp = p->qp[from];
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC};
    MUST(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = p->qp[to]->qp_num,
        .rq_psn = 0x1000 + to, .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64, .sgid_index = 0}}};
    MUST(ibv_query_gid(p->context, 1, 0, &rtr.ah_attr.grh.dgid) == 0);
    MUST(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
        .sq_psn = 0x1000 + from, .max_rd_atomic = 4};
    MUST(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static inline struct pair pair_open(struct ibv_context *context, size_t size) {
    struct pair p = {.context = context, .size = size};
    MUST((p.pd = ibv_alloc_pd(context)) != NULL);
    MUST((p.cq = ibv_create_cq(context, 256, NULL, NULL, 0)) != NULL);
    MUST((p.buffer = calloc(1, size)) != NULL);
    p.mr = ibv_reg_mr(p.pd, p.buffer, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    MUST(p.mr != NULL);
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr init = {.send_cq = p.cq, .recv_cq = p.cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
            .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 2, .max_recv_sge = 2}};
        MUST((p.qp[i] = ibv_create_qp(p.pd, &init)) != NULL);
    }
    pair_connect(&p, 0, 1);
    pair_connect(&p, 1, 0);
    return p;
}

static inline void pair_close(struct pair *p) {
    RETURNS(0, ibv_destroy_qp(p->qp[0]));
    RETURNS(0, ibv_destroy_qp(p->qp[1]));
    RETURNS(0, ibv_dereg_mr(p->mr));
    RETURNS(0, ibv_destroy_cq(p->cq));
    RETURNS(0, ibv_dealloc_pd(p->pd));
    free(p->buffer);
}

/* Polls until there is a completion. Only the program as a whole has a timeout. */
static inline struct ibv_wc await(struct ibv_cq *cq) {
    struct ibv_wc wc;
    int got;
    while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    MUST(got == 1);
    return wc;
}

/* WRITEs `len` bytes from one offset of the buffer to another, through queue pair `from`, and waits. */
static inline enum ibv_wc_status pair_write(struct pair *p, int from, size_t src, size_t dst, uint32_t len) {
    struct ibv_sge sge = {.addr = (uintptr_t)p->buffer + src, .length = len, .lkey = p->mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = {.remote_addr = (uintptr_t)p->buffer + dst, .rkey = p->mr->rkey}}, *bad;
    MUST(ibv_post_send(p->qp[from], &wr, &bad) == 0);
    return await(p->cq).status;
}

#endif
