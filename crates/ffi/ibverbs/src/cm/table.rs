//! The table that every context contains for librdmacm.

use super::{channel, connect, id};
use ferroce_bridge::cm::{MAGIC, Table};

static TABLE: Table = Table {
    magic: MAGIC,
    size: size_of::<Table>(),
    say,
    fail,
    create_channel: channel::create_channel,
    destroy_channel: channel::destroy_channel,
    next_event: channel::next_event,
    create_id: id::create_id,
    close_id: id::close_id,
    free_id: id::free_id,
    migrate_id: id::migrate_id,
    query_id: id::query_id,
    set: id::set,
    bind: id::bind,
    listen: id::listen,
    resolve_addr: id::resolve_addr,
    resolve_route: id::resolve_route,
    qp_attributes: id::qp_attributes,
    connect: connect::connect,
    accept: connect::accept,
    reject: connect::reject,
    establish: connect::establish,
    notify_established: connect::notify_established,
    disconnect: connect::disconnect,
    join: connect::join,
};

/// The `priv` field of a context.
pub(crate) fn pointer() -> *mut () {
    (&raw const TABLE).cast_mut().cast()
}

unsafe extern "C" fn say(text: *const u8, len: usize) {
    // SAFETY: librdmacm passes a text of this length.
    let text = unsafe { std::slice::from_raw_parts(text, len) };
    ferroce_nic::log_refusal(format_args!("{}", String::from_utf8_lossy(text)));
}

unsafe extern "C" fn fail() {
    crate::guard::raise_fatal();
}
