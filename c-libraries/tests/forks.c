// Threads make and destroy objects while the first thread forks. Each child destroys what it has inherited, makes objects of its
// own, and ends; an alarm ends a child that hangs.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libraries.h"

enum { LENGTH = 1 << 18 };

static struct sockaddr_in any_port = { .sin_family = AF_INET };

static void *opened(void)
{
	void **list = ibv_get_device_list(NULL);
	void *context = ibv_open_device(list[0]);

	ibv_free_device_list(list);
	MUST(context != NULL);
	return context;
}

// The objects that the children inherit.
static void *context, *pd, *mr, *cq, *channel, *id;
static int stream;

static void make_verbs(void)
{
	context = opened();
	MUST(pd = ibv_alloc_pd(context));
	MUST(mr = ibv_reg_mr(pd, malloc(LENGTH), LENGTH, LOCAL_WRITE));
	MUST(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
}

// Uses verbs on the inherited context, and on one of its own.
static void use_verbs(void)
{
	void *own = opened(), *contexts[] = { own, context };

	for (int at = 0; at < 2; at++) {
		void *memory = malloc(LENGTH);
		void *pd = ibv_alloc_pd(contexts[at]);
		void *mr = ibv_reg_mr(pd, memory, LENGTH, LOCAL_WRITE);
		void *cq = ibv_create_cq(contexts[at], 16, NULL, NULL, 0);

		MUST(pd && mr && cq);
		// The region keeps the memory until it is deregistered.
		free(memory);
		MUST(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
	}
	MUST(ibv_close_device(own) == 0);
}

static void in_child_verbs(void)
{
	MUST(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
	MUST(ibv_close_device(context) == 0);
	context = opened();
	use_verbs();
}

static void make_identifiers(void)
{
	MUST(channel = rdma_create_event_channel());
	MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_bind_addr(id, (struct sockaddr *)&any_port) == 0);
}

static void use_identifiers(void)
{
	void *channel = rdma_create_event_channel(), *id;

	MUST(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_bind_addr(id, (struct sockaddr *)&any_port) == 0);
	MUST(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

static void in_child_identifiers(void)
{
	MUST(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	use_identifiers();
}

static void make_sockets(void)
{
	MUST((stream = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	MUST(rbind(stream, (struct sockaddr *)&any_port, sizeof any_port) == 0 && rlisten(stream, 1) == 0);
}

static void use_sockets(void)
{
	int socket = rsocket(AF_INET, SOCK_STREAM, 0);

	MUST(socket >= 0 && rbind(socket, (struct sockaddr *)&any_port, sizeof any_port) == 0);
	MUST(rlisten(socket, 1) == 0 && rclose(socket) == 0);
}

static void in_child_sockets(void)
{
	MUST(rclose(stream) == 0);
	use_sockets();
}

static const struct part {
	const char *name;
	void (*make)(void);
	void (*use)(void);
	void (*in_child)(void);
} parts[] = {
	{ "verbs", make_verbs, use_verbs, in_child_verbs },
	{ "identifiers", make_identifiers, use_identifiers, in_child_identifiers },
	{ "sockets", make_sockets, use_sockets, in_child_sockets },
};

static volatile int is_over;

static void *repeat(void *use)
{
	while (!is_over)
		((void (*)(void))use)();
	return NULL;
}

int main(int count, char **arguments)
{
	const struct part *part = parts;
	pthread_t threads[2];
	int status;

	MUST(count == 4);
	any_port.sin_addr.s_addr = inet_addr("127.0.58.1");
	while (strcmp(part->name, arguments[1]) != 0)
		part++;
	part->make();
	for (int at = 0; at < 2; at++)
		MUST(pthread_create(&threads[at], NULL, repeat, part->use) == 0);
	for (int forks = 0; forks < atoi(arguments[2]); forks++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(atoi(arguments[3]));
			part->in_child();
			// Children end with the exit handlers and without them.
			forks % 2 ? exit(0) : _exit(0);
		}
		MUST(waitpid(child, &status, 0) == child);
		if (status != 0) {
			printf("child %d: %s\n", forks, WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "failed");
			fflush(stdout);
			_exit(1);
		}
	}
	is_over = 1;
	for (int at = 0; at < 2; at++)
		pthread_join(threads[at], NULL);
	puts("all ended");
	return 0;
}
