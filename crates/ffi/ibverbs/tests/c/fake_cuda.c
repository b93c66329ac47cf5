/* A CUDA driver without a GPU. Its device memory is not accessible at its addresses, so a plain access faults. A copy is executed
 * only when a thread waits for it, and only in the primary context on a non-blocking stream. Other processes can open its device
 * memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400,
    ILLEGAL_ADDRESS = 700 };

/* The IPC handle that another process opens. */
struct handle {
    uint64_t magic, process, fd, size, inode, unused[3];
};
#define MAGIC 0x64756361656b6166
static struct range {
    char *start, *backing;
    size_t size;
    struct handle handle; /* of an allocation */
    int opened; /* how often this process opened it, if it is an allocation of another process */
    int is_vmm; /* allocated as by cuMemCreate */
} ranges[64];
static struct copy {
    char *to;
    const char *from;
    size_t size;
} queued[1024];
static int allocates_vmm;
static int queued_count, copies_until_failure = -1, contexts;
static long copies, waits, done; /* `done` counts the copies that have happened */
static struct event {
    long behind; /* copies before it */
} events[64];
static int event_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char primary_context, stream;
static __thread void *current[16];
static __thread int depth, capture_mode;

/* The range that an address is in. Host memory that was pinned has no backing. */
static struct range *find(uint64_t at) {
    for (int i = 0; i < 64; i++)
        if (ranges[i].start != NULL && at - (uint64_t)ranges[i].start < ranges[i].size)
            return &ranges[i];
    return NULL;
}

static int keep(struct range range) {
    for (int i = 0; i < 64; i++)
        if (ranges[i].start == NULL) {
            ranges[i] = range;
            return SUCCESS;
        }
    return OUT_OF_MEMORY;
}

static int keep_file(uint64_t *at, int fd, struct handle handle) {
    size_t size = handle.size;
    struct range range = {.size = size, .start = mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0),
        .backing = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), .handle = handle, .is_vmm = allocates_vmm};
    if (range.start == MAP_FAILED || range.backing == MAP_FAILED)
        return OUT_OF_MEMORY;
    *at = (uint64_t)range.start;
    return keep(range);
}

int cuMemAlloc_v2(uint64_t *at, size_t size) {
    int fd = memfd_create("gpu", 0);
    if (fd < 0 || ftruncate(fd, size) != 0)
        return OUT_OF_MEMORY;
    struct stat about;
    fstat(fd, &about);
    struct handle handle = {.magic = MAGIC, .process = getpid(), .fd = fd, .size = size, .inode = about.st_ino};
    return keep_file(at, fd, handle);
}

static void forget(struct range *range) {
    munmap(range->start, range->size);
    munmap(range->backing, range->size);
    range->start = NULL;
}

int cuMemFree_v2(uint64_t at) {
    struct range *range = find(at);
    if (range == NULL || (uint64_t)range->start != at)
        return INVALID_VALUE;
    if (range->opened > 0)
        return INVALID_VALUE;
    close(range->handle.fd);
    forget(range);
    return SUCCESS;
}

int cuMemGetAddressRange_v2(uint64_t *start, size_t *size, uint64_t at) {
    struct range *range = find(at);
    if (depth == 0 || range == NULL || range->backing == NULL)
        return depth == 0 ? INVALID_CONTEXT : INVALID_VALUE;
    *start = (uint64_t)range->start;
    *size = range->size;
    return SUCCESS;
}

static int exports_fail, opens_fail, opens;

int cuIpcGetMemHandle(struct handle *handle, uint64_t at) {
    struct range *range = find(at);
    int is_own = range != NULL && range->backing != NULL && range->opened == 0 && !range->is_vmm;
    if (depth == 0 || exports_fail || !is_own || (uint64_t)range->start != at)
        return depth == 0 ? INVALID_CONTEXT : INVALID_VALUE;
    *handle = range->handle;
    return SUCCESS;
}

