// Calls versions of functions that the library does not implement, and prints what each returns.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>

static void call(void *library, const char *name)
{
	uint64_t (*function)(void *) = dlvsym(library, name, "IBVERBS_1.0");

	errno = 0;
	printf("%s = %d, ", name, (int)function(NULL));
	printf("%s\n", errno == EOPNOTSUPP ? "EOPNOTSUPP" : "another errno");
}

int main(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);

	call(library, "ibv_dealloc_pd");
	call(library, "ibv_dereg_mr");
	call(library, "ibv_query_gid");
	call(library, "ibv_alloc_pd");
	call(library, "ibv_get_device_guid");
	return 0;
}
