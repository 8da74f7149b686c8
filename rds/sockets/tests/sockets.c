/* A program with reliable datagram sockets, which does not know what implements them. Its argument names the test to run. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/rds.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HERE "127.0.25.1"
#define THERE "127.0.25.2"
#define NOWHERE "127.0.25.9"

/* Asserts that an expression has this value. */
#define IS(expression, value) \
    do { \
        long is = (long)(expression), wanted = (long)(value); \
        if (is != wanted) { \
            printf("line %d: %s is %ld, not %ld (%m)\n", __LINE__, #expression, is, wanted); \
            exit(1); \
        } \
    } while (0)
/* Asserts that a call fails with this error. */
#define FAILS(call, error) \
    do { \
        errno = 0; \
        long is = (long)(call); \
        if (is != -1 || errno != (error)) { \
            printf("line %d: %s is %ld (%m), not %s\n", __LINE__, #call, is, strerrorname_np(error)); \
            exit(1); \
        } \
    } while (0)

static char into[8192];
static struct iovec all = {into, sizeof into};

static struct sockaddr_in at(const char *address, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &at.sin_addr);
    return at;
}

static int new(void) {
    int fd = socket(AF_RDS, SOCK_SEQPACKET, 0);
    IS(fd >= 0, 1);
    return fd;
}

static void give(int fd, const char *address, int port) {
    struct sockaddr_in own = at(address, port);
    IS(bind(fd, (void *)&own, sizeof own), 0);
}

static int bound(const char *address, int port) {
    int fd = new();
    give(fd, address, port);
    return fd;
}

static long put(int fd, const char *text, const char *address, int port) {
    struct sockaddr_in to = at(address, port);
    return sendto(fd, text, strlen(text), 0, (void *)&to, sizeof to);
}

static int has(int fd, int events) {
    struct pollfd one = {fd, events, 0};
    IS(poll(&one, 1, 0) >= 0, 1);
    return one.revents;
}

/* Waits for events, at most as long as a test may take. */
static int comes(int fd, int events) {
    struct pollfd one = {fd, events, 0};
    IS(poll(&one, 1, 20000), 1);
    return one.revents;
}

static void is_text(const char *text) { IS(memcmp(into, text, strlen(text)), 0); }

static double now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* Sends to an address without a host until the send buffer is full. */
static void fill(int fd) {
    struct sockaddr_in to = at(NOWHERE, 4000);
    while (sendto(fd, into, 4096, MSG_DONTWAIT, (void *)&to, sizeof to) == 4096) {}
    IS(errno, EAGAIN);
}

/* Sends to a port that is not read until the port is congested. */
static void congest(int fd, const char *address, int port) {
    struct sockaddr_in to = at(address, port);
    while (sendto(fd, into, 4096, MSG_DONTWAIT, (void *)&to, sizeof to) == 4096 || errno == EAGAIN) {}
    IS(errno, ENOBUFS);
}

static void empty(int fd) {
    struct sockaddr_in to = at(NOWHERE, 4000);
    IS(setsockopt(fd, SOL_RDS, RDS_CANCEL_SENT_TO, &to, sizeof to), 0);
}

/* The first message makes a connection, which brings a congestion map. The map makes a socket readable until the next call. */
static void meet(int a, int b) {
    IS(put(a, "meet", THERE, 4001), 4);
    IS(recv(b, into, sizeof into, 0), 4);
    FAILS(recv(b, into, 1, MSG_DONTWAIT), EAGAIN);
}

static void made(void) {
    FAILS(socket(AF_RDS, SOCK_STREAM, 0), ESOCKTNOSUPPORT);
    FAILS(socket(AF_RDS, SOCK_SEQPACKET, 1), ESOCKTNOSUPPORT);
    int fd = new();
    IS(fcntl(fd, F_GETFD), 0);
    IS(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    IS(close(fd), 0);
    IS(socket(AF_RDS, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), fd);
    IS(fcntl(fd, F_GETFD), FD_CLOEXEC);
    IS(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    FAILS(recv(fd, into, 1, 0), EAGAIN);
    FAILS(listen(fd, 1), EOPNOTSUPP);
    FAILS(accept(fd, NULL, NULL), EOPNOTSUPP);
    FAILS(accept4(fd, NULL, NULL, 0), EOPNOTSUPP);
    FAILS(shutdown(fd, SHUT_WR), EOPNOTSUPP);
    FAILS(sendfile(fd, 0, NULL, 1), EINVAL);
    FAILS(lseek(fd, 0, SEEK_CUR), ESPIPE);
    IS(close(fd), 0);
    FAILS(close(fd), EBADF);
    FAILS(recv(fd, into, 1, 0), EBADF);
}

static void addresses(void) {
    int fd = new();
    struct sockaddr_in name, own = at(HERE, 0), to = at(THERE, 4001);
    socklen_t size = sizeof name;
    IS(getsockname(fd, (void *)&name, &size), 0);
    IS(size, sizeof name);
    IS(name.sin_family, AF_UNSPEC);
    FAILS(getpeername(fd, (void *)&name, &size), ENOTCONN);
    FAILS(put(fd, "unbound", THERE, 4001), ENOTCONN);
    IS(connect(fd, (void *)&to, sizeof to), 0);
    IS(getsockname(fd, (void *)&name, &size), 0);
    IS(name.sin_family, AF_INET);
    IS(name.sin_port, 0);
    FAILS(bind(fd, (void *)&own, 15), EINVAL);
    FAILS(bind(fd, (void *)&own, 1), EINVAL);
    FAILS(bind(fd, NULL, sizeof own), EFAULT);
    for (const char **other = (const char *[]){"0.0.0.0", "255.255.255.255", "224.0.0.1", NULL}; *other; other++) {
        struct sockaddr_in wrong = at(*other, 4000);
        FAILS(bind(fd, (void *)&wrong, sizeof wrong), EINVAL);
        FAILS(connect(fd, (void *)&wrong, sizeof wrong), strcmp(*other, "0.0.0.0") ? EINVAL : EDESTADDRREQ);
    }
    struct sockaddr_in foreign = at("192.0.2.1", 4000), probe = at(HERE, 1);
    FAILS(bind(fd, (void *)&foreign, sizeof foreign), EADDRNOTAVAIL);
    FAILS(bind(fd, (void *)&probe, sizeof probe), EINVAL);
    own.sin_family = AF_UNIX;
    FAILS(bind(fd, (void *)&own, sizeof own), EINVAL);
    FAILS(connect(fd, (void *)&own, sizeof own), EAFNOSUPPORT);
    own.sin_family = AF_INET;
    IS(bind(fd, (void *)&own, sizeof own), 0);
    FAILS(bind(fd, (void *)&own, sizeof own), EINVAL);
    IS(getsockname(fd, (void *)&name, &size), 0);
    IS(name.sin_addr.s_addr, own.sin_addr.s_addr);
    IS(name.sin_port != 0, 1);
    int other = new();
    FAILS(bind(other, (void *)&name, sizeof name), EADDRINUSE);
    size = 4;
    memset(&name, 0xa5, sizeof name);
    IS(getpeername(fd, (void *)&name, &size), 0);
    IS(size, sizeof name);
    IS(name.sin_port, to.sin_port);
    IS(name.sin_addr.s_addr, 0xa5a5a5a5);
    IS(close(fd), 0);
    give(other, HERE, 4000);
    IS(close(other), 0);
    give(new(), HERE, 4000);
}

static void messages(void) {
    int a = bound(HERE, 4000), b = bound(THERE, 4001);
    struct sockaddr_in from, to = at(THERE, 4001), back = at(HERE, 4000);
    FAILS(send(a, "x", 1, 0), ENOTCONN);
    IS(connect(a, (void *)&to, sizeof to), 0);
    IS(connect(b, (void *)&back, sizeof back), 0);
    struct iovec parts[2] = {{"vec", 3}, {"tor", 3}};
    struct mmsghdr two[2] = {{{&to, sizeof to, parts, 2}}, {{&to, sizeof to, parts, 1}}};
    IS(send(a, "send", 4, 0), 4);
    IS(put(a, "sendto", THERE, 4001), 6);
    IS(sendmsg(a, &two[0].msg_hdr, 0), 6);
    IS(sendmmsg(a, two, 2, 0), 2);
    IS(two[0].msg_len, 6);
    IS(two[1].msg_len, 3);
    IS(write(a, "write", 5), 5);
    IS(writev(a, parts, 2), 6);
    IS(send(a, "", 0, 0), 0);

    IS(recv(b, into, sizeof into, 0), 4);
    is_text("send");
    socklen_t size = sizeof from;
    IS(recvfrom(b, into, sizeof into, 0, (void *)&from, &size), 6);
    is_text("sendto");
    IS(size, sizeof from);
    IS(memcmp(&from, &back, sizeof from), 0);
    struct iovec halves[2] = {{into, 2}, {into + 100, 100}};
    struct msghdr message = {&from, sizeof from, halves, 2};
    memset(&from, 0, sizeof from);
    IS(recvmsg(b, &message, 0), 6);
    IS(memcmp(into, "ve", 2) + memcmp(into + 100, "ctor", 4), 0);
    IS(memcmp(&from, &back, sizeof from), 0);
    IS(message.msg_namelen, sizeof from);
    IS(message.msg_flags, 0);
    struct mmsghdr many[3] = {{{.msg_iov = &all, .msg_iovlen = 1}}, {{.msg_iov = halves, .msg_iovlen = 2}}};
    IS(comes(b, POLLIN), POLLIN);
    IS(recvmmsg(b, many, 2, 0, NULL), 2);
    IS(many[0].msg_len, 6);
    IS(many[1].msg_len, 3);
    IS(read(b, into, sizeof into), 5);
    is_text("write");
    IS(readv(b, halves, 2), 6);
    IS(recv(b, into, sizeof into, 0), 0);
    IS(read(b, into, 0), 0);
    FAILS(recv(b, into, sizeof into, MSG_DONTWAIT), EAGAIN);
    FAILS(recvmmsg(b, many, 2, MSG_DONTWAIT, NULL), EAGAIN);
    IS(send(a, "one", 3, 0), 3);
    struct mmsghdr rest[2] = {{{.msg_iov = &all, .msg_iovlen = 1}}, {{.msg_iov = &all, .msg_iovlen = 1}}};
    IS(recvmmsg(b, rest, 2, MSG_WAITFORONE, NULL), 1);

    /* Sends within one address, and to the sending socket itself. */
    int c = bound(HERE, 4002);
    IS(put(c, "near", HERE, 4000), 4);
    IS(recv(a, into, sizeof into, 0), 4);
    IS(put(c, "self", HERE, 4002), 4);
    IS(recv(c, into, sizeof into, 0), 4);

    for (const int *flag = (int[]){MSG_OOB, MSG_MORE, MSG_EOR, MSG_NOSIGNAL, MSG_CONFIRM, 0}; *flag; flag++)
        FAILS(send(a, "x", 1, *flag), EOPNOTSUPP);
    IS(recv(a, into, 1, MSG_OOB), 0);
    FAILS(recv(a, into, 1, MSG_ERRQUEUE), EAGAIN);
    FAILS(sendto(a, "x", 1, 0, (void *)&to, 15), EINVAL);
    static char large[(1 << 20) + 1];
    IS(setsockopt(a, SOL_SOCKET, SO_SNDBUF, &(int){4 << 20}, 4), 0);
    FAILS(send(a, large, sizeof large, 0), EMSGSIZE);
    large[1 << 19] = 7;
    IS(send(a, large, 1 << 20, 0), 1 << 20);
    large[1 << 19] = 0;
    IS(recv(b, large, sizeof large, 0), 1 << 20);
    IS(large[1 << 19], 7);
}

static void cut(void) {
    int a = bound(HERE, 4000), b = bound(THERE, 4001), bytes = -1;
    struct msghdr message = {.msg_iov = &(struct iovec){into, 4}, .msg_iovlen = 1};
    meet(a, b);
    IS(ioctl(b, FIONREAD, &bytes), 0);
    IS(bytes, 0);
    IS(put(a, "first message", THERE, 4001), 13);
    IS(put(a, "second", THERE, 4001), 6);
    IS(comes(b, POLLIN), POLLIN);
    IS(ioctl(b, FIONREAD, &bytes), 0);
    IS(bytes, 13);
    FAILS(ioctl(b, TIOCOUTQ, &bytes), ENOTTY);
    IS(recvmsg(b, &message, MSG_PEEK), 4);
    IS(message.msg_flags, MSG_TRUNC);
    IS(recv(b, into, 4, MSG_PEEK | MSG_TRUNC), 13);
    IS(recvmsg(b, &message, MSG_TRUNC), 13);
    is_text("firs");
    IS(recv(b, into, sizeof into, 0), 6);
    is_text("second");
    IS(has(b, POLLIN), 0);
}

static int number(int fd, int level, int name) {
    int value = -2;
    socklen_t size = sizeof value;
    IS(getsockopt(fd, level, name, &value, &size), 0);
    IS(size, sizeof value);
    return value;
}

static void options(void) {
    int fd = new();
    IS(number(fd, SOL_SOCKET, SO_TYPE), SOCK_SEQPACKET);
    IS(number(fd, SOL_SOCKET, SO_DOMAIN), AF_RDS);
    IS(number(fd, SOL_SOCKET, SO_PROTOCOL), 0);
    IS(number(fd, SOL_SOCKET, SO_ERROR), 0);
    IS(number(fd, SOL_SOCKET, SO_ACCEPTCONN), 0);
    for (const int *name = (int[]){SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE, 0}; *name; name++) {
        int get = *name == SO_SNDBUFFORCE ? SO_SNDBUF : *name == SO_RCVBUFFORCE ? SO_RCVBUF : *name;
        IS(setsockopt(fd, SOL_SOCKET, *name, &(int){100000 + *name}, 4), 0);
        IS(number(fd, SOL_SOCKET, get), 200000 + 2 * *name);
        FAILS(setsockopt(fd, SOL_SOCKET, *name, &(int){1}, 3), EINVAL);
    }
    IS(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){1}, 4), 0);
    IS(number(fd, SOL_SOCKET, SO_SNDBUF), 4608);
    struct timeval time = {1, 500000}, told;
    socklen_t size = sizeof told;
    for (const int *name = (int[]){SO_SNDTIMEO, SO_RCVTIMEO, 0}; *name; name++) {
        IS(setsockopt(fd, SOL_SOCKET, *name, &time, sizeof time), 0);
        IS(getsockopt(fd, SOL_SOCKET, *name, &told, &size), 0);
        IS(told.tv_sec, 1);
        IS(told.tv_usec / 10000, 50);
    }
    FAILS(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &(int){2}, 4), ENOPROTOOPT);
    FAILS(setsockopt(fd, IPPROTO_TCP, 1, &(int){1}, 4), ENOPROTOOPT);
    FAILS(getsockopt(fd, IPPROTO_IP, 1, &(int){1}, &size), ENOPROTOOPT);

    size = 3;
    FAILS(getsockopt(fd, SOL_RDS, RDS_RECVERR, &(int){0}, &size), EINVAL);
    IS(number(fd, SOL_RDS, RDS_RECVERR), 0);
    IS(setsockopt(fd, SOL_RDS, RDS_RECVERR, &(int){5}, 4), 0);
    IS(number(fd, SOL_RDS, RDS_RECVERR), 1);
    FAILS(setsockopt(fd, SOL_RDS, RDS_RECVERR, &(int){5}, 3), EINVAL);
    IS(setsockopt(fd, SOL_RDS, RDS_CONG_MONITOR, &(int){1}, 4), 0);
    IS(setsockopt(fd, SOL_RDS, RDS_CONG_MONITOR, &(int){0}, 4), 0);
    FAILS(setsockopt(fd, SOL_RDS, 4, &(int){0}, 4), ENOPROTOOPT);
    struct sockaddr_in to = at(THERE, 4001);
    FAILS(setsockopt(fd, SOL_RDS, RDS_CANCEL_SENT_TO, &to, sizeof to), ENOTCONN);
    IS(number(fd, SOL_RDS, SO_RDS_TRANSPORT), RDS_TRANS_NONE);
    FAILS(setsockopt(fd, SOL_RDS, SO_RDS_TRANSPORT, &(int){RDS_TRANS_COUNT}, 4), EINVAL);
    FAILS(setsockopt(fd, SOL_RDS, SO_RDS_TRANSPORT, &(int){RDS_TRANS_TCP}, 4), ENOPROTOOPT);
    IS(setsockopt(fd, SOL_RDS, SO_RDS_TRANSPORT, &(int){RDS_TRANS_IB}, 4), 0);
    IS(number(fd, SOL_RDS, SO_RDS_TRANSPORT), RDS_TRANS_IB);
    FAILS(setsockopt(fd, SOL_RDS, SO_RDS_TRANSPORT, &(int){RDS_TRANS_IB}, 4), EOPNOTSUPP);
    give(fd, HERE, 4000);
    FAILS(setsockopt(fd, SOL_RDS, RDS_CANCEL_SENT_TO, &to, 15), EINVAL);
    IS(setsockopt(fd, SOL_RDS, RDS_CANCEL_SENT_TO, &to, sizeof to), 0);
    uint8_t service = 7;
    IS(ioctl(fd, SIOCRDSGETTOS, &service), 0);
    IS(service, 0);
}

