// The functions of the libraries that these programs call, and a check that ends a program.

#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

void **ibv_get_device_list(int *count);
void ibv_free_device_list(void **list);
void *ibv_open_device(void *device);
int ibv_close_device(void *context);
void *ibv_alloc_pd(void *context);
int ibv_dealloc_pd(void *pd);
void *ibv_reg_mr(void *pd, void *addr, size_t length, int access);
int ibv_dereg_mr(void *mr);
void *ibv_create_comp_channel(void *context);
int ibv_destroy_comp_channel(void *channel);
int ibv_get_cq_event(void *channel, void **cq, void **cq_context);
int ibv_get_async_event(void *context, void *event);
void *ibv_create_cq(void *context, int entries, void *cq_context, void *channel, int vector);
int ibv_destroy_cq(void *cq);
void *ibv_create_srq(void *pd, void *attributes);
int ibv_destroy_srq(void *srq);
void *ibv_create_ah(void *pd, void *attributes);
int ibv_destroy_ah(void *ah);
int ibv_destroy_qp(void *qp);
void ibv_ack_cq_events(void *cq, unsigned count);
void ibv_ack_async_event(void *event);
void ibv_free_buf(void *buf);
void ibv_unimport_mr(void *mr);
void ibv_unimport_dm(void *dm);
void ibv_unimport_pd(void *pd);
void *rdma_create_event_channel(void);
void rdma_destroy_event_channel(void *channel);
int rdma_get_cm_event(void *channel, void **event);
int rdma_create_id(void *channel, void **id, void *context, int port_space);
int rdma_bind_addr(void *id, struct sockaddr *address);
int rdma_listen(void *id, int backlog);
int rdma_get_request(void *listen, void **id);
int rdma_destroy_id(void *id);
int rdma_ack_cm_event(void *event);
int rdma_resolve_addr(void *id, struct sockaddr *source, struct sockaddr *destination, int milliseconds);
int rdma_resolve_route(void *id, int milliseconds);
int rdma_create_qp_ex(void *id, void *attributes);
void rdma_destroy_qp(void *id);
void rdma_destroy_srq(void *id);
int rdma_connect(void *id, void *parameters);
int rdma_accept(void *id, void *parameters);
void rdma_freeaddrinfo(void *info);
void *rdma_get_devices(int *count);
void rdma_free_devices(void *list);
uint16_t rdma_get_src_port(void *id);
int rsocket(int domain, int type, int protocol);
int rbind(int socket, const struct sockaddr *address, socklen_t length);
int rlisten(int socket, int backlog);
int raccept(int socket, struct sockaddr *address, socklen_t *length);
int rpoll(struct pollfd *files, nfds_t count, int timeout);
int rconnect(int socket, const struct sockaddr *address, socklen_t length);
int rgetsockname(int socket, struct sockaddr *address, socklen_t *length);
ssize_t rsend(int socket, const void *source, size_t length, int flags);
ssize_t rrecv(int socket, void *sink, size_t length, int flags);
int rsetsockopt(int socket, int level, int name, const void *value, socklen_t length);
off_t riomap(int socket, void *memory, size_t length, int protection, int flags, off_t offset);
int riounmap(int socket, void *memory, size_t length);
size_t riowrite(int socket, const void *source, size_t length, off_t offset, int flags);
int rclose(int socket);

enum { LOCAL_WRITE = 1, RDMA_PS_TCP = 0x0106, RDMA_PS_UDP = 0x0111, SOL_RDMA = 0x10000, RDMA_IOMAPSIZE = 3 };

#define MUST(condition)                                                                    \
	do {                                                                               \
		if (!(condition)) {                                                        \
			fprintf(stderr, "not so in line %d: %s\n", __LINE__, #condition);  \
			_exit(1);                                                          \
		}                                                                          \
	} while (0)
