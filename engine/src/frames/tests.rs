use super::*;
use proptest::prelude::*;

#[test]
fn short_and_long_frames_have_their_sizes() {
    for len in [0, 1, 254, 255, 256, 70_000] {
        let mut out = Vec::new();
        push_frame(&mut out, &vec![7; len], false);
        assert_eq!(out.len(), frame_wire_len(len), "{len}");
    }
}

#[test]
fn cut_wire_is_not_a_message() {
    let whole = OwnedMessage::from_frames([&b"a"[..], &[9; 300], b""]);
    let wire = whole.view().wire().to_vec();
    for cut in 0..wire.len() {
        let mut spans = Vec::new();
        assert_eq!(split_wire(&wire[..cut], &mut spans), None, "{cut}");
    }
}

proptest! {
    #[test]
    fn frames_survive_the_wire(frames in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 0..400), 1..20)) {
        let message = OwnedMessage::from_frames(&frames);
        prop_assert_eq!(message.to_frames(), frames.clone());
        let mut spans = Vec::new();
        let len = split_wire(message.view().wire(), &mut spans);
        prop_assert_eq!(len, Some(message.view().wire().len()));
        prop_assert_eq!(message.view().len(), frames.len());
    }
}
