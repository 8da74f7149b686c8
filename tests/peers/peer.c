/* A queue pair of a device of the kernel, controlled over TCP: the other side of `peers`.
 *
 * usage: peer DEVICE ADDRESS PORT
 *
 * One process for each connection, one queue pair. Each line is a command and has one line as its answer:
 *
 *   rc MTU | ud                  makes a queue pair         qp QPN PSN GID ADDRESS RKEY
 *   connect QPN PSN GID          to this queue pair         ok
 *
 *   listen PORT                  for connections            ok
 *   await                        the next request           request DATA
 *   accept DATA                  until it is established    ok
 *   reject DATA                                             ok
 *   reach ADDRESS PORT DATA      asks for a connection      established DATA | event NAME STATUS DATA
 *   event                        waits for the next one     event NAME STATUS DATA | none
 *   disconnect                                              ok
 *
 *   fill AT LENGTH SEED          a pattern into its memory  ok
 *   check AT LENGTH SEED         is it there?               ok | differs at OFFSET
 *   put AT NUMBER, get AT        eight bytes                ok | number NUMBER
 *   key AT LENGTH                a key to be invalidated    key RKEY
 *   recv AT LENGTH               posts a receive            ok
 *   send AT LENGTH               posts a request            ok
 *   sendimm AT LENGTH IMM
 *   sendinv AT LENGTH RKEY
 *   write AT LENGTH ADDRESS RKEY
 *   writeimm AT LENGTH ADDRESS RKEY IMM
 *   read AT LENGTH ADDRESS RKEY
 *   cas AT ADDRESS RKEY COMPARE SWAP
 *   fadd AT ADDRESS RKEY ADD
 *   datagram AT LENGTH QPN GID QKEY
 *   poll                         waits for a completion     wc STATUS OPCODE LENGTH DATA FLAGS | none
 *   die                          kill -9 of itself
 *
 * Numbers are hexadecimal; DATA is bytes in hexadecimal, - for none. The private data of a request and of an accept
 * begins with twelve bytes: the address of the memory, and its key. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MEMORY (4u << 20)
#define QKEY 0x11111111u
#define PSN 0xfffff0u
#define SECONDS 60
/* Acknowledge timeout: 4.096 us x 2^n, a second: the machine is an emulated one, and others may be busy on its host. */
#define TIMEOUT 18
#define RETRIES 6
#define PRIVATE 256

static struct ibv_context *context;
static int gid_index;
static union ibv_gid own_gid;
static const char *device_name;
static struct in_addr own_address;

struct side {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *memory;
	int mtu, is_ud;
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener, *id;
	struct ibv_mr *second;
	struct ibv_mw *window;
};

static unsigned char pattern(size_t at, unsigned seed)
{
	return (unsigned char)(at * 7 + (at >> 8) * 13 + seed);
}

static void gid_text(const union ibv_gid *gid, char *text)
{
	for (int i = 0; i < 16; i++)
		sprintf(text + 2 * i, "%02x", gid->raw[i]);
}

static int gid_of(const char *text, union ibv_gid *gid)
{
	for (int i = 0; i < 16; i++) {
		unsigned octet;
		if (sscanf(text + 2 * i, "%2x", &octet) != 1)
			return -1;
		gid->raw[i] = octet;
	}
	return 0;
}

/* RoCEv2 over IPv4 has the identifier ::ffff:a.b.c.d. */
static int find_gid(void)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	for (int i = 0; i < 16; i++) {
		if (ibv_query_gid(context, 1, i, &own_gid) == 0 && memcmp(own_gid.raw, mapped, 12) == 0) {
			gid_index = i;
			return 0;
		}
	}
	return -1;
}

static int is_infiniband(const struct ibv_context *verbs)
{
	return verbs->device->transport_type == IBV_TRANSPORT_IB;
}

static int rights_of(const struct ibv_context *verbs)
{
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	return is_infiniband(verbs) ? rights | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND : rights;
}

