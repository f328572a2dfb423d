use super::*;

fn frames_of(wire: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Frames::default();
    assert_eq!(walk(wire, &mut frames), Front::Message(wire.len()));
    (0..frames.count)
        .map(|index| frames.get(wire, index).to_vec())
        .collect()
}

#[test]
fn msgid_carries_sender_place_and_serial() {
    let id = Msgid::new(0xfeed).with(0xbeef, 0x1234_5678);
    assert_eq!(id.bytes(), b"0000feed-beef-4eb0-8eb0-000012345678");
    assert_eq!(Msgid::place(id.bytes()), Some(0xbeef));
    assert_eq!(Msgid::place(b"short"), None);
    assert_eq!(Msgid::place(b"0000feed-bEef-4eb0-8eb0-000012345678"), None);
}

#[test]
fn request_has_the_frames_of_the_protocol() {
    let mut wire = Vec::new();
    let id = Msgid::new(7).with(1, 2);
    request("default", "reply-requested", 4096).push(&mut wire, id.bytes());
    let frames = frames_of(&wire);
    assert_eq!(frames[..2], [b"".to_vec(), b"eMQP/1.0".to_vec()]);
    assert_eq!(frames[2..4], [b"REQUEST".to_vec(), id.bytes().to_vec()]);
    assert_eq!(
        frames[4..6],
        [b"default".to_vec(), b"reply-requested".to_vec()]
    );
    assert_eq!(frames[6].len(), 4096);
}

#[test]
fn reply_names_both_messages() {
    let mut wire = Vec::new();
    let (own, asked) = (Msgid::new(1).with(2, 3), Msgid::new(4).with(5, 6));
    ReplyTemplate::new().push(&mut wire, &own, asked.bytes());
    let frames = frames_of(&wire);
    assert_eq!(
        frames[2..],
        [&b"REPLY"[..], own.bytes(), RESULT, asked.bytes()]
    );
    assert_eq!(ReplyTemplate::new().len(), wire.len());
}

#[test]
fn acceptance_names_the_request() {
    let mut wire = Vec::new();
    let asked = Msgid::new(9).with(8, 7);
    acceptance().push(&mut wire, asked.bytes());
    let frames = frames_of(&wire);
    assert_eq!(frames.len(), 5);
    assert_eq!(frames[4], asked.bytes());
}

#[test]
fn every_cut_of_a_message_is_partial() {
    let mut wire = Vec::new();
    request("q", "", 300).push(&mut wire, Msgid::new(1).bytes());
    let mut frames = Frames::default();
    for cut in 0..wire.len() {
        assert_eq!(walk(&wire[..cut], &mut frames), Front::Partial, "{cut}");
    }
    wire.push(0);
    assert_eq!(walk(&wire, &mut frames), Front::Message(wire.len() - 1));
}

#[test]
fn commands_stand_only_between_messages() {
    let mut frames = Frames::default();
    let ping = b"\x04\x07\x04PING\x00\x10";
    assert_eq!(
        walk(ping, &mut frames),
        Front::Command { body_at: 2, end: 9 }
    );
    assert_eq!(walk(&ping[..8], &mut frames), Front::Partial);
    assert_eq!(
        walk(b"\x01\x00\x04\x07\x04PING\x00\x10", &mut frames),
        Front::Malformed
    );
    assert_eq!(walk(b"HTTP/1.1 400", &mut frames), Front::Malformed);
}

#[test]
fn announced_length_of_all_ones_is_partial() {
    let mut frames = Frames::default();
    assert_eq!(
        walk(&[2, 255, 255, 255, 255, 255, 255, 255, 255, 1], &mut frames),
        Front::Partial
    );
}

#[test]
fn frames_beyond_the_known_places_are_counted() {
    let many: Vec<&[u8]> = vec![b"x"; 12];
    let wire = message(&many);
    let mut frames = Frames::default();
    assert_eq!(walk(&wire, &mut frames), Front::Message(wire.len()));
    assert_eq!(frames.count, 14);
    assert_eq!(frames.get(&wire, 13), b"");
}

#[test]
fn failed_reply_has_a_status() {
    let mut wire = Vec::new();
    let (own, asked) = (Msgid::new(1).with(2, 3), Msgid::new(4).with(5, 6));
    ReplyTemplate::failed().push(&mut wire, &own, asked.bytes());
    let frames = frames_of(&wire);
    assert_eq!(frames.len(), 7);
    assert_eq!(
        (&frames[5][..], &frames[6][..]),
        (&asked.bytes()[..], STATUS_ERROR)
    );
    let result: serde_json::Value = serde_json::from_slice(&frames[4]).unwrap();
    assert_eq!(result["error"]["type"], "BenchError");
}

#[test]
fn msgid_is_read_back() {
    let id = Msgid::new(0xfeed_0001).with(0xbeef, 0x1234_5678);
    assert_eq!(Msgid::tag(id.bytes()), Some(0xfeed_0001));
    assert_eq!(Msgid::serial(id.bytes()), Some(0x1234_5678));
    assert_eq!(Msgid::tag(&[b'x'; MSGID_BYTES]), None);
}
