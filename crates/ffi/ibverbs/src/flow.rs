//! Flows: rules that select the raw packets of a queue pair.

use crate::abi::*;
use crate::counters::CountersObject;
use crate::errno::{Refused, invalid, unsupported};
use crate::guard;
use crate::handle::{Handle, Use, object};
use crate::qp::QpObject;
use ferroce_nic::{Flow, FlowFilter, FlowKind, FlowLayer, FlowRule};

/// A flow.
pub(crate) struct FlowObject {
    _flow: Flow,
    /// The queue pair, and the counters.
    _held: Vec<Use>,
}

object!(FlowObject, ibv_flow, "ibv_destroy_flow");

/// The offsets of value and mask in a specification, and the length of their fields.
struct Shape {
    layer: FlowLayer,
    value: usize,
    mask: usize,
    len: usize,
}

fn shape(kind: u32) -> Option<Shape> {
    let of = |layer, value, mask, len| Some(Shape { layer, value, mask, len });
    match kind {
        IBV_FLOW_SPEC_ETH => of(FlowLayer::Eth, 6, 22, 16),
        IBV_FLOW_SPEC_IPV4 => of(FlowLayer::Ipv4, 8, 16, 8),
        IBV_FLOW_SPEC_IPV4_EXT => of(FlowLayer::Ipv4, 8, 20, 12),
        IBV_FLOW_SPEC_IPV6 => of(FlowLayer::Ipv6, 8, 48, 39),
        IBV_FLOW_SPEC_TCP => of(FlowLayer::Tcp, 6, 10, 4),
        IBV_FLOW_SPEC_UDP => of(FlowLayer::Udp, 6, 10, 4),
        _ => None,
    }
}

/// One specification: its type, and all its bytes.
struct Spec<'a> {
    kind: u32,
    bytes: &'a [u8],
}

impl Spec<'_> {
    fn part(&self, at: usize, len: usize) -> Result<&[u8], Refused> {
        self.bytes.get(at..at + len).ok_or(invalid("a flow specification is too short for its type"))
    }

    fn filter(&self, shape: &Shape) -> Result<FlowFilter, Refused> {
        let (value, mask) = (self.part(shape.value, shape.len)?, self.part(shape.mask, shape.len)?);
        Ok(FlowFilter { layer: shape.layer, value: value.to_vec(), mask: mask.to_vec() })
    }

    /// Adds its conditions to the rule.
    unsafe fn apply(&self, rule: &mut FlowRule, held: &mut Vec<Use>) -> Result<(), Refused> {
        if let Some(shape) = shape(self.kind) {
            rule.filters.push(self.filter(&shape)?);
            return Ok(());
        }
        match self.kind {
            IBV_FLOW_SPEC_ACTION_TAG => {
                let tag = self.part(8, 4)?;
                rule.tag = u32::from_ne_bytes([tag[0], tag[1], tag[2], tag[3]]);
            }
            IBV_FLOW_SPEC_ACTION_DROP => rule.drops = true,
            IBV_FLOW_SPEC_ACTION_COUNT => {
                let pointer: [u8; 8] = self.part(8, 8)?.try_into().unwrap_or_default();
                let pointer = usize::from_ne_bytes(pointer) as *mut ibv_counters;
                // SAFETY: the program's counters, which are ours.
                let (counts, counters) = unsafe { CountersObject::bind(pointer)? };
                rule.counts.push(counts);
                held.push(counters);
            }
            _ => return Err(unsupported("a flow specification that the device does not have")),
        }
        Ok(())
    }
}

/// The specifications behind the attributes.
///
/// # Safety
/// `count` specifications follow the attributes.
unsafe fn specs<'a>(attr: *const ibv_flow_attr, count: u8) -> Result<Vec<Spec<'a>>, Refused> {
    /// Type and length.
    const HEAD: usize = 6;
    let mut at = attr.wrapping_add(1).cast::<u8>();
    let mut found = Vec::with_capacity(count.into());
    for _ in 0..count {
        // SAFETY: as the caller promises, a specification of the length in its header is at `at`.
        unsafe {
            let kind = at.cast::<u32>().read_unaligned();
            let len = usize::from(at.add(4).cast::<u16>().read_unaligned());
            if len < HEAD {
                return Err(invalid("a flow specification without a size"));
            }
            found.push(Spec { kind, bytes: std::slice::from_raw_parts(at, len) });
            at = at.add(len);
        }
    }
    Ok(found)
}

fn kind(attr: &ibv_flow_attr) -> Result<FlowKind, Refused> {
    match attr.r#type {
        IBV_FLOW_ATTR_NORMAL => Ok(FlowKind::Normal),
        IBV_FLOW_ATTR_ALL_DEFAULT => Ok(FlowKind::AllDefault),
        IBV_FLOW_ATTR_MC_DEFAULT => Ok(FlowKind::MulticastDefault),
        IBV_FLOW_ATTR_SNIFFER => Ok(FlowKind::Sniffer),
        _ => Err(invalid("no such type of flow")),
    }
}

pub(crate) unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    guard::pointer("ibv_create_flow", || {
        // SAFETY: a queue pair of ours.
        let object = unsafe { QpObject::of(qp)? };
        if attr.is_null() {
            return Err(invalid("flow_attr is NULL"));
        }
        // SAFETY: the program's attributes. Programs pack them with the specifications, so they may be unaligned.
        let head = unsafe { attr.read_unaligned() };
        let kind = kind(&head)?;
        let dont_trap = head.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0;
        if head.comp_mask != 0 || head.flags & !IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0 {
            return Err(unsupported("flags or comp_mask that the device does not have"));
        }
        if head.port != 1 || (dont_trap && kind != FlowKind::Normal) {
            return Err(invalid("the port is not 1, or only normal flows let packets pass on"));
        }
        let mut rule = FlowRule {
            kind,
            priority: head.priority,
            traps: !dont_trap,
            filters: Vec::new(),
            tag: 0,
            drops: false,
            counts: Vec::new(),
        };
        let mut held = vec![object.uses.hold()];
        // SAFETY: what the verb demands of the program.
        for spec in unsafe { specs(attr, head.num_of_specs)? } {
            // SAFETY: as above.
            unsafe { spec.apply(&mut rule, &mut held)? };
        }
        let flow = object.qp.create_flow(rule)?;
        // SAFETY: a queue pair of ours.
        let context = unsafe { (*qp).context };
        Ok(Handle::publish(
            ibv_flow { comp_mask: 0, context, handle: 0 },
            FlowObject { _flow: flow, _held: held },
        ))
    })
}
