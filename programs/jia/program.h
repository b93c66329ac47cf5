/*
 * What the programs here share: who does which part, random numbers, and the last line.
 *
 * A program ends with `return finish(...)`. Process 0 prints one line with the time and `ok` or `WRONG`; all processes
 * then end with the same status, 0 only if nobody found anything wrong.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <jia.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNUSED_HERE __attribute__((unused))

struct part {
    long begin, end;
};

/* The part of 0 .. n that process p of `jiahosts` does; parts differ by one at most. */
UNUSED_HERE static struct part part_of(long n, long p)
{
    struct part part = {n * p / jiahosts, n * (p + 1) / jiahosts};
    return part;
}

UNUSED_HERE static struct part my_part(long n)
{
    return part_of(n, jiapid);
}

/* A mixer of bits: the same index gives the same number, whoever asks and in whatever order. */
UNUSED_HERE static uint64_t random_at(uint64_t seed, uint64_t index)
{
    uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u ^ (seed + 1) * 0xd1b54a32d192ed03u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* From 0 to 1, without 1. */
UNUSED_HERE static double unit_at(uint64_t seed, uint64_t index)
{
    return (double)(random_at(seed, index) >> 11) / 9007199254740992.0;
}

/* A positive number behind an option; anything else ends the program before it has begun. */
UNUSED_HERE static long number_option(const char *text)
{
    char *rest;
    long value = strtol(text, &rest, 0);
    if (*rest != 0 || value <= 0) {
        fprintf(stderr, "not a positive number: %s\n", text);
        exit(2);
    }
    return value;
}

/* Options of the form -x NUMBER; `letters` names them, `values` has a default for each and takes what is given. */
UNUSED_HERE static void number_options(int argc, char **argv, const char *letters, long *values)
{
    char spec[64];
    size_t count = 0, at;
    int letter;
    for (at = 0; letters[at] != 0 && count + 2 < sizeof spec; at++) {
        spec[count++] = letters[at];
        spec[count++] = ':';
    }
    spec[count] = 0;
    optind = 1;
    while ((letter = getopt(argc, argv, spec)) != -1) {
        const char *place = letter == '?' ? NULL : strchr(letters, letter);
        if (place == NULL)
            exit(2);
        values[place - letters] = number_option(optarg);
    }
}

/* Rows of `row` bytes each, every process being the home of its own part. */
UNUSED_HERE static void *alloc_rows(long rows, size_t row)
{
    int *shares = malloc(sizeof *shares * (size_t)jiahosts);
    size_t total = (size_t)rows * row;
    void *memory;
    long p;
    if (shares == NULL)
        jia_error("no memory for %d numbers", jiahosts);
    for (p = 0; p < jiahosts; p++) {
        struct part part = part_of(rows, p);
        shares[p] = (int)((size_t)(part.end - part.begin) * row);
    }
    memory = (void *)jia_alloc_array(total, shares, jiahosts);
    free(shares);
    return memory;
}

#define VERDICT_LOCK 4095

/* The last thing a program does. `good` is this process's own verdict. */
UNUSED_HERE static int finish(const char *name, long size, double seconds, int good)
{
    int *wrong = (int *)jia_alloc(sizeof *wrong);
    int total;
    if (!good) {
        fprintf(stderr, "%s: process %d found a wrong result\n", name, jiapid);
        jia_lock(VERDICT_LOCK);
        *wrong += 1;
        jia_unlock(VERDICT_LOCK);
    }
    jia_barrier();
    total = *wrong;
    if (jiapid == 0)
        printf("%s size=%ld processes=%d %.6f s %s\n", name, size, jiahosts, seconds, total == 0 ? "ok" : "WRONG");
    fflush(stdout);
    jia_exit();
    return total == 0 ? 0 : 1;
}

#endif
