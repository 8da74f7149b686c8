/* A library in front of libibverbs. With LIES=hides_windows devices do not claim their memory windows of type 2B; with
 * LIES=has_no_srq ibv_create_srq fails, although devices report a maximum of SRQs; with LIES=overtakes the completion of a
 * read is returned when no other is left, and so after those of later requests, as over Linux's siw. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Offset of the table of functions in struct ibv_context, and an index in that table. */
enum { OPS = 8, POLL_CQ = 11 };
/* Size of struct ibv_wc, the offset of its opcode, and one opcode. */
enum { WC = 48, OPCODE = 12, RDMA_READ = 2 };
/* Offset of device_cap_flags in struct ibv_device_attr, and one of the flags. */
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
/* The late completions of one queue: the tested programs complete reads in no other. */
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
