/*
 * messages: sends, receives, broadcasts and reductions of all kinds; order within a sender and tag; any source, any tag;
 * messages far larger than a page.
 */
#include "program.h"

#define BIG (1 << 20)

static int ring(long n)
{
    int next = (jiapid + 1) % jiahosts, before = (jiapid + jiahosts - 1) % jiahosts, good = 1;
    long i;
    for (i = 0; i < n; i++) {
        long sent[2] = {jiapid, i}, got[2] = {-1, -1};
        jia_send(sent, sizeof sent, next, (int)(i % 3));
        good &= jia_recv(got, sizeof got, before, (int)(i % 3)) == (int)sizeof got;
        good &= got[0] == before && got[1] == i;
    }
    return good;
}

/* The second tag is asked for first: what waits in front of it must not be in its way. */
static int tags(void)
{
    int a = 1, b = 2, got = 0, good = 1;
    jia_send(&a, sizeof a, (jiapid + 1) % jiahosts, 10);
    jia_send(&b, sizeof b, (jiapid + 1) % jiahosts, 11);
    good &= jia_recv(&got, sizeof got, -1, 11) == (int)sizeof got && got == 2;
    good &= jia_recv(&got, sizeof got, -1, 10) == (int)sizeof got && got == 1;
    return good;
}

static int anybody(void)
{
    int p, seen = 0, number;
    /* Waits on both sides: process 0 takes whatever comes. */
    jia_wait();
    if (jiapid != 0)
        jia_send(&jiapid, sizeof jiapid, 0, 20 + jiapid);
    for (p = 1; jiapid == 0 && p < jiahosts; p++) {
        jia_recv(&number, sizeof number, -1, -1);
        seen += number;
    }
    jia_wait();
    return jiapid != 0 || seen == jiahosts * (jiahosts - 1) / 2;
}

static int large(void)
{
    unsigned char *out = malloc(BIG), *in = malloc(BIG);
    int good = out != NULL && in != NULL, i, got = 0;
    for (i = 0; good && i < BIG; i++)
        out[i] = (unsigned char)(random_at((uint64_t)jiapid, (uint64_t)i));
    if (good && jiahosts > 1) {
        int before = (jiapid + jiahosts - 1) % jiahosts;
        /* Everybody sends before anybody receives: a message must not need its receiver to be there. */
        jia_send(out, BIG, (jiapid + 1) % jiahosts, 30);
        got = jia_recv(in, BIG, before, 30);
        good = got == BIG;
        for (i = 0; good && i < BIG; i += 97)
            good = in[i] == (unsigned char)random_at((uint64_t)before, (uint64_t)i);
    }
    free(out);
    free(in);
    return good;
}

/* Out of shared memory that was never looked at here, and into shared memory, as programs do. */
static int through_shared(void)
{
    int count = 5000, next = (jiapid + 1) % jiahosts, good = 1, i;
    int before = (jiapid + jiahosts - 1) % jiahosts;
    size_t bytes = (size_t)count * sizeof(int);
    int *from = (int *)jia_alloc2p(bytes, 0);
    int *into = (int *)jia_alloc((unsigned long)jiahosts * bytes) + jiapid * count;
    if (jiapid == 0)
        for (i = 0; i < count; i++)
            from[i] = 3 * i;
    jia_barrier();
    jia_send(from, (int)bytes, next, 40);
    good &= jia_recv(into, (int)bytes, before, 40) == (int)bytes;
    jia_barrier();
    into += (next - jiapid) * count;
    for (i = 0; i < count; i++)
        good &= into[i] == 3 * i;
    jia_barrier();
    jia_reduce(from, into, count, JIA_SUM_INT, 0);
    for (i = 0; jiapid == 0 && i < count; i++)
        good &= into[i] == 3 * i * jiahosts;
    jia_barrier();
    return good;
}

static int broadcasts(void)
{
    int root, good = 1, i;
    for (root = 0; root < jiahosts; root++) {
        int numbers[3000];
        for (i = 0; i < 3000; i++)
            numbers[i] = jiapid == root ? root * 10000 + i : -1;
        jia_bcast(numbers, sizeof numbers, root);
        for (i = 0; i < 3000; i++)
            good &= numbers[i] == root * 10000 + i;
    }
    return good;
}

static int reductions(void)
{
    int root, good = 1, n = jiahosts;
    for (root = 0; root < n; root++) {
        int whole[2] = {jiapid + 1, -jiapid}, wholes[2] = {0};
        float real[2] = {0.5f * (float)jiapid, 1.0f}, reals[2] = {0};
        double exact[2] = {(double)jiapid, -2.0 * (double)jiapid}, exacts[2] = {0};
        int mine = jiapid == root;
        jia_reduce(whole, wholes, 2, JIA_SUM_INT, root);
        good &= !mine || (wholes[0] == n * (n + 1) / 2 && wholes[1] == -n * (n - 1) / 2);
        jia_reduce(whole, wholes, 2, JIA_MAX_INT, root);
        good &= !mine || (wholes[0] == n && wholes[1] == 0);
        jia_reduce(whole, wholes, 2, JIA_MIN_INT, root);
        good &= !mine || (wholes[0] == 1 && wholes[1] == 1 - n);
        jia_reduce(real, reals, 2, JIA_SUM_FLOAT, root);
        good &= !mine || (reals[0] == 0.25f * (float)(n * (n - 1)) && reals[1] == (float)n);
        jia_reduce(real, reals, 2, JIA_MAX_FLOAT, root);
        good &= !mine || (reals[0] == 0.5f * (float)(n - 1) && reals[1] == 1.0f);
        jia_reduce(real, reals, 2, JIA_MIN_FLOAT, root);
        good &= !mine || (reals[0] == 0.0f && reals[1] == 1.0f);
        jia_reduce(exact, exacts, 2, JIA_SUM_DOUBLE, root);
        good &= !mine || (exacts[0] == 0.5 * (double)(n * (n - 1)) && exacts[1] == -(double)(n * (n - 1)));
        jia_reduce(exact, exacts, 2, JIA_MAX_DOUBLE, root);
        good &= !mine || (exacts[0] == (double)(n - 1) && exacts[1] == 0.0);
        jia_reduce(exact, exacts, 2, JIA_MIN_DOUBLE, root);
        good &= !mine || (exacts[0] == 0.0 && exacts[1] == -2.0 * (double)(n - 1));
    }
    return good;
}

int main(int argc, char **argv)
{
    long n = 100;
    int verdict[7], good = 1, at;
    double started, seconds;
    static const char *names[7] = {"ring", "tags", "anybody", "large", "broadcasts", "reductions", "shared"};

    number_options(argc, argv, "n", &n);
    jia_init(argc, argv);
    started = jia_clock();
    verdict[0] = ring(n);
    verdict[1] = tags();
    verdict[2] = anybody();
    verdict[3] = large();
    verdict[4] = broadcasts();
    verdict[5] = reductions();
    verdict[6] = through_shared();
    seconds = jia_clock() - started;
    for (at = 0; at < 7; at++)
        if (!verdict[at]) {
            fprintf(stderr, "messages: %s\n", names[at]);
            good = 0;
        }
    return finish("messages", n, seconds, good);
}
