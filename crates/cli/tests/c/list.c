/* Prints the devices of a libibverbs, and the file that the functions came from.
 *
 *   list linked         the functions that this program is linked with
 *   list open NAME      dlopen and dlvsym, as NCCL does it
 *   list module FILE    calls list_devices of a shared object, as Python does it with extension modules
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ibv_device;
typedef struct ibv_device **get_list(int *count);
typedef const char *get_name(struct ibv_device *device);

static void *symbol(void *library, const char *name) {
    void *found = dlvsym(library, name, "IBVERBS_1.1");
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

static int print(get_list *list, get_name *name) {
    int count = 0;
    struct ibv_device **devices = list(&count);
    for (int at = 0; at < count; at++)
        puts(name(devices[at]));
    Dl_info info;
    if (dladdr((void *)list, &info) == 0)
        return 1;
    char *file = realpath(info.dli_fname, NULL);
    puts(file ? file : info.dli_fname);
    free(file);
    return 0;
}

#ifdef LINKED
struct ibv_device **ibv_get_device_list(int *count);
const char *ibv_get_device_name(struct ibv_device *device);

int list_devices(void) {
    return print(ibv_get_device_list, ibv_get_device_name);
}
#endif

int main(int argc, char **argv) {
#ifdef LINKED
    if (argc == 2 && strcmp(argv[1], "linked") == 0)
        return list_devices();
#endif
    if (argc != 3)
        return 2;
    void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (strcmp(argv[1], "module") == 0)
        return ((int (*)(void))dlsym(library, "list_devices"))();
    return print((get_list *)symbol(library, "ibv_get_device_list"), (get_name *)symbol(library, "ibv_get_device_name"));
}
