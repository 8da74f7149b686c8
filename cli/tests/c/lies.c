/* A library in front of another. With LIES=hides_windows it does not say that a device has windows of type 2B, which it has;
 * with LIES=has_no_srq no shared receive queue can be made, although the device says how many there may be; with
 * LIES=overtakes the completion of a read comes when no other is left, and so behind those of later requests, as over
 * Linux's siw. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Of struct ibv_context: where its table of functions is, and a place in that. */
enum { OPS = 8, POLL_CQ = 11 };
/* Of struct ibv_wc: its size, where its opcode is, and one of these. */
enum { WC = 48, OPCODE = 12, RDMA_READ = 2 };
/* Of struct ibv_device_attr: where its device_cap_flags are, and a bit of them. */
enum { DEVICE_CAP_FLAGS = 116, MEM_WINDOW_TYPE_2B = 1 << 24 };

static int lies(const char *which)
{
	const char *lies = getenv("LIES");
	return lies && !strcmp(lies, which);
}

int ibv_query_device(void *context, unsigned char *attr)
{
	int (*other)(void *, unsigned char *) = (int (*)(void *, unsigned char *))dlsym(RTLD_NEXT, "ibv_query_device");
	int answer = other ? other(context, attr) : EOPNOTSUPP;
	if (!answer && lies("hides_windows")) {
		unsigned flags;
		memcpy(&flags, attr + DEVICE_CAP_FLAGS, sizeof flags);
		flags &= ~(unsigned)MEM_WINDOW_TYPE_2B;
		memcpy(attr + DEVICE_CAP_FLAGS, &flags, sizeof flags);
	}
	return answer;
}

void *ibv_create_srq(void *pd, void *init)
{
	void *(*other)(void *, void *) = (void *(*)(void *, void *))dlsym(RTLD_NEXT, "ibv_create_srq");
	if (other && !lies("has_no_srq"))
		return other(pd, init);
	errno = EOPNOTSUPP;
	return NULL;
}

static int (*poll)(void *, int, unsigned char *);
/* Of one queue: programs that are told lies read into no other. */
static unsigned char late[64][WC];
static int count;
static void *of;

static int poll_without_order(void *cq, int wanted, unsigned char *wc)
{
	int found = poll(cq, wanted, wc), kept = 0;
	for (int i = 0; i < found; i++) {
		int opcode;
		memcpy(&opcode, wc + i * WC + OPCODE, sizeof opcode);
		if (opcode == RDMA_READ && count < 64 && (!of || of == cq))
			of = cq, memcpy(late[count++], wc + i * WC, WC);
		else
			memmove(wc + kept++ * WC, wc + i * WC, WC);
	}
	if (found == 0 && count > 0 && wanted > 0 && of == cq) {
		memcpy(wc, late[0], WC);
		memmove(late[0], late[1], --count * WC);
		kept = 1;
	}
	return kept;
}

void *ibv_open_device(void *device)
{
	void *(*other)(void *) = (void *(*)(void *))dlsym(RTLD_NEXT, "ibv_open_device");
	char *context = other ? other(device) : NULL;
	if (context && lies("overtakes")) {
		void *without_order = (void *)poll_without_order;
		memcpy(&poll, context + OPS + POLL_CQ * sizeof(void *), sizeof(void *));
		memcpy(context + OPS + POLL_CQ * sizeof(void *), &without_order, sizeof(void *));
	}
	return context;
}
