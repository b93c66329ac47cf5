/* Memory other than plain regions: memory windows, device memory, null regions, on-demand paging. */
#include "pair.h"
#include <sys/mman.h>

static struct ibv_wc post_and_await(struct pair *p, struct ibv_qp *qp, struct ibv_send_wr *wr) {
    struct ibv_send_wr *bad = NULL;
    RETURNS(0, ibv_post_send(qp, wr, &bad));
    return await(p->cq);
}

static struct ibv_wc write_with(struct pair *p, uint32_t rkey, uint64_t addr) {
    struct ibv_sge sge = {.addr = (uintptr_t)p->buffer, .length = 8, .lkey = p->mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = {.remote_addr = addr, .rkey = rkey}};
    return post_and_await(p, p->qp[0], &wr);
}

static void windows(struct ibv_context *context) {
    struct pair p = pair_open(context, 4096);
    static char bytes[4096];
    struct ibv_mr *mr = ibv_reg_mr(p.pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    struct ibv_mw *one = ibv_alloc_mw(p.pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(p.pd, IBV_MW_TYPE_2);
    MUST(mr != NULL && one != NULL && two != NULL);
    NULL_WITH(EINVAL, ibv_alloc_mw(p.pd, 3));
    NULL_WITH(EINVAL, ibv_alloc_mw(p.pd, 0));

    struct ibv_mw_bind bind = {.wr_id = 3, .send_flags = IBV_SEND_SIGNALED, .bind_info = {.mr = mr,
        .addr = (uintptr_t)bytes + 64, .length = 128, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}};
    struct ibv_mw_bind wrong = bind;
    wrong.bind_info.length = sizeof bytes;
    RETURNS(EINVAL, ibv_bind_mw(p.qp[1], one, &wrong));
    wrong = bind;
    wrong.bind_info.mr = NULL;
    RETURNS(EINVAL, ibv_bind_mw(p.qp[1], one, &wrong));
    RETURNS(EINVAL, ibv_bind_mw(p.qp[1], two, &bind));
    uint32_t old = one->rkey;
    RETURNS(0, ibv_bind_mw(p.qp[1], one, &bind));
    CHECK(one->rkey != old);
    struct ibv_wc wc = await(p.cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 3);
    RETURNS(EBUSY, ibv_dereg_mr(mr));
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) ==
        IBV_REREG_MR_ERR_INPUT);
    memset(p.buffer, 'w', 8);
    CHECK(write_with(&p, one->rkey, (uintptr_t)bytes + 64).status == IBV_WC_SUCCESS);
    CHECK(bytes[64] == 'w' && bytes[63] == 0);
    /* A bind with length 0 and no region closes the window. */
    struct ibv_mw_bind nothing = {.send_flags = IBV_SEND_SIGNALED};
    RETURNS(0, ibv_bind_mw(p.qp[1], one, &nothing));
    CHECK(await(p.cq).status == IBV_WC_SUCCESS);

    /* Type 2: the program chooses the low bits of the key. */
    uint32_t key = (two->rkey & ~0xffu) | 0x42;
    struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .bind_mw = {.mw = two, .rkey = key, .bind_info = bind.bind_info}};
    struct ibv_send_wr of_type_one = wr, *bad = NULL;
    of_type_one.bind_mw.mw = one;
    RETURNS(EINVAL, ibv_post_send(p.qp[1], &of_type_one, &bad));
    CHECK(bad == &of_type_one);
    CHECK(post_and_await(&p, p.qp[1], &wr).status == IBV_WC_SUCCESS);
    CHECK(write_with(&p, key, (uintptr_t)bytes + 64).status == IBV_WC_SUCCESS);
    RETURNS(EBUSY, ibv_dereg_mr(mr));
    RETURNS(EBUSY, ibv_dealloc_pd(p.pd));
    struct ibv_send_wr invalidate = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = key};
    CHECK(post_and_await(&p, p.qp[1], &invalidate).status == IBV_WC_SUCCESS);
    CHECK(write_with(&p, key, (uintptr_t)bytes + 64).status == IBV_WC_REM_ACCESS_ERR);
    RETURNS(0, ibv_dealloc_mw(one));
    RETURNS(0, ibv_dealloc_mw(two));
    RETURNS(0, ibv_dereg_mr(mr));
    pair_close(&p);
}

