//! Subscriptions by prefix: a compact radix tree whose walks are loops, never recursion.

use crate::ids::ConnId;
use smallvec::SmallVec;

/// Number of a node; stays the same while the node has subscribers.
pub(super) type NodeId = u32;

const ROOT: NodeId = 0;
/// What one subscription takes beside its node, roughly: the entry here and that of its connection.
const SUBSCRIPTION_BYTES: usize = 24;

#[derive(Debug, Default)]
struct Node {
    /// Bytes between the parent and here; empty only for the root.
    label: Box<[u8]>,
    parent: NodeId,
    /// First byte of the label and number of each child, ordered.
    children: Vec<(u8, NodeId)>,
    /// Ordered.
    subscribers: SmallVec<[ConnId; 2]>,
}

/// The tree. A node other than the root has subscribers or at least two children, so there are at
/// most twice as many nodes as different subscribed prefixes.
#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    label_bytes: usize,
    subscriptions: usize,
    prefixes: usize,
}

impl Trie {
    pub(super) fn new() -> Trie {
        Trie {
            nodes: vec![Node::default()],
            free: Vec::new(),
            label_bytes: 0,
            subscriptions: 0,
            prefixes: 0,
        }
    }

    /// Pairs of a prefix and a subscriber.
    pub(super) fn subscriptions(&self) -> usize {
        self.subscriptions
    }

    /// Different prefixes.
    pub(super) fn prefixes(&self) -> usize {
        self.prefixes
    }

    /// Bytes held, roughly.
    pub(super) fn bytes(&self) -> usize {
        (self.nodes.len() - self.free.len()) * size_of::<Node>()
            + self.label_bytes
            + self.subscriptions * SUBSCRIPTION_BYTES
    }

    /// More bytes than a subscription to a prefix of `len` bytes takes.
    pub(super) fn bytes_for(len: usize) -> usize {
        2 * size_of::<Node>() + 2 * len + SUBSCRIPTION_BYTES
    }

    /// The node of a prefix that somebody has subscribed to.
    pub(super) fn find(&self, prefix: &[u8]) -> Option<NodeId> {
        let mut at = ROOT;
        let mut rest = prefix;
        while let Some(first) = rest.first() {
            at = self.child(at, *first)?;
            rest = rest.strip_prefix(&*self.nodes[at as usize].label)?;
        }
        (!self.nodes[at as usize].subscribers.is_empty()).then_some(at)
    }

    /// Adds a subscription that is not there yet.
    pub(super) fn insert(&mut self, prefix: &[u8], conn: ConnId) -> NodeId {
        let at = self.node_for(prefix);
        let subscribers = &mut self.nodes[at as usize].subscribers;
        if subscribers.is_empty() {
            self.prefixes += 1;
        }
        let Err(place) = subscribers.binary_search(&conn) else {
            debug_assert!(false, "the caller knows what it has subscribed to");
            return at;
        };
        subscribers.insert(place, conn);
        self.subscriptions += 1;
        at
    }

    /// Takes a subscription away; the node may be gone afterwards.
    pub(super) fn remove(&mut self, node: NodeId, conn: ConnId) {
        let subscribers = &mut self.nodes[node as usize].subscribers;
        let Ok(place) = subscribers.binary_search(&conn) else {
            debug_assert!(false, "the caller knows what it has subscribed to");
            return;
        };
        subscribers.remove(place);
        self.subscriptions -= 1;
        if subscribers.is_empty() {
            subscribers.shrink_to_fit();
            self.prefixes -= 1;
            self.prune(node);
        }
        if self.prefixes == 0 {
            // Nothing but the root is left: give the memory back.
            debug_assert_eq!(self.nodes.len() - self.free.len(), 1);
            self.nodes.truncate(1);
            self.nodes.shrink_to_fit();
            self.free = Vec::new();
        }
    }

    /// Calls `each` for every subscription to a prefix of `topic`, shortest prefixes first; a
    /// connection comes once for each of its matching subscriptions.
    #[inline]
    pub(super) fn matches(&self, topic: &[u8], mut each: impl FnMut(ConnId)) {
        let mut node = &self.nodes[ROOT as usize];
        let mut rest = topic;
        loop {
            for conn in &node.subscribers {
                each(*conn);
            }
            let Some(first) = rest.first() else { return };
            let Ok(place) = node.children.binary_search_by_key(first, |(byte, _)| *byte) else {
                return;
            };
            node = &self.nodes[node.children[place].1 as usize];
            let Some(after) = rest.strip_prefix(&*node.label) else {
                return;
            };
            rest = after;
        }
    }

