//! Addresses of programs: a pointer and a length. The length decides how many bytes are read, not the family.

use std::ffi::c_int;
use std::mem::offset_of;
use std::net::SocketAddr;

use ferroce_bridge::address;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use super::errno::{Errno, Outcome};

const LEN_V4: usize = size_of::<sockaddr_in>();
const LEN_V6: usize = size_of::<sockaddr_in6>();

/// An address of any family, copied from the program.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub(crate) storage: sockaddr_storage,
}

impl Address {
    /// An address that has only a family.
    pub(crate) fn unspecified(family: c_int) -> Self {
        // SAFETY: numbers, which may be zero.
        let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
        storage.ss_family = family as u16;
        Self { storage }
    }

    /// # Safety
    /// `length` bytes can be read at `addr`, if it is not NULL.
    pub(crate) unsafe fn read(addr: *const sockaddr, length: socklen_t) -> Outcome<Self> {
        if addr.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let length = length as usize;
        if length < offset_of!(sockaddr, sa_data) || length > size_of::<sockaddr_storage>() {
            return Err(Errno(libc::EINVAL));
        }
        let mut copied = Self::unspecified(0);
        // SAFETY: what the caller promises; the check above limits the length to the size of the storage.
        unsafe { std::ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut copied.storage).cast(), length) };
        if length < copied.length() {
            return Err(Errno(libc::EINVAL));
        }
        Ok(copied)
    }

    pub(crate) fn family(&self) -> c_int {
        self.storage.ss_family.into()
    }

    /// The length of an address of its family.
    pub(crate) fn length(&self) -> usize {
        match self.family() {
            libc::AF_INET => LEN_V4,
            libc::AF_INET6 => LEN_V6,
            _ => offset_of!(sockaddr, sa_data),
        }
    }

    pub(crate) fn as_ptr(&mut self) -> *mut sockaddr {
        (&raw mut self.storage).cast()
    }

    /// Writes it as `getsockname` does: as many bytes as fit, and its real length.
    ///
    /// # Safety
    /// `length` is NULL, or points to the number of bytes at `addr`. `addr` may be NULL if that number is 0.
    pub(crate) unsafe fn write(&self, addr: *mut sockaddr, length: *mut socklen_t) -> Outcome<()> {
        if length.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: what the caller promises.
        unsafe {
            let fitting = (*length as usize).min(self.length());
            if fitting > 0 && addr.is_null() {
                return Err(Errno(libc::EFAULT));
            }
            std::ptr::copy_nonoverlapping((&raw const self.storage).cast::<u8>(), addr.cast(), fitting);
            *length = self.length() as socklen_t;
        }
        Ok(())
    }

    /// As a standard library address; `None` for families other than IPv4 and IPv6.
    pub(crate) fn ip(&self) -> Option<SocketAddr> {
        // SAFETY: the storage is as long as every kind of address.
        unsafe { address::Address::read((&raw const self.storage).cast()) }?.to_socket()
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self { storage: address::Address::from(addr).write().0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_journey() {
        for text in ["192.0.2.7:4791", "[2001:db8::1%3]:9"] {
            let addr: SocketAddr = text.parse().unwrap();
            let mut made = Address::from(addr);
            // SAFETY: a whole address.
            let read = unsafe { Address::read(made.as_ptr(), made.length() as socklen_t) }.unwrap();
            assert_eq!(read.ip(), Some(addr));
        }
    }

    #[test]
    fn short_and_missing_addresses_are_refused() {
        let mut v6 = Address::from("[::1]:1".parse::<SocketAddr>().unwrap());
        let refused = |addr, length| {
            // SAFETY: at most as much as there is.
            unsafe { Address::read(addr, length) }.err()
        };
        assert_eq!(
            refused(v6.as_ptr(), 16),
            Some(Errno(libc::EINVAL)),
            "an IPv6 address in the space of IPv4"
        );
        assert_eq!(refused(v6.as_ptr(), 1), Some(Errno(libc::EINVAL)));
        assert_eq!(refused(std::ptr::null(), 16), Some(Errno(libc::EFAULT)));
    }

    /// librspreload reads only the length to determine the family.
    #[test]
    fn the_length_alone_can_be_asked_for() {
        let v6 = Address::unspecified(libc::AF_INET6);
        let mut length = 0;
        // SAFETY: the length is 0.
        unsafe { v6.write(std::ptr::null_mut(), &mut length) }.unwrap();
        assert_eq!(length as usize, LEN_V6);
    }
}
