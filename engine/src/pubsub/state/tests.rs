//! The state machine against a naive model, and its limits one by one.

use super::trie::Trie;
use super::*;
use crate::frames::OwnedMessage;
use crate::link::CloseReason;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Takes everything; what waits for a connection is what the test says.
#[derive(Default)]
struct Fake {
    sent: Vec<(ConnId, Vec<Vec<u8>>)>,
    /// How many of them went by reference.
    shared: usize,
    waiting: HashMap<ConnId, usize>,
    released: Vec<ConnId>,
}

impl Outbox for Fake {
    fn forward(&mut self, to: ConnId, _: OutClass, message: &Message<'_>) {
        self.shared += usize::from(message.shared().is_some());
        self.sent
            .push((to, message.frames().map(<[u8]>::to_vec).collect()));
    }
    fn send(&mut self, to: ConnId, _: OutClass, pieces: &[&[u8]]) {
        let wire = pieces.concat();
        let mut spans = Vec::new();
        let len = crate::frames::split_wire(&wire, &mut spans);
        assert_eq!(len, Some(wire.len()), "one whole message");
        let message = Message::new(&wire, &spans);
        self.sent
            .push((to, message.frames().map(<[u8]>::to_vec).collect()));
    }
    fn close(&mut self, _: ConnId, _: CloseReason) {}
    fn release(&mut self, conn: ConnId) {
        self.released.push(conn);
    }
    fn pending_bytes(&mut self, conn: ConnId) -> usize {
        self.waiting.get(&conn).copied().unwrap_or(0)
    }
    fn notify_writable(&mut self, _: ConnId, _: usize) {}
    fn set_never_paused(&mut self, _: ConnId, _: bool) {}
    fn pause_input(&mut self, _: Socket, _: bool) {}
    fn has_room(&self) -> bool {
        true
    }
}

struct Rig {
    state: PubSub,
    out: Fake,
    now: Now,
}

const PUBLISHER: u32 = 0;

fn id(slot: u32, generation: u32) -> ConnId {
    ConnId::new(0, slot, generation)
}

impl Rig {
    fn new(config: PubSubConfig) -> Rig {
        let mut rig = Rig {
            state: PubSub::new(config, [1, 2, 3, 4]),
            out: Fake::default(),
            now: Now::default(),
        };
        rig.open(id(PUBLISHER, 1), INCOMING);
        rig
    }

    fn open(&mut self, conn: ConnId, socket: Socket) {
        let info = PeerInfo {
            socket,
            routing_id: vec![0xff],
            speaks_extensions: false,
            remote: None,
        };
        self.state.handle_opened(conn, &info);
    }

    fn subscribe(&mut self, conn: ConnId, topic: &[u8]) {
        self.state.handle_subscription(conn, true, topic, self.now);
    }

    fn cancel(&mut self, conn: ConnId, topic: &[u8]) {
        self.state.handle_subscription(conn, false, topic, self.now);
    }

    fn message(&mut self, conn: ConnId, socket: Socket, frames: &[&[u8]]) {
        let message = OwnedMessage::from_frames(frames);
        self.state
            .handle_message(conn, socket, &message.view(), self.now, &mut self.out);
    }

    fn publish(&mut self, topic: &[u8], text: &[u8]) -> Vec<ConnId> {
        let from = id(PUBLISHER, 1);
        self.message(
            from,
            INCOMING,
            &[b"", b"eMQP/1.0", b"PUBLISH", b"m", topic, text],
        );
        let sent = std::mem::take(&mut self.out.sent);
        for (_, frames) in &sent {
            assert_eq!(frames, &[topic.to_vec(), text.to_vec()]);
        }
        sent.into_iter().map(|(to, _)| to).collect()
    }

    fn count(&self, counter: Counter) -> u64 {
        self.state.counters.get(counter)
    }
}

/// Small random numbers, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    /// Topics that share prefixes, now and then a long one.
    fn topic(&mut self) -> Vec<u8> {
        let len = if self.below(20) == 0 {
            200 + self.below(200)
        } else {
            self.below(6)
        };
        (0..len).map(|_| b"ab\x00\xff"[self.below(4)]).collect()
    }
}

