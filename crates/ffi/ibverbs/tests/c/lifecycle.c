/* The library under stress: opened twice, used by many threads, used by a child after a fork. */
#include "pair.h"
#include <pthread.h>
#include <sys/wait.h>

#define THREADS 4
#define ROUNDS 200

static void *traffic(void *context) {
    struct pair p = pair_open(context, 8192);
    for (int i = 0; i < ROUNDS; i++) {
        p.buffer[0] = (char)i;
        CHECK(pair_write(&p, i & 1, 0, 4096, 64) == IBV_WC_SUCCESS);
        CHECK(p.buffer[4096] == (char)i);
    }
    pair_close(&p);
    return NULL;
}

static void threads(struct ibv_context *one, struct ibv_context *two) {
    pthread_t workers[THREADS];
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&workers[i], NULL, traffic, i & 1 ? one : two) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i], NULL);
}

/* A child that opens the device gets its own NIC. The NIC of the parent keeps working. */
static void child(struct ibv_context *parents) {
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        failures = 0;
        struct ibv_context *own = open_first();
        traffic(own);
        CHECK(ibv_close_device(own) == 0);
        _exit(failures != 0);
    }
    traffic(parents);
    int status = 0;
    MUST(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    MUST(ibv_fork_init() == 0);
    CHECK(ibv_is_fork_initialized() != IBV_FORK_DISABLED);
    struct ibv_context *one = open_first(), *two = open_first();
    CHECK(one != two && one->async_fd != two->async_fd);
    threads(one, two);
    child(one);
    CHECK(ibv_close_device(one) == 0);
    /* The other context is not affected. */
    traffic(two);
    CHECK(ibv_close_device(two) == 0);
    struct ibv_context *again = open_first();
    traffic(again);
    CHECK(ibv_close_device(again) == 0);
    return verdict();
}
