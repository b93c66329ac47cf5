/* The TCP connection between the ends. */
#include "verify.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int listen_at(int port)
{
    int listener = socket(AF_INET6, SOCK_STREAM, 0), on = 1, off = 0;
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any };
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 1))
        die("port %d cannot be listened at: %m", port);
    int control = accept(listener, NULL, NULL);
    close(listener);
    return control;
}

static int connect_to(const char *host, int port)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    if (getaddrinfo(host, service, &hints, &found))
        die("%s is no address", host);
    int64_t give_up = now_ms() + 10000;
    for (;;) {
        int control = socket(found->ai_family, SOCK_STREAM, 0);
        if (!connect(control, found->ai_addr, found->ai_addrlen)) {
            freeaddrinfo(found);
            return control;
        }
        close(control);
        if (now_ms() > give_up)
            die("nobody answers at %s port %d: %m", host, port);
        usleep(50000);
    }
}

int control_open(const struct options *options)
{
    int control = options->host ? connect_to(options->host, options->port) : listen_at(options->port);
    int on = 1;
    if (control < 0)
        die("no control connection: %m");
    setsockopt(control, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return control;
}

void control_exchange(int control, const void *mine, void *theirs, size_t len)
{
    if (write(control, mine, len) != (ssize_t)len)
        die("the other end is gone: %m");
    for (size_t have = 0; have < len;) {
        ssize_t got = read(control, (char *)theirs + have, len - have);
        if (got <= 0)
            die("the other end is gone");
        have += got;
    }
}

void control_barrier(int control)
{
    char mine = '.', theirs;
    control_exchange(control, &mine, &theirs, 1);
}
