/* Posts a receive and a signaled send of 64 octets, polls both completions, and prints the nanoseconds that one such turn
 * takes: what benches/src/bin/sends.rs does without the C library. Usage: sends TURNS SAMPLES */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OCTETS = 64, DEPTH = 16 };

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[2 * 4096] __attribute__((aligned(4096)));

#define CHECK(that) \
	do { if (!(that)) { perror(#that); exit(1); } } while (0)

static struct ibv_qp *create(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void attach(struct ibv_qp *qp, uint32_t peer, const union ibv_gid *gid)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
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

int main(int argc, char **argv)
{
	long turns = argc > 1 ? atol(argv[1]) : 100000, samples = argc > 2 ? atol(argv[2]) : 1;
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_qp *near = create(), *far = create();
	attach(near, far->qp_num, &gid);
	attach(far, near->qp_num, &gid);

	for (long sample = 0; sample < samples; sample++) {
		double began = now();
		for (long turn = 0; turn < turns; turn++) {
			struct ibv_sge room = { (uintptr_t)memory + 4096, OCTETS, mr->lkey };
			struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &room, .num_sge = 1 }, *bad_receive;
			CHECK(!ibv_post_recv(far, &receive, &bad_receive));
			struct ibv_sge data = { (uintptr_t)memory, OCTETS, mr->lkey };
			struct ibv_send_wr send = {
				.sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
			}, *bad_send;
			CHECK(!ibv_post_send(near, &send, &bad_send));
			for (int polled = 0; polled < 2;) {
				struct ibv_wc done[2];
				int count = ibv_poll_cq(cq, 2, done);
				CHECK(count >= 0);
				for (int i = 0; i < count; i++)
					CHECK(done[i].status == IBV_WC_SUCCESS);
				polled += count;
			}
		}
		printf("%.1f\n", (now() - began) / turns);
	}
	return 0;
}
