//! Names to addresses, in the form that endpoints are made from.

use crate::abi::*;
use crate::device::device;
use crate::guard::{self, Refused, invalid, refused};
use crate::ib::{AF_IB, sockaddr_ib};
use ferroce_bridge::address::Address;
use libc::{addrinfo, sockaddr, socklen_t};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// A flag of newer headers: resolution by ibacm or subnet administration, which do not exist here.
const RAI_SA: c_int = 1 << 4;

/// The system's hints, from the program's hints.
fn system_hints(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: numbers and pointers, all of which may be zero.
    let mut out: addrinfo = unsafe { std::mem::zeroed() };
    // GIDs are written as IPv6 addresses, so the numeric form is enough.
    out.ai_family = if hints.ai_family == c_int::from(AF_IB) { 0 } else { hints.ai_family };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        out.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        out.ai_flags |= libc::AI_NUMERICHOST;
    }
    let qp_type = hints.ai_qp_type as u32;
    let is_datagram = match hints.ai_port_space as u32 {
        RDMA_PS_TCP => Some(false),
        RDMA_PS_UDP | RDMA_PS_IPOIB => Some(true),
        _ if qp_type == IBV_QPT_UD => Some(true),
        _ if qp_type != 0 => Some(false),
        _ => None,
    };
    (out.ai_socktype, out.ai_protocol) = match is_datagram {
        Some(true) => (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
        Some(false) => (libc::SOCK_STREAM, libc::IPPROTO_TCP),
        None => (0, 0),
    };
    out
}

/// A copy for [`free`] to free.
///
/// # Safety
/// `from` has `len` readable bytes.
unsafe fn copy(from: *const sockaddr, len: socklen_t) -> Result<*mut sockaddr, Refused> {
    // SAFETY: plain memory of that length, filled from the caller's.
    unsafe {
        let memory = libc::malloc(len as usize);
        if memory.is_null() {
            return Err(refused(libc::ENOMEM, "no memory for an address"));
        }
        ptr::copy_nonoverlapping(from.cast::<u8>(), memory.cast::<u8>(), len as usize);
        Ok(memory.cast())
    }
}

/// Stores the first result of the system's resolver in `out`.
///
/// # Safety
/// Names that end in a zero, or NULL.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    out: &mut rdma_addrinfo,
) -> Result<(), Failure> {
    let (wanted, mut list) = (system_hints(hints), ptr::null_mut());
    // SAFETY: as the caller promises, and a variable for the list.
    let code = unsafe { libc::getaddrinfo(node, service, &wanted, &mut list) };
    if code != 0 {
        return Err(Failure::Name(code));
    }
    // SAFETY: a list of at least one entry, freed after its use.
    unsafe {
        let first = &*list;
        let filled = fill(first, hints, out);
        libc::freeaddrinfo(list);
        filled.map_err(Failure::Call)
    }
}

/// The result as an AF_IB address, if the program requests that family with a numeric address.
///
/// # Safety
/// An entry of the system's list.
unsafe fn gid_name(first: &addrinfo, hints: &rdma_addrinfo, ps: u32) -> Option<sockaddr_ib> {
    let wanted = RAI_FAMILY | RAI_NUMERICHOST;
    if hints.ai_family != c_int::from(AF_IB) || hints.ai_flags & wanted != wanted {
        return None;
    }
    // SAFETY: as the caller promises.
    let address = unsafe { Address::read(first.ai_addr) }?.to_socket()?;
    Some(sockaddr_ib::of_port(address, ps))
}

/// # Safety
/// An entry of the system's list.
unsafe fn fill(first: &addrinfo, hints: &rdma_addrinfo, out: &mut rdma_addrinfo) -> Result<(), Refused> {
    let is_datagram = first.ai_socktype == libc::SOCK_DGRAM;
    let of_hints = |hint: c_int, else_: u32| if hint != 0 { hint } else { else_ as c_int };
    out.ai_qp_type = of_hints(hints.ai_qp_type, if is_datagram { IBV_QPT_UD } else { IBV_QPT_RC });
    out.ai_port_space = of_hints(hints.ai_port_space, if is_datagram { RDMA_PS_UDP } else { RDMA_PS_TCP });
    out.ai_family = first.ai_family;
    // SAFETY: as the caller promises.
    let (address, len) = unsafe {
        match gid_name(first, hints, out.ai_port_space as u32) {
            Some(name) => {
                out.ai_family = AF_IB.into();
                let len = size_of_val(&name) as socklen_t;
                (copy((&raw const name).cast(), len)?, len)
            }
            None => (copy(first.ai_addr, first.ai_addrlen)?, first.ai_addrlen),
        }
    };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        out.ai_flags = RAI_PASSIVE;
        (out.ai_src_addr, out.ai_src_len) = (address, len);
    } else {
        (out.ai_dst_addr, out.ai_dst_len) = (address, len);
    }
    Ok(())
}

