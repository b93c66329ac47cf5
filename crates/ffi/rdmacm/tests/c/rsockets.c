// Tests of rsockets beyond rstream and similar programs. Both ends are threads of one process, unless one must be killed.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __func__, __LINE__, #what, errno, strerror(errno)); \
            exit(1); \
        } \
    } while (0)
#define FAILS(call, number) CHECK((call) == -1 && errno == (number))

static struct sockaddr_in address(int port) {
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons(port)};
    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return sin;
}

static int listener(struct sockaddr_in *where) {
    int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    socklen_t length = sizeof *where;
    *where = address(0);
    CHECK(fd >= 0);
    CHECK(rbind(fd, (struct sockaddr *)where, sizeof *where) == 0);
    CHECK(rlisten(fd, 8) == 0);
    CHECK(rgetsockname(fd, (struct sockaddr *)where, &length) == 0 && length == sizeof *where);
    CHECK(ntohs(where->sin_port) != 0);
    return fd;
}

static void *connect_to(void *where) {
    int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK(rconnect(fd, where, sizeof(struct sockaddr_in)) == 0);
    return (void *)(intptr_t)fd;
}

// Two connected sockets.
static void make_pair(int ends[2]) {
    struct sockaddr_in where, peer;
    socklen_t length = sizeof peer;
    int fd = listener(&where);
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, connect_to, &where) == 0);
    ends[0] = raccept(fd, (struct sockaddr *)&peer, &length);
    CHECK(ends[0] >= 0 && length == sizeof peer && peer.sin_family == AF_INET);
    CHECK(pthread_join(thread, &result) == 0);
    ends[1] = (int)(intptr_t)result;
    CHECK(rclose(fd) == 0);
}

static void close_pair(int ends[2]) {
    CHECK(rclose(ends[0]) == 0);
    CHECK(rclose(ends[1]) == 0);
}

static void refusals(void) {
    struct sockaddr_in nobody = address(1);
    char byte = 0;
    int fd;
    FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), ENOTSUP);
    FAILS(rsocket(AF_INET, SOCK_RAW, 0), ENOTSUP);
    FAILS(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), ENOTSUP);
    FAILS(rbind(-1, (struct sockaddr *)&nobody, sizeof nobody), EBADF);
    FAILS(rclose(12345), EBADF);
    FAILS(rsend(0, &byte, 1, 0), EBADF);
    fd = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    FAILS(rsend(fd, &byte, 1, 0), ENOTCONN);
    FAILS(rrecv(fd, &byte, 1, 0), ENOTCONN);
    FAILS(raccept(fd, NULL, NULL), EINVAL);
    FAILS(rconnect(fd, (struct sockaddr *)&nobody, 3), EINVAL);
    FAILS(rconnect(fd, NULL, sizeof nobody), EFAULT);
    FAILS(rsetsockopt(fd, SOL_SOCKET, 9999, &fd, sizeof fd), ENOTSUP);
    FAILS(rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &byte, 1), EINVAL);
    FAILS(rfcntl(fd, F_SETLK, 0), ENOTSUP);
    FAILS(riounmap(fd, &byte, 1), EINVAL);
    FAILS(rshutdown(fd, 77), EINVAL);
    {
        struct sockaddr_in peer;
        socklen_t length = sizeof peer;
        FAILS(rgetpeername(fd, (struct sockaddr *)&peer, &length), ENOTCONN);
    }
    FAILS(rconnect(fd, (struct sockaddr *)&nobody, sizeof nobody), ECONNREFUSED);
    CHECK(rclose(fd) == 0);
    FAILS(rclose(fd), EBADF);
}

