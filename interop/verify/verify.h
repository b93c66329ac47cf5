/* A program that moves bytes with plain libibverbs and checks every one of them.
 *
 * The same source runs at both ends: against rdma-core and a kernel device, and against ferroce's library. Both ends get
 * the same options; the end that is given a host name is the requester. A TCP connection carries nothing but
 * addresses and barriers. Queue pairs of iWARP are connected by librdmacm, all others by hand.
 */
#ifndef VERIFY_H
#define VERIFY_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_QPS = 16, MAX_SIZES = 32, GUARD = 64, GRH = 40, QKEY = 0x11223344 };

struct options {
    const char *device, *host, *address, *transport, *operations, *refusal;
    int port, gid_index, mtu, qps, rounds, slots, timeout, retries, rnr_retries;
    bool srq, events, inlined;
    uint32_t seed;
    int size_count;
    size_t sizes[MAX_SIZES];
};

/* What an end tells the other about itself. */
struct card {
    union ibv_gid gid;
    uint64_t addr;
    uint32_t rkey, psn, qpn[MAX_QPS];
};

struct end {
    struct options *options;
    bool requester;
    /* The end of the connection was taken from librdmacm, which would wait for it in rdma_disconnect. */
    bool ended;
    int control;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp[MAX_QPS];
    struct rdma_cm_id *listener, *id[MAX_QPS];
    struct ibv_ah *ah;
    struct ibv_mr *mr;
    uint8_t *memory;
    size_t memory_len;
    uint32_t inline_len;
    struct card mine, theirs;
};

/* control.c */
int control_open(const struct options *options);
void control_exchange(int control, const void *mine, void *theirs, size_t len);
void control_barrier(int control);

/* queue.c */
enum ibv_qp_type transport_of(const char *name);
void end_open(struct end *end, size_t memory_len, int access);
void end_connect(struct end *end);
void end_close(struct end *end);
/* One completion, or false after the time limit. */
bool completion(struct end *end, struct ibv_cq *cq, struct ibv_wc *wc, int limit_ms);

/* cm.c */
bool is_iwarp(const struct end *end);
void cm_open(struct end *end);
void cm_connect(struct end *end, struct ibv_qp_init_attr *init);
void cm_close(struct end *end);

/* transfer.c */
int transfer_all(struct end *end);

/* refuse.c */
int refuse_one(struct end *end);

void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
int64_t now_ms(void);

#endif
