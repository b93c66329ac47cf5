/*
 * lu: a = l u without pivoting, by blocks, right-looking. Blocks are dealt to the processes like cards over a rectangle of
 * processes, and each lies whole in its owner's memory. In step k the owner of the diagonal block factors it; then the blocks to the right
 * of it and below it are solved, then all further ones are updated, each by its owner.
 *
 * The matrix is diagonally dominant, so that no pivoting is needed. Checked with a random vector r: l (u r) must be a r.
 */
#include "program.h"

static long n, block, blocks, process_rows, process_columns;
/* Where each block begins; every process computes the same table. */
static double **at;

static double a_at(long i, long j)
{
    return unit_at(7, (uint64_t)(i * n + j)) + (i == j ? (double)n : 0.0);
}

static long owner(long i, long j)
{
    return i % process_rows * process_columns + j % process_columns;
}

static double *block_at(long i, long j)
{
    return at[i * blocks + j];
}

static void lay_out(void)
{
    size_t bytes = (size_t)(block * block) * sizeof(double);
    long i, j, p;
    for (process_rows = (long)sqrt((double)jiahosts); jiahosts % process_rows != 0; process_rows--)
        ;
    process_columns = jiahosts / process_rows;
    at = malloc((size_t)(blocks * blocks) * sizeof *at);
    if (at == NULL)
        jia_error("no memory for a table of %ld blocks", blocks * blocks);
    for (p = 0; p < jiahosts; p++) {
        size_t count = 0;
        char *memory;
        for (i = 0; i < blocks; i++)
            for (j = 0; j < blocks; j++)
                count += owner(i, j) == p;
        memory = count == 0 ? NULL : (char *)jia_alloc2p(count * bytes, (int)p);
        for (i = 0; i < blocks; i++)
            for (j = 0; j < blocks; j++)
                if (owner(i, j) == p) {
                    at[i * blocks + j] = (double *)memory;
                    memory += bytes;
                }
    }
}

static void fill_own(void)
{
    long i, j, x, y;
    for (i = 0; i < blocks; i++)
        for (j = 0; j < blocks; j++)
            if (owner(i, j) == jiapid)
                for (y = 0; y < block; y++)
                    for (x = 0; x < block; x++)
                        block_at(i, j)[y * block + x] = a_at(i * block + y, j * block + x);
}

/* d = l u in place. */
static void factor(double *d)
{
    long i, j, k;
    for (k = 0; k < block; k++)
        for (i = k + 1; i < block; i++) {
            double f = d[i * block + k] /= d[k * block + k];
            for (j = k + 1; j < block; j++)
                d[i * block + j] -= f * d[k * block + j];
        }
}

/* Right of the diagonal: b becomes l^-1 b. */
static void solve_row(const double *d, double *b)
{
    long i, j, k;
    for (k = 0; k < block; k++)
        for (i = k + 1; i < block; i++) {
            double f = d[i * block + k];
            for (j = 0; j < block; j++)
                b[i * block + j] -= f * b[k * block + j];
        }
}

/* Below the diagonal: b becomes b u^-1. */
static void solve_column(const double *d, double *b)
{
    long i, j, k;
    for (i = 0; i < block; i++)
        for (k = 0; k < block; k++) {
            double f = b[i * block + k] /= d[k * block + k];
            for (j = k + 1; j < block; j++)
                b[i * block + j] -= f * d[k * block + j];
        }
}

/* c -= a b */
static void update(const double *a, const double *b, double *c)
{
    long i, j, k;
    for (i = 0; i < block; i++)
        for (k = 0; k < block; k++) {
            double f = a[i * block + k];
            for (j = 0; j < block; j++)
                c[i * block + j] -= f * b[k * block + j];
        }
}

static void decompose(void)
{
    long i, j, k;
    for (k = 0; k < blocks; k++) {
        if (owner(k, k) == jiapid)
            factor(block_at(k, k));
        jia_barrier();
        for (i = k + 1; i < blocks; i++) {
            if (owner(k, i) == jiapid)
                solve_row(block_at(k, k), block_at(k, i));
            if (owner(i, k) == jiapid)
                solve_column(block_at(k, k), block_at(i, k));
        }
        jia_barrier();
        /* No barrier behind these: the next diagonal block is factored by the one who updates it. */
        for (i = k + 1; i < blocks; i++)
            for (j = k + 1; j < blocks; j++)
                if (owner(i, j) == jiapid)
                    update(block_at(i, k), block_at(k, j), block_at(i, j));
    }
    jia_barrier();
}

static double entry(long i, long j)
{
    return block_at(i / block, j / block)[i % block * block + j % block];
}

static int is_decomposition(void)
{
    double *r = malloc((size_t)n * sizeof *r), *ur = calloc((size_t)n, sizeof *ur);
    int good = r != NULL && ur != NULL;
    long i, j;
    for (i = 0; good && i < n; i++)
        r[i] = unit_at(8, (uint64_t)i) - 0.5;
    for (i = 0; good && i < n; i++)
        for (j = i; j < n; j++)
            ur[i] += entry(i, j) * r[j];
    for (i = 0; good && i < n; i++) {
        double left = ur[i], right = 0.0;
        for (j = 0; j < i; j++)
            left += entry(i, j) * ur[j];
        for (j = 0; j < n; j++)
            right += a_at(i, j) * r[j];
        good = fabs(left - right) < 1e-9 * (double)n;
    }
    free(r);
    free(ur);
    return good;
}

int main(int argc, char **argv)
{
    long size[2] = {256, 32};
    double started, seconds;

    number_options(argc, argv, "nb", size);
    n = size[0];
    block = size[1];
    blocks = n / block;
    if (blocks * block != n) {
        fprintf(stderr, "lu: %ld is no multiple of the block size %ld\n", n, block);
        return 2;
    }
    jia_init(argc, argv);
    lay_out();
    fill_own();
    jia_barrier();

    started = jia_clock();
    decompose();
    seconds = jia_clock() - started;
    return finish("lu", n, seconds, jiapid != 0 || is_decomposition());
}
