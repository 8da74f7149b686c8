/* A queue pair of a device that the kernel knows, told over TCP what to do: the other side of `peers`.
 *
 * usage: peer DEVICE PORT
 *
 * One connection, one queue pair. Each line is a command and has one line as its answer:
 *
 *   rc MTU | ud                  makes a queue pair         qp QPN PSN GID ADDRESS RKEY
 *   connect QPN PSN GID          to that one                ok
 *   fill AT LENGTH SEED          a pattern into its memory  ok
 *   check AT LENGTH SEED         is it there?               ok | differs at OFFSET
 *   put AT NUMBER, get AT        eight octets               ok | number NUMBER
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
 *   poll                         waits for a completion     wc STATUS OPCODE LENGTH IMM | none
 *
 * Numbers are hexadecimal. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MEMORY (4u << 20)
#define QKEY 0x11111111u
#define PSN 0xfffff0u
#define SECONDS 20

static struct ibv_context *context;
static int gid_index;
static union ibv_gid own_gid;

struct side {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *memory;
	int mtu, is_ud;
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

static int make(struct side *side)
{
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	side->pd = ibv_alloc_pd(context);
	side->cq = ibv_create_cq(context, 512, NULL, NULL, 0);
	if (posix_memalign((void **)&side->memory, 4096, MEMORY))
		return -1;
	memset(side->memory, 0, MEMORY);
	if (!side->pd || !side->cq)
		return -1;
	side->mr = ibv_reg_mr(side->pd, side->memory, MEMORY, rights);
	struct ibv_qp_init_attr init = {
		.send_cq = side->cq, .recv_cq = side->cq,
		.cap = { .max_send_wr = 128, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = side->is_ud ? IBV_QPT_UD : IBV_QPT_RC, .sq_sig_all = 1,
	};
	side->qp = ibv_create_qp(side->pd, &init);
	if (!side->mr || !side->qp)
		return -1;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .qp_access_flags = rights };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	return ibv_modify_qp(side->qp, &attr, mask | (side->is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

static void unmake(struct side *side)
{
	if (side->qp)
		ibv_destroy_qp(side->qp);
	if (side->mr)
		ibv_dereg_mr(side->mr);
	if (side->cq)
		ibv_destroy_cq(side->cq);
	if (side->pd)
		ibv_dealloc_pd(side->pd);
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
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = PSN, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7,
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
			unsigned imm = wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : 0;
			fprintf(out, "wc %x %x %x %x\n", wc.status, wc.opcode, wc.byte_len, imm);
			return;
		}
		/* Few processors, and the device needs one as well. */
		sched_yield();
	}
	fprintf(out, "none\n");
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
		/* It is given back when the datagram has left. */
		poll_one(side, out);
		if (ah)
			ibv_destroy_ah(ah);
		return failed ? -1 : 0;
	} else {
		sscanf(line, "%" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64, &a, &b, &c, &d, &e);
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
				wr.invalidate_rkey = c;
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

static void serve(int connection)
{
	struct side side = { 0 };
	char line[256];
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
	int count, on = 1;
	struct ibv_device **devices = ibv_get_device_list(&count);
	for (int i = 0; argc == 3 && devices && i < count; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), argv[1]))
			context = ibv_open_device(devices[i]);
	if (!context || find_gid()) {
		fprintf(stderr, "usage: peer DEVICE PORT; a device of RoCEv2 with an address of IPv4\n");
		return 2;
	}
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) };
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4)) {
		perror("peer");
		return 1;
	}
	for (;;) {
		int connection = accept(listener, NULL, NULL);
		if (connection >= 0)
			serve(connection);
	}
}
