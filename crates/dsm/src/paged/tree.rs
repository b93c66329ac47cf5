//! A barrier over a tree: what everybody says goes up to process 0, and all of it comes down again. Two messages per process
//! instead of one for each pair, at the price of more steps one after another.

use super::Core;
use super::layout::SHORT_NOTICES;
use crate::error::Error;
use crate::transport::Op;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Where a process stands: above it, and the processes below each of its children, who come first there.
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
    /// Everybody's word and short notices are in our mapping when this returns. Ours are already.
    pub(super) fn meet_over_tree(&self, epoch: u64) -> Result<(), Error> {
        let parity = (epoch & 1) as usize;
        let node = TreeNode::of(self.rank, self.size);
        for child in &node.children {
            let gathered = self.mapping.long(self.layout.gathered(parity, child.start));
            self.wait_until(|| gathered.load(Ordering::Acquire) == epoch)?;
        }
        if let Some(parent) = node.parent {
            let mut ops = Vec::new();
            self.pass_on(parity, parent, node.below.clone(), &mut ops);
            let done = Op::WriteAndWake { remote: self.layout.gathered(parity, self.rank), value: epoch };
            ops.push((parent, done));
            self.peers.post(&ops)?;
            let spread = self.mapping.long(self.layout.spread(parity));
            self.wait_until(|| spread.load(Ordering::Acquire) == epoch)?;
        }
        let mut ops = Vec::new();
        for child in &node.children {
            self.pass_on(parity, child.start, 0..child.start, &mut ops);
            self.pass_on(parity, child.start, child.end..self.size, &mut ops);
            ops.push((child.start, Op::WriteAndWake { remote: self.layout.spread(parity), value: epoch }));
        }
        self.peers.post(&ops)
    }

    /// Writes what these processes said to the same places of another's mapping.
    fn pass_on(&self, parity: usize, to: u32, ranks: Range<u32>, ops: &mut Vec<(u32, Op)>) {
        if ranks.is_empty() {
            return;
        }
        for rank in ranks.clone() {
            let count = self.said(parity, rank).count;
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
    fn everybody_has_one_parent_who_knows_it() {
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