static int make_memory(struct side *side, struct ibv_context *verbs)
{
	side->pd = ibv_alloc_pd(verbs);
	side->cq = ibv_create_cq(verbs, 512, NULL, NULL, 0);
	if (posix_memalign((void **)&side->memory, 4096, MEMORY))
		return -1;
	memset(side->memory, 0, MEMORY);
	if (!side->pd || !side->cq)
		return -1;
	side->mr = ibv_reg_mr(side->pd, side->memory, MEMORY, rights_of(verbs));
	return side->mr ? 0 : -1;
}

static struct ibv_qp_init_attr wanted(const struct side *side)
{
	return (struct ibv_qp_init_attr){
		.send_cq = side->cq, .recv_cq = side->cq,
		.cap = { .max_send_wr = 128, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = side->is_ud ? IBV_QPT_UD : IBV_QPT_RC, .sq_sig_all = 1,
	};
}

static int make(struct side *side)
{
	if (make_memory(side, context))
		return -1;
	struct ibv_qp_init_attr init = wanted(side);
	side->qp = ibv_create_qp(side->pd, &init);
	if (!side->qp)
		return -1;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	return ibv_modify_qp(side->qp, &attr, mask | (side->is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

static size_t octets_of(const char *text, unsigned char *octets)
{
	size_t length = 0;
	unsigned octet;
	while (length < PRIVATE && sscanf(text + 2 * length, "%2x", &octet) == 1)
		octets[length++] = octet;
	return length;
}

/* The private data: the address of the memory, its key, and the data of the command. */
static size_t card(const struct side *side, const char *text, unsigned char *octets)
{
	uint64_t at = (uintptr_t)side->memory;
	for (int i = 0; i < 8; i++)
		octets[i] = at >> (56 - 8 * i);
	for (int i = 0; i < 4; i++)
		octets[8 + i] = side->mr->rkey >> (24 - 8 * i);
	return 12 + octets_of(text, octets + 12);
}

static struct rdma_conn_param params(const void *data, size_t length)
{
	return (struct rdma_conn_param){ .private_data = data, .private_data_len = length, .responder_resources = 16,
		.initiator_depth = 16, .retry_count = RETRIES, .rnr_retry_count = 7 };
}

struct news {
	enum rdma_cm_event_type type;
	int status;
	struct rdma_cm_id *id;
	size_t length;
	unsigned char data[PRIVATE];
};

static int next_event(struct side *side, struct news *news)
{
	struct pollfd ready = { .fd = side->events->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	if (poll(&ready, 1, SECONDS * 1000) != 1 || rdma_get_cm_event(side->events, &event))
		return -1;
	const struct rdma_conn_param *told = &event->param.conn;
	*news = (struct news){ .type = event->event, .status = event->status, .id = event->id };
	if (told->private_data) {
		news->length = told->private_data_len;
		memcpy(news->data, told->private_data, news->length);
	}
	rdma_ack_cm_event(event);
	return 0;
}

static void print_data(const struct news *news, FILE *out)
{
	fputs(news->length ? " " : " -", out);
	for (size_t i = 0; i < news->length; i++)
		fprintf(out, "%02x", news->data[i]);
	fputc('\n', out);
}

static void print_event(const struct news *news, FILE *out)
{
	fprintf(out, "event %s %d", rdma_event_str(news->type), news->status);
	print_data(news, out);
}

static int ready_events(struct side *side)
{
	if (!side->events)
		side->events = rdma_create_event_channel();
	return side->events ? 0 : -1;
}

static int wait_for(struct side *side, struct news *news, enum rdma_cm_event_type type)
{
	if (next_event(side, news)) {
		fprintf(stderr, "peer: no %s within %d s\n", rdma_event_str(type), SECONDS);
		return -1;
	}
	if (news->type == type)
		return 0;
	fprintf(stderr, "peer: %s %d, not %s\n", rdma_event_str(news->type), news->status, rdma_event_str(type));
	return -1;
}

/* Makes a queue pair for a connection. */
static int make_for(struct side *side, struct rdma_cm_id *id)
{
	uint8_t timeout = TIMEOUT;
	side->id = id;
	if (!side->mr && make_memory(side, id->verbs))
		return -1;
	if (is_infiniband(id->verbs))
		rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
	struct ibv_qp_init_attr init = wanted(side);
	if (rdma_create_qp(id, side->pd, &init))
		return -1;
	side->qp = id->qp;
	return 0;
}

static int modify(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state to)
{
	struct ibv_qp_attr attr = { .qp_state = to };
	int mask;
	if (rdma_init_qp_attr(id, &attr, &mask))
		return -1;
	attr.retry_cnt = RETRIES;
	return ibv_modify_qp(qp, &attr, mask);
}

/* Makes the queue pair of an accept. The library would take the retries from the request, and 7 means endless retries to rxe. */
static int make_accepting(struct side *side, struct rdma_cm_id *id)
{
	uint8_t timeout = TIMEOUT;
	if (!is_infiniband(id->verbs))
		return make_for(side, id);
	if (!side->mr && make_memory(side, id->verbs))
		return -1;
	rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
	struct ibv_qp_init_attr init = wanted(side);
	side->qp = ibv_create_qp(side->pd, &init);
	return !side->qp || modify(id, side->qp, IBV_QPS_INIT) || modify(id, side->qp, IBV_QPS_RTR) ||
		modify(id, side->qp, IBV_QPS_RTS);
}

static int listen_at(struct side *side, unsigned port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = own_address };
	return ready_events(side) || rdma_create_id(side->events, &side->listener, NULL, RDMA_PS_TCP) ||
		rdma_bind_addr(side->listener, (struct sockaddr *)&at) || rdma_listen(side->listener, 4);
}

static int reach(struct side *side, const char *address, unsigned port, const char *text, FILE *out)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct news news;
	unsigned char data[PRIVATE];
	if (inet_pton(AF_INET, address, &to.sin_addr) != 1 || ready_events(side) ||
	    rdma_create_id(side->events, &side->id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(side->id, NULL, (struct sockaddr *)&to, 2000) ||
	    wait_for(side, &news, RDMA_CM_EVENT_ADDR_RESOLVED) || rdma_resolve_route(side->id, 2000) ||
	    wait_for(side, &news, RDMA_CM_EVENT_ROUTE_RESOLVED) || make_for(side, side->id))
		return -1;
	struct rdma_conn_param param = params(data, card(side, text, data));
	if (rdma_connect(side->id, &param)) {
		/* siw waits for the answer before it returns, and reports a refusal by errno. */
		fprintf(out, "event rdma_connect %d -\n", -errno);
		return 0;
	}
	if (next_event(side, &news))
		return -1;
	if (news.type != RDMA_CM_EVENT_ESTABLISHED) {
		print_event(&news, out);
		return 0;
	}
	fputs("established", out);
	print_data(&news, out);
	return 0;
}

/* Executes a command about connections; returns 0 if it was one and succeeded. */
static int connections(struct side *side, const char *verb, const char *line, FILE *out)
{
	struct news news;
	char address[64], text[2 * PRIVATE] = "-";
	unsigned char data[PRIVATE];
	unsigned port = 0;
	if (!strcmp(verb, "listen")) {
		if (sscanf(line, "%x", &port) != 1 || listen_at(side, port))
			return -1;
		fprintf(out, "ok\n");
		return 0;
	}
	if (!strcmp(verb, "await")) {
		if (!side->listener || wait_for(side, &news, RDMA_CM_EVENT_CONNECT_REQUEST))
			return -1;
		side->id = news.id;
		fputs("request", out);
		print_data(&news, out);
		return 0;
	}
	if (!strcmp(verb, "reach")) {
		if (sscanf(line, "%63s %x %511s", address, &port, text) < 2)
			return -1;
		return reach(side, address, port, text, out);
	}
	if (!strcmp(verb, "event")) {
		if (!side->events || next_event(side, &news))
			fprintf(out, "none\n");
		else
			print_event(&news, out);
		return 0;
	}
	if (!side->id)
		return -1;
	sscanf(line, "%511s", text);
	if (!strcmp(verb, "accept")) {
		if (make_accepting(side, side->id))
			return -1;
		struct rdma_conn_param param = params(data, card(side, text, data));
		param.qp_num = side->qp->qp_num;
		if (rdma_accept(side->id, &param)) {
			perror("peer: rdma_accept");
			return -1;
		}
		if (wait_for(side, &news, RDMA_CM_EVENT_ESTABLISHED))
			return -1;
	} else if (!strcmp(verb, "reject")) {
		if (rdma_reject(side->id, data, octets_of(text, data)))
			return -1;
	} else if (rdma_disconnect(side->id)) {
		return -1;
	} else if (!side->id->qp) {
		/* The library flushes queue pairs that it made; this one it did not. */
		struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
		if (ibv_modify_qp(side->qp, &err, IBV_QP_STATE))
			return -1;
	}
	fprintf(out, "ok\n");
	return 0;
}

static void unmake(struct side *side)
{
	if (side->window)
		ibv_dealloc_mw(side->window);
	if (side->id && side->id->qp)
		rdma_destroy_qp(side->id);
	else if (side->qp)
		ibv_destroy_qp(side->qp);
	if (side->second)
		ibv_dereg_mr(side->second);
	if (side->mr)
		ibv_dereg_mr(side->mr);
	if (side->cq)
		ibv_destroy_cq(side->cq);
	if (side->pd)
		ibv_dealloc_pd(side->pd);
	if (side->id)
		rdma_destroy_id(side->id);
	if (side->listener)
		rdma_destroy_id(side->listener);
	if (side->events)
		rdma_destroy_event_channel(side->events);
	free(side->memory);
	memset(side, 0, sizeof *side);
}

static struct ibv_ah_attr route(const union ibv_gid *to)
{
	return (struct ibv_ah_attr){ .is_global = 1, .port_num = 1,
		.grh = { .dgid = *to, .sgid_index = gid_index, .hop_limit = 64 } };
}

static int join(struct side *side, unsigned qpn, unsigned psn, const union ibv_gid *to)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = side->mtu, .dest_qp_num = qpn, .rq_psn = psn,
		.max_dest_rd_atomic = 16, .min_rnr_timer = 12, .ah_attr = route(to) };
	int mask = IBV_QP_STATE;
	if (!side->is_ud)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			IBV_QP_MIN_RNR_TIMER;
	if (ibv_modify_qp(side->qp, &attr, mask))
		return -1;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = PSN, .timeout = TIMEOUT, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 16 };
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (!side->is_ud)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(side->qp, &attr, mask);
}

static int inside(uint64_t at, uint64_t length)
{
	return at <= MEMORY && length <= MEMORY - at;
}

static int post(struct side *side, struct ibv_send_wr *wr, uint64_t at, uint64_t length)
{
	struct ibv_sge sge = { (uintptr_t)side->memory + at, length, side->mr->lkey };
	struct ibv_send_wr *bad;
	wr->sg_list = &sge;
	wr->num_sge = length > 0;
	return inside(at, length) ? ibv_post_send(side->qp, wr, &bad) : -1;
}

static void poll_one(struct side *side, FILE *out)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + SECONDS;
	while (time(NULL) < end) {
		if (ibv_poll_cq(side->cq, 1, &wc) > 0) {
			unsigned data = wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) :
				wc.wc_flags & IBV_WC_WITH_INV ? wc.invalidated_rkey : 0;
			fprintf(out, "wc %x %x %x %x %x\n", wc.status, wc.opcode, wc.byte_len, data, wc.wc_flags);
			return;
		}
		/* There may be few processors, and the device needs one as well. */
		sched_yield();
	}
	fprintf(out, "none\n");
}

