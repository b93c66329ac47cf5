/* Every operation, with every byte checked.
 *
 * Memory of an end is two areas of slots: `out`, where its own data comes from or is read into, and `in`, where the peer
 * writes and reads. Around each slot lie guard bytes that nobody may touch.
 *
 * A round: the responder prepares, both meet, the requester works, both meet, the responder checks.
 */
#include "verify.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { UNTOUCHED = 0xee, LIMIT_MS = 30000 };

struct job {
    const char *name;
    enum ibv_wr_opcode opcode;
    size_t size;
    int round, slots; /* slots per queue pair */
};

static const struct {
    const char *name, *transports;
    enum ibv_wr_opcode opcode;
} operations[] = {
    { "send", "rc uc ud iwarp", IBV_WR_SEND },
    { "send_imm", "rc uc ud", IBV_WR_SEND_WITH_IMM },
    { "write", "rc uc iwarp", IBV_WR_RDMA_WRITE },
    { "write_imm", "rc uc", IBV_WR_RDMA_WRITE_WITH_IMM },
    { "read", "rc iwarp", IBV_WR_RDMA_READ },
    { "fetch_add", "rc", IBV_WR_ATOMIC_FETCH_AND_ADD },
    { "cmp_swap", "rc", IBV_WR_ATOMIC_CMP_AND_SWP },
};

