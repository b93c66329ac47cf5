/*
 * ep: the embarrassingly parallel kernel of the NAS benchmarks. 2^n pairs of uniform random numbers become normal ones by
 * Marsaglia's polar method; their sums, and how many fall into each square ring, are counted.
 *
 * The generator is x -> 5^13 x mod 2^46, so that everybody can jump to the start of its part. For the published
 * sizes the sums must be the published ones; otherwise process 0 does all of it again.
 */
#include "program.h"

#define RINGS 10
#define BITS 46
#define MASK ((UINT64_C(1) << BITS) - 1)
#define FACTOR UINT64_C(1220703125)
#define SEED UINT64_C(271828183)
#define TOLERANCE 1e-8

struct tally {
    double sx, sy;
    long count[RINGS];
};

/* The product fits: only its low 46 bits count, and unsigned numbers wrap. */
static uint64_t times(uint64_t a, uint64_t b)
{
    return a * b & MASK;
}

static uint64_t jump(uint64_t steps)
{
    uint64_t factor = FACTOR, x = SEED;
    for (; steps != 0; steps >>= 1, factor = times(factor, factor))
        if (steps & 1)
            x = times(x, factor);
    return x;
}

static void tally_pairs(struct tally *tally, long begin, long end)
{
    const double scale = ldexp(1.0, -BITS);
    uint64_t x = jump((uint64_t)begin * 2);
    long i;
    for (i = begin; i < end; i++) {
        double u, v, t;
        x = times(x, FACTOR);
        u = 2.0 * (scale * (double)x) - 1.0;
        x = times(x, FACTOR);
        v = 2.0 * (scale * (double)x) - 1.0;
        t = u * u + v * v;
        if (t <= 1.0) {
            double stretch = sqrt(-2.0 * log(t) / t);
            double p = u * stretch, q = v * stretch;
            double ring = fmax(fabs(p), fabs(q));
            tally->count[(int)ring < RINGS ? (int)ring : RINGS - 1]++;
            tally->sx += p;
            tally->sy += q;
        }
    }
}

static int close_to(double value, double wanted)
{
    return fabs(value - wanted) <= TOLERANCE * fabs(wanted) + TOLERANCE;
}

static int is_right(const struct tally *got, long n)
{
    static const struct { long n; double sx, sy; } published[] = {
        {24, -3.247834652034740e3, -6.958407078382297e3},
        {25, -2.863319731645753e3, -6.320053679109499e3},
        {28, -4.295875165629892e3, -1.580732573678431e4},
    };
    struct tally alone = {0};
    size_t at;
    for (at = 0; at < sizeof published / sizeof *published; at++)
        if (published[at].n == n)
            return close_to(got->sx, published[at].sx) && close_to(got->sy, published[at].sy);
    tally_pairs(&alone, 0, 1L << n);
    return close_to(got->sx, alone.sx) && close_to(got->sy, alone.sy)
           && memcmp(got->count, alone.count, sizeof alone.count) == 0;
}

int main(int argc, char **argv)
{
    long n = 18, at;
    struct tally *all, own = {0};
    struct part part;
    double started, seconds;

    number_options(argc, argv, "n", &n);
    jia_init(argc, argv);
    all = (struct tally *)jia_alloc(sizeof *all);
    jia_barrier();

    started = jia_clock();
    part = my_part(1L << n);
    tally_pairs(&own, part.begin, part.end);
    jia_lock(0);
    all->sx += own.sx;
    all->sy += own.sy;
    for (at = 0; at < RINGS; at++)
        all->count[at] += own.count[at];
    jia_unlock(0);
    jia_barrier();
    seconds = jia_clock() - started;
    return finish("ep", n, seconds, jiapid != 0 || is_right(all, n));
}
