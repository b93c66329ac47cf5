/* How long an empty barrier of MPI takes: the peer that `cargo xtask bench dsm` measures ours against.
 *
 *     mpicc -O2 barrier.c -o barrier && mpirun -n 2 ./barrier
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARM = 200, RUNS = 101, PER_RUN = 20 };

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    static double us[RUNS];
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < WARM; i++)
        MPI_Barrier(MPI_COMM_WORLD);
    for (int run = 0; run < RUNS; run++) {
        double start = MPI_Wtime();
        for (int i = 0; i < PER_RUN; i++)
            MPI_Barrier(MPI_COMM_WORLD);
        us[run] = (MPI_Wtime() - start) * 1e6 / PER_RUN;
    }
    qsort(us, RUNS, sizeof us[0], ascending);
    if (rank == 0)
        printf("empty barrier %.3f us\n", us[RUNS / 2]);
    MPI_Finalize();
    return 0;
}
