// The smallest parts of programs that have failed on cards: `cards WHAT`. Prints what a device of the card's profile answers.

#include <errno.h>
#include <string.h>

#include "libraries.h"
#include "queue_pairs.h"

struct device_attr {
	char fw_ver[64];
	uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
	uint32_t vendor_id, vendor_part_id, hw_ver;
	int max_qp, max_qp_wr;
	unsigned flags;
	int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom;
	int init_rd_atom, init_ee, atomic_cap;
	int rest[32];
};

int ibv_query_device(void *context, struct device_attr *attr);

enum { RC = 2, UC = 3, UD = 4, INIT = 1, RTR = 2 };

static void *context, *pd, *cq;

static struct qp *make(int type, void *srq, uint32_t recv_wr)
{
	struct qp_init init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .cap = { 4, recv_wr, 1, 1, 0 }, .type = type };
	errno = 0;
	return ibv_create_qp(pd, &init);
}

static void device(void)
{
	struct device_attr attr;
	ibv_query_device(context, &attr);
	printf("%04x:%u %s flags %08x max_qp %d max_res_rd_atom %d atomic_cap %d\n", attr.vendor_id, attr.vendor_part_id, attr.fw_ver,
	       attr.flags, attr.max_qp, attr.max_res_rd_atom, attr.atomic_cap);
}

// Makes queue pairs of a type until one fails, gives one back and makes one again.
static void qps(int type)
{
	struct qp *made[64];
	int count = 0;
	while (count < 64 && (made[count] = make(type, NULL, 4)))
		count++;
	printf("%d queue pairs, error %d\n", count, errno);
	if (count == 0 || count == 64)
		return;
	ibv_destroy_qp(made[--count]);
	made[count] = make(type, NULL, 4);
	printf("one more: %s\n", made[count] ? "made" : "refused");
}

static void regions(void)
{
	static char memory[4096];
	int count = 0;
	errno = 0;
	while (count < 200 && ibv_reg_mr(pd, memory, sizeof memory, 1))
		count++;
	printf("%d regions, error %d\n", count, errno);
}

static void rights(void)
{
	static char memory[4096];
	errno = 0;
	void *all = ibv_reg_mr(pd, memory, sizeof memory, 15);
	printf("with atomics: error %d\n", all ? 0 : errno);
	errno = 0;
	void *few = ibv_reg_mr(pd, memory, sizeof memory, 7);
	printf("without: error %d\n", few ? 0 : errno);
}

static int ready(struct qp *qp, struct qp *peer, int depth)
{
	struct attr init = { .state = INIT, .port = 1 };
	if (ibv_modify_qp(qp, &init, 1 | 1 << 3 | 1 << 4 | 1 << 5))
		return -1;
	struct attr rtr = { .state = RTR, .mtu = 3, .peer = peer->qp_num, .dest_rd_atomic = depth, .min_rnr_timer = 12 };
	rtr.path.is_global = 1;
	rtr.path.port = 1;
	ibv_query_gid(context, 1, 0, rtr.path.dgid);
	int mask = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
	return ibv_modify_qp(qp, &rtr, mask);
}

// Two queue pairs that serve so many reads each.
static void depth(int each)
{
	struct qp *one = make(RC, NULL, 4), *other = make(RC, NULL, 4);
	int first = ready(one, other, each);
	printf("%d reads each: error %d, error %d\n", each, first, ready(other, one, each));
}

static void unused(void)
{
	struct srq_init init = { .wr = 16, .sge = 1 };
	void *srq = ibv_create_srq(pd, &init);
	printf("0 receives: error %d\n", make(RC, srq, 0) ? 0 : errno);
	printf("too many receives: error %d\n", make(RC, srq, 1000000) ? 0 : errno);
}

// The maximum of queue pairs that the device reports, before and after some are made.
static void left(void)
{
	struct device_attr before, after;
	ibv_query_device(context, &before);
	for (int made = 0; made < 5; made++)
		make(RC, NULL, 4);
	ibv_query_device(context, &after);
	printf("%d fewer\n", before.max_qp - after.max_qp);
}

static void query(void)
{
	struct qp *qp = make(UD, NULL, 4);
	struct attr attr;
	struct qp_init init;
	printf("state: error %d\n", ibv_query_qp(qp, &attr, 1, &init));
	printf("all: error %d\n", ibv_query_qp(qp, &attr, 0x1fffff, &init));
}

int main(int count, char **arguments)
{
	void **list = ibv_get_device_list(NULL);
	context = ibv_open_device(list[0]);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	const char *what = arguments[1];
	if (!strcmp(what, "device"))
		device();
	else if (!strcmp(what, "rc"))
		qps(RC);
	else if (!strcmp(what, "uc"))
		qps(UC);
	else if (!strcmp(what, "regions"))
		regions();
	else if (!strcmp(what, "rights"))
		rights();
	else if (!strcmp(what, "depth"))
		depth(atoi(arguments[2]));
	else if (!strcmp(what, "unused"))
		unused();
	else if (!strcmp(what, "left"))
		left();
	else if (!strcmp(what, "query"))
		query();
	return 0;
}
