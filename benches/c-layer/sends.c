/* Prints the nanoseconds that a turn takes, of 64 bytes: the counterpart of benches/src/bin/bench/sends.rs through the C library.
 *
 *     turn   a receive and a signaled send, posted, and both polled
 *     send   a signaled send, posted and polled; its receive is posted before and polled after the timed part
 *     write  a signaled write, posted and polled
 *     verb   a region registered and deregistered; the time is per verb
 *
 * Usage: sends turn|send|write|verb TURNS */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OCTETS = 64, DEPTH = 64 };

static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *sent, *received;
static struct ibv_qp *near, *far;
static char memory[2 * 4096] __attribute__((aligned(4096)));

#define CHECK(that) \
	do { if (!(that)) { perror(#that); exit(1); } } while (0)

static struct ibv_qp *create(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = sent,
		.recv_cq = received,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void attach(struct ibv_qp *qp, uint32_t peer, const union ibv_gid *gid)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_4096;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = *gid;
	attr.ah_attr.grh.hop_limit = 1;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static double now(void)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1e9 + at.tv_nsec;
}

/* The requests are built once, as in programs that count nanoseconds: a compiler may clear such a structure with code that takes
 * longer than the whole call. */
static struct ibv_sge data, room;
static struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &room, .num_sge = 1 };
static struct ibv_send_wr request = { .sg_list = &data, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };

static void prepare(void)
{
	data = (struct ibv_sge){ (uintptr_t)memory, OCTETS, mr->lkey };
	room = (struct ibv_sge){ (uintptr_t)memory + 4096, OCTETS, mr->lkey };
	request.wr.rdma.remote_addr = room.addr;
	request.wr.rdma.rkey = mr->rkey;
}

static void post_receive(void)
{
	struct ibv_recv_wr *bad;
	CHECK(!ibv_post_recv(far, &receive, &bad));
}

static void post(enum ibv_wr_opcode opcode)
{
	struct ibv_send_wr *bad;
	request.opcode = opcode;
	CHECK(!ibv_post_send(near, &request, &bad));
}

static void poll(struct ibv_cq *cq, int wanted)
{
	struct ibv_wc done[2];
	while (wanted > 0) {
		int count = ibv_poll_cq(cq, 2, done);
		CHECK(count >= 0);
		for (int i = 0; i < count; i++)
			CHECK(done[i].status == IBV_WC_SUCCESS);
		wanted -= count;
	}
}

static double turns_of(long turns)
{
	double began = now();
	for (long turn = 0; turn < turns; turn++) {
		post_receive();
		post(IBV_WR_SEND);
		poll(sent, 2);
	}
	return now() - began;
}

static double sends_of(long turns)
{
	double took = 0;
	for (long turn = 0; turn < turns; turn += DEPTH) {
		for (int i = 0; i < DEPTH; i++)
			post_receive();
		double began = now();
		for (int i = 0; i < DEPTH; i++) {
			post(IBV_WR_SEND);
			poll(sent, 1);
		}
		took += now() - began;
		poll(received, DEPTH);
	}
	return took;
}

static double writes_of(long turns)
{
	double began = now();
	for (long turn = 0; turn < turns; turn++) {
		post(IBV_WR_RDMA_WRITE);
		poll(sent, 1);
	}
	return now() - began;
}

static double verbs_of(long turns)
{
	double began = now();
	for (long turn = 0; turn < turns; turn++) {
		struct ibv_mr *region = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
		CHECK(region);
		CHECK(!ibv_dereg_mr(region));
	}
	return (now() - began) / 2;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	double (*measure)(long) = !strcmp(what, "turn") ? turns_of : !strcmp(what, "send") ? sends_of :
		!strcmp(what, "write") ? writes_of : !strcmp(what, "verb") ? verbs_of : NULL;
	long turns = argc > 2 ? atol(argv[2]) / DEPTH * DEPTH : 0;
	if (!measure || turns <= 0) {
		fprintf(stderr, "usage: sends turn|send|write|verb TURNS (at least %d)\n", DEPTH);
		return 2;
	}
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(sent = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0));
	/* A turn polls the send and the receive from one queue. */
	CHECK(received = measure == turns_of ? sent : ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0));
	CHECK(mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	prepare();
	near = create(), far = create();
	attach(near, far->qp_num, &gid);
	attach(far, near->qp_num, &gid);

	measure(DEPTH); /* Rings are made when they are first used. */
	printf("%.1f\n", measure(turns) / turns);
	return 0;
}
