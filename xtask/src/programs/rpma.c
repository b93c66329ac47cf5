/* Remote memory through librpma: WRITE, flush, atomic WRITE, READ back, compare. `rpma ADDRESS PORT` serves one client, which is
 * `rpma ADDRESS PORT client`. */

#include <inttypes.h>
#include <librpma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE (4u << 20)
#define ROUNDS 8u
/* The last eight bytes are for the atomic WRITE. */
#define BODY (SIZE - 8)
#define FINAL "rpmatest"

static void check(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "%s: %s\n", what, rpma_err_2str(result));
        exit(1);
    }
}

static void fill(unsigned char *bytes, unsigned round)
{
    for (size_t i = 0; i < BODY; i++)
        bytes[i] = (unsigned char)(i * 7 + i / 4096 + round * 31);
}

static void expect(struct rpma_conn *conn, enum rpma_conn_event wanted)
{
    enum rpma_conn_event event;
    check(rpma_conn_next_event(conn, &event), "rpma_conn_next_event");
    if (event != wanted) {
        fprintf(stderr, "got %s instead of %s\n", rpma_utils_conn_event_2str(event), rpma_utils_conn_event_2str(wanted));
        exit(1);
    }
}

/* Waits for the only request that is signalled. */
static void complete(struct rpma_conn *conn, const char *what)
{
    struct rpma_cq *cq;
    struct ibv_wc wc;
    check(rpma_conn_get_cq(conn, &cq), "rpma_conn_get_cq");
    check(rpma_cq_wait(cq), "rpma_cq_wait");
    check(rpma_cq_get_wc(cq, 1, &wc, NULL), "rpma_cq_get_wc");
    if (wc.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "%s: %s\n", what, ibv_wc_status_str(wc.status));
        exit(1);
    }
}

static void serve(struct rpma_peer *peer, const char *address, const char *port, unsigned char *bytes)
{
    struct rpma_ep *ep;
    struct rpma_mr_local *mr;
    struct rpma_conn_req *req;
    struct rpma_conn *conn;
    unsigned char descriptor[64], *expected = malloc(SIZE);
    struct rpma_conn_private_data data = {.ptr = descriptor};
    size_t length;

    int usage = RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY;
    check(rpma_mr_reg(peer, bytes, SIZE, usage, &mr), "rpma_mr_reg");
    check(rpma_mr_get_descriptor_size(mr, &length), "rpma_mr_get_descriptor_size");
    if (length > sizeof descriptor || expected == NULL)
        exit(1);
    check(rpma_mr_get_descriptor(mr, descriptor), "rpma_mr_get_descriptor");
    data.len = (uint8_t)length;
    check(rpma_ep_listen(peer, address, port, &ep), "rpma_ep_listen");
    printf("listening\n");
    fflush(stdout);
    check(rpma_ep_next_conn_req(ep, NULL, &req), "rpma_ep_next_conn_req");
    check(rpma_conn_req_connect(&req, &data, &conn), "rpma_conn_req_connect");
    expect(conn, RPMA_CONN_ESTABLISHED);
    expect(conn, RPMA_CONN_CLOSED);
    fill(expected, ROUNDS - 1);
    if (memcmp(bytes, expected, BODY) != 0 || memcmp(bytes + BODY, FINAL, 8) != 0) {
        fprintf(stderr, "the memory is not what the client wrote\n");
        exit(1);
    }
    free(expected);
    check(rpma_conn_delete(&conn), "rpma_conn_delete");
    check(rpma_ep_shutdown(&ep), "rpma_ep_shutdown");
    check(rpma_mr_dereg(&mr), "rpma_mr_dereg");
}

static void use(struct rpma_peer *peer, const char *address, const char *port, unsigned char *bytes)
{
    struct rpma_mr_local *mr, *back;
    struct rpma_mr_remote *remote;
    struct rpma_conn_req *req;
    struct rpma_conn *conn;
    struct rpma_conn_private_data data;
    unsigned char *copy = aligned_alloc(4096, SIZE);
    static const char final[8] = FINAL;

    if (copy == NULL)
        exit(1);
    check(rpma_mr_reg(peer, bytes, SIZE, RPMA_MR_USAGE_WRITE_SRC, &mr), "rpma_mr_reg");
    check(rpma_mr_reg(peer, copy, SIZE, RPMA_MR_USAGE_READ_DST, &back), "rpma_mr_reg");
    check(rpma_conn_req_new(peer, address, port, NULL, &req), "rpma_conn_req_new");
    check(rpma_conn_req_connect(&req, NULL, &conn), "rpma_conn_req_connect");
    expect(conn, RPMA_CONN_ESTABLISHED);
    check(rpma_conn_get_private_data(conn, &data), "rpma_conn_get_private_data");
    check(rpma_mr_remote_from_descriptor(data.ptr, data.len, &remote), "rpma_mr_remote_from_descriptor");
    for (unsigned round = 0; round < ROUNDS; round++) {
        fill(bytes, round);
        memset(copy, 0, SIZE);
        check(rpma_write(conn, remote, 0, mr, 0, BODY, RPMA_F_COMPLETION_ON_ERROR, NULL), "rpma_write");
        check(rpma_atomic_write(conn, remote, BODY, final, RPMA_F_COMPLETION_ON_ERROR, NULL), "rpma_atomic_write");
        check(rpma_flush(conn, remote, 0, SIZE, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_flush");
        complete(conn, "flush");
        check(rpma_read(conn, back, 0, remote, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_read");
        complete(conn, "read");
        if (memcmp(bytes, copy, BODY) != 0 || memcmp(copy + BODY, final, 8) != 0) {
            fprintf(stderr, "round %u: what was read is not what was written\n", round);
            exit(1);
        }
    }
    check(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
    expect(conn, RPMA_CONN_CLOSED);
    check(rpma_mr_remote_delete(&remote), "rpma_mr_remote_delete");
    check(rpma_conn_delete(&conn), "rpma_conn_delete");
    check(rpma_mr_dereg(&mr), "rpma_mr_dereg");
    check(rpma_mr_dereg(&back), "rpma_mr_dereg");
    free(copy);
}

int main(int argc, char **argv)
{
    struct ibv_context *device;
    struct rpma_peer *peer;
    unsigned char *bytes = aligned_alloc(4096, SIZE);

    if (argc < 3 || bytes == NULL)
        return 2;
    int is_client = argc > 3;
    memset(bytes, 0, SIZE);
    check(rpma_utils_get_ibv_context(
              argv[1], is_client ? RPMA_UTIL_IBV_CONTEXT_REMOTE : RPMA_UTIL_IBV_CONTEXT_LOCAL, &device),
          "rpma_utils_get_ibv_context");
    check(rpma_peer_new(device, &peer), "rpma_peer_new");
    (is_client ? use : serve)(peer, argv[1], argv[2], bytes);
    check(rpma_peer_delete(&peer), "rpma_peer_delete");
    free(bytes);
    printf("%u rounds of %u bytes are right\n", ROUNDS, SIZE);
    return 0;
}
