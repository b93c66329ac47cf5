/* Programs such as UCX and Python load the library at run time and unload it again. They look up symbols by version. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

#define MUST(condition)                                                                                       \
    do {                                                                                                      \
        if (!(condition)) {                                                                                   \
            const char *why_ = dlerror();                                                                     \
            fprintf(stderr, "%s:%d: needed: %s (%s)\n", __FILE__, __LINE__, #condition, why_ ? why_ : "-");   \
            exit(2);                                                                                          \
        }                                                                                                     \
    } while (0)

int main(void) {
    for (int round = 0; round < 3; round++) {
        void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
        MUST(library != NULL);
        struct ibv_device **(*list_devices)(int *) = dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1");
        void (*free_list)(struct ibv_device **) = dlvsym(library, "ibv_free_device_list", "IBVERBS_1.1");
        struct ibv_context *(*open_device)(struct ibv_device *) = dlvsym(library, "ibv_open_device", "IBVERBS_1.1");
        int (*close_device)(struct ibv_context *) = dlvsym(library, "ibv_close_device", "IBVERBS_1.1");
        MUST(list_devices != NULL && free_list != NULL && open_device != NULL && close_device != NULL);
        MUST(dlvsym(library, "ibv_query_gid_type", "IBVERBS_PRIVATE_34") != NULL);
        int count = 0;
        struct ibv_device **list = list_devices(&count);
        MUST(list != NULL && count == 1);
        struct ibv_context *context = open_device(list[0]);
        MUST(context != NULL);
        free_list(list);
        MUST(close_device(context) == 0);
        MUST(dlclose(library) == 0);
    }
    puts("ok");
    return 0;
}
