//! The names that programs link with. Each is a jump to its function: a symbol that Rust exports itself would come out
//! without its version, silently.

use crate::{
    address, addrinfo, channel, connect, devices, ece, endpoint, event, id, listen, multicast, options, qp,
    route, srq,
};

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
    "rdma_accept" => connect::accept,
    "rdma_ack_cm_event" => event::ack_cm_event,
    "rdma_bind_addr" => address::bind_addr,
    "rdma_connect" => connect::connect,
    "rdma_create_ep" => endpoint::create_ep,
    "rdma_create_event_channel" => channel::create_event_channel,
    "rdma_create_id" => id::create_id,
    "rdma_create_qp" => qp::create_qp,
    "rdma_create_qp_ex" => qp::create_qp_ex,
    "rdma_create_srq" => srq::create_srq,
    "rdma_create_srq_ex" => srq::create_srq_ex,
    "rdma_destroy_ep" => endpoint::destroy_ep,
    "rdma_destroy_event_channel" => channel::destroy_event_channel,
    "rdma_destroy_id" => id::destroy_id,
    "rdma_destroy_qp" => qp::destroy_qp,
    "rdma_destroy_srq" => srq::destroy_srq,
    "rdma_disconnect" => connect::disconnect,
    "rdma_establish" => connect::establish,
    "rdma_event_str" => event::event_str,
    "rdma_free_devices" => devices::free_devices,
    "rdma_freeaddrinfo" => addrinfo::free_addrinfo,
    "rdma_get_cm_event" => event::get_cm_event,
    "rdma_get_devices" => devices::devices,
    "rdma_get_dst_port" => address::dst_port,
    "rdma_get_remote_ece" => ece::remote_ece,
    "rdma_get_request" => listen::get_request,
    "rdma_get_src_port" => address::src_port,
    "rdma_getaddrinfo" => addrinfo::get_addrinfo,
    "rdma_init_qp_attr" => qp::init_qp_attr,
    "rdma_join_multicast" => multicast::join_multicast,
    "rdma_join_multicast_ex" => multicast::join_multicast_ex,
    "rdma_leave_multicast" => multicast::leave_multicast,
    "rdma_listen" => listen::listen,
    "rdma_migrate_id" => channel::migrate_id,
    "rdma_notify" => connect::notify,
    "rdma_reject" => connect::reject,
    "rdma_reject_ece" => connect::reject_ece,
    "rdma_resolve_addr" => address::resolve_addr,
    "rdma_resolve_route" => route::resolve_route,
    "rdma_set_local_ece" => ece::set_local_ece,
    "rdma_set_option" => options::set_option,
}
