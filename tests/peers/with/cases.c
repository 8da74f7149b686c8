/*
 * Cases of public issue trackers, as programs of others meet them: each part is a case, which exits with status 0 if the
 * devices do what the thread of the tracker calls right. Server and client are in one process. The address of the devices is
 * in ADDRESS, 127.0.0.1 unless set.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MUST(holds) \
	do { \
		if (!(holds)) { \
			fprintf(stderr, "cases.c:%d: %s: %s\n", __LINE__, #holds, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

enum { PEER = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, PATIENCE = 10 };

static const struct rdma_conn_param usual = {
	.responder_resources = 16, .initiator_depth = 16, .retry_count = 7, .rnr_retry_count = 7
};

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

static struct sockaddr_in here(uint16_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = port };
	const char *address = getenv("ADDRESS");

	MUST(inet_pton(AF_INET, address ? address : "127.0.0.1", &at.sin_addr) == 1);
	return at;
}

static bool is_stream(struct ibv_context *context)
{
	return context->device->transport_type == IBV_TRANSPORT_IWARP;
}

static struct ibv_context *device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	MUST(list && list[0] && (context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	return context;
}

/* The next event of a channel, which is of this kind. */
static struct rdma_cm_event *event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *found;

	MUST(poll(&readable, 1, PATIENCE * 1000) == 1 && !rdma_get_cm_event(channel, &found));
	if (found->event != kind)
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(found->event), rdma_event_str(kind));
	MUST(found->event == kind);
	return found;
}

static void pass(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	MUST(!rdma_ack_cm_event(event(channel, kind)));
}

/* A completion within so many seconds. */
static bool completed_within(struct ibv_cq *cq, struct ibv_wc *wc, double seconds)
{
	double end = now() + seconds;
	int found;

	do
		MUST((found = ibv_poll_cq(cq, 1, wc)) >= 0);
	while (!found && now() < end);
	return found;
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	MUST(completed_within(cq, &wc, PATIENCE));
	return wc;
}

static int receive(struct ibv_qp *qp, struct ibv_mr *mr, unsigned length, uint64_t id)
{
	struct ibv_sge room = { (uintptr_t)mr->addr, length, mr->lkey };
	struct ibv_recv_wr request = { .wr_id = id, .sg_list = &room, .num_sge = 1 }, *bad;

	return ibv_post_recv(qp, &request, &bad);
}

static int send_message(struct ibv_qp *qp, struct ibv_mr *mr, unsigned length, uint64_t id, int flags)
{
	struct ibv_sge data = { (uintptr_t)mr->addr, length, mr->lkey };
	struct ibv_send_wr request = {
		.wr_id = id, .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags
	}, *bad;

	return ibv_post_send(qp, &request, &bad);
}

/* A write or a read between the beginnings of two regions. */
static int access_peer(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_mr *own, unsigned length, void *to, uint32_t key)
{
	struct ibv_sge data = { (uintptr_t)own->addr, length, own->lkey };
	struct ibv_send_wr request = {
		.sg_list = &data, .num_sge = length ? 1 : 0, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl(0x89abcdef), .wr.rdma = { (uintptr_t)to, key }
	}, *bad;

	return ibv_post_send(qp, &request, &bad);
}

/* Two connected identifiers: `near` has asked, `far` has accepted. */
struct pair {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *near, *far;
	struct ibv_cq *near_cq, *far_cq;
	struct ibv_pd *pd;
	struct ibv_srq *srq;
	int entries, signal_all;
	bool shares, gives_up_soon;
};

static struct rdma_cm_id *listen_here(struct rdma_event_channel *channel, struct sockaddr_in at)
{
	struct rdma_cm_id *listener;

	MUST(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	MUST(!rdma_bind_addr(listener, (struct sockaddr *)&at) && !rdma_listen(listener, 8));
	return listener;
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, struct rdma_cm_id *listener)
{
	struct sockaddr_in at = here(rdma_get_src_port(listener));
	struct rdma_cm_id *id;

	MUST(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	MUST(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000));
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(!rdma_resolve_route(id, 2000));
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static void create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq, int signal_all)
{
	struct ibv_qp_init_attr options = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = signal_all, .send_cq = cq, .recv_cq = cq, .srq = srq,
		.cap = { 64, srq ? 0 : 64, 4, srq ? 0 : 4, 0 }
	};

	MUST(!rdma_create_qp(id, pd, &options));
}

static void connect_pair(struct pair *pair)
{
	struct ibv_srq_init_attr shared = { .attr = { 64, 1, 0 } };
	struct rdma_conn_param options = usual;
	struct rdma_cm_event *asked;

	if (pair->gives_up_soon)
		options.retry_count = 1;
	MUST(pair->channel = rdma_create_event_channel());
	pair->listener = listen_here(pair->channel, here(0));
	pair->near = resolved(pair->channel, pair->listener);
	MUST(pair->pd = ibv_alloc_pd(pair->near->verbs));
	MUST(pair->near_cq = ibv_create_cq(pair->near->verbs, pair->entries ? pair->entries : 256, NULL, NULL, 0));
	MUST(pair->far_cq = ibv_create_cq(pair->near->verbs, 256, NULL, NULL, 0));
	if (pair->shares)
		MUST(pair->srq = ibv_create_srq(pair->pd, &shared));
	create_qp(pair->near, pair->pd, pair->near_cq, NULL, pair->signal_all);
	MUST(!rdma_connect(pair->near, &options));
	asked = event(pair->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair->far = asked->id;
	MUST(!rdma_ack_cm_event(asked));
	create_qp(pair->far, pair->pd, pair->far_cq, pair->srq, pair->signal_all);
	MUST(!rdma_accept(pair->far, &options));
	pass(pair->channel, RDMA_CM_EVENT_ESTABLISHED);
	pass(pair->channel, RDMA_CM_EVENT_ESTABLISHED);
}

static struct ibv_mr *region(struct pair *pair, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(pair->pd, calloc(1, length), length, PEER);

	MUST(mr);
	return mr;
}

static void modify(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr to = { .qp_state = state, .port_num = 1 };
	int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | (state == IBV_QPS_INIT ? init : 0)));
}

