/* A library that is loaded before the C library. FAILS names the call that fails: fsync-file, fsync-folder, pwrite (as on a full
 * disk), thread-N: the pthread_create of that number, counted from 1, or second-thread: the main thread's second pthread_create
 * after the program has written to standard output. While the file exists that FAILS_WHILE names, pthread_create fails and writes a
 * byte to that file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
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

ssize_t pwrite64(int fd, const void *from, size_t length, off64_t at)
{
	ssize_t (*other)(int, const void *, size_t, off64_t) =
		(ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
	if (fails("pwrite")) {
		errno = ENOSPC;
		return -1;
	}
	return other(fd, from, length, at);
}

static volatile int has_output;

ssize_t write(int fd, const void *from, size_t length)
{
	ssize_t (*other)(int, const void *, size_t) = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
	has_output |= fd == STDOUT_FILENO;
	return other(fd, from, length);
}

static int is_second_thread(void)
{
	static int started;
	return fails("second-thread") && has_output && gettid() == getpid() && started++ == 1;
}

static int is_failing_thread(void)
{
	static atomic_int started;
	const char *named = getenv("FAILS");
	return named && !strncmp(named, "thread-", 7) && ++started == atoi(named + 7);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *with)
{
	int (*other)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
		(int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
	const char *mark = getenv("FAILS_WHILE");
	if (is_second_thread() || is_failing_thread())
		return EAGAIN;
	int fd = mark ? open(mark, O_WRONLY | O_APPEND) : -1;
	if (fd < 0)
		return other(thread, attr, run, with);
	int written = write(fd, "!", 1) == 1;
	close(fd);
	return written ? EAGAIN : EIO;
}
