//! Registered memory for raw packets.

use super::Engine;
use crate::raw::FrameMemory;
use ferroce_proto::PdId;
use ferroce_proto::verbs::{MemoryFault, Sge};

impl FrameMemory for Engine {
    fn gather(&self, pd: PdId, sges: &[Sge], frame: &mut [u8]) -> Result<(), MemoryFault> {
        self.device.regions.gather(pd, sges, 0, frame, 0)
    }

    fn scatter(&self, pd: PdId, sges: &[Sge], frame: &[u8]) -> Result<(), MemoryFault> {
        self.device.regions.scatter(pd, sges, 0, frame)
    }
}
