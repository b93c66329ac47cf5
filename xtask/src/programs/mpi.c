// A program for Open MPI: point-to-point, collectives, one-sided. Every byte that arrives is compared with what must
// arrive; the first difference ends all ranks.

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static long checks;

static void expect(int holds, const char *what, int line) {
    checks++;
    if (holds) return;
    fprintf(stderr, "rank %d: line %d: %s\n", rank, line, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

/* A byte that depends on who sent it, in which message, and where. */
static unsigned char pattern(int sender, int message, size_t at) {
    return (unsigned char)(31 * sender + 7 * message + at + (at >> 8) * 13 + 1);
}

static void fill(unsigned char *bytes, size_t length, int sender, int message) {
    for (size_t at = 0; at < length; at++) bytes[at] = pattern(sender, message, at);
}

static int holds(const unsigned char *bytes, size_t length, int sender, int message) {
    for (size_t at = 0; at < length; at++)
        if (bytes[at] != pattern(sender, message, at)) return 0;
    return 1;
}

/* Sizes around the limits of UCX's protocols: inline, copied, segmented, rendezvous. */
static const int SIZES[] = {0, 1, 8, 63, 64, 65, 1000, 4096, 8192, 8300, 65536, 1 << 20, (2 << 20) + 5};
#define SIZE_COUNT (int)(sizeof SIZES / sizeof SIZES[0])
#define LARGEST ((2 << 20) + 5)

static void ring(void) {
    unsigned char *out = malloc(LARGEST), *in = malloc(LARGEST + 1);
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int message = 0; message < SIZE_COUNT; message++) {
        int size = SIZES[message], length;
        MPI_Status status;
        fill(out, size, rank, message);
        memset(in, 0, size);
        in[size] = 0xa5;
        MPI_Sendrecv(out, size, MPI_BYTE, next, message, in, size + 1, MPI_BYTE, before, message, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &length);
        EXPECT(length == size && status.MPI_SOURCE == before && status.MPI_TAG == message);
        EXPECT(holds(in, size, before, message));
        EXPECT(in[size] == 0xa5);
    }
    free(out);
    free(in);
}

/* Unexpected messages, received in the opposite order by tag. */
static void unexpected(void) {
    enum { MESSAGES = 48, LENGTH = 3000 };
    static unsigned char out[MESSAGES][LENGTH], in[LENGTH];
    MPI_Request requests[MESSAGES];
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int message = 0; message < MESSAGES; message++) {
        fill(out[message], LENGTH, rank, message);
        MPI_Isend(out[message], LENGTH, MPI_BYTE, next, message, MPI_COMM_WORLD, &requests[message]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int message = MESSAGES - 1; message >= 0; message--) {
        MPI_Recv(in, LENGTH, MPI_BYTE, before, message, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        EXPECT(holds(in, LENGTH, before, message));
    }
    MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
}

/* All ranks send to rank 0, which receives from any source; its reply is synchronous. */
static void any_source(void) {
    if (rank == 0) {
        int seen = 0;
        for (int count = 1; count < ranks; count++) {
            MPI_Status status;
            int value[2];
            MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            MPI_Recv(value, 2, MPI_INT, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            EXPECT(value[0] == status.MPI_SOURCE && value[1] == 100 + status.MPI_TAG);
            seen |= 1 << value[0];
            MPI_Ssend(value, 2, MPI_INT, status.MPI_SOURCE, 5, MPI_COMM_WORLD);
        }
        EXPECT(seen == (1 << ranks) - 2);
    } else {
        int value[2] = {rank, 100 + 2 * rank}, back[2];
        MPI_Send(value, 2, MPI_INT, 0, 2 * rank, MPI_COMM_WORLD);
        MPI_Recv(back, 2, MPI_INT, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        EXPECT(memcmp(value, back, sizeof value) == 0);
    }
    /* Rank 0 receives any tag, so no rank may continue before it is done. */
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A column of a matrix: data that is not contiguous. */
static void column(void) {
    enum { ROWS = 500, COLUMNS = 9 };
    static double out[ROWS][COLUMNS], in[ROWS][COLUMNS];
    MPI_Datatype type;
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int row = 0; row < ROWS; row++)
        for (int place = 0; place < COLUMNS; place++) out[row][place] = rank * 1e6 + row * COLUMNS + place;
    memset(in, 0, sizeof in);
    MPI_Type_vector(ROWS, 1, COLUMNS, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    MPI_Sendrecv(&out[0][3], 1, type, next, 9, &in[0][5], 1, type, before, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int row = 0; row < ROWS; row++) {
        EXPECT(in[row][5] == before * 1e6 + row * COLUMNS + 3);
        EXPECT(in[row][4] == 0 && in[row][6] == 0);
    }
    MPI_Type_free(&type);
}

static void reductions(int length) {
    long *mine = malloc(length * sizeof *mine), *all = malloc(length * sizeof *all);
    for (int at = 0; at < length; at++) mine[at] = (long)at * (rank + 1);
    MPI_Allreduce(mine, all, length, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    long sum = (long)ranks * (ranks + 1) / 2;
    for (int at = 0; at < length; at++) EXPECT(all[at] == at * sum);
    MPI_Scan(mine, all, length, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int at = 0; at < length; at++) EXPECT(all[at] == (long)at * (rank + 1) * (rank + 2) / 2);
    int root = ranks - 1;
    MPI_Reduce(mine, all, length, MPI_LONG, MPI_MAX, root, MPI_COMM_WORLD);
    for (int at = 0; rank == root && at < length; at++) EXPECT(all[at] == (long)at * ranks);
    MPI_Request request;
    MPI_Iallreduce(mine, all, length, MPI_LONG, MPI_MIN, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int at = 0; at < length; at++) EXPECT(all[at] == at);
    free(mine);
    free(all);
}

static void exchanges(int length) {
    unsigned char *mine = malloc((size_t)length * ranks), *all = malloc((size_t)length * ranks);
    for (int root = 0; root < ranks; root++) {
        if (rank == root) fill(mine, length, root, 1);
        MPI_Bcast(mine, length, MPI_BYTE, root, MPI_COMM_WORLD);
        EXPECT(holds(mine, length, root, 1));
    }
    fill(mine, length, rank, 2);
    MPI_Allgather(mine, length, MPI_BYTE, all, length, MPI_BYTE, MPI_COMM_WORLD);
    for (int peer = 0; peer < ranks; peer++) EXPECT(holds(all + (size_t)peer * length, length, peer, 2));
    for (int peer = 0; peer < ranks; peer++) fill(mine + (size_t)peer * length, length, rank, 10 + peer);
    MPI_Alltoall(mine, length, MPI_BYTE, all, length, MPI_BYTE, MPI_COMM_WORLD);
    for (int peer = 0; peer < ranks; peer++) EXPECT(holds(all + (size_t)peer * length, length, peer, 10 + rank));
    MPI_Scatter(mine, length, MPI_BYTE, all, length, MPI_BYTE, 0, MPI_COMM_WORLD);
    EXPECT(holds(all, length, 0, 10 + rank));
    fill(mine, length, rank, 3);
    MPI_Gather(mine, length, MPI_BYTE, all, length, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int peer = 0; rank == 0 && peer < ranks; peer++) EXPECT(holds(all + (size_t)peer * length, length, peer, 3));
    free(mine);
    free(all);
}

static void fences(void) {
    enum { LENGTH = 20000 };
    unsigned char *window, *local = malloc(LENGTH);
    MPI_Win win;
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    MPI_Win_allocate(2 * LENGTH, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    memset(window, 0, 2 * LENGTH);
    fill(window + LENGTH, LENGTH, rank, 4);
    fill(local, LENGTH, rank, 5);
    MPI_Win_fence(0, win);
    MPI_Put(local, LENGTH, MPI_BYTE, next, 0, LENGTH, MPI_BYTE, win);
    MPI_Win_fence(0, win);
    EXPECT(holds(window, LENGTH, before, 5));
    MPI_Get(local, LENGTH, MPI_BYTE, next, LENGTH, LENGTH, MPI_BYTE, win);
    MPI_Win_fence(0, win);
    EXPECT(holds(local, LENGTH, next, 4));
    MPI_Win_free(&win);
    free(local);
}

static void locks(void) {
    enum { ROUNDS = 25 };
    int64_t cells[4] = {0, 0, 0, 0}, one = 1, result;
    MPI_Win win;
    MPI_Win_create(cells, sizeof cells, sizeof cells[0], MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    /* A counter at rank 0: exactly one rank gets each old value. */
    int64_t sum = 0;
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        MPI_Fetch_and_op(&one, &result, MPI_INT64_T, 0, 0, MPI_SUM, win);
        MPI_Win_unlock(0, win);
        sum += result;
    }
    int64_t all = 0, count = (int64_t)ROUNDS * ranks;
    MPI_Allreduce(&sum, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    EXPECT(all == count * (count - 1) / 2);
    /* Mutual exclusion by compare-and-swap: read, add, write back. The probe is for Open MPI 4.1: a rank that swaps in its own
       window never polls the network, so the holder of the lock never makes progress, over UCX's tcp too. */
    MPI_Win_lock_all(0, win);
    for (int round = 0; round < ROUNDS; round++) {
        int64_t free_value = 0, mine = rank + 1, held;
        int flag;
        do {
            MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
            MPI_Compare_and_swap(&mine, &free_value, &held, MPI_INT64_T, 0, 1, win);
            MPI_Win_flush(0, win);
        } while (held != 0);
        MPI_Get(&result, 1, MPI_INT64_T, 0, 2, 1, MPI_INT64_T, win);
        MPI_Win_flush(0, win);
        result += mine;
        MPI_Put(&result, 1, MPI_INT64_T, 0, 2, 1, MPI_INT64_T, win);
        MPI_Win_flush(0, win);
        MPI_Fetch_and_op(&free_value, &held, MPI_INT64_T, 0, 1, MPI_REPLACE, win);
        MPI_Win_flush(0, win);
        EXPECT(held == mine);
    }
    MPI_Accumulate(&one, 1, MPI_INT64_T, (rank + 1) % ranks, 3, 1, MPI_INT64_T, MPI_SUM, win);
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
    MPI_Get_accumulate(&one, 1, MPI_INT64_T, &result, 1, MPI_INT64_T, 0, 2, 1, MPI_INT64_T, MPI_NO_OP, win);
    MPI_Win_unlock(0, win);
    EXPECT(result == (int64_t)ROUNDS * ranks * (ranks + 1) / 2);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, win);
    EXPECT(cells[3] == 1);
    MPI_Win_unlock(rank, win);
    MPI_Win_free(&win);
}

/* Post, start, complete, wait: only adjacent ranks take part. */
static void neighbours(void) {
    enum { LENGTH = 70000 };
    unsigned char *window = calloc(LENGTH, 1), *local = malloc(LENGTH);
    MPI_Win win;
    MPI_Group world, origin, target;
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    MPI_Win_create(window, LENGTH, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &before, &origin);
    MPI_Group_incl(world, 1, &next, &target);
    fill(local, LENGTH, rank, 6);
    MPI_Win_post(origin, 0, win);
    MPI_Win_start(target, 0, win);
    MPI_Put(local, LENGTH, MPI_BYTE, next, 0, LENGTH, MPI_BYTE, win);
    MPI_Win_complete(win);
    MPI_Win_wait(win);
    EXPECT(holds(window, LENGTH, before, 6));
    MPI_Group_free(&origin);
    MPI_Group_free(&target);
    MPI_Group_free(&world);
    MPI_Win_free(&win);
    free(window);
    free(local);
}

static void communicators(void) {
    MPI_Comm half;
    int sum, size;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Comm_size(half, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, half);
    int wanted = 0;
    for (int peer = rank % 2; peer < ranks; peer += 2) wanted += peer;
    EXPECT(sum == wanted);
    MPI_Comm_free(&half);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    ring();
    unexpected();
    any_source();
    column();
    for (int length = 1; length <= 100000; length *= 10) reductions(length);
    for (int length = 1; length <= 100000; length *= 10) exchanges(length);
    communicators();
    fences();
    locks();
    neighbours();
    long all = 0;
    MPI_Reduce(&checks, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks, %ld checks held\n", ranks, all);
    MPI_Finalize();
    return 0;
}
