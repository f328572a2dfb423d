//! Byte buffers that connections hold only while bytes are in them.

/// Largest buffer kept for reuse.
const KEPT_CAPACITY_MAX: usize = 4 * 1024 * 1024;
/// All kept buffers together.
const KEPT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Number of kept buffers.
const KEPT_MAX: usize = 1_024;

/// A free list of buffers, bounded in number and bytes, that gives back what is not used.
#[derive(Debug, Default)]
pub(super) struct BufferPool {
    free: Vec<Vec<u8>>,
    bytes: usize,
    /// Fewest free buffers since the last trim: that many were not needed.
    idle: usize,
}

impl BufferPool {
    /// An empty buffer.
    #[inline]
    pub(super) fn take(&mut self) -> Vec<u8> {
        match self.free.pop() {
            Some(buffer) => {
                self.bytes -= buffer.capacity();
                self.idle = self.idle.min(self.free.len());
                buffer
            }
            None => Vec::new(),
        }
    }

    /// Takes a buffer back.
    #[inline]
    pub(super) fn put(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity == 0
            || capacity > KEPT_CAPACITY_MAX
            || self.bytes + capacity > KEPT_BYTES_MAX
            || self.free.len() >= KEPT_MAX
        {
            return;
        }
        buffer.clear();
        self.bytes += capacity;
        self.free.push(buffer);
    }

    /// Frees half of what has not been used since the last call. Call about once a second.
    pub(super) fn trim(&mut self) {
        for _ in 0..self.idle.div_ceil(2) {
            // The front holds those used longest ago.
            let buffer = self.free.remove(0);
            self.bytes -= buffer.capacity();
        }
        self.idle = self.free.len();
    }

    /// Bytes held by free buffers.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_used_is_freed_in_the_end() {
        let mut pool = BufferPool::default();
        for _ in 0..100 {
            pool.put(Vec::with_capacity(1000));
        }
        assert!(pool.bytes() >= 100_000);
        pool.trim();
        for _ in 0..20 {
            let used = pool.take();
            pool.put(used);
            pool.trim();
        }
        assert!(pool.bytes() <= 2_000, "{}", pool.bytes());
    }

    #[test]
    fn kept_bytes_are_bounded() {
        let mut pool = BufferPool::default();
        for _ in 0..100 {
            pool.put(Vec::with_capacity(KEPT_CAPACITY_MAX));
        }
        assert!(pool.bytes() <= KEPT_BYTES_MAX);
        pool.put(Vec::with_capacity(KEPT_CAPACITY_MAX + 1));
        assert!(pool.bytes() <= KEPT_BYTES_MAX);
    }
}
