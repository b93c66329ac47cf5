//! The names that programs link with. Each is a jump to its function: a symbol that Rust exports itself would come out
//! without its version, silently.

use crate::guard;

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {function}"
    };
}
pub(crate) use jump;

/// Exports functions under the names of the C library.
macro_rules! export {
    ($($name:literal => $function:path,)*) => {
        $(core::arch::global_asm!(
            ".pushsection .text.exports,\"ax\",@progbits",
            concat!(".globl ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            $crate::exports::jump!(),
            concat!(".size ", $name, ", .-", $name),
            ".popsection",
            function = sym $function,
        );)*
    };
}
pub(crate) use export;

export! {
    "rdma_accept" => guard::absent,
    "rdma_ack_cm_event" => guard::absent,
    "rdma_bind_addr" => guard::absent,
    "rdma_connect" => guard::absent,
    "rdma_create_ep" => guard::absent,
    "rdma_create_event_channel" => guard::absent,
    "rdma_create_id" => guard::absent,
    "rdma_create_qp" => guard::absent,
    "rdma_create_qp_ex" => guard::absent,
    "rdma_create_srq" => guard::absent,
    "rdma_create_srq_ex" => guard::absent,
    "rdma_destroy_ep" => guard::absent,
    "rdma_destroy_event_channel" => guard::absent,
    "rdma_destroy_id" => guard::absent,
    "rdma_destroy_qp" => guard::absent,
    "rdma_destroy_srq" => guard::absent,
    "rdma_disconnect" => guard::absent,
    "rdma_establish" => guard::absent,
    "rdma_event_str" => guard::absent,
    "rdma_free_devices" => guard::absent,
    "rdma_freeaddrinfo" => guard::absent,
    "rdma_get_cm_event" => guard::absent,
    "rdma_get_devices" => guard::absent,
    "rdma_get_dst_port" => guard::absent,
    "rdma_get_remote_ece" => guard::absent,
    "rdma_get_request" => guard::absent,
    "rdma_get_src_port" => guard::absent,
    "rdma_getaddrinfo" => guard::absent,
    "rdma_init_qp_attr" => guard::absent,
    "rdma_join_multicast" => guard::absent,
    "rdma_join_multicast_ex" => guard::absent,
    "rdma_leave_multicast" => guard::absent,
    "rdma_listen" => guard::absent,
    "rdma_migrate_id" => guard::absent,
    "rdma_notify" => guard::absent,
    "rdma_reject" => guard::absent,
    "rdma_reject_ece" => guard::absent,
    "rdma_resolve_addr" => guard::absent,
    "rdma_resolve_route" => guard::absent,
    "rdma_set_local_ece" => guard::absent,
    "rdma_set_option" => guard::absent,
}