static void options(void) {
    int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_TCP);
    int value = 100000, ends[2];
    socklen_t length = sizeof value;
    CHECK(fd >= 0);
    CHECK(rfcntl(fd, F_GETFL) == O_NONBLOCK);
    CHECK(rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof value) == 0);
    CHECK(rgetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &length) == 0 && value == 200000);
    value = 1;
    CHECK(rsetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value) == 0);
    value = 0;
    CHECK(rgetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length) == 0 && value == 1);
    value = 700;
    CHECK(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &value, sizeof value) == 0);
    CHECK(rgetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &value, &length) == 0 && value == 512);
    CHECK(rgetsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &length) == 0 && value == SOCK_STREAM);
    CHECK(rclose(fd) == 0);
    make_pair(ends);
    value = 64;
    FAILS(rsetsockopt(ends[0], SOL_RDMA, RDMA_SQSIZE, &value, sizeof value), EINVAL);
    value = 1;
    CHECK(rsetsockopt(ends[0], SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value) == 0);
    value = 0;
    CHECK(rgetsockopt(ends[0], SOL_SOCKET, SO_KEEPALIVE, &value, &length) == 0 && value == 1);
    close_pair(ends);
}

#define STREAM (8 << 20)

struct half {
    int fd;
    unsigned seed;
};

static unsigned char byte_at(unsigned seed, size_t at) { return (unsigned char)((at * 2654435761u + seed) >> 13); }

static void *write_half(void *arg) {
    struct half *half = arg;
    unsigned char *buffer = malloc(300000);
    unsigned random = half->seed;
    size_t sent = 0;
    while (sent < STREAM) {
        size_t length = rand_r(&random) % 300000 + 1;
        ssize_t now;
        if (length > STREAM - sent)
            length = STREAM - sent;
        for (size_t i = 0; i < length; i++)
            buffer[i] = byte_at(half->seed, sent + i);
        now = rsend(half->fd, buffer, length, 0);
        CHECK(now == (ssize_t)length);
        sent += length;
    }
    CHECK(rshutdown(half->fd, SHUT_WR) == 0);
    FAILS(rsend(half->fd, buffer, 1, 0), EPIPE);
    free(buffer);
    return NULL;
}

static void *read_half(void *arg) {
    struct half *half = arg;
    unsigned char *buffer = malloc(200000);
    unsigned random = half->seed * 7 + 1;
    size_t got = 0;
    for (;;) {
        size_t length = rand_r(&random) % 200000 + 1;
        ssize_t now = rrecv(half->fd, buffer, length, 0);
        CHECK(now >= 0);
        if (now == 0)
            break;
        for (ssize_t i = 0; i < now; i++)
            CHECK(buffer[i] == byte_at(half->seed, got + i));
        got += now;
    }
    CHECK(got == STREAM);
    free(buffer);
    return NULL;
}