/// Random subscribing, cancelling, publishing, coming and going; who gets what is what a list of
/// sets says. Repeat one with `EMQ_SIM_SEED`; `EMQ_SIM_SEEDS` says how many.
#[test]
fn everybody_gets_what_a_naive_model_says() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seeds = match number("EMQ_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("EMQ_SIM_SEEDS").unwrap_or(200),
    };
    for seed in seeds {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let limit = 1 + dice.below(12);
        let mut rig = Rig::new(PubSubConfig {
            max_subscriptions_per_subscriber: limit,
            max_subscriptions: 40,
            ..PubSubConfig::default()
        });
        let mut model: BTreeMap<ConnId, BTreeSet<Vec<u8>>> = BTreeMap::new();
        let mut generations = [0_u32; 8];
        for step in 0..400 {
            let slot = 1 + dice.below(7);
            let conn = id(slot as u32, generations[slot]);
            let total: usize = model.values().map(BTreeSet::len).sum();
            match dice.below(10) {
                0 if !model.contains_key(&conn) => {
                    generations[slot] += 1;
                    let conn = id(slot as u32, generations[slot]);
                    rig.open(conn, OUTGOING);
                    model.insert(conn, BTreeSet::new());
                }
                1 if dice.below(4) == 0 => {
                    if model.remove(&conn).is_some() {
                        rig.state.handle_lost(conn, &mut rig.out);
                        assert_eq!(rig.out.released.pop(), Some(conn));
                    }
                }
                2..=4 => {
                    let topic = dice.topic();
                    match dice.below(2) {
                        0 => rig.subscribe(conn, &topic),
                        _ => {
                            let frame = [&[1], &topic[..]].concat();
                            rig.message(conn, OUTGOING, &[&frame]);
                        }
                    }
                    if let Some(own) = model.get_mut(&conn)
                        && own.len() < limit
                        && total < 40
                    {
                        own.insert(topic);
                    }
                }
                5 | 6 => {
                    // Mostly something that is there.
                    let own = model.get(&conn);
                    let topic = match own.and_then(|own| own.iter().next()) {
                        Some(topic) if dice.below(4) > 0 => topic.clone(),
                        _ => dice.topic(),
                    };
                    rig.cancel(conn, &topic);
                    if let Some(own) = model.get_mut(&conn) {
                        own.remove(&topic);
                    }
                }
                _ => {
                    let topic = dice.topic();
                    let mut got = rig.publish(&topic, b"text");
                    got.sort();
                    let expected: Vec<_> = model
                        .iter()
                        .filter(|(_, own)| own.iter().any(|p| topic.starts_with(p)))
                        .map(|(conn, _)| *conn)
                        .collect();
                    assert_eq!(got, expected, "seed {seed}, step {step}: {topic:?}");
                }
            }
            rig.state.trie.check_invariants();
            let total: usize = model.values().map(BTreeSet::len).sum();
            assert_eq!(rig.state.trie.subscriptions(), total, "seed {seed}, {step}");
        }
        for conn in model.into_keys() {
            rig.state.handle_lost(conn, &mut rig.out);
        }
        assert_eq!(rig.state.figures().subscribers, 0);
        assert_eq!(rig.state.trie.bytes(), Trie::new().bytes(), "nothing left");
    }
}