/* Makes a key that a message may invalidate: of a window if the device has any, else of a region of its own. */
static int make_key(struct side *side, uint64_t at, uint64_t length, FILE *out)
{
	struct ibv_wc wc;
	if (!inside(at, length) || side->window || side->second)
		return -1;
	if (!is_infiniband(side->pd->context)) {
		side->second = ibv_reg_mr(side->pd, side->memory + at, length, rights_of(side->pd->context));
		if (!side->second)
			return -1;
		fprintf(out, "key %x\n", side->second->rkey);
		return 0;
	}
	side->window = ibv_alloc_mw(side->pd, IBV_MW_TYPE_2);
	if (!side->window)
		return -1;
	struct ibv_send_wr bind = { .opcode = IBV_WR_BIND_MW, .bind_mw = { .mw = side->window,
		.rkey = ibv_inc_rkey(side->window->rkey), .bind_info = { .mr = side->mr,
			.addr = (uintptr_t)side->memory + at, .length = length, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } } };
	struct ibv_send_wr *bad;
	if (ibv_post_send(side->qp, &bind, &bad))
		return -1;
	while (ibv_poll_cq(side->cq, 1, &wc) == 0)
		sched_yield();
	if (wc.status)
		return -1;
	side->window->rkey = bind.bind_mw.rkey;
	fprintf(out, "key %x\n", side->window->rkey);
	return 0;
}

