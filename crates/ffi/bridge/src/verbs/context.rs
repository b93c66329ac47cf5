//! The context: two tables of operations, and a few fields.

use super::*;
use ferroce_proto::verbs::Sge;
use libc::pthread_mutex_t;

/// An operation that creates an object of a context.
pub type Create<Attr, Made> = Option<unsafe extern "C" fn(*mut ibv_context, *mut Attr) -> *mut Made>;
/// An operation that destroys an object.
pub type Destroy<Made> = Option<unsafe extern "C" fn(*mut Made) -> i32>;

/// Operations that the inline verbs call directly. The compat slots are obsolete and never called.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_context_ops {
    pub _compat_query_device: Slot,
    pub _compat_query_port: Slot,
    pub _compat_memory: [Slot; 5],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, u32) -> *mut ibv_mw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> i32>,
    pub dealloc_mw: Destroy<ibv_mw>,
    pub _compat_create_cq: Slot,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, i32, *mut ibv_wc) -> i32>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, i32) -> i32>,
    pub _compat_queues: [Slot; 7],
    pub post_srq_recv:
        Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32>,
    pub _compat_qp: [Slot; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> i32>,
    pub post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32>,
    pub _compat_rest: [Slot; 5],
}
// abi.md counts offsets from the context, which has the table at offset 8.
layout!(
    ibv_context_ops,
    256,
    alloc_mw = 56,
    bind_mw = 64,
    dealloc_mw = 72,
    poll_cq = 88,
    req_notify_cq = 96,
    post_srq_recv = 160,
    post_send = 200,
    post_recv = 208
);
zeroed!(ibv_context_ops);

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: i32,
    pub async_fd: i32,
    pub num_comp_vectors: i32,
    pub mutex: pthread_mutex_t,
    pub abi_compat: *mut (),
}
layout!(
    ibv_context,
    328,
    ops = 8,
    cmd_fd = 264,
    async_fd = 268,
    num_comp_vectors = 272,
    mutex = 280,
    abi_compat = 320
);
zeroed!(ibv_context);

/// Later versions add fields at the front; the plain context is the last member.
#[repr(C)]
pub struct verbs_context {
    pub query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> i32>,
    pub advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, u32, u32, *mut Sge, u32) -> i32>,
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
    pub read_counters: Option<unsafe extern "C" fn(*mut ibv_counters, *mut u64, u32, u32) -> i32>,
    pub attach_counters_point_flow:
        Option<unsafe extern "C" fn(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> i32>,
    pub create_counters: Create<ibv_counters_init_attr, ibv_counters>,
    pub destroy_counters: Destroy<ibv_counters>,
    pub reg_dm_mr: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, u32) -> *mut ibv_mr>,
    pub alloc_dm: Create<ibv_alloc_dm_attr, ibv_dm>,
    pub free_dm: Destroy<ibv_dm>,
    pub modify_flow_action_esp: Slot,
    pub destroy_flow_action: Slot,
    pub create_flow_action_esp: Slot,
    pub modify_qp_rate_limit: Slot,
    pub alloc_parent_domain: Create<ibv_parent_domain_init_attr, ibv_pd>,
    pub dealloc_td: Destroy<ibv_td>,
    pub alloc_td: Create<ibv_td_init_attr, ibv_td>,
    pub modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> i32>,
    pub post_srq_ops: Slot,
    pub destroy_rwq_ind_table: Destroy<ibv_rwq_ind_table>,
    pub create_rwq_ind_table: Create<ibv_rwq_ind_table_init_attr, ibv_rwq_ind_table>,
    pub destroy_wq: Destroy<ibv_wq>,
    pub modify_wq: Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> i32>,
    pub create_wq: Create<ibv_wq_init_attr, ibv_wq>,
    pub query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> i32>,
    pub create_cq_ex: Create<ibv_cq_init_attr_ex, ibv_cq_ex>,
    pub r#priv: *mut (),
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            usize,
        ) -> i32,
    >,
    pub ibv_destroy_flow: Destroy<ibv_flow>,
    pub placeholder2: Slot,
    pub ibv_create_flow: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow>,
    pub placeholder1: Slot,
    pub open_qp: Create<ibv_qp_open_attr, ibv_qp>,
    pub create_qp_ex: Create<ibv_qp_init_attr_ex, ibv_qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> i32>,
    pub create_srq_ex: Create<ibv_srq_init_attr_ex, ibv_srq>,
    pub open_xrcd: Create<ibv_xrcd_init_attr, ibv_xrcd>,
    pub close_xrcd: Destroy<ibv_xrcd>,
    pub placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}
layout!(
    verbs_context,
    648,
    advise_mr = 8,
    alloc_null_mr = 16,
    reg_dm_mr = 56,
    alloc_dm = 64,
    modify_qp_rate_limit = 104,
    alloc_parent_domain = 112,
    alloc_td = 128,
    modify_cq = 136,
    create_wq = 184,
    query_rt_values = 192,
    create_cq_ex = 200,
    query_device_ex = 216,
    ibv_create_flow = 240,
    open_qp = 256,
    create_qp_ex = 264,
    get_srq_num = 272,
    create_srq_ex = 280,
    open_xrcd = 288,
    close_xrcd = 296,
    sz = 312,
    context = 320
);
zeroed!(verbs_context);

impl verbs_context {
    /// The `verbs_context` that contains a context.
    pub fn around(context: *mut ibv_context) -> *mut verbs_context {
        context.wrapping_byte_sub(std::mem::offset_of!(verbs_context, context)).cast()
    }
}

/// The value of `abi_compat` for a context inside a `verbs_context`.
pub const VERBS_ABI_IS_EXTENDED: *mut () = usize::MAX as *mut ();
