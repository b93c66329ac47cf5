/* Memory of a GPU as a memory region, with the driver library that argv[1] names: a real one, or fake_cuda.c. An access to the fake's
 * device memory without the driver ends the program. */
#include "pair.h"
#include <dlfcn.h>
#include <sys/mman.h>

#define SIZE (1 << 20)
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

static int (*cuMemAlloc)(uint64_t *, size_t);
static int (*cuMemHostRegister)(void *, size_t, unsigned);
static int (*cuMemcpyHtoD)(uint64_t, const void *, size_t);
static int (*cuMemcpyDtoH)(void *, uint64_t, size_t);
static int (*cuCtxPushCurrent)(void *);
static int (*cuCtxPopCurrent)(void **);
static void *context;
/* Functions of the fake driver only. */
static void (*fail_from)(int);
static long (*copies)(void);
static int (*left_behind)(void);

static void load_driver(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    MUST(library != NULL);
    int (*init)(unsigned), (*get)(int *, int), (*retain)(void **, int), device;
    MUST((*(void **)&init = dlsym(library, "cuInit")) != NULL);
    MUST((*(void **)&get = dlsym(library, "cuDeviceGet")) != NULL);
    MUST((*(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain")) != NULL);
    MUST((*(void **)&cuMemAlloc = dlsym(library, "cuMemAlloc_v2")) != NULL);
    MUST((*(void **)&cuMemHostRegister = dlsym(library, "cuMemHostRegister_v2")) != NULL);
    MUST((*(void **)&cuMemcpyHtoD = dlsym(library, "cuMemcpyHtoD_v2")) != NULL);
    MUST((*(void **)&cuMemcpyDtoH = dlsym(library, "cuMemcpyDtoH_v2")) != NULL);
    MUST((*(void **)&cuCtxPushCurrent = dlsym(library, "cuCtxPushCurrent_v2")) != NULL);
    MUST((*(void **)&cuCtxPopCurrent = dlsym(library, "cuCtxPopCurrent_v2")) != NULL);
    *(void **)&fail_from = dlsym(library, "fake_fail_from");
    *(void **)&copies = dlsym(library, "fake_copies");
    *(void **)&left_behind = dlsym(library, "fake_left_behind");
    MUST(init(0) == 0 && get(&device, 0) == 0 && retain(&context, device) == 0);
}

/* The context is current only during calls of the test itself. */
#define IN_CONTEXT(call)                                                                          \
    do {                                                                                          \
        void *popped_;                                                                            \
        MUST(cuCtxPushCurrent(context) == 0 && (call) == 0 && cuCtxPopCurrent(&popped_) == 0);    \
    } while (0)

struct memory {
    uint64_t at;
    struct ibv_mr *mr;
    int is_gpu;
};

static struct memory host(struct pair *p) {
    return (struct memory){(uintptr_t)p->buffer, p->mr, 0};
}

static void put(struct memory *memory, size_t offset, const void *from, size_t len) {
    if (memory->is_gpu)
        IN_CONTEXT(cuMemcpyHtoD(memory->at + offset, from, len));
    else
        memcpy((char *)memory->at + offset, from, len);
}

static void get(struct memory *memory, size_t offset, void *to, size_t len) {
    if (memory->is_gpu)
        IN_CONTEXT(cuMemcpyDtoH(to, memory->at + offset, len));
    else
        memcpy(to, (char *)memory->at + offset, len);
}

static void fill(struct memory *memory, unsigned seed) {
    static char bytes[SIZE];
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (char)((seed = seed * 1664525 + 1013904223) >> 24);
    put(memory, 0, bytes, SIZE);
}

/* Whether the bytes are equal and those after them differ: then the copy did not exceed the range. */
static int equal(struct memory *a, struct memory *b, size_t offset, size_t len) {
    static char of_a[SIZE], of_b[SIZE];
    get(a, 0, of_a, SIZE);
    get(b, 0, of_b, SIZE);
    size_t end = offset + len;
    int ends = end == SIZE || memcmp(of_a + end, of_b + end, SIZE - end) != 0;
    return memcmp(of_a + offset, of_b + offset, len) == 0 && ends;
}

static uint64_t word(struct memory *memory, size_t offset) {
    uint64_t value;
    get(memory, offset, &value, sizeof value);
    return value;
}

/* Posts one operation on `len` bytes at `offset` of both memories, and waits for its completion. */
static enum ibv_wc_status operate(struct pair *p, enum ibv_wr_opcode opcode, struct memory *near, struct memory *far,
                                  size_t offset, uint32_t len) {
    struct ibv_sge sge = {.addr = near->at + offset, .length = len, .lkey = near->mr->lkey};
    struct ibv_send_wr wr = {.opcode = opcode, .sg_list = &sge, .num_sge = 1, .wr_id = 1}, *bad;
    switch (opcode) {
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        wr.wr.atomic.remote_addr = far->at + offset;
        wr.wr.atomic.rkey = far->mr->rkey;
        wr.wr.atomic.compare_add = 7;
        wr.wr.atomic.swap = 1000;
        break;
    default:
        wr.wr.rdma.remote_addr = far->at + offset;
        wr.wr.rdma.rkey = far->mr->rkey;
    }
    MUST(ibv_post_send(p->qp[0], &wr, &bad) == 0);
    return await(p->cq).status;
}

static void one_sided(struct pair *p, struct memory *near, struct memory *far) {
    static const uint32_t lengths[] = {1, 8, 100, 1024, 4097, 70000, SIZE - 64};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint32_t len = lengths[i];
        fill(near, len);
        fill(far, len + 1);
        CHECK(operate(p, IBV_WR_RDMA_WRITE, near, far, 33, len) == IBV_WC_SUCCESS);
        CHECK(equal(near, far, 33, len));
        fill(far, len + 2);
        CHECK(operate(p, IBV_WR_RDMA_READ, near, far, 33, len) == IBV_WC_SUCCESS);
        CHECK(equal(near, far, 33, len));
    }
}

static void messages(struct pair *p, struct memory *near, struct memory *far) {
    static const uint32_t lengths[] = {0, 64, 5000, SIZE};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint32_t len = lengths[i], half = len / 2;
        fill(near, 3);
        fill(far, 4);
        /* The message is gathered from two pieces and scattered to two. */
        struct ibv_sge to[2] = {{far->at, half, far->mr->lkey}, {far->at + half, SIZE - half, far->mr->lkey}};
        struct ibv_recv_wr recv = {.wr_id = 2, .sg_list = to, .num_sge = 2}, *bad_recv;
        MUST(ibv_post_recv(p->qp[1], &recv, &bad_recv) == 0);
        struct ibv_sge from[2] = {{near->at, len / 3, near->mr->lkey}, {near->at + len / 3, len - len / 3, near->mr->lkey}};
        struct ibv_send_wr send = {.wr_id = 1, .opcode = IBV_WR_SEND, .sg_list = from, .num_sge = 2}, *bad;
        MUST(ibv_post_send(p->qp[0], &send, &bad) == 0);
        for (int got = 0; got < 2; got++) {
            struct ibv_wc wc = await(p->cq);
            CHECK(wc.status == IBV_WC_SUCCESS && (wc.wr_id != 2 || wc.byte_len == len));
        }
        CHECK(equal(near, far, 0, len));
    }
}

static void atomics(struct pair *p, struct memory *near, struct memory *far) {
    put(far, 64, &(uint64_t){0}, 8);
    for (uint64_t i = 1; i <= 20; i++) {
        CHECK(operate(p, IBV_WR_ATOMIC_FETCH_AND_ADD, near, far, 64, 8) == IBV_WC_SUCCESS);
        CHECK(word(near, 64) == 7 * (i - 1) && word(far, 64) == 7 * i);
    }
    CHECK(operate(p, IBV_WR_ATOMIC_CMP_AND_SWP, near, far, 64, 8) == IBV_WC_SUCCESS);
    CHECK(word(near, 64) == 140 && word(far, 64) == 140);
    put(far, 64, &(uint64_t){7}, 8);
    CHECK(operate(p, IBV_WR_ATOMIC_CMP_AND_SWP, near, far, 64, 8) == IBV_WC_SUCCESS);
    CHECK(word(near, 64) == 7 && word(far, 64) == 1000);
}

/* If the driver refuses a copy, the operation fails, and its status shows at which end. */
static void failures_of_the_driver(struct ibv_context *device, uint64_t gpu) {
    for (int is_far = 0; is_far < 2; is_far++) {
        struct pair p = pair_open(device, SIZE);
        struct memory on_host = host(&p), on_gpu = {gpu, ibv_reg_mr(p.pd, (void *)gpu, SIZE, ALL), 1};
        MUST(on_gpu.mr != NULL);
        fail_from(0);
        struct memory *near = is_far ? &on_host : &on_gpu, *far = is_far ? &on_gpu : &on_host;
        enum ibv_wc_status expected = is_far ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR;
        enum ibv_wc_status status = operate(&p, IBV_WR_RDMA_WRITE, near, far, 0, 4096);
        if (status != expected)
            fprintf(stderr, "%s instead of %s\n", ibv_wc_status_str(status), ibv_wc_status_str(expected));
        CHECK(status == expected);
        fail_from(-1);
        RETURNS(0, ibv_dereg_mr(on_gpu.mr));
        pair_close(&p);
    }
}

/* Whether the pages at an address lie in a memfd of the library. */
static int in_memfd(void *at) {
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps != NULL);
    char line[512];
    int found = 0;
    while (fgets(line, sizeof line, maps) != NULL) {
        uintptr_t start, end;
        MUST(sscanf(line, "%lx-%lx", &start, &end) == 2);
        found |= start <= (uintptr_t)at && (uintptr_t)at < end && strstr(line, "memfd:ferroce") != NULL;
    }
    fclose(maps);
    return found;
}

