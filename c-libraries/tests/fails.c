// Calls each verb, connects two queue pairs and sends a few messages. Prints each call with its error number, and each completion
// and event, so that a test sees which of them a script of faults has made fail. Goes on after a failure as far as it can.

#include <errno.h>
#include <string.h>

#include "libraries.h"
#include "queue_pairs.h"

struct context {
	void *device;
	void *ops[32];
};
struct mr {
	void *context, *pd, *addr;
	size_t length;
	uint32_t handle, lkey, rkey;
};
struct sge {
	uint64_t addr;
	uint32_t length, lkey;
};
struct send_wr {
	uint64_t id;
	struct send_wr *next;
	struct sge *list;
	int count, opcode;
	uint32_t flags, imm;
	uint64_t addr;
	uint32_t rkey;
	uint64_t rest[8];
};
struct recv_wr {
	uint64_t id;
	struct recv_wr *next;
	struct sge *list;
	int count;
};
struct wc {
	uint64_t id;
	int status, opcode;
	uint32_t vendor, length, imm, qp_num, source, flags;
	uint16_t pkey, slid;
	uint8_t sl, bits;
};
struct bind {
	uint64_t id;
	uint32_t flags;
	struct mr *mr;
	uint64_t addr, length;
	uint32_t access;
};
struct event {
	void *element;
	int type;
};

int ibv_query_port(void *context, uint8_t port, void *attr);
int ibv_query_device(void *context, void *attr);
int ibv_query_pkey(void *context, uint8_t port, int index, uint16_t *key);
int ibv_resize_cq(void *cq, int entries);
int ibv_modify_srq(void *srq, uint32_t *attr, int mask);
int ibv_query_srq(void *srq, uint32_t *attr);
int ibv_rereg_mr(void *mr, int flags, void *pd, void *addr, size_t length, int access);
int ibv_attach_mcast(void *qp, const void *gid, uint16_t lid);
int ibv_detach_mcast(void *qp, const void *gid, uint16_t lid);
void *ibv_create_comp_cntr(void *context, void *attr);
int ibv_destroy_comp_cntr(void *counter);
int ibv_qp_attach_comp_cntr(void *qp, void *counter, void *attr);

enum { ALLOC_MW = 7, BIND_MW, DEALLOC_MW, POLL_CQ = 11, NOTIFY, SRQ_RECV = 20, POST_SEND = 25, POST_RECV };
enum { RC = 2, UD = 4, INIT = 1, RTR, RTS, ALL_RIGHTS = 31 };

static struct context *context;
static char memory[8192] __attribute__((aligned(4096)));
static struct mr *mr;

static int code(const char *name, int result)
{
	printf("%s %d\n", name, result);
	return result == 0;
}

// The result of a call that returns an object.
static void *made(const char *name, void *object)
{
	printf("%s %d\n", name, object ? 0 : errno);
	return object;
}

static int poll_cq(void *cq, struct wc *wc)
{
	return ((int (*)(void *, int, struct wc *))context->ops[POLL_CQ])(cq, 1, wc);
}

static int post_recv(struct qp *qp, uint64_t id)
{
	struct sge sge = { (uintptr_t)memory + 4096, 64, mr ? mr->lkey : 0 };
	struct recv_wr wr = { id, NULL, &sge, 1 }, *bad = NULL;
	int failed = ((int (*)(void *, void *, void *))context->ops[POST_RECV])(qp, &wr, &bad);

	MUST(!failed || bad == &wr);
	return failed;
}

// Posts three sends as one list; prints which of them was the bad one.
static void post_sends(struct qp *qp)
{
	struct sge sge = { (uintptr_t)memory, 8, mr ? mr->lkey : 0 };
	struct send_wr wr[3] = { 0 }, *bad = NULL;
	int failed;

	for (int i = 0; i < 3; i++)
		wr[i] = (struct send_wr){ .id = 10 + i, .next = i < 2 ? &wr[i + 1] : NULL, .list = &sge, .count = 1, .opcode = 2, .flags = 2 };
	failed = ((int (*)(void *, void *, void *))context->ops[POST_SEND])(qp, wr, &bad);
	code("post_send", failed);
	if (failed)
		printf("bad_wr %d\n", (int)(bad - wr));
}

static int modify(const char *name, struct qp *qp, int state, uint32_t peer, const uint8_t *gid)
{
	struct attr attr = { .state = state, .port = 1, .access = 15, .mtu = 3, .peer = peer, .rd_atomic = 1, .dest_rd_atomic = 1,
			     .min_rnr_timer = 12, .timeout = 14, .retry = 7, .rnr_retry = 7,
			     .path = { .is_global = 1, .port = 1, .hop_limit = 64 } };
	static const int masks[] = { 0, 1 | 1 << 3 | 1 << 4 | 1 << 5, 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20,
				     1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16 };

	memcpy(attr.path.dgid, gid, 16);
	return code(name, ibv_modify_qp(qp, &attr, masks[state]));
}

static void complete(void *cq, const char *name, int wanted)
{
	struct wc wc;

	// The devices of the test are in this process: what was posted has completed.
	for (int i = 0; i < wanted + 8; i++) {
		int found = poll_cq(cq, &wc);

		if (found < 0) {
			code("poll_cq", -found);
			return;
		}
		if (found)
			printf("%s %d status %d\n", name, (int)wc.id, wc.status);
	}
}

static void events(void)
{
	struct pollfd file = { .fd = *(int *)((char *)context + 268), .events = POLLIN };
	struct event event;

	// What a script raises at a call is there when the call has returned.
	while (poll(&file, 1, 0) == 1) {
		int failed = ibv_get_async_event(context, &event);

		printf("get_async_event %d\n", failed ? errno : 0);
		if (failed)
			continue;
		printf("event %d\n", event.type);
		ibv_ack_async_event(&event);
	}
}

