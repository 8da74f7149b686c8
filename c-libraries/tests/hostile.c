// Calls every exported function, and every function in the tables of a device, of a completion queue and of a queue pair, with
// hostile arguments: numbers at their limits, unknown flags, null pointers, structures of random numbers, live, destroyed and wrong
// handles. No call may end the process, and when a round has destroyed what it has made, nothing may be left.
//
// The arguments are a seed, a number of rounds, a number of calls in each, seconds after which an alarm ends the process, and a
// file with the exported symbols, one a line. The trace of the configuration shows the last call.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libraries.h"

// The place of a function.
enum place { EXPORTED, DEVICE, OLD_DEVICE, COMPLETION_QUEUE, QUEUE_PAIR };

struct function {
	const char *name, *arguments;
	enum place place;
	int slot;
	// The version of an exported function.
	char version[32];
};

// Arguments by letter:
// o  an object; x  one that is no device  A  what `rdma_getaddrinfo` has made
// L  a device of the list, or an object
// q  a live queue pair                    C  parameters of a connection
// c  a live completion queue              D  a list of inline data
// u  a live shared receive queue          G  a list of SGEs
// w  a live window                        J  parameters of joining a group
// h  a live address handle                M  memory that is there
// d  an rsocket, or another number        R  a list of receives
// i  a duplicate of a descriptor          S  a list of sends
// a  an address                           W  the bind of a window
// l  a length behind a pointer            b  room for a bad request
// m  memory, maybe null                   g  a message of several parts
// r  room for an object                   k  a small count, or one that is far too large
// s  a size of memory                     t  a text
// n  a number                             v  a list of parts
static const struct function known[] = {
	{ "ibv_get_device_list", "m" }, { "ibv_get_device_guid", "o" }, { "ibv_get_device_index", "o" }, { "ibv_get_device_name", "M" },
	{ "ibv_open_device", "L" }, { "ibv_close_device", "x" }, { "ibv_import_device", "i" }, { "ibv_free_device_list", "0" },
	{ "ibv_read_sysfs_file", "ttms" }, { "ibv_get_async_event", "oM" }, { "ibv_ack_async_event", "m" },
	{ "ibv_query_device", "om" }, { "ibv_query_port", "onm" }, { "ibv_query_gid", "onnm" }, { "ibv_query_pkey", "onnm" },
	{ "ibv_get_pkey_index", "onn" }, { "_ibv_query_gid_ex", "onmnn" }, { "_ibv_query_gid_table", "omsns" }, { "ibv_query_gid_type", "onnm" },
	{ "ibv_alloc_pd", "o" }, { "ibv_dealloc_pd", "o" }, { "ibv_import_pd", "on" }, { "ibv_unimport_pd", "o" },
	{ "ibv_reg_mr", "omsn" }, { "ibv_reg_mr_iova", "omsnn" }, { "ibv_reg_mr_iova2", "omsnn" },
	{ "ibv_rereg_mr", "onomsn" }, { "ibv_dereg_mr", "o" }, { "ibv_import_mr", "on" }, { "ibv_unimport_mr", "o" },
	{ "ibv_import_dm", "on" }, { "ibv_unimport_dm", "o" }, { "ibv_create_comp_channel", "o" }, { "ibv_destroy_comp_channel", "o" },
	{ "ibv_get_cq_event", "orM" }, { "ibv_create_cq", "onmon" }, { "ibv_resize_cq", "on" }, { "ibv_destroy_cq", "o" },
	{ "ibv_ack_cq_events", "on" }, { "ibv_create_qp", "om" }, { "ibv_modify_qp", "omn" }, { "ibv_query_qp", "omnm" },
	{ "ibv_destroy_qp", "o" }, { "ibv_qp_to_qp_ex", "o" }, { "ibv_query_qp_data_in_order", "onn" }, { "ibv_query_ece", "om" },
	{ "ibv_set_ece", "om" }, { "ibv_create_srq", "om" }, { "ibv_modify_srq", "omn" }, { "ibv_query_srq", "om" }, { "ibv_destroy_srq", "o" },
	{ "ibv_create_ah", "om" }, { "ibv_destroy_ah", "o" }, { "ibv_init_ah_from_wc", "onmmm" }, { "ibv_create_ah_from_wc", "ommn" },
	{ "ibv_attach_mcast", "omn" }, { "ibv_detach_mcast", "omn" },
	{ "ibv_reg_mr_ex", "om" }, { "ibv_reg_dmabuf_mr", "onsnin" }, { "ibv_reg_buf_mr", "oomsn" }, { "ibv_alloc_dmah", "om" },
	{ "ibv_dealloc_dmah", "o" }, { "ibv_alloc_buf", "osr" }, { "ibv_free_buf", "o" }, { "ibv_export_buf_dmabuf_fd", "o" },
	{ "ibv_dm_export_dmabuf_fd", "o" }, { "ibv_query_port_speed", "onm" }, { "_ibv_query_comp_cntr_caps", "oms" },
	{ "ibv_create_comp_cntr", "om" }, { "ibv_destroy_comp_cntr", "o" }, { "ibv_set_comp_cntr", "on" }, { "ibv_set_err_comp_cntr", "on" },
	{ "ibv_inc_comp_cntr", "on" }, { "ibv_inc_err_comp_cntr", "on" }, { "ibv_read_comp_cntr", "om" }, { "ibv_read_err_comp_cntr", "om" },
	{ "ibv_qp_attach_comp_cntr", "oom" },
	{ "rdma_create_event_channel", "" }, { "rdma_destroy_event_channel", "o" }, { "rdma_create_id", "ormn" }, { "rdma_destroy_id", "o" },
	{ "rdma_bind_addr", "oa" }, { "rdma_listen", "on" }, { "rdma_resolve_addr", "oaan" }, { "rdma_resolve_route", "on" },
	{ "rdma_create_qp", "oom" }, { "rdma_create_qp_ex", "om" }, { "rdma_destroy_qp", "o" }, { "rdma_connect", "oC" }, { "rdma_accept", "oC" },
	{ "rdma_disconnect", "o" }, { "rdma_get_src_port", "o" }, { "rdma_get_dst_port", "o" }, { "rdma_reject", "oMn" },
	{ "rdma_reject_ece", "oMn" }, { "rdma_notify", "on" }, { "rdma_establish", "o" }, { "rdma_get_cm_event", "or" }, { "rdma_ack_cm_event", "o" },
	{ "rdma_create_srq", "oom" }, { "rdma_create_srq_ex", "om" }, { "rdma_destroy_srq", "o" }, { "rdma_set_option", "onnms" },
	{ "rdma_init_qp_attr", "omm" }, { "rdma_join_multicast", "oam" }, { "rdma_join_multicast_ex", "oJm" }, { "rdma_leave_multicast", "oa" },
	{ "rdma_migrate_id", "oo" }, { "rdma_get_request", "or" }, { "rdma_create_ep", "rAom" }, { "rdma_destroy_ep", "o" },
	{ "rdma_getaddrinfo", "tt0m" }, { "rdma_freeaddrinfo", "0" }, { "rdma_free_devices", "0" },
	{ "rdma_resolve_addrinfo", "ott0" }, { "rdma_query_addrinfo", "om" }, { "rdma_write_cm_event", "onnn" },
	{ "repoll_create", "n" }, { "repoll_ctl", "dndm" }, { "repoll_wait", "dmkn" },
	{ "rdma_set_local_ece", "om" }, { "rdma_get_remote_ece", "om" },
	{ "rsocket", "nnn" }, { "rbind", "dal" }, { "rlisten", "dn" }, { "raccept", "dml" }, { "rconnect", "das" }, { "rshutdown", "dn" },
	{ "rclose", "d" }, { "rrecv", "dmsn" }, { "rrecvfrom", "dmsnml" }, { "rrecvmsg", "dgn" }, { "rsend", "dmsn" }, { "rsendto", "dmsnas" },
	{ "rsendmsg", "dgn" }, { "rread", "dms" }, { "rreadv", "dvk" }, { "rwrite", "dms" }, { "rwritev", "dvk" }, { "rpoll", "mkn" },
	{ "rselect", "nmmmm" }, { "rgetpeername", "dml" }, { "rgetsockname", "dml" }, { "rsetsockopt", "dnnms" }, { "rgetsockopt", "dnnml" },
	{ "rfcntl", "dnn" }, { "riomap", "dmsnnn" }, { "riounmap", "dms" }, { "riowrite", "dmsnn" },
	{ "alloc_mw", "on", OLD_DEVICE, 7 }, { "bind_mw", "ooW", OLD_DEVICE, 8 }, { "dealloc_mw", "o", OLD_DEVICE, 9 },
	{ "poll_cq", "cnM", OLD_DEVICE, 11 }, { "req_notify_cq", "cn", OLD_DEVICE, 12 }, { "post_srq_recv", "uRb", OLD_DEVICE, 20 },
	{ "post_send", "qSb", OLD_DEVICE, 25 }, { "post_recv", "qRb", OLD_DEVICE, 26 },
	{ "query_port", "onms", DEVICE, 0 }, { "advise_mr", "onnGk", DEVICE, 1 }, { "alloc_null_mr", "o", DEVICE, 2 },
	{ "create_counters", "om", DEVICE, 5 }, { "reg_dm_mr", "oonsn", DEVICE, 7 }, { "alloc_dm", "om", DEVICE, 8 }, { "free_dm", "o", DEVICE, 9 },
	{ "create_flow_action_esp", "om", DEVICE, 12 }, { "modify_qp_rate_limit", "om", DEVICE, 13 }, { "alloc_parent_domain", "om", DEVICE, 14 },
	{ "dealloc_td", "o", DEVICE, 15 }, { "alloc_td", "om", DEVICE, 16 }, { "modify_cq", "om", DEVICE, 17 }, { "post_srq_ops", "omb", DEVICE, 18 },
	{ "create_rwq_ind_table", "om", DEVICE, 20 }, { "create_wq", "om", DEVICE, 23 }, { "query_rt_values", "om", DEVICE, 24 },
	{ "create_cq_ex", "om", DEVICE, 25 }, { "query_device_ex", "omms", DEVICE, 27 }, { "create_flow", "om", DEVICE, 30 },
	{ "open_qp", "om", DEVICE, 32 }, { "create_qp_ex", "om", DEVICE, 33 }, { "get_srq_num", "om", DEVICE, 34 },
	{ "create_srq_ex", "om", DEVICE, 35 }, { "open_xrcd", "om", DEVICE, 36 }, { "close_xrcd", "o", DEVICE, 37 },
	{ "start_poll", "cm", COMPLETION_QUEUE, 0 }, { "next_poll", "c", COMPLETION_QUEUE, 1 }, { "end_poll", "c", COMPLETION_QUEUE, 2 },
	{ "read_opcode", "c", COMPLETION_QUEUE, 3 }, { "read_vendor_err", "c", COMPLETION_QUEUE, 4 }, { "read_byte_len", "c", COMPLETION_QUEUE, 5 },
	{ "read_imm_data", "c", COMPLETION_QUEUE, 6 }, { "read_qp_num", "c", COMPLETION_QUEUE, 7 }, { "read_src_qp", "c", COMPLETION_QUEUE, 8 },
	{ "read_wc_flags", "c", COMPLETION_QUEUE, 9 }, { "read_slid", "c", COMPLETION_QUEUE, 10 }, { "read_sl", "c", COMPLETION_QUEUE, 11 },
	{ "read_dlid_path_bits", "c", COMPLETION_QUEUE, 12 },
	{ "wr_atomic_cmp_swp", "qnnnn", QUEUE_PAIR, 0 }, { "wr_atomic_fetch_add", "qnnn", QUEUE_PAIR, 1 }, { "wr_bind_mw", "qwnW", QUEUE_PAIR, 2 },
	{ "wr_local_inv", "qn", QUEUE_PAIR, 3 }, { "wr_rdma_read", "qnn", QUEUE_PAIR, 4 }, { "wr_rdma_write", "qnn", QUEUE_PAIR, 5 },
	{ "wr_rdma_write_imm", "qnnn", QUEUE_PAIR, 6 }, { "wr_send", "q", QUEUE_PAIR, 7 }, { "wr_send_imm", "qn", QUEUE_PAIR, 8 },
	{ "wr_send_inv", "qn", QUEUE_PAIR, 9 }, { "wr_set_ud_addr", "qhnn", QUEUE_PAIR, 11 }, { "wr_set_xrc_srqn", "qn", QUEUE_PAIR, 12 },
	{ "wr_set_inline_data", "qms", QUEUE_PAIR, 13 }, { "wr_set_inline_data_list", "qkD", QUEUE_PAIR, 14 }, { "wr_set_sge", "qnnn", QUEUE_PAIR, 15 },
	{ "wr_set_sge_list", "qkG", QUEUE_PAIR, 16 }, { "wr_start", "q", QUEUE_PAIR, 17 }, { "wr_complete", "q", QUEUE_PAIR, 18 },
	{ "wr_abort", "q", QUEUE_PAIR, 19 }, { "wr_atomic_write", "qnnM", QUEUE_PAIR, 20 },
};

