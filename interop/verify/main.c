/* Options, and which of the two programs it is. */
#include "verify.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "verify [options] [HOST]   with HOST the requester, without the responder\n"
    "  -d DEVICE  -g GID_INDEX  -p TCP_PORT  -m MTU  -t rc|uc|ud|iwarp\n"
    "  -a ADDRESS (iwarp: where the responder listens)\n"
    "  -o OPERATION|all  -s SIZE,SIZE,...  -n ROUNDS  -k MESSAGES_PER_ROUND  -q QUEUE_PAIRS\n"
    "  -S (shared receive queue)  -e (sleep on events)  -i (inline)  -x SEED\n"
    "  -T TIMEOUT  -r RETRIES  -R RNR_RETRIES  -E REFUSAL (an error on purpose)\n";

void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("verify: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    /* Not _exit: a capture that the library writes is wanted most of all now. */
    exit(1);
}

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static int mtu_of(int bytes)
{
    for (int mtu = IBV_MTU_256; mtu <= IBV_MTU_4096; mtu++)
        if (128 << mtu == bytes)
            return mtu;
    die("no path MTU is %d", bytes);
}

static void parse_sizes(struct options *options, char *list)
{
    options->size_count = 0;
    for (char *part = strtok(list, ","); part; part = strtok(NULL, ",")) {
        if (options->size_count == MAX_SIZES)
            die("more than %d sizes", MAX_SIZES);
        options->sizes[options->size_count++] = strtoul(part, NULL, 0);
    }
}

static void parse(struct options *options, int count, char **words)
{
    for (int c; (c = getopt(count, words, "a:d:g:p:m:t:o:s:n:k:q:Seix:T:r:R:E:")) != -1;) {
        switch (c) {
        case 'a': options->address = optarg; break;
        case 'd': options->device = optarg; break;
        case 'g': options->gid_index = atoi(optarg); break;
        case 'p': options->port = atoi(optarg); break;
        case 'm': options->mtu = mtu_of(atoi(optarg)); break;
        case 't': options->transport = optarg; break;
        case 'o': options->operations = optarg; break;
        case 's': parse_sizes(options, optarg); break;
        case 'n': options->rounds = atoi(optarg); break;
        case 'k': options->slots = atoi(optarg); break;
        case 'q': options->qps = atoi(optarg); break;
        case 'S': options->srq = true; break;
        case 'e': options->events = true; break;
        case 'i': options->inlined = true; break;
        case 'x': options->seed = strtoul(optarg, NULL, 0); break;
        case 'T': options->timeout = atoi(optarg); break;
        case 'r': options->retries = atoi(optarg); break;
        case 'R': options->rnr_retries = atoi(optarg); break;
        case 'E': options->refusal = optarg; break;
        default: fputs(usage, stderr); exit(2);
        }
    }
    options->host = words[optind];
    if (options->qps < 1 || options->qps > MAX_QPS || options->qps * options->slots > 128)
        die("too many messages at once");
}

int main(int count, char **words)
{
    struct options options = {
        .transport = "rc",
        .operations = "all",
        .port = 18520,
        .mtu = IBV_MTU_1024,
        .qps = 1,
        .rounds = 2,
        .slots = 4,
        /* Half a second: one end may run on an emulated processor. */
        .timeout = 17,
        .retries = 7,
        .rnr_retries = 7,
        .size_count = 3,
        .sizes = { 2, 1024, 4099 },
    };
    /* What was said must be there also if we are killed. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    parse(&options, count, words);
    struct end end = { .options = &options, .requester = options.host, .control = control_open(&options) };
    int failed = options.refusal ? refuse_one(&end) : transfer_all(&end);
    printf("verify: %s\n", failed ? "FAILED" : "PASSED");
    return failed;
}
