"""What is used of libibverbs and librdmacm: public names only. The data-path calls are inline functions of the headers."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "<infiniband/verbs.h>" nogil:
    enum:
        IBV_SEND_SIGNALED
        IBV_ACCESS_LOCAL_WRITE
        IBV_ACCESS_REMOTE_WRITE
        IBV_ACCESS_REMOTE_READ
        IBV_DEVICE_MEM_MGT_EXTENSIONS
        IBV_TRANSPORT_IWARP
        IBV_QP_STATE
        IBV_WC_WITH_INV

    enum ibv_wr_opcode:
        IBV_WR_RDMA_WRITE
        IBV_WR_SEND
        IBV_WR_RDMA_READ
        IBV_WR_SEND_WITH_INV

    enum ibv_wc_status:
        IBV_WC_SUCCESS
        IBV_WC_WR_FLUSH_ERR
        IBV_WC_REM_INV_REQ_ERR
        IBV_WC_REM_ACCESS_ERR
        IBV_WC_REM_OP_ERR

    enum ibv_qp_type:
        IBV_QPT_RC

    enum ibv_qp_state:
        IBV_QPS_ERR

    enum ibv_event_type:
        IBV_EVENT_CQ_ERR
        IBV_EVENT_QP_FATAL
        IBV_EVENT_QP_REQ_ERR
        IBV_EVENT_QP_ACCESS_ERR
        IBV_EVENT_COMM_EST
        IBV_EVENT_SQ_DRAINED
        IBV_EVENT_PATH_MIG
        IBV_EVENT_PATH_MIG_ERR
        IBV_EVENT_DEVICE_FATAL
        IBV_EVENT_PORT_ACTIVE
        IBV_EVENT_PORT_ERR
        IBV_EVENT_LID_CHANGE
        IBV_EVENT_PKEY_CHANGE
        IBV_EVENT_SM_CHANGE
        IBV_EVENT_SRQ_ERR
        IBV_EVENT_SRQ_LIMIT_REACHED
        IBV_EVENT_QP_LAST_WQE_REACHED
        IBV_EVENT_CLIENT_REREGISTER
        IBV_EVENT_GID_CHANGE

    struct ibv_device:
        int transport_type

    struct ibv_context:
        ibv_device *device
        int cmd_fd
        int async_fd

    struct ibv_pd:
        ibv_context *context

    struct ibv_mr:
        uint32_t lkey
        uint32_t rkey

    struct ibv_comp_channel:
        int fd

    struct ibv_cq:
        int cqe

    struct ibv_srq:
        ibv_context *context

    struct ibv_qp:
        uint32_t qp_num

    struct ibv_device_attr:
        uint32_t vendor_id
        int max_qp
        int max_qp_wr
        unsigned int device_cap_flags
        int max_sge
        int max_sge_rd
        int max_cq
        int max_cqe
        int max_mr
        int max_qp_rd_atom
        int max_qp_init_rd_atom
        int max_srq
        int max_srq_wr
        int max_srq_sge

    struct ibv_qp_cap:
        uint32_t max_send_wr
        uint32_t max_recv_wr
        uint32_t max_send_sge
        uint32_t max_recv_sge
        uint32_t max_inline_data

    struct ibv_qp_init_attr:
        void *qp_context
        ibv_cq *send_cq
        ibv_cq *recv_cq
        ibv_srq *srq
        ibv_qp_cap cap
        ibv_qp_type qp_type
        int sq_sig_all

    struct ibv_qp_attr:
        ibv_qp_state qp_state

    struct ibv_srq_attr:
        uint32_t max_wr
        uint32_t max_sge
        uint32_t srq_limit

    struct ibv_srq_init_attr:
        void *srq_context
        ibv_srq_attr attr

    struct ibv_sge:
        uint64_t addr
        uint32_t length
        uint32_t lkey

    struct _rdma_part "ibv_send_wr.wr.rdma":
        uint64_t remote_addr
        uint32_t rkey

    union _wr_part "ibv_send_wr.wr":
        _rdma_part rdma

    struct ibv_send_wr:
        uint64_t wr_id
        ibv_send_wr *next
        ibv_sge *sg_list
        int num_sge
        ibv_wr_opcode opcode
        unsigned int send_flags
        uint32_t invalidate_rkey
        _wr_part wr

    struct ibv_recv_wr:
        uint64_t wr_id
        ibv_recv_wr *next
        ibv_sge *sg_list
        int num_sge

    struct ibv_wc:
        uint64_t wr_id
        ibv_wc_status status
        uint32_t vendor_err
        uint32_t byte_len
        uint32_t invalidated_rkey
        uint32_t qp_num
        unsigned int wc_flags

    union _event_element "ibv_async_event.element":
        ibv_cq *cq
        ibv_qp *qp
        ibv_srq *srq
        int port_num

    struct ibv_async_event:
        _event_element element
        ibv_event_type event_type

    const char *ibv_get_device_name(ibv_device *device)
    ibv_device **ibv_get_device_list(int *count)
    void ibv_free_device_list(ibv_device **devices)
    int ibv_query_device(ibv_context *context, ibv_device_attr *attributes)
    ibv_pd *ibv_alloc_pd(ibv_context *context)
    int ibv_dealloc_pd(ibv_pd *pd)
    ibv_mr *ibv_reg_mr(ibv_pd *pd, void *address, size_t length, int access)
    ibv_mr *ibv_reg_mr_iova(ibv_pd *pd, void *address, size_t length, uint64_t iova, int access)
    int ibv_dereg_mr(ibv_mr *mr)
    ibv_comp_channel *ibv_create_comp_channel(ibv_context *context)
    int ibv_destroy_comp_channel(ibv_comp_channel *channel)
    ibv_cq *ibv_create_cq(ibv_context *context, int cqe, void *cq_context, ibv_comp_channel *channel, int vector)
    int ibv_destroy_cq(ibv_cq *cq)
    int ibv_get_cq_event(ibv_comp_channel *channel, ibv_cq **cq, void **cq_context)
    void ibv_ack_cq_events(ibv_cq *cq, unsigned int count)
    int ibv_poll_cq(ibv_cq *cq, int count, ibv_wc *completions)
    int ibv_req_notify_cq(ibv_cq *cq, int solicited_only)
    int ibv_post_send(ibv_qp *qp, ibv_send_wr *first, ibv_send_wr **bad)
    int ibv_post_recv(ibv_qp *qp, ibv_recv_wr *first, ibv_recv_wr **bad)
    ibv_srq *ibv_create_srq(ibv_pd *pd, ibv_srq_init_attr *attributes)
    int ibv_destroy_srq(ibv_srq *srq)
    int ibv_post_srq_recv(ibv_srq *srq, ibv_recv_wr *first, ibv_recv_wr **bad)
    int ibv_modify_qp(ibv_qp *qp, ibv_qp_attr *attributes, int mask)
    int ibv_get_async_event(ibv_context *context, ibv_async_event *event)
    void ibv_ack_async_event(ibv_async_event *event)
    const char *ibv_event_type_str(ibv_event_type event)
    const char *ibv_wc_status_str(ibv_wc_status status)


cdef extern from "<netinet/in.h>" nogil:
    enum:
        AF_INET
        AF_INET6

    ctypedef unsigned short sa_family_t

    struct in_addr:
        uint32_t s_addr

    struct in6_addr:
        uint8_t s6_addr[16]

    struct sockaddr:
        sa_family_t sa_family

    struct sockaddr_in:
        sa_family_t sin_family
        uint16_t sin_port
        in_addr sin_addr

    struct sockaddr_in6:
        sa_family_t sin6_family
        uint16_t sin6_port
        in6_addr sin6_addr
        uint32_t sin6_scope_id

    uint16_t htons(uint16_t value)
    uint16_t ntohs(uint16_t value)


cdef extern from "<rdma/rdma_cma.h>" nogil:
    enum rdma_cm_event_type:
        RDMA_CM_EVENT_ADDR_RESOLVED
        RDMA_CM_EVENT_ADDR_ERROR
        RDMA_CM_EVENT_ROUTE_RESOLVED
        RDMA_CM_EVENT_ROUTE_ERROR
        RDMA_CM_EVENT_CONNECT_REQUEST
        RDMA_CM_EVENT_CONNECT_RESPONSE
        RDMA_CM_EVENT_CONNECT_ERROR
        RDMA_CM_EVENT_UNREACHABLE
        RDMA_CM_EVENT_REJECTED
        RDMA_CM_EVENT_ESTABLISHED
        RDMA_CM_EVENT_DISCONNECTED
        RDMA_CM_EVENT_DEVICE_REMOVAL
        RDMA_CM_EVENT_ADDR_CHANGE
        RDMA_CM_EVENT_TIMEWAIT_EXIT

    enum rdma_port_space:
        RDMA_PS_TCP

    enum:
        RDMA_OPTION_ID
        RDMA_OPTION_ID_TOS
        RDMA_OPTION_ID_REUSEADDR
        RDMA_OPTION_ID_AFONLY

    struct rdma_event_channel:
        int fd

    struct rdma_cm_id:
        ibv_context *verbs
        rdma_event_channel *channel
        ibv_qp *qp
        uint8_t port_num

    struct rdma_conn_param:
        const void *private_data
        uint8_t private_data_len
        uint8_t responder_resources
        uint8_t initiator_depth
        uint8_t flow_control
        uint8_t retry_count
        uint8_t rnr_retry_count

    union _event_param "rdma_cm_event.param":
        rdma_conn_param conn

    struct rdma_cm_event:
        rdma_cm_id *id
        rdma_cm_id *listen_id
        rdma_cm_event_type event
        int status
        _event_param param

    rdma_event_channel *rdma_create_event_channel()
    void rdma_destroy_event_channel(rdma_event_channel *channel)
    int rdma_create_id(rdma_event_channel *channel, rdma_cm_id **id, void *context, rdma_port_space space)
    int rdma_destroy_id(rdma_cm_id *id)
    int rdma_bind_addr(rdma_cm_id *id, sockaddr *address)
    int rdma_resolve_addr(rdma_cm_id *id, sockaddr *source, sockaddr *destination, int timeout)
    int rdma_resolve_route(rdma_cm_id *id, int timeout)
    int rdma_create_qp(rdma_cm_id *id, ibv_pd *pd, ibv_qp_init_attr *attributes)
    void rdma_destroy_qp(rdma_cm_id *id)
    int rdma_connect(rdma_cm_id *id, rdma_conn_param *parameters)
    int rdma_listen(rdma_cm_id *id, int backlog)
    int rdma_accept(rdma_cm_id *id, rdma_conn_param *parameters)
    int rdma_reject(rdma_cm_id *id, const void *private_data, uint8_t length)
    int rdma_disconnect(rdma_cm_id *id)
    int rdma_get_cm_event(rdma_event_channel *channel, rdma_cm_event **event)
    int rdma_ack_cm_event(rdma_cm_event *event)
    uint16_t rdma_get_src_port(rdma_cm_id *id)
    uint16_t rdma_get_dst_port(rdma_cm_id *id)
    sockaddr *rdma_get_local_addr(rdma_cm_id *id)
    sockaddr *rdma_get_peer_addr(rdma_cm_id *id)
    int rdma_set_option(rdma_cm_id *id, int level, int name, void *value, size_t length)
    const char *rdma_event_str(rdma_cm_event_type event)
