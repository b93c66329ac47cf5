/* Errors on purpose. Each end prints what it saw and compares it with what the InfiniBand specification asks for.
 *
 * The requester posts the request that must fail, and a harmless SEND behind it that must be flushed. The responder has
 * two receives posted. What is expected stands in one table.
 */
#include "verify.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LEN = 4096, MESSAGE = 64, LIMIT_MS = 30000, SETTLE_MS = 700 };

struct refusal {
    const char *name;
    enum ibv_wr_opcode opcode;
    const char *requester; /* statuses of the requester's completions */
    const char *receives;  /* statuses of the responder's */
    const char *event;     /* asynchronous event of the responder */
    const char *why;
};

#define REFUSED "REM_ACCESS_ERR WR_FLUSH_ERR"
#define FLUSHED "WR_FLUSH_ERR WR_FLUSH_ERR"

static const struct refusal refusals[] = {
    { "write_rkey", IBV_WR_RDMA_WRITE, REFUSED, FLUSHED, "QP_ACCESS_ERR", "a key that names nothing" },
    { "write_range", IBV_WR_RDMA_WRITE, REFUSED, FLUSHED, "QP_ACCESS_ERR", "one byte behind the region" },
    { "write_right", IBV_WR_RDMA_WRITE, REFUSED, FLUSHED, "QP_ACCESS_ERR", "a region that may not be written" },
    { "read_rkey", IBV_WR_RDMA_READ, REFUSED, FLUSHED, "QP_ACCESS_ERR", "a key that names nothing" },
    { "read_range", IBV_WR_RDMA_READ, REFUSED, FLUSHED, "QP_ACCESS_ERR", "one byte behind the region" },
    { "atomic_rkey", IBV_WR_ATOMIC_FETCH_AND_ADD, REFUSED, FLUSHED, "QP_ACCESS_ERR", "a key that names nothing" },
    { "atomic_align", IBV_WR_ATOMIC_FETCH_AND_ADD, "REM_INV_REQ_ERR WR_FLUSH_ERR", FLUSHED, "QP_REQ_ERR",
      "an address that is no multiple of eight" },
    { "send_long", IBV_WR_SEND, "REM_INV_REQ_ERR WR_FLUSH_ERR", "LOC_LEN_ERR WR_FLUSH_ERR", "none",
      "longer than the receive" },
    { "rnr", IBV_WR_SEND, "RNR_RETRY_EXC_ERR WR_FLUSH_ERR", "", "none", "no receive, and one retry only" },
    { "rnr_late", IBV_WR_SEND, "SUCCESS SUCCESS", "SUCCESS SUCCESS", "none", "the receive comes late, retries never end" },
    { "dead", IBV_WR_SEND, "RETRY_EXC_ERR WR_FLUSH_ERR", "", "none", "the other queue pair is gone" },
    { "killed", IBV_WR_RDMA_WRITE, "RETRY_EXC_ERR", "", "none", "the other process is killed" },
    { "qkey", IBV_WR_SEND, "SUCCESS SUCCESS", "SUCCESS", "none", "the first datagram has the wrong Q_Key" },
};

/* Over iWARP a WRITE or SEND completes when TCP has it, so only the end of the connection tells its requester. */
static const struct refusal iwarp_refusals[] = {
    { "write_rkey", IBV_WR_RDMA_WRITE, "SUCCESS", FLUSHED, "QP_ACCESS_ERR", "a key that names nothing" },
    { "write_range", IBV_WR_RDMA_WRITE, "SUCCESS", FLUSHED, "QP_ACCESS_ERR", "one byte behind the region" },
    { "write_right", IBV_WR_RDMA_WRITE, "SUCCESS", FLUSHED, "QP_ACCESS_ERR", "a region that may not be written" },
    { "read_rkey", IBV_WR_RDMA_READ, "REM_ACCESS_ERR", FLUSHED, "QP_ACCESS_ERR", "a key that names nothing" },
    { "read_range", IBV_WR_RDMA_READ, "REM_ACCESS_ERR", FLUSHED, "QP_ACCESS_ERR", "one byte behind the region" },
    { "send_long", IBV_WR_SEND, "SUCCESS", "LOC_LEN_ERR WR_FLUSH_ERR", "none", "longer than the receive" },
    { "rnr", IBV_WR_SEND, "SUCCESS", "", "QP_REQ_ERR", "no receive" },
    { "killed", IBV_WR_RDMA_WRITE, "WR_FLUSH_ERR", "", "none", "the other process is killed" },
    { "client_killed", IBV_WR_RDMA_WRITE, "", FLUSHED, "", "the requester's process is killed" },
    { "invalidated", IBV_WR_RDMA_WRITE, "SUCCESS", "WR_FLUSH_ERR", "QP_ACCESS_ERR", "a key that a SEND has invalidated" },
};

