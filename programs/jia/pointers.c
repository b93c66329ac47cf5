/*
 * pointers: an address means the same everywhere, so it may be stored in shared memory. All processes put their keys into
 * one binary tree whose nodes come from shared pools, then everybody walks it.
 */
#include "program.h"

#define LOCK_TREE 3

struct node {
    uint64_t key;
    struct node *less, *more;
    int owner;
};

static void insert(struct node **at, struct node *fresh)
{
    while (*at != NULL)
        at = fresh->key < (*at)->key ? &(*at)->less : &(*at)->more;
    *at = fresh;
}

/* In order: keys must rise. The tree's depth is that of random keys, so recursion is no worry. */
static long walk(const struct node *node, uint64_t *last, long *by_owner, int *good)
{
    long count;
    if (node == NULL)
        return 0;
    count = walk(node->less, last, by_owner, good);
    *good &= node->key >= *last;
    *last = node->key;
    by_owner[node->owner]++;
    return count + 1 + walk(node->more, last, by_owner, good);
}

int main(int argc, char **argv)
{
    long n = 50, i, p, *by_owner;
    struct node **root, **pools;
    uint64_t last = 0;
    int good = 1;
    double started, seconds;

    number_options(argc, argv, "n", &n);
    jia_init(argc, argv);
    root = (struct node **)jia_alloc(sizeof *root);
    pools = malloc((size_t)jiahosts * sizeof *pools);
    by_owner = calloc((size_t)jiahosts, sizeof *by_owner);
    for (p = 0; p < jiahosts; p++)
        pools[p] = (struct node *)jia_alloc2p((unsigned long)n * sizeof **pools, (int)p);
    jia_barrier();

    started = jia_clock();
    for (i = 0; i < n; i++) {
        struct node *fresh = &pools[jiapid][i];
        /* Under the lock, too: a node that the next holder follows a pointer to must be filled for it. */
        jia_lock(LOCK_TREE);
        fresh->key = random_at((uint64_t)jiapid, (uint64_t)i);
        fresh->owner = jiapid;
        insert(root, fresh);
        jia_unlock(LOCK_TREE);
    }
    jia_barrier();
    good &= walk(*root, &last, by_owner, &good) == n * jiahosts;
    for (p = 0; p < jiahosts; p++)
        good &= by_owner[p] == n;
    seconds = jia_clock() - started;
    free(pools);
    free(by_owner);
    return finish("pointers", n, seconds, good);
}
