// Reads the devices below /sys and /dev by each function of the C library that takes a path.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <spawn.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <wordexp.h>

#include "libraries.h"

#define CLASS "/sys/class/infiniband"
#define NAME CLASS "/ib0/ports/1/state"

static int is_state(int file)
{
	char text[16];
	int is_it = read(file, text, sizeof text) == 10 && memcmp(text, "4: ACTIVE\n", 10) == 0;

	close(file);
	return is_it;
}

static int has_device(DIR *folder)
{
	struct dirent *entry;
	int found = 0;

	MUST(folder != NULL);
	while ((entry = readdir(folder)) != NULL)
		found += strcmp(entry->d_name, "ib0") == 0;
	closedir(folder);
	return found == 1;
}

static void names(void)
{
	static const char *const all[] = {
		NAME, "//sys/class/infiniband/ib0/ports/1/state", "/sys/./class//infiniband/ib0/./ports/1/state",
		"/sys/class/net/../infiniband/ib0/ports/1/state", CLASS "/../infiniband/ib0/ports/1/state",
		CLASS "/ib0/ports/../ports/1/state", "/tmp/../sys/class/infiniband/ib0/ports/1/state",
		"/dev/infiniband/../../sys/class/infiniband/ib0/ports/1/state", "/sys/class/infiniband_verbs/../infiniband/ib0/ports/1/state",
	};

	for (size_t one = 0; one < sizeof all / sizeof *all; one++) {
		struct stat about;

		MUST(is_state(open(all[one], O_RDONLY)));
		MUST(stat(all[one], &about) == 0 && S_ISREG(about.st_mode));
	}
	MUST(open(NAME "/", O_RDONLY) == -1 && errno == ENOTDIR);
	MUST(open(CLASS "/ib7", O_RDONLY) == -1 && errno == ENOENT);
	// Paths that leave the folder again.
	MUST(access(CLASS "/../../..", F_OK) == 0 && access(CLASS "/../../../dev/null", W_OK) == 0);
	MUST(access("/dev/infiniband/../null", W_OK) == 0);
}

