/* A library that is loaded before the C library. FAILS names the function that fails: fsync-file or fsync-folder. While the
 * file exists that FAILS_WHILE names, pthread_create fails and writes a byte to that file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fails(const char *which)
{
	const char *named = getenv("FAILS");
	return named && !strcmp(named, which);
}

int fsync(int fd)
{
	int (*other)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
	struct stat there;
	int is_folder = !fstat(fd, &there) && S_ISDIR(there.st_mode);
	if (fails(is_folder ? "fsync-folder" : "fsync-file")) {
		errno = EIO;
		return -1;
	}
	return other(fd);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *with)
{
	int (*other)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
		(int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
	const char *mark = getenv("FAILS_WHILE");
	int fd = mark ? open(mark, O_WRONLY | O_APPEND) : -1;
	if (fd < 0)
		return other(thread, attr, run, with);
	int written = write(fd, "!", 1) == 1;
	close(fd);
	return written ? EAGAIN : EIO;
}
