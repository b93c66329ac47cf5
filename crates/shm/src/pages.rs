//! How local peers can map the pages of a region: the pages were moved into a memfd, the program shares them anyway, or the driver of a GPU
//! opens them.

use super::gpu_allocations::GpuAllocation;
use super::held_fd::{HeldFd, leave_rest_to_program};
use super::mapping::{BackingFile, FileSource};
use super::memfd_backing::{self, MemfdPages};
use super::shared::{self, Shared, SharedFiles};
use ferroce_os::log;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Pages that local peers can map, as long as this lives.
#[derive(Clone, Debug)]
pub struct Pages(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// They were moved into a memfd of ours.
    Memfd(Arc<MemfdPages>),
    /// They are in a file of the program.
    Shared(Arc<Shared>),
    /// They are memory of a GPU.
    Gpu(Arc<(GpuAllocation, Option<HeldFd>)>),
}

impl Pages {
    /// Makes it possible for local peers to map the `len` bytes at `base`, where that is sound. The `capacity` bytes from `base` on belong to
    /// the region's buffer only.
    pub(crate) fn of(files: &SharedFiles, base: usize, len: usize, capacity: usize) -> Option<Pages> {
        let why = match MemfdPages::move_in(base, capacity) {
            Ok(pages) => {
                if !pages.held_stores_back() {
                    log::choice(format_args!(
                        "a store to the {len} bytes at {base:#x} may have been lost: no userfaultfd"
                    ));
                }
                if let Some(why) = pages.rest() {
                    let first = pages.len();
                    log::choice(format_args!(
                        "local peers map the first {first} of the {len} bytes at {base:#x}: {why}"
                    ));
                }
                return Some(Pages(Kind::Memfd(pages)));
            }
            Err(why) => why,
        };
        let why_not_shared = match why {
            memfd_backing::WhyNot::Refused(_) => shared::WhyNot::NotShared,
            _ => match files.find(base, len) {
                Ok(pages) => return Some(Pages(Kind::Shared(Arc::new(pages)))),
                Err(why) => why,
            },
        };
        match why_not_shared {
            shared::WhyNot::NotShared => {
                log::choice(format_args!("local peers cannot map the {len} bytes at {base:#x}: {why}"));
            }
            why => {
                log::choice(format_args!("local peers cannot map the {len} shared bytes at {base:#x}: {why}"))
            }
        }
        None
    }

    /// Memory in an allocation of a GPU, with the file descriptor by which local peers open it. `None` if descriptors are scarce: the program
    /// needs the rest.
    pub(crate) fn of_gpu(allocation: GpuAllocation, fd: Option<OwnedFd>) -> Option<Pages> {
        let held = fd.map(|fd| leave_rest_to_program(&fd, 0).and_then(|()| HeldFd::new(fd))).transpose();
        let held = held.inspect_err(|errno| {
            let GpuAllocation { start, len, .. } = allocation;
            log::choice(format_args!(
                "local peers cannot open the {len} bytes at {start:#x} of a GPU: no descriptor is left for it (errno {errno})"
            ));
        });
        Some(Pages(Kind::Gpu(Arc::new((allocation, held.ok()?)))))
    }

    /// The GPU allocation that contains them.
    pub fn gpu_allocation(&self) -> Option<&GpuAllocation> {
        match &self.0 {
            Kind::Gpu(pages) => Some(&pages.0),
            Kind::Memfd(_) | Kind::Shared(_) => None,
        }
    }

    /// How local peers map them, if they are memory of the host.
    pub fn descriptor(&self) -> Option<BackingFile> {
        Some(match &self.0 {
            Kind::Gpu(_) => return None,
            Kind::Shared(pages) => pages.descriptor(),
            Kind::Memfd(pages) => BackingFile {
                start: pages.start() as u64,
                len: pages.len() as u64,
                offset: 0,
                source: FileSource::Fd(pages.fd() as u32),
                inode: pages.inode(),
                device: pages.device(),
            },
        })
    }
}
