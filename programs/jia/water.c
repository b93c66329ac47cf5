/*
 * water: a drop of n molecules, each an oxygen and two hydrogens on springs. Oxygens repel and attract each other as
 * Lennard-Jones says, and all atoms carry charges. Time goes by the velocity Verlet rule, in units without names.
 *
 * Every pair of molecules is computed once: molecule i with the n/2 that follow it in a ring. So a process finds forces on
 * molecules of others; it gathers them in private and adds them to the shared ones part by part, under a lock per part.
 *
 * Process 0 repeats the run alone. Sums are made in another order then, hence a tolerance.
 */
#include "program.h"

#define ATOMS 3
#define COORDINATES (3 * ATOMS)
#define STEP 0.0005
#define BOND 0.6
#define SPRING 400.0
#define SOFT 0.05
#define TOLERANCE 1e-8

static const double charge[ATOMS] = {-0.8, 0.4, 0.4};
static const double mass[ATOMS] = {16.0, 1.0, 1.0};

typedef double molecule[COORDINATES];

/* On a cubic lattice, with a little disorder and speed. */
static void place(molecule *where, molecule *speed, long n, long i)
{
    long edge = (long)ceil(cbrt((double)n)), d, atom;
    long cell[3] = {i % edge, i / edge % edge, i / edge / edge};
    for (atom = 0; atom < ATOMS; atom++)
        for (d = 0; d < 3; d++) {
            uint64_t key = (uint64_t)(i * COORDINATES + atom * 3 + d);
            double offset = atom == 0 ? 0.0 : (d == atom - 1 ? BOND : 0.1);
            where[i][atom * 3 + d] = 1.6 * (double)cell[d] + offset + 0.02 * unit_at(21, key);
            speed[i][atom * 3 + d] = unit_at(22, key) - 0.5;
        }
}

/* Adds `strength` times the way from b to a to the force on a, and takes it from that on b. */
static void pull(double *on_a, double *on_b, const double *way, double strength)
{
    int d;
    for (d = 0; d < 3; d++) {
        on_a[d] += strength * way[d];
        on_b[d] -= strength * way[d];
    }
}

static double way_between(const double *a, const double *b, double *way)
{
    int d;
    double square = 0.0;
    for (d = 0; d < 3; d++) {
        way[d] = a[d] - b[d];
        square += way[d] * way[d];
    }
    return square;
}

static void springs(const double *where, double *force)
{
    static const double rest[3] = {BOND, BOND, 0.95};
    static const int ends[3][2] = {{0, 1}, {0, 2}, {1, 2}};
    int bond;
    for (bond = 0; bond < 3; bond++) {
        int a = 3 * ends[bond][0], b = 3 * ends[bond][1];
        double way[3], length = sqrt(way_between(where + a, where + b, way));
        pull(force + a, force + b, way, SPRING * (rest[bond] - length) / length);
    }
}

static void between(const double *one, const double *other, double *on_one, double *on_other)
{
    double way[3], square, sixth;
    int a, b;
    for (a = 0; a < ATOMS; a++)
        for (b = 0; b < ATOMS; b++) {
            square = way_between(one + 3 * a, other + 3 * b, way) + SOFT;
            pull(on_one + 3 * a, on_other + 3 * b, way, charge[a] * charge[b] / (square * sqrt(square)));
        }
    square = way_between(one, other, way) + SOFT;
    sixth = 1.0 / (square * square * square);
    pull(on_one, on_other, way, 24.0 * sixth * (2.0 * sixth - 1.0) / square);
}

/* All forces that the molecules of `part` are the first of. */
static void forces(const molecule *where, molecule *force, long n, struct part part)
{
    long i, k;
    for (i = part.begin; i < part.end; i++) {
        springs(where[i], force[i]);
        for (k = 1; k <= n / 2; k++) {
            long j = (i + k) % n;
            /* With an even number the one opposite would be met twice. */
            if (2 * k == n && i > j)
                continue;
            between(where[i], where[j], force[i], force[j]);
        }
    }
}

