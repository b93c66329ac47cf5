/* Sequential WRITEs of 8 bytes from one queue pair to another of the same process. Prints the nanoseconds from post to
 * completion, on average over argv[1] WRITEs. The same as crates/ferroce/examples/self_write.rs, to measure the cost of the
 * boundary between C and Rust. */
#include "pair.h"
#include <time.h>

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    MUST(argc == 2);
    long count = strtol(argv[1], NULL, 0);
    MUST(count > 0);
    struct ibv_context *context = open_first();
    struct pair p = pair_open(context, 8192);
    for (long i = 0; i < 1000; i++)
        MUST(pair_write(&p, 0, 0, 4096, 8) == IBV_WC_SUCCESS);
    double start = now_ns();
    for (long i = 0; i < count; i++)
        MUST(pair_write(&p, 0, 0, 4096, 8) == IBV_WC_SUCCESS);
    printf("%.1f\n", (now_ns() - start) / (double)count);
    pair_close(&p);
    CHECK(ibv_close_device(context) == 0);
    return failures != 0;
}
