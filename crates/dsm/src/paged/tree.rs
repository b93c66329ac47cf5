//! A barrier over a tree: arrivals go up to process 0, and all of them come down again. It takes two messages per process
//! instead of one for each pair, but more steps one after another.

use super::Core;
use super::layout::SHORT_NOTICES;
use crate::error::Error;
use crate::transport::Op;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A process in the tree: its parent, and the ranks below each child, the child first.
#[derive(Debug, PartialEq, Eq)]
struct TreeNode {
    parent: Option<u32>,
    below: Range<u32>,
    children: Vec<Range<u32>>,
}

/// Two halves of what is below a process.
fn halves(range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let middle = range.start + (range.end - range.start).div_ceil(2);
    [range.start..middle, middle..range.end].into_iter().filter(|half| !half.is_empty())
}

impl TreeNode {
    fn of(rank: u32, size: u32) -> TreeNode {
        let (mut parent, mut below) = (None, 0..size);
        while below.start != rank {
            parent = Some(below.start);
            let half = halves(below.start + 1..below.end).find(|half| half.contains(&rank));
            // Every process is in one of the halves; a range without any would end the search.
            below = half.unwrap_or(rank..rank + 1);
        }
        let children = halves(rank + 1..below.end).collect();
        TreeNode { parent, below, children }
    }
}

impl Core {
    /// Returns when the arrivals and short notices of all processes are in our mapping.
    pub(super) fn gather_over_tree(&self, epoch: u64) -> Result<(), Error> {
        let parity = (epoch & 1) as usize;
        let node = TreeNode::of(self.rank, self.size);
        for child in &node.children {
            let gathered = self.mapping.long(self.layout.gathered(parity, child.start));
            self.wait_until(|| gathered.load(Ordering::Acquire) == epoch)?;
        }
        if let Some(parent) = node.parent {
            let mut ops = Vec::new();
            self.forward(parity, parent, node.below.clone(), &mut ops);
            let done = Op::WriteAndWake { remote: self.layout.gathered(parity, self.rank), value: epoch };
            ops.push((parent, done));
            self.peers.post(&ops)?;
            let spread = self.mapping.long(self.layout.spread(parity));
            self.wait_until(|| spread.load(Ordering::Acquire) == epoch)?;
        }
        let mut ops = Vec::new();
        for child in &node.children {
            self.forward(parity, child.start, 0..child.start, &mut ops);
            self.forward(parity, child.start, child.end..self.size, &mut ops);
            ops.push((child.start, Op::WriteAndWake { remote: self.layout.spread(parity), value: epoch }));
        }
        self.peers.post(&ops)
    }

    /// Writes the arrivals and notices of these processes to the same offsets of another mapping.
    fn forward(&self, parity: usize, to: u32, ranks: Range<u32>, ops: &mut Vec<(u32, Op)>) {
        if ranks.is_empty() {
            return;
        }
        for rank in ranks.clone() {
            let count = self.arrival(parity, rank).count;
            if (1..=SHORT_NOTICES).contains(&count) {
                let at = self.layout.short_notices(parity, rank);
                ops.push((to, Op::Write { remote: at, local: at, len: count * 8 }));
            }
        }
        let at = self.layout.arrival(parity, ranks.start);
        ops.push((to, Op::Write { remote: at, local: at, len: ranks.len() * 8 }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_has_one_parent_that_lists_it() {
        for size in 1..40 {
            for rank in 0..size {
                let node = TreeNode::of(rank, size);
                assert_eq!(node.below.start, rank);
                let all: u32 = node.children.iter().map(|child| child.end - child.start).sum();
                assert_eq!(all + 1, node.below.end - rank, "{size} {rank}");
                for child in &node.children {
                    let there = TreeNode::of(child.start, size);
                    assert_eq!((there.parent, there.below), (Some(rank), child.clone()), "{size}");
                }
                assert_eq!(node.parent.is_none(), rank == 0);
            }
        }
    }
}