static void kick(molecule *speed, const molecule *force, struct part part)
{
    long i;
    int d;
    for (i = part.begin; i < part.end; i++)
        for (d = 0; d < COORDINATES; d++)
            speed[i][d] += 0.5 * STEP * force[i][d] / mass[d / 3];
}

static void drift(molecule *where, const molecule *speed, struct part part)
{
    long i;
    int d;
    for (i = part.begin; i < part.end; i++)
        for (d = 0; d < COORDINATES; d++)
            where[i][d] += STEP * speed[i][d];
}

/* Adds what this process found to what all have, beginning with its own part so that nobody queues behind anybody. */
static void add_to_shared(molecule *force, molecule *own, long n)
{
    long turn, i;
    int d;
    for (turn = 0; turn < jiahosts; turn++) {
        int q = (int)((jiapid + turn) % jiahosts);
        struct part part = part_of(n, q);
        jia_lock(q);
        for (i = part.begin; i < part.end; i++)
            for (d = 0; d < COORDINATES; d++)
                if (own[i][d] != 0.0)
                    force[i][d] += own[i][d];
        jia_unlock(q);
    }
    memset(own, 0, (size_t)n * sizeof *own);
}

static void *private_array(long n)
{
    void *memory = calloc((size_t)n, sizeof(molecule));
    if (memory == NULL)
        jia_error("no memory for %ld molecules", n);
    return memory;
}

static void together(molecule *where, molecule *speed, molecule *force, long n, long steps)
{
    struct part part = my_part(n);
    molecule *own = private_array(n);
    long step;
    forces((const molecule *)where, own, n, part);
    add_to_shared(force, own, n);
    jia_barrier();
    for (step = 0; step < steps; step++) {
        kick(speed, (const molecule *)force, part);
        drift(where, (const molecule *)speed, part);
        memset(force + part.begin, 0, (size_t)(part.end - part.begin) * sizeof *force);
        jia_barrier();
        forces((const molecule *)where, own, n, part);
        add_to_shared(force, own, n);
        jia_barrier();
        kick(speed, (const molecule *)force, part);
    }
    free(own);
}

static int same_as_alone(const molecule *where, long n, long steps)
{
    molecule *a = private_array(n), *v = private_array(n), *f = private_array(n);
    struct part all = {0, n};
    long i, step;
    int d, good = 1;
    for (i = 0; i < n; i++)
        place(a, v, n, i);
    forces((const molecule *)a, f, n, all);
    for (step = 0; step < steps; step++) {
        kick(v, (const molecule *)f, all);
        drift(a, (const molecule *)v, all);
        memset(f, 0, (size_t)n * sizeof *f);
        forces((const molecule *)a, f, n, all);
        kick(v, (const molecule *)f, all);
    }
    for (i = 0; i < n; i++)
        for (d = 0; d < COORDINATES; d++)
            good &= fabs(a[i][d] - where[i][d]) <= TOLERANCE * (1.0 + fabs(a[i][d]));
    free(a);
    free(v);
    free(f);
    return good;
}

int main(int argc, char **argv)
{
    long size[2] = {64, 5}, n, i;
    molecule *where, *speed, *force;
    double started, seconds;

    number_options(argc, argv, "nt", size);
    n = size[0];
    jia_init(argc, argv);
    where = alloc_rows(n, sizeof *where);
    force = alloc_rows(n, sizeof *force);
    speed = private_array(n);
    for (i = my_part(n).begin; i < my_part(n).end; i++)
        place(where, speed, n, i);
    jia_barrier();

    started = jia_clock();
    together(where, speed, force, n, size[1]);
    jia_barrier();
    seconds = jia_clock() - started;
    free(speed);
    return finish("water", n, seconds, jiapid != 0 || same_as_alone((const molecule *)where, n, size[1]));
}
