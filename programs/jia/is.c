/*
 * is: ranks of 2^n integer keys, as in the NAS benchmark IS. Every process counts its keys by value; the counts of all are
 * summed, each process taking a part of the values; a key's rank is the number of smaller keys, plus the number of equal
 * ones before it.
 *
 * Checked against a count over all keys that every process makes on its own.
 */
#include "program.h"

/* The sum of four random numbers: values in the middle are frequent, as the benchmark wants them. */
static int key_at(long i, long range)
{
    uint64_t x = random_at(5, (uint64_t)i);
    uint64_t sum = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);
    return (int)(sum * (uint64_t)range >> 18);
}

/* Shared: counts[p * range + v] is how often process p has value v; after `spread`, the rank of its first v. */
static void count_own(int *counts, const int *keys, long count, long range)
{
    long i;
    memset(counts, 0, (size_t)range * sizeof *counts);
    for (i = 0; i < count; i++)
        counts[keys[i]]++;
}

/* Turns the counts of this process's values into ranks within that part; their total goes to totals[jiapid]. */
static void spread(int *counts, int *totals, long range)
{
    struct part values = my_part(range);
    int before = 0;
    long v, p;
    for (v = values.begin; v < values.end; v++)
        for (p = 0; p < jiahosts; p++) {
            int here = counts[p * range + v];
            counts[p * range + v] = before;
            before += here;
        }
    totals[jiapid] = before;
}

static void rank_own(int *ranks, const int *keys, long count, const int *counts, const int *totals, long range)
{
    int *next = malloc((size_t)range * sizeof *next);
    int before = 0;
    long i, v, p;
    if (next == NULL)
        jia_error("no memory for %ld numbers", range);
    for (p = 0; p < jiahosts; p++) {
        struct part values = part_of(range, p);
        for (v = values.begin; v < values.end; v++)
            next[v] = before + counts[jiapid * range + v];
        before += totals[p];
    }
    for (i = 0; i < count; i++)
        ranks[i] = next[keys[i]]++;
    free(next);
}

static int ranks_are_right(const int *ranks, struct part part, long n, long range)
{
    int *next = calloc((size_t)range + 1, sizeof *next);
    int good = next != NULL;
    long i;
    for (i = 0; good && i < n; i++)
        next[key_at(i, range) + 1]++;
    for (i = 0; good && i < range; i++)
        next[i + 1] += next[i];
    for (i = 0; good && i < part.end; i++) {
        int rank = next[key_at(i, range)]++;
        good = i < part.begin || ranks[i - part.begin] == rank;
    }
    free(next);
    return good;
}

int main(int argc, char **argv)
{
    long size[3] = {16, 10, 10}, n, range, count, i, round;
    int *keys, *ranks, *counts, *totals;
    struct part part;
    double started, seconds;

    number_options(argc, argv, "nbt", size);
    n = 1L << size[0];
    range = 1L << size[1];
    jia_init(argc, argv);
    part = my_part(n);
    count = part.end - part.begin;
    keys = malloc((size_t)count * sizeof *keys);
    ranks = malloc((size_t)count * sizeof *ranks);
    if (keys == NULL || ranks == NULL)
        jia_error("no memory for %ld keys", count);
    counts = alloc_rows(jiahosts, (size_t)range * sizeof *counts);
    totals = (int *)jia_alloc((size_t)jiahosts * sizeof *totals);
    for (i = 0; i < count; i++)
        keys[i] = key_at(part.begin + i, range);
    jia_barrier();

    started = jia_clock();
    for (round = 0; round < size[2]; round++) {
        count_own(counts + jiapid * range, keys, count, range);
        jia_barrier();
        spread(counts, totals, range);
        jia_barrier();
        rank_own(ranks, keys, count, counts, totals, range);
        jia_barrier();
    }
    seconds = jia_clock() - started;
    return finish("is", size[0], seconds, ranks_are_right(ranks, part, n, range));
}
