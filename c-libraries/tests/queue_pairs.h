// Queue pairs of the C interface, as these programs create, connect and query them.

#include <stdint.h>

struct cap {
	uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_data;
};
struct qp_init {
	void *qp_context, *send_cq, *recv_cq, *srq;
	struct cap cap;
	int type, all_signaled;
};
struct qp {
	void *context, *qp_context, *pd, *send_cq, *recv_cq, *srq;
	uint32_t handle, qp_num;
};
struct path {
	uint8_t dgid[16];
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
	uint16_t dlid;
	uint8_t sl, source_bits, rate, is_global, port;
};
struct attr {
	int state, now, mtu, migration;
	uint32_t qkey, rq_psn, sq_psn, peer, access;
	struct cap cap;
	struct path path, other;
	uint16_t pkey, other_pkey;
	uint8_t notify, draining, rd_atomic, dest_rd_atomic, min_rnr_timer, port, timeout, retry, rnr_retry;
	uint8_t other_port, other_timeout;
	uint32_t rate;
};
struct srq_init {
	void *srq_context;
	uint32_t wr, sge, limit;
};

struct qp *ibv_create_qp(void *pd, struct qp_init *init);
int ibv_modify_qp(struct qp *qp, struct attr *attr, int mask);
int ibv_query_qp(struct qp *qp, struct attr *attr, int mask, struct qp_init *init);
int ibv_query_gid(void *context, uint8_t port, int index, void *gid);
