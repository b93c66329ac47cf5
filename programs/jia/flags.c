/*
 * flags: they wake all who wait, stay up until they are taken down, and carry no data; what was written under a lock before
 * a flag went up is seen by whoever takes that lock after it.
 */
#include "program.h"

#define LOCK_BATON 7

int main(int argc, char **argv)
{
    long n = 10, round, *baton;
    int good = 1;
    double started, seconds;

    number_options(argc, argv, "n", &n);
    jia_init(argc, argv);
    baton = (long *)jia_alloc(sizeof *baton);
    jia_barrier();

    started = jia_clock();
    for (round = 0; round < n; round++) {
        /* A relay: process p waits for flag p, adds its number, and raises the next one's flag. */
        int p = jiapid;
        if (p > 0)
            jia_waitcv(p);
        jia_lock(LOCK_BATON);
        good &= *baton == round * jiahosts + p;
        *baton += 1;
        jia_unlock(LOCK_BATON);
        if (p + 1 < jiahosts)
            jia_setcv(p + 1);
        else
            jia_setcv(0);
        /* All wait for the same flag; it is up already for the last, and stays so for those who come late. */
        jia_waitcv(0);
        jia_lock(LOCK_BATON);
        good &= *baton == (round + 1) * jiahosts;
        jia_unlock(LOCK_BATON);
        jia_wait();
        if (p == 0) {
            int flag;
            for (flag = 0; flag < jiahosts; flag++)
                jia_resetcv(flag);
        }
        jia_wait();
    }
    seconds = jia_clock() - started;
    return finish("flags", n, seconds, good);
}
