//! Why a verb was refused, as the error number of its manual page.

use ferroce_nic::CmRefusal;
use ferroce_nic::Error;
use ferroce_proto::Qpn;
use ferroce_proto::cm::CmError;
use ferroce_proto::qp::PostError;
use std::ffi::c_int;
use std::fmt;

/// A refusal: an error number, or an error of the NIC, which [`Refused::errno`] translates.
#[derive(Debug)]
pub(crate) enum Refused {
    /// A number, with the reason.
    Errno(c_int, &'static str),
    /// Not a failure, so it is not logged: an empty queue, an empty table entry, or a signal.
    Nothing(c_int, &'static str),
    /// The error of the NIC.
    Nic(Error),
    /// A refusal that is about a queue pair.
    Qp(Qpn, Box<Refused>),
    /// With `--explain=strict`: the object does not live; the reason.
    Destroyed(String),
    /// The object is still in use: the kind of its dependents, and their number.
    InUse(&'static str, usize),
}

/// An invalid argument.
pub(crate) const fn invalid(what: &'static str) -> Refused {
    Refused::Errno(libc::EINVAL, what)
}

/// The object is still in use.
pub(crate) const fn busy(what: &'static str) -> Refused {
    Refused::Errno(libc::EBUSY, what)
}

/// The device does not support this.
pub(crate) const fn unsupported(what: &'static str) -> Refused {
    Refused::Errno(libc::EOPNOTSUPP, what)
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused::Nic(error)
    }
}

impl From<PostError> for Refused {
    fn from(error: PostError) -> Self {
        Refused::Nic(Error::Post(error))
    }
}

// The data path returns refusals in a box, so that a successful call does not move one.
impl From<Error> for Box<Refused> {
    fn from(error: Error) -> Self {
        Box::new(error.into())
    }
}

impl From<PostError> for Box<Refused> {
    fn from(error: PostError) -> Self {
        Box::new(error.into())
    }
}

impl From<std::io::Error> for Refused {
    fn from(error: std::io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        match errno {
            libc::EAGAIN | libc::EINTR => Refused::Nothing(errno, "there is nothing yet"),
            _ => Refused::Errno(errno, "the system refused"),
        }
    }
}

impl Refused {
    /// The number.
    pub(crate) fn errno(&self) -> c_int {
        match self {
            Refused::Errno(errno, _) | Refused::Nothing(errno, _) => *errno,
            Refused::Nic(error) => of_nic(error),
            Refused::Qp(_, why) => why.errno(),
            Refused::InUse(..) => libc::EBUSY,
            Refused::Destroyed(_) => libc::EINVAL,
        }
    }

    fn is_failure(&self) -> bool {
        !matches!(self, Refused::Nothing(..))
    }

    /// The refusal, with the queue pair that it is about.
    #[cold]
    pub(crate) fn by_qp(self, qpn: Qpn) -> Refused {
        Refused::Qp(qpn, Box::new(self))
    }

    /// Logs the reason, if `FERROCE_LOG` requests it.
    #[cold]
    pub(crate) fn explain(&self, verb: &str) {
        match self {
            _ if !self.is_failure() => {}
            Refused::Destroyed(_) => ferroce_nic::log_misuse(format_args!("{verb}: {self}")),
            _ => ferroce_nic::log_refusal(format_args!("{verb}: {self}")),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Errno(_, why) | Refused::Nothing(_, why) => f.write_str(why),
            Refused::Destroyed(why) => f.write_str(why),
            Refused::Nic(error) => error.fmt(f),
            Refused::Qp(qpn, why) => write!(f, "QP {qpn}: {why}"),
            Refused::InUse(who, count) => write!(f, "{who} ({count} uses); destroy them first"),
        }
    }
}

fn of_nic(error: &Error) -> c_int {
    match error {
        Error::Post(
            PostError::QueueFull { .. }
            | PostError::NotPolled { .. }
            | PostError::RecvNotPolled { .. }
            | PostError::SrqNotPolled { .. },
        )
        | Error::Exhausted { .. }
        | Error::LockedMemory { .. } => libc::ENOMEM,
        Error::NextHopSilent { .. } => libc::ETIMEDOUT,
        Error::System { source, .. } | Error::NoRoute { source, .. } => {
            source.raw_os_error().unwrap_or(libc::EIO)
        }
        Error::Link(link) => source_errno(link).unwrap_or(libc::EIO),
        Error::NotOnThisWire { .. } => libc::EOPNOTSUPP,
        Error::Memory(_) => libc::EFAULT,
        Error::Busy { .. } => libc::EBUSY,
        Error::Forked | Error::CqOverrun { .. } => libc::EIO,
        Error::Cm(refusal) => of_cm(refusal),
        _ => libc::EINVAL,
    }
}

/// The number that the kernel's connection manager returns in the same case.
fn of_cm(refusal: &CmRefusal) -> c_int {
    match refusal {
        CmRefusal::AddressInUse(holder) if holder.is_wildcard => libc::EADDRNOTAVAIL,
        CmRefusal::AddressInUse(_) | CmRefusal::Protocol(CmError::InUse) => libc::EADDRINUSE,
        CmRefusal::AddressNotAvailable { .. } | CmRefusal::PortsExhausted => libc::EADDRNOTAVAIL,
        CmRefusal::Unreachable { source, .. } => source.raw_os_error().unwrap_or(libc::EHOSTUNREACH),
        CmRefusal::Protocol(CmError::TooMany) => libc::ENOMEM,
        CmRefusal::DeviceRemoved => libc::ENXIO,
        CmRefusal::Registry(_) | CmRefusal::NoRegistry => libc::EIO,
        _ => libc::EINVAL,
    }
}

/// The system's error number in a chain of causes.
fn source_errno(error: &dyn std::error::Error) -> Option<c_int> {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return io.raw_os_error();
        }
        cause = inner.source();
    }
    None
}

/// Sets the calling thread's `errno`.
pub(crate) fn set(errno: c_int) {
    // SAFETY: the C library has an `errno` for every thread.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_no_failure_is_not_logged() {
        for errno in [libc::EAGAIN, libc::EINTR] {
            let refused = Refused::from(std::io::Error::from_raw_os_error(errno));
            assert!(!refused.is_failure() && refused.errno() == errno);
        }
        assert!(Refused::from(std::io::Error::from_raw_os_error(libc::EBADF)).is_failure());
        let refused = crate::xrcd::NO_DOMAIN;
        assert!(refused.is_failure() && refused.errno() == libc::EAGAIN);
    }

    #[test]
    fn what_iwarp_does_not_have_gets_the_numbers_of_siw() {
        assert_eq!(Refused::from(PostError::NotOnThisWire("flush")).errno(), libc::EINVAL);
        assert_eq!(Refused::from(Error::NotOnThisWire { what: "multicast" }).errno(), libc::EOPNOTSUPP);
    }
}