enum { KNOWN = sizeof known / sizeof *known, MOST = 512, OBJECTS = 64, MADE = 1 << 16, MEMORY = 1 << 16, LIST = 64, SOCKETS = 32 };

// Exported functions that are not in the list above get numbers only.
static struct function functions[MOST];
static int functions_count;

static void **list;
static uint64_t state;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

// The objects among the arguments, some of them destroyed, and all objects that the round has made.
static void *objects[OBJECTS], *made[MADE];
static int made_count, sockets[SOCKETS];

// The devices that the round has opened. They are closed at its end only, because objects on a closed device would stay.
static void *devices[MADE];
static int devices_count;

static int is_device(const void *object)
{
	for (int at = 0; at < devices_count; at++)
		if (devices[at] == object)
			return 1;
	return 0;
}

static void keep(void *object)
{
	if (object == NULL)
		return;
	objects[next() % OBJECTS] = object;
	MUST(made_count < MADE);
	made[made_count++] = object;
}

// Live objects for the data path, whose functions check no handle. Other functions get them too, except those that destroy.
static struct {
	void *context, *pd, *cq, *srq, *mr, *mw, *listener, *ids[2], *datagrams, *ah, *infos;
} live;

static void *queue_pair(void *id)
{
	return ((void **)id)[3];
}