static int obey(struct side *side, char *line, FILE *out)
{
	char verb[16], text[64] = "";
	uint64_t a = 0, b = 0, c = 0, d = 0, e = 0;
	union ibv_gid gid;
	struct ibv_send_wr wr = { 0 };
	int used = 0;
	if (sscanf(line, "%15s%n", verb, &used) != 1)
		return -1;
	line += used;
	if (!strcmp(verb, "rc") || !strcmp(verb, "ud")) {
		side->is_ud = verb[0] == 'u';
		sscanf(line, "%" SCNx64, &a);
		side->mtu = a;
		if (side->qp || make(side))
			return -1;
		gid_text(&own_gid, text);
		fprintf(out, "qp %x %x %s %" PRIxPTR " %x\n", side->qp->qp_num, PSN, text, (uintptr_t)side->memory,
			side->mr->rkey);
		return 0;
	}
	static const char *const of_connections[] = { "listen", "await", "accept", "reject", "reach", "event", "disconnect" };
	for (size_t i = 0; i < sizeof of_connections / sizeof *of_connections; i++)
		if (!strcmp(verb, of_connections[i]))
			return connections(side, verb, line, out);
	if (!strcmp(verb, "die"))
		kill(getpid(), SIGKILL);
	if (!side->qp)
		return -1;
	if (!strcmp(verb, "connect")) {
		if (sscanf(line, "%" SCNx64 " %" SCNx64 " %63s", &a, &b, text) != 3 || strlen(text) != 32 || gid_of(text, &gid))
			return -1;
		if (join(side, a, b, &gid))
			return -1;
	} else if (!strcmp(verb, "poll")) {
		poll_one(side, out);
		return 0;
	} else if (!strcmp(verb, "datagram")) {
		if (sscanf(line, "%" SCNx64 " %" SCNx64 " %" SCNx64 " %63s %" SCNx64, &a, &b, &c, text, &d) != 5 ||
		    strlen(text) != 32 || gid_of(text, &gid))
			return -1;
		struct ibv_ah_attr to = route(&gid);
		struct ibv_ah *ah = ibv_create_ah(side->pd, &to);
		wr.opcode = IBV_WR_SEND;
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = c;
		wr.wr.ud.remote_qkey = d;
		int failed = !ah || post(side, &wr, a, b);
		/* The address handle is destroyed after the datagram was sent. */
		poll_one(side, out);
		if (ah)
			ibv_destroy_ah(ah);
		return failed ? -1 : 0;
	} else {
		sscanf(line, "%" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64, &a, &b, &c, &d, &e);
		if (!strcmp(verb, "key"))
			return make_key(side, a, b, out);
		if (!strcmp(verb, "fill") && inside(a, b)) {
			for (uint64_t i = 0; i < b; i++)
				side->memory[a + i] = pattern(i, c);
		} else if (!strcmp(verb, "check") && inside(a, b)) {
			for (uint64_t i = 0; i < b; i++) {
				if (side->memory[a + i] != pattern(i, c)) {
					fprintf(out, "differs at %" PRIx64 "\n", i);
					return 0;
				}
			}
		} else if (!strcmp(verb, "put") && inside(a, 8)) {
			memcpy(side->memory + a, &b, 8);
		} else if (!strcmp(verb, "get") && inside(a, 8)) {
			memcpy(&b, side->memory + a, 8);
			fprintf(out, "number %" PRIx64 "\n", b);
			return 0;
		} else if (!strcmp(verb, "recv") && inside(a, b)) {
			struct ibv_sge sge = { (uintptr_t)side->memory + a, b, side->mr->lkey };
			struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;
			if (ibv_post_recv(side->qp, &recv, &bad))
				return -1;
		} else {
			static const struct { const char *verb; int opcode; } requests[] = {
				{ "send", IBV_WR_SEND }, { "sendimm", IBV_WR_SEND_WITH_IMM }, { "sendinv", IBV_WR_SEND_WITH_INV },
				{ "write", IBV_WR_RDMA_WRITE }, { "writeimm", IBV_WR_RDMA_WRITE_WITH_IMM },
				{ "read", IBV_WR_RDMA_READ }, { "cas", IBV_WR_ATOMIC_CMP_AND_SWP },
				{ "fadd", IBV_WR_ATOMIC_FETCH_AND_ADD },
			};
			size_t i = 0, count = sizeof requests / sizeof *requests;
			while (i < count && strcmp(verb, requests[i].verb))
				i++;
			if (i == count)
				return -1;
			wr.opcode = requests[i].opcode;
			if (i == 1)
				wr.imm_data = htonl(c);
			else if (i == 2)
				/* The library of siw reads the key where other requests have theirs. */
				wr.invalidate_rkey = wr.wr.rdma.rkey = c;
			else if (i < 6) {
				wr.wr.rdma.remote_addr = c;
				wr.wr.rdma.rkey = d;
				wr.imm_data = htonl(e);
			} else {
				wr.wr.atomic.remote_addr = b;
				wr.wr.atomic.rkey = c;
				wr.wr.atomic.compare_add = d;
				wr.wr.atomic.swap = e;
				b = 8;
			}
			if (post(side, &wr, a, b))
				return -1;
		}
	}
	fprintf(out, "ok\n");
	return 0;
}