/* Returns 1 for readable plus 2 for writable. */
static int selected(int fd) {
    struct timeval none = {0, 0};
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(fd, &in);
    FD_SET(fd, &out);
    IS(select(fd + 1, &in, &out, NULL, &none) >= 0, 1);
    return FD_ISSET(fd, &in) | FD_ISSET(fd, &out) << 1;
}

static void over_iwarp(void) { IS(number(bound(HERE, 4000), SOL_RDS, SO_RDS_TRANSPORT), RDS_TRANS_IWARP); }

static void polled(void) {
    int a = bound(HERE, 4000), b = bound(THERE, 4001);
    IS(has(b, POLLIN | POLLOUT), POLLOUT);
    IS(selected(b), 2);
    IS(put(a, "one", THERE, 4001), 3);
    IS(put(a, "two", THERE, 4001), 3);
    IS(comes(b, POLLIN), POLLIN);
    IS(selected(b), 3);
    IS(ppoll(&(struct pollfd){b, POLLIN | POLLOUT}, 1, NULL, NULL), 1);
    IS(recv(b, into, 3, 0), 3);
    IS(comes(b, POLLIN), POLLIN);
    IS(recv(b, into, 3, MSG_PEEK), 3);
    IS(has(b, POLLIN), POLLIN);
    IS(recv(b, into, 3, 0), 3);
    IS(has(b, POLLIN | POLLOUT), POLLOUT);
    fill(b);
    IS(has(b, POLLIN | POLLOUT), 0);
    IS(selected(b), 0);
    IS(put(a, "one", THERE, 4001), 3);
    IS(comes(b, POLLIN | POLLOUT), POLLIN);
    empty(b);
    IS(has(b, POLLIN | POLLOUT), POLLIN | POLLOUT);
    IS(recv(b, into, 3, 0), 3);
}