// The queue pair of the call.
static void *pair;

static char memory[MEMORY] __attribute__((aligned(4096)));

static uint64_t number(void)
{
	static const uint64_t limits[] = { 0, 1, 2, 3, 7, 16, 255, 4096, 65535, 65536, INT32_MAX, (uint64_t)INT32_MIN, UINT32_MAX, INT64_MAX, UINT64_MAX };

	switch (next() % 4) {
	case 0:
		return next();
	case 1:
		return next() % 64;
	default:
		return limits[next() % (sizeof limits / sizeof *limits)];
	}
}

// A structure whose words are numbers or handles, but no other pointers.
static void *structure(void)
{
	uint64_t *words = (uint64_t *)memory;

	for (int at = 0; at < 64; at++)
		words[at] = next() % 4 == 0 ? (uintptr_t)objects[next() % OBJECTS] : next() % 4 == 0 ? next() % 32 : 0;
	return memory;
}

static void *maybe(void *there)
{
	return next() % 8 == 0 ? NULL : there;
}

static struct sockaddr_in here(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };

	at.sin_addr.s_addr = htonl(0x7f003c01);
	return at;
}

static void *address(void)
{
	static struct sockaddr_in at;

	if (next() % 2 == 0)
		return maybe(structure());
	at = here(next() % 2 == 0 ? 7000 + next() % 4 : next());
	if (next() % 8 == 0)
		at.sin_addr.s_addr = next();
	return &at;
}

