/*
 * sharing: several writers of one page. In every round each process writes its words of every page of a large field, and
 * then reads all of it; who writes which word changes, so that a word that was left behind anywhere shows. The field may
 * be far larger than the cache of pages.
 */
#include "program.h"

int main(int argc, char **argv)
{
    long size[2] = {64, 4}, words, round, at, pages;
    uint32_t *field;
    int good = 1;
    double started, seconds;

    number_options(argc, argv, "nt", size);
    pages = size[0];
    words = pages * 1024;
    jia_init(argc, argv);
    jia_config(HMIG, ON);
    jia_config(ADWD, ON);
    jia_config(WVEC, ON);
    field = (uint32_t *)jia_alloc((unsigned long)pages * 4096);
    jia_barrier();

    started = jia_clock();
    for (round = 0; round < size[1]; round++) {
        for (at = (jiapid + round) % jiahosts; at < words; at += jiahosts)
            field[at] = (uint32_t)random_at((uint64_t)round, (uint64_t)at);
        jia_barrier();
        for (at = 0; at < words; at++)
            good &= field[at] == (uint32_t)random_at((uint64_t)round, (uint64_t)at);
        jia_barrier();
    }
    seconds = jia_clock() - started;
    return finish("sharing", pages, seconds, good);
}
