/* A library in front of another. With LIES=hides_windows it does not say that a device has windows of type 2B, which it has;
 * with LIES=has_no_srq no shared receive queue can be made, although the device says how many there may be. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
