/* Verbs objects of one end, and how it connects. */
#include "verify.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 256, INLINE = 64 };

enum ibv_qp_type transport_of(const char *name)
{
    if (!strcmp(name, "rc") || !strcmp(name, "iwarp"))
        return IBV_QPT_RC;
    if (!strcmp(name, "uc"))
        return IBV_QPT_UC;
    if (!strcmp(name, "ud"))
        return IBV_QPT_UD;
    die("no transport is called %s", name);
}

static struct ibv_context *open_device(const char *name)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (int i = 0; list && i < count; i++) {
        if (name && strcmp(name, ibv_get_device_name(list[i])))
            continue;
        struct ibv_context *context = ibv_open_device(list[i]);
        ibv_free_device_list(list);
        return context;
    }
    return NULL;
}

static struct ibv_qp_init_attr init_attr(const struct end *end)
{
    return (struct ibv_qp_init_attr){
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .srq = end->srq,
        .qp_type = transport_of(end->options->transport),
        .cap = { DEPTH, DEPTH, 2, 2, end->options->inlined ? INLINE : 0 },
    };
}

static struct ibv_qp *create_qp(struct end *end)
{
    struct ibv_qp_init_attr init = init_attr(end);
    struct ibv_qp *qp = ibv_create_qp(end->pd, &init);
    if (!qp)
        die("ibv_create_qp: %m");
    end->inline_len = init.cap.max_inline_data;
    bool ud = qp->qp_type == IBV_QPT_UD;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
    if (qp->qp_type == IBV_QPT_RC)
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    else
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    if ((errno = ibv_modify_qp(qp, &attr, mask)))
        die("ibv_modify_qp to INIT: %m");
    return qp;
}

void end_open(struct end *end, size_t memory_len, int access)
{
    struct options *options = end->options;
    if (is_iwarp(end))
        cm_open(end);
    else
        end->context = open_device(options->device);
    if (!end->context)
        die("no device %s", options->device ? options->device : "at all");
    end->pd = ibv_alloc_pd(end->context);
    end->channel = ibv_create_comp_channel(end->context);
    end->send_cq = ibv_create_cq(end->context, DEPTH * MAX_QPS, NULL, end->channel, 0);
    end->recv_cq = ibv_create_cq(end->context, DEPTH * MAX_QPS, NULL, end->channel, 0);
    if (!end->pd || !end->channel || !end->send_cq || !end->recv_cq)
        die("the device gives no objects: %m");
    if (options->srq) {
        struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
        end->srq = ibv_create_srq(end->pd, &init);
        if (!end->srq)
            die("ibv_create_srq: %m");
    }
    end->memory_len = memory_len;
    if (posix_memalign((void **)&end->memory, 4096, memory_len))
        die("no memory");
    memset(end->memory, 0, memory_len);
    end->mr = ibv_reg_mr(end->pd, end->memory, memory_len, access);
    if (!end->mr)
        die("ibv_reg_mr: %m");
    struct card *card = &end->mine;
    if (ibv_query_gid(end->context, 1, options->gid_index, &card->gid))
        die("no GID with index %d", options->gid_index);
    card->addr = (uintptr_t)end->memory;
    card->rkey = end->mr->rkey;
    /* Near the wrap, so that 24 bits are crossed in the first messages. */
    card->psn = 0xfffff0 + (options->seed & 7);
    for (int i = 0; i < options->qps && !is_iwarp(end); i++) {
        end->qp[i] = create_qp(end);
        card->qpn[i] = end->qp[i]->qp_num;
    }
}

static void to_rtr(struct end *end, int i, const struct ibv_ah_attr *route)
{
    struct ibv_qp *qp = end->qp[i];
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)end->options->mtu,
        .dest_qp_num = end->theirs.qpn[i],
        .rq_psn = end->theirs.psn,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = *route,
    };
    int mask = IBV_QP_STATE;
    if (qp->qp_type != IBV_QPT_UD)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    if ((errno = ibv_modify_qp(qp, &attr, mask)))
        die("ibv_modify_qp to RTR: %m");
}

static void to_rts(struct end *end, int i)
{
    struct ibv_qp *qp = end->qp[i];
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = end->mine.psn,
        .timeout = end->options->timeout,
        .retry_cnt = end->options->retries,
        .rnr_retry = end->options->rnr_retries,
        .max_rd_atomic = 4,
    };
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    if ((errno = ibv_modify_qp(qp, &attr, mask)))
        die("ibv_modify_qp to RTS: %m");
}

void end_connect(struct end *end)
{
    control_exchange(end->control, &end->mine, &end->theirs, sizeof end->mine);
    if (is_iwarp(end)) {
        struct ibv_qp_init_attr init = init_attr(end);
        cm_connect(end, &init);
        end->inline_len = init.cap.max_inline_data;
        control_barrier(end->control);
        return;
    }
    struct ibv_ah_attr route = {
        .is_global = 1,
        .port_num = 1,
        .grh = { .dgid = end->theirs.gid, .sgid_index = end->options->gid_index, .hop_limit = 64 },
    };
    for (int i = 0; i < end->options->qps; i++) {
        to_rtr(end, i, &route);
        to_rts(end, i);
    }
    if (end->qp[0]->qp_type == IBV_QPT_UD && !(end->ah = ibv_create_ah(end->pd, &route)))
        die("ibv_create_ah: %m");
    control_barrier(end->control);
}

void end_close(struct end *end)
{
    int failed = 0;
    for (int i = 0; i < end->options->qps && !is_iwarp(end); i++)
        failed |= end->qp[i] && ibv_destroy_qp(end->qp[i]);
    if (is_iwarp(end))
        cm_close(end);
    failed |= end->ah && ibv_destroy_ah(end->ah);
    failed |= end->srq && ibv_destroy_srq(end->srq);
    failed |= ibv_destroy_cq(end->send_cq) || ibv_destroy_cq(end->recv_cq);
    failed |= ibv_destroy_comp_channel(end->channel) || ibv_dereg_mr(end->mr);
    failed |= ibv_dealloc_pd(end->pd);
    /* That of a connection belongs to librdmacm. */
    failed |= !is_iwarp(end) && ibv_close_device(end->context);
    if (failed)
        die("an object could not be destroyed: %m");
    free(end->memory);
}

/* The caller has armed and looked once more, so a completion in between is not lost. */
static void sleep_on(struct end *end, int limit_ms)
{
    struct pollfd pollfd = { .fd = end->channel->fd, .events = POLLIN };
    struct ibv_cq *which;
    void *context;
    if (poll(&pollfd, 1, limit_ms) > 0 && !ibv_get_cq_event(end->channel, &which, &context))
        ibv_ack_cq_events(which, 1);
}

bool completion(struct end *end, struct ibv_cq *cq, struct ibv_wc *wc, int limit_ms)
{
    int64_t until = now_ms() + limit_ms;
    for (;;) {
        int count = ibv_poll_cq(cq, 1, wc);
        if (count == 0 && end->options->events) {
            if ((errno = ibv_req_notify_cq(cq, 0)))
                die("ibv_req_notify_cq: %m");
            count = ibv_poll_cq(cq, 1, wc);
        }
        if (count < 0)
            die("ibv_poll_cq failed");
        if (count)
            return true;
        int64_t left = until - now_ms();
        if (left <= 0)
            return false;
        if (end->options->events)
            sleep_on(end, left);
    }
}