static int events(int set) {
    struct epoll_event event = {0};
    int count = epoll_wait(set, &event, 1, 0);
    return count == 1 ? (int)event.events : -count;
}

static void level(void) {
    int a = bound(HERE, 4000), b = bound(THERE, 4001), set = epoll_create1(0);
    meet(a, b);
    IS(epoll_ctl(set, EPOLL_CTL_ADD, b, &(struct epoll_event){EPOLLIN | EPOLLOUT}), 0);
    IS(events(set), EPOLLOUT);
    IS(put(a, "one", THERE, 4001), 3);
    IS(comes(b, POLLIN), POLLIN);
    IS(events(set), EPOLLIN | EPOLLOUT);
    IS(events(set), EPOLLIN | EPOLLOUT);
    fill(b);
    IS(events(set), EPOLLIN);
    IS(recv(b, into, 3, 0), 3);
    IS(events(set), 0);
    empty(b);
    IS(events(set), EPOLLOUT);
    /* A closed descriptor leaves the set. */
    IS(close(b), 0);
    IS(events(set), 0);
}

static void edge(void) {
    int a = bound(HERE, 4000), b = bound(THERE, 4001), set = epoll_create1(0);
    struct epoll_event event;
    meet(a, b);
    IS(epoll_ctl(set, EPOLL_CTL_ADD, b, &(struct epoll_event){EPOLLIN | EPOLLOUT | EPOLLET}), 0);
    IS(events(set), EPOLLOUT);
    IS(events(set), 0);
    for (int round = 0; round < 1000; round++) {
        IS(put(a, "one", THERE, 4001), 3);
        IS(epoll_wait(set, &event, 1, 20000), 1);
        IS(event.events & EPOLLIN, EPOLLIN);
        IS(recv(b, into, 3, MSG_DONTWAIT), 3);
        FAILS(recv(b, into, 3, MSG_DONTWAIT), EAGAIN);
    }
    IS(events(set), 0);
    fill(b);
    IS(events(set), 0);
    empty(b);
    IS(events(set), EPOLLOUT);
    IS(events(set), 0);
}

static void *sends_after_a_while(void *from) {
    usleep(20000);
    IS(put(*(int *)from, "late", THERE, 4001), 4);
    return NULL;
}

static void *empties_after_a_while(void *full) {
    usleep(20000);
    empty(*(int *)full);
    return NULL;
}

static void *receives(void *fd) {
    char one;
    IS(recv(*(int *)fd, &one, 1, 0), 1);
    return NULL;
}

static void *is_read_after_a_while(void *congested) {
    usleep(20000);
    while (recv(*(int *)congested, into, sizeof into, MSG_DONTWAIT) >= 0) {}
    return NULL;
}

static void ignore(int signal) { (void)signal; }

static void on_alarm(int flags) {
    struct sigaction action = {.sa_handler = ignore, .sa_flags = flags};
    IS(sigaction(SIGALRM, &action, NULL), 0);
}

