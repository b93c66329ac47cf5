//! Option values of programs, and the numbers of <rdma/rsocket.h>.

use std::ffi::{c_int, c_void};

use libc::socklen_t;

use super::errno::{Errno, Outcome};

pub(crate) const SOL_RDMA: c_int = 0x10000;
pub(crate) const RDMA_SQSIZE: c_int = 0;
pub(crate) const RDMA_RQSIZE: c_int = 1;
pub(crate) const RDMA_INLINE: c_int = 2;
pub(crate) const RDMA_IOMAPSIZE: c_int = 3;
pub(crate) const RDMA_ROUTE: c_int = 4;

/// The maximum length of a value; every option's value is shorter.
const MOST: usize = 64 * 1024;
/// TCP's default for `TCP_KEEPIDLE`.
const IDLE_S: c_int = 7200;

/// A value that a program sets.
pub(crate) struct Given<'a>(&'a [u8]);

impl Given<'_> {
    /// # Safety
    /// `length` bytes can be read at `value`, if it is not NULL.
    pub(crate) unsafe fn new(value: *const c_void, length: socklen_t) -> Outcome<Self> {
        if value.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        if length as usize > MOST {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: what the caller promises.
        Ok(Self(unsafe { std::slice::from_raw_parts(value.cast(), length as usize) }))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0
    }

    pub(crate) fn int(&self) -> Outcome<c_int> {
        let bytes = self.0.first_chunk().ok_or(Errno(libc::EINVAL))?;
        Ok(c_int::from_ne_bytes(*bytes))
    }

    /// A count; negative numbers count as 0.
    pub(crate) fn size(&self) -> Outcome<u32> {
        Ok(self.int()?.max(0) as u32)
    }

    /// The value of `SO_LINGER`.
    pub(crate) fn get(&self) -> Outcome<libc::linger> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Errno(libc::EINVAL))?;
        let second = rest.first_chunk().ok_or(Errno(libc::EINVAL))?;
        Ok(libc::linger { l_onoff: c_int::from_ne_bytes(*first), l_linger: c_int::from_ne_bytes(*second) })
    }
}

/// Memory for a value that a program reads.
pub(crate) struct Taken {
    value: *mut c_void,
    length: *mut socklen_t,
}

impl Taken {
    /// # Safety
    /// Each is NULL, or `length` points to the number of writable bytes at `value`.
    pub(crate) unsafe fn new(value: *mut c_void, length: *mut socklen_t) -> Outcome<Self> {
        if value.is_null() || length.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        Ok(Self { value, length })
    }

    /// Writes a plain structure, as many bytes as fit.
    pub(crate) fn put<T: Copy>(&mut self, value: &T) -> Outcome<()> {
        // SAFETY: the bytes of a plain value of numbers without gaps.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) };
        self.put_bytes(bytes)
    }

    /// Reads the value from a socket of the kernel.
    pub(crate) fn ask(&mut self, fd: c_int, level: c_int, name: c_int) -> Outcome<()> {
        // SAFETY: what the caller of `new` promised.
        Errno::check(unsafe { libc::getsockopt(fd, level, name, self.value, self.length) }).map(drop)
    }

    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) -> Outcome<()> {
        // SAFETY: what the caller of `new` promised.
        unsafe {
            let count = bytes.len().min(*self.length as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.value.cast(), count);
            *self.length = count as socklen_t;
        }
        Ok(())
    }
}

/// The host's idle time before TCP sends a probe, in seconds.
pub(crate) fn default_idle_s() -> c_int {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time").unwrap_or_default();
    text.trim().parse().unwrap_or(IDLE_S)
}

/// `struct tcp_info`, of which two fields are set here.
#[derive(Clone, Copy)]
pub(crate) struct TcpInfo([u8; Self::LEN]);

impl TcpInfo {
    /// The length in <netinet/tcp.h>.
    const LEN: usize = 104;
    const WINDOW: usize = 80;

    pub(crate) fn set_state(&mut self, state: u8) {
        self.0[0] = state;
    }

    pub(crate) fn set_window(&mut self, requests: u32) {
        self.0[Self::WINDOW..Self::WINDOW + 4].copy_from_slice(&requests.to_ne_bytes());
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Default for TcpInfo {
    fn default() -> Self {
        Self([0; Self::LEN])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_values_are_refused_and_long_ones_cut() {
        let three = [1u8, 0, 0];
        // SAFETY: as long as they say.
        let given = unsafe { Given::new(three.as_ptr().cast(), 3) }.unwrap();
        assert_eq!(given.int(), Err(Errno(libc::EINVAL)));
        let mut room = [0xffu8; 4];
        let mut length = 2;
        // SAFETY: as above.
        let mut taken = unsafe { Taken::new(room.as_mut_ptr().cast(), &mut length) }.unwrap();
        taken.put(&0x0102_0304u32).unwrap();
        assert_eq!((length, room[2], room[3]), (2, 0xff, 0xff));
    }

    #[test]
    fn tcp_info_has_its_fields_where_c_has_them() {
        // The kernel's structure has additional fields at its end.
        assert!(TcpInfo::LEN <= size_of::<libc::tcp_info>());
        assert_eq!(TcpInfo::WINDOW, std::mem::offset_of!(libc::tcp_info, tcpi_snd_cwnd));
    }
}
