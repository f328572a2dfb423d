//! The queue list and the capabilities of an INFORM (protocol.md section 3).

use super::headers::{number, numbered};
use crate::limits::{
    INFORM_BYTES_MAX, INFORM_QUEUES_MAX, INSTANCE_BYTES_MAX, QUEUE_NAME_BYTES_MAX,
};

/// Why an INFORM is not taken. It is then counted and ignored: no ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadInform {
    /// Fewer than two body frames.
    #[error("fewer than two body frames")]
    Frames,
    /// The type is not the one of this socket.
    #[error("the type is not `worker` (backend) or `scheduler` (frontend)")]
    Type,
    /// Not JSON of the form `[[weight, "name"], ...]` with finite weights.
    #[error("the queues are not JSON [[weight, \"name\"], ...]")]
    Queues,
    /// A queue name above 255 bytes, or more than 1,024 queues, or a frame above 1 MiB.
    #[error("too many queues, or a queue name too long")]
    TooLarge,
    /// A capability whose number cannot be read, or an `instance` above 255 bytes.
    #[error("a capability without its number, or with too long a value")]
    Capability,
    /// More queues than `max_queues` would be known.
    #[error("max_queues reached")]
    TooManyQueues,
}

/// Reads `[[weight, "name"], ...]`: for a name given twice the highest weight counts. The order
/// is that of the list.
///
/// # Errors
/// [`BadInform::Queues`] for every other shape, [`BadInform::TooLarge`] above the limits.
pub fn parse_queues(json: &[u8]) -> Result<Vec<(f64, Vec<u8>)>, BadInform> {
    if json.len() > INFORM_BYTES_MAX {
        return Err(BadInform::TooLarge);
    }
    let pairs: Vec<(f64, String)> =
        serde_json::from_slice(json).map_err(|_error| BadInform::Queues)?;
    if pairs.len() > INFORM_QUEUES_MAX {
        return Err(BadInform::TooLarge);
    }
    let mut queues: Vec<(f64, Vec<u8>)> = Vec::with_capacity(pairs.len());
    let mut places = std::collections::BTreeMap::new();
    for (weight, name) in pairs {
        if !weight.is_finite() {
            return Err(BadInform::Queues);
        }
        if name.len() > QUEUE_NAME_BYTES_MAX {
            return Err(BadInform::TooLarge);
        }
        let name = name.into_bytes();
        match places.get(&name) {
            None => {
                places.insert(name.clone(), queues.len());
                queues.push((weight, name));
            }
            Some(place) => {
                let known: &mut (f64, Vec<u8>) = &mut queues[*place];
                known.0 = known.0.max(weight);
            }
        }
    }
    Ok(queues)
}

/// What a worker or scheduler says it can do: the 7th frame of INFORM, csv.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Every ended job is named in a READY.
    pub completions: bool,
    /// Free and in flight together never above this.
    pub slots: Option<u32>,
    /// Random per process, at most 255 bytes.
    pub instance: Option<Vec<u8>>,
    /// Msgids of jobs it still runs.
    pub running: Option<Vec<Vec<u8>>>,
    /// Its heartbeat interval in seconds.
    pub heartbeat_secs: Option<u32>,
    /// A scheduler that takes results.
    pub results: bool,
}

impl Capabilities {
    /// Reads the csv. Unknown ones are ignored; of duplicates the last counts.
    ///
    /// # Errors
    /// [`BadInform::Capability`] if a number cannot be read or an `instance` is too long,
    /// [`BadInform::TooLarge`] above 1 MiB.
    pub fn parse(csv: &[u8]) -> Result<Capabilities, BadInform> {
        if csv.len() > INFORM_BYTES_MAX {
            return Err(BadInform::TooLarge);
        }
        let mut capabilities = Capabilities::default();
        for item in csv.split(|byte| *byte == b',') {
            if item == b"completions" {
                capabilities.completions = true;
            } else if item == b"results" {
                capabilities.results = true;
            } else if let Some(slots) = numbered(item, b"slots") {
                capabilities.slots = Some(slots.map_err(|_error| BadInform::Capability)?);
            } else if let Some(text) = item.strip_prefix(b"heartbeat:") {
                // Seconds may have decimals; the broker needs whole ones, rounded up.
                let whole = text.split(|byte| *byte == b'.').next().unwrap_or_default();
                let seconds = number(whole).map_err(|_error| BadInform::Capability)?;
                let up = u32::from(whole.len() < text.len());
                capabilities.heartbeat_secs = Some(seconds.saturating_add(up));
            } else if let Some(token) = item.strip_prefix(b"instance:") {
                // It is kept as long as the worker is registered.
                if token.len() > INSTANCE_BYTES_MAX {
                    return Err(BadInform::Capability);
                }
                capabilities.instance = Some(token.to_vec());
            } else if let Some(ids) = item.strip_prefix(b"running:") {
                let ids = ids.split(|byte| *byte == b'+').filter(|id| !id.is_empty());
                capabilities.running = Some(ids.map(<[u8]>::to_vec).collect());
            }
        }
        Ok(capabilities)
    }
}