/* Repeats the alarm, because the first one may come before a call sleeps; 0 stops it. */
static void alarm_in(int milliseconds) {
    struct itimerval time = {.it_value = {0, milliseconds * 1000}, .it_interval = {0, milliseconds * 1000}};
    IS(setitimer(ITIMER_REAL, &time, NULL), 0);
}

static void waits(void) {
    int a = bound(HERE, 4000), b = bound(THERE, 4001);
    pthread_t thread;
    IS(pthread_create(&thread, NULL, sends_after_a_while, &a), 0);
    IS(recv(b, into, sizeof into, 0), 4);
    IS(pthread_join(thread, NULL), 0);
    /* Four messages wake four waiting receivers. */
    pthread_t four[4];
    for (int each = 0; each < 4; each++)
        IS(pthread_create(&four[each], NULL, receives, &b), 0);
    usleep(20000);
    for (int each = 0; each < 4; each++)
        IS(put(a, "1", THERE, 4001), 1);
    for (int each = 0; each < 4; each++)
        IS(pthread_join(four[each], NULL), 0);
    IS(has(b, POLLIN), 0);

    fill(b);
    IS(pthread_create(&thread, NULL, empties_after_a_while, &b), 0);
    struct sockaddr_in to = at(NOWHERE, 4000);
    IS(sendto(b, "late", 4, 0, (void *)&to, sizeof to), 4);
    IS(pthread_join(thread, NULL), 0);
    IS(has(b, POLLOUT), POLLOUT);

    /* Calls end after a timeout. */
    struct timeval time = {0, 50000};
    IS(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time), 0);
    IS(setsockopt(b, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time), 0);
    double began = now();
    FAILS(recv(b, into, 1, 0), ETIMEDOUT);
    IS(now() - began >= 0.05, 1);
    /* A report that another port is free is nothing to receive. */
    int c = bound(HERE, 4002);
    IS(setsockopt(c, SOL_SOCKET, SO_RCVBUF, &(int){4096}, sizeof(int)), 0);
    congest(b, HERE, 4002);
    IS(pthread_create(&thread, NULL, is_read_after_a_while, &c), 0);
    char one;
    FAILS(recv(b, &one, 1, 0), ETIMEDOUT);
    IS(pthread_join(thread, NULL), 0);
    IS(close(c), 0);
    fill(b);
    began = now();
    FAILS(put(b, "x", NOWHERE, 4000), ETIMEDOUT);
    IS(now() - began >= 0.05, 1);
    IS(has(b, POLLOUT), 0);
    time.tv_usec = 0;
    IS(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time), 0);
    IS(setsockopt(b, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time), 0);

    /* Signals end calls. */
    on_alarm(0);
    alarm_in(50);
    FAILS(recv(b, into, 1, 0), EINTR);
    FAILS(put(b, "x", NOWHERE, 4000), EINTR);
    alarm_in(0);
    on_alarm(SA_RESTART);
    alarm_in(10);
    IS(pthread_create(&thread, NULL, sends_after_a_while, &a), 0);
    IS(recv(b, into, sizeof into, 0), 4);
    IS(pthread_join(thread, NULL), 0);
    alarm_in(0);

    /* Nonblocking calls do not wait. */
    IS(ioctl(b, FIONBIO, &(int){1}), 0);
    IS(fcntl(b, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    FAILS(recv(b, into, 1, 0), EAGAIN);
    FAILS(put(b, "x", NOWHERE, 4000), EAGAIN);
    IS(fcntl(b, F_SETFL, 0), 0);
    IS(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 1}, sizeof time), 0);
    FAILS(recv(b, into, 1, 0), ETIMEDOUT);
}

/* A refused sender sees in poll that a port is free, whatever it calls before. */
static void congested(void) {
    int a = bound(HERE, 4000), b = bound(THERE, 4001), other = bound(HERE, 4002);
    struct sockaddr_in to = at(THERE, 4001);
    meet(a, b);
    IS(setsockopt(b, SOL_SOCKET, SO_RCVBUF, &(int){4096}, sizeof(int)), 0);
    congest(a, THERE, 4001);
    while (sendto(other, "x", 1, MSG_DONTWAIT, (void *)&to, sizeof to) != 1) {
        while (recv(b, into, sizeof into, MSG_DONTWAIT) >= 0) {}
    }
    while (recv(b, into, sizeof into, 0) != 1) {}
    IS(put(a, "x", HERE, 4002), 1);
    FAILS(recv(a, into, 1, MSG_DONTWAIT), EAGAIN);
    FAILS(recv(a, into, 1, MSG_DONTWAIT), EAGAIN);
    IS(comes(a, POLLIN), POLLIN);
    IS(put(a, "free", THERE, 4001), 4);
    while (has(a, POLLIN)) FAILS(recv(a, into, 1, MSG_DONTWAIT), EAGAIN);
}

static void is_socket(int fd, int is) {
    int kind = 0;
    socklen_t size = sizeof kind;
    IS(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &kind, &size) == 0 && kind == AF_RDS, is);
}

/* Opens files until one has this number. The files are empty. */
static void becomes_a_file(int number) {
    int file;
    do
        IS((file = memfd_create("", 0)) >= 0, 1);
    while (file != number);
    is_socket(number, 0);
    IS(write(number, "a line", 6), 6);
    IS(lseek(number, 0, SEEK_CUR), 6);
    IS(close(number), 0);
}

/* A number is a file's after the C library or the program itself has closed the socket that had it. */
static void closed_elsewhere(void) {
    FILE *stream = fdopen(bound(THERE, 4001), "r+");
    IS(stream != NULL, 1);
    int number = fileno(stream);
    IS(fclose(stream), 0);
    becomes_a_file(number);
    /* The end of the stream was that of the socket, so its port is free. */
    number = bound(THERE, 4001);
    IS(syscall(SYS_close, number), 0);
    becomes_a_file(number);
}

static void descriptors(void) {
    int a = bound(HERE, 4000), b = bound(THERE, 4001);
    int others[] = {dup(b), fcntl(b, F_DUPFD, 100), fcntl(b, F_DUPFD_CLOEXEC, 200), dup2(b, 300), dup3(b, 301, O_CLOEXEC)};
    IS(others[1] >= 100 && others[2] >= 200, 1);
    IS(others[3], 300);
    IS(others[4], 301);
    IS(fcntl(301, F_GETFD), FD_CLOEXEC);
    IS(dup2(b, b), b);
    FAILS(dup3(b, b, 0), EINVAL);
    IS(close(b), 0);
    for (int each = 0; each < 5; each++) {
        is_socket(others[each], 1);
        IS(put(a, "x", THERE, 4001), 1);
        IS(comes(others[each], POLLIN), POLLIN);
        IS(recv(others[each], into, 1, 0), 1);
    }
    /* Closed numbers are reused for other files. */
    int pipes[2];
    IS(pipe(pipes), 0);
    IS(dup2(pipes[0], others[0]), others[0]);
    IS(write(pipes[1], "piped", 5), 5);
    IS(read(others[0], into, sizeof into), 5);
    IS(dup2(pipes[0], 300), 300);
    is_socket(300, 0);
    /* A socket takes the number of another file. */
    IS(dup2(others[1], pipes[0]), pipes[0]);
    is_socket(pipes[0], 1);
    IS(close(pipes[0]), 0);
    IS(close(others[1]), 0);
    IS(close(others[2]), 0);
    is_socket(301, 1);
    struct sockaddr_in own = at(THERE, 4001);
    int other = new();
    FAILS(bind(other, (void *)&own, sizeof own), EADDRINUSE);
    IS(close_range(301, 400, 0), 0);
    FAILS(recv(301, into, 1, 0), EBADF);
    IS(bind(other, (void *)&own, sizeof own), 0);
    is_socket(a, 1);
}

