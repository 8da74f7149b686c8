// Handles faults itself while a peer writes to registered memory that is protected. It is built with each sanitizer.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "../../../c-libraries/tests/libraries.h"

int riounmap(int socket, void *buffer, size_t length);

enum { PAGE = 4096 };

static struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = 0x4711 };
static int near, far;

static void *connects(void *unused)
{
	MUST(rconnect(near, (struct sockaddr *)&here, sizeof here) == 0);
	return unused;
}

static sigjmp_buf out;
static volatile int caught;

static void catch(int number, siginfo_t *info, void *context)
{
	caught += number == SIGSEGV && info->si_addr == (void *)8;
	siglongjmp(out, 1);
}

static void says(int from, int to)
{
	char end = 0;

	MUST(rsend(from, "!", 1, 0) == 1 && rrecv(to, &end, 1, 0) == 1 && end == '!');
}

static void a_write_arrives(const char *text, char *at, off_t offset)
{
	MUST(riowrite(near, text, 6, offset, 0) == 6);
	says(near, far);
	MUST(memcmp(at, text, 6) == 0);
}

int main(int count, char **arguments)
{
	struct sigaction mine = { .sa_sigaction = catch, .sa_flags = SA_SIGINFO }, now;
	int listener, maps = 1;
	pthread_t client;
	off_t offset;
	char *at;

	here.sin_addr.s_addr = inet_addr(arguments[1]);
	MUST((listener = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0 && (near = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	MUST(rsetsockopt(near, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof maps) == 0);
	MUST(rbind(listener, (struct sockaddr *)&here, sizeof here) == 0 && rlisten(listener, 1) == 0);
	MUST(pthread_create(&client, NULL, connects, NULL) == 0);
	MUST((far = raccept(listener, NULL, NULL)) >= 0 && pthread_join(client, NULL) == 0);

	at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(at != MAP_FAILED);
	offset = riomap(far, at, PAGE, PROT_WRITE, 0, -1);
	MUST(offset != -1 && mprotect(at, PAGE, PROT_READ) == 0);
	// The peer learns of the mapping before the message.
	says(far, near);
	a_write_arrives("first", at, offset);

	MUST(sigaction(SIGSEGV, &mine, NULL) == 0);
	a_write_arrives("again", at, offset);
	MUST(caught == 0);
	if (sigsetjmp(out, 1) == 0)
		*(volatile char *)8 = 0;
	MUST(caught == 1);
	MUST(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction == catch);
	MUST(signal(SIGSEGV, SIG_DFL) == (sighandler_t)catch);
	a_write_arrives("third", at, offset);

	MUST(riounmap(far, at, PAGE) == 0 && munmap(at, PAGE) == 0);
	MUST(rclose(near) == 0 && rclose(far) == 0 && rclose(listener) == 0);
	puts("all well");
	return 0;
}