int cuIpcOpenMemHandle_v2(uint64_t *at, struct handle handle, unsigned flags) {
    if (depth == 0 || handle.process == (uint64_t)getpid())
        return INVALID_CONTEXT;
    if (flags != 1 || opens_fail || handle.magic != MAGIC)
        return INVALID_VALUE;
    for (int i = 0; i < 64; i++)
        if (ranges[i].start != NULL && ranges[i].opened > 0 && memcmp(&ranges[i].handle, &handle, sizeof handle) == 0) {
            ranges[i].opened++;
            *at = (uint64_t)ranges[i].start;
            return SUCCESS;
        }
    char path[64];
    snprintf(path, sizeof path, "/proc/%lu/fd/%lu", (unsigned long)handle.process, (unsigned long)handle.fd);
    int fd = open(path, O_RDWR);
    struct stat about;
    int is_it = fd >= 0 && fstat(fd, &about) == 0 && about.st_ino == handle.inode;
    int status = is_it ? keep_file(at, fd, handle) : INVALID_VALUE;
    if (fd >= 0)
        close(fd);
    if (status == SUCCESS) {
        find(*at)->opened = 1;
        opens++;
    }
    return status;
}

int cuIpcCloseMemHandle(uint64_t at) {
    struct range *range = find(at);
    if (depth == 0 || range == NULL || (uint64_t)range->start != at || range->opened == 0)
        return depth == 0 ? INVALID_CONTEXT : INVALID_VALUE;
    if (--range->opened == 0)
        forget(range);
    return SUCCESS;
}

int cuMemRetainAllocationHandle(uint64_t *handle, void *at) {
    struct range *range = find((uint64_t)at);
    *handle = range == NULL ? 0 : range->handle.fd;
    return range != NULL && range->is_vmm ? SUCCESS : INVALID_VALUE;
}

int cuMemExportToShareableHandle(int *fd, uint64_t handle, int type, uint64_t flags) {
    if (exports_fail || type != 1 || flags != 0)
        return INVALID_VALUE;
    *fd = dup(handle);
    return SUCCESS;
}

/* A handle is a descriptor. This bit marks a handle whose release closes it. */
#define IMPORTED (1UL << 32)

int cuMemImportFromShareableHandle(uint64_t *handle, void *fd, int type) {
    struct stat about;
    if (depth == 0 || opens_fail || type != 1 || fstat((intptr_t)fd, &about) != 0 || !S_ISREG(about.st_mode))
        return INVALID_VALUE;
    *handle = dup((intptr_t)fd) | IMPORTED;
    return SUCCESS;
}

int cuMemRelease(uint64_t handle) {
    if (handle & IMPORTED)
        close(handle & ~IMPORTED);
    return SUCCESS;
}

int cuMemAddressReserve(uint64_t *at, size_t size, size_t alignment, uint64_t wanted, uint64_t flags) {
    if (size == 0 || alignment != 0 || wanted != 0 || flags != 0)
        return INVALID_VALUE;
    char *start = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *at = (uint64_t)start;
    return start == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}

int cuMemAddressFree(uint64_t at, size_t size) {
    return munmap((void *)at, size) == 0 ? SUCCESS : INVALID_VALUE;
}

int cuMemMap(uint64_t at, size_t size, size_t offset, uint64_t handle, uint64_t flags) {
    int fd = handle & ~IMPORTED;
    struct stat about;
    if (flags != 0 || offset != 0 || fstat(fd, &about) != 0 || (size_t)about.st_size < size)
        return INVALID_VALUE;
    opens++;
    return keep((struct range){.start = (char *)at, .size = size, .opened = 1, .is_vmm = 1,
        .backing = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)});
}

int cuMemUnmap(uint64_t at, size_t size) {
    struct range *range = find(at);
    if (range == NULL || !range->is_vmm || range->size != size)
        return INVALID_VALUE;
    munmap(range->backing, size);
    range->start = NULL;
    return SUCCESS;
}

