/* Pure functions must return the same results as those of rdma-core, for every argument in use. The program also loads the library of
 * rdma-core, by its path (argv[1]). */
#define _GNU_SOURCE
#include "pair.h"
#include <dlfcn.h>

static void *real;

static void *symbol(const char *name) {
    void *found = dlsym(real, name);
    MUST(found != NULL);
    MUST(found != dlsym(RTLD_DEFAULT, name));
    return found;
}

static void numbers(const char *name, int (*ours)(int), int from, int to) {
    int (*theirs)(int) = (int (*)(int))symbol(name);
    for (int i = from; i <= to; i++) {
        if (ours(i) != theirs(i)) {
            fprintf(stderr, "%s(%d) is %d, the real one says %d\n", name, i, ours(i), theirs(i));
            failures++;
        }
    }
}

static void texts(const char *name, const char *(*ours)(int), int from, int to) {
    const char *(*theirs)(int) = (const char *(*)(int))symbol(name);
    for (int i = from; i <= to; i++) {
        const char *a = ours(i), *b = theirs(i);
        if (strcmp(a, b) != 0) {
            fprintf(stderr, "%s(%d) is \"%s\", the real one says \"%s\"\n", name, i, a, b);
            failures++;
        }
    }
}

static int rate_to_mult(int rate) { return ibv_rate_to_mult((enum ibv_rate)rate); }
static int mult_to_rate(int mult) { return (int)mult_to_ibv_rate(mult); }
static int rate_to_mbps(int rate) { return ibv_rate_to_mbps((enum ibv_rate)rate); }
static int mbps_to_rate(int mbps) { return (int)mbps_to_ibv_rate(mbps); }
static const char *wc_status(int code) { return ibv_wc_status_str((enum ibv_wc_status)code); }
static const char *event_type(int code) { return ibv_event_type_str((enum ibv_event_type)code); }
static const char *node_type(int code) { return ibv_node_type_str((enum ibv_node_type)code); }
static const char *port_state(int code) { return ibv_port_state_str((enum ibv_port_state)code); }

int main(int argc, char **argv) {
    MUST(argc == 2);
    real = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (real == NULL)
        fprintf(stderr, "%s\n", dlerror());
    MUST(real != NULL);
    numbers("ibv_rate_to_mult", rate_to_mult, 0, 64);
    numbers("mult_to_ibv_rate", mult_to_rate, -1, 1000);
    numbers("ibv_rate_to_mbps", rate_to_mbps, 0, 64);
    numbers("mbps_to_ibv_rate", mbps_to_rate, -1, 1300000);
    texts("ibv_wc_status_str", wc_status, 0, 40);
    texts("ibv_event_type_str", event_type, 0, 30);
    texts("ibv_node_type_str", node_type, 1, 12);
    texts("ibv_port_state_str", port_state, 0, 10);
    return verdict();
}