static void device_memory(struct ibv_context *context, struct ibv_pd *pd) {
    struct ibv_device_attr_ex device;
    MUST(ibv_query_device_ex(context, NULL, &device) == 0);
    CHECK(device.max_dm_size > 0);
    struct ibv_alloc_dm_attr attr = {.length = device.max_dm_size + 1};
    NULL_WITH(EINVAL, ibv_alloc_dm(context, &attr));
    attr = (struct ibv_alloc_dm_attr){.length = 0};
    NULL_WITH(EINVAL, ibv_alloc_dm(context, &attr));
    attr = (struct ibv_alloc_dm_attr){.length = 64, .comp_mask = 1};
    NULL_WITH(EINVAL, ibv_alloc_dm(context, &attr));
    attr = (struct ibv_alloc_dm_attr){.length = 64, .log_align_req = 63};
    NULL_WITH(EINVAL, ibv_alloc_dm(context, &attr));
    attr = (struct ibv_alloc_dm_attr){.length = device.max_dm_size};
    struct ibv_dm *all = ibv_alloc_dm(context, &attr);
    CHECK(all != NULL);
    attr.length = 64;
    NULL_WITH(ENOMEM, ibv_alloc_dm(context, &attr));
    RETURNS(0, ibv_free_dm(all));

    struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
    MUST(dm != NULL);
    char in[64] = "device", out[64] = "";
    RETURNS(0, ibv_memcpy_to_dm(dm, 0, in, sizeof in));
    RETURNS(0, ibv_memcpy_from_dm(out, dm, 0, sizeof out));
    CHECK(memcmp(in, out, sizeof in) == 0);
    RETURNS(EINVAL, ibv_memcpy_to_dm(dm, 4, in, sizeof in));
    RETURNS(EINVAL, ibv_memcpy_from_dm(out, dm, UINT64_MAX - 3, 8));
    RETURNS(EINVAL, ibv_memcpy_to_dm(dm, 0, NULL, 4));
    NULL_WITH(EINVAL, ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE));
    NULL_WITH(EINVAL, ibv_reg_dm_mr(pd, dm, 32, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED));
    struct ibv_mr *mr = ibv_reg_dm_mr(pd, dm, 32, 32, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
    CHECK(mr != NULL && mr->length == 32);
    RETURNS(EBUSY, ibv_free_dm(dm));
    RETURNS(0, ibv_dereg_mr(mr));
    RETURNS(0, ibv_free_dm(dm));
}

static void nowhere(struct ibv_context *context) {
    struct pair p = pair_open(context, 4096);
    struct ibv_mr *null = ibv_alloc_null_mr(p.pd);
    MUST(null != NULL);
    CHECK(null->addr == NULL && null->length == SIZE_MAX);
    memset(p.buffer, 'x', 4096);
    /* Zeros are gathered and written to the buffer. */
    struct ibv_sge zeros = {.addr = 123456, .length = 16, .lkey = null->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &zeros, .num_sge = 1,
        .wr.rdma = {.remote_addr = (uintptr_t)p.buffer, .rkey = p.mr->rkey}};
    CHECK(post_and_await(&p, p.qp[0], &wr).status == IBV_WC_SUCCESS);
    CHECK(p.buffer[0] == 0 && p.buffer[15] == 0 && p.buffer[16] == 'x');
    CHECK(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) != 0);
    RETURNS(0, ibv_dereg_mr(null));
    pair_close(&p);
}

