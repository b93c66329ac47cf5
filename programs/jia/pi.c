/*
 * pi: the area below 4 / (1 + x^2) from 0 to 1, by the midpoint rule. Every process sums its part of the strips and adds
 * it to the shared total under a lock.
 */
#include "program.h"

int main(int argc, char **argv)
{
    long n = 1000000;
    double *area, own = 0.0, started, seconds, step;
    struct part part;
    long i;

    number_options(argc, argv, "n", &n);
    jia_init(argc, argv);
    area = (double *)jia_alloc(sizeof *area);
    jia_barrier();

    started = jia_clock();
    part = my_part(n);
    step = 1.0 / (double)n;
    for (i = part.begin; i < part.end; i++) {
        double x = ((double)i + 0.5) * step;
        own += 4.0 / (1.0 + x * x);
    }
    jia_lock(0);
    *area += own * step;
    jia_unlock(0);
    jia_barrier();
    seconds = jia_clock() - started;

    /* The rule is off by about 1 / (12 n^2), and sums by some rounding. */
    return finish("pi", n, seconds, fabs(*area - acos(-1.0)) < 1.0 / (double)n / (double)n + 1e-10);
}
