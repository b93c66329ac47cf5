/* Messages of 2^31 bytes, the maximum of the transport, in both directions. Two ranges of 2 GiB of address space map the same 4 MiB of
 * memory repeatedly, so that every machine has enough memory. */
#define _GNU_SOURCE
#include "pair.h"
#include <sys/mman.h>

#define LARGEST (1ul << 31)
#define PIECE (4ul << 20)
#define WORDS (PIECE / sizeof(uint64_t))

static uint64_t *same_memory_all_over(const char *name) {
    int fd = memfd_create(name, 0);
    MUST(fd >= 0 && ftruncate(fd, PIECE) == 0);
    char *all = mmap(NULL, LARGEST + PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(all != MAP_FAILED);
    for (size_t at = 0; at <= LARGEST; at += PIECE)
        MUST(mmap(all + at, PIECE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == all + at);
    close(fd);
    return (uint64_t *)all;
}

static uint64_t pattern(int round, size_t word) {
    return (word + 1) * 0x9e3779b97f4a7c15u + round;
}

int main(void) {
    struct ibv_context *context = open_first();
    struct ibv_port_attr port;
    RETURNS(0, ibv_query_port(context, 1, &port));
    CHECK(port.max_msg_sz == LARGEST);
    struct pair p = pair_open(context, 4096);
    uint64_t *from = same_memory_all_over("from"), *to = same_memory_all_over("to");
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr *mr_from = ibv_reg_mr(p.pd, from, LARGEST + PIECE, rights);
    struct ibv_mr *mr_to = ibv_reg_mr(p.pd, to, LARGEST + PIECE, rights);
    MUST(mr_from != NULL && mr_to != NULL);

    enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND};
    for (int round = 0; round < 3; round++) {
        int reads = opcodes[round] == IBV_WR_RDMA_READ, sends = opcodes[round] == IBV_WR_SEND;
        for (size_t i = 0; i < WORDS; i++)
            from[i] = pattern(round, i);
        memset(to, 0, PIECE);
        struct ibv_sge out = {.addr = (uintptr_t)(reads ? to : from), .length = LARGEST,
            .lkey = (reads ? mr_to : mr_from)->lkey};
        struct ibv_sge in = {.addr = (uintptr_t)to, .length = LARGEST, .lkey = mr_to->lkey};
        struct ibv_recv_wr recv = {.wr_id = 2, .sg_list = &in, .num_sge = 1}, *bad_recv;
        struct ibv_send_wr wr = {.wr_id = 1, .opcode = opcodes[round], .sg_list = &out, .num_sge = 1,
            .wr.rdma = {.remote_addr = (uintptr_t)(reads ? from : to), .rkey = (reads ? mr_from : mr_to)->rkey}}, *bad;
        if (sends)
            RETURNS(0, ibv_post_recv(p.qp[1], &recv, &bad_recv));
        RETURNS(0, ibv_post_send(p.qp[0], &wr, &bad));
        for (int left = sends ? 2 : 1; left > 0; left--) {
            struct ibv_wc wc = await(p.cq);
            CHECK(wc.status == IBV_WC_SUCCESS);
            CHECK(wc.wr_id == 1 || wc.byte_len == LARGEST);
        }
        for (size_t i = 0; i < WORDS; i++)
            MUST(to[i] == pattern(round, i));
    }

    /* One byte more is refused before any packet is sent, and the queue pair stays usable. */
    struct ibv_sge more = {.addr = (uintptr_t)from, .length = LARGEST + 1, .lkey = mr_from->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &more, .num_sge = 1,
        .wr.rdma = {.remote_addr = (uintptr_t)to, .rkey = mr_to->rkey}}, *bad = NULL;
    RETURNS(EINVAL, ibv_post_send(p.qp[0], &wr, &bad));
    CHECK(bad == &wr);
    /* The sum of several SGEs is limited as well. */
    struct ibv_sge two[2] = {{.addr = (uintptr_t)from, .length = LARGEST, .lkey = mr_from->lkey},
        {.addr = (uintptr_t)from, .length = 1, .lkey = mr_from->lkey}};
    wr.sg_list = two, wr.num_sge = 2;
    RETURNS(EINVAL, ibv_post_send(p.qp[0], &wr, &bad));
    CHECK(pair_write(&p, 0, 0, 64, 64) == IBV_WC_SUCCESS);

    RETURNS(0, ibv_dereg_mr(mr_from));
    RETURNS(0, ibv_dereg_mr(mr_to));
    pair_close(&p);
    RETURNS(0, ibv_close_device(context));
    return verdict();
}