static int entries(const char *folder) {
    DIR *open = opendir(folder);
    int count = 0;
    IS(open != NULL, 1);
    while (readdir(open)) count++;
    closedir(open);
    return count;
}

/* While there are sockets, the program neither closes nor replaces descriptors of the library; those of sockets it does. */
static void busy(void) {
    closefrom(3);
    int a = bound(HERE, 4000), b = bound(HERE, 4001), refused = 0;
    for (int fd = 3; fd < 1024; fd++) {
        if (fd == a || fd == b || fcntl(fd, F_GETFD) == -1) continue;
        FAILS(dup2(0, fd), EBUSY);
        FAILS(dup3(0, fd, O_CLOEXEC), EBUSY);
        FAILS(dup2(a, fd), EBUSY);
        FAILS(close(fd), EBADF);
        IS(close_range(fd, fd, 0), 0);
        IS(fcntl(fd, F_GETFD) != -1, 1);
        refused++;
    }
    IS(refused > 0, 1);
    IS(put(a, "x", HERE, 4001), 1);
    IS(comes(b, POLLIN), POLLIN);
    IS(recv(b, into, 1, 0), 1);
    IS(dup2(0, b), b);
    IS(close(a) + close(b), 0);
}

/* Nothing of the library is left after the last socket: what has the numbers of its descriptors is the program's alone. */
static void gone(void) {
    closefrom(3);
    /* The peer receives a message, and stops before this process disconnects. */
    pid_t peer = fork();
    if (peer == 0) {
        int b = bound(THERE, 4001);
        IS(recv(b, into, 1, 0), 1);
        raise(SIGSTOP);
        exit(0);
    }
    int before = entries("/proc/self/fd");
    for (int all = 0; all < 3; all++) {
        int a = bound(HERE, 4000), b = bound(HERE, 4001);
        IS(put(a, "x", HERE, 4001), 1);
        IS(comes(b, POLLIN), POLLIN);
        IS(recv(b, into, 1, 0), 1);
        if (all == 2) {
            int status;
            IS(put(a, "x", THERE, 4001), 1);
            IS(waitpid(peer, &status, WUNTRACED), peer);
            IS(WIFSTOPPED(status), 1);
        }
        if (all == 1) closefrom(3);
        else IS(close(a) + close(b), 0);
        IS(entries("/proc/self/fd"), before);
        /* The system lists a thread a moment longer. */
        while (entries("/proc/self/task") > 3) sched_yield();
    }
    kill(peer, SIGKILL);
}

static unsigned long chance = 0x9e3779b97f4a7c15;

static unsigned long any(void) {
    chance ^= chance << 13;
    chance ^= chance >> 7;
    return chance ^= chance << 17;
}

static long limit(void) {
    static const long limits[] = {0, 1, 2, 4, 16, 64, 4096, 65536, INT_MAX, INT_MIN, UINT_MAX, LONG_MAX, LONG_MIN, -1};
    return any() % 2 ? any() % 16 : limits[any() % (sizeof limits / sizeof *limits)];
}

/* Words that are numbers, or the address of this memory: where a number is taken for an address there is something. */
static void *words(void) {
    static long words[1024];
    for (int each = 0; each < 32; each++) words[each] = any() % 4 ? any() % 8 : any() % 2 ? (long)&words[256] : 0;
    return any() % 8 ? words : NULL;
}

/* A message with parts, an address and control messages, of which each may be nonsense. */
static struct msghdr *message(void) {
    static struct msghdr message;
    static struct iovec parts[8];
    static struct sockaddr_in address;
    static char control[256] __attribute__((aligned(8)));
    for (int each = 0; each < 8; each++) parts[each] = (struct iovec){any() % 8 ? into : NULL, any() % 4 ? any() % 512 : limit()};
    address = at(any() % 2 ? HERE : THERE, 4000 + any() % 4);
    for (int each = 0; each < 32; each++) ((long *)control)[each] = any() % 4 ? 0 : (long)words();
    struct cmsghdr *first = (void *)control;
    *first = (struct cmsghdr){any() % 2 ? 16 + any() % 64 : (unsigned long)limit(), any() % 8 ? SOL_RDS : limit(), any() % 12};
    message = (struct msghdr){any() % 2 ? &address : words(), any() % 2 ? sizeof address : any() % 128, any() % 8 ? parts : NULL,
                              any() % 8, any() % 2 ? control : NULL, any() % sizeof control};
    for (unsigned long each = 0; each < message.msg_iovlen; each++)
        if (parts[each].iov_base == into && parts[each].iov_len > sizeof into) parts[each].iov_base = NULL;
    return any() % 16 ? &message : NULL;
}