/* Pages that the driver has pinned are not moved: the GPU would continue to use the old ones. */
static void pinned_pages_stay(struct pair *p) {
    char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    /* A page in the middle. */
    IN_CONTEXT(cuMemHostRegister(memory + SIZE / 2, 4096, 0));
    struct memory near = host(p), pinned = {(uintptr_t)memory, ibv_reg_mr(p->pd, memory, SIZE, ALL), 0};
    MUST(pinned.mr != NULL);
    CHECK(!in_memfd(memory));
    one_sided(p, &near, &pinned);
    RETURNS(0, ibv_dereg_mr(pinned.mr));
}

int main(int argc, char **argv) {
    MUST(argc == 2);
    struct ibv_context *device = open_first();
    struct pair p = pair_open(device, SIZE);
    struct memory on_host = host(&p);
    NULL_WITH(EOPNOTSUPP, ibv_reg_dmabuf_mr(p.pd, 0, 4096, 0, -1, ALL));
    load_driver(argv[1]);
    uint64_t gpu[2];
    for (int i = 0; i < 2; i++)
        IN_CONTEXT(cuMemAlloc(&gpu[i], SIZE));
    /* Any open descriptor is accepted: the address identifies the memory. */
    int fd = dup(2);
    NULL_WITH(EBADF, ibv_reg_dmabuf_mr(p.pd, 0, SIZE, gpu[1], -1, ALL));
    NULL_WITH(EINVAL, ibv_reg_dmabuf_mr(p.pd, 0, SIZE, (uintptr_t)p.buffer, fd, ALL));
    struct memory a = {gpu[0], ibv_reg_mr(p.pd, (void *)gpu[0], SIZE, ALL), 1};
    struct memory b = {gpu[1], ibv_reg_dmabuf_mr(p.pd, 0, SIZE, gpu[1], fd, ALL), 1};
    MUST(a.mr != NULL && b.mr != NULL);
    struct memory *pairs[][2] = {{&a, &b}, {&on_host, &b}, {&a, &on_host}};
    for (int i = 0; i < 3; i++) {
        long before = copies ? copies() : 0;
        one_sided(&p, pairs[i][0], pairs[i][1]);
        messages(&p, pairs[i][0], pairs[i][1]);
        atomics(&p, pairs[i][0], pairs[i][1]);
        CHECK(!copies || copies() > before);
    }
    pinned_pages_stay(&p);
    RETURNS(0, ibv_dereg_mr(a.mr));
    RETURNS(0, ibv_dereg_mr(b.mr));
    pair_close(&p);
    if (fail_from)
        failures_of_the_driver(device, gpu[0]);
    CHECK(!left_behind || left_behind() == 0);
    CHECK(ibv_close_device(device) == 0);
    return verdict();
}