static void attributes(void)
{
	struct statx more;
	struct stat about;
	struct statvfs system;
	int folder = open(CLASS, O_RDONLY | O_DIRECTORY), parent = open("/sys/class", O_RDONLY | O_DIRECTORY);

	MUST(folder >= 0 && parent >= 0);
	MUST(lstat(CLASS, &about) == 0 && S_ISDIR(about.st_mode));
	MUST(fstatat(folder, "ib0", &about, 0) == 0 && S_ISDIR(about.st_mode));
	MUST(fstatat(parent, "infiniband/ib0", &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(about.st_mode));
	MUST(fstatat(folder, "../infiniband/ib0", &about, 0) == 0);
	MUST(statx(parent, "infiniband/ib0", 0, STATX_TYPE, &more) == 0 && S_ISDIR(more.stx_mode));
	MUST(access(NAME, R_OK) == 0 && eaccess(NAME, R_OK) == 0 && euidaccess(NAME, R_OK) == 0);
	MUST(faccessat(parent, "infiniband/ib0", X_OK, 0) == 0 && faccessat(folder, "ib0", X_OK, AT_EACCESS) == 0);
	MUST(stat("/dev/infiniband/rdma_cm", &about) == 0 && S_ISCHR(about.st_mode));
	MUST(statvfs(NAME, &system) == 0 && pathconf(CLASS, _PC_NAME_MAX) > 0);
	MUST(is_state(openat(parent, "infiniband/ib0/ports/1/state", O_RDONLY)));
	MUST(is_state(openat(folder, "ib0/ports/1/state", O_RDONLY)));
	MUST(close(folder) == 0 && close(parent) == 0);
}

static void folders(void)
{
	struct dirent **list;
	int folder = open("/sys/class", O_RDONLY | O_DIRECTORY), watch = inotify_init();
	FILE *file = fopen(NAME, "r");

	MUST(has_device(opendir(CLASS)) && has_device(opendir(CLASS "/../infiniband/")));
	MUST(has_device(fdopendir(openat(folder, "infiniband", O_RDONLY | O_DIRECTORY))));
	MUST(scandir(CLASS, &list, NULL, alphasort) == 3 && strcmp(list[2]->d_name, "ib0") == 0);
	MUST(scandirat(folder, "infiniband", &list, NULL, alphasort) == 3);
	MUST(file != NULL && is_state(dup(fileno(file))));
	MUST(freopen(NAME, "r", file) == file && fclose(file) == 0);
	MUST(inotify_add_watch(watch, CLASS, IN_CREATE) >= 0 && close(watch) == 0 && close(folder) == 0);
}

static int times(DIR *folder, const char *name)
{
	struct dirent *entry;
	int found = 0;

	errno = 0;
	while ((entry = readdir(folder)) != NULL)
		found += strcmp(entry->d_name, name) == 0 && entry->d_type == DT_DIR && entry->d_ino != 0;
	MUST(errno == 0 && readdir(folder) == NULL);
	return found;
}

static void parents(void)
{
	DIR *class = opendir("/sys/class"), *other = opendir("/sys/class"), *devices = opendir("/dev"), *root = opendir("/");
	struct dirent entry, *found;
	int seen = 0;
	glob_t globbed = { 0 };

	MUST(class != NULL && other != NULL && devices != NULL && root != NULL);
	MUST(times(class, "infiniband") == 1 && times(other, "infiniband_verbs") == 1 && times(devices, "infiniband") == 1);
	rewinddir(class);
	MUST(times(class, "infiniband") == 1);
	rewinddir(class);
	// The folder for management datagrams is there only where a program has a node of a fabric.
	MUST(times(class, "infiniband_mad") == 0 && times(root, "infiniband") == 0);
	rewinddir(class);
	while (readdir_r(class, &entry, &found) == 0 && found != NULL)
		seen += strcmp(entry.d_name, "infiniband") == 0;
	MUST(seen == 1);
	closedir(class), closedir(other), closedir(devices), closedir(root);
	MUST(glob("/sys/class/infiniban*/ib0", 0, NULL, &globbed) == 0 && globbed.gl_pathc == 1);
	globfree(&globbed);
	MUST(system("seen=0; for name in $(ls /sys/class /dev); do"
		    " case $name in infiniband) seen=$((seen + 1)); esac; done; test $seen = 2") == 0);
}

static void answers(void)
{
	char text[PATH_MAX], link[64];
	int folder = open(CLASS "/ib0", O_RDONLY | O_DIRECTORY);

	MUST(strcmp(realpath(NAME, text), NAME) == 0);
	MUST(strcmp(realpath(CLASS "/ib0/../", NULL), CLASS) == 0);
	MUST(strcmp(canonicalize_file_name("/sys//class/infiniband"), CLASS) == 0);
	MUST(readlink("/dev/infiniband/rdma_cm", text, sizeof text) == 9 && memcmp(text, "/dev/null", 9) == 0);
	MUST(readlink(NAME, text, sizeof text) == -1 && errno == EINVAL);
	sprintf(link, "/proc/self/fd/%d", folder);
	MUST(readlink(link, text, sizeof text) == sizeof CLASS "/ib0" - 1 && memcmp(text, CLASS "/ib0", sizeof CLASS "/ib0" - 1) == 0);
	MUST(readlink(link, text, 4) == 4 && memcmp(text, "/sys", 4) == 0);
	MUST(close(folder) == 0);
}

static void from_within(void)
{
	char text[PATH_MAX];
	struct stat about;

	MUST(chdir("/sys/class") == 0 && is_state(open("infiniband/ib0/ports/1/state", O_RDONLY)));
	MUST(has_device(opendir("infiniband")) && chdir("infiniband") == 0);
	MUST(strcmp(getcwd(text, sizeof text), CLASS) == 0);
	MUST(is_state(open("ib0/ports/1/state", O_RDONLY)) && is_state(open("./ib0/../ib0/ports/1/state", O_RDONLY)));
	MUST(has_device(opendir(".")) && stat("../../class", &about) == 0 && S_ISDIR(about.st_mode));
	MUST(strcmp(realpath("ib0", text), CLASS "/ib0") == 0);
	unsetenv("PWD");
	MUST(strcmp(get_current_dir_name(), CLASS) == 0);
	MUST(chdir("..") == 0 && strcmp(getcwd(text, sizeof text), "/sys/class") == 0);
	MUST(chdir("/") == 0);
}

static int files;

static int sees(const char *path, const struct stat *about, int kind, struct FTW *place)
{
	files += kind == FTW_F;
	MUST(strncmp(path, CLASS, sizeof CLASS - 1) == 0);
	if (strcmp(path, NAME) == 0)
		MUST(strcmp(path + place->base, "state") == 0 && place->level == 4 && S_ISREG(about->st_mode));
	return 0;
}

static int sees_less(const char *path, const struct stat *about, int kind)
{
	files += kind == FTW_F;
	return strncmp(path, CLASS, sizeof CLASS - 1);
}

static void walks(int options)
{
	char *paths[] = { CLASS, NULL };
	FTS *walk = fts_open(paths, options, NULL);
	FTSENT *entry;
	int found = 0;

	MUST(walk != NULL);
	while ((entry = fts_read(walk)) != NULL) {
		struct stat about;

		MUST(entry->fts_info != FTS_NS && entry->fts_info != FTS_DNR && entry->fts_info != FTS_ERR);
		MUST(strncmp(entry->fts_path, CLASS, sizeof CLASS - 1) == 0 && strlen(entry->fts_path) == entry->fts_pathlen);
		MUST(stat(entry->fts_accpath, &about) == 0);
		if (entry->fts_info == FTS_D)
			MUST(fts_children(walk, 0) != NULL);
		found += strcmp(entry->fts_path, NAME) == 0 && entry->fts_info == FTS_F;
	}
	MUST(found == 1 && fts_close(walk) == 0);
}

static void expansions(void)
{
	glob_t found = { 0 };
	wordexp_t words;

	MUST(glob("/sys/class/infiniband/*/ports/*/state", 0, NULL, &found) == 0);
	MUST(found.gl_pathc == 1 && strcmp(found.gl_pathv[0], NAME) == 0);
	MUST(glob("/dev/infiniband/rdma*", GLOB_APPEND, NULL, &found) == 0 && found.gl_pathc == 2);
	MUST(glob("/dev/nul?", GLOB_APPEND, NULL, &found) == 0 && strcmp(found.gl_pathv[2], "/dev/null") == 0);
	globfree(&found);
	MUST(wordexp("'a b' /sys/class/infiniband/* \"/dev/infiniband\"/rdma* /dev/nul?", &words, 0) == 0);
	MUST(words.we_wordc == 4 && strcmp(words.we_wordv[0], "a b") == 0 && strcmp(words.we_wordv[1], CLASS "/ib0") == 0);
	MUST(strcmp(words.we_wordv[2], "/dev/infiniband/rdma_cm") == 0 && strcmp(words.we_wordv[3], "/dev/null") == 0);
	wordfree(&words);
}

static void children(void)
{
	posix_spawn_file_actions_t actions;
	char *arguments[] = { "cat", NULL };
	int status;
	pid_t child;

	MUST(system("test -d /sys/class/infiniband && cd /sys/class/infiniband/.. && cd infiniband && ls | cat && cat */ports/1/state") == 0);
	// The folder itself can be walked too.
	MUST(system("du $POLYVERBS_ROOT > /dev/null") == 0);
	MUST(posix_spawn_file_actions_init(&actions) == 0);
	MUST(posix_spawn_file_actions_addopen(&actions, 0, NAME, O_RDONLY, 0) == 0);
	MUST(posix_spawnp(&child, "cat", &actions, NULL, arguments, environ) == 0);
	MUST(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
	names();
	attributes();
	folders();
	parents();
	answers();
	from_within();
	MUST(nftw(CLASS, sees, 8, FTW_PHYS) == 0 && files == 2);
	MUST(ftw(CLASS, sees_less, 8) == 0 && files == 4);
	walks(FTS_PHYSICAL);
	walks(FTS_PHYSICAL | FTS_NOCHDIR);
	expansions();
	children();
	// A direct system call is not redirected: the kernel has no such folder, or devices of its own.
	MUST(syscall(SYS_openat, AT_FDCWD, "/sys/class/infiniband/ib0/ports/1/state", O_RDONLY) == -1 && errno == ENOENT);
	puts("all seen");
	return 0;
}
