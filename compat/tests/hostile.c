// Calls exported functions with hostile arguments: numbers at their limits, unknown flags, null pointers, structures of random
// numbers, live, destroyed and wrong handles. No call may end the process. The arguments are a seed and a number of calls; the
// trace of the configuration shows the last call.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libraries.h"

// Letters: an object of the library, a number, memory that is read or written, its size, room for a pointer. Functions that free
// memory of the C library, wait, or read a second structure through a pointer are not here.
static const struct { const char *name, *arguments; } functions[] = {
	{ "ibv_get_device_list", "m" }, { "ibv_get_device_guid", "o" }, { "ibv_get_device_index", "o" },
	{ "ibv_open_device", "o" }, { "ibv_close_device", "o" }, { "ibv_import_device", "n" },
	{ "ibv_query_device", "om" }, { "ibv_query_port", "onm" }, { "ibv_query_gid", "onnm" },
	{ "ibv_query_pkey", "onnm" }, { "ibv_get_pkey_index", "onn" },
	{ "_ibv_query_gid_ex", "onnmnn" }, { "_ibv_query_gid_table", "omsns" },
	{ "ibv_node_type_str", "n" }, { "ibv_port_state_str", "n" }, { "ibv_event_type_str", "n" },
	{ "ibv_wc_status_str", "n" }, { "ibv_rate_to_mult", "n" }, { "mult_to_ibv_rate", "n" },
	{ "ibv_rate_to_mbps", "n" }, { "mbps_to_ibv_rate", "n" }, { "rdma_event_str", "n" },
	{ "ibv_alloc_pd", "o" }, { "ibv_dealloc_pd", "o" }, { "ibv_import_pd", "on" }, { "ibv_unimport_pd", "o" },
	{ "ibv_reg_mr", "omsn" }, { "ibv_reg_mr_iova", "omsnn" }, { "ibv_reg_mr_iova2", "omsnn" },
	{ "ibv_rereg_mr", "onomsn" }, { "ibv_dereg_mr", "o" }, { "ibv_import_mr", "on" }, { "ibv_unimport_mr", "o" },
	{ "ibv_import_dm", "on" }, { "ibv_unimport_dm", "o" },
	{ "ibv_create_comp_channel", "o" }, { "ibv_destroy_comp_channel", "o" },
	{ "ibv_create_cq", "onmon" }, { "ibv_resize_cq", "on" }, { "ibv_destroy_cq", "o" }, { "ibv_ack_cq_events", "on" },
	{ "ibv_create_qp", "om" }, { "ibv_modify_qp", "omn" }, { "ibv_query_qp", "omnm" }, { "ibv_destroy_qp", "o" },
	{ "ibv_qp_to_qp_ex", "o" }, { "ibv_query_qp_data_in_order", "onn" }, { "ibv_query_ece", "om" }, { "ibv_set_ece", "om" },
	{ "ibv_create_srq", "om" }, { "ibv_modify_srq", "omn" }, { "ibv_query_srq", "om" }, { "ibv_destroy_srq", "o" },
	{ "ibv_create_ah", "om" }, { "ibv_destroy_ah", "o" }, { "ibv_init_ah_from_wc", "onmmm" },
	{ "ibv_create_ah_from_wc", "ommn" }, { "ibv_attach_mcast", "omn" }, { "ibv_detach_mcast", "omn" },
	{ "rdma_create_event_channel", "" }, { "rdma_destroy_event_channel", "o" }, { "rdma_create_id", "ormn" },
	{ "rdma_destroy_id", "o" }, { "rdma_bind_addr", "om" }, { "rdma_listen", "on" }, { "rdma_create_qp", "oom" },
	{ "rdma_destroy_qp", "o" }, { "rdma_disconnect", "o" }, { "rdma_get_src_port", "o" }, { "rdma_get_dst_port", "o" },
	{ "rdma_reject", "omn" }, { "rdma_notify", "on" }, { "rdma_establish", "o" }, { "rdma_ack_cm_event", "o" },
	{ "rdma_create_srq", "oom" }, { "rdma_destroy_srq", "o" }, { "rdma_set_option", "onnmn" },
	{ "rdma_init_qp_attr", "omm" }, { "rdma_leave_multicast", "om" },
	{ "rsocket", "nnn" }, { "rbind", "nmn" }, { "rlisten", "nn" }, { "rshutdown", "nn" }, { "rclose", "n" },
	{ "rgetpeername", "nmm" }, { "rgetsockname", "nmm" }, { "rsetsockopt", "nnnmn" }, { "rgetsockopt", "nnnmm" },
};