static bool takes_receive(const struct job *job)
{
    return job->opcode == IBV_WR_SEND || job->opcode == IBV_WR_SEND_WITH_IMM ||
           job->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool is_write(const struct job *job)
{
    return job->opcode == IBV_WR_RDMA_WRITE || job->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool is_atomic(const struct job *job)
{
    return job->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || job->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}

static bool has_imm(const struct job *job)
{
    return job->opcode == IBV_WR_SEND_WITH_IMM || job->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static size_t stride(const struct end *end)
{
    size_t longest = 8;
    for (int i = 0; i < end->options->size_count; i++)
        longest = end->options->sizes[i] > longest ? end->options->sizes[i] : longest;
    return GUARD + GRH + (longest + 7) / 8 * 8;
}

/* Offset of the data of a slot; `in` says which of the two areas. */
static size_t slot_offset(const struct end *end, bool in, int slot)
{
    size_t slots = (size_t)end->options->qps * end->options->slots;
    return ((in ? slots : 0) + slot) * stride(end) + GUARD + (GRH + 7) / 8 * 8;
}

/* A number that is different for every word of every message. */
static uint64_t word(const struct end *end, const struct job *job, int slot, uint64_t at)
{
    uint64_t x = end->options->seed + 1;
    x = x * 1000003 + job->opcode;
    x = x * 1000003 + job->size;
    x = x * 1000003 + job->round;
    x = x * 1000003 + slot;
    x = (x + at) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static void fill(const struct end *end, const struct job *job, bool in, int slot)
{
    uint8_t *data = end->memory + slot_offset(end, in, slot);
    for (size_t at = 0; at < job->size; at += 8) {
        uint64_t value = htole64(word(end, job, slot, at));
        memcpy(data + at, &value, job->size - at < 8 ? job->size - at : 8);
    }
}

static int check(const struct end *end, const struct job *job, bool in, int slot, int message)
{
    const uint8_t *data = end->memory + slot_offset(end, in, slot);
    for (size_t at = 0; at < job->size; at += 8) {
        uint64_t value = htole64(word(end, job, message, at));
        size_t len = job->size - at < 8 ? job->size - at : 8;
        if (memcmp(data + at, &value, len)) {
            printf("%s size %zu round %d slot %d: wrong byte at or behind %zu\n", job->name, job->size, job->round,
                   slot, at);
            return 1;
        }
    }
    for (size_t at = 0; at < GUARD / 2; at++) {
        if (data[job->size + at] != UNTOUCHED) {
            printf("%s size %zu slot %d: written %zu bytes behind the end\n", job->name, job->size, slot, at + 1);
            return 1;
        }
    }
    return 0;
}

static void post_receive(struct end *end, int q, int slot, const struct job *job)
{
    bool ud = end->qp[0]->qp_type == IBV_QPT_UD;
    size_t before = ud ? GRH : 0;
    struct ibv_sge sge = {
        .addr = (uintptr_t)end->memory + slot_offset(end, true, slot) - before,
        .length = job->size + before,
        .lkey = end->mr->lkey,
    };
    struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
    /* The data of a WRITE with immediate goes elsewhere: a receive without any room must do. */
    if (is_write(job))
        wr.num_sge = 0;
    errno = end->srq ? ibv_post_srq_recv(end->srq, &wr, &bad) : ibv_post_recv(end->qp[q], &wr, &bad);
    if (errno)
        die("posting a receive: %m");
}

static void post_request(struct end *end, const struct job *job, int q, int slot, bool last)
{
    uint64_t remote = end->theirs.addr + slot_offset(end, true, slot);
    struct ibv_sge sge[2] = { {
        .addr = (uintptr_t)end->memory + slot_offset(end, false, slot),
        .length = job->size,
        .lkey = end->mr->lkey,
    } };
    struct ibv_send_wr wr = { .wr_id = slot, .sg_list = sge, .num_sge = 1, .opcode = job->opcode }, *bad;
    /* Every other message is gathered from two pieces, the first of odd length. */
    bool gathers = slot % 2 && job->size > 3 && !is_atomic(job);
    /* siw takes one piece for a READ. */
    if (gathers && !(is_iwarp(end) && job->opcode == IBV_WR_RDMA_READ)) {
        sge[1] = sge[0];
        sge[0].length = job->size / 2 | 1;
        sge[1].addr += sge[0].length;
        sge[1].length -= sge[0].length;
        wr.num_sge = 2;
    }
    wr.send_flags = last || slot % 3 == 0 ? IBV_SEND_SIGNALED : 0;
    if (end->options->inlined && job->size <= end->inline_len && job->opcode != IBV_WR_RDMA_READ && !is_atomic(job))
        wr.send_flags |= IBV_SEND_INLINE;
    wr.imm_data = htonl((uint32_t)word(end, job, slot, 1));
    if (is_atomic(job)) {
        wr.wr.atomic.remote_addr = remote;
        wr.wr.atomic.rkey = end->theirs.rkey;
        wr.wr.atomic.compare_add = word(end, job, slot, job->opcode == IBV_WR_ATOMIC_CMP_AND_SWP && slot % 2 == 0 ? 0 : 2);
        wr.wr.atomic.swap = word(end, job, slot, 3);
    } else if (end->ah) {
        wr.wr.ud.ah = end->ah;
        wr.wr.ud.remote_qpn = end->theirs.qpn[q];
        wr.wr.ud.remote_qkey = QKEY;
    } else {
        wr.wr.rdma.remote_addr = remote;
        wr.wr.rdma.rkey = end->theirs.rkey;
    }
    if ((errno = ibv_post_send(end->qp[q], &wr, &bad)))
        die("ibv_post_send of %s: %m", job->name);
}

static int check_atomic(const struct end *end, const struct job *job, bool in, int slot)
{
    uint64_t before = word(end, job, slot, 0), value, expected = before;
    memcpy(&value, end->memory + slot_offset(end, in, slot), 8);
    if (in && job->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        expected = before + word(end, job, slot, 2);
    else if (in && slot % 2 == 0)
        expected = word(end, job, slot, 3);
    if (value == expected)
        return 0;
    printf("%s slot %d: %s %#" PRIx64 " instead of %#" PRIx64 "\n", job->name, slot, in ? "target is" : "returned", value,
           expected);
    return 1;
}

static int request(struct end *end, const struct job *job)
{
    int failed = 0, qps = end->options->qps;
    bool reads = job->opcode == IBV_WR_RDMA_READ || is_atomic(job);
    for (int slot = 0; slot < qps * job->slots; slot++) {
        size_t offset = slot_offset(end, false, slot);
        memset(end->memory + offset, UNTOUCHED, job->size + GUARD / 2);
        if (!reads)
            fill(end, job, false, slot);
    }
    int expected = 0;
    for (int i = 0; i < job->slots; i++) {
        for (int q = 0; q < qps; q++) {
            int slot = q * job->slots + i;
            bool last = i == job->slots - 1;
            post_request(end, job, q, slot, last);
            expected += last || slot % 3 == 0;
        }
    }
    for (; expected; expected--) {
        struct ibv_wc wc;
        if (!completion(end, end->send_cq, &wc, LIMIT_MS))
            die("%s size %zu round %d: no completion within %d s", job->name, job->size, job->round, LIMIT_MS / 1000);
        if (wc.status != IBV_WC_SUCCESS)
            die("%s size %zu round %d: %s (vendor %#x)", job->name, job->size, job->round, ibv_wc_status_str(wc.status),
                wc.vendor_err);
    }
    for (int slot = 0; reads && slot < qps * job->slots; slot++)
        failed |= is_atomic(job) ? check_atomic(end, job, false, slot) : check(end, job, false, slot, slot);
    return failed;
}

static void prepare(struct end *end, const struct job *job)
{
    int qps = end->options->qps;
    for (int slot = 0; slot < qps * job->slots; slot++) {
        memset(end->memory + slot_offset(end, true, slot), UNTOUCHED, job->size + GUARD / 2);
        if (job->opcode == IBV_WR_RDMA_READ)
            fill(end, job, true, slot);
        if (is_atomic(job)) {
            uint64_t value = word(end, job, slot, 0);
            memcpy(end->memory + slot_offset(end, true, slot), &value, 8);
        }
        if (takes_receive(job))
            post_receive(end, slot / job->slots, slot, job);
    }
}

static int queue_of(const struct end *end, uint32_t qpn)
{
    for (int q = 0; q < end->options->qps; q++)
        if (end->qp[q]->qp_num == qpn)
            return q;
    die("a completion for queue pair %#x, which is not ours", qpn);
}

/* Without acknowledgements a WRITE may still be on its way when the requester is done with it. */
static void await_last_byte(struct end *end, const struct job *job, int slot)
{
    size_t last = (job->size - 1) / 8 * 8;
    uint64_t value = htole64(word(end, job, slot, last));
    volatile uint8_t *data = end->memory + slot_offset(end, true, slot) + last;
    int64_t give_up = now_ms() + LIMIT_MS;
    struct ibv_wc wc;
    while (memcmp((const void *)data, &value, job->size - last) && now_ms() < give_up)
        if (ibv_poll_cq(end->recv_cq, 1, &wc))
            die("a completion that nobody asked for");
}

/* A UD receive begins with the sender's route: a whole IPv6 header, or an IPv4 header in the last 20 bytes. */
static int check_grh(const struct end *end, int slot)
{
    const uint8_t *grh = end->memory + slot_offset(end, true, slot) - GRH;
    const uint8_t *gid = end->theirs.gid.raw;
    static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
    bool right = memcmp(gid, mapped, 12) ? !memcmp(grh + 8, gid, 16) : !memcmp(grh + 20 + 12, gid + 12, 4);
    if (!right)
        printf("slot %d: the GRH does not name the sender\n", slot);
    return !right;
}

static int check_receives(struct end *end, const struct job *job)
{
    int failed = 0, arrived[MAX_QPS] = { 0 }, total = end->options->qps * job->slots;
    enum ibv_wc_opcode opcode = is_write(job) ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    bool ud = end->qp[0]->qp_type == IBV_QPT_UD;
    for (int i = 0; i < total; i++) {
        struct ibv_wc wc;
        if (!completion(end, end->recv_cq, &wc, LIMIT_MS))
            die("%s size %zu round %d: %d of %d messages arrived", job->name, job->size, job->round, i, total);
        if (wc.status != IBV_WC_SUCCESS)
            die("%s size %zu round %d: receive: %s (vendor %#x)", job->name, job->size, job->round,
                ibv_wc_status_str(wc.status), wc.vendor_err);
        int q = queue_of(end, wc.qp_num);
        int message = q * job->slots + arrived[q]++, slot = (int)wc.wr_id;
        if (wc.opcode != opcode || wc.byte_len != job->size + (ud ? GRH : 0)) {
            printf("%s size %zu: completion says opcode %d, length %u\n", job->name, job->size, wc.opcode, wc.byte_len);
            failed = 1;
        }
        if (has_imm(job) != !!(wc.wc_flags & IBV_WC_WITH_IMM) ||
            (has_imm(job) && wc.imm_data != htonl((uint32_t)word(end, job, message, 1)))) {
            printf("%s size %zu: wrong immediate data %#x\n", job->name, job->size, ntohl(wc.imm_data));
            failed = 1;
        }
        if (ud && (!(wc.wc_flags & IBV_WC_GRH) || wc.src_qp != end->theirs.qpn[q] || check_grh(end, slot))) {
            printf("%s size %zu: wrong sender %#x\n", job->name, job->size, wc.src_qp);
            failed = 1;
        }
        if (!is_write(job))
            failed |= check(end, job, true, slot, message);
    }
    return failed;
}

static int answer(struct end *end, const struct job *job)
{
    int failed = 0;
    if (takes_receive(job))
        failed |= check_receives(end, job);
    for (int slot = 0; slot < end->options->qps * job->slots; slot++) {
        if (is_atomic(job))
            failed |= check_atomic(end, job, true, slot);
        else if (is_write(job)) {
            bool unacknowledged = end->qp[0]->qp_type == IBV_QPT_UC || is_iwarp(end);
            if (unacknowledged && !takes_receive(job) && job->size)
                await_last_byte(end, job, slot);
            failed |= check(end, job, true, slot, slot);
        }
    }
    return failed;
}

static int run_round(struct end *end, const struct job *job)
{
    int failed = 0;
    if (!end->requester)
        prepare(end, job);
    control_barrier(end->control);
    if (end->requester)
        failed = request(end, job);
    control_barrier(end->control);
    if (!end->requester)
        failed = answer(end, job);
    return failed;
}

int transfer_all(struct end *end)
{
    struct options *options = end->options;
    int failed = 0;
    end_open(end, 2 * (size_t)options->qps * options->slots * stride(end) + GUARD,
             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    end_connect(end);
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        bool all = !strcmp(options->operations, "all");
        if (!strstr(operations[i].transports, options->transport) ||
            (!all && strcmp(options->operations, operations[i].name)))
            continue;
        for (int s = 0; s < options->size_count; s++) {
            struct job job = { operations[i].name, operations[i].opcode, options->sizes[s], 0, options->slots };
            if (is_atomic(&job))
                job.size = 8;
            for (job.round = 0; job.round < options->rounds; job.round++)
                failed |= run_round(end, &job);
            printf("%s %s size %zu: %s\n", options->transport, job.name, job.size, failed ? "WRONG" : "ok");
            if (is_atomic(&job))
                break;
        }
    }
    /* What a round left behind must not meet the destruction of the other end's queue pairs. */
    control_barrier(end->control);
    end_close(end);
    return failed;
}
