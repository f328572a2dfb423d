//! Every fixed bound of the system, units last in the name, relations checked at compile time.
//!
//! Bounds that operators may change are settings (`settings`); their defaults are here.

/// Largest payload frame accepted from a peer (semantics.md, limits).
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Largest message accepted from a peer, frame headers included.
pub const MESSAGE_BYTES_MAX: usize = 65 * 1024 * 1024;
/// Largest number of frames in one message.
pub const MESSAGE_FRAMES_MAX: usize = 64;
/// A message above [`MESSAGE_BYTES_MAX`] is read and discarded up to this size, then the
/// connection is closed.
pub const DISCARD_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;
/// Largest routing id (ZMTP's identity property is one octet long).
pub const ROUTING_ID_BYTES_MAX: usize = 255;
/// Largest msgid.
pub const MSGID_BYTES_MAX: usize = 255;
/// Largest queue name.
pub const QUEUE_NAME_BYTES_MAX: usize = 255;
/// Largest ZMTP command body (READY with metadata, ERROR, SUBSCRIBE).
pub const COMMAND_BYTES_MAX: usize = 4 * 1024;
/// Largest number of properties in a READY.
pub const METADATA_PROPERTIES_MAX: usize = 64;
/// Largest sum of commands (PINGs) between the frames of one message. libzmq sends at most one
/// PING between two frames.
pub const INNER_COMMAND_BYTES_MAX: usize = 16 * 1024;
/// Largest context a PING may carry (ZMTP 3.1).
pub const PING_CONTEXT_BYTES_MAX: usize = 16;
/// Largest number of queues in one INFORM.
pub const INFORM_QUEUES_MAX: usize = 1_024;
/// Largest SCHEDULE or UNSCHEDULE: it is parsed before it is forwarded.
pub const SCHEDULE_BYTES_MAX: usize = 1024 * 1024;
/// Largest queues frame of an INFORM (1,024 names of 255 bytes, six-fold JSON escapes aside), and
/// largest frame of capabilities.
pub const INFORM_BYTES_MAX: usize = 1024 * 1024;

/// Longest topic of a subscription. Beside a command's name it fits [`COMMAND_BYTES_MAX`].
pub const SUBSCRIPTION_BYTES_MAX: usize = 4_000;
/// Largest `instance` in the capabilities of an INFORM.
pub const INSTANCE_BYTES_MAX: usize = 255;

/// A message of this size and more travels by reference instead of being copied.
pub const SHARED_BYTES_MIN: usize = 32 * 1024;
/// Bytes read from one connection in one turn, and the size of an agent's receive buffer.
pub const TURN_READ_BYTES_MAX: usize = 256 * 1024;
/// Nominal size of a ring chunk; the last message put into it may exceed it.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Largest number of messages in a ring chunk.
pub const CHUNK_MESSAGES_MAX: usize = 1_024;
/// Connections taken from one listener in one turn.
pub const TURN_ACCEPTS_MAX: usize = 64;

/// Default of `hwm`: waiting jobs of a named, served queue.
pub const HWM_DEFAULT: usize = 10_000;
/// Default of `max_queues`.
pub const QUEUES_MAX_DEFAULT: usize = 10_000;
/// Default of `max_slots_per_worker`.
pub const SLOTS_PER_WORKER_MAX_DEFAULT: usize = 10_000;
/// Default of `client_buffer_bytes`: acceptance notices are dropped above it.
pub const CLIENT_BUFFER_BYTES_DEFAULT: usize = 1024 * 1024;
/// Default of `client_result_bytes`: results and REJECTs are dropped above it.
pub const CLIENT_RESULT_BYTES_DEFAULT: usize = 16 * 1024 * 1024;
/// Default of `worker_buffer_bytes`: no new jobs for the worker above it.
pub const WORKER_BUFFER_BYTES_DEFAULT: usize = 8 * 1024 * 1024;
/// A connection is not read while more than this waits for it of what it caused itself and no
/// other limit bounds (PONGs, ACKs, administrative answers), until half of it has left.
pub const OWED_BYTES_MAX: usize = 64 * 1024;
/// A connection that is not read for that reason and takes no byte for this long is closed.
pub const OWED_TIMEOUT_MS: u64 = 30_000;
/// Default of `subscriber_buffer_bytes`: published messages are dropped above it.
pub const SUBSCRIBER_BUFFER_BYTES_DEFAULT: usize = 8 * 1024 * 1024;
/// Default of `max_subscriptions`.
pub const SUBSCRIPTIONS_MAX_DEFAULT: usize = 1_000_000;
/// Default of `max_subscriptions_per_subscriber`.
pub const SUBSCRIPTIONS_PER_SUBSCRIBER_MAX_DEFAULT: usize = 100_000;
/// Partial messages of a component's connections; above it the largest is closed.
pub const COMPONENT_PARTIAL_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Default of the handshake deadline, in milliseconds.
pub const HANDSHAKE_TIMEOUT_MS_DEFAULT: u64 = 10_000;
/// Take-overs of one routing id inside [`TAKEOVER_WINDOW_MS`] before a newcomer is refused.
pub const TAKEOVERS_MAX: u32 = 3;
/// See [`TAKEOVERS_MAX`].
pub const TAKEOVER_WINDOW_MS: u64 = 10_000;
/// A gap between turns above this is not counted as silence of any peer.
pub const STALL_MS: u64 = 1_000;

const _: () = {
    assert!(FRAME_BYTES_MAX < MESSAGE_BYTES_MAX);
    assert!(
        DISCARD_BYTES_MAX <= u32::MAX as usize,
        "frame offsets are 32 bits wide"
    );
    assert!(COMMAND_BYTES_MAX < INNER_COMMAND_BYTES_MAX);
    assert!(SUBSCRIPTION_BYTES_MAX + "\x09SUBSCRIBE".len() < COMMAND_BYTES_MAX);
    assert!(SHARED_BYTES_MIN <= CHUNK_BYTES);
    assert!(SHARED_BYTES_MIN < TURN_READ_BYTES_MAX);
    assert!(COMMAND_BYTES_MAX < TURN_READ_BYTES_MAX);
    assert!(CLIENT_BUFFER_BYTES_DEFAULT < CLIENT_RESULT_BYTES_DEFAULT);
    assert!(INFORM_QUEUES_MAX <= QUEUES_MAX_DEFAULT);
};