// A reader and a writer on each end at the same time; each direction ends independently.
static void both_ways(void) {
    int ends[2];
    pthread_t threads[4];
    struct half halves[4];
    make_pair(ends);
    for (int i = 0; i < 4; i++) {
        halves[i] = (struct half){.fd = ends[i % 2], .seed = i == 0 || i == 3 ? 11 : 22};
        CHECK(pthread_create(&threads[i], NULL, i < 2 ? write_half : read_half, &halves[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    close_pair(ends);
}

static void vectors_and_peeks(void) {
    int ends[2];
    char a[3], b[5], all[8], blocked;
    struct iovec out[3] = {{"ab", 2}, {"", 0}, {"cdefgh", 6}}, in[2] = {{a, 3}, {b, 5}};
    struct msghdr message = {.msg_iov = in, .msg_iovlen = 2};
    make_pair(ends);
    FAILS(rrecv(ends[1], &blocked, 1, MSG_DONTWAIT), EAGAIN);
    CHECK(rwritev(ends[0], out, 3) == 8);
    CHECK(rrecv(ends[1], all, 8, MSG_PEEK | MSG_WAITALL) > 0);
    CHECK(rrecvmsg(ends[1], &message, MSG_WAITALL) == 8);
    CHECK(memcmp(a, "abc", 3) == 0 && memcmp(b, "defgh", 5) == 0);
    message.msg_iov = out;
    message.msg_iovlen = 3;
    CHECK(rsendmsg(ends[1], &message, 0) == 8);
    CHECK(rrecv(ends[0], all, 8, MSG_WAITALL) == 8 && memcmp(all, "abcdefgh", 8) == 0);
    CHECK(rsend(ends[0], all, 0, 0) == 0);
    close_pair(ends);
}

static sem_t pipe_was_read;

static void *write_later(void *arg) {
    int *fds = arg;
    char byte = 'x';
    CHECK(write(fds[0], &byte, 1) == 1);
    CHECK(sem_wait(&pipe_was_read) == 0);
    CHECK(rsend(fds[1], &byte, 1, 0) == 1);
    return NULL;
}

// One call with rsockets and other descriptors.
static void polls(void) {
    int ends[2], pipes[2], writers[2];
    struct pollfd fds[3];
    struct timeval none = {0, 0};
    fd_set readable, writable;
    pthread_t thread;
    char byte;
    make_pair(ends);
    CHECK(pipe(pipes) == 0);
    writers[0] = pipes[1];
    writers[1] = ends[0];
    fds[0] = (struct pollfd){.fd = ends[1], .events = POLLIN};
    fds[1] = (struct pollfd){.fd = pipes[0], .events = POLLIN};
    fds[2] = (struct pollfd){.fd = -1, .events = POLLIN};
    CHECK(rpoll(fds, 3, 0) == 0);
    CHECK(rpoll(fds, 3, 20) == 0);
    CHECK(sem_init(&pipe_was_read, 0, 0) == 0);
    CHECK(pthread_create(&thread, NULL, write_later, writers) == 0);
    CHECK(rpoll(fds, 3, -1) == 1 && fds[0].revents == 0 && fds[1].revents == POLLIN);
    CHECK(read(pipes[0], &byte, 1) == 1);
    CHECK(sem_post(&pipe_was_read) == 0);
    CHECK(rpoll(fds, 3, 10000) == 1 && fds[0].revents == POLLIN && fds[1].revents == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_SET(ends[1], &readable);
    FD_SET(ends[0], &readable);
    FD_SET(ends[0], &writable);
    int most = (ends[0] > ends[1] ? ends[0] : ends[1]) + 1;
    CHECK(rselect(most, &readable, &writable, NULL, &none) == 2);
    CHECK(FD_ISSET(ends[1], &readable) && !FD_ISSET(ends[0], &readable) && FD_ISSET(ends[0], &writable));
    CHECK(rrecv(ends[1], &byte, 1, 0) == 1);
    CHECK(rclose(ends[0]) == 0);
    CHECK(rpoll(fds, 1, 10000) == 1 && fds[0].revents == (POLLIN | POLLHUP));
    CHECK(rrecv(ends[1], &byte, 1, 0) == 0);
    FAILS(rsend(ends[1], &byte, 1, 0), ECONNRESET);
    CHECK(rclose(ends[1]) == 0);
    close(pipes[0]);
    close(pipes[1]);
}

// One thread makes all calls, so no call may wait for a later one.
static void nonblocking(void) {
    struct sockaddr_in where, nobody = address(1);
    int fd = listener(&where), client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), server, error = -1;
    socklen_t length = sizeof error;
    struct pollfd fds[2];
    char byte = 'y';
    CHECK(rfcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    FAILS(raccept(fd, NULL, NULL), EAGAIN);
    FAILS(rconnect(client, (struct sockaddr *)&where, sizeof where), EINPROGRESS);
    FAILS(rconnect(client, (struct sockaddr *)&where, sizeof where), EALREADY);
    FAILS(rsend(client, &byte, 1, 0), EAGAIN);
    do {
        fds[0] = (struct pollfd){.fd = fd, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = client, .events = POLLOUT};
        CHECK(rpoll(fds, 2, 10000) == 1);
        CHECK(fds[1].revents == 0);
    } while (!fds[0].revents);
    server = raccept(fd, NULL, NULL);
    CHECK(server >= 0);
    CHECK(rpoll(&fds[1], 1, 10000) == 1 && fds[1].revents == POLLOUT);
    CHECK(rgetsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
    FAILS(rconnect(client, (struct sockaddr *)&where, sizeof where), EISCONN);
    CHECK(rsend(client, &byte, 1, 0) == 1);
    fds[0] = (struct pollfd){.fd = server, .events = POLLIN};
    CHECK(rpoll(fds, 1, 10000) == 1 && fds[0].revents == POLLIN);
    CHECK(rrecv(server, &byte, 1, 0) == 1 && byte == 'y');
    CHECK(rclose(client) == 0 && rclose(server) == 0 && rclose(fd) == 0);

    client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(rconnect(client, (struct sockaddr *)&nobody, sizeof nobody) == -1);
    // TCP of the same host may refuse before the call returns.
    if (!getenv("FERROCE_WIRE") || errno != ECONNREFUSED) {
        CHECK(errno == EINPROGRESS);
        fds[0] = (struct pollfd){.fd = client, .events = POLLOUT};
        CHECK(rpoll(fds, 1, 30000) == 1 && fds[0].revents & POLLERR);
        CHECK(rgetsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == ECONNREFUSED);
    }
    CHECK(rgetsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
    CHECK(rclose(client) == 0);
}

static void *read_until_the_end(void *arg) {
    char byte;
    ssize_t got = rrecv((int)(intptr_t)arg, &byte, 1, 0);
    CHECK(got == 0 || (got == -1 && (errno == EBADF || errno == ECONNRESET)));
    return NULL;
}

// A call that sleeps on a socket ends when another thread closes it.
static void closed_under_a_reader(void) {
    int ends[2];
    pthread_t thread;
    make_pair(ends);
    CHECK(pthread_create(&thread, NULL, read_until_the_end, (void *)(intptr_t)ends[1]) == 0);
    // Whether the call sleeps already or starts after the close, it must return.
    sched_yield();
    CHECK(rclose(ends[1]) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(rclose(ends[0]) == 0);
}

static void mappings(void) {
    struct sockaddr_in where;
    static char window[8192];
    char chunk[100], byte = 1;
    int fd = listener(&where), one = 1, ends[2];
    pthread_t thread;
    void *result;
    CHECK(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &one, sizeof one) == 0);
    CHECK(pthread_create(&thread, NULL, connect_to, &where) == 0);
    ends[0] = raccept(fd, NULL, NULL);
    CHECK(ends[0] >= 0 && pthread_join(thread, &result) == 0);
    ends[1] = (int)(intptr_t)result;
    // The accepting end has a slot for one mapping, the other has none.
    FAILS(riomap(ends[0], window, sizeof window, PROT_WRITE, 0, 0), ENOMEM);
    FAILS(riomap(ends[1], window, sizeof window, PROT_READ, 0, 0), EINVAL);
    CHECK(riomap(ends[1], window, sizeof window, PROT_WRITE, 0, 1000) == 1000);
    FAILS(riomap(ends[1], chunk, sizeof chunk, PROT_WRITE, 0, 0), ENOMEM);
    CHECK(rsend(ends[1], &byte, 1, 0) == 1);
    CHECK(rrecv(ends[0], &byte, 1, 0) == 1);
    memset(chunk, 7, sizeof chunk);
    CHECK(riowrite(ends[0], chunk, sizeof chunk, 999, 0) == 0);
    CHECK(riowrite(ends[0], chunk, sizeof chunk, 1050, 0) == sizeof chunk);
    CHECK(riowrite(ends[0], chunk, sizeof chunk, 1000 + sizeof window - 40, 0) == 40);
    CHECK(rsend(ends[0], &byte, 1, 0) == 1);
    CHECK(rrecv(ends[1], &byte, 1, 0) == 1);
    CHECK(window[49] == 0 && window[50] == 7 && window[149] == 7 && window[150] == 0);
    CHECK(window[sizeof window - 41] == 0 && window[sizeof window - 1] == 7);
    CHECK(riounmap(ends[1], window, sizeof window) == 0);
    FAILS(riounmap(ends[1], window, sizeof window), EINVAL);
    close_pair(ends);
    CHECK(rclose(fd) == 0);
}

static void datagrams(void) {
    struct sockaddr_in where = address(0), from;
    socklen_t length = sizeof where;
    int server = rsocket(AF_INET, SOCK_DGRAM, 0), client = rsocket(AF_INET, SOCK_DGRAM, 0);
    char out[1500], in[2000];
    CHECK(server >= 0 && client >= 0);
    CHECK(rbind(server, (struct sockaddr *)&where, sizeof where) == 0);
    CHECK(rgetsockname(server, (struct sockaddr *)&where, &length) == 0);
    FAILS(rsend(client, out, 1, 0), EDESTADDRREQ);
    FAILS(rrecv(server, in, 1, MSG_DONTWAIT), EAGAIN);
    memset(in, 0, sizeof in);
    FAILS(rsendto(client, in, 3000, 0, (struct sockaddr *)&where, sizeof where), EMSGSIZE);
    // The first datagrams travel over UDP, later ones over the NIC; the program sees no difference.
    for (int round = 0; round < 200; round++) {
        size_t size = round * 7 + 1;
        struct pollfd fds = {.fd = server, .events = POLLIN};
        memset(out, round, size);
        CHECK(rsendto(client, out, size, 0, (struct sockaddr *)&where, sizeof where) == (ssize_t)size);
        CHECK(rpoll(&fds, 1, 10000) == 1 && fds.revents == POLLIN);
        CHECK(rrecv(server, in, 1, MSG_PEEK) == 1 && in[0] == (char)round);
        length = sizeof from;
        CHECK(rrecvfrom(server, in, sizeof in, 0, (struct sockaddr *)&from, &length) == (ssize_t)size);
        CHECK(memcmp(in, out, size) == 0 && length == sizeof from && from.sin_port != 0);
        CHECK(rsendto(server, in, size, 0, (struct sockaddr *)&from, length) == (ssize_t)size);
        CHECK(rrecv(client, in, sizeof in, 0) == (ssize_t)size);
    }
    CHECK(rconnect(client, (struct sockaddr *)&where, sizeof where) == 0);
    CHECK(rsend(client, out, 100, 0) == 100);
    CHECK(rrecv(server, in, 10, 0) == 10);
    FAILS(rrecv(server, in, 10, MSG_DONTWAIT), EAGAIN);
    CHECK(rclose(client) == 0 && rclose(server) == 0);
}

// A killed peer sends nothing; a call that waits for it returns nevertheless.
static void killed_peer(void) {
    struct sockaddr_in where;
    int ready[2], child_died, server;
    char byte;
    ssize_t got;
    CHECK(pipe(ready) == 0);
    // Fork before this process has a device, so that each process opens its own.
    pid_t child = fork();
    if (child == 0) {
        CHECK(read(ready[0], &where, sizeof where) == sizeof where);
        int fd = (int)(intptr_t)connect_to(&where);
        CHECK(rsend(fd, "k", 1, 0) == 1);
        for (;;)
            pause();
    }
    int fd = listener(&where);
    CHECK(write(ready[1], &where, sizeof where) == sizeof where);
    server = raccept(fd, NULL, NULL);
    CHECK(server >= 0 && rrecv(server, &byte, 1, 0) == 1 && byte == 'k');
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &child_died, 0) == child);
    got = rrecv(server, &byte, 1, 0);
    CHECK(got == 0 || (got == -1 && errno == ECONNRESET));
    struct pollfd fds = {.fd = server, .events = POLLIN};
    CHECK(rpoll(&fds, 1, 0) == 1 && fds.revents & (POLLHUP | POLLERR));
    FAILS(rsend(server, &byte, 1, 0), ECONNRESET);
    CHECK(rclose(server) == 0 && rclose(fd) == 0);
}

// The headers of Debian 12 do not have these calls: programs look them up by version.
static int (*repoll_create)(int), (*repoll_ctl)(int, int, int, struct epoll_event *);
static int (*repoll_wait)(int, struct epoll_event *, int, int);

static void *adds_to_set(void *argument) {
    int *numbers = argument;
    struct epoll_event readable = {.events = EPOLLIN, .data.u64 = 7};
    CHECK(repoll_ctl(numbers[0], EPOLL_CTL_ADD, numbers[1], &readable) == 0);
    return NULL;
}

static void sets_of_sockets(void) {
    repoll_create = dlvsym(RTLD_DEFAULT, "repoll_create", "RDMACM_1.5");
    repoll_ctl = dlvsym(RTLD_DEFAULT, "repoll_ctl", "RDMACM_1.5");
    repoll_wait = dlvsym(RTLD_DEFAULT, "repoll_wait", "RDMACM_1.5");
    CHECK(repoll_create && repoll_ctl && repoll_wait);
    int ends[2], pipes[2], set = repoll_create(O_CLOEXEC);
    CHECK(set >= 0 && pipe(pipes) == 0);
    make_pair(ends);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5}, got[2];
    CHECK(repoll_wait(set, got, 2, 0) == 0);
    CHECK(repoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &event) == 0);
    CHECK(repoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &event) == EEXIST);
    CHECK(repoll_ctl(set, EPOLL_CTL_MOD, ends[0], &event) == ENOENT);
    CHECK(repoll_ctl(set, EPOLL_CTL_ADD, -1, &event) == EBADF);
    CHECK(repoll_ctl(set, EPOLL_CTL_ADD, ends[0], NULL) == EFAULT);
    CHECK(repoll_ctl(pipes[0], EPOLL_CTL_ADD, ends[0], &event) == EINVAL);
    CHECK(rsend(ends[1], "x", 1, 0) == 1);
    // Another thread adds the socket while this one waits.
    pthread_t thread;
    int numbers[2] = {set, ends[0]};
    CHECK(pthread_create(&thread, NULL, adds_to_set, numbers) == 0);
    CHECK(repoll_wait(set, got, 2, 10000) == 1);
    CHECK(got[0].events == EPOLLIN && got[0].data.u64 == 7);
    pthread_join(thread, NULL);
    CHECK(write(pipes[1], "y", 1) == 1);
    CHECK(repoll_wait(set, got, 2, 10000) == 2);
    CHECK(repoll_wait(set, got, 1, 10000) == 1);
    char byte;
    CHECK(rrecv(ends[0], &byte, 1, 0) == 1 && byte == 'x');
    CHECK(repoll_wait(set, got, 2, 10000) == 1 && got[0].data.u64 == 5);
    CHECK(repoll_ctl(set, EPOLL_CTL_DEL, pipes[0], NULL) == 0);
    CHECK(repoll_wait(set, got, 2, 10) == 0);
    // A closed member leaves the set. Its number is high, so that the next descriptor does not get it.
    int high = fcntl(pipes[0], F_DUPFD, 900);
    CHECK(high >= 900 && repoll_ctl(set, EPOLL_CTL_ADD, high, &event) == 0 && repoll_wait(set, got, 2, 0) == 1);
    CHECK(close(high) == 0 && repoll_wait(set, got, 2, 0) == 0);
    CHECK(repoll_ctl(set, EPOLL_CTL_DEL, high, NULL) == ENOENT);
    FAILS(repoll_wait(set, got, 0, 0), EINVAL);
    CHECK(rclose(set) == 0);
    FAILS(repoll_wait(set, got, 2, 0), EINVAL);
    int (*resolve)(void *, const char *, const char *, void *) = dlvsym(RTLD_DEFAULT, "rdma_resolve_addrinfo", "RDMACM_1.4");
    CHECK(resolve);
    FAILS(resolve(NULL, NULL, NULL, NULL), EOPNOTSUPP);
    CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0 && close(pipes[0]) == 0 && close(pipes[1]) == 0);
}

int main(int argc, char **argv) {
    if (argc > 1) // With the name of a test: run only that one.
        fprintf(stderr, "%s\n", argv[1]);
#define RUN(test) \
    if (argc == 1 || strcmp(argv[1], #test) == 0) \
    test()
    RUN(killed_peer);
    RUN(refusals);
    RUN(options);
    RUN(both_ways);
    RUN(vectors_and_peeks);
    RUN(polls);
    RUN(nonblocking);
    RUN(closed_under_a_reader);
    RUN(mappings);
    // iWARP has no datagrams.
    if (!getenv("FERROCE_WIRE"))
        RUN(datagrams);
    RUN(sets_of_sockets);
    return 0;
}
