//! The GID table.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, invalid};
use crate::guard;
use ferroce_nic::GidEntry;
use std::ffi::c_int;

/// The refusal for an empty entry of the table.
const EMPTY: Refused = Refused::Nothing(libc::ENODATA, "this entry of the GID table is empty");

/// An entry of the table, or `None` if it is empty.
fn entry_at(context: &Context, port: u32, index: usize) -> Result<Option<GidEntry>, Refused> {
    if port != 1 || index >= context.nic.attributes().gid_tbl_len {
        return Err(invalid("no such port or entry of the GID table"));
    }
    match context.is_iwarp() {
        true => Ok(context.gids().into_iter().nth(index)),
        false => Ok(context.nic.gid(index)),
    }
}

fn describe(context: &Context, index: usize, entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.0 },
        gid_index: index as u32,
        port_num: 1,
        gid_type: if context.is_iwarp() { IBV_GID_TYPE_IB } else { IBV_GID_TYPE_ROCE_V2 },
        ndev_ifindex: entry.if_index,
    }
}

/// Returns zeros for an empty entry: programs read the whole table and stop at an error.
pub(crate) unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    guard::minus_one("ibv_query_gid", || {
        // SAFETY: a context of ours, and NULL or memory for the result.
        let (context, out) = unsafe { (Context::of(context)?, gid.as_mut().ok_or(invalid("gid is NULL"))?) };
        let index = usize::try_from(index).map_err(|_| invalid("a negative index"))?;
        out.raw = entry_at(context, port.into(), index)?.map_or([0; 16], |entry| entry.gid.0);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_len: usize,
) -> c_int {
    guard::number("ibv_query_gid_ex", || {
        // SAFETY: a context of ours.
        let context = unsafe { Context::of(context)? };
        check_entry(entry, flags, entry_len)?;
        let found = entry_at(context, port, index as usize)?.ok_or(EMPTY)?;
        // SAFETY: the program provides memory for `entry_len` bytes, at least the size of an entry.
        unsafe { entry.write(describe(context, index as usize, &found)) };
        Ok(())
    })
}

fn check_entry(entry: *mut ibv_gid_entry, flags: u32, entry_len: usize) -> Result<(), Refused> {
    if flags != 0 || entry_len < size_of::<ibv_gid_entry>() || entry.is_null() {
        return Err(invalid("flags, or an entry of unknown size"));
    }
    Ok(())
}

/// Writes all non-empty entries, and returns their number. Refuses a buffer that is too short.
pub(crate) unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_len: usize,
) -> isize {
    let found = guard::run("ibv_query_gid_table", || {
        // SAFETY: a context of ours.
        let context = unsafe { Context::of(context)? };
        let table = context.gids();
        check_entry(entries, flags, entry_len)?;
        if table.len() > max_entries {
            return Err(invalid("more entries than there is room for"));
        }
        for (index, entry) in table.iter().enumerate() {
            // SAFETY: fewer than `max_entries` entries of `entry_len` bytes each, at least as long as ours.
            unsafe { entries.byte_add(index * entry_len).write(describe(context, index, entry)) };
        }
        Ok(table.len() as isize)
    });
    found.unwrap_or_else(|errno| -(errno as isize))
}

/// How `ibv_devinfo` labels an entry: 0 for RoCE v1 and InfiniBand, 1 for RoCE v2.
pub(crate) unsafe extern "C" fn query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    const ROCE_V2_IN_SYSFS: u32 = 1;
    guard::minus_one("ibv_query_gid_type", || {
        // SAFETY: a context of ours, and NULL or memory for the result.
        let (context, out) =
            unsafe { (Context::of(context)?, kind.as_mut().ok_or(invalid("type is NULL"))?) };
        *out = entry_at(context, port.into(), index as usize)?
            .map_or(0, |_| if context.is_iwarp() { 0 } else { ROCE_V2_IN_SYSFS });
        Ok(())
    })
}