    fn child(&self, node: NodeId, first: u8) -> Option<NodeId> {
        let children = &self.nodes[node as usize].children;
        let place = children
            .binary_search_by_key(&first, |(byte, _)| *byte)
            .ok()?;
        Some(children[place].1)
    }

    /// The node of a prefix, made if it is missing.
    fn node_for(&mut self, prefix: &[u8]) -> NodeId {
        let mut at = ROOT;
        let mut rest = prefix;
        while let Some(first) = rest.first() {
            let Some(child) = self.child(at, *first) else {
                return self.add(at, rest);
            };
            let label = &self.nodes[child as usize].label;
            let same = label.iter().zip(rest).take_while(|(a, b)| a == b).count();
            at = if same == label.len() {
                child
            } else {
                self.split(child, same)
            };
            rest = &rest[same..];
        }
        at
    }

    /// A new leaf.
    fn add(&mut self, parent: NodeId, label: &[u8]) -> NodeId {
        let node = Node {
            label: label.into(),
            parent,
            ..Node::default()
        };
        self.label_bytes += label.len();
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                let id = NodeId::try_from(self.nodes.len()).expect("subscriptions are bounded");
                self.nodes.push(node);
                id
            }
        };
        let children = &mut self.nodes[parent as usize].children;
        let place = children.partition_point(|(byte, _)| *byte < label[0]);
        children.insert(place, (label[0], id));
        id
    }

    /// Puts a node between `node` and its parent, with the first `len` bytes of its label.
    fn split(&mut self, node: NodeId, len: usize) -> NodeId {
        let label = std::mem::take(&mut self.nodes[node as usize].label);
        let parent = self.nodes[node as usize].parent;
        let children = &mut self.nodes[parent as usize].children;
        children.retain(|(_, child)| *child != node);
        self.label_bytes -= label.len();
        let middle = self.add(parent, &label[..len]);
        self.nodes[middle as usize].children = vec![(label[len], node)];
        self.label_bytes += label.len() - len;
        let lower = &mut self.nodes[node as usize];
        lower.label = label[len..].into();
        lower.parent = middle;
        middle
    }

    /// Takes away a node without subscribers if it has no use, and then its parent likewise.
    fn prune(&mut self, node: NodeId) {
        let mut at = node;
        while at != ROOT && self.nodes[at as usize].subscribers.is_empty() {
            let parent = self.nodes[at as usize].parent;
            match self.nodes[at as usize].children[..] {
                [] => {
                    let siblings = &mut self.nodes[parent as usize].children;
                    siblings.retain(|(_, child)| *child != at);
                    if siblings.is_empty() {
                        siblings.shrink_to_fit();
                    }
                    self.release(at);
                    at = parent;
                }
                [(_, only)] => {
                    let upper = std::mem::take(&mut self.nodes[at as usize].label);
                    let lower = &mut self.nodes[only as usize];
                    let mut label = Vec::with_capacity(upper.len() + lower.label.len());
                    label.extend_from_slice(&upper);
                    label.extend_from_slice(&lower.label);
                    lower.label = label.into_boxed_slice();
                    lower.parent = parent;
                    let siblings = &mut self.nodes[parent as usize].children;
                    for (_, child) in siblings.iter_mut().filter(|(_, child)| *child == at) {
                        *child = only;
                    }
                    self.release(at);
                    return;
                }
                _ => return,
            }
        }
    }

    /// Frees a node. The bytes of a label that was taken out of it before are still held.
    fn release(&mut self, node: NodeId) {
        let gone = std::mem::take(&mut self.nodes[node as usize]);
        self.label_bytes -= gone.label.len();
        self.free.push(node);
    }

    /// Checks what the tree relies on.
    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        let mut seen = 0;
        let (mut labels, mut subscriptions, mut prefixes) = (0, 0, 0);
        let mut stack = vec![ROOT];
        while let Some(id) = stack.pop() {
            let node = &self.nodes[id as usize];
            seen += 1;
            labels += node.label.len();
            subscriptions += node.subscribers.len();
            prefixes += usize::from(!node.subscribers.is_empty());
            assert!(node.subscribers.is_sorted_by(|a, b| a < b));
            assert!(node.children.is_sorted_by(|a, b| a.0 < b.0));
            if id != ROOT {
                assert!(!node.label.is_empty());
                assert!(!node.subscribers.is_empty() || node.children.len() >= 2);
            }
            for (first, child) in &node.children {
                let child_node = &self.nodes[*child as usize];
                assert_eq!((child_node.label[0], child_node.parent), (*first, id));
                stack.push(*child);
            }
        }
        assert_eq!(seen, self.nodes.len() - self.free.len());
        assert_eq!(
            (labels, subscriptions, prefixes),
            (self.label_bytes, self.subscriptions, self.prefixes)
        );
    }
}