/* pmem/rpma#184, ofiwg/libfabric#3490, RDMA-Rust/sideway#111: private data that is sent arrives, and no other. */
static void private_data(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener = listen_here(channel, here(0)), *near, *far;
	struct rdma_conn_param none = { .retry_count = 7 }, some = { .private_data = "hello", .private_data_len = 5 };
	struct rdma_cm_event *found;

	for (int round = 0; round < 3; round++) {
		const char *data;
		int length, dirty = 0;

		near = resolved(channel, listener);
		create_qp(near, NULL, NULL, NULL, 0);
		MUST(!rdma_connect(near, &none));
		found = event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		far = found->id;
		data = found->param.conn.private_data;
		for (int at = 0; at < found->param.conn.private_data_len; at++)
			MUST(data[at] == 0);
		rdma_ack_cm_event(found);
		if (round == 2) {
			MUST(!rdma_reject(far, "because", 7));
			found = event(channel, RDMA_CM_EVENT_REJECTED);
			MUST(found->param.conn.private_data_len >= 7 && !memcmp(found->param.conn.private_data, "because", 7));
			rdma_ack_cm_event(found);
			continue;
		}
		create_qp(far, NULL, NULL, NULL, 0);
		MUST(!rdma_accept(far, round ? &some : &none));
		for (int end = 0; end < 2; end++) {
			found = event(channel, RDMA_CM_EVENT_ESTABLISHED);
			data = found->param.conn.private_data;
			length = found->param.conn.private_data_len;
			for (int at = 0; found->id == near && at < length; at++)
				dirty += data[at] != 0;
			MUST(found->id != near || round == 0 || (length >= 5 && !memcmp(data, "hello", 5)));
			rdma_ack_cm_event(found);
		}
		MUST(dirty == (round ? 5 : 0));
	}
}

/* joaquinbejar/IronSBE#39, #46: the addresses of both ends; a burst of sends whose completions nothing polls. */
static void addresses(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in any = { .sin_family = AF_INET }, *near_own, *near_peer, *far_own, *far_peer;
	struct rdma_cm_id *listener = listen_here(channel, any), *near = resolved(channel, listener);
	struct rdma_conn_param options = usual;
	struct rdma_cm_event *asked;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	int taken = 0, refused = 0;

	MUST(((struct sockaddr_in *)rdma_get_local_addr(listener))->sin_port == rdma_get_src_port(listener));
	create_qp(near, NULL, NULL, NULL, 1);
	MUST(!rdma_connect(near, &options));
	asked = event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	MUST(asked->listen_id == listener);
	create_qp(asked->id, NULL, NULL, NULL, 1);
	near_own = (void *)rdma_get_local_addr(near), near_peer = (void *)rdma_get_peer_addr(near);
	far_own = (void *)rdma_get_local_addr(asked->id), far_peer = (void *)rdma_get_peer_addr(asked->id);
	MUST(mr = ibv_reg_mr(asked->id->pd, calloc(1, 64), 64, PEER));
	for (int at = 0; at < 64; at++)
		MUST(!receive(asked->id->qp, mr, 64, at));
	MUST(!rdma_accept(asked->id, &options) && !rdma_ack_cm_event(asked));
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	MUST(near_own->sin_port && near_own->sin_port == far_peer->sin_port && near_peer->sin_port == far_own->sin_port);
	MUST(near_own->sin_addr.s_addr == far_peer->sin_addr.s_addr && near_peer->sin_addr.s_addr == far_own->sin_addr.s_addr);

	MUST(mr = ibv_reg_mr(near->pd, calloc(1, 64), 64, PEER));
	for (; taken < 1000 && !(refused = send_message(near->qp, mr, 8, 0, 0)); taken++)
		;
	MUST(refused == ENOMEM && taken >= 64);
	for (int at = 0; at < taken && at < 64; at++)
		MUST(completed_within(near->send_cq, &wc, PATIENCE) && wc.status == IBV_WC_SUCCESS);
	MUST(!send_message(near->qp, mr, 8, 0, 0));
}

/* spdk/spdk#3347, #3118: an identifier with events that were not fetched is destroyed at once, and its events with it. */
static void undelivered_events(void)
{
	struct pair pair = { 0 };
	struct pollfd readable;

	connect_pair(&pair);
	MUST(!rdma_disconnect(pair.near));
	readable = (struct pollfd){ .fd = pair.channel->fd, .events = POLLIN };
	MUST(poll(&readable, 1, PATIENCE * 1000) == 1);
	rdma_destroy_qp(pair.near), rdma_destroy_qp(pair.far);
	MUST(!rdma_destroy_id(pair.far) && !rdma_destroy_id(pair.near));
	MUST(poll(&readable, 1, 0) == 0);
}

/* ofiwg/libfabric#11151, #7981: receives are flushed in order; the number of a queue pair is not used again at once. */
static void stale_completions(void)
{
	struct pair pair = { 0 };
	struct ibv_mr *mr;
	struct ibv_wc wc;
	uint32_t number;
	int left = 0;

	connect_pair(&pair);
	mr = region(&pair, 64);
	number = pair.near->qp->qp_num;
	for (int at = 0; at < 10; at++)
		MUST(!receive(pair.near->qp, mr, 64, at));
	modify(pair.near->qp, IBV_QPS_ERR);
	for (unsigned at = 0; at < 4; at++) {
		wc = completion(pair.near_cq);
		MUST(wc.wr_id == at && wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == number);
	}
	rdma_destroy_qp(pair.near);
	while (ibv_poll_cq(pair.near_cq, 1, &wc) > 0)
		left++;
	MUST(left == 0 || left == 6);
	for (int round = 0; round < 100; round++) {
		create_qp(pair.near, pair.pd, pair.near_cq, NULL, 0);
		MUST(pair.near->qp->qp_num != number);
		rdma_destroy_qp(pair.near);
	}
}

