/* A CUDA driver without a GPU. Its device memory cannot be read or written at its addresses, so a plain access faults. A copy
 * happens only when its stream is synchronised, and only in the primary context on a non-blocking stream. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400,
    ILLEGAL_ADDRESS = 700 };

static struct range {
    char *start, *backing;
    size_t size;
} ranges[64];
static struct copy {
    char *to;
    const char *from;
    size_t size;
} queued[1024];
static int queued_count, copies_until_failure = -1;
static long copies;
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

int cuMemAlloc_v2(uint64_t *at, size_t size) {
    int fd = memfd_create("gpu", 0);
    if (fd < 0 || ftruncate(fd, size) != 0)
        return OUT_OF_MEMORY;
    struct range range = {.size = size, .start = mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0),
        .backing = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)};
    close(fd);
    if (range.start == MAP_FAILED || range.backing == MAP_FAILED)
        return OUT_OF_MEMORY;
    *at = (uint64_t)range.start;
    return keep(range);
}

int cuMemHostRegister_v2(void *at, size_t size, unsigned flags) {
    return flags != 0 ? INVALID_VALUE : keep((struct range){.start = at, .size = size});
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

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &primary_context;
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

int cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return SUCCESS;
}

int cuStreamCreate(void **created, unsigned flags) {
    *created = &stream;
    return depth == 0 ? INVALID_CONTEXT : flags != 1 ? INVALID_VALUE : SUCCESS;
}

static int enqueue(uint64_t device, size_t size, void *on, struct copy copy) {
    if (depth == 0 || capture_mode != 2)
        return INVALID_CONTEXT;
    if (on != &stream)
        return INVALID_HANDLE;
    struct range *range = find(device);
    if (range == NULL || range->backing == NULL || device - (uint64_t)range->start + size > range->size)
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

int cuStreamSynchronize(void *on) {
    if (depth == 0)
        return INVALID_CONTEXT;
    if (on != &stream)
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < queued_count; i++)
        memcpy(queued[i].to, queued[i].from, queued[i].size);
    queued_count = 0;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* What the program under test does itself, outside of all streams. */
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
    memcpy(backing(to), from, size);
    return SUCCESS;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    memcpy(to, backing(from), size);
    return SUCCESS;
}

/* For the test: all copies fail from the `n`th on; none if `n` is negative. */
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

/* For the test: contexts that this thread has left current, and whether its capture mode has changed. */
int fake_left_behind(void) {
    return depth + capture_mode;
}