enum { COUNT = sizeof functions / sizeof *functions, OBJECTS = 64, MEMORY = 1 << 16 };

static uint64_t state;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static void *objects[OBJECTS];
static char memory[MEMORY] __attribute__((aligned(64)));

static uint64_t number(void)
{
	static const uint64_t limits[] = { 0, 1, 2, 3, 7, 16, 255, 4096, 65535, INT32_MAX, (uint64_t)INT32_MIN, UINT32_MAX, INT64_MAX, UINT64_MAX };

	switch (next() % 4) {
	case 0:
		return next();
	case 1:
		return next() % 64;
	default:
		return limits[next() % (sizeof limits / sizeof *limits)];
	}
}

// Memory whose words are numbers, or handles: no pointers elsewhere.
static void *structure(void)
{
	uint64_t *words = (uint64_t *)memory;

	if (next() % 8 == 0)
		return NULL;
	for (int at = 0; at < 64; at++)
		words[at] = next() % 4 == 0 ? (uintptr_t)objects[next() % OBJECTS] : next() % 4 == 0 ? next() % 32 : 0;
	return memory;
}

static uint64_t argument(char kind)
{
	switch (kind) {
	case 'o':
		return next() % 16 == 0 ? 0 : (uintptr_t)objects[next() % OBJECTS];
	case 'm':
		return (uintptr_t)structure();
	case 's':
		return next() % 4096;
	case 'r':
		return next() % 8 == 0 ? 0 : (uintptr_t)&objects[next() % OBJECTS];
	default:
		return number();
	}
}

static void make_objects(void)
{
	void *context = ibv_open_device(ibv_get_device_list(NULL)[0]), *id = NULL;

	objects[next() % OBJECTS] = context;
	objects[next() % OBJECTS] = ibv_alloc_pd(context);
	objects[next() % OBJECTS] = ibv_create_cq(context, 4, NULL, NULL, 0);
	rdma_create_id(rdma_create_event_channel(), &id, NULL, 0x0106);
	objects[next() % OBJECTS] = id;
}

static int returns_object(const char *name)
{
	return strncmp(name, "ibv_", 4) == 0 && (strstr(name, "create") || strstr(name, "alloc_") || strstr(name, "open") || strstr(name, "_reg"));
}

int main(int count, char **arguments)
{
	long calls = atol(arguments[2]);

	state = 0x9e3779b97f4a7c15 ^ strtoull(arguments[1], NULL, 0);
	for (long call = 0; call < calls; call++) {
		uint64_t a[6] = { 0 };
		int which = next() % COUNT;
		uint64_t (*function)() = (uint64_t (*)())dlsym(RTLD_DEFAULT, functions[which].name);

		if (call % 200 == 0)
			make_objects();
		if (function == NULL)
			return fprintf(stderr, "there is no %s\n", functions[which].name), 1;
		for (int at = 0; functions[which].arguments[at]; at++)
			a[at] = argument(functions[which].arguments[at]);
		uint64_t result = function(a[0], a[1], a[2], a[3], a[4], a[5]);
		// A handle stays among the arguments when its object was destroyed.
		if (returns_object(functions[which].name) && result != 0)
			objects[next() % OBJECTS] = (void *)result;
	}
	puts("all refused or done");
	return 0;
}