static void watch(int set, int fd, unsigned events)
{
	struct epoll_event added = { .events = events, .data.fd = fd };

	fcntl(fd, F_SETFL, O_NONBLOCK);
	MUST(!epoll_ctl(set, EPOLL_CTL_ADD, fd, &added));
}

static void must_wake(int outer, int inner, int fd)
{
	struct epoll_event found;

	MUST(epoll_wait(outer, &found, 1, PATIENCE * 1000) == 1);
	MUST(epoll_wait(inner, &found, 1, 0) == 1 && found.data.fd == fd);
}

/* valkey-io/libvalkey#301: a completion channel, an event channel and an eventfd in an epoll set within another. */
static void nested_epoll(void)
{
	struct pair pair = { 0 };
	struct ibv_comp_channel *notices;
	struct ibv_cq *cq, *of;
	struct ibv_mr *mr;
	struct epoll_event none;
	int inner = epoll_create1(0), outer = epoll_create1(0), kick = eventfd(0, 0);
	void *context;

	connect_pair(&pair);
	mr = region(&pair, 64);
	MUST(notices = ibv_create_comp_channel(pair.near->verbs));
	MUST(cq = ibv_create_cq(pair.near->verbs, 16, NULL, notices, 0));
	watch(inner, notices->fd, EPOLLIN | EPOLLET);
	watch(inner, pair.channel->fd, EPOLLIN);
	watch(inner, kick, EPOLLIN);
	watch(outer, inner, EPOLLIN);
	MUST(epoll_wait(outer, &none, 1, 0) == 0);
	for (int round = 0; round < 2; round++) {
		struct rdma_cm_id *id = resolved(pair.channel, pair.listener);

		MUST(!ibv_req_notify_cq(cq, 0));
		create_qp(id, pair.pd, cq, NULL, 0);
		for (int at = 0; at < 4; at++)
			MUST(!receive(id->qp, mr, 8, at));
		modify(id->qp, IBV_QPS_ERR);
		must_wake(outer, inner, notices->fd);
		MUST(!ibv_get_cq_event(notices, &of, &context) && of == cq);
		ibv_ack_cq_events(cq, 1);
		for (int at = 0; at < 4; at++)
			completion(cq);
		MUST(ibv_get_cq_event(notices, &of, &context) == -1 && errno == EAGAIN);
	}
	MUST(!rdma_disconnect(pair.near));
	must_wake(outer, inner, pair.channel->fd);
}

/* linux-rdma/rdma-core#1512: one completion is taken once by start, next and end. */
static void one_completion(void)
{
	struct ibv_context *context = device();
	struct ibv_cq_init_attr_ex queue = { .cqe = 16 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &queue);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp_init_attr options = {
		.qp_type = IBV_QPT_RC, .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .cap = { 4, 4, 1, 1, 0 }
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &options);
	struct ibv_mr *mr = ibv_reg_mr(pd, calloc(1, 64), 64, PEER);
	struct ibv_poll_cq_attr poll = { 0 };

	for (int round = 0; round < 3; round++) {
		double end = now() + PATIENCE;

		modify(qp, IBV_QPS_INIT);
		MUST(!receive(qp, mr, 8, 7));
		modify(qp, IBV_QPS_ERR);
		while (ibv_start_poll(cq, &poll))
			MUST(now() < end);
		MUST(ibv_next_poll(cq) == ENOENT);
		ibv_end_poll(cq);
		MUST(ibv_start_poll(cq, &poll) == ENOENT);
		modify(qp, IBV_QPS_RESET);
	}
}

/* linux-rdma/rdma-core#506, #512: one thread listens, connects to itself and accepts. */
static void one_thread(void)
{
	struct sockaddr_in at = here(0);
	socklen_t length = sizeof at;
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), client = rsocket(AF_INET, SOCK_STREAM, 0), server, error = -1;
	struct pollfd ready = { .fd = listener, .events = POLLIN };
	char text[4];

	rfcntl(listener, F_SETFL, O_NONBLOCK);
	MUST(!rbind(listener, (struct sockaddr *)&at, length) && !rlisten(listener, 4));
	MUST(!rgetsockname(listener, (struct sockaddr *)&at, &length));
	MUST(raccept(listener, NULL, NULL) == -1 && errno == EAGAIN);
	MUST(!rconnect(client, (struct sockaddr *)&at, length) && rpoll(&ready, 1, PATIENCE * 1000) == 1);
	MUST((server = raccept(listener, NULL, NULL)) >= 0 && !(rfcntl(server, F_GETFL) & O_NONBLOCK));
	MUST(rsend(client, "abc", 3, 0) == 3 && rrecv(server, text, 3, MSG_WAITALL) == 3 && !memcmp(text, "abc", 3));
	for (int listens = 1; listens >= 0; listens--) {
		client = rsocket(AF_INET, SOCK_STREAM, 0);
		rfcntl(client, F_SETFL, O_NONBLOCK);
		at.sin_port = listens ? at.sin_port : htons(1);
		error = rconnect(client, (struct sockaddr *)&at, sizeof at) ? errno : 0;
		ready = (struct pollfd){ .fd = client, .events = POLLOUT };
		if (error == EINPROGRESS) {
			length = sizeof error;
			MUST(rpoll(&ready, 1, PATIENCE * 1000) == 1);
			MUST(!rgetsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length));
		}
		MUST(error == (listens ? 0 : ECONNREFUSED));
	}
}

