// Frees or unmaps memory in each way while it is registered, and has a fault handler of its own.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libraries.h"

enum { PAGE = 4096, LENGTH = 1 << 20 };

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

static sigjmp_buf out;
static volatile int caught;

static void catch(int number, siginfo_t *info, void *context)
{
	caught = number == SIGSEGV && info->si_addr == (void *)8;
	siglongjmp(out, 1);
}

static void fault(void)
{
	*(volatile char *)8 = 0;
}

static int ends_by(int number)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		fault();
		_exit(0);
	}
	MUST(waitpid(child, &status, 0) == child);
	return WIFSIGNALED(status) && WTERMSIG(status) == number;
}

static void faults_of_the_program(void)
{
	struct sigaction mine = { .sa_sigaction = catch, .sa_flags = SA_SIGINFO }, now;

	MUST(ends_by(SIGSEGV));
	MUST(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
	MUST(sigaction(SIGSEGV, &mine, &now) == 0 && now.sa_handler == SIG_DFL);
	if (sigsetjmp(out, 1) == 0)
		fault();
	MUST(caught);
	MUST(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction == catch && now.sa_flags & SA_SIGINFO);
	MUST(signal(SIGSEGV, SIG_DFL) == (sighandler_t)catch);
	MUST(ends_by(SIGSEGV));
	MUST(signal(SIGSEGV, SIG_IGN) == SIG_DFL && raise(SIGSEGV) == 0);
	MUST(signal(SIGSEGV, SIG_DFL) == SIG_IGN);
	MUST(signal(SIGUSR1, SIG_IGN) == SIG_DFL && signal(SIGUSR1, SIG_DFL) == SIG_IGN);
}

static int client, server;

static void connect_ends(void)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f004001) };
	socklen_t length = sizeof here;
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), maps = 1;

	client = rsocket(AF_INET, SOCK_STREAM, 0);
	MUST(rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof maps) == 0);
	MUST(rsetsockopt(client, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof maps) == 0);
	MUST(rbind(listener, (struct sockaddr *)&here, length) == 0 && rlisten(listener, 1) == 0);
	MUST(rgetsockname(listener, (struct sockaddr *)&here, &length) == 0);
	MUST(rconnect(client, (struct sockaddr *)&here, length) == 0 && (server = raccept(listener, NULL, NULL)) >= 0);
	MUST(rclose(listener) == 0);
}

// Lets the client write to this memory of the server.
static off_t map(char *at)
{
	off_t offset = riomap(server, at, LENGTH, PROT_WRITE, 0, -1);
	char byte = 7;

	MUST(offset != -1);
	// The client learns the mapping with the next message.
	MUST(rsend(server, &byte, 1, 0) == 1 && rrecv(client, &byte, 1, 0) == 1);
	return offset;
}

// The client writes a 7 to memory of the server; the write has arrived when this returns.
static void write_by_peer(off_t offset)
{
	char byte = 7;

	MUST(riowrite(client, &byte, 1, offset, 0) == 1);
	MUST(rsend(client, &byte, 1, 0) == 1 && rrecv(server, &byte, 1, 0) == 1);
}

// A peer's write to memory that the program has protected, in a thread that has all signals blocked.
static void access_with_signals_blocked(void)
{
	char *at = pages(NULL, 0);
	off_t offset = map(at);
	sigset_t all, before;

	sigfillset(&all);
	MUST(pthread_sigmask(SIG_BLOCK, &all, &before) == 0 && sigprocmask(SIG_SETMASK, &all, NULL) == 0);
	MUST(mprotect(at, LENGTH, PROT_NONE) == 0);
	write_by_peer(offset);
	MUST(mprotect(at, LENGTH, PROT_READ) == 0 && at[0] == 7);
	MUST(pthread_sigmask(SIG_SETMASK, &before, &all) == 0 && sigismember(&all, SIGUSR1));
	MUST(riounmap(server, at, LENGTH) == 0);
}

// A peer writes to addresses where the program has mapped other memory, and to pages that it has returned to the kernel.
static void access_to_replaced_memory(void)
{
	char *at = pages(NULL, 0), *other = pages(NULL, 0);
	off_t offset = map(at);
	int file = memfd_create("shared", 0), segment;

	MUST(pages(at, MAP_FIXED) == at);
	write_by_peer(offset);
	MUST(at[0] == 0);
	MUST(riounmap(server, at, LENGTH) == 0 && is_mapped(at));

	offset = map(at);
	MUST(mremap(other, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
	write_by_peer(offset);
	MUST(at[0] == 0);
	MUST(riounmap(server, at, LENGTH) == 0 && is_mapped(at));

	// Memory that the program moves stays registered.
	at = pages(NULL, 0);
	offset = map(at);
	other = mremap(at, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, pages(NULL, 0));
	MUST(other != MAP_FAILED && !is_mapped(at));
	write_by_peer(offset);
	MUST(other[0] == 7);
	MUST(riounmap(server, at, LENGTH) == 0 && is_mapped(other));

	at = pages(NULL, 0);
	offset = map(at);
	segment = shmget(IPC_PRIVATE, LENGTH, 0600);
	MUST(segment >= 0 && shmat(segment, at, SHM_REMAP) == at && shmctl(segment, IPC_RMID, NULL) == 0);
	write_by_peer(offset);
	MUST(at[0] == 0);
	MUST(riounmap(server, at, LENGTH) == 0 && is_mapped(at) && shmdt(at) == 0);

	MUST(ftruncate(file, LENGTH) == 0);
	at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	MUST(at != MAP_FAILED);
	offset = map(at);
	MUST(madvise(at, LENGTH, MADV_REMOVE) == 0);
	write_by_peer(offset);
	MUST(at[0] == 7);
	MUST(riounmap(server, at, LENGTH) == 0);
}

int main(void)
{
	void *pd = ibv_alloc_pd(ibv_open_device(ibv_get_device_list(NULL)[0]));
	void *mr, *other;
	volatile char *at;
	char *next;
	pid_t child;
	int status;

	MUST(pd != NULL);
	// malloc makes a mapping of its own for each block.
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
	at = next = mremap((void *)at, LENGTH, 1 << 30, MREMAP_MAYMOVE);
	MUST(next != MAP_FAILED && munmap(next + LENGTH, (1 << 30) - LENGTH) == 0);
	MUST(is_mapped(at) && !is_mapped(at + LENGTH));
	next = pages(NULL, 0);
	// Only a part of the region would move.
	MUST(mremap((void *)at, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, next) == MAP_FAILED);
	MUST(mremap((void *)at, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, next) == next);
	MUST(!is_mapped(at));
	at = next;
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

	status = shmget(IPC_PRIVATE, LENGTH, 0600);
	MUST(status >= 0);
	at = shmat(status, NULL, 0);
	MUST(shmctl(status, IPC_RMID, NULL) == 0);
	mr = ibv_reg_mr(pd, (void *)(at + PAGE), PAGE, LOCAL_WRITE);
	at[5] = 7;
	MUST(shmdt((void *)at) == 0 && is_mapped(at) && at[5] == 7);
	MUST(ibv_dereg_mr(mr) == 0 && !is_mapped(at) && !is_mapped(at + LENGTH - 1));
	MUST(shmdt((void *)at) == -1);

	faults_of_the_program();
	connect_ends();
	access_with_signals_blocked();
	access_to_replaced_memory();
	MUST(rclose(client) == 0 && rclose(server) == 0);

	puts("all kept");
	return 0;
}