struct sge {
	uint64_t at;
	uint32_t length, key;
};

// SGEs of mapped memory, because the call may read it as inline data.
static struct sge *entries(void)
{
	static struct sge list[LIST];
	uint32_t key = *(uint32_t *)((char *)live.mr + 36);

	for (int at = 0; at < LIST; at++) {
		list[at].at = (uintptr_t)memory + next() % 256;
		list[at].length = next() % 8 ? next() % 256 : number();
		list[at].key = next() % 4 ? key : number();
	}
	return list;
}

struct request {
	uint64_t id;
	void *next, *entries;
	int count, opcode;
	uint32_t flags, immediate;
	uint64_t words[4];
	uint32_t queue;
	uint64_t bind[6];
};

static void *requests(int is_send)
{
	static struct request list[4];
	int count = 1 + next() % 4;

	memset(list, 0, sizeof list);
	for (int at = 0; at < count; at++) {
		struct request *request = &list[at];

		request->id = next();
		request->next = at + 1 < count ? request + 1 : NULL;
		request->entries = maybe(entries());
		request->count = next() % 4 ? next() % 4 : number();
		if (!is_send)
			continue;
		request->opcode = next() % 8 ? next() % 16 : number();
		request->flags = next() % 8 ? next() % 32 : number();
		request->immediate = number();
		request->words[0] = next() % 2 ? (uintptr_t)memory : number();
		request->words[1] = number();
		request->words[2] = number();
		request->words[3] = *(uint32_t *)((char *)live.mr + 40);
		request->bind[0] = (uintptr_t)live.mw;
		request->bind[2] = (uintptr_t)maybe(live.mr);
		// The address handle of a datagram, which the data path does not check.
		if (live.datagrams && pair == queue_pair(live.datagrams))
			request->words[0] = (uintptr_t)maybe(live.ah);
	}
	return list;
}

static int *length(void)
{
	static int length;

	length = next() % 4 ? next() % 128 : number();
	return maybe(&length);
}

static struct iovec *parts(void)
{
	static struct iovec list[LIST];

	for (int at = 0; at < LIST; at++)
		list[at] = next() % 8 ? (struct iovec){ memory + next() % 4096, next() % 512 } : (struct iovec){ NULL, number() };
	return list;
}

