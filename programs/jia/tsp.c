/*
 * tsp: the shortest round trip through n cities, by branch and bound. All beginnings of three cities lie in a shared list,
 * the shortest first, because most of the work is below them and nobody should be left with much of it at the end;
 * whoever has nothing to do takes the next one and searches below it, cutting off what cannot be shorter than the best
 * trip known. The best trip is shared, and is looked at with each new beginning.
 *
 * Checked against Held and Karp's dynamic programme, which needs n 2^n numbers; so n is at most 20.
 */
#include "program.h"

#define MOST 20
#define LOCK_LIST 0

struct shared {
    int next;
    int best;
    int tour[MOST];
};

struct beginning {
    int second, third, length;
};

static int n, distance[MOST][MOST], half_cheapest[MOST];
static struct beginning beginnings[MOST * MOST];
static int count;
static struct shared *shared;

/* What one process knows while it searches. */
struct search {
    int best, found;
    int tour[MOST], best_tour[MOST];
};

static void place_cities(void)
{
    int i, j;
    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++) {
            double dx = 1000.0 * (unit_at(11, (uint64_t)i) - unit_at(11, (uint64_t)j));
            double dy = 1000.0 * (unit_at(12, (uint64_t)i) - unit_at(12, (uint64_t)j));
            distance[i][j] = (int)sqrt(dx * dx + dy * dy);
        }
    /* Each city is entered and left, at the price of its two shortest roads at least. */
    for (i = 0; i < n; i++) {
        int first = 1 << 30, second = 1 << 30;
        for (j = 0; j < n; j++)
            if (j != i && distance[i][j] < second) {
                second = distance[i][j] < first ? first : distance[i][j];
                first = distance[i][j] < first ? distance[i][j] : first;
            }
        half_cheapest[i] = (first + second) / 2;
    }
}

static int length_of(const int *tour)
{
    int i, length = 0;
    for (i = 0; i < n; i++)
        length += distance[tour[i]][tour[(i + 1) % n]];
    return length;
}

/* A trip to begin with: always to the nearest city, then crossings are undone while that helps. */
static int first_guess(int *tour)
{
    int used = 1, i, j, improved = 1;
    tour[0] = 0;
    for (i = 1; i < n; i++) {
        int nearest = -1;
        for (j = 0; j < n; j++)
            if (!(used >> j & 1) && (nearest < 0 || distance[tour[i - 1]][j] < distance[tour[i - 1]][nearest]))
                nearest = j;
        tour[i] = nearest;
        used |= 1 << nearest;
    }
    while (improved)
        for (improved = 0, i = 1; i < n - 1; i++)
            for (j = i + 1; j < n; j++) {
                int a = tour[i - 1], b = tour[i], c = tour[j], d = tour[(j + 1) % n];
                if (distance[a][c] + distance[b][d] < distance[a][b] + distance[c][d]) {
                    int x, y;
                    for (x = i, y = j; x < y; x++, y--) {
                        int swap = tour[x];
                        tour[x] = tour[y];
                        tour[y] = swap;
                    }
                    improved = 1;
                }
            }
    return length_of(tour);
}

static void descend(struct search *search, int depth, int used, int length, int rest)
{
    int last = search->tour[depth - 1], next;
    if (depth == n) {
        length += distance[last][0];
        if (length < search->best) {
            search->best = length;
            search->found = 1;
            memcpy(search->best_tour, search->tour, sizeof search->tour);
        }
        return;
    }
    for (next = 1; next < n; next++)
        if (!(used >> next & 1)) {
            int longer = length + distance[last][next];
            if (longer + rest - half_cheapest[next] >= search->best)
                continue;
            search->tour[depth] = next;
            descend(search, depth + 1, used | 1 << next, longer, rest - half_cheapest[next]);
        }
}

static int by_length(const void *left, const void *right)
{
    const struct beginning *a = left, *b = right;
    int order = a->length - b->length;
    /* All processes must have the same list. */
    if (order == 0)
        order = a->second != b->second ? a->second - b->second : a->third - b->third;
    return order;
}

static void list_beginnings(void)
{
    int second, third;
    for (second = 1; second < n; second++)
        for (third = 1; third < n; third++)
            if (second != third) {
                struct beginning *next = &beginnings[count++];
                next->second = second;
                next->third = third;
                next->length = distance[0][second] + distance[second][third];
            }
    qsort(beginnings, (size_t)count, sizeof *beginnings, by_length);
}

static void begin_with(struct search *search, const struct beginning *start)
{
    int used = 1 | 1 << start->second | 1 << start->third, i, rest = 0;
    for (i = 1; i < n; i++)
        if (!(used >> i & 1))
            rest += half_cheapest[i];
    search->tour[0] = 0;
    search->tour[1] = start->second;
    search->tour[2] = start->third;
    descend(search, 3, used, start->length, rest);
}

static void solve(void)
{
    struct search search = {0};
    int number;
    do {
        jia_lock(LOCK_LIST);
        if (search.found && search.best < shared->best) {
            shared->best = search.best;
            memcpy(shared->tour, search.best_tour, sizeof search.best_tour);
        }
        search.found = 0;
        search.best = shared->best;
        number = shared->next;
        shared->next = number + 1;
        jia_unlock(LOCK_LIST);
        if (number < count)
            begin_with(&search, &beginnings[number]);
    } while (number < count || search.found);
}

/* shortest[set * m + c]: from city n - 1 through all of `set`, ending in c; cities of a set are 0 to m - 1. */
static int shortest_trip(void)
{
    int m = n - 1, c, d, answer = 1 << 30;
    long set, sets = 1L << m;
    int *shortest = malloc((size_t)(sets * m) * sizeof *shortest);
    if (shortest == NULL)
        jia_error("no memory to check %d cities", n);
    for (set = 1; set < sets; set++)
        for (c = 0; c < m; c++) {
            int best = 1 << 29;
            long before = set & ~(1L << c);
            if (set >> c & 1) {
                best = before == 0 ? distance[m][c] : best;
                for (d = 0; d < m; d++)
                    if (before >> d & 1 && shortest[before * m + d] + distance[d][c] < best)
                        best = shortest[before * m + d] + distance[d][c];
            }
            shortest[set * m + c] = best;
        }
    for (c = 0; c < m; c++)
        if (shortest[(sets - 1) * m + c] + distance[c][m] < answer)
            answer = shortest[(sets - 1) * m + c] + distance[c][m];
    free(shortest);
    return answer;
}

static int is_best(void)
{
    int i, seen = 0;
    for (i = 0; i < n; i++)
        seen |= 1 << shared->tour[i];
    return seen == (1 << n) - 1 && length_of(shared->tour) == shared->best && shared->best == shortest_trip();
}

int main(int argc, char **argv)
{
    long cities = 13;
    double started, seconds;

    number_options(argc, argv, "n", &cities);
    if (cities < 4 || cities > MOST) {
        fprintf(stderr, "tsp: 4 to %d cities, not %ld\n", MOST, cities);
        return 2;
    }
    n = (int)cities;
    jia_init(argc, argv);
    shared = (struct shared *)jia_alloc(sizeof *shared);
    place_cities();
    list_beginnings();
    if (jiapid == 0)
        shared->best = first_guess(shared->tour);
    jia_barrier();

    started = jia_clock();
    solve();
    jia_barrier();
    seconds = jia_clock() - started;
    return finish("tsp", n, seconds, jiapid != 0 || is_best());
}
