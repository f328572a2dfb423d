//! The properties of the READY command.

use super::command::{READY, push_command};
use super::{Error, SocketType};
use crate::limits::{METADATA_PROPERTIES_MAX, ROUTING_ID_BYTES_MAX};
use smallvec::SmallVec;

const SOCKET_TYPE: &[u8] = b"Socket-Type";
const IDENTITY: &[u8] = b"Identity";

/// What a peer said of itself in its READY.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// The kind of socket it has.
    pub socket_type: SocketType,
    /// The routing id it chose, 1-255 bytes not beginning with 00; `None` if it sent none or an
    /// empty one.
    pub routing_id: Option<Vec<u8>>,
    /// All other properties in the order sent, names as sent.
    pub properties: SmallVec<[(Vec<u8>, Vec<u8>); 2]>,
}

impl Metadata {
    /// The value of a property other than Socket-Type and Identity. Names of properties are
    /// compared without regard to the case of ASCII letters.
    pub fn property(&self, name: &str) -> Option<&[u8]> {
        let found = self
            .properties
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes()));
        found.map(|(_, value)| value.as_slice())
    }

    /// Parses the data of a READY.
    ///
    /// Refused: lengths that do not fit, a name without a byte, the same name twice (two readers
    /// might take different ones), no or an unknown Socket-Type, an Identity that is too long or
    /// begins with 00 (such ids are made by the ROUTER itself).
    pub(super) fn parse(data: &[u8]) -> Result<Metadata, Error> {
        let mut properties = SmallVec::<[(&[u8], &[u8]); 8]>::new();
        let mut rest = data;
        while !rest.is_empty() {
            let (name, value, after) =
                property(rest).ok_or(Error::Handshake("the metadata is malformed"))?;
            rest = after;
            if properties
                .iter()
                .any(|(other, _)| other.eq_ignore_ascii_case(name))
            {
                return Err(Error::Handshake("a property is given twice"));
            }
            if properties.len() == METADATA_PROPERTIES_MAX {
                return Err(Error::Handshake("too many properties"));
            }
            properties.push((name, value));
        }
        let mut socket_type = None;
        let mut routing_id = None;
        let mut others = SmallVec::new();
        for (name, value) in properties {
            if name.eq_ignore_ascii_case(SOCKET_TYPE) {
                let known = SocketType::from_name(value);
                socket_type = Some(known.ok_or(Error::Handshake("unknown socket type"))?);
            } else if name.eq_ignore_ascii_case(IDENTITY) {
                routing_id = check_routing_id(value)?.map(<[u8]>::to_vec);
            } else {
                others.push((name.to_vec(), value.to_vec()));
            }
        }
        let socket_type = socket_type.ok_or(Error::Handshake("no socket type"))?;
        Ok(Metadata {
            socket_type,
            routing_id,
            properties: others,
        })
    }
}

fn check_routing_id(id: &[u8]) -> Result<Option<&[u8]>, Error> {
    match id.first() {
        None => Ok(None),
        Some(0) => Err(Error::Handshake("the routing id begins with 00")),
        Some(_) if id.len() > ROUTING_ID_BYTES_MAX => {
            Err(Error::Handshake("the routing id has more than 255 bytes"))
        }
        Some(_) => Ok(Some(id)),
    }
}

/// Takes the first property off: (name, value, rest).
fn property(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&name_len, rest) = data.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(name_len))?;
    let (value_len, rest) = rest.split_first_chunk::<4>()?;
    let value_len = usize::try_from(u32::from_be_bytes(*value_len)).ok()?;
    let (value, rest) = rest.split_at_checked(value_len)?;
    if name.is_empty() {
        None
    } else {
        Some((name, value, rest))
    }
}

/// A whole READY command frame. Identity is sent, empty if there is none, by the socket types
/// that have one (as libzmq does: REQ, DEALER, ROUTER).
///
/// # Panics
/// If a property name is empty or longer than 255 bytes: they are constants of ours.
pub fn ready_command(
    socket_type: SocketType,
    routing_id: &[u8],
    properties: &[(&str, &[u8])],
) -> Vec<u8> {
    let mut data = Vec::with_capacity(64);
    push_property(&mut data, SOCKET_TYPE, socket_type.name().as_bytes());
    if socket_type.has_routing_id() {
        push_property(&mut data, IDENTITY, routing_id);
    }
    for (name, value) in properties {
        push_property(&mut data, name.as_bytes(), value);
    }
    let mut out = Vec::with_capacity(data.len() + 16);
    push_command(&mut out, READY, &[&data]);
    out
}

fn push_property(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    assert!(
        !name.is_empty() && name.len() <= 255,
        "property name of 1-255 bytes"
    );
    out.push(name.len() as u8);
    out.extend_from_slice(name);
    out.extend_from_slice(&(value.len() as u32).to_be_bytes());
    out.extend_from_slice(value);
}
