/*
 * jia.h: shared memory over several processes, for programs in C.
 *
 * Every process runs the same main(). Memory from jia_alloc has the same address in all processes. The next holder of lock n
 * sees what a process wrote between jia_lock(n) and jia_unlock(n). jia_barrier makes all writes visible to all processes.
 * docs/use/jia.md explains this, and how to start a program: ferroce dsm run -n 4 ./program
 *
 * A call that fails prints one sentence and ends the whole job, since most calls have no result.
 */
#ifndef FERROCE_JIA_H
#define FERROCE_JIA_H

#include <stdarg.h>
#include <stdio.h>

#include "setting.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Number of this process, and number of processes. Valid after jia_init. */
extern int jiapid;
extern int jiahosts;

/* Joins the job of the launcher. A program without a launcher is a job of one process. */
void jia_init(int argc, char **argv);
/* Waits for the other processes, leaves the job and returns. jiapid keeps its value. */
void jia_exit(void);

/*
 * Memory: zeroed, at the same address in all processes. All processes make the same calls in the same order.
 * The home of a page is the process that stores it; it accesses the page at the lowest cost.
 */
unsigned long jia_alloc(unsigned long bytes);                                    /* pages round-robin over homes */
unsigned long jia_alloc1(unsigned long bytes);                                   /* all on process 0 */
unsigned long jia_alloc2(unsigned long bytes, unsigned long block);              /* blocks round-robin, from process 0 */
unsigned long jia_alloc2p(unsigned long bytes, int home);                        /* all on one process */
unsigned long jia_alloc3(unsigned long bytes, unsigned long block, int first);   /* blocks round-robin, from `first` */
unsigned long jia_alloc4(unsigned long bytes, int *blocks, int count, int first); /* another block size in each round */
unsigned long jia_alloc_array(unsigned long bytes, int *shares, int count);      /* shares[i] bytes on process i */
unsigned long jia_alloc_random(unsigned long bytes);                             /* all on one random process */
void jia_free(void *memory);

/* Flags of jia_falloc, each with the arguments that follow it. */
#define JIA_CYCLIC 0   /* unsigned long block, int first */
#define JIA_ON_HOME 1  /* int home */
#define JIA_ROTATING 2 /* none: each call uses the next process */
#define JIA_RANDOM 3   /* none */
#define JIA_TRIPS 4    /* int *blocks, int count, int first */
#define JIA_SHARES 5   /* int *shares, int count */

/* Copies between private and shared memory, without page faults and without keeping pages. jia_get returns its first
 * argument, as memcpy does. */
unsigned char *jia_get(void *into, const void *shared, unsigned long bytes);
void jia_put(const void *from, void *shared, unsigned long bytes);

/* Locks 0 to 4095. A process may hold several; it releases the last one first. */
void jia_lock(int lock);
void jia_unlock(int lock);
/* Both wait for all processes. jia_barrier also makes all writes visible; the caller must not hold a lock. */
void jia_barrier(void);
void jia_wait(void);
/* Flags, which stay set until they are reset. They do not make writes visible. */
void jia_setcv(int flag);
void jia_resetcv(int flag);
void jia_waitcv(int flag);

/* Messages. -1 for `from` or `tag` means any. jia_recv waits, and returns the number of bytes received, at most `length`. */
void jia_send(const void *bytes, int length, int to, int tag);
int jia_recv(void *bytes, int length, int from, int tag);
void jia_bcast(void *bytes, int length, int root);
/* Combines `count` numbers of each process into `count` numbers at the root, with an operation from below. */
void jia_reduce(const void *numbers, void *result, int count, int operation, int root);

#define JIA_SUM_INT 0
#define JIA_MAX_INT 1
#define JIA_MIN_INT 2
#define JIA_SUM_FLOAT 10
#define JIA_MAX_FLOAT 11
#define JIA_MIN_FLOAT 12
#define JIA_SUM_DOUBLE 20
#define JIA_MAX_DOUBLE 21
#define JIA_MIN_DOUBLE 22

/* Optimisations that a program may turn on and off. They do not change results. */
void jia_config(int option, int on);

#ifndef ON
#define OFF 0
#define ON 1
#endif
#define HMIG 0      /* a page's home moves to its only writer */
#define ADWD 1      /* a page that one process keeps writing stays writable */
#define BROADCAST 2 /* barriers and broadcasts go down a tree */
#define LOADBAL 3   /* jia_divtask goes by measured speed */
#define WVEC 4      /* only the changed blocks of a page are fetched */

/* In: the first and the last index of a loop. Out: the part of this process. */
void jia_divtask(int *begin, int *end);
/* With LOADBAL on, measures the speed of each process since the last call; jia_divtask then splits accordingly. */
void jia_loadcheck(void);

