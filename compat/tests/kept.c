// Gives memory up in each way while it is registered.

#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct ibv_mr;
void **ibv_get_device_list(int *count);
void *ibv_open_device(void *device);
void *ibv_alloc_pd(void *context);
struct ibv_mr *ibv_reg_mr(void *pd, void *addr, size_t length, int access);
int ibv_dereg_mr(struct ibv_mr *mr);

enum { PAGE = 4096, LENGTH = 1 << 20, LOCAL_WRITE = 1 };

static void must(int is_so, int line, const char *what)
{
	if (!is_so) {
		fprintf(stderr, "not so in line %d: %s\n", line, what);
		exit(1);
	}
}
#define MUST(condition) must(condition, __LINE__, #condition)

static int is_mapped(volatile char *at)
{
	return msync((void *)((size_t)at & ~(size_t)(PAGE - 1)), PAGE, MS_ASYNC) == 0;
}

static char *pages(void *at, int flags)
{
	char *pages = mmap(at, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	MUST(pages != MAP_FAILED);
	return pages;
}

int main(void)
{
	void *pd = ibv_alloc_pd(ibv_open_device(ibv_get_device_list(NULL)[0]));
	struct ibv_mr *mr, *other;
	volatile char *at;
	char *next;
	pid_t child;
	int status;

	MUST(pd != NULL);
	// Each block is a mapping of its own.
	MUST(mallopt(M_MMAP_THRESHOLD, LENGTH / 2) == 1);

	at = pages(NULL, 0);
	mr = ibv_reg_mr(pd, (void *)at, LENGTH, LOCAL_WRITE);
	other = ibv_reg_mr(pd, (void *)(at + PAGE), 100, LOCAL_WRITE);
	at[5] = 7;
	MUST(munmap((void *)at, LENGTH) == 0);
	next = pages(NULL, 0);
	MUST(next + LENGTH <= at || next >= at + LENGTH);
	MUST(at[5] == 7);
	MUST(ibv_dereg_mr(mr) == 0 && is_mapped(at));
	MUST(ibv_dereg_mr(other) == 0 && !is_mapped(at));

	at = malloc(LENGTH);
	mr = ibv_reg_mr(pd, (void *)at, LENGTH, LOCAL_WRITE);
	at[5] = 7;
	free((void *)at);
	next = malloc(LENGTH);
	MUST(next + LENGTH <= at || next >= at + LENGTH);
	MUST(at[5] == 7);
	MUST(ibv_dereg_mr(mr) == 0 && !is_mapped(at));

	at = malloc(LENGTH);
	mr = ibv_reg_mr(pd, (void *)at, LENGTH, LOCAL_WRITE);
	at[5] = 7;
	next = realloc((void *)at, 3 * LENGTH);
	MUST(next != at && next[5] == 7 && at[5] == 7);
	MUST(ibv_dereg_mr(mr) == 0 && !is_mapped(at));

	at = pages(NULL, 0);
	mr = ibv_reg_mr(pd, (void *)at, LENGTH, LOCAL_WRITE);
	MUST(mremap((void *)at, LENGTH, 1 << 30, MREMAP_MAYMOVE) == MAP_FAILED || is_mapped(at));
	next = pages(NULL, 0);
	MUST(mremap((void *)at, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, next) == MAP_FAILED);
	MUST(mremap((void *)at, LENGTH, PAGE, MREMAP_MAYMOVE) == at && is_mapped(at + PAGE));
	MUST(ibv_dereg_mr(mr) == 0 && is_mapped(at) && !is_mapped(at + PAGE));

	at = pages(NULL, 0);
	mr = ibv_reg_mr(pd, (void *)at, LENGTH, LOCAL_WRITE);
	MUST(munmap((void *)at, LENGTH) == 0);
	next = mmap((void *)(at + PAGE), PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	MUST(next == at + PAGE);
	next[5] = 9;
	MUST(ibv_dereg_mr(mr) == 0 && next[5] == 9 && !is_mapped(at) && !is_mapped(at + 2 * PAGE));

	at = pages(NULL, 0);
	mr = ibv_reg_mr(pd, (void *)at, LENGTH, LOCAL_WRITE);
	child = fork();
	if (child == 0)
		_exit(munmap((void *)at, LENGTH) == 0 && !is_mapped(at) ? 0 : 1);
	MUST(waitpid(child, &status, 0) == child && status == 0);
	MUST(ibv_dereg_mr(mr) == 0 && is_mapped(at));

	puts("all kept");
	return 0;
}
