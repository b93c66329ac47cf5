/* iWARP: only the connection manager connects its queue pairs. */
#include "verify.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>

enum { LIMIT_MS = 10000, DEPTH = 4, PORT_OFFSET = 1000 };

bool is_iwarp(const struct end *end)
{
    return !strcmp(end->options->transport, "iwarp");
}

static struct addrinfo *responder(const struct options *options)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST }, *found;
    char service[16];
    snprintf(service, sizeof service, "%d", options->port + PORT_OFFSET);
    if (!options->address || getaddrinfo(options->address, service, &hints, &found))
        die("-a needs the address at which the responder listens");
    return found;
}

static struct rdma_cm_id *resolved(const struct addrinfo *to)
{
    struct rdma_cm_id *id;
    if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) || rdma_resolve_addr(id, NULL, to->ai_addr, LIMIT_MS) ||
        rdma_resolve_route(id, LIMIT_MS))
        die("no way to the responder: %m");
    return id;
}

/* Finds the device. The responder listens from here on, before the requester can know. */
void cm_open(struct end *end)
{
    struct addrinfo *at = responder(end->options);
    if (end->requester) {
        end->id[0] = resolved(at);
        end->context = end->id[0]->verbs;
    } else {
        if (rdma_create_id(NULL, &end->listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(end->listener, at->ai_addr) ||
            rdma_listen(end->listener, MAX_QPS))
            die("rdma_listen at %s: %m", end->options->address);
        end->context = end->listener->verbs;
    }
    freeaddrinfo(at);
}

void cm_connect(struct end *end, struct ibv_qp_init_attr *init)
{
    struct addrinfo *at = responder(end->options);
    for (int i = 0; i < end->options->qps; i++) {
        if (!end->requester && rdma_get_request(end->listener, &end->id[i]))
            die("rdma_get_request: %m");
        if (!end->id[i])
            end->id[i] = resolved(at);
        struct ibv_qp_init_attr copy = *init;
        if (rdma_create_qp(end->id[i], end->pd, &copy))
            die("rdma_create_qp: %m");
        end->qp[i] = end->id[i]->qp;
        struct rdma_conn_param param = { .initiator_depth = DEPTH, .responder_resources = DEPTH };
        if (end->requester ? rdma_connect(end->id[i], &param) : rdma_accept(end->id[i], &param))
            die("connecting queue pair %d: %m", i);
        if (i == end->options->qps - 1)
            *init = copy;
    }
    freeaddrinfo(at);
}

void cm_close(struct end *end)
{
    for (int i = 0; i < end->options->qps && end->id[i]; i++) {
        /* The other end may have been first. */
        if (!end->ended)
            rdma_disconnect(end->id[i]);
        rdma_destroy_qp(end->id[i]);
        rdma_destroy_id(end->id[i]);
    }
    if (end->listener)
        rdma_destroy_id(end->listener);
}