static bool is(const struct refusal *refusal, const char *name)
{
    return !strcmp(refusal->name, name);
}

static const char *status_name(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_SUCCESS: return "SUCCESS";
    case IBV_WC_LOC_LEN_ERR: return "LOC_LEN_ERR";
    case IBV_WC_LOC_QP_OP_ERR: return "LOC_QP_OP_ERR";
    case IBV_WC_LOC_PROT_ERR: return "LOC_PROT_ERR";
    case IBV_WC_WR_FLUSH_ERR: return "WR_FLUSH_ERR";
    case IBV_WC_LOC_ACCESS_ERR: return "LOC_ACCESS_ERR";
    case IBV_WC_REM_INV_REQ_ERR: return "REM_INV_REQ_ERR";
    case IBV_WC_REM_ACCESS_ERR: return "REM_ACCESS_ERR";
    case IBV_WC_REM_OP_ERR: return "REM_OP_ERR";
    case IBV_WC_RETRY_EXC_ERR: return "RETRY_EXC_ERR";
    case IBV_WC_RNR_RETRY_EXC_ERR: return "RNR_RETRY_EXC_ERR";
    default: return ibv_wc_status_str(status);
    }
}

static const char *event_name(struct end *end)
{
    struct pollfd pollfd = { .fd = end->context->async_fd, .events = POLLIN };
    struct ibv_async_event event;
    /* Not every event is about this error; the first that names a queue pair counts. */
    while (poll(&pollfd, 1, SETTLE_MS) > 0 && !ibv_get_async_event(end->context, &event)) {
        enum ibv_event_type type = event.event_type;
        ibv_ack_async_event(&event);
        switch (type) {
        case IBV_EVENT_QP_ACCESS_ERR: return "QP_ACCESS_ERR";
        case IBV_EVENT_QP_REQ_ERR: return "QP_REQ_ERR";
        case IBV_EVENT_QP_FATAL: return "QP_FATAL";
        default: break;
        }
    }
    return "none";
}

static void post(struct end *end, const struct refusal *refusal, bool faulty)
{
    const char *name = faulty ? refusal->name : "";
    struct ibv_sge sge = { (uintptr_t)end->memory, MESSAGE, end->mr->lkey };
    struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
    uint64_t addr = end->theirs.addr + (strstr(name, "_range") ? LEN - MESSAGE + 1 : !strcmp(name, "atomic_align") ? 4 : 0);
    uint32_t rkey = end->theirs.rkey ^ (strstr(name, "_rkey") ? 0x5a5a00 : 0);
    wr.opcode = faulty ? refusal->opcode : IBV_WR_SEND;
    if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        sge.length = 8;
        wr.wr.atomic.remote_addr = addr;
        wr.wr.atomic.rkey = rkey;
    } else if (end->ah) {
        wr.wr.ud.ah = end->ah;
        wr.wr.ud.remote_qpn = end->theirs.qpn[0];
        wr.wr.ud.remote_qkey = !strcmp(name, "qkey") ? QKEY + 1 : QKEY;
    } else {
        wr.wr.rdma.remote_addr = addr;
        wr.wr.rdma.rkey = rkey;
    }
    if (!strcmp(name, "send_long"))
        sge.length = 2 * MESSAGE;
    if ((errno = ibv_post_send(end->qp[0], &wr, &bad)))
        die("ibv_post_send: %m");
}

static void post_receives(struct end *end)
{
    size_t before = end->ah ? GRH : 0;
    for (int i = 0; i < 2; i++) {
        struct ibv_sge sge = { (uintptr_t)end->memory + 256 * i, MESSAGE + before, end->mr->lkey };
        struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
        if ((errno = ibv_post_recv(end->qp[0], &wr, &bad)))
            die("ibv_post_recv: %m");
    }
}

/* Up to `count` statuses, with a blank between them. */
static void statuses(struct end *end, struct ibv_cq *cq, int count, int limit_ms, char *into, size_t room)
{
    struct ibv_wc wc;
    *into = 0;
    for (int i = 0; i < count && completion(end, cq, &wc, limit_ms); i++) {
        size_t used = strlen(into);
        snprintf(into + used, room - used, "%s%s", used ? " " : "", status_name(wc.status));
    }
}