/* linux-rdma/rdma-core#1107, #1777: windows that cannot be bound, and the key of a window after its bind. */
static void windows(void)
{
	struct pair pair = { 0 };
	struct ibv_pd *other_pd;
	struct ibv_mr *bound, *other, *mr;
	struct ibv_mw *window;
	struct ibv_mw_bind bind = { .bind_info = { .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	struct ibv_send_wr request, *bad;
	uint32_t key;
	char *memory = calloc(1, 4096);
	double end = now() + PATIENCE;

	connect_pair(&pair);
	mr = region(&pair, 64);
	strcpy(mr->addr, "window");
	other_pd = ibv_alloc_pd(pair.near->verbs);
	MUST(bound = ibv_reg_mr(pair.pd, memory, 4096, PEER | IBV_ACCESS_MW_BIND));
	MUST(other = ibv_reg_mr(other_pd, memory, 4096, PEER | IBV_ACCESS_MW_BIND));
	if ((window = ibv_alloc_mw(pair.pd, IBV_MW_TYPE_1))) {
		MUST(ibv_bind_mw(pair.near->qp, window, &bind) == EINVAL);
		bind.bind_info.mr = other;
		MUST(ibv_bind_mw(pair.near->qp, window, &bind) == EPERM);
	} else {
		MUST(is_stream(pair.near->verbs) && errno == EOPNOTSUPP);
	}
	MUST(window = ibv_alloc_mw(pair.pd, IBV_MW_TYPE_2));
	key = ibv_inc_rkey(window->rkey);
	request = (struct ibv_send_wr){
		.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { window, key, { bound, (uintptr_t)memory, 64, IBV_ACCESS_REMOTE_WRITE } }
	};
	MUST(!ibv_post_send(pair.near->qp, &request, &bad) && completion(pair.near_cq).status == IBV_WC_SUCCESS);
	MUST(!access_peer(pair.far->qp, IBV_WR_RDMA_WRITE, mr, 7, memory, key));
	MUST(completion(pair.far_cq).status == IBV_WC_SUCCESS);
	/* A write over a stream has completed when it was sent. */
	while (*(volatile char *)(memory + 5) != 'w')
		MUST(now() < end);
	MUST(!strcmp(memory, "window"));
	MUST(!access_peer(pair.far->qp, IBV_WR_RDMA_WRITE, mr, 7, memory, window->rkey == key ? key - 1 : window->rkey));
	if (is_stream(pair.near->verbs))
		pass(pair.channel, RDMA_CM_EVENT_DISCONNECTED);
	else
		MUST(completion(pair.far_cq).status == IBV_WC_REM_ACCESS_ERR);
}

/* linux-rdma/rdma-core#1402: a shared receive queue grows, does not drop what is posted, and has a limit within it. */
static void resized_srq(void)
{
	struct ibv_context *context = device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_srq_init_attr options = { .attr = { 32, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &options);
	struct ibv_srq_attr size = { .max_wr = 100 };
	struct ibv_recv_wr request = { 0 }, *bad;
	struct ibv_device_attr limits;
	unsigned posted = 0;

	MUST(srq && !ibv_query_device(context, &limits));
	for (; posted < 5000 && !ibv_post_srq_recv(srq, &request, &bad); posted++)
		;
	MUST(posted == options.attr.max_wr);
	if (limits.device_cap_flags & IBV_DEVICE_SRQ_RESIZE) {
		MUST(!ibv_modify_srq(srq, &size, IBV_SRQ_MAX_WR) && !ibv_query_srq(srq, &size) && size.max_wr >= 100);
		for (; posted < 5000 && !ibv_post_srq_recv(srq, &request, &bad); posted++)
			;
		MUST(posted == size.max_wr);
		size.max_wr = 4;
	}
	MUST(ibv_modify_srq(srq, &size, IBV_SRQ_MAX_WR) != 0);
	size.srq_limit = 100000;
	MUST(ibv_modify_srq(srq, &size, IBV_SRQ_LIMIT) == EINVAL);
}

/* ThinkParQ/beegfs#133: a completion between the poll and the arming wakes; the weaker of two armings holds. */
static void arming(void)
{
	struct pair pair = { 0 };
	struct ibv_comp_channel *notices;
	struct pollfd readable;
	struct ibv_mr *mr;
	struct ibv_cq *of;
	struct ibv_wc wc;
	void *context;

	connect_pair(&pair);
	mr = region(&pair, 64);
	MUST(!rdma_disconnect(pair.near));
	rdma_destroy_qp(pair.far);
	MUST(notices = ibv_create_comp_channel(pair.near->verbs));
	MUST(!ibv_destroy_cq(pair.far_cq));
	MUST(pair.far_cq = ibv_create_cq(pair.near->verbs, 64, NULL, notices, 0));
	readable = (struct pollfd){ .fd = notices->fd, .events = POLLIN };
	for (int round = 0; round < 300; round++) {
		int first = round % 3 == 0, second = round % 3 == 1;

		create_qp(pair.far, pair.pd, pair.far_cq, NULL, 0);
		MUST(!receive(pair.far->qp, mr, 8, 0));
		/* For any completion, once or again. */
		MUST(!ibv_req_notify_cq(pair.far_cq, first) && !ibv_req_notify_cq(pair.far_cq, second));
		if (round % 3 == 2)
			MUST(ibv_poll_cq(pair.far_cq, 1, &wc) == 0);
		modify(pair.far->qp, IBV_QPS_ERR);
		MUST(poll(&readable, 1, PATIENCE * 1000) == 1 && !ibv_get_cq_event(notices, &of, &context));
		ibv_ack_cq_events(of, 1);
		completion(pair.far_cq);
		rdma_destroy_qp(pair.far);
	}
}

/* ROCm/rocm-ernic#74, linux-rdma/perftest#387, ofiwg/libfabric#9382: immediate data in receives without memory. */
static void immediate_data(void)
{
	struct pair pair = { .shares = true };
	struct ibv_recv_wr request = { .wr_id = 3 }, *bad;
	struct ibv_mr *from, *to;
	const unsigned lengths[] = { 10, 0, 4096 };
	struct ibv_wc wc;

	connect_pair(&pair);
	from = region(&pair, 4096), to = region(&pair, 4096);
	strcpy(from->addr, "immediate");
	for (int at = 0; at < 3; at++) {
		MUST(!ibv_post_srq_recv(pair.srq, &request, &bad));
		MUST(!access_peer(pair.near->qp, IBV_WR_RDMA_WRITE_WITH_IMM, from, lengths[at], to->addr, to->rkey));
		MUST(completion(pair.near_cq).status == IBV_WC_SUCCESS);
		wc = completion(pair.far_cq);
		MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == lengths[at]);
		MUST(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == htonl(0x89abcdef) && wc.qp_num == pair.far->qp->qp_num);
		MUST(!strcmp(to->addr, "immediate"));
	}
}

/* jonhoo/rust-ibverbs#14: objects in use are not destroyed, and can be destroyed afterwards. */
static void wrong_order(void)
{
	struct ibv_context *context = device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *notices = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, notices, 0);
	struct ibv_srq_init_attr shared = { .attr = { 4, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &shared);
	struct ibv_qp_init_attr options = {
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .srq = srq, .cap = { 4, 0, 1, 0, 0 }
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &options);
	struct ibv_mr *mr = ibv_reg_mr(pd, malloc(64), 64, PEER);

	MUST(qp && mr && ibv_destroy_cq(cq) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	MUST(ibv_destroy_srq(srq) == EBUSY && ibv_destroy_comp_channel(notices) == EBUSY);
	MUST(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
	MUST(!ibv_destroy_comp_channel(notices) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
}

/* SoftRoCE/rxe-dev#18: a queue pair is destroyed while its peer writes; each request of the peer completes. */
static void destroyed_while_busy(void)
{
	for (int round = 0; round < 5; round++) {
		struct pair pair = { .gives_up_soon = true };
		struct ibv_mr *from, *to;

		connect_pair(&pair);
		from = region(&pair, 65536), to = region(&pair, 65536);
		for (int at = 0; at < 32; at++)
			MUST(!access_peer(pair.near->qp, IBV_WR_RDMA_WRITE, from, 65536, to->addr, to->rkey));
		rdma_destroy_qp(pair.far);
		for (int at = 0; at < 32; at++)
			completion(pair.near_cq);
	}
}

/* linux-rdma/rdma-core#59, #60: requests may be posted in the error state, and are flushed. */
static void posted_in_error(void)
{
	struct pair pair = { 0 };
	struct ibv_mr *mr;

	connect_pair(&pair);
	mr = region(&pair, 64);
	modify(pair.near->qp, IBV_QPS_ERR);
	MUST(!send_message(pair.near->qp, mr, 8, 1, 0) && !receive(pair.near->qp, mr, 8, 2));
	MUST(completion(pair.near_cq).status == IBV_WC_WR_FLUSH_ERR);
	MUST(completion(pair.near_cq).status == IBV_WC_WR_FLUSH_ERR);
	modify(pair.near->qp, IBV_QPS_RESET);
	MUST(send_message(pair.near->qp, mr, 8, 3, 0) == EINVAL);
}

/* zrlio/jNVMf#25: the depths of reads that a program asks for, as SPDK does by the limits of its device. */
static void read_depths(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener = listen_here(channel, here(0));
	struct ibv_device_attr limits;

	for (int all = 0; all < 2; all++) {
		struct rdma_cm_id *near = resolved(channel, listener);
		struct rdma_conn_param options = { .retry_count = 7 };
		struct rdma_cm_event *asked;

		MUST(!ibv_query_device(near->verbs, &limits));
		options.responder_resources = all ? limits.max_qp_rd_atom : 0;
		options.initiator_depth = all ? limits.max_qp_init_rd_atom : 0;
		create_qp(near, NULL, NULL, NULL, 0);
		MUST(!rdma_connect(near, &options));
		asked = event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		MUST(asked->param.conn.initiator_depth == options.responder_resources);
		MUST(asked->param.conn.responder_resources == options.initiator_depth);
		MUST(!rdma_reject(asked->id, NULL, 0) && !rdma_ack_cm_event(asked));
		pass(channel, RDMA_CM_EVENT_REJECTED);
	}
}

/* linux-rdma/rdma-core#1365: sizes above the limits are refused, and a query has what was granted. */
static void sizes(void)
{
	struct ibv_context *context = device();
	struct ibv_device_attr limits;
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp_init_attr options = { .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq }, found;
	struct ibv_qp_attr attributes;
	struct ibv_qp *qp;

	MUST(!ibv_query_device(context, &limits));
	struct ibv_qp_cap above[] = {
		{ limits.max_qp_wr + 1, 1, 1, 1, 0 }, { 1, limits.max_qp_wr + 1, 1, 1, 0 }, { 1, 1, limits.max_sge + 1, 1, 0 },
		{ 1, 1, 1, limits.max_sge + 1, 0 }, { 1, 1, 1, 1, 1 << 30 }
	};
	for (size_t at = 0; at < sizeof above / sizeof *above; at++) {
		options.cap = above[at];
		MUST(!ibv_create_qp(pd, &options) && errno == EINVAL);
	}
	options.cap = (struct ibv_qp_cap){ 5, 7, 2, 3, 11 };
	MUST(qp = ibv_create_qp(pd, &options));
	MUST(!ibv_query_qp(qp, &attributes, IBV_QP_CAP, &found) && !memcmp(&found.cap, &options.cap, sizeof found.cap));
	MUST(options.cap.max_send_wr >= 5 && options.cap.max_recv_wr >= 7 && options.cap.max_inline_data >= 11);
	MUST(!ibv_create_cq(context, limits.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL);
	MUST(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
	MUST(!ibv_create_cq(context, 4, NULL, NULL, 9999) && errno == EINVAL);
}

/* datenlord/async-rdma#66: arrays of 30 MiB where 64 KiB may be locked. */
static void large_arrays(void)
{
	struct rlimit little = { 65536, 65536 };
	struct pair pair = { 0 };
	struct ibv_mr *from, *to;
	const unsigned length = 30 << 20;

	MUST(!setrlimit(RLIMIT_MEMLOCK, &little));
	connect_pair(&pair);
	from = region(&pair, length), to = region(&pair, length);
	for (unsigned at = 0; at < length; at += 8)
		*(uint64_t *)((char *)from->addr + at) = at * 2654435761ull;
	MUST(!access_peer(pair.far->qp, IBV_WR_RDMA_READ, to, length, from->addr, from->rkey));
	MUST(completion(pair.far_cq).status == IBV_WC_SUCCESS && !memcmp(from->addr, to->addr, length));
}

/* kvcache-ai/Mooncake#3299: a message that is too long for its receive. */
static void too_long(void)
{
	struct pair pair = { 0 };
	struct ibv_mr *from, *to;
	struct ibv_wc wc;

	connect_pair(&pair);
	from = region(&pair, 64), to = region(&pair, 64);
	MUST(!receive(pair.far->qp, to, 16, 1) && !receive(pair.far->qp, to, 16, 2));
	MUST(!send_message(pair.near->qp, from, 64, 1, IBV_SEND_SIGNALED));
	wc = completion(pair.far_cq);
	MUST(wc.wr_id == 1 && wc.status == IBV_WC_LOC_LEN_ERR);
	wc = completion(pair.far_cq);
	MUST(wc.wr_id == 2 && wc.status == IBV_WC_WR_FLUSH_ERR);
	/* A message over a stream has completed when it was sent. */
	if (!is_stream(pair.near->verbs))
		MUST(completion(pair.near_cq).status == IBV_WC_REM_INV_REQ_ERR);
}

/* ydb-platform/nbs#6290: memory that is deregistered and changed while a peer reads it. */
static void deregistered_while_read(void)
{
	const unsigned length = 4 << 20;

	for (int round = 0; round < 8; round++) {
		struct pair pair = { 0 };
		struct ibv_mr *from, *to;
		char *memory;

		connect_pair(&pair);
		from = region(&pair, length), to = region(&pair, length);
		memory = from->addr;
		memset(memory, 'R', length);
		MUST(!access_peer(pair.near->qp, IBV_WR_RDMA_READ, to, length, memory, from->rkey));
		MUST(!ibv_dereg_mr(from));
		memset(memory, 'F', length);
		completion(pair.near_cq);
		MUST(!memchr(to->addr, 'F', length));
	}
}

/* ofiwg/libfabric#4756: each request completes exactly once when an end disconnects. */
static void exactly_once(void)
{
	for (int round = 0; round < 2; round++) {
		struct pair pair = { .signal_all = 1 };
		struct ibv_mr *mr;
		struct ibv_wc wc;
		bool seen[100] = { false };

		connect_pair(&pair);
		mr = region(&pair, 64);
		for (int at = 0; at < 40; at++)
			MUST(!receive(pair.near->qp, mr, 64, 60 + at));
		for (int at = 0; at < 20; at++)
			MUST(!receive(pair.far->qp, mr, 64, at));
		for (int at = 0; at < 60; at++)
			MUST(!send_message(pair.near->qp, mr, 64, at, 0));
		MUST(!rdma_disconnect(round ? pair.near : pair.far));
		for (int at = 0; at < 100; at++) {
			MUST(completed_within(pair.near_cq, &wc, 30) && !seen[wc.wr_id]);
			seen[wc.wr_id] = true;
		}
		MUST(ibv_poll_cq(pair.near_cq, 1, &wc) == 0);
	}
}

/* linux-rdma/rdma-core#1222: a child of a fork writes into the page of a region of its parent. */
static void child_beside_region(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(device());
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int status;
	pid_t child;

	MUST(!ibv_fork_init() || errno);
	MUST(ibv_reg_mr(pd, page + 2048, 2048, PEER));
	if ((child = fork()) == 0) {
		page[0] = page[2048] = 1;
		_exit(7);
	}
	MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static int mappings(void)
{
	FILE *file = fopen("/proc/self/maps", "r");
	int found = 0, letter;

	while ((letter = fgetc(file)) != EOF)
		found += letter == '\n';
	fclose(file);
	return found;
}

/* kvcache-ai/Mooncake#3639: parts of a mapping are registered again and again, which splits it for ever elsewhere. */
static void split_mappings(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(device());
	char *memory = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int before = 0;

	for (int at = 0; at < 2000; at++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, memory + at * 7919 % 15000 * 4096, (1 + at % 300) * 4096, PEER);

		MUST(mr && !ibv_dereg_mr(mr));
		if (at == 100)
			before = mappings();
	}
	MUST(mappings() <= before + 4);
}

/* ofiwg/libfabric#5215, linux-rdma/rdma-core#883: a peer writes to memory that children of a fork have copies of. */
static void copies_of_children(void)
{
	const unsigned length = 1 << 20;
	struct pair pair = { 0 };
	struct ibv_mr *from, *to;
	volatile char *memory;
	int ends[2], status;
	pid_t children[4];
	double end;

	connect_pair(&pair);
	from = region(&pair, length), to = region(&pair, length);
	memory = to->addr;
	memset(from->addr, 'x', length);
	MUST(!pipe(ends));
	for (int at = 0; at < 4; at++) {
		if ((children[at] = fork()) == 0) {
			char none;

			close(ends[1]);
			memset(to->addr, 'a' + at, length);
			MUST(read(ends[0], &none, 1) == 0);
			_exit(memchr(to->addr, 'x', length) != NULL);
		}
	}
	memory[5] = 'p';
	MUST(!access_peer(pair.near->qp, IBV_WR_RDMA_WRITE, from, length, to->addr, to->rkey));
	MUST(completion(pair.near_cq).status == IBV_WC_SUCCESS);
	for (end = now() + PATIENCE; memory[5] != 'x' || memory[length - 1] != 'x';)
		MUST(now() < end);
	close(ends[1]);
	for (int at = 0; at < 4; at++)
		MUST(waitpid(children[at], &status, 0) == children[at] && status == 0);
}

static char letter_at(size_t at)
{
	return at * 31 >> 3;
}

/* linux-rdma/rdma-core#1702: peeking, vectors, both sides sending at once, and half a close. */
static void streams(void)
{
	const size_t length = 8 << 20;
	struct sockaddr_in at = here(0);
	socklen_t size = sizeof at;
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), ends[2];
	struct iovec parts[3] = { { "ab", 2 }, { "", 0 }, { "cdef", 4 } };
	size_t sent[2] = { 0 }, got[2] = { 0 };
	char text[8], part[65536];
	double end;

	signal(SIGPIPE, SIG_IGN);
	MUST(!rbind(listener, (struct sockaddr *)&at, size) && !rlisten(listener, 4));
	MUST(!rgetsockname(listener, (struct sockaddr *)&at, &size));
	MUST((ends[0] = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0 && !rconnect(ends[0], (struct sockaddr *)&at, size));
	MUST((ends[1] = raccept(listener, NULL, NULL)) >= 0);
	MUST(rrecv(ends[1], text, 4, MSG_DONTWAIT) == -1 && errno == EAGAIN && rwritev(ends[0], parts, 3) == 6);
	MUST(rrecv(ends[1], text, 3, MSG_PEEK) == 3 && !memcmp(text, "abc", 3));
	MUST(rrecv(ends[1], text, 6, MSG_WAITALL) == 6 && !memcmp(text, "abcdef", 6));
	rfcntl(ends[0], F_SETFL, O_NONBLOCK), rfcntl(ends[1], F_SETFL, O_NONBLOCK);
	for (end = now() + 4 * PATIENCE; got[0] < length || got[1] < length;) {
		MUST(now() < end);
		for (int side = 0; side < 2; side++) {
			size_t count = length - sent[side] < sizeof part ? length - sent[side] : sizeof part;
			ssize_t moved;

			for (size_t byte = 0; byte < count; byte++)
				part[byte] = letter_at(sent[side] + byte);
			moved = count ? rsend(ends[side], part, count, 0) : 0;
			MUST(moved >= 0 || errno == EAGAIN);
			sent[side] += moved > 0 ? moved : 0;
			moved = rrecv(ends[side], part, sizeof part, 0);
			MUST(moved >= 0 || errno == EAGAIN);
			for (ssize_t byte = 0; byte < moved; byte++)
				MUST(part[byte] == letter_at(got[side] + byte));
			got[side] += moved > 0 ? moved : 0;
		}
	}
	rfcntl(ends[0], F_SETFL, 0), rfcntl(ends[1], F_SETFL, 0);
	MUST(!rshutdown(ends[0], SHUT_WR) && rrecv(ends[1], text, 8, 0) == 0);
	MUST(rsend(ends[1], "still", 5, 0) == 5 && rrecv(ends[0], text, 5, MSG_WAITALL) == 5 && !memcmp(text, "still", 5));
	MUST(rsend(ends[0], "x", 1, 0) == -1 && errno == EPIPE);
}

/* spdk/spdk#2180: a shared receive queue runs dry, and sends go on when receives come. A stream would end. */
static void dry_queue(void)
{
	struct pair pair = { .shares = true };
	struct ibv_recv_wr request = { .num_sge = 1 }, *bad;
	struct ibv_mr *from, *to;
	struct ibv_sge room;

	connect_pair(&pair);
	from = region(&pair, 64), to = region(&pair, 64);
	room = (struct ibv_sge){ (uintptr_t)to->addr, 64, to->lkey };
	request.sg_list = &room;
	for (int at = 0; at < 20; at++)
		MUST(!send_message(pair.near->qp, from, 8, at, IBV_SEND_SIGNALED));
	for (int at = 0; at < 20; at++) {
		MUST(!ibv_post_srq_recv(pair.srq, &request, &bad));
		MUST(completion(pair.far_cq).status == IBV_WC_SUCCESS);
	}
	for (int at = 0; at < 20; at++)
		MUST(completion(pair.near_cq).status == IBV_WC_SUCCESS);
}

/* ceph/ceph#29947: a request with a bad key is an event of the responder's queue pair. */
static void bad_key(void)
{
	struct pair pair = { 0 };
	struct ibv_async_event found;
	struct ibv_mr *mr;

	connect_pair(&pair);
	mr = region(&pair, 64);
	MUST(!access_peer(pair.near->qp, IBV_WR_RDMA_WRITE, mr, 8, mr->addr, mr->rkey ^ 0xff00));
	completion(pair.near_cq);
	do {
		struct pollfd readable = { .fd = pair.far->verbs->async_fd, .events = POLLIN };

		MUST(poll(&readable, 1, PATIENCE * 1000) == 1 && !ibv_get_async_event(pair.far->verbs, &found));
		ibv_ack_async_event(&found);
		MUST(found.event_type != IBV_EVENT_QP_LAST_WQE_REACHED);
	} while (found.element.qp != pair.far->qp);
	MUST(found.event_type == IBV_EVENT_QP_ACCESS_ERR);
}

/* openucx/ucx#7143: a completion queue that is too small reports it, and can be destroyed. */
static void overrun(void)
{
	struct pair pair = { .entries = 4, .signal_all = 1 };
	struct pollfd readable;
	struct ibv_async_event found;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	connect_pair(&pair);
	mr = region(&pair, 64);
	for (int at = 0; at < 64; at++)
		MUST(!access_peer(pair.near->qp, IBV_WR_RDMA_WRITE, mr, 8, mr->addr, mr->rkey));
	readable = (struct pollfd){ .fd = pair.near->verbs->async_fd, .events = POLLIN };
	do {
		MUST(poll(&readable, 1, PATIENCE * 1000) == 1 && !ibv_get_async_event(pair.near->verbs, &found));
		ibv_ack_async_event(&found);
	} while (found.event_type != IBV_EVENT_CQ_ERR);
	MUST(found.element.cq == pair.near_cq);
	while (ibv_poll_cq(pair.near_cq, 1, &wc) > 0)
		;
	rdma_destroy_qp(pair.near);
	MUST(!ibv_destroy_cq(pair.near_cq));
}

/* OpenVisualCloud/Media-Transport-Library#872: a program polls and posts after the disconnect. */
static void after_disconnect(void)
{
	struct pair pair = { 0 };
	struct ibv_mr *mr;
	struct ibv_wc wc;

	connect_pair(&pair);
	mr = region(&pair, 64);
	for (int at = 0; at < 5; at++)
		MUST(!receive(pair.near->qp, mr, 8, at));
	MUST(!rdma_disconnect(pair.near));
	for (int at = 0; at < 5; at++)
		MUST(completion(pair.near_cq).status == IBV_WC_WR_FLUSH_ERR);
	MUST(!receive(pair.near->qp, mr, 8, 9) && completion(pair.near_cq).status == IBV_WC_WR_FLUSH_ERR);
	rdma_destroy_qp(pair.near);
	MUST(ibv_poll_cq(pair.near_cq, 1, &wc) == 0);
}

static struct rdma_cm_id *endpoint(const char *port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr options = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { 4, 4, 1, 1, 0 } };
	struct sockaddr_in at = here(0);
	char address[INET_ADDRSTRLEN];
	struct rdma_cm_id *id;

	inet_ntop(AF_INET, &at.sin_addr, address, sizeof address);
	MUST(!rdma_getaddrinfo(address, port, &hints, &found) && !rdma_create_ep(&id, found, NULL, &options));
	rdma_freeaddrinfo(found);
	return id;
}

static void *ask(void *port)
{
	struct rdma_cm_id *id = endpoint(port, 0);
	char text[64] = "question", answer[64];
	struct ibv_mr *out = rdma_reg_msgs(id, text, sizeof text), *in = rdma_reg_msgs(id, answer, sizeof answer);
	struct ibv_wc wc;

	MUST(!rdma_post_recv(id, NULL, answer, sizeof answer, in) && !rdma_connect(id, NULL));
	MUST(!rdma_post_send(id, NULL, text, sizeof text, out, 0) && rdma_get_send_comp(id, &wc) == 1);
	MUST(rdma_get_recv_comp(id, &wc) == 1 && !strcmp(answer, "answer") && !rdma_disconnect(id));
	rdma_destroy_ep(id);
	return NULL;
}

/* joaquinbejar/IronSBE#49: endpoints in the synchronous way, both in one process. */
static void endpoints(void)
{
	struct rdma_cm_id *listener = endpoint("0", RAI_PASSIVE), *id;
	char text[64] = "answer", question[64], port[8];
	struct ibv_mr *out, *in;
	struct ibv_wc wc;
	pthread_t client;

	MUST(!rdma_listen(listener, 4));
	sprintf(port, "%d", ntohs(rdma_get_src_port(listener)));
	MUST(!pthread_create(&client, NULL, ask, port) && !rdma_get_request(listener, &id));
	out = rdma_reg_msgs(id, text, sizeof text), in = rdma_reg_msgs(id, question, sizeof question);
	MUST(!rdma_post_recv(id, NULL, question, sizeof question, in) && !rdma_accept(id, NULL));
	MUST(rdma_get_recv_comp(id, &wc) == 1 && !strcmp(question, "question"));
	MUST(!rdma_post_send(id, NULL, text, sizeof text, out, 0) && rdma_get_send_comp(id, &wc) == 1);
	MUST(!pthread_join(client, NULL));
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
}

#define CASE(name) { #name, name }
static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	CASE(private_data), CASE(addresses), CASE(undelivered_events), CASE(stale_completions), CASE(nested_epoll),
	CASE(one_completion), CASE(one_thread), CASE(windows), CASE(resized_srq), CASE(arming), CASE(immediate_data),
	CASE(wrong_order), CASE(destroyed_while_busy), CASE(posted_in_error), CASE(read_depths), CASE(sizes), CASE(large_arrays),
	CASE(too_long), CASE(deregistered_while_read), CASE(exactly_once), CASE(child_beside_region), CASE(split_mappings),
	CASE(copies_of_children), CASE(streams), CASE(dry_queue), CASE(bad_key), CASE(overrun), CASE(after_disconnect),
	CASE(endpoints)
};

int main(int count, char **arguments)
{
	for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
		if (count > 1 && !strcmp(arguments[1], cases[at].name)) {
			cases[at].run();
			puts("right");
			return 0;
		}
	}
	fprintf(stderr, "usage: cases CASE, where CASE is one of:\n");
	for (size_t at = 0; at < sizeof cases / sizeof *cases; at++)
		fprintf(stderr, "  %s\n", cases[at].name);
	return 2;
}