/* No argument ends the process. */
static void hostile(void) {
    int fds[8], given;
    for (int each = 0; each < 8; each++) fds[each] = socket(AF_RDS, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    for (int calls = 0; calls < 10000; calls++) {
        int fd = fds[any() % 8];
        struct sockaddr_in own = at(any() % 2 ? HERE : THERE, 4000 + any() % 4);
        socklen_t size = any() % 2 ? any() % 128 : limit();
        switch (any() % 20) {
        case 0: bind(fd, (void *)&own, any() % 4 ? sizeof own : any() % 16); break;
        case 1: bind(fd, words(), any() % 128); break;
        case 2: connect(fd, (void *)&own, any() % 4 ? sizeof own : any() % 16); break;
        case 3: connect(fd, words(), any() % 128); break;
        case 4: getsockname(fd, words(), &size); break;
        case 5: getpeername(fd, words(), &size); break;
        case 6: case 7: sendmsg(fd, message(), limit() | MSG_DONTWAIT); break;
        case 8: recvmsg(fd, message(), limit() | MSG_DONTWAIT); break;
        case 9: send(fd, words(), any() % 4096, limit() | MSG_DONTWAIT); break;
        case 10: recv(fd, words(), any() % 4096, limit() | MSG_DONTWAIT); break;
        case 11: sendto(fd, words(), any() % 4096, MSG_DONTWAIT, (void *)&own, sizeof own); break;
        case 12: getsockopt(fd, any() % 2 ? SOL_RDS : SOL_SOCKET, limit(), words(), &size); break;
        case 13: setsockopt(fd, SOL_RDS, limit(), words(), any() % 256); break;
        case 14: ioctl(fd, any() % 2 ? FIONREAD : TIOCOUTQ, words()); break;
        case 15: {
            struct msghdr *described = message();
            readv(fd, described ? described->msg_iov : NULL, any() % 8);
            break;
        }
        case 16: shutdown(fd, limit()), listen(fd, limit()), accept(fd, words(), &size); break;
        case 17: given = dup(fd); close(fds[0]); fds[0] = given; break;
        case 18: given = socket(AF_RDS, any() % 4 ? SOCK_SEQPACKET | SOCK_NONBLOCK : limit(), any() % 4 ? 0 : limit());
            if (given >= 0) fcntl(given, F_SETFL, O_NONBLOCK), close(fds[1]), fds[1] = given;
            break;
        case 19: given = any() % 8; close(fds[given]); fds[given] = socket(AF_RDS, SOCK_SEQPACKET | SOCK_NONBLOCK, 0); break;
        }
    }
    for (int each = 0; each < 8; each++) close(fds[each]);
}

/* Calls with memory that is not mapped, or that cannot be written, fail as the kernel's do, and the message waits. */
static void nowhere(void) {
    int a = bound(HERE, 4000), b = bound(HERE, 4001);
    struct sockaddr_in to = at(HERE, 4001), from;
    socklen_t size = sizeof from;
    char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *read_only = pages + 4096, *hole = pages + 2 * 4096, *end = read_only - 4;
    IS(mprotect(read_only, 4096, PROT_READ), 0);
    IS(munmap(hole, 4096), 0);

    FAILS(bind(socket(AF_RDS, SOCK_SEQPACKET, 0), (void *)hole, sizeof to), EFAULT);
    FAILS(connect(a, (void *)hole, sizeof to), EFAULT);
    FAILS(sendto(a, hole, 5, 0, (void *)&to, sizeof to), EFAULT);
    FAILS(sendto(a, hole - 4, 5, 0, (void *)&to, sizeof to), EFAULT);
    FAILS(sendto(a, "hello", 5, 0, (void *)hole, sizeof to), EFAULT);
    FAILS(sendmsg(a, (void *)hole, 0), EFAULT);
    FAILS(recvmsg(b, (void *)hole, MSG_DONTWAIT), EFAULT);
    FAILS(sendmmsg(a, (void *)hole, 1, 0), EFAULT);
    FAILS(writev(a, (void *)hole, 1), EFAULT);
    FAILS(setsockopt(a, SOL_SOCKET, SO_SNDBUF, hole, 4), EFAULT);
    FAILS(getsockopt(a, SOL_SOCKET, SO_SNDBUF, read_only, &size), EFAULT);
    FAILS(getsockopt(a, SOL_SOCKET, SO_SNDBUF, &from, (void *)hole), EFAULT);
    FAILS(getsockname(a, (void *)read_only, &size), EFAULT);
    FAILS(ioctl(a, FIONREAD, read_only), EFAULT);
    struct iovec part = {hole, 5};
    struct msghdr message = {&to, sizeof to, &part, 1, NULL, 0, 0};
    FAILS(sendmsg(a, &message, 0), EFAULT);
    part.iov_base = "hello";
    message.msg_control = hole, message.msg_controllen = 64;
    FAILS(sendmsg(a, &message, 0), EFAULT);

    IS(sendto(a, read_only, 5, 0, (void *)&to, sizeof to), 5);
    FAILS(recv(b, hole, 64, 0), EFAULT);
    FAILS(recv(b, read_only, 64, 0), EFAULT);
    FAILS(recv(b, end, 64, 0), EFAULT);
    FAILS(recv(b, hole, 1 << 20, 0), EFAULT);
    FAILS(recvfrom(b, into, 64, MSG_PEEK, (void *)read_only, &size), EFAULT);
    struct iovec two[] = {{into, 2}, {end, 64}};
    message = (struct msghdr){NULL, 0, two, 2, NULL, 0, 0};
    /* Only the message needs room, not the buffer that the program names. */
    IS(recvmsg(b, &message, 0), 5);
    IS(sendto(a, "hello", 5, 0, (void *)&to, sizeof to), 5);
    IS(recv(b, end - 1, 1 << 20, 0), 5);
    IS(memcmp(end - 1, "hello", 5), 0);
}

static int ended(pid_t child) {
    int status;
    IS(waitpid(child, &status, 0), child);
    return status;
}

static void forked(void) {
    int a = bound(HERE, 4000), b = bound(THERE, 4001);
    pid_t child = fork();
    if (child == 0) {
        FAILS(recv(b, into, 1, MSG_DONTWAIT), EBADF);
        FAILS(put(b, "x", HERE, 4000), EBADF);
        int other = dup(b);
        IS(other >= 0, 1);
        IS(close(b), 0);
        IS(close(other), 0);
        /* Another file reuses the number. */
        int file = open("/dev/zero", O_RDONLY);
        IS(file, b);
        IS(read(file, into, 4), 4);
        /* The child has sockets of its own. */
        struct sockaddr_in parents = at(HERE, 4000);
        int refused = new();
        FAILS(bind(refused, (void *)&parents, sizeof parents), EADDRINUSE);
        int own = bound("127.0.25.3", 4000), near = bound("127.0.25.3", 4001);
        IS(put(near, "child", "127.0.25.3", 4000), 5);
        IS(recv(own, into, sizeof into, 0), 5);
        IS(put(own, "parent", THERE, 4001), 6);
        IS(recv(own, into, sizeof into, 0), 6);
        is_text("answer");
        exit(0);
    }
    IS(recv(b, into, sizeof into, 0), 6);
    is_text("parent");
    /* The child does not keep the port. */
    IS(close(a), 0);
    a = bound(HERE, 4000);
    IS(put(b, "answer", "127.0.25.3", 4000), 6);
    IS(ended(child), 0);

    /* A child that shares this memory closes its descriptors. */
    char program[] = "/bin/true";
    char *arguments[] = {program, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addclose(&actions, b);
    IS(posix_spawn(&child, program, &actions, NULL, arguments, NULL), 0);
    IS(ended(child), 0);
    child = vfork();
    if (child == 0) {
        close(b);
        close_range(3, ~0U, 0);
        execv(program, arguments);
        _exit(1);
    }
    IS(ended(child), 0);
    IS(put(a, "still", THERE, 4001), 5);
    IS(recv(b, into, sizeof into, 0), 5);
}

static int of_handler, spare = -1;
static volatile long handled, sent, received, refused;

/* A signal handler that sends, receives, polls and closes, as POSIX allows. */
static void uses(int signal) {
    int before = errno;
    char text[8];
    struct sockaddr_in to = at(THERE, 4001);
    struct pollfd polled = {of_handler, POLLIN, 0};
    (void)signal;
    if (sendto(of_handler, "signal", 6, MSG_DONTWAIT, (void *)&to, sizeof to) == 6)
        sent++;
    else
        refused += errno == EAGAIN;
    if (recv(of_handler, text, sizeof text, MSG_DONTWAIT) >= 0)
        received++;
    IS(poll(&polled, 1, 0) >= 0, 1);
    IS(close(spare), 0);
    handled++;
    errno = before;
}

static void sends(int signal) {
    int before = errno;
    struct sockaddr_in to = at(THERE, 4001);
    (void)signal;
    sent += sendto(of_handler, "signal", 6, MSG_DONTWAIT, (void *)&to, sizeof to) == 6;
    errno = before;
}

static timer_t on_signal(void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t timer;
    IS(sigaction(SIGUSR1, &action, NULL), 0);
    IS(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    return timer;
}

/* A thread whose signal handlers use the same socket as the thread. */
static void interrupted(void) {
    int here = bound(HERE, 4000);
    of_handler = bound(THERE, 4001);
    /* The alarm ends a call that waits forever. */
    alarm(300);
    timer_t timer = on_signal(uses);
    for (long round = 0; round < 3000 || !refused; round++) {
        struct itimerspec soon = {.it_value.tv_nsec = 1000 + round % 100 * 1000};
        spare = dup(of_handler);
        IS(timer_settime(timer, 0, &soon, NULL), 0);
        while (handled == round) {
            sent += put(of_handler, "own", THERE, 4001) == 3;
            sent += put(here, "other", THERE, 4001) == 5;
            while (recv(of_handler, into, sizeof into, MSG_DONTWAIT) >= 0)
                received++;
        }
        /* The descriptor was closed when the interrupted call ended. */
        is_socket(spare, 0);
    }
    /* Each message arrives once. */
    for (; received < sent; received++)
        IS(recv(of_handler, into, sizeof into, 0) >= 0, 1);
    FAILS(recv(of_handler, into, sizeof into, MSG_DONTWAIT), EAGAIN);

    /* A handler may send the message that the interrupted call waits for. The first signal may come before the call sleeps. */
    struct itimerspec often = {.it_value.tv_nsec = 1000000, .it_interval.tv_nsec = 1000000};
    timer = on_signal(sends);
    sent = 0;
    IS(timer_settime(timer, 0, &often, NULL), 0);
    IS(recv(of_handler, into, sizeof into, 0), 6);
    IS(sent > 0, 1);
}

static volatile int is_over;

static void *opens_and_closes(void *unused) {
    while (!is_over)
        IS(close(bound(THERE, 4001)), 0);
    return unused;
}

/* Forks children while other threads of the program open and close sockets. */
static void forked_meanwhile(void) {
    pthread_t thread;
    IS(close(new()), 0);
    IS(pthread_create(&thread, NULL, opens_and_closes, NULL), 0);
    for (int round = 0; round < 300; round++) {
        pid_t child = fork();
        if (child == 0) {
            /* The alarm ends a child that hangs. */
            alarm(300);
            IS(close(bound("127.0.25.3", 4000)), 0);
            round % 2 ? exit(0) : _exit(0);
        }
        IS(ended(child), 0);
    }
    is_over = 1;
    IS(pthread_join(thread, NULL), 0);
}

/* Sends a message with one or two control messages. */
static long with(int fd, const char *address, int port, int type, const void *data, size_t size, int second) {
    struct sockaddr_in to = at(address, port);
    char control[512] = {0};
    struct iovec text = {"with", 4};
    struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &text, .msg_iovlen = 1, .msg_control = control};
    struct cmsghdr *one = (void *)control;
    *one = (struct cmsghdr){CMSG_LEN(size), SOL_RDS, type};
    memcpy(CMSG_DATA(one), data, size);
    message.msg_controllen = CMSG_SPACE(size);
    if (second) {
        one = (void *)(control + CMSG_SPACE(size));
        *one = (struct cmsghdr){CMSG_LEN(8), SOL_RDS, second};
        message.msg_controllen += CMSG_SPACE(8);
    }
    return sendmsg(fd, &message, 0);
}

/* Receives a message with a control message and copies its data. */
static long got(int fd, int type, void *data, size_t size) {
    char control[512];
    struct msghdr message = {.msg_iov = &all, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(size)};
    long length = recvmsg(fd, &message, 0);
    IS(length >= 0, 1);
    struct cmsghdr *one = CMSG_FIRSTHDR(&message);
    IS(one != NULL, 1);
    IS(one->cmsg_level, SOL_RDS);
    IS(one->cmsg_type, type);
    IS(one->cmsg_len, CMSG_LEN(size));
    IS(CMSG_NXTHDR(&message, one) == NULL, 1);
    memcpy(data, CMSG_DATA(one), size);
    return length;
}

/* A peer reads and writes memory that the program has registered and then protected or unmapped. The program goes on. */
static void gone_memory(void) {
    int a = bound(HERE, 4000), b = bound(THERE, 4001);
    static uint64_t local[8] = {1, 2, 3, 4};
    struct rds_iovec part = {(uintptr_t)local, 32};
    struct rds_rdma_notify status;
    for (int change = 0; change < 3; change++) {
        uint64_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), cookie = 0;
        struct rds_get_mr_args region = {{(uintptr_t)page, 4096}, (uintptr_t)&cookie, RDS_RDMA_READWRITE};
        IS(setsockopt(a, SOL_RDS, RDS_GET_MR, &region, sizeof region), 0);
        if (change == 2)
            IS(munmap(page, 4096), 0);
        else
            IS(mprotect(page, 4096, change ? PROT_NONE : PROT_READ), 0);
        for (int is_write = 1; is_write >= 0; is_write--) {
            struct rds_rdma_args rdma = {cookie, {0, 32}, (uintptr_t)&part, 1, RDS_RDMA_NOTIFY_ME | (is_write ? RDS_RDMA_READWRITE : 0), 77};
            IS(with(b, HERE, 4000, RDS_CMSG_RDMA_ARGS, &rdma, sizeof rdma, 0), 4);
            IS(recv(a, into, sizeof into, 0), 4);
            IS(comes(b, POLLIN), POLLIN);
            IS(got(b, RDS_CMSG_RDMA_STATUS, &status, sizeof status), 0);
        }
        if (change == 2)
            continue;
        IS(mprotect(page, 4096, PROT_READ), 0);
        IS(page[3], 4);
    }
}

static void remote(void) {
    int a = bound(HERE, 4000), b = bound(THERE, 4001);
    static uint64_t memory[1024], local[8] = {1, 2, 3, 4};
    uint64_t cookie = 0, told = 0;
    struct rds_get_mr_args region = {{(uintptr_t)(memory + 1), 4096}, (uintptr_t)&cookie, RDS_RDMA_READWRITE};
    struct rds_iovec part = {(uintptr_t)local, 32};
    struct rds_rdma_notify status;

    FAILS(setsockopt(a, SOL_RDS, RDS_GET_MR, &region, sizeof region - 1), EINVAL);
    void *read_only = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct rds_get_mr_args protected = {{(uintptr_t)read_only, 4096}, (uintptr_t)&cookie, 0};
    FAILS(setsockopt(a, SOL_RDS, RDS_GET_MR, &protected, sizeof protected), EFAULT);
    IS(setsockopt(a, SOL_RDS, RDS_GET_MR, &region, sizeof region), 0);
    IS(cookie >> 32, (uintptr_t)(memory + 1) & 4095);
    IS(with(a, THERE, 4001, RDS_CMSG_RDMA_DEST, &cookie, sizeof cookie, 0), 4);
    IS(got(b, RDS_CMSG_RDMA_DEST, &told, sizeof told), 4);
    IS(told == cookie, 1);

    struct rds_rdma_args rdma = {cookie, {8, 32}, (uintptr_t)&part, 1, RDS_RDMA_READWRITE | RDS_RDMA_NOTIFY_ME, 77};
    IS(with(b, HERE, 4000, RDS_CMSG_RDMA_ARGS, &rdma, sizeof rdma, 0), 4);
    IS(recv(a, into, sizeof into, 0), 4);
    IS(memcmp(memory + 2, local, 32), 0);
    IS(comes(b, POLLIN), POLLIN);
    IS(got(b, RDS_CMSG_RDMA_STATUS, &status, sizeof status), 0);
    IS(status.user_token, 77);
    IS(status.status, RDS_RDMA_SUCCESS);
    memory[2] = 99;
    rdma.flags = RDS_RDMA_NOTIFY_ME;
    IS(with(b, HERE, 4000, RDS_CMSG_RDMA_ARGS, &rdma, sizeof rdma, 0), 4);
    IS(got(b, RDS_CMSG_RDMA_STATUS, &status, sizeof status), 0);
    IS(local[0], 99);

    /* Only the first of several statuses is lost if there is room for none. */
    for (rdma.user_token = 1; rdma.user_token <= 3; rdma.user_token++)
        IS(with(b, HERE, 4000, RDS_CMSG_RDMA_ARGS, &rdma, sizeof rdma, 0), 4);
    for (int each = 0; each < 3; each++)
        IS(recv(a, into, sizeof into, 0), 4);
    IS(comes(b, POLLIN), POLLIN);
    IS(recv(b, into, sizeof into, 0), 0);
    IS(got(b, RDS_CMSG_RDMA_STATUS, &status, sizeof status), 0);
    IS(status.user_token, 2);
    IS(got(b, RDS_CMSG_RDMA_STATUS, &status, sizeof status), 0);
    IS(status.user_token, 3);

    memory[1] = 40;
    struct rds_atomic_args atomic = {.cookie = cookie, .local_addr = (uintptr_t)local, .fadd = {2}, .flags = RDS_RDMA_NOTIFY_ME};
    IS(with(b, HERE, 4000, RDS_CMSG_ATOMIC_FADD, &atomic, sizeof atomic, 0), 4);
    IS(got(b, RDS_CMSG_RDMA_STATUS, &status, sizeof status), 0);
    IS(local[0], 40);
    IS(memory[1], 42);
    atomic.m_cswp = (typeof(atomic.m_cswp)){42, 0xff07, 0xff, 0xf};
    IS(with(b, HERE, 4000, RDS_CMSG_MASKED_ATOMIC_CSWP, &atomic, sizeof atomic, 0), 4);
    IS(got(b, RDS_CMSG_RDMA_STATUS, &status, sizeof status), 0);
    IS(memory[1], 0x27);

    FAILS(with(b, HERE, 4000, RDS_CMSG_RDMA_ARGS, &rdma, sizeof rdma - 1, 0), EINVAL);
    FAILS(with(b, HERE, 4000, RDS_CMSG_RDMA_ARGS, &rdma, sizeof rdma, RDS_CMSG_RDMA_DEST), EINVAL);
    FAILS(with(b, HERE, 4000, RDS_CMSG_RDMA_STATUS, &rdma, sizeof rdma, 0), EINVAL);
    FAILS(with(b, HERE, 4000, RDS_CMSG_RDMA_DEST, &cookie, sizeof cookie, 0), EINVAL);
    rdma.nr_local = 0;
    FAILS(with(b, HERE, 4000, RDS_CMSG_RDMA_ARGS, &rdma, sizeof rdma, 0), EINVAL);
    rdma.nr_local = 1;

    /* Local memory that is not mapped is refused, and so is memory that cannot be written if an operation writes there. No program
     * maps the second page. */
    uintptr_t unmapped = 4096, protected_at = (uintptr_t)read_only;
    struct rds_get_mr_args missing = {{unmapped, 4096}, (uintptr_t)&told, 0};
    FAILS(setsockopt(a, SOL_RDS, RDS_GET_MR, &missing, sizeof missing), EFAULT);
    FAILS(with(a, THERE, 4001, RDS_CMSG_RDMA_MAP, &missing, sizeof missing, 0), EFAULT);
    rdma.flags = RDS_RDMA_READWRITE;
    part.addr = unmapped;
    FAILS(with(b, HERE, 4000, RDS_CMSG_RDMA_ARGS, &rdma, sizeof rdma, 0), EFAULT);
    rdma.flags = 0;
    FAILS(with(b, HERE, 4000, RDS_CMSG_RDMA_ARGS, &rdma, sizeof rdma, 0), EFAULT);
    part.addr = protected_at;
    FAILS(with(b, HERE, 4000, RDS_CMSG_RDMA_ARGS, &rdma, sizeof rdma, 0), EFAULT);
    atomic.local_addr = unmapped;
    FAILS(with(b, HERE, 4000, RDS_CMSG_ATOMIC_FADD, &atomic, sizeof atomic, 0), EFAULT);
    atomic.local_addr = protected_at;
    FAILS(with(b, HERE, 4000, RDS_CMSG_ATOMIC_FADD, &atomic, sizeof atomic, 0), EFAULT);

    /* Memory is freed by an option, and with a message that is not sent. */
    struct rds_free_mr_args free = {cookie};
    IS(setsockopt(a, SOL_RDS, RDS_FREE_MR, &free, sizeof free), 0);
    FAILS(setsockopt(a, SOL_RDS, RDS_FREE_MR, &free, sizeof free), EINVAL);
    FAILS(with(a, "::1", 0, RDS_CMSG_RDMA_MAP, &region, sizeof region, 0), EINVAL);
    free.cookie = cookie;
    FAILS(setsockopt(a, SOL_RDS, RDS_FREE_MR, &free, sizeof free), EINVAL);
    region.cookie_addr = 0;
    IS(with(a, THERE, 4001, RDS_CMSG_RDMA_MAP, &region, sizeof region, 0), 4);
    IS(got(b, RDS_CMSG_RDMA_DEST, &told, sizeof told), 4);
    free.cookie = told;
    IS(setsockopt(a, SOL_RDS, RDS_FREE_MR, &free, sizeof free), 0);
}

/* One of two processes that exchange messages. */
static void server(void) {
    int fd = bound(HERE, 4000);
    puts("bound");
    fflush(stdout);
    struct sockaddr_in from;
    socklen_t size = sizeof from;
    for (long length; (length = recvfrom(fd, into, sizeof into, 0, (void *)&from, &size)) != 0;)
        IS(sendto(fd, into, length, 0, (void *)&from, size), length);
    IS(put(fd, "end", THERE, 4001), 3);
    /* The last message is acknowledged before the socket is closed. */
    IS(recv(fd, into, sizeof into, 0), 0);
}

static void client(void) {
    int fd = bound(THERE, 4001);
    struct sockaddr_in to = at(HERE, 4000);
    IS(connect(fd, (void *)&to, sizeof to), 0);
    for (int round = 0; round < 1000; round++) {
        long length = 1 + round * 7 % sizeof into;
        memset(into, round, length);
        IS(send(fd, into, length, 0), length);
        memset(into, ~round, length);
        long received;
        /* A congestion map that has arrived makes the socket readable too. */
        do
            IS(comes(fd, POLLIN), POLLIN);
        while ((received = recv(fd, into, sizeof into, MSG_DONTWAIT)) == -1 && errno == EAGAIN);
        IS(received, length);
        IS(into[0], (char)round);
        IS(into[length - 1], (char)round);
    }
    IS(send(fd, "", 0, 0), 0);
    IS(recv(fd, into, sizeof into, 0), 3);
    IS(send(fd, "", 0, 0), 0);
}

int main(int count, char **arguments) {
    const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        {"made", made}, {"addresses", addresses}, {"messages", messages}, {"cut", cut}, {"options", options}, {"over_iwarp", over_iwarp},
        {"polled", polled}, {"level", level}, {"edge", edge}, {"waits", waits}, {"congested", congested}, {"descriptors", descriptors}, {"closed_elsewhere", closed_elsewhere}, {"busy", busy}, {"gone", gone}, {"hostile", hostile}, {"nowhere", nowhere},
        {"interrupted", interrupted}, {"forked", forked}, {"forked_meanwhile", forked_meanwhile}, {"remote", remote}, {"gone_memory", gone_memory}, {"server", server}, {"client", client},
    };
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) {
        if (count == 2 && strcmp(arguments[1], parts[part].name) == 0) {
            parts[part].run();
            puts("done");
            return 0;
        }
    }
    return 2;
}