static void on_demand(struct ibv_context *context, struct ibv_pd *pd) {
    char *gone = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(gone != MAP_FAILED);
    struct ibv_mr *mr = ibv_reg_mr(pd, gone, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
    struct ibv_mr *constant = ibv_reg_mr(pd, gone, 8192, IBV_ACCESS_ON_DEMAND);
    struct ibv_mr *everything = ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
    static char here[64];
    struct ibv_mr *pinned = ibv_reg_mr(pd, here, sizeof here, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_pd *other = ibv_alloc_pd(context);
    MUST(mr != NULL && constant != NULL && everything != NULL && pinned != NULL && other != NULL);
    struct ibv_sge sge = {.addr = (uintptr_t)gone, .length = 8192, .lkey = mr->lkey};
    const enum ibv_advise_mr_advice READ = IBV_ADVISE_MR_ADVICE_PREFETCH, WRITE = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    RETURNS(0, ibv_advise_mr(pd, READ, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
    RETURNS(0, ibv_advise_mr(pd, WRITE, 0, &sge, 1));
    RETURNS(ENOTSUP, ibv_advise_mr(pd, 77, 0, &sge, 1));
    RETURNS(EINVAL, ibv_advise_mr(pd, READ, 8, &sge, 1));
    RETURNS(EINVAL, ibv_advise_mr(pd, READ, 0, NULL, 1));
    RETURNS(EINVAL, ibv_advise_mr(pd, READ, 0, &sge, 0));
    RETURNS(EPERM, ibv_advise_mr(other, READ, 0, &sge, 1));
    sge.lkey = constant->lkey;
    RETURNS(EPERM, ibv_advise_mr(pd, WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
    sge.lkey = mr->lkey;
    sge.length = 8193;
    RETURNS(EFAULT, ibv_advise_mr(pd, READ, 0, &sge, 1));
    sge = (struct ibv_sge){.addr = (uintptr_t)here, .length = 8, .lkey = pinned->lkey};
    RETURNS(ENOENT, ibv_advise_mr(pd, READ, 0, &sge, 1));
    sge.lkey = ~pinned->lkey;
    RETURNS(ENOENT, ibv_advise_mr(pd, READ, 0, &sge, 1));
    munmap(gone, 8192);
    sge = (struct ibv_sge){.addr = (uintptr_t)gone, .length = 8192, .lkey = everything->lkey};
    RETURNS(EFAULT, ibv_advise_mr(pd, READ, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
    /* Without FLUSH it is only advice, so there is no error to report. */
    RETURNS(0, ibv_advise_mr(pd, READ, 0, &sge, 1));
    RETURNS(0, ibv_dereg_mr(mr));
    RETURNS(0, ibv_dereg_mr(constant));
    RETURNS(0, ibv_dereg_mr(everything));
    RETURNS(0, ibv_dereg_mr(pinned));
    RETURNS(0, ibv_dealloc_pd(other));
}

/* A failed re-registration leaves the region unchanged. */
static void again(struct ibv_pd *pd) {
    static char bytes[64], others[128];
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr != NULL);
    uint32_t lkey = mr->lkey;
    CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)4096, 64, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(errno == EFAULT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) ==
        IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(mr->addr == bytes && mr->length == sizeof bytes && mr->lkey == lkey && mr->pd == pd);
    RETURNS(0, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, others, sizeof others, 0));
    CHECK(mr->addr == others && mr->length == sizeof others);
    RETURNS(0, ibv_dereg_mr(mr));
}

/* An ATOMIC WRITE of eight bytes with ibv_post_send: from registered memory, and inline. */
static void atomic_write(struct ibv_context *context) {
    struct pair p = pair_open(context, 4096);
    struct ibv_sge sge = {.addr = (uintptr_t)p.buffer, .length = 8, .lkey = p.mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_ATOMIC_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = {.remote_addr = (uintptr_t)p.buffer + 64, .rkey = p.mr->rkey}}, *bad;
    memcpy(p.buffer, "8 bytes!", 8);
    struct ibv_wc wc = post_and_await(&p, p.qp[0], &wr);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_ATOMIC_WRITE);
    CHECK(memcmp(p.buffer + 64, "8 bytes!", 8) == 0);
    sge.length = 7;
    RETURNS(EINVAL, ibv_post_send(p.qp[0], &wr, &bad));
    CHECK(bad == &wr);
    char inlined[] = "inlined.";
    sge = (struct ibv_sge){.addr = (uintptr_t)inlined, .length = 8};
    RETURNS(EFAULT, ibv_post_send(p.qp[0], &wr, &bad));
    wr.send_flags = IBV_SEND_INLINE;
    CHECK(post_and_await(&p, p.qp[0], &wr).status == IBV_WC_SUCCESS);
    CHECK(memcmp(p.buffer + 64, "inlined.", 8) == 0);
    wr.wr.rdma.remote_addr++;
    CHECK(post_and_await(&p, p.qp[0], &wr).status != IBV_WC_SUCCESS);
    pair_close(&p);
}

int main(void) {
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    MUST(pd != NULL);
    windows(context);
    device_memory(context, pd);
    nowhere(context);
    on_demand(context, pd);
    again(pd);
    atomic_write(context);
    RETURNS(0, ibv_dealloc_pd(pd));
    RETURNS(0, ibv_close_device(context));
    return verdict();
}
