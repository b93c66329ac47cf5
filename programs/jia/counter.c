/*
 * counter: locks keep their word. Many counters, each under a lock of its own, are raised by everybody in different orders;
 * then pairs of accounts are emptied into each other under two nested locks, and the sum must stay.
 */
#include "program.h"

#define COUNTERS 64
#define FIRST_ACCOUNT 1000
#define MONEY 100

static void raise_all(long *counters, long rounds)
{
    long round, at;
    for (round = 0; round < rounds; round++)
        for (at = 0; at < COUNTERS; at++) {
            int lock = (int)(random_at((uint64_t)jiapid, (uint64_t)round) + (uint64_t)at) % COUNTERS;
            lock = lock < 0 ? -lock : lock;
            jia_lock(lock);
            counters[lock]++;
            jia_unlock(lock);
        }
}

/* The smaller number is always locked first, so that two processes never wait for each other. */
static void move_money(long *accounts, long rounds)
{
    long round;
    for (round = 0; round < rounds; round++) {
        uint64_t dice = random_at(100 + (uint64_t)jiapid, (uint64_t)round);
        int a = (int)(dice % COUNTERS), b = (int)(dice / COUNTERS % COUNTERS);
        if (a == b)
            continue;
        jia_lock(FIRST_ACCOUNT + (a < b ? a : b));
        jia_lock(FIRST_ACCOUNT + (a < b ? b : a));
        if (accounts[a] > 0) {
            accounts[a]--;
            accounts[b]++;
        }
        jia_unlock(FIRST_ACCOUNT + (a < b ? b : a));
        jia_unlock(FIRST_ACCOUNT + (a < b ? a : b));
    }
}

int main(int argc, char **argv)
{
    long n = 20, at, raised = 0, money = 0;
    long *counters, *accounts;
    double started, seconds;

    number_options(argc, argv, "n", &n);
    jia_init(argc, argv);
    counters = (long *)jia_alloc(COUNTERS * sizeof *counters);
    /* On two pages, homes apart. */
    accounts = (long *)jia_alloc2(COUNTERS * sizeof *accounts, 4096);
    if (jiapid == jiahosts - 1)
        for (at = 0; at < COUNTERS; at++)
            accounts[at] = MONEY;
    jia_barrier();

    started = jia_clock();
    raise_all(counters, n);
    move_money(accounts, 10 * n);
    jia_barrier();
    seconds = jia_clock() - started;
    for (at = 0; at < COUNTERS; at++) {
        raised += counters[at];
        money += accounts[at];
    }
    return finish("counter", n, seconds, raised == n * COUNTERS * jiahosts && money == COUNTERS * MONEY);
}
