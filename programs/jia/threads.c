/*
 * threads: several threads of each process read and write shared memory at once. They fault on the same pages, write
 * different words of them, and take locks; between the parts, one thread goes to the barrier for all.
 */
#include <pthread.h>

#include "program.h"

#define THREADS 4
#define LOCK_SUM 5

struct worker {
    pthread_t thread;
    long number, words;
    int good;
};

static uint32_t *field;
static long *sum;
static long rounds;
static pthread_barrier_t together;

static void everybody(long number)
{
    pthread_barrier_wait(&together);
    if (number == 0)
        jia_barrier();
    pthread_barrier_wait(&together);
}

static void *work(void *argument)
{
    struct worker *self = argument;
    long workers = (long)THREADS * jiahosts, me = (long)jiapid * THREADS + self->number, round, at;
    for (round = 0; round < rounds; round++) {
        for (at = me; at < self->words; at += workers)
            field[at] = (uint32_t)random_at((uint64_t)round, (uint64_t)at);
        jia_lock(LOCK_SUM);
        *sum += 1;
        jia_unlock(LOCK_SUM);
        everybody(self->number);
        for (at = 0; at < self->words; at++)
            self->good &= field[at] == (uint32_t)random_at((uint64_t)round, (uint64_t)at);
        self->good &= *sum == (round + 1) * workers;
        everybody(self->number);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    long size[2] = {8, 4}, i;
    struct worker workers[THREADS];
    int good = 1;
    double started, seconds;

    number_options(argc, argv, "nt", size);
    rounds = size[1];
    jia_init(argc, argv);
    field = (uint32_t *)jia_alloc((unsigned long)size[0] * 4096);
    sum = (long *)jia_alloc(sizeof *sum);
    pthread_barrier_init(&together, NULL, THREADS);
    jia_barrier();

    started = jia_clock();
    for (i = 0; i < THREADS; i++) {
        workers[i].number = i;
        workers[i].words = size[0] * 1024;
        workers[i].good = 1;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            jia_error("a thread could not be started");
    }
    for (i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        good &= workers[i].good;
    }
    seconds = jia_clock() - started;
    return finish("threads", size[0], seconds, good);
}
