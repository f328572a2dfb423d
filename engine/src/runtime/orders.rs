//! Orders to an agent from other threads, and the bell that wakes it.

use crate::io::IoWaker;
use crate::ring::{Doorbell, Wake};
use crossbeam::channel::{Receiver, Sender, bounded};
use std::sync::Arc;

/// Orders wait here until the agent's next turn; nobody sends them at a rate.
const ORDERS_MAX: usize = 256;

/// Something to wake, whatever it is.
pub type Bell = Doorbell<Box<dyn Wake>>;

impl Wake for Box<dyn Wake> {
    fn wake(&self) {
        (**self).wake();
    }
}

/// A queue of orders to one agent.
#[derive(Debug)]
pub struct Orders<T> {
    sender: Sender<T>,
    receiver: Receiver<T>,
}

impl<T> Orders<T> {
    /// An empty queue.
    pub fn new() -> Arc<Self> {
        let (sender, receiver) = bounded(ORDERS_MAX);
        Arc::new(Orders { sender, receiver })
    }

    /// Gives an order and wakes the agent.
    ///
    /// # Errors
    /// The order itself if the queue is full.
    pub fn give(&self, order: T, bell: &Bell) -> Result<(), T> {
        let result = self.sender.try_send(order).map_err(|e| e.into_inner());
        // Not `ring`: the agent may be on its way to sleep, and this is rare.
        bell.waker().wake();
        result
    }

    /// Gives an order, and waits for room if the queue is full: the agent takes its orders in
    /// every turn.
    pub fn give_surely(&self, order: T, bell: &Bell) {
        let mut order = order;
        while let Err(back) = self.give(order, bell) {
            order = back;
            std::thread::yield_now();
        }
    }

    /// The oldest order.
    pub fn take(&self) -> Option<T> {
        self.receiver.try_recv().ok()
    }

    /// True without orders.
    pub fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }
}

/// The bell of an I/O agent.
pub fn io_bell(waker: IoWaker) -> Arc<Bell> {
    Arc::new(Doorbell::new(Box::new(waker)))
}