static int compare(const char *what, const char *seen, const char *expected)
{
    bool right = !strcmp(seen, expected);
    printf("%s: %s%s%s\n", what, *seen ? seen : "nothing", right ? "" : ", but the specification asks for ",
           right ? "" : *expected ? expected : "nothing");
    return !right;
}

/* The requester writes until it fails: the other process dies at some moment. */
static int until_killed(struct end *end, const struct refusal *refusal)
{
    struct ibv_wc wc;
    int64_t give_up = now_ms() + LIMIT_MS;
    do {
        post(end, refusal, true);
        if (!completion(end, end->send_cq, &wc, LIMIT_MS))
            die("no completion");
    } while (wc.status == IBV_WC_SUCCESS && now_ms() < give_up);
    return compare("requester", status_name(wc.status), refusal->requester);
}

/* The requester writes for a while, and dies with a WRITE on its way. */
static void die_writing(struct end *end, const struct refusal *refusal)
{
    struct ibv_wc wc;
    int64_t until = now_ms() + 200;
    do {
        post(end, refusal, true);
        if (!completion(end, end->send_cq, &wc, LIMIT_MS) || wc.status != IBV_WC_SUCCESS)
            die("a WRITE failed before the end");
    } while (now_ms() < until);
    post(end, refusal, true);
    fflush(stdout);
    raise(SIGKILL);
}

/* The other process is gone: the receives are flushed, and librdmacm reports the end. */
static int outlive(struct end *end, const struct refusal *refusal)
{
    char seen[200];
    statuses(end, end->recv_cq, 2, LIMIT_MS, seen, sizeof seen);
    int failed = compare("receives", seen, refusal->receives);
    struct pollfd pollfd = { .fd = end->id[0]->channel->fd, .events = POLLIN };
    struct rdma_cm_event *event;
    const char *end_of = "none";
    if (poll(&pollfd, 1, LIMIT_MS) > 0 && !rdma_get_cm_event(end->id[0]->channel, &event)) {
        end_of = rdma_event_str(event->event);
        end->ended = event->event == RDMA_CM_EVENT_DISCONNECTED;
        rdma_ack_cm_event(event);
    }
    return failed | compare("connection", end_of, "RDMA_CM_EVENT_DISCONNECTED");
}

enum { TARGET = LEN / 2 };

static void write_or_invalidate(struct end *end, enum ibv_wr_opcode opcode, uint32_t rkey, int value)
{
    memset(end->memory, value, MESSAGE);
    struct ibv_sge sge = { (uintptr_t)end->memory, MESSAGE, end->mr->lkey };
    struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
    wr.wr.rdma.remote_addr = end->theirs.addr + TARGET;
    /* libsiw takes the key of a SEND with invalidate from here. */
    wr.wr.rdma.rkey = rkey;
    if (opcode == IBV_WR_SEND_WITH_INV)
        wr.invalidate_rkey = rkey;
    if ((errno = ibv_post_send(end->qp[0], &wr, &bad)))
        die("ibv_post_send: %m");
}

static int compare_target(struct end *end, const char *what, int value)
{
    bool same = true;
    for (int i = 0; i < MESSAGE; i++)
        same &= end->memory[TARGET + i] == value;
    return compare(what, same ? "right" : "wrong", "right");
}

