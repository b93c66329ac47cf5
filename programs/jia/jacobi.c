/*
 * jacobi: heat on a square plate whose rim stays cold, each point becoming the mean of its four neighbours.
 *
 * The plate starts as one wave, sin(pi x) sin(pi y). Averaging only shrinks that wave, by cos(pi h) in each step, so the
 * result is known in closed form.
 */
#include "program.h"

#define TOLERANCE 1e-12

static double wave(long i, long j, long n)
{
    double h = acos(-1.0) / (double)(n + 1);
    return sin((double)i * h) * sin((double)j * h);
}

static void relax(const double *from, double *to, long n, struct part rows)
{
    long width = n + 2, i, j;
    for (i = rows.begin + 1; i <= rows.end; i++)
        for (j = 1; j <= n; j++)
            to[i * width + j] = 0.25 * (from[(i - 1) * width + j] + from[(i + 1) * width + j]
                                        + from[i * width + j - 1] + from[i * width + j + 1]);
}

int main(int argc, char **argv)
{
    long size[2] = {254, 50}, n, steps, width, i, j;
    double *plate[2], started, seconds, shrunk, worst = 0.0;
    struct part rows, all;

    number_options(argc, argv, "nt", size);
    n = size[0];
    steps = size[1];
    width = n + 2;
    jia_init(argc, argv);
    rows = my_part(n);
    plate[0] = alloc_rows(width, (size_t)width * sizeof(double));
    plate[1] = alloc_rows(width, (size_t)width * sizeof(double));
    for (i = rows.begin + 1; i <= rows.end; i++)
        for (j = 1; j <= n; j++)
            plate[0][i * width + j] = wave(i, j, n);
    jia_barrier();

    started = jia_clock();
    for (i = 0; i < steps; i++) {
        relax(plate[i % 2], plate[(i + 1) % 2], n, rows);
        jia_barrier();
    }
    seconds = jia_clock() - started;

    shrunk = pow(cos(acos(-1.0) / (double)(n + 1)), (double)steps);
    all = part_of(n, (jiapid + 1) % jiahosts);
    for (i = all.begin + 1; i <= all.end; i++)
        for (j = 1; j <= n; j++) {
            double off = fabs(plate[steps % 2][i * width + j] - shrunk * wave(i, j, n));
            worst = off > worst ? off : worst;
        }
    return finish("jacobi", n, seconds, worst < TOLERANCE);
}
