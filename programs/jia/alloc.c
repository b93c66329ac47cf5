/*
 * alloc: every way to allocate gives zeroes at one address in all processes, whatever the homes; memory that was given back
 * is zero when it comes again; and the copies that bypass page faults agree with plain reads and writes.
 */
#include "program.h"

#define KINDS 14
#define PAGE 4096

static unsigned char *allocate(int kind, unsigned long bytes)
{
    int blocks[3] = {PAGE, 3 * PAGE, 2 * PAGE}, last = jiahosts - 1;
    int *shares = calloc((size_t)jiahosts, sizeof *shares);
    unsigned long memory = 0;
    if (shares == NULL)
        jia_error("no memory");
    shares[last] = (int)bytes;
    switch (kind) {
    case 0: memory = jia_alloc(bytes); break;
    case 1: memory = jia_alloc1(bytes); break;
    case 2: memory = jia_alloc2(bytes, 2 * PAGE); break;
    case 3: memory = jia_alloc2p(bytes, last); break;
    case 4: memory = jia_alloc3(bytes, PAGE, last); break;
    case 5: memory = jia_alloc4(bytes, blocks, 3, last); break;
    case 6: memory = jia_alloc_array(bytes, shares, jiahosts); break;
    case 7: memory = jia_alloc_random(bytes); break;
    case 8: memory = jia_falloc(bytes, JIA_CYCLIC, (unsigned long)PAGE, last); break;
    case 9: memory = jia_falloc(bytes, JIA_ON_HOME, last); break;
    case 10: memory = jia_falloc(bytes, JIA_ROTATING); break;
    case 11: memory = jia_falloc(bytes, JIA_RANDOM); break;
    case 12: memory = jia_falloc(bytes, JIA_TRIPS, blocks, 3, 0); break;
    case 13: memory = jia_falloc(bytes, JIA_SHARES, shares, jiahosts); break;
    }
    free(shares);
    return (unsigned char *)memory;
}

static int all_are(const unsigned char *memory, unsigned long bytes, unsigned char wanted)
{
    unsigned long at;
    for (at = 0; at < bytes; at++)
        if (memory[at] != wanted)
            return 0;
    return 1;
}

static int same_everywhere(void *address)
{
    void *first = address;
    jia_bcast(&first, sizeof first, 0);
    return first == address;
}

/* Each byte is written by one process, neighbours by different ones, and read by all. */
static int shared_well(unsigned char *memory, unsigned long bytes)
{
    unsigned long at;
    int good = 1;
    for (at = (unsigned long)jiapid; at < bytes / 4; at += (unsigned long)jiahosts)
        ((uint32_t *)memory)[at] = (uint32_t)random_at(31, at);
    jia_barrier();
    for (at = 0; at < bytes / 4; at++)
        good &= ((uint32_t *)memory)[at] == (uint32_t)random_at(31, at);
    jia_barrier();
    return good;
}

static int copies(unsigned char *memory, unsigned long bytes)
{
    unsigned char *own = malloc(bytes);
    unsigned long piece = bytes / (unsigned long)jiahosts / 8 * 8, at;
    int good = own != NULL, p;
    memset(own, jiapid + 1, piece);
    jia_put(own, memory + piece * (unsigned long)jiapid, piece);
    jia_barrier();
    memset(own, 0, bytes);
    good &= jia_get(own, memory, piece * (unsigned long)jiahosts) == own;
    for (p = 0; p < jiahosts; p++)
        for (at = 0; at < piece; at++)
            good &= own[piece * (unsigned long)p + at] == p + 1 && memory[piece * (unsigned long)p + at] == p + 1;
    jia_barrier();
    free(own);
    return good;
}

int main(int argc, char **argv)
{
    long n = 8;
    unsigned long bytes;
    unsigned char *memory[KINDS];
    int kind, good = 1;
    double started, seconds;

    number_options(argc, argv, "n", &n);
    bytes = (unsigned long)n * PAGE + 24;
    jia_init(argc, argv);
    started = jia_clock();
    for (kind = 0; kind < KINDS; kind++) {
        memory[kind] = allocate(kind, bytes);
        good &= same_everywhere(memory[kind]) && all_are(memory[kind], bytes, 0);
        jia_barrier();
        good &= shared_well(memory[kind], bytes) && copies(memory[kind], bytes);
        if (!good)
            jia_error("allocation of kind %d", kind);
    }
    jia_barrier();
    for (kind = 0; kind < KINDS; kind += 2)
        jia_free(memory[kind]);
    jia_barrier();
    for (kind = 0; kind < KINDS; kind++) {
        unsigned char *again = allocate(kind, bytes);
        good &= same_everywhere(again) && all_are(again, bytes, 0);
        jia_barrier();
        good &= shared_well(again, bytes);
    }
    seconds = jia_clock() - started;
    return finish("alloc", n, seconds, good);
}