static void objects(void *pd)
{
	struct srq_init init = { NULL, 4, 1, 0 };
	uint32_t limits[3] = { 0, 0, 1 };
	uint8_t group[16] = { 0xff, 0x0e };
	struct path path = { .is_global = 1, .port = 1, .hop_limit = 64 };
	struct sge sge = { (uintptr_t)memory, 8, mr ? mr->lkey : 0 };
	struct recv_wr wr = { 1, NULL, &sge, 1 }, *bad;
	void *srq = made("create_srq", ibv_create_srq(pd, &init)), *ah, *mw, *cq;

	if (srq) {
		code("post_srq_recv", ((int (*)(void *, void *, void *))context->ops[SRQ_RECV])(srq, &wr, &bad));
		code("query_srq", ibv_query_srq(srq, limits));
		limits[2] = 1;
		code("modify_srq", ibv_modify_srq(srq, limits, 2));
		events();
		code("destroy_srq", ibv_destroy_srq(srq));
	}
	ibv_query_gid(context, 1, 0, path.dgid);
	ah = made("create_ah", ibv_create_ah(pd, &path));
	if (ah)
		code("destroy_ah", ibv_destroy_ah(ah));
	mw = made("alloc_mw", ((void *(*)(void *, int))context->ops[ALLOC_MW])(pd, 1));
	if (mw)
		code("dealloc_mw", ((int (*)(void *))context->ops[DEALLOC_MW])(mw));
	cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	if (cq) {
		struct qp_init ud = { NULL, cq, cq, NULL, { 1, 1, 1, 1, 0 }, UD, 0 };
		struct qp *qp = ibv_create_qp(pd, &ud);

		if (qp) {
			uint32_t counter[3] = { 0 }, attach[2] = { 0, 1 };
			void *counts = made("create_comp_cntr", ibv_create_comp_cntr(context, counter));

			code("attach_mcast", ibv_attach_mcast(qp, group, 0));
			code("detach_mcast", ibv_detach_mcast(qp, group, 0));
			if (counts)
				code("qp_attach_comp_cntr", ibv_qp_attach_comp_cntr(qp, counts, attach));
			ibv_destroy_qp(qp);
			if (counts)
				ibv_destroy_comp_cntr(counts);
		}
		ibv_destroy_cq(cq);
	}
}

static void messages(void *pd, void *cq)
{
	struct qp_init init = { NULL, cq, cq, NULL, { 8, 8, 1, 1, 0 }, RC, 0 };
	struct attr attr;
	uint8_t gid[16] = { 0 };
	struct qp *near, *far;
	void *mw;

	ibv_query_gid(context, 1, 0, gid);
	near = made("create_qp", ibv_create_qp(pd, &init));
	far = ibv_create_qp(pd, &init);
	if (!near || !far)
		return;
	if (!modify("modify_qp to init", near, INIT, 0, gid) || !modify("modify_qp to init", far, INIT, 0, gid))
		return;
	for (int i = 0; i < 3; i++)
		code("post_recv", post_recv(far, i));
	if (!modify("modify_qp to rtr", near, RTR, far->qp_num, gid) || !modify("modify_qp to rtr", far, RTR, near->qp_num, gid) ||
	    !modify("modify_qp to rts", near, RTS, 0, gid) || !modify("modify_qp to rts", far, RTS, 0, gid))
		return;
	code("query_qp", ibv_query_qp(near, &attr, 1, &init));
	code("req_notify_cq", ((int (*)(void *, int))context->ops[NOTIFY])(cq, 0));
	post_sends(near);
	complete(cq, "wc", 6);
	mw = ((void *(*)(void *, int))context->ops[ALLOC_MW])(pd, 1);
	if (mw && mr) {
		struct bind bind = { 20, 2, mr, (uintptr_t)memory, 64, 2 };

		code("bind_mw", ((int (*)(void *, void *, void *))context->ops[BIND_MW])(near, mw, &bind));
		complete(cq, "wc", 1);
		((int (*)(void *))context->ops[DEALLOC_MW])(mw);
	}
	ibv_query_qp(near, &attr, 1, &init);
	printf("state %d\n", attr.state);
	events();
	code("destroy_qp", ibv_destroy_qp(near));
	ibv_destroy_qp(far);
}

int main(int count, char **arguments)
{
	uint16_t key;
	char room[512];
	void **list = made("get_device_list", ibv_get_device_list(NULL)), *pd, *cq;

	if (!list)
		return 0;
	context = made("open_device", ibv_open_device(list[0]));
	if (!context)
		return 0;
	code("query_device", ibv_query_device(context, room));
	code("query_port", ibv_query_port(context, 1, room));
	printf("port %d\n", *(int *)room);
	code("query_pkey", ibv_query_pkey(context, 1, 0, &key) ? errno : 0);
	pd = made("alloc_pd", ibv_alloc_pd(context));
	if (pd) {
		mr = made("reg_mr", ibv_reg_mr(pd, memory, sizeof memory, ALL_RIGHTS));
		objects(pd);
		cq = made("create_cq", ibv_create_cq(context, 16, NULL, NULL, 0));
		if (cq) {
			code("resize_cq", ibv_resize_cq(cq, 32));
			messages(pd, cq);
			code("destroy_cq", ibv_destroy_cq(cq));
		}
		if (mr) {
			code("rereg_mr", ibv_rereg_mr(mr, 4, NULL, NULL, 0, ALL_RIGHTS) ? errno : 0);
			code("dereg_mr", ibv_dereg_mr(mr));
		}
		code("dealloc_pd", ibv_dealloc_pd(pd));
	}
	events();
	code("close_device", ibv_close_device(context));
	ibv_free_device_list(list);
	return 0;
}