/* Seconds since the first call in this process. May be called before jia_init. */
double jia_clock(void);
/* Begin and end of the section that `ferroce dsm run --stat` counts. Both return the time of jia_clock in microseconds. */
unsigned int jia_startstat(void);
unsigned int jia_stopstat(void);

/* Internal functions of the inline calls and macros below. */
unsigned long ferroce_jia_place(unsigned long bytes, int flag, unsigned long block, int *blocks, int count, int home);
void ferroce_jia_fail(const char *sentence);
void ferroce_jia_subscript(int *scheduler, int *index, int last, int processes);

/* C90 does not declare vsnprintf, but the C library has it. */
#if !defined(__cplusplus) && (!defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L)
extern int vsnprintf(char *text, size_t size, const char *format, va_list values);
#endif

/* Prints a sentence and ends the whole job. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2), unused))
#endif
static void jia_error(const char *format, ...)
{
    char sentence[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(sentence, sizeof sentence, format, values);
    va_end(values);
    ferroce_jia_fail(sentence);
}
#define jia_errexit jia_error

/* Allocates with the placement of the flag. */
#if defined(__GNUC__)
__attribute__((unused))
#endif
static unsigned long jia_falloc(unsigned long bytes, int flag, ...)
{
    unsigned long block = 0;
    int *blocks = NULL;
    int count = 0, home = 0;
    va_list values;
    va_start(values, flag);
    if (flag == JIA_CYCLIC)
        block = va_arg(values, unsigned long);
    if (flag == JIA_TRIPS || flag == JIA_SHARES) {
        blocks = va_arg(values, int *);
        count = va_arg(values, int);
    }
    if (flag == JIA_CYCLIC || flag == JIA_ON_HOME || flag == JIA_TRIPS)
        home = va_arg(values, int);
    va_end(values);
    return ferroce_jia_place(bytes, flag, block, blocks, count, home);
}

/* Hints of older versions, without effect. */
#define jia_wtnt(a, b)
#define jia_wtntw(a)
#define jia_wtntd(a)

/*
 * The macros of Argonne's parallel programs. They are complete statements, as in the original: programs write them with and
 * without a semicolon. Numbers are assigned in the order of the calls, so all processes make the same calls.
 */
extern int jia_lock_index;
extern int jia_pause_index;

#define FERROCE_JIA_LOCKS 4096

#define LOCKDEC(lock) int lock;
#define LOCKINIT(lock) (lock) = jia_lock_index++ % FERROCE_JIA_LOCKS;
#define LOCK(lock) jia_lock(lock);
#define UNLOCK(lock) jia_unlock(lock);

#define ALOCKDEC(locks, count) int locks[count];
#define ALOCKINIT(locks, count) \
    { int ferroce_at; for (ferroce_at = 0; ferroce_at < (count); ferroce_at++) { LOCKINIT((locks)[ferroce_at]) } }
#define ALOCK(locks, at) jia_lock((locks)[at]);
#define AULOCK(locks, at) jia_unlock((locks)[at]);

#define BARDEC(barrier) int barrier;
#define BARINIT(barrier) (barrier) = 0;
#define BARRIER(barrier, processes) jia_barrier();

#define EXTERN_ENV
#define MAIN_ENV
#define MAIN_INITENV(a, b)
#define MAIN_END
#define WAIT_FOR_END(processes) jia_barrier();

#define PAUSEDEC(pause) int pause;
/* Never a flag that another PAUSEINIT has: a number beyond the last flag is refused when it is used. */
#define PAUSEINIT(pause) (pause) = jia_pause_index++;
#define PAUSE_SET(pause, value) jia_setcv(pause);
#define PAUSE_RESET(pause) jia_resetcv(pause);
#define PAUSE_POLL(pause) jia_waitcv(pause);
#define PAUSE_ACCEPT(pause) jia_waitcv(pause);

/* Self-scheduled loops. The array must be in shared memory: { lock, next index, number of processes at the end }. */
#define GSDEC(scheduler) int scheduler[3];
#define GSINIT(scheduler) { LOCKINIT((scheduler)[0]) (scheduler)[1] = 0; (scheduler)[2] = 0; }
/* Sets `index` to the next number from 0 to `last`, or to -1 at the end. The loop restarts once all processes received -1. */
#define GETSUB(scheduler, index, last, processes) ferroce_jia_subscript((scheduler), &(index), (last), (processes));

#define G_MALLOC(bytes) jia_alloc(bytes);
#define G2_MALLOC(bytes, home) jia_alloc2p((bytes), (home));

#define CLOCK(x) x = jia_clock();

#ifdef __cplusplus
}
#endif

#endif