static uint64_t argument(char kind)
{
	static struct msghdr message;
	static struct { uint32_t mask, flags; void *at; } join;
	static struct { void *data; uint8_t length, rest[7]; uint32_t number; } parameters;
	static struct { uint64_t id; uint32_t flags; void *mr; uint64_t at, length; uint32_t access; } bind;
	static void *bad;
	static const char *texts[] = { "127.0.60.1", "7001", "", "no such name", "board_id", NULL };

	switch (kind) {
	case '0':
		return 0;
	case 'o':
		return next() % 16 == 0 ? 0 : (uintptr_t)objects[next() % OBJECTS];
	case 'x': {
		void *object = objects[next() % OBJECTS];

		return is_device(object) ? 0 : (uintptr_t)object;
	}
	case 'L':
		return next() % 2 ? (uintptr_t)list[0] : argument('o');
	case 'q':
		pair = queue_pair(live.datagrams && next() % 4 == 0 ? live.datagrams : live.ids[next() % 2]);
		return (uintptr_t)pair;
	case 'c':
		return (uintptr_t)live.cq;
	case 'u':
		return (uintptr_t)live.srq;
	case 'w':
		return (uintptr_t)maybe(live.mw);
	case 'h':
		return (uintptr_t)live.ah;
	case 'd':
		return next() % 8 == 0 ? number() : sockets[next() % SOCKETS];
	case 'i':
		return dup(next() % 64);
	case 'a':
		return (uintptr_t)address();
	case 'l':
		return (uintptr_t)length();
	case 'm':
		return (uintptr_t)maybe(structure());
	case 'M':
		return (uintptr_t)structure();
	case 's':
		return next() % 4096;
	case 'r':
		return (uintptr_t)maybe(&bad);
	case 'b':
		return (uintptr_t)maybe(&bad);
	case 'k':
		return next() % 8 ? next() % LIST : (uint64_t)1 << 40;
	case 't':
		return (uintptr_t)texts[next() % 6];
	case 'v':
		return (uintptr_t)maybe(parts());
	case 'g':
		message = (struct msghdr){ maybe(memory), next() % 128, maybe(parts()), next() % LIST };
		return (uintptr_t)maybe(&message);
	case 'A':
		return (uintptr_t)live.infos;
	case 'C':
		for (int at = 0; at < 7; at++)
			parameters.rest[at] = next();
		parameters.data = memory;
		parameters.length = next();
		parameters.number = number();
		return (uintptr_t)maybe(&parameters);
	case 'D':
		return (uintptr_t)maybe(parts());
	case 'G':
		return (uintptr_t)maybe(entries());
	case 'J':
		join.mask = next() % 8;
		join.flags = next() % 4;
		join.at = address();
		return (uintptr_t)maybe(&join);
	case 'R':
	case 'S':
		return (uintptr_t)maybe(requests(kind == 'S'));
	case 'W':
		bind.id = next();
		bind.flags = number();
		bind.mr = objects[next() % OBJECTS];
		bind.at = (uintptr_t)memory;
		bind.length = number();
		bind.access = next() % 32;
		return (uintptr_t)maybe(kind == 'W' && next() % 2 ? (void *)&bind : (void *)&bind.mr);
	default:
		return number();
	}
}

static void *function_of(const struct function *function)
{
	void **device = live.context, **queue = live.cq, **operations = queue_pair(live.ids[0]);

	switch (function->place) {
	case DEVICE:
		return device[function->slot - 40];
	case OLD_DEVICE:
		return device[function->slot + 1];
	case COMPLETION_QUEUE:
		return queue[function->slot + 18];
	case QUEUE_PAIR:
		return operations[function->slot + 23];
	default:
		return dlvsym(RTLD_DEFAULT, function->name, function->version);
	}
}

static int is(const struct function *function, const char *name)
{
	return strcmp(function->name, name) == 0;
}

static int returns_object(const struct function *function)
{
	static const char *makers[] = { "ibv_alloc", "ibv_create", "ibv_open", "ibv_import", "ibv_reg", "rdma_create_event", "alloc_", "create_", "open_", "reg_dm" };

	for (int at = 0; at < 10; at++)
		if (strncmp(function->name, makers[at], strlen(makers[at])) == 0)
			return 1;
	return 0;
}

