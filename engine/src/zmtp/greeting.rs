//! The 64 bytes that both sides send first: signature, version, mechanism, as-server, filler.

use super::error::printable;
use super::{Error, Mechanism};

/// Bytes of a ZMTP 3 greeting.
pub const GREETING_BYTES: usize = 64;

const SIGNATURE_END: usize = 9;
const MAJOR: usize = 10;
const MINOR: usize = 11;
const NAME: usize = 12;
pub(super) const NAME_BYTES: usize = 20;

/// The greeting we send: ZMTP 3.1. The as-server byte is 0, as NULL demands.
///
/// The eight bytes inside the signature say "identity of length 0" to a ZMTP 1 peer, as those of
/// libzmq do.
pub fn greeting(mechanism: Mechanism) -> [u8; GREETING_BYTES] {
    let mut bytes = [0_u8; GREETING_BYTES];
    bytes[0] = 0xff;
    bytes[8] = 1;
    bytes[SIGNATURE_END] = 0x7f;
    bytes[MAJOR] = 3;
    bytes[MINOR] = 1;
    bytes[NAME..NAME + NAME_BYTES].copy_from_slice(mechanism.name());
    bytes
}

/// Judges what has come of the peer's greeting. `Ok(None)`: valid so far, more is needed.
/// `Ok(Some(minor))`: whole and acceptable; `minor` is the minor version to speak.
///
/// An error is returned with the first byte that makes it certain: libzmq sends its greeting in
/// three parts, and other protocols send less than 64 bytes and wait.
pub(super) fn check(buf: &[u8], mechanism: Mechanism) -> Result<Option<u8>, Error> {
    let Some(&first) = buf.first() else {
        return Ok(None);
    };
    if first != 0xff {
        // ZMTP 1 begins with a frame that holds the identity: length + 1, flags 0.
        let flags = buf.get(1);
        let old = first != 0 && (flags == Some(&0) || (first == 1 && flags.is_none()));
        return Err(if old {
            Error::OldZmtp(1)
        } else {
            not_zmtp(buf)
        });
    }
    match buf.get(SIGNATURE_END) {
        None => return Ok(None),
        Some(0x7f) => {}
        // ZMTP 1 with an eight byte length, that of an identity and of the flags, which are here.
        Some(0)
            if matches!(
                buf[1..SIGNATURE_END],
                [0, 0, 0, 0, 0, 0, 0, 1..=255] | [0, 0, 0, 0, 0, 0, 1, 0]
            ) =>
        {
            return Err(Error::OldZmtp(1));
        }
        Some(_) => return Err(not_zmtp(buf)),
    }
    match buf.get(MAJOR) {
        None => return Ok(None),
        Some(0) => return Err(Error::OldZmtp(1)),
        Some(1 | 2) => return Err(Error::OldZmtp(2)),
        // A peer that can do more than we speak our version.
        Some(_) => {}
    }
    let name = &buf[buf.len().min(NAME)..buf.len().min(NAME + NAME_BYTES)];
    if !mechanism.name().starts_with(name) {
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        return Err(Error::Mechanism(printable(&name[..end])));
    }
    if buf.len() < GREETING_BYTES {
        return Ok(None);
    }
    Ok(Some(if buf[MAJOR] > 3 { 1 } else { buf[MINOR].min(1) }))
}

fn not_zmtp(buf: &[u8]) -> Error {
    Error::NotZmtp(buf[..buf.len().min(12)].into())
}