int cuMemSetAccess(uint64_t at, size_t size, const int access[3], size_t count) {
    struct range *range = find(at);
    int is_right = range != NULL && range->size == size && count == 1 && access[0] == 1 && access[1] == 0 && access[2] == 3;
    return is_right ? SUCCESS : INVALID_VALUE;
}

int cuMemHostRegister_v2(void *at, size_t size, unsigned flags) {
    return flags > 1 ? INVALID_VALUE : keep((struct range){.start = at, .size = size});
}

int cuPointerGetAttribute(void *out, int attribute, uint64_t at) {
    struct range *range = find(at);
    if (range == NULL)
        return INVALID_VALUE;
    switch (attribute) {
    case 2: /* memory type */
        *(int *)out = range->backing != NULL ? 2 : 1;
        return SUCCESS;
    case 8: /* is managed: one byte */
        *(char *)out = 0;
        return SUCCESS;
    case 9: /* device */
        *(int *)out = 0;
        return SUCCESS;
    case 18: /* size of the mapping */
        *(size_t *)out = range->size;
        return SUCCESS;
    case 19: /* its first byte */
        *(uint64_t *)out = (uint64_t)range->start;
        return SUCCESS;
    default:
        return INVALID_VALUE;
    }
}

int cuInit(unsigned flags) {
    return flags == 0 ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetCount(int *count) {
    *count = 1;
    return SUCCESS;
}

int cuDeviceGetUuid_v2(char uuid[16], int device) {
    memcpy(uuid, "GPU of the tests", 16);
    return device == 0 ? SUCCESS : INVALID_DEVICE;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = contexts > 0;
    return device == 0 ? SUCCESS : INVALID_DEVICE;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &primary_context;
    contexts += device == 0;
    return device == 0 ? SUCCESS : INVALID_DEVICE;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    contexts -= device == 0;
    return device == 0 ? SUCCESS : INVALID_DEVICE;
}

int cuCtxPushCurrent_v2(void *context) {
    if (depth == 16 || context != &primary_context)
        return INVALID_CONTEXT;
    current[depth++] = context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context) {
    if (depth == 0)
        return INVALID_CONTEXT;
    *context = current[--depth];
    return SUCCESS;
}

int cuCtxSetCurrent(void *context) {
    depth -= depth > 0;
    return cuCtxPushCurrent_v2(context);
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return SUCCESS;
}

static int streams_fail;

int cuStreamCreate(void **created, unsigned flags) {
    *created = &stream;
    return depth == 0 ? INVALID_CONTEXT : flags != 1 ? INVALID_VALUE : streams_fail ? OUT_OF_MEMORY : SUCCESS;
}

int cuMemHostAlloc(void **at, size_t size, unsigned flags) {
    *at = calloc(1, size);
    return depth == 0 ? INVALID_CONTEXT : flags != 1 ? INVALID_VALUE : *at == NULL ? OUT_OF_MEMORY : SUCCESS;
}

int cuMemFreeHost(void *at) {
    free(at);
    return SUCCESS;
}

int cuEventCreate(void **created, unsigned flags) {
    if (depth == 0 || flags != 2 || event_count == 64)
        return depth == 0 ? INVALID_CONTEXT : INVALID_VALUE;
    *created = &events[event_count++];
    return SUCCESS;
}

static int is_on_device(uint64_t at, size_t size) {
    struct range *range = find(at);
    return range != NULL && range->backing != NULL && at - (uint64_t)range->start + size <= range->size;
}

static int enqueue(uint64_t device, size_t size, void *on, struct copy copy) {
    if (depth == 0 || capture_mode != 2)
        return INVALID_CONTEXT;
    if (on != &stream)
        return INVALID_HANDLE;
    if (!is_on_device(device, size))
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int status = queued_count == 1024 ? OUT_OF_MEMORY : SUCCESS;
    if (copies_until_failure >= 0 && copies_until_failure-- == 0) {
        copies_until_failure = 0;
        status = ILLEGAL_ADDRESS;
    }
    if (status == SUCCESS) {
        queued[queued_count++] = copy;
        copies++;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static char *backing(uint64_t device) {
    struct range *range = find(device);
    return range == NULL || range->backing == NULL ? NULL : range->backing + (device - (uint64_t)range->start);
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *on) {
    return enqueue(to, size, on, (struct copy){backing(to), from, size});
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *on) {
    return enqueue(from, size, on, (struct copy){to, backing(from), size});
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *on) {
    if (!is_on_device(from, size))
        return INVALID_VALUE;
    return enqueue(to, size, on, (struct copy){backing(to), backing(from), size});
}

/* Executes the copies before the one with this number. */
static void run_until(long behind) {
    int count = 0;
    for (; count < queued_count && done < behind; count++, done++)
        memcpy(queued[count].to, queued[count].from, queued[count].size);
    queued_count -= count;
    memmove(queued, queued + count, queued_count * sizeof *queued);
}

int cuStreamSynchronize(void *on) {
    if (depth == 0)
        return INVALID_CONTEXT;
    if (on != &stream)
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    waits++;
    run_until(copies);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int cuEventRecord(struct event *event, void *on) {
    if (depth == 0)
        return INVALID_CONTEXT;
    if (on != &stream)
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    event->behind = copies;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int cuEventSynchronize(struct event *event) {
    if (depth == 0)
        return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    waits++;
    run_until(event->behind);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* Calls of the program under test itself, outside of all streams. */
int cuCtxSynchronize(void) {
    return depth == 0 ? INVALID_CONTEXT : SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
    memcpy(backing(to), from, size);
    return SUCCESS;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    memcpy(to, backing(from), size);
    return SUCCESS;
}

/* For the test: all copies fail from number `n` on, or none if `n` is negative. */
void fake_fail_from(int n) {
    pthread_mutex_lock(&lock);
    copies_until_failure = n;
    pthread_mutex_unlock(&lock);
}

/* For the test: copies so far. */
long fake_copies(void) {
    pthread_mutex_lock(&lock);
    long count = copies;
    pthread_mutex_unlock(&lock);
    return count;
}

/* For the test: waits for copies so far. */
long fake_waits(void) {
    pthread_mutex_lock(&lock);
    long count = waits;
    pthread_mutex_unlock(&lock);
    return count;
}

/* For the test: makes exports of memory fail from now on, and imports of memory by this process. */
void fake_fail_ipc(int fail_exports, int fail_opens) {
    exports_fail = fail_exports;
    opens_fail = fail_opens;
}

/* For the test: sets whether further memory is allocated as by cuMemCreate. */
void fake_allocate_vmm(int is_vmm) {
    allocates_vmm = is_vmm;
}

/* For the test: replaces an allocation by new memory at the same address, as cuMemUnmap, cuMemCreate and cuMemMap do. */
int fake_replace(uint64_t at) {
    struct range *range = find(at);
    int fd = memfd_create("gpu", 0);
    if (range == NULL || fd < 0 || ftruncate(fd, range->size) != 0)
        return OUT_OF_MEMORY;
    mmap(range->start, range->size, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0);
    mmap(range->backing, range->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    dup2(fd, range->handle.fd);
    close(fd);
    return SUCCESS;
}

/* For the test: the number of allocations of other processes that this one has opened so far. */
int fake_opens(void) {
    return opens;
}

/* For the test: the number of those that are open. */
int fake_open_now(void) {
    int count = 0;
    for (int i = 0; i < 64; i++)
        count += ranges[i].start != NULL && ranges[i].opened > 0;
    return count;
}

/* For the test: makes the creation of streams fail. */
void fake_fail_streams(int fail) {
    streams_fail = fail;
}

/* For the test: the reference count of the primary context. */
int fake_contexts(void) {
    return contexts;
}

/* For the test: 0 if this thread has left no context current and its capture mode is unchanged. */
int fake_left_behind(void) {
    return depth + capture_mode;
}