/// Why a lookup failed: a code of the resolver, which the call returns unchanged, or a refusal.
enum Failure {
    Name(c_int),
    Call(Refused),
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Failure::Call(refused)
    }
}

/// # Safety
/// Names that end in a zero, or NULL; the addresses in the hints have the lengths given there.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    out: &mut rdma_addrinfo,
) -> Result<(), Failure> {
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(invalid("neither a name nor a service nor hints").into());
    }
    device()?;
    let none = rdma_addrinfo::zeroed();
    let hints = hints.unwrap_or(&none);
    if hints.ai_flags & RAI_SA != 0 {
        return Err(refused(libc::EOPNOTSUPP, "there is no subnet administration to ask").into());
    }
    if node.is_null() && service.is_null() {
        (out.ai_flags, out.ai_family) = (hints.ai_flags, hints.ai_family);
        (out.ai_qp_type, out.ai_port_space) = (hints.ai_qp_type, hints.ai_port_space);
        if hints.ai_dst_len != 0 && !hints.ai_dst_addr.is_null() {
            // SAFETY: as the caller promises.
            out.ai_dst_addr = unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len)? };
            out.ai_dst_len = hints.ai_dst_len;
        }
    } else {
        // SAFETY: as the caller promises.
        unsafe { resolve(node, service, hints, out)? };
    }
    if out.ai_src_len == 0 && hints.ai_src_len != 0 && !hints.ai_src_addr.is_null() {
        // SAFETY: as the caller promises.
        out.ai_src_addr = unsafe { copy(hints.ai_src_addr, hints.ai_src_len)? };
        out.ai_src_len = hints.ai_src_len;
    }
    Ok(())
}

/// The `errno` for a code of the system's resolver.
fn errno_of(code: c_int) -> c_int {
    match code {
        libc::EAI_SYSTEM => std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        libc::EAI_MEMORY => libc::ENOMEM,
        libc::EAI_FAMILY => libc::EAFNOSUPPORT,
        libc::EAI_AGAIN => libc::EAGAIN,
        libc::EAI_BADFLAGS | libc::EAI_SOCKTYPE | libc::EAI_SERVICE => libc::EINVAL,
        _ => libc::ENODATA,
    }
}

pub(crate) unsafe extern "C" fn get_addrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    let mut code = -1;
    let done = guard::run("rdma_getaddrinfo", || {
        // SAFETY: the program's hints, and NULL or memory for the result.
        let (hints, place) = unsafe { (hints.as_ref(), res.as_mut().ok_or(invalid("res is NULL"))?) };
        let mut found = Box::new(rdma_addrinfo::zeroed());
        // SAFETY: what the call demands of the program.
        let looked = unsafe { look_up(node, service, hints, &mut found) };
        let found = Box::into_raw(found);
        if let Err(failure) = looked {
            // SAFETY: just made.
            unsafe { free(found) };
            return Err(match failure {
                Failure::Call(refused) => refused,
                Failure::Name(name_code) => {
                    code = name_code;
                    refused(errno_of(name_code), "the name cannot be resolved")
                }
            });
        }
        *place = found;
        Ok(())
    });
    if done.is_ok() { 0 } else { code }
}

/// # Safety
/// NULL, or a list that was made here.
unsafe fn free(mut list: *mut rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: as the caller promises; its parts came from `malloc` or are NULL, which `free` takes.
        unsafe {
            let entry = Box::from_raw(list);
            list = entry.ai_next;
            let parts: [*mut c_void; 6] = [
                entry.ai_src_addr.cast(),
                entry.ai_dst_addr.cast(),
                entry.ai_src_canonname.cast(),
                entry.ai_dst_canonname.cast(),
                entry.ai_route,
                entry.ai_connect,
            ];
            parts.into_iter().for_each(|part| libc::free(part));
        }
    }
}

pub(crate) unsafe extern "C" fn free_addrinfo(list: *mut rdma_addrinfo) {
    guard::quiet("rdma_freeaddrinfo", || {
        // SAFETY: what the call demands of the program.
        unsafe { free(list) };
        Ok(())
    });
}
