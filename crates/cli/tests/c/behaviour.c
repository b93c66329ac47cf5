/*
 * One process behaves as its first argument says, and the others wait for it in a barrier; what the launcher makes of that is what
 * the tests are about.
 */
#include <jia.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *wanted;

static int is(const char *behaviour)
{
    return strcmp(wanted, behaviour) == 0;
}

static void describe(int argc, char **argv)
{
    char line[100], folder[1000];
    int i;
    printf("of %d, in %s:", jiahosts, getcwd(folder, sizeof folder));
    for (i = 1; i < argc; i++)
        printf(" <%s>", argv[i]);
    printf("\n");
    printf("input: %s", fgets(line, sizeof line, stdin) ? line : "none\n");
}

int main(int argc, char **argv)
{
    int last;
    wanted = argc > 1 ? argv[1] : "";
    if (is("early") && getenv("FERROCE_DSM_RANK") && atoi(getenv("FERROCE_DSM_RANK")) == 1)
        return 5;
    if (is("before") && !(getenv("FERROCE_DSM_RANK") && atoi(getenv("FERROCE_DSM_RANK")) != 2))
        jia_lock(1);
    jia_init(argc, argv);
    last = jiapid == jiahosts - 1;
    if (is("describe"))
        describe(argc, argv);
    if (jiapid == 0 && is("first"))
        raise(SIGKILL);
    if (last && is("killed"))
        raise(SIGKILL);
    if (last && is("exits"))
        exit(3);
    if (last && is("forgets"))
        exit(0);
    if (last && is("error"))
        jia_error("the reason is %d", 42);
    if (last && is("lock"))
        jia_lock(123456);
    if (last && is("unlock"))
        jia_unlock(3);
    if (last && is("leaves")) {
        jia_lock(1);
        jia_exit();
    }
    if (is("past")) {
        char private[100], *shared = (char *)jia_alloc(4096);
        if (last)
            jia_get(private, shared + 4090, sizeof private);
    }
    if (last && is("reduce"))
        jia_reduce(NULL, NULL, 0, 99, 0);
    if (is("sleeps")) {
        printf("asleep %d\n", (int)getpid());
        fflush(stdout);
        for (;;)
            pause();
    }
    for (int i = 0; i < 50 && is("barriers"); i++)
        jia_barrier();
    jia_barrier();
    jia_exit();
    if (is("late"))
        return last ? 9 : 0;
    return 0;
}