// Keeps the object that a call has made. Events are acknowledged at once, because destroying an object waits for that.
static void take(const struct function *function, const uint64_t *a, uint64_t result)
{
	void **room = (void **)(strchr(function->arguments, 'r') ? a[strchr(function->arguments, 'r') - function->arguments] : 0);

	if (is(function, "ibv_reg_dmabuf_mr"))
		close(a[4]);
	if (is(function, "rsocket") || is(function, "raccept")) {
		if ((int)result >= 0) {
			int place = next() % SOCKETS;

			rclose(sockets[place]);
			sockets[place] = (int)result;
		}
	} else if (is(function, "ibv_alloc_buf")) {
		// The result is memory, and the object is in the room.
		if (result != 0)
			keep(*room);
	} else if (is(function, "ibv_export_buf_dmabuf_fd") || is(function, "ibv_dm_export_dmabuf_fd")) {
		if ((int)result >= 0)
			close((int)result);
	} else if (is(function, "ibv_import_device") && result == 0) {
		close(a[0]);
	} else if (is(function, "ibv_get_device_list")) {
		ibv_free_device_list((void **)result);
	} else if (is(function, "ibv_get_cq_event") && (int)result == 0) {
		ibv_ack_cq_events(*room, 1);
	} else if (is(function, "ibv_get_async_event") && (int)result == 0) {
		ibv_ack_async_event((void *)a[1]);
	} else if (is(function, "rdma_get_cm_event") && (int)result == 0) {
		void *event = *room;

		// The program owns the identifier of a connection request from now on.
		if (((int *)event)[4] == 4)
			keep(*(void **)event);
		rdma_ack_cm_event(event);
		objects[next() % OBJECTS] = event;
	} else if (is(function, "rdma_query_addrinfo") && (int)result == 0) {
		rdma_freeaddrinfo(*(void **)a[1]);
	} else if (is(function, "repoll_create")) {
		if ((int)result >= 0)
			rclose((int)result);
	} else if (is(function, "rdma_getaddrinfo") && (int)result == 0 && a[3] != 0) {
		rdma_freeaddrinfo(*(void **)a[3]);
	} else if (room != NULL && (int)result == 0) {
		keep(*room);
	} else if (returns_object(function)) {
		if (result != 0 && (is(function, "ibv_open_device") || is(function, "ibv_import_device")))
			devices[devices_count++] = (void *)result;
		keep((void *)result);
	}
}

// Attributes of a queue pair with all operations of its device and its type. They can be built call by call.
static void *attributes(int type)
{
	// Writes, sends, reads, atomics, and operations on keys; iWARP has neither atomics nor immediate data.
	enum { ALL = 0x3ff, WITHOUT_ATOMICS = 0x395, SENDS = 0xc };
	static struct {
		void *queues[4];
		uint32_t most[5], type, all, mask;
		void *pd, *domain;
		uint32_t flags, rest[11];
		uint64_t operations;
	} attributes;

	memset(&attributes, 0, sizeof attributes);
	attributes.queues[1] = attributes.queues[2] = live.cq;
	attributes.most[0] = attributes.most[1] = 16;
	attributes.most[2] = attributes.most[3] = 4;
	attributes.most[4] = 128;
	attributes.type = type;
	attributes.mask = 1 | 1 << 6;
	attributes.pd = live.pd;
	attributes.operations = type == 4 ? SENDS : ((int *)((void **)live.context)[0])[4] == 4 ? WITHOUT_ATOMICS : ALL;
	return &attributes;
}

static void *accepting(void *unused)
{
	MUST(rdma_get_request(live.listener, &live.ids[1]) == 0);
	MUST(rdma_create_qp_ex(live.ids[1], attributes(2)) == 0);
	MUST(rdma_accept(live.ids[1], NULL) == 0);
	return NULL;
}

