/* Verbs that the headers of Debian 12 do not have: programs look them up by version. */
#define _GNU_SOURCE
#include "pair.h"
#include <dlfcn.h>

struct mr_init_attr {
    size_t length;
    int access;
    uint64_t comp_mask, iova;
    void *addr;
    int fd;
    uint64_t fd_offset;
    void *dmah, *buf;
};

static void *verb(const char *name, const char *version) {
    void *found = dlvsym(RTLD_DEFAULT, name, version);
    MUST(found != NULL);
    return found;
}

static void port_speed(struct ibv_context *context) {
    int (*query)(struct ibv_context *, uint32_t, uint64_t *) = verb("ibv_query_port_speed", "IBVERBS_1.16");
    uint64_t speed = 0;
    RETURNS(0, query(context, 1, &speed));
    CHECK(speed == 250);
    RETURNS(EINVAL, query(context, 2, &speed));
    RETURNS(EINVAL, query(context, 257, &speed));
    RETURNS(EINVAL, query(context, 1, NULL));
}

static void registrations(struct ibv_pd *pd) {
    struct ibv_mr *(*reg_ex)(struct ibv_pd *, struct mr_init_attr *) = verb("ibv_reg_mr_ex", "IBVERBS_1.15");
    static char bytes[64];
    struct mr_init_attr attr = {.length = sizeof bytes, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = 3, .iova = 0x1000, .addr = bytes};
    struct ibv_mr *mr = reg_ex(pd, &attr);
    MUST(mr != NULL);
    CHECK(mr->addr == bytes && mr->length == sizeof bytes);
    RETURNS(0, ibv_dereg_mr(mr));
    attr.comp_mask = 1;
    NULL_WITH(EINVAL, reg_ex(pd, &attr));
    attr.comp_mask = 2 | 1 << 2;
    NULL_WITH(EOPNOTSUPP, reg_ex(pd, &attr));
    NULL_WITH(EINVAL, reg_ex(pd, NULL));
}

static void buffers(struct ibv_context *context, struct ibv_pd *pd) {
    void *(*alloc)(struct ibv_pd *, size_t, void **) = verb("ibv_alloc_buf", "IBVERBS_1.17");
    void (*release)(void *) = verb("ibv_free_buf", "IBVERBS_1.17");
    struct ibv_mr *(*reg)(struct ibv_pd *, void *, void *, size_t, int) = verb("ibv_reg_buf_mr", "IBVERBS_1.17");
    int (*export_fd)(void *) = verb("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
    void *handle = NULL;
    char *memory = alloc(pd, 10000, &handle);
    MUST(memory != NULL && handle != NULL);
    CHECK((uintptr_t)memory % 4096 == 0);
    memset(memory, 1, 10000);
    CHECK(export_fd(handle) == -1 && errno == ENODATA);
    struct ibv_pd *other = ibv_alloc_pd(context);
    NULL_WITH(EINVAL, reg(other, handle, memory, 10, 0));
    RETURNS(0, ibv_dealloc_pd(other));
    NULL_WITH(EINVAL, reg(pd, handle, memory + 1, 10000, 0));
    struct ibv_mr *mr = reg(pd, handle, memory + 1, 9999, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr != NULL);
    RETURNS(EBUSY, ibv_dealloc_pd(pd));
    RETURNS(0, ibv_dereg_mr(mr));
    release(handle);
    NULL_WITH(EINVAL, alloc(pd, 0, &handle));
    NULL_WITH(EINVAL, alloc(pd, 10, NULL));
}

static void absent_hardware(struct ibv_context *context) {
    void *(*counter)(struct ibv_context *, void *) = verb("ibv_create_comp_cntr", "IBVERBS_1.18");
    void *(*dmah)(struct ibv_context *, void *) = verb("ibv_alloc_dmah", "IBVERBS_1.15");
    int (*caps)(struct ibv_context *, void *, size_t) = verb("_ibv_query_comp_cntr_caps", "IBVERBS_1.18");
    char buffer[64];
    NULL_WITH(EOPNOTSUPP, counter(context, buffer));
    NULL_WITH(EOPNOTSUPP, dmah(context, buffer));
    RETURNS(EOPNOTSUPP, caps(context, buffer, sizeof buffer));
}

int main(void) {
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    MUST(pd != NULL);
    port_speed(context);
    registrations(pd);
    buffers(context, pd);
    absent_hardware(context);
    RETURNS(0, ibv_dealloc_pd(pd));
    RETURNS(0, ibv_close_device(context));
    return verdict();
}
