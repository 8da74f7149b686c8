// Calls every function of libibumad with hostile arguments: numbers at their limits, null pointers, structures of random numbers, ports that
// are closed or were never open. No call may end the process, and afterwards a MAD is answered as before.
//
// The arguments are a seed, a number of calls, and seconds after which an alarm ends the process.

#define _GNU_SOURCE
#include <limits.h>
#include <stdint.h>
#include <string.h>

#include "libraries.h"

typedef long (*function)(long, long, long, long, long, long);

// Arguments by letter:
// p  a port that is open, was closed, or never was     N  the name of an adapter, or another text, or null
// n  a number                                          P  the number of a port
// t  a time that is over soon                          m  memory with random numbers, or null
// k  a small count                                     c  a port, which is closed
// u  memory for a MAD, or null                         l  the length of that memory, or less, or a number below zero
// L  memory with such a length, or null                D  what umad_get_ca has described; R  what umad_get_port has
// H  a place with an empty list, or null               A, B  room for such a description, or null
#define KNOWN(V)                                                                                                           \
	V(umad_init, "") V(umad_done, "") V(umad_debug, "n") V(umad_get_cas_names, "mn") V(umad_get_ca, "NA")              \
	V(umad_get_port, "NPB") V(umad_release_ca, "D") V(umad_release_port, "R") V(umad_get_ca_portguids, "Nmk")          \
	V(umad_get_issm_path, "NPmk") V(umad_open_port, "NPO") V(umad_open_smi_port, "NPO") V(umad_close_port, "c")        \
	V(umad_get_fd, "n") V(umad_get_mad, "u") V(umad_size, "") V(umad_status, "u") V(umad_get_mad_addr, "u")            \
	V(umad_set_grh, "um") V(umad_set_pkey, "un") V(umad_get_pkey, "u") V(umad_set_addr, "unnnn")                       \
	V(umad_set_addr_net, "unnnn") V(umad_addr_dump, "m") V(umad_dump, "u") V(umad_send, "pnultn")                      \
	V(umad_recv, "puLt") V(umad_poll, "pt") V(umad_register, "pnnnm") V(umad_register_oui, "pnnmm")                    \
	V(umad_register2, "pmm") V(umad_unregister, "pn") V(umad_get_ca_device_list, "F") V(umad_class_str, "n")           \
	V(umad_method_str, "nn") V(umad_common_mad_status_str, "n") V(umad_sa_mad_status_str, "n")                         \
	V(umad_attribute_str, "nn") V(umad_get_smi_gsi_pairs, "mk") V(umad_get_smi_gsi_pair_by_ca_name, "NPmn")            \
	V(umad_sort_ca_device_list, "Hn")

#define DECLARE(name, arguments) long name();
KNOWN(DECLARE)
void umad_free_ca_device_list(void *list);

#define LISTED(name, arguments) { #name, arguments, (function)name },
static const struct {
	const char *name, *arguments;
	function call;
} known[] = { KNOWN(LISTED) };

enum { ROOM = 1 << 16, GET = 1, DIRECTED = 0x81, NODE_INFO = 0x11 };

static uint64_t state;
static int ports[8];
static char ca[208], port_of_ca[112];
static int has_ca, has_port;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static long number(void)
{
	static const long limits[] = { 0, 1, -1, INT_MAX, INT_MIN, UINT8_MAX, 0x30, 3, 4, 0x81, 256, 0x12345678 };

	return next() % 2 ? limits[next() % (sizeof limits / sizeof *limits)] : (long)(next() % 300);
}

static void *memory(int at)
{
	static uint64_t rooms[6][(ROOM + 64) / 8];

	for (int i = 0; i < 64; i++)
		rooms[at][i] = next() % 4 ? next() : 0;
	return next() % 8 ? rooms[at] : NULL;
}

static long argument(char kind, int at)
{
	static int length;
	static const char *names[] = { "fabric0", "ib0", "", NULL };
	int *port = &ports[next() % 8];

	switch (kind) {
	case 'p':
		return next() % 8 ? *port : -1 - (long)(next() % 2);
	case 'c': {
		int closed = *port;
		*port = -1;
		return closed;
	}
	case 'N':
		return (long)names[next() % 4];
	case 'P':
		return next() % 2 ? (long)(next() % 3) : number();
	case 't':
		return next() % 2;
	case 'k':
		return next() % 100;
	case 'l':
		return next() % 8 ? (long)(next() % ROOM) : -1 - (long)(next() % INT_MAX);
	case 'L':
		length = next() % 8 ? next() % ROOM : -5;
		return next() % 16 ? (long)&length : 0;
	case 'm':
	case 'u':
		return (long)memory(at);
	case 'A':
		return has_ca ? 0 : (long)ca;
	case 'B':
		return has_port ? 0 : (long)port_of_ca;
	case 'D':
		return has_ca ? (long)ca : 0;
	case 'R':
		return has_port ? (long)port_of_ca : 0;
	case 'H': {
		static void *empty;
		return next() % 2 ? (long)&empty : 0;
	}
	default:
		return number();
	}
}

static void call(int which)
{
	long given[6] = {};
	const char *kinds = known[which].arguments;

	for (int i = 0; kinds[i] && i < 6; i++)
		given[i] = argument(kinds[i], i);
	long answer = known[which].call(given[0], given[1], given[2], given[3], given[4], given[5]);
	if (strchr(kinds, 'A') && given[1] && (int)answer == 0)
		has_ca = 1;
	if (strchr(kinds, 'B') && given[2] && (int)answer == 0)
		has_port = 1;
	if (strchr(kinds, 'D'))
		has_ca = 0;
	if (strchr(kinds, 'R'))
		has_port = 0;
	if (strchr(kinds, 'F'))
		umad_free_ca_device_list((void *)answer);
	if (strchr(kinds, 'O') && (int)answer >= 0) {
		int *place = &ports[next() % 8];
		if (*place >= 0)
			umad_close_port(*place);
		*place = (int)answer;
	}
}

// Sends a Get of NodeInfo to the own node.
static void must_be_answered(void)
{
	static char umad[64 + 256];
	int length = 256, port = umad_open_port(NULL, 1);
	uint8_t *mad = (uint8_t *)umad + 64;

	MUST(port >= 0);
	int agent = umad_register(port, DIRECTED, 1, 0, NULL);
	MUST(agent == 0);
	memcpy(mad, (uint8_t[]){ 1, DIRECTED, 1, GET }, 4);
	mad[17] = NODE_INFO;
	memset(mad + 32, 0xff, 4);
	umad_set_addr(umad, 0xffff, 0, 0, 0);
	MUST((int)umad_send(port, agent, umad, 256, 1000, 3) == 0);
	MUST((int)umad_recv(port, umad, &length, -1) == agent);
	MUST((int)umad_status(umad) == 0 && mad[3] == 0x81);
	umad_close_port(port);
}

int main(int count, char **arguments)
{
	MUST(count == 4);
	state = strtoull(arguments[1], NULL, 10) * 0x9e3779b97f4a7c15 | 1;
	alarm(atoi(arguments[3]));
	// What is dumped is of no interest.
	MUST(freopen("/dev/null", "w", stderr) != NULL);
	memset(ports, -1, sizeof ports);
	for (int i = atoi(arguments[2]); i > 0; i--)
		call(next() % (sizeof known / sizeof *known));
	must_be_answered();
	puts("all refused or done");
	return 0;
}