/* The requester writes with a key, then invalidates it by a SEND, and writes again. */
static int invalidate(struct end *end, const struct refusal *refusal)
{
    enum { FIRST = 0x5a, SECOND = 0xa5 };
    char seen[200];
    struct ibv_wc wc;
    uint32_t mine = 0, theirs = 0;
    struct ibv_mr *mr = NULL;
    int failed = 0;
    if (!end->requester) {
        mr = ibv_reg_mr(end->pd, end->memory + TARGET, MESSAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        if (!mr)
            die("ibv_reg_mr: %m");
        mine = mr->rkey;
    }
    control_exchange(end->control, &mine, &theirs, sizeof mine);
    if (end->requester) {
        post_receives(end);
        write_or_invalidate(end, IBV_WR_RDMA_WRITE, theirs, FIRST);
        statuses(end, end->send_cq, 1, LIMIT_MS, seen, sizeof seen);
        failed = compare("WRITE with the key", seen, "SUCCESS");
        write_or_invalidate(end, IBV_WR_SEND_WITH_INV, theirs, FIRST);
        statuses(end, end->send_cq, 1, LIMIT_MS, seen, sizeof seen);
        failed |= compare("SEND with invalidate", seen, "SUCCESS");
    } else {
        if (!completion(end, end->recv_cq, &wc, LIMIT_MS))
            die("no completion");
        failed = compare("receive", status_name(wc.status), "SUCCESS");
        bool reported = (wc.wc_flags & IBV_WC_WITH_INV) && wc.invalidated_rkey == mine;
        failed |= compare("key in the completion", reported ? "reported" : "none", "reported");
        failed |= compare_target(end, "bytes of the first WRITE", FIRST);
    }
    control_barrier(end->control);
    if (end->requester) {
        write_or_invalidate(end, IBV_WR_RDMA_WRITE, theirs, SECOND);
        statuses(end, end->send_cq, 1, LIMIT_MS, seen, sizeof seen);
        failed |= compare("requester", seen, refusal->requester);
        statuses(end, end->recv_cq, 2, LIMIT_MS, seen, sizeof seen);
        failed |= compare("its receives", seen, FLUSHED);
    } else {
        statuses(end, end->recv_cq, 1, LIMIT_MS, seen, sizeof seen);
        failed |= compare("receives", seen, refusal->receives) | compare("event", event_name(end), refusal->event);
        failed |= compare_target(end, "bytes after the second WRITE", FIRST);
        if (ibv_dereg_mr(mr))
            die("ibv_dereg_mr: %m");
    }
    control_barrier(end->control);
    return failed;
}

static int ask(struct end *end, const struct refusal *refusal)
{
    char seen[200];
    if (is(refusal, "killed"))
        return until_killed(end, refusal);
    if (is(refusal, "client_killed"))
        die_writing(end, refusal);
    if (is_iwarp(end)) {
        post_receives(end);
        post(end, refusal, true);
        statuses(end, end->send_cq, 1, LIMIT_MS, seen, sizeof seen);
        int failed = compare("requester", seen, refusal->requester);
        statuses(end, end->recv_cq, 2, LIMIT_MS, seen, sizeof seen);
        return failed | compare("its receives", seen, FLUSHED);
    }
    post(end, refusal, true);
    post(end, refusal, false);
    statuses(end, end->send_cq, 2, LIMIT_MS, seen, sizeof seen);
    return compare("requester", seen, refusal->requester);
}

static int look(struct end *end, const struct refusal *refusal)
{
    char seen[200];
    if (!end->qp[0])
        return 0;
    statuses(end, end->recv_cq, 2, SETTLE_MS, seen, sizeof seen);
    return compare("receives", seen, refusal->receives) | compare("event", event_name(end), refusal->event);
}

static void prepare(struct end *end, const struct refusal *refusal)
{
    if (!strcmp(refusal->name, "dead")) {
        if (ibv_destroy_qp(end->qp[0]))
            die("ibv_destroy_qp: %m");
        end->qp[0] = NULL;
    } else if (strncmp(refusal->name, "rnr", 3)) {
        post_receives(end);
    }
}

int refuse_one(struct end *end)
{
    const struct refusal *refusal = NULL, *table = is_iwarp(end) ? iwarp_refusals : refusals;
    size_t count = is_iwarp(end) ? sizeof iwarp_refusals : sizeof refusals;
    for (size_t i = 0; i < count / sizeof *table; i++)
        if (!strcmp(table[i].name, end->options->refusal))
            refusal = &table[i];
    if (!refusal)
        die("no error is called %s", end->options->refusal);
    printf("%s: %s\n", refusal->name, refusal->why);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    if (strcmp(refusal->name, "write_right"))
        access |= IBV_ACCESS_REMOTE_WRITE;
    end_open(end, LEN, access);
    end_connect(end);
    if (!end->requester)
        prepare(end, refusal);
    control_barrier(end->control);
    if (is(refusal, "invalidated")) {
        int failed = invalidate(end, refusal);
        end_close(end);
        return failed;
    }
    if (!end->requester && is(refusal, "killed")) {
        usleep(200000);
        fflush(stdout);
        raise(SIGKILL);
    }
    if (!end->requester && is(refusal, "rnr_late")) {
        usleep(300000);
        post_receives(end);
    }
    int failed = end->requester ? ask(end, refusal) : 0;
    bool both_live = !strstr(refusal->name, "killed");
    if (both_live)
        control_barrier(end->control);
    if (!end->requester)
        failed = is(refusal, "client_killed") ? outlive(end, refusal) : look(end, refusal);
    if (both_live)
        control_barrier(end->control);
    end_close(end);
    return failed;
}
