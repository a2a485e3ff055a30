//! The tree: nodes in a slab, leaves ordered by last use.

use std::collections::{BTreeSet, HashMap};

/// A node's place in the slab.
pub(super) type NodeId = usize;

struct Node {
    tokens: Box<[u32]>,
    block: u32,
    parent: NodeId,
    children: HashMap<Box<[u32]>, NodeId>,
    last_use: u64,
}

/// Remembered blocks by the tokens that lead to them.
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// Slab places that are free again.
    free: Vec<NodeId>,
    /// Nodes without children but the root, oldest use first.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Counts walks; the time of a use.
    clock: u64,
}

impl Tree {
    /// The node of no tokens.
    pub(super) const ROOT: NodeId = 0;

    pub(super) fn new() -> Self {
        let root = Node { tokens: Box::default(), block: 0, parent: Self::ROOT, children: HashMap::new(), last_use: 0 };
        Self { nodes: vec![root], free: Vec::new(), leaves: BTreeSet::new(), clock: 0 }
    }

    /// Blocks remembered.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - 1 - self.free.len()
    }

    /// The KV block of a node.
    pub(super) fn block(&self, node: NodeId) -> u32 {
        self.nodes[node].block
    }

    /// The nodes along `parts` as far as they are known, all used now.
    pub(super) fn walk<'a>(&mut self, parts: impl Iterator<Item = &'a [u32]>) -> Vec<NodeId> {
        self.clock += 1;
        let mut at = Self::ROOT;
        let mut path = Vec::new();
        for part in parts {
            let Some(next) = self.nodes[at].children.get(part).copied() else { break };
            self.touch(next);
            path.push(next);
            at = next;
        }
        path
    }

    /// Adds a node for `tokens` after `parent`.
    pub(super) fn add(&mut self, parent: NodeId, tokens: &[u32], block: u32) -> NodeId {
        let node = Node { tokens: tokens.into(), block, parent, children: HashMap::new(), last_use: self.clock };
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.leaves.remove(&(self.nodes[parent].last_use, parent));
        self.nodes[parent].children.insert(tokens.into(), id);
        self.leaves.insert((self.clock, id));
        id
    }

    /// Gives up to `wanted` leaves whose block is `unused`, oldest use first; a parent left without children is a
    /// leaf then.
    pub(super) fn evict(&mut self, wanted: usize, unused: &dyn Fn(u32) -> bool) -> Vec<u32> {
        let mut given_up = Vec::new();
        let mut from = (0, 0);
        while given_up.len() < wanted {
            let Some(leaf) = self.leaves.range(from..).find(|(_, id)| unused(self.nodes[*id].block)).copied() else {
                break;
            };
            given_up.push(self.nodes[leaf.1].block);
            let parent = self.remove(leaf);
            // A parent used in the same walk may stand before its child in the order.
            from = parent.map_or(leaf, |parent| parent.min(leaf));
        }
        given_up
    }

    /// Removes a leaf; its parent if that is a leaf now.
    fn remove(&mut self, leaf: (u64, NodeId)) -> Option<(u64, NodeId)> {
        self.leaves.remove(&leaf);
        self.free.push(leaf.1);
        let parent = self.nodes[leaf.1].parent;
        let tokens = std::mem::take(&mut self.nodes[leaf.1].tokens);
        self.nodes[parent].children.remove(&tokens);
        if parent == Self::ROOT || !self.nodes[parent].children.is_empty() {
            return None;
        }
        let place = (self.nodes[parent].last_use, parent);
        self.leaves.insert(place);
        Some(place)
    }

    fn touch(&mut self, node: NodeId) {
        let before = (self.nodes[node].last_use, node);
        self.nodes[node].last_use = self.clock;
        if self.leaves.remove(&before) {
            self.leaves.insert((self.clock, node));
        }
    }
}