static void make_live(void)
{
	static struct { void *context; uint32_t most, entries, limit; } queue = { NULL, 16, 4, 0 };
	static struct { uint32_t entries; void *context, *channel; uint32_t vector; uint64_t flags; uint32_t mask, more; } completions = { 64, NULL, NULL, 0, 0x7f };
	struct { uint8_t gid[16]; uint32_t label; uint8_t index, hops, class, pad; uint16_t lid; uint8_t level, bits, rate, global, port; } path = { .index = 1, .hops = 64, .global = 1, .port = 1 };
	struct sockaddr_in any = here(0);
	pthread_t thread;

	MUST(rdma_create_id(NULL, &live.listener, NULL, RDMA_PS_TCP) == 0 && rdma_bind_addr(live.listener, (struct sockaddr *)&any) == 0);
	MUST(rdma_listen(live.listener, 4) == 0);
	any.sin_port = rdma_get_src_port(live.listener);
	live.context = *(void **)live.listener;
	MUST(live.pd = ibv_alloc_pd(live.context));
	live.cq = ((void *(*)(void *, void *))((void **)live.context)[25 - 40])(live.context, &completions);
	MUST(live.cq);
	MUST(live.srq = ibv_create_srq(live.pd, &queue));
	MUST(live.mr = ibv_reg_mr(live.pd, memory, MEMORY, 0x1f));
	MUST(live.mw = ((void *(*)(void *, int))((void **)live.context)[7 + 1])(live.pd, 2));
	memcpy(path.gid + 10, "\xff\xff\x7f\x00\x3c\x01", 6);
	live.ah = ibv_create_ah(live.pd, &path);
	MUST(rdma_create_id(NULL, &live.ids[0], NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_resolve_addr(live.ids[0], NULL, (struct sockaddr *)&any, 1000) == 0 && rdma_resolve_route(live.ids[0], 1000) == 0);
	MUST(rdma_create_qp_ex(live.ids[0], attributes(2)) == 0);
	MUST(pthread_create(&thread, NULL, accepting, NULL) == 0);
	MUST(rdma_connect(live.ids[0], NULL) == 0 && pthread_join(thread, NULL) == 0);
	any.sin_port = 0;
	MUST(rdma_create_id(NULL, &live.datagrams, NULL, RDMA_PS_UDP) == 0);
	if (rdma_bind_addr(live.datagrams, (struct sockaddr *)&any) != 0 || rdma_create_qp_ex(live.datagrams, attributes(4)) != 0) {
		// iWARP has no datagrams.
		MUST(rdma_destroy_id(live.datagrams) == 0);
		live.datagrams = NULL;
	}
	for (int at = 0; at < SOCKETS; at++) {
		int kind = at % 4 == 0 ? SOCK_DGRAM : SOCK_STREAM;

		MUST((sockets[at] = rsocket(AF_INET, kind | (at % 2 ? SOCK_NONBLOCK : 0), 0)) >= 0);
	}
}

static int destroyed(void *object)
{
	static const char *functions[] = { "rdma_destroy_id", "ibv_destroy_qp", "ibv_destroy_srq", "ibv_destroy_ah", "ibv_dereg_mr", "ibv_destroy_cq",
		"ibv_destroy_comp_channel", "ibv_dealloc_pd", "ibv_dealloc_dmah", "ibv_destroy_comp_cntr" };
	// Slots in the table of a device.
	static const int slots[] = { 9, 15, 37 };

	rdma_destroy_qp(object);
	rdma_destroy_srq(object);
	ibv_unimport_mr(object);
	ibv_unimport_dm(object);
	ibv_unimport_pd(object);
	errno = 0;
	ibv_free_buf(object);
	if (errno == 0)
		return 1;
	for (int at = 0; at < 10; at++)
		if (((int (*)(void *))dlsym(RTLD_DEFAULT, functions[at]))(object) == 0)
			return 1;
	for (int at = 0; at < 3; at++)
		if (((int (*)(void *))((void **)live.context)[slots[at] - 40])(object) == 0)
			return 1;
	return ((int (*)(void *))((void **)live.context)[9 + 1])(object) == 0;
}

static void destroy_all(void)
{
	int count;

	for (int at = 0; at < SOCKETS; at++)
		rclose(sockets[at]);
	do {
		count = 0;
		for (int at = 0; at < made_count; at++)
			if (made[at] != NULL && !is_device(made[at]) && destroyed(made[at])) {
				made[at] = NULL;
				count++;
			}
	} while (count > 0);
	for (int at = 0; at < devices_count; at++)
		MUST(ibv_close_device(devices[at]) == 0);
	// The objects that are left are channels.
	for (int at = 0; at < made_count; at++)
		if (made[at] != NULL)
			rdma_destroy_event_channel(made[at]);
	MUST(((int (*)(void *))((void **)live.context)[9 + 1])(live.mw) == 0);
	for (int at = 0; at < 2; at++) {
		rdma_destroy_qp(live.ids[at]);
		MUST(rdma_destroy_id(live.ids[at]) == 0);
	}
	if (live.datagrams) {
		rdma_destroy_qp(live.datagrams);
		MUST(rdma_destroy_id(live.datagrams) == 0);
	}
	MUST(rdma_destroy_id(live.listener) == 0);
	MUST(ibv_destroy_ah(live.ah) == 0 || live.ah == NULL);
	MUST(ibv_destroy_srq(live.srq) == 0 && ibv_destroy_cq(live.cq) == 0 && ibv_dereg_mr(live.mr) == 0 && ibv_dealloc_pd(live.pd) == 0);
	made_count = devices_count = 0;
}

static int entries_of(const char *folder)
{
	DIR *open = opendir(folder);
	int count = 0;

	MUST(open != NULL);
	while (readdir(open))
		count++;
	closedir(open);
	return count;
}

static int ticks_left;

// Ends a call that waits, and a process that takes too long.
static void tick(int signal)
{
	if (--ticks_left == 0) {
		write(2, "too long\n", 9);
		_exit(1);
	}
}

// The descriptors after the first round; later rounds leave no more.
static int descriptors;

static void round_of(uint64_t seed, long calls)
{
	struct itimerval often = { { 0, 5000 }, { 0, 5000 } }, never = { 0 };

	memset(objects, 0, sizeof objects);
	state = 0x9e3779b97f4a7c15 ^ seed;
	make_live();
	setitimer(ITIMER_REAL, &often, NULL);
	for (long call = 0; call < calls; call++) {
		// Each function is called once, then functions at random.
		const struct function *which = &functions[call < functions_count ? call : next() % functions_count];
		uint64_t a[6] = { 0 };

		if (call % 200 == 0) {
			void *id;

			devices[devices_count] = ibv_open_device(list[0]);
			keep(devices[devices_count]);
			keep(ibv_alloc_pd(devices[devices_count]));
			keep(ibv_create_cq(devices[devices_count++], 4, NULL, NULL, 0));
			MUST(rdma_create_id(rdma_create_event_channel(), &id, NULL, RDMA_PS_TCP) == 0);
			keep(((void **)id)[1]);
			keep(id);
		}
		uint64_t (*function)() = (uint64_t (*)())function_of(which);
		MUST(function != NULL || !fprintf(stderr, "there is no %s\n", which->name));
		for (int at = 0; which->arguments[at]; at++)
			a[at] = argument(which->arguments[at]);
		errno = 0;
		take(which, a, function(a[0], a[1], a[2], a[3], a[4], a[5]));
	}
	setitimer(ITIMER_REAL, &never, NULL);
	destroy_all();
	// The program's own thread is left, and the timer and the reader of the device that identifiers keep open. The kernel
	// still lists a thread for a moment after its end.
	setitimer(ITIMER_REAL, &often, NULL);
	while (entries_of("/proc/self/task") > 2 + 3)
		sched_yield();
	// An object is freed, and its file closed, when the last thread that may have used it has gone on.
	while (descriptors > 0 && entries_of("/proc/self/fd") > descriptors)
		sched_yield();
	setitimer(ITIMER_REAL, &never, NULL);
}

// The number of allocated bytes. The test disables malloc's thread caches, whose freed memory would count.
static size_t bytes(void)
{
	struct mallinfo2 heap = mallinfo2();

	return heap.uordblks + heap.hblkhd;
}

// Functions that are not in the list of known ones get numbers only. Those of the C library are not called here.
static void read_symbols(const char *file)
{
	FILE *symbols = fopen(file, "r");
	static char lines[MOST][80];

	MUST(symbols != NULL);
	while (fgets(lines[functions_count], sizeof *lines, symbols)) {
		char *line = lines[functions_count], *version = strchr(line, '@');
		struct function *function = &functions[functions_count];

		*function = (struct function){ line, "nnnnnn" };
		line[strcspn(line, "\n")] = 0;
		MUST(version != NULL);
		if (strncmp(line, "rdma_get_devices@", 17) == 0)
			continue;
		strcpy(function->version, version + strspn(version, "@"));
		int is_current = version[1] == '@';
		*version = 0;
		for (int at = 0; at < KNOWN && is_current; at++)
			if (known[at].place == EXPORTED && is(&known[at], line))
				function->arguments = known[at].arguments;
		MUST(++functions_count < MOST);
	}
	fclose(symbols);
	for (int at = 0; at < KNOWN; at++)
		if (known[at].place != EXPORTED)
			functions[functions_count++] = known[at];
}

int main(int count, char **arguments)
{
	struct sigaction action = { .sa_handler = tick };
	long rounds = atol(arguments[2]), calls = atol(arguments[3]);
	int count_of_devices;
	size_t used = 0;

	ticks_left = atoi(arguments[4]) * 200;
	read_symbols(arguments[5]);
	list = ibv_get_device_list(NULL);
	sigaction(SIGALRM, &action, NULL);
	for (long round = 0; round < rounds; round++) {
		round_of(strtoull(arguments[1], NULL, 0), calls);
		fprintf(stderr, "round %ld: %d descriptors, %zu bytes\n", round, entries_of("/proc/self/fd"), bytes());
		if (round == 0)
			descriptors = entries_of("/proc/self/fd");
		if (round == 1)
			used = bytes();
		// A table grows now and then, while leaked objects would add up.
		MUST(round < 2 || bytes() < used + 65536);
	}
	// `rdma_get_devices` keeps devices open.
	rdma_free_devices(rdma_get_devices(&count_of_devices));
	MUST(count_of_devices == 1);
	puts("all refused or done");
	return 0;
}
