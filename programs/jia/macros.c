/*
 * macros: the Argonne macros, as programs of their time use them: with and without semicolons, declared in a shared
 * structure, and a loop that schedules itself.
 */
#include "program.h"

MAIN_ENV

struct everything {
    LOCKDEC(lock)
    ALOCKDEC(locks, 8)
    BARDEC(barrier)
    PAUSEDEC(ready)
    GSDEC(loop)
    long sum, sums[8];
    int done[100];
};

EXTERN_ENV

static int loop_once(struct everything *all)
{
    int index, count = 0, good = 1;
    GETSUB(all->loop, index, 99, jiahosts)
    while (index >= 0) {
        all->done[index]++;
        count++;
        GETSUB(all->loop, index, 99, jiahosts)
    }
    LOCK(all->lock)
    all->sum += count;
    UNLOCK(all->lock)
    BARRIER(all->barrier, jiahosts)
    for (index = 0; index < 100; index++)
        good &= all->done[index] > 0;
    return good;
}

int main(int argc, char **argv)
{
    struct everything *all;
    double started, ended;
    long n = 2, i;
    int good = 1, at;

    MAIN_INITENV(, 60000)
    number_options(argc, argv, "n", &n);
    jia_init(argc, argv);
    CLOCK(started)
    all = (struct everything *)G_MALLOC(sizeof *all)
    if (jiapid == 0) {
        LOCKINIT(all->lock);
        ALOCKINIT(all->locks, 8);
        BARINIT(all->barrier);
        PAUSEINIT(all->ready);
        GSINIT(all->loop);
    }
    jia_wtnt(all, 4)
    jia_wtntw(&all->lock);
    jia_wtntd(&all->lock);
    BARRIER(all->barrier, jiahosts);

    for (i = 0; i < n; i++) {
        good &= loop_once(all);
        good &= all->sum == 100 * (i + 1);
        for (at = 0; at < 8; at++) {
            ALOCK(all->locks, at)
            all->sums[at] += 1;
            AULOCK(all->locks, at)
        }
        BARRIER(all->barrier, jiahosts)
        for (at = 0; at < 8; at++)
            good &= all->sums[at] == (i + 1) * jiahosts;
        BARRIER(all->barrier, jiahosts)
    }
    if (jiapid == 0) {
        PAUSE_SET(all->ready, 1);
    }
    PAUSE_ACCEPT(all->ready);
    {
        int begin = 0, end = 999, total = 0, mine;
        jia_loadcheck();
        jia_divtask(&begin, &end);
        mine = end - begin + 1;
        jia_reduce(&mine, &total, 1, JIA_SUM_INT, 0);
        good &= jiapid != 0 || total == 1000;
    }
    CLOCK(ended)
    WAIT_FOR_END(jiahosts)
    MAIN_END
    return finish("macros", n, ended - started, good);
}
