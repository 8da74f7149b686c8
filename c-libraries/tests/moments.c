// Calls the libraries at unusual moments of a process's life: before `main`, when a thread ends, after `main`, after `closefrom`.
// Cancels and interrupts threads that sleep in a call.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libraries.h"

enum { LENGTH = 4096 };

static struct sockaddr_in here = { .sin_family = AF_INET };

__attribute__((constructor(101))) static void choose_address(void)
{
	here.sin_addr.s_addr = htonl(0x7f003b01);
}

static void *context, *pd, *mr, *comp_channel, *cq, *channel, *id, *sync_id;
static int stream;
static char memory[LENGTH];

static void make(void)
{
	void **list = ibv_get_device_list(NULL);

	MUST(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	MUST(pd = ibv_alloc_pd(context));
	MUST(mr = ibv_reg_mr(pd, memory, LENGTH, LOCAL_WRITE));
	MUST(comp_channel = ibv_create_comp_channel(context));
	MUST(cq = ibv_create_cq(context, 16, NULL, comp_channel, 0));
	MUST(channel = rdma_create_event_channel());
	MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_bind_addr(id, (struct sockaddr *)&here) == 0 && rdma_listen(id, 1) == 0);
	MUST(rdma_create_id(NULL, &sync_id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_bind_addr(sync_id, (struct sockaddr *)&here) == 0 && rdma_listen(sync_id, 1) == 0);
	MUST((stream = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	MUST(rbind(stream, (struct sockaddr *)&here, sizeof here) == 0 && rlisten(stream, 1) == 0);
}

static void end(void)
{
	MUST(rclose(stream) == 0);
	MUST(rdma_destroy_id(sync_id) == 0 && rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	MUST(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(comp_channel) == 0);
	MUST(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

static void end_and_make(void)
{
	end();
	make();
	end();
	puts("all well");
	fflush(stdout);
}

static void when_thread_ends(void *unused)
{
	end_and_make();
}

static void *ending_thread(void *key)
{
	make();
	MUST(pthread_setspecific(*(pthread_key_t *)key, key) == 0);
	return NULL;
}

static void thread_ends(void)
{
	pthread_key_t key;
	pthread_t thread;

	MUST(pthread_key_create(&key, when_thread_ends) == 0);
	MUST(pthread_create(&thread, NULL, ending_thread, &key) == 0);
	MUST(pthread_join(thread, NULL) == 0);
}

// Each of these calls finds nothing and sleeps.
static void get_cq_event(void)
{
	void *of, *of_context;

	ibv_get_cq_event(comp_channel, &of, &of_context);
}

static void get_async_event(void)
{
	char event[64];

	ibv_get_async_event(context, event);
}

static void get_cm_event(void)
{
	void *event;

	rdma_get_cm_event(channel, &event);
}

static void get_request(void)
{
	void *request;

	rdma_get_request(sync_id, &request);
}

static void accept_stream(void)
{
	raccept(stream, NULL, NULL);
}

static atomic_int sleeper, cleaned;

static void clean(void *unused)
{
	atomic_fetch_add(&cleaned, 1);
}

static void *sleeping_thread(void *call)
{
	pthread_cleanup_push(clean, NULL);
	atomic_store(&sleeper, syscall(SYS_gettid));
	((void (*)(void))call)();
	MUST(!"a call has returned although there was nothing");
	pthread_cleanup_pop(0);
	return NULL;
}

// Whether the thread sleeps in a system call.
static int sleeps(int thread)
{
	char path[64], state = 0;
	FILE *stat;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
	stat = fopen(path, "r");
	if (stat == NULL)
		return 0;
	MUST(fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
	fclose(stat);
	return state == 'S';
}

static void cancel(void (*call)(void), int waits)
{
	int before = atomic_load(&cleaned);
	pthread_t thread;
	void *result;

	atomic_store(&sleeper, 0);
	MUST(pthread_create(&thread, NULL, sleeping_thread, call) == 0);
	while (waits && (atomic_load(&sleeper) == 0 || !sleeps(atomic_load(&sleeper))))
		sched_yield();
	MUST(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	MUST(result == PTHREAD_CANCELED);
	MUST(!waits || atomic_load(&cleaned) == before + 1);
}

static void cancel_all(void)
{
	void (*calls[])(void) = { get_cq_event, get_async_event, get_cm_event, get_request, accept_stream };

	make();
	for (int at = 0; at < 5; at++)
		for (int time = 0; time < 20; time++)
			cancel(calls[at], time % 2);
	// No lock is held after the cancellation, and all objects can be used.
	end_and_make();
}

static void *interrupted_thread(void *call)
{
	atomic_store(&sleeper, syscall(SYS_gettid));
	errno = 0;
	((void (*)(void))call)();
	MUST(errno == EINTR);
	return NULL;
}

static void heed(int signal)
{
}

static void poll_stream(void)
{
	struct pollfd nothing = { .fd = stream, .events = POLLIN };

	rpoll(&nothing, 1, -1);
}

static void receive_datagram(void)
{
	struct sockaddr_in any = here;
	char byte;
	int socket = rsocket(AF_INET, SOCK_DGRAM, 0);

	MUST(rbind(socket, (struct sockaddr *)&any, sizeof any) == 0);
	rrecv(socket, &byte, 1, 0);
	int error = errno;
	MUST(rclose(socket) == 0);
	errno = error;
}

static void interrupt_all(void)
{
	void (*calls[])(void) = { get_cq_event, get_async_event, get_cm_event, get_request, accept_stream, poll_stream, receive_datagram };
	struct sigaction action = { .sa_handler = heed };

	MUST(sigaction(SIGUSR1, &action, NULL) == 0);
	make();
	for (int at = 0; at < 7; at++) {
		pthread_t thread;

		atomic_store(&sleeper, 0);
		MUST(pthread_create(&thread, NULL, interrupted_thread, calls[at]) == 0);
		while (atomic_load(&sleeper) == 0 || !sleeps(atomic_load(&sleeper)))
			sched_yield();
		// The thread may have slept for another reason, such as a lock.
		while (pthread_tryjoin_np(thread, NULL) != 0) {
			pthread_kill(thread, SIGUSR1);
			sched_yield();
		}
	}
	end_and_make();
}

// The number of open descriptors, none of which may refer to this file.
static int descriptors(const char *file)
{
	char path[64], name[4096];
	int count = 0;

	for (int fd = 0; fd < 1024; fd++) {
		ssize_t length;

		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		length = readlink(path, name, sizeof name - 1);
		if (length < 0)
			continue;
		name[length] = 0;
		MUST(strcmp(name, file) != 0);
		count++;
	}
	return count;
}

static void keep_none_between_calls(const char *file)
{
	struct pollfd nothing;
	int before;

	make();
	nothing = (struct pollfd){ .fd = stream, .events = POLLIN };
	before = descriptors(file);
	// The accepting thread of the rsocket opens some descriptors at the same time, but not one for each call.
	for (int call = 0; call < 64; call++)
		MUST(rpoll(&nothing, 1, 1) == 0);
	MUST(descriptors(file) < before + 32);
	end_and_make();
}

// The device of an identifier stays open, because programs look up a device by its address in this way.
static void keep_device(void)
{
	void *domain, *id, **verbs;

	MUST(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_bind_addr(id, (struct sockaddr *)&here) == 0);
	verbs = *(void **)id;
	MUST(rdma_destroy_id(id) == 0);
	MUST(domain = ibv_alloc_pd(verbs));
	MUST(ibv_dealloc_pd(domain) == 0);
}

static void exchange(void)
{
	struct sockaddr_in listening;
	socklen_t length = sizeof listening;
	int client = rsocket(AF_INET, SOCK_STREAM, 0), server;
	char byte = 7;

	MUST(rgetsockname(stream, (struct sockaddr *)&listening, &length) == 0);
	MUST(rconnect(client, (struct sockaddr *)&listening, length) == 0);
	MUST((server = raccept(stream, NULL, NULL)) >= 0);
	MUST(rsend(client, &byte, 1, 0) == 1 && rrecv(server, &byte, 1, 0) == 1);
	MUST(rclose(client) == 0 && rclose(server) == 0);
}

// Other files get the numbers of closed descriptors, and the libraries neither read, write nor close these files.
static void leave_nothing(const char *file)
{
	int before, pipes[64][2];
	void *bound;

	closefrom(3);
	keep_device();
	before = descriptors(file);
	// The devices of identifiers keep the sockets that they needed once; leaked descriptors would add up.
	for (int round = 0; round < 32; round++) {
		make();
		exchange();
		end();
	}
	MUST(descriptors(file) < before + 32);
	// The descriptors of an open device stay.
	MUST(rdma_create_id(NULL, &bound, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_bind_addr(bound, (struct sockaddr *)&here) == 0);
	closefrom(3);
	for (int fd = 3; fd < 1024; fd++) {
		MUST(close(fd) == -1 && errno == EBADF);
		if (fcntl(fd, F_GETFD) == -1)
			continue;
		MUST(dup2(0, fd) == -1 && errno == EBUSY);
		MUST(dup3(0, fd, O_CLOEXEC) == -1 && errno == EBUSY);
	}
	MUST(descriptors(file) > 3);
	for (int at = 0; at < 64; at++)
		MUST(pipe2(pipes[at], O_NONBLOCK) == 0);
	make();
	exchange();
	end_and_make();
	MUST(rdma_destroy_id(bound) == 0);
	for (int at = 0; at < 64; at++) {
		char byte;

		MUST(read(pipes[at][0], &byte, 1) == -1 && errno == EAGAIN);
		MUST(close(pipes[at][0]) == 0 && close(pipes[at][1]) == 0);
	}
	MUST(descriptors(file) < before + 32);
}

static int has_first_ended(void)
{
	char name[64], text[512] = "";
	FILE *about;

	sprintf(name, "/proc/self/task/%d/stat", getpid());
	MUST((about = fopen(name, "r")) != NULL && fgets(text, sizeof text, about) != NULL && fclose(about) == 0);
	return strstr(text, ") Z") != NULL;
}

static void *goes_on(void *unused)
{
	while (!has_first_ended())
		sched_yield();
	exchange();
	return NULL;
}

static void say_so(void)
{
	puts("all well");
}

__attribute__((constructor)) static void before_main(int count, char **arguments)
{
	if (strcmp(arguments[1], "before") == 0) {
		make();
		end_and_make();
	}
}

int main(int count, char **arguments)
{
	const char *part = arguments[1];

	if (strcmp(part, "after") == 0) {
		MUST(atexit(end_and_make) == 0);
		make();
	} else if (strcmp(part, "first") == 0) {
		pthread_t thread;

		MUST(atexit(say_so) == 0);
		make();
		MUST(pthread_create(&thread, NULL, goes_on, NULL) == 0);
		pthread_exit(NULL);
	} else if (strcmp(part, "thread") == 0) {
		thread_ends();
	} else if (strcmp(part, "cancelled") == 0) {
		cancel_all();
	} else if (strcmp(part, "interrupted") == 0) {
		interrupt_all();
	} else if (strcmp(part, "descriptors") == 0) {
		keep_none_between_calls(arguments[2]);
	} else if (strcmp(part, "nothing") == 0) {
		leave_nothing(arguments[2]);
	}
	return 0;
}
