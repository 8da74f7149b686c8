// Tries twice to open a device that cannot be opened.

#include "libraries.h"

int main(void)
{
	void *device = ibv_get_device_list(NULL)[0];

	MUST(ibv_open_device(device) == NULL && ibv_open_device(device) == NULL);
	puts("not opened");
	return 0;
}
