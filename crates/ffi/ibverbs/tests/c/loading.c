// The library is loaded, used and let go several times, found by version as NCCL does it.
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>

static void *find(void *library, const char *name, const char *version)
{
	void *symbol = dlvsym(library, name, version);
	if (!symbol)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(symbol);
	return symbol;
}

static void use_once(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	CHECK(library);
	struct ibv_device **(*list)(int *) = find(library, "ibv_get_device_list", "IBVERBS_1.1");
	void (*free_list)(struct ibv_device **) = find(library, "ibv_free_device_list", "IBVERBS_1.1");
	struct ibv_context *(*open)(struct ibv_device *) = find(library, "ibv_open_device", "IBVERBS_1.1");
	int (*close)(struct ibv_context *) = find(library, "ibv_close_device", "IBVERBS_1.1");
	int count = 0;
	struct ibv_device **devices = list(&count);
	CHECK(devices && count == 1 && devices[1] == NULL);
	CHECK(strcmp(devices[0]->name, "ferroce0") == 0);
	struct ibv_context *one = open(devices[0]), *two = open(devices[0]);
	CHECK(one && two);
	free_list(devices);
	CHECK(close(one) == 0);
	CHECK(close(two) == 0);
	CHECK(dlclose(library) == 0);
}

int main(void)
{
	for (int i = 0; i < 3; i++)
		use_once();
	return 0;
}
