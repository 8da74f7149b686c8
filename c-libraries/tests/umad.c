// Sends and receives management datagrams at node A of a fabric of two nodes, in the ways in which opensm and infiniband-diags do
// it. Prints nothing unless something is not as it must be.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "libraries.h"

int umad_open_port(const char *name, int port);
int umad_close_port(int port);
int umad_register(int port, int class, int version, uint8_t rmpp_version, long mask[2]);
int umad_unregister(int port, int agent);
int umad_send(int port, int agent, void *umad, int length, int timeout, int retries);
int umad_recv(int port, void *umad, int *length, int timeout);
int umad_poll(int port, int timeout);
int umad_set_addr(void *umad, int lid, int qp, int sl, int qkey);
void *umad_get_mad(void *umad);
int umad_status(void *umad);
size_t umad_size(void);

enum { MAD = 256, DIRECTED = 0x81, GET = 1, NODE_INFO = 0x11, PERMISSIVE = 0xffff };

static int port, agent;
static uint32_t transaction;

// Sends a directed Get of NodeInfo with one hop by this port of the own node, or to the own node.
static void ask(int hop)
{
	char umad[64 + MAD] = {};
	uint8_t *mad = umad_get_mad(umad);

	mad[0] = 1;
	mad[1] = DIRECTED;
	mad[2] = 1;
	mad[3] = GET;
	mad[7] = hop != 0;
	memcpy(mad + 12, &(uint32_t){ ++transaction }, 4);
	mad[17] = NODE_INFO;
	memset(mad + 32, 0xff, 4);
	mad[129] = hop;
	umad_set_addr(umad, PERMISSIVE, 0, 0, 0);
	MUST(umad_send(port, agent, umad, MAD, 1, 2) == 0);
}

static void must_be_answered(int hop)
{
	char umad[64 + MAD];
	int length = MAD;

	ask(hop);
	MUST(umad_recv(port, umad, &length, -1) == agent);
	uint8_t *mad = umad_get_mad(umad);
	MUST(length == MAD && umad_status(umad) == 0 && mad[3] == 0x81);
	MUST(memcmp(mad + 12, &transaction, 4) == 0);
}

static void *receive(void *unused)
{
	static char umad[64 + MAD];
	int length = MAD;

	(void)unused;
	umad_recv(port, umad, &length, -1);
	return NULL;
}

static void *wait_for_one(void *unused)
{
	(void)unused;
	umad_poll(port, -1);
	return NULL;
}

// The thread may have begun to wait or not, so it is done many times.
static void must_be_cancelled(void *(*run)(void *))
{
	for (int i = 0; i < 200; i++) {
		pthread_t thread;
		void *result;

		MUST(pthread_create(&thread, NULL, run, NULL) == 0);
		if (i % 2)
			sched_yield();
		MUST(pthread_cancel(thread) == 0);
		MUST(pthread_join(thread, &result) == 0);
		MUST(result == PTHREAD_CANCELED);
	}
	must_be_answered(1);
}

static void must_come_back(void)
{
	char umad[64 + MAD];
	int length = MAD;

	// There is no port 2 by which the request could leave.
	ask(2);
	MUST(umad_recv(port, umad, &length, -1) == agent);
	MUST(umad_status(umad) == ETIMEDOUT && length == 24);
	MUST(memcmp((char *)umad_get_mad(umad) + 12, &transaction, 4) == 0);
}

static void must_stay_if_there_is_no_room(void)
{
	char umad[64 + MAD];
	int length = MAD - 1;

	ask(0);
	MUST(umad_poll(port, -1) == 0);
	MUST(umad_recv(port, umad, &length, 0) == -EINVAL && errno == EINVAL);
	length = MAD;
	MUST(umad_recv(port, umad, &length, 0) == agent);
	MUST(umad_recv(port, umad, &length, 0) == -EAGAIN && errno == EAGAIN);
	MUST(umad_recv(port, umad, &length, 1) == -ETIMEDOUT);
	MUST(umad_poll(port, 0) == -ETIMEDOUT);
}

static void must_have_one_owner(void)
{
	long get[2] = { 1 << GET }, set[2] = { 1 << 2 };
	int other = umad_open_port(NULL, 0), owner;

	MUST(other >= 0);
	owner = umad_register(port, 3, 2, 1, get);
	MUST(owner == 1);
	MUST(umad_register(other, 3, 2, 1, get) == -EPERM && errno == EPERM);
	MUST(umad_register(other, 3, 2, 1, set) == 0);
	MUST(umad_unregister(port, owner) == 0);
	MUST(umad_unregister(port, owner) == -1 && errno == EINVAL);
	MUST(umad_register(other, 3, 2, 1, get) == 1);
	umad_close_port(other);
}

// The argument is a number of seconds, after which an alarm ends a program that was not cancelled.
int main(int count, char **arguments)
{
	MUST(count == 2);
	alarm(atoi(arguments[1]));
	MUST(umad_size() == 64);
	MUST(umad_open_port("nosuch", 1) == -ENODEV);
	MUST(umad_open_port("fabric0", 2) < 0);
	port = umad_open_port("fabric0", 1);
	MUST(port >= 0);
	agent = umad_register(port, DIRECTED, 1, 0, NULL);
	MUST(agent == 0);
	must_be_answered(0);
	must_be_answered(1);
	must_be_cancelled(receive);
	must_be_cancelled(wait_for_one);
	must_come_back();
	must_stay_if_there_is_no_room();
	must_have_one_owner();
	umad_close_port(port);
	return 0;
}
