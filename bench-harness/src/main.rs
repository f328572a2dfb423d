//! Load generator and reference brokers for EventMQ.

fn main() {}