proptest! {
    #[test]
    fn any_topics_match_by_prefix(
        prefixes in proptest::collection::btree_set(
            proptest::collection::vec(any::<u8>(), 0..8), 0..40),
        topic in proptest::collection::vec(any::<u8>(), 0..10),
        cut in 0_usize..10,
    ) {
        let mut rig = Rig::new(PubSubConfig::default());
        // Prefixes of the topic itself are certain to be there sometimes.
        let own = topic[..cut.min(topic.len())].to_vec();
        let all: Vec<_> = prefixes.into_iter().chain([own]).collect();
        for (n, prefix) in all.iter().enumerate() {
            let conn = id(n as u32 + 1, 1);
            rig.open(conn, OUTGOING);
            rig.subscribe(conn, prefix);
        }
        rig.state.trie.check_invariants();
        let mut got = rig.publish(&topic, b"");
        got.sort();
        let expected: Vec<_> = (0..all.len())
            .filter(|n| topic.starts_with(&all[*n]))
            .map(|n| id(n as u32 + 1, 1))
            .collect();
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn both_forms_of_publish_leave_as_topic_and_message() {
    let mut rig = Rig::new(PubSubConfig::default());
    let sub = id(1, 1);
    rig.open(sub, OUTGOING);
    rig.subscribe(sub, b"t");
    let from = id(PUBLISHER, 1);
    let large = vec![b'x'; limits::SHARED_BYTES_MIN];
    for text in [&b"text"[..], b"", &[0xff; 300], &large] {
        let envelope = [&b""[..], b"eMQP/1.0", b"PUBLISH", b"m", b"topic"];
        rig.message(from, INCOMING, &[&envelope[..], &[text]].concat());
        rig.message(from, INCOMING, &[&envelope[..], &[b"h:1", text]].concat());
        for (to, frames) in rig.out.sent.drain(..) {
            assert_eq!((to, frames), (sub, vec![b"topic".to_vec(), text.to_vec()]));
        }
    }
    assert_eq!(rig.out.shared, 2, "the large ones went by reference");
    assert_eq!(rig.count(Counter::PublishesReceived), 8);
    assert_eq!(rig.count(Counter::PublishedSent), 8);
}

#[test]
fn what_is_no_publish_is_counted_and_ignored() {
    let mut rig = Rig::new(PubSubConfig::default());
    let sub = id(1, 1);
    rig.open(sub, OUTGOING);
    rig.subscribe(sub, b"");
    let from = id(PUBLISHER, 1);
    let head = [&b""[..], b"eMQP/1.0"];
    for (frames, reason) in [
        (&[&b"PUBLISH"[..], b"m"][..], Some(Counter::IgnoredPublish)),
        (&[b"PUBLISH", b"m", b"t"], Some(Counter::IgnoredPublish)),
        (
            &[b"PUBLISH", b"m", b"t", b"h", b"x", b"more"],
            Some(Counter::IgnoredPublish),
        ),
        (&[b"PUBLISH", b"", b"t", b"x"], Some(Counter::IgnoredMsgid)),
        (
            &[b"publish", b"m", b"t", b"x"],
            Some(Counter::IgnoredCommand),
        ),
        (&[b"\xff\xfe", b"m"], Some(Counter::IgnoredCommand)),
        (&[b"PUBLISH"], Some(Counter::IgnoredFrames)),
        (&[b"DISCONNECT", b"m"], Some(Counter::IgnoredRole)),
        (
            &[b"REQUEST", b"m", b"", b"", b"{}"],
            Some(Counter::IgnoredRole),
        ),
        (&[b"HEARTBEAT", b"m", b"1.5"], None),
        (&[b"KBYE", b"m"], None),
        (&[b"KBAI", b"m"], None),
    ] {
        let before: u64 = rig.state.counters.iter().map(|(_, n)| n).sum();
        rig.message(from, INCOMING, &[&head[..], frames].concat());
        let after: u64 = rig.state.counters.iter().map(|(_, n)| n).sum();
        assert_eq!(after - before, u64::from(reason.is_some()), "{frames:?}");
        if let Some(reason) = reason {
            assert!(rig.count(reason) > 0, "{frames:?}");
        }
        assert!(rig.out.sent.is_empty());
    }
    rig.message(from, INCOMING, &[b"x", b"eMQP/1.0", b"PUBLISH", b"m"]);
    assert_eq!(rig.count(Counter::IgnoredFrame0), 1);
    rig.message(from, INCOMING, &[b"", b"eMQP/2.0", b"PUBLISH", b"m"]);
    assert_eq!(rig.count(Counter::IgnoredVersion), 1);
    // Topics and messages need not be text.
    assert_eq!(rig.publish(b"\xff\x00", b"\xfe"), [sub]);
}

#[test]
fn what_a_subscriber_sends_besides_is_ignored() {
    let mut rig = Rig::new(PubSubConfig::default());
    let sub = id(1, 1);
    rig.open(sub, OUTGOING);
    for frames in [
        &[&b""[..]][..],
        &[b"\x02a"],
        &[b"\x01a", b"b"],
        &[b"", b"eMQP/1.0", b"PUBLISH", b"m", b"t", b"x"],
    ] {
        rig.message(sub, OUTGOING, frames);
    }
    assert_eq!(rig.count(Counter::IgnoredFromSubscriber), 4);
    assert_eq!(rig.state.figures().subscriptions, 0);
}

#[test]
fn a_subscription_is_there_or_not_however_often_it_is_made() {
    let mut rig = Rig::new(PubSubConfig::default());
    let (a, b) = (id(1, 1), id(2, 1));
    rig.open(a, OUTGOING);
    rig.open(b, OUTGOING);
    rig.subscribe(a, b"x");
    rig.subscribe(a, b"x");
    rig.subscribe(b, b"x");
    rig.subscribe(b, b"");
    rig.subscribe(b, b"xy");
    assert_eq!(rig.publish(b"xyz", b"").len(), 2, "each once");
    assert_eq!(rig.state.figures().subscriptions, 4);
    assert_eq!(rig.state.figures().prefixes, 3);
    rig.cancel(a, b"x");
    assert_eq!(rig.publish(b"xyz", b""), [b]);
    rig.cancel(a, b"x");
    rig.cancel(a, b"never");
    assert_eq!(rig.count(Counter::SubscriptionsRepeated), 1);
    assert_eq!(rig.count(Counter::SubscriptionsUnknown), 2);
}

#[test]
fn limits_refuse_and_count_and_the_rest_goes_on() {
    let mut rig = Rig::new(PubSubConfig {
        max_subscriptions_per_subscriber: 3,
        max_subscriptions: 5,
        ..PubSubConfig::default()
    });
    let (a, b) = (id(1, 1), id(2, 1));
    rig.open(a, OUTGOING);
    rig.open(b, OUTGOING);
    for n in 0..10_u8 {
        rig.subscribe(a, &[b'a', n]);
    }
    assert_eq!(rig.count(Counter::SubscriptionsRefusedPeer), 7);
    for n in 0..3_u8 {
        rig.subscribe(b, &[b'b', n]);
    }
    assert_eq!(rig.count(Counter::SubscriptionsRefusedTotal), 1);
    assert_eq!(rig.publish(b"a\x02", b""), [a]);
    assert!(rig.publish(b"a\x03", b"").is_empty());
    assert_eq!(rig.count(Counter::PublishesUnheard), 1);
    // Room again after a cancellation, and after a loss.
    rig.cancel(a, b"a\x00");
    rig.subscribe(a, b"a\x03");
    assert_eq!(rig.publish(b"a\x03", b""), [a]);
    rig.state.handle_lost(a, &mut rig.out);
    for n in 3..10_u8 {
        rig.subscribe(b, &[b'b', n]);
    }
    assert_eq!(rig.state.figures().subscriptions, 3);
    rig.subscribe(b, &vec![0; SUBSCRIPTION_BYTES + 1]);
    assert_eq!(rig.count(Counter::SubscriptionsRefusedTooLong), 1);
}

const SUBSCRIPTION_BYTES: usize = limits::SUBSCRIPTION_BYTES_MAX;

#[test]
fn subscriptions_stay_below_their_part_of_the_memory() {
    let mut rig = Rig::new(PubSubConfig {
        max_memory_bytes: 4 << 20,
        ..PubSubConfig::default()
    });
    let sub = id(1, 1);
    rig.open(sub, OUTGOING);
    for n in 0..2_000_u32 {
        let mut topic = n.to_be_bytes().to_vec();
        topic.resize(SUBSCRIPTION_BYTES, b'x');
        rig.subscribe(sub, &topic);
    }
    assert!(rig.count(Counter::SubscriptionsRefusedMemory) > 1_000);
    let bytes = rig.state.figures().subscription_bytes;
    assert!((900_000..=1 << 20).contains(&bytes), "{bytes}");
}

#[test]
fn a_chain_of_prefixes_as_long_as_a_topic_may_be() {
    let mut rig = Rig::new(PubSubConfig::default());
    let sub = id(1, 1);
    rig.open(sub, OUTGOING);
    let topic = vec![b'a'; SUBSCRIPTION_BYTES];
    for len in 0..=topic.len() {
        rig.subscribe(sub, &topic[..len]);
    }
    rig.state.trie.check_invariants();
    assert_eq!(rig.publish(&topic, b""), [sub]);
    // Walks, merges and the end of the connection are loops: a small stack is enough.
    for len in (0..topic.len()).step_by(2) {
        rig.cancel(sub, &topic[..len]);
    }
    rig.state.trie.check_invariants();
    let endless = vec![b'a'; 1 << 20];
    assert_eq!(rig.publish(&endless, b""), [sub]);
    rig.state.handle_lost(sub, &mut rig.out);
    assert_eq!(rig.state.trie.bytes(), Trie::new().bytes());
}

#[test]
fn a_slow_subscriber_loses_messages_and_nobody_else_does() {
    let mut rig = Rig::new(PubSubConfig {
        subscriber_buffer_bytes: 1_000,
        ..PubSubConfig::default()
    });
    let (slow, well) = (id(1, 1), id(2, 1));
    for conn in [slow, well] {
        rig.open(conn, OUTGOING);
        rig.subscribe(conn, b"");
    }
    rig.out.waiting.insert(slow, 990);
    assert_eq!(rig.publish(b"t", b"long enough"), [well]);
    assert_eq!(rig.publish(b"t", b"long enough"), [well]);
    assert_eq!(rig.count(Counter::PublishedDroppedSlow), 2);
    assert_eq!(rig.state.figures().slow, 1);
    let shown = rig.state.slow_subscribers(|_| 990);
    assert_eq!(shown.len(), 1);
    assert_eq!(
        (shown[0].dropped, shown[0].slow, shown[0].waiting_bytes),
        (2, true, 990)
    );
    // It gets messages again at once when they fit, and counts as well below half.
    rig.out.waiting.insert(slow, 700);
    assert_eq!(rig.publish(b"t", b"").len(), 2);
    assert_eq!(rig.state.figures().slow, 1);
    rig.out.waiting.insert(slow, 500);
    assert_eq!(rig.publish(b"t", b"").len(), 2);
    assert_eq!(rig.state.figures().slow, 0);
    // However large, one message goes to whoever has nothing waiting.
    rig.out.waiting.clear();
    assert_eq!(rig.publish(b"t", &[0; 5_000]).len(), 2);
    rig.out.waiting.insert(slow, 990);
    rig.publish(b"t", b"long enough");
    rig.state.handle_lost(slow, &mut rig.out);
    assert_eq!(rig.state.figures().slow, 0);
}

#[test]
fn under_memory_pressure_everybody_has_the_same_share() {
    let mut rig = Rig::new(PubSubConfig {
        max_memory_bytes: 4 << 20,
        ..PubSubConfig::default()
    });
    let subs: Vec<_> = (1..=10).map(|slot| id(slot, 1)).collect();
    for conn in &subs {
        rig.open(*conn, OUTGOING);
        rig.subscribe(*conn, b"");
    }
    rig.out.waiting.insert(subs[0], 200_000);
    rig.state.begin_turn(1 << 20);
    assert_eq!(rig.publish(b"t", b"").len(), 10, "half is not exceeded");
    rig.state.begin_turn((1 << 20) + 1);
    assert_eq!(rig.publish(b"t", b"").len(), 9);
    assert_eq!(rig.count(Counter::PublishedDroppedMemory), 1);
    assert_eq!(rig.count(Counter::PublishedDroppedSlow), 0);
    rig.state.begin_turn(1 << 20);
    assert_eq!(rig.publish(b"t", b"").len(), 10);
}

#[test]
fn a_turn_takes_a_bounded_amount_of_input() {
    let mut rig = Rig::new(PubSubConfig {
        subscriber_buffer_bytes: 64 << 10,
        ..PubSubConfig::default()
    });
    let mut taken = 0;
    rig.state.begin_turn(0);
    while rig.state.takes_input() {
        rig.publish(b"t", &[0; 1_000]);
        taken += 1;
    }
    assert!((30..=33).contains(&taken), "{taken}");
    rig.state.begin_turn(0);
    assert!(rig.state.takes_input());
    // Many subscribers: the output bounds it.
    for slot in 1..=5_000 {
        rig.open(id(slot, 1), OUTGOING);
        rig.subscribe(id(slot, 1), b"t");
    }
    rig.publish(b"t", &[0; 4_000]);
    assert!(!rig.state.takes_input());
}
