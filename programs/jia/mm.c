/*
 * mm: c = a b. Every process computes its rows of c; a and c live where their rows are needed, b round-robin over all.
 * The entries are small whole numbers, so that sums are exact, and the result is checked by Freivalds' method: for a
 * vector r with random entries, c r must be a (b r).
 */
#include "program.h"

#define TILE 64

static double a_at(long i, long j)
{
    return (double)(random_at(1, (uint64_t)(i * 65536 + j)) % 7) - 3.0;
}

static double b_at(long i, long j)
{
    return (double)(random_at(2, (uint64_t)(i * 65536 + j)) % 5) - 2.0;
}

static void multiply(const double *a, const double *b, double *c, long n, struct part rows)
{
    long tile, i, j, k;
    for (tile = 0; tile < n; tile += TILE) {
        long last = tile + TILE < n ? tile + TILE : n;
        for (i = rows.begin; i < rows.end; i++)
            for (k = tile; k < last; k++) {
                double factor = a[i * n + k];
                for (j = 0; j < n; j++)
                    c[i * n + j] += factor * b[k * n + j];
            }
    }
}

/* Every process checks its own rows, so that the check is shared work, too. */
static int is_product(const double *c, long n, struct part rows)
{
    double *r = malloc(sizeof *r * (size_t)n), *br = calloc((size_t)n, sizeof *br);
    int good = r != NULL && br != NULL;
    long i, j;
    for (i = 0; good && i < n; i++)
        r[i] = (double)(random_at(3, (uint64_t)i) % 11) - 5.0;
    for (i = 0; good && i < n; i++)
        for (j = 0; j < n; j++)
            br[i] += b_at(i, j) * r[j];
    for (i = rows.begin; good && i < rows.end; i++) {
        double left = 0.0, right = 0.0;
        for (j = 0; j < n; j++) {
            left += c[i * n + j] * r[j];
            right += a_at(i, j) * br[j];
        }
        good = left == right;
    }
    free(r);
    free(br);
    return good;
}

int main(int argc, char **argv)
{
    long n = 256, i, j;
    double *a, *b, *c, started, seconds;
    struct part rows;
    int good;

    number_options(argc, argv, "n", &n);
    jia_init(argc, argv);
    rows = my_part(n);
    a = alloc_rows(n, (size_t)n * sizeof *a);
    b = (double *)jia_alloc((size_t)(n * n) * sizeof *b);
    c = alloc_rows(n, (size_t)n * sizeof *c);
    for (i = rows.begin; i < rows.end; i++)
        for (j = 0; j < n; j++) {
            a[i * n + j] = a_at(i, j);
            b[i * n + j] = b_at(i, j);
        }
    jia_barrier();

    started = jia_clock();
    multiply(a, b, c, n, rows);
    jia_barrier();
    seconds = jia_clock() - started;

    /* The neighbour's rows: what this process wrote itself would prove nothing about sharing. */
    good = is_product(c, n, part_of(n, (jiapid + 1) % jiahosts));
    return finish("mm", n, seconds, good);
}