static int open_device(void)
{
	int count;
	struct ibv_device **devices = ibv_get_device_list(&count);
	for (int i = 0; devices && i < count; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), device_name))
			context = ibv_open_device(devices[i]);
	return !context || (is_infiniband(context) && find_gid());
}

static void serve(int connection)
{
	struct side side = { 0 };
	char line[1024];
	int on = 1;
	setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	FILE *in = fdopen(connection, "r"), *out = fdopen(dup(connection), "w");
	while (fgets(line, sizeof line, in)) {
		if (obey(&side, line, out))
			fprintf(out, "error %s", line);
		fflush(out);
	}
	unmake(&side);
	fclose(in);
	fclose(out);
}

int main(int argc, char **argv)
{
	int on = 1;
	if (argc != 4 || inet_pton(AF_INET, argv[2], &own_address) != 1) {
		fprintf(stderr, "usage: peer DEVICE ADDRESS PORT\n");
		return 2;
	}
	device_name = argv[1];
	signal(SIGCHLD, SIG_IGN);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[3])), .sin_addr = own_address };
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4)) {
		perror("peer");
		return 1;
	}
	for (;;) {
		int connection = accept(listener, NULL, NULL);
		if (connection < 0)
			continue;
		if (fork() == 0) {
			close(listener);
			if (open_device()) {
				fprintf(stderr, "peer: no device %s, or none with an address of IPv4\n", device_name);
				return 1;
			}
			serve(connection);
			return 0;
		}
		close(connection);
	}
}
